/* AMX prompt kernels of formats with blocks of 256 elements with minima: one instance of the driver
 * in matmul.h for each. */
#include "kernels/amx/matmul.h"
#include "kernels/amx/parts.h"

AMX_MATMUL(Q2_K, halves_min)
AMX_MATMUL(Q4_K, whole_min)
AMX_MATMUL(Q5_K, whole_min)

void amx_fill_quant_kmin(struct kern *kern)
{
    AMX_FILL(Q2_K)
    AMX_FILL(Q4_K)
    AMX_FILL(Q5_K)
}
