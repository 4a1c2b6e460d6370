/* How an engine comes to its placement: which workers there are, what is known of experts, what was
 * asked for, and whether it may be. Where one node alone is the plan, the others' workers are not
 * even started.
 */
#include "runtime/place.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "kernels/select.h"
#include "numa/room.h"
#include "runtime/engine.h"
#include "runtime/params.h"
#include "store/stats.h"

#define PLAN_MAX_BYTES (256u << 20)

static numoe_status read_file(const char *path, char **text, size_t *bytes, numoe_error *err)
{
    FILE *f = fopen(path, "rb");
    char *data = NULL;
    size_t n = 0, cap = 0;
    numoe_status status = NUMOE_OK;
    if (f == NULL) {
        return status_fail(err, NUMOE_E_FILE_OPEN, "%s: %s", path, strerror(errno));
    }
    do {
        if (n == cap) {
            cap = MAX(2 * cap, (size_t)1 << 16);
            status = cap > PLAN_MAX_BYTES
                         ? status_fail(err, NUMOE_E_INPUT, "%s: too large for a plan", path)
                         : mem_grow(&data, cap, 1, "plan", err);
        }
        n += status == NUMOE_OK ? fread(data + n, 1, cap - n, f) : 0;
    } while (status == NUMOE_OK && n == cap);
    if (status == NUMOE_OK && ferror(f)) {
        status = status_fail(err, NUMOE_E_FILE_OPEN, "%s: cannot be read", path);
    }
    fclose(f);
    if (status != NUMOE_OK) {
        mem_free(data);
        return status;
    }
    *text = data;
    *bytes = n;
    return NUMOE_OK;
}

/* Before the topology loses nodes: their memory is the nodes'. */
static void stop_workers(struct place *p)
{
    pools_free(p->pools);
    p->pools = NULL;
}

static numoe_status start_workers(const struct topo *topo, unsigned n_worker, struct place *p,
                                  numoe_error *err)
{
    stop_workers(p);
    FORWARD_IF(pools_new(topo, n_worker, &p->pools, err));
    pools_set_sleep(p->pools, p->tuning.sleep_ns);
    return NUMOE_OK;
}

/* Pools and machine are made again without the other nodes. As many workers as were asked for, while
 * they have cores. */
static numoe_status keep_nodes(const numoe_engine_params *params, struct topo *topo, uint64_t keep,
                               struct place *p, numoe_error *err)
{
    unsigned n_there = 0, n = 0;
    for (unsigned in = 0; in < p->machine.n_node; in++) {
        if ((keep >> in & 1) != 0) {
            n_there += p->machine.node[in].n_worker;
            p->machine.node[n++] = p->machine.node[in];
        }
    }
    stop_workers(p);
    topo_keep_nodes(topo, keep);
    const unsigned n_worker = tuning_workers(
        &p->tuning, topo, MIN(params->n_thread, MAX(n_there, topo->n_core)));
    FORWARD_IF(start_workers(topo, n_worker, p, err));
    p->machine.n_node = n;
    for (unsigned in = 0; in < n; in++) {
        p->machine.node[in].n_worker = pools_node_workers(p->pools, in);
    }
    return NUMOE_OK;
}

/* Nodes of the machine (bits) that a plan for fewer names, in their order; 0: it does not. */
static uint64_t nodes_of_plan(const struct placement *plan, const struct placement_machine *m)
{
    uint64_t keep = 0;
    unsigned n = 0;
    for (unsigned in = 0; in < m->n_node && n < plan->n_node; in++) {
        if (plan->told_os_index[n] == (int)m->node[in].os_index) {
            keep |= UINT64_C(1) << in;
            n++;
        }
    }
    return n == plan->n_node && n < m->n_node ? keep : 0;
}

/* ------------------------------------------------------------------ memory besides weights */

/* Positions whose cache must have room: of the context that is asked for, or of a usual one. */
#define CONTEXT_DEFAULT 4096u
#define WORKERS_BYTES   ((uint64_t)1 << 20) /* barriers and cursors of a node's workers, at most */

static unsigned context_tokens(const struct model *model, const numoe_engine_params *params)
{
    return params->min_ctx ? params->min_ctx : MIN(model->hp.n_ctx_train, CONTEXT_DEFAULT);
}

/* Chunks are dealt to the nodes in turn; in throughput mode each node has whole sequences. */
static uint64_t context_bytes(const struct model *model, const numoe_engine_params *params,
                              unsigned n_node, unsigned in)
{
    const unsigned n_chunk = (context_tokens(model, params) + KV_CHUNK - 1) / KV_CHUNK;
    const unsigned here = n_chunk > in ? (n_chunk - in - 1) / n_node + 1 : 0;
    return here * KV_CHUNK * kv_token_bytes(model, engine_kv_type(params->kv_type, model));
}

/* What loading needs is given back before the rest is used. */
static numoe_status count_buffers(const numoe_engine_params *params, const struct model *model,
                                  const struct topo *topo, struct place *p, numoe_error *err)
{
    const unsigned chunk = params->chunk_tokens ? params->chunk_tokens : CHUNK_TOKENS_DEFAULT;
    uint64_t bytes[TOPO_MAX_NODE];
    const bool lanes = params->mode == NUMOE_MODE_THROUGHPUT && p->machine.n_node > 1;
    const struct kern *kern;
    FORWARD_IF(kern_select(&kern, err));
    FORWARD_IF(step_buffer_bytes(model, p->pools, topo, kern, chunk, params->map_experts, lanes,
                                 params->peers, bytes, err));
    for (unsigned in = 0; in < p->machine.n_node; in++) {
        struct placement_node *node = &p->machine.node[in];
        const uint64_t context = lanes ? context_bytes(model, params, 1, 0)
                                       : context_bytes(model, params, p->machine.n_node, in);
        node->buffer_bytes =
            MAX(bytes[in] + context, node->n_worker * store_loading_bytes(&p->shapes));
    }
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ what would fit */

#define LEAST_CHUNK 16u

/* Whether a plan is possible with so long a context and such chunks; *p keeps their buffers. */
static bool would_fit(const numoe_engine_params *params, const struct model *model,
                      const struct topo *topo, const struct placement_request *request,
                      struct place *p, unsigned n_ctx, unsigned chunk)
{
    numoe_engine_params less = *params;
    struct placement *plan = NULL;
    less.min_ctx = n_ctx;
    less.chunk_tokens = chunk;
    const bool fits = count_buffers(&less, model, topo, p, NULL) == NUMOE_OK &&
                      placement_make(&p->shapes, &p->machine, request, &plan, NULL) == NUMOE_OK;
    placement_free(plan);
    return fits;
}

/* The longest context, in whole chunks of its cache and shorter than it is, that fits; 0: none. */
static unsigned fitting_context(const numoe_engine_params *params, const struct model *model,
                                const struct topo *topo, const struct placement_request *request,
                                struct place *p, unsigned chunk)
{
    unsigned fits = 0, too_long = (context_tokens(model, params) + KV_CHUNK - 1) / KV_CHUNK;
    while (too_long - fits > 1) {
        const unsigned n = fits + (too_long - fits) / 2;
        if (would_fit(params, model, topo, request, p, n * KV_CHUNK, chunk)) {
            fits = n;
        } else {
            too_long = n;
        }
    }
    return fits * KV_CHUNK;
}

/* After a refusal for lack of memory: a shorter context, smaller chunks, or that it is the weights.
 */
static numoe_status refuse(const numoe_engine_params *params, const struct model *model,
                           const struct topo *topo, const struct placement_request *request,
                           struct place *p, numoe_error *err)
{
    const unsigned asked = params->chunk_tokens ? params->chunk_tokens : CHUNK_TOKENS_DEFAULT;
    const unsigned n_asked = context_tokens(model, params);
    unsigned chunk = asked, n_ctx = fitting_context(params, model, topo, request, p, chunk);
    char text[160];
    while (n_ctx == 0 && chunk > LEAST_CHUNK) {
        chunk = MAX(chunk / 2, LEAST_CHUNK);
        n_ctx = would_fit(params, model, topo, request, p, n_asked, chunk)
                    ? n_asked
                    : fitting_context(params, model, topo, request, p, chunk);
    }
    if (n_ctx > 0) {
        snprintf(text, sizeof text, "a context of %u tokens (-c %u) would fit%s", n_ctx, n_ctx,
                 chunk < asked ? " with smaller chunks" : "");
        if (chunk < asked) {
            snprintf(text + strlen(text), sizeof text - strlen(text), " (--chunk %u)", chunk);
        }
        p->machine.instead = text;
    }
    FORWARD_IF(count_buffers(params, model, topo, p, err));
    numoe_status status = placement_make(&p->shapes, &p->machine, request, &p->plan, err);
    p->machine.instead = NULL;
    return status;
}

static numoe_status plan_anew(const numoe_engine_params *params, const struct model *model,
                              const struct topo *topo, struct place *p, numoe_error *err)
{
    struct expert_stats stats = {0};
    struct placement_request request = {
        .mode = params->placement,
        .replica_bytes = params->replica_bytes,
        .replica_percent = params->replica_percent,
        .replicas_change = params_replicas_change(params),
    };
    if (params->expert_stats != NULL) {
        FORWARD_IF(expert_stats_load(params->expert_stats, model, &stats, err));
        request.stats = &stats;
    }
    numoe_status status = placement_make(&p->shapes, &p->machine, &request, &p->plan, err);
    if (status == NUMOE_E_MEMORY) {
        status = refuse(params, model, topo, &request, p, err);
    }
    expert_stats_fini(&stats);
    return status;
}

/* Nodes (bits) that have room for their workers' buffers and something of the weights. */
static uint64_t nodes_with_room(const struct place *p)
{
    uint64_t vector_bytes = 0, nodes = 0;
    for (unsigned is = 0; is < p->shapes.n; is++) {
        const struct shape *s = &p->shapes.shape[is];
        vector_bytes += s->kind == SHAPE_VECTOR ? shape_bytes(s) : 0;
    }
    for (unsigned in = 0; in < p->machine.n_node; in++) {
        nodes |= (uint64_t)(placement_room(&p->machine, in) > vector_bytes) << in;
    }
    return nodes;
}

/* Workers, and what they can count on. */
static numoe_status open_machine(const numoe_engine_params *params, const struct model *model,
                                 struct topo *topo, struct place *p, numoe_error *err)
{
    const unsigned n_worker = tuning_workers(&p->tuning, topo, params->n_thread);
    FORWARD_IF(start_workers(topo, n_worker, p, err));
    FORWARD_IF(placement_machine_init(topo, p->pools, false, &p->machine, err));
    return count_buffers(params, model, topo, p, err);
}

static void tell_left_out(unsigned os_index, uint64_t room_bytes, uint64_t need_bytes)
{
    log_warn("node %u takes no part: %.1f MiB are available there, its workers' buffers alone need "
             "%.1f MiB",
             os_index, (double)room_bytes / 1048576.0, (double)need_bytes / 1048576.0);
}

/* A full node would have nothing to do but to be waited for. Where none has room, the plan says so.
 */
static numoe_status leave_out_full_nodes(const numoe_engine_params *params,
                                         const struct model *model, struct topo *topo,
                                         struct place *p, numoe_error *err)
{
    uint64_t keep = nodes_with_room(p);
    while (p->machine.n_node > 1 && keep != 0 &&
           (unsigned)__builtin_popcountll(keep) < p->machine.n_node) {
        for (unsigned in = 0; in < p->machine.n_node; in++) {
            const struct placement_node *node = &p->machine.node[in];
            if ((keep >> in & 1) == 0) {
                tell_left_out(node->os_index, node->room_bytes, node->buffer_bytes);
            }
        }
        stop_workers(p);
        topo_keep_nodes(topo, keep);
        FORWARD_IF(open_machine(params, model, topo, p, err));
        keep = nodes_with_room(p);
    }
    return NUMOE_OK;
}

/* Workers meet in memory of their node, before anything else is known. */
static void leave_out_nodes_without_workers(struct topo *topo)
{
    uint64_t keep = 0;
    for (unsigned in = 0; in < topo->n_node; in++) {
        const uint64_t bytes = topo->node[in].available_bytes;
        keep |= (uint64_t)(bytes == 0 || room_less_reserve(bytes) >= WORKERS_BYTES) << in;
    }
    for (unsigned in = 0; keep != 0 && in < topo->n_node; in++) {
        if ((keep >> in & 1) == 0) {
            tell_left_out(topo->node[in].os_index,
                          room_less_reserve(topo->node[in].available_bytes), WORKERS_BYTES);
        }
    }
    if (keep != 0) {
        topo_keep_nodes(topo, keep);
    }
}

static void set_bandwidth(const numoe_engine_params *params, struct placement_machine *m)
{
    for (unsigned in = 0; params->node_bps > 0 && in < m->n_node; in++) {
        m->node[in].read_bps = params->node_bps;
        m->bps_source = "given";
    }
}

/* What a job was given is like what a control group allows. Another machine's topology is not what
 * it was given a part of. */
static void limit(const numoe_engine_params *params, struct topo *topo)
{
    const double cpus = params->max_cpus;
    if (!topo->is_this_machine) {
        return;
    }
    if (params->max_cpus > 0) {
        topo->cpu_quota = topo->cpu_quota > 0 ? MIN(topo->cpu_quota, cpus) : cpus;
    }
    if (params->max_bytes > 0) {
        topo->memory_limit_bytes = MIN(topo->memory_limit_bytes, params->max_bytes);
    }
}

/* Before anything is planned. */
static numoe_status open_machine_and_shapes(const numoe_engine_params *params,
                                            const struct model *model, shape_keep_fn *keep,
                                            const void *keep_arg, struct topo *topo,
                                            struct place *p, numoe_error *err)
{
    FORWARD_IF(shapes_new(model, &p->shapes, err));
    if (keep != NULL) {
        shapes_keep(&p->shapes, keep, keep_arg);
    }
    if (params->peers != NULL) {
        const numoe_peers *peers = params->peers;
        FORWARD_IF(shapes_spread(&p->shapes, peers->rank, peers->n_rank, err));
    }
    FORWARD_IF(params->map_experts ? shapes_map_experts(&p->shapes, err) : NUMOE_OK);
    FORWARD_IF(room_read(topo, err));
    limit(params, topo); /* of what there is now */
    leave_out_nodes_without_workers(topo);
    FORWARD_IF(tuning_open(params, true, topo, &p->tuning, err));
    FORWARD_IF(open_machine(params, model, topo, p, err));
    return params->plan == NULL ? leave_out_full_nodes(params, model, topo, p, err) : NUMOE_OK;
}

numoe_status place_open_machine(const numoe_engine_params *params, const struct model *model,
                                struct topo *topo, struct place *out, numoe_error *err)
{
    struct place p = {.plan = NULL};
    numoe_status status = open_machine_and_shapes(params, model, NULL, NULL, topo, &p, err);
    if (status != NUMOE_OK) {
        place_close(&p);
        return status;
    }
    set_bandwidth(params, &p.machine);
    *out = p;
    return NUMOE_OK;
}

/* Where the plan has places for copies to come, or copies that are to change. */
static numoe_status let_replicas_change(const numoe_engine_params *params, struct placement *plan,
                                        const struct place *p, numoe_error *err)
{
    if (!params->adapt && placement_n_place(plan) == 0) {
        return NUMOE_OK;
    }
    placement_let_change(plan, &p->shapes);
    return placement_fits(plan, &p->machine, err);
}

/* A plan may be for some of the nodes: it was made where one alone is faster. */
static numoe_status take_plan(const numoe_engine_params *params, const struct model *model,
                              struct topo *topo, struct placement *plan, struct place *p,
                              numoe_error *err)
{
    const uint64_t keep = nodes_of_plan(plan, &p->machine);
    if (keep != 0) {
        log_warn("%s is for %u of %u nodes: the others take no part", params->plan, plan->n_node,
                 p->machine.n_node);
        FORWARD_IF(keep_nodes(params, topo, keep, p, err));
        FORWARD_IF(count_buffers(params, model, topo, p, err));
    }
    FORWARD_IF(placement_check(plan, &p->shapes, &p->machine, err));
    FORWARD_IF(let_replicas_change(params, plan, p, err));
    placement_count_replicas(plan, &p->shapes, NULL);
    placement_predict_again(plan, &p->shapes, &p->machine);
    return NUMOE_OK;
}

static numoe_status plan_from_file(const numoe_engine_params *params, const struct model *model,
                                   struct topo *topo, struct place *p, numoe_error *err)
{
    char *text = NULL;
    size_t bytes = 0;
    struct placement *plan = NULL;
    FORWARD_IF(read_file(params->plan, &text, &bytes, err));
    numoe_status status = placement_from_json(text, bytes, &p->shapes, &plan, err);
    mem_free(text);
    if (status == NUMOE_OK) {
        status = take_plan(params, model, topo, plan, p, err);
    }
    if (status != NUMOE_OK) {
        placement_free(plan);
        return status_context(err, status, "%s", params->plan);
    }
    p->plan = plan;
    return NUMOE_OK;
}

numoe_status place_choose(const numoe_engine_params *params, const struct model *model,
                          struct topo *topo, struct place *p, numoe_error *err)
{
    FORWARD_IF(params->plan != NULL ? plan_from_file(params, model, topo, p, err)
                                    : plan_anew(params, model, topo, p, err));
    const int only = placement_only_node(p->plan);
    if (only >= 0 && p->machine.n_node > 1) {
        FORWARD_IF(keep_nodes(params, topo, UINT64_C(1) << only, p, err));
        placement_keep_node(p->plan, (unsigned)only);
    }
    return NUMOE_OK;
}

/* As the platform says, as it was measured before, or measured now. Where nothing may be measured, it
 * stays assumed. */
static numoe_status find_bandwidth(const struct topo *topo, struct place *p, numoe_error *err)
{
    if (p->tuning.memo == NULL || tuning_recall_nodes(&p->tuning, &p->machine)) {
        return NUMOE_OK;
    }
    FORWARD_IF(placement_measure(topo, p->pools, &p->machine, err));
    if (p->machine.bps_is_measured) {
        tuning_note_nodes(&p->tuning, &p->machine);
    }
    return NUMOE_OK;
}

static numoe_status open_parts(const numoe_engine_params *params, const struct model *model,
                               shape_keep_fn *keep, const void *keep_arg, struct topo *topo,
                               struct place *p, numoe_error *err)
{
    FORWARD_IF(open_machine_and_shapes(params, model, keep, keep_arg, topo, p, err));
    if (params->plan == NULL && params->node_bps == 0) {
        FORWARD_IF(find_bandwidth(topo, p, err));
    }
    set_bandwidth(params, &p->machine);
    placement_machine_run_here(topo, p->pools, &p->machine);
    return place_choose(params, model, topo, p, err);
}

numoe_status place_open_part(const numoe_engine_params *params, const struct model *model,
                             shape_keep_fn *keep, const void *keep_arg, struct topo *topo,
                             struct place *out, numoe_error *err)
{
    struct place p = {.plan = NULL};
    numoe_status status = open_parts(params, model, keep, keep_arg, topo, &p, err);
    if (status != NUMOE_OK) {
        place_close(&p);
        return status;
    }
    *out = p;
    return NUMOE_OK;
}

void place_close(struct place *place)
{
    tuning_close(&place->tuning);
    pools_free(place->pools);
    placement_free(place->plan);
    shapes_fini(&place->shapes);
    *place = (struct place){.plan = NULL};
}

/* ------------------------------------------------------------------ in words */

const char *place_mode_text(const struct placement *plan)
{
    if (plan->n_node == 1) {
        return "all weights on one node";
    }
    switch (plan->mode) {
    case NUMOE_PLACEMENT_SHARD:
        return "whole experts on nodes, rows of other matrices cut";
    case NUMOE_PLACEMENT_REPLICATE:
        return "all weights on every node";
    case NUMOE_PLACEMENT_INTERLEAVE:
        return "panels dealt to nodes in turn";
    default:
        return "rows of every matrix cut over nodes";
    }
}

numoe_status place_describe(const struct placement *plan, const struct placement_machine *machine,
                            struct strbuf *out, numoe_error *err)
{
    unsigned min_worker = UINT_MAX, max_worker = 0;
    double min_percent = 100, max_percent = 0;

    for (unsigned in = 0; in < plan->n_node; in++) {
        const double percent =
            (double)plan->node_bytes[in] / (double)MAX(plan->total_bytes, 1u) * 100;
        min_worker = MIN(min_worker, machine->node[in].n_worker);
        max_worker = MAX(max_worker, machine->node[in].n_worker);
        min_percent = MIN(min_percent, percent);
        max_percent = MAX(max_percent, percent);
    }
    FORWARD_IF(strbuf_printf(out, err, "%s: ", place_mode_text(plan)));
    if (plan->n_node == 1) {
        return strbuf_printf(out, err, "node %u, %u worker%s", machine->node[0].os_index,
                             max_worker, max_worker == 1 ? "" : "s");
    }
    FORWARD_IF(strbuf_printf(out, err, "%u nodes, ", plan->n_node));
    FORWARD_IF(max_percent - min_percent < 0.05
                   ? strbuf_printf(out, err, "%.3g %% each, ", max_percent)
                   : strbuf_printf(out, err, "%.3g..%.3g %% each, ", min_percent, max_percent));
    FORWARD_IF(
        min_worker == max_worker
            ? strbuf_printf(out, err, "%u worker%s each", max_worker, max_worker == 1 ? "" : "s")
            : strbuf_printf(out, err, "%u..%u workers each", min_worker, max_worker));
    return strbuf_printf(out, err, "; %s", plan->reason);
}
