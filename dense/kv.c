/* Memory of KV caches: chunks come and go as a sequence grows and is cut. What is written into them
 * and by whom is attention's affair.
 */
#include "dense/kv.h"

#include "base/mem.h"
#include "dense/kv-chunk.h"

static struct kv_shape shape_of(const struct model *model, bool f16)
{
    const struct model_hparams *hp = &model->hp;
    struct kv_shape s = {.elem_bytes = f16 ? 2 : 4};
    if (hp->attn == ATTN_MLA) {
        s.n_head = 1;
        s.n_key = hp->kv_lora_rank + hp->n_rope;
    } else {
        s.n_head = hp->n_head_kv;
        s.n_key = hp->n_qk;
        s.n_value = hp->n_v;
        s.value_offset = (size_t)s.n_head * KV_CHUNK * s.n_key * s.elem_bytes;
    }
    const size_t row = (size_t)s.n_head * (s.n_key + s.n_value) * s.elem_bytes;
    s.layer_bytes = round_up(KV_CHUNK * row, CACHE_LINE_BYTES);
    s.chunk_bytes = s.layer_bytes * hp->n_layer;
    return s;
}

numoe_status kv_new(const struct model *model, const struct topo *topo, bool f16, unsigned n_ctx,
                    struct kv_cache **out, numoe_error *err)
{
    struct kv_cache *kv = NULL;
    if (n_ctx > kv_max_context(model)) {
        return status_fail(err, NUMOE_E_INPUT_CONTEXT,
                           "a context of %u is too long: at most %u positions are possible", n_ctx,
                           kv_max_context(model));
    }
    FORWARD_IF(mem_new(&kv, 1, sizeof *kv, "KV cache", err));
    const size_t max_chunk = ((size_t)n_ctx + KV_CHUNK - 1) / KV_CHUNK;
    numoe_status status = mem_new(&kv->chunk, max_chunk, sizeof *kv->chunk, "KV cache", err);
    if (status != NUMOE_OK) {
        mem_free(kv);
        return status;
    }
    kv->topo = topo;
    kv->f16 = f16;
    kv->n_ctx = n_ctx;
    kv->shape = shape_of(model, f16);
    *out = kv;
    return NUMOE_OK;
}

void kv_free(struct kv_cache *kv)
{
    if (kv == NULL) {
        return;
    }
    kv_truncate(kv, 0);
    mem_free(kv->chunk);
    mem_free(kv);
}

static numoe_status add_chunk(struct kv_cache *kv, numoe_error *err)
{
    struct kv_chunk chunk = {.arena = NULL};
    const unsigned in = kv->n_chunk % kv->topo->n_node;
    FORWARD_IF(node_arena_new(kv->topo, in, "KV cache", &chunk.arena, err));
    numoe_status status = node_arena_alloc(chunk.arena, kv->shape.chunk_bytes, &chunk.data, err);
    if (status != NUMOE_OK) {
        node_arena_free(chunk.arena);
        return status;
    }
    kv->chunk[kv->n_chunk++] = chunk;
    return NUMOE_OK;
}

numoe_status kv_reserve(struct kv_cache *kv, unsigned n, numoe_error *err)
{
    if (n > kv->n_ctx) {
        return status_fail(err, NUMOE_E_INPUT_CONTEXT, "%u positions do not fit a context of %u", n,
                           kv->n_ctx);
    }
    while ((size_t)kv->n_chunk * KV_CHUNK < n) {
        FORWARD_IF(add_chunk(kv, err));
    }
    return NUMOE_OK;
}

void kv_truncate(struct kv_cache *kv, unsigned n)
{
    const size_t keep = ((size_t)n + KV_CHUNK - 1) / KV_CHUNK;
    while (kv->n_chunk > keep) {
        node_arena_free(kv->chunk[--kv->n_chunk].arena);
    }
}

unsigned kv_max_context(const struct model *model)
{
    return MAX(model->hp.n_ctx_train, 1u << 20);
}

uint64_t kv_token_bytes(const struct model *model, bool f16)
{
    return shape_of(model, f16).chunk_bytes / KV_CHUNK;
}
