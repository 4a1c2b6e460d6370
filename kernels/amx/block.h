/* AMX: K-quants times int8 activations with one scale to 256 elements, in integers as far as a
 * block goes. Of a block of 256 elements of a row, and the same of a token:
 *
 *     v = sum over sub-blocks (or halves) of scale * (sum of (q - offset) * x)      exact, 32 bits
 *     u = sum over sub-blocks (or halves) of min * (sum of x)                       exact, 32 bits
 *     acc = fma(d * d_x, float(v), acc), then with minima acc = fma(dmin * d_x, float(u), acc)
 *
 * Few tokens are multiplied as kernels/avx512 does it, with the integer scale applied to each sum
 * of products. For many, tiles make v: weights are multiplied with their scales when they are
 * decoded, which takes more than 8 bits, so they come as two planes of bytes with
 * v = low + (high << shift). Then a block of 16 rows and 16 tokens costs 8 products of tiles and
 * one line of float operations a token, where one scale to 32 elements costs 8 of both. Integers
 * are exact, so both ways give the same bits. */
#ifndef NUMOE_KERNELS_AMX_BLOCK_H
#define NUMOE_KERNELS_AMX_BLOCK_H

#include "kernels/amx/tile.h"
#include "kernels/avx512/matmul.h"

#define BLOCK_ELEMS 256u
#define BLOCK_CHUNK 64u /* tokens that share one decoding of a block */
#define GROUP       8u  /* panels that share one gathering of tokens */

/* How the tiles take the weights of a format. */
struct planes {
    unsigned n, shift;
    bool is_signed, has_min;
};

KERN_INLINE struct planes planes_of(enum format_id f)
{
    switch (f) {
    case FORMAT_Q2_K: /* 3 * 15 */
        return (struct planes){1, 0, false, true};
    case FORMAT_Q4_K: /* 15 and 31 by the halves of 6 bits */
    case FORMAT_Q5_K:
        return (struct planes){2, 3, false, true};
    default: /* Q3_K, Q6_K: 13 bits and a sign */
        return (struct planes){2, 7, true, false};
    }
}

/* ------------------------------------------------------------------ scales */

/* Of a sub-block, for each row: the scale of each half (both the same where there is one), and the
 * mins of both as a pair of 16 bits. */
struct ints {
    __m512i scale[2], min;
};

KERN_INLINE __m512i pair_of(__m512i low, __m512i high)
{
    return _mm512_mask_blend_epi16(0xaaaaaaaa, low, _mm512_slli_epi32(high, 16));
}

KERN_INLINE __m512i bytes16_to_int(const uint8_t *p)
{
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p));
}

KERN_INLINE void ints_decode(enum format_id f, const uint8_t *b, const struct head *h, unsigned j,
                             struct ints *s)
{
    if (f == FORMAT_Q4_K || f == FORMAT_Q5_K) {
        const __m512i m = lane_bytes(h->min[j / 4], j % 4);
        s->scale[0] = s->scale[1] = lane_bytes(h->scale[j / 4], j % 4);
        s->min = pair_of(m, m);
        return;
    }
    __m512i v[2];
#pragma GCC unroll 2
    for (unsigned i = 0; i < 2; i++) {
        if (f == FORMAT_Q3_K) {
            v[i] = lane_bytes(h->scale[(2 * j + i) / 4], (2 * j + i) % 4);
            s->scale[i] = _mm512_sub_epi32(v[i], _mm512_set1_epi32(32));
        } else if (f == FORMAT_Q6_K) {
            s->scale[i] = bytes16_to_int(b + 16 * (2 + 2 * j + i));
        } else { /* Q2_K */
            v[i] = bytes16_to_int(b + 16 * (4 + 2 * j + i));
            s->scale[i] = _mm512_and_si512(v[i], _mm512_set1_epi32(15));
            v[i] = _mm512_and_si512(_mm512_srli_epi32(v[i], 4), _mm512_set1_epi32(15));
        }
    }
    if (f == FORMAT_Q2_K) {
        s->min = pair_of(v[0], v[1]);
    }
}

/* What follows the sums of a block. */
struct ends {
    __m512 d, m;
    __m512i min[SPAN];
};

/* acc and a block's sums, for a token with scale dx and sums of 16 elements at s. */
KERN_INLINE __m512 block_end(bool has_min, const struct ends *e, __m512i v, float dx,
                             const int16_t *s, __m512 acc)
{
    const __m512 x = _mm512_set1_ps(dx);
    acc = _mm512_fmadd_ps(_mm512_mul_ps(e->d, x), _mm512_cvtepi32_ps(v), acc);
    if (has_min) {
        __m512i u[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
#pragma GCC unroll 8
        for (unsigned j = 0; j < SPAN; j++) {
            u[j % 2] = _mm512_dpwssd_epi32(u[j % 2], e->min[j], word_of((const int8_t *)&s[2 * j]));
        }
        const __m512 sum = _mm512_cvtepi32_ps(_mm512_add_epi32(u[0], u[1]));
        acc = _mm512_fmadd_ps(_mm512_mul_ps(e->m, x), sum, acc);
    }
    return acc;
}

/* ------------------------------------------------------------------ tokens */

KERN_INLINE struct lane block_lane(const struct kern_act *x, const uint32_t *xi, unsigned t)
{
    const size_t i = xi ? xi[t] : t;
    return (struct lane){x->q256 + i * x->k, x->d256 + i * (x->k / BLOCK_ELEMS),
                         x->s256 + i * (x->k / 16)};
}

/* What takes the offset off the sums of token x in block i. */
KERN_INLINE void offsets_make(struct kind kind, const struct lane *x, unsigned i, int32_t *offset)
{
    if (kind.has_offset) {
        const __m256i s = _mm256_loadu_si256((const __m256i *)(x->s + 2 * SPAN * (size_t)i));
        _mm512_storeu_si512(
            offset, _mm512_mullo_epi32(_mm512_cvtepi16_epi32(s), _mm512_set1_epi32(-kind.offset)));
    }
}

/* ------------------------------------------------------------------ few tokens */

/* sum[t] += q[i0..i1), elements of sub-block j, times tokens, times scale; begin[t] is what their
 * offset comes to. */
KERN_INLINE void part_times(struct kind kind, const struct sub *w, __m512i scale,
                            const int8_t *const *x, const int32_t (*offset)[2 * SPAN], unsigned i,
                            unsigned at, unsigned i0, unsigned i1, unsigned nt, __m512i *sum)
{
    __m512i dot[TILE], more[TILE];
#pragma GCC unroll 8
    for (unsigned t = 0; t < nt; t++) {
        dot[t] = kind.has_offset ? _mm512_set1_epi32(offset[t][i]) : _mm512_setzero_si512();
        more[t] = _mm512_setzero_si512();
    }
    if (nt <= 2) { /* two chains for each token, one would be slower than the pipeline */
#pragma GCC unroll 4
        for (unsigned k = i0; k < (i0 + i1) / 2; k++) {
            add_dots(kind, w->q, x, at, k, k + 1, nt, dot);
            add_dots(kind, w->q, x, at, k + (i1 - i0) / 2, k + (i1 - i0) / 2 + 1, nt, more);
        }
    } else {
        add_dots(kind, w->q, x, at, i0, i1, nt, dot);
    }
#pragma GCC unroll 8
    for (unsigned t = 0; t < nt; t++) {
        dot[t] = nt <= 2 ? _mm512_add_epi32(dot[t], more[t]) : dot[t];
        sum[t] = _mm512_add_epi32(sum[t], _mm512_mullo_epi32(dot[t], scale));
    }
}

KERN_INLINE void sub_times_ints(struct kind kind, const struct sub *w, const __m512i *scale,
                                const int8_t *const *x, const int32_t (*offset)[2 * SPAN],
                                unsigned j, unsigned nt, __m512i *sum)
{
    if (kind.n_scale == 1) {
        part_times(kind, w, scale[0], x, offset, j, 32 * j, 0, 8, nt, sum);
    } else {
        part_times(kind, w, scale[0], x, offset, 2 * j, 32 * j, 0, 4, nt, sum);
        part_times(kind, w, scale[1], x, offset, 2 * j + 1, 32 * j, 4, 8, nt, sum);
    }
}

KERN_INLINE void ends_make(const struct head *h, bool has_min, struct ends *e)
{
    e->d = h->d;
    if (has_min) {
        e->m = h->m;
    }
}

/* acc[t] += block i at b times nt tokens, straight from the registers it is decoded to. */
KERN_INLINE void block_few(enum format_id f, const uint8_t *b, const struct lane *lane, unsigned nt,
                           unsigned i, __m512 *acc)
{
    const struct kind kind = kind_of(f);
    const int8_t *x[TILE];
    int32_t offset[TILE][2 * SPAN];
    __m512i sum[TILE];
    struct ends e;
    struct head h;
    struct sub w;
    struct ints c;
#pragma GCC unroll 8
    for (unsigned t = 0; t < nt; t++) {
        offsets_make(kind, &lane[t], i, offset[t]);
        x[t] = lane[t].q + BLOCK_ELEMS * (size_t)i;
        sum[t] = _mm512_setzero_si512();
    }
    span_head(f, b, &h);
    ends_make(&h, kind.has_min, &e);
#pragma GCC unroll 8
    for (unsigned j = 0; j < SPAN; j++) {
        sub_decode(f, b, &h, j, &w);
        ints_decode(f, b, &h, j, &c);
        e.min[j] = c.min;
        sub_times_ints(kind, &w, c.scale, x, offset, j, nt, sum);
    }
#pragma GCC unroll 8
    for (unsigned t = 0; t < nt; t++) {
        acc[t] = block_end(kind.has_min, &e, sum[t], lane[t].d[i], lane[t].s + 2 * SPAN * (size_t)i,
                           acc[t]);
    }
}

/* A panel times the first n_real of nt tokens; the others only fill up the number that there is
 * code for. yi and y are those of the first token. */
KERN_INLINE void panel_few(enum format_id f, const uint8_t *b, __mmask16 mask, unsigned n_block,
                           const struct lane *lane, unsigned nt, unsigned n_real,
                           const uint32_t *yi, float *y, size_t ldy)
{
    __m512 acc[TILE];
    struct lane x[TILE];
#pragma GCC unroll 8
    for (unsigned t = 0; t < nt; t++) {
        x[t] = lane[t < n_real ? t : n_real - 1];
        acc[t] = _mm512_setzero_ps();
    }
    for (unsigned i = 0; i < n_block; i++, b += layout_bytes(f)) {
        block_few(f, b, x, nt, i, acc);
    }
#pragma GCC unroll 8
    for (unsigned t = 0; t < nt; t++) {
        if (t < n_real) {
            _mm512_mask_storeu_ps(y + (yi ? yi[t] : t) * ldy, mask, acc[t]);
        }
    }
}

/* Up to BLOCK_CHUNK tokens without tiles. */
KERN_INLINE void matmul_few_blocks(enum format_id f, const uint8_t *b, unsigned n_row,
                                   const struct kern_act *x, const uint32_t *xi, const uint32_t *yi,
                                   unsigned nt, float *y, size_t ldy)
{
    const unsigned n_block = x->k / BLOCK_ELEMS;
    struct lane lane[BLOCK_CHUNK];
    for (unsigned t = 0; t < nt; t++) {
        lane[t] = block_lane(x, xi, t);
    }
    for (unsigned row = 0; row < n_row; row += PANEL_ROWS, b += n_block * layout_bytes(f)) {
        const __mmask16 mask = panel_mask(n_row, row);
        for (unsigned t = 0, n; t < nt; t += n) {
            const struct lane *l = &lane[t];
            const uint32_t *to = yi ? yi + t : NULL;
            float *out = y + row + (yi ? 0 : t * ldy);
            n = nt - t < TILE ? nt - t : TILE;
            switch (n) {
            case 1:
                panel_few(f, b, mask, n_block, l, 1, n, to, out, ldy);
                break;
            case 2:
                panel_few(f, b, mask, n_block, l, 2, n, to, out, ldy);
                break;
            case 3:
            case 4:
                panel_few(f, b, mask, n_block, l, 4, n, to, out, ldy);
                break;
            default:
                panel_few(f, b, mask, n_block, l, 8, n, to, out, ldy);
                break;
            }
        }
    }
}

/* ------------------------------------------------------------------ planes */

/* A block of a panel as tiles take it: four tiles of 64 elements of K a plane. */
struct block_planes {
    uint8_t plane[2][4][16][64];
};

/* Bytes a (even) and b (odd) of 16-bit numbers. */
KERN_INLINE __m512i bytes_of(__m512i a, __m512i b)
{
    return bit_select(_mm512_set1_epi16(0x00ff), a, b);
}

/* Products below 256 in both bytes: no carry from the even one to the odd one. */
KERN_INLINE void planes_unsigned(__m512i q, __m512i scale, struct planes p, __m512i out[2])
{
    const __m512i s = pair_of(scale, scale);
    if (p.n == 1) {
        out[0] = _mm512_mullo_epi16(q, s);
        return;
    }
    out[0] = _mm512_mullo_epi16(q, _mm512_and_si512(s, _mm512_set1_epi16(7)));
    out[1] = _mm512_mullo_epi16(q, _mm512_srli_epi16(s, 3));
}

KERN_INLINE void planes_signed(__m512i q, __m512i scale, int offset, __m512i out[2])
{
    const __m512i s = pair_of(scale, scale), o = _mm512_set1_epi16((short)offset);
    const __m512i low = _mm512_set1_epi16(0x00ff);
    __m512i even = _mm512_sub_epi16(_mm512_and_si512(q, low), o);
    __m512i odd = _mm512_sub_epi16(_mm512_srli_epi16(q, 8), o);
    even = _mm512_mullo_epi16(even, s);
    odd = _mm512_mullo_epi16(odd, s);
    out[0] = _mm512_and_si512(bytes_of(even, _mm512_slli_epi16(odd, 8)), _mm512_set1_epi8(0x7f));
    out[1] = bytes_of(_mm512_srai_epi16(even, 7), _mm512_slli_epi16(odd, 1));
}

KERN_INLINE void planes_decode(enum format_id f, const uint8_t *b, struct block_planes *out,
                               struct ends *e)
{
    const struct planes p = planes_of(f);
    struct head h;
    struct sub w;
    struct ints c;
    span_head(f, b, &h);
    ends_make(&h, p.has_min, e);
#pragma GCC unroll 8
    for (unsigned j = 0; j < SPAN; j++) {
        sub_decode(f, b, &h, j, &w);
        ints_decode(f, b, &h, j, &c);
        if (p.has_min) {
            e->min[j] = c.min;
        }
#pragma GCC unroll 8
        for (unsigned i = 0; i < 8; i++) {
            __m512i plane[2];
            if (p.is_signed) {
                planes_signed(w.q[i], c.scale[i / 4], decode_offset(f), plane);
            } else {
                planes_unsigned(w.q[i], c.scale[i / 4], p, plane);
            }
#pragma GCC unroll 2
            for (unsigned k = 0; k < p.n; k++) {
                _mm512_store_si512(out->plane[k][j / 2][j % 2 * 8 + i], plane[k]);
            }
        }
    }
}

/* ------------------------------------------------------------------ tiles */

/* Tokens of a chunk; of each the block that is multiplied, since as they lie in memory a few sets
 * of the cache would have to hold them all. */
struct block_chunk {
    int8_t q[BLOCK_CHUNK][BLOCK_ELEMS] __attribute__((aligned(64)));
    int16_t s[BLOCK_CHUNK][2 * SPAN];
    float d[BLOCK_CHUNK];
    struct lane lane[BLOCK_CHUNK];
    unsigned nt;
};

/* A panel's block and all tokens of a chunk, between the products and the scales. */
struct block_step {
    struct ends e;
    __m512 *acc; /* NULL: nothing was multiplied yet */
    int32_t sum[2][BLOCK_CHUNK / TILE_TOKENS][TILE_TOKENS * PANEL_ROWS]
        __attribute__((aligned(64)));
};

/* Rows of A are tokens, columns of B rows of weights. Registers are numbers in the instructions:
 * sums in 0 and 1 by turns, the four tiles of a plane in 2 to 5, tokens in 6 and 7 by turns. */
KERN_INLINE void blocks_configure(void)
{
    struct tile_config config = {.palette = 1};
    for (unsigned i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = 16;
    }
    tile_load_config(&config);
}

#define BLOCK_DP(is_signed, c, a, b)                                                               \
    do {                                                                                           \
        if (is_signed) {                                                                           \
            _tile_dpbssd(c, a, b);                                                                 \
        } else {                                                                                   \
            _tile_dpbsud(c, a, b);                                                                 \
        }                                                                                          \
    } while (0)

#define TILE_SUMS(is_signed, c, x, sum)                                                            \
    do {                                                                                           \
        __asm__ volatile("" : : : "memory");                                                       \
        _tile_zero(c);                                                                             \
        _tile_loadd(6, x, BLOCK_ELEMS);                                                            \
        BLOCK_DP(is_signed, c, 6, 2);                                                              \
        _tile_loadd(7, (x) + 64, BLOCK_ELEMS);                                                     \
        BLOCK_DP(is_signed, c, 7, 3);                                                              \
        _tile_loadd(6, (x) + 128, BLOCK_ELEMS);                                                    \
        BLOCK_DP(is_signed, c, 6, 4);                                                              \
        _tile_loadd(7, (x) + 192, BLOCK_ELEMS);                                                    \
        BLOCK_DP(is_signed, c, 7, 5);                                                              \
        _tile_stored(c, sum, 64);                                                                  \
        __asm__ volatile("" : : : "memory");                                                       \
    } while (0)

/* Token t: its sums go to acc. */
KERN_INLINE void step_end(struct planes p, const struct block_chunk *c, const struct block_step *s,
                          const struct ends *e, unsigned t)
{
    const unsigned tile = t / TILE_TOKENS, at = t % TILE_TOKENS * PANEL_ROWS;
    __m512i v = _mm512_load_si512(s->sum[0][tile] + at);
    if (p.n == 2) {
        const __m512i high = _mm512_load_si512(s->sum[1][tile] + at);
        v = _mm512_add_epi32(v, _mm512_slli_epi32(high, p.shift));
    }
    s->acc[t] = block_end(p.has_min, e, v, c->d[t], c->s[t], s->acc[t]);
}

/* The products of a panel's block, which go to `next`, beside the end of the panel before. */
KERN_INLINE void panel_times(struct planes p, const struct block_chunk *c,
                             const struct block_planes *w, const struct block_step *now,
                             struct block_step *next)
{
    const struct ends e = now->e; /* in registers: the barriers end what memory is known to be */
    const unsigned nt = now->acc != NULL ? c->nt : 0, n = TILE_TOKENS / p.n;
#pragma GCC unroll 2
    for (unsigned ip = 0; ip < p.n; ip++) {
        _tile_loadd(2, w->plane[ip][0], 64);
        _tile_loadd(3, w->plane[ip][1], 64);
        _tile_loadd(4, w->plane[ip][2], 64);
        _tile_loadd(5, w->plane[ip][3], 64);
        for (unsigned t = 0; t < c->nt; t += TILE_TOKENS) {
            if (t / TILE_TOKENS % 2 == 0) {
                TILE_SUMS(p.is_signed, 0, c->q[t], next->sum[ip][t / TILE_TOKENS]);
            } else {
                TILE_SUMS(p.is_signed, 1, c->q[t], next->sum[ip][t / TILE_TOKENS]);
            }
            for (unsigned k = t + ip * n; k < t + (ip + 1) * n && k < nt; k++) {
                step_end(p, c, now, &e, k);
            }
        }
    }
}

/* The end of the last panel. */
KERN_INLINE void panel_end(struct planes p, const struct block_chunk *c,
                           const struct block_step *now)
{
    const struct ends e = now->e;
    for (unsigned t = 0; t < c->nt; t++) {
        step_end(p, c, now, &e, t);
    }
}

KERN_INLINE void chunk_gather(struct block_chunk *c, unsigned i)
{
    for (unsigned t = 0; t < c->nt; t++) {
        const int8_t *from = c->lane[t].q + BLOCK_ELEMS * (size_t)i;
#pragma GCC unroll 4
        for (unsigned k = 0; k < BLOCK_ELEMS; k += 64) {
            _mm512_store_si512(c->q[t] + k, _mm512_loadu_si512(from + k));
        }
        memcpy(c->s[t], c->lane[t].s + 2 * SPAN * (size_t)i, sizeof c->s[t]);
        c->d[t] = c->lane[t].d[i];
    }
}

/* Both for all formats of a kind: block-tiles.c. */
struct block_kind {
    void (*times)(const struct block_chunk *c, const struct block_planes *w,
                  const struct block_step *now, struct block_step *next);
    void (*end)(const struct block_chunk *c, const struct block_step *now);
};
extern const struct block_kind amx_blocks_one, amx_blocks_halves, amx_blocks_signed;

/* ------------------------------------------------------------------ matrices */

/* n_panel panels at b (n_row rows of them exist) times the tokens of a chunk. */
KERN_INLINE void block_panels(enum format_id f, const struct block_kind *kind, const uint8_t *b,
                              unsigned n_panel, unsigned n_row, struct block_chunk *c,
                              unsigned n_block, const uint32_t *yi, float *y, size_t ldy)
{
    struct block_planes w;
    struct block_step step[2];
    __m512 acc[GROUP][BLOCK_CHUNK];
    for (unsigned ip = 0; ip < n_panel; ip++) {
        for (unsigned t = 0; t < c->nt; t++) {
            acc[ip][t] = _mm512_setzero_ps();
        }
    }
    for (unsigned i = 0; i < n_block; i++, b += layout_bytes(f)) {
        chunk_gather(c, i);
        step[1].acc = NULL;
        for (unsigned ip = 0; ip < n_panel; ip++) {
            struct block_step *next = &step[ip % 2];
            planes_decode(f, b + ip * n_block * layout_bytes(f), &w, &next->e);
            next->acc = acc[ip];
            kind->times(c, &w, &step[1 - ip % 2], next);
        }
        kind->end(c, &step[(n_panel - 1) % 2]);
    }
    for (unsigned ip = 0; ip < n_panel; ip++) {
        const __mmask16 mask = panel_mask(n_row, ip * PANEL_ROWS);
        for (unsigned t = 0; t < c->nt; t++) {
            float *to = y + (yi ? yi[t] : t) * ldy + ip * PANEL_ROWS;
            _mm512_mask_storeu_ps(to, mask, acc[ip][t]);
        }
    }
}

/* Up to BLOCK_CHUNK tokens. */
KERN_INLINE void matmul_block_tiles(enum format_id f, const struct block_kind *kind,
                                    const uint8_t *b, unsigned n_row, const struct kern_act *x,
                                    const uint32_t *xi, const uint32_t *yi, unsigned nt, float *y,
                                    size_t ldy)
{
    const unsigned n_block = x->k / BLOCK_ELEMS;
    struct block_chunk c;
    c.nt = nt;
    for (unsigned t = 0; t < nt; t++) {
        c.lane[t] = block_lane(x, xi, t);
    }
    blocks_configure();
    for (unsigned row = 0; row < n_row; row += GROUP * PANEL_ROWS) {
        const unsigned n = n_row - row;
        const unsigned n_panel = n < GROUP * PANEL_ROWS ? (n + PANEL_ROWS - 1) / PANEL_ROWS : GROUP;
        block_panels(f, kind, b, n_panel, n, &c, n_block, yi, y + row, ldy);
        b += GROUP * n_block * layout_bytes(f);
    }
    _tile_release();
}

/* Fewer tokens are cheaper without tiles (bench/NOTES.md). */
#define BLOCK_MIN_TOKENS 24u

/* The kern_matmul_fn of a format. */
KERN_INLINE void matmul_blocks(enum format_id f, const struct block_kind *kind, const void *panels,
                               unsigned n_row, const struct kern_act *x, const uint32_t *xi,
                               const uint32_t *yi, unsigned n_token, float *y, size_t ldy)
{
    for (unsigned t0 = 0, nt; t0 < n_token; t0 += nt) {
        /* tokens t0.. as a matter of their own */
        struct kern_act part = *x;
        const uint32_t *from = xi ? xi + t0 : NULL, *to = yi ? yi + t0 : NULL;
        float *out = y + (yi ? 0 : t0 * ldy);
        nt = n_token - t0 < BLOCK_CHUNK ? n_token - t0 : BLOCK_CHUNK;
        if (xi == NULL) {
            part.q256 += (size_t)t0 * x->k;
            part.d256 += (size_t)t0 * (x->k / BLOCK_ELEMS);
            part.s256 += (size_t)t0 * (x->k / 16);
        }
        if (nt < BLOCK_MIN_TOKENS) {
            matmul_few_blocks(f, panels, n_row, &part, from, to, nt, out, ldy);
        } else {
            matmul_block_tiles(f, kind, panels, n_row, &part, from, to, nt, out, ldy);
        }
    }
}

/* One instance: what block.c is made of. */
#define BLOCK_MATMUL(f, kind)                                                                      \
    static void matmul_##f(const void *panels, unsigned n_row, const struct kern_act *x,           \
                           const uint32_t *xi, const uint32_t *yi, unsigned n_token, float *y,     \
                           size_t ldy)                                                             \
    {                                                                                              \
        matmul_blocks(FORMAT_##f, &amx_blocks_##kind, panels, n_row, x, xi, yi, n_token, y, ldy);  \
    }

#define BLOCK_FILL(f)                                                                              \
    kern->matmul[FORMAT_##f] = matmul_##f;                                                         \
    kern->act[FORMAT_##f] = KERN_ACT_Q8_256;

#endif
