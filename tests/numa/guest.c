/* What can only be seen on a machine with several NUMA nodes: run inside a guest by run-guest, or
 * on such a machine itself. Prints TAP. Arguments say what the machine is:
 *
 *   guest NODES MEMORY-NODES CORES FAR-CORES [limit]
 *
 * as topo_load() should find them; "limit": a control group limits memory to less than the nodes
 * have.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "numa/arena.h"
#include "numa/audit.h"
#include "numa/bandwidth.h"
#include "numa/pool.h"

#define MIB        ((size_t)1 << 20)
#define FILL_BYTES (24 * MIB)
#define MAX_WORKER 64

static unsigned n_test, n_bad;

static void ok(bool good, const char *what, const char *more)
{
    printf("%sok %u - %s%s%s\n", good ? "" : "not ", ++n_test, what, good ? "" : ": ",
           good ? "" : more);
    fflush(stdout);
    n_bad += !good;
}

struct job {
    const struct topo *topo;
    char *memory[TOPO_MAX_NODE];
    unsigned bad_cpu[MAX_WORKER];
};

static bool is_pu_of(const struct topo_node *node, unsigned cpu)
{
    for (unsigned i = 0; i < node->n_pu; i++) {
        if (node->pu[i] == cpu) {
            return true;
        }
    }
    return false;
}

static void fill(struct worker *w, void *arg)
{
    struct job *job = arg;
    uint32_t lo, hi;
    share_static(FILL_BYTES / 4096, w->iw, w->nw, &lo, &hi);
    memset(job->memory[w->in] + (size_t)lo * 4096, 1, (size_t)(hi - lo) * 4096);
    unsigned cpu = 0;
    getcpu(&cpu, NULL);
    job->bad_cpu[w->ig] = !is_pu_of(&job->topo->node[w->in], cpu);
}

/* Arenas of all nodes, filled by their workers, or by this thread, which lives anywhere: every page
 * must be where it belongs. */
static void check_placement(const struct topo *topo, struct pools *pools, bool by_workers,
                            const char *what)
{
    struct node_arena *arena[TOPO_MAX_NODE] = {0};
    struct job job = {.topo = topo};
    struct audit sum = {0};
    numoe_error err = {.text = ""};
    bool good = true;
    for (unsigned in = 0; good && in < topo->n_node; in++) {
        good = node_arena_new(topo, in, what, &arena[in], &err) == NUMOE_OK &&
               node_arena_alloc(arena[in], FILL_BYTES, &job.memory[in], &err) == NUMOE_OK;
    }
    for (unsigned in = 0; good && !by_workers && in < topo->n_node; in++) {
        memset(job.memory[in], 1, FILL_BYTES);
    }
    if (good && by_workers) {
        pools_run(pools, fill, &job);
    }
    for (unsigned in = 0; good && in < topo->n_node; in++) {
        audit_arena(topo, arena[in], &sum);
    }
    if (good) {
        good = !sum.is_unknown && sum.n_remote == 0 && sum.n_absent == 0 &&
               sum.n_local == topo->n_node * (FILL_BYTES / 4096);
        snprintf(err.text, sizeof(err.text), "%zu pages local, %zu remote, %zu absent",
                 (size_t)sum.n_local, (size_t)sum.n_remote, (size_t)sum.n_absent);
    }
    ok(good, what, err.text);
    bool at_home = true;
    for (unsigned ig = 0; ig < pools_n_worker(pools); ig++) {
        at_home = at_home && !job.bad_cpu[ig];
    }
    if (by_workers) {
        ok(at_home, "workers run on the CPUs of their nodes", "another CPU");
    }
    for (unsigned in = 0; in < topo->n_node; in++) {
        node_arena_free(arena[in]);
    }
}

static int refuse_bind(struct world *w, void *addr, size_t bytes, unsigned os_node)
{
    (void)w, (void)addr, (void)bytes, (void)os_node;
    return EPERM;
}

/* A bound node that is full ends the process: what does not fit must be refused before. */
static void check_full(const struct topo *topo, bool is_limited)
{
    numoe_error err = {.text = "it was granted"};
    struct node_arena *arena = NULL;
    char *p = NULL;
    bool good = node_arena_new(topo, topo->n_node - 1, "too much", &arena, &err) == NUMOE_OK;
    uint64_t bytes = MIN(topo->node[topo->n_node - 1].memory_bytes, topo->memory_limit_bytes);
    good = good && node_arena_alloc(arena, bytes, &p, &err) == NUMOE_E_MEMORY;
    ok(good && (strstr(err.text, "control group") != NULL) == is_limited, "a full node is refused",
       err.text);
    /* What is said to be free must really be there: 8 of 10 of it, all touched. */
    uint64_t room = topo_available_bytes(topo, topo->node[topo->n_node - 1].os_index);
    bytes = MIN(room, topo->memory_limit_bytes) / 10 * 8;
    good = node_arena_alloc(arena, bytes, &p, &err) == NUMOE_OK;
    if (good) {
        memset(p, 1, bytes);
    }
    ok(good, "what is free can be used", err.text);
    node_arena_free(arena);
}

/* A node's reserved pages are used, and what they do not suffice for is found out before the first
 * touch: the reservation is the whole machine's, the missing page would be a fatal signal. */
static void check_huge(const struct topo *topo)
{
    const unsigned in = topo->n_node - 1;
    const size_t bytes = topo->node[in].huge_2m_free * (2 * MIB) * 3 / 2;
    struct node_arena *arena[2] = {NULL, NULL};
    struct audit sum = {0};
    numoe_error err = {.text = "other pages"};
    char *p = NULL;
    bool good = node_arena_new(topo, in, "huge", &arena[0], &err) == NUMOE_OK &&
                node_arena_alloc(arena[0], bytes / 3, &p, &err) == NUMOE_OK &&
                node_arena_get_pages(arena[0]) == PAGES_2M;
    if (good) {
        memset(p, 1, bytes / 3);
        audit_arena(topo, arena[0], &sum);
        good = sum.n_remote == 0 && sum.n_local == bytes / 3 / 4096;
    }
    ok(good, "reserved pages of the node are used", err.text);
    node_arena_free(arena[0]);
    good = node_arena_new(topo, in, "huge", &arena[1], &err) == NUMOE_OK &&
           node_arena_alloc(arena[1], bytes, &p, &err) == NUMOE_OK &&
           node_arena_get_pages(arena[1]) < PAGES_2M;
    if (good) {
        memset(p, 1, bytes);
    }
    ok(good, "more than the node has reserved is made of other pages", err.text);
    node_arena_free(arena[1]);
}

static void check_bandwidth(const struct topo *topo, struct pools *pools)
{
    double total = 0, node[TOPO_MAX_NODE] = {0};
    numoe_error err = {.text = "no speed"};
    bool good = bandwidth_read(pools, topo, &total, node, &err) == NUMOE_OK && total > 0;
    for (unsigned in = 0; in < topo->n_node; in++) {
        good = good && node[in] > 0;
    }
    ok(good, "bandwidth is measured", err.text);
}

static void check_machine(const struct topo *topo, char **expected)
{
    char text[128];
    snprintf(text, sizeof(text), "found %u nodes, %u memory nodes, %u cores, %u far", topo->n_node,
             topo->n_memory_node, topo->n_core, topo->n_far_core);
    ok(topo->is_this_machine && topo->n_node == strtoul(expected[0], NULL, 10) &&
           topo->n_memory_node == strtoul(expected[1], NULL, 10) &&
           topo->n_core == strtoul(expected[2], NULL, 10) &&
           topo->n_far_core == strtoul(expected[3], NULL, 10),
       "the machine is seen as it is", text);
    printf("# %s\n", topo->description);
}

/* Some kernels hide unbound pages that the balancer watches from move_pages (see audit.h). */
static void stop_balancing(void)
{
    FILE *f = fopen("/proc/sys/kernel/numa_balancing", "w");
    if (f) {
        fputs("0", f);
        fclose(f);
    }
}

int main(int argc, char **argv)
{
    struct topo *topo;
    struct pools *pools;
    numoe_error err;
    if (argc < 5) {
        fprintf(stderr, "usage: guest NODES MEMORY-NODES CORES FAR-CORES [limit]\n");
        return 2;
    }
    if (topo_load(NULL, &topo, &err) != NUMOE_OK || topo->n_core > MAX_WORKER ||
        pools_new(topo, 0, &pools, &err) != NUMOE_OK) {
        printf("Bail out! %s\n", err.text);
        return 1;
    }
    check_machine(topo, argv + 1);
    check_placement(topo, pools, true, "bound pages are local");
    check_placement(topo, pools, false, "bound pages are local whoever touches them");
    check_bandwidth(topo, pools);
    if (topo->node[topo->n_node - 1].huge_2m_free > 0) {
        check_huge(topo);
    }
    check_full(topo, argc > 5);
    stop_balancing();
    topo->world->bind = refuse_bind;
    check_placement(topo, pools, true, "pages of refused bindings are local by first touch");
    pools_free(pools);
    topo_free(topo);
    printf("1..%u\n", n_test);
    return n_bad > 0;
}
