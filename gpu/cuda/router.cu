/* The choice of experts: every rule of experts/router.c, a block a token. */
#include <cuda_runtime.h>

#include "gpu/cuda/internal.cuh"

#define ROUTER_THREADS 256

struct best {
    float value;
    unsigned index;
};

/* The highest value, the lower index of equals; NaN marks what is taken or absent. */
static __device__ __forceinline__ best better(best a, best b)
{
    const bool take = !isnan(b.value) && (isnan(a.value) || b.value > a.value ||
                                          (b.value == a.value && b.index < a.index));
    return take ? b : a;
}

static __device__ best block_best(const float *choice, unsigned n, best *shared)
{
    best a = {CUDART_NAN_F, UINT32_MAX};
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x) {
        a = better(a, best{choice[i], i});
    }
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 16; i > 0; i /= 2) {
            a = better(a, best{__shfl_xor_sync(0xffffffffu, a.value, i),
                               __shfl_xor_sync(0xffffffffu, a.index, i)});
        }
        if (pass == 0) {
            __syncthreads();
            if (threadIdx.x % 32 == 0) {
                shared[threadIdx.x / 32] = a;
            }
            __syncthreads();
            a = threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32]
                                                   : best{CUDART_NAN_F, UINT32_MAX};
        }
    }
    return a;
}

static __device__ unsigned take_best(float *choice, unsigned n, best *shared)
{
    const unsigned index = block_best(choice, n, shared).index;
    __syncthreads();
    if (threadIdx.x == 0) {
        choice[index] = CUDART_NAN_F;
    }
    __syncthreads();
    return index;
}

static __device__ float as_choice(float x)
{
    return isnan(x) ? -CUDART_INF_F : x;
}

static __device__ void gate(const cuda_router_args &p, const float *logits, float *score,
                            float *shared)
{
    float max = -CUDART_INF_F, sum = 0;
    for (unsigned i = threadIdx.x; i < p.n_expert; i += blockDim.x) {
        const float v = logits[i] + (p.bias == NULL ? 0 : p.bias[i]);
        score[i] = p.gating == CUDA_SIGMOID ? 1 / (1 + expf(-v)) : v;
        max = fmaxf(max, v);
    }
    if (p.gating != CUDA_SOFTMAX) {
        return;
    }
    max = warp_max(max);
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        shared[threadIdx.x / 32] = max;
    }
    __syncthreads();
    max = warp_max(threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : -CUDART_INF_F);
    for (unsigned i = threadIdx.x; i < p.n_expert; i += blockDim.x) {
        score[i] = expf(score[i] - max);
        sum += score[i];
    }
    sum = block_sum(sum, shared);
    for (unsigned i = threadIdx.x; i < p.n_expert; i += blockDim.x) {
        score[i] /= sum;
    }
}

/* Experts outside the best groups are not chosen. */
static __device__ void limit_groups(const cuda_router_args &p, float *choice, float *group,
                                    best *shared)
{
    const unsigned n_each = p.n_expert / p.n_group;
    for (unsigned g = threadIdx.x; g < p.n_group; g += blockDim.x) {
        float first = -CUDART_INF_F, second = -CUDART_INF_F;
        for (unsigned i = g * n_each; i < (g + 1) * n_each; i++) {
            if (choice[i] > first) {
                second = first;
                first = choice[i];
            } else if (choice[i] > second) {
                second = choice[i];
            }
        }
        group[g] = as_choice(p.best_two && n_each > 1 ? first + second : first);
    }
    __syncthreads();
    for (unsigned i = 0; i < p.n_group_used; i++) {
        take_best(group, p.n_group, shared);
    }
    for (unsigned i = threadIdx.x; i < p.n_expert; i += blockDim.x) {
        if (!isnan(group[i / n_each])) {
            choice[i] = -CUDART_INF_F;
        }
    }
    __syncthreads();
}

/* By one thread: at most 64 weights. */
static __device__ void finish(const cuda_router_args &p, float *weights)
{
    if (p.gating == CUDA_SOFTMAX_OF_TOPK) {
        float max = weights[0], sum = 0;
        for (unsigned i = 1; i < p.n_used; i++) {
            max = fmaxf(max, weights[i]);
        }
        for (unsigned i = 0; i < p.n_used; i++) {
            weights[i] = expf(weights[i] - max);
            sum += weights[i];
        }
        for (unsigned i = 0; i < p.n_used; i++) {
            weights[i] /= sum;
        }
    }
    float sum = 0;
    for (unsigned i = 0; i < p.n_used; i++) {
        sum += weights[i];
    }
    for (unsigned i = 0; i < p.n_used; i++) {
        weights[i] = (p.norm_topk ? weights[i] / (sum + 1e-20f) : weights[i]) * p.scale;
    }
}

static __global__ void __launch_bounds__(ROUTER_THREADS) router(const cuda_router_args p)
{
    extern __shared__ float score[];
    __shared__ float shared[32];
    __shared__ best best_of[32];
    float *choice = score + p.n_expert, *group = choice + p.n_expert;
    const size_t out = (size_t)blockIdx.x * p.n_used;
    gate(p, p.logits + (size_t)blockIdx.x * p.n_expert, score, shared);
    __syncthreads();
    for (unsigned i = threadIdx.x; i < p.n_expert; i += blockDim.x) {
        choice[i] = as_choice(p.select_bias == NULL ? score[i] : score[i] + p.select_bias[i]);
    }
    __syncthreads();
    if (p.n_group > 1 && p.n_group_used < p.n_group) {
        limit_groups(p, choice, group, best_of);
    }
    for (unsigned i = 0; i < p.n_used; i++) {
        const unsigned index = take_best(choice, p.n_expert, best_of);
        if (threadIdx.x == 0) {
            p.ids[out + i] = (int32_t)index;
            p.weights[out + i] = score[index];
        }
    }
    if (threadIdx.x == 0) {
        finish(p, p.weights + out);
    }
}

extern "C" void cuda_router(const cuda_router_args *p, cudaStream_t s)
{
    const size_t bytes = (2 * (size_t)p->n_expert + p->n_group) * sizeof(float);
    if (p->n > 0) {
        router<<<p->n, ROUTER_THREADS, bytes, s>>>(*p);
    }
}
