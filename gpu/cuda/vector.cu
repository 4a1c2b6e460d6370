/* Norms, rotations, activations and sums: a pass over each token's vector. */
#include <cuda_runtime.h>

#include "gpu/cuda/internal.cuh"

#define NORM_THREADS 512

/* ------------------------------------------------------------------ int8 form */

/* A warp a group. */
static __global__ void quantize(const float *f, int8_t *q, cuda_group *g, unsigned n_group,
                                unsigned ldx)
{
    const unsigned i = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (i < n_group) {
        const size_t at = (size_t)blockIdx.y * ldx + i * 32;
        quantize32(f[at + threadIdx.x % 32], q + at, g + at / 32);
    }
}

extern "C" void cuda_quantize(const cuda_act *x, unsigned n, unsigned k, unsigned ldx,
                              cudaStream_t s)
{
    const unsigned n_group = k / 32;
    if (n > 0) {
        quantize<<<dim3((n_group + 7) / 8, n), 256, 0, s>>>(x->f, x->q, x->g, n_group, ldx);
    }
}

/* ------------------------------------------------------------------ norm */

static __global__ void __launch_bounds__(NORM_THREADS) norm(const cuda_norm_args p)
{
    __shared__ float shared[32];
    const int row = p.rows == NULL ? (int)blockIdx.x : p.rows[blockIdx.x];
    if (row < 0) {
        return;
    }
    float *x = p.x + (size_t)row * p.ldx;
    const float *y = p.y == NULL ? NULL : p.y + (size_t)row * p.ldx;
    float sum = 0;
    for (unsigned i = threadIdx.x; i < p.k; i += blockDim.x) {
        float v = x[i];
        if (y != NULL) {
            v += p.scale * (p.bias == NULL ? y[i] : y[i] + p.bias[i]);
            x[i] = v;
        }
        sum += v * v;
    }
    if (p.out.f == NULL) {
        return;
    }
    sum = block_sum(sum, shared);
    const float scale = 1 / sqrtf(sum / (float)p.k + p.eps);
    const unsigned lane = threadIdx.x % 32, n_warp = blockDim.x / 32;
    for (unsigned i0 = threadIdx.x / 32 * 32; i0 < p.k; i0 += n_warp * 32) {
        const unsigned i = i0 + lane;
        float v = i < p.k ? x[i] * scale : 0;
        if (i < p.k) {
            v = p.w == NULL ? v : v * p.w[i];
            v *= p.out_scale;
            p.out.f[(size_t)blockIdx.x * p.k + i] = v;
        }
        if (p.out.q != NULL) {
            const size_t at = (size_t)blockIdx.x * p.k + i0;
            quantize32(v, p.out.q + at, p.out.g + at / 32);
        }
    }
}

extern "C" void cuda_norm(const cuda_norm_args *p, cudaStream_t s)
{
    if (p->n > 0) {
        const unsigned n_thread = p->k < NORM_THREADS ? 128 : NORM_THREADS;
        norm<<<p->n, n_thread, 0, s>>>(*p);
    }
}

/* ------------------------------------------------------------------ rotation */

static __global__ void angles(const double *freq, const int32_t *position, unsigned n_pair,
                              float magnitude, float *out)
{
    const unsigned t = blockIdx.x;
    for (unsigned i = threadIdx.x; i < n_pair; i += blockDim.x) {
        double sine, cosine;
        sincos(position[t] * freq[i], &sine, &cosine);
        out[((size_t)t * n_pair + i) * 2] = (float)(cosine * magnitude);
        out[((size_t)t * n_pair + i) * 2 + 1] = (float)(sine * magnitude);
    }
}

extern "C" void cuda_angles(const double *freq, const int32_t *position, unsigned n, unsigned n_rot,
                            float magnitude, float *out, cudaStream_t s)
{
    if (n > 0 && n_rot > 0) {
        angles<<<n, 64, 0, s>>>(freq, position, n_rot / 2, magnitude, out);
    }
}

/* A block a head of a token; the head is in shared memory. */
static __global__ void heads(const cuda_heads_args p)
{
    extern __shared__ float v[];
    __shared__ float shared[32];
    const unsigned h = blockIdx.x, t = blockIdx.y, n = p.n_elem;
    const float *x = p.x + t * p.ldx + h * p.x_step;
    float *y = p.y + t * p.ldy + h * p.y_step;
    float sum = 0;
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x) {
        const float e = x[i] + (p.bias == NULL ? 0 : p.bias[h * n + i]);
        v[i] = e;
        sum += i < p.n_norm ? e * e : 0;
    }
    if (p.norm != NULL) {
        if (p.norm_row) { /* the other heads too */
            sum = 0;
            for (unsigned i = threadIdx.x; i < n * p.n_head; i += blockDim.x) {
                const float e =
                    p.x[t * p.ldx + i / n * p.x_step + i % n] + (p.bias == NULL ? 0 : p.bias[i]);
                sum += e * e;
            }
        }
        sum = block_sum(sum, shared);
        const unsigned n_sum = p.norm_row ? n * p.n_head : p.n_norm;
        const float scale = 1 / sqrtf(sum / (float)n_sum + p.eps);
        for (unsigned i = threadIdx.x; i < p.n_norm; i += blockDim.x) {
            v[i] = v[i] * scale * p.norm[p.norm_row ? h * n + i : i];
        }
    }
    __syncthreads();
    const unsigned half = p.n_rot / 2, n_rot = p.angles == NULL ? 0 : p.n_rot;
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x) {
        float e = v[i];
        if (i >= p.rot_at && i < p.rot_at + n_rot) {
            const unsigned r = i - p.rot_at;
            const unsigned pair = p.interleaved ? r / 2 : r % half;
            const bool second = p.interleaved ? r % 2 : r >= half;
            const unsigned apart = p.interleaved ? 1 : half;
            const float c = p.angles[((size_t)t * half + pair) * 2];
            const float s = p.angles[((size_t)t * half + pair) * 2 + 1];
            e = second ? v[i - apart] * s + e * c : e * c - v[i + apart] * s;
        }
        y[i] = e * p.scale;
    }
}

extern "C" void cuda_heads(const cuda_heads_args *p, cudaStream_t s)
{
    if (p->n > 0) {
        const unsigned n_thread = p->n_elem > 128 ? 256 : 64;
        heads<<<dim3(p->n_head, p->n), n_thread, p->n_elem * sizeof(float), s>>>(*p);
    }
}

/* ------------------------------------------------------------------ gated activation */

static __device__ __forceinline__ float activate(const cuda_glu_args &p, float g, float u)
{
    if (p.act == CUDA_SILU) {
        return g / (1 + expf(-g)) * u;
    }
    const float gate = g > p.limit ? p.limit : g;
    const float up = u > p.limit ? p.limit : u < -p.limit ? -p.limit : u;
    return (up + 1) * (gate / (1 + expf(-(p.alpha * gate))));
}

static __global__ void glu(const cuda_glu_args p)
{
    const unsigned row = blockIdx.y, i = blockIdx.x * blockDim.x + threadIdx.x;
    const int mat = p.mat == NULL ? 0 : p.mat[row];
    if (mat < 0 || i / 32 * 32 >= p.k) {
        return;
    }
    float h = 0;
    if (i < p.k) {
        float g = p.gate[(size_t)row * p.ld + i], u = p.up[(size_t)row * p.ld + i];
        if (p.gate_bias != NULL) {
            g += p.gate_bias[(size_t)mat * p.k + i];
            u += p.up_bias[(size_t)mat * p.k + i];
        }
        h = activate(p, g, u);
        p.h.f[(size_t)row * p.k + i] = h;
    }
    if (p.h.q != NULL) {
        const size_t at = (size_t)row * p.k + i / 32 * 32;
        quantize32(h, p.h.q + at, p.h.g + at / 32);
    }
}

extern "C" void cuda_glu(const cuda_glu_args *p, cudaStream_t s)
{
    if (p->n > 0) {
        glu<<<dim3((p->k + 127) / 128, p->n), 128, 0, s>>>(*p);
    }
}

/* ------------------------------------------------------------------ sum of a layer's second half
 */

static __global__ void combine(const cuda_combine_args p)
{
    combine_one(p, blockIdx.y, blockIdx.x * blockDim.x + threadIdx.x);
}

extern "C" void cuda_combine(const cuda_combine_args *p, cudaStream_t s)
{
    if (p->n > 0) {
        combine<<<dim3((p->k + 255) / 256, p->n), 256, 0, s>>>(*p);
    }
}

/* ------------------------------------------------------------------ argmax */

static __device__ bool better(float a, int ia, float b, int ib)
{
    return a > b || (a == b && ia < ib);
}

static __global__ void argmax(const float *logits, unsigned n_vocab, int32_t *ids)
{
    __shared__ float best_of[32];
    __shared__ int index_of[32];
    const float *x = logits + (size_t)blockIdx.x * n_vocab;
    float best = -CUDART_INF_F;
    int index = INT32_MAX;
    for (unsigned i = threadIdx.x; i < n_vocab; i += blockDim.x) {
        const float v = isnan(x[i]) ? -CUDART_INF_F : x[i];
        if (better(v, (int)i, best, index)) {
            best = v, index = (int)i;
        }
    }
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 16; i > 0; i /= 2) {
            const float v = __shfl_xor_sync(0xffffffffu, best, i);
            const int at = __shfl_xor_sync(0xffffffffu, index, i);
            if (better(v, at, best, index)) {
                best = v, index = at;
            }
        }
        if (pass == 0) {
            if (threadIdx.x % 32 == 0) {
                best_of[threadIdx.x / 32] = best;
                index_of[threadIdx.x / 32] = index;
            }
            __syncthreads();
            best = threadIdx.x % 32 < blockDim.x / 32 ? best_of[threadIdx.x % 32] : -CUDART_INF_F;
            index = threadIdx.x % 32 < blockDim.x / 32 ? index_of[threadIdx.x % 32] : INT32_MAX;
        }
    }
    if (threadIdx.x == 0) {
        ids[blockIdx.x] = index;
    }
}

extern "C" void cuda_argmax(const float *logits, unsigned n, unsigned n_vocab, int32_t *ids,
                            cudaStream_t s)
{
    if (n > 0) {
        argmax<<<n, 1024, 0, s>>>(logits, n_vocab, ids);
    }
}
