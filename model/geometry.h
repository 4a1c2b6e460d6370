/* Geometries of well-known Mixture-of-Experts models: what their configurations say of layers, heads
 * and experts, and the tensors of a GGUF file that has them. To plan for files that are not here, and
 * to make files of random weights (bench/make-model).
 */
#ifndef NUMOE_MODEL_GEOMETRY_H
#define NUMOE_MODEL_GEOMETRY_H

#include "base/mem.h"
#include "model/model.h"

/* Published configurations (config.json of the models' repositories). */
struct geometry {
    const char *name, *arch, *pre;
    unsigned n_layer, n_dense, n_embd, n_vocab, n_ctx;
    unsigned n_head, n_head_kv, head_dim;                   /* grouped-query attention */
    unsigned q_lora, kv_lora, n_nope, n_rope, n_v;          /* MLA where kv_lora is not 0 */
    unsigned n_ff, n_ff_expert, n_expert, n_used, n_shared;
    unsigned gating, n_group, n_group_used;                 /* gating 2: sigmoid with bias */
    float route_scale, freq_base, eps;
    bool norm_topk, qk_norm;
    float embd_scale, residual_scale, attn_scale, logit_divisor; /* granitemoe; else 0 */
};

struct geometry_tensor {
    char name[64];
    uint32_t format_id;
    unsigned n_dim;
    uint64_t dim[4], bytes, offset;
};

/* The header of a file as it grows. */
struct geometry_file {
    const struct geometry *g;
    unsigned n_layer, n_dense, n_vocab;
    const char *mix; /* "Q4_K_M" ... */
    bool legacy_mla; /* one attn_kv_b a layer in place of attn_k_b and attn_v_b */
    struct strbuf kv;
    uint64_t n_kv;
    struct geometry_tensor *tensor; /* [n_tensor] */
    size_t n_tensor, cap_tensor;
    bool failed; /* no memory */
};

#define GEOMETRY_ALIGNMENT 32u /* of tensors in a file */

/* i = 0, 1 ...; NULL behind the last one. */
const struct geometry *geometry_at(unsigned i);
const char *geometry_mix_name(unsigned i);

/* name may be the beginning of one. Layers and vocabulary 0: the model's own. NUMOE_E_INPUT lists what
 * there is. geometry_fini() in any case. */
numoe_status geometry_init(struct geometry_file *f, const char *name, const char *mix,
                           unsigned n_layer, unsigned n_vocab, bool legacy_mla, numoe_error *err);
void geometry_fini(struct geometry_file *f);

/* A key more; without "general." or "tokenizer." in front it gets the architecture's name there. The
 * value follows with strbuf_append() to f->kv. */
numoe_status geometry_key(struct geometry_file *f, const char *name, enum gguf_type type,
                          numoe_error *err);

/* The header's bytes, padded to GEOMETRY_ALIGNMENT: tensors begin behind it, at their offsets. */
numoe_status geometry_header(struct geometry_file *f, struct strbuf *out, numoe_error *err);

/* A model whose tensors have no data: for shapes and sizes only. model_close(). */
numoe_status geometry_open(const char *name, const char *mix, struct model **out, numoe_error *err);

#endif
