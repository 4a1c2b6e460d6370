/* A part of a machine for each of several processes that may all use the same of it. */
#include <stdio.h>

#include "base/mem.h"
#include "numa/topo.h"

/* Share of n_share takes cores [lo, hi) of n: of each, where there are fewer. */
static void part(unsigned n, unsigned share, unsigned n_share, unsigned *lo, unsigned *hi)
{
    *lo = (unsigned)((uint64_t)n * share / n_share);
    *hi = MAX((unsigned)((uint64_t)n * (share + 1) / n_share), *lo + 1);
}

/* PUs come in turns, the first of each core, then the second: with as many for all, a core keeps
 * its own. */
static void keep_cores(struct topo *topo, struct topo_node *node, unsigned lo, unsigned hi)
{
    const unsigned n_core = node->n_core, n_kept = hi - lo;
    const unsigned n_turn = node->n_pu % n_core == 0 ? node->n_pu / n_core : 1;
    for (unsigned turn = 0; turn < n_turn; turn++) {
        for (unsigned ic = 0; ic < n_kept; ic++) {
            node->pu[turn * n_kept + ic] = node->pu[turn * n_core + lo + ic];
        }
    }
    node->n_core = n_kept;
    node->n_pu = n_kept * n_turn;
    topo->n_core -= n_core - n_kept;
}

static numoe_status describe(struct topo *topo, unsigned share, unsigned n_share, numoe_error *err)
{
    static const char form[] = "%s; part %u of %u: %u node%s, %u core%s";
    const char *nodes = topo->n_node == 1 ? "" : "s", *cores = topo->n_core == 1 ? "" : "s";
    char *text = NULL;
    const int n = snprintf(NULL, 0, form, topo->description, share + 1, n_share, topo->n_node,
                           nodes, topo->n_core, cores);
    FORWARD_IF(mem_new(&text, (size_t)n + 1, 1, "description", err));
    snprintf(text, (size_t)n + 1, form, topo->description, share + 1, n_share, topo->n_node, nodes,
             topo->n_core, cores);
    mem_free(topo->description);
    topo->description = text;
    return NUMOE_OK;
}

numoe_status topo_keep_share(struct topo *topo, unsigned share, unsigned n_share, numoe_error *err)
{
    unsigned lo, hi;
    if (share >= n_share) {
        return status_fail(err, NUMOE_E_INPUT, "part %u of a machine for %u processes", share,
                           n_share);
    }
    part(topo->n_node, share, n_share, &lo, &hi);
    const unsigned in = lo, n_node = topo->n_node;
    uint64_t keep = 0;
    for (; lo < hi; lo++) {
        keep |= UINT64_C(1) << lo;
    }
    topo_keep_nodes(topo, keep);
    if (n_node < n_share) { /* several on this node: shares [first, end) */
        const unsigned first = (in * n_share + n_node - 1) / n_node;
        const unsigned end = ((in + 1) * n_share + n_node - 1) / n_node;
        part(topo->node[0].n_core, share - first, end - first, &lo, &hi);
        keep_cores(topo, &topo->node[0], lo, hi);
    }
    topo->cpu_quota /= n_share;
    topo->n_runnable = MAX(topo->n_runnable / n_share, 1u);
    return describe(topo, share, n_share, err);
}
