/* The AVX-512 table: everything but the ternary formats, which the reference serves. The codebook
 * formats need VBMI too (Ice Lake, Zen 4 and later); where it is missing they are left as they are.
 */
#include "kernels/avx512/parts.h"
#include "kernels/isa.h"

void kern_avx512_fill(struct kern *kern)
{
    avx512_fill_quant_32(kern);
    avx512_fill_quant_k(kern);
    avx512_fill_quant_kmin(kern);
    if (__builtin_cpu_supports("avx512vbmi")) {
        avx512_fill_quant_iq(kern);
    }
    avx512_fill_float(kern);
    avx512_fill_vector(kern);
    avx512_fill_attention(kern);
}
