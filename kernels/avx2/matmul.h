/* AVX2: quantized panels times int8 activations, one driver for all formats (decode.h). The order
 * of float operations is that of kernels/avx512/matmul.h: for each sub-block in ascending order and
 * each token
 *
 *     acc = fma(scale * d_x, float(dot), acc)              one scale
 *     acc = fma(dot0 * scale0 + dot1 * scale1, d_x, acc)   a scale for each half
 *     acc = fma(min, d_x * float(sum of x), acc)           then, where there are mins (for each
 * half)
 *
 * with exact integers dot: by vpmaddubsw, or vpdpbusd where this is compiled for AVX-VNNI. A panel
 * is two halves of 8 rows; a span of 8 sub-blocks is done for one half, then for the other while
 * its cache lines are in L1. Up to TILE tokens are multiplied with sub-blocks as they are decoded;
 * for more, a span is decoded once to a buffer. */
#ifndef NUMOE_KERNELS_AVX2_MATMUL_H
#define NUMOE_KERNELS_AVX2_MATMUL_H

#include "kernels/avx2/decode.h"
#include "kernels/kern.h"

#define SPAN  8u  /* sub-blocks */
#define TILE  4u  /* tokens whose sums live in registers */
#define CHUNK 64u /* tokens that share one decoding of a span */
#define GROUP 4u  /* panels that share one copy of the tokens' span */

/* Prefetch distances in bytes. Arithmetic that takes nearly as long as the memory needs the lines
 * in L2 long before they come to L1; for Q8_0, which it does not hold up, one prefetch is better
 * (bench/NOTES.md). */
#define PREFETCH_AHEAD 4096
#define PREFETCH_NEAR  2048
#define PREFETCH_FAR   16384

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

/* Eight sums and what belongs to them. */
KERN_INLINE void fix_eight(enum format_id f, __m256i sum, __m256 d, unsigned at, struct fix *fix)
{
    if (decode_offset(f)) {
        __m256i v = _mm256_mullo_epi32(sum, _mm256_set1_epi32(-decode_offset(f)));
        _mm256_storeu_si256((__m256i *)(fix->offset + at), v);
    }
    if (layout_has_min(f)) {
        _mm256_storeu_ps(fix->min + at, _mm256_mul_ps(d, _mm256_cvtepi32_ps(sum)));
    }
}

KERN_INLINE void fix_span(enum format_id f, const struct lane *x, unsigned i0, struct fix *fix)
{
    __m256 d = _mm256_loadu_ps(x->d + i0);
    __m256i s = _mm256_loadu_si256((const __m256i *)(x->s + 2 * (size_t)i0));
    _mm256_storeu_ps(fix->d, d);
    if (layout_n_scale(f) == 1) {
        fix_eight(f, _mm256_madd_epi16(s, _mm256_set1_epi16(1)), d, 0, fix);
        return;
    }
    __m256i low = _mm256_cvtepi16_epi32(_mm256_castsi256_si128(s));
    __m256i high = _mm256_cvtepi16_epi32(_mm256_extracti128_si256(s, 1));
    const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    const __m256i twice_more = _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7);
    fix_eight(f, low, _mm256_permutevar8x32_ps(d, twice), 0, fix);
    fix_eight(f, high, _mm256_permutevar8x32_ps(d, twice_more), 8, fix);
}

/* For the n (SPAN or 1) sub-blocks from sub-block i0 of K on; fewer than SPAN come only in formats
 * with one scale. */
KERN_INLINE void fix_make(enum format_id f, const struct lane *x, unsigned i0, unsigned n,
                          struct fix *fix)
{
    if (n == SPAN) {
        fix_span(f, x, i0, fix);
        return;
    }
    int32_t sum = x->s[2 * (size_t)i0] + x->s[2 * (size_t)i0 + 1];
    fix->d[0] = x->d[i0];
    fix->offset[0] = -decode_offset(f) * sum;
    fix->min[0] = x->d[i0] * (float)sum;
}

KERN_INLINE __m256i word_of(const int8_t *p)
{
    int32_t v;
    memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}

/* Takes a sum's order from the compiler, which would make trees that need more registers than there
 * are. */
#define KEEP(v) __asm__("" : "+x"(v))

/* The sums of nh halves of a panel times nt tokens stand in one array, those of a half together. */
#define SUMS (2 * TILE)

#ifdef KERN_AVXVNNI
/* dot[h, t] += the products of q[i0..i1) of half h with the activations of token t at x[t] + at. */
KERN_INLINE void add_dots(enum format_id f, const struct sub *w, unsigned nh,
                          const int8_t *const *x, size_t at, unsigned i0, unsigned i1, unsigned nt,
                          __m256i *dot)
{
    (void)f;
#pragma GCC unroll 8
    for (unsigned i = i0; i < i1; i++) {
#pragma GCC unroll 4
        for (unsigned t = 0; t < nt; t++) {
            const __m256i word = word_of(x[t] + at + 4 * i);
#pragma GCC unroll 2
            for (unsigned s = t; s < nh * nt; s += nt) {
                dot[s] = _mm256_dpbusd_avx_epi32(dot[s], w[s / nt].q[i], word);
            }
        }
    }
}
#else
/* 16-bit sums of two products each. */
KERN_INLINE __m256i products(enum format_id f, __m256i q, __m256i x)
{
    if (decode_is_signed(f)) {
        return _mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(x, q));
    }
    return _mm256_maddubs_epi16(q, x);
}

/* dot[h, t] += the products of q[i0..i1) of half h with the activations of token t at x[t] + at. As
 * many 16-bit sums as fit are added before they are widened. */
KERN_INLINE void add_dots(enum format_id f, const struct sub *w, unsigned nh,
                          const int8_t *const *x, size_t at, unsigned i0, unsigned i1, unsigned nt,
                          __m256i *dot)
{
    const unsigned depth = decode_depth(f) < i1 - i0 ? decode_depth(f) : i1 - i0;
    __m256i v[SUMS];
#pragma GCC unroll 8
    for (unsigned i = i0; i < i1; i++) {
        const unsigned filled = (i - i0) % depth;
#pragma GCC unroll 4
        for (unsigned t = 0; t < nt; t++) {
            const __m256i word = word_of(x[t] + at + 4 * i);
#pragma GCC unroll 2
            for (unsigned s = t; s < nh * nt; s += nt) {
                __m256i p = products(f, w[s / nt].q[i], word);
                v[s] = filled == 0 ? p : _mm256_add_epi16(v[s], p);
                KEEP(v[s]);
                if (filled == depth - 1) {
                    p = _mm256_madd_epi16(v[s], _mm256_set1_epi16(1));
                    dot[s] = _mm256_add_epi32(dot[s], p);
                    KEEP(dot[s]);
                }
            }
        }
    }
}
#endif

/* The offset's share in sum i (of a sub-block or half of one) of each token. */
KERN_INLINE void begin_dots(enum format_id f, const struct fix *fix, unsigned i, unsigned nh,
                            unsigned nt, __m256i *dot)
{
#pragma GCC unroll 8
    for (unsigned s = 0; s < nh * nt; s++) {
        dot[s] =
            decode_offset(f) ? _mm256_set1_epi32(fix[s % nt].offset[i]) : _mm256_setzero_si256();
    }
}

KERN_INLINE void sub_times_whole(enum format_id f, const struct sub *w, unsigned nh,
                                 const int8_t *const *x, const struct fix *fix, unsigned j,
                                 unsigned nt, __m256 *acc)
{
    __m256i dot[SUMS];
    begin_dots(f, fix, j, nh, nt, dot);
    add_dots(f, w, nh, x, 32 * j, 0, 8, nt, dot);
#pragma GCC unroll 8
    for (unsigned s = 0; s < nh * nt; s++) {
        const struct sub *ws = &w[s / nt];
        const struct fix *at = &fix[s % nt];
        __m256 scale = _mm256_mul_ps(ws->scale[0], _mm256_set1_ps(at->d[j]));
        acc[s] = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(dot[s]), acc[s]);
        if (layout_has_min(f)) {
            acc[s] = _mm256_fmadd_ps(ws->min[0], _mm256_set1_ps(at->min[j]), acc[s]);
        }
    }
}

KERN_INLINE void sub_times_halves(enum format_id f, const struct sub *w, unsigned nh,
                                  const int8_t *const *x, const struct fix *fix, unsigned j,
                                  unsigned nt, __m256 *acc)
{
    __m256i dot[SUMS];
    __m256 v[SUMS];
    begin_dots(f, fix, 2 * j, nh, nt, dot);
    add_dots(f, w, nh, x, 32 * j, 0, 4, nt, dot);
#pragma GCC unroll 8
    for (unsigned s = 0; s < nh * nt; s++) {
        v[s] = _mm256_mul_ps(_mm256_cvtepi32_ps(dot[s]), w[s / nt].scale[0]);
    }
    begin_dots(f, fix, 2 * j + 1, nh, nt, dot);
    add_dots(f, w, nh, x, 32 * j, 4, 8, nt, dot);
#pragma GCC unroll 8
    for (unsigned s = 0; s < nh * nt; s++) {
        const struct sub *ws = &w[s / nt];
        const struct fix *at = &fix[s % nt];
        v[s] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[s]), ws->scale[1], v[s]);
        acc[s] = _mm256_fmadd_ps(v[s], _mm256_set1_ps(at->d[j]), acc[s]);
        if (layout_has_min(f)) {
            acc[s] = _mm256_fmadd_ps(ws->min[0], _mm256_set1_ps(at->min[2 * j]), acc[s]);
            acc[s] = _mm256_fmadd_ps(ws->min[1], _mm256_set1_ps(at->min[2 * j + 1]), acc[s]);
        }
    }
}

/* acc[h, t] += sub-block w[h] times sub-block j of a span of each of nt tokens; x[t] is where the
 * span of a token begins. */
KERN_INLINE void sub_times(enum format_id f, const struct sub *w, unsigned nh,
                           const int8_t *const *x, const struct fix *fix, unsigned j, unsigned nt,
                           __m256 *acc)
{
    if (layout_n_scale(f) == 1) {
        sub_times_whole(f, w, nh, x, fix, j, nt, acc);
    } else {
        sub_times_halves(f, w, nh, x, fix, j, nt, acc);
    }
}

/* Both halves read the same cache lines: the first one prefetches. */
KERN_INLINE void prefetch_sub(enum format_id f, const uint8_t *b, unsigned h, unsigned j)
{
    size_t begin = j * layout_sub_bytes(f), end = h == 0 ? begin + layout_sub_bytes(f) : begin;
    __asm__ volatile("" : : : "memory");
#pragma GCC unroll 16
    for (size_t i = (begin + 63) / 64 * 64; i < end; i += 64) {
        if (f == FORMAT_Q8_0) {
            _mm_prefetch((const char *)b + i + PREFETCH_AHEAD, _MM_HINT_T0);
        } else {
            _mm_prefetch((const char *)b + i + PREFETCH_NEAR, _MM_HINT_T0);
            _mm_prefetch((const char *)b + i + PREFETCH_FAR, _MM_HINT_T1);
        }
    }
}

/* ------------------------------------------------------------------ up to TILE tokens */

KERN_INLINE void span_few(enum format_id f, const uint8_t *b, unsigned h, const int8_t *const *x,
                          const struct fix *fix, unsigned nt, unsigned n, __m256 *acc)
{
    struct sub w;
    if (layout_is_rolled(f)) {
#pragma GCC unroll 1
        for (unsigned j = 0; j < n; j++) {
            prefetch_sub(f, b, h, j);
            decode_sub(f, layout_block(f, b, j), h, j, &w);
            sub_times(f, &w, 1, x, fix, j, nt, acc);
        }
        return;
    }
#pragma GCC unroll 8
    for (unsigned j = 0; j < SPAN; j++) {
        prefetch_sub(f, b, h, j);
        decode_sub(f, b, h, j, &w);
        sub_times(f, &w, 1, x, fix, j, nt, acc);
    }
}

/* n sub-blocks at b, which are those from i0 of K on: SPAN, or 1 where blocks have one. */
KERN_INLINE void panel_few(enum format_id f, const uint8_t *b, const struct lane *lane, unsigned nt,
                           unsigned i0, unsigned n, __m256 acc[2][TILE])
{
    const int8_t *x[TILE];
    struct fix fix[TILE];
#pragma GCC unroll 4
    for (unsigned t = 0; t < nt; t++) {
        fix_make(f, &lane[t], i0, n, &fix[t]);
        x[t] = lane[t].q + 32 * (size_t)i0;
    }
    span_few(f, b, 0, x, fix, nt, n, acc[0]);
    span_few(f, b, 1, x, fix, nt, n, acc[1]);
}

/* The rows of a panel that exist, from 16 sums. */
KERN_INLINE void store_rows(float *y, unsigned n, __m256 low, __m256 high)
{
    if (n >= PANEL_ROWS) {
        _mm256_storeu_ps(y, low);
        _mm256_storeu_ps(y + 8, high);
        return;
    }
    float rows[PANEL_ROWS];
    _mm256_storeu_ps(rows, low);
    _mm256_storeu_ps(rows + 8, high);
    memcpy(y, rows, n * sizeof(*y));
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
        __m256 acc[2][TILE];
        unsigned i = 0;
#pragma GCC unroll 4
        for (unsigned t = 0; t < nt; t++) {
            acc[0][t] = acc[1][t] = _mm256_setzero_ps();
        }
        for (; i + SPAN <= n_sub; i += SPAN, b += SPAN * layout_sub_bytes(f)) {
            panel_few(f, b, lane, nt, i, SPAN, acc);
        }
        for (; layout_n_sub(f) == 1 && i < n_sub; i++, b += layout_sub_bytes(f)) {
            panel_few(f, b, lane, nt, i, 1, acc);
        }
#pragma GCC unroll 4
        for (unsigned t = 0; t < nt; t++) {
            if (t < n_real) {
                store_rows(y + (yi ? yi[t] : t) * ldy + row, n_row - row, acc[0][t], acc[1][t]);
            }
        }
    }
}

/* ------------------------------------------------------------------ more tokens */

/* What a chunk of tokens is multiplied from: a span of one panel, decoded, and the same span of all
 * tokens side by side, since rows of K bytes would fall on each other in L1. */
struct chunk {
    int8_t x[CHUNK][SPAN * 32];
    struct fix fix[CHUNK];
    struct sub sub[SPAN][2];
};

KERN_INLINE void chunk_decode(enum format_id f, const uint8_t *b, unsigned h, unsigned n,
                              struct chunk *c)
{
    if (layout_is_rolled(f)) {
#pragma GCC unroll 1
        for (unsigned j = 0; j < n; j++) {
            prefetch_sub(f, b, h, j);
            decode_sub(f, layout_block(f, b, j), h, j, &c->sub[j][h]);
        }
        return;
    }
#pragma GCC unroll 8
    for (unsigned j = 0; j < SPAN; j++) {
        prefetch_sub(f, b, h, j);
        decode_sub(f, b, h, j, &c->sub[j][h]);
    }
}

/* n sub-blocks of nt tokens, those from i0 of K on. */
KERN_INLINE void chunk_load(enum format_id f, const struct lane *lane, unsigned nt, unsigned i0,
                            unsigned n, struct chunk *c)
{
    for (unsigned t = 0; t < nt; t++) {
        fix_make(f, &lane[t], i0, n, &c->fix[t]);
        const int8_t *q = lane[t].q + 32 * (size_t)i0;
        for (unsigned j = 0; j < n; j++) {
            __m256i v = _mm256_loadu_si256((const __m256i *)(q + 32 * (size_t)j));
            _mm256_storeu_si256((__m256i *)(c->x[t] + 32 * (size_t)j), v);
        }
    }
}

/* acc[h, t] += n sub-blocks of nt tokens from token t0 of the chunk on. Both halves share each word
 * of the activations. */
KERN_INLINE void tile_times(enum format_id f, const struct chunk *c, unsigned t0, unsigned nt,
                            unsigned n, __m256 *acc)
{
    const int8_t *x[TILE];
#pragma GCC unroll 4
    for (unsigned t = 0; t < nt; t++) {
        x[t] = c->x[t0 + t];
    }
#pragma GCC unroll 1
    for (unsigned j = 0; j < n; j++) {
        sub_times(f, c->sub[j], 2, x, c->fix + t0, j, nt, acc);
    }
}

KERN_INLINE void chunk_times(enum format_id f, const struct chunk *c, unsigned nt, unsigned n,
                             __m256 *acc)
{
    unsigned t = 0;
    for (; t + TILE <= nt; t += TILE) {
        tile_times(f, c, t, TILE, n, acc + 2 * (size_t)t);
    }
    for (; t < nt; t++) {
        tile_times(f, c, t, 1, n, acc + 2 * (size_t)t);
    }
}

/* The two halves' sums of token t of nt, as chunk_times() leaves them. */
KERN_INLINE void chunk_store(const __m256 *acc, unsigned t, unsigned nt, float *y, unsigned n)
{
    const unsigned tile = t / TILE * TILE;
    if (tile + TILE <= nt) {
        const __m256 *sum = acc + 2 * (size_t)tile + (t - tile);
        store_rows(y, n, sum[0], sum[TILE]);
    } else {
        store_rows(y, n, acc[2 * (size_t)t], acc[2 * (size_t)t + 1]);
    }
}

/* n_panel (at most GROUP) panels at b, rows row.. of a matrix of n_row, times the nt (at most
 * CHUNK) tokens of lane. */
KERN_INLINE void group_times(enum format_id f, const uint8_t *b, unsigned n_panel, unsigned n_sub,
                             const struct lane *lane, unsigned nt, struct chunk *c,
                             __m256 (*acc)[2 * CHUNK])
{
    const size_t panel_bytes = n_sub * layout_sub_bytes(f);
    for (unsigned ip = 0; ip < n_panel; ip++) {
        for (unsigned s = 0; s < 2 * nt; s++) {
            acc[ip][s] = _mm256_setzero_ps();
        }
    }
    for (unsigned i = 0, n; i < n_sub; i += n, b += n * layout_sub_bytes(f)) {
        n = layout_n_sub(f) == 1 && n_sub - i < SPAN ? 1 : SPAN;
        chunk_load(f, lane, nt, i, n, c);
        for (unsigned ip = 0; ip < n_panel; ip++) {
            chunk_decode(f, b + ip * panel_bytes, 0, n, c);
            chunk_decode(f, b + ip * panel_bytes, 1, n, c);
            chunk_times(f, c, nt, n, acc[ip]);
        }
    }
}

/* Tokens t0.. t0 + n, at most CHUNK of them. Three that are left over are filled up to a tile. */
KERN_INLINE void matmul_chunk(enum format_id f, const uint8_t *b, unsigned n_row,
                              const struct kern_act *x, const uint32_t *xi, const uint32_t *yi,
                              unsigned t0, unsigned n, float *y, size_t ldy)
{
    const unsigned nt = n % TILE == TILE - 1 ? n + 1 : n;
    const size_t panel_bytes = x->k / 32 * layout_sub_bytes(f);
    struct lane lane[CHUNK];
    struct chunk c;
    __m256 acc[GROUP][2 * CHUNK];
    for (unsigned t = 0; t < nt; t++) {
        lane[t] = lane_at(x, xi, t0 + (t < n ? t : n - 1));
    }
    for (unsigned row = 0; row < n_row; row += GROUP * PANEL_ROWS) {
        const unsigned left = (n_row - row + PANEL_ROWS - 1) / PANEL_ROWS;
        const unsigned n_panel = left < GROUP ? left : GROUP;
        group_times(f, b, n_panel, x->k / 32, lane, nt, &c, acc);
        for (unsigned i = 0; i < n_panel * n; i++) {
            const unsigned r = row + i / n * PANEL_ROWS, t = i % n;
            const size_t iy = yi ? yi[t0 + t] : t0 + t;
            chunk_store(acc[i / n], t, nt, y + iy * ldy + r, n_row - r);
        }
        b += n_panel * panel_bytes;
    }
}

/* The kern_matmul_fn of a format. */
KERN_INLINE void matmul_any(enum format_id f, const void *panels, unsigned n_row,
                            const struct kern_act *x, const uint32_t *xi, const uint32_t *yi,
                            unsigned n, float *y, size_t ldy)
{
    if (n == 1) {
        matmul_few(f, panels, n_row, x, xi, yi, 1, n, y, ldy);
    } else if (n == 2) {
        matmul_few(f, panels, n_row, x, xi, yi, 2, n, y, ldy);
    } else if (n == 3 || n == 4) {
        matmul_few(f, panels, n_row, x, xi, yi, 4, n, y, ldy);
    } else {
        for (unsigned t0 = 0, nt; t0 < n; t0 += nt) {
            nt = n - t0 < CHUNK ? n - t0 : CHUNK;
            matmul_chunk(f, panels, n_row, x, xi, yi, t0, nt, y, ldy);
        }
    }
}

/* One instance: what quant-*.c are made of. */
#define MATMUL(f)                                                                                  \
    static void matmul_##f(const void *panels, unsigned n_row, const struct kern_act *x,           \
                           const uint32_t *xi, const uint32_t *yi, unsigned n_token, float *y,     \
                           size_t ldy)                                                             \
    {                                                                                              \
        matmul_any(FORMAT_##f, panels, n_row, x, xi, yi, n_token, y, ldy);                         \
    }

#endif
