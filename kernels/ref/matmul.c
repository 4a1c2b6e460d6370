/* Reference matrix products: the formulas of kernels/kern.h, one function for quantized formats on
 * top of their decoders and one for float formats. The same few lines serve all formats, so a
 * format is right here as soon as its decoder is. */
#include "kernels/ref/ref.h"

#include <string.h>

#include "base/mem.h"

/* Tokens that share one decoding of a row. */
#define TILE 32u

static size_t pick(const uint32_t *index, unsigned it)
{
    return index != NULL ? index[it] : it;
}

/* ------------------------------------------------------------------ quantized */

static int32_t dot16(const int8_t *a, const int8_t *b)
{
    int32_t sum = 0;
    for (unsigned i = 0; i < 16; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

/* A block of a row times the same elements of an activation. */
static float block_product(const struct format_ints *w, unsigned n_group, const int8_t *xq,
                           const float *xd, const int16_t *xs, float acc)
{
    float t = 0, u = 0;
    for (unsigned g = 0; g < n_group; g++) {
        int32_t sum = w->scale[2 * g] * dot16(w->q + 32 * g, xq + 32 * g) +
                      w->scale[2 * g + 1] * dot16(w->q + 32 * g + 16, xq + 32 * g + 16);
        t += xd[g] * (float)sum;
    }
    acc += w->d * t;
    if (w->dmin != 0) {
        for (unsigned g = 0; g < n_group; g++) {
            u += xd[g] * (float)(w->min[2 * g] * xs[2 * g] + w->min[2 * g + 1] * xs[2 * g + 1]);
        }
        acc -= w->dmin * u;
    }
    return acc;
}

/* Row r of a panel times tokens it0.. (n_token <= TILE of them). */
static void quant_row(const struct format *f, const uint8_t *panel, unsigned r,
                      const struct kern_act *x, const uint32_t *xi, unsigned it0, unsigned n_token,
                      float *acc)
{
    uint8_t block[256]; /* the largest that is computed with is 210 bytes */
    memset(acc, 0, n_token * sizeof(*acc));
    for (size_t i = 0; i < x->k; i += f->block_elems) {
        struct format_ints w;
        format_unpack_row(f, panel, r, f->block_elems, block);
        f->decode(block, &w);
        for (unsigned it = 0; it < n_token; it++) {
            size_t at = pick(xi, it0 + it) * x->k + i;
            acc[it] = block_product(&w, f->block_elems / 32u, x->q + at, x->d + at / 32,
                                    x->s + at / 16, acc[it]);
        }
        panel += (size_t)f->block_bytes * PANEL_ROWS;
    }
}

static void matmul_quant(uint32_t id, const void *panels, unsigned n_row, const struct kern_act *x,
                         const uint32_t *xi, const uint32_t *yi, unsigned n_token, float *y,
                         size_t ldy)
{
    const struct format *f = format_find(id);
    size_t panel_bytes = format_row_bytes(f, x->k) * PANEL_ROWS;

    for (unsigned it0 = 0; it0 < n_token; it0 += TILE) {
        unsigned n = MIN(TILE, n_token - it0);
        for (unsigned r = 0; r < n_row; r++) {
            float acc[TILE];
            quant_row(f, (const uint8_t *)panels + r / PANEL_ROWS * panel_bytes, r % PANEL_ROWS, x,
                      xi, it0, n, acc);
            for (unsigned it = 0; it < n; it++) {
                y[pick(yi, it0 + it) * ldy + r] = acc[it];
            }
        }
    }
}

/* ------------------------------------------------------------------ floats */

#define CHUNK 32u /* elements of K whose conversion the tokens of a tile share */

/* n elements of 16 rows as floats. */
static void convert_chunk(uint32_t id, const uint8_t *from, unsigned n, float (*w)[PANEL_ROWS])
{
    if (id == FORMAT_F32) {
        memcpy(w, from, n * sizeof(*w));
        return;
    }
    for (unsigned i = 0; i < n * PANEL_ROWS; i++) {
        uint16_t h;
        memcpy(&h, from + 2 * i, 2);
        w[i / PANEL_ROWS][i % PANEL_ROWS] =
            id == FORMAT_F16 ? format_f16_to_f32(h) : format_bf16_to_f32(h);
    }
}

static void float_panel(uint32_t id, const uint8_t *panel, const struct kern_act *x,
                        const uint32_t *xi, unsigned it0, unsigned n_token,
                        float (*acc)[PANEL_ROWS])
{
    size_t unit_bytes = format_find(id)->block_bytes * PANEL_ROWS;
    memset(acc, 0, n_token * sizeof(*acc));
    for (size_t i0 = 0; i0 < x->k; i0 += CHUNK) {
        unsigned n = (unsigned)MIN(CHUNK, x->k - i0);
        float w[CHUNK][PANEL_ROWS];
        convert_chunk(id, panel + i0 * unit_bytes, n, w);
        for (unsigned it = 0; it < n_token; it++) {
            const float *xf = x->f + pick(xi, it0 + it) * x->k + i0;
            for (unsigned i = 0; i < n; i++) {
                for (unsigned r = 0; r < PANEL_ROWS; r++) {
                    acc[it][r] += w[i][r] * xf[i];
                }
            }
        }
    }
}

static void matmul_float(uint32_t id, const void *panels, unsigned n_row, const struct kern_act *x,
                         const uint32_t *xi, const uint32_t *yi, unsigned n_token, float *y,
                         size_t ldy)
{
    size_t panel_bytes = format_row_bytes(format_find(id), x->k) * PANEL_ROWS;
    for (unsigned it0 = 0; it0 < n_token; it0 += TILE) {
        unsigned n = MIN(TILE, n_token - it0);
        for (unsigned r0 = 0; r0 < n_row; r0 += PANEL_ROWS) {
            float acc[TILE][PANEL_ROWS];
            float_panel(id, (const uint8_t *)panels + r0 / PANEL_ROWS * panel_bytes, x, xi, it0, n,
                        acc);
            for (unsigned it = 0; it < n; it++) {
                memcpy(y + pick(yi, it0 + it) * ldy + r0, acc[it],
                       MIN(PANEL_ROWS, n_row - r0) * sizeof(*y));
            }
        }
    }
}

/* ------------------------------------------------------------------ table */

/* The functions of the table do not say which format they are for: one of each. */
#define MATMUL(FAMILY, ID)                                                                         \
    static void matmul_##ID(const void *panels, unsigned n_row, const struct kern_act *x,          \
                            const uint32_t *xi, const uint32_t *yi, unsigned n_token, float *y,    \
                            size_t ldy)                                                            \
    {                                                                                              \
        matmul_##FAMILY(FORMAT_##ID, panels, n_row, x, xi, yi, n_token, y, ldy);                   \
    }

/* clang-format off */
#define FOR_EACH_FORMAT(DO)                                                                        \
    DO(float, F32) DO(float, F16) DO(float, BF16)                                                  \
    DO(quant, Q4_0) DO(quant, Q4_1) DO(quant, Q5_0) DO(quant, Q5_1) DO(quant, Q8_0)                \
    DO(quant, Q2_K) DO(quant, Q3_K) DO(quant, Q4_K) DO(quant, Q5_K) DO(quant, Q6_K)                \
    DO(quant, IQ1_S) DO(quant, IQ1_M) DO(quant, IQ2_XXS) DO(quant, IQ2_XS) DO(quant, IQ2_S)        \
    DO(quant, IQ3_XXS) DO(quant, IQ3_S) DO(quant, IQ4_NL) DO(quant, IQ4_XS)                        \
    DO(quant, TQ1_0) DO(quant, TQ2_0) DO(quant, MXFP4)
/* clang-format on */

FOR_EACH_FORMAT(MATMUL)

#define ACT_float KERN_ACT_F32
#define ACT_quant KERN_ACT_Q8
#define FILL(FAMILY, ID)                                                                           \
    kern->matmul[FORMAT_##ID] = matmul_##ID;                                                       \
    kern->act[FORMAT_##ID] = ACT_##FAMILY;

void ref_fill_matmul(struct kern *kern)
{
    FOR_EACH_FORMAT(FILL)
}
