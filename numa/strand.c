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

#if (defined(__x86_64__) || defined(__aarch64__)) && !defined(UNDER_SANITIZER)

/* Most of it is never touched. Far enough apart for valgrind to see that stacks change. */
#define STACK_BYTES    ((size_t)4 << 20)
#define GUARD_BYTES    ((size_t)64 << 10) /* a multiple of any page size */
#define SPINS_PER_LOOK 16

/* Leaves what the calling convention keeps on this stack, its pointer in *from_sp, and goes on
 * where to_sp was left. The C library's swapcontext would do, but for a system call in each. */
void strand_switch(void **from_sp, void *to_sp);
/* Where a new stack goes on: calls the function in its second saved register with the first. */
void strand_begin(void);

#if defined(__x86_64__)
__asm__(".text\n"
        ".hidden strand_switch\n"
        ".globl strand_switch\n"
        ".type strand_switch, @function\n"
        "strand_switch:\n"
        "  pushq %rbp\n"
        "  pushq %rbx\n"
        "  pushq %r15\n"
        "  pushq %r14\n"
        "  pushq %r13\n"
        "  pushq %r12\n"
        "  subq $8, %rsp\n"
        "  stmxcsr (%rsp)\n"
        "  fnstcw 4(%rsp)\n"
        "  movq %rsp, (%rdi)\n"
        "  movq %rsi, %rsp\n"
        "  ldmxcsr (%rsp)\n"
        "  fldcw 4(%rsp)\n"
        "  addq $8, %rsp\n"
        "  popq %r12\n"
        "  popq %r13\n"
        "  popq %r14\n"
        "  popq %r15\n"
        "  popq %rbx\n"
        "  popq %rbp\n"
        "  ret\n"
        ".size strand_switch, . - strand_switch\n"
        ".hidden strand_begin\n"
        ".globl strand_begin\n"
        ".type strand_begin, @function\n"
        "strand_begin:\n"
        "  movq %r12, %rdi\n"
        "  call *%r13\n"
        "  ud2\n"
        ".size strand_begin, . - strand_begin\n");

enum { FRAME_WORDS = 8, FRAME_FIRST = 1, FRAME_SECOND = 2, FRAME_RETURN = 7 };

/* The control words of the floating-point units are part of what is kept. */
static void init_frame(uint64_t *frame)
{
    uint32_t mxcsr;
    uint16_t x87;
    __asm__("stmxcsr %0" : "=m"(mxcsr));
    __asm__("fnstcw %0" : "=m"(x87));
    frame[0] = mxcsr | (uint64_t)x87 << 32;
}

/* With a shadow stack, a return must go where the call came from. */
bool strands_supported(void)
{
    uint64_t shadow_stack = 0;
    __asm__("rdsspq %0" : "+r"(shadow_stack)); /* does nothing where there is none */
    return shadow_stack == 0;
}

#else
__asm__(".text\n"
        ".hidden strand_switch\n"
        ".globl strand_switch\n"
        ".type strand_switch, %function\n"
        "strand_switch:\n"
        "  sub sp, sp, #160\n"
        "  stp x19, x20, [sp]\n"
        "  stp x21, x22, [sp, #16]\n"
        "  stp x23, x24, [sp, #32]\n"
        "  stp x25, x26, [sp, #48]\n"
        "  stp x27, x28, [sp, #64]\n"
        "  stp x29, x30, [sp, #80]\n"
        "  stp d8, d9, [sp, #96]\n"
        "  stp d10, d11, [sp, #112]\n"
        "  stp d12, d13, [sp, #128]\n"
        "  stp d14, d15, [sp, #144]\n"
        "  mov x9, sp\n"
        "  str x9, [x0]\n"
        "  mov sp, x1\n"
        "  ldp x19, x20, [sp]\n"
        "  ldp x21, x22, [sp, #16]\n"
        "  ldp x23, x24, [sp, #32]\n"
        "  ldp x25, x26, [sp, #48]\n"
        "  ldp x27, x28, [sp, #64]\n"
        "  ldp x29, x30, [sp, #80]\n"
        "  ldp d8, d9, [sp, #96]\n"
        "  ldp d10, d11, [sp, #112]\n"
        "  ldp d12, d13, [sp, #128]\n"
        "  ldp d14, d15, [sp, #144]\n"
        "  add sp, sp, #160\n"
        "  ret\n"
        ".size strand_switch, . - strand_switch\n"
        ".hidden strand_begin\n"
        ".globl strand_begin\n"
        ".type strand_begin, %function\n"
        "strand_begin:\n"
        "  mov x0, x19\n"
        "  blr x20\n"
        "  brk #0\n"
        ".size strand_begin, . - strand_begin\n");

enum { FRAME_WORDS = 20, FRAME_FIRST = 0, FRAME_SECOND = 1, FRAME_RETURN = 11 };

static void init_frame(uint64_t *frame)
{
    (void)frame;
}

bool strands_supported(void)
{
    return true;
}
#endif

struct strand {
    void *sp; /* where it was left */
    char *stack;
    struct gate_word *word; /* waits for this; NULL: has not begun */
    uint32_t phase;
    uint64_t order;
    bool is_over;
};

struct strands {
    void *home_sp; /* where strands_run was called */
    strand_fn *fn;
    char *first;
    size_t arg_bytes;
    unsigned n, current;
    struct strand strand[];
};

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

static void run_strand(struct strands *strands)
{
    struct strand *me = &strands->strand[strands->current];
    strands->fn(strands->first + strands->current * strands->arg_bytes);
    me->is_over = true;
    strand_switch(&me->sp, strands->home_sp); /* for good */
}

/* A stack that looks as if strand_begin had called strand_switch. */
static void prepare(struct strands *strands, struct strand *s)
{
    uint64_t *frame = (uint64_t *)(s->stack + STACK_BYTES) - FRAME_WORDS;
    init_frame(frame);
    frame[FRAME_FIRST] = (uintptr_t)strands;
    frame[FRAME_SECOND] = (uintptr_t)run_strand;
    frame[FRAME_RETURN] = (uintptr_t)strand_begin;
    *s = (struct strand){.stack = s->stack, .sp = frame};
}

void strands_run(struct strands *strands, strand_fn *fn, void *first, size_t arg_bytes)
{
    strands->fn = fn;
    strands->first = first;
    strands->arg_bytes = arg_bytes;
    for (unsigned i = 0; i < strands->n; i++) {
        prepare(strands, &strands->strand[i]);
    }
    for (unsigned i = 0; i < strands->n; i++) {
        while (!strands->strand[i].is_over) {
            strands->current = i;
            strand_switch(&strands->home_sp, strands->strand[i].sp);
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
    strand_switch(&strands->strand[me].sp, strands->strand[next].sp);
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
