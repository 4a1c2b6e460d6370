/* Expert statistics in the public header's words; what they are is store/stats.c's. */
#include "runtime/engine.h"
#include "store/stats.h"

struct numoe_stats {
    struct expert_stats s;
};

numoe_status numoe_stats_open(const char *path, numoe_stats **stats, numoe_error *err)
{
    struct expert_stats s;
    FORWARD_IF(expert_stats_read(path, &s, err));
    numoe_stats *out;
    numoe_status status = mem_new(&out, 1, sizeof *out, "expert statistics", err);
    if (status != NUMOE_OK) {
        expert_stats_fini(&s);
        return status;
    }
    out->s = s;
    *stats = out;
    return NUMOE_OK;
}

static numoe_status check_experts(const numoe_engine *engine, numoe_error *err)
{
    return engine->model->hp.n_expert == 0
               ? status_fail(err, NUMOE_E_INPUT, "the model has no experts to count")
               : NUMOE_OK;
}

numoe_status numoe_stats_new(const numoe_engine *engine, numoe_stats **stats, numoe_error *err)
{
    const struct model_hparams *hp = &engine->model->hp;
    numoe_stats *out;
    FORWARD_IF(check_experts(engine, err));
    FORWARD_IF(mem_new(&out, 1, sizeof *out, "expert statistics", err));
    numoe_status status =
        expert_stats_new(hp->n_layer, hp->n_expert, hp->n_expert_used, true, &out->s, err);
    if (status != NUMOE_OK) {
        mem_free(out);
        return status;
    }
    *stats = out;
    return NUMOE_OK;
}

void numoe_stats_free(numoe_stats *stats)
{
    if (stats) {
        expert_stats_fini(&stats->s);
        mem_free(stats);
    }
}

void numoe_stats_count(void *stats, unsigned layer, size_t position, unsigned k, const int32_t *ids,
                       const float *weights)
{
    (void)position;
    expert_stats_count(&((numoe_stats *)stats)->s, layer, k, ids, weights);
}

numoe_status numoe_stats_merge(numoe_stats *stats, const numoe_stats *more, numoe_error *err)
{
    return expert_stats_merge(&stats->s, &more->s, err);
}

numoe_status numoe_stats_save(const numoe_stats *stats, FILE *out, numoe_error *err)
{
    return expert_stats_save(out, &stats->s, err);
}

numoe_status numoe_stats_print(const numoe_stats *stats, numoe_stats_format format, FILE *out,
                               numoe_error *err)
{
    return expert_stats_print(&stats->s, format, out, err);
}

numoe_status numoe_engine_save_stats(const numoe_engine *engine, FILE *out, numoe_error *err)
{
    const struct model_hparams *hp = &engine->model->hp;
    struct expert_stats s;
    FORWARD_IF(check_experts(engine, err));
    FORWARD_IF(expert_stats_new(hp->n_layer, hp->n_expert, hp->n_expert_used, false, &s, err));
    step_add_stats(engine->step, &s);
    numoe_status status = expert_stats_save(out, &s, err);
    expert_stats_fini(&s);
    return status;
}

numoe_replicas numoe_engine_replicas(const numoe_engine *engine)
{
    const struct model_hparams *hp = &engine->model->hp;
    const uint64_t *count = step_expert_counts(engine->step);
    numoe_replicas r = {0};
    if (engine->adapt != NULL) {
        const struct adapt_totals t = adapt_get_totals(engine->adapt);
        r.n_place = t.n_place;
        r.n_token_first = t.n_token_first;
        r.n_made = t.n_made;
        r.n_swapped = t.n_swapped;
        r.copied_bytes = t.copied_bytes;
        r.copy_seconds = (double)t.copy_ns * 1e-9;
        r.n_choice_copied = adapt_choices_copied(engine->adapt, count);
    }
    for (size_t i = 0; i < (size_t)hp->n_layer * hp->n_expert; i++) {
        const bool is_moe = engine->model->layer[i / hp->n_expert].is_moe;
        const bool copied =
            engine->store->holders && (engine->store->holders[i] & (engine->store->holders[i] - 1));
        r.n_expert += is_moe;
        r.n_copied += is_moe && copied;
        r.n_choice += count[i];
        r.n_choice_copied += copied && engine->adapt == NULL ? count[i] : 0;
    }
    if (r.n_expert > 0) {
        r.n_token = r.n_choice / (r.n_expert / hp->n_expert * hp->n_expert_used);
    }
    return r;
}
