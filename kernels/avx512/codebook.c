/* The codebooks of kernels/format-tables.h as the vector kernels look them up. Plain C. */
#include "kernels/avx512/codebook.h"

#include "base/mem.h"
#include "kernels/format-tables.h"

struct avx512_codebooks avx512_codebooks;

static const int8_t magnitudes_iq2[] = {8, 25, 43};
static const int8_t magnitudes_iq3_xxs[] = {4, 12, 20, 28, 36, 44, 52, 62};
static const int8_t magnitudes_iq3_s[] = {1, 3, 5, 7, 9, 11, 13, 15};
static const int8_t values_of_iq1[] = {-1, 0, 1};

/* n elements of an entry, each as its place in `values`, `bits` wide. */
static uint16_t encode(uint64_t entry, unsigned n, unsigned bits, const int8_t *values)
{
    unsigned codes = 0;
    for (unsigned i = 0; i < n; i++) {
        unsigned code = 0;
        while (values[code] != (int8_t)(entry >> 8 * i)) {
            code++;
        }
        codes |= code << bits * i;
    }
    return (uint16_t)codes;
}

static void split(uint16_t codes, size_t i, uint8_t *low, uint8_t *high)
{
    low[i] = (uint8_t)codes;
    high[i] = (uint8_t)(codes >> 8);
}

/* Values plus offset of n codes, then of the same codes with the sign's bit set. */
static void fill_values(uint8_t *to, const int8_t *magnitude, unsigned n_bit, unsigned n,
                        int offset)
{
    for (unsigned i = 0; i < 64; i++) {
        unsigned code = i % (1u << n_bit);
        int v = code < n ? magnitude[code] : 0;
        to[i] = (uint8_t)(offset + (i >> n_bit & 1 ? -v : v));
    }
}

void avx512_codebooks_fill(void)
{
    struct avx512_codebooks *to = &avx512_codebooks;
    for (size_t i = 0; i < 256; i++) {
        split(encode(format_grid_iq2_xxs[i], 8, 2, magnitudes_iq2), i, to->iq2_xxs[0],
              to->iq2_xxs[1]);
        split(encode(format_grid_iq3_xxs[i], 4, 4, magnitudes_iq3_xxs), i, to->iq3_xxs[0],
              to->iq3_xxs[1]);
    }
    for (size_t i = 0; i < 512; i++) {
        split(encode(format_grid_iq2_xs[i], 8, 2, magnitudes_iq2), i, to->iq2_xs[0], to->iq2_xs[1]);
        split(encode(format_grid_iq3_s[i], 4, 4, magnitudes_iq3_s), i, to->iq3_s[0], to->iq3_s[1]);
    }
    for (size_t i = 0; i < 1024; i++) {
        to->iq2_s[i] = encode(format_grid_iq2_s[i], 8, 2, magnitudes_iq2);
    }
    for (size_t i = 0; i < 2048; i++) {
        to->iq1[i] = encode(format_grid_iq1[i], 8, 2, values_of_iq1);
    }
    for (unsigned i = 0; i < 128; i++) {
        to->even_signs[i] = (uint8_t)format_even_signs(i);
    }
    fill_values(to->value_iq2, magnitudes_iq2, 2, ARRAY_LEN(magnitudes_iq2), 43);
    fill_values(to->value_iq3_xxs, magnitudes_iq3_xxs, 3, ARRAY_LEN(magnitudes_iq3_xxs), 62);
    fill_values(to->value_iq3_s, magnitudes_iq3_s, 3, ARRAY_LEN(magnitudes_iq3_s), 15);
    for (unsigned i = 0; i < 64; i++) { /* times 8, an eighth more or less, offset 9 */
        int v = 8 * ((int)(i % 4) - 1) + (i & 4 ? -1 : 1) + 9;
        to->value_iq1[i] = (uint8_t)(i % 4 < 3 ? v : 9);
    }
}
