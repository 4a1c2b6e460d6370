/* Generated tokens on their way to text: whole UTF-8 sequences (model/tokenizer.h sees to that),
 * and nothing that belongs to a stop string. A tail that may be the beginning of one waits here
 * until later text decides. */
#ifndef NUMOE_RUNTIME_TEXT_STREAM_H
#define NUMOE_RUNTIME_TEXT_STREAM_H

#include "model/tokenizer.h"

struct text_stream {
    struct detokenizer detok;
    const char *const *stop; /* [n_stop], the caller's */
    size_t n_stop;
    struct strbuf text; /* generated, not yet taken */
};

/* NUMOE_E_INPUT where a stop string is empty or would cut a character in two. */
numoe_status text_stream_check_stops(const char *const *stop, size_t n_stop, numoe_error *err);

/* last_id: the token that the text goes on from, in tok's vocabulary; zeroed memory before. */
void text_stream_init(struct text_stream *s, const struct tokenizer *tok, bool special,
                      int32_t last_id, const char *const *stop, size_t n_stop);
void text_stream_fini(struct text_stream *s);

/* Takes a token in. *n_ready bytes of s->text can be said now; text_stream_take() removes them.
 * *stopped: a stop string was met, and begins behind them. */
numoe_status text_stream_push(struct text_stream *s, int32_t id, size_t *n_ready, bool *stopped,
                              numoe_error *err);
/* Nothing follows: what was held back is text after all. */
numoe_status text_stream_end(struct text_stream *s, size_t *n_ready, numoe_error *err);
void text_stream_take(struct text_stream *s, size_t n);

#endif
