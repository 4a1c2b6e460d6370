/* AVX2: exponential, sigmoid, sums of lanes and partial vectors, each with one fixed sequence of
 * operations. */
#ifndef NUMOE_KERNELS_AVX2_MATH_H
#define NUMOE_KERNELS_AVX2_MATH_H

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "kernels/expf.h"
#include "kernels/layout.h"

/* The steps of kernels/expf.h. */
KERN_INLINE __m256 exp_of(__m256 x)
{
    /* min and max give their second operand where one is NaN */
    x = _mm256_max_ps(_mm256_set1_ps(EXPF_LOW), x);
    x = _mm256_min_ps(_mm256_set1_ps(EXPF_HIGH), x);
    __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(EXPF_LOG2E)),
                               _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(EXPF_LN2_HIGH), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(EXPF_LN2_LOW), r);
    __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(EXPF_C6), r, _mm256_set1_ps(EXPF_C5));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EXPF_C4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EXPF_C3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EXPF_C2));
    p = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r);
    p = _mm256_add_ps(p, _mm256_set1_ps(1));
    __m256i exponent = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(exponent, 1);
    __m256i rest = _mm256_sub_epi32(exponent, half), bias = _mm256_set1_epi32(127);
    __m256i scale1 = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    __m256i scale2 = _mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23);
    return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(scale1)),
                         _mm256_castsi256_ps(scale2));
}

KERN_INLINE __m256 sigmoid_of(__m256 x)
{
    const __m256 one = _mm256_set1_ps(1);
    return _mm256_div_ps(one, _mm256_add_ps(one, exp_of(_mm256_sub_ps(_mm256_setzero_ps(), x))));
}

/* Lanes i and i + 4, then i + 2, i + 1. */
KERN_INLINE float sum_lanes(__m256 v)
{
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}

KERN_INLINE float max_lanes(__m256 v)
{
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
}

/* All bits in the lanes below n. */
KERN_INLINE __m256i lanes_below(size_t n)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n < 8 ? (int)n : 8), lane);
}

/* The first n (at most 8) floats or f16 at x, 0 in the other lanes. */
KERN_INLINE __m256 load_part(const float *x, size_t n)
{
    return n >= 8 ? _mm256_loadu_ps(x) : _mm256_maskload_ps(x, lanes_below(n));
}

KERN_INLINE __m256 load_part_f16(const uint16_t *x, size_t n)
{
    uint16_t part[8] = {0};
    if (n >= 8) {
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)x));
    }
    memcpy(part, x, n * sizeof(*x));
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)part));
}

KERN_INLINE void store_part(float *y, size_t n, __m256 v)
{
    if (n >= 8) {
        _mm256_storeu_ps(y, v);
    } else {
        _mm256_maskstore_ps(y, lanes_below(n), v);
    }
}

#endif
