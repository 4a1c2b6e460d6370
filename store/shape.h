/* What a model's tensors become before they are placed: a list of weights with type, shape and
 * size. Placement works on this list alone, so a list made by hand is as good as a model.
 */
#ifndef NUMOE_STORE_SHAPE_H
#define NUMOE_STORE_SHAPE_H

#include "base/mem.h"
#include "kernels/format.h"
#include "model/model.h"

enum shape_kind {
    SHAPE_MATRIX, /* rows as they are in the file, packed */
    SHAPE_VECTOR, /* floats, whole, a copy on every node */
    SHAPE_K_B,    /* the key half of an attn_kv_b, transposed per head */
};

struct shape {
    enum shape_kind kind;
    int layer;      /* -1: of the whole model */
    enum slot slot; /* what it is computed as */
    enum slot from; /* what it is called in the file: differs for the halves of an attn_kv_b */
    uint32_t format_id;
    uint32_t n_mat, n_row, k;
    /* Row r of matrix m is row m * from_rows + from_row0 + r of the source. */
    uint32_t from_rows, from_row0;
    uint32_t from_mat; /* matrix m here is matrix from_mat + m there */
    bool mapped;       /* stays in the file: takes no memory of a node */
};

struct shapes {
    unsigned n_layer, n_expert, n_expert_used;
    unsigned first_expert; /* of the model's, where others are another process's */
    bool is_tied;          /* the embedding is the output matrix too: read whole for each token */
    const char *model_name, *arch;
    unsigned n_embd, n_vocab; /* 0: not known */
    /* Of attention in a layer, for each position that is looked back on; is_latent: keys are shared
     * by all heads. */
    double attn_products;
    bool is_latent;
    struct shape *shape; /* [n] by layer, then by slot */
    unsigned n;
};

/* NUMOE_E_SUPPORT_TYPE names the tensor that cannot be computed with. */
numoe_status shapes_new(const struct model *model, struct shapes *out, numoe_error *err);
void shapes_fini(struct shapes *shapes);

/* Routed experts stay in the file. NUMOE_E_INPUT where there are none. */
numoe_status shapes_map_experts(struct shapes *shapes, numoe_error *err);
/* What stays in the file, one copy. */
uint64_t shapes_mapped_bytes(const struct shapes *shapes);
/* Of all, once. */
uint64_t shapes_bytes(const struct shapes *shapes);

/* Of n_expert experts in each layer, rank's of n_rank are [shapes_first_expert(rank), that of rank
 * + 1). */
static inline unsigned shapes_first_expert(unsigned n_expert, unsigned rank, unsigned n_rank)
{
    return (unsigned)((uint64_t)n_expert * rank / n_rank);
}

/* Whose expert ie is. */
static inline unsigned shapes_expert_rank(unsigned n_expert, unsigned ie, unsigned n_rank)
{
    return (unsigned)(((uint64_t)(ie + 1) * n_rank - 1) / n_expert);
}

/* Leaves only the routed experts of a rank, whose numbers begin with 0 then: their matrices and
 * what is added before they are down-projected; what is added afterwards is added by who sums up,
 * and stays. NUMOE_E_INPUT where there are fewer experts than ranks. Once, on new shapes. */
numoe_status shapes_spread(struct shapes *shapes, unsigned rank, unsigned n_rank, numoe_error *err);

bool shape_is_routed(const struct shape *s);
/* Of routed experts: their matrices and biases. */
bool shape_is_expert(const struct shape *s);

/* Takes the others out of the list. */
typedef bool shape_keep_fn(const struct shape *s, const void *arg);
void shapes_keep(struct shapes *shapes, shape_keep_fn *keep, const void *arg);

/* "blk.3.ffn_gate_exps.weight" */
void shape_name(int layer, enum slot slot, char *buf, size_t cap);

static inline uint32_t shape_panels(const struct shape *s)
{
    return (s->n_row + PANEL_ROWS - 1) / PANEL_ROWS;
}

size_t shape_panel_bytes(const struct shape *s);

/* From one matrix to the next where a node holds n_panel panels of each. */
static inline size_t shape_mat_bytes(const struct shape *s, uint32_t n_panel)
{
    return round_up(n_panel * shape_panel_bytes(s), CACHE_LINE_BYTES);
}

/* One copy, whole, as placed. */
uint64_t shape_bytes(const struct shape *s);

/* Bytes read for one decoded token out of those of one copy: 1 for most, less for experts. */
double shape_active_share(const struct shapes *shapes, const struct shape *s);
/* Bytes of it that a token's products read, on average; 0 of vectors. */
double shape_token_bytes(const struct shapes *shapes, const struct shape *s);

#endif
