/* A counting sort: stable, linear, and without memory of its own; and the dealing of its groups to
 * nodes. */
#include "experts/dispatch.h"

#include <string.h>

#include "store/placement.h"

#define READ_COST 8 /* of an expert's weights, in tokens: what a few tokens cost is bound by it */

/* count[] is turned into positions. With experts 0 and 2 of three picked by two tokens, [2, 0] and
 * [0]: counts 2 0 1, items (0: 0 to 2), (2: 2 to 3), starts 0 2 2. */
void dispatch_build_part(const int32_t *ids, unsigned n_token, unsigned n_used, unsigned first,
                         unsigned end, unsigned n_expert, struct dispatch *d)
{
    uint32_t *at = d->count, sum = 0;
    memset(at, 0, n_expert * sizeof *at);
    for (unsigned t = 0; t < n_token; t++) {
        for (unsigned j = first; j < end; j++) {
            const int32_t id = ids[t * n_used + j];
            if (id >= 0) {
                at[id]++;
            }
        }
    }
    d->n_item = 0;
    for (unsigned ie = 0; ie < n_expert; ie++) {
        const uint32_t n = at[ie];
        if (n > 0) {
            d->item[d->n_item++] = (struct dispatch_item){ie, sum, sum + n, sum};
        }
        at[ie] = sum;
        sum += n;
    }
    d->n_pair = sum;
    for (unsigned t = 0; t < n_token; t++) {
        for (unsigned j = first; j < end; j++) {
            const int32_t id = ids[t * n_used + j];
            if (id >= 0) {
                const uint32_t to = at[id]++;
                d->token[to] = t;
                d->pair[to] = t * n_used + j;
            }
        }
    }
}

void dispatch_build(const int32_t *ids, unsigned n_token, unsigned n_used, unsigned n_expert,
                    struct dispatch *d)
{
    dispatch_build_part(ids, n_token, n_used, 0, n_used, n_expert, d);
}

/* ------------------------------------------------------------------ nodes */

static bool has_choice(uint64_t holders)
{
    return (holders & (holders - 1)) != 0;
}

static double cost(uint32_t n_token)
{
    return READ_COST + (double)n_token;
}

static void keep(struct dispatch *d, struct dispatch_item item)
{
    struct dispatch_item *last = d->n_item > 0 ? &d->item[d->n_item - 1] : NULL;
    if (last != NULL && last->expert == item.expert && last->end == item.begin) {
        last->end = item.end;
    } else {
        item.row = d->n_pair;
        d->item[d->n_item++] = item;
    }
    d->n_pair += item.end - item.begin;
}

/* Larger groups first; of equal ones the lower expert. */
static void sort_by_size(struct dispatch_item *item, unsigned n)
{
    for (unsigned i = 1; i < n; i++) {
        const struct dispatch_item it = item[i];
        unsigned to = i;
        while (to > 0 && item[to - 1].end - item[to - 1].begin < it.end - it.begin) {
            item[to] = item[to - 1];
            to--;
        }
        item[to] = it;
    }
}

/* Experts of one holder have no choice and come first, so that the others fill what they leave. */
void dispatch_share(struct dispatch *d, const uint64_t *holders, unsigned n_node,
                    const double *share, unsigned in)
{
    double load[TOPO_MAX_NODE] = {0};
    struct dispatch_item *open = d->open;
    unsigned n_open = 0;
    const unsigned n_item = d->n_item;
    d->n_item = d->n_pair = 0;
    for (unsigned i = 0; i < n_item; i++) {
        const struct dispatch_item item = d->item[i];
        const uint64_t at = holders[item.expert];
        if (has_choice(at)) {
            open[n_open++] = item;
        } else if (placement_take(at, n_node, share, load, cost(item.end - item.begin)) == in) {
            keep(d, item);
        }
    }
    sort_by_size(open, n_open);
    for (unsigned i = 0; i < n_open; i++) {
        struct dispatch_item piece = open[i];
        for (; piece.begin < open[i].end; piece.begin = piece.end) {
            piece.end = MIN(piece.begin + DISPATCH_PIECE, open[i].end);
            const double c = cost(piece.end - piece.begin);
            if (placement_take(holders[piece.expert], n_node, share, load, c) == in) {
                keep(d, piece);
            }
        }
    }
}
