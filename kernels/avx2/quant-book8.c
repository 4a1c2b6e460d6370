/* AVX2 matrix kernels of formats whose tables have entries of 8 elements: one instance of the
 * driver in matmul.h for each. */
#include "kernels/avx2/matmul.h"
#include "kernels/avx2/parts.h"

MATMUL(IQ1_S)
MATMUL(IQ1_M)
MATMUL(IQ2_XXS)
MATMUL(IQ2_XS)
MATMUL(IQ2_S)

void QUANT_FILL(quant_book8)(struct kern *kern)
{
    kern->matmul[FORMAT_IQ1_S] = matmul_IQ1_S;
    kern->matmul[FORMAT_IQ1_M] = matmul_IQ1_M;
    kern->matmul[FORMAT_IQ2_XXS] = matmul_IQ2_XXS;
    kern->matmul[FORMAT_IQ2_XS] = matmul_IQ2_XS;
    kern->matmul[FORMAT_IQ2_S] = matmul_IQ2_S;
}
