/* The life of a batch of tokens, as every worker of every node walks it. The stages are in dense/
 * (what every token runs through) and experts/ (what the router chooses); this file is their order.
 *
 *      ids > embed > [ x += attention(norm x); x += ffn(norm x) or experts(norm x) ] > norm > head
 *
 * Nothing between the first and the last line of walk() allocates, locks, or makes a system call
 * (but for waiting long at a barrier).
 */
#include "runtime/step.h"

#include "base/mem.h"
#include "dense/dense.h"
#include "experts/experts.h"

struct step {
    const struct model *model;
    struct pools *pools;
    struct dense *dense;
    struct experts *experts;
    struct dense_token *tokens; /* [max_tokens] */
    unsigned n;
};

static void walk_experts(struct step *s, struct worker *w, unsigned il)
{
    uint32_t lo, hi;
    const struct act *x = dense_ffn_input(s->dense, w, il, experts_want_q8(s->experts, il));
    experts_route(s->experts, w, il, x, s->n);
    experts_run(s->experts, w, il, x, s->n);
    dense_own_tokens(w, s->n, &lo, &hi);
    experts_combine(s->experts, w, il, NULL, dense_stream(s->dense, w), lo, hi);
}

static void walk(struct worker *w, void *arg)
{
    struct step *s = arg;
    alloc_guard_begin("a forward pass");
    dense_embed(s->dense, w);
    for (unsigned il = 0; il < s->model->hp.n_layer; il++) {
        dense_attention(s->dense, w, il);
        if (s->model->layer[il].is_moe) {
            walk_experts(s, w, il);
        } else {
            dense_ffn(s->dense, w, il);
        }
    }
    dense_head(s->dense, w);
    alloc_guard_end();
}

void step_run(struct step *step, const struct step_token *tokens, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        step->tokens[i] = (struct dense_token){.id = tokens[i].id,
                                               .position = tokens[i].position,
                                               .kv = tokens[i].kv,
                                               .want_logits = tokens[i].want_logits};
    }
    step->n = n;
    dense_begin(step->dense, step->tokens, n);
    if (n > 0) {
        pools_run(step->pools, walk, step);
    }
}

/* ------------------------------------------------------------------ set-up, results */

numoe_status step_new(const struct model *model, const struct store *store, struct pools *pools,
                      const struct topo *topo, const struct kern *kern, unsigned max_tokens,
                      struct step **out, numoe_error *err)
{
    struct step *s = NULL;
    FORWARD_IF(mem_new(&s, 1, sizeof *s, "step", err));
    s->model = model;
    s->pools = pools;
    numoe_status status = mem_new(&s->tokens, max_tokens, sizeof *s->tokens, "step", err);
    if (status == NUMOE_OK) {
        status = dense_new(model, store, pools, topo, kern, max_tokens, &s->dense, err);
    }
    if (status == NUMOE_OK) {
        status = experts_new(model, store, pools, topo, kern, max_tokens, &s->experts, err);
    }
    if (status != NUMOE_OK) {
        step_free(s);
        return status;
    }
    *out = s;
    return NUMOE_OK;
}

void step_free(struct step *step)
{
    if (step == NULL) {
        return;
    }
    experts_free(step->experts);
    dense_free(step->dense);
    mem_free(step->tokens);
    mem_free(step);
}

void step_keep_routes(struct step *step, bool on)
{
    experts_keep_routes(step->experts, on);
}

const float *step_logits(const struct step *step, unsigned i)
{
    return dense_logits(step->dense, i);
}

bool step_route(const struct step *step, unsigned il, unsigned i, const int32_t **ids,
                const float **weights, unsigned *k)
{
    return i < step->n && experts_get_route(step->experts, il, i, ids, weights, k);
}

void step_traffic(const struct step *step, unsigned in, uint64_t *local_bytes,
                  uint64_t *remote_bytes)
{
    struct traffic sum = {0};
    dense_add_traffic(step->dense, in, &sum);
    experts_add_traffic(step->experts, in, &sum);
    *local_bytes = sum.local_bytes;
    *remote_bytes = sum.remote_bytes;
}

const uint64_t *step_expert_counts(const struct step *step)
{
    return experts_counts(step->experts);
}

void step_add_stats(const struct step *step, struct expert_stats *stats)
{
    experts_add_stats(step->experts, stats);
}
