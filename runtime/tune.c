/* Owns the choice: what is open, what is remembered of it, what is to be measured, and what follows
 * from the numbers. Nothing of it changes results, only how fast they come.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "runtime/tune.h"

#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

#include "base/hash.h"
#include "base/knob.h"
#include "base/log.h"
#include "kernels/select.h"
#include "numa/pages.h"
#include "runtime/tune-probe.h"

#define WAIT_MS 2000 /* for another process that measures the same */

/* A request's time is mostly decoding; and what is remembered for weeks must be clearly better. */
#define DECODE_PART 0.8
#define MUST_WIN    0.97

#define MAX_SLEEP_NS 1000000u

enum open_item { OPEN_WORKERS = 1, OPEN_SLEEP = 2, OPEN_PAGES = 4 };

/* ------------------------------------------------------------------ what follows from numbers */

unsigned tuning_choose_workers(const struct tuning_candidate *candidate, unsigned n)
{
    unsigned percent = 100;
    double best = MUST_WIN;
    for (unsigned i = 0; i < n; i++) {
        const struct worker_ratio *r = &candidate[i].ratio;
        const double time = DECODE_PART * r->decode + (1 - DECODE_PART) * r->prompt;
        if (time < best) {
            best = time;
            percent = candidate[i].workers_percent;
        }
    }
    return percent;
}

/* Who waits awake for as long as waking takes, and sleeps then, loses at most twice the least that
 * was possible. Twice as long: between two steps the caller has something to do as well. */
uint32_t tuning_choose_sleep(uint64_t wake_ns)
{
    return (uint32_t)MIN(MAX(2 * wake_ns, POOL_SLEEP_NS), MAX_SLEEP_NS);
}

/* ------------------------------------------------------------------ the key */

/* Of the numbers of a node's CPUs, in their order: a list of all would be long. */
static uint64_t hash_cpus(const struct topo_node *node)
{
    uint64_t hash = HASH_BEGIN;
    for (unsigned i = 0; i < node->n_pu; i++) {
        hash = hash_add(hash, node->pu[i]);
    }
    return hash;
}

static numoe_status add_nodes(const struct topo *topo, struct strbuf *out, numoe_error *err)
{
    for (unsigned in = 0; in < topo->n_node; in++) {
        const struct topo_node *node = &topo->node[in];
        FORWARD_IF(strbuf_printf(out, err,
                                 "; node %u: package %u, %u cores, %u CPUs (%016llx), %llu MiB of "
                                 "cache",
                                 node->os_index, node->package, node->n_core, node->n_pu,
                                 (unsigned long long)hash_cpus(node),
                                 (unsigned long long)(node->llc_bytes >> 20)));
    }
    return NUMOE_OK;
}

static const char *or_auto(const char *text)
{
    return text != NULL ? text : "auto";
}

numoe_status tuning_key(const struct topo *topo, const char *isa, struct strbuf *out,
                        numoe_error *err)
{
    struct utsname system;
    const char *release = uname(&system) == 0 ? system.release : "unknown";
    /* the processor is the first part of the description; memory, behind it, may be plugged in */
    FORWARD_IF(strbuf_printf(out, err, "numoe %s, %s kernels, %.*s, Linux %s, %u CPUs at a time",
                             numoe_version(), isa, (int)strcspn(topo->description, ","),
                             topo->description, release, topo->n_runnable));
    FORWARD_IF(strbuf_printf(out, err, ", quota %.2f, pages %s, threads %s", topo->cpu_quota,
                             or_auto(knob_str("NUMOE_PAGES")),
                             or_auto(knob_str("NUMOE_POOL_THREADS"))));
    return add_nodes(topo, out, err);
}

/* ------------------------------------------------------------------ what is open */

/* How many workers there are. */
static bool quota_decides(const struct topo *topo)
{
    return topo->cpu_quota > 0 && topo->cpu_quota < topo->n_core;
}

/* Workers: not where somebody has said how many, or where a quota does. */
static unsigned open_items(const numoe_engine_params *params, const struct topo *topo,
                           enum pages_policy policy, bool sleep_is_given)
{
    unsigned percent[2], open = 0;
    const bool limited = quota_decides(topo) ||
                         topo->n_runnable < topo->n_core || knob_str("NUMOE_POOL_THREADS") != NULL;
    if (params->n_thread == 0 && !limited && tune_workers_to_try(topo, percent) > 0) {
        open |= OPEN_WORKERS;
    }
    if (!sleep_is_given && !limited) {
        open |= OPEN_SLEEP;
    }
    return open | (pages_are_open(topo, policy) ? OPEN_PAGES : 0);
}

static bool recall(struct tuning *t, const char *name, double min, double max, double *value)
{
    int64_t when;
    if (!memo_get(t->memo, name, min, max, value, &when)) {
        return false;
    }
    t->since = t->source == TUNING_DEFAULTS ? when : MIN(t->since, when);
    t->source = TUNING_REMEMBERED;
    return true;
}

static void set_pages(struct topo *topo, bool small)
{
    topo->pages_are_known = true;
    topo->small_pages_are_faster = small;
}

/* What is still open afterwards. */
static unsigned recall_items(struct tuning *t, struct topo *topo, unsigned open)
{
    double value;
    if ((open & OPEN_PAGES) != 0 && recall(t, "small_pages", 0, 1, &value)) {
        set_pages(topo, value > 0.5);
        open &= ~(unsigned)OPEN_PAGES;
    }
    if ((open & OPEN_WORKERS) != 0 && recall(t, "workers_percent", 50, 200, &value)) {
        t->workers_percent = (unsigned)value;
        open &= ~(unsigned)OPEN_WORKERS;
    }
    if ((open & OPEN_SLEEP) != 0 && recall(t, "sleep_ns", POOL_SLEEP_NS, MAX_SLEEP_NS, &value)) {
        t->sleep_ns = (uint32_t)value;
        open &= ~(unsigned)OPEN_SLEEP;
    }
    return open;
}

/* ------------------------------------------------------------------ what is measured */

static void measure_pages(struct tuning *t, struct topo *topo)
{
    double small_ns, thp_ns;
    if (pages_probe(&small_ns, &thp_ns)) {
        const bool small = pages_faster(small_ns, thp_ns) == PAGES_SMALL;
        set_pages(topo, small);
        memo_set(t->memo, "small_pages", small);
        log_info("small pages take %.2f of the time of transparent huge pages", small_ns / thp_ns);
    }
}

static void measure_sleep(struct tuning *t, struct pools *pools)
{
    const uint64_t wake_ns = tune_probe_wake(pools);
    t->sleep_ns = tuning_choose_sleep(wake_ns);
    memo_set(t->memo, "sleep_ns", t->sleep_ns);
    log_info("waking the workers takes %.0f us: they wait awake for %.0f us",
             (double)wake_ns * 1e-3, t->sleep_ns * 1e-3);
}

static void measure_items(struct tuning *t, struct topo *topo, const struct kern *kern,
                          unsigned open)
{
    struct pools *pools = NULL;
    numoe_error why;
    if ((open & OPEN_PAGES) != 0) {
        measure_pages(t, topo);
    }
    if ((open & (OPEN_WORKERS | OPEN_SLEEP)) != 0 && pools_new(topo, 0, &pools, &why) != NUMOE_OK) {
        log_info("workers are not tuned: %s", why.text);
        return;
    }
    if ((open & OPEN_SLEEP) != 0) {
        measure_sleep(t, pools);
    }
    if ((open & OPEN_WORKERS) != 0) {
        t->workers_percent = tune_probe_workers(topo, kern, pools);
        memo_set(t->memo, "workers_percent", t->workers_percent);
    }
    pools_free(pools);
}

static void measure(struct tuning *t, struct topo *topo, const struct kern *kern, unsigned open)
{
    const bool is_mine = memo_lock(t->memo, WAIT_MS);
    open = recall_items(t, topo, open); /* another process may just have measured it */
    if (open != 0 && is_mine) {
        measure_items(t, topo, kern, open);
        t->source = TUNING_MEASURED;
        memo_save(t->memo);
    } else if (open != 0) {
        log_info("another process measures this machine: defaults for what is not known yet");
    }
    memo_unlock(t->memo);
}

/* ------------------------------------------------------------------ in words */

static const char *workers_text(const struct tuning *t, const numoe_engine_params *params,
                                const struct topo *topo, char *buffer, size_t cap)
{
    if (params->n_thread > 0) {
        return "as many workers as asked for";
    }
    if (quota_decides(topo)) {
        return "as many workers as the CPU quota allows";
    }
    if (t->workers_percent == 100) {
        return "a worker for each core";
    }
    if (t->workers_percent == 200) {
        return "two workers for each core";
    }
    snprintf(buffer, cap, "workers for %u %% of the cores", t->workers_percent);
    return buffer;
}

static void source_text(const struct tuning *t, const char *why_default, char *text, size_t cap)
{
    struct tm day;
    if (t->source == TUNING_REMEMBERED && localtime_r(&(time_t){t->since}, &day) != NULL) {
        strftime(text, cap, "measured on %Y-%m-%d", &day);
    } else {
        snprintf(text, cap, "%s", t->source == TUNING_MEASURED ? "measured now" : why_default);
    }
}

static void describe(struct tuning *t, const numoe_engine_params *params, const struct topo *topo,
                     const char *why_default)
{
    char workers[48], source[48];
    source_text(t, why_default, source, sizeof source);
    snprintf(t->text, sizeof t->text, "%s, awake for %.3g us%s; %s",
             workers_text(t, params, topo, workers, sizeof workers), t->sleep_ns * 1e-3,
             topo->pages_are_known
                 ? topo->small_pages_are_faster ? ", small pages" : ", transparent huge pages"
                 : "",
             source);
}

/* ------------------------------------------------------------------ all of it */

static numoe_status probe_is_off(bool *off, numoe_error *err)
{
    const char *text = knob_str("NUMOE_PROBE");
    if (text != NULL && strcmp(text, "off") != 0 && strcmp(text, "auto") != 0) {
        return status_fail(err, NUMOE_E_INPUT, "NUMOE_PROBE is \"%s\", expected auto or off", text);
    }
    *off = text != NULL && strcmp(text, "off") == 0;
    return NUMOE_OK;
}

static numoe_status tune(const numoe_engine_params *params, bool may_measure, struct topo *topo,
                         unsigned open, struct tuning *t, numoe_error *err)
{
    const struct kern *kern;
    struct strbuf key = {0};
    FORWARD_IF(kern_select(&kern, err));
    numoe_status status = tuning_key(topo, kern->isa, &key, err);
    if (status == NUMOE_OK) {
        t->memo = memo_open(key.data);
        open = recall_items(t, topo, open);
        if (open != 0 && may_measure) {
            measure(t, topo, kern, open);
        }
    }
    strbuf_fini(&key);
    if (status == NUMOE_OK) {
        describe(t, params, topo,
                 open == 0     ? "nothing is left to measure"
                 : may_measure ? "defaults, another process measures"
                               : "not measured yet");
    }
    return status;
}

numoe_status tuning_open(const numoe_engine_params *params, bool may_measure, struct topo *topo,
                         struct tuning *out, numoe_error *err)
{
    struct tuning t = {.workers_percent = 100, .sleep_ns = POOL_SLEEP_NS};
    unsigned spin_us = 0;
    bool is_off = false;
    enum pages_policy policy;
    FORWARD_IF(probe_is_off(&is_off, err));
    FORWARD_IF(pages_policy(&policy, err));
    FORWARD_IF(knob_uint("NUMOE_SPIN_US", 1, 1000000, &spin_us, err));
    t.sleep_ns = spin_us > 0 ? spin_us * 1000 : t.sleep_ns;
    const unsigned open = open_items(params, topo, policy, spin_us > 0);
    if ((open & OPEN_PAGES) != 0) {
        set_pages(topo, false); /* until something says otherwise */
    }
    if (params->no_probe || is_off || !topo->is_this_machine) {
        describe(&t, params, topo,
                 topo->is_this_machine ? "defaults, nothing is measured"
                                       : "defaults, this is another machine");
        *out = t;
        return NUMOE_OK;
    }
    numoe_status status = tune(params, may_measure, topo, open, &t, err);
    if (status != NUMOE_OK) {
        tuning_close(&t);
        return status;
    }
    *out = t;
    return NUMOE_OK;
}

void tuning_close(struct tuning *tuning)
{
    memo_close(tuning->memo);
    tuning->memo = NULL;
}

unsigned tuning_workers(const struct tuning *tuning, const struct topo *topo, unsigned n_asked)
{
    if (n_asked > 0 || tuning->workers_percent == 100) {
        return n_asked;
    }
    return MAX(topo->n_core * tuning->workers_percent / 100, topo->n_node);
}

/* ------------------------------------------------------------------ bandwidth */

#define MAX_BPS      1e15
#define NOTE_WAIT_MS 100 /* for another process that writes */

/* Others may have found more since this process began: of several that measured at once, the one
 * that was disturbed least is right. */
static void note(struct tuning *tuning, const char *name, double bps)
{
    double more;
    if (!memo_get(tuning->memo, name, bps, MAX_BPS, &more, NULL)) {
        memo_set(tuning->memo, name, bps);
    }
}

static void node_name(const struct placement_node *node, char *name)
{
    snprintf(name, MEMO_MAX_NAME, "node%u_%u_bps", node->os_index, node->n_worker);
}

bool tuning_recall_nodes(const struct tuning *tuning, struct placement_machine *machine)
{
    char name[MEMO_MAX_NAME];
    double bps[TOPO_MAX_NODE];
    for (unsigned in = 0; in < machine->n_node; in++) {
        node_name(&machine->node[in], name);
        if (!memo_get(tuning->memo, name, 1, MAX_BPS, &bps[in], NULL)) {
            return false;
        }
    }
    for (unsigned in = 0; in < machine->n_node; in++) {
        machine->node[in].read_bps = bps[in];
    }
    machine->bps_source = "measured before";
    return true;
}

void tuning_note_nodes(struct tuning *tuning, const struct placement_machine *machine)
{
    char name[MEMO_MAX_NAME];
    memo_lock(tuning->memo, NOTE_WAIT_MS);
    for (unsigned in = 0; in < machine->n_node; in++) {
        node_name(&machine->node[in], name);
        note(tuning, name, machine->node[in].read_bps);
    }
    memo_save(tuning->memo);
    memo_unlock(tuning->memo);
}

/* An engine may have left nodes out since the key was made. */
static void all_name(const struct topo *topo, const struct pools *pools, char *name)
{
    const unsigned n_node = pools_n_node(pools);
    snprintf(name, MEMO_MAX_NAME, "%u_nodes_%u_to_%u_%u_bps", n_node, topo->node[0].os_index,
             topo->node[n_node - 1].os_index, pools_n_worker(pools));
}

double tuning_recall_all(const struct tuning *tuning, const struct topo *topo,
                         const struct pools *pools)
{
    char name[MEMO_MAX_NAME];
    double bps = 0;
    all_name(topo, pools, name);
    memo_get(tuning->memo, name, 1, MAX_BPS, &bps, NULL);
    return bps;
}

void tuning_note_all(struct tuning *tuning, const struct topo *topo, const struct pools *pools,
                     double bps)
{
    char name[MEMO_MAX_NAME];
    all_name(topo, pools, name);
    memo_lock(tuning->memo, NOTE_WAIT_MS);
    note(tuning, name, bps);
    memo_save(tuning->memo);
    memo_unlock(tuning->memo);
}
