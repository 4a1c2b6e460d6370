/* The AVX-512 tables, with VNNI and without: everything but the ternary formats. The codebook
 * formats need VNNI and VBMI (Ice Lake, Zen 4 and later); where they are missing, those are left as
 * they are.
 */
#include "kernels/avx512/parts.h"
#include "kernels/isa.h"

void kern_avx512_fill(struct kern *kern)
{
    avx512_fill_quant_32(kern);
    avx512_fill_quant_k(kern);
    avx512_fill_quant_kmin(kern);
#ifndef AVX512_NO_VNNI
    if (kern_cpu_has_vbmi()) {
        avx512_fill_quant_iq(kern);
    }
#endif
    avx512_fill_float(kern);
    avx512_fill_vector(kern);
    avx512_fill_attention(kern);
}
