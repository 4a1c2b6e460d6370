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

#define SPINS_PER_LOOK 16 /* pauses between looks at the clock: some 100 ns to 1 us */

static void futex(atomic_uint *word, int op, uint32_t value)
{
    /* Wrong values and interruptions return at once; the caller looks again. */
    syscall(SYS_futex, word, op, value, NULL, NULL, 0);
}

void gate_sleep(struct gate_word *word, uint32_t phase)
{
    for (;;) {
        uint32_t now = atomic_fetch_or_explicit(&word->phase_parked, 1, memory_order_acquire);
        if (now >> 1 == (phase & GATE_PHASE_MASK)) {
            return; /* the bit stays behind: one needless wake-up call */
        }
        futex(&word->phase_parked, FUTEX_WAIT_PRIVATE, now | 1);
        if (gate_is_open(word, phase)) {
            return;
        }
    }
}

void gate_wait(struct gate_word *word, uint32_t phase, const struct gate_patience *patience)
{
    if (gate_is_open(word, phase)) {
        return;
    }
    uint64_t start = clock_ns(), waited = 0;
    while (waited < patience->spin_ns) {
        for (int i = 0; i < SPINS_PER_LOOK; i++) {
            gate_relax();
            if (gate_is_open(word, phase)) {
                return;
            }
        }
        waited = clock_ns() - start;
    }
    while (waited < patience->yield_ns) {
        sched_yield();
        if (gate_is_open(word, phase)) {
            return;
        }
        waited = clock_ns() - start;
    }
    gate_sleep(word, phase);
}

void gate_open(struct gate_word *word, uint32_t phase)
{
    uint32_t before = atomic_exchange_explicit(&word->phase_parked, (phase & GATE_PHASE_MASK) << 1,
                                               memory_order_acq_rel);
    if (before & 1) {
        futex(&word->phase_parked, FUTEX_WAKE_PRIVATE, INT_MAX);
    }
}
