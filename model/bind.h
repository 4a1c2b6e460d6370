/* Tensors of a file to the parts of a model. Internal to model/. */
#ifndef NUMOE_MODEL_BIND_H
#define NUMOE_MODEL_BIND_H

#include "model/arch.h"

/* Fills m->src and m->layer[].src (zeroed before) after m->hp; every tensor of the file must be a
 * part of the description, or belong to layers that are not used. */
numoe_status bind_tensors(struct model *m, const struct arch *arch, numoe_error *err);

void bind_fini(struct model *m);

#endif
