/* Owns waiting. A waiter that gives up spinning sets the parked bit of the word and sleeps on it;
 * whoever opens the gate replaces phase and bit in one exchange and pays for the wake-up call only
 * if the bit was set. Both are read-modify-writes of one word, so neither can miss the other.
 *
 *   waiter A            word        opener B
 *   reads 6|0           6 0
 *   sets the bit        6 1
 *   sleeps while 6|1                exchanges 7|0, sees the bit, wakes A
 *   reads 7: done       7 0
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "numa/gate.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"

#define PHASE_MASK     0x7fffffffu
#define SPINS_PER_LOOK 16 /* pauses between looks at the clock: some 100 ns to 1 us */

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

static inline _Bool is_open(struct gate_word *word, uint32_t phase)
{
    uint32_t now = atomic_load_explicit(&word->phase_parked, memory_order_acquire);
    return now >> 1 == (phase & PHASE_MASK);
}

static void futex(atomic_uint *word, int op, uint32_t value)
{
    /* Wrong values and interruptions return at once; the caller looks again. */
    syscall(SYS_futex, word, op, value, NULL, NULL, 0);
}

static void sleep_until_open(struct gate_word *word, uint32_t phase)
{
    for (;;) {
        uint32_t now = atomic_fetch_or_explicit(&word->phase_parked, 1, memory_order_acquire);
        if (now >> 1 == (phase & PHASE_MASK)) {
            return; /* the bit stays behind: one needless wake-up call */
        }
        futex(&word->phase_parked, FUTEX_WAIT_PRIVATE, now | 1);
        if (is_open(word, phase)) {
            return;
        }
    }
}

void gate_wait(struct gate_word *word, uint32_t phase, const struct gate_patience *patience)
{
    if (is_open(word, phase)) {
        return;
    }
    uint64_t start = clock_ns(), waited = 0;
    while (waited < patience->spin_ns) {
        for (int i = 0; i < SPINS_PER_LOOK; i++) {
            relax();
            if (is_open(word, phase)) {
                return;
            }
        }
        waited = clock_ns() - start;
    }
    while (waited < patience->yield_ns) {
        sched_yield();
        if (is_open(word, phase)) {
            return;
        }
        waited = clock_ns() - start;
    }
    sleep_until_open(word, phase);
}

void gate_open(struct gate_word *word, uint32_t phase)
{
    uint32_t before = atomic_exchange_explicit(&word->phase_parked, (phase & PHASE_MASK) << 1,
                                               memory_order_acq_rel);
    if (before & 1) {
        futex(&word->phase_parked, FUTEX_WAKE_PRIVATE, INT_MAX);
    }
}
