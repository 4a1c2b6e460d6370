/* Medians of what was measured. They sort what they are given. */
#ifndef NUMOE_BASE_MEDIAN_H
#define NUMOE_BASE_MEDIAN_H

#include <stdint.h>
#include <stdlib.h>

static inline int median_compare_u64(const void *va, const void *vb)
{
    const uint64_t a = *(const uint64_t *)va, b = *(const uint64_t *)vb;
    return a < b ? -1 : a > b;
}

static inline int median_compare_double(const void *va, const void *vb)
{
    const double a = *(const double *)va, b = *(const double *)vb;
    return a < b ? -1 : a > b;
}

/* n > 0; of an even number the upper one. */
static inline uint64_t median_u64(uint64_t *x, size_t n)
{
    qsort(x, n, sizeof *x, median_compare_u64);
    return x[n / 2];
}

static inline double median_double(double *x, size_t n)
{
    qsort(x, n, sizeof *x, median_compare_double);
    return x[n / 2];
}

#endif
