/* numoe-gpu-cuda: the dense half of a model, and its hot experts, on an NVIDIA GPU. An engine
 * starts it (docs/exchange.md).
 *
 * A step of few tokens is one launch of the graph for the next bucket; its kernels hand activations
 * to the engine and wait for the experts through pinned memory, so nothing is done here until the
 * next step. Prompts are enqueued kernel by kernel.
 */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "gpu/common/sizes.h"
#include "gpu/cuda/engine.h"
#include "gpu/serve.h"

#define N_BUCKET   7u /* 1, 2, 4 .. STEP_BUCKET_MAX */
#define MAX_TOKENS 2048u
/* For HELLO, where neither model nor context is known: libraries and the work of large models. */
#define WORK_BYTES ((uint64_t)2 << 30)

/* ------------------------------------------------------------------ hello */

static void describe(unsigned i, struct exchange_device *device)
{
    struct cudaDeviceProp p;
    size_t free_bytes = 0, total_bytes = 0;
    if (cudaGetDeviceProperties(&p, (int)i) != cudaSuccess ||
        cudaSetDevice((int)i) != cudaSuccess ||
        cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) {
        return;
    }
    cudaSetDeviceFlags(cudaDeviceScheduleYield | cudaDeviceMapHost);
    snprintf(device->name, sizeof device->name, "%.60s", p.name);
    device->number = i;
    device->total_bytes = total_bytes;
    device->free_bytes = free_bytes;
    device->os_node = UINT32_MAX;
    char path[96], bus[32];
    int node = -1;
    snprintf(bus, sizeof bus, "%04x:%02x:%02x.0", p.pciDomainID, p.pciBusID, p.pciDeviceID);
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/numa_node", bus);
    FILE *f = fopen(path, "r");
    if (f != NULL && fscanf(f, "%d", &node) == 1 && node >= 0) {
        device->os_node = (uint32_t)node;
    }
    if (f != NULL) {
        fclose(f);
    }
}

/* All that the driver shows (CUDA_VISIBLE_DEVICES chooses among them, and their order). */
static void describe_all(struct cuda_engine *e, int n, struct exchange_hello *h)
{
    for (int i = 0; i < n && h->n_device < EXCHANGE_MAX_DEVICE; i++) {
        struct exchange_device *device = &h->device[h->n_device];
        describe((unsigned)i, device);
        if (device->total_bytes > 0) {
            e->device_number[h->n_device++] = i;
        }
    }
    e->n_device = h->n_device;
}

static numoe_status hello(void *self, struct exchange_hello *h, numoe_error *err)
{
    int n = 0, driver = 0, runtime = 0;
    (void)err;
    snprintf(h->program, sizeof h->program, "numoe-gpu-cuda %s", PACKAGE_VERSION);
    const cudaError_t e = cudaGetDeviceCount(&n);
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    snprintf(h->driver, sizeof h->driver, "CUDA %d.%d, driver for %d.%d", runtime / 1000,
             runtime % 1000 / 10, driver / 1000, driver % 1000 / 10);
    h->x_type = EXCHANGE_X_F32;
    h->block_tokens = CUDA_KV_PAGE;
    h->max_tokens = MAX_TOKENS;
    h->workspace_bytes = WORK_BYTES;
    h->max_plan_device = 1;
    if (e != cudaSuccess || n == 0) {
        snprintf(h->trouble, sizeof h->trouble, "no CUDA device: %s",
                 e != cudaSuccess ? cudaGetErrorString(e) : "none is visible");
        return NUMOE_OK;
    }
    describe_all(self, n, h);
    if (h->n_device == 0) {
        snprintf(h->trouble, sizeof h->trouble, "no CUDA device answers: %s",
                 cudaGetErrorString(cudaGetLastError()));
    }
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ load */

/* Asking the others for their memory has left contexts there, which take some of it. */
static numoe_status choose_device(struct cuda_engine *e, numoe_error *err)
{
    const uint32_t index = e->h->device[0];
    if (e->h->n_device != 1 || index >= e->n_device) {
        return status_fail(err, NUMOE_E_SUPPORT, "one GPU of %u at a time, not %u (the first: %u)",
                           e->n_device, e->h->n_device, index);
    }
    for (unsigned i = 0; i < e->n_device; i++) {
        if (i != index) {
            cudaSetDevice(e->device_number[i]);
            cudaDeviceReset();
        }
    }
    return engine_cuda(cudaSetDevice(e->device_number[index]), "choosing the GPU", err);
}

static numoe_status check_model(const struct cuda_engine *e, numoe_error *err)
{
    const struct model_hparams *hp = &e->model->hp;
    const struct exchange_header *h = e->h;
    const struct exchange_model m = model_sizes(e->model);
    FORWARD_IF(exchange_check_model(h, &m, err));
    const unsigned n_value = hp->attn == ATTN_MLA ? hp->kv_lora_rank : hp->n_v;
    if (n_value > CUDA_MAX_VALUE) {
        return status_fail(err, NUMOE_E_SUPPORT, "values of %u elements: at most %u are possible",
                           n_value, CUDA_MAX_VALUE);
    }
    if (h->kv_type > EXCHANGE_KV_F16) {
        return status_fail(err, NUMOE_E_SUPPORT, "the GPU has no 8-bit KV cache: use f16 or f32");
    }
    if (h->block_tokens != CUDA_KV_PAGE || h->x_type != EXCHANGE_X_F32) {
        return status_fail(err, NUMOE_E_SUPPORT, "blocks of %u positions, x of type %u",
                           h->block_tokens, h->x_type);
    }
    return NUMOE_OK;
}

static numoe_status pin(struct cuda_engine *e, numoe_error *err)
{
    void *device = NULL;
    FORWARD_IF(engine_cuda(cudaHostRegister(e->h, e->h->segment_bytes, cudaHostRegisterMapped),
                           "pinning the exchange", err));
    FORWARD_IF(
        engine_cuda(cudaHostGetDevicePointer(&device, e->h, 0), "pinning the exchange", err));
    e->device_segment = device;
    return NUMOE_OK;
}

static unsigned bucket_of(unsigned n)
{
    unsigned i = 0;
    while (1u << i < n) {
        i++;
    }
    return i;
}

/* Captured once, launched for every step of up to that many tokens. */
static numoe_status capture(struct cuda_engine *e, unsigned i, numoe_error *err)
{
    const unsigned n = MIN(1u << i, e->max_tokens);
    cudaGraph_t graph = NULL;
    FORWARD_IF(engine_cuda(cudaStreamBeginCapture(e->stream, cudaStreamCaptureModeThreadLocal),
                           "graph", err));
    numoe_status status = step_enqueue(e, n, MIN(n, e->max_logits), err);
    const cudaError_t ended = cudaStreamEndCapture(e->stream, &graph);
    if (status == NUMOE_OK) {
        status = engine_cuda(ended, "graph", err);
    }
    if (status == NUMOE_OK) {
        status = engine_cuda(cudaGraphInstantiate(&e->graph[i], graph, 0), "graph", err);
    }
    if (status == NUMOE_OK) {
        status = engine_cuda(cudaGraphUpload(e->graph[i], e->stream), "graph", err);
    }
    if (graph != NULL) {
        cudaGraphDestroy(graph);
    }
    return status;
}

static numoe_status load(void *self, struct exchange_header *h, struct exchange_ready *ready,
                         uint64_t *short_bytes, numoe_error *err)
{
    struct cuda_engine *e = self;
    e->h = h;
    e->exact = h->float_mode == EXCHANGE_FLOAT_F32;
    e->kv_half = h->kv_type == EXCHANGE_KV_F16;
    e->has_head = h->n_dense_layer == h->n_layer;
    e->max_tokens = h->max_tokens;
    e->max_logits = h->max_logits;
    FORWARD_IF(model_open(exchange_at(h, h->path_at), &e->model, err));
    FORWARD_IF(check_model(e, err));
    FORWARD_IF(choose_device(e, err));
    FORWARD_IF(pin(e, err));
    FORWARD_IF(engine_load(e, short_bytes, err));
    for (unsigned i = 0; i < N_BUCKET && (i == 0 || 1u << (i - 1) < e->max_tokens); i++) {
        FORWARD_IF(capture(e, i, err));
    }
    FORWARD_IF(engine_cuda(cudaStreamSynchronize(e->stream), "loading", err));
    ready->n_device = 1;
    ready->use[0] = e->use;
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ steps */

/* What the device reads of the step; tokens from n on are padding. */
static void fill_inputs(struct cuda_engine *e, const struct exchange_step *step, unsigned n,
                        unsigned n_row)
{
    const struct exchange_token *token = exchange_at(e->h, e->h->token_at[e->number % 2]);
    struct cuda_inputs *in = &e->host;
    *in->step = (struct cuda_step){.number = step->number,
                                   .first_hand = step->first_hand,
                                   .n_token = step->n_token,
                                   .n_logits = step->n_logits};
    memset(in->logits_row, 0xff, n_row * sizeof *in->logits_row);
    for (unsigned t = 0; t < n; t++) {
        const bool real = t < step->n_token;
        in->id[t] = real ? token[t].id : 0;
        in->position[t] = real ? (int32_t)token[t].position : -1;
        in->seq[t] = real ? (int32_t)token[t].seq : 0;
        if (real && token[t].logits != EXCHANGE_NO_LOGITS) {
            in->logits_row[token[t].logits] = (int32_t)t;
        }
    }
}

/* Block tables, by the step's sequences. */
static numoe_status send_tables(struct cuda_engine *e, const struct exchange_step *step,
                                numoe_error *err)
{
    const struct exchange_seq *seq = exchange_at(e->h, e->h->seq_at[e->number % 2]);
    const uint32_t *table = exchange_at(e->h, e->h->table_at);
    const size_t row = e->h->max_seq_block;
    size_t longest = 0;
    for (unsigned is = 0; is < step->n_seq; is++) {
        memcpy(e->host.table + is * row, table + seq[is].row * row,
               seq[is].n_block * sizeof *table);
        longest = MAX(longest, seq[is].n_block);
    }
    return engine_cuda(cudaMemcpy2DAsync(e->device.table, row * 4, e->host.table, row * 4,
                                         longest * 4, step->n_seq, cudaMemcpyHostToDevice,
                                         e->stream),
                       "a step", err);
}

static numoe_status step(void *self, uint64_t number, numoe_error *err)
{
    struct cuda_engine *e = self;
    const struct exchange_step *s = exchange_at(e->h, e->h->step_at[number % 2]);
    const struct exchange_copy *copy = exchange_at(e->h, e->h->copy_at[number % 2]);
    const bool few = s->n_token <= STEP_BUCKET_MAX;
    const unsigned bucket = bucket_of(few ? s->n_token : 1);
    const unsigned n = few ? MIN(1u << bucket, e->max_tokens) : s->n_token;
    const unsigned n_row = few ? MIN(n, e->max_logits) : s->n_logits;
    /* the last step's inputs have been read: its result is there */
    FORWARD_IF(engine_cuda(cudaStreamSynchronize(e->stream), "a step", err));
    e->number = number;
    fill_inputs(e, s, n, n_row);
    step_copy_blocks(e, copy, s->n_copy);
    FORWARD_IF(engine_cuda(cudaMemcpyAsync(e->device.step, e->host.step, e->host.bytes,
                                           cudaMemcpyHostToDevice, e->stream),
                           "a step", err));
    FORWARD_IF(send_tables(e, s, err));
    if (few) {
        return engine_cuda(cudaGraphLaunch(e->graph[bucket], e->stream), "a step", err);
    }
    return step_enqueue(e, n, n_row, err);
}

static numoe_status look(void *self, numoe_error *err)
{
    struct cuda_engine *e = self;
    const cudaError_t error = cudaStreamQuery(e->stream);
    return error == cudaErrorNotReady ? NUMOE_OK : engine_cuda(error, "a step", err);
}

int main(void)
{
    static struct cuda_engine engine;
    static const struct serve serve = {
        .program = "numoe-gpu-cuda", .hello = hello, .load = load, .step = step, .look = look};
    return serve_run(&serve, &engine);
}
