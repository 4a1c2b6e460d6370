/* What filters, tests, methods and functions of Jinja templates share: the tables that they are
 * found in by name, how they read their arguments. And the functions themselves, which are few.
 */
#include <time.h>

#include "model/jinja-impl.h"

/* ------------------------------------------------------------------ arguments */

numoe_status jinja_arg_int(struct jinja *j, const struct jinja_call *c, unsigned i, int64_t none,
                           int64_t *out)
{
    if (!jinja_has_arg(c, i)) {
        *out = none;
        return NUMOE_OK;
    }
    if (!jinja_is_int(&c->arg[i])) {
        return jinja_fail_input(j, "%s: an argument is of type '%s', not an integer",
                                c->builtin->name, jinja_type_name(&c->arg[i]));
    }
    *out = jinja_as_int(&c->arg[i]);
    return NUMOE_OK;
}

numoe_status jinja_arg_text(struct jinja *j, const struct jinja_call *c, unsigned i,
                            struct jinja_text none, struct jinja_text *out)
{
    if (!jinja_has_arg(c, i) && none.data != NULL) {
        *out = none;
        return NUMOE_OK;
    }
    if (c->arg[i].kind == JINJA_UNDEFINED) {
        return jinja_fail_undefined(j, &c->arg[i]);
    }
    if (c->arg[i].kind != JINJA_STRING) {
        return jinja_fail_input(j, "%s: an argument is of type '%s', not a string",
                                c->builtin->name, jinja_type_name(&c->arg[i]));
    }
    *out = c->arg[i].text;
    return NUMOE_OK;
}

numoe_status jinja_pair(struct jinja *j, struct jinja_value a, struct jinja_value b,
                        struct jinja_value *out)
{
    FORWARD_IF(jinja_new_list(j, JINJA_TUPLE, 2, out));
    FORWARD_IF(jinja_push(j, out->list, a));
    return jinja_push(j, out->list, b);
}

/* ------------------------------------------------------------------ functions */

static numoe_status run_raise_exception(struct jinja *j, const struct jinja_call *c,
                                        struct jinja_value *out)
{
    struct jinja_text text;

    (void)out;
    FORWARD_IF(jinja_str(j, &c->arg[0], &text));
    return jinja_fail_input(j, "%.*s", (int)MIN(text.n, 390u), text.data);
}

static numoe_status run_strftime_now(struct jinja *j, const struct jinja_call *c,
                                     struct jinja_value *out)
{
    time_t now = j->now_seconds != 0 ? (time_t)j->now_seconds : time(NULL);
    size_t start = j->out.len;
    char form[256] = " ", text[1024]; /* not empty, so that an empty result means no room */
    struct jinja_text t;
    struct tm tm;

    FORWARD_IF(jinja_arg_text(j, c, 0, JINJA_REQUIRED, &t));
    if (t.n + 2 > sizeof(form)) {
        return jinja_fail_input(j, "strftime_now: format of more than %zu bytes", sizeof(form) - 2);
    }
    memcpy(form + 1, t.data, t.n);
    size_t n = localtime_r(&now, &tm) == NULL ? 0 : strftime(text, sizeof(text), form, &tm);
    if (n == 0) {
        return jinja_fail_input(j, "strftime_now: the text is too long");
    }
    FORWARD_IF(jinja_put(j, (struct jinja_text){text + 1, n - 1}));
    *out = jinja_string(NULL, 0);
    return jinja_take(j, start, &out->text);
}

static numoe_status run_range(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    int64_t a, b, step;

    FORWARD_IF(jinja_arg_int(j, c, 0, 0, &a));
    FORWARD_IF(jinja_arg_int(j, c, 1, 0, &b));
    FORWARD_IF(jinja_arg_int(j, c, 2, 1, &step));
    if (!jinja_has_arg(c, 1)) {
        b = a;
        a = 0;
    }
    if (step == 0) {
        return jinja_fail_input(j, "range: step must not be zero");
    }
    double span = ((double)b - (double)a) / (double)step;
    if (span > JINJA_MAX_RANGE) {
        return jinja_fail_input(j, "range: more than %d items", JINJA_MAX_RANGE);
    }
    FORWARD_IF(jinja_new_list(j, JINJA_RANGE, 0, out));
    for (int64_t i = a; step > 0 ? i < b : i > b;) {
        FORWARD_IF(jinja_charge(j, 1));
        FORWARD_IF(jinja_push(j, out->list, jinja_int(i)));
        if (__builtin_add_overflow(i, step, &i)) {
            break;
        }
    }
    return NUMOE_OK;
}

/* dict() and namespace(): a mapping first, then names. */
static numoe_status new_mapping(struct jinja *j, const struct jinja_call *c, enum jinja_kind kind,
                                struct jinja_value *out)
{
    struct jinja_dict from = {0};

    if (c->args->pos.n > 1 || (c->args->pos.n == 1 && c->args->pos.item[0].kind != JINJA_DICT)) {
        return jinja_fail_input(j, "%s: takes names, or one mapping", c->builtin->name);
    }
    FORWARD_IF(jinja_new_dict(j, kind, out));
    if (c->args->pos.n == 1) {
        from = *c->args->pos.item[0].dict;
    }
    for (size_t i = 0; i < from.n; i++) {
        FORWARD_IF(jinja_dict_set(j, out->dict, from.pair[i].key, from.pair[i].value));
    }
    for (size_t i = 0; i < c->args->named.n; i++) {
        const struct jinja_pair *p = &c->args->named.pair[i];
        FORWARD_IF(jinja_dict_set(j, out->dict, p->key, p->value));
    }
    return NUMOE_OK;
}

static numoe_status run_dict(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return new_mapping(j, c, JINJA_DICT, out);
}

static numoe_status run_namespace(struct jinja *j, const struct jinja_call *c,
                                  struct jinja_value *out)
{
    return new_mapping(j, c, JINJA_NAMESPACE, out);
}

static const struct jinja_builtin functions[] = {
    {"dict", NULL, run_dict},
    {"namespace", NULL, run_namespace},
    {"raise_exception", "message", run_raise_exception},
    {"range", "start / stop step", run_range},
    {"strftime_now", "format", run_strftime_now},
    {NULL, NULL, NULL},
};

/* ------------------------------------------------------------------ by name */

static const struct jinja_builtin *find(const struct jinja_builtin *table, struct jinja_text name)
{
    for (; table->name != NULL; table++) {
        if (jinja_text_is(name, table->name)) {
            return table;
        }
    }
    return NULL;
}

const struct jinja_builtin *jinja_find_filter(struct jinja_text name)
{
    const struct jinja_builtin *found = find(jinja_text_filters, name);
    return found != NULL ? found : find(jinja_list_filters, name);
}

const struct jinja_builtin *jinja_find_test(struct jinja_text name)
{
    return find(jinja_tests, name);
}

const struct jinja_builtin *jinja_find_function(struct jinja_text name)
{
    return find(functions, name);
}

static bool is_one_of(const char *words, struct jinja_text name)
{
    for (; *words != '\0'; words += strspn(words, " ")) {
        size_t n = strcspn(words, " ");
        if (n == name.n && memcmp(words, name.data, n) == 0) {
            return true;
        }
        words += n;
    }
    return false;
}

bool jinja_find_method(const struct jinja_value *v, struct jinja_text name,
                       const struct jinja_builtin **builtin)
{
    static const char text_others[] = "casefold encode expandtabs format_map isascii isdecimal "
                                      "isidentifier isprintable istitle maketrans "
                                      "translate",
                      dict_others[] = "fromkeys popitem";
    const struct jinja_builtin *table = NULL;
    const char *others = "";

    if (v->kind == JINJA_STRING) {
        table = jinja_text_methods;
        others = text_others;
    } else if (v->kind == JINJA_DICT) {
        table = jinja_dict_methods;
        others = dict_others;
    } else if (v->kind == JINJA_LIST) {
        table = jinja_list_methods;
    } else if (v->kind == JINJA_TUPLE || v->kind == JINJA_RANGE) {
        table = jinja_tuple_methods;
    } else if (v->kind == JINJA_LOOP) {
        table = jinja_loop_methods;
    }
    *builtin = table == NULL ? NULL : find(table, name);
    return *builtin != NULL || is_one_of(others, name);
}
