/* The KV cache of one sequence. Rows of KV_CHUNK consecutive positions of one layer lie together;
 * chunk c lives on node c % n_node and is allocated when the sequence reaches it. MLA: a row is the
 * normed latent followed by the rotated key part, [kv_lora + n_rope], one array; values are the
 * first kv_lora elements. GQA: keys [Hkv, n_qk] and values [Hkv, n_v] are separate arrays, each
 * head's rows together.
 *
 * Attention always works chunk by chunk and merges partial softmaxes in chunk order, so its result
 * does not depend on nodes, workers or batch.
 */
#ifndef NUMOE_DENSE_KV_H
#define NUMOE_DENSE_KV_H

#include "model/model.h"
#include "numa/arena.h"

#define KV_CHUNK 256u

struct kv_cache;

numoe_status kv_new(const struct model *model, const struct topo *topo, bool f16, unsigned n_ctx,
                    struct kv_cache **out, numoe_error *err);
void kv_free(struct kv_cache *kv);
/* Makes room for positions [0, n). NUMOE_E_MEMORY keeps what was there. Not from workers. */
numoe_status kv_reserve(struct kv_cache *kv, unsigned n, numoe_error *err);
/* Positions [chunk * KV_CHUNK, ...) are in kv_chunk_bytes() of memory that stays somebody else's,
 * cache-line aligned; in place of kv_reserve(), chunk after chunk. Only what was mapped may be
 * mapped anew. */
void kv_map(struct kv_cache *kv, unsigned chunk, void *data);
size_t kv_chunk_bytes(const struct kv_cache *kv);
/* Gives back chunks wholly at or after position n. */
void kv_truncate(struct kv_cache *kv, unsigned n);
/* Gives kv, which is empty, the first n positions of `from`, a cache of the same model and type
 * that has them. Chunks are shared; whoever of the two writes into one first gets a copy of it, in
 * kv_reserve(). NUMOE_E_INPUT_CONTEXT where n does not fit. Not from workers. */
numoe_status kv_share(struct kv_cache *kv, const struct kv_cache *from, unsigned n,
                      numoe_error *err);
/* Memory that it has, or with room for n positions would have; of a chunk that several share, an
 * equal part. */
double kv_bytes(const struct kv_cache *kv, unsigned n);
uint64_t kv_token_bytes(const struct model *model, bool f16);
/* Longest context that kv_new() accepts, which attention's buffers are made for: the model's own,
 * or a million positions if that is more. */
unsigned kv_max_context(const struct model *model);

#endif
