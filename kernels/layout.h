/* What the vector kernels know of the formats they are written for, as constants: every function is
 * called with a constant format and vanishes. A *sub-block* is 32 elements, what one activation
 * scale covers. */
#ifndef NUMOE_KERNELS_LAYOUT_H
#define NUMOE_KERNELS_LAYOUT_H

#include "kernels/format.h"

#define KERN_INLINE static inline __attribute__((always_inline))

/* Bytes of a block of a panel. */
KERN_INLINE size_t layout_bytes(enum format_id f)
{
    switch (f) {
    case FORMAT_Q4_0:
    case FORMAT_IQ4_NL:
        return 16 * 18;
    case FORMAT_Q4_1:
        return 16 * 20;
    case FORMAT_Q5_0:
        return 16 * 22;
    case FORMAT_Q5_1:
        return 16 * 24;
    case FORMAT_Q8_0:
        return 16 * 34;
    case FORMAT_MXFP4:
        return 16 * 17;
    case FORMAT_Q2_K:
        return 16 * 84;
    case FORMAT_Q3_K:
        return 16 * 110;
    case FORMAT_Q4_K:
        return 16 * 144;
    case FORMAT_Q5_K:
        return 16 * 176;
    case FORMAT_Q6_K:
        return 16 * 210;
    case FORMAT_IQ4_XS:
        return 16 * 136;
    case FORMAT_IQ1_S:
        return 16 * 50;
    case FORMAT_IQ1_M:
        return 16 * 56;
    case FORMAT_IQ2_XXS:
    case FORMAT_TQ2_0:
        return 16 * 66;
    case FORMAT_IQ2_XS:
        return 16 * 74;
    case FORMAT_IQ2_S:
        return 16 * 82;
    case FORMAT_IQ3_XXS:
        return 16 * 98;
    case FORMAT_IQ3_S:
        return 16 * 110;
    case FORMAT_TQ1_0:
        return 16 * 54;
    default:
        __builtin_unreachable();
    }
}

/* Formats whose quants are indices of a table's entries. */
KERN_INLINE bool layout_is_codebook(enum format_id f)
{
    return f == FORMAT_IQ1_S || f == FORMAT_IQ1_M || f == FORMAT_IQ2_XXS || f == FORMAT_IQ2_XS ||
           f == FORMAT_IQ2_S || f == FORMAT_IQ3_XXS || f == FORMAT_IQ3_S;
}

/* Sub-blocks in a block. */
KERN_INLINE unsigned layout_n_sub(enum format_id f)
{
    switch (f) {
    case FORMAT_Q4_0:
    case FORMAT_Q4_1:
    case FORMAT_Q5_0:
    case FORMAT_Q5_1:
    case FORMAT_Q8_0:
    case FORMAT_IQ4_NL:
    case FORMAT_MXFP4:
        return 1;
    default:
        return 8;
    }
}

/* Whether sub-blocks are alike enough for one piece of code: blocks that are one, and table
 * look-ups, which are so long that eight of them would not stay decoded in the processor. */
KERN_INLINE bool layout_is_rolled(enum format_id f)
{
    return layout_is_codebook(f) || layout_n_sub(f) == 1;
}

/* Scales in a sub-block: one for all of it or one for each half. */
KERN_INLINE unsigned layout_n_scale(enum format_id f)
{
    switch (f) {
    case FORMAT_Q2_K:
    case FORMAT_Q3_K:
    case FORMAT_Q6_K:
    case FORMAT_IQ1_M:
    case FORMAT_IQ2_XS:
    case FORMAT_IQ2_S:
        return 2;
    default:
        return 1;
    }
}

KERN_INLINE bool layout_has_min(enum format_id f)
{
    return f == FORMAT_Q4_1 || f == FORMAT_Q5_1 || f == FORMAT_Q2_K || f == FORMAT_Q4_K ||
           f == FORMAT_Q5_K;
}

/* Whether the sub-blocks of a block come back to bytes that lie before others already read. */
KERN_INLINE bool layout_is_scattered(enum format_id f)
{
    return f == FORMAT_Q5_K || f == FORMAT_Q6_K || f == FORMAT_Q3_K || f == FORMAT_Q2_K ||
           layout_is_codebook(f);
}

/* Bytes of a panel to a sub-block (on average, where they share a head). */
KERN_INLINE size_t layout_sub_bytes(enum format_id f)
{
    return layout_bytes(f) / layout_n_sub(f);
}

/* Where sub-block j of the 8 that begin at b is read from: its own block, or the one of all. */
KERN_INLINE const uint8_t *layout_block(enum format_id f, const uint8_t *b, unsigned j)
{
    return layout_n_sub(f) == 1 ? b + j * layout_bytes(f) : b;
}

#endif
