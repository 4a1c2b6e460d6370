/* All weights of a model, placed: reads tensors from the GGUF file, packs them into node arenas
 * with each node's own workers, and says where everything is. */
#ifndef NUMOE_STORE_STORE_H
#define NUMOE_STORE_STORE_H

#include "model/model.h"
#include "numa/audit.h"
#include "store/placement.h"
#include "store/weight.h"

struct store {
    const struct model *model;
    unsigned n_node;
    struct weight w[N_MODEL_SLOT];
    struct weight (*layer)[N_SLOT]; /* [n_layer]; layer[il][slot] */
    uint64_t bytes;                 /* as placed */
    uint64_t mapped_bytes;          /* of one copy of what stays in the file */
    double share[TOPO_MAX_NODE];    /* of the work, by node */
    unsigned first_expert;          /* the model's number of the first one here */
    uint64_t *holders;              /* [n_layer, the model's n_expert] nodes (bits) that have an expert whole;
                                       NULL: experts are cut, all nodes work on all */
    struct replicas *replicas; /* what holders may change to; NULL: nothing changes */
    void *priv;
};

/* Loads everything to where the placement says, which must be one for this model and these pools
 * (placement_make, placement_check). progress as in numoe_engine_params. */
numoe_status store_load(const struct model *model, const struct shapes *shapes,
                        const struct placement *placement, const struct topo *topo,
                        struct pools *pools, numoe_progress_fn progress, void *progress_arg,
                        struct store **out, numoe_error *err);
void store_free(struct store *store);

/* Takes over the weights of another store of the same model and nodes that this one lacks; `more` is
 * the store's from then on. */
void store_adopt(struct store *store, struct store *more);

/* Memory that each worker needs while it loads, at most; given back before anything is computed. */
uint64_t store_loading_bytes(const struct shapes *shapes);

/* Whether node in has every weight whole, so that its workers could compute alone. */
bool store_is_whole(const struct store *store, unsigned in);
/* The weights of such a node as a store of one node, which computes all rows. The same memory: the
 * store must outlive it. store_view_free(). */
numoe_status store_view_new(const struct store *store, unsigned in, struct store **out,
                            numoe_error *err);
void store_view_free(struct store *view);

/* Where the pages of node in's weights are, against where they should be; the same for at most
 * max_page of them, others with each phase; and why they may be elsewhere. */
void store_audit(const struct store *store, const struct topo *topo, unsigned in,
                 struct audit *sum);
void store_audit_sample(const struct store *store, const struct topo *topo, unsigned in,
                        unsigned max_page, unsigned phase, struct audit *sum);
const char *store_audit_cause(const struct store *store, const struct topo *topo, unsigned in);

#endif
