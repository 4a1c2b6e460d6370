/* Jinja expressions to trees, by recursive descent with the precedences of Jinja: inline if, or,
 * and, not, comparison, + -, ~, * / // %, **, sign, then attributes, calls, filters and tests.
 */
#include "model/jinja-parse.h"

#define TRY_NODE(p, kind, out) FORWARD_IF(jinja_new_node(p, kind, out))

static numoe_status parse_unary(struct jinja_parser *p, bool filters, struct jinja_node **out);
static numoe_status parse_or(struct jinja_parser *p, struct jinja_node **out);

static bool at_end(const struct jinja_parser *p)
{
    return p->token->kind == JINJA_T_BLOCK_END || p->token->kind == JINJA_T_OUTPUT_END ||
           p->token->kind == JINJA_T_EOF;
}

/* ------------------------------------------------------------------ lists and calls */

/* Up to a closing bracket, which is passed; a comma may stand before it. */
static numoe_status parse_items(struct jinja_parser *p, unsigned close, struct jinja_nodes *items)
{
    while (!jinja_skip_op(p, close)) {
        struct jinja_node *item;
        FORWARD_IF(jinja_parse_expr(p, true, &item));
        FORWARD_IF(jinja_add_node(p, items, item));
        if (!jinja_at_op(p, close)) {
            FORWARD_IF(jinja_expect_op(p, ','));
        }
    }
    return NUMOE_OK;
}

static numoe_status parse_dict(struct jinja_parser *p, struct jinja_nodes *items)
{
    while (!jinja_skip_op(p, '}')) {
        struct jinja_node *key, *value;
        FORWARD_IF(jinja_parse_expr(p, true, &key));
        FORWARD_IF(jinja_expect_op(p, ':'));
        FORWARD_IF(jinja_parse_expr(p, true, &value));
        FORWARD_IF(jinja_add_node(p, items, key));
        FORWARD_IF(jinja_add_node(p, items, value));
        if (!jinja_at_op(p, '}')) {
            FORWARD_IF(jinja_expect_op(p, ','));
        }
    }
    return NUMOE_OK;
}

static numoe_status parse_arg(struct jinja_parser *p, struct jinja_nodes *args)
{
    struct jinja_node *arg;

    TRY_NODE(p, JINJA_N_ARG, &arg);
    if (jinja_skip_op(p, '*')) {
        arg->op = '*';
    } else if (jinja_skip_op(p, JINJA_OP_POW)) {
        arg->op = JINJA_OP_POW;
    } else if (p->token->kind == JINJA_T_NAME && p->token[1].kind == JINJA_T_OP &&
               p->token[1].op == '=') {
        arg->text = p->token->value.text;
        p->token += 2;
    }
    if (arg->op == 0 && arg->text.n == 0 && args->n > 0 && args->at[args->n - 1]->text.n > 0) {
        return jinja_parse_fail(p, "argument by position after one by name");
    }
    FORWARD_IF(jinja_parse_expr(p, true, &arg->a));
    return jinja_add_node(p, args, arg);
}

static numoe_status parse_args(struct jinja_parser *p, struct jinja_nodes *args)
{
    FORWARD_IF(jinja_expect_op(p, '('));
    while (!jinja_skip_op(p, ')')) {
        FORWARD_IF(parse_arg(p, args));
        if (!jinja_at_op(p, ')')) {
            FORWARD_IF(jinja_expect_op(p, ','));
        }
    }
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ primary expressions */

static bool word_value(struct jinja_text name, struct jinja_value *v)
{
    if (jinja_text_is(name, "true") || jinja_text_is(name, "True")) {
        *v = jinja_bool(true);
    } else if (jinja_text_is(name, "false") || jinja_text_is(name, "False")) {
        *v = jinja_bool(false);
    } else if (jinja_text_is(name, "none") || jinja_text_is(name, "None")) {
        *v = jinja_none();
    } else {
        return false;
    }
    return true;
}

/* What a macro's body mentions decides what the macro can be called with. */
static void note_special(struct jinja_parser *p, struct jinja_text name)
{
    if (p->macro != NULL) {
        p->macro->uses_caller |= jinja_text_is(name, "caller");
        p->macro->uses_varargs |= jinja_text_is(name, "varargs");
        p->macro->uses_kwargs |= jinja_text_is(name, "kwargs");
    }
}

static numoe_status parse_name(struct jinja_parser *p, struct jinja_node **out)
{
    struct jinja_node *node;

    TRY_NODE(p, JINJA_N_NAME, &node);
    node->text = p->token->value.text;
    node->kind = word_value(node->text, &node->value) ? JINJA_N_CONST : JINJA_N_NAME;
    note_special(p, node->text);
    p->token++;
    *out = node;
    return NUMOE_OK;
}

static numoe_status parse_const(struct jinja_parser *p, struct jinja_node **out)
{
    struct jinja_node *node;

    TRY_NODE(p, JINJA_N_CONST, &node);
    node->value = p->token->value;
    p->token++;
    while (node->value.kind == JINJA_STRING && p->token->kind == JINJA_T_CONST &&
           p->token->value.kind == JINJA_STRING) {
        struct jinja_text a = node->value.text, b = p->token->value.text;
        char *both;
        FORWARD_IF(jinja_parse_alloc(p, a.n + b.n, 1, &both));
        memcpy(both, a.data, a.n);
        memcpy(both + a.n, b.data, b.n);
        node->value = jinja_string(both, a.n + b.n);
        p->token++;
    }
    *out = node;
    return NUMOE_OK;
}

static numoe_status parse_parentheses(struct jinja_parser *p, struct jinja_node **out)
{
    if (jinja_skip_op(p, ')')) {
        return jinja_new_node(p, JINJA_N_TUPLE, out);
    }
    FORWARD_IF(jinja_parse_tuple(p, true, out));
    return jinja_expect_op(p, ')');
}

static numoe_status parse_primary(struct jinja_parser *p, struct jinja_node **out)
{
    if (p->token->kind == JINJA_T_NAME) {
        return parse_name(p, out);
    }
    if (p->token->kind == JINJA_T_CONST) {
        return parse_const(p, out);
    }
    if (jinja_skip_op(p, '(')) {
        return parse_parentheses(p, out);
    }
    if (jinja_skip_op(p, '[')) {
        TRY_NODE(p, JINJA_N_LIST, out);
        return parse_items(p, ']', &(*out)->item);
    }
    if (jinja_skip_op(p, '{')) {
        TRY_NODE(p, JINJA_N_DICT, out);
        return parse_dict(p, &(*out)->item);
    }
    return jinja_fail_token(p, "expression");
}

/* ------------------------------------------------------------------ what follows one */

static numoe_status parse_dot(struct jinja_parser *p, struct jinja_node **node)
{
    struct jinja_node *n;

    TRY_NODE(p, JINJA_N_ATTR, &n);
    n->a = *node;
    if (p->token->kind == JINJA_T_CONST && p->token->value.kind == JINJA_INT) {
        n->kind = JINJA_N_ITEM;
        FORWARD_IF(parse_const(p, &n->b));
    } else {
        FORWARD_IF(jinja_expect_name(p, &n->text));
    }
    *node = n;
    return NUMOE_OK;
}

static numoe_status parse_subscript(struct jinja_parser *p, struct jinja_node **node)
{
    struct jinja_node *n, *bound[3] = {NULL, NULL, NULL};
    unsigned n_bound = 1;

    TRY_NODE(p, JINJA_N_ITEM, &n);
    n->a = *node;
    *node = n;
    for (unsigned i = 0; i < 3 && !jinja_at_op(p, ']'); i++) {
        if (!jinja_at_op(p, ':')) {
            FORWARD_IF(jinja_parse_expr(p, true, &bound[i]));
        }
        if (jinja_skip_op(p, ':')) {
            n_bound = i + 2;
        }
    }
    if (n_bound == 1) {
        n->b = bound[0];
        return n->b == NULL ? jinja_fail_token(p, "index") : jinja_expect_op(p, ']');
    }
    n->kind = JINJA_N_SLICE;
    for (unsigned i = 0; i < 3; i++) {
        FORWARD_IF(jinja_add_node(p, &n->item, bound[i]));
    }
    return jinja_expect_op(p, ']');
}

static numoe_status parse_call(struct jinja_parser *p, struct jinja_node **node)
{
    struct jinja_node *n;

    TRY_NODE(p, JINJA_N_CALL, &n);
    n->a = *node;
    *node = n;
    return parse_args(p, &n->item);
}

/* A long chain makes a deep tree without recursion here: evaluation counts its own depth. */
static numoe_status parse_postfix(struct jinja_parser *p, struct jinja_node **node)
{
    for (;;) {
        if (jinja_skip_op(p, '.')) {
            FORWARD_IF(parse_dot(p, node));
        } else if (jinja_skip_op(p, '[')) {
            FORWARD_IF(parse_subscript(p, node));
        } else if (jinja_at_op(p, '(')) {
            FORWARD_IF(parse_call(p, node));
        } else {
            return NUMOE_OK;
        }
    }
}

static numoe_status parse_filter(struct jinja_parser *p, struct jinja_node **node)
{
    struct jinja_node *n;

    TRY_NODE(p, JINJA_N_FILTER, &n);
    n->a = *node;
    FORWARD_IF(jinja_expect_name(p, &n->text));
    if (jinja_at_op(p, '(')) {
        FORWARD_IF(parse_args(p, &n->item));
    }
    *node = n;
    return NUMOE_OK;
}

/* A test's argument may stand without parentheses: `is divisibleby 3`. */
static bool at_bare_argument(const struct jinja_parser *p)
{
    static const char *const others[] = {"else", "or", "and", "if", "is", "in", "not"};

    if (p->token->kind == JINJA_T_CONST || jinja_at_op(p, '[') || jinja_at_op(p, '{')) {
        return true;
    }
    for (size_t i = 0; i < ARRAY_LEN(others); i++) {
        if (jinja_at_name(p, others[i])) {
            return false;
        }
    }
    return p->token->kind == JINJA_T_NAME;
}

static numoe_status parse_test(struct jinja_parser *p, struct jinja_node **node)
{
    struct jinja_node *n, *arg;

    TRY_NODE(p, JINJA_N_TEST, &n);
    n->a = *node;
    n->negated = jinja_skip_name(p, "not");
    FORWARD_IF(jinja_expect_name(p, &n->text));
    if (jinja_at_op(p, '(')) {
        FORWARD_IF(parse_args(p, &n->item));
    } else if (at_bare_argument(p)) {
        TRY_NODE(p, JINJA_N_ARG, &arg);
        FORWARD_IF(parse_primary(p, &arg->a));
        FORWARD_IF(parse_postfix(p, &arg->a));
        FORWARD_IF(jinja_add_node(p, &n->item, arg));
    }
    *node = n;
    return NUMOE_OK;
}

numoe_status jinja_parse_filters(struct jinja_parser *p, bool first_is_bare,
                                 struct jinja_node **node)
{
    if (first_is_bare) {
        FORWARD_IF(parse_filter(p, node));
    }
    for (;;) {
        if (jinja_skip_op(p, '|')) {
            FORWARD_IF(parse_filter(p, node));
        } else if (jinja_skip_name(p, "is")) {
            FORWARD_IF(parse_test(p, node));
        } else if (jinja_at_op(p, '(')) {
            FORWARD_IF(parse_call(p, node));
        } else {
            return NUMOE_OK;
        }
    }
}

/* ------------------------------------------------------------------ operators */

static numoe_status parse_sign(struct jinja_parser *p, enum jinja_node_kind kind,
                               struct jinja_node **out)
{
    struct jinja_node *node;

    TRY_NODE(p, kind, &node);
    FORWARD_IF(parse_unary(p, false, &node->a));
    *out = node;
    return NUMOE_OK;
}

static numoe_status parse_unary(struct jinja_parser *p, bool filters, struct jinja_node **out)
{
    FORWARD_IF(jinja_parse_enter(p));
    if (jinja_skip_op(p, '-')) {
        FORWARD_IF(parse_sign(p, JINJA_N_NEG, out));
    } else if (jinja_skip_op(p, '+')) {
        FORWARD_IF(parse_sign(p, JINJA_N_POS, out));
    } else {
        FORWARD_IF(parse_primary(p, out));
    }
    FORWARD_IF(parse_postfix(p, out));
    if (filters) {
        FORWARD_IF(jinja_parse_filters(p, false, out));
    }
    p->depth--;
    return NUMOE_OK;
}

/* The operators of a level, and the level below it. */
struct level {
    unsigned op[4];
    numoe_status (*below)(struct jinja_parser *p, struct jinja_node **out);
};

static numoe_status parse_level(struct jinja_parser *p, const struct level *level,
                                struct jinja_node **out)
{
    FORWARD_IF(level->below(p, out));
    for (;;) {
        struct jinja_node *node;
        unsigned op = 0;
        for (size_t i = 0; i < ARRAY_LEN(level->op); i++) {
            op = jinja_at_op(p, level->op[i]) ? level->op[i] : op;
        }
        if (op == 0) {
            return NUMOE_OK;
        }
        TRY_NODE(p, JINJA_N_BINARY, &node);
        p->token++;
        node->op = op;
        node->a = *out;
        FORWARD_IF(level->below(p, &node->b));
        *out = node;
    }
}

static numoe_status parse_operand(struct jinja_parser *p, struct jinja_node **out)
{
    return parse_unary(p, true, out);
}

static numoe_status parse_power(struct jinja_parser *p, struct jinja_node **out)
{
    static const struct level level = {{JINJA_OP_POW}, parse_operand};
    return parse_level(p, &level, out);
}

static numoe_status parse_product(struct jinja_parser *p, struct jinja_node **out)
{
    static const struct level level = {{'*', '/', JINJA_OP_FLOORDIV, '%'}, parse_power};
    return parse_level(p, &level, out);
}

static numoe_status parse_concat(struct jinja_parser *p, struct jinja_node **out)
{
    struct jinja_node *node, *item;

    FORWARD_IF(parse_product(p, &item));
    *out = item;
    if (!jinja_at_op(p, '~')) {
        return NUMOE_OK;
    }
    TRY_NODE(p, JINJA_N_CONCAT, &node);
    FORWARD_IF(jinja_add_node(p, &node->item, item));
    while (jinja_skip_op(p, '~')) {
        FORWARD_IF(parse_product(p, &item));
        FORWARD_IF(jinja_add_node(p, &node->item, item));
    }
    *out = node;
    return NUMOE_OK;
}

static numoe_status parse_sum(struct jinja_parser *p, struct jinja_node **out)
{
    static const struct level level = {{'+', '-'}, parse_concat};
    return parse_level(p, &level, out);
}

/* 0 where no comparison follows; otherwise its tokens have been passed. */
static unsigned skip_comparison(struct jinja_parser *p)
{
    static const unsigned ops[] = {JINJA_OP_EQ, JINJA_OP_NE, JINJA_OP_LE, JINJA_OP_GE, '<', '>'};

    for (size_t i = 0; i < ARRAY_LEN(ops); i++) {
        if (jinja_skip_op(p, ops[i])) {
            return ops[i];
        }
    }
    if (jinja_skip_name(p, "in")) {
        return JINJA_OP_IN;
    }
    if (jinja_at_name(p, "not") && jinja_is_name(p->token + 1, "in")) {
        p->token += 2;
        return JINJA_OP_NOT_IN;
    }
    return 0;
}

static numoe_status parse_compare(struct jinja_parser *p, struct jinja_node **out)
{
    struct jinja_node *node = NULL, *operand;
    unsigned op;

    FORWARD_IF(parse_sum(p, out));
    while ((op = skip_comparison(p)) != 0) {
        if (node == NULL) {
            TRY_NODE(p, JINJA_N_COMPARE, &node);
            node->a = *out;
            *out = node;
        }
        TRY_NODE(p, JINJA_N_OPERAND, &operand);
        operand->op = op;
        FORWARD_IF(parse_sum(p, &operand->a));
        FORWARD_IF(jinja_add_node(p, &node->item, operand));
    }
    return NUMOE_OK;
}

static numoe_status parse_not(struct jinja_parser *p, struct jinja_node **out)
{
    struct jinja_node *node;

    if (!jinja_skip_name(p, "not")) {
        return parse_compare(p, out);
    }
    FORWARD_IF(jinja_parse_enter(p));
    TRY_NODE(p, JINJA_N_NOT, &node);
    FORWARD_IF(parse_not(p, &node->a));
    p->depth--;
    *out = node;
    return NUMOE_OK;
}

static numoe_status parse_logic(struct jinja_parser *p, const char *word, enum jinja_node_kind kind,
                                numoe_status (*below)(struct jinja_parser *, struct jinja_node **),
                                struct jinja_node **out)
{
    FORWARD_IF(below(p, out));
    while (jinja_skip_name(p, word)) {
        struct jinja_node *node;
        TRY_NODE(p, kind, &node);
        node->a = *out;
        FORWARD_IF(below(p, &node->b));
        *out = node;
    }
    return NUMOE_OK;
}

static numoe_status parse_and(struct jinja_parser *p, struct jinja_node **out)
{
    return parse_logic(p, "and", JINJA_N_AND, parse_not, out);
}

static numoe_status parse_or(struct jinja_parser *p, struct jinja_node **out)
{
    return parse_logic(p, "or", JINJA_N_OR, parse_and, out);
}

numoe_status jinja_parse_expr(struct jinja_parser *p, bool cond, struct jinja_node **out)
{
    FORWARD_IF(jinja_parse_enter(p));
    FORWARD_IF(parse_or(p, out));
    while (cond && jinja_skip_name(p, "if")) {
        struct jinja_node *node;
        TRY_NODE(p, JINJA_N_COND, &node);
        node->b = *out;
        FORWARD_IF(parse_or(p, &node->a));
        if (jinja_skip_name(p, "else")) {
            FORWARD_IF(jinja_parse_expr(p, true, &node->c));
        }
        *out = node;
    }
    p->depth--;
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ tuples and targets */

numoe_status jinja_parse_tuple(struct jinja_parser *p, bool cond, struct jinja_node **out)
{
    struct jinja_node *tuple, *item;

    FORWARD_IF(jinja_parse_expr(p, cond, &item));
    *out = item;
    if (!jinja_at_op(p, ',')) {
        return NUMOE_OK;
    }
    TRY_NODE(p, JINJA_N_TUPLE, &tuple);
    FORWARD_IF(jinja_add_node(p, &tuple->item, item));
    while (jinja_skip_op(p, ',') && !at_end(p) && !jinja_at_op(p, ')')) {
        FORWARD_IF(jinja_parse_expr(p, cond, &item));
        FORWARD_IF(jinja_add_node(p, &tuple->item, item));
    }
    *out = tuple;
    return NUMOE_OK;
}

static numoe_status parse_one_target(struct jinja_parser *p, bool dotted, struct jinja_node **out)
{
    struct jinja_value v;
    struct jinja_node *node;

    if (jinja_skip_op(p, '(')) {
        FORWARD_IF(jinja_parse_enter(p));
        FORWARD_IF(jinja_parse_target(p, dotted, out));
        p->depth--;
        return jinja_expect_op(p, ')');
    }
    TRY_NODE(p, JINJA_N_NAME, &node);
    FORWARD_IF(jinja_expect_name(p, &node->text));
    if (word_value(node->text, &v)) {
        return jinja_parse_fail(p, "'%.*s' cannot be assigned to", (int)node->text.n,
                                node->text.data);
    }
    *out = node;
    if (dotted && jinja_skip_op(p, '.')) {
        TRY_NODE(p, JINJA_N_ATTR, out);
        (*out)->a = node;
        return jinja_expect_name(p, &(*out)->text);
    }
    return NUMOE_OK;
}

numoe_status jinja_parse_target(struct jinja_parser *p, bool dotted, struct jinja_node **out)
{
    struct jinja_node *tuple, *item;

    FORWARD_IF(parse_one_target(p, dotted, &item));
    *out = item;
    if (!jinja_at_op(p, ',')) {
        return NUMOE_OK;
    }
    TRY_NODE(p, JINJA_N_TUPLE, &tuple);
    FORWARD_IF(jinja_add_node(p, &tuple->item, item));
    while (jinja_skip_op(p, ',') &&
           (jinja_at_op(p, '(') || (p->token->kind == JINJA_T_NAME && !jinja_at_name(p, "in")))) {
        FORWARD_IF(parse_one_target(p, dotted, &item));
        FORWARD_IF(jinja_add_node(p, &tuple->item, item));
    }
    *out = tuple;
    return NUMOE_OK;
}
