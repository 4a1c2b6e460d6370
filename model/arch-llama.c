/* llama: Llama, Mistral and Mixtral. Files hold queries and keys permuted for rotation in pairs. */
#include "model/arch.h"

static numoe_status read(const struct gguf *g, struct model_hparams *hp, numoe_error *err)
{
    FORWARD_IF(arch_read_gqa(g, ROPE_INTERLEAVED, hp, err));
    if (!arch_has_experts(g)) {
        return NUMOE_OK;
    }
    hp->router.gating = ROUTER_SOFTMAX;
    hp->router.norm_topk = true;
    hp->n_ff_expert = hp->n_ff;
    return arch_read_moe(g, hp, err);
}

static const struct arch_part block_more[] = {
    PART_OPTIONAL(PLACE_MODEL, SLOT_ROPE_FACTORS),
    PART_OPTIONAL(PLACE_LAYER, SLOT_Q_BIAS),
    PART_OPTIONAL(PLACE_LAYER, SLOT_K_BIAS),
    PART_OPTIONAL(PLACE_LAYER, SLOT_V_BIAS),
    PART_OPTIONAL(PLACE_LAYER, SLOT_O_BIAS),
    PART_END,
};

const struct arch arch_llama = {
    .name = "llama",
    .read = read,
    .block = {block_model, block_gqa, block_more, block_ffn_norm, block_ffn, block_experts},
};
