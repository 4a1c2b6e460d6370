/* A segment of an exchange as an engine makes it, for tests of those who read one. */
#ifndef NUMOE_TESTS_SEGMENT_H
#define NUMOE_TESTS_SEGMENT_H

#include <stdlib.h>
#include <string.h>

#include "gpu/exchange.h"

/* One device, one file of 8 bytes of path, tables of zeros; of exactly h->segment_bytes. free().
 * NULL: there is no such layout, as err says, or no memory. */
static inline struct exchange_header *segment_new(const struct exchange_sizes *sizes,
                                                  numoe_error *err)
{
    struct exchange_header header;
    if (exchange_layout(sizes, &header, err) != NUMOE_OK) {
        return NULL;
    }
    header.n_device = 1;
    struct exchange_header *h = aligned_alloc(EXCHANGE_ALIGN, header.segment_bytes);
    if (h != NULL) {
        memset(h, 0, header.segment_bytes);
        memcpy(h, &header, sizeof header);
        memcpy(exchange_at(h, h->path_at), "/m.gguf", 8);
    }
    return h;
}

#endif
