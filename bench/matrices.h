/* What the benches of matrix kernels share: random weights of a format, activations, the product of
 * a team of threads and how far it is from float64, the peak of the multiply instructions, and
 * options that are lists. */
#ifndef NUMOE_BENCH_MATRICES_H
#define NUMOE_BENCH_MATRICES_H

#include <math.h>

#include "base/mem.h"
#include "bench/inputs.h"
#include "bench/peaks.h"
#include "kernels/select.h"

#define SAMPLE_ROWS 64u /* random rows; the matrix repeats them */
#define REPEATS_MAX 99u

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

/* As many rows of k elements as fit `bytes`, a multiple of SAMPLE_ROWS. */
static void weights_make(struct weights *w, uint32_t id, unsigned k, size_t bytes)
{
    const struct format *f = format_find(id);
    size_t row_bytes = format_row_bytes(f, k);
    *w = (struct weights){.id = id, .format = f, .panel_bytes = row_bytes * PANEL_ROWS};
    w->n_row = (unsigned)(bytes / row_bytes / SAMPLE_ROWS) * SAMPLE_ROWS;
    w->rows = map_memory(row_bytes * SAMPLE_ROWS);
    w->panels = map_memory(row_bytes * w->n_row);
    for (size_t i = 0; i < row_bytes * SAMPLE_ROWS; i += f->block_bytes) {
        random_block(id, f, w->rows + i);
    }
    for (unsigned r = 0; r < SAMPLE_ROWS; r += PANEL_ROWS) {
        format_pack_panel(f, w->rows + r * row_bytes, row_bytes, PANEL_ROWS, k,
                          w->panels + r * row_bytes);
    }
    for (unsigned r = SAMPLE_ROWS; r < w->n_row; r += SAMPLE_ROWS) {
        memcpy(w->panels + r * row_bytes, w->panels, row_bytes * SAMPLE_ROWS);
    }
}

static void weights_free(struct weights *w, unsigned k)
{
    size_t row_bytes = format_row_bytes(w->format, k);
    munmap(w->rows, row_bytes * SAMPLE_ROWS);
    munmap(w->panels, row_bytes * w->n_row);
}

/* ------------------------------------------------------------------ activations */

static void act_make_256(struct kern_act *a, const struct kern *kern, unsigned n)
{
    const size_t all = (size_t)n * a->k;
    int8_t *q = map_memory(all);
    float *d = map_memory(sizeof(float) * (all / 256));
    int16_t *s = map_memory(sizeof(int16_t) * (all / 16));
    kern->quantize_256(a->f, all, q, d, s);
    a->q256 = q;
    a->d256 = d;
    a->s256 = s;
}

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
    *a = (struct kern_act){.k = k, .f = f, .q = q, .d = d, .s = s};
    if (kern->quantize_256 != NULL && k % 256 == 0) {
        act_make_256(a, kern, n);
    }
}

static void act_free(struct kern_act *a, unsigned n)
{
    munmap((void *)a->f, sizeof(float) * n * a->k);
    munmap((void *)a->d, sizeof(float) * n * (a->k / 32));
    munmap((void *)a->q, (size_t)n * a->k);
    munmap((void *)a->s, sizeof(int16_t) * n * (a->k / 16));
    if (a->q256 != NULL) {
        munmap((void *)a->q256, (size_t)n * a->k);
        munmap((void *)a->d256, sizeof(float) * n * (a->k / 256));
        munmap((void *)a->s256, sizeof(int16_t) * n * (a->k / 16));
    }
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

/* An element as the kernels get it. */
static double act_at(const struct kern_act *a, enum kern_act_kind kind, size_t i)
{
    switch (kind) {
    case KERN_ACT_Q8:
        return (double)a->d[i / 32] * a->q[i];
    case KERN_ACT_Q8_256:
        return (double)a->d256[i / 256] * a->q256[i];
    default:
        return a->f[i];
    }
}

/* y of the sample rows against float64, relative root mean squares: [0] with the activations as
 * they were, [1] as the kernel gets them. */
static void job_error(const struct job *j, double error[2])
{
    const struct kern_act *a = &j->act;
    size_t row_bytes = format_row_bytes(j->w->format, a->k);
    float *w = map_memory(sizeof(float) * a->k);
    const enum kern_act_kind kind = j->kern->act[j->w->id];
    double off[2] = {0, 0}, all = 0;
    for (unsigned r = 0; r < SAMPLE_ROWS && r < j->n_row; r++) {
        format_dequant_row(j->w->format, j->w->rows + r * row_bytes, a->k, w);
        for (unsigned t = 0; t < MIN(j->n_token, 4u); t++) {
            double exact = 0, quant = 0;
            for (size_t i = 0, at = (size_t)t * a->k; i < a->k; i++, at++) {
                exact += (double)w[i] * a->f[at];
                quant += (double)w[i] * act_at(a, kind, at);
            }
            double y = j->y[(size_t)t * j->n_row + r];
            off[0] += (y - exact) * (y - exact);
            off[1] += (y - quant) * (y - quant);
            all += exact * exact;
        }
    }
    error[0] = sqrt(off[0] / all);
    error[1] = kind != KERN_ACT_F32 ? sqrt(off[1] / all) : error[0];
    munmap(w, sizeof(float) * a->k);
}

static double job_bytes(const struct job *j)
{
    return (double)j->n_row / PANEL_ROWS * (double)j->w->panel_bytes * j->passes;
}

/* ------------------------------------------------------------------ options */

/* What gemv and gemm are told alike. */
struct matrix_options {
    const char *formats, *isas; /* lists; formats NULL: all */
    unsigned tokens[LIST_MAX], n_tokens, threads[LIST_MAX], n_threads;
    unsigned k, repeats;
    size_t cold_bytes;
    bool csv;
};

#define MATRIX_OPTIONS                                                                             \
    {"formats", 1, NULL, 'f'}, {"isa", 1, NULL, 'i'}, {"tokens", 1, NULL, 't'},                    \
        {"threads", 1, NULL, 'j'}, {"k", 1, NULL, 'k'}, {"cold", 1, NULL, 'c'},                    \
        {"repeats", 1, NULL, 'r'},                                                                 \
    {                                                                                              \
        "csv", 0, NULL, 'v'                                                                        \
    }

/* False: none of them. */
static bool matrix_option(struct matrix_options *o, int c, const char *value)
{
    switch (c) {
    case 'f':
        o->formats = value;
        return true;
    case 'i':
        o->isas = value;
        return true;
    case 't':
        o->n_tokens = list_of_numbers(value, 4096, o->tokens);
        return true;
    case 'j':
        o->n_threads = list_of_numbers(value, TEAM_MAX, o->threads);
        return true;
    case 'k':
        o->k = (unsigned)number(value, 1u << 20);
        return true;
    case 'c':
        o->cold_bytes = number(value, 1u << 20) << 20;
        return true;
    case 'r':
        o->repeats = (unsigned)number(value, REPEATS_MAX);
        return true;
    case 'v':
        o->csv = true;
        return true;
    default:
        return false;
    }
}

#endif
