/* AVX-512 VNNI: quantized panels times int8 activations, one driver for all formats (decode.h).
 *
 * K is walked in spans of 8 sub-blocks (256 elements). For each sub-block of 32 elements, in
 * ascending order, and each token:
 *
 *     acc = fma(scale * d_x, float(dot), acc)              one scale
 *     acc = fma(dot0 * scale0 + dot1 * scale1, d_x, acc)   a scale for each half
 *     acc = fma(min, d_x * float(sum of x), acc)           then, where there are mins (for each
 * half)
 *
 * where dot is an exact integer. The few-token path decodes to registers and uses them at once; the
 * many-token path decodes a span to a buffer in L1 and multiplies it with tiles of tokens. Both do
 * exactly these float operations, in this order. */
#ifndef NUMOE_KERNELS_AVX512_MATMUL_H
#define NUMOE_KERNELS_AVX512_MATMUL_H

#include "kernels/avx512/decode.h"
#include "kernels/kern.h"

#define SPAN           8  /* sub-blocks */
#define FEW            3  /* tokens of the register path at most */
#define TILE           8  /* tokens whose accumulators live in registers */
#define CHUNK          64 /* tokens that share one decoding of a span */
#define PREFETCH_AHEAD 4096

/* Per token: where its activations are. */
struct lane {
    const int8_t *q;
    const float *d;
    const int16_t *s;
};

/* Per token and span, made from the sums: what corrects the offset of the quants, and the factor of
 * the mins; for each sub-block or each half of one. */
struct fix {
    int32_t offset[2 * SPAN];
    float min[2 * SPAN];
};

KERN_INLINE struct lane lane_at(const struct kern_act *x, const uint32_t *xi, unsigned t)
{
    size_t i = xi ? xi[t] : t;
    return (struct lane){x->q + i * x->k, x->d + i * (x->k / 32), x->s + i * (x->k / 16)};
}

/* Sums of the n (1..8) sub-blocks from sub-block i0 on. */
KERN_INLINE void fix_make(enum format_id f, const struct lane *x, unsigned i0, unsigned n,
                          struct fix *fix)
{
    if (!decode_offset(f) && !decode_has_min(f)) {
        return;
    }
    __mmask16 halves = (__mmask16)((1u << (2 * n)) - 1);
    __m256i s = _mm256_maskz_loadu_epi16(halves, x->s + 2 * (size_t)i0);
    __m256 d = _mm256_maskz_loadu_ps((__mmask8)((1u << n) - 1), x->d + i0);
    if (decode_n_scale(f) == 1) {
        if (decode_offset(f)) {
            __m256i v = _mm256_madd_epi16(s, _mm256_set1_epi16((short)-decode_offset(f)));
            _mm256_storeu_si256((__m256i *)fix->offset, v);
        }
        if (decode_has_min(f)) {
            __m256i v = _mm256_madd_epi16(s, _mm256_set1_epi16(1));
            _mm256_storeu_ps(fix->min, _mm256_mul_ps(d, _mm256_cvtepi32_ps(v)));
        }
        return;
    }
    __m512i v = _mm512_cvtepi16_epi32(s);
    if (decode_offset(f)) {
        _mm512_storeu_si512(fix->offset,
                            _mm512_mullo_epi32(v, _mm512_set1_epi32(-decode_offset(f))));
    }
    if (decode_has_min(f)) {
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

/* init + the products of q[i0..i1) with the activations at x. */
KERN_INLINE __m512i dot_range(__m512i init, const __m512i *q, const int8_t *x, unsigned i0,
                              unsigned i1)
{
#pragma GCC unroll 8
    for (unsigned i = i0; i < i1; i++) {
        init = _mm512_dpbusd_epi32(init, q[i], word_of(x + 4 * i));
    }
    return init;
}

KERN_INLINE __m512i offset_of(enum format_id f, const struct fix *fix, unsigned i)
{
    return decode_offset(f) ? _mm512_set1_epi32(fix->offset[i]) : _mm512_setzero_si512();
}

/* acc + sub-block (j of the span) times the activations x, d; `split` shortens the chain of integer
 * products where no other token's fill the pipeline. */
KERN_INLINE __m512 sub_times(enum format_id f, const struct sub *w, const int8_t *x, float d,
                             const struct fix *fix, unsigned j, bool split, __m512 acc)
{
    __m512 dx = _mm512_set1_ps(d);
    if (decode_n_scale(f) == 1) {
        __m512i dot = dot_range(offset_of(f, fix, j), w->q, x, 0, split ? 4 : 8);
        if (split) {
            dot = _mm512_add_epi32(dot, dot_range(_mm512_setzero_si512(), w->q, x, 4, 8));
        }
        acc = _mm512_fmadd_ps(_mm512_mul_ps(w->scale[0], dx), _mm512_cvtepi32_ps(dot), acc);
        if (decode_has_min(f)) {
            acc = _mm512_fmadd_ps(w->min[0], _mm512_set1_ps(fix->min[j]), acc);
        }
        return acc;
    }
    __m512i dot0 = dot_range(offset_of(f, fix, 2 * j), w->q, x, 0, 4);
    __m512i dot1 = dot_range(offset_of(f, fix, 2 * j + 1), w->q, x, 4, 8);
    __m512 v = _mm512_mul_ps(_mm512_cvtepi32_ps(dot0), w->scale[0]);
    v = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot1), w->scale[1], v);
    acc = _mm512_fmadd_ps(v, dx, acc);
    if (decode_has_min(f)) {
        acc = _mm512_fmadd_ps(w->min[0], _mm512_set1_ps(fix->min[2 * j]), acc);
        acc = _mm512_fmadd_ps(w->min[1], _mm512_set1_ps(fix->min[2 * j + 1]), acc);
    }
    return acc;
}

KERN_INLINE void prefetch_range(const uint8_t *p, size_t from, size_t to)
{
    for (size_t i = (from + 63) / 64 * 64; i < to; i += 64) {
        _mm_prefetch((const char *)p + i, _MM_HINT_T0);
    }
}

/* Few tokens. n sub-blocks (SPAN, or fewer in formats of 32 elements a block) at b, from sub-block
 * i0 of K on. */
KERN_INLINE void span_few(enum format_id f, const uint8_t *b, const struct lane *x, unsigned nt,
                          unsigned i0, unsigned n, __m512 *acc)
{
    struct fix fix[FEW];
    struct head h;
    struct sub w;
    size_t step = decode_n_sub(f) == 1 ? decode_bytes(f) : decode_bytes(f) / SPAN;
#pragma GCC unroll 8
    for (unsigned t = 0; t < nt; t++) {
        fix_make(f, &x[t], i0, n, &fix[t]);
    }
    decode_head(f, b, &h);
#pragma GCC unroll 8
    for (unsigned j = 0; j < n; j++) {
        prefetch_range(b + PREFETCH_AHEAD, j * step, (j + 1) * step);
        decode_sub(f, decode_n_sub(f) == 1 ? b + j * step : b, &h, j, &w);
#pragma GCC unroll 8
        for (unsigned t = 0; t < nt; t++) {
            acc[t] = sub_times(f, &w, x[t].q + 32 * (size_t)(i0 + j), x[t].d[i0 + j], &fix[t], j,
                               nt < 3, acc[t]);
        }
    }
}

KERN_INLINE void panel_few(enum format_id f, const uint8_t *b, unsigned n_sub, const struct lane *x,
                           unsigned nt, __m512 *acc)
{
    size_t step = decode_bytes(f) * SPAN / decode_n_sub(f);
    unsigned i = 0;
#pragma GCC unroll 8
    for (unsigned t = 0; t < nt; t++) {
        acc[t] = _mm512_setzero_ps();
    }
    for (; i + SPAN <= n_sub; i += SPAN, b += step) {
        span_few(f, b, x, nt, i, SPAN, acc);
    }
    if (decode_n_sub(f) == 1) {
        for (; i < n_sub; i++, b += decode_bytes(f)) {
            span_few(f, b, x, nt, i, 1, acc);
        }
    }
}

KERN_INLINE __mmask16 panel_mask(unsigned n_row, unsigned row)
{
    return n_row - row >= PANEL_ROWS ? 0xffff : (__mmask16)((1u << (n_row - row)) - 1);
}

KERN_INLINE void matmul_few(enum format_id f, const uint8_t *panels, unsigned n_row,
                            const struct kern_act *x, const uint32_t *xi, const uint32_t *yi,
                            unsigned nt, float *y, size_t ldy)
{
    size_t panel_bytes = decode_bytes(f) / decode_n_sub(f) * (x->k / 32);
    struct lane lane[FEW];
    __m512 acc[FEW];
#pragma GCC unroll 8
    for (unsigned t = 0; t < nt; t++) {
        lane[t] = lane_at(x, xi, t);
    }
    for (unsigned row = 0; row < n_row; row += PANEL_ROWS, panels += panel_bytes) {
        panel_few(f, panels, x->k / 32, lane, nt, acc);
#pragma GCC unroll 8
        for (unsigned t = 0; t < nt; t++) {
            _mm512_mask_storeu_ps(y + (yi ? yi[t] : t) * ldy + row, panel_mask(n_row, row), acc[t]);
        }
    }
}

/* A span of a panel, decoded. */
struct span {
    struct sub sub[SPAN];
};

KERN_INLINE void span_decode(enum format_id f, const uint8_t *b, unsigned n, struct span *out)
{
    struct head h;
    size_t step = decode_n_sub(f) == 1 ? decode_bytes(f) : decode_bytes(f) / SPAN;
    decode_head(f, b, &h);
#pragma GCC unroll 8
    for (unsigned j = 0; j < n; j++) {
        prefetch_range(b + PREFETCH_AHEAD, j * step, (j + 1) * step);
        decode_sub(f, decode_n_sub(f) == 1 ? b + j * step : b, &h, j, &out->sub[j]);
    }
}

/* acc[0..nt) += span times nt tokens; sub-blocks i0.. of K. */
KERN_INLINE void tile_times(enum format_id f, const struct span *span, const struct lane *x,
                            unsigned nt, unsigned i0, unsigned n, __m512 *acc)
{
    struct fix fix[TILE];
    __m512 sum[TILE];
#pragma GCC unroll 8
    for (unsigned t = 0; t < nt; t++) {
        fix_make(f, &x[t], i0, n, &fix[t]);
        sum[t] = acc[t];
    }
#pragma GCC unroll 1
    for (unsigned j = 0; j < n; j++) {
        const struct sub *w = &span->sub[j];
        struct sub r = *w;
#pragma GCC unroll 8
        for (unsigned t = 0; t < nt; t++) {
            sum[t] = sub_times(f, &r, x[t].q + 32 * (size_t)(i0 + j), x[t].d[i0 + j], &fix[t], j,
                               false, sum[t]);
        }
    }
#pragma GCC unroll 8
    for (unsigned t = 0; t < nt; t++) {
        acc[t] = sum[t];
    }
}

KERN_INLINE void span_many(enum format_id f, const struct span *span, const struct lane *x,
                           unsigned nt, unsigned i0, unsigned n, __m512 *acc)
{
    unsigned t = 0;
    for (; t + TILE <= nt; t += TILE) {
        tile_times(f, span, x + t, TILE, i0, n, acc + t);
    }
    if (nt - t >= 4) {
        tile_times(f, span, x + t, 4, i0, n, acc + t);
        t += 4;
    }
    if (nt - t >= 2) {
        tile_times(f, span, x + t, 2, i0, n, acc + t);
        t += 2;
    }
    if (nt > t) {
        tile_times(f, span, x + t, 1, i0, n, acc + t);
    }
}

KERN_INLINE void matmul_many(enum format_id f, const uint8_t *panels, unsigned n_row,
                             const struct kern_act *x, const uint32_t *xi, const uint32_t *yi,
                             unsigned t0, unsigned nt, float *y, size_t ldy)
{
    const unsigned n_sub = x->k / 32;
    const size_t step = decode_bytes(f) * SPAN / decode_n_sub(f);
    struct lane lane[CHUNK];
    struct span span;
    __m512 acc[CHUNK];
#pragma GCC unroll 8
    for (unsigned t = 0; t < nt; t++) {
        lane[t] = lane_at(x, xi, t0 + t);
    }
    for (unsigned row = 0; row < n_row; row += PANEL_ROWS) {
        unsigned i = 0;
#pragma GCC unroll 8
        for (unsigned t = 0; t < nt; t++) {
            acc[t] = _mm512_setzero_ps();
        }
        for (; i + SPAN <= n_sub; i += SPAN, panels += step) {
            span_decode(f, panels, SPAN, &span);
            span_many(f, &span, lane, nt, i, SPAN, acc);
        }
        if (decode_n_sub(f) == 1) {
            for (; i < n_sub; i++, panels += decode_bytes(f)) {
                span_decode(f, panels, 1, &span);
                span_many(f, &span, lane, nt, i, 1, acc);
            }
        }
#pragma GCC unroll 8
        for (unsigned t = 0; t < nt; t++) {
            size_t iy = yi ? yi[t0 + t] : t0 + t;
            _mm512_mask_storeu_ps(y + iy * ldy + row, panel_mask(n_row, row), acc[t]);
        }
    }
}

/* The kern_matmul_fn of a format. */
KERN_INLINE void matmul_any(enum format_id f, const void *panels, unsigned n_row,
                            const struct kern_act *x, const uint32_t *xi, const uint32_t *yi,
                            unsigned n_token, float *y, size_t ldy)
{
    switch (n_token) {
    case 0:
        return;
    case 1:
        matmul_few(f, panels, n_row, x, xi, yi, 1, y, ldy);
        return;
    case 2:
        matmul_few(f, panels, n_row, x, xi, yi, 2, y, ldy);
        return;
    case 3:
        matmul_few(f, panels, n_row, x, xi, yi, 3, y, ldy);
        return;
    default:
        break;
    }
    for (unsigned t0 = 0, nt; t0 < n_token; t0 += nt) {
        nt = n_token - t0 < CHUNK ? n_token - t0 : CHUNK;
        matmul_many(f, panels, n_row, x, xi, yi, t0, nt, y, ldy);
    }
}

#endif
