/* Private to experts/: buffers of the routed half. Those of struct experts are seen by all nodes.
 */
#ifndef NUMOE_EXPERTS_STATE_H
#define NUMOE_EXPERTS_STATE_H

#include <stdatomic.h>

#include "experts/dispatch.h"
#include "experts/experts.h"
#include "experts/peers.h"
#include "experts/router.h"

/* On lines of its own: the reader is written all the time. */
struct experts_worker {
    _Alignas(CACHE_LINE_BYTES) struct weight_reader reader;
    float *router; /* router_scratch_floats() */
    float *logits; /* [E] with their bias */
    float *glu;    /* 2 * WEIGHT_GLU_SCRATCH */
    float *sum;    /* [D] */
};

struct experts_node {
    struct node_arena *arena;
    struct experts_worker *worker; /* [n_worker] */
    unsigned n_worker;
    int32_t *ids;   /* [T, k] */
    float *weights; /* [T, k] */
    struct dispatch work;
    /* [T * k, F] by the order of the work list: floats for all nodes where experts are cut, the
     * node's own where they are whole. h_shared [T, Fs]: floats for all nodes. */
    struct act h, h_shared;
    struct act gathered; /* [T of all ranks, D] inputs, own and others' */
    struct act given;    /* [T, D] input that somebody else has written */
    float *deferred;     /* [T, D] sums that join one layer later, of the workers' own tokens */
    uint64_t *count;     /* [n_layer, E] how often the experts were chosen; the team's first only */
    double *weight_sum;  /* [n_layer, E] of their router weights then; likewise */
};

struct experts {
    const struct model *model;
    const struct store *store;
    const struct kern *kern;
    bool mapped; /* weights of routed experts are in the file */
    unsigned max_tokens, n_node;
    unsigned max_rows; /* tokens that experts are computed for: of all ranks */
    struct experts_node *node;

    float *logits;      /* [T, E] */
    float *shared_gate; /* [T] */
    float *h;           /* [max_rows * k, F] where experts are cut, else NULL */
    float *h_shared;    /* [T, Fs] */
    float *y;           /* [max_rows * k, D] by pair */
    float *y_shared;    /* [T, D] */

    const bool *elsewhere; /* [n_layer, E] or NULL */
    unsigned n_defer, n_given;
    float *deferred;        /* [T, D] the same for given choices */
    _Atomic bool given_bad; /* an id was out of range */

    struct experts_peers peers;

    bool keep;
    int32_t *route_ids; /* [n_layer, T, k] */
    float *route_weights;
};

/* Choices [0, n) of a token that join the sum of their own layer. */
unsigned experts_prompt_choices(const struct experts *e, unsigned il);
/* Whether sums of an earlier layer join that of layer il. */
bool experts_joins_deferred(const struct experts *e, unsigned il);

/* What is remembered of the choice of n tokens, wherever it is computed; by one worker. */
void experts_note_choice(struct experts *e, unsigned il, unsigned n);
/* The node's work list of choices [first, end) of n tokens; by one worker of the node. */
void experts_list_work(struct experts *e, unsigned in, unsigned il, unsigned n, unsigned first,
                       unsigned end);
/* Leaves in the list what is the node's part, where experts are whole. */
void experts_share_work(struct experts *e, unsigned in, unsigned il);
/* out [to - from] += elements [from, to) of the weighted sum of token t's choices [first, end). */
void experts_add_choices(const struct experts *e, unsigned in, unsigned il, size_t t,
                         unsigned first, unsigned end, size_t from, size_t to, float *out);

static inline struct weight_reader *experts_reader(const struct experts *e, const struct worker *w)
{
    return &e->node[w->in].worker[w->iw].reader;
}

static inline const struct weight *experts_weight(const struct experts *e, unsigned il,
                                                  enum slot slot)
{
    return &e->store->layer[il][slot];
}

#endif
