/* One decoder per quantized format, for the table in format.c: a block of the file to small
 * integers (struct format_ints in kernels/format.h). */
#ifndef NUMOE_KERNELS_FORMAT_DECODE_H
#define NUMOE_KERNELS_FORMAT_DECODE_H

#include "kernels/format.h"

typedef void format_decode_fn(const void *block, struct format_ints *out);

format_decode_fn format_decode_q4_0, format_decode_q4_1, format_decode_q5_0, format_decode_q5_1,
    format_decode_q8_0;
format_decode_fn format_decode_q2_k, format_decode_q3_k, format_decode_q4_k, format_decode_q5_k,
    format_decode_q6_k;
format_decode_fn format_decode_iq1_s, format_decode_iq1_m, format_decode_iq2_xxs,
    format_decode_iq2_xs, format_decode_iq2_s, format_decode_iq3_xxs, format_decode_iq3_s,
    format_decode_iq4_nl, format_decode_iq4_xs;
format_decode_fn format_decode_tq1_0, format_decode_tq2_0, format_decode_mxfp4;

#endif
