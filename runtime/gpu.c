/* Owns the choice of a GPU program, its plan and its lives: start, load, restart. Steps are in
 * gpu-step.c, KV blocks in gpu-cache.c. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "dense/kv.h"
#include "runtime/gpu-impl.h"
#include "runtime/params.h"

#define MAX_SEQ        256u
#define SPARE_BLOCKS   8u /* of sequences that end within a block */
#define LOGITS_BYTES   (UINT64_C(64) << 20)
#define MIN_LOGITS     16u
#define MARGIN_PERCENT 2u /* of a device's memory, for what drivers take later */
#define MAX_REFUSAL    4u
#define REFUSAL_MARGIN (UINT64_C(64) << 20)
#define MAX_FAULT      3u
#define FORGIVEN_STEPS 100u

/* ------------------------------------------------------------------ devices */

static bool has_device(const struct gpu *g, uint32_t index)
{
    for (uint32_t i = 0; i < g->n_device; i++) {
        if (g->device[i] == index) {
            return true;
        }
    }
    return false;
}

static numoe_status take_device(struct gpu *g, unsigned long number, numoe_error *err)
{
    const struct exchange_hello *hello = gpu_program_hello(g->program);
    for (uint32_t i = 0; i < hello->n_device; i++) {
        if (hello->device[i].number == number && !has_device(g, i)) {
            g->device[g->n_device++] = i;
            return NUMOE_OK;
        }
    }
    return status_fail(err, NUMOE_E_INPUT,
                       "--gpu-devices %s: GPU %lu is not there, or named twice: %s has %u",
                       g->params->gpu_devices, number, hello->program, hello->n_device);
}

/* As many as one plan of the program may name. */
static numoe_status check_device_count(const struct gpu *g, numoe_error *err)
{
    const struct exchange_hello *hello = gpu_program_hello(g->program);
    const uint32_t most = hello->max_plan_device;
    if (g->n_device == 0) {
        return status_fail(err, NUMOE_E_INPUT, "the list of GPUs is empty");
    }
    return most == 0 || g->n_device <= most
               ? NUMOE_OK
               : status_fail(err, NUMOE_E_INPUT, "\"%s\" names %u GPUs: %s works with %u at a time",
                             g->params->gpu_devices, g->n_device, hello->program, most);
}

/* "0,2" by the driver's numbers; NULL: the first, as many as the program works with. */
static numoe_status choose_devices(struct gpu *g, numoe_error *err)
{
    const struct exchange_hello *hello = gpu_program_hello(g->program);
    const char *text = g->params->gpu_devices;
    const uint32_t n = hello->max_plan_device == 0 ? hello->n_device
                                                   : MIN(hello->n_device, hello->max_plan_device);
    g->n_device = 0;
    for (uint32_t i = 0; text == NULL && i < n; i++) {
        g->device[g->n_device++] = i;
    }
    while (text != NULL && *text != '\0') {
        char *end;
        errno = 0;
        const unsigned long number = strtoul(text, &end, 10);
        if (end == text || (*end != ',' && *end != '\0') || errno != 0) {
            return status_fail(err, NUMOE_E_INPUT, "\"%s\" is no list of GPUs like 0,1",
                               g->params->gpu_devices);
        }
        FORWARD_IF(take_device(g, number, err));
        text = *end == ',' ? end + 1 : end;
    }
    return check_device_count(g, err);
}

static uint64_t usable_bytes(const struct gpu *g, const struct exchange_device *device)
{
    const uint64_t margin = device->total_bytes / 100 * MARGIN_PERCENT + g->less_bytes;
    uint64_t bytes = device->free_bytes > margin ? device->free_bytes - margin : 0;
    if (g->params->vram_budget_bytes > 0) {
        const uint64_t budget = g->params->vram_budget_bytes;
        bytes = MIN(bytes, budget > g->less_bytes ? budget - g->less_bytes : 0);
    }
    return bytes;
}

/* ------------------------------------------------------------------ plan */

static void measure_layers(const struct shapes *shapes, const struct gpu *g,
                           struct gpu_plan_layer *layer, struct gpu_plan_request *r)
{
    const struct model_hparams *hp = &g->request.model->hp;
    for (uint32_t il = 0; il < hp->n_layer; il++) {
        layer[il].kv_token_bytes =
            kv_token_bytes(g->request.model, g->request.kv_type) / hp->n_layer;
    }
    for (unsigned is = 0; is < shapes->n; is++) {
        const struct shape *s = &shapes->shape[is];
        if (s->slot == SLOT_TOKEN_EMBD) {
            r->embd_bytes += shape_bytes(s);
        } else if (s->layer < 0) {
            r->head_bytes += shape_bytes(s);
        } else if (shape_is_routed(s)) {
            layer[s->layer].expert_bytes += shape_bytes(s) / s->n_mat;
        } else {
            layer[s->layer].dense_bytes += shape_bytes(s);
        }
    }
}

/* Floats that a token needs at a time, generously: residual stream, norms, queries, keys, outputs.
 */
static uint64_t work_bytes(const struct gpu *g)
{
    const struct model_hparams *hp = &g->request.model->hp;
    const uint64_t key = hp->attn == ATTN_MLA ? hp->kv_lora_rank + hp->n_rope : hp->n_qk;
    const uint64_t token_floats = 11 * (uint64_t)hp->n_embd + 2 * (uint64_t)hp->n_head * hp->n_qk +
                                  2 * hp->n_head * key + 2 * (uint64_t)hp->n_head * hp->n_v +
                                  3 * (uint64_t)(hp->n_ff + hp->n_ff_shared) +
                                  2 * (uint64_t)hp->n_expert_used * (hp->n_embd + hp->n_ff_expert) +
                                  2 * (uint64_t)hp->n_expert_used * hp->n_layer;
    return gpu_program_hello(g->program)->workspace_bytes +
           sizeof(float) *
               (gpu_max_tokens(g) * token_floats + (uint64_t)gpu_max_logits(g) * hp->n_vocab);
}

static numoe_status make_plan(struct gpu *g, numoe_error *err)
{
    const struct exchange_hello *hello = gpu_program_hello(g->program);
    const struct model_hparams *hp = &g->request.model->hp;
    struct gpu_plan_layer *layer = NULL;
    struct shapes shapes = {0};
    struct gpu_plan_request r = {
        .n_layer = hp->n_layer,
        .n_expert = hp->n_expert,
        .work_bytes = work_bytes(g),
        .n_device = g->n_device,
        .block_tokens = hello->block_tokens,
        .n_block =
            (g->request.kv_tokens + hello->block_tokens - 1) / hello->block_tokens + SPARE_BLOCKS,
        .n_hot = g->params->gpu_experts,
        .hot_percent = g->params->gpu_expert_percent,
        .count = g->request.stats != NULL ? g->request.stats->count : NULL,
        .keep_hands = g->request.defers,
    };
    for (uint32_t i = 0; i < g->n_device; i++) {
        r.device_bytes[i] = usable_bytes(g, &hello->device[g->device[i]]);
    }
    FORWARD_IF(mem_new(&layer, hp->n_layer, sizeof *layer, "plan", err));
    numoe_status status = shapes_new(g->request.model, &shapes, err);
    if (status == NUMOE_OK) {
        measure_layers(&shapes, g, layer, &r);
        r.layer = layer;
        gpu_plan_fini(&g->plan);
        status = gpu_plan_make(&r, &g->plan, err);
    }
    g->header.n_block = r.n_block;
    g->header.block_tokens = r.block_tokens;
    shapes_fini(&shapes);
    mem_free(layer);
    return status;
}

/* ------------------------------------------------------------------ segment */

/* Absolute paths of the model's files, one after the other. */
static numoe_status list_paths(const struct gguf *gguf, struct strbuf *out, numoe_error *err)
{
    for (unsigned i = 0; i < gguf->n_part; i++) {
        char *real = realpath(gguf->part[i].path, NULL);
        if (real == NULL) {
            return status_fail(err, NUMOE_E_FILE_OPEN, "%s: %s", gguf->part[i].path,
                               strerror(errno));
        }
        numoe_status status = strbuf_append(out, real, strlen(real) + 1, err);
        free(real);
        FORWARD_IF(status);
    }
    return NUMOE_OK;
}

static numoe_status lay_out(struct gpu *g, uint64_t path_bytes, numoe_error *err)
{
    const struct model_hparams *hp = &g->request.model->hp;
    const struct exchange_sizes sizes = {
        .n_part = g->request.model->gguf->n_part,
        .n_layer = hp->n_layer,
        .n_embd = hp->n_embd,
        .n_vocab = hp->n_vocab,
        .n_expert = hp->n_expert,
        .n_expert_used = hp->n_expert_used,
        .n_dense_layer = g->plan.n_dense_layer,
        .n_hot = g->plan.n_hot,
        .n_route = g->plan.n_route,
        .max_tokens = gpu_max_tokens(g),
        .max_logits = gpu_max_logits(g),
        .max_seq = MAX_SEQ,
        .n_block = g->header.n_block,
        .block_tokens = g->header.block_tokens,
        .max_seq_block = g->header.n_block,
        .path_bytes = path_bytes,
    };
    FORWARD_IF(exchange_layout(&sizes, &g->header, err));
    g->header.n_device = g->n_device;
    memcpy(g->header.device, g->device, sizeof g->device);
    g->header.x_type = gpu_program_hello(g->program)->x_type;
    g->header.kv_type = (uint32_t)g->request.kv_type; /* numbered alike */
    g->header.float_mode = g->request.kv_type == KV_F32 ? EXCHANGE_FLOAT_F32 : EXCHANGE_FLOAT_FAST;
    return NUMOE_OK;
}

static numoe_status send_load(struct gpu *g, numoe_error *err)
{
    const struct exchange_hello *hello = gpu_program_hello(g->program);
    struct strbuf paths = {NULL, 0, 0};
    numoe_status status = list_paths(g->request.model->gguf, &paths, err);
    if (status == NUMOE_OK) {
        status = lay_out(g, paths.len, err);
    }
    if (status == NUMOE_OK) {
        status = gpu_program_segment(g->program, &g->header, hello->device[g->device[0]].os_node,
                                     &g->h, err);
    }
    if (status == NUMOE_OK) {
        memcpy(exchange_at(g->h, g->header.path_at), paths.data, paths.len);
        memcpy(exchange_at(g->h, g->header.layer_at), g->plan.layer,
               g->plan.n_dense_layer * sizeof *g->plan.layer);
        memcpy(exchange_at(g->h, g->header.hot_at), g->plan.hot,
               g->plan.n_hot * sizeof *g->plan.hot);
        status = exchange_check(g->h, g->header.segment_bytes, err);
    }
    if (status == NUMOE_OK) {
        status = gpu_program_load(g->program, err);
    }
    strbuf_fini(&paths);
    g->step = g->hand = 0;
    return status;
}

/* ------------------------------------------------------------------ lives */

static void drop_program(struct gpu *g)
{
    gpu_program_stop(g->program);
    g->program = NULL;
    g->h = NULL;
}

static numoe_status start_program(struct gpu *g, numoe_error *err)
{
    FORWARD_IF(gpu_program_start(g->path, &g->program, err));
    const struct exchange_hello *hello = gpu_program_hello(g->program);
    if (hello->n_device == 0) {
        return status_fail(err, NUMOE_E_DEVICE, "%s: no GPU can be used: %s", g->path,
                           hello->trouble[0] != '\0' ? hello->trouble : "it has found none");
    }
    g->max_tokens = MIN(g->request.max_tokens, hello->max_tokens);
    return choose_devices(g, err);
}

static numoe_status take_memory(struct gpu *g, numoe_error *err)
{
    const struct exchange_header *h = &g->header;
    FORWARD_IF(mem_new(&g->logits_row, h->max_tokens, sizeof *g->logits_row, "batch", err));
    FORWARD_IF(mem_new(&g->free_block, h->n_block, sizeof *g->free_block, "KV blocks", err));
    FORWARD_IF(mem_new(&g->n_user, h->n_block, sizeof *g->n_user, "KV blocks", err));
    FORWARD_IF(mem_new(&g->row_used, h->max_seq, sizeof *g->row_used, "KV blocks", err));
    FORWARD_IF(mem_new(&g->copy, h->max_seq, sizeof *g->copy, "KV blocks", err));
    gpu_cache_forget_all(g);
    return NUMOE_OK;
}

static numoe_status open_program(struct gpu *g, numoe_error *err)
{
    FORWARD_IF(start_program(g, err));
    FORWARD_IF(make_plan(g, err));
    FORWARD_IF(send_load(g, err));
    return take_memory(g, err);
}

numoe_status gpu_open(const numoe_engine_params *params, const struct gpu_request *request,
                      struct gpu **out, numoe_error *err)
{
    struct gpu *g = NULL;
    const char *name = params->gpu;
    *out = NULL;
    if (!params_has_gpu(params)) {
        return NUMOE_OK;
    }
    FORWARD_IF(mem_new(&g, 1, sizeof *g, "GPU", err));
    g->own_params = *params;
    g->params = &g->own_params;
    g->request = *request;
    g->automatic = strcmp(name, "auto") == 0;
    numoe_error why = {.status = NUMOE_OK};
    numoe_status status =
        gpu_find(g->automatic ? gpu_automatic_name() : name, g->path, sizeof g->path, &why);
    if (status == NUMOE_OK) {
        status = open_program(g, &why);
    }
    if (status == NUMOE_OK) {
        *out = g;
        return NUMOE_OK;
    }
    status = gpu_do_without(g, status, why.text, err);
    gpu_close(g);
    return status;
}

numoe_status gpu_do_without(const struct gpu *g, numoe_status status, const char *why,
                            numoe_error *err)
{
    if (!g->automatic || status == NUMOE_E_INPUT) {
        return status_fail(err, status, "%s", why);
    }
    log_warn("no GPU, going on with the CPU alone: %s", why);
    return NUMOE_OK;
}

void gpu_close(struct gpu *g)
{
    if (g == NULL) {
        return;
    }
    drop_program(g);
    gpu_plan_fini(&g->plan);
    mem_free(g->logits_row);
    mem_free(g->free_block);
    mem_free(g->n_user);
    mem_free(g->row_used);
    mem_free(g->copy);
    mem_free(g);
}

static void describe(struct gpu *g)
{
    const struct exchange_hello *hello = gpu_program_hello(g->program);
    const struct exchange_device *device = &hello->device[g->device[0]];
    char devices[96], hot[64] = "no experts";
    if (g->n_device > 1) {
        snprintf(devices, sizeof devices, "%u x %s", g->n_device, device->name);
    } else if (hello->n_device > 1) {
        snprintf(devices, sizeof devices, "%s (GPU %u)", device->name, device->number);
    } else {
        snprintf(devices, sizeof devices, "%s", device->name);
    }
    if (g->plan.n_hot > 0) {
        snprintf(hot, sizeof hot, "%u experts (%.0f %% of %s)", g->plan.n_hot,
                 g->plan.coverage * 100, g->request.stats != NULL ? "choices" : "all");
    }
    snprintf(g->description, sizeof g->description,
             "%s on %s: %u of %u layers%s, %s, KV cache for %llu tokens", hello->program, devices,
             g->plan.n_dense_layer, g->request.model->hp.n_layer,
             gpu_has_head(g) ? " and the head" : "", hot, (unsigned long long)gpu_kv_tokens(g));
}

static numoe_status await(struct gpu *g, uint64_t *short_bytes, numoe_error *err)
{
    struct exchange_ready ready;
    FORWARD_IF(gpu_program_ready(g->program, &ready, short_bytes, err));
    memcpy(g->use, ready.use, sizeof g->use);
    return NUMOE_OK;
}

/* With less on each device than before. */
static numoe_status load_less(struct gpu *g, uint64_t short_bytes, numoe_error *err)
{
    g->less_bytes += short_bytes + REFUSAL_MARGIN;
    drop_program(g);
    FORWARD_IF(start_program(g, err));
    FORWARD_IF(make_plan(g, err));
    return send_load(g, err);
}

numoe_status gpu_wait_ready(struct gpu *g, bool *shrunk, numoe_error *err)
{
    const uint32_t n_layer = g->plan.n_dense_layer;
    uint64_t short_bytes = 0;
    numoe_status status = await(g, &short_bytes, err);
    for (unsigned i = 0; status != NUMOE_OK && short_bytes > 0 && i < MAX_REFUSAL; i++) {
        log_info("GPU: %.1f MB are missing there: it gets less to load",
                 (double)short_bytes * 1e-6);
        FORWARD_IF(load_less(g, short_bytes, err));
        status = await(g, &short_bytes, err);
    }
    FORWARD_IF(status);
    *shrunk = g->plan.n_dense_layer < n_layer;
    describe(g);
    if (!gpu_has_head(g)) {
        log_warn("GPU memory is too little for all of the model: %u of %u layers are there, the "
                 "others and the head stay with the CPU",
                 g->plan.n_dense_layer, g->request.model->hp.n_layer);
    }
    log_info("GPU: %s", g->description);
    return NUMOE_OK;
}

static numoe_status start_again(struct gpu *g, numoe_error *err)
{
    uint64_t short_bytes;
    drop_program(g);
    FORWARD_IF(start_program(g, err));
    FORWARD_IF(send_load(g, err));
    return await(g, &short_bytes, err);
}

numoe_status gpu_restart(struct gpu *g, numoe_error *err)
{
    numoe_error why = {.status = NUMOE_OK};
    numoe_status status = NUMOE_E_DEVICE;
    if (g->program != NULL) {
        gpu_program_fault(g->program, &why);
    } else {
        status_fail(&why, NUMOE_E_DEVICE, "%s does not run", g->path);
        g->n_fault = 0;
    }
    if (g->n_step - g->last_fault > FORGIVEN_STEPS) {
        g->n_fault = 0;
    }
    g->last_fault = g->n_step;
    gpu_cache_forget_all(g);
    while (++g->n_fault < MAX_FAULT) {
        log_warn("GPU program failed: %s: it is started again, sequences are evaluated anew",
                 why.text);
        status = start_again(g, &why);
        if (status == NUMOE_OK) {
            return NUMOE_OK;
        }
    }
    drop_program(g);
    return status_fail(err, NUMOE_E_DEVICE, "GPU program failed %u times, at last: %s", g->n_fault,
                       why.text);
}

/* ------------------------------------------------------------------ what is known */

unsigned gpu_n_layer(const struct gpu *g)
{
    return g->plan.n_dense_layer;
}

bool gpu_has_head(const struct gpu *g)
{
    return g->plan.n_dense_layer == g->request.model->hp.n_layer;
}

bool gpu_has_hand(const struct gpu *g, unsigned il)
{
    return il < g->plan.n_dense_layer && (g->plan.layer[il].flags & EXCHANGE_LAYER_HAND);
}

bool gpu_has_routes(const struct gpu *g, unsigned il)
{
    return il < g->plan.n_dense_layer && (g->plan.layer[il].flags & EXCHANGE_LAYER_ROUTES);
}

bool gpu_has_expert(const struct gpu *g, unsigned il, unsigned ie)
{
    if (il >= g->plan.n_dense_layer) {
        return false;
    }
    const struct exchange_layer *layer = &g->plan.layer[il];
    uint32_t i = layer->hot0;
    while (i < layer->hot1 && g->plan.hot[i] != ie) {
        i++;
    }
    return i < layer->hot1;
}

unsigned gpu_n_hand(const struct gpu *g)
{
    unsigned n = gpu_has_head(g) ? 0 : 1;
    for (unsigned il = 0; il < g->plan.n_dense_layer; il++) {
        n += gpu_has_hand(g, il) ? 1 : 0;
    }
    return n;
}

bool gpu_is_running(const struct gpu *g)
{
    return g->program != NULL;
}

unsigned gpu_max_tokens(const struct gpu *g)
{
    return g->max_tokens;
}

unsigned gpu_max_logits(const struct gpu *g)
{
    const uint64_t n = LOGITS_BYTES / sizeof(float) / g->request.model->hp.n_vocab;
    return (unsigned)MIN(MAX(n, (uint64_t)MIN_LOGITS), (uint64_t)gpu_max_tokens(g));
}

uint64_t gpu_kv_tokens(const struct gpu *g)
{
    return (uint64_t)g->header.n_block * g->header.block_tokens;
}

const char *gpu_description(const struct gpu *g)
{
    return g->description;
}
