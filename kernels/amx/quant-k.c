/* AMX prompt kernels of formats with blocks of 256 elements without minima: one instance of the
 * driver in matmul.h for each. */
#include "kernels/amx/matmul.h"
#include "kernels/amx/parts.h"

AMX_MATMUL(Q3_K, halves)
AMX_MATMUL(Q6_K, halves)
AMX_MATMUL(IQ4_XS, whole)

void amx_fill_quant_k(struct kern *kern)
{
    AMX_FILL(Q3_K)
    AMX_FILL(Q6_K)
    AMX_FILL(IQ4_XS)
}
