#include "store/replica.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

#define PIECE_BYTES ((size_t)128 << 10) /* some 20 us: how exactly a time is kept */

/* ------------------------------------------------------------------ places */

static unsigned find_place(const struct replica_node *node, unsigned il, unsigned ie)
{
    unsigned i = 0;
    while (!node->place[i].taken || node->place[i].il != il || node->place[i].ie != ie) {
        i++;
    }
    return i;
}

static unsigned take_place(struct replica_node *node, unsigned il, unsigned ie)
{
    unsigned i = 0;
    while (node->place[i].taken) {
        i++;
    }
    node->place[i] = (struct replica_place){.il = il, .ie = ie, .taken = true};
    node->n_free--;
    return i;
}

/* The matrices of an expert follow each other in its place. */
static size_t matrix_offset(const struct store *store, unsigned in, unsigned il, enum slot slot)
{
    size_t offset = 0;
    for (unsigned s = SLOT_GATE_EXPS; s < slot; s++) {
        const struct weight *w = &store->layer[il][s];
        offset += weight_present(w) ? w->part[in].mat_bytes : 0;
    }
    return offset;
}

/* From now on the node reads the expert's matrices there. */
static void point_to_place(struct store *store, unsigned in, unsigned i_place)
{
    struct replicas *r = store->replicas;
    const struct replica_place *place = &r->node[in].place[i_place];
    const uint8_t *data = r->node[in].data + i_place * r->place_bytes;
    for (unsigned s = SLOT_GATE_EXPS; s <= SLOT_DOWN_EXPS; s++) {
        struct weight *w = &store->layer[place->il][s];
        if (weight_present(w)) {
            w->part[in].at[place->ie] = data + matrix_offset(store, in, place->il, s);
        }
    }
}

/* ------------------------------------------------------------------ loading */

static numoe_status init(struct replicas *r, const struct placement *p, numoe_error *err)
{
    const char *what = "places for copies of experts";
    FORWARD_IF(mem_new(&r->copies, (size_t)r->n_layer * r->n_expert, sizeof *r->copies, what, err));
    for (unsigned in = 0; in < r->n_node; in++) {
        struct replica_node *node = &r->node[in];
        node->n_place = node->n_free = p->n_place[in];
        FORWARD_IF(mem_new(&node->place, node->n_place, sizeof *node->place, what, err));
    }
    for (unsigned i = 0; i < p->n_slice; i++) {
        const struct placement_slice *slice = &p->slice[i];
        const bool is_copy = slice->further && slice->slot == SLOT_DOWN_EXPS;
        for (uint32_t ie = slice->mat0; is_copy && ie < slice->mat1; ie++) {
            take_place(&r->node[slice->node], (unsigned)slice->layer, ie);
            r->copies[(size_t)slice->layer * r->n_expert + ie] |= UINT64_C(1) << slice->node;
        }
    }
    return NUMOE_OK;
}

numoe_status replicas_new(const struct placement *p, unsigned n_layer, unsigned n_expert,
                          struct replicas **out, numoe_error *err)
{
    struct replicas *r = NULL;
    FORWARD_IF(mem_new(&r, 1, sizeof *r, "places for copies of experts", err));
    r->n_node = p->n_node;
    r->n_layer = n_layer;
    r->n_expert = n_expert;
    r->place_bytes = p->place_bytes;
    numoe_status status = init(r, p, err);
    if (status != NUMOE_OK) {
        replicas_free(r);
        return status;
    }
    *out = r;
    return NUMOE_OK;
}

void replicas_free(struct replicas *r)
{
    if (r == NULL) {
        return;
    }
    for (unsigned in = 0; in < r->n_node; in++) {
        mem_free(r->node[in].place);
    }
    mem_free(r->copies);
    mem_free(r);
}

numoe_status replicas_allocate(struct store *store, unsigned in, struct node_arena *arena,
                               numoe_error *err)
{
    struct replica_node *node = &store->replicas->node[in];
    if (node->n_place == 0) {
        return NUMOE_OK;
    }
    FORWARD_IF(
        node_arena_alloc(arena, node->n_place * store->replicas->place_bytes, &node->data, err));
    for (unsigned i = 0; i < node->n_place; i++) {
        if (node->place[i].taken) {
            point_to_place(store, in, i);
        }
    }
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ copying */

static uint32_t pieces_of(size_t bytes)
{
    return (uint32_t)((bytes + PIECE_BYTES - 1) / PIECE_BYTES);
}

bool replica_begin(struct store *store, unsigned in, unsigned il, unsigned ie)
{
    struct replica_node *node = &store->replicas->node[in];
    const uint64_t holders = store->holders[(size_t)il * store->replicas->n_expert + ie];
    if (node->n_free == 0) {
        return false;
    }
    struct replica_copy *copy = &node->copy;
    copy->place = take_place(node, il, ie);
    copy->from = (unsigned)__builtin_ctzll(
        holders & ~store->replicas->copies[(size_t)il * store->replicas->n_expert + ie]);
    copy->n_piece = 0;
    for (unsigned s = SLOT_GATE_EXPS; s <= SLOT_DOWN_EXPS; s++) {
        const struct weight *w = &store->layer[il][s];
        copy->n_piece += weight_present(w) ? pieces_of(w->part[in].mat_bytes) : 0;
    }
    atomic_store_explicit(&copy->next, 0, memory_order_relaxed);
    copy->running = true;
    return true;
}

/* Returns its bytes. */
static size_t copy_piece(const struct store *store, unsigned in, uint32_t piece)
{
    const struct replicas *r = store->replicas;
    const struct replica_copy *copy = &r->node[in].copy;
    const struct replica_place *place = &r->node[in].place[copy->place];
    uint8_t *to = r->node[in].data + copy->place * r->place_bytes;
    unsigned s = SLOT_GATE_EXPS;
    for (;; s++) {
        const struct weight *w = &store->layer[place->il][s];
        const size_t bytes = weight_present(w) ? w->part[in].mat_bytes : 0;
        if (piece < pieces_of(bytes)) {
            const size_t from = piece * PIECE_BYTES, n = MIN(PIECE_BYTES, bytes - from);
            memcpy(to + from, weight_panel(w, copy->from, place->ie, 0) + from, n);
            return n;
        }
        piece -= pieces_of(bytes);
        to += bytes;
    }
}

struct copying {
    const struct store *store;
    uint64_t until_ns;
    _Atomic uint64_t bytes; /* Sync: atomic; copied by all workers */
};

/* Every worker does one piece at least, lest copies never end where workers begin late. */
static void copy_some(struct worker *w, void *arg)
{
    struct copying *c = arg;
    struct replica_copy *copy = &c->store->replicas->node[w->in].copy;
    uint64_t bytes = 0;
    while (copy->running) {
        const uint32_t piece = atomic_fetch_add_explicit(&copy->next, 1, memory_order_relaxed);
        if (piece >= copy->n_piece) {
            break;
        }
        bytes += copy_piece(c->store, w->in, piece);
        if (clock_ns() >= c->until_ns) {
            break;
        }
    }
    atomic_fetch_add_explicit(&c->bytes, bytes, memory_order_relaxed);
}

uint64_t replica_continue(struct store *store, struct pools *pools, uint64_t until_ns,
                          uint64_t *done)
{
    struct replicas *r = store->replicas;
    struct copying c = {.store = store, .until_ns = until_ns};
    pools_run(pools, copy_some, &c);
    *done = 0;
    for (unsigned in = 0; in < r->n_node; in++) {
        struct replica_copy *copy = &r->node[in].copy;
        if (copy->running &&
            atomic_load_explicit(&copy->next, memory_order_relaxed) >= copy->n_piece) {
            const struct replica_place *place = &r->node[in].place[copy->place];
            const size_t at = (size_t)place->il * r->n_expert + place->ie;
            point_to_place(store, in, copy->place);
            store->holders[at] |= UINT64_C(1) << in;
            r->copies[at] |= UINT64_C(1) << in;
            copy->running = false;
            *done |= UINT64_C(1) << in;
        }
    }
    return atomic_load_explicit(&c.bytes, memory_order_relaxed);
}

void replica_drop(struct store *store, unsigned in, unsigned il, unsigned ie)
{
    struct replicas *r = store->replicas;
    struct replica_node *node = &r->node[in];
    const size_t at = (size_t)il * r->n_expert + ie;
    node->place[find_place(node, il, ie)].taken = false;
    node->n_free++;
    store->holders[at] &= ~(UINT64_C(1) << in);
    r->copies[at] &= ~(UINT64_C(1) << in);
    for (unsigned s = SLOT_GATE_EXPS; s <= SLOT_DOWN_EXPS; s++) {
        const struct weight *w = &store->layer[il][s];
        if (weight_present(w)) {
            w->part[in].at[ie] = NULL;
        }
    }
}
