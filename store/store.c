/* Loading: takes the memory, lets every node's own workers read and pack their part, and reports
 * progress from the caller's thread. What goes where is the placement's affair, what has to be read
 * for it load.c's, how one piece is read unit.c's.
 *
 * Workers run in time slices so that the caller can speak in between; cursors survive the slices.
 */
#include "store/store.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "store/load.h"
#include "store/reader.h"
#include "store/replica.h"

#define SLICE_NS 100000000u

struct store_priv {
    struct node_arena *arena[TOPO_MAX_NODE];
    struct load_map *map; /* [n_map] files that weights stay in, by part */
    unsigned n_map;
    bool tied;             /* w[SLOT_OUTPUT] is w[SLOT_TOKEN_EMBD] */
    struct store *adopted; /* whose memory some weights are in, but no longer its weights */
};

/* ------------------------------------------------------------------ memory */

static numoe_status allocate_job(struct store_priv *priv, struct load_job *job, unsigned in,
                                 numoe_error *err)
{
    const uint64_t bytes = load_job_bytes(job, in);
    void *data = NULL;
    if (bytes > 0) {
        FORWARD_IF(node_arena_alloc(priv->arena[in], bytes, &data, err));
    }
    if (job->shape->kind == SHAPE_VECTOR) {
        job->w->vec[in] = data;
        return NUMOE_OK;
    }
    struct weight_part *part = &job->w->part[in];
    part->data = data;
    for (uint32_t i = 0; data != NULL && part->at != NULL && i < part->n_run; i++) {
        part->at[part->mat[i]] = part->data + i * part->mat_bytes;
    }
    return NUMOE_OK;
}

static numoe_status allocate(struct store *store, struct load_plan *plan, const struct topo *topo,
                             numoe_error *err)
{
    struct store_priv *priv = store->priv;
    for (unsigned in = 0; in < plan->n_node; in++) {
        FORWARD_IF(node_arena_new(topo, in, "weights", &priv->arena[in], err));
        for (unsigned ij = 0; ij < plan->n_job; ij++) {
            FORWARD_IF(allocate_job(priv, &plan->job[ij], in, err));
        }
        FORWARD_IF(store->replicas != NULL
                       ? replicas_allocate(store, in, priv->arena[in], err)
                       : NUMOE_OK);
    }
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ mapping */

/* The parts of a model that have experts, mapped whole: pages come with the first use, into the
 * page cache, and go when memory is needed for something else. */
static numoe_status map_part(const struct gguf_part *part, struct load_map *map, numoe_error *err)
{
    void *addr = mmap(NULL, part->bytes, PROT_READ, MAP_SHARED, part->fd, 0);
    if (addr == MAP_FAILED) {
        return status_fail(err, NUMOE_E_FILE_OPEN, "%s: cannot be mapped: %s", part->path,
                           strerror(errno));
    }
    *map = (struct load_map){.addr = addr, .bytes = part->bytes};
    return NUMOE_OK;
}

static numoe_status map_experts(struct store *store, struct load_plan *plan, numoe_error *err)
{
    struct store_priv *priv = store->priv;
    const struct gguf *gguf = plan->model->gguf;
    FORWARD_IF(mem_new(&priv->map, gguf->n_part, sizeof *priv->map, "mapped files", err));
    priv->n_map = gguf->n_part;
    for (unsigned ij = 0; ij < plan->n_job; ij++) {
        const struct load_job *job = &plan->job[ij];
        for (uint32_t mat = 0; job->shape->mapped && mat < job->w->n_mat; mat++) {
            uint64_t from;
            const struct gguf_tensor *t = load_matrix_range(job, mat, &from);
            struct load_map *map = &priv->map[t->part];
            FORWARD_IF(map->addr == NULL ? map_part(&gguf->part[t->part], map, err) : NUMOE_OK);
            job->w->map[mat] = (const uint8_t *)map->addr + t->offset + from;
        }
    }
    log_warn("%.2f GB of experts stay in the file (--mmap): they are packed at each use and read "
             "from disk where the page cache has no room for them, which is slower than weights "
             "in memory",
             (double)store->mapped_bytes * 1e-9);
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ reading */

/* A worker's part: units whose ranges are on their way, oldest first. */
struct loading {
    struct reader *reader; /* NULL until the worker has begun */
    struct loading_unit {
        const struct load_job *job;
        uint32_t iu;
    } unit[READER_DEPTH];
    unsigned first, n;
    numoe_status status;
    numoe_error err;
};

struct loader {
    const struct load_plan *plan;
    const struct reader_files *files;
    uint64_t total_bytes;
    uint64_t slice_end_ns;
    _Atomic uint32_t next[TOPO_MAX_NODE]; /* first unit of the node that nobody took */
    _Atomic uint32_t n_done[TOPO_MAX_NODE];
    _Atomic uint64_t done_bytes;
    _Atomic bool failed;
    struct loading *worker; /* [n_worker] */
};

/* The job that unit iu of a node belongs to: the last one that begins at or before it and has
 * units. */
static const struct load_job *find_job(const struct load_plan *plan, unsigned in, uint32_t iu)
{
    unsigned lo = 0, hi = plan->n_job;
    while (hi - lo > 1) {
        const unsigned mid = lo + (hi - lo) / 2;
        if (plan->job[mid].unit0[in] <= iu) {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    return &plan->job[lo];
}

static bool take_unit(struct loader *l, unsigned in, struct loading_unit *unit)
{
    if (atomic_load(&l->next[in]) >= l->plan->n_unit[in]) {
        return false;
    }
    const uint32_t iu = atomic_fetch_add(&l->next[in], 1);
    if (iu >= l->plan->n_unit[in]) {
        return false;
    }
    unit->job = find_job(l->plan, in, iu);
    unit->iu = iu - unit->job->unit0[in];
    return true;
}

static numoe_status place_unit(struct loader *l, struct loading *mine, unsigned in,
                               const struct loading_unit *unit, const void *data)
{
    uint64_t placed_bytes = 0;
    FORWARD_IF(load_unit(l->plan->model, unit->job, in, unit->iu, data, reader_extra(mine->reader),
                         &placed_bytes, &mine->err));
    atomic_fetch_add(&l->done_bytes, placed_bytes);
    atomic_fetch_add(&l->n_done[in], 1);
    return NUMOE_OK;
}

/* Takes units and has them read until enough is on its way; what is not one range is done at once.
 */
static numoe_status start_units(struct loader *l, struct loading *mine, unsigned in)
{
    struct loading_unit unit;
    while (reader_has_room(mine->reader) && take_unit(l, in, &unit)) {
        const struct gguf_tensor *t;
        uint64_t from;
        size_t bytes;
        if (load_unit_range(unit.job, in, unit.iu, &t, &from, &bytes)) {
            reader_start(mine->reader, t, from, bytes);
            mine->unit[(mine->first + mine->n++) % READER_DEPTH] = unit;
        } else {
            FORWARD_IF(place_unit(l, mine, in, &unit, NULL));
        }
    }
    return NUMOE_OK;
}

static numoe_status finish_unit(struct loader *l, struct loading *mine, unsigned in)
{
    const void *data;
    const struct loading_unit *unit = &mine->unit[mine->first];
    FORWARD_IF(reader_wait(mine->reader, &data, &mine->err));
    FORWARD_IF(place_unit(l, mine, in, unit, data));
    reader_drop(mine->reader);
    mine->first = (mine->first + 1) % READER_DEPTH;
    mine->n--;
    return NUMOE_OK;
}

/* What is on its way when the time is over stays so until the next slice. */
static void load_slice(struct worker *w, void *arg)
{
    struct loader *l = arg;
    struct loading *mine = &l->worker[w->ig];
    numoe_status status = NUMOE_OK;
    if (mine->reader == NULL) {
        status = reader_new(l->files, l->plan->range_bytes, l->plan->scratch_bytes, &mine->reader,
                            &mine->err);
    }
    bool more = true;
    while (status == NUMOE_OK && more && !atomic_load(&l->failed) && clock_ns() < l->slice_end_ns) {
        status = start_units(l, mine, w->in);
        more = mine->n > 0;
        if (status == NUMOE_OK && more) {
            status = finish_unit(l, mine, w->in);
        }
    }
    if (status != NUMOE_OK) {
        mine->status = status;
        atomic_store(&l->failed, true);
    }
}

static bool loader_finished(struct loader *l)
{
    for (unsigned in = 0; in < l->plan->n_node; in++) {
        if (atomic_load(&l->n_done[in]) < l->plan->n_unit[in]) {
            return false;
        }
    }
    return true;
}

static numoe_status loader_result(const struct loader *l, unsigned n_worker, numoe_error *err)
{
    for (unsigned ig = 0; ig < n_worker; ig++) {
        if (l->worker[ig].status != NUMOE_OK) {
            if (err != NULL) {
                *err = l->worker[ig].err;
            }
            return l->worker[ig].status;
        }
    }
    return NUMOE_OK;
}

static void run_slices(struct loader *l, struct pools *pools, numoe_progress_fn progress,
                       void *progress_arg)
{
    while (!loader_finished(l) && !atomic_load(&l->failed)) {
        l->slice_end_ns = clock_ns() + SLICE_NS;
        pools_run(pools, load_slice, l);
        if (progress != NULL) {
            /* Done leaves out what rounds matrices up to cache lines. */
            const uint64_t done = atomic_load(&l->done_bytes), total = l->total_bytes;
            progress(progress_arg, loader_finished(l) ? total : MIN(done, total), total);
        }
    }
}

/* One line a load, one a node. */
static void log_load(const struct store *store, const struct reader_files *files, double seconds)
{
    static const char *const way[] = {"the page cache", "direct reads",
                                      "reads into the page cache"};
    static const char *const mode[] = {"bound", "by first touch", "not this machine's"};
    const struct store_priv *priv = store->priv;
    log_info("%.2f GB of weights placed in %.2f s, %.2f GB/s, from %s", (double)store->bytes * 1e-9,
             seconds, (double)store->bytes * 1e-9 / seconds,
             way[reader_files_way(files, store->model->gguf->n_part - 1)]);
    for (unsigned in = 0; in < store->n_node; in++) {
        const struct node_arena *arena = priv->arena[in];
        log_info("node %u: %.2f GB of weights on %s, %s", in,
                 (double)node_arena_bytes(arena) * 1e-9, pages_name(node_arena_get_pages(arena)),
                 mode[node_arena_get_mode(arena)]);
    }
}

static numoe_status read_all(const struct store *store, const struct load_plan *plan,
                             struct pools *pools, numoe_progress_fn progress, void *progress_arg,
                             numoe_error *err)
{
    const unsigned n_worker = pools_n_worker(pools);
    struct loader l = {.plan = plan, .total_bytes = store->bytes};
    const uint64_t begin_ns = clock_ns();
    struct reader_files *files = NULL;
    FORWARD_IF(mem_new(&l.worker, n_worker, sizeof *l.worker, "load buffers", err));
    numoe_status status = reader_files_new(plan->model->gguf, &files, err);
    if (status == NUMOE_OK) {
        l.files = files;
        run_slices(&l, pools, progress, progress_arg);
        status = loader_result(&l, n_worker, err);
    }
    if (status == NUMOE_OK) {
        log_load(store, files, (double)(clock_ns() - begin_ns) * 1e-9);
    }
    for (unsigned ig = 0; ig < n_worker; ig++) {
        reader_free(l.worker[ig].reader);
    }
    reader_files_free(files);
    mem_free(l.worker);
    return status;
}

/* ------------------------------------------------------------------ store */

static numoe_status store_new(const struct model *model, const struct shapes *shapes,
                              const struct placement *placement, struct store **out,
                              numoe_error *err)
{
    struct store *store = NULL;
    FORWARD_IF(mem_new(&store, 1, sizeof *store, "weights", err));
    numoe_status status = mem_new(&store->priv, 1, sizeof(struct store_priv), "weights", err);
    if (status == NUMOE_OK) {
        status = mem_new(&store->layer, model->hp.n_layer, sizeof *store->layer, "weights", err);
    }
    if (status != NUMOE_OK) {
        mem_free(store->priv);
        mem_free(store);
        return status;
    }
    store->model = model;
    store->n_node = placement->n_node;
    store->bytes = placement->total_bytes;
    store->mapped_bytes = shapes_mapped_bytes(shapes);
    store->first_expert = shapes->first_expert;
    memcpy(store->share, placement->share, sizeof store->share);
    *out = store;
    return NUMOE_OK;
}

/* Whole experts: who has which, from the slices of their last matrix. */
static numoe_status note_holders(struct store *store, const struct placement *placement,
                                 numoe_error *err)
{
    const size_t n_expert = store->model->hp.n_expert;
    if (placement->mode != NUMOE_PLACEMENT_SHARD) {
        return NUMOE_OK;
    }
    FORWARD_IF(mem_new(&store->holders, store->model->hp.n_layer * n_expert, sizeof *store->holders,
                       "places of experts", err));
    for (unsigned i = 0; i < placement->n_slice; i++) {
        const struct placement_slice *slice = &placement->slice[i];
        for (uint32_t ie = slice->mat0; slice->slot == SLOT_DOWN_EXPS && ie < slice->mat1; ie++) {
            const size_t at = (size_t)slice->layer * n_expert + store->first_expert + ie;
            store->holders[at] |= UINT64_C(1) << slice->node;
        }
    }
    return placement->place_bytes > 0
               ? replicas_new(placement, store->model->hp.n_layer, store->model->hp.n_expert,
                              &store->replicas, err)
               : NUMOE_OK;
}

numoe_status store_load(const struct model *model, const struct shapes *shapes,
                        const struct placement *placement, const struct topo *topo,
                        struct pools *pools, numoe_progress_fn progress, void *progress_arg,
                        struct store **out, numoe_error *err)
{
    struct store *store = NULL;
    struct load_plan *plan = NULL;
    FORWARD_IF(store_new(model, shapes, placement, &store, err));
    numoe_status status = note_holders(store, placement, err);
    if (status == NUMOE_OK) {
        status = load_plan_new(model, shapes, placement, store, &plan, err);
    }
    if (status == NUMOE_OK) {
        status = allocate(store, plan, topo, err);
    }
    if (status == NUMOE_OK && store->mapped_bytes > 0) {
        status = map_experts(store, plan, err);
    }
    if (status == NUMOE_OK) {
        status = read_all(store, plan, pools, progress, progress_arg, err);
    }
    if (status == NUMOE_OK) {
        struct store_priv *priv = store->priv;
        priv->tied = !weight_present(&store->w[SLOT_OUTPUT]);
        if (priv->tied) {
            store->w[SLOT_OUTPUT] = store->w[SLOT_TOKEN_EMBD];
        }
        *out = store;
    } else {
        store_free(store);
    }
    load_plan_free(plan);
    return status;
}

static void free_weight(struct weight *w)
{
    for (unsigned in = 0; w->part != NULL && in < w->n_node; in++) {
        mem_free(w->part[in].at);
        mem_free(w->part[in].mat);
    }
    mem_free(w->part);
    mem_free(w->map);
    mem_free(w->vec);
    mem_free(w->vec_here);
}

void store_free(struct store *store)
{
    if (store == NULL) {
        return;
    }
    struct store_priv *priv = store->priv;
    for (unsigned slot = 0; slot < N_MODEL_SLOT; slot++) {
        if (slot != SLOT_OUTPUT || !priv->tied) {
            free_weight(&store->w[slot]);
        }
    }
    for (unsigned il = 0; il < store->model->hp.n_layer; il++) {
        for (unsigned slot = N_MODEL_SLOT; slot < N_SLOT; slot++) {
            free_weight(&store->layer[il][slot]);
        }
    }
    for (unsigned in = 0; in < store->n_node; in++) {
        if (priv->arena[in] != NULL) {
            node_arena_free(priv->arena[in]);
        }
    }
    for (unsigned i = 0; i < priv->n_map; i++) {
        if (priv->map[i].addr != NULL) {
            munmap(priv->map[i].addr, priv->map[i].bytes);
        }
    }
    mem_free(priv->map);
    store_free(priv->adopted);
    replicas_free(store->replicas);
    mem_free(store->holders);
    mem_free(store->layer);
    mem_free(store->priv);
    mem_free(store);
}

static void take_weight(struct weight *to, struct weight *from)
{
    if (!weight_present(to) && weight_present(from)) {
        *to = *from;
        *from = (struct weight){.format = NULL};
    }
}

void store_adopt(struct store *store, struct store *more)
{
    struct store_priv *priv = store->priv, *more_priv = more->priv, *last = more_priv;
    const bool gives_tied = more_priv->tied && !weight_present(&store->w[SLOT_TOKEN_EMBD]);
    priv->tied = gives_tied || (priv->tied && weight_present(&store->w[SLOT_OUTPUT]));
    more_priv->tied = more_priv->tied && !gives_tied;
    for (unsigned slot = 0; slot < N_MODEL_SLOT; slot++) {
        take_weight(&store->w[slot], &more->w[slot]);
    }
    for (unsigned il = 0; il < store->model->hp.n_layer; il++) {
        for (unsigned slot = N_MODEL_SLOT; slot < N_SLOT; slot++) {
            take_weight(&store->layer[il][slot], &more->layer[il][slot]);
        }
    }
    store->bytes += more->bytes;
    while (last->adopted != NULL) {
        last = last->adopted->priv;
    }
    last->adopted = priv->adopted;
    priv->adopted = more;
}

void store_audit(const struct store *store, const struct topo *topo, unsigned in, struct audit *sum)
{
    const struct store_priv *priv = store->priv;
    audit_arena(topo, priv->arena[in], sum);
    if (priv->adopted != NULL) {
        store_audit(priv->adopted, topo, in, sum);
    }
}

void store_audit_sample(const struct store *store, const struct topo *topo, unsigned in,
                        unsigned max_page, unsigned phase, struct audit *sum)
{
    const struct store_priv *priv = store->priv;
    audit_sample(topo, priv->arena[in], max_page, phase, sum);
}

const char *store_audit_cause(const struct store *store, const struct topo *topo, unsigned in)
{
    const struct store_priv *priv = store->priv;
    return audit_cause(topo, priv->arena[in]);
}
