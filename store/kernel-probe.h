/* What matrix products reach of the read bandwidth: the kernel of a type over memory that no cache
 * holds, by all workers at once. */
#ifndef NUMOE_STORE_KERNEL_PROBE_H
#define NUMOE_STORE_KERNEL_PROBE_H

#include "kernels/kern.h"
#include "numa/pool.h"

/* Bytes/second of weights, all workers together, one token; rows of k elements; over most_bytes at
 * most, for ns nanoseconds at least. */
numoe_status kernel_probe(struct pools *pools, const struct topo *topo, const struct kern *kern,
                          uint32_t format_id, unsigned k, uint64_t most_bytes, uint64_t ns,
                          double *total_bps, numoe_error *err);

#endif
