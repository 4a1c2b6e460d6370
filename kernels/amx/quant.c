/* The AMX table: K-quants (block.c), and here long prompts of formats with one scale to 32 weights
 * and no minima, each an instance of the driver in matmul.h. Everything else stays what AVX-512
 * made it: where more than one float operation has to follow each sum of 32, tiles bring nothing
 * (bench/NOTES.md); and their bf16 products would round the float activations that F16 and BF16
 * weights meet to 8 bits. */
#include "kernels/amx/matmul.h"
#include "kernels/amx/parts.h"
#include "kernels/isa.h"

AMX_MATMUL(Q4_0)
AMX_MATMUL(Q5_0)
AMX_MATMUL(Q8_0)
AMX_MATMUL(IQ4_NL)
AMX_MATMUL(IQ4_XS)
AMX_MATMUL(MXFP4)

void kern_amx_fill(struct kern *kern)
{
    amx_fill_block(kern);
    AMX_FILL(Q4_0)
    AMX_FILL(Q5_0)
    AMX_FILL(Q8_0)
    AMX_FILL(IQ4_NL)
    AMX_FILL(IQ4_XS)
    AMX_FILL(MXFP4)
}
