/* Steps: the CPU's own stages for the dense half, with hand-offs where experts are the engine's.
 * The order of stages is runtime/step.c's.
 */
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "dense/dense.h"
#include "experts/experts.h"
#include "experts/dispatch.h"
#include "gpu/common/sizes.h"
#include "gpu/emu/emu.h"
#include "kernels/select.h"
#include "numa/gate.h"

#define SPIN_NS 20000u
#define NAP_NS  50000

struct emu {
    const struct emu_options *options;
    struct exchange_header *h;
    const struct exchange_layer *layer;
    const struct kern *kern;
    struct topo *topo;
    struct pools *pools;
    struct model *model;
    struct shapes shapes;
    struct store *store;
    struct dense *dense;
    struct experts *experts;
    bool *elsewhere;           /* [n_layer, n_expert] those that are not hot */
    struct dense_token *token; /* [max_tokens] */
    struct kv_cache **kv;      /* [max_seq] by row of the block tables */
    struct node_arena *arena;
    uint8_t *block; /* [n_block, block_bytes] */
    size_t block_bytes;

    const struct exchange_step *step; /* the running one */
};

static bool is_last(const struct emu *e)
{
    return e->h->n_dense_layer == e->h->n_layer;
}

/* ------------------------------------------------------------------ load */

static numoe_status check_model(const struct emu *e, numoe_error *err)
{
    const struct exchange_model m = model_sizes(e->model);
    return exchange_check_model(e->h, &m, err);
}

static bool is_ours(const struct shape *s, const void *arg)
{
    const struct emu *e = arg;
    if (s->layer < 0) {
        return is_last(e) || s->slot == SLOT_TOKEN_EMBD || s->slot == SLOT_ROPE_FACTORS;
    }
    if ((uint32_t)s->layer >= e->h->n_dense_layer) {
        return false;
    }
    const struct exchange_layer *l = &e->layer[s->layer];
    return !shape_is_expert(s) || l->hot0 < l->hot1;
}

static numoe_status place_hot(const struct emu *e, const struct shape *s, struct placement *p,
                              numoe_error *err)
{
    const struct exchange_layer *l = &e->layer[s->layer];
    const uint32_t *hot = exchange_at(e->h, e->h->hot_at);
    for (uint32_t i = l->hot0; i < l->hot1; i++) {
        FORWARD_IF(placement_add(
            p, s, (struct placement_slice){.mat0 = hot[i], .mat1 = hot[i] + 1, .row1 = s->n_row},
            err));
    }
    return NUMOE_OK;
}

/* Everything on the one node; of routed experts, the hot ones. */
static numoe_status place(const struct emu *e, struct placement *p, numoe_error *err)
{
    p->mode = NUMOE_PLACEMENT_SHARD;
    p->n_node = 1;
    p->share[0] = 1;
    for (unsigned is = 0; is < e->shapes.n; is++) {
        const struct shape *s = &e->shapes.shape[is];
        if (s->kind == SHAPE_VECTOR) {
            p->total_bytes += shape_bytes(s);
        } else if (shape_is_routed(s)) {
            FORWARD_IF(place_hot(e, s, p, err));
        } else {
            const struct placement_slice all = {.mat1 = s->n_mat, .row1 = s->n_row};
            FORWARD_IF(placement_add(p, s, all, err));
        }
    }
    placement_sort(p);
    return NUMOE_OK;
}

static void report(void *arg, uint64_t done_bytes, uint64_t total_bytes)
{
    const struct exchange_progress progress = {done_bytes, total_bytes};
    (void)arg;
    exchange_send(EXCHANGE_FD, EXCHANGE_PROGRESS, &progress, sizeof progress, -1, NULL);
}

static numoe_status load_weights(struct emu *e, numoe_error *err)
{
    struct placement *p = NULL;
    FORWARD_IF(shapes_new(e->model, &e->shapes, err));
    shapes_keep(&e->shapes, is_ours, e);
    FORWARD_IF(mem_new(&p, 1, sizeof *p, "plan", err));
    numoe_status status = place(e, p, err);
    if (status == NUMOE_OK) {
        status =
            store_load(e->model, &e->shapes, p, e->topo, e->pools, report, NULL, &e->store, err);
    }
    placement_free(p);
    return status;
}

static numoe_status mark_elsewhere(struct emu *e, numoe_error *err)
{
    const size_t n_expert = e->h->n_expert;
    const uint32_t *hot = exchange_at(e->h, e->h->hot_at);
    FORWARD_IF(mem_new(&e->elsewhere, e->h->n_layer * n_expert, 1, "list of experts", err));
    memset(e->elsewhere, true, e->h->n_layer * n_expert);
    for (uint32_t il = 0; il < e->h->n_dense_layer; il++) {
        for (uint32_t i = e->layer[il].hot0; i < e->layer[il].hot1; i++) {
            e->elsewhere[il * n_expert + hot[i]] = false;
        }
    }
    experts_set_elsewhere(e->experts, e->elsewhere);
    return NUMOE_OK;
}

static numoe_status make_caches(struct emu *e, numoe_error *err)
{
    const struct exchange_header *h = e->h;
    const unsigned n_ctx = h->max_seq_block * KV_CHUNK;
    if (h->block_tokens != KV_CHUNK) {
        return status_fail(err, NUMOE_E_SUPPORT, "KV blocks of %u positions", h->block_tokens);
    }
    FORWARD_IF(mem_new(&e->kv, h->max_seq, sizeof(struct kv_cache *), "KV caches", err));
    for (uint32_t i = 0; i < h->max_seq; i++) {
        FORWARD_IF(kv_new(e->model, e->topo, e->pools, (enum kv_type)h->kv_type,
                          MIN(n_ctx, kv_max_context(e->model)), &e->kv[i], err));
    }
    e->block_bytes = kv_chunk_bytes(e->kv[0]);
    FORWARD_IF(node_arena_new(e->topo, 0, "KV cache", &e->arena, err));
    return node_arena_alloc(e->arena, h->n_block * e->block_bytes, &e->block, err);
}

/* A machine of one node and n cores that is not this one: threads stay where the kernel wants them,
 * out of the way of the engine's. */
static numoe_status make_pools(struct emu *e, numoe_error *err)
{
    char spec[64];
    snprintf(spec, sizeof spec, "[numa(memory=64TiB)] core:%u pu:1", e->options->n_thread);
    FORWARD_IF(topo_load(spec, &e->topo, err));
    return pools_new(e->topo, e->options->n_thread, &e->pools, err);
}

static numoe_status load(struct emu *e, numoe_error *err)
{
    struct pool_team nodes;
    FORWARD_IF(kern_select(&e->kern, err));
    FORWARD_IF(make_pools(e, err));
    FORWARD_IF(model_open(exchange_at(e->h, e->h->path_at), &e->model, err));
    FORWARD_IF(check_model(e, err));
    FORWARD_IF(load_weights(e, err));
    pools_team(e->pools, &nodes);
    FORWARD_IF(mem_new(&e->token, e->h->max_tokens, sizeof *e->token, "batch", err));
    FORWARD_IF(
        dense_new(e->model, e->store, &nodes, e->topo, e->kern, e->h->max_tokens, &e->dense, err));
    FORWARD_IF(experts_new(e->model, e->store, &nodes, e->topo, e->kern, e->h->max_tokens,
                           NULL, &e->experts, err));
    FORWARD_IF(mark_elsewhere(e, err));
    return make_caches(e, err);
}

/* What was taken until a failure goes with the process. */
numoe_status emu_load(const struct emu_options *o, void *segment, struct emu **out,
                      numoe_error *err)
{
    struct emu *e = NULL;
    FORWARD_IF(mem_new(&e, 1, sizeof *e, "emulated GPU", err));
    e->options = o;
    e->h = segment;
    e->layer = exchange_at(segment, e->h->layer_at);
    FORWARD_IF(load(e, err));
    *out = e;
    return NUMOE_OK;
}

void emu_use(const struct emu *e, struct exchange_use *use)
{
    const uint64_t free_bytes = (uint64_t)e->options->vram_mib << 20;
    use[0] = (struct exchange_use){
        .dense_bytes = e->store->bytes,
        .kv_bytes = e->h->n_block * e->block_bytes,
        .free_bytes = free_bytes,
    };
}

/* ------------------------------------------------------------------ hand-offs */

static void wait_bell(const struct exchange_bell *bell, uint64_t value)
{
    const uint64_t from = clock_ns();
    while (exchange_bell_get(bell) < value) {
        if (clock_ns() - from < SPIN_NS) {
            gate_relax();
        } else {
            nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
        }
    }
}

/* Round to nearest, ties to even. */
static uint16_t bf16_of_float(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

static void write_x(const struct emu *e, uint64_t slot, const float *x, size_t t)
{
    const size_t d = e->h->n_embd;
    void *to = exchange_at(e->h, e->h->x_at[slot]);
    if (e->h->x_type == EXCHANGE_X_F32) {
        memcpy((float *)to + t * d, x + t * d, d * sizeof *x);
        return;
    }
    for (size_t i = t * d; i < (t + 1) * d; i++) {
        ((uint16_t *)to)[i] = bf16_of_float(x[i]);
    }
}

/* A layer's choices of the worker's own tokens, to [max_tokens, n_expert_used] of a hand-off or of
 * the result. In a hand-off, hot here is elsewhere there. */
static void write_choice(const struct emu *e, struct worker *w, bool hands, int32_t *to,
                         float *to_weights, uint32_t lo, uint32_t hi)
{
    const size_t k = e->h->n_expert_used;
    const int32_t *ids;
    const float *weights;
    experts_choice(e->experts, w, &ids, &weights);
    for (size_t i = lo * k; i < hi * k; i++) {
        to[i] = emu_fault_ids() ? INT32_MAX : hands ? EXCHANGE_HOT(ids[i]) : ids[i];
    }
    memcpy(to_weights + lo * k, weights + lo * k, (hi - lo) * k * sizeof *weights);
}

/* Everybody's part is there; the first worker says so. */
static void ring_x(struct emu *e, struct worker *w, uint64_t hand)
{
    worker_all_barrier(w);
    if (w->ig == 0) {
        emu_fault(EMU_X, hand, EXCHANGE_FD);
        exchange_bell_ring(&e->h->x, hand);
    }
}

/* For the result: those of a layer whose experts are all here. */
static void write_routes(const struct emu *e, struct worker *w, unsigned i_route, uint32_t lo,
                         uint32_t hi)
{
    const struct exchange_header *h = e->h;
    const uint64_t slot = e->step->number % 2;
    const size_t at = (size_t)i_route * h->max_tokens * h->n_expert_used;
    write_choice(e, w, false, (int32_t *)exchange_at(e->h, h->route_id_at[slot]) + at,
                 (float *)exchange_at(e->h, h->route_weight_at[slot]) + at, lo, hi);
}

/* Numbers of the next hand-off, and of the next layer whose choices come with the result. */
struct place_in_step {
    uint64_t hand;
    unsigned route;
};

static void walk_experts(struct emu *e, struct worker *w, unsigned il, struct place_in_step *next)
{
    const unsigned n = e->step->n_token;
    const bool hands = e->layer[il].flags & EXCHANGE_LAYER_HAND;
    const uint64_t slot = next->hand % 2;
    uint32_t lo, hi;
    const struct act *x = dense_ffn_input(e->dense, w, il, experts_want_acts(e->experts, il));
    experts_route(e->experts, w, il, x, n);
    dense_own_tokens(w, n, &lo, &hi);
    if (hands) {
        for (uint32_t t = lo; t < hi; t++) {
            write_x(e, slot, x->f, t);
        }
        write_choice(e, w, true, exchange_at(e->h, e->h->id_at[slot]),
                     exchange_at(e->h, e->h->weight_at[slot]), lo, hi);
        ring_x(e, w, next->hand);
    } else if (e->layer[il].flags & EXCHANGE_LAYER_ROUTES) {
        write_routes(e, w, next->route++, lo, hi);
    }
    experts_run(e->experts, w, il, x, n);
    if (hands) {
        if (w->ig == 0) {
            wait_bell(&e->h->y, next->hand);
        }
        worker_all_barrier(w);
        next->hand++;
    }
    experts_combine(e->experts, w, il, hands ? exchange_at(e->h, e->h->y_at[slot]) : NULL,
                    dense_stream(e->dense, w), lo, hi);
}

/* ------------------------------------------------------------------ a step */

static void walk(struct worker *w, void *arg)
{
    struct emu *e = arg;
    struct place_in_step next = {.hand = e->step->first_hand};
    dense_embed(e->dense, w);
    for (unsigned il = 0; il < e->h->n_dense_layer; il++) {
        dense_attention(e->dense, w, il);
        if (e->model->layer[il].is_moe) {
            walk_experts(e, w, il, &next);
        } else {
            dense_ffn(e->dense, w, il);
        }
    }
    if (is_last(e)) {
        dense_head(e->dense, w);
        return;
    }
    const size_t d = e->h->n_embd;
    float *to = exchange_at(e->h, e->h->x_at[next.hand % 2]);
    uint32_t lo, hi;
    dense_own_tokens(w, e->step->n_token, &lo, &hi);
    memcpy(to + lo * d, dense_stream(e->dense, w) + lo * d, (hi - lo) * d * sizeof *to);
    ring_x(e, w, next.hand);
}

static void map_blocks(const struct emu *e, uint64_t slot)
{
    const struct exchange_seq *seq = exchange_at(e->h, e->h->seq_at[slot]);
    const struct exchange_copy *copy = exchange_at(e->h, e->h->copy_at[slot]);
    const uint32_t *table = exchange_at(e->h, e->h->table_at);
    for (uint32_t i = 0; i < e->step->n_copy; i++) {
        memcpy(e->block + copy[i].to * e->block_bytes, e->block + copy[i].from * e->block_bytes,
               e->block_bytes);
    }
    for (uint32_t is = 0; is < e->step->n_seq; is++) {
        const uint32_t *row = table + (size_t)seq[is].row * e->h->max_seq_block;
        for (uint32_t i = 0; i < seq[is].n_block; i++) {
            kv_map(e->kv[seq[is].row], i, e->block + row[i] * e->block_bytes);
        }
    }
}

static void take_tokens(struct emu *e, uint64_t slot)
{
    const struct exchange_token *token = exchange_at(e->h, e->h->token_at[slot]);
    const struct exchange_seq *seq = exchange_at(e->h, e->h->seq_at[slot]);
    for (uint32_t t = 0; t < e->step->n_token; t++) {
        e->token[t] = (struct dense_token){
            .id = token[t].id,
            .position = token[t].position,
            .kv = e->kv[seq[token[t].seq].row],
            .want_logits = token[t].logits != EXCHANGE_NO_LOGITS,
        };
    }
}

static void write_logits(struct emu *e, uint64_t slot)
{
    const struct exchange_token *token = exchange_at(e->h, e->h->token_at[slot]);
    float *to = exchange_at(e->h, e->h->logits_at[slot]);
    const size_t n_vocab = e->h->n_vocab;
    for (uint32_t t = 0; t < e->step->n_token; t++) {
        if (token[t].logits != EXCHANGE_NO_LOGITS) {
            memcpy(to + token[t].logits * n_vocab, dense_logits(e->dense, t), n_vocab * sizeof *to);
        }
    }
}

void emu_step(struct emu *e, uint64_t number)
{
    const uint64_t slot = number % 2;
    e->step = exchange_at(e->h, e->h->step_at[slot]);
    map_blocks(e, slot);
    take_tokens(e, slot);
    dense_begin(e->dense, e->token, e->step->n_token);
    pools_run(e->pools, walk, e);
    if (is_last(e)) {
        write_logits(e, slot);
        emu_fault(EMU_RESULT, number, EXCHANGE_FD);
        exchange_bell_ring(&e->h->result, number);
    }
}
