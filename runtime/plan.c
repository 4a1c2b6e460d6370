/* Placements beside each other: what each would cost on a machine that may be another one, for a model
 * that may not be here, with a GPU that nobody has yet. The arithmetic is store/placement-cost.c's;
 * here is what it is asked.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kernels/select.h"
#include "model/geometry.h"
#include "numa/bandwidth.h"
#include "runtime/place.h"
#include "store/kernel-probe.h"
#include "store/stats.h"

#define CHUNK_TOKENS_DEFAULT 512u
#define GPU_RESERVE          0.10   /* of its memory, for the cache and buffers */
#define GPU_SHARE            0.85   /* of its bandwidth that products of one token reach */
#define HAND_OFF_S           15e-6  /* a layer's experts from GPU to workers and back */

struct gpu_model {
    double memory_bytes, read_bps, link_bps;
};

struct comparison {
    struct topo *topo;
    struct place place;
    struct placement_request request;
    struct expert_stats stats;
    unsigned chunk_tokens;
    struct gpu_model gpu;
    bool has_gpu;
};

numoe_status plan_model_open(const numoe_plan_params *params, struct model **out, numoe_error *err)
{
    const char *path = params->engine.model_path;
    if (params->geometry != NULL) {
        return geometry_open(params->geometry, params->type != NULL ? params->type : "Q4_K_M", out,
                             err);
    }
    if (path == NULL) {
        FORWARD_IF(numoe_bundled_model(&path, err));
    }
    return model_open(path, out, err);
}

/* ------------------------------------------------------------------ a GPU in words */

/* GB/s of a lane, one direction, by generation. */
static const double pcie_lane[] = {0, 0.25, 0.5, 0.985, 1.969, 3.938, 7.563};

static bool take_gpu_word(const char *word, struct gpu_model *gpu)
{
    char unit[8] = "", rest = 0;
    unsigned gen, lanes;
    double value;
    if (sscanf(word, "pcie%1ux%2u%c", &gen, &lanes, &rest) == 2) {
        gpu->link_bps = gen < ARRAY_LEN(pcie_lane) ? pcie_lane[gen] * 1e9 * lanes : 0;
        return gpu->link_bps > 0 && lanes <= 16;
    }
    if (sscanf(word, "%lf%7s", &value, unit) != 2 || !(value > 0 && value < 1e6)) {
        return false;
    }
    if (strcmp(unit, "GiB") == 0) {
        gpu->memory_bytes = value * 1024 * 1024 * 1024;
    } else if (strcmp(unit, "GB") == 0) {
        gpu->memory_bytes = value * 1e9;
    } else if (strcmp(unit, "GB/s") == 0) {
        gpu->read_bps = value * 1e9;
    } else if (strcmp(unit, "TB/s") == 0) {
        gpu->read_bps = value * 1e12;
    } else {
        return false;
    }
    return true;
}

static numoe_status parse_gpu(const char *text, struct gpu_model *gpu, numoe_error *err)
{
    char word[32];
    const char *p = text;
    bool ok = true;
    *gpu = (struct gpu_model){.memory_bytes = 0};
    while (ok && *p != '\0') {
        const size_t n = strcspn(p, ",");
        ok = n < sizeof word;
        if (ok) {
            memcpy(word, p, n);
            word[n] = '\0';
            ok = take_gpu_word(word, gpu);
            p += n + (p[n] == ',');
        }
    }
    if (!ok || gpu->memory_bytes == 0 || gpu->read_bps == 0 || gpu->link_bps == 0) {
        return status_fail(err, NUMOE_E_INPUT,
                           "GPU '%s': give memory, bandwidth and link, as in "
                           "24GiB,1008GB/s,pcie4x16",
                           text);
    }
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ what is known */

/* The type that most bytes of a token have. */
static const struct shape *dominant(const struct shapes *shapes)
{
    double bytes[FORMAT_MAX] = {0};
    const struct shape *best = NULL;
    for (unsigned is = 0; is < shapes->n; is++) {
        const struct shape *s = &shapes->shape[is];
        if (s->kind != SHAPE_VECTOR) {
            bytes[s->format_id] += (double)shape_bytes(s) * shape_active_share(shapes, s);
        }
    }
    for (unsigned is = 0; is < shapes->n; is++) {
        const struct shape *s = &shapes->shape[is];
        if (s->kind != SHAPE_VECTOR &&
            (best == NULL || bytes[s->format_id] > bytes[best->format_id])) {
            best = s;
        }
    }
    return best;
}

/* On this machine: what the workers read, and what kernels reach of it. */
static numoe_status probe_machine(struct comparison *c, numoe_error *err)
{
    const struct shape *s = dominant(&c->place.shapes);
    const struct kern *kern;
    double total_bps = 0, node_bps[TOPO_MAX_NODE], kernel_bps = 0;
    FORWARD_IF(kern_select(&kern, err));
    FORWARD_IF(bandwidth_read(c->place.pools, c->topo, &total_bps, node_bps, err));
    for (unsigned in = 0; in < c->place.machine.n_node; in++) {
        c->place.machine.node[in].read_bps = node_bps[in];
    }
    c->place.machine.bps_source = "measured";
    FORWARD_IF(kernel_probe(c->place.pools, c->topo, kern, s->format_id, s->k, &kernel_bps, err));
    c->place.machine.kernel_share = MIN(kernel_bps / total_bps, 1.0);
    return NUMOE_OK;
}

static numoe_status open_comparison(const numoe_plan_params *params, const struct model *model,
                                    struct comparison *c, numoe_error *err)
{
    const numoe_engine_params *engine = &params->engine;
    if (params->gpu != NULL) {
        FORWARD_IF(parse_gpu(params->gpu, &c->gpu, err));
        c->has_gpu = true;
    }
    FORWARD_IF(topo_load(engine->topology, &c->topo, err));
    FORWARD_IF(place_open_machine(engine, model, c->topo, &c->place, err));
    c->place.machine.kernel_share = PLACEMENT_KERNEL_SHARE;
    if (engine->expert_stats != NULL) {
        FORWARD_IF(expert_stats_load(engine->expert_stats, model, &c->stats, err));
        c->request.stats = &c->stats;
    }
    c->request.replica_bytes = engine->replica_bytes;
    c->request.replica_percent = engine->replica_percent;
    c->chunk_tokens = engine->chunk_tokens ? engine->chunk_tokens : CHUNK_TOKENS_DEFAULT;
    const bool may_probe = c->topo->is_this_machine && !params->no_probe && engine->node_bps == 0;
    return may_probe ? probe_machine(c, err) : NUMOE_OK;
}

static void close_comparison(struct comparison *c)
{
    expert_stats_fini(&c->stats);
    place_close(&c->place);
    topo_free(c->topo);
}

/* ------------------------------------------------------------------ rows */

static uint64_t busiest_bytes(const struct placement *p)
{
    uint64_t most = 0;
    for (unsigned in = 0; in < p->n_node; in++) {
        most = MAX(most, p->node_bytes[in]);
    }
    return most;
}

static void print_row(const char *name, const struct placement *p, const struct placement_cost *cost,
                      FILE *out)
{
    fprintf(out, "%-12s  %8.2f  %8.1f  %9.2f  %9.2f  %10.1f  %s; prompts: %s\n", name,
            1 / cost->decode_s, 1 / cost->prefill_s, (double)p->total_bytes * 1e-9,
            (double)busiest_bytes(p) * 1e-9, cost->link_bytes * 1e-3, cost->bound,
            cost->prefill_by_compute ? "arithmetic (assumed)" : "memory bandwidth");
}

/* Attention, router, shared experts and head on the GPU, as many experts as there is room for, the
 * rest on the nodes, cut by rows. */
static void print_gpu_row(const struct comparison *c, const struct placement *p,
                          const struct placement_cost *cost, FILE *out)
{
    const struct placement_split split = placement_split(&c->place.shapes);
    const double room = c->gpu.memory_bytes * (1 - GPU_RESERVE) - split.dense_bytes;
    const double part = split.routed_bytes > 0 ? MIN(MAX(room, 0) / split.routed_bytes, 1.0) : 0;
    if (room < 0) {
        fprintf(out, "%-12s  %.1f GB of attention and shared weights do not fit its %.1f GB\n",
                "slice + GPU", split.dense_bytes * 1e-9,
                c->gpu.memory_bytes * (1 - GPU_RESERVE) * 1e-9);
        return;
    }
    const double served =
        c->request.stats != NULL ? placement_coverage(&c->place.shapes, c->request.stats, part) : part;
    const double crossing_s = split.n_moe * (HAND_OFF_S + split.crossing_bytes / c->gpu.link_bps);
    const double gpu_s = (split.dense_bytes + split.routed_active_bytes * served) /
                         (c->gpu.read_bps * GPU_SHARE);
    const double nodes_s = cost->routed_s * (1 - served);
    fprintf(out, "%-12s  %8.2f  %8s  %9.2f  %9s  %10.1f  %s; %.0f of %.0f experts in its memory "
                 "serve %.0f %% of choices\n",
            "slice + GPU", 1 / (gpu_s + nodes_s + crossing_s), "-",
            (double)p->total_bytes * 1e-9, "-", split.n_moe * split.crossing_bytes * 1e-3,
            nodes_s > gpu_s + crossing_s ? "memory bandwidth of the nodes" : "the GPU",
            part * split.n_expert, split.n_expert, served * 100);
}

static void compare_modes(struct comparison *c, FILE *out)
{
    fprintf(out,
            "\nplacement     tokens/s   prompts   GB in all   GB a node  kB crossing  bound by\n");
    for (int mode = NUMOE_PLACEMENT_SLICE; mode <= NUMOE_PLACEMENT_INTERLEAVE; mode++) {
        struct placement *p = NULL;
        struct placement_cost cost;
        numoe_error why;
        c->request.mode = (numoe_placement)mode;
        const char *name = placement_mode_name(c->request.mode);
        if (placement_make(&c->place.shapes, &c->place.machine, &c->request, &p, &why) != NUMOE_OK) {
            fprintf(out, "%-12s  %s\n", name, why.text);
            continue;
        }
        placement_cost(p, &c->place.shapes, &c->place.machine, c->request.stats, c->chunk_tokens, &cost);
        print_row(name, p, &cost, out);
        if (mode == NUMOE_PLACEMENT_SLICE && c->has_gpu) {
            print_gpu_row(c, p, &cost, out);
        }
        placement_free(p);
        if (c->place.machine.n_node == 1) {
            break; /* they are all the same */
        }
    }
}

numoe_status plan_compare(const numoe_plan_params *params, const struct model *model, FILE *out,
                          numoe_error *err)
{
    struct comparison c = {.topo = NULL};
    numoe_status status = open_comparison(params, model, &c, err);
    if (status == NUMOE_OK) {
        compare_modes(&c, out);
        fprintf(out, "\nnever more than %.2f tokens/s: a token reads %.3f GB, the nodes %.1f GB/s (%s), "
                     "of which products reach %.0f %%\n",
                placement_bound(&c.place.shapes, &c.place.machine), placement_token_bytes(&c.place.shapes) * 1e-9,
                placement_all_bps(&c.place.machine) * 1e-9, c.place.machine.bps_source,
                c.place.machine.kernel_share * 100);
    }
    close_comparison(&c);
    return status;
}
