/* gpt-oss: attention sinks, a sliding window on every other layer, biases everywhere, a clamped
 * SwiGLU.
 */
#include "model/arch.h"

static numoe_status read(const struct gguf *g, struct model_hparams *hp, numoe_error *err)
{
    FORWARD_IF(arch_read_gqa(g, ROPE_HALVES, hp, err));
    FORWARD_IF(arch_get_u32(g, "attention.sliding_window", true, &hp->window, err));
    hp->act = FFN_SWIGLU_OAI;
    hp->act_alpha = 1.702f;
    hp->act_limit = 7;
    hp->router.gating = ROUTER_SOFTMAX_OF_TOPK;
    return arch_read_moe(g, hp, err);
}

static bool windowed(unsigned il)
{
    return il % 2 == 0;
}

static const struct arch_part block_gpt_oss[] = {
    PART(PLACE_LAYER, SLOT_O_BIAS),
    PART(PLACE_LAYER, SLOT_SINKS),
    PART(PLACE_MOE, SLOT_ROUTER_BIAS),
    PART(PLACE_MOE, SLOT_GATE_EXPS_BIAS),
    PART(PLACE_MOE, SLOT_UP_EXPS_BIAS),
    PART(PLACE_MOE, SLOT_DOWN_EXPS_BIAS),
    PART_END,
};

const struct arch arch_gpt_oss = {
    .name = "gpt-oss",
    .read = read,
    .block = {block_model, block_gqa, block_qkv_bias, block_gpt_oss, block_ffn_norm_post,
              block_experts},
    .windowed = windowed,
};
