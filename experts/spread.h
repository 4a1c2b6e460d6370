/* Who sends what to whom where experts are spread over ranks: pure functions of what all ranks'
 * routers have chosen, so that no lists need to be sent.
 *
 * A rank computes its experts for a list of tokens: first its own, all of them, then those of other
 * ranks that have chosen any of its experts, by rank and in their order there. Inputs arrive in
 * that order. Products of own tokens are by pair, token * k + choice, as always; behind them come
 * those for other ranks, one for each choice that is an expert of this rank, in the order of the
 * list: that is the order in which they are sent back.
 */
#ifndef NUMOE_EXPERTS_SPREAD_H
#define NUMOE_EXPERTS_SPREAD_H

#include <stdint.h>

struct spread_shape {
    unsigned rank, n_rank, n_expert, n_used;
    unsigned max_tokens; /* of each rank */
};

struct spread_plan {
    unsigned n_own, n_row;       /* own tokens; of the whole list */
    uint32_t *n_send, *n_recv;   /* [n_rank] inputs to and from each rank */
    uint32_t *n_back, *n_result; /* [n_rank] products to and from each rank */
    uint32_t *send;              /* [sum of n_send] own tokens, by the rank they go to */
    int32_t *ids;                /* [n_row, k] this rank's experts, others as DISPATCH_ELSEWHERE */
    uint32_t *row;    /* [n_row, k] where the product of a pair goes, if it is one of this rank's */
    uint32_t *result; /* [sum of n_result] the own pairs that come back, by rank */
};

/* Elements of send, ids and row, result, at most. */
static inline uint64_t spread_max_send(const struct spread_shape *s)
{
    const unsigned n_other = s->n_rank - 1;
    return (uint64_t)s->max_tokens * (n_other < s->n_used ? n_other : s->n_used);
}

static inline uint64_t spread_max_pairs(const struct spread_shape *s)
{
    return (uint64_t)s->n_rank * s->max_tokens * s->n_used;
}

static inline uint64_t spread_max_results(const struct spread_shape *s)
{
    return (uint64_t)s->max_tokens * s->n_used;
}

/* ids [n_rank, stride, k]: what rank r has chosen for its n[r] <= stride tokens, by whole numbers
 * below n_expert. */
void spread_plan_make(const struct spread_shape *s, const int32_t *ids, unsigned stride,
                      const uint32_t *n, struct spread_plan *p);

#endif
