/* qwen3 and qwen3moe: queries and keys are normed head by head. */
#include "model/arch.h"

static numoe_status read_dense(const struct gguf *g, struct model_hparams *hp, numoe_error *err)
{
    return arch_read_gqa(g, ROPE_HALVES, hp, err);
}

static numoe_status read_moe(const struct gguf *g, struct model_hparams *hp, numoe_error *err)
{
    FORWARD_IF(arch_read_gqa(g, ROPE_HALVES, hp, err));
    hp->router.gating = ROUTER_SOFTMAX;
    hp->router.norm_topk = true;
    return arch_read_moe(g, hp, err);
}

static const struct arch_part block_qk_norm[] = {
    PART(PLACE_LAYER, SLOT_Q_NORM),
    PART(PLACE_LAYER, SLOT_K_NORM),
    PART_END,
};

const struct arch arch_qwen3 = {
    .name = "qwen3",
    .read = read_dense,
    .block = {block_model, block_gqa, block_qk_norm, block_ffn_norm, block_ffn},
};

const struct arch arch_qwen3moe = {
    .name = "qwen3moe",
    .read = read_moe,
    .block = {block_model, block_gqa, block_qk_norm, block_ffn_norm, block_experts},
};
