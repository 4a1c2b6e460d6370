/* Which instruction set this process computes with. Apart from kern.h, so that kernels, which are
 * slow to compile, depend on nothing but their own part. */
#ifndef NUMOE_KERNELS_SELECT_H
#define NUMOE_KERNELS_SELECT_H

#include "base/status.h"
#include "kernels/kern.h"

/* Chooses the table: the best this processor has, or what NUMOE_ISA forces (NUMOE_E_INPUT for an
 * unknown name, NUMOE_E_SUPPORT where the processor lacks it or the system refuses its registers).
 * Any thread; *out lives for ever. */
numoe_status kern_select(const struct kern **out, numoe_error *err);

/* Names of the known instruction sets from the least to the best, built here or not; NULL after the
 * last. */
const char *kern_isa_name(unsigned i);

#endif
