/* numa/topo-view, topo-report, topo-svg: machines by string and made-up processes, whose CPUs are
 * counted and assigned by hand.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <criterion/criterion.h>

#include <ctype.h>
#include <hwloc.h>
#include <jansson.h>

#include "base/mem.h"
#include "numa/topo-report.h"
#include "tests/unit/madeup.h"

TestSuite(view, .init = madeup_setup, .fini = madeup_teardown);

#define TWO_NODES "pack:2 [numa(memory=8GiB)] core:4 pu:2" /* PUs 0-7 and 8-15 */

typedef numoe_status print_fn(const struct view *, FILE *, numoe_error *);

static struct view *look(const char *spec)
{
    struct view *view = NULL;
    numoe_error err = {.text = ""};
    cr_assert_eq(view_new(root, spec, &view, &err), NUMOE_OK, "%s: %s", spec, err.text);
    return view;
}

static char *print_view(const struct view *view, print_fn *print)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    cr_assert_eq(print(view, out, NULL), NUMOE_OK);
    fclose(out);
    return text;
}

static char *print_spec(const char *spec, print_fn *print)
{
    struct view *view = NULL;
    cr_assert_eq(view_new("", spec, &view, NULL), NUMOE_OK, "%s", spec);
    char *text = print_view(view, print);
    view_free(view);
    return text;
}

static void expect_list(const struct view *view, enum view_use use, int in, const char *expected)
{
    char *list = view_list(view, use, in);
    if (expected == NULL) {
        cr_expect_null(list, "use %d of %d: %s", use, in, list);
    } else {
        cr_expect(list && strcmp(list, expected) == 0, "use %d of %d: %s, not %s", use, in, list,
                  expected);
    }
    mem_free(list);
}

static void put_mask(const char *cpus, const char *mems)
{
    char text[256];
    snprintf(text, sizeof(text), "Name:\tx\nCpus_allowed_list:\t%s\nMems_allowed_list:\t%s\n", cpus,
             mems);
    put("/proc/self/status", text);
}

/* ------------------------------------------------------------------ who is what */

Test(view, a_whole_machine)
{
    struct view *view = look(TWO_NODES);
    cr_expect_eq(view->n_package, 2);
    cr_expect_eq(view->n_node, 2);
    cr_expect_eq(view->n_core, 8);
    cr_expect_eq(view->n_pu, 16);
    cr_expect_eq(view->n_worker, 8);
    cr_expect_eq(view->n_box, 2);
    expect_list(view, VIEW_WORKER, -1, "0-14:2");
    expect_list(view, VIEW_WORKER, 1, "8-14:2");
    expect_list(view, VIEW_SIBLING, 0, "1-7:2");
    for (enum view_use use = VIEW_QUOTA; use < VIEW_N_USE; use++) {
        if (use != VIEW_SIBLING) {
            expect_list(view, use, -1, NULL);
        }
    }
    /* Workers are numbered node by node, in the order of cores. */
    for (unsigned ic = 0; ic < 8; ic++) {
        const struct view_pu *pu = &view->pu[view->core[ic].pu0];
        cr_expect_eq(pu->use, VIEW_WORKER);
        cr_expect_eq(pu->worker, ic);
        cr_expect_eq(pu->os_index, 2 * ic);
    }
    view_free(view);
}

Test(view, mask_and_cpuset_are_told_apart)
{
    /* The kernel's mask is within the cpuset. Core 1 keeps its second thread only. */
    put_mask("0-1,3-5,8-9", "0-1");
    put_v2("/job");
    put("/sys/fs/cgroup/job/cpuset.cpus.effective", "0-9\n");
    put("/sys/fs/cgroup/job/cpuset.mems.effective", "0-1\n");
    struct view *view = look(TWO_NODES);
    expect_list(view, VIEW_WORKER, -1, "0,3-4,8");
    expect_list(view, VIEW_SIBLING, -1, "1-9:4");
    expect_list(view, VIEW_MASK, -1, "2,6-7");
    expect_list(view, VIEW_CPUSET, -1, "10-15");
    expect_list(view, VIEW_CPUSET, 0, NULL);
    cr_expect_eq(view->n_worker, 4);
    cr_expect_eq(view->n_core, 8);
    view_free(view);
}

Test(view, a_quota_leaves_cores_and_nodes_without_workers)
{
    put_v2("/");
    put("/sys/fs/cgroup/cpu.max", "350000 100000\n");
    struct view *view = look(TWO_NODES);
    cr_expect_eq(view->n_worker, 3);
    expect_list(view, VIEW_WORKER, 0, "0,2");
    expect_list(view, VIEW_QUOTA, 0, "4,6");
    expect_list(view, VIEW_WORKER, 1, "8");
    expect_list(view, VIEW_QUOTA, 1, "10-14:2");
    cr_expect_eq(view->node[0].use, VIEW_NODE_POOL);
    view_free(view);

    put("/sys/fs/cgroup/cpu.max", "150000 100000\n");
    view = look(TWO_NODES);
    cr_expect_eq(view->n_worker, 1);
    cr_expect_eq(view->node[0].use, VIEW_NODE_POOL);
    cr_expect_eq(view->node[1].use, VIEW_NODE_IDLE);
    view_free(view);
}

Test(view, nodes_of_all_kinds)
{
    /* A small and a large memory in each package; CPUs of package 0 only. */
    put_mask("0-3", "0-3");
    struct view *view =
        look("pack:2 [numa(memory=4GiB)] [numa(memory=64GiB)] core:4 pu:1"); /* nodes 0,1 2,3 */
    cr_assert_eq(view->n_node, 4);
    cr_expect_eq(view->node[0].use, VIEW_NODE_POOL);
    cr_expect_eq(view->node[1].use, VIEW_NODE_MEMORY);
    cr_expect_eq(view->node[2].use, VIEW_NODE_CUT);
    cr_expect_eq(view->node[3].use, VIEW_NODE_CUT);
    cr_expect_eq(view->node[3].package, 1);
    cr_expect_eq(view->node[3].memory_bytes, (uint64_t)64 << 30);
    cr_expect_eq(view->n_box, 4);
    view_free(view);

    /* Memory of node 1 only: cores of package 0 work on it from afar. */
    put_mask("0-15", "1");
    view = look(TWO_NODES);
    cr_expect_eq(view->node[0].use, VIEW_NODE_FORBIDDEN);
    cr_expect_eq(view->node[1].use, VIEW_NODE_POOL);
    cr_expect_eq(view->n_box, 3);
    cr_expect_eq(view->box[0].in, 0);
    cr_expect_eq(view->box[0].n_core, 0);
    cr_expect_eq(view->box[1].package, 0);
    cr_expect_eq(view->box[1].in, 1);
    cr_expect_eq(view->box[1].n_core, 4);
    cr_expect_eq(view->box[2].package, 1);
    view_free(view);
}

/* The string's machine as an XML file of that name. */
static void export_machine(const char *spec, const char *path)
{
    hwloc_topology_t hw;
    cr_assert_eq(hwloc_topology_init(&hw), 0);
    cr_assert_eq(hwloc_topology_set_synthetic(hw, spec), 0);
    cr_assert_eq(hwloc_topology_load(hw), 0);
    cr_assert_eq(hwloc_topology_export_xml(hw, path, 0), 0);
    hwloc_topology_destroy(hw);
}

/* PUs 16 and 17 exist, says the machine's complete set, but are not in the tree. */
Test(view, offline_cpus_are_known_by_number)
{
    static const char all[] = "complete_cpuset=\"0x0000ffff\"";
    char path[128];
    snprintf(path, sizeof(path), "%s/offline.xml", root);
    export_machine(TWO_NODES, path);
    char *xml = world_read(root, "/offline.xml");
    char *machine = xml ? strstr(xml, all) : NULL;
    cr_assert_not_null(machine, "%s", xml);
    memcpy(machine, "complete_cpuset=\"0x0003ffff\"", sizeof(all) - 1);
    put("/offline.xml", xml);
    mem_free(xml);
    struct view *view = NULL;
    cr_assert_eq(view_new("", path, &view, NULL), NUMOE_OK);
    expect_list(view, VIEW_OFFLINE, -1, "16-17");
    expect_list(view, VIEW_WORKER, -1, "0-14:2");
    cr_expect_eq(view->n_pu, 18);
    cr_expect_eq(view->n_core, 8);
    view_free(view);
}

Test(view, lists_are_short)
{
    static const struct {
        const char *mask, *list;
    } cases[] = {
        {"5", "5"},
        {"0-1", "0-1"},
        {"0,2", "0,2"},
        {"0,2-3", "0,2-3"},
        {"0,2,4", "0-4:2"},
        {"0-3,8", "0-3,8"},
        {"0,3,6,7", "0-6:3,7"},
        {"0,1,3,5", "0-1,3,5"},
        {"1,3,5,6", "1-5:2,6"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        put_mask(cases[i].mask, "0");
        struct view *view = look("[numa(memory=8GiB)] core:12 pu:1");
        expect_list(view, VIEW_WORKER, -1, cases[i].list);
        view_free(view);
    }
}

/* ------------------------------------------------------------------ text */

Test(view, text_of_a_whole_machine)
{
    static const char expected[] =
        "unknown processor, 2 packages, 2 NUMA nodes, 8 cores, 16.0 GiB\n"
        "another machine, as described by " TWO_NODES ": nothing is bound\n"
        "\n"
        "                 cores  workers     memory  available 2M free 1G free      reads\n"
        "package 0\n"
        "  node 0             4        4    8.0 GiB          -       -       -          -\n"
        "package 1\n"
        "  node 1             4        4    8.0 GiB          -       -       -          -\n"
        "\n"
        "workers: 8\n"
        "  node 0    CPU 0-6:2\n"
        "  node 1    CPU 8-14:2\n"
        "\n"
        "not used\n"
        "  CPU 1-15:2: further hardware thread of a core (SMT): one worker a core is enough\n";
    char *text = print_spec(TWO_NODES, topo_print_text);
    cr_expect_str_eq(text, expected);
    free(text);
}

Test(view, text_of_a_process_with_limits)
{
    put_mask("0-5", "0-1");
    put_v2("/");
    put("/sys/fs/cgroup/cpu.max", "250000 100000\n");
    put("/sys/fs/cgroup/memory.max", "3221225472\n");
    put("/sys/devices/system/node/has_memory", "0-1\n");
    put("/sys/devices/system/node/node0/meminfo", "Node 0 MemFree: 2097152 kB\n");
    put("/sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages", "77\n");
    struct view *view = look(TWO_NODES);
    char *text = print_view(view, topo_print_text);
    static const char *const lines[] = {
        "  node 0        3 of 4        2    8.0 GiB    2.0 GiB      77       0          -\n",
        "  node 1        0 of 4        0    8.0 GiB          -       0       0          -\n",
        "workers: 2\n  node 0    CPU 0,2\n",
        "  CPU 4: no worker: the CPU quota of the control group allows fewer\n",
        "  CPU 6-15: not in the affinity mask of this process",
        "  node 1: none of its CPUs is allowed\n",
        "  CPU quota: 2.50 CPUs\n",
        "  memory: 3.0 GiB may still be taken\n",
    };
    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        cr_expect_not_null(strstr(text, lines[i]), "%s\nis not in\n%s", lines[i], text);
    }
    free(text);
    view_free(view);
}

/* ------------------------------------------------------------------ JSON */

Test(view, json_says_the_same)
{
    put_mask("0-5", "0-1");
    put_v2("/");
    put("/sys/fs/cgroup/memory.max", "3221225472\n");
    struct view *view = look(TWO_NODES);
    char *text = print_view(view, topo_print_json);
    json_t *root_json = json_loads(text, 0, NULL);
    int packages, workers, here, node_workers;
    const char *use;
    json_t *nodes, *unused, *limits, *cores;
    cr_assert_not_null(root_json, "%s", text);
    cr_assert_eq(json_unpack(root_json, "{s:i, s:i, s:b, s:o, s:o, s:o}", "packages", &packages,
                             "workers", &workers, "this_machine", &here, "nodes", &nodes,
                             "not_used", &unused, "limits", &limits),
                 0);
    cr_expect_eq(packages, 2);
    cr_expect_eq(workers, 3);
    cr_expect_eq(here, 0);
    cr_expect_eq(json_array_size(nodes), 2);
    cr_expect_eq(json_array_size(unused), 2); /* siblings, mask */
    cr_expect_eq(json_integer_value(json_object_get(limits, "memory_bytes")), 3221225472);
    cr_expect(json_is_null(json_object_get(limits, "cpus")));
    cr_assert_eq(json_unpack(json_array_get(nodes, 0), "{s:s, s:i, s:o}", "use", &use, "workers",
                             &node_workers, "cores", &cores),
                 0);
    cr_expect_str_eq(use, "pool");
    cr_expect_eq(node_workers, 3);
    cr_assert_eq(json_array_size(cores), 4);
    json_t *cpus = json_object_get(json_array_get(cores, 2), "cpus"), *first, *second;
    cr_assert_eq(json_unpack(cpus, "[o, o]", &first, &second), 0);
    cr_expect_eq(json_integer_value(json_object_get(first, "cpu")), 4);
    cr_expect_str_eq(json_string_value(json_object_get(first, "use")), "worker");
    cr_expect_eq(json_integer_value(json_object_get(first, "worker")), 2);
    cr_expect_str_eq(json_string_value(json_object_get(second, "use")), "sibling");
    cr_expect(json_is_null(json_object_get(second, "worker")));
    json_decref(root_json);
    free(text);
    view_free(view);
}

/* ------------------------------------------------------------------ SVG */

static unsigned count_in(const char *text, const char *what)
{
    unsigned n = 0;
    for (const char *at = text; (at = strstr(at, what)) != NULL; at += strlen(what)) {
        n++;
    }
    return n;
}

/* One tag at `at`, which is behind its "<": attributes are quoted, no "<" is inside. */
static const char *skip_tag(const char *at)
{
    for (bool quoted = false; *at && (quoted || *at != '>'); at++) {
        quoted ^= *at == '"';
        cr_assert_neq(*at, '<', "a tag is open: %.40s", at);
    }
    cr_assert_eq(*at, '>');
    return at + 1;
}

/* An ampersand begins one of the entities that XML knows. */
static void check_entity(const char *at)
{
    static const char *const known[] = {"&lt;", "&gt;", "&amp;", "&quot;"};
    bool good = false;
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        good |= strncmp(at, known[i], strlen(known[i])) == 0;
    }
    cr_expect(good, "not an entity: %.20s", at);
}

/* Every tag is closed, in order; text has no stray signs. */
static void check_well_formed(const char *svg)
{
    char open[32][16];
    unsigned depth = 0, n_root = 0;
    for (const char *at = svg; *at;) {
        if (*at != '<') {
            if (*at == '&') {
                check_entity(at);
            }
            cr_assert(depth > 0 || isspace((unsigned char)*at));
            at++;
            continue;
        }
        const char *name = at + 1, *end = skip_tag(name);
        size_t len = strcspn(name + (*name == '/'), " />?");
        if (*name == '/') {
            cr_assert_gt(depth, 0);
            depth--;
            cr_assert(strncmp(open[depth], name + 1, len) == 0 && open[depth][len] == '\0',
                      "</%.10s closes <%s>", name + 1, open[depth]);
        } else if (*name != '?' && end[-2] != '/') {
            cr_assert_lt(depth, 32);
            n_root += depth == 0;
            snprintf(open[depth++], sizeof(open[0]), "%.*s", (int)len, name);
        }
        at = end;
    }
    cr_expect_eq(depth, 0);
    cr_expect_eq(n_root, 1);
}

Test(view, svg_has_a_box_for_each)
{
    static const struct {
        const char *spec;
        unsigned n_package, n_node, n_core, n_sibling;
    } machines[] = {
        {"pack:1 [numa(memory=64GiB)] core:2 pu:1", 1, 1, 2, 0},
        {"pack:2 group:4 [numa(memory=96GiB)] l3:2 core:8 pu:2", 2, 8, 128, 128},
        {"pack:1 [numa(memory=16GiB)] core:64 pu:4", 1, 1, 64, 192},
        {"pack:16 [numa(memory=8GiB)] core:2 pu:1", 16, 16, 32, 0},
        {"pack:8 group:8 [numa(memory=8GiB)] core:1 pu:1", 8, 64, 64, 0},
        {"pack:2 [numa(memory=64GiB)] [numa(memory=256GiB)] core:4 pu:1", 2, 4, 8, 0},
        {"pack:2 core:3 pu:2", 2, 2, 6, 6}, /* one node, drawn in both packages */
        {"[numa(memory=1TiB)] pack:2 [numa(memory=32GiB)] core:4 pu:1", 3, 3, 8, 0}, /* beside */
    };
    for (size_t i = 0; i < ARRAY_LEN(machines); i++) {
        char *svg = print_spec(machines[i].spec, topo_print_svg);
        check_well_formed(svg);
        cr_expect_eq(count_in(svg, "class=\"package\""), machines[i].n_package, "%s",
                     machines[i].spec);
        cr_expect_eq(count_in(svg, "class=\"node\""), machines[i].n_node, "%s", machines[i].spec);
        cr_expect_eq(count_in(svg, "class=\"core\""), machines[i].n_core, "%s", machines[i].spec);
        cr_expect_eq(count_in(svg, "class=\"sibling\""), machines[i].n_sibling, "%s",
                     machines[i].spec);
        cr_expect_eq(count_in(svg, "data-use=\"worker\""), machines[i].n_core);
        free(svg);
    }
}

Test(view, svg_greys_what_is_forbidden)
{
    put_mask("0-5,8-9", "0-1");
    struct view *view = look(TWO_NODES);
    char *svg = print_view(view, topo_print_svg);
    check_well_formed(svg);
    cr_expect_eq(count_in(svg, "data-use=\"worker\""), 4);
    cr_expect_eq(count_in(svg, "data-use=\"mask\""), 4);
    cr_expect_eq(count_in(svg, "4 CPUs: a worker each"), 1);
    cr_expect_eq(count_in(svg, "8 CPUs: not in the affinity mask"), 1);
    free(svg);
    view_free(view);
}

Test(view, svg_escapes_what_comes_from_outside)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/a&b <\"c\">\x01.xml", root);
    export_machine(TWO_NODES, path);
    char *svg = print_spec(path, topo_print_svg);
    check_well_formed(svg);
    cr_expect_not_null(strstr(svg, "/a&amp;b &lt;&quot;c&quot;&gt;?.xml"));
    cr_expect_eq(count_in(svg, "class=\"core\""), 8);
    free(svg);
}

/* ------------------------------------------------------------------ the public function */

Test(view, public_report)
{
    numoe_error err;
    FILE *out = fopen("/dev/null", "w");
    cr_assert_not_null(out);
    for (int format = NUMOE_REPORT_TEXT; format <= NUMOE_REPORT_SVG; format++) {
        cr_expect_eq(numoe_topo_report(NULL, (numoe_report_format)format, out, &err), NUMOE_OK,
                     "%s", err.text);
    }
    cr_expect_eq(numoe_topo_report(NULL, (numoe_report_format)3, out, &err), NUMOE_E_INPUT);
    cr_expect_eq(numoe_topo_report("pack:x", NUMOE_REPORT_TEXT, out, &err), NUMOE_E_INPUT);
    fclose(out);
    out = fopen("/dev/full", "w");
    if (out) {
        cr_expect_eq(numoe_topo_report(NULL, NUMOE_REPORT_SVG, out, &err), NUMOE_E_FILE_WRITE);
        fclose(out);
    }
}
