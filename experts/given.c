/* Experts whose inputs and choices somebody else has made: a GPU program, which has the dense half
 * of the layer. The products are those of run.c; here is how inputs come in and sums go out.
 */
#include <string.h>

#include "base/mem.h"
#include "experts/state.h"

#define SUM_PIECE 512u /* elements of a token that one worker sums at a time */

static float float_of_bf16(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The node's own floats of bf16, divided over its workers by elements. */
static void widen(const struct act *x, const uint16_t *half, unsigned n, const struct worker *w)
{
    const size_t all = (size_t)n * x->k;
    const size_t lo = all * w->iw / w->nw, hi = all * (w->iw + 1) / w->nw;
    for (size_t i = lo; i < hi; i++) {
        x->f[i] = float_of_bf16(half[i]);
    }
}

/* Not trusted: an id that is none is left out, and noted. */
static void take_choice(struct experts *e, struct experts_node *node,
                        const struct experts_given *given, size_t n)
{
    const int32_t n_expert = (int32_t)e->model->hp.n_expert;
    for (size_t i = 0; i < n; i++) {
        int32_t id = given->ids[i];
        if (id >= n_expert || id < DISPATCH_ELSEWHERE(n_expert - 1)) {
            atomic_store_explicit(&e->given_bad, true, memory_order_relaxed);
            id = DISPATCH_ELSEWHERE(0);
        }
        node->ids[i] = id;
    }
    memcpy(node->weights, given->weights, n * sizeof *node->weights);
}

struct act experts_take(struct experts *e, struct worker *w, unsigned il,
                        const struct experts_given *given, unsigned n)
{
    struct experts_node *node = &e->node[w->in];
    struct act x = node->given;
    if (given->x != NULL) {
        x.f = (float *)given->x;
    } else {
        widen(&x, given->x_bf16, n, w);
        worker_node_barrier(w);
    }
    act_convert_shared(&x, e->kern, experts_want_acts(e, il), n, w);
    if (w->iw == 0) {
        take_choice(e, node, given, (size_t)n * e->model->hp.n_expert_used);
        experts_list_work(e, w->in, il, n, 0, experts_prompt_choices(e, il));
    }
    if (w->ig == 0) {
        experts_note_choice(e, il, n);
    }
    worker_node_barrier(w);
    return x;
}

void experts_note_given(struct experts *e, unsigned il, const struct experts_given *given,
                        unsigned n)
{
    take_choice(e, &e->node[0], given, (size_t)n * e->model->hp.n_expert_used);
    experts_note_choice(e, il, n);
}

/* out [n, D] = sums of choices [first, end), with what was deferred before if `joins`; each element
 * is always the same worker's. */
static void sum_choices(struct experts *e, const struct worker *w, unsigned il, unsigned first,
                        unsigned end, bool joins, float *out, unsigned n)
{
    const size_t d = e->model->hp.n_embd, n_piece = (d + SUM_PIECE - 1) / SUM_PIECE;
    uint32_t lo, hi;
    share_static((uint32_t)(n * n_piece), w->ig, w->ng, &lo, &hi);
    for (; lo < hi; lo++) {
        const size_t t = lo / n_piece, from = lo % n_piece * SUM_PIECE;
        const size_t to = MIN(from + SUM_PIECE, d);
        float *y = out + t * d + from;
        memset(y, 0, (to - from) * sizeof *y);
        experts_add_choices(e, w->in, il, t, first, end, from, to, y);
        if (joins) {
            e->kern->add(y, e->deferred + t * d + from, to - from);
        }
    }
}

void experts_sum(struct experts *e, struct worker *w, unsigned il, float *y, unsigned n)
{
    sum_choices(e, w, il, 0, experts_prompt_choices(e, il), experts_joins_deferred(e, il), y, n);
}

bool experts_run_deferred(struct experts *e, struct worker *w, unsigned il, const struct act *x,
                          unsigned n)
{
    const unsigned first = experts_prompt_choices(e, il), end = e->model->hp.n_expert_used;
    if (first == end) {
        return false;
    }
    if (w->iw == 0) {
        experts_list_work(e, w->in, il, n, first, end);
    }
    worker_node_barrier(w);
    experts_run(e, w, il, x, n);
    sum_choices(e, w, il, first, end, false, e->deferred, n);
    return true;
}
