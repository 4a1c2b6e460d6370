/* Where time goes: a track for each thread that works, on which it is always in one stage of one
 * layer. A switch to the next stage adds what has passed, and what was counted meanwhile, to the
 * sum of the one that ends; for a trace it also keeps the span. So a track's stages add up to the
 * time from its begin to its end, whatever they are.
 *
 * Off is a NULL track: one branch that is always taken the same way. On, a switch costs one look at
 * the processor's own counter, where the kernel takes its time from that too, otherwise at the
 * clock, for which two or three times as long: a token has hundreds of switches. What a tick is in
 * nanoseconds comes out in the end. A track belongs to one thread; sums are read when that thread
 * rests.
 *
 * What a GPU does is seen as the time that is spent waiting for it: what others did meanwhile is
 * theirs.
 */
#ifndef NUMOE_BASE_PROBE_H
#define NUMOE_BASE_PROBE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"

/* X(name, text). In the order of tables. */
#define PROBE_STAGES(X)                                                                            \
    X(EMBED, "embedding")                                                                          \
    X(ATTENTION, "attention")                                                                      \
    X(ROUTER, "router")                                                                            \
    X(EXPERTS, "experts")                                                                          \
    X(SHARED, "shared experts")                                                                    \
    X(DENSE, "dense layers")                                                                       \
    X(HEAD, "head")                                                                                \
    X(MEETING, "meetings")                                                                         \
    X(GPU_HAND, "wait for GPU")      /* for a layer's dense half and choice of experts */          \
    X(STEP, "step")                  /* the caller's: workers work */                              \
    X(GPU_RESULT, "wait for result") /* likewise: for what a GPU does after the last hand-off */   \
    X(SAMPLING, "sampling")          /* likewise: a token is chosen and said */                    \
    X(BATCH, "batch")                /* likewise: sessions are put together, results handed out */ \
    X(COPYING, "copying experts")    /* likewise: between steps, to other nodes */

enum probe_stage {
#define PROBE_ENUM(name, text) PROBE_##name,
    PROBE_STAGES(PROBE_ENUM)
#undef PROBE_ENUM
        N_PROBE_STAGE,
};

const char *probe_stage_name(enum probe_stage stage);

#define PROBE_NO_LAYER UINT32_MAX

struct probe_sum {
    uint64_t ns, count; /* count: of the track's counters */
};

struct probe_cell {
    uint64_t ticks, count;
};

/* It ends where the next one of its track begins, so the last one has no end yet. As few bytes as
 * possible: a token has hundreds, and they push weights out of the caches. */
struct probe_span {
    uint64_t begin; /* in ticks */
    uint32_t count;
    uint16_t layer; /* UINT16_MAX: none */
    uint16_t stage; /* N_PROBE_STAGE: the track rests */
};

/* The same moment by the clock and in ticks. */
struct probe_moment {
    uint64_t ns, ticks;
};

#define PROBE_COUNTERS 8

struct probe_track {
    _Alignas(CACHE_LINE_BYTES) uint64_t since; /* the running stage began, in ticks */
    uint64_t since_count;
    bool by_counter;                         /* ticks are the processor's, otherwise nanoseconds */
    const uint64_t *counter[PROBE_COUNTERS]; /* what is counted: their sum; NULL: none */
    uint32_t layer;
    enum probe_stage stage;
    unsigned n_layer;
    struct probe_cell *sum; /* [n_layer + 1, N_PROBE_STAGE]; the last row: no layer */
    struct probe_span *span;
    size_t n_span, cap_span; /* cap_span 0: no trace */
    uint64_t n_lost;         /* spans that there was no room for */
    struct probe_moment made;
};

/* n_track tracks. with_spans: room for some four million spans of all tracks together, which each
 * track's thread should touch (probe_touch). */
numoe_status probe_new(unsigned n_track, unsigned n_layer, bool with_spans,
                       struct probe_track **tracks, numoe_error *err);
void probe_free(struct probe_track *tracks, unsigned n_track); /* NULL is allowed */

/* All layers of one stage; a layer's (or PROBE_NO_LAYER's) alone. */
struct probe_sum probe_total(const struct probe_track *t, enum probe_stage stage);
struct probe_sum probe_of_layer(const struct probe_track *t, uint32_t il, enum probe_stage stage);

/* Nanoseconds of a tick, as they were since the tracks were made; the same for all of them, but for
 * the moment of asking: ask once where spans are compared. */
double probe_tick_ns(const struct probe_track *t);

/* ------------------------------------------------------------------ the thread's own */

/* Has the memory for spans made, near the thread, so that this is not done while it is measured. */
void probe_touch(struct probe_track *t);

void probe_first(struct probe_track *t, enum probe_stage stage);
void probe_next(struct probe_track *t, uint32_t il, enum probe_stage stage);
void probe_last(struct probe_track *t);

/* The track begins; nothing of before counts. */
static inline void probe_begin(struct probe_track *t, enum probe_stage stage)
{
    if (__builtin_expect(t != NULL, 0)) {
        probe_first(t, stage);
    }
}

static inline void probe_enter(struct probe_track *t, uint32_t il, enum probe_stage stage)
{
    if (__builtin_expect(t != NULL, 0)) {
        probe_next(t, il, stage);
    }
}

/* Another stage of the same layer; the one before, to go back to. */
static inline enum probe_stage probe_switch(struct probe_track *t, enum probe_stage stage)
{
    if (__builtin_expect(t == NULL, 1)) {
        return stage;
    }
    const enum probe_stage before = t->stage;
    probe_enter(t, t->layer, stage);
    return before;
}

static inline void probe_end(struct probe_track *t)
{
    if (__builtin_expect(t != NULL, 0)) {
        probe_last(t);
    }
}

#endif
