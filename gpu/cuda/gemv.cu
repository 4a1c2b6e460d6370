/* Products of few tokens: bound by reading the weights once. A warp has GEMV_ROWS rows; its lanes
 * take items (32 or 64 elements) of them in turn, and where rows are few, several warps divide the
 * items of a row. That division depends on the matrix alone, so the sum of a row is formed in the
 * same order for every number of tokens. */
#include "gpu/cuda/decode-any.cuh"
#include "gpu/cuda/internal.cuh"
#include "gpu/cuda/tables.h"

#include <string.h>

extern "C" cudaError_t cuda_tables_init(void)
{
    codebooks *c = new codebooks;
    memcpy(c->iq2_xxs, format_grid_iq2_xxs, sizeof c->iq2_xxs);
    memcpy(c->iq2_xs, format_grid_iq2_xs, sizeof c->iq2_xs);
    memcpy(c->iq2_s, format_grid_iq2_s, sizeof c->iq2_s);
    memcpy(c->iq3_xxs, format_grid_iq3_xxs, sizeof c->iq3_xxs);
    memcpy(c->iq3_s, format_grid_iq3_s, sizeof c->iq3_s);
    memcpy(c->iq1, format_grid_iq1, sizeof c->iq1);
    const cudaError_t e = cudaMemcpyToSymbol(cuda_codebooks, c, sizeof *c);
    delete c;
    return e;
}

#define GEMV_ROWS  2
#define GEMV_WARPS 4

struct gemv_args {
    planes w;
    uint32_t format;
    unsigned n_row, n_block, items; /* items of a block */
    const float *xf;
    const int8_t *xq;
    const cuda_group *xg;
    const int32_t *mat;
    size_t ldx, x_step, ldy, y_step;
    unsigned x_share;
    float *y;
};

/* 32 weights and 32 int8 activations. */
template <class F>
static __device__ __forceinline__ float dot_q8(const group32 &w, const int4 &a, const int4 &b,
                                               const cuda_group &g)
{
    int d0 = __dp4a(w.q[0], a.x, 0), d1 = __dp4a(w.q[4], b.x, 0);
    d0 = __dp4a(w.q[1], a.y, d0), d1 = __dp4a(w.q[5], b.y, d1);
    d0 = __dp4a(w.q[2], a.z, d0), d1 = __dp4a(w.q[6], b.z, d1);
    d0 = __dp4a(w.q[3], a.w, d0), d1 = __dp4a(w.q[7], b.w, d1);
    float sum = F::halves ? w.s[0] * (float)d0 + w.s[1] * (float)d1 : w.s[0] * (float)(d0 + d1);
    if (F::min) {
        sum -= F::halves ? w.m[0] * (float)g.s[0] + w.m[1] * (float)g.s[1]
                         : w.m[0] * (float)(g.s[0] + g.s[1]);
    }
    return g.d * sum;
}

/* 32 weights and 32 floats. */
static __device__ __forceinline__ float dot_f32(const group32 &w, const float *x)
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float4 v = __ldg((const float4 *)x + i);
        const float s = w.s[i / 4], m = w.m[i / 4];
        sum += (s * (float)(int8_t)w.q[i] - m) * v.x;
        sum += (s * (float)(int8_t)(w.q[i] >> 8) - m) * v.y;
        sum += (s * (float)(int8_t)(w.q[i] >> 16) - m) * v.z;
        sum += (s * (float)(w.q[i] >> 24) - m) * v.w;
    }
    return sum;
}

template <class F, bool EXACT> struct weights_quantized {
    static constexpr int n_elem = 32 * F::n;
    static constexpr bool few = EXACT || F::items == 0; /* kernels: for 1 and 4 tokens only */
    template <int NT, int R>
    static __device__ __forceinline__ void add(const gemv_args &p, const size_t (&row)[R],
                                               unsigned i, size_t x0, float (&acc)[R][NT])
    {
        const unsigned items = F::items > 0 ? F::items : p.items;
        const unsigned ib = i / items, item = i % items;
        group32 g[R][F::n];
#pragma unroll
        for (int r = 0; r < R; r++) {
            F::decode(p.w, p.format, row[r] * p.n_block + ib, (int)item, g[r]);
        }
        const unsigned n_group = F::items == 1 ? 1 : items * F::n;
#pragma unroll
        for (int j = 0; j < F::n; j++) {
            const size_t k = ((size_t)ib * n_group + F::group_of((int)item, j)) * 32;
#pragma unroll
            for (int t = 0; t < NT; t++) {
                const size_t at = x0 + t * p.ldx + k;
                if (EXACT) {
#pragma unroll
                    for (int r = 0; r < R; r++) {
                        acc[r][t] += dot_f32(g[r][j], p.xf + at);
                    }
                } else {
                    const int4 a = __ldg((const int4 *)(p.xq + at));
                    const int4 b = __ldg((const int4 *)(p.xq + at) + 1);
                    const cuda_group xg = p.xg[at / 32];
#pragma unroll
                    for (int r = 0; r < R; r++) {
                        acc[r][t] += dot_q8<F>(g[r][j], a, b, xg);
                    }
                }
            }
        }
    }
};

/* ------------------------------------------------------------------ weights that are floats */

static __device__ __forceinline__ void eight(const uint8_t *p, uint32_t format, float (&w)[8])
{
    const int4 v = __ldg((const int4 *)p);
    const unsigned u[4] = {(unsigned)v.x, (unsigned)v.y, (unsigned)v.z, (unsigned)v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (format == FORMAT_F16) {
            const float2 f = __half22float2(*(const __half2 *)&u[i]);
            w[2 * i] = f.x, w[2 * i + 1] = f.y;
        } else {
            w[2 * i] = __uint_as_float(u[i] << 16);
            w[2 * i + 1] = __uint_as_float(u[i] & 0xffff0000u);
        }
    }
}

/* F32, F16 and BF16, eight elements at a time; rows whose length is no multiple of eight end in
 * single elements. */
struct weights_float {
    static constexpr int n_elem = 8;
    static constexpr bool few = false;
    static __device__ __forceinline__ float one(const gemv_args &p, size_t at)
    {
        if (p.format == FORMAT_F32) {
            return ((const float *)p.w.p[0])[at];
        }
        return p.format == FORMAT_F16
                   ? __half2float(((const __half *)p.w.p[0])[at])
                   : __uint_as_float((unsigned)((const uint16_t *)p.w.p[0])[at] << 16);
    }
    template <int NT, int R>
    static __device__ __forceinline__ void add(const gemv_args &p, const size_t (&row)[R],
                                               unsigned i, size_t x0, float (&acc)[R][NT])
    {
        const unsigned k0 = i * 8, n = p.n_block - k0 < 8 ? p.n_block - k0 : 8;
        const bool whole = p.n_block % 8 == 0 && (p.ldx | x0) % 4 == 0;
        float w[R][8];
#pragma unroll
        for (int r = 0; r < R; r++) {
            const size_t at = row[r] * p.n_block + k0;
            if (whole && p.format == FORMAT_F32) {
                const float4 a = __ldg((const float4 *)p.w.p[0] + at / 4);
                const float4 b = __ldg((const float4 *)p.w.p[0] + at / 4 + 1);
                w[r][0] = a.x, w[r][1] = a.y, w[r][2] = a.z, w[r][3] = a.w;
                w[r][4] = b.x, w[r][5] = b.y, w[r][6] = b.z, w[r][7] = b.w;
            } else if (whole) {
                eight(p.w.p[0] + at * 2, p.format, w[r]);
            } else {
#pragma unroll
                for (unsigned j = 0; j < 8; j++) {
                    w[r][j] = j < n ? one(p, at + j) : 0;
                }
            }
        }
#pragma unroll
        for (int t = 0; t < NT; t++) {
            const float *x = p.xf + x0 + t * p.ldx + k0;
            float v[8];
            if (whole) {
                const float4 a = __ldg((const float4 *)x), b = __ldg((const float4 *)x + 1);
                v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
                v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
            } else {
#pragma unroll
                for (unsigned j = 0; j < 8; j++) {
                    v[j] = j < n ? __ldg(x + j) : 0;
                }
            }
#pragma unroll
            for (int r = 0; r < R; r++) {
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    acc[r][t] += w[r][j] * v[j];
                }
            }
        }
    }
};

/* ------------------------------------------------------------------ the kernel */

/* Block: (lanes that divide a row, warps that do, sets of rows). Grid: (blocks of rows, groups).
 * Rows of few items take part of a warp only. */
template <class W, int NT>
__global__ void __launch_bounds__(32 * GEMV_WARPS) gemv(const gemv_args p, unsigned n_item)
{
    __shared__ float sum[GEMV_WARPS][GEMV_ROWS][NT];
    const unsigned group = blockIdx.y, lanes = blockDim.x;
    const int mat = p.mat != NULL ? p.mat[group] : (int)group;
    const unsigned row0 = (blockIdx.x * blockDim.z + threadIdx.z) * GEMV_ROWS;
    const size_t x0 = group / p.x_share * p.x_step;
    float acc[GEMV_ROWS][NT] = {};
    size_t row[GEMV_ROWS];
    if (mat < 0) {
        return;
    }
#pragma unroll
    for (int r = 0; r < GEMV_ROWS; r++) {
        row[r] = (size_t)mat * p.n_row + min(row0 + r, p.n_row - 1);
    }
    if (row0 < p.n_row) {
        for (unsigned i = threadIdx.y * lanes + threadIdx.x; i < n_item; i += lanes * blockDim.y) {
            W::add(p, row, i, x0, acc);
        }
    }
#pragma unroll
    for (int r = 0; r < GEMV_ROWS; r++) {
#pragma unroll
        for (int t = 0; t < NT; t++) {
            float v = acc[r][t];
            for (unsigned i = lanes / 2; i > 0; i /= 2) {
                v += __shfl_xor_sync(0xffffffffu, v, i);
            }
            acc[r][t] = v;
            if (threadIdx.x == 0 && lanes == 32) {
                sum[threadIdx.z * blockDim.y + threadIdx.y][r][t] = v;
            }
        }
    }
    if (lanes < 32) {
#pragma unroll
        for (int i = 0; i < GEMV_ROWS * NT; i++) {
            if (threadIdx.x == i % lanes && row0 + i % GEMV_ROWS < p.n_row) {
                p.y[i / GEMV_ROWS * p.ldy + group * p.y_step + row0 + i % GEMV_ROWS] =
                    acc[i % GEMV_ROWS][i / GEMV_ROWS];
            }
        }
        return;
    }
    __syncthreads();
    for (unsigned i = threadIdx.y * 32 + threadIdx.x; i < GEMV_ROWS * NT; i += 32 * blockDim.y) {
        const unsigned r = i % GEMV_ROWS, t = i / GEMV_ROWS;
        float v = 0;
        for (unsigned iw = 0; iw < blockDim.y; iw++) {
            v += sum[threadIdx.z * blockDim.y + iw][r][t];
        }
        if (row0 + r < p.n_row) {
            p.y[t * p.ldy + group * p.y_step + row0 + r] = v;
        }
    }
}

/* Enough warps to fill the device: rows are divided where there are too few of them. */
static unsigned warps_of_row(const cuda_matrix *w, unsigned n_item, unsigned n_group)
{
    const size_t n_warp = (size_t)(w->n_row + GEMV_ROWS - 1) / GEMV_ROWS * n_group;
    unsigned n = 1;
    while (n < GEMV_WARPS && n_item >= 64 * n && n_warp * n < 8192) {
        n *= 2;
    }
    return n;
}

/* As many of n_token tokens as there is a kernel for; returns how many. */
template <class W>
static unsigned launch(const gemv_args &p, const cuda_product *c, unsigned n_token, cudaStream_t s)
{
    const unsigned k = c->w->k, n_item = (k + W::n_elem - 1) / W::n_elem;
    const unsigned split = warps_of_row(c->w, n_item, c->mat != NULL ? 8 : c->n_group);
    unsigned lanes = 32;
    while (lanes > 4 && lanes / 2 >= n_item) {
        lanes /= 2;
    }
    const dim3 block(lanes, split, GEMV_WARPS / split * (32 / lanes));
    const unsigned n_rows = block.z * GEMV_ROWS;
    const dim3 grid((p.n_row + n_rows - 1) / n_rows, c->n_group);
    if (n_token >= 8 && !W::few) {
        if constexpr (!W::few) {
            gemv<W, 8><<<grid, block, 0, s>>>(p, n_item);
        }
        return 8;
    }
    if (n_token >= 4) {
        gemv<W, 4><<<grid, block, 0, s>>>(p, n_item);
        return 4;
    }
    if (n_token >= 2 && !W::few) {
        if constexpr (!W::few) {
            gemv<W, 2><<<grid, block, 0, s>>>(p, n_item);
        }
        return 2;
    }
    gemv<W, 1><<<grid, block, 0, s>>>(p, n_item);
    return 1;
}

static planes planes_of(const cuda_matrix *w)
{
    planes p;
    for (int i = 0; i < CUDA_MAX_PLANE; i++) {
        p.p[i] = w->plane[i];
    }
    return p;
}

static bool is_float(uint32_t format)
{
    return format == FORMAT_F32 || format == FORMAT_F16 || format == FORMAT_BF16;
}

/* Calls f with the decoder of a format that is not of floats. */
template <class Fn> static auto with_decoder(uint32_t format, const Fn &f)
{
    switch (format) {
    case FORMAT_Q8_0:
        return f(fmt_q8_0{});
    case FORMAT_Q4_K:
        return f(fmt_q4_k{});
    case FORMAT_Q5_K:
        return f(fmt_q5_k{});
    case FORMAT_Q6_K:
        return f(fmt_q6_k{});
    case FORMAT_MXFP4:
        return f(fmt_mxfp4{});
    default:
        return f(fmt_any{});
    }
}

template <class F>
static unsigned launch_quantized(const gemv_args &p, const cuda_product *c, unsigned n_token,
                                 cudaStream_t s)
{
    return c->exact ? launch<weights_quantized<F, true>>(p, c, n_token, s)
                    : launch<weights_quantized<F, false>>(p, c, n_token, s);
}

static unsigned launch_format(const gemv_args &p, const cuda_product *c, unsigned n, cudaStream_t s)
{
    if (is_float(c->w->format)) {
        return launch<weights_float>(p, c, n, s);
    }
    return with_decoder(c->w->format, [&](auto decoder) {
        return launch_quantized<decltype(decoder)>(p, c, n, s);
    });
}

extern "C" void cuda_gemv(const cuda_product *c, cudaStream_t s)
{
    for (unsigned t = 0; t < c->n_token;) {
        gemv_args p = {};
        p.w = planes_of(c->w);
        p.format = c->w->format;
        p.n_row = c->w->n_row;
        p.n_block = c->w->n_block;
        p.items = cuda_block_elems(c->w->format) / 32;
        p.xf = c->x.f == NULL ? NULL : c->x.f + t * c->ldx;
        p.xq = c->x.q == NULL ? NULL : c->x.q + t * c->ldx;
        p.xg = c->x.g == NULL ? NULL : c->x.g + t * c->ldx / 32;
        p.mat = c->mat;
        p.ldx = c->ldx, p.x_step = c->x_step;
        p.ldy = c->ldy, p.y_step = c->y_step;
        p.x_share = c->x_share > 0 ? c->x_share : 1;
        p.y = c->y + t * c->ldy;
        t += launch_format(p, c, c->n_token - t, s);
    }
}

/* ------------------------------------------------------------------ dequantization */

template <typename T> static __device__ T to(float f);
template <> __device__ float to<float>(float f)
{
    return f;
}
template <> __device__ __half to<__half>(float f)
{
    return __float2half_rn(f);
}

/* A thread an item; out [rows, k] from block b0 on. */
template <class F, typename T>
__global__ void dequant(planes w, uint32_t format, size_t b0, size_t n_item, unsigned items, T *out)
{
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n_item) {
        return;
    }
    const size_t ib = i / items;
    const int item = (int)(i % items);
    group32 g[F::n];
    F::decode(w, format, b0 + ib, item, g);
#pragma unroll
    for (int j = 0; j < F::n; j++) {
        __align__(16) T v[32];
#pragma unroll
        for (int e = 0; e < 32; e++) {
            const int q = (int8_t)(g[j].q[e / 4] >> 8 * (e % 4));
            v[e] = to<T>(g[j].s[e / 16] * (float)q - g[j].m[e / 16]);
        }
        int4 *o = (int4 *)(out + (ib * items * F::n + F::group_of(item, j)) * 32);
#pragma unroll
        for (int e = 0; e < (int)(sizeof v / sizeof(int4)); e++) {
            o[e] = ((const int4 *)v)[e];
        }
    }
}

template <typename T>
__global__ void convert(planes w, uint32_t format, size_t at, size_t n, T *out)
{
    gemv_args p = {};
    p.w = w;
    p.format = format;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        out[i] = to<T>(weights_float::one(p, at + i));
    }
}

template <class F>
static void dequant_format(const cuda_matrix *w, const planes &p, size_t row0, size_t n_row,
                           bool half, void *out, cudaStream_t s)
{
    const unsigned items = F::items > 0 ? F::items : cuda_block_elems(w->format) / 32;
    const size_t n = n_row * w->n_block * items, b0 = row0 * w->n_block;
    const unsigned grid = (unsigned)((n + 127) / 128);
    if (half) {
        dequant<F, __half><<<grid, 128, 0, s>>>(p, w->format, b0, n, items, (__half *)out);
    } else {
        dequant<F, float><<<grid, 128, 0, s>>>(p, w->format, b0, n, items, (float *)out);
    }
}

extern "C" void cuda_dequant(const cuda_matrix *w, size_t row0, size_t n_row, bool half, void *out,
                             cudaStream_t s)
{
    const planes p = planes_of(w);
    const size_t n = n_row * w->k;
    const unsigned grid = (unsigned)min((n + 255) / 256, (size_t)4096);
    if (!is_float(w->format)) {
        with_decoder(w->format, [&](auto decoder) {
            dequant_format<decltype(decoder)>(w, p, row0, n_row, half, out, s);
        });
    } else if (half) {
        convert<<<grid, 256, 0, s>>>(p, w->format, row0 * w->k, n, (__half *)out);
    } else {
        convert<<<grid, 256, 0, s>>>(p, w->format, row0 * w->k, n, (float *)out);
    }
}

/* x[t] = scale * row ids[t], 256 threads a token */
template <class F>
__global__ void embed(planes w, uint32_t format, unsigned k, unsigned n_block, unsigned items,
                      const int32_t *ids, float scale, float *x)
{
    const size_t row = (size_t)ids[blockIdx.x];
    float *out = x + (size_t)blockIdx.x * k;
    for (unsigned i = threadIdx.x; i < n_block * items; i += blockDim.x) {
        const unsigned ib = i / items;
        const int item = (int)(i % items);
        group32 g[F::n];
        F::decode(w, format, row * n_block + ib, item, g);
        for (int j = 0; j < F::n; j++) {
            float *o = out + (ib * items * F::n + F::group_of(item, j)) * 32;
            for (int e = 0; e < 32; e++) {
                const int q = (int8_t)(g[j].q[e / 4] >> 8 * (e % 4));
                o[e] = scale * (g[j].s[e / 16] * (float)q - g[j].m[e / 16]);
            }
        }
    }
}

static __global__ void embed_float(planes w, uint32_t format, unsigned k, const int32_t *ids,
                                   float scale, float *x)
{
    gemv_args p = {};
    p.w = w;
    p.format = format;
    for (unsigned i = threadIdx.x; i < k; i += blockDim.x) {
        const size_t at = (size_t)ids[blockIdx.x] * k + i;
        x[(size_t)blockIdx.x * k + i] = scale * weights_float::one(p, at);
    }
}

template <class F>
static void embed_format(const cuda_matrix *w, const planes &p, const int32_t *ids, unsigned n,
                         float scale, float *x, cudaStream_t s)
{
    const unsigned items = F::items > 0 ? F::items : cuda_block_elems(w->format) / 32;
    embed<F><<<n, 256, 0, s>>>(p, w->format, w->k, w->n_block, items, ids, scale, x);
}

extern "C" void cuda_embed(const cuda_matrix *w, const int32_t *ids, unsigned n, float scale,
                           float *x, cudaStream_t s)
{
    const planes p = planes_of(w);
    if (is_float(w->format)) {
        embed_float<<<n, 256, 0, s>>>(p, w->format, w->k, ids, scale, x);
        return;
    }
    with_decoder(w->format, [&](auto decoder) {
        embed_format<decltype(decoder)>(w, p, ids, n, scale, x, s);
    });
}
