/* Owns the division of GPU memory; reads no model and asks no device. */
#include "gpu/plan.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"

struct room {
    uint64_t left[EXCHANGE_MAX_DEVICE];
};

static double mb(uint64_t bytes)
{
    return (double)bytes * 1e-6;
}

static uint64_t kv_bytes(const struct gpu_plan_request *r, uint32_t il)
{
    return r->layer[il].kv_token_bytes * r->block_tokens * r->n_block;
}

static uint64_t layer_bytes(const struct gpu_plan_request *r, uint32_t il)
{
    return r->layer[il].dense_bytes + kv_bytes(r, il);
}

/* ------------------------------------------------------------------ layers */

static void put_layer(const struct gpu_plan_request *r, struct gpu_plan *p, struct room *room,
                      uint32_t il, uint32_t id)
{
    p->layer[il].device = id;
    p->use[id].dense_bytes += r->layer[il].dense_bytes;
    p->use[id].kv_bytes += kv_bytes(r, il);
    room->left[id] -= layer_bytes(r, il);
}

static void put_end(struct gpu_plan *p, struct room *room, uint32_t id, uint64_t bytes)
{
    p->use[id].dense_bytes += bytes;
    room->left[id] -= bytes;
}

/* Cuts the layers where the sum of bytes passes the sum of rooms, both as shares of all. False
 * where a device has too little for its part. */
static bool spread(const struct gpu_plan_request *r, struct gpu_plan *p, struct room *room)
{
    double bytes = 0, total = (double)(r->head_bytes + r->embd_bytes), rooms = 0, share = 0;
    uint32_t id = 0;
    for (uint32_t il = 0; il < r->n_layer; il++) {
        total += (double)layer_bytes(r, il);
    }
    for (uint32_t i = 0; i < r->n_device; i++) {
        rooms += (double)room->left[i];
    }
    if (total > rooms || room->left[0] < r->embd_bytes) {
        return false;
    }
    share = (double)room->left[0] / rooms;
    put_end(p, room, 0, r->embd_bytes);
    bytes = (double)r->embd_bytes;
    for (uint32_t il = 0; il < r->n_layer; il++) {
        const double middle = (bytes + (double)layer_bytes(r, il) / 2) / total;
        while (id + 1 < r->n_device && middle > share) {
            share += (double)room->left[++id] / rooms;
        }
        if (room->left[id] < layer_bytes(r, il)) {
            return false;
        }
        put_layer(r, p, room, il, id);
        bytes += (double)layer_bytes(r, il);
    }
    p->n_dense_layer = r->n_layer;
    if (room->left[id] < r->head_bytes) {
        return false;
    }
    put_end(p, room, id, r->head_bytes);
    return true;
}

/* As many layers as there is room for, device after device. The head comes with the last one only.
 */
static void fill(const struct gpu_plan_request *r, struct gpu_plan *p, struct room *room)
{
    uint32_t id = 0, il = 0;
    if (room->left[0] < r->embd_bytes) {
        return;
    }
    put_end(p, room, 0, r->embd_bytes);
    for (; il < r->n_layer; il++) {
        const uint64_t end = il + 1 == r->n_layer ? r->head_bytes : 0;
        while (id < r->n_device && room->left[id] < layer_bytes(r, il) + end) {
            id++;
        }
        if (id == r->n_device) {
            break;
        }
        put_layer(r, p, room, il, id);
        put_end(p, room, id, end);
    }
    p->n_dense_layer = il;
}

static void rooms(const struct gpu_plan_request *r, struct gpu_plan *p, struct room *room)
{
    memset(p->use, 0, sizeof p->use);
    for (uint32_t id = 0; id < r->n_device; id++) {
        const uint64_t work = MIN(r->work_bytes, r->device_bytes[id]);
        p->use[id].workspace_bytes = work;
        room->left[id] = r->device_bytes[id] - work;
    }
}

static numoe_status too_small(const struct gpu_plan_request *r, numoe_error *err)
{
    uint64_t most = 0;
    for (uint32_t id = 0; id < r->n_device; id++) {
        most = MAX(most, r->device_bytes[id]);
    }
    return status_fail(err, NUMOE_E_MEMORY,
                       "GPU memory of %.1f MB is too little for one layer: %.1f MB of weights, "
                       "%.1f MB of embedding, %.1f MB of KV cache for %llu tokens, %.1f MB of "
                       "workspace: a shorter context or chunk needs less",
                       mb(most), mb(r->layer[0].dense_bytes), mb(r->embd_bytes), mb(kv_bytes(r, 0)),
                       (unsigned long long)r->n_block * r->block_tokens, mb(r->work_bytes));
}

/* ------------------------------------------------------------------ experts */

struct candidate {
    uint64_t count;
    uint32_t il, ie;
};

/* The most used first; of equals the lower expert, of the lower layer. */
static int by_use(const void *va, const void *vb)
{
    const struct candidate *a = va, *b = vb;
    if (a->count != b->count) {
        return a->count > b->count ? -1 : 1;
    }
    if (a->ie != b->ie) {
        return a->ie < b->ie ? -1 : 1;
    }
    return a->il < b->il ? -1 : a->il > b->il;
}

static int by_place(const void *va, const void *vb)
{
    const struct candidate *a = va, *b = vb;
    if (a->il != b->il) {
        return a->il < b->il ? -1 : 1;
    }
    return a->ie < b->ie ? -1 : a->ie > b->ie;
}

static uint32_t list_candidates(const struct gpu_plan_request *r, const struct gpu_plan *p,
                                struct candidate *c)
{
    uint32_t n = 0;
    for (uint32_t il = 0; il < p->n_dense_layer; il++) {
        for (uint32_t ie = 0; r->layer[il].expert_bytes > 0 && ie < r->n_expert; ie++) {
            const uint64_t count = r->count != NULL ? r->count[(size_t)il * r->n_expert + ie] : 0;
            c[n++] = (struct candidate){count, il, ie};
        }
    }
    return n;
}

static uint32_t hot_limit(const struct gpu_plan_request *r, uint32_t n_candidate)
{
    if (r->hot_percent > 0) {
        const double n = (double)n_candidate * MIN(r->hot_percent, 100.0) / 100;
        return (uint32_t)(n + 0.5);
    }
    return MIN(r->n_hot, n_candidate);
}

/* Keeps those that fit at the front of c; returns how many. */
static uint32_t choose_hot(const struct gpu_plan_request *r, struct gpu_plan *p, struct room *room,
                           struct candidate *c, uint32_t n)
{
    const uint32_t limit = hot_limit(r, n);
    uint64_t total = 0, covered = 0;
    uint32_t n_hot = 0;
    qsort(c, n, sizeof *c, by_use);
    for (uint32_t i = 0; i < n; i++) {
        const struct candidate one = c[i];
        const uint64_t bytes = r->layer[one.il].expert_bytes;
        const uint32_t id = p->layer[one.il].device;
        total += one.count;
        if (n_hot < limit && room->left[id] >= bytes) {
            room->left[id] -= bytes;
            p->use[id].expert_bytes += bytes;
            covered += one.count;
            c[n_hot++] = one;
        }
    }
    p->coverage = total > 0 ? (double)covered / (double)total : n > 0 ? (double)n_hot / n : 0;
    qsort(c, n_hot, sizeof *c, by_place);
    return n_hot;
}

static void write_layers(const struct gpu_plan_request *r, struct gpu_plan *p,
                         const struct candidate *c)
{
    uint32_t at = 0;
    for (uint32_t il = 0; il < p->n_dense_layer; il++) {
        struct exchange_layer *l = &p->layer[il];
        l->hot0 = at;
        for (; at < p->n_hot && c[at].il == il; at++) {
            p->hot[at] = c[at].ie;
        }
        l->hot1 = at;
        const bool has_cold = l->hot1 - l->hot0 < r->n_expert || r->keep_hands;
        const bool has_experts = r->layer[il].expert_bytes > 0;
        l->flags = !has_experts ? 0 : has_cold ? EXCHANGE_LAYER_HAND : EXCHANGE_LAYER_ROUTES;
        p->n_route += l->flags == EXCHANGE_LAYER_ROUTES ? 1 : 0;
    }
}

static numoe_status place_hot(const struct gpu_plan_request *r, struct gpu_plan *p,
                              struct room *room, numoe_error *err)
{
    const size_t most = (size_t)p->n_dense_layer * r->n_expert;
    struct candidate *c = NULL;
    FORWARD_IF(mem_new(&c, most, sizeof *c, "plan", err));
    const uint32_t n = list_candidates(r, p, c);
    p->n_hot = choose_hot(r, p, room, c, n);
    numoe_status status = mem_new(&p->hot, p->n_hot, sizeof *p->hot, "plan", err);
    if (status == NUMOE_OK) {
        write_layers(r, p, c);
    }
    mem_free(c);
    return status;
}

/* ------------------------------------------------------------------ */

numoe_status gpu_plan_make(const struct gpu_plan_request *request, struct gpu_plan *out,
                           numoe_error *err)
{
    const struct gpu_plan_request *r = request;
    struct gpu_plan p = {.n_dense_layer = 0};
    struct room room;
    FORWARD_IF(mem_new(&p.layer, r->n_layer, sizeof *p.layer, "plan", err));
    rooms(r, &p, &room);
    if (!spread(r, &p, &room)) {
        p.n_dense_layer = 0;
        rooms(r, &p, &room);
        fill(r, &p, &room);
    }
    numoe_status status = p.n_dense_layer > 0 ? place_hot(r, &p, &room, err) : too_small(r, err);
    if (status != NUMOE_OK) {
        gpu_plan_fini(&p);
        return status;
    }
    for (uint32_t id = 0; id < r->n_device; id++) {
        p.use[id].free_bytes = room.left[id];
    }
    *out = p;
    return NUMOE_OK;
}

void gpu_plan_fini(struct gpu_plan *plan)
{
    mem_free(plan->layer);
    mem_free(plan->hot);
    *plan = (struct gpu_plan){.n_dense_layer = 0};
}
