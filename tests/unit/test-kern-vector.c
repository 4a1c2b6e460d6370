/* kernels: vector functions and attention of every table that this processor can execute: against
 * double, at every length and alignment bit for bit what they are alone, at the edges of floats,
 * and never outside their ranges. */
#include "base/mem.h"
#include "tests/unit/kern-data.h"

/* ------------------------------------------------------------------ element by element */

/* A function of one or two inputs, with what it means in double and how far it may be off: units of
 * 2^-24 of the result, and an absolute part for what is lost where exp() leaves the range of
 * floats. */
struct elementwise {
    const char *name;
    void (*run)(const struct kern *kern, const float *a, const float *b, size_t n, float *y);
    double (*truth)(double a, double b);
    double ulps, absolute;
};

static const float axpy_a = 0.7f, scale_a = -1.7f, oai_alpha = 1.702f, oai_limit = 7;

static void run_add(const struct kern *kern, const float *a, const float *b, size_t n, float *y)
{
    memcpy(y, b, n * sizeof(float));
    kern->add(y, a, n);
}

static void run_axpy(const struct kern *kern, const float *a, const float *b, size_t n, float *y)
{
    memcpy(y, b, n * sizeof(float));
    kern->axpy(y, axpy_a, a, n);
}

static void run_scale(const struct kern *kern, const float *a, const float *b, size_t n, float *y)
{
    (void)b;
    memcpy(y, a, n * sizeof(float));
    kern->scale(y, scale_a, n);
}

static void run_silu_mul(const struct kern *kern, const float *a, const float *b, size_t n,
                         float *y)
{
    kern->silu_mul(a, b, n, y);
}

static void run_silu_mul_into_g(const struct kern *kern, const float *a, const float *b, size_t n,
                                float *y)
{
    memcpy(y, a, n * sizeof(float));
    kern->silu_mul(y, b, n, y);
}

static void run_silu_mul_into_u(const struct kern *kern, const float *a, const float *b, size_t n,
                                float *y)
{
    memcpy(y, b, n * sizeof(float));
    kern->silu_mul(a, y, n, y);
}

static void run_swiglu_oai(const struct kern *kern, const float *a, const float *b, size_t n,
                           float *y)
{
    kern->swiglu_oai(a, b, n, oai_alpha, oai_limit, y);
}

static void run_swiglu_oai_into_g(const struct kern *kern, const float *a, const float *b, size_t n,
                                  float *y)
{
    memcpy(y, a, n * sizeof(float));
    kern->swiglu_oai(y, b, n, oai_alpha, oai_limit, y);
}

static void run_sigmoid(const struct kern *kern, const float *a, const float *b, size_t n, float *y)
{
    (void)b;
    kern->sigmoid(a, n, y);
}

static void run_sigmoid_in_place(const struct kern *kern, const float *a, const float *b, size_t n,
                                 float *y)
{
    (void)b;
    memcpy(y, a, n * sizeof(float));
    kern->sigmoid(y, n, y);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}
static double truth_add(double a, double b)
{
    return a + b;
}
static double truth_axpy(double a, double b)
{
    return (double)axpy_a * a + b;
}
static double truth_scale(double a, double b)
{
    return (void)b, (double)scale_a * a;
}
static double truth_silu_mul(double a, double b)
{
    return a * sigmoid(a) * b;
}
static double truth_sigmoid(double a, double b)
{
    return (void)b, sigmoid(a);
}

static double truth_swiglu_oai(double a, double b)
{
    double gate = fmin(a, (double)oai_limit),
           up = fmax(-(double)oai_limit, fmin(b, (double)oai_limit));
    return (up + 1) * gate * sigmoid((double)oai_alpha * gate);
}

/* axpy may round its product: relative to the larger part, which these inputs keep below 128. The
 * argument of swiglu's sigmoid is itself rounded, so its error grows with the argument. */
static const struct elementwise elementwise[] = {
    {"add", run_add, truth_add, 1, 0},
    {"axpy", run_axpy, truth_axpy, 1, 128 * 0x1p-24},
    {"scale", run_scale, truth_scale, 1, 0},
    {"silu_mul", run_silu_mul, truth_silu_mul, 8, 1e-34},
    {"silu_mul into g", run_silu_mul_into_g, truth_silu_mul, 8, 1e-34},
    {"silu_mul into u", run_silu_mul_into_u, truth_silu_mul, 8, 1e-34},
    {"swiglu_oai", run_swiglu_oai, truth_swiglu_oai, 120, 1e-34},
    {"swiglu_oai into g", run_swiglu_oai_into_g, truth_swiglu_oai, 120, 1e-34},
    {"sigmoid", run_sigmoid, truth_sigmoid, 6, 1e-37},
    {"sigmoid in place", run_sigmoid_in_place, truth_sigmoid, 6, 1e-37},
};

#define N_VALUE 4096u

/* Small ones, a fine sweep around zero, and a coarse one to where exp() under- and overflows. */
static void element_inputs(float *a, float *b)
{
    uint64_t state = 11;
    random_floats(&state, a, N_VALUE, 8);
    random_floats(&state, b, N_VALUE, 20);
    random_floats(&state, a, N_VALUE / 4, 120);
    for (unsigned i = 0; i < 64; i++) {
        a[64 * i] = ldexpf(random_float(&state), -2 * (int)i);
    }
    a[1] = 0;
    a[2] = -0.0f;
    a[3] = 88.73f;
    a[4] = -88.73f;
    a[5] = 1e-41f;
}

Test(kern_vector, elements_are_accurate)
{
    float *a = exact_alloc(N_VALUE * sizeof(float)), *b = exact_alloc(N_VALUE * sizeof(float));
    float *y = exact_alloc(N_VALUE * sizeof(float));
    element_inputs(a, b);
    for (size_t f = 0; f < ARRAY_LEN(elementwise); f++) {
        const struct elementwise *e = &elementwise[f];
        FOR_EACH_KERN(kern)
        {
            e->run(kern, a, b, N_VALUE, y);
            for (unsigned i = 0; i < N_VALUE; i++) {
                double truth = e->truth(a[i], b[i]);
                double allowed = e->ulps * 0x1p-24 * fabs(truth) + e->absolute + 0x1p-149;
                cr_assert_leq(fabs(y[i] - truth), allowed,
                              "%s %s(%.9g, %.9g) is %.9g, expected %.9g", kern->isa, e->name,
                              (double)a[i], (double)b[i], (double)y[i], truth);
            }
        }
    }
    free(a);
    free(b);
    free(y);
}

/* Every length to 70 at every place in a vector: the bits of the element alone, nothing beside
 * them. */
Test(kern_vector, elements_do_not_depend_on_their_place)
{
    enum { N = 70 };
    float a[N], b[N], alone[N];
    uint64_t state = 12;
    random_floats(&state, a, N, 10);
    random_floats(&state, b, N, 10);
    a[7] = INFINITY;
    a[23] = NAN;
    for (size_t f = 0; f < ARRAY_LEN(elementwise); f++) {
        const struct elementwise *e = &elementwise[f];
        FOR_EACH_KERN(kern)
        {
            for (unsigned i = 0; i < N; i++) {
                e->run(kern, &a[i], &b[i], 1, &alone[i]);
            }
            for (unsigned n = 1; n <= N; n++) {
                for (unsigned at = 0; at < 16;
                     at++) { /* inputs and output shifted unlike each other */
                    unsigned shift = at * 5 % 16;
                    float *pa = exact_alloc((at + n) * sizeof(float));
                    float *pb = exact_alloc((shift + n) * sizeof(float));
                    float *py = exact_alloc((at + n + 16) * sizeof(float));
                    memcpy(pa + at, a, n * sizeof(float));
                    memcpy(pb + shift, b, n * sizeof(float));
                    canary_fill(py, at + n + 16);
                    e->run(kern, pa + at, pb + shift, n, py + at);
                    for (unsigned i = 0; i < at + n + 16; i++) {
                        if (i < at || i >= at + n) {
                            cr_assert(canary_alive(&py[i]), "%s %s of %u writes at %d", kern->isa,
                                      e->name, n, (int)i - (int)at);
                        } else {
                            cr_assert(same_bits(&py[i], &alone[i - at], 1) ||
                                          (isnan(py[i]) && isnan(alone[i - at])),
                                      "%s %s element %u of %u", kern->isa, e->name, i - at, n);
                        }
                    }
                    free(pa);
                    free(pb);
                    free(py);
                }
            }
        }
    }
}

Test(kern_vector, elements_at_the_edges)
{
    static const float x[] = {INFINITY, -INFINITY, NAN, 1e38f, -1e38f};
    static const float one[] = {1, 1, 1, 1, 1};
    FOR_EACH_KERN(kern)
    {
        float y[5];
        kern->sigmoid(x, 5, y);
        cr_expect(y[0] == 1 && y[1] == 0 && isnan(y[2]) && y[3] == 1 && y[4] == 0, "%s", kern->isa);
        kern->silu_mul(x, one, 5, y);
        cr_expect(y[0] == INFINITY && isnan(y[1]) && isnan(y[2]) && y[3] == 1e38f && y[4] == 0,
                  "%s", kern->isa);
        kern->silu_mul(one, x, 5, y);
        cr_expect(y[0] == INFINITY && y[1] == -INFINITY && isnan(y[2]), "%s", kern->isa);
        kern->swiglu_oai(x, one, 5, oai_alpha, oai_limit, y);
        cr_expect(y[0] > 13.9f && y[0] < 14 && isnan(y[2]) && y[3] == y[0] && y[4] == 0, "%s",
                  kern->isa);
        kern->swiglu_oai(one, x, 5, oai_alpha, oai_limit, y);
        cr_expect(y[0] > 6.7f && y[0] < 6.8f && y[1] == y[4] && isnan(y[2]) && y[3] == y[0], "%s",
                  kern->isa);
    }
}

/* ------------------------------------------------------------------ conversions */

Test(kern_vector, f16_to_f32)
{
    enum { N = 0x10000 };
    uint16_t *half = exact_alloc(N * sizeof(*half));
    float *y = exact_alloc(N * sizeof(float));
    for (unsigned i = 0; i < N; i++) {
        half[i] = (uint16_t)i;
    }
    FOR_EACH_KERN(kern)
    {
        kern->f16_to_f32(half, N, y);
        for (unsigned i = 0; i < N; i++) {
            float expected = format_f16_to_f32((uint16_t)i);
            cr_assert(same_bits(&y[i], &expected, 1), "%s %04x", kern->isa, i);
        }
    }
    free(half);
    free(y);
}

/* Of every length, from anywhere, and nothing beyond. */
Test(kern_vector, q8_0_to_f32)
{
    uint64_t state = 29;
    for (unsigned n = 1; n <= 100; n++) {
        const size_t bytes = (n + 31) / 32 * 34;
        uint8_t *blocks = exact_alloc(bytes);
        float *y = exact_alloc(n * sizeof(float)), want[128];
        for (size_t i = 0; i < bytes; i++) {
            blocks[i] = (uint8_t)random_below(&state, 256);
        }
        for (size_t i = 1; i < bytes; i += 34) {
            blocks[i] &= 0x3f; /* scales below 2 */
        }
        format_dequant_row(format_find(FORMAT_Q8_0), blocks, (n + 31) / 32 * 32, want);
        FOR_EACH_KERN(kern)
        {
            kern->q8_0_to_f32(blocks, n, y);
            cr_assert(same_bits(y, want, n), "%s of %u", kern->isa, n);
        }
        free(blocks);
        free(y);
    }
}

Test(kern_vector, f32_to_f16)
{
    enum { N = 1 << 18 };
    float *x = exact_alloc(N * sizeof(float));
    uint16_t *half = exact_alloc(N * sizeof(*half));
    uint64_t state = 13;
    for (unsigned i = 0; i < N; i++) {
        uint32_t bits = (uint32_t)random_u64(&state);
        if (i % 2) { /* halves and the middles between them, and their neighbours */
            float f = format_f16_to_f32((uint16_t)(bits & 0xfbff));
            memcpy(&bits, &f, sizeof(bits));
            bits += (i % 4 == 1 ? 0 : 0x1000) + i / 4 % 3 - 1;
        }
        memcpy(&x[i], &bits, sizeof(bits));
    }
    FOR_EACH_KERN(kern)
    {
        kern->f32_to_f16(x, N, half);
        for (unsigned i = 0; i < N; i++) {
            cr_assert_eq(half[i], format_f32_to_f16(x[i]), "%s %a", kern->isa, (double)x[i]);
        }
    }
    free(x);
    free(half);
}

Test(kern_vector, conversions_of_every_length)
{
    uint64_t state = 14;
    float x[70], *from, *back;
    random_floats(&state, x, 70, 100);
    FOR_EACH_KERN(kern)
    {
        for (unsigned n = 1; n <= 70; n++) {
            from = exact_alloc(n * sizeof(float));
            back = exact_alloc((n + 16) * sizeof(float));
            uint16_t *half = exact_alloc((n + 16) * sizeof(*half)), *exact = exact_alloc(2 * n);
            memcpy(from, x, n * sizeof(float));
            memset(half, 0x5a, (n + 16) * sizeof(*half));
            canary_fill(back, n + 16);
            kern->f32_to_f16(from, n, half);
            memcpy(exact, half, 2 * n);
            kern->f16_to_f32(exact, n, back);
            for (unsigned i = 0; i < n; i++) {
                cr_assert_eq(half[i], format_f32_to_f16(x[i]), "%s", kern->isa);
                cr_assert_eq(back[i], format_f16_to_f32(half[i]), "%s", kern->isa);
            }
            for (unsigned i = n; i < n + 16; i++) {
                cr_assert_eq(half[i], 0x5a5a, "%s", kern->isa);
                cr_assert(canary_alive(&back[i]), "%s", kern->isa);
            }
            free(from);
            free(back);
            free(half);
            free(exact);
        }
    }
}

/* ------------------------------------------------------------------ norm */

static void check_rmsnorm(const struct kern *kern, const float *x, const float *w, unsigned n,
                          float eps)
{
    double sum = 0;
    float *first = exact_alloc(n * sizeof(float));
    for (unsigned i = 0; i < n; i++) {
        sum += (double)x[i] * x[i];
    }
    double scale = 1 / sqrt(sum / n + (double)eps);
    for (unsigned at = 0; at < 16; at += n < 71 ? 1 : 5) {
        float *px = exact_alloc((at + n) * sizeof(float)),
              *pw = exact_alloc((at + n) * sizeof(float));
        float *py = exact_alloc((at + n + 16) * sizeof(float));
        memcpy(px + at, x, n * sizeof(float));
        memcpy(pw + at, w, n * sizeof(float));
        canary_fill(py, at + n + 16);
        kern->rmsnorm(px + at, pw + at, n, eps, py + at);
        if (at == 0) {
            memcpy(first, py, n * sizeof(float));
        }
        cr_assert(same_bits(py + at, first, n), "%s n %u: depends on alignment", kern->isa, n);
        for (unsigned i = 0; i < n; i++) {
            double truth = x[i] * scale * w[i];
            cr_assert_leq(fabs(py[at + i] - truth), (n / 32.0 + 8) * 0x1p-24 * fabs(truth) + 1e-37,
                          "%s n %u", kern->isa, n);
        }
        for (unsigned i = 0; i < 16; i++) {
            cr_assert(canary_alive(&py[at + n + i]) && (i >= at || canary_alive(&py[i])), "%s n %u",
                      kern->isa, n);
        }
        kern->rmsnorm(px + at, pw + at, n, eps, px + at);
        cr_assert(same_bits(px + at, first, n), "%s n %u: differs in place", kern->isa, n);
        free(px);
        free(pw);
        free(py);
    }
    free(first);
}

Test(kern_vector, rmsnorm)
{
    static const unsigned long_n[] = {128, 576, 1408, 7168};
    static float x[7168], w[7168], y[7168];
    uint64_t state = 15;
    random_floats(&state, x, 7168, 3);
    random_floats(&state, w, 7168, 2);
    FOR_EACH_KERN(kern)
    {
        for (unsigned n = 1; n <= 70; n++) {
            check_rmsnorm(kern, x, w, n, n % 2 ? 0.25f : 1e-6f);
        }
        for (unsigned i = 0; i < ARRAY_LEN(long_n); i++) {
            check_rmsnorm(kern, x, w, long_n[i], 1e-5f);
        }
        float ones[33], plain[33], zeros[5] = {0};
        for (unsigned i = 0; i < 33; i++) {
            ones[i] = 1;
        }
        kern->rmsnorm(x, ones, 33, 1e-6f, y);
        kern->rmsnorm(x, NULL, 33, 1e-6f, plain);
        cr_expect(same_bits(y, plain, 33), "%s: no weights are ones", kern->isa);
        kern->rmsnorm(zeros, NULL, 5, 1e-6f, y);
        cr_expect(same_bits(y, zeros, 5), "%s: zeros stay zeros", kern->isa);
        x[40] = NAN;
        kern->rmsnorm(x, w, 64, 1e-6f, y);
        x[40] = 1;
        for (unsigned i = 0; i < 64; i++) {
            cr_expect(isnan(y[i]), "%s: NaN is seen everywhere", kern->isa);
        }
    }
}

/* ------------------------------------------------------------------ attention */

Test(kern_vector, exp_is_accurate)
{
    enum { N = 20000 };
    float *s = exact_alloc(N * sizeof(float)), max, sum;
    FOR_EACH_KERN(kern)
    {
        double total = 0;
        for (unsigned i = 0; i < N; i++) {
            s[i] = i < 18000 ? -110.0f * (float)i / 18000 : ldexpf(-1.1f, -(int)i % 40);
        }
        s[0] = 0;
        float *x = malloc(N * sizeof(float));
        memcpy(x, s, N * sizeof(float));
        kern->attn_exp(s, N, &max, &sum);
        cr_assert_eq(max, 0);
        for (unsigned i = 0; i < N; i++) {
            double truth = exp((double)x[i]);
            total += truth;
            /* 2 units in the last place; where the result is subnormal, of those */
            cr_assert_leq(fabs(s[i] - truth), 0x1p-22 * truth + 0x1p-149,
                          "%s exp(%.9g) is %.9g, %.9g", kern->isa, (double)x[i], (double)s[i],
                          truth);
        }
        cr_assert_float_eq(sum, total, 1e-5 * total, "%s", kern->isa);
        free(x);
    }
    free(s);
}

Test(kern_vector, attn_exp_of_every_length)
{
    uint64_t state = 16;
    float x[300];
    random_floats(&state, x, 300, 6);
    FOR_EACH_KERN(kern)
    {
        for (unsigned n = 1; n <= 300; n += n < 70 ? 1 : 46) {
            float first_sum = 0, max_truth = -INFINITY;
            for (unsigned i = 0; i < n; i++) {
                max_truth = fmaxf(max_truth, x[i]);
            }
            for (unsigned at = 0; at < 16; at++) {
                float *s = exact_alloc((at + n + 16) * sizeof(float)), max = NAN, sum = NAN;
                double sum_truth = 0;
                canary_fill(s, at + n + 16);
                memcpy(s + at, x, n * sizeof(float));
                kern->attn_exp(s + at, n, &max, &sum);
                cr_assert_eq(max, max_truth, "%s", kern->isa);
                for (unsigned i = 0; i < n; i++) {
                    double truth = exp((double)x[i] - max_truth);
                    sum_truth += truth;
                    cr_assert_leq(fabs(s[at + i] - truth), 0x1.8p-20 * truth, "%s", kern->isa);
                }
                cr_assert_leq(fabs(sum - sum_truth), 2e-6 * sum_truth, "%s n %u", kern->isa, n);
                first_sum = at == 0 ? sum : first_sum;
                cr_assert(same_bits(&sum, &first_sum, 1), "%s: depends on alignment", kern->isa);
                for (unsigned i = 0; i < 16; i++) {
                    cr_assert(canary_alive(&s[at + n + i]) && (i >= at || canary_alive(&s[i])));
                }
                free(s);
            }
        }
    }
}

Test(kern_vector, attn_exp_at_the_edges)
{
    FOR_EACH_KERN(kern)
    {
        for (unsigned n = 3; n <= 40; n++) {
            float s[40], max, sum;
            for (unsigned i = 0; i < n; i++) {
                s[i] = -INFINITY;
            }
            s[n - 2] = 5;
            kern->attn_exp(s, n, &max, &sum); /* everything masked but one */
            cr_expect(max == 5 && sum == 1 && s[n - 2] == 1 && s[0] == 0 && s[n - 1] == 0, "%s",
                      kern->isa);
            for (unsigned i = 0; i < n; i++) {
                s[i] = -INFINITY;
            }
            kern->attn_exp(s, n, &max, &sum); /* everything masked */
            cr_expect(max == -INFINITY && sum == 0 && s[0] == 0 && s[n - 1] == 0, "%s", kern->isa);
            for (unsigned i = 0; i < n; i++) {
                s[i] = (float)i;
            }
            s[1] = NAN;
            kern->attn_exp(s, n, &max, &sum);
            cr_expect(max == (float)(n - 1) && isnan(sum) && isnan(s[1]) && s[n - 1] == 1, "%s",
                      kern->isa);
            s[0] = INFINITY;
            kern->attn_exp(s, n, &max, &sum);
            cr_expect(max == INFINITY && isnan(sum) && isnan(s[0]), "%s", kern->isa);
        }
    }
}

/* A cache of n_pos rows and n_head queries, or weights and outputs, with gaps between all rows. */
struct attention {
    unsigned n_head, n_pos, n;
    bool f16;
    size_t ldq, ldk, lds, ldo;
    float *q, *s, *o; /* [n_head, n], [n_head, n_pos], [n_head, n] */
    void *rows;       /* [n_pos, n], no element more */
};

static float cache_value(const struct attention *a, unsigned p, unsigned i)
{
    size_t at = p * a->ldk + i;
    return a->f16 ? format_f16_to_f32(((const uint16_t *)a->rows)[at])
                  : ((const float *)a->rows)[at];
}

static struct attention make_attention(unsigned n_head, unsigned n_pos, unsigned n, bool f16)
{
    struct attention a = {n_head, n_pos, n, f16, n + 1, n + 3, n_pos + 5, n + 7, 0, 0, 0, 0};
    size_t n_cache = (n_pos - 1) * a.ldk + n;
    uint64_t state = n_head * 100000 + n_pos * 1000 + n;
    a.q = exact_alloc(((n_head - 1) * a.ldq + n) * sizeof(float));
    a.s = exact_alloc(((n_head - 1) * a.lds + n_pos) * sizeof(float));
    a.o = exact_alloc(((n_head - 1) * a.ldo + n) * sizeof(float));
    a.rows = exact_alloc(n_cache * (f16 ? 2 : 4));
    random_floats(&state, a.q, (n_head - 1) * a.ldq + n, 2);
    for (size_t i = 0; i < n_cache; i++) {
        float x = random_float(&state);
        if (f16) {
            ((uint16_t *)a.rows)[i] = format_f32_to_f16(x);
        } else {
            ((float *)a.rows)[i] = x;
        }
    }
    return a;
}

static void free_attention(struct attention *a)
{
    free(a->q);
    free(a->s);
    free(a->o);
    free(a->rows);
}

/* Rows of `width` elements stand ld apart; what is between them is as it was. */
static void check_gaps(const char *isa, const float *x, unsigned n_row, unsigned width, size_t ld)
{
    for (unsigned r = 0; r + 1 < n_row; r++) {
        for (size_t i = width; i < ld; i++) {
            cr_assert(canary_alive(&x[r * ld + i]), "%s writes between rows", isa);
        }
    }
}

static void check_qk(const struct kern *kern, struct attention *a)
{
    canary_fill(a->s, (a->n_head - 1) * a->lds + a->n_pos);
    kern->attn_qk(a->q, a->ldq, a->n_head, a->rows, a->f16, a->ldk, a->n_pos, a->n, a->s, a->lds);
    check_gaps(kern->isa, a->s, a->n_head, a->n_pos, a->lds);
    for (unsigned h = 0; h < a->n_head; h++) {
        for (unsigned p = 0; p < a->n_pos; p++) {
            double truth = 0, magnitude = 0;
            for (unsigned i = 0; i < a->n; i++) {
                double term = (double)a->q[h * a->ldq + i] * cache_value(a, p, i);
                truth += term;
                magnitude += fabs(term);
            }
            float value = a->s[h * a->lds + p], alone;
            cr_assert_leq(fabs(value - truth), (a->n / 8.0 + 6) * 0x1p-24 * magnitude,
                          "%s heads %u positions %u n %u%s: %.9g, expected %.9g", kern->isa,
                          a->n_head, a->n_pos, a->n, a->f16 ? " f16" : "", (double)value, truth);
            kern->attn_qk(a->q + h * a->ldq, a->ldq, 1,
                          (const uint8_t *)a->rows + p * a->ldk * (a->f16 ? 2 : 4), a->f16, a->ldk,
                          1, a->n, &alone, 1);
            cr_assert(same_bits(&alone, &value, 1), "%s: head %u position %u is another one alone",
                      kern->isa, h, p);
        }
    }
}

static void check_sv(const struct kern *kern, struct attention *a)
{
    uint64_t state = 17;
    const size_t n_out = (a->n_head - 1) * a->ldo + a->n;
    float *before = exact_alloc(n_out * sizeof(float));
    random_floats(&state, a->s, (a->n_head - 1) * a->lds + a->n_pos, 1);
    random_floats(&state, before, n_out, 1);
    canary_fill(a->o, n_out);
    for (unsigned h = 0; h < a->n_head; h++) {
        memcpy(a->o + h * a->ldo, before + h * a->ldo, a->n * sizeof(float));
    }
    kern->attn_sv(a->s, a->lds, a->n_head, a->rows, a->f16, a->ldk, a->n_pos, a->n, a->o, a->ldo);
    check_gaps(kern->isa, a->o, a->n_head, a->n, a->ldo);
    for (unsigned h = 0; h < a->n_head; h++) {
        for (unsigned i = 0; i < a->n; i++) {
            double truth = before[h * a->ldo + i], magnitude = fabs(truth);
            for (unsigned p = 0; p < a->n_pos; p++) {
                double term = (double)a->s[h * a->lds + p] * cache_value(a, p, i);
                truth += term;
                magnitude += fabs(term);
            }
            float value = a->o[h * a->ldo + i];
            cr_assert_leq(fabs(value - truth), (a->n_pos + 2) * 0x1p-24 * magnitude,
                          "%s heads %u positions %u n %u%s: %.9g, expected %.9g", kern->isa,
                          a->n_head, a->n_pos, a->n, a->f16 ? " f16" : "", (double)value, truth);
        }
        /* any one element alone, one position after the other, has the same bits */
        unsigned i = random_below(&state, a->n);
        float alone = before[h * a->ldo + i];
        for (unsigned p = 0; p < a->n_pos; p++) {
            kern->attn_sv(a->s + h * a->lds + p, a->lds, 1,
                          (const uint8_t *)a->rows + (p * a->ldk + i) * (a->f16 ? 2 : 4), a->f16,
                          a->ldk, 1, 1, &alone, 1);
        }
        cr_assert(same_bits(&alone, &a->o[h * a->ldo + i], 1), "%s: head %u element %u of %u alone",
                  kern->isa, h, i, a->n);
    }
    free(before);
}

static void check_attention(void (*check)(const struct kern *, struct attention *))
{
    static const unsigned heads[] = {1, 2, 3, 5, 16};
    static const unsigned positions[] = {1, 2, 3, 7, 16, 17, 33};
    static const unsigned lengths[] = {1, 7, 33, 64, 128, 257, 576};
    for (unsigned i = 0; i < ARRAY_LEN(heads); i++) {
        for (unsigned j = 0; j < ARRAY_LEN(positions); j++) {
            for (unsigned k = 0; k < ARRAY_LEN(lengths); k++) {
                for (unsigned f16 = 0; f16 < 2; f16++) {
                    struct attention a = make_attention(heads[i], positions[j], lengths[k], f16);
                    FOR_EACH_KERN(kern)
                    {
                        check(kern, &a);
                    }
                    free_attention(&a);
                }
            }
        }
    }
}

Test(kern_vector, attn_qk)
{
    check_attention(check_qk);
}

Test(kern_vector, attn_sv)
{
    check_attention(check_sv);
}
