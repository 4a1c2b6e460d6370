/* AMX: the shapes of the tile registers, for both drivers. */
#ifndef NUMOE_KERNELS_AMX_TILE_H
#define NUMOE_KERNELS_AMX_TILE_H

#include <immintrin.h>

#include "kernels/layout.h"

#define TILE_TOKENS 16u /* rows of a tile */

/* What ldtilecfg reads: of register i, the bytes of a row and the number of rows. */
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} __attribute__((aligned(64)));

/* The compiler takes the instruction to read the first 8 bytes alone; hence the barrier. */
KERN_INLINE void tile_load_config(const struct tile_config *config)
{
    __asm__ volatile("" : : : "memory");
    _tile_loadconfig(config);
}

#endif
