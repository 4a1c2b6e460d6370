/* AVX2: one sub-block of 32 elements of 8 rows (half h of a panel), from bytes to registers, for
 * each quantized format. q[i] holds elements 4i..4i+3 of row r in its dword r: unsigned bytes with
 * decode_offset() added where a format has small signed values, signed bytes where
 * decode_is_signed(). The weight of an element is (q - offset) * scale[half of the sub-block] +
 * min[half].
 *
 * Every function takes the format as an argument that is constant at each call; the switches
 * vanish. The layout of a block of a panel is that of kernels/format.c. */
#ifndef NUMOE_KERNELS_AVX2_DECODE_H
#define NUMOE_KERNELS_AVX2_DECODE_H

#include "kernels/avx2/codebook.h"
#include "kernels/avx2/sub.h"

/* AVX-VNNI, the same code compiled once more, multiplies unsigned by signed bytes straight into 32
 * bits: no format is signed then. */
#ifdef KERN_AVXVNNI
#define WITH_VNNI true
#else
#define WITH_VNNI false
#endif

KERN_INLINE bool decode_values_are_signed(enum format_id f)
{
    return f == FORMAT_Q8_0 || f == FORMAT_IQ4_NL || f == FORMAT_IQ4_XS;
}

KERN_INLINE bool decode_is_signed(enum format_id f)
{
    return decode_values_are_signed(f) && !WITH_VNNI;
}

KERN_INLINE int decode_offset(enum format_id f)
{
    switch (f) {
    case FORMAT_Q4_0:
        return 8;
    case FORMAT_Q5_0:
        return 16;
    case FORMAT_MXFP4:
        return 12;
    case FORMAT_Q3_K:
        return 4;
    case FORMAT_Q6_K:
        return 32;
    case FORMAT_TQ1_0:
    case FORMAT_TQ2_0:
        return 1;
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
        return decode_values_are_signed(f) && WITH_VNNI ? 128 : 0;
    }
}

/* How many sums of two products with a byte of [-127, 127] fit into 16 bits. */
KERN_INLINE unsigned decode_depth(enum format_id f)
{
    switch (f) {
    case FORMAT_Q8_0: /* at most 128: 1 * 2 * 128 * 127 < 32768 */
    case FORMAT_IQ4_NL:
    case FORMAT_IQ4_XS:
    case FORMAT_IQ3_XXS: /* 124 */
    case FORMAT_IQ2_XXS: /* 86 */
    case FORMAT_IQ2_XS:
    case FORMAT_IQ2_S:
        return 1;
    case FORMAT_Q6_K: /* 63 */
        return 2;
    case FORMAT_Q5_0: /* 31 */
    case FORMAT_Q5_1:
    case FORMAT_Q5_K:
    case FORMAT_MXFP4: /* 24 */
    case FORMAT_IQ3_S: /* 30 */
    case FORMAT_IQ1_S: /* 18 */
    case FORMAT_IQ1_M:
        return 4;
    default: /* 15 */
        return 8;
    }
}

/* The 6-bit scales and mins of Q4_K and Q5_K. */
KERN_INLINE void scales_k4(const uint8_t *b, unsigned h, unsigned j, struct sub *s)
{
    const uint8_t *p = b + 64;
    __m256i scale, min;
    if (j < 4) {
        scale = and_dwords(bytes_at(p, j, h), 63);
        min = and_dwords(bytes_at(p, j + 4, h), 63);
    } else {
        __m256i low = bytes_at(p, j + 4, h);
        __m256i scale2 = _mm256_srli_epi32(bytes_at(p, j - 4, h), 6);
        __m256i min2 = _mm256_srli_epi32(bytes_at(p, j, h), 6);
        scale = _mm256_or_si256(and_dwords(low, 15), _mm256_slli_epi32(scale2, 4));
        min = _mm256_or_si256(_mm256_srli_epi32(low, 4), _mm256_slli_epi32(min2, 4));
    }
    s->scale[0] = scaled(f16_at(b, h), scale);
    s->min[0] = scaled(_mm256_sub_ps(_mm256_setzero_ps(), f16_at(b + 32, h)), min);
}

KERN_INLINE void sub_q4_k(const uint8_t *b, unsigned h, unsigned j, struct sub *s)
{
    const uint8_t *p = b + 16 * 16 + (j / 2) * 512;
#pragma GCC unroll 8
    for (unsigned i = 0; i < 8; i++) {
        s->q[i] = low_or_high_nibbles(words_at(p, i, h), j % 2);
    }
    scales_k4(b, h, j, s);
}

KERN_INLINE void sub_q5_k(const uint8_t *b, unsigned h, unsigned j, struct sub *s)
{
    const uint8_t *ph = b + 16 * 16, *p = b + 16 * 48 + (j / 2) * 512;
#pragma GCC unroll 8
    for (unsigned i = 0; i < 8; i++) {
        __m256i v = low_or_high_nibbles(words_at(p, i, h), j % 2);
        __m256i x = and_bytes(shift_bits(words_at(ph, i, h), 4 - (int)j), 0x10);
        s->q[i] = _mm256_or_si256(v, x);
    }
    scales_k4(b, h, j, s);
}

KERN_INLINE void sub_q6_k(const uint8_t *b, unsigned h, unsigned j, struct sub *s)
{
    const unsigned n = j / 4, k = j % 4;
    const uint8_t *p = b + 16 * (82 + 64 * n + 32 * (k % 2)), *ph = b + 16 * (18 + 32 * n);
#pragma GCC unroll 8
    for (unsigned i = 0; i < 8; i++) {
        __m256i v = low_or_high_nibbles(words_at(p, i, h), k >= 2);
        __m256i x = and_bytes(shift_bits(words_at(ph, i, h), 4 - 2 * (int)k), 0x30);
        s->q[i] = _mm256_or_si256(v, x);
    }
#pragma GCC unroll 2
    for (unsigned i = 0; i < 2; i++) {
        const uint8_t *scale = b + 16 * (2 + 2 * j + i) + 8 * h;
        s->scale[i] =
            scaled(f16_at(b, h), _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)scale)));
    }
}

KERN_INLINE void sub_q2_k(const uint8_t *b, unsigned h, unsigned j, struct sub *s)
{
    const uint8_t *p = b + 16 * (20 + 32 * (j / 4));
    __m256 d = f16_at(b, h), m = _mm256_sub_ps(_mm256_setzero_ps(), f16_at(b + 32, h));
#pragma GCC unroll 8
    for (unsigned i = 0; i < 8; i++) {
        s->q[i] = and_bytes(shift_bits(words_at(p, i, h), -2 * (int)(j % 4)), 3);
    }
#pragma GCC unroll 2
    for (unsigned i = 0; i < 2; i++) {
        __m256i v = bytes_at(b + 64, 2 * j + i, h);
        s->scale[i] = scaled(d, and_dwords(v, 15));
        s->min[i] = scaled(m, _mm256_srli_epi32(v, 4));
    }
}

KERN_INLINE void sub_q3_k(const uint8_t *b, unsigned h, unsigned j, struct sub *s)
{
    const uint8_t *ph = b + 16 * 14, *p = b + 16 * (46 + 32 * (j / 4));
#pragma GCC unroll 8
    for (unsigned i = 0; i < 8; i++) {
        __m256i v = and_bytes(shift_bits(words_at(p, i, h), -2 * (int)(j % 4)), 3);
        __m256i x = and_bytes(shift_bits(words_at(ph, i, h), 2 - (int)j), 4);
        s->q[i] = _mm256_or_si256(v, x);
    }
#pragma GCC unroll 2
    for (unsigned i = 0; i < 2; i++) {
        const unsigned k =
            2 * j + i; /* bits 0..3 in nibble k / 8 of byte k % 8, 4..5 in byte 8.. */
        __m256i low = bytes_at(b + 32, k % 8, h), high = bytes_at(b + 32, 8 + k % 4, h);
        low = and_dwords(k < 8 ? low : _mm256_srli_epi32(low, 4), 15);
        high = _mm256_slli_epi32(and_dwords(_mm256_srli_epi32(high, 2 * (k / 4)), 3), 4);
        __m256i v = _mm256_sub_epi32(_mm256_or_si256(low, high), _mm256_set1_epi32(32));
        s->scale[i] = scaled(f16_at(b, h), v);
    }
}

KERN_INLINE void sub_tq2_0(const uint8_t *b, unsigned h, unsigned j, struct sub *s)
{
    const uint8_t *p = b + 16 * (2 + 32 * (j / 4));
#pragma GCC unroll 8
    for (unsigned i = 0; i < 8; i++) {
        s->q[i] = and_bytes(shift_bits(words_at(p, i, h), -2 * (int)(j % 4)), 3);
    }
    s->scale[0] = f16_at(b, h);
}

/* Digit n, base 3, of each byte: what v * 3^n modulo 256 says in thirds of 256. */
KERN_INLINE __m256i ternary_digit(__m256i v, unsigned n)
{
#pragma GCC unroll 4
    for (unsigned i = 0; i < n; i++) {
        v = _mm256_add_epi8(v, _mm256_add_epi8(v, v));
    }
    __m256i one = _mm256_max_epu8(v, _mm256_set1_epi8(86));
    __m256i two = _mm256_max_epu8(v, _mm256_set1_epi8((char)171));
    v = _mm256_add_epi8(_mm256_cmpeq_epi8(one, v), _mm256_cmpeq_epi8(two, v));
    return _mm256_sub_epi8(_mm256_setzero_si256(), v);
}

/* Five digits a byte, in runs of 32 and 16 bytes, and four of each of the last 4 bytes. */
KERN_INLINE void sub_tq1_0(const uint8_t *b, unsigned h, unsigned j, struct sub *s)
{
    const uint8_t *last = b + 16 * 2, *p = b + 16 * 6;
#pragma GCC unroll 8
    for (unsigned i = 0; i < 8; i++) {
        if (j < 5) {
            s->q[i] = ternary_digit(words_at(p, i, h), j);
        } else if (j < 7 || i < 4) {
            s->q[i] = ternary_digit(words_at(p, 8 + i % 4, h), 2 * (j - 5) + i / 4);
        } else {
            s->q[i] = ternary_digit(words_at(last, 0, h), i - 4);
        }
    }
    s->scale[0] = f16_at(b, h);
}

/* 16 bytes of a row: elements 0..15 are the low nibbles, 16..31 the high ones. */
KERN_INLINE void split_nibbles(const uint8_t *p, unsigned h, __m256i q[8])
{
#pragma GCC unroll 4
    for (unsigned i = 0; i < 4; i++) {
        __m256i v = words_at(p, i, h);
        q[i] = low_or_high_nibbles(v, false);
        q[i + 4] = low_or_high_nibbles(v, true);
    }
}

/* Bit n of the dword is bit 4 of element n. */
KERN_INLINE void add_fifth_bits(__m256i bits, __m256i q[8])
{
#pragma GCC unroll 8
    for (unsigned i = 0; i < 8; i++) {
        const int byte = 0x01010101 * (int)(i / 2);
        const __m256i which = _mm256_set1_epi32(i % 2 ? (int)0x80402010 : 0x08040201);
        const __m256i spread =
            _mm256_setr_epi32(byte, byte + 0x04040404, byte + 0x08080808, byte + 0x0c0c0c0c, byte,
                              byte + 0x04040404, byte + 0x08080808, byte + 0x0c0c0c0c);
        __m256i v = _mm256_and_si256(_mm256_shuffle_epi8(bits, spread), which);
        q[i] = _mm256_or_si256(q[i], and_bytes(_mm256_cmpeq_epi8(v, which), 16));
    }
}

/* Signed bytes, with 128 added where decode_offset() says so. */
KERN_INLINE __m256i with_offset(__m256i q)
{
    return WITH_VNNI ? _mm256_xor_si256(q, _mm256_set1_epi8(-128)) : q;
}

/* Values of the 4-bit codes of IQ4_NL and IQ4_XS, and of MXFP4 (doubled) + 12. */
KERN_INLINE void map_codes(enum format_id f, __m256i q[8])
{
    const __m128i nl =
        _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
    const __m128i mx = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    const __m256i values = f == FORMAT_MXFP4 ? _mm256_broadcastsi128_si256(mx)
                                             : with_offset(_mm256_broadcastsi128_si256(nl));
#pragma GCC unroll 8
    for (unsigned i = 0; i < 8; i++) {
        q[i] = _mm256_shuffle_epi8(values, q[i]);
    }
}

KERN_INLINE void sub_iq4_xs(const uint8_t *b, unsigned h, unsigned j, struct sub *s)
{
    split_nibbles(b + 16 * (8 + 16 * j), h, s->q);
    map_codes(FORMAT_IQ4_XS, s->q);
    __m256i high = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(b + 32 + 16 * h)));
    __m256i low = _mm256_srli_epi32(bytes_at(b + 64, j / 2, h), 4 * (j % 2));
    high = and_dwords(_mm256_srli_epi32(high, 2 * j), 3);
    __m256i v = _mm256_or_si256(and_dwords(low, 15), _mm256_slli_epi32(high, 4));
    s->scale[0] = scaled(f16_at(b, h), _mm256_sub_epi32(v, _mm256_set1_epi32(32)));
}

/* Half of 2^(e - 127), which is subnormal for e < 2. */
KERN_INLINE __m256 e8m0_half(const uint8_t *p, unsigned h)
{
    __m256i e = bytes_at(p, 0, h);
    __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    __m256i tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    __m256i is_tiny = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, tiny, is_tiny));
}

/* Formats of 32 elements a block. */
KERN_INLINE void sub_single(enum format_id f, const uint8_t *b, unsigned h, struct sub *s)
{
    s->scale[0] = f == FORMAT_MXFP4 ? e8m0_half(b, h) : f16_at(b, h);
    if (layout_has_min(f)) {
        s->min[0] = f16_at(b + 32, h);
    }
    switch (f) {
    case FORMAT_Q8_0:
#pragma GCC unroll 8
        for (unsigned i = 0; i < 8; i++) {
            s->q[i] = with_offset(words_at(b + 32, i, h));
        }
        break;
    case FORMAT_Q4_0:
        split_nibbles(b + 16 * 2, h, s->q);
        break;
    case FORMAT_Q4_1:
        split_nibbles(b + 16 * 4, h, s->q);
        break;
    case FORMAT_Q5_0:
        split_nibbles(b + 16 * 6, h, s->q);
        add_fifth_bits(words_at(b + 16 * 2, 0, h), s->q);
        break;
    case FORMAT_Q5_1:
        split_nibbles(b + 16 * 8, h, s->q);
        add_fifth_bits(words_at(b + 16 * 4, 0, h), s->q);
        break;
    case FORMAT_IQ4_NL:
        split_nibbles(b + 16 * 2, h, s->q);
        map_codes(f, s->q);
        break;
    case FORMAT_MXFP4:
        split_nibbles(b + 16 * 1, h, s->q);
        map_codes(f, s->q);
        break;
    default:
        __builtin_unreachable();
    }
}

/* Sub-block j of the block at b, rows of half h. */
KERN_INLINE void decode_sub(enum format_id f, const uint8_t *b, unsigned h, unsigned j,
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
    case FORMAT_IQ1_S:
        sub_iq1_s(b, h, j, s);
        break;
    case FORMAT_IQ1_M:
        sub_iq1_m(b, h, j, s);
        break;
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
    case FORMAT_TQ1_0:
        sub_tq1_0(b, h, j, s);
        break;
    case FORMAT_TQ2_0:
        sub_tq2_0(b, h, j, s);
        break;
    default:
        sub_single(f, b, h, s);
        break;
    }
}

#endif
