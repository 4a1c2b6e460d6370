/* AVX2 matrix kernels of F32, F16 and BF16 weights with float activations. Each (row, token) has
 * two chains of fused products, of the even and of the odd elements of K, added at the end; every
 * path keeps that order. */
#include <immintrin.h>
#include <string.h>

#include "kernels/avx2/parts.h"
#include "kernels/kern.h"
#include "kernels/layout.h"

#define TILE           2 /* tokens at once: 8 sums */
#define PREFETCH_AHEAD 4096

KERN_INLINE size_t elem_bytes(enum format_id f)
{
    return f == FORMAT_F32 ? 4 : 2;
}

/* An element of the 8 rows of half h. */
KERN_INLINE __m256 weight_at(enum format_id f, const uint8_t *p, unsigned h)
{
    if (f == FORMAT_F32) {
        return _mm256_loadu_ps((const float *)(const void *)p + 8 * h);
    }
    __m128i v = _mm_loadu_si128((const __m128i *)p + h);
    if (f == FORMAT_F16) {
        return _mm256_cvtph_ps(v);
    }
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
}

struct sums {
    __m256 even[2], odd[2]; /* of both halves */
};

KERN_INLINE void panel_times(enum format_id f, const uint8_t *b, unsigned n_k,
                             const float *const *x, unsigned nt, struct sums *sum)
{
    const size_t step = 16 * elem_bytes(f);
    unsigned k = 0;
#pragma GCC unroll 2
    for (unsigned t = 0; t < nt; t++) {
        sum[t].even[0] = sum[t].even[1] = sum[t].odd[0] = sum[t].odd[1] = _mm256_setzero_ps();
    }
#pragma GCC unroll 1
    for (; k + 2 <= n_k; k += 2, b += 2 * step) {
        _mm_prefetch((const char *)b + PREFETCH_AHEAD, _MM_HINT_T0);
        if (f == FORMAT_F32) {
            _mm_prefetch((const char *)b + PREFETCH_AHEAD + 64, _MM_HINT_T0);
        }
#pragma GCC unroll 2
        for (unsigned h = 0; h < 2; h++) {
            __m256 w0 = weight_at(f, b, h), w1 = weight_at(f, b + step, h);
#pragma GCC unroll 2
            for (unsigned t = 0; t < nt; t++) {
                sum[t].even[h] = _mm256_fmadd_ps(w0, _mm256_set1_ps(x[t][k]), sum[t].even[h]);
                sum[t].odd[h] = _mm256_fmadd_ps(w1, _mm256_set1_ps(x[t][k + 1]), sum[t].odd[h]);
            }
        }
    }
    if (k < n_k) {
#pragma GCC unroll 2
        for (unsigned h = 0; h < 2; h++) {
            __m256 w0 = weight_at(f, b, h);
#pragma GCC unroll 2
            for (unsigned t = 0; t < nt; t++) {
                sum[t].even[h] = _mm256_fmadd_ps(w0, _mm256_set1_ps(x[t][k]), sum[t].even[h]);
            }
        }
    }
}

static inline void store_rows(float *y, unsigned n, const struct sums *sum)
{
    float rows[PANEL_ROWS];
    _mm256_storeu_ps(rows, _mm256_add_ps(sum->even[0], sum->odd[0]));
    _mm256_storeu_ps(rows + 8, _mm256_add_ps(sum->even[1], sum->odd[1]));
    memcpy(y, rows, (n < PANEL_ROWS ? n : PANEL_ROWS) * sizeof(*y));
}

KERN_INLINE void tile_times(enum format_id f, const uint8_t *panels, unsigned n_row,
                            const struct kern_act *x, const uint32_t *xi, const uint32_t *yi,
                            unsigned t0, unsigned nt, float *y, size_t ldy)
{
    const float *xt[TILE];
    struct sums sum[TILE];
    for (unsigned t = 0; t < nt; t++) {
        xt[t] = x->f + (size_t)(xi ? xi[t0 + t] : t0 + t) * x->k;
    }
    for (unsigned row = 0; row < n_row; row += PANEL_ROWS) {
        panel_times(f, panels, x->k, xt, nt, sum);
        for (unsigned t = 0; t < nt; t++) {
            size_t iy = yi ? yi[t0 + t] : t0 + t;
            store_rows(y + iy * ldy + row, n_row - row, &sum[t]);
        }
        panels += 16 * elem_bytes(f) * x->k;
    }
}

KERN_INLINE void matmul_any(enum format_id f, const void *panels, unsigned n_row,
                            const struct kern_act *x, const uint32_t *xi, const uint32_t *yi,
                            unsigned n_token, float *y, size_t ldy)
{
    unsigned t = 0;
    for (; n_token - t >= TILE; t += TILE) {
        tile_times(f, panels, n_row, x, xi, yi, t, TILE, y, ldy);
    }
    if (t < n_token) {
        tile_times(f, panels, n_row, x, xi, yi, t, 1, y, ldy);
    }
}

#define MATMUL(f)                                                                                  \
    static void matmul_##f(const void *panels, unsigned n_row, const struct kern_act *x,           \
                           const uint32_t *xi, const uint32_t *yi, unsigned n_token, float *y,     \
                           size_t ldy)                                                             \
    {                                                                                              \
        matmul_any(FORMAT_##f, panels, n_row, x, xi, yi, n_token, y, ldy);                         \
    }

MATMUL(F32)
MATMUL(F16)
MATMUL(BF16)

void avx2_fill_float(struct kern *kern)
{
    kern->matmul[FORMAT_F32] = matmul_F32;
    kern->matmul[FORMAT_F16] = matmul_F16;
    kern->matmul[FORMAT_BF16] = matmul_BF16;
}
