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
#include "store/placement.h"
#include "store/store.h"

struct experts;

/* For the nodes of a team, which the store is placed on; its nodes are counted as the team's. peers
 * or NULL: who has the experts that the store has not (shapes_spread()). */
numoe_status experts_new(const struct model *model, const struct store *store,
                         const struct pool_team *team, const struct topo *topo,
                         const struct kern *kern, unsigned max_tokens, const numoe_peers *peers,
                         struct experts **out, numoe_error *err);
/* Adds the memory that experts_new() will take to node_bytes [the team's nodes]; mapped: experts
 * stay in the file. Where experts are cut, nodes but the first need less. */
numoe_status experts_buffer_bytes(const struct model *model, const struct pool_team *team,
                                  const struct topo *topo, const struct kern *kern,
                                  unsigned max_tokens, bool mapped, const numoe_peers *peers,
                                  uint64_t *node_bytes, numoe_error *err);
void experts_free(struct experts *e);

/* Of a worker: its counts of bytes. */
const struct weight_reader *experts_get_reader(const struct experts *e, unsigned in, unsigned iw);

/* Adds what node in's workers have read of matrices so far. Between batches. */
void experts_add_traffic(const struct experts *e, unsigned in, struct traffic *sum);

/* [n_layer, n_expert] how many tokens chose each expert so far. Between batches. */
const uint64_t *experts_counts(const struct experts *e);

/* Adds these, and the sums of router weights, to stats of the model's shape. Between batches. */
void experts_add_stats(const struct experts *e, struct expert_stats *stats);

/* Copies of what the router chose are kept for experts_get_route while this is on. */
void experts_keep_routes(struct experts *e, bool on);

/* Layers [0, n_layer) take choices that somebody else made (experts_take()); 0, the default: none.
 * Between batches. */
numoe_status experts_set_given(struct experts *e, unsigned n_layer, numoe_error *err);

/* The last n choices of each token join the sum one layer with experts later than the others; where
 * there is none, all at once. Nothing is deferred from given layers to others. Changes results. 0,
 * the default: none; at most n_expert_used - 1. Between batches. */
numoe_status experts_set_defer(struct experts *e, unsigned n, numoe_error *err);

/* Experts that are computed elsewhere, [n_layer, n_expert]: experts_route() chooses and counts
 * them, but they are neither run nor summed. NULL: none. The array must stay. Between batches. */
void experts_set_elsewhere(struct experts *e, const bool *elsewhere);

/* The forms beside floats that layer il reads its input in (bits of enum kern_act_kind). */
unsigned experts_want_acts(const struct experts *e, unsigned il);

/* ------------------------------------------------------------------ stages after a router */

/* Router: from the normed input x of n tokens to work lists on every node. The first half of the
 * shared expert goes with it: it reads the same input and shares the meeting after it. */
void experts_route(struct experts *e, struct worker *w, unsigned il, const struct act *x,
                   unsigned n);

/* All listed products of the routed and shared experts, complete on all nodes. */
void experts_run(struct experts *e, struct worker *w, unsigned il, const struct act *x, unsigned n);

/* stream [t, D] += the weighted sum of routed experts and the shared one, for the worker's own
 * tokens [lo, hi). more [t, D] or NULL: what was computed elsewhere, added to the sum. */
void experts_combine(struct experts *e, struct worker *w, unsigned il, const float *more,
                     float *stream, unsigned lo, unsigned hi);

/* What experts_route() chose, on the worker's node: ids [n, k], those computed elsewhere as
 * DISPATCH_ELSEWHERE; weights [n, k]. */
void experts_choice(const struct experts *e, const struct worker *w, const int32_t **ids,
                    const float **weights);

/* ------------------------------------------------------------------ stages where peers have a part
 * of the experts */

/* Before the workers start, by every rank: how many tokens this rank has, none perhaps, and *n_most
 * that any has. False, as of the next two: a rank was lost, or has longer chunks; nothing is to be
 * called any more. */
bool experts_meet_peers(struct experts *e, unsigned n, unsigned *n_most);

/* After experts_route(), or with n 0 (x NULL) in its place: own inputs to who has the experts,
 * theirs to here. *out is the input for experts_run() on this worker's node. */
bool experts_send(struct experts *e, struct worker *w, unsigned il, const struct act *x, unsigned n,
                  struct act *out);

/* After experts_run(), before experts_combine(): products back to where the tokens are. */
bool experts_receive(struct experts *e, struct worker *w);

/* ------------------------------------------------------------------ stages after a choice that
 * somebody else made */

/* Inputs as somebody else has written them: x [n, D] as floats, or else as bf16. */
struct experts_given {
    const float *x;
    const uint16_t *x_bf16;
    const int32_t *ids;   /* [n, k]; DISPATCH_ELSEWHERE for those computed there */
    const float *weights; /* [n, k] */
};

/* In place of experts_route(): work lists on every node, of the choices that are not deferred.
 * Returns the input for experts_run() on this worker's node. Ids out of range are left out, and
 * experts_take_fault() tells. */
struct act experts_take(struct experts *e, struct worker *w, unsigned il,
                        const struct experts_given *given, unsigned n);

/* In place of experts_combine(): y [n, D] = the sum over the routed experts that were run and over
 * those deferred from the layer before, from zero in the order of choice; divided over all workers.
 */
void experts_sum(struct experts *e, struct worker *w, unsigned il, float *y, unsigned n);

/* True where choices of layer il are deferred: runs them, for the next layer's experts_sum(). */
bool experts_run_deferred(struct experts *e, struct worker *w, unsigned il, const struct act *x,
                          unsigned n);

/* For a layer whose experts somebody else computes as well: its choices (given's x is not used) are
 * counted and kept like others. By one worker, or between batches. */
void experts_note_given(struct experts *e, unsigned il, const struct experts_given *given,
                        unsigned n);

/* Whether a given id was out of range since the last call. Between batches. */
bool experts_take_fault(struct experts *e);

/* ------------------------------------------------------------------ */

/* ids [k], weights [k] of token i in layer il of the last batch; false for dense layers, or where
 * nothing was kept. */
bool experts_get_route(const struct experts *e, unsigned il, unsigned i, const int32_t **ids,
                       const float **weights, unsigned *k);

#endif
