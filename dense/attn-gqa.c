/* Grouped-query attention: n_head / n_head_kv query heads share the keys and values of one KV head.
 * Biases, norms of queries and keys, sinks and windows are there where the model has them.
 */
#include <string.h>

#include "base/mem.h"
#include "dense/kv-chunk.h"
#include "dense/state.h"

static void project(struct dense *d, struct worker *w, unsigned il)
{
    const struct weight *q = dense_weight(d, il, SLOT_Q), *k = dense_weight(d, il, SLOT_K);
    const struct weight *v = dense_weight(d, il, SLOT_V);
    const struct kern_act x = act_view(&d->node[w->in].norm);
    struct weight_reader *rd = dense_reader(d, w);
    weight_matmul(q, 0, w, rd, &x, NULL, NULL, d->n, d->q, q->n_row);
    weight_matmul(k, 0, w, rd, &x, NULL, NULL, d->n, d->k, k->n_row);
    weight_matmul(v, 0, w, rd, &x, NULL, NULL, d->n, d->v, v->n_row);
}

/* Bias and norm of a token's n_head rows of n_qk elements: a norm vector of n_qk is applied to each
 * head, a longer one to all heads together. */
static void bias_and_norm(const struct dense *d, unsigned in, const struct weight *bias,
                          const struct weight *norm, unsigned n_head, float *x)
{
    const struct model_hparams *hp = &d->model->hp;
    const size_t n = (size_t)n_head * hp->n_qk;
    if (weight_present(bias)) {
        d->kern->add(x, bias->vec[in], n);
    }
    if (!weight_present(norm)) {
        return;
    }
    const size_t n_norm = (size_t)norm->n_mat * norm->n_row * norm->k;
    const size_t step = n_norm == hp->n_qk ? hp->n_qk : n;
    for (size_t i = 0; i < n; i += step) {
        d->kern->rmsnorm(x + i, norm->vec[in], step, hp->norm_eps, x + i);
    }
}

static void rotate_heads(const struct dense *d, unsigned in, unsigned t, unsigned n_head, float *x)
{
    const float *angles = d->node[in].angles + (size_t)t * d->rope.n_rot;
    for (unsigned h = 0; h < n_head; h++) {
        rope_apply(&d->rope, angles, x + (size_t)h * d->model->hp.n_qk,
                   x + (size_t)h * d->model->hp.n_qk);
    }
}

/* Queries in place, ready to meet keys: tokens divided over all workers. */
static void finish_queries(struct dense *d, struct worker *w, unsigned il)
{
    const struct model_hparams *hp = &d->model->hp;
    const size_t n = (size_t)hp->n_head * hp->n_qk;
    uint32_t lo, hi;
    share_static(d->n, w->ig, w->ng, &lo, &hi);
    for (uint32_t t = lo; t < hi; t++) {
        float *q = d->q + t * n;
        bias_and_norm(d, w->in, dense_weight(d, il, SLOT_Q_BIAS), dense_weight(d, il, SLOT_Q_NORM),
                      hp->n_head, q);
        rotate_heads(d, w->in, t, hp->n_head, q);
        d->kern->scale(q, hp->attn_scale, n);
    }
}

/* One position's rows [n_head_kv, n] into a cache array whose heads are KV_CHUNK rows apart. */
static void store_rows(const struct dense *d, enum kv_type type, const float *rows, unsigned n,
                       unsigned at, uint8_t *array)
{
    const size_t row_bytes = kv_row_bytes(type, n);
    for (unsigned h = 0; h < d->model->hp.n_head_kv; h++) {
        kv_store_row(d->kern, type, rows + (size_t)h * n, n,
                     array + ((size_t)h * KV_CHUNK + at) * row_bytes);
    }
}

/* Keys and values of the tokens' positions, by workers of the node that owns their chunk. */
static void append_rows(struct dense *d, struct worker *w, unsigned il)
{
    const struct model_hparams *hp = &d->model->hp;
    const size_t n_k = (size_t)hp->n_head_kv * hp->n_qk, n_v = (size_t)hp->n_head_kv * hp->n_v;
    const struct weight *v_bias = dense_weight(d, il, SLOT_V_BIAS);
    unsigned n_seen = 0;
    for (unsigned t = 0; t < d->n; t++) {
        const struct dense_token *token = &d->token[t];
        const unsigned chunk = token->position / KV_CHUNK, at = token->position % KV_CHUNK;
        if (chunk % w->n_node != w->in || n_seen++ % w->nw != w->iw) {
            continue;
        }
        float *k = d->k + t * n_k, *v = d->v + t * n_v;
        bias_and_norm(d, w->in, dense_weight(d, il, SLOT_K_BIAS), dense_weight(d, il, SLOT_K_NORM),
                      hp->n_head_kv, k);
        rotate_heads(d, w->in, t, hp->n_head_kv, k);
        if (weight_present(v_bias)) {
            d->kern->add(v, v_bias->vec[w->in], n_v);
        }
        store_rows(d, token->kv->type, k, hp->n_qk, at, kv_keys(token->kv, il, chunk, 0));
        store_rows(d, token->kv->type, v, hp->n_v, at, kv_values(token->kv, il, chunk, 0));
    }
}

static void merge_tile(struct dense *d, struct worker *w, unsigned il, const struct attn_tile *tile)
{
    const struct model_hparams *hp = &d->model->hp;
    const unsigned n_head = tile->h1 - tile->h0;
    uint32_t lo, hi;
    share_static((tile->t1 - tile->t0) * n_head, w->ig, w->ng, &lo, &hi);
    for (uint32_t i = lo; i < hi; i++) {
        const unsigned t = tile->t0 + i / n_head, h = tile->h0 + i % n_head;
        attn_merge(d, w->in, il, tile, t, h, d->attn + ((size_t)t * hp->n_head + h) * hp->n_v);
    }
}

void attn_gqa(struct dense *d, struct worker *w, unsigned il)
{
    project(d, w, il);
    worker_all_barrier(w);
    finish_queries(d, w, il);
    append_rows(d, w, il);
    worker_all_barrier(w);
    struct attn_tile tile = {0, 0, 0, d->model->hp.n_head};
    while (attn_tile_next(d, d->n, &tile)) {
        attn_partials(d, w, il, &tile, d->q, 0);
        worker_all_barrier(w);
        merge_tile(d, w, il, &tile);
        worker_all_barrier(w);
    }
}
