/* AVX2 matrix kernels of formats with blocks of 256 elements with minima: one instance of the
 * driver in matmul.h for each. */
#include "kernels/avx2/matmul.h"
#include "kernels/avx2/parts.h"

MATMUL(Q2_K)
MATMUL(Q4_K)
MATMUL(Q5_K)

void QUANT_FILL(quant_kmin)(struct kern *kern)
{
    kern->matmul[FORMAT_Q2_K] = matmul_Q2_K;
    kern->matmul[FORMAT_Q4_K] = matmul_Q4_K;
    kern->matmul[FORMAT_Q5_K] = matmul_Q5_K;
}
