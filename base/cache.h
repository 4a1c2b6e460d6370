/* Memory taken out of caches, for probes that measure how fast it is read. With that few bytes are
 * enough, however large the caches are: memory that was never touched costs more than reading it,
 * in a virtual machine many times as much.
 */
#ifndef NUMOE_BASE_CACHE_H
#define NUMOE_BASE_CACHE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/mem.h"

#if defined(__x86_64__)
#define CACHE_CAN_EVICT true
#else
#define CACHE_CAN_EVICT false /* cache_evict() does nothing */
#endif

/* From the caches of all processors. */
static inline void cache_evict(const void *bytes, size_t n)
{
#if defined(__x86_64__)
    for (size_t i = 0; i < n; i += CACHE_LINE_BYTES) {
        __builtin_ia32_clflush((const char *)bytes + i);
    }
    __builtin_ia32_mfence();
#else
    (void)bytes, (void)n;
#endif
}

#endif
