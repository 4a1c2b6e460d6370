/* AVX2: sub-blocks of the formats whose quants are entries of a table (kernels/format-tables.h),
 * as decode.h describes them. Entries are looked up row by row, 8 or 4 elements at a time, from
 * tables that stay in L1; gathers would do the same with more operations. */
#ifndef NUMOE_KERNELS_AVX2_CODEBOOK_H
#define NUMOE_KERNELS_AVX2_CODEBOOK_H

#include "kernels/avx2/sub.h"
#include "kernels/format-tables.h"

/* Where the indices of 8 rows are: the one of row r is r * step bytes or words from `at`. */
struct indices {
    const void *at;
    unsigned step;
    bool words; /* of 16 bits */
};

KERN_INLINE unsigned index_of(struct indices x, unsigned r)
{
    return x.words ? ((const uint16_t *)x.at)[r * x.step] : ((const uint8_t *)x.at)[r * x.step];
}

KERN_INLINE __m128i two_entries(const uint64_t *grid, struct indices x, unsigned r)
{
    __m128i v = _mm_loadl_epi64((const __m128i *)(grid + index_of(x, r)));
    return _mm_castps_si128(_mm_loadh_pi(_mm_castsi128_ps(v),
                                         (const __m64 *)(const void *)(grid + index_of(x, r + 1))));
}

/* Elements 0..3 and 4..7 of an entry for each of 8 rows. */
KERN_INLINE void entries_of_8(const uint64_t *grid, struct indices x, __m256i q[2])
{
    __m256i a = _mm256_inserti128_si256(_mm256_castsi128_si256(two_entries(grid, x, 0)),
                                        two_entries(grid, x, 4), 1);
    __m256i b = _mm256_inserti128_si256(_mm256_castsi128_si256(two_entries(grid, x, 2)),
                                        two_entries(grid, x, 6), 1);
    __m256 fa = _mm256_castsi256_ps(a), fb = _mm256_castsi256_ps(b);
    q[0] = _mm256_castps_si256(_mm256_shuffle_ps(fa, fb, 0x88));
    q[1] = _mm256_castps_si256(_mm256_shuffle_ps(fa, fb, 0xdd));
}

/* The 4 elements of an entry for each of 8 rows. */
KERN_INLINE __m256i entries_of_4(const uint32_t *grid, struct indices x)
{
    __m128i half[2];
#pragma GCC unroll 2
    for (unsigned i = 0; i < 2; i++) {
        half[i] = _mm_cvtsi32_si128((int)grid[index_of(x, 4 * i)]);
        half[i] = _mm_insert_epi32(half[i], (int)grid[index_of(x, 4 * i + 1)], 1);
        half[i] = _mm_insert_epi32(half[i], (int)grid[index_of(x, 4 * i + 2)], 2);
        half[i] = _mm_insert_epi32(half[i], (int)grid[index_of(x, 4 * i + 3)], 3);
    }
    return _mm256_inserti128_si256(_mm256_castsi128_si256(half[0]), half[1], 1);
}

/* Byte n of each row in all bytes of the row. */
KERN_INLINE __m256i spread_byte(__m256i v, unsigned n)
{
    const int b = 0x01010101 * (int)n;
    return _mm256_shuffle_epi8(v, _mm256_setr_epi32(b, b + 0x04040404, b + 0x08080808,
                                                    b + 0x0c0c0c0c, b, b + 0x04040404,
                                                    b + 0x08080808, b + 0x0c0c0c0c));
}

/* offset + q or offset - q for elements 0..3 and 4..7 by the bits of a byte for each row, which
 * stands in all four of the row. */
KERN_INLINE void apply_signs(__m256i bits, int offset, __m256i q[2])
{
#pragma GCC unroll 2
    for (unsigned i = 0; i < 2; i++) {
        const __m256i which = _mm256_set1_epi32(i == 0 ? 0x08040201 : (int)0x80402010);
        __m256i negative = _mm256_cmpeq_epi8(_mm256_and_si256(bits, which), which);
        __m256i v = _mm256_sign_epi8(q[i], _mm256_or_si256(negative, _mm256_set1_epi8(1)));
        q[i] = _mm256_add_epi8(v, _mm256_set1_epi8((char)offset));
    }
}

/* An eighth bit for each byte of seven, which makes their number even. */
KERN_INLINE __m256i even_signs(__m256i bits7)
{
    const __m256i odd = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0));
    __m256i v = _mm256_xor_si256(bits7, _mm256_srli_epi16(bits7, 4));
    return _mm256_or_si256(bits7, _mm256_shuffle_epi8(odd, and_bytes(v, 15)));
}

/* Four runs of seven bits as bytes. */
KERN_INLINE __m256i bytes_of_sevens(__m256i v)
{
    __m256i low = _mm256_or_si256(and_dwords(v, 0x7f), and_dwords(_mm256_slli_epi32(v, 1), 0x7f00));
    __m256i high = _mm256_or_si256(and_dwords(_mm256_slli_epi32(v, 2), 0x7f0000),
                                   and_dwords(_mm256_slli_epi32(v, 3), 0x7f000000));
    return _mm256_or_si256(low, high);
}

/* d * (2 v + 1) * unit */
KERN_INLINE __m256 odd_scale(__m256 d, __m256i v, float unit)
{
    v = _mm256_add_epi32(_mm256_add_epi32(v, v), _mm256_set1_epi32(1));
    return scaled(_mm256_mul_ps(d, _mm256_set1_ps(unit)), v);
}

KERN_INLINE __m256i halfwords_at(const uint8_t *field, unsigned i, unsigned h)
{
    return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(field + 32 * i + 16 * h)));
}

/* Scales of both halves of sub-block j in one byte of 4 bits each. */
KERN_INLINE void nibble_scales(const uint8_t *b, const uint8_t *field, unsigned h, unsigned j,
                               float unit, struct sub *s)
{
    __m256i v = bytes_at(field, j, h);
    s->scale[0] = odd_scale(f16_at(b, h), and_dwords(v, 15), unit);
    s->scale[1] = odd_scale(f16_at(b, h), _mm256_srli_epi32(v, 4), unit);
}

/* ------------------------------------------------------------------ 8 elements an entry */

KERN_INLINE void sub_iq2_xxs(const uint8_t *b, unsigned h, unsigned j, struct sub *s)
{
    const uint8_t *p = b + 16 * 2 + 128 * j;
    __m256i aux = words_at(p, 1, h), signs = even_signs(bytes_of_sevens(aux));
#pragma GCC unroll 4
    for (unsigned i = 0; i < 4; i++) {
        const struct indices x = {p + 32 * h + i, 4, false};
        entries_of_8(format_grid_iq2_xxs, x, s->q + 2 * i);
        apply_signs(spread_byte(signs, i), 43, s->q + 2 * i);
    }
    s->scale[0] = odd_scale(f16_at(b, h), _mm256_srli_epi32(aux, 28), 0.125f);
}

/* Units of 16 bits: an index of 9 and seven signs. */
KERN_INLINE void sub_iq2_xs(const uint8_t *b, unsigned h, unsigned j, struct sub *s)
{
    const uint8_t *p = b + 16 * 10 + 128 * j;
    uint16_t index[2][16];
    __m256i v[2], signs;
#pragma GCC unroll 2
    for (unsigned i = 0; i < 2; i++) {
        v[i] = words_at(p, i, h);
        __m256i low = _mm256_and_si256(v[i], _mm256_set1_epi16(511));
        _mm256_storeu_si256((__m256i *)index[i], low);
        v[i] = _mm256_srli_epi16(v[i], 9);
    }
    /* of entries 0, 2, 1, 3 */
    signs = even_signs(_mm256_or_si256(v[0], _mm256_slli_epi16(v[1], 8)));
#pragma GCC unroll 4
    for (unsigned i = 0; i < 4; i++) {
        const struct indices x = {index[i / 2] + i % 2, 2, true};
        entries_of_8(format_grid_iq2_xs, x, s->q + 2 * i);
        apply_signs(spread_byte(signs, 2 * (i % 2) + i / 2), 43, s->q + 2 * i);
    }
    nibble_scales(b, b + 16 * 2, h, j, 0.125f, s);
}

/* Four indices of more than 8 bits: byte i of low, and above it the bits of mask at shift * i of
 * high. Those of entries 0 and 2 stand side by side in index[0], 1 and 3 in index[1]. */
KERN_INLINE void long_indices(__m256i low, __m256i high, int shift, int mask, uint16_t index[2][16])
{
    __m256i even = _mm256_or_si256(high, _mm256_slli_epi32(high, 16 - 2 * shift));
    __m256i odd = _mm256_srli_epi32(even, shift);
    even = _mm256_slli_epi16(and_dwords(even, mask * 0x10001), 8);
    odd = _mm256_slli_epi16(and_dwords(odd, mask * 0x10001), 8);
    even = _mm256_or_si256(even, and_dwords(low, 0xff00ff));
    odd = _mm256_or_si256(odd, _mm256_srli_epi16(low, 8));
    _mm256_storeu_si256((__m256i *)index[0], even);
    _mm256_storeu_si256((__m256i *)index[1], odd);
}

KERN_INLINE void sub_iq2_s(const uint8_t *b, unsigned h, unsigned j, struct sub *s)
{
    uint16_t index[2][16];
    __m256i signs = words_at(b + 16 * 18, j, h);
    long_indices(words_at(b + 16 * 50, j, h), bytes_at(b + 16 * 10, j, h), 2, 3, index);
#pragma GCC unroll 4
    for (unsigned i = 0; i < 4; i++) {
        const struct indices x = {index[i % 2] + i / 2, 2, true};
        entries_of_8(format_grid_iq2_s, x, s->q + 2 * i);
        apply_signs(spread_byte(signs, i), 43, s->q + 2 * i);
    }
    nibble_scales(b, b + 16 * 2, h, j, 0.125f, s);
}

/* -1, 0 and 1 of an entry to 8 q + 8, and 2 more where an eighth is added and not subtracted. */
KERN_INLINE void shift_entries(__m256i more, __m256i q[2])
{
    const __m256i values = _mm256_set1_epi64x(0x1008);
#pragma GCC unroll 2
    for (unsigned i = 0; i < 2; i++) {
        q[i] = _mm256_add_epi8(_mm256_shuffle_epi8(values, q[i]), more);
    }
}

KERN_INLINE void sub_iq1_s(const uint8_t *b, unsigned h, unsigned j, struct sub *s)
{
    uint16_t index[2][16];
    __m256i high = halfwords_at(b + 16 * 2, j, h);
    __m256i subtract = _mm256_cmpgt_epi32(high, _mm256_set1_epi32(0x7fff));
    long_indices(words_at(b + 16 * 18, j, h), high, 3, 7, index);
#pragma GCC unroll 4
    for (unsigned i = 0; i < 4; i++) {
        const struct indices x = {index[i % 2] + i / 2, 2, true};
        entries_of_8(format_grid_iq1, x, s->q + 2 * i);
        shift_entries(_mm256_andnot_si256(subtract, _mm256_set1_epi8(2)), s->q + 2 * i);
    }
    __m256i scale = and_dwords(_mm256_srli_epi32(high, 12), 7);
    s->scale[0] = odd_scale(f16_at(b, h), scale, 0.125f);
}

/* The f16 whose nibbles are the upper ones of four words. */
KERN_INLINE __m256 d_iq1_m(const uint8_t *b, unsigned h)
{
    __m256i v = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (unsigned i = 0; i < 4; i++) {
        __m256i nibble = _mm256_srli_epi32(halfwords_at(b, i, h), 12);
        v = _mm256_or_si256(v, _mm256_slli_epi32(nibble, (int)(4 * i)));
    }
    __m128i half = _mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    return _mm256_cvtph_ps(half);
}

KERN_INLINE void sub_iq1_m(const uint8_t *b, unsigned h, unsigned j, struct sub *s)
{
    uint16_t index[2][16];
    __m256i high = halfwords_at(b + 16 * 8, j, h);
    long_indices(words_at(b + 16 * 24, j, h), high, 4, 7, index);
#pragma GCC unroll 4
    for (unsigned i = 0; i < 4; i++) {
        const struct indices x = {index[i % 2] + i / 2, 2, true};
        const __m256i bit = _mm256_set1_epi32(8 << 4 * i);
        __m256i add = _mm256_cmpeq_epi32(_mm256_and_si256(high, bit), _mm256_setzero_si256());
        entries_of_8(format_grid_iq1, x, s->q + 2 * i);
        shift_entries(and_bytes(add, 2), s->q + 2 * i);
    }
    __m256i scale = _mm256_srli_epi32(halfwords_at(b, j / 2, h), (int)(6 * (j % 2)));
    s->scale[0] = odd_scale(d_iq1_m(b, h), and_dwords(scale, 7), 0.125f);
    s->scale[1] = odd_scale(d_iq1_m(b, h), and_dwords(_mm256_srli_epi32(scale, 3), 7), 0.125f);
}

/* ------------------------------------------------------------------ 4 elements an entry */

KERN_INLINE void sub_iq3_xxs(const uint8_t *b, unsigned h, unsigned j, struct sub *s)
{
    const uint8_t *p = b + 16 * 34 + 128 * j + 32 * h;
    __m256i aux = words_at(b + 16 * 2, j, h), signs = even_signs(bytes_of_sevens(aux));
#pragma GCC unroll 4
    for (unsigned i = 0; i < 4; i++) {
        const uint8_t *at = p + 64 * (i / 2) + 2 * (i % 2);
        const struct indices x = {at, 4, false}, y = {at + 1, 4, false};
        s->q[2 * i] = entries_of_4(format_grid_iq3_xxs, x);
        s->q[2 * i + 1] = entries_of_4(format_grid_iq3_xxs, y);
        apply_signs(spread_byte(signs, i), 62, s->q + 2 * i);
    }
    s->scale[0] = odd_scale(f16_at(b, h), _mm256_srli_epi32(aux, 28), 0.25f);
}

KERN_INLINE void sub_iq3_s(const uint8_t *b, unsigned h, unsigned j, struct sub *s)
{
    uint16_t index[2][2][16];
    const uint8_t *p = b + 16 * 46;
    __m256i high = bytes_at(b + 16 * 6, j, h), signs = words_at(b + 16 * 14, j, h);
    long_indices(words_at(p, 2 * j, h), high, 1, 1, index[0]);
    long_indices(words_at(p, 2 * j + 1, h), _mm256_srli_epi32(high, 4), 1, 1, index[1]);
#pragma GCC unroll 4
    for (unsigned i = 0; i < 4; i++) {
        const unsigned word = i % 2; /* entries 2 word and 2 word + 1 of their four */
        const struct indices x = {index[i / 2][0] + word, 2, true};
        const struct indices y = {index[i / 2][1] + word, 2, true};
        s->q[2 * i] = entries_of_4(format_grid_iq3_s, x);
        s->q[2 * i + 1] = entries_of_4(format_grid_iq3_s, y);
        apply_signs(spread_byte(signs, i), 15, s->q + 2 * i);
    }
    __m256i scale = _mm256_srli_epi32(bytes_at(b + 16 * 2, j / 2, h), (int)(4 * (j % 2)));
    s->scale[0] = odd_scale(f16_at(b, h), and_dwords(scale, 15), 1);
}

#endif
