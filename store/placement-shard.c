/* Whole experts on nodes: dealt so that every node is expected to have as much to do as its share,
 * layer by layer; then the most used ones a second and further time, while the budget lasts.
 */
#include "store/placement.h"

#include <stdlib.h>
#include <string.h>

/* The routed weights of one layer. */
struct expert_layer {
    const struct shape *shape[3]; /* gate, up, down; gate and up may be one in later formats */
    unsigned n_shape;
    uint64_t bytes; /* of one expert */
    bool mapped;    /* takes no room, so there is nothing to gain by copies either */
    double n_token; /* counted; 0: nothing is known */
    const uint64_t *count;
};

struct deal {
    struct placement *p;
    const struct placement_machine *machine;
    unsigned n_layer, n_expert;
    struct expert_layer *layer; /* [n_layer] */
    uint64_t *holders;          /* [n_layer, n_expert] */
    double load[TOPO_MAX_NODE]; /* expected, of the layer that is dealt or of all */
};

static void find_layers(struct deal *d, const struct shapes *shapes,
                        const struct expert_stats *stats, unsigned n_used)
{
    for (unsigned is = 0; is < shapes->n; is++) {
        const struct shape *s = &shapes->shape[is];
        if (shape_is_routed(s)) {
            struct expert_layer *l = &d->layer[s->layer];
            l->shape[l->n_shape++] = s;
            l->bytes += shape_bytes(s) / s->n_mat;
            l->mapped = s->mapped;
        }
    }
    for (unsigned il = 0; stats != NULL && il < d->n_layer; il++) {
        d->layer[il].count = stats->count + (size_t)il * d->n_expert;
        for (unsigned ie = 0; ie < d->n_expert; ie++) {
            d->layer[il].n_token += (double)d->layer[il].count[ie] / n_used;
        }
    }
}

/* How likely a token chooses the expert; the same for all where nothing is known. */
static double likelihood(const struct deal *d, const struct expert_layer *l, unsigned ie)
{
    return l->n_token > 0 ? (double)l->count[ie] / l->n_token : 1.0 / d->n_expert;
}

static uint64_t nodes_with_room(const struct deal *d, uint64_t bytes)
{
    uint64_t nodes = 0;
    for (unsigned in = 0; in < d->p->n_node; in++) {
        const uint64_t room = placement_room(d->machine, in);
        if (d->p->share[in] > 0 && room >= bytes && d->p->node_bytes[in] <= room - bytes) {
            nodes |= UINT64_C(1) << in;
        }
    }
    return nodes;
}

static numoe_status put(struct deal *d, unsigned il, unsigned ie, unsigned in, numoe_error *err)
{
    const struct expert_layer *l = &d->layer[il];
    for (unsigned i = 0; i < l->n_shape; i++) {
        FORWARD_IF(
            placement_add(d->p, l->shape[i],
                          (struct placement_slice){
                              .node = in, .mat0 = ie, .mat1 = ie + 1, .row1 = l->shape[i]->n_row},
                          err));
    }
    d->holders[(size_t)il * d->n_expert + ie] |= UINT64_C(1) << in;
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ first copies */

struct ranked {
    double weight;
    unsigned il, ie, nth;
};

static int compare_ranked(const void *va, const void *vb)
{
    const struct ranked *a = va, *b = vb;
    if (a->weight != b->weight) {
        return a->weight > b->weight ? -1 : 1;
    }
    if (a->il != b->il) {
        return a->il < b->il ? -1 : 1;
    }
    return a->ie != b->ie ? (a->ie < b->ie ? -1 : 1) : a->nth < b->nth ? -1 : a->nth > b->nth;
}

/* The most used first, each to the node with the least to do; what layers before left uneven, this
 * one begins with, lest ties always go to the first node. */
static numoe_status deal_layer(struct deal *d, unsigned il, struct ranked *order, numoe_error *err)
{
    const struct expert_layer *l = &d->layer[il];
    double load[TOPO_MAX_NODE] = {0};
    const double unit = 1e-6 * (double)l->bytes / d->n_expert;
    for (unsigned in = 0; in < d->p->n_node; in++) {
        load[in] = unit * (double)((in + il) % d->p->n_node);
    }
    for (unsigned ie = 0; ie < d->n_expert; ie++) {
        order[ie] = (struct ranked){likelihood(d, l, ie), il, ie, 0};
    }
    qsort(order, d->n_expert, sizeof *order, compare_ranked);
    for (unsigned i = 0; i < d->n_expert; i++) {
        const uint64_t nodes = nodes_with_room(d, l->mapped ? 0 : l->bytes);
        const double cost = order[i].weight * (double)l->bytes;
        if (nodes == 0) {
            return status_fail(
                err, NUMOE_E_MEMORY,
                "%u experts of layer %u, %.1f MiB each, find no room on any of %u nodes: take a "
                "smaller quantization",
                d->n_expert - i, il, (double)l->bytes / 1048576.0, d->p->n_node);
        }
        const unsigned in = placement_take(nodes, d->p->n_node, d->p->share, load, cost);
        d->load[in] += cost;
        FORWARD_IF(put(d, il, order[i].ie, in, err));
    }
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ replicas */

static double expert_cost(const struct deal *d, unsigned il, unsigned ie, unsigned n_holder)
{
    const struct expert_layer *l = &d->layer[il];
    return likelihood(d, l, ie) * (double)l->bytes / n_holder;
}

static void spread_load(struct deal *d, unsigned il, unsigned ie, double sign)
{
    const uint64_t holders = d->holders[(size_t)il * d->n_expert + ie];
    const unsigned n = (unsigned)__builtin_popcountll(holders);
    for (unsigned in = 0; in < d->p->n_node; in++) {
        d->load[in] += holders >> in & 1 ? sign * expert_cost(d, il, ie, n) : 0;
    }
}

/* An expert's n-th copy takes an n-th of what its first did: all copies of all experts in that
 * order. Those that do not fit what is left of the budget are passed over. */
static numoe_status replicate_in_order(struct deal *d, const struct ranked *order, size_t n,
                                       uint64_t budget, numoe_error *err)
{
    const uint64_t limit = placement_limit(d->machine);
    for (size_t i = 0; i < n; i++) {
        const struct ranked *r = &order[i];
        const uint64_t bytes = d->layer[r->il].bytes;
        const uint64_t holders = d->holders[(size_t)r->il * d->n_expert + r->ie];
        const uint64_t nodes = nodes_with_room(d, bytes) & ~holders;
        if (bytes > budget - d->p->replica_bytes || nodes == 0 ||
            bytes > limit - MIN(d->p->total_bytes, limit)) {
            continue;
        }
        spread_load(d, r->il, r->ie, -1);
        const double cost = expert_cost(d, r->il, r->ie, r->nth);
        const unsigned in = placement_take(nodes, d->p->n_node, d->p->share, d->load, cost);
        d->load[in] -= cost;
        FORWARD_IF(put(d, r->il, r->ie, in, err));
        spread_load(d, r->il, r->ie, 1);
        d->p->replica_bytes += bytes;
    }
    return NUMOE_OK;
}

static numoe_status replicate(struct deal *d, uint64_t budget, numoe_error *err)
{
    const unsigned most = d->p->n_node;
    struct ranked *order = NULL;
    size_t n = 0;
    FORWARD_IF(mem_new(&order, (size_t)d->n_layer * d->n_expert * most, sizeof *order,
                       "order of experts", err));
    for (unsigned il = 0; il < d->n_layer; il++) {
        const struct expert_layer *l = &d->layer[il];
        const bool counted = l->n_token > 0 && l->n_shape > 0 && !l->mapped;
        for (unsigned ie = 0; counted && ie < d->n_expert; ie++) {
            for (unsigned nth = 2; l->count[ie] > 0 && nth <= most; nth++) {
                order[n++] = (struct ranked){likelihood(d, l, ie) / nth, il, ie, nth};
            }
        }
    }
    qsort(order, n, sizeof *order, compare_ranked);
    numoe_status status = replicate_in_order(d, order, n, budget, err);
    mem_free(order);
    return status;
}

/* ------------------------------------------------------------------ both */

static uint64_t replica_budget(const struct shapes *shapes, const struct placement_request *request)
{
    return request->replica_percent > 0
               ? (uint64_t)((double)shapes_bytes(shapes) * request->replica_percent / 100)
               : request->replica_bytes;
}

static numoe_status deal(struct deal *d, const struct shapes *shapes,
                         const struct placement_request *request, numoe_error *err)
{
    struct ranked *order = NULL;
    FORWARD_IF(mem_new(&order, d->n_expert, sizeof *order, "order of experts", err));
    numoe_status status = NUMOE_OK;
    for (unsigned il = 0; status == NUMOE_OK && il < d->n_layer; il++) {
        status = d->layer[il].n_shape > 0 ? deal_layer(d, il, order, err) : NUMOE_OK;
    }
    mem_free(order);
    return status == NUMOE_OK ? replicate(d, replica_budget(shapes, request), err) : status;
}

numoe_status placement_add_experts(struct placement *p, const struct shapes *shapes,
                                   const struct placement_machine *machine,
                                   const struct placement_request *request, numoe_error *err)
{
    struct deal d = {
        .p = p, .machine = machine, .n_layer = shapes->n_layer, .n_expert = shapes->n_expert};
    if (shapes->n_expert == 0) {
        return NUMOE_OK;
    }
    FORWARD_IF(mem_new(&d.layer, d.n_layer, sizeof *d.layer, "plan", err));
    numoe_status status =
        mem_new(&d.holders, (size_t)d.n_layer * d.n_expert, sizeof *d.holders, "plan", err);
    if (status == NUMOE_OK) {
        find_layers(&d, shapes, request->stats, shapes->n_expert_used);
        status = deal(&d, shapes, request, err);
    }
    mem_free(d.holders);
    mem_free(d.layer);
    return status;
}
