/* Owns the refusal of parameters that contradict themselves. Those that ask for something and would get
 * something else without a word are refused too.
 */
#include "runtime/params.h"

#include <string.h>

#include "store/placement.h"

#define CHUNK_TOKENS_MAX 65536u

static numoe_status check_values(const numoe_engine_params *params, numoe_error *err)
{
    if (params->model_path && !params->model_path[0]) {
        return status_fail(err, NUMOE_E_INPUT, "the name of the model file is empty");
    }
    if (params->chunk_tokens > CHUNK_TOKENS_MAX) {
        return status_fail(err, NUMOE_E_INPUT, "chunk of %u tokens: at most %u are possible",
                           params->chunk_tokens, CHUNK_TOKENS_MAX);
    }
    if (params->placement < NUMOE_PLACEMENT_AUTO ||
        params->placement > NUMOE_PLACEMENT_INTERLEAVE) {
        return status_fail(err, NUMOE_E_INPUT, "placement %d is not known", (int)params->placement);
    }
    if (!(params->replica_percent >= 0 && params->replica_percent <= 10000)) {
        return status_fail(err, NUMOE_E_INPUT, "%g percent for replicas: 0 to 10000 are possible",
                           params->replica_percent);
    }
    if (params->mode < NUMOE_MODE_AUTO || params->mode > NUMOE_MODE_THROUGHPUT) {
        return status_fail(err, NUMOE_E_INPUT, "mode %d is not known", (int)params->mode);
    }
    if (!(params->gpu_expert_percent >= 0 && params->gpu_expert_percent <= 100)) {
        return status_fail(err, NUMOE_E_INPUT, "%g percent of the experts: 0 to 100 are possible",
                           params->gpu_expert_percent);
    }
    if (!(params->node_bps >= 0 && params->node_bps < 1e15)) {
        return status_fail(err, NUMOE_E_INPUT, "a bandwidth of %g bytes/s is not possible",
                           params->node_bps);
    }
    if (params->kv_type < NUMOE_KV_AUTO || params->kv_type > NUMOE_KV_Q8_0) {
        return status_fail(err, NUMOE_E_INPUT, "type %d of the KV cache is not known",
                           (int)params->kv_type);
    }
    return NUMOE_OK;
}

bool params_has_gpu(const numoe_engine_params *params)
{
    return params->gpu != NULL && strcmp(params->gpu, "none") != 0;
}

bool params_has_budget(const numoe_engine_params *params)
{
    return params->replica_bytes > 0 || params->replica_percent > 0;
}

bool params_replicas_change(const numoe_engine_params *params)
{
    return params->adapt || (params_has_budget(params) && params->expert_stats == NULL);
}

/* What cannot be together with experts on other processes. */
static numoe_status check_peers(const numoe_engine_params *params, numoe_error *err)
{
    const numoe_peers *peers = params->peers;
    const char *other = params->map_experts         ? "experts in the file (--mmap)"
                        : params->plan              ? "a plan from a file (--plan)"
                        : params->expert_stats      ? "expert statistics (--expert-stats)"
                        : params_has_budget(params) ? "a budget for replicas (--replica-budget)"
                        : params->adapt             ? "replicas that follow use (--adapt)"
                        : params_has_gpu(params)    ? "a GPU (--gpu)"
                        : params->mode == NUMOE_MODE_THROUGHPUT ? "throughput mode (--mode)"
                                                                : NULL;

    if (peers != NULL && (peers->n_rank == 0 || peers->rank >= peers->n_rank)) {
        return status_fail(err, NUMOE_E_INPUT, "rank %u of %u processes is not possible",
                           peers->rank, peers->n_rank);
    }
    if (peers != NULL && other != NULL) {
        return status_fail(err, NUMOE_E_INPUT,
                           "%s and experts spread over processes (--expert-parallel): only one of "
                           "both is possible",
                           other);
    }
    return NUMOE_OK;
}

/* A plan says where everything lies, copies of experts too. Statistics then only rank what a GPU has. */
static numoe_status check_plan(const numoe_engine_params *params, numoe_error *err)
{
    const char *what = params->placement != NUMOE_PLACEMENT_AUTO ? "a placement"
                       : params_has_budget(params)               ? "a budget for replicas"
                       : params->expert_stats != NULL && !params_has_gpu(params)
                           ? "expert statistics"
                       : params->node_bps > 0 ? "a bandwidth"
                                              : NULL;
    if (params->plan == NULL || what == NULL) {
        return NUMOE_OK;
    }
    return status_fail(err, NUMOE_E_INPUT,
                       "the plan %s says where weights go: leave out %s, or the plan",
                       params->plan, what);
}

static numoe_status check_budget(const numoe_engine_params *params, numoe_error *err)
{
    if (!params_has_budget(params)) {
        return NUMOE_OK;
    }
    if (params->placement != NUMOE_PLACEMENT_AUTO && params->placement != NUMOE_PLACEMENT_SHARD) {
        return status_fail(err, NUMOE_E_INPUT,
                           "a budget for replicas is for the placement shard, %s makes none",
                           placement_mode_name(params->placement));
    }
    if (params->map_experts) {
        return status_fail(err, NUMOE_E_INPUT,
                           "experts that stay in the file (--mmap) have no replicas: leave out the "
                           "budget for them, or --mmap");
    }
    return NUMOE_OK;
}

/* Only copies of whole experts can change while a model runs. */
static numoe_status check_adapt(const numoe_engine_params *params, numoe_error *err)
{
    if (!params->adapt) {
        return NUMOE_OK;
    }
    if (params->placement != NUMOE_PLACEMENT_AUTO && params->placement != NUMOE_PLACEMENT_SHARD) {
        return status_fail(err, NUMOE_E_INPUT,
                           "--adapt changes replicas of whole experts, for the placement shard: %s "
                           "has none",
                           placement_mode_name(params->placement));
    }
    if (params->mode == NUMOE_MODE_THROUGHPUT) {
        return status_fail(err, NUMOE_E_INPUT,
                           "--adapt changes replicas of whole experts: throughput mode has all "
                           "weights on every node");
    }
    if (!params_has_budget(params) && params->plan == NULL) {
        return status_fail(err, NUMOE_E_INPUT,
                           "--adapt needs a budget for the replicas that it changes "
                           "(--replica-budget), or a plan that has some");
    }
    return NUMOE_OK;
}

numoe_status params_check(const numoe_engine_params *params, numoe_error *err)
{
    FORWARD_IF(check_values(params, err));
    FORWARD_IF(check_peers(params, err));
    FORWARD_IF(check_plan(params, err));
    FORWARD_IF(check_budget(params, err));
    return check_adapt(params, err);
}

numoe_status params_check_used(const numoe_engine_params *params, numoe_error *err)
{
    const bool by_use =
        params->placement == NUMOE_PLACEMENT_AUTO || params->placement == NUMOE_PLACEMENT_SHARD;
    return params->expert_stats == NULL || by_use || params_has_gpu(params)
               ? NUMOE_OK
               : status_fail(err, NUMOE_E_INPUT,
                             "expert statistics are for the placement shard and for GPUs: %s does not "
                             "use them",
                             placement_mode_name(params->placement));
}
