/* AVX2 matrix kernels of formats with blocks of 256 elements without minima: one instance of the
 * driver in matmul.h for each. */
#include "kernels/avx2/matmul.h"
#include "kernels/avx2/parts.h"

MATMUL(Q3_K)
MATMUL(Q6_K)
MATMUL(IQ4_XS)

void QUANT_FILL(quant_k)(struct kern *kern)
{
    kern->matmul[FORMAT_Q3_K] = matmul_Q3_K;
    kern->matmul[FORMAT_Q6_K] = matmul_Q6_K;
    kern->matmul[FORMAT_IQ4_XS] = matmul_IQ4_XS;
}
