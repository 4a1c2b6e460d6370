/* Owns the check after the fact: bound memory can still be elsewhere (binding refused, pages that
 * were there before, a node that was full), and only the kernel knows. Containers forbid the
 * page-by-page question (move_pages), but not the summary per mapping in numa_maps.
 */
#include "numa/audit.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "numa/allowed.h"

#define BATCH      512u
#define MAX_SAMPLE 16384u /* pages of a region: 64 MiB of small pages are looked at one by one */

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static void count(struct audit *sum, int node, unsigned os_node, uint64_t n)
{
    if (node < 0) { /* -ENOENT, or -EFAULT for the shared zero page: nothing there yet */
        sum->n_absent += n;
    } else if ((unsigned)node == os_node) {
        sum->n_local += n;
    } else {
        sum->n_remote += n;
    }
}

/* ------------------------------------------------------------------ page by page */

/* Every step-th page, the first one by phase. */
static int ask_pages(struct world *w, const char *from, size_t bytes, size_t step, unsigned phase,
                     unsigned os_node, struct audit *sum)
{
    size_t n_page = (bytes + page_bytes() - 1) / page_bytes();
    void *page[BATCH];
    int node[BATCH];
    for (size_t at = phase % step; at < n_page;) {
        unsigned n = 0;
        for (; n < BATCH && at < n_page; n++, at += step) {
            page[n] = (void *)(uintptr_t)(from + at * page_bytes());
        }
        int error = w->where(w, page, n, node);
        if (error) {
            return error;
        }
        for (unsigned i = 0; i < n; i++) {
            count(sum, node[i], os_node, 1);
        }
    }
    sum->is_sampled |= step > 1;
    return 0;
}

/* ------------------------------------------------------------------ mapping by mapping */

/* A line of numa_maps: "7f0000000000 bind:1 anon=512 dirty=512 N1=512 kernelpagesize_kB=4".
 * Mappings of one policy that touch each other are one line, so it is the line that begins in the
 * region or before it that counts. */
static void count_line(char *line, unsigned os_node, struct audit *sum)
{
    char *save = NULL;
    const char *size = strstr(line, "kernelpagesize_kB=");
    unsigned long kib = 0;
    /* Counted in the mapping's own pages: those of 2 MiB are 512 small ones. */
    if (size != NULL) {
        sscanf(size, "kernelpagesize_kB=%lu", &kib);
    }
    const uint64_t scale = MAX(kib * 1024 / page_bytes(), 1u);
    for (char *word = strtok_r(line, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        unsigned node;
        unsigned long long n;
        if (sscanf(word, "N%u=%llu", &node, &n) == 2) {
            count(sum, (int)node, os_node, n * scale);
        }
    }
}

static bool read_maps(const struct topo *topo, const char *from, size_t bytes, unsigned os_node,
                      struct audit *sum)
{
    char *text = world_read(topo->world->root, "/proc/self/numa_maps");
    char *line, *next = text, *before = NULL;
    bool begins_inside = false;
    while ((line = strsep(&next, "\n")) != NULL) {
        uintptr_t at = (uintptr_t)strtoull(line, NULL, 16);
        if (at < (uintptr_t)from) {
            before = line;
        } else if (at < (uintptr_t)from + bytes) {
            begins_inside |= at == (uintptr_t)from;
            count_line(line, os_node, sum);
        }
    }
    if (before && !begins_inside) {
        count_line(before, os_node, sum);
    }
    sum->is_from_maps = true;
    mem_free(text);
    return text != NULL;
}

/* ------------------------------------------------------------------ arenas */

void audit_arena(const struct topo *topo, const struct node_arena *arena, struct audit *sum)
{
    unsigned os_node = topo->node[node_arena_node(arena)].os_index;
    size_t used;
    const char *from;
    for (unsigned i = 0; (from = node_arena_region(arena, i, &used)) != NULL; i++) {
        const size_t n_page = (used + page_bytes() - 1) / page_bytes();
        const size_t step = MAX((n_page + MAX_SAMPLE - 1) / MAX_SAMPLE, 1u);
        int error = ask_pages(topo->world, from, used, step, 0, os_node, sum);
        if (error && !read_maps(topo, from, used, os_node, sum)) {
            sum->is_unknown = true;
        }
    }
}

void audit_sample(const struct topo *topo, const struct node_arena *arena, unsigned max_page,
                  unsigned phase, struct audit *sum)
{
    unsigned os_node = topo->node[node_arena_node(arena)].os_index;
    size_t used, n_page = 0;
    const char *from;
    for (unsigned i = 0; node_arena_region(arena, i, &used) != NULL; i++) {
        n_page += (used + page_bytes() - 1) / page_bytes();
    }
    const size_t step = MAX((n_page + max_page - 1) / max_page, 1u);
    /* Odd multiples of large strides: neighbours in time look at distant pages. */
    const unsigned first = phase * 2654435761u;
    for (unsigned i = 0; (from = node_arena_region(arena, i, &used)) != NULL; i++) {
        if (ask_pages(topo->world, from, used, step, first, os_node, sum) != 0) {
            sum->is_unknown = true;
            return;
        }
    }
}

/* ------------------------------------------------------------------ why */

static bool is_listed(const struct topo *topo, const char *path, const char *key, unsigned os_node)
{
    char *text = world_read(topo->world->root, path), list[1024] = "";
    const char *at = text != NULL && key != NULL ? strstr(text, key) : text;
    bool listed = true; /* where nothing is known, nothing is blamed */
    if (at != NULL && sscanf(at + (key != NULL ? strlen(key) : 0), " %1023s", list) == 1) {
        listed = allowed_list_has(list, os_node);
    }
    mem_free(text);
    return listed;
}

const char *audit_cause(const struct topo *topo, const struct node_arena *arena)
{
    const unsigned os_node = topo->node[node_arena_node(arena)].os_index;
    uint64_t balancing = 0;
    if (!is_listed(topo, "/sys/devices/system/node/has_memory", NULL, os_node)) {
        return "the node's memory went offline";
    }
    if (!is_listed(topo, "/proc/self/status", "\nMems_allowed_list:", os_node)) {
        return "the node was taken from this process (cpuset.mems), and its pages moved with that";
    }
    if (node_arena_get_mode(arena) == NODE_ARENA_FIRST_TOUCH) {
        world_read_u64(topo->world->root, "/proc/sys/kernel/numa_balancing", &balancing);
        return balancing ? "memory could not be bound, and the kernel moves it about: sysctl "
                           "kernel.numa_balancing=0 stops that"
                         : "memory could not be bound, and went where there was some";
    }
    return "bound pages are moved by others only: migratepages, a scheduler of memory, a cpuset "
           "that was changed and changed back";
}

double audit_percent_local(const struct audit *audit)
{
    uint64_t n = audit->n_local + audit->n_remote;
    return n ? 100.0 * (double)audit->n_local / (double)n : 100.0;
}
