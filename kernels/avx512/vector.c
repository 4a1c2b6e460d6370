/* AVX-512 vector operations: activation quantization, norms, gates, conversions. An element's
 * result comes from the same instructions in a full vector and in a masked tail; sums run over 16
 * lanes, element i in lane i % 16, and end in one fixed tree. */
#include "kernels/avx512/math.h"
#include "kernels/avx512/parts.h"
#include "kernels/kern.h"

static void quantize(const float *x, size_t k, int8_t *q, float *d, int16_t *s)
{
    for (size_t i = 0; i < k; i += 32) {
        quantize_group(x + i, 32, q + i, d + i / 32, s + i / 16);
    }
}

static void rmsnorm(const float *x, const float *w, size_t n, float eps, float *y)
{
    __m512 sum = _mm512_setzero_ps();
    for (size_t i = 0; i < n; i += 16) {
        __m512 v = _mm512_maskz_loadu_ps(lanes_at(i, n), x + i);
        sum = _mm512_fmadd_ps(v, v, sum);
    }
    __m512 scale = _mm512_set1_ps(1 / sqrtf(sum_lanes(sum) / (float)n + eps));
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = lanes_at(i, n);
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(m, x + i), scale);
        if (w) {
            v = _mm512_mul_ps(v, _mm512_maskz_loadu_ps(m, w + i));
        }
        _mm512_mask_storeu_ps(y + i, m, v);
    }
}

static void add(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = lanes_at(i, n);
        __m512 v = _mm512_maskz_loadu_ps(m, y + i);
        _mm512_mask_storeu_ps(y + i, m, _mm512_add_ps(v, _mm512_maskz_loadu_ps(m, x + i)));
    }
}

static void axpy(float *y, float a, const float *x, size_t n)
{
    __m512 va = _mm512_set1_ps(a);
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = lanes_at(i, n);
        __m512 v = _mm512_maskz_loadu_ps(m, y + i);
        v = _mm512_fmadd_ps(va, _mm512_maskz_loadu_ps(m, x + i), v);
        _mm512_mask_storeu_ps(y + i, m, v);
    }
}

static void scale(float *y, float a, size_t n)
{
    __m512 va = _mm512_set1_ps(a);
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = lanes_at(i, n);
        _mm512_mask_storeu_ps(y + i, m, _mm512_mul_ps(va, _mm512_maskz_loadu_ps(m, y + i)));
    }
}

static void silu_mul(const float *g, const float *u, size_t n, float *y)
{
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = lanes_at(i, n);
        __m512 v = _mm512_maskz_loadu_ps(m, g + i);
        v = _mm512_mul_ps(v, sigmoid_of(v));
        _mm512_mask_storeu_ps(y + i, m, _mm512_mul_ps(v, _mm512_maskz_loadu_ps(m, u + i)));
    }
}

static void swiglu_oai(const float *g, const float *u, size_t n, float alpha, float limit, float *y)
{
    const __m512 one = _mm512_set1_ps(1), top = _mm512_set1_ps(limit), low = _mm512_set1_ps(-limit);
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = lanes_at(i, n);
        /* min and max give their second operand where one is NaN */
        __m512 vg = _mm512_min_ps(top, _mm512_maskz_loadu_ps(m, g + i));
        __m512 vu = _mm512_min_ps(top, _mm512_maskz_loadu_ps(m, u + i));
        vu = _mm512_add_ps(_mm512_max_ps(low, vu), one);
        vg = _mm512_mul_ps(vg, sigmoid_of(_mm512_mul_ps(_mm512_set1_ps(alpha), vg)));
        _mm512_mask_storeu_ps(y + i, m, _mm512_mul_ps(vu, vg));
    }
}

static void sigmoid(const float *x, size_t n, float *y)
{
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = lanes_at(i, n);
        _mm512_mask_storeu_ps(y + i, m, sigmoid_of(_mm512_maskz_loadu_ps(m, x + i)));
    }
}

static void f32_to_f16(const float *x, size_t n, uint16_t *y)
{
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = lanes_at(i, n);
        __m256i v = _mm512_cvtps_ph(_mm512_maskz_loadu_ps(m, x + i), _MM_FROUND_TO_NEAREST_INT);
        _mm256_mask_storeu_epi16(y + i, m, v);
    }
}

static void f16_to_f32(const uint16_t *x, size_t n, float *y)
{
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = lanes_at(i, n);
        _mm512_mask_storeu_ps(y + i, m, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(m, x + i)));
    }
}

void avx512_fill_vector(struct kern *kern)
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
}
