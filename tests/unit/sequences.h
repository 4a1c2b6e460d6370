/* Made-up sequences of tokens, for tests that compare engines with each other. */
#ifndef NUMOE_TESTS_SEQUENCES_H
#define NUMOE_TESTS_SEQUENCES_H

#include <criterion/criterion.h>

#include "numoe/numoe.h"

/* For vocabularies of 500 and more; different for each `is`. */
static inline int32_t token_of(unsigned is, size_t position)
{
    return (int32_t)((position * 37 + is * 101 + position * position % 13) % 500);
}

static inline void append(numoe_session *session, unsigned is, size_t n)
{
    numoe_error err = {0};
    for (size_t i = 0; i < n; i++) {
        const int32_t id = token_of(is, numoe_session_length(session));
        cr_assert_eq(numoe_session_append(session, &id, 1, &err), NUMOE_OK, "%s", err.text);
    }
}

static inline size_t pending(numoe_session *const *session, unsigned n)
{
    size_t sum = 0;
    for (unsigned is = 0; is < n; is++) {
        sum += numoe_session_pending(session[is]);
    }
    return sum;
}

/* Steps until nothing is pending; how many steps it took. */
static inline unsigned finish(numoe_engine *engine, numoe_session **session, unsigned n)
{
    numoe_error err = {0};
    unsigned n_step = 0;
    while (pending(session, n) > 0) {
        cr_assert_eq(numoe_step(engine, session, n, &err), NUMOE_OK, "%s", err.text);
        n_step++;
    }
    return n_step;
}

#endif
