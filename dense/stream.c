/* The residual stream: how tokens enter it, how norms read it, how outputs are added, and how
 * logits leave it. Each node keeps its own copy and computes it from the same inputs in the same
 * order.
 */
#include <string.h>

#include "base/mem.h"
#include "dense/state.h"

float *dense_stream(struct dense *d, const struct worker *w)
{
    return d->node[w->in].x;
}

/* Each token's row is read on one node only and handed to the others as floats. */
static void embed_from_owners(struct dense *d, struct worker *w, uint32_t lo, uint32_t hi)
{
    const struct weight *embd = &d->store->w[SLOT_TOKEN_EMBD];
    struct dense_node *node = &d->node[w->in];
    for (uint32_t t = lo; t < hi; t++) {
        const uint32_t row = (uint32_t)d->token[t].id;
        if (weight_row_node(embd, row) == w->in) {
            weight_row(embd, 0, row, dense_reader(d, w), d->y + (size_t)t * embd->k,
                       node->worker[w->iw].embd);
        }
    }
    worker_all_barrier(w);
    memcpy(node->x + (size_t)lo * embd->k, d->y + (size_t)lo * embd->k,
           (size_t)(hi - lo) * embd->k * sizeof(float));
}

void dense_embed(struct dense *d, struct worker *w)
{
    const struct model_hparams *hp = &d->model->hp;
    const struct weight *embd = &d->store->w[SLOT_TOKEN_EMBD];
    struct dense_node *node = &d->node[w->in];
    const bool has_all = w->n_node == 1 || embd->copied;
    uint32_t lo, hi;
    dense_own_tokens(w, d->n, &lo, &hi);
    if (!has_all) {
        embed_from_owners(d, w, lo, hi);
    }
    for (uint32_t t = lo; t < hi; t++) {
        float *x = node->x + (size_t)t * hp->n_embd;
        if (has_all) {
            weight_row(embd, 0, (uint32_t)d->token[t].id, dense_reader(d, w), x,
                       node->worker[w->iw].embd);
        }
        if (hp->embd_scale != 1) {
            d->kern->scale(x, hp->embd_scale, hp->n_embd);
        }
        rope_angles(&d->rope, d->token[t].position, node->angles + (size_t)t * d->rope.n_rot);
    }
}

void dense_enter(struct dense *d, struct worker *w, const float *stream)
{
    const size_t n_embd = d->model->hp.n_embd;
    struct dense_node *node = &d->node[w->in];
    uint32_t lo, hi;
    dense_own_tokens(w, d->n, &lo, &hi);
    memcpy(node->x + lo * n_embd, stream + lo * n_embd, (hi - lo) * n_embd * sizeof *stream);
    for (uint32_t t = lo; t < hi; t++) {
        rope_angles(&d->rope, d->token[t].position, node->angles + (size_t)t * d->rope.n_rot);
    }
}

void dense_norm(struct dense *d, struct worker *w, const struct weight *norm, unsigned acts)
{
    const struct model_hparams *hp = &d->model->hp;
    struct dense_node *node = &d->node[w->in];
    uint32_t lo, hi;
    dense_own_tokens(w, d->n, &lo, &hi);
    for (uint32_t t = lo; t < hi; t++) {
        const size_t at = (size_t)t * hp->n_embd;
        d->kern->rmsnorm(node->x + at, norm->vec[w->in], hp->n_embd, hp->norm_eps,
                         node->norm.f + at);
        act_convert(&node->norm, d->kern, acts, t);
    }
}

void dense_residual(struct dense *d, struct worker *w, const struct weight *bias)
{
    const struct model_hparams *hp = &d->model->hp;
    float *x = d->node[w->in].x;
    uint32_t lo, hi;
    dense_own_tokens(w, d->n, &lo, &hi);
    for (uint32_t t = lo; t < hi; t++) {
        const size_t at = (size_t)t * hp->n_embd;
        d->kern->axpy(x + at, hp->residual_scale, d->y + at, hp->n_embd);
        if (weight_present(bias)) {
            d->kern->axpy(x + at, hp->residual_scale, bias->vec[w->in], hp->n_embd);
        }
    }
}

static unsigned wanted_acts(const struct dense *d, unsigned il, const enum slot *slot, unsigned n)
{
    unsigned acts = 0;
    for (unsigned i = 0; i < n; i++) {
        acts |= weight_acts(dense_weight(d, il, slot[i]), d->kern);
    }
    return acts;
}

/* A shared buffer's int8 forms on this node, where the weight that reads it wants any. */
static void shared_input(struct dense *d, struct worker *w, const struct act *act, unsigned acts)
{
    if (acts != 0) {
        act_convert_shared(act, d->kern, acts, d->n, w);
        worker_node_barrier(w);
    }
}

/* x += weight * act */
static void project_back(struct dense *d, struct worker *w, const struct weight *weight,
                         const struct act *act, const struct weight *bias)
{
    shared_input(d, w, act, weight_acts(weight, d->kern));
    const struct kern_act x = act_view(act);
    weight_matmul(weight, 0, w, dense_reader(d, w), &x, NULL, NULL, d->n, d->y, weight->n_row);
    worker_all_barrier(w);
    dense_residual(d, w, bias);
}

void dense_attention(struct dense *d, struct worker *w, unsigned il)
{
    static const enum slot readers[] = {SLOT_Q, SLOT_Q_A, SLOT_KV_A, SLOT_K, SLOT_V};
    dense_norm(d, w, dense_weight(d, il, SLOT_ATTN_NORM),
               wanted_acts(d, il, readers, ARRAY_LEN(readers)));
    worker_node_barrier(w);
    if (d->model->hp.attn == ATTN_MLA) {
        attn_mla(d, w, il);
    } else {
        attn_gqa(d, w, il);
    }
    project_back(d, w, dense_weight(d, il, SLOT_O), &d->node[w->in].attn,
                 dense_weight(d, il, SLOT_O_BIAS));
}

void dense_ffn(struct dense *d, struct worker *w, unsigned il)
{
    const struct model_hparams *hp = &d->model->hp;
    const struct weight *gate = dense_weight(d, il, SLOT_GATE), *up = dense_weight(d, il, SLOT_UP);
    const struct weight absent = {.format = NULL};
    const struct weight_glu glu = {gate,          up,           &absent, &absent, hp->act,
                                   hp->act_alpha, hp->act_limit};
    const unsigned acts = weight_acts(gate, d->kern) | weight_acts(up, d->kern);
    const struct kern_act x = act_view(dense_ffn_input(d, w, il, acts));
    const uint32_t n_panel = weight_part_panels(&gate->part[w->in]);
    float *scratch = d->node[w->in].worker[w->iw].glu;
    struct share share;
    uint32_t lo, hi;
    share_begin(&share, w, n_panel, weight_grain(w, n_panel, n_panel));
    while (share_next(&share, &lo, &hi)) {
        weight_glu_panels(&glu, 0, dense_reader(d, w), lo, hi, &x, NULL, d->n, scratch, d->h,
                          hp->n_ff);
    }
    worker_all_barrier(w);
    project_back(d, w, dense_weight(d, il, SLOT_DOWN), &d->node[w->in].ff, &absent);
}

const struct act *dense_ffn_input(struct dense *d, struct worker *w, unsigned il, unsigned acts)
{
    dense_norm(d, w, dense_weight(d, il, SLOT_FFN_NORM), acts);
    worker_node_barrier(w);
    return &d->node[w->in].norm;
}

void dense_head(struct dense *d, struct worker *w)
{
    const struct model_hparams *hp = &d->model->hp;
    const struct weight *norm = &d->store->w[SLOT_OUTPUT_NORM], *out = &d->store->w[SLOT_OUTPUT];
    const struct dense_node *node = &d->node[w->in];
    uint32_t lo, hi;
    dense_own_tokens(w, d->n, &lo, &hi);
    for (uint32_t t = lo; t < hi; t++) {
        const uint32_t row = d->logits_row[t];
        if (row == UINT32_MAX) {
            continue;
        }
        float *x = node->norm.f + (size_t)row * hp->n_embd;
        d->kern->rmsnorm(node->x + (size_t)t * hp->n_embd, norm->vec[w->in], hp->n_embd,
                         hp->norm_eps, x);
        if (hp->logit_scale != 1) {
            d->kern->scale(x, hp->logit_scale, hp->n_embd);
        }
        act_convert(&node->norm, d->kern, weight_acts(out, d->kern), row);
    }
    worker_node_barrier(w);
    const struct kern_act x = act_view(&node->norm);
    weight_matmul(out, 0, w, dense_reader(d, w), &x, NULL, NULL, d->n_logits, d->logits,
                  hp->n_vocab);
}
