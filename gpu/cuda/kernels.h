/* What the GPU program computes with: every kernel behind a C function that puts it on a stream.
 * The headers of kernels/ and dense/ on the CPU's side define the values; this side may round in
 * another order, and so on these terms only:
 *
 *  - "exact": weights as floats meet float activations, sums are float.
 *    F32 weights, and attention over an f32 cache, are always so.
 *  - otherwise quantized weights meet int8 activations (one scale per 32 elements, the same numbers
 *    as the CPU's), and matrices of long prompts are multiplied as f16 with float sums.
 *
 * A row of a result never depends on which or how many other tokens a call has, but for products of
 * long prompts (cuda_gemm, cuda_attn_prefill).
 *
 * Pointers are device pointers unless said otherwise. Nothing allocates, nothing waits; errors are
 * the stream's (cudaGetLastError). Any thread, one stream at a time.
 */
#ifndef NUMOE_GPU_CUDA_KERNELS_H
#define NUMOE_GPU_CUDA_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CUDA_MAX_PLANE  5
#define CUDA_GEMV_MAX   8   /* tokens that share one reading of the weights, at most */
#define CUDA_KV_PAGE    64  /* positions */
#define CUDA_MAX_VALUE  512 /* elements of a value row */
#define CUDA_BLAS_BYTES ((size_t)32 << 20) /* that cuda_blas_new() takes besides the scratch */

/* ------------------------------------------------------------------ weights */

/* n_mat matrices of n_row rows of k elements, blocks in the order of the file, but cut into planes:
 * a plane has the same piece of every block, side by side, so that loads are aligned. The bytes are
 * the file's. */
struct cuda_matrix {
    uint32_t format; /* enum format_id */
    unsigned n_mat, n_row, k;
    unsigned n_block; /* of a row */
    const uint8_t *plane[CUDA_MAX_PLANE];
};

/* Bytes that a matrix takes in VRAM, each plane at a multiple of 256. 0: unknown format. */
size_t cuda_matrix_bytes(uint32_t format, size_t n_elem);
/* Sets w->plane to where the planes are in data. */
void cuda_matrix_place(struct cuda_matrix *w, void *data);
/* n_block blocks as in the file (raw) to their places, from block `first` of the whole on. */
void cuda_matrix_fill(const struct cuda_matrix *w, const void *raw, size_t first, size_t n_block,
                      cudaStream_t s);
/* Matrix i of w alone. */
struct cuda_matrix cuda_matrix_one(const struct cuda_matrix *w, unsigned i);
/* Once for each device, before any kernel: codebooks. */
cudaError_t cuda_tables_init(void);

/* ------------------------------------------------------------------ activations */

struct cuda_group { /* 32 elements: x = d * q; s: sums of 16 q */
    float d;
    int16_t s[2];
};

/* Activations [T, k]. q and g NULL: floats only (k % 32 != 0, or exact). */
struct cuda_act {
    float *f;
    int8_t *q;            /* [T, k] */
    struct cuda_group *g; /* [T, k / 32] */
};

/* q and g of n rows of k elements (k % 32 == 0), which stand ldx apart in f and in q. */
void cuda_quantize(const struct cuda_act *x, unsigned n, unsigned k, unsigned ldx, cudaStream_t s);

/* ------------------------------------------------------------------ products */

/* For each group g < n_group and token t < n_token, with W = matrix mat[g] (mat NULL: matrix g):
 *     y[t * ldy + g * y_step + r] = W[r, :] . x[t * ldx + g / x_share * x_step ..]
 * Groups with mat[g] < 0 are left out. Steps are in elements. */
struct cuda_product {
    const struct cuda_matrix *w;
    struct cuda_act x;
    float *y;
    const int32_t *mat;
    unsigned n_token, n_group;
    size_t ldx, x_step, ldy, y_step;
    unsigned x_share;
    bool exact;
};
void cuda_gemv(const struct cuda_product *p, cudaStream_t s);

/* W to f16 (half) or float, [n_row, k] from row `row0` of all rows of all matrices on. */
void cuda_dequant(const struct cuda_matrix *w, size_t row0, size_t n_row, bool half, void *out,
                  cudaStream_t s);

/* ------------------------------------------------------------------ vectors */

/* x[t] = scale * row ids[t] of w */
void cuda_embed(const struct cuda_matrix *w, const int32_t *ids, unsigned n, float scale, float *x,
                cudaStream_t s);

/* x += scale * (y + bias) where y is not NULL; then out = rmsnorm(x) * w (w NULL: none), times
 * out_scale. Rows of k elements, x and y ldx apart, out k apart. out.f NULL: only the sum. */
struct cuda_norm_args {
    float *x;
    const int32_t *rows; /* out row i is of x row rows[i], none where negative; NULL: i */
    const float *y, *bias;
    float scale;
    const float *w;
    float eps, out_scale;
    unsigned n, k;
    size_t ldx;
    struct cuda_act out;
};
void cuda_norm(const struct cuda_norm_args *p, cudaStream_t s);

/* angles [n, n_rot]: cos and sin of each pair, times magnitude; freq [n_rot / 2] doubles */
void cuda_angles(const double *freq, const int32_t *position, unsigned n, unsigned n_rot,
                 float magnitude, float *angles, cudaStream_t s);

/* Heads of queries or keys, in place or elsewhere: bias, norm, rotation, scale.
 *     x [n, n_head, n_elem]  ->  y + t * ldy + h * y_step
 * The rotated part begins at rot_at. norm: [n_elem] a head, or [n_head * n_elem] (norm_row: not in
 * place). */
struct cuda_heads_args {
    const float *x;
    float *y;
    size_t ldx, x_step, ldy, y_step;
    unsigned n, n_head, n_elem;
    const float *bias, *norm;
    bool norm_row;
    unsigned n_norm; /* elements that a norm is of, from the first: n_elem but for MLA's latent */
    float eps, scale;
    unsigned n_rot, rot_at;
    bool interleaved;    /* pairs (0,1), (2,3) ..; otherwise (i, i + n_rot / 2) */
    const float *angles; /* NULL: no rotation */
};
void cuda_heads(const struct cuda_heads_args *p, cudaStream_t s);

enum cuda_glu_act { CUDA_SILU, CUDA_SWIGLU_OAI };

/* h = act(gate + gate_bias) * (up + up_bias) for n rows of k (gate and up: ld apart); biases
 * [n_mat, k] are chosen by mat[row] (NULL: row 0 of them), rows with mat < 0 are left out. */
struct cuda_glu_args {
    const float *gate, *up;
    const float *gate_bias, *up_bias;
    const int32_t *mat;
    unsigned n, k;
    size_t ld;
    enum cuda_glu_act act;
    float alpha, limit;
    struct cuda_act h;
};
void cuda_glu(const struct cuda_glu_args *p, cudaStream_t s);

/* ------------------------------------------------------------------ router */

enum cuda_gating { CUDA_SOFTMAX, CUDA_SIGMOID, CUDA_SOFTMAX_OF_TOPK };

struct cuda_router_args {
    const float *logits;      /* [n, n_expert] */
    const float *bias;        /* added to logits, or NULL */
    const float *select_bias; /* for the choice only, or NULL */
    unsigned n, n_expert, n_used;
    enum cuda_gating gating;
    unsigned n_group, n_group_used; /* n_group 1: none */
    bool best_two;
    bool norm_topk;
    float scale;
    int32_t *ids;   /* [n, n_used] */
    float *weights; /* [n, n_used] */
};
void cuda_router(const struct cuda_router_args *p, cudaStream_t s);

/* x[t] += scale * (sigmoid(gate[t]) * shared[t] + sum over i of weight[t, i] * (y + bias)), where y
 * is host[t] (already summed) and, for experts in VRAM (slot >= 0), hot[t, i]. All may be NULL. */
struct cuda_combine_args {
    float *x;
    unsigned n, k, n_used;
    float scale;
    const float *shared, *shared_gate;
    const float *host;   /* [n, k] */
    const float *hot;    /* [n, n_used, k] */
    const int32_t *slot; /* [n, n_used] */
    const float *weights;
    const float *bias; /* [n_slot, k] of experts in VRAM */
};
void cuda_combine(const struct cuda_combine_args *p, cudaStream_t s);

/* ------------------------------------------------------------------ hand-off to the experts */

/* What kernels read of the step that is on its way; in device memory. */
struct cuda_step {
    uint64_t number, first_hand;
    uint32_t n_token, n_logits;
};

/* Where a hand-off lies in the exchange, as the device sees pinned host memory; slot = number % 2.
 */
struct cuda_hand {
    const struct cuda_step *step;
    unsigned i;        /* hand-off first_hand + i of the step */
    unsigned *count;   /* device word, zero between launches */
    uint64_t *arrived; /* device word: number of the hand-off whose y is known to be there */
    unsigned k, n_used;
    float *x[2], *weights[2];
    int32_t *ids[2];
    const float *y[2];
    uint64_t *bell_x;
    const uint64_t *bell_y;
};

/* Writes x [n_token, k] (n: at most), and unless ids is NULL ids and weights [n_token, n_used],
 * then raises the bell. slot_of [n_expert] (NULL: none): experts with a slot >= 0 are handed over
 * as -1 - id. */
void cuda_hand_out(const struct cuda_hand *h, const float *x, const int32_t *ids,
                   const float *weights, const int32_t *slot_of, unsigned n, cudaStream_t s);
/* Waits for y; then as cuda_combine with host = y. */
void cuda_hand_in(const struct cuda_hand *h, const struct cuda_combine_args *p, cudaStream_t s);
/* slot [n] = slot_of[ids[n]] */
void cuda_slots(const int32_t *ids, const int32_t *slot_of, unsigned n, int32_t *slot,
                cudaStream_t s);
/* out [n_out, k] row i = x row order[i] / n_used for i < n, zeros behind. */
void cuda_gather(const float *x, const int32_t *order, unsigned n, unsigned n_out, unsigned n_used,
                 unsigned k, float *out, cudaStream_t s);
/* out row order[i] = y row i, rows of k elements. */
void cuda_scatter(const float *y, const int32_t *order, unsigned n, unsigned k, float *out,
                  cudaStream_t s);
/* Choices of layers without hand-off, to pinned memory of slot number % 2. */
struct cuda_routes_args {
    const struct cuda_step *step;
    const int32_t *ids;   /* [n_layer, stride / n_used, n_used] */
    const float *weights; /* the same */
    unsigned n_used;
    size_t stride; /* elements of a layer */
    int32_t *to_ids[2];
    float *to_weights[2];
};
/* For steps of up to n tokens. */
void cuda_routes(const struct cuda_routes_args *p, unsigned n_layer, unsigned n, cudaStream_t s);
/* n_logits rows of k floats to pinned memory of slot number % 2, then raises the bell to the step's
 * number. */
void cuda_results(const struct cuda_step *step, const float *rows, unsigned k, float *const to[2],
                  unsigned *count, uint64_t *bell, cudaStream_t s);

/* ------------------------------------------------------------------ attention */

/* One layer's cache in pages of CUDA_KV_PAGE positions: [page][n_head_kv][CUDA_KV_PAGE][n_key], the
 * values likewise. MLA has one head and its values are the beginnings of its keys (v == k). */
struct cuda_kv {
    void *k, *v;
    bool half;
    unsigned n_head_kv, n_key, n_value;
    unsigned v_row;       /* elements from a value row to the next: n_value, or n_key for MLA */
    const int32_t *table; /* [n_seq, max_page] pages of a sequence */
    unsigned max_page;
};

/* Row t of rows [n, n_head_kv, n_elem] to position[t] of sequence seq[t]. position < 0: nowhere. */
void cuda_kv_store(const struct cuda_kv *kv, bool values, const float *rows, size_t ld,
                   const int32_t *seq, const int32_t *position, unsigned n, cudaStream_t s);

struct cuda_attn_args {
    struct cuda_kv kv;
    const float *q;                /* [n, n_head, n_key], scaled */
    const int32_t *seq, *position; /* [n] */
    unsigned n, n_head, window;
    const float *sinks; /* [n_head] or NULL */
    float *partial;     /* cuda_attn_partial_floats() of them */
    float *out;         /* [n, n_head, n_value] */
    bool exact;         /* false: queries and weights may become f16 where the cache is */
};
size_t cuda_attn_partial_floats(unsigned n_head, unsigned n_value);
/* Any number of tokens of any sequences; n_value at most 512. Tokens with a position below 0 are
 * left out. */
void cuda_attn_decode(const struct cuda_attn_args *p, cudaStream_t s);

/* ------------------------------------------------------------------ long prompts: cuBLASLt */

/* Handles, workspace and scratch of one device. */
struct cuda_blas;
cudaError_t cuda_blas_new(size_t scratch_bytes, struct cuda_blas **out);
void cuda_blas_free(struct cuda_blas *b);
/* Scratch for steps of n tokens, rows of k_max elements, and attention of that kind (kv sizes and
 * n_head are read) over n_ctx positions. */
size_t cuda_blas_scratch_bytes(unsigned n, unsigned k_max, unsigned n_ctx,
                               const struct cuda_attn_args *a, bool exact);

/* As cuda_gemv without mat and x_share, for any number of tokens: weights are dequantized piece by
 * piece. The sums' order may depend on n_token. x.f is read, converted to f16 unless exact. False:
 * no such product in the library. */
bool cuda_gemm(struct cuda_blas *b, const struct cuda_product *p, cudaStream_t s);

/* Attention of n tokens of one sequence at consecutive positions from first on, through matrix
 * products over all positions at once. p's seq, position and partial are not read. */
bool cuda_attn_prefill(struct cuda_blas *b, const struct cuda_attn_args *p, unsigned seq,
                       unsigned first, bool exact, cudaStream_t s);

/* ------------------------------------------------------------------ head */

/* ids[t] = index of the highest of logits [n, n_vocab], the lower of equals; NaN counts as lowest.
 */
void cuda_argmax(const float *logits, unsigned n, unsigned n_vocab, int32_t *ids, cudaStream_t s);

#ifdef __cplusplus
}
#endif

#endif
