/* An engine with a GPU program: what of the model it loads itself, and how it goes on when the
 * program does not. Private to runtime/. */
#ifndef NUMOE_RUNTIME_GPU_ENGINE_H
#define NUMOE_RUNTIME_GPU_ENGINE_H

#include "runtime/engine.h"

/* Starts the program that params name, if any: e->gpu. Before weights are loaded. */
numoe_status engine_open_gpu(numoe_engine *e, const numoe_engine_params *params, numoe_error *err);

/* Whether a weight is needed on the CPU: a shape_keep_fn whose arg is the engine. */
bool engine_needs(const struct shape *s, const void *arg);

/* Waits for the program, after the engine's own weights are loaded. If it took less than was
 * planned, the rest is loaded here. Before e->step is made. */
numoe_status engine_await_gpu(numoe_engine *e, numoe_error *err);

/* Experts that the program has need no copies on nodes: for e->adapt, if there is one. */
void engine_adapt_beside_gpu(numoe_engine *e);

/* After a failed step: the program is started again, or else all of the model is loaded and the
 * pools do everything from now on. Caches are empty afterwards. */
numoe_status engine_recover(numoe_engine *e, numoe_error *err);

#endif
