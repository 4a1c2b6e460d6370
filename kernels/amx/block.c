/* AMX: the K-quants, each an instance of the driver in block.h, and the activations they meet. */
#include "kernels/amx/block.h"
#include "kernels/amx/parts.h"
#include "kernels/avx512/math.h"

BLOCK_MATMUL(Q2_K, one)
BLOCK_MATMUL(Q3_K, signed)
BLOCK_MATMUL(Q4_K, halves)
BLOCK_MATMUL(Q5_K, halves)
BLOCK_MATMUL(Q6_K, signed)

static void quantize_256(const float *x, size_t k, int8_t *q, float *d, int16_t *s)
{
    for (size_t i = 0; i < k; i += BLOCK_ELEMS) {
        quantize_group(x + i, BLOCK_ELEMS, q + i, d + i / BLOCK_ELEMS, s + i / 16);
    }
}

void amx_fill_block(struct kern *kern)
{
    kern->quantize_256 = quantize_256;
    BLOCK_FILL(Q2_K)
    BLOCK_FILL(Q3_K)
    BLOCK_FILL(Q4_K)
    BLOCK_FILL(Q5_K)
    BLOCK_FILL(Q6_K)
}
