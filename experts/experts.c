/* Buffers of the routed half and what was chosen. */
#include "experts/experts.h"

#include "base/mem.h"
#include "experts/state.h"

static numoe_status alloc(struct node_arena *arena, size_t n, size_t elem_bytes, void *out,
                          numoe_error *err)
{
    return node_arena_alloc(arena, n * elem_bytes, out, err);
}

static numoe_status shared_init(struct experts *e, numoe_error *err)
{
    const struct model_hparams *hp = &e->model->hp;
    struct node_arena *arena = e->node[0].arena;
    const size_t n_token = e->max_tokens, n_pair = (size_t)e->max_rows * hp->n_expert_used;
    const size_t n_route = hp->n_layer * n_token * hp->n_expert_used;
    FORWARD_IF(alloc(arena, n_token * hp->n_expert, sizeof(float), &e->logits, err));
    FORWARD_IF(alloc(arena, n_token, sizeof(float), &e->shared_gate, err));
    if (e->store != NULL && e->store->holders == NULL) {
        FORWARD_IF(alloc(arena, n_pair * hp->n_ff_expert, sizeof(float), &e->h, err));
    }
    FORWARD_IF(alloc(arena, n_token * hp->n_ff_shared, sizeof(float), &e->h_shared, err));
    FORWARD_IF(alloc(arena, n_pair * hp->n_embd, sizeof(float), &e->y, err));
    FORWARD_IF(alloc(arena, n_token * hp->n_embd, sizeof(float), &e->y_shared, err));
    if (e->peers.peers != NULL) {
        FORWARD_IF(experts_peers_init(e, arena, err));
    }
    FORWARD_IF(alloc(arena, n_route, sizeof(int32_t), &e->route_ids, err));
    return alloc(arena, n_route, sizeof(float), &e->route_weights, err);
}

static numoe_status dispatch_init(struct dispatch *d, struct node_arena *arena, size_t n_expert,
                                  size_t n_pair, numoe_error *err)
{
    const size_t n_item = dispatch_max_items((unsigned)n_expert, (unsigned)n_pair);
    FORWARD_IF(alloc(arena, n_item, sizeof(struct dispatch_item), &d->item, err));
    FORWARD_IF(alloc(arena, n_expert, sizeof(struct dispatch_item), &d->open, err));
    FORWARD_IF(alloc(arena, n_expert, sizeof(uint32_t), &d->count, err));
    FORWARD_IF(alloc(arena, n_pair, sizeof(uint32_t), &d->token, err));
    return alloc(arena, n_pair, sizeof(uint32_t), &d->pair, err);
}

/* The largest panel of experts that stay in the file. */
static size_t mapped_panel_bytes(const struct experts *e)
{
    size_t most = 0;
    for (unsigned il = 0; e->mapped && il < e->model->hp.n_layer; il++) {
        const struct tensor_source *src = e->model->layer[il].src;
        for (unsigned slot = SLOT_GATE_EXPS; slot <= SLOT_DOWN_EXPS; slot++) {
            if (source_present(&src[slot])) {
                const struct format *format = format_find(src[slot].format_id);
                most = MAX(most, PANEL_ROWS * format_row_bytes(format, src[slot].k));
            }
        }
    }
    return most;
}

static numoe_status node_init(struct experts *e, unsigned in, unsigned n_worker, numoe_error *err)
{
    const struct model_hparams *hp = &e->model->hp;
    struct experts_node *node = &e->node[in];
    struct node_arena *arena = node->arena;
    const unsigned n_choice = e->max_tokens * hp->n_expert_used;
    const unsigned n_pair = e->max_rows * hp->n_expert_used;
    const size_t n_scratch = router_scratch_floats(&hp->router, hp->n_expert);
    const size_t panel_bytes = mapped_panel_bytes(e);
    node->n_worker = n_worker;
    FORWARD_IF(
        mem_new_aligned(&node->worker, n_worker, sizeof *node->worker, "worker buffers", err));
    for (unsigned iw = 0; iw < n_worker; iw++) {
        struct experts_worker *worker = &node->worker[iw];
        worker->reader = (struct weight_reader){.kern = e->kern, .in = in};
        FORWARD_IF(alloc(arena, n_scratch, sizeof(float), &worker->router, err));
        FORWARD_IF(alloc(arena, hp->n_expert, sizeof(float), &worker->logits, err));
        FORWARD_IF(alloc(arena, 2 * WEIGHT_GLU_SCRATCH, sizeof(float), &worker->glu, err));
        FORWARD_IF(alloc(arena, hp->n_embd, sizeof(float), &worker->sum, err));
        FORWARD_IF(alloc(arena, panel_bytes, 1, &worker->reader.panel, err));
    }
    FORWARD_IF(alloc(arena, n_choice, sizeof(int32_t), &node->ids, err));
    FORWARD_IF(alloc(arena, n_choice, sizeof(float), &node->weights, err));
    if (in == 0) {
        const size_t n = (size_t)hp->n_layer * hp->n_expert;
        FORWARD_IF(alloc(arena, n, sizeof(uint64_t), &node->count, err));
        FORWARD_IF(alloc(arena, n, sizeof(double), &node->weight_sum, err));
    }
    if (e->peers.peers != NULL) {
        FORWARD_IF(
            act_init(&node->gathered, arena, e->kern, hp->n_embd, e->max_rows, e->peers.x, err));
    }
    FORWARD_IF(dispatch_init(&node->work, arena, hp->n_expert, n_pair, err));
    FORWARD_IF(act_init(&node->h, arena, e->kern, hp->n_ff_expert, n_pair, e->h, err));
    return act_init(&node->h_shared, arena, e->kern, hp->n_ff_shared, e->max_tokens, e->h_shared,
                    err);
}

static numoe_status init(struct experts *e, const struct pool_team *team, const struct topo *topo,
                         numoe_error *err)
{
    FORWARD_IF(mem_new(&e->node, e->n_node, sizeof *e->node, "node buffers", err));
    for (unsigned in = 0; in < e->n_node; in++) {
        struct node_arena **arena = &e->node[in].arena;
        const unsigned at = team->node[in];
        FORWARD_IF(e->store != NULL ? node_arena_new(topo, at, "expert activations", arena, err)
                                    : node_arena_new_counting(topo, at, arena, err));
    }
    FORWARD_IF(shared_init(e, err));
    for (unsigned in = 0; in < e->n_node; in++) {
        FORWARD_IF(node_init(e, in, team->n_worker[in], err));
    }
    return NUMOE_OK;
}

/* store NULL: nothing can be computed, only counted, as if experts were whole. */
static numoe_status make(const struct model *model, const struct store *store, bool mapped,
                         const struct pool_team *team, const struct topo *topo,
                         const struct kern *kern, unsigned max_tokens, const numoe_peers *peers,
                         struct experts **out, numoe_error *err)
{
    struct experts *e = NULL;
    FORWARD_IF(mem_new(&e, 1, sizeof *e, "expert runtime", err));
    e->model = model;
    e->store = store;
    e->mapped = mapped;
    e->kern = kern;
    e->max_tokens = e->max_rows = max_tokens;
    if (peers != NULL) {
        e->max_rows *= peers->n_rank;
        e->peers.peers = peers;
        e->peers.shape = (struct spread_shape){.rank = peers->rank,
                                               .n_rank = peers->n_rank,
                                               .n_expert = model->hp.n_expert,
                                               .n_used = model->hp.n_expert_used,
                                               .max_tokens = max_tokens};
    }
    e->n_node = team->n_node;
    numoe_status status = init(e, team, topo, err);
    if (status != NUMOE_OK) {
        experts_free(e);
        return status;
    }
    *out = e;
    return NUMOE_OK;
}

numoe_status experts_new(const struct model *model, const struct store *store,
                         const struct pool_team *team, const struct topo *topo,
                         const struct kern *kern, unsigned max_tokens, const numoe_peers *peers,
                         struct experts **out, numoe_error *err)
{
    return make(model, store, store->mapped_bytes > 0, team, topo, kern, max_tokens, peers, out,
                err);
}

numoe_status experts_buffer_bytes(const struct model *model, const struct pool_team *team,
                                  const struct topo *topo, const struct kern *kern,
                                  unsigned max_tokens, bool mapped, const numoe_peers *peers,
                                  uint64_t *node_bytes, numoe_error *err)
{
    struct experts *e = NULL;
    FORWARD_IF(make(model, NULL, mapped, team, topo, kern, max_tokens, peers, &e, err));
    for (unsigned in = 0; in < e->n_node; in++) {
        node_bytes[in] += node_arena_bytes(e->node[in].arena);
    }
    experts_free(e);
    return NUMOE_OK;
}

void experts_free(struct experts *e)
{
    if (e == NULL) {
        return;
    }
    for (unsigned in = 0; e->node != NULL && in < e->n_node; in++) {
        mem_free(e->node[in].worker);
        node_arena_free(e->node[in].arena);
    }
    mem_free(e->node);
    mem_free(e);
}

void experts_keep_routes(struct experts *e, bool on)
{
    e->keep = on;
}

void experts_set_elsewhere(struct experts *e, const bool *elsewhere)
{
    e->elsewhere = elsewhere;
}

numoe_status experts_set_given(struct experts *e, unsigned n_layer, numoe_error *err)
{
    for (unsigned in = 0; n_layer > 0 && in < e->n_node; in++) {
        struct experts_node *node = &e->node[in];
        if (node->given.k == 0) {
            FORWARD_IF(act_init(&node->given, node->arena, e->kern, e->model->hp.n_embd,
                                e->max_tokens, NULL, err));
        }
    }
    e->n_given = n_layer;
    return NUMOE_OK;
}

numoe_status experts_set_defer(struct experts *e, unsigned n, numoe_error *err)
{
    const size_t n_float = (size_t)e->max_tokens * e->model->hp.n_embd;
    if (n > 0 && e->deferred == NULL) {
        FORWARD_IF(alloc(e->node[0].arena, n_float, sizeof(float), &e->deferred, err));
    }
    for (unsigned in = 0; n > 0 && in < e->n_node; in++) {
        if (e->node[in].deferred == NULL) {
            FORWARD_IF(
                alloc(e->node[in].arena, n_float, sizeof(float), &e->node[in].deferred, err));
        }
    }
    e->n_defer = n;
    return NUMOE_OK;
}

/* Whether two layers with experts take their choices from the same side. */
static bool same_side(const struct experts *e, unsigned il, unsigned other)
{
    return (il < e->n_given) == (other < e->n_given);
}

unsigned experts_prompt_choices(const struct experts *e, unsigned il)
{
    const struct model_hparams *hp = &e->model->hp;
    unsigned next = il + 1;
    while (next < hp->n_layer && !e->model->layer[next].is_moe) {
        next++;
    }
    const bool defers = next < hp->n_layer && same_side(e, il, next);
    return hp->n_expert_used - (defers ? e->n_defer : 0);
}

bool experts_joins_deferred(const struct experts *e, unsigned il)
{
    unsigned before = il;
    while (before > 0 && !e->model->layer[before - 1].is_moe) {
        before--;
    }
    return e->n_defer > 0 && before > 0 && same_side(e, il, before - 1);
}

bool experts_take_fault(struct experts *e)
{
    return atomic_exchange_explicit(&e->given_bad, false, memory_order_relaxed);
}

unsigned experts_want_acts(const struct experts *e, unsigned il)
{
    static const enum slot readers[] = {SLOT_ROUTER,  SLOT_SHEXP_GATE, SLOT_GATE_EXPS,
                                        SLOT_UP_EXPS, SLOT_GATE_SHEXP, SLOT_UP_SHEXP};
    unsigned acts = 0;
    for (unsigned i = 0; i < ARRAY_LEN(readers); i++) {
        acts |= weight_acts(experts_weight(e, il, readers[i]), e->kern);
    }
    return acts;
}

const struct weight_reader *experts_get_reader(const struct experts *e, unsigned in, unsigned iw)
{
    return &e->node[in].worker[iw].reader;
}

void experts_add_traffic(const struct experts *e, unsigned in, struct traffic *sum)
{
    for (unsigned iw = 0; iw < e->node[in].n_worker; iw++) {
        traffic_add(sum, &e->node[in].worker[iw].reader);
    }
}

const uint64_t *experts_counts(const struct experts *e)
{
    return e->node[0].count;
}

void experts_add_stats(const struct experts *e, struct expert_stats *stats)
{
    for (size_t i = 0; i < (size_t)stats->n_layer * stats->n_expert; i++) {
        stats->count[i] += e->node[0].count[i];
        stats->weight[i] += e->node[0].weight_sum[i];
    }
}

bool experts_get_route(const struct experts *e, unsigned il, unsigned i, const int32_t **ids,
                       const float **weights, unsigned *k)
{
    const unsigned n_used = e->model->hp.n_expert_used;
    if (!e->keep || il >= e->model->hp.n_layer || !e->model->layer[il].is_moe ||
        i >= e->max_tokens) {
        return false;
    }
    const size_t at = ((size_t)il * e->max_tokens + i) * n_used;
    *ids = e->route_ids + at;
    *weights = e->route_weights + at;
    *k = n_used;
    return true;
}
