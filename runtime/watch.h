/* What is true after loading may not stay true: pages of weights that move to other nodes, CPUs
 * that are taken away. Looked at between steps, rarely and at a bounded cost.
 */
#ifndef NUMOE_RUNTIME_WATCH_H
#define NUMOE_RUNTIME_WATCH_H

#include "numa/pool.h"
#include "store/store.h"

struct watch {
    uint64_t interval_ns; /* 0: never */
    uint64_t next_ns;
    unsigned n_look;
    bool told; /* that pages are elsewhere */
};

/* NUMOE_WATCH_SECONDS in the environment: from one look to the next, 0 for none, otherwise 10. */
numoe_status watch_init(struct watch *watch, numoe_error *err);
/* After loading: a first, closer look at pages. */
void watch_begin(struct watch *watch, const struct store *store, const struct topo *topo);

/* Before a step: looks if it is time to. Puts workers back on CPUs that are left (pools_repin);
 * warns, once, of weights on other nodes than planned, with the cause as far as it is known. */
void watch_look(struct watch *watch, const struct store *store, const struct topo *topo,
                struct pools *pools);

#endif
