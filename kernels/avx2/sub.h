/* AVX2: a decoded sub-block, and how fields of a block of a panel are read. */
#ifndef NUMOE_KERNELS_AVX2_SUB_H
#define NUMOE_KERNELS_AVX2_SUB_H

#include <immintrin.h>
#include <string.h>

#include "kernels/layout.h"

/* 32 elements of 8 rows, see decode.h. */
struct sub {
    __m256i q[8];
    __m256 scale[2], min[2];
};

/* Word i of a field of 4-byte units, of the rows of half h. */
KERN_INLINE __m256i words_at(const uint8_t *field, unsigned i, unsigned h)
{
    return _mm256_loadu_si256((const __m256i *)(field + 64 * i + 32 * h));
}

KERN_INLINE __m256i bytes_at(const uint8_t *field, unsigned i, unsigned h)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(field + 16 * i + 8 * h)));
}

KERN_INLINE __m256 f16_at(const uint8_t *field, unsigned h)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(field + 16 * h)));
}

KERN_INLINE __m256i and_bytes(__m256i v, char mask)
{
    return _mm256_and_si256(v, _mm256_set1_epi8(mask));
}

KERN_INLINE __m256i and_dwords(__m256i v, int mask)
{
    return _mm256_and_si256(v, _mm256_set1_epi32(mask));
}

/* v shifted by n bits to the left (to the right where n < 0) within 16 bits. */
KERN_INLINE __m256i shift_bits(__m256i v, int n)
{
    return n > 0 ? _mm256_slli_epi16(v, n) : n < 0 ? _mm256_srli_epi16(v, -n) : v;
}

KERN_INLINE __m256i low_or_high_nibbles(__m256i v, bool high)
{
    return and_bytes(high ? _mm256_srli_epi16(v, 4) : v, 0x0f);
}

KERN_INLINE __m256 scaled(__m256 d, __m256i v)
{
    return _mm256_mul_ps(d, _mm256_cvtepi32_ps(v));
}

#endif
