/* A GGUF model as its users see it: one file, or the parts of a split one put together.
 *
 * Owns the set of open parts, the tensor index and reading of tensor data; headers are read in
 * gguf-header.c. A split model is opened by its first part, PREFIX-00001-of-0000N.gguf, whose
 * metadata count; the other parts bring tensors only, and their names follow from the first's.
 */
#include "model/gguf.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/gguf-header.h"

struct gguf_private {
    struct gguf_header first;
    struct gguf_tensor **by_name; /* [n_tensor] */
};

/* ---- split models */

#define SPLIT_SUFFIX_BYTES (sizeof "-00001-of-00001.gguf")
#define N_PART_MAX         65535u

/* What a part says about the whole; 0 where it says nothing. */
struct split {
    uint64_t no, n_part, n_tensor;
};

static numoe_status get_count(const struct gguf_header *h, const char *path, const char *key,
                              uint64_t max, uint64_t *out, numoe_error *err)
{
    const struct gguf_value *value = gguf_header_find(h, key);
    if (value && (value->is_array || !gguf_value_u64(value, 0, out) || *out > max)) {
        return status_fail(err, NUMOE_E_FILE_FORMAT,
                           "%s: key %s: offset %" PRIu64
                           ": the value must be a whole number from 0 to %" PRIu64,
                           path, key, value->offset, max);
    }
    return NUMOE_OK;
}

static numoe_status get_split(const struct gguf_header *h, const char *path, struct split *split,
                              numoe_error *err)
{
    FORWARD_IF(get_count(h, path, "split.no", N_PART_MAX, &split->no, err));
    FORWARD_IF(get_count(h, path, "split.count", N_PART_MAX, &split->n_part, err));
    return get_count(h, path, "split.tensors.count", INT32_MAX, &split->n_tensor, err);
}

/* The path of part `to` (from 0), given that of part `from`; NULL in *out where the name does not
 * follow the convention. */
static numoe_status split_path(const char *path, uint64_t from, uint64_t to, uint64_t n_part,
                               char **out, numoe_error *err)
{
    char suffix[SPLIT_SUFFIX_BYTES];
    size_t len = strlen(path);
    snprintf(suffix, sizeof suffix, "-%05u-of-%05u.gguf", (unsigned)from + 1, (unsigned)n_part);
    *out = NULL;
    if (len < strlen(suffix) || strcmp(path + len - strlen(suffix), suffix) != 0) {
        return NUMOE_OK;
    }
    size_t prefix = len - strlen(suffix);
    char *result;
    FORWARD_IF(mem_new(&result, len + 1, 1, "a file name", err));
    memcpy(result, path, prefix);
    snprintf(result + prefix, len + 1 - prefix, "-%05u-of-%05u.gguf", (unsigned)to + 1,
             (unsigned)n_part);
    *out = result;
    return NUMOE_OK;
}

static numoe_status fail_not_first(const char *path, const struct split *split, numoe_error *err)
{
    char *first;
    FORWARD_IF(split_path(path, split->no, 0, split->n_part, &first, err));
    status_fail(err, NUMOE_E_FILE_MODEL,
                "%s: is part %" PRIu64 " of %" PRIu64 " of a split model; name the first part, %s",
                path, split->no + 1, split->n_part,
                first ? first : "whose name ends in -00001-of-NNNNN.gguf");
    mem_free(first);
    return NUMOE_E_FILE_MODEL;
}

/* A part that carries the key with another text belongs to another model. */
static bool same_text(const struct gguf_header *a, const struct gguf_header *b, const char *key)
{
    const struct gguf_value *va = gguf_header_find(a, key), *vb = gguf_header_find(b, key);
    if (!va || !vb || va->is_array || vb->is_array || va->type != GGUF_STRING ||
        vb->type != GGUF_STRING) {
        return true;
    }
    return gguf_string_compare(va->str[0], vb->str[0]) == 0;
}

static numoe_status check_part(const struct gguf_header *h, const char *path, unsigned no,
                               const struct gguf_header *first, const struct split *expected,
                               numoe_error *err)
{
    struct split split = {0};
    FORWARD_IF(get_split(h, path, &split, err));
    if (split.no != no || split.n_part != expected->n_part) {
        return status_fail(err, NUMOE_E_FILE_MODEL,
                           "%s: is part %" PRIu64 " of %" PRIu64 ", expected part %u of %" PRIu64,
                           path, split.no + 1, split.n_part, no + 1, expected->n_part);
    }
    if (split.n_tensor != expected->n_tensor || !same_text(h, first, "general.architecture") ||
        !same_text(h, first, "general.name")) {
        return status_fail(err, NUMOE_E_FILE_MODEL,
                           "%s: is a part of another model than the first part", path);
    }
    return NUMOE_OK;
}

/* Moves the tensors of h to the end of g's. */
static numoe_status adopt_tensors(struct gguf *g, struct gguf_header *h, unsigned part,
                                  numoe_error *err)
{
    if (h->n_tensor > SIZE_MAX / sizeof *g->tensor - g->n_tensor) {
        return status_fail(err, NUMOE_E_MEMORY, "too many tensors");
    }
    FORWARD_IF(mem_grow(&g->tensor, (size_t)(g->n_tensor + h->n_tensor), sizeof *g->tensor,
                        "the tensors of a GGUF model", err));
    for (uint64_t i = 0; i < h->n_tensor; i++) {
        struct gguf_tensor *t = &g->tensor[g->n_tensor++];
        *t = h->tensor[i];
        t->part = part;
        g->tensor_bytes += t->bytes;
    }
    h->n_tensor = 0;
    return NUMOE_OK;
}

static numoe_status open_part(struct gguf *g, unsigned no, const struct split *split,
                              numoe_error *err)
{
    const struct gguf_private *priv = g->priv;
    char *path;
    FORWARD_IF(split_path(g->part[0].path, 0, no, split->n_part, &path, err));
    if (!path) {
        return status_fail(
            err, NUMOE_E_FILE_MODEL,
            "%s: is the first of %" PRIu64
            " parts, so its name must end in -00001-of-%05u.gguf for the others to be "
            "found",
            g->part[0].path, split->n_part, (unsigned)split->n_part);
    }
    numoe_status status = gguf_part_open(path, &g->part[no], err);
    mem_free(path);
    if (status != NUMOE_OK) {
        return status_context(err, status, "part %u of %" PRIu64, no + 1, split->n_part);
    }
    g->n_part = no + 1;
    struct gguf_header h;
    FORWARD_IF(gguf_header_read(&g->part[no], &h, err));
    status = check_part(&h, g->part[no].path, no, &priv->first, split, err);
    if (status == NUMOE_OK) {
        status = adopt_tensors(g, &h, no, err);
    }
    gguf_header_fini(&h);
    return status;
}

static numoe_status open_other_parts(struct gguf *g, numoe_error *err)
{
    struct gguf_private *priv = g->priv;
    struct split split = {0};
    FORWARD_IF(get_split(&priv->first, g->part[0].path, &split, err));
    if (split.n_part <= 1) {
        return NUMOE_OK;
    }
    if (split.no != 0) {
        return fail_not_first(g->part[0].path, &split, err);
    }
    FORWARD_IF(
        mem_grow(&g->part, (size_t)split.n_part, sizeof *g->part, "the parts of a model", err));
    for (unsigned no = 1; no < split.n_part; no++) {
        FORWARD_IF(open_part(g, no, &split, err));
    }
    if (split.n_tensor != 0 && split.n_tensor != g->n_tensor) {
        return status_fail(err, NUMOE_E_FILE_MODEL,
                           "%s: split.tensors.count is %" PRIu64 ", but the parts hold %" PRIu64
                           " tensors; a part belongs to another model",
                           g->part[0].path, split.n_tensor, g->n_tensor);
    }
    return NUMOE_OK;
}

/* ---- the tensor index */

static int compare_names(const void *a, const void *b)
{
    return strcmp((*(struct gguf_tensor *const *)a)->name, (*(struct gguf_tensor *const *)b)->name);
}

static numoe_status index_tensors(struct gguf *g, numoe_error *err)
{
    struct gguf_private *priv = g->priv;
    FORWARD_IF(mem_new(&priv->by_name, (size_t)g->n_tensor, sizeof *priv->by_name,
                       "the tensors of a GGUF model", err));
    for (uint64_t i = 0; i < g->n_tensor; i++) {
        priv->by_name[i] = &g->tensor[i];
    }
    qsort(priv->by_name, (size_t)g->n_tensor, sizeof *priv->by_name, compare_names);
    for (uint64_t i = 1; i < g->n_tensor; i++) {
        const struct gguf_tensor *a = priv->by_name[i - 1], *b = priv->by_name[i];
        if (strcmp(a->name, b->name) == 0) {
            unsigned later = MAX(a->part, b->part);
            return status_fail(err, NUMOE_E_FILE_FORMAT, "%s: tensor %.80s is there twice%s",
                               g->part[later].path, a->name,
                               later > 0 ? "; the part may belong to another model" : "");
        }
    }
    return NUMOE_OK;
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name)
{
    const struct gguf_private *priv = g->priv;
    struct gguf_tensor want = {.name = (char *)name};
    struct gguf_tensor *p = &want;
    struct gguf_tensor **found =
        bsearch(&p, priv->by_name, (size_t)g->n_tensor, sizeof *priv->by_name, compare_names);
    return found ? *found : NULL;
}

const struct gguf_value *gguf_find(const struct gguf *g, const char *key)
{
    return gguf_header_find(&((const struct gguf_private *)g->priv)->first, key);
}

/* ---- the whole */

static numoe_status open_all(struct gguf *g, const char *path, numoe_error *err)
{
    struct gguf_private *priv;
    FORWARD_IF(mem_new(&priv, 1, sizeof *priv, "a GGUF model", err));
    g->priv = priv;
    FORWARD_IF(mem_new(&g->part, 1, sizeof *g->part, "a GGUF model", err));
    FORWARD_IF(gguf_part_open(path, &g->part[0], err));
    g->n_part = 1;
    FORWARD_IF(gguf_header_read(&g->part[0], &priv->first, err));
    g->version = priv->first.version;
    g->n_kv = priv->first.n_kv;
    g->kv = priv->first.kv;
    FORWARD_IF(adopt_tensors(g, &priv->first, 0, err));
    FORWARD_IF(open_other_parts(g, err));
    return index_tensors(g, err);
}

numoe_status gguf_open(const char *path, struct gguf **out, numoe_error *err)
{
    struct gguf *g;
    FORWARD_IF(mem_new(&g, 1, sizeof *g, "a GGUF model", err));
    numoe_status status = open_all(g, path, err);
    if (status != NUMOE_OK) {
        gguf_close(g);
        return status;
    }
    *out = g;
    return NUMOE_OK;
}

void gguf_close(struct gguf *g)
{
    if (!g) {
        return;
    }
    struct gguf_private *priv = g->priv;
    for (uint64_t i = 0; i < g->n_tensor; i++) {
        mem_free(g->tensor[i].name);
    }
    mem_free(g->tensor);
    for (unsigned i = 0; i < g->n_part; i++) {
        gguf_part_close(&g->part[i]);
    }
    mem_free(g->part);
    if (priv) {
        gguf_header_fini(&priv->first);
        mem_free(priv->by_name);
        mem_free(priv);
    }
    mem_free(g);
}

numoe_status gguf_read_tensor(const struct gguf *g, const struct gguf_tensor *t, uint64_t from,
                              size_t n, void *buf, numoe_error *err)
{
    const struct gguf_part *part = &g->part[t->part];
    if (from > t->bytes || n > t->bytes - from) {
        return status_fail(err, NUMOE_E_STATE, "%s: bytes %" PRIu64 " to %" PRIu64 " of %" PRIu64,
                           t->name, from, from + n, t->bytes);
    }
    numoe_status status = gguf_pread(part, buf, n, t->offset + from, err);
    if (status != NUMOE_OK) {
        return status_context(err, status, "%s: tensor %.80s", part->path, t->name);
    }
    return NUMOE_OK;
}
