/* What can only be seen on a machine with several NUMA nodes: run inside a guest by run-guest, or
 * on such a machine itself. Prints TAP. Arguments say what the machine is:
 *
 *   guest NODES MEMORY-NODES CORES FAR-CORES [limit]
 *
 * as topo_load() should find them; "limit": a control group limits memory to less than the nodes
 * have. Or, on a machine of two nodes of two CPUs each, in the control group "test":
 *
 *   guest watch MODEL
 *
 * runs the model while its pages are moved and CPUs and nodes are taken away. Or, on two nodes:
 *
 *   guest balance
 *
 * reads from node 0 what was bound to node 1 while the kernel balances (status 77: it cannot). Or, where
 * cores have two hardware threads:
 *
 *   guest tune
 *
 * has the number of workers chosen by a probe, and starts as many as there are hardware threads.
 *
 * Traps of kernels, hwloc and libnuma that were met on such machines, and what tests them here
 * (guest.c, check-numa) or on made-up machines (tests/unit):
 *
 *   hwloc does not see affinity masks            topo: affinity_mask_is_obeyed, this_machine
 *   configured counts tell nothing of cpusets    check-numa cpuset; topo: v2_cpuset_cuts_...
 *   running on a node outside the cpuset: EINVAL check-numa watch (cpuset); pool: refused_pinning
 *   mbind: EINVAL for three causes               arena: refused_binding_..., check-numa memory-less
 *   libnuma puts memory elsewhere, silently      arena: pages_are_bound_to_the_node;
 *                                                check-layers.sh: its functions are not used
 *   a full bound node is a kill                  check_full; check-numa place (full)
 *   hugetlb reservations are not per node        check_huge; arena: a_pool_that_turns_out_short
 *   populating before binding places pages       check_placement by this thread
 *   first touch is by 2 MiB under THP            arena: regions_are_whole_huge_pages;
 *                                                check_placement after refused bindings
 *   interleaving by 2 MiB                        check-numa place (interleave): panels, not pages
 *   policies do not hold for file pages          check-numa disk: experts in the file are counted
 *   page cache follows the CPU that faults       apart; weights are read into bound memory
 *   own pages move without privilege, others     watch: moved pages are noticed
 *   untouched pages have no node: no error       audit: touched_pages_are_local_and_others_absent
 *   balancing moves unbound memory               check-numa balance; doctor: balancing; audit_cause
 *   mlock limits are small                       doctor: locked memory; nothing is locked
 *   sched_getaffinity with a small mask: EINVAL  topo: this_machine (masks grow)
 *   over memory.max: killed                      check_full limit; check-numa disk; cli/cgroup.sh
 *   firmware puts a node over two sockets        check-numa uneven, crossed; topo: xml_machines; cli/topo.sh
 *   CPUs offline                                 check-numa offline; watch
 *   nodes with CPUs and no memory                check-numa memory-less; topo: cpus_without_memory
 *   nodes with memory and no CPUs                check-numa memory-only
 *   containers refuse mbind and move_pages       refuse_bind, refuse_where below; audit:
 *                                                numa_maps_stand_in
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <glob.h>
#include <numaif.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "dense/kv-chunk.h"
#include "numa/arena.h"
#include "numa/audit.h"
#include "numa/bandwidth.h"
#include "numa/pool.h"
#include "numa/room.h"
#include "runtime/tune.h"

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

/* The cache of a sequence that one node evaluates is in that node's memory, whatever nodes had it
 * before and whether or not pages can be bound. */
static void check_cache(const struct topo *topo, struct pools *pools, const char *what)
{
    const struct model model = {
        .hp = {.attn = ATTN_GQA, .n_layer = 8, .n_head_kv = 4, .n_qk = 64, .n_v = 64}};
    const unsigned n_chunk = 2 * topo->n_node;
    struct kv_cache *kv = NULL;
    struct audit sum = {0};
    numoe_error err = {.text = ""};
    bool good = kv_new(&model, topo, pools, true, n_chunk * KV_CHUNK, &kv, &err) == NUMOE_OK &&
                kv_reserve(kv, n_chunk * KV_CHUNK, &err) == NUMOE_OK;
    for (unsigned i = 0; good && i < n_chunk; i++) {
        memset(kv->chunk[i].data, (int)i + 1, kv->shape.chunk_bytes);
    }
    /* Twice: so each chunk is a copy. */
    good = good && kv_move(kv, 0, &err) == NUMOE_OK &&
           kv_move(kv, (int)topo->n_node - 1, &err) == NUMOE_OK;
    for (unsigned i = 0; good && i < n_chunk; i++) {
        const uint8_t *data = kv->chunk[i].data;
        audit_arena(topo, kv->chunk[i].block->arena, &sum);
        good = data[0] == i + 1 && data[kv->shape.chunk_bytes - 1] == i + 1;
    }
    if (good) {
        good = !sum.is_unknown && sum.n_remote == 0 && sum.n_absent == 0 && sum.n_local > 0;
        snprintf(err.text, sizeof(err.text), "%zu pages local, %zu remote, %zu absent",
                 (size_t)sum.n_local, (size_t)sum.n_remote, (size_t)sum.n_absent);
    }
    ok(good, what, err.text);
    kv_free(kv);
}

/* ------------------------------------------------------------------ what may be refused */

static int refuse_bind(struct world *w, void *addr, size_t bytes, unsigned os_node)
{
    (void)w, (void)addr, (void)bytes, (void)os_node;
    return EPERM;
}

/* Containers forbid move_pages; the summary of each mapping is always there. */
static int refuse_where(struct world *w, void **page, unsigned n_page, int *node)
{
    (void)w, (void)page, (void)n_page, (void)node;
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
    /* What may be taken must really be there: nearly all of it, all touched. */
    uint64_t room = room_available_bytes(topo, topo->node[topo->n_node - 1].os_index);
    bytes = room_less_reserve(MIN(room, topo->memory_limit_bytes)) - 2 * MIB;
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

/* ------------------------------------------------------------------ while the kernel balances */

#define BALANCE_LEAST_S 4.0  /* the kernel begins to look after a second of a thread's work */
#define BALANCE_MOST_S  18.0 /* and is slow about it where CPUs are emulated */

static bool run_on(const struct topo_node *node)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (unsigned i = 0; i < node->n_pu; i++) {
        CPU_SET(node->pu[i], &set);
    }
    return sched_setaffinity(0, sizeof(set), &set) == 0;
}

static unsigned long long pages_migrated(void)
{
    char line[128];
    unsigned long long n = 0;
    FILE *f = fopen("/proc/vmstat", "r");
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        sscanf(line, "numa_pages_migrated %llu", &n);
    }
    if (f != NULL) {
        fclose(f);
    }
    return n;
}

/* Reads both over and over until as many pages have moved as unbound has, and for a while. Returns
 * how many have moved. */
static unsigned long long read_from_afar(const volatile char *bound, const volatile char *unbound)
{
    const unsigned long long before = pages_migrated();
    const double begin = clock_seconds();
    unsigned long long moved = 0;
    while (clock_seconds() - begin < BALANCE_LEAST_S ||
           (moved < FILL_BYTES / 4096 && clock_seconds() - begin < BALANCE_MOST_S)) {
        for (size_t i = 0; i < FILL_BYTES; i += 64) {
            (void)bound[i];
            (void)unbound[i];
        }
        moved = pages_migrated() - before;
    }
    return moved;
}

/* Memory that is not bound goes to the thread that reads it: so the kernel does balance here, and
 * what stays has stayed because it is bound. */
static void check_balance(const struct topo *topo)
{
    struct node_arena *arena = NULL;
    struct audit sum = {0};
    numoe_error err = {.text = "no memory"};
    char *bound = NULL, *unbound = NULL, text[128];
    bool good = run_on(&topo->node[1]) && /* so both begin there */
                posix_memalign((void **)&unbound, 2 * MIB, FILL_BYTES) == 0 &&
                node_arena_new(topo, 1, "balance", &arena, &err) == NUMOE_OK &&
                node_arena_alloc(arena, FILL_BYTES, &bound, &err) == NUMOE_OK;
    ok(good, "memory on node 1", err.text);
    if (good) {
        memset(bound, 1, FILL_BYTES);
        memset(unbound, 1, FILL_BYTES);
        good = run_on(&topo->node[0]);
        const unsigned long long moved = read_from_afar(bound, unbound);
        snprintf(text, sizeof(text), "%llu pages were moved", moved);
        ok(good && moved >= FILL_BYTES / 4096 / 2, "the kernel moves what is not bound", text);
        printf("# %s\n", text);
        audit_arena(topo, arena, &sum);
        snprintf(text, sizeof(text), "%zu pages local, %zu remote, %zu absent", (size_t)sum.n_local,
                 (size_t)sum.n_remote, (size_t)sum.n_absent);
        ok(!sum.is_unknown && sum.n_remote == 0 && sum.n_absent == 0 &&
               sum.n_local == FILL_BYTES / 4096,
           "bound pages stay on node 1", text);
    }
    node_arena_free(arena);
    free(unbound);
}

static bool put(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    bool good = f != NULL && fputs(text, f) >= 0;
    return (f == NULL || fclose(f) == 0) && good;
}

static int balance(void)
{
    struct topo *topo;
    numoe_error err;
    if (!put("/proc/sys/kernel/numa_balancing", "1")) {
        printf("this kernel does not balance (CONFIG_NUMA_BALANCING)\n");
        return 77;
    }
    if (topo_load(NULL, &topo, &err) != NUMOE_OK || topo->n_node != 2) {
        printf("Bail out! a machine of two nodes is needed\n");
        return 1;
    }
    check_balance(topo);
    topo_free(topo);
    printf("1..%u\n", n_test);
    return n_bad > 0;
}

/* ------------------------------------------------------------------ while a model runs */

static char logged[4096];

static void keep_log(void *arg, numoe_log_level level, const char *line)
{
    (void)arg, (void)level;
    strncat(logged, line, sizeof(logged) - strlen(logged) - 1);
    strncat(logged, "|", sizeof(logged) - strlen(logged) - 1);
    printf("# %s\n", line);
}

/* Logits after a few tokens, a look later than the last. */
static bool evaluate(numoe_engine *engine, float *logits)
{
    static const int32_t ids[] = {0, 100, 200};
    const size_t bytes = numoe_engine_get_info(engine)->n_vocab * sizeof(*logits);
    numoe_session *session = NULL;
    numoe_error err;
    struct timespec look = {1, 100000000};
    nanosleep(&look, NULL);
    bool good = numoe_session_new(engine, 64, &session, &err) == NUMOE_OK &&
                numoe_session_append(session, ids, 3, &err) == NUMOE_OK &&
                numoe_step(engine, &session, 1, &err) == NUMOE_OK;
    if (good) {
        memcpy(logits, numoe_session_logits(session), bytes);
    }
    numoe_session_free(session);
    return good;
}

/* Workers that may run on any CPU outside of the first n, and those that have one CPU alone. */
static void count_threads(unsigned n, unsigned *n_outside, unsigned *n_alone)
{
    glob_t task;
    *n_outside = *n_alone = 0;
    if (glob("/proc/self/task/*", 0, NULL, &task) != 0) {
        return;
    }
    for (size_t i = 0; i < task.gl_pathc; i++) {
        cpu_set_t set;
        const pid_t id = (pid_t)atoi(strrchr(task.gl_pathv[i], '/') + 1);
        if (id != getpid() && sched_getaffinity(id, sizeof(set), &set) == 0) {
            bool outside = false;
            for (unsigned cpu = n; cpu < CPU_SETSIZE; cpu++) {
                outside |= CPU_ISSET(cpu, &set);
            }
            *n_outside += outside;
            *n_alone += CPU_COUNT(&set) == 1;
        }
    }
    globfree(&task);
}

#define GROUP "/sys/fs/cgroup/test/"
#define CPU3  "/sys/devices/system/cpu/cpu3/online"

struct watched {
    numoe_engine *engine;
    float *want, *got;
    size_t bytes;
};

/* Evaluates once more: the same bits as ever. */
static bool again(struct watched *w)
{
    logged[0] = '\0';
    return evaluate(w->engine, w->got) && memcmp(w->got, w->want, w->bytes) == 0;
}

static bool open_watched(const char *model, struct watched *w)
{
    numoe_engine_params params;
    numoe_error err;
    numoe_engine_params_init(&params);
    params.model_path = model;
    params.placement = NUMOE_PLACEMENT_SLICE;
    params.chunk_tokens = 16;
    if (numoe_engine_open(&params, &w->engine, &err) != NUMOE_OK) {
        printf("Bail out! %s\n", err.text);
        return false;
    }
    w->bytes = numoe_engine_get_info(w->engine)->n_vocab * sizeof(float);
    w->want = calloc(1, w->bytes);
    w->got = calloc(1, w->bytes);
    logged[0] = '\0';
    return evaluate(w->engine, w->want);
}

static void close_watched(struct watched *w)
{
    numoe_engine_close(w->engine);
    free(w->want);
    free(w->got);
}

static void check_moved_pages(struct watched *w)
{
    const unsigned long from = 2, to = 1; /* masks: node 1, node 0 */
    numoe_pages pages = {0};
    ok(logged[0] == '\0', "nothing is said while everything is in place", logged);
    ok(migrate_pages(0, 8 * sizeof(from), &from, &to) >= 0, "pages are moved", strerror(errno));
    ok(again(w), "the same bits from moved pages", logged);
    ok(strstr(logged, "weights of node 1 are on other nodes by now") &&
           strstr(logged, "migratepages"),
       "moved pages are noticed", logged);
    ok(numoe_engine_pages(w->engine, 1, &pages) && pages.n_remote > 0 && pages.n_local == 0 &&
           pages.cause != NULL,
       "the audit has them and a cause", "it has not");
    ok(again(w) && logged[0] == '\0', "that is said once", logged);
}

static void check_lost_cpus(struct watched *w)
{
    unsigned n_outside, n_alone;
    ok(put(GROUP "cpuset.cpus", "0-1") && again(w), "the same bits on a smaller cpuset", logged);
    ok(strstr(logged, "2 of 4 CPUs are left") != NULL, "a smaller cpuset is said", logged);
    count_threads(2, &n_outside, &n_alone);
    ok(n_outside == 0, "workers run inside the smaller cpuset", "some outside");
    ok(again(w) && logged[0] == '\0', "that is said once, too", logged);
    ok(put(GROUP "cpuset.cpus", "0-3") && again(w), "the same bits on all CPUs again", logged);
    count_threads(4, &n_outside, &n_alone);
    ok(n_alone == 4, "workers are back in place", "some are not");
    ok(put(CPU3, "0") && again(w), "the same bits with a CPU offline", logged);
    ok(strstr(logged, "3 of 4 CPUs are left") != NULL, "a CPU offline is said", logged);
    count_threads(3, &n_outside, &n_alone);
    ok(n_outside == 0, "no worker waits for a CPU that is offline", "one does");
    put(CPU3, "1");
}

static int watch(const char *model)
{
    struct watched w = {0};
    setenv("NUMOE_WATCH_SECONDS", "1", 1);
    numoe_log_set(keep_log, NULL, NUMOE_LOG_WARN);
    if (!put(GROUP "cpuset.mems", "0-1") || !open_watched(model, &w)) {
        return 1;
    }
    check_moved_pages(&w);
    check_lost_cpus(&w);
    close_watched(&w);
    if (!open_watched(model, &w)) {
        return 1;
    }
    ok(put(GROUP "cpuset.mems", "0") && again(&w), "the same bits with a node taken away", logged);
    ok(strstr(logged, "cpuset.mems") != NULL, "a node taken away is noticed", logged);
    close_watched(&w);
    printf("1..%u\n", n_test);
    return n_bad > 0;
}

/* ------------------------------------------------------------------ workers by a probe */

static void note_cpu(struct worker *w, void *arg)
{
    _Atomic uint64_t *seen = arg; /* [n_node] */
    atomic_fetch_or(&seen[w->in], UINT64_C(1) << sched_getcpu());
}

/* As many workers as hardware threads: every one on its own, and on its node. */
static void check_smt(const struct topo *topo)
{
    const struct tuning smt = {.workers_percent = 200};
    _Atomic uint64_t seen[TOPO_MAX_NODE] = {0};
    struct pools *pools;
    numoe_error err = {.text = ""};
    bool good = pools_new(topo, tuning_workers(&smt, topo, 0), &pools, &err) == NUMOE_OK;
    if (good) {
        pools_run(pools, note_cpu, seen);
        for (unsigned in = 0; in < topo->n_node; in++) {
            uint64_t own = 0;
            for (unsigned i = 0; i < topo->node[in].n_pu; i++) {
                own |= UINT64_C(1) << topo->node[in].pu[i];
            }
            good = good && seen[in] == own;
        }
        pools_free(pools);
    }
    ok(good, "two workers for each core have a hardware thread each", err.text);
}

static int tune(void)
{
    struct tuning first, second;
    struct topo *topo;
    numoe_engine_params params;
    numoe_error err;
    setenv("NUMOE_PROBE", "auto", 1);
    numoe_log_set(keep_log, NULL, NUMOE_LOG_INFO);
    numoe_engine_params_init(&params);
    if (topo_load(NULL, &topo, &err) != NUMOE_OK ||
        tuning_open(&params, true, topo, &first, &err) != NUMOE_OK ||
        tuning_open(&params, true, topo, &second, &err) != NUMOE_OK) {
        printf("Bail out! %s\n", err.text);
        return 1;
    }
    ok(strstr(logged, "8 workers on 4 cores take") != NULL, "hardware threads are tried", logged);
    ok(first.source == TUNING_MEASURED, "it is measured", first.text);
    ok(first.workers_percent == 100 || first.workers_percent == 200, "one of them is chosen",
       first.text);
    ok(second.source == TUNING_REMEMBERED && second.workers_percent == first.workers_percent,
       "it is remembered", second.text);
    check_smt(topo);
    tuning_close(&first);
    tuning_close(&second);
    topo_free(topo);
    printf("1..%u\n", n_test);
    return n_bad > 0;
}

int main(int argc, char **argv)
{
    struct topo *topo;
    struct pools *pools;
    numoe_error err;
    if (argc == 3 && strcmp(argv[1], "watch") == 0) {
        return watch(argv[2]);
    }
    if (argc == 2 && strcmp(argv[1], "balance") == 0) {
        return balance();
    }
    if (argc == 2 && strcmp(argv[1], "tune") == 0) {
        return tune();
    }
    if (argc < 5) {
        fprintf(stderr, "usage: guest NODES MEMORY-NODES CORES FAR-CORES [limit]\n"
                        "       guest watch MODEL\n"
                        "       guest balance\n"
                        "       guest tune\n");
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
    check_cache(topo, pools, "a sequence's cache goes to the node that evaluates it");
    check_bandwidth(topo, pools);
    if (topo->node[topo->n_node - 1].huge_2m_free > 0) {
        check_huge(topo);
    }
    check_full(topo, argc > 5);
    stop_balancing();
    int (*where)(struct world *, void **, unsigned, int *) = topo->world->where;
    topo->world->where = refuse_where;
    check_placement(topo, pools, true, "where pages are is known without move_pages");
    topo->world->where = where;
    topo->world->bind = refuse_bind;
    check_placement(topo, pools, true, "pages of refused bindings are local by first touch");
    if (topo->n_node > 1) { /* else they stay where this thread has touched them */
        check_cache(topo, pools, "caches go to their node by first touch");
    }
    pools_free(pools);
    topo_free(topo);
    printf("1..%u\n", n_test);
    return n_bad > 0;
}
