/* Worker pools: one pool of pinned threads per NUMA node, all running the same program (SPMD).
 *
 * pools_run() starts fn on every worker of every node and returns when all have finished. Inside,
 * workers meet at barriers and divide work with share_next(). Between runs workers spin briefly,
 * then park on a futex; a parked pool uses no CPU. With more workers than CPUs, workers share
 * threads: one that waits at a barrier makes room for the next, so nothing collapses. Therefore
 * workers wait for each other only at barriers, never in loops of their own.
 *
 * Barriers are hierarchical: within the node on node-local cache lines, then one line per node.
 *
 * pools_run_each() gives every node an argument of its own: its workers then see themselves as a
 * machine of one node, and the nodes do not wait for each other before the end.
 */
#ifndef NUMOE_NUMA_POOL_H
#define NUMOE_NUMA_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/probe.h"
#include "base/status.h"
#include "numa/topo.h"

#define POOL_MAX_WORKER 4096

struct pools;
struct pool_gate; /* one node's barriers and share cursors */

struct worker {
    unsigned in, n_node; /* its node (index into topo.node) of how many; alone: 0 of 1 */
    unsigned iw, nw;     /* its index within the node, of how many */
    unsigned ig, ng;     /* its index over all nodes, of how many */
    struct pools *pools;
    struct pool_gate *gate;
    struct strands *strands; /* private to barriers: NULL with a thread of its own */
    uint32_t node_phase, all_phase;
    uint64_t n_gate;      /* starts and barriers of all that it has passed */
    uint32_t share_epoch; /* private to share_* */
    struct probe_track *probe; /* set by the program that runs; NULL: nothing is measured */
};

/* n_worker 0: one per allowed core, and never more than the CPU quota. Otherwise that many, dealt
 * to nodes in proportion to their cores (every node keeps at least one; fewer workers than nodes:
 * the first nodes only). More workers than cores is allowed: cores are shared. Workers block all
 * signals, so that the host program's handlers run on its own threads. topo must outlive the pools.
 * NUMOE_POOL_THREADS in the environment: at most that many threads (1: all workers take turns on
 * one; 4096: one each); otherwise as many as can run at a time. */
numoe_status pools_new(const struct topo *topo, unsigned n_worker, struct pools **out,
                       numoe_error *err);
void pools_free(struct pools *pools);

/* How long a worker waits for the next run, spinning and yielding, before it sleeps (POOL_SLEEP_NS
 * without it), and half as long again at a barrier. Before the first run, once; with more threads than
 * CPUs it is without effect: waiting then takes the CPU from the one that is waited for. */
#define POOL_SLEEP_NS 200000u
void pools_set_sleep(struct pools *pools, uint32_t sleep_ns);

/* How many workers each node would get: nw [topo->n_node]. */
numoe_status pools_deal(const struct topo *topo, unsigned n_worker, unsigned *nw, numoe_error *err);

unsigned pools_n_node(const struct pools *pools);
unsigned pools_n_worker(const struct pools *pools);
unsigned pools_node_workers(const struct pools *pools, unsigned in);

/* Runs fn(worker, arg) on all workers; blocks the caller until all are done (the caller does not
 * work itself). One caller at a time. */
typedef void pool_fn(struct worker *w, void *arg);
void pools_run(struct pools *pools, pool_fn *fn, void *arg);
/* The same for each node alone, with arg[in], [n_node]: to fn, a worker's node is the only one
 * (w->in 0, n_node 1, ig iw), and barriers of all are the node's. A node whose arg is NULL has
 * nothing to do. */
void pools_run_each(struct pools *pools, pool_fn *fn, void *const *arg);

/* Nodes whose workers run a program together: all of pools_run, or one of pools_run_each. What a
 * worker calls node i is node[i]. */
struct pool_team {
    unsigned n_node;
    unsigned node[TOPO_MAX_NODE]; /* index into topo.node */
    unsigned n_worker[TOPO_MAX_NODE];
};
void pools_team(const struct pools *pools, struct pool_team *team);
void pools_team_alone(const struct pools *pools, unsigned in, struct pool_team *team);

/* Whether threads still may run where they were put, a system call a thread; where not, because the
 * cpuset shrank, CPUs went offline, or the kernel forgot (it does when a cpuset is written), puts
 * them on what is left of their node, else of the machine, and says so. Between runs. True where
 * something was done. */
bool pools_repin(struct pools *pools);

/* All workers of the node, of all nodes. What was written before is seen by all after. */
void worker_node_barrier(struct worker *w);
void worker_all_barrier(struct worker *w);

/* Divides items [0, n) of one operation over the workers of w's *node*: every worker of the node
 * calls share_begin with the same n and grain, then share_next until it returns false. Each first
 * gets its own contiguous part in pieces of `grain` (neighbours in memory), then steals from others
 * of the node. At least one barrier (of the node or of all) must lie between two operations that
 * use the results of each other; none is needed between independent ones. */
struct share {
    struct worker *w;
    uint32_t epoch, n, grain;
    uint32_t each, more; /* pieces of every part, and how many parts have one more */
    uint32_t victim;
};
void share_begin(struct share *s, struct worker *w, uint32_t n, uint32_t grain);
bool share_next(struct share *s, uint32_t *lo, uint32_t *hi);

/* A fixed part [lo, hi) of n items for worker i of nw: first parts are larger by at most one. */
static inline void share_static(uint32_t n, unsigned i, unsigned nw, uint32_t *lo, uint32_t *hi)
{
    uint32_t each = n / nw, more = n % nw;
    *lo = each * i + (i < more ? i : more);
    *hi = *lo + each + (i < more ? 1 : 0);
}

#endif
