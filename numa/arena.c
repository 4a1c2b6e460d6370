/* Owns memory of one node: a list of mapped regions that are cut from the front. Order matters:
 * map, bind, advise, and only then touch, which is left to whoever fills it; pages that exist
 * already do not move. Small arenas cost little: a region is only address space until it is
 * touched.
 */
#include "numa/arena.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/log.h"
#include "base/mem.h"

#define HUGE_BYTES        ((size_t)2 << 20) /* regions are whole huge pages, so that none is shared */
#define REGION_MAX_BYTES  ((size_t)1 << 30) /* growth by doubling ends here */
#define RESERVE_MAX_BYTES ((uint64_t)1 << 30)

struct region {
    char *addr;
    size_t bytes, used;
};

struct node_arena {
    const struct topo *topo;
    unsigned in;
    char name[64];
    struct region *region;
    unsigned n_region;
    size_t region_bytes;  /* all of them */
    uint64_t alloc_bytes; /* handed out; also what the ledger holds of this arena */
    enum node_arena_mode mode;
};

numoe_status node_arena_new(const struct topo *topo, unsigned in, const char *name,
                            struct node_arena **out, numoe_error *err)
{
    struct node_arena *arena;
    if (in >= topo->n_node) {
        return status_fail(err, NUMOE_E_STATE, "arena %s: node %u of %u", name, in, topo->n_node);
    }
    FORWARD_IF(mem_new(&arena, 1, sizeof(*arena), name, err));
    arena->topo = topo;
    arena->in = in;
    arena->mode = topo->is_this_machine ? NODE_ARENA_BOUND : NODE_ARENA_RECORDED;
    snprintf(arena->name, sizeof(arena->name), "%s", name);
    *out = arena;
    return NUMOE_OK;
}

void node_arena_free(struct node_arena *arena)
{
    if (arena == NULL) {
        return;
    }
    for (unsigned i = 0; i < arena->n_region; i++) {
        struct world *world = arena->topo->world;
        world->unmap(world, arena->region[i].addr, arena->region[i].bytes);
    }
    atomic_fetch_sub(&arena->topo->ledger->taken_bytes[arena->in], arena->alloc_bytes);
    mem_free(arena->region);
    mem_free(arena);
}

uint64_t node_arena_bytes(const struct node_arena *arena)
{
    return arena->alloc_bytes;
}

enum node_arena_mode node_arena_get_mode(const struct node_arena *arena)
{
    return arena->mode;
}

unsigned node_arena_node(const struct node_arena *arena)
{
    return arena->in;
}

const void *node_arena_region(const struct node_arena *arena, unsigned i, size_t *used_bytes)
{
    if (i >= arena->n_region) {
        return NULL;
    }
    *used_bytes = arena->region[i].used;
    return arena->region[i].addr;
}

/* ------------------------------------------------------------------ does it fit */

/* Something is left for the kernel, page tables and everybody else. */
static uint64_t less_reserve(uint64_t bytes)
{
    return bytes - MIN(bytes / 32, RESERVE_MAX_BYTES);
}

static numoe_status fail_full(const struct node_arena *arena, size_t bytes, uint64_t left,
                              const char *limit, numoe_error *err)
{
    const double mib = 1048576.0;
    return status_fail(err, NUMOE_E_MEMORY,
                       "%s: %.1f MiB more on node %u do not fit: %.1f MiB left %s", arena->name,
                       (double)bytes / mib, arena->topo->node[arena->in].os_index,
                       (double)left / mib, limit);
}

/* What was handed out may be untouched, so what the kernel calls available is compared twice: as it
 * was when the topology was loaded, less all that was handed out since, and, when address space is
 * added, as it is now. */
static numoe_status check_room(const struct node_arena *arena, size_t bytes, bool now,
                               numoe_error *err)
{
    const struct topo *topo = arena->topo;
    const struct topo_node *node = &topo->node[arena->in];
    uint64_t taken = 0, taken_here = atomic_load(&topo->ledger->taken_bytes[arena->in]);
    for (unsigned in = 0; in < topo->n_node; in++) {
        taken += atomic_load(&topo->ledger->taken_bytes[in]);
    }
    uint64_t limit = less_reserve(MIN(topo->memory_limit_bytes, topo->host_room_bytes));
    if (taken >= limit || bytes > limit - taken) {
        return fail_full(arena, bytes, limit - MIN(limit, taken),
                         topo->memory_limit_bytes <= topo->host_room_bytes
                             ? "of the control group's limit"
                             : "of what this machine had free at start",
                         err);
    }
    if (node->available_bytes == 0) { /* unknown, or not this machine */
        return NUMOE_OK;
    }
    uint64_t room = less_reserve(node->available_bytes);
    if (taken_here >= room || bytes > room - taken_here) {
        return fail_full(arena, bytes, room - MIN(room, taken_here),
                         "of what was free there at start", err);
    }
    room = now ? less_reserve(topo_available_bytes(topo, node->os_index)) : UINT64_MAX;
    return bytes <= room ? NUMOE_OK
                         : fail_full(arena, bytes, room, "free or reclaimable there now", err);
}

/* ------------------------------------------------------------------ regions */

static const char *bind_hint(int error)
{
    switch (error) {
    case EPERM:
        return "containers need the capability SYS_NICE for it";
    case EINVAL:
        return "the node is outside the memory nodes of this process, or has no memory";
    case ENOSYS:
        return "this kernel has no NUMA support";
    default:
        return "unexpected";
    }
}

/* Without binding, pages come from the node of the worker that touches them first, which is the
 * same node as long as that has memory left. */
static void bind_region(struct node_arena *arena, const struct region *region)
{
    struct world *world = arena->topo->world;
    unsigned os_node = arena->topo->node[arena->in].os_index;
    int error = world->bind(world, region->addr, region->bytes, os_node);
    if (error == 0 || arena->mode == NODE_ARENA_RECORDED) {
        return;
    }
    arena->mode = NODE_ARENA_FIRST_TOUCH;
    if ((atomic_fetch_or(&arena->topo->ledger->told, TOPO_TOLD_BIND) & TOPO_TOLD_BIND) == 0) {
        log_warn("memory cannot be bound to node %u (%s: %s), pages are placed by first touch",
                 os_node, strerror(error), bind_hint(error));
    }
}

/* Address space of whole, aligned huge pages. */
static char *map_aligned(size_t bytes)
{
    size_t room = bytes + HUGE_BYTES;
    char *p = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED) {
        return NULL;
    }
    size_t head = (HUGE_BYTES - (uintptr_t)p % HUGE_BYTES) % HUGE_BYTES;
    if (head > 0) {
        munmap(p, head);
    }
    munmap(p + head + bytes, room - head - bytes);
    return p + head;
}

static numoe_status add_region(struct node_arena *arena, size_t bytes, numoe_error *err)
{
    size_t grow = MIN(MAX(arena->region_bytes, HUGE_BYTES), REGION_MAX_BYTES);
    size_t region_bytes = round_up(MAX(bytes, grow), HUGE_BYTES);
    FORWARD_IF(
        mem_grow(&arena->region, arena->n_region + 1, sizeof(*arena->region), arena->name, err));
    struct region region = {.addr = map_aligned(region_bytes), .bytes = region_bytes};
    if (region.addr == NULL) {
        return status_fail(err, NUMOE_E_MEMORY, "%s: cannot map %zu bytes: %s", arena->name,
                           region_bytes, strerror(errno));
    }
    bind_region(arena, &region);
    if (region_bytes > HUGE_BYTES) { /* a first, small region grows by small pages */
        madvise(region.addr, region.bytes, MADV_HUGEPAGE);
    }
    arena->region[arena->n_region++] = region;
    arena->region_bytes += region_bytes;
    return NUMOE_OK;
}

numoe_status node_arena_alloc(struct node_arena *arena, size_t bytes, void *out, numoe_error *err)
{
    if (bytes > PTRDIFF_MAX / 2) {
        return status_fail(err, NUMOE_E_MEMORY, "%s: %zu bytes are more than can be addressed",
                           arena->name, bytes);
    }
    bytes = round_up(MAX(bytes, 1u), CACHE_LINE_BYTES);
    struct region *last = arena->n_region ? &arena->region[arena->n_region - 1] : NULL;
    bool grows = last == NULL || last->bytes - last->used < bytes;
    FORWARD_IF(check_room(arena, bytes, grows, err));
    if (grows) {
        FORWARD_IF(add_region(arena, bytes, err));
        last = &arena->region[arena->n_region - 1];
    }
    void *p = last->addr + last->used;
    last->used += bytes;
    arena->alloc_bytes += bytes;
    atomic_fetch_add(&arena->topo->ledger->taken_bytes[arena->in], bytes);
    memcpy(out, &p, sizeof(p));
    return NUMOE_OK;
}
