/* Reference attention over one chunk of a KV cache. Rows of the cache are converted to floats piece
 * by piece, each piece once for all heads. */
#include "kernels/ref/ref.h"

#include <math.h>

#include "base/mem.h"
#include "kernels/expf.h"

#define PIECE 256u /* elements of a row; the sum of a score is made of one sum a piece */

/* n elements from element `at` on, as floats: in place where they are. */
static const float *row_piece(const void *base, bool is_f16, size_t at, unsigned n, float *buffer)
{
    if (!is_f16) {
        return (const float *)base + at;
    }
    const uint16_t *half = (const uint16_t *)base + at;
    for (unsigned i = 0; i < n; i++) {
        buffer[i] = format_f16_to_f32(half[i]);
    }
    return buffer;
}

static float dot(const float *a, const float *b, unsigned n)
{
    float lane[REF_LANES] = {0};
    unsigned i = 0;
    for (; i + REF_LANES <= n; i += REF_LANES) {
        for (unsigned il = 0; il < REF_LANES; il++) {
            lane[il] += a[i + il] * b[i + il];
        }
    }
    for (unsigned il = 0; i < n; i++, il++) {
        lane[il] += a[i] * b[i];
    }
    return ref_add_lanes(lane);
}

static void attn_qk(const float *q, size_t ldq, unsigned n_head, const void *k, bool k_is_f16,
                    size_t ldk, unsigned n_pos, unsigned n, float *s, size_t lds)
{
    for (unsigned ip = 0; ip < n_pos; ip++) {
        for (unsigned ih = 0; ih < n_head; ih++) {
            s[ih * lds + ip] = 0;
        }
        for (unsigned i0 = 0; i0 < n; i0 += PIECE) {
            float buffer[PIECE];
            unsigned n_elem = MIN(PIECE, n - i0);
            const float *piece = row_piece(k, k_is_f16, ip * ldk + i0, n_elem, buffer);
            for (unsigned ih = 0; ih < n_head; ih++) {
                s[ih * lds + ip] += dot(q + ih * ldq + i0, piece, n_elem);
            }
        }
    }
}

static void attn_exp(float *s, unsigned n_pos, float *max, float *sum)
{
    float top = -INFINITY;
    for (unsigned ip = 0; ip < n_pos; ip++) {
        top = s[ip] > top ? s[ip] : top;
    }
    /* nothing but -inf: exp(-inf - 0), not exp(-inf + inf) */
    float shift = top == -INFINITY ? 0 : top;
    float lane[REF_LANES] = {0};
    for (unsigned ip = 0; ip < n_pos; ip++) {
        s[ip] = kern_expf(s[ip] - shift);
        lane[ip % REF_LANES] += s[ip];
    }
    *max = top;
    *sum = ref_add_lanes(lane);
}

static void attn_sv(const float *s, size_t lds, unsigned n_head, const void *v, bool v_is_f16,
                    size_t ldv, unsigned n_pos, unsigned n, float *o, size_t ldo)
{
    for (unsigned i0 = 0; i0 < n; i0 += PIECE) {
        unsigned n_elem = MIN(PIECE, n - i0);
        for (unsigned ip = 0; ip < n_pos; ip++) {
            float buffer[PIECE];
            const float *piece = row_piece(v, v_is_f16, ip * ldv + i0, n_elem, buffer);
            for (unsigned ih = 0; ih < n_head; ih++) {
                float weight = s[ih * lds + ip], *to = o + ih * ldo + i0;
                for (unsigned i = 0; i < n_elem; i++) {
                    to[i] += weight * piece[i];
                }
            }
        }
    }
}

void ref_fill_attn(struct kern *kern)
{
    kern->attn_qk = attn_qk;
    kern->attn_exp = attn_exp;
    kern->attn_sv = attn_sv;
}
