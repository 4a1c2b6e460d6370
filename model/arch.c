/* The list of architectures, and the hyper-parameters that several of them read the same way.
 *
 * Values are checked for plausibility in one place, arch_check(), after all were read: from there
 * on products of two of them fit 32 bits and nothing that divides is zero.
 */
#include "model/arch.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

/* Every architecture: arch_<name> in model/arch-*.c. */
#define ARCH_MAP(X)                                                                                \
    X(deepseek2)                                                                                   \
    X(glm4moe)                                                                                     \
    X(gpt_oss)                                                                                     \
    X(granitemoe)                                                                                  \
    X(llama)                                                                                       \
    X(olmoe)                                                                                       \
    X(qwen2)                                                                                       \
    X(qwen2moe)                                                                                    \
    X(qwen3)                                                                                       \
    X(qwen3moe)

#define ARCH_DECLARE(name) extern const struct arch arch_##name;
ARCH_MAP(ARCH_DECLARE)

#define ARCH_ENTRY(name) &arch_##name,
static const struct arch *const known[] = {ARCH_MAP(ARCH_ENTRY)};

const struct arch *arch_find(struct gguf_string name)
{
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        if (strlen(known[i]->name) == name.len &&
            memcmp(known[i]->name, name.data, name.len) == 0) {
            return known[i];
        }
    }
    return NULL;
}

void arch_list(char *text, size_t size)
{
    size_t len = 0;
    for (size_t i = 0; i < ARRAY_LEN(known) && len < size; i++) {
        len += (size_t)snprintf(text + len, size - len, "%s%s", i > 0 ? ", " : "", known[i]->name);
    }
}

/* ---- keys */

#define KEY_BYTES 160

numoe_status arch_fail(const struct gguf *g, numoe_error *err, const char *fmt, ...)
{
    char text[384];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return status_fail(err, NUMOE_E_FILE_MODEL, "%s: %s", g->part[0].path, text);
}

/* "<architecture>.key"; the architecture is one of the known ones by now, so it is short. */
static numoe_status full_key(const struct gguf *g, const char *key, char out[KEY_BYTES],
                             numoe_error *err)
{
    struct gguf_string name = {0};
    FORWARD_IF(gguf_get_string(g, "general.architecture", true, &name, err));
    snprintf(out, KEY_BYTES, "%.*s.%s", (int)MIN(name.len, KEY_BYTES / 2), name.data, key);
    return NUMOE_OK;
}

numoe_status arch_get_u32(const struct gguf *g, const char *key, bool required, unsigned *out,
                          numoe_error *err)
{
    char full[KEY_BYTES];
    FORWARD_IF(full_key(g, key, full, err));
    return gguf_get_u32(g, full, required, out, err);
}

numoe_status arch_get_f32(const struct gguf *g, const char *key, bool required, float *out,
                          numoe_error *err)
{
    char full[KEY_BYTES];
    FORWARD_IF(full_key(g, key, full, err));
    return gguf_get_f32(g, full, required, out, err);
}

numoe_status arch_get_bool(const struct gguf *g, const char *key, bool required, bool *out,
                           numoe_error *err)
{
    char full[KEY_BYTES];
    FORWARD_IF(full_key(g, key, full, err));
    return gguf_get_bool(g, full, required, out, err);
}

numoe_status arch_get_string(const struct gguf *g, const char *key, bool required,
                             struct gguf_string *out, numoe_error *err)
{
    char full[KEY_BYTES];
    FORWARD_IF(full_key(g, key, full, err));
    return gguf_get_string(g, full, required, out, err);
}

/* ---- shared readers */

/* Layers for predicting further tokens ahead stand after the model's own; they are not used. */
static numoe_status read_n_layer(const struct gguf *g, struct model_hparams *hp, numoe_error *err)
{
    unsigned n_block = 0;
    FORWARD_IF(arch_get_u32(g, "block_count", true, &n_block, err));
    FORWARD_IF(arch_get_u32(g, "nextn_predict_layers", false, &hp->n_nextn, err));
    if (hp->n_nextn >= n_block) {
        return arch_fail(g, err, "%u layers, of which %u predict further tokens: none is left",
                         n_block, hp->n_nextn);
    }
    hp->n_layer = n_block - hp->n_nextn;
    return NUMOE_OK;
}

/* The embedding's rows count, not the tokenizer's length: many vocabularies are padded. */
static numoe_status read_n_vocab(const struct gguf *g, struct model_hparams *hp, numoe_error *err)
{
    const char *name = slot_name(SLOT_TOKEN_EMBD);
    const struct gguf_tensor *t = gguf_find_tensor(g, name);
    const struct gguf_value *tokens = gguf_find(g, "tokenizer.ggml.tokens");
    if (!t) {
        return arch_fail(g, err, "tensor %s is missing%s", name,
                         g->n_tensor == 0 ? "; the file holds a vocabulary only" : "");
    }
    if (t->dim[1] > UINT32_MAX) {
        return arch_fail(g, err, "%s: dimension 1 is %" PRIu64, name, t->dim[1]);
    }
    hp->n_vocab = (unsigned)t->dim[1];
    if (tokens && tokens->n > hp->n_vocab) {
        return arch_fail(g, err, "the tokenizer has %" PRIu64 " tokens, but %s has %u rows",
                         tokens->n, name, hp->n_vocab);
    }
    return NUMOE_OK;
}

numoe_status arch_read_basic(const struct gguf *g, struct model_hparams *hp, numoe_error *err)
{
    *hp = (struct model_hparams){
        .embd_scale = 1, .residual_scale = 1, .logit_scale = 1, .router = {.scale = 1}};
    FORWARD_IF(read_n_layer(g, hp, err));
    FORWARD_IF(read_n_vocab(g, hp, err));
    hp->n_dense_lead = hp->n_layer;
    FORWARD_IF(arch_get_u32(g, "embedding_length", true, &hp->n_embd, err));
    FORWARD_IF(arch_get_u32(g, "context_length", true, &hp->n_ctx_train, err));
    FORWARD_IF(arch_get_u32(g, "feed_forward_length", false, &hp->n_ff, err));
    FORWARD_IF(arch_get_f32(g, "attention.layer_norm_rms_epsilon", true, &hp->norm_eps, err));
    return arch_get_u32(g, "attention.head_count", true, &hp->n_head, err);
}

static bool string_is(struct gguf_string s, const char *text)
{
    return s.len == strlen(text) && memcmp(s.data, text, s.len) == 0;
}

/* The magnitude is the paper's; architectures with another one set it afterwards. */
static numoe_status read_yarn(const struct gguf *g, struct rope_params *rope, numoe_error *err)
{
    float ext = 1;
    rope->yarn = true;
    rope->beta_fast = 32;
    rope->beta_slow = 1;
    if (rope->factor > 1) {
        rope->magnitude *= 1 + 0.1f * logf(rope->factor);
    }
    FORWARD_IF(arch_get_f32(g, "rope.scaling.yarn_beta_fast", false, &rope->beta_fast, err));
    FORWARD_IF(arch_get_f32(g, "rope.scaling.yarn_beta_slow", false, &rope->beta_slow, err));
    FORWARD_IF(arch_get_f32(g, "rope.scaling.yarn_ext_factor", false, &ext, err));
    if (ext != 1) {
        return arch_fail(g, err, "rope.scaling.yarn_ext_factor is %g; only 1 is supported",
                         (double)ext);
    }
    return NUMOE_OK;
}

numoe_status arch_read_rope(const struct gguf *g, enum rope_kind kind, struct rope_params *rope,
                            unsigned n_ctx_train, numoe_error *err)
{
    struct gguf_string type = {"none", 4};
    rope->kind = kind;
    rope->freq_base = 10000;
    rope->factor = 1;
    rope->magnitude = 1;
    rope->n_ctx_orig = n_ctx_train;
    FORWARD_IF(arch_get_u32(g, "rope.dimension_count", false, &rope->n_rot, err));
    FORWARD_IF(arch_get_f32(g, "rope.freq_base", false, &rope->freq_base, err));
    FORWARD_IF(arch_get_string(g, "rope.scaling.type", false, &type, err));
    if (string_is(type, "none")) {
        return NUMOE_OK;
    }
    if (!string_is(type, "yarn") && !string_is(type, "linear")) {
        return status_fail(err, NUMOE_E_SUPPORT, "%s: rope scaling \"%.*s\" is not supported",
                           g->part[0].path, (int)MIN(type.len, 40), type.data);
    }
    FORWARD_IF(arch_get_f32(g, "rope.scaling.factor", true, &rope->factor, err));
    FORWARD_IF(arch_get_f32(g, "rope.scaling.attn_factor", false, &rope->magnitude, err));
    FORWARD_IF(
        arch_get_u32(g, "rope.scaling.original_context_length", false, &rope->n_ctx_orig, err));
    return string_is(type, "yarn") ? read_yarn(g, rope, err) : NUMOE_OK;
}

numoe_status arch_read_gqa(const struct gguf *g, enum rope_kind kind, struct model_hparams *hp,
                           numoe_error *err)
{
    hp->attn = ATTN_GQA;
    hp->n_head_kv = hp->n_head;
    FORWARD_IF(arch_get_u32(g, "attention.head_count_kv", false, &hp->n_head_kv, err));
    hp->n_qk = hp->n_head > 0 ? hp->n_embd / hp->n_head : 0;
    hp->n_v = hp->n_qk;
    FORWARD_IF(arch_get_u32(g, "attention.key_length", false, &hp->n_qk, err));
    FORWARD_IF(arch_get_u32(g, "attention.value_length", false, &hp->n_v, err));
    hp->rope.n_rot = hp->n_qk;
    hp->attn_scale = 1.0f / sqrtf((float)MAX(hp->n_qk, 1u));
    return arch_read_rope(g, kind, &hp->rope, hp->n_ctx_train, err);
}

bool arch_has_experts(const struct gguf *g)
{
    unsigned n_expert = 0;
    return arch_get_u32(g, "expert_count", false, &n_expert, NULL) != NUMOE_OK || n_expert > 0;
}

static numoe_status read_gating(const struct gguf *g, struct router_params *router,
                                numoe_error *err)
{
    unsigned gating = 0; /* none: what the architecture has by itself */
    FORWARD_IF(arch_get_u32(g, "expert_gating_func", false, &gating, err));
    switch (gating) {
    case 0:
        return NUMOE_OK;
    case 1:
        router->gating = ROUTER_SOFTMAX;
        return NUMOE_OK;
    case 2:
        router->gating = ROUTER_SIGMOID;
        return NUMOE_OK;
    case 3:
        router->gating = ROUTER_SOFTMAX_OF_TOPK;
        return NUMOE_OK;
    default:
        return arch_fail(g, err,
                         "expert_gating_func is %u; 1 (softmax), 2 (sigmoid) and 3 (softmax "
                         "of the chosen) are known",
                         gating);
    }
}

numoe_status arch_read_moe(const struct gguf *g, struct model_hparams *hp, numoe_error *err)
{
    struct router_params *router = &hp->router;
    unsigned n_shared = 0;
    float scale = 0; /* 0 in a file says the same as no key */
    router->n_group = router->n_group_used = 1;
    FORWARD_IF(arch_get_u32(g, "expert_count", true, &hp->n_expert, err));
    FORWARD_IF(arch_get_u32(g, "expert_used_count", true, &hp->n_expert_used, err));
    if (hp->n_ff_expert == 0 && hp->n_expert_used > 0) {
        hp->n_ff_expert = hp->n_ff / hp->n_expert_used; /* older files give the whole width only */
    }
    FORWARD_IF(arch_get_u32(g, "expert_feed_forward_length", false, &hp->n_ff_expert, err));
    FORWARD_IF(arch_get_u32(g, "expert_shared_count", false, &n_shared, err));
    FORWARD_IF(arch_get_u32(g, "expert_group_count", false, &router->n_group, err));
    FORWARD_IF(arch_get_u32(g, "expert_group_used_count", false, &router->n_group_used, err));
    FORWARD_IF(arch_get_bool(g, "expert_weights_norm", false, &router->norm_topk, err));
    FORWARD_IF(arch_get_f32(g, "expert_weights_scale", false, &scale, err));
    FORWARD_IF(read_gating(g, router, err));
    if (scale != 0) {
        router->scale = scale;
    }
    hp->n_dense_lead = 0;
    FORWARD_IF(arch_get_u32(g, "leading_dense_block_count", false, &hp->n_dense_lead, err));
    uint64_t n_ff_shared = (uint64_t)n_shared * hp->n_ff_expert;
    if (n_ff_shared > UINT32_MAX) {
        return arch_fail(g, err, "%u shared experts of %u", n_shared, hp->n_ff_expert);
    }
    if (n_shared > 0) {
        hp->n_ff_shared = (unsigned)n_ff_shared;
    }
    return arch_get_u32(g, "expert_shared_feed_forward_length", false, &hp->n_ff_shared, err);
}

/* ---- plausibility */

struct range {
    const char *what;
    unsigned value, min, max;
};

static numoe_status check_ranges(const struct gguf *g, const struct range *range, size_t n,
                                 numoe_error *err)
{
    for (size_t i = 0; i < n; i++) {
        if (range[i].value < range[i].min || range[i].value > range[i].max) {
            return arch_fail(g, err, "%s is %u, expected %u to %u", range[i].what, range[i].value,
                             range[i].min, range[i].max);
        }
    }
    return NUMOE_OK;
}

static numoe_status check_sizes(const struct gguf *g, const struct model_hparams *hp,
                                numoe_error *err)
{
    const bool mla = hp->attn == ATTN_MLA;
    const struct range range[] = {
        {"the number of layers", hp->n_layer, 1, 1024},
        {"the embedding length", hp->n_embd, 1, 1u << 17},
        {"the vocabulary size", hp->n_vocab, 1, 1u << 24},
        {"the context length", hp->n_ctx_train, 1, 1u << 27},
        {"the number of heads", hp->n_head, 1, 1024},
        {"the number of key and value heads", hp->n_head_kv, 1, hp->n_head},
        {"the length of a head's key", hp->n_qk, 1, 1u << 12},
        {"the length of a head's value", hp->n_v, 1, 1u << 12},
        {"the rank of queries", hp->q_lora_rank, 0, 1u << 16},
        {"the rank of keys and values", hp->kv_lora_rank, mla ? 1 : 0, 1u << 14},
        {"the rotated length of a head", hp->rope.n_rot, 0, mla ? hp->n_rope : hp->n_qk},
        {"the original context length", hp->rope.n_ctx_orig, 1, 1u << 27},
        {"the number of leading dense layers", hp->n_dense_lead, 0, hp->n_layer},
        {"the feed-forward length", hp->n_ff, hp->n_dense_lead > 0 ? 1 : 0, 1u << 20},
    };
    FORWARD_IF(check_ranges(g, range, ARRAY_LEN(range), err));
    if (hp->n_head % hp->n_head_kv != 0) {
        return arch_fail(g, err, "%u heads cannot share %u key and value heads evenly", hp->n_head,
                         hp->n_head_kv);
    }
    if (hp->rope.n_rot % 2 != 0) {
        return arch_fail(g, err, "the rotated length of a head is %u, expected an even number",
                         hp->rope.n_rot);
    }
    return NUMOE_OK;
}

static numoe_status check_router(const struct gguf *g, const struct model_hparams *hp,
                                 numoe_error *err)
{
    const struct router_params *router = &hp->router;
    const struct range range[] = {
        {"the number of experts", hp->n_expert, 1, 4096},
        {"the number of experts used", hp->n_expert_used, 1, MIN(hp->n_expert, 64u)},
        {"the feed-forward length of an expert", hp->n_ff_expert, 1, 1u << 20},
        {"the feed-forward length of the shared experts", hp->n_ff_shared, 0, 1u << 20},
        {"the number of expert groups", router->n_group, 1, hp->n_expert},
        {"the number of expert groups used", router->n_group_used, 1, router->n_group},
    };
    FORWARD_IF(check_ranges(g, range, ARRAY_LEN(range), err));
    if (hp->n_expert % router->n_group != 0) {
        return arch_fail(g, err, "%u experts cannot be divided into %u groups", hp->n_expert,
                         router->n_group);
    }
    unsigned group = hp->n_expert / router->n_group;
    if (hp->n_expert_used > group * router->n_group_used) {
        return arch_fail(g, err, "%u experts are used, but %u groups of %u are chosen from",
                         hp->n_expert_used, router->n_group_used, group);
    }
    return NUMOE_OK;
}

static numoe_status check_positive(const struct gguf *g, const char *what, float value, float max,
                                   numoe_error *err)
{
    if (!(value > 0 && value <= max)) {
        return arch_fail(g, err, "%s is %g, expected more than 0 and at most %g", what,
                         (double)value, (double)max);
    }
    return NUMOE_OK;
}

static numoe_status check_floats(const struct gguf *g, const struct model_hparams *hp,
                                 numoe_error *err)
{
    const struct rope_params *rope = &hp->rope;
    FORWARD_IF(check_positive(g, "the norm's epsilon", hp->norm_eps, 1, err));
    FORWARD_IF(check_positive(g, "the attention's scale", hp->attn_scale, 1e6f, err));
    FORWARD_IF(check_positive(g, "rope.scaling.factor", rope->factor, 1e6f, err));
    FORWARD_IF(check_positive(g, "rope.scaling.attn_factor", rope->magnitude, 1e6f, err));
    FORWARD_IF(check_positive(g, "expert_weights_scale", hp->router.scale, 1e6f, err));
    FORWARD_IF(check_positive(g, "embedding_scale", hp->embd_scale, 1e6f, err));
    FORWARD_IF(check_positive(g, "residual_scale", hp->residual_scale, 1e6f, err));
    FORWARD_IF(check_positive(g, "logit_scale", hp->logit_scale, 1e6f, err));
    if (!(rope->freq_base > 1)) {
        return arch_fail(g, err, "rope.freq_base is %g, expected more than 1",
                         (double)rope->freq_base);
    }
    if (rope->yarn) {
        FORWARD_IF(check_positive(g, "rope.scaling.yarn_beta_fast", rope->beta_fast, 1e6f, err));
        FORWARD_IF(check_positive(g, "rope.scaling.yarn_beta_slow", rope->beta_slow, 1e6f, err));
    }
    return NUMOE_OK;
}

numoe_status arch_check(const struct gguf *g, const struct model_hparams *hp, numoe_error *err)
{
    FORWARD_IF(check_sizes(g, hp, err));
    if (hp->n_dense_lead < hp->n_layer) {
        FORWARD_IF(check_router(g, hp, err));
    }
    return check_floats(g, hp, err);
}
