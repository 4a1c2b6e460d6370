/* The inner loops, as a table of functions chosen once per process from what the processor can do.
 *
 * The contract, for whoever writes another instruction set:
 *
 *  - Every function is pure: no allocation, no threads, no failure, no errno. Preconditions are
 *    proved when weights are bound.
 *  - **Bit-identical by construction.** On one instruction set, an output element depends only on
 *    its own inputs: never on how many tokens, rows or elements the call covers, on where in the
 *    call it stands (vector body or tail), or on alignment. So y[r, t] is accumulated in one fixed
 *    order (blocks of K ascending) whether T is 1 or 512 and wherever the row range begins. Tails
 *    are done with masks, or with scalar code that is bit-equal to the vector code.
 *  - Across instruction sets integer parts are equal and only float rounding differs, where both
 *    read the same kind of activations.
 *  - Nothing is read or written outside the stated ranges.
 *  - Quantized weights meet int8 activations: with one scale per 32 elements, or, where a table
 *    says so (struct kern.act), per 256. F32, F16 and BF16 weights meet float activations, and are
 *    computed in float.
 *
 * What a matmul computes, for every row and token, K ascending (names of struct format_ints):
 *
 *     F32, F16, BF16   acc += w[k] * x[k]                   one accumulator, k = 0, 1, ..
 *     quantized        for each block of the format:
 *                          t = u = 0
 *                          for each group g of 32 elements of the block, in halves h of 16:
 *                              t += xd[g] * (float)(sum over h of scale[h] * (sum of q * xq))
 *                              u += xd[g] * (float)(sum over h of min[h] * xs[h])
 *                          acc += d * t
 *                          acc -= dmin * u                  formats with minima only
 *
 * The integers in parentheses are exact and below 2^24 in every format, so their floats are exact
 * too, and it is free how they are come by: scales of 32 elements may be applied once or to a
 * float, an offset of unsigned quants may be taken back through xs (q - 32 as q, less 32 * xs).
 * With one scale of x to 256 elements the sums over g are integers as well, below 2^31, and are
 * rounded to a float once.
 * The formulas define the value; the order of the float operations within a block, what is fused,
 * and how many accumulators share k is each instruction set's own choice, stated at the head of its
 * matmul.h (the order above is kernels/ref's), but the same for every call. Non-finite activations
 * give NaN.
 *
 * Functions are filled reference first (kernels/ref), then overridden (kernels/avx2,
 * kernels/avx512, kernels/amx), so an entry that nobody made fast still works.
 * NUMOE_ISA=ref|avx2|avxvnni|avx512bw|avx512|amx forces one of them.
 */
#ifndef NUMOE_KERNELS_KERN_H
#define NUMOE_KERNELS_KERN_H

#include "kernels/format.h"

/* Activations of n tokens, [n, K] row-major. A holder has room for all forms and fills those that
 * the weights which read it need (struct kern.act). Kinds are bits: several weights may read one
 * holder. */
enum kern_act_kind { KERN_ACT_F32 = 0, KERN_ACT_Q8 = 1, KERN_ACT_Q8_256 = 2 };

struct kern_act {
    unsigned k;       /* K */
    const float *f;   /* [n, K]                                    KERN_ACT_F32 */
    const int8_t *q;  /* [n, K] in [-127, 127], 64-byte aligned    KERN_ACT_Q8 */
    const float *d;   /* [n, K/32] scale of 32 elements: x = d * q     xd in the formulas */
    const int16_t *s; /* [n, K/16] sum of 16 q                         xs */
    /* The same with a scale, d256 [n, K/256], of 256 elements:        KERN_ACT_Q8_256 */
    const int8_t *q256;
    const float *d256;
    const int16_t *s256;
};
/* Row t of each array begins at t * (its row length). K is a multiple of block_elems, and of 32 for
 * Q8, of 256 for Q8_256. */

/* y[yi(t) * ldy + r] = sum over k of W[r, k] * x[xi(t), k]
 * for r in [0, n_row), t in [0, n_token). panels: ceil(n_row / 16) packed panels; matrix 0 is
 * 64-byte aligned, later panels only as their size leaves them.
 * xi, yi: [n_token], NULL is the identity. Rows n_row.. of the last panel are zero blocks and are
 * written nowhere. No overlap. */
typedef void kern_matmul_fn(const void *panels, unsigned n_row, const struct kern_act *x,
                            const uint32_t *xi, const uint32_t *yi, unsigned n_token, float *y,
                            size_t ldy);

struct kern {
    const char *isa; /* "ref", "avx2", "avx512bw" (no VNNI), "avx512", "amx" */

    kern_matmul_fn *matmul[FORMAT_MAX]; /* NULL where !format.computable */
    enum kern_act_kind act[FORMAT_MAX]; /* what matmul reads */

    /* q, d, s of k elements (k % 32 == 0). Of each 32: max = max|x|, d = max / 127 and
     * q = x * (127 / max) rounded to nearest even. d below the smallest normal float counts as a
     * block of zeros: d = 0, q = 0. A block with NaN or infinity has d = NaN, q = 0. All of this
     * equal on every instruction set (no fused operation is involved). */
    void (*quantize)(const float *x, size_t k, int8_t *q, float *d, int16_t *s);
    /* The same with 256 for 32 (k % 256 == 0); NULL where no matmul reads that. */
    void (*quantize_256)(const float *x, size_t k, int8_t *q, float *d, int16_t *s);

    /* y = x / sqrt(mean(x^2) + eps) * w   [n]; y may be x; w NULL is all ones. Sum of squares in a
     * fixed order. */
    void (*rmsnorm)(const float *x, const float *w, size_t n, float eps, float *y);

    void (*add)(float *y, const float *x, size_t n);           /* y += x */
    void (*axpy)(float *y, float a, const float *x, size_t n); /* y += a * x */
    void (*scale)(float *y, float a, size_t n);                /* y *= a */

    /* Through the exponential of kernels/expf.h. NaN gives NaN; sigmoid is 0 and 1 at the
     * infinities, silu(-inf) is NaN. y may be an input.
     * silu_mul: y = g * sigmoid(g) * u
     * swiglu_oai (gpt-oss): g = min(g, limit), u = clamp(u, +-limit);
     *                       y = (u + 1) * (g * sigmoid(alpha * g)) */
    void (*silu_mul)(const float *g, const float *u, size_t n, float *y);
    void (*swiglu_oai)(const float *g, const float *u, size_t n, float alpha, float limit,
                       float *y);
    void (*sigmoid)(const float *x, size_t n, float *y);

    /* Attention over one chunk of a KV cache whose rows are f32 or f16, ldk elements apart.
     * s[h * lds + p] = q[h * ldq + :] . k[p * ldk + :]   over n elements
     * for h in [0, n_head), p in [0, n_pos). */
    void (*attn_qk)(const float *q, size_t ldq, unsigned n_head, const void *k, bool k_is_f16,
                    size_t ldk, unsigned n_pos, unsigned n, float *s, size_t lds);
    /* In place s = exp(s - max(s)) over [0, n_pos); returns the max and the sum in *max, *sum.
     * n_pos >= 1. A score of -inf gives 0; all -inf give max = -inf and sum = 0. NaN or +inf among
     * the scores gives a NaN there and as the sum; the max is that of the others. */
    void (*attn_exp)(float *s, unsigned n_pos, float *max, float *sum);
    /* o[h * ldo + :] += s[h * lds + p] * v[p * ldv + :] for one p after the other; length n. */
    void (*attn_sv)(const float *s, size_t lds, unsigned n_head, const void *v, bool v_is_f16,
                    size_t ldv, unsigned n_pos, unsigned n, float *o, size_t ldo);

    void (*f32_to_f16)(const float *x, size_t n, uint16_t *y); /* round to nearest even */
    void (*f16_to_f32)(const uint16_t *x, size_t n, float *y);
    /* n elements of ceil(n / 32) blocks of Q8_0: exact products. */
    void (*q8_0_to_f32)(const void *blocks, size_t n, float *y);
};

/* For tests and benches: the table of one instruction set, NULL if not known or executable here. */
const struct kern *kern_find(const char *isa);


#endif
