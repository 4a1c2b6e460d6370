/* What numoe_plan_print() is made of. */
#ifndef NUMOE_RUNTIME_PLAN_H
#define NUMOE_RUNTIME_PLAN_H

#include <stdio.h>

#include "store/placement.h"

/* The file that is named, or a geometry: model_close(). */
numoe_status plan_model_open(const numoe_plan_params *params, struct model **out, numoe_error *err);

/* That a GPU, if one is described, can be understood and would be shown. Before anything is printed. */
numoe_status plan_check(const numoe_plan_params *params, bool json, numoe_error *err);

/* All placements beside each other on a machine. */
numoe_status plan_compare(const numoe_plan_params *params, const struct model *model,
                          const struct shapes *shapes, const struct placement_machine *machine,
                          FILE *out, numoe_error *err);

#endif
