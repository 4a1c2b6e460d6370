/* The forward pass against references that were computed elsewhere (tests/data/fixtures/README.md),
 * and against itself: the same bits for any number of workers and nodes, any cutting of the prompt,
 * and any company in the batch.
 */
#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>

#include "store/stats.h"
#include "tests/unit/distance.h"
#include "tests/unit/npy.h"
#include "tests/unit/rig.h"
#include "tests/unit/testdata.h"

/* ------------------------------------------------------------------ references */

static char *fixture_path(const char *name, const char *file)
{
    char rel[256];
    snprintf(rel, sizeof rel, "tests/data/fixtures/%s/%s", name, file);
    char *path = test_src_path(rel);
    cr_assert_not_null(path, "%s is missing", rel);
    return path;
}

static char *fixture_model(const char *name)
{
    char file[128];
    snprintf(file, sizeof file, "%s-f32.gguf", name);
    return fixture_path(name, file);
}

static struct npy fixture_array(const char *name, const char *file, const char *dtype)
{
    struct npy a = {0};
    char *path = fixture_path(name, file);
    cr_assert(npy_read(path, dtype, &a), "%s cannot be read", path);
    free(path);
    return a;
}

static json_t *fixture_reference(const char *name)
{
    json_error_t error;
    char *path = fixture_path(name, "reference.json");
    json_t *root = json_load_file(path, 0, &error);
    cr_assert_not_null(root, "%s: %s", path, error.text);
    free(path);
    return root;
}

static int32_t *int_array(const json_t *array, unsigned *n)
{
    *n = (unsigned)json_array_size(array);
    cr_assert_gt(*n, 0);
    int32_t *ids = calloc(*n, sizeof *ids);
    for (unsigned i = 0; i < *n; i++) {
        ids[i] = (int32_t)json_integer_value(json_array_get(array, i));
    }
    return ids;
}

static int32_t *prompt_ids(const json_t *reference, const char *prompt, unsigned *n)
{
    return int_array(json_object_get(json_object_get(reference, prompt), "ids"), n);
}

static int compare_ids(const void *a, const void *b)
{
    return *(const int32_t *)a - *(const int32_t *)b;
}

/* Chosen experts are compared as sets: the reference orders by weight, we by score. */
static void check_routes(const struct rig *r, const char *name, const char *file, int32_t *routes,
                         unsigned n)
{
    const unsigned k = r->model->hp.n_expert_used;
    struct npy want = fixture_array(name, file, "<i4");
    int32_t *row = want.data;
    cr_assert_eq(want.dim[1], n);
    cr_assert_eq(want.dim[2], k);
    unsigned n_moe = 0;
    for (unsigned il = 0; il < r->model->hp.n_layer; il++) {
        if (!r->model->layer[il].is_moe) {
            continue;
        }
        n_moe++;
        for (unsigned t = 0; t < n; t++, row += k) {
            int32_t *got = routes + ((size_t)il * n + t) * k;
            if (row[0] < 0) {
                continue;
            }
            qsort(got, k, sizeof *got, compare_ids);
            qsort(row, k, sizeof *row, compare_ids);
            cr_assert_arr_eq(got, row, k * sizeof *got, "%s layer %u token %u: other experts", file,
                             il, t);
        }
    }
    cr_assert_eq(n_moe, want.dim[0]);
    free(want.data);
}

static void check_prompt(const struct rig *r, const char *name, const json_t *reference,
                         const char *which, double tolerance)
{
    char prompt[32], logits_file[32], routes_file[32];
    snprintf(prompt, sizeof prompt, "prompt_%s", which);
    snprintf(logits_file, sizeof logits_file, "logits_%s.npy", which);
    snprintf(routes_file, sizeof routes_file, "routes_%s.npy", which);
    const struct model_hparams *hp = &r->model->hp;
    unsigned n;
    int32_t *ids = prompt_ids(reference, prompt, &n);
    struct npy want = fixture_array(name, logits_file, "<f4");
    cr_assert_eq(want.dim[0], n);
    cr_assert_eq(want.dim[1], hp->n_vocab);
    struct kv_cache *kv = rig_cache(r, KV_F32, n);
    float *logits = calloc((size_t)n * hp->n_vocab, sizeof *logits);
    int32_t *routes = calloc((size_t)hp->n_layer * n * hp->n_expert_used, sizeof *routes);
    rig_prompt(r, kv, ids, n, 64, logits, routes);
    for (unsigned t = 0; t < n; t++) {
        const size_t at = (size_t)t * hp->n_vocab;
        const double rel = distance(logits + at, (const float *)want.data + at, hp->n_vocab);
        cr_assert_leq(rel, tolerance, "%s %s position %u: relative error %.2e", name, which, t,
                      rel);
    }
    check_routes(r, name, routes_file, routes, n);
    kv_free(kv);
    free(routes);
    free(logits);
    free(want.data);
    free(ids);
}

static unsigned argmax(const float *x, unsigned n)
{
    unsigned best = 0;
    for (unsigned i = 1; i < n; i++) {
        best = x[i] > x[best] ? i : best;
    }
    return best;
}

/* prompt, expected: arrays of ids. */
static void check_greedy(const struct rig *r, const json_t *prompt, const json_t *expected)
{
    const unsigned n_vocab = r->model->hp.n_vocab;
    unsigned n, n_want;
    int32_t *ids = int_array(prompt, &n);
    int32_t *want = int_array(expected, &n_want);
    struct kv_cache *kv = rig_cache(r, KV_F32, n + n_want);
    float *logits = calloc((size_t)n * n_vocab, sizeof *logits);
    rig_prompt(r, kv, ids, n, 64, logits, NULL);
    int32_t id = (int32_t)argmax(logits + (size_t)(n - 1) * n_vocab, n_vocab);
    for (unsigned i = 0; i < n_want; i++) {
        cr_assert_eq(id, want[i], "step %u: token %d, expected %d", i, id, want[i]);
        const struct rig_part part = {
            .ids = &id, .from = n + i, .n = 1, .kv = kv, .logits = logits};
        rig_batch(r, &part, 1);
        id = (int32_t)argmax(logits, n_vocab);
    }
    kv_free(kv);
    free(logits);
    free(want);
    free(ids);
}

static void check_fixture_file(const char *name, char *path)
{
    json_t *reference = fixture_reference(name);
    struct rig r = rig_open(path, 0, 2, 64);
    check_prompt(&r, name, reference, "short", 1e-4);
    check_prompt(&r, name, reference, "long", 1e-4);
    check_greedy(&r, json_object_get(json_object_get(reference, "prompt_short"), "ids"),
                 json_object_get(reference, "greedy_32"));
    rig_close(&r);
    json_decref(reference);
    free(path);
}

#define FIXTURE_TEST(test, name)                                                                   \
    Test(fixtures, test)                                                                           \
    {                                                                                              \
        check_fixture_file(name, fixture_model(name));                                             \
    }

FIXTURE_TEST(deepseek2_lite, "deepseek2-lite-a")
FIXTURE_TEST(deepseek2_full, "deepseek2-full-a")

/* Gate and up of an expert as rows of one tensor. */
Test(fixtures, deepseek2_lite_fused)
{
    check_fixture_file("deepseek2-lite-a", fixture_path("deepseek2-lite-a", "fused-f32.gguf"));
}

FIXTURE_TEST(deepseek3, "deepseek3-a")
FIXTURE_TEST(mixtral, "mixtral-a")
FIXTURE_TEST(qwen2moe, "qwen2moe-a")
FIXTURE_TEST(qwen3moe, "qwen3moe-a")
FIXTURE_TEST(granitemoe, "granitemoe-a")
FIXTURE_TEST(olmoe, "olmoe-a")
FIXTURE_TEST(glm4moe, "glm4moe-a")
FIXTURE_TEST(gptoss, "gptoss-a")

/* ------------------------------------------------------------------ the bundled model */

static json_t *fable_prompts(void)
{
    char *path = test_src_path("tests/data/fable/reference/reference.json");
    cr_assert_not_null(path);
    json_t *root = json_load_file(path, 0, NULL);
    cr_assert_not_null(root);
    json_t *prompts = json_incref(json_object_get(root, "prompts"));
    json_decref(root);
    free(path);
    return prompts;
}

/* All logits of the three prompts: relative error over each prompt. */
static void check_fable_logits(const struct rig *r, const json_t *prompts, double tolerance)
{
    const unsigned n_vocab = r->model->hp.n_vocab;
    for (size_t i = 0; i < json_array_size(prompts); i++) {
        char rel[96];
        unsigned n;
        struct npy want = {0};
        snprintf(rel, sizeof rel, "tests/data/fable/reference/prompt%zu_logits_all.npy", i);
        char *path = test_src_path(rel);
        cr_assert(path != NULL && npy_read(path, "<f4", &want), "%s", rel);
        int32_t *ids = int_array(json_object_get(json_array_get(prompts, i), "ids"), &n);
        cr_assert_eq(want.n, (size_t)n * n_vocab);
        struct kv_cache *kv = rig_cache(r, KV_F32, n);
        float *logits = calloc(want.n, sizeof *logits);
        rig_prompt(r, kv, ids, n, 64, logits, NULL);
        const double error = distance(logits, want.data, want.n);
        cr_assert_leq(error, tolerance, "prompt %zu: relative error %.2e", i, error);
        kv_free(kv);
        free(logits);
        free(ids);
        free(want.data);
        free(path);
    }
}

Test(fable, f16)
{
    char *path = test_data_path("model/fable-moe-F16.gguf");
    if (path == NULL) {
        cr_skip("model/fable-moe-F16.gguf is not there");
    }
    json_t *prompts = fable_prompts();
    struct rig r = rig_open(path, 0, 2, 64);
    check_fable_logits(&r, prompts, 1e-3);
    for (size_t i = 0; i < json_array_size(prompts); i++) {
        const json_t *prompt = json_array_get(prompts, i);
        check_greedy(&r, json_object_get(prompt, "ids"), json_object_get(prompt, "greedy_ids"));
    }
    rig_close(&r);
    json_decref(prompts);
    free(path);
}

/* Both forms of the key and value matrices: what quantization costs, and no more. */
static void check_fable_q4(char *path)
{
    json_t *prompts = fable_prompts();
    struct rig r = rig_open(path, 0, 2, 64);
    check_fable_logits(&r, prompts, 0.06);
    rig_close(&r);
    json_decref(prompts);
    free(path);
}

Test(fable, q4_k_m)
{
    char *path = test_src_path("model/fable/fable-moe-Q4_K_M.gguf");
    cr_assert_not_null(path);
    check_fable_q4(path);
}

Test(fable, q4_k_m_one_kv_b)
{
    char *path = test_data_path("model/legacy-mla/fable-moe-legacy-mla-Q4_K_M.gguf");
    if (path == NULL) {
        cr_skip("model/legacy-mla is not there");
    }
    check_fable_q4(path);
}

/* ------------------------------------------------------------------ the same bits */

struct arrangement {
    unsigned n_node, n_worker, chunk;
};

/* Logits [n, V] of ids under an arrangement. */
static float *arranged_logits(const char *path, struct arrangement a, bool f16, const int32_t *ids,
                              unsigned n)
{
    struct rig r = rig_open(path, a.n_node, a.n_worker, a.chunk);
    struct kv_cache *kv = rig_cache(&r, f16, n);
    float *logits = calloc((size_t)n * r.model->hp.n_vocab, sizeof *logits);
    rig_prompt(&r, kv, ids, n, a.chunk, logits, NULL);
    kv_free(kv);
    rig_close(&r);
    return logits;
}

static unsigned vocabulary(const char *path)
{
    numoe_error err = {0};
    struct model *model = NULL;
    cr_assert_eq(model_open(path, &model, &err), NUMOE_OK, "%s", err.text);
    const unsigned n = model->hp.n_vocab;
    model_close(model);
    return n;
}

static void check_arrangements(const char *path, bool f16, const int32_t *ids, unsigned n,
                               const struct arrangement *a, unsigned n_arrangement)
{
    const size_t bytes = (size_t)n * vocabulary(path) * sizeof(float);
    float *want = arranged_logits(path, a[0], f16, ids, n);
    for (size_t i = 0; i < bytes / sizeof(float); i++) {
        cr_assert(isfinite(want[i]));
    }
    for (unsigned i = 1; i < n_arrangement; i++) {
        float *got = arranged_logits(path, a[i], f16, ids, n);
        cr_assert_arr_eq(got, want, bytes, "%u nodes, %u workers, chunks of %u: other bits",
                         a[i].n_node, a[i].n_worker, a[i].chunk);
        free(got);
    }
    free(want);
}

/* ------------------------------------------------------------------ every placement */

static const struct {
    const char *name;
    struct placement_request request;
} placements[] = {
    {"slice", {.mode = NUMOE_PLACEMENT_SLICE}},
    {"shard", {.mode = NUMOE_PLACEMENT_SHARD}},
    {"shard with replicas", {.mode = NUMOE_PLACEMENT_SHARD, .replica_percent = 60}},
    {"replicate", {.mode = NUMOE_PLACEMENT_REPLICATE}},
    {"interleave", {.mode = NUMOE_PLACEMENT_INTERLEAVE}},
    {"auto", {.mode = NUMOE_PLACEMENT_AUTO}},
};

/* Some experts are used much more than others. */
static struct expert_stats uneven_stats(const char *path)
{
    struct model *model = NULL;
    cr_assert_eq(model_open(path, &model, NULL), NUMOE_OK);
    struct expert_stats stats = {.n_layer = model->hp.n_layer, .n_expert = model->hp.n_expert};
    const unsigned n = stats.n_layer * stats.n_expert;
    stats.count = calloc(n, sizeof *stats.count);
    for (unsigned i = 0; i < n; i++) {
        stats.count[i] = 1 + i * 7919 % 101;
    }
    model_close(model);
    return stats;
}

static uint64_t bytes_read(const struct rig *r, bool remote)
{
    uint64_t sum = 0;
    for (unsigned in = 0; in < r->store->n_node; in++) {
        const struct traffic read = step_traffic(r->step, in);
        sum += remote ? read.remote_bytes : read.local_bytes;
    }
    return sum;
}

/* n tokens as a prompt, then n more one by one. */
static float *placed_logits(const char *path, const struct placement_request *request,
                            unsigned n_node, unsigned n_worker, const int32_t *ids, unsigned n,
                            bool mapped)
{
    struct rig r = rig_open_as(path, n_node, n_worker, n, request, mapped);
    const unsigned n_vocab = r.model->hp.n_vocab;
    struct kv_cache *kv = rig_cache(&r, KV_F32, 2 * n);
    float *logits = calloc(2 * (size_t)n * n_vocab, sizeof *logits);
    rig_prompt(&r, kv, ids, n, n, logits, NULL);
    for (unsigned i = n; i < 2 * n; i++) {
        const struct rig_part part = {
            .ids = ids + i, .from = i, .n = 1, .kv = kv, .logits = logits + (size_t)i * n_vocab};
        rig_batch(&r, &part, 1);
    }
    cr_assert_gt(bytes_read(&r, false), 0);
    const bool dealt = request->mode == NUMOE_PLACEMENT_INTERLEAVE && r.store->n_node > 1;
    cr_assert_eq(bytes_read(&r, true) > 0, dealt, "remote bytes of weights");
    for (unsigned in = 0; in < r.store->n_node; in++) {
        cr_assert_eq(step_traffic(r.step, in).file_bytes > 0, mapped, "bytes from the file");
    }
    kv_free(kv);
    rig_close(&r);
    return logits;
}

/* Nodes, and more or fewer workers than nodes. */
static const unsigned node_worker[][2] = {{1, 2}, {2, 2}, {3, 5}, {4, 3}, {8, 9}};

static void check_placements(const char *path, const int32_t *ids, unsigned n)
{
    const size_t bytes = 2 * (size_t)n * vocabulary(path) * sizeof(float);
    struct expert_stats stats = uneven_stats(path);
    float *want = placed_logits(path, &placements[0].request, 1, 1, ids, n, false);
    for (unsigned i = 0; i < ARRAY_LEN(placements); i++) {
        struct placement_request request = placements[i].request;
        request.stats = &stats;
        for (unsigned j = 0; j < ARRAY_LEN(node_worker); j++) {
            const unsigned n_node = node_worker[j][0], n_worker = node_worker[j][1];
            float *got = placed_logits(path, &request, n_node, n_worker, ids, n, false);
            cr_assert_arr_eq(got, want, bytes, "%s on %u nodes, %u workers: other bits",
                             placements[i].name, n_node, n_worker);
            free(got);
        }
    }
    expert_stats_fini(&stats);
    free(want);
}

static void check_fixture_placements(const char *name)
{
    char *path = fixture_model(name);
    json_t *reference = fixture_reference(name);
    unsigned n;
    int32_t *ids = prompt_ids(reference, "prompt_long", &n);
    cr_assert_geq(n, 20);
    check_placements(path, ids, 10);
    free(ids);
    json_decref(reference);
    free(path);
}

Test(placements, deepseek3)
{
    check_fixture_placements("deepseek3-a");
}

Test(placements, mixtral)
{
    check_fixture_placements("mixtral-a");
}

Test(placements, gptoss)
{
    check_fixture_placements("gptoss-a");
}

Test(placements, quantized)
{
    char *path = test_src_path("model/fable/fable-moe-Q4_K_M.gguf");
    cr_assert_not_null(path);
    json_t *reference = fixture_reference("deepseek3-a");
    unsigned n;
    int32_t *ids = prompt_ids(reference, "prompt_long", &n);
    check_placements(path, ids, 3);
    free(ids);
    json_decref(reference);
    free(path);
}

/* Experts packed at each use give the bits of those that were packed once. */
static void check_mapped_placements(const char *path, unsigned n)
{
    const size_t bytes = 2 * (size_t)n * vocabulary(path) * sizeof(float);
    int32_t *ids = calloc(2 * n, sizeof *ids);
    for (unsigned i = 0; i < 2 * n; i++) {
        ids[i] = (int32_t)(i * 31 % 97);
    }
    float *want = placed_logits(path, &placements[0].request, 1, 1, ids, n, false);
    for (unsigned i = 0; i < ARRAY_LEN(placements); i++) {
        float *got = placed_logits(path, &placements[i].request, 2, 3, ids, n, true);
        cr_assert_arr_eq(got, want, bytes, "%s: other bits", placements[i].name);
        free(got);
    }
    free(want);
    free(ids);
}

Test(placements, experts_in_the_file)
{
    static const char *const fixtures[] = {"deepseek3-a", "mixtral-a", "gptoss-a", "qwen3moe-a"};
    for (unsigned i = 0; i < ARRAY_LEN(fixtures); i++) {
        char *path = fixture_model(fixtures[i]);
        check_mapped_placements(path, 5);
        free(path);
    }
    char *path = test_src_path("model/fable/fable-moe-Q4_K_M.gguf");
    cr_assert_not_null(path);
    check_mapped_placements(path, 2);
    free(path);
}

/* What a plan counts besides weights is what is taken, and never less: where experts are cut, nodes
 * but the first take less. */
static void check_buffers(const char *name, numoe_placement mode, bool mapped,
                          const numoe_peers *peers)
{
    char *path = fixture_model(name);
    const struct placement_request request = {.mode = mode};
    const bool lanes = mode == NUMOE_PLACEMENT_REPLICATE;
    struct rig r = rig_open_as(path, 3, 5, 1, &request, mapped);
    uint64_t before[3], counted[3];
    struct step *step = NULL;
    for (unsigned in = 0; in < 3; in++) {
        before[in] = atomic_load(&r.topo->ledger->taken_bytes[in]);
    }
    cr_assert_eq(step_buffer_bytes(r.model, r.pools, r.topo, r.kern, 33, mapped, lanes && !peers,
                                   peers, counted, NULL),
                 NUMOE_OK);
    cr_assert_eq(step_new(r.model, r.store, r.pools, r.topo, r.kern, 33, NULL, peers, &step, NULL),
                 NUMOE_OK);
    cr_assert(!lanes || peers || step_make_lanes(step, NULL) == NUMOE_OK);
    for (unsigned in = 0; in < 3; in++) {
        const uint64_t taken = atomic_load(&r.topo->ledger->taken_bytes[in]) - before[in];
        const bool exact = in == 0 || mode == NUMOE_PLACEMENT_SHARD;
        cr_assert(exact ? taken == counted[in] : taken <= counted[in], "%s, node %u: %zu of %zu",
                  name, in, (size_t)taken, (size_t)counted[in]);
    }
    step_free(step);
    rig_close(&r);
    free(path);
}

Test(placements, buffers_are_counted)
{
    static const char *const fixtures[] = {"deepseek3-a", "mixtral-a", "gptoss-a", "qwen2moe-a"};
    for (unsigned i = 0; i < 2 * ARRAY_LEN(fixtures); i++) {
        check_buffers(fixtures[i / 2], NUMOE_PLACEMENT_SHARD, i % 2, NULL);
        check_buffers(fixtures[i / 2], NUMOE_PLACEMENT_SLICE, i % 2, NULL);
        check_buffers(fixtures[i / 2], NUMOE_PLACEMENT_REPLICATE, i % 2, NULL);
    }
    const numoe_peers peers = {.rank = 1, .n_rank = 3};
    check_buffers("gptoss-a", NUMOE_PLACEMENT_SHARD, false, &peers);
    check_buffers("deepseek3-a", NUMOE_PLACEMENT_SLICE, false, &peers);
}

/* Hundreds of tokens: groups of a replicated expert are cut into pieces for several nodes. */
Test(placements, long_prompt_on_replicas)
{
    char *path = fixture_model("mixtral-a");
    const unsigned n = 300;
    int32_t *ids = calloc(2 * n, sizeof *ids);
    struct expert_stats stats = uneven_stats(path);
    const struct placement_request request = {
        .mode = NUMOE_PLACEMENT_SHARD, .replica_percent = 300, .stats = &stats};
    for (unsigned i = 0; i < 2 * n; i++) {
        ids[i] = (int32_t)(i * 31 % 97);
    }
    const size_t bytes = 2 * (size_t)n * vocabulary(path) * sizeof(float);
    float *want = placed_logits(path, &placements[0].request, 1, 2, ids, n, false);
    float *got = placed_logits(path, &request, 3, 4, ids, n, false);
    cr_assert_arr_eq(got, want, bytes);
    expert_stats_fini(&stats);
    free(got);
    free(want);
    free(ids);
    free(path);
}

/* One decoded token reads each matrix that it needs once: all dense ones, k of E experts, and one
 * row of the embedding; how often experts were chosen adds up. */
Test(placements, traffic_is_what_a_token_needs)
{
    char *path = fixture_model("deepseek3-a");
    const int32_t id = 5;
    for (unsigned i = 0; i < ARRAY_LEN(placements); i++) {
        struct rig r = rig_open_placed(path, 3, 4, 1, &placements[i].request);
        const struct model_hparams *hp = &r.model->hp;
        struct kv_cache *kv = rig_cache(&r, KV_F32, 1);
        float *logits = calloc(hp->n_vocab, sizeof *logits);
        const struct rig_part part = {.ids = &id, .n = 1, .kv = kv, .logits = logits};
        struct shapes shapes;
        uint64_t want = 0, n_chosen = 0;
        unsigned n_moe = 0;
        rig_batch(&r, &part, 1);
        cr_assert_eq(shapes_new(r.model, &shapes, NULL), NUMOE_OK);
        for (unsigned is = 0; is < shapes.n; is++) {
            const struct shape *s = &shapes.shape[is];
            const uint64_t mat = (uint64_t)shape_panels(s) * shape_panel_bytes(s);
            if (s->slot == SLOT_TOKEN_EMBD) {
                want += shape_panel_bytes(s) / PANEL_ROWS + (shapes.is_tied ? mat : 0);
            } else if (s->kind != SHAPE_VECTOR) {
                want += mat * (shape_is_routed(s) ? hp->n_expert_used : s->n_mat);
            }
        }
        /* Copies let every node look up the embedding at home. */
        const uint64_t row = shape_panel_bytes(&shapes.shape[0]) / PANEL_ROWS;
        want += placements[i].request.mode == NUMOE_PLACEMENT_REPLICATE ? 2 * row : 0;
        cr_assert_eq(bytes_read(&r, false) + bytes_read(&r, true), want, "%s", placements[i].name);
        for (unsigned il = 0; il < hp->n_layer; il++) {
            n_moe += r.model->layer[il].is_moe;
        }
        for (unsigned j = 0; j < hp->n_layer * hp->n_expert; j++) {
            n_chosen += step_expert_counts(r.step)[j];
        }
        cr_assert_eq(n_chosen, n_moe * hp->n_expert_used);
        shapes_fini(&shapes);
        free(logits);
        kv_free(kv);
        rig_close(&r);
    }
    free(path);
}

/* ------------------------------------------------------------------ every arrangement */

/* Longer than a KV chunk, so that partial softmaxes are merged. */
static int32_t *long_ids(const char *name, unsigned n)
{
    json_t *reference = fixture_reference(name);
    unsigned n_prompt;
    int32_t *prompt = prompt_ids(reference, "prompt_long", &n_prompt);
    int32_t *ids = calloc(n, sizeof *ids);
    for (unsigned i = 0; i < n; i++) {
        ids[i] = prompt[(i + i / n_prompt) % n_prompt];
    }
    free(prompt);
    json_decref(reference);
    return ids;
}

static const struct arrangement arrangements[] = {
    {1, 1, 300}, {1, 1, 1},  {1, 2, 7},   {1, 5, 32}, {2, 2, 300}, {2, 5, 1},
    {2, 5, 7},   {3, 3, 32}, {3, 5, 300}, {3, 5, 1},  {3, 1, 32},  {0, 0, 300},
};

static void check_fixture_bits(const char *name, bool f16)
{
    char *path = fixture_model(name);
    int32_t *ids = long_ids(name, 300);
    check_arrangements(path, f16, ids, 300, arrangements, ARRAY_LEN(arrangements));
    free(ids);
    free(path);
}

Test(same_bits, query_rank)
{
    check_fixture_bits("deepseek3-a", false);
}

Test(same_bits, no_query_rank)
{
    check_fixture_bits("deepseek2-lite-a", true);
}

/* Several chunks of the cache; windows that begin within a chunk and sinks; groups of heads. */
static void check_long_bits(const char *name, bool f16)
{
    static const struct arrangement some[] = {{1, 1, 600}, {1, 1, 1},   {1, 2, 7},
                                              {2, 5, 32},  {1, 3, 256}, {0, 0, 600}};
    char *path = fixture_model(name);
    int32_t *ids = long_ids("deepseek3-a", 600);
    check_arrangements(path, f16, ids, 600, some, ARRAY_LEN(some));
    free(ids);
    free(path);
}

Test(same_bits, windows_and_sinks)
{
    check_long_bits("gptoss-a", true);
}

Test(same_bits, grouped_heads)
{
    check_long_bits("qwen3moe-a", false);
}

/* Quantized weights meet quantized activations, whose blocks workers and nodes cut differently. */
Test(same_bits, quantized)
{
    static const struct arrangement some[] = {{1, 1, 40}, {1, 2, 1}, {2, 5, 7}, {3, 4, 40}};
    char *path = test_src_path("model/fable/fable-moe-Q4_K_M.gguf");
    cr_assert_not_null(path);
    int32_t *ids = long_ids("deepseek3-a", 40);
    check_arrangements(path, true, ids, 40, some, ARRAY_LEN(some));
    free(ids);
    free(path);
}

/* Two sequences, each in uneven pieces, that meet in batches. */
Test(same_bits, company)
{
    char *path = fixture_model("deepseek3-a");
    const unsigned n = 290, n_vocab = vocabulary(path);
    int32_t *ids = long_ids("deepseek3-a", n + 1);
    float *want[2], *got[2];
    struct rig r = rig_open(path, 2, 3, 128);
    struct kv_cache *kv[2];
    for (unsigned is = 0; is < 2; is++) {
        want[is] = arranged_logits(path, (struct arrangement){1, 1, n}, false, ids + is, n);
        got[is] = calloc((size_t)n * n_vocab, sizeof(float));
        kv[is] = rig_cache(&r, KV_F32, n);
    }
    unsigned at[2] = {0, 0};
    while (at[0] < n || at[1] < n) {
        struct rig_part part[2];
        for (unsigned is = 0; is < 2; is++) {
            const unsigned piece = MIN(is == 0 ? 64 : at[0] % 3 + 27, n - at[is]);
            part[is] = (struct rig_part){.ids = ids + is + at[is],
                                         .from = at[is],
                                         .n = piece,
                                         .kv = kv[is],
                                         .logits = got[is] + (size_t)at[is] * n_vocab};
            at[is] += piece;
        }
        rig_batch(&r, part, 2);
    }
    for (unsigned is = 0; is < 2; is++) {
        cr_assert_arr_eq(got[is], want[is], (size_t)n * n_vocab * sizeof(float), "sequence %u", is);
        kv_free(kv[is]);
        free(got[is]);
        free(want[is]);
    }
    rig_close(&r);
    free(ids);
    free(path);
}
