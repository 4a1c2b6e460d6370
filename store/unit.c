/* One piece of loading work: reads rows of a tensor, packs or converts them, puts them in place.
 * Runs in workers of the node that the memory belongs to, so that they are the first to touch it.
 */
#include "store/load.h"

#include <string.h>

#include "base/mem.h"

/* Where rows from `row` of matrix mat of the job's source are in the file. */
static const struct gguf_tensor *find_rows(const struct load_job *job, uint32_t mat, uint32_t row,
                                           size_t *row_bytes, uint64_t *from)
{
    const struct tensor_source *src = job->src;
    const bool whole = src->whole != NULL;
    *row_bytes = format_row_bytes(format_find(src->format_id), src->k);
    mat += job->shape->from_mat;
    *from = *row_bytes *
            (whole ? (uint64_t)mat * job->shape->from_rows + job->shape->from_row0 + row : row);
    return whole ? src->whole : src->per_expert[mat];
}

/* Rows [row, row + n_row) of matrix mat of the job's source, as they are in the file. */
static numoe_status read_rows(const struct model *model, const struct load_job *job, uint32_t mat,
                              uint32_t row, uint32_t n_row, void *buf, numoe_error *err)
{
    size_t row_bytes;
    uint64_t from;
    const struct gguf_tensor *t = find_rows(job, mat, row, &row_bytes, &from);
    return gguf_read_tensor(model->gguf, t, from, n_row * row_bytes, buf, err);
}

const struct gguf_tensor *load_matrix_range(const struct load_job *job, uint32_t mat,
                                            uint64_t *from)
{
    size_t row_bytes;
    return find_rows(job, mat, 0, &row_bytes, from);
}

/* The matrix and the first of its panels that unit iu of a node covers; how many of them. */
static void find_unit(const struct load_job *job, unsigned in, uint32_t iu, uint32_t *mat,
                      uint32_t *panel, uint32_t *n_panel)
{
    const struct weight *w = job->w;
    const struct weight_part *part = &w->part[in];
    if (w->dealt) {
        const uint64_t at = (uint64_t)iu * w->n_node + in;
        *mat = (uint32_t)(at / weight_panels(w));
        *panel = (uint32_t)(at % weight_panels(w));
        *n_panel = 1;
        return;
    }
    const uint32_t n_held = weight_part_held(part);
    const uint32_t n_block = (n_held + job->block_panels - 1) / job->block_panels;
    const uint32_t first = iu % n_block * job->block_panels;
    *mat = part->mat != NULL ? part->mat[iu / n_block] : iu / n_block;
    *panel = part->held0 / PANEL_ROWS + first;
    *n_panel = MIN(job->block_panels, n_held - first);
}

bool load_unit_range(const struct load_job *job, unsigned in, uint32_t iu,
                     const struct gguf_tensor **t, uint64_t *from, size_t *bytes)
{
    uint32_t mat, panel, n_panel;
    size_t row_bytes;
    if (job->shape->kind != SHAPE_MATRIX) {
        return false;
    }
    find_unit(job, in, iu, &mat, &panel, &n_panel);
    const uint32_t row0 = panel * PANEL_ROWS;
    *t = find_rows(job, mat, row0, &row_bytes, from);
    *bytes = (MIN(row0 + n_panel * PANEL_ROWS, job->w->n_row) - row0) * row_bytes;
    return true;
}

static void place_matrix(const struct load_job *job, unsigned in, uint32_t iu, const uint8_t *rows,
                         uint64_t *placed_bytes)
{
    const struct weight *w = job->w;
    const size_t row_bytes = w->panel_bytes / PANEL_ROWS;
    uint32_t mat, panel0, n_panel;
    find_unit(job, in, iu, &mat, &panel0, &n_panel);
    const uint32_t row0 = panel0 * PANEL_ROWS;
    const uint32_t row1 = MIN(row0 + n_panel * PANEL_ROWS, w->n_row);
    for (uint32_t row = row0; row < row1; row += PANEL_ROWS) {
        /* The arena's memory is ours to fill until the store is handed out. */
        uint8_t *panel = (uint8_t *)weight_panel(w, in, mat, row / PANEL_ROWS);
        format_pack_panel(w->format, rows + (row - row0) * row_bytes, row_bytes,
                          MIN(PANEL_ROWS, row1 - row), w->k, panel);
    }
    *placed_bytes = n_panel * w->panel_bytes;
}

static numoe_status load_vector(const struct model *model, const struct load_job *job, unsigned in,
                                void *scratch, uint64_t *placed_bytes, numoe_error *err)
{
    const struct weight *w = job->w;
    const struct format *format = format_find(job->src->format_id);
    const size_t row_bytes = format_row_bytes(format, w->k);
    for (uint32_t mat = 0; mat < w->n_mat; mat++) {
        for (uint32_t row = 0; row < w->n_row; row++) {
            FORWARD_IF(read_rows(model, job, mat, row, 1, scratch, err));
            float *to = (float *)w->vec[in] + ((size_t)mat * w->n_row + row) * w->k;
            format_dequant_row(format, scratch, w->k, to);
        }
    }
    *placed_bytes = (uint64_t)w->n_mat * w->n_row * row_bytes;
    return NUMOE_OK;
}

/* Row in the format of a weight from floats; only the formats that transposed_format() chooses. */
static void encode_row(uint32_t format_id, const float *x, size_t k, void *row)
{
    uint8_t *to = row;
    for (size_t i = 0; i < k && format_id != FORMAT_Q8_0; i++) {
        if (format_id == FORMAT_F32) {
            memcpy(to + 4 * i, &x[i], 4);
        } else if (format_id == FORMAT_F16) {
            const uint16_t h = format_f32_to_f16(x[i]);
            memcpy(to + 2 * i, &h, 2);
        } else { /* BF16: x came from one, its lower half is zero */
            memcpy(to + 2 * i, (const uint8_t *)&x[i] + 2, 2);
        }
    }
    if (format_id == FORMAT_Q8_0) {
        format_quantize_q8_0(x, k, row);
    }
}

/* Scratch of SHAPE_K_B: source rows, all as floats [n_nope, kv_lora], one column, 16 rows to pack.
 */
struct k_b_scratch {
    size_t rows, floats, column, packed, bytes;
};

static struct k_b_scratch k_b_layout(const struct load_job *job)
{
    const struct weight *w = job->w;
    const size_t source_row = format_row_bytes(format_find(job->src->format_id), w->n_row);
    struct k_b_scratch s = {.rows = 0};
    s.floats = round_up(w->k * source_row, CACHE_LINE_BYTES);
    s.column = s.floats + round_up((size_t)w->k * w->n_row * sizeof(float), CACHE_LINE_BYTES);
    s.packed = s.column + round_up(w->k * sizeof(float), CACHE_LINE_BYTES);
    s.bytes = s.packed + w->panel_bytes;
    return s;
}

/* Head iu: w is [kv_lora, n_nope], the source's rows are [n_nope, kv_lora]. */
static numoe_status load_k_b(const struct model *model, const struct load_job *job, unsigned in,
                             uint32_t iu, uint8_t *scratch, uint64_t *placed_bytes,
                             numoe_error *err)
{
    const struct weight *w = job->w;
    const struct format *from = format_find(job->src->format_id);
    const struct k_b_scratch s = k_b_layout(job);
    float *floats = (float *)(scratch + s.floats), *column = (float *)(scratch + s.column);
    const size_t source_row = format_row_bytes(from, w->n_row);
    const size_t row_bytes = w->panel_bytes / PANEL_ROWS;
    FORWARD_IF(read_rows(model, job, iu, 0, w->k, scratch + s.rows, err));
    for (uint32_t i = 0; i < w->k; i++) {
        format_dequant_row(from, scratch + s.rows + i * source_row, w->n_row,
                           floats + (size_t)i * w->n_row);
    }
    *placed_bytes = 0;
    for (uint32_t row = 0; row < w->n_row; row += PANEL_ROWS) {
        const uint32_t n_row = MIN(PANEL_ROWS, w->n_row - row);
        if (!weight_holds(w, in, iu, row / PANEL_ROWS)) {
            continue;
        }
        for (uint32_t r = 0; r < n_row; r++) {
            for (uint32_t i = 0; i < w->k; i++) {
                column[i] = floats[(size_t)i * w->n_row + row + r];
            }
            encode_row(w->format_id, column, w->k, scratch + s.packed + r * row_bytes);
        }
        format_pack_panel(w->format, scratch + s.packed, row_bytes, n_row, w->k,
                          (uint8_t *)weight_panel(w, in, iu, row / PANEL_ROWS));
        *placed_bytes += w->panel_bytes;
    }
    return NUMOE_OK;
}

size_t load_job_scratch_bytes(const struct load_job *job)
{
    switch (job->shape->kind) {
    case SHAPE_VECTOR:
        return format_row_bytes(format_find(job->src->format_id), job->src->k);
    case SHAPE_K_B:
        return k_b_layout(job).bytes;
    case SHAPE_MATRIX:
        break;
    }
    return 0;
}

size_t load_job_range_bytes(const struct load_job *job)
{
    return job->shape->kind == SHAPE_MATRIX ? job->block_panels * job->w->panel_bytes : 0;
}

numoe_status load_unit(const struct model *model, const struct load_job *job, unsigned in,
                       uint32_t iu, const void *data, void *scratch, uint64_t *placed_bytes,
                       numoe_error *err)
{
    switch (job->shape->kind) {
    case SHAPE_VECTOR:
        return load_vector(model, job, in, scratch, placed_bytes, err);
    case SHAPE_K_B:
        return load_k_b(model, job, in, iu, scratch, placed_bytes, err);
    case SHAPE_MATRIX:
        break;
    }
    place_matrix(job, in, iu, data, placed_bytes);
    return NUMOE_OK;
}
