/* How a context is cut, for the kernels of attention: parts give partial softmaxes [n_value], max
 * and sum in cuda_attn_args.partial [T, n_head, ATTN_PARTS, n_value + 2], which attention.cu
 * merges. */
#ifndef NUMOE_GPU_CUDA_ATTENTION_CUH
#define NUMOE_GPU_CUDA_ATTENTION_CUH

#include "gpu/cuda/internal.cuh"

#define ATTN_TILE  CUDA_KV_PAGE
#define ATTN_PARTS 32  /* of a context, whatever else is in the batch: the order of sums is fixed  \
                        */
#define ATTN_TOKENS 16 /* that are in `partial` together */

struct span {
    unsigned lo, hi; /* positions of this block's part */
};

/* Parts are whole tiles; a part may be empty. */
static __device__ span part_of(unsigned position, unsigned window, unsigned part, unsigned n_part)
{
    const unsigned hi = position + 1, lo = window > 0 && hi > window ? hi - window : 0;
    const unsigned t0 = lo / ATTN_TILE, n_tile = (hi + ATTN_TILE - 1) / ATTN_TILE - t0;
    const unsigned each = (n_tile + n_part - 1) / n_part;
    span s = {max(lo, (t0 + part * each) * ATTN_TILE),
              min(hi, (t0 + (part + 1) * each) * ATTN_TILE)};
    return s;
}

/* attention-mla.cu: on tensor cores, where sizes, types and device are such. */
bool attn_mla_partials(const cuda_attn_args *p, cudaStream_t s);

#endif
