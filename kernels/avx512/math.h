/* AVX-512: exponential, sigmoid and sums of 16 lanes, each with one fixed sequence of operations.
 */
#ifndef NUMOE_KERNELS_AVX512_MATH_H
#define NUMOE_KERNELS_AVX512_MATH_H

#include <immintrin.h>
#include <math.h>

#include "kernels/expf.h"

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

#endif
