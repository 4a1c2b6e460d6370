/* Buffers of the dense half: sizes, memory, the batch. Everything is allocated for the largest
 * batch before the first token; memory that a run does not reach is never touched.
 */
#include "dense/dense.h"

#include "base/mem.h"
#include "dense/state.h"

/* Of the buffers that long prompts are taken through piece by piece: small enough for a last-level
 * cache, large enough that the meetings after each piece do not matter. */
#define Q_TILE_BYTES  (16u << 20)
#define PARTIAL_BYTES (16u << 20)

static numoe_status alloc_floats(struct node_arena *arena, size_t n, float **out, numoe_error *err)
{
    return node_arena_alloc(arena, n * sizeof(float), out, err);
}

static numoe_status scratch_init(struct attn_scratch *s, struct node_arena *arena,
                                 const struct model_hparams *hp, numoe_error *err)
{
    const unsigned n_key = hp->attn == ATTN_MLA ? hp->kv_lora_rank + hp->n_rope : hp->n_qk;
    FORWARD_IF(alloc_floats(arena, (size_t)ATTN_QUERIES * n_key, &s->query, err));
    FORWARD_IF(alloc_floats(arena, (size_t)ATTN_QUERIES * KV_CHUNK, &s->score, err));
    FORWARD_IF(alloc_floats(arena, attn_tile_floats(n_key), &s->tile, err));
    return alloc_floats(arena, (size_t)ATTN_QUERIES * ATTN_COLUMNS, &s->sum, err);
}

static numoe_status worker_init(const struct dense *d, struct node_arena *arena,
                                struct dense_worker *worker, numoe_error *err)
{
    const struct model_hparams *hp = &d->model->hp;
    FORWARD_IF(scratch_init(&worker->attn, arena, hp, err));
    FORWARD_IF(alloc_floats(arena, 2 * WEIGHT_GLU_SCRATCH, &worker->glu, err));
    const struct tensor_source *embd = &d->model->src[SLOT_TOKEN_EMBD];
    FORWARD_IF(node_arena_alloc(arena, format_row_bytes(format_find(embd->format_id), embd->k),
                                &worker->embd, err));
    if (hp->attn == ATTN_MLA) {
        FORWARD_IF(alloc_floats(arena, hp->kv_lora_rank + hp->n_rope, &worker->row, err));
        FORWARD_IF(act_init(&worker->nope, arena, d->kern, hp->n_nope, MLA_HEAD_TOKENS, NULL, err));
        FORWARD_IF(act_init(&worker->latent, arena, d->kern, hp->kv_lora_rank, MLA_HEAD_TOKENS,
                            NULL, err));
    }
    return NUMOE_OK;
}

static numoe_status node_init(struct dense *d, unsigned in, unsigned n_worker, numoe_error *err)
{
    const struct model_hparams *hp = &d->model->hp;
    struct dense_node *node = &d->node[in];
    struct node_arena *arena = node->arena;
    node->n_worker = n_worker;
    const unsigned n_token = d->max_tokens;
    FORWARD_IF(
        mem_new_aligned(&node->worker, n_worker, sizeof *node->worker, "worker buffers", err));
    for (unsigned iw = 0; iw < n_worker; iw++) {
        node->worker[iw].reader = (struct weight_reader){.kern = d->kern, .in = in};
        FORWARD_IF(worker_init(d, arena, &node->worker[iw], err));
    }
    FORWARD_IF(alloc_floats(arena, (size_t)n_token * hp->n_embd, &node->x, err));
    FORWARD_IF(alloc_floats(arena, (size_t)n_token * d->rope.n_rot, &node->angles, err));
    FORWARD_IF(act_init(&node->norm, arena, d->kern, hp->n_embd, n_token, NULL, err));
    FORWARD_IF(act_init(&node->q_lora, arena, d->kern, hp->q_lora_rank, n_token, NULL, err));
    FORWARD_IF(act_init(&node->attn, arena, d->kern, hp->n_head * hp->n_v, n_token, d->attn, err));
    return act_init(&node->ff, arena, d->kern, hp->n_ff, n_token, d->h, err);
}

/* Buffers that all nodes write and read; on the first node. */
static numoe_status shared_init(struct dense *d, numoe_error *err)
{
    const struct model_hparams *hp = &d->model->hp;
    struct node_arena *arena = d->node[0].arena;
    const size_t n_token = d->max_tokens;
    FORWARD_IF(alloc_floats(arena, n_token * hp->n_head * hp->n_qk, &d->q, err));
    FORWARD_IF(alloc_floats(arena, n_token * hp->n_head * hp->n_v, &d->attn, err));
    FORWARD_IF(alloc_floats(arena, n_token * hp->n_ff, &d->h, err));
    FORWARD_IF(alloc_floats(arena, n_token * hp->n_embd, &d->y, err));
    FORWARD_IF(alloc_floats(arena, n_token * hp->n_vocab, &d->logits, err));
    FORWARD_IF(alloc_floats(arena, d->partial_floats, &d->partial, err));
    if (hp->attn == ATTN_MLA) {
        const size_t n_key = hp->kv_lora_rank + hp->n_rope;
        const size_t token_floats = hp->n_head * n_key;
        d->q_tokens = (unsigned)MIN(MAX(1u, Q_TILE_BYTES / sizeof(float) / token_floats), n_token);
        FORWARD_IF(alloc_floats(arena, n_token * hp->q_lora_rank, &d->q_a, err));
        FORWARD_IF(alloc_floats(arena, n_token * n_key, &d->kv_a, err));
        return alloc_floats(arena, d->q_tokens * token_floats, &d->q_abs, err);
    }
    FORWARD_IF(alloc_floats(arena, n_token * hp->n_head_kv * hp->n_qk, &d->k, err));
    return alloc_floats(arena, n_token * hp->n_head_kv * hp->n_v, &d->v, err);
}

/* From a node that has them; NULL where the model has none. */
static const float *rope_factors(const struct dense *d)
{
    if (d->store == NULL) {
        return NULL;
    }
    const struct weight *w = &d->store->w[SLOT_ROPE_FACTORS];
    for (unsigned in = 0; weight_present(w) && in < w->n_node; in++) {
        if (w->vec_here[in]) {
            return w->vec[in];
        }
    }
    return NULL;
}

static numoe_status init(struct dense *d, const struct pool_team *team, const struct topo *topo,
                         numoe_error *err)
{
    const struct model_hparams *hp = &d->model->hp;
    FORWARD_IF(rope_init(&d->rope, &hp->rope, rope_factors(d), err));
    FORWARD_IF(mem_new(&d->node, d->n_node, sizeof *d->node, "node buffers", err));
    FORWARD_IF(mem_new(&d->token, d->max_tokens, sizeof *d->token, "batch", err));
    FORWARD_IF(mem_new(&d->logits_row, d->max_tokens, sizeof *d->logits_row, "batch", err));
    for (unsigned in = 0; in < d->n_node; in++) {
        struct node_arena **arena = &d->node[in].arena;
        const unsigned at = team->node[in];
        FORWARD_IF(d->store != NULL ? node_arena_new(topo, at, "activations", arena, err)
                                    : node_arena_new_counting(topo, at, arena, err));
    }
    FORWARD_IF(shared_init(d, err));
    for (unsigned in = 0; in < d->n_node; in++) {
        FORWARD_IF(node_init(d, in, team->n_worker[in], err));
    }
    return NUMOE_OK;
}

/* store NULL: nothing can be computed, only counted. */
numoe_status dense_new(const struct model *model, const struct store *store,
                       const struct pool_team *team, const struct topo *topo,
                       const struct kern *kern, unsigned max_tokens, struct dense **out,
                       numoe_error *err)
{
    struct dense *d = NULL;
    FORWARD_IF(mem_new(&d, 1, sizeof *d, "dense half", err));
    d->model = model;
    d->store = store;
    d->kern = kern;
    d->max_tokens = max_tokens;
    d->n_node = team->n_node;
    d->partial_stride =
        attn_partial_stride(model->hp.attn == ATTN_MLA ? model->hp.kv_lora_rank : model->hp.n_v);
    const size_t max_chunk = ((size_t)kv_max_context(model) + KV_CHUNK - 1) / KV_CHUNK;
    d->partial_floats = MAX(PARTIAL_BYTES / sizeof(float), max_chunk * d->partial_stride);
    numoe_status status = init(d, team, topo, err);
    if (status != NUMOE_OK) {
        dense_free(d);
        return status;
    }
    *out = d;
    return NUMOE_OK;
}

numoe_status dense_buffer_bytes(const struct model *model, const struct pool_team *team,
                                const struct topo *topo, const struct kern *kern,
                                unsigned max_tokens, uint64_t *node_bytes, numoe_error *err)
{
    struct dense *d = NULL;
    FORWARD_IF(dense_new(model, NULL, team, topo, kern, max_tokens, &d, err));
    for (unsigned in = 0; in < d->n_node; in++) {
        node_bytes[in] += node_arena_bytes(d->node[in].arena);
    }
    dense_free(d);
    return NUMOE_OK;
}

void dense_free(struct dense *d)
{
    if (d == NULL) {
        return;
    }
    for (unsigned in = 0; d->node != NULL && in < d->n_node; in++) {
        mem_free(d->node[in].worker);
        if (d->node[in].arena != NULL) {
            node_arena_free(d->node[in].arena);
        }
    }
    rope_fini(&d->rope);
    mem_free(d->node);
    mem_free(d->token);
    mem_free(d->logits_row);
    mem_free(d);
}

void dense_begin(struct dense *d, const struct dense_token *tokens, unsigned n)
{
    d->n = n;
    d->n_logits = 0;
    d->n_chunk = 0;
    for (unsigned t = 0; t < n; t++) {
        d->token[t] = tokens[t];
        d->logits_row[t] = tokens[t].want_logits ? d->n_logits++ : UINT32_MAX;
        d->n_chunk = MAX(d->n_chunk, tokens[t].position / KV_CHUNK + 1);
    }
}

const struct weight_reader *dense_get_reader(const struct dense *d, unsigned in, unsigned iw)
{
    return &d->node[in].worker[iw].reader;
}

void dense_add_traffic(const struct dense *d, unsigned in, struct traffic *sum)
{
    for (unsigned iw = 0; iw < d->node[in].n_worker; iw++) {
        traffic_add(sum, &d->node[in].worker[iw].reader);
    }
}

const float *dense_logits(const struct dense *d, unsigned i)
{
    if (i >= d->n || d->logits_row[i] == UINT32_MAX) {
        return NULL;
    }
    return d->logits + (size_t)d->logits_row[i] * d->model->hp.n_vocab;
}
