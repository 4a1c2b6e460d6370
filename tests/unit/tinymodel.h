/* A DeepSeek model of a few kilobytes in all its variants, written with ggufbuild.h: 2 layers (the
 * first dense), D = 8, 2 heads, 4 experts of which 2 are used.
 */
#ifndef NUMOE_TESTS_TINYMODEL_H
#define NUMOE_TESTS_TINYMODEL_H

#include "tests/unit/ggufbuild.h"

struct tiny {
    bool q_lora;     /* queries of rank 6, else straight */
    bool kv_b;       /* one attn_kv_b, and the keys of that time */
    bool kv_b_too;   /* attn_kv_b beside attn_k_b and attn_v_b */
    bool flat;       /* attn_k_b and attn_v_b with all heads' rows in one matrix */
    bool per_expert; /* a tensor an expert */
    bool tied;       /* no output.weight */
    bool yarn;
    unsigned gating;       /* expert_gating_func; 0: no key */
    unsigned n_group;      /* 0: no keys */
    unsigned n_nextn;      /* layers that are not used */
    const char *type;      /* general.type */
    const char *arch;      /* NULL: deepseek2 */
    const char *leave_out; /* a tensor */
    const char *odd;       /* a tensor that is one larger in dimension odd_dim */
    unsigned odd_dim;
    const char *extra; /* one more tensor */
    const char *key; /* a number or float after "deepseek2." that is `value`, or `real`, instead */
    uint32_t value;
    float real;
    unsigned n_part;      /* the first of so many files; the tensor left out is in another */
    uint32_t expert_type; /* of the routed experts' tensors: F32 is 0 */
};

static inline void tiny_tensor(struct ggufbuild *b, const struct tiny *o, const char *name,
                               uint32_t type, uint64_t k, uint64_t rows, uint64_t mats)
{
    uint64_t dim[3] = {k, rows, mats};
    if (o->leave_out && strcmp(name, o->leave_out) == 0) {
        return;
    }
    if (o->odd && strcmp(name, o->odd) == 0) {
        dim[o->odd_dim]++;
    }
    gb_tensor(b, name, type, dim[0], dim[1], dim[2]);
}

static inline void tiny_layer_tensor(struct ggufbuild *b, const struct tiny *o, unsigned il,
                                     const char *rest, uint64_t k, uint64_t rows, uint64_t mats)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%u.%s.weight", il, rest);
    tiny_tensor(b, o, name, strstr(rest, "_exps") ? o->expert_type : FORMAT_F32, k, rows, mats);
}

enum { TINY_D = 8, TINY_V = 5, TINY_H = 2, TINY_NOPE = 4, TINY_ROPE = 2, TINY_N_V = 3 };
enum { TINY_KV_LORA = 4, TINY_Q_LORA = 6, TINY_F = 7, TINY_E = 4, TINY_F_EXPERT = 9 };

static inline bool tiny_key(char full[96], const struct tiny *o, const char *key)
{
    snprintf(full, 96, "deepseek2.%s", key);
    return o->key && strcmp(o->key, key) == 0;
}

static inline void tiny_u32(struct ggufbuild *b, const struct tiny *o, const char *key, uint32_t x)
{
    char full[96];
    bool other = tiny_key(full, o, key);
    gb_u32(b, full, other ? o->value : x);
}

static inline void tiny_f32(struct ggufbuild *b, const struct tiny *o, const char *key, float x)
{
    char full[96];
    bool other = tiny_key(full, o, key);
    gb_f32(b, full, other ? o->real : x);
}

static inline void tiny_keys(struct ggufbuild *b, const struct tiny *o)
{
    gb_string(b, "general.architecture", o->arch ? o->arch : "deepseek2");
    if (o->type) {
        gb_string(b, "general.type", o->type);
    }
    gb_string(b, "general.name", "tiny");
    if (o->n_part > 0) {
        gb_u16(b, "split.no", 0);
        gb_u16(b, "split.count", (uint16_t)o->n_part);
    }
    tiny_u32(b, o, "block_count", 2 + o->n_nextn);
    if (o->n_nextn > 0) {
        tiny_u32(b, o, "nextn_predict_layers", o->n_nextn);
    }
    tiny_u32(b, o, "context_length", 64);
    tiny_u32(b, o, "embedding_length", TINY_D);
    tiny_u32(b, o, "feed_forward_length", TINY_F);
    tiny_u32(b, o, "leading_dense_block_count", 1);
    tiny_u32(b, o, "attention.head_count", TINY_H);
    tiny_f32(b, o, "attention.layer_norm_rms_epsilon", 1e-6f);
    tiny_u32(b, o, "attention.head_count_kv", o->kv_b ? TINY_H : 1);
    tiny_u32(b, o, "attention.kv_lora_rank", TINY_KV_LORA);
    if (o->q_lora) {
        tiny_u32(b, o, "attention.q_lora_rank", TINY_Q_LORA);
    }
    if (o->kv_b) {
        tiny_u32(b, o, "attention.key_length", TINY_NOPE + TINY_ROPE);
        tiny_u32(b, o, "attention.value_length", TINY_N_V);
    } else {
        tiny_u32(b, o, "attention.key_length", TINY_KV_LORA + TINY_ROPE);
        tiny_u32(b, o, "attention.value_length", TINY_KV_LORA);
        tiny_u32(b, o, "attention.key_length_mla", TINY_NOPE + TINY_ROPE);
        tiny_u32(b, o, "attention.value_length_mla", TINY_N_V);
    }
    tiny_u32(b, o, "rope.dimension_count", TINY_ROPE);
    tiny_f32(b, o, "rope.freq_base", 10000);
    if (o->yarn) {
        gb_string(b, "deepseek2.rope.scaling.type", "yarn");
        tiny_f32(b, o, "rope.scaling.factor", 4);
        tiny_u32(b, o, "rope.scaling.original_context_length", 16);
        tiny_f32(b, o, "rope.scaling.yarn_log_multiplier", 0.1f);
    }
}

static inline void tiny_router_keys(struct ggufbuild *b, const struct tiny *o)
{
    tiny_u32(b, o, "expert_count", TINY_E);
    tiny_u32(b, o, "expert_used_count", 2);
    tiny_u32(b, o, "expert_feed_forward_length", TINY_F_EXPERT);
    tiny_u32(b, o, "expert_shared_count", 1);
    tiny_f32(b, o, "expert_weights_scale", 2.5f);
    gb_bool(b, "deepseek2.expert_weights_norm", true);
    if (o->gating > 0) {
        tiny_u32(b, o, "expert_gating_func", o->gating);
    }
    if (o->n_group > 0) {
        tiny_u32(b, o, "expert_group_count", o->n_group);
        tiny_u32(b, o, "expert_group_used_count", 1);
    }
    gb_array(b, "tokenizer.ggml.tokens", GGUF_STRING, 3);
    gb_text(b, "<s>"), gb_text(b, "a"), gb_text(b, "b");
}

static inline void tiny_attention(struct ggufbuild *b, const struct tiny *o, unsigned il)
{
    const unsigned n_qk = TINY_NOPE + TINY_ROPE;
    tiny_layer_tensor(b, o, il, "attn_norm", TINY_D, 1, 1);
    if (o->q_lora) {
        tiny_layer_tensor(b, o, il, "attn_q_a", TINY_D, TINY_Q_LORA, 1);
        tiny_layer_tensor(b, o, il, "attn_q_a_norm", TINY_Q_LORA, 1, 1);
        tiny_layer_tensor(b, o, il, "attn_q_b", TINY_Q_LORA, TINY_H * n_qk, 1);
    } else {
        tiny_layer_tensor(b, o, il, "attn_q", TINY_D, TINY_H * n_qk, 1);
    }
    tiny_layer_tensor(b, o, il, "attn_kv_a_mqa", TINY_D, TINY_KV_LORA + TINY_ROPE, 1);
    tiny_layer_tensor(b, o, il, "attn_kv_a_norm", TINY_KV_LORA, 1, 1);
    if (o->kv_b || o->kv_b_too) {
        tiny_layer_tensor(b, o, il, "attn_kv_b", TINY_KV_LORA, TINY_H * (TINY_NOPE + TINY_N_V), 1);
    }
    if (!o->kv_b) {
        const unsigned rows = o->flat ? TINY_H : 1, mats = o->flat ? 1 : TINY_H;
        tiny_layer_tensor(b, o, il, "attn_k_b", TINY_NOPE, TINY_KV_LORA * rows, mats);
        tiny_layer_tensor(b, o, il, "attn_v_b", TINY_KV_LORA, TINY_N_V * rows, mats);
    }
    tiny_layer_tensor(b, o, il, "attn_output", TINY_H * TINY_N_V, TINY_D, 1);
}

static inline void tiny_experts(struct ggufbuild *b, const struct tiny *o, unsigned il)
{
    tiny_layer_tensor(b, o, il, "ffn_gate_inp", TINY_D, TINY_E, 1);
    if (o->per_expert) {
        for (unsigned ie = 0; ie < TINY_E; ie++) {
            char gate[32], up[32], down[32];
            snprintf(gate, sizeof gate, "ffn_gate.%u", ie);
            snprintf(up, sizeof up, "ffn_up.%u", ie);
            snprintf(down, sizeof down, "ffn_down.%u", ie);
            tiny_layer_tensor(b, o, il, gate, TINY_D, TINY_F_EXPERT, 1);
            tiny_layer_tensor(b, o, il, up, TINY_D, TINY_F_EXPERT, 1);
            tiny_layer_tensor(b, o, il, down, TINY_F_EXPERT, TINY_D, 1);
        }
    } else {
        tiny_layer_tensor(b, o, il, "ffn_gate_exps", TINY_D, TINY_F_EXPERT, TINY_E);
        tiny_layer_tensor(b, o, il, "ffn_up_exps", TINY_D, TINY_F_EXPERT, TINY_E);
        tiny_layer_tensor(b, o, il, "ffn_down_exps", TINY_F_EXPERT, TINY_D, TINY_E);
    }
    tiny_layer_tensor(b, o, il, "ffn_gate_shexp", TINY_D, TINY_F_EXPERT, 1);
    tiny_layer_tensor(b, o, il, "ffn_up_shexp", TINY_D, TINY_F_EXPERT, 1);
    tiny_layer_tensor(b, o, il, "ffn_down_shexp", TINY_F_EXPERT, TINY_D, 1);
}

static inline void tiny_build(struct ggufbuild *b, unsigned version, const struct tiny *o)
{
    gb_init(b, version);
    tiny_keys(b, o);
    tiny_router_keys(b, o);
    tiny_tensor(b, o, "token_embd.weight", FORMAT_F32, TINY_D, TINY_V, 1);
    tiny_tensor(b, o, "output_norm.weight", FORMAT_F32, TINY_D, 1, 1);
    if (!o->tied) {
        tiny_tensor(b, o, "output.weight", FORMAT_F32, TINY_D, TINY_V, 1);
    }
    for (unsigned il = 0; il < 2; il++) {
        tiny_attention(b, o, il);
        tiny_layer_tensor(b, o, il, "ffn_norm", TINY_D, 1, 1);
        if (il == 0) {
            tiny_layer_tensor(b, o, il, "ffn_gate", TINY_D, TINY_F, 1);
            tiny_layer_tensor(b, o, il, "ffn_up", TINY_D, TINY_F, 1);
            tiny_layer_tensor(b, o, il, "ffn_down", TINY_F, TINY_D, 1);
        } else {
            tiny_experts(b, o, il);
        }
    }
    for (unsigned il = 2; il < 2 + o->n_nextn; il++) {
        tiny_layer_tensor(b, o, il, "nextn.eh_proj", 2 * TINY_D, TINY_D, 1);
    }
    if (o->extra) {
        tiny_tensor(b, o, o->extra, FORMAT_F32, 4, 1, 1);
    }
    gb_finish(b);
}

#endif
