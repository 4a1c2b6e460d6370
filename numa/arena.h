/* Memory on a node: for weights, KV cache and activations. Pieces of big regions, given back one by
 * one or with the whole arena.
 *
 * On this machine: mmap, mbind to the node, madvise, first touch by whoever fills it (a worker of
 * that node). Regions of more than 2 MiB are made of the largest pages that can be had, as
 * NUMOE_PAGES allows (numa/pages.h): reserved ones of 1 GiB, then of 2 MiB, if the node has enough
 * of them free for the region; then transparent ones, unless a probe finds small pages faster; then
 * small ones. Reserved pages are there at once, they cannot be left to first touch.
 *
 * Where binding is refused (EPERM in containers) it goes on with first touch, without reserved
 * pages, and says so once. If the topology is not this machine: plain memory, and what would have
 * been bound is recorded in its world (world_binds()).
 */
#ifndef NUMOE_NUMA_ARENA_H
#define NUMOE_NUMA_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "numa/pages.h"
#include "numa/topo.h"

struct node_arena;

/* One arena of one node (index into topo->node). topo must outlive it. Takes no memory yet. */
numoe_status node_arena_new(const struct topo *topo, unsigned in, const char *name,
                            struct node_arena **out, numoe_error *err);
void node_arena_free(struct node_arena *arena); /* and all that was allocated from it */

/* Zeroed, 64-byte aligned, untouched (unless memory that was given back is used again): the pages
 * come with the first write. Not thread-safe per arena. NUMOE_E_MEMORY names arena, size and what
 * is available on the node: a bound node that is full is not an error later but the end of the
 * process. */
numoe_status node_arena_alloc(struct node_arena *arena, size_t bytes, void *out, numoe_error *err);
/* Gives a piece back; bytes as when it was allocated. Whole pages go back to the system, whole
 * regions are unmapped. Not thread-safe per arena. */
void node_arena_dealloc(struct node_arena *arena, void *p, size_t bytes);
uint64_t node_arena_bytes(const struct node_arena *arena); /* allocated so far */

/* For counting what a part would need: hands out addresses of nothing, which must not be touched,
 * and takes no memory. Pieces are not given back. */
numoe_status node_arena_new_counting(const struct topo *topo, unsigned in, struct node_arena **out,
                                     numoe_error *err);

/* How far the pages of this arena are tied to the node: bound, left to first touch because binding
 * was refused, or not at all because the topology is not this machine. */
enum node_arena_mode {
    NODE_ARENA_BOUND,
    NODE_ARENA_FIRST_TOUCH,
    NODE_ARENA_RECORDED,
    NODE_ARENA_COUNTING,
};
enum node_arena_mode node_arena_get_mode(const struct node_arena *arena);
/* The kind of pages that most of it is made of. */
enum pages node_arena_get_pages(const struct node_arena *arena);

unsigned node_arena_node(const struct node_arena *arena); /* index into topo->node */

/* The mapped regions, for audits; NULL after the last. */
const void *node_arena_region(const struct node_arena *arena, unsigned i, size_t *used_bytes);

#endif
