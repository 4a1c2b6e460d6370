/* Sessions that begin alike: one takes over what the other has evaluated. */
#include <string.h>

#include "runtime/engine.h"

static numoe_status check_share(const numoe_session *s, const numoe_session *from, size_t n,
                                numoe_error *err)
{
    const size_t n_known = MIN(n, s->n);

    if (s == from || s->engine != from->engine || s->n_done > 0) {
        return status_fail(err, NUMOE_E_STATE,
                           "a session can only begin with tokens of another one of its engine, and "
                           "before anything of it is evaluated");
    }
    if (n > from->n_done) {
        return status_fail(err, NUMOE_E_STATE,
                           "%zu tokens cannot be shared: the other session has evaluated %zu", n,
                           from->n_done);
    }
    if (n_known > 0 && memcmp(s->id, from->id, n_known * sizeof *s->id) != 0) {
        return status_fail(err, NUMOE_E_STATE, "the first %zu tokens of the sessions differ",
                           n_known);
    }
    return NUMOE_OK;
}

/* What the other one has lost since a GPU program failed is evaluated again, by each for itself. */
static numoe_status share_caches(numoe_session *s, const numoe_session *from, unsigned n,
                                 numoe_error *err)
{
    numoe_engine *e = s->engine;

    session_sync(s);
    if (from->generation != e->generation || from->n_kv < n) {
        return NUMOE_OK;
    }
    if (e->gpu != NULL) {
        FORWARD_IF(gpu_cache_share(e->gpu, &s->gpu, &from->gpu, n, err));
    }
    if (e->gpu == NULL || !gpu_has_head(e->gpu)) {
        FORWARD_IF(kv_share(s->kv, from->kv, n, err));
    }
    s->n_kv = n;
    return NUMOE_OK;
}

numoe_status numoe_session_share(numoe_session *session, const numoe_session *from, size_t n,
                                 numoe_error *err)
{
    numoe_session *s = session;

    FORWARD_IF(check_share(s, from, n, err));
    if (n > s->n) {
        FORWARD_IF(numoe_session_append(s, from->id + s->n, n - s->n, err));
    }
    FORWARD_IF(share_caches(s, from, (unsigned)n, err));
    s->n_done = n;
    return NUMOE_OK;
}
