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

KERN_INLINE __m128 fold_lanes(__m512 v)
{
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    return _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
}

/* sum_lanes of four vectors at once, with the same additions. */
KERN_INLINE __m128 sum_lanes4(const __m512 v[4])
{
    __m128 a = fold_lanes(v[0]), b = fold_lanes(v[1]), c = fold_lanes(v[2]), d = fold_lanes(v[3]);
    __m128 ab = _mm_add_ps(_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
    __m128 cd = _mm_add_ps(_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));
    return _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab));
}

/* s for nh heads x np positions (4 or 1). */
KERN_INLINE void qk_tile(const float *q, size_t ldq, unsigned nh, const void *k, bool f16,
                         size_t ldk, unsigned np, unsigned n, float *s, size_t lds)
{
    __m512 sum[TILE_HEADS][TILE_POS], key[TILE_POS];
    unsigned i = 0;
#pragma GCC unroll 4
    for (unsigned h = 0; h < nh; h++) {
#pragma GCC unroll 4
        for (unsigned p = 0; p < np; p++) {
            sum[h][p] = _mm512_setzero_ps();
        }
    }
    for (; i + 16 <= n; i += 16) {
#pragma GCC unroll 4
        for (unsigned p = 0; p < np; p++) {
            key[p] = cache_at(cache_row(k, f16, ldk, p), f16, i);
        }
#pragma GCC unroll 4
        for (unsigned h = 0; h < nh; h++) {
            __m512 v = _mm512_loadu_ps(q + h * ldq + i);
#pragma GCC unroll 4
            for (unsigned p = 0; p < np; p++) {
                sum[h][p] = _mm512_fmadd_ps(v, key[p], sum[h][p]);
            }
        }
    }
    if (i < n) {
        __mmask16 m = (__mmask16)((1u << (n - i)) - 1);
#pragma GCC unroll 4
        for (unsigned p = 0; p < np; p++) {
            key[p] = cache_masked(cache_row(k, f16, ldk, p), f16, i, m);
        }
#pragma GCC unroll 4
        for (unsigned h = 0; h < nh; h++) {
            __m512 v = _mm512_maskz_loadu_ps(m, q + h * ldq + i);
#pragma GCC unroll 4
            for (unsigned p = 0; p < np; p++) {
                sum[h][p] = _mm512_fmadd_ps(v, key[p], sum[h][p]);
            }
        }
    }
#pragma GCC unroll 4
    for (unsigned h = 0; h < nh; h++) {
        if (np == 4) {
            _mm_storeu_ps(s + h * lds, sum_lanes4(sum[h]));
        } else {
            s[h * lds] = sum_lanes(sum[h][0]);
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

static void attn_exp(float *s, unsigned n_pos, float *max, float *sum)
{
    const __m512 low = _mm512_set1_ps(-INFINITY);
    __m512 top = low, total = _mm512_setzero_ps();
    for (unsigned i = 0; i < n_pos; i += 16) {
        __mmask16 m = n_pos - i >= 16 ? 0xffff : (__mmask16)((1u << (n_pos - i)) - 1);
        top = _mm512_max_ps(_mm512_mask_loadu_ps(low, m, s + i), top); /* of numbers, not of NaN */
    }
    *max = _mm512_reduce_max_ps(top);
    /* nothing but -inf: exp(-inf - 0), not exp(-inf + inf) */
    __m512 shift = _mm512_set1_ps(*max == -INFINITY ? 0 : *max);
    for (unsigned i = 0; i < n_pos; i += 16) {
        __mmask16 m = n_pos - i >= 16 ? 0xffff : (__mmask16)((1u << (n_pos - i)) - 1);
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
        __mmask16 m = n - i >= 16 ? 0xffff : (__mmask16)((1u << (n - i)) - 1);
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
