/* The exchange: how an engine and a GPU program meet. Messages over a Unix socket until both are
 * ready; from then on memory alone: one segment that both have mapped, with the batch to evaluate,
 * what goes to the experts and comes back, and the results. docs/exchange.md is the protocol in
 * words; this header is its types, and exchange.c what both ends need to check them.
 *
 * Everything has a fixed width and the byte order of the machine. There are no pointers: places are
 * offsets from the start of the segment. Nothing here knows CUDA, models or nodes; a program in
 * another language can follow the document alone.
 */
#ifndef NUMOE_GPU_EXCHANGE_H
#define NUMOE_GPU_EXCHANGE_H

#include <stddef.h>
#include <stdint.h>

#include "numoe/numoe.h"

#ifdef __cplusplus
extern "C" {
#endif

#define EXCHANGE_VERSION      2u
#define EXCHANGE_MAGIC        0x584d554eu /* "NUMX" */
#define EXCHANGE_MAX_DEVICE   16u
#define EXCHANGE_MESSAGE_MAX  8192u /* bytes, header and payload */
#define EXCHANGE_ALIGN        128u  /* of everything that one side writes and the other reads */
#define EXCHANGE_FD           3     /* the program's end of the socket */
#define EXCHANGE_WAKE_MS      10u   /* a step after a longer pause is announced by WAKE */
#define EXCHANGE_HEARTBEAT_MS 100u  /* the program beats at least this often */

/* ------------------------------------------------------------------ messages */

enum exchange_type {
    EXCHANGE_HELLO = 1,    /* program: who it is; struct exchange_hello */
    EXCHANGE_LOAD = 2,     /* engine: what to load; struct exchange_load and the segment's memfd */
    EXCHANGE_PROGRESS = 3, /* program, while it loads; struct exchange_progress */
    EXCHANGE_READY = 4,    /* program: steps may come; struct exchange_ready */
    EXCHANGE_REFUSED = 5,  /* program, instead of HELLO or READY: why not; struct exchange_text. */
    EXCHANGE_FAULT = 6,    /* program, after READY: why it ends; struct exchange_text */
    EXCHANGE_QUIT = 7,     /* engine: end, as at the end of the socket; no payload */
    EXCHANGE_WAKE = 8,     /* engine: a step was rung after a pause; no payload */
};

/* In front of every message; a message is one packet (SOCK_SEQPACKET). magic and version keep their
 * places in all versions. */
struct exchange_message {
    uint32_t magic;
    uint32_t version; /* of the sender */
    uint32_t type;
    uint32_t payload_bytes;
};

struct exchange_device {
    char name[64];                    /* "NVIDIA H200", NUL-terminated */
    uint64_t total_bytes, free_bytes; /* of its memory */
    uint32_t number;                  /* as the driver counts */
    uint32_t os_node;                 /* the node it is attached to; UINT32_MAX: not known */
};

enum exchange_x_type { EXCHANGE_X_F32 = 0, EXCHANGE_X_BF16 = 1 };

struct exchange_hello {
    char program[64];      /* "numoe-gpu-cuda 0.1.0" */
    char driver[64];       /* "CUDA 12.9, driver 575.57" */
    char trouble[256];     /* why there is no device; empty where there is one */
    uint32_t n_device;     /* 0: cannot run here */
    uint32_t x_type;       /* enum exchange_x_type: in which it will write x */
    uint32_t block_tokens; /* positions of a KV block: a power of two, 16 to 256 */
    uint32_t max_tokens;   /* most tokens of a step; the engine may ask for fewer */
    uint32_t on_host; /* 1: it computes on the host's CPUs, waiting engines should leave them */
    uint32_t max_plan_device; /* devices that one plan may name; 0: all of them */
    uint64_t workspace_bytes; /* on each device, whatever the model: context, libraries, graphs */
    struct exchange_device device[EXCHANGE_MAX_DEVICE];
};

struct exchange_load {
    uint64_t segment_bytes;
};

struct exchange_progress {
    uint64_t done_bytes, total_bytes;
};

/* What of a device's memory is used for what. */
struct exchange_use {
    uint64_t dense_bytes, expert_bytes, kv_bytes, workspace_bytes, free_bytes;
};

struct exchange_ready {
    uint32_t n_device; /* those of the plan, in its order */
    uint32_t reserved;
    struct exchange_use use[EXCHANGE_MAX_DEVICE];
};

/* short_bytes where the machine's memory, not a device's, has not sufficed: loading less on the
 * device mends nothing. */
#define EXCHANGE_SHORT_ELSEWHERE UINT64_MAX

struct exchange_text {
    uint64_t short_bytes; /* REFUSED for lack of device memory: how much; otherwise 0, or above */
    char text[504];       /* one line, NUL-terminated */
};

/* ------------------------------------------------------------------ the segment */

/* One word that one side raises and the other waits for: it never falls, and "at least" is the only
 * question. Whatever was written before is there for who has seen the word (release, acquire; to a
 * GPU: system scope). Alone on its lines. */
struct exchange_bell {
    uint64_t value;
    uint8_t alone[EXCHANGE_ALIGN - sizeof(uint64_t)];
};

enum exchange_float {
    EXCHANGE_FLOAT_FAST = 0, /* arithmetic in bf16 or f16 with f32 sums is welcome */
    EXCHANGE_FLOAT_F32 = 1,  /* f32 throughout, tf32 excluded */
};

enum exchange_kv_type { EXCHANGE_KV_F32 = 0, EXCHANGE_KV_F16 = 1, EXCHANGE_KV_Q8_0 = 2 };

enum {
    EXCHANGE_LAYER_HAND = 1,   /* a layer with experts, some of which are the engine's: hand-off */
    EXCHANGE_LAYER_ROUTES = 2, /* all of its experts are the program's: its choices come at the end
                                  of the step */
};

/* A layer whose dense half is the program's. */
struct exchange_layer {
    uint32_t flags;
    uint32_t device;     /* index into header.device: where the plan has counted its bytes */
    uint32_t hot0, hot1; /* its experts that the program has: hot[hot0, hot1), ascending */
};

/* At offset 0. Written by the engine before LOAD, and never again but for the bells. */
struct exchange_header {
    uint32_t magic, version;
    uint64_t segment_bytes;

    /* the model, as a check: the program reads everything else from its files */
    uint32_t n_part; /* files of a split model */
    uint32_t n_layer, n_embd, n_vocab, n_expert, n_expert_used;
    uint64_t path_at; /* n_part absolute paths in order, each NUL-terminated */
    uint64_t path_bytes;

    /* the plan */
    uint32_t n_device;
    uint32_t device[EXCHANGE_MAX_DEVICE]; /* indices into hello.device */
    uint32_t n_dense_layer; /* layers [0, n) are the program's; n_layer: the head too */
    uint32_t n_hot;         /* experts that the program has, over all layers */
    uint64_t layer_at;      /* struct exchange_layer [n_dense_layer] */
    uint64_t hot_at;        /* uint32_t [n_hot] */

    /* sizes */
    uint32_t max_tokens;            /* of a step */
    uint32_t max_logits;            /* rows of logits of a step */
    uint32_t max_seq;               /* sequences that have a cache */
    uint32_t n_block, block_tokens; /* KV blocks in all, and positions of each */
    uint32_t max_seq_block;         /* of one sequence: row length of the block tables */
    uint32_t x_type, float_mode, kv_type;
    uint32_t n_route; /* layers with EXCHANGE_LAYER_ROUTES */

    /* places; step, hand and result have two slots each, slot = number % 2 */
    uint64_t table_at;           /* uint32_t [max_seq, max_seq_block] numbers of KV blocks */
    uint64_t step_at[2];         /* struct exchange_step */
    uint64_t token_at[2];        /* struct exchange_token [max_tokens] */
    uint64_t seq_at[2];          /* struct exchange_seq [max_seq] */
    uint64_t copy_at[2];         /* struct exchange_copy [max_seq] */
    uint64_t x_at[2];            /* [max_tokens, n_embd] of x_type; room for f32 */
    uint64_t id_at[2];           /* int32_t [max_tokens, n_expert_used] */
    uint64_t weight_at[2];       /* float [max_tokens, n_expert_used] */
    uint64_t y_at[2];            /* float [max_tokens, n_embd] */
    uint64_t logits_at[2];       /* float [max_logits, n_vocab] */
    uint64_t route_id_at[2];     /* int32_t [n_route, max_tokens, n_expert_used] */
    uint64_t route_weight_at[2]; /* float [n_route, max_tokens, n_expert_used] */

    uint8_t align[136];
    struct exchange_bell step;   /* engine: number of the step to evaluate, from 1 */
    struct exchange_bell x;      /* program: number of the hand-off whose x is there, from 1 */
    struct exchange_bell y;      /* engine: number of the hand-off whose y is there */
    struct exchange_bell result; /* program: number of the step whose logits are there */
    struct exchange_bell beat;   /* program: counts, whatever else it does */
};

/* ------------------------------------------------------------------ a step */

struct exchange_step {
    uint64_t number;
    uint64_t first_hand; /* number of its first hand-off; the others follow in order of layers */
    uint32_t n_token, n_seq, n_copy, n_logits;
};

#define EXCHANGE_NO_LOGITS UINT32_MAX

struct exchange_token {
    int32_t id;
    uint32_t position; /* in its sequence */
    uint32_t seq;      /* index into the step's sequences */
    uint32_t logits;   /* row of the result, or EXCHANGE_NO_LOGITS */
};

/* Tokens [token0, token0 + n_token) of the step, at consecutive positions. */
struct exchange_seq {
    uint32_t row; /* of the block tables */
    uint32_t token0, n_token;
    uint32_t n_block; /* blocks that cover all positions up to the last of these */
};

/* Before anything else of the step: block `to` becomes a copy of block `from`, all layers. */
struct exchange_copy {
    uint32_t from, to;
};

/* ------------------------------------------------------------------ a hand-off */

/* Expert ie, where the program computes it itself, stands in the list as EXCHANGE_HOT(ie):
 * negative, and its own inverse. The engine counts it and leaves it out of y. */
#define EXCHANGE_HOT(ie) (-1 - (ie))

/* ------------------------------------------------------------------ bells */

static inline uint64_t exchange_bell_get(const struct exchange_bell *bell)
{
    return __atomic_load_n(&bell->value, __ATOMIC_ACQUIRE);
}

static inline void exchange_bell_ring(struct exchange_bell *bell, uint64_t value)
{
    __atomic_store_n(&bell->value, value, __ATOMIC_RELEASE);
}

/* ------------------------------------------------------------------ checks and places */

/* What the sizes of a segment follow from; hot experts are counted only. */
struct exchange_sizes {
    uint32_t n_part, n_layer, n_embd, n_vocab, n_expert, n_expert_used;
    uint32_t n_dense_layer, n_hot, n_route;
    uint32_t max_tokens, max_logits, max_seq, n_block, block_tokens, max_seq_block;
    uint64_t path_bytes;
};

/* Fills *header with sizes and places; pure. NUMOE_E_INPUT where the segment would be too large to
 * address. */
numoe_status exchange_layout(const struct exchange_sizes *sizes, struct exchange_header *header,
                             numoe_error *err);

/* That a segment of that many bytes is one of this version, that all places lie within it and do
 * not overlap the header, and that tables (paths, layers, hot experts) say what can be. For the
 * program, before it reads anything else of it. NUMOE_E_FILE_FORMAT says what is wrong. */
numoe_status exchange_check(const void *segment, uint64_t bytes, numoe_error *err);

/* The model as a program has read it, to be the one that the header means. */
struct exchange_model {
    uint32_t n_part, n_layer, n_embd, n_vocab, n_expert, n_expert_used;
};

/* For the program, after it has opened the files. NUMOE_E_FILE_MODEL: another model. */
numoe_status exchange_check_model(const struct exchange_header *header,
                                  const struct exchange_model *model, numoe_error *err);

/* That the step in slot number % 2 is what may be run: counts, rows, blocks, positions. */
numoe_status exchange_check_step(const void *segment, uint64_t number, numoe_error *err);

/* That a packet of `bytes` is a whole message of this version with a payload of its type, texts
 * ended, numbers in range. NUMOE_E_SUPPORT: another version; NUMOE_E_FILE_FORMAT: not a message. */
numoe_status exchange_check_message(const void *packet, size_t bytes, numoe_error *err);

static inline void *exchange_at(void *segment, uint64_t at)
{
    return (uint8_t *)segment + at;
}

/* Hand-offs of a step: one for each layer with EXCHANGE_LAYER_HAND, and one more at the end for the
 * residual stream where the engine has the last layers. */
uint32_t exchange_step_hands(const void *segment);

/* ------------------------------------------------------------------ the socket */

/* One message; fd -1: none goes with it. NUMOE_E_DEVICE: the other side is gone. */
numoe_status exchange_send(int socket, uint32_t type, const void *payload, size_t payload_bytes,
                           int fd, numoe_error *err);

/* Waits for one message, at most timeout_ms (-1: for ever), checks it, and writes it to packet
 * [EXCHANGE_MESSAGE_MAX]. *fd receives the descriptor that came with it, or -1; fd NULL: none is
 * taken. NUMOE_E_DEVICE: the other side is gone; NUMOE_E_STATE: nothing came in time. */
numoe_status exchange_receive(int socket, int timeout_ms, void *packet, int *fd, numoe_error *err);

static inline const void *exchange_payload(const void *packet)
{
    return (const uint8_t *)packet + sizeof(struct exchange_message);
}

#ifdef __cplusplus
}
#endif
#endif
