/* AVX2 vector operations: activation quantization, norms, gates, conversions. An element's result
 * comes from the same instructions in a full vector and in a partial one; sums run over 16 lanes,
 * element i in lane i % 16, and end in one fixed tree. */
#include <float.h>

#include "kernels/avx2/math.h"
#include "kernels/avx2/parts.h"
#include "kernels/kern.h"

static __m256 absolute(__m256 x)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}

/* Of finite x, q = x * inverse rounded to nearest even: in [-127, 127] since inverse is 127 /
 * max|x|. */
static __m256i quants_of(const float *x, float inverse)
{
    return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), _mm256_set1_ps(inverse)));
}

/* 16 quants and their sum. */
static void quantize_half(const float *x, float inverse, int8_t *q, int16_t *s)
{
    __m256i v = _mm256_packs_epi32(quants_of(x, inverse), quants_of(x + 8, inverse));
    v = _mm256_permute4x64_epi64(v, 0xd8); /* the pack worked within 128-bit lanes */
    __m128i low = _mm256_castsi256_si128(v), high = _mm256_extracti128_si256(v, 1);
    _mm_storeu_si128((__m128i *)q, _mm_packs_epi16(low, high));
    __m128i sum = _mm_madd_epi16(_mm_add_epi16(low, high), _mm_set1_epi16(1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    *s = (int16_t)(_mm_cvtsi128_si32(sum) + _mm_extract_epi32(sum, 1));
}

static void quantize_block(const float *x, int8_t *q, float *d, int16_t *s)
{
    __m256 top = _mm256_setzero_ps(), nan = top;
    for (unsigned i = 0; i < 32; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i);
        top = _mm256_max_ps(top, absolute(v));
        nan = _mm256_or_ps(nan, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    }
    float max = max_lanes(top);
    bool finite = !_mm256_movemask_ps(nan) && max <= FLT_MAX;
    *d = finite ? max / 127 : NAN;
    if (finite && *d >= FLT_MIN) {
        quantize_half(x, 127 / max, q, s);
        quantize_half(x + 16, 127 / max, q + 16, s + 1);
        return;
    }
    if (finite) {
        *d = 0;
    }
    memset(q, 0, 32);
    s[0] = s[1] = 0;
}

static void quantize(const float *x, size_t k, int8_t *q, float *d, int16_t *s)
{
    for (size_t i = 0; i < k; i += 32) {
        quantize_block(x + i, q + i, d + i / 32, s + i / 16);
    }
}

static void rmsnorm(const float *x, const float *w, size_t n, float eps, float *y)
{
    __m256 low = _mm256_setzero_ps(), high = low;
    for (size_t i = 0; i < n; i += 16) {
        __m256 a = load_part(x + i, n - i);
        low = _mm256_fmadd_ps(a, a, low);
        if (n - i > 8) {
            __m256 b = load_part(x + i + 8, n - i - 8);
            high = _mm256_fmadd_ps(b, b, high);
        }
    }
    float sum = sum_lanes(_mm256_add_ps(low, high));
    __m256 scale = _mm256_set1_ps(1 / sqrtf(sum / (float)n + eps));
    for (size_t i = 0; i < n; i += 8) {
        __m256 v = _mm256_mul_ps(load_part(x + i, n - i), scale);
        if (w) {
            v = _mm256_mul_ps(v, load_part(w + i, n - i));
        }
        store_part(y + i, n - i, v);
    }
}

static void add(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i += 8) {
        __m256 v = _mm256_add_ps(load_part(y + i, n - i), load_part(x + i, n - i));
        store_part(y + i, n - i, v);
    }
}

static void axpy(float *y, float a, const float *x, size_t n)
{
    __m256 va = _mm256_set1_ps(a);
    for (size_t i = 0; i < n; i += 8) {
        __m256 v = _mm256_fmadd_ps(va, load_part(x + i, n - i), load_part(y + i, n - i));
        store_part(y + i, n - i, v);
    }
}

static void scale(float *y, float a, size_t n)
{
    __m256 va = _mm256_set1_ps(a);
    for (size_t i = 0; i < n; i += 8) {
        store_part(y + i, n - i, _mm256_mul_ps(va, load_part(y + i, n - i)));
    }
}

static void silu_mul(const float *g, const float *u, size_t n, float *y)
{
    for (size_t i = 0; i < n; i += 8) {
        __m256 v = load_part(g + i, n - i);
        v = _mm256_mul_ps(v, sigmoid_of(v));
        store_part(y + i, n - i, _mm256_mul_ps(v, load_part(u + i, n - i)));
    }
}

static void swiglu_oai(const float *g, const float *u, size_t n, float alpha, float limit, float *y)
{
    const __m256 one = _mm256_set1_ps(1), top = _mm256_set1_ps(limit), low = _mm256_set1_ps(-limit);
    for (size_t i = 0; i < n; i += 8) {
        /* min and max give their second operand where one is NaN */
        __m256 vg = _mm256_min_ps(top, load_part(g + i, n - i));
        __m256 vu = _mm256_min_ps(top, load_part(u + i, n - i));
        vu = _mm256_add_ps(_mm256_max_ps(low, vu), one);
        vg = _mm256_mul_ps(vg, sigmoid_of(_mm256_mul_ps(_mm256_set1_ps(alpha), vg)));
        store_part(y + i, n - i, _mm256_mul_ps(vu, vg));
    }
}

static void sigmoid(const float *x, size_t n, float *y)
{
    for (size_t i = 0; i < n; i += 8) {
        store_part(y + i, n - i, sigmoid_of(load_part(x + i, n - i)));
    }
}

static void f32_to_f16(const float *x, size_t n, uint16_t *y)
{
    for (size_t i = 0; i < n; i += 8) {
        __m128i v = _mm256_cvtps_ph(load_part(x + i, n - i), _MM_FROUND_TO_NEAREST_INT);
        if (n - i >= 8) {
            _mm_storeu_si128((__m128i *)(y + i), v);
        } else {
            memcpy(y + i, &v, (n - i) * sizeof(*y));
        }
    }
}

static void f16_to_f32(const uint16_t *x, size_t n, float *y)
{
    for (size_t i = 0; i < n; i += 8) {
        store_part(y + i, n - i, load_part_f16(x + i, n - i));
    }
}

static void q8_0_to_f32(const void *blocks, size_t n, float *y)
{
    const uint8_t *block = blocks;
    for (size_t i = 0; i < n; i += 32, block += 34) {
        uint16_t half;
        memcpy(&half, block, 2);
        const __m256 d = _mm256_cvtph_ps(_mm_set1_epi16((short)half));
        for (size_t j = 0; j < 32 && i + j < n; j += 8) {
            __m256i v = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(block + 2 + j)));
            store_part(y + i + j, n - i - j, _mm256_mul_ps(d, _mm256_cvtepi32_ps(v)));
        }
    }
}

void avx2_fill_vector(struct kern *kern)
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
}
