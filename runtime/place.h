/* From an engine's parameters to pools and a placement of the weights on them. */
#ifndef NUMOE_RUNTIME_PLACE_H
#define NUMOE_RUNTIME_PLACE_H

#include <stdio.h>

#include "runtime/tune.h"
#include "store/placement.h"

struct place {
    struct shapes shapes;
    struct placement_machine machine;
    struct placement *plan;
    struct pools *pools;
    struct tuning tuning;
};

/* Starts the workers and makes the plan, or takes the one of a file; the topology loses the nodes
 * that take no part. Of the weights that keep() keeps alone; NULL: of all. On failure *out is empty. */
numoe_status place_open_part(const numoe_engine_params *params, const struct model *model,
                             shape_keep_fn *keep, const void *keep_arg, struct topo *topo,
                             struct place *out, numoe_error *err);
void place_close(struct place *place); /* pools and memo too, where they are not taken out */

/* The same in two steps: machine, pools and shapes, with bandwidth as given, from the platform or
 * assumed; and the plan. */
numoe_status place_open_machine(const numoe_engine_params *params, const struct model *model,
                                struct topo *topo, struct place *out, numoe_error *err);
numoe_status place_choose(const numoe_engine_params *params, const struct model *model,
                          struct topo *topo, struct place *place, numoe_error *err);

/* "rows of every matrix cut over nodes" */
const char *place_mode_text(const struct placement *plan);
/* "rows of every matrix on 2 nodes: node 0 50 % with 8 workers, ...; why". */
numoe_status place_describe(const struct placement *plan, const struct placement_machine *machine,
                            struct strbuf *out, numoe_error *err);

#endif
