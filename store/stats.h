/* Files of expert statistics; the format is in docs/expert-stats.md. */
#ifndef NUMOE_STORE_STATS_H
#define NUMOE_STORE_STATS_H

#include <stdio.h>

#include "store/placement.h"

/* NUMOE_E_INPUT where the file is for a model of another shape. stats: expert_stats_fini(). */
numoe_status expert_stats_load(const char *path, const struct model *model,
                               struct expert_stats *stats, numoe_error *err);
void expert_stats_fini(struct expert_stats *stats);

/* count [n_layer, n_expert]. */
numoe_status expert_stats_save(FILE *out, const struct model *model, const uint64_t *count,
                               numoe_error *err);

#endif
