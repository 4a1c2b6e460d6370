/* Owns tracks: their memory and their sums. */
#include "base/probe.h"

#define ALL_SPANS ((size_t)2 << 20)
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
    for (unsigned i = 0; i < n_track; i++) {
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

static struct probe_sum *sum_at(const struct probe_track *t, uint32_t il, enum probe_stage stage)
{
    return &t->sum[(size_t)MIN(il, t->n_layer) * N_PROBE_STAGE + stage];
}

void probe_start_stage(struct probe_track *t, uint32_t il, enum probe_stage stage, uint64_t now_ns)
{
    t->since_ns = now_ns;
    t->since_count = count_now(t);
    t->layer = il;
    t->stage = stage;
}

void probe_end_stage(struct probe_track *t, uint64_t now_ns)
{
    const uint64_t ns = now_ns - t->since_ns, count = count_now(t) - t->since_count;
    struct probe_sum *sum = sum_at(t, t->layer, t->stage);
    sum->ns += ns;
    sum->count += count;
    if (t->cap_span == 0) {
        return;
    }
    if (t->n_span == t->cap_span) {
        t->n_lost++;
        return;
    }
    t->span[t->n_span++] = (struct probe_span){
        .begin_ns = t->since_ns,
        .ns = (uint32_t)MIN(ns, (uint64_t)UINT32_MAX),
        .layer = t->layer,
        .stage = t->stage,
        .count = (uint32_t)MIN(count, (uint64_t)UINT32_MAX),
    };
}

/* ------------------------------------------------------------------ sums */

struct probe_sum probe_of_layer(const struct probe_track *t, uint32_t il, enum probe_stage stage)
{
    return *sum_at(t, il, stage);
}

struct probe_sum probe_total(const struct probe_track *t, enum probe_stage stage)
{
    struct probe_sum total = {0};
    for (uint32_t il = 0; il <= t->n_layer; il++) {
        const struct probe_sum *sum = sum_at(t, il, stage);
        total.ns += sum->ns;
        total.count += sum->count;
    }
    return total;
}
