/* AVX-512 (F, BW, VL, DQ, VNNI, VBMI) and AVX-VNNI: a register of 512 bits is two of AVX2, and most
 * operations are those of AVX2 on both. */
#ifndef NUMOE_TESTS_EMULATE_AVX512_H
#define NUMOE_TESTS_EMULATE_AVX512_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    __m256 low, high;
} __attribute__((aligned(64))) emulated_m512;

typedef struct {
    __m256i low, high;
} __attribute__((aligned(64))) emulated_m512i;

/* The compiler's header has taken the names, one for a macro. */
#undef _mm512_setr_epi32
#define __m512                       emulated_m512
#define __m512i                      emulated_m512i
#define _mm512_castps512_ps128       emulated_mm512_castps512_ps128
#define _mm512_extractf32x4_ps       emulated_mm512_extractf32x4_ps
#define _mm512_shuffle_f32x4         emulated_mm512_shuffle_f32x4
#define _mm512_shuffle_ps            emulated_mm512_shuffle_ps
#define _mm512_unpackhi_ps           emulated_mm512_unpackhi_ps
#define _mm512_unpacklo_ps           emulated_mm512_unpacklo_ps
#define _mm512_abs_ps                emulated_mm512_abs_ps
#define _mm512_add_epi32             emulated_mm512_add_epi32
#define _mm512_add_ps                emulated_mm512_add_ps
#define _mm512_and_si512             emulated_mm512_and_si512
#define _mm512_broadcast_i32x4       emulated_mm512_broadcast_i32x4
#define _mm512_castps256_ps512       emulated_mm512_castps256_ps512
#define _mm512_castps512_ps256       emulated_mm512_castps512_ps256
#define _mm512_castsi512_ps          emulated_mm512_castsi512_ps
#define _mm512_castsi512_si128       emulated_mm512_castsi512_si128
#define _mm512_cmp_ps_mask           emulated_mm512_cmp_ps_mask
#define _mm512_cmplt_epi32_mask      emulated_mm512_cmplt_epi32_mask
#define _mm512_cvtepi16_epi32        emulated_mm512_cvtepi16_epi32
#define _mm512_cvtepi32_epi16        emulated_mm512_cvtepi32_epi16
#define _mm512_cvtepi32_epi8         emulated_mm512_cvtepi32_epi8
#define _mm512_cvtepi32_ps           emulated_mm512_cvtepi32_ps
#define _mm512_cvtepi8_epi32         emulated_mm512_cvtepi8_epi32
#define _mm512_cvtepu16_epi32        emulated_mm512_cvtepu16_epi32
#define _mm512_cvtepu8_epi32         emulated_mm512_cvtepu8_epi32
#define _mm512_cvtph_ps              emulated_mm512_cvtph_ps
#define _mm512_cvtps_epi32           emulated_mm512_cvtps_epi32
#define _mm512_cvtps_ph              emulated_mm512_cvtps_ph
#define _mm512_div_ps                emulated_mm512_div_ps
#define _mm512_dpbusd_epi32          emulated_mm512_dpbusd_epi32
#define _mm512_dpwssd_epi32          emulated_mm512_dpwssd_epi32
#define _mm512_extractf32x8_ps       emulated_mm512_extractf32x8_ps
#define _mm512_extracti32x4_epi32    emulated_mm512_extracti32x4_epi32
#define _mm512_fmadd_ps              emulated_mm512_fmadd_ps
#define _mm512_fnmadd_ps             emulated_mm512_fnmadd_ps
#define _mm512_i32gather_epi32       emulated_mm512_i32gather_epi32
#define _mm512_load_si512            emulated_mm512_load_si512
#define _mm512_loadu_ps              emulated_mm512_loadu_ps
#define _mm512_loadu_si512           emulated_mm512_loadu_si512
#define _mm512_madd_epi16            emulated_mm512_madd_epi16
#define _mm512_maddubs_epi16         emulated_mm512_maddubs_epi16
#define _mm512_mask_add_epi8         emulated_mm512_mask_add_epi8
#define _mm512_mask_blend_epi16      emulated_mm512_mask_blend_epi16
#define _mm512_mask_blend_epi8       emulated_mm512_mask_blend_epi8
#define _mm512_mask_loadu_ps         emulated_mm512_mask_loadu_ps
#define _mm512_mask_mov_epi32        emulated_mm512_mask_mov_epi32
#define _mm512_mask_storeu_ps        emulated_mm512_mask_storeu_ps
#define _mm512_maskz_loadu_ps        emulated_mm512_maskz_loadu_ps
#define _mm512_maskz_mov_epi32       emulated_mm512_maskz_mov_epi32
#define _mm512_maskz_mov_ps          emulated_mm512_maskz_mov_ps
#define _mm512_max_ps                emulated_mm512_max_ps
#define _mm512_min_ps                emulated_mm512_min_ps
#define _mm512_movepi8_mask          emulated_mm512_movepi8_mask
#define _mm512_mul_ps                emulated_mm512_mul_ps
#define _mm512_mullo_epi16           emulated_mm512_mullo_epi16
#define _mm512_mullo_epi32           emulated_mm512_mullo_epi32
#define _mm512_multishift_epi64_epi8 emulated_mm512_multishift_epi64_epi8
#define _mm512_or_si512              emulated_mm512_or_si512
#define _mm512_permutex2var_epi8     emulated_mm512_permutex2var_epi8
#define _mm512_permutexvar_epi8      emulated_mm512_permutexvar_epi8
#define _mm512_permutexvar_ps        emulated_mm512_permutexvar_ps
#define _mm512_reduce_add_epi32      emulated_mm512_reduce_add_epi32
#define _mm512_reduce_max_ps         emulated_mm512_reduce_max_ps
#define _mm512_roundscale_ps         emulated_mm512_roundscale_ps
#define _mm512_scalef_ps             emulated_mm512_scalef_ps
#define _mm512_set1_epi16            emulated_mm512_set1_epi16
#define _mm512_set1_epi32            emulated_mm512_set1_epi32
#define _mm512_set1_epi64            emulated_mm512_set1_epi64
#define _mm512_set1_epi8             emulated_mm512_set1_epi8
#define _mm512_set1_ps               emulated_mm512_set1_ps
#define _mm512_set4_epi32            emulated_mm512_set4_epi32
#define _mm512_setr_epi32            emulated_mm512_setr_epi32
#define _mm512_setzero_ps            emulated_mm512_setzero_ps
#define _mm512_setzero_si512         emulated_mm512_setzero_si512
#define _mm512_shuffle_epi8          emulated_mm512_shuffle_epi8
#define _mm512_slli_epi16            emulated_mm512_slli_epi16
#define _mm512_slli_epi32            emulated_mm512_slli_epi32
#define _mm512_sllv_epi32            emulated_mm512_sllv_epi32
#define _mm512_srai_epi16            emulated_mm512_srai_epi16
#define _mm512_srli_epi16            emulated_mm512_srli_epi16
#define _mm512_srli_epi32            emulated_mm512_srli_epi32
#define _mm512_store_si512           emulated_mm512_store_si512
#define _mm512_storeu_ps             emulated_mm512_storeu_ps
#define _mm512_storeu_si512          emulated_mm512_storeu_si512
#define _mm512_sub_epi16             emulated_mm512_sub_epi16
#define _mm512_sub_epi32             emulated_mm512_sub_epi32
#define _mm512_sub_epi8              emulated_mm512_sub_epi8
#define _mm512_sub_ps                emulated_mm512_sub_ps
#define _mm512_ternarylogic_epi32    emulated_mm512_ternarylogic_epi32
#define _mm512_test_epi32_mask       emulated_mm512_test_epi32_mask
#define _mm512_test_epi8_mask        emulated_mm512_test_epi8_mask
#define _mm512_xor_si512             emulated_mm512_xor_si512
#define _mm256_dpbusd_avx_epi32      emulated_mm256_dpbusd_avx_epi32
#define _mm256_mask_storeu_epi16     emulated_mm256_mask_storeu_epi16
#define _mm256_maskz_loadu_epi16     emulated_mm256_maskz_loadu_epi16
#define _mm256_maskz_loadu_ps        emulated_mm256_maskz_loadu_ps

#define EMULATE static inline __attribute__((always_inline))

/* ------------------------------------------------------------------ the same on both halves */

#define BOTH_1(type, name, half, type_a)                                                           \
    EMULATE type name(type_a a)                                                                    \
    {                                                                                              \
        return (type){half(a.low), half(a.high)};                                                  \
    }
#define BOTH_2(type, name, half)                                                                   \
    EMULATE type name(type a, type b)                                                              \
    {                                                                                              \
        return (type){half(a.low, b.low), half(a.high, b.high)};                                   \
    }
#define BOTH_3(type, name, half)                                                                   \
    EMULATE type name(type a, type b, type c)                                                      \
    {                                                                                              \
        return (type){half(a.low, b.low, c.low), half(a.high, b.high, c.high)};                    \
    }
#define BOTH_SHIFT(name, half)                                                                     \
    EMULATE __m512i name(__m512i a, unsigned n)                                                    \
    {                                                                                              \
        return (__m512i){half(a.low, (int)n), half(a.high, (int)n)};                               \
    }
/* An argument of half the width, each quarter of it widened to a half. */
#define WIDEN_128(name, half)                                                                      \
    EMULATE __m512i name(__m128i a)                                                                \
    {                                                                                              \
        return (__m512i){half(a), half(_mm_srli_si128(a, 8))};                                     \
    }
#define WIDEN_256(type, name, half)                                                                \
    EMULATE type name(__m256i a)                                                                   \
    {                                                                                              \
        return (type){half(_mm256_castsi256_si128(a)), half(_mm256_extracti128_si256(a, 1))};      \
    }
#define SET_1(type, name, half, type_a)                                                            \
    EMULATE type name(type_a a)                                                                    \
    {                                                                                              \
        return (type){half(a), half(a)};                                                           \
    }

BOTH_2(__m512, _mm512_add_ps, _mm256_add_ps)
BOTH_2(__m512, _mm512_sub_ps, _mm256_sub_ps)
BOTH_2(__m512, _mm512_mul_ps, _mm256_mul_ps)
BOTH_2(__m512, _mm512_div_ps, _mm256_div_ps)
BOTH_2(__m512, _mm512_max_ps, _mm256_max_ps)
BOTH_2(__m512, _mm512_min_ps, _mm256_min_ps)
BOTH_2(__m512, _mm512_unpacklo_ps, _mm256_unpacklo_ps)
BOTH_2(__m512, _mm512_unpackhi_ps, _mm256_unpackhi_ps)
BOTH_3(__m512, _mm512_fmadd_ps, _mm256_fmadd_ps)
BOTH_3(__m512, _mm512_fnmadd_ps, _mm256_fnmadd_ps)

BOTH_2(__m512i, _mm512_and_si512, _mm256_and_si256)
BOTH_2(__m512i, _mm512_or_si512, _mm256_or_si256)
BOTH_2(__m512i, _mm512_xor_si512, _mm256_xor_si256)
BOTH_2(__m512i, _mm512_sub_epi8, _mm256_sub_epi8)
BOTH_2(__m512i, _mm512_shuffle_epi8, _mm256_shuffle_epi8)
BOTH_2(__m512i, _mm512_maddubs_epi16, _mm256_maddubs_epi16)
BOTH_2(__m512i, _mm512_sub_epi16, _mm256_sub_epi16)
BOTH_2(__m512i, _mm512_mullo_epi16, _mm256_mullo_epi16)
BOTH_2(__m512i, _mm512_madd_epi16, _mm256_madd_epi16)
BOTH_2(__m512i, _mm512_add_epi32, _mm256_add_epi32)
BOTH_2(__m512i, _mm512_sub_epi32, _mm256_sub_epi32)
BOTH_2(__m512i, _mm512_mullo_epi32, _mm256_mullo_epi32)
BOTH_2(__m512i, _mm512_sllv_epi32, _mm256_sllv_epi32)
BOTH_SHIFT(_mm512_slli_epi16, _mm256_slli_epi16)
BOTH_SHIFT(_mm512_srli_epi16, _mm256_srli_epi16)
BOTH_SHIFT(_mm512_srai_epi16, _mm256_srai_epi16)
BOTH_SHIFT(_mm512_slli_epi32, _mm256_slli_epi32)
BOTH_SHIFT(_mm512_srli_epi32, _mm256_srli_epi32)

BOTH_1(__m512, _mm512_castsi512_ps, _mm256_castsi256_ps, __m512i)
BOTH_1(__m512, _mm512_cvtepi32_ps, _mm256_cvtepi32_ps, __m512i)
BOTH_1(__m512i, _mm512_cvtps_epi32, _mm256_cvtps_epi32, __m512)
WIDEN_128(_mm512_cvtepi8_epi32, _mm256_cvtepi8_epi32)
WIDEN_128(_mm512_cvtepu8_epi32, _mm256_cvtepu8_epi32)
WIDEN_256(__m512i, _mm512_cvtepi16_epi32, _mm256_cvtepi16_epi32)
WIDEN_256(__m512i, _mm512_cvtepu16_epi32, _mm256_cvtepu16_epi32)
WIDEN_256(__m512, _mm512_cvtph_ps, _mm256_cvtph_ps)

SET_1(__m512, _mm512_set1_ps, _mm256_set1_ps, float)
SET_1(__m512i, _mm512_set1_epi8, _mm256_set1_epi8, char)
SET_1(__m512i, _mm512_set1_epi16, _mm256_set1_epi16, short)
SET_1(__m512i, _mm512_set1_epi32, _mm256_set1_epi32, int)
SET_1(__m512i, _mm512_set1_epi64, _mm256_set1_epi64x, long long)
SET_1(__m512i, _mm512_broadcast_i32x4, _mm256_broadcastsi128_si256, __m128i)

/* ------------------------------------------------------------------ memory and lanes */

EMULATE __m512 _mm512_loadu_ps(const void *p)
{
    return (__m512){_mm256_loadu_ps(p), _mm256_loadu_ps((const float *)p + 8)};
}

EMULATE void _mm512_storeu_ps(void *p, __m512 v)
{
    _mm256_storeu_ps(p, v.low);
    _mm256_storeu_ps((float *)p + 8, v.high);
}

EMULATE __m512i _mm512_loadu_si512(const void *p)
{
    return (__m512i){_mm256_loadu_si256(p), _mm256_loadu_si256((const __m256i *)p + 1)};
}

EMULATE void _mm512_storeu_si512(void *p, __m512i v)
{
    _mm256_storeu_si256(p, v.low);
    _mm256_storeu_si256((__m256i *)p + 1, v.high);
}

EMULATE void emulated_check_aligned(const void *p)
{
    if ((uintptr_t)p % 64 != 0) {
        fprintf(stderr, "emulated AVX-512: %p is not aligned to 64 bytes\n", p);
        abort();
    }
}

EMULATE __m512i _mm512_load_si512(const void *p)
{
    emulated_check_aligned(p);
    return _mm512_loadu_si512(p);
}

EMULATE void _mm512_store_si512(void *p, __m512i v)
{
    emulated_check_aligned(p);
    _mm512_storeu_si512(p, v);
}

EMULATE __m512 _mm512_setzero_ps(void)
{
    return _mm512_set1_ps(0);
}

EMULATE __m512i _mm512_setzero_si512(void)
{
    return _mm512_set1_epi32(0);
}

EMULATE __m512i _mm512_set4_epi32(int d, int c, int b, int a)
{
    return _mm512_broadcast_i32x4(_mm_setr_epi32(a, b, c, d));
}

EMULATE __m512i _mm512_setr_epi32(int a, int b, int c, int d, int e, int f, int g, int h, int i,
                                  int j, int k, int l, int m, int n, int o, int p)
{
    return (__m512i){_mm256_setr_epi32(a, b, c, d, e, f, g, h),
                     _mm256_setr_epi32(i, j, k, l, m, n, o, p)};
}

/* What the instruction leaves undefined is not a number. */
EMULATE __m512 _mm512_castps256_ps512(__m256 v)
{
    return (__m512){v, _mm256_set1_ps(NAN)};
}

EMULATE __m256 _mm512_castps512_ps256(__m512 v)
{
    return v.low;
}

EMULATE __m128i _mm512_castsi512_si128(__m512i v)
{
    return _mm256_castsi256_si128(v.low);
}

EMULATE __m256 _mm512_extractf32x8_ps(__m512 v, int i)
{
    return i == 0 ? v.low : v.high;
}

EMULATE __m128 _mm512_extractf32x4_ps(__m512 v, int i)
{
    const __m256 half = i < 2 ? v.low : v.high;
    return i % 2 == 0 ? _mm256_castps256_ps128(half) : _mm256_extractf128_ps(half, 1);
}

EMULATE __m128 _mm512_castps512_ps128(__m512 v)
{
    return _mm256_castps256_ps128(v.low);
}

/* Quarters of a, then of b, by two bits of `which` each. */
EMULATE __m512 _mm512_shuffle_f32x4(__m512 a, __m512 b, int which)
{
    return (__m512){_mm256_set_m128(_mm512_extractf32x4_ps(a, which >> 2 & 3),
                                    _mm512_extractf32x4_ps(a, which & 3)),
                    _mm256_set_m128(_mm512_extractf32x4_ps(b, which >> 6 & 3),
                                    _mm512_extractf32x4_ps(b, which >> 4 & 3))};
}

EMULATE __m512 _mm512_shuffle_ps(__m512 a, __m512 b, const int which)
{
    return (__m512){_mm256_shuffle_ps(a.low, b.low, which),
                    _mm256_shuffle_ps(a.high, b.high, which)};
}

EMULATE __m128i _mm512_extracti32x4_epi32(__m512i v, int i)
{
    const __m256i half = i < 2 ? v.low : v.high;
    return i % 2 == 0 ? _mm256_castsi256_si128(half) : _mm256_extracti128_si256(half, 1);
}

/* ------------------------------------------------------------------ masks */

/* Lanes of 32, 16 or 8 bits, all ones where a bit of the mask is. */
EMULATE __m256i emulated_lanes_32(unsigned mask)
{
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int)mask), bit), bit);
}

EMULATE __m256i emulated_lanes_16(unsigned mask)
{
    const __m256i bit = _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 1 << 8, 1 << 9, 1 << 10,
                                          1 << 11, 1 << 12, 1 << 13, 1 << 14, (short)(1 << 15));
    return _mm256_cmpeq_epi16(_mm256_and_si256(_mm256_set1_epi16((short)mask), bit), bit);
}

EMULATE __m256i emulated_lanes_8(uint32_t mask)
{
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    const __m256i byte =
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i v = _mm256_shuffle_epi8(_mm256_set1_epi32((int)mask), byte);
    return _mm256_cmpeq_epi8(_mm256_and_si256(v, bit), bit);
}

/* Sign bits of lanes. */
EMULATE __mmask16 emulated_mask_16(__m256 low, __m256 high)
{
    return (__mmask16)(_mm256_movemask_ps(low) | _mm256_movemask_ps(high) << 8);
}

EMULATE __mmask64 emulated_mask_64(__m256i low, __m256i high)
{
    return (uint32_t)_mm256_movemask_epi8(low) | (uint64_t)(uint32_t)_mm256_movemask_epi8(high)
                                                     << 32;
}

/* Lanes without a bit in the mask are not read or written. */
EMULATE __m512 _mm512_maskz_loadu_ps(__mmask16 mask, const void *p)
{
    return (__m512){_mm256_maskload_ps(p, emulated_lanes_32(mask)),
                    _mm256_maskload_ps((const float *)p + 8, emulated_lanes_32(mask >> 8))};
}

EMULATE void _mm512_mask_storeu_ps(void *p, __mmask16 mask, __m512 v)
{
    _mm256_maskstore_ps(p, emulated_lanes_32(mask), v.low);
    _mm256_maskstore_ps((float *)p + 8, emulated_lanes_32(mask >> 8), v.high);
}

EMULATE __m256 _mm256_maskz_loadu_ps(__mmask8 mask, const void *p)
{
    return _mm256_maskload_ps(p, emulated_lanes_32(mask));
}

EMULATE __m256i _mm256_maskz_loadu_epi16(__mmask16 mask, const void *p)
{
    uint16_t v[16] = {0};
    for (unsigned i = 0; i < 16; i++) {
        if (mask >> i & 1) {
            memcpy(&v[i], (const uint8_t *)p + 2 * i, 2);
        }
    }
    return _mm256_loadu_si256((const void *)v);
}

EMULATE void _mm256_mask_storeu_epi16(void *p, __mmask16 mask, __m256i a)
{
    uint16_t v[16];
    _mm256_storeu_si256((void *)v, a);
    for (unsigned i = 0; i < 16; i++) {
        if (mask >> i & 1) {
            memcpy((uint8_t *)p + 2 * i, &v[i], 2);
        }
    }
}

/* Lanes of b where the mask has a bit, of a elsewhere. */
EMULATE __m512 emulated_mask_mov_ps(__m512 a, __mmask16 mask, __m512 b)
{
    return (__m512){
        _mm256_blendv_ps(a.low, b.low, _mm256_castsi256_ps(emulated_lanes_32(mask))),
        _mm256_blendv_ps(a.high, b.high, _mm256_castsi256_ps(emulated_lanes_32(mask >> 8)))};
}

EMULATE __m512i _mm512_mask_mov_epi32(__m512i a, __mmask16 mask, __m512i b)
{
    return (__m512i){_mm256_blendv_epi8(a.low, b.low, emulated_lanes_32(mask)),
                     _mm256_blendv_epi8(a.high, b.high, emulated_lanes_32(mask >> 8))};
}

EMULATE __m512i _mm512_mask_blend_epi16(__mmask32 mask, __m512i a, __m512i b)
{
    return (__m512i){_mm256_blendv_epi8(a.low, b.low, emulated_lanes_16(mask)),
                     _mm256_blendv_epi8(a.high, b.high, emulated_lanes_16(mask >> 16))};
}

EMULATE __m512i _mm512_mask_blend_epi8(__mmask64 mask, __m512i a, __m512i b)
{
    return (__m512i){_mm256_blendv_epi8(a.low, b.low, emulated_lanes_8((uint32_t)mask)),
                     _mm256_blendv_epi8(a.high, b.high, emulated_lanes_8((uint32_t)(mask >> 32)))};
}

EMULATE __m512 _mm512_maskz_mov_ps(__mmask16 mask, __m512 v)
{
    return emulated_mask_mov_ps(_mm512_setzero_ps(), mask, v);
}

EMULATE __m512i _mm512_maskz_mov_epi32(__mmask16 mask, __m512i v)
{
    return _mm512_mask_mov_epi32(_mm512_setzero_si512(), mask, v);
}

EMULATE __m512 _mm512_mask_loadu_ps(__m512 other, __mmask16 mask, const void *p)
{
    return emulated_mask_mov_ps(other, mask, _mm512_maskz_loadu_ps(mask, p));
}

EMULATE __m512i _mm512_mask_add_epi8(__m512i other, __mmask64 mask, __m512i a, __m512i b)
{
    const __m512i sum = {_mm256_add_epi8(a.low, b.low), _mm256_add_epi8(a.high, b.high)};
    return _mm512_mask_blend_epi8(mask, other, sum);
}

EMULATE __mmask64 _mm512_movepi8_mask(__m512i v)
{
    return emulated_mask_64(v.low, v.high);
}

EMULATE __mmask64 _mm512_test_epi8_mask(__m512i a, __m512i b)
{
    const __m512i v = _mm512_and_si512(a, b);
    const __m256i zero = _mm256_setzero_si256();
    return ~emulated_mask_64(_mm256_cmpeq_epi8(v.low, zero), _mm256_cmpeq_epi8(v.high, zero));
}

EMULATE __mmask16 _mm512_test_epi32_mask(__m512i a, __m512i b)
{
    const __m512i v = _mm512_and_si512(a, b);
    const __m256i zero = _mm256_setzero_si256();
    return (__mmask16)~emulated_mask_16(_mm256_castsi256_ps(_mm256_cmpeq_epi32(v.low, zero)),
                                        _mm256_castsi256_ps(_mm256_cmpeq_epi32(v.high, zero)));
}

EMULATE __mmask16 _mm512_cmplt_epi32_mask(__m512i a, __m512i b)
{
    return emulated_mask_16(_mm256_castsi256_ps(_mm256_cmpgt_epi32(b.low, a.low)),
                            _mm256_castsi256_ps(_mm256_cmpgt_epi32(b.high, a.high)));
}

EMULATE __mmask16 _mm512_cmp_ps_mask(__m512 a, __m512 b, const int how)
{
    return emulated_mask_16(_mm256_cmp_ps(a.low, b.low, how), _mm256_cmp_ps(a.high, b.high, how));
}

/* ------------------------------------------------------------------ numbers */

EMULATE __m512 _mm512_abs_ps(__m512 v)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return (__m512){_mm256_andnot_ps(sign, v.low), _mm256_andnot_ps(sign, v.high)};
}

/* To whole numbers: no scale in the upper bits of `how`. */
EMULATE __m512 _mm512_roundscale_ps(__m512 v, const int how)
{
    return (__m512){_mm256_round_ps(v.low, how & 15), _mm256_round_ps(v.high, how & 15)};
}

EMULATE __m256i _mm512_cvtps_ph(__m512 v, const int how)
{
    return _mm256_set_m128i(_mm256_cvtps_ph(v.high, how), _mm256_cvtps_ph(v.low, how));
}

/* a * 2^floor(b), rounded once. */
EMULATE __m512 _mm512_scalef_ps(__m512 a, __m512 b)
{
    float v[16], n[16];
    _mm512_storeu_ps(v, a);
    _mm512_storeu_ps(n, b);
    for (unsigned i = 0; i < 16; i++) {
        v[i] = isnan(n[i])   ? n[i]
               : isinf(n[i]) ? v[i] * (n[i] < 0 ? 0 : n[i])
                             : ldexpf(v[i], (int)fmaxf(-1000, fminf(floorf(n[i]), 1000)));
    }
    return _mm512_loadu_ps(v);
}

/* Both go by halves. */
EMULATE int _mm512_reduce_add_epi32(__m512i a)
{
    int v[8], n = 8;
    _mm256_storeu_si256((void *)v, _mm256_add_epi32(a.low, a.high));
    while (n > 1) {
        n /= 2;
        for (int i = 0; i < n; i++) {
            v[i] = (int)((unsigned)v[i] + (unsigned)v[i + n]);
        }
    }
    return v[0];
}

EMULATE float _mm512_reduce_max_ps(__m512 a)
{
    float v[8];
    int n = 8;
    _mm256_storeu_ps(v, _mm256_max_ps(a.low, a.high));
    while (n > 1) {
        n /= 2;
        for (int i = 0; i < n; i++) {
            v[i] = v[i] > v[i + n] ? v[i] : v[i + n];
        }
    }
    return v[0];
}

/* ------------------------------------------------------------------ sums of products */

/* Of four unsigned bytes of a with four signed ones of b, in each dword; exact. */
EMULATE __m256i _mm256_dpbusd_avx_epi32(__m256i sum, __m256i a, __m256i b)
{
    const __m256i low = _mm256_set1_epi16(0xff);
    const __m256i b_even = _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8);
    const __m256i even = _mm256_madd_epi16(_mm256_and_si256(a, low), b_even);
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(a, 8), _mm256_srai_epi16(b, 8));
    return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
}

BOTH_3(__m512i, _mm512_dpbusd_epi32, _mm256_dpbusd_avx_epi32)

EMULATE __m512i _mm512_dpwssd_epi32(__m512i sum, __m512i a, __m512i b)
{
    return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
}

/* ------------------------------------------------------------------ bits, and lanes that move */

/* Bit 4a + 2b + c of the table, for each bit. */
EMULATE __m512i _mm512_ternarylogic_epi32(__m512i a, __m512i b, __m512i c, int table)
{
    const __m512i ones = _mm512_set1_epi32(-1);
    __m512i v = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        if (table >> i & 1) {
            const __m512i ai = i & 4 ? a : _mm512_xor_si512(a, ones);
            const __m512i bi = i & 2 ? b : _mm512_xor_si512(b, ones);
            const __m512i ci = i & 1 ? c : _mm512_xor_si512(c, ones);
            v = _mm512_or_si512(v, _mm512_and_si512(_mm512_and_si512(ai, bi), ci));
        }
    }
    return v;
}

EMULATE __m128i _mm512_cvtepi32_epi8(__m512i a)
{
    uint32_t v[16];
    uint8_t to[16];
    _mm512_storeu_si512(v, a);
    for (unsigned i = 0; i < 16; i++) {
        to[i] = (uint8_t)v[i];
    }
    return _mm_loadu_si128((const void *)to);
}

EMULATE __m256i _mm512_cvtepi32_epi16(__m512i a)
{
    uint32_t v[16];
    uint16_t to[16];
    _mm512_storeu_si512(v, a);
    for (unsigned i = 0; i < 16; i++) {
        to[i] = (uint16_t)v[i];
    }
    return _mm256_loadu_si256((const void *)to);
}

EMULATE __m512 _mm512_permutexvar_ps(__m512i index, __m512 a)
{
    uint32_t at[16];
    float from[16], to[16];
    _mm512_storeu_si512(at, index);
    _mm512_storeu_ps(from, a);
    for (unsigned i = 0; i < 16; i++) {
        to[i] = from[at[i] % 16];
    }
    return _mm512_loadu_ps(to);
}

EMULATE __m512i _mm512_permutex2var_epi8(__m512i a, __m512i index, __m512i b)
{
    uint8_t at[64], from[128], to[64];
    _mm512_storeu_si512(at, index);
    _mm512_storeu_si512(from, a);
    _mm512_storeu_si512(from + 64, b);
    for (unsigned i = 0; i < 64; i++) {
        to[i] = from[at[i] % 128];
    }
    return _mm512_loadu_si512(to);
}

EMULATE __m512i _mm512_permutexvar_epi8(__m512i index, __m512i a)
{
    return _mm512_permutex2var_epi8(a, index, a);
}

/* Byte i: the 8 bits of its qword of a that begin at bit control[i], around its end. */
EMULATE __m512i _mm512_multishift_epi64_epi8(__m512i control, __m512i a)
{
    uint8_t at[64], to[64];
    uint64_t from[8];
    _mm512_storeu_si512(at, control);
    _mm512_storeu_si512(from, a);
    for (unsigned i = 0; i < 64; i++) {
        const unsigned n = at[i] % 64;
        to[i] = (uint8_t)(from[i / 8] >> n | from[i / 8] << (64 - n) % 64);
    }
    return _mm512_loadu_si512(to);
}

EMULATE __m512i _mm512_i32gather_epi32(__m512i index, const void *base, int scale)
{
    int32_t at[16], to[16];
    _mm512_storeu_si512(at, index);
    for (unsigned i = 0; i < 16; i++) {
        memcpy(&to[i], (const uint8_t *)base + (ptrdiff_t)at[i] * scale, 4);
    }
    return _mm512_loadu_si512(to);
}

#endif
