/* The AVX2 table: every entry. And that of AVX-VNNI, which takes all but the products of quantized
 * weights from it: this file is compiled once for each. */
#include "kernels/avx2/parts.h"
#include "kernels/isa.h"

static void fill_quant(struct kern *kern)
{
    QUANT_FILL(quant_32)(kern);
    QUANT_FILL(quant_k)(kern);
    QUANT_FILL(quant_kmin)(kern);
    QUANT_FILL(quant_book8)(kern);
    QUANT_FILL(quant_book4)(kern);
}

#ifdef KERN_AVXVNNI
void kern_avxvnni_fill(struct kern *kern)
{
    fill_quant(kern);
}
#else
void kern_avx2_fill(struct kern *kern)
{
    fill_quant(kern);
    avx2_fill_float(kern);
    avx2_fill_vector(kern);
    avx2_fill_attention(kern);
}
#endif
