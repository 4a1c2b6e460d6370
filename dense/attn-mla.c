/* Multi-head latent attention (DeepSeek-V2, section 2.1), absorbed: queries are carried into the
 * space of the compressed latent by the key matrix of each head (K_B), attention runs over latents
 * that all heads share, and each head's value matrix (V_B) carries the result back. Keys and values
 * of single heads are never formed.
 */
#include <string.h>

#include "base/mem.h"
#include "dense/kv-chunk.h"
#include "dense/state.h"

/* q_a (or q) and kv_a from the normed stream. */
static void project_down(struct dense *d, struct worker *w, unsigned il)
{
    const struct model_hparams *hp = &d->model->hp;
    const struct weight *q_a = dense_weight(d, il, SLOT_Q_A), *q = dense_weight(d, il, SLOT_Q);
    const struct weight *kv_a = dense_weight(d, il, SLOT_KV_A);
    const struct kern_act x = act_view(&d->node[w->in].norm);
    struct weight_reader *rd = dense_reader(d, w);
    if (weight_present(q_a)) {
        weight_matmul(q_a, 0, w, rd, &x, NULL, NULL, d->n, d->q_a, hp->q_lora_rank);
    } else {
        weight_matmul(q, 0, w, rd, &x, NULL, NULL, d->n, d->q, q->n_row);
    }
    weight_matmul(kv_a, 0, w, rd, &x, NULL, NULL, d->n, d->kv_a, kv_a->n_row);
}

/* Rows of the tokens' positions, by workers of the node that owns their chunk. */
static void append_rows(struct dense *d, struct worker *w, unsigned il)
{
    const struct model_hparams *hp = &d->model->hp;
    const struct dense_node *node = &d->node[w->in];
    const float *norm = dense_weight(d, il, SLOT_KV_A_NORM)->vec[w->in];
    const unsigned n_key = hp->kv_lora_rank + hp->n_rope;
    float *row = node->worker[w->iw].row;
    unsigned n_seen = 0;
    for (unsigned t = 0; t < d->n; t++) {
        const struct dense_token *token = &d->token[t];
        const unsigned chunk = token->position / KV_CHUNK, at = token->position % KV_CHUNK;
        if (chunk % w->n_node != w->in || n_seen++ % w->nw != w->iw) {
            continue;
        }
        const float *kv_a = d->kv_a + (size_t)t * n_key;
        d->kern->rmsnorm(kv_a, norm, hp->kv_lora_rank, hp->norm_eps, row);
        rope_apply(&d->rope, node->angles + (size_t)t * d->rope.n_rot, kv_a + hp->kv_lora_rank,
                   row + hp->kv_lora_rank);
        uint8_t *to = kv_keys(token->kv, il, chunk, 0);
        kv_store_row(d->kern, token->kv->type, row, n_key, to + at * token->kv->shape.key_bytes);
    }
}

/* q from q_a, for models that compress queries. */
static void project_queries(struct dense *d, struct worker *w, unsigned il)
{
    const struct weight *q_b = dense_weight(d, il, SLOT_Q_B);
    const struct weight *norm = dense_weight(d, il, SLOT_Q_A_NORM);
    const struct act *act = &d->node[w->in].q_lora;
    uint32_t lo, hi;
    dense_own_tokens(w, d->n, &lo, &hi);
    for (uint32_t t = lo; t < hi; t++) {
        d->kern->rmsnorm(d->q_a + (size_t)t * act->k, norm->vec[w->in], act->k,
                         d->model->hp.norm_eps, act->f + (size_t)t * act->k);
        act_convert(act, d->kern, weight_acts(q_b, d->kern), t);
    }
    worker_node_barrier(w);
    const struct kern_act x = act_view(act);
    weight_matmul(q_b, 0, w, dense_reader(d, w), &x, NULL, NULL, d->n, d->q, q_b->n_row);
}

/* Products with the matrix of each head: y[t, h] = W[h] * input(t, h) for tokens [t0, t1), heads
 * [h0, h1). The worker that multiplies makes the input, so that no barrier lies in between. */
struct heads_product {
    const struct weight *weight;
    const struct act *act; /* of the worker: MLA_HEAD_TOKENS inputs of one head */
    unsigned t0, t1, h0, h1;
    void (*input)(const struct dense *d, unsigned in, unsigned il, const struct attn_tile *tile,
                  unsigned t, unsigned h, float *x);
    const struct attn_tile *tile; /* for input() */
    float *y;                     /* of token t0, head 0 */
    size_t ld_token, ld_head;
};

/* Panels [p0, p1) of head h. */
static void multiply_head(const struct dense *d, struct weight_reader *rd, unsigned il,
                          const struct heads_product *p, unsigned h, uint32_t p0, uint32_t p1)
{
    const struct act *act = p->act;
    const struct kern_act x = act_view(act);
    for (unsigned t0 = p->t0; t0 < p->t1; t0 += MLA_HEAD_TOKENS) {
        const unsigned nt = MIN(MLA_HEAD_TOKENS, p->t1 - t0);
        for (unsigned i = 0; i < nt; i++) {
            p->input(d, rd->in, il, p->tile, t0 + i, h, act->f + (size_t)i * act->k);
            act_convert(act, d->kern, weight_acts(p->weight, d->kern), i);
        }
        weight_matmul_panels(p->weight, h, rd, p0, p1, &x, NULL, NULL, nt,
                             p->y + (t0 - p->t0) * p->ld_token + h * p->ld_head, p->ld_token);
    }
}

static void multiply_heads(const struct dense *d, struct worker *w, unsigned il,
                           const struct heads_product *p)
{
    const uint32_t n_panel = weight_part_panels(&p->weight->part[w->in]);
    const uint32_t n = n_panel * (p->h1 - p->h0);
    struct share share;
    uint32_t lo, hi;
    if (n == 0) {
        return;
    }
    share_begin(&share, w, n, weight_grain(w, n, n_panel));
    while (share_next(&share, &lo, &hi)) {
        while (lo < hi) {
            const unsigned h = p->h0 + lo / n_panel;
            const uint32_t p0 = lo % n_panel, p1 = MIN(n_panel, p0 + (hi - lo));
            multiply_head(d, dense_reader(d, w), il, p, h, p0, p1);
            lo += p1 - p0;
        }
    }
}

static void nope_input(const struct dense *d, unsigned in, unsigned il,
                       const struct attn_tile *tile, unsigned t, unsigned h, float *x)
{
    (void)in, (void)il, (void)tile;
    const struct model_hparams *hp = &d->model->hp;
    memcpy(x, d->q + ((size_t)t * hp->n_head + h) * hp->n_qk, hp->n_nope * sizeof(float));
    d->kern->scale(x, hp->attn_scale, hp->n_nope);
}

/* Scaled queries of tokens [t0, t1) in latent space: [K_B * q_nope, rope(q_rope)]. */
static void absorb(struct dense *d, struct worker *w, unsigned il, unsigned t0, unsigned t1)
{
    const struct model_hparams *hp = &d->model->hp;
    const struct dense_node *node = &d->node[w->in];
    const unsigned n_key = hp->kv_lora_rank + hp->n_rope;
    const struct heads_product product = {
        .weight = dense_weight(d, il, SLOT_K_B),
        .act = &node->worker[w->iw].nope,
        .t0 = t0,
        .t1 = t1,
        .h1 = hp->n_head,
        .input = nope_input,
        .y = d->q_abs,
        .ld_token = (size_t)hp->n_head * n_key,
        .ld_head = n_key,
    };
    multiply_heads(d, w, il, &product);
    uint32_t lo, hi;
    share_static((t1 - t0) * hp->n_head, w->ig, w->ng, &lo, &hi);
    for (uint32_t i = lo; i < hi; i++) {
        const size_t t = t0 + i / hp->n_head, h = i % hp->n_head;
        const float *from = d->q + (t * hp->n_head + h) * hp->n_qk + hp->n_nope;
        float *to = d->q_abs + (size_t)i * n_key + hp->kv_lora_rank;
        rope_apply(&d->rope, node->angles + t * d->rope.n_rot, from, to);
        d->kern->scale(to, hp->attn_scale, hp->n_rope);
    }
}

/* Values of the tile: V_B * (attention over latents). */
static void expand(struct dense *d, struct worker *w, unsigned il, const struct attn_tile *tile)
{
    const struct model_hparams *hp = &d->model->hp;
    const size_t ld_token = (size_t)hp->n_head * hp->n_v;
    const struct heads_product product = {
        .weight = dense_weight(d, il, SLOT_V_B),
        .act = &d->node[w->in].worker[w->iw].latent,
        .t0 = tile->t0,
        .t1 = tile->t1,
        .h0 = tile->h0,
        .h1 = tile->h1,
        .input = attn_merge,
        .tile = tile,
        .y = d->attn + tile->t0 * ld_token,
        .ld_token = ld_token,
        .ld_head = hp->n_v,
    };
    multiply_heads(d, w, il, &product);
}

void attn_mla(struct dense *d, struct worker *w, unsigned il)
{
    const unsigned n_head = d->model->hp.n_head;
    project_down(d, w, il);
    worker_all_barrier(w);
    append_rows(d, w, il);
    if (weight_present(dense_weight(d, il, SLOT_Q_B))) {
        project_queries(d, w, il);
        worker_all_barrier(w);
    }
    for (unsigned t0 = 0; t0 < d->n; t0 += d->q_tokens) {
        const unsigned t1 = MIN(t0 + d->q_tokens, d->n);
        absorb(d, w, il, t0, t1);
        worker_all_barrier(w);
        struct attn_tile tile = {t0, t0, 0, n_head};
        while (attn_tile_next(d, t1, &tile)) {
            attn_partials(d, w, il, &tile, d->q_abs, t0);
            worker_all_barrier(w);
            expand(d, w, il, &tile);
            worker_all_barrier(w);
        }
    }
}
