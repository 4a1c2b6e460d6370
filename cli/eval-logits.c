/* Logits and routes of given token ids, in files that numpy and any JSON reader understand. Logits
 * are written as they come; routes are few and kept until the end. */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/eval.h"

/* Routes of one MoE layer, token after token. */
struct layer_routes {
    unsigned layer, k;
    size_t n;    /* tokens */
    int32_t *id; /* [tokens of the request, k] */
    float *weight;
};

struct logits {
    numoe_engine *engine;
    numoe_session *session;
    const char *ids_path;
    unsigned n_vocab;
    struct output npy, json;
    struct layer_routes *layer; /* [n_layer] in the order of layers */
    size_t n_layer;
    size_t n_token; /* of the request */
    bool write_failed, no_memory, not_finite;
};

/* ------------------------------------------------------------------ ids */

static int ids_from_json(const char *path, const json_t *array, struct ids *ids)
{
    size_t n = json_array_size(array);

    if (!json_is_array(array) || n == 0) {
        return fail(EXIT_INPUT, "%s: not a JSON array of token ids", path);
    }
    int32_t *id = malloc(n * sizeof *id);
    if (!id) {
        return fail(EXIT_LACKING, "%s: no memory for %zu ids", path, n);
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(array, i);
        json_int_t value = json_integer_value(item);
        if (!json_is_integer(item) || value < 0 || value > INT32_MAX) {
            free(id);
            return fail(EXIT_INPUT, "%s: element %zu is not a token id", path, i);
        }
        id[i] = (int32_t)value;
    }
    *ids = (struct ids){.id = id, .n = n};
    return EXIT_OK;
}

int read_ids(const char *path, struct ids *ids)
{
    struct text text;
    json_error_t error;

    int exit_status = read_text(path, &text);
    if (exit_status != EXIT_OK) {
        return exit_status;
    }
    json_t *array = json_loadb(text.data, text.bytes, 0, &error);
    free(text.data);
    if (!array) {
        return fail(EXIT_INPUT, "%s: line %d, column %d: %s", path, error.line, error.column,
                    error.text);
    }
    exit_status = ids_from_json(path, array, ids);
    json_decref(array);
    return exit_status;
}

/* ------------------------------------------------------------------ logits */

/* NPY format version 1.0: magic, version, length of the description, the description filled up with
 * spaces so that the data begin at a multiple of 64 bytes. */
static void write_npy_header(FILE *f, size_t n_row, size_t n_column)
{
    char text[128];
    const char *order = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? "<f4" : ">f4";
    int n = snprintf(text, sizeof text,
                     "{'descr': '%s', 'fortran_order': False, 'shape': (%zu, %zu), }", order, n_row,
                     n_column);
    unsigned padded = (10 + (unsigned)n + 1 + 63) / 64 * 64 - 10;

    fwrite("\x93NUMPY\x01\x00", 1, 8, f);
    fputc((int)(padded & 255), f);
    fputc((int)(padded >> 8), f);
    fprintf(f, "%-*s\n", (int)padded - 1, text);
}

static bool are_finite(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) {
            return false;
        }
    }
    return true;
}

/* Nobody needs the rest of an evaluation whose result cannot be kept, or is none. */
static void on_logits(void *arg, size_t position, const float *logits)
{
    struct logits *l = arg;

    if (l->write_failed || l->not_finite) {
        return;
    }
    if (!are_finite(logits, l->n_vocab)) {
        l->not_finite = true;
        fail(EXIT_INPUT,
             "logits of position %zu are not numbers: the model's weights are damaged or overflow "
             "their type",
             position);
        numoe_session_cancel(l->session);
    } else if (fwrite(logits, sizeof *logits, l->n_vocab, l->npy.file) != l->n_vocab) {
        l->write_failed = true;
        fail(EXIT_WORK, "%s: %s", l->npy.path, strerror(errno));
        numoe_session_cancel(l->session);
    }
}

/* ------------------------------------------------------------------ routes */

/* The entry of a layer, made when its first route comes: layers of one token come in order. */
static struct layer_routes *find_layer(struct logits *l, unsigned layer, unsigned k)
{
    for (size_t i = 0; i < l->n_layer; i++) {
        if (l->layer[i].layer == layer) {
            return &l->layer[i];
        }
    }
    l->layer[l->n_layer] = (struct layer_routes){.layer = layer, .k = k};
    return &l->layer[l->n_layer++];
}

static void on_route(void *arg, unsigned layer, size_t position, unsigned k, const int32_t *ids,
                     const float *weights)
{
    struct logits *l = arg;
    struct layer_routes *r = find_layer(l, layer, k);

    (void)position;
    if (!r->id) {
        r->id = malloc(l->n_token * k * sizeof *r->id);
        r->weight = malloc(l->n_token * k * sizeof *r->weight);
    }
    if (!r->id || !r->weight) {
        l->no_memory = true;
        numoe_session_cancel(l->session);
        return;
    }
    memcpy(r->id + r->n * k, ids, k * sizeof *ids);
    memcpy(r->weight + r->n * k, weights, k * sizeof *weights);
    r->n++;
}

static void write_ids(FILE *f, const struct layer_routes *r)
{
    for (size_t t = 0; t < r->n; t++) {
        for (unsigned i = 0; i < r->k; i++) {
            fprintf(f, "%s%d", i ? ", " : t ? ",\n   [" : "[", r->id[t * r->k + i]);
        }
        fputc(']', f);
    }
}

/* 9 digits are every bit of a float. */
static void write_weights(FILE *f, const struct layer_routes *r)
{
    for (size_t t = 0; t < r->n; t++) {
        for (unsigned i = 0; i < r->k; i++) {
            fprintf(f, "%s%.9g", i ? ", " : t ? ",\n   [" : "[", (double)r->weight[t * r->k + i]);
        }
        fputc(']', f);
    }
}

static int write_routes(struct logits *l)
{
    FILE *f = l->json.file;

    fprintf(f, "{\"n_token\": %zu, \"layers\": [", l->n_token);
    for (size_t i = 0; i < l->n_layer; i++) {
        if (!are_finite(l->layer[i].weight, l->layer[i].n * l->layer[i].k)) {
            return fail(EXIT_INPUT,
                        "expert weights of layer %u are not numbers: the model's "
                        "weights are damaged or overflow their type",
                        l->layer[i].layer);
        }
        fprintf(f, "%s\n {\"layer\": %u,\n  \"ids\": [", i ? "," : "", l->layer[i].layer);
        write_ids(f, &l->layer[i]);
        fputs("],\n  \"weights\": [", f);
        write_weights(f, &l->layer[i]);
        fputs("]}", f);
    }
    fputs("\n]}\n", f);
    return EXIT_OK;
}

/* ------------------------------------------------------------------ evaluation */

static int evaluate(struct logits *l, const struct ids *ids, bool quiet)
{
    struct progress progress;
    numoe_error err;

    numoe_status status = numoe_session_append(l->session, ids->id, ids->n, &err);
    if (status != NUMOE_OK) {
        return fail_file(l->ids_path, &err);
    }
    progress_init(&progress, "evaluating", quiet);
    interrupt_begin(l->session);
    while (status == NUMOE_OK && numoe_session_pending(l->session) > 0) {
        status = numoe_step(l->engine, &l->session, 1, &err);
        size_t n_done = ids->n - numoe_session_pending(l->session);
        progress_update(&progress, (double)n_done / (double)ids->n);
    }
    interrupt_end();
    progress_end(&progress);
    if (l->write_failed || l->not_finite) {
        return l->write_failed ? EXIT_WORK : EXIT_INPUT;
    }
    if (l->no_memory) {
        return fail(EXIT_LACKING, "no memory for the routes of %zu tokens", ids->n);
    }
    return status == NUMOE_OK ? EXIT_OK : fail_status(&err);
}

/* Both files, or none, get their names. */
static int evaluate_to_files(struct logits *l, const struct ids *ids, bool quiet)
{
    int exit_status;

    if (l->npy.file) {
        write_npy_header(l->npy.file, ids->n, l->n_vocab);
        numoe_session_on_logits(l->session, on_logits, l);
    }
    if (l->json.file) {
        numoe_session_on_route(l->session, on_route, l);
    }
    exit_status = evaluate(l, ids, quiet);
    if (exit_status == EXIT_OK && l->json.file) {
        exit_status = write_routes(l);
    }
    if (exit_status == EXIT_OK && l->npy.file) {
        exit_status = output_commit(&l->npy);
    }
    if (exit_status == EXIT_OK && l->json.file) {
        exit_status = output_commit(&l->json);
    }
    return exit_status;
}

static void report_files(const struct logits *l, const struct eval_options *o)
{
    fputs("written    ", stderr);
    if (o->output) {
        fprintf(stderr, "%s: float32 [%zu, %u]%s", o->output, l->n_token, l->n_vocab,
                o->routes ? "; " : "\n");
    }
    if (o->routes) {
        fprintf(stderr, "%s: %zu tokens in %zu layer%s\n", o->routes, l->n_token, l->n_layer,
                l->n_layer == 1 ? "" : "s");
    }
}

static int open_files(struct logits *l, const struct eval_options *o)
{
    int exit_status = EXIT_OK;

    if (o->output) {
        exit_status = output_open(&l->npy, o->output);
    }
    if (exit_status == EXIT_OK && o->routes) {
        exit_status = output_open(&l->json, o->routes);
    }
    return exit_status;
}

/* With the engine that is open. */
static int evaluate_with_session(struct logits *l, const struct eval_options *o,
                                 const struct ids *ids)
{
    const numoe_engine_info *info = numoe_engine_get_info(l->engine);
    numoe_error err;

    l->n_vocab = info->n_vocab;
    l->layer = calloc(info->n_layer + 1, sizeof *l->layer);
    if (!l->layer) {
        return fail(EXIT_LACKING, "no memory for the routes of %u layers", info->n_layer);
    }
    if (numoe_session_new(l->engine, o->model.n_ctx, &l->session, &err) != NUMOE_OK) {
        return fail_status(&err);
    }
    int exit_status = evaluate_to_files(l, ids, o->model.quiet);
    if (exit_status == EXIT_OK && !o->model.quiet) {
        report_files(l, o);
    }
    return exit_status;
}

int eval_logits(const struct eval_options *o, const struct ids *ids)
{
    struct logits l = {.ids_path = o->logits, .n_token = ids->n};

    int exit_status = open_files(&l, o);
    if (exit_status == EXIT_OK) {
        exit_status = eval_engine(o, "a sequence", ids->n, &l.engine);
    }
    if (exit_status == EXIT_OK) {
        exit_status = evaluate_with_session(&l, o, ids);
    }
    output_discard(&l.npy);
    output_discard(&l.json);
    for (size_t i = 0; i < l.n_layer; i++) {
        free(l.layer[i].id);
        free(l.layer[i].weight);
    }
    free(l.layer);
    numoe_session_free(l.session);
    numoe_engine_close(l.engine);
    return exit_status;
}
