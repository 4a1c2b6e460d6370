/* What goes into the memory of GPUs: the dense halves of layers with their KV cache, the head, then
 * experts, the most used first. A pure function of sizes, so that it is tested with made-up GPUs.
 *
 * Layers go to devices in order, in proportion to their room. What does not fit at the end stays
 * with the CPU, the head with it: a prefix of the layers is the GPU's, and a step crosses once.
 */
#ifndef NUMOE_GPU_PLAN_H
#define NUMOE_GPU_PLAN_H

#include <stdbool.h>

#include "gpu/exchange.h"

struct gpu_plan_layer {
    uint64_t dense_bytes;    /* attention, norms, router, shared experts or dense block */
    uint64_t kv_token_bytes; /* of one position */
    uint64_t expert_bytes;   /* of one routed expert; 0: a layer without */
};

#define GPU_HOT_AUTO UINT32_MAX

struct gpu_plan_request {
    uint32_t n_layer, n_expert;
    const struct gpu_plan_layer *layer; /* [n_layer] */
    uint64_t head_bytes;                /* output norm and matrix */
    uint64_t embd_bytes;                /* 0 where the head's matrix is the embedding */
    uint64_t work_bytes;                /* on every device: activations, context, graphs */

    uint32_t n_device;
    uint64_t device_bytes[EXCHANGE_MAX_DEVICE]; /* that may be used, of each */

    uint32_t n_block, block_tokens; /* of the KV cache */

    uint32_t n_hot;        /* experts over all layers, or GPU_HOT_AUTO: as many as fit */
    double hot_percent;    /* if above 0: of all experts, instead */
    const uint64_t *count; /* [n_layer, n_expert] how often each was chosen; NULL: not known */
    bool keep_hands;       /* layers have a hand-off even if all their experts are hot */
};

struct gpu_plan {
    uint32_t n_dense_layer; /* n_layer: the head too */
    uint32_t n_hot;
    uint32_t n_route;             /* layers with experts that have no hand-off */
    struct exchange_layer *layer; /* [n_dense_layer] */
    uint32_t *hot;                /* [n_hot] by layer, ascending */
    struct exchange_use use[EXCHANGE_MAX_DEVICE];
    double coverage; /* share of choices that hot experts had; of experts, where nothing is known */
};

/* NUMOE_E_MEMORY says what is needed for what where not even one layer fits. */
numoe_status gpu_plan_make(const struct gpu_plan_request *request, struct gpu_plan *out,
                           numoe_error *err);
void gpu_plan_fini(struct gpu_plan *plan);

#endif
