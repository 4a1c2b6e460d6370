/* Holders of activations; the conversion itself is a kernel. */
#include "store/act.h"

static numoe_status alloc_q8(struct node_arena *arena, size_t n, unsigned group, int8_t **q,
                             float **d, int16_t **s, numoe_error *err)
{
    FORWARD_IF(node_arena_alloc(arena, n, q, err));
    FORWARD_IF(node_arena_alloc(arena, n / group * sizeof(float), d, err));
    return node_arena_alloc(arena, n / 16 * sizeof(int16_t), s, err);
}

numoe_status act_init(struct act *a, struct node_arena *arena, const struct kern *kern, unsigned k,
                      unsigned n_max, float *f, numoe_error *err)
{
    struct act out = {.k = k, .f = f};
    const size_t n = (size_t)k * n_max;
    if (f == NULL) {
        FORWARD_IF(node_arena_alloc(arena, n * sizeof(float), &out.f, err));
    }
    if (k % 32 == 0) {
        FORWARD_IF(alloc_q8(arena, n, 32, &out.q, &out.d, &out.s, err));
    }
    if (k % 256 == 0 && kern->quantize_256 != NULL) {
        FORWARD_IF(alloc_q8(arena, n, 256, &out.q256, &out.d256, &out.s256, err));
    }
    *a = out;
    return NUMOE_OK;
}

static void convert_32(const struct act *a, const struct kern *kern, size_t from, size_t n)
{
    kern->quantize(a->f + from, n, a->q + from, a->d + from / 32, a->s + from / 16);
}

static void convert_256(const struct act *a, const struct kern *kern, size_t from, size_t n)
{
    kern->quantize_256(a->f + from, n, a->q256 + from, a->d256 + from / 256, a->s256 + from / 16);
}

void act_convert(const struct act *a, const struct kern *kern, unsigned acts, unsigned t)
{
    if (acts & KERN_ACT_Q8) {
        convert_32(a, kern, (size_t)t * a->k, a->k);
    }
    if (acts & KERN_ACT_Q8_256) {
        convert_256(a, kern, (size_t)t * a->k, a->k);
    }
}

/* Blocks are converted one by one, so any cut between them gives the same bits. */
static void convert_part(const struct act *a, const struct kern *kern, unsigned n,
                         const struct worker *w, unsigned group,
                         void (*convert)(const struct act *, const struct kern *, size_t, size_t))
{
    const size_t n_block = (size_t)n * (a->k / group);
    const size_t lo = n_block * w->iw / w->nw, hi = n_block * (w->iw + 1) / w->nw;
    if (lo < hi) {
        convert(a, kern, lo * group, (hi - lo) * group);
    }
}

void act_convert_shared(const struct act *a, const struct kern *kern, unsigned acts, unsigned n,
                        const struct worker *w)
{
    if (acts & KERN_ACT_Q8) {
        convert_part(a, kern, n, w, 32, convert_32);
    }
    if (acts & KERN_ACT_Q8_256) {
        convert_part(a, kern, n, w, 256, convert_256);
    }
}
