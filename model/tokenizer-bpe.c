/* Byte-level BPE ("gpt2"): each byte of a word is a token to begin with; neighbours that the file
 * lists as a merge become one, the earliest in the list first and the leftmost of equal ones.
 *
 * Files write a token's bytes as characters: printable bytes of Latin-1 stand for themselves, the
 * other 68 are U+0100 and up in order, so that a space is "Ġ". Merges are kept as pairs of ids.
 */
#include <string.h>

#include "base/log.h"
#include "base/utf8.h"
#include "model/nfc.h"
#include "model/tokenizer-impl.h"

enum {
    ALPHABET_END = 0x144, /* one past the last character that stands for a byte */
    SHORT_WORD = 48, /* bytes up to which scanning all pairs beats a queue; a guess, not critical */
};

/* ------------------------------------------------------------------ vocabulary */

static bool stands_for_itself(unsigned b)
{
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
}

/* byte_of[c] is the byte that character c stands for, -1 where it stands for none. */
static void make_alphabet(int16_t byte_of[ALPHABET_END])
{
    unsigned next = 0x100;

    for (unsigned c = 0; c < ALPHABET_END; c++) {
        byte_of[c] = -1;
    }
    for (unsigned b = 0; b < 256; b++) {
        byte_of[stands_for_itself(b) ? b : next++] = (int16_t)b;
    }
}

/* Bytes of raw in out (as long as raw at most); false where raw is not written in the alphabet. */
static bool decode_bytes(const int16_t *byte_of, struct span raw, char *out, size_t *n_out)
{
    size_t n = 0;

    for (size_t i = 0; i < raw.len;) {
        int len = utf8_length(raw.data + i, raw.len - i);
        if (len <= 0) {
            return false;
        }
        uint32_t c = utf8_decode(raw.data + i, len);
        if (c >= ALPHABET_END || byte_of[c] < 0) {
            return false;
        }
        out[n++] = (char)byte_of[c];
        i += (size_t)len;
    }
    *n_out = n;
    return true;
}

/* Added tokens stand for what they say; all others for the bytes that their characters stand for.
 */
static numoe_status decode_tokens(struct tokenizer *tok, const int16_t *byte_of, numoe_error *err)
{
    FORWARD_IF(span_map_init(&tok->by_piece, tok->text, tok->n_vocab, err));
    for (size_t i = 0; i < tok->n_vocab; i++) {
        struct span *text = &tok->text[i];
        if (tok->type[i] == TOKEN_CONTROL || tok->type[i] == TOKEN_USER ||
            tok->type[i] == TOKEN_UNKNOWN) {
            continue;
        }
        /* text starts as a copy of raw in memory of its own. */
        if (!decode_bytes(byte_of, tok->raw[i], (char *)text->data, &text->len)) {
            memcpy((char *)text->data, tok->raw[i].data, tok->raw[i].len);
            continue;
        }
        if (text->len > 0) {
            span_map_add(&tok->by_piece, (int32_t)i);
        }
    }
    for (unsigned b = 0; b < 256; b++) {
        char c = (char)b;
        tok->byte_id[b] = span_map_find(&tok->by_piece, &c, 1);
    }
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ merges */

static struct merge *merge_slot(const struct merge_table *t, int32_t left, int32_t right)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint64_t i = (key * 0x9e3779b97f4a7c15u) >> 20 & t->mask;

    while (t->slot[i].left >= 0 && (t->slot[i].left != left || t->slot[i].right != right)) {
        i = (i + 1) & t->mask;
    }
    return &t->slot[i];
}

/* What two neighbours become; NULL: nothing. */
static const struct merge *merge_find(const struct merge_table *t, int32_t left, int32_t right)
{
    if (left < 0 || right < 0) {
        return NULL;
    }
    const struct merge *m = merge_slot(t, left, right);
    return m->left >= 0 ? m : NULL;
}

static numoe_status merge_table_init(struct merge_table *t, uint64_t n, numoe_error *err)
{
    uint64_t cap = 16;

    while (cap < 2 * n) {
        cap *= 2;
    }
    FORWARD_IF(mem_new(&t->slot, cap, sizeof(*t->slot), "merges", err));
    t->mask = cap - 1;
    for (uint64_t i = 0; i < cap; i++) {
        t->slot[i].left = -1;
    }
    return NUMOE_OK;
}

/* "Ġ t": two tokens with a space between; the alphabet has no space. */
static bool resolve_merge(const struct tokenizer *tok, const int16_t *byte_of,
                          struct gguf_string line, struct strbuf *bytes, struct merge *m)
{
    size_t n_left, n_right;
    const char *space = line.len > 2 ? memchr(line.data + 1, ' ', line.len - 2) : NULL;

    if (space == NULL) {
        return false;
    }
    struct span left = {line.data, (size_t)(space - line.data)};
    struct span right = {space + 1, line.len - left.len - 1};
    if (!decode_bytes(byte_of, left, bytes->data, &n_left) ||
        !decode_bytes(byte_of, right, bytes->data + n_left, &n_right)) {
        return false;
    }
    m->left = span_map_find(&tok->by_piece, bytes->data, n_left);
    m->right = span_map_find(&tok->by_piece, bytes->data + n_left, n_right);
    m->id = span_map_find(&tok->by_piece, bytes->data, n_left + n_right);
    return m->left >= 0 && m->right >= 0 && m->id >= 0;
}

static numoe_status load_merges(struct tokenizer *tok, const struct gguf *g, const int16_t *byte_of,
                                numoe_error *err)
{
    const struct gguf_value *v = gguf_find(g, "tokenizer.ggml.merges");
    struct strbuf bytes = {0};
    uint64_t n_lost = 0;
    size_t longest = 0;

    if (v == NULL || !v->is_array || v->type != GGUF_STRING || v->n >= UINT32_MAX) {
        return status_fail(err, NUMOE_E_FILE_MODEL,
                           "tokenizer.ggml.merges: %s, and byte-level BPE needs it",
                           v == NULL ? "is missing" : "is not an array of strings");
    }
    for (uint64_t i = 0; i < v->n; i++) {
        longest = MAX(longest, v->str[i].len);
    }
    FORWARD_IF(merge_table_init(&tok->merges, v->n, err));
    FORWARD_IF(mem_new(&bytes.data, longest, 1, "merges", err));
    for (uint64_t i = 0; i < v->n; i++) {
        struct merge m = {.rank = (uint32_t)i};
        if (!resolve_merge(tok, byte_of, v->str[i], &bytes, &m)) {
            n_lost++;
            continue;
        }
        struct merge *slot = merge_slot(&tok->merges, m.left, m.right);
        if (slot->left < 0) {
            *slot = m;
        }
    }
    mem_free(bytes.data);
    if (n_lost > 0) {
        log_warn(
            "tokenizer.ggml.merges: %llu of %llu name tokens that the vocabulary lacks and are "
            "ignored",
            (unsigned long long)n_lost, (unsigned long long)v->n);
    }
    return NUMOE_OK;
}

numoe_status bpe_open(struct tokenizer *tok, const struct gguf *g, numoe_error *err)
{
    struct gguf_string name = {"default", 7};
    int16_t byte_of[ALPHABET_END];

    if (gguf_find(g, "tokenizer.ggml.pre") == NULL) {
        log_warn(
            "tokenizer.ggml.pre: is missing; \"default\" is taken, the model's own splitting of "
            "words may be another");
    }
    FORWARD_IF(gguf_get_string(g, "tokenizer.ggml.pre", false, &name, err));
    FORWARD_IF(pre_open(name.data, name.len, &tok->pre, err));
    tok->add_bos = pre_adds_bos(tok->pre);
    make_alphabet(byte_of);
    FORWARD_IF(decode_tokens(tok, byte_of, err));
    return load_merges(tok, g, byte_of, err);
}

void bpe_close(struct tokenizer *tok)
{
    mem_free(tok->merges.slot);
    pre_close(tok->pre);
}

/* ------------------------------------------------------------------ encoding */

static numoe_status encode_short(struct encoding *e, const char *word, size_t n, numoe_error *err)
{
    const struct merge_table *t = &e->tok->merges;
    const struct merge *next[SHORT_WORD]; /* next[i]: what i and i + 1 become */
    int32_t id[SHORT_WORD];

    for (size_t i = 0; i < n; i++) {
        id[i] = e->tok->byte_id[(unsigned char)word[i]];
    }
    for (size_t i = 0; i + 1 < n; i++) {
        next[i] = merge_find(t, id[i], id[i + 1]);
    }
    for (;;) {
        size_t best = n;
        for (size_t i = 0; i + 1 < n; i++) {
            if (next[i] != NULL && (best == n || next[i]->rank < next[best]->rank)) {
                best = i;
            }
        }
        if (best == n) {
            break;
        }
        id[best] = next[best]->id;
        n--;
        memmove(&id[best + 1], &id[best + 2], (n - best - 1) * sizeof(id[0]));
        if (best + 1 < n) {
            memmove(&next[best], &next[best + 1], (n - best - 1) * sizeof(next[0]));
            next[best] = merge_find(t, id[best], id[best + 1]);
        }
        if (best > 0) {
            next[best - 1] = merge_find(t, id[best - 1], id[best]);
        }
    }
    for (size_t i = 0; i < n; i++) {
        FORWARD_IF(encoding_push(e, id[i], err));
    }
    return NUMOE_OK;
}

static numoe_status queue_pair(struct encoding *e, int32_t left, numoe_error *err)
{
    const struct symbol *s = e->symbol;

    if (left < 0 || s[left].next < 0) {
        return NUMOE_OK;
    }
    const struct merge *m = merge_find(&e->tok->merges, s[left].id, s[s[left].next].id);
    return m == NULL ? NUMOE_OK
                     : key_heap_push(&e->heap, (uint64_t)m->rank << 32 | (uint32_t)left, err);
}

/* Takes queued pairs until none is left. A pair whose symbols have changed since is known by its
 * rank: what stands there now is queued by its own. */
static numoe_status merge_queued(struct encoding *e, numoe_error *err)
{
    struct symbol *s = e->symbol;
    uint64_t key;

    while (key_heap_pop(&e->heap, &key)) {
        int32_t left = (int32_t)(uint32_t)key, right = s[left].next;
        if (s[left].id == SYMBOL_DEAD || right < 0) {
            continue;
        }
        const struct merge *m = merge_find(&e->tok->merges, s[left].id, s[right].id);
        if (m == NULL || m->rank != key >> 32) {
            continue;
        }
        s[left].id = m->id;
        s[left].next = s[right].next;
        s[right].id = SYMBOL_DEAD;
        if (s[left].next >= 0) {
            s[s[left].next].prev = left;
        }
        FORWARD_IF(queue_pair(e, s[left].prev, err));
        FORWARD_IF(queue_pair(e, left, err));
    }
    return NUMOE_OK;
}

static numoe_status encode_long(struct encoding *e, const char *word, size_t n, numoe_error *err)
{
    FORWARD_IF(encoding_symbols(e, n, err));
    for (size_t i = 0; i < n; i++) {
        e->symbol[i] = (struct symbol){
            .id = e->tok->byte_id[(unsigned char)word[i]],
            .prev = (int32_t)i - 1,
            .next = i + 1 < n ? (int32_t)i + 1 : -1,
        };
    }
    e->heap.n = 0;
    for (size_t i = 0; i < n; i++) {
        FORWARD_IF(queue_pair(e, (int32_t)i, err));
    }
    FORWARD_IF(merge_queued(e, err));
    for (int32_t i = 0; i >= 0; i = e->symbol[i].next) {
        FORWARD_IF(encoding_push(e, e->symbol[i].id, err));
    }
    return NUMOE_OK;
}

static numoe_status encode_word(struct encoding *e, const char *word, size_t n, numoe_error *err)
{
    if (pre_takes_whole_words(e->tok->pre)) {
        int32_t id = span_map_find(&e->tok->by_piece, word, n);
        if (id >= 0) {
            return encoding_push(e, id, err);
        }
    }
    return n <= SHORT_WORD ? encode_short(e, word, n, err) : encode_long(e, word, n, err);
}

static numoe_status encode_valid(struct encoding *e, const char *text, size_t n, numoe_error *err)
{
    size_t begin = 0;

    if (pre_normalizes(e->tok->pre) && !nfc_is_normal(text, n)) {
        e->text.len = 0;
        FORWARD_IF(nfc_append(&e->text, text, n, err));
        text = e->text.data;
        n = e->text.len;
    }
    FORWARD_IF(pre_split(e->tok->pre, e, text, n, err));
    for (size_t i = 0; i < e->cuts.n; i++) {
        FORWARD_IF(encode_word(e, text + begin, e->cuts.end[i] - begin, err));
        begin = e->cuts.end[i];
    }
    return NUMOE_OK;
}

/* Bytes that are not UTF-8 become one token each; they also end a word. */
numoe_status bpe_encode(struct encoding *e, const char *text, size_t n, numoe_error *err)
{
    for (size_t i = 0; i < n;) {
        size_t valid = utf8_valid_bytes(text + i, n - i);
        if (valid > 0) {
            FORWARD_IF(encode_valid(e, text + i, valid, err));
            i += valid;
        } else {
            FORWARD_IF(encoding_push(e, e->tok->byte_id[(unsigned char)text[i]], err));
            i++;
        }
    }
    return NUMOE_OK;
}
