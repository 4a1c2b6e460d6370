/* The vocabulary: what tokenizer.ggml.* says, checked, and the frame of encoding: special tokens
 * are taken out of the text, what lies between them goes to byte-pair merging (tokenizer-bpe.c) or
 * to SentencePiece (tokenizer-spm.c).
 *
 * A token has two texts: `raw` as in the file, and `text`, the bytes it stands for ("Ġthe" stands
 * for " the"). Looking up tokens while encoding goes by what merging can produce, so that a control
 * token's name in a text never becomes the control token unless the caller asks for it.
 */
#include <string.h>

#include "base/log.h"
#include "base/utf8.h"
#include "model/tokenizer-impl.h"

/* ------------------------------------------------------------------ texts to ids */

static uint32_t span_hash(const char *text, size_t n)
{
    const uint64_t k = 0x9e3779b97f4a7c15u; /* 2^64 / golden ratio */
    uint64_t h = n * k;

    for (; n >= 8; n -= 8, text += 8) {
        uint64_t v;
        memcpy(&v, text, 8);
        h = (h ^ v) * k;
        h ^= h >> 32;
    }
    if (n > 0) {
        uint64_t v = 0;
        memcpy(&v, text, n);
        h = (h ^ v) * k;
        h ^= h >> 32;
    }
    return (uint32_t)(h ^ h >> 15);
}

numoe_status span_map_init(struct span_map *m, const struct span *key, size_t n, numoe_error *err)
{
    size_t cap = 16;

    while (cap < 2 * n) {
        cap *= 2;
    }
    FORWARD_IF(mem_new(&m->slot, cap, sizeof(*m->slot), "vocabulary index", err));
    m->mask = (uint32_t)(cap - 1);
    m->key = key;
    return NUMOE_OK;
}

void span_map_fini(struct span_map *m)
{
    mem_free(m->slot);
    m->slot = NULL;
}

/* The slot that holds this text, or the free one where it would go. */
static uint32_t *map_slot(const struct span_map *m, const char *text, size_t n)
{
    uint32_t i = span_hash(text, n) & m->mask;

    while (m->slot[i] != 0) {
        const struct span *key = &m->key[m->slot[i] - 1];
        if (key->len == n && memcmp(key->data, text, n) == 0) {
            break;
        }
        i = (i + 1) & m->mask;
    }
    return &m->slot[i];
}

void span_map_add(struct span_map *m, int32_t id)
{
    uint32_t *slot = map_slot(m, m->key[id].data, m->key[id].len);

    if (*slot == 0) {
        *slot = (uint32_t)id + 1;
    }
}

int32_t span_map_find(const struct span_map *m, const char *text, size_t n)
{
    return (int32_t)*map_slot(m, text, n) - 1;
}

/* ------------------------------------------------------------------ vocabulary */

static numoe_status get_array(const struct gguf *g, const char *key, enum gguf_type type,
                              uint64_t n, const struct gguf_value **out, numoe_error *err)
{
    const struct gguf_value *v = gguf_find(g, key);

    if (v == NULL) {
        *out = NULL;
        return NUMOE_OK;
    }
    if (!v->is_array || (type == GGUF_STRING) != (v->type == GGUF_STRING)) {
        return status_fail(err, NUMOE_E_FILE_MODEL, "%s: is not an array of %s", key,
                           type == GGUF_STRING ? "strings" : "numbers");
    }
    if (n != 0 && v->n != n) {
        return status_fail(err, NUMOE_E_FILE_MODEL,
                           "%s: has %llu elements, tokenizer.ggml.tokens has %llu", key,
                           (unsigned long long)v->n, (unsigned long long)n);
    }
    *out = v;
    return NUMOE_OK;
}

static numoe_status load_tokens(struct tokenizer *tok, const struct gguf *g, numoe_error *err)
{
    const struct gguf_value *v = NULL;
    size_t bytes = 0;

    FORWARD_IF(get_array(g, "tokenizer.ggml.tokens", GGUF_STRING, 0, &v, err));
    if (v == NULL || v->n == 0 || v->n > INT32_MAX) {
        return status_fail(err, NUMOE_E_FILE_MODEL,
                           "tokenizer.ggml.tokens: %s: the file holds no vocabulary",
                           v == NULL   ? "is missing"
                           : v->n == 0 ? "is empty"
                                       : "is too long");
    }
    tok->n_vocab = (size_t)v->n;
    for (size_t i = 0; i < tok->n_vocab; i++) {
        bytes += v->str[i].len;
    }
    FORWARD_IF(mem_new(&tok->raw, tok->n_vocab, sizeof(*tok->raw), "vocabulary", err));
    FORWARD_IF(mem_new(&tok->text, tok->n_vocab, sizeof(*tok->text), "vocabulary", err));
    FORWARD_IF(mem_new(&tok->type, tok->n_vocab, sizeof(*tok->type), "vocabulary", err));
    FORWARD_IF(mem_new(&tok->eog, tok->n_vocab, sizeof(*tok->eog), "vocabulary", err));
    /* A token's text is never longer than its raw form. */
    FORWARD_IF(mem_new(&tok->bytes, 2, bytes, "vocabulary", err));
    char *at = tok->bytes;
    for (size_t i = 0; i < tok->n_vocab; i++) {
        size_t len = v->str[i].len;
        memcpy(at, v->str[i].data, len);
        tok->raw[i] = (struct span){at, len};
        tok->text[i] = (struct span){at + bytes, len};
        memcpy(at + bytes, at, len);
        at += len;
    }
    return NUMOE_OK;
}

static numoe_status load_types(struct tokenizer *tok, const struct gguf *g, numoe_error *err)
{
    const struct gguf_value *v = NULL;

    FORWARD_IF(get_array(g, "tokenizer.ggml.token_type", GGUF_I32, tok->n_vocab, &v, err));
    for (size_t i = 0; i < tok->n_vocab; i++) {
        uint64_t type = TOKEN_NORMAL;
        if (v != NULL && (!gguf_value_u64(v, i, &type) || type > TOKEN_BYTE)) {
            return status_fail(err, NUMOE_E_FILE_MODEL,
                               "tokenizer.ggml.token_type: element %zu is not a known type (1..6)",
                               i);
        }
        tok->type[i] = type == 0 ? TOKEN_NORMAL : (uint8_t)type; /* 0: undefined */
    }
    return NUMOE_OK;
}

/* An id that some files carry outside the vocabulary (padding, -1) is as good as absent. */
static numoe_status load_id(const struct tokenizer *tok, const struct gguf *g, const char *key,
                            int32_t *id, numoe_error *err)
{
    const struct gguf_value *v = gguf_find(g, key);
    uint64_t value;

    if (v == NULL) {
        return NUMOE_OK;
    }
    if (v->is_array || v->type == GGUF_STRING) {
        return status_fail(err, NUMOE_E_FILE_MODEL, "%s: is not a number", key);
    }
    if (!gguf_value_u64(v, 0, &value) || value >= tok->n_vocab) {
        log_warn("%s: is outside the vocabulary of %zu tokens and is ignored", key, tok->n_vocab);
        *id = -1;
        return NUMOE_OK;
    }
    *id = (int32_t)value;
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ end of generation */

static const char *const eog_texts[] = {
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<end_of_turn>",
    "<｜end▁of▁sentence｜>",
    "<|return|>",
    "<|call|>",
    "<EOT>",
    "<|END_OF_TURN_TOKEN|>",
    "<|role_end|>",
    "<end_of_utterance>",
    "[EOS]",
    "[EOT]",
    "<|end_of_turn|>",
};

static bool is_special(const struct tokenizer *tok, int32_t id)
{
    return tok->type[id] == TOKEN_CONTROL || tok->type[id] == TOKEN_USER;
}

static int32_t find_special(const struct tokenizer *tok, const char *text)
{
    int32_t id = tokenizer_find(tok, text);
    return id >= 0 && is_special(tok, id) ? id : -1;
}

static numoe_status mark_eog(struct tokenizer *tok, const struct gguf *g, numoe_error *err)
{
    int32_t eot = -1, eom = -1;

    FORWARD_IF(load_id(tok, g, "tokenizer.ggml.eot_token_id", &eot, err));
    FORWARD_IF(load_id(tok, g, "tokenizer.ggml.eom_token_id", &eom, err));
    const int32_t named[] = {tok->eos, eot, eom};
    for (size_t i = 0; i < ARRAY_LEN(named); i++) {
        if (named[i] >= 0) {
            tok->eog[named[i]] = true;
        }
    }
    for (size_t i = 0; i < ARRAY_LEN(eog_texts); i++) {
        int32_t id = find_special(tok, eog_texts[i]);
        if (id >= 0) {
            tok->eog[id] = true;
        }
    }
    /* <|end|> ends a turn, but in gpt-oss only one message of it. */
    int32_t end = find_special(tok, "<|end|>");
    if (end >= 0 && find_special(tok, "<|return|>") < 0) {
        tok->eog[end] = true;
    }
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ opening */

static numoe_status find_kind(struct tokenizer *tok, const struct gguf *g, numoe_error *err)
{
    struct gguf_string name = {0};

    FORWARD_IF(gguf_get_string(g, "tokenizer.ggml.model", true, &name, err));
    if (name.len == 4 && memcmp(name.data, "gpt2", 4) == 0) {
        tok->kind = VOCAB_BPE;
    } else if (name.len == 5 && memcmp(name.data, "llama", 5) == 0) {
        tok->kind = VOCAB_SPM;
    } else {
        return status_fail(err, NUMOE_E_SUPPORT,
                           "tokenizer.ggml.model: \"%.*s\" is not supported; supported are gpt2 "
                           "(byte-level BPE) and llama (SentencePiece)",
                           (int)MIN(name.len, 40), name.data);
    }
    return NUMOE_OK;
}

static numoe_status load_flags(struct tokenizer *tok, const struct gguf *g, numoe_error *err)
{
    FORWARD_IF(load_id(tok, g, "tokenizer.ggml.bos_token_id", &tok->bos, err));
    FORWARD_IF(load_id(tok, g, "tokenizer.ggml.eos_token_id", &tok->eos, err));
    FORWARD_IF(load_id(tok, g, "tokenizer.ggml.unknown_token_id", &tok->unk, err));
    FORWARD_IF(gguf_get_bool(g, "tokenizer.ggml.add_bos_token", false, &tok->add_bos, err));
    FORWARD_IF(gguf_get_bool(g, "tokenizer.ggml.add_eos_token", false, &tok->add_eos, err));
    return gguf_get_bool(g, "tokenizer.ggml.add_space_prefix", false, &tok->add_space_prefix, err);
}

/* Bytes that occur in UTF-8 and that no token stands for cannot be said to this model. */
static void warn_lost_bytes(const struct tokenizer *tok)
{
    unsigned n = 0;

    for (unsigned b = 0; b < 0xf5; b++) {
        n += tok->byte_id[b] < 0 && b != 0xc0 && b != 0xc1;
    }
    if (n > 0) {
        log_warn("vocabulary: %u byte values have no token and are left out of texts", n);
    }
}

static numoe_status load(struct tokenizer *tok, const struct gguf *g, numoe_error *err)
{
    const struct gguf_tensor *embd = gguf_find_tensor(g, "token_embd.weight");

    FORWARD_IF(find_kind(tok, g, err));
    FORWARD_IF(load_tokens(tok, g, err));
    FORWARD_IF(load_types(tok, g, err));
    tok->n_row = tok->n_vocab;
    if (embd != NULL && embd->dim[1] > tok->n_row && embd->dim[1] <= INT32_MAX) {
        tok->n_row = (size_t)embd->dim[1];
    }
    FORWARD_IF(span_map_init(&tok->by_raw, tok->raw, tok->n_vocab, err));
    for (size_t i = 0; i < tok->n_vocab; i++) {
        span_map_add(&tok->by_raw, (int32_t)i);
    }
    tok->bos = tok->eos = tok->unk = -1;
    for (unsigned b = 0; b < 256; b++) {
        tok->byte_id[b] = -1;
    }
    FORWARD_IF(tok->kind == VOCAB_BPE ? bpe_open(tok, g, err) : spm_open(tok, g, err));
    FORWARD_IF(load_flags(tok, g, err));
    FORWARD_IF(mark_eog(tok, g, err));
    for (unsigned b = 0; b < 256; b++) {
        tok->byte_id[b] = tok->byte_id[b] < 0 ? tok->unk : tok->byte_id[b];
    }
    warn_lost_bytes(tok);
    return specials_init(tok, err);
}

numoe_status tokenizer_open(const struct gguf *g, struct tokenizer **out, numoe_error *err)
{
    struct tokenizer *tok;

    FORWARD_IF(mem_new(&tok, 1, sizeof(*tok), "tokenizer", err));
    numoe_status status = load(tok, g, err);
    if (status != NUMOE_OK) {
        tokenizer_close(tok);
        return status;
    }
    *out = tok;
    return NUMOE_OK;
}

void tokenizer_close(struct tokenizer *tok)
{
    if (tok == NULL) {
        return;
    }
    specials_fini(tok);
    bpe_close(tok);
    spm_close(tok);
    span_map_fini(&tok->by_raw);
    span_map_fini(&tok->by_piece);
    mem_free(tok->bytes);
    mem_free(tok->eog);
    mem_free(tok->type);
    mem_free(tok->text);
    mem_free(tok->raw);
    mem_free(tok);
}

/* ------------------------------------------------------------------ encoding */

numoe_status encoding_push(struct encoding *e, int32_t id, numoe_error *err)
{
    if (id < 0) {
        return NUMOE_OK;
    }
    if (e->n == e->cap) {
        size_t cap = MAX(e->cap * 2, 64);
        FORWARD_IF(mem_grow(&e->id, cap, sizeof(*e->id), "token ids", err));
        e->cap = cap;
    }
    e->id[e->n++] = id;
    return NUMOE_OK;
}

numoe_status encoding_symbols(struct encoding *e, size_t n, numoe_error *err)
{
    if (n > e->symbol_cap) {
        FORWARD_IF(mem_grow(&e->symbol, n, sizeof(*e->symbol), "symbols of a word", err));
        e->symbol_cap = n;
    }
    return NUMOE_OK;
}

numoe_status key_heap_push(struct key_heap *h, uint64_t key, numoe_error *err)
{
    if (h->n == h->cap) {
        size_t cap = MAX(h->cap * 2, 256);
        FORWARD_IF(mem_grow(&h->key, cap, sizeof(*h->key), "merge queue", err));
        h->cap = cap;
    }
    size_t i = h->n++;
    while (i > 0 && h->key[(i - 1) / 2] > key) {
        h->key[i] = h->key[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    h->key[i] = key;
    return NUMOE_OK;
}

bool key_heap_pop(struct key_heap *h, uint64_t *key)
{
    if (h->n == 0) {
        return false;
    }
    *key = h->key[0];
    uint64_t last = h->key[--h->n];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= h->n) {
            break;
        }
        child += child + 1 < h->n && h->key[child + 1] < h->key[child];
        if (h->key[child] >= last) {
            break;
        }
        h->key[i] = h->key[child];
        i = child;
    }
    h->key[i] = last;
    return true;
}

static numoe_status encode_part(struct encoding *e, const char *text, size_t n, numoe_error *err)
{
    if (n == 0) {
        return NUMOE_OK;
    }
    return e->tok->kind == VOCAB_BPE ? bpe_encode(e, text, n, err) : spm_encode(e, text, n, err);
}

static numoe_status encode_text(struct encoding *e, const char *text, size_t n, bool all,
                                numoe_error *err)
{
    const struct tokenizer *tok = e->tok;
    size_t begin = 0, i = 0;

    while (i < n) {
        int32_t id = specials_match(tok, text + i, n - i, all);
        if (id < 0) {
            i++;
            continue;
        }
        FORWARD_IF(encode_part(e, text + begin, i - begin, err));
        FORWARD_IF(encoding_push(e, id, err));
        i += tok->raw[id].len;
        begin = i;
    }
    return encode_part(e, text + begin, n - begin, err);
}

static void encoding_fini(struct encoding *e)
{
    if (e->match != NULL) {
        pre_fini_match(e->match);
    }
    mem_free(e->cuts.end);
    mem_free(e->cuts_next.end);
    mem_free(e->heap.key);
    mem_free(e->symbol);
    strbuf_fini(&e->text);
}

static numoe_status encode(struct encoding *e, const char *text, size_t n, unsigned flags,
                           numoe_error *err)
{
    bool edges = (flags & NUMOE_TOKENIZE_BOS) != 0;

    FORWARD_IF(encoding_push(e, edges && e->tok->add_bos ? e->tok->bos : -1, err));
    FORWARD_IF(encode_text(e, text, n, (flags & NUMOE_TOKENIZE_SPECIAL) != 0, err));
    return encoding_push(e, edges && e->tok->add_eos ? e->tok->eos : -1, err);
}

numoe_status tokenizer_encode(const struct tokenizer *tok, const char *text, size_t text_bytes,
                              unsigned flags, int32_t **ids, size_t *n, numoe_error *err)
{
    struct encoding e = {.tok = tok};

    /* Positions are 31 bits wide, and escaping makes a space three bytes. */
    if (text_bytes > INT32_MAX / 4) {
        return status_fail(err, NUMOE_E_INPUT, "a text of %zu bytes is too long: %d are possible",
                           text_bytes, INT32_MAX / 4);
    }
    numoe_status status = encode(&e, text, text_bytes, flags, err);
    if (status == NUMOE_OK && e.id == NULL) {
        status = mem_new(&e.id, 0, sizeof(*e.id), "token ids", err);
    }
    encoding_fini(&e);
    if (status != NUMOE_OK) {
        mem_free(e.id);
        return status;
    }
    *ids = e.id;
    *n = e.n;
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ questions */

const char *tokenizer_text(const struct tokenizer *tok, int32_t id, bool special, size_t *n_bytes)
{
    if (id < 0 || (size_t)id >= tok->n_row) {
        return NULL;
    }
    bool shown = (size_t)id < tok->n_vocab;
    if (shown && (tok->type[id] == TOKEN_CONTROL || tok->type[id] == TOKEN_UNKNOWN)) {
        shown = special;
    }
    *n_bytes = shown ? tok->text[id].len : 0;
    return shown ? tok->text[id].data : "";
}

bool tokenizer_is_eog(const struct tokenizer *tok, int32_t id)
{
    return id >= 0 && (size_t)id < tok->n_vocab && tok->eog[id];
}

unsigned tokenizer_n_vocab(const struct tokenizer *tok)
{
    return (unsigned)tok->n_vocab;
}

int32_t tokenizer_bos(const struct tokenizer *tok)
{
    return tok->bos;
}

int32_t tokenizer_eos(const struct tokenizer *tok)
{
    return tok->eos;
}

int32_t tokenizer_find(const struct tokenizer *tok, const char *text)
{
    return span_map_find(&tok->by_raw, text, strlen(text));
}
