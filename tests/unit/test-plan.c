/* The cost model on machines and models that are not here: every public topology with every
 * geometry stays below the bandwidth bound, grows with bandwidth, and places what the file has.
 */
#include <criterion/criterion.h>

#include <dirent.h>

#include "model/geometry.h"
#include "store/placement-work.h"
#include "tests/unit/testdata.h"

static const char *const geometry_names[] = {"deepseek-v3", "kimi-k2", "qwen3-235b", "mixtral",
                                             "powermoe-3b"};

/* Parameters as their publishers count them, in billions; within what a vocabulary makes. */
Test(plan, geometries_have_the_published_sizes)
{
    static const double billions[] = {671, 1026, 235, 46.7, 3.3};
    for (unsigned i = 0; i < ARRAY_LEN(billions); i++) {
        struct model *model = NULL;
        numoe_error err = {0};
        cr_assert_eq(geometry_open(geometry_names[i], "Q8_0", &model, &err), NUMOE_OK, "%s",
                     err.text);
        cr_assert_float_eq((double)model->n_param * 1e-9, billions[i], 0.03 * billions[i], "%s: %g",
                           geometry_names[i], (double)model->n_param * 1e-9);
        model_close(model);
    }
}

Test(plan, unknown_names)
{
    struct model *model = NULL;
    numoe_error err = {0};
    cr_assert_eq(geometry_open("deepseek", "Q8_0", &model, &err), NUMOE_E_INPUT, "ambiguous");
    cr_assert_not_null(strstr(err.text, "deepseek-v3"), "%s", err.text);
    cr_assert_eq(geometry_open("", "Q8_0", &model, &err), NUMOE_E_INPUT);
    cr_assert_eq(geometry_open("kimi-k2", "Q9", &model, &err), NUMOE_E_INPUT);
    cr_assert_not_null(strstr(err.text, "Q4_K_M"), "%s", err.text);
}

static double decode_rate(const struct shapes *shapes, const struct placement_machine *m,
                          numoe_placement mode, struct placement_cost *cost)
{
    const struct placement_request request = {.mode = mode};
    struct placement *p = NULL;
    numoe_error err = {0};
    cr_assert_eq(placement_make(shapes, m, &request, &p, &err), NUMOE_OK, "%s", err.text);
    placement_cost(p, shapes, m, NULL, 512, cost);
    placement_free(p);
    return 1 / cost->decode_s;
}

/* One copy: what the nodes have is all there is, and not more than the file has but for rows that
 * fill panels up, vectors on every node, and parts of cache lines. */
static void check_memory(const struct shapes *shapes, const struct model *model,
                         const struct placement_machine *m)
{
    const struct placement_request request = {.mode = NUMOE_PLACEMENT_SLICE};
    struct placement *p = NULL;
    uint64_t sum = 0;
    cr_assert_eq(placement_make(shapes, m, &request, &p, NULL), NUMOE_OK);
    for (unsigned in = 0; in < p->n_node; in++) {
        sum += p->node_bytes[in];
    }
    cr_assert_eq(sum, p->total_bytes);
    cr_assert_geq((double)sum, (double)model->gguf->tensor_bytes * 0.999);
    cr_assert_leq((double)sum, (double)model->gguf->tensor_bytes * 1.03, "%s", model->name);
    placement_free(p);
}

static void check(const struct model *model, struct placement_machine m, const char *file)
{
    static const numoe_placement modes[] = {NUMOE_PLACEMENT_SLICE, NUMOE_PLACEMENT_SHARD,
                                            NUMOE_PLACEMENT_REPLICATE, NUMOE_PLACEMENT_INTERLEAVE};
    struct shapes shapes;
    struct placement_machine faster = m;
    cr_assert_eq(shapes_new(model, &shapes, NULL), NUMOE_OK);
    for (unsigned in = 0; in < m.n_node; in++) {
        faster.node[in].read_bps *= 1.5;
    }
    for (unsigned i = 0; i < ARRAY_LEN(modes); i++) {
        struct placement_cost cost, cost_faster;
        const double rate = decode_rate(&shapes, &m, modes[i], &cost);
        const double bound = placement_bound(&shapes, &m);
        cr_assert_gt(rate, 0);
        cr_assert_leq(rate, bound * (1 + 1e-9), "%s on %s, %s: %g above %g", model->name, file,
                      placement_mode_name(modes[i]), rate, bound);
        cr_assert_gt(decode_rate(&shapes, &faster, modes[i], &cost_faster), rate);
        cr_assert_leq(cost_faster.prefill_s, cost.prefill_s);
        cr_assert_geq(cost.link_bytes, 0);
        cr_assert_eq(cost.link_bytes == 0, m.n_node == 1);
    }
    check_memory(&shapes, model, &m);
    shapes_fini(&shapes);
}

/* ------------------------------------------------------------------ parts of a prediction */

/* 16 panels are one round of 16 workers; the 17th takes another one, at twice a worker's part of
 * the bandwidth; one panel alone keeps 15 of 16 waiting. */
Test(plan, rounds_of_panels)
{
    cr_assert_float_eq(placement_rounds(16, 16), 1, 1e-12);
    cr_assert_float_eq(placement_rounds(160, 16), 1, 1e-12);
    cr_assert_float_eq(placement_rounds(17, 16), 1.5 / (17.0 / 16), 1e-12);
    cr_assert_float_eq(placement_rounds(31, 16), 1, 1e-12);
    cr_assert_float_eq(placement_rounds(1, 16), 8, 1e-12);
    cr_assert_float_eq(placement_rounds(5, 1), 1, 1e-12);
}

static struct placement_cost cost_of(const char *type, unsigned n_worker, double read_bps,
                                     double meet_s)
{
    struct model *model = NULL;
    struct shapes shapes;
    struct placement_cost cost;
    struct placement_machine m = {.n_node = 1,
                                  .limit_bytes = UINT64_MAX,
                                  .kernel_share = PLACEMENT_KERNEL_SHARE,
                                  .meet_node_s = meet_s,
                                  .way_out = "",
                                  .bps_source = "given"};
    m.node[0] = (struct placement_node){
        .n_worker = n_worker, .read_bps = read_bps, .room_bytes = UINT64_MAX};
    cr_assert_eq(geometry_open("powermoe-3b", type, &model, NULL), NUMOE_OK);
    cr_assert_eq(shapes_new(model, &shapes, NULL), NUMOE_OK);
    decode_rate(&shapes, &m, NUMOE_PLACEMENT_SLICE, &cost);
    shapes_fini(&shapes);
    model_close(model);
    cr_assert_float_eq(cost.decode_s, cost.read_s + cost.meet_s + cost.vector_s + cost.step_s,
                       1e-12);
    return cost;
}

/* What binds is named, and more of it is slower. */
Test(plan, bounds_are_named)
{
    const struct placement_cost memory = cost_of("Q8_0", 16, 50e9, 1e-6);
    cr_assert_str_eq(memory.bound, "memory bandwidth");
    cr_assert_eq(memory.arith_s, 0);
    const struct placement_cost arithmetic = cost_of("IQ2_XXS", 2, 200e9, 1e-6);
    cr_assert_str_eq(arithmetic.bound, "arithmetic of products");
    cr_assert_gt(cost_of("IQ2_XXS", 1, 200e9, 1e-6).read_s, 1.9 * arithmetic.read_s);
    const struct placement_cost meetings = cost_of("Q4_K_M", 64, 2000e9, 20e-6);
    cr_assert_str_eq(meetings.bound, "meetings");
    cr_assert_float_eq(cost_of("Q4_K_M", 64, 2000e9, 40e-6).meet_s, 2 * meetings.meet_s, 1e-12);
}

/* What was measured as it is divided is not divided unevenly once more. */
Test(plan, measured_products_have_no_rounds)
{
    struct placement_machine m = {.n_node = 1};
    cr_assert_float_eq(placement_product_rounds(&m, FORMAT_Q4_K, 1, 16), 8, 1e-12);
    m.format_share[FORMAT_Q4_K] = 0.5;
    cr_assert_float_eq(placement_product_rounds(&m, FORMAT_Q4_K, 1, 16), 1, 1e-12);
    cr_assert_float_eq(placement_product_rounds(&m, FORMAT_Q8_0, 1, 16), 8, 1e-12);
}

/* Quantized: 32 elements for each of 2 heads of one matrix, 64 of the other, 64 for the output;
 * gated as well: 16 for each of 4 chosen experts. Two workers divide these. */
Test(plan, inputs_of_products_are_divided)
{
    struct shape shape[] = {
        {.slot = SLOT_K_B, .n_mat = 2, .k = 32},
        {.slot = SLOT_V_B, .n_mat = 2, .k = 64},
        {.slot = SLOT_O, .n_mat = 1, .k = 64},
        {.slot = SLOT_DOWN_EXPS, .n_mat = 8, .k = 16},
    };
    const struct shapes shapes = {.shape = shape,
                                  .n = ARRAY_LEN(shape),
                                  .n_expert = 8,
                                  .n_expert_used = 4,
                                  .is_latent = true};
    const struct placement_machine m = {.n_node = 1, .element_s = 1};
    const double all = 0.5 * (2 * 32 + 2 * 64 + 64) + 1.25 * 4 * 16;
    cr_assert_float_eq(placement_vector_seconds(&shapes, &m, 1, 1, 1), all, 1e-9);
    cr_assert_float_eq(placement_vector_seconds(&shapes, &m, 1, 2, 2), all / 2, 1e-9);
    cr_assert_float_eq(placement_vector_seconds(&shapes, &m, 3, 2, 2), 3 * all / 2, 1e-9);
}

/* A type's own share of the bandwidth, where it was measured, stands before any table. */
Test(plan, measured_shares_come_first)
{
    struct placement_machine m = {.n_node = 1, .kernel_share = 0.9};
    m.node[0] = (struct placement_node){.n_worker = 1, .read_bps = 100e9};
    cr_assert_float_eq(placement_product_bps(&m, 0, FORMAT_BF16), 90e9, 1);
    cr_assert_float_eq(placement_product_bps(&m, 0, FORMAT_IQ1_S), 4e9, 1);
    m.format_share[FORMAT_IQ1_S] = 0.5;
    cr_assert_float_eq(placement_product_bps(&m, 0, FORMAT_IQ1_S), 50e9, 1);
}

/* Any room: whether it fits is another question. */
static struct placement_machine machine_of(const char *topology)
{
    struct topo *topo = NULL;
    struct pools *pools = NULL;
    struct placement_machine m;
    numoe_error err = {0};
    cr_assert_eq(topo_load(topology, &topo, &err), NUMOE_OK, "%s: %s", topology, err.text);
    cr_assert_eq(pools_new(topo, 0, &pools, &err), NUMOE_OK, "%s", err.text);
    cr_assert_eq(placement_machine_init(topo, pools, false, &m, &err), NUMOE_OK);
    pools_free(pools);
    topo_free(topo);
    m.limit_bytes = UINT64_MAX;
    for (unsigned in = 0; in < m.n_node; in++) {
        m.node[in].room_bytes = UINT64_MAX;
    }
    m.kernel_share = PLACEMENT_KERNEL_SHARE;
    return m;
}

static void check_all_geometries(const char *topology)
{
    const struct placement_machine m = machine_of(topology);
    for (unsigned i = 0; i < ARRAY_LEN(geometry_names); i++) {
        struct model *model = NULL;
        cr_assert_eq(geometry_open(geometry_names[i], "Q4_K_M", &model, NULL), NUMOE_OK);
        check(model, m, topology);
        model_close(model);
    }
}

Test(plan, one_made_up_machine_with_every_geometry)
{
    check_all_geometries("pack:2 [numa(memory=64GiB)] core:8 pu:1");
}

Test(plan, every_public_topology_with_every_geometry)
{
    char *folder = test_data_path("topologies");
    if (folder == NULL) {
        cr_skip_test("no topologies");
    }
    DIR *dir = opendir(folder);
    unsigned n = 0;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        char path[4096];
        const char *dot = strrchr(entry->d_name, '.');
        if (dot != NULL && strcmp(dot, ".xml") == 0) {
            snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
            check_all_geometries(path);
            n++;
        }
    }
    closedir(dir);
    cr_assert_gt(n, 0);
    free(folder);
}
