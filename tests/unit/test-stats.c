/* Expert statistics: files there and back, importance matrices that the gguf package and the
 * format's description made (tests/data/imatrix), what is said of them, and what they buy: replicas
 * against the prediction.
 */
#include <criterion/criterion.h>

#include <math.h>

#include "experts/dispatch.h"
#include "runtime/adapt.h"
#include "store/stats.h"
#include "tests/unit/rig.h"
#include "tests/unit/testdata.h"

static char *open_own(const char *rel, struct model **model)
{
    numoe_error err = {0};
    char *path = test_src_path(rel);
    cr_assert_not_null(path, "%s", rel);
    cr_assert_eq(model_open(path, model, &err), NUMOE_OK, "%s", err.text);
    return path;
}

static struct expert_stats read_imatrix(const char *name)
{
    char rel[64];
    numoe_error err = {0};
    struct expert_stats s = {0};
    snprintf(rel, sizeof rel, "tests/data/imatrix/%s", name);
    char *path = test_src_path(rel);
    cr_assert_not_null(path);
    cr_assert_eq(expert_stats_read(path, &s, &err), NUMOE_OK, "%s", err.text);
    free(path);
    return s;
}

/* ------------------------------------------------------------------ files */

Test(stats, file_there_and_back)
{
    struct model *model = NULL, *other = NULL;
    struct expert_stats back = {0}, want;
    numoe_error err = {0};
    char file[] = "/tmp/numoe-stats-XXXXXX";
    char *path = open_own("tests/data/fixtures/mixtral-a/mixtral-a-f32.gguf", &model);
    cr_assert_geq(mkstemp(file), 0);
    const unsigned n_layer = model->hp.n_layer, n_expert = model->hp.n_expert;
    const size_t n = (size_t)n_layer * n_expert, n_pair = n_layer * expert_stats_pairs(n_expert);
    cr_assert_eq(expert_stats_new(n_layer, n_expert, 2, true, &want, &err), NUMOE_OK);
    for (size_t i = 0; i < n; i++) {
        want.count[i] = i * UINT64_C(0x100000001);
        want.weight[i] = (double)i / 3;
    }
    for (size_t i = 0; i < n_pair; i++) {
        want.pair[i] = i * 7;
    }
    FILE *f = fopen(file, "wb");
    cr_assert_not_null(f);
    cr_assert_eq(expert_stats_save(f, &want, &err), NUMOE_OK, "%s", err.text);
    fclose(f);
    cr_assert_eq(expert_stats_load(file, model, &back, &err), NUMOE_OK, "%s", err.text);
    cr_assert(back.n_layer == n_layer && back.n_expert == n_expert && back.n_used == 2);
    cr_assert_arr_eq(back.count, want.count, n * sizeof *want.count);
    cr_assert_arr_eq(back.weight, want.weight, n * sizeof *want.weight);
    cr_assert_arr_eq(back.pair, want.pair, n_pair * sizeof *want.pair);
    expert_stats_fini(&back);

    char *other_path = open_own("tests/data/fixtures/deepseek3-a/deepseek3-a-f32.gguf", &other);
    cr_assert_eq(expert_stats_load(file, other, &back, &err), NUMOE_E_INPUT);
    cr_assert_not_null(strstr(err.text, "the model has"), "%s", err.text);
    cr_assert_eq(expert_stats_load(path, model, &back, &err), NUMOE_E_FILE_MODEL, "not statistics");
    cr_assert_not_null(f = fopen(file, "rb"));
    cr_assert_eq(expert_stats_save(f, &want, &err), NUMOE_E_FILE_WRITE);
    cr_assert_not_null(strstr(err.text, "expert statistics cannot be written: Bad file"));
    fclose(f);
    expert_stats_fini(&want);
    model_close(other);
    model_close(model);
    remove(file);
    free(other_path);
    free(path);
}

Test(stats, importance_matrices)
{
    static const uint64_t want[3][4] = {{0}, {10, 20, 30, 40}, {0, 64, 4, 32}};
    struct expert_stats exact = read_imatrix("counts.gguf"), sums = read_imatrix("sums.dat");
    cr_assert(exact.n_layer == 3 && exact.n_expert == 4 && exact.is_foreign);
    cr_assert_null(exact.weight);
    cr_assert_arr_eq(exact.count, want, sizeof want);
    cr_assert(sums.n_layer == 3 && sums.n_expert == 4);
    for (unsigned i = 0; i < 12; i++) { /* millionths of a layer's choices, which are 100 */
        cr_assert_eq(sums.count[i], want[i / 4][i % 4] * 10000, "%u", i);
    }
    expert_stats_fini(&exact);
    expert_stats_fini(&sums);

    numoe_error err = {0};
    char *path = test_src_path("tests/data/imatrix/means.dat");
    cr_assert_eq(expert_stats_read(path, &exact, &err), NUMOE_E_FILE_MODEL);
    cr_assert_not_null(strstr(err.text, "importance matrix of means"), "%s", err.text);
    free(path);
}

Test(stats, importance_matrix_with_an_entry_for_each_expert)
{
    static const uint64_t want[3][4] = {{0}, {10, 20, 30, 40}, {0, 64, 4, 32}};
    struct expert_stats old = read_imatrix("old.dat");
    cr_assert(old.n_layer == 3 && old.n_expert == 4 && old.is_foreign);
    for (unsigned i = 0; i < 12; i++) {
        cr_assert_eq(old.count[i], want[i / 4][i % 4] * 10000, "%u", i);
    }
    expert_stats_fini(&old);
}

/* In sums no expert has more than the router, which sees all tokens. */
Test(stats, importance_matrix_of_means_with_few_experts)
{
    struct expert_stats s = {0};
    numoe_error err = {0};
    char *path = test_src_path("tests/data/imatrix/few.dat");
    cr_assert_eq(expert_stats_read(path, &s, &err), NUMOE_E_FILE_MODEL);
    cr_assert_not_null(strstr(err.text, "importance matrix of means"), "%s", err.text);
    free(path);
}

/* The last layer with an entry is 2: that fits models which have more, and as many experts. */
Test(stats, importance_matrix_of_a_longer_model)
{
    struct gguf no_file = {.n_part = 0};
    struct model model = {.gguf = &no_file, .hp = {.n_layer = 5, .n_expert = 4}};
    struct expert_stats s = {0};
    numoe_error err = {0};
    char *path = test_src_path("tests/data/imatrix/counts.gguf");
    cr_assert_eq(expert_stats_load(path, &model, &s, &err), NUMOE_OK, "%s", err.text);
    cr_assert_eq(s.n_layer, 5);
    cr_assert(s.count[4] == 10 && s.count[3 * 4] == 0 && s.count[5 * 4 - 1] == 0);
    expert_stats_fini(&s);
    model.hp.n_layer = 2;
    cr_assert_eq(expert_stats_load(path, &model, &s, &err), NUMOE_E_INPUT);
    model.hp.n_nextn = 1;
    cr_assert_eq(expert_stats_load(path, &model, &s, &err), NUMOE_OK, "%s", err.text);
    cr_assert_eq(s.n_layer, 2);
    expert_stats_fini(&s);
    model.hp.n_expert = 8;
    cr_assert_eq(expert_stats_load(path, &model, &s, &err), NUMOE_E_INPUT);
    free(path);
}

/* Every beginning of the older form is refused in a line that names the file. */
Test(stats, importance_matrix_cut_anywhere)
{
    char *path = test_src_path("tests/data/imatrix/sums.dat");
    unsigned char data[2048];
    FILE *f = fopen(path, "rb");
    const size_t bytes = fread(data, 1, sizeof data, f), tail = 4 + 4 + 8;
    fclose(f);
    struct expert_stats s = {0};
    numoe_error err = {0};
    cr_assert_eq(imatrix_parse(data, bytes - tail, "name", &s, &err), NUMOE_OK, "%s", err.text);
    expert_stats_fini(&s);
    for (size_t n = 0; n < bytes - tail; n++) {
        cr_assert_neq(imatrix_parse(data, n, "name", &s, &err), NUMOE_OK, "%zu bytes", n);
        cr_assert_eq(strncmp(err.text, "name: ", 6), 0, "%s", err.text);
    }
    free(path);
}

Test(stats, merging)
{
    struct expert_stats a, b, c;
    const int32_t ids[] = {3, 1}, more[] = {1, 0};
    const float weights[] = {0.75f, 0.25f};
    numoe_error err = {0};
    cr_assert_eq(expert_stats_new(2, 4, 2, true, &a, &err), NUMOE_OK);
    cr_assert_eq(expert_stats_new(2, 4, 2, true, &b, &err), NUMOE_OK);
    cr_assert_eq(expert_stats_new(2, 5, 2, false, &c, &err), NUMOE_OK);
    expert_stats_count(&a, 1, 2, ids, weights);
    expert_stats_count(&b, 1, 2, ids, weights);
    expert_stats_count(&b, 1, 2, more, weights);
    cr_assert_eq(expert_stats_merge(&a, &b, &err), NUMOE_OK);
    cr_assert(a.count[4 + 1] == 3 && a.count[4 + 3] == 2 && a.count[4] == 1 && a.count[4 + 2] == 0);
    cr_assert_float_eq(a.weight[4 + 1], 0.25 + 0.25 + 0.75, 0);
    /* pairs 01 02 03 12 13 23 */
    const uint64_t *pair = a.pair + 6;
    cr_assert(pair[0] == 1 && pair[4] == 2 && pair[1] + pair[2] + pair[3] + pair[5] == 0);
    cr_assert_eq(expert_stats_merge(&a, &c, &err), NUMOE_E_INPUT);
    struct expert_stats foreign = {.n_layer = 2, .n_expert = 4, .count = b.count};
    cr_assert_eq(expert_stats_merge(&a, &foreign, &err), NUMOE_OK);
    cr_assert(a.weight == NULL && a.pair == NULL && a.count[4 + 1] == 5);
    expert_stats_fini(&a);
    expert_stats_fini(&b);
    expert_stats_fini(&c);
}

/* By hand: 40 + 30 + 20 + 10. */
Test(stats, coverage_and_imbalance)
{
    static const uint64_t count[] = {10, 20, 30, 40}, none[] = {0, 0};
    uint64_t sorted[4];
    expert_stats_sort(count, 4, sorted);
    cr_assert_float_eq(expert_stats_coverage(sorted, 4, 0), 0, 1e-12);
    cr_assert_float_eq(expert_stats_coverage(sorted, 4, 0.25), 0.4, 1e-12);
    cr_assert_float_eq(expert_stats_coverage(sorted, 4, 0.375), 0.55, 1e-12);
    cr_assert_float_eq(expert_stats_coverage(sorted, 4, 1), 1, 1e-12);
    cr_assert_float_eq(expert_stats_imbalance(count, 4), 1.6, 1e-12);
    cr_assert_float_eq(expert_stats_coverage(none, 2, 0.5), 0, 1e-12);
    cr_assert_float_eq(expert_stats_imbalance(none, 2), 0, 1e-12);
}

/* ------------------------------------------------------------------ replicas */

#define N_TEXT 400u

/* The bundled model's own choices for N_TEXT tokens, one batch after the other. */
static int32_t *routes_of_text(const struct rig *r)
{
    const struct model_hparams *hp = &r->model->hp;
    int32_t *ids = calloc(N_TEXT, sizeof *ids);
    int32_t *routes = calloc((size_t)hp->n_layer * N_TEXT * hp->n_expert_used, sizeof *routes);
    float *logits = calloc((size_t)N_TEXT * hp->n_vocab, sizeof *logits);
    struct kv_cache *kv = rig_cache(r, KV_F32, N_TEXT);
    for (unsigned t = 0; t < N_TEXT; t++) { /* varied, but the same every time */
        ids[t] = (int32_t)((uint64_t)t * t * 2654435761u >> 7 & 0xffffff) % (int32_t)hp->n_vocab;
    }
    rig_prompt(r, kv, ids, N_TEXT, r->max_tokens, logits, routes);
    kv_free(kv);
    free(logits);
    free(ids);
    return routes;
}

/* The busiest node's experts of each token in each layer, over half of them. */
static double measured_imbalance(const struct rig *r, const int32_t *routes)
{
    const struct model_hparams *hp = &r->model->hp;
    const unsigned k = hp->n_expert_used, n_item = dispatch_max_items(hp->n_expert, k);
    struct dispatch d = {
        .item = calloc(n_item, sizeof *d.item),
        .open = calloc(hp->n_expert, sizeof *d.open),
        .count = calloc(hp->n_expert, sizeof *d.count),
        .token = calloc(k, sizeof *d.token),
        .pair = calloc(k, sizeof *d.pair),
    };
    double sum = 0, n = 0;
    for (unsigned il = 0; il < hp->n_layer; il++) {
        const uint64_t *holders = r->store->holders + (size_t)il * hp->n_expert;
        for (unsigned t = 0; r->model->layer[il].is_moe && t < N_TEXT; t++) {
            dispatch_build(routes + ((size_t)il * N_TEXT + t) * k, 1, k, hp->n_expert, &d);
            dispatch_share(&d, holders, 2, r->store->share, 0);
            sum += MAX(d.n_pair, k - d.n_pair) / (k / 2.0);
            n++;
        }
    }
    free(d.item), free(d.open), free(d.count), free(d.token), free(d.pair);
    return sum / n;
}

static double predicted_imbalance(const struct rig *r, const struct placement_request *request)
{
    struct shapes shapes;
    struct placement_machine machine;
    struct placement *plan = NULL;
    numoe_error err = {0};
    cr_assert_eq(shapes_new(r->model, &shapes, &err), NUMOE_OK);
    cr_assert_eq(placement_machine_init(r->topo, r->pools, false, &machine, &err), NUMOE_OK);
    cr_assert_eq(placement_make(&shapes, &machine, request, &plan, &err), NUMOE_OK, "%s", err.text);
    const double imbalance = plan->imbalance;
    if (request->replica_bytes > 0) {
        cr_assert_geq(plan->n_replicated, plan->n_expert * 23 / 100);
        cr_assert_leq(plan->n_replicated, plan->n_expert * 25 / 100);
        cr_assert_gt(plan->replica_share, 0.25, "the hottest quarter serves more than a quarter");
    }
    placement_free(plan);
    shapes_fini(&shapes);
    return imbalance;
}

/* With the hottest quarter of the experts on both of two nodes, a token's experts divide between
 * the nodes as evenly as the plan says, and more evenly than without. With 32 experts, 16 on each
 * node and 4 chosen alike, the busier node has max(X, 4 - X) of them, X hypergeometric: 2.70, 1.35
 * times its half. */
Test(replicas, imbalance_falls_as_predicted, .timeout = 120)
{
    char *path = test_src_path("model/fable/fable-moe-Q4_K_M.gguf");
    cr_assert_not_null(path);
    struct placement_request request = {.mode = NUMOE_PLACEMENT_SHARD};
    struct rig r = rig_open_placed(path, 2, 2, 64, &request);
    int32_t *routes = routes_of_text(&r);
    struct expert_stats stats;
    const struct model_hparams *hp = &r.model->hp;
    cr_assert_eq(
        expert_stats_new(hp->n_layer, hp->n_expert, hp->n_expert_used, false, &stats, NULL),
        NUMOE_OK);
    step_add_stats(r.step, &stats);
    const double before = measured_imbalance(&r, routes);
    cr_assert_float_eq(predicted_imbalance(&r, &request), 1.35, 0.05);
    cr_assert_float_eq(before, 1.35, 0.08, "%g", before);

    request.stats = &stats;
    const double routed = (double)r.model->active.routed / hp->n_expert_used * hp->n_expert;
    request.replica_bytes = (uint64_t)(routed / 4);
    rig_close(&r);
    r = rig_open_placed(path, 2, 2, 64, &request);
    const double after = measured_imbalance(&r, routes),
                 predicted = predicted_imbalance(&r, &request);
    cr_assert_lt(after, before - 0.1, "%g after %g", after, before);
    cr_assert_float_eq(after, predicted, 0.08, "measured %g, predicted %g", after, predicted);
    rig_close(&r);
    expert_stats_fini(&stats);
    free(routes);
    free(path);
}

static const uint64_t *counts_of(const void *step)
{
    return step_expert_counts(step);
}

/* The same with copies that are made afterwards, of what was counted: as the plan predicts for copies
 * that are there from the beginning. */
Test(replicas, live_counts_buy_the_same, .timeout = 120)
{
    char *path = test_src_path("model/fable/fable-moe-Q4_K_M.gguf");
    cr_assert_not_null(path);
    struct model *model = NULL;
    cr_assert_eq(model_open(path, &model, NULL), NUMOE_OK);
    const struct model_hparams *hp = &model->hp;
    const double routed = (double)model->active.routed / hp->n_expert_used * hp->n_expert;
    struct placement_request request = {.mode = NUMOE_PLACEMENT_SHARD,
                                        .replica_bytes = (uint64_t)(routed / 4 * 1.15),
                                        .replicas_change = true};
    struct rig r = rig_open_placed(path, 2, 2, 64, &request);
    int32_t *routes = routes_of_text(&r);
    const double before = measured_imbalance(&r, routes);
    struct adapt *adapt = NULL;
    cr_assert_eq(adapt_new(r.model, r.store, false, &adapt, NULL), NUMOE_OK);
    for (unsigned i = 0; i < 1000; i++) {
        adapt_look(adapt, r.pools, counts_of, r.step);
        adapt_note(adapt, 1000000000, 64);
    }
    const struct adapt_totals totals = adapt_get_totals(adapt);
    const double after = measured_imbalance(&r, routes);
    cr_assert(totals.n_place >= 38 && totals.n_place <= 42, "a quarter of 160 experts");
    cr_assert_eq(totals.n_made, totals.n_place);
    cr_assert_eq(totals.n_swapped, 0);

    struct expert_stats stats;
    cr_assert_eq(
        expert_stats_new(hp->n_layer, hp->n_expert, hp->n_expert_used, false, &stats, NULL),
        NUMOE_OK);
    step_add_stats(r.step, &stats);
    request = (struct placement_request){.mode = NUMOE_PLACEMENT_SHARD,
                                         .replica_bytes = (uint64_t)(routed / 4),
                                         .stats = &stats};
    const double predicted = predicted_imbalance(&r, &request);
    cr_assert_lt(after, before - 0.1, "%g after %g", after, before);
    cr_assert_float_eq(after, predicted, 0.08, "measured %g, predicted %g", after, predicted);
    adapt_free(adapt);
    rig_close(&r);
    model_close(model);
    expert_stats_fini(&stats);
    free(routes);
    free(path);
}
