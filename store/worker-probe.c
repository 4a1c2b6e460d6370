/* Owns the comparison of pools. Both read the same panels, so that neither has the better pages,
 * and each is measured right after the other, so that what disturbs the machine disturbs both.
 */
#include "store/worker-probe.h"

#include <string.h>

#include "base/cache.h"
#include "base/clock.h"
#include "base/median.h"
#include "base/mem.h"
#include "store/act.h"
#include "store/kernel-probe.h"
#include "store/weight.h"

#define TYPE          FORMAT_Q4_K /* what most weights of most files are */
#define K             2048u
#define PRODUCT_BYTES ((size_t)4 << 20) /* of all nodes between two meetings: a layer's experts */
#define WORKER_BYTES  ((size_t)16 << 20) /* of panels, where they can be evicted before each run */
#define N_TOKEN       32u               /* of a prompt */
#define MIN_ROUND     5u
#define MAX_ROUND     64u

/* The panels of a node, [n_product, n_panel] of panel_bytes, and buffers for a product. */
struct part {
    uint8_t *panels;
    struct act x; /* [N_TOKEN, K] */
    float *y;     /* [N_TOKEN, n_panel * PANEL_ROWS] */
};

struct probe {
    const struct kern *kern;
    struct part part[TOPO_MAX_NODE];
    size_t panel_bytes;
    uint32_t n_panel; /* of a product on each node */
    unsigned n_product;
    uint64_t decode_ns, prompt_ns; /* of the last run */
};

static void multiply(struct worker *w, const struct probe *p, unsigned i, unsigned n_token)
{
    const struct part *part = &p->part[w->in];
    const struct kern_act x = act_view(&part->x);
    const uint8_t *panels = part->panels + (size_t)i * p->n_panel * p->panel_bytes;
    struct share share;
    uint32_t lo, hi;
    share_begin(&share, w, p->n_panel, weight_grain(w, p->n_panel, p->n_panel));
    while (share_next(&share, &lo, &hi)) {
        p->kern->matmul[TYPE](panels + lo * p->panel_bytes, (hi - lo) * PANEL_ROWS, &x, NULL, NULL,
                              n_token, part->y + lo * PANEL_ROWS, p->n_panel * PANEL_ROWS);
    }
    worker_all_barrier(w);
}

/* The worker's part of all panels of its node. */
static uint8_t *own_panels(const struct worker *w, const struct probe *p, size_t *bytes)
{
    uint32_t lo, hi;
    share_static(p->n_product * p->n_panel, w->iw, w->nw, &lo, &hi);
    *bytes = (hi - lo) * p->panel_bytes;
    return p->part[w->in].panels + lo * p->panel_bytes;
}

static void run(struct worker *w, void *arg)
{
    struct probe *p = arg;
    size_t bytes;
    const uint8_t *panels = own_panels(w, p, &bytes);
    cache_evict(panels, bytes);
    worker_all_barrier(w);
    const uint64_t begin_ns = clock_ns();
    for (unsigned i = 0; i < p->n_product; i++) {
        multiply(w, p, i, 1);
    }
    const uint64_t middle_ns = clock_ns();
    multiply(w, p, 0, N_TOKEN);
    if (w->ig == 0) {
        p->decode_ns = middle_ns - begin_ns;
        p->prompt_ns = clock_ns() - middle_ns;
    }
}

/* Bytes of one value, whose products mean nothing. */
static void touch(struct worker *w, void *arg)
{
    size_t bytes;
    uint8_t *panels = own_panels(w, arg, &bytes);
    memset(panels, 1, bytes);
}

static numoe_status prepare(struct probe *p, unsigned in, struct node_arena *arena,
                            numoe_error *err)
{
    struct part *part = &p->part[in];
    FORWARD_IF(node_arena_alloc(arena, (size_t)p->n_product * p->n_panel * p->panel_bytes,
                                &part->panels, err));
    FORWARD_IF(node_arena_alloc(arena, (size_t)N_TOKEN * p->n_panel * PANEL_ROWS * sizeof(float),
                                &part->y, err));
    FORWARD_IF(act_init(&part->x, arena, p->kern, K, N_TOKEN, NULL, err));
    for (unsigned t = 0; t < N_TOKEN; t++) {
        for (unsigned i = 0; i < K; i++) {
            part->x.f[t * K + i] = (float)((i + t) % 7) - 3;
        }
        act_convert(&part->x, p->kern, p->kern->act[TYPE], t);
    }
    return NUMOE_OK;
}

/* Workers of the pool that ran before are to sleep: they have the same CPUs. */
static void run_alone(struct pools *pools, struct probe *p)
{
    nanosleep(&(struct timespec){.tv_nsec = 2 * POOL_SLEEP_NS}, NULL);
    pools_run(pools, run, p);
}

static void compare(struct probe *p, struct pools *usual, struct pools *other, uint64_t ns,
                    struct worker_ratio *ratio)
{
    double decode[MAX_ROUND], prompt[MAX_ROUND];
    unsigned n = 0;
    pools_run(usual, touch, p);
    const uint64_t begin_ns = clock_ns();
    while (n < MIN_ROUND || (n < MAX_ROUND && clock_ns() - begin_ns < ns)) {
        run_alone(usual, p);
        const double usual_decode = (double)p->decode_ns, usual_prompt = (double)p->prompt_ns;
        run_alone(other, p);
        decode[n] = (double)p->decode_ns / usual_decode;
        prompt[n] = (double)p->prompt_ns / usual_prompt;
        n++;
    }
    *ratio = (struct worker_ratio){.decode = median_double(decode, n),
                                   .prompt = median_double(prompt, n)};
}

/* Of panels on all nodes. */
static uint64_t probe_bytes(const struct topo *topo, const struct pools *usual)
{
    const uint64_t most = kernel_probe_bytes(topo, usual);
    return CACHE_CAN_EVICT ? MIN(pools_n_worker(usual) * WORKER_BYTES, most) : most;
}

numoe_status worker_probe(const struct topo *topo, const struct kern *kern, struct pools *usual,
                          struct pools *other, uint64_t ns, struct worker_ratio *ratio,
                          numoe_error *err)
{
    struct node_arena *arena[TOPO_MAX_NODE] = {0};
    struct probe *p;
    numoe_status status = NUMOE_OK;
    FORWARD_IF(mem_new(&p, 1, sizeof *p, "worker probe", err));
    p->kern = kern;
    p->panel_bytes = PANEL_ROWS * format_row_bytes(format_find(TYPE), K);
    p->n_panel = (uint32_t)MAX(PRODUCT_BYTES / topo->n_node / p->panel_bytes, 1u);
    p->n_product =
        (unsigned)MAX(probe_bytes(topo, usual) / topo->n_node / (p->n_panel * p->panel_bytes), 1u);
    for (unsigned in = 0; status == NUMOE_OK && in < topo->n_node; in++) {
        status = node_arena_new(topo, in, "worker probe", &arena[in], err);
        if (status == NUMOE_OK) {
            status = prepare(p, in, arena[in], err);
        }
    }
    if (status == NUMOE_OK) {
        compare(p, usual, other, ns, ratio);
    }
    for (unsigned in = 0; in < topo->n_node; in++) {
        node_arena_free(arena[in]);
    }
    mem_free(p);
    return status;
}
