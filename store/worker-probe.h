/* Two pools of workers at the same work, in turn: how long each takes for products as decoding has
 * them, one token over weights that no cache holds with a meeting after each, and as prompts have
 * them, many tokens at a time. */
#ifndef NUMOE_STORE_WORKER_PROBE_H
#define NUMOE_STORE_WORKER_PROBE_H

#include "kernels/kern.h"
#include "numa/pool.h"

/* What pool `other` takes of the time of pool `usual`: medians over neighbouring pairs. */
struct worker_ratio {
    double decode, prompt;
};

/* Both pools have the nodes of topo. For ns nanoseconds, a few rounds at least; memory as
 * kernel_probe(). NUMOE_E_MEMORY where there is none to measure with. */
numoe_status worker_probe(const struct topo *topo, const struct kern *kern, struct pools *usual,
                          struct pools *other, uint64_t ns, struct worker_ratio *ratio,
                          numoe_error *err);

#endif
