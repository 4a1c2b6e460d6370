/* The reference table in portable C, what every processor can do and every other table is compared
 * with. Plain loops; where the order of a sum is free, 16 lanes, so that compilers find the vectors
 * of the baseline. */
#ifndef NUMOE_KERNELS_REF_REF_H
#define NUMOE_KERNELS_REF_REF_H

#include "kernels/kern.h"

/* Each fills its part of the table; kern_ref_fill() calls all. */
void ref_fill_matmul(struct kern *kern);
void ref_fill_attn(struct kern *kern);

#define REF_LANES 16u

/* The lanes of a sum, added pairwise. */
static inline float ref_add_lanes(float *lane)
{
    for (unsigned n = REF_LANES / 2; n > 0; n /= 2) {
        for (unsigned il = 0; il < n; il++) {
            lane[il] += lane[il + n];
        }
    }
    return lane[0];
}

#endif
