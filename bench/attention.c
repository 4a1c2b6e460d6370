/* attention: what do the attention kernels cost at decode, for a cache that all heads share (a
 * latent cache) and for grouped heads? Per instruction set and cache type: the scores, the softmax
 * and the weighted sum of one chunk of the cache after the other, beside the read bandwidth and the
 * peak of fused multiply-adds measured in the same run.
 *
 *     attention --isa avx512 --heads 128 --n 576 --nv 512 --positions 8192
 *
 * The cache is walked in chunks of --chunk positions, as the engine does. GB/s counts each cache
 * row once. `error` is the root mean square of the output against float64, relative to that of the
 * output. Each figure is a median of --repeats passes. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* affinity */
#endif

#include <getopt.h>
#include <math.h>

#include "base/mem.h"
#include "bench/limits.h"
#include "kernels/select.h"

#define REPEATS_MAX 99u

struct options {
    const char *isas;
    unsigned heads, n, nv, positions, chunk, repeats;
};

struct job {
    const struct kern *kern;
    const struct options *o;
    bool f16;
    float *q, *s, *part, *out; /* [heads, n], [heads, chunk], [heads, nv] twice */
    float *cache;              /* [positions, n], in floats */
    void *rows;                /* the same as the kernel reads it */
};

static uint64_t random_state = 0x9e3779b97f4a7c15u;

static float random_float(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (float)(random_state >> 40) / (1 << 23) - 1;
}

static size_t elem_bytes(const struct job *j)
{
    return j->f16 ? sizeof(uint16_t) : sizeof(float);
}

/* Adds a chunk's softmax, relative to its own maximum, to what came before it. */
static void merge(const struct job *j, unsigned h, float max, float sum, float *all_max,
                  float *all_sum)
{
    float top = fmaxf(max, *all_max), old = expf(*all_max - top), now = expf(max - top);
    float *out = j->out + (size_t)h * j->o->nv;
    j->kern->scale(out, old, j->o->nv);
    j->kern->axpy(out, now, j->part + (size_t)h * j->o->nv, j->o->nv);
    *all_sum = *all_sum * old + sum * now;
    *all_max = top;
}

static void attend(void *ctx, unsigned thread, unsigned n_thread)
{
    const struct job *j = ctx;
    const struct options *o = j->o;
    float all_max[1024], all_sum[1024];
    (void)thread;
    (void)n_thread;
    memset(j->out, 0, sizeof(float) * o->heads * o->nv);
    for (unsigned h = 0; h < o->heads; h++) {
        all_max[h] = -INFINITY;
        all_sum[h] = 0;
    }
    for (unsigned p = 0; p < o->positions; p += o->chunk) {
        unsigned n = MIN(o->chunk, o->positions - p);
        const uint8_t *rows = (const uint8_t *)j->rows + (size_t)p * o->n * elem_bytes(j);
        float max[1024], sum[1024];
        j->kern->attn_qk(j->q, o->n, o->heads, rows, j->f16, o->n, n, o->n, j->s, o->chunk);
        for (unsigned h = 0; h < o->heads; h++) {
            j->kern->attn_exp(j->s + (size_t)h * o->chunk, n, &max[h], &sum[h]);
        }
        j->kern->attn_sv(j->s, o->chunk, o->heads, rows, j->f16, o->n, n, o->nv, j->part, o->nv);
        for (unsigned h = 0; h < o->heads; h++) {
            merge(j, h, max[h], sum[h], &all_max[h], &all_sum[h]);
        }
    }
    for (unsigned h = 0; h < o->heads; h++) {
        j->kern->scale(j->out + (size_t)h * o->nv, 1 / all_sum[h], o->nv);
    }
}

/* Of the first head. */
static double error_of(const struct job *j)
{
    const struct options *o = j->o;
    double *w = map_memory(sizeof(double) * o->positions), *y = map_memory(sizeof(double) * o->nv);
    double top = -INFINITY, total = 0, off = 0, all = 0;
    for (unsigned p = 0; p < o->positions; p++) {
        for (unsigned i = 0; i < o->n; i++) {
            w[p] += (double)j->q[i] * j->cache[(size_t)p * o->n + i];
        }
        top = fmax(top, w[p]);
    }
    for (unsigned p = 0; p < o->positions; p++) {
        double e = exp(w[p] - top);
        total += e;
        for (unsigned i = 0; i < o->nv; i++) {
            y[i] += e * j->cache[(size_t)p * o->n + i];
        }
    }
    for (unsigned i = 0; i < o->nv; i++) {
        double d = j->out[i] - y[i] / total;
        off += d * d;
        all += y[i] / total * (y[i] / total);
    }
    munmap(w, sizeof(double) * o->positions);
    munmap(y, sizeof(double) * o->nv);
    return sqrt(off / all);
}

static void measure(struct job *j)
{
    const struct options *o = j->o;
    size_t bytes = (size_t)o->positions * o->n * elem_bytes(j);
    double time[REPEATS_MAX], read[REPEATS_MAX];
    team_run(1, attend, j);
    for (unsigned i = 0; i < o->repeats; i++) {
        read[i] = read_bandwidth(j->rows, bytes, 1);
        time[i] = team_run(1, attend, j);
    }
    double t = median(time, o->repeats);
    double products = (double)o->heads * o->positions * (o->n + o->nv);
    printf("%-7s %-4s %5u %5u %5u %8u | %9.1f %8.2f %8.2f | %8.2f | %8.1e\n", j->kern->isa,
           j->f16 ? "f16" : "f32", o->heads, o->n, o->nv, o->positions, t * 1e6,
           (double)bytes / t * 1e-9, median(read, o->repeats) * 1e-9, products / t * 1e-9,
           error_of(j));
}

static void bench(const struct kern *kern, const struct options *o)
{
    size_t n_cache = (size_t)o->positions * o->n, n_out = (size_t)o->heads * o->nv;
    size_t n_q = (size_t)o->heads * o->n, n_s = (size_t)o->heads * o->chunk;
    struct job j = {.kern = kern, .o = o};
    j.q = map_memory(sizeof(float) * n_q);
    j.s = map_memory(sizeof(float) * n_s);
    j.part = map_memory(sizeof(float) * n_out);
    j.out = map_memory(sizeof(float) * n_out);
    j.cache = map_memory(sizeof(float) * n_cache);
    uint16_t *half = map_memory(sizeof(uint16_t) * n_cache);
    for (size_t i = 0; i < n_q; i++) {
        j.q[i] = random_float() / 8;
    }
    for (size_t i = 0; i < n_cache; i++) {
        j.cache[i] = random_float();
    }
    kern->f32_to_f16(j.cache, n_cache, half);
    kern->f16_to_f32(half, n_cache, j.cache); /* both types hold the same values */
    for (unsigned f16 = 0; f16 < 2; f16++) {
        j.f16 = f16;
        j.rows = f16 ? (void *)half : (void *)j.cache;
        measure(&j);
    }
    munmap(j.q, sizeof(float) * n_q);
    munmap(j.s, sizeof(float) * n_s);
    munmap(j.part, sizeof(float) * n_out);
    munmap(j.out, sizeof(float) * n_out);
    munmap(j.cache, sizeof(float) * n_cache);
    munmap(half, sizeof(uint16_t) * n_cache);
}

static unsigned number(const char *text, unsigned max)
{
    char *end;
    unsigned long v = strtoul(text, &end, 10);
    if (end == text || *end || v == 0 || v > max) {
        fprintf(stderr, "attention: \"%s\" is no number from 1 to %u\n", text, max);
        exit(2);
    }
    return (unsigned)v;
}

static void parse(int argc, char **argv, struct options *o)
{
    static const struct option longs[] = {
        {"isa", 1, NULL, 'i'},     {"heads", 1, NULL, 'h'}, {"n", 1, NULL, 'n'},
        {"nv", 1, NULL, 'v'},      {"chunk", 1, NULL, 'c'}, {"positions", 1, NULL, 'p'},
        {"repeats", 1, NULL, 'r'}, {"help", 0, NULL, 'H'},  {NULL, 0, NULL, 0},
    };
    for (int c; (c = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
        switch (c) {
        case 'i':
            o->isas = optarg;
            break;
        case 'h':
            o->heads = number(optarg, 1024);
            break;
        case 'n':
            o->n = number(optarg, 65536);
            break;
        case 'v':
            o->nv = number(optarg, 65536);
            break;
        case 'c':
            o->chunk = number(optarg, 65536);
            break;
        case 'p':
            o->positions = number(optarg, 1u << 24);
            break;
        case 'r':
            o->repeats = number(optarg, REPEATS_MAX);
            break;
        default:
            puts("usage: attention [--isa I,..] [--heads N] [--n N] [--nv N] [--positions N]\n"
                 "                 [--chunk N] [--repeats N]");
            exit(c == 'H' ? 0 : 2);
        }
    }
    if (o->nv > o->n) {
        fprintf(stderr, "attention: --nv %u is more than --n %u\n", o->nv, o->n);
        exit(2);
    }
}

int main(int argc, char **argv)
{
    struct options o = {"avx2,avx512", 128, 576, 512, 4096, 256, 5};
    parse(argc, argv, &o);
    printf("%-7s %-4s %5s %5s %5s %8s | %9s %8s %8s | %8s | %8s\n", "isa", "type", "heads", "n",
           "nv", "position", "us", "GB/s", "read", "Gprod/s", "error");
    for (unsigned i = 0; kern_isa_name(i) != NULL; i++) {
        const struct kern *kern = kern_find(kern_isa_name(i));
        if (kern != NULL && listed(o.isas, kern_isa_name(i))) {
            bench(kern, &o);
        }
    }
    return 0;
}
