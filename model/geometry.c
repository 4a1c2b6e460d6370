/* Geometries of well-known models, and the headers of files that have them. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "model/geometry.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const struct geometry geometries[] = {
    { "deepseek-v2-lite", "deepseek2", "deepseek-llm", 27, 1, 2048, 102400, 163840, 16, 1, 0, 0, 512,
      128, 64, 128, 10944, 1408, 64, 6, 2, 1, 1, 1, 1.0f, 1e4f, 1e-6f, false, false },
    { "deepseek-v3", "deepseek2", "deepseek-v3", 61, 3, 7168, 129280, 163840, 128, 1, 0, 1536, 512,
      128, 64, 128, 18432, 2048, 256, 8, 1, 2, 8, 4, 2.5f, 1e4f, 1e-6f, true, false },
    { "kimi-k2", "deepseek2", "kimi-k2", 61, 1, 7168, 163840, 131072, 64, 1, 0, 1536, 512, 128, 64,
      128, 18432, 2048, 384, 8, 1, 2, 1, 1, 2.827f, 5e4f, 1e-6f, true, false },
    { "qwen3-30b-a3b", "qwen3moe", "qwen2", 48, 0, 2048, 151936, 40960, 32, 4, 128, 0, 0, 0, 0, 0,
      6144, 768, 128, 8, 0, 1, 0, 0, 1.0f, 1e6f, 1e-6f, true, true },
    { "qwen3-235b-a22b", "qwen3moe", "qwen2", 94, 0, 4096, 151936, 40960, 64, 4, 128, 0, 0, 0, 0, 0,
      12288, 1536, 128, 8, 0, 1, 0, 0, 1.0f, 1e6f, 1e-6f, true, true },
    { "powermoe-3b", "granitemoe", "refact", 32, 0, 1536, 49152, 4096, 24, 8, 64, 0, 0, 0, 0, 0,
      512, 512, 40, 8, 0, 1, 0, 0, 1.0f, 1e4f, 1e-6f, true, false, 12.0f, 0.22f, 0.015625f, 6.0f },
    { "mixtral-8x7b", "llama", "llama-bpe", 32, 0, 4096, 32000, 32768, 32, 8, 128, 0, 0, 0, 0, 0,
      14336, 14336, 8, 2, 0, 1, 0, 0, 1.0f, 1e6f, 1e-5f, true, false },
};

/* ------------------------------------------------------------------ bytes */

/* Memory that is not there is told at the end. */
static void put(struct geometry_file *w, struct strbuf *b, const void *bytes, size_t n)
{
    w->failed |= strbuf_append(b, bytes, n, NULL) != NUMOE_OK;
}

static void put_u32(struct geometry_file *w, struct strbuf *b, uint32_t v)
{
    put(w, b, &v, 4);
}

static void put_u64(struct geometry_file *w, struct strbuf *b, uint64_t v)
{
    put(w, b, &v, 8);
}

static void put_str(struct geometry_file *w, struct strbuf *b, const char *s, size_t n)
{
    put_u64(w, b, n);
    put(w, b, s, n);
}

static void key(struct geometry_file *w, const char *name, enum gguf_type type)
{
    char text[128];
    bool global = !strncmp(name, "general.", 8) || !strncmp(name, "tokenizer.", 10);
    int n = snprintf(text, sizeof text, "%s%s%s", global ? "" : w->g->arch, global ? "" : ".", name);
    put_str(w, &w->kv, text, (size_t)n);
    put_u32(w, &w->kv, type);
    w->n_kv++;
}

static void kv_u32(struct geometry_file *w, const char *name, uint32_t v)
{
    key(w, name, GGUF_U32);
    put_u32(w, &w->kv, v);
}

static void kv_f32(struct geometry_file *w, const char *name, float v)
{
    key(w, name, GGUF_F32);
    put(w, &w->kv, &v, 4);
}

static void kv_bool(struct geometry_file *w, const char *name, bool v)
{
    key(w, name, GGUF_BOOL);
    put(w, &w->kv, &(uint8_t){ v }, 1);
}

static void kv_str(struct geometry_file *w, const char *name, const char *v)
{
    key(w, name, GGUF_STRING);
    put_str(w, &w->kv, v, strlen(v));
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

static uint32_t pick_type(const struct geometry_file *w, const char *name, unsigned il, uint64_t k)
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
    return FORMAT_F16; /* geometry_init() knows the mix */
}

/* ------------------------------------------------------------------ tensors */

static void add(struct geometry_file *w, int il, const char *suffix, bool f32, unsigned n_dim, uint64_t k,
                uint64_t rows, uint64_t mats)
{
    if (w->n_tensor == w->cap_tensor) {
        const size_t cap = w->cap_tensor ? 2 * w->cap_tensor : 256;
        if (mem_grow(&w->tensor, cap, sizeof *w->tensor, "a geometry", NULL) != NUMOE_OK) {
            w->failed = true;
            return;
        }
        w->cap_tensor = cap;
    }
    struct geometry_tensor *t = &w->tensor[w->n_tensor++];
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

static void add_vector(struct geometry_file *w, int il, const char *suffix, uint64_t k)
{
    add(w, il, suffix, true, 1, k, 1, 1);
}

static void add_matrix(struct geometry_file *w, int il, const char *suffix, uint64_t k, uint64_t rows)
{
    add(w, il, suffix, false, 2, k, rows, 1);
}

static void add_mla(struct geometry_file *w, int il)
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

static void add_gqa(struct geometry_file *w, int il)
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

static void add_ffn(struct geometry_file *w, int il)
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

static void add_tensors(struct geometry_file *w)
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
    if (w->g->embd_scale == 0) { /* granitemoe: tied to the embedding */
        add_matrix(w, -1, "output.weight", d, w->n_vocab);
    }
}

static void add_metadata(struct geometry_file *w)
{
    const struct geometry *g = w->g;
    char name[96];
    snprintf(name, sizeof name, "%s %s", g->name, w->mix);
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
    if (g->embd_scale != 0) {
        kv_f32(w, "embedding_scale", g->embd_scale);
        kv_f32(w, "residual_scale", g->residual_scale);
        kv_f32(w, "attention.scale", g->attn_scale);
        kv_f32(w, "logit_scale", g->logit_divisor);
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

/* ------------------------------------------------------------------ the whole */

const struct geometry *geometry_at(unsigned i)
{
    return i < ARRAY_LEN(geometries) ? &geometries[i] : NULL;
}

const char *geometry_mix_name(unsigned i)
{
    return i < ARRAY_LEN(mixes) ? mixes[i].name : NULL;
}

/* The one of that name, or the only one that begins so. */
static const struct geometry *find(const char *name)
{
    const struct geometry *found = NULL;
    unsigned n = 0;
    for (size_t i = 0; i < ARRAY_LEN(geometries); i++) {
        if (strcmp(geometries[i].name, name) == 0) {
            return &geometries[i];
        }
        if (name[0] != '\0' && strncmp(geometries[i].name, name, strlen(name)) == 0) {
            found = &geometries[i];
            n++;
        }
    }
    return n == 1 ? found : NULL;
}

static numoe_status fail_name(const char *what, const char *name, bool is_mix, numoe_error *err)
{
    struct strbuf list = {0};
    for (unsigned i = 0; is_mix ? geometry_mix_name(i) != NULL : geometry_at(i) != NULL; i++) {
        (void)strbuf_printf(&list, NULL, "%s%s", i ? ", " : "",
                            is_mix ? geometry_mix_name(i) : geometry_at(i)->name);
    }
    const numoe_status status = status_fail(err, NUMOE_E_INPUT, "%s '%s' is none of %s", what, name,
                                            list.data ? list.data : "those that are known");
    strbuf_fini(&list);
    return status;
}

static bool has_mix(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(mixes); i++) {
        if (strcmp(mixes[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

static numoe_status check_memory(const struct geometry_file *f, numoe_error *err)
{
    return f->failed ? status_fail(err, NUMOE_E_MEMORY, "no memory for a geometry") : NUMOE_OK;
}

numoe_status geometry_init(struct geometry_file *f, const char *name, const char *mix,
                           unsigned n_layer, unsigned n_vocab, bool legacy_mla, numoe_error *err)
{
    *f = (struct geometry_file){.g = find(name), .mix = mix, .legacy_mla = legacy_mla};
    if (f->g == NULL) {
        return fail_name("geometry", name, false, err);
    }
    if (!has_mix(mix)) {
        return fail_name("type", mix, true, err);
    }
    f->n_layer = n_layer ? n_layer : f->g->n_layer;
    f->n_dense = f->n_layer == f->g->n_layer ? f->g->n_dense : MIN(f->g->n_dense, 1);
    f->n_vocab = n_vocab ? n_vocab : f->g->n_vocab;
    add_metadata(f);
    add_tensors(f);
    return check_memory(f, err);
}

void geometry_fini(struct geometry_file *f)
{
    strbuf_fini(&f->kv);
    mem_free(f->tensor);
    *f = (struct geometry_file){0};
}

numoe_status geometry_key(struct geometry_file *f, const char *name, enum gguf_type type,
                          numoe_error *err)
{
    key(f, name, type);
    return check_memory(f, err);
}

numoe_status geometry_header(struct geometry_file *f, struct strbuf *out, numoe_error *err)
{
    uint64_t offset = 0;
    put(f, out, "GGUF", 4);
    put_u32(f, out, 3);
    put_u64(f, out, f->n_tensor);
    put_u64(f, out, f->n_kv);
    put(f, out, f->kv.data, f->kv.len);
    for (size_t i = 0; i < f->n_tensor; i++) {
        struct geometry_tensor *t = &f->tensor[i];
        t->offset = offset;
        put_str(f, out, t->name, strlen(t->name));
        put_u32(f, out, t->n_dim);
        put(f, out, t->dim, 8 * t->n_dim);
        put_u32(f, out, t->format_id);
        put_u64(f, out, t->offset);
        offset += round_up(t->bytes, GEOMETRY_ALIGNMENT);
    }
    while (!f->failed && out->len % GEOMETRY_ALIGNMENT) {
        put(f, out, "", 1);
    }
    return check_memory(f, err);
}

/* A file in memory that is all holes behind its header. */
static numoe_status make_hollow(const struct geometry_file *f, const struct strbuf *header, int *out,
                                numoe_error *err)
{
    const struct geometry_tensor *last = &f->tensor[f->n_tensor - 1];
    const int fd = memfd_create("numoe geometry", MFD_CLOEXEC);
    const uint64_t bytes =
        header->len + last->offset + round_up(last->bytes, GEOMETRY_ALIGNMENT);
    if (fd < 0 || write(fd, header->data, header->len) != (ssize_t)header->len ||
        ftruncate(fd, (off_t)bytes) != 0) {
        const int cause = errno;
        if (fd >= 0) {
            close(fd);
        }
        return status_fail(err, NUMOE_E_MEMORY, "a geometry of %.1f GB: %s", (double)bytes * 1e-9,
                           strerror(cause));
    }
    *out = fd;
    return NUMOE_OK;
}

static numoe_status open_hollow(struct geometry_file *f, struct model **out, numoe_error *err)
{
    struct strbuf header = {0};
    char path[64];
    int fd = -1;
    numoe_status status = geometry_header(f, &header, err);
    if (status == NUMOE_OK) {
        status = make_hollow(f, &header, &fd, err);
    }
    strbuf_fini(&header);
    if (status == NUMOE_OK) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        status = model_open(path, out, err);
        close(fd);
    }
    return status;
}

numoe_status geometry_open(const char *name, const char *mix, struct model **out, numoe_error *err)
{
    struct geometry_file f;
    numoe_status status = geometry_init(&f, name, mix, 0, 0, false, err);
    if (status == NUMOE_OK) {
        status = open_hollow(&f, out, err);
    }
    geometry_fini(&f);
    return status;
}
