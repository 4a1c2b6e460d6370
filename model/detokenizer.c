/* Tokens back to text as they come: bytes are held back until they are a whole UTF-8 sequence. */
#include <string.h>

#include "base/utf8.h"
#include "model/tokenizer-impl.h"

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */
enum { REPLACEMENT_BYTES = 3 };

void detokenizer_init(struct detokenizer *d, const struct tokenizer *tok, bool special)
{
    *d = (struct detokenizer){.tok = tok, .special = special, .at_start = true};
}

/* Takes one more byte; what is held stays a start of a sequence that can still become valid. */
static numoe_status push_byte(struct detokenizer *d, unsigned char byte, struct strbuf *out,
                              numoe_error *err)
{
    d->held[d->n_held++] = byte;
    int len = utf8_length((const char *)d->held, d->n_held);
    if (len == UTF8_CUT) {
        return NUMOE_OK;
    }
    unsigned n = d->n_held;
    d->n_held = 0;
    if (len > 0) {
        return strbuf_append(out, (const char *)d->held, n, err);
    }
    FORWARD_IF(strbuf_append(out, replacement, REPLACEMENT_BYTES, err));
    /* The byte that broke a sequence may start the next one. */
    return n > 1 ? push_byte(d, byte, out, err) : NUMOE_OK;
}

static numoe_status push_bytes(struct detokenizer *d, const char *text, size_t n,
                               struct strbuf *out, numoe_error *err)
{
    for (size_t i = 0; i < n;) {
        size_t valid = d->n_held == 0 ? utf8_valid_bytes(text + i, n - i) : 0;
        if (valid > 0) {
            FORWARD_IF(strbuf_append(out, text + i, valid, err));
            i += valid;
        } else {
            FORWARD_IF(push_byte(d, (unsigned char)text[i++], out, err));
        }
    }
    return NUMOE_OK;
}

numoe_status detokenizer_push(struct detokenizer *d, int32_t id, struct strbuf *out,
                              numoe_error *err)
{
    size_t n;
    const char *text = tokenizer_text(d->tok, id, d->special, &n);

    if (text == NULL) {
        return status_fail(err, NUMOE_E_INPUT, "token %d is outside the vocabulary of %u tokens",
                           id, tokenizer_n_vocab(d->tok));
    }
    bool plain = (size_t)id < d->tok->n_vocab && d->tok->type[id] != TOKEN_CONTROL;
    if (d->at_start && plain && n > 0) {
        d->at_start = false;
        if (d->tok->add_space_prefix && d->tok->kind == VOCAB_SPM && text[0] == ' ') {
            text++;
            n--;
        }
    }
    return push_bytes(d, text, n, out, err);
}

numoe_status detokenizer_flush(struct detokenizer *d, struct strbuf *out, numoe_error *err)
{
    if (d->n_held == 0) {
        return NUMOE_OK;
    }
    d->n_held = 0;
    return strbuf_append(out, replacement, REPLACEMENT_BYTES, err);
}
