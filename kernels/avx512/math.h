/* AVX-512: masks of tails, and exponential, sigmoid, sums of 16 lanes and quantization of
 * activations, each with one fixed sequence of operations. */
#ifndef NUMOE_KERNELS_AVX512_MATH_H
#define NUMOE_KERNELS_AVX512_MATH_H

#include <float.h>
#include <immintrin.h>
#include <math.h>

#include "kernels/expf.h"
#include "kernels/layout.h"

/* Lanes of the vector that begins at element i of n. */
static inline __mmask16 lanes_at(size_t i, size_t n)
{
    return n - i >= 16 ? 0xffff : (__mmask16)((1u << (n - i)) - 1);
}

/* The steps of kernels/expf.h. */
static inline __m512 exp_of(__m512 x)
{
    /* min and max give their second operand where one is NaN */
    x = _mm512_max_ps(_mm512_set1_ps(EXPF_LOW), x);
    x = _mm512_min_ps(_mm512_set1_ps(EXPF_HIGH), x);
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(EXPF_LOG2E)),
                                    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(EXPF_LN2_HIGH), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(EXPF_LN2_LOW), r);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(EXPF_C6), r, _mm512_set1_ps(EXPF_C5));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXPF_C4));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXPF_C3));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXPF_C2));
    p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r);
    return _mm512_scalef_ps(_mm512_add_ps(p, _mm512_set1_ps(1)), n);
}

static inline __m512 sigmoid_of(__m512 x)
{
    const __m512 one = _mm512_set1_ps(1);
    return _mm512_div_ps(one, _mm512_add_ps(one, exp_of(_mm512_sub_ps(_mm512_setzero_ps(), x))));
}

/* Lanes i and i + 8, then i + 4, i + 2, i + 1. */
static inline float sum_lanes(__m512 v)
{
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* n elements, a constant multiple of 16, with one scale: q, *d and s [n/16] as kernels/kern.h says.
 * Of finite x, x * (127 / max) is in [-127, 127] when rounded. */
KERN_INLINE void quantize_group(const float *x, unsigned n, int8_t *q, float *d, int16_t *s)
{
    __m512 most = _mm512_setzero_ps();
    __mmask16 nan = 0;
#pragma GCC unroll 2
    for (unsigned i = 0; i < n; i += 16) {
        const __m512 v = _mm512_loadu_ps(x + i);
        nan |= _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
        most = _mm512_max_ps(most, _mm512_abs_ps(v));
    }
    const float max = _mm512_reduce_max_ps(most);
    const bool finite = nan == 0 && max <= FLT_MAX, some = finite && max / 127 >= FLT_MIN;
    const __m512 inverse = _mm512_set1_ps(some ? 127 / max : 0);
    *d = some ? max / 127 : finite ? 0 : NAN;
#pragma GCC unroll 2
    for (unsigned i = 0; i < n; i += 16) {
        const __m512i v = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i), inverse));
        const __m512i kept = some ? v : _mm512_setzero_si512();
        _mm_storeu_si128((__m128i *)(q + i), _mm512_cvtepi32_epi8(kept));
        s[i / 16] = (int16_t)_mm512_reduce_add_epi32(kept);
    }
}

#endif
