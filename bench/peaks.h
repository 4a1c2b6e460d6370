/* The peak of the multiply instructions of an instruction set, in the same run as a kernel. */
#ifndef NUMOE_BENCH_PEAKS_H
#define NUMOE_BENCH_PEAKS_H

#include "base/mem.h"
#include "bench/limits.h"

/* Multiply-adds per second that the best instruction could do; passes fit ~2 ms. */
typedef void peak_fn(unsigned rounds);

#if defined(__x86_64__)
#define CHAINS 12 /* independent ones cover the latency */

/* One instruction, or the three that AVX2 needs, on each of 12 registers. */
#define EACH(DO)   DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11) DO(12) DO(13) DO(14) DO(15)
#define DOT_512(r) "vpdpbusd %%zmm0, %%zmm1, %%zmm" #r "\n"
#define FMA_512(r) "vfmadd231ps %%zmm0, %%zmm1, %%zmm" #r "\n"
#define FMA_256(r) "vfmadd231ps %%ymm0, %%ymm1, %%ymm" #r "\n"
#define PAIRS_512(r)                                                                               \
    "vpmaddubsw %%zmm0, %%zmm1, %%zmm2\n"                                                          \
    "vpmaddwd %%zmm1, %%zmm2, %%zmm3\n"                                                            \
    "vpaddd %%zmm3, %%zmm" #r ", %%zmm" #r "\n"
#define DOT_256(r)                                                                                 \
    "vpmaddubsw %%ymm0, %%ymm1, %%ymm2\n"                                                          \
    "vpmaddwd %%ymm1, %%ymm2, %%ymm3\n"                                                            \
    "vpaddd %%ymm3, %%ymm" #r ", %%ymm" #r "\n"

#define PEAK(name, STEP)                                                                           \
    static void peak_##name(unsigned rounds)                                                       \
    {                                                                                              \
        __asm__ volatile("vzeroall");                                                              \
        for (unsigned i = 0; i < rounds; i++) {                                                    \
            __asm__ volatile(EACH(STEP)::                                                          \
                                 : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", \
                                   "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14",    \
                                   "xmm15");                                                       \
        }                                                                                          \
    }

PEAK(dot_512, DOT_512)
PEAK(fma_512, FMA_512)
PEAK(pairs_512, PAIRS_512)
PEAK(dot_256, DOT_256)
PEAK(fma_256, FMA_256)

/* Full tiles of int8, four sums: 12 products a round. */
static void peak_tiles(unsigned rounds)
{
    struct {
        uint8_t palette, reserved[15];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config __attribute__((aligned(64))) = {.palette = 1};
    for (unsigned i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = 16;
    }
    __asm__ volatile("ldtilecfg %0\n"
                     "tilezero %%tmm0\n tilezero %%tmm1\n tilezero %%tmm2\n tilezero %%tmm3\n"
                     "tilezero %%tmm4\n tilezero %%tmm5\n" ::"m"(config));
    for (unsigned i = 0; i < rounds; i++) {
#define TILES_4                                                                                    \
    "tdpbssd %%tmm5, %%tmm4, %%tmm0\n tdpbssd %%tmm5, %%tmm4, %%tmm1\n"                            \
    "tdpbssd %%tmm5, %%tmm4, %%tmm2\n tdpbssd %%tmm5, %%tmm4, %%tmm3\n"
        __asm__ volatile(TILES_4 TILES_4 TILES_4 ::);
    }
    __asm__ volatile("tilerelease" ::);
}

static const struct {
    const char *isa;
    bool floats;
    peak_fn *fn;
    unsigned products, rounds; /* of an instruction; passes of ~2 ms */
} peaks[] = {
    {"avx2", false, peak_dot_256, 32, 400000},       {"avx2", true, peak_fma_256, 8, 400000},
    {"avx512bw", false, peak_pairs_512, 64, 400000}, {"avx512bw", true, peak_fma_512, 16, 400000},
    {"avx512", false, peak_dot_512, 64, 400000},     {"avx512", true, peak_fma_512, 16, 400000},
    {"amx", false, peak_tiles, 16 * 16 * 64, 30000}, {"amx", true, peak_fma_512, 16, 400000},
};

struct peak_run {
    peak_fn *fn;
    unsigned rounds;
};

static void peak_part(void *ctx, unsigned thread, unsigned n_thread)
{
    const struct peak_run *p = ctx;
    (void)thread;
    (void)n_thread;
    p->fn(p->rounds);
}
#endif

/* 0 where it is not known (the reference). */
static double peak_products(const char *isa, bool floats, unsigned n_thread)
{
#if defined(__x86_64__)
    for (unsigned i = 0; i < ARRAY_LEN(peaks); i++) {
        if (strcmp(peaks[i].isa, isa) == 0 && peaks[i].floats == floats) {
            struct peak_run run = {peaks[i].fn, peaks[i].rounds};
            return (double)peaks[i].products * CHAINS * run.rounds * n_thread /
                   team_run(n_thread, peak_part, &run);
        }
    }
#endif
    (void)isa;
    (void)floats;
    (void)n_thread;
    return 0;
}

#endif
