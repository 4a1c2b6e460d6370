/* A model opened and placed on made-up or real nodes, and sequences evaluated on it through
 * step_run(): what tests of the forward pass share. Everything that fails here fails the test.
 */
#ifndef NUMOE_TESTS_RIG_H
#define NUMOE_TESTS_RIG_H

#include <criterion/criterion.h>
#include <stdio.h>

#include "base/mem.h"
#include "dense/kv.h"
#include "kernels/select.h"
#include "runtime/step.h"
#include "store/store.h"

struct rig {
    struct topo *topo;
    struct pools *pools;
    struct model *model;
    struct store *store;
    struct step *step;
    const struct kern *kern;
    unsigned max_tokens;
    bool map_experts;
};

/* Where the plan is one node's, the others are left out, as an engine does. */
static inline numoe_status rig_keep_only(struct rig *r, struct placement *plan, numoe_error *err)
{
    const int only = placement_only_node(plan);
    if (only < 0 || plan->n_node == 1) {
        return NUMOE_OK;
    }
    pools_free(r->pools);
    r->pools = NULL;
    topo_keep_nodes(r->topo, UINT64_C(1) << only);
    placement_keep_node(plan, (unsigned)only);
    return pools_new(r->topo, 0, &r->pools, err);
}

/* Weights to where the request wants them. */
static inline numoe_status rig_load(struct rig *r, const struct placement_request *request,
                                    numoe_progress_fn progress, void *arg, numoe_error *err)
{
    struct shapes shapes;
    struct placement_machine machine;
    struct placement *plan = NULL;
    FORWARD_IF(shapes_new(r->model, &shapes, err));
    FORWARD_IF(r->map_experts ? shapes_map_experts(&shapes, err) : NUMOE_OK);
    numoe_status status = placement_machine_init(r->topo, r->pools, false, &machine, err);
    if (status == NUMOE_OK) {
        status = placement_make(&shapes, &machine, request, &plan, err);
    }
    if (status == NUMOE_OK) {
        status = rig_keep_only(r, plan, err);
    }
    if (status == NUMOE_OK) {
        status =
            store_load(r->model, &shapes, plan, r->topo, r->pools, progress, arg, &r->store, err);
    }
    placement_free(plan);
    shapes_fini(&shapes);
    return status;
}

/* Synthetic machine of n_node nodes with two cores each; 0: this machine. */
static inline struct rig rig_open_as(const char *path, unsigned n_node, unsigned n_worker,
                                     unsigned max_tokens, const struct placement_request *request,
                                     bool map_experts)
{
    numoe_error err = {0};
    struct rig r = {.max_tokens = max_tokens, .map_experts = map_experts};
    char spec[64];
    snprintf(spec, sizeof spec, "pack:%u [numa(memory=64GiB)] core:2 pu:1", n_node);
    cr_assert_eq(topo_load(n_node > 0 ? spec : NULL, &r.topo, &err), NUMOE_OK, "%s", err.text);
    cr_assert_eq(pools_new(r.topo, n_worker, &r.pools, &err), NUMOE_OK, "%s", err.text);
    cr_assert_eq(model_open(path, &r.model, &err), NUMOE_OK, "%s", err.text);
    cr_assert_eq(kern_select(&r.kern, &err), NUMOE_OK, "%s", err.text);
    cr_assert_eq(rig_load(&r, request, NULL, NULL, &err), NUMOE_OK, "%s", err.text);
    cr_assert_eq(step_new(r.model, r.store, r.pools, r.topo, r.kern, max_tokens, NULL, NULL, &r.step, &err),
                 NUMOE_OK, "%s", err.text);
    step_keep_routes(r.step, true);
    return r;
}

static inline struct rig rig_open_placed(const char *path, unsigned n_node, unsigned n_worker,
                                         unsigned max_tokens,
                                         const struct placement_request *request)
{
    return rig_open_as(path, n_node, n_worker, max_tokens, request, false);
}

static inline struct rig rig_open(const char *path, unsigned n_node, unsigned n_worker,
                                  unsigned max_tokens)
{
    const struct placement_request request = {.mode = NUMOE_PLACEMENT_SLICE};
    return rig_open_placed(path, n_node, n_worker, max_tokens, &request);
}

static inline void rig_close(struct rig *r)
{
    step_free(r->step);
    store_free(r->store);
    model_close(r->model);
    pools_free(r->pools);
    topo_free(r->topo);
}

static inline struct kv_cache *rig_cache(const struct rig *r, enum kv_type type, unsigned n_ctx)
{
    numoe_error err = {0};
    struct kv_cache *kv = NULL;
    cr_assert_eq(kv_new(r->model, r->topo, r->pools, type, n_ctx, &kv, &err), NUMOE_OK, "%s",
                 err.text);
    cr_assert_eq(kv_reserve(kv, n_ctx, &err), NUMOE_OK, "%s", err.text);
    return kv;
}

/* One stretch of a sequence: ids at positions [from, from + n) of kv. logits [n, V], or NULL;
 * routes [n_layer, n_total, k] (of all layers, dense ones left alone) where row `from` on is
 * written. */
struct rig_part {
    const int32_t *ids;
    unsigned from, n;
    struct kv_cache *kv;
    float *logits;
    int32_t *routes;
    unsigned n_total;
};

static inline void rig_collect(const struct rig *r, const struct rig_part *part, unsigned row)
{
    const struct model_hparams *hp = &r->model->hp;
    for (unsigned i = 0; i < part->n; i++) {
        if (part->logits != NULL) {
            memcpy(part->logits + (size_t)i * hp->n_vocab, step_logits(r->step, row + i),
                   hp->n_vocab * sizeof(float));
        }
        for (unsigned il = 0; part->routes != NULL && il < hp->n_layer; il++) {
            const int32_t *ids;
            const float *weights;
            unsigned k;
            if (step_route(r->step, il, row + i, &ids, &weights, &k)) {
                memcpy(part->routes + ((size_t)il * part->n_total + part->from + i) * k, ids,
                       k * sizeof *ids);
            }
        }
    }
}

/* All parts in one batch. */
static inline void rig_batch(const struct rig *r, const struct rig_part *part, unsigned n_part)
{
    struct step_token *token = calloc(r->max_tokens, sizeof *token);
    unsigned n = 0;
    for (unsigned ip = 0; ip < n_part; ip++) {
        cr_assert_leq(n + part[ip].n, r->max_tokens);
        for (unsigned i = 0; i < part[ip].n; i++) {
            token[n++] = (struct step_token){.id = part[ip].ids[i],
                                             .position = part[ip].from + i,
                                             .kv = part[ip].kv,
                                             .want_logits = part[ip].logits != NULL};
        }
    }
    step_run(r->step, token, n);
    n = 0;
    for (unsigned ip = 0; ip < n_part; ip++) {
        rig_collect(r, &part[ip], n);
        n += part[ip].n;
    }
    free(token);
}

/* A whole prompt in chunks: logits [n, V], routes [n_layer, n, k] or NULL. */
static inline void rig_prompt(const struct rig *r, struct kv_cache *kv, const int32_t *ids,
                              unsigned n, unsigned chunk, float *logits, int32_t *routes)
{
    for (unsigned from = 0; from < n; from += chunk) {
        const struct rig_part part = {
            .ids = ids + from,
            .from = from,
            .n = MIN(chunk, n - from),
            .kv = kv,
            .logits = logits + (size_t)from * r->model->hp.n_vocab,
            .routes = routes,
            .n_total = n,
        };
        rig_batch(r, &part, 1);
    }
}

#endif
