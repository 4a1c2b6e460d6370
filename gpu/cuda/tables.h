/* kernels/format-tables.h for C++. */
#ifndef NUMOE_GPU_CUDA_TABLES_H
#define NUMOE_GPU_CUDA_TABLES_H

#ifdef __cplusplus
extern "C" {
#endif
#include "kernels/format-tables.h"
#ifdef __cplusplus
}
#endif

#endif
