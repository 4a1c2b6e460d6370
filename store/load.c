/* From a plan to weights without data, and to the list of what has to be read for them. */
#include "store/load.h"
#include "store/reader.h"

#include <string.h>

uint32_t load_job_units(const struct load_job *job, unsigned in)
{
    const struct weight *w = job->w;
    if (job->shape->kind == SHAPE_VECTOR) {
        return w->vec_here[in] ? 1 : 0;
    }
    if (job->shape->mapped) {
        return 0;
    }
    const struct weight_part *part = &w->part[in];
    if (w->dealt) {
        return job->shape->kind == SHAPE_K_B ? w->n_mat : part->n_dealt;
    }
    const uint32_t n_panel = weight_part_held(part);
    if (job->shape->kind == SHAPE_K_B) {
        return n_panel > 0 ? w->n_mat : 0;
    }
    return part->n_mat * ((n_panel + job->block_panels - 1) / job->block_panels);
}

uint64_t load_job_bytes(const struct load_job *job, unsigned in)
{
    const struct weight *w = job->w;
    if (job->shape->kind == SHAPE_VECTOR) {
        return w->vec_here[in] ? shape_bytes(job->shape) : 0;
    }
    if (job->shape->mapped) {
        return 0;
    }
    const struct weight_part *part = &w->part[in];
    return w->dealt ? round_up((uint64_t)part->n_dealt * w->panel_bytes, CACHE_LINE_BYTES)
                    : (uint64_t)part->n_run * part->mat_bytes;
}

uint64_t store_loading_bytes(const struct shapes *shapes)
{
    size_t range_bytes = 0, scratch_bytes = 0;
    for (unsigned is = 0; is < shapes->n; is++) {
        const struct shape *s = &shapes->shape[is];
        const size_t row_bytes = s->k * sizeof(float);
        if (s->kind == SHAPE_K_B) { /* as k_b_layout(), with rows of floats */
            scratch_bytes = MAX(scratch_bytes, (2 * (size_t)s->n_row + 1 + PANEL_ROWS) * row_bytes +
                                                   4 * CACHE_LINE_BYTES);
        } else if (s->kind == SHAPE_VECTOR) {
            scratch_bytes = MAX(scratch_bytes, row_bytes);
        } else if (!s->mapped) {
            range_bytes = MAX(range_bytes, MAX(LOAD_BLOCK_BYTES, shape_panel_bytes(s)));
        }
    }
    return reader_memory_bytes(range_bytes, scratch_bytes);
}

/* ------------------------------------------------------------------ parts */

/* Which matrices a node has, where it has not all, or where others come and go. */
static numoe_status list_matrices(struct weight_part *part, uint32_t n_mat,
                                  const struct placement_slice *slice, unsigned n, numoe_error *err)
{
    FORWARD_IF(mem_new(&part->at, n_mat, sizeof *part->at, "places of experts", err));
    FORWARD_IF(mem_new(&part->mat, part->n_mat, sizeof *part->mat, "places of experts", err));
    uint32_t at = 0;
    for (unsigned i = 0; i < n; i++) {
        for (uint32_t mat = slice[i].mat0; mat < slice[i].mat1; mat++) {
            part->mat[at++] = mat;
        }
    }
    return NUMOE_OK;
}

/* What node slice[0].node holds: n slices of one weight, copies that may go last. */
static numoe_status take_slices(struct weight *w, const struct placement_slice *slice, unsigned n,
                                bool changes, numoe_error *err)
{
    struct weight_part *part = &w->part[slice->node];
    part->held0 = slice->row0;
    part->held1 = slice->row1;
    for (unsigned i = 0; i < n; i++) {
        part->n_mat += slice[i].mat1 - slice[i].mat0;
        part->n_run += changes && slice[i].further ? 0 : slice[i].mat1 - slice[i].mat0;
    }
    part->mat_bytes = round_up(weight_part_held(part) * w->panel_bytes, CACHE_LINE_BYTES);
    if (slice->every > 1) {
        w->dealt = true;
        const uint64_t n_panel = (uint64_t)w->n_mat * weight_panels(w);
        part->n_dealt =
            (uint32_t)(n_panel > slice->first ? (n_panel - slice->first - 1) / slice->every + 1
                                              : 0);
    }
    return part->n_mat < w->n_mat || changes ? list_matrices(part, w->n_mat, slice, n, err)
                                             : NUMOE_OK;
}

/* A node that has no expert of a layer may get some later. */
static numoe_status expect_matrices(struct weight *w, const struct placement *p, numoe_error *err)
{
    for (unsigned in = 0; in < p->n_node; in++) {
        struct weight_part *part = &w->part[in];
        if (p->share[in] > 0 && part->at == NULL) {
            part->held1 = w->n_row;
            part->mat_bytes = round_up(weight_part_held(part) * w->panel_bytes, CACHE_LINE_BYTES);
            FORWARD_IF(mem_new(&part->at, w->n_mat, sizeof *part->at, "places of experts", err));
        }
    }
    return NUMOE_OK;
}

/* Each node computes the rows that it holds. Where all hold all, or it does not matter, rows are
 * divided by shares; whole experts are computed whole. */
static void divide_work(struct weight *w, const struct shape *s, const struct placement *p)
{
    uint32_t row0[TOPO_MAX_NODE + 1];
    const bool shared =
        p->mode == NUMOE_PLACEMENT_REPLICATE || p->mode == NUMOE_PLACEMENT_INTERLEAVE;
    placement_rows(s->n_row, p->n_node, p->share, row0);
    for (unsigned in = 0; in < p->n_node; in++) {
        struct weight_part *part = &w->part[in];
        part->row0 = shared ? row0[in] : part->held0;
        part->row1 = shared ? row0[in + 1] : part->held1;
    }
    w->copied = p->mode == NUMOE_PLACEMENT_REPLICATE;
}

static numoe_status make_matrix(struct weight *w, const struct shape *s, const struct placement *p,
                                numoe_error *err)
{
    const bool changes = p->place_bytes > 0 && shape_is_routed(s) && !s->mapped;
    unsigned from, to;
    w->k = s->k;
    w->panel_bytes = shape_panel_bytes(s);
    if (s->mapped) {
        FORWARD_IF(mem_new(&w->map, s->n_mat, sizeof *w->map, "places of experts", err));
    }
    FORWARD_IF(mem_new(&w->part, p->n_node, sizeof *w->part, "weight parts", err));
    placement_find(p, s, &from, &to);
    while (from < to) {
        unsigned end = from + 1;
        while (end < to && p->slice[end].node == p->slice[from].node) {
            end++;
        }
        FORWARD_IF(take_slices(w, &p->slice[from], end - from, changes, err));
        from = end;
    }
    FORWARD_IF(changes ? expect_matrices(w, p, err) : NUMOE_OK);
    divide_work(w, s, p);
    return NUMOE_OK;
}

static numoe_status make_vector(struct weight *w, const struct placement *p, numoe_error *err)
{
    FORWARD_IF(mem_new(&w->vec, p->n_node, sizeof *w->vec, "weight copies", err));
    FORWARD_IF(mem_new(&w->vec_here, p->n_node, sizeof *w->vec_here, "weight copies", err));
    for (unsigned in = 0; in < p->n_node; in++) {
        w->vec_here[in] = p->share[in] > 0;
    }
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ jobs */

static numoe_status add_job(struct load_plan *plan, struct load_job job, numoe_error *err)
{
    FORWARD_IF(mem_new(&job.unit0, plan->n_node, sizeof *job.unit0, "load plan", err));
    if (job.shape->kind == SHAPE_MATRIX) {
        job.block_panels =
            job.w->dealt ? 1 : (uint32_t)MAX(1u, LOAD_BLOCK_BYTES / job.w->panel_bytes);
    }
    for (unsigned in = 0; in < plan->n_node; in++) {
        job.unit0[in] = plan->n_unit[in];
        plan->n_unit[in] += load_job_units(&job, in);
    }
    plan->scratch_bytes = MAX(plan->scratch_bytes, load_job_scratch_bytes(&job));
    plan->range_bytes = MAX(plan->range_bytes, load_job_range_bytes(&job));
    plan->job[plan->n_job++] = job;
    return NUMOE_OK;
}

static numoe_status add_shape(struct load_plan *plan, const struct shape *s,
                              const struct placement *p, struct store *store, numoe_error *err)
{
    const struct model *model = plan->model;
    const bool of_model = s->layer < 0;
    struct weight *w = of_model ? &store->w[s->slot] : &store->layer[s->layer][s->slot];
    *w = (struct weight){
        .format_id = s->kind == SHAPE_VECTOR ? (uint32_t)FORMAT_F32 : s->format_id,
        .n_mat = s->n_mat,
        .n_row = s->n_row,
        .k = s->k,
        .n_node = p->n_node,
    };
    w->format = format_find(w->format_id);
    FORWARD_IF(s->kind == SHAPE_VECTOR ? make_vector(w, p, err) : make_matrix(w, s, p, err));
    const struct load_job job = {
        .shape = s,
        .w = w,
        .src = of_model ? &model->src[s->from] : &model->layer[s->layer].src[s->from],
    };
    return add_job(plan, job, err);
}

static numoe_status fill(struct load_plan *plan, const struct shapes *shapes,
                         const struct placement *placement, struct store *store, numoe_error *err)
{
    FORWARD_IF(mem_new(&plan->job, shapes->n, sizeof *plan->job, "load plan", err));
    FORWARD_IF(mem_new(&plan->n_unit, plan->n_node, sizeof *plan->n_unit, "load plan", err));
    for (unsigned is = 0; is < shapes->n; is++) {
        FORWARD_IF(add_shape(plan, &shapes->shape[is], placement, store, err));
    }
    return NUMOE_OK;
}

numoe_status load_plan_new(const struct model *model, const struct shapes *shapes,
                           const struct placement *placement, struct store *store,
                           struct load_plan **out, numoe_error *err)
{
    struct load_plan *plan = NULL;
    FORWARD_IF(mem_new(&plan, 1, sizeof *plan, "load plan", err));
    plan->model = model;
    plan->n_node = placement->n_node;
    numoe_status status = fill(plan, shapes, placement, store, err);
    if (status != NUMOE_OK) {
        load_plan_free(plan);
        return status;
    }
    *out = plan;
    return NUMOE_OK;
}

void load_plan_free(struct load_plan *plan)
{
    if (plan == NULL) {
        return;
    }
    for (unsigned ij = 0; ij < plan->n_job; ij++) {
        mem_free(plan->job[ij].unit0);
    }
    mem_free(plan->job);
    mem_free(plan->n_unit);
    mem_free(plan);
}
