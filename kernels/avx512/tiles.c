/* AVX-512: a decoded span times many tokens, the same code for all formats of a kind. */
#include "kernels/avx512/matmul.h"

#define TILES(name, n_scale, has_min, wide)                                                        \
    void avx512_tiles_##name(const struct span *span, const struct lane *lane, unsigned nt,        \
                             unsigned i0, unsigned n, int offset, __m512 *acc)                     \
    {                                                                                              \
        tiles_times((struct kind){n_scale, has_min, !(has_min), wide, offset}, span, lane, nt, i0, \
                    n, acc);                                                                       \
    }

TILES(whole, 1, false, false)
TILES(whole_wide, 1, false, true)
TILES(whole_min, 1, true, false)
TILES(halves, 2, false, false)
TILES(halves_min, 2, true, false)
