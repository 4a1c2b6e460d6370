/* One forward pass: a batch of tokens of any number of sequences goes through all layers. This is the
 * file to read first: runtime/step.c is the life of a token on one screen.
 *
 * A batch is evaluated by all nodes together (latency), or, where every node has all weights, each
 * node evaluates a batch of its own without waiting for the others (lanes: throughput).
 *
 * Every worker of every node runs the same flat program (SPMD) and meets the others only where data
 * crosses workers. The residual stream x [T, D] is kept once per node, computed by each node for
 * itself from the same inputs in the same order: what crosses nodes is the output vectors of sliced
 * matrices.
 */
#ifndef NUMOE_RUNTIME_STEP_H
#define NUMOE_RUNTIME_STEP_H

#include "numoe/numoe.h"
#include "numa/pool.h"

struct model;
struct store;  /* store/store.h: all weights of a model, placed */
struct kv_cache; /* dense/kv.h: the cache of one sequence */
struct kern;     /* kernels/kern.h: the inner loops */
struct gpu;      /* runtime/gpu.h: the program that has the dense half of the first layers */
struct gpu_cache;
struct step;
struct expert_stats;
struct traffic;  /* store/weight.h: bytes read */

struct step_token {
    int32_t id;
    uint32_t position;     /* in its sequence; positions of one sequence ascend within a batch */
    struct kv_cache *kv;   /* of its sequence; already has room for position (kv_reserve) */
    const struct gpu_cache *gpu; /* likewise, the part of the cache in GPU memory; NULL without */
    bool want_logits;
};

/* Buffers for batches of up to max_tokens; any context. With a gpu (or NULL) the store needs to have
 * only the experts of its layers; with peers (or NULL; never both) only this rank's experts. */
numoe_status step_new(const struct model *model, const struct store *store, struct pools *pools,
                      const struct topo *topo, const struct kern *kern, unsigned max_tokens,
                      struct gpu *gpu, const numoe_peers *peers, struct step **out,
                      numoe_error *err);
void step_free(struct step *step);

/* Memory that step_new() will take on each node: *node_bytes [pools' nodes]; with `lanes` that of
 * step_make_lanes() too. mapped: experts stay in the file. An upper bound over all placements, exact
 * for whole experts. */
numoe_status step_buffer_bytes(const struct model *model, struct pools *pools,
                               const struct topo *topo, const struct kern *kern,
                               unsigned max_tokens, bool mapped, bool lanes, const numoe_peers *peers, uint64_t *node_bytes,
                               numoe_error *err);
/* How many lanes there can be: one a node, or 0 where a node lacks some weights. */
unsigned step_max_lanes(const struct step *step);
/* Buffers of the lanes, which step_run_lanes() needs; of max_tokens each. NUMOE_E_MEMORY leaves the
 * step as it was. Nothing is done where they are there. */
numoe_status step_make_lanes(struct step *step, numoe_error *err);

/* Routing of the last batch is kept only while this is on (a copy per layer). */
void step_keep_routes(struct step *step, bool on);

/* The store has everything now: all layers on the pools. */
numoe_status step_drop_gpu(struct step *step, numoe_error *err);

/* Part of a token's experts join one layer later: experts_set_defer(). */
numoe_status step_set_defer(struct step *step, unsigned n, numoe_error *err);

/* Evaluates tokens [n], those of one sequence together. False: the GPU program failed, or a peer was
 * lost, and there are no results; without those it cannot fail. With peers all ranks call it as
 * often, some of them with n 0. Afterwards logits of token i (where wanted) are at
 * step_logits(i), [V], until the next run; routes at step_route(). */
bool step_run(struct step *step, const struct step_token *tokens, unsigned n);
/* The same for n[in] tokens, [lanes], of the lane on node in; those of lane 0 come first. Caches are best on
 * the lane's node (kv_move). */
void step_run_lanes(struct step *step, const struct step_token *tokens, const unsigned *n);
/* Where time goes is measured on these tracks from now on, the caller's and [workers]; NULL: no more. */
void step_set_probe(struct step *step, struct probe_track *caller, struct probe_track *probe);
const float *step_logits(const struct step *step, unsigned i);
/* ids [k], weights [k] of token i in MoE layer il; false for dense layers. */
bool step_route(const struct step *step, unsigned il, unsigned i, const int32_t **ids,
                const float **weights, unsigned *k);

/* What a node's workers have read of matrices so far, and how many tokens chose each expert,
 * [n_layer, n_expert], valid until asked again; together and in lanes. */
struct traffic step_traffic(const struct step *step, unsigned in);
const uint64_t *step_expert_counts(const struct step *step);
/* Adds counts and sums of router weights to stats of the model's shape. */
void step_add_stats(const struct step *step, struct expert_stats *stats);

#endif
