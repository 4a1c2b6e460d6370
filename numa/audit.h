/* Where pages really are: the kernel's word against the plan. */
#ifndef NUMOE_NUMA_AUDIT_H
#define NUMOE_NUMA_AUDIT_H

#include "numa/arena.h"

struct audit {
    uint64_t n_local, n_remote; /* pages looked at: on the node they should be on, or elsewhere */
    uint64_t n_absent; /* not touched yet; on kernels 6.1 to 6.5 also pages of unbound memory that
                          NUMA balancing is watching at the moment */
    bool is_sampled;   /* only every n-th page of a region was looked at */
    bool is_from_maps; /* page by page was not allowed: counted from numa_maps */
    bool is_unknown;   /* neither was possible; the counts mean nothing */
};

/* Adds the pages of an arena to *sum, which starts zeroed. Any thread; never moves a page. */
void audit_arena(const struct topo *topo, const struct node_arena *arena, struct audit *sum);

/* The same for at most max_page pages, spread evenly, others with each phase; never from numa_maps,
 * whose cost grows with the memory: where page by page is not allowed, it is unknown. */
void audit_sample(const struct topo *topo, const struct node_arena *arena, unsigned max_page,
                  unsigned phase, struct audit *sum);

/* Why pages of an arena may be elsewhere, as far as the system tells: a static text. */
const char *audit_cause(const struct topo *topo, const struct node_arena *arena);

/* Percent of the pages looked at that are local; 100 where none is there yet. */
double audit_percent_local(const struct audit *audit);

#endif
