/* The loop that turns logits into text: evaluate, pick, append, say, until there is a reason to
 * stop. Owns what is said and what is held back; the evaluation is numoe_step()'s.
 *
 * Which text can be said is decided in runtime/text-stream.c. */
#include "base/clock.h"
#include "runtime/engine.h"
#include "runtime/text-stream.h"

/* What is said, and to whom. */
struct stream {
    const numoe_generate_params *params;
    struct text_stream text;
    bool refused; /* the callback returned false: nothing more may be said */
};

static void stream_emit(struct stream *s, size_t n)
{
    if (n > 0 && s->params->on_text && !s->refused) {
        s->refused = !s->params->on_text(s->params->arg, s->text.text.data, n);
    }
    text_stream_take(&s->text, n);
}

/* Takes a token in and says what can be said. *stopped: a stop string was met. */
static numoe_status stream_push(struct stream *s, int32_t id, bool *stopped, numoe_error *err)
{
    size_t n;
    FORWARD_IF(text_stream_push(&s->text, id, &n, stopped, err));
    stream_emit(s, n);
    return NUMOE_OK;
}

static numoe_status stream_end(struct stream *s, numoe_error *err)
{
    size_t n;
    FORWARD_IF(text_stream_end(&s->text, &n, err));
    stream_emit(s, n);
    return NUMOE_OK;
}

/* Evaluates all that is pending, telling how far it is. */
static numoe_status evaluate_prompt(numoe_session *s, const numoe_generate_params *params,
                                    numoe_error *err)
{
    size_t total = numoe_session_pending(s);

    for (size_t left = total; left > 0; left = numoe_session_pending(s)) {
        if (params->on_prompt) {
            params->on_prompt(params->arg, total - left, total);
        }
        FORWARD_IF(numoe_step(s->engine, &s, 1, err));
    }
    if (params->on_prompt && total) {
        params->on_prompt(params->arg, total, total);
    }
    return NUMOE_OK;
}

/* Picks tokens and evaluates them; *finish says why it ended, *n how many were picked. */
static numoe_status generate_tokens(numoe_session *s, numoe_sampler *sampler, struct stream *stream,
                                    numoe_finish *finish, size_t *n, numoe_error *err)
{
    const numoe_generate_params *params = stream->params;

    for (;;) {
        if (numoe_session_pending(s)) {
            FORWARD_IF(numoe_step(s->engine, &s, 1, err));
        }
        if (s->n == s->n_ctx) {
            *finish = NUMOE_FINISH_CONTEXT;
            return NUMOE_OK;
        }
        probe_begin(s->engine->probe, PROBE_SAMPLING);
        int32_t id = numoe_sampler_pick(sampler, s->logits, s->id, s->n);
        if (id < 0) {
            return status_fail(err, NUMOE_E_FILE_MODEL,
                               "no token can be chosen after position %zu: the model's output is "
                               "not a number, its weights are damaged or overflow their type",
                               s->n - 1);
        }
        FORWARD_IF(numoe_session_append(s, &id, 1, err));
        ++*n;
        bool stopped;
        FORWARD_IF(stream_push(stream, id, &stopped, err));
        probe_end(s->engine->probe);
        if (stream->refused) {
            *finish = NUMOE_FINISH_CANCEL;
            return NUMOE_OK;
        }
        if (stopped) {
            *finish = NUMOE_FINISH_STOP;
            return NUMOE_OK;
        }
        if (!params->ignore_eog && tokenizer_is_eog(s->engine->tok, id)) {
            *finish = NUMOE_FINISH_EOG;
            return NUMOE_OK;
        }
        if (params->max_tokens && *n == params->max_tokens) {
            *finish = NUMOE_FINISH_LENGTH;
            return NUMOE_OK;
        }
    }
}

/* After a cut the logits of the last token are gone: it is evaluated again. */
static numoe_status prepare(numoe_session *s, numoe_error *err)
{
    if (s->n == 0) {
        return status_fail(err, NUMOE_E_INPUT, "there is nothing to continue: the prompt is empty");
    }
    if (numoe_session_pending(s) == 0 && !s->has_logits) {
        session_rewind(s, s->n_done - 1);
    }
    return NUMOE_OK;
}

/* Of weights that the workers have read so far, wherever they lie. */
static uint64_t bytes_read(const numoe_engine *e)
{
    uint64_t sum = 0;
    for (unsigned in = 0; in < e->info.n_node; in++) {
        const struct traffic t = step_traffic(e->step, in);
        sum += t.local_bytes + t.remote_bytes + t.file_bytes;
    }
    return sum;
}

numoe_status numoe_generate(numoe_session *session, numoe_sampler *sampler,
                            const numoe_generate_params *params, numoe_generate_result *result,
                            numoe_error *err)
{
    struct stream stream = {.params = params};
    numoe_generate_result r = {.finish = NUMOE_FINISH_CANCEL};
    double start = clock_seconds(), middle;

    FORWARD_IF(text_stream_check_stops(params->stop, params->n_stop, err));
    FORWARD_IF(prepare(session, err));
    text_stream_init(&stream.text, session->engine->tok, params->special,
                     session->id[session->n - 1], params->stop, params->n_stop);
    r.n_prompt = numoe_session_pending(session);
    numoe_status status = evaluate_prompt(session, params, err);
    r.prompt_seconds = (middle = clock_seconds()) - start;
    const uint64_t before = bytes_read(session->engine);
    if (status == NUMOE_OK) {
        status = generate_tokens(session, sampler, &stream, &r.finish, &r.n_generated, err);
    }
    if (status == NUMOE_E_STATE_CANCELLED) {
        r.finish = NUMOE_FINISH_CANCEL;
        status = NUMOE_OK;
    }
    r.generate_seconds = clock_seconds() - middle;
    r.generate_bytes = bytes_read(session->engine) - before;
    if (r.finish != NUMOE_FINISH_STOP) {
        numoe_status end_status = stream_end(&stream, status == NUMOE_OK ? err : NULL);
        status = status == NUMOE_OK ? end_status : status;
    }
    text_stream_fini(&stream.text);
    /* Who asked while this call ran has what it wanted, whatever the call ended for. */
    (void)session_take_cancel(session);
    if (status == NUMOE_OK) {
        *result = r;
    }
    return status;
}
