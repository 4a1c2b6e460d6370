/* The table of block formats; packing, unpacking and dequantization driven by it, and conversions
 * of single floats. What the bits of quantized blocks mean is in format-decode.c. Nothing here
 * depends on an instruction set; packing is bound by memory when the matrix is. */
#include "kernels/format.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/format-decode.h"

/* Known by name and size alone. */
#define SIZED(id, elems, bytes)                                                                    \
    [FORMAT_##id] = {.name = #id, .block_elems = (elems), .block_bytes = (bytes)}

#define FLOATS(id, bytes)                                                                          \
    [FORMAT_##id] = {.name = #id,                                                                  \
                     .block_elems = 1,                                                             \
                     .block_bytes = (bytes),                                                       \
                     .computable = true,                                                           \
                     .field = {{0, (bytes), (bytes)}}}

/* Fields are {offset, bytes, unit}. */
#define QUANTS(id, elems, bytes, decoder, ...)                                                     \
    [FORMAT_##id] = {.name = #id,                                                                  \
                     .block_elems = (elems),                                                       \
                     .block_bytes = (bytes),                                                       \
                     .computable = true,                                                           \
                     .decode = format_decode_##decoder,                                            \
                     .field = {__VA_ARGS__}}

static const struct format formats[FORMAT_MAX] = {
    FLOATS(F32, 4),
    FLOATS(F16, 2),
    FLOATS(BF16, 2),

    QUANTS(Q4_0, 32, 18, q4_0, {0, 2, 2}, {2, 16, 4}),
    QUANTS(Q4_1, 32, 20, q4_1, {0, 2, 2}, {2, 2, 2}, {4, 16, 4}),
    QUANTS(Q5_0, 32, 22, q5_0, {0, 2, 2}, {2, 4, 4}, {6, 16, 4}),
    QUANTS(Q5_1, 32, 24, q5_1, {0, 2, 2}, {2, 2, 2}, {4, 4, 4}, {8, 16, 4}),
    QUANTS(Q8_0, 32, 34, q8_0, {0, 2, 2}, {2, 32, 4}),
    QUANTS(IQ4_NL, 32, 18, iq4_nl, {0, 2, 2}, {2, 16, 4}),
    QUANTS(MXFP4, 32, 17, mxfp4, {0, 1, 1}, {1, 16, 4}),

    /* d, dmin, scales, high bits, low bits */
    QUANTS(Q2_K, 256, 84, q2_k, {80, 2, 2}, {82, 2, 2}, {0, 16, 1}, {16, 64, 4}),
    QUANTS(Q3_K, 256, 110, q3_k, {108, 2, 2}, {96, 12, 1}, {0, 32, 4}, {32, 64, 4}),
    QUANTS(Q4_K, 256, 144, q4_k, {0, 2, 2}, {2, 2, 2}, {4, 12, 1}, {16, 128, 4}),
    QUANTS(Q5_K, 256, 176, q5_k, {0, 2, 2}, {2, 2, 2}, {4, 12, 1}, {16, 32, 4}, {48, 128, 4}),
    QUANTS(Q6_K, 256, 210, q6_k, {208, 2, 2}, {192, 16, 1}, {128, 64, 4}, {0, 128, 4}),
    QUANTS(IQ4_XS, 256, 136, iq4_xs, {0, 2, 2}, {2, 2, 2}, {4, 4, 1}, {8, 128, 4}),

    /* d, scales, high bits of the indices, signs, indices */
    QUANTS(IQ2_XXS, 256, 66, iq2_xxs, {0, 2, 2}, {2, 64, 4}),
    QUANTS(IQ2_XS, 256, 74, iq2_xs, {0, 2, 2}, {66, 8, 1}, {2, 64, 4}),
    QUANTS(IQ2_S, 256, 82, iq2_s, {0, 2, 2}, {74, 8, 1}, {66, 8, 1}, {34, 32, 4}, {2, 32, 4}),
    QUANTS(IQ3_XXS, 256, 98, iq3_xxs, {0, 2, 2}, {66, 32, 4}, {2, 64, 4}),
    QUANTS(IQ3_S, 256, 110, iq3_s, {0, 2, 2}, {106, 4, 1}, {66, 8, 1}, {74, 32, 4}, {2, 64, 4}),
    QUANTS(IQ1_S, 256, 50, iq1_s, {0, 2, 2}, {34, 16, 2}, {2, 32, 4}),
    QUANTS(IQ1_M, 256, 56, iq1_m, {48, 8, 2}, {32, 16, 2}, {0, 32, 4}),

    QUANTS(TQ1_0, 256, 54, tq1_0, {52, 2, 2}, {48, 4, 4}, {0, 48, 4}),
    QUANTS(TQ2_0, 256, 66, tq2_0, {64, 2, 2}, {0, 64, 4}),

    /* Q8_1 and Q8_K are forms of activations: no file holds them. NVFP4 means nothing without the
     * scale that comes in a tensor of its own. */
    SIZED(Q8_1, 32, 36),
    SIZED(Q8_K, 256, 292),
    SIZED(NVFP4, 64, 36),
    SIZED(Q1_0, 128, 18),
    SIZED(I8, 1, 1),
    SIZED(I16, 1, 2),
    SIZED(I32, 1, 4),
    SIZED(I64, 1, 8),
    SIZED(F64, 1, 8),
};

const struct format *format_find(uint32_t id)
{
    return id < FORMAT_MAX && formats[id].name != NULL ? &formats[id] : NULL;
}

/* ------------------------------------------------------------------ panels */

/* A field of every row goes between its place in rows (n_unit units in a run) and its place in a
 * panel (PANEL_ROWS units apart). unit is a constant wherever this is inlined, so the copies are
 * single moves. A line of a row is finished before the next row's: with rows a power of two apart,
 * 16 of them at once would fall on each other in the cache. */
static inline void pack_units(const uint8_t *rows, size_t row_bytes, unsigned n_row, size_t n_unit,
                              size_t unit, uint8_t *panel)
{
    for (size_t iu0 = 0; iu0 < n_unit; iu0 += CACHE_LINE_BYTES / unit) {
        size_t iu1 = MIN(iu0 + CACHE_LINE_BYTES / unit, n_unit);
        for (unsigned r = 0; r < n_row; r++) {
            for (size_t iu = iu0; iu < iu1; iu++) {
                memcpy(panel + (iu * PANEL_ROWS + r) * unit, rows + r * row_bytes + iu * unit,
                       unit);
            }
        }
    }
}

static inline void unpack_units(const uint8_t *panel, size_t n_unit, size_t unit, uint8_t *row)
{
    for (size_t iu = 0; iu < n_unit; iu++) {
        memcpy(row + iu * unit, panel + iu * PANEL_ROWS * unit, unit);
    }
}

static void pack_field(const uint8_t *rows, size_t row_bytes, unsigned n_row, size_t bytes,
                       unsigned unit, uint8_t *panel)
{
    switch (unit) {
    case 1:
        pack_units(rows, row_bytes, n_row, bytes, 1, panel);
        break;
    case 2:
        pack_units(rows, row_bytes, n_row, bytes / 2, 2, panel);
        break;
    default:
        pack_units(rows, row_bytes, n_row, bytes / 4, 4, panel);
        break;
    }
}

static void unpack_field(const uint8_t *panel, unsigned r, size_t bytes, unsigned unit,
                         uint8_t *row)
{
    panel += r * unit;
    switch (unit) {
    case 1:
        unpack_units(panel, bytes, 1, row);
        break;
    case 2:
        unpack_units(panel, bytes / 2, 2, row);
        break;
    default:
        unpack_units(panel, bytes / 4, 4, row);
        break;
    }
}

void format_pack_panel(const struct format *f, const void *rows, size_t row_bytes, unsigned n_row,
                       size_t k, void *panel)
{
    const uint8_t *from = rows;
    uint8_t *to = panel;

    if (n_row < PANEL_ROWS) {
        memset(panel, 0, format_row_bytes(f, k) * PANEL_ROWS);
    }
    if (f->block_elems == 1) { /* one field: the row is a single run of units */
        pack_field(from, row_bytes, n_row, format_row_bytes(f, k), f->field[0].unit, to);
        return;
    }
    for (size_t ib = 0; ib < k / f->block_elems; ib++, from += f->block_bytes) {
        for (const struct format_field *field = f->field; field->unit != 0; field++) {
            pack_field(from + field->offset, row_bytes, n_row, field->bytes, field->unit, to);
            to += (size_t)field->bytes * PANEL_ROWS;
        }
    }
}

void format_unpack_row(const struct format *f, const void *panel, unsigned r, size_t k, void *row)
{
    const uint8_t *from = panel;
    uint8_t *to = row;

    if (f->block_elems == 1) {
        unpack_field(from, r, format_row_bytes(f, k), f->field[0].unit, to);
        return;
    }
    for (size_t ib = 0; ib < k / f->block_elems; ib++, to += f->block_bytes) {
        for (const struct format_field *field = f->field; field->unit != 0; field++) {
            unpack_field(from, r, field->bytes, field->unit, to + field->offset);
            from += (size_t)field->bytes * PANEL_ROWS;
        }
    }
}

/* ------------------------------------------------------------------ floats */

union float_bits {
    float f;
    uint32_t u;
};

float format_f16_to_f32(uint16_t h)
{
    union float_bits v = {.u = (uint32_t)(h & 0x7fff) << 13};
    if (v.u >=
        0x7c00u << 13) { /* infinity; NaN becomes quiet, as the processors' conversion does */
        v.u |= 0x7f800000u;
        if (v.u > 0x7f800000u) {
            v.u |= 0x00400000u;
        }
    } else {
        v.f *= 0x1p112f; /* from one exponent bias to the other; makes subnormals normal */
    }
    v.u |= (uint32_t)(h & 0x8000) << 16;
    return v.f;
}

uint16_t format_f32_to_f16(float f)
{
    union float_bits v = {f};
    uint32_t sign = v.u >> 16 & 0x8000, half;

    v.u &= 0x7fffffff;
    if (v.u > 0x7f800000u) {
        half = 0x7e00u | (v.u >> 13 & 0x3ff); /* NaN keeps the upper bits, quiet */
    } else if (v.u >= 0x47800000u) {          /* 65536 and up */
        half = 0x7c00u;
    } else if (v.u < 0x38800000u) { /* below 2^-14: the addition rounds to units of 2^-24 */
        v.f += 0.5f;
        half = v.u - 0x3f000000u;
    } else { /* a carry out of the mantissa gives the next exponent, in the end infinity */
        half = (v.u + 0xfff + (v.u >> 13 & 1) - (112u << 23)) >> 13;
    }
    return (uint16_t)(sign | half);
}

static void dequant_ints(const struct format_ints *b, unsigned n, float *out)
{
    for (unsigned i = 0; i < n; i++) {
        float scale = b->d * (float)b->scale[i / 16];
        float min = b->dmin * (float)b->min[i / 16];
        out[i] = scale * (float)b->q[i] - min;
    }
}

static void dequant_floats(uint32_t id, const uint8_t *row, size_t k, float *out)
{
    for (size_t i = 0; i < k; i++) {
        uint16_t h = (uint16_t)(row[2 * i] | row[2 * i + 1] << 8);
        out[i] = id == FORMAT_F16 ? format_f16_to_f32(h) : format_bf16_to_f32(h);
    }
}

void format_dequant_row(const struct format *f, const void *row, size_t k, float *out)
{
    if (f->decode == NULL) {
        if (f == &formats[FORMAT_F32]) {
            memcpy(out, row, k * sizeof(float));
        } else {
            dequant_floats((uint32_t)(f - formats), row, k, out);
        }
        return;
    }
    const uint8_t *block = row;
    for (size_t i = 0; i < k; i += f->block_elems, block += f->block_bytes) {
        struct format_ints ints;
        f->decode(block, &ints);
        dequant_ints(&ints, f->block_elems, out + i);
    }
}

void format_quantize_q8_0(const float *x, size_t k, void *row)
{
    uint8_t *block = row;
    for (size_t i = 0; i < k; i += 32, block += 34) {
        float max = 0;
        bool finite = true;
        for (unsigned j = 0; j < 32; j++) {
            max = fmaxf(max, fabsf(x[i + j]));
            finite &= isfinite(x[i + j]) != 0;
        }
        float d = finite ? max / 127 : NAN;
        /* what is too small for a normal d is zero in f16 anyway */
        float inverse = d >= FLT_MIN ? 1 / d : 0;
        uint16_t half = format_f32_to_f16(d);
        block[0] = (uint8_t)half;
        block[1] = (uint8_t)(half >> 8);
        for (unsigned j = 0; j < 32; j++) {
            block[2 + j] = (uint8_t)(inverse > 0 ? (int)roundf(x[i + j] * inverse) : 0);
        }
    }
}
