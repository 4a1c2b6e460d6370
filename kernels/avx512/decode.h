/* AVX-512: one sub-block of 32 elements of 16 rows, from the bytes of a panel to registers, for
 * each quantized format. q[i] holds elements 4i..4i+3 of row r in its dword r, as unsigned bytes: a
 * format with signed values adds decode_offset() to them, which the caller takes off again with the
 * sums of the activations. The weight of an element is (q - offset) * scale[half] + min[half], with
 * one scale for the whole sub-block or one for each half (layout_n_scale).
 *
 * Every function takes the format as an argument that is constant at each call; the switches
 * vanish. */
#ifndef NUMOE_KERNELS_AVX512_DECODE_H
#define NUMOE_KERNELS_AVX512_DECODE_H

#include <immintrin.h>
#include <string.h>

#include "kernels/layout.h"

struct sub {
    __m512i q[8];
    __m512 scale[2], min[2];
};

/* What the sub-blocks of one block share. */
struct head {
    __m512 d, m;
    __m512i scale[4], min[2];
};

KERN_INLINE int decode_offset(enum format_id f)
{
    switch (f) {
    case FORMAT_Q4_0:
        return 8;
    case FORMAT_Q5_0:
        return 16;
    case FORMAT_Q8_0:
    case FORMAT_IQ4_NL:
    case FORMAT_IQ4_XS:
        return 128;
    case FORMAT_MXFP4:
        return 12;
    case FORMAT_Q3_K:
        return 4;
    case FORMAT_Q6_K:
        return 32;
    case FORMAT_IQ1_S:
    case FORMAT_IQ1_M:
        return 9;
    case FORMAT_IQ2_XXS:
    case FORMAT_IQ2_XS:
    case FORMAT_IQ2_S:
        return 43;
    case FORMAT_IQ3_XXS:
        return 62;
    case FORMAT_IQ3_S:
        return 15;
    default:
        return 0;
    }
}

/* Whether quants with that offset reach beyond 127. */
KERN_INLINE bool decode_is_wide(enum format_id f)
{
    return decode_offset(f) == 128;
}

KERN_INLINE __m512i load_words(const uint8_t *p)
{
    return _mm512_loadu_si512(p);
}

KERN_INLINE __m512i low_nibbles(__m512i v)
{
    return _mm512_and_si512(v, _mm512_set1_epi8(0x0f));
}

KERN_INLINE __m512i high_nibbles(__m512i v)
{
    return low_nibbles(_mm512_srli_epi16(v, 4));
}

/* mask ? a : b, bit by bit */
KERN_INLINE __m512i bit_select(__m512i mask, __m512i a, __m512i b)
{
    return _mm512_ternarylogic_epi32(mask, a, b, 0xca);
}

KERN_INLINE __m512 load_f16(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

/* Lane i of v: a byte of each of the 16 rows. */
KERN_INLINE __m512i lane_bytes(__m512i v, unsigned i)
{
    switch (i) {
    case 0:
        return _mm512_cvtepu8_epi32(_mm512_castsi512_si128(v));
    case 1:
        return _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(v, 1));
    case 2:
        return _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(v, 2));
    default:
        return _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(v, 3));
    }
}

KERN_INLINE __m512 lane_to_float(__m512i v, unsigned i)
{
    return _mm512_cvtepi32_ps(lane_bytes(v, i));
}

/* The 6-bit scales and mins of Q4_K and Q5_K, four to a register: one to a lane of 16 rows. */
KERN_INLINE void head_k4(const uint8_t *b, struct head *h)
{
    const __m512i six = _mm512_set1_epi8(0x3f), two = _mm512_set1_epi8(0x30);
    __m512i s = load_words(b + 64), m = load_words(b + 128), x = load_words(b + 192);
    h->d = load_f16(b);
    h->m = _mm512_sub_ps(_mm512_setzero_ps(), load_f16(b + 32));
    h->scale[0] = _mm512_and_si512(s, six);
    h->min[0] = _mm512_and_si512(m, six);
    h->scale[1] = bit_select(two, _mm512_srli_epi16(s, 2), low_nibbles(x));
    h->min[1] = bit_select(two, _mm512_srli_epi16(m, 2), high_nibbles(x));
}

KERN_INLINE void scales_k4(const struct head *h, unsigned j, struct sub *s)
{
    s->scale[0] = _mm512_mul_ps(h->d, lane_to_float(h->scale[j / 4], j % 4));
    s->min[0] = _mm512_mul_ps(h->m, lane_to_float(h->min[j / 4], j % 4));
}

/* The 6-bit scales of Q3_K, likewise. */
KERN_INLINE void head_q3_k(const uint8_t *b, struct head *h)
{
    const __m512i two = _mm512_set1_epi8(0x30);
    __m512i s0 = load_words(b + 32), s1 = load_words(b + 96), x = load_words(b + 160);
    h->d = load_f16(b);
    h->scale[0] = bit_select(two, _mm512_slli_epi16(x, 4), low_nibbles(s0));
    h->scale[1] = bit_select(two, _mm512_slli_epi16(x, 2), low_nibbles(s1));
    h->scale[2] = bit_select(two, x, high_nibbles(s0));
    h->scale[3] = bit_select(two, _mm512_srli_epi16(x, 2), high_nibbles(s1));
}

KERN_INLINE void decode_head(enum format_id f, const uint8_t *b, struct head *h)
{
    switch (f) {
    case FORMAT_Q4_K:
    case FORMAT_Q5_K:
        head_k4(b, h);
        break;
    case FORMAT_Q6_K:
        h->d = load_f16(b);
        break;
    case FORMAT_Q2_K:
        h->d = load_f16(b);
        h->m = _mm512_sub_ps(_mm512_setzero_ps(), load_f16(b + 32));
        break;
    case FORMAT_Q3_K:
        head_q3_k(b, h);
        break;
    case FORMAT_IQ4_XS:
        h->d = load_f16(b);
        h->scale[0] = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(b + 32)));
        h->scale[1] = load_words(b + 64);
        break;
    default: /* one sub-block: everything is its own */
        break;
    }
}

KERN_INLINE __m512 bytes16_to_float(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

KERN_INLINE void sub_q4_k(const uint8_t *b, const struct head *h, unsigned j, struct sub *s)
{
    const uint8_t *p = b + 16 * 16 + (j / 2) * 512;
#pragma GCC unroll 8
    for (unsigned i = 0; i < 8; i++) {
        __m512i v = load_words(p + 64 * i);
        s->q[i] = j % 2 ? high_nibbles(v) : low_nibbles(v);
    }
    scales_k4(h, j, s);
}

KERN_INLINE void sub_q5_k(const uint8_t *b, const struct head *h, unsigned j, struct sub *s)
{
    const uint8_t *ph = b + 16 * 16, *p = b + 16 * 48 + (j / 2) * 512;
#pragma GCC unroll 8
    for (unsigned i = 0; i < 8; i++) {
        __m512i v = load_words(p + 64 * i), x = load_words(ph + 64 * i);
        v = j % 2 ? _mm512_srli_epi16(v, 4) : v;
        x = j < 4 ? _mm512_slli_epi16(x, 4 - j) : _mm512_srli_epi16(x, j - 4);
        v = bit_select(_mm512_set1_epi8(0x0f), v, x);
        s->q[i] = _mm512_and_si512(v, _mm512_set1_epi8(0x1f));
    }
    scales_k4(h, j, s);
}

KERN_INLINE void sub_q6_k(const uint8_t *b, const struct head *h, unsigned j, struct sub *s)
{
    const unsigned n = j / 4, k = j % 4;
    const uint8_t *p = b + 16 * (82 + 64 * n + 32 * (k % 2)), *ph = b + 16 * (18 + 32 * n);
#pragma GCC unroll 8
    for (unsigned i = 0; i < 8; i++) {
        __m512i v = load_words(p + 64 * i), x = load_words(ph + 64 * i);
        v = k < 2 ? v : _mm512_srli_epi16(v, 4);
        x = k < 2 ? _mm512_slli_epi16(x, 4 - 2 * k) : _mm512_srli_epi16(x, 2 * k - 4);
        v = bit_select(_mm512_set1_epi8(0x0f), v, x);
        s->q[i] = _mm512_and_si512(v, _mm512_set1_epi8(0x3f));
    }
#pragma GCC unroll 8
    for (unsigned i = 0; i < 2; i++) {
        s->scale[i] = _mm512_mul_ps(h->d, bytes16_to_float(b + 16 * (2 + 2 * j + i)));
    }
}

KERN_INLINE void sub_q2_k(const uint8_t *b, const struct head *h, unsigned j, struct sub *s)
{
    const uint8_t *p = b + 16 * (20 + 32 * (j / 4));
#pragma GCC unroll 8
    for (unsigned i = 0; i < 8; i++) {
        __m512i v = _mm512_srli_epi16(load_words(p + 64 * i), 2 * (j % 4));
        s->q[i] = _mm512_and_si512(v, _mm512_set1_epi8(3));
    }
#pragma GCC unroll 8
    for (unsigned i = 0; i < 2; i++) {
        __m512i v =
            _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(b + 16 * (4 + 2 * j + i))));
        s->scale[i] =
            _mm512_mul_ps(h->d, _mm512_cvtepi32_ps(_mm512_and_si512(v, _mm512_set1_epi32(15))));
        s->min[i] = _mm512_mul_ps(h->m, _mm512_cvtepi32_ps(_mm512_srli_epi32(v, 4)));
    }
}

KERN_INLINE void sub_q3_k(const uint8_t *b, const struct head *h, unsigned j, struct sub *s)
{
    const uint8_t *ph = b + 16 * 14, *p = b + 16 * (46 + 32 * (j / 4));
#pragma GCC unroll 8
    for (unsigned i = 0; i < 8; i++) {
        __m512i v = _mm512_srli_epi16(load_words(p + 64 * i), 2 * (j % 4));
        __m512i x = load_words(ph + 64 * i);
        x = j < 2 ? _mm512_slli_epi16(x, 2 - j) : _mm512_srli_epi16(x, j - 2);
        v = bit_select(_mm512_set1_epi8(3), v, x);
        s->q[i] = _mm512_and_si512(v, _mm512_set1_epi8(7));
    }
#pragma GCC unroll 8
    for (unsigned i = 0; i < 2; i++) {
        __m512 v = lane_to_float(h->scale[(2 * j + i) / 4], (2 * j + i) % 4);
        s->scale[i] = _mm512_mul_ps(h->d, _mm512_sub_ps(v, _mm512_set1_ps(32)));
    }
}

/* 16 bytes of a row: elements 0..15 are the low nibbles, 16..31 the high ones. */
KERN_INLINE void split_nibbles(const uint8_t *p, __m512i q[8])
{
#pragma GCC unroll 8
    for (unsigned i = 0; i < 4; i++) {
        __m512i v = load_words(p + 64 * i);
        q[i] = low_nibbles(v);
        q[i + 4] = high_nibbles(v);
    }
}

/* Bit n of the dword is bit 4 of element n. */
KERN_INLINE void add_fifth_bits(__m512i bits, __m512i q[8])
{
#pragma GCC unroll 8
    for (unsigned i = 0; i < 8; i++) {
        const __m512i which = _mm512_set1_epi32(i % 2 ? (int)0x80402010 : 0x08040201);
        const __m512i spread = _mm512_set4_epi32(
            0x0c0c0c0c + 0x01010101 * (int)(i / 2), 0x08080808 + 0x01010101 * (int)(i / 2),
            0x04040404 + 0x01010101 * (int)(i / 2), 0x01010101 * (int)(i / 2));
        __mmask64 set = _mm512_test_epi8_mask(_mm512_shuffle_epi8(bits, spread), which);
        q[i] = _mm512_mask_add_epi8(q[i], set, q[i], _mm512_set1_epi8(16));
    }
}

/* Values of the 4-bit codes of IQ4_NL and IQ4_XS + 128, and of MXFP4 (doubled) + 12. */
KERN_INLINE void map_codes(enum format_id f, __m512i q[8])
{
    const __m128i nl =
        _mm_setr_epi8(1, 24, 45, 63, 79, 93, 106, 118, (char)129, (char)141, (char)153, (char)166,
                      (char)181, (char)197, (char)217, (char)241);
    const __m128i mx = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    const __m512i values = _mm512_broadcast_i32x4(f == FORMAT_MXFP4 ? mx : nl);
#pragma GCC unroll 8
    for (unsigned i = 0; i < 8; i++) {
        q[i] = _mm512_shuffle_epi8(values, q[i]);
    }
}

KERN_INLINE void sub_iq4_xs(const uint8_t *b, const struct head *h, unsigned j, struct sub *s)
{
    split_nibbles(b + 16 * (8 + 16 * j), s->q);
    map_codes(FORMAT_IQ4_XS, s->q);
    __m512i low = _mm512_srli_epi32(lane_bytes(h->scale[1], j / 2), 4 * (j % 2));
    low = _mm512_and_si512(low, _mm512_set1_epi32(15));
    __m512i high = _mm512_and_si512(_mm512_srli_epi32(h->scale[0], 2 * j), _mm512_set1_epi32(3));
    __m512i v = _mm512_or_si512(low, _mm512_slli_epi32(high, 4));
    s->scale[0] =
        _mm512_mul_ps(h->d, _mm512_cvtepi32_ps(_mm512_sub_epi32(v, _mm512_set1_epi32(32))));
}

/* Half of 2^(e - 127), which is subnormal for e < 2. */
KERN_INLINE __m512 e8m0_half(const uint8_t *p)
{
    __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
    __mmask16 tiny = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
    __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, tiny, small));
}

KERN_INLINE void sub_q8_0(const uint8_t *b, struct sub *s)
{
#pragma GCC unroll 8
    for (unsigned i = 0; i < 8; i++) {
        s->q[i] = _mm512_xor_si512(load_words(b + 32 + 64 * i), _mm512_set1_epi8((char)0x80));
    }
}

/* Formats of 32 elements a block. */
KERN_INLINE void sub_single(enum format_id f, const uint8_t *b, struct sub *s)
{
    s->scale[0] = f == FORMAT_MXFP4 ? e8m0_half(b) : load_f16(b);
    if (layout_has_min(f)) {
        s->min[0] = load_f16(b + 32);
    }
    switch (f) {
    case FORMAT_Q8_0:
        sub_q8_0(b, s);
        break;
    case FORMAT_Q4_0:
        split_nibbles(b + 16 * 2, s->q);
        break;
    case FORMAT_Q4_1:
        split_nibbles(b + 16 * 4, s->q);
        break;
    case FORMAT_Q5_0:
        split_nibbles(b + 16 * 6, s->q);
        add_fifth_bits(load_words(b + 16 * 2), s->q);
        break;
    case FORMAT_Q5_1:
        split_nibbles(b + 16 * 8, s->q);
        add_fifth_bits(load_words(b + 16 * 4), s->q);
        break;
    case FORMAT_IQ4_NL:
        split_nibbles(b + 16 * 2, s->q);
        map_codes(f, s->q);
        break;
    case FORMAT_MXFP4:
        split_nibbles(b + 16 * 1, s->q);
        map_codes(f, s->q);
        break;
    default:
        __builtin_unreachable();
    }
}

/* Sub-block j of the block at b. */
KERN_INLINE void decode_sub(enum format_id f, const uint8_t *b, const struct head *h, unsigned j,
                            struct sub *s)
{
    switch (f) {
    case FORMAT_Q2_K:
        sub_q2_k(b, h, j, s);
        break;
    case FORMAT_Q3_K:
        sub_q3_k(b, h, j, s);
        break;
    case FORMAT_Q4_K:
        sub_q4_k(b, h, j, s);
        break;
    case FORMAT_Q5_K:
        sub_q5_k(b, h, j, s);
        break;
    case FORMAT_Q6_K:
        sub_q6_k(b, h, j, s);
        break;
    case FORMAT_IQ4_XS:
        sub_iq4_xs(b, h, j, s);
        break;
    default:
        sub_single(f, b, s);
        break;
    }
}

#endif
