/* What is wrong with an engine's parameters before anything is opened: values that cannot be, and some
 * that would be ignored beside others. NUMOE_E_INPUT says which. */
#ifndef NUMOE_RUNTIME_PARAMS_H
#define NUMOE_RUNTIME_PARAMS_H

#include <stdbool.h>

#include "base/status.h"
#include "numoe/numoe.h"

numoe_status params_check(const numoe_engine_params *params, numoe_error *err);

/* That an engine would use them: a plan may be made to compare what one engine would not do. */
numoe_status params_check_used(const numoe_engine_params *params, numoe_error *err);

/* Whether memory for further copies of experts is asked for; a GPU. */
bool params_has_budget(const numoe_engine_params *params);
bool params_has_gpu(const numoe_engine_params *params);

/* Whether copies of experts are to come and go: with adapt, or where only counting will tell which
 * ones. */
bool params_replicas_change(const numoe_engine_params *params);

#endif
