/* Owns memory of one node: a list of mapped regions that are cut from the front, and the holes that
 * came into being where pieces were given back. Order matters: map, bind, advise, and only then
 * touch, which is left to whoever fills it; pages that exist already do not move. Small arenas cost
 * little: a region is only address space until it is touched.
 */
#include "numa/arena.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/log.h"
#include "base/mem.h"
#include "numa/room.h"

#define HUGE_BYTES       ((size_t)2 << 20) /* regions are whole huge pages, so that none is shared */
#define REGION_MAX_BYTES ((size_t)1 << 30) /* growth by doubling ends here */

struct region {
    char *addr;
    size_t bytes, used; /* what lies behind `used` is zero */
    enum pages pages;
};

/* Behind a hole there is always a piece of the same region: a hole at the end of what is used would
 * not be used. So there are never more holes than pieces. */
struct hole {
    char *addr;
    size_t bytes;
};

struct node_arena {
    const struct topo *topo;
    unsigned in;
    char name[64];
    struct region *region;
    unsigned n_region;
    struct hole *hole; /* by address; room for one more than n_piece */
    unsigned n_hole, hole_cap, n_piece;
    size_t region_bytes;   /* all of them */
    uint64_t alloc_bytes;  /* handed out */
    uint64_t ledger_bytes; /* of them in the ledger: all but those in reserved huge pages */
    enum node_arena_mode mode;
    enum pages_policy policy;
};

numoe_status node_arena_new(const struct topo *topo, unsigned in, const char *name,
                            struct node_arena **out, numoe_error *err)
{
    struct node_arena *arena;
    if (in >= topo->n_node) {
        return status_fail(err, NUMOE_E_STATE, "arena %s: node %u of %u", name, in, topo->n_node);
    }
    enum pages_policy policy;
    FORWARD_IF(pages_policy(&policy, err));
    FORWARD_IF(mem_new(&arena, 1, sizeof(*arena), name, err));
    arena->policy = policy;
    arena->topo = topo;
    arena->in = in;
    arena->mode = topo->is_this_machine ? NODE_ARENA_BOUND : NODE_ARENA_RECORDED;
    snprintf(arena->name, sizeof(arena->name), "%s", name);
    *out = arena;
    return NUMOE_OK;
}

numoe_status node_arena_new_counting(const struct topo *topo, unsigned in, struct node_arena **out,
                                     numoe_error *err)
{
    FORWARD_IF(node_arena_new(topo, in, "memory to come", out, err));
    (*out)->mode = NODE_ARENA_COUNTING;
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
    atomic_fetch_sub(&arena->topo->ledger->taken_bytes[arena->in], arena->ledger_bytes);
    mem_free(arena->hole);
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

enum pages node_arena_get_pages(const struct node_arena *arena)
{
    size_t bytes[PAGES_1G + 1] = {0};
    enum pages most = PAGES_SMALL;
    for (unsigned i = 0; i < arena->n_region; i++) {
        bytes[arena->region[i].pages] += arena->region[i].bytes;
    }
    for (unsigned pages = 0; pages <= PAGES_1G; pages++) {
        most = bytes[pages] > bytes[most] ? (enum pages)pages : most;
    }
    return most;
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

static numoe_status fail_full(const struct node_arena *arena, size_t bytes, uint64_t left,
                              const char *limit, numoe_error *err)
{
    const double mib = 1048576.0;
    return status_fail(err, NUMOE_E_MEMORY,
                       "%s: %.1f MiB more on node %u do not fit: %.1f MiB left %s%s", arena->name,
                       (double)bytes / mib, arena->topo->node[arena->in].os_index,
                       (double)left / mib, limit, room_way_out(arena->topo));
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
    uint64_t limit = room_less_reserve(MIN(topo->memory_limit_bytes, topo->host_room_bytes));
    if (taken >= limit || bytes > limit - taken) {
        char of[96];
        snprintf(of, sizeof(of), "of %s",
                 topo->memory_limit_bytes <= topo->host_room_bytes
                     ? "the control group's or job's limit"
                     : topo->host_room_source);
        return fail_full(arena, bytes, limit - MIN(limit, taken), of, err);
    }
    if (node->available_bytes == 0) { /* unknown, or not this machine */
        return NUMOE_OK;
    }
    uint64_t room = room_less_reserve(node->available_bytes);
    if (taken_here >= room || bytes > room - taken_here) {
        return fail_full(arena, bytes, room - MIN(room, taken_here),
                         "of what was free there at start", err);
    }
    room = now ? room_available_bytes(topo, node->os_index) : 0;
    return room == 0 || bytes <= room
               ? NUMOE_OK
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

/* Reserved pages come from whatever node has some unless they are bound, and those that a node
 * lacks are noticed at the first touch, by a signal that ends the process. So: count, bind, and
 * have them all made here, where it is an error. */
static bool try_reserved(struct node_arena *arena, size_t bytes, enum pages pages,
                         struct region *out)
{
    struct world *world = arena->topo->world;
    const unsigned os_node = arena->topo->node[arena->in].os_index;
    const size_t page_bytes = pages_bytes(pages);
    struct region region = {.bytes = round_up(bytes, page_bytes), .pages = pages};
    void *addr;
    if (room_free_huge(arena->topo, os_node, page_bytes) < region.bytes / page_bytes ||
        world->map_huge(world, region.bytes, page_bytes, &addr) != 0) {
        return false;
    }
    region.addr = addr;
    bind_region(arena, &region);
    if (arena->mode == NODE_ARENA_FIRST_TOUCH ||
        world->populate(world, region.addr, region.bytes) != 0) {
        world->unmap(world, region.addr, region.bytes);
        return false;
    }
    *out = region;
    return true;
}

/* Reserved pages are somebody's decision: where there are some and they cannot be used, or they are
 * asked for and missing, that is said once. */
static void tell_shortage(struct node_arena *arena, size_t bytes)
{
    const struct topo *topo = arena->topo;
    const unsigned os_node = topo->node[arena->in].os_index;
    const uint64_t n_2m = room_free_huge(topo, os_node, TOPO_HUGE_2M);
    const uint64_t n_1g = room_free_huge(topo, os_node, TOPO_HUGE_1G);
    if (arena->mode != NODE_ARENA_FIRST_TOUCH &&
        (arena->policy == PAGES_POLICY_HUGE || n_2m > 0 || n_1g > 0) &&
        (atomic_fetch_or(&topo->ledger->told, TOPO_TOLD_HUGE) & TOPO_TOLD_HUGE) == 0) {
        log_warn("%s: %.1f MiB on node %u do not fit into its free huge pages (%llu of 2 MiB, %llu "
                 "of 1 GiB) or these cannot be used, going on without",
                 arena->name, (double)bytes / 1048576.0, os_node, (unsigned long long)n_2m,
                 (unsigned long long)n_1g);
    }
}

static bool map_reserved(struct node_arena *arena, size_t bytes, struct region *out)
{
    if ((arena->policy != PAGES_POLICY_AUTO && arena->policy != PAGES_POLICY_HUGE) ||
        bytes <= HUGE_BYTES || arena->mode == NODE_ARENA_FIRST_TOUCH) {
        return false;
    }
    if ((bytes >= TOPO_HUGE_1G && try_reserved(arena, bytes, PAGES_1G, out)) ||
        try_reserved(arena, bytes, PAGES_2M, out)) {
        return true;
    }
    tell_shortage(arena, bytes);
    return false;
}

static numoe_status map_ordinary(struct node_arena *arena, size_t bytes, struct region *out,
                                 numoe_error *err)
{
    struct region region = {.addr = map_aligned(bytes), .bytes = bytes, .pages = PAGES_SMALL};
    if (region.addr == NULL) {
        return status_fail(err, NUMOE_E_MEMORY, "%s: cannot map %zu bytes: %s", arena->name, bytes,
                           strerror(errno));
    }
    bind_region(arena, &region);
    if (bytes > HUGE_BYTES) { /* a first, small region grows by small pages */
        region.pages = pages_ordinary(arena->topo, arena->policy);
        madvise(region.addr, region.bytes,
                region.pages == PAGES_THP ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    }
    *out = region;
    return NUMOE_OK;
}

/* Regions double, as what is not touched costs nothing; but where ulimit counts it, they stay a
 * small part of what it leaves. */
static size_t growth(const struct node_arena *arena)
{
    const uint64_t most = MIN(arena->topo->process_room_bytes / 128, REGION_MAX_BYTES);
    return MAX(MIN(arena->region_bytes, most), HUGE_BYTES);
}

static numoe_status add_region(struct node_arena *arena, size_t piece_bytes, numoe_error *err)
{
    size_t bytes = round_up(MAX(piece_bytes, growth(arena)), HUGE_BYTES);
    struct region region;
    FORWARD_IF(
        mem_grow(&arena->region, arena->n_region + 1, sizeof(*arena->region), arena->name, err));
    if (!map_reserved(arena, bytes, &region)) {
        FORWARD_IF(check_room(arena, piece_bytes, true, err));
        FORWARD_IF(map_ordinary(arena, bytes, &region, err));
    }
    arena->region[arena->n_region++] = region;
    arena->region_bytes += region.bytes;
    return NUMOE_OK;
}

static void drop_region(struct node_arena *arena, struct region *region)
{
    struct world *world = arena->topo->world;
    world->unmap(world, region->addr, region->bytes);
    arena->region_bytes -= region->bytes;
    arena->n_region--;
    memmove(region, region + 1,
            (size_t)(&arena->region[arena->n_region] - region) * sizeof(*region));
}

static struct region *find_region(const struct node_arena *arena, const char *p)
{
    for (unsigned i = 0; i < arena->n_region; i++) {
        struct region *region = &arena->region[i];
        if (p >= region->addr && p < region->addr + region->bytes) {
            return region;
        }
    }
    return NULL;
}

/* ------------------------------------------------------------------ pieces */

static size_t piece_bytes_of(size_t bytes)
{
    return round_up(MAX(bytes, 1u), CACHE_LINE_BYTES);
}

/* The smallest hole that is large enough, or the first region with room behind what is used. */
static bool find_place(const struct node_arena *arena, size_t bytes, unsigned *ih, unsigned *ir)
{
    unsigned best = arena->n_hole;
    for (unsigned i = 0; i < arena->n_hole; i++) {
        if (arena->hole[i].bytes >= bytes &&
            (best == arena->n_hole || arena->hole[i].bytes < arena->hole[best].bytes)) {
            best = i;
        }
    }
    *ih = best;
    *ir = 0;
    while (best == arena->n_hole && *ir < arena->n_region &&
           arena->region[*ir].bytes - arena->region[*ir].used < bytes) {
        (*ir)++;
    }
    return best < arena->n_hole || *ir < arena->n_region;
}

static void remove_hole(struct node_arena *arena, unsigned ih)
{
    arena->n_hole--;
    memmove(&arena->hole[ih], &arena->hole[ih + 1], (arena->n_hole - ih) * sizeof(*arena->hole));
}

static char *take_hole(struct node_arena *arena, unsigned ih, size_t bytes)
{
    struct hole *hole = &arena->hole[ih];
    char *p = hole->addr;
    hole->addr += bytes;
    hole->bytes -= bytes;
    if (hole->bytes == 0) {
        remove_hole(arena, ih);
    }
    return p;
}

static bool is_reserved(const struct region *region)
{
    return region->pages == PAGES_2M || region->pages == PAGES_1G;
}

static void account(struct node_arena *arena, const struct region *region, size_t bytes, bool taken)
{
    const uint64_t ledger_bytes = is_reserved(region) ? 0 : bytes;
    _Atomic uint64_t *ledger = &arena->topo->ledger->taken_bytes[arena->in];
    if (taken) {
        arena->n_piece++;
        arena->alloc_bytes += bytes;
        arena->ledger_bytes += ledger_bytes;
        atomic_fetch_add(ledger, ledger_bytes);
    } else {
        arena->n_piece--;
        arena->alloc_bytes -= bytes;
        arena->ledger_bytes -= ledger_bytes;
        atomic_fetch_sub(ledger, ledger_bytes);
    }
}

static numoe_status make_room_for_hole(struct node_arena *arena, numoe_error *err)
{
    if (arena->n_piece + 2 <= arena->hole_cap) {
        return NUMOE_OK;
    }
    const unsigned cap = 2 * arena->n_piece + 16;
    FORWARD_IF(mem_grow(&arena->hole, cap, sizeof(*arena->hole), arena->name, err));
    arena->hole_cap = cap;
    return NUMOE_OK;
}

numoe_status node_arena_alloc(struct node_arena *arena, size_t bytes, void *out, numoe_error *err)
{
    if (bytes > PTRDIFF_MAX / 2) {
        return status_fail(err, NUMOE_E_MEMORY, "%s: %zu bytes are more than can be addressed",
                           arena->name, bytes);
    }
    unsigned ih, ir;
    bytes = piece_bytes_of(bytes);
    if (arena->mode == NODE_ARENA_COUNTING) {
        arena->alloc_bytes += bytes;
        void *nowhere = (void *)(uintptr_t)CACHE_LINE_BYTES;
        memcpy(out, &nowhere, sizeof(nowhere));
        return NUMOE_OK;
    }
    FORWARD_IF(make_room_for_hole(arena, err));
    if (!find_place(arena, bytes, &ih, &ir)) {
        FORWARD_IF(add_region(arena, bytes, err));
        ih = arena->n_hole;
        ir = arena->n_region - 1;
    } else {
        const struct region *region =
            ih < arena->n_hole ? find_region(arena, arena->hole[ih].addr) : &arena->region[ir];
        FORWARD_IF(is_reserved(region) ? NUMOE_OK : check_room(arena, bytes, false, err));
    }
    char *p;
    if (ih < arena->n_hole) {
        p = take_hole(arena, ih, bytes);
    } else {
        p = arena->region[ir].addr + arena->region[ir].used;
        arena->region[ir].used += bytes;
    }
    account(arena, find_region(arena, p), bytes, true);
    memcpy(out, &p, sizeof(p));
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ giving back */

/* Adds [addr, addr + bytes) to the holes, merged with its neighbours in the region; *free becomes
 * the whole of what is free there, which may go on to the region's end. */
static void add_hole(struct node_arena *arena, struct region *region, char *addr, size_t bytes,
                     struct hole *free)
{
    unsigned at = 0;
    while (at < arena->n_hole && arena->hole[at].addr < addr) {
        at++;
    }
    *free = (struct hole){addr, bytes};
    if (at < arena->n_hole && arena->hole[at].addr == addr + bytes &&
        arena->hole[at].addr < region->addr + region->bytes) {
        free->bytes += arena->hole[at].bytes;
        remove_hole(arena, at);
    }
    if (at > 0 && arena->hole[at - 1].addr + arena->hole[at - 1].bytes == addr &&
        addr > region->addr) {
        free->addr = arena->hole[at - 1].addr;
        free->bytes += arena->hole[at - 1].bytes;
        remove_hole(arena, --at);
    }
    if (free->addr + free->bytes == region->addr + region->used) {
        region->used = (size_t)(free->addr - region->addr);
        free->bytes = region->bytes - region->used;
        return;
    }
    memmove(&arena->hole[at + 1], &arena->hole[at], (arena->n_hole - at) * sizeof(*arena->hole));
    arena->hole[at] = *free;
    arena->n_hole++;
}

/* Makes what was a piece zero again: pages that are free now as a whole go back to the system, the
 * rest is cleared. Reserved pages stay: nobody else could use them, and they would have to be made
 * again. */
static void clear(const struct region *region, char *addr, size_t bytes, const struct hole *free)
{
    char *from = addr, *to = addr; /* pages */
    if (!is_reserved(region)) {
        const size_t page = pages_bytes(region->pages);
        const uintptr_t in_from = round_up((uintptr_t)free->addr, page);
        const uintptr_t in_to = ((uintptr_t)free->addr + free->bytes) / page * page;
        const uintptr_t piece_from = (uintptr_t)addr / page * page;
        const uintptr_t piece_to = round_up((uintptr_t)addr + bytes, page);
        const uintptr_t give_from = MAX(in_from, piece_from), give_to = MIN(in_to, piece_to);
        if (give_from < give_to && madvise(region->addr + (give_from - (uintptr_t)region->addr),
                                           give_to - give_from, MADV_DONTNEED) == 0) {
            from = MAX(addr, region->addr + (give_from - (uintptr_t)region->addr));
            to = MIN(addr + bytes, region->addr + (give_to - (uintptr_t)region->addr));
        }
    }
    memset(addr, 0, (size_t)(from - addr));
    memset(to, 0, (size_t)(addr + bytes - to));
}

void node_arena_dealloc(struct node_arena *arena, void *p, size_t bytes)
{
    struct region *region = find_region(arena, p);
    struct hole free;
    bytes = piece_bytes_of(bytes);
    account(arena, region, bytes, false);
    add_hole(arena, region, p, bytes, &free);
    if (region->used == 0) {
        drop_region(arena, region);
    } else {
        clear(region, p, bytes, &free);
    }
}
