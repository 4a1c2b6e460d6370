/* What a kernel is measured against, in the same run: the bandwidth of reading memory and the peak
 * of the multiply instruction, by any number of pinned threads; and the team of threads itself. */
#ifndef NUMOE_BENCH_LIMITS_H
#define NUMOE_BENCH_LIMITS_H

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define TEAM_MAX 256u

/* What one thread of a team does; its time is taken around it. */
typedef void team_fn(void *ctx, unsigned thread, unsigned n_thread);

struct team_member {
    pthread_t id;
    pthread_barrier_t *start;
    team_fn *fn;
    void *ctx;
    unsigned thread, n_thread;
    int cpu;
    double spent_s;
};

/* Of this thread's processor: what other programs take in between does not count. */
static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *team_main(void *arg)
{
    struct team_member *m = arg;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(m->cpu, &set);
    (void)pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
    pthread_barrier_wait(m->start);
    double begin = seconds();
    m->fn(m->ctx, m->thread, m->n_thread);
    m->spent_s = seconds() - begin;
    return NULL;
}

/* The i-th processor this process may use. */
static int allowed_cpu(unsigned i)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) != 0) {
        return (int)i;
    }
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &set) && i-- == 0) {
            return cpu;
        }
    }
    return 0;
}

/* Runs fn on n threads, thread i on the i-th allowed processor; seconds of processor time of the
 * slowest. */
static double team_run(unsigned n, team_fn *fn, void *ctx)
{
    static struct team_member member[TEAM_MAX];
    pthread_barrier_t start;
    double spent = 0;

    pthread_barrier_init(&start, NULL, n);
    for (unsigned i = 0; i < n; i++) {
        member[i] = (struct team_member){.start = &start,
                                         .fn = fn,
                                         .ctx = ctx,
                                         .thread = i,
                                         .n_thread = n,
                                         .cpu = allowed_cpu(i)};
        if (pthread_create(&member[i].id, NULL, team_main, &member[i]) != 0) {
            perror("bench: cannot start a thread");
            exit(1);
        }
    }
    for (unsigned i = 0; i < n; i++) {
        pthread_join(member[i].id, NULL);
        spent = member[i].spent_s > spent ? member[i].spent_s : spent;
    }
    pthread_barrier_destroy(&start);
    return spent;
}

/* Memory in transparent huge pages where the system gives them. */
static void *map_memory(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        perror("bench: cannot map memory");
        exit(1);
    }
    (void)madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, unsigned n)
{
    qsort(v, n, sizeof(*v), compare_doubles);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* ------------------------------------------------------------------ reading memory */

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("avx512f"))) static void read_avx512(const uint8_t *p, size_t bytes)
{
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    for (size_t i = 0; i + 256 <= bytes; i += 256) {
        a = _mm512_xor_si512(a, _mm512_load_si512(p + i));
        b = _mm512_xor_si512(b, _mm512_load_si512(p + i + 64));
        c = _mm512_xor_si512(c, _mm512_load_si512(p + i + 128));
        d = _mm512_xor_si512(d, _mm512_load_si512(p + i + 192));
        _mm_prefetch((const char *)p + i + 4096, _MM_HINT_T0);
        _mm_prefetch((const char *)p + i + 4160, _MM_HINT_T0);
        _mm_prefetch((const char *)p + i + 4224, _MM_HINT_T0);
        _mm_prefetch((const char *)p + i + 4288, _MM_HINT_T0);
    }
    a = _mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_xor_si512(c, d));
    __asm__ volatile("" : : "v"(a));
}
#endif

static void read_words(const uint8_t *p, size_t bytes)
{
    uint64_t a = 0, b = 0, c = 0, d = 0;
    const uint64_t *v = (const uint64_t *)(const void *)p;
    for (size_t i = 0; i + 4 <= bytes / 8; i += 4) {
        a ^= v[i];
        b ^= v[i + 1];
        c ^= v[i + 2];
        d ^= v[i + 3];
    }
    a ^= b ^ c ^ d;
    __asm__ volatile("" : : "r"(a));
}

struct region {
    const uint8_t *data;
    size_t bytes; /* a multiple of 256 for each thread */
};

static void read_part(void *ctx, unsigned thread, unsigned n_thread)
{
    const struct region *r = ctx;
    size_t part = r->bytes / n_thread / 256 * 256;
    const uint8_t *p = r->data + thread * part;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) {
        read_avx512(p, part);
        return;
    }
#endif
    read_words(p, part);
}

/* Bytes/second that n threads read from memory that no cache holds. */
static double read_bandwidth(const void *data, size_t bytes, unsigned n_thread)
{
    struct region r = {data, bytes};
    return (double)bytes / team_run(n_thread, read_part, &r);
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

#endif
