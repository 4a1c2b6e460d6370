/* Owns what is in VRAM. Everything is laid out twice by the same code: first dry, which gives the
 * sum of what is needed, then into one allocation of that size. So nothing can be out of memory
 * after that.
 *
 * Tensors go from the page cache to pinned memory, over PCIe as they are in the file, and are cut
 * into planes on the device.
 */
#include <cuda_runtime_api.h>
#include <string.h>

#include "base/mem.h"
#include "dense/rope.h"
#include "gpu/cuda/engine.h"
#include "gpu/serve.h"

#define STAGING_BYTES  ((size_t)32 << 20)
#define PROGRESS_BYTES ((size_t)256 << 20)

numoe_status engine_cuda(cudaError_t e, const char *what, numoe_error *err)
{
    if (e == cudaSuccess) {
        return NUMOE_OK;
    }
    return status_fail(err, e == cudaErrorMemoryAllocation ? NUMOE_E_MEMORY : NUMOE_E_DEVICE,
                       "CUDA: %s: %s", what, cudaGetErrorString(e));
}

/* ------------------------------------------------------------------ memory */

static void *take(struct cuda_engine *e, size_t bytes, uint64_t *sum)
{
    void *p = e->dry ? NULL : e->vram + e->used_bytes;
    const size_t whole = round_up(bytes, 256);
    e->used_bytes += whole;
    *sum += whole;
    return p;
}

static void *take_work(struct cuda_engine *e, size_t n, size_t elem_bytes)
{
    return take(e, n * elem_bytes, &e->use.workspace_bytes);
}

/* Activations [n, k]; the int8 form where weights can want it. */
static struct cuda_act take_act(struct cuda_engine *e, size_t n, size_t k)
{
    struct cuda_act a = {.f = take_work(e, n * k, sizeof(float))};
    if (!e->exact && k % 32 == 0) {
        a.q = take_work(e, n * k, 1);
        a.g = take_work(e, n * k / 32, sizeof *a.g);
    }
    return a;
}

/* ------------------------------------------------------------------ copying */

static void report(struct cuda_engine *e, size_t bytes)
{
    const size_t before = e->done_bytes / PROGRESS_BYTES;
    e->done_bytes += bytes;
    if (e->done_bytes / PROGRESS_BYTES != before) {
        serve_progress(e->done_bytes, e->total_bytes);
    }
}

/* A free piece of pinned memory of STAGING_BYTES. */
static numoe_status staging(struct cuda_engine *e, unsigned *i, numoe_error *err)
{
    *i = e->next_staging++ % 2;
    return engine_cuda(cudaEventSynchronize(e->staged[*i]), "loading", err);
}

/* n_block blocks, in pinned memory i, to their places from block `first` of w on. */
static numoe_status send_blocks(struct cuda_engine *e, unsigned i, const struct cuda_matrix *w,
                                size_t first, size_t n_block, size_t bytes, numoe_error *err)
{
    FORWARD_IF(engine_cuda(
        cudaMemcpyAsync(e->raw[i], e->staging[i], bytes, cudaMemcpyHostToDevice, e->stream),
        "loading", err));
    cuda_matrix_fill(w, e->raw[i], first, n_block, e->stream);
    FORWARD_IF(engine_cuda(cudaGetLastError(), "loading", err));
    return engine_cuda(cudaEventRecord(e->staged[i], e->stream), "loading", err);
}

/* Rows [row0, row0 + n_row) of a tensor to w, from its row `to` on. */
static numoe_status send_rows(struct cuda_engine *e, const struct gguf_tensor *t, size_t row0,
                              size_t n_row, const struct cuda_matrix *w, size_t to,
                              numoe_error *err)
{
    const struct format *f = t->format;
    const size_t row_bytes = format_row_bytes(f, w->k), most = MAX(STAGING_BYTES / row_bytes, 1u);
    for (size_t r = 0; r < n_row;) {
        const size_t n = MIN(most, n_row - r);
        unsigned i;
        FORWARD_IF(staging(e, &i, err));
        FORWARD_IF(gguf_read_tensor(e->model->gguf, t, (row0 + r) * row_bytes, n * row_bytes,
                                    e->staging[i], err));
        FORWARD_IF(send_blocks(e, i, w, (to + r) * w->n_block, n * w->n_block, n * row_bytes, err));
        report(e, n * row_bytes);
        r += n;
    }
    return NUMOE_OK;
}

/* The same from memory: rows in w's format. */
static numoe_status send_made(struct cuda_engine *e, const uint8_t *rows, size_t n_row,
                              const struct cuda_matrix *w, numoe_error *err)
{
    const size_t row_bytes = format_row_bytes(format_find(w->format), w->k);
    const size_t most = MAX(STAGING_BYTES / row_bytes, 1u);
    for (size_t r = 0; r < n_row;) {
        const size_t n = MIN(most, n_row - r);
        unsigned i;
        FORWARD_IF(staging(e, &i, err));
        memcpy(e->staging[i], rows + r * row_bytes, n * row_bytes);
        FORWARD_IF(send_blocks(e, i, w, r * w->n_block, n * w->n_block, n * row_bytes, err));
        r += n;
    }
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ matrices */

/* Matrices mats[0..n) of a source (mats NULL: the first n) as one weight. */
static numoe_status load_matrix(struct cuda_engine *e, const struct tensor_source *src,
                                const uint32_t *mats, unsigned n, uint64_t *sum,
                                struct cuda_matrix *out, numoe_error *err)
{
    const size_t n_elem = (size_t)n * src->n_row * src->k;
    struct cuda_matrix w = {.format = src->format_id, .n_mat = n, .n_row = src->n_row, .k = src->k};
    const struct format *f = format_find(src->format_id);
    if (format_row_bytes(f, src->k) > STAGING_BYTES) {
        return status_fail(err, NUMOE_E_SUPPORT, "rows of %u elements are too long", src->k);
    }
    void *data = take(e, cuda_matrix_bytes(w.format, n_elem), sum);
    if (e->dry) {
        e->total_bytes += format_row_bytes(f, src->k) * src->n_row * n;
        return NUMOE_OK;
    }
    cuda_matrix_place(&w, data);
    *out = w;
    for (unsigned i = 0; i < n; i++) {
        const unsigned m = mats == NULL ? i : mats[i];
        const struct gguf_tensor *t = src->whole != NULL ? src->whole : src->per_expert[m];
        const size_t row0 = src->whole != NULL ? (size_t)m * src->from_rows + src->from_row0 : 0;
        FORWARD_IF(send_rows(e, t, row0, src->n_row, &w, (size_t)i * src->n_row, err));
    }
    return NUMOE_OK;
}

/* All elements of a source's first matrices as floats; *out is freed by mem_free. */
static numoe_status read_floats(const struct cuda_engine *e, const struct tensor_source *src,
                                float **out, numoe_error *err)
{
    const struct format *f = src->whole->format;
    const size_t n_row = (size_t)src->n_mat * src->n_row, row = format_row_bytes(f, src->k);
    uint8_t *raw = NULL;
    float *x = NULL;
    FORWARD_IF(mem_new(&raw, n_row, row, "a tensor", err));
    numoe_status status = mem_new(&x, n_row * src->k, sizeof *x, "a tensor", err);
    if (status == NUMOE_OK) {
        status = gguf_read_tensor(e->model->gguf, src->whole, 0, n_row * row, raw, err);
    }
    for (size_t r = 0; status == NUMOE_OK && r < n_row; r++) {
        format_dequant_row(f, raw + r * row, src->k, x + r * src->k);
    }
    mem_free(raw);
    if (status != NUMOE_OK) {
        mem_free(x);
        return status;
    }
    *out = x;
    return NUMOE_OK;
}

/* Vectors [rows, k], of which those rows that mats names (NULL: all). */
static numoe_status load_vector(struct cuda_engine *e, const struct tensor_source *src,
                                const uint32_t *rows, unsigned n_row, float **out, numoe_error *err)
{
    const size_t k = src->k;
    float *x = NULL;
    if (!source_present(src)) {
        return NUMOE_OK;
    }
    const size_t n = rows != NULL ? n_row : (size_t)src->n_mat * src->n_row;
    float *to = take(e, n * k * sizeof(float), &e->use.dense_bytes);
    if (e->dry) {
        return NUMOE_OK;
    }
    FORWARD_IF(read_floats(e, src, &x, err));
    numoe_status status = NUMOE_OK;
    for (size_t i = 0; status == NUMOE_OK && i < n; i += rows != NULL ? 1 : n) {
        const float *from = x + (rows != NULL ? rows[i] : 0) * k;
        const size_t bytes = (rows != NULL ? 1 : n) * k * sizeof(float);
        status = engine_cuda(cudaMemcpy(to + i * k, from, bytes, cudaMemcpyHostToDevice), "loading",
                             err);
    }
    mem_free(x);
    *out = to;
    return status;
}

/* ------------------------------------------------------------------ a layer */

static bool is_vector(const struct tensor_source *src)
{
    return src->n_mat == 1 && src->n_row == 1;
}

static bool is_expert(unsigned slot)
{
    return slot >= SLOT_GATE_EXPS && slot <= SLOT_DOWN_EXPS_BIAS;
}

static void encode(uint32_t format, const float *x, size_t k, uint8_t *row)
{
    for (size_t i = 0; format != FORMAT_Q8_0 && i < k; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        const uint16_t half =
            format == FORMAT_F16 ? format_f32_to_f16(x[i]) : (uint16_t)(bits >> 16);
        if (format == FORMAT_F32) {
            memcpy(row + 4 * i, &x[i], 4);
        } else {
            memcpy(row + 2 * i, &half, 2); /* BF16: the value was one */
        }
    }
    if (format == FORMAT_Q8_0) {
        format_quantize_q8_0(x, k, row);
    }
}

/* What the key half of an attn_kv_b is kept as; the same choice as store/shape.c. */
static uint32_t transposed_format(uint32_t format, unsigned n_nope)
{
    if (format == FORMAT_F32 || format == FORMAT_F16 || format == FORMAT_BF16) {
        return format;
    }
    return n_nope % 32 == 0 ? FORMAT_Q8_0 : FORMAT_F16;
}

/* Older files: [H, n_nope + n_v, kv_lora]; the first rows of each head become columns of K_B. */
static numoe_status make_k_b(struct cuda_engine *e, const struct tensor_source *src,
                             const struct cuda_matrix *w, numoe_error *err)
{
    const struct model_hparams *hp = &e->model->hp;
    const size_t n_lora = hp->kv_lora_rank, n_nope = hp->n_nope, each = n_nope + hp->n_v;
    const size_t row_bytes = format_row_bytes(format_find(w->format), n_nope);
    float *all = NULL, *row = NULL;
    uint8_t *made = NULL;
    FORWARD_IF(read_floats(e, src, &all, err));
    numoe_status status = mem_new(&row, n_nope, sizeof *row, "a row", err);
    if (status == NUMOE_OK) {
        status = mem_new(&made, hp->n_head * n_lora, row_bytes, "attn_k_b", err);
    }
    for (size_t r = 0; status == NUMOE_OK && r < hp->n_head * n_lora; r++) {
        const size_t h = r / n_lora, il = r % n_lora;
        for (size_t i = 0; i < n_nope; i++) {
            row[i] = all[(h * each + i) * n_lora + il];
        }
        encode(w->format, row, n_nope, made + r * row_bytes);
    }
    if (status == NUMOE_OK) {
        status = send_made(e, made, hp->n_head * n_lora, w, err);
    }
    mem_free(all);
    mem_free(row);
    mem_free(made);
    return status;
}

static numoe_status load_kv_b(struct cuda_engine *e, const struct tensor_source *src,
                              struct cuda_layer *l, numoe_error *err)
{
    const struct model_hparams *hp = &e->model->hp;
    struct cuda_matrix w = {.format = transposed_format(src->format_id, hp->n_nope),
                            .n_mat = hp->n_head,
                            .n_row = hp->kv_lora_rank,
                            .k = hp->n_nope};
    const size_t n_elem = (size_t)w.n_mat * w.n_row * w.k;
    struct tensor_source values = *src;
    void *data = take(e, cuda_matrix_bytes(w.format, n_elem), &e->use.dense_bytes);
    if (!e->dry) {
        cuda_matrix_place(&w, data);
        FORWARD_IF(make_k_b(e, src, &w, err));
        l->m[SLOT_K_B] = w;
    }
    values.n_mat = hp->n_head;
    values.n_row = hp->n_v;
    values.from_rows = hp->n_nope + hp->n_v;
    values.from_row0 = hp->n_nope;
    return load_matrix(e, &values, NULL, hp->n_head, &e->use.dense_bytes, &l->m[SLOT_V_B], err);
}

static numoe_status load_slot(struct cuda_engine *e, unsigned il, enum slot slot, numoe_error *err)
{
    const struct tensor_source *src = &e->model->layer[il].src[slot];
    struct cuda_layer *l = &e->layer[il];
    if (!source_present(src) || is_expert(slot)) {
        return NUMOE_OK;
    }
    if (slot == SLOT_KV_B) {
        return load_kv_b(e, src, l, err);
    }
    if (slot == SLOT_SHEXP_GATE || !is_vector(src)) {
        return load_matrix(e, src, NULL, src->n_mat, &e->use.dense_bytes, &l->m[slot], err);
    }
    return load_vector(e, src, NULL, 0, &l->vec[slot], err);
}

static numoe_status load_hot(struct cuda_engine *e, unsigned il, numoe_error *err)
{
    static const enum slot matrix[] = {SLOT_GATE_EXPS, SLOT_UP_EXPS, SLOT_DOWN_EXPS};
    static const enum slot bias[] = {SLOT_GATE_EXPS_BIAS, SLOT_UP_EXPS_BIAS, SLOT_DOWN_EXPS_BIAS};
    const struct exchange_layer *xl =
        (const struct exchange_layer *)exchange_at(e->h, e->h->layer_at) + il;
    const uint32_t *hot = (const uint32_t *)exchange_at(e->h, e->h->hot_at) + xl->hot0;
    const unsigned n_hot = xl->hot1 - xl->hot0, n_expert = e->h->n_expert;
    struct cuda_layer *l = &e->layer[il];
    l->n_hot = n_hot;
    if (n_hot == 0) {
        return NUMOE_OK;
    }
    for (unsigned i = 0; i < 3; i++) {
        const struct tensor_source *src = e->model->layer[il].src;
        FORWARD_IF(load_matrix(e, &src[matrix[i]], hot, n_hot, &e->use.expert_bytes,
                               &l->m[matrix[i]], err));
        FORWARD_IF(load_vector(e, &src[bias[i]], hot, n_hot, &l->vec[bias[i]], err));
    }
    l->slot_of = take_work(e, n_expert, sizeof *l->slot_of);
    if (e->dry) {
        return NUMOE_OK;
    }
    int32_t *slot_of = NULL;
    FORWARD_IF(mem_new(&slot_of, n_expert, sizeof *slot_of, "list of experts", err));
    memset(slot_of, 0xff, n_expert * sizeof *slot_of);
    for (unsigned i = 0; i < n_hot; i++) {
        slot_of[hot[i]] = (int32_t)i;
    }
    const cudaError_t error =
        cudaMemcpy(l->slot_of, slot_of, n_expert * sizeof *slot_of, cudaMemcpyHostToDevice);
    mem_free(slot_of);
    return engine_cuda(error, "loading", err);
}

static void take_cache(struct cuda_engine *e, unsigned il)
{
    const struct model_hparams *hp = &e->model->hp;
    const size_t n_pos = (size_t)e->h->n_block * CUDA_KV_PAGE, elem = e->kv_half ? 2 : 4;
    struct cuda_layer *l = &e->layer[il];
    if (hp->attn == ATTN_MLA) {
        l->k = l->v = take(e, n_pos * (hp->kv_lora_rank + hp->n_rope) * elem, &e->use.kv_bytes);
    } else {
        l->k = take(e, n_pos * hp->n_head_kv * hp->n_qk * elem, &e->use.kv_bytes);
        l->v = take(e, n_pos * hp->n_head_kv * hp->n_v * elem, &e->use.kv_bytes);
    }
}

/* ------------------------------------------------------------------ the model */

static numoe_status load_model_slots(struct cuda_engine *e, numoe_error *err)
{
    const struct model *m = e->model;
    const struct tensor_source *out = &m->src[SLOT_OUTPUT], *embd = &m->src[SLOT_TOKEN_EMBD];
    uint64_t *sum = &e->use.dense_bytes;
    FORWARD_IF(load_matrix(e, embd, NULL, 1, sum, &e->m[SLOT_TOKEN_EMBD], err));
    if (e->has_head) {
        FORWARD_IF(
            load_vector(e, &m->src[SLOT_OUTPUT_NORM], NULL, 0, &e->vec[SLOT_OUTPUT_NORM], err));
        if (source_present(out)) {
            return load_matrix(e, out, NULL, 1, sum, &e->m[SLOT_OUTPUT], err);
        }
        e->m[SLOT_OUTPUT] = e->m[SLOT_TOKEN_EMBD];
    }
    return NUMOE_OK;
}

static numoe_status load_rope(struct cuda_engine *e, numoe_error *err)
{
    const struct rope_params *p = &e->model->hp.rope;
    const struct tensor_source *src = &e->model->src[SLOT_ROPE_FACTORS];
    struct rope rope;
    float *factors = NULL;
    e->freq = take_work(e, p->n_rot / 2, sizeof(double));
    if (e->dry || p->kind == ROPE_NONE) {
        return NUMOE_OK;
    }
    if (source_present(src)) {
        FORWARD_IF(read_floats(e, src, &factors, err));
    }
    numoe_status status = rope_init(&rope, p, factors, err);
    mem_free(factors);
    FORWARD_IF(status);
    status = engine_cuda(
        cudaMemcpy(e->freq, rope.freq, p->n_rot / 2 * sizeof(double), cudaMemcpyHostToDevice),
        "loading", err);
    rope_fini(&rope);
    return status;
}

/* Longest row of anything that is multiplied with. */
static size_t longest_row(const struct model_hparams *hp)
{
    size_t k = MAX(hp->n_embd, hp->n_head * hp->n_v);
    k = MAX(k, hp->n_ff);
    k = MAX(k, MAX(hp->n_ff_expert, hp->n_ff_shared));
    return MAX(k, hp->n_head * hp->n_nope);
}

static void take_attention(struct cuda_engine *e)
{
    const struct model_hparams *hp = &e->model->hp;
    struct cuda_buffers *b = &e->b;
    const size_t n = e->max_tokens, tile = MIN(n, STEP_TILE), n_head = hp->n_head;
    b->q = take_work(e, n * n_head * hp->n_qk, sizeof(float));
    if (hp->attn == ATTN_MLA) {
        const size_t n_key = hp->kv_lora_rank + hp->n_rope;
        b->q_a = take_work(e, n * hp->q_lora_rank, sizeof(float));
        b->q_lora = take_act(e, n, hp->q_lora_rank);
        b->k = take_work(e, n * n_key, sizeof(float));
        b->k_row = take_work(e, n * n_key, sizeof(float));
        b->nope = take_act(e, tile, n_head * hp->n_nope);
        b->q_abs = take_work(e, tile * n_head * n_key, sizeof(float));
        b->latent = take_act(e, tile, n_head * hp->kv_lora_rank);
    } else {
        b->k = take_work(e, n * hp->n_head_kv * hp->n_qk, sizeof(float));
        b->k_row = take_work(e, n * hp->n_head_kv * hp->n_qk, sizeof(float));
        b->v = take_work(e, n * hp->n_head_kv * hp->n_v, sizeof(float));
        b->q_abs = take_work(e, n * n_head * hp->n_qk, sizeof(float));
    }
    b->attn = take_act(e, n, n_head * hp->n_v);
    b->partial = take_work(
        e, cuda_attn_partial_floats(hp->n_head, hp->attn == ATTN_MLA ? hp->kv_lora_rank : hp->n_v),
        sizeof(float));
}

static void take_buffers(struct cuda_engine *e)
{
    const struct model_hparams *hp = &e->model->hp;
    struct cuda_buffers *b = &e->b;
    const size_t n = e->max_tokens, d = hp->n_embd, pairs = n * hp->n_expert_used;
    const size_t n_ff = MAX(hp->n_ff, hp->n_ff_shared);
    b->x = take_work(e, n * d, sizeof(float));
    b->y = take_work(e, n * d, sizeof(float));
    b->angles = take_work(e, n * hp->rope.n_rot, sizeof(float));
    b->norm = take_act(e, n, d);
    take_attention(e);
    b->gate = take_work(e, n * n_ff, sizeof(float));
    b->up = take_work(e, n * n_ff, sizeof(float));
    b->ff = take_act(e, n, n_ff);
    b->shared = take_work(e, n * d, sizeof(float));
    b->shared_gate = take_work(e, n, sizeof(float));
    b->router = take_work(e, n * hp->n_expert, sizeof(float));
    b->weights = take_work(e, pairs, sizeof(float));
    b->ids = take_work(e, pairs, sizeof(int32_t));
    b->slot = take_work(e, pairs, sizeof(int32_t));
    b->route_ids = take_work(e, e->h->n_route * pairs, sizeof(int32_t));
    b->route_weights = take_work(e, e->h->n_route * pairs, sizeof(float));
    if (e->h->n_hot > 0) {
        const size_t rows = round_up(n, STEP_GROUP_ROWS);
        const size_t some = MAX(MIN(n, STEP_BUCKET_MAX) * hp->n_expert_used, rows);
        b->hot_gate = take_work(e, some * hp->n_ff_expert, sizeof(float));
        b->hot_up = take_work(e, some * hp->n_ff_expert, sizeof(float));
        b->hot_ff = take_act(e, some, hp->n_ff_expert);
        b->hot_y = take_work(e, pairs * d, sizeof(float));
        b->hot_x = take_act(e, rows, d);
        b->hot_out = take_work(e, rows * d, sizeof(float));
        b->order = take_work(e, pairs, sizeof(int32_t));
    }
    if (e->has_head) {
        b->head = take_act(e, e->max_logits, d);
        b->logits = take_work(e, (size_t)e->max_logits * hp->n_vocab, sizeof(float));
    }
    e->count = take_work(e, 1, sizeof *e->count);
    e->arrived = take_work(e, 1, sizeof *e->arrived);
}

static uint8_t *place_inputs(const struct cuda_engine *e, uint8_t *at, struct cuda_inputs *in)
{
    const size_t n = e->max_tokens;
    uint8_t *from = at;
    in->step = (void *)at, at += 256;
    in->id = (void *)at, at += round_up(n * sizeof(int32_t), 256);
    in->position = (void *)at, at += round_up(n * sizeof(int32_t), 256);
    in->seq = (void *)at, at += round_up(n * sizeof(int32_t), 256);
    in->logits_row = (void *)at, at += round_up(e->max_logits * sizeof(int32_t), 256);
    in->bytes = (size_t)(at - from);
    in->table = (void *)at;
    at += round_up((size_t)e->h->max_seq * e->h->max_seq_block * sizeof(int32_t), 256);
    return at;
}

/* Bytes of both copies of the inputs. */
static size_t inputs_bytes(const struct cuda_engine *e)
{
    static uint8_t base[256];
    struct cuda_inputs in;
    return (size_t)((uintptr_t)place_inputs(e, base, &in) - (uintptr_t)base);
}

static numoe_status lay_out(struct cuda_engine *e, numoe_error *err)
{
    e->used_bytes = 0;
    e->use = (struct exchange_use){0};
    FORWARD_IF(load_model_slots(e, err));
    FORWARD_IF(load_rope(e, err));
    const struct exchange_layer *xl = exchange_at(e->h, e->h->layer_at);
    for (unsigned il = 0; il < e->h->n_dense_layer; il++) {
        e->layer[il].has_hand = xl[il].flags & EXCHANGE_LAYER_HAND;
        for (unsigned is = N_MODEL_SLOT; is < N_SLOT; is++) {
            FORWARD_IF(load_slot(e, il, (enum slot)is, err));
        }
        FORWARD_IF(load_hot(e, il, err));
        take_cache(e, il);
    }
    take_buffers(e);
    uint8_t *in = take_work(e, inputs_bytes(e), 1);
    if (!e->dry) {
        place_inputs(e, in, &e->device);
    }
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ all of it */

static size_t scratch_bytes(const struct cuda_engine *e)
{
    const struct model_hparams *hp = &e->model->hp;
    const bool mla = hp->attn == ATTN_MLA;
    const struct cuda_attn_args a = {.kv = {.n_head_kv = hp->n_head_kv,
                                            .n_key = mla ? hp->kv_lora_rank + hp->n_rope : hp->n_qk,
                                            .n_value = mla ? hp->kv_lora_rank : hp->n_v},
                                     .n_head = hp->n_head};
    if (e->max_tokens < STEP_GEMM_FROM) {
        return 0;
    }
    return cuda_blas_scratch_bytes(e->max_tokens, (unsigned)longest_row(hp),
                                   e->h->max_seq_block * CUDA_KV_PAGE, &a, e->exact || !e->kv_half);
}

static numoe_status check_room(const struct cuda_engine *e, size_t needed, uint64_t *short_bytes,
                               numoe_error *err)
{
    size_t free_bytes = 0, total_bytes = 0;
    FORWARD_IF(engine_cuda(cudaMemGetInfo(&free_bytes, &total_bytes), "memory", err));
    if (needed <= free_bytes) {
        return NUMOE_OK;
    }
    *short_bytes = needed - free_bytes;
    return status_fail(err, NUMOE_E_MEMORY,
                       "GPU memory: %.1f GB needed (dense %.1f, experts %.1f, KV cache %.1f, work "
                       "%.1f), %.1f free",
                       (double)needed / 1e9, (double)e->use.dense_bytes / 1e9,
                       (double)e->use.expert_bytes / 1e9, (double)e->use.kv_bytes / 1e9,
                       (double)e->use.workspace_bytes / 1e9, (double)free_bytes / 1e9);
}

static numoe_status make_staging(struct cuda_engine *e, numoe_error *err)
{
    uint8_t *in = NULL;
    for (unsigned i = 0; i < 2; i++) {
        FORWARD_IF(engine_cuda(cudaMallocHost((void **)&e->staging[i], STAGING_BYTES),
                               "pinned memory", err));
        FORWARD_IF(engine_cuda(cudaMalloc((void **)&e->raw[i], STAGING_BYTES), "memory", err));
        FORWARD_IF(engine_cuda(cudaEventCreateWithFlags(&e->staged[i], cudaEventDisableTiming),
                               "event", err));
    }
    const size_t order_bytes = (size_t)e->max_tokens * e->h->n_expert_used * sizeof(int32_t);
    if (e->h->n_hot > 0) {
        FORWARD_IF(
            engine_cuda(cudaMallocHost((void **)&e->host_slot, order_bytes), "pinned memory", err));
        FORWARD_IF(engine_cuda(cudaMallocHost((void **)&e->host_order, order_bytes),
                               "pinned memory", err));
        FORWARD_IF(mem_new(&e->host_begin, e->h->n_expert + 1, sizeof *e->host_begin,
                           "list of experts", err));
    }
    FORWARD_IF(engine_cuda(cudaMallocHost((void **)&in, inputs_bytes(e)), "pinned memory", err));
    memset(in, 0, inputs_bytes(e));
    place_inputs(e, in, &e->host);
    return NUMOE_OK;
}

static void free_staging(struct cuda_engine *e)
{
    for (unsigned i = 0; i < 2; i++) {
        cudaFreeHost(e->staging[i]);
        cudaFree(e->raw[i]);
        cudaEventDestroy(e->staged[i]);
    }
}

numoe_status engine_load(struct cuda_engine *e, uint64_t *short_bytes, numoe_error *err)
{
    const size_t scratch = scratch_bytes(e);
    FORWARD_IF(mem_new(&e->layer, e->h->n_dense_layer, sizeof *e->layer, "layers", err));
    e->dry = true;
    FORWARD_IF(lay_out(e, err));
    e->dry = false;
    e->vram_bytes = e->used_bytes;
    e->use.workspace_bytes += scratch + CUDA_BLAS_BYTES + 2 * STAGING_BYTES;
    FORWARD_IF(check_room(e, e->vram_bytes + scratch + CUDA_BLAS_BYTES + 2 * STAGING_BYTES,
                          short_bytes, err));
    FORWARD_IF(engine_cuda(cudaMalloc((void **)&e->vram, e->vram_bytes), "memory", err));
    FORWARD_IF(engine_cuda(cudaMemset(e->vram, 0, e->vram_bytes), "memory", err));
    FORWARD_IF(
        engine_cuda(cudaStreamCreateWithFlags(&e->stream, cudaStreamNonBlocking), "stream", err));
    FORWARD_IF(make_staging(e, err));
    FORWARD_IF(engine_cuda(cuda_tables_init(), "tables", err));
    if (scratch > 0) {
        FORWARD_IF(engine_cuda(cuda_blas_new(scratch, &e->blas), "cuBLASLt", err));
    }
    FORWARD_IF(lay_out(e, err));
    FORWARD_IF(engine_cuda(cudaStreamSynchronize(e->stream), "loading", err));
    free_staging(e);
    size_t total = 0, free_bytes = 0;
    FORWARD_IF(engine_cuda(cudaMemGetInfo(&free_bytes, &total), "memory", err));
    e->use.workspace_bytes += scratch + CUDA_BLAS_BYTES;
    e->use.free_bytes = free_bytes;
    return NUMOE_OK;
}
