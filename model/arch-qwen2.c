/* qwen2 and qwen2moe: biases on queries, keys and values; the shared expert has a gate of its own,
 * and the weights of the chosen experts are left as the softmax gave them. */
#include "model/arch.h"

static numoe_status read_dense(const struct gguf *g, struct model_hparams *hp, numoe_error *err)
{
    return arch_read_gqa(g, ROPE_HALVES, hp, err);
}

static numoe_status read_moe(const struct gguf *g, struct model_hparams *hp, numoe_error *err)
{
    FORWARD_IF(arch_read_gqa(g, ROPE_HALVES, hp, err));
    hp->router.gating = ROUTER_SOFTMAX;
    hp->n_ff_shared = hp->n_ff; /* older files give the whole width only */
    return arch_read_moe(g, hp, err);
}

static const struct arch_part block_shared_gate[] = {
    PART(PLACE_MOE, SLOT_SHEXP_GATE),
    PART_END,
};

const struct arch arch_qwen2 = {
    .name = "qwen2",
    .read = read_dense,
    .block = {block_model, block_gqa, block_qkv_bias, block_ffn_norm, block_ffn},
};

const struct arch arch_qwen2moe = {
    .name = "qwen2moe",
    .read = read_moe,
    .block = {block_model, block_gqa, block_qkv_bias, block_ffn_norm, block_experts, block_shared,
              block_shared_gate},
};
