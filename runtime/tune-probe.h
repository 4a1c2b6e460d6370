/* What runtime/tune.c measures. */
#ifndef NUMOE_RUNTIME_TUNE_PROBE_H
#define NUMOE_RUNTIME_TUNE_PROBE_H

#include "runtime/tune.h"

/* Nanoseconds that a run begins later where workers sleep than where they are awake: some 20 ms. */
uint64_t tune_probe_wake(struct pools *pools);

/* The percentages that are worth trying on this machine, into percent [2]; how many. */
unsigned tune_workers_to_try(const struct topo *topo, unsigned *percent);

/* tuning_choose_workers() of those, measured against `usual`, a pool of one for each core; some 0.1 s
 * each. */
unsigned tune_probe_workers(const struct topo *topo, const struct kern *kern, struct pools *usual);

#endif
