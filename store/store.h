/* All weights of a model, placed: reads tensors from the GGUF file, packs them into node arenas with
 * each node's own workers, and says where everything is. */
#ifndef NUMOE_STORE_STORE_H
#define NUMOE_STORE_STORE_H

#include "model/model.h"
#include "store/weight.h"

struct store {
    const struct model *model;
    unsigned n_node;
    struct weight w[N_MODEL_SLOT];
    struct weight (*layer)[N_SLOT]; /* [n_layer]; layer[il][slot] */
    uint64_t bytes;                 /* as placed */
    void *priv;
};

/* Where rows go: pure. Cuts n_row rows into whole panels over n_node nodes in proportion to share[]
 * (any positive numbers): row0_out[0..n_node], row0_out[0] = 0, row0_out[n_node] = n_row. */
void placement_slice(uint32_t n_row, unsigned n_node, const double *share, uint32_t *row0_out);

/* Loads everything. progress as in numoe_engine_params. Checks before the first byte that it fits the
 * memory that topo says is available (NUMOE_E_MEMORY with needed, available, and the limit that binds). */
numoe_status store_load(const struct model *model, const struct topo *topo, struct pools *pools,
                        numoe_progress_fn progress, void *progress_arg, struct store **out,
                        numoe_error *err);
void store_free(struct store *store);

#endif
