/* Block formats of GGUF tensors: the one table of names, sizes and byte layouts, and what can be
 * done with a row of them without knowing an instruction set: check, dequantize, pack, unpack.
 *
 * A row of K elements is K / block_elems blocks of block_bytes each. Byte layouts are those of the
 * GGUF specification (ggml's block structs).
 *
 * Packed *panels*: PANEL_ROWS rows are interleaved so that one vector register serves 16 rows. Per
 * block, each field of the block (scales, quants, ...) is cut into units of `unit` bytes, and unit
 * u of rows 0..15 stand side by side:
 *
 *     block of a row:     d(2) | qs(32)                                     Q8_0, 34 bytes
 *     block of a panel:   d0 d1 .. d15 | q0[0..3] q1[0..3] .. q15[0..3] | q0[4..7] q1[4..7] ..
 *
 * A panel has the bytes of its 16 rows exactly, re-arranged; panels of a matrix follow each other.
 * Fields stand in the order of the table, scales first: units of 2 for f16, of 1 for the scale
 * bytes of K-quants, of 4 for quants (a 32-bit lane per row). F32, F16 and BF16 have blocks of one
 * element: element k of 16 rows stands side by side. A last panel with fewer rows is filled up with
 * zero bytes, and a zero block is zero in every format that can be packed.
 */
#ifndef NUMOE_KERNELS_FORMAT_H
#define NUMOE_KERNELS_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PANEL_ROWS 16u

/* Values are the type ids of the GGUF format. */
/* clang-format off */
enum format_id {
    FORMAT_F32 = 0, FORMAT_F16 = 1, FORMAT_Q4_0 = 2, FORMAT_Q4_1 = 3,
    FORMAT_Q5_0 = 6, FORMAT_Q5_1 = 7, FORMAT_Q8_0 = 8, FORMAT_Q8_1 = 9,
    FORMAT_Q2_K = 10, FORMAT_Q3_K = 11, FORMAT_Q4_K = 12, FORMAT_Q5_K = 13, FORMAT_Q6_K = 14,
    FORMAT_Q8_K = 15, FORMAT_IQ2_XXS = 16, FORMAT_IQ2_XS = 17, FORMAT_IQ3_XXS = 18,
    FORMAT_IQ1_S = 19, FORMAT_IQ4_NL = 20, FORMAT_IQ3_S = 21, FORMAT_IQ2_S = 22,
    FORMAT_IQ4_XS = 23, FORMAT_I8 = 24, FORMAT_I16 = 25, FORMAT_I32 = 26, FORMAT_I64 = 27,
    FORMAT_F64 = 28, FORMAT_IQ1_M = 29, FORMAT_BF16 = 30, FORMAT_TQ1_0 = 34, FORMAT_TQ2_0 = 35,
    FORMAT_MXFP4 = 39, FORMAT_NVFP4 = 40, FORMAT_Q1_0 = 41, FORMAT_MAX = 64,
};
/* clang-format on */

struct format_field {
    uint16_t offset, bytes; /* within a block */
    uint8_t unit;           /* bytes that stay together; 0 ends the list */
};

/* A block of a quantized format as small integers:
 *
 *     x[i] = d * scale[i / 16] * q[i] - dmin * min[i / 16]
 *
 * with the scales of 32 elements standing twice. d * scale * q is exact in float. scale is 1 where
 * a format has but one, min and dmin are 0 where it has none. Formats that offset their scales or
 * quants are brought to this form by powers of two: IQ1 has q = 8 * grid +- 1 and d / 8. */
struct format_ints {
    float d, dmin;
    int8_t scale[16], min[16];
    int8_t q[256];
};

struct format {
    const char *name; /* "Q4_K" */
    uint16_t block_elems, block_bytes;
    bool computable;              /* dequantization, packing and a matrix kernel exist */
    struct format_field field[6]; /* in the order they have in a panel */
    void (*decode)(const void *block, struct format_ints *out); /* NULL for F32, F16, BF16 */
};

/* NULL for an id that no known version of the format defines. */
const struct format *format_find(uint32_t id);

/* K must be a multiple of block_elems. */
static inline size_t format_row_bytes(const struct format *f, size_t k)
{
    return k / f->block_elems * f->block_bytes;
}

/* row: format_row_bytes(k) bytes, any alignment; out [k]. */
void format_dequant_row(const struct format *f, const void *row, size_t k, float *out);

/* n_row (1..PANEL_ROWS) rows, row_bytes apart, into one panel of PANEL_ROWS * format_row_bytes(k)
 * bytes (64-byte aligned); rows from n_row on become zero. No overlap. */
void format_pack_panel(const struct format *f, const void *rows, size_t row_bytes, unsigned n_row,
                       size_t k, void *panel);
/* The inverse for row r of a panel, bit-exact. */
void format_unpack_row(const struct format *f, const void *panel, unsigned r, size_t k, void *row);

/* Q8_0 from floats (d = max|x| / 127 stored as f16, round to nearest): for weights that numoe must
 * derive itself (a transposed attn_kv_b). k a multiple of 32. */
void format_quantize_q8_0(const float *x, size_t k, void *row);

float format_f16_to_f32(uint16_t h);
uint16_t format_f32_to_f16(float f); /* round to nearest even */
static inline float format_bf16_to_f32(uint16_t h)
{
    union {
        uint32_t u;
        float f;
    } v = {(uint32_t)h << 16};
    return v.f;
}

#endif
