/* AVX-512 matrix kernels of F32, F16 and BF16 weights with float activations. Each (row, token) has
 * two chains of fused products, of the even and of the odd elements of K, added at the end; every
 * path keeps that order. */
#include <immintrin.h>
#include <string.h>

#include "kernels/avx512/parts.h"
#include "kernels/kern.h"
#include "kernels/layout.h"

#define TILE           8 /* tokens at once */
#define PREFETCH_AHEAD 4096

KERN_INLINE size_t elem_bytes(enum format_id f)
{
    return f == FORMAT_F32 ? 4 : 2;
}

/* An element of 16 rows. */
KERN_INLINE __m512 weight_at(enum format_id f, const uint8_t *p)
{
    if (f == FORMAT_F32) {
        return _mm512_loadu_ps(p);
    }
    __m256i v = _mm256_loadu_si256((const __m256i *)p);
    if (f == FORMAT_F16) {
        return _mm512_cvtph_ps(v);
    }
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}

KERN_INLINE void panel_times(enum format_id f, const uint8_t *b, unsigned n_k,
                             const float *const *x, unsigned nt, __m512 *y)
{
    const size_t step = 16 * elem_bytes(f);
    __m512 even[TILE], odd[TILE];
    unsigned k = 0;
#pragma GCC unroll 8
    for (unsigned t = 0; t < nt; t++) {
        even[t] = odd[t] = _mm512_setzero_ps();
    }
#pragma GCC unroll 1
    for (; k + 2 <= n_k; k += 2, b += 2 * step) {
        __m512 w0 = weight_at(f, b), w1 = weight_at(f, b + step);
        _mm_prefetch((const char *)b + PREFETCH_AHEAD, _MM_HINT_T0);
        if (f == FORMAT_F32) {
            _mm_prefetch((const char *)b + PREFETCH_AHEAD + 64, _MM_HINT_T0);
        }
#pragma GCC unroll 8
        for (unsigned t = 0; t < nt; t++) {
            even[t] = _mm512_fmadd_ps(w0, _mm512_set1_ps(x[t][k]), even[t]);
            odd[t] = _mm512_fmadd_ps(w1, _mm512_set1_ps(x[t][k + 1]), odd[t]);
        }
    }
    if (k < n_k) {
        __m512 w0 = weight_at(f, b);
#pragma GCC unroll 8
        for (unsigned t = 0; t < nt; t++) {
            even[t] = _mm512_fmadd_ps(w0, _mm512_set1_ps(x[t][k]), even[t]);
        }
    }
#pragma GCC unroll 8
    for (unsigned t = 0; t < nt; t++) {
        y[t] = _mm512_add_ps(even[t], odd[t]);
    }
}

KERN_INLINE void tile_times(enum format_id f, const uint8_t *panels, unsigned n_row,
                            const struct kern_act *x, const uint32_t *xi, const uint32_t *yi,
                            unsigned t0, unsigned nt, float *y, size_t ldy)
{
    const float *xt[TILE];
    __m512 sum[TILE];
    for (unsigned t = 0; t < nt; t++) {
        xt[t] = x->f + (size_t)(xi ? xi[t0 + t] : t0 + t) * x->k;
    }
    for (unsigned row = 0; row < n_row; row += PANEL_ROWS) {
        unsigned n = n_row - row < PANEL_ROWS ? n_row - row : PANEL_ROWS;
        panel_times(f, panels, x->k, xt, nt, sum);
        for (unsigned t = 0; t < nt; t++) {
            size_t iy = yi ? yi[t0 + t] : t0 + t;
            _mm512_mask_storeu_ps(y + iy * ldy + row, (__mmask16)((1u << n) - 1), sum[t]);
        }
        panels += 16 * elem_bytes(f) * x->k;
    }
}

/* All tiles are whole but the last, which is put together from 4, 2 and 1 tokens. */
KERN_INLINE void matmul_any(enum format_id f, const void *panels, unsigned n_row,
                            const struct kern_act *x, const uint32_t *xi, const uint32_t *yi,
                            unsigned n_token, float *y, size_t ldy)
{
    unsigned t = 0;
    for (; n_token - t >= TILE; t += TILE) {
        tile_times(f, panels, n_row, x, xi, yi, t, TILE, y, ldy);
    }
    if (n_token - t >= 4) {
        tile_times(f, panels, n_row, x, xi, yi, t, 4, y, ldy);
        t += 4;
    }
    if (n_token - t == 3) {
        tile_times(f, panels, n_row, x, xi, yi, t, 3, y, ldy);
    } else if (n_token - t == 2) {
        tile_times(f, panels, n_row, x, xi, yi, t, 2, y, ldy);
    } else if (n_token - t == 1) {
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

void avx512_fill_float(struct kern *kern)
{
    kern->matmul[FORMAT_F32] = matmul_F32;
    kern->matmul[FORMAT_F16] = matmul_F16;
    kern->matmul[FORMAT_BF16] = matmul_BF16;
}
