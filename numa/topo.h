/* What machine this is and what part of it may be used: packages, NUMA nodes, cores, processing
 * units (PUs), from hwloc (this machine, an XML file, or a synthetic string), cut to the allowed set:
 * hwloc's allowed sets, the affinity mask of this process, cgroup v1/v2 cpusets, the cgroup CPU
 * quota and memory limit.
 *
 * If the topology is not this machine, binding calls elsewhere in numa/ become recorded no-ops, so
 * that an eight-node plan can be run on a laptop.
 */
#ifndef NUMOE_NUMA_TOPO_H
#define NUMOE_NUMA_TOPO_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

#define TOPO_MAX_NODE 64

struct topo_node {
    unsigned os_index;         /* the kernel's node number */
    unsigned package;          /* package index; nodes without CPUs: of their locality */
    unsigned n_core;           /* allowed cores (at least one allowed PU each) */
    unsigned *pu;              /* [n_core] one allowed PU (kernel number) per core, in core order */
    uint64_t memory_bytes;     /* total */
    uint64_t available_bytes;  /* free + reclaimable now; 0 if not this machine */
    uint64_t huge_2m_free, huge_1g_free; /* pages */
    double read_bps;           /* bytes/second from the platform's memory attributes; 0 unknown */
};

struct topo {
    bool is_this_machine;
    char *description;          /* "AMD EPYC, 1 package, 1 NUMA node, 2 cores, 23.4 GiB" */
    unsigned n_package;
    /* Nodes that get a pool: allowed CPUs and (nearest) allowed memory, by os_index. */
    unsigned n_node;
    struct topo_node *node;
    /* Nodes with allowed memory but no allowed CPUs (CXL, HBM, or excluded cores). */
    unsigned n_memory_node;
    struct topo_node *memory_node;
    unsigned n_core;            /* over node[] */
    double cpu_quota;           /* CPUs of cgroup quota; 0: none */
    uint64_t memory_limit_bytes; /* smallest cgroup limit less what is used already; UINT64_MAX: none */
    /* distance[i * n_node + j], 10 = local; NULL unknown */
    unsigned *distance;
};

/* spec NULL: this machine; a path ending in .xml; else an hwloc synthetic string. The environment
 * variables of hwloc (HWLOC_XMLFILE, HWLOC_SYNTHETIC) apply when spec is NULL. */
numoe_status topo_load(const char *spec, struct topo **out, numoe_error *err);
void topo_free(struct topo *topo);

#endif
