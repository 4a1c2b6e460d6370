/* How often experts were chosen, as far as importance matrices tell, which llama.cpp's quantizers
 * are given and many publishers of models offer.
 *
 * The GGUF form has it: for each matrix NAME a tensor NAME.in_sum2 and NAME.counts, of experts one
 * count each. The older form has none: an entry is a name, a number of calls, and for every expert
 * the squares of its inputs, per column. Writers until about April 2024 stored their sums, which
 * grow with the number of choices; later ones their means, from which nothing can be learnt. The
 * router reads the same input as the experts do, so its entry tells the two apart: sums of all
 * experts together come to the router's times the experts of a token, means to that times all
 * experts; and no expert's sum is more than the router's. Files of before April 2024 have an entry
 * for each expert, as the models of that time had a tensor for each: "blk.0.ffn_gate.7.weight".
 *
 *     i32 n_entry, then n_entry times:
 *         i32 name length, name, i32 n_call, i32 n_value, f32 value[n_value]
 *
 * Everything is little-endian. What follows the last entry is not needed.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf.h"
#include "store/stats.h"

#define EXPERTS    "ffn_gate_exps.weight" /* any of the three says the same; */
#define EXPERTS_UP "ffn_up_exps.weight"   /* files with gate and up in one tensor have these */
#define EXPERTS_GU "ffn_gate_up_exps.weight"
#define ROUTER     "ffn_gate_inp.weight"

/* Far beyond any model; so a small file cannot ask for much memory. */
#define MAX_LAYER  4096u
#define MAX_EXPERT 4096u

/* A number below most at *at, which moves behind it; false where there is none. */
static bool take_index(const char *text, size_t len, unsigned most, size_t *at, unsigned *out)
{
    const size_t from = *at;
    unsigned n = 0;
    for (; *at < len && text[*at] >= '0' && text[*at] <= '9' && n < most; (*at)++) {
        n = n * 10 + (unsigned)(text[*at] - '0');
    }
    *out = n;
    return *at > from && n < most;
}

/* "blk.12.NAME" gives 12 and NAME; false for what is no layer's. */
static bool split_name(const char *name, size_t len, unsigned *il, const char **rest,
                       size_t *rest_len)
{
    size_t at = 4;
    if (len < at || memcmp(name, "blk.", at) != 0 || !take_index(name, len, MAX_LAYER, &at, il) ||
        at >= len || name[at] != '.') {
        return false;
    }
    *rest = name + at + 1;
    *rest_len = len - at - 1;
    return true;
}

static bool is_name(const char *text, size_t len, const char *name)
{
    return len == strlen(name) && memcmp(text, name, len) == 0;
}

static bool is_experts(const char *text, size_t len)
{
    return is_name(text, len, EXPERTS) || is_name(text, len, EXPERTS_UP) ||
           is_name(text, len, EXPERTS_GU);
}

/* Counts of a layer that may be a new one. */
static numoe_status add_layer(struct expert_stats *s, unsigned il, const char *path,
                              unsigned n_expert, numoe_error *err)
{
    if (n_expert > MAX_EXPERT) {
        return status_fail(err, NUMOE_E_FILE_MODEL,
                           "%s: layer %u has %u experts: at most %u are possible", path, il,
                           n_expert, MAX_EXPERT);
    }
    if (s->n_expert == 0) {
        s->n_expert = n_expert;
    }
    if (n_expert != s->n_expert) {
        return status_fail(err, NUMOE_E_FILE_MODEL, "%s: layer %u has %u experts, one before it %u",
                           path, il, n_expert, s->n_expert);
    }
    if (il >= s->n_layer) {
        const size_t had = (size_t)s->n_layer * n_expert, n = (size_t)(il + 1) * n_expert;
        FORWARD_IF(mem_grow(&s->count, n, sizeof *s->count, "expert statistics", err));
        memset(s->count + had, 0, (n - had) * sizeof *s->count);
        s->n_layer = il + 1;
    }
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ GGUF */

bool imatrix_is(const struct gguf *g)
{
    struct gguf_string type = {0};
    return gguf_get_string(g, "general.type", false, &type, NULL) == NUMOE_OK && type.len == 7 &&
           memcmp(type.data, "imatrix", 7) == 0;
}

#define SUFFIX ".counts"

static numoe_status take_counts(const struct gguf *g, const struct gguf_tensor *t, unsigned il,
                                struct expert_stats *s, numoe_error *err)
{
    const char *path = g->part[0].path;
    const uint64_t n = t->bytes / sizeof(float);
    float *value;
    if (t->format_id != FORMAT_F32 || t->dim[0] != 1 || n != t->dim[1] || n > INT32_MAX) {
        return status_fail(err, NUMOE_E_FILE_MODEL, "%s: tensor %.80s must be F32 [1, experts]",
                           path, t->name);
    }
    FORWARD_IF(add_layer(s, il, path, (unsigned)n, err));
    FORWARD_IF(mem_new(&value, n, sizeof *value, "expert statistics", err));
    numoe_status status = gguf_read_tensor(g, t, 0, t->bytes, value, err);
    for (uint64_t i = 0; status == NUMOE_OK && i < n; i++) {
        if (!(value[i] >= 0 && value[i] < 1e15f)) {
            status = status_fail(err, NUMOE_E_FILE_MODEL,
                                 "%s: tensor %.80s: number %" PRIu64 " is not a count", path,
                                 t->name, i);
        } else {
            s->count[(size_t)il * n + i] = (uint64_t)value[i];
        }
    }
    mem_free(value);
    return status;
}

static numoe_status fail_no_experts(const char *path, numoe_error *err)
{
    return status_fail(err, NUMOE_E_FILE_MODEL,
                       "%s: an importance matrix without experts: it is not of a "
                       "Mixture-of-Experts model",
                       path);
}

numoe_status imatrix_from_gguf(const struct gguf *g, struct expert_stats *stats, numoe_error *err)
{
    struct expert_stats s = {.is_foreign = true};
    numoe_status status = NUMOE_OK;
    for (uint64_t i = 0; status == NUMOE_OK && i < g->n_tensor; i++) {
        const struct gguf_tensor *t = &g->tensor[i];
        const size_t len = strlen(t->name), tail = sizeof SUFFIX - 1;
        const char *rest;
        size_t n;
        unsigned il;
        if (len > tail && strcmp(t->name + len - tail, SUFFIX) == 0 &&
            split_name(t->name, len - tail, &il, &rest, &n) && is_experts(rest, n)) {
            status = take_counts(g, t, il, &s, err);
        }
    }
    if (status == NUMOE_OK && s.n_expert == 0) {
        status = fail_no_experts(g->part[0].path, err);
    }
    if (status != NUMOE_OK) {
        expert_stats_fini(&s);
        return status;
    }
    *stats = s;
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ the older form */

struct input {
    const unsigned char *data;
    size_t bytes, at;
    const char *path;
};

static uint32_t load_u32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static float load_f32(const unsigned char *p)
{
    const uint32_t bits = load_u32(p);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* A number from 0 to most. */
static numoe_status take_number(struct input *in, const char *what, uint64_t most, uint32_t *out,
                                numoe_error *err)
{
    if (in->bytes - in->at < 4) {
        return status_fail(err, NUMOE_E_FILE_FORMAT,
                           "%s: offset %zu: the file ends in the %s (it is neither GGUF nor a "
                           "whole importance matrix)",
                           in->path, in->at, what);
    }
    const uint32_t value = load_u32(in->data + in->at);
    if (value > most || value > INT32_MAX) {
        return status_fail(err, NUMOE_E_FILE_FORMAT,
                           "%s: offset %zu: %s %" PRIu32 ", at most %" PRIu64 " are possible (it "
                           "is neither GGUF nor a whole importance matrix)",
                           in->path, in->at, what, value, most);
    }
    in->at += 4;
    *out = value;
    return NUMOE_OK;
}

struct entry {
    const char *name;
    size_t name_len;
    const unsigned char *value; /* n_value floats */
    uint32_t n_call, n_value;
};

static numoe_status take_entry(struct input *in, struct entry *e, numoe_error *err)
{
    uint32_t len;
    FORWARD_IF(take_number(in, "length of a name", in->bytes - in->at, &len, err));
    if (len > in->bytes - in->at) {
        return status_fail(err, NUMOE_E_FILE_FORMAT, "%s: offset %zu: the file ends in a name",
                           in->path, in->at);
    }
    e->name = (const char *)in->data + in->at;
    e->name_len = len;
    in->at += len;
    FORWARD_IF(take_number(in, "number of calls", INT32_MAX, &e->n_call, err));
    FORWARD_IF(take_number(in, "number of values", (in->bytes - in->at) / 4, &e->n_value, err));
    if (e->n_value > (in->bytes - in->at) / 4) {
        return status_fail(err, NUMOE_E_FILE_FORMAT, "%s: offset %zu: the file ends in values",
                           in->path, in->at);
    }
    e->value = in->data + in->at;
    in->at += (size_t)e->n_value * 4;
    return NUMOE_OK;
}

/* What is kept of the file until both the router and the experts of a layer were read. */
struct sums {
    uint32_t n_col[MAX_LAYER]; /* of the router's input; 0: no entry */
    double router[MAX_LAYER];
    struct entry experts[MAX_LAYER];
    double *single[MAX_LAYER]; /* [n_single]: sums of each expert, from entries of its own or, in
                                  the end, from its part of experts */
    unsigned n_single[MAX_LAYER];
    unsigned n_layer;
};

static void sums_free(struct sums *sums)
{
    for (unsigned il = 0; il < sums->n_layer; il++) {
        mem_free(sums->single[il]);
    }
    mem_free(sums);
}

/* "ffn_gate.7.weight" gives 7. */
static bool is_single(const char *text, size_t len, unsigned *ie)
{
    size_t at = sizeof "ffn_gate." - 1;
    return len > at && memcmp(text, "ffn_gate.", at) == 0 &&
           take_index(text, len, MAX_EXPERT, &at, ie) && is_name(text + at, len - at, ".weight");
}

static double sum_values(const unsigned char *value, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += (double)load_f32(value + 4 * i);
    }
    return sum;
}

static numoe_status keep_single(struct sums *sums, unsigned il, unsigned ie, const struct entry *e,
                                numoe_error *err)
{
    const unsigned had = sums->n_single[il], n = MAX(had, ie + 1);
    FORWARD_IF(mem_grow(&sums->single[il], n, sizeof(double), "an importance matrix", err));
    memset(sums->single[il] + had, 0, (n - had) * sizeof(double));
    sums->n_single[il] = n;
    sums->single[il][ie] = sum_values(e->value, e->n_value);
    return NUMOE_OK;
}

static numoe_status keep_entry(struct sums *sums, const struct entry *e, numoe_error *err)
{
    const char *rest;
    size_t n;
    unsigned il, ie;
    if (!split_name(e->name, e->name_len, &il, &rest, &n)) {
        return NUMOE_OK;
    }
    sums->n_layer = MAX(sums->n_layer, il + 1);
    if (is_name(rest, n, ROUTER)) {
        sums->n_col[il] = e->n_value;
        sums->router[il] = sum_values(e->value, e->n_value);
    } else if (is_experts(rest, n)) {
        sums->experts[il] = *e;
    } else if (is_single(rest, n, &ie)) {
        return keep_single(sums, il, ie, e, err);
    }
    return NUMOE_OK;
}

static bool has_experts(const struct sums *sums, unsigned il)
{
    return sums->experts[il].n_value > 0 || sums->n_single[il] > 0;
}

/* Experts that stand in one entry, each with all columns of its inputs, become single ones. */
static numoe_status split_experts(struct sums *sums, unsigned il, unsigned n_expert,
                                  numoe_error *err)
{
    const size_t n_col = sums->n_col[il];
    FORWARD_IF(mem_new(&sums->single[il], n_expert, sizeof(double), "an importance matrix", err));
    sums->n_single[il] = n_expert;
    for (unsigned ie = 0; ie < n_expert; ie++) {
        sums->single[il][ie] = sum_values(sums->experts[il].value + ie * n_col * 4, n_col);
    }
    return NUMOE_OK;
}

/* Sums of very many numbers with 24 bits stop growing, the router's first. */
#define SLACK 1.5

/* Choices of layer il in millionths of all, from sums of squares. *ratio: all of them over the
 * router's; beyond any for what no sums can be. */
static numoe_status take_sums(struct sums *sums, unsigned il, const char *path,
                              struct expert_stats *s, double *ratio, numoe_error *err)
{
    const struct entry *e = &sums->experts[il];
    const uint32_t n_col = sums->n_col[il];
    if (n_col == 0 || (sums->n_single[il] == 0 && e->n_value % n_col != 0)) {
        return status_fail(err, NUMOE_E_FILE_MODEL,
                           "%s: layer %u: no entry of the router that fits that of the experts, so "
                           "there is no telling how often they were chosen: take an importance "
                           "matrix in GGUF form",
                           path, il);
    }
    const unsigned n_expert = sums->n_single[il] > 0 ? sums->n_single[il] : e->n_value / n_col;
    FORWARD_IF(add_layer(s, il, path, n_expert, err));
    if (sums->n_single[il] == 0) {
        FORWARD_IF(split_experts(sums, il, n_expert, err));
    }
    const double *sum = sums->single[il];
    double total = 0, most = 0;
    for (unsigned ie = 0; ie < n_expert; ie++) {
        total += sum[ie];
        most = MAX(most, sum[ie]);
    }
    if (!(total > 0 && total < 1e30 && sums->router[il] > 0)) {
        return status_fail(err, NUMOE_E_FILE_MODEL, "%s: layer %u: values that are no squares",
                           path, il);
    }
    for (unsigned ie = 0; ie < n_expert; ie++) {
        s->count[(size_t)il * n_expert + ie] =
            sum[ie] > 0 ? (uint64_t)(sum[ie] / total * 1e6 + 0.5) : 0;
    }
    *ratio = most > SLACK * sums->router[il] ? INFINITY : total / sums->router[il];
    return NUMOE_OK;
}

static numoe_status take_all(struct sums *sums, const char *path, struct expert_stats *s,
                             numoe_error *err)
{
    double sum = 0;
    unsigned n = 0;
    for (unsigned il = 0; il < sums->n_layer; il++) {
        if (has_experts(sums, il)) {
            double ratio = 0;
            FORWARD_IF(take_sums(sums, il, path, s, &ratio, err));
            sum += ratio;
            n++;
        }
    }
    if (n == 0) {
        return fail_no_experts(path, err);
    }
    if (sum / n > s->n_expert / 2.0) {
        return status_fail(err, NUMOE_E_FILE_MODEL,
                           "%s: an importance matrix of means, which do not tell how often experts "
                           "were chosen: take one in GGUF form, which does",
                           path);
    }
    return NUMOE_OK;
}

numoe_status imatrix_parse(const unsigned char *data, size_t bytes, const char *path,
                           struct expert_stats *stats, numoe_error *err)
{
    struct input in = {.data = data, .bytes = bytes, .path = path};
    struct expert_stats s = {.is_foreign = true};
    struct sums *sums = NULL;
    uint32_t n_entry;
    FORWARD_IF(take_number(&in, "number of entries", bytes / 12, &n_entry, err));
    FORWARD_IF(mem_new(&sums, 1, sizeof *sums, "an importance matrix", err));
    numoe_status status = NUMOE_OK;
    for (uint32_t i = 0; status == NUMOE_OK && i < n_entry; i++) {
        struct entry e;
        status = take_entry(&in, &e, err);
        if (status == NUMOE_OK) {
            status = keep_entry(sums, &e, err);
        }
    }
    if (status == NUMOE_OK) {
        status = take_all(sums, path, &s, err);
    }
    sums_free(sums);
    if (status != NUMOE_OK) {
        expert_stats_fini(&s);
        return status;
    }
    *stats = s;
    return NUMOE_OK;
}
