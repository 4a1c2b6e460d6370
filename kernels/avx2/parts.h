/* The files that together fill the AVX2 table. */
#ifndef NUMOE_KERNELS_AVX2_PARTS_H
#define NUMOE_KERNELS_AVX2_PARTS_H

struct kern;

/* The quant-*.c are compiled twice. */
#ifdef KERN_AVXVNNI
#define QUANT_FILL(part) avxvnni_fill_##part
#else
#define QUANT_FILL(part) avx2_fill_##part
#endif

void QUANT_FILL(quant_32)(struct kern *kern);   /* quant-32.c: blocks of 32, int8 activations */
void QUANT_FILL(quant_k)(struct kern *kern);    /* quant-k.c: of 256, without minima */
void QUANT_FILL(quant_kmin)(struct kern *kern); /* quant-kmin.c: of 256, with minima */
void QUANT_FILL(quant_book8)(
    struct kern *kern); /* quant-book8.c, quant-book4.c: of 256, codebooks */
void QUANT_FILL(quant_book4)(struct kern *kern);
void avx2_fill_float(struct kern *kern);     /* float.c: float activations */
void avx2_fill_vector(struct kern *kern);    /* vector.c: norms, activations, conversions */
void avx2_fill_attention(struct kern *kern); /* attention.c */

#endif
