/* Binding: which tensor of the file plays which part, with shape and type as the description says.
 *
 * Both sides must be used up: a part that is missing and a tensor that no part wants are errors,
 * since either means that the file is not what its description says, and the text would be wrong.
 */
#include "model/bind.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

#define TENSOR_NAME_BYTES 128

struct binding {
    struct model *m;
    const struct gguf *g;
    bool *claimed; /* [n_tensor] */
    int layer;     /* -1: the model's own parts */
};

static void tensor_name(const struct binding *b, const char *name, char out[TENSOR_NAME_BYTES])
{
    if (b->layer < 0) {
        snprintf(out, TENSOR_NAME_BYTES, "%s", name);
    } else {
        snprintf(out, TENSOR_NAME_BYTES, "blk.%d.%s", b->layer, name);
    }
}

static const struct gguf_tensor *claim(const struct binding *b, const char *name)
{
    char full[TENSOR_NAME_BYTES];
    tensor_name(b, name, full);
    const struct gguf_tensor *t = gguf_find_tensor(b->g, full);
    if (t) {
        b->claimed[t - b->g->tensor] = true;
    }
    return t;
}

static numoe_status check_shape(const struct binding *b, const struct gguf_tensor *t,
                                unsigned n_mat, unsigned n_row, unsigned k, numoe_error *err)
{
    const char *path = b->g->part[t->part].path;
    uint64_t expected[4] = {k, n_row, n_mat, 1};
    /* Some files have the rows of all matrices as rows of one. */
    if (t->n_dim == 2 && n_mat > 1) {
        expected[1] = (uint64_t)n_row * n_mat;
        expected[2] = 1;
    }
    for (unsigned i = 0; i < 4; i++) {
        if (t->dim[i] != expected[i]) {
            return status_fail(err, NUMOE_E_FILE_MODEL,
                               "%s: %s: dimension %u is %" PRIu64 ", expected %" PRIu64, path,
                               t->name, i, t->dim[i], expected[i]);
        }
    }
    if (!t->format->computable) {
        return status_fail(err, NUMOE_E_SUPPORT_TYPE,
                           "%s: %s: tensors of type %s cannot be computed with", path, t->name,
                           t->format->name);
    }
    return NUMOE_OK;
}

/* One tensor with the rows of two parts for each matrix, the first part's before the second's. */
static numoe_status bind_fused(const struct binding *b, const struct slot_desc *desc,
                               struct tensor_source *src, numoe_error *err)
{
    const struct gguf_tensor *t = claim(b, desc->fused);
    if (!t) {
        return NUMOE_OK;
    }
    src->from_rows = 2 * src->n_row;
    src->from_row0 = desc->fused_half * src->n_row;
    FORWARD_IF(check_shape(b, t, src->n_mat, src->from_rows, src->k, err));
    src->whole = t;
    src->format_id = t->format_id;
    return NUMOE_OK;
}

/* The old form: an expert's matrix is a tensor of its own. *out stays as it is without any. */
static numoe_status bind_per_expert(const struct binding *b, const char *format,
                                    struct tensor_source *src, numoe_error *err)
{
    char name[TENSOR_NAME_BYTES];
    const struct gguf_tensor **expert;
    snprintf(name, sizeof name, format, 0u);
    if (!claim(b, name)) {
        return NUMOE_OK;
    }
    FORWARD_IF(mem_new(&expert, src->n_mat, sizeof *expert, "the experts of a layer", err));
    src->per_expert = expert;
    for (unsigned ie = 0; ie < src->n_mat; ie++) {
        snprintf(name, sizeof name, format, ie);
        expert[ie] = claim(b, name);
        if (!expert[ie]) {
            return arch_fail(b->g, err, "blk.%d.%s is missing", b->layer, name);
        }
        FORWARD_IF(check_shape(b, expert[ie], 1, src->n_row, src->k, err));
        if (expert[ie]->format != expert[0]->format) {
            return arch_fail(b->g, err, "%s: type is %s, expected %s as the layer's other experts",
                             expert[ie]->name, expert[ie]->format->name, expert[0]->format->name);
        }
    }
    src->format_id = expert[0]->format_id;
    return NUMOE_OK;
}

static struct tensor_source *source_of(const struct binding *b, enum slot slot)
{
    return slot < N_MODEL_SLOT ? &b->m->src[slot] : &b->m->layer[b->layer].src[slot];
}

static bool applies(const struct binding *b, const struct arch_part *part)
{
    switch (part->place) {
    case PLACE_MODEL:
        return b->layer < 0;
    case PLACE_LAYER:
        return b->layer >= 0;
    case PLACE_DENSE:
        return b->layer >= 0 && !b->m->layer[b->layer].is_moe;
    case PLACE_MOE:
        return b->layer >= 0 && b->m->layer[b->layer].is_moe;
    case PLACE_END:
        break;
    }
    return false;
}

/* A missing tensor leaves the source absent; whether that is an error is for the caller. */
static numoe_status bind_source(const struct binding *b, const struct arch_part *part,
                                const char *name, numoe_error *err)
{
    const struct slot_desc *desc = &slot_desc[part->slot];
    const struct model_hparams *hp = &b->m->hp;
    struct tensor_source *src = source_of(b, part->slot);
    *src = (struct tensor_source){
        .n_mat = slot_dim_value(hp, desc->mat),
        .n_row = slot_dim_value(hp, desc->row),
        .k = slot_dim_value(hp, part->k != DIM_NONE ? part->k : desc->k),
    };
    src->from_rows = src->n_row;
    const struct gguf_tensor *t = claim(b, name);
    if (t) {
        src->whole = t;
        src->format_id = t->format_id;
        FORWARD_IF(check_shape(b, t, src->n_mat, src->n_row, src->k, err));
    }
    if (!t && desc->fused) {
        FORWARD_IF(bind_fused(b, desc, src, err));
    }
    if (!src->whole && desc->per_expert) {
        FORWARD_IF(bind_per_expert(b, desc->per_expert, src, err));
    }
    if (!src->whole && !src->per_expert) {
        *src = (struct tensor_source){0};
    }
    return NUMOE_OK;
}

static bool in_no_file(const struct binding *b, const struct arch_part *part)
{
    const struct slot_desc *desc = &slot_desc[part->slot];
    const struct model_hparams *hp = &b->m->hp;
    return slot_dim_value(hp, desc->mat) == 0 || slot_dim_value(hp, desc->row) == 0 ||
           slot_dim_value(hp, part->k != DIM_NONE ? part->k : desc->k) == 0;
}

static numoe_status bind_part(const struct binding *b, const struct arch_part *part,
                              numoe_error *err)
{
    const char *name = part->name ? part->name : slot_desc[part->slot].name;
    bool depends = part->need == NEED_WITH || part->need == NEED_WITHOUT;
    bool other = depends && source_present(source_of(b, part->other));
    if (part->need == NEED_WITHOUT && other) {
        claim(b, name); /* the other one is used instead */
        return NUMOE_OK;
    }
    if (in_no_file(b, part) || (part->need == NEED_WITH && !other)) {
        return NUMOE_OK;
    }
    FORWARD_IF(bind_source(b, part, name, err));
    if (!source_present(source_of(b, part->slot)) && part->need != NEED_OPTIONAL) {
        char full[TENSOR_NAME_BYTES];
        tensor_name(b, name, full);
        return arch_fail(b->g, err, "tensor %s is missing", full);
    }
    return NUMOE_OK;
}

static numoe_status bind_layer(struct binding *b, int layer, const struct arch *arch,
                               numoe_error *err)
{
    b->layer = layer;
    for (size_t ib = 0; ib < ARCH_BLOCKS_MAX && arch->block[ib]; ib++) {
        for (const struct arch_part *part = arch->block[ib]; part->place != PLACE_END; part++) {
            if (applies(b, part)) {
                FORWARD_IF(bind_part(b, part, err));
            }
        }
    }
    return NUMOE_OK;
}

/* Layers after the model's own predict further tokens; nothing reads them. */
static bool in_nextn_layer(const struct binding *b, const struct gguf_tensor *t)
{
    const struct model_hparams *hp = &b->m->hp;
    unsigned layer;
    int end = 0;
    return sscanf(t->name, "blk.%5u.%n", &layer, &end) == 1 && end > 0 && layer >= hp->n_layer &&
           layer - hp->n_layer < hp->n_nextn;
}

static numoe_status check_all_claimed(const struct binding *b, const struct arch *arch,
                                      numoe_error *err)
{
    for (uint64_t i = 0; i < b->g->n_tensor; i++) {
        const struct gguf_tensor *t = &b->g->tensor[i];
        if (!b->claimed[i] && !in_nextn_layer(b, t)) {
            return status_fail(
                err, NUMOE_E_FILE_MODEL,
                "%s: tensor %.80s is no known part of architecture %s, so this variant "
                "of it is not supported",
                b->g->part[t->part].path, t->name, arch->name);
        }
    }
    return NUMOE_OK;
}

numoe_status bind_tensors(struct model *m, const struct arch *arch, numoe_error *err)
{
    struct binding b = {.m = m, .g = m->gguf};
    FORWARD_IF(mem_new(&b.claimed, (size_t)b.g->n_tensor, sizeof *b.claimed, "a model", err));
    numoe_status status = bind_layer(&b, -1, arch, err);
    for (unsigned il = 0; status == NUMOE_OK && il < m->hp.n_layer; il++) {
        status = bind_layer(&b, (int)il, arch, err);
    }
    if (status == NUMOE_OK) {
        status = check_all_claimed(&b, arch, err);
    }
    mem_free(b.claimed);
    return status;
}

void bind_fini(struct model *m)
{
    for (unsigned il = 0; m->layer && il < m->hp.n_layer; il++) {
        for (unsigned is = N_MODEL_SLOT; is < N_SLOT; is++) {
            mem_free(m->layer[il].src[is].per_expert);
        }
    }
}
