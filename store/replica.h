/* Further copies of experts that come and go while a model runs. Their memory is taken when weights
 * are loaded: places on each node, every one large enough for any expert, so nothing is allocated,
 * given back or cut into pieces later. A node's own workers fill a place, so its pages are the
 * node's; reading the first copy, on another node, is what it costs.
 *
 * Between steps only: workers of a step read where experts are without asking again.
 */
#ifndef NUMOE_STORE_REPLICA_H
#define NUMOE_STORE_REPLICA_H

#include <stdatomic.h>

#include "store/store.h"

struct replica_place {
    unsigned il, ie;
    bool taken;
};

/* A copy that is being made: of the expert of one place, in pieces. */
struct replica_copy {
    unsigned place, from; /* which, and the node it is read from */
    bool running;
    uint32_t n_piece;
    _Atomic uint32_t next; /* Sync: atomic; pieces before it were taken */
};

struct replica_node {
    uint8_t *data; /* [n_place] of place_bytes */
    unsigned n_place, n_free;
    struct replica_place *place;
    struct replica_copy copy;
};

struct replicas {
    unsigned n_node, n_layer, n_expert;
    size_t place_bytes;
    uint64_t *copies; /* [n_layer, n_expert] nodes (bits) of complete copies in places */
    struct replica_node node[TOPO_MAX_NODE];
};

/* ------------------------------------------------------------------ loading */

/* As a placement has places; its own further copies have one from the beginning. */
numoe_status replicas_new(const struct placement *p, unsigned n_layer, unsigned n_expert,
                          struct replicas **out, numoe_error *err);
void replicas_free(struct replicas *r); /* NULL is allowed; memory of places is the arena's */
/* Takes the memory of a node's places, and says where the plan's own copies of a layer's weights
 * are in it; after the store knows their sizes. */
numoe_status replicas_allocate(struct store *store, unsigned in, struct node_arena *arena,
                               numoe_error *err);

/* ------------------------------------------------------------------ between steps */

/* Begins to copy an expert to node in, which has no copy of it, in a place that is free; one at a
 * time for each node. False: there is none. */
bool replica_begin(struct store *store, unsigned in, unsigned il, unsigned ie);

/* Goes on with all that were begun, until a time (clock_ns()) or until they are complete. From then
 * on steps use them: *done has their nodes (bits). Returns the bytes copied. */
uint64_t replica_continue(struct store *store, struct pools *pools, uint64_t until_ns,
                          uint64_t *done);

/* Takes a further copy out of use; its place is free. */
void replica_drop(struct store *store, unsigned in, unsigned il, unsigned ie);

#endif
