/* The files that together fill the AVX-512 table. */
#ifndef NUMOE_KERNELS_AVX512_PARTS_H
#define NUMOE_KERNELS_AVX512_PARTS_H

struct kern;

void avx512_fill_quant_32(struct kern *kern);   /* quant-32.c: blocks of 32, int8 activations */
void avx512_fill_quant_k(struct kern *kern);    /* quant-k.c: of 256, without minima */
void avx512_fill_quant_kmin(struct kern *kern); /* quant-kmin.c: of 256, with minima */
void avx512_fill_quant_iq(struct kern *kern);   /* quant-iq.c: codebooks; needs VBMI */
void avx512_fill_float(struct kern *kern);      /* float.c: float activations */
void avx512_fill_vector(struct kern *kern);     /* vector.c: norms, activations, conversions */
void avx512_fill_attention(struct kern *kern);  /* attention.c */

#endif
