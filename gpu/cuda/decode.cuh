/* What the bits of a quantized block mean, on the GPU: 32 elements at a time as packed int8 with
 * their scales. Everything that reads weights is made of this: products with int8 activations,
 * products with floats, dequantization. kernels/format-decode.c is the statement of the formats. */
#ifndef NUMOE_GPU_CUDA_DECODE_CUH
#define NUMOE_GPU_CUDA_DECODE_CUH

#include <cuda_fp16.h>

#include "gpu/cuda/kernels.h"
#include "kernels/format.h"

/* x[i] = s[i / 16] * q[i] - m[i / 16], q packed four to a word. Formats with unsigned quants have
 * their offset in m, where it costs nothing: sums of activations are at hand. */
struct group32 {
    int q[8];
    float s[2], m[2];
};

struct planes {
    const uint8_t *p[CUDA_MAX_PLANE];
};

/* ------------------------------------------------------------------ bits */

static __device__ __forceinline__ float f16_at(const uint8_t *p)
{
    return __half2float(*(const __half *)p);
}

static __device__ __forceinline__ int lane_select(int mask, int a, int b)
{
    return (a & mask) | (b & ~mask);
}

/* Bit i of `bits` (4 of them) to bit 0 of byte i. */
static __device__ __forceinline__ int spread4(unsigned bits)
{
    return (int)(((bits & 15) * 0x00204081u) & 0x01010101u);
}

static __device__ __forceinline__ void one_scale(group32 &g, float s, float m)
{
    g.s[0] = g.s[1] = s;
    g.m[0] = g.m[1] = m;
}

/* Low and high nibbles of 16 bytes: elements i and i + 16. */
static __device__ __forceinline__ void nibbles16(const int4 &v, group32 &g)
{
    const int w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        g.q[i] = w[i] & 0x0f0f0f0f;
        g.q[i + 4] = (w[i] >> 4) & 0x0f0f0f0f;
    }
}

/* The eight nibbles of v through a table of 16 int8 (four words): even ones (low nibbles of the
 * bytes) to lo, odd ones to hi. */
static __device__ __forceinline__ void look_up16(int v, const int4 &t, int &lo, int &hi)
{
    unsigned r[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const unsigned index = ((unsigned)v >> (16 * i)) & 0xffff;
        const unsigned a = __byte_perm(t.x, t.y, index & 0x7777);
        const unsigned b = __byte_perm(t.z, t.w, index & 0x7777);
        r[i] = __byte_perm(a, b, 0x3210 | ((index & 0x8888) >> 1));
    }
    lo = (int)__byte_perm(r[0], r[1], 0x6420);
    hi = (int)__byte_perm(r[0], r[1], 0x7531);
}

static __device__ __forceinline__ void table16(const int4 &v, const int4 &t, group32 &g)
{
    look_up16(v.x, t, g.q[0], g.q[4]);
    look_up16(v.y, t, g.q[1], g.q[5]);
    look_up16(v.z, t, g.q[2], g.q[6]);
    look_up16(v.w, t, g.q[3], g.q[7]);
}

/* Tables of kernels/format-tables.c as words, least byte first: E2M1 doubled, and IQ4's levels. */
#define FP4_TABLE make_int4(0x03020100, 0x0c080604, (int)0xfdfeff00, (int)0xf4f8fafc)
#define IQ4_TABLE make_int4((int)0xbfad9881, (int)0xf6eaddcf, 0x26190d01, 0x71594535)

/* 2^(e - 127) / 2 */
static __device__ __forceinline__ float e8m0_half(unsigned e)
{
    return __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}

/* Q4_K, Q5_K: scale and minimum of sub-block j from the 16 bytes d, dmin, scales[12]. */
static __device__ __forceinline__ void scale_6bit(const int4 &head, int j, float &s, float &m)
{
    const float2 d = __half22float2(*(const __half2 *)&head.x);
    const int at = 8 * (j & 3);
    const unsigned a = (unsigned)head.y >> at, b = (unsigned)head.z >> at;
    const unsigned c = (unsigned)head.w >> at;
    const unsigned scale = j < 4 ? a & 63 : (c & 15) | (a & 0xc0) >> 2;
    const unsigned min = j < 4 ? b & 63 : (c >> 4 & 15) | (b & 0xc0) >> 2;
    s = d.x * (float)scale;
    m = d.y * (float)min;
}

/* ------------------------------------------------------------------ fast formats */

/* A lane's unit of work is an item: `n` groups whose bytes lie together. */

struct fmt_q8_0 {
    static constexpr int items = 1, n = 1;
    static constexpr bool halves = false, min = false;
    static __device__ __forceinline__ int group_of(int, int) { return 0; }
    static __device__ __forceinline__ void decode(const planes &w, uint32_t, size_t b, int,
                                                  group32 (&g)[1])
    {
        const int4 *q = (const int4 *)(w.p[1] + b * 32);
        const int4 v0 = __ldg(q), v1 = __ldg(q + 1);
        g[0].q[0] = v0.x, g[0].q[1] = v0.y, g[0].q[2] = v0.z, g[0].q[3] = v0.w;
        g[0].q[4] = v1.x, g[0].q[5] = v1.y, g[0].q[6] = v1.z, g[0].q[7] = v1.w;
        one_scale(g[0], f16_at(w.p[0] + b * 2), 0);
    }
};

struct fmt_mxfp4 {
    static constexpr int items = 1, n = 1;
    static constexpr bool halves = false, min = false;
    static __device__ __forceinline__ int group_of(int, int) { return 0; }
    static __device__ __forceinline__ void decode(const planes &w, uint32_t, size_t b, int,
                                                  group32 (&g)[1])
    {
        table16(__ldg((const int4 *)(w.p[1] + b * 16)), FP4_TABLE, g[0]);
        one_scale(g[0], e8m0_half(__ldg(w.p[0] + b)), 0);
    }
};

/* 32 bytes: groups 2 * item (low nibbles) and 2 * item + 1. */
struct fmt_q4_k {
    static constexpr int items = 4, n = 2;
    static constexpr bool halves = false, min = true;
    static __device__ __forceinline__ int group_of(int item, int i) { return 2 * item + i; }
    static __device__ __forceinline__ void decode(const planes &w, uint32_t, size_t b, int item,
                                                  group32 (&g)[2])
    {
        const int4 head = __ldg((const int4 *)(w.p[0] + b * 16));
        const int4 *q = (const int4 *)(w.p[1] + b * 128 + item * 32);
        const int4 v0 = __ldg(q), v1 = __ldg(q + 1);
        const int v[8] = {v0.x, v0.y, v0.z, v0.w, v1.x, v1.y, v1.z, v1.w};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            g[0].q[i] = v[i] & 0x0f0f0f0f;
            g[1].q[i] = (v[i] >> 4) & 0x0f0f0f0f;
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float s, m;
            scale_6bit(head, 2 * item + i, s, m);
            one_scale(g[i], s, m);
        }
    }
};

struct fmt_q5_k {
    static constexpr int items = 4, n = 2;
    static constexpr bool halves = false, min = true;
    static __device__ __forceinline__ int group_of(int item, int i) { return 2 * item + i; }
    static __device__ __forceinline__ void decode(const planes &w, uint32_t, size_t b, int item,
                                                  group32 (&g)[2])
    {
        const int4 head = __ldg((const int4 *)(w.p[0] + b * 16));
        const int4 *h = (const int4 *)(w.p[1] + b * 32);
        const int4 *q = (const int4 *)(w.p[2] + b * 128 + item * 32);
        const int4 h0 = __ldg(h), h1 = __ldg(h + 1), v0 = __ldg(q), v1 = __ldg(q + 1);
        const int v[8] = {v0.x, v0.y, v0.z, v0.w, v1.x, v1.y, v1.z, v1.w};
        const int high[8] = {h0.x, h0.y, h0.z, h0.w, h1.x, h1.y, h1.z, h1.w};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int bits = high[i] >> (2 * item);
            g[0].q[i] = (v[i] & 0x0f0f0f0f) | ((bits & 0x01010101) << 4);
            g[1].q[i] = ((v[i] >> 4) & 0x0f0f0f0f) | ((bits & 0x02020202) << 3);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float s, m;
            scale_6bit(head, 2 * item + i, s, m);
            one_scale(g[i], s, m);
        }
    }
};

/* 32 bytes of low bits: groups p and p + 2 of the half block, p = item % 2. */
struct fmt_q6_k {
    static constexpr int items = 4, n = 2;
    static constexpr bool halves = true, min = true;
    static __device__ __forceinline__ int group_of(int item, int i)
    {
        return item / 2 * 4 + item % 2 + 2 * i;
    }
    static __device__ __forceinline__ void decode(const planes &w, uint32_t, size_t b, int item,
                                                  group32 (&g)[2])
    {
        const int4 *q = (const int4 *)(w.p[0] + b * 128 + item * 32);
        const int4 *h = (const int4 *)(w.p[1] + b * 64 + item / 2 * 32);
        const int4 h0 = __ldg(h), h1 = __ldg(h + 1), v0 = __ldg(q), v1 = __ldg(q + 1);
        const int v[8] = {v0.x, v0.y, v0.z, v0.w, v1.x, v1.y, v1.z, v1.w};
        const int high[8] = {h0.x, h0.y, h0.z, h0.w, h1.x, h1.y, h1.z, h1.w};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int bits = high[i] >> (2 * (item & 1));
            g[0].q[i] = (v[i] & 0x0f0f0f0f) | ((bits & 0x03030303) << 4);
            g[1].q[i] = ((v[i] >> 4) & 0x0f0f0f0f) | (bits & 0x30303030);
        }
        const float d = f16_at(w.p[3] + b * 2);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int8_t *scale = (const int8_t *)w.p[2] + b * 16 + 2 * group_of(item, i);
            const char2 two = __ldg((const char2 *)scale);
            g[i].s[0] = d * (float)two.x;
            g[i].s[1] = d * (float)two.y;
            g[i].m[0] = 32 * g[i].s[0];
            g[i].m[1] = 32 * g[i].s[1];
        }
    }
};

/* ------------------------------------------------------------------ all others */

struct fmt_any; /* decode-any.cuh */

#endif
