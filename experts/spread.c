/* Lists of what travels between ranks; see spread.h. */
#include "experts/spread.h"

#include <stdbool.h>

#include "experts/dispatch.h"
#include "store/shape.h"

static bool is_of(const struct spread_shape *s, int32_t id, unsigned rank)
{
    return shapes_expert_rank(s->n_expert, (unsigned)id, s->n_rank) == rank;
}

static bool chooses(const struct spread_shape *s, const int32_t *ids, unsigned rank)
{
    for (unsigned j = 0; j < s->n_used; j++) {
        if (is_of(s, ids[j], rank)) {
            return true;
        }
    }
    return false;
}

/* A token of the list: which of its choices are computed here, and where their products go; returns
 * how many there are. */
static uint32_t add_row(const struct spread_shape *s, const int32_t *ids, struct spread_plan *p,
                        uint32_t *next_row)
{
    const unsigned k = s->n_used;
    const bool own = p->n_row < p->n_own;
    int32_t *to = p->ids + (uint64_t)p->n_row * k;
    uint32_t *row = p->row + (uint64_t)p->n_row * k, n = 0;
    for (unsigned j = 0; j < k; j++) {
        const bool here = is_of(s, ids[j], s->rank);
        to[j] = here ? ids[j] : DISPATCH_ELSEWHERE(ids[j]);
        row[j] = own ? p->n_row * k + j : *next_row;
        *next_row += here && !own;
        n += here;
    }
    p->n_row++;
    return n;
}

/* Own tokens as they concern another rank. */
static void list_own(const struct spread_shape *s, const int32_t *ids, unsigned rank,
                     struct spread_plan *p, uint32_t *n_send, uint32_t *n_result)
{
    const uint32_t send0 = *n_send, result0 = *n_result;
    for (uint32_t t = 0; t < p->n_own; t++) {
        const int32_t *chosen = ids + (uint64_t)t * s->n_used;
        if (chooses(s, chosen, rank)) {
            p->send[(*n_send)++] = t;
        }
        for (unsigned j = 0; j < s->n_used; j++) {
            if (is_of(s, chosen[j], rank)) {
                p->result[(*n_result)++] = t * s->n_used + j;
            }
        }
    }
    p->n_send[rank] = *n_send - send0;
    p->n_result[rank] = *n_result - result0;
}

void spread_plan_make(const struct spread_shape *s, const int32_t *ids, unsigned stride,
                      const uint32_t *n, struct spread_plan *p)
{
    const uint64_t of_rank = (uint64_t)stride * s->n_used;
    const int32_t *own = ids + s->rank * of_rank;
    uint32_t n_send = 0, n_result = 0, next_row = n[s->rank] * s->n_used;
    p->n_own = n[s->rank];
    p->n_row = 0;
    for (uint32_t t = 0; t < p->n_own; t++) {
        (void)add_row(s, own + (uint64_t)t * s->n_used, p, &next_row);
    }
    for (unsigned r = 0; r < s->n_rank; r++) {
        p->n_send[r] = p->n_recv[r] = p->n_back[r] = p->n_result[r] = 0;
        if (r == s->rank) {
            continue;
        }
        list_own(s, own, r, p, &n_send, &n_result);
        for (uint32_t t = 0; t < n[r]; t++) {
            const int32_t *chosen = ids + r * of_rank + (uint64_t)t * s->n_used;
            if (chooses(s, chosen, s->rank)) {
                p->n_recv[r]++;
                p->n_back[r] += add_row(s, chosen, p, &next_row);
            }
        }
    }
}
