/* Weights as they are computed with: packed panels in node arenas, cut by rows over the nodes.
 *
 * A weight is n_mat matrices (heads, experts; usually 1) of n_row rows of k elements. Every node holds
 * a contiguous range of rows of each matrix, in whole panels, uneven or empty; all ranges together are
 * [0, n_row). Vectors (norms, biases, sinks) are floats, one copy per node.
 */
#ifndef NUMOE_STORE_WEIGHT_H
#define NUMOE_STORE_WEIGHT_H

#include "kernels/kern.h"
#include "model/model.h"
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
    bool q8;                  /* meets int8 activations; otherwise floats */
    size_t panel_bytes;
    struct weight_part *part; /* [n_node] */
    const float **vec;        /* vectors: [n_node] -> [n_mat * n_row * k] floats; part is NULL then */
};

static inline bool weight_present(const struct weight *w) { return w->format != NULL; }

static inline uint32_t weight_part_panels(const struct weight_part *part)
{
    return (part->row1 - part->row0 + PANEL_ROWS - 1) / PANEL_ROWS;
}

/* y[yi(t) * ldy + r] for the rows of matrix `mat` that w's node holds, divided over the node's
 * workers by panels (share_next). All workers of all nodes call it; no barrier inside. */
void weight_matmul(const struct weight *w, uint32_t mat, struct worker *wk, const struct kern *kern,
                   const struct kern_act *x, const uint32_t *xi, const uint32_t *yi, unsigned n_token,
                   float *y, size_t ldy);

/* The same for panels [panel0, panel1) of node in's part only, by the calling worker alone. */
void weight_matmul_panels(const struct weight *w, uint32_t mat, unsigned in, uint32_t panel0,
                          uint32_t panel1, const struct kern *kern, const struct kern_act *x,
                          const uint32_t *xi, const uint32_t *yi, unsigned n_token, float *y,
                          size_t ldy);

/* How many items one worker takes at a time out of n that its node's workers share: large enough to
 * keep rows together, small enough that the last ones to finish are not waited for; at most max. */
uint32_t weight_grain(const struct worker *wk, uint32_t n, uint32_t max);

/* The gated half of a feed-forward block: h = act(gate * x, up * x). One worker computes gate and up
 * of the same rows and applies the activation while they are in its cache. */
struct weight_glu {
    const struct weight *gate, *up;
    const struct weight *gate_bias, *up_bias; /* vectors [n_mat, n_row], or absent */
    enum ffn_act act;
    float act_alpha, act_limit;
};

#define WEIGHT_GLU_SCRATCH 16384u /* floats; two such pieces for a worker */

/* h[hi(t) * ldh + r] for panels [panel0, panel1) of matrix mat in node in's part. scratch: 2 *
 * WEIGHT_GLU_SCRATCH floats of the worker. hi NULL is the identity. */
void weight_glu_panels(const struct weight_glu *g, uint32_t mat, unsigned in, uint32_t panel0,
                       uint32_t panel1, const struct kern *kern, const struct kern_act *x,
                       const uint32_t *xi, const uint32_t *hi, unsigned n_token, float *scratch,
                       float *h, size_t ldh);

/* One row as floats, from whichever node holds it (embedding look-up). out [k]. Any thread. */
void weight_row(const struct weight *w, uint32_t mat, uint32_t row, float *out, void *scratch);
size_t weight_row_scratch_bytes(const struct weight *w);

#endif
