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
#include "model/geometry.h"

/* ------------------------------------------------------------------ the file as it grows */

struct writer {
    struct geometry_file file;
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

static void key(struct writer *w, const char *name, enum gguf_type type)
{
    if (geometry_key(&w->file, name, type, NULL) != NUMOE_OK) {
        die("out of memory");
    }
}

static void kv_u32(struct writer *w, const char *name, uint32_t v)
{
    key(w, name, GGUF_U32);
    put_u32(&w->file.kv, v);
}

static void kv_bool(struct writer *w, const char *name, bool v)
{
    key(w, name, GGUF_BOOL);
    put(&w->file.kv, &(uint8_t){ v }, 1);
}

static void kv_str(struct writer *w, const char *name, const char *v)
{
    key(w, name, GGUF_STRING);
    put_str(&w->file.kv, v, strlen(v));
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
    kv_str(w, "tokenizer.ggml.pre", w->file.g->pre);
    key(w, "tokenizer.ggml.tokens", GGUF_ARRAY);
    put_u32(&w->file.kv, GGUF_STRING);
    put_u64(&w->file.kv, w->file.n_vocab);
    for (unsigned i = 0; i < w->file.n_vocab; i++) {
        put_str(&w->file.kv, text, vocab_token(i, text, &left, &right));
    }
    key(w, "tokenizer.ggml.token_type", GGUF_ARRAY);
    put_u32(&w->file.kv, GGUF_I32);
    put_u64(&w->file.kv, w->file.n_vocab);
    for (unsigned i = 0; i < w->file.n_vocab; i++) {
        put_u32(&w->file.kv, i < 2 ? 3 : 1);
    }
    key(w, "tokenizer.ggml.merges", GGUF_ARRAY);
    put_u32(&w->file.kv, GGUF_STRING);
    put_u64(&w->file.kv, w->file.n_vocab > 258 ? w->file.n_vocab - 258 : 0);
    for (unsigned i = 258; i < w->file.n_vocab; i++) {
        vocab_token(i, text, &left, &right);
        size_t n = vocab_token(left, text, &a, &b);
        text[n++] = ' ';
        put_str(&w->file.kv, text, n + vocab_token(right, text + n, &a, &b));
    }
    kv_u32(w, "tokenizer.ggml.bos_token_id", 0);
    kv_u32(w, "tokenizer.ggml.eos_token_id", 1);
    kv_bool(w, "tokenizer.ggml.add_bos_token", true);
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
static void write_matrix(struct writer *w, const struct geometry_tensor *t, FILE *out)
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

static void write_vector(struct writer *w, const struct geometry_tensor *t, FILE *out)
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

static void write_header(struct writer *w, FILE *out)
{
    struct strbuf head = { 0 };
    if (geometry_header(&w->file, &head, NULL) != NUMOE_OK) {
        die("out of memory");
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
    for (size_t i = 0; i < w->file.n_tensor; i++) {
        const struct geometry_tensor *t = &w->file.tensor[i];
        if (t->n_dim == 1) {
            write_vector(w, t, out);
        } else {
            write_matrix(w, t, out);
        }
        for (uint64_t pad = t->bytes; pad % GEOMETRY_ALIGNMENT; pad++) {
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
    for (unsigned i = 0; geometry_at(i); i++) {
        fprintf(out, " %s", geometry_at(i)->name);
    }
    fputs("\nmixes:", out);
    for (unsigned i = 0; geometry_mix_name(i); i++) {
        fprintf(out, " %s", geometry_mix_name(i));
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
    bool legacy_mla = false;
    for (int c; (c = getopt_long(argc, argv, "o:h", options, NULL)) != -1;) {
        switch (c) {
        case 'o': path = optarg; break;
        case 'l': n_layer = number("--layers", optarg, 1, 1000); break;
        case 'v': n_vocab = number("--vocab", optarg, 258, 1000000); break;
        case 's': w.state = number("--seed", optarg, 0, UINT32_MAX); break;
        case 'M': legacy_mla = true; break;
        case 'h': usage(stdout); return 0;
        default: usage(stderr); return 2;
        }
    }
    if (argc - optind != 2 || !path) {
        usage(stderr);
        return 2;
    }
    numoe_error err;
    if (geometry_init(&w.file, argv[optind], argv[optind + 1], n_layer, n_vocab, legacy_mla, &err) !=
        NUMOE_OK) {
        die("%s", err.text);
    }
    put_vocabulary(&w);
    write_file(&w, path);
    geometry_fini(&w.file);
    return 0;
}
