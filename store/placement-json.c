/* A plan as JSON, and back. One object a slice; the experts of a weight on a node are one object,
 * with the ranges of all of them.
 *
 *     {"numoe_plan": 1, "model": {...}, "mode": "shard", "reason": "...",
 *      "nodes": [{"share": 0.5, ...}, ...],
 *      "slices": [{"weight": "blk.1.attn_q.weight", "node": 0, "rows": [0, 768], "matrices": [0,
 * 1]},
 *                 {"weight": "blk.1.ffn_up_exps.weight", "node": 0, "rows": [0, 1408],
 *                  "matrices": [0, 3, 7, 9]}, ...]}
 *
 * "panels": [every, first] is there where panels are dealt, "further": true where experts have
 * another copy that stays, and a node's "replica_places" where further copies come and go as experts
 * are used. What a person may want to know (sizes,
 * prediction) may be left out; what is there has to be possible, and bytes those of the slices.
 */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "store/placement.h"

#define PLAN_VERSION 1

/* ------------------------------------------------------------------ out */

static bool is_same_object(const struct placement_slice *a, const struct placement_slice *b)
{
    return a->layer == b->layer && a->slot == b->slot && a->node == b->node && a->row0 == b->row0 &&
           a->row1 == b->row1 && a->every == b->every && a->first == b->first &&
           a->further == b->further;
}

/* The slice and those after it that become one object; *n is how many. */
static json_t *slice_object(const struct placement_slice *slice, unsigned n_left, unsigned *n)
{
    char name[96];
    json_t *matrices = json_array();
    for (*n = 0; *n < n_left && is_same_object(slice, &slice[*n]); ++*n) {
        json_array_append_new(matrices, json_integer(slice[*n].mat0));
        json_array_append_new(matrices, json_integer(slice[*n].mat1));
    }
    shape_name(slice->layer, slice->slot, name, sizeof name);
    json_t *object =
        json_pack("{s:s, s:i, s:[i, i], s:o}", "weight", name, "node", (int)slice->node, "rows",
                  (int)slice->row0, (int)slice->row1, "matrices", matrices);
    if (slice->every > 1) {
        json_object_set_new(object, "panels",
                            json_pack("[i, i]", (int)slice->every, (int)slice->first));
    }
    if (slice->further) {
        json_object_set_new(object, "further", json_true());
    }
    return object;
}

static json_t *nodes_array(const struct placement *p, const struct placement_machine *machine)
{
    json_t *nodes = json_array();
    for (unsigned in = 0; in < p->n_node; in++) {
        const struct placement_node *node = &machine->node[in];
        json_t *object =
            json_pack("{s:i, s:f, s:i, s:f, s:I, s:I}", "os_index", (int)node->os_index, "share",
                      p->share[in], "workers", (int)node->n_worker, "read_bytes_per_s",
                      node->read_bps, "weight_bytes", (json_int_t)p->node_bytes[in], "buffer_bytes",
                      (json_int_t)node->buffer_bytes);
        if (node->room_bytes != UINT64_MAX) {
            json_object_set_new(object, "room_bytes", json_integer((json_int_t)node->room_bytes));
        }
        if (p->place_bytes > 0) {
            json_object_set_new(object, "replica_places", json_integer(p->n_place[in]));
        }
        json_array_append_new(nodes, object);
    }
    return nodes;
}

static json_t *model_object(const struct shapes *shapes)
{
    /* Names are whatever the file says: one that is not UTF-8 becomes null. */
    return json_pack("{s:o?, s:o?, s:i, s:i}", "name", json_string(shapes->model_name),
                     "architecture", json_string(shapes->arch), "layers", (int)shapes->n_layer,
                     "experts", (int)shapes->n_expert);
}

numoe_status placement_to_json(const struct placement *p, const struct shapes *shapes,
                               const struct placement_machine *machine, char **text,
                               numoe_error *err)
{
    json_t *slices = json_array();
    for (unsigned i = 0, n; i < p->n_slice; i += n) {
        json_array_append_new(slices, slice_object(&p->slice[i], p->n_slice - i, &n));
    }
    json_t *model = model_object(shapes);
    json_t *root = json_pack(
        "{s:i, s:o?, s:s, s:s, s:f, s:f, s:f, s:f, s:I, s:I, s:s, s:o, s:o}", "numoe_plan",
        PLAN_VERSION, "model", model, "mode", placement_mode_name(p->mode), "reason", p->reason,
        "predicted_tokens_per_s", p->tokens_per_s, "predicted_lanes_tokens_per_s",
        p->lanes_tokens_per_s, "predicted_imbalance", p->imbalance, "replica_share",
        p->replica_share, "weight_bytes", (json_int_t)p->total_bytes, "replica_bytes",
        (json_int_t)p->replica_bytes, "bandwidth", machine->bps_source, "nodes",
        nodes_array(p, machine), "slices", slices);
    char *dump = root != NULL ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (dump == NULL) {
        return status_fail(err, NUMOE_E_MEMORY, "no memory for a plan of %u slices", p->n_slice);
    }
    *text = dump;
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ in */

static bool get_u32(const json_t *value, uint32_t *out)
{
    const json_int_t x = json_integer_value(value);
    if (!json_is_integer(value) || x < 0 || x > INT32_MAX) {
        return false;
    }
    *out = (uint32_t)x;
    return true;
}

static bool get_pair(const json_t *array, uint32_t *a, uint32_t *b)
{
    return json_array_size(array) == 2 && get_u32(json_array_get(array, 0), a) &&
           get_u32(json_array_get(array, 1), b);
}

/* Slices are in the order of weights, mostly: the search begins where the last one ended, *at. */
static const struct shape *find_weight(const struct shapes *shapes, const char *name, unsigned *at)
{
    char buf[96];
    for (unsigned i = 0; i < shapes->n; i++, *at = (*at + 1) % shapes->n) {
        const struct shape *s = &shapes->shape[*at];
        shape_name(s->layer, s->slot, buf, sizeof buf);
        if (s->kind != SHAPE_VECTOR && strcmp(buf, name) == 0) {
            return s;
        }
    }
    return NULL;
}

static numoe_status read_slice(struct placement *p, const struct shapes *shapes,
                               const json_t *object, unsigned *at, numoe_error *err)
{
    const char *name = json_string_value(json_object_get(object, "weight"));
    const json_t *matrices = json_object_get(object, "matrices");
    const json_t *panels = json_object_get(object, "panels");
    const json_t *further = json_object_get(object, "further");
    struct placement_slice slice = {.every = 1};
    if (name == NULL) {
        return status_fail(err, NUMOE_E_INPUT, "\"weight\" is missing");
    }
    const struct shape *s = find_weight(shapes, name, at);
    if (s == NULL) {
        return status_fail(err, NUMOE_E_INPUT, "the model has no matrix %s", name);
    }
    if (!get_u32(json_object_get(object, "node"), &slice.node) || slice.node >= p->n_node) {
        return status_fail(err, NUMOE_E_INPUT, "%s: \"node\" must be a number below %u", name,
                           p->n_node);
    }
    if (!get_pair(json_object_get(object, "rows"), &slice.row0, &slice.row1) ||
        slice.row0 >= slice.row1 || slice.row1 > s->n_row) {
        return status_fail(err, NUMOE_E_INPUT, "%s: \"rows\" must be [from, to] within %u", name,
                           s->n_row);
    }
    if (panels != NULL && (!get_pair(panels, &slice.every, &slice.first) || slice.every < 2 ||
                           slice.first >= slice.every)) {
        return status_fail(err, NUMOE_E_INPUT, "%s: \"panels\" must be [every, first]", name);
    }
    if (further != NULL && !json_is_boolean(further)) {
        return status_fail(err, NUMOE_E_INPUT, "%s: \"further\" must be true or false", name);
    }
    slice.further = json_is_true(further);
    if (json_array_size(matrices) == 0 || json_array_size(matrices) % 2 != 0) {
        return status_fail(err, NUMOE_E_INPUT, "%s: \"matrices\" must be [from, to, ...]", name);
    }
    for (size_t i = 0; i < json_array_size(matrices); i += 2) {
        if (!get_u32(json_array_get(matrices, i), &slice.mat0) ||
            !get_u32(json_array_get(matrices, i + 1), &slice.mat1) || slice.mat0 >= slice.mat1 ||
            slice.mat1 > s->n_mat) {
            return status_fail(err, NUMOE_E_INPUT, "%s: \"matrices\" must ascend within %u", name,
                               s->n_mat);
        }
        FORWARD_IF(placement_add(p, s, slice, err));
    }
    return NUMOE_OK;
}

static numoe_status read_mode(struct placement *p, const json_t *root, numoe_error *err)
{
    const char *mode = json_string_value(json_object_get(root, "mode"));
    for (int m = NUMOE_PLACEMENT_SLICE; mode != NULL && m <= NUMOE_PLACEMENT_INTERLEAVE; m++) {
        if (strcmp(mode, placement_mode_name((numoe_placement)m)) == 0) {
            p->mode = (numoe_placement)m;
            return NUMOE_OK;
        }
    }
    return status_fail(err, NUMOE_E_INPUT,
                       "\"mode\" must be slice, shard, replicate or interleave");
}

static numoe_status read_nodes(struct placement *p, const json_t *root, numoe_error *err)
{
    const json_t *nodes = json_object_get(root, "nodes");
    p->n_node = (unsigned)MIN(json_array_size(nodes), (size_t)TOPO_MAX_NODE + 1);
    if (p->n_node == 0 || p->n_node > TOPO_MAX_NODE) {
        return status_fail(err, NUMOE_E_INPUT, "\"nodes\" must be a list of 1 to %d",
                           TOPO_MAX_NODE);
    }
    for (unsigned in = 0; in < p->n_node; in++) {
        const json_t *share = json_object_get(json_array_get(nodes, in), "share");
        p->share[in] = json_number_value(share);
        if (!json_is_number(share) || !(p->share[in] >= 0 && p->share[in] <= 1)) {
            return status_fail(err, NUMOE_E_INPUT,
                               "\"share\" of node %u must be a number from 0 to 1", in);
        }
    }
    return NUMOE_OK;
}

static numoe_status check_model(const struct shapes *shapes, const json_t *root, numoe_error *err)
{
    json_t *want = model_object(shapes);
    const json_t *model = json_object_get(root, "model");
    const bool same = want != NULL && json_equal(want, model);
    json_decref(want);
    if (same) {
        return NUMOE_OK;
    }
    const char *name = json_string_value(json_object_get(model, "name"));
    return status_fail(err, NUMOE_E_INPUT, "the plan is for another model (%s)",
                       name != NULL ? name : "without name");
}

/* A number that may be missing, from 0 to most. */
static bool is_number(const json_t *object, const char *key, double most, bool whole)
{
    const json_t *value = json_object_get(object, key);
    const double x = json_number_value(value);
    return value == NULL ||
           ((whole ? json_is_integer(value) : json_is_number(value)) && x >= 0 && x <= most);
}

/* What was written for people to read; predictions are made again for the machine that reads. */
static numoe_status check_numbers(const json_t *root, numoe_error *err)
{
    static const struct {
        const char *key;
        double most;
        bool whole, of_node;
    } number[] = {
        {"predicted_tokens_per_s", 1e12, false, false},
        {"predicted_lanes_tokens_per_s", 1e12, false, false},
        {"predicted_imbalance", TOPO_MAX_NODE, false, false},
        {"replica_share", 1, false, false},
        {"weight_bytes", 1e18, true, false},
        {"replica_bytes", 1e18, true, false},
        {"os_index", 1e6, true, true},
        {"workers", 4096, true, true},
        {"read_bytes_per_s", 1e15, false, true},
        {"weight_bytes", 1e18, true, true},
        {"buffer_bytes", 1e18, true, true},
        {"room_bytes", 1e19, true, true},
        {"replica_places", 1e7, true, true},
    };
    const json_t *nodes = json_object_get(root, "nodes");
    for (size_t i = 0; i < ARRAY_LEN(number); i++) {
        const size_t n = number[i].of_node ? json_array_size(nodes) : 1;
        for (size_t in = 0; in < n; in++) {
            const json_t *object = number[i].of_node ? json_array_get(nodes, in) : root;
            if (!is_number(object, number[i].key, number[i].most, number[i].whole)) {
                return status_fail(err, NUMOE_E_INPUT, "\"%s\" must be a %snumber from 0 to %g",
                                   number[i].key, number[i].whole ? "whole " : "", number[i].most);
            }
        }
    }
    return NUMOE_OK;
}

/* For placement_check(), which counts. */
static uint64_t told_bytes(const json_t *object)
{
    const json_t *value = json_object_get(object, "weight_bytes");
    return value != NULL ? (uint64_t)json_integer_value(value) : UINT64_MAX;
}

static void read_sizes(struct placement *p, const json_t *root)
{
    const json_t *nodes = json_object_get(root, "nodes");
    p->is_told = true;
    p->told_bytes = told_bytes(root);
    for (unsigned in = 0; in < p->n_node; in++) {
        const json_t *node = json_array_get(nodes, in), *os = json_object_get(node, "os_index");
        p->told_node_bytes[in] = told_bytes(node);
        p->n_place[in] =
            (unsigned)json_integer_value(json_object_get(node, "replica_places"));
        p->told_os_index[in] = os != NULL ? (int)json_integer_value(os) : -1;
    }
}

static numoe_status read_plan(struct placement *p, const struct shapes *shapes, const json_t *root,
                              numoe_error *err)
{
    const json_t *slices = json_object_get(root, "slices");
    const char *reason = json_string_value(json_object_get(root, "reason"));
    unsigned at = 0;
    if (json_integer_value(json_object_get(root, "numoe_plan")) != PLAN_VERSION) {
        return status_fail(err, NUMOE_E_INPUT, "is not a plan (\"numoe_plan\": %d)", PLAN_VERSION);
    }
    FORWARD_IF(check_model(shapes, root, err));
    FORWARD_IF(check_numbers(root, err));
    FORWARD_IF(read_mode(p, root, err));
    FORWARD_IF(read_nodes(p, root, err));
    if (!json_is_array(slices)) {
        return status_fail(err, NUMOE_E_INPUT, "\"slices\" must be a list");
    }
    for (size_t i = 0; i < json_array_size(slices); i++) {
        numoe_status status = read_slice(p, shapes, json_array_get(slices, i), &at, err);
        if (status != NUMOE_OK) {
            return status_context(err, status, "slice %zu", i);
        }
    }
    read_sizes(p, root);
    p->tokens_per_s = json_number_value(json_object_get(root, "predicted_tokens_per_s"));
    p->lanes_tokens_per_s =
        json_number_value(json_object_get(root, "predicted_lanes_tokens_per_s"));
    p->imbalance = json_number_value(json_object_get(root, "predicted_imbalance"));
    p->replica_share = json_number_value(json_object_get(root, "replica_share"));
    snprintf(p->reason, sizeof p->reason, "%s", reason != NULL ? reason : "from a file");
    utf8_make_plain(p->reason); /* it is shown: files may say what they like */
    return NUMOE_OK;
}

numoe_status placement_from_json(const char *text, size_t bytes, const struct shapes *shapes,
                                 struct placement **out, numoe_error *err)
{
    json_error_t why;
    struct placement *p = NULL;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why);
    if (root == NULL) {
        return status_fail(err, NUMOE_E_INPUT, "line %d: %s", why.line, why.text);
    }
    numoe_status status = mem_new(&p, 1, sizeof *p, "plan", err);
    if (status == NUMOE_OK) {
        status = read_plan(p, shapes, root, err);
    }
    json_decref(root);
    if (status != NUMOE_OK) {
        placement_free(p);
        return status;
    }
    *out = p;
    return NUMOE_OK;
}
