/* The parts a tensor can play: GGUF names, shapes, and the blocks that architectures are composed
 * of. Shapes are matrices of rows, [mat, row, k], in terms of the hyper-parameters.
 */
#include "model/arch.h"

#define VECTOR(length) DIM_1, DIM_1, length

const struct slot_desc slot_desc[N_SLOT] = {
    [SLOT_TOKEN_EMBD] = {"token_embd.weight", NULL, DIM_1, DIM_V, DIM_D},
    [SLOT_OUTPUT_NORM] = {"output_norm.weight", NULL, VECTOR(DIM_D)},
    [SLOT_OUTPUT] = {"output.weight", NULL, DIM_1, DIM_V, DIM_D},
    [SLOT_ROPE_FACTORS] = {"rope_freqs.weight", NULL, VECTOR(DIM_ROPE_PAIRS)},

    [SLOT_ATTN_NORM] = {"attn_norm.weight", NULL, VECTOR(DIM_D)},
    [SLOT_Q] = {"attn_q.weight", NULL, DIM_1, DIM_Q_ROWS, DIM_D},
    [SLOT_Q_A] = {"attn_q_a.weight", NULL, DIM_1, DIM_Q_LORA, DIM_D},
    [SLOT_Q_A_NORM] = {"attn_q_a_norm.weight", NULL, VECTOR(DIM_Q_LORA)},
    [SLOT_Q_B] = {"attn_q_b.weight", NULL, DIM_1, DIM_Q_ROWS, DIM_Q_LORA},
    [SLOT_KV_A] = {"attn_kv_a_mqa.weight", NULL, DIM_1, DIM_KV_A_ROWS, DIM_D},
    [SLOT_KV_A_NORM] = {"attn_kv_a_norm.weight", NULL, VECTOR(DIM_KV_LORA)},
    [SLOT_K_B] = {"attn_k_b.weight", NULL, DIM_H, DIM_KV_LORA, DIM_N_NOPE},
    [SLOT_V_B] = {"attn_v_b.weight", NULL, DIM_H, DIM_N_V, DIM_KV_LORA},
    [SLOT_KV_B] = {"attn_kv_b.weight", NULL, DIM_1, DIM_KV_B_ROWS, DIM_KV_LORA},
    [SLOT_K] = {"attn_k.weight", NULL, DIM_1, DIM_K_ROWS, DIM_D},
    [SLOT_V] = {"attn_v.weight", NULL, DIM_1, DIM_V_ROWS, DIM_D},
    [SLOT_Q_BIAS] = {"attn_q.bias", NULL, VECTOR(DIM_Q_ROWS)},
    [SLOT_K_BIAS] = {"attn_k.bias", NULL, VECTOR(DIM_K_ROWS)},
    [SLOT_V_BIAS] = {"attn_v.bias", NULL, VECTOR(DIM_V_ROWS)},
    [SLOT_O_BIAS] = {"attn_output.bias", NULL, VECTOR(DIM_D)},
    [SLOT_Q_NORM] = {"attn_q_norm.weight", NULL, VECTOR(DIM_N_QK)},
    [SLOT_K_NORM] = {"attn_k_norm.weight", NULL, VECTOR(DIM_N_QK)},
    [SLOT_SINKS] = {"attn_sinks.weight", NULL, VECTOR(DIM_H)},
    [SLOT_O] = {"attn_output.weight", NULL, DIM_1, DIM_D, DIM_HEADS_OUT},
    [SLOT_POST_ATTN_NORM] = {"post_attention_norm.weight", NULL, VECTOR(DIM_D)},

    [SLOT_FFN_NORM] = {"ffn_norm.weight", NULL, VECTOR(DIM_D)},
    [SLOT_GATE] = {"ffn_gate.weight", NULL, DIM_1, DIM_F, DIM_D},
    [SLOT_UP] = {"ffn_up.weight", NULL, DIM_1, DIM_F, DIM_D},
    [SLOT_DOWN] = {"ffn_down.weight", NULL, DIM_1, DIM_D, DIM_F},
    [SLOT_ROUTER] = {"ffn_gate_inp.weight", NULL, DIM_1, DIM_E, DIM_D},
    [SLOT_ROUTER_BIAS] = {"ffn_gate_inp.bias", NULL, VECTOR(DIM_E)},
    [SLOT_SELECT_BIAS] = {"exp_probs_b.bias", NULL, VECTOR(DIM_E)},
    [SLOT_GATE_EXPS] = {"ffn_gate_exps.weight", "ffn_gate.%u.weight", DIM_E, DIM_F_EXPERT, DIM_D,
                        "ffn_gate_up_exps.weight", 0},
    [SLOT_UP_EXPS] = {"ffn_up_exps.weight", "ffn_up.%u.weight", DIM_E, DIM_F_EXPERT, DIM_D,
                      "ffn_gate_up_exps.weight", 1},
    [SLOT_DOWN_EXPS] = {"ffn_down_exps.weight", "ffn_down.%u.weight", DIM_E, DIM_D, DIM_F_EXPERT},
    [SLOT_GATE_EXPS_BIAS] = {"ffn_gate_exps.bias", NULL, DIM_1, DIM_E, DIM_F_EXPERT},
    [SLOT_UP_EXPS_BIAS] = {"ffn_up_exps.bias", NULL, DIM_1, DIM_E, DIM_F_EXPERT},
    [SLOT_DOWN_EXPS_BIAS] = {"ffn_down_exps.bias", NULL, DIM_1, DIM_E, DIM_D},
    [SLOT_GATE_SHEXP] = {"ffn_gate_shexp.weight", NULL, DIM_1, DIM_F_SHARED, DIM_D},
    [SLOT_UP_SHEXP] = {"ffn_up_shexp.weight", NULL, DIM_1, DIM_F_SHARED, DIM_D},
    [SLOT_DOWN_SHEXP] = {"ffn_down_shexp.weight", NULL, DIM_1, DIM_D, DIM_F_SHARED},
    [SLOT_SHEXP_GATE] = {"ffn_gate_inp_shexp.weight", NULL, VECTOR(DIM_D)},
};

const char *slot_name(enum slot slot)
{
    return slot_desc[slot].name;
}

unsigned slot_dim_value(const struct model_hparams *hp, enum slot_dim dim)
{
    switch (dim) {
    case DIM_NONE:
        return 0;
    case DIM_1:
        return 1;
    case DIM_D:
        return hp->n_embd;
    case DIM_V:
        return hp->n_vocab;
    case DIM_H:
        return hp->n_head;
    case DIM_N_QK:
        return hp->n_qk;
    case DIM_N_NOPE:
        return hp->n_nope;
    case DIM_ROPE_PAIRS:
        return hp->rope.n_rot / 2;
    case DIM_N_V:
        return hp->n_v;
    case DIM_Q_ROWS:
        return hp->n_head * hp->n_qk;
    case DIM_K_ROWS:
        return hp->n_head_kv * hp->n_qk;
    case DIM_V_ROWS:
        return hp->n_head_kv * hp->n_v;
    case DIM_HEADS_OUT:
        return hp->n_head * hp->n_v;
    case DIM_Q_LORA:
        return hp->q_lora_rank;
    case DIM_KV_LORA:
        return hp->kv_lora_rank;
    case DIM_KV_A_ROWS:
        return hp->kv_lora_rank + hp->n_rope;
    case DIM_KV_B_ROWS:
        return hp->n_head * (hp->n_nope + hp->n_v);
    case DIM_F:
        return hp->n_ff;
    case DIM_E:
        return hp->n_expert;
    case DIM_F_EXPERT:
        return hp->n_ff_expert;
    case DIM_F_SHARED:
        return hp->n_ff_shared;
    }
    return 0;
}

/* ---- blocks */

const struct arch_part block_model[] = {
    PART(PLACE_MODEL, SLOT_TOKEN_EMBD),
    PART(PLACE_MODEL, SLOT_OUTPUT_NORM),
    PART_OPTIONAL(PLACE_MODEL, SLOT_OUTPUT),
    PART_END,
};

/* Queries come straight or through a low rank; the second half of the keys' and values' low rank is
 * there as two tensors or, in older files, as one. Files with all three exist. */
const struct arch_part block_mla[] = {
    PART(PLACE_LAYER, SLOT_ATTN_NORM),
    PART_OPTIONAL(PLACE_LAYER, SLOT_Q_A),
    PART_WITH(PLACE_LAYER, SLOT_Q_A_NORM, SLOT_Q_A),
    PART_WITH(PLACE_LAYER, SLOT_Q_B, SLOT_Q_A),
    PART_WITHOUT(PLACE_LAYER, SLOT_Q, SLOT_Q_A),
    PART(PLACE_LAYER, SLOT_KV_A),
    PART(PLACE_LAYER, SLOT_KV_A_NORM),
    PART_OPTIONAL(PLACE_LAYER, SLOT_K_B),
    PART_WITH(PLACE_LAYER, SLOT_V_B, SLOT_K_B),
    PART_WITHOUT(PLACE_LAYER, SLOT_KV_B, SLOT_K_B),
    PART(PLACE_LAYER, SLOT_O),
    PART_END,
};

const struct arch_part block_gqa[] = {
    PART(PLACE_LAYER, SLOT_ATTN_NORM), PART(PLACE_LAYER, SLOT_Q), PART(PLACE_LAYER, SLOT_K),
    PART(PLACE_LAYER, SLOT_V),         PART(PLACE_LAYER, SLOT_O), PART_END,
};

const struct arch_part block_qkv_bias[] = {
    PART(PLACE_LAYER, SLOT_Q_BIAS),
    PART(PLACE_LAYER, SLOT_K_BIAS),
    PART(PLACE_LAYER, SLOT_V_BIAS),
    PART_END,
};

const struct arch_part block_ffn_norm[] = {
    PART(PLACE_LAYER, SLOT_FFN_NORM),
    PART_END,
};

const struct arch_part block_ffn_norm_post[] = {
    {.place = PLACE_LAYER, .slot = SLOT_FFN_NORM, .name = "post_attention_norm.weight"},
    PART_END,
};

const struct arch_part block_ffn[] = {
    PART(PLACE_DENSE, SLOT_GATE),
    PART(PLACE_DENSE, SLOT_UP),
    PART(PLACE_DENSE, SLOT_DOWN),
    PART_END,
};

const struct arch_part block_experts[] = {
    PART(PLACE_MOE, SLOT_ROUTER),    PART_OPTIONAL(PLACE_MOE, SLOT_SELECT_BIAS),
    PART(PLACE_MOE, SLOT_GATE_EXPS), PART(PLACE_MOE, SLOT_UP_EXPS),
    PART(PLACE_MOE, SLOT_DOWN_EXPS), PART_END,
};

const struct arch_part block_shared[] = {
    PART(PLACE_MOE, SLOT_GATE_SHEXP),
    PART(PLACE_MOE, SLOT_UP_SHEXP),
    PART(PLACE_MOE, SLOT_DOWN_SHEXP),
    PART_END,
};
