/* Owns the reading of a machine: from hwloc's tree to a plain list of nodes with their cores.
 * Nothing of hwloc survives in struct topo. What may be used is numa/allowed.c's decision; where
 * memory goes and who runs where is the arenas' and the pools'.
 *
 * A core belongs to the allowed node with memory that is nearest to it; memory that no core calls
 * its own (CXL, HBM beside DRAM, nodes whose CPUs are not allowed) becomes a memory node.
 */
#include "numa/topo.h"

#include <hwloc.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "numa/allowed.h"
#include "numa/cgroup.h"
#include "numa/room.h"
#include "numa/source.h"

/* One allowed core while the nodes are put together. */
struct core {
    hwloc_obj_t home;   /* NUMA node whose memory it works on */
    bool is_far;        /* home is not local */
    int efficiency;     /* higher is faster; -1 unknown */
    unsigned order;     /* as hwloc counts */
    unsigned pu0, n_pu; /* range in builder.pu */
};

struct builder {
    hwloc_topology_t hw;
    struct allowed allowed;
    struct core *core;
    unsigned n_core;
    hwloc_obj_t *pu; /* allowed PUs, core by core */
    unsigned n_pu;
    bool sizes_known;               /* some node says how much memory it has */
    struct hwloc_distances_s *dist; /* may be NULL */
    struct topo *t;
};

/* ------------------------------------------------------------------ homes */

static bool has_memory(const struct builder *b, hwloc_obj_t node)
{
    return hwloc_bitmap_isset(b->allowed.nodes, node->os_index) &&
           (node->attr->numanode.local_memory > 0 || !b->sizes_known);
}

/* Fast, small, or far memory that lies beside ordinary memory is a tier, not a home. */
static bool is_special(hwloc_obj_t node)
{
    static const char *const kinds[] = {"MCDRAM", "HBM", "NVM", "SPM", "GPUMemory", "CXL-DRAM"};
    for (size_t i = 0; node->subtype && i < ARRAY_LEN(kinds); i++) {
        if (strcmp(node->subtype, kinds[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* Among nodes that hold the PU: ordinary memory first, then the most local, then the lowest number.
 */
static bool is_better_local(hwloc_obj_t node, hwloc_obj_t than)
{
    if (than == NULL || is_special(node) != is_special(than)) {
        return than == NULL || is_special(than);
    }
    int a = hwloc_bitmap_weight(node->cpuset), b = hwloc_bitmap_weight(than->cpuset);
    return a != b ? a < b : node->os_index < than->os_index;
}

/* Depth of the smallest object that holds both. */
static int shared_depth(hwloc_topology_t hw, hwloc_obj_t pu, hwloc_obj_t node)
{
    hwloc_obj_t at = node->parent;
    while (hwloc_obj_type_is_memory(at->type)) {
        at = at->parent;
    }
    return hwloc_get_common_ancestor_obj(hw, pu, at)->depth;
}

/* The PU's own node, where the topology still shows it although it may not be used. */
static uint64_t distance_to(const struct builder *b, hwloc_obj_t pu, hwloc_obj_t node)
{
    hwloc_uint64_t there, back;
    for (unsigned i = 0; b->dist && i < b->dist->nbobjs; i++) {
        hwloc_obj_t own = b->dist->objs[i];
        if (own && hwloc_bitmap_isset(own->cpuset, pu->os_index) &&
            hwloc_distances_obj_pair_values(b->dist, own, node, &there, &back) == 0) {
            return there;
        }
    }
    return UINT64_MAX;
}

static hwloc_obj_t find_nearest(const struct builder *b, hwloc_obj_t pu)
{
    hwloc_obj_t best = NULL, node = NULL;
    uint64_t best_distance = 0;
    int best_depth = 0;
    while ((node = hwloc_get_next_obj_by_type(b->hw, HWLOC_OBJ_NUMANODE, node)) != NULL) {
        if (!has_memory(b, node)) {
            continue;
        }
        uint64_t distance = distance_to(b, pu, node);
        int depth = shared_depth(b->hw, pu, node);
        if (best == NULL || distance < best_distance ||
            (distance == best_distance && depth > best_depth) ||
            (distance == best_distance && depth == best_depth && node->os_index < best->os_index)) {
            best = node, best_distance = distance, best_depth = depth;
        }
    }
    return best;
}

static hwloc_obj_t find_home(const struct builder *b, hwloc_obj_t pu, bool *is_far)
{
    hwloc_obj_t best = NULL, node = NULL;
    while ((node = hwloc_get_next_obj_by_type(b->hw, HWLOC_OBJ_NUMANODE, node)) != NULL) {
        if (has_memory(b, node) && hwloc_bitmap_isset(node->cpuset, pu->os_index) &&
            is_better_local(node, best)) {
            best = node;
        }
    }
    *is_far = best == NULL;
    return best ? best : find_nearest(b, pu);
}

/* ------------------------------------------------------------------ cores */

static hwloc_obj_t core_of(hwloc_topology_t hw, hwloc_obj_t pu)
{
    hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(hw, HWLOC_OBJ_CORE, pu);
    return core ? core : pu;
}

static int compare_cores(const void *va, const void *vb)
{
    const struct core *a = va, *b = vb;
    if (a->home->os_index != b->home->os_index) {
        return a->home->os_index < b->home->os_index ? -1 : 1;
    }
    if (a->efficiency != b->efficiency) {
        return a->efficiency > b->efficiency ? -1 : 1;
    }
    return a->order < b->order ? -1 : a->order > b->order;
}

static int efficiency_of(hwloc_topology_t hw, hwloc_obj_t pu)
{
    int efficiency = -1;
    int kind = hwloc_cpukinds_get_by_cpuset(hw, pu->cpuset, 0);
    if (kind >= 0 &&
        hwloc_cpukinds_get_info(hw, (unsigned)kind, NULL, &efficiency, NULL, NULL, 0)) {
        return -1;
    }
    return efficiency;
}

static numoe_status list_cores(struct builder *b, numoe_error *err)
{
    int n = hwloc_get_nbobjs_by_type(b->hw, HWLOC_OBJ_PU);
    FORWARD_IF(mem_new(&b->core, (size_t)MAX(n, 0), sizeof(*b->core), "list of cores", err));
    FORWARD_IF(mem_new(&b->pu, (size_t)MAX(n, 0), sizeof(*b->pu), "list of CPUs", err));
    hwloc_obj_t pu = NULL, last = NULL;
    while ((pu = hwloc_get_next_obj_by_type(b->hw, HWLOC_OBJ_PU, pu)) != NULL) {
        if (!hwloc_bitmap_isset(b->allowed.cpus, pu->os_index)) {
            continue;
        }
        if (b->n_core == 0 || core_of(b->hw, pu) != last) {
            last = core_of(b->hw, pu);
            struct core *core = &b->core[b->n_core];
            *core = (struct core){.order = b->n_core, .pu0 = b->n_pu};
            core->efficiency = efficiency_of(b->hw, pu);
            core->home = find_home(b, pu, &core->is_far);
            if (core->home == NULL) {
                return status_fail(err, NUMOE_E_SUPPORT, "no NUMA node with memory is allowed");
            }
            b->n_core++;
        }
        b->core[b->n_core - 1].n_pu++;
        b->pu[b->n_pu++] = pu;
    }
    if (b->n_core == 0) {
        return status_fail(err, NUMOE_E_SUPPORT, "no CPU is allowed");
    }
    qsort(b->core, b->n_core, sizeof(*b->core), compare_cores);
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ nodes */

static unsigned package_of(const struct builder *b, hwloc_obj_t obj)
{
    hwloc_obj_t package = hwloc_get_ancestor_obj_by_type(b->hw, HWLOC_OBJ_PACKAGE, obj);
    if (package == NULL && obj->cpuset) {
        package =
            hwloc_get_next_obj_covering_cpuset_by_type(b->hw, obj->cpuset, HWLOC_OBJ_PACKAGE, NULL);
    }
    return package ? package->logical_index : 0;
}

static void read_attributes(const struct builder *b, hwloc_obj_t obj, struct topo_node *node)
{
    struct hwloc_location from = {.type = HWLOC_LOCATION_TYPE_CPUSET,
                                  .location.cpuset = obj->cpuset};
    hwloc_uint64_t value;
    if (hwloc_bitmap_iszero(obj->cpuset)) {
        return;
    }
    if (hwloc_memattr_get_value(b->hw, HWLOC_MEMATTR_ID_BANDWIDTH, obj, &from, 0, &value) == 0) {
        node->read_bps = (double)value * 1048576.0; /* MiB/s */
    }
    if (hwloc_memattr_get_value(b->hw, HWLOC_MEMATTR_ID_LATENCY, obj, &from, 0, &value) == 0) {
        node->latency_ns = (double)value;
    }
}

/* What hwloc says of a node's memory; room_read() corrects and completes it. */
static void fill_memory(const struct builder *b, hwloc_obj_t obj, struct topo_node *node)
{
    node->os_index = obj->os_index;
    node->memory_bytes = obj->attr->numanode.local_memory;
    read_attributes(b, obj, node);
}

static uint64_t last_cache_bytes(hwloc_obj_t obj, hwloc_obj_t *cache)
{
    *cache = NULL;
    for (; obj; obj = obj->parent) {
        if (hwloc_obj_type_is_dcache(obj->type)) {
            *cache = obj;
        }
    }
    return *cache ? (*cache)->attr->cache.size : 0;
}

static numoe_status fill_cores(const struct builder *b, const struct core *core, unsigned n_core,
                               struct topo_node *node, numoe_error *err)
{
    hwloc_obj_t cache, last_cache = NULL;
    for (unsigned ic = 0; ic < n_core; ic++) {
        node->n_pu += core[ic].n_pu;
        uint64_t bytes = last_cache_bytes(b->pu[core[ic].pu0], &cache);
        node->llc_bytes += cache != last_cache ? bytes : 0;
        last_cache = cache;
    }
    FORWARD_IF(mem_new(&node->pu, node->n_pu, sizeof(*node->pu), "list of CPUs", err));
    unsigned n = 0;
    for (unsigned turn = 0; n < node->n_pu; turn++) {
        for (unsigned ic = 0; ic < n_core; ic++) {
            if (turn < core[ic].n_pu) {
                node->pu[n++] = b->pu[core[ic].pu0 + turn]->os_index;
            }
        }
    }
    node->n_core = n_core;
    return NUMOE_OK;
}

/* Cores are sorted by home: each run of equal homes is a node. */
static numoe_status list_nodes(struct builder *b, numoe_error *err)
{
    struct topo *t = b->t;
    FORWARD_IF(mem_new(&t->node, TOPO_MAX_NODE, sizeof(*t->node), "list of nodes", err));
    for (unsigned i = 0, end; i < b->n_core; i = end) {
        for (end = i; end < b->n_core && b->core[end].home == b->core[i].home; end++) {
            t->n_far_core += b->core[end].is_far;
        }
        if (t->n_node == TOPO_MAX_NODE) {
            return status_fail(err, NUMOE_E_SUPPORT, "more than %d NUMA nodes with CPUs",
                               TOPO_MAX_NODE);
        }
        struct topo_node *node = &t->node[t->n_node++];
        FORWARD_IF(fill_cores(b, b->core + i, end - i, node, err));
        node->package = package_of(b, b->pu[b->core[i].pu0]);
        fill_memory(b, b->core[i].home, node);
    }
    t->n_core = b->n_core;
    return NUMOE_OK;
}

static bool is_home(const struct topo *t, unsigned os_index)
{
    for (unsigned in = 0; in < t->n_node; in++) {
        if (t->node[in].os_index == os_index) {
            return true;
        }
    }
    return false;
}

static int compare_nodes(const void *va, const void *vb)
{
    const struct topo_node *a = va, *b = vb;
    return a->os_index < b->os_index ? -1 : a->os_index > b->os_index;
}

static numoe_status list_memory_nodes(struct builder *b, numoe_error *err)
{
    struct topo *t = b->t;
    size_t n = (size_t)MAX(hwloc_get_nbobjs_by_type(b->hw, HWLOC_OBJ_NUMANODE), 0);
    FORWARD_IF(mem_new(&t->memory_node, n, sizeof(*t->memory_node), "list of nodes", err));
    hwloc_obj_t obj = NULL;
    while ((obj = hwloc_get_next_obj_by_type(b->hw, HWLOC_OBJ_NUMANODE, obj)) != NULL) {
        if (has_memory(b, obj) && !is_home(t, obj->os_index)) {
            struct topo_node *node = &t->memory_node[t->n_memory_node++];
            node->package = package_of(b, obj);
            fill_memory(b, obj, node);
        }
    }
    qsort(t->memory_node, t->n_memory_node, sizeof(*t->memory_node), compare_nodes);
    return NUMOE_OK;
}

static unsigned count_used_packages(const struct builder *b)
{
    unsigned n = 0;
    hwloc_obj_t package = NULL;
    while ((package = hwloc_get_next_obj_by_type(b->hw, HWLOC_OBJ_PACKAGE, package)) != NULL) {
        n += (unsigned)hwloc_bitmap_intersects(package->cpuset, b->allowed.cpus);
    }
    return MAX(n, 1u);
}

static numoe_status list_distances(struct builder *b, numoe_error *err)
{
    struct topo *t = b->t;
    if (b->dist == NULL) {
        return NUMOE_OK;
    }
    unsigned *distance;
    FORWARD_IF(mem_new(&distance, (size_t)t->n_node * t->n_node, sizeof(*distance),
                       "distances between nodes", err));
    for (unsigned i = 0; i < t->n_node * t->n_node; i++) {
        hwloc_obj_t from =
            hwloc_get_numanode_obj_by_os_index(b->hw, t->node[i / t->n_node].os_index);
        hwloc_obj_t to = hwloc_get_numanode_obj_by_os_index(b->hw, t->node[i % t->n_node].os_index);
        hwloc_uint64_t there, back;
        if (hwloc_distances_obj_pair_values(b->dist, from, to, &there, &back) != 0) {
            mem_free(distance); /* a matrix over other nodes than ours */
            return NUMOE_OK;
        }
        distance[i] = (unsigned)there;
    }
    t->distance = distance;
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ description */

static uint64_t sum_memory(const struct topo_node *node, unsigned n)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < n; i++) {
        sum += node[i].memory_bytes;
    }
    return sum;
}

static const char *find_model(hwloc_topology_t hw)
{
    hwloc_obj_t package = hwloc_get_obj_by_type(hw, HWLOC_OBJ_PACKAGE, 0);
    const char *model = package ? hwloc_obj_get_info_by_name(package, "CPUModel") : NULL;
    if (model == NULL) {
        model = hwloc_obj_get_info_by_name(hwloc_get_root_obj(hw), "CPUModel");
    }
    return model ? model : "unknown processor";
}

/* Firmware pads model names with blanks. */
static void squeeze_blanks(char *text)
{
    char *to = text;
    for (const char *from = text; *from; from++) {
        if (*from != ' ' || (to > text && to[-1] != ' ')) {
            *to++ = *from;
        }
    }
    *to = '\0';
}

static numoe_status append_count(struct strbuf *s, unsigned n, const char *noun, numoe_error *err)
{
    return strbuf_printf(s, err, ", %u %s%s", n, noun, n == 1 ? "" : "s");
}

static numoe_status write_description(struct strbuf *s, const struct builder *b, numoe_error *err)
{
    const double gib = 1073741824.0;
    const struct topo *t = b->t;
    FORWARD_IF(strbuf_printf(s, err, "%s", find_model(b->hw)));
    FORWARD_IF(append_count(s, count_used_packages(b), "package", err));
    FORWARD_IF(append_count(s, t->n_node, "NUMA node", err));
    FORWARD_IF(append_count(s, t->n_core, "core", err));
    FORWARD_IF(strbuf_printf(s, err, ", %.1f GiB", (double)sum_memory(t->node, t->n_node) / gib));
    if (t->n_memory_node > 0) {
        FORWARD_IF(append_count(s, t->n_memory_node, "node", err));
        FORWARD_IF(strbuf_printf(s, err, " of memory only (%.1f GiB)",
                                 (double)sum_memory(t->memory_node, t->n_memory_node) / gib));
    }
    return NUMOE_OK;
}

static numoe_status describe(const struct builder *b, numoe_error *err)
{
    struct strbuf s = {0};
    numoe_status st = write_description(&s, b, err);
    if (st != NUMOE_OK) {
        strbuf_fini(&s);
        return st;
    }
    squeeze_blanks(s.data);
    utf8_make_plain(s.data); /* it is shown: files may say what they like */
    b->t->description = s.data;
    return NUMOE_OK;
}

static void tell(const struct topo *t)
{
    if (t->n_far_core > 0) {
        log_info("%u of %u cores have no memory of their own that may be used, they work on the "
                 "nearest node's",
                 t->n_far_core, t->n_core);
    }
}

/* ------------------------------------------------------------------ topology */

/* Where the process runs, also when the topology is another machine. */
static void count_runnable(struct topo *t)
{
    struct cgroup_limits limits;
    cgroup_read("", &limits);
    unsigned n = MAX(allowed_count_affinity(), 1u);
    if (limits.cpu_quota > 0 && limits.cpu_quota < n) {
        n = MAX((unsigned)limits.cpu_quota, 1u);
    }
    t->n_runnable = n;
    cgroup_fini(&limits);
}

static void open_builder(struct builder *b)
{
    unsigned n_dist = 1;
    hwloc_obj_t node = NULL;
    while ((node = hwloc_get_next_obj_by_type(b->hw, HWLOC_OBJ_NUMANODE, node)) != NULL) {
        b->sizes_known |= node->attr->numanode.local_memory > 0;
    }
    if (hwloc_distances_get_by_type(b->hw, HWLOC_OBJ_NUMANODE, &n_dist, &b->dist,
                                    HWLOC_DISTANCES_KIND_MEANS_LATENCY, 0) != 0 ||
        n_dist == 0) {
        b->dist = NULL;
    }
}

static void close_builder(struct builder *b)
{
    if (b->dist) {
        hwloc_distances_release(b->hw, b->dist);
    }
    mem_free(b->pu);
    mem_free(b->core);
    allowed_fini(&b->allowed);
}

static numoe_status fill_topo(struct builder *b, const char *root, numoe_error *err)
{
    struct topo *t = b->t;
    bool here = t->is_this_machine || *root;
    FORWARD_IF(t->is_this_machine ? world_new_native(root, &t->world, err)
                                  : world_new_recording(root, &t->world, err));
    FORWARD_IF(mem_new(&t->ledger, 1, sizeof(*t->ledger), "record of arenas", err));
    FORWARD_IF(allowed_read(b->hw, root, here, &b->allowed, err));
    t->cpu_quota = b->allowed.cpu_quota;
    t->memory_limit_bytes = b->allowed.memory_limit_bytes;
    count_runnable(t);
    open_builder(b);
    FORWARD_IF(list_cores(b, err));
    FORWARD_IF(list_nodes(b, err));
    FORWARD_IF(list_memory_nodes(b, err));
    FORWARD_IF(list_distances(b, err));
    int n_all = hwloc_bitmap_weight(hwloc_topology_get_complete_cpuset(b->hw));
    t->n_excluded_pu = n_all > (int)b->n_pu ? (unsigned)n_all - b->n_pu : 0;
    t->n_package = (unsigned)MAX(hwloc_get_nbobjs_by_type(b->hw, HWLOC_OBJ_PACKAGE), 1);
    FORWARD_IF(room_read(t, err));
    return describe(b, err);
}

static numoe_status load(const char *root, const char *spec, struct topo **out, numoe_error *err)
{
    struct builder b = {0};
    FORWARD_IF(source_open(spec, false, &b.hw, err));
    numoe_status st = mem_new(&b.t, 1, sizeof(*b.t), "topology", err);
    if (st == NUMOE_OK) {
        b.t->is_this_machine = *root == '\0' && hwloc_topology_is_thissystem(b.hw);
        st = fill_topo(&b, root, err);
    }
    close_builder(&b);
    hwloc_topology_destroy(b.hw);
    if (st != NUMOE_OK) {
        topo_free(b.t);
        return st;
    }
    tell(b.t);
    *out = b.t;
    return NUMOE_OK;
}

numoe_status topo_load(const char *spec, struct topo **out, numoe_error *err)
{
    return load("", spec, out, err);
}

numoe_status topo_load_below(const char *root, const char *spec, struct topo **out,
                             numoe_error *err)
{
    return load(root, spec, out, err);
}

void topo_keep_nodes(struct topo *topo, uint64_t keep)
{
    const unsigned n_all = topo->n_node;
    unsigned kept[TOPO_MAX_NODE], n = 0;
    for (unsigned in = 0; in < n_all; in++) {
        if (keep >> in & 1) {
            kept[n++] = in;
        } else {
            mem_free(topo->node[in].pu);
            topo->n_core -= topo->node[in].n_core;
        }
    }
    /* To the front; what is read lies never before what is written. */
    for (unsigned i = 0; i < n; i++) {
        topo->node[i] = topo->node[kept[i]];
        atomic_store(&topo->ledger->taken_bytes[i],
                     atomic_load(&topo->ledger->taken_bytes[kept[i]]));
    }
    for (unsigned i = 0; topo->distance != NULL && i < n * n; i++) {
        topo->distance[i] = topo->distance[kept[i / n] * n_all + kept[i % n]];
    }
    topo->n_node = n;
}

void topo_free(struct topo *topo)
{
    if (topo == NULL) {
        return;
    }
    for (unsigned in = 0; in < topo->n_node; in++) {
        mem_free(topo->node[in].pu);
    }
    mem_free(topo->node);
    mem_free(topo->memory_node);
    mem_free(topo->distance);
    mem_free(topo->ledger);
    mem_free(topo->description);
    world_free(topo->world);
    mem_free(topo);
}
