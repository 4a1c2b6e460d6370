/* Owns the reading of control groups. A limit binds wherever it stands on the path, so every group
 * from the own one up to the mount point is read. Containers see only a part of the tree: a path
 * that does not exist below the mount point means that the mount point is the group itself.
 */
#include "numa/cgroup.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "numa/world.h"

#define V1_UNLIMITED (UINT64_C(1) << 60) /* version 1 writes a number near 2^63 for "no limit" */

/* One hierarchy: where a controller is mounted and the group of this process below it. */
struct hierarchy {
    const char *root;
    bool v2;
    char mount[512];
    char dir[1024]; /* mount + path of the own group */
};

/* ------------------------------------------------------------------ finding the group */

static bool has_word(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = strstr(list, word); p; p = strstr(p + 1, word)) {
        if ((p == list || p[-1] == ',') && (p[n] == ',' || p[n] == '\0')) {
            return true;
        }
    }
    return false;
}

/* A line of mountinfo: "31 23 0:28 ROOT MOUNT options [tags] - TYPE source SUPER". */
static bool match_mount(const char *line, const char *controller, char *top, struct hierarchy *h)
{
    char type[32], super[512];
    const char *dash = strstr(line, " - ");
    if (dash == NULL || sscanf(dash, " - %31s %*s %511s", type, super) != 2 ||
        sscanf(line, "%*s %*s %*s %511s %511s", top, h->mount) != 2) {
        return false;
    }
    return h->v2 ? strcmp(type, "cgroup2") == 0
                 : strcmp(type, "cgroup") == 0 && has_word(super, controller);
}

/* A line of /proc/self/cgroup: "4:cpu,cpuacct:/path" or "0::/path". */
static bool match_group(const char *line, const char *controller, bool v2, char *path)
{
    char list[256] = "";
    if (sscanf(line, "0::%511s", path) == 1) {
        return v2;
    }
    return !v2 && sscanf(line, "%*u:%255[^:]:%511s", list, path) == 2 && has_word(list, controller);
}

/* Calls for each line of text, which is cut at its newlines. */
#define FOR_EACH_LINE(line, text)                                                                  \
    for (char *next_line = (text), *line; (line = strsep(&next_line, "\n")) != NULL;)

static bool find_hierarchy(const char *root, const char *controller, bool v2, struct hierarchy *h)
{
    char path[512] = "", top[512] = "";
    bool mounted = false, member = false;
    *h = (struct hierarchy){.root = root, .v2 = v2};
    char *mounts = world_read(root, "/proc/self/mountinfo");
    FOR_EACH_LINE(line, mounts)
    {
        if (!mounted) {
            mounted = match_mount(line, controller, top, h);
        }
    }
    mem_free(mounts);
    char *groups = world_read(root, "/proc/self/cgroup");
    FOR_EACH_LINE(line, groups)
    {
        if (!member) {
            member = match_group(line, controller, v2, path);
        }
    }
    mem_free(groups);
    if (!mounted || !member) {
        return false;
    }
    /* The mount may show only the part of the tree below `top`. */
    size_t n_top = strcmp(top, "/") == 0 ? 0 : strlen(top);
    bool below = strncmp(path, top, n_top) == 0 && (path[n_top] == '/' || path[n_top] == '\0');
    const char *rest = below ? path + n_top : "";
    snprintf(h->dir, sizeof(h->dir), "%s%s", h->mount, strcmp(rest, "/") == 0 ? "" : rest);
    char full[2048];
    snprintf(full, sizeof(full), "%s%s", root, h->dir);
    if (access(full, F_OK) != 0) {
        snprintf(h->dir, sizeof(h->dir), "%s", h->mount);
    }
    return true;
}

/* From the own group to its parent; false at the mount point. */
static bool go_up(struct hierarchy *h)
{
    char *slash = strrchr(h->dir, '/');
    if (strlen(h->dir) <= strlen(h->mount) || slash == NULL) {
        return false;
    }
    *slash = '\0';
    return true;
}

static char *read_file(const struct hierarchy *h, const char *name)
{
    char path[1280];
    snprintf(path, sizeof(path), "%s/%s", h->dir, name);
    return world_read(h->root, path);
}

static bool read_u64(const struct hierarchy *h, const char *name, uint64_t *value)
{
    char path[1280];
    snprintf(path, sizeof(path), "%s/%s", h->dir, name);
    return world_read_u64(h->root, path, value);
}

/* ------------------------------------------------------------------ limits of one group */

static void read_quota(const struct hierarchy *h, struct cgroup_limits *limits)
{
    uint64_t quota = 0, period = 0;
    if (h->v2) {
        char *text = read_file(h, "cpu.max");
        unsigned long long q, p;
        if (text && sscanf(text, "%llu %llu", &q, &p) == 2) { /* "max 100000" has no number */
            quota = q, period = p;
        }
        mem_free(text);
    } else if (!read_u64(h, "cpu.cfs_quota_us", &quota) || /* -1: none */
               !read_u64(h, "cpu.cfs_period_us", &period)) {
        return;
    }
    if (quota > 0 && period > 0) {
        double cpus = (double)quota / (double)period;
        limits->cpu_quota = limits->cpu_quota > 0 ? MIN(limits->cpu_quota, cpus) : cpus;
    }
}

/* Page cache counts as used but gives way. */
static uint64_t file_cache_bytes(const struct hierarchy *h)
{
    uint64_t active = 0, inactive = 0;
    char *stat = read_file(h, "memory.stat");
    if (stat) {
        world_find_u64(stat, h->v2 ? "active_file " : "total_active_file ", &active);
        world_find_u64(stat, h->v2 ? "inactive_file " : "total_inactive_file ", &inactive);
    }
    mem_free(stat);
    return active + inactive;
}

static void read_memory(const struct hierarchy *h, struct cgroup_limits *limits)
{
    uint64_t limit = UINT64_MAX, high = UINT64_MAX, used = 0;
    if (h->v2) {
        read_u64(h, "memory.max", &limit); /* "max" has no number */
        read_u64(h, "memory.high", &high);
        limit = MIN(limit, high);
    } else if (read_u64(h, "memory.limit_in_bytes", &limit) && limit >= V1_UNLIMITED) {
        return;
    }
    if (limit == UINT64_MAX) {
        return;
    }
    read_u64(h, h->v2 ? "memory.current" : "memory.usage_in_bytes", &used);
    used -= MIN(used, file_cache_bytes(h));
    limits->memory_bytes = MIN(limits->memory_bytes, limit - MIN(limit, used));
}

/* The nearest group that says something; groups further up can only allow more. */
static void read_cpuset(const struct hierarchy *h, struct cgroup_limits *limits)
{
    static const char *const names[2][2] = {{"cpuset.effective_cpus", "cpuset.effective_mems"},
                                            {"cpuset.cpus.effective", "cpuset.mems.effective"}};
    if (limits->cpus == NULL) {
        limits->cpus = read_file(h, names[h->v2][0]);
    }
    if (limits->cpus == NULL && !h->v2) {
        limits->cpus = read_file(h, "cpuset.cpus");
    }
    if (limits->mems == NULL) {
        limits->mems = read_file(h, names[h->v2][1]);
    }
    if (limits->mems == NULL && !h->v2) {
        limits->mems = read_file(h, "cpuset.mems");
    }
}

static void drop_if_empty(char **text)
{
    if (*text && **text == '\0') {
        mem_free(*text);
        *text = NULL;
    }
}

void cgroup_read(const char *root, struct cgroup_limits *limits)
{
    static const struct {
        const char *controller;
        void (*read)(const struct hierarchy *h, struct cgroup_limits *limits);
    } parts[] = {{"cpu", read_quota}, {"memory", read_memory}, {"cpuset", read_cpuset}};
    *limits = (struct cgroup_limits){.memory_bytes = UINT64_MAX};
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        struct hierarchy h;
        if (!find_hierarchy(root, parts[i].controller, false, &h) &&
            !find_hierarchy(root, parts[i].controller, true, &h)) {
            continue;
        }
        do {
            parts[i].read(&h, limits);
            drop_if_empty(&limits->cpus);
            drop_if_empty(&limits->mems);
        } while (go_up(&h));
    }
}

void cgroup_fini(struct cgroup_limits *limits)
{
    mem_free(limits->cpus);
    mem_free(limits->mems);
    *limits = (struct cgroup_limits){.memory_bytes = UINT64_MAX};
}
