/* Attention of few tokens over a paged cache, split along the context so that one token fills the
 * device. A block has one token, up to ATTN_HEADS heads that share keys, and one part of the
 * context; parts are merged in their order. MLA is the same with one head of keys, whose rows begin
 * with the values.
 *
 * Positions are taken ATTN_TILE at a time: a warp scores positions with its lanes along the
 * elements, then threads divide the elements of the values. */
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "gpu/cuda/attention.cuh"

#define ATTN_THREADS 256
#define ATTN_WARPS   (ATTN_THREADS / 32)
#define ATTN_HEADS   16
#define ATTN_BATCH   4 /* positions that a warp scores together */

static __device__ bool part_is_empty(const cuda_attn_args &p, unsigned t, unsigned part)
{
    const span s = part_of((unsigned)p.position[t], p.window, part, ATTN_PARTS);
    return s.lo >= s.hi;
}

/* Four elements of a row from element i on, zero from n on. vec: rows are multiples of four. */
template <typename T>
static __device__ __forceinline__ float4 load4(const T *row, unsigned i, unsigned n, bool vec);

template <>
__device__ __forceinline__ float4 load4<float>(const float *row, unsigned i, unsigned n, bool vec)
{
    if (i + 4 <= n && vec) {
        return __ldg((const float4 *)(row + i));
    }
    return make_float4(i < n ? row[i] : 0, i + 1 < n ? row[i + 1] : 0, i + 2 < n ? row[i + 2] : 0,
                       i + 3 < n ? row[i + 3] : 0);
}

template <>
__device__ __forceinline__ float4 load4<__half>(const __half *row, unsigned i, unsigned n, bool vec)
{
    if (i + 4 <= n && vec) {
        const int2 v = __ldg((const int2 *)(row + i));
        const float2 a = __half22float2(*(const __half2 *)&v.x);
        const float2 b = __half22float2(*(const __half2 *)&v.y);
        return make_float4(a.x, a.y, b.x, b.y);
    }
    return make_float4(i < n ? __half2float(row[i]) : 0, i + 1 < n ? __half2float(row[i + 1]) : 0,
                       i + 2 < n ? __half2float(row[i + 2]) : 0,
                       i + 3 < n ? __half2float(row[i + 3]) : 0);
}

static __device__ __forceinline__ float as_float(float f)
{
    return f;
}
static __device__ __forceinline__ float as_float(__half h)
{
    return __half2float(h);
}

/* Scores of ATTN_BATCH positions (rows) and H heads, the sums in all lanes' turn: lane 0 writes. */
template <typename T, int H>
static __device__ void score_batch(const float *q, unsigned q_pad, const T *(&row)[ATTN_BATCH],
                                   unsigned n_key, bool vec, float *score, unsigned n_valid)
{
    float acc[H][ATTN_BATCH] = {};
    for (unsigned i = threadIdx.x % 32 * 4; i < q_pad; i += 128) {
        float4 k[ATTN_BATCH];
#pragma unroll
        for (int b = 0; b < ATTN_BATCH; b++) {
            k[b] = load4(row[b], i, n_key, vec);
        }
#pragma unroll
        for (int h = 0; h < H; h++) {
            const float4 v = *(const float4 *)(q + h * q_pad + i);
#pragma unroll
            for (int b = 0; b < ATTN_BATCH; b++) {
                acc[h][b] += v.x * k[b].x + v.y * k[b].y + v.z * k[b].z + v.w * k[b].w;
            }
        }
    }
#pragma unroll
    for (int h = 0; h < H; h++) {
#pragma unroll
        for (int b = 0; b < ATTN_BATCH; b++) {
            const float s = warp_sum(acc[h][b]);
            if (threadIdx.x % 32 == 0 && (unsigned)b < n_valid) {
                score[h * ATTN_TILE + b] = s;
            }
        }
    }
}

struct attn_block {
    const cuda_attn_args &p;
    unsigned t, kv_head, h0, n_head; /* heads [h0, h0 + n_head) */
    const int32_t *pages;
    span part;
};

template <typename T>
static __device__ const T *row_of(const cuda_kv &kv, const void *base, const int32_t *pages,
                                  unsigned kv_head, unsigned position, unsigned row)
{
    const size_t page = (size_t)pages[position / CUDA_KV_PAGE];
    return (const T *)base +
           ((page * kv.n_head_kv + kv_head) * CUDA_KV_PAGE + position % CUDA_KV_PAGE) * row;
}

/* exp(score - max) of a tile in place; *max, *sum go on, *factor is what earlier sums shrink by. A
 * warp a head. */
static __device__ void softmax_tile(float *score, unsigned n, float *max, float *sum, float *factor)
{
    float top = -CUDART_INF_F, add = 0;
    for (unsigned i = threadIdx.x % 32; i < n; i += 32) {
        top = fmaxf(top, score[i]);
    }
    const float next = fmaxf(warp_max(top), *max);
    const float shift = next == -CUDART_INF_F ? 0 : next;
    for (unsigned i = threadIdx.x % 32; i < n; i += 32) {
        score[i] = expf(score[i] - shift);
        add += score[i];
    }
    add = warp_sum(add);
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        *factor = expf(*max - shift);
        *sum = *sum * *factor + add;
        *max = next;
    }
}

/* Values: thread i has elements i % n_thread + j * n_thread, of every n_turn-th position. */
template <typename T, int H, int NV>
static __device__ void add_values(const attn_block &b, const float *score, unsigned at, unsigned n,
                                  unsigned n_thread, unsigned n_turn, float (&acc)[NV][H])
{
    const unsigned e0 = threadIdx.x % n_thread, turn = threadIdx.x / n_thread;
    const cuda_kv &kv = b.p.kv;
    if (turn >= n_turn) {
        return;
    }
    for (unsigned i = turn; i < n; i += n_turn) {
        const T *row = row_of<T>(kv, kv.v, b.pages, b.kv_head, at + i, kv.v_row);
#pragma unroll
        for (int j = 0; j < NV; j++) {
            const unsigned e = e0 + j * n_thread;
            const float v = e < kv.n_value ? as_float(row[e]) : 0;
#pragma unroll
            for (int h = 0; h < H; h++) {
                acc[j][h] += score[h * ATTN_TILE + i] * v;
            }
        }
    }
}

/* Grid: (parts, KV heads * blocks of heads, tokens). */
template <typename T, int H, int NV>
__global__ void __launch_bounds__(ATTN_THREADS) attend(const cuda_attn_args p)
{
    extern __shared__ float shared[];
    __shared__ float score[H * ATTN_TILE], max_of[H], sum_of[H], factor[H];
    const unsigned n_shared = p.n_head / p.kv.n_head_kv, n_block = (n_shared + H - 1) / H;
    const unsigned t = blockIdx.z, n_key = p.kv.n_key, n_value = p.kv.n_value;
    const unsigned kv_head = blockIdx.y / n_block, h0 = blockIdx.y % n_block * H;
    const unsigned n_head = min(H, n_shared - h0), q_pad = (n_key + 127) / 128 * 128;
    const unsigned warp = threadIdx.x / 32, stride = n_value + 2;
    const bool vec = n_key % 4 == 0;
    if (p.position[t] < 0) {
        return;
    }
    if (blockIdx.x > 0 && part_is_empty(p, t, blockIdx.x)) {
        if (threadIdx.x < n_head) {
            const size_t head = (size_t)t * p.n_head + kv_head * n_shared + h0 + threadIdx.x;
            float *none = p.partial + (head * ATTN_PARTS + blockIdx.x) * stride + n_value;
            none[0] = -CUDART_INF_F;
            none[1] = 0;
        }
        return;
    }
    attn_block b = {p,
                    t,
                    kv_head,
                    kv_head * n_shared + h0,
                    n_head,
                    p.kv.table + (size_t)p.seq[t] * p.kv.max_page,
                    part_of((unsigned)p.position[t], p.window, blockIdx.x, ATTN_PARTS)};
    float *q = shared;
    float *out = p.partial + (((size_t)t * p.n_head + b.h0) * ATTN_PARTS + blockIdx.x) * stride;
    const size_t ldo = (size_t)ATTN_PARTS * stride;

    for (unsigned i = threadIdx.x; i < H * q_pad; i += ATTN_THREADS) {
        const unsigned h = i / q_pad, e = i % q_pad;
        q[i] = h < n_head && e < n_key ? p.q[((size_t)t * p.n_head + b.h0 + h) * n_key + e] : 0;
    }
    if (threadIdx.x < H) {
        max_of[threadIdx.x] = -CUDART_INF_F;
        sum_of[threadIdx.x] = 0;
    }
    const unsigned n_thread = min((n_value + 31) / 32 * 32, ATTN_THREADS);
    const unsigned n_turn = ATTN_THREADS / n_thread;
    float acc[NV][H] = {};
    __syncthreads();
    for (unsigned at = b.part.lo; at < b.part.hi;) {
        const unsigned end = min(b.part.hi, (at / ATTN_TILE + 1) * ATTN_TILE), n = end - at;
        for (unsigned i = warp * ATTN_BATCH; i < n; i += ATTN_WARPS * ATTN_BATCH) {
            const T *row[ATTN_BATCH];
#pragma unroll
            for (unsigned j = 0; j < ATTN_BATCH; j++) {
                row[j] = row_of<T>(p.kv, p.kv.k, b.pages, kv_head, at + min(i + j, n - 1), n_key);
            }
            score_batch<T, H>(q, q_pad, row, n_key, vec, score + i, min(n - i, ATTN_BATCH));
        }
        __syncthreads();
        for (unsigned h = warp; h < H; h += ATTN_WARPS) {
            softmax_tile(score + h * ATTN_TILE, n, &max_of[h], &sum_of[h], &factor[h]);
        }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < NV; j++) {
#pragma unroll
            for (int h = 0; h < H; h++) {
                acc[j][h] *= factor[h];
            }
        }
        add_values<T, H, NV>(b, score, at, n, n_thread, n_turn, acc);
        at = end;
        __syncthreads();
    }
    /* turns are added in shared memory, in their order */
    for (unsigned turn = 0; turn < n_turn; turn++) {
        if (threadIdx.x / n_thread == turn) {
#pragma unroll
            for (int j = 0; j < NV; j++) {
                const unsigned e = threadIdx.x % n_thread + j * n_thread;
#pragma unroll
                for (int h = 0; h < H; h++) {
                    if (e < n_value) {
                        float *s = shared + h * n_value + e;
                        *s = turn == 0 ? acc[j][h] : *s + acc[j][h];
                    }
                }
            }
        }
        __syncthreads();
    }
    for (unsigned i = threadIdx.x; i < n_head * n_value; i += ATTN_THREADS) {
        out[i / n_value * ldo + i % n_value] = shared[i];
    }
    if (threadIdx.x < n_head) {
        out[threadIdx.x * ldo + n_value] = max_of[threadIdx.x];
        out[threadIdx.x * ldo + n_value + 1] = sum_of[threadIdx.x];
    }
}

/* Parts of a head in their order, and the sink. A block a head of a token. */
static __global__ void merge(const cuda_attn_args p)
{
    __shared__ float weight[ATTN_PARTS], total;
    const unsigned h = blockIdx.x, t = blockIdx.y, n_value = p.kv.n_value, stride = n_value + 2;
    const float *part = p.partial + ((size_t)t * p.n_head + h) * ATTN_PARTS * stride;
    float *out = p.out + ((size_t)t * p.n_head + h) * n_value;
    if (p.position[t] < 0) {
        return;
    }
    if (threadIdx.x < 32) {
        const float sink = p.sinks != NULL ? p.sinks[h] : -CUDART_INF_F;
        float max = sink, sum = 0;
        for (unsigned i = threadIdx.x; i < ATTN_PARTS; i += 32) {
            max = fmaxf(max, part[i * stride + n_value]);
        }
        max = warp_max(max);
        for (unsigned i = threadIdx.x; i < ATTN_PARTS; i += 32) {
            weight[i] = expf(part[i * stride + n_value] - max);
            sum += weight[i] * part[i * stride + n_value + 1];
        }
        sum = warp_sum(sum) + expf(sink - max);
        if (threadIdx.x == 0) {
            total = sum;
        }
    }
    __syncthreads();
    const span all = part_of((unsigned)p.position[t], p.window, 0, 1);
    const unsigned n_tile = (all.hi + ATTN_TILE - 1) / ATTN_TILE - all.lo / ATTN_TILE;
    const unsigned each = (n_tile + ATTN_PARTS - 1) / ATTN_PARTS, n = (n_tile + each - 1) / each;
    for (unsigned e = threadIdx.x; e < n_value; e += blockDim.x) {
        float v = 0;
#pragma unroll 8
        for (unsigned i = 0; i < n; i++) {
            v += weight[i] * part[i * stride + e];
        }
        out[e] = v / total;
    }
}

extern "C" size_t cuda_attn_partial_floats(unsigned n_head, unsigned n_value)
{
    return (size_t)ATTN_TOKENS * n_head * ATTN_PARTS * (n_value + 2);
}

static unsigned heads_of_block(unsigned n_shared)
{
    return n_shared >= 16 ? 16 : n_shared >= 8 ? 8 : n_shared >= 4 ? 4 : 1;
}

template <typename T, int H, int NV> static void launch(const cuda_attn_args *p, cudaStream_t s)
{
    const unsigned n_shared = p->n_head / p->kv.n_head_kv, n_block = (n_shared + H - 1) / H;
    const unsigned q_pad = (p->kv.n_key + 127) / 128 * 128;
    const size_t bytes =
        (size_t)H * (q_pad > p->kv.n_value ? q_pad : p->kv.n_value) * sizeof(float);
    const dim3 grid(ATTN_PARTS, p->kv.n_head_kv * n_block, p->n);
    if (bytes > 40 * 1024) {
        cudaFuncSetAttribute(attend<T, H, NV>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)bytes);
    }
    attend<T, H, NV><<<grid, ATTN_THREADS, bytes, s>>>(*p);
}

template <typename T, int NV> static void launch_heads(const cuda_attn_args *p, cudaStream_t s)
{
    switch (heads_of_block(p->n_head / p->kv.n_head_kv)) {
    case 16:
        launch<T, 16, NV>(p, s);
        break;
    case 8:
        launch<T, 8, NV>(p, s);
        break;
    case 4:
        launch<T, 4, NV>(p, s);
        break;
    default:
        launch<T, 1, NV>(p, s);
        break;
    }
}

static void decode_some(const cuda_attn_args *p, cudaStream_t s)
{
    if (attn_mla_partials(p, s)) {
        /* done */
    } else if (p->kv.n_value > ATTN_THREADS) {
        p->kv.half ? launch_heads<__half, 2>(p, s) : launch_heads<float, 2>(p, s);
    } else {
        p->kv.half ? launch_heads<__half, 1>(p, s) : launch_heads<float, 1>(p, s);
    }
    const unsigned n_thread = p->kv.n_value > 128 ? 256 : 64;
    merge<<<dim3(p->n_head, p->n), n_thread, 0, s>>>(*p);
}

extern "C" void cuda_attn_decode(const cuda_attn_args *p, cudaStream_t s)
{
    for (unsigned t = 0; t < p->n; t += ATTN_TOKENS) {
        cuda_attn_args part = *p;
        part.n = p->n - t < ATTN_TOKENS ? p->n - t : ATTN_TOKENS;
        part.q += (size_t)t * p->n_head * p->kv.n_key;
        part.out += (size_t)t * p->n_head * p->kv.n_value;
        part.seq += t;
        part.position += t;
        decode_some(&part, s);
    }
}

/* ------------------------------------------------------------------ cache rows */

template <typename T> static __device__ T from_float(float f);
template <> __device__ float from_float<float>(float f)
{
    return f;
}
template <> __device__ __half from_float<__half>(float f)
{
    return __float2half_rn(f);
}

template <typename T>
__global__ void store(const cuda_kv kv, void *base, unsigned n_elem, const float *rows, size_t ld,
                      const int32_t *seq, const int32_t *position)
{
    const unsigned t = blockIdx.y, h = blockIdx.x;
    if (position[t] < 0) {
        return;
    }
    const int32_t *pages = kv.table + (size_t)seq[t] * kv.max_page;
    T *row = (T *)row_of<T>(kv, base, pages, h, (unsigned)position[t], n_elem);
    for (unsigned i = threadIdx.x; i < n_elem; i += blockDim.x) {
        row[i] = from_float<T>(rows[t * ld + h * n_elem + i]);
    }
}

extern "C" void cuda_kv_store(const cuda_kv *kv, bool values, const float *rows, size_t ld,
                              const int32_t *seq, const int32_t *position, unsigned n,
                              cudaStream_t s)
{
    const unsigned n_elem = values ? kv->v_row : kv->n_key;
    void *base = values ? kv->v : kv->k;
    const dim3 grid(kv->n_head_kv, n);
    if (n > 0 && kv->half) {
        store<__half><<<grid, 128, 0, s>>>(*kv, base, n_elem, rows, ld, seq, position);
    } else if (n > 0) {
        store<float><<<grid, 128, 0, s>>>(*kv, base, n_elem, rows, ld, seq, position);
    }
}
