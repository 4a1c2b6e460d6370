/* Runs the statements of a Jinja template. What is written inside a macro or a block goes to the
 * end of the output and is taken off it again as a text. Loops, macros and blocks have scopes of
 * their own, `if` has none.
 */
#include "model/jinja-impl.h"

static numoe_status run_node(struct jinja *j, struct jinja_scope *s, const struct jinja_node *n);

static numoe_status set_var(struct jinja *j, struct jinja_scope *s, struct jinja_text name,
                            struct jinja_value v)
{
    return jinja_dict_set(j, &s->vars, jinja_text(name), v);
}

/* Macros outlive the scopes that they were defined in, so scopes are in the arena. */
static numoe_status new_scope(struct jinja *j, struct jinja_scope *parent, struct jinja_scope **out)
{
    FORWARD_IF(jinja_new(j, 1, sizeof(**out), out));
    (*out)->parent = parent;
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ assignment */

static numoe_status assign_attr(struct jinja *j, struct jinja_scope *s, const struct jinja_node *n,
                                struct jinja_value v)
{
    struct jinja_value object;

    FORWARD_IF(jinja_eval(j, s, n->a, &object));
    if (object.kind != JINJA_NAMESPACE) {
        return jinja_fail_input(j, "cannot assign attribute on non-namespace object");
    }
    return jinja_dict_set(j, object.dict, jinja_text(n->text), v);
}

static numoe_status assign(struct jinja *j, struct jinja_scope *s, const struct jinja_node *target,
                           struct jinja_value v)
{
    const struct jinja_list *list;

    if (target->kind == JINJA_N_NAME) {
        return set_var(j, s, target->text, v);
    }
    if (target->kind == JINJA_N_ATTR) {
        return assign_attr(j, s, target, v);
    }
    FORWARD_IF(jinja_elements(j, &v, &list));
    if (list->n != target->item.n) {
        return jinja_fail_input(j, "%zu values cannot be unpacked into %zu variables", list->n,
                                target->item.n);
    }
    for (size_t i = 0; i < list->n; i++) {
        FORWARD_IF(assign(j, s, target->item.at[i], list->item[i]));
    }
    return NUMOE_OK;
}

static numoe_status run_set(struct jinja *j, struct jinja_scope *s, const struct jinja_node *n)
{
    struct jinja_value v;

    FORWARD_IF(jinja_eval(j, s, n->b, &v));
    return assign(j, s, n->a, v);
}

/* What body writes, through filters (NULL: none). */
static numoe_status capture(struct jinja *j, struct jinja_scope *s, const struct jinja_node *n,
                            const struct jinja_node *filters, struct jinja_value *out)
{
    struct jinja_value outer = j->captured;
    struct jinja_scope *scope;
    size_t start = j->out.len;

    FORWARD_IF(new_scope(j, s, &scope));
    FORWARD_IF(jinja_run(j, scope, &n->body));
    *out = jinja_string(NULL, 0);
    FORWARD_IF(jinja_take(j, start, &out->text));
    if (filters != NULL) {
        j->captured = *out;
        FORWARD_IF(jinja_eval(j, s, filters, out));
        j->captured = outer;
    }
    return NUMOE_OK;
}

static numoe_status run_set_block(struct jinja *j, struct jinja_scope *s,
                                  const struct jinja_node *n)
{
    struct jinja_value v;

    FORWARD_IF(capture(j, s, n, n->b, &v));
    return assign(j, s, n->a, v);
}

static numoe_status run_filter_block(struct jinja *j, struct jinja_scope *s,
                                     const struct jinja_node *n)
{
    struct jinja_value v;

    FORWARD_IF(capture(j, s, n, n->b, &v));
    return jinja_write(j, &v);
}

/* All values are computed outside before the first variable is set. */
static numoe_status run_with(struct jinja *j, struct jinja_scope *s, const struct jinja_node *n)
{
    struct jinja_scope *scope;
    struct jinja_value v;

    FORWARD_IF(new_scope(j, s, &scope));
    for (size_t i = 0; i < n->item.n; i++) {
        FORWARD_IF(jinja_eval(j, s, n->item.at[i]->a, &v));
        FORWARD_IF(assign(j, scope, n->item.at[i]->b, v));
    }
    return jinja_run(j, scope, &n->body);
}

static numoe_status run_scope(struct jinja *j, struct jinja_scope *s,
                              const struct jinja_nodes *body)
{
    struct jinja_scope *scope;

    FORWARD_IF(new_scope(j, s, &scope));
    return jinja_run(j, scope, body);
}

/* ------------------------------------------------------------------ if, for */

static numoe_status run_if(struct jinja *j, struct jinja_scope *s, const struct jinja_node *n)
{
    struct jinja_value test;

    FORWARD_IF(jinja_eval(j, s, n->a, &test));
    return jinja_run(j, s, jinja_true(&test) ? &n->body : &n->orelse);
}

/* The elements for which the loop's condition holds. */
static numoe_status filter_elements(struct jinja *j, struct jinja_scope *s,
                                    const struct jinja_node *n, const struct jinja_list *list,
                                    struct jinja_value *kept)
{
    FORWARD_IF(jinja_new_list(j, JINJA_LIST, 0, kept));
    for (size_t i = 0; i < list->n; i++) {
        struct jinja_scope *scope;
        struct jinja_value test = jinja_bool(true);
        if (n->c != NULL) {
            FORWARD_IF(new_scope(j, s, &scope));
            FORWARD_IF(assign(j, scope, n->a, list->item[i]));
            FORWARD_IF(jinja_eval(j, scope, n->c, &test));
        }
        if (jinja_true(&test)) {
            FORWARD_IF(jinja_push(j, kept->list, list->item[i]));
        }
    }
    return NUMOE_OK;
}

static numoe_status run_loop(struct jinja *j, struct jinja_scope *s, const struct jinja_node *n,
                             struct jinja_loop *loop)
{
    for (; loop->index0 < loop->list->n; loop->index0++) {
        struct jinja_scope *scope;
        FORWARD_IF(jinja_charge(j, 1));
        FORWARD_IF(new_scope(j, s, &scope));
        FORWARD_IF(assign(j, scope, n->a, loop->list->item[loop->index0]));
        FORWARD_IF(set_var(j, scope, JINJA_TEXT("loop"),
                           (struct jinja_value){.kind = JINJA_LOOP, .loop = loop}));
        FORWARD_IF(jinja_run(j, scope, &n->body));
        enum jinja_flow flow = j->flow;
        j->flow = JINJA_GO_ON;
        if (flow == JINJA_BREAK) {
            break;
        }
    }
    return NUMOE_OK;
}

/* The list is a copy, because the body may change the original; what Python does then with the
 * elements to come is not copied. */
static numoe_status run_for(struct jinja *j, struct jinja_scope *s, const struct jinja_node *n)
{
    const struct jinja_list *list;
    struct jinja_value v, kept;
    struct jinja_loop *loop;

    FORWARD_IF(jinja_eval(j, s, n->b, &v));
    FORWARD_IF(jinja_elements(j, &v, &list));
    FORWARD_IF(filter_elements(j, s, n, list, &kept));
    if (kept.list->n == 0) {
        return run_scope(j, s, &n->orelse);
    }
    FORWARD_IF(jinja_new(j, 1, sizeof(*loop), &loop));
    loop->list = kept.list;
    return run_loop(j, s, n, loop);
}

/* ------------------------------------------------------------------ macros */

static numoe_status new_macro(struct jinja *j, struct jinja_scope *s, const struct jinja_node *n,
                              struct jinja_value *out)
{
    struct jinja_macro *macro;

    FORWARD_IF(jinja_new(j, 1, sizeof(*macro), &macro));
    *macro = (struct jinja_macro){n, s};
    *out = (struct jinja_value){.kind = JINJA_MACRO, .macro = macro};
    return NUMOE_OK;
}

static numoe_status run_macro(struct jinja *j, struct jinja_scope *s, const struct jinja_node *n)
{
    struct jinja_value macro;

    FORWARD_IF(new_macro(j, s, n, &macro));
    return set_var(j, s, n->text, macro);
}

static numoe_status run_call_block(struct jinja *j, struct jinja_scope *s,
                                   const struct jinja_node *n)
{
    struct jinja_value f, caller, v;
    struct jinja_args args = {0};

    FORWARD_IF(jinja_eval(j, s, n->a->a, &f));
    FORWARD_IF(jinja_args(j, s, &n->a->item, &args));
    FORWARD_IF(new_macro(j, s, n, &caller));
    FORWARD_IF(jinja_dict_set(j, &args.named, jinja_text(n->text), caller));
    FORWARD_IF(jinja_call_value(j, &f, &args, &v));
    return jinja_write(j, &v);
}

static numoe_status bind_param(struct jinja *j, struct jinja_scope *s, const struct jinja_node *n,
                               size_t i, const struct jinja_args *args)
{
    const struct jinja_node *param = n->item.at[i];
    const struct jinja_pair *named = jinja_dict_name(&args->named, param->text);
    struct jinja_value v = jinja_undefined(JINJA_MISSING, param->text);

    if (i < args->pos.n) {
        if (named != NULL) {
            return jinja_fail_input(j, "macro '%.*s': argument '%.*s' is given twice",
                                    (int)n->text.n, n->text.data, (int)param->text.n,
                                    param->text.data);
        }
        v = args->pos.item[i];
    } else if (named != NULL) {
        v = named->value;
    } else if (param->a != NULL) {
        FORWARD_IF(jinja_eval(j, s, param->a, &v));
    }
    return set_var(j, s, param->text, v);
}

/* What no parameter takes: caller, varargs and kwargs where the body mentions them. */
static numoe_status bind_rest(struct jinja *j, struct jinja_scope *s, const struct jinja_node *n,
                              struct jinja_args *args)
{
    const struct jinja_text caller = JINJA_TEXT("caller");
    struct jinja_value rest, kwargs;

    if (n->uses_caller) {
        struct jinja_pair *pair = jinja_dict_name(&args->named, caller);
        FORWARD_IF(set_var(j, s, caller,
                           pair != NULL ? pair->value : jinja_undefined(JINJA_MISSING, caller)));
        if (pair != NULL) {
            jinja_dict_remove(&args->named, pair);
        }
    }
    if (n->uses_varargs) {
        FORWARD_IF(jinja_new_list(j, JINJA_TUPLE, 0, &rest));
        for (size_t i = n->item.n; i < args->pos.n; i++) {
            FORWARD_IF(jinja_push(j, rest.list, args->pos.item[i]));
        }
        FORWARD_IF(set_var(j, s, JINJA_TEXT("varargs"), rest));
    }
    if (n->uses_kwargs) {
        FORWARD_IF(jinja_new_dict(j, JINJA_DICT, &kwargs));
        *kwargs.dict = args->named;
        FORWARD_IF(set_var(j, s, JINJA_TEXT("kwargs"), kwargs));
    }
    return NUMOE_OK;
}

/* Arguments that a parameter or the caller took are no longer among the named ones. */
static numoe_status bind_args(struct jinja *j, struct jinja_scope *s, const struct jinja_node *n,
                              struct jinja_args *args)
{
    for (size_t i = 0; i < n->item.n; i++) {
        FORWARD_IF(bind_param(j, s, n, i, args));
    }
    for (size_t i = 0; i < n->item.n; i++) {
        struct jinja_pair *pair = jinja_dict_name(&args->named, n->item.at[i]->text);
        if (pair != NULL) {
            jinja_dict_remove(&args->named, pair);
        }
    }
    FORWARD_IF(bind_rest(j, s, n, args));
    if (args->named.n > 0 && !n->uses_kwargs) {
        struct jinja_text name = args->named.pair[0].key.text;
        return jinja_fail_input(j, "macro '%.*s' takes no keyword argument '%.*s'", (int)n->text.n,
                                n->text.data, (int)name.n, name.data);
    }
    if (args->pos.n > n->item.n && !n->uses_varargs) {
        return jinja_fail_input(j, "macro '%.*s' takes not more than %zu argument(s)",
                                (int)n->text.n, n->text.data, n->item.n);
    }
    return NUMOE_OK;
}

numoe_status jinja_call_macro(struct jinja *j, const struct jinja_macro *m, struct jinja_args *args,
                              struct jinja_value *out)
{
    struct jinja_scope *scope;
    size_t start = j->out.len;
    unsigned line = j->line;

    FORWARD_IF(new_scope(j, m->scope, &scope));
    FORWARD_IF(bind_args(j, scope, m->node, args));
    FORWARD_IF(jinja_run(j, scope, &m->node->body));
    j->line = line;
    *out = jinja_string(NULL, 0);
    return jinja_take(j, start, &out->text);
}

/* ------------------------------------------------------------------ any statement */

static numoe_status run_output(struct jinja *j, struct jinja_scope *s, const struct jinja_node *n)
{
    struct jinja_value v;

    FORWARD_IF(jinja_eval(j, s, n->a, &v));
    return jinja_write(j, &v);
}

static numoe_status run_node(struct jinja *j, struct jinja_scope *s, const struct jinja_node *n)
{
    switch (n->kind) {
    case JINJA_N_DATA:
        return jinja_put(j, n->text);
    case JINJA_N_OUTPUT:
        return run_output(j, s, n);
    case JINJA_N_IF:
        return run_if(j, s, n);
    case JINJA_N_FOR:
        return run_for(j, s, n);
    case JINJA_N_SET:
        return run_set(j, s, n);
    case JINJA_N_SET_BLOCK:
        return run_set_block(j, s, n);
    case JINJA_N_MACRO:
        return run_macro(j, s, n);
    case JINJA_N_CALL_BLOCK:
        return run_call_block(j, s, n);
    case JINJA_N_FILTER_BLOCK:
        return run_filter_block(j, s, n);
    case JINJA_N_WITH:
        return run_with(j, s, n);
    case JINJA_N_BREAK:
        j->flow = JINJA_BREAK;
        return NUMOE_OK;
    case JINJA_N_CONTINUE:
        j->flow = JINJA_CONTINUE;
        return NUMOE_OK;
    default:
        return run_scope(j, s, &n->body);
    }
}

numoe_status jinja_run(struct jinja *j, struct jinja_scope *s, const struct jinja_nodes *body)
{
    FORWARD_IF(jinja_enter(j));
    for (size_t i = 0; i < body->n && j->flow == JINJA_GO_ON; i++) {
        j->line = body->at[i]->line;
        FORWARD_IF(jinja_charge(j, 1));
        FORWARD_IF(run_node(j, s, body->at[i]));
    }
    jinja_leave(j);
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ a rendering */

static numoe_status set_variables(struct jinja *j, struct jinja_scope *s, const json_t *variables)
{
    const char *name;
    json_t *json;

    json_object_foreach((json_t *)variables, name, json)
    {
        struct jinja_value v;
        FORWARD_IF(jinja_from_json(j, json, &v));
        FORWARD_IF(set_var(j, s, (struct jinja_text){name, strlen(name)}, v));
    }
    return NUMOE_OK;
}

/* Variables are in a scope outside the template's own. */
static numoe_status render(struct jinja *j, const struct jinja_template *t, const json_t *variables)
{
    struct jinja_scope *given, *own;

    FORWARD_IF(new_scope(j, NULL, &given));
    FORWARD_IF(new_scope(j, given, &own));
    FORWARD_IF(set_variables(j, given, variables));
    return jinja_run(j, own, &t->body);
}

numoe_status jinja_render(const struct jinja_template *t, const json_t *variables,
                          const struct jinja_options *options, struct strbuf *out, numoe_error *err)
{
    const struct jinja_options o = options != NULL ? *options : (struct jinja_options){0};
    struct jinja j = {
        .arena.max_bytes = o.max_memory_bytes != 0 ? o.max_memory_bytes : (size_t)512 << 20,
        .err = err,
        .line = 1,
        .max_steps = o.max_steps != 0 ? o.max_steps : 50000000,
        .max_output_bytes = o.max_output_bytes != 0 ? o.max_output_bytes : (size_t)64 << 20,
        .now_seconds = o.now_seconds,
    };
    numoe_status status = render(&j, t, variables);

    if (status == NUMOE_OK) {
        status = strbuf_append(out, j.out.data == NULL ? "" : j.out.data, j.out.len, err);
    }
    strbuf_fini(&j.out);
    jinja_arena_fini(&j.arena);
    return status;
}
