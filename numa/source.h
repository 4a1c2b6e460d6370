/* hwloc's tree of a machine. */
#ifndef NUMOE_NUMA_SOURCE_H
#define NUMOE_NUMA_SOURCE_H

#include <hwloc.h>
#include <stdbool.h>

#include "base/status.h"

/* spec as for topo_load(). hwloc leaves out what control groups forbid; with_forbidden keeps it in
 * the tree, outside of the allowed sets. Release with hwloc_topology_destroy(). */
numoe_status source_open(const char *spec, bool with_forbidden, hwloc_topology_t *out,
                         numoe_error *err);

#endif
