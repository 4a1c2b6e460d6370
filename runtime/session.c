/* Sessions: the tokens of a sequence, what of them is evaluated, and how the pending tokens of many
 * sessions become one batch. Owns the bookkeeping; the arithmetic is in runtime/step.c.
 *
 * A step changes a session only after the batch was evaluated, and everything that can fail
 * (arguments, memory of the KV caches) comes before: after an error each session is as it was. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "runtime/gpu-engine.h"
#include "runtime/mode.h"

#define SESSION_CAP_MIN 64u

numoe_status numoe_session_new(numoe_engine *engine, unsigned n_ctx, numoe_session **session,
                               numoe_error *err)
{
    unsigned n_ctx_train = engine->model->hp.n_ctx_train;
    numoe_session *s;
    numoe_status status;

    if (n_ctx > n_ctx_train) {
        return status_fail(err, NUMOE_E_INPUT_CONTEXT,
                           "context of %u tokens: this model was made for at most %u", n_ctx,
                           n_ctx_train);
    }
    FORWARD_IF(mem_new(&s, 1, sizeof *s, "session", err));
    s->engine = engine;
    s->n_ctx = n_ctx ? n_ctx : n_ctx_train;
    s->generation = engine->generation;
    status = mem_new(&s->logits, engine->model->hp.n_vocab, sizeof *s->logits, "logits", err);
    if (status != NUMOE_OK) {
        goto free_session;
    }
    status =
        kv_new(engine->model, engine->topo, engine->pools, engine->kv_type, s->n_ctx, &s->kv, err);
    if (status != NUMOE_OK) {
        goto free_logits;
    }
    engine->n_session++;
    *session = s;
    return NUMOE_OK;

free_logits:
    mem_free(s->logits);
free_session:
    mem_free(s);
    return status;
}

void numoe_session_free(numoe_session *session)
{
    if (!session) {
        return;
    }
    session->engine->n_session--;
    session_sync(session);
    if (session->engine->gpu != NULL) {
        gpu_cache_truncate(session->engine->gpu, &session->gpu, 0);
    }
    kv_free(session->kv);
    mem_free(session->logits);
    mem_free(session->id);
    mem_free(session);
}

static numoe_status check_ids(const numoe_session *s, const int32_t *ids, size_t n,
                              numoe_error *err)
{
    unsigned n_vocab = s->engine->model->hp.n_vocab;

    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || (uint32_t)ids[i] >= n_vocab) {
            return status_fail(err, NUMOE_E_INPUT,
                               "token %zu has id %d, the vocabulary ids 0 to %u", i, ids[i],
                               n_vocab - 1);
        }
    }
    return NUMOE_OK;
}

numoe_status numoe_session_append(numoe_session *session, const int32_t *ids, size_t n,
                                  numoe_error *err)
{
    numoe_session *s = session;

    if (n > s->n_ctx - s->n) {
        char held[64] = "";
        if (s->n > 0) {
            snprintf(held, sizeof held, " that holds %zu already", s->n);
        }
        return status_fail(
            err, NUMOE_E_INPUT_CONTEXT,
            "%zu tokens do not fit a context of %u%s: shorten the text%s", n, s->n_ctx, held,
            s->n_ctx < s->engine->model->hp.n_ctx_train ? " or ask for a larger context" : "");
    }
    FORWARD_IF(check_ids(s, ids, n, err));
    if (s->n + n > s->cap) {
        size_t cap = MIN(MAX(MAX(s->n + n, s->cap * 2), SESSION_CAP_MIN), s->n_ctx);
        FORWARD_IF(mem_grow(&s->id, cap, sizeof *s->id, "tokens", err));
        s->cap = cap;
    }
    if (n) {
        memcpy(s->id + s->n, ids, n * sizeof *ids);
    }
    s->n += n;
    return NUMOE_OK;
}

void numoe_session_truncate(numoe_session *session, size_t n)
{
    if (n >= session->n) {
        return;
    }
    session->n = n;
    session_rewind(session, n);
}

void session_rewind(numoe_session *s, size_t n)
{
    if (n >= s->n_done) {
        return;
    }
    s->n_done = n;
    s->has_logits = false;
    session_sync(s);
    s->n_kv = MIN(s->n_kv, n);
    kv_truncate(s->kv, (unsigned)n);
    if (s->engine->gpu != NULL) {
        gpu_cache_truncate(s->engine->gpu, &s->gpu, (unsigned)n);
    }
}

void session_sync(numoe_session *s)
{
    if (s->generation != s->engine->generation) {
        s->generation = s->engine->generation;
        s->n_kv = 0;
        s->gpu = (struct gpu_cache){0};
        kv_truncate(s->kv, 0);
    }
}

size_t numoe_session_length(const numoe_session *session)
{
    return session->n;
}

size_t numoe_session_pending(const numoe_session *session)
{
    return session->n - session->n_done;
}

unsigned numoe_session_context(const numoe_session *session)
{
    return session->n_ctx;
}

const int32_t *numoe_session_tokens(const numoe_session *session)
{
    return session->id;
}

void numoe_session_cancel(numoe_session *session)
{
    atomic_store_explicit(&session->cancelled, true, memory_order_relaxed);
}

void numoe_session_on_logits(numoe_session *session, numoe_logits_fn fn, void *arg)
{
    session->on_logits = fn;
    session->on_logits_arg = arg;
}

void numoe_session_on_route(numoe_session *session, numoe_route_fn fn, void *arg)
{
    session->on_route = fn;
    session->on_route_arg = arg;
}

const float *numoe_session_logits(const numoe_session *session)
{
    return session->has_logits && session->n == session->n_done ? session->logits : NULL;
}

/* ------------------------------------------------------------------ step */

static numoe_status check_sessions(numoe_engine *e, numoe_session *const *sessions,
                                   size_t n_session, numoe_error *err)
{
    e->n_step++;
    for (size_t i = 0; i < n_session; i++) {
        if (sessions[i]->engine != e) {
            return status_fail(err, NUMOE_E_INPUT, "session %zu belongs to another engine", i);
        }
        if (sessions[i]->in_step == e->n_step) {
            return status_fail(err, NUMOE_E_INPUT, "session %zu is given twice", i);
        }
        sessions[i]->in_step = e->n_step;
    }
    for (size_t i = 0; i < n_session; i++) {
        if (session_take_cancel(sessions[i])) {
            return status_fail(err, NUMOE_E_STATE_CANCELLED, "session %zu was cancelled", i);
        }
    }
    return NUMOE_OK;
}

/* What is evaluated at once: tokens and spans of the engine. */
struct batch {
    bool in_lanes;
    unsigned n_token, n_span;
    unsigned n_logits_left;             /* rows that a GPU program has room for */
    unsigned lane_token[TOPO_MAX_NODE]; /* of them in each lane, in this order */
};

/* Of the next tokens of s, how many a batch with so many rows of logits left can take. */
static unsigned fit_logits(const numoe_session *s, unsigned n, unsigned n_left)
{
    if (s->on_logits) {
        const size_t silent = s->n_done - s->n_kv; /* evaluated before: nobody listens again */
        return (unsigned)MIN((size_t)n, silent + n_left);
    }
    return s->n_kv + n == s->n && n_left == 0 ? n - 1 : n;
}

/* Puts the next tokens of s into the batch, as many as there is room for up to token `end`. */
static void batch_add(numoe_engine *e, numoe_session *s, unsigned end, struct batch *b)
{
    unsigned n = (unsigned)MIN(s->n - s->n_kv, (size_t)(end - b->n_token));

    n = n > 0 ? fit_logits(s, n, b->n_logits_left) : 0;
    if (n == 0) {
        return;
    }
    e->span[b->n_span++] = (struct span){.session = s, .first = b->n_token, .n = n};
    for (unsigned i = 0; i < n; i++) {
        const size_t position = s->n_kv + i;
        const bool is_new = position >= s->n_done;
        const bool want_logits = is_new && (position + 1 == s->n || s->on_logits);
        b->n_logits_left -= want_logits ? 1 : 0;
        e->token[b->n_token++] = (struct step_token){
            .id = s->id[position],
            .position = (uint32_t)position,
            .kv = s->kv,
            .gpu = e->gpu != NULL ? &s->gpu : NULL,
            .want_logits = want_logits,
        };
    }
}

/* Tokens that its caches lack, where there is something to be done. */
static size_t missing(const numoe_session *s)
{
    return numoe_session_pending(s) > 0 ? s->n - s->n_kv : 0;
}

/* Sessions of one lane. Who generates waits for one token, who reads a prompt for many: the former
 * go first. */
static void batch_add_lane(numoe_engine *e, numoe_session *const *sessions, size_t n_session,
                           int lane, struct batch *b)
{
    const unsigned end = b->n_token + e->chunk_tokens;

    for (size_t i = 0; i < n_session; i++) {
        session_sync(sessions[i]);
        if (sessions[i]->lane == lane && missing(sessions[i]) == 1) {
            batch_add(e, sessions[i], end, b);
        }
    }
    for (size_t i = 0; i < n_session; i++) {
        if (sessions[i]->lane == lane && missing(sessions[i]) > 1) {
            batch_add(e, sessions[i], end, b);
        }
    }
}

static void batch_build(numoe_engine *e, numoe_session *const *sessions, size_t n_session,
                        bool in_lanes, struct batch *b)
{
    *b = (struct batch){.in_lanes = in_lanes,
                        .n_logits_left = e->gpu != NULL ? gpu_max_logits(e->gpu) : UINT_MAX};
    if (!in_lanes) {
        for (size_t i = 0; i < n_session; i++) {
            sessions[i]->lane = KV_SPREAD;
        }
        batch_add_lane(e, sessions, n_session, KV_SPREAD, b);
        return;
    }
    mode_deal(e, sessions, n_session);
    for (unsigned in = 0; in < e->info.n_lane; in++) {
        const unsigned n_before = b->n_token;
        batch_add_lane(e, sessions, n_session, (int)in, b);
        b->lane_token[in] = b->n_token - n_before;
    }
}

/* A lane's cache must be on its node. Together, nodes can do with one that lies otherwise. */
static numoe_status move_cache(const numoe_session *s, numoe_error *err)
{
    numoe_error why;
    numoe_status status = kv_move(s->kv, s->lane, &why);

    if (status != NUMOE_OK && s->lane == KV_SPREAD) {
        log_warn("a KV cache stays on one node, where it is slower to read: %s", why.text);
        kv_stay(s->kv);
        return NUMOE_OK;
    }
    if (status != NUMOE_OK && err) {
        *err = why;
    }
    return status;
}

static numoe_status span_reserve(const numoe_engine *e, const struct span *span, numoe_error *err)
{
    numoe_session *s = span->session;
    const unsigned n = (unsigned)s->n_kv + span->n;

    if (e->gpu != NULL) {
        FORWARD_IF(gpu_cache_reserve(e->gpu, &s->gpu, (unsigned)s->n_kv, n, err));
    }
    if (e->gpu == NULL || !gpu_has_head(e->gpu)) {
        FORWARD_IF(move_cache(s, err));
        FORWARD_IF(kv_reserve(s->kv, n, err));
    }
    return NUMOE_OK;
}

/* Caches where they are needed, and large enough. *at: the span that was looked at last. */
static numoe_status batch_reserve(const numoe_engine *e, const struct batch *b, unsigned *at,
                                  numoe_error *err)
{
    for (*at = 0; *at < b->n_span; (*at)++) {
        FORWARD_IF(span_reserve(e, &e->span[*at], err));
    }
    return NUMOE_OK;
}

/* Where a lane's node has no room for a cache another lane takes it. */
static numoe_status lanes_prepare(numoe_engine *e, numoe_session *const *sessions, size_t n_session,
                                  struct batch *b, numoe_error *err)
{
    numoe_status status;
    unsigned at;

    for (size_t i = 0; i < n_session; i++) {
        sessions[i]->refused = 0;
    }
    do {
        batch_build(e, sessions, n_session, true, b);
        status = batch_reserve(e, b, &at, err);
    } while (status == NUMOE_E_MEMORY && mode_refuse(e, e->span[at].session));
    return status;
}

static numoe_status batch_prepare(numoe_engine *e, numoe_session *const *sessions, size_t n_session,
                                  struct batch *b, numoe_error *err)
{
    numoe_error why;
    numoe_status status = NUMOE_OK;
    bool in_lanes = mode_of_step(e, sessions, n_session);
    unsigned at;

    if (in_lanes) {
        status = lanes_prepare(e, sessions, n_session, b, &why);
        in_lanes = status == NUMOE_OK || !mode_give_up(e, &why);
    }
    if (!in_lanes) {
        batch_build(e, sessions, n_session, false, b);
        status = batch_reserve(e, b, &at, &why);
    }
    if (status != NUMOE_OK && err) {
        *err = why;
    }
    return status;
}

static void publish_routes(const numoe_session *s, unsigned token, size_t position)
{
    const struct step *step = s->engine->step;

    for (unsigned il = 0; il < s->engine->model->hp.n_layer; il++) {
        const int32_t *ids;
        const float *weights;
        unsigned k;
        if (step_route(step, il, token, &ids, &weights, &k)) {
            s->on_route(s->on_route_arg, il, position, k, ids, weights);
        }
    }
}

/* Hands the results of an evaluated span to its session and to who listens there. Positions that
 * were evaluated before, by a GPU program that failed, were told then. */
static void publish_span(const numoe_engine *e, const struct span *span)
{
    numoe_session *s = span->session;
    const size_t first = s->n_kv, done = s->n_done;

    s->n_kv += span->n;
    s->n_done = MAX(s->n_done, s->n_kv);
    s->has_logits = s->n_kv == s->n;
    if (s->has_logits) {
        memcpy(s->logits, step_logits(e->step, span->first + span->n - 1),
               e->model->hp.n_vocab * sizeof *s->logits);
    }
    for (unsigned i = 0; i < span->n; i++) {
        const size_t position = first + i;
        if (s->on_logits && position >= done) {
            s->on_logits(s->on_logits_arg, position, step_logits(e->step, span->first + i));
        }
        if (s->on_route && position >= done) {
            publish_routes(s, span->first + i, position);
        }
    }
}

/* Where a GPU program failed nothing has changed but that caches are empty. */
static numoe_status batch_run(numoe_engine *e, const struct batch *b, numoe_error *err)
{
    bool routes = false, ran = true;

    for (unsigned i = 0; i < b->n_span; i++) {
        routes = routes || e->span[i].session->on_route;
    }
    const uint64_t begin_ns = clock_ns();
    step_keep_routes(e->step, routes);
    probe_switch(e->probe, PROBE_STEP);
    alloc_guard_begin("step");
    if (b->in_lanes) {
        step_run_lanes(e->step, e->token, b->lane_token);
    } else {
        ran = step_run(e->step, e->token, b->n_token);
    }
    alloc_guard_end();
    probe_switch(e->probe, PROBE_BATCH);
    if (!ran) {
        probe_end(e->probe);
        return e->peers != NULL ? status_fail(err, NUMOE_E_DEVICE,
                                              "the exchange with other processes has failed")
                                : engine_recover(e, err);
    }
    for (unsigned i = 0; i < b->n_span; i++) {
        publish_span(e, &e->span[i]);
    }
    probe_end(e->probe);
    if (e->adapt != NULL) {
        adapt_note(e->adapt, clock_ns() - begin_ns, b->n_token);
    }
    e->profile_steps++;
    e->profile_tokens += b->n_token;
    return NUMOE_OK;
}

/* Whether a session still lacks what it had before a GPU program failed. */
static bool is_behind(numoe_session *const *sessions, size_t n_session)
{
    for (size_t i = 0; i < n_session; i++) {
        session_sync(sessions[i]);
        if (numoe_session_pending(sessions[i]) > 0 && sessions[i]->n_kv < sessions[i]->n_done) {
            return true;
        }
    }
    return false;
}

static const uint64_t *counts_of(const void *engine)
{
    return step_expert_counts(((const numoe_engine *)engine)->step);
}

numoe_status numoe_step(numoe_engine *engine, numoe_session *const *sessions, size_t n_session,
                        numoe_error *err)
{
    struct batch batch;
    uint64_t generation;

    FORWARD_IF(check_sessions(engine, sessions, n_session, err));
    do {
        if (engine->gpu != NULL && !gpu_is_running(engine->gpu)) {
            FORWARD_IF(engine_recover(engine, err));
        }
        generation = engine->generation;
        FORWARD_IF(batch_prepare(engine, sessions, n_session, &batch, err));
        if (batch.n_token == 0 && engine->peers == NULL) {
            return NUMOE_OK;
        }
        probe_begin(engine->probe, PROBE_BATCH);
        watch_look(&engine->watch, engine->store, engine->topo, engine->pools);
        if (engine->adapt != NULL) {
            probe_switch(engine->probe, PROBE_COPYING);
            adapt_look(engine->adapt, engine->pools, counts_of, engine);
            probe_switch(engine->probe, PROBE_BATCH);
        }
        FORWARD_IF(batch_run(engine, &batch, err));
    } while (generation != engine->generation || is_behind(sessions, n_session));
    return NUMOE_OK;
}
