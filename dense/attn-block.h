/* Attention of a block of queries over one chunk of a KV cache: what prompts and decode are both
 * made of. The queries are tokens times heads of one KV head. Keys and values come in tiles that
 * are made floats once for all queries and stay in the first cache; scores of a block stay in the
 * second. Private to dense/, and measured by bench/attention.
 *
 * A result depends on its own query and the positions it sees, never on the block: scores are
 * products of two rows each, and values are added in the order of positions.
 */
#ifndef NUMOE_DENSE_ATTN_BLOCK_H
#define NUMOE_DENSE_ATTN_BLOCK_H

#include "dense/kv.h"
#include "kernels/kern.h"

#define ATTN_QUERIES 32u /* of a block, at most */

/* The rows of one KV head in a chunk. */
struct attn_rows {
    enum kv_type type;
    unsigned n_key, n_value;       /* elements */
    size_t key_bytes, value_bytes; /* from a position to the next */
    const uint8_t *keys, *values;
};

/* One token of a block; at least one position in [lo, hi) of the chunk, at most KV_CHUNK. */
struct attn_token {
    const float *q; /* [n_head, n_key], scaled */
    float *out;     /* [n_head], each [n_value] of the sum, then the max and the sum of weights */
    unsigned lo, hi;
};

struct attn_block {
    const struct kern *kern;
    struct attn_rows rows;
    unsigned n_token, n_head; /* n_token * n_head <= ATTN_QUERIES */
    size_t ld_out;            /* from a head's out to the next */
    struct attn_token token[ATTN_QUERIES];
};

/* Of one worker, cache-line aligned. */
struct attn_scratch {
    float *query; /* [ATTN_QUERIES, n_key] */
    float *score; /* [ATTN_QUERIES, KV_CHUNK] */
    float *tile;  /* attn_tile_floats() */
    float *sum;   /* [ATTN_QUERIES, ATTN_COLUMNS] */
};

#define ATTN_COLUMNS 128u /* values of a tile; a multiple of 32 */
size_t attn_tile_floats(unsigned n_key);

/* The softmax of each token and head over its positions of the chunk alone. */
void attn_block(const struct attn_block *b, const struct attn_scratch *scratch);

#endif
