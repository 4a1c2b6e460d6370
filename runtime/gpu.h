/* The engine's end of a GPU program: which program, what it gets, its KV blocks, the steps that it
 * is given, and what happens when it fails. What passes between the two is docs/exchange.md.
 *
 * Used by the engine's thread; functions marked "worker" by the first worker of a running step.
 */
#ifndef NUMOE_RUNTIME_GPU_H
#define NUMOE_RUNTIME_GPU_H

#include "dense/kv.h"
#include "experts/experts.h"
#include "gpu/plan.h"
#include "gpu/program.h"
#include "model/model.h"
#include "store/stats.h"

struct gpu;
struct step_token;

/* The part of a sequence's KV cache that is in GPU memory: blocks, in a row of the block tables. */
struct gpu_cache {
    uint32_t row, n_block; /* n_block 0: it has no row */
};

struct gpu_request {
    const struct model *model;
    const struct expert_stats *stats; /* or NULL */
    unsigned max_tokens, kv_tokens;
    enum kv_type kv_type;
    bool defers;
};

/* Finds and starts the program that params name, and lets it load its part while the caller loads
 * its own. *out is NULL where none is wanted, or where "auto" cannot have one: a warning says why.
 * params' strings are used until gpu_close(). */
numoe_status gpu_open(const numoe_engine_params *params, const struct gpu_request *request,
                      struct gpu **out, numoe_error *err);
void gpu_close(struct gpu *g); /* NULL is allowed */

/* The program has failed to start or load with that status. Where nobody asked for it by name, a
 * warning says why, and it is no error: but for what the user said wrongly (NUMOE_E_INPUT). */
numoe_status gpu_do_without(const struct gpu *g, numoe_status status, const char *why,
                            numoe_error *err);

/* Waits until the program is ready. Where it lacks memory it gets less to load, so that the number
 * of its layers may be smaller afterwards: *shrunk. */
numoe_status gpu_wait_ready(struct gpu *g, bool *shrunk, numoe_error *err);

/* Layers [0, n) are the program's; of all layers, the head too. */
unsigned gpu_n_layer(const struct gpu *g);
bool gpu_has_head(const struct gpu *g);
bool gpu_has_hand(const struct gpu *g, unsigned il);
unsigned gpu_n_hand(const struct gpu *g); /* of a step */
bool gpu_has_expert(const struct gpu *g, unsigned il, unsigned ie);
bool gpu_is_running(const struct gpu *g); /* false after a failed restart */
unsigned gpu_max_tokens(const struct gpu *g);
unsigned gpu_max_logits(const struct gpu *g);
uint64_t gpu_kv_tokens(const struct gpu *g);
const char *gpu_description(const struct gpu *g); /* one line */

/* After a failed step: says so, starts the program again and has it load the same. All caches are
 * empty then. NUMOE_E_DEVICE where that fails, or has happened too
 * often: go on without. */
numoe_status gpu_restart(struct gpu *g, numoe_error *err);

/* ------------------------------------------------------------------ caches */

/* Room for positions [0, n), in blocks that no other cache has where anything from position n_kept
 * on is to be written. NUMOE_E_MEMORY says what there is. */
numoe_status gpu_cache_reserve(struct gpu *g, struct gpu_cache *c, unsigned n_kept, unsigned n,
                               numoe_error *err);
void gpu_cache_truncate(struct gpu *g, struct gpu_cache *c, unsigned n);
/* c, which is empty, gets the first n positions of another. */
numoe_status gpu_cache_share(struct gpu *g, struct gpu_cache *c, const struct gpu_cache *from,
                             unsigned n, numoe_error *err);

/* ------------------------------------------------------------------ a step */

/* Writes the step and rings. tokens as in step_run(). */
void gpu_begin(struct gpu *g, const struct step_token *tokens, unsigned n);

/* Worker: waits for the next hand-off of the step; false: the program failed. */
bool gpu_wait_hand(struct gpu *g);
/* Of the hand-off that came last: its inputs; its output [n, D]; the residual stream. */
struct experts_given gpu_given(const struct gpu *g);
float *gpu_y(const struct gpu *g);
const float *gpu_stream(const struct gpu *g);
/* Worker: the output is there. */
void gpu_ring_y(struct gpu *g);

/* Waits for the logits; false: the program failed. */
bool gpu_wait_result(struct gpu *g);
/* Whether layer il has experts and no hand-off; after the step, what the router chose in the layer
 * that is number i_route of those. */
bool gpu_has_routes(const struct gpu *g, unsigned il);
struct experts_given gpu_routes(const struct gpu *g, unsigned i_route);
/* [V] of token i, where it wanted them. */
const float *gpu_logits(const struct gpu *g, unsigned i);
/* What the caller found wrong with what the program wrote: the step has failed. */
void gpu_blame(struct gpu *g, const char *text);

/* ------------------------------------------------------------------ where programs are */

/* What "auto" starts: "cuda", or what the environment variable NUMOE_GPU_PROGRAM says. */
const char *gpu_automatic_name(void);

/* Path of "cuda", "emu", or of a program itself. NUMOE_E_FILE_OPEN names the places looked at. */
numoe_status gpu_find(const char *name, char *path, size_t cap, numoe_error *err);

#endif
