/* What machine this is and what part of it may be used: packages, NUMA nodes, cores, processing
 * units (PUs), from hwloc (this machine, an XML file, or a synthetic string), cut to the allowed
 * set: hwloc's allowed sets, the affinity mask of the calling thread, cgroup v1/v2 cpusets, the
 * cgroup CPU quota and memory limit. Load it before threads are pinned.
 *
 * If the topology is not this machine, binding calls elsewhere in numa/ become recorded no-ops, so
 * that an eight-node plan can be run on a laptop.
 */
#ifndef NUMOE_NUMA_TOPO_H
#define NUMOE_NUMA_TOPO_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"
#include "numa/world.h"

#define TOPO_MAX_NODE 64
#define TOPO_HUGE_2M  (UINT64_C(1) << 21)
#define TOPO_HUGE_1G  (UINT64_C(1) << 30)

struct topo_node {
    unsigned os_index;        /* the kernel's node number */
    unsigned package;         /* package index; nodes without CPUs: of their locality */
    unsigned n_core;          /* allowed cores (at least one allowed PU each) */
    unsigned n_pu;            /* allowed PUs, n_core or more */
    unsigned *pu;             /* [n_pu] kernel numbers: first one per core, in core order with the
                                 fastest kind of core first; behind them the cores' other PUs */
    uint64_t memory_bytes;    /* total */
    uint64_t available_bytes; /* room_available_bytes() when loaded */
    uint64_t huge_2m_free, huge_1g_free; /* pages; 0 if not this machine */
    uint64_t llc_bytes;                  /* last-level caches of its cores, together; 0 unknown */
    double read_bps;   /* bytes/second from the platform's memory attributes; 0 unknown */
    double latency_ns; /* likewise */
};

/* What arenas have taken so far; the only part of a topology that changes. */
struct topo_ledger {
    _Atomic uint64_t taken_bytes[TOPO_MAX_NODE]; /* index into topo.node */
    atomic_uint told;                            /* bits of TOPO_TOLD_*: said once */
};
enum {
    TOPO_TOLD_BIND = 1u << 0,
    TOPO_TOLD_PIN = 1u << 1,
    TOPO_TOLD_HUGE = 1u << 2,
    TOPO_TOLD_CHECK = 1u << 3,
};

struct topo {
    bool is_this_machine;
    char *description;  /* of the allowed part: "AMD EPYC, 1 package, 1 NUMA node, 2 cores,
                           23.4 GiB" */
    unsigned n_package; /* that can be seen; package < n_package */
    /* Nodes that get a pool: allowed CPUs and (nearest) allowed memory, by os_index. */
    unsigned n_node;
    struct topo_node *node;
    /* Nodes with allowed memory but no allowed CPUs (CXL, HBM, or excluded cores). */
    unsigned n_memory_node;
    struct topo_node *memory_node;
    unsigned n_core;        /* over node[] */
    unsigned n_far_core;    /* of them without local memory: they work on the nearest node's */
    unsigned n_excluded_pu; /* PUs of the machine that affinity mask or cgroup forbid */
    unsigned n_runnable;    /* CPUs that threads of this process can really run on at a time,
                               whatever the topology says: affinity mask and quota */
    double cpu_quota;       /* CPUs of cgroup quota; 0: none */
    uint64_t
        memory_limit_bytes; /* smallest cgroup limit less what is used already; UINT64_MAX: none */
    uint64_t host_room_bytes; /* memory this process can really take, whatever the topology says */
    const char *host_room_source; /* who limits it, as in "... is 3 GiB": a static text */
    /* Of that, what setrlimit leaves of address space or data; UINT64_MAX: not limited. Reserved
     * huge pages count there, too. */
    uint64_t process_room_bytes;
    const char *process_room_source; /* a static text; NULL where nothing is limited */
    bool memory_may_grow;     /* a guest whose memory is plugged in as it is used */
    /* distance[i * n_node + j], 10 = local; NULL unknown */
    unsigned *distance;
    /* Set by whoever knows, before memory is taken: which pages large regions get where NUMOE_PAGES and
     * the kernel leave it open. Otherwise a probe says. */
    bool pages_are_known, small_pages_are_faster;
    struct world *world;
    struct topo_ledger *ledger;
};

/* spec NULL: this machine; a path ending in .xml; else an hwloc synthetic string. The environment
 * variables of hwloc (HWLOC_XMLFILE, HWLOC_SYNTHETIC) apply when spec is NULL. NUMOE_E_INPUT for a
 * string that hwloc does not understand, NUMOE_E_FILE_* for an XML file that cannot be used,
 * NUMOE_E_SUPPORT where nothing is allowed. */
numoe_status topo_load(const char *spec, struct topo **out, numoe_error *err);
void topo_free(struct topo *topo);

/* Leaves only the nodes in keep (bits) among those that get a pool. Before anything is taken from
 * them. */
void topo_keep_nodes(struct topo *topo, uint64_t keep);

/* Leaves the part of process `share` of n_share, which may all use the same of this machine and take
 * no more than their parts: whole nodes where there are as many, else cores of a node; with fewer
 * cores than processes, some have the same one. Memory is not divided. Before anything is taken.
 * NUMOE_E_INPUT: there is no such share. */
numoe_status topo_keep_share(struct topo *topo, unsigned share, unsigned n_share, numoe_error *err);

/* For tests: a spec with the limits of a made-up process. root stands before /proc and /sys: its
 * /proc/self/status (Cpus_allowed_list, Mems_allowed_list), /proc/self/cgroup, control groups and
 * node files count as those of the machine that spec describes, but nothing is bound. */
numoe_status topo_load_below(const char *root, const char *spec, struct topo **out,
                             numoe_error *err);

#endif
