/* What one decoded token costs under a plan: every matrix takes as long as its slowest node, and
 * every meeting its time. Kernels, caches and attention over long contexts are left out, so this
 * compares placements; it does not promise speeds.
 */
#include <string.h>

#include "store/placement.h"

/* A meeting of workers within one node, and over nodes. */
#define MEETING_NODE_S 0.7e-6
#define MEETING_ALL_S  2e-6

/* Meetings of all nodes in a layer: in attention; around a dense block; around routed experts that
 * are cut, and that are whole. */
enum { MEET_ATTENTION = 6, MEET_DENSE = 2, MEET_CUT_EXPERTS = 3, MEET_WHOLE_EXPERTS = 2 };

#define N_DRAW 64 /* of a token's experts, to see how unevenly they fall on nodes */

/* What matrix products of a node's workers read. */
static double product_bps(const struct placement_machine *machine, unsigned in)
{
    const double share = machine->kernel_share;
    return machine->node[in].read_bps * (share > 0 ? share : 1);
}

/* Seconds that the slowest node needs for its slices of s. */
static double cut_seconds(const struct placement *p, const struct shapes *shapes,
                          const struct shape *s, const struct placement_machine *machine)
{
    const double active = shape_active_share(shapes, s);
    double most = 0;
    unsigned from, to;
    placement_find(p, s, &from, &to);
    for (unsigned i = from; i < to; i++) {
        const double bytes = (double)placement_slice_bytes(s, &p->slice[i]) * active;
        most = MAX(most, bytes / product_bps(machine, p->slice[i].node));
    }
    return most;
}

/* Everything could be read anywhere: divided by shares. */
static double spread_seconds(const struct placement *p, const struct shapes *shapes,
                             const struct shape *s, const struct placement_machine *machine)
{
    const double bytes = (double)shape_bytes(s) * shape_active_share(shapes, s);
    const bool dealt = p->mode == NUMOE_PLACEMENT_INTERLEAVE;
    const double slower = dealt ? (1 + (p->n_node - 1) * machine->remote_factor) / p->n_node : 1;
    double bps = 0;
    for (unsigned in = 0; in < p->n_node; in++) {
        bps += product_bps(machine, in);
    }
    return bytes * slower / bps;
}

/* ------------------------------------------------------------------ whole experts */

/* SplitMix64: the same draws for the same plan. */
static double draw(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

/* One expert by its count (all alike where there are none) that was not drawn before. */
static unsigned draw_expert(const uint64_t *count, const bool *taken, unsigned n_expert,
                            uint64_t *state)
{
    double total = 0;
    for (unsigned ie = 0; ie < n_expert; ie++) {
        total += taken[ie] ? 0 : (count != NULL ? (double)count[ie] : 0) + 1e-3;
    }
    double at = draw(state) * total;
    unsigned last = 0;
    for (unsigned ie = 0; ie < n_expert; ie++) {
        if (!taken[ie]) {
            last = ie;
            at -= (count != NULL ? (double)count[ie] : 0) + 1e-3;
            if (at < 0) {
                break;
            }
        }
    }
    return last;
}

#define MAX_EXPERT 1024u /* beyond, only these are drawn from */

static double slowest(const struct placement *p, const struct placement_machine *machine,
                      const double *load)
{
    double most = 0;
    for (unsigned in = 0; in < p->n_node; in++) {
        most = MAX(most, load[in] / product_bps(machine, in));
    }
    return most;
}

/* Nodes (bits) that have each expert [MAX_EXPERT] of the layer of s, one of its weights. */
static void find_holders(const struct placement *p, const struct shape *s, uint64_t *holders)
{
    unsigned from, to;
    memset(holders, 0, MAX_EXPERT * sizeof *holders);
    placement_find(p, s, &from, &to);
    for (unsigned i = from; i < to; i++) {
        for (uint32_t ie = p->slice[i].mat0; ie < MIN(p->slice[i].mat1, MAX_EXPERT); ie++) {
            holders[ie] |= UINT64_C(1) << p->slice[i].node;
        }
    }
}

/* As they are dispatched: experts that one node has come first, the others fill what those leave. */
static void take_experts(const struct placement *p, const uint64_t *holders, const bool *taken,
                         unsigned n_expert, double bytes, double *load)
{
    for (unsigned several = 0; several < 2; several++) {
        for (unsigned ie = 0; ie < n_expert; ie++) {
            const bool has_choice = (holders[ie] & (holders[ie] - 1)) != 0;
            if (taken[ie] && holders[ie] != 0 && has_choice == several) {
                placement_take(holders[ie], p->n_node, p->share, load, bytes);
            }
        }
    }
}

/* The mean over draws of the slowest node's time for all of a layer's experts; s is one of its
 * weights, to find the holders by, bytes those of one expert. */
static double whole_seconds(const struct placement *p, const struct shapes *shapes,
                            const struct shape *s, double bytes,
                            const struct placement_machine *machine,
                            const struct expert_stats *stats)
{
    const unsigned n_expert = MIN(shapes->n_expert, MAX_EXPERT);
    const uint64_t *count =
        stats != NULL ? stats->count + (size_t)s->layer * shapes->n_expert : NULL;
    uint64_t holders[MAX_EXPERT], state = (uint64_t)s->layer;
    double sum = 0;
    find_holders(p, s, holders);
    for (unsigned id = 0; id < N_DRAW; id++) {
        double load[TOPO_MAX_NODE] = {0};
        bool taken[MAX_EXPERT] = {false};
        for (unsigned i = 0; i < MIN(shapes->n_expert_used, n_expert); i++) {
            taken[draw_expert(count, taken, n_expert, &state)] = true;
        }
        take_experts(p, holders, taken, n_expert, bytes, load);
        sum += slowest(p, machine, load);
    }
    return sum / N_DRAW;
}

double placement_imbalance(const struct placement *p, const struct shapes *shapes,
                           const struct placement_machine *machine,
                           const struct expert_stats *stats)
{
    double slow = 0, even = 0, bps = 0;
    for (unsigned in = 0; in < p->n_node; in++) {
        bps += p->share[in] > 0 ? product_bps(machine, in) : 0;
    }
    for (unsigned is = 0; p->mode == NUMOE_PLACEMENT_SHARD && is < shapes->n; is++) {
        const struct shape *s = &shapes->shape[is];
        if (s->slot == SLOT_DOWN_EXPS) {
            slow += whole_seconds(p, shapes, s, 1, machine, stats);
            even += shapes->n_expert_used / bps;
        }
    }
    return even > 0 ? slow / even : 1;
}

void placement_count_replicas(struct placement *p, const struct shapes *shapes,
                              const struct expert_stats *stats)
{
    uint64_t holders[MAX_EXPERT];
    double all = 0, copied = 0;
    p->n_replicated = p->n_expert = 0;
    for (unsigned is = 0; is < shapes->n; is++) {
        const struct shape *s = &shapes->shape[is];
        if (s->slot != SLOT_DOWN_EXPS) {
            continue;
        }
        p->n_expert += s->n_mat;
        if (p->mode != NUMOE_PLACEMENT_SHARD) {
            continue;
        }
        find_holders(p, s, holders);
        for (unsigned ie = 0; ie < MIN(s->n_mat, MAX_EXPERT); ie++) {
            const bool several = (holders[ie] & (holders[ie] - 1)) != 0;
            const size_t at = (size_t)s->layer * shapes->n_expert + ie;
            const double count = stats != NULL ? (double)stats->count[at] : 0;
            p->n_replicated += several;
            all += count;
            copied += several ? count : 0;
        }
    }
    p->replica_share = stats != NULL && all > 0 ? copied / all : p->replica_share;
}

/* ------------------------------------------------------------------ a token */

static double meeting_seconds(const struct placement *p, const struct shapes *shapes, double each)
{
    const bool whole = p->mode == NUMOE_PLACEMENT_SHARD;
    double seconds = 0;
    for (unsigned is = 0; is < shapes->n; is++) {
        const enum slot slot = shapes->shape[is].slot;
        seconds += slot == SLOT_ATTN_NORM ? MEET_ATTENTION * each : 0;
        seconds += slot == SLOT_DOWN ? MEET_DENSE * each : 0;
        if (slot == SLOT_DOWN_EXPS) {
            seconds += MEET_CUT_EXPERTS * each;
            seconds -=
                whole ? (MEET_CUT_EXPERTS - MEET_WHOLE_EXPERTS) * (each - MEETING_NODE_S) : 0;
        }
    }
    return seconds;
}

/* All matrices; *routed_s: of them, routed experts. */
static double matrix_seconds(const struct placement *p, const struct shapes *shapes,
                             const struct placement_machine *machine,
                             const struct expert_stats *stats, double *routed_s)
{
    const bool whole = p->mode == NUMOE_PLACEMENT_SHARD;
    const bool cut = whole || p->mode == NUMOE_PLACEMENT_SLICE;
    double seconds = 0, expert_bytes = 0;
    *routed_s = 0;
    for (unsigned is = 0; is < shapes->n; is++) {
        const struct shape *s = &shapes->shape[is];
        double own = 0;
        if (s->kind == SHAPE_VECTOR) {
            continue;
        }
        if (whole && shape_is_routed(s)) {
            expert_bytes += (double)shape_bytes(s) / s->n_mat;
            if (s->slot == SLOT_DOWN_EXPS) { /* the last of a layer's */
                own = whole_seconds(p, shapes, s, expert_bytes, machine, stats);
                expert_bytes = 0;
            }
        } else {
            own = cut ? cut_seconds(p, shapes, s, machine) : spread_seconds(p, shapes, s, machine);
        }
        seconds += own;
        *routed_s += shape_is_routed(s) ? own : 0;
    }
    return seconds;
}

double placement_predict(const struct placement *p, const struct shapes *shapes,
                         const struct placement_machine *machine, const struct expert_stats *stats)
{
    const double meeting = placement_only_node(p) >= 0 ? MEETING_NODE_S : MEETING_ALL_S;
    double routed_s;
    return 1 / (meeting_seconds(p, shapes, meeting) +
                matrix_seconds(p, shapes, machine, stats, &routed_s));
}

double placement_predict_lanes(const struct placement *p, const struct shapes *shapes,
                               const struct placement_machine *machine)
{
    const double meetings = meeting_seconds(p, shapes, MEETING_NODE_S);
    double bytes = 0, tokens_per_s = 0;
    for (unsigned is = 0; is < shapes->n; is++) {
        const struct shape *s = &shapes->shape[is];
        bytes += s->kind == SHAPE_VECTOR
                     ? 0
                     : (double)shape_bytes(s) * shape_active_share(shapes, s);
    }
    for (unsigned in = 0; in < p->n_node; in++) {
        tokens_per_s += 1 / (meetings + bytes / product_bps(machine, in));
    }
    return tokens_per_s;
}

/* ------------------------------------------------------------------ more than one number */

double placement_token_bytes(const struct shapes *shapes)
{
    double bytes = 0;
    for (unsigned is = 0; is < shapes->n; is++) {
        const struct shape *s = &shapes->shape[is];
        bytes += s->kind == SHAPE_VECTOR ? 0
                                         : (double)shape_bytes(s) * shape_active_share(shapes, s);
    }
    return bytes;
}

double placement_all_bps(const struct placement_machine *machine)
{
    double bps = 0;
    for (unsigned in = 0; in < machine->n_node; in++) {
        bps += machine->node[in].read_bps;
    }
    return bps;
}

double placement_bound(const struct shapes *shapes, const struct placement_machine *machine)
{
    return placement_all_bps(machine) / placement_token_bytes(shapes);
}

/* Outputs of cut matrices are read by every other node; dealt panels are read where they are needed. */
static double link_bytes(const struct placement *p, const struct shapes *shapes)
{
    const double n = p->n_node;
    double bytes = 0;
    if (placement_only_node(p) >= 0) {
        return 0;
    }
    for (unsigned is = 0; is < shapes->n; is++) {
        const struct shape *s = &shapes->shape[is];
        const double mats = shape_is_routed(s) ? shapes->n_expert_used : s->n_mat;
        const bool inner = p->mode == NUMOE_PLACEMENT_SHARD &&
                           (s->slot == SLOT_GATE_EXPS || s->slot == SLOT_UP_EXPS);
        if (s->kind != SHAPE_VECTOR && s->slot != SLOT_TOKEN_EMBD && !inner) {
            bytes += mats * s->n_row * sizeof(float) * (n - 1) / n * n;
        }
    }
    if (p->mode == NUMOE_PLACEMENT_INTERLEAVE) {
        bytes += placement_token_bytes(shapes) * (n - 1) / n;
    }
    return bytes;
}

/* Multiplications of one token. */
static double token_products(const struct shapes *shapes)
{
    double n = 0;
    for (unsigned is = 0; is < shapes->n; is++) {
        const struct shape *s = &shapes->shape[is];
        if (s->kind != SHAPE_VECTOR) {
            n += (double)s->n_mat * s->n_row * s->k * shape_active_share(shapes, s);
        }
    }
    return n;
}

/* A chunk reads what its tokens choose, once: an expert is spared if all tokens leave it out. */
static double chunk_bytes(const struct shapes *shapes, unsigned n_token)
{
    double bytes = 0;
    for (unsigned is = 0; is < shapes->n; is++) {
        const struct shape *s = &shapes->shape[is];
        const double share = shape_active_share(shapes, s);
        double left_out = 1;
        for (unsigned t = 0; shape_is_routed(s) && t < n_token; t++) {
            left_out *= 1 - share;
        }
        bytes += s->kind == SHAPE_VECTOR ? 0
                 : shape_is_routed(s)    ? (double)shape_bytes(s) * (1 - left_out)
                                         : (double)shape_bytes(s) * MIN(share * n_token, 1.0);
    }
    return bytes;
}

#define ASSUMED_WORKER_PRODUCTS 50e9 /* a second, of quantized weights with many tokens */

void placement_cost(const struct placement *p, const struct shapes *shapes,
                    const struct placement_machine *machine, const struct expert_stats *stats,
                    unsigned chunk_tokens, struct placement_cost *out)
{
    const double meeting = placement_only_node(p) >= 0 ? MEETING_NODE_S : MEETING_ALL_S;
    struct placement_cost c = {.meet_s = meeting_seconds(p, shapes, meeting)};
    double n_worker = 0, bps = 0;
    for (unsigned in = 0; in < p->n_node; in++) {
        n_worker += p->share[in] > 0 ? machine->node[in].n_worker : 0;
        bps += p->share[in] > 0 ? product_bps(machine, in) : 0;
    }
    c.read_s = matrix_seconds(p, shapes, machine, stats, &c.routed_s);
    c.decode_s = c.read_s + c.meet_s;
    c.link_bytes = link_bytes(p, shapes);
    const bool dealt = p->mode == NUMOE_PLACEMENT_INTERLEAVE && p->n_node > 1;
    c.bound = c.meet_s > c.read_s ? "meetings" : dealt ? "links between nodes" : "memory bandwidth";
    const double read_s = chunk_bytes(shapes, chunk_tokens) / bps;
    const double products_s =
        token_products(shapes) * chunk_tokens / (n_worker * ASSUMED_WORKER_PRODUCTS);
    c.prefill_by_compute = products_s > read_s;
    c.prefill_s = MAX(products_s, read_s) / chunk_tokens;
    *out = c;
}

struct placement_split placement_split(const struct shapes *shapes)
{
    struct placement_split split = {0};
    for (unsigned is = 0; is < shapes->n; is++) {
        const struct shape *s = &shapes->shape[is];
        const double bytes = (double)shape_bytes(s);
        if (shape_is_routed(s)) {
            split.routed_bytes += bytes;
            split.routed_active_bytes += bytes * shape_active_share(shapes, s);
        } else if (s->slot != SLOT_TOKEN_EMBD || shapes->is_tied) {
            split.dense_bytes += bytes;
        }
        if (s->slot == SLOT_DOWN_EXPS) {
            split.n_moe++;
            split.n_expert += s->n_mat;
            split.crossing_bytes = 2.0 * s->n_row * sizeof(float);
        }
    }
    return split;
}
