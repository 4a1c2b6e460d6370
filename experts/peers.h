/* Private to experts/: what a rank has for its exchange with the others. */
#ifndef NUMOE_EXPERTS_PEERS_H
#define NUMOE_EXPERTS_PEERS_H

#include "experts/spread.h"
#include "numa/arena.h"
#include "numoe/numoe.h"

struct experts;

struct experts_peers {
    const numoe_peers *peers; /* NULL: all experts are here */
    struct spread_shape shape;
    struct spread_plan plan;
    uint32_t *n_token; /* [n_rank] of this batch */
    unsigned n_most;   /* of these */
    int32_t *own_ids;  /* [n_most, k] */
    int32_t *all_ids;  /* [n_rank, n_most, k] */
    float *x;          /* [list of tokens, D] inputs; seen by all nodes */
    float *send;       /* [.., D] inputs to others */
    float *result;     /* [.., D] products from others */
    bool failed; /* Sync: written by the first worker, read by all after the next barrier of all */
};

/* Buffers in an arena of the first node; e's peers and shape are set. */
numoe_status experts_peers_init(struct experts *e, struct node_arena *arena, numoe_error *err);

#endif
