/* Stands before the compiler's <immintrin.h> where kernels are compiled for tests with
 * --with-emulated-isa: the intrinsics beyond AVX2 that kernels/ uses, as the manuals of Intel
 * define them, in AVX2 and plain C. The compiler refuses one that is missing here, since it may not
 * make code for it. */
#ifndef NUMOE_TESTS_EMULATE_IMMINTRIN_H
#define NUMOE_TESTS_EMULATE_IMMINTRIN_H

#include_next <immintrin.h>

#ifndef __OPTIMIZE__
#error "emulated instruction sets need -O1 or more: immediate operands are arguments of functions"
#endif

#include "tests/emulate/amx.h"
#include "tests/emulate/avx512.h"

#endif
