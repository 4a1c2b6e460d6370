/* Shared by the kernels' files. */
#ifndef NUMOE_GPU_CUDA_INTERNAL_CUH
#define NUMOE_GPU_CUDA_INTERNAL_CUH

#include <math_constants.h>

#include "gpu/cuda/kernels.h"

static __device__ __forceinline__ float warp_sum(float v)
{
#pragma unroll
    for (int i = 16; i > 0; i /= 2) {
        v += __shfl_xor_sync(0xffffffffu, v, i);
    }
    return v;
}

static __device__ __forceinline__ float warp_max(float v)
{
#pragma unroll
    for (int i = 16; i > 0; i /= 2) {
        v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, i));
    }
    return v;
}

/* The sum over a block of whole warps, in every thread. shared: 32 floats. */
static __device__ __forceinline__ float block_sum(float v, float *shared)
{
    const unsigned n_warp = (blockDim.x + 31) / 32;
    v = warp_sum(v);
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        shared[threadIdx.x / 32] = v;
    }
    __syncthreads();
    v = threadIdx.x % 32 < n_warp ? shared[threadIdx.x % 32] : 0;
    return warp_sum(v);
}

/* Elements of a block of a format; 0: unknown. */
unsigned cuda_block_elems(uint32_t format);

/* 32 floats, one a lane, as int8: the same numbers as the CPU's (kernels/kern.h). */
static __device__ __forceinline__ void quantize32(float x, int8_t *q, cuda_group *g)
{
    const unsigned lane = threadIdx.x % 32;
    const float max = warp_max(fabsf(x));
    const bool finite = __all_sync(0xffffffffu, isfinite(x));
    const float d = !finite ? CUDART_NAN_F : max / 127;
    const float inverse = finite && d >= 1.17549435e-38f ? 127 / max : 0;
    const int v = __float2int_rn(inverse > 0 ? x * inverse : 0);
    int sum = v;
#pragma unroll
    for (int i = 8; i > 0; i /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, i);
    }
    const int high = __shfl_sync(0xffffffffu, sum, 16);
    q[lane] = (int8_t)v;
    if (lane == 0) {
        *g = cuda_group{finite && inverse == 0 ? 0 : d, {(int16_t)sum, (int16_t)high}};
    }
}

/* Element i of token t (kernels.h: cuda_combine). */
static __device__ __forceinline__ void combine_one(const cuda_combine_args &p, unsigned t,
                                                   unsigned i)
{
    if (i >= p.k) {
        return;
    }
    const size_t at = (size_t)t * p.k + i;
    float sum = p.x[at];
    if (p.shared != NULL) {
        const float gate = p.shared_gate == NULL ? 1 : 1 / (1 + expf(-p.shared_gate[t]));
        sum += gate * p.scale * p.shared[at];
    }
    if (p.host != NULL) {
        sum += p.scale * __ldcv(p.host + at); /* another processor's memory: no cache */
    }
    for (unsigned iu = 0; p.hot != NULL && iu < p.n_used; iu++) {
        const size_t pair = (size_t)t * p.n_used + iu;
        if (p.slot[pair] >= 0) {
            float v = p.hot[pair * p.k + i];
            v += p.bias == NULL ? 0 : p.bias[(size_t)p.slot[pair] * p.k + i];
            sum += p.weights[pair] * p.scale * v;
        }
    }
    p.x[at] = sum;
}

#endif
