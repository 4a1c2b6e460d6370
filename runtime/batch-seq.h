/* One request of a batch: its session while it has a place, and what was generated so far. Private
 * to runtime/batch*.c. */
#ifndef NUMOE_RUNTIME_BATCH_SEQ_H
#define NUMOE_RUNTIME_BATCH_SEQ_H

#include "runtime/engine.h"
#include "runtime/text-stream.h"

struct batch_seq {
    struct batch_seq *next; /* in its queue */
    numoe_engine *engine;
    numoe_request request;  /* ids and stop are own copies */
    char **stop;            /* [request.n_stop] */
    numoe_session *session; /* NULL: never had a place */
    numoe_sampler *sampler;
    struct text_stream stream;
    struct strbuf text;
    int32_t *id; /* [n_generated], when it is finished */
    bool finished;
    numoe_completion result; /* what of it is known */
    numoe_logprob *logprob;  /* [cap] */
    numoe_logprob *top;      /* [cap, n_top_logprob] */
    size_t cap;

    int32_t picked; /* by seq_pick(), for seq_accept() */
    numoe_logprob picked_logprob, picked_top[NUMOE_MAX_TOP_LOGPROBS];
};

/* Checks and copies; n_ctx as of the batch. */
numoe_status seq_new(numoe_engine *engine, const numoe_request *request, unsigned n_ctx,
                     struct batch_seq **out, numoe_error *err);
void seq_free(struct batch_seq *seq); /* NULL is allowed */

/* A session with the tokens of the request, nothing evaluated. */
numoe_status seq_start(struct batch_seq *seq, unsigned n_ctx, numoe_error *err);
/* Gives up the memory of evaluated tokens, which will be evaluated again. */
void seq_suspend(struct batch_seq *seq);

/* Tokens so far. */
const int32_t *seq_tokens(const struct batch_seq *seq, size_t *n);

/* Picks a token from the session's logits; on any thread, allocates nothing. */
void seq_pick(struct batch_seq *seq);
/* Takes the picked token in, and decides whether it was the last: seq->finished. What fails is in
 * seq->result. */
void seq_accept(struct batch_seq *seq);
void seq_fail(struct batch_seq *seq, const numoe_error *err);
/* Of a finished one: what only a running one needs is freed; its session, cut to the prompt, is the
 * caller's. NULL if it had none. */
numoe_session *seq_retire(struct batch_seq *seq);
/* What is known of it; pointers live as long as seq. */
void seq_get_result(const struct batch_seq *seq, numoe_completion *out);

#endif
