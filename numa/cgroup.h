/* What the control groups of this process allow: CPU quota, memory, CPUs and memory nodes, over the
 * whole path from its own group to the root, for version 1, version 2 and mixed hierarchies.
 */
#ifndef NUMOE_NUMA_CGROUP_H
#define NUMOE_NUMA_CGROUP_H

#include <stdint.h>

struct cgroup_limits {
    double cpu_quota;      /* smallest on the path, in CPUs; 0: none */
    uint64_t memory_bytes; /* smallest (limit - used + file cache) on the path; UINT64_MAX: none */
    char *cpus, *mems;     /* lists as "0-3,8"; NULL: no cpuset group */
};

/* Reads below root ("" for the real files); what cannot be read limits nothing. */
void cgroup_read(const char *root, struct cgroup_limits *limits);
void cgroup_fini(struct cgroup_limits *limits);

#endif
