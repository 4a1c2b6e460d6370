/* Owns numoe_plan_print(): the plan that an engine would have, in words or as JSON, and beside it
 * what the other placements would cost (runtime/plan.c). All numbers are of one machine: what is
 * measured is measured once, before anything is planned.
 */
#include <stdio.h>

#include "kernels/select.h"
#include "runtime/params.h"
#include "runtime/place.h"
#include "runtime/plan.h"

static void print_nodes(const struct place *p, FILE *out)
{
    const struct placement *plan = p->plan;
    fprintf(out, "\n\nnode  workers  bandwidth GB/s  share %%  weights GB  buffers GB  room GB\n");
    for (unsigned in = 0; in < plan->n_node; in++) {
        const struct placement_node *node = &p->machine.node[in];
        fprintf(out, "%4u  %7u  %14.1f  %7.1f  %10.2f  %10.2f  ", node->os_index, node->n_worker,
                node->read_bps * 1e-9, plan->share[in] * 100, (double)plan->node_bytes[in] * 1e-9,
                (double)node->buffer_bytes * 1e-9);
        if (node->room_bytes == UINT64_MAX) {
            fprintf(out, "%7s\n", "?");
        } else {
            fprintf(out, "%7.2f\n", (double)node->room_bytes * 1e-9);
        }
    }
}

static void print_memory(const struct place *p, FILE *out)
{
    const struct placement *plan = p->plan;
    const uint64_t mapped = shapes_mapped_bytes(&p->shapes);
    fprintf(out, "memory      %.2f GB of weights", (double)plan->total_bytes * 1e-9);
    if (plan->replica_bytes > 0) {
        fprintf(out, ", of them %.2f GB further copies of experts",
                (double)plan->replica_bytes * 1e-9);
    }
    if (placement_reserved_all(plan) > 0) {
        fprintf(out, "; %.2f GB kept free for copies of experts",
                (double)placement_reserved_all(plan) * 1e-9);
    }
    if (mapped > 0) {
        fprintf(out, "; %.2f GB of experts stay in the file", (double)mapped * 1e-9);
    }
}

static void print_replicas(const struct placement *plan, FILE *out)
{
    if (placement_n_place(plan) > 0) {
        fprintf(out,
                "\nreplicas    places for %u copies of experts, filled with the most used while "
                "the model runs",
                placement_n_place(plan));
    }
    if (plan->n_replicated > 0) {
        fprintf(out, "\nreplicas    %u of %u experts on several nodes serve %.0f %% of choices",
                plan->n_replicated, plan->n_expert, plan->replica_share * 100);
    }
    if (plan->mode == NUMOE_PLACEMENT_SHARD && plan->imbalance > 0) {
        fprintf(out, "\nimbalance   the busiest node has %.2f times its part of a token's experts",
                plan->imbalance);
    }
}

static void print_plan(const struct place *p, FILE *out)
{
    const struct placement *plan = p->plan;
    fprintf(out, "model       %s: %s, %u layers", p->shapes.model_name, p->shapes.arch,
            p->shapes.n_layer);
    if (p->shapes.n_expert > 0) {
        fprintf(out, ", %u of %u experts", p->shapes.n_expert_used, p->shapes.n_expert);
    }
    fprintf(out, "\nplacement   %s: %s\nreason      %s\n", placement_mode_name(plan->mode),
            place_mode_text(plan), plan->reason);
    fprintf(out, "predicted   %.1f tokens/s for one sequence (bandwidth %s)%s\n",
            plan->tokens_per_s, p->machine.bps_source,
            shapes_mapped_bytes(&p->shapes) > 0 ? ", while all experts are in the page cache" : "");
    if (plan->lanes_tokens_per_s > 0 && plan->n_node > 1) {
        fprintf(out,
                "            %.1f tokens/s for %u sequences, one on each node; %.1f by all nodes "
                "together\n",
                plan->lanes_tokens_per_s, plan->n_node, plan->together_tokens_per_s);
    }
    print_memory(p, out);
    print_replicas(plan, out);
    print_nodes(p, out);
}

static numoe_status print(const struct place *p, FILE *out, bool json, numoe_error *err)
{
    char *text = NULL;
    if (json) {
        FORWARD_IF(placement_to_json(p->plan, &p->shapes, &p->machine, &text, err));
        fprintf(out, "%s\n", text);
        mem_free(text);
    } else {
        print_plan(p, out);
    }
    return ferror(out) ? status_fail(err, NUMOE_E_FILE_WRITE, "the plan cannot be written")
                       : NUMOE_OK;
}

/* ------------------------------------------------------------------ what is known */

static numoe_status probe_machine(const struct topo *topo, struct place *place, numoe_error *err)
{
    const struct kern *kern;
    FORWARD_IF(kern_select(&kern, err));
    return placement_probe(topo, place->pools, kern, &place->shapes, &place->machine, err);
}

/* The place loses nodes that have no share, which the other placements use: they are compared on
 * the machine as it was. */
static numoe_status plan_and_print(const numoe_plan_params *params, const struct model *model,
                                   struct topo *topo, struct place *place, FILE *out, bool json,
                                   numoe_error *err)
{
    const numoe_engine_params *engine = &params->engine;
    FORWARD_IF(place_open_machine(engine, model, topo, place, err));
    if (topo->is_this_machine && !engine->no_probe && engine->node_bps == 0) {
        FORWARD_IF(probe_machine(topo, place, err));
    }
    const struct placement_machine whole = place->machine;
    FORWARD_IF(place_choose(engine, model, topo, place, err));
    FORWARD_IF(print(place, out, json, err));
    return json || engine->plan != NULL
               ? NUMOE_OK
               : plan_compare(params, model, &place->shapes, &whole, out, err);
}

numoe_status numoe_plan_print(const numoe_plan_params *params, FILE *out, bool json,
                              numoe_error *err)
{
    struct topo *topo = NULL;
    struct model *model = NULL;
    struct place place = {.plan = NULL};
    FORWARD_IF(params_check(&params->engine, err));
    FORWARD_IF(plan_check(params, json, err));
    FORWARD_IF(topo_load(params->engine.topology, &topo, err));
    numoe_status status = plan_model_open(params, &model, err);
    if (status == NUMOE_OK) {
        status = plan_and_print(params, model, topo, &place, out, json, err);
    }
    place_close(&place);
    model_close(model);
    topo_free(topo);
    return status;
}
