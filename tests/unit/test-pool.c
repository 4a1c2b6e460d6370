/* numa/pool, share, gate: every item handed out once, barriers that separate, workers dealt to
 * nodes, threads that stay quiet when idle and do not collapse when they are more than the CPUs.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <criterion/criterion.h>

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "numa/pool.h"
#include "numa/strand.h"
#include "tests/unit/madeup.h"
#include "tests/unit/testdata.h"

#define MAX_ITEM  5000
#define MAX_ALONE 9 /* workers of a node that works alone, and one that is not there */

static void drop_log(void *arg, numoe_log_level level, const char *line)
{
    (void)arg, (void)level, (void)line;
}

static void be_quiet(void)
{
    numoe_log_set(drop_log, NULL, NUMOE_LOG_ERROR); /* crowded pools are meant here */
}

TestSuite(pool, .init = be_quiet, .timeout = 120); /* a deadlock is a failure */

static struct topo *load(const char *spec)
{
    struct topo *t = NULL;
    numoe_error err = {.text = ""};
    cr_assert_eq(topo_load(spec, &t, &err), NUMOE_OK, "%s", err.text);
    return t;
}

static struct topo *load_nodes(unsigned n_node)
{
    char spec[64];
    snprintf(spec, sizeof(spec), "pack:%u [numa(memory=1GiB)] core:4 pu:1", n_node);
    return load(spec);
}

static struct pools *start(const struct topo *t, unsigned n_worker)
{
    struct pools *pools = NULL;
    numoe_error err = {.text = ""};
    cr_assert_eq(pools_new(t, n_worker, &pools, &err), NUMOE_OK, "%s", err.text);
    return pools;
}

/* ------------------------------------------------------------------ how many, where */

Test(pool, workers_are_dealt_in_proportion_to_cores)
{
    struct topo *t = load("pack:2 [numa(memory=1GiB)] core:20 pu:1");
    t->node[0].n_core = 12; /* strings cannot say 12 and 20 */
    t->n_core = 32;
    static const struct {
        unsigned n_worker, n_node, nw[2];
    } cases[] = {{0, 2, {12, 20}}, {32, 2, {12, 20}}, {16, 2, {6, 10}}, {8, 2, {3, 5}},
                 {2, 2, {1, 1}},   {1, 1, {1, 0}},    {64, 2, {24, 40}}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct pools *pools = start(t, cases[i].n_worker);
        cr_expect_eq(pools_n_node(pools), cases[i].n_node);
        for (unsigned in = 0; in < cases[i].n_node; in++) {
            cr_expect_eq(pools_node_workers(pools, in), cases[i].nw[in],
                         "%u workers: node %u has %u", cases[i].n_worker, in,
                         pools_node_workers(pools, in));
        }
        pools_free(pools);
    }
    topo_free(t);
}

Test(pool, every_node_keeps_a_worker_and_quota_caps_the_default)
{
    struct topo *t = load_nodes(8);
    struct pools *pools = start(t, 9);
    cr_expect_eq(pools_n_node(pools), 8);
    for (unsigned in = 0; in < 8; in++) {
        cr_expect_geq(pools_node_workers(pools, in), 1);
    }
    pools_free(pools);
    pools = start(t, 3);
    cr_expect_eq(pools_n_node(pools), 3);
    pools_free(pools);
    t->cpu_quota = 5.9;
    pools = start(t, 0);
    cr_expect_eq(pools_n_worker(pools), 5);
    pools_free(pools);
    t->cpu_quota = 0.3;
    pools = start(t, 0);
    cr_expect_eq(pools_n_worker(pools), 1);
    pools_free(pools);
    topo_free(t);
}

Test(pool, too_many_workers_are_refused)
{
    struct topo *t = load_nodes(1);
    struct pools *pools = NULL;
    numoe_error err;
    cr_expect_eq(pools_new(t, 100000, &pools, &err), NUMOE_E_INPUT);
    cr_expect(strstr(err.text, "100000"), "%s", err.text);
    cr_expect_null(pools);
    cr_expect_eq(pools_new(t, 4 * 64 + 1, &pools, &err), NUMOE_E_INPUT, "more than 64 for a core");
    topo_free(t);
}

struct seen_worker {
    unsigned in, iw, nw, ng, n_node, runs;
    bool blocks_signals;
    int cpus;
    char name[16];
};

static void look_around(struct worker *w, void *arg)
{
    struct seen_worker *seen = (struct seen_worker *)arg + w->ig;
    *seen = (struct seen_worker){.in = w->in,
                                 .iw = w->iw,
                                 .nw = w->nw,
                                 .ng = w->ng,
                                 .n_node = w->n_node,
                                 .runs = seen->runs + 1};
    sigset_t set;
    pthread_sigmask(SIG_SETMASK, NULL, &set);
    seen->blocks_signals = sigismember(&set, SIGINT) && sigismember(&set, SIGTERM);
    cpu_set_t cpus;
    sched_getaffinity(0, sizeof(cpus), &cpus);
    seen->cpus = CPU_COUNT(&cpus);
    pthread_getname_np(pthread_self(), seen->name, sizeof(seen->name));
}

Test(pool, workers_know_who_they_are)
{
    struct seen_worker seen[7] = {0};
    struct topo *t = load_nodes(3);
    struct pools *pools = start(t, 7);
    pools_run(pools, look_around, seen);
    pools_run(pools, look_around, seen);
    static const unsigned in[] = {0, 0, 0, 1, 1, 2, 2}, iw[] = {0, 1, 2, 0, 1, 0, 1};
    for (unsigned ig = 0; ig < 7; ig++) {
        cr_expect_eq(seen[ig].runs, 2);
        cr_expect_eq(seen[ig].in, in[ig]);
        cr_expect_eq(seen[ig].iw, iw[ig]);
        cr_expect_eq(seen[ig].nw, pools_node_workers(pools, in[ig]));
        cr_expect_eq(seen[ig].ng, 7);
        cr_expect_eq(seen[ig].n_node, 3);
        cr_expect(seen[ig].blocks_signals);
    }
    cr_expect_str_eq(seen[0].name, "numoe-n0w0");
    pools_free(pools);
    topo_free(t);
    sigset_t set;
    pthread_sigmask(SIG_SETMASK, NULL, &set);
    cr_expect_not(sigismember(&set, SIGINT), "the caller's mask changed");
}

/* ------------------------------------------------------------------ nodes alone */

/* What one node does on its own: as many meetings as it was told. */
struct alone {
    unsigned n_round, n_worker;
    struct seen_worker seen[MAX_ALONE];
    unsigned round[MAX_ALONE]; /* of worker iw; plain: a barrier must make it seen */
    atomic_uint n_taken, n_early;
};

static void work_alone(struct worker *w, void *arg)
{
    struct alone *a = arg;
    look_around(w, a->seen);
    for (unsigned round = 1; round <= a->n_round; round++) {
        struct share share;
        uint32_t lo, hi;
        a->round[w->iw] = round;
        worker_all_barrier(w);
        for (unsigned iw = 0; iw < w->nw; iw++) {
            atomic_fetch_add(&a->n_early, a->round[iw] != round);
        }
        share_begin(&share, w, 10, 1);
        while (share_next(&share, &lo, &hi)) {
            atomic_fetch_add(&a->n_taken, hi - lo);
        }
        worker_node_barrier(w);
    }
}

static void check_alone(const struct alone *a, unsigned n_worker, unsigned n_run)
{
    for (unsigned iw = 0; iw < n_worker; iw++) {
        const struct seen_worker *seen = &a->seen[iw];
        cr_expect_eq(seen->runs, n_run);
        cr_expect_eq(seen->in, 0);
        cr_expect_eq(seen->n_node, 1);
        cr_expect_eq(seen->iw, iw);
        cr_expect_eq(seen->nw, n_worker);
        cr_expect_eq(seen->ng, n_worker);
    }
    cr_expect_eq(a->seen[n_worker].runs, 0);
    cr_expect_eq(a->n_early, 0);
    cr_expect_eq(a->n_taken, 10 * a->n_round * n_run);
}

/* Nodes that meet 1000 times, 7 times, never and not at all, between runs of all together; on
 * threads of their own and on one, where workers of several nodes take turns. */
static void run_nodes_alone(unsigned n_worker)
{
    static struct alone alone[4];
    memset(alone, 0, sizeof(alone));
    alone[0].n_round = 1000;
    alone[1].n_round = 7;
    void *const arg[] = {&alone[0], &alone[1], &alone[2], NULL};
    struct topo *t = load_nodes(4);
    struct pools *pools = start(t, n_worker);
    for (unsigned run = 1; run <= 3; run++) {
        struct seen_worker seen[4 * MAX_ALONE] = {0};
        pools_run_each(pools, work_alone, arg);
        pools_run(pools, look_around, seen);
        for (unsigned ig = 0; ig < n_worker; ig++) {
            cr_expect_eq(seen[ig].n_node, 4);
            cr_expect_eq(seen[ig].ng, n_worker);
        }
    }
    for (unsigned in = 0; in < 3; in++) {
        check_alone(&alone[in], pools_node_workers(pools, in), 3);
    }
    pools_free(pools);
    topo_free(t);
}

Test(pool, nodes_alone_do_not_wait_for_each_other)
{
    for (unsigned n_worker = 4; n_worker <= 20; n_worker += 8) {
        run_nodes_alone(n_worker);
    }
    setenv("NUMOE_POOL_THREADS", "1", 1);
    run_nodes_alone(9);
    setenv("NUMOE_POOL_THREADS", "4096", 1);
    run_nodes_alone(9);
}

Test(pool, workers_are_pinned_to_one_cpu_each)
{
    struct topo *t = load(NULL);
    struct seen_worker *seen = calloc(t->n_core, sizeof(*seen));
    struct pools *pools = start(t, t->n_core);
    pools_run(pools, look_around, seen);
    for (unsigned ig = 0; ig < t->n_core; ig++) {
        cr_expect_eq(seen[ig].cpus, 1);
    }
    pools_free(pools);
    topo_free(t);
    free(seen);
}

static unsigned n_logged;
static void count_log(void *arg, numoe_log_level level, const char *line)
{
    (void)arg, (void)level;
    n_logged += strstr(line, "pinned") != NULL;
}

static int refuse_pin(struct world *w, pthread_t thread, const unsigned *pu, unsigned n_pu)
{
    (void)w, (void)thread, (void)pu, (void)n_pu;
    return EPERM;
}

Test(pool, refused_pinning_is_said_once)
{
    struct topo *t = load_nodes(2);
    t->world->pin = refuse_pin;
    numoe_log_set(count_log, NULL, NUMOE_LOG_WARN);
    for (int i = 0; i < 2; i++) {
        struct pools *pools = start(t, 4);
        struct seen_worker seen[4] = {0};
        pools_run(pools, look_around, seen);
        cr_expect_eq(seen[3].runs, 1);
        pools_free(pools);
    }
    cr_expect_eq(n_logged, 1);
    topo_free(t);
}

/* ------------------------------------------------------------------ CPUs come and go */

TestSuite(cpus, .init = madeup_setup, .fini = madeup_teardown, .timeout = 120);

/* The kernel's word on where threads may run. */
static struct {
    pthread_t thread;
    unsigned pu[8], n_pu;
} mask[8];
static unsigned n_mask;

static int note_pin(struct world *w, pthread_t thread, const unsigned *pu, unsigned n_pu)
{
    unsigned i = 0;
    (void)w;
    while (i < n_mask && !pthread_equal(mask[i].thread, thread)) {
        i++;
    }
    cr_assert_lt(i, 8);
    n_mask = MAX(n_mask, i + 1);
    mask[i].thread = thread;
    mask[i].n_pu = n_pu;
    memcpy(mask[i].pu, pu, n_pu * sizeof(*pu));
    return 0;
}

static int compare_pin(struct world *w, pthread_t thread, const unsigned *pu, unsigned n_pu,
                       bool *yes)
{
    (void)w, (void)pu;
    for (unsigned i = 0; i < n_mask; i++) {
        if (pthread_equal(mask[i].thread, thread)) {
            *yes = mask[i].n_pu == n_pu;
        }
    }
    return 0;
}

/* As kernels do when a cpuset is written: its CPUs are every thread's. */
static void change_cpuset(const char *cpus)
{
    put("/sys/fs/cgroup/job/cpuset.cpus.effective", cpus);
    for (unsigned i = 0; i < n_mask; i++) {
        mask[i].n_pu = 0;
    }
}

/* Threads that may run on PUs [from, to) and no others, and on how many each. */
static unsigned count_masks(unsigned from, unsigned to, unsigned n_pu)
{
    unsigned n = 0;
    for (unsigned i = 0; i < n_mask; i++) {
        bool inside = mask[i].n_pu == n_pu;
        for (unsigned k = 0; k < mask[i].n_pu; k++) {
            inside = inside && mask[i].pu[k] >= from && mask[i].pu[k] < to;
        }
        n += inside;
    }
    return n;
}

static unsigned n_left_told;

static void count_left(void *arg, numoe_log_level level, const char *line)
{
    (void)arg, (void)level;
    n_left_told += strstr(line, " are left to this process") != NULL;
}

/* One at a time takes note: threads pin themselves when they start. */
static pthread_mutex_t note_lock = PTHREAD_MUTEX_INITIALIZER;

static int note_pin_alone(struct world *w, pthread_t thread, const unsigned *pu, unsigned n_pu)
{
    pthread_mutex_lock(&note_lock);
    const int error = note_pin(w, thread, pu, n_pu);
    pthread_mutex_unlock(&note_lock);
    return error;
}

Test(cpus, workers_move_to_what_is_left)
{
    struct topo *t = NULL;
    setenv("NUMOE_POOL_THREADS", "8", 1);
    numoe_log_set(count_left, NULL, NUMOE_LOG_WARN);
    put("/sys/devices/system/cpu/online", "0-7\n");
    put_v2("/job");
    put("/sys/fs/cgroup/job/cpuset.cpus.effective", "0-7\n");
    cr_assert_eq(topo_load_below(root, "pack:2 [numa(memory=1GiB)] core:4 pu:1", &t, NULL), 0);
    t->world->pin = note_pin_alone;
    t->world->is_pinned = compare_pin;
    struct pools *pools = start(t, 8);
    cr_expect_eq(count_masks(0, 8, 1), 8);
    cr_expect_not(pools_repin(pools), "nothing was changed");

    change_cpuset("0-5\n"); /* two CPUs of node 1 are left to its four threads */
    cr_expect(pools_repin(pools));
    cr_expect_eq(count_masks(0, 4, 1), 4);
    cr_expect_eq(count_masks(4, 6, 1), 2);
    cr_expect_eq(count_masks(4, 6, 2), 2);
    cr_expect_eq(n_left_told, 1);
    cr_expect_not(pools_repin(pools), "once");

    change_cpuset("0-3\n"); /* none of node 1's */
    cr_expect(pools_repin(pools));
    cr_expect_eq(count_masks(0, 4, 4), 4);
    cr_expect_eq(n_left_told, 2);

    change_cpuset("0-7\n");
    put("/sys/devices/system/cpu/online", "0-6\n"); /* CPU 7 goes offline */
    cr_expect(pools_repin(pools));
    cr_expect_eq(count_masks(0, 7, 1), 7);
    cr_expect_eq(count_masks(4, 7, 3), 1);

    put("/sys/devices/system/cpu/online", "0-7\n");
    change_cpuset("0-7\n");
    cr_expect(pools_repin(pools));
    cr_expect_eq(count_masks(0, 8, 1), 8);
    cr_expect_eq(n_left_told, 3, "back in place is no warning");
    struct seen_worker seen[8] = {0};
    pools_run(pools, look_around, seen);
    cr_expect_eq(seen[7].runs, 1);
    pools_free(pools);
    topo_free(t);
}

/* ------------------------------------------------------------------ shares */

struct share_test {
    uint32_t n, grain;
    bool delays;
    _Atomic unsigned char taken[8][MAX_ITEM]; /* [node][item] */
    atomic_uint bad_range;
    atomic_uint n_piece;
};

static void maybe_delay(const struct share_test *s, uint32_t *random)
{
    if (!s->delays) {
        return;
    }
    *random = *random * 1664525u + 1013904223u;
    if (*random >> 24 < 8) {
        sched_yield();
    } else if (*random >> 24 == 8) {
        nanosleep(&(struct timespec){0, 50000}, NULL);
    }
}

/* No barrier between the operations: workers run ahead of each other. */
static void share_many(struct worker *w, void *arg)
{
    struct share_test *s = arg;
    uint32_t random = w->ig * 77 + 1;
    for (int op = 0; op < 50; op++) {
        struct share share;
        uint32_t lo, hi;
        share_begin(&share, w, s->n, s->grain);
        while (share_next(&share, &lo, &hi)) {
            if (lo >= hi || hi > s->n || hi - lo > s->grain || lo % s->grain != 0) {
                atomic_fetch_add(&s->bad_range, 1);
                return;
            }
            for (uint32_t i = lo; i < hi; i++) {
                atomic_fetch_add_explicit(&s->taken[w->in][i], 1, memory_order_relaxed);
            }
            atomic_fetch_add_explicit(&s->n_piece, 1, memory_order_relaxed);
            maybe_delay(s, &random);
        }
        if (share_next(&share, &lo, &hi)) {
            atomic_fetch_add(&s->bad_range, 1); /* over means over */
        }
    }
}

static void check_share(struct pools *pools, uint32_t n, uint32_t grain, bool delays)
{
    static struct share_test s;
    memset(&s, 0, sizeof(s));
    s.n = n, s.grain = grain, s.delays = delays;
    pools_run(pools, share_many, &s);
    cr_assert_eq(s.bad_range, 0);
    for (unsigned in = 0; in < pools_n_node(pools); in++) {
        for (uint32_t i = 0; i < n; i++) {
            cr_assert_eq(s.taken[in][i], 50, "n %u grain %u: node %u item %u %u times", n, grain,
                         in, i, s.taken[in][i]);
        }
    }
    cr_expect_eq(s.n_piece, 50 * pools_n_node(pools) * ((n + grain - 1) / grain));
}

Test(pool, every_item_is_handed_out_once)
{
    static const uint32_t sizes[][2] = {{0, 1},  {1, 1},   {2, 1},    {7, 3},     {16, 16},
                                        {97, 1}, {97, 13}, {1000, 7}, {5000, 64}, {5, 4000}};
    for (unsigned n_node = 1; n_node <= 8; n_node = n_node * 2 + (n_node == 2)) {
        struct topo *t = load_nodes(n_node);
        for (unsigned n_worker = 1; n_worker <= 17; n_worker += n_worker < 4 ? 1 : 3) {
            struct pools *pools = start(t, n_worker);
            for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
                check_share(pools, sizes[i][0], sizes[i][1], false);
            }
            pools_free(pools);
        }
        topo_free(t);
    }
}

Test(pool, every_item_is_handed_out_once_with_delays)
{
    static const unsigned n_workers[] = {2, 3, 5, 8};
    struct topo *t = load_nodes(2);
    setenv("NUMOE_POOL_THREADS", "4096", 1); /* real threads: delays must let others run ahead */
    for (size_t i = 0; i < ARRAY_LEN(n_workers); i++) {
        struct pools *pools = start(t, n_workers[i]);
        check_share(pools, 33, 1, true);
        check_share(pools, 250, 6, true);
        pools_free(pools);
    }
    topo_free(t);
}

/* Own part first and in order, then what is left of the others'. */
static void take_alone(struct worker *w, void *arg)
{
    uint32_t *first = arg;
    struct share share;
    uint32_t lo, hi, expected, end;
    share_static(12, w->iw, w->nw, &expected, &end);
    share_begin(&share, w, 12 * 5, 5);
    if (w->iw == 1) { /* the others wait until everything is gone */
        for (unsigned i = 0; share_next(&share, &lo, &hi); i++) {
            first[i] = lo;
        }
    }
    worker_node_barrier(w);
    first[20 + w->iw] = share_next(&share, &lo, &hi);
}

Test(pool, own_part_comes_first_then_the_neighbours)
{
    uint32_t first[32] = {0};
    struct topo *t = load_nodes(1);
    struct pools *pools = start(t, 3);
    pools_run(pools, take_alone, first);
    static const uint32_t expected[] = {20, 25, 30, 35, 40, 45, 50, 55, 0, 5, 10, 15};
    for (size_t i = 0; i < ARRAY_LEN(expected); i++) {
        cr_expect_eq(first[i], expected[i], "piece %zu begins at %u", i, first[i]);
    }
    cr_expect(!first[20] && !first[21] && !first[22]);
    pools_free(pools);
    topo_free(t);
}

/* Epochs wrap at 2^32 and cursors of empty parts must not fall behind by 2^31: with one item,
 * worker 2 never gets any, while epochs pass by in big steps. */
static void pass_epochs(struct worker *w, void *arg)
{
    atomic_uint *taken = arg;
    for (uint32_t step = 0; step < 64; step++) {
        struct share share;
        uint32_t lo, hi, n = step % 16 == 15 ? 3 : 1;
        w->share_epoch += (UINT32_C(1) << 28) - 1; /* as if that many operations had been */
        share_begin(&share, w, n, 1);
        while (share_next(&share, &lo, &hi)) {
            atomic_fetch_add(taken, 1);
        }
        worker_node_barrier(w);
    }
}

Test(pool, epochs_wrap)
{
    atomic_uint taken = 0;
    struct topo *t = load_nodes(1);
    struct pools *pools = start(t, 3);
    pools_run(pools, pass_epochs, &taken);
    cr_expect_eq(taken, 60 + 4 * 3, "%u items", taken);
    pools_free(pools);
    topo_free(t);
}

Test(pool, static_parts_cover_everything)
{
    for (uint32_t n = 0; n < 40; n++) {
        for (unsigned nw = 1; nw < 12; nw++) {
            uint32_t end = 0, lo, hi;
            for (unsigned i = 0; i < nw; i++) {
                share_static(n, i, nw, &lo, &hi);
                cr_assert_eq(lo, end);
                cr_assert(hi - lo == n / nw || hi - lo == n / nw + 1);
                end = hi;
            }
            cr_assert_eq(end, n);
        }
    }
}

/* ------------------------------------------------------------------ barriers */

struct phases {
    uint32_t mark[32];
    atomic_uint bad;
};

/* Plain stores before a barrier must be seen by all after it, and nobody may run ahead into the
 * next. */
static void step_phases(struct worker *w, void *arg)
{
    struct phases *p = arg;
    uint32_t random = w->ig + 99;
    for (uint32_t phase = 1; phase <= 300; phase++) {
        p->mark[w->ig] = phase;
        worker_all_barrier(w);
        for (unsigned ig = 0; ig < w->ng; ig++) {
            if (p->mark[ig] != phase) {
                atomic_fetch_add(&p->bad, 1);
            }
        }
        random = random * 1664525u + 1013904223u;
        if (random >> 24 < 3) {
            sched_yield();
        }
        worker_all_barrier(w);
        p->mark[w->ig] = 1000 + phase;
        worker_node_barrier(w);
        for (unsigned i = 0; i < w->nw; i++) {
            if (p->mark[w->ig - w->iw + i] != 1000 + phase) {
                atomic_fetch_add(&p->bad, 1);
            }
        }
        worker_all_barrier(w);
    }
}

static void check_phases(unsigned n_node, unsigned n_worker)
{
    struct topo *t = load_nodes(n_node);
    struct phases p = {0};
    struct pools *pools = start(t, n_worker);
    pools_run(pools, step_phases, &p);
    pools_run(pools, step_phases, &p);
    cr_expect_eq(p.bad, 0, "%u workers on %u nodes", n_worker, n_node);
    pools_free(pools);
    topo_free(t);
}

Test(pool, barriers_separate_phases)
{
    for (unsigned n_node = 1; n_node <= 8; n_node *= 2) {
        for (unsigned n_worker = 1; n_worker <= 17; n_worker += 4) {
            check_phases(n_node, n_worker);
        }
    }
}

/* All workers on one thread; threads whose workers belong to several nodes; a thread for each. */
Test(pool, barriers_separate_phases_on_any_number_of_threads)
{
    static const char *const n_thread[] = {"1", "2", "3", "5", "4096"};
    for (size_t i = 0; i < ARRAY_LEN(n_thread); i++) {
        setenv("NUMOE_POOL_THREADS", n_thread[i], 1);
        check_phases(1, 6);
        check_phases(3, 7);
        check_phases(8, 13);
    }
}

Test(pool, number_of_threads_is_checked)
{
    struct topo *t = load_nodes(1);
    struct pools *pools = NULL;
    numoe_error err;
    setenv("NUMOE_POOL_THREADS", "0", 1);
    cr_expect_eq(pools_new(t, 2, &pools, &err), NUMOE_E_INPUT);
    cr_expect(strstr(err.text, "NUMOE_POOL_THREADS"), "%s", err.text);
    topo_free(t);
}

/* Nodes meet on their own, a different number of times each, and then all together. */
static void meet_unevenly(struct worker *w, void *arg)
{
    atomic_uint *sum = arg;
    for (unsigned round = 0; round < 50; round++) {
        for (unsigned i = 0; i < 1 + w->in * 3; i++) {
            atomic_fetch_add(sum, 1);
            worker_node_barrier(w);
        }
        worker_all_barrier(w);
    }
}

Test(pool, nodes_meet_independently)
{
    atomic_uint sum = 0;
    struct topo *t = load_nodes(4);
    struct pools *pools = start(t, 12);
    pools_run(pools, meet_unevenly, &sum);
    cr_expect_eq(sum, 50 * 3 * (1 + 4 + 7 + 10));
    pools_free(pools);
    topo_free(t);
}

/* ------------------------------------------------------------------ strands */

struct strand_test {
    struct strands *strands;
    struct gate_count here;
    struct gate_word go;
    unsigned bad;
    uint32_t step[5];
};

struct strand_arg {
    struct strand_test *t;
    unsigned me;
};

/* Values in registers and on the stack survive the others; nobody is a step ahead by more than one.
 */
static void step_strand(void *arg)
{
    struct strand_test *t = ((struct strand_arg *)arg)->t;
    unsigned me = ((struct strand_arg *)arg)->me;
    double x = me + 0.5, sum = 0;
    uint64_t kept[32];
    for (unsigned i = 0; i < 32; i++) {
        kept[i] = me * 1000 + i;
    }
    for (uint32_t p = 1; p <= 200; p++) {
        t->step[me] = p;
        sum += x;
        if (gate_arrive(&t->here, p, 5)) {
            gate_open(&t->go, p);
        } else {
            strands_wait(t->strands, &t->go, p, p, &(struct gate_patience){1000, 2000});
        }
        for (unsigned k = 0; k < 5; k++) {
            t->bad += t->step[k] != p && t->step[k] != p + 1;
        }
    }
    for (unsigned i = 0; i < 32; i++) {
        t->bad += kept[i] != me * 1000 + i;
    }
    t->bad += sum != 200 * x;
}

Test(pool, strands_keep_their_state_and_meet)
{
    if (!strands_supported()) {
        cr_skip("workers have a thread each in this build");
    }
    static struct strand_test t;
    struct strand_arg arg[5];
    for (unsigned i = 0; i < 5; i++) {
        arg[i] = (struct strand_arg){&t, i};
    }
    cr_assert_eq(strands_new(5, &t.strands, NULL), NUMOE_OK);
    strands_run(t.strands, step_strand, arg, sizeof(arg[0]));
    for (unsigned i = 0; i < 5; i++) {
        cr_expect_eq(t.step[i], 200);
    }
    cr_expect_eq(t.bad, 0);
    strands_free(t.strands);
}

/* ------------------------------------------------------------------ life */

static void add_one(struct worker *w, void *arg)
{
    (void)w;
    atomic_fetch_add((atomic_uint *)arg, 1);
}

Test(pool, runs_return_when_all_are_done)
{
    atomic_uint n = 0;
    struct topo *t = load_nodes(2);
    struct pools *pools = start(t, 6);
    for (unsigned i = 1; i <= 2000; i++) {
        pools_run(pools, add_one, &n);
        cr_assert_eq(n, i * 6);
    }
    pools_free(pools);
    topo_free(t);
}

static unsigned count_entries(const char *path)
{
    unsigned n = 0;
    DIR *dir = opendir(path);
    for (; dir && readdir(dir); n++) {
    }
    if (dir) {
        closedir(dir);
    }
    return n;
}

static unsigned count_lines(const char *path)
{
    unsigned n = 0;
    FILE *f = fopen(path, "r");
    for (int c; f && (c = getc(f)) != EOF; n += c == '\n') {
    }
    if (f) {
        fclose(f);
    }
    return n;
}

Test(pool, comes_and_goes_without_a_trace)
{
    struct topo *t = load_nodes(3);
    unsigned tasks = 0, maps = 0;
    for (int i = 0; i < 200; i++) {
        atomic_uint n = 0;
        struct pools *pools = start(t, 1 + (unsigned)i % 7);
        if (i % 2) {
            pools_run(pools, add_one, &n);
        }
        pools_free(pools);
        if (i == 100) {
            tasks = count_entries("/proc/self/task"), maps = count_lines("/proc/self/maps");
        }
    }
    cr_expect_eq(count_entries("/proc/self/task"), tasks);
    /* What is left behind each time would be 99 more; a sanitizer's allocator takes some of its own. */
    cr_expect_lt(count_lines("/proc/self/maps"), maps + 30);
    for (unsigned in = 0; in < t->n_node; in++) {
        cr_expect_eq(t->ledger->taken_bytes[in], 0);
    }
    topo_free(t);
}

Test(pool, threads_that_cannot_start_are_an_error)
{
    if (TEST_HAS_SHADOW_MEMORY) {
        cr_skip("a sanitizer leaves no limit on address space to run into");
    }
    struct topo *t = load_nodes(4);
    struct pools *pools = NULL;
    numoe_error err;
    struct rlimit limit;
    getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = (rlim_t)256 << 20; /* some threads fit, hundreds of stacks do not */
    cr_assert_eq(setrlimit(RLIMIT_AS, &limit), 0);
    cr_expect_eq(pools_new(t, 1000, &pools, &err), NUMOE_E_MEMORY);
    cr_expect(strstr(err.text, "worker"), "%s", err.text);
    cr_expect_null(pools);
    topo_free(t);
}

/* ------------------------------------------------------------------ idle, crowded */

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static void check_idle(unsigned workers_per_core)
{
    atomic_uint n = 0;
    struct topo *t = load(NULL);
    struct pools *pools = start(t, workers_per_core * t->n_core);
    pools_run(pools, add_one, &n);
    nanosleep(&(struct timespec){0, 20000000}, NULL); /* until they are parked */
    const double before = cpu_seconds();
    nanosleep(&(struct timespec){0, 500000000}, NULL);
    const double used = cpu_seconds() - before;
    cr_expect_lt(used, 0.005, "%u workers a core: %.6f s of CPU in 0.5 s", workers_per_core, used);
    pools_free(pools);
    topo_free(t);
}

Test(pool, idle_workers_use_no_cpu)
{
    check_idle(1);
    check_idle(4); /* some on a thread */
    setenv("NUMOE_POOL_THREADS", "4096", 1);
    check_idle(4); /* each on one of its own */
}

/* CPU time of waiting for 0.4 s after a run. */
static double waiting_seconds(struct pools *pools)
{
    atomic_uint n = 0;
    pools_run(pools, add_one, &n);
    const double before = cpu_seconds();
    nanosleep(&(struct timespec){0, 400000000}, NULL);
    return cpu_seconds() - before;
}

Test(pool, waits_awake_for_as_long_as_told)
{
    struct topo *t = load(NULL);
    struct pools *pools = start(t, 1);
    const double shortly = waiting_seconds(pools);
    pools_free(pools); /* all CPU time of the process counts */
    pools = start(t, 1);
    pools_set_sleep(pools, 200000000);
    const double longer = waiting_seconds(pools);
    cr_expect_lt(shortly, 0.005, "%.6f s", shortly);
    cr_expect_gt(longer, shortly + 0.002, "%.6f s of 0.2 s, on CPUs that others may have too",
                 longer);
    pools_free(pools);
    topo_free(t);
}

/* Threads that have lost their CPUs do not wait awake for those that they now share others with. */
Test(cpus, fewer_cpus_end_the_waiting_awake)
{
    struct topo *t = NULL;
    setenv("NUMOE_POOL_THREADS", "4", 1);
    be_quiet();
    put("/sys/devices/system/cpu/online", "0-3\n");
    put_v2("/job");
    put("/sys/fs/cgroup/job/cpuset.cpus.effective", "0-3\n");
    cr_assert_eq(topo_load_below(root, "pack:1 [numa(memory=1GiB)] core:4 pu:1", &t, NULL), 0);
    t->n_runnable = 4;
    t->world->pin = note_pin_alone;
    t->world->is_pinned = compare_pin;
    struct pools *pools = start(t, 4);
    pools_set_sleep(pools, 200000000);
    const double before = waiting_seconds(pools);
    change_cpuset("0-1\n");
    cr_expect(pools_repin(pools));
    const double after = waiting_seconds(pools);
    cr_expect_gt(before, 0.010, "%.6f s of 0.2 s", before);
    cr_expect_lt(after, 0.005, "%.6f s", after);
    pools_free(pools);
    topo_free(t);
}

/* Phases as short as a small model's, with barriers between them. */
static void work_in_phases(struct worker *w, void *arg)
{
    (void)arg;
    uint32_t x = w->ig;
    for (int phase = 0; phase < 200; phase++) {
        struct share share;
        uint32_t lo, hi;
        share_begin(&share, w, 64, 1);
        while (share_next(&share, &lo, &hi)) {
            for (int i = 0; i < 1000; i++) {
                x = x * 1664525u + 1013904223u;
                __asm__ volatile("" : "+r"(x));
            }
        }
        worker_all_barrier(w);
    }
}

static double best_seconds(const struct topo *t, unsigned n_worker)
{
    struct pools *pools = start(t, n_worker);
    double best = 1e9;
    for (int i = 0; i < 15; i++) {
        double begin = clock_seconds();
        pools_run(pools, work_in_phases, NULL);
        best = MIN(best, clock_seconds() - begin);
    }
    pools_free(pools);
    return best;
}

/* Four workers a CPU reach 0.7 of the speed of one a CPU. Other load on the machine disturbs either
 * side, so the best of several tries counts. */
static void check_crowd(void)
{
    struct topo *t = load(NULL);
    double ratio = 0;
    for (int i = 0; i < 6 && ratio < 0.7; i++) {
        ratio = MAX(ratio, best_seconds(t, t->n_runnable) / best_seconds(t, 4 * t->n_runnable));
    }
    cr_expect_geq(ratio, 0.7, "%.2f of the speed", ratio);
    topo_free(t);
}

Test(pool, more_workers_than_cpus_do_not_collapse)
{
    check_crowd();
    setenv("NUMOE_POOL_THREADS", "4096", 1); /* more threads than CPUs, too */
    check_crowd();
}
