/* Further copies of experts follow what is used: counts of the last tokens say which ones, and
 * between steps they are copied, a little at a time. Changes where an expert is computed, never
 * what.
 */
#ifndef NUMOE_RUNTIME_ADAPT_H
#define NUMOE_RUNTIME_ADAPT_H

#include "model/model.h"
#include "numa/pool.h"
#include "store/store.h"

struct adapt;

struct adapt_totals {
    uint64_t n_place;           /* copies that there is memory for */
    uint64_t n_token_first;     /* that are counted before the first copies */
    uint64_t n_made, n_swapped; /* copies made; of them in place of others */
    uint64_t copied_bytes, copy_ns;
};

/* For a store whose replicas may change. follow: for good, with what was used last; otherwise
 * places are filled once, as soon as it is known with what. */
numoe_status adapt_new(const struct model *model, struct store *store, bool follow,
                       struct adapt **out, numoe_error *err);
void adapt_free(struct adapt *a); /* NULL is allowed */

/* An expert that is computed elsewhere, whatever its count, and needs no copies. Between steps. */
void adapt_leave_out(struct adapt *a, unsigned il, unsigned ie, bool out);

/* Before a step: copies, if there is something to copy and it is time to. count [n_layer, n_expert]
 * as experts_counts(); it is asked for only when it is looked at. */
typedef const uint64_t *adapt_count_fn(const void *arg);
void adapt_look(struct adapt *a, struct pools *pools, adapt_count_fn *count, const void *arg);
/* After it: what it took, for how many tokens. */
void adapt_note(struct adapt *a, uint64_t step_ns, unsigned n_token);

struct adapt_totals adapt_get_totals(const struct adapt *a);
/* Of the choices in count, those that were made while there were further copies of the expert. */
uint64_t adapt_choices_copied(const struct adapt *a, const uint64_t *count);

#endif
