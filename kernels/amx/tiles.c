/* AMX: a decoded span times many tokens, the same code for all formats of a kind. */
#include "kernels/amx/matmul.h"

#define TILES(name, n_scale, has_min)                                                              \
    void amx_tiles_##name(struct amx_chunk *c, const struct amx_span *w, unsigned n_panel,         \
                          unsigned i0, unsigned n, __m512(*acc)[CHUNK_AMX])                        \
    {                                                                                              \
        const struct kind kind = {n_scale, has_min, false, 0};                                     \
        if (n == SPAN) {                                                                           \
            amx_span_times(kind, c, w, n_panel, i0, SPAN, acc);                                    \
        } else {                                                                                   \
            amx_span_times(kind, c, w, n_panel, i0, n, acc);                                       \
        }                                                                                          \
    }

TILES(whole, 1, false)
TILES(whole_min, 1, true)
TILES(halves, 2, false)
TILES(halves_min, 2, true)
