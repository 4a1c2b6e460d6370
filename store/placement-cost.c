/* What one decoded token costs under a plan: every matrix takes as long as its slowest node, and
 * then come meetings, activations and the step itself (placement-work.c). Long contexts are left
 * out.
 */
#include <math.h>
#include <string.h>

#include "store/placement-work.h"

#define N_DRAW 64 /* of a token's experts, to see how unevenly they fall on nodes */

/* Seconds that the slowest node needs for its slices of s. */
static double cut_seconds(const struct placement *p, const struct shapes *shapes,
                          const struct shape *s, const struct placement_machine *machine)
{
    const double active = shape_active_share(shapes, s);
    double most = 0;
    unsigned from, to;
    placement_find(p, s, &from, &to);
    for (unsigned i = from; i < to; i++) {
        const unsigned in = p->slice[i].node;
        const double bytes = (double)placement_slice_bytes(s, &p->slice[i]) * active;
        const double rounds =
            placement_product_rounds(machine, s->format_id, bytes / (double)shape_panel_bytes(s),
                                     machine->node[in].n_worker);
        most = MAX(most, bytes * rounds / placement_product_bps(machine, in, s->format_id));
    }
    return most;
}

/* Everything could be read anywhere: divided by shares. */
static double spread_seconds(const struct placement *p, const struct shapes *shapes,
                             const struct shape *s, const struct placement_machine *machine)
{
    const double bytes = shape_token_bytes(shapes, s);
    const bool dealt = p->mode == NUMOE_PLACEMENT_INTERLEAVE;
    const double slower = dealt ? (1 + (p->n_node - 1) * machine->remote_factor) / p->n_node : 1;
    double bps = 0;
    unsigned n_worker = 0;
    for (unsigned in = 0; in < p->n_node; in++) {
        bps += placement_product_bps(machine, in, s->format_id);
        n_worker += machine->node[in].n_worker;
    }
    const double n_panel = bytes / (double)shape_panel_bytes(s);
    return bytes * slower * placement_product_rounds(machine, s->format_id, n_panel, n_worker) /
           bps;
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
        most = MAX(most, load[in] / machine->node[in].read_bps);
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

/* As they are dispatched: experts that one node has come first, the others fill what those leave.
 */
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
        bps += p->share[in] > 0 ? machine->node[in].read_bps : 0;
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

/* How many times longer products of a type take than reading their bytes. */
static double slowness(const struct placement_machine *machine, uint32_t format_id)
{
    return machine->node[0].read_bps / placement_product_bps(machine, 0, format_id);
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
            expert_bytes += (double)shape_bytes(s) / s->n_mat * slowness(machine, s->format_id);
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
    struct placement_cost cost;
    placement_cost(p, shapes, machine, stats, 1, &cost);
    return 1 / cost.decode_s;
}

/* ------------------------------------------------------------------ more than one number */

double placement_token_bytes(const struct shapes *shapes)
{
    double bytes = 0;
    for (unsigned is = 0; is < shapes->n; is++) {
        bytes += shape_token_bytes(shapes, &shapes->shape[is]);
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

/* Outputs of cut matrices are read by every other node; dealt panels are read where they are
 * needed. */
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

#define ASSUMED_WORKER_PRODUCTS 50e9 /* a second, of quantized weights with many tokens */

/* Nodes that work together. */
struct crew {
    unsigned first, end;
};

static unsigned crew_workers(const struct placement *p, const struct placement_machine *machine,
                             struct crew crew)
{
    unsigned n = 0;
    for (unsigned in = crew.first; in < crew.end; in++) {
        n += p->share[in] > 0 ? machine->node[in].n_worker : 0;
    }
    return n;
}

/* The part of a weight that a chunk of tokens reads: what they choose, once. An expert is spared if
 * all of them leave it out. Of one token it is the share itself, not rounded: a little more than
 * whole panels would be another round for the workers. */
static double chunk_share(const struct shapes *shapes, const struct shape *s, unsigned n_token)
{
    const double share = shape_active_share(shapes, s);
    return shape_is_routed(s) && n_token > 1 ? 1 - pow(1 - share, n_token)
                                             : MIN(share * n_token, 1.0);
}

static double chunk_seconds(const struct placement *p, const struct shapes *shapes,
                            const struct placement_machine *machine, struct crew crew,
                            unsigned n_token)
{
    const unsigned n_worker = crew_workers(p, machine, crew);
    double seconds = 0;
    for (unsigned is = 0; is < shapes->n; is++) {
        const struct shape *s = &shapes->shape[is];
        if (s->kind == SHAPE_VECTOR) {
            continue;
        }
        double bps = 0;
        for (unsigned in = crew.first; in < crew.end; in++) {
            bps += p->share[in] > 0 ? placement_product_bps(machine, in, s->format_id) : 0;
        }
        const double bytes = (double)shape_bytes(s) * chunk_share(shapes, s, n_token);
        seconds += bytes / bps *
                   placement_product_rounds(machine, s->format_id,
                                            bytes / (double)shape_panel_bytes(s), n_worker);
    }
    return seconds;
}

static double product_seconds(const struct shapes *shapes, unsigned n_token, unsigned n_worker)
{
    return token_products(shapes) * n_token / (n_worker * ASSUMED_WORKER_PRODUCTS);
}

/* ------------------------------------------------------------------ several sequences */

double placement_predict_lanes(const struct placement *p, const struct shapes *shapes,
                               const struct placement_machine *machine)
{
    double tokens_per_s = 0;
    for (unsigned in = 0; in < p->n_node; in++) {
        const unsigned n = machine->node[in].n_worker;
        const struct crew lane = {in, in + 1};
        tokens_per_s += 1 / (placement_meet_seconds(p, shapes, machine, true) +
                             placement_step_seconds(machine) +
                             placement_vector_seconds(shapes, machine, 1, n, n) +
                             chunk_seconds(p, shapes, machine, lane, 1));
    }
    return tokens_per_s;
}

/* A step with n_token tokens, as read or as multiplied, whichever takes longer. */
static double crew_seconds(const struct placement *p, const struct shapes *shapes,
                           const struct placement_machine *machine, struct crew crew,
                           unsigned n_token)
{
    const unsigned n_worker = crew_workers(p, machine, crew);
    const unsigned n_owner = machine->node[crew.first].n_worker;
    return MAX(chunk_seconds(p, shapes, machine, crew, n_token),
               product_seconds(shapes, n_token, n_worker)) +
           placement_meet_seconds(p, shapes, machine, crew.end - crew.first == 1) +
           placement_step_seconds(machine) +
           placement_vector_seconds(shapes, machine, n_token, n_worker, n_owner);
}

double placement_batch_seconds(const struct placement *p, const struct shapes *shapes,
                               const struct placement_machine *machine, unsigned n_token,
                               bool in_lanes)
{
    const struct crew all = {0, p->n_node};
    double most = 0;
    if (!in_lanes) {
        return crew_seconds(p, shapes, machine, all, n_token);
    }
    for (unsigned in = 0; in < p->n_node; in++) {
        const struct crew lane = {in, in + 1};
        const unsigned n = MAX((unsigned)ceil(n_token * p->share[in] - 1e-9), 1u);
        most = MAX(most, crew_seconds(p, shapes, machine, lane, n));
    }
    return most;
}

uint32_t placement_lanes_pay(const struct placement *p, const struct shapes *shapes,
                             const struct placement_machine *machine)
{
    uint32_t pay = 0;
    for (unsigned i = 0; i < PLACEMENT_MAX_BATCH_LOG2; i++) {
        const unsigned n = MAX(1u << i, p->n_node);
        if (placement_batch_seconds(p, shapes, machine, n, true) <
            placement_batch_seconds(p, shapes, machine, n, false)) {
            pay |= UINT32_C(1) << i;
        }
    }
    return pay;
}

/* ------------------------------------------------------------------ the parts of a prediction */

/* Of a token's matrices, in bytes: what is read at less than three quarters of the bandwidth. */
#define ARITHMETIC_SLOWNESS (1 / 0.75)
static double arithmetic_share(const struct shapes *shapes, const struct placement_machine *machine)
{
    double slow = 0, all = 0;
    for (unsigned is = 0; is < shapes->n; is++) {
        const struct shape *s = &shapes->shape[is];
        const double bytes = shape_token_bytes(shapes, s);
        if (bytes > 0) {
            const double slower = slowness(machine, s->format_id), cost = bytes * slower;
            slow += slower > ARITHMETIC_SLOWNESS ? cost : 0;
            all += cost;
        }
    }
    return all > 0 ? slow / all : 0;
}

/* The largest part of a token's time. */
static const char *name_bound(const struct placement *p, const struct placement_cost *c)
{
    const bool dealt = p->mode == NUMOE_PLACEMENT_INTERLEAVE && p->n_node > 1;
    const double read_s = c->read_s - c->arith_s;
    const double most = MAX(MAX(read_s, c->arith_s), MAX(c->meet_s + c->step_s, c->vector_s));
    return most == read_s        ? (dealt ? "links between nodes" : "memory bandwidth")
           : most == c->arith_s  ? "arithmetic of products"
           : most == c->vector_s ? "work on activations"
                                 : "meetings";
}

void placement_cost(const struct placement *p, const struct shapes *shapes,
                    const struct placement_machine *machine, const struct expert_stats *stats,
                    unsigned chunk_tokens, struct placement_cost *out)
{
    struct placement_cost c = {.step_s = placement_step_seconds(machine)};
    unsigned n_worker = 0, n_owner = 0;
    for (unsigned in = 0; in < p->n_node; in++) {
        n_worker += p->share[in] > 0 ? machine->node[in].n_worker : 0;
        n_owner = n_owner == 0 ? n_worker : n_owner;
    }
    c.meet_s = placement_meet_seconds(p, shapes, machine, placement_only_node(p) >= 0);
    c.vector_s = placement_vector_seconds(shapes, machine, 1, n_worker, n_owner);
    c.read_s = matrix_seconds(p, shapes, machine, stats, &c.routed_s);
    c.arith_s = c.read_s * arithmetic_share(shapes, machine);
    c.decode_s = c.read_s + c.meet_s + c.vector_s + c.step_s;
    c.link_bytes = link_bytes(p, shapes);
    c.bound = name_bound(p, &c);
    const struct crew all = {0, p->n_node};
    const double read_s = chunk_seconds(p, shapes, machine, all, chunk_tokens);
    const double products_s = product_seconds(shapes, chunk_tokens, n_worker);
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
