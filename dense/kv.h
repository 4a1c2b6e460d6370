/* The KV cache of one sequence. Rows of KV_CHUNK consecutive positions of one layer lie together;
 * a chunk is allocated when the sequence reaches it. Chunk c lives on node c % n_node of the pools,
 * or on the node that evaluates the sequence alone (kv_move). MLA: a row is the normed latent
 * followed by the rotated key part, [kv_lora + n_rope], one array; values are the first kv_lora
 * elements. GQA: keys [Hkv, n_qk] and values [Hkv, n_v] are separate arrays, each head's rows
 * together.
 *
 * Attention always works chunk by chunk and merges partial softmaxes in chunk order, so its result
 * does not depend on nodes, workers or batch.
 */
#ifndef NUMOE_DENSE_KV_H
#define NUMOE_DENSE_KV_H

#include "model/model.h"
#include "numa/arena.h"
#include "numa/pool.h"

#define KV_CHUNK  256u
#define KV_SPREAD (-1) /* not one node's: chunks lie on the nodes in turn */

/* KV_Q8_0: each row in blocks of 32 elements, an f16 scale and 32 bytes, as GGUF's Q8_0; the last
 * block of a row is filled up with zeros. */
enum kv_type { KV_F32, KV_F16, KV_Q8_0 };

struct kv_cache;

/* Spread over the nodes of the pools, which must outlive it. */
numoe_status kv_new(const struct model *model, const struct topo *topo, struct pools *pools,
                    enum kv_type type, unsigned n_ctx, struct kv_cache **out, numoe_error *err);
void kv_free(struct kv_cache *kv);
/* Makes room for positions [0, n). NUMOE_E_MEMORY leaves it as it was, and keeps nothing of what it
 * would have needed. Not from workers. */
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
 * kv_reserve(). They stay where they are until kv_move(). NUMOE_E_INPUT_CONTEXT where n does not
 * fit. Not from workers. */
numoe_status kv_share(struct kv_cache *kv, const struct kv_cache *from, unsigned n,
                      numoe_error *err);
/* Where chunks are to be: all on one node of the pools, or KV_SPREAD. Workers of the nodes copy
 * what is elsewhere; of a chunk that several share there is one copy a node. NUMOE_E_MEMORY leaves
 * everything as it was. Not of a cache with mapped chunks, not from workers. */
numoe_status kv_move(struct kv_cache *kv, int home, numoe_error *err);
/* KV_SPREAD for chunks to come; those that are there stay where they are. */
void kv_stay(struct kv_cache *kv);
int kv_home(const struct kv_cache *kv);
/* Memory that it has, or with room for n positions would have; of a chunk that several share, an
 * equal part. */
double kv_bytes(const struct kv_cache *kv, unsigned n);
bool kv_is_empty(const struct kv_cache *kv); /* has no memory */
uint64_t kv_token_bytes(const struct model *model, enum kv_type type);
/* Longest context that kv_new() accepts, which attention's buffers are made for: the model's own,
 * or a million positions if that is more. */
unsigned kv_max_context(const struct model *model);

#endif
