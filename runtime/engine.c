/* An engine's life: what is opened in which order, what is known about it afterwards, and the text
 * functions of the public header, which only need the vocabulary.
 *
 * Owns nothing that computes: model/ reads, store/ places, runtime/step.c evaluates. Everything
 * that can be refused (instruction set, topology, file, vocabulary) is refused before the first
 * weight is read. */
#include "runtime/engine.h"

#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "kernels/select.h"
#include "model/chat.h"
#include "numa/bandwidth.h"
#include "numa/room.h"
#include "runtime/gpu-engine.h"
#include "runtime/params.h"
#include "runtime/place.h"

void numoe_engine_params_init(numoe_engine_params *params)
{
    *params = (numoe_engine_params){.chunk_tokens = CHUNK_TOKENS_DEFAULT,
                                    .gpu_experts = NUMOE_GPU_EXPERTS_AUTO};
}

/* A token without a row in the embedding matrix could be typed but not evaluated. The other way
 * round is common: matrices are padded. */
static numoe_status check_vocabulary(const struct model *model, const struct tokenizer *tok,
                                     numoe_error *err)
{
    unsigned n_token = tokenizer_n_vocab(tok);

    if (n_token > model->hp.n_vocab) {
        return status_fail(err, NUMOE_E_FILE_MODEL,
                           "vocabulary has %u tokens, token_embd.weight only %u rows", n_token,
                           model->hp.n_vocab);
    }
    return NUMOE_OK;
}

static numoe_status check_defer(const struct model *model, unsigned n, numoe_error *err)
{
    if (n > 0 && n >= model->hp.n_expert_used) {
        return status_fail(
            err, NUMOE_E_INPUT,
            "%u deferred experts: at most %d of the %u that a token has are possible", n,
            MAX((int)model->hp.n_expert_used - 1, 0), model->hp.n_expert_used);
    }
    return NUMOE_OK;
}

static numoe_status check_context(const struct model *model, unsigned min_ctx, numoe_error *err)
{
    if (min_ctx > model->hp.n_ctx_train) {
        return status_fail(err, NUMOE_E_INPUT_CONTEXT,
                           "context of %u tokens: this model was made for at most %u", min_ctx,
                           model->hp.n_ctx_train);
    }
    return NUMOE_OK;
}

static bool is_float(uint32_t format_id)
{
    return format_id == FORMAT_F32 || format_id == FORMAT_F16 || format_id == FORMAT_BF16;
}

/* A cache in f16 costs 1e-3 of the logits: that is lost in the error of quantized weights, but not
 * in that of floats. */
static numoe_kv_type choose_kv_type(numoe_kv_type type, const struct model *model)
{
    if (type != NUMOE_KV_AUTO) {
        return type;
    }
    for (unsigned il = 0; il < model->hp.n_layer; il++) {
        if (!is_float(model->layer[il].src[SLOT_O].format_id)) {
            return NUMOE_KV_F16;
        }
    }
    return NUMOE_KV_F32;
}

static const struct {
    enum kv_type type;
    const char *name;
} kv_types[] = {
    [NUMOE_KV_F32] = {KV_F32, "f32"},
    [NUMOE_KV_F16] = {KV_F16, "f16"},
    [NUMOE_KV_Q8_0] = {KV_Q8_0, "q8_0"},
};

enum kv_type engine_kv_type(numoe_kv_type type, const struct model *model)
{
    return kv_types[choose_kv_type(type, model)].type;
}

/* ------------------------------------------------------------------ what is known */

uint64_t numoe_memory_room(void)
{
    return room_of_host();
}

static const char *dominant_type(const struct gguf *g)
{
    uint64_t bytes[FORMAT_MAX] = {0};
    uint32_t best = 0;

    for (uint64_t i = 0; i < g->n_tensor; i++) {
        uint32_t id = g->tensor[i].format_id;
        bytes[id] += g->tensor[i].bytes;
        best = bytes[id] > bytes[best] ? id : best;
    }
    return format_find(best)->name;
}

static void fill_info(numoe_engine *e, numoe_kv_type kv_type, double load_seconds)
{
    const struct model *m = e->model;

    e->info = (numoe_engine_info){
        .model_name = m->name,
        .arch = m->arch,
        .type_name = dominant_type(m->gguf),
        .isa = e->kern->isa,
        .machine = e->topo->description,
        .placement = e->placement.data,
        .tuning = e->tuning.text,
        .n_layer = m->hp.n_layer,
        .n_expert = m->hp.n_expert,
        .n_expert_used = m->hp.n_expert_used,
        .n_vocab = m->hp.n_vocab,
        .n_embd = m->hp.n_embd,
        .n_ctx_train = m->hp.n_ctx_train,
        .n_node = pools_n_node(e->pools),
        .n_worker = pools_n_worker(e->pools),
        .n_lane = step_max_lanes(e->step),
        .n_param = m->n_param,
        .weight_bytes = e->store->bytes,
        .mapped_bytes = e->store->mapped_bytes,
        .active_bytes = m->active.dense + m->active.shared + m->active.routed,
        .kv_token_bytes = kv_token_bytes(m, e->kv_type),
        .load_seconds = load_seconds,
        .read_bps = tuning_recall_all(&e->tuning, e->topo, e->pools),
        .gpu = e->gpu != NULL ? gpu_description(e->gpu) : NULL,
        .kv_type = kv_type,
    };
}

const numoe_engine_info *numoe_engine_get_info(const numoe_engine *engine)
{
    return &engine->info;
}

double numoe_engine_bandwidth(numoe_engine *engine)
{
    if (!engine->bandwidth_known) {
        numoe_error err;
        if (bandwidth_read(engine->pools, engine->topo, &engine->bandwidth_bps, NULL, &err) !=
            NUMOE_OK) {
            log_warn("memory bandwidth was not measured: %s", err.text);
            engine->bandwidth_bps = 0;
        } else {
            tuning_note_all(&engine->tuning, engine->topo, engine->pools, engine->bandwidth_bps);
        }
        engine->bandwidth_known = true;
    }
    return engine->bandwidth_bps;
}

bool numoe_engine_traffic(const numoe_engine *engine, unsigned index, numoe_traffic *traffic)
{
    if (index >= engine->info.n_node) {
        return false;
    }
    traffic->os_node = engine->topo->node[index].os_index;
    const struct traffic sum = step_traffic(engine->step, index);
    traffic->local_bytes = sum.local_bytes;
    traffic->remote_bytes = sum.remote_bytes;
    traffic->file_bytes = sum.file_bytes;
    return true;
}

bool numoe_engine_pages(const numoe_engine *engine, unsigned index, numoe_pages *pages)
{
    struct audit audit = {0};

    if (index >= engine->info.n_node) {
        return false;
    }
    if (engine->topo->is_this_machine) {
        store_audit(engine->store, engine->topo, index, &audit);
    }
    *pages = (numoe_pages){
        .os_node = engine->topo->node[index].os_index,
        .n_local = audit.n_local,
        .n_remote = audit.n_remote,
        .n_absent = audit.n_absent,
        .sampled = audit.is_sampled,
        .known = engine->topo->is_this_machine && !audit.is_unknown,
    };
    if (pages->known && audit.n_remote > 0) {
        pages->cause = store_audit_cause(engine->store, engine->topo, index);
    }
    return true;
}

/* ------------------------------------------------------------------ open and close */

/* What a half-opened engine has is released here too: every release takes NULL. */
static void engine_free(numoe_engine *e)
{
    numoe_profile_stop(e);
    mem_free(e->span);
    mem_free(e->token);
    strbuf_fini(&e->placement);
    step_free(e->step);
    gpu_close(e->gpu);
    adapt_free(e->adapt);
    store_free(e->store);
    tuning_close(&e->tuning);
    pools_free(e->pools);
    chat_close(e->chat);
    tokenizer_close(e->tok);
    model_close(e->model);
    topo_free(e->topo);
    mem_free(e);
}

/* What was asked for and is not had. */
static void tell_replicas(const numoe_engine_params *params, const struct placement *plan)
{
    const bool has_budget = params_has_budget(params);
    const unsigned n_place = placement_n_place(plan);
    if (plan->n_node == 1 && (has_budget || params->adapt)) {
        log_warn("experts have no replicas: all weights are on one node");
    } else if (plan->mode != NUMOE_PLACEMENT_SHARD && (has_budget || params->adapt)) {
        log_warn("experts have no replicas: the placement is %s (%s); --placement shard has them",
                 placement_mode_name(plan->mode), plan->reason);
    } else if (has_budget && plan->n_place_asked == 0 && plan->n_replicated == 0) {
        log_warn("experts have no replicas: the budget for them has no room for one");
    } else if (params->adapt && params->plan != NULL && n_place == 0) {
        log_warn("--adapt has nothing to change: the plan %s has no further copies of experts, nor "
                 "places for some",
                 params->plan);
    } else if (params->adapt && n_place == 0) {
        log_warn("--adapt has nothing to change: there is no room for further copies of experts");
    } else if (n_place < plan->n_place_asked) {
        log_warn("there is room for %u replicas of experts, the budget would have %llu", n_place,
                 (unsigned long long)plan->n_place_asked);
    }
    if (params->adapt && params_has_gpu(params)) {
        log_warn("--adapt changes replicas on nodes only: a GPU keeps the experts that it begins "
                 "with");
    }
}

/* Workers, and weights where the placement wants them. */
static numoe_status load_weights(numoe_engine *e, const numoe_engine_params *params,
                                 numoe_error *err)
{
    struct place place;

    FORWARD_IF(place_open_part(params, e->model, engine_needs, e, e->topo, &place, err));
    numoe_status status = place_describe(place.plan, &place.machine, &e->placement, err);
    if (status == NUMOE_OK) {
        status = store_load(e->model, &place.shapes, place.plan, e->topo, place.pools,
                            params->progress, params->progress_arg, &e->store, err);
    }
    e->placement_mode = place.plan->mode;
    e->lanes_pay = place.plan->lanes_pay;
    for (unsigned in = 0; in < place.machine.n_node; in++) {
        e->taken_bytes[in] = place.plan->node_bytes[in] + placement_reserved(place.plan, in) +
                             place.machine.node[in].buffer_bytes;
    }
    if (status == NUMOE_OK) {
        tell_replicas(params, place.plan);
    }
    e->pools = place.pools;
    e->tuning = place.tuning;
    place.pools = NULL;
    place.tuning.memo = NULL;
    place_close(&place);
    return status;
}

/* The file without its weights: what can be refused is refused here. */
static numoe_status open_model(numoe_engine *e, const char *path, unsigned min_ctx,
                               numoe_error *err)
{
    if (!path) {
        FORWARD_IF(numoe_bundled_model(&path, err));
    }
    FORWARD_IF(model_open(path, &e->model, err));
    numoe_status status = tokenizer_open(e->model->gguf, &e->tok, err);
    if (status == NUMOE_OK) {
        status = check_vocabulary(e->model, e->tok, err);
    }
    if (status != NUMOE_OK) {
        return status_context(err, status, "%s", path);
    }
    log_debug("model: %s, %u layers, %.1f MB", path, e->model->hp.n_layer,
              (double)e->model->gguf->tensor_bytes * 1e-6);
    return check_context(e->model, min_ctx, err);
}

static void log_opened(const numoe_engine *e)
{
    log_debug("tuning: %s", e->tuning.text);
    log_debug("placement: %s", e->placement.data);
    log_debug("loaded in %.2f s: %.1f MB of weights, %u workers on %u node%s, chunks of %u tokens",
              e->info.load_seconds, (double)e->info.weight_bytes * 1e-6, e->info.n_worker,
              e->info.n_node, e->info.n_node == 1 ? "" : "s", e->chunk_tokens);
    log_debug("KV cache: %s, %llu bytes a token", kv_types[e->info.kv_type].name,
              (unsigned long long)e->info.kv_token_bytes);
}

static numoe_status engine_load(numoe_engine *e, const numoe_engine_params *params,
                                numoe_error *err)
{
    double start = clock_seconds();

    FORWARD_IF(log_check(err));
    FORWARD_IF(watch_init(&e->watch, err));
    FORWARD_IF(kern_select(&e->kern, err));
    log_debug("kernels: %s", e->kern->isa);
    FORWARD_IF(topo_load(params->topology, &e->topo, err));
    if (params->n_share > 1) {
        FORWARD_IF(topo_keep_share(e->topo, params->share, params->n_share, err));
    }
    log_debug("machine: %s", e->topo->description);
    FORWARD_IF(open_model(e, params->model_path, params->min_ctx, err));
    FORWARD_IF(check_defer(e->model, params->defer_experts, err));
    FORWARD_IF(chat_open(e->model->gguf, e->tok, params->chat_template, &e->chat, err));
    e->peers = params->peers;
    const numoe_kv_type kv_type = choose_kv_type(params->kv_type, e->model);
    e->kv_type = kv_types[kv_type].type;
    e->chunk_tokens = params->chunk_tokens ? params->chunk_tokens : CHUNK_TOKENS_DEFAULT;
    FORWARD_IF(engine_open_gpu(e, params, err));
    FORWARD_IF(mem_new(&e->token, e->chunk_tokens, sizeof *e->token, "batch", err));
    FORWARD_IF(mem_new(&e->span, e->chunk_tokens, sizeof *e->span, "batch", err));
    FORWARD_IF(load_weights(e, params, err));
    FORWARD_IF(engine_await_gpu(e, err));
    FORWARD_IF(step_new(e->model, e->store, e->pools, e->topo, e->kern, e->chunk_tokens, e->gpu,
                        e->peers, &e->step, err));
    FORWARD_IF(step_set_defer(e->step, params->defer_experts, err));
    FORWARD_IF(e->store->replicas != NULL
                   ? adapt_new(e->model, e->store, params->adapt, &e->adapt, err)
                   : NUMOE_OK);
    engine_adapt_beside_gpu(e);
    watch_begin(&e->watch, e->store, e->topo);
    fill_info(e, kv_type, clock_seconds() - start);
    log_opened(e);
    e->mode_now = NUMOE_MODE_LATENCY;
    return numoe_engine_set_mode(e, params->mode, err);
}

numoe_status numoe_engine_open(const numoe_engine_params *params, numoe_engine **engine,
                               numoe_error *err)
{
    numoe_engine *e;

    FORWARD_IF(params_check(params, err));
    FORWARD_IF(params_check_used(params, err));
    FORWARD_IF(mem_new(&e, 1, sizeof *e, "engine", err));
    numoe_status status = engine_load(e, params, err);
    if (status != NUMOE_OK) {
        engine_free(e);
        return status;
    }
    *engine = e;
    return NUMOE_OK;
}

void numoe_engine_close(numoe_engine *engine)
{
    if (!engine) {
        return;
    }
    if (engine->n_session) {
        log_error("engine is not closed: %u of its sessions are still open", engine->n_session);
        return;
    }
    engine_free(engine);
}

/* ------------------------------------------------------------------ text */

numoe_status numoe_tokenize(const numoe_engine *engine, const char *text, size_t text_bytes,
                            unsigned flags, int32_t *ids, size_t cap, size_t *n, numoe_error *err)
{
    int32_t *all;
    size_t n_all;

    FORWARD_IF(tokenizer_encode(engine->tok, text, text_bytes, flags, &all, &n_all, err));
    if (MIN(n_all, cap)) {
        memcpy(ids, all, MIN(n_all, cap) * sizeof *ids);
    }
    mem_free(all);
    *n = n_all;
    return NUMOE_OK;
}

const char *numoe_token_text(const numoe_engine *engine, int32_t id, bool special, size_t *n_bytes)
{
    return tokenizer_text(engine->tok, id, special, n_bytes);
}

int32_t numoe_token_bos(const numoe_engine *engine)
{
    return tokenizer_bos(engine->tok);
}

bool numoe_token_is_eog(const numoe_engine *engine, int32_t id)
{
    return tokenizer_is_eog(engine->tok, id);
}
