/* The part of a machine that this process may use, as hwloc bitmaps. */
#ifndef NUMOE_NUMA_ALLOWED_H
#define NUMOE_NUMA_ALLOWED_H

#include <hwloc.h>

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

/* CPUs in the calling thread's affinity mask; 0 where it cannot be read. */
unsigned allowed_count_affinity(void);

#endif
