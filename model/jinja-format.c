/* Formatting in Jinja templates: `"%s" % values`, the filter `format`, and str.format() with plain
 * fields.
 */
#include <math.h>
#include <stdio.h>

#include "model/jinja-impl.h"

/* ------------------------------------------------------------------ % */

struct conversion {
    bool left, zero, plus, space, alternate;
    int width, precision; /* precision -1: none */
    char kind;
};

struct formatter {
    struct jinja_text form;
    size_t at; /* in form */
    const struct jinja_value *values;
    size_t n_used;
};

static char peek(const struct formatter *f)
{
    return f->at < f->form.n ? f->form.data[f->at] : '\0';
}

static int read_number(struct formatter *f)
{
    int n = 0;

    for (; peek(f) >= '0' && peek(f) <= '9'; f->at++) {
        n = MIN(n * 10 + (peek(f) - '0'), 10000);
    }
    return n;
}

static void read_flags(struct formatter *f, struct conversion *c)
{
    for (;; f->at++) {
        switch (peek(f)) {
        case '-':
            c->left = true;
            break;
        case '0':
            c->zero = true;
            break;
        case '+':
            c->plus = true;
            break;
        case ' ':
            c->space = true;
            break;
        case '#':
            c->alternate = true;
            break;
        default:
            return;
        }
    }
}

/* The value of "%(name)", or the next one. */
static numoe_status next_value(struct jinja *j, struct formatter *f, struct jinja_text name,
                               struct jinja_value *out)
{
    if (name.data != NULL) {
        const struct jinja_pair *pair =
            f->values->kind == JINJA_DICT ? jinja_dict_name(f->values->dict, name) : NULL;
        if (pair == NULL) {
            return jinja_fail_input(j, "format: there is no value '%.*s'", (int)MIN(name.n, 60u),
                                    name.data);
        }
        *out = pair->value;
        return NUMOE_OK;
    }
    size_t n = f->values->kind == JINJA_TUPLE ? f->values->list->n : 1;
    if (f->n_used >= n) {
        return jinja_fail_input(j, "not enough arguments for format string");
    }
    *out = f->values->kind == JINJA_TUPLE ? f->values->list->item[f->n_used] : *f->values;
    f->n_used++;
    return NUMOE_OK;
}

/* Filled up to the width: with zeros behind the sign, or with spaces. */
static numoe_status put_filled(struct jinja *j, const struct conversion *c, struct jinja_text t,
                               bool is_number)
{
    int n = (int)MIN(jinja_n_char(t), (size_t)20000), missing = MAX(c->width - n, 0);
    bool zeros = c->zero && !c->left && is_number;
    size_t sign = zeros && t.n > 0 && strchr("+- ", t.data[0]) != NULL;

    FORWARD_IF(jinja_put(j, (struct jinja_text){t.data, sign}));
    for (int i = 0; i < missing && !c->left; i++) {
        FORWARD_IF(jinja_put(j, zeros ? JINJA_TEXT("0") : JINJA_TEXT(" ")));
    }
    FORWARD_IF(jinja_put(j, (struct jinja_text){t.data + sign, t.n - sign}));
    for (int i = 0; i < missing && c->left; i++) {
        FORWARD_IF(jinja_put(j, JINJA_TEXT(" ")));
    }
    return jinja_charge(j, (size_t)missing / 8);
}

static const char *sign_of(const struct conversion *c, bool negative)
{
    return negative ? "-" : c->plus ? "+" : c->space ? " " : "";
}

static numoe_status put_integer(struct jinja *j, const struct conversion *c,
                                const struct jinja_value *v)
{
    char digits[32], text[64];
    int64_t i;

    if (v->kind == JINJA_FLOAT && c->kind == 'd' && fabs(v->f) < 0x1p63) {
        i = (int64_t)v->f;
    } else if (jinja_is_int(v)) {
        i = jinja_as_int(v);
    } else {
        return jinja_fail_input(j, "%%%c format: an integer is required, not %s", c->kind,
                                jinja_type_name(v));
    }
    unsigned long long size = i < 0 ? 0 - (unsigned long long)i : (unsigned long long)i;
    snprintf(digits, sizeof(digits),
             c->kind == 'd'   ? "%llu"
             : c->kind == 'x' ? "%llx"
             : c->kind == 'X' ? "%llX"
                              : "%llo",
             size);
    const char *prefix = !c->alternate || c->kind == 'd' ? ""
                         : c->kind == 'o'                ? "0o"
                         : c->kind == 'x'                ? "0x"
                                                         : "0X";
    int n = snprintf(text, sizeof(text), "%s%s%s", sign_of(c, i < 0), prefix, digits);
    return put_filled(j, c, (struct jinja_text){text, (size_t)n}, true);
}

static numoe_status put_real(struct jinja *j, const struct conversion *c,
                             const struct jinja_value *v)
{
    int precision = c->precision < 0 ? 6 : MIN(c->precision, 100);
    char digits[512], text[520];

    if (!jinja_is_number(v)) {
        return jinja_fail_input(j, "%%%c format: a number is required, not %s", c->kind,
                                jinja_type_name(v));
    }
    double f = jinja_as_float(v), size = fabs(f);
    snprintf(digits, sizeof(digits),
             c->kind == 'e'   ? "%.*e"
             : c->kind == 'g' ? "%.*g"
                              : "%.*f",
             precision, size);
    int n = snprintf(text, sizeof(text), "%s%s", sign_of(c, signbit(f) != 0), digits);
    return put_filled(j, c, (struct jinja_text){text, (size_t)n}, isfinite(f) != 0);
}

static numoe_status put_text(struct jinja *j, const struct conversion *c,
                             const struct jinja_value *v)
{
    size_t start = j->out.len;
    struct jinja_text t;

    FORWARD_IF(c->kind == 'r' ? jinja_write_repr(j, v) : jinja_write(j, v));
    FORWARD_IF(jinja_take(j, start, &t));
    if (c->precision >= 0) {
        t.n = jinja_char_at(t, (size_t)c->precision);
    }
    return put_filled(j, c, t, false);
}

/* What follows a %. */
static numoe_status put_conversion(struct jinja *j, struct formatter *f)
{
    struct conversion c = {.precision = -1};
    struct jinja_text name = {NULL, 0};
    struct jinja_value v;

    if (peek(f) == '(') {
        size_t end = jinja_find_text(f->form, JINJA_TEXT(")"), f->at);
        end = MIN(end, f->form.n);
        name = (struct jinja_text){f->form.data + f->at + 1, end - f->at - 1};
        f->at = MIN(end + 1, f->form.n);
    }
    read_flags(f, &c);
    c.width = read_number(f);
    if (peek(f) == '.') {
        f->at++;
        c.precision = read_number(f);
    }
    c.kind = peek(f);
    f->at++;
    if (c.kind == '%') {
        return jinja_put(j, JINJA_TEXT("%"));
    }
    if (c.kind == '\0' || strchr("sdiufFegxXor", c.kind) == NULL) {
        return jinja_fail(j, NUMOE_E_SUPPORT, "format: a conversion of \"%.*s\" is not supported",
                          (int)MIN(f->form.n, 60u), f->form.data);
    }
    c.kind = c.kind == 'i' || c.kind == 'u' ? 'd' : c.kind == 'F' ? 'f' : c.kind;
    FORWARD_IF(next_value(j, f, name, &v));
    return strchr("dxXo", c.kind) != NULL  ? put_integer(j, &c, &v)
           : strchr("feg", c.kind) != NULL ? put_real(j, &c, &v)
                                           : put_text(j, &c, &v);
}

numoe_status jinja_format(struct jinja *j, struct jinja_text form, const struct jinja_value *values,
                          struct jinja_value *out)
{
    struct formatter f = {.form = form, .values = values};
    size_t start = j->out.len;

    while (f.at < form.n) {
        size_t percent = MIN(jinja_find_text(form, JINJA_TEXT("%"), f.at), form.n);
        FORWARD_IF(jinja_charge(j, 1));
        FORWARD_IF(jinja_put(j, (struct jinja_text){form.data + f.at, percent - f.at}));
        f.at = percent + 1;
        if (percent < form.n) {
            FORWARD_IF(put_conversion(j, &f));
        }
    }
    bool is_mapping = values->kind == JINJA_DICT || values->kind == JINJA_LIST ||
                      values->kind == JINJA_UNDEFINED; /* or looks like one */
    if (!is_mapping && f.n_used < (values->kind == JINJA_TUPLE ? values->list->n : 1)) {
        return jinja_fail_input(j, "not all arguments converted during string formatting");
    }
    *out = jinja_string(NULL, 0);
    return jinja_take(j, start, &out->text);
}

/* ------------------------------------------------------------------ str.format() */

/* The value of a field: "", "0", "name". */
static numoe_status field_value(struct jinja *j, struct jinja_text name, struct jinja_args *args,
                                size_t *n_auto, struct jinja_value *out)
{
    const struct jinja_pair *pair = jinja_dict_name(&args->named, name);
    struct jinja_value index = jinja_parse_number(name, 10);

    if (name.n == 0) {
        index = jinja_int((int64_t)(*n_auto)++);
    }
    if (pair != NULL) {
        *out = pair->value;
    } else if (index.kind == JINJA_INT && index.i >= 0 && (uint64_t)index.i < args->pos.n) {
        *out = args->pos.item[index.i];
    } else {
        return jinja_fail(j, NUMOE_E_SUPPORT,
                          "format: the field '{%.*s}' has no value, or is not supported",
                          (int)MIN(name.n, 60u), name.data == NULL ? "" : name.data);
    }
    return NUMOE_OK;
}

/* What stands at a brace at `at`; *at is passed behind it. */
static numoe_status put_field(struct jinja *j, struct jinja_text form, struct jinja_args *args,
                              size_t *n_auto, size_t *at)
{
    char brace = form.data[*at];
    struct jinja_value v;

    if (*at + 1 < form.n && form.data[*at + 1] == brace) {
        *at += 2;
        return jinja_put(j, (struct jinja_text){&brace, 1});
    }
    size_t end = jinja_find_text(form, JINJA_TEXT("}"), *at);
    if (brace == '}' || end == SIZE_MAX) {
        return jinja_fail_input(j, "format: single '%c' in the format string", brace);
    }
    struct jinja_text name = {form.data + *at + 1, end - *at - 1};
    FORWARD_IF(field_value(j, name, args, n_auto, &v));
    *at = end + 1;
    return jinja_write(j, &v);
}

numoe_status jinja_format_fields(struct jinja *j, struct jinja_text form, struct jinja_args *args,
                                 struct jinja_value *out)
{
    size_t start = j->out.len, n_auto = 0;

    FORWARD_IF(jinja_charge(j, form.n / 8));
    for (size_t at = 0; at < form.n;) {
        size_t n = 0;
        while (at + n < form.n && form.data[at + n] != '{' && form.data[at + n] != '}') {
            n++;
        }
        FORWARD_IF(jinja_put(j, (struct jinja_text){form.data + at, n}));
        at += n;
        if (at < form.n) {
            FORWARD_IF(jinja_charge(j, 1));
            FORWARD_IF(put_field(j, form, args, &n_auto, &at));
        }
    }
    *out = jinja_string(NULL, 0);
    return jinja_take(j, start, &out->text);
}
