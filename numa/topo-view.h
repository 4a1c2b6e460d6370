/* A machine as a person would draw it: every node and core that can be seen, and what each CPU is
 * used for, or who forbids it. struct topo has only what is used; reports need the rest too.
 */
#ifndef NUMOE_NUMA_TOPO_VIEW_H
#define NUMOE_NUMA_TOPO_VIEW_H

#include "base/mem.h"
#include "numa/topo.h"

enum view_use {
    VIEW_WORKER,  /* a worker runs on it */
    VIEW_QUOTA,   /* first of a core that gets no worker, since the CPU quota allows fewer */
    VIEW_SIBLING, /* another hardware thread of a core that can be used */
    VIEW_MASK,    /* not in the affinity mask */
    VIEW_CPUSET,  /* not in the control group's cpuset, or not allowed in a topology's XML file */
    VIEW_OFFLINE, /* known by number only */
    VIEW_N_USE
};

struct view_pu {
    unsigned os_index;
    enum view_use use;
    unsigned worker; /* over all nodes; only VIEW_WORKER */
};

struct view_core {
    unsigned package, in; /* its package; index into view.node of the memory it works on */
    unsigned order;       /* as hwloc counts */
    unsigned pu0, n_pu;   /* range in view.pu */
};

enum view_node_use {
    VIEW_NODE_POOL,      /* has workers */
    VIEW_NODE_IDLE,      /* could have, but the quota allows fewer workers than nodes */
    VIEW_NODE_MEMORY,    /* has no CPUs of its own */
    VIEW_NODE_CUT,       /* none of its CPUs is allowed */
    VIEW_NODE_FORBIDDEN, /* its memory is not allowed */
    VIEW_NODE_EMPTY,     /* has no memory */
};

#define VIEW_NO_PACKAGE UINT32_MAX

struct view_node {
    unsigned os_index, package; /* VIEW_NO_PACKAGE: of the whole machine, or of several packages */
    enum view_node_use use;
    const struct topo_node *topo; /* NULL where its memory cannot be used */
    unsigned n_worker;
    uint64_t memory_bytes;
};

/* The cores of one package that work on one node; without cores, the node alone. */
struct view_box {
    unsigned package, in;
    unsigned core0, n_core; /* range in view.core */
};

struct view {
    struct topo *topo;
    const char *spec; /* NULL: this machine, or what hwloc's environment says */
    unsigned n_package, n_worker;
    struct view_pu *pu; /* core by core; behind them the offline ones, which have no core */
    unsigned n_pu;
    struct view_core *core; /* by package, node, order */
    unsigned n_core;
    struct view_node *node; /* all that can be seen, by os_index */
    unsigned n_node;
    struct view_box *box; /* by package and node */
    unsigned n_box;
};

/* root and spec as for topo_load_below(); spec must outlive the view. */
numoe_status view_new(const char *root, const char *spec, struct view **out, numoe_error *err);
void view_free(struct view *view);

/* CPUs of that use as taskset understands it: "0-3,8" or, for each second one, "0-30:2"; of one
 * node (index) or of all (-1). NULL where there are none. Release with mem_free(). */
char *view_list(const struct view *view, enum view_use use, int in);

/* How many cores of a box may be used, and how many workers they have. */
unsigned view_box_workers(const struct view *view, const struct view_box *box, unsigned *n_usable);

const char *view_use_name(enum view_use use); /* one word, for machines */
/* Why a CPU or node is not used, in words; "" for workers and nodes with workers. */
const char *view_use_reason(const struct view *view, enum view_use use);
const char *view_node_use_name(enum view_node_use use);
const char *view_node_reason(enum view_node_use use);

/* Where the description comes from, in words. */
numoe_status view_source(const struct view *view, struct strbuf *text, numoe_error *err);
/* "96.0 GiB" */
const char *view_bytes(uint64_t bytes, char text[16]);

#endif
