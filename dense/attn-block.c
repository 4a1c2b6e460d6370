/* Owns the order in which a block's tiles are gone through. */
#include "dense/attn-block.h"

#include <string.h>

#include "base/mem.h"
#include "dense/kv-chunk.h"

#define TILE_FLOATS     4096u /* 16 KiB: half of a small first cache */
#define VALUE_POSITIONS (TILE_FLOATS / ATTN_COLUMNS)
#define TILE_QUERIES    4u /* that go over a tile of keys together, as in the kernels */
#define FEW_QUERIES     16u /* up to here, kernels that convert f16 themselves are faster */

/* Rows that kernels read: of the cache itself or of the scratch. */
struct tile {
    const uint8_t *rows;
    bool is_f16;
    size_t ld;
};

/* Positions of the chunk: those that any token sees, and those that all see. */
struct span {
    unsigned lo, hi, lo_all, hi_all;
};

/* Kernels take three or four positions together. */
static unsigned key_positions(unsigned n_key)
{
    return MAX(TILE_FLOATS / n_key / 12 * 12, 12u);
}

size_t attn_tile_floats(unsigned n_key)
{
    return MAX((size_t)key_positions(n_key) * n_key, (size_t)TILE_FLOATS);
}

static struct span span_of(const struct attn_block *b)
{
    struct span s = {KV_CHUNK, 0, 0, KV_CHUNK};
    for (unsigned t = 0; t < b->n_token; t++) {
        s.lo = MIN(s.lo, b->token[t].lo);
        s.hi = MAX(s.hi, b->token[t].hi);
        s.lo_all = MAX(s.lo_all, b->token[t].lo);
        s.hi_all = MIN(s.hi_all, b->token[t].hi);
    }
    return s;
}

/* n elements (of whole blocks where they are blocks, but for the end of a row) of n_pos rows that
 * are row_bytes apart, as floats [n_pos, n]. */
static void make_floats(const struct kern *kern, enum kv_type type, const uint8_t *rows,
                        size_t row_bytes, unsigned n_pos, unsigned n, float *to)
{
    const bool together = row_bytes == kv_row_bytes(type, n) && n % 32 == 0;
    const size_t n_once = together ? (size_t)n_pos * n : n;
    for (unsigned p = 0; p < (together ? 1 : n_pos); p++) {
        if (type == KV_F16) {
            kern->f16_to_f32((const void *)(rows + p * row_bytes), n_once, to + (size_t)p * n);
        } else {
            kern->q8_0_to_f32(rows + p * row_bytes, n_once, to + (size_t)p * n);
        }
    }
}

/* Whether kernels go over the cache itself, all positions at once. */
static bool is_direct(const struct attn_block *b)
{
    return b->rows.type != KV_Q8_0 && b->n_token * b->n_head <= FEW_QUERIES;
}

static struct tile tile_of(const struct attn_block *b, const struct attn_scratch *scratch,
                           const uint8_t *rows, size_t row_bytes, unsigned n_pos, unsigned n)
{
    const enum kv_type type = b->rows.type;
    if (type == KV_F32) {
        return (struct tile){rows, false, row_bytes / sizeof(float)};
    }
    if (is_direct(b)) {
        return (struct tile){rows, true, row_bytes / sizeof(uint16_t)};
    }
    make_floats(b->kern, type, rows, row_bytes, n_pos, n, scratch->tile);
    return (struct tile){(const uint8_t *)scratch->tile, false, n};
}

/* The queries one after the other: in place where they are. */
static const float *gather_queries(const struct attn_block *b, const struct attn_scratch *scratch)
{
    const size_t n = (size_t)b->n_head * b->rows.n_key;
    bool in_place = true;
    for (unsigned t = 0; t < b->n_token; t++) {
        in_place = in_place && b->token[t].q == b->token[0].q + t * n;
    }
    if (in_place) {
        return b->token[0].q;
    }
    for (unsigned t = 0; t < b->n_token; t++) {
        memcpy(scratch->query + t * n, b->token[t].q, n * sizeof(float));
    }
    return scratch->query;
}

static void score_keys(const struct attn_block *b, const struct attn_scratch *scratch,
                       const struct span *span)
{
    const struct attn_rows *rows = &b->rows;
    const float *q = gather_queries(b, scratch);
    const unsigned n_query = b->n_token * b->n_head;
    const unsigned most = is_direct(b) ? KV_CHUNK : key_positions(rows->n_key);
    const unsigned step = is_direct(b) ? n_query : TILE_QUERIES;
    for (unsigned p = span->lo, n; p < span->hi; p += n) {
        n = MIN(most, span->hi - p);
        const struct tile k =
            tile_of(b, scratch, rows->keys + p * rows->key_bytes, rows->key_bytes, n, rows->n_key);
        for (unsigned i = 0; i < n_query; i += step) {
            b->kern->attn_qk(q + (size_t)i * rows->n_key, rows->n_key, MIN(step, n_query - i),
                             k.rows, k.is_f16, k.ld, n, rows->n_key,
                             scratch->score + (size_t)i * KV_CHUNK + p, KV_CHUNK);
        }
    }
}

/* Scores become weights. */
static void weigh(const struct attn_block *b, const struct attn_scratch *scratch)
{
    for (unsigned t = 0; t < b->n_token; t++) {
        const struct attn_token *token = &b->token[t];
        float *score = scratch->score + (size_t)t * b->n_head * KV_CHUNK + token->lo;
        for (unsigned h = 0; h < b->n_head; h++, score += KV_CHUNK) {
            float *max_sum = token->out + h * b->ld_out + b->rows.n_value;
            b->kern->attn_exp(score, token->hi - token->lo, &max_sum[0], &max_sum[1]);
        }
    }
}

/* Adds values at positions [lo, hi), n columns in tile v, which begins at position at, to the sums
 * of n_query queries from i on. */
static void add_values(const struct attn_block *b, const struct attn_scratch *scratch,
                       const struct tile *v, unsigned at, unsigned lo, unsigned hi, unsigned i,
                       unsigned n_query, unsigned n)
{
    const size_t elem_bytes = v->is_f16 ? sizeof(uint16_t) : sizeof(float);
    if (lo < hi) {
        b->kern->attn_sv(scratch->score + (size_t)i * KV_CHUNK + lo, KV_CHUNK, n_query,
                         v->rows + (lo - at) * v->ld * elem_bytes, v->is_f16, v->ld, hi - lo, n,
                         scratch->sum + (size_t)i * n, n);
    }
}

/* Columns [i0, i0 + n) of the values, at most ATTN_COLUMNS. A tile that some tokens see in part is
 * added token by token: a weight of 0 for the rest would let NaN in. */
static void sum_columns(const struct attn_block *b, const struct attn_scratch *scratch,
                        const struct span *span, unsigned i0, unsigned n)
{
    const struct attn_rows *rows = &b->rows;
    const uint8_t *values = rows->values + kv_row_bytes(rows->type, i0);
    const unsigned n_query = b->n_token * b->n_head;
    const unsigned most = is_direct(b) ? KV_CHUNK : VALUE_POSITIONS;
    memset(scratch->sum, 0, (size_t)n_query * n * sizeof(float));
    for (unsigned p = span->lo, end; p < span->hi; p = end) {
        end = MIN(p + most, span->hi);
        const struct tile v =
            tile_of(b, scratch, values + p * rows->value_bytes, rows->value_bytes, end - p, n);
        if (p >= span->lo_all && end <= span->hi_all) {
            add_values(b, scratch, &v, p, p, end, 0, n_query, n);
            continue;
        }
        for (unsigned t = 0; t < b->n_token; t++) {
            add_values(b, scratch, &v, p, MAX(p, b->token[t].lo), MIN(end, b->token[t].hi),
                       t * b->n_head, b->n_head, n);
        }
    }
    for (unsigned i = 0; i < n_query; i++) {
        float *out = b->token[i / b->n_head].out + i % b->n_head * b->ld_out;
        memcpy(out + i0, scratch->sum + (size_t)i * n, n * sizeof(float));
    }
}

void attn_block(const struct attn_block *b, const struct attn_scratch *scratch)
{
    const struct span span = span_of(b);
    score_keys(b, scratch, &span);
    weigh(b, scratch);
    for (unsigned i = 0; i < b->rows.n_value; i += ATTN_COLUMNS) {
        sum_columns(b, scratch, &span, i, MIN(ATTN_COLUMNS, b->rows.n_value - i));
    }
}
