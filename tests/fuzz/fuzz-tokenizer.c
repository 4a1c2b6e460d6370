/* Fuzz target: a GGUF file (it begins with "GGUF") whose vocabulary and chat template are tried on
 * fixed texts; or a text, tried on fixed vocabularies, one for each way of splitting and
 * SentencePiece. Any file gives a tokenizer or one line of text; ids are in range; byte-level BPE
 * gives every text back, and the detokenizer whole characters.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/utf8.h"
#include "model/chat.h"
#include "tests/unit/ggufbuild.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(x)                                                                                 \
    do {                                                                                           \
        if (!(x)) {                                                                                \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x);                                \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static struct gguf *open_bytes(const void *bytes, size_t n)
{
    char path[64];
    struct gguf *g = NULL;
    int fd = memfd_create("fuzz", MFD_CLOEXEC);

    REQUIRE(fd >= 0 && write(fd, bytes, n) == (ssize_t)n);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (gguf_open(path, &g, NULL) != NUMOE_OK) {
        g = NULL;
    }
    close(fd);
    return g;
}

/* ------------------------------------------------------------------ a text */

static void detokenize(const struct tokenizer *tok, const int32_t *ids, size_t n, bool special)
{
    struct strbuf out = {0};
    struct detokenizer d;

    detokenizer_init(&d, tok, special);
    for (size_t i = 0; i < n; i++) {
        REQUIRE(detokenizer_push(&d, ids[i], &out, NULL) == NUMOE_OK);
        REQUIRE(utf8_valid_bytes(out.data, out.len) == out.len);
    }
    REQUIRE(detokenizer_flush(&d, &out, NULL) == NUMOE_OK);
    REQUIRE(utf8_valid_bytes(out.data, out.len) == out.len);
    strbuf_fini(&out);
}

static void try_text(const struct tokenizer *tok, const char *text, size_t n, unsigned flags,
                     bool comes_back)
{
    int32_t *ids;
    size_t n_ids, at = 0;

    REQUIRE(tokenizer_encode(tok, text, n, flags, &ids, &n_ids, NULL) == NUMOE_OK);
    for (size_t i = 0; i < n_ids; i++) {
        size_t len;
        const char *piece = tokenizer_text(tok, ids[i], true, &len);
        REQUIRE(piece != NULL && (unsigned)ids[i] < tokenizer_n_vocab(tok));
        if (comes_back) {
            REQUIRE(len <= n - at && memcmp(piece, text + at, len) == 0);
            at += len;
        }
    }
    REQUIRE(!comes_back || at == n);
    detokenize(tok, ids, n_ids, (flags & NUMOE_TOKENIZE_SPECIAL) != 0);
    mem_free(ids);
}

/* ------------------------------------------------------------------ fixed vocabularies */

enum { N_BYTE = 256 };

/* The character that stands for a byte in byte-level vocabularies. */
static void byte_text(unsigned byte, char text[8])
{
    unsigned code = 0x100;

    for (unsigned b = 0; b <= byte; b++) {
        bool own = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        if (b == byte) {
            code = own ? b : code;
        } else {
            code += !own;
        }
    }
    text[utf8_encode(code, text)] = '\0';
}

static struct tokenizer *finish(struct ggufbuild *b)
{
    struct tokenizer *tok;

    gb_finish(b);
    struct gguf *g = open_bytes(b->bytes, b->len);
    REQUIRE(g != NULL && tokenizer_open(g, &tok, NULL) == NUMOE_OK);
    gguf_close(g);
    gb_free(b);
    return tok;
}

static struct tokenizer *make_bpe(const char *pre)
{
    static struct ggufbuild b;
    static const char *const more[] = {"aa",   "ab",  "aab",    "Ġa", "ĠĠ",
                                       "ĠĠĠĠ", "<s>", "<s><s>", "<u>"};
    static const char *const merges[] = {"a a", "Ġ Ġ", "a b", "ĠĠ ĠĠ", "aa b", "Ġ a", "a ab"};

    gb_init(&b, 3);
    gb_string(&b, "tokenizer.ggml.model", "gpt2");
    gb_string(&b, "tokenizer.ggml.pre", pre);
    gb_array(&b, "tokenizer.ggml.tokens", GGUF_STRING, N_BYTE + ARRAY_LEN(more));
    for (unsigned i = 0; i < N_BYTE; i++) {
        char text[8];
        byte_text(i, text);
        gb_text(&b, text);
    }
    for (size_t i = 0; i < ARRAY_LEN(more); i++) {
        gb_text(&b, more[i]);
    }
    gb_array(&b, "tokenizer.ggml.token_type", GGUF_I32, N_BYTE + ARRAY_LEN(more));
    for (size_t i = 0; i < N_BYTE + ARRAY_LEN(more); i++) {
        gb_number(&b, i < N_BYTE + 6 ? 1 : i < N_BYTE + 8 ? 3 : 4, 4);
    }
    gb_array(&b, "tokenizer.ggml.merges", GGUF_STRING, ARRAY_LEN(merges));
    for (size_t i = 0; i < ARRAY_LEN(merges); i++) {
        gb_text(&b, merges[i]);
    }
    return finish(&b);
}

static struct tokenizer *make_spm(void)
{
    static struct ggufbuild b;
    static const char *const more[] = {"<unk>", "<s>", "</s>", "▁",  "a",
                                       "b",     "aa",  "▁a",   "ab", "<u>"};
    size_t n = ARRAY_LEN(more) + N_BYTE;

    gb_init(&b, 3);
    gb_string(&b, "tokenizer.ggml.model", "llama");
    gb_array(&b, "tokenizer.ggml.tokens", GGUF_STRING, n);
    for (size_t i = 0; i < n; i++) {
        char byte[8];
        snprintf(byte, sizeof byte, "<0x%02X>", (unsigned)(i - ARRAY_LEN(more)) & 0xff);
        gb_text(&b, i < ARRAY_LEN(more) ? more[i] : byte);
    }
    gb_array(&b, "tokenizer.ggml.token_type", GGUF_I32, n);
    for (size_t i = 0; i < n; i++) {
        gb_number(&b, i == 0 ? 2 : i < 3 ? 3 : i < 9 ? 1 : i == 9 ? 4 : 6, 4);
    }
    gb_array(&b, "tokenizer.ggml.scores", GGUF_F32, n);
    for (size_t i = 0; i < n; i++) {
        float score = -(float)(i % 4);
        uint32_t bits;
        memcpy(&bits, &score, sizeof bits);
        gb_number(&b, bits, 4);
    }
    return finish(&b);
}

/* ------------------------------------------------------------------ a file */

static void check_line(const numoe_error *err)
{
    REQUIRE(err->text[0] != '\0' && strpbrk(err->text, "\n\r\x1b") == NULL);
}

static void try_file(const uint8_t *data, size_t size)
{
    static const char text[] = "Hello <s>  world\n\n123 \xff\xe4\xb8\xad aab</s>";
    static const numoe_message messages[] = {
        {"system", "a"}, {"user", "b"}, {"assistant", "<think>c</think>d"}, {"user", "e"}};
    numoe_error err = {0};
    struct tokenizer *tok;
    struct chat *chat;
    json_t *request;
    struct strbuf out = {0};
    struct gguf *g = open_bytes(data, size);

    if (g == NULL) {
        return;
    }
    if (tokenizer_open(g, &tok, &err) == NUMOE_OK) {
        try_text(tok, text, strlen(text), 0, false);
        try_text(tok, text, strlen(text), NUMOE_TOKENIZE_BOS | NUMOE_TOKENIZE_SPECIAL, false);
        REQUIRE(chat_request(messages, ARRAY_LEN(messages), true, &request, NULL) == NUMOE_OK);
        REQUIRE(chat_open(g, tok, NULL, &chat, NULL) == NUMOE_OK);
        if (chat_render(chat, request, 0, &out, &err) != NUMOE_OK) {
            check_line(&err);
        }
        strbuf_fini(&out);
        chat_close(chat);
        json_decref(request);
        tokenizer_close(tok);
    } else {
        check_line(&err);
    }
    gguf_close(g);
}

static void ignore_line(void *arg, numoe_log_level level, const char *line)
{
    (void)arg, (void)level, (void)line;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const pre[] = {"default",     "gpt-2",          "llama-bpe", "deepseek-llm",
                                      "deepseek-v3", "deepseek-coder", "gpt-4o",    "tekken",
                                      "kimi-k2",     "qwen2",          "bailingmoe"};
    static struct tokenizer *vocab[ARRAY_LEN(pre) + 1];

    numoe_log_set(ignore_line, NULL, NUMOE_LOG_ERROR);
    if (size >= 4 && memcmp(data, "GGUF", 4) == 0) {
        try_file(data, size);
        return 0;
    }
    if (size < 1) {
        return 0;
    }
    size_t kind = data[0] / 2 % ARRAY_LEN(vocab);
    unsigned flags = data[0] % 2 ? NUMOE_TOKENIZE_SPECIAL : 0;
    bool bpe = kind < ARRAY_LEN(pre);
    if (vocab[kind] == NULL) {
        vocab[kind] = bpe ? make_bpe(pre[kind]) : make_spm();
    }
    bool comes_back = bpe && strcmp(pre[kind], "qwen2") != 0; /* which normalises */
    try_text(vocab[kind], (const char *)data + 1, size - 1, flags, comes_back);
    return 0;
}
