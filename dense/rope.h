/* Rotary position embedding: angles of a position, and the rotation of one head's part. */
#ifndef NUMOE_DENSE_ROPE_H
#define NUMOE_DENSE_ROPE_H

#include "model/model.h"

struct rope {
    enum rope_kind kind;
    unsigned n_rot;
    float magnitude;
    double *freq; /* [n_rot / 2] radians per position */
};

/* Frequencies after context extension (YaRN, or plain scaling), then divided by factors [n_rot / 2]
 * (NULL: none). */
numoe_status rope_init(struct rope *r, const struct rope_params *p, const float *factors,
                       numoe_error *err);
void rope_fini(struct rope *r);

/* angles [n_rot]: cos and sin of each pair, times the magnitude. */
void rope_angles(const struct rope *r, uint32_t position, float *angles);

/* Rotates the n_rot elements of x; y may be x. */
void rope_apply(const struct rope *r, const float *angles, const float *x, float *y);

#endif
