/* SentencePiece BPE ("llama"): the whole text is one word; characters are joined with their
 * neighbours as long as the joint text is a piece of the vocabulary, the piece with the highest
 * score first and the leftmost of equal ones. A space is U+2581 in pieces. Characters that are no
 * piece fall back to the tokens of their bytes ("<0xE2>"), or to the unknown token where the
 * vocabulary has none.
 */
#include <math.h>
#include <string.h>

#include "base/utf8.h"
#include "model/tokenizer-impl.h"

static const char space_mark[] = "\xe2\x96\x81"; /* U+2581 */
enum { SPACE_MARK_BYTES = 3 };

/* ------------------------------------------------------------------ vocabulary */

static numoe_status load_scores(struct tokenizer *tok, const struct gguf *g, numoe_error *err)
{
    const struct gguf_value *v = gguf_find(g, "tokenizer.ggml.scores");

    if (v == NULL || !v->is_array || v->n != tok->n_vocab) {
        return status_fail(err, NUMOE_E_FILE_MODEL,
                           "tokenizer.ggml.scores: %s, and SentencePiece needs one for each of %zu "
                           "tokens",
                           v == NULL ? "is missing" : "has another length", tok->n_vocab);
    }
    FORWARD_IF(mem_new(&tok->score, tok->n_vocab, sizeof(*tok->score), "scores", err));
    for (size_t i = 0; i < tok->n_vocab; i++) {
        double score;
        if (!gguf_value_f64(v, i, &score)) {
            return status_fail(err, NUMOE_E_FILE_MODEL,
                               "tokenizer.ggml.scores: is not an array of numbers");
        }
        tok->score[i] = isnan(score) ? -INFINITY : (float)score;
    }
    return NUMOE_OK;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The byte of "<0xE2>"; -1: another text. */
static int parse_byte(struct span raw)
{
    if (raw.len != 6 || memcmp(raw.data, "<0x", 3) != 0 || raw.data[5] != '>') {
        return -1;
    }
    int high = hex_digit(raw.data[3]), low = hex_digit(raw.data[4]);
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

static void set_text(struct span *text, struct span raw)
{
    char *out = (char *)text->data;
    size_t n = 0;

    for (size_t i = 0; i < raw.len;) {
        if (raw.len - i >= SPACE_MARK_BYTES &&
            memcmp(raw.data + i, space_mark, SPACE_MARK_BYTES) == 0) {
            out[n++] = ' ';
            i += SPACE_MARK_BYTES;
        } else {
            out[n++] = raw.data[i++];
        }
    }
    text->len = n;
}

static numoe_status load_pieces(struct tokenizer *tok, numoe_error *err)
{
    FORWARD_IF(span_map_init(&tok->by_piece, tok->raw, tok->n_vocab, err));
    for (size_t i = 0; i < tok->n_vocab; i++) {
        int byte = tok->type[i] == TOKEN_BYTE ? parse_byte(tok->raw[i]) : -1;
        if (byte >= 0) {
            *(char *)tok->text[i].data = (char)byte;
            tok->text[i].len = 1;
            tok->byte_id[byte] = (int32_t)i;
        } else if (tok->type[i] != TOKEN_CONTROL && tok->type[i] != TOKEN_UNKNOWN) {
            set_text(&tok->text[i], tok->raw[i]);
            span_map_add(&tok->by_piece, (int32_t)i);
            tok->max_piece_bytes = MAX(tok->max_piece_bytes, tok->raw[i].len);
        }
    }
    return NUMOE_OK;
}

/* SentencePiece's own ids, for files that do not say: 0 unknown, 1 BOS, 2 EOS. */
static void set_defaults(struct tokenizer *tok)
{
    tok->add_bos = true;
    tok->add_space_prefix = true;
    if (tok->n_vocab > 2) {
        tok->unk = 0;
        tok->bos = 1;
        tok->eos = 2;
    }
}

numoe_status spm_open(struct tokenizer *tok, const struct gguf *g, numoe_error *err)
{
    set_defaults(tok);
    FORWARD_IF(load_scores(tok, g, err));
    return load_pieces(tok, err);
}

void spm_close(struct tokenizer *tok)
{
    mem_free(tok->score);
}

/* ------------------------------------------------------------------ encoding */

/* Orders scores downwards as unsigned integers. */
static uint32_t score_key(float score)
{
    uint32_t bits;

    score += 0.0f; /* -0 and 0 are equal */
    memcpy(&bits, &score, sizeof(bits));
    return bits & 0x80000000u ? bits : ~bits & 0x7fffffffu;
}

/* The piece that a symbol and the one after it make; -1: none. */
static int32_t find_joint(const struct encoding *e, int32_t left)
{
    const struct symbol *s = e->symbol;
    size_t n = s[left].len + (size_t)s[s[left].next].len;

    return n > e->tok->max_piece_bytes
               ? -1
               : span_map_find(&e->tok->by_piece, e->text.data + s[left].pos, n);
}

static numoe_status queue_pair(struct encoding *e, int32_t left, numoe_error *err)
{
    if (left < 0 || e->symbol[left].next < 0) {
        return NUMOE_OK;
    }
    int32_t id = find_joint(e, left);
    if (id < 0) {
        return NUMOE_OK;
    }
    uint64_t key = (uint64_t)score_key(e->tok->score[id]) << 32 | (uint32_t)left;
    return key_heap_push(&e->heap, key, err);
}

/* Takes queued pairs until none is left. A pair whose symbols have changed since is known by its
 * score: what stands there now is queued by its own. */
static numoe_status merge_queued(struct encoding *e, numoe_error *err)
{
    struct symbol *s = e->symbol;
    uint64_t key;

    while (key_heap_pop(&e->heap, &key)) {
        int32_t left = (int32_t)(uint32_t)key, right = s[left].next;
        if (s[left].len == 0 || right < 0) {
            continue;
        }
        int32_t id = find_joint(e, left);
        if (id < 0 || score_key(e->tok->score[id]) != key >> 32) {
            continue;
        }
        s[left].len += s[right].len;
        s[left].next = s[right].next;
        s[right].len = 0;
        if (s[left].next >= 0) {
            s[s[left].next].prev = left;
        }
        FORWARD_IF(queue_pair(e, s[left].prev, err));
        FORWARD_IF(queue_pair(e, left, err));
    }
    return NUMOE_OK;
}

static numoe_status push_symbol(struct encoding *e, const struct symbol *s, numoe_error *err)
{
    const struct tokenizer *tok = e->tok;
    const char *text = e->text.data + s->pos;
    int32_t id = span_map_find(&tok->by_piece, text, s->len);

    if (id >= 0) {
        return encoding_push(e, id, err);
    }
    for (uint32_t i = 0; i < s->len; i++) {
        if (tok->byte_id[(unsigned char)text[i]] == tok->unk) {
            return encoding_push(e, tok->unk, err); /* one for the whole character */
        }
    }
    for (uint32_t i = 0; i < s->len; i++) {
        FORWARD_IF(encoding_push(e, tok->byte_id[(unsigned char)text[i]], err));
    }
    return NUMOE_OK;
}

/* text with a space in front where the vocabulary wants it and spaces marked, in e->text. */
static numoe_status escape(struct encoding *e, const char *text, size_t n, numoe_error *err)
{
    e->text.len = 0;
    if (e->tok->add_space_prefix) {
        FORWARD_IF(strbuf_append(&e->text, space_mark, SPACE_MARK_BYTES, err));
    }
    while (n > 0) {
        const char *space = memchr(text, ' ', n);
        size_t plain = space == NULL ? n : (size_t)(space - text);
        FORWARD_IF(strbuf_append(&e->text, text, plain, err));
        if (space != NULL) {
            FORWARD_IF(strbuf_append(&e->text, space_mark, SPACE_MARK_BYTES, err));
            plain++;
        }
        text += plain;
        n -= plain;
    }
    return NUMOE_OK;
}

numoe_status spm_encode(struct encoding *e, const char *text, size_t n, numoe_error *err)
{
    size_t n_symbol = 0;

    FORWARD_IF(escape(e, text, n, err));
    FORWARD_IF(encoding_symbols(e, e->text.len, err));
    for (size_t i = 0; i < e->text.len; n_symbol++) {
        int len = utf8_length(e->text.data + i, e->text.len - i);
        len = len <= 0 ? 1 : len;
        e->symbol[n_symbol] = (struct symbol){
            .pos = (uint32_t)i,
            .len = (uint32_t)len,
            .prev = (int32_t)n_symbol - 1,
            .next = (int32_t)n_symbol + 1,
        };
        i += (size_t)len;
    }
    e->symbol[n_symbol - 1].next = -1;
    e->heap.n = 0;
    for (size_t i = 0; i < n_symbol; i++) {
        FORWARD_IF(queue_pair(e, (int32_t)i, err));
    }
    FORWARD_IF(merge_queued(e, err));
    for (int32_t i = 0; i >= 0; i = e->symbol[i].next) {
        FORWARD_IF(push_symbol(e, &e->symbol[i], err));
    }
    return NUMOE_OK;
}
