/* Several workers on one thread, for when there are more workers than CPUs. A strand is a worker
 * with a stack of its own; where it has to wait, the thread goes on with another of its strands
 * that has not, which takes a tenth of the time that the kernel needs to change threads.
 */
#ifndef NUMOE_NUMA_STRAND_H
#define NUMOE_NUMA_STRAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "numa/gate.h"

struct strands;
typedef void strand_fn(void *arg);

/* False where stacks cannot be changed, or where tools that watch threads would be misled. */
bool strands_supported(void);

/* Room for n strands, used by one thread. Takes no memory but address space until they run. */
numoe_status strands_new(unsigned n, struct strands **out, numoe_error *err);
void strands_free(struct strands *strands);

/* Runs fn(first + i * arg_bytes) for each strand i; returns when all have returned. */
void strands_run(struct strands *strands, strand_fn *fn, void *first, size_t arg_bytes);

/* gate_wait() for a strand of this thread. Strands may wait for one another only in this way. order
 * says how far the strand has come: smaller for whoever others may be waiting for. */
void strands_wait(struct strands *strands, struct gate_word *word, uint32_t phase, uint64_t order,
                  const struct gate_patience *patience);

#endif
