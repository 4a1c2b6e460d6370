/* Which node holds which rows: the policies, but for whole experts (placement-shard.c). Pure: sizes
 * and a machine in, a list of slices out; reads and moves nothing.
 *
 * Shares of the work follow bandwidth. Where a node has no room for its share, rows move to those
 * that have; where there is not room enough together, nothing is begun.
 */
#include "store/placement.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIT_ROUNDS     100
#define FIT_MARGIN     0.995 /* of the room: cuts are in whole panels */
#define AUTO_ADVANTAGE 1.02  /* that another placement must promise over slices */

const char *placement_mode_name(numoe_placement mode)
{
    static const char *const name[] = {"auto", "slice", "shard", "replicate", "interleave"};
    return name[mode];
}

void placement_rows(uint32_t n_row, unsigned n_node, const double *share, uint32_t *row0_out)
{
    const uint32_t n_panel = (n_row + PANEL_ROWS - 1) / PANEL_ROWS;
    double total = 0, sum = 0;
    for (unsigned in = 0; in < n_node; in++) {
        total += share[in];
    }
    for (unsigned in = 0; in < n_node; in++) {
        const uint32_t panel = (uint32_t)(n_panel * (sum / total) + 0.5);
        row0_out[in] = MIN(panel * PANEL_ROWS, n_row);
        sum += share[in];
    }
    row0_out[n_node] = n_row;
}

unsigned placement_take(uint64_t holders, unsigned n_node, const double *share, double *load,
                        double cost)
{
    unsigned best = n_node;
    for (unsigned in = 0; in < n_node; in++) {
        if ((holders >> in & 1) &&
            (best == n_node || (load[in] + cost) * share[best] < (load[best] + cost) * share[in])) {
            best = in;
        }
    }
    load[best] += cost;
    return best;
}

/* ------------------------------------------------------------------ the list */

/* Panels first, first + every, ... of n. */
static uint64_t dealt_panels(uint64_t n, uint32_t every, uint32_t first)
{
    return n > first ? (n - first - 1) / every + 1 : 0;
}

uint64_t placement_slice_bytes(const struct shape *s, const struct placement_slice *slice)
{
    const uint32_t n_mat = slice->mat1 - slice->mat0;
    const uint32_t n_panel = (slice->row1 - slice->row0 + PANEL_ROWS - 1) / PANEL_ROWS;
    if (slice->every > 1) {
        const uint64_t n = dealt_panels((uint64_t)n_mat * n_panel, slice->every, slice->first);
        return round_up(n * shape_panel_bytes(s), CACHE_LINE_BYTES);
    }
    return (uint64_t)n_mat * shape_mat_bytes(s, n_panel);
}

uint64_t placement_placed_bytes(const struct shape *s, const struct placement_slice *slice)
{
    return s->mapped ? 0 : placement_slice_bytes(s, slice);
}

numoe_status placement_add(struct placement *p, const struct shape *s, struct placement_slice slice,
                           numoe_error *err)
{
    if (p->n_slice == p->cap_slice) {
        const unsigned cap = MAX(256u, 2 * p->cap_slice);
        FORWARD_IF(mem_grow(&p->slice, cap, sizeof *p->slice, "plan", err));
        p->cap_slice = cap;
    }
    slice.layer = s->layer;
    slice.slot = s->slot;
    slice.every = MAX(slice.every, 1u);
    p->slice[p->n_slice++] = slice;
    const uint64_t bytes = placement_placed_bytes(s, &slice);
    p->node_bytes[slice.node] += bytes;
    p->total_bytes += bytes;
    p->expert_bytes += shape_is_routed(s) ? bytes : 0;
    p->copy_bytes[slice.node] += slice.further ? bytes : 0;
    return NUMOE_OK;
}

static int compare_numbers(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

static int compare_weights(int layer_a, enum slot slot_a, int layer_b, enum slot slot_b)
{
    return layer_a != layer_b ? (layer_a < layer_b ? -1 : 1) : compare_numbers(slot_a, slot_b);
}

static int compare_slices(const void *va, const void *vb)
{
    const struct placement_slice *a = va, *b = vb;
    int order = compare_weights(a->layer, a->slot, b->layer, b->slot);
    order = order ? order : compare_numbers(a->node, b->node);
    order = order ? order : compare_numbers(a->further, b->further);
    order = order ? order : compare_numbers(a->mat0, b->mat0);
    return order ? order : compare_numbers(a->row0, b->row0);
}

static bool continues(const struct placement_slice *a, const struct placement_slice *b)
{
    return a->layer == b->layer && a->slot == b->slot && a->node == b->node && a->mat1 == b->mat0 &&
           a->row0 == b->row0 && a->row1 == b->row1 && a->every == 1 && b->every == 1 &&
           a->further == b->further;
}

/* Experts that follow each other become one slice. */
void placement_sort(struct placement *p)
{
    if (p->n_slice == 0) {
        return;
    }
    qsort(p->slice, p->n_slice, sizeof *p->slice, compare_slices);
    unsigned n = 1;
    for (unsigned i = 1; i < p->n_slice; i++) {
        if (continues(&p->slice[n - 1], &p->slice[i])) {
            p->slice[n - 1].mat1 = p->slice[i].mat1;
        } else {
            p->slice[n++] = p->slice[i];
        }
    }
    p->n_slice = n;
}

void placement_find(const struct placement *p, const struct shape *s, unsigned *from, unsigned *to)
{
    unsigned lo = 0, hi = p->n_slice;
    while (lo < hi) {
        const unsigned mid = lo + (hi - lo) / 2;
        const struct placement_slice *slice = &p->slice[mid];
        if (compare_weights(slice->layer, slice->slot, s->layer, s->slot) < 0) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    *from = lo;
    while (lo < p->n_slice && p->slice[lo].layer == s->layer && p->slice[lo].slot == s->slot) {
        lo++;
    }
    *to = lo;
}

void placement_free(struct placement *p)
{
    if (p != NULL) {
        mem_free(p->slice);
        mem_free(p);
    }
}

int placement_only_node(const struct placement *p)
{
    int only = -1;
    for (unsigned in = 0; in < p->n_node; in++) {
        if (p->share[in] > 0) {
            if (only >= 0) {
                return -1;
            }
            only = (int)in;
        }
    }
    return only;
}

void placement_keep_node(struct placement *p, unsigned in)
{
    for (unsigned i = 0; i < p->n_slice; i++) {
        p->slice[i].node = 0;
    }
    p->n_node = 1;
    p->share[0] = 1;
    p->node_bytes[0] = p->node_bytes[in];
}

/* ------------------------------------------------------------------ room */

unsigned placement_n_place(const struct placement *p)
{
    unsigned n = 0;
    for (unsigned in = 0; in < p->n_node; in++) {
        n += p->n_place[in];
    }
    return n;
}

uint64_t placement_reserved(const struct placement *p, unsigned in)
{
    return p->place_bytes > 0 ? p->n_place[in] * p->place_bytes - p->copy_bytes[in] : 0;
}

uint64_t placement_reserved_all(const struct placement *p)
{
    uint64_t bytes = 0;
    for (unsigned in = 0; in < p->n_node; in++) {
        bytes += placement_reserved(p, in);
    }
    return bytes;
}

uint64_t placement_room(const struct placement_machine *machine, unsigned in)
{
    const struct placement_node *node = &machine->node[in];
    return node->room_bytes == UINT64_MAX
               ? UINT64_MAX
               : node->room_bytes - MIN(node->buffer_bytes, node->room_bytes);
}

uint64_t placement_limit(const struct placement_machine *machine)
{
    uint64_t limit = machine->limit_bytes;
    for (unsigned in = 0; limit != UINT64_MAX && in < machine->n_node; in++) {
        limit -= MIN(limit, machine->node[in].buffer_bytes);
    }
    return limit;
}

static uint64_t whole_room(const struct placement_machine *machine)
{
    uint64_t room = 0;
    for (unsigned in = 0; in < machine->n_node; in++) {
        const uint64_t more = placement_room(machine, in);
        room = more > UINT64_MAX - room ? UINT64_MAX : room + more;
    }
    return MIN(room, placement_limit(machine));
}

/* "1.50 GiB", "12.3 MiB" */
static const char *size_text(uint64_t bytes, char text[24])
{
    const double mib = (double)bytes / 1048576.0;
    snprintf(text, 24, mib < 1024 ? "%.1f MiB" : "%.2f GiB", mib < 1024 ? mib : mib / 1024);
    return text;
}

/* What could be done instead. One copy of everything needs no more than total_bytes does. */
static const char *advice(const struct placement *p, const struct placement_machine *machine)
{
    if (machine->instead != NULL) {
        return machine->instead;
    }
    const bool has_copies = p->mode == NUMOE_PLACEMENT_REPLICATE || p->replica_bytes > 0;
    if (has_copies && p->total_bytes / p->n_node <= whole_room(machine)) {
        return "the placement slice needs one copy only";
    }
    return p->expert_bytes > 0 && p->total_bytes - p->expert_bytes <= whole_room(machine)
               ? "take a smaller quantization, or leave the experts in the file (--mmap), which is "
                 "slower"
               : "take a smaller quantization";
}

static numoe_status fail_node(const struct placement *p, const struct placement_machine *machine,
                              unsigned in, numoe_error *err)
{
    char weights[24], buffers[24], room[24], total[24], whole[24], copies[24], more[64] = "";
    if (placement_reserved(p, in) > 0) {
        snprintf(more, sizeof more, " and %s for copies of experts to come",
                 size_text(placement_reserved(p, in), copies));
    }
    return status_fail(
        err, NUMOE_E_MEMORY,
        "weights need %s on node %u, beside %s for activations, context and loading%s, where %s "
        "are %s (placement %s: %s of weights over %u node%s with room for %s): %s%s",
        size_text(p->node_bytes[in], weights), machine->node[in].os_index,
        size_text(machine->node[in].buffer_bytes, buffers), more,
        size_text(machine->node[in].room_bytes, room), machine->room_source,
        placement_mode_name(p->mode), size_text(p->total_bytes, total), p->n_node,
        p->n_node == 1 ? "" : "s", size_text(whole_room(machine), whole), advice(p, machine),
        machine->way_out);
}

/* Bytes of weights without copies. */
static uint64_t single_bytes(const struct placement *p)
{
    return p->mode == NUMOE_PLACEMENT_REPLICATE ? p->total_bytes / p->n_node
                                                : p->total_bytes - p->replica_bytes;
}

/* Where one copy of the weights has no room even if nothing else needed any. */
static numoe_status check_alone(const struct placement *p, const struct placement_machine *machine,
                                numoe_error *err)
{
    char weights[24], room_text[24], nodes[64];
    uint64_t room = 0;
    for (unsigned in = 0; in < p->n_node; in++) {
        const uint64_t more = machine->node[in].room_bytes;
        room = more > UINT64_MAX - room ? UINT64_MAX : room + more;
    }
    if (single_bytes(p) <= MIN(room, machine->limit_bytes)) {
        return NUMOE_OK;
    }
    const bool may_map =
        p->expert_bytes > 0 && single_bytes(p) - p->expert_bytes <= whole_room(machine);
    snprintf(nodes, sizeof nodes, "%s on %u node%s", machine->room_source, p->n_node,
             p->n_node == 1 ? "" : "s");
    return status_fail(
        err, NUMOE_E_MEMORY,
        "the weights alone need %s of %s (%s): take a smaller quantization or "
        "more memory%s%s",
        size_text(single_bytes(p), weights), size_text(MIN(room, machine->limit_bytes), room_text),
        room < machine->limit_bytes ? nodes : machine->limit_source,
        may_map ? ", or leave the experts in the file (--mmap), which is slower" : "",
        machine->way_out);
}

/* Where one node does everything, everybody's buffers are there. */
static struct placement_machine with_moved_buffers(const struct placement *p,
                                                   const struct placement_machine *machine)
{
    const int only = placement_only_node(p);
    struct placement_machine m = *machine;
    uint64_t sum = 0;
    for (unsigned in = 0; only >= 0 && in < m.n_node; in++) {
        sum += m.node[in].buffer_bytes;
        m.node[in].buffer_bytes = 0;
    }
    if (only >= 0) {
        m.node[only].buffer_bytes = sum;
    }
    return m;
}

numoe_status placement_fits(const struct placement *p, const struct placement_machine *machine,
                            numoe_error *err)
{
    char weights[24], buffers[24], limit[24];
    uint64_t buffer_bytes = 0;
    const struct placement_machine m = with_moved_buffers(p, machine);
    FORWARD_IF(check_alone(p, machine, err));
    for (unsigned in = 0; in < p->n_node; in++) {
        if (p->node_bytes[in] + placement_reserved(p, in) > placement_room(&m, in)) {
            return fail_node(p, &m, in, err);
        }
        buffer_bytes += m.node[in].buffer_bytes;
    }
    const uint64_t total_bytes = p->total_bytes + placement_reserved_all(p);
    if (total_bytes <= placement_limit(machine)) {
        return NUMOE_OK;
    }
    return status_fail(
        err, NUMOE_E_MEMORY,
        "weights need %s (placement %s), beside %s for activations, context and loading; %s is "
        "%s: raise it, or %s%s",
        size_text(total_bytes, weights), placement_mode_name(p->mode),
        size_text(buffer_bytes, buffers), machine->limit_source,
        size_text(machine->limit_bytes, limit), advice(p, machine), machine->way_out);
}

/* ------------------------------------------------------------------ shares */

static bool is_cut(const struct shape *s, numoe_placement mode)
{
    return s->kind != SHAPE_VECTOR && !(mode == NUMOE_PLACEMENT_SHARD && shape_is_routed(s));
}

/* Bytes of vectors and of cut rows on each node. */
static void cut_bytes(const struct shapes *shapes, numoe_placement mode, unsigned n_node,
                      const double *share, uint64_t *node_bytes)
{
    uint32_t row0[TOPO_MAX_NODE + 1];
    memset(node_bytes, 0, n_node * sizeof *node_bytes);
    for (unsigned is = 0; is < shapes->n; is++) {
        const struct shape *s = &shapes->shape[is];
        const bool cut = is_cut(s, mode);
        placement_rows(s->n_row, n_node, share, row0);
        for (unsigned in = 0; in < n_node; in++) {
            const struct placement_slice slice = {
                .mat1 = s->n_mat, .row0 = row0[in], .row1 = row0[in + 1]};
            if (s->kind == SHAPE_VECTOR) {
                node_bytes[in] += share[in] > 0 ? shape_bytes(s) : 0;
            } else if (cut) {
                node_bytes[in] += placement_placed_bytes(s, &slice);
            }
        }
    }
}

/* Takes from the shares of nodes that are too small and gives it to the others, in proportion; what
 * cannot be brought to fit is left for placement_fits() to tell. */
static void fit_shares(const struct shapes *shapes, const struct placement_machine *machine,
                       numoe_placement mode, double *share)
{
    uint64_t bytes[TOPO_MAX_NODE];
    bool is_full[TOPO_MAX_NODE] = {false};
    for (unsigned round = 0; round < FIT_ROUNDS; round++) {
        double taken = 0, others = 0;
        cut_bytes(shapes, mode, machine->n_node, share, bytes);
        for (unsigned in = 0; in < machine->n_node; in++) {
            const uint64_t room = placement_room(machine, in);
            if (bytes[in] > room) {
                const double keep = share[in] * (double)room / (double)bytes[in] * FIT_MARGIN;
                taken += share[in] - keep;
                share[in] = keep;
                is_full[in] = true;
            }
            others += is_full[in] ? 0 : share[in];
        }
        if (taken == 0 || others == 0) {
            return;
        }
        for (unsigned in = 0; in < machine->n_node; in++) {
            share[in] *= is_full[in] ? 1 : 1 + taken / others;
        }
    }
}

/* ------------------------------------------------------------------ policies */

static numoe_status add_rows(struct placement *p, const struct shape *s, const double *share,
                             numoe_error *err)
{
    uint32_t row0[TOPO_MAX_NODE + 1];
    placement_rows(s->n_row, p->n_node, share, row0);
    for (unsigned in = 0; in < p->n_node; in++) {
        if (row0[in] < row0[in + 1]) {
            FORWARD_IF(placement_add(
                p, s,
                (struct placement_slice){
                    .node = in, .mat1 = s->n_mat, .row0 = row0[in], .row1 = row0[in + 1]},
                err));
        }
    }
    return NUMOE_OK;
}

static numoe_status add_everywhere(struct placement *p, const struct shape *s, numoe_error *err)
{
    const bool dealt = p->mode == NUMOE_PLACEMENT_INTERLEAVE;
    for (unsigned in = 0; in < p->n_node; in++) {
        FORWARD_IF(placement_add(p, s,
                                 (struct placement_slice){.node = in,
                                                          .mat1 = s->n_mat,
                                                          .row1 = s->n_row,
                                                          .every = dealt ? p->n_node : 1,
                                                          .first = dealt ? in : 0},
                                 err));
    }
    return NUMOE_OK;
}

static void add_vectors(struct placement *p, const struct shapes *shapes)
{
    for (unsigned is = 0; is < shapes->n; is++) {
        const struct shape *s = &shapes->shape[is];
        for (unsigned in = 0; s->kind == SHAPE_VECTOR && in < p->n_node; in++) {
            p->node_bytes[in] += p->share[in] > 0 ? shape_bytes(s) : 0;
            p->total_bytes += p->share[in] > 0 ? shape_bytes(s) : 0;
        }
    }
}

static numoe_status fill(struct placement *p, const struct shapes *shapes,
                         const struct placement_machine *machine,
                         const struct placement_request *request, numoe_error *err)
{
    const bool cut = p->mode == NUMOE_PLACEMENT_SLICE || p->mode == NUMOE_PLACEMENT_SHARD;
    double share[TOPO_MAX_NODE];
    memcpy(share, p->share, sizeof share);
    if (cut && placement_only_node(p) < 0) {
        fit_shares(shapes, machine, p->mode, share);
    }
    add_vectors(p, shapes);
    for (unsigned is = 0; is < shapes->n; is++) {
        const struct shape *s = &shapes->shape[is];
        if (!cut && s->kind != SHAPE_VECTOR) {
            FORWARD_IF(add_everywhere(p, s, err));
        } else if (is_cut(s, p->mode)) {
            FORWARD_IF(add_rows(p, s, share, err));
        }
    }
    if (p->mode == NUMOE_PLACEMENT_SHARD) {
        FORWARD_IF(placement_add_experts(p, shapes, machine, request, err));
    }
    return placement_fits(p, machine, err);
}

static void predict_lanes(struct placement *p, const struct shapes *shapes,
                          const struct placement_machine *machine)
{
    const bool possible = p->mode == NUMOE_PLACEMENT_REPLICATE;
    p->lanes_tokens_per_s = possible ? placement_predict_lanes(p, shapes, machine) : 0;
    p->together_tokens_per_s =
        possible ? p->n_node / placement_batch_seconds(p, shapes, machine, p->n_node, false) : 0;
    p->lanes_pay = possible ? placement_lanes_pay(p, shapes, machine) : 0;
}

/* only: the node that is to have everything, or -1. */
static numoe_status make(const struct shapes *shapes, const struct placement_machine *machine,
                         const struct placement_request *request, numoe_placement mode, int only,
                         struct placement **out, numoe_error *err)
{
    struct placement *p = NULL;
    double total = 0;
    FORWARD_IF(mem_new(&p, 1, sizeof *p, "plan", err));
    p->mode = mode;
    p->n_node = machine->n_node;
    for (unsigned in = 0; in < machine->n_node; in++) {
        p->share[in] = only < 0 || (unsigned)only == in ? machine->node[in].read_bps : 0;
        total += p->share[in];
    }
    for (unsigned in = 0; in < machine->n_node; in++) {
        p->share[in] /= total;
    }
    numoe_status status = fill(p, shapes, machine, request, err);
    if (status != NUMOE_OK) {
        placement_free(p);
        return status;
    }
    placement_sort(p);
    p->tokens_per_s = placement_predict(p, shapes, machine, request->stats);
    predict_lanes(p, shapes, machine);
    p->imbalance = placement_imbalance(p, shapes, machine, request->stats);
    placement_count_replicas(p, shapes, request->stats);
    *out = p;
    return NUMOE_OK;
}

void placement_predict_again(struct placement *p, const struct shapes *shapes,
                             const struct placement_machine *machine)
{
    p->tokens_per_s = placement_predict(p, shapes, machine, NULL);
    predict_lanes(p, shapes, machine);
}

/* ------------------------------------------------------------------ choice */

static void replace(struct placement **best, struct placement *p)
{
    placement_free(*best);
    *best = p;
}

/* Slices, or what promises to be faster: whole experts, or one node alone. Copies of everything are
 * never faster for one sequence, and dealt panels never for anything. */
static numoe_status choose(const struct shapes *shapes, const struct placement_machine *machine,
                           const struct placement_request *request, struct placement **out,
                           numoe_error *err)
{
    struct placement *best = NULL, *p = NULL;
    double slice = 0, shard = 0, alone = 0;
    char text[sizeof best->reason];
    FORWARD_IF(make(shapes, machine, request, NUMOE_PLACEMENT_SLICE, -1, &best, err));
    slice = best->tokens_per_s;
    if (make(shapes, machine, request, NUMOE_PLACEMENT_SHARD, -1, &p, NULL) == NUMOE_OK) {
        shard = p->tokens_per_s;
        if (shard > AUTO_ADVANTAGE * best->tokens_per_s) {
            replace(&best, p);
        } else {
            placement_free(p);
        }
    }
    for (unsigned in = 0; in < machine->n_node; in++) {
        if (make(shapes, machine, request, NUMOE_PLACEMENT_SLICE, (int)in, &p, NULL) == NUMOE_OK) {
            alone = MAX(alone, p->tokens_per_s);
            if (p->tokens_per_s > AUTO_ADVANTAGE * best->tokens_per_s) {
                replace(&best, p);
            } else {
                placement_free(p);
            }
        }
    }
    int n = snprintf(text, sizeof text, "predicted tokens/s: %.1f cut by rows", slice);
    n += snprintf(text + n, sizeof text - (size_t)n,
                  shard > 0 ? ", %.1f with whole experts" : ", no room for whole experts", shard);
    snprintf(text + n, sizeof text - (size_t)n,
             alone > 0 ? ", %.1f on one node (bandwidth %s)" : ", too large for one node", alone,
             machine->bps_source);
    memcpy(best->reason, text, sizeof text);
    *out = best;
    return NUMOE_OK;
}

numoe_status placement_make(const struct shapes *shapes, const struct placement_machine *machine,
                            const struct placement_request *request, struct placement **out,
                            numoe_error *err)
{
    if (request->mode == NUMOE_PLACEMENT_AUTO && machine->n_node > 1) {
        return choose(shapes, machine, request, out, err);
    }
    const bool automatic = request->mode == NUMOE_PLACEMENT_AUTO;
    struct placement *p = NULL;
    FORWARD_IF(make(shapes, machine, request, automatic ? NUMOE_PLACEMENT_SLICE : request->mode, -1,
                    &p, err));
    snprintf(p->reason, sizeof p->reason, "%s", automatic ? "there is one node" : "asked for");
    *out = p;
    return NUMOE_OK;
}
