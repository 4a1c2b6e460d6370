/* A request's way from prompt to result, a token at a time. When it has its turn is decided in
 * runtime/batch.c. */
#include "runtime/batch-seq.h"

#include <math.h>
#include <string.h>

/* ------------------------------------------------------------------ new and free */

static numoe_status check_request(const numoe_request *r, unsigned n_ctx, numoe_error *err)
{
    if (r->n_id == 0) {
        return status_fail(err, NUMOE_E_INPUT, "the prompt is empty");
    }
    if (r->n_id >= n_ctx) {
        return status_fail(err, NUMOE_E_INPUT_CONTEXT,
                           "a prompt of %zu tokens leaves no room for an answer in a context of %u",
                           r->n_id, n_ctx);
    }
    if (r->n_top_logprob > NUMOE_MAX_TOP_LOGPROBS) {
        return status_fail(err, NUMOE_E_INPUT, "logprobs of %u tokens: at most %u are possible",
                           r->n_top_logprob, NUMOE_MAX_TOP_LOGPROBS);
    }
    return text_stream_check_stops(r->stop, r->n_stop, err);
}

static numoe_status check_ids(const numoe_engine *engine, const numoe_request *r, numoe_error *err)
{
    for (size_t i = 0; i < r->n_id; i++) {
        if (r->ids[i] < 0 || (uint32_t)r->ids[i] >= engine->model->hp.n_vocab) {
            return status_fail(err, NUMOE_E_INPUT,
                               "token %zu has id %d, the vocabulary ids 0 to %u", i, r->ids[i],
                               engine->model->hp.n_vocab - 1);
        }
    }
    return NUMOE_OK;
}

static numoe_status copy_stops(struct batch_seq *seq, numoe_error *err)
{
    const numoe_request *r = &seq->request;
    FORWARD_IF(mem_new(&seq->stop, r->n_stop, sizeof *seq->stop, "stop strings", err));
    for (size_t i = 0; i < r->n_stop; i++) {
        const size_t bytes = strlen(r->stop[i]) + 1;
        FORWARD_IF(mem_new(&seq->stop[i], bytes, 1, "stop strings", err));
        memcpy(seq->stop[i], r->stop[i], bytes);
    }
    return NUMOE_OK;
}

static numoe_status copy_request(struct batch_seq *seq, const numoe_request *request,
                                 numoe_error *err)
{
    int32_t *ids;
    seq->request = *request;
    seq->request.ids = NULL;
    FORWARD_IF(copy_stops(seq, err));
    seq->request.stop = (const char *const *)seq->stop;
    FORWARD_IF(mem_new(&ids, request->n_id, sizeof *ids, "prompt", err));
    memcpy(ids, request->ids, request->n_id * sizeof *ids);
    seq->request.ids = ids;
    return NUMOE_OK;
}

/* The sampler is made now, since it knows which of its parameters are possible, but it is large: it
 * is made again when the request has a place. */
static numoe_status check_sampler(const struct batch_seq *seq, numoe_error *err)
{
    numoe_sampler *sampler;
    FORWARD_IF(numoe_sampler_new(&seq->request.sampler, 1, &sampler, err));
    numoe_sampler_free(sampler);
    return NUMOE_OK;
}

numoe_status seq_new(numoe_engine *engine, const numoe_request *request, unsigned n_ctx,
                     struct batch_seq **out, numoe_error *err)
{
    struct batch_seq *seq;

    FORWARD_IF(check_request(request, n_ctx, err));
    FORWARD_IF(check_ids(engine, request, err));
    FORWARD_IF(mem_new(&seq, 1, sizeof *seq, "request", err));
    seq->engine = engine;
    seq->result = (numoe_completion){.tag = request->tag, .n_prompt = request->n_id};
    numoe_status status = copy_request(seq, request, err);
    if (status == NUMOE_OK) {
        status = check_sampler(seq, err);
    }
    if (status == NUMOE_OK) {
        text_stream_init(&seq->stream, engine->tok, false, request->ids[request->n_id - 1],
                         seq->request.stop, seq->request.n_stop);
        status = strbuf_append(&seq->text, "", 0, err);
    }
    if (status != NUMOE_OK) {
        seq_free(seq);
        return status;
    }
    *out = seq;
    return NUMOE_OK;
}

void seq_free(struct batch_seq *seq)
{
    if (!seq) {
        return;
    }
    numoe_session_free(seq->session);
    numoe_sampler_free(seq->sampler);
    text_stream_fini(&seq->stream);
    strbuf_fini(&seq->text);
    for (size_t i = 0; seq->stop && i < seq->request.n_stop; i++) {
        mem_free(seq->stop[i]);
    }
    mem_free(seq->stop);
    mem_free((void *)seq->request.ids);
    mem_free(seq->id);
    mem_free(seq->logprob);
    mem_free(seq->top);
    mem_free(seq);
}

numoe_status seq_start(struct batch_seq *seq, unsigned n_ctx, numoe_error *err)
{
    const numoe_request *r = &seq->request;

    if (seq->session) {
        return NUMOE_OK;
    }
    FORWARD_IF(numoe_sampler_new(&r->sampler, seq->engine->model->hp.n_vocab, &seq->sampler, err));
    numoe_status status = numoe_session_new(seq->engine, n_ctx, &seq->session, err);
    if (status == NUMOE_OK) {
        status = numoe_session_append(seq->session, r->ids, r->n_id, err);
    }
    if (status != NUMOE_OK) {
        numoe_session_free(seq->session);
        numoe_sampler_free(seq->sampler);
        seq->session = NULL;
        seq->sampler = NULL;
    }
    return status;
}

void seq_suspend(struct batch_seq *seq)
{
    session_rewind(seq->session, 0);
    seq->session->has_logits = false;
}

const int32_t *seq_tokens(const struct batch_seq *seq, size_t *n)
{
    if (seq->session) {
        *n = seq->session->n;
        return seq->session->id;
    }
    *n = seq->request.n_id;
    return seq->request.ids;
}

/* ------------------------------------------------------------------ a token */

/* Inserts into top [n], by falling logit and rising id, what is better than its last. */
static void rank(numoe_logprob *top, unsigned n, int32_t id, float logit)
{
    unsigned i = n;
    if (!(logit > top[n - 1].logprob)) {
        return;
    }
    for (; i > 1 && logit > top[i - 2].logprob; i--) {
        top[i - 1] = top[i - 2];
    }
    top[i - 1] = (numoe_logprob){.id = id, .logprob = logit};
}

/* Sums in the order of ids: the same on every machine with the same exp(). */
static double log_sum(const float *logits, unsigned n, float max)
{
    double sum = 0;
    for (unsigned i = 0; i < n; i++) {
        sum += exp((double)logits[i] - (double)max);
    }
    return (double)max + log(sum);
}

static void find_logprobs(struct batch_seq *seq, const float *logits, unsigned n_vocab)
{
    const unsigned n_top = MIN(seq->request.n_top_logprob, n_vocab);
    float max = -INFINITY;

    for (unsigned i = 0; i < n_top; i++) {
        seq->picked_top[i] = (numoe_logprob){.id = -1, .logprob = -INFINITY};
    }
    for (unsigned i = 0; i < n_vocab; i++) {
        max = logits[i] > max ? logits[i] : max;
        if (n_top > 0) {
            rank(seq->picked_top, n_top, (int32_t)i, logits[i]);
        }
    }
    const double norm = log_sum(logits, n_vocab, max);
    for (unsigned i = 0; i < n_top; i++) {
        seq->picked_top[i].logprob = (float)((double)seq->picked_top[i].logprob - norm);
    }
    seq->picked_logprob = (numoe_logprob){
        .id = seq->picked,
        .logprob = (float)((double)logits[seq->picked] - norm),
    };
}

void seq_pick(struct batch_seq *seq)
{
    const numoe_session *s = seq->session;

    seq->picked = numoe_sampler_pick(seq->sampler, s->logits, s->id, s->n);
    if (seq->request.want_logprobs && seq->picked >= 0) {
        find_logprobs(seq, s->logits, s->engine->model->hp.n_vocab);
    }
}

static numoe_status keep_logprobs(struct batch_seq *seq, numoe_error *err)
{
    const size_t n = seq->result.n_generated, n_top = seq->request.n_top_logprob;

    if (n == seq->cap) {
        const size_t cap = MAX(seq->cap * 2, (size_t)64);
        FORWARD_IF(mem_grow(&seq->logprob, cap, sizeof *seq->logprob, "logprobs", err));
        FORWARD_IF(mem_grow(&seq->top, cap * n_top, sizeof *seq->top, "logprobs", err));
        seq->cap = cap;
    }
    seq->logprob[n] = seq->picked_logprob;
    memcpy(seq->top + n * n_top, seq->picked_top, n_top * sizeof *seq->top);
    return NUMOE_OK;
}

static numoe_status take_text(struct batch_seq *seq, size_t n, numoe_error *err)
{
    if (n > 0) {
        FORWARD_IF(strbuf_append(&seq->text, seq->stream.text.data, n, err));
    }
    text_stream_take(&seq->stream, n);
    return NUMOE_OK;
}

static numoe_status finish(struct batch_seq *seq, numoe_finish why, numoe_error *err)
{
    size_t n_ready;

    seq->finished = true;
    seq->result.finish = why;
    if (why == NUMOE_FINISH_STOP) {
        return NUMOE_OK;
    }
    FORWARD_IF(text_stream_end(&seq->stream, &n_ready, err));
    return take_text(seq, n_ready, err);
}

static numoe_status accept(struct batch_seq *seq, numoe_error *err)
{
    const int32_t id = seq->picked;
    size_t n_ready;
    bool stopped;

    if (id < 0) {
        return status_fail(err, NUMOE_E_FILE_MODEL,
                           "no token can be chosen after position %zu: the model's output is not a "
                           "number, its weights are damaged or overflow their type",
                           seq->session->n - 1);
    }
    FORWARD_IF(numoe_session_append(seq->session, &id, 1, err));
    if (seq->request.want_logprobs) {
        FORWARD_IF(keep_logprobs(seq, err));
    }
    seq->result.n_generated++;
    FORWARD_IF(text_stream_push(&seq->stream, id, &n_ready, &stopped, err));
    FORWARD_IF(take_text(seq, n_ready, err));
    if (stopped) {
        return finish(seq, NUMOE_FINISH_STOP, err);
    }
    if (!seq->request.ignore_eog && tokenizer_is_eog(seq->engine->tok, id)) {
        return finish(seq, NUMOE_FINISH_EOG, err);
    }
    if (seq->request.max_tokens && seq->result.n_generated >= seq->request.max_tokens) {
        return finish(seq, NUMOE_FINISH_LENGTH, err);
    }
    return seq->session->n == seq->session->n_ctx ? finish(seq, NUMOE_FINISH_CONTEXT, err)
                                                  : NUMOE_OK;
}

void seq_accept(struct batch_seq *seq)
{
    numoe_error err;
    if (accept(seq, &err) != NUMOE_OK) {
        seq_fail(seq, &err);
    }
}

void seq_fail(struct batch_seq *seq, const numoe_error *err)
{
    seq->finished = true;
    seq->result.status = err->status;
    seq->result.error = *err;
}

numoe_session *seq_retire(struct batch_seq *seq)
{
    numoe_session *s = seq->session;
    const size_t n_id = seq->request.n_id, bytes = seq->result.n_generated * sizeof *seq->id;
    numoe_error err;

    numoe_sampler_free(seq->sampler);
    seq->sampler = NULL;
    seq->session = NULL;
    if (s && mem_new(&seq->id, bytes, 1, "generated tokens", &err) != NUMOE_OK) {
        seq_fail(seq, &err);
    } else if (s && bytes > 0) {
        memcpy(seq->id, s->id + n_id, bytes);
    }
    if (s) {
        numoe_session_truncate(s, n_id);
    }
    return s;
}

void seq_get_result(const struct batch_seq *seq, numoe_completion *out)
{
    *out = seq->result;
    out->text = seq->text.data;
    out->text_bytes = seq->text.len;
    out->ids = seq->id;
    if (seq->request.want_logprobs) {
        out->logprob = seq->logprob;
        out->top = seq->top;
        out->n_top = seq->request.n_top_logprob;
    }
}
