/* AMX: quantized panels times int8 activations of many tokens, for formats with one scale to a
 * sub-block and no minima. Tiles make the integer sums; every float operation is that of
 * kernels/avx512/matmul.h, in the same order, so that a prompt computed here and tokens decoded
 * there agree to the bit.
 *
 * A product of tiles multiplies 16 tokens (rows of tile A, as they lie in memory) with 16 rows of
 * weights (columns of tile B: four elements of each row in a line, which is what the registers of
 * a decoded sub-block hold). It may not go further along K than a scale of the activations reaches,
 * 32 elements. The sums, a line of 16 rows for each token, go through a buffer in L1 to vector
 * registers, where scales are applied; while they are, the tiles work on the next 16 tokens.
 *
 * For GROUP panels at once and each span of 256 elements: decode, then walk the tokens. */
#ifndef NUMOE_KERNELS_AMX_MATMUL_H
#define NUMOE_KERNELS_AMX_MATMUL_H

#include "kernels/amx/tile.h"
#include "kernels/avx512/matmul.h"

#define GROUP       2u   /* panels */
#define CHUNK_AMX   128u /* tokens that share one decoding of a span */
#define SUMS        (TILE_TOKENS * PANEL_ROWS) /* of a product of tiles */
#define SPAN_ELEMS  (32u * SPAN)

/* A span of a panel, decoded: quants as signed bytes. */
struct amx_span {
    int8_t q[SPAN][8][64];
    __m512 scale[SPAN];
};

/* Of the tokens of a chunk, in one span. */
struct amx_chunk {
    struct lane lane[CHUNK_AMX];
    int8_t q[TILE_TOKENS * SPAN_ELEMS]; /* rows that do not follow each other, gathered */
    bool contiguous;                    /* tokens lie x_bytes apart */
    size_t x_bytes;
    unsigned nt, tile_tokens; /* tokens; those of all tiles but the last */
};

/* The tokens of a tile and a panel, between the product of tiles and the scales. */
struct amx_step {
    const struct amx_span *w;
    const int8_t *x; /* the first token's activations, the others x_bytes apart */
    size_t x_bytes;
    unsigned t0, nt;
    __m512 *acc;
    int32_t *sum; /* [SPAN, TILE_TOKENS, PANEL_ROWS] */
};

/* ------------------------------------------------------------------ decoding */

KERN_INLINE void amx_sub_decode(enum format_id f, const uint8_t *b, const struct head *h,
                                unsigned j, struct amx_span *out)
{
    const __m512i offset = _mm512_set1_epi8((char)decode_offset(f));
    struct sub w;
    sub_decode(f, b, h, j, &w);
#pragma GCC unroll 8
    for (unsigned i = 0; i < 8; i++) {
        _mm512_store_si512(out->q[j][i], _mm512_sub_epi8(w.q[i], offset));
    }
    out->scale[j] = w.scale[0];
}

KERN_INLINE void amx_span_decode(enum format_id f, const uint8_t *b, unsigned n,
                                 struct amx_span *out)
{
    struct head h;
    if (layout_n_sub(f) == 1) {
#pragma GCC unroll 1
        for (unsigned j = 0; j < n; j++) {
            amx_sub_decode(f, b, &h, j, out);
        }
        return;
    }
    span_head(f, b, &h);
#pragma GCC unroll 8
    for (unsigned j = 0; j < SPAN; j++) {
        amx_sub_decode(f, b, &h, j, out);
    }
}

/* ------------------------------------------------------------------ tiles */

/* Registers are numbers in the instructions, hence a macro: sums in 0 and 1, tokens in 2 and 3,
 * weights in 4 and 5. The barrier holds the stores of what is loaded before it. */
#define TILE_PRODUCT(c, a, b, x, x_bytes, w, sums)                                                 \
    do {                                                                                           \
        __asm__ volatile("" : : : "memory");                                                       \
        _tile_loadd(b, w, 64);                                                                     \
        _tile_loadd(a, x, x_bytes);                                                                \
        _tile_zero(c);                                                                             \
        _tile_dpbssd(c, a, b);                                                                     \
        _tile_stored(c, sums, 64);                                                                 \
    } while (0)

/* The sums of sub-block j. */
KERN_INLINE void step_product(const struct amx_step *s, unsigned j)
{
    const int8_t *x = s->x + 32 * j;
    int32_t *sum = s->sum + (size_t)j * SUMS;
    if (j % 2 == 0) {
        TILE_PRODUCT(0, 2, 4, x, s->x_bytes, s->w->q[j][0], sum);
    } else {
        TILE_PRODUCT(1, 3, 5, x, s->x_bytes, s->w->q[j][0], sum);
    }
}

/* For n_token tokens in rows of A and products of 32 elements. */
KERN_INLINE void tiles_configure(unsigned n_token)
{
    struct tile_config config = {.palette = 1};
    for (unsigned i = 0; i < 6; i++) {
        config.row_bytes[i] = (uint16_t)(i == 2 || i == 3 ? 32 : 64);
        config.rows[i] = (uint8_t)(i < 4 ? n_token : 8);
    }
    tile_load_config(&config);
}

/* ------------------------------------------------------------------ scales */

KERN_INLINE __m512 sums_of(const int32_t *sum)
{
    return _mm512_cvtepi32_ps(_mm512_load_si512(sum));
}

/* Token t of a step: what sub_times_whole() does with the sums of a token, for n sub-blocks. */
KERN_INLINE void step_token(const struct amx_chunk *c, const struct amx_step *s,
                            const __m512 *scale, unsigned t, unsigned i0, unsigned n)
{
    const float *d = c->lane[s->t0 + t].d + i0;
    const int32_t *sum = s->sum + (size_t)t * PANEL_ROWS;
    __m512 acc = s->acc[t];
#pragma GCC unroll 8
    for (unsigned j = 0; j < n; j++) {
        __m512 sd = _mm512_mul_ps(scale[j], _mm512_set1_ps(d[j]));
        acc = _mm512_fmadd_ps(sd, sums_of(sum + (size_t)j * SUMS), acc);
    }
    s->acc[t] = acc;
}

/* The scales of step `now` (none: nt is 0) beside the products of step `next` (NULL: none), n
 * sub-blocks from i0 of K on: two tokens to a product. */
KERN_INLINE void step_both(const struct amx_chunk *c, const struct amx_step *now,
                           const struct amx_step *next, unsigned i0, unsigned n)
{
    __m512 scale[SPAN];
#pragma GCC unroll 8
    for (unsigned i = 0; i < SPAN; i++) {
        scale[i] = now->w->scale[i];
    }
#pragma GCC unroll 8
    for (unsigned j = 0; j < SPAN; j++) {
        if (next != NULL && j < n) {
            step_product(next, j);
        }
#pragma GCC unroll 2
        for (unsigned t = 2 * j; t < 2 * j + 2; t++) {
            if (t < now->nt) {
                step_token(c, now, scale, t, i0, n);
            }
        }
    }
}

/* ------------------------------------------------------------------ a span of a chunk */

/* Tokens t0.. of a tile as rows of A. */
KERN_INLINE void step_tokens(struct amx_chunk *c, unsigned t0, unsigned i0, unsigned n,
                             struct amx_step *s)
{
    const unsigned nt = c->nt - t0 < c->tile_tokens ? c->nt - t0 : c->tile_tokens;
    s->t0 = t0;
    s->nt = nt;
    if (c->contiguous && nt == c->tile_tokens) {
        s->x = c->lane[t0].q + 32 * (size_t)i0;
        s->x_bytes = c->x_bytes;
        return;
    }
    for (unsigned t = 0; t < nt; t++) {
        memcpy(c->q + t * SPAN_ELEMS, c->lane[t0 + t].q + 32 * (size_t)i0, 32 * (size_t)n);
    }
    s->x = c->q;
    s->x_bytes = SPAN_ELEMS;
}

/* acc[panel][token] += the span of n_panel panels times all tokens of the chunk. */
KERN_INLINE void amx_span_times(struct amx_chunk *c, const struct amx_span *w, unsigned n_panel,
                                unsigned i0, unsigned n, __m512 (*acc)[CHUNK_AMX])
{
    int32_t sum[2][SPAN * SUMS] __attribute__((aligned(64)));
    struct amx_step step[2] = {{.w = w, .sum = sum[0]}, {.w = w, .sum = sum[1]}};
    unsigned i = 0;
    for (unsigned t0 = 0; t0 < c->nt; t0 += c->tile_tokens) {
        for (unsigned p = 0; p < n_panel; p++, i ^= 1) {
            struct amx_step *next = &step[i];
            if (p == 0) {
                step_tokens(c, t0, i0, n, next);
            } else {
                *next = (struct amx_step){.x = step[i ^ 1].x,
                                          .x_bytes = step[i ^ 1].x_bytes,
                                          .t0 = t0,
                                          .nt = step[i ^ 1].nt,
                                          .sum = sum[i]};
            }
            next->w = &w[p];
            next->acc = acc[p] + t0;
            step_both(c, &step[i ^ 1], next, i0, n);
        }
    }
    step_both(c, &step[i ^ 1], NULL, i0, n);
}

/* One function for all formats: tiles.c. */
void amx_tiles(struct amx_chunk *c, const struct amx_span *w, unsigned n_panel, unsigned i0,
               unsigned n, __m512 (*acc)[CHUNK_AMX]);

/* ------------------------------------------------------------------ matrices */

/* n_panel panels at b (n_row rows of them exist) times the tokens of a chunk. */
KERN_INLINE void amx_panels(enum format_id f, const uint8_t *b, unsigned n_panel, unsigned n_row,
                            struct amx_chunk *c, unsigned n_sub, const uint32_t *yi, float *y,
                            size_t ldy)
{
    const size_t panel_bytes = n_sub * layout_sub_bytes(f);
    struct amx_span w[GROUP];
    __m512 acc[GROUP][CHUNK_AMX];
    for (unsigned p = 0; p < n_panel; p++) {
        for (unsigned t = 0; t < c->nt; t++) {
            acc[p][t] = _mm512_setzero_ps();
        }
    }
    for (unsigned i = 0, n; i < n_sub; i += n, b += n * layout_sub_bytes(f)) {
        n = n_sub - i < SPAN ? n_sub - i : SPAN;
        for (unsigned p = 0; p < n_panel; p++) {
            amx_span_decode(f, b + p * panel_bytes, n, &w[p]);
        }
        amx_tiles(c, w, n_panel, i, n, acc);
    }
    for (unsigned p = 0; p < n_panel; p++) {
        const __mmask16 mask = panel_mask(n_row, p * PANEL_ROWS);
        for (unsigned t = 0; t < c->nt; t++) {
            _mm512_mask_storeu_ps(y + (yi ? yi[t] : t) * ldy + p * PANEL_ROWS, mask, acc[p][t]);
        }
    }
}

/* Tokens [t0, t0 + nt): in tiles of equal size as far as they go. */
KERN_INLINE void amx_chunk_begin(const struct kern_act *x, const uint32_t *xi, unsigned t0,
                                 unsigned nt, struct amx_chunk *c)
{
    const unsigned n_tile = (nt + TILE_TOKENS - 1) / TILE_TOKENS;
    c->nt = nt;
    c->tile_tokens = (nt + n_tile - 1) / n_tile;
    c->x_bytes = x->k;
    c->contiguous = true;
    for (unsigned t = 0; t < nt; t++) {
        c->lane[t] = lane_at(x, xi, t0 + t);
        c->contiguous = c->contiguous && c->lane[t].q == c->lane[0].q + (size_t)t * x->k;
    }
}

/* The kern_matmul_fn of a format, for AMX_MIN_TOKENS tokens and more. */
KERN_INLINE void amx_matmul(enum format_id f, const void *panels, unsigned n_row,
                            const struct kern_act *x, const uint32_t *xi, const uint32_t *yi,
                            unsigned n_token, float *y, size_t ldy)
{
    const unsigned n_sub = x->k / 32;
    const size_t panel_bytes = n_sub * layout_sub_bytes(f);
    const unsigned n_chunk = (n_token + CHUNK_AMX - 1) / CHUNK_AMX;
    const unsigned chunk_tokens = (n_token + n_chunk - 1) / n_chunk;
    struct amx_chunk c;
    for (unsigned t0 = 0, nt; t0 < n_token; t0 += nt) {
        nt = n_token - t0 < chunk_tokens ? n_token - t0 : chunk_tokens;
        amx_chunk_begin(x, xi, t0, nt, &c);
        tiles_configure(c.tile_tokens);
        for (unsigned row = 0; row < n_row; row += GROUP * PANEL_ROWS) {
            const unsigned n = n_row - row;
            const unsigned n_panel =
                n < GROUP * PANEL_ROWS ? (n + PANEL_ROWS - 1) / PANEL_ROWS : GROUP;
            float *to = y + row + (yi ? 0 : t0 * ldy);
            amx_panels(f, (const uint8_t *)panels + row / PANEL_ROWS * panel_bytes, n_panel, n, &c,
                       n_sub, yi ? yi + t0 : NULL, to, ldy);
        }
    }
    _tile_release();
}

/* Fewer tokens are cheaper without tiles (bench/NOTES.md). */
#define AMX_MIN_TOKENS 64u

/* One instance: what quant.c is made of. `few` is the AVX-512 function of the format. */
#define AMX_MATMUL(f)                                                                              \
    static kern_matmul_fn *few_##f;                                                                \
    static void matmul_##f(const void *panels, unsigned n_row, const struct kern_act *x,           \
                           const uint32_t *xi, const uint32_t *yi, unsigned n_token, float *y,     \
                           size_t ldy)                                                             \
    {                                                                                              \
        if (n_token < AMX_MIN_TOKENS) {                                                            \
            few_##f(panels, n_row, x, xi, yi, n_token, y, ldy);                                    \
        } else {                                                                                   \
            amx_matmul(FORMAT_##f, panels, n_row, x, xi, yi, n_token, y, ldy);                     \
        }                                                                                          \
    }

#define AMX_FILL(f)                                                                                \
    few_##f = kern->matmul[FORMAT_##f];                                                            \
    kern->matmul[FORMAT_##f] = matmul_##f;

#endif
