/* The stages of a step, as work on a stream. The order is that of runtime/step.c; what a stage
 * computes is what dense/ and experts/ compute. The same code is captured into a graph for each
 * bucket of few tokens, and called directly for prompts.
 *
 * Everything that differs from step to step is read from device memory (e->device), so a graph is
 * launched as it is. Long prompts also look at the step's sequences on the host.
 */
#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>
#include <string.h>

#include "base/mem.h"
#include "gpu/cuda/engine.h"

static const struct exchange_seq *step_seqs(const struct cuda_engine *e)
{
    return exchange_at(e->h, e->h->seq_at[e->number % 2]);
}

/* ------------------------------------------------------------------ products */

struct call {
    struct cuda_engine *e;
    unsigned n, n_logits;
    bool long_prompt; /* called, not captured */
    bool failed;
};

/* Weights that the file has as F32 are multiplied in f32 whatever the mode. */
static void run(struct call *c, struct cuda_product *p)
{
    p->exact |= c->e->exact || p->w->format == FORMAT_F32;
    if (p->n_token < STEP_GEMM_FROM || p->mat != NULL) {
        cuda_gemv(p, c->e->stream);
    } else if (!cuda_gemm(c->e->blas, p, c->e->stream)) {
        c->failed = true;
    }
}

/* y [n, n_row] = w x, x [n, k] */
static void multiply(struct call *c, const struct cuda_matrix *w, const struct cuda_act *x,
                     unsigned n, float *y)
{
    struct cuda_product p = {
        .w = w, .x = *x, .y = y, .n_token = n, .n_group = 1, .ldx = w->k, .ldy = w->n_row};
    if (w->n_mat > 0) {
        run(c, &p);
    }
}

/* The int8 form, where nothing has made it. */
static void convert(struct call *c, const struct cuda_act *x, unsigned n, size_t k)
{
    if (x->q != NULL && n < STEP_GEMM_FROM) {
        cuda_quantize(x, n, (unsigned)k, (unsigned)k, c->e->stream);
    }
}

/* x += scale * (y + bias); out = norm(x) */
static void norm(struct call *c, const float *y, const float *bias, const float *w,
                 const struct cuda_act *out)
{
    const struct model_hparams *hp = &c->e->model->hp;
    const struct cuda_norm_args p = {.x = c->e->b.x,
                                     .y = y,
                                     .bias = bias,
                                     .scale = hp->residual_scale,
                                     .w = w,
                                     .eps = hp->norm_eps,
                                     .out_scale = 1,
                                     .n = c->n,
                                     .k = hp->n_embd,
                                     .ldx = hp->n_embd,
                                     .out = *out};
    cuda_norm(&p, c->e->stream);
}

/* ------------------------------------------------------------------ attention */

static struct cuda_kv cache_of(const struct cuda_engine *e, const struct cuda_layer *l)
{
    const struct model_hparams *hp = &e->model->hp;
    const bool mla = hp->attn == ATTN_MLA;
    const unsigned n_key = mla ? hp->kv_lora_rank + hp->n_rope : hp->n_qk;
    return (struct cuda_kv){.k = l->k,
                            .v = l->v,
                            .half = e->kv_half,
                            .n_head_kv = hp->n_head_kv,
                            .n_key = n_key,
                            .n_value = mla ? hp->kv_lora_rank : hp->n_v,
                            .v_row = mla ? n_key : hp->n_v,
                            .table = e->device.table,
                            .max_page = e->h->max_seq_block};
}

/* Heads that are rotated: the parts that all uses share. */
static struct cuda_heads_args rotated(const struct cuda_engine *e, unsigned t0, unsigned n)
{
    const struct rope_params *rope = &e->model->hp.rope;
    return (struct cuda_heads_args){
        .n = n,
        .scale = 1,
        .eps = e->model->hp.norm_eps,
        .n_rot = rope->n_rot,
        .interleaved = rope->kind == ROPE_INTERLEAVED,
        .angles = rope->kind == ROPE_NONE ? NULL : e->b.angles + (size_t)t0 * rope->n_rot};
}

/* Tokens [t0, t0 + n): attention itself, from q to out. Prompts sequence by sequence; tokens of
 * short ones together. */
static void attend(struct call *c, const struct cuda_layer *l, unsigned il, const float *q,
                   float *out, unsigned t0, unsigned n)
{
    struct cuda_engine *e = c->e;
    const struct model_hparams *hp = &e->model->hp;
    struct cuda_attn_args p = {.kv = cache_of(e, l),
                               .n_head = hp->n_head,
                               .window = e->model->layer[il].windowed ? hp->window : 0,
                               .sinks = l->vec[SLOT_SINKS],
                               .partial = e->b.partial,
                               .exact = e->exact || !e->kv_half};
    const struct exchange_seq *seq = step_seqs(e);
    const struct exchange_token *token = exchange_at(e->h, e->h->token_at[e->number % 2]);
    for (unsigned t = t0; t < t0 + n;) {
        const unsigned is = c->long_prompt ? token[t].seq : 0;
        const unsigned end = c->long_prompt ? seq[is].token0 + seq[is].n_token : t0 + n;
        p.n = MIN(end, t0 + n) - t;
        p.q = q + (size_t)(t - t0) * hp->n_head * p.kv.n_key;
        p.out = out + (size_t)(t - t0) * hp->n_head * p.kv.n_value;
        p.seq = e->device.seq + t;
        p.position = e->device.position + t;
        if (c->long_prompt && p.n >= CUDA_GEMV_MAX) {
            c->failed |= !cuda_attn_prefill(e->blas, &p, is, token[t].position, p.exact, e->stream);
        } else {
            cuda_attn_decode(&p, e->stream);
        }
        t += p.n;
    }
}

static void mla_queries(struct call *c, const struct cuda_layer *l)
{
    struct cuda_engine *e = c->e;
    struct cuda_buffers *b = &e->b;
    const struct model_hparams *hp = &e->model->hp;
    if (l->m[SLOT_Q_A].n_mat == 0) {
        multiply(c, &l->m[SLOT_Q], &b->norm, c->n, b->q);
        return;
    }
    multiply(c, &l->m[SLOT_Q_A], &b->norm, c->n, b->q_a);
    const struct cuda_norm_args p = {.x = b->q_a,
                                     .w = l->vec[SLOT_Q_A_NORM],
                                     .eps = hp->norm_eps,
                                     .out_scale = 1,
                                     .n = c->n,
                                     .k = hp->q_lora_rank,
                                     .ldx = hp->q_lora_rank,
                                     .out = b->q_lora};
    cuda_norm(&p, e->stream);
    multiply(c, &l->m[SLOT_Q_B], &b->q_lora, c->n, b->q);
}

/* Cache rows: [norm(latent), rope(rest)]. */
static void mla_append(struct call *c, const struct cuda_layer *l)
{
    struct cuda_engine *e = c->e;
    struct cuda_buffers *b = &e->b;
    const struct model_hparams *hp = &e->model->hp;
    const unsigned n_key = hp->kv_lora_rank + hp->n_rope;
    const struct cuda_kv kv = cache_of(e, l);
    struct cuda_heads_args p = rotated(e, 0, c->n);
    multiply(c, &l->m[SLOT_KV_A], &b->norm, c->n, b->k);
    p.x = b->k, p.y = b->k_row;
    p.ldx = p.ldy = n_key;
    p.n_head = 1, p.n_elem = n_key;
    p.norm = l->vec[SLOT_KV_A_NORM], p.n_norm = hp->kv_lora_rank;
    p.rot_at = hp->kv_lora_rank;
    cuda_heads(&p, e->stream);
    cuda_kv_store(&kv, false, b->k_row, n_key, e->device.seq, e->device.position, c->n, e->stream);
}

/* Scaled queries of tokens [t0, t0 + n) in latent space: [K_B * q_nope, rope(q_rope)]. */
static void mla_absorb(struct call *c, const struct cuda_layer *l, unsigned t0, unsigned n)
{
    struct cuda_engine *e = c->e;
    struct cuda_buffers *b = &e->b;
    const struct model_hparams *hp = &e->model->hp;
    const unsigned n_key = hp->kv_lora_rank + hp->n_rope;
    const size_t q_row = (size_t)hp->n_head * hp->n_qk;
    struct cuda_heads_args p = rotated(e, t0, n);
    p.x = b->q + t0 * q_row + hp->n_nope, p.y = b->q_abs + hp->kv_lora_rank;
    p.ldx = q_row, p.x_step = hp->n_qk;
    p.ldy = (size_t)hp->n_head * n_key, p.y_step = n_key;
    p.n_head = hp->n_head, p.n_elem = hp->n_rope;
    p.scale = hp->attn_scale;
    cuda_heads(&p, e->stream);
    p.x = b->q + t0 * q_row, p.y = b->nope.f;
    p.ldy = (size_t)hp->n_head * hp->n_nope, p.y_step = hp->n_nope;
    p.n_elem = hp->n_nope;
    p.angles = NULL;
    cuda_heads(&p, e->stream);
    convert(c, &b->nope, n, (size_t)hp->n_head * hp->n_nope);
    struct cuda_product k_b = {.w = &l->m[SLOT_K_B],
                               .x = b->nope,
                               .y = b->q_abs,
                               .n_token = n,
                               .n_group = hp->n_head,
                               .ldx = (size_t)hp->n_head * hp->n_nope,
                               .x_step = hp->n_nope,
                               .ldy = (size_t)hp->n_head * n_key,
                               .y_step = n_key};
    run(c, &k_b);
}

static void mla_expand(struct call *c, const struct cuda_layer *l, unsigned t0, unsigned n)
{
    struct cuda_engine *e = c->e;
    struct cuda_buffers *b = &e->b;
    const struct model_hparams *hp = &e->model->hp;
    const size_t row = (size_t)hp->n_head * hp->n_v;
    struct cuda_product v_b = {.w = &l->m[SLOT_V_B],
                               .x = b->latent,
                               .y = b->attn.f + t0 * row,
                               .n_token = n,
                               .n_group = hp->n_head,
                               .ldx = (size_t)hp->n_head * hp->kv_lora_rank,
                               .x_step = hp->kv_lora_rank,
                               .ldy = row,
                               .y_step = hp->n_v};
    convert(c, &b->latent, n, (size_t)hp->n_head * hp->kv_lora_rank);
    run(c, &v_b);
}

static void attention_mla(struct call *c, const struct cuda_layer *l, unsigned il)
{
    mla_queries(c, l);
    mla_append(c, l);
    for (unsigned t0 = 0; t0 < c->n; t0 += STEP_TILE) {
        const unsigned n = MIN(STEP_TILE, c->n - t0);
        mla_absorb(c, l, t0, n);
        attend(c, l, il, c->e->b.q_abs, c->e->b.latent.f, t0, n);
        mla_expand(c, l, t0, n);
    }
}

/* Bias, norm, rotation of queries or keys. */
static void gqa_heads(struct call *c, const struct cuda_layer *l, bool queries, float *from,
                      float *to)
{
    struct cuda_engine *e = c->e;
    const struct model_hparams *hp = &e->model->hp;
    const struct tensor_source *norm_src =
        &e->model->layer[l - e->layer].src[queries ? SLOT_Q_NORM : SLOT_K_NORM];
    struct cuda_heads_args p = rotated(e, 0, c->n);
    p.x = from, p.y = to;
    p.n_head = queries ? hp->n_head : hp->n_head_kv;
    p.n_elem = p.n_norm = hp->n_qk;
    p.x_step = p.y_step = hp->n_qk;
    p.ldx = p.ldy = (size_t)p.n_head * hp->n_qk;
    p.bias = l->vec[queries ? SLOT_Q_BIAS : SLOT_K_BIAS];
    p.norm = l->vec[queries ? SLOT_Q_NORM : SLOT_K_NORM];
    p.norm_row = p.norm != NULL && norm_src->k != hp->n_qk;
    p.scale = queries ? hp->attn_scale : 1;
    cuda_heads(&p, e->stream);
}

static void attention_gqa(struct call *c, const struct cuda_layer *l, unsigned il)
{
    struct cuda_engine *e = c->e;
    struct cuda_buffers *b = &e->b;
    const struct model_hparams *hp = &e->model->hp;
    const struct cuda_kv kv = cache_of(e, l);
    multiply(c, &l->m[SLOT_Q], &b->norm, c->n, b->q);
    multiply(c, &l->m[SLOT_K], &b->norm, c->n, b->k);
    multiply(c, &l->m[SLOT_V], &b->norm, c->n, b->v);
    gqa_heads(c, l, true, b->q, b->q_abs);
    gqa_heads(c, l, false, b->k, b->k_row);
    if (l->vec[SLOT_V_BIAS] != NULL) {
        const size_t row = (size_t)hp->n_head_kv * hp->n_v;
        const struct cuda_heads_args p = {.x = b->v,
                                          .y = b->v,
                                          .ldx = row,
                                          .ldy = row,
                                          .x_step = hp->n_v,
                                          .y_step = hp->n_v,
                                          .n = c->n,
                                          .n_head = hp->n_head_kv,
                                          .n_elem = hp->n_v,
                                          .bias = l->vec[SLOT_V_BIAS],
                                          .scale = 1};
        cuda_heads(&p, e->stream);
    }
    cuda_kv_store(&kv, false, b->k_row, (size_t)hp->n_head_kv * hp->n_qk, e->device.seq,
                  e->device.position, c->n, e->stream);
    cuda_kv_store(&kv, true, b->v, (size_t)hp->n_head_kv * hp->n_v, e->device.seq,
                  e->device.position, c->n, e->stream);
    attend(c, l, il, b->q_abs, b->attn.f, 0, c->n);
}

/* norm holds the normed stream; leaves the output in y. */
static void attention(struct call *c, const struct cuda_layer *l, unsigned il)
{
    struct cuda_buffers *b = &c->e->b;
    const struct model_hparams *hp = &c->e->model->hp;
    nvtxRangePushA("attention");
    if (hp->attn == ATTN_MLA) {
        attention_mla(c, l, il);
    } else {
        attention_gqa(c, l, il);
    }
    convert(c, &b->attn, c->n, (size_t)hp->n_head * hp->n_v);
    multiply(c, &l->m[SLOT_O], &b->attn, c->n, b->y);
    nvtxRangePop();
}

/* ------------------------------------------------------------------ second half of a layer */

/* gate, up [n, k] to h, without biases. */
static struct cuda_glu_args glu_of(const struct call *c, const float *gate, const float *up,
                                   unsigned n, unsigned k, const struct cuda_act *h)
{
    const struct model_hparams *hp = &c->e->model->hp;
    return (struct cuda_glu_args){.gate = gate,
                                  .up = up,
                                  .n = n,
                                  .k = k,
                                  .ld = k,
                                  .act = hp->act == FFN_SILU ? CUDA_SILU : CUDA_SWIGLU_OAI,
                                  .alpha = hp->act_alpha,
                                  .limit = hp->act_limit,
                                  .h = *h};
}

static void ffn(struct call *c, const struct cuda_matrix *gate, const struct cuda_matrix *up,
                const struct cuda_matrix *down, float *y)
{
    struct cuda_buffers *b = &c->e->b;
    const struct cuda_glu_args g = glu_of(c, b->gate, b->up, c->n, gate->n_row, &b->ff);
    multiply(c, gate, &b->norm, c->n, b->gate);
    multiply(c, up, &b->norm, c->n, b->up);
    cuda_glu(&g, c->e->stream);
    multiply(c, down, &b->ff, c->n, y);
}

/* A layer's choices: where they stay until the result, for one that has no hand-off. */
struct choice {
    int32_t *ids;
    float *weights;
};

static struct choice choice_of(const struct cuda_engine *e, const struct cuda_layer *l,
                               unsigned i_route)
{
    const size_t at = (size_t)i_route * e->max_tokens * e->h->n_expert_used;
    return l->has_hand ? (struct choice){e->b.ids, e->b.weights}
                       : (struct choice){e->b.route_ids + at, e->b.route_weights + at};
}

static void route(struct call *c, const struct cuda_layer *l, const struct choice *choice)
{
    struct cuda_engine *e = c->e;
    struct cuda_buffers *b = &e->b;
    const struct model_hparams *hp = &e->model->hp;
    const struct router_params *r = &hp->router;
    const struct cuda_router_args p = {
        .logits = b->router,
        .bias = l->vec[SLOT_ROUTER_BIAS],
        .select_bias = l->vec[SLOT_SELECT_BIAS],
        .n = c->n,
        .n_expert = hp->n_expert,
        .n_used = hp->n_expert_used,
        .gating = r->gating == ROUTER_SOFTMAX   ? CUDA_SOFTMAX
                  : r->gating == ROUTER_SIGMOID ? CUDA_SIGMOID
                                                : CUDA_SOFTMAX_OF_TOPK,
        .n_group = r->group_rule == GROUP_NONE ? 1 : r->n_group,
        .n_group_used = r->group_rule == GROUP_NONE ? 1 : r->n_group_used,
        .best_two = r->group_rule == GROUP_BEST_TWO,
        .norm_topk = r->norm_topk,
        .scale = r->scale,
        .ids = choice->ids,
        .weights = choice->weights};
    /* in floats whatever the mode: a choice that falls otherwise changes everything after it */
    struct cuda_product logits = {.w = &l->m[SLOT_ROUTER],
                                  .x = b->norm,
                                  .y = b->router,
                                  .n_token = c->n,
                                  .n_group = 1,
                                  .ldx = hp->n_embd,
                                  .ldy = hp->n_expert,
                                  .exact = true};
    nvtxRangePushA("gate");
    run(c, &logits);
    cuda_router(&p, e->stream);
    nvtxRangePop();
}

/* Hot experts of tokens [t0, t0 + n): a matrix of its own for each choice. */
static void run_hot(struct call *c, const struct cuda_layer *l, unsigned t0, unsigned n)
{
    struct cuda_engine *e = c->e;
    struct cuda_buffers *b = &e->b;
    const struct model_hparams *hp = &e->model->hp;
    const unsigned n_used = hp->n_expert_used, d = hp->n_embd, f = hp->n_ff_expert;
    const int32_t *slot = b->slot + (size_t)t0 * n_used;
    struct cuda_product p = {.w = &l->m[SLOT_GATE_EXPS],
                             .x = b->norm,
                             .y = b->hot_gate,
                             .mat = slot,
                             .n_token = 1,
                             .n_group = n * n_used,
                             .ldx = d,
                             .x_step = d,
                             .y_step = f,
                             .x_share = n_used};
    p.x.f += (size_t)t0 * d;
    p.x.q = p.x.q == NULL ? NULL : p.x.q + (size_t)t0 * d;
    p.x.g = p.x.g == NULL ? NULL : p.x.g + (size_t)t0 * d / 32;
    run(c, &p);
    p.w = &l->m[SLOT_UP_EXPS];
    p.y = b->hot_up;
    run(c, &p);
    struct cuda_glu_args g = glu_of(c, b->hot_gate, b->hot_up, n * n_used, f, &b->hot_ff);
    g.gate_bias = l->vec[SLOT_GATE_EXPS_BIAS];
    g.up_bias = l->vec[SLOT_UP_EXPS_BIAS];
    g.mat = slot;
    cuda_glu(&g, e->stream);
    struct cuda_product down = {.w = &l->m[SLOT_DOWN_EXPS],
                                .x = b->hot_ff,
                                .y = b->hot_y + (size_t)t0 * n_used * d,
                                .mat = slot,
                                .n_token = 1,
                                .n_group = n * n_used,
                                .ldx = f,
                                .x_step = f,
                                .y_step = d};
    run(c, &down);
}

/* Hot expert i of tokens that are put together, n of them: choices order[0..n), on the device. */
static void run_hot_expert(struct call *c, const struct cuda_layer *l, unsigned i,
                           const int32_t *order, unsigned n)
{
    struct cuda_engine *e = c->e;
    struct cuda_buffers *b = &e->b;
    const struct model_hparams *hp = &e->model->hp;
    const unsigned d = hp->n_embd, f = hp->n_ff_expert;
    const unsigned rows = n < STEP_GEMM_FROM ? n : (unsigned)round_up(n, STEP_GROUP_ROWS);
    const struct cuda_matrix gate = cuda_matrix_one(&l->m[SLOT_GATE_EXPS], i);
    const struct cuda_matrix up = cuda_matrix_one(&l->m[SLOT_UP_EXPS], i);
    const struct cuda_matrix down = cuda_matrix_one(&l->m[SLOT_DOWN_EXPS], i);
    const float *gate_bias = l->vec[SLOT_GATE_EXPS_BIAS], *up_bias = l->vec[SLOT_UP_EXPS_BIAS];
    struct cuda_glu_args g = glu_of(c, b->hot_gate, b->hot_up, rows, f, &b->hot_ff);
    g.gate_bias = gate_bias ? gate_bias + (size_t)i * f : NULL;
    g.up_bias = up_bias ? up_bias + (size_t)i * f : NULL;
    cuda_gather(b->norm.f, order, n, rows, hp->n_expert_used, d, b->hot_x.f, e->stream);
    convert(c, &b->hot_x, rows, d);
    multiply(c, &gate, &b->hot_x, rows, b->hot_gate);
    multiply(c, &up, &b->hot_x, rows, b->hot_up);
    cuda_glu(&g, e->stream);
    multiply(c, &down, &b->hot_ff, rows, b->hot_out);
    cuda_scatter(b->hot_out, order, n, d, b->hot_y, e->stream);
}

/* A counting sort of a step's choices by hot expert: host_order, host_begin. */
static void order_choices(struct cuda_engine *e, unsigned n_pair, unsigned n_hot)
{
    unsigned *at = e->host_begin, sum = 0;
    memset(at, 0, (n_hot + 1) * sizeof *at);
    for (unsigned i = 0; i < n_pair; i++) {
        at[e->host_slot[i] < 0 ? n_hot : (unsigned)e->host_slot[i]]++;
    }
    for (unsigned i = 0; i < n_hot; i++) {
        const unsigned n = at[i];
        at[i] = sum;
        sum += n;
    }
    at[n_hot] = 0; /* those that are not hot have no place */
    for (unsigned i = 0; i < n_pair; i++) {
        if (e->host_slot[i] >= 0) {
            e->host_order[at[e->host_slot[i]]++] = (int32_t)i;
        }
    }
    /* each has moved to where the next begins */
    memmove(at + 1, at, n_hot * sizeof *at);
    at[0] = 0;
}

/* The same as run_hot() for a long prompt: each expert's weights are read once. Waits for the
 * choice, which the host has to know: the device has nothing to do for that moment. */
static void run_hot_together(struct call *c, const struct cuda_layer *l)
{
    struct cuda_engine *e = c->e;
    const unsigned n_pair = c->n * e->model->hp.n_expert_used;
    const size_t bytes = n_pair * sizeof(int32_t);
    cudaMemcpyAsync(e->host_slot, e->b.slot, bytes, cudaMemcpyDeviceToHost, e->stream);
    if (cudaStreamSynchronize(e->stream) != cudaSuccess) {
        return; /* an error that stays: step_enqueue() finds it */
    }
    order_choices(e, n_pair, l->n_hot);
    cudaMemcpyAsync(e->b.order, e->host_order, bytes, cudaMemcpyHostToDevice, e->stream);
    for (unsigned i = 0; i < l->n_hot; i++) {
        const unsigned from = e->host_begin[i], n = e->host_begin[i + 1] - from;
        if (n > 0) {
            run_hot_expert(c, l, i, e->b.order + from, n);
        }
    }
}

/* All choices of hot experts, from b.slot to b.hot_y. */
static void hot_experts(struct call *c, const struct cuda_layer *l, const int32_t *ids)
{
    struct cuda_engine *e = c->e;
    const unsigned n_pair = c->n * e->model->hp.n_expert_used;
    nvtxRangePushA("hot experts");
    cuda_slots(ids, l->slot_of, n_pair, e->b.slot, e->stream);
    if (c->long_prompt && n_pair >= STEP_GROUP_FROM * e->h->n_expert) {
        run_hot_together(c, l);
    } else {
        for (unsigned t0 = 0; t0 < c->n; t0 += STEP_BUCKET_MAX) {
            run_hot(c, l, t0, MIN(STEP_BUCKET_MAX, c->n - t0));
        }
    }
    nvtxRangePop();
}

static struct cuda_hand hand_of(const struct cuda_engine *e, unsigned i)
{
    const struct exchange_header *h = e->h;
    const uint8_t *s = e->device_segment;
    struct cuda_hand hand = {.step = e->device.step,
                             .i = i,
                             .count = e->count,
                             .arrived = e->arrived,
                             .k = h->n_embd,
                             .n_used = h->n_expert_used};
    for (unsigned is = 0; is < 2; is++) {
        hand.x[is] = (float *)(s + h->x_at[is]);
        hand.ids[is] = (int32_t *)(s + h->id_at[is]);
        hand.weights[is] = (float *)(s + h->weight_at[is]);
        hand.y[is] = (const float *)(s + h->y_at[is]);
    }
    hand.bell_x = (uint64_t *)(s + offsetof(struct exchange_header, x));
    hand.bell_y = (const uint64_t *)(s + offsetof(struct exchange_header, y));
    return hand;
}

static void shared_expert(struct call *c, const struct cuda_layer *l)
{
    struct cuda_buffers *b = &c->e->b;
    nvtxRangePushA("shared expert");
    multiply(c, &l->m[SLOT_SHEXP_GATE], &b->norm, c->n, b->shared_gate);
    ffn(c, &l->m[SLOT_GATE_SHEXP], &l->m[SLOT_UP_SHEXP], &l->m[SLOT_DOWN_SHEXP], b->shared);
    nvtxRangePop();
}

/* The engine works on its experts while the shared and the hot ones are computed here. */
static void experts(struct call *c, const struct cuda_layer *l, unsigned i_hand, unsigned i_route)
{
    struct cuda_engine *e = c->e;
    struct cuda_buffers *b = &e->b;
    const struct model_hparams *hp = &e->model->hp;
    const struct cuda_hand hand = hand_of(e, i_hand);
    const struct choice choice = choice_of(e, l, i_route);
    const bool shared = l->m[SLOT_GATE_SHEXP].n_mat > 0;
    route(c, l, &choice);
    if (l->has_hand) {
        nvtxRangePushA("experts submit");
        cuda_hand_out(&hand, b->norm.f, choice.ids, choice.weights, l->slot_of, c->n, e->stream);
        nvtxRangePop();
    }
    if (shared) {
        shared_expert(c, l);
    }
    if (l->n_hot > 0) {
        hot_experts(c, l, choice.ids);
    }
    const struct cuda_combine_args p = {.x = b->x,
                                        .n = c->n,
                                        .k = hp->n_embd,
                                        .n_used = hp->n_expert_used,
                                        .scale = hp->residual_scale,
                                        .shared = shared ? b->shared : NULL,
                                        .shared_gate =
                                            l->m[SLOT_SHEXP_GATE].n_mat > 0 ? b->shared_gate : NULL,
                                        .hot = l->n_hot > 0 ? b->hot_y : NULL,
                                        .slot = b->slot,
                                        .weights = choice.weights,
                                        .bias = l->vec[SLOT_DOWN_EXPS_BIAS]};
    nvtxRangePushA("experts wait");
    if (l->has_hand) {
        cuda_hand_in(&hand, &p, e->stream);
    } else {
        cuda_combine(&p, e->stream);
    }
    nvtxRangePop();
}

/* ------------------------------------------------------------------ the whole */

/* Before the last bell of the step. */
static void send_routes(struct call *c)
{
    struct cuda_engine *e = c->e;
    const struct exchange_header *h = e->h;
    const uint8_t *s = e->device_segment;
    struct cuda_routes_args p = {.step = e->device.step,
                                 .ids = e->b.route_ids,
                                 .weights = e->b.route_weights,
                                 .n_used = h->n_expert_used,
                                 .stride = (size_t)h->max_tokens * h->n_expert_used};
    for (unsigned is = 0; is < 2; is++) {
        p.to_ids[is] = (int32_t *)(s + h->route_id_at[is]);
        p.to_weights[is] = (float *)(s + h->route_weight_at[is]);
    }
    cuda_routes(&p, h->n_route, c->n, e->stream);
}

static void head(struct call *c, const float *y)
{
    struct cuda_engine *e = c->e;
    struct cuda_buffers *b = &e->b;
    const struct model_hparams *hp = &e->model->hp;
    const struct cuda_act none = {.f = NULL};
    const uint8_t *s = e->device_segment;
    float *const to[2] = {(float *)(s + e->h->logits_at[0]), (float *)(s + e->h->logits_at[1])};
    const struct cuda_norm_args p = {.x = b->x,
                                     .rows = e->device.logits_row,
                                     .w = e->vec[SLOT_OUTPUT_NORM],
                                     .eps = hp->norm_eps,
                                     .out_scale = hp->logit_scale,
                                     .n = c->n_logits,
                                     .k = hp->n_embd,
                                     .ldx = hp->n_embd,
                                     .out = b->head};
    if (y != NULL) {
        norm(c, y, NULL, NULL, &none);
    }
    if (c->n_logits > 0) {
        cuda_norm(&p, e->stream);
        multiply(c, &e->m[SLOT_OUTPUT], &b->head, c->n_logits, b->logits);
    }
    cuda_results(e->device.step, b->logits, hp->n_vocab, to, e->count,
                 (uint64_t *)(s + offsetof(struct exchange_header, result)), e->stream);
}

static void layers(struct call *c)
{
    struct cuda_engine *e = c->e;
    struct cuda_buffers *b = &e->b;
    const float *y = NULL; /* not yet added to the stream */
    unsigned i_hand = 0, i_route = 0;
    for (unsigned il = 0; il < e->h->n_dense_layer; il++) {
        const struct cuda_layer *l = &e->layer[il];
        norm(c, y, NULL, l->vec[SLOT_ATTN_NORM], &b->norm);
        attention(c, l, il);
        norm(c, b->y, l->vec[SLOT_O_BIAS], l->vec[SLOT_FFN_NORM], &b->norm);
        if (e->model->layer[il].is_moe) {
            experts(c, l, i_hand, i_route);
            i_hand += l->has_hand ? 1 : 0;
            i_route += l->has_hand ? 0 : 1;
            y = NULL;
        } else {
            ffn(c, &l->m[SLOT_GATE], &l->m[SLOT_UP], &l->m[SLOT_DOWN], b->y);
            y = b->y;
        }
    }
    send_routes(c);
    if (e->has_head) {
        head(c, y);
        return;
    }
    const struct cuda_act none = {.f = NULL};
    const struct cuda_hand hand = hand_of(e, i_hand);
    if (y != NULL) {
        norm(c, y, NULL, NULL, &none);
    }
    cuda_hand_out(&hand, b->x, NULL, NULL, NULL, c->n, e->stream);
}

numoe_status step_enqueue(struct cuda_engine *e, unsigned n, unsigned n_logits, numoe_error *err)
{
    const struct model_hparams *hp = &e->model->hp;
    struct call c = {
        .e = e, .n = n, .n_logits = n_logits, .long_prompt = n > STEP_BUCKET_MAX, .failed = false};
    cuda_embed(&e->m[SLOT_TOKEN_EMBD], e->device.id, n, hp->embd_scale, e->b.x, e->stream);
    cuda_angles(e->freq, e->device.position, n, hp->rope.n_rot, hp->rope.magnitude, e->b.angles,
                e->stream);
    layers(&c);
    FORWARD_IF(engine_cuda(cudaGetLastError(), "a step", err));
    return c.failed ? status_fail(err, NUMOE_E_DEVICE, "cuBLASLt has no product for this step")
                    : NUMOE_OK;
}

void step_copy_blocks(struct cuda_engine *e, const struct exchange_copy *copy, unsigned n)
{
    for (unsigned il = 0; n > 0 && il < e->h->n_dense_layer; il++) {
        const struct cuda_kv kv = cache_of(e, &e->layer[il]);
        const size_t elem = kv.half ? 2 : 4, rows = (size_t)kv.n_head_kv * CUDA_KV_PAGE;
        for (unsigned i = 0; i < 2 * n; i++) {
            const size_t bytes = rows * (i % 2 ? kv.n_value : kv.n_key) * elem;
            uint8_t *base = i % 2 ? kv.v : kv.k;
            if (i % 2 == 0 || kv.v != kv.k) {
                cudaMemcpyAsync(base + copy[i / 2].to * bytes, base + copy[i / 2].from * bytes,
                                bytes, cudaMemcpyDeviceToDevice, e->stream);
            }
        }
    }
}
