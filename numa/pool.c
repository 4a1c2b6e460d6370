/* Owns the worker threads: how many on which node, pinning, starting, meeting, ending. Division of
 * work is share.c's, waiting is gate.c's. A worker touches only its own stack, its node's gate, and
 * whatever the program it runs gives it.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "numa/pool.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/knob.h"
#include "base/log.h"
#include "base/mem.h"
#include "numa/allowed.h"
#include "numa/arena.h"
#include "numa/pool_gate.h"
#include "numa/strand.h"

/* More only wait for each other: 4096 on two CPUs need half a minute for a token. */
#define WORKERS_PER_CORE 64u
#define STACK_BYTES      ((size_t)1 << 20) /* not RLIMIT_STACK, which may be 64 KiB or unlimited */

/* One thread and the workers it runs: usually one, several where there are more workers than CPUs.
 */
struct pool_thread {
    struct pools *pools;
    uint32_t ig0, ig1;
    struct strands *strands; /* NULL for one worker */
    unsigned *pu, n_pu;      /* where it was put last */
    pthread_t id;
};

/* How long workers spin and yield at a barrier, and between runs. */
struct pool_patience {
    struct gate_patience barrier, idle;
};

/* A wait begins with spinning: what is waited for usually comes soon. Then others may have the CPU. */
#define SPIN_NS 20000u
#define PATIENCE(sleep_ns)                                                                         \
    {                                                                                              \
        .barrier = {.spin_ns = SPIN_NS / 2 * 3, .yield_ns = (sleep_ns) / 2 * 3},                   \
        .idle = {.spin_ns = SPIN_NS, .yield_ns = (sleep_ns)},                                      \
    }
static const struct pool_patience usual = PATIENCE(POOL_SLEEP_NS);
static const struct pool_patience crowded = {.barrier = {.spin_ns = 0, .yield_ns = 20000},
                                             .idle = {.spin_ns = 0, .yield_ns = 20000}};

struct pools {
    const struct topo *topo;
    unsigned n_node, n_worker;
    struct pool_gate **gate;    /* [n_node] */
    struct node_arena **arena;  /* [n_node], holds the gate */
    struct worker *worker;      /* [n_worker], as they begin; each runs on a copy of its own */
    struct pool_thread *thread; /* [n_thread] */
    unsigned n_thread, n_started;
    unsigned n_runnable;  /* CPUs that threads can really run on at a time, now */
    atomic_int pin_error; /* an errno of some worker that could not be pinned */
    /* Sync: changed between runs, while workers wait with either. */
    const struct pool_patience *_Atomic patience;
    const struct pool_patience *roomy; /* while every thread has a CPU: usual, or own */
    struct pool_patience own;
    struct gate_patience caller_patience; /* of whoever calls pools_run */
    pool_fn *fn; /* Sync: written before start opens, read after; NULL: end */
    void *arg;
    void *const *each; /* [n_node] instead of arg, for each node alone; NULL: all together */
    uint32_t run;      /* number of the last run */
    struct pool_meet *meet;
};

/* ------------------------------------------------------------------ how many, where */

static numoe_status count_workers(const struct topo *topo, unsigned n_worker, unsigned *out,
                                  numoe_error *err)
{
    if (n_worker > POOL_MAX_WORKER) {
        return status_fail(err, NUMOE_E_INPUT, "%u workers: at most %d are possible", n_worker,
                           POOL_MAX_WORKER);
    }
    if (n_worker > WORKERS_PER_CORE * topo->n_core) {
        return status_fail(err, NUMOE_E_INPUT,
                           "%u workers on %u core%s: at most %u are possible, %u for each",
                           n_worker, topo->n_core, topo->n_core == 1 ? "" : "s",
                           WORKERS_PER_CORE * topo->n_core, WORKERS_PER_CORE);
    }
    unsigned n = n_worker ? n_worker : MIN(topo->n_core, (unsigned)POOL_MAX_WORKER);
    if (n_worker == 0 && topo->cpu_quota > 0 && topo->cpu_quota < n) {
        n = MAX((unsigned)topo->cpu_quota, 1u);
    }
    *out = n;
    return NUMOE_OK;
}

/* One each for the first nodes, the rest one by one to the node with the most cores per worker. */
static void deal_workers(const struct topo *topo, unsigned n_worker, unsigned *nw)
{
    for (unsigned i = 0; i < n_worker; i++) {
        unsigned best = i;
        if (i >= topo->n_node) {
            best = 0;
            for (unsigned in = 1; in < topo->n_node; in++) {
                if (topo->node[in].n_core * (nw[best] + 1) >
                    topo->node[best].n_core * (nw[in] + 1)) {
                    best = in;
                }
            }
        }
        nw[best]++;
    }
}

numoe_status pools_deal(const struct topo *topo, unsigned n_worker, unsigned *nw, numoe_error *err)
{
    FORWARD_IF(count_workers(topo, n_worker, &n_worker, err));
    memset(nw, 0, topo->n_node * sizeof(*nw));
    deal_workers(topo, n_worker, nw);
    return NUMOE_OK;
}

static void fill_workers(struct pools *pools, const unsigned *nw)
{
    unsigned ig = 0;
    for (unsigned in = 0; in < pools->n_node; in++) {
        for (unsigned iw = 0; iw < nw[in]; iw++, ig++) {
            pools->worker[ig] = (struct worker){.in = in,
                                                .n_node = pools->n_node,
                                                .iw = iw,
                                                .nw = nw[in],
                                                .ig = ig,
                                                .ng = pools->n_worker,
                                                .pools = pools,
                                                .gate = pools->gate[in]};
        }
    }
}

/* Spinning is quick while every thread has a CPU; otherwise it takes the CPU from the one that is
 * waited for. The caller of pools_run has no CPU of its own in either case. */
static void set_patience(struct pools *pools)
{
    const bool is_crowded = pools->n_thread > pools->n_runnable;
    const bool spare = pools->n_thread < pools->n_runnable;
    pools->caller_patience = (struct gate_patience){.spin_ns = spare ? SPIN_NS : 0};
    atomic_store_explicit(&pools->patience, is_crowded ? &crowded : pools->roomy,
                          memory_order_release);
}

void pools_set_sleep(struct pools *pools, uint32_t sleep_ns)
{
    pools->own = (struct pool_patience)PATIENCE(sleep_ns);
    pools->roomy = &pools->own;
    set_patience(pools);
}

static const struct pool_patience *patience_now(struct pools *pools)
{
    return atomic_load_explicit(&pools->patience, memory_order_acquire);
}

static numoe_status count_threads(struct pools *pools, numoe_error *err)
{
    unsigned n = pools->topo->n_runnable;
    FORWARD_IF(knob_uint("NUMOE_POOL_THREADS", 1, POOL_MAX_WORKER, &n, err));
    pools->n_thread = strands_supported() ? MIN(pools->n_worker, n) : pools->n_worker;
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ workers */

static unsigned count_pus(const struct topo *topo)
{
    unsigned n = 0;
    for (unsigned in = 0; in < topo->n_node; in++) {
        n += topo->node[in].n_pu;
    }
    return n;
}

static bool touches_node(const struct pool_thread *thread, unsigned in)
{
    const struct worker *worker = thread->pools->worker;
    return worker[thread->ig0].in <= in && in <= worker[thread->ig1 - 1].in;
}

/* Where a thread belongs, while all CPUs are there: a thread of one node on one PU; where a node
 * has more threads than PUs, or a thread workers of several nodes, anywhere on its nodes. pu has
 * room for all PUs of the topology. */
static unsigned find_home(const struct pool_thread *thread, unsigned *pu)
{
    const struct pools *pools = thread->pools;
    const struct topo *topo = pools->topo;
    const struct worker *first = &pools->worker[thread->ig0];
    const struct worker *last = &pools->worker[thread->ig1 - 1];
    const struct topo_node *node = &topo->node[first->in];
    unsigned n_before = 0, n_thread = 0, n = 0;
    for (unsigned it = 0; it < pools->n_thread; it++) {
        bool touches = touches_node(&pools->thread[it], first->in);
        n_before += touches && &pools->thread[it] < thread;
        n_thread += touches;
    }
    if (first->in == last->in && n_thread <= node->n_pu) {
        pu[0] = node->pu[n_before];
        return 1;
    }
    for (unsigned in = first->in; in <= last->in; in++) {
        node = &topo->node[in];
        memcpy(pu + n, node->pu, node->n_pu * sizeof(*pu));
        n += node->n_pu;
    }
    return n;
}

static int pin(const struct pool_thread *thread)
{
    struct world *world = thread->pools->topo->world;
    return world->pin(world, pthread_self(), thread->pu, thread->n_pu);
}

/* All workers pass the same starts and barriers of all, and between two of them those of their
 * node. Which of several nodes' gates a thread sleeps on does not matter: threads and the nodes
 * they share are a chain, so two neighbours at least wait for each other's, which opens. */
static void wait_at(const struct worker *w, struct gate_word *word, uint32_t phase,
                    bool is_node_gate, const struct gate_patience *patience)
{
    if (w->strands) {
        strands_wait(w->strands, word, phase, 2 * w->n_gate + !is_node_gate, patience);
    } else {
        gate_wait(word, phase, patience);
    }
}

/* True for the last worker of the node. */
static bool arrive(const struct worker *w, struct gate_count *root, struct gate_count *group,
                   uint32_t phase)
{
    if (w->nw <= POOL_GROUP) {
        return gate_arrive(root, phase, w->nw);
    }
    uint32_t first = w->iw - w->iw % POOL_GROUP;
    return gate_arrive(group, phase, MIN(POOL_GROUP, w->nw - first)) &&
           gate_arrive(root, phase, (w->nw + POOL_GROUP - 1) / POOL_GROUP);
}

static struct pool_group *group_of(const struct worker *w)
{
    return pool_gate_group(w->gate, w->iw, w->nw);
}

static void finish(const struct worker *w, uint32_t run)
{
    struct pools *pools = w->pools;
    if (arrive(w, &w->gate->done, &group_of(w)->done, run) &&
        gate_arrive(&pools->meet->done, run, w->n_node)) {
        gate_open(&pools->meet->over, run);
    }
}

static void run_alone(struct worker *w, pool_fn *fn, void *arg)
{
    struct worker alone = *w;
    alone.in = 0;
    alone.n_node = 1;
    alone.ig = w->iw;
    alone.ng = w->nw;
    fn(&alone, arg);
    w->node_phase = alone.node_phase;
    w->share_epoch = alone.share_epoch;
}

static void run_program(struct worker *w, const struct pools *pools)
{
    if (pools->each == NULL) {
        pools->fn(w, pools->arg);
    } else if (pools->each[w->in] != NULL) {
        run_alone(w, pools->fn, pools->each[w->in]);
    }
}

static void work(void *start)
{
    struct worker w = *(const struct worker *)start;
    struct pools *pools = w.pools;
    uint32_t run = 1; /* being ready counts as the first run */
    for (finish(&w, run++);; finish(&w, run++)) {
        wait_at(&w, &w.gate->start, run, false, &patience_now(pools)->idle);
        w.n_gate++;
        if (pools->fn == NULL) {
            return;
        }
        run_program(&w, pools);
    }
}

static void *thread_main(void *arg)
{
    struct pool_thread *thread = arg;
    struct worker *first = &thread->pools->worker[thread->ig0];
    int error = pin(thread);
    if (error) {
        atomic_store_explicit(&thread->pools->pin_error, error, memory_order_relaxed);
    }
    if (thread->strands) {
        strands_run(thread->strands, work, first, sizeof(*first));
    } else {
        work(first);
    }
    return NULL;
}

/* ------------------------------------------------------------------ life */

/* Workers in order, as evenly as possible, so that threads keep to one node where they can. */
static numoe_status deal_threads(struct pools *pools, numoe_error *err)
{
    for (unsigned it = 0; it < pools->n_thread; it++) {
        struct pool_thread *thread = &pools->thread[it];
        thread->pools = pools;
        FORWARD_IF(
            mem_new(&thread->pu, count_pus(pools->topo), sizeof(*thread->pu), "list of CPUs", err));
        share_static(pools->n_worker, it, pools->n_thread, &thread->ig0, &thread->ig1);
        if (thread->ig1 - thread->ig0 > 1) {
            FORWARD_IF(strands_new(thread->ig1 - thread->ig0, &thread->strands, err));
        }
        for (uint32_t ig = thread->ig0; ig < thread->ig1; ig++) {
            pools->worker[ig].strands = thread->strands;
        }
    }
    for (unsigned it = 0; it < pools->n_thread; it++) {
        pools->thread[it].n_pu = find_home(&pools->thread[it], pools->thread[it].pu);
    }
    return NUMOE_OK;
}

static numoe_status start_thread(struct pools *pools, const pthread_attr_t *attr, numoe_error *err)
{
    struct pool_thread *thread = &pools->thread[pools->n_started];
    const struct worker *w = &pools->worker[thread->ig0];
    int error = pthread_create(&thread->id, attr, thread_main, thread);
    if (error) {
        return status_fail(err, NUMOE_E_MEMORY,
                           "worker %u of %u: cannot start a thread: %s (see ulimit -u and the "
                           "control group's pids.max)",
                           w->ig + 1, pools->n_worker, strerror(error));
    }
    pools->n_started++;
    char name[16];
    snprintf(name, sizeof(name), "numoe-n%uw%u", w->in % 1000, w->iw % 10000);
    pthread_setname_np(thread->id, name);
    return NUMOE_OK;
}

static numoe_status start_threads(struct pools *pools, numoe_error *err)
{
    pthread_attr_t attr;
    sigset_t all, before;
    numoe_status st = NUMOE_OK;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* inherited by the workers */
    while (st == NUMOE_OK && pools->n_started < pools->n_thread) {
        st = start_thread(pools, &attr, err);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return st;
}

static numoe_status new_gates(struct pools *pools, const unsigned *nw, numoe_error *err)
{
    for (unsigned in = 0; in < pools->n_node; in++) {
        void *p;
        FORWARD_IF(node_arena_new(pools->topo, in, "workers", &pools->arena[in], err));
        FORWARD_IF(node_arena_alloc(pools->arena[in], pool_gate_bytes(nw[in]), &p, err));
        pools->gate[in] = p;
    }
    return node_arena_alloc(pools->arena[0], sizeof(*pools->meet), &pools->meet, err);
}

static numoe_status start(struct pools *pools, numoe_error *err)
{
    unsigned nw[TOPO_MAX_NODE] = {0};
    const char *what = "worker pools";
    deal_workers(pools->topo, pools->n_worker, nw);
    FORWARD_IF(count_threads(pools, err));
    pools->n_runnable = pools->topo->n_runnable;
    pools->roomy = &usual;
    set_patience(pools);
    FORWARD_IF(mem_new(&pools->gate, pools->n_node, sizeof(*pools->gate), what, err));
    FORWARD_IF(mem_new(&pools->arena, pools->n_node, sizeof(*pools->arena), what, err));
    FORWARD_IF(mem_new(&pools->worker, pools->n_worker, sizeof(*pools->worker), what, err));
    FORWARD_IF(mem_new(&pools->thread, pools->n_thread, sizeof(*pools->thread), what, err));
    FORWARD_IF(new_gates(pools, nw, err));
    fill_workers(pools, nw);
    FORWARD_IF(deal_threads(pools, err));
    FORWARD_IF(start_threads(pools, err));
    pools->run = 1;
    gate_wait(&pools->meet->over, pools->run, &pools->caller_patience);
    return NUMOE_OK;
}

static void tell(const struct pools *pools)
{
    const struct topo *topo = pools->topo;
    int error = atomic_load(&pools->pin_error);
    if (error && (atomic_fetch_or(&topo->ledger->told, TOPO_TOLD_PIN) & TOPO_TOLD_PIN) == 0) {
        log_warn("workers cannot be pinned to their CPUs (%s), the kernel may move them",
                 strerror(error));
    }
    if (pools->n_worker > topo->n_runnable && topo->is_this_machine) {
        log_warn("%u workers share %u CPU%s%s", pools->n_worker, topo->n_runnable,
                 topo->n_runnable == 1 ? "" : "s",
                 topo->n_runnable == 1 && topo->n_excluded_pu > 0
                     ? " (mpirun binds to one core unless told --bind-to none)"
                     : "");
    }
}

numoe_status pools_new(const struct topo *topo, unsigned n_worker, struct pools **out,
                       numoe_error *err)
{
    struct pools *pools;
    FORWARD_IF(count_workers(topo, n_worker, &n_worker, err));
    FORWARD_IF(mem_new(&pools, 1, sizeof(*pools), "worker pools", err));
    pools->topo = topo;
    pools->n_worker = n_worker;
    pools->n_node = MIN(n_worker, topo->n_node);
    numoe_status st = start(pools, err);
    if (st != NUMOE_OK) {
        pools_free(pools);
        return st;
    }
    tell(pools);
    *out = pools;
    return NUMOE_OK;
}

static void open_start(struct pools *pools)
{
    pools->run++;
    for (unsigned in = 0; in < pools->n_node; in++) {
        gate_open(&pools->gate[in]->start, pools->run);
    }
}

void pools_free(struct pools *pools)
{
    if (pools == NULL) {
        return;
    }
    if (pools->n_started > 0) {
        pools->run = MAX(pools->run, 1u); /* also where not all could be started */
        pools->fn = NULL;
        open_start(pools);
    }
    for (unsigned it = 0; it < pools->n_started; it++) {
        pthread_join(pools->thread[it].id, NULL);
    }
    for (unsigned it = 0; pools->thread && it < pools->n_thread; it++) {
        strands_free(pools->thread[it].strands);
        mem_free(pools->thread[it].pu);
    }
    for (unsigned in = 0; pools->arena && in < pools->n_node; in++) {
        node_arena_free(pools->arena[in]);
    }
    mem_free(pools->thread);
    mem_free(pools->worker);
    mem_free(pools->arena);
    mem_free(pools->gate);
    mem_free(pools);
}

/* ------------------------------------------------------------------ use */

unsigned pools_n_node(const struct pools *pools)
{
    return pools->n_node;
}

unsigned pools_n_worker(const struct pools *pools)
{
    return pools->n_worker;
}

unsigned pools_node_workers(const struct pools *pools, unsigned in)
{
    unsigned n = 0;
    for (unsigned ig = 0; ig < pools->n_worker; ig++) {
        n += pools->worker[ig].in == in;
    }
    return n;
}

static void run(struct pools *pools, pool_fn *fn, void *arg, void *const *each)
{
    pools->fn = fn;
    pools->arg = arg;
    pools->each = each;
    open_start(pools);
    gate_wait(&pools->meet->over, pools->run, &pools->caller_patience);
}

void pools_run(struct pools *pools, pool_fn *fn, void *arg)
{
    run(pools, fn, arg, NULL);
}

void pools_run_each(struct pools *pools, pool_fn *fn, void *const *arg)
{
    run(pools, fn, NULL, arg);
}

void pools_team(const struct pools *pools, struct pool_team *team)
{
    *team = (struct pool_team){.n_node = pools->n_node};
    for (unsigned in = 0; in < pools->n_node; in++) {
        team->node[in] = in;
        team->n_worker[in] = pools_node_workers(pools, in);
    }
}

void pools_team_alone(const struct pools *pools, unsigned in, struct pool_team *team)
{
    *team =
        (struct pool_team){.n_node = 1, .node = {in}, .n_worker = {pools_node_workers(pools, in)}};
}

/* ------------------------------------------------------------------ CPUs come and go */

/* All PUs of the topology, and which of them are there. */
struct pus {
    unsigned *pu, *left;
    bool *is_there;
    unsigned n, n_there;
};

static void pus_fini(struct pus *all)
{
    mem_free(all->pu);
    mem_free(all->left);
    mem_free(all->is_there);
}

static bool pus_init(const struct topo *topo, struct pus *all)
{
    const unsigned n = count_pus(topo);
    *all = (struct pus){.n = 0};
    if (mem_new(&all->pu, n, sizeof(*all->pu), "list of CPUs", NULL) != NUMOE_OK ||
        mem_new(&all->left, n, sizeof(*all->left), "list of CPUs", NULL) != NUMOE_OK ||
        mem_new(&all->is_there, n, sizeof(*all->is_there), "list of CPUs", NULL) != NUMOE_OK) {
        return false;
    }
    for (unsigned in = 0; in < topo->n_node; in++) {
        memcpy(all->pu + all->n, topo->node[in].pu, topo->node[in].n_pu * sizeof(*all->pu));
        all->n += topo->node[in].n_pu;
    }
    if (!allowed_now(topo->world->root, all->pu, n, all->is_there)) {
        return false;
    }
    for (unsigned i = 0; i < n; i++) {
        all->n_there += all->is_there[i];
    }
    return true;
}

/* Of pu [n], those that are there, into all->left. */
static unsigned find_left(const struct pus *all, const unsigned *pu, unsigned n)
{
    unsigned n_left = 0;
    for (unsigned i = 0; i < n; i++) {
        for (unsigned k = 0; k < all->n; k++) {
            if (all->pu[k] == pu[i] && all->is_there[k]) {
                all->left[n_left++] = pu[i];
            }
        }
    }
    return n_left;
}

/* Its own CPU, else one of its node, else any. True where it is another than at first. */
static bool put_back(struct pool_thread *thread, const struct pus *all)
{
    const struct topo *topo = thread->pools->topo;
    const struct topo_node *node = &topo->node[thread->pools->worker[thread->ig0].in];
    const unsigned n_home = find_home(thread, thread->pu);
    unsigned n_left = find_left(all, thread->pu, n_home);
    const bool moves = n_left < n_home;
    if (n_left == 0) {
        n_left = find_left(all, node->pu, node->n_pu);
    }
    if (n_left == 0) {
        n_left = find_left(all, all->pu, all->n);
    }
    memcpy(thread->pu, all->left, n_left * sizeof(*thread->pu));
    thread->n_pu = n_left;
    if (n_left > 0) {
        topo->world->pin(topo->world, thread->id, thread->pu, n_left);
    }
    return moves;
}

static bool all_in_place(const struct pools *pools)
{
    struct world *world = pools->topo->world;
    for (unsigned it = 0; it < pools->n_thread; it++) {
        const struct pool_thread *thread = &pools->thread[it];
        bool yes = true;
        if (world->is_pinned(world, thread->id, thread->pu, thread->n_pu, &yes) == 0 && !yes) {
            return false;
        }
    }
    return true;
}

bool pools_repin(struct pools *pools)
{
    struct pus all;
    unsigned n_moved = 0;
    if (atomic_load(&pools->pin_error) != 0 || all_in_place(pools)) {
        return false;
    }
    const bool known = pus_init(pools->topo, &all) && all.n_there > 0;
    for (unsigned it = 0; known && it < pools->n_thread; it++) {
        n_moved += put_back(&pools->thread[it], &all);
    }
    if (known) {
        pools->n_runnable = MIN(pools->topo->n_runnable, all.n_there);
        set_patience(pools);
        if (n_moved > 0) {
            log_warn("%u of %u CPUs are left to this process (a smaller cpuset, or CPUs went "
                     "offline): %u of %u threads run on others than before",
                     all.n_there, all.n, n_moved, pools->n_thread);
        } else {
            log_info("the cpuset of this process was changed, workers were put back in place");
        }
    } else {
        atomic_store(&pools->pin_error, EINVAL); /* nothing is known: leave them to the kernel */
        log_warn("workers are no longer where they were put, and which CPUs are left cannot be "
                 "found out: the kernel places them");
    }
    pus_fini(&all);
    return true;
}

/* Waiting is what is measured: whoever comes last, and a worker alone, goes on in its stage. Were
 * that one to look at the clock, all others would wait for it. */
static void wait_measured(struct worker *w, struct gate_word *word, uint32_t phase,
                          bool within_node)
{
    const enum probe_stage stage = probe_switch(w->probe, PROBE_MEETING);
    wait_at(w, word, phase, within_node, &patience_now(w->pools)->barrier);
    probe_switch(w->probe, stage);
}

void worker_node_barrier(struct worker *w)
{
    struct pool_gate *gate = w->gate;
    uint32_t phase = ++w->node_phase;
    if (arrive(w, &gate->node_here, &group_of(w)->node_here, phase)) {
        gate_open(&gate->node_go, phase);
    } else {
        wait_measured(w, &gate->node_go, phase, true);
    }
}

void worker_all_barrier(struct worker *w)
{
    struct pools *pools = w->pools;
    if (w->n_node == 1) {
        worker_node_barrier(w);
        return;
    }
    uint32_t phase = ++w->all_phase;
    bool node_complete = arrive(w, &w->gate->all_here, &group_of(w)->all_here, phase);
    if (node_complete && gate_arrive(&pools->meet->here, phase, w->n_node)) {
        for (unsigned in = 0; in < w->n_node; in++) {
            gate_open(&pools->gate[in]->all_go, phase);
        }
    } else {
        wait_measured(w, &w->gate->all_go, phase, false);
    }
    w->n_gate++;
}
