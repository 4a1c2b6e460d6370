/* AVX-512 VNNI: a decoded span times many tokens, the same code for all formats of a kind. */
#include "kernels/avx512/matmul.h"

#define TILES(name, n_scale, has_min)                                                              \
    void avx512_tiles_##name(const struct span *span, const struct lane *lane, unsigned nt,        \
                             unsigned i0, unsigned n, int offset, __m512 *acc)                     \
    {                                                                                              \
        tiles_times((struct kind){n_scale, has_min, !(has_min), offset}, span, lane, nt, i0, n,    \
                    acc);                                                                          \
    }

TILES(whole, 1, false)
TILES(whole_min, 1, true)
TILES(halves, 2, false)
TILES(halves_min, 2, true)
