/* Filters of Jinja templates that take one value: texts, numbers, JSON. Those for lists are in
 * jinja-filter-list.c.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "model/jinja-impl.h"

/* ------------------------------------------------------------------ texts */

static numoe_status restyle(struct jinja *j, const struct jinja_call *c, enum jinja_style style,
                            struct jinja_value *out)
{
    struct jinja_text t;

    FORWARD_IF(jinja_str(j, &c->self, &t));
    return jinja_restyle(j, t, style, out);
}

static numoe_status filter_upper(struct jinja *j, const struct jinja_call *c,
                                 struct jinja_value *out)
{
    return restyle(j, c, JINJA_STYLE_UPPER, out);
}

static numoe_status filter_lower(struct jinja *j, const struct jinja_call *c,
                                 struct jinja_value *out)
{
    return restyle(j, c, JINJA_STYLE_LOWER, out);
}

static numoe_status filter_capitalize(struct jinja *j, const struct jinja_call *c,
                                      struct jinja_value *out)
{
    return restyle(j, c, JINJA_STYLE_CAPITAL, out);
}

static bool ends_word(uint32_t c)
{
    return c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || jinja_is_space(c);
}

/* Unlike str.title(): words are what stands between white space, hyphens and opening brackets. */
static numoe_status filter_title(struct jinja *j, const struct jinja_call *c,
                                 struct jinja_value *out)
{
    size_t start = j->out.len;
    struct jinja_text t;
    struct jinja_value part;
    bool first = true;

    FORWARD_IF(jinja_str(j, &c->self, &t));
    for (size_t i = 0, n; i < t.n; i += n) {
        n = jinja_char_bytes(t.data + i, t.n - i);
        FORWARD_IF(jinja_restyle(j, (struct jinja_text){t.data + i, n},
                                 first ? JINJA_STYLE_UPPER : JINJA_STYLE_LOWER, &part));
        FORWARD_IF(jinja_put(j, part.text));
        first = ends_word(jinja_code(t.data + i, n));
    }
    *out = jinja_string(NULL, 0);
    return jinja_take(j, start, &out->text);
}

static numoe_status filter_trim(struct jinja *j, const struct jinja_call *c,
                                struct jinja_value *out)
{
    struct jinja_text t, chars;

    FORWARD_IF(jinja_str(j, &c->self, &t));
    FORWARD_IF(jinja_arg_text(j, c, 0, JINJA_TEXT(""), &chars));
    return jinja_strip(j, t, jinja_has_arg(c, 0) ? &chars : NULL, true, true, out);
}

static numoe_status filter_string(struct jinja *j, const struct jinja_call *c,
                                  struct jinja_value *out)
{
    struct jinja_text t;

    FORWARD_IF(jinja_str(j, &c->self, &t));
    *out = jinja_text(t);
    out->safe = c->self.kind == JINJA_STRING && c->self.safe;
    return NUMOE_OK;
}

static numoe_status filter_safe(struct jinja *j, const struct jinja_call *c,
                                struct jinja_value *out)
{
    FORWARD_IF(filter_string(j, c, out));
    out->safe = true;
    return NUMOE_OK;
}

static numoe_status filter_escape(struct jinja *j, const struct jinja_call *c,
                                  struct jinja_value *out)
{
    static const char from[] = "&<>'\"";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    size_t start = j->out.len, n;
    struct jinja_text t;

    FORWARD_IF(filter_safe(j, c, out));
    if (c->self.kind == JINJA_STRING && c->self.safe) {
        return NUMOE_OK;
    }
    for (t = out->text; t.n > 0; t = (struct jinja_text){t.data + n, t.n - n}) {
        for (n = 0; n < t.n && (t.data[n] == '\0' || strchr(from, t.data[n]) == NULL); n++) {
        }
        FORWARD_IF(jinja_charge(j, n / 8 + 1));
        FORWARD_IF(jinja_put(j, (struct jinja_text){t.data, n}));
        if (n < t.n) {
            const char *entity = to[strchr(from, t.data[n]) - from];
            FORWARD_IF(jinja_put(j, (struct jinja_text){entity, strlen(entity)}));
            n++;
        }
    }
    return jinja_take(j, start, &out->text);
}

static numoe_status filter_replace(struct jinja *j, const struct jinja_call *c,
                                   struct jinja_value *out)
{
    struct jinja_text t, from, to;
    int64_t count;

    FORWARD_IF(jinja_str(j, &c->self, &t));
    FORWARD_IF(jinja_str(j, &c->arg[0], &from));
    FORWARD_IF(jinja_str(j, &c->arg[1], &to));
    FORWARD_IF(jinja_arg_int(j, c, 2, -1, &count));
    return jinja_replace(j, t, from, to, count, out);
}

/* A text, or that many spaces. */
static numoe_status indent_text(struct jinja *j, const struct jinja_value *v, int64_t none,
                                struct jinja_text *out)
{
    const struct jinja_value space = jinja_string(" ", 1), n = jinja_int(none);
    struct jinja_value spaces;

    if (v->kind == JINJA_STRING) {
        *out = v->text;
        return NUMOE_OK;
    }
    FORWARD_IF(jinja_binary(j, '*', &space, v->kind == JINJA_MISSING ? &n : v, &spaces));
    *out = spaces.text;
    return NUMOE_OK;
}

static numoe_status filter_indent(struct jinja *j, const struct jinja_call *c,
                                  struct jinja_value *out)
{
    bool first = jinja_true(&c->arg[1]), blank = jinja_true(&c->arg[2]);
    struct jinja_text t, indent;
    struct jinja_value lines;
    size_t start = j->out.len;

    if (c->self.kind != JINJA_STRING) {
        return jinja_fail_input(j, "indent: value is of type '%s'", jinja_type_name(&c->self));
    }
    FORWARD_IF(jinja_put(j, c->self.text));
    FORWARD_IF(jinja_put(j, JINJA_TEXT("\n"))); /* an empty last line is a line */
    FORWARD_IF(jinja_take(j, start, &t));
    FORWARD_IF(indent_text(j, &c->arg[0], 4, &indent));
    FORWARD_IF(jinja_splitlines(j, t, false, &lines));
    for (size_t i = 0; i < lines.list->n; i++) {
        struct jinja_text line = lines.list->item[i].text;
        if (i > 0) {
            FORWARD_IF(jinja_put(j, JINJA_TEXT("\n")));
        }
        if (i == 0 ? first : blank || line.n > 0) {
            FORWARD_IF(jinja_put(j, indent));
        }
        FORWARD_IF(jinja_put(j, line));
    }
    *out = jinja_string(NULL, 0);
    return jinja_take(j, start, &out->text);
}

static numoe_status filter_format(struct jinja *j, const struct jinja_call *c,
                                  struct jinja_value *out)
{
    struct jinja_value values = {.kind = JINJA_TUPLE, .list = &c->args->pos};
    struct jinja_text t;

    if (c->args->named.n > 0) {
        values = (struct jinja_value){.kind = JINJA_DICT, .dict = &c->args->named};
    }
    FORWARD_IF(jinja_str(j, &c->self, &t));
    return jinja_format(j, t, &values, out);
}

static numoe_status filter_wordcount(struct jinja *j, const struct jinja_call *c,
                                     struct jinja_value *out)
{
    struct jinja_text t;
    int64_t n = 0;
    bool in_word = false;

    FORWARD_IF(jinja_str(j, &c->self, &t));
    FORWARD_IF(jinja_charge(j, t.n / 4));
    for (size_t i = 0; i < t.n;) {
        uint32_t code = jinja_code(t.data + i, t.n - i);
        bool word = jinja_is_alpha(code) || jinja_is_digit(code) || code == '_';
        n += word && !in_word;
        in_word = word;
        i += jinja_char_bytes(t.data + i, t.n - i);
    }
    *out = jinja_int(n);
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ JSON */

/* separators=(item, key) */
static numoe_status json_separators(struct jinja *j, const struct jinja_value *v,
                                    struct jinja_json_form *form)
{
    if (v->kind == JINJA_MISSING || v->kind == JINJA_NONE) {
        return NUMOE_OK;
    }
    if ((v->kind != JINJA_TUPLE && v->kind != JINJA_LIST) || v->list->n != 2 ||
        v->list->item[0].kind != JINJA_STRING || v->list->item[1].kind != JINJA_STRING) {
        return jinja_fail_input(j, "tojson: separators are not two strings");
    }
    form->item_sep = v->list->item[0].text;
    form->key_sep = v->list->item[1].text;
    return NUMOE_OK;
}

static numoe_status filter_tojson(struct jinja *j, const struct jinja_call *c,
                                  struct jinja_value *out)
{
    size_t start = j->out.len;
    struct jinja_json_form form = {
        .ascii = jinja_true(&c->arg[0]),
        .has_indent = jinja_has_arg(c, 1),
        .key_sep = JINJA_TEXT(": "),
        .sort_keys = jinja_true(&c->arg[3]),
    };

    form.item_sep = form.has_indent ? JINJA_TEXT(",") : JINJA_TEXT(", ");
    if (form.has_indent) {
        FORWARD_IF(indent_text(j, &c->arg[1], 0, &form.indent));
    }
    FORWARD_IF(json_separators(j, &c->arg[2], &form));
    FORWARD_IF(jinja_write_json(j, &form, 0, &c->self));
    *out = jinja_string(NULL, 0);
    return jinja_take(j, start, &out->text);
}

/* Not Jinja's own, but templates expect it. */
static numoe_status filter_from_json(struct jinja *j, const struct jinja_call *c,
                                     struct jinja_value *out)
{
    json_error_t error;
    struct jinja_text t;

    FORWARD_IF(jinja_str(j, &c->self, &t));
    FORWARD_IF(jinja_charge(j, t.n / 4));
    json_t *json = json_loadb(t.n == 0 ? "" : t.data, t.n, JSON_DECODE_ANY, &error);
    if (json == NULL) {
        return jinja_fail_input(j, "from_json: %s at byte %d", error.text, error.position);
    }
    bool copies = j->copies_json;
    j->copies_json = true;
    numoe_status status = jinja_from_json(j, json, out);
    j->copies_json = copies;
    json_decref(json);
    return status;
}

/* ------------------------------------------------------------------ numbers */

static numoe_status filter_abs(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    const struct jinja_value zero = jinja_int(0);

    if (c->self.kind == JINJA_FLOAT) {
        *out = jinja_float(fabs(c->self.f));
        return NUMOE_OK;
    }
    if (!jinja_is_int(&c->self)) {
        return jinja_fail_input(j, "abs: value is of type '%s'", jinja_type_name(&c->self));
    }
    return jinja_binary(j, jinja_as_int(&c->self) < 0 ? '-' : '+', &zero, &c->self, out);
}

/* The number that a value is for int() and float(); MISSING where it is none. */
static numoe_status to_number(struct jinja *j, const struct jinja_value *v, int base,
                              struct jinja_value *out)
{
    if (v->kind == JINJA_UNDEFINED) {
        return jinja_fail_undefined(j, v);
    }
    *out = jinja_is_number(v) ? *v : (struct jinja_value){.kind = JINJA_MISSING};
    if (v->kind == JINJA_STRING) {
        *out = jinja_parse_number(v->text, base);
    }
    return NUMOE_OK;
}

static numoe_status filter_int(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    int64_t base;

    FORWARD_IF(jinja_arg_int(j, c, 1, 10, &base));
    if (base != 0 && (base < 2 || base > 36)) {
        return jinja_fail_input(j, "int: base must be 0 or 2 to 36");
    }
    FORWARD_IF(to_number(j, &c->self, (int)base, out));
    bool fits = jinja_is_int(out) || (out->kind == JINJA_FLOAT && fabs(out->f) < 0x1p63);
    if (out->kind == JINJA_FLOAT && isfinite(out->f) && !fits) {
        return jinja_fail(j, NUMOE_E_SUPPORT, "integers above 64 bits are not supported");
    }
    if (fits) {
        *out = jinja_int(out->kind == JINJA_FLOAT ? (int64_t)out->f : jinja_as_int(out));
    } else {
        *out = c->arg[0].kind == JINJA_MISSING ? jinja_int(0) : c->arg[0];
    }
    return NUMOE_OK;
}

static numoe_status filter_float(struct jinja *j, const struct jinja_call *c,
                                 struct jinja_value *out)
{
    FORWARD_IF(to_number(j, &c->self, 10, out));
    if (out->kind != JINJA_MISSING) {
        *out = jinja_float(jinja_as_float(out));
    } else {
        *out = c->arg[0].kind == JINJA_MISSING ? jinja_float(0) : c->arg[0];
    }
    return NUMOE_OK;
}

/* To the nearest, as printing does it: exactly, half to even. */
static double round_near(double f, int64_t precision)
{
    char text[512];

    if (precision < 0) {
        double unit = pow(10, (double)-precision);
        return isfinite(unit) ? nearbyint(f / unit) * unit : 0;
    }
    snprintf(text, sizeof(text), "%.*f", (int)MIN(precision, 100), f);
    return strtod(text, NULL);
}

static numoe_status filter_round(struct jinja *j, const struct jinja_call *c,
                                 struct jinja_value *out)
{
    struct jinja_text method;
    int64_t precision;

    FORWARD_IF(jinja_arg_int(j, c, 0, 0, &precision));
    FORWARD_IF(jinja_arg_text(j, c, 1, JINJA_TEXT("common"), &method));
    if (!jinja_is_number(&c->self)) {
        return jinja_fail_input(j, "round: value is of type '%s'", jinja_type_name(&c->self));
    }
    double f = jinja_as_float(&c->self), unit = pow(10, (double)precision);
    if (jinja_text_is(method, "ceil")) {
        *out = jinja_float(ceil(f * unit) / unit);
    } else if (jinja_text_is(method, "floor")) {
        *out = jinja_float(floor(f * unit) / unit);
    } else if (!jinja_text_is(method, "common")) {
        return jinja_fail_input(j, "round: method must be common, ceil or floor");
    } else if (jinja_is_int(&c->self) && precision >= 0) {
        *out = jinja_int(jinja_as_int(&c->self));
    } else {
        f = isfinite(f) ? round_near(f, precision) : f;
        *out = jinja_is_int(&c->self) ? jinja_int((int64_t)f) : jinja_float(f);
    }
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ anything */

static numoe_status filter_default(struct jinja *j, const struct jinja_call *c,
                                   struct jinja_value *out)
{
    bool lacks =
        c->self.kind == JINJA_UNDEFINED || (jinja_true(&c->arg[1]) && !jinja_true(&c->self));

    (void)j;
    *out = !lacks ? c->self : c->arg[0].kind == JINJA_MISSING ? jinja_string("", 0) : c->arg[0];
    return NUMOE_OK;
}

static numoe_status filter_attr(struct jinja *j, const struct jinja_call *c,
                                struct jinja_value *out)
{
    struct jinja_text name;

    FORWARD_IF(jinja_arg_text(j, c, 0, JINJA_TEXT(""), &name));
    if (c->self.kind == JINJA_DICT) { /* attributes only, no elements */
        const struct jinja_value empty = {.kind = JINJA_DICT, .dict = &(struct jinja_dict){0}};
        struct jinja_value found;
        FORWARD_IF(jinja_get_attr(j, &empty, name, &found));
        if (found.kind == JINJA_UNDEFINED) {
            *out = found;
            return NUMOE_OK;
        }
    }
    return jinja_get_attr(j, &c->self, name, out);
}

const struct jinja_builtin jinja_text_filters[] = {
    {"abs", "", filter_abs},
    {"attr", "name", filter_attr},
    {"capitalize", "", filter_capitalize},
    {"d", "/ default_value boolean", filter_default},
    {"default", "/ default_value boolean", filter_default},
    {"e", "", filter_escape},
    {"escape", "", filter_escape},
    {"float", "/ default", filter_float},
    {"format", NULL, filter_format},
    {"from_json", "", filter_from_json},
    {"indent", "/ width first blank", filter_indent},
    {"int", "/ default base", filter_int},
    {"lower", "", filter_lower},
    {"replace", "old new / count", filter_replace},
    {"round", "/ precision method", filter_round},
    {"safe", "", filter_safe},
    {"string", "", filter_string},
    {"title", "", filter_title},
    {"tojson", "/ ensure_ascii indent separators sort_keys", filter_tojson},
    {"trim", "/ chars", filter_trim},
    {"upper", "", filter_upper},
    {"wordcount", "", filter_wordcount},
    {NULL, NULL, NULL},
};
