/* Blocks of every quantized format to small integers with their scales. This is the one statement
 * of what the bits of a block mean: dequantization and the reference kernels are built on it.
 * Offsets in a block are those of the field table in format.c.
 *
 * Element order: formats with 32 elements in a nibble field keep element i in the low and element
 * i + n in the high nibbles of byte i; 2-bit fields of 32 bytes hold elements i, i + 32, i + 64,
 * i + 96. */
#include "kernels/format-decode.h"

#include <string.h>

#include "kernels/format-tables.h"

static unsigned load_u16(const uint8_t *p)
{
    return p[0] | (unsigned)p[1] << 8;
}

static uint32_t load_u32(const uint8_t *p)
{
    return load_u16(p) | (uint32_t)load_u16(p + 2) << 16;
}

static float load_f16(const uint8_t *p)
{
    return format_f16_to_f32((uint16_t)load_u16(p));
}

static unsigned nibble(const uint8_t *p, unsigned i)
{
    return p[i / 2] >> (i % 2 * 4) & 15;
}

/* The same scale for all of n sub-blocks, no minimum. */
static void plain_scales(struct format_ints *out, unsigned n)
{
    memset(out->scale, 1, n);
    memset(out->min, 0, n);
    out->dmin = 0;
}

static void no_min(struct format_ints *out)
{
    memset(out->min, 0, sizeof(out->min));
    out->dmin = 0;
}

static void split_nibbles(const uint8_t *p, unsigned n, int8_t *q)
{
    for (unsigned i = 0; i < n; i++) {
        q[i] = p[i] & 15;
        q[i + n] = p[i] >> 4;
    }
}

/* 64 bytes to 256 two-bit numbers. */
static void split_pairs(const uint8_t *p, int8_t *q)
{
    for (unsigned i = 0; i < 256; i++) {
        q[i] = p[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
    }
}

static void add_to_all(int8_t *q, unsigned n, int add)
{
    for (unsigned i = 0; i < n; i++) {
        q[i] = (int8_t)(q[i] + add);
    }
}

static void look_up(int8_t *q, unsigned n, const int8_t *values)
{
    for (unsigned i = 0; i < n; i++) {
        q[i] = values[q[i]];
    }
}

/* ------------------------------------------------------------------ blocks of 32 */

void format_decode_q4_0(const void *block, struct format_ints *out)
{
    const uint8_t *b = block;
    plain_scales(out, 2);
    out->d = load_f16(b);
    split_nibbles(b + 2, 16, out->q);
    add_to_all(out->q, 32, -8);
}

void format_decode_q4_1(const void *block, struct format_ints *out)
{
    const uint8_t *b = block;
    memset(out->scale, 1, 2);
    memset(out->min, 1, 2);
    out->d = load_f16(b);
    out->dmin = -load_f16(b + 2);
    split_nibbles(b + 4, 16, out->q);
}

static void add_fifth_bits(uint32_t bits, int8_t *q)
{
    for (unsigned i = 0; i < 32; i++) {
        q[i] |= (int8_t)((bits >> i & 1) << 4);
    }
}

void format_decode_q5_0(const void *block, struct format_ints *out)
{
    const uint8_t *b = block;
    plain_scales(out, 2);
    out->d = load_f16(b);
    split_nibbles(b + 6, 16, out->q);
    add_fifth_bits(load_u32(b + 2), out->q);
    add_to_all(out->q, 32, -16);
}

void format_decode_q5_1(const void *block, struct format_ints *out)
{
    const uint8_t *b = block;
    memset(out->scale, 1, 2);
    memset(out->min, 1, 2);
    out->d = load_f16(b);
    out->dmin = -load_f16(b + 2);
    split_nibbles(b + 8, 16, out->q);
    add_fifth_bits(load_u32(b + 4), out->q);
}

void format_decode_q8_0(const void *block, struct format_ints *out)
{
    const uint8_t *b = block;
    plain_scales(out, 2);
    out->d = load_f16(b);
    memcpy(out->q, b + 2, 32);
}

void format_decode_iq4_nl(const void *block, struct format_ints *out)
{
    const uint8_t *b = block;
    plain_scales(out, 2);
    out->d = load_f16(b);
    split_nibbles(b + 2, 16, out->q);
    look_up(out->q, 32, format_values_iq4);
}

/* 2^(e - 127) / 2: the values of the table are doubled. */
static float e8m0_half(unsigned e)
{
    union {
        uint32_t u;
        float f;
    } v = {e < 2 ? 0x00200000u << e : (e - 1) << 23};
    return v.f;
}

void format_decode_mxfp4(const void *block, struct format_ints *out)
{
    const uint8_t *b = block;
    plain_scales(out, 2);
    out->d = e8m0_half(b[0]);
    split_nibbles(b + 1, 16, out->q);
    look_up(out->q, 32, format_values_fp4);
}

/* ------------------------------------------------------------------ K-quants */

void format_decode_q2_k(const void *block, struct format_ints *out)
{
    const uint8_t *b = block;
    out->d = load_f16(b + 80);
    out->dmin = load_f16(b + 82);
    for (unsigned i = 0; i < 16; i++) {
        out->scale[i] = b[i] & 15;
        out->min[i] = b[i] >> 4;
    }
    split_pairs(b + 16, out->q);
}

void format_decode_q3_k(const void *block, struct format_ints *out)
{
    const uint8_t *b = block, *high = b, *scales = b + 96;
    no_min(out);
    out->d = load_f16(b + 108);
    for (unsigned i = 0; i < 16; i++) { /* 4 bits in bytes 0..7, 2 bits in bytes 8..11 */
        unsigned low4 = scales[i % 8] >> (i / 8 * 4) & 15;
        unsigned high2 = scales[8 + i % 4] >> (i / 4 * 2) & 3;
        out->scale[i] = (int8_t)((int)(low4 | high2 << 4) - 32);
    }
    split_pairs(b + 32, out->q);
    for (unsigned i = 0; i < 256; i++) { /* a clear bit means minus 4 */
        out->q[i] = (int8_t)(out->q[i] + ((high[i % 32] >> (i / 32) & 1) << 2) - 4);
    }
}

/* Q4_K and Q5_K: d, dmin and 12 bytes with eight 6-bit scales and eight 6-bit minima. The first
 * four of each have a byte of their own; its two upper bits complete one of the last four. */
static void decode_scales_6bit(const uint8_t *b, struct format_ints *out)
{
    const uint8_t *s = b + 4;
    out->d = load_f16(b);
    out->dmin = load_f16(b + 2);
    for (unsigned j = 0; j < 4; j++) {
        int8_t *scale = out->scale + 2 * j, *min = out->min + 2 * j;
        scale[0] = scale[1] = s[j] & 63;
        min[0] = min[1] = s[j + 4] & 63;
        scale[8] = scale[9] = (int8_t)((s[j + 8] & 15) | s[j] >> 6 << 4);
        min[8] = min[9] = (int8_t)(s[j + 8] >> 4 | s[j + 4] >> 6 << 4);
    }
}

void format_decode_q4_k(const void *block, struct format_ints *out)
{
    const uint8_t *b = block;
    decode_scales_6bit(b, out);
    for (unsigned j = 0; j < 4; j++) {
        split_nibbles(b + 16 + 32 * j, 32, out->q + 64 * j);
    }
}

void format_decode_q5_k(const void *block, struct format_ints *out)
{
    const uint8_t *b = block, *high = b + 16;
    decode_scales_6bit(b, out);
    for (unsigned j = 0; j < 4; j++) {
        split_nibbles(b + 48 + 32 * j, 32, out->q + 64 * j);
    }
    for (unsigned i = 0; i < 256; i++) {
        out->q[i] |= (int8_t)((high[i % 32] >> (i / 32) & 1) << 4);
    }
}

void format_decode_q6_k(const void *block, struct format_ints *out)
{
    const uint8_t *b = block;
    int8_t high[256];
    no_min(out);
    out->d = load_f16(b + 208);
    memcpy(out->scale, b + 192, 16);
    split_nibbles(b, 64, out->q);
    split_nibbles(b + 64, 64, out->q + 128);
    split_pairs(b + 128, high);
    for (unsigned i = 0; i < 256; i++) {
        out->q[i] = (int8_t)((out->q[i] | high[i] << 4) - 32);
    }
}

void format_decode_iq4_xs(const void *block, struct format_ints *out)
{
    const uint8_t *b = block;
    unsigned high = load_u16(b + 2);
    no_min(out);
    out->d = load_f16(b);
    for (unsigned j = 0; j < 8; j++) {
        int scale = (int)(nibble(b + 4, j) | (high >> 2 * j & 3) << 4) - 32;
        out->scale[2 * j] = out->scale[2 * j + 1] = (int8_t)scale;
        split_nibbles(b + 8 + 16 * j, 16, out->q + 32 * j);
    }
    look_up(out->q, 256, format_values_iq4);
}

/* ------------------------------------------------------------------ ternary */

void format_decode_tq1_0(const void *block, struct format_ints *out)
{
    static const uint8_t power3[5] = {1, 3, 9, 27, 81};
    /* five digits base 3 a byte, in runs of 32, 16 and (four digits only) 4 bytes */
    static const struct {
        uint8_t byte0, n_byte, n_digit, elem0;
    } run[3] = {{0, 32, 5, 0}, {32, 16, 5, 160}, {48, 4, 4, 240}};
    const uint8_t *b = block;

    plain_scales(out, 16);
    out->d = load_f16(b + 52);
    for (unsigned ir = 0; ir < 3; ir++) {
        unsigned n = run[ir].n_byte;
        for (unsigned i = 0; i < n * run[ir].n_digit; i++) {
            uint8_t shifted = (uint8_t)(b[run[ir].byte0 + i % n] * power3[i / n]);
            out->q[run[ir].elem0 + i] = (int8_t)((shifted * 3 >> 8) - 1);
        }
    }
}

void format_decode_tq2_0(const void *block, struct format_ints *out)
{
    const uint8_t *b = block;
    plain_scales(out, 16);
    out->d = load_f16(b + 64);
    split_pairs(b, out->q);
    add_to_all(out->q, 256, -1);
}

/* ------------------------------------------------------------------ codebooks */

/* Eight magnitudes of a grid entry with their signs. */
static void put_signed(uint64_t entry, unsigned signs, int8_t *q)
{
    for (unsigned i = 0; i < 8; i++) {
        int magnitude = (int)(entry >> 8 * i & 0xff);
        q[i] = (int8_t)(signs >> i & 1 ? -magnitude : magnitude);
    }
}

/* Scales are stored as s and mean (2 s + 1) times the d that the caller sets. */
static int8_t odd_scale(unsigned s)
{
    return (int8_t)(2 * s + 1);
}

static void odd_scale_32(struct format_ints *out, unsigned j, unsigned s)
{
    out->scale[2 * j] = out->scale[2 * j + 1] = odd_scale(s);
}

void format_decode_iq2_xxs(const void *block, struct format_ints *out)
{
    const uint8_t *b = block;
    no_min(out);
    out->d = load_f16(b) / 8;
    for (unsigned j = 0; j < 8; j++) {
        const uint8_t *index = b + 2 + 8 * j;
        uint32_t aux = load_u32(index + 4);
        odd_scale_32(out, j, aux >> 28);
        for (unsigned i = 0; i < 4; i++) {
            put_signed(format_grid_iq2_xxs[index[i]], format_even_signs(aux >> 7 * i & 127),
                       out->q + 32 * j + 8 * i);
        }
    }
}

void format_decode_iq2_xs(const void *block, struct format_ints *out)
{
    const uint8_t *b = block;
    no_min(out);
    out->d = load_f16(b) / 8;
    for (unsigned j = 0; j < 16; j++) {
        out->scale[j] = odd_scale(nibble(b + 66, j));
    }
    for (unsigned i = 0; i < 32; i++) {
        unsigned v = load_u16(b + 2 + 2 * i);
        put_signed(format_grid_iq2_xs[v & 511], format_even_signs(v >> 9), out->q + 8 * i);
    }
}

void format_decode_iq2_s(const void *block, struct format_ints *out)
{
    const uint8_t *b = block, *low = b + 2, *signs = b + 34, *high = b + 66;
    no_min(out);
    out->d = load_f16(b) / 8;
    for (unsigned j = 0; j < 16; j++) {
        out->scale[j] = odd_scale(nibble(b + 74, j));
    }
    for (unsigned i = 0; i < 32; i++) {
        unsigned index = low[i] | (unsigned)(high[i / 4] >> (i % 4 * 2) & 3) << 8;
        put_signed(format_grid_iq2_s[index], signs[i], out->q + 8 * i);
    }
}

void format_decode_iq3_xxs(const void *block, struct format_ints *out)
{
    const uint8_t *b = block, *index = b + 2;
    no_min(out);
    out->d = load_f16(b) / 4;
    for (unsigned j = 0; j < 8; j++) {
        uint32_t aux = load_u32(b + 66 + 4 * j);
        odd_scale_32(out, j, aux >> 28);
        for (unsigned i = 0; i < 4; i++, index += 2) {
            uint64_t entry = format_grid_iq3_xxs[index[0]] | (uint64_t)format_grid_iq3_xxs[index[1]]
                                                                 << 32;
            put_signed(entry, format_even_signs(aux >> 7 * i & 127), out->q + 32 * j + 8 * i);
        }
    }
}

void format_decode_iq3_s(const void *block, struct format_ints *out)
{
    const uint8_t *b = block, *low = b + 2, *high = b + 66, *signs = b + 74;
    no_min(out);
    out->d = load_f16(b);
    for (unsigned j = 0; j < 8; j++) {
        odd_scale_32(out, j, nibble(b + 106, j));
    }
    for (unsigned i = 0; i < 32; i++) {
        unsigned bits = high[i / 4] >> (i % 4 * 2);
        uint64_t entry = format_grid_iq3_s[low[2 * i] | (bits & 1) << 8] |
                         (uint64_t)format_grid_iq3_s[low[2 * i + 1] | (bits >> 1 & 1) << 8] << 32;
        put_signed(entry, signs[i], out->q + 8 * i);
    }
}

/* IQ1: -1, 0, 1 with an eighth added or subtracted, all times 8. */
static void put_shifted(uint64_t entry, bool subtract, int8_t *q)
{
    for (unsigned i = 0; i < 8; i++) {
        q[i] = (int8_t)(8 * (int8_t)(entry >> 8 * i & 0xff) + (subtract ? -1 : 1));
    }
}

void format_decode_iq1_s(const void *block, struct format_ints *out)
{
    const uint8_t *b = block, *low = b + 2;
    no_min(out);
    out->d = load_f16(b) / 8;
    for (unsigned j = 0; j < 8; j++) {
        unsigned aux = load_u16(b + 34 + 2 * j);
        odd_scale_32(out, j, aux >> 12 & 7);
        for (unsigned i = 4 * j; i < 4 * j + 4; i++) {
            unsigned index = low[i] | (aux >> 3 * (i % 4) & 7) << 8;
            put_shifted(format_grid_iq1[index], aux >> 15, out->q + 8 * i);
        }
    }
}

void format_decode_iq1_m(const void *block, struct format_ints *out)
{
    const uint8_t *b = block, *low = b, *high = b + 32, *scales = b + 48;
    no_min(out);
    unsigned d =
        0; /* its four nibbles are the upper ones of four words with four 3-bit scales each */
    for (unsigned j = 0; j < 4; j++) {
        unsigned word = load_u16(scales + 2 * j);
        d |= word >> 12 << 4 * j;
        for (unsigned i = 0; i < 4; i++) {
            out->scale[4 * j + i] = odd_scale(word >> 3 * i & 7);
        }
    }
    out->d = format_f16_to_f32((uint16_t)d) / 8;
    for (unsigned i = 0; i < 32; i++) {
        unsigned aux = nibble(high, i);
        put_shifted(format_grid_iq1[low[i] | (aux & 7) << 8], aux >> 3, out->q + 8 * i);
    }
}
