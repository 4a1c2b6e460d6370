/* Holders of activations; the conversion itself is a kernel. */
#include "store/act.h"

numoe_status act_init(struct act *a, struct node_arena *arena, unsigned k, unsigned n_max, float *f,
                      numoe_error *err)
{
    struct act out = {.k = k, .f = f};
    const size_t n = (size_t)k * n_max;
    if (f == NULL) {
        FORWARD_IF(node_arena_alloc(arena, n * sizeof(float), &out.f, err));
    }
    if (k % 32 == 0) {
        FORWARD_IF(node_arena_alloc(arena, n, &out.q, err));
        FORWARD_IF(node_arena_alloc(arena, n / 32 * sizeof(float), &out.d, err));
        FORWARD_IF(node_arena_alloc(arena, n / 16 * sizeof(int16_t), &out.s, err));
    }
    *a = out;
    return NUMOE_OK;
}

static void convert(const struct act *a, const struct kern *kern, size_t from, size_t n)
{
    kern->quantize(a->f + from, n, a->q + from, a->d + from / 32, a->s + from / 16);
}

void act_convert(const struct act *a, const struct kern *kern, unsigned t)
{
    convert(a, kern, (size_t)t * a->k, a->k);
}

void act_convert_shared(const struct act *a, const struct kern *kern, unsigned n,
                        const struct worker *w)
{
    /* Blocks of 32 are converted one by one, so any cut between them gives the same bits. */
    const size_t n_block = (size_t)n * (a->k / 32);
    const size_t lo = n_block * w->iw / w->nw, hi = n_block * (w->iw + 1) / w->nw;
    if (lo < hi) {
        convert(a, kern, lo * 32, (hi - lo) * 32);
    }
}
