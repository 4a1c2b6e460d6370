/* What the instruction sets give to the kernel table: each `fill` overrides the entries it has a
 * faster function for and leaves the others, so they are called in ascending order (ref, avx2,
 * avxvnni, avx512bw, avx512, amx). A fill is called only where kern.c has seen the processor
 * support it; its object code may contain those instructions anywhere. */
#ifndef NUMOE_KERNELS_ISA_H
#define NUMOE_KERNELS_ISA_H

#include "kernels/kern.h"

void kern_ref_fill(struct kern *kern); /* every entry */

void kern_avx2_fill(struct kern *kern);     /* AVX2, FMA, F16C: with KERN_HAVE_AVX2 */
void kern_avxvnni_fill(struct kern *kern);  /* VPDPBUSD on 256 bits: with KERN_HAVE_AVXVNNI */
void kern_avx512bw_fill(struct kern *kern); /* AVX-512 F, BW, VL, DQ: with KERN_HAVE_AVX512BW */
void kern_avx512_fill(struct kern *kern);   /* AVX-512 VNNI and the above: with KERN_HAVE_AVX512 */
void kern_amx_fill(struct kern *kern); /* AMX tiles of int8 and the above: with KERN_HAVE_AMX */

bool kern_cpu_has_vbmi(void); /* AVX-512 VBMI, for a part of the AVX-512 table */

#endif
