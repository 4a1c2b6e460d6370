/* Owns the probe of kernels: panels of one byte value, whose products mean nothing, as many as are
 * larger than the last-level caches. */
#include "store/kernel-probe.h"

#include <string.h>

#include "base/clock.h"
#include "base/median.h"
#include "base/mem.h"
#include "store/act.h"
#include "store/weight.h"

#define LLC_MULTIPLE 3
#define MAX_PASS     256
#define MIN_PASS     4
#define MIN_BYTES    ((size_t)16 << 20) /* of a worker */
#define MAX_BYTES    ((size_t)128 << 20)
#define SMALL_SHARE  8    /* at most this fraction of the memory that is free */
#define FILL         0x3c /* no type makes a denormal number of it */
#define ACT_MULTIPLE 256u /* every form of an activation has whole blocks */
#define LEAST_PART   0.1  /* of a pass is products, whatever meetings were measured to take */

/* A node's part of a product. */
struct part {
    unsigned k, n_panel, n; /* n: times in a pass */
    size_t panel_bytes;
    bool routed;
};

struct probe {
    const struct kern *kern;
    uint32_t format_id;
    size_t worker_bytes[2]; /* of each worker: its part of the node's panels, [routed] */
    unsigned n_part;
    struct part part[KERNEL_PROBE_PRODUCTS];
    uint8_t *panels[TOPO_MAX_NODE][2];
    float *y[TOPO_MAX_NODE]; /* [rows of the largest part] */
    struct act x[TOPO_MAX_NODE];
    uint64_t begin_ns, enough_ns;
    uint64_t pass_ns[MAX_PASS]; /* the first one touches everything and is not counted */
    unsigned n_pass;
    bool more;
};

/* The workers make the input together and meet, as before most products of a token: so parts of it
 * come from other workers' caches. Then panels are divided as in store/weight.c. */
static void multiply(struct worker *w, const struct probe *p, const struct part *part,
                     const uint8_t *panels)
{
    struct act input = p->x[w->in];
    struct share share;
    uint32_t lo, hi;
    input.k = part->k;
    act_convert_shared(&input, p->kern, p->kern->act[p->format_id], 1, w);
    worker_node_barrier(w);
    const struct kern_act x = act_view(&input);
    share_begin(&share, w, part->n_panel, weight_grain(w, part->n_panel, part->n_panel));
    while (share_next(&share, &lo, &hi)) {
        p->kern->matmul[p->format_id](panels + lo * part->panel_bytes, (hi - lo) * PANEL_ROWS, &x,
                                      NULL, NULL, 1, p->y[w->in] + (size_t)lo * PANEL_ROWS, 0);
    }
    worker_node_barrier(w);
}
#define PRODUCT_MEETINGS 2

/* All products, each on the memory before that of the last one: what prefetching has read beyond
 * the end of a matrix is not what comes next, as in a token. at[routed] goes on from pass to pass.
 */
static void pass(struct worker *w, const struct probe *p, size_t *at)
{
    for (unsigned ip = 0; ip < p->n_part; ip++) {
        const struct part *part = &p->part[ip];
        const size_t node_bytes = w->nw * p->worker_bytes[part->routed];
        const size_t bytes = round_up(part->n_panel * part->panel_bytes, CACHE_LINE_BYTES);
        size_t *from = &at[part->routed];
        for (unsigned i = 0; i < part->n; i++) {
            *from = (*from >= bytes ? *from : node_bytes) - bytes;
            multiply(w, p, part, p->panels[w->in][part->routed] + *from);
        }
    }
}

static void run(struct worker *w, void *arg)
{
    struct probe *p = arg;
    size_t at[2] = {0, 0};
    for (unsigned routed = 0; routed < 2; routed++) {
        const size_t bytes = p->worker_bytes[routed];
        memset(p->panels[w->in][routed] + w->iw * bytes, FILL, bytes);
    }
    if (w->ig == 0) {
        p->begin_ns = clock_ns();
    }
    do {
        worker_all_barrier(w);
        const uint64_t begin_ns = clock_ns();
        pass(w, p, at);
        worker_all_barrier(w);
        if (w->ig == 0) {
            const uint64_t now_ns = clock_ns();
            p->pass_ns[p->n_pass++] = now_ns - begin_ns;
            p->more = p->n_pass < MIN_PASS ||
                      (p->n_pass < MAX_PASS && now_ns - p->begin_ns < p->enough_ns);
        }
        worker_all_barrier(w);
    } while (p->more);
}

/* ------------------------------------------------------------------ set-up */

uint64_t kernel_probe_bytes(const struct topo *topo, const struct pools *pools)
{
    size_t bytes = MIN_BYTES;
    for (unsigned in = 0; in < pools_n_node(pools); in++) {
        bytes = MAX(bytes, LLC_MULTIPLE * topo->node[in].llc_bytes / pools_node_workers(pools, in));
    }
    const uint64_t all_bytes = (uint64_t)MIN(bytes, MAX_BYTES) * pools_n_worker(pools);
    return MIN(all_bytes, topo->host_room_bytes / SMALL_SHARE);
}

static size_t choose_bytes(const struct topo *topo, const struct pools *pools, uint64_t most_bytes)
{
    return MIN(kernel_probe_bytes(topo, pools), most_bytes) / pools_n_worker(pools);
}

/* Every product of the token at least once; as often as a token has it, if all that is no more than
 * most_bytes. */
static void choose_parts(struct probe *p, const struct pools *pools, const struct kernel_work *work,
                         double most_bytes)
{
    const struct format *format = format_find(work->format_id);
    double bytes = 0;
    p->n_part = work->n_product;
    for (unsigned ip = 0; ip < p->n_part; ip++) {
        const struct kernel_product *product = &work->product[ip];
        struct part *part = &p->part[ip];
        part->k = product->k;
        part->routed = product->routed;
        part->panel_bytes = PANEL_ROWS * format_row_bytes(format, product->k);
        part->n_panel = MAX(product->n_panel / pools_n_node(pools), 1u);
        bytes += (double)product->n * product->n_panel * (double)part->panel_bytes;
    }
    for (unsigned ip = 0; ip < p->n_part; ip++) {
        const double n = work->product[ip].n * MIN(most_bytes / bytes, 1.0);
        p->part[ip].n = MAX((unsigned)(n + 0.5), 1u);
    }
}

/* Where the type has products, every node's memory has room for the largest one. */
static void choose_memory(struct probe *p, const struct pools *pools, size_t dense_bytes,
                          size_t routed_bytes)
{
    for (unsigned ip = 0; ip < p->n_part; ip++) {
        const struct part *part = &p->part[ip];
        size_t *bytes = &p->worker_bytes[part->routed];
        *bytes = MAX(*bytes, part->routed ? routed_bytes : dense_bytes);
        for (unsigned in = 0; in < pools_n_node(pools); in++) {
            const unsigned nw = pools_node_workers(pools, in);
            *bytes = MAX(*bytes, (part->n_panel * part->panel_bytes + nw - 1) / nw);
        }
        *bytes = round_up(*bytes, CACHE_LINE_BYTES);
    }
}

/* Activations are as long as the longest row. */
static numoe_status prepare(struct probe *p, const struct pools *pools, unsigned in,
                            struct node_arena *arena, numoe_error *err)
{
    const size_t nw = pools_node_workers(pools, in);
    unsigned k = 0, n_panel = 0;
    for (unsigned ip = 0; ip < p->n_part; ip++) {
        k = MAX(k, p->part[ip].k);
        n_panel = MAX(n_panel, p->part[ip].n_panel);
    }
    for (unsigned routed = 0; routed < 2; routed++) {
        FORWARD_IF(
            node_arena_alloc(arena, nw * p->worker_bytes[routed], &p->panels[in][routed], err));
    }
    FORWARD_IF(
        node_arena_alloc(arena, (size_t)n_panel * PANEL_ROWS * sizeof(float), &p->y[in], err));
    FORWARD_IF(
        act_init(&p->x[in], arena, p->kern, (unsigned)round_up(k, ACT_MULTIPLE), 1, NULL, err));
    for (unsigned i = 0; i < p->x[in].k; i++) {
        p->x[in].f[i] = (float)(i % 7) - 3;
    }
    return NUMOE_OK;
}

static double find_bps(struct probe *p, unsigned n_node, double meet_s)
{
    const double s = (double)MAX(median_u64(p->pass_ns + 1, p->n_pass - 1), 1u) * 1e-9;
    double bytes = 0, n = 0;
    for (unsigned ip = 0; ip < p->n_part; ip++) {
        const struct part *part = &p->part[ip];
        bytes += (double)n_node * part->n * part->n_panel * (double)part->panel_bytes;
        n += part->n;
    }
    return bytes / MAX(s - n * PRODUCT_MEETINGS * meet_s, LEAST_PART * s);
}

numoe_status kernel_probe(struct pools *pools, const struct topo *topo, const struct kern *kern,
                          const struct kernel_work *work, double meet_s,
                          const uint64_t most_bytes[2], uint64_t ns, double *total_bps,
                          numoe_error *err)
{
    const unsigned n_node = pools_n_node(pools);
    struct node_arena *arena[TOPO_MAX_NODE] = {0};
    struct probe *p;
    numoe_status status = NUMOE_OK;
    FORWARD_IF(mem_new(&p, 1, sizeof *p, "kernel probe", err));
    p->kern = kern;
    p->format_id = work->format_id;
    p->enough_ns = ns;
    const size_t dense_bytes = choose_bytes(topo, pools, most_bytes[0]);
    const size_t routed_bytes = choose_bytes(topo, pools, most_bytes[1]);
    choose_parts(p, pools, work, (double)dense_bytes * pools_n_worker(pools));
    choose_memory(p, pools, dense_bytes, routed_bytes);
    for (unsigned in = 0; status == NUMOE_OK && in < n_node; in++) {
        status = node_arena_new(topo, in, "kernel probe", &arena[in], err);
        if (status == NUMOE_OK) {
            status = prepare(p, pools, in, arena[in], err);
        }
    }
    if (status == NUMOE_OK) {
        pools_run(pools, run, p);
        *total_bps = find_bps(p, n_node, meet_s);
    }
    for (unsigned in = 0; in < n_node; in++) {
        node_arena_free(arena[in]);
    }
    mem_free(p);
    return status;
}
