/* The files that together fill the AVX-512 table. */
#ifndef NUMOE_KERNELS_AVX512_PARTS_H
#define NUMOE_KERNELS_AVX512_PARTS_H

struct kern;

/* What does integer products is compiled twice, for processors with VNNI and for those without. */
#ifdef AVX512_NO_VNNI
#define avx512_fill_quant_32    avx512bw_fill_quant_32
#define avx512_fill_quant_k     avx512bw_fill_quant_k
#define avx512_fill_quant_kmin  avx512bw_fill_quant_kmin
#define avx512_tiles_whole      avx512bw_tiles_whole
#define avx512_tiles_whole_wide avx512bw_tiles_whole_wide
#define avx512_tiles_whole_min  avx512bw_tiles_whole_min
#define avx512_tiles_halves     avx512bw_tiles_halves
#define avx512_tiles_halves_min avx512bw_tiles_halves_min
#define kern_avx512_fill        kern_avx512bw_fill
#endif

void avx512_fill_quant_32(struct kern *kern);   /* quant-32.c: blocks of 32, int8 activations */
void avx512_fill_quant_k(struct kern *kern);    /* quant-k.c: of 256, without minima */
void avx512_fill_quant_kmin(struct kern *kern); /* quant-kmin.c: of 256, with minima */
void avx512_fill_quant_iq(struct kern *kern);   /* quant-iq.c: codebooks; needs VBMI */
void avx512_fill_float(struct kern *kern);      /* float.c: float activations */
void avx512_fill_vector(struct kern *kern);     /* vector.c: norms, activations, conversions */
void avx512_fill_attention(struct kern *kern);  /* attention.c */

#endif
