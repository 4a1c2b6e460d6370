/* Heap memory for set-up code (never the hot path, never weights: those live in node arenas).
 * Allocation sizes come from files, so every product is checked. */
#ifndef NUMOE_BASE_MEM_H
#define NUMOE_BASE_MEM_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define CACHE_LINE_BYTES 64

/* Zeroed memory for n elements; *out is set only on success. NUMOE_E_MEMORY with `what` in the text.
 * mem_new_aligned: 64-byte aligned. Both are released with mem_free(). n == 0 gives a valid pointer. */
numoe_status mem_new(void *out, size_t n, size_t elem_bytes, const char *what, numoe_error *err);
numoe_status mem_new_aligned(void *out, size_t n, size_t elem_bytes, const char *what,
                             numoe_error *err);
/* Grows to n elements, keeping the contents; new elements are not zeroed. */
numoe_status mem_grow(void *inout, size_t n, size_t elem_bytes, const char *what, numoe_error *err);
void mem_free(void *p); /* NULL is allowed */

/* Growing byte string: set-up and text code. data is NUL-terminated whenever not NULL. */
struct strbuf {
    char *data;
    size_t len, cap;
};
numoe_status strbuf_append(struct strbuf *b, const char *bytes, size_t n, numoe_error *err);
numoe_status strbuf_printf(struct strbuf *b, numoe_error *err, const char *fmt, ...)
    NUMOE_PRINTF(3, 4);
void strbuf_fini(struct strbuf *b);

/* The promise "no allocation in the decode step", made executable: between begin and end, mem_new
 * and friends on this thread end the process with the phase's name in debug builds
 * (--enable-debug); otherwise they cost nothing. */
void alloc_guard_begin(const char *phase);
void alloc_guard_end(void);

static inline size_t round_up(size_t x, size_t to) { return (x + to - 1) / to * to; }

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

#endif
