/* Jinja statements to trees. Tags that Jinja has and that have no place in a chat template
 * (include, import, inheritance) are refused by name.
 */
#include "model/jinja-parse.h"

static numoe_status expect_block_end(struct jinja_parser *p)
{
    if (p->token->kind != JINJA_T_BLOCK_END) {
        return jinja_parse_fail(p, "end of the tag expected");
    }
    p->token++;
    return NUMOE_OK;
}

/* The end of the opening tag, a body, and the closing tag with its end. */
static numoe_status parse_block(struct jinja_parser *p, const char *end, struct jinja_nodes *body)
{
    const char *const ends[] = {end, NULL};
    const char *found;

    FORWARD_IF(expect_block_end(p));
    FORWARD_IF(jinja_parse_body(p, ends, body, &found));
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ if, for */

/* An elif is an if that is all there is in the else. */
static numoe_status parse_if(struct jinja_parser *p, struct jinja_node *node)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    const char *end;

    FORWARD_IF(jinja_parse_tuple(p, false, &node->a));
    FORWARD_IF(expect_block_end(p));
    FORWARD_IF(jinja_parse_body(p, ends, &node->body, &end));
    while (end == ends[0]) {
        struct jinja_node *elif;
        FORWARD_IF(jinja_new_node(p, JINJA_N_IF, &elif));
        FORWARD_IF(jinja_add_node(p, &node->orelse, elif));
        node = elif;
        FORWARD_IF(jinja_parse_tuple(p, false, &node->a));
        FORWARD_IF(expect_block_end(p));
        FORWARD_IF(jinja_parse_body(p, ends, &node->body, &end));
    }
    if (end == ends[1]) {
        FORWARD_IF(parse_block(p, ends[2], &node->orelse));
    }
    return NUMOE_OK;
}

static numoe_status parse_for(struct jinja_parser *p, struct jinja_node *node)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    const char *end;

    FORWARD_IF(jinja_parse_target(p, false, &node->a));
    if (!jinja_skip_name(p, "in")) {
        return jinja_parse_fail(p, "'in' expected after the variable of a loop");
    }
    FORWARD_IF(jinja_parse_tuple(p, false, &node->b));
    if (jinja_skip_name(p, "if")) {
        FORWARD_IF(jinja_parse_expr(p, true, &node->c));
    }
    if (jinja_at_name(p, "recursive")) {
        return status_fail(p->err, NUMOE_E_SUPPORT, "line %u: recursive loops are not supported",
                           p->token->line);
    }
    FORWARD_IF(expect_block_end(p));
    p->loop_depth++;
    FORWARD_IF(jinja_parse_body(p, ends, &node->body, &end));
    p->loop_depth--;
    return end == ends[0] ? parse_block(p, ends[1], &node->orelse) : NUMOE_OK;
}

static numoe_status parse_jump(struct jinja_parser *p, struct jinja_node *node)
{
    if (p->loop_depth == 0) {
        return jinja_parse_fail(p, "'%s' outside of a loop",
                                node->kind == JINJA_N_BREAK ? "break" : "continue");
    }
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ set, with, filter */

static numoe_status parse_set(struct jinja_parser *p, struct jinja_node *node)
{
    FORWARD_IF(jinja_parse_target(p, true, &node->a));
    if (jinja_skip_op(p, '=')) {
        return jinja_parse_tuple(p, true, &node->b);
    }
    node->kind = JINJA_N_SET_BLOCK;
    if (jinja_skip_op(p, '|')) {
        FORWARD_IF(jinja_new_node(p, JINJA_N_CAPTURED, &node->b));
        FORWARD_IF(jinja_parse_filters(p, true, &node->b));
    }
    return parse_block(p, "endset", &node->body);
}

static numoe_status parse_filter_block(struct jinja_parser *p, struct jinja_node *node)
{
    FORWARD_IF(jinja_new_node(p, JINJA_N_CAPTURED, &node->b));
    FORWARD_IF(jinja_parse_filters(p, true, &node->b));
    return parse_block(p, "endfilter", &node->body);
}

static numoe_status parse_with(struct jinja_parser *p, struct jinja_node *node)
{
    while (p->token->kind != JINJA_T_BLOCK_END) {
        struct jinja_node *arg;
        if (node->item.n > 0) {
            FORWARD_IF(jinja_expect_op(p, ','));
        }
        FORWARD_IF(jinja_new_node(p, JINJA_N_ARG, &arg));
        FORWARD_IF(jinja_parse_target(p, false, &arg->b));
        FORWARD_IF(jinja_expect_op(p, '='));
        FORWARD_IF(jinja_parse_expr(p, true, &arg->a));
        FORWARD_IF(jinja_add_node(p, &node->item, arg));
    }
    return parse_block(p, "endwith", &node->body);
}

static numoe_status parse_generation(struct jinja_parser *p, struct jinja_node *node)
{
    return parse_block(p, "endgeneration", &node->body);
}

/* ------------------------------------------------------------------ macro, call */

static numoe_status parse_params(struct jinja_parser *p, struct jinja_nodes *params)
{
    FORWARD_IF(jinja_expect_op(p, '('));
    while (!jinja_skip_op(p, ')')) {
        struct jinja_node *param;
        if (params->n > 0) {
            FORWARD_IF(jinja_expect_op(p, ','));
            if (jinja_skip_op(p, ')')) {
                return NUMOE_OK;
            }
        }
        FORWARD_IF(jinja_new_node(p, JINJA_N_ARG, &param));
        FORWARD_IF(jinja_expect_name(p, &param->text));
        if (jinja_skip_op(p, '=')) {
            FORWARD_IF(jinja_parse_expr(p, true, &param->a));
        } else if (params->n > 0 && params->at[params->n - 1]->a != NULL) {
            return jinja_parse_fail(p, "parameter without a default after one with a default");
        }
        FORWARD_IF(jinja_add_node(p, params, param));
    }
    return NUMOE_OK;
}

/* A body of its own: a loop around it is not its loop. */
static numoe_status parse_macro_body(struct jinja_parser *p, const char *end,
                                     struct jinja_node *node)
{
    struct jinja_node *outer = p->macro;
    unsigned loop_depth = p->loop_depth;

    p->macro = node;
    p->loop_depth = 0;
    FORWARD_IF(parse_block(p, end, &node->body));
    p->macro = outer;
    p->loop_depth = loop_depth;
    if (outer != NULL) {
        outer->uses_caller |= node->uses_caller;
        outer->uses_varargs |= node->uses_varargs;
        outer->uses_kwargs |= node->uses_kwargs;
    }
    return NUMOE_OK;
}

static numoe_status parse_macro(struct jinja_parser *p, struct jinja_node *node)
{
    FORWARD_IF(jinja_expect_name(p, &node->text));
    FORWARD_IF(parse_params(p, &node->item));
    return parse_macro_body(p, "endmacro", node);
}

static numoe_status parse_call_block(struct jinja_parser *p, struct jinja_node *node)
{
    node->text = JINJA_TEXT("caller");
    if (jinja_at_op(p, '(')) {
        FORWARD_IF(parse_params(p, &node->item));
    }
    FORWARD_IF(jinja_parse_expr(p, true, &node->a));
    if (node->a->kind != JINJA_N_CALL) {
        return jinja_parse_fail(p, "a call expected after 'call'");
    }
    return parse_macro_body(p, "endcall", node);
}

/* ------------------------------------------------------------------ tags */

struct tag {
    const char *name;
    enum jinja_node_kind kind;
    numoe_status (*parse)(struct jinja_parser *p, struct jinja_node *node);
};

static const struct tag tags[] = {
    {"if", JINJA_N_IF, parse_if},
    {"for", JINJA_N_FOR, parse_for},
    {"set", JINJA_N_SET, parse_set},
    {"macro", JINJA_N_MACRO, parse_macro},
    {"call", JINJA_N_CALL_BLOCK, parse_call_block},
    {"filter", JINJA_N_FILTER_BLOCK, parse_filter_block},
    {"with", JINJA_N_WITH, parse_with},
    {"generation", JINJA_N_SCOPE, parse_generation},
    {"break", JINJA_N_BREAK, parse_jump},
    {"continue", JINJA_N_CONTINUE, parse_jump},
};

static numoe_status fail_tag(const struct jinja_parser *p, struct jinja_text name)
{
    static const char *const others[] = {"include",    "import", "from", "extends", "block",
                                         "autoescape", "print",  "do",   "trans",   "debug"};

    for (size_t i = 0; i < ARRAY_LEN(others); i++) {
        if (jinja_text_is(name, others[i])) {
            return status_fail(p->err, NUMOE_E_SUPPORT, "line %u: the tag '%s' is not supported",
                               p->token->line, others[i]);
        }
    }
    return jinja_parse_fail(p, "unknown or unexpected tag '%.*s'", (int)MIN(name.n, 60u),
                            name.data);
}

static numoe_status parse_tag(struct jinja_parser *p, struct jinja_nodes *body)
{
    struct jinja_text name;
    struct jinja_node *node;

    FORWARD_IF(jinja_expect_name(p, &name));
    for (size_t i = 0; i < ARRAY_LEN(tags); i++) {
        if (jinja_text_is(name, tags[i].name)) {
            FORWARD_IF(jinja_new_node(p, tags[i].kind, &node));
            FORWARD_IF(tags[i].parse(p, node));
            FORWARD_IF(expect_block_end(p));
            return jinja_add_node(p, body, node);
        }
    }
    return fail_tag(p, name);
}

static numoe_status parse_output(struct jinja_parser *p, struct jinja_nodes *body)
{
    struct jinja_node *node;

    FORWARD_IF(jinja_new_node(p, JINJA_N_OUTPUT, &node));
    FORWARD_IF(jinja_parse_tuple(p, true, &node->a));
    if (p->token->kind != JINJA_T_OUTPUT_END) {
        return jinja_parse_fail(p, "'}}' expected after the expression");
    }
    p->token++;
    return jinja_add_node(p, body, node);
}

static numoe_status parse_data(struct jinja_parser *p, struct jinja_nodes *body)
{
    struct jinja_node *node;

    FORWARD_IF(jinja_new_node(p, JINJA_N_DATA, &node));
    node->text = p->token->value.text;
    p->token++;
    return jinja_add_node(p, body, node);
}

/* The end tag that the next token, a tag's name, is; NULL if it is none of them. */
static const char *find_end(const struct jinja_parser *p, const char *const *ends)
{
    for (; ends != NULL && *ends != NULL; ends++) {
        if (jinja_at_name(p, *ends)) {
            return *ends;
        }
    }
    return NULL;
}

/* Tokens up to the end tag; *end stays NULL at the end of the text. */
static numoe_status parse_until(struct jinja_parser *p, const char *const *ends,
                                struct jinja_nodes *body, const char **end)
{
    while (p->token->kind != JINJA_T_EOF) {
        if (p->token->kind == JINJA_T_DATA) {
            FORWARD_IF(parse_data(p, body));
        } else if (p->token->kind == JINJA_T_OUTPUT_BEGIN) {
            p->token++;
            FORWARD_IF(parse_output(p, body));
        } else {
            p->token++;
            *end = find_end(p, ends);
            if (*end != NULL) {
                p->token++;
                return NUMOE_OK;
            }
            FORWARD_IF(parse_tag(p, body));
        }
    }
    return NUMOE_OK;
}

numoe_status jinja_parse_body(struct jinja_parser *p, const char *const *ends,
                              struct jinja_nodes *body, const char **end)
{
    unsigned line = p->token->line;

    *end = NULL;
    FORWARD_IF(jinja_parse_enter(p));
    FORWARD_IF(parse_until(p, ends, body, end));
    p->depth--;
    if (*end == NULL && ends != NULL) {
        const char *last = *ends;
        while (*++ends != NULL) {
            last = *ends;
        }
        return status_fail(p->err, NUMOE_E_INPUT, "line %u: what begins here has no '%s'", line,
                           last);
    }
    return NUMOE_OK;
}
