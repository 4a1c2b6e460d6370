/* Products of placed weights with activations: how the rows of a node's part are handed to its
 * workers and on to the kernels. Knows panels and nodes, not what a weight means. Nothing here
 * allocates or fails; each output element is written by exactly one worker. What is read is counted
 * where it is read.
 */
#include "store/weight.h"

#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"
#include "store/act.h"

uint32_t weight_grain(const struct worker *wk, uint32_t n, uint32_t max)
{
    const uint32_t pieces = wk->nw == 1 ? 1 : 4 * wk->nw;
    const uint32_t grain = (n + pieces - 1) / pieces;
    return MAX(1u, MIN(grain, max));
}

unsigned weight_row_node(const struct weight *w, uint32_t row)
{
    unsigned in = 0;
    while (row < w->part[in].row0 || row >= w->part[in].row1) {
        in++;
    }
    return in;
}

static void count_bytes(struct weight_reader *rd, const struct weight *w, uint32_t mat,
                        uint32_t panel, uint64_t bytes)
{
    if (!w->dealt || weight_holds(w, rd->in, mat, panel)) {
        rd->local_bytes += bytes;
    } else {
        rd->remote_bytes += bytes;
    }
}

void weight_will_need(const struct weight *w, uint32_t mat, unsigned in)
{
    const struct weight_part *part = &w->part[in];
    if (w->map == NULL || part->row0 == part->row1) {
        return;
    }
    const size_t row_bytes = w->panel_bytes / PANEL_ROWS;
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t from = (uintptr_t)w->map[mat] + part->row0 * row_bytes;
    const uintptr_t to = (uintptr_t)w->map[mat] + part->row1 * row_bytes;
    madvise((void *)(from / page * page), to - from / page * page, MADV_WILLNEED);
}

/* As multiply(), from the file: 16 rows become a panel, which is used and forgotten. */
static void multiply_mapped(const struct weight *w, uint32_t mat, struct weight_reader *rd,
                            uint32_t row0, uint32_t n_row, const struct kern_act *x,
                            const uint32_t *xi, const uint32_t *yi, unsigned n_token, float *y,
                            size_t ldy)
{
    const size_t row_bytes = w->panel_bytes / PANEL_ROWS;
    for (uint32_t r = 0; r < n_row; r += PANEL_ROWS) {
        const uint32_t n = MIN(PANEL_ROWS, n_row - r);
        format_pack_panel(w->format, w->map[mat] + (row0 + r) * row_bytes, row_bytes, n, w->k,
                          rd->panel);
        rd->file_bytes += n * row_bytes;
        rd->kern->matmul[w->format_id](rd->panel, n, x, xi, yi, n_token, y + r, ldy);
    }
}

/* Rows [row0, row0 + n_row) of matrix mat, which the node computes: y from row0 on. Panels that are
 * dealt lie in different places and are taken one by one. */
static void multiply(const struct weight *w, uint32_t mat, struct weight_reader *rd, uint32_t row0,
                     uint32_t n_row, const struct kern_act *x, const uint32_t *xi,
                     const uint32_t *yi, unsigned n_token, float *y, size_t ldy)
{
    if (w->map != NULL) {
        multiply_mapped(w, mat, rd, row0, n_row, x, xi, yi, n_token, y, ldy);
        return;
    }
    const uint32_t step = w->dealt ? PANEL_ROWS : n_row;
    for (uint32_t r = 0; r < n_row; r += step) {
        const uint32_t n = MIN(step, n_row - r), panel = (row0 + r) / PANEL_ROWS;
        count_bytes(rd, w, mat, panel, (n + PANEL_ROWS - 1) / PANEL_ROWS * w->panel_bytes);
        rd->kern->matmul[w->format_id](weight_panel(w, rd->in, mat, panel), n, x, xi, yi, n_token,
                                       y + r, ldy);
    }
}

void weight_matmul_panels(const struct weight *w, uint32_t mat, struct weight_reader *rd,
                          uint32_t panel0, uint32_t panel1, const struct kern_act *x,
                          const uint32_t *xi, const uint32_t *yi, unsigned n_token, float *y,
                          size_t ldy)
{
    const struct weight_part *part = &w->part[rd->in];
    const uint32_t row0 = part->row0 + panel0 * PANEL_ROWS;
    const uint32_t row1 = MIN(part->row0 + panel1 * PANEL_ROWS, part->row1);
    multiply(w, mat, rd, row0, row1 - row0, x, xi, yi, n_token, y + row0, ldy);
}

void weight_matmul(const struct weight *w, uint32_t mat, struct worker *wk,
                   struct weight_reader *rd, const struct kern_act *x, const uint32_t *xi,
                   const uint32_t *yi, unsigned n_token, float *y, size_t ldy)
{
    const uint32_t n_panel = weight_part_panels(&w->part[rd->in]);
    if (n_panel == 0 || n_token == 0) {
        return;
    }
    struct share share;
    uint32_t lo, hi;
    share_begin(&share, wk, n_panel, weight_grain(wk, n_panel, n_panel));
    while (share_next(&share, &lo, &hi)) {
        weight_matmul_panels(w, mat, rd, lo, hi, x, xi, yi, n_token, y, ldy);
    }
}

/* Rows [row0, row0 + n_row) of one token: biases, then the activation. */
static void glu_row(const struct weight_glu *g, uint32_t mat, unsigned in, uint32_t row0,
                    uint32_t n_row, const struct kern *kern, float *gate, float *up, float *h)
{
    if (weight_present(g->gate_bias)) {
        kern->add(gate, g->gate_bias->vec[in] + (size_t)mat * g->gate->n_row + row0, n_row);
    }
    if (weight_present(g->up_bias)) {
        kern->add(up, g->up_bias->vec[in] + (size_t)mat * g->up->n_row + row0, n_row);
    }
    if (g->act == FFN_SWIGLU_OAI) {
        kern->swiglu_oai(gate, up, n_row, g->act_alpha, g->act_limit, h);
    } else {
        kern->silu_mul(gate, up, n_row, h);
    }
}

/* nt tokens from x on, the rows of panels [p0, p1), all of which fit the scratch. */
static void glu_block(const struct weight_glu *g, uint32_t mat, struct weight_reader *rd,
                      uint32_t p0, uint32_t p1, const struct kern_act *x, const uint32_t *xi,
                      unsigned nt, float *scratch, float *h, size_t ldh)
{
    const struct weight_part *part = &g->gate->part[rd->in];
    const uint32_t row0 = part->row0 + p0 * PANEL_ROWS;
    const uint32_t n_row = MIN(part->row0 + p1 * PANEL_ROWS, part->row1) - row0;
    float *gate = scratch, *up = scratch + WEIGHT_GLU_SCRATCH;
    multiply(g->gate, mat, rd, row0, n_row, x, xi, NULL, nt, gate, n_row);
    multiply(g->up, mat, rd, row0, n_row, x, xi, NULL, nt, up, n_row);
    for (size_t t = 0; t < nt; t++) {
        glu_row(g, mat, rd->in, row0, n_row, rd->kern, gate + t * n_row, up + t * n_row,
                h + t * ldh + row0);
    }
}

void weight_glu_panels(const struct weight_glu *g, uint32_t mat, struct weight_reader *rd,
                       uint32_t panel0, uint32_t panel1, const struct kern_act *x,
                       const uint32_t *xi, unsigned n_token, float *scratch, float *h, size_t ldh)
{
    const unsigned max_token = WEIGHT_GLU_SCRATCH / PANEL_ROWS;
    for (unsigned t0 = 0; t0 < n_token; t0 += max_token) {
        const unsigned nt = MIN(max_token, n_token - t0);
        const uint32_t step = max_token / nt;
        struct kern_act from = *x;
        act_skip(&from, xi == NULL ? t0 : 0);
        for (uint32_t p = panel0; p < panel1; p += step) {
            glu_block(g, mat, rd, p, MIN(p + step, panel1), &from, xi == NULL ? NULL : xi + t0, nt,
                      scratch, h + t0 * ldh, ldh);
        }
    }
}

void weight_row(const struct weight *w, uint32_t mat, uint32_t row, struct weight_reader *rd,
                float *out, void *scratch)
{
    const uint32_t panel = row / PANEL_ROWS;
    count_bytes(rd, w, mat, panel, w->panel_bytes / PANEL_ROWS);
    format_unpack_row(w->format, weight_panel(w, rd->in, mat, panel), row % PANEL_ROWS, w->k,
                      scratch);
    format_dequant_row(w->format, scratch, w->k, out);
}

size_t weight_row_scratch_bytes(const struct weight *w)
{
    return format_row_bytes(w->format, w->k);
}
