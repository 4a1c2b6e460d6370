/* The stages of the routed half. Every worker finds its part of the work in the node's work list:
 * items are (expert, panel of the node's rows), so that all workers are busy whether one expert has
 * all the tokens or each has one.
 */
#include <string.h>

#include "base/mem.h"
#include "experts/state.h"

/* The matrix of an expert among those that are here. */
static uint32_t matrix_of(const struct experts *e, uint32_t expert)
{
    return expert - e->store->first_expert;
}

/* ------------------------------------------------------------------ gate, up */

static struct weight_glu routed_glu(const struct experts *e, unsigned il)
{
    const struct model_hparams *hp = &e->model->hp;
    return (struct weight_glu){
        .gate = experts_weight(e, il, SLOT_GATE_EXPS),
        .up = experts_weight(e, il, SLOT_UP_EXPS),
        .gate_bias = experts_weight(e, il, SLOT_GATE_EXPS_BIAS),
        .up_bias = experts_weight(e, il, SLOT_UP_EXPS_BIAS),
        .act = hp->act,
        .act_alpha = hp->act_alpha,
        .act_limit = hp->act_limit,
    };
}

/* Experts in the file: their rows are asked for as soon as it is known which, the node's workers
 * share the asking. */
static void announce(const struct experts *e, const struct worker *w, unsigned il)
{
    const struct dispatch *work = &e->node[w->in].work;
    for (unsigned i = w->iw; i < work->n_item; i += w->nw) {
        for (unsigned slot = SLOT_GATE_EXPS; slot <= SLOT_DOWN_EXPS; slot++) {
            weight_will_need(experts_weight(e, il, slot), matrix_of(e, work->item[i].expert),
                             w->in);
        }
    }
}

static void run_glu(struct experts *e, struct worker *w, unsigned il, const struct kern_act *x)
{
    const struct weight_glu glu = routed_glu(e, il);
    const struct experts_node *node = &e->node[w->in];
    const struct dispatch *work = &node->work;
    if (work->n_item == 0) {
        return; /* the node may have none of the weights */
    }
    const uint32_t n_panel = weight_part_panels(&glu.gate->part[w->in]);
    const uint32_t n = work->n_item * n_panel;
    const size_t ldh = glu.gate->n_row;
    struct share share;
    uint32_t lo, hi;
    share_begin(&share, w, n, weight_grain(w, n, n_panel));
    while (share_next(&share, &lo, &hi)) {
        while (lo < hi) {
            const struct dispatch_item *item = &work->item[lo / n_panel];
            const uint32_t p0 = lo % n_panel, p1 = MIN(n_panel, p0 + (hi - lo));
            weight_glu_panels(&glu, matrix_of(e, item->expert), experts_reader(e, w), p0, p1, x,
                              work->token + item->begin, item->end - item->begin,
                              node->worker[w->iw].glu, node->h.f + item->row * ldh, ldh);
            lo += p1 - p0;
        }
    }
}

static void run_shared_glu(struct experts *e, struct worker *w, unsigned il,
                           const struct kern_act *x, unsigned n_token)
{
    const struct weight absent = {.format = NULL};
    struct weight_glu glu = routed_glu(e, il);
    glu.gate = experts_weight(e, il, SLOT_GATE_SHEXP);
    glu.up = experts_weight(e, il, SLOT_UP_SHEXP);
    glu.gate_bias = glu.up_bias = &absent;
    const uint32_t n_panel = weight_part_panels(&glu.gate->part[w->in]);
    struct share share;
    uint32_t lo, hi;
    share_begin(&share, w, n_panel, weight_grain(w, n_panel, n_panel));
    while (share_next(&share, &lo, &hi)) {
        weight_glu_panels(&glu, 0, experts_reader(e, w), lo, hi, x, NULL, n_token,
                          e->node[w->in].worker[w->iw].glu, e->h_shared, glu.gate->n_row);
    }
}

/* ------------------------------------------------------------------ router */

static void select_token(struct experts *e, struct worker *w, unsigned il, uint32_t t)
{
    const struct model_hparams *hp = &e->model->hp;
    const unsigned n_used = hp->n_expert_used;
    struct experts_node *node = &e->node[w->in];
    struct experts_worker *worker = &node->worker[w->iw];
    const struct weight *bias = experts_weight(e, il, SLOT_ROUTER_BIAS);
    const struct weight *select = experts_weight(e, il, SLOT_SELECT_BIAS);
    const float *logits = e->logits + (size_t)t * hp->n_expert;
    if (weight_present(bias)) {
        memcpy(worker->logits, logits, hp->n_expert * sizeof(float));
        e->kern->add(worker->logits, bias->vec[w->in], hp->n_expert);
        logits = worker->logits;
    }
    int32_t *ids = node->ids + (size_t)t * n_used;
    router_select(&hp->router, hp->n_expert, n_used, logits,
                  weight_present(select) ? select->vec[w->in] : NULL, worker->router, ids,
                  node->weights + (size_t)t * n_used);
    const bool *elsewhere = e->elsewhere != NULL ? e->elsewhere + (size_t)il * hp->n_expert : NULL;
    for (unsigned j = 0; elsewhere != NULL && j < n_used; j++) {
        ids[j] = elsewhere[ids[j]] ? DISPATCH_ELSEWHERE(ids[j]) : ids[j];
    }
}

static int32_t whole_id(int32_t id)
{
    return id < 0 ? DISPATCH_ELSEWHERE(id) : id;
}

/* The first node's choice is the choice: all nodes make the same. */
static void keep_routes(struct experts *e, unsigned il, unsigned n)
{
    const unsigned n_used = e->model->hp.n_expert_used;
    const size_t to = (size_t)il * e->max_tokens * n_used;
    for (size_t i = 0; i < (size_t)n * n_used; i++) {
        e->route_ids[to + i] = whole_id(e->node[0].ids[i]);
    }
    memcpy(e->route_weights + to, e->node[0].weights, n * n_used * sizeof(float));
}

void experts_note_choice(struct experts *e, unsigned il, unsigned n)
{
    const struct model_hparams *hp = &e->model->hp;
    const struct experts_node *node = &e->node[0];
    uint64_t *count = node->count + (size_t)il * hp->n_expert;
    double *weight_sum = node->weight_sum + (size_t)il * hp->n_expert;
    for (size_t i = 0; i < (size_t)n * hp->n_expert_used; i++) {
        const int32_t id = whole_id(node->ids[i]);
        count[id]++;
        weight_sum[id] += (double)node->weights[i];
    }
    if (e->keep) {
        keep_routes(e, il, n);
    }
}

void experts_list_work(struct experts *e, unsigned in, unsigned il, unsigned n, unsigned first,
                       unsigned end)
{
    const struct model_hparams *hp = &e->model->hp;
    struct dispatch *work = &e->node[in].work;
    dispatch_build_part(e->node[in].ids, n, hp->n_expert_used, first, end, hp->n_expert, work);
    experts_share_work(e, in, il);
}

void experts_share_work(struct experts *e, unsigned in, unsigned il)
{
    const size_t n_expert = e->model->hp.n_expert;
    if (e->store->holders != NULL) {
        dispatch_share(&e->node[in].work, e->store->holders + il * n_expert, e->n_node,
                       e->store->share, in);
    }
}

void experts_route(struct experts *e, struct worker *w, unsigned il, const struct act *x,
                   unsigned n)
{
    const struct model_hparams *hp = &e->model->hp;
    const struct weight *router = experts_weight(e, il, SLOT_ROUTER);
    const struct weight *shared_gate = experts_weight(e, il, SLOT_SHEXP_GATE);
    const struct kern_act in = act_view(x);
    struct weight_reader *rd = experts_reader(e, w);
    weight_matmul(router, 0, w, rd, &in, NULL, NULL, n, e->logits, hp->n_expert);
    if (weight_present(shared_gate)) {
        weight_matmul(shared_gate, 0, w, rd, &in, NULL, NULL, n, e->shared_gate, 1);
    }
    if (weight_present(experts_weight(e, il, SLOT_GATE_SHEXP))) {
        const enum probe_stage stage = probe_switch(w->probe, PROBE_SHARED);
        run_shared_glu(e, w, il, &in, n);
        probe_switch(w->probe, stage);
    }
    worker_all_barrier(w);
    uint32_t lo, hi;
    share_static(n, w->iw, w->nw, &lo, &hi);
    for (uint32_t t = lo; t < hi; t++) {
        select_token(e, w, il, t);
    }
    if (n > 1) { /* one token is the first worker's, who goes on with it */
        worker_node_barrier(w);
    }
    if (w->iw == 0 && e->peers.peers == NULL) { /* else experts_send() knows what there is to do */
        experts_list_work(e, w->in, il, n, 0, hp->n_expert_used);
    }
    if (w->ig == 0) {
        experts_note_choice(e, il, n);
    }
    worker_node_barrier(w);
}

/* ------------------------------------------------------------------ down */

static void run_down(struct experts *e, struct worker *w, unsigned il)
{
    const struct weight *down = experts_weight(e, il, SLOT_DOWN_EXPS);
    const struct experts_node *node = &e->node[w->in];
    const struct dispatch *work = &node->work;
    if (work->n_item == 0) {
        return;
    }
    const uint32_t n_panel = weight_part_panels(&down->part[w->in]);
    const uint32_t n = work->n_item * n_panel;
    struct share share;
    uint32_t lo, hi;
    share_begin(&share, w, n, weight_grain(w, n, n_panel));
    while (share_next(&share, &lo, &hi)) {
        while (lo < hi) {
            const struct dispatch_item *item = &work->item[lo / n_panel];
            const uint32_t p0 = lo % n_panel, p1 = MIN(n_panel, p0 + (hi - lo));
            struct kern_act x = act_view(&node->h);
            act_skip(&x, item->row);
            weight_matmul_panels(down, matrix_of(e, item->expert), experts_reader(e, w), p0, p1, &x,
                                 NULL, work->pair + item->begin, item->end - item->begin, e->y,
                                 down->n_row);
            lo += p1 - p0;
        }
    }
}

void experts_run(struct experts *e, struct worker *w, unsigned il, const struct act *x, unsigned n)
{
    const struct weight *down = experts_weight(e, il, SLOT_DOWN_EXPS);
    const struct weight *down_shared = experts_weight(e, il, SLOT_DOWN_SHEXP);
    struct experts_node *node = &e->node[w->in];
    const struct kern_act in = act_view(x);
    if (e->mapped) {
        announce(e, w, il);
    }
    run_glu(e, w, il, &in);
    if (e->h != NULL) {
        worker_all_barrier(w);
    } else {
        worker_node_barrier(w);
    }
    const unsigned acts = weight_acts(down, e->kern),
                   acts_shared = weight_acts(down_shared, e->kern);
    act_convert_shared(&node->h, e->kern, acts, node->work.n_pair, w);
    act_convert_shared(&node->h_shared, e->kern, acts_shared, n, w);
    if ((acts | acts_shared) != 0) {
        worker_node_barrier(w);
    }
    run_down(e, w, il);
    if (weight_present(down_shared)) {
        const struct kern_act h = act_view(&node->h_shared);
        const enum probe_stage stage = probe_switch(w->probe, PROBE_SHARED);
        weight_matmul(down_shared, 0, w, experts_reader(e, w), &h, NULL, NULL, n, e->y_shared,
                      down_shared->n_row);
        probe_switch(w->probe, stage);
    }
    worker_all_barrier(w);
}

/* ------------------------------------------------------------------ sum */

void experts_add_choices(const struct experts *e, unsigned in, unsigned il, size_t t,
                         unsigned first, unsigned end, size_t from, size_t to, float *out)
{
    const struct model_hparams *hp = &e->model->hp;
    const struct experts_node *node = &e->node[in];
    const struct weight *bias = experts_weight(e, il, SLOT_DOWN_EXPS_BIAS);
    const size_t pair0 = t * hp->n_expert_used;
    for (size_t pair = pair0 + first; pair < pair0 + end; pair++) {
        if (node->ids[pair] < 0) {
            continue;
        }
        e->kern->axpy(out, node->weights[pair], e->y + pair * hp->n_embd + from, to - from);
        if (weight_present(bias)) {
            const size_t row = (size_t)node->ids[pair] * hp->n_embd + from;
            e->kern->axpy(out, node->weights[pair], bias->vec[in] + row, to - from);
        }
    }
}

static void add_shared(const struct experts *e, unsigned il, size_t t, float *x)
{
    const struct model_hparams *hp = &e->model->hp;
    float gate = 1;
    if (!weight_present(experts_weight(e, il, SLOT_DOWN_SHEXP))) {
        return;
    }
    if (weight_present(experts_weight(e, il, SLOT_SHEXP_GATE))) {
        e->kern->sigmoid(&e->shared_gate[t], 1, &gate);
    }
    e->kern->axpy(x, gate * hp->residual_scale, e->y_shared + t * hp->n_embd, hp->n_embd);
}

void experts_combine(struct experts *e, struct worker *w, unsigned il, const float *more,
                     float *stream, unsigned lo, unsigned hi)
{
    const struct model_hparams *hp = &e->model->hp;
    const struct kern *kern = e->kern;
    struct experts_node *node = &e->node[w->in];
    float *sum = node->worker[w->iw].sum;
    const unsigned n_prompt = experts_prompt_choices(e, il);
    const bool joins = experts_joins_deferred(e, il);
    for (size_t t = lo; t < hi; t++) {
        float *x = stream + t * hp->n_embd, *deferred = node->deferred + t * hp->n_embd;
        add_shared(e, il, t, x);
        memset(sum, 0, hp->n_embd * sizeof *sum);
        experts_add_choices(e, w->in, il, t, 0, n_prompt, 0, hp->n_embd, sum);
        if (joins) {
            kern->add(sum, deferred, hp->n_embd);
        }
        if (more != NULL) {
            kern->add(sum, more + t * hp->n_embd, hp->n_embd);
        }
        kern->axpy(x, hp->residual_scale, sum, hp->n_embd);
        if (n_prompt < hp->n_expert_used) {
            memset(deferred, 0, hp->n_embd * sizeof *deferred);
            experts_add_choices(e, w->in, il, t, n_prompt, hp->n_expert_used, 0, hp->n_embd,
                                deferred);
        }
    }
}

void experts_choice(const struct experts *e, const struct worker *w, const int32_t **ids,
                    const float **weights)
{
    *ids = e->node[w->in].ids;
    *weights = e->node[w->in].weights;
}
