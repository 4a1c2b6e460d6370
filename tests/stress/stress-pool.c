/* The worker pools under load, with plain memory between the barriers: made for ThreadSanitizer,
 * which Criterion's test processes do not survive, and run in every build. Prints TAP, one line a
 * machine and number of workers.
 *
 * Each round writes with plain stores what other workers read after a barrier, then overwrites it
 * after the next: a barrier that lets anybody through early is a data race here, and a wrong sum.
 * Runs of all nodes together and of each alone take turns.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "numa/pool.h"
#include "numa/topo.h"

#define N_ITEM     97
#define N_ROUND    40
#define N_RUN      12
#define MAX_NODE   8
#define MAX_WORKER 16

struct round_state {
    uint32_t taken[MAX_NODE][N_ITEM]; /* how often share_next gave the item out, per node */
    uint32_t mine[MAX_WORKER];        /* written by worker ig, read by all */
    bool bad[MAX_WORKER];
    uint32_t n_round;
};

static void take_items(struct round_state *s, struct worker *w, uint32_t grain)
{
    struct share share;
    uint32_t lo, hi;
    share_begin(&share, w, N_ITEM, grain);
    while (share_next(&share, &lo, &hi)) {
        for (uint32_t i = lo; i < hi; i++) {
            s->taken[w->in][i]++;
        }
    }
}

static bool all_taken(const struct round_state *s, const struct worker *w, uint32_t times)
{
    for (uint32_t i = 0; i < N_ITEM; i++) {
        if (s->taken[w->in][i] != times) {
            return false;
        }
    }
    return true;
}

static bool all_wrote(const struct round_state *s, const struct worker *w, uint32_t round)
{
    for (unsigned ig = 0; ig < w->ng; ig++) {
        if (s->mine[ig] != round * MAX_WORKER + ig) {
            return false;
        }
    }
    return true;
}

static void rounds(struct worker *w, void *arg)
{
    struct round_state *s = arg;
    bool good = true;
    for (uint32_t round = 0; round < s->n_round; round++) {
        take_items(s, w, 1 + round % 7);
        worker_node_barrier(w);
        good = all_taken(s, w, round + 1) && good;
        s->mine[w->ig] = round * MAX_WORKER + w->ig;
        worker_all_barrier(w);
        good = all_wrote(s, w, round) && good;
        worker_all_barrier(w);
    }
    s->bad[w->ig] = !good;
}

static bool is_good(const struct round_state *s)
{
    for (unsigned ig = 0; ig < MAX_WORKER; ig++) {
        if (s->bad[ig]) {
            return false;
        }
    }
    return true;
}

static bool run_together(struct pools *pools)
{
    static struct round_state s;
    memset(&s, 0, sizeof s);
    s.n_round = N_ROUND;
    pools_run(pools, rounds, &s);
    return is_good(&s);
}

/* Each node another number of rounds, the first one none at all in every other run. */
static bool run_each(struct pools *pools, unsigned run)
{
    static struct round_state s[MAX_NODE];
    void *arg[MAX_NODE];
    bool good = true;
    memset(s, 0, sizeof s);
    for (unsigned in = 0; in < MAX_NODE; in++) {
        s[in].n_round = N_ROUND / (in + 1);
        arg[in] = in > 0 || run % 2 == 0 ? &s[in] : NULL;
    }
    pools_run_each(pools, rounds, arg);
    for (unsigned in = 0; in < MAX_NODE; in++) {
        good = good && is_good(&s[in]);
    }
    return good;
}

static bool run_rounds(struct pools *pools)
{
    for (unsigned run = 0; run < N_RUN; run++) {
        if (!run_together(pools) || !run_each(pools, run)) {
            return false;
        }
        if (run % 4 == 0) { /* long enough for the workers to park */
            nanosleep(&(struct timespec){0, 30000000}, NULL);
        }
    }
    return true;
}

static bool stress(const char *spec, unsigned n_worker, numoe_error *err)
{
    struct topo *topo = NULL;
    struct pools *pools = NULL;
    bool good = topo_load(spec, &topo, err) == NUMOE_OK && topo->n_node <= MAX_NODE &&
                pools_new(topo, n_worker, &pools, err) == NUMOE_OK && run_rounds(pools);
    pools_free(pools);
    topo_free(topo);
    return good;
}

int main(void)
{
    const char *specs[] = {NULL, "pack:2 [numa(memory=4GiB)] core:4 pu:1",
                           "pack:2 group:2 [numa(memory=4GiB)] core:2 pu:2"};
    const unsigned n_worker[] = {1, 2, 3, 4, 7, 8};
    unsigned number = 0, n_bad = 0;
    printf("1..%zu\n", ARRAY_LEN(specs) * ARRAY_LEN(n_worker));
    for (size_t is = 0; is < ARRAY_LEN(specs); is++) {
        for (size_t iw = 0; iw < ARRAY_LEN(n_worker); iw++) {
            numoe_error err = {.text =
                                   "a worker went through a barrier early, or an item was lost"};
            bool good = stress(specs[is], n_worker[iw], &err);
            printf("%s %u - %u workers on %s%s%s\n", good ? "ok" : "not ok", ++number, n_worker[iw],
                   specs[is] != NULL ? specs[is] : "this machine", good ? "" : ": ",
                   good ? "" : err.text);
            fflush(stdout);
            n_bad += !good;
        }
    }
    return n_bad > 0;
}
