/* deepseek2: DeepSeek-V2, V2-Lite, V2.5, V3, R1, and models of the same build such as Kimi-K2.
 *
 * What tells the variants apart is in the file: queries have a low rank where attn_q_a is there;
 * the gating function says both how scores are made and how groups are ranked (V2: softmax and a
 * group's best expert, V3: sigmoid and the sum of its two best).
 */
#include <math.h>

#include "base/log.h"
#include "model/arch.h"

/* Head sizes: files with separate attn_k_b and attn_v_b describe attention as the absorbed form
 * runs it (one key head of latent and rope) and give the heads' own lengths in the keys with _mla;
 * older ones have the heads' own lengths in key_length and value_length. */
static numoe_status read_heads(const struct gguf *g, struct model_hparams *hp, numoe_error *err)
{
    hp->attn = ATTN_MLA;
    hp->n_head_kv = 1;
    FORWARD_IF(arch_get_u32(g, "attention.kv_lora_rank", true, &hp->kv_lora_rank, err));
    FORWARD_IF(arch_get_u32(g, "attention.key_length", true, &hp->n_qk, err));
    FORWARD_IF(arch_get_u32(g, "attention.value_length", true, &hp->n_v, err));
    FORWARD_IF(arch_get_u32(g, "attention.key_length_mla", false, &hp->n_qk, err));
    FORWARD_IF(arch_get_u32(g, "attention.value_length_mla", false, &hp->n_v, err));
    FORWARD_IF(arch_get_u32(g, "rope.dimension_count", true, &hp->n_rope, err));
    if (hp->n_rope == 0 || hp->n_rope >= hp->n_qk) {
        return arch_fail(g, err, "rope.dimension_count is %u, expected 1 to %u", hp->n_rope,
                         hp->n_qk > 0 ? hp->n_qk - 1 : 0);
    }
    hp->n_nope = hp->n_qk - hp->n_rope;
    return NUMOE_OK;
}

static numoe_status read_query_rank(const struct gguf *g, struct model_hparams *hp,
                                    numoe_error *err)
{
    const struct gguf_tensor *q_a = gguf_find_tensor(g, "blk.0.attn_q_a.weight");
    if (!q_a) {
        return NUMOE_OK;
    }
    return arch_get_u32(g, "attention.q_lora_rank", true, &hp->q_lora_rank, err);
}

/* The softmax's temperature under YaRN: the key holds 0.1 * mscale_all_dim, and both the queries'
 * and the keys' magnitude have it. */
static numoe_status read_scale(const struct gguf *g, struct model_hparams *hp, numoe_error *err)
{
    float log_multiplier = 0;
    FORWARD_IF(arch_read_rope(g, ROPE_INTERLEAVED, &hp->rope, hp->n_ctx_train, err));
    FORWARD_IF(arch_get_f32(g, "rope.scaling.yarn_log_multiplier", false, &log_multiplier, err));
    hp->rope.magnitude = 1;
    float magnitude = 1;
    if (hp->rope.yarn && hp->rope.factor > 1) {
        magnitude += log_multiplier * logf(hp->rope.factor);
    }
    hp->attn_scale = magnitude * magnitude / sqrtf((float)hp->n_qk);
    return NUMOE_OK;
}

/* Files made before the group keys existed are known by the models' sizes. */
static void guess_groups(const struct gguf *g, struct model_hparams *hp)
{
    static const struct {
        unsigned n_layer, n_embd, n_expert, n_group, n_group_used;
        const char *name;
    } model[] = {
        {60, 5120, 160, 8, 3, "DeepSeek-V2"},
        {61, 7168, 256, 8, 4, "DeepSeek-V3"},
    };
    for (size_t i = 0; i < sizeof model / sizeof *model; i++) {
        if (hp->n_layer == model[i].n_layer && hp->n_embd == model[i].n_embd &&
            hp->n_expert == model[i].n_expert) {
            hp->router.n_group = model[i].n_group;
            hp->router.n_group_used = model[i].n_group_used;
            log_info("%s: does not say how experts are grouped; taken as %s: %u of %u groups",
                     g->part[0].path, model[i].name, model[i].n_group_used, model[i].n_group);
        }
    }
}

static numoe_status read(const struct gguf *g, struct model_hparams *hp, numoe_error *err)
{
    FORWARD_IF(read_heads(g, hp, err));
    FORWARD_IF(read_query_rank(g, hp, err));
    FORWARD_IF(read_scale(g, hp, err));
    FORWARD_IF(arch_read_moe(g, hp, err));
    if (!gguf_find(g, "deepseek2.expert_group_count")) {
        guess_groups(g, hp);
    }
    if (hp->router.n_group > 1) {
        hp->router.group_rule = hp->router.gating == ROUTER_SIGMOID ? GROUP_BEST_TWO : GROUP_BEST;
    }
    return NUMOE_OK;
}

const struct arch arch_deepseek2 = {
    .name = "deepseek2",
    .read = read,
    .block = {block_model, block_mla, block_ffn_norm, block_ffn, block_experts, block_shared},
};
