/* Which kernel tables this processor can execute, and which one the process uses. Tables are filled
 * once: each instruction set begins as a copy of the one before and overrides what it has better,
 * so every entry of every table works. */
#include "kernels/select.h"

#include <pthread.h>
#include <string.h>

#include "base/knob.h"
#include "base/mem.h"
#include "kernels/isa.h"

#if defined(KERN_HAVE_AVX2) || defined(KERN_HAVE_AVX512)
#include <cpuid.h>

/* The compiler's test covers what the operating system saves; F16C it does not know everywhere. */
static bool cpu_has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool cpu_has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && cpu_has_f16c();
}
#endif

#ifdef KERN_HAVE_AVX512
static bool cpu_has_avx512(void)
{
    return cpu_has_avx2() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
}
#endif

static bool always(void)
{
    return true;
}

/* From the least to the best. An instruction set that the compiler cannot make has no fill. */
static const struct isa {
    const char *name;
    bool (*executable)(void);
    void (*fill)(struct kern *kern);
} isas[] = {
    {"ref", always, kern_ref_fill},
#ifdef KERN_HAVE_AVX2
    {"avx2", cpu_has_avx2, kern_avx2_fill},
#else
    {"avx2", NULL, NULL},
#endif
#ifdef KERN_HAVE_AVX512
    {"avx512", cpu_has_avx512, kern_avx512_fill},
#else
    {"avx512", NULL, NULL},
#endif
};

#define N_ISA ARRAY_LEN(isas)

static struct kern tables[N_ISA]; /* isa NULL: not executable here */
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

static void fill_tables(void)
{
    struct kern kern = {0};
    for (size_t i = 0; i < N_ISA; i++) {
        if (isas[i].fill != NULL && isas[i].executable()) {
            isas[i].fill(&kern);
            kern.isa = isas[i].name;
            tables[i] = kern;
        }
    }
}

static size_t isa_index(const char *name)
{
    size_t i = 0;
    while (i < N_ISA && strcmp(isas[i].name, name) != 0) {
        i++;
    }
    return i;
}

const struct kern *kern_find(const char *isa)
{
    size_t i = isa_index(isa);
    pthread_once(&tables_once, fill_tables);
    return i < N_ISA && tables[i].isa != NULL ? &tables[i] : NULL;
}

static const struct kern *best_table(void)
{
    pthread_once(&tables_once, fill_tables);
    size_t i = N_ISA - 1;
    while (tables[i].isa == NULL) { /* ends at ref */
        i--;
    }
    return &tables[i];
}

numoe_status kern_select(const struct kern **out, numoe_error *err)
{
    const char *wanted = knob_str("NUMOE_ISA");
    const struct kern *best = best_table(), *chosen = best;

    if (wanted != NULL) {
        if (isa_index(wanted) == N_ISA) {
            return status_fail(err, NUMOE_E_INPUT,
                               "NUMOE_ISA is \"%s\", known are ref, avx2, avx512", wanted);
        }
        chosen = kern_find(wanted);
        if (chosen == NULL) {
            return status_fail(err, NUMOE_E_SUPPORT,
                               "NUMOE_ISA is \"%s\", which this processor or this build lacks; the "
                               "best here is \"%s\"",
                               wanted, best->isa);
        }
    }
    *out = chosen;
    return NUMOE_OK;
}

enum kern_act_kind kern_act_kind(uint32_t format)
{
    const struct format *f = format_find(format);
    return f != NULL && f->decode != NULL ? KERN_ACT_Q8 : KERN_ACT_F32;
}
