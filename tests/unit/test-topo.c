/* numa/topo, allowed, cgroup: machines that are not here (synthetic strings, XML files), limits of
 * processes that are not this one (made-up /proc and /sys below a temporary folder), and this
 * machine under a smaller affinity mask. Expected numbers are counted by hand or come from the
 * table in the topologies' README.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <criterion/criterion.h>

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "numa/allowed.h"
#include "numa/cgroup.h"
#include "numa/pool.h"
#include "numa/topo.h"
#include "tests/unit/madeup.h"
#include "tests/unit/testdata.h"

#define GIB ((uint64_t)1 << 30)

static struct topo *load(const char *spec)
{
    struct topo *t = NULL;
    numoe_error err = {.text = ""};
    numoe_status st = topo_load(spec, &t, &err);
    cr_assert_eq(st, NUMOE_OK, "%s: %s", spec ? spec : "this machine", err.text);
    return t;
}

static unsigned count_pus(const struct topo *t)
{
    unsigned n = 0;
    for (unsigned in = 0; in < t->n_node; in++) {
        n += t->node[in].n_pu;
    }
    return n;
}

static void check_node(const struct topo *t, const struct topo_node *node, const char *what)
{
    cr_expect_lt(node->package, t->n_package, "%s", what);
    cr_expect_gt(node->memory_bytes, 0, "%s", what);
    cr_expect_leq(node->available_bytes, node->memory_bytes, "%s", what);
}

/* What holds on every machine. */
static void check_invariants(const struct topo *t, const char *what)
{
    static unsigned char seen[1 << 16];
    memset(seen, 0, sizeof(seen));
    unsigned n_core = 0;
    cr_assert_gt(t->n_node, 0, "%s", what);
    for (unsigned in = 0; in < t->n_node; in++) {
        const struct topo_node *node = &t->node[in];
        check_node(t, node, what);
        cr_expect(in == 0 || node->os_index > t->node[in - 1].os_index, "%s", what);
        cr_expect_geq(node->n_core, 1, "%s", what);
        cr_expect_geq(node->n_pu, node->n_core, "%s", what);
        n_core += node->n_core;
        for (unsigned i = 0; i < node->n_pu; i++) {
            cr_assert_lt(node->pu[i], sizeof(seen), "%s", what);
            cr_expect_eq(seen[node->pu[i]]++, 0, "%s: PU %u twice", what, node->pu[i]);
        }
        if (t->distance) {
            cr_expect_eq(t->distance[in * t->n_node + in], 10, "%s", what);
        }
    }
    cr_expect_eq(n_core, t->n_core, "%s", what);
    for (unsigned i = 0; i < t->n_memory_node; i++) {
        check_node(t, &t->memory_node[i], what);
        for (unsigned in = 0; in < t->n_node; in++) {
            cr_expect_neq(t->memory_node[i].os_index, t->node[in].os_index, "%s", what);
        }
    }
    cr_expect(strlen(t->description) > 10 && strstr(t->description, "  ") == NULL, "%s",
              t->description);
}

/* ------------------------------------------------------------------ machines by string */

struct machine {
    const char *spec;
    unsigned n_package, n_node, n_memory_node, n_core, n_pu;
};

Test(topo, synthetic_machines)
{
    static const struct machine machines[] = {
        {"pack:1 [numa(memory=64GiB)] core:8 pu:2", 1, 1, 0, 8, 16},
        {"pack:2 [numa(memory=256GiB)] core:32 pu:2", 2, 2, 0, 64, 128},
        {"pack:2 group:4 [numa(memory=96GiB)] l3:3 core:8 pu:2", 2, 8, 0, 192, 384},
        {"pack:2 group:3 [numa(memory=64GiB)] core:14 pu:1", 2, 6, 0, 84, 84},
        {"pack:1 group:2 [numa(memory=64GiB)] core:12 pu:2", 1, 2, 0, 24, 48},
        {"pack:4 [numa(memory=32GiB)] core:6 pu:1", 4, 4, 0, 24, 24},
        {"pack:16 [numa(memory=8GiB)] core:2 pu:1", 16, 16, 0, 32, 32},
        {"pack:8 group:8 [numa(memory=8GiB)] core:1 pu:1", 8, 64, 0, 64, 64},
        /* two memories beside the same cores; one memory for the whole machine */
        {"pack:2 [numa(memory=64GiB)] [numa(memory=256GiB)] core:4 pu:1", 2, 2, 2, 8, 8},
        {"[numa(memory=1TiB)] pack:2 [numa(memory=32GiB)] core:4 pu:1", 2, 2, 1, 8, 8},
        {"pack:2 core:4 pu:2", 2, 1, 0, 8, 16},
        {"core:3 pu:1", 1, 1, 0, 3, 3},
    };
    for (size_t i = 0; i < ARRAY_LEN(machines); i++) {
        const struct machine *m = &machines[i];
        struct topo *t = load(m->spec);
        cr_expect_not(t->is_this_machine);
        cr_expect_eq(t->n_package, m->n_package, "%s: %u packages", m->spec, t->n_package);
        cr_expect_eq(t->n_node, m->n_node, "%s: %u nodes", m->spec, t->n_node);
        cr_expect_eq(t->n_memory_node, m->n_memory_node, "%s: %u", m->spec, t->n_memory_node);
        cr_expect_eq(t->n_core, m->n_core, "%s: %u cores", m->spec, t->n_core);
        cr_expect_eq(count_pus(t), m->n_pu, "%s: %u PUs", m->spec, count_pus(t));
        cr_expect_eq(t->memory_limit_bytes, UINT64_MAX);
        check_invariants(t, m->spec);
        topo_free(t);
    }
}

Test(topo, one_pu_per_core_comes_first)
{
    static const unsigned expected[2][6] = {{0, 2, 4, 1, 3, 5}, {6, 8, 10, 7, 9, 11}};
    struct topo *t = load("pack:2 [numa(memory=1GiB)] core:3 pu:2");
    for (unsigned in = 0; in < 2; in++) {
        cr_assert_eq(t->node[in].n_core, 3);
        cr_assert_eq(t->node[in].n_pu, 6);
        cr_expect_arr_eq(t->node[in].pu, expected[in], sizeof(expected[in]));
    }
    topo_free(t);
}

Test(topo, description_counts_and_sums)
{
    struct topo *t = load("pack:2 [numa(memory=64GiB)] [numa(memory=256GiB)] core:4 pu:1");
    cr_expect_str_eq(t->description, "unknown processor, 2 packages, 2 NUMA nodes, 8 cores, "
                                     "128.0 GiB, 2 nodes of memory only (512.0 GiB)");
    cr_expect_eq(t->node[1].memory_bytes, 64 * GIB);
    cr_expect_eq(t->memory_node[1].memory_bytes, 256 * GIB);
    cr_expect_eq(t->memory_node[1].package, 1);
    topo_free(t);
}

Test(topo, caches_of_a_node_add_up)
{
    struct topo *t =
        load("pack:2 [numa(memory=1GiB)] l3:3(size=32MiB) l2:4(size=1MiB) core:1 pu:2");
    cr_expect_eq(t->node[1].llc_bytes, UINT64_C(3) * 32 << 20);
    topo_free(t);
    t = load("[numa(memory=1GiB)] l2:4(size=1MiB) core:2 pu:1");
    cr_expect_eq(t->node[0].llc_bytes, UINT64_C(4) << 20);
    topo_free(t);
}

Test(topo, more_nodes_than_possible_is_an_error)
{
    struct topo *t = NULL;
    numoe_error err;
    cr_assert_eq(topo_load("pack:65 [numa(memory=1GiB)] core:1 pu:1", &t, &err), NUMOE_E_SUPPORT);
    cr_expect(strstr(err.text, "64"), "%s", err.text);
    cr_expect_null(t);
}

/* ------------------------------------------------------------------ parts of a machine */

struct share_case {
    const char *spec;
    unsigned share, n_share, n_node, first_os_node, n_core, first_pu;
};

/* Whole nodes where there are as many; otherwise cores of one, with their second PUs. */
Test(topo, processes_share_a_machine)
{
    static const struct share_case cases[] = {
        {"numa:4 core:2 pu:1", 0, 2, 2, 0, 4, 0}, {"numa:4 core:2 pu:1", 1, 2, 2, 2, 4, 4},
        {"numa:3 core:2 pu:1", 0, 2, 1, 0, 2, 0}, {"numa:3 core:2 pu:1", 1, 2, 2, 1, 4, 2},
        {"numa:2 core:4 pu:1", 0, 4, 1, 0, 2, 0}, {"numa:2 core:4 pu:1", 3, 4, 1, 1, 2, 6},
        {"numa:2 core:3 pu:1", 0, 3, 1, 0, 1, 0}, {"numa:2 core:3 pu:1", 1, 3, 1, 0, 2, 1},
        {"numa:2 core:3 pu:1", 2, 3, 1, 1, 3, 3}, {"numa:1 core:2 pu:1", 0, 4, 1, 0, 1, 0},
        {"numa:1 core:2 pu:1", 3, 4, 1, 0, 1, 1}, {"numa:1 core:4 pu:2", 1, 2, 1, 0, 2, 4},
        {"numa:5 core:1 pu:1", 4, 5, 1, 4, 1, 4},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct share_case *c = &cases[i];
        struct topo *t = load(c->spec);
        numoe_error err;
        cr_assert_eq(topo_keep_share(t, c->share, c->n_share, &err), NUMOE_OK, "%s", err.text);
        unsigned n_core = 0;
        for (unsigned in = 0; in < t->n_node; in++) {
            n_core += t->node[in].n_core;
        }
        cr_assert_eq(t->n_node, c->n_node, "%zu: %s", i, t->description);
        cr_assert_eq(t->node[0].os_index, c->first_os_node, "%zu: %s", i, t->description);
        cr_assert_eq(t->n_core, c->n_core, "%zu: %s", i, t->description);
        cr_assert_eq(n_core, c->n_core, "%zu: %s", i, t->description);
        cr_assert_eq(t->node[0].pu[0], c->first_pu, "%zu: PU %u", i, t->node[0].pu[0]);
        topo_free(t);
    }
}

Test(topo, a_shared_core_keeps_its_second_pu)
{
    struct topo *t = load("numa:1 core:4 pu:2");
    numoe_error err;
    cr_assert_eq(topo_keep_share(t, 1, 2, &err), NUMOE_OK, "%s", err.text);
    cr_assert_eq(t->node[0].n_pu, 4);
    for (unsigned i = 0; i < 4; i++) {
        const unsigned want[] = {4, 6, 5, 7};
        cr_assert_eq(t->node[0].pu[i], want[i], "PU %u: %u", i, t->node[0].pu[i]);
    }
    cr_assert(strstr(t->description, "; part 2 of 2: 1 node, 2 cores"), "%s", t->description);
    cr_assert_eq(topo_keep_share(t, 2, 2, &err), NUMOE_E_INPUT);
    topo_free(t);
}

/* ------------------------------------------------------------------ bad input */

Test(topo, bad_specs_say_what_and_where)
{
    char path[] = "/tmp/numoe-topo-XXXXXX.xml";
    int fd = mkstemps(path, 4);
    cr_assert(write(fd, "<topology>", 10) == 10);
    close(fd);
    char fifo[] = "/tmp/numoe-topo-XXXXXX.xml";
    close(mkstemps(fifo, 4));
    unlink(fifo);
    cr_assert(mkfifo(fifo, 0600) == 0);
    const struct {
        const char *spec;
        numoe_status status;
        const char *says;
    } cases[] = {
        {"two sockets", NUMOE_E_INPUT, "two sockets"},
        {"", NUMOE_E_INPUT, "synthetic"},
        {"pack:0 core:1 pu:1", NUMOE_E_INPUT, "pack:0"},
        {"/no/such/machine.xml", NUMOE_E_FILE_OPEN, "/no/such/machine.xml"},
        {path, NUMOE_E_FILE_FORMAT, path},
        {fifo, NUMOE_E_FILE_OPEN, "not a regular file"},
        {"core:100000 pu:1", NUMOE_E_INPUT, "100000 hardware threads, at most 4096"},
        {"pack:4 [numa(memory=64GiB)] core:1024 pu:4", NUMOE_E_INPUT, "16384 hardware threads"},
        {"70000 70000 70000 70000 70000", NUMOE_E_INPUT, "18446744073709551615 hardware threads"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct topo *t = NULL;
        numoe_error err = {.text = ""};
        cr_expect_eq(topo_load(cases[i].spec, &t, &err), cases[i].status, "%s", cases[i].spec);
        cr_expect(strstr(err.text, cases[i].says), "%s", err.text);
        cr_expect_null(t);
    }
    unlink(path);
    unlink(fifo);
}

/* ------------------------------------------------------------------ machines by file */

struct xml_machine {
    const char *file;
    unsigned n_package, n_node, n_memory_node, n_core, n_pu, n_far;
};

/* The README's columns; HBM, NVM, and second memories of the same cores are memory nodes. */
static const struct xml_machine xml_machines[] = {
    {"epyc7401-2s-8n", 2, 8, 0, 48, 96, 0},
    {"epyc7551-2s-8n-smt", 2, 8, 0, 64, 128, 0},
    {"epyc7402-2s-nps1", 2, 2, 0, 48, 96, 0},
    {"epyc7a53-1s-nps4-8gpu", 1, 4, 0, 64, 128, 0},
    {"synthetic-epyc9654-2s-nps1", 2, 2, 0, 192, 384, 0},
    {"synthetic-epyc9654-2s-nps4", 2, 8, 0, 192, 384, 0},
    {"synthetic-spr8480-2s-snc4", 2, 8, 0, 112, 224, 0},
    {"haswell-2s-cod-4n", 2, 2, 2, 28, 28, 0},
    {"cascadelakeap-4p-4n-smt", 4, 4, 0, 96, 192, 0},
    {"cascadelake-2s-smt-8gpu", 2, 2, 0, 48, 96, 0},
    {"broadwell-2s-smt-2gpu", 2, 2, 0, 36, 72, 0},
    {"broadwell-2s-smt-off", 2, 2, 0, 36, 36, 0},
    {"xeon6230-2s-4n-memside-cache", 2, 4, 0, 40, 80, 0},
    {"fake-hetero-memory-tiers-7n", 1, 3, 4, 6, 6, 0},
    {"fakeknl-snc4-hbm-memattrs", 1, 4, 4, 16, 64, 0},
    {"knl7250-snc4-flat", 1, 4, 4, 68, 272, 0},
    {"memattrs-4n", 1, 4, 0, 8, 8, 0},
    {"cxl-memory-dax", 1, 1, 0, 4, 4, 0},
    {"opteron-4s-cgroup-restricted", 3, 1, 1, 4, 4, 4}, /* those with CPUs or memory for it */
    {"xeon4640-8s-disallowed", 2, 2, 0, 16, 16, 0},
    {"opteron-4s-8n-sparse-ids-asymmetric", 4, 8, 0, 48, 48, 0},
    {"xeon-16p-4n-node-spans-sockets", 16, 4, 0, 96, 96, 0},
};

static struct topo *load_xml(const char *file)
{
    char rel[128];
    snprintf(rel, sizeof(rel), "topologies/%s.xml", file);
    char *path = test_data_path(rel);
    if (path == NULL) {
        return NULL;
    }
    struct topo *t = load(path);
    free(path);
    return t;
}

Test(topo, xml_machines)
{
    unsigned n_found = 0;
    for (size_t i = 0; i < ARRAY_LEN(xml_machines); i++) {
        const struct xml_machine *m = &xml_machines[i];
        struct topo *t = load_xml(m->file);
        if (t == NULL) {
            continue;
        }
        n_found++;
        cr_expect_not(t->is_this_machine);
        cr_expect_eq(t->n_package, m->n_package, "%s: %u packages", m->file, t->n_package);
        cr_expect_eq(t->n_node, m->n_node, "%s: %u nodes", m->file, t->n_node);
        cr_expect_eq(t->n_memory_node, m->n_memory_node, "%s: %u", m->file, t->n_memory_node);
        cr_expect_eq(t->n_core, m->n_core, "%s: %u cores", m->file, t->n_core);
        cr_expect_eq(count_pus(t), m->n_pu, "%s: %u PUs", m->file, count_pus(t));
        cr_expect_eq(t->n_far_core, m->n_far, "%s: %u far cores", m->file, t->n_far_core);
        check_invariants(t, m->file);
        topo_free(t);
    }
    if (n_found == 0) {
        cr_skip("no topologies below NUMOE_TEST_DATA");
    }
}

Test(topo, xml_details)
{
    struct topo *t = load_xml("opteron-4s-8n-sparse-ids-asymmetric");
    if (t == NULL) {
        cr_skip("no topologies below NUMOE_TEST_DATA");
    }
    static const unsigned ids[] = {0, 1, 2, 33, 34, 45, 72, 73};
    for (unsigned in = 0; in < 8; in++) {
        cr_expect_eq(t->node[in].os_index, ids[in]);
    }
    topo_free(t);

    /* CPUs of node 0, memory of nodes 2 and 3: none is local. */
    t = load_xml("opteron-4s-cgroup-restricted");
    cr_expect_eq(t->node[0].os_index, 2);
    cr_expect_eq(t->node[0].package, 0);
    cr_expect_eq(t->memory_node[0].os_index, 3);
    topo_free(t);

    t = load_xml("haswell-2s-cod-4n");
    cr_assert_not_null(t->distance);
    cr_expect_eq(t->distance[0 * 2 + 1], 31);
    topo_free(t);

    t = load_xml("fakeknl-snc4-hbm-memattrs");
    cr_expect_float_eq(t->node[2].read_bps, 22500.0 * 1048576.0, 1.0);
    cr_expect_float_eq(t->memory_node[2].read_bps, 90000.0 * 1048576.0, 1.0);
    topo_free(t);

    /* A node of HBM with cores but no DRAM is their home. */
    t = load_xml("fake-hetero-memory-tiers-7n");
    cr_expect_eq(t->node[2].os_index, 2);
    static const unsigned tiers[] = {4, 6, 8, 9};
    for (unsigned i = 0; i < 4; i++) {
        cr_expect_eq(t->memory_node[i].os_index, tiers[i]);
    }
    topo_free(t);
}

/* ------------------------------------------------------------------ made-up processes */

TestSuite(tree, .init = madeup_setup, .fini = madeup_teardown);

static struct topo *load_below(const char *spec)
{
    struct topo *t = NULL;
    numoe_error err = {.text = ""};
    cr_assert_eq(topo_load_below(root, spec, &t, &err), NUMOE_OK, "%s", err.text);
    check_invariants(t, spec);
    return t;
}

#define TWO_NODES "pack:2 [numa(memory=8GiB)] core:4 pu:2" /* PUs 0-7 and 8-15 */

Test(tree, nothing_to_read_limits_nothing)
{
    struct topo *t = load_below(TWO_NODES);
    cr_expect_eq(t->n_core, 8);
    cr_expect_eq(t->cpu_quota, 0);
    cr_expect_eq(t->memory_limit_bytes, UINT64_MAX);
    cr_expect_eq(t->n_excluded_pu, 0);
    topo_free(t);
}

Test(tree, v2_smallest_quota_and_memory_on_the_path_bind)
{
    put_v2("/slurm/job/step");
    put("/sys/fs/cgroup/slurm/job/step/cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/slurm/job/cpu.max", "250000 100000\n");
    put("/sys/fs/cgroup/slurm/cpu.max", "90000 10000\n");
    put("/sys/fs/cgroup/slurm/job/step/memory.max", "max\n");
    put("/sys/fs/cgroup/slurm/job/memory.max", "1000000000\n");
    put("/sys/fs/cgroup/slurm/job/memory.current", "600000000\n");
    put("/sys/fs/cgroup/slurm/job/memory.stat",
        "anon 400000000\nfile 200000000\ninactive_file 50000000\nactive_file 100000000\n");
    put("/sys/fs/cgroup/slurm/memory.max", "8000000000\n");
    put("/sys/fs/cgroup/slurm/memory.current", "600000000\n");
    struct topo *t = load_below(TWO_NODES);
    cr_expect_float_eq(t->cpu_quota, 2.5, 1e-9);
    cr_expect_eq(t->memory_limit_bytes, 1000000000 - (600000000 - 150000000));
    cr_expect_eq(t->n_core, 8);
    /* Never more workers than the quota, unless asked for. */
    struct pools *pools;
    cr_assert_eq(pools_new(t, 0, &pools, NULL), NUMOE_OK);
    cr_expect_eq(pools_n_worker(pools), 2);
    cr_expect_eq(pools_n_node(pools), 2);
    pools_free(pools);
    topo_free(t);
}

Test(tree, v2_high_mark_binds_and_overdrawn_group_has_nothing_left)
{
    put_v2("/a");
    put("/sys/fs/cgroup/a/memory.max", "4000000\n");
    put("/sys/fs/cgroup/a/memory.high", "3000000\n");
    put("/sys/fs/cgroup/a/memory.current", "1000000\n");
    struct cgroup_limits limits;
    cgroup_read(root, &limits);
    cr_expect_eq(limits.memory_bytes, 2000000);
    cgroup_fini(&limits);
    put("/sys/fs/cgroup/a/memory.current", "9000000\n");
    cgroup_read(root, &limits);
    cr_expect_eq(limits.memory_bytes, 0);
    cgroup_fini(&limits);
}

Test(tree, v1_limits)
{
    put("/proc/self/mountinfo",
        "31 22 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "32 22 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "33 22 0:29 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
        "34 22 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    put("/proc/self/cgroup", "5:cpuset:/set\n4:memory:/m/n\n3:cpuacct,cpu:/c\n0::/elsewhere\n");
    put("/sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_quota_us", "350000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/memory/m/n/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/m/memory.limit_in_bytes", "2000000\n");
    put("/sys/fs/cgroup/memory/m/memory.usage_in_bytes", "1500000\n");
    put("/sys/fs/cgroup/memory/m/memory.stat",
        "active_file 7\ntotal_inactive_file 200000\ntotal_active_file 300000\n");
    put("/sys/fs/cgroup/cpuset/set/cpuset.cpus", "0-1,8\n");
    put("/sys/fs/cgroup/cpuset/set/cpuset.mems", "0-1\n");
    put("/sys/fs/cgroup/unified/elsewhere/memory.max", "1\n"); /* the controller is not here */
    struct topo *t = load_below(TWO_NODES);
    cr_expect_float_eq(t->cpu_quota, 3.5, 1e-9);
    cr_expect_eq(t->memory_limit_bytes, 2000000 - (1500000 - 500000));
    cr_expect_eq(t->n_core, 2);
    cr_expect_eq(count_pus(t), 3);
    cr_expect_eq(t->n_excluded_pu, 13);
    topo_free(t);
}

Test(tree, container_sees_its_group_as_the_mount_point)
{
    /* The path in /proc/self/cgroup is the host's; only the part below it is mounted. */
    put("/proc/self/mountinfo",
        "32 22 0:28 /docker/4711 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
    put("/proc/self/cgroup", "4:memory:/docker/4711/inner\n");
    put("/sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "5000\n");
    put("/sys/fs/cgroup/memory/inner/memory.usage_in_bytes", "1000\n");
    struct cgroup_limits limits;
    cgroup_read(root, &limits);
    cr_expect_eq(limits.memory_bytes, 4000);
    cgroup_fini(&limits);
    /* A path that is not there at all. */
    put_v2("/../../host/path");
    put("/sys/fs/cgroup/memory.max", "7000\n");
    put("/sys/fs/cgroup/memory.current", "1000\n");
    cgroup_read(root, &limits);
    cr_expect_eq(limits.memory_bytes, 6000);
    cgroup_fini(&limits);
}

Test(tree, v2_cpuset_cuts_cpus_and_nodes)
{
    put_v2("/job");
    put("/sys/fs/cgroup/job/cpuset.cpus.effective", "8-11\n");
    put("/sys/fs/cgroup/job/cpuset.mems.effective", "1\n");
    struct topo *t = load_below(TWO_NODES);
    cr_assert_eq(t->n_node, 1);
    cr_expect_eq(t->node[0].os_index, 1);
    cr_expect_eq(t->node[0].n_core, 2);
    cr_expect_eq(t->n_memory_node, 0);
    cr_expect_eq(t->n_far_core, 0);
    topo_free(t);
}

Test(tree, affinity_mask_takes_single_pus_of_cores)
{
    put("/proc/self/status", "Name:\tx\nCpus_allowed_list:\t1,3-4,14\nMems_allowed_list:\t0-1\n");
    struct topo *t = load_below(TWO_NODES);
    cr_assert_eq(t->n_node, 2);
    cr_assert_eq(t->node[0].n_pu, 3); /* one each of cores 0, 1, 2 */
    cr_expect_eq(t->node[0].pu[0], 1);
    cr_expect_eq(t->node[0].pu[1], 3);
    cr_expect_eq(t->node[0].pu[2], 4);
    cr_assert_eq(t->node[1].n_core, 1);
    cr_expect_eq(t->node[1].pu[0], 14);
    topo_free(t);
}

Test(tree, excluded_cpus_leave_a_memory_node)
{
    put("/proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-7\nMems_allowed_list:\t0-1\n");
    struct topo *t = load_below(TWO_NODES);
    cr_expect_eq(t->n_node, 1);
    cr_assert_eq(t->n_memory_node, 1);
    cr_expect_eq(t->memory_node[0].os_index, 1);
    cr_expect_eq(t->memory_node[0].package, 1);
    topo_free(t);
}

static char logged[512];
static void keep_log(void *arg, numoe_log_level level, const char *line)
{
    (void)arg, (void)level;
    strncat(logged, line, sizeof(logged) - strlen(logged) - 1);
}

Test(tree, cpus_without_memory_work_on_the_nearest_node)
{
    put("/proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-15\nMems_allowed_list:\t0\n");
    numoe_log_set(keep_log, NULL, NUMOE_LOG_INFO);
    struct topo *t = load_below(TWO_NODES);
    cr_assert_eq(t->n_node, 1);
    cr_expect_eq(t->n_far_core, 4);
    cr_expect_eq(t->node[0].n_core, 8);
    topo_free(t);
    numoe_log_set(NULL, NULL, NUMOE_LOG_WARN);
    cr_expect(strstr(logged, "4 of 8 cores"), "%s", logged);

    /* Nearest: in the own package first. Nodes 0,1 | 2,3; memory is allowed on 1 and 2. */
    put("/proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-7\nMems_allowed_list:\t1-2\n");
    t = load_below("pack:2 group:2 [numa(memory=1GiB)] core:2 pu:1");
    cr_assert_eq(t->n_node, 2);
    static const unsigned expected[2][4] = {{0, 1, 2, 3}, {4, 5, 6, 7}};
    for (unsigned in = 0; in < 2; in++) {
        cr_assert_eq(t->node[in].n_pu, 4);
        cr_expect_arr_eq(t->node[in].pu, expected[in], sizeof(expected[in]));
    }
    topo_free(t);
}

Test(tree, nothing_allowed_is_an_error_with_the_lists)
{
    struct topo *t = NULL;
    numoe_error err;
    put_v2("/job");
    put("/sys/fs/cgroup/job/cpuset.cpus.effective", "8-11\n");
    put("/proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-7\n");
    cr_assert_eq(topo_load_below(root, TWO_NODES, &t, &err), NUMOE_E_SUPPORT);
    cr_expect(strstr(err.text, "8-11"), "%s", err.text);
    cr_expect_null(t);
}

Test(tree, free_and_reclaimable_memory_and_huge_pages_of_a_node)
{
    put("/sys/devices/system/node/has_memory", "0-1\n");
    put("/sys/devices/system/node/node1/meminfo",
        "Node 1 MemTotal:  8000000 kB\nNode 1 MemFree:   1000000 kB\n"
        "Node 1 Active(anon):  5 kB\nNode 1 Active(file): 200000 kB\n"
        "Node 1 Inactive(file): 300000 kB\nNode 1 Dirty:  10000 kB\nNode 1 Writeback: 5000 kB\n"
        "Node 1 SReclaimable:  40000 kB\n");
    put("/sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages", "16\n");
    put("/sys/devices/system/node/node1/hugepages/hugepages-1048576kB/free_hugepages", "3\n");
    /* 4 KiB pages; of node 1: a zone whose free pages are kept for others, one with 250000 free,
     * 10000 below the high mark, and 9000 + 1000 below the low ones. */
    put("/proc/zoneinfo",
        "Node 0, zone      DMA\n  per-node stats\n      nr_inactive_anon 1\n  pages free     3840\n"
        "        boost    0\n        min      8\n        low      11\n        high     14\n"
        "        protection: (0, 0, 0, 0, 0)\n      nr_free_pages 3840\n"
        "Node 1, zone    DMA32\n  pages free     4000\n        min      900\n"
        "        low      1000\n        high     1100\n"
        "        protection: (0, 0, 3000, 3000, 3000)\n      nr_free_pages 4000\n"
        "Node 1, zone   Normal\n  per-node stats\n      nr_inactive_anon 7\n"
        "  pages free     250000\n        min      8000\n        low      9000\n"
        "        high     10000\n        protection: (0, 0, 0, 0, 0)\n  pagesets\n    cpu: 0\n"
        "              high:  99999\n              batch: 1\n");
    struct topo *t = load_below(TWO_NODES);
    /* 240000 pages; 485000 KiB of clean files less the low marks; half of the slabs */
    cr_expect_eq(t->node[1].available_bytes, (960000 + 445000 + 20000) * UINT64_C(1024));
    cr_expect_eq(t->node[0].available_bytes, 0);
    cr_expect_eq(t->node[1].huge_2m_free, 16);
    cr_expect_eq(t->node[1].huge_1g_free, 3);
    cr_expect_eq(t->node[0].huge_2m_free, 0);
    topo_free(t);
    /* A node below its marks has a page: nothing at all would mean that nobody knows. */
    put("/sys/devices/system/node/node1/meminfo", "Node 1 MemFree:   60000 kB\n");
    put("/proc/zoneinfo", "Node 1, zone   Normal\n  pages free     15000\n        min      12000\n"
                          "        low      15000\n        high     18000\n");
    t = load_below(TWO_NODES);
    cr_expect_eq(t->node[1].available_bytes, 4096);
    topo_free(t);
}

Test(tree, memory_that_may_grow)
{
    put("/proc/meminfo", "MemTotal: 2000000 kB\nMemAvailable: 1500000 kB\n");
    struct topo *t = load_below(TWO_NODES);
    cr_expect_not(t->memory_may_grow);
    topo_free(t);
    put("/sys/bus/virtio/drivers/virtio_balloon/virtio0/uevent", "");
    t = load_below(TWO_NODES);
    cr_expect(t->memory_may_grow);
    topo_free(t);
}

Test(tree, one_node_goes_by_the_estimate_of_the_kernel)
{
    put("/sys/devices/system/node/has_memory", "0\n");
    put("/sys/devices/system/node/node0/meminfo", "Node 0 MemFree:   1000 kB\n");
    put("/proc/meminfo", "MemTotal: 9000 kB\nMemFree: 2000 kB\nMemAvailable:    5000 kB\n");
    struct topo *t = load_below("[numa(memory=8GiB)] core:4 pu:1");
    cr_expect_eq(t->node[0].available_bytes, 5000 * 1024);
    topo_free(t);
}

/* ------------------------------------------------------------------ this machine */

Test(topo, this_machine)
{
    struct topo *t = load(NULL);
    cr_expect(t->is_this_machine);
    check_invariants(t, "this machine");
    cr_expect_gt(t->node[0].available_bytes, 0);
    cr_expect_gt(t->host_room_bytes, 0);
    cr_expect_geq(t->n_runnable, 1);
    cpu_set_t set;
    cr_assert_eq(sched_getaffinity(0, sizeof(set), &set), 0);
    for (unsigned in = 0; in < t->n_node; in++) {
        for (unsigned i = 0; i < t->node[in].n_pu; i++) {
            cr_expect(CPU_ISSET(t->node[in].pu[i], &set));
        }
    }
    topo_free(t);
}

/* In a child: a mask narrows for good. Exit status 0 when only the mask's last CPU is used. */
static int load_on_last_cpu(void)
{
    cpu_set_t set;
    int last = -1;
    sched_getaffinity(0, sizeof(set), &set);
    for (int i = 0; i < CPU_SETSIZE; i++) {
        last = CPU_ISSET(i, &set) ? i : last;
    }
    CPU_ZERO(&set);
    CPU_SET(last, &set);
    struct topo *t;
    struct pools *pools;
    if (sched_setaffinity(0, sizeof(set), &set) != 0 || topo_load(NULL, &t, NULL) != NUMOE_OK ||
        pools_new(t, 0, &pools, NULL) != NUMOE_OK) {
        return 1;
    }
    bool good = t->n_node == 1 && t->n_core == 1 && t->node[0].n_pu == 1 &&
                t->node[0].pu[0] == (unsigned)last && t->n_runnable == 1 &&
                pools_n_worker(pools) == 1;
    pools_free(pools);
    topo_free(t);
    return good ? 0 : 2;
}

Test(topo, affinity_mask_is_obeyed)
{
    pid_t pid = fork();
    cr_assert_geq(pid, 0);
    if (pid == 0) {
        _exit(load_on_last_cpu());
    }
    int status;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %d", status);
}

Test(topo, environment_of_hwloc_applies_and_stays_as_it_was)
{
    setenv("HWLOC_SYNTHETIC", "pack:3 [numa(memory=1GiB)] core:2 pu:1", 1);
    struct topo *t = load(NULL);
    cr_expect_eq(t->n_node, 3);
    cr_expect_not(t->is_this_machine);
    cr_expect_null(getenv("HWLOC_HIDE_ERRORS"));
    topo_free(t);
}
