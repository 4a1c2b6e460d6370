/* A node's copy of all weights, seen as a machine that has no other nodes. Owns the description of
 * who computes what; the weights stay the store's.
 */
#include <string.h>

#include "base/mem.h"
#include "store/store.h"

static bool is_whole(const struct weight *w, unsigned in)
{
    if (!weight_present(w)) {
        return true;
    }
    if (w->part == NULL) {
        return w->vec_here[in];
    }
    const struct weight_part *part = &w->part[in];
    return !w->dealt && part->held0 == 0 && part->held1 == w->n_row && part->n_mat == w->n_mat;
}

bool store_is_whole(const struct store *store, unsigned in)
{
    bool whole = true;
    for (unsigned slot = 0; slot < N_MODEL_SLOT; slot++) {
        whole = whole && is_whole(&store->w[slot], in);
    }
    for (unsigned il = 0; il < store->model->hp.n_layer; il++) {
        for (unsigned slot = N_MODEL_SLOT; slot < N_SLOT; slot++) {
            whole = whole && is_whole(&store->layer[il][slot], in);
        }
    }
    return whole;
}

/* Takes one of the parts where w is a matrix; returns what is left of them. */
static struct weight_part *view_weight(struct weight *w, unsigned in, struct weight_part *part)
{
    if (!weight_present(w)) {
        return part;
    }
    w->n_node = 1;
    if (w->part == NULL) {
        w->vec += in;
        w->vec_here += in;
        return part;
    }
    *part = w->part[in];
    part->row0 = 0;
    part->row1 = w->n_row;
    w->part = part;
    return part + 1;
}

static void view_all(const struct store *store, unsigned in, struct store *view)
{
    struct weight_part *part = view->priv;
    for (unsigned slot = 0; slot < N_MODEL_SLOT; slot++) {
        part = view_weight(&view->w[slot], in, part);
    }
    for (unsigned il = 0; il < store->model->hp.n_layer; il++) {
        memcpy(view->layer[il], store->layer[il], sizeof view->layer[il]);
        for (unsigned slot = N_MODEL_SLOT; slot < N_SLOT; slot++) {
            part = view_weight(&view->layer[il][slot], in, part);
        }
    }
}

numoe_status store_view_new(const struct store *store, unsigned in, struct store **out,
                            numoe_error *err)
{
    static const char what[] = "a node's view of the weights";
    const size_t n_layer = store->model->hp.n_layer;
    struct store *view = NULL;
    FORWARD_IF(mem_new(&view, 1, sizeof *view, what, err));
    *view = *store;
    view->n_node = 1;
    view->share[0] = 1;
    view->holders = NULL;
    view->replicas = NULL;
    view->layer = NULL;
    view->priv = NULL;
    numoe_status status = mem_new(&view->layer, n_layer, sizeof *view->layer, what, err);
    if (status == NUMOE_OK) {
        status = mem_new(&view->priv, N_MODEL_SLOT + n_layer * N_SLOT, sizeof(struct weight_part),
                         what, err);
    }
    if (status != NUMOE_OK) {
        store_view_free(view);
        return status;
    }
    view_all(store, in, view);
    *out = view;
    return NUMOE_OK;
}

void store_view_free(struct store *view)
{
    if (view != NULL) {
        mem_free(view->layer);
        mem_free(view->priv);
        mem_free(view);
    }
}
