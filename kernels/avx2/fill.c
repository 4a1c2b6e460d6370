/* The AVX2 table: every entry. */
#include "kernels/avx2/parts.h"
#include "kernels/isa.h"

void kern_avx2_fill(struct kern *kern)
{
    avx2_fill_quant_32(kern);
    avx2_fill_quant_k(kern);
    avx2_fill_quant_kmin(kern);
    avx2_fill_quant_book8(kern);
    avx2_fill_quant_book4(kern);
    avx2_fill_float(kern);
    avx2_fill_vector(kern);
    avx2_fill_attention(kern);
}
