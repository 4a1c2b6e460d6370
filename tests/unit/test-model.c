/* model/: hyper-parameters against the configurations that the fixtures were made from, variants of
 * one tiny model, what is refused, the report, and a file spoiled in every way one field or one cut
 * can spoil it. */
#define _GNU_SOURCE
#include <criterion/criterion.h>

#include <jansson.h>
#include <math.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "base/mem.h"
#include "model/model.h"
#include "tests/unit/testdata.h"
#include "tests/unit/tinymodel.h"

static char dir[4096];

static void make_dir(void)
{
    char *made = gb_mkdir();
    cr_assert_not_null(made);
    snprintf(dir, sizeof dir, "%s", made);
    free(made);
}

static void remove_dir(void)
{
    char command[4200];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    cr_assert_eq(system(command), 0);
}

TestSuite(model, .init = make_dir, .fini = remove_dir);

static const char *path_of(const char *name)
{
    static char path[4200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static struct ggufbuild b;

static void write_tiny(const struct tiny *o)
{
    tiny_build(&b, 3, o);
    cr_assert(gb_write(&b, path_of("tiny.gguf")));
    gb_free(&b);
}

static struct model *open_tiny(const struct tiny *o)
{
    struct model *m = NULL;
    numoe_error err = {0};
    write_tiny(o);
    cr_assert_eq(model_open(path_of("tiny.gguf"), &m, &err), NUMOE_OK, "%s", err.text);
    return m;
}

/* `text` is what follows the file's name. */
static void expect_refused(const struct tiny *o, numoe_status status, const char *text)
{
    struct model *m = NULL;
    numoe_error err = {0};
    write_tiny(o);
    const char *path = path_of("tiny.gguf");
    cr_assert_eq(model_open(path, &m, &err), status, "status %d, \"%s\"", err.status, err.text);
    cr_assert_null(m);
    cr_assert_eq(strncmp(err.text, path, strlen(path)), 0, "%s", err.text);
    cr_assert_str_eq(err.text + strlen(path) + 2, text);
}

/* ------------------------------------------------------------------ fixtures */

static unsigned config_u(const json_t *config, const char *key, unsigned absent)
{
    const json_t *value = json_object_get(config, key);
    return json_is_integer(value) ? (unsigned)json_integer_value(value) : absent;
}

static double config_f(const json_t *config, const char *key, double absent)
{
    const json_t *value = json_object_get(config, key);
    return json_is_number(value) ? json_number_value(value) : absent;
}

static struct model *open_fixture(const char *name, json_t **config)
{
    char rel[256];
    struct model *m = NULL;
    numoe_error err = {0};
    snprintf(rel, sizeof rel, "tests/data/fixtures/%s/hf_config.json", name);
    char *path = test_src_path(rel);
    cr_assert_not_null(path, "%s", rel);
    *config = json_load_file(path, 0, NULL);
    cr_assert_not_null(*config, "%s", rel);
    free(path);
    snprintf(rel, sizeof rel, "tests/data/fixtures/%s/%s-f32.gguf", name, name);
    path = test_src_path(rel);
    cr_assert_not_null(path, "%s", rel);
    cr_assert_eq(model_open(path, &m, &err), NUMOE_OK, "%s", err.text);
    free(path);
    return m;
}

static void check_common(const struct model *m, const json_t *config)
{
    const struct model_hparams *hp = &m->hp;
    cr_assert_eq(hp->n_layer, config_u(config, "num_hidden_layers", 0));
    cr_assert_eq(hp->n_embd, config_u(config, "hidden_size", 0));
    cr_assert_eq(hp->n_vocab, config_u(config, "vocab_size", 0));
    cr_assert_eq(hp->n_ctx_train, config_u(config, "max_position_embeddings", 0));
    cr_assert_eq(hp->n_head, config_u(config, "num_attention_heads", 0));
    cr_assert_float_eq(hp->norm_eps, config_f(config, "rms_norm_eps", 0), 1e-12);
    const json_t *rope = json_object_get(config, "rope_parameters");
    cr_assert_float_eq(hp->rope.freq_base, config_f(rope, "rope_theta", 0), 1e-3);
    cr_assert_float_eq(hp->rope.factor, config_f(rope, "factor", 1), 1e-6);
    cr_assert_eq(hp->rope.yarn, json_object_get(rope, "factor") != NULL);
    if (hp->rope.yarn) {
        cr_assert_eq(hp->rope.n_ctx_orig, config_u(rope, "original_max_position_embeddings", 0));
        cr_assert_float_eq(hp->rope.beta_fast, config_f(rope, "beta_fast", 0), 1e-6);
        cr_assert_float_eq(hp->rope.beta_slow, config_f(rope, "beta_slow", 0), 1e-6);
    }
    unsigned n_dense = config_u(config, "first_k_dense_replace", 0);
    cr_assert_eq(hp->n_dense_lead, n_dense);
    for (unsigned il = 0; il < hp->n_layer; il++) {
        cr_assert_eq(m->layer[il].is_moe, il >= n_dense);
        cr_assert_eq(source_present(&m->layer[il].src[SLOT_ROUTER]), il >= n_dense);
    }
    bool tied = json_is_true(json_object_get(config, "tie_word_embeddings"));
    cr_assert_eq(source_present(&m->src[SLOT_OUTPUT]), !tied);
}

static void check_experts(const struct model_hparams *hp, const json_t *config)
{
    unsigned n_expert = config_u(config, "num_local_experts", 0);
    n_expert = config_u(config, "num_experts", n_expert);
    n_expert = config_u(config, "n_routed_experts", n_expert);
    cr_assert_eq(hp->n_expert, n_expert);
    cr_assert_eq(hp->n_expert_used, config_u(config, "num_experts_per_tok", 0));
    unsigned n_ff = config_u(config, "intermediate_size", 0);
    n_ff = config_u(config, "moe_intermediate_size", n_ff);
    cr_assert_eq(hp->n_ff_expert, n_ff);
    unsigned n_ff_shared = n_ff * config_u(config, "n_shared_experts", 0);
    n_ff_shared = config_u(config, "shared_expert_intermediate_size", n_ff_shared);
    cr_assert_eq(hp->n_ff_shared, n_ff_shared);
    cr_assert_float_eq(hp->router.scale, config_f(config, "routed_scaling_factor", 1), 1e-6);
    cr_assert_eq(hp->router.n_group, config_u(config, "n_group", 1));
    cr_assert_eq(hp->router.n_group_used, config_u(config, "topk_group", 1));
    const json_t *norm = json_object_get(config, "norm_topk_prob");
    if (norm) {
        cr_assert_eq(hp->router.norm_topk, json_is_true(norm));
    }
}

static void check_mla(const struct model *m, const json_t *config)
{
    const struct model_hparams *hp = &m->hp;
    cr_assert_eq(hp->attn, ATTN_MLA);
    cr_assert_eq(hp->n_nope, config_u(config, "qk_nope_head_dim", 0));
    cr_assert_eq(hp->n_rope, config_u(config, "qk_rope_head_dim", 0));
    cr_assert_eq(hp->n_qk, hp->n_nope + hp->n_rope);
    cr_assert_eq(hp->n_v, config_u(config, "v_head_dim", 0));
    cr_assert_eq(hp->kv_lora_rank, config_u(config, "kv_lora_rank", 0));
    cr_assert_eq(hp->q_lora_rank, config_u(config, "q_lora_rank", 0));
    cr_assert_eq(source_present(&m->layer[0].src[SLOT_Q]), hp->q_lora_rank == 0);
    cr_assert_eq(source_present(&m->layer[0].src[SLOT_Q_B]), hp->q_lora_rank != 0);
    cr_assert_eq(hp->rope.kind, ROPE_INTERLEAVED);
    cr_assert_eq(hp->rope.n_rot, hp->n_rope);
    cr_assert_eq(hp->rope.magnitude, 1);
    /* DeepSeek's own code: the softmax is scaled by the square of YaRN's mscale. */
    const json_t *rope = json_object_get(config, "rope_parameters");
    double mscale =
        1 + 0.1 * config_f(rope, "mscale_all_dim", 0) * log(config_f(rope, "factor", 1));
    cr_assert_float_eq(hp->attn_scale, mscale * mscale / sqrt(hp->n_qk), 1e-6);
}

static void check_deepseek(const char *name, enum router_gating gating, enum group_rule rule)
{
    json_t *config;
    struct model *m = open_fixture(name, &config);
    cr_assert_str_eq(m->name, name);
    cr_assert_str_eq(m->arch, "deepseek2");
    check_common(m, config);
    check_experts(&m->hp, config);
    check_mla(m, config);
    cr_assert_eq(m->hp.n_ff, config_u(config, "intermediate_size", 0));
    cr_assert_eq(m->hp.router.gating, gating);
    cr_assert_eq(m->hp.router.group_rule, rule);
    cr_assert_eq(source_present(&m->layer[1].src[SLOT_SELECT_BIAS]), gating == ROUTER_SIGMOID);
    model_close(m);
    json_decref(config);
}

Test(model, deepseek_fixtures)
{
    check_deepseek("deepseek2-lite-a", ROUTER_SOFTMAX, GROUP_NONE);
    check_deepseek("deepseek2-full-a", ROUTER_SOFTMAX, GROUP_BEST);
    check_deepseek("deepseek3-a", ROUTER_SIGMOID, GROUP_BEST_TWO);
}

/* Where GGUF and configuration leave it to the architecture. */
static const struct {
    const char *fixture, *arch;
    enum rope_kind rope;
    enum router_gating gating;
    unsigned n_rot;
    bool qkv_bias, q_norm, shared_gate;
    float attn_scale; /* 0: 1 / sqrt(head length) */
} grouped[] = {
    {"mixtral-a", "llama", ROPE_INTERLEAVED, ROUTER_SOFTMAX, 8, false, false, false, 0},
    {"qwen2moe-a", "qwen2moe", ROPE_HALVES, ROUTER_SOFTMAX, 16, true, false, true, 0},
    {"qwen3moe-a", "qwen3moe", ROPE_HALVES, ROUTER_SOFTMAX, 32, false, true, false, 0},
    {"granitemoe-a", "granitemoe", ROPE_INTERLEAVED, ROUTER_SOFTMAX_OF_TOPK, 16, false, false,
     false, 0.0625f},
    {"olmoe-a", "olmoe", ROPE_HALVES, ROUTER_SOFTMAX, 16, false, true, false, 0},
    {"glm4moe-a", "glm4moe", ROPE_HALVES, ROUTER_SIGMOID, 16, true, false, false, 0},
    {"gptoss-a", "gpt-oss", ROPE_HALVES, ROUTER_SOFTMAX_OF_TOPK, 16, true, false, false, 0},
};

static void check_grouped(size_t i)
{
    json_t *config;
    struct model *m = open_fixture(grouped[i].fixture, &config);
    const struct model_hparams *hp = &m->hp;
    const struct tensor_source *src = m->layer[hp->n_layer - 1].src;
    cr_assert_str_eq(m->arch, grouped[i].arch);
    check_common(m, config);
    check_experts(hp, config);
    unsigned head = config_u(config, "head_dim", hp->n_embd / hp->n_head);
    cr_assert_eq(hp->attn, ATTN_GQA);
    cr_assert_eq(hp->n_head_kv, config_u(config, "num_key_value_heads", 0));
    cr_assert(hp->n_qk == head && hp->n_v == head);
    cr_assert_eq(hp->rope.kind, grouped[i].rope);
    cr_assert_eq(hp->rope.n_rot, grouped[i].n_rot);
    cr_assert_eq(hp->router.gating, grouped[i].gating);
    double scale = grouped[i].attn_scale != 0 ? (double)grouped[i].attn_scale : 1 / sqrt(head);
    cr_assert_float_eq(hp->attn_scale, scale, 1e-6);
    cr_assert_eq(source_present(&src[SLOT_V_BIAS]), grouped[i].qkv_bias);
    cr_assert_eq(source_present(&src[SLOT_K_NORM]), grouped[i].q_norm);
    cr_assert_eq(source_present(&src[SLOT_SHEXP_GATE]), grouped[i].shared_gate);
    cr_assert_float_eq(hp->embd_scale, config_f(config, "embedding_multiplier", 1), 1e-6);
    cr_assert_float_eq(hp->residual_scale, config_f(config, "residual_multiplier", 1), 1e-6);
    cr_assert_float_eq(hp->logit_scale, 1 / config_f(config, "logits_scaling", 1), 1e-6);
    cr_assert_eq(hp->window, config_u(config, "sliding_window", 0));
    model_close(m);
    json_decref(config);
}

Test(model, fixtures_with_grouped_queries)
{
    for (size_t i = 0; i < ARRAY_LEN(grouped); i++) {
        check_grouped(i);
    }
}

Test(model, norms_over_the_row_or_the_head)
{
    json_t *config;
    struct model *m = open_fixture("olmoe-a", &config);
    cr_assert_eq(m->layer[0].src[SLOT_Q_NORM].k, 64);
    model_close(m);
    json_decref(config);
    m = open_fixture("qwen3moe-a", &config);
    cr_assert_eq(m->layer[0].src[SLOT_Q_NORM].k, 32);
    model_close(m);
    json_decref(config);
}

Test(model, gpt_oss_alternates_windows)
{
    json_t *config;
    struct model *m = open_fixture("gptoss-a", &config);
    const json_t *types = json_object_get(config, "layer_types");
    for (unsigned il = 0; il < m->hp.n_layer; il++) {
        const char *type = json_string_value(json_array_get(types, il));
        cr_assert_eq(m->layer[il].windowed, strcmp(type, "sliding_attention") == 0);
        cr_assert(source_present(&m->layer[il].src[SLOT_SINKS]));
        cr_assert(source_present(&m->layer[il].src[SLOT_DOWN_EXPS_BIAS]));
    }
    cr_assert_eq(m->hp.act, FFN_SWIGLU_OAI);
    cr_assert_float_eq(m->hp.act_limit, config_f(config, "swiglu_limit", 0), 1e-6);
    cr_assert_float_eq(m->hp.rope.magnitude, 1 + 0.1 * log(32), 1e-6);
    model_close(m);
    json_decref(config);
}

/* Sums over the tensors as Python's gguf package lists them: routed bytes times used / experts, the
 * embedding left out unless it is the head. */
static const struct {
    const char *path;
    uint64_t n_param, dense, shared, routed;
} sums[] = {
    {"model/fable/fable-moe-Q4_K_M.gguf", 39549344, 3940992, 586752, 2347008},
    {"tests/data/fixtures/deepseek3-a/deepseek3-a-f32.gguf", 363216, 486208, 49152, 196608},
    {"tests/data/fixtures/deepseek2-lite-a/deepseek2-lite-a-f32.gguf", 332832, 462976, 147456,
     221184},
    {"tests/data/fixtures/granitemoe-a/granitemoe-a-f32.gguf", 292800, 286464, 0, 331776},
    {"tests/data/fixtures/gptoss-a/gptoss-a-f32.gguf", 517488, 341440, 0, 798720},
    {"tests/data/fixtures/qwen2moe-a/qwen2moe-a-f32.gguf", 307712, 288000, 221952, 221184},
};

Test(model, active_bytes)
{
    for (size_t i = 0; i < ARRAY_LEN(sums); i++) {
        char *path = test_src_path(sums[i].path);
        struct model *m;
        numoe_error err = {0};
        cr_assert_not_null(path, "%s", sums[i].path);
        cr_assert_eq(model_open(path, &m, &err), NUMOE_OK, "%s", err.text);
        cr_assert_eq(m->n_param, sums[i].n_param, "%s", path);
        cr_assert_eq(m->active.dense, sums[i].dense, "%s", path);
        cr_assert_eq(m->active.shared, sums[i].shared, "%s", path);
        cr_assert_eq(m->active.routed, sums[i].routed, "%s", path);
        model_close(m);
        free(path);
    }
}

Test(model, bundled_model_in_its_older_form)
{
    char *path = test_data_path("model/legacy-mla/fable-moe-legacy-mla-Q4_K_M.gguf");
    if (!path) {
        cr_skip("the older form of the bundled model is not here");
    }
    struct model *m;
    numoe_error err = {0};
    cr_assert_eq(model_open(path, &m, &err), NUMOE_OK, "%s", err.text);
    const struct tensor_source *kv_b = &m->layer[5].src[SLOT_KV_B];
    cr_assert(kv_b->n_mat == 1 && kv_b->n_row == 8 * (64 + 64) && kv_b->k == 256);
    cr_assert_not(source_present(&m->layer[5].src[SLOT_K_B]));
    cr_assert(m->hp.n_nope == 64 && m->hp.n_rope == 32 && m->hp.n_v == 64);
    model_close(m);
    free(path);
}

/* ------------------------------------------------------------------ variants of the tiny model */

static void expect_shape(const struct tensor_source *s, unsigned n_mat, unsigned n_row, unsigned k)
{
    cr_assert(s->n_mat == n_mat && s->n_row == n_row && s->k == k, "[%u, %u, %u]", s->n_mat,
              s->n_row, s->k);
}

Test(model, tiny_as_it_is)
{
    struct model *m = open_tiny(&(struct tiny){.q_lora = true});
    const struct tensor_source *src = m->layer[1].src;
    cr_assert_str_eq(m->name, "tiny");
    expect_shape(&m->src[SLOT_TOKEN_EMBD], 1, 5, 8);
    expect_shape(&m->src[SLOT_OUTPUT_NORM], 1, 1, 8);
    expect_shape(&src[SLOT_Q_B], 1, 12, 6);
    expect_shape(&src[SLOT_K_B], 2, 4, 4);
    expect_shape(&src[SLOT_V_B], 2, 3, 4);
    expect_shape(&src[SLOT_GATE_EXPS], 4, 9, 8);
    expect_shape(&src[SLOT_DOWN_EXPS], 4, 8, 9);
    expect_shape(&m->layer[0].src[SLOT_DOWN], 1, 8, 7);
    cr_assert_not(source_present(&src[SLOT_Q]));
    cr_assert_not(source_present(&src[SLOT_KV_B]));
    cr_assert_not(source_present(&src[SLOT_DOWN]));
    cr_assert_not(source_present(&m->layer[0].src[SLOT_ROUTER]));
    cr_assert_str_eq(src[SLOT_UP_EXPS].whole->name, "blk.1.ffn_up_exps.weight");
    model_close(m);
}

Test(model, query_rank_by_the_presence_of_its_tensors)
{
    struct model *m = open_tiny(&(struct tiny){.q_lora = false});
    cr_assert_eq(m->hp.q_lora_rank, 0);
    expect_shape(&m->layer[0].src[SLOT_Q], 1, 12, 8);
    cr_assert_not(source_present(&m->layer[0].src[SLOT_Q_A]));
    model_close(m);
}

Test(model, one_kv_b)
{
    struct model *m = open_tiny(&(struct tiny){.kv_b = true});
    cr_assert(m->hp.n_qk == 6 && m->hp.n_nope == 4 && m->hp.n_rope == 2 && m->hp.n_v == 3);
    expect_shape(&m->layer[1].src[SLOT_KV_B], 1, 2 * (4 + 3), 4);
    cr_assert_not(source_present(&m->layer[1].src[SLOT_V_B]));
    model_close(m);
}

Test(model, kv_b_beside_its_halves_is_not_used)
{
    struct model *m = open_tiny(&(struct tiny){.kv_b_too = true});
    cr_assert_not(source_present(&m->layer[1].src[SLOT_KV_B]));
    expect_shape(&m->layer[1].src[SLOT_V_B], 2, 3, 4);
    model_close(m);
}

Test(model, heads_in_one_matrix)
{
    struct model *m = open_tiny(&(struct tiny){.flat = true});
    expect_shape(&m->layer[1].src[SLOT_K_B], 2, 4, 4);
    expect_shape(&m->layer[1].src[SLOT_V_B], 2, 3, 4);
    model_close(m);
}

Test(model, a_tensor_for_each_expert)
{
    struct model *m = open_tiny(&(struct tiny){.per_expert = true});
    const struct tensor_source *down = &m->layer[1].src[SLOT_DOWN_EXPS];
    expect_shape(down, 4, 8, 9);
    cr_assert_null(down->whole);
    cr_assert_str_eq(down->per_expert[3]->name, "blk.1.ffn_down.3.weight");
    struct model *merged = open_tiny(&(struct tiny){.per_expert = false});
    cr_assert_eq(m->active.routed, merged->active.routed);
    cr_assert_eq(m->n_param, merged->n_param);
    model_close(merged);
    model_close(m);
}

Test(model, tied_head)
{
    struct model *m = open_tiny(&(struct tiny){.tied = true});
    struct model *untied = open_tiny(&(struct tiny){.tied = false});
    cr_assert_not(source_present(&m->src[SLOT_OUTPUT]));
    cr_assert_eq(m->active.dense, untied->active.dense, "the embedding counts as the head");
    cr_assert_eq(m->n_param + 5 * 8, untied->n_param);
    model_close(m);
    model_close(untied);
}

Test(model, yarn)
{
    struct model *m = open_tiny(&(struct tiny){.yarn = true});
    double mscale = 1 + 0.1 * log(4);
    cr_assert(m->hp.rope.yarn);
    cr_assert_eq(m->hp.rope.n_ctx_orig, 16);
    cr_assert_eq(m->hp.rope.beta_fast, 32);
    cr_assert_eq(m->hp.rope.beta_slow, 1);
    cr_assert_float_eq(m->hp.attn_scale, mscale * mscale / sqrt(6), 1e-6);
    model_close(m);
    m = open_tiny(&(struct tiny){.yarn = false});
    cr_assert_not(m->hp.rope.yarn);
    cr_assert_float_eq(m->hp.attn_scale, 1 / sqrt(6), 1e-6);
    model_close(m);
}

Test(model, group_rule_by_the_gating_function)
{
    const struct {
        unsigned gating, n_group;
        enum router_gating expected;
        enum group_rule rule;
    } row[] = {
        {0, 2, ROUTER_SOFTMAX, GROUP_BEST},     {1, 2, ROUTER_SOFTMAX, GROUP_BEST},
        {2, 2, ROUTER_SIGMOID, GROUP_BEST_TWO}, {0, 0, ROUTER_SOFTMAX, GROUP_NONE},
        {2, 1, ROUTER_SIGMOID, GROUP_NONE},     {1, 1, ROUTER_SOFTMAX, GROUP_NONE},
    };
    for (size_t i = 0; i < ARRAY_LEN(row); i++) {
        struct tiny o = {.gating = row[i].gating, .n_group = row[i].n_group};
        struct model *m = open_tiny(&o);
        cr_assert_eq(m->hp.router.gating, row[i].expected, "row %zu", i);
        cr_assert_eq(m->hp.router.group_rule, row[i].rule, "row %zu", i);
        cr_assert_eq(m->hp.router.n_group, MAX(row[i].n_group, 1u));
        cr_assert_eq(m->hp.router.n_group_used, 1);
        cr_assert(m->hp.router.norm_topk);
        cr_assert_float_eq(m->hp.router.scale, 2.5, 1e-9);
        model_close(m);
    }
}

Test(model, layers_that_predict_further_are_not_used)
{
    struct model *m = open_tiny(&(struct tiny){.n_nextn = 1});
    cr_assert_eq(m->hp.n_layer, 2);
    model_close(m);
}

/* ------------------------------------------------------------------ full size */

/* Published configurations of models whose files are too large to keep; the tensors of these files
 * lie over each other in one hole. */
struct full {
    const char *name;
    unsigned n_layer, n_dense, n_embd, n_head, n_expert, n_used, n_ff, n_ff_expert, n_shared,
        n_vocab;
    unsigned gating, n_group; /* n_group 0: a file from before there was a key */
    double n_param_billion;   /* as published */
    unsigned group_used;      /* expected */
    enum group_rule rule;
};

static const struct full full[] = {
    {"DeepSeek-V3", 61, 3, 7168, 128, 256, 8, 18432, 2048, 1, 129280, 2, 0, 671, 4, GROUP_BEST_TWO},
    {"DeepSeek-V2", 60, 1, 5120, 128, 160, 6, 12288, 1536, 2, 102400, 1, 0, 236, 3, GROUP_BEST},
    {"Kimi-K2", 61, 1, 7168, 64, 384, 8, 18432, 2048, 1, 163840, 2, 1, 1026, 1, GROUP_NONE},
};

static void full_tensor(unsigned il, const char *rest, uint64_t k, uint64_t rows, uint64_t mats)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%u.%s", il, rest);
    gb_tensor(&b, name, rows == 1 ? FORMAT_F32 : FORMAT_Q8_0, k, rows, mats);
}

static void full_keys(const struct full *f)
{
    const struct {
        const char *key;
        unsigned value;
    } number[] = {
        {"block_count", f->n_layer},
        {"context_length", 163840},
        {"embedding_length", f->n_embd},
        {"feed_forward_length", f->n_ff},
        {"leading_dense_block_count", f->n_dense},
        {"attention.head_count", f->n_head},
        {"attention.q_lora_rank", 1536},
        {"attention.kv_lora_rank", 512},
        {"attention.key_length", 192},
        {"attention.value_length", 128},
        {"rope.dimension_count", 64},
        {"expert_count", f->n_expert},
        {"expert_used_count", f->n_used},
        {"expert_feed_forward_length", f->n_ff_expert},
        {"expert_shared_count", f->n_shared},
        {"expert_gating_func", f->gating},
    };
    gb_string(&b, "general.architecture", "deepseek2");
    gb_f32(&b, "deepseek2.attention.layer_norm_rms_epsilon", 1e-6f);
    for (size_t i = 0; i < ARRAY_LEN(number); i++) {
        char key[64];
        snprintf(key, sizeof key, "deepseek2.%s", number[i].key);
        gb_u32(&b, key, number[i].value);
    }
    if (f->n_group > 0) {
        gb_u32(&b, "deepseek2.expert_group_count", f->n_group);
        gb_u32(&b, "deepseek2.expert_group_used_count", 1);
    }
}

static void full_layer(const struct full *f, unsigned il)
{
    full_tensor(il, "attn_norm.weight", f->n_embd, 1, 1);
    full_tensor(il, "attn_q_a.weight", f->n_embd, 1536, 1);
    full_tensor(il, "attn_q_a_norm.weight", 1536, 1, 1);
    full_tensor(il, "attn_q_b.weight", 1536, f->n_head * 192, 1);
    full_tensor(il, "attn_kv_a_mqa.weight", f->n_embd, 576, 1);
    full_tensor(il, "attn_kv_a_norm.weight", 512, 1, 1);
    full_tensor(il, "attn_k_b.weight", 128, 512, f->n_head);
    full_tensor(il, "attn_v_b.weight", 512, 128, f->n_head);
    full_tensor(il, "attn_output.weight", f->n_head * 128, f->n_embd, 1);
    full_tensor(il, "ffn_norm.weight", f->n_embd, 1, 1);
    if (il < f->n_dense) {
        full_tensor(il, "ffn_gate.weight", f->n_embd, f->n_ff, 1);
        full_tensor(il, "ffn_up.weight", f->n_embd, f->n_ff, 1);
        full_tensor(il, "ffn_down.weight", f->n_ff, f->n_embd, 1);
        return;
    }
    const unsigned n_ff_shared = f->n_ff_expert * f->n_shared;
    full_tensor(il, "ffn_gate_inp.weight", f->n_embd, f->n_expert, 1);
    if (f->gating == 2) {
        full_tensor(il, "exp_probs_b.bias", f->n_expert, 1, 1);
    }
    full_tensor(il, "ffn_gate_exps.weight", f->n_embd, f->n_ff_expert, f->n_expert);
    full_tensor(il, "ffn_up_exps.weight", f->n_embd, f->n_ff_expert, f->n_expert);
    full_tensor(il, "ffn_down_exps.weight", f->n_ff_expert, f->n_embd, f->n_expert);
    full_tensor(il, "ffn_gate_shexp.weight", f->n_embd, n_ff_shared, 1);
    full_tensor(il, "ffn_up_shexp.weight", f->n_embd, n_ff_shared, 1);
    full_tensor(il, "ffn_down_shexp.weight", n_ff_shared, f->n_embd, 1);
}

static struct model *open_full(const struct full *f)
{
    struct model *m = NULL;
    numoe_error err = {0};
    gb_init(&b, 3);
    b.sparse = true;
    full_keys(f);
    gb_tensor(&b, "token_embd.weight", FORMAT_Q8_0, f->n_embd, f->n_vocab, 1);
    gb_tensor(&b, "output_norm.weight", FORMAT_F32, f->n_embd, 1, 1);
    gb_tensor(&b, "output.weight", FORMAT_Q8_0, f->n_embd, f->n_vocab, 1);
    for (unsigned il = 0; il < f->n_layer; il++) {
        full_layer(f, il);
    }
    gb_finish(&b);
    if (!gb_write(&b, path_of("full.gguf"))) {
        cr_skip("a file of some gigabytes, all of it a hole, cannot be made here");
    }
    gb_free(&b);
    cr_assert_eq(model_open(path_of("full.gguf"), &m, &err), NUMOE_OK, "%s", err.text);
    return m;
}

Test(model, full_size_and_groups_that_older_files_do_not_tell)
{
    for (size_t i = 0; i < ARRAY_LEN(full); i++) {
        const struct full *f = &full[i];
        struct model *m = open_full(f);
        double billion = (double)m->n_param * 1e-9;
        cr_assert_float_eq(billion, f->n_param_billion, 0.6, "%s: %g", f->name, billion);
        cr_assert_eq(m->hp.router.n_group, f->n_group > 0 ? f->n_group : 8, "%s", f->name);
        cr_assert_eq(m->hp.router.n_group_used, f->group_used, "%s", f->name);
        cr_assert_eq(m->hp.router.group_rule, f->rule, "%s", f->name);
        model_close(m);
    }
}

/* ------------------------------------------------------------------ what is refused */

Test(model, shapes_that_differ)
{
    expect_refused(&(struct tiny){.odd = "blk.1.ffn_gate_exps.weight", .odd_dim = 2},
                   NUMOE_E_FILE_MODEL, "blk.1.ffn_gate_exps.weight: dimension 2 is 5, expected 4");
    expect_refused(&(struct tiny){.odd = "blk.0.attn_kv_a_mqa.weight", .odd_dim = 1},
                   NUMOE_E_FILE_MODEL, "blk.0.attn_kv_a_mqa.weight: dimension 1 is 7, expected 6");
    expect_refused(&(struct tiny){.odd = "output_norm.weight", .odd_dim = 0}, NUMOE_E_FILE_MODEL,
                   "output_norm.weight: dimension 0 is 9, expected 8");
    expect_refused(&(struct tiny){.per_expert = true, .odd = "blk.1.ffn_up.2.weight", .odd_dim = 1},
                   NUMOE_E_FILE_MODEL, "blk.1.ffn_up.2.weight: dimension 1 is 10, expected 9");
    expect_refused(&(struct tiny){.q_lora = true, .odd = "blk.1.attn_q_a.weight", .odd_dim = 1},
                   NUMOE_E_FILE_MODEL, "blk.1.attn_q_a.weight: dimension 1 is 7, expected 6");
}

Test(model, tensors_that_are_missing)
{
    const char *names[] = {"output_norm.weight",          "blk.0.attn_norm.weight",
                           "blk.1.attn_q.weight",         "blk.0.attn_v_b.weight",
                           "blk.1.ffn_gate_inp.weight",   "blk.1.ffn_down_exps.weight",
                           "blk.1.ffn_up_shexp.weight",   "blk.0.ffn_up.weight",
                           "blk.1.attn_kv_a_norm.weight", "token_embd.weight"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        char text[128];
        snprintf(text, sizeof text, "tensor %s is missing", names[i]);
        expect_refused(&(struct tiny){.leave_out = names[i]}, NUMOE_E_FILE_MODEL, text);
    }
    expect_refused(&(struct tiny){.kv_b = true, .leave_out = "blk.1.attn_kv_b.weight"},
                   NUMOE_E_FILE_MODEL, "tensor blk.1.attn_kv_b.weight is missing");
    expect_refused(&(struct tiny){.q_lora = true, .leave_out = "blk.1.attn_q_b.weight"},
                   NUMOE_E_FILE_MODEL, "tensor blk.1.attn_q_b.weight is missing");
    expect_refused(&(struct tiny){.per_expert = true, .leave_out = "blk.1.ffn_up.2.weight"},
                   NUMOE_E_FILE_MODEL, "blk.1.ffn_up.2.weight is missing");
}

Test(model, tensors_that_no_part_wants)
{
    expect_refused(&(struct tiny){.extra = "blk.0.attn_q.bias"}, NUMOE_E_FILE_MODEL,
                   "tensor blk.0.attn_q.bias is no known part of architecture deepseek2, so this "
                   "variant of it is not supported");
    expect_refused(
        &(struct tiny){.extra = "blk.2.attn_norm.weight"}, NUMOE_E_FILE_MODEL,
        "tensor blk.2.attn_norm.weight is no known part of architecture deepseek2, so this "
        "variant of it is not supported");
}

Test(model, types_without_a_kernel)
{
    const struct format *format = format_find(FORMAT_I32);
    cr_assert_not(format->computable);
    expect_refused(&(struct tiny){.expert_type = FORMAT_I32}, NUMOE_E_SUPPORT_TYPE,
                   "blk.1.ffn_gate_exps.weight: tensors of type I32 cannot be computed with");
}

Test(model, files_that_hold_something_else)
{
    expect_refused(&(struct tiny){.type = "adapter"}, NUMOE_E_FILE_MODEL,
                   "is an adapter (LoRA), not a model; merge it into its model first");
    expect_refused(
        &(struct tiny){.type = "mmproj"}, NUMOE_E_FILE_MODEL,
        "is the image or audio part (mmproj) of a model; name the file with the language "
        "model");
    expect_refused(&(struct tiny){.type = "imatrix"}, NUMOE_E_FILE_MODEL,
                   "is an importance matrix, not a model");
    expect_refused(&(struct tiny){.type = "vocab"}, NUMOE_E_FILE_MODEL,
                   "holds a \"vocab\", not a model");
    struct model *m = open_tiny(&(struct tiny){.type = "model"});
    model_close(m);
}

Test(model, architectures_that_are_not_known)
{
    struct model *m;
    numoe_error err = {0};
    write_tiny(&(struct tiny){.arch = "mamba"});
    cr_assert_eq(model_open(path_of("tiny.gguf"), &m, &err), NUMOE_E_SUPPORT_ARCH);
    cr_assert_not_null(strstr(err.text, "architecture \"mamba\" is not supported; these are: "));
    cr_assert_not_null(strstr(err.text, "deepseek2"), "%s", err.text);
    cr_assert_not_null(strstr(err.text, "qwen3moe"), "%s", err.text);
}

Test(model, gating_functions_that_are_not_known)
{
    expect_refused(
        &(struct tiny){.gating = 9}, NUMOE_E_FILE_MODEL,
        "expert_gating_func is 9; 1 (softmax), 2 (sigmoid) and 3 (softmax of the chosen) are "
        "known");
}

Test(model, numbers_out_of_range)
{
    const struct {
        const char *key;
        uint32_t value;
        const char *text;
    } bad[] = {
        {"block_count", 0, "0 layers, of which 0 predict further tokens: none is left"},
        {"block_count", 1025, "the number of layers is 1025, expected 1 to 1024"},
        {"context_length", 0, "the context length is 0, expected 1 to 134217728"},
        {"embedding_length", 0, "the embedding length is 0, expected 1 to 131072"},
        {"embedding_length", 131073, "the embedding length is 131073, expected 1 to 131072"},
        {"feed_forward_length", 0, "the feed-forward length is 0, expected 1 to 1048576"},
        {"leading_dense_block_count", 3,
         "the number of leading dense layers is 3, expected 0 to 2"},
        {"attention.head_count", 0, "the number of heads is 0, expected 1 to 1024"},
        {"attention.head_count", 1025, "the number of heads is 1025, expected 1 to 1024"},
        {"attention.kv_lora_rank", 0, "the rank of keys and values is 0, expected 1 to 16384"},
        {"attention.key_length_mla", 4097,
         "the length of a head's key is 4097, expected 1 to 4096"},
        {"attention.value_length_mla", 0, "the length of a head's value is 0, expected 1 to 4096"},
        {"rope.dimension_count", 3, "the rotated length of a head is 3, expected an even number"},
        {"rope.dimension_count", 6, "rope.dimension_count is 6, expected 1 to 5"},
        {"expert_count", 0, "the number of experts is 0, expected 1 to 4096"},
        {"expert_count", 4097, "the number of experts is 4097, expected 1 to 4096"},
        {"expert_used_count", 0, "the number of experts used is 0, expected 1 to 4"},
        {"expert_used_count", 5, "the number of experts used is 5, expected 1 to 4"},
        {"expert_feed_forward_length", 1048577,
         "the feed-forward length of an expert is 1048577, expected 1 to 1048576"},
        {"expert_shared_count", UINT32_MAX, "4294967295 shared experts of 9"},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        expect_refused(&(struct tiny){.key = bad[i].key, .value = bad[i].value}, NUMOE_E_FILE_MODEL,
                       bad[i].text);
    }
}

Test(model, floats_out_of_range)
{
    const struct {
        const char *key;
        float value;
        const char *text;
    } bad[] = {
        {"attention.layer_norm_rms_epsilon", 0,
         "the norm's epsilon is 0, expected more than 0 and at most 1"},
        {"rope.freq_base", 1, "rope.freq_base is 1, expected more than 1"},
        {"rope.scaling.factor", -4,
         "rope.scaling.factor is -4, expected more than 0 and at most 1e+06"},
        {"expert_weights_scale", -1,
         "expert_weights_scale is -1, expected more than 0 and at most 1e+06"},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        expect_refused(&(struct tiny){.yarn = true, .key = bad[i].key, .real = bad[i].value},
                       NUMOE_E_FILE_MODEL, bad[i].text);
    }
}

Test(model, groups_that_do_not_fit)
{
    expect_refused(&(struct tiny){.n_group = 3}, NUMOE_E_FILE_MODEL,
                   "4 experts cannot be divided into 3 groups");
    expect_refused(&(struct tiny){.n_group = 4}, NUMOE_E_FILE_MODEL,
                   "2 experts are used, but 1 groups of 1 are chosen from");
}

Test(model, tokenizers_that_are_longer_than_the_embedding)
{
    gb_init(&b, 3);
    tiny_keys(&b, &(struct tiny){.q_lora = false});
    gb_array(&b, "tokenizer.ggml.tokens", GGUF_STRING, 6);
    for (unsigned i = 0; i < 6; i++) {
        gb_text(&b, "t");
    }
    gb_tensor(&b, "token_embd.weight", FORMAT_F32, 8, 5, 1);
    gb_finish(&b);
    cr_assert(gb_write(&b, path_of("tokens.gguf")));
    gb_free(&b);
    struct model *m;
    numoe_error err = {0};
    cr_assert_eq(model_open(path_of("tokens.gguf"), &m, &err), NUMOE_E_FILE_MODEL);
    cr_assert_not_null(strstr(err.text, "6 tokens, but token_embd.weight has 5 rows"), "%s",
                       err.text);
}

/* ------------------------------------------------------------------ the report */

static char *inspect(const char *path, bool all_tensors)
{
    char *text = NULL;
    size_t len = 0;
    numoe_error err = {0};
    FILE *out = open_memstream(&text, &len);
    cr_assert_eq(numoe_inspect(path, out, all_tensors, &err), NUMOE_OK, "%s", err.text);
    fclose(out);
    return text;
}

static void expect_in(const char *text, const char *part)
{
    cr_assert_not_null(strstr(text, part), "\"%s\" is not in:\n%s", part, text);
}

Test(model, report_on_a_model)
{
    char *path = test_src_path("model/fable/fable-moe-Q4_K_M.gguf");
    char *text = inspect(path, false);
    expect_in(text, "supported: yes");
    expect_in(text, "architecture: deepseek2");
    expect_in(text, "experts: 4 of 32");
    expect_in(text, "2 of 4 groups by their two best experts");
    expect_in(text, "dense    3940992 bytes (3.9 MB)");
    expect_in(text, "shared   586752 bytes");
    expect_in(text, "routed   2347008 bytes (2.3 MB)");
    expect_in(text, "all      6874752 bytes");
    expect_in(text, "Q4_K         60 tensors  18754560 bytes");
    expect_in(text, "tokenizer.ggml.tokens = string[4096]: \"<\xef\xbd\x9c");
    expect_in(text, "general.name = \"fable-moe\"");
    expect_in(text, "layer_norm_rms_epsilon = 1e-06\n");
    expect_in(text, "general.sampling.top_p = 0.95\n");
    expect_in(text, "rope.freq_base = 10000\n");
    expect_in(text, "parameters: 39.5 M\n");
    cr_assert_null(strstr(text, "scaled by 1"));
    cr_assert_null(strstr(text, "blk.3.ffn_up_exps.weight"));
    free(text);
    text = inspect(path, true);
    expect_in(text, "\n  blk.3.ffn_up_exps.weight     Q4_K     256 x 256 x 32                 1179648 "
                    "bytes (1.2 MB)\n");
    free(text);
    free(path);
}

Test(model, report_on_what_is_not_supported)
{
    write_tiny(&(struct tiny){.arch = "mamba"});
    char *text = inspect(path_of("tiny.gguf"), false);
    expect_in(text, "supported: no, architecture \"mamba\" is not supported");
    cr_assert_null(strstr(text, "decoded token"));
    expect_in(text, "deepseek2.block_count = 2");
    free(text);
    write_tiny(&(struct tiny){.expert_type = FORMAT_I32});
    text = inspect(path_of("tiny.gguf"), false);
    expect_in(text, "supported: no, blk.1.ffn_gate_exps.weight: tensors of type I32");
    expect_in(text, "(no kernel for this type)");
    free(text);
}

/* What a terminal would obey must not come out. */
Test(model, report_escapes_what_files_say)
{
    gb_init(&b, 3);
    gb_string(&b, "general.architecture", "deep\x1b[2J");
    gb_string(&b, "general.name", "a\nb\x07\xc2\x9b\xff\xc3\xa9");
    gb_string(&b, "k\x1b]0;", "\\\"");
    gb_tensor(&b, "t\x1b[1m", FORMAT_F32, 1, 1, 1);
    gb_finish(&b);
    cr_assert(gb_write(&b, path_of("escape.gguf")));
    gb_free(&b);
    char *text = inspect(path_of("escape.gguf"), true);
    for (const char *c = text; *c; c++) {
        cr_assert(*c == '\n' || (unsigned char)*c >= 0x20, "byte %d", *c);
    }
    expect_in(text, "general.name = \"a\\nb\\x07\\x9b\\xff\xc3\xa9\"");
    expect_in(text, "  k\\x1b]0; = \"\\\\\\\"\"");
    expect_in(text, "  t\\x1b[1m   F32      1                              4 bytes");
    free(text);
}

Test(model, report_on_no_file)
{
    numoe_error err = {0};
    cr_assert_eq(numoe_inspect(path_of("absent"), stdout, false, &err), NUMOE_E_FILE_OPEN);
    cr_assert_not_null(strstr(err.text, "absent"));
}

/* ------------------------------------------------------------------ spoiled files */

struct victim {
    int fd; /* of a memory file that `path` opens anew */
    char path[64];
    size_t n_ok, n_refused;
};

static void victim_init(struct victim *v)
{
    *v = (struct victim){.fd = memfd_create("victim", MFD_CLOEXEC)};
    cr_assert_geq(v->fd, 0);
    snprintf(v->path, sizeof v->path, "/proc/self/fd/%d", v->fd);
    cr_assert_eq(pwrite(v->fd, b.bytes, b.len, 0), (ssize_t)b.len);
}

/* A model that was accepted has every byte where it says. */
static void use_model(const struct model *m, const char *what)
{
    numoe_error err = {0};
    unsigned char byte;
    for (uint64_t it = 0; it < m->gguf->n_tensor; it++) {
        const struct gguf_tensor *t = &m->gguf->tensor[it];
        cr_assert_eq(gguf_read_tensor(m->gguf, t, t->bytes - 1, 1, &byte, &err), NUMOE_OK, "%s: %s",
                     what, err.text);
    }
    for (unsigned il = 0; il < m->hp.n_layer; il++) {
        for (unsigned is = N_MODEL_SLOT; is < N_SLOT; is++) {
            const struct tensor_source *s = &m->layer[il].src[is];
            if (source_present(s) && s->whole) {
                uint64_t row_bytes = format_row_bytes(s->whole->format, s->k);
                cr_assert_eq(row_bytes * s->n_row * s->n_mat, s->whole->bytes, "%s", what);
            }
        }
    }
}

/* Opens the file as it is now: either a sound model, or one clear line. */
static void open_spoiled(struct victim *v, const char *what)
{
    struct model *m = NULL;
    numoe_error err = {0};
    numoe_status status = model_open(v->path, &m, &err);
    if (status == NUMOE_OK) {
        v->n_ok++;
        use_model(m, what);
        model_close(m);
        return;
    }
    v->n_refused++;
    cr_assert_null(m);
    /* What a program answers with exit status 2. */
    cr_assert(status == NUMOE_E_FILE_FORMAT || status == NUMOE_E_FILE_MODEL, "%s: status %d, %s",
              what, status, err.text);
    cr_assert_eq(err.status, status);
    size_t len = strlen(err.text);
    cr_assert(len > strlen(v->path) + 8 && len + 1 < sizeof err.text, "%s: %s", what, err.text);
    cr_assert_eq(strncmp(err.text, v->path, strlen(v->path)), 0, "%s: %s", what, err.text);
    cr_assert_null(strchr(err.text, '\n'), "%s: %s", what, err.text);
}

/* An allocation of what a count claims would fail as NUMOE_E_MEMORY, which open_spoiled() does not
 * take for an answer. Sanitizers reserve address space of their own and watch sizes themselves. */
static void limit_memory(void)
{
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    const struct rlimit limit = {UINT64_C(1) << 30, UINT64_C(1) << 30};
    cr_assert_eq(setrlimit(RLIMIT_AS, &limit), 0);
#endif
}

/* Everything that makes the header longer at once. */
static const struct tiny whole = {.q_lora = true, .yarn = true, .gating = 2, .n_group = 2};

Test(model, cut_at_every_byte)
{
    struct victim v;
    char what[64];
    tiny_build(&b, 3, &whole);
    victim_init(&v);
    limit_memory();
    open_spoiled(&v, "whole");
    cr_assert_eq(v.n_ok, 1);
    for (size_t len = b.len; len-- > 0;) {
        snprintf(what, sizeof what, "cut to %zu bytes", len);
        cr_assert_eq(ftruncate(v.fd, (off_t)len), 0);
        open_spoiled(&v, what);
    }
    cr_assert_eq(v.n_ok, 1, "the last byte belongs to a tensor, so every cut is a loss");
    cr_assert_eq(v.n_refused, b.len);
    close(v.fd);
    gb_free(&b);
}

static void spoil_field(struct victim *v, const struct gb_field *field, uint64_t value)
{
    char what[96];
    unsigned char bytes[8];
    for (unsigned i = 0; i < field->bytes; i++) {
        bytes[i] = (unsigned char)(value >> (8 * i));
    }
    snprintf(what, sizeof what, "%u bytes at offset %zu set to %llx", field->bytes, field->offset,
             (unsigned long long)value);
    cr_assert_eq(pwrite(v->fd, bytes, field->bytes, (off_t)field->offset), field->bytes);
    open_spoiled(v, what);
    cr_assert_eq(pwrite(v->fd, b.bytes + field->offset, field->bytes, (off_t)field->offset),
                 field->bytes);
}

/* 0, 1 and the largest number of the field, as it is and as a signed number and a float would have
 * it. */
Test(model, every_field_set_to_extremes)
{
    struct victim v;
    tiny_build(&b, 3, &whole);
    victim_init(&v);
    limit_memory();
    cr_assert_gt(b.n_field, 200);
    for (size_t i = 0; i < b.n_field; i++) {
        const struct gb_field *field = &b.field[i];
        const uint64_t max =
            field->bytes == 8 ? UINT64_MAX : (UINT64_C(1) << (8 * field->bytes)) - 1;
        const uint64_t values[] = {0, 1, max, max >> 1, max >> 2, 0x7f7fffff};
        for (size_t iv = 0; iv < ARRAY_LEN(values); iv++) {
            spoil_field(&v, field, values[iv] & max);
        }
    }
    open_spoiled(&v, "restored");
    cr_assert_gt(v.n_ok, 1);
    cr_assert_gt(v.n_refused, b.n_field);
    close(v.fd);
    gb_free(&b);
}
