/* The AMX table: prompts of the quantized formats; everything else stays what AVX-512 made it.
 * F16 and BF16 too: the tiles' bf16 products would round float activations to 8 bits. */
#include "kernels/amx/parts.h"
#include "kernels/isa.h"

void kern_amx_fill(struct kern *kern)
{
    amx_fill_quant_32(kern);
    amx_fill_quant_k(kern);
    amx_fill_quant_kmin(kern);
    if (__builtin_cpu_supports("avx512vbmi")) {
        amx_fill_quant_iq(kern);
    }
}
