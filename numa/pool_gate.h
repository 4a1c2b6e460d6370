/* What the workers of one node share, in memory of that node: used by pool.c and share.c. Zeroed
 * pages are a valid beginning, so the first toucher is a worker of the node. */
#ifndef NUMOE_NUMA_POOL_GATE_H
#define NUMOE_NUMA_POOL_GATE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "numa/gate.h"

/* Arrivals are counted in two steps where a node has more workers than this: by groups, then over
 * the groups. Measured with 32 workers in two pools (bench/barrier): 1.6 us in one step, 1.0 us so.
 */
#define POOL_GROUP 4u

struct pool_group {
    struct gate_count node_here, all_here, done;
};

/* How much of one worker's part is taken: epoch of the operation << 32 | pieces taken. */
struct share_cursor {
    _Alignas(GATE_ALIGN) _Atomic uint64_t epoch_next;
};

struct pool_gate {
    struct gate_word start;      /* opened by the caller of pools_run, phase: number of the run */
    struct gate_count done;      /* workers, or groups of them, that have finished it */
    struct gate_count node_here; /* barrier of the node */
    struct gate_word node_go;
    struct gate_count all_here; /* barrier of all nodes: this node's arrivals and its exit */
    struct gate_word all_go;
    /* One per worker, then a pool_group for each POOL_GROUP of them. */
    struct share_cursor cursor[];
};

/* What the nodes share. */
struct pool_meet {
    struct gate_count here; /* nodes at the barrier of all */
    struct gate_count done; /* nodes that have finished the run */
    struct gate_word over;  /* opened by the last of them */
};

static inline struct pool_group *pool_gate_group(struct pool_gate *gate, uint32_t iw, uint32_t nw)
{
    return (struct pool_group *)&gate->cursor[nw] + iw / POOL_GROUP;
}

static inline size_t pool_gate_bytes(uint32_t nw)
{
    return sizeof(struct pool_gate) + nw * sizeof(struct share_cursor) +
           (nw + POOL_GROUP - 1) / POOL_GROUP * sizeof(struct pool_group);
}

#endif
