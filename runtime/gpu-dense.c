/* Owns the division of a model between an engine and its GPU program: which weights are needed on
 * the CPU, at first and when the program fails. */
#include "runtime/gpu-engine.h"

#include <string.h>

#include "base/log.h"
#include "runtime/gpu.h"
#include "runtime/place.h"
#include "store/stats.h"

#define CONTEXT_DEFAULT 32768u /* tokens of KV cache where no context was asked for */

static const char *no_gpu_text(const char *name)
{
    return name != NULL && strcmp(name, "auto") != 0 && strcmp(name, "none") != 0 ? name : NULL;
}

numoe_status engine_open_gpu(numoe_engine *e, const numoe_engine_params *params, numoe_error *err)
{
    struct expert_stats stats = {0};
    const unsigned n_ctx_train = e->model->hp.n_ctx_train;
    struct gpu_request request = {
        .model = e->model,
        .max_tokens = e->chunk_tokens,
        .kv_tokens = params->min_ctx ? params->min_ctx : MIN(n_ctx_train, CONTEXT_DEFAULT),
        .kv_type = e->kv_type,
        .defers = params->defer_experts > 0,
    };
    if (params->gpu == NULL) {
        return NUMOE_OK;
    }
    if (no_gpu_text(params->gpu) != NULL && params->plan != NULL) {
        return status_fail(
            err, NUMOE_E_INPUT,
            "a plan from a file says nothing of a GPU: only one of both is possible");
    }
    if (params->expert_stats != NULL) {
        FORWARD_IF(expert_stats_load(params->expert_stats, e->model, &stats, err));
        request.stats = &stats;
    }
    numoe_status status =
        params->plan != NULL ? NUMOE_OK : gpu_open(params, &request, &e->gpu, err);
    expert_stats_fini(&stats);
    if (status == NUMOE_OK && e->gpu != NULL) {
        e->chunk_tokens = gpu_max_tokens(e->gpu);
    }
    return status;
}

bool engine_needs(const struct shape *s, const void *arg)
{
    const numoe_engine *e = arg;
    if (e->gpu == NULL || shape_is_expert(s)) {
        return true;
    }
    return s->layer < 0 ? !gpu_has_head(e->gpu) : (unsigned)s->layer >= gpu_n_layer(e->gpu);
}

/* Needed, and not there yet. */
static bool is_missing(const struct shape *s, const void *arg)
{
    const numoe_engine *e = arg;
    const struct weight *w =
        s->layer < 0 ? &e->store->w[s->slot] : &e->store->layer[s->layer][s->slot];
    return engine_needs(s, e) && !weight_present(w);
}

static numoe_status load_missing(numoe_engine *e, numoe_error *err)
{
    struct shapes shapes = {0};
    struct placement_machine machine;
    struct placement *plan = NULL;
    struct store *more = NULL;
    const struct placement_request request = {.mode = e->placement_mode};
    FORWARD_IF(shapes_new(e->model, &shapes, err));
    shapes_keep(&shapes, is_missing, e);
    numoe_status status = placement_machine_init(e->topo, e->pools, false, &machine, err);
    for (unsigned in = 0; status == NUMOE_OK && in < machine.n_node; in++) {
        machine.node[in].buffer_bytes = e->taken_bytes[in];
    }
    if (status == NUMOE_OK) {
        status = placement_make(&shapes, &machine, &request, &plan, err);
    }
    if (status == NUMOE_OK) {
        status = store_load(e->model, &shapes, plan, e->topo, e->pools, NULL, NULL, &more, err);
    }
    if (status == NUMOE_OK) {
        store_adopt(e->store, more);
        e->info.weight_bytes = e->store->bytes;
    }
    placement_free(plan);
    shapes_fini(&shapes);
    return status;
}

numoe_status engine_await_gpu(numoe_engine *e, numoe_error *err)
{
    bool shrunk = false;
    numoe_error why = {.status = NUMOE_OK};
    if (e->gpu == NULL) {
        return NUMOE_OK;
    }
    numoe_status status = gpu_wait_ready(e->gpu, &shrunk, &why);
    if (status == NUMOE_OK) {
        return shrunk ? load_missing(e, err) : NUMOE_OK;
    }
    FORWARD_IF(gpu_do_without(e->gpu, status, why.text, err));
    gpu_close(e->gpu);
    e->gpu = NULL; /* everything is needed here now */
    return load_missing(e, err);
}

void engine_adapt_beside_gpu(numoe_engine *e)
{
    const struct model_hparams *hp = &e->model->hp;
    for (unsigned il = 0; e->adapt != NULL && il < hp->n_layer; il++) {
        for (unsigned ie = 0; ie < hp->n_expert; ie++) {
            adapt_leave_out(e->adapt, il, ie, e->gpu != NULL && gpu_has_expert(e->gpu, il, ie));
        }
    }
}

numoe_status engine_recover(numoe_engine *e, numoe_error *err)
{
    numoe_error why = {.status = NUMOE_OK};
    e->generation++;
    if (gpu_restart(e->gpu, &why) == NUMOE_OK) {
        return NUMOE_OK;
    }
    log_warn("%s: going on with the CPU alone", why.text);
    struct gpu *gpu = e->gpu;
    e->gpu = NULL; /* everything is needed here now */
    numoe_status status = load_missing(e, err);
    if (status == NUMOE_OK) {
        status = step_drop_gpu(e->step, err);
    }
    if (status != NUMOE_OK) {
        e->gpu = gpu; /* without a program: each step tries again */
        return status_context(err, status, "%s; the CPU cannot take over", why.text);
    }
    gpu_close(gpu);
    engine_adapt_beside_gpu(e);
    e->info.gpu = NULL;
    return NUMOE_OK;
}
