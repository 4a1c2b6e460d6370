/* Jinja templates, as chat templates use them: a text with statements is parsed once and rendered
 * with variables that come as JSON. Results are those of Python's jinja2 as transformers sets it up
 * (blocks trimmed, lines stripped before blocks, break and continue, {% generation %}).
 *
 * A template is a program of a stranger: it can compute, but it reaches nothing outside, and a
 * rendering ends with an error where it takes too many steps, too much memory or too deep a
 * recursion. What is not supported is an error that names the line and the construct.
 */
#ifndef NUMOE_MODEL_JINJA_H
#define NUMOE_MODEL_JINJA_H

#include <jansson.h>

#include "base/mem.h"

struct jinja_template;

struct jinja_options {
    int64_t now_seconds;     /* what strftime_now() shows, since 1970; 0: the present */
    uint64_t max_steps;      /* 0: 50 million */
    size_t max_memory_bytes; /* 0: 512 MiB */
    size_t max_output_bytes; /* 0: 64 MiB */
};

/* NUMOE_E_INPUT for a text that is no template, NUMOE_E_SUPPORT for one that uses what is not
 * supported. */
numoe_status jinja_parse(const char *text, size_t n, struct jinja_template **out, numoe_error *err);
void jinja_free(struct jinja_template *t);

/* Appends to out, nothing on failure. variables is an object; it may be shared by renderings.
 * NUMOE_E_INPUT where the template raises an exception or meets values it cannot deal with. */
numoe_status jinja_render(const struct jinja_template *t, const json_t *variables,
                          const struct jinja_options *options, struct strbuf *out,
                          numoe_error *err);

#endif
