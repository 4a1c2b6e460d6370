/* Filters of Jinja templates that take lists and dictionaries. What Python computes only when it is
 * asked for (map, select ...) is computed at once here, and can be gone through once as there.
 */
#include "model/jinja-impl.h"

/* ------------------------------------------------------------------ elements */

numoe_status jinja_length(struct jinja *j, const struct jinja_value *v, int64_t *n)
{
    switch (v->kind) {
    case JINJA_UNDEFINED:
        *n = 0;
        return NUMOE_OK;
    case JINJA_STRING:
        FORWARD_IF(jinja_charge(j, v->text.n / 16));
        *n = (int64_t)jinja_n_char(v->text);
        return NUMOE_OK;
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_RANGE:
    case JINJA_VIEW:
        *n = (int64_t)v->list->n;
        return NUMOE_OK;
    case JINJA_DICT:
        *n = (int64_t)v->dict->n;
        return NUMOE_OK;
    case JINJA_LOOP:
        *n = (int64_t)v->loop->list->n;
        return NUMOE_OK;
    default:
        return jinja_fail_input(j, "object of type '%s' has no length", jinja_type_name(v));
    }
}

static numoe_status filter_length(struct jinja *j, const struct jinja_call *c,
                                  struct jinja_value *out)
{
    int64_t n;

    FORWARD_IF(jinja_length(j, &c->self, &n));
    *out = jinja_int(n);
    return NUMOE_OK;
}

static numoe_status filter_list(struct jinja *j, const struct jinja_call *c,
                                struct jinja_value *out)
{
    const struct jinja_list *list;

    FORWARD_IF(jinja_elements(j, &c->self, &list));
    FORWARD_IF(jinja_new_list(j, JINJA_LIST, list->n, out));
    for (size_t i = 0; i < list->n; i++) {
        FORWARD_IF(jinja_push(j, out->list, list->item[i]));
    }
    return NUMOE_OK;
}

static numoe_status filter_first(struct jinja *j, const struct jinja_call *c,
                                 struct jinja_value *out)
{
    const struct jinja_list *list;

    FORWARD_IF(jinja_elements(j, &c->self, &list));
    *out = list->n > 0 ? list->item[0] : jinja_undefined(JINJA_MISSING, JINJA_TEXT("first"));
    return NUMOE_OK;
}

static numoe_status filter_last(struct jinja *j, const struct jinja_call *c,
                                struct jinja_value *out)
{
    const struct jinja_list *list;

    FORWARD_IF(jinja_elements(j, &c->self, &list));
    *out =
        list->n > 0 ? list->item[list->n - 1] : jinja_undefined(JINJA_MISSING, JINJA_TEXT("last"));
    return NUMOE_OK;
}

static numoe_status filter_reverse(struct jinja *j, const struct jinja_call *c,
                                   struct jinja_value *out)
{
    const struct jinja_value back[3] = {[2] = jinja_int(-1)};
    const struct jinja_list *list;

    if (c->self.kind == JINJA_STRING) {
        return jinja_slice(j, &c->self, back, out);
    }
    FORWARD_IF(jinja_elements(j, &c->self, &list));
    FORWARD_IF(jinja_new_list(j, JINJA_GENERATOR, list->n, out));
    for (size_t i = list->n; i-- > 0;) {
        FORWARD_IF(jinja_push(j, out->list, list->item[i]));
    }
    return NUMOE_OK;
}

static numoe_status filter_items(struct jinja *j, const struct jinja_call *c,
                                 struct jinja_value *out)
{
    FORWARD_IF(jinja_new_list(j, JINJA_GENERATOR, 0, out));
    if (c->self.kind == JINJA_UNDEFINED) {
        return NUMOE_OK;
    }
    if (c->self.kind != JINJA_DICT) {
        return jinja_fail_input(j, "items: a mapping is needed, not '%s'",
                                jinja_type_name(&c->self));
    }
    for (size_t i = 0; i < c->self.dict->n; i++) {
        const struct jinja_pair *p = &c->self.dict->pair[i];
        struct jinja_value item;
        FORWARD_IF(jinja_pair(j, p->key, p->value, &item));
        FORWARD_IF(jinja_push(j, out->list, item));
    }
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ attributes by path */

static numoe_status get_step(struct jinja *j, struct jinja_value *v, struct jinja_text name)
{
    struct jinja_value key = jinja_text(name), index = jinja_parse_number(name, 10);
    bool digits = name.n > 0;

    for (size_t i = 0; i < name.n; i++) {
        digits = digits && name.data[i] >= '0' && name.data[i] <= '9';
    }
    if (digits && index.kind == JINJA_INT) {
        key = index;
    }
    return jinja_get_item(j, v, &key, v);
}

numoe_status jinja_get_path(struct jinja *j, const struct jinja_value *v,
                            const struct jinja_value *path, const struct jinja_value *none,
                            struct jinja_value *out)
{
    struct jinja_text rest = path->text;
    struct jinja_value found = *v;

    if (path->kind != JINJA_STRING) {
        FORWARD_IF(jinja_get_item(j, v, path, &found));
        rest.n = 0;
    }
    while (rest.n > 0) {
        size_t dot = jinja_find_text(rest, JINJA_TEXT("."), 0);
        struct jinja_text name = {rest.data, MIN(dot, rest.n)};
        FORWARD_IF(get_step(j, &found, name));
        if (found.kind == JINJA_UNDEFINED && none->kind != JINJA_MISSING) {
            break;
        }
        rest = dot == SIZE_MAX ? JINJA_TEXT("")
                               : (struct jinja_text){rest.data + dot + 1, rest.n - dot - 1};
    }
    *out = found.kind == JINJA_UNDEFINED && none->kind != JINJA_MISSING ? *none : found;
    return NUMOE_OK;
}

static numoe_status filter_join(struct jinja *j, const struct jinja_call *c,
                                struct jinja_value *out)
{
    const struct jinja_value missing = {.kind = JINJA_MISSING};
    const struct jinja_list *list;
    struct jinja_text between = JINJA_TEXT("");
    size_t start;

    if (c->arg[0].kind != JINJA_MISSING) {
        FORWARD_IF(jinja_str(j, &c->arg[0], &between));
    }
    FORWARD_IF(jinja_elements(j, &c->self, &list));
    start = j->out.len;
    for (size_t i = 0; i < list->n; i++) {
        struct jinja_value v = list->item[i];
        if (jinja_has_arg(c, 1)) {
            FORWARD_IF(jinja_get_path(j, &v, &c->arg[1], &missing, &v));
        }
        FORWARD_IF(jinja_charge(j, 1));
        FORWARD_IF(jinja_put(j, i == 0 ? JINJA_TEXT("") : between));
        FORWARD_IF(jinja_write(j, &v));
    }
    *out = jinja_string(NULL, 0);
    return jinja_take(j, start, &out->text);
}

/* ------------------------------------------------------------------ map, select */

/* What is false has no elements, whatever it is. */
static numoe_status elements_if_true(struct jinja *j, const struct jinja_value *v,
                                     const struct jinja_list **list)
{
    const struct jinja_value nothing = jinja_string("", 0);
    return jinja_elements(j, jinja_true(v) ? v : &nothing, list);
}

/* The arguments from position `from` on, for the filter or test that is named before them. */
static struct jinja_args rest_args(const struct jinja_args *args, size_t from)
{
    struct jinja_args rest = *args;

    rest.pos.item += from;
    rest.pos.n -= from;
    rest.pos.cap = rest.pos.n;
    return rest;
}

static numoe_status named_builtin(struct jinja *j, const struct jinja_call *c, size_t i, bool test,
                                  const struct jinja_builtin **out)
{
    const struct jinja_value *name = &c->args->pos.item[i];

    *out = NULL;
    if (name->kind == JINJA_STRING) {
        *out = test ? jinja_find_test(name->text) : jinja_find_filter(name->text);
    }
    return *out != NULL ? NUMOE_OK
                        : jinja_fail(j, NUMOE_E_SUPPORT, "%s: the %s '%.*s' is not supported",
                                     c->builtin->name, test ? "test" : "filter",
                                     name->kind == JINJA_STRING ? (int)MIN(name->text.n, 60u) : 1,
                                     name->kind == JINJA_STRING ? name->text.data : "?");
}

static numoe_status map_attribute(struct jinja *j, const struct jinja_call *c,
                                  const struct jinja_value *path, const struct jinja_list *list,
                                  struct jinja_value *out)
{
    const struct jinja_pair *pair = jinja_dict_name(&c->args->named, JINJA_TEXT("default"));
    const struct jinja_value none =
        pair != NULL ? pair->value : (struct jinja_value){.kind = JINJA_MISSING};

    for (size_t i = 0; i < list->n; i++) {
        struct jinja_value v;
        FORWARD_IF(jinja_get_path(j, &list->item[i], path, &none, &v));
        FORWARD_IF(jinja_push(j, out->list, v));
    }
    return NUMOE_OK;
}

static numoe_status filter_map(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    const struct jinja_pair *attribute = jinja_dict_name(&c->args->named, JINJA_TEXT("attribute"));
    const struct jinja_builtin *filter;
    const struct jinja_list *list;

    FORWARD_IF(elements_if_true(j, &c->self, &list));
    FORWARD_IF(jinja_new_list(j, JINJA_GENERATOR, list->n, out));
    if (c->args->pos.n == 0 && attribute != NULL) {
        return map_attribute(j, c, &attribute->value, list, out);
    }
    if (c->args->pos.n == 0) {
        return jinja_fail_input(j, "map: needs a filter's name or attribute=");
    }
    FORWARD_IF(named_builtin(j, c, 0, false, &filter));
    FORWARD_IF(jinja_enter(j)); /* map('map', ...) */
    for (size_t i = 0; i < list->n; i++) {
        struct jinja_args args = rest_args(c->args, 1);
        struct jinja_value v;
        FORWARD_IF(jinja_charge(j, 1));
        FORWARD_IF(jinja_call_builtin(j, filter, &list->item[i], &args, &v));
        FORWARD_IF(jinja_push(j, out->list, v));
    }
    jinja_leave(j);
    return NUMOE_OK;
}

/* select, reject (by_attr false), selectattr, rejectattr. */
static numoe_status filter_by_test(struct jinja *j, const struct jinja_call *c, bool by_attr,
                                   bool wanted, struct jinja_value *out)
{
    const struct jinja_value missing = {.kind = JINJA_MISSING};
    const struct jinja_builtin *test = NULL;
    const struct jinja_list *list;

    if (c->args->pos.n < by_attr) {
        return jinja_fail_input(j, "%s: needs an attribute's name", c->builtin->name);
    }
    if (c->args->pos.n > by_attr) {
        FORWARD_IF(named_builtin(j, c, by_attr, true, &test));
    }
    FORWARD_IF(elements_if_true(j, &c->self, &list));
    FORWARD_IF(jinja_new_list(j, JINJA_GENERATOR, 0, out));
    for (size_t i = 0; i < list->n; i++) {
        struct jinja_value v = list->item[i], holds;
        FORWARD_IF(jinja_charge(j, 1));
        if (by_attr) {
            FORWARD_IF(jinja_get_path(j, &v, &c->args->pos.item[0], &missing, &v));
        }
        holds = jinja_bool(jinja_true(&v));
        if (test != NULL) {
            struct jinja_args args = rest_args(c->args, by_attr + 1u);
            FORWARD_IF(jinja_call_builtin(j, test, &v, &args, &holds));
        }
        if (holds.b == wanted) {
            FORWARD_IF(jinja_push(j, out->list, list->item[i]));
        }
    }
    return NUMOE_OK;
}

static numoe_status filter_select(struct jinja *j, const struct jinja_call *c,
                                  struct jinja_value *out)
{
    return filter_by_test(j, c, false, true, out);
}

static numoe_status filter_reject(struct jinja *j, const struct jinja_call *c,
                                  struct jinja_value *out)
{
    return filter_by_test(j, c, false, false, out);
}

static numoe_status filter_selectattr(struct jinja *j, const struct jinja_call *c,
                                      struct jinja_value *out)
{
    return filter_by_test(j, c, true, true, out);
}

static numoe_status filter_rejectattr(struct jinja *j, const struct jinja_call *c,
                                      struct jinja_value *out)
{
    return filter_by_test(j, c, true, false, out);
}

/* ------------------------------------------------------------------ order */

/* What elements are compared by. */
struct ordering {
    const struct jinja_value *path; /* MISSING or None: the element itself */
    bool case_sensitive, reverse;
};

/* Paths may be several with commas between them: then the key is a list. */
static numoe_status sort_key(struct jinja *j, const struct ordering *o, const struct jinja_value *v,
                             struct jinja_value *key)
{
    const struct jinja_value missing = {.kind = JINJA_MISSING};
    bool has_path = o->path->kind != JINJA_MISSING && o->path->kind != JINJA_NONE;
    struct jinja_text rest =
        has_path && o->path->kind == JINJA_STRING ? o->path->text : JINJA_TEXT("");

    FORWARD_IF(jinja_new_list(j, JINJA_LIST, 1, key));
    for (bool more = true; more;) {
        size_t comma = jinja_find_text(rest, JINJA_TEXT(","), 0);
        struct jinja_value part = *v, path = jinja_string(rest.data, MIN(comma, rest.n));
        if (has_path) {
            const struct jinja_value *which = o->path->kind == JINJA_STRING ? &path : o->path;
            FORWARD_IF(jinja_get_path(j, v, which, &missing, &part));
        }
        if (part.kind == JINJA_STRING && !o->case_sensitive) {
            FORWARD_IF(jinja_restyle(j, part.text, JINJA_STYLE_LOWER, &part));
        }
        FORWARD_IF(jinja_push(j, key->list, part));
        more = comma != SIZE_MAX;
        rest = more ? (struct jinja_text){rest.data + comma + 1, rest.n - comma - 1} : rest;
    }
    return NUMOE_OK;
}

struct keyed {
    struct jinja_value key, value;
};

/* Merges the sorted halves [0, half) and [half, n). */
static numoe_status merge(struct jinja *j, struct keyed *item, struct keyed *spare, size_t half,
                          size_t n, bool reverse)
{
    size_t a = 0, b = half;

    memcpy(spare, item, n * sizeof(*item));
    for (size_t i = 0; i < n; i++) {
        int order = a == half ? 1 : -1;
        if (a < half && b < n) {
            FORWARD_IF(jinja_order(j, &spare[a].key, &spare[b].key, &order));
            order = reverse ? -order : order;
        }
        item[i] = order <= 0 ? spare[a++] : spare[b++];
    }
    return NUMOE_OK;
}

static numoe_status sort_keyed(struct jinja *j, struct keyed *item, struct keyed *spare, size_t n,
                               bool reverse)
{
    if (n < 2) {
        return NUMOE_OK;
    }
    FORWARD_IF(sort_keyed(j, item, spare, n / 2, reverse));
    FORWARD_IF(sort_keyed(j, item + n / 2, spare, n - n / 2, reverse));
    return merge(j, item, spare, n / 2, n, reverse);
}

static numoe_status sort_list(struct jinja *j, const struct jinja_list *list,
                              const struct ordering *o, struct jinja_value *out)
{
    struct keyed *item, *spare;

    FORWARD_IF(jinja_new(j, list->n, sizeof(*item), &item));
    FORWARD_IF(jinja_new(j, list->n, sizeof(*spare), &spare));
    for (size_t i = 0; i < list->n; i++) {
        item[i].value = list->item[i];
        FORWARD_IF(sort_key(j, o, &list->item[i], &item[i].key));
    }
    FORWARD_IF(sort_keyed(j, item, spare, list->n, o->reverse));
    FORWARD_IF(jinja_new_list(j, JINJA_LIST, list->n, out));
    for (size_t i = 0; i < list->n; i++) {
        FORWARD_IF(jinja_push(j, out->list, item[i].value));
    }
    return NUMOE_OK;
}

static numoe_status filter_sort(struct jinja *j, const struct jinja_call *c,
                                struct jinja_value *out)
{
    const struct ordering o = {.path = &c->arg[2],
                               .case_sensitive = jinja_true(&c->arg[1]),
                               .reverse = jinja_true(&c->arg[0])};
    const struct jinja_list *list;

    FORWARD_IF(jinja_elements(j, &c->self, &list));
    return sort_list(j, list, &o, out);
}

static numoe_status filter_dictsort(struct jinja *j, const struct jinja_call *c,
                                    struct jinja_value *out)
{
    struct jinja_value index = jinja_int(0), items;
    struct jinja_text by;

    FORWARD_IF(jinja_arg_text(j, c, 1, JINJA_TEXT("key"), &by));
    if (jinja_text_is(by, "value")) {
        index = jinja_int(1);
    } else if (!jinja_text_is(by, "key")) {
        return jinja_fail_input(j, "dictsort: by must be 'key' or 'value'");
    }
    const struct ordering o = {.path = &index,
                               .case_sensitive = jinja_true(&c->arg[0]),
                               .reverse = jinja_true(&c->arg[2])};
    if (c->self.kind != JINJA_DICT) {
        return jinja_fail_input(j, "dictsort: a mapping is needed, not '%s'",
                                jinja_type_name(&c->self));
    }
    FORWARD_IF(filter_items(j, c, &items));
    return sort_list(j, items.list, &o, out);
}

/* The least or the greatest, the first one of equal ones. */
static numoe_status extreme(struct jinja *j, const struct jinja_call *c, int sign,
                            struct jinja_value *out)
{
    const struct ordering o = {.path = &c->arg[1], .case_sensitive = jinja_true(&c->arg[0])};
    const struct jinja_list *list;
    struct jinja_value best, key;

    FORWARD_IF(jinja_elements(j, &c->self, &list));
    *out = jinja_undefined(JINJA_MISSING, JINJA_TEXT("item"));
    for (size_t i = 0; i < list->n; i++) {
        int order = sign;
        FORWARD_IF(sort_key(j, &o, &list->item[i], &key));
        if (i > 0) {
            FORWARD_IF(jinja_order(j, &key, &best, &order));
        }
        if (order * sign > 0) {
            best = key;
            *out = list->item[i];
        }
    }
    return NUMOE_OK;
}

static numoe_status filter_min(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return extreme(j, c, -1, out);
}

static numoe_status filter_max(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return extreme(j, c, 1, out);
}

static numoe_status filter_unique(struct jinja *j, const struct jinja_call *c,
                                  struct jinja_value *out)
{
    const struct ordering o = {.path = &c->arg[1], .case_sensitive = jinja_true(&c->arg[0])};
    const struct jinja_list *list;
    struct jinja_value seen, key;
    struct jinja_pair *pair;

    FORWARD_IF(jinja_elements(j, &c->self, &list));
    FORWARD_IF(jinja_new_dict(j, JINJA_DICT, &seen));
    FORWARD_IF(jinja_new_list(j, JINJA_GENERATOR, 0, out));
    for (size_t i = 0; i < list->n; i++) {
        FORWARD_IF(sort_key(j, &o, &list->item[i], &key));
        FORWARD_IF(jinja_dict_find(j, seen.dict, &key.list->item[0], &pair));
        if (pair == NULL) {
            FORWARD_IF(jinja_dict_set(j, seen.dict, key.list->item[0], jinja_none()));
            FORWARD_IF(jinja_push(j, out->list, list->item[i]));
        }
    }
    return NUMOE_OK;
}

static numoe_status filter_sum(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    const struct jinja_value missing = {.kind = JINJA_MISSING};
    const struct jinja_list *list;
    struct jinja_value sum = c->arg[1].kind == JINJA_MISSING ? jinja_int(0) : c->arg[1];

    FORWARD_IF(jinja_elements(j, &c->self, &list));
    for (size_t i = 0; i < list->n; i++) {
        struct jinja_value v = list->item[i], before = sum;
        if (jinja_has_arg(c, 0)) {
            FORWARD_IF(jinja_get_path(j, &v, &c->arg[0], &missing, &v));
        }
        FORWARD_IF(jinja_charge(j, 1));
        FORWARD_IF(jinja_binary(j, '+', &before, &v, &sum));
    }
    *out = sum;
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ lists of lists */

static numoe_status filter_batch(struct jinja *j, const struct jinja_call *c,
                                 struct jinja_value *out)
{
    const struct jinja_list *list;
    struct jinja_value part = {.kind = JINJA_MISSING};
    int64_t n;

    FORWARD_IF(jinja_arg_int(j, c, 0, 0, &n));
    if (n < 1 || n > JINJA_MAX_RANGE) {
        return jinja_fail_input(j, "batch: length must be 1 to %d", JINJA_MAX_RANGE);
    }
    FORWARD_IF(jinja_elements(j, &c->self, &list));
    FORWARD_IF(jinja_new_list(j, JINJA_GENERATOR, 0, out));
    for (size_t i = 0; i < list->n; i++) {
        if (i % (size_t)n == 0) {
            FORWARD_IF(jinja_new_list(j, JINJA_LIST, 0, &part));
            FORWARD_IF(jinja_push(j, out->list, part));
        }
        FORWARD_IF(jinja_push(j, part.list, list->item[i]));
    }
    while (list->n > 0 && jinja_has_arg(c, 1) && part.list->n < (size_t)n) {
        FORWARD_IF(jinja_push(j, part.list, c->arg[1]));
    }
    return NUMOE_OK;
}

/* n lists, the first ones longer by one where it does not come out even. */
static numoe_status filter_slice(struct jinja *j, const struct jinja_call *c,
                                 struct jinja_value *out)
{
    const struct jinja_list *list;
    int64_t n;
    size_t at = 0;

    FORWARD_IF(jinja_arg_int(j, c, 0, 0, &n));
    if (n < 1 || n > JINJA_MAX_RANGE) {
        return jinja_fail_input(j, "slice: number must be 1 to %d", JINJA_MAX_RANGE);
    }
    FORWARD_IF(jinja_elements(j, &c->self, &list));
    FORWARD_IF(jinja_new_list(j, JINJA_GENERATOR, (size_t)n, out));
    for (size_t i = 0; i < (size_t)n; i++) {
        size_t more = list->n % (size_t)n, len = list->n / (size_t)n + (i < more);
        struct jinja_value part;
        FORWARD_IF(jinja_new_list(j, JINJA_LIST, len + 1, &part));
        for (size_t k = 0; k < len; k++) {
            FORWARD_IF(jinja_push(j, part.list, list->item[at++]));
        }
        if (jinja_has_arg(c, 1) && i >= more) {
            FORWARD_IF(jinja_push(j, part.list, c->arg[1]));
        }
        FORWARD_IF(jinja_push(j, out->list, part));
    }
    return NUMOE_OK;
}

const struct jinja_builtin jinja_list_filters[] = {
    {"batch", "linecount / fill_with", filter_batch},
    {"count", "", filter_length},
    {"dictsort", "/ case_sensitive by reverse", filter_dictsort},
    {"first", "", filter_first},
    {"items", "", filter_items},
    {"join", "/ d attribute", filter_join},
    {"last", "", filter_last},
    {"length", "", filter_length},
    {"list", "", filter_list},
    {"map", NULL, filter_map},
    {"max", "/ case_sensitive attribute", filter_max},
    {"min", "/ case_sensitive attribute", filter_min},
    {"reject", NULL, filter_reject},
    {"rejectattr", NULL, filter_rejectattr},
    {"reverse", "", filter_reverse},
    {"select", NULL, filter_select},
    {"selectattr", NULL, filter_selectattr},
    {"slice", "slices / fill_with", filter_slice},
    {"sort", "/ reverse case_sensitive attribute", filter_sort},
    {"sum", "/ attribute start", filter_sum},
    {"unique", "/ case_sensitive attribute", filter_unique},
    {NULL, NULL, NULL},
};
