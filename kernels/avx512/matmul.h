/* AVX-512: quantized panels times int8 activations, one driver for all formats (decode.h), with
 * VNNI and, where AVX512_NO_VNNI is defined, without.
 *
 * K is walked in spans of 8 sub-blocks (256 elements). For each sub-block of 32 elements, in
 * ascending order, and each token:
 *
 *     acc = fma(scale * d_x, float(dot), acc)              one scale
 *     acc = fma(dot0 * scale0 + dot1 * scale1, d_x, acc)   a scale for each half
 *     acc = fma(min, d_x * float(sum of x), acc)           then, where there are mins (for each
 * half)
 *
 * where dot is an exact integer. Up to TILE tokens are multiplied with sub-blocks straight from the
 * registers they were decoded to; for more, a span is decoded once to a buffer in L1 and multiplied
 * with tile after tile. Both go through sub_times, hence do exactly the same float operations. */
#ifndef NUMOE_KERNELS_AVX512_MATMUL_H
#define NUMOE_KERNELS_AVX512_MATMUL_H

#ifdef MATMUL_CODEBOOKS /* needs VBMI */
#include "kernels/avx512/codebook.h"
#else
#include "kernels/avx512/decode.h"
#endif
#include "kernels/avx512/parts.h"
#include "kernels/kern.h"

#define SPAN  8u  /* sub-blocks */
#define TILE  8u  /* tokens whose sums live in registers */
#define CHUNK 64u /* tokens that share one decoding of a span */

/* Prefetch distances in bytes. Formats whose blocks are read in one direction go at the speed of
 * memory with the first one alone; the others need their lines in L2 long before they come to L1.
 */
#define PREFETCH_AHEAD 4096
#define PREFETCH_NEAR  3072
#define PREFETCH_FAR   12288

/* All that the arithmetic must know of a format. */
struct kind {
    unsigned n_scale;
    bool has_min, has_offset;
    bool wide; /* quants with offset above 127 */
    int offset;
};

KERN_INLINE struct kind kind_of(enum format_id f)
{
    return (struct kind){layout_n_scale(f), layout_has_min(f), decode_offset(f) != 0,
                         decode_is_wide(f), decode_offset(f)};
}

/* Where the activations of a token are. */
struct lane {
    const int8_t *q;
    const float *d;
    const int16_t *s;
};

/* Of a token and a span, for each sub-block or each half of one: the scale of x, what takes the
 * offset of the quants off, and the factor of the mins. */
struct fix {
    float d[SPAN];
    int32_t offset[2 * SPAN];
    float min[2 * SPAN];
};

KERN_INLINE struct lane lane_at(const struct kern_act *x, const uint32_t *xi, unsigned t)
{
    size_t i = xi ? xi[t] : t;
    return (struct lane){x->q + i * x->k, x->d + i * (x->k / 32), x->s + i * (x->k / 16)};
}

/* For the n (1..SPAN) sub-blocks from sub-block i0 of K on. */
KERN_INLINE void fix_make(struct kind kind, const struct lane *x, unsigned i0, unsigned n,
                          struct fix *fix)
{
    __m256 d = _mm256_maskz_loadu_ps((__mmask8)((1u << n) - 1), x->d + i0);
    __m256i s = _mm256_maskz_loadu_epi16((__mmask16)((1u << (2 * n)) - 1), x->s + 2 * (size_t)i0);
    _mm256_storeu_ps(fix->d, d);
    if (kind.n_scale == 1) {
        if (kind.has_offset) {
            __m256i v = _mm256_madd_epi16(s, _mm256_set1_epi16((short)-kind.offset));
            _mm256_storeu_si256((__m256i *)fix->offset, v);
        }
        if (kind.has_min) {
            __m256i v = _mm256_madd_epi16(s, _mm256_set1_epi16(1));
            _mm256_storeu_ps(fix->min, _mm256_mul_ps(d, _mm256_cvtepi32_ps(v)));
        }
        return;
    }
    __m512i v = _mm512_cvtepi16_epi32(s);
    if (kind.has_offset) {
        _mm512_storeu_si512(fix->offset, _mm512_mullo_epi32(v, _mm512_set1_epi32(-kind.offset)));
    }
    if (kind.has_min) {
        const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
        __m512 dd = _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(d));
        _mm512_storeu_ps(fix->min, _mm512_mul_ps(dd, _mm512_cvtepi32_ps(v)));
    }
}

KERN_INLINE __m512i word_of(const int8_t *p)
{
    int32_t v;
    memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
}

/* In each dword of sum, four products of an unsigned and a signed byte more. */
KERN_INLINE __m512i add_products(struct kind kind, __m512i sum, __m512i q, __m512i x)
{
#ifndef AVX512_NO_VNNI
    (void)kind;
    return _mm512_dpbusd_epi32(sum, q, x);
#else
    if (kind.wide) { /* pairs of products may pass 16 bits: all is widened first */
        __m512i x_even = _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8);
        __m512i even = _mm512_and_si512(q, _mm512_set1_epi16(0xff));
        sum = _mm512_add_epi32(sum, _mm512_madd_epi16(even, x_even));
        return _mm512_add_epi32(
            sum, _mm512_madd_epi16(_mm512_srli_epi16(q, 8), _mm512_srai_epi16(x, 8)));
    }
    /* 2 * 127 * 127 is below 2^15: nothing saturates */
    __m512i pairs = _mm512_maddubs_epi16(q, x);
    return _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
#endif
}

/* dot[t] += the products of q[i0..i1) with the activations of token t at x[t] + at. Neighbouring
 * instructions are of different tokens, so that they do not wait for each other. */
KERN_INLINE void add_dots(struct kind kind, const __m512i *q, const int8_t *const *x, size_t at,
                          unsigned i0, unsigned i1, unsigned nt, __m512i *dot)
{
#pragma GCC unroll 8
    for (unsigned i = i0; i < i1; i++) {
#pragma GCC unroll 8
        for (unsigned t = 0; t < nt; t++) {
            dot[t] = add_products(kind, dot[t], q[i], word_of(x[t] + at + 4 * i));
        }
    }
}

/* The offset's share in sum i (of a sub-block or half) of each token. */
KERN_INLINE void begin_dots(struct kind kind, const struct fix *fix, unsigned i, unsigned nt,
                            __m512i *dot)
{
#pragma GCC unroll 8
    for (unsigned t = 0; t < nt; t++) {
        dot[t] = kind.has_offset ? _mm512_set1_epi32(fix[t].offset[i]) : _mm512_setzero_si512();
    }
}

KERN_INLINE void sub_times_whole(struct kind kind, const struct sub *w, const int8_t *const *x,
                                 const struct fix *fix, unsigned j, unsigned nt, __m512 *acc)
{
    __m512i dot[TILE], more[TILE];
    begin_dots(kind, fix, j, nt, dot);
    if (nt <= 2) { /* two chains for each token, one would be slower than the pipeline */
        begin_dots((struct kind){0}, fix, j, nt, more);
#pragma GCC unroll 4
        for (unsigned i = 0; i < 4; i++) {
            add_dots(kind, w->q, x, 32 * j, i, i + 1, nt, dot);
            add_dots(kind, w->q, x, 32 * j, i + 4, i + 5, nt, more);
        }
#pragma GCC unroll 8
        for (unsigned t = 0; t < nt; t++) {
            dot[t] = _mm512_add_epi32(dot[t], more[t]);
        }
    } else {
        add_dots(kind, w->q, x, 32 * j, 0, 8, nt, dot);
    }
#pragma GCC unroll 8
    for (unsigned t = 0; t < nt; t++) {
        __m512 scale = _mm512_mul_ps(w->scale[0], _mm512_set1_ps(fix[t].d[j]));
        acc[t] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(dot[t]), acc[t]);
        if (kind.has_min) {
            acc[t] = _mm512_fmadd_ps(w->min[0], _mm512_set1_ps(fix[t].min[j]), acc[t]);
        }
    }
}

KERN_INLINE void sub_times_halves(struct kind kind, const struct sub *w, const int8_t *const *x,
                                  const struct fix *fix, unsigned j, unsigned nt, __m512 *acc)
{
    __m512i dot[TILE];
    __m512 v[TILE];
    begin_dots(kind, fix, 2 * j, nt, dot);
    add_dots(kind, w->q, x, 32 * j, 0, 4, nt, dot);
#pragma GCC unroll 8
    for (unsigned t = 0; t < nt; t++) {
        v[t] = _mm512_mul_ps(_mm512_cvtepi32_ps(dot[t]), w->scale[0]);
    }
    begin_dots(kind, fix, 2 * j + 1, nt, dot);
    add_dots(kind, w->q, x, 32 * j, 4, 8, nt, dot);
#pragma GCC unroll 8
    for (unsigned t = 0; t < nt; t++) {
        v[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[t]), w->scale[1], v[t]);
        acc[t] = _mm512_fmadd_ps(v[t], _mm512_set1_ps(fix[t].d[j]), acc[t]);
        if (kind.has_min) {
            acc[t] = _mm512_fmadd_ps(w->min[0], _mm512_set1_ps(fix[t].min[2 * j]), acc[t]);
            acc[t] = _mm512_fmadd_ps(w->min[1], _mm512_set1_ps(fix[t].min[2 * j + 1]), acc[t]);
        }
    }
}

/* acc[t] += sub-block w times sub-block j of a span of each of nt tokens; x[t] is where the span of
 * a token begins. */
KERN_INLINE void sub_times(struct kind kind, const struct sub *w, const int8_t *const *x,
                           const struct fix *fix, unsigned j, unsigned nt, __m512 *acc)
{
    if (kind.n_scale == 1) {
        sub_times_whole(kind, w, x, fix, j, nt, acc);
    } else {
        sub_times_halves(kind, w, x, fix, j, nt, acc);
    }
}

KERN_INLINE void span_head(enum format_id f, const uint8_t *b, struct head *h)
{
#ifdef MATMUL_CODEBOOKS
    codebook_head(f, b, h);
#else
    decode_head(f, b, h);
#endif
}

/* Sub-block j of the span at b, with a prefetch of what comes a few KiB later. The barrier keeps
 * the compiler from gathering the prefetches of many sub-blocks in one place. */
KERN_INLINE void sub_decode(enum format_id f, const uint8_t *b, const struct head *h, unsigned j,
                            struct sub *w)
{
    size_t begin = j * layout_sub_bytes(f), end = begin + layout_sub_bytes(f);
    __asm__ volatile("" : : : "memory");
#pragma GCC unroll 16
    for (size_t i = (begin + 63) / 64 * 64; i < end; i += 64) {
        if (layout_is_scattered(f)) {
            _mm_prefetch((const char *)b + i + PREFETCH_NEAR, _MM_HINT_T0);
            _mm_prefetch((const char *)b + i + PREFETCH_FAR, _MM_HINT_T1);
        } else {
            _mm_prefetch((const char *)b + i + PREFETCH_AHEAD, _MM_HINT_T0);
        }
    }
#ifdef MATMUL_CODEBOOKS
    codebook_sub(f, b, h, j, w);
#else
    decode_sub(f, layout_block(f, b, j), h, j, w);
#endif
}

KERN_INLINE __mmask16 panel_mask(unsigned n_row, unsigned row)
{
    return n_row - row >= PANEL_ROWS ? 0xffff : (__mmask16)((1u << (n_row - row)) - 1);
}

/* ------------------------------------------------------------------ up to TILE tokens */

/* n sub-blocks at b, which are those from i0 of K on: SPAN, or fewer where blocks have one. */
KERN_INLINE void span_few(enum format_id f, const uint8_t *b, const struct lane *lane, unsigned nt,
                          unsigned i0, unsigned n, __m512 *acc)
{
    const struct kind kind = kind_of(f);
    const int8_t *x[TILE];
    struct fix fix[TILE];
    struct head h;
    struct sub w;
#pragma GCC unroll 8
    for (unsigned t = 0; t < nt; t++) {
        fix_make(kind, &lane[t], i0, n, &fix[t]);
        x[t] = lane[t].q + 32 * (size_t)i0;
    }
    if (layout_n_sub(f) == 1) {
#pragma GCC unroll 1
        for (unsigned j = 0; j < n; j++) {
            sub_decode(f, b, &h, j, &w);
            sub_times(kind, &w, x, fix, j, nt, acc);
        }
        return;
    }
    span_head(f, b, &h);
#pragma GCC unroll 8
    for (unsigned j = 0; j < SPAN; j++) {
        sub_decode(f, b, &h, j, &w);
        sub_times(kind, &w, x, fix, j, nt, acc);
    }
}

/* nt tokens; the lanes from n_real on only fill up the number that there is code for. */
KERN_INLINE void matmul_few(enum format_id f, const uint8_t *b, unsigned n_row,
                            const struct kern_act *x, const uint32_t *xi, const uint32_t *yi,
                            unsigned nt, unsigned n_real, float *y, size_t ldy)
{
    const unsigned n_sub = x->k / 32;
    struct lane lane[TILE];
    for (unsigned t = 0; t < nt; t++) {
        lane[t] = lane_at(x, xi, t < n_real ? t : n_real - 1);
    }
    for (unsigned row = 0; row < n_row; row += PANEL_ROWS) {
        __m512 acc[TILE];
        unsigned i = 0;
#pragma GCC unroll 8
        for (unsigned t = 0; t < nt; t++) {
            acc[t] = _mm512_setzero_ps();
        }
        for (; i + SPAN <= n_sub; i += SPAN, b += SPAN * layout_sub_bytes(f)) {
            span_few(f, b, lane, nt, i, SPAN, acc);
        }
        for (; layout_n_sub(f) == 1 && i < n_sub; i++, b += layout_sub_bytes(f)) {
            span_few(f, b, lane, nt, i, 1, acc);
        }
#pragma GCC unroll 8
        for (unsigned t = 0; t < nt; t++) {
            if (t < n_real) {
                float *to = y + (yi ? yi[t] : t) * ldy + row;
                _mm512_mask_storeu_ps(to, panel_mask(n_row, row), acc[t]);
            }
        }
    }
}

/* ------------------------------------------------------------------ more tokens */

/* A span of a panel, decoded. */
struct span {
    struct sub sub[SPAN];
};

KERN_INLINE void span_decode(enum format_id f, const uint8_t *b, unsigned n, struct span *out)
{
    struct head h;
    if (layout_n_sub(f) == 1) {
#pragma GCC unroll 1
        for (unsigned j = 0; j < n; j++) {
            sub_decode(f, b, &h, j, &out->sub[j]);
        }
        return;
    }
    span_head(f, b, &h);
#pragma GCC unroll 8
    for (unsigned j = 0; j < SPAN; j++) {
        sub_decode(f, b, &h, j, &out->sub[j]);
    }
}

/* acc[0..nt) += the n sub-blocks of a span, those from i0 of K on, times nt tokens. */
KERN_INLINE void tile_times(struct kind kind, const struct span *span, const struct lane *lane,
                            unsigned nt, unsigned i0, unsigned n, __m512 *acc)
{
    const int8_t *x[TILE];
    struct fix fix[TILE];
    __m512 sum[TILE];
#pragma GCC unroll 8
    for (unsigned t = 0; t < nt; t++) {
        fix_make(kind, &lane[t], i0, n, &fix[t]);
        x[t] = lane[t].q + 32 * (size_t)i0;
        sum[t] = acc[t];
    }
#pragma GCC unroll 1
    for (unsigned j = 0; j < n; j++) {
        sub_times(kind, &span->sub[j], x, fix, j, nt, sum);
    }
#pragma GCC unroll 8
    for (unsigned t = 0; t < nt; t++) {
        acc[t] = sum[t];
    }
}

KERN_INLINE void tiles_times(struct kind kind, const struct span *span, const struct lane *lane,
                             unsigned nt, unsigned i0, unsigned n, __m512 *acc)
{
    for (; nt >= TILE; nt -= TILE, lane += TILE, acc += TILE) {
        tile_times(kind, span, lane, TILE, i0, n, acc);
    }
    if (nt >= 4) {
        tile_times(kind, span, lane, 4, i0, n, acc);
        nt -= 4;
        lane += 4;
        acc += 4;
    }
    if (nt == 3) {
        tile_times(kind, span, lane, 3, i0, n, acc);
    } else if (nt == 2) {
        tile_times(kind, span, lane, 2, i0, n, acc);
    } else if (nt == 1) {
        tile_times(kind, span, lane, 1, i0, n, acc);
    }
}

/* One function for all formats of a kind: tiles.c. A format has either mins or an offset. */
typedef void tiles_fn(const struct span *span, const struct lane *lane, unsigned nt, unsigned i0,
                      unsigned n, int offset, __m512 *acc);
tiles_fn avx512_tiles_whole, avx512_tiles_whole_wide, avx512_tiles_whole_min, avx512_tiles_halves,
    avx512_tiles_halves_min;

/* Tokens t0.. t0 + nt, at most CHUNK of them. */
KERN_INLINE void matmul_chunk(enum format_id f, tiles_fn *tiles, const uint8_t *b, unsigned n_row,
                              const struct kern_act *x, const uint32_t *xi, const uint32_t *yi,
                              unsigned t0, unsigned nt, float *y, size_t ldy)
{
    const unsigned n_sub = x->k / 32;
    struct lane lane[CHUNK];
    struct span span;
    __m512 acc[CHUNK];
    for (unsigned t = 0; t < nt; t++) {
        lane[t] = lane_at(x, xi, t0 + t);
    }
    for (unsigned row = 0; row < n_row; row += PANEL_ROWS) {
        unsigned i = 0;
        for (unsigned t = 0; t < nt; t++) {
            acc[t] = _mm512_setzero_ps();
        }
        for (; i + SPAN <= n_sub; i += SPAN, b += SPAN * layout_sub_bytes(f)) {
            span_decode(f, b, SPAN, &span);
            tiles(&span, lane, nt, i, SPAN, decode_offset(f), acc);
        }
        for (; layout_n_sub(f) == 1 && i < n_sub; i++, b += layout_sub_bytes(f)) {
            span_decode(f, b, 1, &span);
            tiles(&span, lane, nt, i, 1, decode_offset(f), acc);
        }
        for (unsigned t = 0; t < nt; t++) {
            size_t iy = yi ? yi[t0 + t] : t0 + t;
            _mm512_mask_storeu_ps(y + iy * ldy + row, panel_mask(n_row, row), acc[t]);
        }
    }
}

/* The kern_matmul_fn of a format. */
KERN_INLINE void matmul_any(enum format_id f, tiles_fn *tiles, const void *panels, unsigned n_row,
                            const struct kern_act *x, const uint32_t *xi, const uint32_t *yi,
                            unsigned n, float *y, size_t ldy)
{
    switch (n) {
    case 0:
        return;
    case 1:
        matmul_few(f, panels, n_row, x, xi, yi, 1, n, y, ldy);
        return;
    case 2:
        matmul_few(f, panels, n_row, x, xi, yi, 2, n, y, ldy);
        return;
    case 3:
        matmul_few(f, panels, n_row, x, xi, yi, 3, n, y, ldy);
        return;
    case 4:
        matmul_few(f, panels, n_row, x, xi, yi, 4, n, y, ldy);
        return;
    case 5:
    case 6:
    case 7:
    case 8:
        matmul_few(f, panels, n_row, x, xi, yi, 8, n, y, ldy);
        return;
    default:
        break;
    }
    for (unsigned t0 = 0, nt; t0 < n; t0 += nt) {
        nt = n - t0 < CHUNK ? n - t0 : CHUNK;
        matmul_chunk(f, tiles, panels, n_row, x, xi, yi, t0, nt, y, ldy);
    }
}

/* One instance: what quant-*.c are made of. */
#define MATMUL(f, kind)                                                                            \
    static void matmul_##f(const void *panels, unsigned n_row, const struct kern_act *x,           \
                           const uint32_t *xi, const uint32_t *yi, unsigned n_token, float *y,     \
                           size_t ldy)                                                             \
    {                                                                                              \
        matmul_any(FORMAT_##f, avx512_tiles_##kind, panels, n_row, x, xi, yi, n_token, y, ldy);    \
    }

#endif
