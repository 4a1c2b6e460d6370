/* AMX: a block of a panel as planes times many tokens, the same code for all formats of a kind. */
#include "kernels/amx/block.h"

#define BLOCKS(name, f)                                                                            \
    static void times_##name(const struct block_chunk *c, const struct block_planes *w,            \
                             const struct block_step *now, struct block_step *next)                \
    {                                                                                              \
        panel_times(planes_of(FORMAT_##f), c, w, now, next);                                       \
    }                                                                                              \
    static void end_##name(const struct block_chunk *c, const struct block_step *now)              \
    {                                                                                              \
        panel_end(planes_of(FORMAT_##f), c, now);                                                  \
    }                                                                                              \
    const struct block_kind amx_blocks_##name = {times_##name, end_##name};

BLOCKS(one, Q2_K)
BLOCKS(halves, Q4_K)
BLOCKS(signed, Q6_K)
