/* Engines with numoe-gpu-emu beside engines without: logits, the router's choices and statistics of
 * several sequences in batches, cut and continued, whatever part of the experts the program has.
 * Where no sum is divided between the two, all is equal to the bit. And what a profile says then.
 */
#include <criterion/criterion.h>

#include <jansson.h>

#include "base/mem.h"
#include "numoe/numoe.h"
#include "tests/unit/distance.h"
#include "tests/unit/sequences.h"
#include "tests/unit/testdata.h"

#define N_SESSION 3
#define ALL       NUMOE_GPU_EXPERTS_AUTO

TestSuite(gpu, .timeout = 300);

/* Everything that a run has said, in order. */
struct heard {
    FILE *out[4];
    char *data[4]; /* logits, ids with layer and position, weights, the file of statistics */
    size_t bytes[4];
};

enum { LOGITS, IDS, WEIGHTS, STATS };

static unsigned n_vocab;

static void hear_logits(void *arg, size_t position, const float *logits)
{
    struct heard *h = arg;
    (void)position;
    fwrite(logits, sizeof *logits, n_vocab, h->out[LOGITS]);
}

static void hear_route(void *arg, unsigned layer, size_t position, unsigned k, const int32_t *ids,
                       const float *weights)
{
    struct heard *h = arg;
    const uint32_t where[2] = {layer, (uint32_t)position};
    fwrite(where, sizeof *where, 2, h->out[IDS]);
    fwrite(ids, sizeof *ids, k, h->out[IDS]);
    fwrite(weights, sizeof *weights, k, h->out[WEIGHTS]);
}

static numoe_engine *open_engine(const char *fixture, const char *gpu, unsigned n_hot)
{
    char *path = test_src_path(fixture);
    numoe_engine_params params;
    numoe_engine *engine = NULL;
    numoe_error err = {0};
    cr_assert_not_null(path, "%s", fixture);
    numoe_engine_params_init(&params);
    params.model_path = path;
    params.topology = "pack:2 [numa(memory=64GiB)] core:1 pu:1";
    params.chunk_tokens = 16;
    params.min_ctx = 512;
    params.gpu = gpu;
    params.gpu_experts = n_hot;
    cr_assert_eq(numoe_engine_open(&params, &engine, &err), NUMOE_OK, "%s", err.text);
    cr_assert_eq(numoe_engine_get_info(engine)->gpu == NULL, gpu == NULL);
    n_vocab = numoe_engine_get_info(engine)->n_vocab;
    free(path);
    return engine;
}

/* Three sequences together over several chunks and KV blocks; one is cut and goes on otherwise. */
static void run(numoe_engine *engine, struct heard *h)
{
    static const size_t length[N_SESSION] = {7, 260, 1};
    numoe_session *s[N_SESSION] = {NULL};
    numoe_error err = {0};
    for (unsigned i = 0; i < ARRAY_LEN(h->out); i++) {
        h->out[i] = open_memstream(&h->data[i], &h->bytes[i]);
        cr_assert_not_null(h->out[i]);
    }
    for (unsigned i = 0; i < N_SESSION; i++) {
        cr_assert_eq(numoe_session_new(engine, 512, &s[i], &err), NUMOE_OK, "%s", err.text);
        numoe_session_on_logits(s[i], hear_logits, h);
        numoe_session_on_route(s[i], hear_route, h);
        append(s[i], i, length[i]);
    }
    finish(engine, s, N_SESSION);
    numoe_session_truncate(s[1], 20);
    append(s[1], 9, 5);
    append(s[0], 8, 1);
    finish(engine, s, N_SESSION);
    append(s[2], 7, 1);
    finish(engine, s, N_SESSION);
    cr_assert_eq(numoe_engine_save_stats(engine, h->out[STATS], &err), NUMOE_OK, "%s", err.text);
    for (unsigned i = 0; i < N_SESSION; i++) {
        numoe_session_free(s[i]);
    }
    for (unsigned i = 0; i < ARRAY_LEN(h->out); i++) {
        fclose(h->out[i]);
    }
}

static void forget(struct heard *h)
{
    for (unsigned i = 0; i < ARRAY_LEN(h->data); i++) {
        free(h->data[i]);
    }
}

static void hear(const char *fixture, const char *gpu, unsigned n_hot, struct heard *h)
{
    numoe_engine *engine = open_engine(fixture, gpu, n_hot);
    run(engine, h);
    numoe_engine_close(engine);
}

static void expect_same(const struct heard *a, const struct heard *b, unsigned from,
                        const char *what)
{
    static const char *const part[] = {"logits", "ids", "weights", "statistics"};
    for (unsigned i = from; i < ARRAY_LEN(part); i++) {
        cr_assert_eq(a->bytes[i], b->bytes[i], "%s: %zu bytes of %s, %zu", what, a->bytes[i],
                     part[i], b->bytes[i]);
        cr_expect_eq(memcmp(a->data[i], b->data[i], a->bytes[i]), 0, "%s: other %s", what, part[i]);
    }
}

static void expect_near(const struct heard *a, const struct heard *b, unsigned i, const char *what)
{
    const float *x = (const float *)(const void *)a->data[i];
    const float *y = (const float *)(const void *)b->data[i];
    cr_assert_eq(a->bytes[i], b->bytes[i]);
    cr_expect_lt(distance(x, y, a->bytes[i] / sizeof *x), 1e-4, "%s", what);
}

static void check_fixture(const char *fixture)
{
    struct heard cpu = {0}, none = {0}, all = {0}, some = {0};
    hear(fixture, NULL, 0, &cpu);
    cr_assert_gt(cpu.bytes[IDS], 0);
    hear(fixture, "emu", 0, &none);
    expect_same(&cpu, &none, LOGITS, "no expert is hot");
    hear(fixture, "emu", ALL, &all);
    expect_same(&cpu, &all, LOGITS, "all experts are hot");
    hear(fixture, "emu", 7, &some);
    expect_near(&some, &cpu, LOGITS, fixture);
    expect_near(&some, &cpu, WEIGHTS, fixture);
    cr_assert_eq(cpu.bytes[IDS], some.bytes[IDS]);
    cr_expect_eq(memcmp(cpu.data[IDS], some.data[IDS], cpu.bytes[IDS]), 0);
    forget(&cpu);
    forget(&none);
    forget(&all);
    forget(&some);
}

Test(gpu, the_cpus_bits_with_a_latent_cache)
{
    check_fixture("tests/data/fixtures/deepseek3-a/deepseek3-a-f32.gguf");
}

Test(gpu, the_cpus_bits_with_sinks_and_biases)
{
    check_fixture("tests/data/fixtures/gptoss-a/gptoss-a-f32.gguf");
}

/* ------------------------------------------------------------------ profile */

static double row_seconds(const numoe_engine *engine, const char *name)
{
    numoe_profile_row row;
    for (unsigned i = 0; numoe_profile_get(engine, i, &row); i++) {
        if (strcmp(row.name, name) == 0) {
            return row.seconds;
        }
    }
    cr_assert_fail("there is no row \"%s\"", name);
    return 0;
}

/* Spans of a stage in the trace, and how many of them name a layer. */
static void count_spans(const numoe_engine *engine, const char *name, unsigned *n,
                        unsigned *n_layer)
{
    char *text = NULL;
    size_t bytes = 0, i;
    json_t *event;
    FILE *out = open_memstream(&text, &bytes);
    cr_assert_eq(numoe_trace_write(engine, out, NULL), NUMOE_OK);
    fclose(out);
    json_t *root = json_loadb(text, bytes, 0, NULL);
    cr_assert_not_null(root);
    *n = *n_layer = 0;
    json_array_foreach(json_object_get(root, "traceEvents"), i, event)
    {
        if (strcmp(json_string_value(json_object_get(event, "name")), name) == 0) {
            ++*n;
            *n_layer += json_object_get(json_object_get(event, "args"), "layer") != NULL ? 1 : 0;
        }
    }
    json_decref(root);
    free(text);
}

Test(gpu, the_profile_tells_what_is_waited_for)
{
    const char *fixture = "tests/data/fixtures/deepseek3-a/deepseek3-a-f32.gguf";
    unsigned n, n_layer;
    for (unsigned hot = 0; hot < 2; hot++) {
        numoe_engine *engine = open_engine(fixture, "emu", hot ? ALL : 0);
        struct heard h = {0};
        numoe_error err = {0};
        cr_assert_eq(numoe_profile_start(engine, true, &err), NUMOE_OK, "%s", err.text);
        run(engine, &h);
        cr_expect_gt(row_seconds(engine, "wait for result"), 0);
        cr_expect_eq(row_seconds(engine, "wait for GPU") > 0, !hot, "there is a hand-off or not");
        cr_expect_eq(row_seconds(engine, "experts") > 0, !hot);
        cr_expect_eq(row_seconds(engine, "attention"), 0, "the program's");
        count_spans(engine, "wait for GPU", &n, &n_layer);
        cr_expect_eq(n > 0, !hot);
        cr_expect_eq(n, n_layer, "each is a layer's");
        numoe_engine_close(engine);
        forget(&h);
    }
}
