/* Angles are computed in double from the position and rounded once, so they stay exact however long
 * the context is.
 */
#include "dense/rope.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

/* YaRN (Peng et al. 2023, section 3.2): the pair index at which a wave turns n times within the
 * original context. */
static double yarn_pair(const struct rope_params *p, double n_turn)
{
    return p->n_rot * log(p->n_ctx_orig / (n_turn * 2 * M_PI)) / (2 * log(p->freq_base));
}

/* How much of pair i is interpolated: 0 for fast pairs, 1 for slow ones. */
static double yarn_ramp(const struct rope_params *p, unsigned i)
{
    const double low = fmax(floor(yarn_pair(p, p->beta_fast)), 0);
    const double high = fmin(ceil(yarn_pair(p, p->beta_slow)), p->n_rot - 1.0);
    return fmin(fmax((i - low) / fmax(high - low, 1e-3), 0), 1);
}

numoe_status rope_init(struct rope *r, const struct rope_params *p, const float *factors,
                       numoe_error *err)
{
    double *freq = NULL;
    FORWARD_IF(mem_new(&freq, p->n_rot / 2, sizeof *freq, "rope frequencies", err));
    for (unsigned i = 0; i < p->n_rot / 2; i++) {
        const double plain = pow(p->freq_base, -2.0 * i / p->n_rot);
        const double ramp = p->yarn ? yarn_ramp(p, i) : 1;
        freq[i] = plain / p->factor * ramp + plain * (1 - ramp);
        freq[i] /= factors != NULL ? factors[i] : 1;
    }
    *r = (struct rope){.kind = p->kind, .n_rot = p->n_rot, .magnitude = p->magnitude, .freq = freq};
    return NUMOE_OK;
}

void rope_fini(struct rope *r)
{
    mem_free(r->freq);
    *r = (struct rope){.kind = ROPE_NONE};
}

void rope_angles(const struct rope *r, uint32_t position, float *angles)
{
    for (unsigned i = 0; i < r->n_rot / 2; i++) {
        const double a = position * r->freq[i];
        angles[2 * i] = (float)(cos(a) * r->magnitude);
        angles[2 * i + 1] = (float)(sin(a) * r->magnitude);
    }
}

void rope_apply(const struct rope *r, const float *angles, const float *x, float *y)
{
    const unsigned half = r->n_rot / 2;
    if (r->kind == ROPE_NONE) {
        memmove(y, x, r->n_rot * sizeof(float));
        return;
    }
    const unsigned step = r->kind == ROPE_INTERLEAVED ? 2 : 1;
    const unsigned apart = r->kind == ROPE_INTERLEAVED ? 1 : half;
    for (unsigned i = 0; i < half; i++) {
        const float c = angles[2 * i], s = angles[2 * i + 1];
        const float a = x[i * step], b = x[i * step + apart];
        y[i * step] = a * c - b * s;
        y[i * step + apart] = a * s + b * c;
    }
}
