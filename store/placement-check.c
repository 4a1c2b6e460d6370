/* Whether a plan is one for these weights and this machine. Plans come from files too, and the
 * store takes them at their word: everything that it relies on is looked at here.
 */
#include <string.h>

#include "store/placement.h"

static numoe_status check_bounds(const struct placement *p, const struct shape *s,
                                 const struct placement_slice *slice, numoe_error *err)
{
    if (slice->node >= p->n_node || !(p->share[slice->node] > 0)) {
        return status_fail(err, NUMOE_E_INPUT, "node %u has no share of the work", slice->node);
    }
    if (slice->mat0 >= slice->mat1 || slice->mat1 > s->n_mat) {
        return status_fail(err, NUMOE_E_INPUT, "matrices %u to %u of %u", slice->mat0, slice->mat1,
                           s->n_mat);
    }
    if (slice->row0 >= slice->row1 || slice->row1 > s->n_row || slice->row0 % PANEL_ROWS != 0 ||
        (slice->row1 % PANEL_ROWS != 0 && slice->row1 != s->n_row)) {
        return status_fail(err, NUMOE_E_INPUT,
                           "rows %u to %u of %u: cuts are at multiples of %u only", slice->row0,
                           slice->row1, s->n_row, PANEL_ROWS);
    }
    return NUMOE_OK;
}

static bool is_whole(const struct shape *s, const struct placement_slice *slice)
{
    return slice->mat0 == 0 && slice->mat1 == s->n_mat && slice->row0 == 0 &&
           slice->row1 == s->n_row;
}

/* Ranges of rows, one a node, that follow each other in any order of nodes. */
static numoe_status check_rows(const struct shape *s, const struct placement_slice *slice,
                               unsigned n, numoe_error *err)
{
    uint32_t row = 0;
    for (unsigned i = 0; i < n; i++) {
        if (slice[i].mat0 != 0 || slice[i].mat1 != s->n_mat || slice[i].every != 1 ||
            (i > 0 && slice[i - 1].node == slice[i].node)) {
            return status_fail(err, NUMOE_E_INPUT,
                               "node %u must have one range of rows of all matrices",
                               slice[i].node);
        }
    }
    for (unsigned done = 0; done < n; done++) {
        unsigned i = 0;
        while (i < n && slice[i].row0 != row) {
            i++;
        }
        if (i == n) {
            return status_fail(err, NUMOE_E_INPUT, "row %u is on no node, or on several", row);
        }
        row = slice[i].row1;
    }
    return row == s->n_row
               ? NUMOE_OK
               : status_fail(err, NUMOE_E_INPUT, "row %u is on no node, or on several", row);
}

/* Whole experts, all with a copy that stays; holders [n_mat], firsts [n_mat]: scratch. */
static numoe_status check_experts(const struct shape *s, const struct placement_slice *slice,
                                  unsigned n, uint64_t *holders, uint64_t *firsts, numoe_error *err)
{
    memset(holders, 0, s->n_mat * sizeof *holders);
    memset(firsts, 0, s->n_mat * sizeof *firsts);
    for (unsigned i = 0; i < n; i++) {
        if (slice[i].row0 != 0 || slice[i].row1 != s->n_row || slice[i].every != 1) {
            return status_fail(err, NUMOE_E_INPUT, "experts of the placement shard are not cut");
        }
        for (uint32_t ie = slice[i].mat0; ie < slice[i].mat1; ie++) {
            if (holders[ie] >> slice[i].node & 1) {
                return status_fail(err, NUMOE_E_INPUT, "expert %u is on node %u twice", ie,
                                   slice[i].node);
            }
            holders[ie] |= UINT64_C(1) << slice[i].node;
            firsts[ie] += !slice[i].further;
        }
    }
    for (uint32_t ie = 0; ie < s->n_mat; ie++) {
        if (holders[ie] == 0) {
            return status_fail(err, NUMOE_E_INPUT, "expert %u is on no node", ie);
        }
        if (firsts[ie] == 0) {
            return status_fail(err, NUMOE_E_INPUT, "expert %u has further copies but no first one",
                               ie);
        }
    }
    return NUMOE_OK;
}

/* Everything on every node, or every n-th panel. */
static numoe_status check_everywhere(const struct placement *p, const struct shape *s,
                                     const struct placement_slice *slice, unsigned n,
                                     numoe_error *err)
{
    const bool dealt = p->mode == NUMOE_PLACEMENT_INTERLEAVE && p->n_node > 1;
    for (unsigned in = 0; in < p->n_node; in++) {
        if (n != p->n_node || slice[in].node != in || !is_whole(s, &slice[in]) ||
            slice[in].every != (dealt ? p->n_node : 1) || slice[in].first != (dealt ? in : 0)) {
            return status_fail(err, NUMOE_E_INPUT, "every node must have %s",
                               dealt ? "its panels in turn" : "all of it");
        }
    }
    return NUMOE_OK;
}

/* gate, up and down of experts must be on the same nodes; gate and up must be cut alike. */
static bool is_alike(const struct placement_slice *a, unsigned n_a, const struct placement_slice *b,
                     unsigned n_b, bool rows_too)
{
    bool alike = n_a == n_b;
    for (unsigned i = 0; alike && i < n_a; i++) {
        alike = a[i].node == b[i].node && a[i].mat0 == b[i].mat0 && a[i].mat1 == b[i].mat1 &&
                a[i].further == b[i].further &&
                (!rows_too || (a[i].row0 == b[i].row0 && a[i].row1 == b[i].row1));
    }
    return alike;
}

static enum slot companion(enum slot slot)
{
    switch (slot) {
    case SLOT_UP:
        return SLOT_GATE;
    case SLOT_UP_EXPS:
    case SLOT_DOWN_EXPS:
        return SLOT_GATE_EXPS;
    case SLOT_UP_SHEXP:
        return SLOT_GATE_SHEXP;
    default:
        return slot;
    }
}

static numoe_status check_weight(const struct placement *p, const struct shape *s, unsigned from,
                                 unsigned to, uint64_t *holders, numoe_error *err)
{
    const struct placement_slice *slice = &p->slice[from];
    const bool whole = p->mode == NUMOE_PLACEMENT_SHARD && shape_is_routed(s);
    for (unsigned i = from; i < to; i++) {
        FORWARD_IF(check_bounds(p, s, &p->slice[i], err));
        if (p->slice[i].further && !whole) {
            return status_fail(err, NUMOE_E_INPUT, "only whole experts have further copies");
        }
    }
    if (whole) {
        FORWARD_IF(check_experts(s, slice, to - from, holders, holders + s->n_mat, err));
    } else if (p->mode == NUMOE_PLACEMENT_SLICE || p->mode == NUMOE_PLACEMENT_SHARD) {
        FORWARD_IF(check_rows(s, slice, to - from, err));
    } else {
        FORWARD_IF(check_everywhere(p, s, slice, to - from, err));
    }
    struct shape with = *s;
    unsigned with_from, with_to;
    with.slot = companion(s->slot);
    placement_find(p, &with, &with_from, &with_to);
    if ((whole || s->slot != SLOT_DOWN_EXPS) &&
        !is_alike(slice, to - from, &p->slice[with_from], with_to - with_from, !whole)) {
        return status_fail(err, NUMOE_E_INPUT, "is not cut as %s is", slot_name(with.slot));
    }
    return NUMOE_OK;
}

static void count_bytes(struct placement *p, const struct shape *s, unsigned from, unsigned to)
{
    uint64_t bytes = 0;
    for (unsigned i = from; i < to; i++) {
        const uint64_t more = placement_placed_bytes(s, &p->slice[i]);
        p->node_bytes[p->slice[i].node] += more;
        p->copy_bytes[p->slice[i].node] += p->slice[i].further ? more : 0;
        bytes += more;
    }
    for (unsigned in = 0; s->kind == SHAPE_VECTOR && in < p->n_node; in++) {
        const uint64_t more = p->share[in] > 0 ? shape_bytes(s) : 0;
        p->node_bytes[in] += more;
        bytes += more;
    }
    p->total_bytes += bytes;
    p->expert_bytes += shape_is_routed(s) ? bytes : 0;
    if (p->mode == NUMOE_PLACEMENT_SHARD && shape_is_routed(s) && !s->mapped) {
        p->replica_bytes += bytes - shape_bytes(s);
    }
}

static numoe_status check_slices(struct placement *p, const struct shapes *shapes,
                                 uint64_t *holders, numoe_error *err)
{
    unsigned n_known = 0;
    memset(p->node_bytes, 0, sizeof p->node_bytes);
    memset(p->copy_bytes, 0, sizeof p->copy_bytes);
    p->total_bytes = p->expert_bytes = p->replica_bytes = 0;
    placement_sort(p);
    for (unsigned is = 0; is < shapes->n; is++) {
        const struct shape *s = &shapes->shape[is];
        char name[96];
        unsigned from = 0, to = 0;
        shape_name(s->layer, s->slot, name, sizeof name);
        if (s->kind != SHAPE_VECTOR) {
            placement_find(p, s, &from, &to);
            numoe_status status = check_weight(p, s, from, to, holders, err);
            if (status != NUMOE_OK) {
                return status_context(err, status, "%s", name);
            }
        }
        n_known += to - from;
        count_bytes(p, s, from, to);
    }
    return n_known == p->n_slice
               ? NUMOE_OK
               : status_fail(err, NUMOE_E_INPUT, "%u slices are of weights that the model lacks",
                             p->n_slice - n_known);
}

/* Other bytes than those of its slices mean that a file was changed, or is for weights that are loaded
 * in another way. */
static numoe_status check_told(const struct placement *p, numoe_error *err)
{
    for (unsigned in = 0; p->is_told && in <= p->n_node; in++) {
        const bool is_node = in < p->n_node;
        const uint64_t told = is_node ? p->told_node_bytes[in] : p->told_bytes;
        const uint64_t bytes = is_node ? p->node_bytes[in] : p->total_bytes;
        if (told != UINT64_MAX && told != bytes) {
            return status_fail(err, NUMOE_E_INPUT,
                               "\"weight_bytes\" is %llu, the slices have %llu: the plan was changed, "
                               "or made with other options (--mmap)",
                               (unsigned long long)told, (unsigned long long)bytes);
        }
    }
    return NUMOE_OK;
}

numoe_status placement_check(struct placement *p, const struct shapes *shapes,
                             const struct placement_machine *machine, numoe_error *err)
{
    uint64_t *holders = NULL;
    double sum = 0;
    if (p->n_node != machine->n_node) {
        return status_fail(err, NUMOE_E_INPUT, "the plan is for %u nodes, this machine has %u",
                           p->n_node, machine->n_node);
    }
    for (unsigned in = 0; in < p->n_node; in++) {
        sum += p->share[in];
    }
    if (!(sum > 0.99 && sum < 1.01)) {
        return status_fail(err, NUMOE_E_INPUT, "the shares of the nodes add up to %g, not to 1",
                           sum);
    }
    FORWARD_IF(mem_new(&holders, 2 * MAX(shapes->n_expert, 1u), sizeof *holders, "plan", err));
    numoe_status status = check_slices(p, shapes, holders, err);
    mem_free(holders);
    status = status == NUMOE_OK ? check_told(p, err) : status;
    return status == NUMOE_OK ? placement_fits(p, machine, err) : status;
}
