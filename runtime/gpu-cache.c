/* Owns the blocks of the KV cache in GPU memory: who has which. Blocks that several sequences have
 * are copied before one of them writes; the copies go with the next step.
 */
#include "runtime/gpu-impl.h"

static uint32_t *row_of(const struct gpu *g, const struct gpu_cache *c)
{
    uint32_t *table = exchange_at(g->h, g->header.table_at);
    return table + (size_t)c->row * g->header.max_seq_block;
}

static numoe_status take_row(struct gpu *g, struct gpu_cache *c, numoe_error *err)
{
    for (uint32_t row = 0; row < g->header.max_seq; row++) {
        if (!g->row_used[row]) {
            g->row_used[row] = true;
            c->row = row;
            return NUMOE_OK;
        }
    }
    return status_fail(err, NUMOE_E_MEMORY, "the GPU's KV cache is made for %u sequences at a time",
                       g->header.max_seq);
}

static numoe_status take_block(struct gpu *g, uint32_t *block, numoe_error *err)
{
    if (g->n_free == 0) {
        return status_fail(err, NUMOE_E_MEMORY,
                           "KV cache in GPU memory is full: it holds %llu tokens; ask for a longer "
                           "context when the model is opened",
                           (unsigned long long)gpu_kv_tokens(g));
    }
    *block = g->free_block[--g->n_free];
    g->n_user[*block] = 1;
    return NUMOE_OK;
}

static void drop_block(struct gpu *g, uint32_t block)
{
    if (--g->n_user[block] == 0) {
        g->free_block[g->n_free++] = block;
    }
}

/* Makes block i the cache's own, so that it may be written. */
static numoe_status own_block(struct gpu *g, struct gpu_cache *c, uint32_t i, numoe_error *err)
{
    uint32_t *row = row_of(g, c), block = 0;
    if (i < c->n_block && g->n_user[row[i]] == 1) {
        return NUMOE_OK;
    }
    if (i < c->n_block && g->n_copy == g->header.max_seq) {
        return status_fail(err, NUMOE_E_MEMORY, "too many shared KV blocks in one step");
    }
    FORWARD_IF(take_block(g, &block, err));
    if (i < c->n_block) {
        g->copy[g->n_copy++] = (struct exchange_copy){.from = row[i], .to = block};
        drop_block(g, row[i]);
    } else {
        c->n_block = i + 1;
    }
    row[i] = block;
    return NUMOE_OK;
}

numoe_status gpu_cache_reserve(struct gpu *g, struct gpu_cache *c, unsigned n_kept, unsigned n,
                               numoe_error *err)
{
    const uint32_t size = g->header.block_tokens, end = (n + size - 1) / size;
    if (end > g->header.max_seq_block) {
        return status_fail(err, NUMOE_E_MEMORY,
                           "%u positions: the GPU's KV cache holds %llu; ask for a longer context "
                           "when the model is opened",
                           n, (unsigned long long)gpu_kv_tokens(g));
    }
    if (c->n_block == 0 && n > 0) {
        FORWARD_IF(take_row(g, c, err));
    }
    for (uint32_t i = n_kept / size; i < end; i++) {
        numoe_status status = own_block(g, c, i, err);
        if (status != NUMOE_OK) {
            if (c->n_block == 0) {
                g->row_used[c->row] = false;
            }
            return status;
        }
    }
    return NUMOE_OK;
}

void gpu_cache_truncate(struct gpu *g, struct gpu_cache *c, unsigned n)
{
    const uint32_t keep = (n + g->header.block_tokens - 1) / g->header.block_tokens;
    if (c->n_block <= keep) {
        return;
    }
    while (c->n_block > keep) {
        drop_block(g, row_of(g, c)[--c->n_block]);
    }
    if (c->n_block == 0) {
        g->row_used[c->row] = false;
    }
}

numoe_status gpu_cache_share(struct gpu *g, struct gpu_cache *c, const struct gpu_cache *from,
                             unsigned n, numoe_error *err)
{
    const uint32_t n_block = (n + g->header.block_tokens - 1) / g->header.block_tokens;
    if (n == 0) {
        return NUMOE_OK;
    }
    FORWARD_IF(take_row(g, c, err));
    for (uint32_t i = 0; i < n_block; i++) {
        const uint32_t block = row_of(g, from)[i];
        row_of(g, c)[i] = block;
        g->n_user[block]++;
    }
    c->n_block = n_block;
    return NUMOE_OK;
}

void gpu_cache_forget_all(struct gpu *g)
{
    g->n_free = g->n_copy = 0;
    for (uint32_t i = g->header.n_block; i > 0; i--) {
        g->free_block[g->n_free++] = i - 1;
        g->n_user[i - 1] = 0;
    }
    for (uint32_t row = 0; row < g->header.max_seq; row++) {
        g->row_used[row] = false;
    }
}
