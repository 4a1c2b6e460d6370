/* Owns the cut from what the machine has to what this process may use. hwloc follows control groups
 * but not the affinity mask, and "configured" counts of libc and libnuma follow neither, so every
 * source is intersected here and nowhere else.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "numa/allowed.h"

#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <string.h>

#include "base/mem.h"
#include "numa/cgroup.h"
#include "numa/world.h"

/* The kernel refuses masks smaller than its own, so the mask grows until it fits. */
static cpu_set_t *read_affinity(size_t *set_bytes)
{
    for (int n = 1024; n <= 1 << 20; n *= 2) {
        cpu_set_t *set = CPU_ALLOC(n);
        *set_bytes = CPU_ALLOC_SIZE(n);
        if (set == NULL || sched_getaffinity(0, *set_bytes, set) == 0) {
            return set;
        }
        CPU_FREE(set);
        if (errno != EINVAL) {
            return NULL;
        }
    }
    return NULL;
}

unsigned allowed_count_affinity(void)
{
    size_t set_bytes;
    cpu_set_t *set = read_affinity(&set_bytes);
    unsigned n = set ? (unsigned)CPU_COUNT_S(set_bytes, set) : 0;
    if (set) {
        CPU_FREE(set);
    }
    return n;
}

static void cut_by_affinity(hwloc_bitmap_t cpus)
{
    size_t set_bytes;
    cpu_set_t *set = read_affinity(&set_bytes);
    if (set == NULL) {
        return;
    }
    hwloc_bitmap_t mask = hwloc_bitmap_alloc();
    for (size_t i = 0; mask && i < 8 * set_bytes; i++) {
        if (CPU_ISSET_S(i, set_bytes, set)) {
            hwloc_bitmap_set(mask, (unsigned)i);
        }
    }
    if (mask && !hwloc_bitmap_iszero(mask)) {
        hwloc_bitmap_and(cpus, cpus, mask);
    }
    hwloc_bitmap_free(mask);
    CPU_FREE(set);
}

/* list as "0-3,8"; NULL or not a list: no limit. */
static void cut_by_list(hwloc_bitmap_t set, const char *list)
{
    hwloc_bitmap_t mask = hwloc_bitmap_alloc();
    if (list && mask && hwloc_bitmap_list_sscanf(mask, list) == 0 && !hwloc_bitmap_iszero(mask)) {
        hwloc_bitmap_and(set, set, mask);
    }
    hwloc_bitmap_free(mask);
}

static void cut_by_status(const char *status, const char *key, hwloc_bitmap_t set)
{
    const char *at = status ? strstr(status, key) : NULL;
    char list[4096];
    if (at && sscanf(at + strlen(key), " %4095s", list) == 1) {
        cut_by_list(set, list);
    }
}

static void cut_to_process(const char *root, const struct cgroup_limits *limits,
                           struct allowed *allowed)
{
    char *status = world_read(root, "/proc/self/status");
    if (*root == '\0') {
        cut_by_affinity(allowed->mask_cpus);
    } else {
        cut_by_status(status, "\nCpus_allowed_list:", allowed->mask_cpus);
    }
    cut_by_status(status, "\nMems_allowed_list:", allowed->nodes);
    mem_free(status);
    cut_by_list(allowed->cpuset_cpus, limits->cpus);
    hwloc_bitmap_and(allowed->cpus, allowed->cpus, allowed->mask_cpus);
    hwloc_bitmap_and(allowed->cpus, allowed->cpus, allowed->cpuset_cpus);
    cut_by_list(allowed->nodes, limits->mems);
    allowed->cpu_quota = limits->cpu_quota;
    allowed->memory_limit_bytes = limits->memory_bytes;
}

numoe_status allowed_read(hwloc_topology_t hw, const char *root, bool here, struct allowed *out,
                          numoe_error *err)
{
    struct allowed allowed = {
        .cpus = hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(hw)),
        .nodes = hwloc_bitmap_dup(hwloc_topology_get_allowed_nodeset(hw)),
        .cpuset_cpus = hwloc_bitmap_alloc_full(),
        .mask_cpus = hwloc_bitmap_alloc_full(),
        .memory_limit_bytes = UINT64_MAX,
    };
    if (!allowed.cpus || !allowed.nodes || !allowed.cpuset_cpus || !allowed.mask_cpus) {
        allowed_fini(&allowed);
        return status_fail(err, NUMOE_E_MEMORY, "sets of allowed CPUs: cannot allocate");
    }
    numoe_status st = NUMOE_OK;
    if (here) {
        struct cgroup_limits limits;
        cgroup_read(root, &limits);
        cut_to_process(root, &limits, &allowed);
        if (hwloc_bitmap_iszero(allowed.cpus) || hwloc_bitmap_iszero(allowed.nodes)) {
            st = status_fail(err, NUMOE_E_SUPPORT,
                             "no %s may be used: affinity mask and control group (CPUs %s, memory "
                             "nodes %s) have nothing in common with the machine",
                             hwloc_bitmap_iszero(allowed.cpus) ? "CPU" : "memory node",
                             limits.cpus ? limits.cpus : "any", limits.mems ? limits.mems : "any");
        }
        cgroup_fini(&limits);
    }
    if (st != NUMOE_OK) {
        allowed_fini(&allowed);
        return st;
    }
    *out = allowed;
    return NUMOE_OK;
}

bool allowed_list_has(const char *list, unsigned i)
{
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    const bool has = list != NULL && set != NULL && hwloc_bitmap_list_sscanf(set, list) == 0 &&
                     hwloc_bitmap_isset(set, i);
    hwloc_bitmap_free(set);
    return has;
}

bool allowed_now(const char *root, const unsigned *pu, unsigned n, bool *is_there)
{
    struct cgroup_limits limits;
    char *online = world_read(root, "/sys/devices/system/cpu/online");
    hwloc_bitmap_t set = hwloc_bitmap_alloc_full();
    const bool known = online != NULL && set != NULL;
    cgroup_read(root, &limits);
    if (known) {
        cut_by_list(set, online);
        cut_by_list(set, limits.cpus);
    }
    for (unsigned i = 0; known && i < n; i++) {
        is_there[i] = hwloc_bitmap_isset(set, pu[i]);
    }
    hwloc_bitmap_free(set);
    cgroup_fini(&limits);
    mem_free(online);
    return known;
}

void allowed_fini(struct allowed *allowed)
{
    hwloc_bitmap_free(allowed->cpus);
    hwloc_bitmap_free(allowed->nodes);
    hwloc_bitmap_free(allowed->cpuset_cpus);
    hwloc_bitmap_free(allowed->mask_cpus);
    *allowed = (struct allowed){0};
}
