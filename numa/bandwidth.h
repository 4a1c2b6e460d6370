/* Read bandwidth as the pools see it: every worker streams over memory of its own node that no cache
 * holds. */
#ifndef NUMOE_NUMA_BANDWIDTH_H
#define NUMOE_NUMA_BANDWIDTH_H

#include "numa/arena.h"
#include "numa/pool.h"

/* Bytes/second of all workers together, the most of several passes; per_node_bps [n_node] may be
 * NULL. About 0.3 s, and 8 MiB of a worker. The second reads most_bytes over all workers, or less:
 * where those fit caches, what caches give. */
numoe_status bandwidth_read(struct pools *pools, const struct topo *topo, double *total_bps,
                            double *per_node_bps, numoe_error *err);
numoe_status bandwidth_read_within(struct pools *pools, const struct topo *topo,
                                   uint64_t most_bytes, double *total_bps, double *per_node_bps,
                                   numoe_error *err);

#endif
