/* Which kernel tables this processor can execute, and which one the process uses. Tables are filled
 * once: each instruction set begins as a copy of the one before and overrides what it has better,
 * so every entry of every table works. */
#include "kernels/select.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/knob.h"
#include "base/log.h"
#include "base/mem.h"
#include "kernels/isa.h"

#if defined(KERN_HAVE_AVX2) || defined(KERN_HAVE_AVX512BW)
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

#ifdef KERN_EMULATED
/* Configured for tests: what goes beyond AVX2 is in C (tests/emulate), tiles included. */
#define cpu_has_avxvnni  cpu_has_avx2
#define cpu_has_avx512bw cpu_has_avx2
#define cpu_has_avx512   cpu_has_avx2
#define cpu_has_amx      cpu_has_avx2
#define permit_tiles     NULL

bool kern_cpu_has_vbmi(void)
{
    return true;
}
#else

#ifdef KERN_HAVE_AVXVNNI
#define CPUID_AVX_VNNI (1u << 4) /* leaf 7, subleaf 1 */

static bool cpu_has_avxvnni(void)
{
    unsigned a, b, c, d;
    return cpu_has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & CPUID_AVX_VNNI);
}
#endif

#ifdef KERN_HAVE_AVX512BW
static bool cpu_has_avx512bw(void)
{
    return cpu_has_avx2() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq");
}
#endif

#ifdef KERN_HAVE_AVX512
static bool cpu_has_avx512(void)
{
    return cpu_has_avx512bw() && __builtin_cpu_supports("avx512vnni");
}

bool kern_cpu_has_vbmi(void)
{
    return __builtin_cpu_supports("avx512vbmi");
}
#endif

#ifdef KERN_HAVE_AMX
/* What the operating system saves of a thread, register 0 of xgetbv: tile configuration and data.
 */
#define XCR0_TILES      (3u << 17)
#define CPUID_AMX_TILE  (1u << 24)
#define CPUID_AMX_INT8  (1u << 25)
#define CPUID_OSXSAVE   (1u << 27)
#define PERMISSION_CALL 0x1023 /* ARCH_REQ_XCOMP_PERM; older kernel headers lack it */
#define TILE_DATA       18

static bool os_saves_tiles(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & CPUID_OSXSAVE)) {
        return false;
    }
    __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return (a & XCR0_TILES) == XCR0_TILES;
}

static bool cpu_has_amx(void)
{
    const unsigned both = CPUID_AMX_TILE | CPUID_AMX_INT8;
    unsigned a, b, c, d;
    return cpu_has_avx512() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & both) == both &&
           os_saves_tiles();
}

/* Linux wants to be asked before a process first uses tiles. For all its threads, once; asking
 * again does no harm. */
static int permit_tiles(void)
{
    return syscall(SYS_arch_prctl, PERMISSION_CALL, TILE_DATA) == 0 ? 0 : errno;
}
#endif
#endif /* KERN_EMULATED */

static bool always(void)
{
    return true;
}

/* From the least to the best. An instruction set that the compiler cannot make has no fill. */
static const struct isa {
    const char *name;
    bool (*executable)(void);
    void (*fill)(struct kern *kern);
    int (*permit)(void); /* asks the system for leave to use it: 0 or errno. NULL: needs none */
} isas[] = {
    {"ref", always, kern_ref_fill, NULL},
#ifdef KERN_HAVE_AVX2
    {"avx2", cpu_has_avx2, kern_avx2_fill, NULL},
#else
    {"avx2", NULL, NULL, NULL},
#endif
#ifdef KERN_HAVE_AVXVNNI
    {"avxvnni", cpu_has_avxvnni, kern_avxvnni_fill, NULL},
#else
    {"avxvnni", NULL, NULL, NULL},
#endif
#ifdef KERN_HAVE_AVX512BW
    {"avx512bw", cpu_has_avx512bw, kern_avx512bw_fill, NULL},
#else
    {"avx512bw", NULL, NULL, NULL},
#endif
#ifdef KERN_HAVE_AVX512
    {"avx512", cpu_has_avx512, kern_avx512_fill, NULL},
#else
    {"avx512", NULL, NULL, NULL},
#endif
#ifdef KERN_HAVE_AMX
    {"amx", cpu_has_amx, kern_amx_fill, permit_tiles},
#else
    {"amx", NULL, NULL, NULL},
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

/* Table i for use, NULL where it cannot be: *refused is errno if the system said so, else 0. */
static const struct kern *table_at(size_t i, int *refused)
{
    pthread_once(&tables_once, fill_tables);
    *refused = 0;
    if (i >= N_ISA || tables[i].isa == NULL) {
        return NULL;
    }
    *refused = isas[i].permit != NULL ? isas[i].permit() : 0;
    return *refused == 0 ? &tables[i] : NULL;
}

const char *kern_isa_name(unsigned i)
{
    return i < N_ISA ? isas[i].name : NULL;
}

const struct kern *kern_find(const char *isa)
{
    int refused;
    return table_at(isa_index(isa), &refused);
}

static const struct kern *best;
static pthread_once_t best_once = PTHREAD_ONCE_INIT;

static void find_best(void)
{
    for (size_t i = N_ISA; best == NULL; i--) { /* ends at ref */
        int refused;
        best = table_at(i - 1, &refused);
        if (refused != 0) {
            log_warn("kernels: the system refuses this process the registers of %s (%s); going on "
                     "without",
                     isas[i - 1].name, strerror(refused));
        }
    }
}

/* The best that may be used; one that the system refuses is passed over with a warning, once. */
static const struct kern *best_table(void)
{
    pthread_once(&best_once, find_best);
    return best;
}

numoe_status kern_select(const struct kern **out, numoe_error *err)
{
    const char *wanted = knob_str("NUMOE_ISA");
    if (wanted == NULL) {
        *out = best_table();
        return NUMOE_OK;
    }
    if (isa_index(wanted) == N_ISA) {
        return status_fail(
            err, NUMOE_E_INPUT,
            "NUMOE_ISA is \"%s\", known are ref, avx2, avxvnni, avx512bw, avx512, amx", wanted);
    }
    int refused;
    const struct kern *chosen = table_at(isa_index(wanted), &refused);
    if (refused != 0) {
        return status_fail(err, NUMOE_E_SUPPORT,
                           "NUMOE_ISA is \"%s\", whose registers the system refuses this process "
                           "(arch_prctl: %s); without NUMOE_ISA the best of the others is taken",
                           wanted, strerror(refused));
    }
    if (chosen == NULL) {
        return status_fail(err, NUMOE_E_SUPPORT,
                           "NUMOE_ISA is \"%s\", which this processor or this build lacks; the "
                           "best here is \"%s\"",
                           wanted, best_table()->isa);
    }
    *out = chosen;
    return NUMOE_OK;
}
