/* The files that together fill the AVX2 table. */
#ifndef NUMOE_KERNELS_AVX2_PARTS_H
#define NUMOE_KERNELS_AVX2_PARTS_H

struct kern;

void avx2_fill_quant(struct kern *kern);     /* quant.c: int8 activations */
void avx2_fill_float(struct kern *kern);     /* float.c: float activations */
void avx2_fill_vector(struct kern *kern);    /* vector.c: norms, activations, conversions */
void avx2_fill_attention(struct kern *kern); /* attention.c */

#endif
