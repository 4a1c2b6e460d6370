/* Operators of Jinja expressions, slices, and access to attributes and elements, as Python and
 * Jinja have them.
 */
#include <math.h>

#include "model/jinja-impl.h"

/* ------------------------------------------------------------------ undefined */

/* What Jinja calls the owner of a missing attribute. */
static const char *owner_name(unsigned char owner)
{
    const struct jinja_value v = {.kind = (enum jinja_kind)owner};
    return owner == JINJA_NONE ? "None" : jinja_type_name(&v);
}

numoe_status jinja_fail_undefined(struct jinja *j, const struct jinja_value *v)
{
    int n = (int)MIN(v->text.n, 100u);

    if (v->text.n == 0) {
        return jinja_fail_input(j, "a value that is not there is used");
    }
    if (v->owner == JINJA_MISSING) {
        return jinja_fail_input(j, "'%.*s' is undefined", n, v->text.data);
    }
    return jinja_fail_input(j, "'%s object' has no attribute '%.*s'", owner_name(v->owner), n,
                            v->text.data);
}

static numoe_status fail_operands(struct jinja *j, unsigned op, const struct jinja_value *a,
                                  const struct jinja_value *b)
{
    const char text[] = {(char)op, (char)(op >> 8), '\0'};

    if (a->kind == JINJA_UNDEFINED || b->kind == JINJA_UNDEFINED) {
        return jinja_fail_undefined(j, a->kind == JINJA_UNDEFINED ? a : b);
    }
    return jinja_fail_input(j, "unsupported operand types for %s: '%s' and '%s'", text,
                            jinja_type_name(a), jinja_type_name(b));
}

/* ------------------------------------------------------------------ numbers */

/* b is not 0. Python rounds down. */
static int64_t floor_div(int64_t a, int64_t b)
{
    int64_t q = a / b;
    return q - (a % b != 0 && (a < 0) != (b < 0));
}

static bool int_power(int64_t a, int64_t b, int64_t *out)
{
    int64_t power = 1;

    for (bool fits = true; b > 0; b >>= 1) {
        if ((b & 1) && (!fits || __builtin_mul_overflow(power, a, &power))) {
            return false;
        }
        fits = fits && !__builtin_mul_overflow(a, a, &a);
    }
    *out = power;
    return true;
}

static numoe_status int_binary(struct jinja *j, unsigned op, int64_t a, int64_t b,
                               struct jinja_value *out)
{
    int64_t r = 0;
    bool fits = true;

    if ((op == JINJA_OP_FLOORDIV || op == '%') && b == -1) {
        fits = op == '%' || !__builtin_sub_overflow((int64_t)0, a, &r);
    } else if (op == JINJA_OP_FLOORDIV) {
        r = floor_div(a, b);
    } else if (op == '%') {
        r = a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
    } else if (op == '+') {
        fits = !__builtin_add_overflow(a, b, &r);
    } else if (op == '-') {
        fits = !__builtin_sub_overflow(a, b, &r);
    } else if (op == '*') {
        fits = !__builtin_mul_overflow(a, b, &r);
    } else {
        fits = int_power(a, b, &r);
    }
    *out = jinja_int(r);
    return fits ? NUMOE_OK
                : jinja_fail(j, NUMOE_E_SUPPORT, "integers above 64 bits are not supported");
}

static double float_mod(double a, double b)
{
    double r = fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : copysign(r, r == 0 ? b : r);
}

static double float_binary(unsigned op, double a, double b)
{
    switch (op) {
    case '+':
        return a + b;
    case '-':
        return a - b;
    case '*':
        return a * b;
    case '/':
        return a / b;
    case '%':
        return float_mod(a, b);
    case JINJA_OP_FLOORDIV:
        return floor((a - float_mod(a, b)) / b + 0.5);
    default:
        return pow(a, b);
    }
}

static numoe_status number_binary(struct jinja *j, unsigned op, const struct jinja_value *a,
                                  const struct jinja_value *b, struct jinja_value *out)
{
    bool ints = jinja_is_int(a) && jinja_is_int(b);
    double x = jinja_as_float(a), y = jinja_as_float(b);

    if ((op == '/' || op == '%' || op == JINJA_OP_FLOORDIV) && y == 0) {
        return jinja_fail_input(j, "division by zero");
    }
    if (op == JINJA_OP_POW && ((x == 0 && y < 0) || (x < 0 && y != floor(y)))) {
        return jinja_fail_input(j, "this power is not a number");
    }
    if (ints && op != '/' && !(op == JINJA_OP_POW && y < 0)) {
        return int_binary(j, op, jinja_as_int(a), jinja_as_int(b), out);
    }
    *out = jinja_float(float_binary(op, x, y));
    if (op == JINJA_OP_POW && isinf(out->f) && isfinite(x) && isfinite(y)) {
        return jinja_fail_input(j, "this power is too large");
    }
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ texts and lists */

/* What Markup does to a text that is joined to it. */
static numoe_status escape(struct jinja *j, const struct jinja_value *v, struct jinja_text *out)
{
    struct jinja_value name = jinja_string("escape", 6), escaped;
    struct jinja_args none = {0};

    FORWARD_IF(jinja_call_builtin(j, jinja_find_filter(name.text), v, &none, &escaped));
    *out = escaped.text;
    return NUMOE_OK;
}

static numoe_status add_texts(struct jinja *j, const struct jinja_value *a,
                              const struct jinja_value *b, struct jinja_value *out)
{
    struct jinja_text x = a->text, y = b->text;
    char *both;

    if (a->safe != b->safe) {
        FORWARD_IF(a->safe ? escape(j, b, &y) : escape(j, a, &x));
    }
    FORWARD_IF(jinja_new_text(j, x.n + y.n, &both));
    memcpy(both, x.data, x.n);
    memcpy(both + x.n, y.data, y.n);
    *out = jinja_string(both, x.n + y.n);
    out->safe = a->safe || b->safe;
    return NUMOE_OK;
}

static numoe_status add_lists(struct jinja *j, const struct jinja_value *a,
                              const struct jinja_value *b, struct jinja_value *out)
{
    size_t n = a->list->n + b->list->n;

    FORWARD_IF(jinja_new_list(j, a->kind, n, out));
    if (a->list->n > 0) {
        memcpy(out->list->item, a->list->item, a->list->n * sizeof(*a->list->item));
    }
    if (b->list->n > 0) {
        memcpy(out->list->item + a->list->n, b->list->item, b->list->n * sizeof(*b->list->item));
    }
    out->list->n = n;
    return NUMOE_OK;
}

static numoe_status repeat_text(struct jinja *j, struct jinja_text t, size_t times,
                                struct jinja_value *out)
{
    char *data;
    size_t n;

    if (__builtin_mul_overflow(t.n, times, &n)) {
        return jinja_fail_input(j, "text of more than %zu bytes", j->max_output_bytes);
    }
    FORWARD_IF(jinja_charge(j, t.n == 0 ? 0 : times));
    FORWARD_IF(jinja_new_text(j, n, &data));
    for (size_t at = 0; at < n; at += t.n) {
        memcpy(data + at, t.data, t.n);
    }
    *out = jinja_string(data, n);
    return NUMOE_OK;
}

static numoe_status repeat(struct jinja *j, const struct jinja_value *v, int64_t times,
                           struct jinja_value *out)
{
    size_t n = times < 0 ? 0 : (size_t)times;

    if (v->kind == JINJA_STRING) {
        return repeat_text(j, v->text, n, out);
    }
    FORWARD_IF(jinja_new_list(j, v->kind, 0, out));
    for (size_t i = 0; i < n && v->list->n > 0; i++) {
        FORWARD_IF(jinja_charge(j, v->list->n));
        for (size_t k = 0; k < v->list->n; k++) {
            FORWARD_IF(jinja_push(j, out->list, v->list->item[k]));
        }
    }
    return NUMOE_OK;
}

static bool is_repeatable(const struct jinja_value *v)
{
    return v->kind == JINJA_STRING || v->kind == JINJA_LIST || v->kind == JINJA_TUPLE;
}

numoe_status jinja_binary(struct jinja *j, unsigned op, const struct jinja_value *a,
                          const struct jinja_value *b, struct jinja_value *out)
{
    if (jinja_is_number(a) && jinja_is_number(b)) {
        return number_binary(j, op, a, b, out);
    }
    if (op == '+' && a->kind == b->kind && is_repeatable(a)) {
        return a->kind == JINJA_STRING ? add_texts(j, a, b, out) : add_lists(j, a, b, out);
    }
    if (op == '*' && is_repeatable(a) && jinja_is_int(b)) {
        return repeat(j, a, jinja_as_int(b), out);
    }
    if (op == '*' && jinja_is_int(a) && is_repeatable(b)) {
        return repeat(j, b, jinja_as_int(a), out);
    }
    if (op == '%' && a->kind == JINJA_STRING) {
        return jinja_format(j, a->text, b, out);
    }
    return fail_operands(j, op, a, b);
}

/* ------------------------------------------------------------------ slices */

struct range {
    int64_t start, step;
    size_t n;
};

static numoe_status slice_bound(struct jinja *j, const struct jinja_value *v, int64_t n,
                                int64_t step, int64_t otherwise, int64_t *out)
{
    int64_t low = step < 0 ? -1 : 0, high = step < 0 ? n - 1 : n;

    if (v->kind == JINJA_MISSING || v->kind == JINJA_NONE) {
        *out = otherwise;
        return NUMOE_OK;
    }
    if (v->kind == JINJA_UNDEFINED) {
        return jinja_fail_undefined(j, v);
    }
    if (!jinja_is_int(v)) {
        return jinja_fail_input(j, "slice indices must be integers or None, not %s",
                                jinja_type_name(v));
    }
    int64_t i = jinja_as_int(v);
    i += i < 0 ? n : 0;
    *out = MIN(MAX(i, low), high);
    return NUMOE_OK;
}

static numoe_status slice_range(struct jinja *j, const struct jinja_value bound[3], size_t n_item,
                                struct range *r)
{
    int64_t n = (int64_t)n_item, stop;

    r->step = 1;
    if (bound[2].kind != JINJA_MISSING && bound[2].kind != JINJA_NONE) {
        FORWARD_IF(slice_bound(j, &bound[2], 0, 1, 1, &stop)); /* for its type */
        r->step = MAX(jinja_as_int(&bound[2]), -INT64_MAX);
    }
    if (r->step == 0) {
        return jinja_fail_input(j, "slice step cannot be zero");
    }
    bool back = r->step < 0;
    FORWARD_IF(slice_bound(j, &bound[0], n, r->step, back ? n - 1 : 0, &r->start));
    FORWARD_IF(slice_bound(j, &bound[1], n, r->step, back ? -1 : n, &stop));
    int64_t span = back ? r->start - stop : stop - r->start;
    int64_t step = back ? -r->step : r->step;
    r->n = span <= 0 ? 0 : (size_t)((span - 1) / step + 1);
    return NUMOE_OK;
}

static numoe_status slice_list(struct jinja *j, const struct jinja_list *list,
                               const struct range *r, struct jinja_value *out)
{
    FORWARD_IF(jinja_new_list(j, out->kind, r->n, out));
    for (size_t i = 0; i < r->n; i++) {
        out->list->item[i] = list->item[r->start + (int64_t)i * r->step];
    }
    out->list->n = r->n;
    return NUMOE_OK;
}

static numoe_status slice_text(struct jinja *j, const struct jinja_value *a,
                               const struct jinja_value bound[3], struct jinja_value *out)
{
    const struct jinja_list *chars;
    struct range r;
    size_t start = j->out.len;

    FORWARD_IF(jinja_charge(j, a->text.n / 16));
    FORWARD_IF(slice_range(j, bound, jinja_n_char(a->text), &r));
    if (r.step == 1) {
        size_t from = jinja_char_at(a->text, (size_t)r.start);
        struct jinja_text rest = {a->text.data + from, a->text.n - from};
        *out = jinja_string(rest.data, jinja_char_at(rest, r.n));
        return NUMOE_OK;
    }
    FORWARD_IF(jinja_elements(j, a, &chars));
    for (size_t i = 0; i < r.n; i++) {
        FORWARD_IF(jinja_put(j, chars->item[r.start + (int64_t)i * r.step].text));
    }
    *out = jinja_string(NULL, 0);
    return jinja_take(j, start, &out->text);
}

numoe_status jinja_slice(struct jinja *j, const struct jinja_value *a,
                         const struct jinja_value bound[3], struct jinja_value *out)
{
    struct range r;

    if (a->kind == JINJA_UNDEFINED) {
        return jinja_fail_undefined(j, a);
    }
    if (a->kind == JINJA_STRING) {
        FORWARD_IF(slice_text(j, a, bound, out));
        out->safe = a->safe;
        return NUMOE_OK;
    }
    if (a->kind == JINJA_LIST || a->kind == JINJA_TUPLE || a->kind == JINJA_RANGE) {
        FORWARD_IF(slice_range(j, bound, a->list->n, &r));
        *out = (struct jinja_value){.kind = a->kind};
        return slice_list(j, a->list, &r, out);
    }
    return jinja_fail_input(j, "'%s' object has no slices", jinja_type_name(a));
}

/* ------------------------------------------------------------------ attributes, elements */

static bool loop_attr(const struct jinja_loop *loop, struct jinja_text name,
                      struct jinja_value *out)
{
    int64_t n = (int64_t)loop->list->n, i = (int64_t)loop->index0;
    const struct {
        const char *name;
        struct jinja_value value;
    } attrs[] = {
        {"index", jinja_int(i + 1)},    {"index0", jinja_int(i)},
        {"revindex", jinja_int(n - i)}, {"revindex0", jinja_int(n - i - 1)},
        {"first", jinja_bool(i == 0)},  {"last", jinja_bool(i == n - 1)},
        {"length", jinja_int(n)},       {"depth", jinja_int(1)},
        {"depth0", jinja_int(0)},
    };

    for (size_t k = 0; k < ARRAY_LEN(attrs); k++) {
        if (jinja_text_is(name, attrs[k].name)) {
            *out = attrs[k].value;
            return true;
        }
    }
    if (jinja_text_is(name, "previtem") && i > 0) {
        *out = loop->list->item[i - 1];
        return true;
    }
    if (jinja_text_is(name, "nextitem") && i + 1 < n) {
        *out = loop->list->item[i + 1];
        return true;
    }
    return false;
}

/* A method, bound. */
static numoe_status bind_method(struct jinja *j, const struct jinja_value *a,
                                struct jinja_text name, bool *found, struct jinja_value *out)
{
    const struct jinja_builtin *builtin;
    struct jinja_method *method;

    *found = jinja_find_method(a, name, &builtin);
    if (*found) {
        FORWARD_IF(jinja_new(j, 1, sizeof(*method), &method));
        *method = (struct jinja_method){*a, builtin, name};
        *out = (struct jinja_value){.kind = JINJA_METHOD, .method = method};
    }
    return NUMOE_OK;
}

/* What getattr() of Python finds. */
static numoe_status find_attr(struct jinja *j, const struct jinja_value *a, struct jinja_text name,
                              bool *found, struct jinja_value *out)
{
    const struct jinja_pair *pair =
        a->kind == JINJA_NAMESPACE ? jinja_dict_name(a->dict, name) : NULL;

    if (pair != NULL) {
        *out = pair->value;
        *found = true;
    } else if (a->kind == JINJA_LOOP && loop_attr(a->loop, name, out)) {
        *found = true;
    } else if (a->kind == JINJA_MACRO && jinja_text_is(name, "name")) {
        *out = jinja_text(a->macro->node->text);
        *found = true;
    } else {
        FORWARD_IF(bind_method(j, a, name, found, out));
    }
    return NUMOE_OK;
}

numoe_status jinja_get_attr(struct jinja *j, const struct jinja_value *a, struct jinja_text name,
                            struct jinja_value *out)
{
    struct jinja_pair *pair = NULL;
    bool found = false;

    if (a->kind == JINJA_UNDEFINED) {
        return jinja_fail_undefined(j, a);
    }
    FORWARD_IF(find_attr(j, a, name, &found, out));
    if (found) {
        return NUMOE_OK;
    }
    if (a->kind == JINJA_DICT) {
        FORWARD_IF(jinja_charge(j, a->dict->n / 8));
        pair = jinja_dict_name(a->dict, name);
    }
    *out = pair == NULL ? jinja_undefined(a->kind, name) : pair->value;
    return NUMOE_OK;
}

/* The element at an index, from the end where it is negative; false if there is none. */
static bool list_item(const struct jinja_value *a, int64_t i, struct jinja_value *out)
{
    if (a->kind == JINJA_STRING) {
        int64_t n = i < 0 ? (int64_t)jinja_n_char(a->text) : 0;
        size_t at = i + n < 0 ? a->text.n : jinja_char_at(a->text, (size_t)(i + n));
        if (at == a->text.n) {
            return false;
        }
        *out = jinja_string(a->text.data + at, jinja_char_bytes(a->text.data + at, a->text.n - at));
        return true;
    }
    int64_t n = (int64_t)a->list->n;
    i += i < 0 ? n : 0;
    if (i < 0 || i >= n) {
        return false;
    }
    *out = a->list->item[i];
    return true;
}

numoe_status jinja_get_item(struct jinja *j, const struct jinja_value *a,
                            const struct jinja_value *key, struct jinja_value *out)
{
    struct jinja_pair *pair = NULL;
    bool found = false;

    if (a->kind == JINJA_UNDEFINED) {
        return jinja_fail_undefined(j, a);
    }
    if (a->kind == JINJA_DICT && key->kind != JINJA_LIST && key->kind != JINJA_DICT) {
        FORWARD_IF(jinja_dict_find(j, a->dict, key, &pair));
        if (pair != NULL) {
            *out = pair->value;
            found = true;
        }
    } else if (jinja_is_int(key) &&
               (a->kind == JINJA_STRING || (a->kind >= JINJA_LIST && a->kind <= JINJA_RANGE))) {
        FORWARD_IF(jinja_charge(j, a->kind == JINJA_STRING ? a->text.n / 16 : 0));
        found = list_item(a, jinja_as_int(key), out);
    }
    if (!found && key->kind == JINJA_STRING) {
        FORWARD_IF(find_attr(j, a, key->text, &found, out));
    }
    if (!found) {
        *out =
            jinja_undefined(a->kind, key->kind == JINJA_STRING ? key->text : JINJA_TEXT("element"));
    }
    return NUMOE_OK;
}
