/* From picks to work: the (token, choice) pairs of a batch, grouped by expert, and which node takes
 * which group where experts are whole. Pure functions of their arguments, but for their output. */
#ifndef NUMOE_EXPERTS_DISPATCH_H
#define NUMOE_EXPERTS_DISPATCH_H

#include <stdint.h>

/* Pairs [begin, end) of an expert; row: how many pairs of the list come before them. */
struct dispatch_item {
    uint32_t expert, begin, end, row;
};

struct dispatch {
    unsigned n_item, n_pair;    /* n_pair: of all items */
    struct dispatch_item *item; /* [dispatch_max_items()] */
    uint32_t *token;            /* [n_token * n_used] row of the activations */
    uint32_t *pair;             /* [n_token * n_used] token * n_used + choice */
    struct dispatch_item *open; /* [n_expert] scratch */
    uint32_t *count;            /* [n_expert] scratch */
};

/* An expert that is computed elsewhere (by a GPU program, say) is chosen and counted like any
 * other, but left out of work and sums: its id stands in lists as a negative one. Its own inverse.
 */
#define DISPATCH_ELSEWHERE(id) (-1 - (id))

/* All pairs: an item for each expert with work, ascending. ids [n_token, n_used], each below
 * n_expert; negative ones are left out. Tokens of an expert ascend. */
void dispatch_build(const int32_t *ids, unsigned n_token, unsigned n_used, unsigned n_expert,
                    struct dispatch *d);

/* The same for choices [first, end) of each token alone. */
void dispatch_build_part(const int32_t *ids, unsigned n_token, unsigned n_used, unsigned first,
                         unsigned end, unsigned n_expert, struct dispatch *d);

/* Longer groups are cut into pieces where an expert has several holders. */
#define DISPATCH_PIECE 64u

/* Leaves node in its part of all pairs. holders [n_expert]: nodes (bits) that have an expert. Each
 * (expert, piece of its tokens) goes to the holder with the least to do for its share [n_node]; all
 * nodes come to the same result. Reading an expert counts like a few tokens more. */
void dispatch_share(struct dispatch *d, const uint64_t *holders, unsigned n_node,
                    const double *share, unsigned in);

static inline unsigned dispatch_max_items(unsigned n_expert, unsigned n_pair)
{
    return (n_expert < n_pair ? n_expert : n_pair) + n_pair / DISPATCH_PIECE + 1;
}

#endif
