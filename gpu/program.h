/* A GPU program as its engine sees it: started, asked what it has, told what to load, watched while
 * both work, ended. Knows processes, sockets and the segment's memory; what is in a step is its
 * user's affair.
 *
 * Used by one thread at a time. Nothing here ends the engine: whatever a program does becomes an
 * error with one line of text.
 */
#ifndef NUMOE_GPU_PROGRAM_H
#define NUMOE_GPU_PROGRAM_H

#include <stdbool.h>

#include "gpu/exchange.h"

struct gpu_program;

/* Starts the program at path and waits for its HELLO. NUMOE_E_FILE_OPEN: it cannot be started;
 * NUMOE_E_DEVICE: it ended, hung or spoke nonsense; NUMOE_E_SUPPORT: it is of another version. */
numoe_status gpu_program_start(const char *path, struct gpu_program **out, numoe_error *err);

/* Asks it to end, waits up to 2 s, kills it. NULL is allowed. */
void gpu_program_stop(struct gpu_program *p);

const struct exchange_hello *gpu_program_hello(const struct gpu_program *p);

/* Takes memory for the laid out header's segment, near os_node (UINT32_MAX: anywhere), and copies
 * the header into it. The caller fills in tables, then calls gpu_program_load(). Once. */
numoe_status gpu_program_segment(struct gpu_program *p, const struct exchange_header *header,
                                 uint32_t os_node, struct exchange_header **segment,
                                 numoe_error *err);

/* Sends LOAD: from then on the program reads the segment. */
numoe_status gpu_program_load(struct gpu_program *p, numoe_error *err);

/* Waits for READY. Where the program refuses for lack of device memory, *short_bytes says how much;
 * otherwise it is 0. NUMOE_E_MEMORY for lack of any, otherwise NUMOE_E_DEVICE, with the program's
 * own words. */
numoe_status gpu_program_ready(struct gpu_program *p, struct exchange_ready *ready,
                               uint64_t *short_bytes, numoe_error *err);

/* Rings the bell of a step; wakes the program up if it may be asleep. */
void gpu_program_ring_step(struct gpu_program *p, uint64_t number);

/* Waits until a bell that the program rings has the value; false if it has died, hangs, or speaks
 * where it should not: then gpu_program_fault() says why. Does not allocate; spins first, sleeps
 * and looks after the program later. */
bool gpu_program_wait(struct gpu_program *p, const struct exchange_bell *bell, uint64_t value);

/* The reason of the first failed wait, or what the caller found wrong (text); NUMOE_OK: none. */
void gpu_program_blame(struct gpu_program *p, const char *text);
numoe_status gpu_program_fault(const struct gpu_program *p, numoe_error *err);

#endif
