/* Owns tracks: their memory and their sums. */
#include "base/probe.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"

#define ALL_SPANS ((size_t)4 << 20)
#define MIN_SPANS ((size_t)4096) /* of a track */

const char *probe_stage_name(enum probe_stage stage)
{
    static const char *const name[] = {
#define PROBE_NAME(name, text) text,
        PROBE_STAGES(PROBE_NAME)
#undef PROBE_NAME
    };
    return name[stage];
}

/* ------------------------------------------------------------------ ticks */

#if defined(__x86_64__)
#define COUNTER() __builtin_ia32_rdtsc()
#else
#define COUNTER() clock_ns()
#endif

/* Whether the counter goes on evenly, and alike on all CPUs, is known to the kernel: it watches
 * that, and takes another clock when it is not so. */
static bool is_counter_good(void)
{
#if defined(__x86_64__)
    char line[16] = "";
    FILE *f = fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "r");
    if (f == NULL) {
        return false;
    }
    const bool good = fgets(line, sizeof line, f) != NULL && strcmp(line, "tsc\n") == 0;
    fclose(f);
    return good;
#else
    return false;
#endif
}

static uint64_t ticks_now(const struct probe_track *t)
{
    return t->by_counter ? COUNTER() : clock_ns();
}

/* Of some tries the one in which the least passed: a thread may lose its CPU in the midst. */
static struct probe_moment moment(const struct probe_track *t)
{
    struct probe_moment best = {0};
    uint64_t least = UINT64_MAX;
    for (unsigned i = 0; i < 8; i++) {
        const uint64_t before = ticks_now(t), ns = clock_ns(), after = ticks_now(t);
        if (after - before < least) {
            least = after - before;
            best = (struct probe_moment){.ns = ns, .ticks = before + (after - before) / 2};
        }
    }
    return best;
}

double probe_tick_ns(const struct probe_track *t)
{
    if (!t->by_counter) {
        return 1;
    }
    const struct probe_moment now = moment(t);
    return (double)(now.ns - t->made.ns) / (double)MAX(now.ticks - t->made.ticks, UINT64_C(1));
}

/* ------------------------------------------------------------------ memory */

static numoe_status track_init(struct probe_track *t, unsigned n_layer, size_t n_span,
                               numoe_error *err)
{
    t->n_layer = n_layer;
    t->layer = PROBE_NO_LAYER;
    FORWARD_IF(mem_new_aligned(&t->sum, (size_t)(n_layer + 1) * N_PROBE_STAGE, sizeof *t->sum,
                               "profile", err));
    if (n_span > 0) {
        FORWARD_IF(mem_new(&t->span, n_span, sizeof *t->span, "trace", err));
        t->cap_span = n_span;
    }
    return NUMOE_OK;
}

numoe_status probe_new(unsigned n_track, unsigned n_layer, bool with_spans,
                       struct probe_track **tracks, numoe_error *err)
{
    struct probe_track *t = NULL;
    const size_t n_span = with_spans ? MAX(ALL_SPANS / MAX(n_track, 1u), MIN_SPANS) : 0;
    FORWARD_IF(mem_new_aligned(&t, n_track, sizeof *t, "profile", err));
    t[0].by_counter = is_counter_good();
    t[0].made = moment(&t[0]);
    for (unsigned i = 0; i < n_track; i++) {
        t[i].by_counter = t[0].by_counter;
        t[i].made = t[0].made;
        numoe_status status = track_init(&t[i], n_layer, n_span, err);
        if (status != NUMOE_OK) {
            probe_free(t, n_track);
            return status;
        }
    }
    *tracks = t;
    return NUMOE_OK;
}

void probe_free(struct probe_track *tracks, unsigned n_track)
{
    for (unsigned i = 0; tracks != NULL && i < n_track; i++) {
        mem_free(tracks[i].sum);
        mem_free(tracks[i].span);
    }
    mem_free(tracks);
}

/* ------------------------------------------------------------------ the thread's own */

static uint64_t count_now(const struct probe_track *t)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < PROBE_COUNTERS; i++) {
        sum += t->counter[i] != NULL ? *t->counter[i] : 0;
    }
    return sum;
}

static struct probe_cell *sum_at(const struct probe_track *t, uint32_t il, enum probe_stage stage)
{
    return &t->sum[(size_t)MIN(il, t->n_layer) * N_PROBE_STAGE + stage];
}

static void begin_span(struct probe_track *t)
{
    if (t->n_span == t->cap_span) {
        t->n_lost += t->cap_span > 0 && t->stage != N_PROBE_STAGE;
        return;
    }
    t->span[t->n_span++] = (struct probe_span){
        .begin = t->since,
        .layer = (uint16_t)MIN(t->layer, (uint32_t)UINT16_MAX),
        .stage = (uint16_t)t->stage,
    };
}

static void start(struct probe_track *t, uint32_t il, enum probe_stage stage, uint64_t now,
                  uint64_t count)
{
    t->since = now;
    t->since_count = count;
    t->layer = il;
    t->stage = stage;
    begin_span(t);
}

static void end(struct probe_track *t, uint64_t now, uint64_t count)
{
    struct probe_cell *sum = sum_at(t, t->layer, t->stage);
    const uint64_t counted = count - t->since_count;
    sum->ticks += now - t->since;
    sum->count += counted;
    if (t->n_span > 0) {
        t->span[t->n_span - 1].count = (uint32_t)MIN(counted, (uint64_t)UINT32_MAX);
    }
}

void probe_touch(struct probe_track *t)
{
    memset(t->span, 0, t->cap_span * sizeof *t->span);
}

void probe_first(struct probe_track *t, enum probe_stage stage)
{
    start(t, PROBE_NO_LAYER, stage, ticks_now(t), count_now(t));
}

void probe_next(struct probe_track *t, uint32_t il, enum probe_stage stage)
{
    const uint64_t now = ticks_now(t), count = count_now(t);
    end(t, now, count);
    start(t, il, stage, now, count);
}

void probe_last(struct probe_track *t)
{
    const uint64_t now = ticks_now(t), count = count_now(t);
    end(t, now, count);
    start(t, PROBE_NO_LAYER, N_PROBE_STAGE, now, count);
}

/* ------------------------------------------------------------------ sums */

static struct probe_sum sum_of(const struct probe_track *t, struct probe_cell cell)
{
    return (struct probe_sum){
        .ns = (uint64_t)((double)cell.ticks * probe_tick_ns(t) + 0.5),
        .count = cell.count,
    };
}

struct probe_sum probe_of_layer(const struct probe_track *t, uint32_t il, enum probe_stage stage)
{
    return sum_of(t, *sum_at(t, il, stage));
}

struct probe_sum probe_total(const struct probe_track *t, enum probe_stage stage)
{
    struct probe_cell total = {0};
    for (uint32_t il = 0; il <= t->n_layer; il++) {
        const struct probe_cell *cell = sum_at(t, il, stage);
        total.ticks += cell->ticks;
        total.count += cell->count;
    }
    return sum_of(t, total);
}
