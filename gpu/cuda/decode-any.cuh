/* Every other quantized format: one decoder that looks at the format at run time. Slower than those
 * of decode.cuh, and none of them needs a kernel of its own. */
#ifndef NUMOE_GPU_CUDA_DECODE_ANY_CUH
#define NUMOE_GPU_CUDA_DECODE_ANY_CUH

#include "gpu/cuda/decode.cuh"

/* Codebooks of the IQ formats, copied from kernels/format-tables.h by cuda_tables_init(). */
struct codebooks {
    uint64_t iq2_xxs[256], iq2_xs[512], iq2_s[1024], iq1[2048];
    uint32_t iq3_xxs[256], iq3_s[512];
};
static __device__ codebooks cuda_codebooks; /* gemv.cu alone includes this */

static __device__ __forceinline__ unsigned u16_at(const uint8_t *p)
{
    return p[0] | (unsigned)p[1] << 8;
}

static __device__ __forceinline__ uint32_t u32_at(const uint8_t *p)
{
    return u16_at(p) | (uint32_t)u16_at(p + 2) << 16;
}

static __device__ __forceinline__ unsigned nibble_at(const uint8_t *p, unsigned i)
{
    return p[i / 2] >> (i % 2 * 4) & 15;
}

static __device__ __forceinline__ int4 words_at(const uint8_t *p)
{
    return make_int4((int)u32_at(p), (int)u32_at(p + 4), (int)u32_at(p + 8), (int)u32_at(p + 12));
}

/* Two bits of each of 32 bytes: element i from byte i. */
static __device__ void pairs32(const uint8_t *p, int shift, group32 &g)
{
    for (int i = 0; i < 8; i++) {
        g.q[i] = (int)(u32_at(p + 4 * i) >> shift) & 0x03030303;
    }
}

/* Eight magnitudes (two words) negated where their bit of signs is set. */
static __device__ void signed8(uint32_t lo, uint32_t hi, unsigned signs, int *q)
{
    const unsigned m0 = spread4(signs) * 0xffu, m1 = spread4(signs >> 4) * 0xffu;
    q[0] = (int)__vsub4(lo ^ m0, m0);
    q[1] = (int)__vsub4(hi ^ m1, m1);
}

static __device__ void signed8(uint64_t entry, unsigned signs, int *q)
{
    signed8((uint32_t)entry, (uint32_t)(entry >> 32), signs, q);
}

static __device__ unsigned even_signs(unsigned bits7)
{
    return bits7 | (unsigned)(__popc(bits7) & 1) << 7;
}

static __device__ void fifth_bits(uint32_t bits, group32 &g)
{
    for (int i = 0; i < 8; i++) {
        g.q[i] |= spread4(bits >> (4 * i)) << 4;
    }
}

/* Blocks of 32. */
static __device__ bool decode_32(const planes &w, uint32_t format, size_t b, group32 &g)
{
    switch (format) {
    case FORMAT_Q4_0: {
        const float d = f16_at(w.p[0] + b * 2);
        nibbles16(words_at(w.p[1] + b * 16), g);
        one_scale(g, d, 8 * d);
        return true;
    }
    case FORMAT_Q4_1:
        nibbles16(words_at(w.p[1] + b * 16), g);
        one_scale(g, f16_at(w.p[0] + b * 4), -f16_at(w.p[0] + b * 4 + 2));
        return true;
    case FORMAT_Q5_0: {
        const float d = f16_at(w.p[0] + b * 2);
        nibbles16(words_at(w.p[2] + b * 16), g);
        fifth_bits(u32_at(w.p[1] + b * 4), g);
        one_scale(g, d, 16 * d);
        return true;
    }
    case FORMAT_Q5_1:
        nibbles16(words_at(w.p[2] + b * 16), g);
        fifth_bits(u32_at(w.p[1] + b * 4), g);
        one_scale(g, f16_at(w.p[0] + b * 4), -f16_at(w.p[0] + b * 4 + 2));
        return true;
    case FORMAT_IQ4_NL:
        table16(words_at(w.p[1] + b * 16), IQ4_TABLE, g);
        one_scale(g, f16_at(w.p[0] + b * 2), 0);
        return true;
    }
    return false;
}

static __device__ void decode_q2_k(const planes &w, size_t b, int j, group32 &g)
{
    const uint8_t *d = w.p[2] + b * 4, *scales = w.p[0] + b * 16 + 2 * j;
    pairs32(w.p[1] + b * 64 + j / 4 * 32, 2 * (j & 3), g);
    for (int i = 0; i < 2; i++) {
        g.s[i] = f16_at(d) * (float)(scales[i] & 15);
        g.m[i] = f16_at(d + 2) * (float)(scales[i] >> 4);
    }
}

static __device__ void decode_q3_k(const planes &w, size_t b, int j, group32 &g)
{
    const uint8_t *high = w.p[0] + b * 32, *scales = w.p[2] + b * 12;
    const float d = f16_at(w.p[3] + b * 2);
    pairs32(w.p[1] + b * 64 + j / 4 * 32, 2 * (j & 3), g);
    for (int i = 0; i < 8; i++) {
        g.q[i] |= (int)((u32_at(high + 4 * i) >> j & 0x01010101) << 2);
    }
    for (int i = 0; i < 2; i++) {
        const int at = 2 * j + i;
        const unsigned low4 = scales[at % 8] >> (at / 8 * 4) & 15;
        const unsigned high2 = scales[8 + at % 4] >> (at / 4 * 2) & 3;
        g.s[i] = d * (float)((int)(low4 | high2 << 4) - 32);
        g.m[i] = 4 * g.s[i];
    }
}

static __device__ void decode_iq4_xs(const planes &w, size_t b, int j, group32 &g)
{
    const uint8_t *head = w.p[0] + b * 8;
    const unsigned high = u16_at(head + 2);
    const int scale = (int)(nibble_at(head + 4, (unsigned)j) | (high >> 2 * j & 3) << 4) - 32;
    table16(words_at(w.p[1] + b * 128 + j * 16), IQ4_TABLE, g);
    one_scale(g, f16_at(head) * (float)scale, 0);
}

static __device__ int8_t base3_digit(unsigned byte, int digit)
{
    const uint8_t power3[5] = {1, 3, 9, 27, 81};
    const uint8_t shifted = (uint8_t)(byte * power3[digit]);
    return (int8_t)((shifted * 3 >> 8) - 1);
}

/* Five digits base 3 a byte, in runs of 32, 16 and (four digits only) 4 bytes. */
static __device__ void decode_tq1_0(const planes &w, size_t b, int j, group32 &g)
{
    const uint8_t *p = w.p[0] + b * 52;
    for (int i = 0; i < 8; i++) {
        unsigned word = 0;
        for (int at = 0; at < 4; at++) {
            const int e = 32 * j + 4 * i + at;
            const int8_t q = e < 160   ? base3_digit(p[e % 32], e / 32)
                             : e < 240 ? base3_digit(p[32 + (e - 160) % 16], (e - 160) / 16)
                                       : base3_digit(p[48 + (e - 240) % 4], (e - 240) / 4);
            word |= (unsigned)(uint8_t)q << 8 * at;
        }
        g.q[i] = (int)word;
    }
    one_scale(g, f16_at(w.p[1] + b * 2), 0);
}

static __device__ void decode_tq2_0(const planes &w, size_t b, int j, group32 &g)
{
    const float d = f16_at(w.p[1] + b * 2);
    pairs32(w.p[0] + b * 64 + j / 4 * 32, 2 * (j & 3), g);
    one_scale(g, d, d);
}

/* Codebooks: scales are stored as s and mean 2 s + 1. */
static __device__ float odd(float d, unsigned s)
{
    return d * (float)(2 * s + 1);
}

static __device__ void decode_iq2_xxs(const planes &w, size_t b, int j, group32 &g)
{
    const uint8_t *index = w.p[1] + b * 64 + 8 * j;
    const uint32_t aux = u32_at(index + 4);
    for (int i = 0; i < 4; i++) {
        signed8(cuda_codebooks.iq2_xxs[index[i]], even_signs(aux >> 7 * i & 127), g.q + 2 * i);
    }
    one_scale(g, odd(f16_at(w.p[0] + b * 2) / 8, aux >> 28), 0);
}

static __device__ void two_odd_scales(float d, unsigned byte, group32 &g)
{
    g.s[0] = odd(d, byte & 15);
    g.s[1] = odd(d, byte >> 4);
    g.m[0] = g.m[1] = 0;
}

static __device__ void decode_iq2_xs(const planes &w, size_t b, int j, group32 &g)
{
    for (int i = 0; i < 4; i++) {
        const unsigned v = u16_at(w.p[1] + b * 64 + 8 * j + 2 * i);
        signed8(cuda_codebooks.iq2_xs[v & 511], even_signs(v >> 9), g.q + 2 * i);
    }
    two_odd_scales(f16_at(w.p[0] + b * 2) / 8, w.p[2][b * 8 + j], g);
}

static __device__ void decode_iq2_s(const planes &w, size_t b, int j, group32 &g)
{
    const uint8_t *low = w.p[1] + b * 32 + 4 * j, *signs = w.p[2] + b * 32 + 4 * j;
    const unsigned high = w.p[3][b * 8 + j];
    for (int i = 0; i < 4; i++) {
        signed8(cuda_codebooks.iq2_s[low[i] | (high >> 2 * i & 3) << 8], signs[i], g.q + 2 * i);
    }
    two_odd_scales(f16_at(w.p[0] + b * 2) / 8, w.p[4][b * 8 + j], g);
}

static __device__ void decode_iq3_xxs(const planes &w, size_t b, int j, group32 &g)
{
    const uint8_t *index = w.p[1] + b * 64 + 8 * j;
    const uint32_t aux = u32_at(w.p[2] + b * 32 + 4 * j);
    for (int i = 0; i < 4; i++) {
        signed8(cuda_codebooks.iq3_xxs[index[2 * i]], cuda_codebooks.iq3_xxs[index[2 * i + 1]],
                even_signs(aux >> 7 * i & 127), g.q + 2 * i);
    }
    one_scale(g, odd(f16_at(w.p[0] + b * 2) / 4, aux >> 28), 0);
}

static __device__ void decode_iq3_s(const planes &w, size_t b, int j, group32 &g)
{
    const uint8_t *low = w.p[1] + b * 64 + 8 * j, *signs = w.p[3] + b * 32 + 4 * j;
    const unsigned high = w.p[2][b * 8 + j];
    for (int i = 0; i < 4; i++) {
        const unsigned bits = high >> 2 * i;
        signed8(cuda_codebooks.iq3_s[low[2 * i] | (bits & 1) << 8],
                cuda_codebooks.iq3_s[low[2 * i + 1] | (bits >> 1 & 1) << 8], signs[i], g.q + 2 * i);
    }
    one_scale(g, odd(f16_at(w.p[0] + b * 2), nibble_at(w.p[4] + b * 4, (unsigned)j)), 0);
}

/* IQ1: -1, 0, 1 with an eighth added or subtracted, all times 8. */
static __device__ void shifted8(uint64_t entry, bool subtract, int *q)
{
    const unsigned add = subtract ? 0xffffffffu : 0x01010101u;
    q[0] = (int)__vadd4((unsigned)(entry << 3) & 0xf8f8f8f8u, add);
    q[1] = (int)__vadd4((unsigned)(entry >> 32 << 3) & 0xf8f8f8f8u, add);
}

static __device__ void decode_iq1_s(const planes &w, size_t b, int j, group32 &g)
{
    const uint8_t *low = w.p[1] + b * 32 + 4 * j;
    const unsigned aux = u16_at(w.p[2] + b * 16 + 2 * j);
    for (int i = 0; i < 4; i++) {
        shifted8(cuda_codebooks.iq1[low[i] | (aux >> 3 * i & 7) << 8], aux >> 15, g.q + 2 * i);
    }
    one_scale(g, odd(f16_at(w.p[0] + b * 2) / 8, aux >> 12 & 7), 0);
}

/* The block's scale is in the upper nibbles of four words with four 3-bit scales each. */
static __device__ void decode_iq1_m(const planes &w, size_t b, int j, group32 &g)
{
    const uint8_t *low = w.p[0] + b * 32 + 4 * j, *high = w.p[1] + b * 16, *p = w.p[2] + b * 8;
    unsigned d16 = 0;
    for (int i = 0; i < 4; i++) {
        d16 |= u16_at(p + 2 * i) >> 12 << 4 * i;
    }
    const float d = __half2float(__ushort_as_half((unsigned short)d16)) / 8;
    for (int i = 0; i < 4; i++) {
        const unsigned aux = nibble_at(high, (unsigned)(4 * j + i));
        shifted8(cuda_codebooks.iq1[low[i] | (aux & 7) << 8], aux >> 3, g.q + 2 * i);
    }
    const unsigned word = u16_at(p + j / 2 * 2);
    for (int i = 0; i < 2; i++) {
        g.s[i] = odd(d, word >> 3 * (2 * (j & 1) + i) & 7);
        g.m[i] = 0;
    }
}

static __device__ void decode_256(const planes &w, uint32_t format, size_t b, int j, group32 &g)
{
    switch (format) {
    case FORMAT_Q2_K:
        decode_q2_k(w, b, j, g);
        break;
    case FORMAT_Q3_K:
        decode_q3_k(w, b, j, g);
        break;
    case FORMAT_IQ4_XS:
        decode_iq4_xs(w, b, j, g);
        break;
    case FORMAT_TQ1_0:
        decode_tq1_0(w, b, j, g);
        break;
    case FORMAT_TQ2_0:
        decode_tq2_0(w, b, j, g);
        break;
    case FORMAT_IQ2_XXS:
        decode_iq2_xxs(w, b, j, g);
        break;
    case FORMAT_IQ2_XS:
        decode_iq2_xs(w, b, j, g);
        break;
    case FORMAT_IQ2_S:
        decode_iq2_s(w, b, j, g);
        break;
    case FORMAT_IQ3_XXS:
        decode_iq3_xxs(w, b, j, g);
        break;
    case FORMAT_IQ3_S:
        decode_iq3_s(w, b, j, g);
        break;
    case FORMAT_IQ1_S:
        decode_iq1_s(w, b, j, g);
        break;
    case FORMAT_IQ1_M:
        decode_iq1_m(w, b, j, g);
        break;
    default:
        one_scale(g, nanf(""), 0);
        break;
    }
}

/* A block has 1 or 8 items, by format. */
struct fmt_any {
    static constexpr int items = 0, n = 1;
    static constexpr bool halves = true, min = true;
    static __device__ __forceinline__ int group_of(int item, int) { return item; }
    static __device__ __noinline__ void decode(const planes &w, uint32_t format, size_t b, int item,
                                               group32 (&g)[1])
    {
        if (!decode_32(w, format, b, g[0])) {
            decode_256(w, format, b, item, g[0]);
        }
    }
};

#endif
