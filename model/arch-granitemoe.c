/* granitemoe: PowerMoE and Granite 3 MoE. Four multipliers: embedding, attention, residual, and one
 * that logits are divided by. */
#include "model/arch.h"

static numoe_status read(const struct gguf *g, struct model_hparams *hp, numoe_error *err)
{
    float logit_divisor = 1;
    FORWARD_IF(arch_read_gqa(g, ROPE_INTERLEAVED, hp, err));
    FORWARD_IF(arch_get_f32(g, "attention.scale", false, &hp->attn_scale, err));
    FORWARD_IF(arch_get_f32(g, "embedding_scale", false, &hp->embd_scale, err));
    FORWARD_IF(arch_get_f32(g, "residual_scale", false, &hp->residual_scale, err));
    FORWARD_IF(arch_get_f32(g, "logit_scale", false, &logit_divisor, err));
    hp->logit_scale = 1 / logit_divisor;
    hp->router.gating = ROUTER_SOFTMAX_OF_TOPK;
    hp->n_ff_expert = hp->n_ff;
    return arch_read_moe(g, hp, err);
}

const struct arch arch_granitemoe = {
    .name = "granitemoe",
    .read = read,
    .block = {block_model, block_gqa, block_ffn_norm, block_experts, block_shared},
};
