/* Monotonic time. */
#ifndef NUMOE_BASE_CLOCK_H
#define NUMOE_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static inline double clock_seconds(void) { return (double)clock_ns() * 1e-9; }

#endif
