/* Holding back what may be the beginning of a stop string. */
#include "runtime/text-stream.h"

#include <string.h>

numoe_status text_stream_check_stops(const char *const *stop, size_t n_stop, numoe_error *err)
{
    for (size_t i = 0; i < n_stop; i++) {
        unsigned char first = (unsigned char)stop[i][0];
        if (first == 0) {
            return status_fail(err, NUMOE_E_INPUT, "stop string %zu is empty", i);
        }
        if ((first & 0xc0) == 0x80) { /* it would cut a character of the text in two */
            return status_fail(err, NUMOE_E_INPUT, "stop string %zu is not UTF-8", i);
        }
    }
    return NUMOE_OK;
}

/* True after text, false after BOS or the mark of a turn: whether a first space belongs to what
 * follows (SentencePiece). */
static bool continues_text(const struct tokenizer *tok, int32_t last_id)
{
    size_t n_bytes = 0;
    tokenizer_text(tok, last_id, false, &n_bytes);
    return n_bytes > 0;
}

void text_stream_init(struct text_stream *s, const struct tokenizer *tok, bool special,
                      int32_t last_id, const char *const *stop, size_t n_stop)
{
    *s = (struct text_stream){.stop = stop, .n_stop = n_stop};
    detokenizer_init(&s->detok, tok, special);
    s->detok.at_start = !continues_text(tok, last_id);
}

void text_stream_fini(struct text_stream *s)
{
    strbuf_fini(&s->text);
}

static bool has_stop_at(const struct text_stream *s, size_t at)
{
    for (size_t i = 0; i < s->n_stop; i++) {
        size_t n = strlen(s->stop[i]);
        if (n <= s->text.len - at && memcmp(s->text.data + at, s->stop[i], n) == 0) {
            return true;
        }
    }
    return false;
}

/* Where the first stop string begins in the text; the text's length if there is none. */
static size_t find_stop(const struct text_stream *s)
{
    size_t at = 0;

    while (at < s->text.len && !has_stop_at(s, at)) {
        at++;
    }
    return at;
}

/* The longest tail of the text with which a stop string begins. */
static size_t undecided_tail(const struct text_stream *s)
{
    size_t longest = 0;

    for (size_t i = 0; i < s->n_stop; i++) {
        for (size_t n = MIN(strlen(s->stop[i]) - 1, s->text.len); n > longest; n--) {
            if (memcmp(s->text.data + s->text.len - n, s->stop[i], n) == 0) {
                longest = n;
            }
        }
    }
    return longest;
}

numoe_status text_stream_push(struct text_stream *s, int32_t id, size_t *n_ready, bool *stopped,
                              numoe_error *err)
{
    FORWARD_IF(detokenizer_push(&s->detok, id, &s->text, err));
    size_t stop = find_stop(s);
    *stopped = stop < s->text.len;
    *n_ready = *stopped ? stop : s->text.len - undecided_tail(s);
    return NUMOE_OK;
}

numoe_status text_stream_end(struct text_stream *s, size_t *n_ready, numoe_error *err)
{
    FORWARD_IF(detokenizer_flush(&s->detok, &s->text, err));
    *n_ready = find_stop(s);
    return NUMOE_OK;
}

void text_stream_take(struct text_stream *s, size_t n)
{
    if (n > 0) {
        s->text.len -= n;
        memmove(s->text.data, s->text.data + n, s->text.len + 1);
    }
}
