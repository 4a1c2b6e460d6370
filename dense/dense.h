/* The half of a layer that every token runs through, on the worker pools: embedding, attention with
 * its KV cache, dense feed-forward blocks, norms, head.
 *
 * All stage functions are called by every worker of every node, in the same order (SPMD). Tokens
 * are divided over a node's workers always in the same way (dense_own_tokens): what a worker does
 * to the residual stream of its own tokens needs no barrier before it goes on with them.
 */
#ifndef NUMOE_DENSE_DENSE_H
#define NUMOE_DENSE_DENSE_H

#include "dense/kv.h"
#include "store/act.h"
#include "store/store.h"

struct dense;

struct dense_token {
    int32_t id;
    uint32_t position;   /* positions of one sequence ascend within a batch */
    struct kv_cache *kv; /* has room for position */
    bool want_logits;
};

/* For the nodes of a team, which the store is placed on; its nodes are counted as the team's. */
numoe_status dense_new(const struct model *model, const struct store *store,
                       const struct pool_team *team, const struct topo *topo,
                       const struct kern *kern, unsigned max_tokens, struct dense **out,
                       numoe_error *err);
/* Adds the memory that dense_new() will take to node_bytes [the team's nodes]. */
numoe_status dense_buffer_bytes(const struct model *model, const struct pool_team *team,
                                const struct topo *topo, const struct kern *kern,
                                unsigned max_tokens, uint64_t *node_bytes, numoe_error *err);
void dense_free(struct dense *d);

/* Sets the batch, n <= max_tokens; copied. By the caller's thread, before the workers start. */
void dense_begin(struct dense *d, const struct dense_token *tokens, unsigned n);

/* ------------------------------------------------------------------ stages, in order of use */

/* x = embedding of the tokens. */
void dense_embed(struct dense *d, struct worker *w);

/* x = a residual stream [n, D] that somebody else has brought through the first layers: in place of
 * dense_embed(). */
void dense_enter(struct dense *d, struct worker *w, const float *stream);

/* x += attention(norm(x)) */
void dense_attention(struct dense *d, struct worker *w, unsigned il);

/* x += ffn(norm(x)): layers without experts. */
void dense_ffn(struct dense *d, struct worker *w, unsigned il);

/* norm(x) of all tokens, for layers with experts, on this worker's node: floats, and the forms that
 * `acts` names. */
const struct act *dense_ffn_input(struct dense *d, struct worker *w, unsigned il, unsigned acts);

/* Logits of the tokens that want them. */
void dense_head(struct dense *d, struct worker *w);

/* ------------------------------------------------------------------ */

/* The node's copy of the residual stream, [T, D]. */
float *dense_stream(struct dense *d, const struct worker *w);

static inline void dense_own_tokens(const struct worker *w, unsigned n_token, uint32_t *lo,
                                    uint32_t *hi)
{
    share_static(n_token, w->iw, w->nw, lo, hi);
}

/* [V] of token i of the last batch; NULL where none were wanted. */
const float *dense_logits(const struct dense *d, unsigned i);

/* Of a worker: its counts of bytes. */
const struct weight_reader *dense_get_reader(const struct dense *d, unsigned in, unsigned iw);

/* Adds what node in's workers have read of matrices so far. Between batches. */
void dense_add_traffic(const struct dense *d, unsigned in, struct traffic *sum);

#endif
