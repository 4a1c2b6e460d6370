/* Placements beside each other: what each would cost on a machine that may be another one, for a model
 * that may not be here, with a GPU that nobody has yet. The arithmetic is store/placement-cost.c's;
 * here is what it is asked.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/geometry.h"
#include "runtime/params.h"
#include "runtime/place.h"
#include "runtime/plan.h"
#include "store/stats.h"

#define CHUNK_TOKENS_DEFAULT 512u
#define GPU_RESERVE          0.10   /* of its memory, for the cache and buffers */
#define GPU_SHARE            0.85   /* of its bandwidth that products of one token reach */
#define HAND_OFF_S           15e-6  /* a layer's experts from GPU to workers and back */

struct gpu_model {
    double memory_bytes, read_bps, link_bps;
};

struct comparison {
    const struct shapes *shapes;
    const struct placement_machine *machine;
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
    const struct placement_split split = placement_split(c->shapes);
    const double room = c->gpu.memory_bytes * (1 - GPU_RESERVE) - split.dense_bytes;
    const double part = split.routed_bytes > 0 ? MIN(MAX(room, 0) / split.routed_bytes, 1.0) : 0;
    if (room < 0) {
        fprintf(out, "%-12s  %.1f GB of attention and shared weights do not fit its %.1f GB\n",
                "slice + GPU", split.dense_bytes * 1e-9,
                c->gpu.memory_bytes * (1 - GPU_RESERVE) * 1e-9);
        return;
    }
    const double served =
        c->request.stats != NULL ? placement_coverage(c->shapes, c->request.stats, part) : part;
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
        if (placement_make(c->shapes, c->machine, &c->request, &p, &why) != NUMOE_OK) {
            fprintf(out, "%-12s  %s\n", name, why.text);
            continue;
        }
        placement_cost(p, c->shapes, c->machine, c->request.stats, c->chunk_tokens, &cost);
        print_row(name, p, &cost, out);
        if (mode == NUMOE_PLACEMENT_SLICE && c->has_gpu) {
            print_gpu_row(c, p, &cost, out);
        }
        placement_free(p);
        if (c->machine->n_node == 1) {
            break; /* they are all the same */
        }
    }
}

static void print_bound(const struct comparison *c, FILE *out)
{
    const double token_bytes = placement_token_bytes(c->shapes);
    fprintf(out,
            "\nnever more than %.2f tokens/s: a token reads %.3f GB, the nodes %.1f GB/s (%s), of "
            "which products reach %.0f %%\n",
            placement_bound(c->shapes, c->machine), token_bytes * 1e-9,
            placement_all_bps(c->machine) * 1e-9, c->machine->bps_source,
            c->machine->kernel_share * 100);
    if (c->has_gpu) {
        fprintf(out,
                "with the GPU never more than %.2f tokens/s: it reads %.1f GB/s, of which products "
                "reach %.0f %% (assumed)\n",
                (placement_all_bps(c->machine) + c->gpu.read_bps) / token_bytes,
                c->gpu.read_bps * 1e-9, GPU_SHARE * 100);
    }
}

/* How fast a disk is nobody has said: what it would have to read is known. */
static void print_mapped(const struct comparison *c, FILE *out)
{
    double bytes = 0;
    for (unsigned is = 0; is < c->shapes->n; is++) {
        const struct shape *s = &c->shapes->shape[is];
        bytes += s->mapped ? shape_token_bytes(c->shapes, s) : 0;
    }
    if (bytes > 0) {
        fprintf(out,
                "experts stay in the file (--mmap): all this holds while those that are chosen are in "
                "the page cache, and is\nless for packing them at each use; those that are not come "
                "from the disk: %.3f GB for each token where none is\n",
                bytes * 1e-9);
    }
}

numoe_status plan_check(const numoe_plan_params *params, bool json, numoe_error *err)
{
    struct gpu_model gpu;
    const char *what = json                         ? "JSON has the plan alone"
                       : params->engine.plan != NULL ? "a plan that is given is not compared"
                                                    : NULL;
    if (params->gpu == NULL) {
        return NUMOE_OK;
    }
    FORWARD_IF(parse_gpu(params->gpu, &gpu, err));
    return what == NULL
               ? NUMOE_OK
               : status_fail(err, NUMOE_E_INPUT,
                             "GPU '%s': %s, without the placements beside each other that a GPU is "
                             "shown with",
                             params->gpu, what);
}

numoe_status plan_compare(const numoe_plan_params *params, const struct model *model,
                          const struct shapes *shapes, const struct placement_machine *machine,
                          FILE *out, numoe_error *err)
{
    const numoe_engine_params *engine = &params->engine;
    struct comparison c = {
        .shapes = shapes,
        .machine = machine,
        .request = {.replica_bytes = engine->replica_bytes,
                    .replica_percent = engine->replica_percent,
                    .replicas_change = params_replicas_change(engine)},
        .chunk_tokens = engine->chunk_tokens ? engine->chunk_tokens : CHUNK_TOKENS_DEFAULT,
        .has_gpu = params->gpu != NULL,
    };
    FORWARD_IF(c.has_gpu ? parse_gpu(params->gpu, &c.gpu, err) : NUMOE_OK);
    if (engine->expert_stats != NULL) {
        FORWARD_IF(expert_stats_load(engine->expert_stats, model, &c.stats, err));
        c.request.stats = &c.stats;
    }
    compare_modes(&c, out);
    print_bound(&c, out);
    print_mapped(&c, out);
    expert_stats_fini(&c.stats);
    return ferror(out) ? status_fail(err, NUMOE_E_FILE_WRITE, "the plan cannot be written")
                       : NUMOE_OK;
}
