/* Methods of texts in Jinja templates: those of Python's str.
 */
#include "model/jinja-impl.h"

/* ------------------------------------------------------------------ case and white space */

static numoe_status text_upper(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return jinja_restyle(j, c->self.text, JINJA_STYLE_UPPER, out);
}

static numoe_status text_lower(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return jinja_restyle(j, c->self.text, JINJA_STYLE_LOWER, out);
}

static numoe_status text_title(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return jinja_restyle(j, c->self.text, JINJA_STYLE_TITLE, out);
}

static numoe_status text_capitalize(struct jinja *j, const struct jinja_call *c,
                                    struct jinja_value *out)
{
    return jinja_restyle(j, c->self.text, JINJA_STYLE_CAPITAL, out);
}

static numoe_status text_swapcase(struct jinja *j, const struct jinja_call *c,
                                  struct jinja_value *out)
{
    struct jinja_text t = c->self.text;
    size_t start = j->out.len;
    struct jinja_value part;

    for (size_t i = 0, n; i < t.n; i += n) {
        n = jinja_char_bytes(t.data + i, t.n - i);
        bool capital = jinja_is_upper(jinja_code(t.data + i, n));
        enum jinja_style style = capital ? JINJA_STYLE_LOWER : JINJA_STYLE_UPPER;
        FORWARD_IF(jinja_restyle(j, (struct jinja_text){t.data + i, n}, style, &part));
        FORWARD_IF(jinja_put(j, part.text));
    }
    *out = jinja_string(NULL, 0);
    return jinja_take(j, start, &out->text);
}

static numoe_status strip(struct jinja *j, const struct jinja_call *c, bool left, bool right,
                          struct jinja_value *out)
{
    struct jinja_text chars;

    FORWARD_IF(jinja_arg_text(j, c, 0, JINJA_TEXT(""), &chars));
    return jinja_strip(j, c->self.text, jinja_has_arg(c, 0) ? &chars : NULL, left, right, out);
}

static numoe_status text_strip(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return strip(j, c, true, true, out);
}

static numoe_status text_lstrip(struct jinja *j, const struct jinja_call *c,
                                struct jinja_value *out)
{
    return strip(j, c, true, false, out);
}

static numoe_status text_rstrip(struct jinja *j, const struct jinja_call *c,
                                struct jinja_value *out)
{
    return strip(j, c, false, true, out);
}

/* width and fillchar: shares of the filling before and after. */
static numoe_status justify(struct jinja *j, const struct jinja_call *c, int before, int after,
                            struct jinja_value *out)
{
    size_t start = j->out.len;
    struct jinja_text fill;
    int64_t width, n;

    FORWARD_IF(jinja_arg_int(j, c, 0, 0, &width));
    FORWARD_IF(jinja_arg_text(j, c, 1, JINJA_TEXT(" "), &fill));
    FORWARD_IF(jinja_length(j, &c->self, &n));
    if (jinja_n_char(fill) != 1) {
        return jinja_fail_input(j, "%s: needs one character to fill with", c->builtin->name);
    }
    int64_t missing = width > n ? width - n : 0;
    int64_t left = before && after ? missing / 2 + (missing & width & 1) : before ? missing : 0;
    FORWARD_IF(jinja_charge(j, (size_t)missing));
    for (int64_t i = 0; i < left; i++) {
        FORWARD_IF(jinja_put(j, fill));
    }
    FORWARD_IF(jinja_put(j, c->self.text));
    for (int64_t i = left; i < missing; i++) {
        FORWARD_IF(jinja_put(j, fill));
    }
    *out = jinja_string(NULL, 0);
    return jinja_take(j, start, &out->text);
}

static numoe_status text_ljust(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return justify(j, c, 0, 1, out);
}

static numoe_status text_rjust(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return justify(j, c, 1, 0, out);
}

static numoe_status text_center(struct jinja *j, const struct jinja_call *c,
                                struct jinja_value *out)
{
    return justify(j, c, 1, 1, out);
}

static numoe_status text_zfill(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    struct jinja_text t = c->self.text;
    size_t start = j->out.len, sign = t.n > 0 && (t.data[0] == '-' || t.data[0] == '+');
    int64_t width, n;

    FORWARD_IF(jinja_arg_int(j, c, 0, 0, &width));
    FORWARD_IF(jinja_length(j, &c->self, &n));
    FORWARD_IF(jinja_put(j, (struct jinja_text){t.data, sign}));
    FORWARD_IF(jinja_charge(j, width > n ? (size_t)(width - n) : 0));
    for (; n < width; n++) {
        FORWARD_IF(jinja_put(j, JINJA_TEXT("0")));
    }
    FORWARD_IF(jinja_put(j, (struct jinja_text){t.data + sign, t.n - sign}));
    *out = jinja_string(NULL, 0);
    return jinja_take(j, start, &out->text);
}

/* ------------------------------------------------------------------ what a text is made of */

enum {
    IS_ALPHA = 1,
    IS_DIGIT = 2,
    IS_SPACE = 4,
    IS_UPPER = 8,
    IS_LOWER = 16,
    IS_NUMERIC = 32,
    IS_OTHER = 64
};

static unsigned classify(const char *s, size_t n)
{
    uint32_t c = jinja_code(s, n);

    return (jinja_is_alpha(c) ? IS_ALPHA : 0) | (jinja_is_digit(c) ? IS_DIGIT : 0) |
           (jinja_is_numeric(c) ? IS_NUMERIC : 0) | (jinja_is_space(c) ? IS_SPACE : 0) |
           (jinja_is_upper(c) ? IS_UPPER : 0) | (jinja_is_lower(c) ? IS_LOWER : 0) | IS_OTHER;
}

/* All characters are one of `each`, and one at least is one of `some`. */
static numoe_status made_of(struct jinja *j, const struct jinja_call *c, unsigned each,
                            unsigned some, unsigned never, struct jinja_value *out)
{
    struct jinja_text t = c->self.text;
    bool all = true, found = false;

    FORWARD_IF(jinja_charge(j, t.n / 4));
    for (size_t i = 0; i < t.n && all;) {
        size_t n = jinja_char_bytes(t.data + i, t.n - i);
        unsigned is = classify(t.data + i, n);
        all = (is & each) != 0 && (is & never) == 0;
        found = found || (is & some) != 0;
        i += n;
    }
    *out = jinja_bool(all && found);
    return NUMOE_OK;
}

#define TEXT_IS(name, each, some, never)                                                           \
    static numoe_status text_##name(struct jinja *j, const struct jinja_call *c,                   \
                                    struct jinja_value *out)                                       \
    {                                                                                              \
        return made_of(j, c, each, some, never, out);                                              \
    }

TEXT_IS(isalpha, IS_ALPHA, IS_ALPHA, 0)
TEXT_IS(isalnum, IS_ALPHA | IS_NUMERIC, IS_ALPHA | IS_NUMERIC, 0)
TEXT_IS(isdigit, IS_DIGIT, IS_DIGIT, 0)
TEXT_IS(isnumeric, IS_NUMERIC, IS_NUMERIC, 0)
TEXT_IS(isspace, IS_SPACE, IS_SPACE, 0)
TEXT_IS(isupper, IS_OTHER, IS_UPPER, IS_LOWER)
TEXT_IS(islower, IS_OTHER, IS_LOWER, IS_UPPER)

/* ------------------------------------------------------------------ searching */

/* The part of the text between the arguments start and end; *skipped characters come before it. */
static numoe_status search_range(struct jinja *j, const struct jinja_call *c, struct jinja_text *t,
                                 int64_t *skipped)
{
    const struct jinja_value bound[3] = {c->arg[1], c->arg[2]};
    struct jinja_value part;
    int64_t n;

    FORWARD_IF(jinja_slice(j, &c->self, bound, &part));
    FORWARD_IF(jinja_length(j, &c->self, &n));
    FORWARD_IF(jinja_arg_int(j, c, 1, 0, skipped));
    *skipped = *skipped < 0 ? MAX(*skipped + n, 0) : *skipped;
    *t = *skipped > n ? (struct jinja_text){0} : part.text;
    return jinja_charge(j, t->n / 16);
}

static bool begins(struct jinja_text t, struct jinja_text with, bool at_end)
{
    return with.n <= t.n &&
           (with.n == 0 || memcmp(t.data + (at_end ? t.n - with.n : 0), with.data, with.n) == 0);
}

/* One of several, where a tuple is given. */
static numoe_status begins_any(struct jinja *j, const struct jinja_call *c, bool at_end,
                               struct jinja_value *out)
{
    struct jinja_text t, with;
    int64_t skipped;
    bool found = false;

    FORWARD_IF(search_range(j, c, &t, &skipped));
    if (c->arg[0].kind != JINJA_TUPLE) {
        FORWARD_IF(jinja_arg_text(j, c, 0, JINJA_REQUIRED, &with));
        *out = jinja_bool(begins(t, with, at_end));
        return NUMOE_OK;
    }
    for (size_t i = 0; i < c->arg[0].list->n; i++) {
        struct jinja_call one = {.builtin = c->builtin, .arg = {c->arg[0].list->item[i]}};
        FORWARD_IF(jinja_arg_text(j, &one, 0, JINJA_REQUIRED, &with));
        found = found || begins(t, with, at_end);
    }
    *out = jinja_bool(found);
    return NUMOE_OK;
}

static numoe_status text_startswith(struct jinja *j, const struct jinja_call *c,
                                    struct jinja_value *out)
{
    return begins_any(j, c, false, out);
}

static numoe_status text_endswith(struct jinja *j, const struct jinja_call *c,
                                  struct jinja_value *out)
{
    return begins_any(j, c, true, out);
}

/* -1, or an error if `must`, where it is not there. */
static numoe_status find(struct jinja *j, const struct jinja_call *c, bool last, bool must,
                         struct jinja_value *out)
{
    struct jinja_text t, what;
    int64_t skipped;
    size_t at;

    FORWARD_IF(jinja_arg_text(j, c, 0, JINJA_REQUIRED, &what));
    FORWARD_IF(search_range(j, c, &t, &skipped));
    if (last) {
        FORWARD_IF(jinja_rfind_text(j, t, what, &at));
    } else {
        at = jinja_find_text(t, what, 0);
    }
    if (at == SIZE_MAX && must) {
        return jinja_fail_input(j, "%s: substring not found", c->builtin->name);
    }
    *out = jinja_int(
        at == SIZE_MAX ? -1 : skipped + (int64_t)jinja_n_char((struct jinja_text){t.data, at}));
    return NUMOE_OK;
}

static numoe_status text_find(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return find(j, c, false, false, out);
}

static numoe_status text_rfind(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return find(j, c, true, false, out);
}

static numoe_status text_index(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return find(j, c, false, true, out);
}

static numoe_status text_rindex(struct jinja *j, const struct jinja_call *c,
                                struct jinja_value *out)
{
    return find(j, c, true, true, out);
}

static numoe_status text_count(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    struct jinja_text t, what;
    int64_t skipped, n = 0;

    FORWARD_IF(jinja_arg_text(j, c, 0, JINJA_REQUIRED, &what));
    FORWARD_IF(search_range(j, c, &t, &skipped));
    if (what.n == 0) {
        *out = jinja_int((int64_t)jinja_n_char(t) + 1);
        return NUMOE_OK;
    }
    for (size_t at = 0; (at = jinja_find_text(t, what, at)) != SIZE_MAX; at += what.n) {
        n++;
    }
    *out = jinja_int(n);
    return jinja_charge(j, (size_t)n);
}

static numoe_status text_replace(struct jinja *j, const struct jinja_call *c,
                                 struct jinja_value *out)
{
    struct jinja_text from, to;
    int64_t count;

    FORWARD_IF(jinja_arg_text(j, c, 0, JINJA_REQUIRED, &from));
    FORWARD_IF(jinja_arg_text(j, c, 1, JINJA_REQUIRED, &to));
    FORWARD_IF(jinja_arg_int(j, c, 2, -1, &count));
    return jinja_replace(j, c->self.text, from, to, count, out);
}

static numoe_status text_removeprefix(struct jinja *j, const struct jinja_call *c,
                                      struct jinja_value *out)
{
    struct jinja_text t = c->self.text, with;

    FORWARD_IF(jinja_arg_text(j, c, 0, JINJA_REQUIRED, &with));
    size_t n = begins(t, with, false) ? with.n : 0;
    *out = jinja_string(t.data + n, t.n - n);
    return NUMOE_OK;
}

static numoe_status text_removesuffix(struct jinja *j, const struct jinja_call *c,
                                      struct jinja_value *out)
{
    struct jinja_text t = c->self.text, with;

    FORWARD_IF(jinja_arg_text(j, c, 0, JINJA_REQUIRED, &with));
    *out = jinja_string(t.data, t.n - (begins(t, with, true) ? with.n : 0));
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ splitting and joining */

/* At runs of white space; what is left after max splits is not split. From the right the same is
 * done with the text's end. */
static numoe_status split_space(struct jinja *j, struct jinja_text t, int64_t max, bool right,
                                struct jinja_list *list)
{
    for (t = jinja_strip_space(t, !right, right); t.n > 0;
         t = jinja_strip_space(t, !right, right)) {
        size_t n = 0;
        FORWARD_IF(jinja_charge(j, 1));
        if (max-- == 0) {
            return jinja_push(j, list, jinja_text(t));
        }
        if (right) {
            for (n = t.n;
                 n > 0 && jinja_strip_space((struct jinja_text){t.data, n}, false, true).n == n;
                 n--) {
            }
            FORWARD_IF(jinja_push(j, list, jinja_string(t.data + n, t.n - n)));
            t.n = n;
        } else {
            while (n < t.n && !jinja_is_space(jinja_code(t.data + n, t.n - n))) {
                n += jinja_char_bytes(t.data + n, t.n - n);
            }
            FORWARD_IF(jinja_push(j, list, jinja_string(t.data, n)));
            t = (struct jinja_text){t.data + n, t.n - n};
        }
    }
    return NUMOE_OK;
}

static numoe_status split_at(struct jinja *j, struct jinja_text t, struct jinja_text sep,
                             int64_t max, bool right, struct jinja_list *list)
{
    while (max-- != 0) {
        size_t at;
        if (right) {
            FORWARD_IF(jinja_rfind_text(j, t, sep, &at));
        } else {
            at = jinja_find_text(t, sep, 0);
        }
        FORWARD_IF(jinja_charge(j, 1));
        if (at == SIZE_MAX) {
            break;
        }
        struct jinja_text after = {t.data + at + sep.n, t.n - at - sep.n};
        FORWARD_IF(jinja_push(j, list, right ? jinja_text(after) : jinja_string(t.data, at)));
        t = right ? (struct jinja_text){t.data, at} : after;
    }
    return jinja_push(j, list, jinja_text(t));
}

static numoe_status split(struct jinja *j, const struct jinja_call *c, bool right,
                          struct jinja_value *out)
{
    struct jinja_text sep;
    int64_t max;

    FORWARD_IF(jinja_arg_text(j, c, 0, JINJA_TEXT(""), &sep));
    FORWARD_IF(jinja_arg_int(j, c, 1, -1, &max));
    FORWARD_IF(jinja_charge(j, c->self.text.n / 8));
    if (jinja_has_arg(c, 0) && sep.n == 0) {
        return jinja_fail_input(j, "%s: empty separator", c->builtin->name);
    }
    FORWARD_IF(jinja_new_list(j, JINJA_LIST, 0, out));
    if (jinja_has_arg(c, 0)) {
        FORWARD_IF(split_at(j, c->self.text, sep, max, right, out->list));
    } else {
        FORWARD_IF(split_space(j, c->self.text, max, right, out->list));
    }
    for (size_t a = 0, b = out->list->n; right && a + 1 < b; a++, b--) {
        struct jinja_value first = out->list->item[a];
        out->list->item[a] = out->list->item[b - 1];
        out->list->item[b - 1] = first;
    }
    return NUMOE_OK;
}

static numoe_status text_split(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return split(j, c, false, out);
}

static numoe_status text_rsplit(struct jinja *j, const struct jinja_call *c,
                                struct jinja_value *out)
{
    return split(j, c, true, out);
}

static numoe_status text_splitlines(struct jinja *j, const struct jinja_call *c,
                                    struct jinja_value *out)
{
    return jinja_splitlines(j, c->self.text, jinja_true(&c->arg[0]), out);
}

static numoe_status partition(struct jinja *j, const struct jinja_call *c, bool right,
                              struct jinja_value *out)
{
    struct jinja_text t = c->self.text, sep, part[3] = {{0}};
    size_t at;

    FORWARD_IF(jinja_arg_text(j, c, 0, JINJA_REQUIRED, &sep));
    FORWARD_IF(jinja_charge(j, t.n / 16));
    if (sep.n == 0) {
        return jinja_fail_input(j, "%s: empty separator", c->builtin->name);
    }
    if (right) {
        FORWARD_IF(jinja_rfind_text(j, t, sep, &at));
    } else {
        at = jinja_find_text(t, sep, 0);
    }
    part[right ? 2 : 0] = t;
    if (at != SIZE_MAX) {
        part[0] = (struct jinja_text){t.data, at};
        part[1] = sep;
        part[2] = (struct jinja_text){t.data + at + sep.n, t.n - at - sep.n};
    }
    FORWARD_IF(jinja_new_list(j, JINJA_TUPLE, 3, out));
    for (size_t i = 0; i < 3; i++) {
        FORWARD_IF(jinja_push(j, out->list, jinja_text(part[i])));
    }
    return NUMOE_OK;
}

static numoe_status text_partition(struct jinja *j, const struct jinja_call *c,
                                   struct jinja_value *out)
{
    return partition(j, c, false, out);
}

static numoe_status text_rpartition(struct jinja *j, const struct jinja_call *c,
                                    struct jinja_value *out)
{
    return partition(j, c, true, out);
}

static numoe_status text_join(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    const struct jinja_list *list;
    size_t start = j->out.len;

    FORWARD_IF(jinja_elements(j, &c->arg[0], &list));
    for (size_t i = 0; i < list->n; i++) {
        if (list->item[i].kind != JINJA_STRING) {
            return jinja_fail_input(j, "join: element %zu is of type '%s', not a string", i,
                                    jinja_type_name(&list->item[i]));
        }
        FORWARD_IF(jinja_charge(j, 1));
        FORWARD_IF(jinja_put(j, i == 0 ? JINJA_TEXT("") : c->self.text));
        FORWARD_IF(jinja_put(j, list->item[i].text));
    }
    *out = jinja_string(NULL, 0);
    return jinja_take(j, start, &out->text);
}

static numoe_status text_format(struct jinja *j, const struct jinja_call *c,
                                struct jinja_value *out)
{
    return jinja_format_fields(j, c->self.text, c->args, out);
}

const struct jinja_builtin jinja_text_methods[] = {
    {"capitalize", "", text_capitalize},
    {"center", "width / fillchar", text_center},
    {"count", "sub / start end", text_count},
    {"endswith", "suffix / start end", text_endswith},
    {"find", "sub / start end", text_find},
    {"format", NULL, text_format},
    {"index", "sub / start end", text_index},
    {"isalnum", "", text_isalnum},
    {"isalpha", "", text_isalpha},
    {"isdigit", "", text_isdigit},
    {"islower", "", text_islower},
    {"isnumeric", "", text_isnumeric},
    {"isspace", "", text_isspace},
    {"isupper", "", text_isupper},
    {"join", "iterable", text_join},
    {"ljust", "width / fillchar", text_ljust},
    {"lower", "", text_lower},
    {"lstrip", "/ chars", text_lstrip},
    {"partition", "sep", text_partition},
    {"removeprefix", "prefix", text_removeprefix},
    {"removesuffix", "suffix", text_removesuffix},
    {"replace", "old new / count", text_replace},
    {"rfind", "sub / start end", text_rfind},
    {"rindex", "sub / start end", text_rindex},
    {"rjust", "width / fillchar", text_rjust},
    {"rpartition", "sep", text_rpartition},
    {"rsplit", "/ sep maxsplit", text_rsplit},
    {"rstrip", "/ chars", text_rstrip},
    {"split", "/ sep maxsplit", text_split},
    {"splitlines", "/ keepends", text_splitlines},
    {"startswith", "prefix / start end", text_startswith},
    {"strip", "/ chars", text_strip},
    {"swapcase", "", text_swapcase},
    {"title", "", text_title},
    {"upper", "", text_upper},
    {"zfill", "width", text_zfill},
    {NULL, NULL, NULL},
};
