/* From picks to work: the (token, choice) pairs of a batch, grouped by expert. */
#ifndef NUMOE_EXPERTS_DISPATCH_H
#define NUMOE_EXPERTS_DISPATCH_H

#include <stdint.h>

/* The pairs of the a-th active expert are [begin[a], begin[a + 1]) of token and pair. */
struct dispatch {
    unsigned n_active;
    uint32_t *expert; /* [n_expert] ids of those with work, ascending */
    uint32_t *begin;  /* [n_expert + 1] */
    uint32_t *token;  /* [n_token * n_used] row of the activations */
    uint32_t *pair;   /* [n_token * n_used] token * n_used + choice */
};

/* Pure but for its output. ids [n_token, n_used], each below n_expert. Tokens of an expert ascend.
 */
void dispatch_build(const int32_t *ids, unsigned n_token, unsigned n_used, unsigned n_expert,
                    struct dispatch *d);

#endif
