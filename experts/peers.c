/* Experts that other processes (peers) have: tokens' inputs go to them and products come back, in
 * three meetings of all ranks a layer: what everybody has chosen, inputs, products. The products
 * are those of run.c and the sum is that of experts_combine(), in the order of choice, so that it
 * has the bits of one machine that has all experts.
 *
 * The first worker talks to the peers while the others wait at a barrier; packing is divided over
 * all.
 */
#include "experts/peers.h"

#include <string.h>

#include "base/mem.h"
#include "experts/state.h"

static numoe_status alloc(struct node_arena *arena, size_t n, size_t elem_bytes, void *out,
                          numoe_error *err)
{
    return node_arena_alloc(arena, n * elem_bytes, out, err);
}

numoe_status experts_peers_init(struct experts *e, struct node_arena *arena, numoe_error *err)
{
    struct experts_peers *s = &e->peers;
    const struct spread_shape *shape = &s->shape;
    const size_t n_rank = shape->n_rank, d = e->model->hp.n_embd;
    const size_t n_choice = spread_max_results(shape), n_pair = spread_max_pairs(shape);
    struct spread_plan *p = &s->plan;
    FORWARD_IF(alloc(arena, n_rank, sizeof *s->n_token, &s->n_token, err));
    FORWARD_IF(alloc(arena, n_choice, sizeof *s->own_ids, &s->own_ids, err));
    FORWARD_IF(alloc(arena, n_rank * n_choice, sizeof *s->all_ids, &s->all_ids, err));
    FORWARD_IF(alloc(arena, n_rank * shape->max_tokens * d, sizeof *s->x, &s->x, err));
    FORWARD_IF(alloc(arena, spread_max_send(shape) * d, sizeof *s->send, &s->send, err));
    FORWARD_IF(alloc(arena, n_choice * d, sizeof *s->result, &s->result, err));
    FORWARD_IF(alloc(arena, n_rank, sizeof *p->n_send, &p->n_send, err));
    FORWARD_IF(alloc(arena, n_rank, sizeof *p->n_recv, &p->n_recv, err));
    FORWARD_IF(alloc(arena, n_rank, sizeof *p->n_back, &p->n_back, err));
    FORWARD_IF(alloc(arena, n_rank, sizeof *p->n_result, &p->n_result, err));
    FORWARD_IF(alloc(arena, spread_max_send(shape), sizeof *p->send, &p->send, err));
    FORWARD_IF(alloc(arena, n_pair, sizeof *p->ids, &p->ids, err));
    FORWARD_IF(alloc(arena, n_pair, sizeof *p->row, &p->row, err));
    return alloc(arena, n_choice, sizeof *p->result, &p->result, err);
}

bool experts_meet_peers(struct experts *e, unsigned n, unsigned *n_most)
{
    struct experts_peers *s = &e->peers;
    const uint32_t own = n;
    *n_most = 0;
    s->failed = !s->peers->gather(s->peers->arg, &own, s->n_token, sizeof own);
    for (unsigned r = 0; r < s->shape.n_rank; r++) {
        *n_most = MAX(*n_most, s->n_token[r]);
    }
    s->failed = s->failed || *n_most > s->shape.max_tokens; /* a rank with longer chunks */
    s->n_most = *n_most;
    return !s->failed;
}

/* What all have chosen, and what follows from it. By the first worker. */
static bool share_choices(struct experts *e, unsigned n)
{
    struct experts_peers *s = &e->peers;
    const size_t k = s->shape.n_used, n_id = (size_t)s->n_most * k;
    memset(s->own_ids, 0, n_id * sizeof *s->own_ids);
    memcpy(s->own_ids, e->node[0].ids, n * k * sizeof *s->own_ids);
    if (!s->peers->gather(s->peers->arg, s->own_ids, s->all_ids, n_id * sizeof *s->own_ids)) {
        return false;
    }
    spread_plan_make(&s->shape, s->all_ids, s->n_most, s->n_token, &s->plan);
    return true;
}

static size_t sum_of(const uint32_t *n, unsigned n_rank)
{
    size_t sum = 0;
    for (unsigned r = 0; r < n_rank; r++) {
        sum += n[r];
    }
    return sum;
}

/* Own inputs to the front of the list, and copies to send; from the floats of the node's own. */
static void pack_inputs(struct experts *e, const struct worker *w, const float *x)
{
    struct experts_peers *s = &e->peers;
    const struct spread_plan *p = &s->plan;
    const size_t d = e->model->hp.n_embd, bytes = d * sizeof(float);
    uint32_t lo, hi;
    share_static(p->n_own, w->ig, w->ng, &lo, &hi);
    if (lo < hi) {
        memcpy(s->x + lo * d, x + lo * d, (hi - lo) * bytes);
    }
    share_static((uint32_t)sum_of(p->n_send, s->shape.n_rank), w->ig, w->ng, &lo, &hi);
    for (; lo < hi; lo++) {
        memcpy(s->send + lo * d, x + p->send[lo] * d, bytes);
    }
}

static bool exchange(struct experts *e, const float *send, const uint32_t *n_send, float *recv,
                     const uint32_t *n_recv)
{
    const numoe_peers *peers = e->peers.peers;
    return peers->exchange(peers->arg, e->model->hp.n_embd * sizeof(float), send, n_send, recv,
                           n_recv);
}

/* The node's work list of all rows of the list. */
static void list_work(struct experts *e, unsigned in, unsigned il)
{
    const struct model_hparams *hp = &e->model->hp;
    const struct spread_plan *p = &e->peers.plan;
    struct dispatch *work = &e->node[in].work;
    dispatch_build(p->ids, p->n_row, hp->n_expert_used, hp->n_expert, work);
    for (unsigned i = 0; i < work->n_pair; i++) {
        work->pair[i] = p->row[work->pair[i]];
    }
    experts_share_work(e, in, il);
}

bool experts_send(struct experts *e, struct worker *w, unsigned il, const struct act *x, unsigned n,
                  struct act *out)
{
    struct experts_peers *s = &e->peers;
    struct experts_node *node = &e->node[w->in];
    const size_t d = e->model->hp.n_embd;
    if (w->ig == 0) {
        s->failed = !share_choices(e, n);
    }
    worker_all_barrier(w);
    if (s->failed) {
        return false;
    }
    pack_inputs(e, w, x != NULL ? x->f : NULL);
    worker_all_barrier(w);
    if (w->ig == 0) {
        s->failed = !exchange(e, s->send, s->plan.n_send, s->x + n * d, s->plan.n_recv);
    }
    if (w->iw == 0) {
        list_work(e, w->in, il);
    }
    worker_all_barrier(w);
    if (s->failed) {
        return false;
    }
    *out = node->gathered;
    const unsigned acts = experts_want_acts(e, il);
    if (acts != 0) {
        act_convert_shared(out, e->kern, acts, s->plan.n_row, w);
        worker_node_barrier(w);
    }
    return true;
}

bool experts_receive(struct experts *e, struct worker *w)
{
    struct experts_peers *s = &e->peers;
    const struct spread_plan *p = &s->plan;
    const size_t d = e->model->hp.n_embd;
    uint32_t lo, hi;
    if (w->ig == 0) {
        const float *back = e->y + (size_t)p->n_own * s->shape.n_used * d;
        s->failed = !exchange(e, back, p->n_back, s->result, p->n_result);
    }
    worker_all_barrier(w);
    if (s->failed) {
        return false;
    }
    share_static((uint32_t)sum_of(p->n_result, s->shape.n_rank), w->ig, w->ng, &lo, &hi);
    for (; lo < hi; lo++) {
        memcpy(e->y + p->result[lo] * d, s->result + lo * d, d * sizeof(float));
    }
    worker_all_barrier(w);
    return true;
}
