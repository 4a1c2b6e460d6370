/* Placement and loading: every row of the file is on exactly one node, byte for byte; derived
 * weights have the values they were derived from; failures are told.
 */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <glob.h>
#include <math.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/log.h"
#include "runtime/place.h"
#include "tests/unit/rig.h"
#include "tests/unit/testdata.h"
#include "tests/unit/tinymodel.h"

/* ------------------------------------------------------------------ placement */

Test(placement, even_uneven_and_few)
{
    uint32_t row0[5];
    placement_rows(1408, 2, (double[]){1, 1}, row0); /* 88 panels */
    cr_assert_arr_eq(row0, ((uint32_t[]){0, 704, 1408}), sizeof(uint32_t[3]));
    placement_rows(1408, 2, (double[]){12, 20}, row0); /* 33 and 55 panels */
    cr_assert_arr_eq(row0, ((uint32_t[]){0, 528, 1408}), sizeof(uint32_t[3]));
    placement_rows(40, 4, (double[]){1, 1, 1, 1}, row0); /* 3 panels, the last one short */
    cr_assert_arr_eq(row0, ((uint32_t[]){0, 16, 32, 32, 40}), sizeof(uint32_t[5]));
    placement_rows(1, 3, (double[]){1, 1, 1}, row0); /* one row is somewhere */
    cr_assert_eq(row0[3], 1);
}

Test(placement, always_whole_panels_and_everything)
{
    static const double share[] = {3, 1, 0.5, 7, 2, 2, 1, 5};
    uint32_t row0[9];
    for (uint32_t n_row = 1; n_row < 3000; n_row += 7) {
        for (unsigned n_node = 1; n_node <= 8; n_node++) {
            placement_rows(n_row, n_node, share, row0);
            cr_assert_eq(row0[0], 0);
            cr_assert_eq(row0[n_node], n_row);
            for (unsigned in = 0; in < n_node; in++) {
                cr_assert_leq(row0[in], row0[in + 1]);
                cr_assert(row0[in] % PANEL_ROWS == 0 || row0[in] == n_row);
            }
        }
    }
}

/* ------------------------------------------------------------------ nodes without room */

static char logged[512];

static void keep_log(void *arg, numoe_log_level level, const char *line)
{
    (void)arg, (void)level;
    snprintf(logged, sizeof logged, "%s", line);
}

/* The bundled model on two nodes, the second with so many MiB: how many nodes take part, and how
 * many bytes of weights it has. */
static unsigned nodes_of(uint64_t mib, uint64_t *weight_bytes)
{
    numoe_engine_params params;
    struct topo *topo = NULL;
    struct place place;
    struct model *model = NULL;
    numoe_error err = {0};
    char *path = test_src_path("model/fable/fable-moe-Q4_K_M.gguf");
    numoe_engine_params_init(&params);
    params.placement = NUMOE_PLACEMENT_SLICE;
    params.chunk_tokens = 16;
    params.min_ctx = 64;
    logged[0] = '\0';
    numoe_log_set(keep_log, NULL, NUMOE_LOG_WARN);
    cr_assert_eq(topo_load("pack:2 [numa(memory=1GiB)] core:2 pu:1", &topo, NULL), NUMOE_OK);
    topo->node[1].memory_bytes = mib << 20;
    cr_assert_eq(model_open(path, &model, NULL), NUMOE_OK);
    cr_assert_eq(place_open_part(&params, model, NULL, NULL, topo, &place, &err), NUMOE_OK, "%s", err.text);
    const unsigned n_node = place.machine.n_node;
    cr_assert_eq(topo->n_node, n_node);
    *weight_bytes = n_node > 1 ? place.plan->node_bytes[1] : 0;
    /* 8 MiB of a small node stay with the system; what is left is for both. */
    cr_assert(n_node == 1 || *weight_bytes + place.machine.node[1].buffer_bytes <= (mib - 8) << 20);
    place_close(&place);
    model_close(model);
    topo_free(topo);
    free(path);
    return n_node;
}

Test(placement, a_node_without_room_for_buffers_takes_no_part)
{
    uint64_t whole, part;
    cr_expect_eq(nodes_of(1024, &whole), 2);
    cr_expect_str_empty(logged);
    cr_expect_eq(nodes_of(20, &part), 2, "room for a part");
    cr_expect(part > 0 && part < whole / 2, "%zu of %zu bytes", (size_t)part, (size_t)whole);
    cr_expect_str_empty(logged);
    cr_expect_eq(nodes_of(12, &part), 1);
    cr_expect_not_null(strstr(logged, "node 1 takes no part: 4.0 MiB are available there"), "%s",
                       logged);
}

/* ------------------------------------------------------------------ loading */

/* Row of a weight as it would stand in the file, from the node that has it. */
static void placed_row(const struct weight *w, unsigned n_node, uint32_t mat, uint32_t row,
                       void *out)
{
    unsigned n_holder = 0;
    for (unsigned in = 0; in < n_node; in++) {
        if (row >= w->part[in].held0 && row < w->part[in].held1) {
            format_unpack_row(w->format, weight_panel(w, in, mat, row / PANEL_ROWS),
                              row % PANEL_ROWS, w->k, out);
            n_holder++;
        }
    }
    cr_assert_eq(n_holder, 1, "row %u is on %u nodes", row, n_holder);
}

static void check_matrix(const struct rig *r, const struct weight *w,
                         const struct tensor_source *src)
{
    const size_t row_bytes = format_row_bytes(w->format, w->k);
    uint8_t *want = malloc(row_bytes), *got = malloc(row_bytes);
    cr_assert_eq(w->format_id, src->format_id);
    cr_assert(w->n_mat == src->n_mat && w->n_row == src->n_row && w->k == src->k);
    for (uint32_t i = 0; i < w->n_mat * w->n_row; i++) {
        cr_assert_eq(
            gguf_read_tensor(r->model->gguf, src->whole, i * row_bytes, row_bytes, want, NULL),
            NUMOE_OK);
        placed_row(w, r->store->n_node, i / w->n_row, i % w->n_row, got);
        cr_assert_arr_eq(got, want, row_bytes, "%s row %u", src->whole->name, i);
    }
    free(want);
    free(got);
}

static void check_vector(const struct rig *r, const struct weight *w,
                         const struct tensor_source *src)
{
    const size_t n = (size_t)src->n_mat * src->n_row * src->k;
    float *want = malloc(n * sizeof *want);
    cr_assert_eq(src->format_id, FORMAT_F32);
    cr_assert_eq(gguf_read_tensor(r->model->gguf, src->whole, 0, n * sizeof *want, want, NULL),
                 NUMOE_OK);
    for (unsigned in = 0; in < r->store->n_node; in++) {
        cr_assert_arr_eq(w->vec[in], want, n * sizeof *want, "%s", src->whole->name);
    }
    free(want);
}

static unsigned check_weight(const struct rig *r, const struct weight *w,
                             const struct tensor_source *src)
{
    if (!source_present(src)) {
        return 0;
    }
    cr_assert(weight_present(w), "%s was not loaded", src->whole->name);
    if (w->part != NULL) {
        check_matrix(r, w, src);
    } else {
        check_vector(r, w, src);
    }
    return 1;
}

/* Every tensor of a model over three uneven nodes. */
static void check_model(const char *rel)
{
    char *path = test_src_path(rel);
    cr_assert_not_null(path, "%s", rel);
    struct rig r = rig_open(path, 3, 4, 1);
    unsigned n_checked = 0;
    for (unsigned slot = 0; slot < N_MODEL_SLOT; slot++) {
        n_checked += check_weight(&r, &r.store->w[slot], &r.model->src[slot]);
    }
    for (unsigned il = 0; il < r.model->hp.n_layer; il++) {
        for (unsigned slot = N_MODEL_SLOT; slot < N_SLOT; slot++) {
            n_checked += check_weight(&r, &r.store->layer[il][slot], &r.model->layer[il].src[slot]);
        }
    }
    cr_assert_eq(n_checked, r.model->gguf->n_tensor);
    rig_close(&r);
    free(path);
}

Test(load, every_row_of_floats)
{
    check_model("tests/data/fixtures/deepseek3-a/deepseek3-a-f32.gguf");
}

Test(load, every_row_of_quants)
{
    check_model("model/fable/fable-moe-Q4_K_M.gguf");
}

Test(load, biases_of_experts)
{
    check_model("tests/data/fixtures/gptoss-a/gptoss-a-f32.gguf");
}

/* Pages that the first worker of a node was the first to touch. */
static uint64_t touched_pages(unsigned in)
{
    char want[16], pattern[] = "/proc/self/task/*/stat", name[16];
    unsigned long long n = 0, found = 0;
    glob_t stat;
    snprintf(want, sizeof want, "numoe-n%uw0", in);
    cr_assert_eq(glob(pattern, 0, NULL, &stat), 0);
    for (size_t i = 0; i < stat.gl_pathc; i++) {
        FILE *f = fopen(stat.gl_pathv[i], "r");
        cr_assert_eq(fscanf(f, "%*d (%15[^)]) %*c %*d %*d %*d %*d %*d %*u %llu", name, &n), 2);
        found = strcmp(name, want) == 0 ? n : found;
        fclose(f);
    }
    globfree(&stat);
    return found;
}

/* A node's memory belongs to whoever touches it first, where it cannot be bound. Beside what is
 * placed, a worker takes what is planned for one's buffers, and no more. */
Test(load, nodes_read_their_own_part)
{
    if (TEST_HAS_SHADOW_MEMORY) {
        cr_skip("a sanitizer touches pages of its own");
    }
    char *path = test_src_path("model/fable/fable-moe-Q4_K_M.gguf");
    const struct placement_request request = {.mode = NUMOE_PLACEMENT_SLICE};
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    struct rig r = {0};
    struct shapes shapes;
    uint64_t before[2], taken[2];
    setenv("NUMOE_PAGES", "small", 1);
    setenv("NUMOE_POOL_THREADS", "2", 1);
    cr_assert_eq(topo_load("pack:2 [numa(memory=64GiB)] core:2 pu:1", &r.topo, NULL), NUMOE_OK);
    r.topo->node[0].read_bps = 1e9;
    r.topo->node[1].read_bps = 3e9; /* so that neither could do the other's work unseen */
    cr_assert_eq(pools_new(r.topo, 2, &r.pools, NULL), NUMOE_OK);
    cr_assert_eq(model_open(path, &r.model, NULL), NUMOE_OK);
    cr_assert_eq(shapes_new(r.model, &shapes, NULL), NUMOE_OK);
    for (unsigned in = 0; in < 2; in++) {
        before[in] = touched_pages(in);
        taken[in] = atomic_load(&r.topo->ledger->taken_bytes[in]);
    }
    cr_assert_eq(rig_load(&r, &request, NULL, NULL, NULL), NUMOE_OK);
    for (unsigned in = 0; in < 2; in++) {
        const uint64_t n = touched_pages(in) - before[in];
        const uint64_t placed = (atomic_load(&r.topo->ledger->taken_bytes[in]) - taken[in]) / page;
        const uint64_t beside = store_loading_bytes(&shapes) / page + 64; /* stack, heap */
        cr_expect(n >= placed && n <= placed + beside, "node %u: %zu pages, %zu placed, %zu beside",
                  in, (size_t)n, (size_t)placed, (size_t)beside);
    }
    shapes_fini(&shapes);
    rig_close(&r);
    free(path);
}

/* ------------------------------------------------------------------ experts in the file */

static unsigned check_mapped(const struct rig *r, const struct weight *w,
                             const struct tensor_source *src)
{
    const size_t row_bytes = format_row_bytes(w->format, w->k);
    uint8_t *want = malloc(w->n_row * row_bytes);
    cr_assert_not_null(w->map);
    for (uint32_t mat = 0; mat < w->n_mat; mat++) {
        const struct gguf_tensor *t = src->whole ? src->whole : src->per_expert[mat];
        const uint64_t from = src->whole ? mat * w->n_row * row_bytes : 0;
        cr_assert_eq(gguf_read_tensor(r->model->gguf, t, from, w->n_row * row_bytes, want, NULL),
                     NUMOE_OK);
        cr_assert_arr_eq(w->map[mat], want, w->n_row * row_bytes, "%s, expert %u", t->name, mat);
    }
    for (unsigned in = 0; in < r->store->n_node; in++) {
        cr_assert_null(w->part[in].data);
    }
    free(want);
    return w->n_mat;
}

/* A tensor an expert, or all in one, one of them in another file: every row is the file's. */
static void check_mapped_model(const struct tiny *o, const char *other)
{
    static struct ggufbuild b;
    char *dir = gb_mkdir(), path[2][4200];
    snprintf(path[0], sizeof path[0], "%s/m%s.gguf", dir, other ? "-00001-of-00002" : "");
    snprintf(path[1], sizeof path[1], "%s/m-00002-of-00002.gguf", dir);
    tiny_build(&b, 3, o);
    cr_assert(gb_write(&b, path[0]));
    gb_free(&b);
    if (other != NULL) {
        gb_init(&b, 3);
        gb_u16(&b, "split.no", 1);
        gb_u16(&b, "split.count", 2);
        gb_tensor(&b, other, FORMAT_F32, TINY_D, TINY_F_EXPERT, TINY_E);
        gb_finish(&b);
        cr_assert(gb_write(&b, path[1]));
        gb_free(&b);
    }
    const struct placement_request request = {.mode = NUMOE_PLACEMENT_SLICE};
    struct rig r = rig_open_as(path[0], 2, 3, 1, &request, true);
    unsigned n = 0;
    uint64_t bytes = 0;
    for (enum slot slot = SLOT_GATE_EXPS; slot <= SLOT_DOWN_EXPS; slot++) {
        n += check_mapped(&r, &r.store->layer[1][slot], &r.model->layer[1].src[slot]);
    }
    for (unsigned i = 0; i < r.model->gguf->n_tensor; i++) {
        bytes +=
            strstr(r.model->gguf->tensor[i].name, "_exps") ? r.model->gguf->tensor[i].bytes : 0;
    }
    cr_assert_eq(n, 3 * TINY_E);
    cr_assert_geq(r.store->mapped_bytes, bytes);
    cr_assert_null(r.store->layer[1][SLOT_GATE_SHEXP].map, "the shared expert is placed");
    rig_close(&r);
    unlink(path[0]);
    unlink(path[1]);
    rmdir(dir);
    free(dir);
}

Test(mapped, rows_are_the_files)
{
    check_mapped_model(&(struct tiny){.q_lora = true}, NULL);
    check_mapped_model(&(struct tiny){.per_expert = true}, NULL);
    check_mapped_model(&(struct tiny){.n_part = 2, .leave_out = "blk.1.ffn_up_exps.weight"},
                       "blk.1.ffn_up_exps.weight");
}

/* ------------------------------------------------------------------ more of loading */

Test(load, tied_output_is_loaded_once)
{
    char *path = test_src_path("tests/data/fixtures/granitemoe-a/granitemoe-a-f32.gguf");
    cr_assert_not_null(path);
    struct rig r = rig_open(path, 2, 2, 1);
    cr_assert_not(source_present(&r.model->src[SLOT_OUTPUT]));
    cr_assert_eq(r.store->w[SLOT_OUTPUT].part, r.store->w[SLOT_TOKEN_EMBD].part);
    rig_close(&r);
    free(path);
}

/* The embedding row of a token, whichever node has it. */
Test(load, weight_row_finds_its_node)
{
    char *path = test_src_path("tests/data/fixtures/deepseek3-a/deepseek3-a-f32.gguf");
    struct rig r = rig_open(path, 3, 4, 1);
    const struct weight *embd = &r.store->w[SLOT_TOKEN_EMBD];
    float *got = malloc(embd->k * sizeof *got), *want = malloc(embd->k * sizeof *want);
    void *scratch = malloc(weight_row_scratch_bytes(embd));
    struct weight_reader rd = {.kern = r.kern};
    for (uint32_t row = 0; row < embd->n_row; row++) {
        const struct gguf_tensor *t = r.model->src[SLOT_TOKEN_EMBD].whole;
        gguf_read_tensor(r.model->gguf, t, row * embd->k * sizeof *want, embd->k * sizeof *want,
                         want, NULL);
        rd.in = weight_row_node(embd, row);
        cr_assert(row >= embd->part[rd.in].held0 && row < embd->part[rd.in].held1);
        weight_row(embd, 0, row, &rd, got, scratch);
        cr_assert_arr_eq(got, want, embd->k * sizeof *want);
    }
    cr_assert_eq(rd.local_bytes, (uint64_t)embd->n_row * embd->k * sizeof(float));
    cr_assert_eq(rd.remote_bytes, 0);
    free(scratch);
    free(want);
    free(got);
    rig_close(&r);
    free(path);
}

/* ------------------------------------------------------------------ attn_kv_b */

/* K_B[h][r][i] is row h * (n_nope + n_v) + i, element r of attn_kv_b; V_B's rows follow those. */
Test(kv_b, is_split_and_transposed)
{
    char *path = test_data_path("model/legacy-mla/fable-moe-legacy-mla-Q4_K_M.gguf");
    if (path == NULL) {
        cr_skip("model/legacy-mla is not there");
    }
    struct rig r = rig_open(path, 2, 3, 1);
    const struct model_hparams *hp = &r.model->hp;
    const struct tensor_source *src = &r.model->layer[1].src[SLOT_KV_B];
    const struct weight *k_b = &r.store->layer[1][SLOT_K_B], *v_b = &r.store->layer[1][SLOT_V_B];
    const struct format *f = format_find(src->format_id);
    const size_t row_bytes = format_row_bytes(f, src->k);
    uint8_t *row = malloc(row_bytes), *placed = malloc(MAX(row_bytes, hp->n_nope * 4));
    float *value = malloc(src->k * sizeof *value), *got = malloc(hp->n_nope * sizeof *got);
    cr_assert_eq(k_b->format_id, FORMAT_Q8_0);
    cr_assert(k_b->n_mat == hp->n_head && k_b->n_row == hp->kv_lora_rank && k_b->k == hp->n_nope);
    cr_assert_eq(v_b->format_id, src->format_id);
    for (unsigned h = 0; h < hp->n_head; h++) {
        const size_t first = h * (hp->n_nope + hp->n_v);
        for (unsigned i = 0; i < hp->n_v; i++) {
            gguf_read_tensor(r.model->gguf, src->whole, (first + hp->n_nope + i) * row_bytes,
                             row_bytes, row, NULL);
            placed_row(v_b, 2, h, i, placed);
            cr_assert_arr_eq(placed, row, row_bytes, "head %u value row %u", h, i);
        }
        for (unsigned i = 0; i < hp->n_nope; i += 9) {
            gguf_read_tensor(r.model->gguf, src->whole, (first + i) * row_bytes, row_bytes, row,
                             NULL);
            format_dequant_row(f, row, src->k, value);
            for (unsigned c = 0; c < hp->kv_lora_rank; c++) {
                placed_row(k_b, 2, h, c, placed);
                format_dequant_row(k_b->format, placed, hp->n_nope, got);
                float most = 0;
                for (unsigned j = i / 32 * 32; j < i / 32 * 32 + 32; j++) {
                    most = fmaxf(most, fabsf(got[j]));
                }
                /* Half a step of 8 bits, and the rounding of the step to half precision. */
                cr_assert_float_eq(got[i], value[c], most / 127 * 0.6f + 1e-7f,
                                   "head %u element %u, %u", h, c, i);
            }
        }
    }
    free(got);
    free(value);
    free(placed);
    free(row);
    rig_close(&r);
    free(path);
}

/* ------------------------------------------------------------------ what can go wrong */

struct progress {
    unsigned n_call;
    uint64_t done, total;
};

static void note_progress(void *arg, uint64_t done, uint64_t total)
{
    struct progress *p = arg;
    cr_assert_geq(done, p->done);
    p->n_call++;
    p->done = done;
    p->total = total;
}

static struct rig rig_unloaded(const char *path)
{
    struct rig r = {0};
    cr_assert_eq(topo_load("pack:1 [numa(memory=64GiB)] core:2 pu:1", &r.topo, NULL), NUMOE_OK);
    cr_assert_eq(pools_new(r.topo, 2, &r.pools, NULL), NUMOE_OK);
    cr_assert_eq(model_open(path, &r.model, NULL), NUMOE_OK);
    return r;
}

Test(load, progress_ends_at_the_total)
{
    char *path = test_src_path("model/fable/fable-moe-Q4_K_M.gguf");
    struct rig r = rig_unloaded(path);
    struct progress p = {0};
    const struct placement_request request = {.mode = NUMOE_PLACEMENT_SLICE};
    cr_assert_eq(rig_load(&r, &request, note_progress, &p, NULL), NUMOE_OK);
    cr_assert_geq(p.n_call, 1);
    cr_assert_eq(p.done, p.total);
    cr_assert_eq(p.total, r.store->bytes);
    cr_assert_geq(p.total, r.model->gguf->tensor_bytes);
    rig_close(&r);
    free(path);
}

Test(load, memory_limit_is_checked_first)
{
    char *path = test_src_path("model/fable/fable-moe-Q4_K_M.gguf");
    struct rig r = rig_unloaded(path);
    struct progress p = {0};
    numoe_error err = {0};
    const struct placement_request request = {.mode = NUMOE_PLACEMENT_SLICE};
    r.topo->memory_limit_bytes = 10 << 20;
    cr_assert_eq(rig_load(&r, &request, note_progress, &p, &err), NUMOE_E_MEMORY);
    cr_assert_not_null(strstr(err.text, "control group"), "%s", err.text);
    cr_assert_null(r.store);
    cr_assert_eq(p.n_call, 0, "nothing was read");
    rig_close(&r);
    free(path);
}

/* A file that shrinks after it was opened: the worker's error reaches the caller. */
Test(load, read_error_is_forwarded)
{
    char *path = test_src_path("tests/data/fixtures/deepseek3-a/deepseek3-a-f32.gguf");
    struct rig r = rig_unloaded(path);
    numoe_error err = {0};
    const struct placement_request request = {.mode = NUMOE_PLACEMENT_SLICE};
    const int empty = open("/dev/null", O_RDONLY);
    cr_assert_geq(empty, 0);
    cr_assert_geq(dup2(empty, r.model->gguf->part[0].fd), 0);
    cr_assert_eq(rig_load(&r, &request, NULL, NULL, &err), NUMOE_E_FILE_OPEN, "%s", err.text);
    const char *name = strstr(err.text, ".weight");
    cr_assert_not_null(name, "names the tensor: %s", err.text);
    cr_assert_null(strstr(name + 1, ".weight"), "names it once: %s", err.text);
    cr_assert_null(r.store);
    close(empty);
    rig_close(&r);
    free(path);
}
