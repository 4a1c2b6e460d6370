/* AVX-512 attention over a chunk of a KV cache. Tiles of heads x positions share each load and each
 * conversion from f16, since heads share rows (all of them with a latent cache, a group otherwise);
 * the sum of one (head, position) or one output element has the same order in every tile. */
#include "kernels/avx512/math.h"
#include "kernels/avx512/parts.h"
#include "kernels/kern.h"
#include "kernels/layout.h"

#define TILE_HEADS 4
#define TILE_POS   4 /* attn_qk */
#define TILE_VECS  4 /* attn_sv: vectors of 16 output elements */

/* 16 elements of a row of the cache from element i on. */
KERN_INLINE __m512 cache_at(const void *row, bool f16, size_t i)
{
    if (f16) {
        return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)((const uint16_t *)row + i)));
    }
    return _mm512_loadu_ps((const float *)row + i);
}

KERN_INLINE __m512 cache_masked(const void *row, bool f16, size_t i, __mmask16 m)
{
    if (f16) {
        return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(m, (const uint16_t *)row + i));
    }
    return _mm512_maskz_loadu_ps(m, (const float *)row + i);
}

KERN_INLINE const void *cache_row(const void *rows, bool f16, size_t ld, size_t p)
{
    return (const uint8_t *)rows + p * ld * (f16 ? 2 : 4);
}

/* Lanes i and i + 8 of two vectors: eight sums of a, then eight of b. */
KERN_INLINE __m512 fold_halves(__m512 a, __m512 b)
{
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}

/* Lanes i and i + 4 of each half of two: four sums of each half of a, then of b. */
KERN_INLINE __m512 fold_quarters(__m512 a, __m512 b)
{
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

/* s of a full tile: sum_lanes of 16 vectors at once, with the same additions. Quarter h of each
 * vector is head h's. */
KERN_INLINE void store_sums(__m512 sum[TILE_HEADS][TILE_POS], float *s, size_t lds)
{
    __m512 v[TILE_POS];
#pragma GCC unroll 4
    for (unsigned p = 0; p < TILE_POS; p++) {
        v[p] = fold_quarters(fold_halves(sum[0][p], sum[1][p]), fold_halves(sum[2][p], sum[3][p]));
    }
    const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
    const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
    const __m512 all =
        _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
    _mm_storeu_ps(s, _mm512_castps512_ps128(all));
    _mm_storeu_ps(s + lds, _mm512_extractf32x4_ps(all, 1));
    _mm_storeu_ps(s + 2 * lds, _mm512_extractf32x4_ps(all, 2));
    _mm_storeu_ps(s + 3 * lds, _mm512_extractf32x4_ps(all, 3));
}

/* sum[h][p] += elements i.. i + 16, those of mask m where they are not whole. */
KERN_INLINE void qk_step(const float *q, size_t ldq, unsigned nh, const void *k, bool f16,
                         size_t ldk, unsigned np, size_t i, bool whole, __mmask16 m,
                         __m512 sum[TILE_HEADS][TILE_POS])
{
    __m512 key[TILE_POS];
#pragma GCC unroll 4
    for (unsigned p = 0; p < np; p++) {
        const void *row = cache_row(k, f16, ldk, p);
        key[p] = whole ? cache_at(row, f16, i) : cache_masked(row, f16, i, m);
    }
#pragma GCC unroll 4
    for (unsigned h = 0; h < nh; h++) {
        const float *from = q + h * ldq + i;
        __m512 v = whole ? _mm512_loadu_ps(from) : _mm512_maskz_loadu_ps(m, from);
#pragma GCC unroll 4
        for (unsigned p = 0; p < np; p++) {
            sum[h][p] = _mm512_fmadd_ps(v, key[p], sum[h][p]);
        }
    }
}

/* s for nh heads x np positions (4 or 1). */
KERN_INLINE void qk_tile(const float *q, size_t ldq, unsigned nh, const void *k, bool f16,
                         size_t ldk, unsigned np, unsigned n, float *s, size_t lds)
{
    __m512 sum[TILE_HEADS][TILE_POS];
    unsigned i = 0;
#pragma GCC unroll 4
    for (unsigned h = 0; h < nh; h++) {
#pragma GCC unroll 4
        for (unsigned p = 0; p < np; p++) {
            sum[h][p] = _mm512_setzero_ps();
        }
    }
    for (; i + 16 <= n; i += 16) {
        qk_step(q, ldq, nh, k, f16, ldk, np, i, true, 0xffff, sum);
    }
    if (i < n) {
        qk_step(q, ldq, nh, k, f16, ldk, np, i, false, lanes_at(i, n), sum);
    }
    if (nh == TILE_HEADS && np == TILE_POS) {
        store_sums(sum, s, lds);
        return;
    }
#pragma GCC unroll 4
    for (unsigned h = 0; h < nh; h++) {
#pragma GCC unroll 4
        for (unsigned p = 0; p < np; p++) {
            s[h * lds + p] = sum_lanes(sum[h][p]);
        }
    }
}

KERN_INLINE void qk_heads(const float *q, size_t ldq, unsigned n_head, const void *k, bool f16,
                          size_t ldk, unsigned np, unsigned n, float *s, size_t lds)
{
    unsigned h = 0;
    for (; h + TILE_HEADS <= n_head; h += TILE_HEADS) {
        qk_tile(q + h * ldq, ldq, TILE_HEADS, k, f16, ldk, np, n, s + h * lds, lds);
    }
    for (; h < n_head; h++) {
        qk_tile(q + h * ldq, ldq, 1, k, f16, ldk, np, n, s + h * lds, lds);
    }
}

KERN_INLINE void qk_any(const float *q, size_t ldq, unsigned n_head, const void *k, bool f16,
                        size_t ldk, unsigned n_pos, unsigned n, float *s, size_t lds)
{
    unsigned p = 0;
    for (; p + TILE_POS <= n_pos; p += TILE_POS) {
        qk_heads(q, ldq, n_head, cache_row(k, f16, ldk, p), f16, ldk, TILE_POS, n, s + p, lds);
    }
    for (; p < n_pos; p++) {
        qk_heads(q, ldq, n_head, cache_row(k, f16, ldk, p), f16, ldk, 1, n, s + p, lds);
    }
}

static void attn_qk(const float *q, size_t ldq, unsigned n_head, const void *k, bool k_is_f16,
                    size_t ldk, unsigned n_pos, unsigned n, float *s, size_t lds)
{
    if (k_is_f16) {
        qk_any(q, ldq, n_head, k, true, ldk, n_pos, n, s, lds);
    } else {
        qk_any(q, ldq, n_head, k, false, ldk, n_pos, n, s, lds);
    }
}

/* Of numbers, not of NaN: the second operand is the one that stays. Four chains, since one would
 * wait for each step. */
KERN_INLINE float max_score(const float *s, unsigned n_pos)
{
    const __m512 low = _mm512_set1_ps(-INFINITY);
    __m512 top[4] = {low, low, low, low};
    unsigned i = 0;
    for (; i + 64 <= n_pos; i += 64) {
#pragma GCC unroll 4
        for (unsigned j = 0; j < 4; j++) {
            top[j] = _mm512_max_ps(_mm512_loadu_ps(s + i + 16 * j), top[j]);
        }
    }
    for (; i < n_pos; i += 16) {
        __mmask16 m = lanes_at(i, n_pos);
        top[0] = _mm512_max_ps(_mm512_mask_loadu_ps(low, m, s + i), top[0]);
    }
    return _mm512_reduce_max_ps(
        _mm512_max_ps(_mm512_max_ps(top[0], top[1]), _mm512_max_ps(top[2], top[3])));
}

static void attn_exp(float *s, unsigned n_pos, float *max, float *sum)
{
    *max = max_score(s, n_pos);
    /* nothing but -inf: exp(-inf - 0), not exp(-inf + inf) */
    const __m512 shift = _mm512_set1_ps(*max == -INFINITY ? 0 : *max);
    __m512 total = _mm512_setzero_ps();
    for (unsigned i = 0; i < n_pos; i += 16) {
        __mmask16 m = lanes_at(i, n_pos);
        __m512 v = _mm512_sub_ps(_mm512_maskz_loadu_ps(m, s + i), shift);
        v = _mm512_maskz_mov_ps(m, exp_of(v));
        total = _mm512_add_ps(total, v);
        _mm512_mask_storeu_ps(s + i, m, v);
    }
    *sum = sum_lanes(total);
}

/* nh heads x nv vectors of 16 elements; m masks the elements of the last one. */
KERN_INLINE void sv_tile(const float *s, size_t lds, unsigned nh, const uint8_t *v, bool f16,
                         size_t ldv, unsigned n_pos, unsigned nv, __mmask16 m, float *o, size_t ldo)
{
    const size_t row_bytes = ldv * (f16 ? 2 : 4);
    __m512 sum[TILE_HEADS][TILE_VECS];
#pragma GCC unroll 4
    for (unsigned h = 0; h < nh; h++) {
#pragma GCC unroll 4
        for (unsigned j = 0; j < nv; j++) {
            sum[h][j] = _mm512_maskz_loadu_ps(nv == 1 ? m : 0xffff, o + h * ldo + 16 * j);
        }
    }
#pragma GCC unroll 1
    for (unsigned p = 0; p < n_pos; p++, v += row_bytes) {
        __m512 value[TILE_VECS];
#pragma GCC unroll 4
        for (unsigned j = 0; j < nv; j++) {
            value[j] = nv == 1 ? cache_masked(v, f16, 0, m) : cache_at(v, f16, 16 * j);
        }
#pragma GCC unroll 4
        for (unsigned h = 0; h < nh; h++) {
            __m512 weight = _mm512_set1_ps(s[h * lds + p]);
#pragma GCC unroll 4
            for (unsigned j = 0; j < nv; j++) {
                sum[h][j] = _mm512_fmadd_ps(weight, value[j], sum[h][j]);
            }
        }
    }
#pragma GCC unroll 4
    for (unsigned h = 0; h < nh; h++) {
#pragma GCC unroll 4
        for (unsigned j = 0; j < nv; j++) {
            _mm512_mask_storeu_ps(o + h * ldo + 16 * j, nv == 1 ? m : 0xffff, sum[h][j]);
        }
    }
}

/* All of n for nh heads. */
KERN_INLINE void sv_heads(const float *s, size_t lds, unsigned nh, const void *v, bool f16,
                          size_t ldv, unsigned n_pos, unsigned n, float *o, size_t ldo)
{
    const uint8_t *col = v;
    unsigned i = 0;
    for (; i + 16 * TILE_VECS <= n; i += 16 * TILE_VECS) {
        sv_tile(s, lds, nh, col + i * (f16 ? 2 : 4), f16, ldv, n_pos, TILE_VECS, 0xffff, o + i,
                ldo);
    }
    for (; i < n; i += 16) {
        __mmask16 m = lanes_at(i, n);
        sv_tile(s, lds, nh, col + i * (f16 ? 2 : 4), f16, ldv, n_pos, 1, m, o + i, ldo);
    }
}

KERN_INLINE void sv_any(const float *s, size_t lds, unsigned n_head, const void *v, bool f16,
                        size_t ldv, unsigned n_pos, unsigned n, float *o, size_t ldo)
{
    unsigned h = 0;
    for (; h + TILE_HEADS <= n_head; h += TILE_HEADS) {
        sv_heads(s + h * lds, lds, TILE_HEADS, v, f16, ldv, n_pos, n, o + h * ldo, ldo);
    }
    for (; h < n_head; h++) {
        sv_heads(s + h * lds, lds, 1, v, f16, ldv, n_pos, n, o + h * ldo, ldo);
    }
}

static void attn_sv(const float *s, size_t lds, unsigned n_head, const void *v, bool v_is_f16,
                    size_t ldv, unsigned n_pos, unsigned n, float *o, size_t ldo)
{
    if (v_is_f16) {
        sv_any(s, lds, n_head, v, true, ldv, n_pos, n, o, ldo);
    } else {
        sv_any(s, lds, n_head, v, false, ldv, n_pos, n, o, ldo);
    }
}

void avx512_fill_attention(struct kern *kern)
{
    kern->attn_qk = attn_qk;
    kern->attn_exp = attn_exp;
    kern->attn_sv = attn_sv;
}
