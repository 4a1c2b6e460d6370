/* AMX: a decoded span times many tokens, the same code for all formats. */
#include "kernels/amx/matmul.h"

void amx_tiles(struct amx_chunk *c, const struct amx_span *w, unsigned n_panel, unsigned i0,
               unsigned n, __m512 (*acc)[CHUNK_AMX])
{
    if (n == SPAN) { /* all loops have constant bounds */
        amx_span_times(c, w, n_panel, i0, SPAN, acc);
    } else {
        amx_span_times(c, w, n_panel, i0, n, acc);
    }
}
