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

/* Heads and tokens that go over a chunk together: as many as share the keys and fit a block, fewer
 * where there would not be enough work for all n_worker. */
static void choose_block(struct attn_part *p, unsigned n_worker, unsigned n_shared,
                         size_t n_kv_chunk, unsigned n_token)
{
    p->block = MIN(n_shared, ATTN_HEAD_BLOCK);
    p->n_token = MIN(n_token, ATTN_QUERIES / p->block);
    for (;;) {
        p->n_block = (n_shared + p->block - 1) / p->block;
        p->n_group = (n_token + p->n_token - 1) / p->n_token;
        const bool enough = n_worker == 1 || n_kv_chunk * p->n_group * p->n_block >= 2 * n_worker;
        if (!enough && p->n_token > 1) {
            p->n_token /= 2;
        } else if (!enough && p->block >= 2 * ATTN_HEAD_BLOCK_MIN) {
            p->block /= 2;
        } else {
            return;
        }
    }
}

void attn_part_init(struct attn_part *p, const struct worker *w, unsigned n_chunk, unsigned n_token,
                    unsigned n_head, unsigned n_kv_head, bool one_array)
{
    const unsigned n_shared = n_head / n_kv_head;
    const unsigned n_rest = one_array ? n_chunk % w->n_node : 0, n_whole = n_chunk - n_rest;
    const unsigned n_own = n_whole > w->in ? (n_whole - w->in - 1) / w->n_node + 1 : 0;
    uint32_t rest0, rest1, unused;
    *p = (struct attn_part){.in = w->in, .n_node = w->n_node, .rest_chunk = n_whole};
    choose_block(p, one_array ? w->ng : w->nw, n_shared,
                 (size_t)n_kv_head * (one_array ? n_chunk : n_own), n_token);
    p->per_chunk = n_kv_head * p->n_group * p->n_block;
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

/* What all blocks of a tile have in common. */
struct tile_queries {
    unsigned il;
    const struct attn_tile *tile;
    const float *q; /* [tokens, H, n_key] from token q_t0 on */
    unsigned q_t0;
};

/* The rows of a chunk that heads from h0 on, all of one KV head, read. */
static struct attn_rows rows_of(const struct dense *d, const struct kv_cache *kv, unsigned il,
                                unsigned h0, unsigned chunk)
{
    const struct kv_shape *shape = &kv->shape;
    const unsigned kv_head = h0 / (d->model->hp.n_head / shape->n_head);
    return (struct attn_rows){
        .type = kv->type,
        .n_key = shape->n_key,
        .n_value = shape->n_value > 0 ? shape->n_value : d->model->hp.kv_lora_rank,
        .key_bytes = shape->key_bytes,
        .value_bytes = shape->value_bytes,
        .keys = kv_keys(kv, il, chunk, kv_head),
        .values = kv_values(kv, il, chunk, kv_head),
    };
}

/* Heads [h0, h1), all of one KV head, of the tokens from t on that belong to one sequence, but for
 * those that see nothing of the chunk. Returns the token that is next. */
static unsigned attend(const struct dense *d, const struct worker *w, const struct tile_queries *tq,
                       unsigned t, unsigned t1, unsigned h0, unsigned h1, unsigned chunk)
{
    const struct kv_cache *kv = d->token[t].kv;
    struct attn_block b = {
        .kern = d->kern, .n_head = h1 - h0, .ld_out = d->n_chunk * d->partial_stride};
    for (; t < t1 && d->token[t].kv == kv; t++) {
        const uint32_t begin = chunk * KV_CHUNK, end = begin + KV_CHUNK;
        uint32_t lo, hi;
        token_span(d, tq->il, t, &lo, &hi);
        lo = MAX(lo, begin);
        hi = MIN(hi, end);
        if (lo < hi) {
            const size_t row = (size_t)(t - tq->q_t0) * d->model->hp.n_head + h0;
            b.token[b.n_token++] = (struct attn_token){
                .q = tq->q + row * kv->shape.n_key,
                .out = partial_at(d, tq->tile, t, h0, chunk),
                .lo = lo - begin,
                .hi = hi - begin,
            };
        }
    }
    if (b.n_token > 0) {
        b.rows = rows_of(d, kv, tq->il, h0, chunk);
        attn_block(&b, &d->node[w->in].worker[w->iw].attn);
    }
    return t;
}

/* Piece `at` of a chunk: one KV head's are together, since their keys are in the cache. */
static void attend_piece(const struct dense *d, const struct worker *w,
                         const struct tile_queries *tq, const struct attn_part *part, uint32_t at,
                         unsigned n_shared, unsigned chunk)
{
    const struct attn_tile *tile = tq->tile;
    const unsigned ib = at % part->n_block, ig = at / part->n_block % part->n_group;
    const unsigned first = at / part->n_block / part->n_group * n_shared;
    const unsigned h0 = MAX(first + ib * part->block, tile->h0);
    const unsigned h1 = MIN(first + MIN((ib + 1) * part->block, n_shared), tile->h1);
    const unsigned t1 = MIN(tile->t0 + (ig + 1) * part->n_token, tile->t1);
    for (unsigned t = tile->t0 + ig * part->n_token; h0 < h1 && t < t1;) {
        t = attend(d, w, tq, t, t1, h0, h1, chunk);
    }
}

void attn_partials(struct dense *d, struct worker *w, unsigned il, const struct attn_tile *tile,
                   const float *q, unsigned q_t0)
{
    const struct model_hparams *hp = &d->model->hp;
    const struct kv_shape *shape = &d->token[tile->t0].kv->shape;
    const struct tile_queries tq = {il, tile, q, q_t0};
    struct attn_part part;
    struct share share;
    uint32_t item, end, at;
    attn_part_init(&part, w, d->n_chunk, tile->t1 - tile->t0, hp->n_head, shape->n_head,
                   shape->n_value == 0);
    if (part.n_item == 0) {
        return;
    }
    share_begin(&share, w, part.n_item, weight_grain(w, part.n_item, part.n_item));
    while (share_next(&share, &item, &end)) {
        for (; item < end; item++) {
            const unsigned chunk = attn_part_item(&part, item, &at);
            attend_piece(d, w, &tq, &part, at, hp->n_head / shape->n_head, chunk);
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
