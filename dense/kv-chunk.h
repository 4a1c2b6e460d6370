/* Private to dense/: where the rows of a KV cache are. A chunk is one piece of memory that holds
 * KV_CHUNK positions of all layers:
 *
 *     layer 0: keys [n_head_kv][KV_CHUNK][n_key] values [n_head_kv][KV_CHUNK][n_value] | layer 1:
 * ..
 *
 * MLA has one head whose rows are [latent, rotated part]; its values are the beginnings of its
 * keys.
 */
#ifndef NUMOE_DENSE_KV_CHUNK_H
#define NUMOE_DENSE_KV_CHUNK_H

#include "dense/kv.h"
#include "kernels/kern.h"

#define KV_Q8_BLOCK 34u /* bytes of 32 elements */

struct kv_shape {
    unsigned n_head, n_key, n_value; /* n_value 0: values are the beginnings of keys */
    size_t key_bytes, value_bytes;   /* from a position to the next */
    size_t value_offset;             /* from a layer's keys to its values */
    size_t layer_bytes, chunk_bytes;
};

/* Memory of a chunk, of one cache or of several that begin alike. Nobody writes into one that has
 * several users, so its copies on other nodes, which form a ring, are equal; whoever writes leaves the
 * ring. */
struct kv_block {
    unsigned n_user;
    struct node_arena *arena;
    uint8_t *data;
    struct kv_block *twin; /* itself where there is no other */
};

struct kv_chunk {
    struct kv_block *block;
    uint8_t *data;
};

struct kv_cache {
    const struct topo *topo;
    struct pools *pools;
    int home;      /* a node, or KV_SPREAD */
    bool is_mixed; /* shared chunks may be elsewhere */
    enum kv_type type;
    unsigned n_ctx, n_chunk; /* n_chunk: allocated so far */
    unsigned n_ready;        /* positions up to here are written, or may be */
    struct kv_shape shape;
    struct kv_chunk *chunk; /* [ceil(n_ctx / KV_CHUNK)] */
};

/* Of a row of n elements. */
static inline size_t kv_row_bytes(enum kv_type type, unsigned n)
{
    return type == KV_Q8_0 ? (n + 31) / 32 * KV_Q8_BLOCK : (size_t)n * (type == KV_F16 ? 2 : 4);
}

/* Rows of KV_CHUNK positions, key_bytes apart, of one head. */
static inline void *kv_keys(const struct kv_cache *kv, unsigned il, unsigned chunk, unsigned head)
{
    const struct kv_shape *s = &kv->shape;
    const size_t head_bytes = KV_CHUNK * s->key_bytes;
    return kv->chunk[chunk].data + il * s->layer_bytes + head * head_bytes;
}

/* The same, value_bytes apart. */
static inline void *kv_values(const struct kv_cache *kv, unsigned il, unsigned chunk, unsigned head)
{
    const struct kv_shape *s = &kv->shape;
    const size_t head_bytes = KV_CHUNK * s->value_bytes;
    return kv->chunk[chunk].data + il * s->layer_bytes + s->value_offset + head * head_bytes;
}

/* x [n] as a row of the cache. */
void kv_store_row(const struct kern *kern, enum kv_type type, const float *x, unsigned n,
                  void *row);

#endif
