/* Private to experts/: buffers of the routed half. Those of struct experts are seen by all nodes.
 */
#ifndef NUMOE_EXPERTS_STATE_H
#define NUMOE_EXPERTS_STATE_H

#include "experts/dispatch.h"
#include "experts/experts.h"
#include "experts/router.h"

struct experts_worker {
    float *router; /* router_scratch_floats() */
    float *logits; /* [E] with their bias */
    float *glu;    /* 2 * WEIGHT_GLU_SCRATCH */
};

struct experts_node {
    struct node_arena *arena;
    struct experts_worker *worker; /* [nw] */
    int32_t *ids;                  /* [T, k] */
    float *weights;                /* [T, k] */
    struct dispatch work;
    struct act h, h_shared; /* int8 forms of the shared buffers */
};

struct experts {
    const struct model *model;
    const struct store *store;
    const struct kern *kern;
    unsigned max_tokens, n_node;
    struct experts_node *node;

    float *logits;      /* [T, E] */
    float *shared_gate; /* [T] */
    float *h;           /* [T * k, F] by pair */
    float *h_shared;    /* [T, Fs] */
    float *y;           /* [T * k, D] by pair */
    float *y_shared;    /* [T, D] */

    bool keep;
    int32_t *route_ids; /* [n_layer, T, k] */
    float *route_weights;
};

static inline const struct weight *experts_weight(const struct experts *e, unsigned il,
                                                  enum slot slot)
{
    return &e->store->layer[il][slot];
}

#endif
