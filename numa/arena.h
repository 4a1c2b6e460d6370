/* Memory on a node: for weights, KV cache and activations. Big regions, never freed one by one
 * (node_arena) or freed whole (node_map).
 *
 * On this machine: mmap, mbind to the node, madvise huge pages, first touch by whoever fills it
 * (a worker of that node). Where binding is refused (EPERM in containers) it goes on with first touch
 * and says so once. If the topology is not this machine: plain memory, and what would have been bound
 * is recorded.
 */
#ifndef NUMOE_NUMA_ARENA_H
#define NUMOE_NUMA_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "numa/topo.h"

struct node_arena;

/* One arena of one node (index into topo->node). topo must outlive it. */
numoe_status node_arena_new(const struct topo *topo, unsigned in, const char *name,
                            struct node_arena **out, numoe_error *err);
void node_arena_free(struct node_arena *arena); /* and all that was allocated from it */

/* Zeroed, 64-byte aligned. Not thread-safe per arena. NUMOE_E_MEMORY names arena, size and what is
 * available on the node. */
numoe_status node_arena_alloc(struct node_arena *arena, size_t bytes, void *out, numoe_error *err);
uint64_t node_arena_bytes(const struct node_arena *arena);

#endif
