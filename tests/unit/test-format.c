/* kernels/format: the table against the sizes GGUF defines, dequantization against vectors of the
 * gguf Python package (tests/data/format), packing against its definition, conversions against the
 * definition of rounding. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>

#include "base/mem.h"
#include "kernels/format.h"
#include "tests/unit/testdata.h"

static const struct {
    uint32_t id;
    const char *name;
    unsigned block_elems, block_bytes;
} known[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},
    {3, "Q4_1", 32, 20},      {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},
    {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 36},      {10, "Q2_K", 256, 84},
    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66},
    {17, "IQ2_XS", 256, 74},  {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},
    {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},  {22, "IQ2_S", 256, 82},
    {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},
    {29, "IQ1_M", 256, 56},   {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},
    {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},    {40, "NVFP4", 64, 36},
    {41, "Q1_0", 128, 18},
};

Test(format, every_type_is_known_by_name_and_size)
{
    size_t n_found = 0;
    for (uint32_t id = 0; id < 2 * FORMAT_MAX; id++) {
        n_found += format_find(id) != NULL;
    }
    cr_assert_eq(n_found, ARRAY_LEN(known));
    cr_assert_null(format_find(UINT32_MAX));
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        const struct format *f = format_find(known[i].id);
        cr_assert_not_null(f, "type %u", known[i].id);
        cr_expect_str_eq(f->name, known[i].name);
        cr_expect_eq(f->block_elems, known[i].block_elems, "%s", f->name);
        cr_expect_eq(f->block_bytes, known[i].block_bytes, "%s", f->name);
    }
}

/* ------------------------------------------------------------------ vectors */

struct vectors {
    uint32_t n_block, n_full;
    uint8_t *blocks;
    float *floats; /* of the first n_full blocks */
    uint64_t hash; /* of the floats of all */
};

static FILE *open_vectors(const char *name)
{
    char rel[64];
    snprintf(rel, sizeof(rel), "tests/data/format/%s.bin", name);
    char *path = test_src_path(rel);
    cr_assert_not_null(path, "%s is missing", rel);
    FILE *file = fopen(path, "rb");
    cr_assert_not_null(file);
    free(path);
    return file;
}

static void *read_bytes(FILE *file, size_t n)
{
    void *p = malloc(n);
    cr_assert(p != NULL && fread(p, 1, n, file) == n, "a vector file is too short");
    return p;
}

static void read_u32(FILE *file, uint32_t *value)
{
    cr_assert_eq(fread(value, sizeof(*value), 1, file), 1);
}

static struct vectors load_vectors(const struct format *f)
{
    struct vectors v;
    FILE *file = open_vectors(f->name);
    read_u32(file, &v.n_block);
    read_u32(file, &v.n_full);
    v.blocks = read_bytes(file, (size_t)v.n_block * f->block_bytes);
    v.floats = read_bytes(file, (size_t)v.n_full * f->block_elems * sizeof(float));
    cr_assert_eq(fread(&v.hash, sizeof(v.hash), 1, file), 1);
    fclose(file);
    return v;
}

static void free_vectors(struct vectors *v)
{
    free(v->blocks);
    free(v->floats);
}

static uint64_t fnv1a(const void *data, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) {
        h = (h ^ ((const uint8_t *)data)[i]) * 0x100000001b3u;
    }
    return h;
}

Test(format, dequantization_is_bit_exact)
{
    unsigned n_computable = 0;
    for (uint32_t id = 0; id < FORMAT_MAX; id++) {
        const struct format *f = format_find(id);
        if (f == NULL || !f->computable) {
            continue;
        }
        n_computable++;
        struct vectors v = load_vectors(f);
        size_t k = (size_t)v.n_block * f->block_elems, n_full = (size_t)v.n_full * f->block_elems;
        float *out = malloc(k * sizeof(float));
        uint8_t *odd = malloc(format_row_bytes(f, k) + 1); /* rows may stand anywhere */
        memcpy(odd + 1, v.blocks, format_row_bytes(f, k));

        format_dequant_row(f, odd + 1, k, out);
        for (size_t i = 0; i < n_full; i++) {
            cr_assert_eq(memcmp(&out[i], &v.floats[i], sizeof(float)), 0,
                         "%s element %zu is %.9g, expected %.9g", f->name, i, (double)out[i],
                         (double)v.floats[i]);
        }
        cr_expect_eq(fnv1a(out, k * sizeof(float)), v.hash, "%s: later blocks differ", f->name);
        free(odd);
        free(out);
        free_vectors(&v);
    }
    cr_assert_eq(n_computable, 25);
}

/* What kernels/kern.h says of its integers: exact as floats. */
Test(format, sums_of_integers_are_exact_floats)
{
    for (uint32_t id = 0; id < FORMAT_MAX; id++) {
        const struct format *f = format_find(id);
        if (f == NULL || f->decode == NULL) {
            continue;
        }
        struct vectors v = load_vectors(f);
        for (uint32_t ib = 0; ib < v.n_block; ib++) {
            struct format_ints b;
            f->decode(v.blocks + (size_t)ib * f->block_bytes, &b);
            for (unsigned g = 0; g < f->block_elems / 32u; g++) {
                int sum = 0, min = 0;
                for (unsigned i = 32 * g; i < 32 * g + 32; i++) {
                    sum += abs(b.scale[i / 16] * b.q[i]) * 127;
                    min += abs(b.min[i / 16]) * 127;
                }
                cr_assert_lt(sum, 1 << 24, "%s", f->name);
                cr_assert_lt(min, 1 << 24, "%s", f->name);
            }
        }
        free_vectors(&v);
    }
}

/* ------------------------------------------------------------------ panels */

Test(format, fields_cover_the_block)
{
    for (uint32_t id = 0; id < FORMAT_MAX; id++) {
        const struct format *f = format_find(id);
        if (f == NULL || !f->computable) {
            continue;
        }
        uint8_t covered[512] = {0};
        unsigned n = 0;
        for (const struct format_field *field = f->field; field->unit != 0; field++) {
            cr_assert(field->unit == 1 || field->unit == 2 || field->unit == 4, "%s", f->name);
            cr_assert_eq(field->bytes % field->unit, 0, "%s", f->name);
            for (unsigned i = 0; i < field->bytes; i++, n++) {
                covered[field->offset + i]++;
            }
        }
        cr_assert_eq(n, f->block_bytes, "%s", f->name);
        for (unsigned i = 0; i < f->block_bytes; i++) {
            cr_assert_eq(covered[i], 1, "%s byte %u", f->name, i);
        }
    }
}

/* The byte of a panel where byte `at` of block ib of row r belongs. */
static size_t panel_place(const struct format *f, size_t ib, unsigned r, unsigned at)
{
    size_t place = ib * f->block_bytes * PANEL_ROWS;
    for (const struct format_field *field = f->field; field->unit != 0; field++) {
        unsigned unit = field->unit;
        if (at >= field->offset && at < field->offset + field->bytes) {
            unsigned in_field = at - field->offset;
            return place + in_field / unit * unit * PANEL_ROWS + r * unit + in_field % unit;
        }
        place += (size_t)field->bytes * PANEL_ROWS;
    }
    return SIZE_MAX;
}

static void check_panel(const struct format *f, unsigned n_row, size_t n_block)
{
    size_t k = n_block * f->block_elems, row_bytes = format_row_bytes(f, k);
    size_t stride = row_bytes + 3, panel_bytes = row_bytes * PANEL_ROWS;
    uint8_t *rows = malloc((n_row - 1) * stride + row_bytes), *back = malloc(row_bytes);
    void *memory = NULL;
    cr_assert_eq(posix_memalign(&memory, 64, panel_bytes), 0);
    uint8_t *panel = memory;
    for (size_t i = 0; i < (n_row - 1) * stride + row_bytes; i++) {
        rows[i] = (uint8_t)(1 + (i * 2654435761u >> 13) % 255); /* no zeros */
    }
    memset(panel, 0xee, panel_bytes);

    format_pack_panel(f, rows, stride, n_row, k, panel);
    for (unsigned r = 0; r < PANEL_ROWS; r++) {
        for (size_t i = 0; i < row_bytes; i++) {
            uint8_t expected = r < n_row ? rows[r * stride + i] : 0;
            size_t place = panel_place(f, i / f->block_bytes, r, (unsigned)(i % f->block_bytes));
            cr_assert_eq(panel[place], expected, "%s row %u of %u byte %zu", f->name, r, n_row, i);
        }
        format_unpack_row(f, panel, r, k, back);
        for (size_t i = 0; i < row_bytes; i++) {
            cr_assert_eq(back[i], r < n_row ? rows[r * stride + i] : 0, "%s unpacked", f->name);
        }
    }
    free(rows);
    free(back);
    free(panel);
}

Test(format, panels_interleave_16_rows)
{
    for (uint32_t id = 0; id < FORMAT_MAX; id++) {
        const struct format *f = format_find(id);
        if (f == NULL || !f->computable) {
            continue;
        }
        for (unsigned n_row = 1; n_row <= PANEL_ROWS; n_row += 5) {
            check_panel(f, n_row, 1);
            check_panel(f, n_row, 3);
        }
    }
}

/* One panel by hand, so that the definition itself is held: kernels are written for these bytes. */
Test(format, layout_of_a_q4_k_panel)
{
    uint8_t rows[16][144], panel[16 * 144] __attribute__((aligned(64)));
    for (unsigned r = 0; r < 16; r++) {
        for (unsigned i = 0; i < 144; i++) {
            rows[r][i] = (uint8_t)(16 * i + r);
        }
    }
    format_pack_panel(format_find(FORMAT_Q4_K), rows, 144, 16, 256, panel);
    for (unsigned r = 0; r < 16; r++) {
        cr_expect_eq(memcmp(panel + 2 * r, rows[r], 2), 0, "d of row %u", r);
        cr_expect_eq(memcmp(panel + 32 + 2 * r, rows[r] + 2, 2), 0, "dmin");
        cr_expect_eq(panel[64 + r], rows[r][4], "first byte of scales");
        cr_expect_eq(panel[64 + 11 * 16 + r], rows[r][15], "last byte of scales");
        cr_expect_eq(memcmp(panel + 256 + 4 * r, rows[r] + 16, 4), 0, "first quants");
        cr_expect_eq(memcmp(panel + 2240 + 4 * r, rows[r] + 140, 4), 0, "last quants");
    }
}

Test(format, zero_blocks_are_zero)
{
    static const uint8_t zeros[512];
    for (uint32_t id = 0; id < FORMAT_MAX; id++) {
        const struct format *f = format_find(id);
        if (f == NULL || !f->computable) {
            continue;
        }
        float out[256];
        format_dequant_row(f, zeros, f->block_elems, out);
        for (unsigned i = 0; i < f->block_elems; i++) {
            cr_assert_eq(out[i], 0.0f, "%s", f->name);
        }
    }
}

/* ------------------------------------------------------------------ conversions */

/* The value of a finite half by its definition. */
static double half_value(unsigned h)
{
    unsigned exponent = h >> 10 & 31, mantissa = h & 1023;
    double value =
        exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, (int)exponent - 25);
    return h & 0x8000 ? -value : value;
}

Test(format, f16_to_f32_is_exact)
{
    for (unsigned h = 0; h < 0x10000; h++) {
        float f = format_f16_to_f32((uint16_t)h);
        if ((h & 0x7c00) != 0x7c00) {
            cr_assert_eq((double)f, half_value(h), "%04x", h);
            cr_assert_eq(!!signbit(f), h >> 15, "%04x", h);
        } else if (h & 0x3ff) {
            cr_assert(isnan(f), "%04x", h);
        } else {
            cr_assert_eq(f, h >> 15 ? -INFINITY : INFINITY);
        }
    }
}

Test(format, f32_to_f16_rounds_to_nearest_even)
{
    for (unsigned h = 0; h < 0x7c00; h++) {
        /* what the next half would be if there were one above the largest */
        double low = half_value(h), high = h == 0x7bff ? 65536 : half_value(h + 1);
        float middle = (float)((low + high) / 2);
        unsigned even = h & 1 ? h + 1 : h;
        cr_assert_eq(format_f32_to_f16((float)low), h);
        cr_assert_eq(format_f32_to_f16(-(float)low), h | 0x8000);
        cr_assert_eq(format_f32_to_f16(middle), even, "%04x", h);
        cr_assert_eq(format_f32_to_f16(nextafterf(middle, 0)), h, "%04x", h);
        cr_assert_eq(format_f32_to_f16(nextafterf(middle, INFINITY)), h + 1, "%04x", h);
        cr_assert_eq(format_f32_to_f16(-middle), even | 0x8000);
    }
    cr_expect_eq(format_f32_to_f16(INFINITY), 0x7c00);
    cr_expect_eq(format_f32_to_f16(3e38f), 0x7c00);
    cr_expect_eq(format_f32_to_f16(-1e-30f), 0x8000);
    cr_expect_eq(format_f32_to_f16(NAN) & 0x7e00, 0x7e00);
}

Test(format, quantize_q8_0_as_the_package_does)
{
    FILE *file = open_vectors("quantize-q8_0");
    uint32_t n_block;
    read_u32(file, &n_block);
    float *x = read_bytes(file, n_block * 32 * sizeof(float));
    uint8_t *expected = read_bytes(file, n_block * 34), *row = malloc(n_block * 34);
    fclose(file);

    format_quantize_q8_0(x, n_block * 32, row);
    for (uint32_t ib = 0; ib < n_block; ib++) {
        cr_expect_eq(memcmp(row + 34 * ib, expected + 34 * ib, 34), 0, "block %u", ib);
    }
    free(x);
    free(expected);
    free(row);
}

Test(format, quantize_q8_0_of_what_is_not_finite_is_nan)
{
    float x[64] = {1, 2, 3}, out[64];
    uint8_t row[68];
    x[5] = INFINITY;
    x[40] = NAN;
    format_quantize_q8_0(x, 64, row);
    format_dequant_row(format_find(FORMAT_Q8_0), row, 64, out);
    cr_expect(isnan(out[0]) && isnan(out[31]) && isnan(out[32]) && isnan(out[63]));
}
