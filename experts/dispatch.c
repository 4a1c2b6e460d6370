/* A counting sort: stable, linear, and without memory of its own. */
#include "experts/dispatch.h"

#include <string.h>

/* begin[] serves as counters first. With experts 0 and 2 of three picked by two tokens, [2, 0] and
 * [0]: counts 2 0 1, starts 0 2 2, filled 2 2 3, then active experts 0 and 2 begin at 0 and 2. */
void dispatch_build(const int32_t *ids, unsigned n_token, unsigned n_used, unsigned n_expert,
                    struct dispatch *d)
{
    const uint32_t n_pair = n_token * n_used;
    uint32_t *at = d->begin;
    memset(at, 0, (n_expert + 1) * sizeof *at);
    for (uint32_t i = 0; i < n_pair; i++) {
        at[ids[i]]++;
    }
    uint32_t sum = 0;
    d->n_active = 0;
    for (unsigned ie = 0; ie < n_expert; ie++) {
        const uint32_t n = at[ie];
        at[ie] = sum;
        sum += n;
        if (n > 0) {
            d->expert[d->n_active++] = ie;
        }
    }
    for (uint32_t i = 0; i < n_pair; i++) {
        const uint32_t to = at[ids[i]]++;
        d->token[to] = i / n_used;
        d->pair[to] = i;
    }
    /* Each counter stands at its expert's end now: the next active one's beginning. */
    uint32_t begin = 0;
    for (unsigned a = 0; a < d->n_active; a++) {
        const uint32_t end = at[d->expert[a]];
        d->begin[a] = begin; /* a <= expert[a]: overwrites only what was read */
        begin = end;
    }
    d->begin[d->n_active] = n_pair;
}
