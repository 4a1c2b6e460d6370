/* Private to dense/: buffers and constants of the dense half. Those of struct dense are seen by all
 * nodes: row-sliced products land there and are read after a barrier of all. Those of struct
 * dense_node are the node's own.
 */
#ifndef NUMOE_DENSE_STATE_H
#define NUMOE_DENSE_STATE_H

#include "dense/attn-block.h"
#include "dense/dense.h"
#include "dense/rope.h"

#define ATTN_HEAD_BLOCK     16u /* most heads of a token that one worker scores together */
#define ATTN_HEAD_BLOCK_MIN 4u  /* fewer would convert the same keys again for each */
#define MLA_HEAD_TOKENS     32u /* tokens that one head's matrix is multiplied with at a time */

/* On lines of its own: the reader is written all the time. */
struct dense_worker {
    _Alignas(CACHE_LINE_BYTES) struct weight_reader reader;
    struct attn_scratch attn;
    float *row;        /* longest row of a KV cache, all heads */
    float *glu;        /* 2 * WEIGHT_GLU_SCRATCH */
    void *embd;        /* a row of the embedding as in the file */
    struct act nope;   /* MLA: [MLA_HEAD_TOKENS, n_nope] */
    struct act latent; /* MLA: [MLA_HEAD_TOKENS, kv_lora] */
};

struct dense_node {
    struct node_arena *arena;
    struct dense_worker *worker; /* [n_worker] */
    unsigned n_worker;
    float *x;          /* [T, D] residual stream */
    float *angles;     /* [T, n_rot] of the tokens' positions */
    struct act norm;   /* [T, D] */
    struct act q_lora; /* [T, q_lora] */
    struct act attn;   /* [T, H * n_v], floats shared */
    struct act ff;     /* [T, n_ff], floats shared */
};

struct dense {
    const struct model *model;
    const struct store *store;
    const struct kern *kern;
    unsigned max_tokens, n_node;
    struct rope rope;
    struct dense_node *node; /* [n_node] */

    float *q_a;   /* [T, q_lora] */
    float *q;     /* [T, H * n_qk] */
    float *kv_a;  /* MLA: [T, kv_lora + n_rope] */
    float *k, *v; /* GQA: [T, Hkv * n_qk], [T, Hkv * n_v] */
    float *q_abs; /* MLA: [q_tokens, H, kv_lora + n_rope] */
    unsigned q_tokens;
    float *partial; /* partial softmaxes of a tile, see attn.c */
    size_t partial_stride, partial_floats;
    float *attn;   /* [T, H * n_v] */
    float *h;      /* [T, n_ff] */
    float *y;      /* [T, D] what goes into the residual stream next */
    float *logits; /* [n_logits, V] */

    /* the batch */
    unsigned n;
    struct dense_token *token; /* [max_tokens] */
    uint32_t *logits_row;      /* [max_tokens]: row in logits, UINT32_MAX where none are wanted */
    unsigned n_logits;
    unsigned n_chunk; /* KV chunks of the longest sequence */
};

static inline struct weight_reader *dense_reader(const struct dense *d, const struct worker *w)
{
    return &d->node[w->in].worker[w->iw].reader;
}

static inline const struct weight *dense_weight(const struct dense *d, unsigned il, enum slot slot)
{
    return &d->store->layer[il][slot];
}

/* norm(x) of the worker's own tokens into node->norm. A node barrier must follow. */
void dense_norm(struct dense *d, struct worker *w, const struct weight *norm, unsigned acts);

/* x += residual_scale * (y + bias) of the worker's own tokens; bias may be absent. */
void dense_residual(struct dense *d, struct worker *w, const struct weight *bias);

/* From norm(x) to d->attn, [T, H * n_v], complete on all nodes. */
void attn_mla(struct dense *d, struct worker *w, unsigned il);
void attn_gqa(struct dense *d, struct worker *w, unsigned il);

/* ------------------------------------------------------------------ attn.c: chunks and tiles */

/* Tokens [t0, t1) and heads [h0, h1) whose partial softmaxes are in memory together. */
struct attn_tile {
    unsigned t0, t1, h0, h1;
};

/* Floats of one partial softmax over n_value values. */
size_t attn_partial_stride(unsigned n_value);

/* Steps through tokens up to t_end and all heads; begin with {t, t, 0, n_head} for the first tile
 * to start at t. */
bool attn_tile_next(const struct dense *d, unsigned t_end, struct attn_tile *tile);

/* What a node computes of a tile: items are (chunk, KV head, group of tokens, block of heads),
 * chunks varying slowest, so that a worker goes through its tokens with the same rows in its cache.
 * First come the node's own chunks. Where all heads read one array (MLA) there is more to compute
 * than to read: chunks of a last round, which does not reach all nodes, are divided over the
 * workers of all. */
struct attn_part {
    unsigned in, n_node;
    /* Heads and blocks of one KV head, tokens and groups of them; the same on all nodes if MLA. */
    unsigned block, n_block, n_token, n_group;
    uint32_t per_chunk, n_own, n_item;
    unsigned rest_chunk; /* first of the last round */
    uint32_t rest0;      /* the node's first item there */
};
void attn_part_init(struct attn_part *p, const struct worker *w, unsigned n_chunk, unsigned n_token,
                    unsigned n_head, unsigned n_kv_head, bool one_array);
/* The chunk of an item, and its number within the chunk. */
unsigned attn_part_item(const struct attn_part *p, uint32_t item, uint32_t *within);

/* Softmax over each KV chunk alone, for the node's part. q [tokens, H, n_key]
 * begins at token q_t0 and is scaled. */
void attn_partials(struct dense *d, struct worker *w, unsigned il, const struct attn_tile *tile,
                   const float *q, unsigned q_t0);

/* The attention of token t and head h from its partials: out [n_value]. After a barrier of all. */
void attn_merge(const struct dense *d, unsigned in, unsigned il, const struct attn_tile *tile,
                unsigned t, unsigned h, float *out);

#endif
