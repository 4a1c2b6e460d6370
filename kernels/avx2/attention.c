/* AVX2 attention over a chunk of a KV cache. Tiles of heads share each load and each conversion
 * from f16, since heads share rows (all of them with a latent cache, a group otherwise); the sum of
 * one (head, position) or one output element has the same order in every tile. */
#include "kernels/avx2/math.h"
#include "kernels/avx2/parts.h"
#include "kernels/kern.h"

#define TILE_HEADS 4
#define TILE_POS   3 /* attn_qk */
#define TILE_VECS  2 /* attn_sv: vectors of 8 output elements */

/* Keeps a vector in a register, where the compiler would load it again for each use. */
#define KEEP(v) __asm__("" : "+x"(v))

/* n (at most 8) elements of a row of the cache from element i on, 0 in the other lanes. */
KERN_INLINE __m256 cache_at(const uint8_t *row, bool f16, size_t i, size_t n)
{
    if (f16) {
        return load_part_f16((const uint16_t *)(const void *)row + i, n);
    }
    return load_part((const float *)(const void *)row + i, n);
}

KERN_INLINE size_t elem_bytes(bool f16)
{
    return f16 ? 2 : 4;
}

/* sum[h][p] += elements i.. i + n (n at most 8) */
KERN_INLINE void qk_step(const float *q, size_t ldq, unsigned nh, const uint8_t *k, bool f16,
                         size_t row_bytes, unsigned np, size_t i, size_t n,
                         __m256 sum[TILE_HEADS][TILE_POS])
{
    __m256 key[TILE_POS];
#pragma GCC unroll 3
    for (unsigned p = 0; p < np; p++) {
        key[p] = cache_at(k + p * row_bytes, f16, i, n);
    }
#pragma GCC unroll 4
    for (unsigned h = 0; h < nh; h++) {
        __m256 v = load_part(q + h * ldq + i, n);
        KEEP(v);
#pragma GCC unroll 3
        for (unsigned p = 0; p < np; p++) {
            sum[h][p] = _mm256_fmadd_ps(v, key[p], sum[h][p]);
        }
    }
}

/* Lanes i and i + 4 of two vectors: four sums of a, then four of b. */
KERN_INLINE __m256 fold_halves(__m256 a, __m256 b)
{
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

/* The sums of two positions of four heads, in the halves those of heads i and i + 2. */
KERN_INLINE __m256 fold_pair(__m256 sum[TILE_HEADS][TILE_POS], unsigned i, unsigned p, unsigned p1)
{
    __m256d a = _mm256_castps_pd(fold_halves(sum[i][p], sum[i + 2][p]));
    __m256d b = _mm256_castps_pd(fold_halves(sum[i][p1], sum[i + 2][p1]));
    return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)),
                         _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
}

/* s of a full tile: sum_lanes of eight vectors at once, with the same additions. */
KERN_INLINE void store_sums(__m256 sum[TILE_HEADS][TILE_POS], float *s, size_t lds)
{
    const __m256 a = fold_pair(sum, 0, 0, 1), b = fold_pair(sum, 1, 0, 1);
    const __m256 all = _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd));
    const __m128 low = _mm256_castps256_ps128(all), high = _mm256_extractf128_ps(all, 1);
    _mm_storel_pi((__m64 *)(void *)s, low);
    _mm_storeh_pi((__m64 *)(void *)(s + lds), low);
    _mm_storel_pi((__m64 *)(void *)(s + 2 * lds), high);
    _mm_storeh_pi((__m64 *)(void *)(s + 3 * lds), high);
    /* the third position: heads 0 and 2 in one vector, 1 and 3 in the other */
    const __m256d c = _mm256_castps_pd(fold_halves(sum[0][2], sum[2][2]));
    const __m256d d = _mm256_castps_pd(fold_halves(sum[1][2], sum[3][2]));
    __m256 last = _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(c, d)),
                                _mm256_castpd_ps(_mm256_unpackhi_pd(c, d)));
    last = _mm256_add_ps(last, _mm256_movehdup_ps(last));
    const __m128 l = _mm256_castps256_ps128(last), h = _mm256_extractf128_ps(last, 1);
    _mm_store_ss(s + 2, l);
    _mm_store_ss(s + lds + 2, _mm_movehl_ps(l, l));
    _mm_store_ss(s + 2 * lds + 2, h);
    _mm_store_ss(s + 3 * lds + 2, _mm_movehl_ps(h, h));
}

/* s for nh heads x np positions. */
KERN_INLINE void qk_tile(const float *q, size_t ldq, unsigned nh, const uint8_t *k, bool f16,
                         size_t row_bytes, unsigned np, unsigned n, float *s, size_t lds)
{
    __m256 sum[TILE_HEADS][TILE_POS];
    unsigned i = 0;
#pragma GCC unroll 4
    for (unsigned h = 0; h < nh; h++) {
#pragma GCC unroll 3
        for (unsigned p = 0; p < np; p++) {
            sum[h][p] = _mm256_setzero_ps();
        }
    }
    for (; i + 8 <= n; i += 8) {
        qk_step(q, ldq, nh, k, f16, row_bytes, np, i, 8, sum);
    }
    if (i < n) {
        qk_step(q, ldq, nh, k, f16, row_bytes, np, i, n - i, sum);
    }
    if (nh == TILE_HEADS && np == TILE_POS) {
        store_sums(sum, s, lds);
        return;
    }
#pragma GCC unroll 4
    for (unsigned h = 0; h < nh; h++) {
#pragma GCC unroll 3
        for (unsigned p = 0; p < np; p++) {
            s[h * lds + p] = sum_lanes(sum[h][p]);
        }
    }
}

KERN_INLINE void qk_heads(const float *q, size_t ldq, unsigned n_head, const uint8_t *k, bool f16,
                          size_t row_bytes, unsigned np, unsigned n, float *s, size_t lds)
{
    unsigned h = 0;
    for (; h + TILE_HEADS <= n_head; h += TILE_HEADS) {
        qk_tile(q + h * ldq, ldq, TILE_HEADS, k, f16, row_bytes, np, n, s + h * lds, lds);
    }
    for (; h < n_head; h++) {
        qk_tile(q + h * ldq, ldq, 1, k, f16, row_bytes, np, n, s + h * lds, lds);
    }
}

KERN_INLINE void qk_any(const float *q, size_t ldq, unsigned n_head, const uint8_t *k, bool f16,
                        size_t ldk, unsigned n_pos, unsigned n, float *s, size_t lds)
{
    const size_t row_bytes = ldk * elem_bytes(f16);
    unsigned p = 0;
    for (; p + TILE_POS <= n_pos; p += TILE_POS) {
        qk_heads(q, ldq, n_head, k + p * row_bytes, f16, row_bytes, TILE_POS, n, s + p, lds);
    }
    for (; p < n_pos; p++) {
        qk_heads(q, ldq, n_head, k + p * row_bytes, f16, row_bytes, 1, n, s + p, lds);
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
    const __m256 low = _mm256_set1_ps(-INFINITY);
    __m256 top[4] = {low, low, low, low};
    unsigned i = 0;
    for (; i + 32 <= n_pos; i += 32) {
#pragma GCC unroll 4
        for (unsigned j = 0; j < 4; j++) {
            top[j] = _mm256_max_ps(_mm256_loadu_ps(s + i + 8 * j), top[j]);
        }
    }
    for (; i < n_pos; i += 8) {
        __m256 in = _mm256_castsi256_ps(lanes_below(n_pos - i));
        __m256 v = _mm256_blendv_ps(low, load_part(s + i, n_pos - i), in);
        top[0] = _mm256_max_ps(v, top[0]);
    }
    return max_lanes(_mm256_max_ps(_mm256_max_ps(top[0], top[1]), _mm256_max_ps(top[2], top[3])));
}

static void attn_exp(float *s, unsigned n_pos, float *max, float *sum)
{
    *max = max_score(s, n_pos);
    /* nothing but -inf: exp(-inf - 0), not exp(-inf + inf) */
    const __m256 shift = _mm256_set1_ps(*max == -INFINITY ? 0 : *max);
    __m256 total = _mm256_setzero_ps();
    unsigned i = 0;
    for (; i + 8 <= n_pos; i += 8) {
        __m256 v = exp_of(_mm256_sub_ps(_mm256_loadu_ps(s + i), shift));
        total = _mm256_add_ps(total, v);
        _mm256_storeu_ps(s + i, v);
    }
    if (i < n_pos) {
        __m256 in = _mm256_castsi256_ps(lanes_below(n_pos - i));
        __m256 v = exp_of(_mm256_sub_ps(load_part(s + i, n_pos - i), shift));
        v = _mm256_and_ps(v, in);
        total = _mm256_add_ps(total, v);
        store_part(s + i, n_pos - i, v);
    }
    *sum = sum_lanes(total);
}

/* nh heads x nv vectors of 8 elements, of the last of which n exist. */
KERN_INLINE void sv_tile(const float *s, size_t lds, unsigned nh, const uint8_t *v, bool f16,
                         size_t row_bytes, unsigned n_pos, unsigned nv, size_t n, float *o,
                         size_t ldo)
{
    __m256 sum[TILE_HEADS][TILE_VECS];
#pragma GCC unroll 4
    for (unsigned h = 0; h < nh; h++) {
#pragma GCC unroll 2
        for (unsigned j = 0; j < nv; j++) {
            sum[h][j] = load_part(o + h * ldo + 8 * j, n);
        }
    }
#pragma GCC unroll 1
    for (unsigned p = 0; p < n_pos; p++, v += row_bytes) {
        __m256 value[TILE_VECS];
#pragma GCC unroll 2
        for (unsigned j = 0; j < nv; j++) {
            value[j] = cache_at(v, f16, 8 * j, n);
        }
#pragma GCC unroll 4
        for (unsigned h = 0; h < nh; h++) {
            __m256 weight = _mm256_set1_ps(s[h * lds + p]);
#pragma GCC unroll 2
            for (unsigned j = 0; j < nv; j++) {
                sum[h][j] = _mm256_fmadd_ps(weight, value[j], sum[h][j]);
            }
        }
    }
#pragma GCC unroll 4
    for (unsigned h = 0; h < nh; h++) {
#pragma GCC unroll 2
        for (unsigned j = 0; j < nv; j++) {
            store_part(o + h * ldo + 8 * j, n, sum[h][j]);
        }
    }
}

/* All of n for nh heads. */
KERN_INLINE void sv_heads(const float *s, size_t lds, unsigned nh, const uint8_t *v, bool f16,
                          size_t row_bytes, unsigned n_pos, unsigned n, float *o, size_t ldo)
{
    const size_t bytes = elem_bytes(f16);
    unsigned i = 0;
    for (; i + 8 * TILE_VECS <= n; i += 8 * TILE_VECS) {
        sv_tile(s, lds, nh, v + i * bytes, f16, row_bytes, n_pos, TILE_VECS, 8, o + i, ldo);
    }
    for (; i < n; i += 8) {
        sv_tile(s, lds, nh, v + i * bytes, f16, row_bytes, n_pos, 1, n - i, o + i, ldo);
    }
}

KERN_INLINE void sv_any(const float *s, size_t lds, unsigned n_head, const uint8_t *v, bool f16,
                        size_t ldv, unsigned n_pos, unsigned n, float *o, size_t ldo)
{
    const size_t row_bytes = ldv * elem_bytes(f16);
    unsigned h = 0;
    for (; h + TILE_HEADS <= n_head; h += TILE_HEADS) {
        sv_heads(s + h * lds, lds, TILE_HEADS, v, f16, row_bytes, n_pos, n, o + h * ldo, ldo);
    }
    for (; h < n_head; h++) {
        sv_heads(s + h * lds, lds, 1, v, f16, row_bytes, n_pos, n, o + h * ldo, ldo);
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

void avx2_fill_attention(struct kern *kern)
{
    kern->attn_qk = attn_qk;
    kern->attn_exp = attn_exp;
    kern->attn_sv = attn_sv;
}
