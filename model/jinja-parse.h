/* What the two halves of the Jinja parser share: expressions (jinja-parse-expr.c) and statements
 * (jinja-parse-stmt.c). */
#ifndef NUMOE_MODEL_JINJA_PARSE_H
#define NUMOE_MODEL_JINJA_PARSE_H

#include "model/jinja-impl.h"

struct jinja_parser {
    struct jinja_arena *arena;
    numoe_error *err;
    const struct jinja_token *token; /* the present one; EOF is never passed */
    struct jinja_node *macro;        /* whose body is read; NULL outside */
    unsigned depth, loop_depth;
};

/* "line N: ..." */
numoe_status jinja_parse_fail(const struct jinja_parser *p, const char *fmt, ...)
    NUMOE_PRINTF(2, 3);
/* "... expected, not" the present token */
numoe_status jinja_fail_token(const struct jinja_parser *p, const char *wanted);
numoe_status jinja_parse_enter(struct jinja_parser *p);
/* As jinja_alloc(). */
numoe_status jinja_parse_alloc(struct jinja_parser *p, size_t n, size_t elem_bytes, void *out);
numoe_status jinja_new_node(struct jinja_parser *p, enum jinja_node_kind kind,
                            struct jinja_node **out);
numoe_status jinja_add_node(struct jinja_parser *p, struct jinja_nodes *nodes,
                            struct jinja_node *node);

bool jinja_is_name(const struct jinja_token *t, const char *name);
bool jinja_at_op(const struct jinja_parser *p, unsigned op);
bool jinja_at_name(const struct jinja_parser *p, const char *name);
bool jinja_skip_op(struct jinja_parser *p, unsigned op);
bool jinja_skip_name(struct jinja_parser *p, const char *name);
numoe_status jinja_expect_op(struct jinja_parser *p, unsigned op);
numoe_status jinja_expect_name(struct jinja_parser *p, struct jinja_text *name);

/* An expression, without inline `if` unless cond. */
numoe_status jinja_parse_expr(struct jinja_parser *p, bool cond, struct jinja_node **out);
/* One expression, or several with commas between them: a tuple. */
numoe_status jinja_parse_tuple(struct jinja_parser *p, bool cond, struct jinja_node **out);
/* `a` or `a.b` or `a, (b, c)`, what can be assigned to; attributes only if dotted. */
numoe_status jinja_parse_target(struct jinja_parser *p, bool dotted, struct jinja_node **out);
/* The rest of `| filter | filter`, applied to *node. */
numoe_status jinja_parse_filters(struct jinja_parser *p, bool first_is_bare,
                                 struct jinja_node **node);

/* Statements up to one of the tags in ends (NULL-terminated; itself NULL: the end of the text);
 * *end is the tag found, whose name has been passed. */
numoe_status jinja_parse_body(struct jinja_parser *p, const char *const *ends,
                              struct jinja_nodes *body, const char **end);

#endif
