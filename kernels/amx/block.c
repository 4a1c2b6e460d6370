/* AMX: the K-quants, each an instance of the driver in block.h, and the activations they meet. */
#include <float.h>
#include <math.h>

#include "kernels/amx/block.h"
#include "kernels/amx/parts.h"

BLOCK_MATMUL(Q2_K, one)
BLOCK_MATMUL(Q3_K, signed)
BLOCK_MATMUL(Q4_K, halves)
BLOCK_MATMUL(Q5_K, halves)
BLOCK_MATMUL(Q6_K, signed)

/* What kern.quantize does to 32 elements, for 256 with one scale. */
static void quantize_block(const float *x, int8_t *q, float *d, int16_t *s)
{
    __m512 max = _mm512_setzero_ps();
    __mmask16 nan = 0;
    for (unsigned i = 0; i < BLOCK_ELEMS; i += 16) {
        const __m512 v = _mm512_loadu_ps(x + i);
        nan |= _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
        max = _mm512_max_ps(max, _mm512_abs_ps(v));
    }
    const float top = _mm512_reduce_max_ps(max);
    const bool finite = nan == 0 && top <= FLT_MAX, zero = !finite || top / 127 < FLT_MIN;
    const __m512 inverse = _mm512_set1_ps(zero ? 0 : 127 / top);
    *d = finite ? zero ? 0 : top / 127 : NAN;
    for (unsigned i = 0; i < BLOCK_ELEMS; i += 16) {
        const __m512i v = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i), inverse));
        const __m512i kept = zero ? _mm512_setzero_si512() : v;
        _mm_storeu_si128((__m128i *)(q + i), _mm512_cvtepi32_epi8(kept));
        s[i / 16] = (int16_t)_mm512_reduce_add_epi32(kept);
    }
}

static void quantize_256(const float *x, size_t k, int8_t *q, float *d, int16_t *s)
{
    for (size_t i = 0; i < k; i += BLOCK_ELEMS) {
        quantize_block(x + i, q + i, d + i / BLOCK_ELEMS, s + i / 16);
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
