/* attention: what does attention over a KV cache cost, of one token or of a prompt's last tokens,
 * for a cache that all heads share (a latent cache) and for grouped heads? Per instruction set and
 * cache type: everything from scaled queries to merged values by one thread, in blocks of queries
 * as the engine does it, beside the read bandwidth and the peak of fused multiply-adds measured in
 * the same run.
 *
 *     attention --isa avx512 --heads 128 --n 576 --nv 512 --positions 8192
 *     attention --isa avx2 --heads 32 --kv-heads 4 --n 128 --nv 128 --tokens 1,64,512
 *
 * Where --nv is less than --n, values are the beginnings of keys. Products are those that causal
 * attention needs. --block limits the tokens of a block: 1 goes through the cache for each token.
 * GB/s counts each cache row once. `error` is the root mean square of the output of one head
 * against float64, relative to that of the output. Each figure is a median of --repeats passes. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* affinity */
#endif

#include <getopt.h>
#include <math.h>

#include "bench/inputs.h"
#include "bench/peaks.h"
#include "dense/attn-block.h"
#include "dense/kv-chunk.h"
#include "dense/state.h"
#include "kernels/select.h"

#define HEADS_MAX   1024u
#define TOKENS_MAX  4096u
#define REPEATS_MAX 99u

static const char *const type_name[] = {[KV_F32] = "f32", [KV_F16] = "f16", [KV_Q8_0] = "q8_0"};

struct options {
    const char *isas, *types;
    unsigned tokens[LIST_MAX], n_tokens;
    unsigned heads, kv_heads, n, nv, positions, block, repeats;
};

struct running {
    float max, sum;
};

struct job_attention {
    const struct kern *kern;
    const struct options *o;
    enum kv_type type;
    unsigned n_token;
    struct attn_scratch scratch;
    float *q;                /* [T, heads, n] */
    float *part, *out;       /* [T, heads, nv + 2], [T, heads, nv] */
    struct running *running; /* [T, heads] */
    float *key, *value; /* [kv_heads, positions, n], [.., nv] or NULL: what the cache was made of */
    uint8_t *cache;
    size_t key_bytes, value_bytes, chunk_bytes;
};

static bool is_latent(const struct options *o)
{
    return o->nv < o->n;
}

static unsigned n_chunk(const struct options *o)
{
    return (o->positions + KV_CHUNK - 1) / KV_CHUNK;
}

static size_t cache_bytes(const struct job_attention *j)
{
    return n_chunk(j->o) * j->chunk_bytes;
}

static uint8_t *keys_at(const struct job_attention *j, unsigned chunk, unsigned g)
{
    return j->cache + chunk * j->chunk_bytes + (size_t)g * KV_CHUNK * j->key_bytes;
}

static uint8_t *values_at(const struct job_attention *j, unsigned chunk, unsigned g)
{
    if (is_latent(j->o)) {
        return keys_at(j, chunk, g);
    }
    return keys_at(j, chunk, j->o->kv_heads) + (size_t)g * KV_CHUNK * j->value_bytes;
}

/* Positions that token t sees. */
static unsigned end_of(const struct job_attention *j, unsigned t)
{
    return j->o->positions - j->n_token + t + 1;
}

/* Adds a chunk's softmax, relative to its own maximum, to what came before it. */
static void merge(const struct job_attention *j, size_t i)
{
    const unsigned nv = j->o->nv;
    const float *part = j->part + i * (nv + 2);
    struct running *r = &j->running[i];
    float top = fmaxf(part[nv], r->max), old = expf(r->max - top), now = expf(part[nv] - top);
    j->kern->scale(j->out + i * nv, old, nv);
    j->kern->axpy(j->out + i * nv, now, part, nv);
    *r = (struct running){.max = top, .sum = r->sum * old + part[nv + 1] * now};
}

/* Heads [h0, h1) of KV head g, tokens [t0, t1). */
static void attend_block(const struct job_attention *j, unsigned chunk, unsigned g, unsigned t0,
                         unsigned t1, unsigned h0, unsigned h1)
{
    const struct options *o = j->o;
    struct attn_block b = {
        .kern = j->kern,
        .rows = {j->type, o->n, o->nv, j->key_bytes, j->value_bytes, keys_at(j, chunk, g),
                 values_at(j, chunk, g)},
        .n_head = h1 - h0,
        .ld_out = o->nv + 2,
    };
    for (unsigned t = t0; t < t1; t++) {
        const size_t i = (size_t)t * o->heads + h0;
        if (end_of(j, t) > chunk * KV_CHUNK) {
            b.token[b.n_token++] =
                (struct attn_token){j->q + i * o->n, j->part + i * (o->nv + 2), 0,
                                    MIN(end_of(j, t) - chunk * KV_CHUNK, KV_CHUNK)};
        }
    }
    if (b.n_token > 0) {
        attn_block(&b, &j->scratch);
    }
}

static void attend_chunk(const struct job_attention *j, unsigned chunk)
{
    const struct options *o = j->o;
    const unsigned n_shared = o->heads / o->kv_heads, heads = MIN(n_shared, ATTN_HEAD_BLOCK);
    const unsigned tokens = MIN(o->block, ATTN_QUERIES / heads);
    for (unsigned g = 0; g < o->kv_heads; g++) {
        for (unsigned t = 0; t < j->n_token; t += tokens) {
            for (unsigned h = 0; h < n_shared; h += heads) {
                attend_block(j, chunk, g, t, MIN(t + tokens, j->n_token), g * n_shared + h,
                             g * n_shared + MIN(h + heads, n_shared));
            }
        }
    }
}

static void attend(void *ctx, unsigned thread, unsigned n_thread)
{
    const struct job_attention *j = ctx;
    const size_t n_row = (size_t)j->n_token * j->o->heads;
    (void)thread;
    (void)n_thread;
    memset(j->out, 0, n_row * j->o->nv * sizeof(float));
    for (size_t i = 0; i < n_row; i++) {
        j->running[i] = (struct running){.max = -INFINITY};
    }
    for (unsigned c = 0; c < n_chunk(j->o); c++) {
        attend_chunk(j, c);
        for (size_t i = 0; i < n_row; i++) {
            if (end_of(j, (unsigned)(i / j->o->heads)) > c * KV_CHUNK) {
                merge(j, i);
            }
        }
    }
    for (size_t i = 0; i < n_row; i++) {
        j->kern->scale(j->out + i * j->o->nv, 1 / j->running[i].sum, j->o->nv);
    }
}

/* Of the last token's last head. */
static double error_of(const struct job_attention *j)
{
    const struct options *o = j->o;
    const unsigned g = o->kv_heads - 1;
    const size_t row = (size_t)j->n_token * o->heads - 1;
    const float *key = j->key + (size_t)g * o->positions * o->n;
    const float *value = is_latent(o) ? key : j->value + (size_t)g * o->positions * o->nv;
    const size_t ldv = is_latent(o) ? o->n : o->nv;
    double *w = map_memory(sizeof(double) * o->positions), *y = map_memory(sizeof(double) * o->nv);
    double top = -INFINITY, total = 0, off = 0, all = 0;
    for (unsigned p = 0; p < o->positions; p++) {
        for (unsigned i = 0; i < o->n; i++) {
            w[p] += (double)j->q[row * o->n + i] * key[(size_t)p * o->n + i];
        }
        top = fmax(top, w[p]);
    }
    for (unsigned p = 0; p < o->positions; p++) {
        double e = exp(w[p] - top);
        total += e;
        for (unsigned i = 0; i < o->nv; i++) {
            y[i] += e * value[p * ldv + i];
        }
    }
    for (unsigned i = 0; i < o->nv; i++) {
        double d = j->out[row * o->nv + i] - y[i] / total;
        off += d * d;
        all += y[i] / total * (y[i] / total);
    }
    munmap(w, sizeof(double) * o->positions);
    munmap(y, sizeof(double) * o->nv);
    return sqrt(off / all);
}

static void measure(struct job_attention *j, unsigned n_token)
{
    const struct options *o = j->o;
    double time[REPEATS_MAX], read[REPEATS_MAX], peak[REPEATS_MAX], products = 0;
    j->n_token = n_token;
    for (unsigned t = 0; t < n_token; t++) {
        products += (double)o->heads * end_of(j, t) * (o->n + o->nv);
    }
    team_run(1, attend, j);
    for (unsigned i = 0; i < o->repeats; i++) {
        read[i] = read_bandwidth(j->cache, cache_bytes(j), 1);
        peak[i] = peak_products(j->kern->isa, true, 1);
        time[i] = team_run(1, attend, j);
    }
    const double t = median(time, o->repeats), most = median(peak, o->repeats);
    printf("%-7s %-4s %6u %5u %3u %5u %5u %8u | %10.1f %7.2f %7.2f | %7.2f %7.2f %5.2f | %8.1e\n",
           j->kern->isa, type_name[j->type], n_token, o->heads, o->kv_heads, o->n, o->nv,
           o->positions, t * 1e6, (double)cache_bytes(j) / t * 1e-9,
           median(read, o->repeats) * 1e-9, products / t * 1e-9, most * 1e-9,
           most > 0 ? products / t / most : 0, error_of(j));
}

static float *random_floats(size_t n, float factor)
{
    float *x = map_memory(sizeof(float) * n);
    for (size_t i = 0; i < n; i++) {
        x[i] = random_float() * factor;
    }
    return x;
}

/* The cache of a type; the floats take what it says in their place. */
static void fill_rows(const struct job_attention *j, float *x, unsigned n, size_t row_bytes,
                      uint8_t *(*at)(const struct job_attention *, unsigned, unsigned))
{
    for (unsigned g = 0; g < j->o->kv_heads; g++) {
        for (unsigned p = 0; p < j->o->positions; p++, x += n) {
            uint8_t *row = at(j, p / KV_CHUNK, g) + p % KV_CHUNK * row_bytes;
            kv_store_row(j->kern, j->type, x, n, row);
            if (j->type == KV_F16) {
                j->kern->f16_to_f32((const void *)row, n, x);
            } else if (j->type == KV_Q8_0) {
                j->kern->q8_0_to_f32(row, n, x);
            }
        }
    }
}

static void bench_type(struct job_attention *j, enum kv_type type)
{
    const struct options *o = j->o;
    const size_t n_row = (size_t)o->kv_heads * o->positions;
    j->type = type;
    j->key_bytes = kv_row_bytes(type, o->n);
    j->value_bytes = is_latent(o) ? j->key_bytes : kv_row_bytes(type, o->nv);
    j->chunk_bytes = o->kv_heads * KV_CHUNK * (j->key_bytes + (is_latent(o) ? 0 : j->value_bytes));
    j->cache = map_memory(cache_bytes(j));
    j->key = random_floats(n_row * o->n, 1);
    fill_rows(j, j->key, o->n, j->key_bytes, keys_at);
    if (!is_latent(o)) {
        j->value = random_floats(n_row * o->nv, 1);
        fill_rows(j, j->value, o->nv, j->value_bytes, values_at);
    }
    for (unsigned i = 0; i < o->n_tokens; i++) {
        measure(j, MIN(o->tokens[i], o->positions));
    }
    munmap(j->cache, cache_bytes(j));
    munmap(j->key, n_row * o->n * sizeof(float));
    if (!is_latent(o)) {
        munmap(j->value, n_row * o->nv * sizeof(float));
    }
}

static void bench(const struct kern *kern, const struct options *o)
{
    struct job_attention j = {.kern = kern, .o = o};
    unsigned most = 0;
    for (unsigned i = 0; i < o->n_tokens; i++) {
        most = MAX(most, o->tokens[i]);
    }
    const size_t n_row = (size_t)most * o->heads;
    j.q = random_floats(n_row * o->n, 0.125f);
    j.part = map_memory(n_row * (o->nv + 2) * sizeof(float));
    j.out = map_memory(n_row * o->nv * sizeof(float));
    j.running = map_memory(n_row * sizeof *j.running);
    j.scratch = (struct attn_scratch){
        .query = map_memory(sizeof(float) * ATTN_QUERIES * o->n),
        .score = map_memory(sizeof(float) * ATTN_QUERIES * KV_CHUNK),
        .tile = map_memory(sizeof(float) * attn_tile_floats(o->n)),
        .sum = map_memory(sizeof(float) * ATTN_QUERIES * ATTN_COLUMNS),
    };
    for (unsigned i = 0; i < ARRAY_LEN(type_name); i++) {
        if (listed(o->types, type_name[i])) {
            bench_type(&j, i);
        }
    }
    munmap(j.q, n_row * o->n * sizeof(float));
    munmap(j.part, n_row * (o->nv + 2) * sizeof(float));
    munmap(j.out, n_row * o->nv * sizeof(float));
    munmap(j.running, n_row * sizeof *j.running);
    munmap(j.scratch.query, sizeof(float) * ATTN_QUERIES * o->n);
    munmap(j.scratch.score, sizeof(float) * ATTN_QUERIES * KV_CHUNK);
    munmap(j.scratch.tile, sizeof(float) * attn_tile_floats(o->n));
    munmap(j.scratch.sum, sizeof(float) * ATTN_QUERIES * ATTN_COLUMNS);
}

static void check(const struct options *o)
{
    if (o->nv > o->n) {
        fprintf(stderr, "attention: --nv %u is more than --n %u\n", o->nv, o->n);
        exit(2);
    }
    if (o->heads % o->kv_heads != 0) {
        fprintf(stderr, "attention: --heads %u is no multiple of --kv-heads %u\n", o->heads,
                o->kv_heads);
        exit(2);
    }
}

static void parse(int argc, char **argv, struct options *o)
{
    static const struct option longs[] = {
        {"isa", 1, NULL, 'i'},     {"types", 1, NULL, 'y'},    {"tokens", 1, NULL, 't'},
        {"heads", 1, NULL, 'h'},   {"kv-heads", 1, NULL, 'g'}, {"n", 1, NULL, 'n'},
        {"nv", 1, NULL, 'v'},      {"block", 1, NULL, 'b'},    {"positions", 1, NULL, 'p'},
        {"repeats", 1, NULL, 'r'}, {"help", 0, NULL, 'H'},     {NULL, 0, NULL, 0},
    };
    unsigned *const numbers[] = {
        ['h'] = &o->heads, ['g'] = &o->kv_heads, ['n'] = &o->n,        ['v'] = &o->nv,
        ['b'] = &o->block, ['r'] = &o->repeats,  ['p'] = &o->positions};
    static const unsigned most[] = {
        ['h'] = HEADS_MAX,    ['g'] = HEADS_MAX,   ['n'] = 65536,   ['v'] = 65536,
        ['b'] = ATTN_QUERIES, ['r'] = REPEATS_MAX, ['p'] = 1u << 24};
    for (int c; (c = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
        if (c == 'i') {
            o->isas = optarg;
        } else if (c == 'y') {
            o->types = optarg;
        } else if (c == 't') {
            o->n_tokens = list_of_numbers(optarg, TOKENS_MAX, o->tokens);
        } else if (c != '?' && c != 'H') {
            *numbers[c] = (unsigned)number(optarg, most[c]);
        } else {
            puts(
                "usage: attention [--isa I,..] [--types f32,f16,q8_0] [--tokens N,..] [--heads N]\n"
                "                 [--kv-heads N] [--n N] [--nv N] [--positions N] [--block N]\n"
                "                 [--repeats N]");
            exit(c == 'H' ? 0 : 2);
        }
    }
    check(o);
}

int main(int argc, char **argv)
{
    struct options o = {.isas = "avx2,avx512",
                        .types = "f16,q8_0",
                        .tokens = {1},
                        .n_tokens = 1,
                        .heads = 128,
                        .kv_heads = 1,
                        .n = 576,
                        .nv = 512,
                        .positions = 4096,
                        .block = ATTN_QUERIES,
                        .repeats = 5};
    parse(argc, argv, &o);
    printf("%-7s %-4s %6s %5s %3s %5s %5s %8s | %10s %7s %7s | %7s %7s %5s | %8s\n", "isa", "type",
           "tokens", "heads", "kv", "n", "nv", "position", "us", "GB/s", "read", "Gprod/s", "peak",
           "share", "error");
    for (unsigned i = 0; kern_isa_name(i) != NULL; i++) {
        const struct kern *kern = kern_find(kern_isa_name(i));
        if (kern != NULL && listed(o.isas, kern_isa_name(i))) {
            bench(kern, &o);
        }
    }
    return 0;
}
