/* Parses a Jinja template: the entry, and what expressions (jinja-parse-expr.c) and statements
 * (jinja-parse-stmt.c) share to look at tokens and to make nodes.
 */
#include <stdarg.h>
#include <stdio.h>

#include "model/jinja-parse.h"

/* ------------------------------------------------------------------ tokens and nodes */

numoe_status jinja_parse_fail(const struct jinja_parser *p, const char *fmt, ...)
{
    char text[200];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    return status_fail(p->err, NUMOE_E_INPUT, "line %u: %s", p->token->line, text);
}

numoe_status jinja_fail_token(const struct jinja_parser *p, const char *wanted)
{
    const struct jinja_token *t = p->token;

    switch (t->kind) {
    case JINJA_T_NAME:
        return jinja_parse_fail(p, "%s expected, not '%.*s'", wanted,
                                (int)MIN(t->value.text.n, 60u), t->value.text.data);
    case JINJA_T_OP:
        return jinja_parse_fail(p, "%s expected, not '%c%.1s'", wanted, (char)t->op,
                                t->op < 0x100 ? "" : (char[2]){(char)(t->op >> 8), 0});
    case JINJA_T_CONST:
        return jinja_parse_fail(p, "%s expected, not a constant", wanted);
    case JINJA_T_DATA:
    case JINJA_T_BLOCK_BEGIN:
    case JINJA_T_OUTPUT_BEGIN:
    case JINJA_T_EOF:
        return jinja_parse_fail(p, "%s expected, not the end of the template", wanted);
    case JINJA_T_BLOCK_END:
    case JINJA_T_OUTPUT_END:
        break;
    }
    return jinja_parse_fail(p, "%s expected, not the end of the tag", wanted);
}

numoe_status jinja_parse_enter(struct jinja_parser *p)
{
    if (p->depth == JINJA_MAX_PARSE_DEPTH) {
        return jinja_parse_fail(p, "nested more than %d deep", JINJA_MAX_PARSE_DEPTH);
    }
    p->depth++;
    return NUMOE_OK;
}

numoe_status jinja_parse_alloc(struct jinja_parser *p, size_t n, size_t elem_bytes, void *out)
{
    numoe_status status = jinja_alloc(p->arena, n, elem_bytes, out, p->err);
    return status == NUMOE_OK ? status : status_context(p->err, status, "line %u", p->token->line);
}

numoe_status jinja_new_node(struct jinja_parser *p, enum jinja_node_kind kind,
                            struct jinja_node **out)
{
    struct jinja_node *node;

    FORWARD_IF(jinja_parse_alloc(p, 1, sizeof(*node), &node));
    node->kind = kind;
    node->line = p->token->line;
    *out = node;
    return NUMOE_OK;
}

numoe_status jinja_add_node(struct jinja_parser *p, struct jinja_nodes *nodes,
                            struct jinja_node *node)
{
    if (nodes->n == nodes->cap) {
        size_t cap = nodes->cap == 0 ? 4 : nodes->cap * 2;
        struct jinja_node **grown;
        FORWARD_IF(jinja_parse_alloc(p, cap, sizeof(*grown), &grown));
        if (nodes->n > 0) {
            memcpy(grown, nodes->at, nodes->n * sizeof(*grown));
        }
        nodes->at = grown;
        nodes->cap = cap;
    }
    nodes->at[nodes->n++] = node;
    return NUMOE_OK;
}

bool jinja_at_op(const struct jinja_parser *p, unsigned op)
{
    return p->token->kind == JINJA_T_OP && p->token->op == op;
}

bool jinja_is_name(const struct jinja_token *t, const char *name)
{
    return t->kind == JINJA_T_NAME && jinja_text_is(t->value.text, name);
}

bool jinja_at_name(const struct jinja_parser *p, const char *name)
{
    return jinja_is_name(p->token, name);
}

bool jinja_skip_op(struct jinja_parser *p, unsigned op)
{
    bool found = jinja_at_op(p, op);
    p->token += found;
    return found;
}

bool jinja_skip_name(struct jinja_parser *p, const char *name)
{
    bool found = jinja_at_name(p, name);
    p->token += found;
    return found;
}

numoe_status jinja_expect_op(struct jinja_parser *p, unsigned op)
{
    char wanted[] = {'\'', (char)op, '\'', '\0'};
    return jinja_skip_op(p, op) ? NUMOE_OK : jinja_fail_token(p, wanted);
}

numoe_status jinja_expect_name(struct jinja_parser *p, struct jinja_text *name)
{
    if (p->token->kind != JINJA_T_NAME) {
        return jinja_fail_token(p, "name");
    }
    *name = p->token->value.text;
    p->token++;
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ a template */

numoe_status jinja_parse(const char *text, size_t n, struct jinja_template **out, numoe_error *err)
{
    struct jinja_template *t;
    struct jinja_token *tokens;
    size_t n_tokens;
    const char *end;

    FORWARD_IF(mem_new(&t, 1, sizeof(*t), "template", err));
    t->arena.max_bytes = 64 * 1024 * 1024 + n * 64;
    numoe_status status = jinja_lex(&t->arena, text, n, &tokens, &n_tokens, err);
    if (status == NUMOE_OK) {
        struct jinja_parser p = {.arena = &t->arena, .err = err, .token = tokens};
        status = jinja_parse_body(&p, NULL, &t->body, &end);
    }
    if (status != NUMOE_OK) {
        jinja_free(t);
        return status;
    }
    *out = t;
    return NUMOE_OK;
}

void jinja_free(struct jinja_template *t)
{
    if (t != NULL) {
        jinja_arena_fini(&t->arena);
        mem_free(t);
    }
}
