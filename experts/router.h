/* Which experts a token goes to, and with what weights. */
#ifndef NUMOE_EXPERTS_ROUTER_H
#define NUMOE_EXPERTS_ROUTER_H

#include "model/model.h"

/* Pure. logits [n_expert], any bias of theirs added; select_bias [n_expert] or NULL is for the
 * choice only. scratch: router_scratch_floats(). ids and weights [n_used], by falling score; of
 * equal scores the lower id comes first. */
void router_select(const struct router_params *p, unsigned n_expert, unsigned n_used,
                   const float *logits, const float *select_bias, float *scratch, int32_t *ids,
                   float *weights);
size_t router_scratch_floats(const struct router_params *p, unsigned n_expert);

#endif
