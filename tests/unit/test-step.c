/* The forward pass against references that were computed elsewhere (tests/data/fixtures/README.md),
 * and against itself: the same bits for any number of workers and nodes, any cutting of the prompt,
 * and any company in the batch.
 */
#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>

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

static double relative_l2(const float *x, const float *ref, size_t n)
{
    double diff = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        diff += ((double)x[i] - ref[i]) * ((double)x[i] - ref[i]);
        norm += (double)ref[i] * ref[i];
    }
    return sqrt(diff / norm);
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
    struct kv_cache *kv = rig_cache(r, false, n);
    float *logits = calloc((size_t)n * hp->n_vocab, sizeof *logits);
    int32_t *routes = calloc((size_t)hp->n_layer * n * hp->n_expert_used, sizeof *routes);
    rig_prompt(r, kv, ids, n, 64, logits, routes);
    for (unsigned t = 0; t < n; t++) {
        const size_t at = (size_t)t * hp->n_vocab;
        const double rel = relative_l2(logits + at, (const float *)want.data + at, hp->n_vocab);
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

static void check_greedy(const struct rig *r, const json_t *reference)
{
    const unsigned n_vocab = r->model->hp.n_vocab;
    unsigned n, n_want;
    int32_t *ids = prompt_ids(reference, "prompt_short", &n);
    int32_t *want = int_array(json_object_get(reference, "greedy_32"), &n_want);
    struct kv_cache *kv = rig_cache(r, false, n + n_want);
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

static void check_fixture(const char *name)
{
    char *path = fixture_model(name);
    json_t *reference = fixture_reference(name);
    struct rig r = rig_open(path, 0, 2, 64);
    check_prompt(&r, name, reference, "short", 1e-4);
    check_prompt(&r, name, reference, "long", 1e-4);
    check_greedy(&r, reference);
    rig_close(&r);
    json_decref(reference);
    free(path);
}

#define FIXTURE_TEST(test, name)                                                                   \
    Test(fixtures, test)                                                                           \
    {                                                                                              \
        check_fixture(name);                                                                       \
    }

FIXTURE_TEST(deepseek2_lite, "deepseek2-lite-a")
FIXTURE_TEST(deepseek2_full, "deepseek2-full-a")
FIXTURE_TEST(deepseek3, "deepseek3-a")
