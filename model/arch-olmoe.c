/* olmoe: queries and keys are normed over the whole row; the weights of the chosen experts are left
 * as the softmax gave them. */
#include "model/arch.h"

static numoe_status read(const struct gguf *g, struct model_hparams *hp, numoe_error *err)
{
    float clamp = 0;
    FORWARD_IF(arch_read_gqa(g, ROPE_HALVES, hp, err));
    FORWARD_IF(arch_get_f32(g, "attention.clamp_kqv", false, &clamp, err));
    if (clamp != 0) {
        return arch_fail(g, err, "attention.clamp_kqv is %g; clamped attention is not supported",
                         (double)clamp);
    }
    hp->router.gating = ROUTER_SOFTMAX;
    hp->n_ff_expert = hp->n_ff;
    return arch_read_moe(g, hp, err);
}

static const struct arch_part block_qk_norm_row[] = {
    {.place = PLACE_LAYER, .slot = SLOT_Q_NORM, .k = DIM_Q_ROWS},
    {.place = PLACE_LAYER, .slot = SLOT_K_NORM, .k = DIM_K_ROWS},
    PART_END,
};

const struct arch arch_olmoe = {
    .name = "olmoe",
    .read = read,
    .block = {block_model, block_gqa, block_qk_norm_row, block_ffn_norm, block_experts},
};
