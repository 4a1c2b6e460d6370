/* What the workers of one node share, in memory of that node: used by pool.c and share.c. Zeroed
 * pages are a valid beginning, so the first toucher is a worker of the node. */
#ifndef NUMOE_NUMA_POOL_GATE_H
#define NUMOE_NUMA_POOL_GATE_H

#include <stdatomic.h>
#include <stdint.h>

#include "numa/gate.h"

/* How much of one worker's part is taken: epoch of the operation << 32 | pieces taken. */
struct share_cursor {
    _Alignas(GATE_ALIGN) _Atomic uint64_t epoch_next;
};

struct pool_gate {
    struct gate_word start;      /* opened by the caller of pools_run, phase: number of the run */
    struct gate_count done;      /* workers that have finished it */
    struct gate_count node_here; /* barrier of the node */
    struct gate_word node_go;
    struct gate_count all_here; /* barrier of all nodes: this node's arrivals and its exit */
    struct gate_word all_go;
    struct share_cursor cursor[]; /* one per worker */
};

#endif
