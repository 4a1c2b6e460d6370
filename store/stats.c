/* Expert statistics in memory, and as a GGUF file without tensors. */
#include "store/stats.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "model/gguf.h"

#define KEY_LAYERS  "numoe.expert_stats.layer_count"
#define KEY_EXPERTS "numoe.expert_stats.expert_count"
#define KEY_USED    "numoe.expert_stats.expert_used_count"
#define KEY_COUNTS  "numoe.expert_stats.counts"
#define KEY_WEIGHTS "numoe.expert_stats.weight_sums"
#define KEY_PAIRS   "numoe.expert_stats.pair_counts"
#define ARCH        "numoe-expert-stats"

#define MAX_LAYER         65536u
#define MAX_EXPERT        65536u
#define MAX_IMATRIX_BYTES ((size_t)4 << 30)

/* ------------------------------------------------------------------ in memory */

static size_t n_expert_all(const struct expert_stats *s)
{
    return (size_t)s->n_layer * s->n_expert;
}

static size_t n_pair_all(const struct expert_stats *s)
{
    return s->n_layer * expert_stats_pairs(s->n_expert);
}

numoe_status expert_stats_new(unsigned n_layer, unsigned n_expert, unsigned n_used, bool with_pairs,
                              struct expert_stats *stats, numoe_error *err)
{
    static const char what[] = "expert statistics";
    struct expert_stats s = {.n_layer = n_layer, .n_expert = n_expert, .n_used = n_used};
    if (n_layer > MAX_LAYER || n_expert > MAX_EXPERT) {
        return status_fail(err, NUMOE_E_INPUT,
                           "statistics of %u layers with %u experts: at most %u with %u", n_layer,
                           n_expert, MAX_LAYER, MAX_EXPERT);
    }
    numoe_status status = mem_new(&s.count, n_expert_all(&s), sizeof *s.count, what, err);
    if (status == NUMOE_OK) {
        status = mem_new(&s.weight, n_expert_all(&s), sizeof *s.weight, what, err);
    }
    if (status == NUMOE_OK && with_pairs) {
        status = mem_new(&s.pair, n_pair_all(&s), sizeof *s.pair, what, err);
    }
    if (status != NUMOE_OK) {
        expert_stats_fini(&s);
        return status;
    }
    *stats = s;
    return NUMOE_OK;
}

void expert_stats_fini(struct expert_stats *stats)
{
    mem_free(stats->count);
    mem_free(stats->weight);
    mem_free(stats->pair);
    *stats = (struct expert_stats){0};
}

void expert_stats_count(struct expert_stats *stats, unsigned il, unsigned k, const int32_t *ids,
                        const float *weights)
{
    const size_t row = (size_t)il * stats->n_expert, n = stats->n_expert;
    uint64_t *pair = stats->pair != NULL ? stats->pair + il * expert_stats_pairs(n) : NULL;
    for (unsigned i = 0; i < k; i++) {
        stats->count[row + (size_t)ids[i]]++;
        if (stats->weight != NULL) {
            stats->weight[row + (size_t)ids[i]] += (double)weights[i];
        }
        for (unsigned j = 0; pair != NULL && j < i; j++) {
            const size_t a = (size_t)MIN(ids[i], ids[j]), b = (size_t)MAX(ids[i], ids[j]);
            pair[expert_stats_pair(n, a, b)]++;
        }
    }
}

static void forget_weights(struct expert_stats *s)
{
    mem_free(s->weight);
    s->weight = NULL;
}

static void forget_pairs(struct expert_stats *s)
{
    mem_free(s->pair);
    s->pair = NULL;
}

static uint64_t add_counts(uint64_t a, uint64_t b)
{
    return b > UINT64_MAX - a ? UINT64_MAX : a + b;
}

numoe_status expert_stats_merge(struct expert_stats *to, const struct expert_stats *from,
                                numoe_error *err)
{
    if (to->n_layer != from->n_layer || to->n_expert != from->n_expert ||
        (to->n_used != 0 && from->n_used != 0 && to->n_used != from->n_used)) {
        return status_fail(err, NUMOE_E_INPUT,
                           "statistics of %u layers with %u experts, %u of them used, do not go "
                           "together with those of %u layers with %u experts, %u used",
                           from->n_layer, from->n_expert, from->n_used, to->n_layer, to->n_expert,
                           to->n_used);
    }
    to->n_used = MAX(to->n_used, from->n_used);
    if (from->weight == NULL) {
        forget_weights(to);
    }
    if (from->pair == NULL) {
        forget_pairs(to);
    }
    for (size_t i = 0; i < n_expert_all(to); i++) {
        to->count[i] = add_counts(to->count[i], from->count[i]);
        if (to->weight != NULL) {
            to->weight[i] += from->weight[i];
        }
    }
    for (size_t i = 0; to->pair != NULL && i < n_pair_all(to); i++) {
        to->pair[i] = add_counts(to->pair[i], from->pair[i]);
    }
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ what they say */

static int compare_down(const void *va, const void *vb)
{
    const uint64_t a = *(const uint64_t *)va, b = *(const uint64_t *)vb;
    return a > b ? -1 : a < b;
}

void expert_stats_sort(const uint64_t *count, size_t n, uint64_t *sorted)
{
    if (n > 0) {
        memcpy(sorted, count, n * sizeof *sorted);
        qsort(sorted, n, sizeof *sorted, compare_down);
    }
}

static double sum_of(const uint64_t *count, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += (double)count[i];
    }
    return sum;
}

double expert_stats_coverage(const uint64_t *sorted, size_t n, double part)
{
    const double total = sum_of(sorted, n), at = part * (double)n;
    const size_t whole = MIN((size_t)at, n);
    if (total == 0) {
        return 0;
    }
    double sum = sum_of(sorted, whole);
    if (whole < n) {
        sum += (at - (double)whole) * (double)sorted[whole];
    }
    return sum / total;
}

double placement_coverage(const struct shapes *shapes, const struct expert_stats *stats, double part)
{
    const size_t n = (size_t)shapes->n_layer * shapes->n_expert;
    uint64_t *sorted;
    size_t n_moe = 0;
    if (mem_new(&sorted, n, sizeof *sorted, "expert statistics", NULL) != NUMOE_OK) {
        return part; /* as if all were used alike */
    }
    for (unsigned is = 0; is < shapes->n; is++) {
        n_moe += shapes->shape[is].slot == SLOT_DOWN_EXPS;
    }
    expert_stats_sort(stats->count, n, sorted);
    const double served = expert_stats_coverage(sorted, n_moe * shapes->n_expert, part);
    mem_free(sorted);
    return served;
}

double expert_stats_imbalance(const uint64_t *count, size_t n)
{
    const double total = sum_of(count, n);
    uint64_t most = 0;
    for (size_t i = 0; i < n; i++) {
        most = MAX(most, count[i]);
    }
    return total > 0 ? (double)most * (double)n / total : 0;
}

/* ------------------------------------------------------------------ in */

static numoe_status fail_list(const struct gguf *g, const char *key, size_t n, numoe_error *err)
{
    return status_fail(err, NUMOE_E_FILE_MODEL, "%s: key %s must be a list of %zu numbers",
                       g->part[0].path, key, n);
}

/* *present: whether the key is there; then it has n elements. */
static numoe_status find_list(const struct gguf *g, const char *key, size_t n,
                              const struct gguf_value **out, numoe_error *err)
{
    *out = gguf_find(g, key);
    return *out == NULL || ((*out)->is_array && (*out)->n == n) ? NUMOE_OK
                                                                : fail_list(g, key, n, err);
}

static numoe_status read_counts(const struct gguf *g, const char *key, size_t n, uint64_t *out,
                                numoe_error *err)
{
    const struct gguf_value *list;
    FORWARD_IF(find_list(g, key, n, &list, err));
    if (list == NULL) {
        return fail_list(g, key, n, err);
    }
    for (size_t i = 0; i < n; i++) {
        if (!gguf_value_u64(list, i, &out[i])) {
            return status_fail(err, NUMOE_E_FILE_MODEL, "%s: key %s: number %zu is not a count",
                               g->part[0].path, key, i);
        }
    }
    return NUMOE_OK;
}

static numoe_status read_weights(const struct gguf *g, struct expert_stats *s, numoe_error *err)
{
    const struct gguf_value *list;
    FORWARD_IF(find_list(g, KEY_WEIGHTS, n_expert_all(s), &list, err));
    if (list == NULL) {
        forget_weights(s);
        return NUMOE_OK;
    }
    for (size_t i = 0; i < n_expert_all(s); i++) {
        if (!gguf_value_f64(list, i, &s->weight[i]) || s->weight[i] - s->weight[i] != 0) {
            return status_fail(err, NUMOE_E_FILE_MODEL, "%s: key %s: number %zu is not a weight",
                               g->part[0].path, KEY_WEIGHTS, i);
        }
    }
    return NUMOE_OK;
}

/* The sizes of lists are checked against the file before memory is taken for them. */
static numoe_status read_all(const struct gguf *g, struct expert_stats *out, numoe_error *err)
{
    const struct gguf_value *list, *pairs;
    uint32_t n_layer, n_expert, n_used = 0;
    FORWARD_IF(gguf_get_u32(g, KEY_LAYERS, true, &n_layer, err));
    FORWARD_IF(gguf_get_u32(g, KEY_EXPERTS, true, &n_expert, err));
    FORWARD_IF(gguf_get_u32(g, KEY_USED, false, &n_used, err));
    if (n_layer > MAX_LAYER || n_expert > MAX_EXPERT || n_used > n_expert) {
        return status_fail(err, NUMOE_E_FILE_MODEL, "%s: %u layers with %u experts, %u used?",
                           g->part[0].path, n_layer, n_expert, n_used);
    }
    FORWARD_IF(find_list(g, KEY_COUNTS, (size_t)n_layer * n_expert, &list, err));
    FORWARD_IF(find_list(g, KEY_PAIRS, n_layer * expert_stats_pairs(n_expert), &pairs, err));
    if (list == NULL) {
        return fail_list(g, KEY_COUNTS, (size_t)n_layer * n_expert, err);
    }
    FORWARD_IF(expert_stats_new(n_layer, n_expert, n_used, pairs != NULL, out, err));
    FORWARD_IF(read_counts(g, KEY_COUNTS, n_expert_all(out), out->count, err));
    if (pairs != NULL) {
        FORWARD_IF(read_counts(g, KEY_PAIRS, n_pair_all(out), out->pair, err));
    }
    return read_weights(g, out, err);
}

static numoe_status read_gguf(const char *path, struct expert_stats *stats, numoe_error *err)
{
    struct gguf *g = NULL;
    struct expert_stats s = {0};
    FORWARD_IF(gguf_open(path, &g, err));
    numoe_status status =
        imatrix_is(g) ? imatrix_from_gguf(g, &s, err) : read_all(g, &s, err);
    gguf_close(g);
    if (status != NUMOE_OK) {
        expert_stats_fini(&s);
        return status;
    }
    *stats = s;
    return NUMOE_OK;
}

/* A whole file, mem_free(). */
static numoe_status read_bytes(FILE *f, const char *path, unsigned char **out, size_t *bytes,
                               numoe_error *err)
{
    struct stat st;
    if (fstat(fileno(f), &st) != 0 || (uint64_t)st.st_size > MAX_IMATRIX_BYTES) {
        return status_fail(err, NUMOE_E_FILE_FORMAT, "%s: too large for expert statistics", path);
    }
    const size_t n = (size_t)st.st_size;
    FORWARD_IF(mem_new(out, n, 1, "an importance matrix", err));
    errno = 0;
    rewind(f);
    *bytes = fread(*out, 1, n, f);
    if (*bytes != n) {
        mem_free(*out);
        return status_fail(err, NUMOE_E_FILE_OPEN, "%s: %s", path,
                           errno != 0 ? strerror(errno) : "cannot be read whole");
    }
    return NUMOE_OK;
}

numoe_status expert_stats_read(const char *path, struct expert_stats *stats, numoe_error *err)
{
    char magic[4] = "";
    unsigned char *data = NULL;
    size_t bytes = 0;
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        return status_fail(err, NUMOE_E_FILE_OPEN, "%s: %s", path, strerror(errno));
    }
    const bool is_gguf = fread(magic, 1, 4, f) == 4 && memcmp(magic, "GGUF", 4) == 0;
    numoe_status status = is_gguf ? NUMOE_OK : read_bytes(f, path, &data, &bytes, err);
    fclose(f);
    if (is_gguf) {
        return read_gguf(path, stats, err);
    }
    if (status == NUMOE_OK) {
        status = imatrix_parse(data, bytes, path, stats, err);
        mem_free(data);
    }
    return status;
}

/* Importance matrices count their layers by the last one that has an entry: fewer than the model's
 * are filled up, and those after the ones that run (they predict further) are left out. */
static numoe_status fit(const char *path, const struct model_hparams *hp, struct expert_stats *s,
                        numoe_error *err)
{
    const bool fits = s->is_foreign ? s->n_layer <= hp->n_layer + hp->n_nextn
                                    : s->n_layer == hp->n_layer;
    if (!fits || s->n_expert != hp->n_expert) {
        return status_fail(err, NUMOE_E_INPUT,
                           "%s: statistics of %u layers with %u experts, the model has %u with %u",
                           path, s->n_layer, s->n_expert, hp->n_layer, hp->n_expert);
    }
    if (s->n_layer < hp->n_layer) {
        const size_t had = n_expert_all(s);
        FORWARD_IF(mem_grow(&s->count, (size_t)hp->n_layer * s->n_expert, sizeof *s->count,
                            "expert statistics", err));
        memset(s->count + had, 0, ((size_t)hp->n_layer * s->n_expert - had) * sizeof *s->count);
    }
    s->n_layer = hp->n_layer;
    return NUMOE_OK;
}

numoe_status expert_stats_load(const char *path, const struct model *model,
                               struct expert_stats *stats, numoe_error *err)
{
    struct expert_stats s;
    FORWARD_IF(expert_stats_read(path, &s, err));
    numoe_status status = fit(path, &model->hp, &s, err);
    if (status != NUMOE_OK) {
        expert_stats_fini(&s);
        return status;
    }
    *stats = s;
    return NUMOE_OK;
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

static void put_number(FILE *f, const char *key, uint32_t value)
{
    put_string(f, key);
    put_u32(f, GGUF_U32);
    put_u32(f, value);
}

static void put_counts(FILE *f, const char *key, const uint64_t *count, size_t n)
{
    put_string(f, key);
    put_u32(f, GGUF_ARRAY);
    put_u32(f, GGUF_U64);
    put_u64(f, n);
    for (size_t i = 0; i < n; i++) {
        put_u64(f, count[i]);
    }
}

static void put_weights(FILE *f, const double *weight, size_t n)
{
    put_string(f, KEY_WEIGHTS);
    put_u32(f, GGUF_ARRAY);
    put_u32(f, GGUF_F64);
    put_u64(f, n);
    for (size_t i = 0; i < n; i++) {
        uint64_t bits;
        memcpy(&bits, &weight[i], sizeof bits);
        put_u64(f, bits);
    }
}

static void put_file(FILE *f, const struct expert_stats *s)
{
    fwrite("GGUF", 1, 4, f);
    put_u32(f, 3);
    put_u64(f, 0); /* tensors */
    put_u64(f, 4u + (s->n_used != 0) + (s->weight != NULL) + (s->pair != NULL));
    put_string(f, "general.architecture");
    put_u32(f, GGUF_STRING);
    put_string(f, ARCH);
    put_number(f, KEY_LAYERS, s->n_layer);
    put_number(f, KEY_EXPERTS, s->n_expert);
    if (s->n_used != 0) {
        put_number(f, KEY_USED, s->n_used);
    }
    put_counts(f, KEY_COUNTS, s->count, n_expert_all(s));
    if (s->weight != NULL) {
        put_weights(f, s->weight, n_expert_all(s));
    }
    if (s->pair != NULL) {
        put_counts(f, KEY_PAIRS, s->pair, n_pair_all(s));
    }
}

numoe_status expert_stats_save(FILE *out, const struct expert_stats *stats, numoe_error *err)
{
    errno = 0;
    put_file(out, stats);
    if (fflush(out) != 0 || ferror(out)) {
        return status_fail(err, NUMOE_E_FILE_WRITE, "expert statistics cannot be written: %s",
                           errno != 0 ? strerror(errno) : "the stream has failed before");
    }
    return NUMOE_OK;
}
