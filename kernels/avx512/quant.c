/* AVX-512 VNNI matrix kernels of the quantized formats: one instance of the driver in matmul.h for
 * each. They know nothing of their own; a new format is a case in decode.h and a line here. */
#include "kernels/avx512/matmul.h"
#include "kernels/avx512/parts.h"

#define TILES(name, n_scale, has_min)                                                              \
    static __attribute__((noinline)) void tiles_##name(                                            \
        const struct span *span, const struct lane *lane, unsigned nt, unsigned i0, unsigned n,    \
        int offset, __m512 *acc)                                                                   \
    {                                                                                              \
        tiles_times((struct kind){n_scale, has_min, !(has_min), offset}, span, lane, nt, i0, n,    \
                    acc);                                                                          \
    }

/* A format has either mins or an offset. */
TILES(whole, 1, false)
TILES(whole_min, 1, true)
TILES(halves, 2, false)
TILES(halves_min, 2, true)

#define MATMUL(f, kind)                                                                            \
    static void matmul_##f(const void *panels, unsigned n_row, const struct kern_act *x,           \
                           const uint32_t *xi, const uint32_t *yi, unsigned n_token, float *y,     \
                           size_t ldy)                                                             \
    {                                                                                              \
        matmul_any(FORMAT_##f, tiles_##kind, panels, n_row, x, xi, yi, n_token, y, ldy);           \
    }

MATMUL(Q4_0, whole)
MATMUL(Q4_1, whole_min)
MATMUL(Q5_0, whole)
MATMUL(Q5_1, whole_min)
MATMUL(Q8_0, whole)
MATMUL(Q2_K, halves_min)
MATMUL(Q3_K, halves)
MATMUL(Q4_K, whole_min)
MATMUL(Q5_K, whole_min)
MATMUL(Q6_K, halves)
MATMUL(IQ4_NL, whole)
MATMUL(IQ4_XS, whole)
MATMUL(MXFP4, whole)

void avx512_fill_quant(struct kern *kern)
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
