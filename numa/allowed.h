/* The part of a machine that this process may use, as hwloc bitmaps. */
#ifndef NUMOE_NUMA_ALLOWED_H
#define NUMOE_NUMA_ALLOWED_H

#include <hwloc.h>
#include <stdbool.h>

#include "base/status.h"

struct allowed {
    hwloc_bitmap_t cpus, nodes;
    /* What each source alone would allow, full where it says nothing: to tell who forbids what. */
    hwloc_bitmap_t cpuset_cpus, mask_cpus;
    double cpu_quota;
    uint64_t memory_limit_bytes;
};

/* hwloc's own allowed sets; with `here` also the limits of this process, found below root. Fails
 * with NUMOE_E_SUPPORT and the lists at fault where no CPU is left. */
numoe_status allowed_read(hwloc_topology_t hw, const char *root, bool here, struct allowed *out,
                          numoe_error *err);
void allowed_fini(struct allowed *allowed);

/* Which of pu [n] are online and in the cpuset of this process now: is_there [n]. False where that
 * cannot be read. */
bool allowed_now(const char *root, const unsigned *pu, unsigned n, bool *is_there);
/* Whether a list such as "0-3,8" has i; false for what is not a list. */
bool allowed_list_has(const char *list, unsigned i);

/* CPUs in the calling thread's affinity mask; 0 where it cannot be read. */
unsigned allowed_count_affinity(void);

#endif
