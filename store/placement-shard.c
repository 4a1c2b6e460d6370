/* Whole experts on nodes: dealt so that every node is expected to have as much to do as its share,
 * layer by layer; then the most used ones a second and further time, while the budget lasts. Who
 * gets further copies is asked again while a model runs, of what was counted until then.
 */
#include "store/placement.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The routed weights of one layer. */
struct expert_layer {
    const struct shape *shape[3]; /* gate, up, down; gate and up may be one in later formats */
    unsigned n_shape;
    uint64_t bytes; /* of one expert */
    bool mapped;    /* takes no room, so there is nothing to gain by copies either */
};

struct deal {
    struct placement *p;
    const struct placement_machine *machine;
    unsigned n_layer, n_expert;
    struct expert_layer *layer; /* [n_layer] */
    uint64_t *holders;          /* [n_layer, n_expert] first copies */
    double *count, *n_token;    /* [n_layer, n_expert], [n_layer] as in replica_problem */
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
    for (size_t i = 0; stats != NULL && i < (size_t)d->n_layer * d->n_expert; i++) {
        d->count[i] = (double)stats->count[i];
        d->n_token[i / d->n_expert] += d->count[i] / n_used;
    }
}

/* How likely a token chooses the expert; the same for all where nothing is known. */
static double likelihood(const struct deal *d, unsigned il, unsigned ie)
{
    return d->n_token[il] > 0 ? d->count[(size_t)il * d->n_expert + ie] / d->n_token[il]
                              : 1.0 / d->n_expert;
}

static uint64_t nodes_with_room(const struct deal *d, uint64_t bytes)
{
    uint64_t nodes = 0;
    for (unsigned in = 0; in < d->p->n_node; in++) {
        const uint64_t room = placement_room(d->machine, in);
        const uint64_t taken = d->p->node_bytes[in] + placement_reserved(d->p, in);
        if (d->p->share[in] > 0 && room >= bytes && taken <= room - bytes) {
            nodes |= UINT64_C(1) << in;
        }
    }
    return nodes;
}

static numoe_status put(struct deal *d, unsigned il, unsigned ie, unsigned in, bool further,
                        numoe_error *err)
{
    const struct expert_layer *l = &d->layer[il];
    for (unsigned i = 0; i < l->n_shape; i++) {
        FORWARD_IF(placement_add(d->p, l->shape[i],
                                 (struct placement_slice){
                                     .node = in,
                                     .mat0 = ie,
                                     .mat1 = ie + 1,
                                     .row1 = l->shape[i]->n_row,
                                     .further = further,
                                 },
                                 err));
    }
    d->p->replica_bytes += further ? l->bytes : 0;
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ first copies */

struct ranked {
    double weight;
    unsigned ie;
};

static int compare_ranked(const void *va, const void *vb)
{
    const struct ranked *a = va, *b = vb;
    return a->weight != b->weight ? (a->weight > b->weight ? -1 : 1)
           : a->ie != b->ie       ? (a->ie < b->ie ? -1 : 1)
                                  : 0;
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
        order[ie] = (struct ranked){likelihood(d, il, ie), ie};
    }
    qsort(order, d->n_expert, sizeof *order, compare_ranked);
    for (unsigned i = 0; i < d->n_expert; i++) {
        const uint64_t nodes = nodes_with_room(d, l->mapped ? 0 : l->bytes);
        const double cost = order[i].weight * (double)l->bytes;
        if (nodes == 0) {
            return status_fail(
                err, NUMOE_E_MEMORY,
                "%u experts of layer %u, %.1f MiB each, find no room on any node of %u: take a "
                "smaller quantization",
                d->n_expert - i, il, (double)l->bytes / 1048576.0, d->p->n_node);
        }
        const unsigned in = placement_take(nodes, d->p->n_node, d->p->share, load, cost);
        d->holders[(size_t)il * d->n_expert + order[i].ie] = UINT64_C(1) << in;
        FORWARD_IF(put(d, il, order[i].ie, in, false, err));
    }
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ replicas */

/* What is there keeps its place until another one is worth more by this part of it, and by so many
 * times the square root of its count: the difference of two counts varies by 1.4 times that. */
#define REPLICA_MARGIN    0.1
#define REPLICA_DEVIATION 3.0

struct choosing {
    const struct replica_problem *p;
    struct replica_rank *heap;
    size_t n_heap;
    uint64_t *wanted;
    double load[TOPO_MAX_NODE]; /* expected of all layers */
    uint64_t room[TOPO_MAX_NODE], budget;
};

static bool ranks_before(const struct replica_rank *a, const struct replica_rank *b)
{
    return a->weight != b->weight ? a->weight > b->weight
           : a->il != b->il       ? a->il < b->il
                                  : a->ie < b->ie;
}

static void heap_push(struct choosing *c, struct replica_rank rank)
{
    size_t at = c->n_heap++;
    while (at > 0 && ranks_before(&rank, &c->heap[(at - 1) / 2])) {
        c->heap[at] = c->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    c->heap[at] = rank;
}

static struct replica_rank heap_pop(struct choosing *c)
{
    const struct replica_rank top = c->heap[0], last = c->heap[--c->n_heap];
    size_t at = 0, child;
    while ((child = 2 * at + 1) < c->n_heap) {
        child += child + 1 < c->n_heap && ranks_before(&c->heap[child + 1], &c->heap[child]);
        if (!ranks_before(&c->heap[child], &last)) {
            break;
        }
        c->heap[at] = c->heap[child];
        at = child;
    }
    c->heap[at] = last;
    return top;
}

static unsigned n_nodes(uint64_t nodes)
{
    return (unsigned)__builtin_popcountll(nodes);
}

/* What the expert's next copy would be worth; nothing where nobody chose the expert. */
static void offer_next(struct choosing *c, unsigned il, unsigned ie)
{
    const struct replica_problem *p = c->p;
    const size_t at = (size_t)il * p->n_expert + ie;
    const unsigned nth = n_nodes(p->first[at] | c->wanted[at]) + 1;
    const unsigned n_there = n_nodes(p->first[at] | (p->now != NULL ? p->now[at] : 0));
    const double count = p->count[at];
    const double worth =
        nth > n_there ? count : count * (1 + REPLICA_MARGIN) + REPLICA_DEVIATION * sqrt(count);
    if (count > 0 && nth <= p->n_node) {
        heap_push(c, (struct replica_rank){worth / p->n_token[il] / nth, il, ie, nth});
    }
}

static double expert_cost(const struct replica_problem *p, unsigned il, unsigned ie,
                          unsigned n_holder)
{
    return p->count[(size_t)il * p->n_expert + ie] / p->n_token[il] * (double)p->expert_bytes[il] /
           n_holder;
}

static void spread_load(struct choosing *c, unsigned il, unsigned ie, double sign)
{
    const size_t at = (size_t)il * c->p->n_expert + ie;
    const uint64_t holders = c->p->first[at] | c->wanted[at];
    for (unsigned in = 0; in < c->p->n_node; in++) {
        c->load[in] += holders >> in & 1 ? sign * expert_cost(c->p, il, ie, n_nodes(holders)) : 0;
    }
}

static uint64_t bytes_of_copy(const struct replica_problem *p, unsigned il)
{
    return p->place_bytes > 0 ? p->place_bytes : p->expert_bytes[il];
}

/* Nodes (bits) that could have one more copy of the expert; those that have it, if they can keep
 * it. */
static uint64_t nodes_for_copy(const struct choosing *c, const struct replica_rank *r)
{
    const struct replica_problem *p = c->p;
    const size_t at = (size_t)r->il * p->n_expert + r->ie;
    const uint64_t bytes = bytes_of_copy(p, r->il);
    uint64_t nodes = 0;
    for (unsigned in = 0; in < p->n_node && bytes <= c->budget; in++) {
        nodes |= (uint64_t)(p->share[in] > 0 && bytes <= c->room[in]) << in;
    }
    nodes &= ~(p->first[at] | c->wanted[at]);
    const uint64_t there = p->now != NULL ? p->now[at] & nodes : 0;
    return there != 0 ? there : nodes;
}

/* A copy to the node with the least to do. An expert without room gets no more of them; others, if
 * they are smaller, may. */
static void take_copy(struct choosing *c, const struct replica_rank *r)
{
    const struct replica_problem *p = c->p;
    const uint64_t nodes = nodes_for_copy(c, r), bytes = bytes_of_copy(p, r->il);
    if (nodes == 0) {
        return;
    }
    spread_load(c, r->il, r->ie, -1);
    const double cost = expert_cost(p, r->il, r->ie, r->nth);
    const unsigned in = placement_take(nodes, p->n_node, p->share, c->load, cost);
    c->load[in] -= cost;
    c->wanted[(size_t)r->il * p->n_expert + r->ie] |= UINT64_C(1) << in;
    spread_load(c, r->il, r->ie, 1);
    c->room[in] -= bytes;
    c->budget -= bytes;
    offer_next(c, r->il, r->ie);
}

void placement_choose_replicas(const struct replica_problem *p, struct replica_rank *heap,
                               uint64_t *wanted)
{
    struct choosing c = {.p = p, .heap = heap, .wanted = wanted, .budget = p->budget_bytes};
    memcpy(c.room, p->room_bytes, p->n_node * sizeof *c.room);
    memset(wanted, 0, (size_t)p->n_layer * p->n_expert * sizeof *wanted);
    for (unsigned il = 0; il < p->n_layer; il++) {
        for (unsigned ie = 0; p->n_token[il] > 0 && ie < p->n_expert; ie++) {
            spread_load(&c, il, ie, 1);
            if (p->expert_bytes[il] > 0) {
                offer_next(&c, il, ie);
            }
        }
    }
    /* Until no copy finds room: to put the rest in order would take most of the time. */
    while (c.n_heap > 0 && c.budget >= p->place_bytes) {
        const struct replica_rank top = heap_pop(&c);
        take_copy(&c, &top);
    }
}

/* The plan's own: bytes [n_layer] of an expert, room that is left. */
static numoe_status replicate(struct deal *d, uint64_t budget, uint64_t *bytes,
                              struct replica_rank *heap, uint64_t *wanted, numoe_error *err)
{
    uint64_t room[TOPO_MAX_NODE];
    const uint64_t limit = placement_limit(d->machine);
    for (unsigned in = 0; in < d->p->n_node; in++) {
        const uint64_t all = placement_room(d->machine, in);
        room[in] = all - MIN(d->p->node_bytes[in], all);
    }
    for (unsigned il = 0; il < d->n_layer; il++) {
        bytes[il] = d->layer[il].mapped ? 0 : d->layer[il].bytes;
    }
    const struct replica_problem problem = {
        .n_layer = d->n_layer,
        .n_expert = d->n_expert,
        .n_node = d->p->n_node,
        .share = d->p->share,
        .room_bytes = room,
        .budget_bytes = MIN(budget, limit - MIN(d->p->total_bytes, limit)),
        .expert_bytes = bytes,
        .place_bytes = d->p->place_bytes,
        .count = d->count,
        .n_token = d->n_token,
        .first = d->holders,
    };
    placement_choose_replicas(&problem, heap, wanted);
    for (size_t i = 0; i < (size_t)d->n_layer * d->n_expert; i++) {
        for (unsigned in = 0; in < d->p->n_node; in++) {
            if (wanted[i] >> in & 1) {
                const unsigned il = (unsigned)(i / d->n_expert), ie = (unsigned)(i % d->n_expert);
                d->p->n_place[in] += d->p->place_bytes > 0;
                FORWARD_IF(put(d, il, ie, in, true, err));
            }
        }
    }
    return NUMOE_OK;
}

static numoe_status add_replicas(struct deal *d, uint64_t budget, numoe_error *err)
{
    const size_t n = (size_t)d->n_layer * d->n_expert;
    uint64_t *bytes = NULL, *wanted = NULL;
    struct replica_rank *heap = NULL;
    numoe_status status = mem_new(&bytes, d->n_layer, sizeof *bytes, "plan", err);
    if (status == NUMOE_OK) {
        status = mem_new(&wanted, n, sizeof *wanted, "plan", err);
    }
    if (status == NUMOE_OK) {
        status = mem_new(&heap, n, sizeof *heap, "order of experts", err);
    }
    if (status == NUMOE_OK) {
        status = replicate(d, budget, bytes, heap, wanted, err);
    }
    mem_free(heap);
    mem_free(wanted);
    mem_free(bytes);
    return status;
}

/* ------------------------------------------------------------------ places for copies to come */

/* Of the experts that are in memory: what has no room for the largest may not change. */
static uint64_t largest_expert(const struct shapes *shapes, const struct deal *d)
{
    uint64_t most = 0;
    for (unsigned il = 0; il < shapes->n_layer; il++) {
        most = MAX(most, d->layer[il].mapped ? 0 : d->layer[il].bytes);
    }
    return most;
}

/* Experts that each node does not have: more places than that would stay empty. */
static void count_lacking(const struct deal *d, unsigned *n_lacking)
{
    for (unsigned in = 0; in < d->p->n_node; in++) {
        n_lacking[in] = 0;
        for (size_t i = 0; i < (size_t)d->n_layer * d->n_expert; i++) {
            n_lacking[in] += d->holders[i] != 0 && !(d->holders[i] >> in & 1);
        }
    }
}

/* As many as the budget allows, by shares, where there is room. */
static void reserve_places(struct deal *d, uint64_t budget)
{
    struct placement *p = d->p;
    const uint64_t limit = placement_limit(d->machine), n_asked = budget / p->place_bytes;
    double load[TOPO_MAX_NODE] = {0};
    unsigned n_lacking[TOPO_MAX_NODE];
    uint64_t n = 0, n_useful = 0;
    count_lacking(d, n_lacking);
    for (unsigned in = 0; in < p->n_node; in++) {
        load[in] = p->n_place[in];
        n += p->n_place[in];
        n_useful += p->share[in] > 0 ? n_lacking[in] : 0;
    }
    p->n_place_asked = MIN(n_asked, n_useful);
    for (; n < p->n_place_asked; n++) {
        const uint64_t taken = p->total_bytes + placement_reserved_all(p);
        uint64_t nodes = nodes_with_room(d, p->place_bytes);
        for (unsigned in = 0; in < p->n_node; in++) {
            nodes &= ~((uint64_t)(p->n_place[in] >= n_lacking[in]) << in);
        }
        if (nodes == 0 || limit < p->place_bytes || taken > limit - p->place_bytes) {
            return;
        }
        p->n_place[placement_take(nodes, p->n_node, p->share, load, 1)]++;
    }
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
    FORWARD_IF(status);
    const uint64_t budget = replica_budget(shapes, request);
    d->p->place_bytes = request->replicas_change ? largest_expert(shapes, d) : 0;
    FORWARD_IF(add_replicas(d, budget, err));
    if (d->p->place_bytes > 0) {
        reserve_places(d, budget);
    }
    return NUMOE_OK;
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
    const size_t n = (size_t)d.n_layer * d.n_expert;
    FORWARD_IF(mem_new(&d.layer, d.n_layer, sizeof *d.layer, "plan", err));
    numoe_status status = mem_new(&d.holders, n, sizeof *d.holders, "plan", err);
    if (status == NUMOE_OK) {
        status = mem_new(&d.count, n, sizeof *d.count, "plan", err);
    }
    if (status == NUMOE_OK) {
        status = mem_new(&d.n_token, d.n_layer, sizeof *d.n_token, "plan", err);
    }
    if (status == NUMOE_OK) {
        find_layers(&d, shapes, request->stats, shapes->n_expert_used);
        status = deal(&d, shapes, request, err);
    }
    mem_free(d.n_token);
    mem_free(d.count);
    mem_free(d.holders);
    mem_free(d.layer);
    return status;
}

void placement_let_change(struct placement *p, const struct shapes *shapes)
{
    uint64_t n_copy[TOPO_MAX_NODE] = {0}, bytes = 0;
    p->place_bytes = 0;
    for (unsigned is = 0; p->mode == NUMOE_PLACEMENT_SHARD && is < shapes->n; is++) {
        const struct shape *s = &shapes->shape[is];
        if (!shape_is_routed(s) || s->mapped) {
            continue;
        }
        bytes += shape_bytes(s) / s->n_mat;
        if (s->slot != SLOT_DOWN_EXPS) {
            continue; /* the last of a layer's */
        }
        unsigned from, to;
        for (placement_find(p, s, &from, &to); from < to; from++) {
            const struct placement_slice *slice = &p->slice[from];
            n_copy[slice->node] += slice->further ? slice->mat1 - slice->mat0 : 0;
        }
        p->place_bytes = MAX(p->place_bytes, bytes);
        bytes = 0;
    }
    for (unsigned in = 0; in < p->n_node; in++) {
        p->n_place[in] = (unsigned)MAX(p->n_place[in], n_copy[in]);
    }
}
