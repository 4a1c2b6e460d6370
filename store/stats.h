/* Expert statistics: how often the experts of a model were chosen, with which router weights, and
 * which ones together. Files are in docs/expert-stats.md; importance matrices that llama.cpp writes
 * are read too (store/imatrix.c).
 */
#ifndef NUMOE_STORE_STATS_H
#define NUMOE_STORE_STATS_H

#include <stdio.h>

#include "store/placement.h"

/* Zeros. stats: expert_stats_fini(). with_pairs: room for pairs too, n_expert^2 / 2 a layer. */
numoe_status expert_stats_new(unsigned n_layer, unsigned n_expert, unsigned n_used, bool with_pairs,
                              struct expert_stats *stats, numoe_error *err);
void expert_stats_fini(struct expert_stats *stats);

/* Any of the three kinds of files, of whatever model. */
numoe_status expert_stats_read(const char *path, struct expert_stats *stats, numoe_error *err);
/* The same, for this model: NUMOE_E_INPUT where the file is for one of another shape. */
numoe_status expert_stats_load(const char *path, const struct model *model,
                               struct expert_stats *stats, numoe_error *err);
/* All that is known is written. */
numoe_status expert_stats_save(FILE *out, const struct expert_stats *stats, numoe_error *err);

/* Adds. What one of the two does not know is not known of both. NUMOE_E_INPUT for another shape. */
numoe_status expert_stats_merge(struct expert_stats *to, const struct expert_stats *from,
                                numoe_error *err);

/* The choice of one token in a layer; ids [k] differ and are below n_expert. */
void expert_stats_count(struct expert_stats *stats, unsigned il, unsigned k, const int32_t *ids,
                        const float *weights);

/* Pairs of n experts, and where the pair a < b is among them. */
static inline size_t expert_stats_pairs(size_t n)
{
    return n * (n - (n > 0)) / 2;
}

static inline size_t expert_stats_pair(size_t n, size_t a, size_t b)
{
    return a * (2 * n - a - 1) / 2 + (b - a - 1);
}

/* ------------------------------------------------------------------ what they say */

/* Counts of one list, the largest first. */
void expert_stats_sort(const uint64_t *count, size_t n, uint64_t *sorted);

/* The share (0 to 1) of all choices that the largest `part` (0 to 1) of n sorted counts serve;
 * where they do not divide evenly, a part of the next one's. 0 where nothing was chosen. */
double expert_stats_coverage(const uint64_t *sorted, size_t n, double part);

/* The most used expert's count, as a multiple of the mean; 0 where nothing was chosen. */
double expert_stats_imbalance(const uint64_t *count, size_t n);

/* store/stats-report.c. NUMOE_E_INPUT where the statistics lack what the format shows. */
numoe_status expert_stats_print(const struct expert_stats *stats, numoe_stats_format format,
                                FILE *out, numoe_error *err);

/* ------------------------------------------------------------------ store/imatrix.c */

/* An importance matrix in the form without GGUF: bytes of a file, whose name errors begin with. */
numoe_status imatrix_parse(const unsigned char *data, size_t bytes, const char *path,
                           struct expert_stats *stats, numoe_error *err);

struct gguf;
bool imatrix_is(const struct gguf *g);
numoe_status imatrix_from_gguf(const struct gguf *g, struct expert_stats *stats, numoe_error *err);

#endif
