/* What does it cost that workers meet and divide work? Times the barrier of a node, the barrier of
 * all nodes and share_next, with this machine's cores dealt to any number of artificial nodes, so
 * that the two-level barrier can be seen on a machine with one. Prints median and 99th percentile
 * in nanoseconds as worker 0 sees them, one line a measurement.
 *
 *   bench/barrier [-w WORKERS] [-n NODES] [-r ROUNDS]
 */
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/median.h"
#include "base/mem.h"
#include "numa/pool.h"

#define MAX_ROUND 1000000u

struct bench {
    unsigned n_round;
    uint32_t n_item, grain;
    void (*once)(struct worker *w, const struct bench *b);
    uint64_t *ns; /* [n_round], of worker 0 */
};

static void meet_node(struct worker *w, const struct bench *b)
{
    (void)b;
    worker_node_barrier(w);
}

static void meet_all(struct worker *w, const struct bench *b)
{
    (void)b;
    worker_all_barrier(w);
}

static void share_items(struct worker *w, const struct bench *b)
{
    struct share share;
    uint32_t lo, hi;
    share_begin(&share, w, b->n_item, b->grain);
    while (share_next(&share, &lo, &hi)) {
    }
}

static void measure(struct worker *w, void *arg)
{
    struct bench *b = arg;
    bool shares = b->once == share_items;
    for (unsigned i = 0; i < b->n_round; i++) {
        if (shares) {
            worker_all_barrier(w); /* begin together, or the first takes all */
        }
        uint64_t begin = w->ig == 0 ? clock_ns() : 0;
        b->once(w, b);
        if (w->ig == 0) {
            b->ns[i] = clock_ns() - begin;
        }
    }
}

static void report(struct pools *pools, struct bench *b, const char *what)
{
    pools_run(pools, measure, b); /* once to warm up */
    pools_run(pools, measure, b);
    qsort(b->ns, b->n_round, sizeof(*b->ns), median_compare_u64);
    printf("%-28s %8llu %8llu\n", what, (unsigned long long)b->ns[b->n_round / 2],
           (unsigned long long)b->ns[(uint64_t)b->n_round * 99 / 100]);
}

/* Deals the cores of the machine to n_node nodes; memory stays where it is. */
static numoe_status split_nodes(struct topo *topo, unsigned n_node, numoe_error *err)
{
    struct topo_node *split;
    unsigned *core, n = 0;
    if (n_node > topo->n_core || n_node > TOPO_MAX_NODE) {
        return status_fail(err, NUMOE_E_INPUT, "%u nodes from %u cores", n_node, topo->n_core);
    }
    FORWARD_IF(mem_new(&core, topo->n_core, sizeof(*core), "list of cores", err));
    FORWARD_IF(mem_new(&split, n_node, sizeof(*split), "list of nodes", err));
    for (unsigned in = 0; in < topo->n_node; in++) {
        for (unsigned ic = 0; ic < topo->node[in].n_core; ic++) {
            core[n++] = topo->node[in].pu[ic];
        }
        mem_free(topo->node[in].pu);
    }
    for (unsigned in = 0; in < n_node; in++) {
        uint32_t lo, hi;
        share_static(n, in, n_node, &lo, &hi);
        split[in] = topo->node[(uint64_t)in * topo->n_node / n_node];
        split[in].n_core = split[in].n_pu = hi - lo;
        FORWARD_IF(mem_new(&split[in].pu, hi - lo, sizeof(unsigned), "list of cores", err));
        for (uint32_t i = lo; i < hi; i++) {
            split[in].pu[i - lo] = core[i];
        }
    }
    mem_free(core);
    mem_free(topo->node);
    mem_free(topo->distance);
    topo->distance = NULL;
    topo->node = split;
    topo->n_node = n_node;
    return NUMOE_OK;
}

static void run_all(struct pools *pools, struct bench *b)
{
    static const uint32_t pieces[] = {1, 4, 16}; /* a worker */
    b->once = meet_node;
    report(pools, b, "node barrier");
    b->once = meet_all;
    report(pools, b, "all barrier");
    b->once = share_items;
    for (size_t i = 0; i < ARRAY_LEN(pieces); i++) {
        char what[64];
        b->grain = 8;
        b->n_item = pieces[i] * b->grain * pools_node_workers(pools, 0);
        snprintf(what, sizeof(what), "share, %u pieces a worker", pieces[i]);
        report(pools, b, what);
    }
}

static int fail(const numoe_error *err)
{
    fprintf(stderr, "barrier: %s\n", err->text);
    return 2;
}

int main(int argc, char **argv)
{
    unsigned n_worker = 0, n_node = 0;
    struct bench b = {.n_round = 20000};
    struct topo *topo;
    struct pools *pools;
    numoe_error err;
    for (int c; (c = getopt(argc, argv, "w:n:r:")) != -1;) {
        unsigned value = c == '?' ? 0 : (unsigned)strtoul(optarg, NULL, 10);
        if (value == 0 || (c == 'r' && value > MAX_ROUND)) {
            fprintf(stderr, "usage: barrier [-w WORKERS] [-n NODES] [-r ROUNDS]\n");
            return 2;
        }
        *(c == 'w' ? &n_worker : c == 'n' ? &n_node : &b.n_round) = value;
    }
    if (topo_load(NULL, &topo, &err) != NUMOE_OK ||
        (n_node && split_nodes(topo, n_node, &err) != NUMOE_OK) ||
        pools_new(topo, n_worker, &pools, &err) != NUMOE_OK ||
        mem_new(&b.ns, b.n_round, sizeof(*b.ns), "times", &err) != NUMOE_OK) {
        return fail(&err);
    }
    printf("%s: %u workers, %u nodes, %u rounds\n%-28s %8s %8s\n", topo->description,
           pools_n_worker(pools), pools_n_node(pools), b.n_round, "ns", "median", "p99");
    run_all(pools, &b);
    mem_free(b.ns);
    pools_free(pools);
    topo_free(topo);
    return 0;
}
