/* The memory that an engine and its GPU program share: a memfd of huge pages if there are some. */
#ifndef NUMOE_GPU_SEGMENT_H
#define NUMOE_GPU_SEGMENT_H

#include <stddef.h>
#include <stdint.h>

#include "numoe/numoe.h"

struct segment {
    int fd;
    void *data;
    uint64_t bytes; /* of the mapping: whole pages */
};

void segment_init(struct segment *s); /* none */
void segment_fini(struct segment *s);

/* Zeroed, sealed against resizing, its memory taken now, near the kernel's node os_node if that can
 * be (UINT32_MAX: anywhere). */
numoe_status segment_new(uint64_t bytes, uint32_t os_node, struct segment *s, numoe_error *err);

/* The other end: maps what came with LOAD. s owns fd from then on, also on failure. */
numoe_status segment_open(int fd, uint64_t bytes, struct segment *s, numoe_error *err);

#endif
