/* The files that together fill the AMX table. */
#ifndef NUMOE_KERNELS_AMX_PARTS_H
#define NUMOE_KERNELS_AMX_PARTS_H

struct kern;

void amx_fill_quant_32(struct kern *kern);   /* quant-32.c: blocks of 32 */
void amx_fill_quant_k(struct kern *kern);    /* quant-k.c: of 256, without minima */
void amx_fill_quant_kmin(struct kern *kern); /* quant-kmin.c: of 256, with minima */
void amx_fill_quant_iq(struct kern *kern);   /* quant-iq.c: codebooks; needs VBMI */

#endif
