/* make-model: writes GGUF files with the geometry of well-known MoE models and random weights, for
 * measuring speed where the real files cannot be had. Fewer layers, another vocabulary and any mix of
 * quantization types can be asked for. What a model says is noise; how long it takes is not.
 *
 *     make-model deepseek-v2-lite Q4_K_M -o v2lite.gguf
 *     make-model deepseek-v3 Q4_K_M --layers 3 -o v3-3.gguf
 *
 * Weights of a type are cut out of a pool of random blocks whose scales make a product of a normed
 * vector with a row come out near 1, so activations stay in range through any number of layers.
 */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "kernels/format.h"
#include "model/gguf.h"

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
};

static const struct geometry geometries[] = {
    { "deepseek-v2-lite", "deepseek2", "deepseek-llm", 27, 1, 2048, 102400, 163840, 16, 1, 0, 0, 512,
      128, 64, 128, 10944, 1408, 64, 6, 2, 1, 1, 1, 1.0f, 1e4f, 1e-6f, false, false },
    { "deepseek-v3", "deepseek2", "deepseek-v3", 61, 3, 7168, 129280, 163840, 128, 1, 0, 1536, 512,
      128, 64, 128, 18432, 2048, 256, 8, 1, 2, 8, 4, 2.5f, 1e4f, 1e-6f, true, false },
    { "kimi-k2", "deepseek2", "kimi-k2", 61, 1, 7168, 163840, 131072, 64, 1, 0, 1536, 512, 128, 64,
      128, 18432, 2048, 384, 8, 1, 2, 1, 1, 2.827f, 5e4f, 1e-6f, true, false },
    { "qwen3-30b-a3b", "qwen3moe", "qwen2", 48, 0, 2048, 151936, 40960, 32, 4, 128, 0, 0, 0, 0, 0,
      6144, 768, 128, 8, 0, 1, 0, 0, 1.0f, 1e6f, 1e-6f, true, true },
    { "mixtral-8x7b", "llama", "llama-bpe", 32, 0, 4096, 32000, 32768, 32, 8, 128, 0, 0, 0, 0, 0,
      14336, 14336, 8, 2, 0, 1, 0, 0, 1.0f, 1e6f, 1e-5f, true, false },
};

/* ------------------------------------------------------------------ the file as it grows */

struct tensor {
    char name[64];
    uint32_t format_id;
    unsigned n_dim;
    uint64_t dim[4], bytes, offset;
};

struct writer {
    const struct geometry *g;
    unsigned n_layer, n_dense, n_vocab;
    const char *mix;
    bool legacy_mla;
    struct strbuf kv;
    uint64_t n_kv;
    struct tensor *tensor;
    size_t n_tensor, cap_tensor;
    uint64_t state; /* of the random numbers */
};

static void die(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fputs("make-model: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    exit(2);
}

/* splitmix64 (Steele, Lea, Flood 2014) */
static uint64_t next_random(struct writer *w)
{
    uint64_t z = (w->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Mean 0, variance 1, near enough to a bell: the sum of four uniform numbers. */
static float next_normal(struct writer *w)
{
    uint64_t r = next_random(w);
    float sum = 0;
    for (int i = 0; i < 4; i++) {
        sum += (float)((r >> (16 * i)) & 0xffff) / 65535.0f;
    }
    return (sum - 2.0f) * 1.7320508f;
}

static void put(struct strbuf *b, const void *bytes, size_t n)
{
    if (strbuf_append(b, bytes, n, NULL) != NUMOE_OK) {
        die("out of memory");
    }
}

static void put_u32(struct strbuf *b, uint32_t v) { put(b, &v, 4); }
static void put_u64(struct strbuf *b, uint64_t v) { put(b, &v, 8); }

static void put_str(struct strbuf *b, const char *s, size_t n)
{
    put_u64(b, n);
    put(b, s, n);
}

/* "general.x" is taken as it is, other keys get the architecture in front. */
static void key(struct writer *w, const char *name, enum gguf_type type)
{
    char text[128];
    bool global = !strncmp(name, "general.", 8) || !strncmp(name, "tokenizer.", 10);
    int n = snprintf(text, sizeof text, "%s%s%s", global ? "" : w->g->arch, global ? "" : ".", name);
    put_str(&w->kv, text, (size_t)n);
    put_u32(&w->kv, type);
    w->n_kv++;
}

static void kv_u32(struct writer *w, const char *name, uint32_t v)
{
    key(w, name, GGUF_U32);
    put_u32(&w->kv, v);
}

static void kv_f32(struct writer *w, const char *name, float v)
{
    key(w, name, GGUF_F32);
    put(&w->kv, &v, 4);
}

static void kv_bool(struct writer *w, const char *name, bool v)
{
    key(w, name, GGUF_BOOL);
    put(&w->kv, &(uint8_t){ v }, 1);
}

static void kv_str(struct writer *w, const char *name, const char *v)
{
    key(w, name, GGUF_STRING);
    put_str(&w->kv, v, strlen(v));
}

/* ------------------------------------------------------------------ vocabulary */

/* The printable stand-in for a byte in byte-level BPE vocabularies (GPT-2), as UTF-8. */
static size_t byte_token(unsigned byte, char *out)
{
    unsigned code = byte, next = 256;
    for (unsigned b = 0; b <= byte; b++) {
        bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        code = printable ? b : next;
        next += !printable;
    }
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    out[0] = (char)(0xc0 | code >> 6);
    out[1] = (char)(0x80 | (code & 0x3f));
    return 2;
}

/* Token i: 0 and 1 are BOS and EOS, then the 256 bytes, all pairs of bytes, and triples. Every one
 * but the first 258 is the merge of the token `left` and the byte `right`. */
static size_t vocab_token(unsigned i, char *out, unsigned *left, unsigned *right)
{
    if (i < 2) {
        strcpy(out, i ? "<|end|>" : "<|begin|>");
        return strlen(out);
    }
    i -= 2;
    if (i < 256) {
        return byte_token(i, out);
    }
    *left = (i - 256) / 256 + 2;
    *right = (i - 256) % 256 + 2;
    unsigned a, b;
    size_t n = vocab_token(*left, out, &a, &b);
    return n + vocab_token(*right, out + n, &a, &b);
}

static void put_vocabulary(struct writer *w)
{
    char text[64];
    unsigned left = 0, right = 0, a, b;
    kv_str(w, "tokenizer.ggml.model", "gpt2");
    kv_str(w, "tokenizer.ggml.pre", w->g->pre);
    key(w, "tokenizer.ggml.tokens", GGUF_ARRAY);
    put_u32(&w->kv, GGUF_STRING);
    put_u64(&w->kv, w->n_vocab);
    for (unsigned i = 0; i < w->n_vocab; i++) {
        put_str(&w->kv, text, vocab_token(i, text, &left, &right));
    }
    key(w, "tokenizer.ggml.token_type", GGUF_ARRAY);
    put_u32(&w->kv, GGUF_I32);
    put_u64(&w->kv, w->n_vocab);
    for (unsigned i = 0; i < w->n_vocab; i++) {
        put_u32(&w->kv, i < 2 ? 3 : 1);
    }
    key(w, "tokenizer.ggml.merges", GGUF_ARRAY);
    put_u32(&w->kv, GGUF_STRING);
    put_u64(&w->kv, w->n_vocab > 258 ? w->n_vocab - 258 : 0);
    for (unsigned i = 258; i < w->n_vocab; i++) {
        vocab_token(i, text, &left, &right);
        size_t n = vocab_token(left, text, &a, &b);
        text[n++] = ' ';
        put_str(&w->kv, text, n + vocab_token(right, text + n, &a, &b));
    }
    kv_u32(w, "tokenizer.ggml.bos_token_id", 0);
    kv_u32(w, "tokenizer.ggml.eos_token_id", 1);
    kv_bool(w, "tokenizer.ggml.add_bos_token", true);
}

/* ------------------------------------------------------------------ types */

/* A mix as quantizers make it: the type of most tensors, of every third ffn_down and attn_v, of the
 * head. Rows that are no multiple of a super-block fall back as they do there. */
static const struct {
    const char *name;
    uint32_t most, some, head, embd, dense; /* dense, if not 0: of all but routed experts */
} mixes[] = {
    { "F16", FORMAT_F16, FORMAT_F16, FORMAT_F16, FORMAT_F16 },
    { "BF16", FORMAT_BF16, FORMAT_BF16, FORMAT_BF16, FORMAT_BF16 },
    { "Q8_0", FORMAT_Q8_0, FORMAT_Q8_0, FORMAT_Q8_0, FORMAT_Q8_0 },
    { "Q4_K-Q8_0", FORMAT_Q4_K, FORMAT_Q4_K, FORMAT_Q8_0, FORMAT_Q8_0, FORMAT_Q8_0 },
    { "Q4_0", FORMAT_Q4_0, FORMAT_Q4_0, FORMAT_Q6_K, FORMAT_Q4_0 },
    { "Q2_K", FORMAT_Q2_K, FORMAT_Q3_K, FORMAT_Q6_K, FORMAT_Q2_K },
    { "Q3_K_M", FORMAT_Q3_K, FORMAT_Q4_K, FORMAT_Q6_K, FORMAT_Q3_K },
    { "Q4_K_M", FORMAT_Q4_K, FORMAT_Q6_K, FORMAT_Q6_K, FORMAT_Q4_K },
    { "Q5_K_M", FORMAT_Q5_K, FORMAT_Q6_K, FORMAT_Q6_K, FORMAT_Q5_K },
    { "Q6_K", FORMAT_Q6_K, FORMAT_Q6_K, FORMAT_Q6_K, FORMAT_Q6_K },
    { "IQ4_XS", FORMAT_IQ4_XS, FORMAT_Q5_K, FORMAT_Q6_K, FORMAT_IQ4_XS },
    { "IQ3_XXS", FORMAT_IQ3_XXS, FORMAT_IQ3_S, FORMAT_Q5_K, FORMAT_IQ3_S },
    { "IQ2_XXS", FORMAT_IQ2_XXS, FORMAT_Q2_K, FORMAT_Q5_K, FORMAT_Q2_K },
    { "MXFP4", FORMAT_MXFP4, FORMAT_MXFP4, FORMAT_Q8_0, FORMAT_Q8_0 },
};

static uint32_t fall_back(uint32_t id)
{
    switch (id) {
    case FORMAT_Q4_K: return FORMAT_Q5_0;
    case FORMAT_Q5_K: return FORMAT_Q5_1;
    case FORMAT_Q6_K: return FORMAT_Q8_0;
    default: return FORMAT_IQ4_NL;
    }
}

/* Two thirds of the layers in the middle keep the main type (the first and last eighth do not). */
static bool more_bits(unsigned il, unsigned n)
{
    return il < n / 8 || il >= 7 * n / 8 || (il - n / 8) % 3 == 2;
}

static uint32_t pick_type(const struct writer *w, const char *name, unsigned il, uint64_t k)
{
    for (size_t i = 0; i < ARRAY_LEN(mixes); i++) {
        if (strcmp(mixes[i].name, w->mix)) {
            continue;
        }
        uint32_t id = mixes[i].most;
        if (mixes[i].dense != 0 && !strstr(name, "_exps")) {
            id = mixes[i].dense;
        } else if (!strcmp(name, "output.weight")) {
            id = mixes[i].head;
        } else if (!strcmp(name, "token_embd.weight")) {
            id = mixes[i].embd;
        } else if (strstr(name, "ffn_down") || strstr(name, "attn_v")) {
            id = more_bits(il, w->n_layer) ? mixes[i].some : id;
        } else if (strstr(name, "attn_") && mixes[i].most == FORMAT_MXFP4) {
            id = FORMAT_Q8_0;
        }
        return k % format_find(id)->block_elems == 0 ? id : fall_back(id);
    }
    die("unknown mix %s: see --help", w->mix);
    return 0;
}

/* ------------------------------------------------------------------ tensors */

static void add(struct writer *w, int il, const char *suffix, bool f32, unsigned n_dim, uint64_t k,
                uint64_t rows, uint64_t mats)
{
    if (w->n_tensor == w->cap_tensor) {
        w->cap_tensor = w->cap_tensor ? 2 * w->cap_tensor : 256;
        w->tensor = realloc(w->tensor, w->cap_tensor * sizeof *w->tensor);
        if (!w->tensor) {
            die("out of memory");
        }
    }
    struct tensor *t = &w->tensor[w->n_tensor++];
    memset(t, 0, sizeof *t);
    if (il < 0) {
        snprintf(t->name, sizeof t->name, "%s", suffix);
    } else {
        snprintf(t->name, sizeof t->name, "blk.%d.%s", il, suffix);
    }
    t->format_id = f32 ? FORMAT_F32 : pick_type(w, t->name, il < 0 ? 0 : (unsigned)il, k);
    t->n_dim = n_dim;
    t->dim[0] = k;
    t->dim[1] = rows;
    t->dim[2] = mats;
    t->bytes = format_row_bytes(format_find(t->format_id), k) * rows * mats;
}

static void add_vector(struct writer *w, int il, const char *suffix, uint64_t k)
{
    add(w, il, suffix, true, 1, k, 1, 1);
}

static void add_matrix(struct writer *w, int il, const char *suffix, uint64_t k, uint64_t rows)
{
    add(w, il, suffix, false, 2, k, rows, 1);
}

static void add_mla(struct writer *w, int il)
{
    const struct geometry *g = w->g;
    uint64_t n_q = (uint64_t)g->n_head * (g->n_nope + g->n_rope), d = g->n_embd;
    if (g->q_lora) {
        add_matrix(w, il, "attn_q_a.weight", d, g->q_lora);
        add_vector(w, il, "attn_q_a_norm.weight", g->q_lora);
        add_matrix(w, il, "attn_q_b.weight", g->q_lora, n_q);
    } else {
        add_matrix(w, il, "attn_q.weight", d, n_q);
    }
    add_matrix(w, il, "attn_kv_a_mqa.weight", d, g->kv_lora + g->n_rope);
    add_vector(w, il, "attn_kv_a_norm.weight", g->kv_lora);
    if (w->legacy_mla) {
        add_matrix(w, il, "attn_kv_b.weight", g->kv_lora, (uint64_t)g->n_head * (g->n_nope + g->n_v));
    } else {
        add(w, il, "attn_k_b.weight", false, 3, g->n_nope, g->kv_lora, g->n_head);
        add(w, il, "attn_v_b.weight", false, 3, g->kv_lora, g->n_v, g->n_head);
    }
    add_matrix(w, il, "attn_output.weight", (uint64_t)g->n_head * g->n_v, d);
}

static void add_gqa(struct writer *w, int il)
{
    const struct geometry *g = w->g;
    uint64_t d = g->n_embd, n = g->head_dim;
    add_matrix(w, il, "attn_q.weight", d, g->n_head * n);
    add_matrix(w, il, "attn_k.weight", d, g->n_head_kv * n);
    add_matrix(w, il, "attn_v.weight", d, g->n_head_kv * n);
    add_matrix(w, il, "attn_output.weight", g->n_head * n, d);
    if (g->qk_norm) {
        add_vector(w, il, "attn_q_norm.weight", n);
        add_vector(w, il, "attn_k_norm.weight", n);
    }
}

static void add_ffn(struct writer *w, int il)
{
    const struct geometry *g = w->g;
    uint64_t d = g->n_embd, fe = g->n_ff_expert, fs = fe * g->n_shared;
    if ((unsigned)il < w->n_dense) {
        add_matrix(w, il, "ffn_gate.weight", d, g->n_ff);
        add_matrix(w, il, "ffn_up.weight", d, g->n_ff);
        add_matrix(w, il, "ffn_down.weight", g->n_ff, d);
        return;
    }
    add(w, il, "ffn_gate_inp.weight", true, 2, d, g->n_expert, 1);
    if (g->gating == 2) {
        add_vector(w, il, "exp_probs_b.bias", g->n_expert);
    }
    add(w, il, "ffn_gate_exps.weight", false, 3, d, fe, g->n_expert);
    add(w, il, "ffn_up_exps.weight", false, 3, d, fe, g->n_expert);
    add(w, il, "ffn_down_exps.weight", false, 3, fe, d, g->n_expert);
    if (fs) {
        add_matrix(w, il, "ffn_gate_shexp.weight", d, fs);
        add_matrix(w, il, "ffn_up_shexp.weight", d, fs);
        add_matrix(w, il, "ffn_down_shexp.weight", fs, d);
    }
}

static void add_tensors(struct writer *w)
{
    uint64_t d = w->g->n_embd;
    add_matrix(w, -1, "token_embd.weight", d, w->n_vocab);
    for (int il = 0; il < (int)w->n_layer; il++) {
        add_vector(w, il, "attn_norm.weight", d);
        if (w->g->kv_lora) {
            add_mla(w, il);
        } else {
            add_gqa(w, il);
        }
        add_vector(w, il, "ffn_norm.weight", d);
        add_ffn(w, il);
    }
    add_vector(w, -1, "output_norm.weight", d);
    add_matrix(w, -1, "output.weight", d, w->n_vocab);
}

static void add_metadata(struct writer *w)
{
    const struct geometry *g = w->g;
    char name[96];
    snprintf(name, sizeof name, "%s random %s", g->name, w->mix);
    kv_str(w, "general.architecture", g->arch);
    kv_str(w, "general.type", "model");
    kv_str(w, "general.name", name);
    kv_u32(w, "general.quantization_version", 2);
    kv_u32(w, "block_count", w->n_layer);
    kv_u32(w, "context_length", g->n_ctx);
    kv_u32(w, "embedding_length", g->n_embd);
    kv_u32(w, "feed_forward_length", g->n_ff);
    kv_u32(w, "vocab_size", w->n_vocab);
    kv_u32(w, "attention.head_count", g->n_head);
    kv_f32(w, "attention.layer_norm_rms_epsilon", g->eps);
    kv_f32(w, "rope.freq_base", g->freq_base);
    kv_u32(w, "expert_count", g->n_expert);
    kv_u32(w, "expert_used_count", g->n_used);
    if (strcmp(g->arch, "llama")) {
        kv_u32(w, "expert_feed_forward_length", g->n_ff_expert);
    }
    if (!g->kv_lora) {
        kv_u32(w, "attention.head_count_kv", g->n_head_kv);
        kv_u32(w, "attention.key_length", g->head_dim);
        kv_u32(w, "attention.value_length", g->head_dim);
        kv_u32(w, "rope.dimension_count", g->head_dim);
        return;
    }
    kv_u32(w, "attention.head_count_kv", w->legacy_mla ? g->n_head : 1);
    kv_u32(w, "attention.kv_lora_rank", g->kv_lora);
    if (g->q_lora) {
        kv_u32(w, "attention.q_lora_rank", g->q_lora);
    }
    unsigned n_qk = g->n_nope + g->n_rope;
    kv_u32(w, "attention.key_length", w->legacy_mla ? n_qk : g->kv_lora + g->n_rope);
    kv_u32(w, "attention.value_length", w->legacy_mla ? g->n_v : g->kv_lora);
    if (!w->legacy_mla) {
        kv_u32(w, "attention.key_length_mla", n_qk);
        kv_u32(w, "attention.value_length_mla", g->n_v);
    }
    kv_u32(w, "rope.dimension_count", g->n_rope);
    kv_u32(w, "leading_dense_block_count", w->n_dense);
    kv_u32(w, "expert_shared_count", g->n_shared);
    kv_u32(w, "expert_gating_func", g->gating);
    kv_f32(w, "expert_weights_scale", g->route_scale);
    kv_bool(w, "expert_weights_norm", g->norm_topk);
    if (g->n_group > 1) {
        kv_u32(w, "expert_group_count", g->n_group);
        kv_u32(w, "expert_group_used_count", g->n_group_used);
    }
}

/* ------------------------------------------------------------------ random blocks */

/* Where a block's f16 scales are; -1 ends the list. */
static const struct {
    uint32_t id;
    int offset[3];
} scales[] = {
    { FORMAT_Q4_0, { 0, -1, -1 } },     { FORMAT_Q4_1, { 0, 2, -1 } },
    { FORMAT_Q5_0, { 0, -1, -1 } },     { FORMAT_Q5_1, { 0, 2, -1 } },
    { FORMAT_Q8_0, { 0, -1, -1 } },     { FORMAT_Q2_K, { 80, 82, -1 } },
    { FORMAT_Q3_K, { 108, -1, -1 } },   { FORMAT_Q4_K, { 0, 2, -1 } },
    { FORMAT_Q5_K, { 0, 2, -1 } },      { FORMAT_Q6_K, { 208, -1, -1 } },
    { FORMAT_IQ4_NL, { 0, -1, -1 } },   { FORMAT_IQ4_XS, { 0, -1, -1 } },
    { FORMAT_IQ3_XXS, { 0, -1, -1 } },  { FORMAT_IQ3_S, { 0, -1, -1 } },
    { FORMAT_IQ2_XXS, { 0, -1, -1 } },
};

static void set_scales(uint32_t id, uint8_t *block, float d)
{
    if (id == FORMAT_MXFP4) {
        int e;
        frexpf(d, &e);
        block[0] = (uint8_t)(127 + e);
        return;
    }
    for (size_t i = 0; i < ARRAY_LEN(scales); i++) {
        for (int j = 0; scales[i].id == id && j < 3 && scales[i].offset[j] >= 0; j++) {
            uint16_t h = format_f32_to_f16(d);
            memcpy(block + scales[i].offset[j], &h, 2);
        }
    }
}

/* One random block whose elements have root mean square sigma. */
static void random_block(struct writer *w, uint32_t id, float sigma, uint8_t *block)
{
    const struct format *f = format_find(id);
    if (f->block_elems == 1) {
        float x = next_normal(w) * sigma;
        uint16_t h = format_f32_to_f16(x);
        uint32_t bits;
        memcpy(&bits, &x, 4);
        uint16_t b = (uint16_t)(bits >> 16);
        memcpy(block, id == FORMAT_F32 ? (void *)&x : id == FORMAT_F16 ? (void *)&h : (void *)&b,
               f->block_bytes);
        return;
    }
    float x[256];
    double sum = 0;
    for (unsigned i = 0; i < f->block_bytes; i++) {
        block[i] = (uint8_t)(next_random(w) >> 32);
    }
    set_scales(id, block, 1.0f);
    format_dequant_row(f, block, f->block_elems, x);
    for (unsigned i = 0; i < f->block_elems; i++) {
        sum += (double)x[i] * x[i];
    }
    double rms = sqrt(sum / f->block_elems);
    set_scales(id, block, rms > 0 ? (float)(sigma / rms) : 0.0f);
}

#define POOL_BLOCKS 8192u

/* The data of a tensor: runs of blocks out of a pool of random ones, from random places. */
static void write_matrix(struct writer *w, const struct tensor *t, FILE *out)
{
    const struct format *f = format_find(t->format_id);
    bool router = strstr(t->name, "ffn_gate_inp") != NULL;
    float sigma = (router ? 2.0f : 1.0f) / sqrtf((float)t->dim[0]);
    size_t pool_bytes = (size_t)POOL_BLOCKS * f->block_bytes;
    uint8_t *pool = malloc(pool_bytes);
    if (!pool) {
        die("out of memory");
    }
    for (unsigned i = 0; i < POOL_BLOCKS; i++) {
        random_block(w, t->format_id, sigma, pool + (size_t)i * f->block_bytes);
    }
    for (uint64_t left = t->bytes; left > 0;) {
        size_t from = next_random(w) % (POOL_BLOCKS / 2) * f->block_bytes;
        size_t n = MIN(left, pool_bytes - from);
        if (fwrite(pool + from, 1, n, out) != n) {
            die("writing: %s", strerror(errno));
        }
        left -= n;
    }
    free(pool);
}

static void write_vector(struct writer *w, const struct tensor *t, FILE *out)
{
    bool norm = strstr(t->name, "norm") != NULL;
    for (uint64_t i = 0; i < t->dim[0]; i++) {
        float x = norm ? 1.0f : 0.1f * next_normal(w);
        if (fwrite(&x, 4, 1, out) != 1) {
            die("writing: %s", strerror(errno));
        }
    }
}

/* ------------------------------------------------------------------ writing */

#define ALIGNMENT 32u

static void write_header(struct writer *w, FILE *out)
{
    struct strbuf head = { 0 };
    uint64_t offset = 0;
    put(&head, "GGUF", 4);
    put_u32(&head, 3);
    put_u64(&head, w->n_tensor);
    put_u64(&head, w->n_kv);
    put(&head, w->kv.data, w->kv.len);
    for (size_t i = 0; i < w->n_tensor; i++) {
        struct tensor *t = &w->tensor[i];
        t->offset = offset;
        put_str(&head, t->name, strlen(t->name));
        put_u32(&head, t->n_dim);
        put(&head, t->dim, 8 * t->n_dim);
        put_u32(&head, t->format_id);
        put_u64(&head, t->offset);
        offset += round_up(t->bytes, ALIGNMENT);
    }
    while (head.len % ALIGNMENT) {
        put(&head, "", 1);
    }
    if (fwrite(head.data, 1, head.len, out) != head.len) {
        die("writing: %s", strerror(errno));
    }
    strbuf_fini(&head);
}

static void write_file(struct writer *w, const char *path)
{
    char temporary[4096];
    snprintf(temporary, sizeof temporary, "%s.partial", path);
    FILE *out = fopen(temporary, "wb");
    if (!out) {
        die("%s: %s", temporary, strerror(errno));
    }
    write_header(w, out);
    for (size_t i = 0; i < w->n_tensor; i++) {
        const struct tensor *t = &w->tensor[i];
        if (t->n_dim == 1) {
            write_vector(w, t, out);
        } else {
            write_matrix(w, t, out);
        }
        for (uint64_t pad = t->bytes; pad % ALIGNMENT; pad++) {
            fputc(0, out);
        }
    }
    if (fclose(out) || rename(temporary, path)) {
        int cause = errno;
        unlink(temporary);
        die("%s: %s", path, strerror(cause));
    }
}

static void usage(FILE *out)
{
    fputs("usage: make-model GEOMETRY MIX -o FILE [--layers N] [--vocab N] [--seed N] [--legacy-mla]\n"
          "\n"
          "  --layers N      this many layers (default: all; leading dense ones are cut to 1 of 3)\n"
          "  --vocab N       vocabulary size (default: the model's)\n"
          "  --legacy-mla    one attn_kv_b per layer instead of attn_k_b and attn_v_b\n"
          "\ngeometries:",
          out);
    for (size_t i = 0; i < ARRAY_LEN(geometries); i++) {
        fprintf(out, " %s", geometries[i].name);
    }
    fputs("\nmixes:", out);
    for (size_t i = 0; i < ARRAY_LEN(mixes); i++) {
        fprintf(out, " %s", mixes[i].name);
    }
    fputc('\n', out);
}

static unsigned number(const char *flag, const char *text, unsigned min, unsigned max)
{
    char *end;
    errno = 0;
    unsigned long v = strtoul(text, &end, 10);
    if (errno || *end || end == text || v < min || v > max) {
        die("%s: %s is not a number from %u to %u", flag, text, min, max);
    }
    return (unsigned)v;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        { "layers", required_argument, NULL, 'l' }, { "vocab", required_argument, NULL, 'v' },
        { "seed", required_argument, NULL, 's' },   { "legacy-mla", no_argument, NULL, 'M' },
        { "help", no_argument, NULL, 'h' },         { NULL, 0, NULL, 0 },
    };
    struct writer w = { .state = 1 };
    const char *path = NULL;
    unsigned n_layer = 0, n_vocab = 0;
    for (int c; (c = getopt_long(argc, argv, "o:h", options, NULL)) != -1;) {
        switch (c) {
        case 'o': path = optarg; break;
        case 'l': n_layer = number("--layers", optarg, 1, 1000); break;
        case 'v': n_vocab = number("--vocab", optarg, 258, 1000000); break;
        case 's': w.state = number("--seed", optarg, 0, UINT32_MAX); break;
        case 'M': w.legacy_mla = true; break;
        case 'h': usage(stdout); return 0;
        default: usage(stderr); return 2;
        }
    }
    if (argc - optind != 2 || !path) {
        usage(stderr);
        return 2;
    }
    for (size_t i = 0; i < ARRAY_LEN(geometries); i++) {
        w.g = strcmp(geometries[i].name, argv[optind]) ? w.g : &geometries[i];
    }
    if (!w.g) {
        die("unknown geometry %s: see --help", argv[optind]);
    }
    w.mix = argv[optind + 1];
    w.n_layer = n_layer ? n_layer : w.g->n_layer;
    w.n_dense = w.n_layer == w.g->n_layer ? w.g->n_dense : MIN(w.g->n_dense, 1);
    w.n_vocab = n_vocab ? n_vocab : w.g->n_vocab;
    add_metadata(&w);
    put_vocabulary(&w);
    add_tensors(&w);
    write_file(&w, path);
    strbuf_fini(&w.kv);
    free(w.tensor);
    return 0;
}
