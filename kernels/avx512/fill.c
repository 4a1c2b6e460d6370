/* The AVX-512 table: everything but the codebook and ternary formats, which the reference serves.
 */
#include "kernels/avx512/parts.h"
#include "kernels/isa.h"

void kern_avx512_fill(struct kern *kern)
{
    avx512_fill_quant_32(kern);
    avx512_fill_quant_k(kern);
    avx512_fill_quant_kmin(kern);
    avx512_fill_float(kern);
    avx512_fill_vector(kern);
    avx512_fill_attention(kern);
}
