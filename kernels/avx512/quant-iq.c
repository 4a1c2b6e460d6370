/* AVX-512 VNNI and VBMI matrix kernels of the codebook formats: one instance of the driver in
 * matmul.h for each. */
#define MATMUL_CODEBOOKS
#include "kernels/avx512/matmul.h"

MATMUL(IQ1_S, whole)
MATMUL(IQ1_M, halves)
MATMUL(IQ2_XXS, whole)
MATMUL(IQ2_XS, halves)
MATMUL(IQ2_S, halves)
MATMUL(IQ3_XXS, whole)
MATMUL(IQ3_S, whole)

void avx512_fill_quant_iq(struct kern *kern)
{
    avx512_codebooks_fill();
    kern->matmul[FORMAT_IQ1_S] = matmul_IQ1_S;
    kern->matmul[FORMAT_IQ1_M] = matmul_IQ1_M;
    kern->matmul[FORMAT_IQ2_XXS] = matmul_IQ2_XXS;
    kern->matmul[FORMAT_IQ2_XS] = matmul_IQ2_XS;
    kern->matmul[FORMAT_IQ2_S] = matmul_IQ2_S;
    kern->matmul[FORMAT_IQ3_XXS] = matmul_IQ3_XXS;
    kern->matmul[FORMAT_IQ3_S] = matmul_IQ3_S;
}
