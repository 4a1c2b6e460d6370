/* Softmax attention over a KV cache in chunks, for any number of heads per KV head.
 *
 * Each (token, head, chunk) gives a partial softmax: values weighted with exp(s - max), that max,
 * and the sum of the weights. The partials of a token and head are merged in chunk order. Neither
 * depends on which worker or node does it, so the result has the same bits everywhere. Partials of
 * a whole batch over a long context do not fit in memory: they are made and merged tile by tile.
 */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "dense/kv-chunk.h"
#include "dense/state.h"

size_t attn_partial_stride(unsigned n_value)
{
    return round_up(n_value + 2, CACHE_LINE_BYTES / sizeof(float));
}

bool attn_tile_next(const struct dense *d, unsigned t_end, struct attn_tile *tile)
{
    const unsigned n_head = d->model->hp.n_head;
    if (tile->h1 < n_head) {
        tile->h0 = tile->h1;
    } else {
        tile->t0 = tile->t1;
        tile->h0 = 0;
    }
    if (tile->t0 >= t_end) {
        return false;
    }
    const size_t pair_floats = d->n_chunk * d->partial_stride;
    const size_t n_pair = d->partial_floats / pair_floats; /* at least 1: kv_max_context() */
    if (n_pair >= n_head) {
        tile->t1 = (unsigned)MIN(tile->t0 + n_pair / n_head, t_end);
        tile->h1 = n_head;
    } else {
        tile->t1 = tile->t0 + 1;
        tile->h1 = (unsigned)MIN(tile->h0 + n_pair, n_head);
    }
    return true;
}

static float *partial_at(const struct dense *d, const struct attn_tile *tile, unsigned t,
                         unsigned h, unsigned chunk)
{
    const size_t pair = (size_t)(t - tile->t0) * (tile->h1 - tile->h0) + (h - tile->h0);
    return d->partial + (pair * d->n_chunk + chunk) * d->partial_stride;
}

/* Positions [lo, hi) that token t sees. */
static void token_span(const struct dense *d, unsigned il, unsigned t, uint32_t *lo, uint32_t *hi)
{
    const unsigned window = d->model->layer[il].windowed ? d->model->hp.window : 0;
    *hi = d->token[t].position + 1;
    *lo = window > 0 && *hi > window ? *hi - window : 0;
}

/* Heads that are scored together: as many as share the keys and fit the scratch, fewer where there
 * would not be enough work for all n_worker. */
static unsigned head_block(unsigned n_worker, unsigned n_shared, size_t n_token_chunk)
{
    unsigned block = MIN(n_shared, ATTN_HEAD_BLOCK);
    while (block >= 2 * ATTN_HEAD_BLOCK_MIN && n_worker > 1 &&
           n_token_chunk * ((n_shared + block - 1) / block) < 2 * n_worker) {
        block = block / 2;
    }
    return block;
}

void attn_part_init(struct attn_part *p, const struct worker *w, unsigned n_chunk, unsigned n_token,
                    unsigned n_head, unsigned n_kv_head, bool one_array)
{
    const unsigned n_shared = n_head / n_kv_head;
    const unsigned n_rest = one_array ? n_chunk % w->n_node : 0, n_whole = n_chunk - n_rest;
    const unsigned n_own = n_whole > w->in ? (n_whole - w->in - 1) / w->n_node + 1 : 0;
    uint32_t rest0, rest1, unused;
    *p = (struct attn_part){.in = w->in, .n_node = w->n_node, .rest_chunk = n_whole};
    p->block = one_array ? head_block(w->ng, n_shared, (size_t)n_chunk * n_token)
                         : head_block(w->nw, n_shared, (size_t)n_own * n_token);
    p->n_block = (n_shared + p->block - 1) / p->block;
    p->per_chunk = n_token * p->n_block * n_kv_head;
    p->n_own = n_own * p->per_chunk;
    share_static(n_rest * p->per_chunk, w->ig - w->iw, w->ng, &rest0, &unused);
    share_static(n_rest * p->per_chunk, w->ig - w->iw + w->nw - 1, w->ng, &unused, &rest1);
    p->rest0 = rest0;
    p->n_item = p->n_own + rest1 - rest0;
}

unsigned attn_part_item(const struct attn_part *p, uint32_t item, uint32_t *within)
{
    if (item < p->n_own) {
        *within = item % p->per_chunk;
        return p->in + item / p->per_chunk * p->n_node;
    }
    item = item - p->n_own + p->rest0;
    *within = item % p->per_chunk;
    return p->rest_chunk + item / p->per_chunk;
}

/* Scores [n_head, KV_CHUNK] of n_head queries against the rows of a cache. Rows of Q8_0 are made
 * floats a few at a time, for all heads. */
static void score_keys(const struct dense *d, const struct dense_worker *worker,
                       const struct kv_cache *kv, const float *q, unsigned n_head,
                       const uint8_t *keys, unsigned n_pos)
{
    const struct kern *kern = d->kern;
    const unsigned n_key = kv->shape.n_key;
    if (kv->type != KV_Q8_0) {
        kern->attn_qk(q, n_key, n_head, keys, kv->type == KV_F16, n_key, n_pos, n_key,
                      worker->score, KV_CHUNK);
        return;
    }
    for (unsigned p = 0; p < n_pos; p += ATTN_ROWS) {
        const unsigned n = MIN(ATTN_ROWS, n_pos - p);
        for (unsigned i = 0; i < n; i++) {
            kern->q8_0_to_f32(keys + (p + i) * kv->shape.key_bytes, n_key,
                              worker->rows + (size_t)i * n_key);
        }
        kern->attn_qk(q, n_key, n_head, worker->rows, false, n_key, n, n_key, worker->score + p,
                      KV_CHUNK);
    }
}

/* out[h * ldo + :] [n_value] = the rows of a cache weighted with the scores. */
static void sum_values(const struct dense *d, const struct dense_worker *worker,
                       const struct kv_cache *kv, unsigned n_head, const uint8_t *values,
                       unsigned n_pos, unsigned n_value, float *out, size_t ldo)
{
    const struct kern *kern = d->kern;
    if (kv->type != KV_Q8_0) {
        const bool f16 = kv->type == KV_F16;
        kern->attn_sv(worker->score, KV_CHUNK, n_head, values, f16,
                      kv->shape.value_bytes / (f16 ? 2 : 4), n_pos, n_value, out, ldo);
        return;
    }
    for (unsigned i = 0; i < n_value; i += ATTN_COLUMNS) {
        const unsigned n = MIN(ATTN_COLUMNS, n_value - i);
        const uint8_t *from = values + i / 32 * KV_Q8_BLOCK;
        for (unsigned p = 0; p < n_pos; p++) {
            kern->q8_0_to_f32(from + p * kv->shape.value_bytes, n,
                              worker->rows + (size_t)p * ATTN_COLUMNS);
        }
        kern->attn_sv(worker->score, KV_CHUNK, n_head, worker->rows, false, ATTN_COLUMNS, n_pos, n,
                      out + i, ldo);
    }
}

/* Heads [h0, h1), all of one KV head, of token t over one chunk. */
static void attend(const struct dense *d, const struct worker *w, unsigned il,
                   const struct attn_tile *tile, unsigned t, unsigned h0, unsigned h1,
                   unsigned chunk, const float *q)
{
    const struct kv_cache *kv = d->token[t].kv;
    const struct kv_shape *shape = &kv->shape;
    uint32_t lo, hi;
    token_span(d, il, t, &lo, &hi);
    lo = MAX(lo, chunk * KV_CHUNK);
    hi = MIN(hi, (chunk + 1) * KV_CHUNK);
    if (h0 >= h1 || lo >= hi) {
        return;
    }
    const unsigned n_pos = hi - lo, n_head = h1 - h0;
    const unsigned kv_head = h0 / (d->model->hp.n_head / shape->n_head);
    const size_t skip = lo - chunk * KV_CHUNK;
    const unsigned n_value = shape->n_value > 0 ? shape->n_value : d->model->hp.kv_lora_rank;
    const uint8_t *keys = (uint8_t *)kv_keys(kv, il, chunk, kv_head) + skip * shape->key_bytes;
    const uint8_t *values =
        (uint8_t *)kv_values(kv, il, chunk, kv_head) + skip * shape->value_bytes;
    const struct dense_worker *worker = &d->node[w->in].worker[w->iw];
    float *out = partial_at(d, tile, t, h0, chunk);
    const size_t ldo = d->n_chunk * d->partial_stride;

    score_keys(d, worker, kv, q, n_head, keys, n_pos);
    for (unsigned i = 0; i < n_head; i++) {
        float *max_sum = out + i * ldo + n_value;
        d->kern->attn_exp(worker->score + i * KV_CHUNK, n_pos, &max_sum[0], &max_sum[1]);
    }
    sum_values(d, worker, kv, n_head, values, n_pos, n_value, out, ldo);
}

void attn_partials(struct dense *d, struct worker *w, unsigned il, const struct attn_tile *tile,
                   const float *q, unsigned q_t0)
{
    const struct model_hparams *hp = &d->model->hp;
    const struct kv_shape *shape = &d->token[tile->t0].kv->shape;
    const unsigned n_shared = hp->n_head / shape->n_head;
    struct attn_part part;
    struct share share;
    uint32_t item, end, at;
    attn_part_init(&part, w, d->n_chunk, tile->t1 - tile->t0, hp->n_head, shape->n_head,
                   shape->n_value == 0);
    if (part.n_item == 0) {
        return;
    }
    const unsigned n_block = part.n_block * shape->n_head; /* of a token */
    share_begin(&share, w, part.n_item, weight_grain(w, part.n_item, part.n_item));
    while (share_next(&share, &item, &end)) {
        for (; item < end; item++) {
            const unsigned chunk = attn_part_item(&part, item, &at);
            const unsigned t = tile->t0 + at / n_block;
            const unsigned kv_head = at % n_block / part.n_block, ib = at % part.n_block;
            const unsigned h_end = kv_head * n_shared + MIN((ib + 1) * part.block, n_shared);
            const unsigned h0 = MAX(kv_head * n_shared + ib * part.block, tile->h0);
            const unsigned h1 = MIN(h_end, tile->h1);
            attend(d, w, il, tile, t, h0, h1, chunk,
                   q + ((size_t)(t - q_t0) * hp->n_head + h0) * shape->n_key);
        }
    }
}

void attn_merge(const struct dense *d, unsigned in, unsigned il, const struct attn_tile *tile,
                unsigned t, unsigned h, float *out)
{
    const struct kern *kern = d->kern;
    const struct kv_shape *shape = &d->token[t].kv->shape;
    const unsigned n_value = shape->n_value > 0 ? shape->n_value : d->model->hp.kv_lora_rank;
    const struct weight *sinks = dense_weight(d, il, SLOT_SINKS);
    uint32_t lo, hi;
    token_span(d, il, t, &lo, &hi);
    const unsigned c0 = lo / KV_CHUNK, c1 = (hi - 1) / KV_CHUNK;

    float max = weight_present(sinks) ? sinks->vec[in][h] : -INFINITY;
    for (unsigned c = c0; c <= c1; c++) {
        max = fmaxf(max, partial_at(d, tile, t, h, c)[n_value]);
    }
    float sum = weight_present(sinks) ? expf(sinks->vec[in][h] - max) : 0;
    memset(out, 0, n_value * sizeof(float));
    for (unsigned c = c0; c <= c1; c++) {
        const float *partial = partial_at(d, tile, t, h, c);
        const float weight = expf(partial[n_value] - max);
        kern->axpy(out, weight, partial, n_value);
        sum += weight * partial[n_value + 1];
    }
    kern->scale(out, 1 / sum, n_value);
}
