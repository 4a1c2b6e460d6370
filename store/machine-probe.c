/* Measures what a prediction needs to know of this machine. Every part is what a token meets:
 * products of each type that matters, meetings, the turn of a step, a norm with its quantization.
 */
#include "base/clock.h"
#include "base/median.h"
#include "base/mem.h"
#include "numa/bandwidth.h"
#include "store/act.h"
#include "store/kernel-probe.h"
#include "store/placement.h"

#define PRODUCTS_NS      UINT64_C(80000000) /* for each type */
#define MIN_PART         0.02               /* of a token's bytes that a type must have */
#define N_ROUND          31                 /* of which the median counts */
#define N_MEETING        200                /* a round */
#define N_STEP           100
#define MAX_STEP_S       1e-3            /* longer ones are waited for in the same way */
#define BETWEEN_STEPS_NS UINT64_C(10000) /* a token is chosen */
#define N_NORM           64              /* a round */
#define DEFAULT_EMBD     2048u

/* ------------------------------------------------------------------ products */

/* One more product of the type, among those of its size. Beyond what there is room for, a type is
 * judged by its others. */
static void add_product(struct kernel_work *work, const struct shape *s, double panels)
{
    const unsigned n_panel = MAX((unsigned)(panels + 0.5), 1u);
    unsigned i = 0;
    while (i < work->n_product &&
           (work->product[i].k != s->k || work->product[i].n_panel != n_panel ||
            work->product[i].routed != shape_is_routed(s))) {
        i++;
    }
    if (i < KERNEL_PROBE_PRODUCTS) {
        work->product[i].k = s->k;
        work->product[i].n_panel = n_panel;
        work->product[i].routed = shape_is_routed(s);
        work->product[i].n++;
        work->n_product = MAX(work->n_product, i + 1);
    }
}

/* Bytes of a token by type, and in which products they are. */
static void sum_types(const struct shapes *shapes, double *bytes, struct kernel_work *work)
{
    for (unsigned is = 0; is < shapes->n; is++) {
        const struct shape *s = &shapes->shape[is];
        const double own = shape_token_bytes(shapes, s);
        if (own > 0) {
            bytes[s->format_id] += own;
            add_product(&work[s->format_id], s, own / (double)shape_panel_bytes(s));
        }
    }
}

/* A type that a token has little of is taken for what all others are on average. */
static numoe_status probe_types(const struct topo *topo, struct pools *pools,
                                const struct kern *kern, const struct shapes *shapes,
                                const uint64_t most_bytes[2], double total_bps,
                                struct kernel_work *work, struct placement_machine *m,
                                numoe_error *err)
{
    double bytes[FORMAT_MAX] = {0}, sum = 0, measured = 0, seconds = 0, bps;
    sum_types(shapes, bytes, work);
    for (unsigned id = 0; id < FORMAT_MAX; id++) {
        sum += bytes[id];
    }
    for (unsigned id = 0; id < FORMAT_MAX; id++) {
        work[id].format_id = id;
        if (bytes[id] > 0 && bytes[id] >= MIN_PART * sum) {
            FORWARD_IF(kernel_probe(pools, topo, kern, &work[id], m->meet_node_s, most_bytes,
                                    PRODUCTS_NS, &bps, err));
            m->format_share[id] = MIN(bps / total_bps, 1.0);
            measured += bytes[id];
            seconds += bytes[id] / m->format_share[id];
        }
    }
    m->kernel_share = seconds > 0 ? measured / seconds : PLACEMENT_KERNEL_SHARE;
    return NUMOE_OK;
}

static numoe_status probe_products(const struct topo *topo, struct pools *pools,
                                   const struct kern *kern, const struct shapes *shapes,
                                   const uint64_t most_bytes[2], double total_bps,
                                   struct placement_machine *m, numoe_error *err)
{
    struct kernel_work *work;
    FORWARD_IF(mem_new(&work, FORMAT_MAX, sizeof *work, "kernel probe", err));
    numoe_status status =
        probe_types(topo, pools, kern, shapes, most_bytes, total_bps, work, m, err);
    mem_free(work);
    return status;
}

/* ------------------------------------------------------------------ meetings */

struct meeting_probe {
    double node_s[N_ROUND], all_s[N_ROUND];
};

static void meet(struct worker *w, void *arg)
{
    struct meeting_probe *p = arg;
    for (unsigned i = 0; i < N_ROUND; i++) {
        worker_all_barrier(w);
        const uint64_t begin_ns = clock_ns();
        for (unsigned j = 0; j < N_MEETING; j++) {
            worker_node_barrier(w);
        }
        const uint64_t middle_ns = clock_ns();
        for (unsigned j = 0; j < N_MEETING; j++) {
            worker_all_barrier(w);
        }
        if (w->ig == 0) {
            p->node_s[i] = (double)(middle_ns - begin_ns) * 1e-9 / N_MEETING;
            p->all_s[i] = (double)(clock_ns() - middle_ns) * 1e-9 / N_MEETING;
        }
    }
}

static void probe_meetings(struct pools *pools, struct placement_machine *m)
{
    struct meeting_probe p;
    pools_run(pools, meet, &p);
    m->meet_node_s = median_double(p.node_s, N_ROUND);
    m->meet_all_s = median_double(p.all_s, N_ROUND);
}

/* ------------------------------------------------------------------ the turn of a step */

static void pass_time(uint64_t ns)
{
    const uint64_t begin_ns = clock_ns();
    while (clock_ns() - begin_ns < ns) {
    }
}

struct step_probe {
    uint64_t work_ns, first_ns, last_ns; /* when worker 0 began and ended */
};

static void work(struct worker *w, void *arg)
{
    struct step_probe *p = arg;
    const uint64_t begin_ns = clock_ns();
    pass_time(p->work_ns);
    worker_all_barrier(w);
    if (w->ig == 0) {
        p->first_ns = begin_ns;
        p->last_ns = clock_ns();
    }
}

/* Whoever calls for a step sleeps while it lasts, if that is long, and workers may while it chooses
 * a token: both are as in a token of work_s seconds. */
static void probe_step(struct pools *pools, double work_s, struct placement_machine *m)
{
    double step_s[N_STEP];
    struct step_probe p = {.work_ns = (uint64_t)(MIN(work_s, MAX_STEP_S) * 1e9)};
    for (unsigned i = 0; i < N_STEP; i++) {
        pass_time(BETWEEN_STEPS_NS);
        const uint64_t begin_ns = clock_ns();
        pools_run(pools, work, &p);
        step_s[i] = (double)(clock_ns() - begin_ns - (p.last_ns - p.first_ns)) * 1e-9;
    }
    m->step_s = median_double(step_s, N_STEP);
}

/* ------------------------------------------------------------------ activations */

struct norm_probe {
    const struct kern *kern;
    struct act x;
    double element_s[N_ROUND];
};

static void norm(struct worker *w, void *arg)
{
    struct norm_probe *p = arg;
    if (w->ig != 0) {
        return;
    }
    for (unsigned i = 0; i < p->x.k; i++) {
        p->x.f[i] = (float)(i % 7) - 3;
    }
    for (unsigned i = 0; i < N_ROUND; i++) {
        const uint64_t begin_ns = clock_ns();
        for (unsigned j = 0; j < N_NORM; j++) {
            p->kern->rmsnorm(p->x.f, NULL, p->x.k, 1e-6f, p->x.f);
            act_convert(&p->x, p->kern, p->kern->act[FORMAT_Q8_0], 0);
        }
        p->element_s[i] = (double)(clock_ns() - begin_ns) * 1e-9 / N_NORM / p->x.k;
    }
}

static numoe_status probe_norm(const struct topo *topo, struct pools *pools,
                               const struct kern *kern, unsigned n_embd,
                               struct placement_machine *m, numoe_error *err)
{
    struct norm_probe p = {.kern = kern};
    struct node_arena *arena = NULL;
    const unsigned k = n_embd > 0 && n_embd % 32 == 0 ? n_embd : DEFAULT_EMBD;
    FORWARD_IF(node_arena_new(topo, 0, "norm probe", &arena, err));
    numoe_status status = act_init(&p.x, arena, kern, k, 1, NULL, err);
    if (status == NUMOE_OK) {
        pools_run(pools, norm, &p);
        m->element_s = median_double(p.element_s, N_ROUND);
    }
    node_arena_free(arena);
    return status;
}

/* ------------------------------------------------------------------ all */

numoe_status placement_probe(const struct topo *topo, struct pools *pools, const struct kern *kern,
                             const struct shapes *shapes, struct placement_machine *machine,
                             numoe_error *err)
{
    double total_bps = 0, node_bps[TOPO_MAX_NODE];
    struct placement_machine m = *machine;
    uint64_t llc_bytes = 0, most_bytes[2] = {UINT64_MAX, UINT64_MAX};
    for (unsigned in = 0; in < m.n_node; in++) {
        llc_bytes += topo->node[in].llc_bytes;
    }
    /* In caches: the token before has read the same, but for experts, any of which may have been
     * read last. */
    const bool cached = shapes_bytes(shapes) < llc_bytes;
    if (cached) {
        most_bytes[false] = (uint64_t)placement_token_bytes(shapes);
        most_bytes[true] = shapes_bytes(shapes);
    }
    FORWARD_IF(bandwidth_read_within(pools, topo, most_bytes[false], &total_bps, node_bps, err));
    for (unsigned in = 0; in < m.n_node; in++) {
        m.node[in].read_bps = node_bps[in];
    }
    m.bps_source = cached ? "measured, in caches" : "measured";
    probe_meetings(pools, &m);
    FORWARD_IF(probe_products(topo, pools, kern, shapes, most_bytes, total_bps, &m, err));
    probe_step(pools, placement_token_bytes(shapes) / (total_bps * m.kernel_share), &m);
    FORWARD_IF(probe_norm(topo, pools, kern, shapes->n_embd, &m, err));
    *machine = m;
    return NUMOE_OK;
}
