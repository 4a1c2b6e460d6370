/* Memory of KV caches: chunks come and go as a sequence grows and is cut, and are shared by
 * sequences that begin alike, and move when a sequence is evaluated by other nodes. What is written
 * into them and by whom is attention's affair.
 */
#include "dense/kv.h"

#include <string.h>

#include "base/mem.h"
#include "dense/kv-chunk.h"

static struct kv_shape shape_of(const struct model *model, enum kv_type type)
{
    const struct model_hparams *hp = &model->hp;
    struct kv_shape s = {.n_head = 1};
    size_t row;
    if (hp->attn == ATTN_MLA) {
        s.n_key = hp->kv_lora_rank + hp->n_rope;
        s.key_bytes = s.value_bytes = row = kv_row_bytes(type, s.n_key);
    } else {
        s.n_head = hp->n_head_kv;
        s.n_key = hp->n_qk;
        s.n_value = hp->n_v;
        s.key_bytes = kv_row_bytes(type, s.n_key);
        s.value_bytes = kv_row_bytes(type, s.n_value);
        s.value_offset = s.n_head * KV_CHUNK * s.key_bytes;
        row = s.n_head * (s.key_bytes + s.value_bytes);
    }
    s.layer_bytes = round_up(KV_CHUNK * row, CACHE_LINE_BYTES);
    s.chunk_bytes = s.layer_bytes * hp->n_layer;
    return s;
}

numoe_status kv_new(const struct model *model, const struct topo *topo, struct pools *pools,
                    enum kv_type type, unsigned n_ctx, struct kv_cache **out, numoe_error *err)
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
    kv->pools = pools;
    kv->home = KV_SPREAD;
    kv->type = type;
    kv->n_ctx = n_ctx;
    kv->shape = shape_of(model, type);
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

/* Node of chunk i. */
static unsigned node_of(const struct kv_cache *kv, int home, unsigned i)
{
    return home == KV_SPREAD ? i % pools_n_node(kv->pools) : (unsigned)home;
}

static numoe_status new_chunk(const struct kv_cache *kv, unsigned in, struct kv_chunk *out,
                              numoe_error *err)
{
    struct kv_block *block;
    FORWARD_IF(mem_new(&block, 1, sizeof *block, "KV cache", err));
    block->n_user = 1;
    block->twin = block;
    numoe_status status = node_arena_new(kv->topo, in, "KV cache", &block->arena, err);
    if (status != NUMOE_OK) {
        goto free_block;
    }
    status = node_arena_alloc(block->arena, kv->shape.chunk_bytes, &block->data, err);
    if (status != NUMOE_OK) {
        goto free_arena;
    }
    *out = (struct kv_chunk){.block = block, .data = block->data};
    return NUMOE_OK;

free_arena:
    node_arena_free(block->arena);
free_block:
    mem_free(block);
    return status;
}

static void leave_twins(struct kv_block *block)
{
    struct kv_block *before = block;
    while (before->twin != block) {
        before = before->twin;
    }
    before->twin = block->twin;
    block->twin = block;
}

static void drop_chunk(struct kv_chunk *chunk)
{
    if (chunk->block == NULL) {
        return; /* mapped */
    }
    if (--chunk->block->n_user == 0) {
        leave_twins(chunk->block);
        node_arena_free(chunk->block->arena);
        mem_free(chunk->block);
    }
}

/* Makes chunk i one that this cache alone has, so that it may be written. */
static numoe_status own_chunk(struct kv_cache *kv, unsigned i, numoe_error *err)
{
    struct kv_chunk copy;
    const unsigned in = node_of(kv, kv->home, i);
    if (i == kv->n_chunk) {
        FORWARD_IF(new_chunk(kv, in, &kv->chunk[i], err));
        kv->n_chunk++;
    } else if (kv->chunk[i].block->n_user > 1) {
        FORWARD_IF(new_chunk(kv, in, &copy, err));
        memcpy(copy.data, kv->chunk[i].data, kv->shape.chunk_bytes);
        drop_chunk(&kv->chunk[i]);
        kv->chunk[i] = copy;
    } else {
        leave_twins(kv->chunk[i].block);
    }
    return NUMOE_OK;
}

numoe_status kv_reserve(struct kv_cache *kv, unsigned n, numoe_error *err)
{
    if (n > kv->n_ctx) {
        return status_fail(err, NUMOE_E_INPUT_CONTEXT, "%u positions do not fit a context of %u", n,
                           kv->n_ctx);
    }
    numoe_status status = NUMOE_OK;
    for (unsigned i = kv->n_ready / KV_CHUNK; status == NUMOE_OK && (size_t)i * KV_CHUNK < n; i++) {
        status = own_chunk(kv, i, err);
    }
    if (status != NUMOE_OK) {
        kv_truncate(kv, kv->n_ready);
        return status;
    }
    kv->n_ready = MAX(kv->n_ready, n);
    return NUMOE_OK;
}

void kv_map(struct kv_cache *kv, unsigned chunk, void *data)
{
    kv->chunk[chunk] = (struct kv_chunk){.data = data};
    kv->n_chunk = MAX(kv->n_chunk, chunk + 1);
}

size_t kv_chunk_bytes(const struct kv_cache *kv)
{
    return kv->shape.chunk_bytes;
}

void kv_truncate(struct kv_cache *kv, unsigned n)
{
    const size_t keep = ((size_t)n + KV_CHUNK - 1) / KV_CHUNK;
    while (kv->n_chunk > keep) {
        drop_chunk(&kv->chunk[--kv->n_chunk]);
    }
    kv->n_ready = MIN(kv->n_ready, n);
}

numoe_status kv_share(struct kv_cache *kv, const struct kv_cache *from, unsigned n,
                      numoe_error *err)
{
    if (n > kv->n_ctx) {
        return status_fail(err, NUMOE_E_INPUT_CONTEXT, "%u positions do not fit a context of %u", n,
                           kv->n_ctx);
    }
    for (unsigned i = 0; (size_t)i * KV_CHUNK < n; i++) {
        kv->chunk[i] = from->chunk[i];
        kv->chunk[i].block->n_user++;
        kv->n_chunk++;
    }
    kv->n_ready = n;
    kv->is_mixed = true;
    return NUMOE_OK;
}

double kv_bytes(const struct kv_cache *kv, unsigned n)
{
    const unsigned n_chunk = (unsigned)(((size_t)n + KV_CHUNK - 1) / KV_CHUNK);
    double sum = 0;
    for (unsigned i = 0; i < MAX(kv->n_chunk, n_chunk); i++) {
        const unsigned n_user = i < kv->n_chunk ? kv->chunk[i].block->n_user : 1;
        sum += (double)kv->shape.chunk_bytes / n_user;
    }
    return sum;
}

bool kv_is_empty(const struct kv_cache *kv)
{
    return kv->n_chunk == 0;
}

/* ------------------------------------------------------------------ moving */

struct move {
    const struct kv_cache *kv;
    struct kv_chunk *to; /* [n_chunk]; without a block: the chunk stays */
};

static bool is_new(const struct kv_chunk *to)
{
    return to->block != NULL && to->block->n_user == 1;
}

/* By workers of the node that it goes to: where pages cannot be bound, the first touch places them.
 */
static void copy_chunks(struct worker *w, void *arg)
{
    const struct move *move = arg;
    uint32_t lo, hi; /* cache lines */
    share_static((uint32_t)(move->kv->shape.chunk_bytes / CACHE_LINE_BYTES), w->iw, w->nw, &lo,
                 &hi);
    const size_t from = (size_t)lo * CACHE_LINE_BYTES, bytes = (size_t)(hi - lo) * CACHE_LINE_BYTES;
    for (unsigned i = 0; i < move->kv->n_chunk; i++) {
        const struct kv_chunk *to = &move->to[i];
        if (is_new(to) && node_arena_node(to->block->arena) == w->in) {
            memcpy(to->data + from, move->kv->chunk[i].data + from, bytes);
        }
    }
}

/* A copy of a shared chunk that somebody has brought to that node already. */
static struct kv_block *find_twin(struct kv_block *block, unsigned in)
{
    struct kv_block *twin = block->twin;
    while (twin != block && node_arena_node(twin->arena) != in) {
        twin = twin->twin;
    }
    return twin == block ? NULL : twin;
}

static numoe_status find_home(const struct kv_cache *kv, unsigned i, unsigned in,
                              struct kv_chunk *to, numoe_error *err)
{
    struct kv_block *block = kv->chunk[i].block;
    if (node_arena_node(block->arena) == in) {
        return NUMOE_OK;
    }
    struct kv_block *twin = find_twin(block, in);
    if (twin == NULL) {
        return new_chunk(kv, in, to, err);
    }
    twin->n_user++;
    *to = (struct kv_chunk){.block = twin, .data = twin->data};
    return NUMOE_OK;
}

/* The chunk changes places with its copy, which is a twin as long as others keep the original. */
static void change_places(struct kv_chunk *chunk, struct kv_chunk *to)
{
    const struct kv_chunk old = *chunk;
    if (is_new(to) && (old.block->n_user > 1 || old.block->twin != old.block)) {
        to->block->twin = old.block->twin;
        old.block->twin = to->block;
    }
    *chunk = *to;
    *to = old;
}

numoe_status kv_move(struct kv_cache *kv, int home, numoe_error *err)
{
    struct move move = {.kv = kv};
    numoe_status status = NUMOE_OK;
    bool copies = false;
    if (home == kv->home && !kv->is_mixed) {
        return NUMOE_OK;
    }
    FORWARD_IF(mem_new(&move.to, MAX(kv->n_chunk, 1u), sizeof *move.to, "KV cache", err));
    for (unsigned i = 0; status == NUMOE_OK && i < kv->n_chunk; i++) {
        status = find_home(kv, i, node_of(kv, home, i), &move.to[i], err);
        copies = copies || is_new(&move.to[i]);
    }
    if (status == NUMOE_OK && copies) {
        pools_run(kv->pools, copy_chunks, &move);
    }
    for (unsigned i = 0; i < kv->n_chunk; i++) {
        if (move.to[i].block != NULL) {
            if (status == NUMOE_OK) {
                change_places(&kv->chunk[i], &move.to[i]);
            }
            drop_chunk(&move.to[i]);
        }
    }
    mem_free(move.to);
    if (status == NUMOE_OK) {
        kv->home = home;
        kv->is_mixed = false;
    }
    return status;
}

void kv_stay(struct kv_cache *kv)
{
    kv->home = KV_SPREAD;
    kv->is_mixed = false;
}

int kv_home(const struct kv_cache *kv)
{
    return kv->home;
}

unsigned kv_max_context(const struct model *model)
{
    return MAX(model->hp.n_ctx_train, 1u << 20);
}

uint64_t kv_token_bytes(const struct model *model, enum kv_type type)
{
    return shape_of(model, type).chunk_bytes / KV_CHUNK;
}

static void store_blocks(const struct kern *kern, const float *x, unsigned n, uint8_t *to)
{
    for (unsigned i = 0; i < n; i += 32, to += KV_Q8_BLOCK) {
        float part[32] = {0}, d;
        int16_t sums[2];
        uint16_t scale;
        memcpy(part, x + i, MIN(32u, n - i) * sizeof(float));
        kern->quantize(part, 32, (int8_t *)to + 2, &d, sums);
        kern->f32_to_f16(&d, 1, &scale);
        memcpy(to, &scale, 2);
    }
}

void kv_store_row(const struct kern *kern, enum kv_type type, const float *x, unsigned n, void *row)
{
    switch (type) {
    case KV_F32:
        memcpy(row, x, n * sizeof(float));
        break;
    case KV_F16:
        kern->f32_to_f16(x, n, row);
        break;
    case KV_Q8_0:
        store_blocks(kern, x, n, row);
        break;
    }
}
