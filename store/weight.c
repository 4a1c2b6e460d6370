/* Products of placed weights with activations: how the rows of a node's part are handed to its
 * workers and on to the kernels. Knows panels and nodes, not what a weight means. Nothing here
 * allocates or fails; each output element is written by exactly one worker.
 */
#include "store/weight.h"

#include "base/mem.h"
#include "store/act.h"

uint32_t weight_grain(const struct worker *wk, uint32_t n, uint32_t max)
{
    const uint32_t pieces = wk->nw == 1 ? 1 : 4 * wk->nw;
    const uint32_t grain = (n + pieces - 1) / pieces;
    return MAX(1u, MIN(grain, max));
}

static const uint8_t *part_panels(const struct weight *w, uint32_t mat, unsigned in, uint32_t panel)
{
    const struct weight_part *part = &w->part[in];
    return part->data + mat * part->mat_bytes + panel * w->panel_bytes;
}

void weight_matmul_panels(const struct weight *w, uint32_t mat, unsigned in, uint32_t panel0,
                          uint32_t panel1, const struct kern *kern, const struct kern_act *x,
                          const uint32_t *xi, const uint32_t *yi, unsigned n_token, float *y,
                          size_t ldy)
{
    const struct weight_part *part = &w->part[in];
    const uint32_t row0 = part->row0 + panel0 * PANEL_ROWS;
    const uint32_t row1 = MIN(part->row0 + panel1 * PANEL_ROWS, part->row1);
    kern->matmul[w->format_id](part_panels(w, mat, in, panel0), row1 - row0, x, xi, yi, n_token,
                               y + row0, ldy);
}

void weight_matmul(const struct weight *w, uint32_t mat, struct worker *wk, const struct kern *kern,
                   const struct kern_act *x, const uint32_t *xi, const uint32_t *yi,
                   unsigned n_token, float *y, size_t ldy)
{
    const uint32_t n_panel = weight_part_panels(&w->part[wk->in]);
    if (n_panel == 0 || n_token == 0) {
        return;
    }
    struct share share;
    uint32_t lo, hi;
    share_begin(&share, wk, n_panel, weight_grain(wk, n_panel, n_panel));
    while (share_next(&share, &lo, &hi)) {
        weight_matmul_panels(w, mat, wk->in, lo, hi, kern, x, xi, yi, n_token, y, ldy);
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
static void glu_block(const struct weight_glu *g, uint32_t mat, unsigned in, uint32_t p0,
                      uint32_t p1, const struct kern *kern, const struct kern_act *x,
                      const uint32_t *xi, const uint32_t *hi, unsigned nt, float *scratch, float *h,
                      size_t ldh)
{
    const struct weight_part *part = &g->gate->part[in];
    const uint32_t row0 = part->row0 + p0 * PANEL_ROWS;
    const uint32_t n_row = MIN(part->row0 + p1 * PANEL_ROWS, part->row1) - row0;
    float *gate = scratch, *up = scratch + WEIGHT_GLU_SCRATCH;
    kern->matmul[g->gate->format_id](part_panels(g->gate, mat, in, p0), n_row, x, xi, NULL, nt,
                                     gate, n_row);
    kern->matmul[g->up->format_id](part_panels(g->up, mat, in, p0), n_row, x, xi, NULL, nt, up,
                                   n_row);
    for (unsigned t = 0; t < nt; t++) {
        const size_t to = hi == NULL ? t : hi[t];
        glu_row(g, mat, in, row0, n_row, kern, gate + (size_t)t * n_row, up + (size_t)t * n_row,
                h + to * ldh + row0);
    }
}

void weight_glu_panels(const struct weight_glu *g, uint32_t mat, unsigned in, uint32_t panel0,
                       uint32_t panel1, const struct kern *kern, const struct kern_act *x,
                       const uint32_t *xi, const uint32_t *hi, unsigned n_token, float *scratch,
                       float *h, size_t ldh)
{
    const unsigned max_token = WEIGHT_GLU_SCRATCH / PANEL_ROWS;
    for (unsigned t0 = 0; t0 < n_token; t0 += max_token) {
        const unsigned nt = MIN(max_token, n_token - t0);
        const uint32_t step = max_token / nt;
        struct kern_act from = *x;
        act_skip(&from, xi == NULL ? t0 : 0);
        for (uint32_t p = panel0; p < panel1; p += step) {
            glu_block(g, mat, in, p, MIN(p + step, panel1), kern, &from,
                      xi == NULL ? NULL : xi + t0, hi == NULL ? NULL : hi + t0, nt, scratch,
                      hi == NULL ? h + t0 * ldh : h, ldh);
        }
    }
}

void weight_row(const struct weight *w, uint32_t mat, uint32_t row, float *out, void *scratch)
{
    const struct weight_part *part = w->part;
    while (row < part->row0 || row >= part->row1) {
        part++;
    }
    const uint32_t r = row - part->row0;
    const uint8_t *panel = part_panels(w, mat, (unsigned)(part - w->part), r / PANEL_ROWS);
    format_unpack_row(w->format, panel, r % PANEL_ROWS, w->k, scratch);
    format_dequant_row(w->format, scratch, w->k, out);
}

size_t weight_row_scratch_bytes(const struct weight *w)
{
    return format_row_bytes(w->format, w->k);
}
