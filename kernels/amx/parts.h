/* The files that together fill the AMX table. */
#ifndef NUMOE_KERNELS_AMX_PARTS_H
#define NUMOE_KERNELS_AMX_PARTS_H

struct kern;

void amx_fill_block(struct kern *kern); /* block.c: blocks of 256, activations likewise */

#endif
