/* Expert statistics as a GGUF file without tensors: three keys and one array. */
#include "store/stats.h"

#include <errno.h>
#include <string.h>

#include "model/gguf.h"

#define KEY_LAYERS  "numoe.expert_stats.layer_count"
#define KEY_EXPERTS "numoe.expert_stats.expert_count"
#define KEY_COUNTS  "numoe.expert_stats.counts"
#define ARCH        "numoe-expert-stats"

/* ------------------------------------------------------------------ in */

static numoe_status read_counts(const struct gguf *g, const struct model *model,
                                struct expert_stats *out, numoe_error *err)
{
    const struct gguf_value *counts = gguf_find(g, KEY_COUNTS);
    struct expert_stats stats = {0};
    FORWARD_IF(gguf_get_u32(g, KEY_LAYERS, true, &stats.n_layer, err));
    FORWARD_IF(gguf_get_u32(g, KEY_EXPERTS, true, &stats.n_expert, err));
    if (stats.n_layer != model->hp.n_layer || stats.n_expert != model->hp.n_expert) {
        return status_fail(err, NUMOE_E_INPUT,
                           "%s: statistics of %u layers with %u experts, the model has %u with %u",
                           g->part[0].path, stats.n_layer, stats.n_expert, model->hp.n_layer,
                           model->hp.n_expert);
    }
    const size_t n = (size_t)stats.n_layer * stats.n_expert;
    if (counts == NULL || !counts->is_array || counts->n != n) {
        return status_fail(err, NUMOE_E_FILE_MODEL, "%s: key %s must be a list of %zu numbers",
                           g->part[0].path, KEY_COUNTS, n);
    }
    FORWARD_IF(mem_new(&stats.count, n, sizeof *stats.count, "expert statistics", err));
    for (size_t i = 0; i < n; i++) {
        if (!gguf_value_u64(counts, i, &stats.count[i])) {
            expert_stats_fini(&stats);
            return status_fail(err, NUMOE_E_FILE_MODEL, "%s: key %s: number %zu is not a count",
                               g->part[0].path, KEY_COUNTS, i);
        }
    }
    *out = stats;
    return NUMOE_OK;
}

numoe_status expert_stats_load(const char *path, const struct model *model,
                               struct expert_stats *stats, numoe_error *err)
{
    struct gguf *g = NULL;
    FORWARD_IF(gguf_open(path, &g, err));
    numoe_status status = read_counts(g, model, stats, err);
    gguf_close(g);
    return status;
}

void expert_stats_fini(struct expert_stats *stats)
{
    mem_free(stats->count);
    *stats = (struct expert_stats){0};
}

/* ------------------------------------------------------------------ out */

static void put_u32(FILE *f, uint32_t x)
{
    const unsigned char bytes[] = {(unsigned char)x, (unsigned char)(x >> 8),
                                   (unsigned char)(x >> 16), (unsigned char)(x >> 24)};
    fwrite(bytes, 1, sizeof bytes, f);
}

static void put_u64(FILE *f, uint64_t x)
{
    put_u32(f, (uint32_t)x);
    put_u32(f, (uint32_t)(x >> 32));
}

static void put_string(FILE *f, const char *text)
{
    put_u64(f, strlen(text));
    fputs(text, f);
}

static void put_file(FILE *f, const struct model *model, const uint64_t *count)
{
    const uint64_t n = (uint64_t)model->hp.n_layer * model->hp.n_expert;
    fwrite("GGUF", 1, 4, f);
    put_u32(f, 3);
    put_u64(f, 0); /* tensors */
    put_u64(f, 4); /* keys */
    put_string(f, "general.architecture");
    put_u32(f, GGUF_STRING);
    put_string(f, ARCH);
    put_string(f, KEY_LAYERS);
    put_u32(f, GGUF_U32);
    put_u32(f, model->hp.n_layer);
    put_string(f, KEY_EXPERTS);
    put_u32(f, GGUF_U32);
    put_u32(f, model->hp.n_expert);
    put_string(f, KEY_COUNTS);
    put_u32(f, GGUF_ARRAY);
    put_u32(f, GGUF_U64);
    put_u64(f, n);
    for (uint64_t i = 0; i < n; i++) {
        put_u64(f, count[i]);
    }
}

numoe_status expert_stats_save(FILE *out, const struct model *model, const uint64_t *count,
                               numoe_error *err)
{
    errno = 0;
    put_file(out, model, count);
    if (fflush(out) != 0 || ferror(out)) {
        return status_fail(err, NUMOE_E_FILE_WRITE, "expert statistics cannot be written: %s",
                           errno != 0 ? strerror(errno) : "the stream has failed before");
    }
    return NUMOE_OK;
}
