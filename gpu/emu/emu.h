/* numoe-gpu-emu: a GPU program without a GPU. It speaks the exchange (docs/exchange.md) and
 * computes with the CPU's own stages, so all that an engine does with a GPU can be run and tested
 * anywhere.
 *
 * main.c: what it says of itself; work.c: model and steps; fault.c: how it fails when told to.
 */
#ifndef NUMOE_GPU_EMU_EMU_H
#define NUMOE_GPU_EMU_EMU_H

#include <stdbool.h>

#include "base/status.h"
#include "gpu/exchange.h"

/* From the environment: NUMOE_EMU_THREADS (1), NUMOE_EMU_DEVICES (1), NUMOE_EMU_AT_ONCE (most
 * devices of a plan, 0: all), NUMOE_EMU_VRAM (MiB of each device, 1048576), NUMOE_EMU_X (f32 or
 * bf16), and NUMOE_EMU_FAULT for fault.c. */
struct emu_options {
    unsigned n_thread, n_device, at_once, vram_mib;
    uint32_t x_type;
};

/* ------------------------------------------------------------------ work.c */

struct emu;

/* Opens the model that the segment names and loads the program's part. */
numoe_status emu_load(const struct emu_options *o, void *segment, struct emu **out,
                      numoe_error *err);

/* How much memory is used for what, as if all of it were the devices'. */
void emu_use(const struct emu *e, struct exchange_use *use);

/* Evaluates a step, which has been checked, and rings its result. */
void emu_step(struct emu *e, uint64_t number);

/* ------------------------------------------------------------------ fault.c */

enum emu_where { EMU_START, EMU_HELLO, EMU_LOAD, EMU_READY, EMU_STEP, EMU_X, EMU_RESULT };

/* Does what NUMOE_EMU_FAULT asks for here, if anything: "ACTION@WHERE" or "ACTION@WHERE:NUMBER".
 * WHERE: start (before HELLO), hello (after it), load (LOAD has come), ready (instead of READY),
 * step, x, result (before its bell; NUMBER: of the step or hand-off). ACTION: exit, kill (SIGKILL),
 * stop (SIGSTOP), hang (no beat, no bell), garbage (bytes on the socket), version (a message of
 * another version), fault (a FAULT message), short (REFUSED for lack of memory), ids (what follows
 * has wrong expert ids). With NUMOE_EMU_FAULT_ONCE=FILE only if FILE is not there: it is made. */
numoe_status emu_fault_read(numoe_error *err);
void emu_fault(enum emu_where where, uint64_t number, int socket);
bool emu_fault_hangs(void); /* whether the program should seem dead */
bool emu_fault_ids(void);

#endif
