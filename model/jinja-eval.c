/* Evaluates expressions of a Jinja template, and calls what can be called. A variable is looked for
 * in the scopes from inside out; what none of them has may be a function of Jinja.
 */
#include "model/jinja-impl.h"

/* ------------------------------------------------------------------ names */

static void eval_name(struct jinja_scope *s, struct jinja_text name, struct jinja_value *out)
{
    for (; s != NULL; s = s->parent) {
        const struct jinja_pair *pair = jinja_dict_name(&s->vars, name);
        if (pair != NULL) {
            *out = pair->value;
            return;
        }
    }
    const struct jinja_builtin *function = jinja_find_function(name);
    *out = function != NULL ? (struct jinja_value){.kind = JINJA_FUNCTION, .function = function}
                            : jinja_undefined(JINJA_MISSING, name);
}

/* ------------------------------------------------------------------ literals */

static numoe_status eval_list(struct jinja *j, struct jinja_scope *s, const struct jinja_node *n,
                              struct jinja_value *out)
{
    enum jinja_kind kind = n->kind == JINJA_N_LIST ? JINJA_LIST : JINJA_TUPLE;

    FORWARD_IF(jinja_new_list(j, kind, n->item.n, out));
    for (size_t i = 0; i < n->item.n; i++) {
        struct jinja_value v;
        FORWARD_IF(jinja_eval(j, s, n->item.at[i], &v));
        FORWARD_IF(jinja_push(j, out->list, v));
    }
    return NUMOE_OK;
}

static numoe_status eval_dict(struct jinja *j, struct jinja_scope *s, const struct jinja_node *n,
                              struct jinja_value *out)
{
    FORWARD_IF(jinja_new_dict(j, JINJA_DICT, out));
    for (size_t i = 0; i + 1 < n->item.n; i += 2) {
        struct jinja_value key, value;
        FORWARD_IF(jinja_eval(j, s, n->item.at[i], &key));
        FORWARD_IF(jinja_eval(j, s, n->item.at[i + 1], &value));
        FORWARD_IF(jinja_dict_set(j, out->dict, key, value));
    }
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ operators */

static numoe_status eval_sign(struct jinja *j, struct jinja_scope *s, const struct jinja_node *n,
                              struct jinja_value *out)
{
    const struct jinja_value zero = jinja_int(0);
    struct jinja_value v;

    FORWARD_IF(jinja_eval(j, s, n->a, &v));
    if (v.kind == JINJA_FLOAT) {
        *out = jinja_float(n->kind == JINJA_N_NEG ? -v.f : v.f);
        return NUMOE_OK;
    }
    return jinja_binary(j, n->kind == JINJA_N_NEG ? '-' : '+', &zero, &v, out);
}

static numoe_status eval_logic(struct jinja *j, struct jinja_scope *s, const struct jinja_node *n,
                               struct jinja_value *out)
{
    FORWARD_IF(jinja_eval(j, s, n->a, out));
    return jinja_true(out) == (n->kind == JINJA_N_AND) ? jinja_eval(j, s, n->b, out) : NUMOE_OK;
}

static numoe_status eval_binary(struct jinja *j, struct jinja_scope *s, const struct jinja_node *n,
                                struct jinja_value *out)
{
    struct jinja_value a, b;

    FORWARD_IF(jinja_eval(j, s, n->a, &a));
    FORWARD_IF(jinja_eval(j, s, n->b, &b));
    return jinja_binary(j, n->op, &a, &b, out);
}

static numoe_status eval_concat(struct jinja *j, struct jinja_scope *s, const struct jinja_node *n,
                                struct jinja_value *out)
{
    struct jinja_value parts;
    size_t start;

    FORWARD_IF(jinja_new_list(j, JINJA_LIST, n->item.n, &parts));
    for (size_t i = 0; i < n->item.n; i++) {
        struct jinja_value v;
        FORWARD_IF(jinja_eval(j, s, n->item.at[i], &v));
        FORWARD_IF(jinja_push(j, parts.list, v));
    }
    start = j->out.len;
    for (size_t i = 0; i < n->item.n; i++) {
        FORWARD_IF(jinja_write(j, &parts.list->item[i]));
    }
    *out = jinja_string(NULL, 0);
    return jinja_take(j, start, &out->text);
}

static numoe_status compare(struct jinja *j, unsigned op, const struct jinja_value *a,
                            const struct jinja_value *b, bool *holds)
{
    int order;

    switch (op) {
    case JINJA_OP_EQ:
    case JINJA_OP_NE:
        FORWARD_IF(jinja_equal(j, a, b, holds));
        *holds = *holds == (op == JINJA_OP_EQ);
        return NUMOE_OK;
    case JINJA_OP_IN:
    case JINJA_OP_NOT_IN:
        FORWARD_IF(jinja_contains(j, b, a, holds));
        *holds = *holds == (op == JINJA_OP_IN);
        return NUMOE_OK;
    default:
        break;
    }
    FORWARD_IF(jinja_order(j, a, b, &order));
    *holds = op == '<'           ? order < 0
             : op == '>'         ? order > 0
             : op == JINJA_OP_LE ? order <= 0
                                 : order >= 0;
    return NUMOE_OK;
}

/* a < b < c holds where a < b and b < c do. */
static numoe_status eval_compare(struct jinja *j, struct jinja_scope *s, const struct jinja_node *n,
                                 struct jinja_value *out)
{
    struct jinja_value left, right;
    bool holds = true;

    FORWARD_IF(jinja_eval(j, s, n->a, &left));
    for (size_t i = 0; i < n->item.n && holds; i++) {
        FORWARD_IF(jinja_eval(j, s, n->item.at[i]->a, &right));
        FORWARD_IF(compare(j, n->item.at[i]->op, &left, &right, &holds));
        left = right;
    }
    *out = jinja_bool(holds);
    return NUMOE_OK;
}

static numoe_status eval_cond(struct jinja *j, struct jinja_scope *s, const struct jinja_node *n,
                              struct jinja_value *out)
{
    struct jinja_value test;

    FORWARD_IF(jinja_eval(j, s, n->a, &test));
    if (jinja_true(&test)) {
        return jinja_eval(j, s, n->b, out);
    }
    if (n->c == NULL) {
        *out = jinja_undefined(JINJA_MISSING, JINJA_TEXT(""));
        return NUMOE_OK;
    }
    return jinja_eval(j, s, n->c, out);
}

/* ------------------------------------------------------------------ access */

static numoe_status eval_attr(struct jinja *j, struct jinja_scope *s, const struct jinja_node *n,
                              struct jinja_value *out)
{
    struct jinja_value a;

    FORWARD_IF(jinja_eval(j, s, n->a, &a));
    return jinja_get_attr(j, &a, n->text, out);
}

static numoe_status eval_item(struct jinja *j, struct jinja_scope *s, const struct jinja_node *n,
                              struct jinja_value *out)
{
    struct jinja_value a, key;

    FORWARD_IF(jinja_eval(j, s, n->a, &a));
    FORWARD_IF(jinja_eval(j, s, n->b, &key));
    return jinja_get_item(j, &a, &key, out);
}

static numoe_status eval_slice(struct jinja *j, struct jinja_scope *s, const struct jinja_node *n,
                               struct jinja_value *out)
{
    struct jinja_value a, bound[3] = {{.kind = JINJA_MISSING}};

    FORWARD_IF(jinja_eval(j, s, n->a, &a));
    for (size_t i = 0; i < 3; i++) {
        if (n->item.at[i] != NULL) {
            FORWARD_IF(jinja_eval(j, s, n->item.at[i], &bound[i]));
        }
    }
    return jinja_slice(j, &a, bound, out);
}

/* ------------------------------------------------------------------ calls */

static numoe_status unpack_args(struct jinja *j, const struct jinja_value *v, unsigned op,
                                struct jinja_args *args)
{
    const struct jinja_list *list;

    if (op == JINJA_OP_POW) {
        if (v->kind != JINJA_DICT) {
            return jinja_fail_input(j, "what follows ** must be a dictionary, not %s",
                                    jinja_type_name(v));
        }
        for (size_t i = 0; i < v->dict->n; i++) {
            if (v->dict->pair[i].key.kind != JINJA_STRING) {
                return jinja_fail_input(j, "names of arguments must be strings");
            }
            FORWARD_IF(
                jinja_dict_set(j, &args->named, v->dict->pair[i].key, v->dict->pair[i].value));
        }
        return NUMOE_OK;
    }
    FORWARD_IF(jinja_elements(j, v, &list));
    for (size_t i = 0; i < list->n; i++) {
        FORWARD_IF(jinja_push(j, &args->pos, list->item[i]));
    }
    return NUMOE_OK;
}

numoe_status jinja_args(struct jinja *j, struct jinja_scope *s, const struct jinja_nodes *nodes,
                        struct jinja_args *args)
{
    for (size_t i = 0; i < nodes->n; i++) {
        const struct jinja_node *n = nodes->at[i];
        struct jinja_value v;
        FORWARD_IF(jinja_eval(j, s, n->a, &v));
        if (n->op != 0) {
            FORWARD_IF(unpack_args(j, &v, n->op, args));
        } else if (n->text.n > 0) {
            FORWARD_IF(jinja_dict_set(j, &args->named, jinja_text(n->text), v));
        } else {
            FORWARD_IF(jinja_push(j, &args->pos, v));
        }
    }
    return NUMOE_OK;
}

/* The length of the word at params; *optional is set once "/" has been passed. */
static size_t next_param(const char **params, bool *optional)
{
    *params += strspn(*params, " ");
    if (**params == '/') {
        *optional = true;
        ++*params;
        *params += strspn(*params, " ");
    }
    return strcspn(*params, " ");
}

static numoe_status bind_params(struct jinja *j, struct jinja_call *c)
{
    const char *params = c->builtin->params;
    bool optional = false;
    size_t i = 0, n, n_named = 0;

    for (; (n = next_param(&params, &optional)) > 0; params += n, i++) {
        const struct jinja_pair *named =
            jinja_dict_name(&c->args->named, (struct jinja_text){params, n});
        n_named += named != NULL;
        if (i < c->args->pos.n && named == NULL) {
            c->arg[i] = c->args->pos.item[i];
        } else if (named != NULL && i >= c->args->pos.n) {
            c->arg[i] = named->value;
        } else if (named != NULL || !optional) {
            return jinja_fail_input(j, "%s: argument '%.*s' is %s", c->builtin->name, (int)n,
                                    params, named != NULL ? "given twice" : "missing");
        }
    }
    if (c->args->pos.n > i || c->args->named.n > n_named) {
        return jinja_fail_input(j,
                                "%s: takes no such argument: there are too many, or one has an "
                                "unknown name",
                                c->builtin->name);
    }
    return NUMOE_OK;
}

numoe_status jinja_call_builtin(struct jinja *j, const struct jinja_builtin *b,
                                const struct jinja_value *self, struct jinja_args *args,
                                struct jinja_value *out)
{
    struct jinja_call c = {.builtin = b, .args = args};

    if (self != NULL) {
        c.self = *self;
    }
    if (b->params != NULL) {
        FORWARD_IF(bind_params(j, &c));
    }
    return b->run(j, &c, out);
}

numoe_status jinja_call_value(struct jinja *j, const struct jinja_value *f, struct jinja_args *args,
                              struct jinja_value *out)
{
    switch (f->kind) {
    case JINJA_MACRO:
        return jinja_call_macro(j, f->macro, args, out);
    case JINJA_FUNCTION:
        return jinja_call_builtin(j, f->function, NULL, args, out);
    case JINJA_METHOD:
        if (f->method->builtin == NULL) {
            return jinja_fail(j, NUMOE_E_SUPPORT, "the method '%.*s' of %s is not supported",
                              (int)f->method->name.n, f->method->name.data,
                              jinja_type_name(&f->method->self));
        }
        return jinja_call_builtin(j, f->method->builtin, &f->method->self, args, out);
    case JINJA_UNDEFINED:
        return jinja_fail_undefined(j, f);
    case JINJA_LOOP:
        return jinja_fail(j, NUMOE_E_SUPPORT, "recursive loops are not supported");
    default:
        return jinja_fail_input(j, "'%s' object is not callable", jinja_type_name(f));
    }
}

static numoe_status eval_call(struct jinja *j, struct jinja_scope *s, const struct jinja_node *n,
                              struct jinja_value *out)
{
    struct jinja_value f;
    struct jinja_args args = {0};

    FORWARD_IF(jinja_eval(j, s, n->a, &f));
    FORWARD_IF(jinja_args(j, s, &n->item, &args));
    return jinja_call_value(j, &f, &args, out);
}

static numoe_status eval_filter(struct jinja *j, struct jinja_scope *s, const struct jinja_node *n,
                                struct jinja_value *out)
{
    const struct jinja_builtin *filter = jinja_find_filter(n->text);
    struct jinja_value self;
    struct jinja_args args = {0};

    if (filter == NULL) {
        return jinja_fail(j, NUMOE_E_SUPPORT, "the filter '%.*s' is not supported",
                          (int)MIN(n->text.n, 100u), n->text.data);
    }
    FORWARD_IF(jinja_eval(j, s, n->a, &self));
    FORWARD_IF(jinja_args(j, s, &n->item, &args));
    return jinja_call_builtin(j, filter, &self, &args, out);
}

static numoe_status eval_test(struct jinja *j, struct jinja_scope *s, const struct jinja_node *n,
                              struct jinja_value *out)
{
    const struct jinja_builtin *test = jinja_find_test(n->text);
    struct jinja_value self;
    struct jinja_args args = {0};

    if (test == NULL) {
        return jinja_fail(j, NUMOE_E_SUPPORT, "the test '%.*s' is not supported",
                          (int)MIN(n->text.n, 100u), n->text.data);
    }
    FORWARD_IF(jinja_eval(j, s, n->a, &self));
    FORWARD_IF(jinja_args(j, s, &n->item, &args));
    FORWARD_IF(jinja_call_builtin(j, test, &self, &args, out));
    out->b = out->b != n->negated;
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ any expression */

static numoe_status eval(struct jinja *j, struct jinja_scope *s, const struct jinja_node *n,
                         struct jinja_value *out)
{
    switch (n->kind) {
    case JINJA_N_CONST:
        *out = n->value;
        return NUMOE_OK;
    case JINJA_N_NAME:
        eval_name(s, n->text, out);
        return NUMOE_OK;
    case JINJA_N_CAPTURED:
        *out = j->captured;
        return NUMOE_OK;
    case JINJA_N_LIST:
    case JINJA_N_TUPLE:
        return eval_list(j, s, n, out);
    case JINJA_N_DICT:
        return eval_dict(j, s, n, out);
    case JINJA_N_ATTR:
        return eval_attr(j, s, n, out);
    case JINJA_N_ITEM:
        return eval_item(j, s, n, out);
    case JINJA_N_SLICE:
        return eval_slice(j, s, n, out);
    case JINJA_N_CALL:
        return eval_call(j, s, n, out);
    case JINJA_N_FILTER:
        return eval_filter(j, s, n, out);
    case JINJA_N_TEST:
        return eval_test(j, s, n, out);
    case JINJA_N_NOT:
        FORWARD_IF(jinja_eval(j, s, n->a, out));
        *out = jinja_bool(!jinja_true(out));
        return NUMOE_OK;
    case JINJA_N_NEG:
    case JINJA_N_POS:
        return eval_sign(j, s, n, out);
    case JINJA_N_AND:
    case JINJA_N_OR:
        return eval_logic(j, s, n, out);
    case JINJA_N_BINARY:
        return eval_binary(j, s, n, out);
    case JINJA_N_CONCAT:
        return eval_concat(j, s, n, out);
    case JINJA_N_COMPARE:
        return eval_compare(j, s, n, out);
    default:
        return eval_cond(j, s, n, out);
    }
}

/* A failure leaves the line where it happened. */
numoe_status jinja_eval(struct jinja *j, struct jinja_scope *s, const struct jinja_node *n,
                        struct jinja_value *out)
{
    unsigned line = j->line;

    j->line = n->line;
    FORWARD_IF(jinja_enter(j));
    FORWARD_IF(jinja_charge(j, 1));
    FORWARD_IF(eval(j, s, n, out));
    jinja_leave(j);
    j->line = line;
    return NUMOE_OK;
}
