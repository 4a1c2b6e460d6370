/* The tile registers of AMX and what kernels/amx does with them. */
#include "tests/emulate/amx.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of palette 1. */
#define N_TILE    8u
#define MAX_ROWS  16u
#define MAX_BYTES 64u

/* What ldtilecfg reads: of register i, the bytes of a row and the number of rows. */
struct config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
_Static_assert(sizeof(struct config) == 64, "as the instruction reads it");

struct tile {
    unsigned rows, row_bytes;
    uint8_t byte[MAX_ROWS][MAX_BYTES];
};

static _Thread_local struct {
    int configured;
    struct tile tile[N_TILE];
} state;

static void require(int condition, const char *instruction, unsigned tile, const char *text)
{
    if (!condition) {
        fprintf(stderr, "emulated AMX: %s, tile %u: %s\n", instruction, tile, text);
        abort();
    }
}

/* A register that may be used. */
static struct tile *tile_at(const char *instruction, unsigned i)
{
    require(state.configured, instruction, i, "there is no tile configuration");
    require(i < N_TILE, instruction, i, "there is no such register");
    require(state.tile[i].rows > 0, instruction, i, "it is not configured");
    return &state.tile[i];
}

void emulated_ldtilecfg(const void *config)
{
    static const char *const name = "ldtilecfg";
    struct config c;
    memcpy(&c, config, sizeof(c));
    memset(&state, 0, sizeof(state));
    if (c.palette == 0) {
        return;
    }
    require(c.palette == 1, name, 0, "the palette is not 1");
    require(c.start_row == 0, name, 0, "the start row is not 0, which an interrupt alone makes so");
    for (unsigned i = 0; i < sizeof(c.reserved); i++) {
        require(c.reserved[i] == 0, name, 0, "reserved bytes are not 0");
    }
    for (unsigned i = 0; i < 16; i++) {
        require(i < N_TILE || (c.rows[i] == 0 && c.row_bytes[i] == 0), name, i,
                "there is no such register in this palette");
        require(c.rows[i] <= MAX_ROWS, name, i, "more than 16 rows");
        require(c.row_bytes[i] <= MAX_BYTES, name, i, "rows of more than 64 bytes");
        require((c.rows[i] == 0) == (c.row_bytes[i] == 0), name, i, "rows without bytes");
    }
    state.configured = 1;
    for (unsigned i = 0; i < N_TILE; i++) {
        state.tile[i].rows = c.rows[i];
        state.tile[i].row_bytes = c.row_bytes[i];
    }
}

void emulated_tilerelease(void)
{
    memset(&state, 0, sizeof(state));
}

void emulated_tilezero(unsigned to)
{
    struct tile *t = tile_at("tilezero", to);
    memset(t->byte, 0, sizeof(t->byte));
}

void emulated_tileloadd(unsigned to, const void *base, ptrdiff_t stride_bytes)
{
    struct tile *t = tile_at("tileloadd", to);
    memset(t->byte, 0, sizeof(t->byte));
    for (unsigned row = 0; row < t->rows; row++) {
        memcpy(t->byte[row], (const uint8_t *)base + row * stride_bytes, t->row_bytes);
    }
}

void emulated_tilestored(unsigned from, void *base, ptrdiff_t stride_bytes)
{
    const struct tile *t = tile_at("tilestored", from);
    for (unsigned row = 0; row < t->rows; row++) {
        memcpy((uint8_t *)base + row * stride_bytes, t->byte[row], t->row_bytes);
    }
}

/* to[m, n] += the sum over k of a[m, k] * b[k, n]: dwords of `to`, four bytes of a and b each. */
static void dot_products(const char *name, unsigned to, unsigned ia, unsigned ib, int b_is_signed)
{
    struct tile *c = tile_at(name, to);
    const struct tile *a = tile_at(name, ia), *b = tile_at(name, ib);
    require(to != ia && to != ib && ia != ib, name, to, "the three registers are not different");
    require(c->row_bytes % 4 == 0 && a->row_bytes % 4 == 0 && b->row_bytes % 4 == 0, name, to,
            "rows are not of whole dwords");
    require(c->rows == a->rows, name, to, "the first source has another number of rows");
    require(c->row_bytes == b->row_bytes, name, to, "the second source has other columns");
    require(a->row_bytes / 4 == b->rows, name, to,
            "columns of the first source are not the rows of the second");
    for (unsigned m = 0; m < c->rows; m++) {
        for (unsigned n = 0; n < c->row_bytes; n += 4) {
            uint32_t sum; /* wraps, as it does there */
            memcpy(&sum, &c->byte[m][n], 4);
            for (unsigned k = 0; k < a->row_bytes; k++) {
                const uint8_t v = b->byte[k / 4][n + k % 4];
                sum += (uint32_t)((int8_t)a->byte[m][k] * (b_is_signed ? (int8_t)v : v));
            }
            memcpy(&c->byte[m][n], &sum, 4);
        }
    }
}

void emulated_tdpbssd(unsigned to, unsigned a, unsigned b)
{
    dot_products("tdpbssd", to, a, b, 1);
}

void emulated_tdpbsud(unsigned to, unsigned a, unsigned b)
{
    dot_products("tdpbsud", to, a, b, 0);
}
