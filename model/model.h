/* What a model is: hyper-parameters in one architecture-neutral form, and which GGUF tensor plays
 * which part. Architectures are descriptions (model/arch-*.c) that fill these structs; the forward pass
 * (dense/, experts/) reads only these and never asks which architecture it is.
 */
#ifndef NUMOE_MODEL_MODEL_H
#define NUMOE_MODEL_MODEL_H

#include "model/gguf.h"

enum attn_kind {
    ATTN_MLA, /* multi-head latent attention (DeepSeek-V2 paper): compressed KV cache, run absorbed */
    ATTN_GQA, /* grouped-query attention; multi-head when n_head_kv == n_head */
};

enum rope_kind {
    ROPE_NONE,
    ROPE_INTERLEAVED, /* pairs (0,1), (2,3) ... */
    ROPE_HALVES,      /* pairs (i, i + n/2) ("neox") */
};

/* Rotary embedding with YaRN (Peng et al. 2023); factor 1 and ext 0 is the plain one. */
struct rope_params {
    enum rope_kind kind;
    unsigned n_rot;            /* rotated elements of a head, from the start of the part they stand in */
    float freq_base;
    float factor;              /* context extension; positions are scaled by 1/factor for slow pairs */
    bool yarn;
    unsigned n_ctx_orig;
    float beta_fast, beta_slow;
    float magnitude;           /* multiplies cos and sin; 1 for DeepSeek (its mscale is in attn_scale) */
};

enum router_gating {
    ROUTER_SOFTMAX,         /* probabilities over all experts, then selection */
    ROUTER_SIGMOID,
    ROUTER_SOFTMAX_OF_TOPK, /* selection on logits, softmax over the selected */
};

enum group_rule {
    GROUP_NONE,
    GROUP_BEST,     /* a group's score is its best expert (DeepSeek-V2) */
    GROUP_BEST_TWO, /* the sum of its two best (DeepSeek-V3) */
};

struct router_params {
    enum router_gating gating;
    enum group_rule group_rule;
    unsigned n_group, n_group_used;
    bool norm_topk;  /* weights of the selected are divided by their sum (+1e-20) */
    float scale;     /* then multiplied by this */
    /* A selection bias (exp_probs_b) is used where the tensor is there: for the choice only. */
};

enum ffn_act { FFN_SILU, FFN_SWIGLU_OAI };

struct model_hparams {
    unsigned n_layer, n_embd, n_vocab, n_ctx_train;
    unsigned n_nextn;             /* layers of the file after n_layer, not used: they predict further */
    unsigned n_dense_lead;        /* layers before the first MoE layer; n_layer without experts */
    float norm_eps;

    enum attn_kind attn;
    unsigned n_head, n_head_kv;   /* MLA: n_head_kv is 1, the latent all heads share */
    unsigned n_qk, n_v;           /* per head: length of q and k, of v */
    unsigned q_lora_rank;         /* 0: no q_a/q_b */
    unsigned kv_lora_rank;        /* MLA latent */
    unsigned n_nope, n_rope;      /* MLA: n_qk = n_nope + n_rope */
    struct rope_params rope;
    float attn_scale;             /* multiplies q . k */
    unsigned window;              /* sliding window of layers with layer.windowed; 0 none */

    unsigned n_ff;                /* dense layers */
    unsigned n_ff_expert, n_ff_shared; /* one routed expert; all shared experts together */
    unsigned n_expert, n_expert_used;
    struct router_params router;
    enum ffn_act act;
    float act_alpha, act_limit;   /* FFN_SWIGLU_OAI */

    float embd_scale, residual_scale, logit_scale; /* 1 where a model has none; logits are multiplied */
};

/* The parts a tensor can play. Shapes [rows, row length] as in W * x; a third dimension first. */
enum slot {
    /* whole model */
    SLOT_TOKEN_EMBD,   /* [V, D] */
    SLOT_OUTPUT_NORM,  /* [D] */
    SLOT_OUTPUT,       /* [V, D]; absent: tied to SLOT_TOKEN_EMBD */
    SLOT_ROPE_FACTORS, /* [n_rot / 2] divide the frequencies of rotary pairs (Llama 3.1) */
    N_MODEL_SLOT,
    /* a layer */
    SLOT_ATTN_NORM = N_MODEL_SLOT, /* [D] */
    SLOT_Q,            /* [H*n_qk, D] */
    SLOT_Q_A, SLOT_Q_A_NORM, SLOT_Q_B,   /* [q_lora, D], [q_lora], [H*n_qk, q_lora] */
    SLOT_KV_A,         /* [kv_lora + n_rope, D] */
    SLOT_KV_A_NORM,    /* [kv_lora] */
    SLOT_K_B,          /* [H, kv_lora, n_nope] */
    SLOT_V_B,          /* [H, n_v, kv_lora] */
    SLOT_KV_B,         /* [H*(n_nope + n_v), kv_lora]: older files; split into K_B and V_B on load */
    SLOT_K, SLOT_V,    /* [Hkv*n_qk, D], [Hkv*n_v, D] */
    SLOT_Q_BIAS, SLOT_K_BIAS, SLOT_V_BIAS, SLOT_O_BIAS,
    SLOT_Q_NORM, SLOT_K_NORM, /* [n_qk] per head, or [H*n_qk] over the row: told by length */
    SLOT_SINKS,        /* [H] */
    SLOT_O,            /* [D, H*n_v] */
    SLOT_POST_ATTN_NORM, /* reserved for architectures that norm before the residual */
    SLOT_FFN_NORM,     /* [D] */
    SLOT_GATE, SLOT_UP, SLOT_DOWN,       /* dense: [F, D], [F, D], [D, F] */
    SLOT_ROUTER,       /* [E, D] */
    SLOT_ROUTER_BIAS,  /* [E] added to logits (gpt-oss) */
    SLOT_SELECT_BIAS,  /* [E] exp_probs_b */
    SLOT_GATE_EXPS, SLOT_UP_EXPS, SLOT_DOWN_EXPS, /* [E, F, D], [E, F, D], [E, D, F] */
    SLOT_GATE_EXPS_BIAS, SLOT_UP_EXPS_BIAS, SLOT_DOWN_EXPS_BIAS, /* [E, F], [E, F], [E, D] */
    SLOT_GATE_SHEXP, SLOT_UP_SHEXP, SLOT_DOWN_SHEXP, /* [Fs, D], [Fs, D], [D, Fs] */
    SLOT_SHEXP_GATE,   /* [1, D]: sigmoid gate of the shared expert (qwen2moe) */
    N_SLOT,
};

/* Where a tensor's data is: one GGUF tensor, part of one that holds several, or, for old files, one
 * tensor per expert. */
struct tensor_source {
    const struct gguf_tensor *whole;          /* NULL: absent, or per_expert */
    unsigned from_row0, from_rows; /* matrix m of `whole` begins at its row m * from_rows + from_row0 */
    const struct gguf_tensor **per_expert;    /* [n_mat] or NULL */
    uint32_t format_id;
    unsigned n_mat, n_row, k; /* n_mat matrices of n_row rows of k elements; a vector is 1 x 1 x k */
};

static inline bool source_present(const struct tensor_source *s) { return s->n_mat != 0; }

struct model_layer {
    bool is_moe;
    bool windowed;
    struct tensor_source src[N_SLOT]; /* indices below N_MODEL_SLOT unused */
};

struct model {
    struct gguf *gguf; /* owned */
    char *name;        /* general.name or the file's name */
    char *arch;        /* general.architecture */
    struct model_hparams hp;
    struct tensor_source src[N_MODEL_SLOT];
    struct model_layer *layer; /* [n_layer] */
    uint64_t n_param;
    struct {
        uint64_t dense, shared, routed; /* weight bytes read per decoded token, by kind */
    } active;
};

/* Opens a GGUF file, finds its architecture, checks every tensor's shape and type. Errors name tensor,
 * dimension, found and expected. Unknown architecture: NUMOE_E_SUPPORT_ARCH with the known ones. */
numoe_status model_open(const char *path, struct model **out, numoe_error *err);
/* The same for a file that is open already: *out owns g on success only. */
numoe_status model_bind(struct gguf *g, struct model **out, numoe_error *err);
void model_close(struct model *m);

const char *slot_name(enum slot slot); /* "attn_q_a.weight" */

#endif
