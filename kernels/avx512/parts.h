/* The files that together fill the AVX-512 table. */
#ifndef NUMOE_KERNELS_AVX512_PARTS_H
#define NUMOE_KERNELS_AVX512_PARTS_H

struct kern;

void avx512_fill_quant(struct kern *kern);     /* quant.c: int8 activations */
void avx512_fill_float(struct kern *kern);     /* float.c: float activations */
void avx512_fill_vector(struct kern *kern);    /* vector.c: norms, activations, conversions */
void avx512_fill_attention(struct kern *kern); /* attention.c */

#endif
