/* Private to runtime/gpu*.c. */
#ifndef NUMOE_RUNTIME_GPU_IMPL_H
#define NUMOE_RUNTIME_GPU_IMPL_H

#include "base/mem.h"
#include "runtime/gpu.h"
#include "runtime/step.h"

struct gpu {
    char path[512];
    const numoe_engine_params *params; /* own copy */
    numoe_engine_params own_params;
    struct gpu_request request;
    bool automatic; /* nobody asked for this program by name */

    struct gpu_program *program;
    struct gpu_plan plan;
    uint64_t less_bytes; /* that the plan leaves unused on each device, since the program refused */
    uint32_t device[EXCHANGE_MAX_DEVICE], n_device;
    struct exchange_header *h;     /* the segment */
    struct exchange_header header; /* what was written there: the segment is the program's, too */
    struct exchange_use use[EXCHANGE_MAX_DEVICE];
    char description[384];

    uint64_t step, hand; /* numbers of the running step and of the last hand-off that came */
    unsigned max_tokens, n_token, n_logits;
    uint32_t *logits_row; /* [max_tokens] */

    unsigned n_fault;            /* without enough steps in between */
    uint64_t n_step, last_fault; /* steps since the engine was opened */

    /* KV blocks */
    uint32_t *free_block, n_free; /* [n_block] */
    uint32_t *n_user;             /* [n_block] caches that have it */
    bool *row_used;               /* [max_seq] */
    struct exchange_copy *copy;   /* [max_seq] for the next step */
    uint32_t n_copy;
};

void gpu_cache_forget_all(struct gpu *g);

#endif
