/* Private to gpu/cuda/: a model in VRAM and what a step works with.
 *
 * load.c: what is in VRAM, and filling it; step.c: the stages of a step, as work on a stream;
 * main.c: the conversation, graphs.
 */
#ifndef NUMOE_GPU_CUDA_ENGINE_H
#define NUMOE_GPU_CUDA_ENGINE_H

#include "base/status.h"
#include "gpu/cuda/kernels.h"
#include "gpu/exchange.h"
#include "model/model.h"

#define STEP_BUCKET_MAX 64u  /* tokens of the largest graph */
#define STEP_TILE       256u /* tokens of a prompt whose heads are in latent space together */
#define STEP_GROUP_FROM 16u  /* tokens an expert, on average, from which hot ones are grouped */
#define STEP_GROUP_ROWS 32u /* to a multiple of which: the library has a plan for each number */
#define STEP_GEMM_FROM  48u /* tokens from which on weights are dequantized for tensor cores */

struct cuda_layer {
    struct cuda_matrix m[N_SLOT]; /* n_mat 0: absent */
    float *vec[N_SLOT];           /* norms, biases, sinks; NULL: absent */
    int32_t *slot_of;             /* [n_expert] place among the hot ones or -1; NULL: none is hot */
    unsigned n_hot;
    bool has_hand;
    void *k, *v; /* KV cache */
};

/* What the host says of a step, one piece of memory: pinned here, and the same in VRAM. */
struct cuda_inputs {
    struct cuda_step *step;
    int32_t *id, *position, *seq; /* [max_tokens]; position -1: padding */
    int32_t *logits_row;          /* [max_logits] token of each row, -1: none */
    int32_t *table;               /* [max_seq, max_page], rows by the step's sequences */
    size_t bytes;                 /* of all but the table */
};

struct cuda_buffers {
    float *x;               /* [T, D] residual stream */
    float *y;               /* [T, D] what goes into it next */
    float *angles;          /* [T, n_rot] */
    struct cuda_act norm;   /* [T, D] */
    struct cuda_act q_lora; /* [T, q_lora] */
    float *q_a, *q;         /* [T, q_lora], [T, H * n_qk] */
    float *k, *v;           /* MLA: k [T, kv_lora + n_rope] twice; GQA: [T, H_kv * n] */
    float *k_row;           /* finished k */
    struct cuda_act nope;   /* MLA: [tile, H * n_nope] */
    float *q_abs;           /* MLA: [tile, H, kv_lora + n_rope] */
    struct cuda_act latent; /* MLA: [tile, H * kv_lora] */
    struct cuda_act attn;   /* [T, H * n_v] */
    float *partial;
    float *gate, *up; /* [T, widest of dense and shared] */
    struct cuda_act ff;
    float *shared;        /* [T, D] */
    float *shared_gate;   /* [T] */
    float *router;        /* [T, E] */
    float *weights;       /* [T, k] */
    int32_t *ids, *slot;  /* [T, k] */
    int32_t *route_ids;   /* [n_route, T, k] the same of layers without hand-off, kept for the */
    float *route_weights; /* result */
    float *hot_gate, *hot_up; /* [B * k, F] for B tokens at a time */
    struct cuda_act hot_ff;
    struct cuda_act hot_x; /* [T, D] tokens of one expert, and its output, for long prompts */
    float *hot_out;
    int32_t *order;       /* [T * k] choices by expert */
    float *hot_y;         /* [T * k, D] */
    struct cuda_act head; /* [n_logits, D] */
    float *logits;        /* [n_logits, V] */
};

struct cuda_engine {
    struct exchange_header *h;
    const uint8_t *device_segment; /* the segment as the device sees it */
    struct model *model;
    bool exact, kv_half, has_head;
    int device_number[EXCHANGE_MAX_DEVICE]; /* the driver's, of HELLO's devices */
    unsigned n_device;
    unsigned max_tokens, max_logits;

    /* VRAM: one piece, given out from the front */
    uint8_t *vram;
    size_t used_bytes, vram_bytes;
    bool dry; /* only count */
    struct exchange_use use;
    size_t done_bytes, total_bytes; /* read from files */

    struct cuda_matrix m[N_MODEL_SLOT];
    float *vec[N_MODEL_SLOT];
    double *freq; /* [n_rot / 2] */
    struct cuda_layer *layer;
    struct cuda_buffers b;
    struct cuda_inputs host, device;
    struct cuda_blas *blas;
    unsigned *count;
    uint64_t *arrived;
    int32_t *host_slot, *host_order; /* [T * k] pinned: b.slot, b.order */
    unsigned *host_begin;            /* [n_expert + 1] where an expert's part of the order begins */

    uint8_t *staging[2], *raw[2]; /* loading: pinned, and in VRAM */
    cudaEvent_t staged[2];
    unsigned next_staging;

    cudaStream_t stream;
    cudaGraphExec_t graph[16];
    uint64_t number; /* of the step on its way */
};

numoe_status engine_cuda(cudaError_t e, const char *what, numoe_error *err);

/* Everything into VRAM. *short_bytes: how much is lacking (NUMOE_E_MEMORY). */
numoe_status engine_load(struct cuda_engine *e, uint64_t *short_bytes, numoe_error *err);

/* The whole step for n tokens (padded), n_logits rows of logits, onto e->stream. Sequences are
 * those of the step where prompts are long (n > STEP_BUCKET_MAX). NUMOE_E_DEVICE. */
numoe_status step_enqueue(struct cuda_engine *e, unsigned n, unsigned n_logits, numoe_error *err);
/* Contents of KV blocks, before the step. */
void step_copy_blocks(struct cuda_engine *e, const struct exchange_copy *copy, unsigned n);

#endif
