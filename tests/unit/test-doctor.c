/* numa/doctor: machines with known settings and limits, made up below a temporary folder, and what
 * must be said of each; calls that are refused, by a world that refuses them. What a setting means
 * is from the kernel's own documentation.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <criterion/criterion.h>

#include <jansson.h>

#include "base/mem.h"
#include "numa/doctor.h"
#include "tests/unit/madeup.h"

TestSuite(doctor, .init = madeup_setup, .fini = madeup_teardown);

#define THP  "/sys/kernel/mm/transparent_hugepage"
#define NODE "/sys/devices/system/node"
#define CPU  "/sys/devices/system/cpu"

/* ------------------------------------------------------------------ a world that can refuse */

static int bind_error, where_error, uring_error;
static unsigned bound_node;

static int bind_or_not(struct world *w, void *addr, size_t bytes, unsigned os_node)
{
    (void)w, (void)addr, (void)bytes;
    bound_node = os_node;
    return bind_error;
}

static int where_or_not(struct world *w, void **page, unsigned n_page, int *node)
{
    (void)w, (void)page, (void)n_page;
    *node = 0;
    return where_error;
}

static int uring_or_not(struct world *w)
{
    (void)w;
    return uring_error;
}

static void examine(struct doctor_report *report)
{
    struct world *world;
    cr_assert_eq(world_new_native(root, &world, NULL), NUMOE_OK);
    world->bind = bind_or_not;
    world->where = where_or_not;
    world->uring = uring_or_not;
    doctor_examine(world, report);
    world_free(world);
}

static const struct doctor_finding *find(const struct doctor_report *report, const char *check)
{
    for (unsigned i = 0; i < report->n_finding; i++) {
        if (strcmp(report->finding[i].check, check) == 0) {
            return &report->finding[i];
        }
    }
    cr_assert_fail("there is no check \"%s\"", check);
    return NULL;
}

/* The level, a part of what was found, and a part of the command that mends it. */
static void expect(const char *check, enum doctor_level level, const char *found, const char *mend)
{
    struct doctor_report report;
    examine(&report);
    const struct doctor_finding *f = find(&report, check);
    cr_expect_eq(f->level, level, "%s: level %d: %s", check, f->level, f->found);
    cr_expect_not_null(strstr(f->found, found), "%s: \"%s\"", check, f->found);
    cr_expect_eq(f->mend == NULL, level == DOCTOR_OK, "%s", check);
    cr_expect_eq(f->cost == NULL, level == DOCTOR_OK, "%s", check);
    if (mend && f->mend) {
        cr_expect_not_null(strstr(f->mend, mend), "%s: \"%s\"", check, f->mend);
    }
}

static void put_nodes(const char *list)
{
    put(NODE "/has_memory", list);
}

/* ------------------------------------------------------------------ whole machines */

static void expect_all_ok(void)
{
    struct doctor_report report;
    examine(&report);
    cr_assert_geq(report.n_finding, 19);
    for (unsigned i = 0; i < report.n_finding; i++) {
        const struct doctor_finding *f = &report.finding[i];
        cr_expect_eq(f->level, DOCTOR_OK, "%s: %s", f->check, f->found);
        cr_expect_neq(f->found[0], '\0', "%s", f->check);
    }
}

Test(doctor, nothing_to_read_is_nothing_to_complain_of)
{
    expect_all_ok();
}

Test(doctor, a_tuned_machine_is_well)
{
    put_nodes("0-7\n");
    put(CPU "/online", "0-3\n");
    for (int i = 0; i < 4; i++) {
        char path[96];
        snprintf(path, sizeof(path), CPU "/cpu%d/cpufreq/scaling_governor", i);
        put(path, "performance\n");
    }
    put(CPU "/smt/active", "1\n");
    put("/proc/sys/kernel/osrelease", "6.1.0-42-amd64\n");
    put("/proc/sys/kernel/numa_balancing", "0\n");
    put("/proc/sys/vm/zone_reclaim_mode", "0\n");
    put("/proc/sys/vm/swappiness", "1\n");
    put("/proc/sys/vm/overcommit_memory", "0\n");
    put("/proc/meminfo", "MemAvailable:   1000000 kB\nSwapTotal:      4194304 kB\n");
    put("/proc/self/limits", "Max locked memory         unlimited            unlimited   bytes\n");
    put("/proc/self/status", "Name:\tnumoe\nCapEff:\t0000000000800000\nSeccomp:\t0\n"
                             "Cpus_allowed_list:\t0-3\nMems_allowed_list:\t0-7\n");
    put(THP "/enabled", "always [madvise] never\n");
    put(THP "/defrag", "always defer [defer+madvise] madvise never\n");
    expect_all_ok();
    expect("container", DOCTOR_OK, "no system calls are filtered, with CAP_SYS_NICE", NULL);
    expect("SMT", DOCTOR_OK, "on", NULL);
    expect("frequency", DOCTOR_OK, "performance on 4 of 4", NULL);
    expect("CPUs allowed", DOCTOR_OK, "4 of 4", NULL);
    expect("swap", DOCTOR_OK, "4.0 GiB, swappiness 1", NULL);
}

/* ------------------------------------------------------------------ memory */

Test(doctor, balancing_matters_with_several_nodes)
{
    put("/proc/sys/kernel/numa_balancing", "1\n");
    put_nodes("0\n");
    expect("NUMA balancing", DOCTOR_OK, "on", NULL);
    put_nodes("0-1\n");
    expect("NUMA balancing", DOCTOR_NOTE, "on", "sysctl -w kernel.numa_balancing=0");
    put("/proc/sys/kernel/numa_balancing", "2\n");
    expect("NUMA balancing", DOCTOR_NOTE, "on", NULL);
    bind_error = EPERM;
    expect("NUMA balancing", DOCTOR_WARNING, "on", "sysctl -w kernel.numa_balancing=0");
}

Test(doctor, transparent_huge_pages)
{
    put(THP "/enabled", "[always] madvise never\n");
    expect("huge pages", DOCTOR_OK, "always", NULL);
    put(THP "/enabled", "always madvise [never]\n");
    expect("huge pages", DOCTOR_WARNING, "never",
           "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled");
    put(THP "/enabled", "always [madvise] never\n");
    put("/proc/self/status", "Name:\tx\nTHP_enabled:\t0\n");
    expect("huge pages", DOCTOR_WARNING, "forbidden to this process", "prctl");
    put("/proc/self/status", "Name:\tx\nTHP_enabled:\t1\n");
    expect("huge pages", DOCTOR_OK, "madvise", NULL);

    put(THP "/defrag", "always defer defer+madvise madvise [never]\n");
    expect("huge page defrag", DOCTOR_NOTE, "never", "transparent_hugepage/defrag");
    put(THP "/defrag", "always [defer] defer+madvise madvise never\n");
    expect("huge page defrag", DOCTOR_NOTE, "defer", "echo defer+madvise");
}

Test(doctor, reserved_pages_are_lost_where_they_cannot_be_bound)
{
    put_nodes("0,2\n");
    put(NODE "/node0/hugepages/hugepages-2048kB/free_hugepages", "512\n");
    put(NODE "/node1/hugepages/hugepages-2048kB/free_hugepages", "1000\n"); /* no such node */
    put(NODE "/node2/hugepages/hugepages-2048kB/free_hugepages", "8\n");
    expect("huge page pool", DOCTOR_OK, "520 of 2 MiB, 0 of 1 GiB", NULL);
    put("/proc/sys/kernel/osrelease", "5.13.19\n");
    expect("huge page pool", DOCTOR_NOTE, "520 of 2 MiB", "sysctl -w vm.nr_hugepages=0");
    put("/proc/sys/kernel/osrelease", "5.14.0-427.el9.x86_64\n");
    expect("huge page pool", DOCTOR_OK, "520 of 2 MiB", NULL);
    put(NODE "/node2/hugepages/hugepages-1048576kB/free_hugepages", "3\n");
    bind_error = EPERM;
    expect("huge page pool", DOCTOR_NOTE, "520 of 2 MiB, 3 of 1 GiB", "hugepages-*/nr_hugepages");
}

static void put_node_memory(int in, unsigned total_mib, unsigned free_mib, unsigned file_mib)
{
    char path[96], text[256];
    snprintf(path, sizeof(path), NODE "/node%d/meminfo", in);
    snprintf(text, sizeof(text),
             "Node %d MemTotal:       %u kB\nNode %d MemFree:        %u kB\n"
             "Node %d FilePages:      %u kB\n",
             in, total_mib * 1024, in, free_mib * 1024, in, file_mib * 1024);
    put(path, text);
}

Test(doctor, page_cache_in_the_way)
{
    put_nodes("0-1\n");
    put_node_memory(0, 4096, 3072, 512);
    put_node_memory(1, 4096, 1024, 2560); /* a quarter is free: enough */
    expect("page cache", DOCTOR_OK, "3.0 GiB of files, 4.0 GiB free", NULL);
    put_node_memory(1, 4096, 512, 3072);
    expect("page cache", DOCTOR_NOTE, "more cache than free on 1 of 2 nodes", "drop_caches");
    put_node_memory(1, 4096, 512, 1024); /* not the cache's fault */
    expect("page cache", DOCTOR_OK, "1.5 GiB of files, 3.5 GiB free", NULL);
}

Test(doctor, zone_reclaim_matters_with_several_nodes)
{
    put("/proc/sys/vm/zone_reclaim_mode", "1\n");
    put_nodes("0\n");
    expect("zone reclaim", DOCTOR_OK, "1", NULL);
    put_nodes("0-3\n");
    expect("zone reclaim", DOCTOR_WARNING, "1", "sudo sysctl -w vm.zone_reclaim_mode=0");
}

Test(doctor, swap_and_locking)
{
    put("/proc/self/limits", "Limit                     Soft Limit           Hard Limit\n"
                             "Max locked memory         8388608              8388608    bytes\n");
    put("/proc/sys/vm/swappiness", "60\n");
    put("/proc/meminfo", "SwapTotal:             0 kB\n");
    expect("swap", DOCTOR_OK, "none", NULL);
    expect("locked memory", DOCTOR_OK, "8.0 MiB", NULL);
    put("/proc/meminfo", "SwapTotal:       2097152 kB\n");
    expect("swap", DOCTOR_NOTE, "2.0 GiB, swappiness 60", "sysctl -w vm.swappiness=1");
    expect("locked memory", DOCTOR_NOTE, "8.0 MiB", "ulimit -l unlimited");
    put("/proc/sys/vm/swappiness", "10\n");
    expect("swap", DOCTOR_OK, "swappiness 10", NULL);
}

Test(doctor, counted_address_space)
{
    put("/proc/meminfo", "CommitLimit:    10485760 kB\nCommitted_AS:    3145728 kB\n");
    put("/proc/sys/vm/overcommit_memory", "1\n");
    expect("overcommit", DOCTOR_OK, "not counted", NULL);
    put("/proc/sys/vm/overcommit_memory", "2\n");
    expect("overcommit", DOCTOR_WARNING, "7.0 GiB are left", "vm.overcommit_memory=0");
}

/* ------------------------------------------------------------------ limits */

Test(doctor, control_group)
{
    put(CPU "/online", "0-15\n");
    put("/proc/meminfo", "MemAvailable:   67108864 kB\n");
    put_v2("/job");
    put("/sys/fs/cgroup/job/memory.max", "max\n");
    put("/sys/fs/cgroup/job/cpu.max", "max 100000\n");
    expect("memory limit", DOCTOR_OK, "none", NULL);
    expect("CPU quota", DOCTOR_OK, "none", NULL);
    put("/sys/fs/cgroup/job/memory.max", "17179869184\n");
    put("/sys/fs/cgroup/job/memory.current", "4294967296\n");
    put("/sys/fs/cgroup/job/cpu.max", "350000 100000\n");
    expect("memory limit", DOCTOR_NOTE, "12.0 GiB may still be taken, 64.0 GiB are available",
           "--memory");
    expect("CPU quota", DOCTOR_NOTE, "3.50 CPUs", "--cpuset-cpus");
    put("/sys/fs/cgroup/job/cpu.max", "1600000 100000\n"); /* all 16: no limit in fact */
    put("/proc/meminfo", "MemAvailable:   4194304 kB\n");
    expect("memory limit", DOCTOR_OK, "12.0 GiB", NULL);
    expect("CPU quota", DOCTOR_OK, "16.00 CPUs", NULL);
}

Test(doctor, a_mask_of_one_cpu_is_an_accident)
{
    put(CPU "/online", "0-63\n");
    put("/proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-15\n");
    expect("CPUs allowed", DOCTOR_OK, "16 of 64", NULL);
    put("/proc/self/status", "Name:\tx\nCpus_allowed_list:\t7\n");
    expect("CPUs allowed", DOCTOR_WARNING, "1 of 64", "mpirun --bind-to none");
    put(CPU "/online", "7\n");
    expect("CPUs allowed", DOCTOR_OK, "1 of 1", NULL);
}

/* ------------------------------------------------------------------ processors, kernel */

static void put_governors(const char *driver, const char *first, const char *others)
{
    put(CPU "/online", "0-7\n");
    put(CPU "/cpu0/cpufreq/scaling_driver", driver);
    for (int i = 0; i < 8; i++) {
        char path[96];
        snprintf(path, sizeof(path), CPU "/cpu%d/cpufreq/scaling_governor", i);
        put(path, i == 0 ? first : others);
    }
}

Test(doctor, frequency)
{
    put_governors("acpi-cpufreq\n", "performance\n", "powersave\n");
    expect("frequency", DOCTOR_WARNING, "powersave on 7 of 8", "cpupower frequency-set");
    put_governors("intel_pstate\n", "performance\n", "powersave\n");
    expect("frequency", DOCTOR_NOTE, "performance on 1 of 8", "-g performance");
    put_governors("amd-pstate-epp\n", "powersave\n", "powersave\n");
    expect("frequency", DOCTOR_NOTE, "performance on 0 of 8", NULL);
    put_governors("acpi-cpufreq\n", "schedutil\n", "schedutil\n");
    expect("frequency", DOCTOR_NOTE, "performance on 0 of 8", NULL);
}

Test(doctor, kernel)
{
    put("/proc/sys/kernel/osrelease", "4.18.0-553.el8_10.x86_64\n");
    expect("kernel", DOCTOR_NOTE, "4.18.0-553", "kernel");
    put("/proc/sys/kernel/osrelease", "5.10.0\n");
    expect("kernel", DOCTOR_OK, "5.10.0", NULL);
}

/* ------------------------------------------------------------------ calls */

Test(doctor, refused_calls)
{
    bind_error = where_error = uring_error = EPERM;
    put_nodes("0\n");
    expect("binding", DOCTOR_OK, "Operation not permitted; there is one node only", NULL);
    expect("page lookup", DOCTOR_OK, "Operation not permitted", NULL);
    put_nodes("0-1\n");
    expect("binding", DOCTOR_WARNING, "Operation not permitted", "--cap-add SYS_NICE");
    expect("page lookup", DOCTOR_NOTE, "Operation not permitted", "seccomp=unconfined");
    expect("io_uring", DOCTOR_NOTE, "refused: Operation not permitted", "seccomp=unconfined");
    put("/proc/sys/kernel/io_uring_disabled", "2\n");
    expect("io_uring", DOCTOR_NOTE, "refused", "sysctl -w kernel.io_uring_disabled=0");
    put("/proc/sys/kernel/io_uring_disabled", "0\n");
    uring_error = ENOSYS;
    expect("io_uring", DOCTOR_NOTE, "Function not implemented", "CONFIG_IO_URING");
    bind_error = ENOSYS;
    expect("binding", DOCTOR_WARNING, "Function not implemented", "CONFIG_NUMA");
    put("/proc/self/status", "Name:\tx\nCapEff:\t00000000a80425fb\nSeccomp:\t2\n");
    expect("container", DOCTOR_OK, "filtered (seccomp), without CAP_SYS_NICE", NULL);
}

Test(doctor, binding_is_tried_on_a_node_that_is_allowed)
{
    put("/proc/self/status", "Name:\tx\nMems_allowed_list:\t3,5\n");
    expect("binding", DOCTOR_OK, "can be bound", NULL);
    cr_expect_eq(bound_node, 3);
}

/* ------------------------------------------------------------------ reports */

static char *print(numoe_status (*fn)(const struct doctor_report *, FILE *, numoe_error *))
{
    struct doctor_report report;
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    examine(&report);
    cr_assert_eq(fn(&report, out, NULL), NUMOE_OK);
    fclose(out);
    return text;
}

static void put_two_findings(void)
{
    put_nodes("0-1\n");
    put("/proc/sys/kernel/numa_balancing", "1\n");
    put("/proc/sys/vm/zone_reclaim_mode", "3\n");
}

Test(doctor, text)
{
    put_two_findings();
    char *text = print(doctor_print_text);
    cr_expect_not_null(strstr(text, "\nok       SMT               not known\n"), "%s", text);
    cr_expect_not_null(
        strstr(text, "\nwarning  zone reclaim      3\n"
                     "                           costs: a full node gives up its own file cache"),
        "%s", text);
    cr_expect_not_null(
        strstr(text, "\n                           mend:  sudo sysctl -w vm.zone_reclaim_mode=0\n"),
        "%s", text);
    cr_expect_not_null(strstr(text, "\n\n1 warning, 1 note\n"), "%s", text);
    free(text);
}

Test(doctor, json)
{
    put_two_findings();
    char *text = print(doctor_print_json);
    json_t *report = json_loads(text, 0, NULL);
    cr_assert_not_null(report, "%s", text);
    int n_warning, n_note;
    json_t *findings, *finding;
    size_t i, n_seen = 0;
    cr_assert_eq(json_unpack(report, "{s:i, s:i, s:o}", "warnings", &n_warning, "notes", &n_note,
                             "findings", &findings),
                 0);
    cr_expect_eq(n_warning, 1);
    cr_expect_eq(n_note, 1);
    json_array_foreach(findings, i, finding)
    {
        const char *check, *level, *found;
        cr_assert_eq(json_unpack(finding, "{s:s, s:s, s:s}", "check", &check, "level", &level,
                                 "found", &found),
                     0);
        const json_t *costs = json_object_get(finding, "costs");
        const json_t *mend = json_object_get(finding, "mend");
        cr_expect_eq(json_is_null(costs), strcmp(level, "ok") == 0, "%s", check);
        cr_expect_eq(json_is_null(mend), strcmp(level, "ok") == 0, "%s", check);
        if (strcmp(check, "zone reclaim") == 0) {
            n_seen++;
            cr_expect_str_eq(level, "warning");
            cr_expect_str_eq(found, "3");
            cr_expect_str_eq(json_string_value(mend), "sudo sysctl -w vm.zone_reclaim_mode=0");
        }
    }
    cr_expect_eq(n_seen, 1);
    json_decref(report);
    free(text);
}

Test(doctor, this_machine)
{
    numoe_error err;
    FILE *out = fopen("/dev/null", "w");
    cr_assert_not_null(out);
    cr_expect_eq(numoe_doctor_report(NUMOE_REPORT_TEXT, out, &err), NUMOE_OK);
    cr_expect_eq(numoe_doctor_report(NUMOE_REPORT_JSON, out, &err), NUMOE_OK);
    cr_expect_eq(numoe_doctor_report(NUMOE_REPORT_SVG, out, &err), NUMOE_E_INPUT);
    fclose(out);
    out = fopen("/dev/full", "w");
    if (out) {
        cr_expect_eq(numoe_doctor_report(NUMOE_REPORT_TEXT, out, &err), NUMOE_E_FILE_WRITE);
        cr_expect_eq(numoe_doctor_report(NUMOE_REPORT_JSON, out, &err), NUMOE_E_FILE_WRITE);
        fclose(out);
    }
}

/* ------------------------------------------------------------------ GPUs */

#define PCI "/sys/bus/pci/devices"

static void put_pci(const char *slot, const char *vendor, const char *class, const char *node,
                    const char *width, const char *driver)
{
    const struct {
        const char *name, *text;
    } file[] = {
        {"vendor", vendor},
        {"class", class},
        {"device", "0x2335"},
        {"numa_node", node},
        {"current_link_width", width},
        {"max_link_width", "16"},
        {"uevent", driver},
        {"current_link_speed", "2.5 GT/s PCIe"},
        {"max_link_speed", "32.0 GT/s PCIe"},
    };
    for (size_t i = 0; i < ARRAY_LEN(file); i++) {
        char path[128];
        snprintf(path, sizeof path, PCI "/%s/%s", slot, file[i].name);
        put(path, file[i].text);
    }
}

Test(doctor, gpus_are_those_of_the_pci_bus)
{
    expect("GPU", DOCTOR_OK, "no NVIDIA GPU", NULL);
    put_pci("0000:02:00.0", "0x1a03", "0x030000", "0", "1", "DRIVER=ast\n");
    put_pci("0000:03:00.0", "0x10de", "0x040300", "0", "16", "DRIVER=snd_hda_intel\n");
    expect("GPU", DOCTOR_OK, "no NVIDIA GPU", NULL);
    put_pci("0000:3b:00.0", "0x10de", "0x030200", "1", "16", "PCI_ID=10DE:2335\nDRIVER=nvidia\n");
    put("/sys/module/nvidia/version", "580.65.06\n");
    expect("GPU", DOCTOR_OK,
           "NVIDIA 2335 at 0000:3b:00.0, node 1, driver 580.65.06, PCIe x16 of x16, 2.5 of 32.0 "
           "GT/s now",
           NULL);
}

Test(doctor, a_narrow_link_and_a_missing_driver_are_told)
{
    put_pci("0000:3b:00.0", "0x10de", "0x030200", "-1", "8", "DRIVER=nvidia\n");
    expect("GPU", DOCTOR_NOTE, "node not known, driver nvidia, PCIe x8 of x16", "lspci");
    put_pci("0000:3b:00.0", "0x10de", "0x030200", "0", "8", "PCI_CLASS=30200\n");
    expect("GPU", DOCTOR_NOTE, "without a driver, PCIe x8", "modprobe nvidia");
    put_pci("0000:3b:00.0", "0x10de", "0x030200", "0", "16", "DRIVER=vfio-pci\n");
    expect("GPU", DOCTOR_NOTE, "with the driver vfio-pci", "modprobe nvidia");
    put_pci("0000:5e:00.0", "0x10de", "0x030200", "0", "16", "DRIVER=nvidia\n");
    struct doctor_report report;
    examine(&report);
    cr_expect_eq(report.n_gpu, 2);
}
