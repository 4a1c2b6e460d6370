/* AVX-512 matrix kernels of formats with blocks of 256 elements without minima: one instance
 * of the driver in matmul.h for each. */
#include "kernels/avx512/matmul.h"

MATMUL(Q3_K, halves)
MATMUL(Q6_K, halves)
MATMUL(IQ4_XS, whole_wide)

void avx512_fill_quant_k(struct kern *kern)
{
    kern->matmul[FORMAT_Q3_K] = matmul_Q3_K;
    kern->matmul[FORMAT_Q6_K] = matmul_Q6_K;
    kern->matmul[FORMAT_IQ4_XS] = matmul_IQ4_XS;
}
