/* AMX prompt kernels of formats with blocks of 32 elements: one instance of the driver in matmul.h
 * for each. */
#include "kernels/amx/matmul.h"
#include "kernels/amx/parts.h"

AMX_MATMUL(Q4_0, whole)
AMX_MATMUL(Q4_1, whole_min)
AMX_MATMUL(Q5_0, whole)
AMX_MATMUL(Q5_1, whole_min)
AMX_MATMUL(Q8_0, whole)
AMX_MATMUL(IQ4_NL, whole)
AMX_MATMUL(MXFP4, whole)

void amx_fill_quant_32(struct kern *kern)
{
    AMX_FILL(Q4_0)
    AMX_FILL(Q4_1)
    AMX_FILL(Q5_0)
    AMX_FILL(Q5_1)
    AMX_FILL(Q8_0)
    AMX_FILL(IQ4_NL)
    AMX_FILL(MXFP4)
}
