/* Weights as they are computed with: packed panels in node arenas, or rows that stay in the mapped
 * file and are packed, panel by panel, by whoever computes with them.
 *
 * A weight is n_mat matrices (heads, experts; usually 1) of n_row rows of k elements. A node holds
 * rows [held0, held1) of some or all matrices and computes rows [row0, row1) of those: the same
 * where rows are cut, fewer where nodes have copies. Dealt weights are the exception: panel g of
 * all matrices in one row is on node g % n_node, and is read by whoever computes it. Vectors
 * (norms, biases, sinks) are floats, one copy per node.
 */
#ifndef NUMOE_STORE_WEIGHT_H
#define NUMOE_STORE_WEIGHT_H

#include "kernels/kern.h"
#include "model/model.h"
#include "numa/arena.h"
#include "numa/pool.h"

struct weight_part {
    uint32_t row0, row1;    /* multiples of PANEL_ROWS, or the end; row0 == row1: no work here */
    uint32_t held0, held1;  /* likewise; held0 == held1: nothing is here */
    const uint8_t *data;    /* panels of the first matrix here, from row held0 on */
    size_t mat_bytes;       /* from one matrix to the next */
    uint32_t n_mat, n_run;  /* matrices that are loaded here; of them, one after the other in data */
    const uint8_t **at;     /* [w->n_mat] where each matrix is now, if it is; NULL: all are in data */
    uint32_t *mat;          /* [n_mat] which are loaded, those in data first; NULL: all */
    uint32_t n_dealt;       /* panels here of a dealt weight */
};

struct weight {
    const struct format *format; /* NULL: absent */
    uint32_t format_id;
    uint32_t n_mat, n_row, k;
    bool dealt, copied; /* copied: every node that computes holds everything */
    unsigned n_node;
    size_t panel_bytes;
    const uint8_t **map;      /* [n_mat] first row in the mapped file; NULL: placed */
    struct weight_part *part; /* [n_node]; of a mapped weight without data */
    const float **vec; /* vectors: [n_node] -> [n_mat * n_row * k] floats; part is NULL then */
    bool *vec_here;    /* [n_node] vectors: whether the node computes */
};

static inline bool weight_present(const struct weight *w)
{
    return w->format != NULL;
}

/* The form of activations that products with it read (enum kern_act_kind); 0 if it is absent. */
static inline unsigned weight_acts(const struct weight *w, const struct kern *kern)
{
    return weight_present(w) ? kern->act[w->format_id] : 0;
}

static inline uint32_t weight_panels(const struct weight *w)
{
    return (w->n_row + PANEL_ROWS - 1) / PANEL_ROWS;
}

/* Panels of a matrix that the node computes, and that it holds. */
static inline uint32_t weight_part_panels(const struct weight_part *part)
{
    return (part->row1 - part->row0 + PANEL_ROWS - 1) / PANEL_ROWS;
}

static inline uint32_t weight_part_held(const struct weight_part *part)
{
    return (part->held1 - part->held0 + PANEL_ROWS - 1) / PANEL_ROWS;
}

/* Panel `panel` of all those of matrix mat, as node in reads it: its own copy if it has one. */
static inline const uint8_t *weight_panel(const struct weight *w, unsigned in, uint32_t mat,
                                          uint32_t panel)
{
    const struct weight_part *part = &w->part[in];
    if (w->dealt) {
        const uint64_t g = (uint64_t)mat * weight_panels(w) + panel;
        return w->part[g % w->n_node].data + g / w->n_node * w->panel_bytes;
    }
    const uint8_t *first = part->at != NULL ? part->at[mat] : part->data + mat * part->mat_bytes;
    return first + (panel - part->held0 / PANEL_ROWS) * w->panel_bytes;
}

/* Whether it is in node in's memory; of a node that holds some of the matrix, or a dealt weight. */
static inline bool weight_holds(const struct weight *w, unsigned in, uint32_t mat, uint32_t panel)
{
    const struct weight_part *part = &w->part[in];
    if (w->dealt) {
        return ((uint64_t)mat * weight_panels(w) + panel) % w->n_node == in;
    }
    return panel * PANEL_ROWS >= part->held0 && panel * PANEL_ROWS < part->held1;
}

/* The node that computes a row, where rows are divided. */
unsigned weight_row_node(const struct weight *w, uint32_t row);

struct traffic {
    uint64_t local_bytes, remote_bytes, file_bytes;
};

/* Who multiplies: a worker's node, its kernels, and how many bytes of matrices it has read, from
 * its node's memory, from others', and from mapped files. Each worker has its own, on lines of its
 * own. */
struct weight_reader {
    const struct kern *kern;
    unsigned in;
    uint64_t local_bytes, remote_bytes, file_bytes;
    uint8_t *panel; /* room for one of a mapped weight's; NULL where none is */
};

static inline void traffic_add(struct traffic *sum, const struct weight_reader *rd)
{
    sum->local_bytes += rd->local_bytes;
    sum->remote_bytes += rd->remote_bytes;
    sum->file_bytes += rd->file_bytes;
}

/* Asks the system to read a mapped matrix's rows that node in computes, before they are touched:
 * all at once instead of page by page. Does not wait; nothing for placed weights. */
void weight_will_need(const struct weight *w, uint32_t mat, unsigned in);

/* y[yi(t) * ldy + r] for the rows of matrix `mat` that w's node computes, divided over the node's
 * workers by panels (share_next). All workers of all nodes call it; no barrier inside. */
void weight_matmul(const struct weight *w, uint32_t mat, struct worker *wk,
                   struct weight_reader *rd, const struct kern_act *x, const uint32_t *xi,
                   const uint32_t *yi, unsigned n_token, float *y, size_t ldy);

/* The same for panels [panel0, panel1) of what the node computes, by the calling worker alone. */
void weight_matmul_panels(const struct weight *w, uint32_t mat, struct weight_reader *rd,
                          uint32_t panel0, uint32_t panel1, const struct kern_act *x,
                          const uint32_t *xi, const uint32_t *yi, unsigned n_token, float *y,
                          size_t ldy);

/* How many items one worker takes at a time out of n that its node's workers share: large enough to
 * keep rows together, small enough that the last ones to finish are not waited for; at most max. */
uint32_t weight_grain(const struct worker *wk, uint32_t n, uint32_t max);

/* The gated half of a feed-forward block: h = act(gate * x, up * x). One worker computes gate and
 * up of the same rows and applies the activation while they are in its cache. */
struct weight_glu {
    const struct weight *gate, *up;
    const struct weight *gate_bias, *up_bias; /* vectors [n_mat, n_row], or absent */
    enum ffn_act act;
    float act_alpha, act_limit;
};

#define WEIGHT_GLU_SCRATCH 16384u /* floats; two such pieces for a worker */

/* h[t * ldh + r] for panels [panel0, panel1) of what the node computes of matrix mat. scratch: 2 *
 * WEIGHT_GLU_SCRATCH floats of the worker. */
void weight_glu_panels(const struct weight_glu *g, uint32_t mat, struct weight_reader *rd,
                       uint32_t panel0, uint32_t panel1, const struct kern_act *x,
                       const uint32_t *xi, unsigned n_token, float *scratch, float *h, size_t ldh);

/* One row as floats (embedding look-up), by a node that holds it, or that computes it. out [k]. */
void weight_row(const struct weight *w, uint32_t mat, uint32_t row, struct weight_reader *rd,
                float *out, void *scratch);
size_t weight_row_scratch_bytes(const struct weight *w);

#endif
