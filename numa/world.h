/* The outside world as numa/ sees it: binding of memory, pinning of threads, and the small files of
 * /proc and /sys below a root folder. The native world does it; the recording world, used whenever
 * the topology is not this machine, only notes what would have been done. Tests bring their own.
 */
#ifndef NUMOE_NUMA_WORLD_H
#define NUMOE_NUMA_WORLD_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct world_bind {
    void *addr;
    size_t bytes;
    unsigned os_node;
};

struct world {
    /* Binds untouched pages to a node of the kernel's numbering. 0 or an errno. Any thread. */
    int (*bind)(struct world *w, void *addr, size_t bytes, unsigned os_node);
    /* Maps huge pages from the pools that the system keeps, untouched; bytes are whole pages. 0 or
     * an errno. Any thread. */
    int (*map_huge)(struct world *w, size_t bytes, size_t page_bytes, void **addr);
    /* Makes all pages of such a mapping be there, on the node it is bound to: a pool that turns out
     * to be short gives an errno here and a fatal signal later. 0 or an errno. Any thread. */
    int (*populate)(struct world *w, void *addr, size_t bytes);
    /* Gives mapped memory back. Any thread. */
    void (*unmap)(struct world *w, void *addr, size_t bytes);
    /* Lets a thread of this process run on these PUs only. 0 or an errno. Any thread. */
    int (*pin)(struct world *w, pthread_t thread, const unsigned *pu, unsigned n_pu);
    /* Whether the thread may run on these PUs and no others. 0 or an errno. Any thread. */
    int (*is_pinned)(struct world *w, pthread_t thread, const unsigned *pu, unsigned n_pu,
                     bool *yes);
    /* node[i] becomes the node that page[i] is on, or negative where there is none yet. 0 or an
     * errno. Any thread. */
    int (*where)(struct world *w, void **page, unsigned n_page, int *node);
    /* Whether the kernel gives this process an io_uring. 0 or an errno. */
    int (*uring)(struct world *w);
    char *root; /* put before "/proc/..." and "/sys/..."; "" for the real ones */

    /* Recording world: bindings of memory that is still mapped, read with world_binds(). Sync:
     * lock. */
    struct world_bind *record;
    size_t n_record;
    pthread_mutex_t lock;
};

numoe_status world_new_native(const char *root, struct world **out, numoe_error *err);
numoe_status world_new_recording(const char *root, struct world **out, numoe_error *err);
void world_free(struct world *w);

/* What a recording world would have bound, in order; valid while nothing else is bound. */
size_t world_binds(const struct world *w, const struct world_bind **bind);

/* A whole small file below root as a NUL-terminated string without trailing newline, released with
 * mem_free(); NULL where it cannot be read. */
char *world_read(const char *root, const char *path);
/* The number a file starts with; false where there is none. */
bool world_read_u64(const char *root, const char *path, uint64_t *value);
/* The number after `key` at the start of a line of `text`, as in /proc/meminfo and memory.stat;
 * false where there is none. text may be NULL. */
bool world_find_u64(const char *text, const char *key, uint64_t *value);

#endif
