/* Owns the joining of two readings: what topo_load() will use, and hwloc's tree with everything
 * that is forbidden. Decides nothing: who may be used is numa/allowed.c's word, who gets workers
 * the pools'.
 */
#include "numa/topo-view.h"

#include <hwloc.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "numa/allowed.h"
#include "numa/pool.h"
#include "numa/source.h"

struct builder {
    hwloc_topology_t hw;
    struct allowed allowed;
    unsigned nw[TOPO_MAX_NODE]; /* workers of topo->node[] */
    struct view *view;
};

/* ------------------------------------------------------------------ CPUs */

/* The pool that has this PU, and its place there; false where none has. */
static bool find_pu(const struct topo *topo, unsigned os_index, unsigned *in, unsigned *i)
{
    for (*in = 0; *in < topo->n_node; ++*in) {
        for (*i = 0; *i < topo->node[*in].n_pu; ++*i) {
            if (topo->node[*in].pu[*i] == os_index) {
                return true;
            }
        }
    }
    return false;
}

static void fill_use(const struct builder *b, struct view_pu *pu)
{
    unsigned in, i;
    if (!find_pu(b->view->topo, pu->os_index, &in, &i)) {
        bool in_cpuset = hwloc_bitmap_isset(b->allowed.cpuset_cpus, pu->os_index) &&
                         hwloc_bitmap_isset(hwloc_topology_get_allowed_cpuset(b->hw), pu->os_index);
        pu->use = in_cpuset ? VIEW_MASK : VIEW_CPUSET;
        return;
    }
    pu->use = i >= b->view->topo->node[in].n_core ? VIEW_SIBLING
              : i >= b->nw[in]                    ? VIEW_QUOTA
                                                  : VIEW_WORKER;
    pu->worker = i;
    for (unsigned before = 0; before < in; before++) {
        pu->worker += b->nw[before];
    }
}

static int compare_numbers(unsigned a, unsigned b)
{
    return a < b ? -1 : a > b;
}

static int compare_cores(const void *va, const void *vb)
{
    const struct view_core *a = va, *b = vb;
    int by_package = compare_numbers(a->package, b->package);
    int by_node = compare_numbers(a->in, b->in);
    return by_package ? by_package : by_node ? by_node : compare_numbers(a->order, b->order);
}

static unsigned index_of(const struct view *v, unsigned os_node)
{
    unsigned in = 0;
    while (in + 1 < v->n_node && v->node[in].os_index != os_node) {
        in++;
    }
    return in;
}

/* The node whose memory a core works on; where it may not be used, the smallest that holds it. */
static unsigned home_of(const struct builder *b, const struct view_core *core)
{
    unsigned in, i;
    for (unsigned k = 0; k < core->n_pu; k++) {
        if (find_pu(b->view->topo, b->view->pu[core->pu0 + k].os_index, &in, &i)) {
            return index_of(b->view, b->view->topo->node[in].os_index);
        }
    }
    hwloc_obj_t best = NULL, node = NULL;
    while ((node = hwloc_get_next_obj_by_type(b->hw, HWLOC_OBJ_NUMANODE, node)) != NULL) {
        if (hwloc_bitmap_isset(node->cpuset, b->view->pu[core->pu0].os_index) &&
            (best == NULL ||
             hwloc_bitmap_weight(node->cpuset) < hwloc_bitmap_weight(best->cpuset))) {
            best = node;
        }
    }
    return index_of(b->view, best ? best->os_index : 0);
}

static unsigned package_of(hwloc_topology_t hw, hwloc_obj_t obj)
{
    hwloc_obj_t package = hwloc_get_ancestor_obj_by_type(hw, HWLOC_OBJ_PACKAGE, obj);
    return package                                               ? package->logical_index
           : hwloc_get_nbobjs_by_type(hw, HWLOC_OBJ_PACKAGE) > 1 ? VIEW_NO_PACKAGE
                                                                 : 0;
}

static numoe_status list_cores(struct builder *b, numoe_error *err)
{
    struct view *v = b->view;
    size_t n = (size_t)MAX(hwloc_bitmap_weight(hwloc_topology_get_complete_cpuset(b->hw)), 0);
    FORWARD_IF(mem_new(&v->pu, n, sizeof(*v->pu), "list of CPUs", err));
    FORWARD_IF(mem_new(&v->core, n, sizeof(*v->core), "list of cores", err));
    hwloc_obj_t pu = NULL, last = NULL;
    while ((pu = hwloc_get_next_obj_by_type(b->hw, HWLOC_OBJ_PU, pu)) != NULL) {
        hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(b->hw, HWLOC_OBJ_CORE, pu);
        if (v->n_core == 0 || core == NULL || core != last) {
            v->core[v->n_core] = (struct view_core){
                .package = package_of(b->hw, pu), .order = v->n_core, .pu0 = v->n_pu};
            v->n_core++;
        }
        last = core;
        v->core[v->n_core - 1].n_pu++;
        v->pu[v->n_pu] = (struct view_pu){.os_index = pu->os_index};
        fill_use(b, &v->pu[v->n_pu++]);
    }
    for (unsigned ic = 0; ic < v->n_core; ic++) {
        v->core[ic].in = home_of(b, &v->core[ic]);
    }
    qsort(v->core, v->n_core, sizeof(*v->core), compare_cores);
    return NUMOE_OK;
}

static void list_offline(struct builder *b)
{
    hwloc_const_bitmap_t all = hwloc_topology_get_complete_cpuset(b->hw);
    hwloc_const_bitmap_t seen = hwloc_topology_get_topology_cpuset(b->hw);
    for (int i = hwloc_bitmap_first(all); i >= 0; i = hwloc_bitmap_next(all, i)) {
        if (!hwloc_bitmap_isset(seen, (unsigned)i)) {
            b->view->pu[b->view->n_pu++] =
                (struct view_pu){.os_index = (unsigned)i, .use = VIEW_OFFLINE};
        }
    }
}

/* ------------------------------------------------------------------ nodes */

static const struct topo_node *find_node(const struct topo_node *node, unsigned n,
                                         unsigned os_index)
{
    for (unsigned in = 0; in < n; in++) {
        if (node[in].os_index == os_index) {
            return &node[in];
        }
    }
    return NULL;
}

static enum view_node_use node_use(const struct builder *b, hwloc_obj_t obj, struct view_node *node)
{
    const struct topo *topo = b->view->topo;
    node->topo = find_node(topo->node, topo->n_node, obj->os_index);
    if (node->topo) {
        node->n_worker = b->nw[node->topo - topo->node];
        return node->n_worker ? VIEW_NODE_POOL : VIEW_NODE_IDLE;
    }
    node->topo = find_node(topo->memory_node, topo->n_memory_node, obj->os_index);
    if (node->topo) {
        return hwloc_bitmap_intersects(obj->cpuset, b->allowed.cpus) ||
                       hwloc_bitmap_iszero(obj->cpuset)
                   ? VIEW_NODE_MEMORY
                   : VIEW_NODE_CUT;
    }
    return hwloc_bitmap_isset(b->allowed.nodes, obj->os_index) ? VIEW_NODE_EMPTY
                                                               : VIEW_NODE_FORBIDDEN;
}

static int compare_nodes(const void *va, const void *vb)
{
    const struct view_node *a = va, *b = vb;
    return compare_numbers(a->os_index, b->os_index);
}

static numoe_status list_nodes(struct builder *b, numoe_error *err)
{
    struct view *v = b->view;
    size_t n = (size_t)MAX(hwloc_get_nbobjs_by_type(b->hw, HWLOC_OBJ_NUMANODE), 0);
    FORWARD_IF(mem_new(&v->node, n, sizeof(*v->node), "list of nodes", err));
    hwloc_obj_t obj = NULL;
    while ((obj = hwloc_get_next_obj_by_type(b->hw, HWLOC_OBJ_NUMANODE, obj)) != NULL) {
        struct view_node *node = &v->node[v->n_node++];
        node->os_index = obj->os_index;
        node->package = package_of(b->hw, obj);
        node->use = node_use(b, obj, node);
        node->memory_bytes =
            node->topo ? node->topo->memory_bytes : obj->attr->numanode.local_memory;
    }
    qsort(v->node, v->n_node, sizeof(*v->node), compare_nodes);
    return NUMOE_OK;
}

static int compare_boxes(const void *va, const void *vb)
{
    const struct view_box *a = va, *b = vb;
    int by_package = compare_numbers(a->package, b->package);
    return by_package ? by_package : compare_numbers(a->in, b->in);
}

static bool has_cores(const struct view *v, unsigned in)
{
    for (unsigned ic = 0; ic < v->n_core; ic++) {
        if (v->core[ic].in == in) {
            return true;
        }
    }
    return false;
}

static numoe_status list_boxes(struct view *v, numoe_error *err)
{
    FORWARD_IF(mem_new(&v->box, v->n_core + v->n_node, sizeof(*v->box), "list of nodes", err));
    for (unsigned ic = 0; ic < v->n_core; ic++) {
        const struct view_core *core = &v->core[ic];
        struct view_box *last = v->n_box ? &v->box[v->n_box - 1] : NULL;
        if (last == NULL || last->package != core->package || last->in != core->in) {
            last = &v->box[v->n_box++];
            *last = (struct view_box){.package = core->package, .in = core->in, .core0 = ic};
        }
        last->n_core++;
    }
    for (unsigned in = 0; in < v->n_node; in++) {
        if (!has_cores(v, in)) {
            v->box[v->n_box++] = (struct view_box){.package = v->node[in].package, .in = in};
        }
    }
    qsort(v->box, v->n_box, sizeof(*v->box), compare_boxes);
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ life */

static numoe_status fill(struct builder *b, const char *root, const char *spec, numoe_error *err)
{
    struct view *v = b->view;
    FORWARD_IF(topo_load_below(root, spec, &v->topo, err));
    FORWARD_IF(source_open(spec, true, &b->hw, err));
    bool here = v->topo->is_this_machine || *root;
    FORWARD_IF(allowed_read(b->hw, root, here, &b->allowed, err));
    FORWARD_IF(pools_deal(v->topo, 0, b->nw, err));
    for (unsigned in = 0; in < v->topo->n_node; in++) {
        v->n_worker += b->nw[in];
    }
    v->spec = spec;
    v->n_package = (unsigned)MAX(hwloc_get_nbobjs_by_type(b->hw, HWLOC_OBJ_PACKAGE), 1);
    FORWARD_IF(list_nodes(b, err));
    FORWARD_IF(list_cores(b, err));
    list_offline(b);
    return list_boxes(v, err);
}

numoe_status view_new(const char *root, const char *spec, struct view **out, numoe_error *err)
{
    struct builder b = {0};
    FORWARD_IF(mem_new(&b.view, 1, sizeof(*b.view), "view of the machine", err));
    numoe_status st = fill(&b, root, spec, err);
    allowed_fini(&b.allowed);
    if (b.hw) {
        hwloc_topology_destroy(b.hw);
    }
    if (st != NUMOE_OK) {
        view_free(b.view);
        return st;
    }
    *out = b.view;
    return NUMOE_OK;
}

void view_free(struct view *view)
{
    if (view == NULL) {
        return;
    }
    topo_free(view->topo);
    mem_free(view->pu);
    mem_free(view->core);
    mem_free(view->node);
    mem_free(view->box);
    mem_free(view);
}

/* ------------------------------------------------------------------ words */

static void collect(const struct view *view, enum view_use use, int in, hwloc_bitmap_t set)
{
    for (unsigned i = 0; in < 0 && i < view->n_pu; i++) {
        if (view->pu[i].use == use) {
            hwloc_bitmap_set(set, view->pu[i].os_index);
        }
    }
    for (unsigned ic = 0; in >= 0 && ic < view->n_core; ic++) {
        const struct view_core *core = &view->core[ic];
        for (unsigned i = core->pu0; (int)core->in == in && i < core->pu0 + core->n_pu; i++) {
            if (view->pu[i].use == use) {
                hwloc_bitmap_set(set, view->pu[i].os_index);
            }
        }
    }
}

/* The longest run of numbers of one distance from *at on: at least two, unless there is one only.
 * Moves *at behind it. */
static void take_run(hwloc_const_bitmap_t set, int *at, int *last, int *step)
{
    *last = *at;
    *step = 1;
    int next = hwloc_bitmap_next(set, *at);
    if (next >= 0) {
        *step = next - *at;
        while (next >= 0 && next - *last == *step) {
            *last = next;
            next = hwloc_bitmap_next(set, next);
        }
    }
    /* Two that are no neighbours are better said one by one. */
    if (*step > 1 && *last == *at + *step) {
        next = *last;
        *last = *at;
    }
    *at = next;
}

static numoe_status append_runs(struct strbuf *list, hwloc_const_bitmap_t set)
{
    for (int at = hwloc_bitmap_first(set); at >= 0;) {
        int first = at, last, step;
        take_run(set, &at, &last, &step);
        FORWARD_IF(strbuf_printf(list, NULL, "%s%d", list->len ? "," : "", first));
        if (last > first) {
            FORWARD_IF(strbuf_printf(list, NULL, "-%d", last));
        }
        if (last > first && step > 1) {
            FORWARD_IF(strbuf_printf(list, NULL, ":%d", step));
        }
    }
    return NUMOE_OK;
}

char *view_list(const struct view *view, enum view_use use, int in)
{
    struct strbuf list = {0};
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    if (set) {
        collect(view, use, in, set);
        if (append_runs(&list, set) != NUMOE_OK) {
            strbuf_fini(&list);
        }
    }
    hwloc_bitmap_free(set);
    return list.data;
}

unsigned view_box_workers(const struct view *view, const struct view_box *box, unsigned *n_usable)
{
    unsigned n_worker = 0;
    *n_usable = 0;
    for (unsigned ic = box->core0; ic < box->core0 + box->n_core; ic++) {
        const struct view_core *core = &view->core[ic];
        bool usable = false;
        for (unsigned i = core->pu0; i < core->pu0 + core->n_pu; i++) {
            usable |= view->pu[i].use < VIEW_MASK;
            n_worker += view->pu[i].use == VIEW_WORKER;
        }
        *n_usable += usable;
    }
    return n_worker;
}

const char *view_use_name(enum view_use use)
{
    static const char *const names[] = {"worker", "quota", "sibling", "mask", "cpuset", "offline"};
    return names[use];
}

const char *view_use_reason(const struct view *view, enum view_use use)
{
    static const char *const reasons[] = {
        "",
        "no worker: the CPU quota of the control group allows fewer",
        "further hardware thread of a core (SMT): one worker a core is enough",
        "not in the affinity mask of this process (taskset, srun --cpu-bind, mpirun --bind-to)",
        "not in the cpuset of the control group (container, batch job)",
        "offline, or not shown by firmware"};
    if (use == VIEW_CPUSET && !view->topo->is_this_machine && *view->topo->world->root == '\0') {
        return "not allowed, says the description of the machine";
    }
    return reasons[use];
}

const char *view_node_use_name(enum view_node_use use)
{
    static const char *const names[] = {"pool", "idle", "memory", "cut", "forbidden", "empty"};
    return names[use];
}

const char *view_node_reason(enum view_node_use use)
{
    static const char *const reasons[] = {"",
                                          "no worker: the CPU quota is used up",
                                          "memory without CPUs of its own",
                                          "none of its CPUs is allowed",
                                          "its memory is not allowed",
                                          "has no memory"};
    return reasons[use];
}

numoe_status view_source(const struct view *view, struct strbuf *text, numoe_error *err)
{
    if (view->topo->is_this_machine) {
        return strbuf_printf(text, err, "this machine");
    }
    return strbuf_printf(text, err, "another machine, as described by %s: nothing is bound",
                         view->spec ? view->spec : "the environment of hwloc");
}

const char *view_bytes(uint64_t bytes, char text[16])
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = (double)bytes / 1024.0;
    size_t i = 0;
    while (value >= 1023.95 && i + 1 < ARRAY_LEN(units)) {
        value /= 1024.0;
        i++;
    }
    snprintf(text, 16, "%.1f %s", value, units[i]);
    return text;
}
