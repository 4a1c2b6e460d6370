/* AVX-512 VBMI: sub-blocks of the codebook formats, as kernels/avx512/decode.h has them. The
 * entries of a codebook hold few different magnitudes, so that 2 to 4 bits name one: an entry is 16
 * bits, and a codebook of up to 512 entries is looked up in registers, 64 indices at a time; larger
 * ones are gathered from L1. A last permutation turns code and sign into the value (plus the
 * offset). */
#ifndef NUMOE_KERNELS_AVX512_CODEBOOK_H
#define NUMOE_KERNELS_AVX512_CODEBOOK_H

#include "kernels/avx512/decode.h"

/* Entries as codes, the first element in the lowest bits, split in bytes or as words; the word
 * after the last is read and not used. Filled by avx512_codebooks_fill(). */
struct avx512_codebooks {
    uint8_t iq2_xxs[2][256], iq2_xs[2][512], iq3_xxs[2][256], iq3_s[2][512];
    uint8_t even_signs[128];
    uint16_t iq2_s[1024 + 32], iq1[2048 + 32];
    uint8_t value_iq2[64], value_iq3_xxs[64], value_iq3_s[64], value_iq1[64];
} __attribute__((aligned(64)));

extern struct avx512_codebooks avx512_codebooks;
void avx512_codebooks_fill(void);

/* Byte i of each dword: entry `v` of a table of 128, 256 or 512 bytes; for 512, the ninth bit of an
 * index is in a mask. */
KERN_INLINE __m512i look_up_128(const uint8_t *table, __m512i v)
{
    return _mm512_permutex2var_epi8(load_words(table), v, load_words(table + 64));
}

KERN_INLINE __m512i look_up_256(const uint8_t *table, __m512i v)
{
    __m512i low = look_up_128(table, v), high = look_up_128(table + 128, v);
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(v), low, high);
}

KERN_INLINE __m512i look_up_512(const uint8_t *table, __m512i v, __mmask64 ninth)
{
    return _mm512_mask_blend_epi8(ninth, look_up_256(table, v), look_up_256(table + 256, v));
}

/* For every dword of v: bytes that begin at bit `at`, at + step, .. at + 3 * step of it (modulo the
 * 64 bits of a pair of dwords, so that at may be negative where upper bits do not matter). */
KERN_INLINE __m512i bytes_from_bits(__m512i v, int at, int step)
{
    uint64_t control = 0;
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        control |= (uint64_t)((32 * (i / 4) + at + step * (i % 4)) & 63) << 8 * i;
    }
    return _mm512_multishift_epi64_epi8(_mm512_set1_epi64((long long)control), v);
}

/* The value of a code in the low bits of each byte, whose next bit is the sign's. */
KERN_INLINE __m512i code_values(const uint8_t *table, int code_mask, __m512i code, __m512i sign)
{
    __m512i v = bit_select(_mm512_set1_epi8((char)code_mask), code, sign);
    return _mm512_permutexvar_epi8(v, load_words(table));
}

/* Eight 2-bit codes to an entry: bytes of low and high are their first and last four. Byte at[i]
 * belongs to elements 8i.. of the sub-block, in the same place is the byte with their signs. */
KERN_INLINE void values_2bit(__m512i low, __m512i high, __m512i signs, const unsigned at[4],
                             __m512i q[8])
{
#pragma GCC unroll 4
    for (unsigned i = 0; i < 4; i++) {
        const int bit = 8 * (int)at[i];
        q[2 * i] = code_values(avx512_codebooks.value_iq2, 3, bytes_from_bits(low, bit, 2),
                               bytes_from_bits(signs, bit - 2, 1));
        q[2 * i + 1] = code_values(avx512_codebooks.value_iq2, 3, bytes_from_bits(high, bit, 2),
                                   bytes_from_bits(signs, bit + 2, 1));
    }
}

/* Four 4-bit codes to an entry, of eight entries: byte i of low[0] has the first two of elements
 * 4i.., of low[1] those of 16 + 4i... */
KERN_INLINE void values_4bit(const uint8_t *table, const __m512i low[2], const __m512i high[2],
                             __m512i signs, __m512i q[8])
{
#pragma GCC unroll 8
    for (unsigned i = 0; i < 8; i++) {
        const int bit = 8 * (int)(i % 4);
        __m512i v = bytes_from_bits(low[i / 4], bit, 4);
        __m512i w = bytes_from_bits(high[i / 4], bit - 8, 4);
        v = _mm512_mask_blend_epi8(0xccccccccccccccccu, v, w);
        q[i] = code_values(table, 7, v, bytes_from_bits(signs, 4 * (int)i - 3, 1));
    }
}

/* Signs of XXS formats: 7 bits for 8 elements, four times in a dword below the scale. */
KERN_INLINE __m512i signs_of_7bits(__m512i aux)
{
    return look_up_128(avx512_codebooks.even_signs, bytes_from_bits(aux, 0, 7));
}

/* d * (2 v + 1) */
KERN_INLINE __m512 odd_scale(const struct head *h, __m512i v)
{
    v = _mm512_add_epi32(_mm512_add_epi32(v, v), _mm512_set1_epi32(1));
    return _mm512_mul_ps(h->d, _mm512_cvtepi32_ps(v));
}

KERN_INLINE __m512i row_bytes_at(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}

KERN_INLINE __m512i row_words_at(const uint8_t *p)
{
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
}

KERN_INLINE __m512i low_nibble_of(__m512i v, unsigned i)
{
    return _mm512_and_si512(_mm512_srli_epi32(v, 4 * i), _mm512_set1_epi32(15));
}

/* Two 4-bit scales in a byte. */
KERN_INLINE void scales_halves(const uint8_t *p, const struct head *h, struct sub *s)
{
    __m512i v = row_bytes_at(p);
    s->scale[0] = odd_scale(h, low_nibble_of(v, 0));
    s->scale[1] = odd_scale(h, low_nibble_of(v, 1));
}

KERN_INLINE void sub_iq2_xxs(const uint8_t *b, const struct head *h, unsigned j, struct sub *s)
{
    static const unsigned in_order[4] = {0, 1, 2, 3};
    const uint8_t(*book)[256] = avx512_codebooks.iq2_xxs;
    __m512i index = load_words(b + 32 + 128 * j), aux = load_words(b + 96 + 128 * j);
    values_2bit(look_up_256(book[0], index), look_up_256(book[1], index), signs_of_7bits(aux),
                in_order, s->q);
    s->scale[0] = odd_scale(h, _mm512_srli_epi32(aux, 28));
}

/* 9 bits of index and 7 of sign in each of four words, which become bytes 0, 2, 1, 3. */
KERN_INLINE void sub_iq2_xs(const uint8_t *b, const struct head *h, unsigned j, struct sub *s)
{
    static const unsigned zipped[4] = {0, 2, 1, 3};
    const uint8_t(*book)[512] = avx512_codebooks.iq2_xs;
    const __m512i even = _mm512_set1_epi16(0xff);
    __m512i v = load_words(b + 160 + 128 * j), w = load_words(b + 224 + 128 * j);
    __m512i index = bit_select(even, v, _mm512_slli_epi16(w, 8));
    __m512i upper = bit_select(even, _mm512_srli_epi16(v, 8), w);
    __mmask64 ninth = _mm512_test_epi8_mask(upper, _mm512_set1_epi8(1));
    __m512i signs = look_up_128(avx512_codebooks.even_signs, _mm512_srli_epi16(upper, 1));
    values_2bit(look_up_512(book[0], index, ninth), look_up_512(book[1], index, ninth), signs,
                zipped, s->q);
    scales_halves(b + 32 + 16 * j, h, s);
}

/* Dword r: word number `index` of the table. */
KERN_INLINE __m512i gather_words(const uint16_t *table, __m512i index)
{
    return _mm512_i32gather_epi32(index, (const void *)table, 2);
}

KERN_INLINE __m512i byte_of_dword(__m512i v, unsigned i)
{
    return _mm512_and_si512(_mm512_srli_epi32(v, 8 * i), _mm512_set1_epi32(0xff));
}

/* Index i of four: its byte of `low`, and n bits of `high` from bit n_skip * i on above it. */
KERN_INLINE __m512i long_index(__m512i low, __m512i high, unsigned i, unsigned n, unsigned n_skip)
{
    __m512i above = _mm512_srli_epi32(high, n_skip * i);
    above = _mm512_and_si512(above, _mm512_set1_epi32((1 << n) - 1));
    return _mm512_or_si512(byte_of_dword(low, i), _mm512_slli_epi32(above, 8));
}

KERN_INLINE void sub_iq2_s(const uint8_t *b, const struct head *h, unsigned j, struct sub *s)
{
    __m512i high = row_bytes_at(b + 160 + 16 * j);
    __m512i signs = load_words(b + 288 + 64 * j), low = load_words(b + 800 + 64 * j);
#pragma GCC unroll 4
    for (unsigned i = 0; i < 4; i++) {
        const int bit = 8 * (int)i;
        __m512i v = gather_words(avx512_codebooks.iq2_s, long_index(low, high, i, 2, 2));
        s->q[2 * i] = code_values(avx512_codebooks.value_iq2, 3, bytes_from_bits(v, 0, 2),
                                  bytes_from_bits(signs, bit - 2, 1));
        s->q[2 * i + 1] = code_values(avx512_codebooks.value_iq2, 3, bytes_from_bits(v, 8, 2),
                                      bytes_from_bits(signs, bit + 2, 1));
    }
    scales_halves(b + 32 + 16 * j, h, s);
}

KERN_INLINE void sub_iq3_xxs(const uint8_t *b, const struct head *h, unsigned j, struct sub *s)
{
    const uint8_t(*book)[256] = avx512_codebooks.iq3_xxs;
    __m512i aux = load_words(b + 32 + 64 * j), low[2], high[2];
#pragma GCC unroll 2
    for (unsigned i = 0; i < 2; i++) {
        __m512i index = load_words(b + 544 + 128 * j + 64 * i);
        low[i] = look_up_256(book[0], index);
        high[i] = look_up_256(book[1], index);
    }
    values_4bit(avx512_codebooks.value_iq3_xxs, low, high, signs_of_7bits(aux), s->q);
    s->scale[0] = odd_scale(h, _mm512_srli_epi32(aux, 28));
}

KERN_INLINE void sub_iq3_s(const uint8_t *b, const struct head *h, unsigned j, struct sub *s)
{
    const uint8_t(*book)[512] = avx512_codebooks.iq3_s;
    __m512i bits = _mm512_mullo_epi32(row_bytes_at(b + 96 + 16 * j), _mm512_set1_epi32(0x01010101));
    __m512i signs = load_words(b + 224 + 64 * j), low[2], high[2];
#pragma GCC unroll 2
    for (unsigned i = 0; i < 2; i++) {
        const __m512i which = _mm512_set1_epi32(i ? (int)0x80402010 : 0x08040201);
        __mmask64 ninth = _mm512_test_epi8_mask(bits, which);
        __m512i index = load_words(b + 736 + 128 * j + 64 * i);
        low[i] = look_up_512(book[0], index, ninth);
        high[i] = look_up_512(book[1], index, ninth);
    }
    values_4bit(avx512_codebooks.value_iq3_s, low, high, signs, s->q);
    s->scale[0] = odd_scale(h, low_nibble_of(row_bytes_at(b + 32 + 16 * (j / 2)), j % 2));
}

/* Entry `index` with an eighth less (bit 2 of every byte of `minus`) or more. */
KERN_INLINE void values_iq1(__m512i index, __m512i minus, __m512i q[2])
{
    __m512i v = gather_words(avx512_codebooks.iq1, index);
    q[0] = code_values(avx512_codebooks.value_iq1, 3, bytes_from_bits(v, 0, 2), minus);
    q[1] = code_values(avx512_codebooks.value_iq1, 3, bytes_from_bits(v, 8, 2), minus);
}

KERN_INLINE __m512i minus_where(__m512i v, int bit)
{
    __mmask16 set = _mm512_test_epi32_mask(v, _mm512_set1_epi32(1 << bit));
    return _mm512_maskz_mov_epi32(set, _mm512_set1_epi32(0x04040404));
}

KERN_INLINE void sub_iq1_s(const uint8_t *b, const struct head *h, unsigned j, struct sub *s)
{
    __m512i high = row_words_at(b + 32 + 32 * j), low = load_words(b + 288 + 64 * j);
    __m512i minus = minus_where(high, 15);
#pragma GCC unroll 4
    for (unsigned i = 0; i < 4; i++) {
        values_iq1(long_index(low, high, i, 3, 3), minus, &s->q[2 * i]);
    }
    __m512i v = _mm512_and_si512(_mm512_srli_epi32(high, 12), _mm512_set1_epi32(7));
    s->scale[0] = odd_scale(h, v);
}

KERN_INLINE void sub_iq1_m(const uint8_t *b, const struct head *h, unsigned j, struct sub *s)
{
    __m512i high = row_words_at(b + 128 + 32 * j), low = load_words(b + 384 + 64 * j);
#pragma GCC unroll 4
    for (unsigned i = 0; i < 4; i++) {
        values_iq1(long_index(low, high, i, 3, 4), minus_where(high, 4 * (int)i + 3), &s->q[2 * i]);
    }
    __m512i word = row_words_at(b + 32 * (j / 2));
#pragma GCC unroll 2
    for (unsigned i = 0; i < 2; i++) {
        __m512i v = _mm512_srli_epi32(word, 3 * (2 * (j % 2) + i));
        s->scale[i] = odd_scale(h, _mm512_and_si512(v, _mm512_set1_epi32(7)));
    }
}

/* The upper nibbles of four words. */
KERN_INLINE __m512 head_iq1_m(const uint8_t *b)
{
    __m512i d = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (unsigned i = 0; i < 4; i++) {
        __m512i v = _mm512_srli_epi32(row_words_at(b + 32 * i), 12);
        d = _mm512_or_si512(d, _mm512_slli_epi32(v, 4 * i));
    }
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(d));
}

KERN_INLINE void codebook_head(enum format_id f, const uint8_t *b, struct head *h)
{
    __m512 d = f == FORMAT_IQ1_M ? head_iq1_m(b) : load_f16(b);
    const float part = f == FORMAT_IQ3_S ? 1 : f == FORMAT_IQ3_XXS ? 0.25f : 0.125f;
    h->d = _mm512_mul_ps(d, _mm512_set1_ps(part));
}

KERN_INLINE void codebook_sub(enum format_id f, const uint8_t *b, const struct head *h, unsigned j,
                              struct sub *s)
{
    switch (f) {
    case FORMAT_IQ2_XXS:
        sub_iq2_xxs(b, h, j, s);
        break;
    case FORMAT_IQ2_XS:
        sub_iq2_xs(b, h, j, s);
        break;
    case FORMAT_IQ2_S:
        sub_iq2_s(b, h, j, s);
        break;
    case FORMAT_IQ3_XXS:
        sub_iq3_xxs(b, h, j, s);
        break;
    case FORMAT_IQ3_S:
        sub_iq3_s(b, h, j, s);
        break;
    case FORMAT_IQ1_S:
        sub_iq1_s(b, h, j, s);
        break;
    default:
        sub_iq1_m(b, h, j, s);
        break;
    }
}

#endif
