/* The list of what a model's tensors become: formats, shapes, slices and sizes of all weights.
 * Places nothing and reads nothing but the bound tensor table.
 */
#include "store/plan.h"

#include <stdio.h>

#include "base/mem.h"

static bool slot_is_vector(enum slot slot)
{
    switch (slot) {
    case SLOT_OUTPUT_NORM:
    case SLOT_ATTN_NORM:
    case SLOT_Q_A_NORM:
    case SLOT_KV_A_NORM:
    case SLOT_Q_BIAS:
    case SLOT_K_BIAS:
    case SLOT_V_BIAS:
    case SLOT_O_BIAS:
    case SLOT_Q_NORM:
    case SLOT_K_NORM:
    case SLOT_SINKS:
    case SLOT_POST_ATTN_NORM:
    case SLOT_FFN_NORM:
    case SLOT_ROUTER_BIAS:
    case SLOT_SELECT_BIAS:
    case SLOT_GATE_EXPS_BIAS:
    case SLOT_UP_EXPS_BIAS:
    case SLOT_DOWN_EXPS_BIAS:
        return true;
    default:
        return false;
    }
}

void load_job_name(const struct load_job *job, char *buf, size_t cap)
{
    if (job->layer < 0) {
        snprintf(buf, cap, "%s", slot_name(job->slot));
    } else {
        snprintf(buf, cap, "blk.%d.%s", job->layer, slot_name(job->slot));
    }
}

uint32_t load_job_units(const struct load_job *job, unsigned in)
{
    if (job->kind == LOAD_VECTOR) {
        return 1;
    }
    const uint32_t n_panel = weight_part_panels(&job->w->part[in]);
    if (job->kind == LOAD_K_B) {
        return n_panel > 0 ? job->w->n_mat : 0;
    }
    return job->w->n_mat * ((n_panel + job->block_panels - 1) / job->block_panels);
}

/* Shape and slices of a matrix weight. */
static numoe_status slice_matrix(struct weight *w, uint32_t format_id, uint32_t n_mat,
                                 uint32_t n_row, uint32_t k, unsigned n_node, const double *share,
                                 numoe_error *err)
{
    uint32_t row0[TOPO_MAX_NODE + 1];
    struct weight_part *part = NULL;
    FORWARD_IF(mem_new(&part, n_node, sizeof *part, "weight parts", err));
    const struct format *format = format_find(format_id);
    const size_t panel_bytes = PANEL_ROWS * format_row_bytes(format, k);
    placement_slice(n_row, n_node, share, row0);
    for (unsigned in = 0; in < n_node; in++) {
        part[in].row0 = row0[in];
        part[in].row1 = row0[in + 1];
        part[in].mat_bytes =
            round_up(weight_part_panels(&part[in]) * panel_bytes, CACHE_LINE_BYTES);
    }
    *w = (struct weight){
        .format = format,
        .format_id = format_id,
        .n_mat = n_mat,
        .n_row = n_row,
        .k = k,
        .q8 = kern_act_kind(format_id) == KERN_ACT_Q8,
        .panel_bytes = panel_bytes,
        .part = part,
    };
    return NUMOE_OK;
}

static numoe_status shape_vector(struct weight *w, const struct tensor_source *src, unsigned n_node,
                                 numoe_error *err)
{
    const float **vec = NULL;
    FORWARD_IF(mem_new(&vec, n_node, sizeof *vec, "weight copies", err));
    *w = (struct weight){
        .format = format_find(FORMAT_F32),
        .format_id = FORMAT_F32,
        .n_mat = src->n_mat,
        .n_row = src->n_row,
        .k = src->k,
        .vec = vec,
    };
    return NUMOE_OK;
}

static uint64_t job_node_bytes(const struct load_job *job, unsigned in)
{
    const struct weight *w = job->w;
    if (job->kind == LOAD_VECTOR) {
        return round_up((uint64_t)w->n_mat * w->n_row * w->k * sizeof(float), CACHE_LINE_BYTES);
    }
    return w->n_mat * w->part[in].mat_bytes;
}

/* Takes the shaped weight job->w into the plan. */
static numoe_status add_job(struct load_plan *plan, struct load_job job, numoe_error *err)
{
    FORWARD_IF(mem_new(&job.unit0, plan->n_node, sizeof *job.unit0, "load plan", err));
    if (job.kind == LOAD_MATRIX) {
        job.block_panels = (uint32_t)MAX(1u, LOAD_BLOCK_BYTES / job.w->panel_bytes);
    }
    for (unsigned in = 0; in < plan->n_node; in++) {
        const uint64_t bytes = job_node_bytes(&job, in);
        job.unit0[in] = plan->n_unit[in];
        plan->n_unit[in] += load_job_units(&job, in);
        plan->node_bytes[in] += bytes;
        plan->total_bytes += bytes;
    }
    plan->scratch_bytes = MAX(plan->scratch_bytes, load_job_scratch_bytes(&job));
    plan->job[plan->n_job++] = job;
    return NUMOE_OK;
}

static numoe_status check_type(const struct load_job *job, numoe_error *err)
{
    const struct format *format = format_find(job->src->format_id);
    if (format != NULL && format->computable) {
        return NUMOE_OK;
    }
    char name[96];
    load_job_name(job, name, sizeof name);
    return status_fail(err, NUMOE_E_SUPPORT_TYPE, "%s: type %s cannot be computed with", name,
                       format == NULL ? "unknown" : format->name);
}

/* What the key half of an attn_kv_b is kept as: its rows change places with its columns, so
 * quantized blocks have to be made anew. Floats keep their type and their values. */
static uint32_t transposed_format(uint32_t format_id, unsigned n_nope)
{
    if (format_id == FORMAT_F32 || format_id == FORMAT_F16 || format_id == FORMAT_BF16) {
        return format_id;
    }
    return n_nope % 32 == 0 ? FORMAT_Q8_0 : FORMAT_F16;
}

static numoe_status add_kv_b(struct load_plan *plan, struct store *store, struct load_job job,
                             const double *share, numoe_error *err)
{
    const struct model_hparams *hp = &plan->model->hp;
    struct weight *layer = store->layer[job.layer];
    const uint32_t format_id = job.src->format_id;
    job.mat_rows = hp->n_nope + hp->n_v;

    job.kind = LOAD_K_B;
    job.w = &layer[SLOT_K_B];
    job.row0 = 0;
    FORWARD_IF(slice_matrix(job.w, transposed_format(format_id, hp->n_nope), hp->n_head,
                            hp->kv_lora_rank, hp->n_nope, plan->n_node, share, err));
    FORWARD_IF(add_job(plan, job, err));

    job.kind = LOAD_MATRIX;
    job.w = &layer[SLOT_V_B];
    job.row0 = hp->n_nope;
    FORWARD_IF(slice_matrix(job.w, format_id, hp->n_head, hp->n_v, hp->kv_lora_rank, plan->n_node,
                            share, err));
    return add_job(plan, job, err);
}

static numoe_status add_source(struct load_plan *plan, struct store *store, int layer,
                               enum slot slot, const double *share, numoe_error *err)
{
    const struct model *model = plan->model;
    const struct tensor_source *src =
        layer < 0 ? &model->src[slot] : &model->layer[layer].src[slot];
    if (!source_present(src)) {
        return NUMOE_OK;
    }
    struct load_job job = {.layer = layer, .slot = slot, .src = src, .mat_rows = src->n_row};
    FORWARD_IF(check_type(&job, err));
    if (slot == SLOT_KV_B) {
        return add_kv_b(plan, store, job, share, err);
    }
    job.w = layer < 0 ? &store->w[slot] : &store->layer[layer][slot];
    if (slot_is_vector(slot)) {
        job.kind = LOAD_VECTOR;
        FORWARD_IF(shape_vector(job.w, src, plan->n_node, err));
    } else {
        job.kind = LOAD_MATRIX;
        FORWARD_IF(slice_matrix(job.w, src->format_id, src->n_mat, src->n_row, src->k, plan->n_node,
                                share, err));
    }
    return add_job(plan, job, err);
}

numoe_status load_plan_new(const struct model *model, struct store *store, const double *share,
                           struct load_plan **out, numoe_error *err)
{
    const unsigned n_layer = model->hp.n_layer;
    /* KV_B becomes two jobs, in place of the K_B and V_B that are absent then. */
    const size_t max_job = N_MODEL_SLOT + (size_t)n_layer * N_SLOT;
    struct load_plan *plan = NULL;
    FORWARD_IF(mem_new(&plan, 1, sizeof *plan, "load plan", err));
    plan->model = model;
    plan->n_node = store->n_node;
    numoe_status status = mem_new(&plan->job, max_job, sizeof *plan->job, "load plan", err);
    if (status == NUMOE_OK) {
        status = mem_new(&plan->n_unit, plan->n_node, sizeof *plan->n_unit, "load plan", err);
    }
    if (status == NUMOE_OK) {
        status =
            mem_new(&plan->node_bytes, plan->n_node, sizeof *plan->node_bytes, "load plan", err);
    }
    for (unsigned slot = 0; status == NUMOE_OK && slot < N_MODEL_SLOT; slot++) {
        status = add_source(plan, store, -1, (enum slot)slot, share, err);
    }
    for (unsigned il = 0; il < n_layer; il++) {
        for (unsigned slot = N_MODEL_SLOT; status == NUMOE_OK && slot < N_SLOT; slot++) {
            status = add_source(plan, store, (int)il, (enum slot)slot, share, err);
        }
    }
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
    mem_free(plan->node_bytes);
    mem_free(plan);
}
