/* What benches are fed: random numbers, the same in every run, and options that are lists of
 * numbers. */
#ifndef NUMOE_BENCH_INPUTS_H
#define NUMOE_BENCH_INPUTS_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define LIST_MAX 32

static uint64_t random_state = 0x9e3779b97f4a7c15u;

static inline uint32_t random_bits(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 16);
}

static inline float random_float(void)
{
    return (float)(random_bits() & 0xffff) / 32768 - 1;
}

/* "1,2,8": 1 to LIST_MAX numbers from 1 to max into out; anything else ends the program. */
static unsigned list_of_numbers(const char *text, unsigned max, unsigned *out)
{
    const char *at = text;
    for (unsigned n = 0; n < LIST_MAX;) {
        char *end;
        const unsigned long v = strtoul(at, &end, 10);
        if (v == 0 || v > max || (*end != ',' && *end != '\0')) {
            break;
        }
        out[n++] = (unsigned)v;
        if (*end == '\0') {
            return n;
        }
        at = end + 1;
    }
    fprintf(stderr, "bench: \"%s\" is no list of up to %d numbers from 1 to %u\n", text, LIST_MAX,
            max);
    exit(2);
}

static size_t number(const char *text, size_t max)
{
    unsigned v[LIST_MAX];
    if (list_of_numbers(text, (unsigned)max, v) != 1) {
        fprintf(stderr, "bench: \"%s\" is no single number\n", text);
        exit(2);
    }
    return v[0];
}

#endif
