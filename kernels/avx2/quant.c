/* AVX2 matrix kernels of the quantized formats: one instance of the driver in matmul.h for
 * each. They know nothing of their own; a new format is a case in decode.h and a line here. */
#include "kernels/avx2/matmul.h"
#include "kernels/avx2/parts.h"

#define MATMUL(f)                                                                                  \
    static void matmul_##f(const void *panels, unsigned n_row, const struct kern_act *x,           \
                           const uint32_t *xi, const uint32_t *yi, unsigned n_token, float *y,     \
                           size_t ldy)                                                             \
    {                                                                                              \
        matmul_any(FORMAT_##f, panels, n_row, x, xi, yi, n_token, y, ldy);                         \
    }

MATMUL(Q4_0)
MATMUL(Q4_1)
MATMUL(Q5_0)
MATMUL(Q5_1)
MATMUL(Q8_0)
MATMUL(Q2_K)
MATMUL(Q3_K)
MATMUL(Q4_K)
MATMUL(Q5_K)
MATMUL(Q6_K)
MATMUL(IQ4_NL)
MATMUL(IQ4_XS)
MATMUL(MXFP4)

void avx2_fill_quant(struct kern *kern)
{
    kern->matmul[FORMAT_Q4_0] = matmul_Q4_0;
    kern->matmul[FORMAT_Q4_1] = matmul_Q4_1;
    kern->matmul[FORMAT_Q5_0] = matmul_Q5_0;
    kern->matmul[FORMAT_Q5_1] = matmul_Q5_1;
    kern->matmul[FORMAT_Q8_0] = matmul_Q8_0;
    kern->matmul[FORMAT_Q2_K] = matmul_Q2_K;
    kern->matmul[FORMAT_Q3_K] = matmul_Q3_K;
    kern->matmul[FORMAT_Q4_K] = matmul_Q4_K;
    kern->matmul[FORMAT_Q5_K] = matmul_Q5_K;
    kern->matmul[FORMAT_Q6_K] = matmul_Q6_K;
    kern->matmul[FORMAT_IQ4_NL] = matmul_IQ4_NL;
    kern->matmul[FORMAT_IQ4_XS] = matmul_IQ4_XS;
    kern->matmul[FORMAT_MXFP4] = matmul_MXFP4;
}
