/* The program's end of the conversation (docs/exchange.md), for programs that are written in C:
 * HELLO, LOAD, READY, then steps until the socket ends. A thread of its own beats and listens,
 * whatever the others do.
 */
#ifndef NUMOE_GPU_SERVE_H
#define NUMOE_GPU_SERVE_H

#include <stdbool.h>

#include "base/status.h"
#include "gpu/exchange.h"

struct serve {
    const char *program; /* "numoe-gpu-cuda": how it calls itself */
    /* What is there; a machine without a device is no error (hello->trouble). */
    numoe_status (*hello)(void *self, struct exchange_hello *hello, numoe_error *err);
    /* The segment has been checked. Failure becomes REFUSED; *short_bytes as there. */
    numoe_status (*load)(void *self, struct exchange_header *h, struct exchange_ready *ready,
                         uint64_t *short_bytes, numoe_error *err);
    /* Step `number` has been rung and checked: evaluates it and sees to it that its result is rung,
     * now or later. Failure becomes FAULT. */
    numoe_status (*step)(void *self, uint64_t number, numoe_error *err);
    /* Whether what was begun is going well. Called while nothing is to be done; NULL: always. */
    numoe_status (*look)(void *self, numoe_error *err);
    /* For a program that fails on purpose: HELLO has gone; whether to beat. NULL: nothing, always.
     */
    void (*greeted)(void);
    bool (*beats)(void);
};

/* Runs until the engine ends it. Exit status of the process. */
int serve_run(const struct serve *serve, void *self);

/* PROGRESS, from load. */
void serve_progress(uint64_t done_bytes, uint64_t total_bytes);

#endif
