/* How far two vectors are from each other. */
#ifndef NUMOE_TESTS_DISTANCE_H
#define NUMOE_TESTS_DISTANCE_H

#include <math.h>
#include <stddef.h>

/* |a - b| / |b|; 1e9 where that is no number: there is a NaN, or b is all zeros. */
static inline double distance(const float *a, const float *b, size_t n)
{
    double diff = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        diff += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += (double)b[i] * b[i];
    }
    const double d = sqrt(diff / norm);
    return isfinite(d) ? d : 1e9;
}

#endif
