/* Activations of up to n_max tokens, in the forms that weights are multiplied with: floats always,
 * int8 blocks of 32 or 256 where a weight asks for them. The floats may belong to somebody else: a
 * buffer that all nodes read, of which each node makes its own int8 form.
 */
#ifndef NUMOE_STORE_ACT_H
#define NUMOE_STORE_ACT_H

#include "kernels/kern.h"
#include "numa/arena.h"
#include "numa/pool.h"

struct act {
    unsigned k; /* 0: unused */
    float *f;   /* [n_max, k] */
    int8_t *q;  /* [n_max, k], d [n_max, k/32], s [n_max, k/16]; NULL where k % 32 != 0 */
    float *d;
    int16_t *s;
    int8_t
        *q256; /* the same with d256 [n_max, k/256]; NULL where k % 256 != 0 or nobody reads it */
    float *d256;
    int16_t *s256;
};

/* f NULL: allocated as well. Memory comes from the arena and goes with it. */
numoe_status act_init(struct act *a, struct node_arena *arena, const struct kern *kern, unsigned k,
                      unsigned n_max, float *f, numoe_error *err);

/* The forms of token t that `acts` names (bits of enum kern_act_kind), from its floats. */
void act_convert(const struct act *a, const struct kern *kern, unsigned acts, unsigned t);

/* Those of n tokens, divided over the workers of a node by elements: each calls it, and a node
 * barrier must follow. */
void act_convert_shared(const struct act *a, const struct kern *kern, unsigned acts, unsigned n,
                        const struct worker *w);

static inline struct kern_act act_view(const struct act *a)
{
    return (struct kern_act){.k = a->k,
                             .f = a->f,
                             .q = a->q,
                             .d = a->d,
                             .s = a->s,
                             .q256 = a->q256,
                             .d256 = a->d256,
                             .s256 = a->s256};
}

/* Moves a view on by n tokens. */
static inline void act_skip(struct kern_act *x, size_t n)
{
    x->f += n * x->k;
    if (x->q != NULL) {
        x->q += n * x->k;
        x->d += n * (x->k / 32);
        x->s += n * (x->k / 16);
    }
    if (x->q256 != NULL) {
        x->q256 += n * x->k;
        x->d256 += n * (x->k / 256);
        x->s256 += n * (x->k / 16);
    }
}

#endif
