/* The routed half of a layer: which experts a token goes to, their feed-forward products on every
 * node's own rows, and the sum. The shared expert is one more matrix here, since it reads the same
 * input.
 *
 * Where experts are cut by rows, all nodes work on each. Where they are whole, the work list of a
 * node has the experts that dispatch gave it, and nodes meet once less: what lies between an
 * expert's two halves is the node's own.
 *
 * Stage functions are called by every worker of every node, in the order below. The product of each
 * expert stays separate until the sum, which is in the order of choice: it does not depend on who
 * computed what.
 */
#ifndef NUMOE_EXPERTS_EXPERTS_H
#define NUMOE_EXPERTS_EXPERTS_H

#include "store/act.h"
#include "store/store.h"

struct experts;

numoe_status experts_new(const struct model *model, const struct store *store, struct pools *pools,
                         const struct topo *topo, const struct kern *kern, unsigned max_tokens,
                         struct experts **out, numoe_error *err);
void experts_free(struct experts *e);

/* Adds what node in's workers have read of matrices so far. Between batches. */
void experts_add_traffic(const struct experts *e, unsigned in, struct traffic *sum);

/* [n_layer, n_expert] how many tokens chose each expert so far. Between batches. */
const uint64_t *experts_counts(const struct experts *e);

/* Copies of what the router chose are kept for experts_get_route while this is on. */
void experts_keep_routes(struct experts *e, bool on);

/* Whether layer il needs its input as int8 as well as floats. */
bool experts_want_q8(const struct experts *e, unsigned il);

/* Router: from the normed input x of n tokens to work lists on every node. The first half of the
 * shared expert goes with it: it reads the same input and shares the meeting after it. */
void experts_route(struct experts *e, struct worker *w, unsigned il, const struct act *x,
                   unsigned n);

/* All products of the routed and shared experts, complete on all nodes. */
void experts_run(struct experts *e, struct worker *w, unsigned il, const struct act *x, unsigned n);

/* stream [t, D] += their weighted sum, for the worker's own tokens [lo, hi). */
void experts_combine(struct experts *e, struct worker *w, unsigned il, float *stream, unsigned lo,
                     unsigned hi);

/* ids [k], weights [k] of token i in layer il of the last batch; false for dense layers, or where
 * nothing was kept. */
bool experts_get_route(const struct experts *e, unsigned il, unsigned i, const int32_t **ids,
                       const float **weights, unsigned *k);

#endif
