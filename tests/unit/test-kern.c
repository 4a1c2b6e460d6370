/* kernels: the choice of a table, quantization of activations, and matrix products of every table
 * that this processor can execute: against sums in double, and against themselves (an element must
 * not depend on what else a call computes). Vector functions and attention are in
 * test-kern-vector.c. */
#include <errno.h>
#include <float.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "base/mem.h"
#include "kernels/select.h"
#include "tests/unit/kern-data.h"
#include "tests/unit/testdata.h"

/* ------------------------------------------------------------------ the choice */

#ifdef KERN_EMULATED
/* Whatever AVX2 can stand for. */
static bool cpu_has_flag(const char *flag)
{
    (void)flag;
    return __builtin_cpu_supports("avx2");
}
#else
static bool cpu_has_flag(const char *flag)
{
    char line[8192], name[64];
    FILE *file = fopen("/proc/cpuinfo", "r");
    bool found = false;
    snprintf(name, sizeof(name), " %s ", flag);
    while (file != NULL && !found && fgets(line, sizeof(line), file) != NULL) {
        line[strcspn(line, "\n")] = ' ';
        found = strncmp(line, "flags", 5) == 0 && strstr(line, name) != NULL;
    }
    if (file != NULL) {
        fclose(file);
    }
    return found;
}
#endif

#ifdef KERN_HAVE_AVX2
#define BUILT_AVX2 true
#else
#define BUILT_AVX2 false
#endif
#ifdef KERN_HAVE_AVXVNNI
#define BUILT_AVXVNNI true
#else
#define BUILT_AVXVNNI false
#endif
#ifdef KERN_HAVE_AVX512
#define BUILT_AVX512 true
#else
#define BUILT_AVX512 false
#endif
#ifdef KERN_HAVE_AMX
#define BUILT_AMX true
#else
#define BUILT_AMX false
#endif

/* What the operating system says of this processor, and the compiler of this build. */
static bool isa_expected(const char *isa)
{
    bool avx2 = cpu_has_flag("avx2") && cpu_has_flag("fma") && cpu_has_flag("f16c");
    if (strcmp(isa, "avx2") == 0) {
        return BUILT_AVX2 && avx2;
    }
    if (strcmp(isa, "avxvnni") == 0) {
        return BUILT_AVXVNNI && avx2 && cpu_has_flag("avx_vnni");
    }
    bool avx512bw = avx2 && cpu_has_flag("avx512f") && cpu_has_flag("avx512bw") &&
                    cpu_has_flag("avx512vl") && cpu_has_flag("avx512dq");
    bool avx512 = avx512bw && cpu_has_flag("avx512_vnni");
    if (strcmp(isa, "avx512bw") == 0) {
        return BUILT_AVX512 && avx512bw;
    }
    if (strcmp(isa, "avx512") == 0) {
        return BUILT_AVX512 && avx512;
    }
    if (strcmp(isa, "amx") == 0) {
        return BUILT_AMX && avx512 && cpu_has_flag("amx_tile") && cpu_has_flag("amx_int8");
    }
    return true;
}

Test(kern, best_table_is_chosen)
{
    const struct kern *kern = NULL;
    const char *best = "ref";
    for (unsigned i = 0; i < N_KERN_ISA; i++) {
        cr_expect_eq(kern_find(kern_isas[i]) != NULL, isa_expected(kern_isas[i]), "%s",
                     kern_isas[i]);
        if (isa_expected(kern_isas[i])) {
            best = kern_isas[i];
        }
    }
    unsetenv("NUMOE_ISA");
    cr_assert_eq(kern_select(&kern, NULL), NUMOE_OK);
    cr_assert_str_eq(kern->isa, best);
    cr_expect_null(kern_find("sse9"));
}

Test(kern, isa_can_be_forced)
{
    for (unsigned i = 0; i < N_KERN_ISA; i++) {
        const struct kern *kern = NULL;
        numoe_error err = {0};
        setenv("NUMOE_ISA", kern_isas[i], 1);
        numoe_status status = kern_select(&kern, &err);
        if (isa_expected(kern_isas[i])) {
            cr_assert_eq(status, NUMOE_OK);
            cr_expect_str_eq(kern->isa, kern_isas[i]);
        } else {
            cr_assert_eq(status, NUMOE_E_SUPPORT);
            cr_expect_not_null(strstr(err.text, kern_isas[i]));
            cr_expect_null(kern, "outputs are set on success only");
        }
    }
}

#if defined(KERN_HAVE_AMX) && !defined(KERN_EMULATED)
/* From now on the system refuses this process the tiles of AMX. */
static void refuse_tiles(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_arch_prctl, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {ARRAY_LEN(code), code};
    cr_assert_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    cr_assert_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

Test(kern, refused_tiles_are_done_without)
{
    const struct kern *kern = NULL;
    numoe_error err = {0};
    if (!isa_expected("amx")) {
        cr_skip("no AMX here");
    }
    refuse_tiles();
    cr_expect_null(kern_find("amx"));
    unsetenv("NUMOE_ISA");
    cr_assert_eq(kern_select(&kern, &err), NUMOE_OK);
    cr_expect_str_eq(kern->isa, "avx512");
    setenv("NUMOE_ISA", "amx", 1);
    cr_assert_eq(kern_select(&kern, &err), NUMOE_E_SUPPORT);
    cr_expect_not_null(strstr(err.text, strerror(EPERM)), "%s", err.text);
}
#endif

Test(kern, unknown_isa_is_refused)
{
    const struct kern *kern = NULL;
    numoe_error err = {0};
    setenv("NUMOE_ISA", "mmx", 1);
    cr_assert_eq(kern_select(&kern, &err), NUMOE_E_INPUT);
    cr_expect_null(kern);
    cr_expect_not_null(strstr(err.text, "mmx"), "%s", err.text);
    cr_expect_not_null(strstr(err.text, "ref, avx2, avxvnni, avx512bw, avx512, amx"), "%s",
                       err.text);
}

Test(kern, tables_are_complete)
{
    FOR_EACH_KERN(kern)
    {
        const struct kern *ref = kern_find("ref");
        for (uint32_t id = 0; id < FORMAT_MAX; id++) {
            const struct format *f = format_find(id);
            bool computable = f != NULL && f->computable;
            cr_expect_eq(kern->matmul[id] != NULL, computable, "%s type %u", kern->isa, id);
            if (computable && kern != ref) {
                cr_expect_neq(kern->matmul[id], ref->matmul[id], "%s %s", kern->isa, f->name);
            }
        }
        cr_expect(kern->quantize && kern->rmsnorm && kern->add && kern->axpy && kern->scale &&
                  kern->silu_mul && kern->swiglu_oai && kern->sigmoid && kern->attn_qk &&
                  kern->attn_exp && kern->attn_sv && kern->f32_to_f16 && kern->f16_to_f32 &&
                  kern->q8_0_to_f32);
    }
}

/* Floats for float weights; one scale to 32 elements, or to 256 where blocks have so many. */
Test(kern, kinds_of_activations)
{
    FOR_EACH_KERN(kern)
    {
        cr_expect_eq(kern->act[FORMAT_F32], KERN_ACT_F32);
        cr_expect_eq(kern->act[FORMAT_F16], KERN_ACT_F32);
        cr_expect_eq(kern->act[FORMAT_BF16], KERN_ACT_F32);
        cr_expect_eq(kern->act[FORMAT_Q8_0], KERN_ACT_Q8);
        cr_expect_eq(kern->act[FORMAT_IQ1_M], KERN_ACT_Q8);
        cr_expect_eq(kern->act[FORMAT_Q4_K],
                     strcmp(kern->isa, "amx") == 0 ? KERN_ACT_Q8_256 : KERN_ACT_Q8);
        for (uint32_t id = 0; id < FORMAT_MAX; id++) {
            if (kern->act[id] == KERN_ACT_Q8_256) {
                cr_expect(kern->quantize_256 != NULL && format_find(id)->block_elems % 256 == 0);
            }
        }
    }
}

/* ------------------------------------------------------------------ quantization of activations */

/* The definition in kernels/kern.h, once more. */
static void check_quantized(const char *isa, unsigned group, const float *x, const int8_t *q,
                            float d, const int16_t *s)
{
    float max = 0;
    bool finite = true;
    for (unsigned i = 0; i < group; i++) {
        max = fmaxf(max, fabsf(x[i]));
        finite &= isfinite(x[i]) != 0;
    }
    float expected = finite ? max / 127 : NAN;
    bool zero = !(expected >= FLT_MIN);
    if (!finite) {
        cr_assert(isnan(d), "%s", isa);
    } else {
        cr_assert_eq(d, zero ? 0 : expected, "%s: d is %g of max %g", isa, (double)d, (double)max);
    }
    for (unsigned i = 0; i < group; i++) {
        long rounded = zero ? 0 : lrintf(x[i] * (127 / max));
        cr_assert_eq(q[i], rounded, "%s: %g of max %g is %d", isa, (double)x[i], (double)max, q[i]);
    }
    for (unsigned h = 0; h < group / 16; h++) {
        int sum = 0;
        for (unsigned i = 0; i < 16; i++) {
            sum += q[16 * h + i];
        }
        cr_assert_eq(s[h], sum, "%s", isa);
    }
}

/* Groups of many sizes, of numbers that are none, of ties. */
static void make_groups(float *x, unsigned n, unsigned group)
{
    static const float special[] = {0,       -0.0f, 1e-45f,   1e-38f, 1.2e-36f, 1.6e-36f,
                                    FLT_MAX, NAN,   INFINITY, -NAN,   -INFINITY};
    uint64_t state = 3;
    for (unsigned g = 0; g < n; g++, x += group) {
        random_floats(&state, x, group, powf(10, (float)random_below(&state, 12) - 6));
        if (g < ARRAY_LEN(special)) { /* among zeros, and below among others */
            memset(x, 0, group * sizeof(float));
            x[(3 * g + group / 2) % group] = special[g];
        } else if (g < 2 * ARRAY_LEN(special)) {
            x[7 * g % group] = special[g - ARRAY_LEN(special)];
        } else if (g < 40) { /* ties: every quotient is a multiple of a half */
            for (unsigned i = 0; i < group; i++) {
                x[i] = 0.5f * (float)random_below(&state, 255) - 63.5f;
            }
            x[g % group] = -127;
        }
    }
}

static void check_quantize(const struct kern *kern, unsigned group,
                           void (*quantize)(const float *, size_t, int8_t *, float *, int16_t *))
{
    enum { N_GROUP = 64 };
    const size_t k = (size_t)N_GROUP * group;
    float *x = exact_alloc((k + 1) * sizeof(float)),
          *d = exact_alloc((N_GROUP + 1) * sizeof(float));
    int8_t *q = exact_alloc(k);
    int16_t *s = exact_alloc((k / 16 + 1) * sizeof(*s));
    x++; /* inputs, scales and sums stand at any element */
    d++;
    s++;
    make_groups(x, N_GROUP, group);
    for (unsigned n = 1; n <= N_GROUP; n += n < 5 ? 1 : 59) { /* whatever the number of groups */
        memset(q, 77, k);
        quantize(x, (size_t)n * group, q, d, s);
        for (unsigned g = 0; g < n; g++) {
            check_quantized(kern->isa, group, x + g * group, q + g * group, d[g],
                            s + g * group / 16);
        }
        for (size_t i = (size_t)n * group; i < k; i++) {
            cr_assert_eq(q[i], 77, "%s writes beyond", kern->isa);
        }
    }
    free(x - 1);
    free(d - 1);
    free(s - 1);
    free(q);
}

Test(kern, quantize)
{
    FOR_EACH_KERN(kern)
    {
        check_quantize(kern, 32, kern->quantize);
        if (kern->quantize_256 != NULL) {
            check_quantize(kern, 256, kern->quantize_256);
        }
    }
}

/* ------------------------------------------------------------------ matrices */

#define N_ROW   48u
#define N_TOKEN 149u
#define N_X     152u /* activations to pick from */

struct problem {
    const struct format *f;
    uint32_t id;
    unsigned k;
    size_t row_bytes;
    uint8_t *rows; /* [N_ROW] */
    enum kern_act_kind kind;
    struct kern_act x; /* [N_X], of that kind */
    double *y,
        *magnitude; /* [N_X, N_ROW]: the product, the sum of the absolute values of its terms */
    float *all;     /* [N_X, N_ROW]: the product as one table computes it */
};

/* Blocks of the vectors whose values are of the size that weights have. */
static uint8_t *usual_blocks(const struct format *f, unsigned *n)
{
    char rel[64];
    snprintf(rel, sizeof(rel), "tests/data/format/%s.bin", f->name);
    char *path = test_src_path(rel);
    cr_assert_not_null(path, "%s is missing", rel);
    FILE *file = fopen(path, "rb");
    uint32_t head[2];
    cr_assert(file != NULL && fread(head, sizeof(head), 1, file) == 1);
    uint8_t *blocks = malloc((size_t)head[0] * f->block_bytes);
    cr_assert_eq(fread(blocks, f->block_bytes, head[0], file), head[0]);
    *n = 0;
    for (uint32_t ib = 0; ib < head[0]; ib++) {
        float x[256], max = 0;
        format_dequant_row(f, blocks + (size_t)ib * f->block_bytes, f->block_elems, x);
        for (unsigned i = 0; i < f->block_elems; i++) {
            max = fmaxf(max, fabsf(x[i]));
        }
        if (max > 1e-6f && max < 1e4f) {
            memmove(blocks + (size_t)*n * f->block_bytes, blocks + (size_t)ib * f->block_bytes,
                    f->block_bytes);
            ++*n;
        }
    }
    cr_assert_geq(*n, 16u, "%s", f->name);
    fclose(file);
    free(path);
    return blocks;
}

static void make_rows(struct problem *p, uint64_t *state)
{
    unsigned n_block, per_row = p->k / p->f->block_elems;
    uint8_t *blocks = usual_blocks(p->f, &n_block);
    p->rows = exact_alloc(N_ROW * p->row_bytes);
    for (unsigned i = 0; i < N_ROW * per_row; i++) {
        memcpy(p->rows + (size_t)i * p->f->block_bytes,
               blocks + (size_t)random_below(state, n_block) * p->f->block_bytes,
               p->f->block_bytes);
    }
    free(blocks);
}

/* Arrays of exactly N_X tokens; those that need not be aligned are not. */
static void make_activations(struct problem *p, uint64_t *state)
{
    size_t n = (size_t)N_X * p->k;
    p->x.k = p->k;
    if (p->kind == KERN_ACT_F32) {
        float *f = (float *)exact_alloc((n + 1) * sizeof(float)) + 1;
        random_floats(state, f, n, 2);
        p->x.f = f;
        return;
    }
    const unsigned group = p->kind == KERN_ACT_Q8 ? 32 : 256;
    int8_t *q = exact_alloc(n);
    float *d = (float *)exact_alloc((n / group + 1) * sizeof(float)) + 1;
    int16_t *s = (int16_t *)exact_alloc((n / 16 + 1) * sizeof(*s)) + 1;
    memset(s, 0, n / 16 * sizeof(*s));
    for (size_t i = 0; i < n; i++) {
        /* whole blocks at the ends of the range too, where intermediate sums are largest */
        unsigned end = (unsigned)(i / p->k) % 8;
        q[i] = (int8_t)(end == 0 ? 127 : end == 1 ? -127 : (int)random_below(state, 255) - 127);
        s[i / 16] = (int16_t)(s[i / 16] + q[i]);
        d[i / group] = 0.02f + 0.01f * random_float(state);
    }
    if (p->kind == KERN_ACT_Q8) {
        p->x.q = q;
        p->x.d = d;
        p->x.s = s;
    } else {
        p->x.q256 = q;
        p->x.d256 = d;
        p->x.s256 = s;
    }
}

static double activation(const struct problem *p, size_t i)
{
    switch (p->kind) {
    case KERN_ACT_Q8:
        return (double)p->x.d[i / 32] * p->x.q[i];
    case KERN_ACT_Q8_256:
        return (double)p->x.d256[i / 256] * p->x.q256[i];
    default:
        return p->x.f[i];
    }
}

static void free_problem(struct problem *p)
{
    free(p->rows);
    free(p->x.f != NULL ? (float *)p->x.f - 1 : NULL);
    free((int8_t *)p->x.q);
    free(p->x.d != NULL ? (float *)p->x.d - 1 : NULL);
    free(p->x.s != NULL ? (int16_t *)p->x.s - 1 : NULL);
    free((int8_t *)p->x.q256);
    free(p->x.d256 != NULL ? (float *)p->x.d256 - 1 : NULL);
    free(p->x.s256 != NULL ? (int16_t *)p->x.s256 - 1 : NULL);
    free(p->y);
    free(p->magnitude);
    free(p->all);
}

/* The terms of one row in double: those of the quants and those of the minima count on their own,
 * since kernels add them on their own. */
static void row_terms(const struct problem *p, unsigned r, double *scaled, double *min)
{
    const uint8_t *row = p->rows + r * p->row_bytes;
    if (p->f->decode == NULL) {
        float *w = malloc(p->k * sizeof(float));
        format_dequant_row(p->f, row, p->k, w);
        for (unsigned i = 0; i < p->k; i++) {
            scaled[i] = w[i];
            min[i] = 0;
        }
        free(w);
        return;
    }
    for (unsigned i0 = 0; i0 < p->k; i0 += p->f->block_elems, row += p->f->block_bytes) {
        struct format_ints b;
        p->f->decode(row, &b);
        for (unsigned i = 0; i < p->f->block_elems; i++) {
            scaled[i0 + i] = (double)b.d * b.scale[i / 16] * b.q[i];
            min[i0 + i] = (double)b.dmin * b.min[i / 16];
        }
    }
}

static void make_truth(struct problem *p)
{
    double *scaled = malloc(p->k * sizeof(double)), *min = malloc(p->k * sizeof(double));
    p->y = calloc(N_X * N_ROW, sizeof(double));
    p->magnitude = calloc(N_X * N_ROW, sizeof(double));
    for (unsigned r = 0; r < N_ROW; r++) {
        row_terms(p, r, scaled, min);
        for (unsigned it = 0; it < N_X; it++) {
            double *y = &p->y[it * N_ROW + r], *magnitude = &p->magnitude[it * N_ROW + r];
            for (unsigned i = 0; i < p->k; i++) {
                double x = activation(p, (size_t)it * p->k + i);
                *y += scaled[i] * x - min[i] * x;
                *magnitude += fabs(scaled[i] * x) + fabs(min[i] * x);
            }
        }
    }
    free(scaled);
    free(min);
}

static struct problem make_problem(uint32_t id, unsigned k, enum kern_act_kind kind)
{
    struct problem p = {.f = format_find(id), .id = id, .k = k, .kind = kind};
    uint64_t state = id * 1000 + k;
    p.row_bytes = format_row_bytes(p.f, k);
    make_rows(&p, &state);
    make_activations(&p, &state);
    make_truth(&p);
    p.all = malloc(N_X * N_ROW * sizeof(float));
    return p;
}

/* Panels of rows [row0, row0 + n_row) and no byte more. */
static uint8_t *pack(const struct problem *p, unsigned row0, unsigned n_row)
{
    size_t panel_bytes = p->row_bytes * PANEL_ROWS;
    uint8_t *panels = exact_alloc((n_row + PANEL_ROWS - 1) / PANEL_ROWS * panel_bytes);
    for (unsigned r = 0; r < n_row; r += PANEL_ROWS) {
        format_pack_panel(p->f, p->rows + (row0 + r) * p->row_bytes, p->row_bytes,
                          MIN(PANEL_ROWS, n_row - r), p->k, panels + r / PANEL_ROWS * panel_bytes);
    }
    return panels;
}

/* The most that rounding can do when every one of these operations rounds the worst way. */
static double tolerance(const struct problem *p, double magnitude)
{
    unsigned n_op = p->f->decode == NULL
                        ? p->k + 1
                        : p->f->block_elems / 32u + 2 * p->k / p->f->block_elems + 4;
    return n_op * 0x1p-24 * magnitude + 1e-37;
}

static void check_against_truth(const struct kern *kern, struct problem *p)
{
    uint8_t *panels = pack(p, 0, N_ROW);
    kern->matmul[p->id](panels, N_ROW, &p->x, NULL, NULL, N_X, p->all, N_ROW);
    for (unsigned i = 0; i < N_X * N_ROW; i++) {
        double error = fabs(p->all[i] - p->y[i]);
        cr_assert_leq(error, tolerance(p, p->magnitude[i]),
                      "%s %s K %u token %u row %u: %.9g, expected %.9g (terms %.3g)", kern->isa,
                      p->f->name, p->k, i / N_ROW, i % N_ROW, (double)p->all[i], p->y[i],
                      p->magnitude[i]);
    }
    free(panels);
}

/* A call for some rows and tokens, with picked inputs and scattered outputs, gives the bits that
 * the call for everything gave, and writes nothing else. */
static void check_part(const struct kern *kern, const struct problem *p, unsigned row0,
                       unsigned n_row, unsigned n_token, uint64_t *state)
{
    size_t ldy = n_row + 3;
    uint8_t *panels = pack(p, row0, n_row);
    float *y = malloc(N_X * ldy * sizeof(float));
    uint32_t *xi = malloc(n_token * sizeof(*xi)), *yi = malloc(n_token * sizeof(*yi));
    uint32_t order[N_X], from[N_X];
    for (unsigned it = 0; it < N_X; it++) { /* a random permutation */
        unsigned at = random_below(state, it + 1);
        order[it] = order[at];
        order[at] = it;
        from[it] = UINT32_MAX;
    }
    bool identity = random_below(state, 3) == 0;
    for (unsigned it = 0; it < n_token; it++) {
        xi[it] = identity ? it : random_below(state, N_X);
        yi[it] = identity ? it : order[it];
        from[yi[it]] = xi[it];
    }
    canary_fill(y, N_X * ldy);
    kern->matmul[p->id](panels, n_row, &p->x, identity ? NULL : xi, identity ? NULL : yi, n_token,
                        y, ldy);
    for (unsigned it = 0; it < N_X; it++) {
        for (unsigned r = 0; r < ldy; r++) {
            const float *value = &y[it * ldy + r];
            if (r >= n_row || from[it] == UINT32_MAX) {
                cr_assert(canary_alive(value), "%s %s %u rows, %u tokens: writes at row %u",
                          kern->isa, p->f->name, n_row, n_token, r);
            } else {
                cr_assert(
                    same_bits(value, &p->all[from[it] * N_ROW + row0 + r], 1),
                    "%s %s K %u row %u+%u of %u, token %u of %u: %.9g alone, %.9g among others",
                    kern->isa, p->f->name, p->k, row0, r, n_row, it, n_token, (double)*value,
                    (double)p->all[from[it] * N_ROW + row0 + r]);
            }
        }
    }
    free(panels);
    free(y);
    free(xi);
    free(yi);
}

static void check_parts(const struct kern *kern, const struct problem *p)
{
    static const unsigned n_rows[] = {1, 15, 16, 17, 48};
    static const unsigned n_tokens[] = {1, 2, 3, 4, 5, 7, 8, 17, 33, 67, N_TOKEN};
    uint64_t state = 5;
    for (unsigned i = 0; i < ARRAY_LEN(n_rows); i++) {
        for (unsigned j = 0; j < ARRAY_LEN(n_tokens); j++) {
            check_part(kern, p, 0, n_rows[i], n_tokens[j], &state);
        }
    }
    check_part(kern, p, 16, 32, 1, &state);
    check_part(kern, p, 16, 32, 7, &state);
    check_part(kern, p, 32, 9, 1, &state);
}

/* Whether a table that this processor can execute reads activations of a kind with a format. */
static bool is_read(uint32_t id, enum kern_act_kind kind)
{
    bool read = false;
    FOR_EACH_KERN(kern)
    {
        read |= kern->matmul[id] != NULL && kern->act[id] == kind;
    }
    return read;
}

static void check_kind(uint32_t id, unsigned k, enum kern_act_kind kind)
{
    struct problem p = make_problem(id, k, kind);
    FOR_EACH_KERN(kern)
    {
        if (kern->act[id] == kind) {
            check_against_truth(kern, &p);
            check_parts(kern, &p);
        }
    }
    free_problem(&p);
}

static void check_format(uint32_t id, unsigned k)
{
    static const enum kern_act_kind kinds[] = {KERN_ACT_F32, KERN_ACT_Q8, KERN_ACT_Q8_256};
    for (unsigned i = 0; i < ARRAY_LEN(kinds); i++) {
        if (is_read(id, kinds[i])) {
            check_kind(id, k, kinds[i]);
        }
    }
}

/* One block, several, an odd number. */
Test(kern, matmul_of_blocks)
{
    for (uint32_t id = 0; id < FORMAT_MAX; id++) {
        if (is_read(id, KERN_ACT_Q8)) { /* that of the reference, so all that are quantized */
            unsigned elems = format_find(id)->block_elems;
            check_format(id, elems);
            check_format(id, 2 * elems);
            check_format(id, (elems == 32 ? 11 : 3) * elems);
        }
    }
}

Test(kern, matmul_of_floats)
{
    static const uint32_t ids[] = {FORMAT_F32, FORMAT_F16, FORMAT_BF16};
    static const unsigned ks[] = {1, 7, 32, 97, 160};
    for (unsigned i = 0; i < ARRAY_LEN(ids); i++) {
        for (unsigned j = 0; j < ARRAY_LEN(ks); j++) {
            check_format(ids[i], ks[j]);
        }
    }
}

/* What an overflow leaves of a group of 32 or 256 elements of token it. */
static void spoil(struct problem *p, unsigned it)
{
    const size_t at = (size_t)it * p->k;
    switch (p->kind) {
    case KERN_ACT_Q8:
        ((float *)p->x.d)[at / 32] = NAN;
        memset((int8_t *)p->x.q + at, 0, 32);
        memset((int16_t *)p->x.s + at / 16, 0, 2 * sizeof(int16_t));
        break;
    case KERN_ACT_Q8_256:
        ((float *)p->x.d256)[at / 256] = NAN;
        memset((int8_t *)p->x.q256 + at, 0, 256);
        memset((int16_t *)p->x.s256 + at / 16, 0, 16 * sizeof(int16_t));
        break;
    default:
        ((float *)p->x.f)[at + 17] = NAN;
        break;
    }
}

static void check_nan(const struct kern *kern, struct problem *p, const uint8_t *panels)
{
    static const unsigned n_tokens[] = {3, 12, 40, 100};
    for (unsigned j = 0; j < ARRAY_LEN(n_tokens); j++) {
        kern->matmul[p->id](panels, N_ROW, &p->x, NULL, NULL, n_tokens[j], p->all, N_ROW);
        for (unsigned i = 0; i < n_tokens[j] * N_ROW; i++) {
            cr_assert_eq(isnan(p->all[i]) != 0, i / N_ROW == 2, "%s %s token %u of %u", kern->isa,
                         p->f->name, i / N_ROW, n_tokens[j]);
        }
    }
}

/* An activation that overflowed spoils its own token, visibly, and no other. */
Test(kern, matmul_keeps_nan_to_its_token)
{
    for (uint32_t id = 0; id < FORMAT_MAX; id++) {
        const struct format *f = format_find(id);
        for (unsigned kind = KERN_ACT_F32; kind <= KERN_ACT_Q8_256; kind++) {
            if (f == NULL || !f->computable || !is_read(id, kind)) {
                continue;
            }
            struct problem p = make_problem(id, f->block_elems == 1 ? 40 : f->block_elems, kind);
            uint8_t *panels = pack(&p, 0, N_ROW);
            spoil(&p, 2);
            FOR_EACH_KERN(kern)
            {
                if (kern->act[id] == kind) {
                    check_nan(kern, &p, panels);
                }
            }
            free(panels);
            free_problem(&p);
        }
    }
}
