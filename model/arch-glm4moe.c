/* glm4moe: GLM-4.5 and 4.6. DeepSeek-V3's router over grouped-query attention; part of each head is
 * rotated; some checkpoints norm queries and keys, head by head. */
#include "model/arch.h"

static numoe_status read(const struct gguf *g, struct model_hparams *hp, numoe_error *err)
{
    FORWARD_IF(arch_read_gqa(g, ROPE_HALVES, hp, err));
    hp->router.gating = ROUTER_SIGMOID;
    hp->router.norm_topk = true;
    FORWARD_IF(arch_read_moe(g, hp, err));
    hp->router.group_rule = hp->router.n_group > 1 ? GROUP_BEST_TWO : GROUP_NONE;
    return NUMOE_OK;
}

static const struct arch_part block_glm[] = {
    PART_OPTIONAL(PLACE_LAYER, SLOT_Q_BIAS),          PART_OPTIONAL(PLACE_LAYER, SLOT_K_BIAS),
    PART_OPTIONAL(PLACE_LAYER, SLOT_V_BIAS),          PART_OPTIONAL(PLACE_LAYER, SLOT_Q_NORM),
    PART_WITH(PLACE_LAYER, SLOT_K_NORM, SLOT_Q_NORM), PART_END,
};

const struct arch arch_glm4moe = {
    .name = "glm4moe",
    .read = read,
    .block = {block_model, block_gqa, block_glm, block_ffn_norm_post, block_ffn, block_experts,
              block_shared},
};
