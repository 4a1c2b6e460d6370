/* Owns when to look, what counts as used, and how much of the time copying may take. Who is to have
 * copies is placement_choose_replicas(), how they come there store/replica.c.
 *
 * Counts fade: they are halved every HALF_LIFE choices of an expert, on average, so that what was
 * used long ago is forgotten, and chance evens out. All numbers of tokens are given in that unit,
 * choices of an expert on average, because that is what decides how well counts are known: with 8
 * of 128 experts one such choice is 16 tokens.
 *
 * Copying takes COPY_PART of the time of steps, in pieces that are never longer than PIECE_MAX_NS,
 * or than that part of the last step where that is more: no token waits for longer.
 */
#include "runtime/adapt.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "store/placement.h"
#include "store/replica.h"

#define ENOUGH       32.0  /* choices of an expert, on average, before anything is copied */
#define LOOK         8.0   /* from one look to the next */
#define HALF_LIFE    256.0 /* after which a choice counts half */
#define COPY_PART    0.05
#define PIECE_MIN_NS 250000u
#define PIECE_MAX_NS 2000000u

struct adapt {
    struct store *store;
    bool follow, has_chosen, is_changing;
    unsigned n_layer, n_expert, n_used;
    uint64_t *expert_bytes;     /* [n_layer] 0: no experts */
    uint64_t *seen;             /* [n_layer, n_expert] counts at the last look */
    double *count, *n_token;    /* [n_layer, n_expert], [n_layer] as far as not faded */
    bool *left_out;             /* [n_layer, n_expert] */
    uint64_t *first, *wanted;   /* [n_layer, n_expert] nodes (bits) */
    struct replica_rank *heap;  /* [n_layer * n_expert] */
    uint64_t *copied_from;      /* [n_layer, n_expert] count when it got its first further copy */
    uint64_t n_copied_before;   /* choices of copies that are gone */
    size_t next[TOPO_MAX_NODE]; /* where the search for what to copy there goes on */
    double look_tokens;         /* since the last look */
    double credit_ns;           /* of time for copying */
    uint64_t step_ns;           /* of the last step */
    struct adapt_totals totals;
    uint64_t n_told; /* copies made, when that was logged last */
};

/* ------------------------------------------------------------------ set-up */

static uint64_t layer_bytes(const struct store *store, unsigned il)
{
    uint64_t bytes = 0;
    for (unsigned s = SLOT_GATE_EXPS; s <= SLOT_DOWN_EXPS; s++) {
        const struct weight *w = &store->layer[il][s];
        bytes += weight_present(w) ? (uint64_t)weight_panels(w) * w->panel_bytes : 0;
    }
    return bytes;
}

static numoe_status init(struct adapt *a, numoe_error *err)
{
    static const char what[] = "counts of experts";
    const size_t n = (size_t)a->n_layer * a->n_expert;
    FORWARD_IF(mem_new(&a->expert_bytes, a->n_layer, sizeof *a->expert_bytes, what, err));
    FORWARD_IF(mem_new(&a->seen, n, sizeof *a->seen, what, err));
    FORWARD_IF(mem_new(&a->count, n, sizeof *a->count, what, err));
    FORWARD_IF(mem_new(&a->n_token, a->n_layer, sizeof *a->n_token, what, err));
    FORWARD_IF(mem_new(&a->left_out, n, sizeof *a->left_out, what, err));
    FORWARD_IF(mem_new(&a->first, n, sizeof *a->first, what, err));
    FORWARD_IF(mem_new(&a->wanted, n, sizeof *a->wanted, what, err));
    FORWARD_IF(mem_new(&a->heap, n, sizeof *a->heap, what, err));
    return mem_new(&a->copied_from, n, sizeof *a->copied_from, what, err);
}

numoe_status adapt_new(const struct model *model, struct store *store, bool follow,
                       struct adapt **out, numoe_error *err)
{
    struct adapt *a = NULL;
    FORWARD_IF(mem_new(&a, 1, sizeof *a, "counts of experts", err));
    a->store = store;
    a->follow = follow;
    a->n_layer = model->hp.n_layer;
    a->n_expert = model->hp.n_expert;
    a->n_used = model->hp.n_expert_used;
    numoe_status status = init(a, err);
    if (status != NUMOE_OK) {
        adapt_free(a);
        return status;
    }
    for (unsigned il = 0; il < a->n_layer; il++) {
        a->expert_bytes[il] = layer_bytes(store, il);
    }
    a->totals.n_token_first = (uint64_t)ceil(ENOUGH * a->n_expert / a->n_used);
    for (unsigned in = 0; in < store->n_node; in++) {
        a->totals.n_place += store->replicas->node[in].n_place;
    }
    *out = a;
    return NUMOE_OK;
}

void adapt_free(struct adapt *a)
{
    if (a == NULL) {
        return;
    }
    mem_free(a->copied_from);
    mem_free(a->heap);
    mem_free(a->wanted);
    mem_free(a->first);
    mem_free(a->left_out);
    mem_free(a->n_token);
    mem_free(a->count);
    mem_free(a->seen);
    mem_free(a->expert_bytes);
    mem_free(a);
}

void adapt_leave_out(struct adapt *a, unsigned il, unsigned ie, bool out)
{
    a->left_out[(size_t)il * a->n_expert + ie] = out;
}

/* ------------------------------------------------------------------ looking */

/* Choices of an expert, on average, that so many tokens make. */
static double choices_of(const struct adapt *a, double n_token)
{
    return n_token * a->n_used / a->n_expert;
}

/* What was chosen since the last look joins what has faded since; before the first copies, nothing
 * fades. */
static void count_choices(struct adapt *a, const uint64_t *count)
{
    const double fade = a->has_chosen ? exp2(-choices_of(a, a->look_tokens) / HALF_LIFE) : 1;
    memset(a->n_token, 0, a->n_layer * sizeof *a->n_token);
    for (size_t i = 0; i < (size_t)a->n_layer * a->n_expert; i++) {
        a->count[i] = a->count[i] * fade + (double)(count[i] - a->seen[i]);
        a->seen[i] = count[i];
        a->n_token[i / a->n_expert] += a->count[i] / a->n_used;
    }
    a->look_tokens = 0;
}

static bool knows_enough(const struct adapt *a)
{
    for (unsigned il = 0; il < a->n_layer; il++) {
        if (a->expert_bytes[il] > 0 && choices_of(a, a->n_token[il]) < ENOUGH) {
            return false;
        }
    }
    return true;
}

static void choose(struct adapt *a)
{
    const struct store *store = a->store;
    const struct replicas *r = store->replicas;
    uint64_t room[TOPO_MAX_NODE], budget = 0;
    for (unsigned in = 0; in < store->n_node; in++) {
        room[in] = r->node[in].n_place * r->place_bytes;
        budget += room[in];
        a->next[in] = 0;
    }
    for (size_t i = 0; i < (size_t)a->n_layer * a->n_expert; i++) {
        a->first[i] = a->left_out[i] ? UINT64_MAX : store->holders[i] & ~r->copies[i];
    }
    const struct replica_problem problem = {
        .n_layer = a->n_layer,
        .n_expert = a->n_expert,
        .n_node = store->n_node,
        .share = store->share,
        .room_bytes = room,
        .budget_bytes = budget,
        .expert_bytes = a->expert_bytes,
        .place_bytes = r->place_bytes,
        .count = a->count,
        .n_token = a->n_token,
        .first = a->first,
        .now = r->copies,
    };
    placement_choose_replicas(&problem, a->heap, a->wanted);
    a->has_chosen = a->is_changing = true;
}

/* ------------------------------------------------------------------ changing */

/* A copy on the node that is no longer wanted; false: there is none. */
static bool drop_one(struct adapt *a, unsigned in)
{
    const struct replicas *r = a->store->replicas;
    for (size_t i = 0; i < (size_t)a->n_layer * a->n_expert; i++) {
        if ((r->copies[i] & ~a->wanted[i]) >> in & 1) {
            replica_drop(a->store, in, (unsigned)(i / a->n_expert), (unsigned)(i % a->n_expert));
            a->n_copied_before += r->copies[i] == 0 ? a->seen[i] - a->copied_from[i] : 0;
            return true;
        }
    }
    return false;
}

/* The node's next copy, unless one is under way. False: it has all that it is to have. */
static bool begin_next(struct adapt *a, unsigned in)
{
    struct replicas *r = a->store->replicas;
    const size_t n = (size_t)a->n_layer * a->n_expert;
    size_t *i = &a->next[in];
    if (r->node[in].copy.running) {
        return true;
    }
    while (*i < n && !((a->wanted[*i] & ~r->copies[*i]) >> in & 1)) {
        ++*i;
    }
    if (*i == n) {
        return false;
    }
    if (r->node[in].n_free == 0) {
        if (!drop_one(a, in)) {
            return false;
        }
        a->totals.n_swapped++;
    }
    return replica_begin(a->store, in, (unsigned)(*i / a->n_expert), (unsigned)(*i % a->n_expert));
}

/* Begins what can be; false: there is nothing left to do. */
static bool begin_copies(struct adapt *a)
{
    bool more = false;
    for (unsigned in = 0; in < a->store->n_node; in++) {
        more = begin_next(a, in) || more;
    }
    return more;
}

/* How long copying may take now; 0: not now. */
static uint64_t piece_ns(struct adapt *a)
{
    const double most = MAX((double)PIECE_MAX_NS, COPY_PART * (double)a->step_ns);
    a->credit_ns = MIN(a->credit_ns, most);
    return a->credit_ns >= PIECE_MIN_NS ? (uint64_t)a->credit_ns : 0;
}

static void note_copied(struct adapt *a, uint64_t nodes)
{
    const struct replicas *r = a->store->replicas;
    for (; nodes != 0; nodes &= nodes - 1) {
        const struct replica_node *node = &r->node[__builtin_ctzll(nodes)];
        const struct replica_place *place = &node->place[node->copy.place];
        const size_t i = (size_t)place->il * a->n_expert + place->ie;
        a->totals.n_made++;
        if ((r->copies[i] & (r->copies[i] - 1)) == 0) {
            a->copied_from[i] = a->seen[i];
        }
    }
}

static void change(struct adapt *a, struct pools *pools)
{
    const uint64_t begin_ns = clock_ns(), ns = piece_ns(a);
    if (ns == 0) {
        return;
    }
    bool more = begin_copies(a);
    while (more && clock_ns() < begin_ns + ns) {
        uint64_t done;
        a->totals.copied_bytes += replica_continue(a->store, pools, begin_ns + ns, &done);
        note_copied(a, done);
        more = begin_copies(a);
    }
    const uint64_t took_ns = clock_ns() - begin_ns;
    a->totals.copy_ns += took_ns;
    a->credit_ns -= (double)took_ns;
    a->is_changing = more;
    if (!more && a->totals.n_made > a->n_told) {
        a->n_told = a->totals.n_made;
        log_info("%llu copies of experts made until now, %llu in place of others",
                 (unsigned long long)a->totals.n_made, (unsigned long long)a->totals.n_swapped);
    }
}

/* All places were filled once, and that is all that was asked for. */
static bool is_done(const struct adapt *a)
{
    return a->has_chosen && !a->is_changing && !a->follow;
}

void adapt_look(struct adapt *a, struct pools *pools, adapt_count_fn *count, const void *arg)
{
    if (is_done(a)) {
        return;
    }
    if (!a->is_changing && choices_of(a, a->look_tokens) >= LOOK) {
        count_choices(a, count(arg));
        if (knows_enough(a)) {
            choose(a);
        }
    }
    if (a->is_changing) {
        change(a, pools);
    }
}

void adapt_note(struct adapt *a, uint64_t step_ns, unsigned n_token)
{
    a->step_ns = step_ns;
    a->credit_ns += COPY_PART * (double)step_ns;
    a->look_tokens += n_token;
}

/* ------------------------------------------------------------------ what it came to */

struct adapt_totals adapt_get_totals(const struct adapt *a)
{
    return a->totals;
}

uint64_t adapt_choices_copied(const struct adapt *a, const uint64_t *count)
{
    uint64_t n = a->n_copied_before;
    for (size_t i = 0; i < (size_t)a->n_layer * a->n_expert; i++) {
        n += a->store->replicas->copies[i] != 0 ? count[i] - a->copied_from[i] : 0;
    }
    return n;
}
