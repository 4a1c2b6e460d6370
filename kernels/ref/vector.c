/* Reference vector functions: quantization of activations, norm, element-wise arithmetic and
 * activations, conversions; and the fill of the whole reference table. */
#include "kernels/ref/ref.h"

#include <float.h>
#include <math.h>

#include "kernels/expf.h"
#include "kernels/isa.h"

union float_bits {
    float f;
    uint32_t u;
};

/* As bits, absolute values are in order, infinity and NaN above all finite ones. */
static uint32_t max_abs_bits(const float *x, unsigned n)
{
    uint32_t max = 0;
    for (unsigned i = 0; i < n; i++) {
        union float_bits v = {x[i]};
        v.u &= 0x7fffffff;
        max = v.u > max ? v.u : max;
    }
    return max;
}

static void quantize_group(const float *x, int8_t *q, float *d, int16_t *s)
{
    union float_bits max = {.u = max_abs_bits(x, 32)}, round = {EXPF_ROUND};
    bool finite = max.u < 0x7f800000u;
    float inverse = 0;

    *d = finite ? max.f / 127 : NAN;
    if (*d < FLT_MIN) {
        *d = 0;
    } else if (finite) {
        inverse = 127 / max.f;
    }
    for (unsigned i = 0; i < 32; i++) {
        union float_bits v = {(inverse > 0 ? x[i] * inverse : 0) + EXPF_ROUND};
        q[i] = (int8_t)(v.u - round.u);
    }
    for (unsigned ih = 0; ih < 2; ih++) {
        int sum = 0;
        for (unsigned i = 0; i < 16; i++) {
            sum += q[16 * ih + i];
        }
        s[ih] = (int16_t)sum;
    }
}

static void quantize(const float *x, size_t k, int8_t *q, float *d, int16_t *s)
{
    for (size_t i = 0; i < k; i += 32) {
        quantize_group(x + i, q + i, d + i / 32, s + i / 16);
    }
}

static void rmsnorm(const float *x, const float *w, size_t n, float eps, float *y)
{
    float lane[REF_LANES] = {0};
    size_t i = 0;
    for (; i + REF_LANES <= n; i += REF_LANES) {
        for (unsigned il = 0; il < REF_LANES; il++) {
            lane[il] += x[i + il] * x[i + il];
        }
    }
    for (unsigned il = 0; i < n; i++, il++) {
        lane[il] += x[i] * x[i];
    }
    float scale = 1 / sqrtf(ref_add_lanes(lane) / (float)n + eps);
    for (i = 0; i < n; i++) {
        y[i] = x[i] * scale * (w != NULL ? w[i] : 1);
    }
}

static void add(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        y[i] += x[i];
    }
}

static void axpy(float *y, float a, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        y[i] += a * x[i];
    }
}

static void scale(float *y, float a, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        y[i] *= a;
    }
}

static void silu_mul(const float *g, const float *u, size_t n, float *y)
{
    for (size_t i = 0; i < n; i++) {
        y[i] = g[i] / (1 + kern_expf(-g[i])) * u[i];
    }
}

static void swiglu_oai(const float *g, const float *u, size_t n, float alpha, float limit, float *y)
{
    for (size_t i = 0; i < n; i++) {
        float gate = g[i] > limit ? limit : g[i];
        float up = u[i] > limit ? limit : u[i] < -limit ? -limit : u[i];
        y[i] = (up + 1) * (gate / (1 + kern_expf(-(alpha * gate))));
    }
}

static void sigmoid(const float *x, size_t n, float *y)
{
    for (size_t i = 0; i < n; i++) {
        y[i] = 1 / (1 + kern_expf(-x[i]));
    }
}

static void f32_to_f16(const float *x, size_t n, uint16_t *y)
{
    for (size_t i = 0; i < n; i++) {
        y[i] = format_f32_to_f16(x[i]);
    }
}

static void f16_to_f32(const uint16_t *x, size_t n, float *y)
{
    for (size_t i = 0; i < n; i++) {
        y[i] = format_f16_to_f32(x[i]);
    }
}

static void q8_0_to_f32(const void *blocks, size_t n, float *y)
{
    const uint8_t *block = blocks;
    for (size_t i = 0; i < n; i++) {
        const uint8_t *at = block + i / 32 * 34;
        float d = format_f16_to_f32((uint16_t)(at[0] | at[1] << 8));
        y[i] = d * (float)(int8_t)at[2 + i % 32];
    }
}

void kern_ref_fill(struct kern *kern)
{
    kern->quantize = quantize;
    kern->rmsnorm = rmsnorm;
    kern->add = add;
    kern->axpy = axpy;
    kern->scale = scale;
    kern->silu_mul = silu_mul;
    kern->swiglu_oai = swiglu_oai;
    kern->sigmoid = sigmoid;
    kern->f32_to_f16 = f32_to_f16;
    kern->f16_to_f32 = f16_to_f32;
    kern->q8_0_to_f32 = q8_0_to_f32;
    ref_fill_matmul(kern);
    ref_fill_attn(kern);
}
