/* Owns the probes of a machine's workers. They are short, and what cannot be measured is not
 * chosen.
 */
#include "runtime/tune-probe.h"

#include <time.h>

#include "base/clock.h"
#include "base/log.h"

#define N_WAKE      15
#define DUEL_NS     UINT64_C(80000000) /* for each candidate */
#define MANY_CORES  4u                 /* of a node: with fewer none can be spared */
#define FEWER_FIRST 75u                /* percent */
#define FEWER_THEN  50u

/* ------------------------------------------------------------------ waking */

static void nothing(struct worker *w, void *arg)
{
    (void)w, (void)arg;
}

static uint64_t run_ns(struct pools *pools)
{
    const uint64_t begin_ns = clock_ns();
    pools_run(pools, nothing, NULL);
    return clock_ns() - begin_ns;
}

/* The shortest of several: what others do with the CPUs lengthens it, and would be taken for a slow
 * wake-up, for which workers would keep the CPUs from them even more. */
uint64_t tune_probe_wake(struct pools *pools)
{
    uint64_t asleep_ns = UINT64_MAX, awake_ns = UINT64_MAX;
    for (unsigned i = 0; i < N_WAKE; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 5 * POOL_SLEEP_NS}, NULL);
        const uint64_t slow_ns = run_ns(pools), quick_ns = run_ns(pools);
        asleep_ns = MIN(asleep_ns, slow_ns);
        awake_ns = MIN(awake_ns, quick_ns);
    }
    return asleep_ns - MIN(asleep_ns, awake_ns);
}

/* ------------------------------------------------------------------ workers */

/* 1: one hardware thread; 0: cores differ, or not all of them may be used. */
static unsigned threads_of_a_core(const struct topo *topo)
{
    const unsigned n = topo->node[0].n_pu / MAX(topo->node[0].n_core, 1u);
    for (unsigned in = 0; in < topo->n_node; in++) {
        if (topo->node[in].n_pu != n * topo->node[in].n_core) {
            return 0;
        }
    }
    return n;
}

unsigned tune_workers_to_try(const struct topo *topo, unsigned *percent)
{
    const unsigned n_smt = threads_of_a_core(topo);
    unsigned n = 0, least = topo->node[0].n_core;
    for (unsigned in = 0; in < topo->n_node; in++) {
        least = MIN(least, topo->node[in].n_core);
    }
    if (n_smt >= 2 && topo->n_runnable >= 2 * topo->n_core && 2 * topo->n_core <= POOL_MAX_WORKER) {
        percent[n++] = 200;
    }
    if (least >= MANY_CORES) {
        percent[n++] = FEWER_FIRST;
    }
    return n;
}

static bool try_workers(const struct topo *topo, const struct kern *kern, struct pools *usual,
                        unsigned percent, struct tuning_candidate *out)
{
    struct pools *other = NULL;
    numoe_error why;
    const unsigned n_worker = topo->n_core * percent / 100;
    numoe_status status = pools_new(topo, n_worker, &other, &why);
    if (status == NUMOE_OK) {
        status = worker_probe(topo, kern, usual, other, DUEL_NS, &out->ratio, &why);
    }
    pools_free(other);
    if (status != NUMOE_OK) {
        log_info("%u workers are not tried: %s", n_worker, why.text);
        return false;
    }
    out->workers_percent = percent;
    log_info("%u workers on %u cores take %.3f of the time of one each for decoding, %.3f for "
             "prompts",
             n_worker, topo->n_core, out->ratio.decode, out->ratio.prompt);
    return true;
}

unsigned tune_probe_workers(const struct topo *topo, const struct kern *kern, struct pools *usual)
{
    unsigned percent[2], n_tried = 0;
    struct tuning_candidate tried[3];
    const unsigned n = tune_workers_to_try(topo, percent);
    for (unsigned i = 0; i < n; i++) {
        n_tried += try_workers(topo, kern, usual, percent[i], &tried[n_tried]);
    }
    /* Memory that fewer workers fill may do with even fewer. */
    if (n_tried > 0 && tried[n_tried - 1].workers_percent == FEWER_FIRST &&
        tried[n_tried - 1].ratio.decode < 1) {
        n_tried += try_workers(topo, kern, usual, FEWER_THEN, &tried[n_tried]);
    }
    return tuning_choose_workers(tried, n_tried);
}
