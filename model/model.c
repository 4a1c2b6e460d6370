/* A model is a file, an architecture's description, and the tensors that play its parts.
 *
 * Owns opening and refusing, and the sums over what was bound. What an architecture is made of is
 * in model/arch-*.c, how tensors find their parts in model/bind.c.
 */
#include "model/model.h"

#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "model/arch.h"
#include "model/bind.h"

/* ---- what is not a model */

static bool string_is(struct gguf_string s, const char *text)
{
    return s.len == strlen(text) && memcmp(s.data, text, s.len) == 0;
}

static numoe_status check_kind(const struct gguf *g, numoe_error *err)
{
    struct gguf_string type = {"model", 5};
    FORWARD_IF(gguf_get_string(g, "general.type", false, &type, err));
    if (string_is(type, "model")) {
        return NUMOE_OK;
    }
    if (string_is(type, "adapter")) {
        return arch_fail(g, err,
                         "is an adapter (LoRA), not a model; merge it into its model first");
    }
    if (string_is(type, "mmproj")) {
        return arch_fail(g, err,
                         "is the image or audio part (mmproj) of a model; name the file with "
                         "the language model");
    }
    if (string_is(type, "imatrix")) {
        return arch_fail(g, err, "is an importance matrix, not a model");
    }
    return arch_fail(g, err, "holds a \"%.*s\", not a model", (int)MIN(type.len, 40), type.data);
}

static numoe_status find_arch(const struct gguf *g, const struct arch **out, numoe_error *err)
{
    struct gguf_string name = {0};
    char list[256];
    FORWARD_IF(gguf_get_string(g, "general.architecture", true, &name, err));
    *out = arch_find(name);
    if (!*out) {
        arch_list(list, sizeof list);
        return status_fail(err, NUMOE_E_SUPPORT_ARCH,
                           "%s: architecture \"%.*s\" is not supported; these are: %s",
                           g->part[0].path, (int)MIN(name.len, 40), name.data, list);
    }
    return NUMOE_OK;
}

/* ---- sums */

static uint64_t source_bytes(const struct tensor_source *s)
{
    if (!source_present(s)) {
        return 0;
    }
    return (uint64_t)s->n_mat * s->n_row * format_row_bytes(format_find(s->format_id), s->k);
}

static void count_layer(struct model *m, const struct model_layer *layer)
{
    for (unsigned is = N_MODEL_SLOT; is < N_SLOT; is++) {
        const struct tensor_source *s = &layer->src[is];
        uint64_t bytes = source_bytes(s);
        m->n_param += (uint64_t)s->n_mat * s->n_row * s->k;
        switch ((enum slot)is) {
        case SLOT_GATE_EXPS:
        case SLOT_UP_EXPS:
        case SLOT_DOWN_EXPS:
        case SLOT_GATE_EXPS_BIAS:
        case SLOT_UP_EXPS_BIAS:
        case SLOT_DOWN_EXPS_BIAS:
            m->active.routed += bytes > 0 ? bytes / m->hp.n_expert * m->hp.n_expert_used : 0;
            break;
        case SLOT_GATE_SHEXP:
        case SLOT_UP_SHEXP:
        case SLOT_DOWN_SHEXP:
        case SLOT_SHEXP_GATE:
            m->active.shared += bytes;
            break;
        default:
            m->active.dense += bytes;
        }
    }
}

/* The embedding is one row a token: not counted, unless it is the head as well. */
static void count(struct model *m)
{
    const struct tensor_source *embd = &m->src[SLOT_TOKEN_EMBD], *head = &m->src[SLOT_OUTPUT];
    for (unsigned is = 0; is < N_MODEL_SLOT; is++) {
        m->n_param += (uint64_t)m->src[is].n_mat * m->src[is].n_row * m->src[is].k;
    }
    m->active.dense =
        source_bytes(&m->src[SLOT_OUTPUT_NORM]) + source_bytes(source_present(head) ? head : embd);
    for (unsigned il = 0; il < m->hp.n_layer; il++) {
        count_layer(m, &m->layer[il]);
    }
}

/* ---- the whole */

/* Names are shown: files may say what they like. */
static numoe_status copy_text(struct gguf_string s, char **out, numoe_error *err)
{
    char *text;
    FORWARD_IF(mem_new(&text, s.len + 1, 1, "a model's name", err));
    memcpy(text, s.data, s.len);
    utf8_make_plain(text);
    *out = text;
    return NUMOE_OK;
}

static numoe_status name_model(struct model *m, numoe_error *err)
{
    const char *path = m->gguf->part[0].path;
    const char *slash = strrchr(path, '/');
    const char *file = slash ? slash + 1 : path;
    struct gguf_string name = {file, strlen(file)}, arch = {0};
    FORWARD_IF(gguf_get_string(m->gguf, "general.name", false, &name, err));
    FORWARD_IF(gguf_get_string(m->gguf, "general.architecture", true, &arch, err));
    FORWARD_IF(copy_text(name, &m->name, err));
    return copy_text(arch, &m->arch, err);
}

static numoe_status bind_all(struct model *m, numoe_error *err)
{
    const struct arch *arch = NULL;
    FORWARD_IF(check_kind(m->gguf, err));
    FORWARD_IF(find_arch(m->gguf, &arch, err));
    FORWARD_IF(name_model(m, err));
    struct model_hparams hp;
    FORWARD_IF(arch_read_basic(m->gguf, &hp, err));
    FORWARD_IF(arch->read(m->gguf, &hp, err));
    FORWARD_IF(arch_check(m->gguf, &hp, err));
    FORWARD_IF(mem_new(&m->layer, hp.n_layer, sizeof *m->layer, "the layers of a model", err));
    m->hp = hp;
    for (unsigned il = 0; il < hp.n_layer; il++) {
        m->layer[il].is_moe = il >= hp.n_dense_lead;
        m->layer[il].windowed = arch->windowed && arch->windowed(il);
    }
    FORWARD_IF(bind_tensors(m, arch, err));
    count(m);
    return NUMOE_OK;
}

static void free_all_but_file(struct model *m)
{
    bind_fini(m);
    mem_free(m->layer);
    mem_free(m->name);
    mem_free(m->arch);
    mem_free(m);
}

numoe_status model_bind(struct gguf *g, struct model **out, numoe_error *err)
{
    struct model *m;
    FORWARD_IF(mem_new(&m, 1, sizeof *m, "a model", err));
    m->gguf = g;
    numoe_status status = bind_all(m, err);
    if (status != NUMOE_OK) {
        free_all_but_file(m);
        return status;
    }
    *out = m;
    return NUMOE_OK;
}

numoe_status model_open(const char *path, struct model **out, numoe_error *err)
{
    struct gguf *g;
    FORWARD_IF(gguf_open(path, &g, err));
    numoe_status status = model_bind(g, out, err);
    if (status != NUMOE_OK) {
        gguf_close(g);
    }
    return status;
}

void model_close(struct model *m)
{
    if (m) {
        gguf_close(m->gguf);
        free_all_but_file(m);
    }
}
