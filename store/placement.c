/* Which node holds which rows. Pure: numbers in, numbers out. */
#include "base/mem.h"
#include "store/store.h"

void placement_slice(uint32_t n_row, unsigned n_node, const double *share, uint32_t *row0_out)
{
    const uint32_t n_panel = (n_row + PANEL_ROWS - 1) / PANEL_ROWS;
    double total = 0, sum = 0;
    for (unsigned in = 0; in < n_node; in++) {
        total += share[in];
    }
    for (unsigned in = 0; in < n_node; in++) {
        const uint32_t panel = (uint32_t)(n_panel * (sum / total) + 0.5);
        row0_out[in] = MIN(panel * PANEL_ROWS, n_row);
        sum += share[in];
    }
    row0_out[n_node] = n_row;
}
