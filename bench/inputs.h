/* What benches are fed: random numbers, the same in every run, and options that are lists of
 * numbers. */
#ifndef NUMOE_BENCH_INPUTS_H
#define NUMOE_BENCH_INPUTS_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define LIST_MAX 32

static uint64_t random_state = 0x9e3779b97f4a7c15u;

static uint32_t random_bits(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 16);
}

static float random_float(void)
{
    return (float)(random_bits() & 0xffff) / 32768 - 1;
}

static unsigned list_of_numbers(const char *text, unsigned max, unsigned *out)
{
    unsigned n = 0;
    for (char *end; n < LIST_MAX && *text; n++) {
        unsigned long v = strtoul(text, &end, 10);
        if (end == text || v == 0 || v > max || (*end && *end != ',')) {
            fprintf(stderr, "bench: \"%s\" is no list of numbers from 1 to %u\n", text, max);
            exit(2);
        }
        out[n] = (unsigned)v;
        text = *end ? end + 1 : end;
    }
    return n;
}

static size_t number(const char *text, size_t max)
{
    unsigned v;
    if (list_of_numbers(text, (unsigned)max, &v) != 1) {
        fprintf(stderr, "bench: \"%s\" is no single number\n", text);
        exit(2);
    }
    return v;
}

#endif
