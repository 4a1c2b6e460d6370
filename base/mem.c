/* Heap memory for set-up code, with every product checked, and the allocation guard.
 *
 * All blocks come from malloc and friends and go back through mem_free(); weights and caches live
 * in node arenas (numa/arena.h) instead. The guard counts per thread: it only sees the thread that
 * promised not to allocate.
 */
#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef NUMOE_DEBUG

static _Thread_local const char *guarded_phase;

void alloc_guard_begin(const char *phase)
{
    guarded_phase = phase;
}
void alloc_guard_end(void)
{
    guarded_phase = NULL;
}

static void check_guard(const char *what)
{
    if (guarded_phase != NULL) {
        fprintf(stderr, "numoe: error: %s is allocated during %s, which must not allocate\n", what,
                guarded_phase);
        abort();
    }
}

#else

void alloc_guard_begin(const char *phase)
{
    (void)phase;
}
void alloc_guard_end(void) {}
static void check_guard(const char *what)
{
    (void)what;
}

#endif

static numoe_status check_size(size_t n, size_t elem_bytes, const char *what, size_t *bytes,
                               numoe_error *err)
{
    check_guard(what);
    if (__builtin_mul_overflow(n, elem_bytes, bytes) || *bytes > PTRDIFF_MAX) {
        return status_fail(err, NUMOE_E_MEMORY,
                           "%s: %zu elements of %zu bytes are more than can "
                           "be addressed",
                           what, n, elem_bytes);
    }
    *bytes = MAX(*bytes, 1u);
    return NUMOE_OK;
}

static numoe_status fail_memory(const char *what, size_t bytes, numoe_error *err)
{
    return status_fail(err, NUMOE_E_MEMORY, "%s: cannot allocate %zu bytes", what, bytes);
}

numoe_status mem_new(void *out, size_t n, size_t elem_bytes, const char *what, numoe_error *err)
{
    size_t bytes = 0;
    FORWARD_IF(check_size(n, elem_bytes, what, &bytes, err));
    void *p = calloc(1, bytes);
    if (p == NULL) {
        return fail_memory(what, bytes, err);
    }
    memcpy(out, &p, sizeof p);
    return NUMOE_OK;
}

numoe_status mem_new_aligned(void *out, size_t n, size_t elem_bytes, const char *what,
                             numoe_error *err)
{
    size_t bytes = 0;
    FORWARD_IF(check_size(n, elem_bytes, what, &bytes, err));
    bytes = round_up(bytes, CACHE_LINE_BYTES);
    void *p = aligned_alloc(CACHE_LINE_BYTES, bytes);
    if (p == NULL) {
        return fail_memory(what, bytes, err);
    }
    memset(p, 0, bytes);
    memcpy(out, &p, sizeof p);
    return NUMOE_OK;
}

numoe_status mem_grow(void *inout, size_t n, size_t elem_bytes, const char *what, numoe_error *err)
{
    size_t bytes = 0;
    FORWARD_IF(check_size(n, elem_bytes, what, &bytes, err));
    void *p = NULL;
    memcpy(&p, inout, sizeof p);
    p = realloc(p, bytes);
    if (p == NULL) {
        return fail_memory(what, bytes, err);
    }
    memcpy(inout, &p, sizeof p);
    return NUMOE_OK;
}

void mem_free(void *p)
{
    free(p);
}

/* Room for `more` bytes and the terminating NUL; grows by half, so appending is linear. */
static numoe_status strbuf_reserve(struct strbuf *b, size_t more, numoe_error *err)
{
    size_t need = 0;
    if (__builtin_add_overflow(b->len, more, &need) || __builtin_add_overflow(need, 1u, &need)) {
        return status_fail(err, NUMOE_E_MEMORY, "text of %zu + %zu bytes is too long", b->len,
                           more);
    }
    if (need <= b->cap) {
        return NUMOE_OK;
    }
    size_t cap = MAX(MAX(need, b->cap + b->cap / 2), 64u);
    FORWARD_IF(mem_grow(&b->data, cap, 1, "text", err));
    b->cap = cap;
    return NUMOE_OK;
}

numoe_status strbuf_append(struct strbuf *b, const char *bytes, size_t n, numoe_error *err)
{
    FORWARD_IF(strbuf_reserve(b, n, err));
    if (n > 0) {
        memcpy(b->data + b->len, bytes, n);
    }
    b->len += n;
    b->data[b->len] = '\0';
    return NUMOE_OK;
}

numoe_status strbuf_printf(struct strbuf *b, numoe_error *err, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    numoe_status status = n < 0 ? status_fail(err, NUMOE_E_INPUT, "text cannot be formatted")
                                : strbuf_reserve(b, (size_t)n, err);
    if (status == NUMOE_OK) {
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
    return status;
}

void strbuf_fini(struct strbuf *b)
{
    mem_free(b->data);
    *b = (struct strbuf){0};
}
