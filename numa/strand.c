/* Owns the change of stacks. A thread sleeps only when all its strands wait, and it can sleep on
 * one word only: that of the strand that has come least far. Any other choice can end in a
 * deadlock:
 *
 *   thread X  strand a (node 0) is at the barrier of all, strand b (node 1) still at node 1's
 * barrier thread Y  strand c (node 1) comes to node 1's barrier, opens it, goes on to the barrier
 * of all if X slept on a's word, b would never go on, and a's barrier would never open
 *
 * Nobody on X is behind b, so what b waits for is the business of other threads and will happen.
 */
#include "numa/strand.h"

#include <sched.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/mem.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ||                         \
    __has_feature(memory_sanitizer)
#define UNDER_SANITIZER 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UNDER_SANITIZER 1
#endif

#if defined(__GLIBC__) && !defined(UNDER_SANITIZER)

#include <ucontext.h>

/* Most of it is never touched. Far enough apart for valgrind to see that stacks change. */
#define STACK_BYTES    ((size_t)4 << 20)
#define GUARD_BYTES    ((size_t)64 << 10) /* a multiple of any page size */
#define SPINS_PER_LOOK 16

struct strand {
    ucontext_t context;
    char *stack;
    struct gate_word *word; /* waits for this; NULL: has not begun */
    uint32_t phase;
    uint64_t order;
    bool is_over;
};

struct strands {
    ucontext_t home; /* where strands_run was called */
    strand_fn *fn;
    char *first;
    size_t arg_bytes;
    unsigned n, current;
    struct strand strand[];
};

bool strands_supported(void)
{
    return true;
}

numoe_status strands_new(unsigned n, struct strands **out, numoe_error *err)
{
    struct strands *strands;
    FORWARD_IF(mem_new(&strands, 1, sizeof(*strands) + n * sizeof(struct strand),
                       "stacks of workers", err));
    for (; strands->n < n; strands->n++) {
        char *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
        if (stack == MAP_FAILED) {
            unsigned n_done = strands->n;
            strands_free(strands);
            return status_fail(err, NUMOE_E_MEMORY, "stacks of workers: cannot map %u of %u",
                               n_done + 1, n);
        }
        mprotect(stack, GUARD_BYTES, PROT_NONE);
        madvise(stack, STACK_BYTES, MADV_NOHUGEPAGE);
        strands->strand[strands->n].stack = stack;
    }
    *out = strands;
    return NUMOE_OK;
}

void strands_free(struct strands *strands)
{
    if (strands == NULL) {
        return;
    }
    for (unsigned i = 0; i < strands->n; i++) {
        munmap(strands->strand[i].stack, STACK_BYTES);
    }
    mem_free(strands);
}

/* makecontext passes ints only: the halves of the pointer. */
static void enter(unsigned high, unsigned low)
{
    struct strands *strands = (struct strands *)((uintptr_t)high << 16 << 16 | low);
    unsigned i = strands->current;
    strands->fn(strands->first + i * strands->arg_bytes);
    strands->strand[i].is_over = true;
    strands->strand[i].word = NULL;
}

static void prepare(struct strands *strands, unsigned i)
{
    struct strand *s = &strands->strand[i];
    uintptr_t at = (uintptr_t)strands;
    getcontext(&s->context);
    s->context.uc_stack.ss_sp = s->stack;
    s->context.uc_stack.ss_size = STACK_BYTES;
    s->context.uc_link = &strands->home;
    s->is_over = false;
    makecontext(&s->context, (void (*)(void))enter, 2, (unsigned)(at >> 16 >> 16), (unsigned)at);
}

void strands_run(struct strands *strands, strand_fn *fn, void *first, size_t arg_bytes)
{
    strands->fn = fn;
    strands->first = first;
    strands->arg_bytes = arg_bytes;
    for (unsigned i = 0; i < strands->n; i++) {
        prepare(strands, i);
    }
    for (unsigned i = 0; i < strands->n; i++) {
        while (!strands->strand[i].is_over) {
            strands->current = i;
            swapcontext(&strands->home, &strands->strand[i].context);
        }
    }
}

static bool is_ready(const struct strand *s)
{
    return !s->is_over && (s->word == NULL || gate_is_open(s->word, s->phase));
}

/* The next strand in turn that can go on, this one last; n if there is none. */
static unsigned find_ready(const struct strands *strands)
{
    for (unsigned i = 1; i <= strands->n; i++) {
        unsigned k = (strands->current + i) % strands->n;
        if (is_ready(&strands->strand[k])) {
            return k;
        }
    }
    return strands->n;
}

static void switch_to(struct strands *strands, unsigned next)
{
    unsigned me = strands->current;
    strands->current = next;
    swapcontext(&strands->strand[me].context, &strands->strand[next].context);
}

/* One look at all strands; true when somebody can go on. */
static bool yield_to_ready(struct strands *strands)
{
    unsigned next = find_ready(strands);
    if (next < strands->n && next != strands->current) {
        switch_to(strands, next);
    }
    return next < strands->n;
}

static const struct strand *find_last(const struct strands *strands)
{
    const struct strand *last = &strands->strand[strands->current];
    for (unsigned i = 0; i < strands->n; i++) {
        const struct strand *s = &strands->strand[i];
        if (!s->is_over && s->order < last->order) {
            last = s;
        }
    }
    return last;
}

static void wait_for_any(struct strands *strands, const struct gate_patience *patience)
{
    uint64_t begin = clock_ns(), waited = 0;
    while (waited < patience->yield_ns) {
        for (int i = 0; i < SPINS_PER_LOOK; i++) {
            if (find_ready(strands) < strands->n) {
                return;
            }
            gate_relax();
        }
        waited = clock_ns() - begin;
        if (waited > patience->spin_ns) {
            sched_yield();
        }
    }
    const struct strand *last = find_last(strands);
    gate_sleep(last->word, last->phase);
}

void strands_wait(struct strands *strands, struct gate_word *word, uint32_t phase, uint64_t order,
                  const struct gate_patience *patience)
{
    struct strand *me = &strands->strand[strands->current];
    me->word = word;
    me->phase = phase;
    me->order = order;
    while (!gate_is_open(word, phase)) {
        if (!yield_to_ready(strands)) {
            wait_for_any(strands, patience);
        }
    }
}

#else

bool strands_supported(void)
{
    return false;
}

numoe_status strands_new(unsigned n, struct strands **out, numoe_error *err)
{
    (void)out;
    return status_fail(err, NUMOE_E_SUPPORT, "%u workers cannot share a thread in this build", n);
}

void strands_free(struct strands *strands)
{
    (void)strands;
}

void strands_run(struct strands *strands, strand_fn *fn, void *first, size_t arg_bytes)
{
    (void)strands, (void)fn, (void)first, (void)arg_bytes;
}

void strands_wait(struct strands *strands, struct gate_word *word, uint32_t phase, uint64_t order,
                  const struct gate_patience *patience)
{
    (void)strands, (void)order;
    gate_wait(word, phase, patience);
}

#endif
