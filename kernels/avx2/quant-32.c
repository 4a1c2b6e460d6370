/* AVX2 matrix kernels of formats with blocks of 32 elements: one instance of the driver in
 * matmul.h for each. */
#include "kernels/avx2/matmul.h"
#include "kernels/avx2/parts.h"

MATMUL(Q4_0)
MATMUL(Q4_1)
MATMUL(Q5_0)
MATMUL(Q5_1)
MATMUL(Q8_0)
MATMUL(IQ4_NL)
MATMUL(MXFP4)

void QUANT_FILL(quant_32)(struct kern *kern)
{
    kern->matmul[FORMAT_Q4_0] = matmul_Q4_0;
    kern->matmul[FORMAT_Q4_1] = matmul_Q4_1;
    kern->matmul[FORMAT_Q5_0] = matmul_Q5_0;
    kern->matmul[FORMAT_Q5_1] = matmul_Q5_1;
    kern->matmul[FORMAT_Q8_0] = matmul_Q8_0;
    kern->matmul[FORMAT_IQ4_NL] = matmul_IQ4_NL;
    kern->matmul[FORMAT_MXFP4] = matmul_MXFP4;
}
