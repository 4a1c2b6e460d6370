/* The AVX2 table: everything but the codebook and ternary formats, which the reference serves. */
#include "kernels/avx2/parts.h"
#include "kernels/isa.h"

void kern_avx2_fill(struct kern *kern)
{
    avx2_fill_quant_32(kern);
    avx2_fill_quant_k(kern);
    avx2_fill_quant_kmin(kern);
    avx2_fill_float(kern);
    avx2_fill_vector(kern);
    avx2_fill_attention(kern);
}
