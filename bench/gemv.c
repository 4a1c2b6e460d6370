/* gemv: how close do the matrix kernels come to what this machine can do? For each weight format
 * and instruction set, weights in cache and out of it, beside the read bandwidth (decode) and the
 * peak of the multiply instruction (prompts) measured in the same run.
 *
 *     gemv --formats Q4_K,Q8_0 --isa avx512 --tokens 1,512 --threads 1,2
 *
 * Threads take equal shares of the rows. Out of cache, each pass reads a matrix of --cold MiB once;
 * in cache, each thread repeats a matrix of --hot KiB. Each figure is a median of --repeats passes,
 * between which the limits are measured again; activations are quantized outside the time. `error`
 * is the root mean square of y against float64 products with the unquantized activations, relative
 * to that of y; `rounding` the same with the quantized ones: what the kernel itself adds. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* affinity */
#endif

#include <getopt.h>
#include <math.h>

#include "base/mem.h"
#include "bench/limits.h"
#include "kernels/kern.h"

#define LIST_MAX    32
#define SAMPLE_ROWS 64u /* random rows; the matrix repeats them */
#define REPEATS_MAX 99u

struct options {
    char *formats, *isas;
    unsigned tokens[LIST_MAX], n_tokens, threads[LIST_MAX], n_threads;
    unsigned k, repeats;
    size_t cold_bytes, hot_bytes;
    bool csv, hot_only, cold_only;
};

struct weights {
    uint32_t id;
    const struct format *format;
    uint8_t *rows;   /* [SAMPLE_ROWS, k] */
    uint8_t *panels; /* n_row rows */
    size_t panel_bytes;
    unsigned n_row;
};

/* One measurement; y is [tokens, rows of a pass]. */
struct job {
    const struct kern *kern;
    const struct weights *w;
    struct kern_act act;
    unsigned n_token, n_row; /* of all threads */
    unsigned passes;
    float *y;
};

static uint64_t random_state = 0x9e3779b97f4a7c15u;

static uint32_t random_bits(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 16);
}

static float random_float(void)
{
    return (float)(random_bits() & 0xffff) / 32768 - 1;
}

/* ------------------------------------------------------------------ weights */

/* Random bytes, with floats where the format has floats. */
static void random_block(uint32_t id, const struct format *f, uint8_t *block)
{
    for (unsigned i = 0; i < f->block_bytes; i++) {
        block[i] = (uint8_t)random_bits();
    }
    float v = random_float();
    if (id == FORMAT_F32) {
        memcpy(block, &v, 4);
        return;
    }
    if (id == FORMAT_BF16) {
        memcpy(block, (const uint8_t *)&v + 2, 2);
        return;
    }
    if (id == FORMAT_MXFP4) {
        block[0] = (uint8_t)(120 + random_bits() % 4);
        return;
    }
    if (id == FORMAT_IQ1_M) { /* the f16 scale is in the upper nibbles of the last four words */
        for (unsigned i = 0; i < 4; i++) {
            block[49 + 2 * i] = (uint8_t)((block[49 + 2 * i] & 0x0f) | (i == 3 ? 0x20 : i << 4));
        }
        return;
    }
    for (const struct format_field *field = f->field; field->unit; field++) {
        bool high_scales = id == FORMAT_IQ4_XS && field->offset == 2;
        if (field->bytes == 2 && !high_scales) {
            uint16_t h = format_f32_to_f16(f->block_elems == 1 ? v : 0.01f * random_float());
            memcpy(block + field->offset, &h, 2);
        }
    }
}

static void weights_make(struct weights *w, uint32_t id, const struct options *o)
{
    const struct format *f = format_find(id);
    size_t row_bytes = format_row_bytes(f, o->k);
    *w = (struct weights){.id = id, .format = f, .panel_bytes = row_bytes * PANEL_ROWS};
    w->n_row = (unsigned)(o->cold_bytes / row_bytes / SAMPLE_ROWS) * SAMPLE_ROWS;
    w->rows = map_memory(row_bytes * SAMPLE_ROWS);
    w->panels = map_memory(row_bytes * w->n_row);
    for (size_t i = 0; i < row_bytes * SAMPLE_ROWS; i += f->block_bytes) {
        random_block(id, f, w->rows + i);
    }
    for (unsigned r = 0; r < SAMPLE_ROWS; r += PANEL_ROWS) {
        format_pack_panel(f, w->rows + r * row_bytes, row_bytes, PANEL_ROWS, o->k,
                          w->panels + r * row_bytes);
    }
    for (unsigned r = SAMPLE_ROWS; r < w->n_row; r += SAMPLE_ROWS) {
        memcpy(w->panels + r * row_bytes, w->panels, row_bytes * SAMPLE_ROWS);
    }
}

static void weights_free(struct weights *w, const struct options *o)
{
    size_t row_bytes = format_row_bytes(w->format, o->k);
    munmap(w->rows, row_bytes * SAMPLE_ROWS);
    munmap(w->panels, row_bytes * w->n_row);
}

/* ------------------------------------------------------------------ activations */

static void act_make(struct kern_act *a, const struct kern *kern, unsigned n, unsigned k)
{
    float *f = map_memory(sizeof(float) * n * k), *d = map_memory(sizeof(float) * n * (k / 32));
    int8_t *q = map_memory((size_t)n * k);
    int16_t *s = map_memory(sizeof(int16_t) * n * (k / 16));
    for (size_t i = 0; i < (size_t)n * k; i++) {
        f[i] = random_float();
    }
    for (unsigned t = 0; t < n; t++) {
        kern->quantize(f + (size_t)t * k, k, q + (size_t)t * k, d + (size_t)t * (k / 32),
                       s + (size_t)t * (k / 16));
    }
    *a = (struct kern_act){k, f, q, d, s};
}

static void act_free(struct kern_act *a, unsigned n)
{
    munmap((void *)a->f, sizeof(float) * n * a->k);
    munmap((void *)a->d, sizeof(float) * n * (a->k / 32));
    munmap((void *)a->q, (size_t)n * a->k);
    munmap((void *)a->s, sizeof(int16_t) * n * (a->k / 16));
}

/* ------------------------------------------------------------------ measuring */

static void job_part(void *ctx, unsigned thread, unsigned n_thread)
{
    const struct job *j = ctx;
    unsigned n_panel = j->n_row / PANEL_ROWS;
    unsigned p0 = n_panel * thread / n_thread, p1 = n_panel * (thread + 1) / n_thread;
    for (unsigned i = 0; i < j->passes; i++) {
        j->kern->matmul[j->w->id](j->w->panels + p0 * j->w->panel_bytes, (p1 - p0) * PANEL_ROWS,
                                  &j->act, NULL, NULL, j->n_token, j->y + p0 * PANEL_ROWS,
                                  j->n_row);
    }
}

/* y of the sample rows against float64, relative root mean squares: [0] with the activations as
 * they were, [1] as the kernel gets them. */
static void job_error(const struct job *j, double error[2])
{
    const struct kern_act *a = &j->act;
    size_t row_bytes = format_row_bytes(j->w->format, a->k);
    float *w = map_memory(sizeof(float) * a->k);
    double off[2] = {0, 0}, all = 0;
    for (unsigned r = 0; r < SAMPLE_ROWS && r < j->n_row; r++) {
        format_dequant_row(j->w->format, j->w->rows + r * row_bytes, a->k, w);
        for (unsigned t = 0; t < MIN(j->n_token, 4u); t++) {
            double exact = 0, quant = 0;
            for (size_t i = 0, at = (size_t)t * a->k; i < a->k; i++, at++) {
                exact += (double)w[i] * a->f[at];
                quant += (double)w[i] * a->d[at / 32] * a->q[at];
            }
            double y = j->y[(size_t)t * j->n_row + r];
            off[0] += (y - exact) * (y - exact);
            off[1] += (y - quant) * (y - quant);
            all += exact * exact;
        }
    }
    error[0] = sqrt(off[0] / all);
    error[1] = kern_act_kind(j->w->id) == KERN_ACT_Q8 ? sqrt(off[1] / all) : error[0];
    munmap(w, sizeof(float) * a->k);
}

static double job_bytes(const struct job *j)
{
    return (double)j->n_row / PANEL_ROWS * (double)j->w->panel_bytes * j->passes;
}

/* Rows of the in-cache matrix of n threads: at least one panel for each. */
static unsigned hot_rows(const struct weights *w, unsigned n_thread, const struct options *o)
{
    unsigned panels = (unsigned)(o->hot_bytes / w->panel_bytes);
    return MIN(MAX(panels, 1u) * n_thread * PANEL_ROWS, w->n_row);
}

/* Rows of a pass out of cache; many tokens need fewer to take as long. */
static unsigned cold_rows(const struct weights *w, unsigned n_token, unsigned n_thread)
{
    unsigned rows = n_token < 16 ? w->n_row : w->n_row / (n_token / 8);
    return MAX(rows / (PANEL_ROWS * n_thread), 1u) * PANEL_ROWS * n_thread;
}

static void print_head(const struct options *o)
{
    if (o->csv) {
        puts("format,isa,tokens,threads,where,weights_gbps,read_gbps,share,gmacs,peak_gmacs,"
             "peak_share,error,rounding");
        return;
    }
    printf("%-8s %-7s %6s %7s %-5s | %8s %8s %6s | %8s %8s %6s | %8s %8s\n", "format", "isa",
           "tokens", "threads", "where", "weights", "read", "share", "products", "peak", "share",
           "error", "rounding");
    printf("%-8s %-7s %6s %7s %-5s | %8s %8s %6s | %8s %8s %6s |\n", "", "", "", "", "", "GB/s",
           "GB/s", "", "G/s", "G/s", "");
}

/* Multiply-adds per second that the best instruction could do; passes fit ~2 ms. */
struct peak {
    const char *isa;
    bool floats;
    unsigned rounds;
};

#if defined(__x86_64__)
#define CHAINS 12 /* independent ones cover the latency */

/* One instruction, or the three that AVX2 needs, on each of 12 registers. */
#define EACH(DO)   DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11) DO(12) DO(13) DO(14) DO(15)
#define DOT_512(r) "vpdpbusd %%zmm0, %%zmm1, %%zmm" #r "\n"
#define FMA_512(r) "vfmadd231ps %%zmm0, %%zmm1, %%zmm" #r "\n"
#define FMA_256(r) "vfmadd231ps %%ymm0, %%ymm1, %%ymm" #r "\n"
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
PEAK(dot_256, DOT_256)
PEAK(fma_256, FMA_256)
#endif

static void peak_part(void *ctx, unsigned thread, unsigned n_thread)
{
    const struct peak *p = ctx;
    (void)thread;
    (void)n_thread;
#if defined(__x86_64__)
    if (strcmp(p->isa, "avx512") == 0) {
        (p->floats ? peak_fma_512 : peak_dot_512)(p->rounds);
    } else if (strcmp(p->isa, "avx2") == 0) {
        (p->floats ? peak_fma_256 : peak_dot_256)(p->rounds);
    }
#endif
}

/* 0 where it is not known (the reference). */
static double peak_products(const char *isa, bool floats, unsigned n_thread)
{
#if defined(__x86_64__)
    struct peak p = {isa, floats, 400000};
    if (strcmp(isa, "avx512") == 0 || strcmp(isa, "avx2") == 0) {
        double lanes = (strcmp(isa, "avx512") == 0 ? 16 : 8) * (floats ? 1 : 4);
        return lanes * CHAINS * p.rounds * n_thread / team_run(n_thread, peak_part, &p);
    }
#endif
    (void)isa;
    (void)floats;
    (void)n_thread;
    return 0;
}

static void measure(struct job *j, bool hot, unsigned n_thread, const struct options *o)
{
    double rate[REPEATS_MAX], share[REPEATS_MAX], read[REPEATS_MAX], peak[REPEATS_MAX],
        peak_share[REPEATS_MAX], error[2];
    bool floats = kern_act_kind(j->w->id) == KERN_ACT_F32;
    size_t read_bytes = j->w->n_row / PANEL_ROWS * j->w->panel_bytes;

    j->n_row = hot ? hot_rows(j->w, n_thread, o) : cold_rows(j->w, j->n_token, n_thread);
    j->passes = 1;
    team_run(n_thread, job_part, j); /* pages, code and, in cache, the weights come in */
    job_error(j, error);
    if (hot) {
        double once = team_run(n_thread, job_part, j);
        j->passes = (unsigned)MIN(MAX(0.02 / once, 1), 1e5);
    }
    for (unsigned i = 0; i < o->repeats; i++) {
        read[i] = read_bandwidth(j->w->panels, read_bytes, n_thread);
        peak[i] = peak_products(j->kern->isa, floats, n_thread);
        if (hot) { /* brings the weights back into cache */
            team_run(n_thread, job_part, j);
        }
        rate[i] = job_bytes(j) / team_run(n_thread, job_part, j);
        share[i] = rate[i] / read[i];
        double products = rate[i] / (double)j->w->panel_bytes * PANEL_ROWS * j->act.k * j->n_token;
        peak_share[i] = peak[i] > 0 ? products / peak[i] : 0;
    }
    double r = median(rate, o->repeats);
    double products = r / (double)j->w->panel_bytes * PANEL_ROWS * j->act.k * j->n_token;
    printf(o->csv
               ? "%s,%s,%u,%u,%s,%.2f,%.2f,%.3f,%.1f,%.1f,%.3f,%.2e,%.2e\n"
               : "%-8s %-7s %6u %7u %-5s | %8.2f %8.2f %6.2f | %8.1f %8.1f %6.2f | %8.1e %8.1e\n",
           j->w->format->name, j->kern->isa, j->n_token, n_thread, hot ? "cache" : "dram", r * 1e-9,
           median(read, o->repeats) * 1e-9, median(share, o->repeats), products * 1e-9,
           median(peak, o->repeats) * 1e-9, median(peak_share, o->repeats), error[0], error[1]);
    fflush(stdout);
}

static void bench_format(const struct kern *kern, const struct weights *w, const struct options *o)
{
    for (unsigned it = 0; it < o->n_tokens; it++) {
        unsigned n = o->tokens[it];
        struct job j = {.kern = kern, .w = w, .n_token = n};
        size_t y_bytes = sizeof(float) * n * w->n_row;
        act_make(&j.act, kern, n, o->k);
        j.y = map_memory(y_bytes);
        for (unsigned i = 0; i < o->n_threads; i++) {
            if (!o->cold_only) {
                measure(&j, true, o->threads[i], o);
            }
            if (!o->hot_only) {
                measure(&j, false, o->threads[i], o);
            }
        }
        munmap(j.y, y_bytes);
        act_free(&j.act, n);
    }
}

/* ------------------------------------------------------------------ options */

static unsigned list_of_numbers(const char *text, unsigned max, unsigned *out)
{
    unsigned n = 0;
    for (char *end; n < LIST_MAX && *text; n++) {
        unsigned long v = strtoul(text, &end, 10);
        if (end == text || v == 0 || v > max || (*end && *end != ',')) {
            fprintf(stderr, "gemv: \"%s\" is no list of numbers from 1 to %u\n", text, max);
            exit(2);
        }
        out[n] = (unsigned)v;
        text = *end ? end + 1 : end;
    }
    return n;
}

static size_t number(const char *text, size_t max)
{
    unsigned v;
    if (list_of_numbers(text, (unsigned)max, &v) != 1) {
        fprintf(stderr, "gemv: \"%s\" is no single number\n", text);
        exit(2);
    }
    return v;
}

static void usage(void)
{
    puts("usage: gemv [--formats F,..] [--isa I,..] [--tokens N,..] [--threads N,..] [--k N]\n"
         "            [--cold MiB] [--hot KiB] [--repeats N] [--only cache|dram] [--csv]");
}

static void parse(int argc, char **argv, struct options *o)
{
    static const struct option longs[] = {
        {"formats", 1, NULL, 'f'}, {"isa", 1, NULL, 'i'},     {"tokens", 1, NULL, 't'},
        {"threads", 1, NULL, 'j'}, {"k", 1, NULL, 'k'},       {"cold", 1, NULL, 'c'},
        {"hot", 1, NULL, 'h'},     {"repeats", 1, NULL, 'r'}, {"only", 1, NULL, 'o'},
        {"csv", 0, NULL, 'v'},     {"help", 0, NULL, '?'},    {NULL, 0, NULL, 0},
    };
    for (int c; (c = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
        switch (c) {
        case 'f':
            o->formats = optarg;
            break;
        case 'i':
            o->isas = optarg;
            break;
        case 't':
            o->n_tokens = list_of_numbers(optarg, 4096, o->tokens);
            break;
        case 'j':
            o->n_threads = list_of_numbers(optarg, TEAM_MAX, o->threads);
            break;
        case 'k':
            o->k = (unsigned)number(optarg, 1u << 20);
            break;
        case 'c':
            o->cold_bytes = number(optarg, 1u << 20) << 20;
            break;
        case 'h':
            o->hot_bytes = number(optarg, 1u << 20) << 10;
            break;
        case 'r':
            o->repeats = (unsigned)number(optarg, REPEATS_MAX);
            break;
        case 'o':
            o->hot_only = strcmp(optarg, "cache") == 0;
            o->cold_only = strcmp(optarg, "dram") == 0;
            break;
        case 'v':
            o->csv = true;
            break;
        default:
            usage();
            exit(optopt ? 2 : 0);
        }
    }
}

/* Whether name is in the comma-separated list. */
static bool listed(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = list; (p = strstr(p, name)) != NULL; p += n) {
        if ((p == list || p[-1] == ',') && (p[n] == ',' || p[n] == '\0')) {
            return true;
        }
    }
    return false;
}

int main(int argc, char **argv)
{
    static const char *const isas[] = {"ref", "avx2", "avx512"};
    struct options o = {.formats = NULL,
                        .isas = "avx2,avx512",
                        .tokens = {1},
                        .n_tokens = 1,
                        .threads = {1},
                        .n_threads = 1,
                        .k = 2048,
                        .repeats = 5,
                        .cold_bytes = 192u << 20,
                        .hot_bytes = 256u << 10};
    parse(argc, argv, &o);
    print_head(&o);
    for (uint32_t id = 0; id < FORMAT_MAX; id++) {
        const struct format *f = format_find(id);
        if (f == NULL || !f->computable || (o.formats && !listed(o.formats, f->name))) {
            continue;
        }
        if (o.k % MAX(f->block_elems, 32u) != 0) {
            fprintf(stderr, "gemv: %s needs --k to be a multiple of %u\n", f->name, f->block_elems);
            continue;
        }
        struct weights w;
        weights_make(&w, id, &o);
        for (unsigned i = 0; i < ARRAY_LEN(isas); i++) {
            const struct kern *kern = kern_find(isas[i]);
            if (kern != NULL && listed(o.isas, isas[i])) {
                bench_format(kern, &w, &o);
            }
        }
        weights_free(&w, &o);
    }
    return 0;
}
