/* Owns the choice of mode and the dealing of sessions to lanes. A session's place is where its KV
 * cache is, so both follow the same rule: caches move only where that pays.
 */
#include "runtime/mode.h"

#include "base/log.h"

/* Steps in a row that want the other mode before caches are copied for it: what two copies of a
 * long cache cost is then made up for, and sequences that come and go do not cause it. */
#define AUTO_PATIENCE 8u

static bool has_work(const numoe_session *s)
{
    return numoe_session_pending(s) > 0;
}

/* ------------------------------------------------------------------ mode */

static numoe_status make_lanes(numoe_engine *e, numoe_error *err)
{
    const size_t n_token = (size_t)e->chunk_tokens * e->info.n_lane;
    if (e->has_lanes) {
        return NUMOE_OK;
    }
    FORWARD_IF(mem_grow(&e->token, n_token, sizeof *e->token, "batch", err));
    FORWARD_IF(mem_grow(&e->span, n_token, sizeof *e->span, "batch", err));
    FORWARD_IF(step_make_lanes(e->step, err));
    e->has_lanes = true;
    return NUMOE_OK;
}

numoe_status numoe_engine_set_mode(numoe_engine *engine, numoe_mode mode, numoe_error *err)
{
    if (mode < NUMOE_MODE_AUTO || mode > NUMOE_MODE_THROUGHPUT) {
        return status_fail(err, NUMOE_E_INPUT, "mode %d is not known", (int)mode);
    }
    if (mode == NUMOE_MODE_THROUGHPUT && engine->gpu != NULL) {
        return status_fail(err, NUMOE_E_INPUT,
                           "throughput mode is the CPU's alone, whatever the placement: leave out "
                           "the mode or the GPU");
    }
    if (mode == NUMOE_MODE_THROUGHPUT && engine->info.n_lane == 0) {
        return status_fail(
            err, NUMOE_E_INPUT,
            "throughput mode needs all weights in the memory of each of %u nodes: take "
            "the placement replicate",
            engine->info.n_node);
    }
    if (mode == NUMOE_MODE_THROUGHPUT && engine->info.n_lane > 1) {
        numoe_status status = make_lanes(engine, err);
        if (status != NUMOE_OK) {
            return status_context(err, status, "throughput mode");
        }
    }
    engine->mode = mode;
    engine->n_other_mode = 0;
    engine->gave_up_lanes = false;
    return NUMOE_OK;
}

numoe_mode numoe_engine_mode(const numoe_engine *engine)
{
    return engine->mode_now;
}

bool mode_give_up(numoe_engine *engine, const numoe_error *err)
{
    if (engine->mode != NUMOE_MODE_AUTO) {
        return false;
    }
    log_warn("going on without throughput mode: %s", err->text);
    engine->gave_up_lanes = true;
    engine->mode_now = NUMOE_MODE_LATENCY;
    return true;
}

/* Lanes read weights more often than all nodes together, and meet less: which of the two costs more
 * is predicted when weights are placed. */
static bool lanes_pay(const numoe_engine *e, size_t n_token)
{
    unsigned i = 0;
    while (i + 1 < PLACEMENT_MAX_BATCH_LOG2 && n_token >> (i + 1) > 0) {
        i++;
    }
    return (e->lanes_pay >> i & 1) != 0;
}

/* AUTO: lanes while there is a sequence for each, and that is faster. */
static numoe_mode choose(numoe_engine *e, numoe_session *const *sessions, size_t n)
{
    size_t n_work = 0, n_token = 0;
    bool has_cache = false;
    for (size_t i = 0; i < n; i++) {
        n_work += has_work(sessions[i]);
        n_token += numoe_session_pending(sessions[i]);
        has_cache = has_cache || (has_work(sessions[i]) && sessions[i]->n_done > 0);
    }
    n_token = MIN(n_token, (size_t)e->chunk_tokens * e->info.n_lane);
    const numoe_mode best = n_work >= e->info.n_lane && lanes_pay(e, n_token)
                                ? NUMOE_MODE_THROUGHPUT
                                : NUMOE_MODE_LATENCY;
    e->n_other_mode = n_work > 0 && best != e->mode_now ? e->n_other_mode + 1 : 0;
    if (e->n_other_mode == 0 || (has_cache && e->n_other_mode < AUTO_PATIENCE)) {
        return e->mode_now;
    }
    e->n_other_mode = 0;
    return best;
}

bool mode_of_step(numoe_engine *engine, numoe_session *const *sessions, size_t n)
{
    const bool can = engine->info.n_lane > 1 && !engine->gave_up_lanes;
    numoe_error err;
    numoe_mode mode = engine->mode;
    if (mode == NUMOE_MODE_AUTO) {
        mode = can ? choose(engine, sessions, n) : NUMOE_MODE_LATENCY;
    }
    engine->mode_now = mode;
    if (mode == NUMOE_MODE_LATENCY || !can) {
        return false;
    }
    if (make_lanes(engine, &err) != NUMOE_OK) {
        mode_give_up(engine, &err);
        return false;
    }
    return true;
}

/* ------------------------------------------------------------------ lanes */

/* What a lane has to do in this step. */
struct load {
    unsigned n_session;
    size_t n_token; /* pending */
    double share;   /* of what all lanes can do */
};

/* Whether lane a would be done with one session more before b with one more. */
static bool is_freer(const struct load *a, const struct load *b)
{
    const double a_time = (a->n_session + 1) / a->share, b_time = (b->n_session + 1) / b->share;
    return a_time < b_time || (a_time == b_time && a->n_token < b->n_token);
}

static void put(numoe_session *s, int lane, struct load *load)
{
    s->lane = lane;
    load[lane].n_session++;
    load[lane].n_token += numoe_session_pending(s);
}

static uint64_t taken_bytes(const numoe_engine *e, unsigned in)
{
    return atomic_load(&e->topo->ledger->taken_bytes[in]);
}

/* A cache had no room there, and nothing was given back since. */
static bool is_full(const numoe_engine *e, unsigned in)
{
    return e->lane_full_bytes[in] > 0 && taken_bytes(e, in) >= e->lane_full_bytes[in];
}

bool mode_refuse(numoe_engine *engine, numoe_session *s)
{
    const unsigned in = (unsigned)s->lane;
    const uint64_t all = UINT64_MAX >> (64 - engine->info.n_lane);
    const bool leaves = kv_home(s->kv) == s->lane;

    /* What s itself leaves behind is not given back: others would come for it, and s go again. */
    engine->lane_full_bytes[in] =
        taken_bytes(engine, in) - (leaves ? (uint64_t)kv_bytes(s->kv, 0) : 0);
    s->refused |= UINT64_C(1) << in;
    return s->refused != all;
}

static bool is_refused(const numoe_session *s, unsigned in)
{
    return (s->refused >> in & 1) != 0;
}

/* Of the lanes that may have room for s; full ones are asked last, since what one session needs
 * another may not. */
static unsigned freest(const numoe_engine *e, const struct load *load, const numoe_session *s)
{
    unsigned best = 0;
    for (unsigned in = 1; in < e->info.n_lane; in++) {
        const unsigned in_cost = 2u * is_refused(s, in) + is_full(e, in);
        const unsigned best_cost = 2u * is_refused(s, best) + is_full(e, best);
        if (in_cost < best_cost || (in_cost == best_cost && is_freer(&load[in], &load[best]))) {
            best = in;
        }
    }
    return best;
}

static unsigned busiest(const struct load *load, unsigned n_lane)
{
    unsigned most = 0;
    for (unsigned in = 1; in < n_lane; in++) {
        most = load[in].n_session / load[in].share > load[most].n_session / load[most].share ? in
                                                                                             : most;
    }
    return most;
}

static numoe_session *shortest_of(numoe_session *const *sessions, size_t n, unsigned lane)
{
    numoe_session *shortest = NULL;
    for (size_t i = 0; i < n; i++) {
        numoe_session *s = sessions[i];
        if (has_work(s) && s->lane == (int)lane &&
            (shortest == NULL || s->n_done < shortest->n_done)) {
            shortest = s;
        }
    }
    return shortest;
}

/* Where sequences have ended unevenly, the shortest cache of the busiest lane goes to the freest
 * with room, if that has no more to do afterwards than the other is left with. One a step. */
static void level(const numoe_engine *e, numoe_session *const *sessions, size_t n,
                  const struct load *load)
{
    const unsigned from = busiest(load, e->info.n_lane);
    numoe_session *s = shortest_of(sessions, n, from);
    const unsigned to = s != NULL ? freest(e, load, s) : from;
    if (to != from && !is_full(e, to) && !is_refused(s, to) &&
        (load[to].n_session + 1) / load[to].share <=
            (load[from].n_session - 1.0) / load[from].share) {
        s->lane = (int)to;
    }
}

/* A cache that has memory stays where it is, unless it can grow there no more. */
static bool is_settled(const numoe_session *s)
{
    const int home = kv_home(s->kv);
    return home != KV_SPREAD && !kv_is_empty(s->kv) && !is_refused(s, (unsigned)home);
}

void mode_deal(const numoe_engine *engine, numoe_session *const *sessions, size_t n)
{
    struct load load[TOPO_MAX_NODE] = {{0}};
    for (unsigned in = 0; in < engine->info.n_lane; in++) {
        load[in].share = engine->store->share[in];
    }
    for (size_t i = 0; i < n; i++) {
        sessions[i]->lane = KV_SPREAD;
        if (has_work(sessions[i]) && is_settled(sessions[i])) {
            put(sessions[i], kv_home(sessions[i]->kv), load);
        }
    }
    for (size_t i = 0; i < n; i++) {
        if (has_work(sessions[i]) && sessions[i]->lane == KV_SPREAD) {
            put(sessions[i], (int)freest(engine, load, sessions[i]), load);
        }
    }
    level(engine, sessions, n, load);
}
