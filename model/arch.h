/* Architectures as descriptions. A description says how to read the hyper-parameters and which
 * parts a layer has; parts come in shared blocks (attention, dense FFN, experts ...) with the names
 * and shapes of model/slot.c. To add an architecture: one file model/arch-<name>.c with a `struct
 * arch`, and its line in the list of model/arch.c.
 *
 * Internal to model/.
 */
#ifndef NUMOE_MODEL_ARCH_H
#define NUMOE_MODEL_ARCH_H

#include "model/model.h"

/* ---- shapes */

/* A length in terms of the hyper-parameters. */
enum slot_dim {
    DIM_NONE,
    DIM_1,
    DIM_D, /* n_embd */
    DIM_V, /* n_vocab */
    DIM_H, /* n_head */
    DIM_N_QK,
    DIM_N_NOPE,
    DIM_N_V,
    DIM_Q_ROWS,    /* n_head * n_qk */
    DIM_K_ROWS,    /* n_head_kv * n_qk */
    DIM_V_ROWS,    /* n_head_kv * n_v */
    DIM_HEADS_OUT, /* n_head * n_v */
    DIM_Q_LORA,
    DIM_KV_LORA,
    DIM_KV_A_ROWS, /* kv_lora_rank + n_rope */
    DIM_KV_B_ROWS, /* n_head * (n_nope + n_v) */
    DIM_F,         /* n_ff */
    DIM_E,         /* n_expert */
    DIM_F_EXPERT,
    DIM_F_SHARED,
    DIM_ROPE_PAIRS, /* n_rot / 2 */
};

struct slot_desc {
    const char *name;       /* after "blk.N." where the slot belongs to a layer */
    const char *per_expert; /* printf format of the old one-tensor-an-expert form, or NULL */
    enum slot_dim mat, row, k;
    const char *fused;   /* a tensor that has the rows of two slots for each matrix, or NULL */
    unsigned fused_half; /* which rows of it */
};

extern const struct slot_desc slot_desc[N_SLOT];

unsigned slot_dim_value(const struct model_hparams *hp, enum slot_dim dim);

/* ---- descriptions */

/* Which layers have the part, or the whole model. */
enum part_place { PLACE_MODEL, PLACE_LAYER, PLACE_DENSE, PLACE_MOE, PLACE_END };

/* Whether it must be there. A part one of whose dimensions is 0 is in no file. */
enum part_need {
    NEED_ALWAYS,
    NEED_OPTIONAL,
    NEED_WITH,    /* where the part `other` is there, and only there */
    NEED_WITHOUT, /* where the part `other` is not there; else it is not used */
};

struct arch_part {
    enum part_place place;
    enum slot slot;
    enum part_need need;
    enum slot other;  /* stands before this part in the description */
    const char *name; /* NULL: as in slot_desc */
    enum slot_dim k;  /* DIM_NONE: as in slot_desc */
};

#define PART(p, s)                                                                                 \
    {                                                                                              \
        .place = (p), .slot = (s)                                                                  \
    }
#define PART_OPTIONAL(p, s)                                                                        \
    {                                                                                              \
        .place = (p), .slot = (s), .need = NEED_OPTIONAL                                           \
    }
#define PART_WITH(p, s, o)                                                                         \
    {                                                                                              \
        .place = (p), .slot = (s), .need = NEED_WITH, .other = (o)                                 \
    }
#define PART_WITHOUT(p, s, o)                                                                      \
    {                                                                                              \
        .place = (p), .slot = (s), .need = NEED_WITHOUT, .other = (o)                              \
    }
#define PART_END                                                                                   \
    {                                                                                              \
        .place = PLACE_END                                                                         \
    }

/* Blocks: arrays that end with PLACE_END. */
extern const struct arch_part block_model[]; /* embedding, last norm, head (or tied) */
extern const struct arch_part block_mla[];   /* DeepSeek's attention */
extern const struct arch_part block_gqa[];   /* norm, q, k, v, o */
extern const struct arch_part block_qkv_bias[];
extern const struct arch_part block_ffn_norm[];
extern const struct arch_part
    block_ffn_norm_post[];                     /* the same under the name post_attention_norm */
extern const struct arch_part block_ffn[];     /* dense gate, up, down */
extern const struct arch_part block_experts[]; /* router and routed experts */
extern const struct arch_part block_shared[];  /* shared expert where n_ff_shared > 0 */

#define ARCH_BLOCKS_MAX 8

struct arch {
    const char *name; /* general.architecture */
    /* Fills what arch_read_basic() left; reads keys through arch_get_*. */
    numoe_status (*read)(const struct gguf *g, struct model_hparams *hp, numoe_error *err);
    const struct arch_part *block[ARCH_BLOCKS_MAX]; /* NULL ends */
    bool (*windowed)(unsigned il); /* which layers see hp.window only; NULL: none */
};

const struct arch *arch_find(struct gguf_string name); /* NULL if unknown */
/* "deepseek2, llama, ..." into text. */
void arch_list(char *text, size_t size);

/* ---- reading hyper-parameters: key is what follows "<architecture>." */

numoe_status arch_get_u32(const struct gguf *g, const char *key, bool required, unsigned *out,
                          numoe_error *err);
numoe_status arch_get_f32(const struct gguf *g, const char *key, bool required, float *out,
                          numoe_error *err);
numoe_status arch_get_bool(const struct gguf *g, const char *key, bool required, bool *out,
                           numoe_error *err);
numoe_status arch_get_string(const struct gguf *g, const char *key, bool required,
                             struct gguf_string *out, numoe_error *err);
/* "path: text", NUMOE_E_FILE_MODEL. */
numoe_status arch_fail(const struct gguf *g, numoe_error *err, const char *fmt, ...)
    NUMOE_PRINTF(3, 4);

/* What every architecture has: defaults, sizes, norm epsilon, heads. */
numoe_status arch_read_basic(const struct gguf *g, struct model_hparams *hp, numoe_error *err);
/* Heads of grouped-query attention, with rotary embedding of the given kind. */
numoe_status arch_read_gqa(const struct gguf *g, enum rope_kind kind, struct model_hparams *hp,
                           numoe_error *err);
/* Base, scaling and length; n_rot keeps its value where the file does not say. */
numoe_status arch_read_rope(const struct gguf *g, enum rope_kind kind, struct rope_params *rope,
                            unsigned n_ctx_train, numoe_error *err);
/* Whether the file says so; an expert_count that cannot be read counts as yes, to be refused later.
 */
bool arch_has_experts(const struct gguf *g);
/* Expert counts, sizes, gating, groups. hp->router holds the architecture's own defaults before. */
numoe_status arch_read_moe(const struct gguf *g, struct model_hparams *hp, numoe_error *err);
/* Everything is in a range that later arithmetic can rely on. */
numoe_status arch_check(const struct gguf *g, const struct model_hparams *hp, numoe_error *err);

#endif
