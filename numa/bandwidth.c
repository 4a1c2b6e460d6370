/* Owns the read bandwidth probe: every worker reads memory of its own node in a straight line.
 * Loads are summed as integers, several sums at a time, so that neither arithmetic nor its latency
 * is what is measured.
 */
#include "numa/bandwidth.h"

#include <stdlib.h>
#include <string.h>

#include "base/cache.h"
#include "base/clock.h"
#include "base/mem.h"

#define MAX_PASS       64
#define MIN_PASS       5
#define PROBE_NS       UINT64_C(200000000)
#define MIN_PART_BYTES ((size_t)8 << 20)
#define LLC_MULTIPLE   4 /* of the last-level cache, where nothing is evicted between passes */
#define SMALL_SHARE    8 /* at most this fraction of the memory that is free */

#define STEP_BYTES 256 /* of one turn of the read loops */

struct probe {
    size_t part_bytes[TOPO_MAX_NODE]; /* of each worker of the node */
    char *buffer[TOPO_MAX_NODE];      /* [nw, part_bytes] */
    uint64_t node_ns[TOPO_MAX_NODE][MAX_PASS], all_ns[MAX_PASS];
    uint64_t sum[POOL_MAX_WORKER]; /* makes the reads observable */
    uint64_t begin_ns;             /* Sync: written by worker 0 before a barrier */
    unsigned n_pass;
    bool evicts; /* before each pass */
    bool more;
};

typedef uint64_t vec16 __attribute__((vector_size(16)));

static uint64_t read_base(const char *bytes, size_t n)
{
    const vec16 *p = (const vec16 *)bytes;
    vec16 s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0}, s4 = {0}, s5 = {0}, s6 = {0}, s7 = {0};
    for (size_t i = 0; i < n / sizeof(vec16); i += 8) {
        s0 += p[i], s1 += p[i + 1], s2 += p[i + 2], s3 += p[i + 3];
        s4 += p[i + 4], s5 += p[i + 5], s6 += p[i + 6], s7 += p[i + 7];
    }
    s0 += s1 + s2 + s3 + s4 + s5 + s6 + s7;
    return s0[0] + s0[1];
}

#if defined(__x86_64__)
typedef uint64_t vec64 __attribute__((vector_size(64)));

/* A few cores alone read up to a tenth faster so; with many it makes no difference. */
__attribute__((target("avx512f"))) static uint64_t read_avx512(const char *bytes, size_t n)
{
    const vec64 *p = (const vec64 *)bytes;
    vec64 s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    for (size_t i = 0; i < n / sizeof(vec64); i += 4) {
        s0 += p[i], s1 += p[i + 1], s2 += p[i + 2], s3 += p[i + 3];
    }
    s0 += s1 + s2 + s3;
    return s0[0] + s0[1] + s0[2] + s0[3] + s0[4] + s0[5] + s0[6] + s0[7];
}
#endif

static uint64_t read_all(const char *bytes, size_t n)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) {
        return read_avx512(bytes, n);
    }
#endif
    return read_base(bytes, n);
}

/* All are as slow as the slowest node. */
static void end_pass(struct probe *probe, unsigned n_node, uint64_t since_start_ns)
{
    unsigned pass = probe->n_pass++;
    for (unsigned in = 0; in < n_node; in++) {
        probe->all_ns[pass] = MAX(probe->all_ns[pass], probe->node_ns[in][pass]);
    }
    probe->more =
        probe->n_pass < MIN_PASS || (probe->n_pass < MAX_PASS && since_start_ns < PROBE_NS);
}

static void probe_run(struct worker *w, void *arg)
{
    struct probe *probe = arg;
    size_t n = probe->part_bytes[w->in];
    char *part = probe->buffer[w->in] + w->iw * n;
    memset(part, 1, n);
    uint64_t sum = 0, start = clock_ns();
    do {
        unsigned pass = probe->n_pass;
        if (probe->evicts) {
            cache_evict(part, n);
        }
        worker_all_barrier(w);
        uint64_t begin = clock_ns();
        sum += read_all(part, n);
        worker_node_barrier(w);
        if (w->iw == 0) {
            probe->node_ns[w->in][pass] = clock_ns() - begin;
        }
        worker_all_barrier(w);
        if (w->ig == 0) {
            end_pass(probe, w->n_node, clock_ns() - start);
        }
        worker_all_barrier(w);
    } while (probe->more);
    probe->sum[w->ig] = sum;
}

/* Of the shortest pass: what others do with CPUs and memory makes passes longer, and who asks wants
 * to know, for weeks maybe, what can be read. */
static double best_bps(uint64_t bytes, const uint64_t *ns, unsigned n)
{
    uint64_t best_ns = UINT64_MAX;
    for (unsigned i = 0; i < n; i++) {
        best_ns = MIN(best_ns, ns[i]);
    }
    return (double)bytes * 1e9 / (double)MAX(best_ns, 1u);
}

/* More than what caches hold of it, but a small part of what is free. */
static size_t choose_part_bytes(const struct topo *topo, unsigned in, unsigned nw, unsigned n_node,
                                uint64_t most_bytes, bool evicts)
{
    const struct topo_node *node = &topo->node[in];
    uint64_t room = topo->host_room_bytes / n_node;
    if (node->available_bytes > 0) {
        room = MIN(room, node->available_bytes);
    }
    uint64_t want =
        evicts ? MIN_PART_BYTES : MAX(LLC_MULTIPLE * node->llc_bytes / nw, MIN_PART_BYTES);
    want = MIN(MIN(want, room / SMALL_SHARE / nw), most_bytes);
    return round_up((size_t)MAX(want, STEP_BYTES), STEP_BYTES);
}

numoe_status bandwidth_read(struct pools *pools, const struct topo *topo, double *total_bps,
                            double *per_node_bps, numoe_error *err)
{
    return bandwidth_read_within(pools, topo, UINT64_MAX, total_bps, per_node_bps, err);
}

numoe_status bandwidth_read_within(struct pools *pools, const struct topo *topo,
                                   uint64_t most_bytes, double *total_bps, double *per_node_bps,
                                   numoe_error *err)
{
    unsigned n_node = pools_n_node(pools);
    struct node_arena *arena[TOPO_MAX_NODE] = {0};
    struct probe *probe;
    FORWARD_IF(mem_new(&probe, 1, sizeof(*probe), "bandwidth probe", err));
    numoe_status st = NUMOE_OK;
    uint64_t bytes = 0;
    probe->evicts = CACHE_CAN_EVICT && most_bytes == UINT64_MAX;
    for (unsigned in = 0; st == NUMOE_OK && in < n_node; in++) {
        unsigned nw = pools_node_workers(pools, in);
        probe->part_bytes[in] =
            choose_part_bytes(topo, in, nw, n_node, most_bytes / pools_n_worker(pools),
                              probe->evicts);
        bytes += probe->part_bytes[in] * nw;
        st = node_arena_new(topo, in, "bandwidth probe", &arena[in], err);
        if (st == NUMOE_OK) {
            st = node_arena_alloc(arena[in], probe->part_bytes[in] * nw, &probe->buffer[in], err);
        }
    }
    if (st == NUMOE_OK) {
        pools_run(pools, probe_run, probe);
        *total_bps = best_bps(bytes, probe->all_ns, probe->n_pass);
        for (unsigned in = 0; per_node_bps && in < n_node; in++) {
            uint64_t node_bytes = probe->part_bytes[in] * pools_node_workers(pools, in);
            per_node_bps[in] = best_bps(node_bytes, probe->node_ns[in], probe->n_pass);
        }
    }
    for (unsigned in = 0; in < n_node; in++) {
        node_arena_free(arena[in]);
    }
    mem_free(probe);
    return st;
}
