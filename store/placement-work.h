/* Private to store/: the parts of a prediction that are not bytes. Pure functions. */
#ifndef NUMOE_STORE_PLACEMENT_WORK_H
#define NUMOE_STORE_PLACEMENT_WORK_H

#include "store/placement.h"

/* Bytes a second that node in's workers get through products of weights of a type. */
double placement_product_bps(const struct placement_machine *machine, unsigned in,
                             uint32_t format_id);
/* How many times longer n_panel panels take than if workers could be given parts of one; >= 1. */
double placement_rounds(double n_panel, unsigned n_worker);
/* The same, or 1 where the products of the type were measured as they are divided. */
double placement_product_rounds(const struct placement_machine *machine, uint32_t format_id,
                                double n_panel, unsigned n_worker);

/* Seconds of a step: meetings, of one node alone or of all; beginning and end; activations of
 * n_token tokens, with n_worker in all and n_owner on the node that has the cache. */
double placement_meet_seconds(const struct placement *p, const struct shapes *shapes,
                              const struct placement_machine *machine, bool alone);
double placement_step_seconds(const struct placement_machine *machine);
double placement_vector_seconds(const struct shapes *shapes,
                                const struct placement_machine *machine, unsigned n_token,
                                unsigned n_worker, unsigned n_owner);

#endif
