/* The life of a batch of tokens, as every worker of every node walks it. The stages are in dense/
 * (what every token runs through) and experts/ (what the router chooses); this file is their order.
 *
 *      ids > embed > [ x += attention(norm x); x += ffn(norm x) or experts(norm x) ] > norm > head
 *
 * Nothing between the first and the last line of walk() allocates, locks, or makes a system call
 * (but for waiting long at a barrier).
 */
#include "runtime/step.h"

#include <string.h>

#include "base/mem.h"
#include "dense/dense.h"
#include "experts/experts.h"
#include "runtime/gpu.h"

/* A team of nodes with all it needs to evaluate a batch: all nodes together, or one as a lane. */
struct team {
    const struct model *model;
    struct store *view;       /* of a lane's node; NULL: the whole store */
    struct gpu *gpu;          /* NULL: none; never a lane's */
    const numoe_peers *peers; /* NULL: all experts are here; never a lane's */
    struct dense *dense;      /* NULL: all of it is the GPU's */
    struct experts *experts;
    struct dense_token *tokens; /* [max_tokens] */
    unsigned first, n;          /* tokens [first, first + n) of the last batch */
    struct probe_track *probe;  /* [workers] or NULL */
    bool failed; /* Sync: written by the first worker, read by all after the next barrier of all */
};

struct step {
    const struct model *model;
    const struct store *store;
    struct pools *pools;
    const struct topo *topo;
    const struct kern *kern;
    unsigned max_tokens;
    struct team all;
    struct team *lane; /* [n_lane], on the node of that number; NULL until they are wanted */
    unsigned n_lane;
    bool in_lanes;              /* the last batch was theirs */
    struct probe_track *caller; /* of the thread that runs steps, or NULL */
    struct probe_track *probe;  /* [workers over all nodes] or NULL */
    bool keep_routes;
    unsigned n_defer;
    uint64_t *count; /* [n_layer, n_expert] sum over all teams, as last asked for */
};

static void fail_first(struct team *s, const struct worker *w)
{
    if (w->ig == 0) {
        s->failed = true;
    }
}

/* All tokens that have chosen this rank's experts, those of other ranks too. x NULL: no own ones.
 */
static bool run_spread(struct team *s, struct worker *w, unsigned il, const struct act *x)
{
    struct act all;
    if (!experts_send(s->experts, w, il, x, s->n, &all)) {
        return false;
    }
    experts_run(s->experts, w, il, &all, s->n);
    return experts_receive(s->experts, w);
}

static bool walk_experts(struct team *s, struct worker *w, unsigned il)
{
    uint32_t lo, hi;
    probe_enter(w->probe, il, PROBE_ROUTER);
    const struct act *x = dense_ffn_input(s->dense, w, il, experts_want_acts(s->experts, il));
    experts_route(s->experts, w, il, x, s->n);
    probe_switch(w->probe, PROBE_EXPERTS);
    if (s->peers == NULL) {
        experts_run(s->experts, w, il, x, s->n);
    } else if (!run_spread(s, w, il, x)) {
        return false;
    }
    dense_own_tokens(w, s->n, &lo, &hi);
    experts_combine(s->experts, w, il, NULL, dense_stream(s->dense, w), lo, hi);
    return true;
}

/* A rank without tokens computes for the others. */
static void walk_for_peers(struct worker *w, void *arg)
{
    struct team *s = arg;
    alloc_guard_begin("a forward pass for peers");
    w->probe = s->probe != NULL ? &s->probe[w->ig] : NULL;
    probe_begin(w->probe, PROBE_EXPERTS);
    bool ok = true;
    for (unsigned il = 0; ok && il < s->model->hp.n_layer; il++) {
        if (s->model->layer[il].is_moe) {
            probe_enter(w->probe, il, PROBE_EXPERTS);
            ok = run_spread(s, w, il, NULL);
        }
    }
    if (!ok) {
        fail_first(s, w);
    }
    probe_end(w->probe);
    w->probe = NULL;
    alloc_guard_end();
}

/* The next hand-off of the GPU program is there for everybody; false: it failed. All of them wait
 * for the GPU here, whoever looks for it: that is no meeting of the workers' own. */
static bool meet_hand(struct team *s, struct worker *w, unsigned il)
{
    struct probe_track *track = w->probe;
    probe_enter(track, il, PROBE_GPU_HAND);
    w->probe = NULL;
    if (w->ig == 0) {
        s->failed = !gpu_wait_hand(s->gpu);
    }
    worker_all_barrier(w);
    w->probe = track;
    return !s->failed;
}

/* Experts for the GPU program, which meanwhile goes on to the next layer while deferred ones run.
 */
static bool walk_given(struct team *s, struct worker *w, unsigned il)
{
    if (!meet_hand(s, w, il)) {
        return false;
    }
    probe_enter(w->probe, il, PROBE_EXPERTS);
    const struct experts_given given = gpu_given(s->gpu);
    const struct act x = experts_take(s->experts, w, il, &given, s->n);
    experts_run(s->experts, w, il, &x, s->n);
    experts_sum(s->experts, w, il, gpu_y(s->gpu), s->n);
    worker_all_barrier(w);
    if (w->ig == 0) {
        gpu_ring_y(s->gpu);
    }
    experts_run_deferred(s->experts, w, il, &x, s->n);
    return true;
}

/* Layers [0, n) whose dense half the GPU program has; then the stream comes back, or its logits. */
static bool walk_gpu(struct team *s, struct worker *w, unsigned n_layer)
{
    for (unsigned il = 0; il < n_layer; il++) {
        if (gpu_has_hand(s->gpu, il) && !walk_given(s, w, il)) {
            return false;
        }
    }
    if (gpu_has_head(s->gpu)) {
        return true;
    }
    if (!meet_hand(s, w, n_layer)) {
        return false;
    }
    dense_enter(s->dense, w, gpu_stream(s->gpu));
    return true;
}

static void walk_layers(struct team *s, struct worker *w, unsigned from)
{
    for (unsigned il = from; il < s->model->hp.n_layer; il++) {
        probe_enter(w->probe, il, PROBE_ATTENTION);
        dense_attention(s->dense, w, il);
        if (s->model->layer[il].is_moe) {
            if (!walk_experts(s, w, il)) { /* none of the workers goes on */
                fail_first(s, w);
                return;
            }
        } else {
            probe_enter(w->probe, il, PROBE_DENSE);
            dense_ffn(s->dense, w, il);
        }
    }
    probe_enter(w->probe, PROBE_NO_LAYER, PROBE_HEAD);
    dense_head(s->dense, w);
}

static void walk(struct worker *w, void *arg)
{
    struct team *s = arg;
    const unsigned n_gpu = s->gpu != NULL ? gpu_n_layer(s->gpu) : 0;
    alloc_guard_begin("a forward pass");
    w->probe = s->probe != NULL ? &s->probe[w->ig] : NULL;
    probe_begin(w->probe, PROBE_EMBED);
    if (n_gpu == 0) {
        dense_embed(s->dense, w);
    }
    if ((n_gpu == 0 || walk_gpu(s, w, n_gpu)) && s->dense != NULL) {
        walk_layers(s, w, n_gpu);
    }
    probe_end(w->probe);
    w->probe = NULL; /* the pools run other programs too */
    alloc_guard_end();
}

static void begin(struct team *team, const struct step_token *tokens, unsigned first, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        const struct step_token *token = &tokens[first + i];
        team->tokens[i] = (struct dense_token){.id = token->id,
                                               .position = token->position,
                                               .kv = token->kv,
                                               .want_logits = token->want_logits};
    }
    team->first = first;
    team->n = n;
    team->failed = false;
    if (team->dense != NULL) {
        dense_begin(team->dense, team->tokens, n);
    }
}

/* Choices of layers that are wholly the GPU's: only the result brings them. */
static void take_routes(struct team *s)
{
    unsigned i_route = 0;
    for (unsigned il = 0; il < gpu_n_layer(s->gpu); il++) {
        if (gpu_has_routes(s->gpu, il)) {
            const struct experts_given given = gpu_routes(s->gpu, i_route++);
            experts_note_given(s->experts, il, &given, s->n);
        }
    }
}

/* The step as the GPU program ends it. What it wrote is checked where it is read; here is what came
 * of it. */
static bool end_gpu(struct step *step, struct team *s)
{
    if (s->failed) {
        return false;
    }
    if (gpu_has_head(s->gpu)) {
        const enum probe_stage stage = probe_switch(step->caller, PROBE_GPU_RESULT);
        const bool came = gpu_wait_result(s->gpu);
        probe_switch(step->caller, stage);
        if (!came) {
            return false;
        }
    }
    take_routes(s);
    if (experts_take_fault(s->experts)) {
        gpu_blame(s->gpu, "it has chosen experts that are not there");
        return false;
    }
    return true;
}

static bool run_with_peers(struct step *step, unsigned n)
{
    unsigned n_most;
    if (!experts_meet_peers(step->all.experts, n, &n_most)) {
        return false;
    }
    if (n_most > 0) {
        pools_run(step->pools, n > 0 ? walk : walk_for_peers, &step->all);
    }
    return !step->all.failed;
}

bool step_run(struct step *step, const struct step_token *tokens, unsigned n)
{
    struct team *all = &step->all;
    step->in_lanes = false;
    begin(all, tokens, 0, n);
    if (all->peers != NULL) {
        return run_with_peers(step, n);
    }
    if (n == 0) {
        return true;
    }
    if (all->gpu != NULL) {
        gpu_begin(all->gpu, tokens, n);
    }
    if (all->dense != NULL || gpu_n_hand(all->gpu) > 0) {
        pools_run(step->pools, walk, all);
    }
    return all->gpu == NULL || end_gpu(step, all);
}

void step_run_lanes(struct step *step, const struct step_token *tokens, const unsigned *n)
{
    void *arg[TOPO_MAX_NODE] = {NULL};
    unsigned first = 0;
    step->in_lanes = true;
    for (unsigned in = 0; in < step->n_lane; in++) {
        begin(&step->lane[in], tokens, first, n[in]);
        first += n[in];
        arg[in] = n[in] > 0 ? &step->lane[in] : NULL;
    }
    pools_run_each(step->pools, walk, arg);
}

/* ------------------------------------------------------------------ probe */

/* What a worker reads of matrices is counted by two readers of each team that it is in. */
static void add_counters(struct probe_track *track, unsigned from, const struct team *team,
                         unsigned in, unsigned iw)
{
    static const struct weight_reader none; /* all of it is the GPU's */
    const struct weight_reader *dense =
        team->dense != NULL ? dense_get_reader(team->dense, in, iw) : &none;
    const struct weight_reader *experts = experts_get_reader(team->experts, in, iw);
    track->counter[from] = &dense->local_bytes;
    track->counter[from + 1] = &dense->remote_bytes;
    track->counter[from + 2] = &experts->local_bytes;
    track->counter[from + 3] = &experts->remote_bytes;
}

static void put_probe(struct step *step)
{
    struct probe_track *track = step->probe;
    step->all.probe = step->probe;
    for (unsigned in = 0; in < pools_n_node(step->pools); in++) {
        const bool has_lane = in < step->n_lane;
        const unsigned n_worker = pools_node_workers(step->pools, in);
        if (has_lane) {
            step->lane[in].probe = track;
        }
        for (unsigned iw = 0; track != NULL && iw < n_worker; iw++, track++) {
            add_counters(track, 0, &step->all, in, iw);
            if (has_lane) {
                add_counters(track, PROBE_COUNTERS / 2, &step->lane[in], 0, iw);
            }
        }
    }
}

void step_set_probe(struct step *step, struct probe_track *caller, struct probe_track *probe)
{
    step->caller = caller;
    step->probe = probe;
    put_probe(step);
}

/* ------------------------------------------------------------------ set-up */

static numoe_status team_init(const struct step *s, const struct pool_team *nodes,
                              struct team *team, numoe_error *err)
{
    const struct store *store = team->view != NULL ? team->view : s->store;
    team->model = s->model;
    FORWARD_IF(mem_new(&team->tokens, s->max_tokens, sizeof *team->tokens, "step", err));
    if (team->gpu == NULL || !gpu_has_head(team->gpu)) {
        FORWARD_IF(
            dense_new(s->model, store, nodes, s->topo, s->kern, s->max_tokens, &team->dense, err));
    }
    FORWARD_IF(experts_new(s->model, store, nodes, s->topo, s->kern, s->max_tokens, team->peers,
                           &team->experts, err));
    experts_keep_routes(team->experts, s->keep_routes);
    FORWARD_IF(experts_set_defer(team->experts, s->n_defer, err));
    return experts_set_given(team->experts, team->gpu != NULL ? gpu_n_layer(team->gpu) : 0, err);
}

static void team_fini(struct team *team)
{
    experts_free(team->experts);
    dense_free(team->dense);
    store_view_free(team->view);
    mem_free(team->tokens);
}

numoe_status step_new(const struct model *model, const struct store *store, struct pools *pools,
                      const struct topo *topo, const struct kern *kern, unsigned max_tokens,
                      struct gpu *gpu, const numoe_peers *peers, struct step **out,
                      numoe_error *err)
{
    struct step *s = NULL;
    struct pool_team nodes;
    const size_t n_count = (size_t)model->hp.n_layer * model->hp.n_expert;
    FORWARD_IF(mem_new(&s, 1, sizeof *s, "step", err));
    s->model = model;
    s->store = store;
    s->pools = pools;
    s->topo = topo;
    s->kern = kern;
    s->max_tokens = max_tokens;
    s->all.gpu = gpu;
    s->all.peers = peers;
    pools_team(pools, &nodes);
    numoe_status status = mem_new(&s->count, MAX(n_count, 1u), sizeof *s->count, "step", err);
    if (status == NUMOE_OK) {
        status = team_init(s, &nodes, &s->all, err);
    }
    if (status != NUMOE_OK) {
        step_free(s);
        return status;
    }
    *out = s;
    return NUMOE_OK;
}

numoe_status step_drop_gpu(struct step *step, numoe_error *err)
{
    struct team *all = &step->all;
    struct pool_team nodes;
    if (all->dense == NULL) {
        pools_team(step->pools, &nodes);
        FORWARD_IF(dense_new(step->model, step->store, &nodes, step->topo, step->kern,
                             step->max_tokens, &all->dense, err));
    }
    all->gpu = NULL;
    return experts_set_given(all->experts, 0, err);
}

numoe_status step_set_defer(struct step *step, unsigned n, numoe_error *err)
{
    step->n_defer = n;
    FORWARD_IF(experts_set_defer(step->all.experts, n, err));
    for (unsigned in = 0; in < step->n_lane; in++) {
        FORWARD_IF(experts_set_defer(step->lane[in].experts, n, err));
    }
    return NUMOE_OK;
}

static void free_lanes(struct team *lane, unsigned n_lane)
{
    for (unsigned in = 0; lane != NULL && in < n_lane; in++) {
        team_fini(&lane[in]);
    }
    mem_free(lane);
}

void step_free(struct step *step)
{
    if (step == NULL) {
        return;
    }
    free_lanes(step->lane, step->n_lane);
    team_fini(&step->all);
    mem_free(step->count);
    mem_free(step);
}

unsigned step_max_lanes(const struct step *step)
{
    const unsigned n_node = pools_n_node(step->pools);
    unsigned in = 0;
    if (step->all.gpu != NULL || step->all.peers != NULL) {
        return 0;
    }
    while (in < n_node && store_is_whole(step->store, in)) {
        in++;
    }
    return in == n_node ? n_node : 0;
}

static numoe_status lane_init(const struct step *s, unsigned in, struct team *lane,
                              numoe_error *err)
{
    struct pool_team nodes;
    pools_team_alone(s->pools, in, &nodes);
    FORWARD_IF(store_view_new(s->store, in, &lane->view, err));
    return team_init(s, &nodes, lane, err);
}

numoe_status step_make_lanes(struct step *step, numoe_error *err)
{
    const unsigned n_lane = step_max_lanes(step);
    struct team *lane = NULL;
    if (step->lane != NULL) {
        return NUMOE_OK;
    }
    FORWARD_IF(mem_new(&lane, n_lane, sizeof *lane, "step", err));
    for (unsigned in = 0; in < n_lane; in++) {
        numoe_status status = lane_init(step, in, &lane[in], err);
        if (status != NUMOE_OK) {
            free_lanes(lane, n_lane);
            return status;
        }
    }
    step->lane = lane;
    step->n_lane = n_lane;
    put_probe(step);
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ results */

/* The team that evaluated token i of the last batch; *at: its number there. */
static const struct team *team_of(const struct step *step, unsigned i, unsigned *at)
{
    const struct team *team = &step->all;
    for (unsigned in = 0; step->in_lanes && in < step->n_lane; in++) {
        if (step->lane[in].first <= i) {
            team = &step->lane[in];
        }
    }
    *at = i - team->first;
    return team;
}

void step_keep_routes(struct step *step, bool on)
{
    step->keep_routes = on;
    experts_keep_routes(step->all.experts, on);
    for (unsigned in = 0; in < step->n_lane; in++) {
        experts_keep_routes(step->lane[in].experts, on);
    }
}

const float *step_logits(const struct step *step, unsigned i)
{
    unsigned at;
    const struct team *team = team_of(step, i, &at);
    return team->gpu != NULL && gpu_has_head(team->gpu) ? gpu_logits(team->gpu, at)
                                                        : dense_logits(team->dense, at);
}

bool step_route(const struct step *step, unsigned il, unsigned i, const int32_t **ids,
                const float **weights, unsigned *k)
{
    unsigned at;
    const struct team *team = team_of(step, i, &at);
    return at < team->n && experts_get_route(team->experts, il, at, ids, weights, k);
}

static void add_traffic(const struct team *team, unsigned in, struct traffic *sum)
{
    if (team->dense != NULL) {
        dense_add_traffic(team->dense, in, sum);
    }
    experts_add_traffic(team->experts, in, sum);
}

static numoe_status add_team_bytes(const struct model *model, const struct pool_team *nodes,
                                   const struct topo *topo, const struct kern *kern,
                                   unsigned max_tokens, bool mapped, const numoe_peers *peers,
                                   uint64_t *node_bytes, numoe_error *err)
{
    FORWARD_IF(dense_buffer_bytes(model, nodes, topo, kern, max_tokens, node_bytes, err));
    return experts_buffer_bytes(model, nodes, topo, kern, max_tokens, mapped, peers, node_bytes,
                                err);
}

numoe_status step_buffer_bytes(const struct model *model, struct pools *pools,
                               const struct topo *topo, const struct kern *kern,
                               unsigned max_tokens, bool mapped, bool lanes,
                               const numoe_peers *peers, uint64_t *node_bytes, numoe_error *err)
{
    struct pool_team nodes;
    pools_team(pools, &nodes);
    memset(node_bytes, 0, nodes.n_node * sizeof *node_bytes);
    FORWARD_IF(
        add_team_bytes(model, &nodes, topo, kern, max_tokens, mapped, peers, node_bytes, err));
    for (unsigned in = 0; lanes && in < pools_n_node(pools); in++) {
        pools_team_alone(pools, in, &nodes);
        FORWARD_IF(add_team_bytes(model, &nodes, topo, kern, max_tokens, mapped, NULL,
                                  node_bytes + in, err));
    }
    return NUMOE_OK;
}

struct traffic step_traffic(const struct step *step, unsigned in)
{
    struct traffic sum = {0};
    add_traffic(&step->all, in, &sum);
    if (in < step->n_lane) {
        add_traffic(&step->lane[in], 0, &sum);
    }
    return sum;
}

const uint64_t *step_expert_counts(const struct step *step)
{
    const size_t n = (size_t)step->model->hp.n_layer * step->model->hp.n_expert;
    if (n > 0) {
        memcpy(step->count, experts_counts(step->all.experts), n * sizeof *step->count);
    }
    for (unsigned in = 0; in < step->n_lane; in++) {
        const uint64_t *count = experts_counts(step->lane[in].experts);
        for (size_t i = 0; i < n; i++) {
            step->count[i] += count[i];
        }
    }
    return step->count;
}

void step_add_stats(const struct step *step, struct expert_stats *stats)
{
    experts_add_stats(step->all.experts, stats);
    for (unsigned in = 0; in < step->n_lane; in++) {
        experts_add_stats(step->lane[in].experts, stats);
    }
}
