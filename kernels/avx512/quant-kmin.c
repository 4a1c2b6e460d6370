/* AVX-512 matrix kernels of formats with blocks of 256 elements with minima: one instance of
 * the driver in matmul.h for each. */
#include "kernels/avx512/matmul.h"

MATMUL(Q2_K, halves_min)
MATMUL(Q4_K, whole_min)
MATMUL(Q5_K, whole_min)

void avx512_fill_quant_kmin(struct kern *kern)
{
    kern->matmul[FORMAT_Q2_K] = matmul_Q2_K;
    kern->matmul[FORMAT_Q4_K] = matmul_Q4_K;
    kern->matmul[FORMAT_Q5_K] = matmul_Q5_K;
}
