/* Each kernel of the GPU program against the CPU's reference on random data, then what they reach
 * of the device's bandwidth. Needs a GPU. Prints TAP; "measure" lines follow the tests.
 *
 *     tests/gpu/test-kernels [--measure]
 */
#define _GNU_SOURCE 1 /* memfd_create */
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"
#include "dense/rope.h"
#include "experts/router.h"
#include "gpu/cuda/kernels.h"
#include "gpu/exchange.h"
#include "kernels/kern.h"
#include "tests/unit/distance.h"

/* ------------------------------------------------------------------ small things */

static uint64_t seed = 1;
static unsigned n_test, n_failed;

static uint64_t random_u64(void)
{
    uint64_t z = (seed += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static unsigned random_below(unsigned n)
{
    return (unsigned)((random_u64() >> 32) % n);
}

static float random_float(void)
{
    return (float)(int64_t)random_u64() * 0x1p-63f;
}

static void *must(void *p)
{
    if (p == NULL) {
        puts("Bail out! no memory");
        exit(99);
    }
    return p;
}

static float *random_floats(size_t n, float size)
{
    float *x = must(malloc(n * sizeof *x));
    for (size_t i = 0; i < n; i++) {
        x[i] = size * random_float();
    }
    return x;
}

static void check_cuda(cudaError_t e, const char *what)
{
    if (e != cudaSuccess) {
        printf("Bail out! %s: %s\n", what, cudaGetErrorString(e));
        exit(99);
    }
}

#define CUDA(expr) check_cuda((expr), #expr)

/* Filled with NaN. */
static void *dev_new(size_t bytes)
{
    void *p = NULL;
    CUDA(cudaMalloc(&p, bytes + 256));
    CUDA(cudaMemset(p, 0xff, bytes + 256));
    return p;
}

static void *dev_copy(const void *from, size_t bytes)
{
    void *p = dev_new(bytes);
    CUDA(cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice));
    return p;
}

static void *host_copy(const void *from, size_t bytes)
{
    void *p = must(malloc(bytes + 1));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(p, from, bytes, cudaMemcpyDeviceToHost));
    return p;
}

static void result(bool ok, const char *name, double value, double limit)
{
    n_test++;
    n_failed += ok ? 0 : 1;
    printf("%s %u - %s: %.3g (limit %.3g)\n", ok ? "ok" : "not ok", n_test, name, value, limit);
    fflush(stdout);
}

static void compare(const char *name, const float *dev, const float *ref, size_t n, double limit)
{
    float *got = host_copy(dev, n * sizeof(float));
    const double d = distance(got, ref, n);
    result(d <= limit, name, d, limit);
    if (d > limit) {
        for (size_t i = 0, shown = 0; i < n && shown < 4; i++) {
            if (!(fabs((double)got[i] - ref[i]) <= 1e-2 * fabs((double)ref[i]) + 1e-6)) {
                printf("# [%zu of %zu] %g, expected %g\n", i, n, (double)got[i], (double)ref[i]);
                shown++;
            }
        }
    }
    free(got);
}

/* ------------------------------------------------------------------ random weights */

static void put_f16(uint8_t *p, float f)
{
    const uint16_t h = format_f32_to_f16(f);
    memcpy(p, &h, 2);
}

static void random_float_block(uint32_t id, uint8_t *b)
{
    const float f = random_float();
    uint32_t bits;
    memcpy(&bits, &f, 4);
    const uint16_t bf16 = (uint16_t)(bits >> 16);
    if (id == FORMAT_F32) {
        memcpy(b, &f, 4);
    } else if (id == FORMAT_F16) {
        put_f16(b, f);
    } else {
        memcpy(b, &bf16, 2);
    }
}

/* Random bits, but scales of a sensible size. */
static void random_block(uint32_t id, const struct format *f, uint8_t *b)
{
    if (f->block_elems == 1) {
        random_float_block(id, b);
        return;
    }
    for (unsigned i = 0; i < f->block_bytes; i++) {
        b[i] = (uint8_t)random_u64();
    }
    if (id == FORMAT_MXFP4) {
        b[0] = (uint8_t)(118 + random_below(6));
    } else if (id == FORMAT_IQ1_M) { /* the scale's nibbles: 0x1cXX */
        b[48 + 7] = (uint8_t)(b[48 + 7] & 0x0f) | 0x10;
        b[48 + 5] = (uint8_t)(b[48 + 5] & 0x0f) | 0xc0;
    } else {
        for (const struct format_field *field = f->field; field->unit != 0; field++) {
            if (field->unit == 2 && field->bytes == 2) {
                put_f16(b + field->offset, 0.002f + 0.004f * fabsf(random_float()));
            }
        }
    }
}

struct weights {
    struct cuda_matrix w;
    const struct format *format;
    uint8_t *raw;  /* host, as in a file */
    void *data;    /* device */
    float *values; /* host */
};

static struct weights weights_new(uint32_t id, unsigned n_mat, unsigned n_row, unsigned k)
{
    struct weights a = {.format = format_find(id)};
    const size_t n_row_all = (size_t)n_mat * n_row, row = format_row_bytes(a.format, k);
    const size_t n_block = n_row_all * k / a.format->block_elems;
    a.raw = must(malloc(n_row_all * row));
    a.values = must(malloc(n_row_all * k * sizeof(float)));
    for (size_t i = 0; i < n_block; i++) {
        random_block(id, a.format, a.raw + i * a.format->block_bytes);
    }
    for (size_t r = 0; r < n_row_all; r++) {
        format_dequant_row(a.format, a.raw + r * row, k, a.values + r * k);
    }
    a.data = dev_new(cuda_matrix_bytes(id, n_row_all * k));
    a.w = (struct cuda_matrix){.format = id, .n_mat = n_mat, .n_row = n_row, .k = k};
    cuda_matrix_place(&a.w, a.data);
    /* in two pieces, as loading does */
    const size_t first = n_block / 3;
    void *raw = dev_copy(a.raw, n_row_all * row);
    cuda_matrix_fill(&a.w, raw, 0, first, 0);
    cuda_matrix_fill(&a.w, (uint8_t *)raw + first * a.format->block_bytes, first, n_block - first,
                     0);
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaFree(raw));
    return a;
}

static void weights_free(struct weights *a)
{
    CUDA(cudaFree(a->data));
    free(a->raw);
    free(a->values);
}

/* Device activations [n, k] with their int8 form where there is one. */
static struct cuda_act act_new(const float *x, size_t n, unsigned k)
{
    struct cuda_act a = {.f = dev_copy(x, n * k * sizeof(float))};
    if (k % 32 == 0) {
        a.q = dev_new(n * k);
        a.g = dev_new(n * k / 32 * sizeof *a.g);
        cuda_quantize(&a, (unsigned)n, k, k, 0);
        CUDA(cudaGetLastError());
    }
    return a;
}

static void act_free(struct cuda_act *a)
{
    cudaFree(a->f);
    cudaFree(a->q);
    cudaFree(a->g);
}

/* What the CPU's int8 form of x stands for. */
static float *through_int8(const float *x, size_t n)
{
    float *y = must(malloc(n * sizeof *y)), *d = must(malloc(n / 32 * sizeof *d));
    int8_t *q = must(malloc(n));
    int16_t *s = must(malloc(n / 16 * sizeof *s));
    kern_find("ref")->quantize(x, n, q, d, s);
    for (size_t i = 0; i < n; i++) {
        y[i] = d[i / 32] * (float)q[i];
    }
    free(d);
    free(q);
    free(s);
    return y;
}

static void product(const float *w, unsigned n_row, unsigned k, const float *x, size_t ldx,
                    unsigned n, float *y, size_t ldy)
{
    for (unsigned t = 0; t < n; t++) {
        for (unsigned r = 0; r < n_row; r++) {
            double sum = 0;
            for (unsigned i = 0; i < k; i++) {
                sum += (double)w[(size_t)r * k + i] * x[t * ldx + i];
            }
            y[t * ldy + r] = (float)sum;
        }
    }
}

/* ------------------------------------------------------------------ products */

static const uint32_t all_formats[] = {
    FORMAT_F32,    FORMAT_F16,     FORMAT_BF16,   FORMAT_Q8_0,  FORMAT_Q4_K,
    FORMAT_Q5_K,   FORMAT_Q6_K,    FORMAT_MXFP4,  FORMAT_Q4_0,  FORMAT_Q4_1,
    FORMAT_Q5_0,   FORMAT_Q5_1,    FORMAT_IQ4_NL, FORMAT_Q2_K,  FORMAT_Q3_K,
    FORMAT_IQ4_XS, FORMAT_IQ2_XXS, FORMAT_IQ2_XS, FORMAT_IQ2_S, FORMAT_IQ3_XXS,
    FORMAT_IQ3_S,  FORMAT_IQ1_S,   FORMAT_IQ1_M,  FORMAT_TQ1_0, FORMAT_TQ2_0,
};

#define GEMV_TOKENS 8u

/* 1 to GEMV_TOKENS tokens against ref; the first token's bits must always be the same. */
static void check_gemv(const struct weights *a, const struct cuda_act *act, const float *ref,
                       float *y, bool exact)
{
    const unsigned n_row = a->w.n_row, k = a->w.k;
    const double limit = 2e-6 * sqrt(k);
    float *one = NULL;
    double worst = 0;
    bool same = true;
    char name[128];
    for (unsigned n = 1; n <= GEMV_TOKENS; n++) {
        CUDA(cudaMemset(y, 0xff, (size_t)GEMV_TOKENS * n_row * sizeof(float)));
        struct cuda_product p = {.w = &a->w,
                                 .x = *act,
                                 .y = y,
                                 .n_token = n,
                                 .n_group = 1,
                                 .ldx = k,
                                 .ldy = n_row,
                                 .exact = exact};
        cuda_gemv(&p, 0);
        CUDA(cudaGetLastError());
        float *got = host_copy(y, (size_t)n * n_row * sizeof(float));
        worst = fmax(worst, distance(got, ref, (size_t)n * n_row));
        if (n == 1) {
            one = got;
            continue;
        }
        same = same && memcmp(one, got, n_row * sizeof(float)) == 0;
        free(got);
    }
    snprintf(name, sizeof name, "gemv %s [%u, %u] %s", a->format->name, n_row, k,
             exact ? "exact" : "int8");
    result(worst < limit, name, worst, limit);
    if (!same) {
        result(false, "the first token's result depends on the number of tokens", 1, 0);
    }
    free(one);
}

static void check_dequant(const struct weights *a)
{
    const unsigned n_row = a->w.n_row, k = a->w.k;
    const int32_t ids[3] = {(int32_t)n_row - 1, 0, 5};
    int32_t *dev_ids = dev_copy(ids, sizeof ids);
    float *back = dev_new((size_t)n_row * k * sizeof(float));
    float *rows = must(malloc(3 * k * sizeof(float)));
    char name[128];
    cuda_dequant(&a->w, 0, n_row, false, back, 0);
    snprintf(name, sizeof name, "dequantization %s", a->format->name);
    compare(name, back, a->values, (size_t)n_row * k, 3e-7);
    for (unsigned i = 0; i < 3 * k; i++) {
        rows[i] = 3 * a->values[(size_t)ids[i / k] * k + i % k];
    }
    cuda_embed(&a->w, dev_ids, 3, 3, back, 0);
    snprintf(name, sizeof name, "embedding %s", a->format->name);
    compare(name, back, rows, 3 * k, 3e-7);
    cudaFree(back);
    cudaFree(dev_ids);
    free(rows);
}

static void test_gemv(uint32_t id, unsigned n_row, unsigned k)
{
    struct weights a = weights_new(id, 1, n_row, k);
    float *x = random_floats((size_t)GEMV_TOKENS * k, 2);
    float *ref = must(malloc((size_t)GEMV_TOKENS * n_row * sizeof(float)));
    struct cuda_act act = act_new(x, GEMV_TOKENS, k);
    float *y = dev_new((size_t)GEMV_TOKENS * n_row * sizeof(float));
    for (int exact = 1; exact >= 0; exact--) {
        const bool floats = a.format->decode == NULL;
        float *seen = exact || floats ? x : through_int8(x, (size_t)GEMV_TOKENS * k);
        product(a.values, n_row, k, seen, k, GEMV_TOKENS, ref, n_row);
        check_gemv(&a, &act, ref, y, exact);
        if (seen != x) {
            free(seen);
        }
    }
    check_dequant(&a);
    cudaFree(y);
    act_free(&act);
    free(x);
    free(ref);
    weights_free(&a);
}

/* What both kinds of groups need: n tokens, n_mat matrices. */
struct groups {
    unsigned n_mat, n_row, k, n;
    struct weights a;
    struct cuda_act act;
    float *x, *ref, *y;
};

/* Heads: matrix g, input g. */
static void check_heads_product(const struct groups *s, struct cuda_blas *blas)
{
    const unsigned n_mat = s->n_mat, n_row = s->n_row, k = s->k, n = s->n;
    float *y = s->y, *ref = s->ref;
    for (unsigned g = 0; g < n_mat; g++) {
        product(s->a.values + (size_t)g * n_row * k, n_row, k, s->x + g * k, n_mat * k, n,
                ref + g * n_row, n_mat * n_row);
    }
    struct cuda_product p = {.w = &s->a.w,
                             .x = s->act,
                             .y = y,
                             .n_token = n,
                             .n_group = n_mat,
                             .ldx = n_mat * k,
                             .x_step = k,
                             .ldy = n_mat * n_row,
                             .y_step = n_row,
                             .exact = true};
    cuda_gemv(&p, 0);
    compare("products by head", y, ref, (size_t)n * n_mat * n_row, 1e-5);
    for (int exact = 0; exact < 2; exact++) {
        p.exact = exact;
        CUDA(cudaMemset(y, 0xff, (size_t)n * n_mat * n_row * sizeof(float)));
        const bool there = cuda_gemm(blas, &p, 0);
        compare(there ? "gemm by head" : "no gemm by head", y, ref, (size_t)n * n_mat * n_row,
                exact ? 1e-5 : 6e-4);
    }
}

/* Experts: matrix mat[g], input g / share. */
static void check_expert_products(const struct groups *s)
{
    const unsigned n_row = s->n_row, k = s->k;
    const int32_t mat[6] = {4, -1, 0, 5, 5, -1}; /* two choices for each of three tokens */
    int32_t *dev_mat = dev_copy(mat, sizeof mat);
    CUDA(cudaMemset(s->y, 0, (size_t)s->n * s->n_mat * n_row * sizeof(float)));
    memset(s->ref, 0, (size_t)6 * n_row * sizeof(float));
    for (unsigned g = 0; g < 6; g++) {
        if (mat[g] >= 0) {
            product(s->a.values + (size_t)mat[g] * n_row * k, n_row, k, s->x + g / 2 * k, k, 1,
                    s->ref + g * n_row, n_row);
        }
    }
    const struct cuda_product p = {.w = &s->a.w,
                                   .x = s->act,
                                   .y = s->y,
                                   .mat = dev_mat,
                                   .n_token = 1,
                                   .n_group = 6,
                                   .ldx = k,
                                   .x_step = k,
                                   .y_step = n_row,
                                   .x_share = 2,
                                   .exact = true};
    cuda_gemv(&p, 0);
    compare("products by expert", s->y, s->ref, (size_t)6 * n_row, 1e-5);
    cudaFree(dev_mat);
}

static void test_groups(struct cuda_blas *blas)
{
    struct groups s = {.n_mat = 6, .n_row = 40, .k = 256, .n = 3};
    const size_t n_in = (size_t)s.n * s.n_mat, n_out = n_in * s.n_row;
    s.a = weights_new(FORMAT_Q8_0, s.n_mat, s.n_row, s.k);
    s.x = random_floats(n_in * s.k, 1);
    s.ref = must(calloc(n_out, sizeof(float)));
    s.act = act_new(s.x, n_in, s.k);
    s.y = dev_new(n_out * sizeof(float));
    check_heads_product(&s, blas);
    check_expert_products(&s);
    cudaFree(s.y);
    act_free(&s.act);
    free(s.x);
    free(s.ref);
    weights_free(&s.a);
}

static void test_gemm(struct cuda_blas *blas, uint32_t id, unsigned n_row, unsigned k, unsigned n,
                      float size)
{
    struct weights a = weights_new(id, 1, n_row, k);
    float *x = random_floats((size_t)n * k, size);
    float *ref = must(malloc((size_t)n * n_row * sizeof(float)));
    struct cuda_act act = {.f = dev_copy(x, (size_t)n * k * sizeof(float))};
    float *y = dev_new((size_t)n * n_row * sizeof(float));
    char name[128];
    product(a.values, n_row, k, x, k, n, ref, n_row);
    for (int exact = 0; exact < 2; exact++) {
        struct cuda_product p = {.w = &a.w,
                                 .x = act,
                                 .y = y,
                                 .n_token = n,
                                 .n_group = 1,
                                 .ldx = k,
                                 .ldy = n_row,
                                 .exact = exact};
        snprintf(name, sizeof name, "gemm %s [%u, %u] x %u, inputs to %g, %s", a.format->name,
                 n_row, k, n, (double)size, exact ? "exact" : "f16");
        CUDA(cudaMemset(y, 0xff, (size_t)n * n_row * sizeof(float)));
        if (!cuda_gemm(blas, &p, 0)) {
            result(false, name, 1e9, 0);
            continue;
        }
        CUDA(cudaGetLastError());
        compare(name, y, ref, (size_t)n * n_row, exact ? 2e-5 : 6e-4);
    }
    cudaFree(y);
    cudaFree(act.f);
    free(x);
    free(ref);
    weights_free(&a);
}

/* ------------------------------------------------------------------ vectors */

static void test_quantize(void)
{
    const unsigned n = 8192;
    float *x = random_floats(n, 3);
    memset(x + 32, 0, 32 * sizeof(float));
    x[64] = 1e-40f;
    memset(x + 65, 0, 31 * sizeof(float));
    int8_t *q = must(malloc(n));
    float *d = must(malloc(n / 32 * sizeof *d));
    int16_t *s = must(malloc(n / 16 * sizeof *s));
    kern_find("ref")->quantize(x, n, q, d, s);
    struct cuda_act a = act_new(x, 1, n);
    int8_t *gq = host_copy(a.q, n);
    struct cuda_group *gg = host_copy(a.g, n / 32 * sizeof *gg);
    unsigned bad = 0;
    for (unsigned i = 0; i < n; i++) {
        bad += gq[i] != q[i] || gg[i / 32].d != d[i / 32] || gg[i / 32].s[i / 16 % 2] != s[i / 16];
    }
    result(bad == 0, "int8 form: the CPU's numbers", bad, 0);
    act_free(&a);
    free(x), free(q), free(d), free(s), free(gq), free(gg);
}

static void test_norm(unsigned k)
{
    const unsigned n = 5;
    const struct kern *ref = kern_find("ref");
    float *x = random_floats((size_t)n * k, 2), *y = random_floats((size_t)n * k, 1);
    float *w = random_floats(k, 1), *bias = random_floats(k, 1);
    float *out = must(malloc((size_t)n * k * sizeof(float)));
    float *dx = dev_copy(x, (size_t)n * k * 4);
    struct cuda_act act = {.f = dev_new((size_t)n * k * 4)};
    act.q = k % 32 == 0 ? dev_new((size_t)n * k) : NULL;
    act.g = k % 32 == 0 ? dev_new((size_t)n * k / 32 * sizeof *act.g) : NULL;
    struct cuda_norm_args p = {.x = dx,
                               .y = dev_copy(y, (size_t)n * k * 4),
                               .scale = 0.5f,
                               .bias = dev_copy(bias, k * 4),
                               .w = dev_copy(w, k * 4),
                               .eps = 1e-5f,
                               .out_scale = 2,
                               .n = n,
                               .k = k,
                               .ldx = k,
                               .out = act};
    cuda_norm(&p, 0);
    for (size_t i = 0; i < (size_t)n * k; i++) {
        x[i] += 0.5f * (y[i] + bias[i % k]);
    }
    for (unsigned t = 0; t < n; t++) {
        ref->rmsnorm(x + (size_t)t * k, w, k, 1e-5f, out + (size_t)t * k);
    }
    ref->scale(out, 2, (size_t)n * k);
    char name[64];
    snprintf(name, sizeof name, "norm of %u, sum", k);
    compare(name, dx, x, (size_t)n * k, 1e-6);
    snprintf(name, sizeof name, "norm of %u", k);
    compare(name, act.f, out, (size_t)n * k, 1e-6);
    if (act.q != NULL) {
        float *f = host_copy(act.f, (size_t)n * k * 4), *seen = through_int8(f, (size_t)n * k);
        int8_t *q = host_copy(act.q, (size_t)n * k);
        struct cuda_group *g = host_copy(act.g, (size_t)n * k / 32 * sizeof *g);
        unsigned bad = 0;
        for (size_t i = 0; i < (size_t)n * k; i++) {
            bad += g[i / 32].d * (float)q[i] != seen[i];
        }
        result(bad == 0, "norm: int8 form", bad, 0);
        free(f), free(seen), free(q), free(g);
    }
    cudaFree(dx), cudaFree((void *)p.y), cudaFree((void *)p.bias), cudaFree((void *)p.w);
    act_free(&act);
    free(x), free(y), free(w), free(bias), free(out);
}

/* What cuda_heads() makes of one row: bias, norm of heads or of the row, rotation, scale. */
static void heads_ref(const struct rope *rope, const float *angles, const float *bias,
                      const float *norm, unsigned norm_step, unsigned n_head, unsigned n_elem,
                      unsigned rot_at, float *row)
{
    const struct kern *ref = kern_find("ref");
    const unsigned n = n_head * n_elem;
    ref->add(row, bias, n);
    for (unsigned i = 0; norm != NULL && i < n; i += norm_step) {
        ref->rmsnorm(row + i, norm, norm_step, 1e-6f, row + i);
    }
    for (unsigned h = 0; h < n_head; h++) {
        float *from = row + h * n_elem + rot_at;
        rope_apply(rope, angles, from, from);
    }
    ref->scale(row, 0.3f, n);
}

static struct rope_params rotation(bool interleaved, unsigned n_rot, bool yarn)
{
    return (struct rope_params){.kind = interleaved ? ROPE_INTERLEAVED : ROPE_HALVES,
                                .n_rot = n_rot,
                                .freq_base = 10000,
                                .factor = yarn ? 40 : 1,
                                .yarn = yarn,
                                .n_ctx_orig = 4096,
                                .beta_fast = 32,
                                .beta_slow = 1,
                                .magnitude = 1.25f};
}

static void test_heads(bool interleaved, bool norm_row, bool with_norm, unsigned rot_at,
                       unsigned n_rot, bool yarn)
{
    const unsigned n = 4, n_head = 3, n_elem = 96, row = n_head * n_elem;
    const struct rope_params rp = rotation(interleaved, n_rot, yarn);
    struct rope rope;
    char name[128];
    rope_init(&rope, &rp, NULL, NULL);
    const int32_t position[4] = {0, 17, 4000, 130000};
    float *x = random_floats((size_t)n * row, 1), *bias = random_floats(row, 1);
    float *norm = random_floats(row, 1), *angles = must(malloc(n * n_rot * sizeof(float)));
    double *freq = dev_copy(rope.freq, n_rot / 2 * sizeof(double));
    int32_t *dpos = dev_copy(position, sizeof position);
    float *dang = dev_new(n * n_rot * 4), *dx = dev_copy(x, (size_t)n * row * 4);
    float *y = dev_new((size_t)n * row * 4);
    cuda_angles(freq, dpos, n, n_rot, rope.magnitude, dang, 0);
    struct cuda_heads_args p = {.x = dx,
                                .y = y,
                                .ldx = row,
                                .x_step = n_elem,
                                .ldy = row,
                                .y_step = n_elem,
                                .n = n,
                                .n_head = n_head,
                                .n_elem = n_elem,
                                .bias = dev_copy(bias, row * 4),
                                .norm = with_norm ? dev_copy(norm, row * 4) : NULL,
                                .norm_row = norm_row,
                                .n_norm = n_elem,
                                .eps = 1e-6f,
                                .scale = 0.3f,
                                .n_rot = n_rot,
                                .rot_at = rot_at,
                                .interleaved = interleaved,
                                .angles = dang};
    cuda_heads(&p, 0);
    for (unsigned t = 0; t < n; t++) {
        rope_angles(&rope, (uint32_t)position[t], angles + t * n_rot);
        heads_ref(&rope, angles + t * n_rot, bias, with_norm ? norm : NULL, norm_row ? row : n_elem,
                  n_head, n_elem, rot_at, x + t * row);
    }
    snprintf(name, sizeof name, "rotation %s, %u of 96 from %u%s%s%s",
             interleaved ? "interleaved" : "halves", n_rot, rot_at, yarn ? ", YaRN" : "",
             with_norm ? ", norm" : "", norm_row ? " of the row" : "");
    compare("angles", dang, angles, n * n_rot, 1e-6);
    compare(name, y, x, (size_t)n * row, 2e-6);
    cudaFree(freq), cudaFree(dpos), cudaFree(dang), cudaFree(dx), cudaFree(y);
    cudaFree((void *)p.bias), cudaFree((void *)p.norm);
    free(x), free(bias), free(norm), free(angles);
    rope_fini(&rope);
}

static void test_glu(enum cuda_glu_act kind)
{
    const unsigned n = 6, k = 96;
    const struct kern *ref = kern_find("ref");
    const int32_t mat[6] = {2, 0, -1, 1, 2, 2};
    float *g = random_floats(n * k, 12), *u = random_floats(n * k, 12);
    float *gb = random_floats(3 * k, 1), *ub = random_floats(3 * k, 1);
    float *h = must(calloc(n * k, sizeof *h));
    struct cuda_act act = {
        .f = dev_new(n * k * 4), .q = dev_new(n * k), .g = dev_new(n * k / 32 * sizeof *act.g)};
    CUDA(cudaMemset(act.f, 0, n * k * 4));
    struct cuda_glu_args p = {.gate = dev_copy(g, n * k * 4),
                              .up = dev_copy(u, n * k * 4),
                              .gate_bias = dev_copy(gb, 3 * k * 4),
                              .up_bias = dev_copy(ub, 3 * k * 4),
                              .mat = dev_copy(mat, sizeof mat),
                              .n = n,
                              .k = k,
                              .ld = k,
                              .act = kind,
                              .alpha = 1.702f,
                              .limit = 7,
                              .h = act};
    cuda_glu(&p, 0);
    for (unsigned r = 0; r < n; r++) {
        if (mat[r] < 0) {
            continue;
        }
        ref->add(g + r * k, gb + (unsigned)mat[r] * k, k);
        ref->add(u + r * k, ub + (unsigned)mat[r] * k, k);
        if (kind == CUDA_SILU) {
            ref->silu_mul(g + r * k, u + r * k, k, h + r * k);
        } else {
            ref->swiglu_oai(g + r * k, u + r * k, k, 1.702f, 7, h + r * k);
        }
    }
    compare(kind == CUDA_SILU ? "silu" : "swiglu", act.f, h, n * k, 1e-6);
    cudaFree((void *)p.gate), cudaFree((void *)p.up), cudaFree((void *)p.mat);
    cudaFree((void *)p.gate_bias), cudaFree((void *)p.up_bias);
    act_free(&act);
    free(g), free(u), free(gb), free(ub), free(h);
}

/* How far the device's choice [n, n_used] is from ids and w: the number of other ids, or the
 * largest relative difference of weights. Token 1 has a NaN: its ids must be some. */
static double router_distance(const struct cuda_router_args *p, const int32_t *ids, const float *w)
{
    const unsigned n = p->n * p->n_used;
    int32_t *got = host_copy(p->ids, n * 4);
    float *got_w = host_copy(p->weights, n * 4);
    unsigned bad = 0;
    double worst = 0;
    for (unsigned i = 0; i < n; i++) {
        if (i / p->n_used == 1) {
            bad += got[i] < 0 || got[i] >= (int32_t)p->n_expert;
            continue;
        }
        bad += got[i] != ids[i];
        worst = fmax(worst, fabs((double)got_w[i] - w[i]) / (fabs((double)w[i]) + 1e-6));
    }
    free(got);
    free(got_w);
    return bad > 0 ? bad : worst;
}

static struct router_params router_rules(enum cuda_gating gating, unsigned n_group,
                                         unsigned n_group_used, bool best_two, bool norm_topk)
{
    return (struct router_params){.gating = gating == CUDA_SOFTMAX   ? ROUTER_SOFTMAX
                                            : gating == CUDA_SIGMOID ? ROUTER_SIGMOID
                                                                     : ROUTER_SOFTMAX_OF_TOPK,
                                  .group_rule = n_group == 1 ? GROUP_NONE
                                                : best_two   ? GROUP_BEST_TWO
                                                             : GROUP_BEST,
                                  .n_group = n_group,
                                  .n_group_used = n_group_used,
                                  .norm_topk = norm_topk,
                                  .scale = 2.5f};
}

static void test_router(enum cuda_gating gating, unsigned n_expert, unsigned n_used,
                        unsigned n_group, unsigned n_group_used, bool best_two, bool norm_topk,
                        bool select, bool ties)
{
    const unsigned n = 64;
    const struct router_params rp =
        router_rules(gating, n_group, n_group_used, best_two, norm_topk);
    float *logits = random_floats((size_t)n * n_expert, 4), *bias = random_floats(n_expert, 1);
    float *choice = random_floats(n_expert, 0.2f), *w = must(malloc(n * n_used * sizeof *w));
    int32_t *ids = must(malloc(n * n_used * sizeof *ids));
    float *scratch = must(malloc(router_scratch_floats(&rp, n_expert) * sizeof *scratch));
    for (size_t i = 0; ties && i < (size_t)n * n_expert; i++) {
        logits[i] = roundf(logits[i]);
        bias[i % n_expert] = 0;
    }
    logits[n_expert + 3] = NAN;
    struct cuda_router_args p = {.logits = dev_copy(logits, (size_t)n * n_expert * 4),
                                 .bias = dev_copy(bias, n_expert * 4),
                                 .select_bias = select ? dev_copy(choice, n_expert * 4) : NULL,
                                 .n = n,
                                 .n_expert = n_expert,
                                 .n_used = n_used,
                                 .gating = gating,
                                 .n_group = n_group,
                                 .n_group_used = n_group_used,
                                 .best_two = best_two,
                                 .norm_topk = norm_topk,
                                 .scale = 2.5f,
                                 .ids = dev_new(n * n_used * 4),
                                 .weights = dev_new(n * n_used * 4)};
    cuda_router(&p, 0);
    for (unsigned t = 0; t < n; t++) {
        float *l = logits + (size_t)t * n_expert;
        kern_find("ref")->add(l, bias, n_expert);
        router_select(&rp, n_expert, n_used, l, select ? choice : NULL, scratch, ids + t * n_used,
                      w + t * n_used);
    }
    char name[128];
    const double far = router_distance(&p, ids, w);
    snprintf(name, sizeof name, "router %s, %u of %u, groups %u of %u%s%s%s%s",
             gating == CUDA_SOFTMAX   ? "softmax"
             : gating == CUDA_SIGMOID ? "sigmoid"
                                      : "top-k",
             n_used, n_expert, n_group_used, n_group, best_two ? " by two" : "",
             norm_topk ? ", normalized" : "", select ? ", bias" : "", ties ? ", ties" : "");
    result(far < 1e-5, name, far, 1e-5);
    cudaFree((void *)p.logits), cudaFree((void *)p.bias), cudaFree((void *)p.select_bias);
    cudaFree(p.ids), cudaFree(p.weights);
    free(logits), free(bias), free(choice), free(w), free(ids), free(scratch);
}

static void test_argmax(void)
{
    const unsigned n = 3, v = 10007;
    float *x = random_floats((size_t)n * v, 1);
    x[700] = x[9000] = 5;
    x[v + 9] = NAN;
    x[v + 10006] = 3;
    x[2 * v] = 2;
    float *dx = dev_copy(x, (size_t)n * v * 4);
    int32_t *ids = dev_new(n * 4);
    cuda_argmax(dx, n, v, ids, 0);
    int32_t *got = host_copy(ids, n * 4);
    result(got[0] == 700 && got[1] == 10006 && got[2] == 0, "argmax", got[0], 700);
    cudaFree(dx), cudaFree(ids);
    free(x), free(got);
}

/* ------------------------------------------------------------------ attention */

struct cache {
    struct cuda_kv kv;
    float *k, *v; /* host: [n_seq][n_pos][n_head_kv][..] as stored */
    unsigned n_seq, n_pos;
};

static float as_stored(float f, bool half)
{
    return half ? format_f16_to_f32(format_f32_to_f16(f)) : f;
}

/* Random rows of all positions, stored through cuda_kv_store; pages of sequences interleave. */
static struct cache cache_new(unsigned n_seq, unsigned n_pos, unsigned n_head_kv, unsigned n_key,
                              unsigned n_value, bool mla, bool half)
{
    const unsigned max_page = (n_pos + CUDA_KV_PAGE - 1) / CUDA_KV_PAGE, n_page = n_seq * max_page;
    struct cache c = {.n_seq = n_seq, .n_pos = n_pos};
    const size_t elem = half ? 2 : 4, rows = (size_t)n_page * CUDA_KV_PAGE * n_head_kv;
    int32_t *table = must(malloc(n_page * sizeof *table));
    for (unsigned i = 0; i < n_page; i++) {
        table[i] = (int32_t)(i % max_page * n_seq + i / max_page);
    }
    c.kv = (struct cuda_kv){.k = dev_new(rows * n_key * elem),
                            .half = half,
                            .n_head_kv = n_head_kv,
                            .n_key = n_key,
                            .n_value = n_value,
                            .v_row = mla ? n_key : n_value,
                            .table = dev_copy(table, n_page * sizeof *table),
                            .max_page = max_page};
    c.kv.v = mla ? c.kv.k : dev_new(rows * n_value * elem);
    for (int values = 0; values < (mla ? 1 : 2); values++) {
        const size_t row = (size_t)n_head_kv * (values ? n_value : n_key);
        const size_t n = (size_t)n_seq * n_pos * row;
        float *x = random_floats(n, 1), *dx = dev_copy(x, n * 4);
        int32_t *seq = must(malloc((size_t)n_seq * n_pos * 4)),
                *pos = must(malloc((size_t)n_seq * n_pos * 4));
        for (unsigned i = 0; i < n_seq * n_pos; i++) {
            seq[i] = (int32_t)(i / n_pos);
            pos[i] = (int32_t)(i % n_pos);
        }
        int32_t *dseq = dev_copy(seq, (size_t)n_seq * n_pos * 4),
                *dpos = dev_copy(pos, (size_t)n_seq * n_pos * 4);
        for (unsigned i = 0; i < n_seq * n_pos; i += 32768) {
            const unsigned some = MIN(32768u, n_seq * n_pos - i);
            cuda_kv_store(&c.kv, values, dx + i * row, row, dseq + i, dpos + i, some, 0);
        }
        CUDA(cudaDeviceSynchronize());
        for (size_t i = 0; i < n; i++) {
            x[i] = as_stored(x[i], half);
        }
        *(values ? &c.v : &c.k) = x;
        cudaFree(dx), cudaFree(dseq), cudaFree(dpos);
        free(seq), free(pos);
    }
    free(table);
    return c;
}

static void cache_free(struct cache *c)
{
    if (c->kv.v != c->kv.k) {
        cudaFree(c->kv.v);
    }
    cudaFree(c->kv.k);
    cudaFree((void *)c->kv.table);
    free(c->k);
    free(c->v);
}

static void attend_ref(const struct cache *c, const float *q, unsigned n_head, unsigned h,
                       unsigned seq, unsigned position, unsigned window, const float *sinks,
                       float *out)
{
    const struct cuda_kv *kv = &c->kv;
    const unsigned kvh = h / (n_head / kv->n_head_kv), hi = position + 1;
    const unsigned lo = window > 0 && hi > window ? hi - window : 0;
    double *s = must(malloc((hi - lo) * sizeof *s)), max = sinks ? sinks[h] : -INFINITY, sum = 0;
    double acc[1024] = {0};
    for (unsigned p = lo; p < hi; p++) {
        const float *k = c->k + (((size_t)seq * c->n_pos + p) * kv->n_head_kv + kvh) * kv->n_key;
        s[p - lo] = 0;
        for (unsigned i = 0; i < kv->n_key; i++) {
            s[p - lo] += (double)q[i] * k[i];
        }
        max = fmax(max, s[p - lo]);
    }
    for (unsigned p = lo; p < hi; p++) {
        const size_t row = ((size_t)seq * c->n_pos + p) * kv->n_head_kv + kvh;
        const float *v = c->v ? c->v + row * kv->n_value : c->k + row * kv->n_key;
        const double w = exp(s[p - lo] - max);
        sum += w;
        for (unsigned i = 0; i < kv->n_value; i++) {
            acc[i] += w * v[i];
        }
    }
    sum += sinks ? exp(sinks[h] - max) : 0;
    for (unsigned i = 0; i < kv->n_value; i++) {
        out[i] = (float)(acc[i] / sum);
    }
    free(s);
}

/* Four tokens of two sequences, one of no position. */
static void check_decode(const struct cache *c, struct cuda_attn_args *p, const float *q,
                         const float *sinks, float *ref, const int32_t *seq, const int32_t *pos,
                         const char *name)
{
    const unsigned n_head = p->n_head, n_key = p->kv.n_key, n_value = p->kv.n_value;
    const bool mla = p->kv.k == p->kv.v;
    for (unsigned i = 0; i < 4 * n_head; i++) {
        const unsigned t = i / n_head, h = i % n_head;
        attend_ref(c, q + (size_t)i * n_key, n_head, h, (unsigned)seq[t], (unsigned)pos[t],
                   p->window, sinks, ref + (size_t)i * n_value);
    }
    p->exact = true;
    cuda_attn_decode(p, 0);
    CUDA(cudaGetLastError());
    compare(name, p->out, ref, (size_t)4 * n_head * n_value, 3e-6);
    if (mla && p->kv.half) {
        char more[200];
        snprintf(more, sizeof more, "tensor cores, %s", name);
        CUDA(cudaMemset(p->out, 0xff, (size_t)p->n * n_head * n_value * 4));
        p->exact = false;
        cuda_attn_decode(p, 0);
        CUDA(cudaGetLastError());
        compare(more, p->out, ref, (size_t)4 * n_head * n_value, 1e-3);
    }
}

/* All n tokens as the last ones of sequence 1. */
static void check_prefill(const struct cache *c, const struct cuda_attn_args *p,
                          struct cuda_blas *blas, const float *q, const float *sinks, float *ref,
                          unsigned first, const char *name)
{
    const unsigned n_head = p->n_head, n_key = p->kv.n_key, n_value = p->kv.n_value;
    for (unsigned i = 0; i < p->n * n_head; i++) {
        attend_ref(c, q + (size_t)i * n_key, n_head, i % n_head, 1, first + i / n_head, p->window,
                   sinks, ref + (size_t)i * n_value);
    }
    for (int exact = 0; exact < 2; exact++) {
        char more[200];
        CUDA(cudaMemset(p->out, 0xff, (size_t)p->n * n_head * n_value * 4));
        snprintf(more, sizeof more, "prompt %s%s", name, exact ? ", exact" : "");
        if (cuda_attn_prefill(blas, p, 1, first, exact, 0)) {
            CUDA(cudaGetLastError());
            compare(more, p->out, ref, (size_t)p->n * n_head * n_value, exact ? 3e-6 : 1e-3);
        } else {
            result(false, more, 1e9, 0);
        }
    }
}

static void test_attention(struct cuda_blas *blas, unsigned n_head, unsigned n_head_kv,
                           unsigned n_key, unsigned n_value, bool mla, bool half, unsigned n_pos,
                           unsigned window, bool with_sinks)
{
    const unsigned n_seq = 2, n = 5;
    struct cache c = cache_new(n_seq, n_pos, n_head_kv, n_key, n_value, mla, half);
    float *q = random_floats((size_t)n * n_head * n_key, 3.0f / sqrtf((float)n_key));
    float *sinks = random_floats(n_head, 2), *ref = must(malloc((size_t)n * n_head * n_value * 4));
    const int32_t seq[5] = {0, 1, 1, 0, 1};
    const int32_t pos[5] = {0, (int32_t)n_pos - 1, (int32_t)n_pos / 2, (int32_t)n_pos - 2, -1};
    struct cuda_attn_args p = {.kv = c.kv,
                               .q = dev_copy(q, (size_t)n * n_head * n_key * 4),
                               .seq = dev_copy(seq, sizeof seq),
                               .position = dev_copy(pos, sizeof pos),
                               .n = n,
                               .n_head = n_head,
                               .window = window,
                               .sinks = with_sinks ? dev_copy(sinks, n_head * 4) : NULL,
                               .partial = dev_new(cuda_attn_partial_floats(n_head, n_value) * 4),
                               .out = dev_new((size_t)n * n_head * n_value * 4)};
    char name[160];
    snprintf(name, sizeof name, "attention %u/%u heads %u/%u%s %s, %u positions, window %u%s",
             n_head, n_head_kv, n_key, n_value, mla ? " MLA" : "", half ? "f16" : "f32", n_pos,
             window, with_sinks ? ", sinks" : "");
    const float *some_sinks = with_sinks ? sinks : NULL;
    check_decode(&c, &p, q, some_sinks, ref, seq, pos, name);
    check_prefill(&c, &p, blas, q, some_sinks, ref, n_pos - n, name);
    cudaFree((void *)p.q), cudaFree((void *)p.seq), cudaFree((void *)p.position);
    cudaFree((void *)p.sinks), cudaFree(p.partial), cudaFree(p.out);
    free(q), free(sinks), free(ref);
    cache_free(&c);
}

/* ------------------------------------------------------------------ measurements */

#define FLUSH_BYTES ((size_t)256 << 20)

typedef void work_fn(void *arg, cudaStream_t s);

/* Median microseconds of one call within a replayed graph of n calls. */
static double graph_us(work_fn *work, void *arg, unsigned n)
{
    cudaStream_t s;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t a, b;
    float ms[9];
    CUDA(cudaStreamCreate(&s));
    CUDA(cudaEventCreate(&a));
    CUDA(cudaEventCreate(&b));
    CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    for (unsigned i = 0; i < n; i++) {
        work(arg, s);
    }
    CUDA(cudaStreamEndCapture(s, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    for (unsigned i = 0; i < 9; i++) {
        CUDA(cudaEventRecord(a, s));
        CUDA(cudaGraphLaunch(exec, s));
        CUDA(cudaEventRecord(b, s));
        CUDA(cudaEventSynchronize(b));
        CUDA(cudaEventElapsedTime(&ms[i], a, b));
    }
    for (unsigned i = 0; i < 9; i++) {
        for (unsigned j = i + 1; j < 9; j++) {
            if (ms[j] < ms[i]) {
                const float m = ms[i];
                ms[i] = ms[j], ms[j] = m;
            }
        }
    }
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaStreamDestroy(s));
    CUDA(cudaEventDestroy(a));
    CUDA(cudaEventDestroy(b));
    return 1e3 * ms[4] / n;
}

struct rotating {
    struct cuda_product p;
    struct cuda_matrix w[64];
    unsigned n, next;
};

static void work_gemv(void *arg, cudaStream_t s)
{
    struct rotating *r = arg;
    struct cuda_product p = r->p;
    p.w = &r->w[r->next++ % r->n];
    cuda_gemv(&p, s);
}

static void measure_gemv(double hbm, uint32_t id, unsigned n_mat, unsigned n_row, unsigned k)
{
    struct rotating r = {.n = 1};
    const size_t bytes = cuda_matrix_bytes(id, (size_t)n_mat * n_row * k);
    r.n = (unsigned)MIN((size_t)64, FLUSH_BYTES / bytes + 1);
    uint8_t *data = dev_new(bytes * r.n);
    uint8_t *noise = must(malloc(1 << 20));
    for (unsigned i = 0; i < 1 << 20; i++) {
        noise[i] = (uint8_t)random_u64() & 0x37; /* any piece of it is a small f16 */
    }
    for (size_t at = 0; at < bytes * r.n; at += 1 << 20) {
        CUDA(cudaMemcpy(data + at, noise, MIN((size_t)1 << 20, bytes * r.n - at),
                        cudaMemcpyHostToDevice));
    }
    for (unsigned i = 0; i < r.n; i++) {
        r.w[i] = (struct cuda_matrix){.format = id, .n_mat = n_mat, .n_row = n_row, .k = k};
        cuda_matrix_place(&r.w[i], data + i * bytes);
    }
    float *x = random_floats((size_t)8 * n_mat * k, 1);
    struct cuda_act act = act_new(x, (size_t)8 * n_mat, k);
    float *y = dev_new((size_t)8 * n_mat * n_row * 4);
    printf("measure gemv %-5s %4u x [%6u, %5u] %7.2f MB:", format_find(id)->name, n_mat, n_row, k,
           (double)bytes / 1e6);
    for (unsigned n = 1; n <= 8; n *= 2) {
        r.p = (struct cuda_product){.x = act,
                                    .y = y,
                                    .n_token = n,
                                    .n_group = n_mat,
                                    .ldx = (size_t)n_mat * k,
                                    .x_step = k,
                                    .ldy = (size_t)n_mat * n_row,
                                    .y_step = n_row};
        const double us = graph_us(work_gemv, &r, 2 * r.n > 40 ? 2 * r.n : 40);
        printf("  %u: %6.1f us %3.0f %%", n, us, 100 * (double)bytes / us * 1e6 / hbm);
    }
    puts("");
    fflush(stdout);
    cudaFree(data), cudaFree(y);
    act_free(&act);
    free(x), free(noise);
}

static void work_copy(void *arg, cudaStream_t s)
{
    cudaMemcpyAsync(arg, (uint8_t *)arg + ((size_t)2 << 30), (size_t)2 << 30,
                    cudaMemcpyDeviceToDevice, s);
}

static void work_attention(void *arg, cudaStream_t s)
{
    cuda_attn_decode(arg, s);
}

struct prompt {
    struct cuda_blas *blas;
    struct cuda_attn_args *p;
    unsigned first;
};

static void work_prompt(void *arg, cudaStream_t s)
{
    struct prompt *w = arg;
    if (!cuda_attn_prefill(w->blas, w->p, 0, w->first, false, s)) {
        puts("measure: attention of a prompt failed");
    }
}

static void measure_attention(struct cuda_blas *blas, unsigned n_head, unsigned n_head_kv,
                              unsigned n_key, unsigned n_value, bool mla)
{
    struct cache c = cache_new(1, 8192, n_head_kv, n_key, n_value, mla, true);
    const unsigned n_max = 2048;
    float *q = random_floats((size_t)n_max * n_head * n_key, 0.1f);
    int32_t *zero = must(calloc(n_max, 4)), *pos = must(malloc(n_max * 4));
    struct cuda_attn_args p = {.kv = c.kv,
                               .q = dev_copy(q, (size_t)n_max * n_head * n_key * 4),
                               .seq = dev_copy(zero, n_max * 4),
                               .n_head = n_head,
                               .partial = dev_new(cuda_attn_partial_floats(n_head, n_value) * 4),
                               .out = dev_new((size_t)n_max * n_head * n_value * 4)};
    printf("measure attention %u/%u heads %u/%u%s, us:", n_head, n_head_kv, n_key, n_value,
           mla ? " MLA" : "");
    for (unsigned n = 1; n <= 8; n *= 8) {
        for (int32_t ctx = 512; ctx <= 8192; ctx *= 4) {
            for (unsigned i = 0; i < n_max; i++) {
                pos[i] = ctx - 1;
            }
            p.n = n;
            p.position = dev_copy(pos, n_max * 4);
            printf(" %ux%d: %.1f", n, ctx, graph_us(work_attention, &p, 20));
            cudaFree((void *)p.position);
        }
    }
    p.n = 2048;
    for (unsigned first = 0; first <= 6144; first += 6144) {
        struct prompt w = {blas, &p, first};
        printf(" prompt 2048 after %u: %.0f", first, graph_us(work_prompt, &w, 1));
    }
    puts("");
    cudaFree((void *)p.q), cudaFree((void *)p.seq), cudaFree(p.partial), cudaFree(p.out);
    free(q), free(zero), free(pos);
    cache_free(&c);
}

struct gemm_work {
    struct cuda_blas *blas;
    struct cuda_product p;
};

static void work_gemm(void *arg, cudaStream_t s)
{
    struct gemm_work *w = arg;
    cuda_gemm(w->blas, &w->p, s);
}

static void measure_gemm(struct cuda_blas *blas, uint32_t id, unsigned n_row, unsigned k,
                         unsigned n)
{
    struct weights a = weights_new(id, 1, n_row, k);
    float *x = random_floats((size_t)n * k, 1);
    struct gemm_work w = {blas,
                          {.w = &a.w,
                           .x = {.f = dev_copy(x, (size_t)n * k * 4)},
                           .y = dev_new((size_t)n * n_row * 4),
                           .n_token = n,
                           .n_group = 1,
                           .ldx = k,
                           .ldy = n_row}};
    const double us = graph_us(work_gemm, &w, 5);
    printf("measure gemm %s [%u, %u] x %u: %.0f us, %.0f TFLOP/s\n", a.format->name, n_row, k, n,
           us, 2.0 * n_row * k * n / us / 1e6);
    cudaFree(w.p.x.f), cudaFree(w.p.y);
    free(x);
    weights_free(&a);
}

/* ---- hand-off: a thread answers each bell at once, as the engine would without experts */

struct doorbell {
    struct exchange_bell x, y;
};

struct answer {
    struct doorbell *bells;
    uint64_t until;
};

static void *answer(void *arg)
{
    struct answer *a = arg;
    for (uint64_t seen = 0; seen < a->until;) {
        const uint64_t v = exchange_bell_get(&a->bells->x);
        if (v != seen) {
            seen = v;
            exchange_bell_ring(&a->bells->y, v);
        }
    }
    return NULL;
}

#define HAND_LAYERS 61u
#define HAND_RUNS   40u

struct hand_work {
    struct cuda_hand hand;
    struct cuda_combine_args combine;
    float *x;
    int32_t *ids;
    float *weights;
};

static void work_hand(void *arg, cudaStream_t s)
{
    struct hand_work *w = arg;
    for (unsigned i = 0; i < HAND_LAYERS; i++) {
        w->hand.i = i;
        cuda_hand_out(&w->hand, w->x, w->ids, w->weights, NULL, w->combine.n, s);
        cuda_hand_in(&w->hand, &w->combine, s);
    }
}

/* The work of a step with so many hand-offs, in memory that the host sees at base and the device at
 * dev. */
static struct hand_work hand_work_new(uint8_t *dev, unsigned n, unsigned k, unsigned n_used)
{
    static const int32_t zero[512];
    struct doorbell *bells = (void *)dev;
    float *area = (float *)(dev + sizeof *bells);
    const size_t xs = (size_t)n * k;
    const struct cuda_step step = {1, 1, n, 0};
    struct hand_work w = {.hand = {.step = dev_copy(&step, sizeof step),
                                   .count = dev_copy(zero, 4),
                                   .arrived = dev_copy(zero, 8),
                                   .k = k,
                                   .n_used = n_used,
                                   .x = {area, area + xs},
                                   .y = {area + 2 * xs, area + 3 * xs},
                                   .ids = {(int32_t *)(area + 4 * xs), (int32_t *)(area + 5 * xs)},
                                   .weights = {area + 6 * xs, area + 7 * xs},
                                   .bell_x = &bells->x.value,
                                   .bell_y = &bells->y.value},
                          .x = dev_new(xs * 4),
                          .ids = dev_copy(zero, sizeof zero),
                          .weights = dev_new(sizeof zero)};
    w.combine = (struct cuda_combine_args){.x = w.x, .n = n, .k = k, .n_used = n_used, .scale = 1};
    return w;
}

/* Milliseconds of the fastest of HAND_RUNS launches. */
static float run_hands(struct hand_work *w, unsigned n)
{
    cudaStream_t s;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t a, b;
    float best = 1e9f;
    CUDA(cudaStreamCreate(&s));
    CUDA(cudaEventCreate(&a));
    CUDA(cudaEventCreate(&b));
    CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    work_hand(w, s);
    CUDA(cudaStreamEndCapture(s, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    for (unsigned i = 0; i < HAND_RUNS; i++) {
        float ms;
        const struct cuda_step now = {i + 1, 1 + HAND_LAYERS * i, n, 0};
        CUDA(cudaMemcpyAsync((void *)w->hand.step, &now, sizeof now, cudaMemcpyHostToDevice, s));
        CUDA(cudaEventRecord(a, s));
        CUDA(cudaGraphLaunch(exec, s));
        CUDA(cudaEventRecord(b, s));
        CUDA(cudaEventSynchronize(b));
        CUDA(cudaEventElapsedTime(&ms, a, b));
        best = fminf(best, ms);
    }
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(graph));
    return best;
}

static void measure_hand(unsigned n)
{
    const unsigned k = 7168, n_used = 8;
    const size_t bytes = sizeof(struct doorbell) + 8 * (size_t)n * k * 4;
    const int fd = memfd_create("hand", 0);
    uint8_t *base = MAP_FAILED, *dev = NULL;
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0 ||
        (base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED) {
        puts("measure hand-off: no memfd");
        return;
    }
    CUDA(cudaHostRegister(base, bytes, cudaHostRegisterMapped));
    CUDA(cudaHostGetDevicePointer((void **)&dev, base, 0));
    struct hand_work w = hand_work_new(dev, n, k, n_used);
    struct answer arg = {(void *)base, HAND_LAYERS * HAND_RUNS};
    pthread_t thread;
    pthread_create(&thread, NULL, answer, &arg);
    const float best = run_hands(&w, n);
    pthread_join(thread, NULL);
    printf("measure hand-off of %u tokens, %u layers in a graph: %.1f us a layer\n", n, HAND_LAYERS,
           1e3 * (double)best / HAND_LAYERS);
    CUDA(cudaHostUnregister(base));
    munmap(base, bytes);
    close(fd);
}

static void measure(struct cuda_blas *blas)
{
    uint8_t *big = dev_new((size_t)4 << 30);
    const double hbm = 2.0 * ((size_t)2 << 30) / graph_us(work_copy, big, 4) * 1e6;
    cudaFree(big);
    printf("measure copy within the device: %.2f TB/s (read and written)\n", hbm / 1e12);
    measure_hand(1);
    measure_hand(8);
    measure_gemv(hbm, FORMAT_Q8_0, 1, 1536, 7168);
    measure_gemv(hbm, FORMAT_Q8_0, 1, 576, 7168);
    measure_gemv(hbm, FORMAT_Q8_0, 1, 24576, 1536);
    measure_gemv(hbm, FORMAT_Q8_0, 128, 512, 128);
    measure_gemv(hbm, FORMAT_Q8_0, 128, 128, 512);
    measure_gemv(hbm, FORMAT_Q8_0, 1, 7168, 16384);
    measure_gemv(hbm, FORMAT_Q8_0, 1, 2048, 7168);
    measure_gemv(hbm, FORMAT_Q8_0, 1, 7168, 2048);
    measure_gemv(hbm, FORMAT_F32, 1, 256, 7168);
    measure_gemv(hbm, FORMAT_Q8_0, 1, 18432, 7168);
    measure_gemv(hbm, FORMAT_Q6_K, 1, 129280, 7168);
    measure_gemv(hbm, FORMAT_Q4_K, 1, 18432, 7168);
    measure_gemv(hbm, FORMAT_Q5_K, 1, 18432, 7168);
    measure_gemv(hbm, FORMAT_MXFP4, 1, 18432, 7168);
    measure_gemv(hbm, FORMAT_BF16, 1, 18432, 7168);
    measure_gemv(hbm, FORMAT_Q2_K, 1, 18432, 7168);
    measure_attention(blas, 128, 1, 576, 512, true);
    measure_attention(blas, 64, 8, 128, 128, false);
    measure_gemm(blas, FORMAT_Q8_0, 7168, 16384, 2048);
    measure_gemm(blas, FORMAT_Q4_K, 2048, 7168, 512);
}

/* ------------------------------------------------------------------ main */

static void test_all(struct cuda_blas *blas)
{
    test_quantize();
    test_norm(7168);
    test_norm(100);
    test_heads(true, false, false, 32, 64, true);
    test_heads(false, false, true, 0, 96, false);
    test_heads(false, true, true, 0, 48, false);
    test_glu(CUDA_SILU);
    test_glu(CUDA_SWIGLU_OAI);
    test_argmax();
    test_router(CUDA_SOFTMAX, 64, 6, 1, 1, false, false, false, false);
    test_router(CUDA_SOFTMAX, 160, 6, 8, 3, false, false, false, false);
    test_router(CUDA_SIGMOID, 256, 8, 8, 4, true, true, true, false);
    test_router(CUDA_SIGMOID, 8, 3, 1, 1, false, true, true, true);
    test_router(CUDA_SOFTMAX_OF_TOPK, 32, 4, 1, 1, false, false, false, false);
    test_router(CUDA_SOFTMAX_OF_TOPK, 128, 8, 1, 1, false, false, false, true);
    test_router(CUDA_SOFTMAX, 128, 8, 1, 1, false, true, false, true);
    for (unsigned i = 0; i < ARRAY_LEN(all_formats); i++) {
        test_gemv(all_formats[i], 67, 1536);
    }
    test_gemv(FORMAT_F32, 33, 100);
    test_gemv(FORMAT_F16, 33, 102);
    test_gemv(FORMAT_Q8_0, 9, 32);
    test_gemv(FORMAT_Q8_0, 300, 4096);
    test_gemv(FORMAT_Q4_K, 10, 256);
    test_groups(blas);
    test_gemm(blas, FORMAT_Q8_0, 576, 1536, 70, 1);
    test_gemm(blas, FORMAT_F32, 100, 100, 9, 1);
    test_gemm(blas, FORMAT_Q4_K, 256, 512, 128, 1e6f);
    test_gemm(blas, FORMAT_IQ3_S, 64, 256, 33, 1);
    test_attention(blas, 128, 1, 576, 512, true, true, 1000, 0, false);
    test_attention(blas, 16, 1, 576, 512, true, false, 300, 0, false);
    test_attention(blas, 40, 1, 576, 512, true, true, 70, 0, false);
    test_attention(blas, 128, 1, 576, 512, true, true, 6000, 100, false);
    test_attention(blas, 5, 1, 40, 24, true, false, 200, 0, false);
    test_attention(blas, 64, 8, 128, 128, false, true, 3000, 0, false);
    test_attention(blas, 64, 8, 64, 64, false, true, 700, 128, true);
    test_attention(blas, 8, 2, 16, 16, false, false, 150, 20, true);
    test_attention(blas, 4, 4, 30, 22, false, true, 77, 0, false);
}

int main(int argc, char **argv)
{
    struct cudaDeviceProp device;
    struct cuda_blas *blas = NULL;
    if (cudaGetDeviceProperties(&device, 0) != cudaSuccess) {
        puts("1..0 # SKIP no CUDA device");
        return 77;
    }
    printf("# %s, compute capability %d.%d, %d multiprocessors\n", device.name, device.major,
           device.minor, device.multiProcessorCount);
    CUDA(cuda_tables_init());
    CUDA(cuda_blas_new((size_t)2 << 30, &blas));
    test_all(blas);
    CUDA(cudaDeviceSynchronize());
    printf("1..%u\n# %u of %u failed\n", n_test, n_failed, n_test);
    if (argc > 1 && strcmp(argv[1], "--measure") == 0) {
        measure(blas);
    }
    cuda_blas_free(blas);
    return n_failed == 0 ? 0 : 1;
}
