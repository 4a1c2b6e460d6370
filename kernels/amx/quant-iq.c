/* AMX prompt kernels of the codebook formats: one instance of the driver in matmul.h for each. The
 * codebooks are there since the AVX-512 table was filled. */
#define MATMUL_CODEBOOKS
#include "kernels/amx/matmul.h"
#include "kernels/amx/parts.h"

AMX_MATMUL(IQ1_S, whole)
AMX_MATMUL(IQ1_M, halves)
AMX_MATMUL(IQ2_XXS, whole)
AMX_MATMUL(IQ2_XS, halves)
AMX_MATMUL(IQ2_S, halves)
AMX_MATMUL(IQ3_XXS, whole)
AMX_MATMUL(IQ3_S, whole)

void amx_fill_quant_iq(struct kern *kern)
{
    AMX_FILL(IQ1_S)
    AMX_FILL(IQ1_M)
    AMX_FILL(IQ2_XXS)
    AMX_FILL(IQ2_XS)
    AMX_FILL(IQ2_S)
    AMX_FILL(IQ3_XXS)
    AMX_FILL(IQ3_S)
}
