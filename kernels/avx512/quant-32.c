/* AVX-512 matrix kernels of formats with blocks of 32 elements: one instance of the driver in
 * matmul.h for each. */
#include "kernels/avx512/matmul.h"

MATMUL(Q4_0, whole)
MATMUL(Q4_1, whole_min)
MATMUL(Q5_0, whole)
MATMUL(Q5_1, whole_min)
MATMUL(Q8_0, whole_wide)
MATMUL(IQ4_NL, whole_wide)
MATMUL(MXFP4, whole)

void avx512_fill_quant_32(struct kern *kern)
{
    kern->matmul[FORMAT_Q4_0] = matmul_Q4_0;
    kern->matmul[FORMAT_Q4_1] = matmul_Q4_1;
    kern->matmul[FORMAT_Q5_0] = matmul_Q5_0;
    kern->matmul[FORMAT_Q5_1] = matmul_Q5_1;
    kern->matmul[FORMAT_Q8_0] = matmul_Q8_0;
    kern->matmul[FORMAT_IQ4_NL] = matmul_IQ4_NL;
    kern->matmul[FORMAT_MXFP4] = matmul_MXFP4;
}
