/* The report of numoe_inspect(): what a GGUF file says, and whether it can be run.
 *
 * Works on any file that can be read, also where the architecture or a type is not supported; the
 * verdict is then the binder's own error. Everything that comes out of the file is escaped: a
 * report goes to a terminal.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "model/model.h"

#define TEXT_BYTES_MAX 80u /* of a string that is shown */
#define ELEMS_MAX      4u  /* of an array */

/* ---- text */

static void print_char(FILE *out, const char *s, int len)
{
    uint32_t c = utf8_decode(s, len);
    if (c == '\n') {
        fputs("\\n", out);
    } else if (c == '"' || c == '\\') {
        fprintf(out, "\\%c", (char)c);
    } else if (c < 0x20 || (c >= 0x7f && c < 0xa0)) {
        fprintf(out, "\\x%02x", (unsigned)c);
    } else {
        fwrite(s, 1, (size_t)len, out);
    }
}

/* At most max bytes, never half a character; bytes that are not UTF-8 and controls as \xNN. */
static void print_text(FILE *out, const char *s, size_t n, size_t max)
{
    size_t i = 0;
    while (i < n) {
        int len = utf8_length(s + i, n - i);
        if (i + (size_t)MAX(len, 1) > max) {
            fputs("...", out);
            return;
        }
        if (len <= 0) {
            fprintf(out, "\\x%02x", (unsigned)(unsigned char)s[i]);
            i++;
        } else {
            print_char(out, s + i, len);
            i += (size_t)len;
        }
    }
}

static void print_name(FILE *out, const char *s)
{
    print_text(out, s, strlen(s), SIZE_MAX);
}

/* 39553024 as "39.6 M", 39 as "39 " */
static void print_scaled(FILE *out, uint64_t n)
{
    static const char *const prefix[] = {"", "k", "M", "G", "T"};
    double x = (double)n;
    size_t i = 0;
    while (x >= 1000 && i + 1 < ARRAY_LEN(prefix)) {
        x /= 1000;
        i++;
    }
    fprintf(out, i > 0 ? "%.1f %s" : "%.0f %s", x, prefix[i]);
}

/* "24030144 bytes (24.0 MB)" */
static void print_bytes(FILE *out, uint64_t bytes)
{
    fprintf(out, "%" PRIu64 " byte%s", bytes, bytes == 1 ? "" : "s");
    if (bytes >= 1000) {
        fputs(" (", out);
        print_scaled(out, bytes);
        fputs("B)", out);
    }
}

/* The shortest text that reads back as the same number: 0.95, not 0.949999988. */
static void print_real(FILE *out, double value, bool is_f32)
{
    char text[40];
    if (value == floor(value) && fabs(value) < 1e9) {
        fprintf(out, "%.0f", value);
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (is_f32 ? strtof(text, NULL) == (float)value : strtod(text, NULL) == value) {
            break;
        }
    }
    fputs(text, out);
}

/* ---- metadata */

static const char *type_name(enum gguf_type type)
{
    static const char *const name[GGUF_N_TYPE] = {
        [GGUF_U8] = "u8",       [GGUF_I8] = "i8",   [GGUF_U16] = "u16", [GGUF_I16] = "i16",
        [GGUF_U32] = "u32",     [GGUF_I32] = "i32", [GGUF_F32] = "f32", [GGUF_BOOL] = "bool",
        [GGUF_U64] = "u64",     [GGUF_I64] = "i64", [GGUF_F64] = "f64", [GGUF_STRING] = "string",
        [GGUF_ARRAY] = "array",
    };
    return name[type];
}

static void print_elem(FILE *out, const struct gguf_value *v, uint64_t i)
{
    uint64_t u;
    double d;
    if (v->type == GGUF_STRING) {
        fputc('"', out);
        print_text(out, v->str[i].data, v->str[i].len, TEXT_BYTES_MAX);
        fputc('"', out);
    } else if (v->type == GGUF_BOOL) {
        fputs(gguf_value_u64(v, i, &u) && u != 0 ? "true" : "false", out);
    } else if (gguf_value_u64(v, i, &u)) {
        fprintf(out, "%" PRIu64, u);
    } else if (gguf_value_f64(v, i, &d)) {
        print_real(out, d, v->type == GGUF_F32);
    }
}

static void print_value(FILE *out, const struct gguf_value *v)
{
    if (!v->is_array) {
        print_elem(out, v, 0);
        return;
    }
    fprintf(out, "%s[%" PRIu64 "]: ", type_name(v->type), v->n);
    for (uint64_t i = 0; i < MIN(v->n, ELEMS_MAX); i++) {
        fputs(i > 0 ? ", " : "", out);
        print_elem(out, v, i);
    }
    fputs(v->n > ELEMS_MAX ? ", ..." : "", out);
}

static void print_metadata(FILE *out, const struct gguf *g)
{
    fprintf(out, "\nmetadata: %" PRIu64 " keys\n", g->n_kv);
    for (uint64_t i = 0; i < g->n_kv; i++) {
        fputs("  ", out);
        print_text(out, g->kv[i].key.data, g->kv[i].key.len, SIZE_MAX);
        fputs(" = ", out);
        print_value(out, &g->kv[i].value);
        fputc('\n', out);
    }
}

/* ---- tensors */

static const char *note(const struct format *format)
{
    return format->computable ? "" : "  (no kernel for this type)";
}

static void print_types(FILE *out, const struct gguf *g)
{
    struct {
        uint64_t n_tensor, bytes;
    } sum[FORMAT_MAX] = {{0, 0}};
    uint64_t n_elem = 0;
    for (uint64_t i = 0; i < g->n_tensor; i++) {
        const struct gguf_tensor *t = &g->tensor[i];
        sum[t->format_id].n_tensor++;
        sum[t->format_id].bytes += t->bytes;
        n_elem += t->bytes / t->format->block_bytes * t->format->block_elems;
    }
    fprintf(out, "\ntensors: %" PRIu64 ", ", g->n_tensor);
    print_scaled(out, n_elem);
    fputs(" parameters\n", out);
    for (uint32_t id = 0; id < FORMAT_MAX; id++) {
        if (sum[id].n_tensor > 0) {
            const struct format *format = format_find(id);
            fprintf(out, "  %-8s %6" PRIu64 " tensors  ", format->name, sum[id].n_tensor);
            print_bytes(out, sum[id].bytes);
            fputs(note(format), out);
            fputc('\n', out);
        }
    }
    fprintf(out, "  %-8s %6" PRIu64 " tensors  ", "all", g->n_tensor);
    print_bytes(out, g->tensor_bytes);
    fputc('\n', out);
}

static void print_dims(FILE *out, const struct gguf_tensor *t)
{
    int n = 0;
    for (unsigned id = 0; id < t->n_dim; id++) {
        n += fprintf(out, "%s%" PRIu64, id > 0 ? " x " : "", t->dim[id]);
    }
    fprintf(out, "%*s  ", MAX(29 - n, 0), "");
}

static void print_tensors(FILE *out, const struct gguf *g)
{
    size_t width = strlen("tensor");
    for (uint64_t i = 0; i < g->n_tensor; i++) {
        width = MAX(width, strlen(g->tensor[i].name));
    }
    fprintf(out, "\n  %-*s  type     dimensions (row length first)  size\n", (int)width, "tensor");
    for (uint64_t i = 0; i < g->n_tensor; i++) {
        const struct gguf_tensor *t = &g->tensor[i];
        fputs("  ", out);
        print_name(out, t->name);
        fprintf(out, "%*s  %-7s  ", (int)(width - strlen(t->name)), "", t->format->name);
        print_dims(out, t);
        print_bytes(out, t->bytes);
        if (g->n_part > 1) {
            fprintf(out, ", part %u", t->part + 1);
        }
        fputc('\n', out);
    }
}

/* ---- the model */

static void print_attention(FILE *out, const struct model_hparams *hp)
{
    fprintf(out, "  attention: %u heads, ", hp->n_head);
    if (hp->attn == ATTN_MLA) {
        fprintf(out, "latent of %u + %u", hp->kv_lora_rank, hp->n_rope);
        if (hp->q_lora_rank > 0) {
            fprintf(out, ", queries of rank %u", hp->q_lora_rank);
        }
    } else {
        fprintf(out, "%u of keys and values", hp->n_head_kv);
    }
    fprintf(out, "; keys of %u, values of %u\n", hp->n_qk, hp->n_v);
    if (hp->window > 0) {
        fprintf(out, "  sliding window: %u tokens on some layers\n", hp->window);
    }
    if (hp->rope.factor != 1) {
        fprintf(out, "  context extension: %s, %u tokens times %g\n",
                hp->rope.yarn ? "YaRN" : "linear", hp->rope.n_ctx_orig, (double)hp->rope.factor);
    }
}

static void print_experts(FILE *out, const struct model_hparams *hp)
{
    static const char *const gating[] = {
        [ROUTER_SOFTMAX] = "softmax",
        [ROUTER_SIGMOID] = "sigmoid",
        [ROUTER_SOFTMAX_OF_TOPK] = "softmax of the chosen",
    };
    static const char *const rule[] = {
        [GROUP_BEST] = "best expert",
        [GROUP_BEST_TWO] = "two best experts",
    };
    const struct router_params *router = &hp->router;
    fprintf(out, "  experts: %u of %u, each %u wide", hp->n_expert_used, hp->n_expert,
            hp->n_ff_expert);
    if (hp->n_ff_shared > 0) {
        fprintf(out, ", and shared ones of %u", hp->n_ff_shared);
    }
    fprintf(out, "\n  router: %s", gating[router->gating]);
    if (router->group_rule != GROUP_NONE) {
        fprintf(out, ", from %u of %u groups by their %s", router->n_group_used, router->n_group,
                rule[router->group_rule]);
    }
    fputs(router->norm_topk ? ", weights normalised" : "", out);
    if (router->scale != 1) {
        fprintf(out, "%s scaled by ", router->norm_topk ? " and" : ", weights");
        print_real(out, (double)router->scale, true);
    }
    fputc('\n', out);
}

static void print_active(FILE *out, const struct model *m)
{
    const struct {
        const char *name;
        uint64_t bytes;
    } row[] = {
        {"dense", m->active.dense},
        {"shared", m->active.shared},
        {"routed", m->active.routed},
        {"all", m->active.dense + m->active.shared + m->active.routed},
    };
    fputs("\nweights read per decoded token\n", out);
    for (size_t i = 0; i < ARRAY_LEN(row); i++) {
        fprintf(out, "  %-8s ", row[i].name);
        print_bytes(out, row[i].bytes);
        fputc('\n', out);
    }
}

static void print_model(FILE *out, const struct model *m)
{
    const struct model_hparams *hp = &m->hp;
    const bool is_moe = hp->n_dense_lead < hp->n_layer;
    fprintf(out,
            "  layers: %u (%u dense), embedding %u, vocabulary %u (%s head), context %u tokens\n",
            hp->n_layer, hp->n_dense_lead, hp->n_embd, hp->n_vocab,
            source_present(&m->src[SLOT_OUTPUT]) ? "separate" : "tied", hp->n_ctx_train);
    print_attention(out, hp);
    if (is_moe) {
        print_experts(out, hp);
    }
    fputs("  parameters: ", out);
    print_scaled(out, m->n_param);
    fputc('\n', out);
    print_active(out, m);
}

/* ---- the whole */

static void print_files(FILE *out, const struct gguf *g)
{
    fprintf(out, "GGUF version %u\n", g->version);
    for (unsigned i = 0; i < g->n_part; i++) {
        fputs("  ", out);
        print_name(out, g->part[i].path);
        fputs(": ", out);
        print_bytes(out, g->part[i].bytes);
        fputc('\n', out);
    }
}

static void print_string_key(FILE *out, const struct gguf *g, const char *label, const char *key)
{
    const struct gguf_value *v = gguf_find(g, key);
    if (v && !v->is_array && v->type == GGUF_STRING) {
        fprintf(out, "%s: ", label);
        print_text(out, v->str[0].data, v->str[0].len, TEXT_BYTES_MAX);
        fputc('\n', out);
    }
}

/* The error names the file first; the report has said which file it is about. */
static const char *without_path(const char *text, const char *path)
{
    size_t len = strlen(path);
    return strncmp(text, path, len) == 0 && strncmp(text + len, ": ", 2) == 0 ? text + len + 2
                                                                              : text;
}

static void print_verdict(FILE *out, const struct gguf *g, const struct model *m,
                          const numoe_error *why)
{
    fputc('\n', out);
    print_string_key(out, g, "model", "general.name");
    print_string_key(out, g, "architecture", "general.architecture");
    if (m) {
        fputs("supported: yes\n", out);
        print_model(out, m);
    } else {
        fprintf(out, "supported: no, %s\n", without_path(why->text, g->part[0].path));
    }
}

numoe_status numoe_inspect(const char *path, FILE *out, bool all_tensors, numoe_error *err)
{
    struct gguf *g;
    struct model *m = NULL;
    numoe_error why;
    FORWARD_IF(gguf_open(path, &g, err));
    numoe_status status = model_bind(g, &m, &why);
    if (status == NUMOE_E_MEMORY) {
        gguf_close(g);
        return status_fail(err, status, "%s", why.text);
    }
    print_files(out, g);
    print_verdict(out, g, m, &why);
    print_types(out, g);
    print_metadata(out, g);
    if (all_tensors) {
        print_tensors(out, g);
    }
    if (m) {
        model_close(m);
    } else {
        gguf_close(g);
    }
    if (fflush(out) != 0 || ferror(out)) {
        return status_fail(err, NUMOE_E_FILE_WRITE, "the report cannot be written");
    }
    return NUMOE_OK;
}
