/* Latent attention of few tokens on tensor cores, for the sizes that all large models with it have:
 * rows of 576 halves, the first 512 of which are the values. All heads share the rows, so a block
 * of 32 heads is a matrix, and both products are matrix products: S = Q K^T, O = P K.
 *
 * A block has one token, 32 heads and one part of the context (part_of), a page of it at a time:
 * the next page is on its way while this one is computed with, where there is shared memory for
 * two. Warp w has heads 16 (w % 2) .., of S positions 16 (w / 2) .., of O columns 128 (w / 2) ...
 */
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "gpu/cuda/attention.cuh"

#define KEY      576
#define VALUE    512
#define HEADS    32
#define THREADS  256
#define LD       (KEY + 8) /* halves: rows fall on different banks */
#define P_LD     (ATTN_TILE + 8)
#define N_COLUMN (VALUE / 4) /* of O, of a warp */

struct shared_mla {
    __half q[HEADS][LD];
    __half p[HEADS][P_LD];
    float max[4][HEADS], sum[4][HEADS];
};
typedef __half page[ATTN_TILE][LD];

static __device__ __forceinline__ unsigned address(const void *p)
{
    return (unsigned)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ void load4(unsigned (&r)[4], const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address(p)));
}

static __device__ __forceinline__ void load4_turned(unsigned (&r)[4], const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address(p)));
}

/* c [16, 8] += a [16, 16] b [16, 8] */
static __device__ __forceinline__ void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                                unsigned b1)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

/* Rows [lo, hi) of a page, zeros for the others. */
static __device__ void fetch(const cuda_attn_args &p, const int32_t *pages, unsigned tile,
                             const span &part, page &to)
{
    const __half *from = (const __half *)p.kv.k + (size_t)pages[tile] * ATTN_TILE * KEY;
    for (unsigned i = threadIdx.x; i < ATTN_TILE * KEY / 8; i += THREADS) {
        const unsigned r = i / (KEY / 8), c = i % (KEY / 8) * 8, at = tile * ATTN_TILE + r;
        const unsigned bytes = at >= part.lo && at < part.hi ? 16 : 0;
#if __CUDA_ARCH__ >= 800
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address(&to[r][c])),
                     "l"(from + r * KEY + c), "r"(bytes)
                     : "memory");
#endif
    }
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int N> static __device__ __forceinline__ void wait_fetched()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

/* Scores of the warp's 16 heads and 16 positions: two tiles of 8 positions. */
static __device__ void scores(const shared_mla &s, const page &k, unsigned head0, unsigned pos0,
                              float (&c)[2][4])
{
    const unsigned lane = threadIdx.x % 32;
#pragma unroll 4
    for (unsigned i = 0; i < KEY; i += 16) {
        unsigned a[4], b[4];
        load4(a, &s.q[head0 + lane % 16][i + lane / 16 * 8]);
        load4(b, &k[pos0 + lane / 16 * 8 + lane % 8][i + lane / 8 % 2 * 8]);
        multiply(c[0], a, b[0], b[1]);
        multiply(c[1], a, b[2], b[3]);
    }
}

/* o += P K, for the warp's 16 heads and 128 columns. */
static __device__ void add_values(const shared_mla &s, const page &k, unsigned head0,
                                  unsigned column0, float (&o)[N_COLUMN / 8][4])
{
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (unsigned i = 0; i < ATTN_TILE; i += 16) {
        unsigned a[4];
        load4(a, &s.p[head0 + lane % 16][i + lane / 16 * 8]);
#pragma unroll
        for (unsigned j = 0; j < N_COLUMN / 16; j++) {
            unsigned b[4];
            load4_turned(b, &k[i + lane % 16][column0 + j * 16 + lane / 16 * 8]);
            multiply(o[2 * j], a, b[0], b[1]);
            multiply(o[2 * j + 1], a, b[2], b[3]);
        }
    }
}

static __device__ __forceinline__ float quad_max(float v)
{
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 1));
    return fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 2));
}

static __device__ __forceinline__ float quad_sum(float v)
{
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    return v + __shfl_xor_sync(0xffffffffu, v, 2);
}

static __device__ void fill_queries(const cuda_attn_args &p, unsigned t, unsigned h0, shared_mla *s)
{
    const float *q = p.q + ((size_t)t * p.n_head + h0) * KEY;
    for (unsigned i = threadIdx.x; i < HEADS * KEY; i += THREADS) {
        const unsigned h = i / KEY;
        s->q[h][i % KEY] = h0 + h < p.n_head ? __float2half_rn(q[i]) : __float2half_rn(0);
    }
}

/* Grid: (parts, blocks of heads, tokens). */
template <int N_PAGE> __global__ void __launch_bounds__(THREADS) attend_mla(const cuda_attn_args p)
{
    extern __shared__ __align__(128) uint8_t raw[];
    shared_mla *s = (shared_mla *)raw;
    page *k = (page *)(raw + (sizeof *s + 127) / 128 * 128);
    const unsigned t = blockIdx.z, h0 = blockIdx.y * HEADS, lane = threadIdx.x % 32;
    const unsigned head0 = threadIdx.x / 32 % 2 * 16, quarter = threadIdx.x / 64;
    const unsigned row[2] = {head0 + lane / 4, head0 + lane / 4 + 8};
    const int32_t *pages = p.kv.table + (size_t)p.seq[t] * p.kv.max_page;
    if (p.position[t] < 0) {
        return;
    }
    const span part = part_of((unsigned)p.position[t], p.window, blockIdx.x, ATTN_PARTS);
    const size_t stride = VALUE + 2;
    float *out = p.partial + (((size_t)t * p.n_head + h0) * ATTN_PARTS + blockIdx.x) * stride;
    const size_t ldo = ATTN_PARTS * stride;
    if (part.lo >= part.hi) {
        if (threadIdx.x < HEADS && h0 + threadIdx.x < p.n_head) {
            out[threadIdx.x * ldo + VALUE] = -CUDART_INF_F;
            out[threadIdx.x * ldo + VALUE + 1] = 0;
        }
        return;
    }
    const unsigned t0 = part.lo / ATTN_TILE, t1 = (part.hi + ATTN_TILE - 1) / ATTN_TILE;
    float o[N_COLUMN / 8][4] = {}, max[2] = {-CUDART_INF_F, -CUDART_INF_F}, sum[2] = {};
    fetch(p, pages, t0, part, k[0]);
    fill_queries(p, t, h0, s);
    for (unsigned tile = t0; tile < t1; tile++) {
        const page &now = k[(tile - t0) % N_PAGE];
        if (N_PAGE > 1 && tile + 1 < t1) {
            fetch(p, pages, tile + 1, part, k[(tile + 1 - t0) % N_PAGE]);
            wait_fetched<1>();
        } else {
            wait_fetched<0>();
        }
        __syncthreads();
        float c[2][4] = {}, factor[2];
        scores(*s, now, head0, quarter * 16, c);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float top = -CUDART_INF_F;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const unsigned at =
                    tile * ATTN_TILE + quarter * 16 + j / 2 * 8 + lane % 4 * 2 + j % 2;
                float *v = &c[j / 2][2 * r + j % 2];
                *v = at >= part.lo && at < part.hi ? *v : -CUDART_INF_F;
                top = fmaxf(top, *v);
            }
            top = quad_max(top);
            if (lane % 4 == 0) {
                s->max[quarter][row[r]] = top;
            }
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float next = max[r];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                next = fmaxf(next, s->max[i][row[r]]);
            }
            factor[r] = expf(max[r] - next);
            max[r] = next;
            sum[r] *= factor[r];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const float a = expf(c[j][2 * r] - next), b = expf(c[j][2 * r + 1] - next);
                sum[r] += a + b;
                *(__half2 *)&s->p[row[r]][quarter * 16 + j * 8 + lane % 4 * 2] =
                    __floats2half2_rn(a, b);
            }
        }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < N_COLUMN / 8; j++) {
            o[j][0] *= factor[0], o[j][1] *= factor[0];
            o[j][2] *= factor[1], o[j][3] *= factor[1];
        }
        add_values(*s, now, head0, quarter * N_COLUMN, o);
        __syncthreads();
        if (N_PAGE == 1 && tile + 1 < t1) {
            fetch(p, pages, tile + 1, part, k[0]);
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float all = quad_sum(sum[r]);
        if (lane % 4 == 0) {
            s->sum[quarter][row[r]] = all;
        }
#pragma unroll
        for (int j = 0; j < N_COLUMN / 8; j++) {
            if (h0 + row[r] < p.n_head) {
                *(float2 *)&out[row[r] * ldo + quarter * N_COLUMN + j * 8 + lane % 4 * 2] =
                    make_float2(o[j][2 * r], o[j][2 * r + 1]);
            }
        }
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (quarter == 0 && lane % 4 == 0 && h0 + row[r] < p.n_head) {
            float all = 0;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                all += s->sum[i][row[r]];
            }
            out[row[r] * ldo + VALUE] = max[r];
            out[row[r] * ldo + VALUE + 1] = all;
        }
    }
}

static size_t shared_bytes(int n_page)
{
    return (sizeof(shared_mla) + 127) / 128 * 128 + (size_t)n_page * sizeof(page);
}

/* False where sizes, types or the device are not those. */
bool attn_mla_partials(const cuda_attn_args *p, cudaStream_t s)
{
    static int most = -1, major; /* of the one device */
    const dim3 grid(ATTN_PARTS, (p->n_head + HEADS - 1) / HEADS, p->n);
    if (most < 0) {
        int device = 0;
        cudaGetDevice(&device);
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
        cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
        cudaFuncSetAttribute(attend_mla<2>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)shared_bytes(2));
        cudaFuncSetAttribute(attend_mla<1>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)shared_bytes(1));
        cudaGetLastError(); /* where there is less than that */
    }
    if (p->exact || !p->kv.half || p->kv.v != p->kv.k || p->kv.n_key != KEY ||
        p->kv.n_value != VALUE || major < 8 || (size_t)most < shared_bytes(1)) {
        return false;
    }
    if ((size_t)most >= shared_bytes(2)) {
        attend_mla<2><<<grid, THREADS, shared_bytes(2), s>>>(*p);
    } else {
        attend_mla<1><<<grid, THREADS, shared_bytes(1), s>>>(*p);
    }
    return true;
}
