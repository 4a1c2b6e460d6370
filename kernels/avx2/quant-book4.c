/* AVX2 matrix kernels of formats whose tables have entries of 4 elements, and of ternary ones: one
 * instance of the driver in matmul.h for each. */
#include "kernels/avx2/matmul.h"
#include "kernels/avx2/parts.h"

MATMUL(IQ3_XXS)
MATMUL(IQ3_S)
MATMUL(TQ1_0)
MATMUL(TQ2_0)

void QUANT_FILL(quant_book4)(struct kern *kern)
{
    kern->matmul[FORMAT_IQ3_XXS] = matmul_IQ3_XXS;
    kern->matmul[FORMAT_IQ3_S] = matmul_IQ3_S;
    kern->matmul[FORMAT_TQ1_0] = matmul_TQ1_0;
    kern->matmul[FORMAT_TQ2_0] = matmul_TQ2_0;
}
