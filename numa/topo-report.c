/* Owns numoe_topo_report() and its two forms in letters, text and JSON; the picture is
 * numa/topo-svg.c's. What is said is found in numa/topo-view.c.
 */
#include "numa/topo-report.h"

#include <jansson.h>
#include <string.h>

/* ------------------------------------------------------------------ text: nodes */

static void print_cell(FILE *out, int width, uint64_t bytes)
{
    char text[16];
    fprintf(out, " %*s", width, bytes ? view_bytes(bytes, text) : "-");
}

static void print_count(FILE *out, int width, const struct topo *topo, uint64_t n)
{
    bool known = topo->is_this_machine || *topo->world->root;
    if (known) {
        fprintf(out, " %*llu", width, (unsigned long long)n);
    } else {
        fprintf(out, " %*s", width, "-");
    }
}

static void print_memory(const struct view *v, const struct view_node *node, FILE *out)
{
    print_cell(out, 10, node->memory_bytes);
    print_cell(out, 10, node->topo ? node->topo->available_bytes : 0);
    print_count(out, 7, v->topo, node->topo ? node->topo->huge_2m_free : 0);
    print_count(out, 7, v->topo, node->topo ? node->topo->huge_1g_free : 0);
    if (node->topo && node->topo->read_bps > 0) {
        fprintf(out, " %5.1f GB/s", node->topo->read_bps / 1e9);
    } else {
        fprintf(out, " %10s", "-");
    }
}

static void print_box(const struct view *v, const struct view_box *box, FILE *out)
{
    const struct view_node *node = &v->node[box->in];
    unsigned n_usable, n_worker = view_box_workers(v, box, &n_usable);
    char cores[32] = "-", workers[16] = "-";
    if (box->n_core > 0) {
        snprintf(cores, sizeof(cores), n_usable == box->n_core ? "%u" : "%u of %u", n_usable,
                 box->n_core);
        snprintf(workers, sizeof(workers), "%u", n_worker);
    }
    fprintf(out, "  node %-4u %10s %8s", node->os_index, cores, workers);
    bool is_shared = node->package == VIEW_NO_PACKAGE && box->package != VIEW_NO_PACKAGE;
    if (node->package == box->package || is_shared) {
        print_memory(v, node, out);
        fputs(is_shared ? "  shared by packages" : "", out);
    } else {
        fprintf(out, "   memory of package %u", node->package);
    }
    fputc('\n', out);
}

static void print_nodes(const struct view *v, FILE *out)
{
    fprintf(out, "\n%-11s %10s %8s %10s %10s %7s %7s %10s\n", "", "cores", "workers", "memory",
            "available", "2M free", "1G free", "reads");
    for (unsigned ib = 0; ib < v->n_box; ib++) {
        const struct view_box *box = &v->box[ib];
        if (ib == 0 || box->package != v->box[ib - 1].package) {
            if (box->package == VIEW_NO_PACKAGE) {
                fputs("no package\n", out);
            } else {
                fprintf(out, "package %u\n", box->package);
            }
        }
        print_box(v, box, out);
    }
}

static void print_distances(const struct view *v, FILE *out)
{
    const struct topo *t = v->topo;
    if (t->distance == NULL || t->n_node < 2) {
        return;
    }
    fprintf(out, "\n%-11s", "distances");
    for (unsigned in = 0; in < t->n_node; in++) {
        fprintf(out, " %4u", t->node[in].os_index);
    }
    for (unsigned i = 0; i < t->n_node; i++) {
        fprintf(out, "\n  node %-4u", t->node[i].os_index);
        for (unsigned j = 0; j < t->n_node; j++) {
            fprintf(out, " %4u", t->distance[i * t->n_node + j]);
        }
    }
    fputc('\n', out);
}

/* ------------------------------------------------------------------ text: who works, who does not
 */

static void print_workers(const struct view *v, FILE *out)
{
    fprintf(out, "\nworkers: %u\n", v->n_worker);
    for (unsigned in = 0; in < v->n_node; in++) {
        char *list = view_list(v, VIEW_WORKER, (int)in);
        if (list) {
            fprintf(out, "  node %-4u CPU %s\n", v->node[in].os_index, list);
        }
        mem_free(list);
    }
}

static void print_unused(const struct view *v, FILE *out)
{
    bool any = false;
    for (enum view_use use = VIEW_QUOTA; use < VIEW_N_USE; use++) {
        char *list = view_list(v, use, -1);
        if (list) {
            fprintf(out, "%s  CPU %s: %s\n", any ? "" : "\nnot used\n", list,
                    view_use_reason(v, use));
            any = true;
        }
        mem_free(list);
    }
    for (unsigned in = 0; in < v->n_node; in++) {
        const char *reason = view_node_reason(v->node[in].use);
        if (*reason) {
            fprintf(out, "%s  node %u: %s\n", any ? "" : "\nnot used\n", v->node[in].os_index,
                    reason);
            any = true;
        }
    }
    if (v->topo->n_far_core > 0) {
        fprintf(out, "\n%u core%s no local memory that may be used: the nearest node's is\n",
                v->topo->n_far_core, v->topo->n_far_core == 1 ? " has" : "s have");
    }
}

static void print_limits(const struct view *v, FILE *out)
{
    const struct topo *t = v->topo;
    char text[16];
    if (t->cpu_quota > 0 || t->memory_limit_bytes != UINT64_MAX) {
        fputs("\nlimits of the control group\n", out);
    }
    if (t->cpu_quota > 0) {
        fprintf(out, "  CPU quota: %.2f CPUs\n", t->cpu_quota);
    }
    if (t->memory_limit_bytes != UINT64_MAX) {
        fprintf(out, "  memory: %s may still be taken\n", view_bytes(t->memory_limit_bytes, text));
    }
}

numoe_status topo_print_text(const struct view *view, FILE *out, numoe_error *err)
{
    struct strbuf source = {0};
    FORWARD_IF(view_source(view, &source, err));
    fprintf(out, "%s\n%s\n", view->topo->description, source.data);
    strbuf_fini(&source);
    print_nodes(view, out);
    print_distances(view, out);
    print_workers(view, out);
    print_unused(view, out);
    print_limits(view, out);
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ JSON */

static json_t *number_or_null(double value)
{
    return value > 0 ? json_real(value) : json_null();
}

static json_t *cores_json(const struct view *v, unsigned in)
{
    json_t *cores = json_array();
    for (unsigned ic = 0; ic < v->n_core; ic++) {
        const struct view_core *core = &v->core[ic];
        if (core->in != in) {
            continue;
        }
        json_t *cpus = json_array();
        for (unsigned i = core->pu0; i < core->pu0 + core->n_pu; i++) {
            const struct view_pu *pu = &v->pu[i];
            json_t *worker = pu->use == VIEW_WORKER ? json_integer(pu->worker) : json_null();
            json_array_append_new(cpus, json_pack("{s:i, s:s, s:o}", "cpu", (int)pu->os_index,
                                                  "use", view_use_name(pu->use), "worker", worker));
        }
        json_t *package =
            core->package == VIEW_NO_PACKAGE ? json_null() : json_integer(core->package);
        json_array_append_new(cores, json_pack("{s:o, s:o}", "package", package, "cpus", cpus));
    }
    return cores;
}

static json_t *node_json(const struct view *v, unsigned in)
{
    static const struct topo_node unknown = {0};
    const struct view_node *node = &v->node[in];
    const struct topo_node *t = node->topo ? node->topo : &unknown;
    json_t *package = node->package == VIEW_NO_PACKAGE ? json_null() : json_integer(node->package);
    return json_pack("{s:i, s:o, s:s, s:s, s:i, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o}", "node",
                     (int)node->os_index, "package", package, "use", view_node_use_name(node->use),
                     "reason", view_node_reason(node->use), "workers", (int)node->n_worker,
                     "memory_bytes", (json_int_t)node->memory_bytes, "available_bytes",
                     (json_int_t)t->available_bytes, "huge_2m_free", (json_int_t)t->huge_2m_free,
                     "huge_1g_free", (json_int_t)t->huge_1g_free, "llc_bytes",
                     (json_int_t)t->llc_bytes, "read_bps", number_or_null(t->read_bps),
                     "latency_ns", number_or_null(t->latency_ns), "cores", cores_json(v, in));
}

static json_t *unused_json(const struct view *v)
{
    json_t *unused = json_array();
    for (enum view_use use = VIEW_QUOTA; use < VIEW_N_USE; use++) {
        char *list = view_list(v, use, -1);
        if (list) {
            json_array_append_new(unused,
                                  json_pack("{s:s, s:s, s:s}", "cpus", list, "use",
                                            view_use_name(use), "reason", view_use_reason(v, use)));
        }
        mem_free(list);
    }
    return unused;
}

static json_t *distances_json(const struct topo *t)
{
    if (t->distance == NULL) {
        return json_null();
    }
    json_t *nodes = json_array(), *rows = json_array();
    for (unsigned i = 0; i < t->n_node; i++) {
        json_t *row = json_array();
        for (unsigned j = 0; j < t->n_node; j++) {
            json_array_append_new(row, json_integer(t->distance[i * t->n_node + j]));
        }
        json_array_append_new(nodes, json_integer(t->node[i].os_index));
        json_array_append_new(rows, row);
    }
    return json_pack("{s:o, s:o}", "nodes", nodes, "values", rows);
}

static json_t *limits_json(const struct topo *t)
{
    bool limited = t->memory_limit_bytes != UINT64_MAX;
    return json_pack("{s:o, s:o}", "cpus", number_or_null(t->cpu_quota), "memory_bytes",
                     limited ? json_integer((json_int_t)t->memory_limit_bytes) : json_null());
}

numoe_status topo_print_json(const struct view *view, FILE *out, numoe_error *err)
{
    const struct topo *t = view->topo;
    json_t *nodes = json_array();
    for (unsigned in = 0; in < view->n_node; in++) {
        json_array_append_new(nodes, node_json(view, in));
    }
    json_t *root =
        json_pack("{s:s, s:b, s:i, s:i, s:o, s:o, s:o, s:o}", "machine", t->description,
                  "this_machine", (int)t->is_this_machine, "packages", (int)view->n_package,
                  "workers", (int)view->n_worker, "nodes", nodes, "distances", distances_json(t),
                  "not_used", unused_json(view), "limits", limits_json(t));
    if (root == NULL) {
        return status_fail(err, NUMOE_E_MEMORY, "topology as JSON: cannot allocate");
    }
    int rc = json_dumpf(root, out, JSON_INDENT(2));
    json_decref(root);
    fputc('\n', out);
    return rc == 0 ? NUMOE_OK
                   : status_fail(err, NUMOE_E_FILE_WRITE, "the report cannot be written");
}

/* ------------------------------------------------------------------ entry */

numoe_status numoe_topo_report(const char *topology, numoe_report_format format, FILE *out,
                               numoe_error *err)
{
    static numoe_status (*const print[])(const struct view *, FILE *, numoe_error *) = {
        [NUMOE_REPORT_TEXT] = topo_print_text,
        [NUMOE_REPORT_JSON] = topo_print_json,
        [NUMOE_REPORT_SVG] = topo_print_svg,
    };
    struct view *view;
    if ((unsigned)format >= ARRAY_LEN(print)) {
        return status_fail(err, NUMOE_E_INPUT, "there is no report format %d", (int)format);
    }
    FORWARD_IF(view_new("", topology, &view, err));
    numoe_status st = print[format](view, out, err);
    view_free(view);
    if (st == NUMOE_OK && (fflush(out) != 0 || ferror((FILE *)out))) {
        return status_fail(err, NUMOE_E_FILE_WRITE, "the report cannot be written");
    }
    return st;
}
