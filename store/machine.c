/* What a plan has to know of the machine: room and bandwidth of the nodes that have workers. */
#include "numa/bandwidth.h"
#include "numa/pages.h"
#include "numa/room.h"
#include "store/placement.h"

/* What counts as mapped beside what is planned: stacks, ends of regions. */
#define MAPPED_WORKER_BYTES ((uint64_t)2 << 20)
#define MAPPED_BYTES        ((uint64_t)16 << 20)

#define ASSUMED_WORKER_BPS 10e9
#define ASSUMED_NODE_BPS   200e9
#define ASSUMED_REMOTE     2.0 /* a read from another node, where no distances are known */

/* Reserved huge pages are used as a whole, and no control group counts them as memory; of the rest
 * a part stays for the kernel and everybody else. The arenas keep to the same. */
static uint64_t huge_bytes(const struct topo *topo, unsigned in, enum pages_policy policy)
{
    const struct topo_node *node = &topo->node[in];
    const bool use = policy == PAGES_POLICY_AUTO || policy == PAGES_POLICY_HUGE;
    return use ? node->huge_2m_free * TOPO_HUGE_2M + node->huge_1g_free * TOPO_HUGE_1G : 0;
}

static uint64_t room_bytes(const struct topo *topo, unsigned in)
{
    const struct topo_node *node = &topo->node[in];
    const uint64_t bytes = topo->is_this_machine ? node->available_bytes : node->memory_bytes;
    return bytes > 0 ? room_less_reserve(bytes) : UINT64_MAX;
}

static uint64_t plus(uint64_t bytes, uint64_t more)
{
    return more > UINT64_MAX - bytes ? UINT64_MAX : bytes + more;
}

static double remote_factor(const struct topo *topo)
{
    double sum = 0;
    unsigned n = 0;
    for (unsigned i = 0; topo->distance != NULL && i < topo->n_node; i++) {
        for (unsigned j = 0; j < topo->n_node; j++) {
            sum += i != j ? topo->distance[i * topo->n_node + j] / 10.0 : 0;
            n += i != j;
        }
    }
    return n > 0 ? MAX(sum / n, 1.0) : ASSUMED_REMOTE;
}

static bool platform_knows(const struct topo *topo, unsigned n_node)
{
    for (unsigned in = 0; in < n_node; in++) {
        if (!(topo->node[in].read_bps > 0) || topo->node[in].n_core == 0) {
            return false;
        }
    }
    return true;
}

static numoe_status find_bandwidth(const struct topo *topo, struct pools *pools, bool may_measure,
                                   struct placement_machine *m, numoe_error *err)
{
    double total_bps, bps[TOPO_MAX_NODE];
    const bool known = platform_knows(topo, m->n_node);
    const bool measure = !known && may_measure && topo->is_this_machine && m->n_node > 1;
    if (measure) {
        FORWARD_IF(bandwidth_read(pools, topo, &total_bps, bps, err));
    }
    for (unsigned in = 0; in < m->n_node; in++) {
        const unsigned n_worker = m->node[in].n_worker, n_core = topo->node[in].n_core;
        if (known) {
            m->node[in].read_bps = topo->node[in].read_bps * MIN(n_worker, n_core) / n_core;
        } else {
            m->node[in].read_bps =
                measure ? bps[in]
                        : MIN(ASSUMED_WORKER_BPS * MIN(n_worker, n_core), ASSUMED_NODE_BPS);
        }
    }
    m->bps_is_measured = measure;
    m->bps_source = known ? "from the platform" : measure ? "measured" : "assumed";
    return NUMOE_OK;
}

numoe_status placement_measure(const struct topo *topo, struct pools *pools,
                               struct placement_machine *machine, numoe_error *err)
{
    return find_bandwidth(topo, pools, true, machine, err);
}

static void lower_limit(struct placement_machine *m, uint64_t room_bytes, const char *source)
{
    if (room_bytes != UINT64_MAX && room_less_reserve(room_bytes) <= m->limit_bytes) {
        m->limit_bytes = room_less_reserve(room_bytes);
        m->limit_source = source;
    }
}

static void lower_limit_of_process(const struct topo *topo, const struct pools *pools,
                                   struct placement_machine *m)
{
    const uint64_t bytes = topo->process_room_bytes;
    const uint64_t beside = MAPPED_BYTES + pools_n_worker(pools) * MAPPED_WORKER_BYTES;
    if (bytes != UINT64_MAX) {
        lower_limit(m, bytes - MIN(bytes, beside), topo->process_room_source);
    }
}

void placement_machine_run_here(const struct topo *topo, const struct pools *pools,
                                struct placement_machine *machine)
{
    if (!topo->is_this_machine) {
        lower_limit(machine, topo->host_room_bytes, topo->host_room_source);
        lower_limit_of_process(topo, pools, machine);
    }
}

numoe_status placement_machine_init(const struct topo *topo, struct pools *pools, bool may_measure,
                                    struct placement_machine *out, numoe_error *err)
{
    /* Of another machine nothing is known but what is limited on purpose. */
    const bool limited =
        !topo->is_this_machine || topo->memory_limit_bytes <= topo->host_room_bytes;
    struct placement_machine m = {
        .n_node = pools_n_node(pools),
        .remote_factor = remote_factor(topo),
        .kernel_share = PLACEMENT_KERNEL_SHARE,
        .limit_bytes =
            room_less_reserve(limited ? topo->memory_limit_bytes : topo->host_room_bytes),
        .room_source = topo->is_this_machine ? "available" : "in all",
        .limit_source =
            limited ? "the limit of the job or its control group" : topo->host_room_source,
        .way_out = room_way_out(topo),
    };
    enum pages_policy policy;
    FORWARD_IF(pages_policy(&policy, err));
    for (unsigned in = 0; in < m.n_node; in++) {
        m.node[in].os_index = topo->node[in].os_index;
        m.node[in].n_worker = pools_node_workers(pools, in);
        const uint64_t huge = huge_bytes(topo, in, policy);
        m.node[in].room_bytes = plus(room_bytes(topo, in), huge);
        m.limit_bytes = plus(m.limit_bytes, huge);
    }
    if (topo->is_this_machine) {
        lower_limit_of_process(topo, pools, &m);
    }
    FORWARD_IF(find_bandwidth(topo, pools, may_measure, &m, err));
    *out = m;
    return NUMOE_OK;
}
