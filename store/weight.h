/* Weights as they are computed with: packed panels in node arenas, cut by rows over the nodes.
 *
 * A weight is n_mat matrices (heads, experts; usually 1) of n_row rows of k elements. Every node holds
 * a contiguous range of rows of each matrix, in whole panels, uneven or empty; all ranges together are
 * [0, n_row). Vectors (norms, biases, sinks) are floats, one copy per node.
 */
#ifndef NUMOE_STORE_WEIGHT_H
#define NUMOE_STORE_WEIGHT_H

#include "kernels/kern.h"
#include "numa/arena.h"
#include "numa/pool.h"

struct weight_part {
    uint32_t row0, row1;      /* row0 is a multiple of PANEL_ROWS; row0 == row1: nothing here */
    const uint8_t *data;      /* panels of matrix 0 */
    size_t mat_bytes;         /* from one matrix to the next */
};

struct weight {
    const struct format *format; /* NULL: absent */
    uint32_t format_id;
    uint32_t n_mat, n_row, k;
    size_t panel_bytes;
    struct weight_part *part; /* [n_node] */
    const float **vec;        /* vectors: [n_node] -> [k] floats; part is NULL then */
};

static inline bool weight_present(const struct weight *w) { return w->format != NULL; }

/* y[yi(t) * ldy + r] for the rows of matrix `mat` that w's node holds, divided over the node's
 * workers by panels (share_next). All workers of all nodes call it; no barrier inside. */
void weight_matmul(const struct weight *w, uint32_t mat, struct worker *wk, const struct kern *kern,
                   const struct kern_act *x, const uint32_t *xi, const uint32_t *yi, unsigned n_token,
                   float *y, size_t ldy);

/* One row as floats, from whichever node holds it (embedding look-up). out [k]. Any thread. */
void weight_row(const struct weight *w, uint32_t mat, uint32_t row, float *out, void *scratch);
size_t weight_row_scratch_bytes(const struct weight *w);

#endif
