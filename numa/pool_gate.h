/* What the workers of one node share, in memory of that node: used by pool.c and share.c. Zeroed
 * pages are a valid beginning, so the first toucher is a worker of the node. */
#ifndef NUMOE_NUMA_POOL_GATE_H
#define NUMOE_NUMA_POOL_GATE_H

#include <stdatomic.h>
#include <stdint.h>

#include "numa/gate.h"

/* Arrivals are counted in two steps where a node has more workers than this: by groups, then over
 * the groups. Measured with 32 workers in two pools (bench/barrier): 1.6 us in one step, 1.0 us so.
 */
#define POOL_GROUP 4u

/* Each worker's own lines. The counts are those of the group that begins with it. */
struct pool_slot {
    /* How much of its part is taken: epoch of the operation << 32 | pieces taken. */
    _Alignas(GATE_ALIGN) _Atomic uint64_t cursor;
    struct gate_count node_here, all_here, done;
};

struct pool_gate {
    struct gate_word start;      /* opened by the caller of pools_run, phase: number of the run */
    struct gate_count done;      /* workers, or groups of them, that have finished it */
    struct gate_count node_here; /* barrier of the node */
    struct gate_word node_go;
    struct gate_count all_here; /* barrier of all nodes: this node's arrivals and its exit */
    struct gate_word all_go;
    struct pool_slot slot[]; /* one per worker */
};

#endif
