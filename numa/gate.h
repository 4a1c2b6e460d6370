/* Meeting points: a word that threads wait on, and a barrier in two levels made of such words. */
#ifndef NUMOE_NUMA_GATE_H
#define NUMOE_NUMA_GATE_H

#include <stdatomic.h>
#include <stdint.h>

/* Two cache lines: the prefetcher of neighbouring lines makes pairs of them meet as one. */
#define GATE_ALIGN 128

/* How to wait: spin with pause, then offer the CPU to others, then sleep on the futex. Nanoseconds
 * from the beginning of the wait. */
struct gate_patience {
    uint32_t spin_ns;  /* until here: spin */
    uint32_t yield_ns; /* until here: yield; then sleep */
};

#define GATE_PHASE_MASK 0x7fffffffu

/* A phase number that only grows, with a bit that says that somebody sleeps on it. */
struct gate_word {
    _Alignas(GATE_ALIGN) atomic_uint phase_parked; /* phase << 1 | parked */
};

/* Publishes a new phase and everything written before; wakes sleepers. */
void gate_open(struct gate_word *word, uint32_t phase);
/* Returns when the word's phase is the given one, which must be the next. */
void gate_wait(struct gate_word *word, uint32_t phase, const struct gate_patience *patience);

/* The parts of gate_wait(), for those who wait for several words at once. */
static inline _Bool gate_is_open(struct gate_word *word, uint32_t phase)
{
    uint32_t now = atomic_load_explicit(&word->phase_parked, memory_order_acquire);
    return now >> 1 == (phase & GATE_PHASE_MASK);
}
void gate_sleep(struct gate_word *word, uint32_t phase); /* on the futex, until it is open */

static inline void gate_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

/* Counts arrivals; never reset: phase p is complete when p * n have arrived (modulo 2^32). */
struct gate_count {
    _Alignas(GATE_ALIGN) atomic_uint n;
};
/* True for the last one of this phase, who then sees what all others wrote before. */
static inline _Bool gate_arrive(struct gate_count *count, uint32_t phase, uint32_t n)
{
    return atomic_fetch_add_explicit(&count->n, 1, memory_order_acq_rel) + 1 == phase * n;
}

#endif
