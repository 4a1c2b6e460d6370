/* Owns the question how much may still be taken. A bound node that is full is not an error later
 * but the end of the process, and the kernel's counters of free memory include what it keeps for
 * itself: below the watermarks of a zone it first reclaims, then kills.
 */
#include "numa/room.h"

#include <glob.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/knob.h"
#include "base/log.h"
#include "base/mem.h"
#include "numa/cgroup.h"

#define RESERVE_MIN_BYTES ((uint64_t)8 << 20) /* heap, stacks and page tables of a small engine */
#define RESERVE_MAX_BYTES ((uint64_t)1 << 30)
/* 8 bytes a page of 4 KiB; set aside for transparent huge pages too */
#define PAGE_TABLE_PART 512

/* ------------------------------------------------------------------ zones */

/* Pages of one node over its zones: free above the high watermark and what is kept for requests
 * that only a lower zone can serve; and the low watermarks. */
struct zones {
    uint64_t usable_pages, low_pages;
    bool found;
};

struct zone {
    unsigned node;
    uint64_t free, low, high, kept;
};

/* "        protection: (0, 2866, 15821, 15821)": the most that any kind of request leaves alone. */
static uint64_t most_kept(const char *list)
{
    unsigned long long most = 0, pages;
    for (const char *p = strpbrk(list, "0123456789"); p != NULL; p = strpbrk(p, "0123456789")) {
        most = sscanf(p, "%llu", &pages) == 1 ? MAX(most, pages) : most;
        p += strspn(p, "0123456789");
    }
    return most;
}

static void add_zone(const struct zone *zone, unsigned os_index, struct zones *sum)
{
    const uint64_t kept = zone->high + zone->kept;
    if (zone->node == os_index) {
        sum->usable_pages += zone->free - MIN(zone->free, kept);
        sum->low_pages += zone->low;
        sum->found = true;
    }
}

/* A zone of /proc/zoneinfo begins with "Node 1, zone   Normal"; its numbers follow, one a line. */
static struct zones read_zones(const char *root, unsigned os_index)
{
    struct zones sum = {0};
    struct zone zone = {.node = UINT32_MAX};
    char *text = world_read(root, "/proc/zoneinfo"), *next = text, *line;
    while ((line = strsep(&next, "\n")) != NULL) {
        unsigned node;
        unsigned long long n;
        if (sscanf(line, "Node %u, zone", &node) == 1) {
            add_zone(&zone, os_index, &sum);
            zone = (struct zone){.node = node};
        } else if (sscanf(line, " pages free %llu", &n) == 1) {
            zone.free = n;
        } else if (sscanf(line, " low %llu", &n) == 1) {
            zone.low = n;
        } else if (sscanf(line, " high %llu", &n) == 1) {
            zone.high = n;
        } else if (strstr(line, "protection:") != NULL) {
            zone.kept = most_kept(line);
        }
    }
    add_zone(&zone, os_index, &sum);
    mem_free(text);
    return sum;
}

/* ------------------------------------------------------------------ nodes */

static bool is_only_memory_node(const char *root)
{
    char *list = world_read(root, "/sys/devices/system/node/has_memory");
    bool only = list == NULL || strpbrk(list, ",-") == NULL;
    mem_free(list);
    return only;
}

static uint64_t machine_bytes(const char *root, const char *key)
{
    uint64_t kib = 0;
    char *info = world_read(root, "/proc/meminfo");
    if (info) {
        world_find_u64(info, key, &kib);
    }
    mem_free(info);
    return kib * 1024;
}

static uint64_t node_kib(const char *info, unsigned os_index, const char *name)
{
    char key[64];
    uint64_t kib = 0;
    snprintf(key, sizeof(key), "Node %u %s:", os_index, name);
    world_find_u64(info, key, &kib);
    return kib;
}

/* As the kernel estimates MemAvailable for the whole machine: file cache that is clean, but for
 * what is kept to keep things going; half of what slabs can give back. */
static uint64_t node_available_bytes(const char *root, unsigned os_index)
{
    char path[96];
    snprintf(path, sizeof(path), "/sys/devices/system/node/node%u/meminfo", os_index);
    char *info = world_read(root, path);
    if (info == NULL) {
        return 0;
    }
    const uint64_t page_kib = (uint64_t)sysconf(_SC_PAGESIZE) / 1024;
    const struct zones zones = read_zones(root, os_index);
    const uint64_t low_kib = zones.low_pages * page_kib;
    const uint64_t free_kib =
        zones.found ? zones.usable_pages * page_kib : node_kib(info, os_index, "MemFree");
    const uint64_t dirty_kib =
        node_kib(info, os_index, "Dirty") + node_kib(info, os_index, "Writeback");
    uint64_t file_kib =
        node_kib(info, os_index, "Active(file)") + node_kib(info, os_index, "Inactive(file)");
    file_kib -= MIN(file_kib, dirty_kib);
    file_kib -= MIN(file_kib / 2, low_kib);
    const uint64_t slab_kib = node_kib(info, os_index, "SReclaimable") / 2;
    mem_free(info);
    return MAX((free_kib + file_kib + slab_kib) * 1024, 4096u);
}

static bool reads_system(const struct topo *t)
{
    return t->is_this_machine || t->world->root[0] != '\0';
}

uint64_t room_available_bytes(const struct topo *topo, unsigned os_index)
{
    if (!reads_system(topo)) {
        return 0;
    }
    const char *root = topo->world->root;
    return is_only_memory_node(root) ? machine_bytes(root, "MemAvailable:")
                                     : node_available_bytes(root, os_index);
}

uint64_t room_free_huge(const struct topo *topo, unsigned os_index, uint64_t page_bytes)
{
    char path[160];
    uint64_t n = 0;
    if (reads_system(topo)) {
        snprintf(path, sizeof(path),
                 "/sys/devices/system/node/node%u/hugepages/hugepages-%llukB/free_hugepages",
                 os_index, (unsigned long long)page_bytes / 1024);
        world_read_u64(topo->world->root, path, &n);
    }
    return n;
}

uint64_t room_less_reserve(uint64_t bytes)
{
    const uint64_t most = RESERVE_MAX_BYTES + bytes / PAGE_TABLE_PART;
    const uint64_t reserve = MAX(MIN(bytes / 32, most), RESERVE_MIN_BYTES);
    return bytes == UINT64_MAX ? bytes : bytes - MIN(bytes, reserve);
}

/* ------------------------------------------------------------------ the whole */

static bool is_there(const char *root, const char *pattern)
{
    char path[512];
    glob_t found;
    snprintf(path, sizeof(path), "%s%s", root, pattern);
    const bool there = glob(path, GLOB_NOSORT, NULL, &found) == 0;
    if (there) {
        globfree(&found);
    }
    return there;
}

/* Guests get memory as they use it where a balloon or hot-plugged memory is driven from outside;
 * what the kernel counts is then what there is now, not what there could be. */
static bool may_grow(const char *root, uint64_t limit_bytes)
{
    static const char *const drivers[] = {
        "/sys/bus/virtio/drivers/virtio_balloon/virtio*",
        "/sys/bus/virtio/drivers/virtio_mem/virtio*",
        "/sys/bus/vmbus/drivers/hv_balloon/*-*-*",
        "/sys/devices/system/xen_memory",
        "/sys/module/vmw_balloon",
    };
    /* Under a limit, what is taken beyond it ends the process, however much the guest may grow. */
    for (size_t i = 0; limit_bytes == UINT64_MAX && i < ARRAY_LEN(drivers); i++) {
        if (is_there(root, drivers[i])) {
            return true;
        }
    }
    return limit_bytes != UINT64_MAX && limit_bytes > machine_bytes(root, "MemTotal:");
}

const char *room_way_out(const struct topo *topo)
{
    const bool is_ulimit = topo->process_room_bytes <= topo->host_room_bytes;
    return topo->memory_may_grow && topo->is_this_machine && !is_ulimit
               ? "; this machine is a guest whose memory may grow: NUMOE_MEMORY_CHECK=off tries "
                 "regardless"
               : "";
}

static void read_node(const struct topo *topo, struct topo_node *node)
{
    node->available_bytes = room_available_bytes(topo, node->os_index);
    node->memory_bytes = MAX(node->memory_bytes, node->available_bytes);
    node->huge_2m_free = room_free_huge(topo, node->os_index, TOPO_HUGE_2M);
    node->huge_1g_free = room_free_huge(topo, node->os_index, TOPO_HUGE_1G);
}

static bool is_unchecked(void)
{
    const char *check = knob_str("NUMOE_MEMORY_CHECK");
    return check != NULL && strcmp(check, "off") == 0;
}

struct cap {
    uint64_t bytes; /* UINT64_MAX: none */
    const char *source;
};

static void lower(struct cap *cap, uint64_t bytes, const char *source)
{
    if (bytes < cap->bytes) {
        *cap = (struct cap){bytes, source};
    }
}

static uint64_t left_of(int resource, uint64_t used_bytes)
{
    struct rlimit limit;
    if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
        return UINT64_MAX;
    }
    return limit.rlim_cur - MIN((uint64_t)limit.rlim_cur, used_bytes);
}

/* Both limits count what is mapped, touched or not. statm, in pages: "size resident shared text lib
 * data dirty". */
static struct cap process_cap(void)
{
    struct cap cap = {.bytes = UINT64_MAX};
    unsigned long long size = 0, data = 0;
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    char *statm = world_read("", "/proc/self/statm");
    if (statm != NULL && sscanf(statm, "%llu %*u %*u %*u %*u %llu", &size, &data) != 2) {
        size = data = 0;
    }
    mem_free(statm);
    lower(&cap, left_of(RLIMIT_AS, size * page), "what ulimit -v leaves of address space");
    lower(&cap, left_of(RLIMIT_DATA, data * page), "what ulimit -d leaves for data");
    return cap;
}

/* The host is where the process runs, also when the topology is another machine. */
static struct cap host_cap(struct cap process)
{
    struct cap cap = {UINT64_MAX, "what this machine has free"};
    struct cgroup_limits limits;
    cgroup_read("", &limits);
    const uint64_t available = machine_bytes("", "MemAvailable:");
    lower(&cap, available ? available : UINT64_MAX, cap.source);
    lower(&cap, limits.memory_bytes, "the limit of this machine's control group");
    cgroup_fini(&limits);
    lower(&cap, process.bytes, process.source);
    return cap;
}

static void read_host(struct topo *topo)
{
    const struct cap process = process_cap(), host = host_cap(process);
    topo->process_room_bytes = process.bytes;
    topo->process_room_source = process.source;
    topo->host_room_bytes = host.bytes;
    topo->host_room_source = host.source;
}

uint64_t room_of_host(void)
{
    return is_unchecked() ? UINT64_MAX : host_cap(process_cap()).bytes;
}

static void forget(struct topo *topo)
{
    topo->host_room_bytes = topo->memory_limit_bytes = topo->process_room_bytes = UINT64_MAX;
    for (unsigned in = 0; in < topo->n_node; in++) {
        topo->node[in].available_bytes = 0;
    }
    if ((atomic_fetch_or(&topo->ledger->told, TOPO_TOLD_CHECK) & TOPO_TOLD_CHECK) == 0) {
        log_warn("memory is not checked (NUMOE_MEMORY_CHECK=off): where it does not suffice, the "
                 "kernel ends the process");
    }
}

numoe_status room_read(struct topo *topo, numoe_error *err)
{
    const char *check = knob_str("NUMOE_MEMORY_CHECK");
    const bool off = is_unchecked();
    if (check != NULL && !off && strcmp(check, "on") != 0) {
        return status_fail(err, NUMOE_E_INPUT, "NUMOE_MEMORY_CHECK is \"%s\", expected on or off",
                           check);
    }
    if (reads_system(topo)) {
        struct cgroup_limits limits;
        cgroup_read(topo->world->root, &limits);
        topo->memory_limit_bytes = limits.memory_bytes;
        cgroup_fini(&limits);
        topo->memory_may_grow = may_grow(topo->world->root, topo->memory_limit_bytes);
        for (unsigned in = 0; in < topo->n_node; in++) {
            read_node(topo, &topo->node[in]);
        }
        for (unsigned in = 0; in < topo->n_memory_node; in++) {
            read_node(topo, &topo->memory_node[in]);
        }
    }
    read_host(topo);
    if (off && topo->is_this_machine) {
        forget(topo);
    }
    return NUMOE_OK;
}
