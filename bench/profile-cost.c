/* What do the profile and the trace cost? Decodes blocks of tokens without, with the probe of
 * --profile and with that of --trace in turns, in one process, so that a machine that slows down
 * slows all of them. Each block is compared with those without a probe beside it. Prints the median
 * of the ratios and their quartiles, by the clock, and by processor time, which other programs
 * disturb less. "nothing" is a second block without a probe: what the others' figures could be by
 * chance. On a busy machine that is more than the cost, so that is also put together from what
 * hardly varies: the switches from stage to stage that a token needs, and the processor time of
 * one.
 *
 *   bench/profile-cost [-m MODEL.gguf] [-t WORKERS] [-n TOKENS] [-r ROUNDS]
 */
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/median.h"
#include "base/mem.h"
#include "runtime/engine.h"

#define MAX_ROUND 100000u

enum probe_kind { NOTHING, PROFILE, TRACE, N_KIND };
static const char *const kind_name[N_KIND] = {"nothing", "profile", "trace"};

struct bench {
    numoe_engine *engine;
    numoe_session *session;
    unsigned n_worker, n_token, n_round;
    double *wall[N_KIND], *cpu[N_KIND]; /* [n_round] of each: over that without a probe */
    double *token_us, *token_cpu_us;    /* [n_round]: without a probe; of all workers */
    double n_switch;                    /* a token and worker, as the last trace has them */
};

struct cost {
    double wall, cpu; /* seconds of a block */
};

static int fail(const numoe_error *err)
{
    fprintf(stderr, "profile-cost: %s\n", err->text);
    return 1;
}

static double cpu_seconds(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* The same tokens every time, one after the other. */
static numoe_status decode(struct bench *b, unsigned n, numoe_error *err)
{
    const unsigned n_vocab = numoe_engine_get_info(b->engine)->n_vocab;
    numoe_session_truncate(b->session, 0);
    for (unsigned i = 0; i < n; i++) {
        const int32_t id = (int32_t)(i * 7919u % n_vocab);
        numoe_status status = numoe_session_append(b->session, &id, 1, err);
        status = status == NUMOE_OK ? numoe_step(b->engine, &b->session, 1, err) : status;
        if (status != NUMOE_OK) {
            return status;
        }
    }
    return NUMOE_OK;
}

/* What a probe needs at the start is not in a block's time, nor that its memory has pushed the
 * model out of the caches: every block is evaluated once before it counts. */
static numoe_status block(struct bench *b, enum probe_kind kind, struct cost *cost,
                          numoe_error *err)
{
    numoe_status status = kind == NOTHING ? (numoe_profile_stop(b->engine), NUMOE_OK)
                                          : numoe_profile_start(b->engine, kind == TRACE, err);
    status = status == NUMOE_OK ? decode(b, b->n_token, err) : status;
    const struct cost begin = {clock_seconds(), cpu_seconds()};
    status = status == NUMOE_OK ? decode(b, b->n_token, err) : status;
    *cost = (struct cost){clock_seconds() - begin.wall, cpu_seconds() - begin.cpu};
    return status;
}

static void count_switches(struct bench *b)
{
    const struct numoe_engine *e = b->engine;
    size_t n = 0;
    for (unsigned i = 1; i < e->n_track; i++) { /* the first is the caller's */
        n += e->probe[i].n_span;
    }
    b->n_switch = (double)n / (e->n_track - 1) / (2 * b->n_token); /* both times */
}

/* Each kind between two blocks without a probe. */
static numoe_status run_rounds(struct bench *b, numoe_error *err)
{
    struct cost before, now, after;
    numoe_status status = NUMOE_OK;
    for (unsigned ir = 0; status == NUMOE_OK && ir < b->n_round; ir++) {
        status = block(b, NOTHING, &before, err);
        for (unsigned ik = 0; status == NUMOE_OK && ik < N_KIND; ik++) {
            status = block(b, (enum probe_kind)ik, &now, err);
            if (ik == TRACE && status == NUMOE_OK) {
                count_switches(b);
            }
            status = status == NUMOE_OK ? block(b, NOTHING, &after, err) : status;
            b->wall[ik][ir] = now.wall * 2 / (before.wall + after.wall);
            b->cpu[ik][ir] = now.cpu * 2 / (before.cpu + after.cpu);
            before = after;
        }
        b->token_us[ir] = before.wall / b->n_token * 1e6;
        b->token_cpu_us[ir] = before.cpu / b->n_token * 1e6;
    }
    return status;
}

/* ------------------------------------------------------------------ figures */

static double at(const double *sorted, unsigned n, double part)
{
    return sorted[(unsigned)(part * (n - 1) + 0.5)];
}

static void print_percent(double *ratio, unsigned n)
{
    qsort(ratio, n, sizeof *ratio, median_compare_double);
    printf("  %+7.2f %% (%+6.2f .. %+6.2f)", at(ratio, n, 0.5) * 100 - 100,
           at(ratio, n, 0.25) * 100 - 100, at(ratio, n, 0.75) * 100 - 100);
}

/* Processor time of a switch, with as many counters of bytes as a worker has; for a trace, its span
 * goes to memory that has not been in a cache for long. */
static numoe_status switch_ns(bool by_counter, bool trace, double *ns, numoe_error *err)
{
    enum { N_SWITCH = 1000000, N_LAYER = 8 };
    static uint64_t counted[PROBE_COUNTERS / 2];
    struct probe_track *t;
    numoe_status status = probe_new(1, N_LAYER, trace, &t, err);
    if (status != NUMOE_OK) {
        return status;
    }
    if (trace) {
        probe_touch(t);
    }
    t->by_counter = t->by_counter && by_counter;
    for (unsigned i = 0; i < PROBE_COUNTERS / 2; i++) {
        t->counter[i] = &counted[i];
    }
    const double begin = cpu_seconds();
    probe_begin(t, PROBE_EMBED);
    for (uint32_t i = 0; i < N_SWITCH; i++) {
        probe_enter(t, i % N_LAYER, i % 2 ? PROBE_EXPERTS : PROBE_MEETING);
    }
    *ns = (cpu_seconds() - begin) / N_SWITCH * 1e9;
    probe_free(t, 1);
    return NUMOE_OK;
}

static numoe_status print_price(struct bench *b, numoe_error *err)
{
    const unsigned n_worker = numoe_engine_get_info(b->engine)->n_worker;
    double ns[N_KIND] = {0}, by_clock_ns;
    numoe_status status = switch_ns(false, false, &by_clock_ns, err);
    for (unsigned ik = PROFILE; status == NUMOE_OK && ik < N_KIND; ik++) {
        status = switch_ns(true, ik == TRACE, &ns[ik], err);
    }
    if (status != NUMOE_OK) {
        return status;
    }
    qsort(b->token_cpu_us, b->n_round, sizeof *b->token_cpu_us, median_compare_double);
    const double token_us = at(b->token_cpu_us, b->n_round, 0.5) / n_worker;
    printf("%.0f switches a token and worker, of %.1f us (by the clock one would take %.1f ns)\n",
           b->n_switch, token_us, by_clock_ns);
    for (unsigned ik = PROFILE; ik < N_KIND; ik++) {
        const double all_us = ns[ik] * b->n_switch * 1e-3;
        printf("%-10s  %.1f ns each, %.2f us: %.2f %%\n", kind_name[ik], ns[ik], all_us,
               all_us / token_us * 100);
    }
    return NUMOE_OK;
}

static void print_all(struct bench *b)
{
    const numoe_engine_info *info = numoe_engine_get_info(b->engine);
    qsort(b->token_us, b->n_round, sizeof *b->token_us, median_compare_double);
    printf("%s\n%s %s, %u workers, %u rounds of %u tokens, %.1f us a token without a probe\n",
           info->machine, info->model_name, info->type_name, info->n_worker, b->n_round, b->n_token,
           at(b->token_us, b->n_round, 0.5));
    printf("%-10s  %-29s  %-29s\n", "probe", "time (quartiles)", "processor time (quartiles)");
    for (unsigned ik = 0; ik < N_KIND; ik++) {
        printf("%-10s", kind_name[ik]);
        print_percent(b->wall[ik], b->n_round);
        print_percent(b->cpu[ik], b->n_round);
        putchar('\n');
    }
}

/* ------------------------------------------------------------------ set-up */

static bool parse(int argc, char **argv, struct bench *b, const char **model)
{
    for (int c; (c = getopt(argc, argv, "m:t:n:r:")) != -1;) {
        const unsigned value = c == '?' || c == 'm' ? 0 : (unsigned)strtoul(optarg, NULL, 10);
        if (c == 'm') {
            *model = optarg;
        } else if (value == 0 || value > MAX_ROUND) {
            return false;
        } else {
            *(c == 't' ? &b->n_worker : c == 'n' ? &b->n_token : &b->n_round) = value;
        }
    }
    return optind == argc;
}

static numoe_status set_up(struct bench *b, const char *model, numoe_error *err)
{
    numoe_engine_params params;
    numoe_engine_params_init(&params);
    params.model_path = model;
    params.n_thread = b->n_worker;
    numoe_status status = numoe_engine_open(&params, &b->engine, err);
    if (status == NUMOE_OK) {
        status = numoe_session_new(b->engine, b->n_token, &b->session, err);
    }
    for (unsigned ik = 0; status == NUMOE_OK && ik < N_KIND; ik++) {
        status = mem_new(&b->wall[ik], b->n_round, sizeof(double), "times", err);
        status = status == NUMOE_OK ? mem_new(&b->cpu[ik], b->n_round, sizeof(double), "times", err)
                                    : status;
    }
    if (status == NUMOE_OK) {
        status = mem_new(&b->token_us, b->n_round, sizeof(double), "times", err);
    }
    return status == NUMOE_OK ? mem_new(&b->token_cpu_us, b->n_round, sizeof(double), "times", err)
                              : status;
}

int main(int argc, char **argv)
{
    struct bench b = {.n_token = 64, .n_round = 101};
    const char *model = NULL;
    numoe_error err;
    if (!parse(argc, argv, &b, &model)) {
        fprintf(stderr,
                "usage: profile-cost [-m MODEL.gguf] [-t WORKERS] [-n TOKENS] [-r ROUNDS]\n");
        return 2;
    }
    numoe_status status = set_up(&b, model, &err);
    status = status == NUMOE_OK ? run_rounds(&b, &err) : status;
    if (status == NUMOE_OK) {
        print_all(&b);
        status = print_price(&b, &err);
    }
    for (unsigned ik = 0; ik < N_KIND; ik++) {
        mem_free(b.wall[ik]);
        mem_free(b.cpu[ik]);
    }
    mem_free(b.token_us);
    mem_free(b.token_cpu_us);
    numoe_session_free(b.session);
    numoe_engine_close(b.engine);
    return status == NUMOE_OK ? 0 : fail(&err);
}
