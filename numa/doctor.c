/* Owns the list of things that are looked at, one function or one table of values each, and what is
 * said of them. Prints nothing (numa/doctor-report.c) and changes nothing.
 *
 * A warning must be true on this machine: what only matters with several nodes, or only where
 * binding is refused, is not a warning elsewhere.
 */
#include "numa/doctor.h"

#include <errno.h>
#include <hwloc.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"
#include "numa/cgroup.h"

#define GIB                  1073741824.0
#define CAP_SYS_NICE         23
#define SWAPPY               10 /* up to here the kernel swaps only for want of anything else */
#define KERNEL(major, minor) ((major)*1000 + (minor))
#define KERNEL_OLDEST        KERNEL(5, 4)
#define KERNEL_POPULATE      KERNEL(5, 14) /* has MADV_POPULATE_WRITE */
#define SYSFS_CPU            "/sys/devices/system/cpu"
#define SYSFS_NODE           "/sys/devices/system/node"
#define SYSFS_THP            "/sys/kernel/mm/transparent_hugepage"

/* What several checks need. */
struct exam {
    struct world *world;
    const char *root;
    char *status, *ulimits;     /* /proc/self/status, /proc/self/limits; NULL unreadable */
    char *meminfo;              /* /proc/meminfo; likewise */
    hwloc_bitmap_t nodes, cpus; /* with memory; online. Empty where unknown */
    struct cgroup_limits limits;
    int bind_error, where_error;
    unsigned kernel; /* KERNEL(); 0 unknown */
};

static void found(struct doctor_finding *f, const char *fmt, ...) NUMOE_PRINTF(2, 3);
static void found(struct doctor_finding *f, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(f->found, sizeof(f->found), fmt, ap);
    va_end(ap);
}

static void conclude(struct doctor_finding *f, enum doctor_level level, const char *cost,
                     const char *mend)
{
    f->level = level;
    f->cost = cost;
    f->mend = mend;
}

static bool has_several_nodes(const struct exam *e)
{
    return hwloc_bitmap_weight(e->nodes) > 1;
}

static uint64_t find_u64(const char *text, const char *key)
{
    uint64_t value = 0;
    world_find_u64(text, key, &value);
    return value;
}

/* ------------------------------------------------------------------ settings with few values */

struct rule {
    const char *value; /* NULL: any other */
    enum doctor_level level;
    const char *cost, *mend;
};

struct setting {
    const char *path;
    const char *absent; /* what it means that there is no such file */
    struct rule rule[5];
};

static const struct setting setting_thp = {
    SYSFS_THP "/enabled",
    "this kernel has none",
    {{"always", DOCTOR_OK, NULL, NULL},
     {"madvise", DOCTOR_OK, NULL, NULL},
     {NULL, DOCTOR_WARNING,
      "weights lie in pages of 4 KiB, each with a translation of its own: reads are slower",
      "echo madvise | sudo tee " SYSFS_THP "/enabled"}},
};

static const struct setting setting_defrag = {
    SYSFS_THP "/defrag",
    "not known",
    {{"always", DOCTOR_OK, NULL, NULL},
     {"madvise", DOCTOR_OK, NULL, NULL},
     {"defer+madvise", DOCTOR_OK, NULL, NULL},
     {NULL, DOCTOR_NOTE,
      "weights get huge pages only where some are free at once, few on a machine that is up for "
      "long",
      "echo defer+madvise | sudo tee " SYSFS_THP "/defrag"}},
};

static const struct setting setting_zone_reclaim = {
    "/proc/sys/vm/zone_reclaim_mode",
    "not known",
    {{"0", DOCTOR_OK, NULL, NULL},
     {NULL, DOCTOR_WARNING,
      "a full node gives up its own file cache before memory of others is used: files are read "
      "again and again",
      "sudo sysctl -w vm.zone_reclaim_mode=0"}},
};

/* "always [madvise] never" means madvise; a text without brackets is the value itself. */
static void cut_selected(char *text)
{
    char *from = strchr(text, '['), *to = from ? strchr(from, ']') : NULL;
    if (to) {
        *to = '\0';
        memmove(text, from + 1, strlen(from + 1) + 1);
    }
}

static void check_setting(const struct exam *e, const struct setting *s, struct doctor_finding *f)
{
    char *text = world_read(e->root, s->path);
    if (text == NULL) {
        found(f, "%s", s->absent);
        return;
    }
    cut_selected(text);
    const struct rule *rule = s->rule;
    while (rule->value && strcmp(rule->value, text) != 0) {
        rule++;
    }
    found(f, "%s", text);
    conclude(f, rule->level, rule->cost, rule->mend);
    mem_free(text);
}

/* ------------------------------------------------------------------ kernel and container */

static void check_kernel(const struct exam *e, struct doctor_finding *f)
{
    char *release = world_read(e->root, "/proc/sys/kernel/osrelease");
    found(f, "%s", release ? release : "not known");
    mem_free(release);
    if (e->kernel > 0 && e->kernel < KERNEL_OLDEST) {
        conclude(f, DOCTOR_NOTE, "numoe was never tried on a kernel older than 5.4",
                 "install a newer kernel");
    }
}

static unsigned read_kernel(const char *root)
{
    char *release = world_read(root, "/proc/sys/kernel/osrelease");
    unsigned major = 0, minor = 0;
    bool known = release && sscanf(release, "%u.%u", &major, &minor) == 2;
    mem_free(release);
    return known ? KERNEL(major, minor) : 0;
}

static void check_bind(const struct exam *e, struct doctor_finding *f)
{
    if (e->bind_error == 0) {
        found(f, "memory can be bound to nodes (mbind)");
        return;
    }
    found(f, "mbind is refused: %s%s", strerror(e->bind_error),
          has_several_nodes(e) ? "" : "; there is one node only");
    if (!has_several_nodes(e)) {
        return;
    }
    conclude(f, DOCTOR_WARNING,
             "memory goes to where it is touched first, which is right at the beginning; nothing "
             "keeps it there",
             e->bind_error == EPERM ? "docker run --cap-add SYS_NICE ..."
                                    : "zgrep CONFIG_NUMA= /proc/config.gz; use a kernel with it");
}

static void check_where(const struct exam *e, struct doctor_finding *f)
{
    if (e->where_error == 0) {
        found(f, "the kernel tells where pages are (move_pages)");
        return;
    }
    found(f, "move_pages is refused: %s", strerror(e->where_error));
    if (has_several_nodes(e)) {
        conclude(f, DOCTOR_NOTE, "audits read /proc/self/numa_maps instead, which takes longer",
                 "docker run --security-opt seccomp=unconfined ...");
    }
}

static void check_uring(const struct exam *e, struct doctor_finding *f)
{
    uint64_t disabled = 0;
    int error = e->world->uring(e->world);
    if (error == 0) {
        found(f, "can be used");
        return;
    }
    world_read_u64(e->root, "/proc/sys/kernel/io_uring_disabled", &disabled);
    found(f, "refused: %s", strerror(error));
    conclude(f, DOCTOR_NOTE, "loading waits for each read in turn, which is slower from fast disks",
             disabled         ? "sudo sysctl -w kernel.io_uring_disabled=0"
             : error == EPERM ? "docker run --security-opt seccomp=unconfined ..."
                              : "zgrep CONFIG_IO_URING= /proc/config.gz; use a kernel with it");
}

static void check_container(const struct exam *e, struct doctor_finding *f)
{
    static const char *const modes[] = {"no system calls are filtered", "strict seccomp",
                                        "system calls are filtered (seccomp)"};
    uint64_t mode = find_u64(e->status, "Seccomp:");
    unsigned long long caps = 0;
    const char *line = e->status ? strstr(e->status, "\nCapEff:") : NULL;
    if (line == NULL || sscanf(line, " CapEff: %llx", &caps) != 1 || mode >= ARRAY_LEN(modes)) {
        found(f, "not known");
        return;
    }
    found(f, "%s, %s CAP_SYS_NICE", modes[mode], caps >> CAP_SYS_NICE & 1 ? "with" : "without");
}

/* ------------------------------------------------------------------ memory */

static void check_balancing(const struct exam *e, struct doctor_finding *f)
{
    uint64_t mode = 0;
    bool known = world_read_u64(e->root, "/proc/sys/kernel/numa_balancing", &mode);
    found(f, "%s", !known ? "this kernel has none" : mode == 0 ? "off" : "on");
    if (mode == 0 || !has_several_nodes(e)) {
        return;
    }
    const char *mend = "sudo sysctl -w kernel.numa_balancing=0";
    if (e->bind_error) {
        conclude(f, DOCTOR_WARNING,
                 "memory cannot be bound here, so the kernel moves weights away from their node",
                 mend);
    } else {
        conclude(f, DOCTOR_NOTE,
                 "bound weights stay, but stacks and the host program's own memory are unmapped "
                 "and moved again and again",
                 mend);
    }
}

static void check_thp(const struct exam *e, struct doctor_finding *f)
{
    uint64_t enabled = 1;
    if (e->status && world_find_u64(e->status, "THP_enabled:", &enabled) && enabled == 0) {
        found(f, "forbidden to this process");
        conclude(f, DOCTOR_WARNING, setting_thp.rule[2].cost,
                 "start numoe from a program that has not called prctl(PR_SET_THP_DISABLE)");
        return;
    }
    check_setting(e, &setting_thp, f);
}

static void check_defrag(const struct exam *e, struct doctor_finding *f)
{
    check_setting(e, &setting_defrag, f);
}

#define FOR_EACH_BIT(i, set)                                                                       \
    for (int i = hwloc_bitmap_first(set); i >= 0; i = hwloc_bitmap_next(set, i))

static uint64_t sum_pool(const struct exam *e, const char *size)
{
    uint64_t sum = 0;
    FOR_EACH_BIT(in, e->nodes)
    {
        char path[160];
        uint64_t n = 0;
        snprintf(path, sizeof(path), SYSFS_NODE "/node%d/hugepages/hugepages-%s/free_hugepages", in,
                 size);
        world_read_u64(e->root, path, &n);
        sum += n;
    }
    return sum;
}

/* Arenas take reserved pages first, but only bound, and made at once. */
static void check_huge_pool(const struct exam *e, struct doctor_finding *f)
{
    uint64_t n_2m = sum_pool(e, "2048kB"), n_1g = sum_pool(e, "1048576kB");
    if (n_2m + n_1g == 0) {
        found(f, "no page is reserved and free");
        return;
    }
    found(f, "reserved and free: %llu of 2 MiB, %llu of 1 GiB", (unsigned long long)n_2m,
          (unsigned long long)n_1g);
    const char *mend = n_1g ? "echo 0 | sudo tee /sys/kernel/mm/hugepages/hugepages-*/nr_hugepages"
                            : "sudo sysctl -w vm.nr_hugepages=0";
    if (e->bind_error) {
        conclude(f, DOCTOR_NOTE,
                 "numoe takes reserved pages only where it can bind them, here they are lost to it",
                 mend);
    } else if (e->kernel > 0 && e->kernel < KERNEL_POPULATE) {
        conclude(f, DOCTOR_NOTE,
                 "numoe takes reserved pages from Linux 5.14 on, here they are lost to it", mend);
    }
}

/* Nodes where file cache has taken what weights are to have. */
static void check_page_cache(const struct exam *e, struct doctor_finding *f)
{
    uint64_t cache_kib = 0, free_kib = 0;
    unsigned n_full = 0, n_seen = 0;
    FOR_EACH_BIT(in, e->nodes)
    {
        char path[96], key[3][48];
        uint64_t kib[3] = {0};
        static const char *const what[] = {"MemTotal:", "MemFree:", "FilePages:"};
        snprintf(path, sizeof(path), SYSFS_NODE "/node%d/meminfo", in);
        char *info = world_read(e->root, path);
        for (size_t i = 0; info && i < ARRAY_LEN(what); i++) {
            snprintf(key[i], sizeof(key[i]), "Node %d %s", in, what[i]);
            world_find_u64(info, key[i], &kib[i]);
        }
        mem_free(info);
        n_seen += info != NULL;
        n_full += kib[2] > kib[0] / 4 && kib[1] < kib[0] / 4;
        cache_kib += kib[2];
        free_kib += kib[1];
    }
    if (n_seen == 0) {
        found(f, "not known");
        return;
    }
    found(f, "%.1f GiB of files, %.1f GiB free", (double)cache_kib * 1024 / GIB,
          (double)free_kib * 1024 / GIB);
    if (n_full > 0) {
        size_t len = strlen(f->found);
        snprintf(f->found + len, sizeof(f->found) - len,
                 "; more cache than free on %u of %u node%s", n_full, n_seen,
                 n_seen == 1 ? "" : "s");
        conclude(
            f, DOCTOR_NOTE,
            "weights have to push the cache out: loading is slower, and finds fewer huge pages",
            "sync; echo 1 | sudo tee /proc/sys/vm/drop_caches");
    }
}

static void check_swap(const struct exam *e, struct doctor_finding *f)
{
    uint64_t swappiness = 60, total_kib = find_u64(e->meminfo, "SwapTotal:");
    world_read_u64(e->root, "/proc/sys/vm/swappiness", &swappiness);
    if (total_kib == 0) {
        found(f, "none");
        return;
    }
    found(f, "%.1f GiB, swappiness %llu", (double)total_kib * 1024 / GIB,
          (unsigned long long)swappiness);
    if (swappiness > SWAPPY) {
        conclude(f, DOCTOR_NOTE,
                 "weights of experts that are seldom chosen may go to disk, and a token then waits "
                 "for it",
                 "sudo sysctl -w vm.swappiness=1");
    }
}

static void check_memlock(const struct exam *e, struct doctor_finding *f)
{
    static const char key[] = "Max locked memory";
    uint64_t bytes;
    if (e->ulimits == NULL || strstr(e->ulimits, key) == NULL) {
        found(f, "not known");
    } else if (!world_find_u64(e->ulimits, key, &bytes)) {
        found(f, "unlimited");
    } else {
        found(f, "%.1f MiB", (double)bytes / 1048576.0);
        if (find_u64(e->meminfo, "SwapTotal:") > 0) {
            conclude(f, DOCTOR_NOTE, "memory beyond that cannot be kept from being swapped out",
                     "ulimit -l unlimited, or a line \"* - memlock unlimited\" in "
                     "/etc/security/limits.conf");
        }
    }
}

/* ulimit -v and -d: both count what is mapped, whether it is used or not. */
static void check_address_space(const struct exam *e, struct doctor_finding *f)
{
    static const char *const key[] = {"Max address space", "Max data size"};
    uint64_t least = UINT64_MAX, bytes;
    for (size_t i = 0; i < ARRAY_LEN(key); i++) {
        if (world_find_u64(e->ulimits, key[i], &bytes)) {
            least = MIN(least, bytes);
        }
    }
    if (least == UINT64_MAX) {
        found(f, "not limited");
        return;
    }
    found(f, "at most %.1f GiB may be mapped", (double)least / GIB);
    conclude(f, DOCTOR_WARNING, "larger models are refused, even where memory is free",
             "ulimit -v unlimited; ulimit -d unlimited");
}

static void check_overcommit(const struct exam *e, struct doctor_finding *f)
{
    uint64_t mode = 0;
    if (!world_read_u64(e->root, "/proc/sys/vm/overcommit_memory", &mode) || mode != 2) {
        found(f, "address space is not counted as memory");
        return;
    }
    uint64_t limit = find_u64(e->meminfo, "CommitLimit:");
    uint64_t used = find_u64(e->meminfo, "Committed_AS:");
    found(f, "address space is counted: %.1f GiB are left",
          (double)(limit - MIN(limit, used)) * 1024 / GIB);
    conclude(f, DOCTOR_WARNING, "larger models are refused, even where memory is free",
             "sudo sysctl -w vm.overcommit_memory=0");
}

static void check_zone_reclaim(const struct exam *e, struct doctor_finding *f)
{
    check_setting(e, &setting_zone_reclaim, f);
    if (!has_several_nodes(e)) {
        conclude(f, DOCTOR_OK, NULL, NULL);
    }
}

static void check_memory_limit(const struct exam *e, struct doctor_finding *f)
{
    uint64_t available = find_u64(e->meminfo, "MemAvailable:") * 1024;
    if (e->limits.memory_bytes == UINT64_MAX) {
        found(f, "none");
        return;
    }
    found(f, "%.1f GiB may still be taken, %.1f GiB are available",
          (double)e->limits.memory_bytes / GIB, (double)available / GIB);
    if (e->limits.memory_bytes < available) {
        conclude(f, DOCTOR_NOTE, "models and contexts that need more are refused",
                 "docker run --memory=... / sbatch --mem=...");
    }
}

/* ------------------------------------------------------------------ processors */

static void list_line(const char *text, const char *key, hwloc_bitmap_t set)
{
    const char *at = text ? strstr(text, key) : NULL;
    char list[4096];
    if (at && sscanf(at + strlen(key), " %4095s", list) == 1) {
        hwloc_bitmap_list_sscanf(set, list);
    }
}

static void check_affinity(const struct exam *e, struct doctor_finding *f)
{
    hwloc_bitmap_t mask = hwloc_bitmap_alloc();
    list_line(e->status, "\nCpus_allowed_list:", mask);
    hwloc_bitmap_and(mask, mask, e->cpus);
    int n = hwloc_bitmap_weight(mask), n_all = hwloc_bitmap_weight(e->cpus);
    hwloc_bitmap_free(mask);
    found(f, n > 0 ? "%d of %d" : "not known", n, n_all);
    if (n == 1 && n_all > 1) {
        conclude(f, DOCTOR_WARNING,
                 "there is one worker; mpirun does that to programs it starts once or twice",
                 "mpirun --bind-to none ... / srun --cpus-per-task=... / taskset -c 0-...");
    }
}

static void check_quota(const struct exam *e, struct doctor_finding *f)
{
    if (e->limits.cpu_quota <= 0) {
        found(f, "none");
        return;
    }
    found(f, "%.2f CPUs", e->limits.cpu_quota);
    if (e->limits.cpu_quota < hwloc_bitmap_weight(e->cpus)) {
        conclude(f, DOCTOR_NOTE,
                 "no more workers than that; the kernel stops them when the quota of a period is "
                 "used up, and the others wait",
                 "docker run --cpuset-cpus=... in place of --cpus=... / systemd: AllowedCPUs= in "
                 "place of CPUQuota=");
    }
}

static void check_smt(const struct exam *e, struct doctor_finding *f)
{
    uint64_t active = 0;
    bool known = world_read_u64(e->root, SYSFS_CPU "/smt/active", &active);
    found(f, "%s",
          !known   ? "not known"
          : active ? "on: one worker a core, its other threads are left to others"
                   : "off");
}

/* How many online CPUs have a frequency governor of that name; NULL: any. */
static unsigned count_governors(const struct exam *e, const char *name)
{
    unsigned n = 0;
    FOR_EACH_BIT(i, e->cpus)
    {
        char path[96];
        snprintf(path, sizeof(path), SYSFS_CPU "/cpu%d/cpufreq/scaling_governor", i);
        char *governor = world_read(e->root, path);
        n += governor && (name == NULL || strcmp(governor, name) == 0);
        mem_free(governor);
    }
    return n;
}

/* These drivers' "powersave" follows the load; everybody else's is the lowest frequency. */
static bool is_powersave_dynamic(const struct exam *e)
{
    char *driver = world_read(e->root, SYSFS_CPU "/cpu0/cpufreq/scaling_driver");
    bool dynamic =
        driver && (strcmp(driver, "intel_pstate") == 0 || strcmp(driver, "amd-pstate-epp") == 0);
    mem_free(driver);
    return dynamic;
}

static void check_governor(const struct exam *e, struct doctor_finding *f)
{
    const char *mend = "sudo cpupower frequency-set -g performance";
    unsigned n = count_governors(e, NULL), n_fast = count_governors(e, "performance");
    unsigned n_slow = is_powersave_dynamic(e) ? 0 : count_governors(e, "powersave");
    if (n == 0) {
        found(f, "left to firmware or hypervisor");
        return;
    }
    found(f, "performance on %u of %u CPUs", n_fast, n);
    if (n_slow > 0) {
        found(f, "powersave on %u of %u CPUs", n_slow, n);
        conclude(f, DOCTOR_WARNING,
                 "these stay at their lowest frequency, and others wait for them", mend);
    } else if (n_fast < n) {
        conclude(f, DOCTOR_NOTE,
                 "frequencies follow the load: slow after each pause, and uneven between workers",
                 mend);
    }
}

/* ------------------------------------------------------------------ all of them */

static const struct check {
    const char *name;
    void (*look)(const struct exam *e, struct doctor_finding *f);
} checks[] = {
    {"kernel", check_kernel},
    {"container", check_container},
    {"binding", check_bind},
    {"page lookup", check_where},
    {"io_uring", check_uring},
    {"NUMA balancing", check_balancing},
    {"huge pages", check_thp},
    {"huge page defrag", check_defrag},
    {"huge page pool", check_huge_pool},
    {"page cache", check_page_cache},
    {"zone reclaim", check_zone_reclaim},
    {"swap", check_swap},
    {"locked memory", check_memlock},
    {"address space", check_address_space},
    {"overcommit", check_overcommit},
    {"memory limit", check_memory_limit},
    {"CPUs allowed", check_affinity},
    {"CPU quota", check_quota},
    {"SMT", check_smt},
    {"frequency", check_governor},
};
_Static_assert(ARRAY_LEN(checks) < DOCTOR_MAX_FINDING / 2, "a report has room for all checks");

/* A page of our own: is it bound where it is told, and is it found. */
static void probe_calls(struct exam *e)
{
    hwloc_bitmap_t mems = hwloc_bitmap_alloc();
    list_line(e->status, "\nMems_allowed_list:", mems);
    int in = hwloc_bitmap_first(mems);
    hwloc_bitmap_free(mems);
    size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    void *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) {
        e->bind_error = e->where_error = ENOMEM;
        return;
    }
    int node = -1;
    e->bind_error = e->world->bind(e->world, page, bytes, in >= 0 ? (unsigned)in : 0);
    *(volatile char *)page = 1;
    e->where_error = e->world->where(e->world, &page, 1, &node);
    e->world->unmap(e->world, page, bytes);
}

static void read_set(const char *root, const char *path, hwloc_bitmap_t set)
{
    char *list = world_read(root, path);
    if (list) {
        hwloc_bitmap_list_sscanf(set, list);
    }
    mem_free(list);
}

struct doctor_finding *doctor_next(struct doctor_report *report, const char *check)
{
    if (report->n_finding == DOCTOR_MAX_FINDING) {
        return NULL;
    }
    struct doctor_finding *f = &report->finding[report->n_finding++];
    *f = (struct doctor_finding){.check = check};
    return f;
}

void doctor_examine(struct world *world, struct doctor_report *report)
{
    struct exam e = {.world = world, .root = world->root};
    e.status = world_read(e.root, "/proc/self/status");
    e.ulimits = world_read(e.root, "/proc/self/limits");
    e.meminfo = world_read(e.root, "/proc/meminfo");
    e.nodes = hwloc_bitmap_alloc();
    e.cpus = hwloc_bitmap_alloc();
    read_set(e.root, SYSFS_NODE "/has_memory", e.nodes);
    read_set(e.root, SYSFS_CPU "/online", e.cpus);
    cgroup_read(e.root, &e.limits);
    e.kernel = read_kernel(e.root);
    probe_calls(&e);
    memset(report, 0, sizeof(*report));
    for (size_t i = 0; i < ARRAY_LEN(checks); i++) {
        checks[i].look(&e, doctor_next(report, checks[i].name));
    }
    doctor_look_for_gpus(e.root, report);
    cgroup_fini(&e.limits);
    hwloc_bitmap_free(e.nodes);
    hwloc_bitmap_free(e.cpus);
    mem_free(e.status);
    mem_free(e.ulimits);
    mem_free(e.meminfo);
}
