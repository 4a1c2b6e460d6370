/* Products of many tokens, on tensor cores through cuBLASLt: weights are dequantized to f16 a piece
 * at a time. f16 holds both well where bf16 would cost accuracy; activations whose largest is out
 * of its range are scaled by a power of two, which the product takes back. Attention of prompts is
 * made of the same products.
 *
 * In exact mode everything is f32. */
#include <cublasLt.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <string.h>

#include "gpu/cuda/internal.cuh"

#define WORKSPACE_BYTES (CUDA_BLAS_BYTES - 256)
#define PIECE_BYTES     ((size_t)128 << 20) /* of dequantized weights */
#define SCORE_BYTES     ((size_t)256 << 20)
#define HALF_LARGEST    16384.0f
#define N_PLAN          256

struct shape {
    size_t m, n, k, lda, ldb, ldc, batch, stride_a, stride_b, stride_c;
    bool a_rows; /* A's rows are contiguous (op T) */
    bool exact;
};

struct plan {
    shape key;
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
};

struct cuda_blas {
    cublasLtHandle_t handle;
    uint8_t *workspace, *scratch;
    size_t scratch_bytes;
    float *numbers; /* device: 0: alpha of scaled activations, 1: one, 2: zero; 3: max as bits */
    plan plans[N_PLAN];
    unsigned n_plan, next;
};

/* ------------------------------------------------------------------ plans */

static void layout_new(cublasLtMatrixLayout_t *l, cudaDataType type, size_t rows, size_t cols,
                       size_t ld, size_t batch, size_t stride)
{
    const int32_t n = (int32_t)batch;
    const int64_t step = (int64_t)stride;
    cublasLtMatrixLayoutCreate(l, type, rows, cols, (int64_t)ld);
    cublasLtMatrixLayoutSetAttribute(*l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &n, sizeof n);
    cublasLtMatrixLayoutSetAttribute(*l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step,
                                     sizeof step);
}

static void plan_free(plan *p)
{
    cublasLtMatmulDescDestroy(p->op);
    cublasLtMatrixLayoutDestroy(p->a);
    cublasLtMatrixLayoutDestroy(p->b);
    cublasLtMatrixLayoutDestroy(p->c);
}

static bool plan_new(cuda_blas *b, const shape *s, plan *p)
{
    const cudaDataType in = s->exact ? CUDA_R_32F : CUDA_R_16F;
    const cublasOperation_t op = s->a_rows ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int32_t pointers = CUBLASLT_POINTER_MODE_DEVICE;
    cublasLtMatmulPreference_t pref;
    cublasLtMatmulHeuristicResult_t found;
    const size_t workspace = WORKSPACE_BYTES;
    int n = 0;
    p->key = *s;
    cublasLtMatmulDescCreate(&p->op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_TRANSA, &op, sizeof op);
    cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_POINTER_MODE, &pointers,
                                   sizeof pointers);
    layout_new(&p->a, in, s->a_rows ? s->k : s->m, s->a_rows ? s->m : s->k, s->lda, s->batch,
               s->stride_a);
    layout_new(&p->b, in, s->k, s->n, s->ldb, s->batch, s->stride_b);
    layout_new(&p->c, CUDA_R_32F, s->m, s->n, s->ldc, s->batch, s->stride_c);
    cublasLtMatmulPreferenceCreate(&pref);
    cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                         sizeof workspace);
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(b->handle, p->op, p->a, p->b, p->c,
                                                                 p->c, pref, 1, &found, &n);
    cublasLtMatmulPreferenceDestroy(pref);
    p->algo = found.algo;
    if (status != CUBLAS_STATUS_SUCCESS || n == 0) {
        plan_free(p);
        return false;
    }
    return true;
}

static const plan *plan_for(cuda_blas *b, const shape *s)
{
    for (unsigned i = 0; i < b->n_plan; i++) {
        if (memcmp(&b->plans[i].key, s, sizeof *s) == 0) {
            return &b->plans[i];
        }
    }
    plan made;
    if (!plan_new(b, s, &made)) {
        return NULL;
    }
    plan *to = &b->plans[b->next];
    if (b->n_plan < N_PLAN) {
        b->n_plan++;
    } else {
        plan_free(to);
    }
    b->next = (b->next + 1) % N_PLAN;
    *to = made;
    return to;
}

/* C = alpha A B, column-major as the library has it; alpha on the device. */
static bool multiply(cuda_blas *b, const shape *s, const float *alpha, const void *A, const void *B,
                     float *C, cudaStream_t stream)
{
    const plan *p = plan_for(b, s);
    return p != NULL && cublasLtMatmul(b->handle, p->op, alpha, A, p->a, B, p->b, b->numbers + 2, C,
                                       p->c, C, p->c, &p->algo, b->workspace, WORKSPACE_BYTES,
                                       stream) == CUBLAS_STATUS_SUCCESS;
}

/* ------------------------------------------------------------------ set-up */

extern "C" cudaError_t cuda_blas_new(size_t scratch_bytes, cuda_blas **out)
{
    const float numbers[4] = {1, 1, 0, 0};
    cuda_blas *b = new cuda_blas();
    b->scratch_bytes = scratch_bytes;
    cudaError_t e = cublasLtCreate(&b->handle) == CUBLAS_STATUS_SUCCESS
                        ? cudaSuccess
                        : cudaErrorInitializationError;
    e = e != cudaSuccess ? e : cudaMalloc((void **)&b->workspace, WORKSPACE_BYTES);
    e = e != cudaSuccess ? e : cudaMalloc((void **)&b->scratch, scratch_bytes);
    e = e != cudaSuccess ? e : cudaMalloc((void **)&b->numbers, sizeof numbers);
    e = e != cudaSuccess ? e
                         : cudaMemcpy(b->numbers, numbers, sizeof numbers, cudaMemcpyHostToDevice);
    if (e != cudaSuccess) {
        cuda_blas_free(b);
        return e;
    }
    *out = b;
    return cudaSuccess;
}

extern "C" void cuda_blas_free(cuda_blas *b)
{
    if (b == NULL) {
        return;
    }
    for (unsigned i = 0; i < b->n_plan; i++) {
        plan_free(&b->plans[i]);
    }
    if (b->handle != NULL) {
        cublasLtDestroy(b->handle);
    }
    cudaFree(b->workspace);
    cudaFree(b->scratch);
    cudaFree(b->numbers);
    delete b;
}

static size_t aligned(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

extern "C" size_t cuda_blas_scratch_bytes(unsigned n, unsigned k_max, unsigned n_ctx,
                                          const cuda_attn_args *a, bool exact)
{
    const size_t elem = exact ? 4 : 2, kv_elem = a->kv.n_key + a->kv.n_value;
    const size_t gemm = aligned((size_t)n * k_max * elem) + (exact ? 2 : 1) * PIECE_BYTES;
    const size_t cache = (size_t)(n_ctx + 8) * a->kv.n_head_kv * kv_elem * elem;
    const size_t token = (size_t)a->n_head * ((n_ctx + 8) * (4 + elem) + kv_elem * 4 + 4);
    const size_t attn = cache + (token > 2 * SCORE_BYTES ? token : 2 * SCORE_BYTES) + 16384;
    return gemm > attn ? gemm : attn;
}

/* ------------------------------------------------------------------ activations to f16 */

static __global__ void largest(const float *x, size_t n, unsigned *bits)
{
    float max = 0;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        max = fmaxf(max, fabsf(x[i]));
    }
    max = warp_max(max);
    if (threadIdx.x % 32 == 0) {
        atomicMax(bits, __float_as_uint(max));
    }
}

/* 1, or the power of two that brings the largest into range. */
static __device__ float half_scale(const unsigned *bits)
{
    const float max = __uint_as_float(*bits);
    return max > HALF_LARGEST && isfinite(max) ? exp2f(-ceilf(log2f(max / HALF_LARGEST))) : 1;
}

/* Rows of k elements, ldx apart, to rows of k. */
static __global__ void halve(const float *x, size_t n_row, unsigned k, size_t ldx,
                             const unsigned *bits, float *alpha, __half *out)
{
    const float scale = half_scale(bits);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        *alpha = 1 / scale;
    }
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n_row * k;
         i += (size_t)gridDim.x * blockDim.x) {
        out[i] = __float2half_rn(x[i / k * ldx + i % k] * scale);
    }
}

static unsigned blocks_for(size_t n)
{
    const size_t b = (n + 255) / 256;
    return (unsigned)(b < 2048 ? (b > 0 ? b : 1) : 2048);
}

/* ------------------------------------------------------------------ weights */

/* x [n_token, width] as f16 at the scratch's beginning, alpha beside. */
static void halve_inputs(cuda_blas *b, const cuda_product *p, size_t width, cudaStream_t s)
{
    unsigned *bits = (unsigned *)(b->numbers + 3);
    const size_t n = p->n_token;
    cudaMemsetAsync(bits, 0, sizeof *bits, s);
    largest<<<blocks_for(n * p->ldx), 256, 0, s>>>(p->x.f, (n - 1) * p->ldx + width, bits);
    halve<<<blocks_for(n * width), 256, 0, s>>>(p->x.f, n, (unsigned)width, p->ldx, bits,
                                                b->numbers, (__half *)b->scratch);
}

/* Rows of one matrix, or of all matrices of several groups, are dequantized as many at a time as
 * there is room for. */
extern "C" bool cuda_gemm(cuda_blas *b, const cuda_product *p, cudaStream_t s)
{
    const cuda_matrix *w = p->w;
    const size_t n = p->n_token, k = w->k, elem = p->exact ? 4 : 2, groups = p->n_group;
    const size_t width = (groups - 1) * p->x_step + k;
    const size_t x_bytes = p->exact ? 0 : aligned(n * width * elem);
    const size_t room = b->scratch_bytes > x_bytes ? b->scratch_bytes - x_bytes : 0;
    const size_t piece = (p->exact ? 2 * PIECE_BYTES : PIECE_BYTES);
    const size_t most = (piece < room ? piece : room) / (k * elem);
    if (most < (groups > 1 ? w->n_row : 1)) {
        return false;
    }
    if (!p->exact) {
        halve_inputs(b, p, width, s);
    }
    const size_t some = groups > 1 ? most / w->n_row : 1; /* groups at a time */
    for (size_t g = 0; g < groups; g += some) {
        const size_t n_group = groups - g < some ? groups - g : some;
        for (size_t r = 0; r < w->n_row;) {
            const size_t rows = n_group > 1 || w->n_row - r < most ? w->n_row - r : most;
            uint8_t *dequantized = b->scratch + x_bytes;
            const uint8_t *x = p->exact ? (const uint8_t *)p->x.f : b->scratch;
            shape key = {};
            key.m = rows, key.n = n, key.k = k;
            key.lda = k, key.ldb = p->exact ? p->ldx : width, key.ldc = p->ldy;
            key.batch = n_group;
            key.stride_a = rows * k, key.stride_b = p->x_step, key.stride_c = p->y_step;
            key.a_rows = true;
            key.exact = p->exact;
            cuda_dequant(w, g * w->n_row + r, rows * n_group, !p->exact, dequantized, s);
            if (!multiply(b, &key, p->exact ? b->numbers + 1 : b->numbers, dequantized,
                          x + g * p->x_step * elem, p->y + g * p->y_step + r, s)) {
                return false;
            }
            r += rows;
        }
    }
    return true;
}

/* ------------------------------------------------------------------ attention of a prompt */

/* Rows of one sequence's pages to [n_head_kv, n_pos, n_elem]; zeros from n_valid on. */
template <typename In, typename Out>
__global__ void gather(const cuda_kv kv, const void *base, unsigned n_elem, unsigned row,
                       const int32_t *pages, unsigned n_pos, unsigned n_valid, Out *out)
{
    const unsigned h = blockIdx.y;
    for (unsigned at = blockIdx.x; at < n_pos; at += gridDim.x) {
        Out *to = out + ((size_t)h * n_pos + at) * n_elem;
        const In *from = NULL;
        if (at < n_valid) {
            const size_t page = (size_t)pages[at / CUDA_KV_PAGE];
            from = (const In *)base +
                   ((page * kv.n_head_kv + h) * CUDA_KV_PAGE + at % CUDA_KV_PAGE) * row;
        }
        for (unsigned i = threadIdx.x; i < n_elem; i += blockDim.x) {
            to[i] = from == NULL ? (Out)0.0f : (Out)(float)from[i];
        }
    }
}

/* q [T, H, n] to [H_kv, T, G, n] */
template <typename Out>
__global__ void regroup(const float *q, unsigned n_token, unsigned n_kv, unsigned n_shared,
                        unsigned n, const unsigned *bits, float *alpha, Out *out)
{
    const float scale = bits == NULL ? 1 : half_scale(bits);
    const size_t total = (size_t)n_token * n_kv * n_shared * n;
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        *alpha = 1 / scale;
    }
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < total;
         i += (size_t)gridDim.x * blockDim.x) {
        const size_t e = i % n, g = i / n % n_shared, t = i / n / n_shared % n_token;
        const size_t h = i / n / n_shared / n_token;
        out[i] = (Out)(q[((t * n_kv + h) * n_shared + g) * n + e] * scale);
    }
}

/* exp(score - max) of what a row sees, zero elsewhere; 1 / sum beside it. A block a row of
 * [H_kv, T, G]; scores [rows, n_pos]. */
template <typename Out>
__global__ void softmax_rows(const float *score, unsigned n_pos, unsigned n_token,
                             unsigned n_shared, unsigned first, unsigned window, const float *sinks,
                             Out *out, float *inverse)
{
    __shared__ float shared[32];
    const size_t row = blockIdx.x;
    const unsigned t = (unsigned)(row / n_shared % n_token);
    const unsigned h = (unsigned)(row / n_shared / n_token * n_shared + row % n_shared);
    const unsigned hi = first + t + 1, lo = window > 0 && hi > window ? hi - window : 0;
    const float *s = score + row * n_pos;
    float max = sinks == NULL ? -CUDART_INF_F : sinks[h], sum = 0;
    for (unsigned i = lo + threadIdx.x; i < hi; i += blockDim.x) {
        max = fmaxf(max, s[i]);
    }
    max = warp_max(max);
    if (threadIdx.x % 32 == 0) {
        shared[threadIdx.x / 32] = max;
    }
    __syncthreads();
    max = warp_max(threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : -CUDART_INF_F);
    for (unsigned i = threadIdx.x; i < n_pos; i += blockDim.x) {
        const float e = i >= lo && i < hi ? expf(s[i] - max) : 0;
        out[row * n_pos + i] = (Out)e;
        sum += e;
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) {
        inverse[row] = 1 / (sum + (sinks == NULL ? 0 : expf(sinks[h] - max)));
    }
}

/* [H_kv, T, G, n] times inverse to [T, H, n] */
static __global__ void ungroup(const float *o, const float *inverse, unsigned n_token,
                               unsigned n_kv, unsigned n_shared, unsigned n, float *out)
{
    const size_t total = (size_t)n_token * n_kv * n_shared * n;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < total;
         i += (size_t)gridDim.x * blockDim.x) {
        const size_t e = i % n, row = i / n;
        const size_t g = row % n_shared, t = row / n_shared % n_token, h = row / n_shared / n_token;
        out[((t * n_kv + h) * n_shared + g) * n + e] = o[i] * inverse[row];
    }
}

struct prefill {
    cuda_blas *b;
    const cuda_attn_args *p;
    unsigned first, n_shared, n_pos; /* positions gathered */
    uint8_t *k, *v, *rest;           /* in the scratch */
    size_t rest_bytes;
    unsigned v_ld;
    bool exact;
};

template <typename T>
static void gather_cache(prefill *f, unsigned seq, unsigned n_valid, cudaStream_t s)
{
    const cuda_kv *kv = &f->p->kv;
    const int32_t *pages = kv->table + (size_t)seq * kv->max_page;
    const dim3 grid(f->n_pos < 4096 ? f->n_pos : 4096, kv->n_head_kv);
    const size_t k_bytes = aligned((size_t)f->n_pos * kv->n_head_kv * kv->n_key * sizeof(T));
    const bool mla = kv->v == kv->k;
    f->k = f->b->scratch;
    f->v = mla ? f->k : f->k + k_bytes;
    f->v_ld = mla ? kv->n_key : kv->n_value;
    f->rest = mla ? f->k + k_bytes
                  : f->v + aligned((size_t)f->n_pos * kv->n_head_kv * kv->n_value * sizeof(T));
    f->rest_bytes = f->b->scratch_bytes - (size_t)(f->rest - f->b->scratch);
    for (int i = 0; i < (mla ? 1 : 2); i++) {
        void *base = i == 0 ? kv->k : kv->v;
        const unsigned n = i == 0 ? kv->n_key : kv->n_value, row = i == 0 ? n : kv->v_row;
        T *out = (T *)(i == 0 ? f->k : f->v);
        if (kv->half) {
            gather<__half, T>
                <<<grid, 128, 0, s>>>(*kv, base, n, row, pages, f->n_pos, n_valid, out);
        } else {
            gather<float, T><<<grid, 128, 0, s>>>(*kv, base, n, row, pages, f->n_pos, n_valid, out);
        }
    }
}

/* Tokens [t0, t0 + n). */
template <typename T>
static bool attend_tile(const prefill *f, unsigned t0, unsigned n, unsigned n_pos, cudaStream_t s)
{
    cuda_blas *b = f->b;
    const cuda_attn_args *p = f->p;
    const cuda_kv *kv = &p->kv;
    const size_t rows = (size_t)n * f->n_shared, all = rows * kv->n_head_kv;
    uint8_t *at = f->rest;
    T *q = (T *)at;
    at += aligned(all * kv->n_key * sizeof(T));
    float *score = (float *)at;
    at += aligned(all * n_pos * sizeof(float));
    T *prob = (T *)at;
    at += aligned(all * n_pos * sizeof(T));
    float *o = (float *)at;
    at += aligned(all * kv->n_value * sizeof(float));
    float *inverse = (float *)at;
    const float *from = p->q + (size_t)t0 * p->n_head * kv->n_key;
    unsigned *bits = f->exact ? NULL : (unsigned *)(b->numbers + 3);
    if (bits != NULL) {
        cudaMemsetAsync(bits, 0, sizeof *bits, s);
        largest<<<blocks_for(all * kv->n_key), 256, 0, s>>>(from, all * kv->n_key, bits);
    }
    regroup<T><<<blocks_for(all * kv->n_key), 256, 0, s>>>(from, n, kv->n_head_kv, f->n_shared,
                                                           kv->n_key, bits, b->numbers, q);
    shape qk = {};
    qk.m = n_pos, qk.n = rows, qk.k = kv->n_key;
    qk.lda = qk.ldb = kv->n_key, qk.ldc = n_pos;
    qk.batch = kv->n_head_kv;
    qk.stride_a = (size_t)f->n_pos * kv->n_key, qk.stride_b = rows * kv->n_key;
    qk.stride_c = rows * n_pos;
    qk.a_rows = true;
    qk.exact = f->exact;
    if (!multiply(b, &qk, b->numbers, f->k, q, score, s)) {
        return false;
    }
    softmax_rows<T><<<(unsigned)all, 256, 0, s>>>(score, n_pos, n, f->n_shared, f->first + t0,
                                                  p->window, p->sinks, prob, inverse);
    shape pv = {};
    pv.m = kv->n_value, pv.n = rows, pv.k = n_pos;
    pv.lda = f->v_ld, pv.ldb = n_pos, pv.ldc = kv->n_value;
    pv.batch = kv->n_head_kv;
    pv.stride_a = (size_t)f->n_pos * f->v_ld, pv.stride_b = rows * n_pos;
    pv.stride_c = rows * kv->n_value;
    pv.exact = f->exact;
    if (!multiply(b, &pv, b->numbers + 1, f->v, prob, o, s)) {
        return false;
    }
    ungroup<<<blocks_for(all * kv->n_value), 256, 0, s>>>(
        o, inverse, n, kv->n_head_kv, f->n_shared, kv->n_value,
        p->out + (size_t)t0 * p->n_head * kv->n_value);
    return true;
}

template <typename T> static bool attend(prefill *f, unsigned seq, cudaStream_t s)
{
    const cuda_attn_args *p = f->p;
    const unsigned n_valid = f->first + p->n;
    f->n_pos = (n_valid + 7) / 8 * 8;
    gather_cache<T>(f, seq, n_valid, s);
    const size_t per_token = (size_t)p->n_head * ((size_t)f->n_pos * (4 + sizeof(T)) +
                                                  p->kv.n_key * sizeof(T) + p->kv.n_value * 4 + 4);
    const size_t room = f->rest_bytes > 8192 ? f->rest_bytes - 8192 : 0;
    const size_t most = (room < 2 * SCORE_BYTES ? room : 2 * SCORE_BYTES) / per_token;
    if (most == 0) {
        return false;
    }
    for (unsigned t0 = 0; t0 < p->n;) {
        const unsigned n = (unsigned)(p->n - t0 < most ? p->n - t0 : most);
        const unsigned n_pos = (f->first + t0 + n + 7) / 8 * 8;
        if (!attend_tile<T>(f, t0, n, n_pos, s)) {
            return false;
        }
        t0 += n;
    }
    return true;
}

extern "C" bool cuda_attn_prefill(cuda_blas *b, const cuda_attn_args *p, unsigned seq,
                                  unsigned first, bool exact, cudaStream_t s)
{
    prefill f = {};
    f.b = b;
    f.p = p;
    f.first = first;
    f.n_shared = p->n_head / p->kv.n_head_kv;
    f.exact = exact;
    return exact ? attend<float>(&f, seq, s) : attend<__half>(&f, seq, s);
}
