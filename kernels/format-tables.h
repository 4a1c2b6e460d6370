/* Constant tables that the codebook formats define. format-tables.c is written by
 * tests/data/format/make.py.
 *
 * Grids: byte j (counted from the least significant) of an entry is element j. IQ2 and IQ3 entries
 * are magnitudes, IQ1 entries are -1, 0 and 1 as int8. */
#ifndef NUMOE_KERNELS_FORMAT_TABLES_H
#define NUMOE_KERNELS_FORMAT_TABLES_H

#include <stdint.h>

extern const uint64_t format_grid_iq2_xxs[256];
extern const uint64_t format_grid_iq2_xs[512];
extern const uint64_t format_grid_iq2_s[1024];
extern const uint32_t format_grid_iq3_xxs[256];
extern const uint32_t format_grid_iq3_s[512];
extern const uint64_t format_grid_iq1[2048]; /* IQ1_S and IQ1_M */

extern const int8_t format_values_iq4[16]; /* IQ4_NL and IQ4_XS */
extern const int8_t format_values_fp4[16]; /* E2M1, doubled: MXFP4 */

/* Seven stored sign bits of 8 elements; the eighth makes their number even. Bit set: negative. */
static inline unsigned format_even_signs(unsigned bits7)
{
    return bits7 | (unsigned)__builtin_parity(bits7) << 7;
}

#endif
