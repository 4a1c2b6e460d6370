/* The list of what a model's tensors become: formats, shapes and sizes of all weights. Places
 * nothing and reads nothing but the bound tensor table.
 */
#include "store/shape.h"

#include <stdio.h>

static bool slot_is_vector(enum slot slot)
{
    switch (slot) {
    case SLOT_OUTPUT_NORM:
    case SLOT_ROPE_FACTORS:
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

bool shape_is_routed(const struct shape *s)
{
    return s->slot == SLOT_GATE_EXPS || s->slot == SLOT_UP_EXPS || s->slot == SLOT_DOWN_EXPS;
}

bool shape_is_expert(const struct shape *s)
{
    return shape_is_routed(s) || s->slot == SLOT_GATE_EXPS_BIAS || s->slot == SLOT_UP_EXPS_BIAS ||
           s->slot == SLOT_DOWN_EXPS_BIAS;
}

void shapes_keep(struct shapes *shapes, shape_keep_fn *keep, const void *arg)
{
    unsigned n = 0;
    for (unsigned is = 0; is < shapes->n; is++) {
        if (keep(&shapes->shape[is], arg)) {
            shapes->shape[n++] = shapes->shape[is];
        }
    }
    shapes->n = n;
}

void shape_name(int layer, enum slot slot, char *buf, size_t cap)
{
    if (layer < 0) {
        snprintf(buf, cap, "%s", slot_name(slot));
    } else {
        snprintf(buf, cap, "blk.%d.%s", layer, slot_name(slot));
    }
}

size_t shape_panel_bytes(const struct shape *s)
{
    return PANEL_ROWS * format_row_bytes(format_find(s->format_id), s->k);
}

uint64_t shape_bytes(const struct shape *s)
{
    if (s->kind == SHAPE_VECTOR) {
        return round_up((uint64_t)s->n_mat * s->n_row * s->k * sizeof(float), CACHE_LINE_BYTES);
    }
    return (uint64_t)s->n_mat * shape_mat_bytes(s, shape_panels(s));
}

double shape_active_share(const struct shapes *shapes, const struct shape *s)
{
    if (shape_is_routed(s)) {
        return (double)shapes->n_expert_used / s->n_mat;
    }
    return s->slot == SLOT_TOKEN_EMBD && !shapes->is_tied ? 1.0 / s->n_row : 1;
}

double shape_token_bytes(const struct shapes *shapes, const struct shape *s)
{
    return s->kind == SHAPE_VECTOR ? 0 : (double)shape_bytes(s) * shape_active_share(shapes, s);
}

/* ------------------------------------------------------------------ from a model */

static numoe_status check_type(const struct shape *s, numoe_error *err)
{
    const struct format *format = format_find(s->format_id);
    if (format != NULL && format->computable) {
        return NUMOE_OK;
    }
    char name[96];
    shape_name(s->layer, s->from, name, sizeof name);
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

static void add_kv_b(struct shapes *shapes, const struct model_hparams *hp, struct shape s)
{
    const uint32_t format_id = s.format_id;
    s.from_rows = hp->n_nope + hp->n_v;
    s.n_mat = hp->n_head;

    s.kind = SHAPE_K_B;
    s.slot = SLOT_K_B;
    s.format_id = transposed_format(format_id, hp->n_nope);
    s.n_row = hp->kv_lora_rank;
    s.k = hp->n_nope;
    shapes->shape[shapes->n++] = s;

    s.kind = SHAPE_MATRIX;
    s.slot = SLOT_V_B;
    s.format_id = format_id;
    s.n_row = hp->n_v;
    s.k = hp->kv_lora_rank;
    s.from_row0 = hp->n_nope;
    shapes->shape[shapes->n++] = s;
}

static numoe_status add_source(struct shapes *shapes, const struct model *model, int layer,
                               enum slot slot, numoe_error *err)
{
    const struct tensor_source *src =
        layer < 0 ? &model->src[slot] : &model->layer[layer].src[slot];
    if (!source_present(src)) {
        return NUMOE_OK;
    }
    const struct shape s = {
        .kind = slot_is_vector(slot) ? SHAPE_VECTOR : SHAPE_MATRIX,
        .layer = layer,
        .slot = slot,
        .from = slot,
        .format_id = src->format_id,
        .n_mat = src->n_mat,
        .n_row = src->n_row,
        .k = src->k,
        .from_rows = src->from_rows,
        .from_row0 = src->from_row0,
    };
    FORWARD_IF(check_type(&s, err));
    if (slot == SLOT_KV_B) {
        add_kv_b(shapes, &model->hp, s);
    } else {
        shapes->shape[shapes->n++] = s;
    }
    return NUMOE_OK;
}

static numoe_status add_all(struct shapes *shapes, const struct model *model, numoe_error *err)
{
    for (unsigned slot = 0; slot < N_MODEL_SLOT; slot++) {
        FORWARD_IF(add_source(shapes, model, -1, (enum slot)slot, err));
    }
    for (unsigned il = 0; il < model->hp.n_layer; il++) {
        for (unsigned slot = N_MODEL_SLOT; slot < N_SLOT; slot++) {
            FORWARD_IF(add_source(shapes, model, (int)il, (enum slot)slot, err));
        }
    }
    return NUMOE_OK;
}

numoe_status shapes_new(const struct model *model, struct shapes *out, numoe_error *err)
{
    const struct model_hparams *hp = &model->hp;
    struct shapes shapes = {
        .n_layer = hp->n_layer,
        .n_expert = hp->n_expert,
        .n_expert_used = hp->n_expert_used,
        .is_tied = !source_present(&model->src[SLOT_OUTPUT]),
        .model_name = model->name,
        .n_embd = hp->n_embd,
        .n_vocab = hp->n_vocab,
        .attn_products = (double)hp->n_head * (hp->attn == ATTN_MLA
                                                   ? 2 * hp->kv_lora_rank + hp->n_rope
                                                   : hp->n_qk + hp->n_v),
        .is_latent = hp->attn == ATTN_MLA,
        .arch = model->arch,
    };
    /* KV_B becomes two, in place of the K_B and V_B that are absent then. */
    const size_t most = N_MODEL_SLOT + (size_t)hp->n_layer * N_SLOT;
    FORWARD_IF(mem_new(&shapes.shape, most, sizeof *shapes.shape, "list of weights", err));
    numoe_status status = add_all(&shapes, model, err);
    if (status != NUMOE_OK) {
        shapes_fini(&shapes);
        return status;
    }
    *out = shapes;
    return NUMOE_OK;
}

numoe_status shapes_map_experts(struct shapes *shapes, numoe_error *err)
{
    if (shapes->n_expert == 0) {
        return status_fail(err, NUMOE_E_INPUT,
                           "the model has no routed experts that could stay in the file (--mmap)");
    }
    for (unsigned is = 0; is < shapes->n; is++) {
        shapes->shape[is].mapped = shape_is_routed(&shapes->shape[is]);
    }
    return NUMOE_OK;
}

numoe_status shapes_spread(struct shapes *shapes, unsigned rank, unsigned n_rank, numoe_error *err)
{
    const unsigned n_all = shapes->n_expert;
    const unsigned first = shapes_first_expert(n_all, rank, n_rank);
    const unsigned n = shapes_first_expert(n_all, rank + 1, n_rank) - first;
    if (n_all < n_rank) {
        return status_fail(
            err, NUMOE_E_INPUT,
            "the model has %u routed experts in a layer: they cannot be spread over %u "
            "processes (--expert-parallel)",
            n_all, n_rank);
    }
    for (unsigned is = 0; is < shapes->n; is++) {
        struct shape *s = &shapes->shape[is];
        if (shape_is_routed(s)) {
            s->from_mat = first;
            s->n_mat = n;
        } else if (s->slot == SLOT_GATE_EXPS_BIAS || s->slot == SLOT_UP_EXPS_BIAS) {
            s->from_row0 += first;
            s->n_row = n;
        }
    }
    shapes->first_expert = first;
    shapes->n_expert = n;
    shapes->n_expert_used = MIN(shapes->n_expert_used, n);
    return NUMOE_OK;
}

uint64_t shapes_bytes(const struct shapes *shapes)
{
    uint64_t bytes = 0;
    for (unsigned is = 0; is < shapes->n; is++) {
        bytes += shape_bytes(&shapes->shape[is]);
    }
    return bytes;
}

uint64_t shapes_mapped_bytes(const struct shapes *shapes)
{
    uint64_t bytes = 0;
    for (unsigned is = 0; is < shapes->n; is++) {
        bytes += shapes->shape[is].mapped ? shape_bytes(&shapes->shape[is]) : 0;
    }
    return bytes;
}

void shapes_fini(struct shapes *shapes)
{
    mem_free(shapes->shape);
    *shapes = (struct shapes){0};
}
