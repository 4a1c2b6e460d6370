/* Owns the probe of kernels: panels of one byte value, whose products mean nothing, as many as are
 * larger than the last-level caches. */
#include "store/kernel-probe.h"

#include <string.h>

#include "base/clock.h"
#include "base/median.h"
#include "base/mem.h"
#include "store/act.h"

#define LLC_MULTIPLE 3
#define MAX_PASS     256
#define MIN_PASS     4
#define MIN_BYTES    ((size_t)16 << 20) /* of a worker */
#define MAX_BYTES    ((size_t)128 << 20)
#define SMALL_SHARE  8 /* at most this fraction of the memory that is free */

struct probe {
    const struct kern *kern;
    uint32_t format_id;
    size_t panel_bytes, n_panel; /* of each worker */
    uint8_t *panels[TOPO_MAX_NODE];
    float *y[TOPO_MAX_NODE]; /* [nw, n_panel * PANEL_ROWS] */
    struct act x[TOPO_MAX_NODE];
    uint64_t begin_ns, enough_ns;
    uint64_t pass_ns[MAX_PASS]; /* the first one touches everything and is not counted */
    unsigned n_pass;
    bool more;
};

static void run(struct worker *w, void *arg)
{
    struct probe *p = arg;
    const unsigned n_row = (unsigned)p->n_panel * PANEL_ROWS;
    uint8_t *part = p->panels[w->in] + w->iw * p->n_panel * p->panel_bytes;
    float *y = p->y[w->in] + (size_t)w->iw * n_row;
    const struct kern_act x = act_view(&p->x[w->in]);
    memset(part, 1, p->n_panel * p->panel_bytes);
    if (w->ig == 0) {
        p->begin_ns = clock_ns();
    }
    do {
        worker_all_barrier(w);
        const uint64_t begin_ns = clock_ns();
        p->kern->matmul[p->format_id](part, n_row, &x, NULL, NULL, 1, y, n_row);
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

static double median_seconds(struct probe *p)
{
    return (double)MAX(median_u64(p->pass_ns + 1, p->n_pass - 1), 1u) * 1e-9;
}

static size_t choose_panels(const struct topo *topo, const struct pools *pools, size_t panel_bytes,
                            uint64_t most_bytes)
{
    size_t bytes = MIN_BYTES;
    for (unsigned in = 0; in < pools_n_node(pools); in++) {
        bytes = MAX(bytes, LLC_MULTIPLE * topo->node[in].llc_bytes / pools_node_workers(pools, in));
    }
    const uint64_t room = topo->host_room_bytes / SMALL_SHARE / pools_n_worker(pools);
    return MAX(MIN(MIN(MIN(bytes, MAX_BYTES), room), most_bytes) / panel_bytes, 1u);
}

static numoe_status prepare(struct probe *p, const struct pools *pools, unsigned in, unsigned k,
                            struct node_arena *arena, numoe_error *err)
{
    const size_t nw = pools_node_workers(pools, in);
    FORWARD_IF(node_arena_alloc(arena, nw * p->n_panel * p->panel_bytes, &p->panels[in], err));
    FORWARD_IF(
        node_arena_alloc(arena, nw * p->n_panel * PANEL_ROWS * sizeof(float), &p->y[in], err));
    FORWARD_IF(act_init(&p->x[in], arena, p->kern, k, 1, NULL, err));
    for (unsigned i = 0; i < k; i++) {
        p->x[in].f[i] = (float)(i % 7) - 3;
    }
    act_convert(&p->x[in], p->kern, p->kern->act[p->format_id], 0);
    return NUMOE_OK;
}

numoe_status kernel_probe(struct pools *pools, const struct topo *topo, const struct kern *kern,
                          uint32_t format_id, unsigned k, uint64_t most_bytes, uint64_t ns,
                          double *total_bps, numoe_error *err)
{
    const unsigned n_node = pools_n_node(pools);
    struct node_arena *arena[TOPO_MAX_NODE] = {0};
    struct probe *p;
    numoe_status status = NUMOE_OK;
    FORWARD_IF(mem_new(&p, 1, sizeof *p, "kernel probe", err));
    p->kern = kern;
    p->format_id = format_id;
    p->panel_bytes = PANEL_ROWS * format_row_bytes(format_find(format_id), k);
    p->n_panel = choose_panels(topo, pools, p->panel_bytes, most_bytes / pools_n_worker(pools));
    p->enough_ns = ns;
    for (unsigned in = 0; status == NUMOE_OK && in < n_node; in++) {
        status = node_arena_new(topo, in, "kernel probe", &arena[in], err);
        if (status == NUMOE_OK) {
            status = prepare(p, pools, in, k, arena[in], err);
        }
    }
    if (status == NUMOE_OK) {
        pools_run(pools, run, p);
        const double bytes =
            (double)pools_n_worker(pools) * (double)p->n_panel * (double)p->panel_bytes;
        *total_bps = bytes / median_seconds(p);
    }
    for (unsigned in = 0; in < n_node; in++) {
        node_arena_free(arena[in]);
    }
    mem_free(p);
    return status;
}
