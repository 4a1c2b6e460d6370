/* Inputs and buffers for the kernel tests: reproducible numbers, memory of the exact size (so that
 * a sanitizer sees every byte beyond it), outputs between canaries. */
#ifndef NUMOE_TESTS_KERN_DATA_H
#define NUMOE_TESTS_KERN_DATA_H

#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kern.h"

static const char *const kern_isas[] = {"ref", "avx2", "avxvnni", "avx512bw", "avx512", "amx"};
#define N_KERN_ISA (sizeof(kern_isas) / sizeof(kern_isas[0]))

/* The tables that this processor can execute; each test runs on all of them. */
#define FOR_EACH_KERN(kern)                                                                        \
    for (unsigned i_##kern = 0; i_##kern < N_KERN_ISA; i_##kern++)                                 \
        for (const struct kern *kern = kern_find(kern_isas[i_##kern]); kern != NULL; kern = NULL)

/* splitmix64 */
static inline uint64_t random_u64(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static inline unsigned random_below(uint64_t *state, unsigned n)
{
    return (unsigned)(random_u64(state) >> 32) % n;
}

/* In (-1, 1). */
static inline float random_float(uint64_t *state)
{
    return (float)(int64_t)random_u64(state) * 0x1p-63f;
}

static inline void random_floats(uint64_t *state, float *x, size_t n, float size)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = size * random_float(state);
    }
}

static inline void *exact_alloc(size_t bytes)
{
    void *p = NULL;
    cr_assert_eq(posix_memalign(&p, 64, bytes), 0);
    return p;
}

static inline bool same_bits(const float *a, const float *b, size_t n)
{
    return memcmp(a, b, n * sizeof(float)) == 0;
}

/* A value that no kernel computes here, to be found again where nothing may be written. */
#define CANARY_BITS 0x7fa5c3e1u

static inline void canary_fill(float *x, size_t n)
{
    uint32_t bits = CANARY_BITS;
    for (size_t i = 0; i < n; i++) {
        memcpy(&x[i], &bits, sizeof(bits));
    }
}

static inline bool canary_alive(const float *x)
{
    uint32_t bits = CANARY_BITS;
    return memcmp(x, &bits, sizeof(bits)) == 0;
}

#endif
