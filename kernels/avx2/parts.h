/* The files that together fill the AVX2 table. */
#ifndef NUMOE_KERNELS_AVX2_PARTS_H
#define NUMOE_KERNELS_AVX2_PARTS_H

struct kern;

void avx2_fill_quant_32(struct kern *kern);    /* quant-32.c: blocks of 32, int8 activations */
void avx2_fill_quant_k(struct kern *kern);     /* quant-k.c: of 256, without minima */
void avx2_fill_quant_kmin(struct kern *kern);  /* quant-kmin.c: of 256, with minima */
void avx2_fill_quant_book8(struct kern *kern); /* quant-book8.c, quant-book4.c: of 256, codebooks */
void avx2_fill_quant_book4(struct kern *kern);
void avx2_fill_float(struct kern *kern);     /* float.c: float activations */
void avx2_fill_vector(struct kern *kern);    /* vector.c: norms, activations, conversions */
void avx2_fill_attention(struct kern *kern); /* attention.c */

#endif
