/* Methods of dictionaries, lists and loops in Jinja templates. Lists and dictionaries that came
 * with the variables can be changed too: the rendering has its own copies.
 */
#include "model/jinja-impl.h"

/* ------------------------------------------------------------------ dictionaries */

static struct jinja_value arg_or(const struct jinja_call *c, unsigned i, struct jinja_value other)
{
    return c->arg[i].kind == JINJA_MISSING ? other : c->arg[i];
}

static numoe_status dict_get(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    struct jinja_pair *pair;

    FORWARD_IF(jinja_dict_find(j, c->self.dict, &c->arg[0], &pair));
    *out = pair != NULL ? pair->value : arg_or(c, 1, jinja_none());
    return NUMOE_OK;
}

static numoe_status dict_keys(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    FORWARD_IF(jinja_new_list(j, JINJA_VIEW, c->self.dict->n, out));
    for (size_t i = 0; i < c->self.dict->n; i++) {
        FORWARD_IF(jinja_push(j, out->list, c->self.dict->pair[i].key));
    }
    return NUMOE_OK;
}

static numoe_status dict_values(struct jinja *j, const struct jinja_call *c,
                                struct jinja_value *out)
{
    FORWARD_IF(jinja_new_list(j, JINJA_VIEW, c->self.dict->n, out));
    for (size_t i = 0; i < c->self.dict->n; i++) {
        FORWARD_IF(jinja_push(j, out->list, c->self.dict->pair[i].value));
    }
    return NUMOE_OK;
}

static numoe_status dict_items(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    FORWARD_IF(jinja_new_list(j, JINJA_VIEW, c->self.dict->n, out));
    for (size_t i = 0; i < c->self.dict->n; i++) {
        struct jinja_value item;
        FORWARD_IF(jinja_pair(j, c->self.dict->pair[i].key, c->self.dict->pair[i].value, &item));
        FORWARD_IF(jinja_push(j, out->list, item));
    }
    return NUMOE_OK;
}

static numoe_status dict_pop(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    struct jinja_pair *pair;

    FORWARD_IF(jinja_dict_find(j, c->self.dict, &c->arg[0], &pair));
    if (pair == NULL && c->arg[1].kind == JINJA_MISSING) {
        return jinja_fail_input(j, "pop: there is no such key");
    }
    *out = pair != NULL ? pair->value : c->arg[1];
    if (pair != NULL) {
        FORWARD_IF(jinja_charge(j, c->self.dict->n / 8));
        jinja_dict_remove(c->self.dict, pair);
    }
    return NUMOE_OK;
}

static numoe_status dict_setdefault(struct jinja *j, const struct jinja_call *c,
                                    struct jinja_value *out)
{
    struct jinja_pair *pair;

    FORWARD_IF(jinja_dict_find(j, c->self.dict, &c->arg[0], &pair));
    *out = pair != NULL ? pair->value : arg_or(c, 1, jinja_none());
    return pair != NULL ? NUMOE_OK : jinja_dict_set(j, c->self.dict, c->arg[0], *out);
}

static numoe_status merge_dict(struct jinja *j, struct jinja_dict *into,
                               const struct jinja_dict *from)
{
    for (size_t i = 0; i < from->n; i++) {
        FORWARD_IF(jinja_dict_set(j, into, from->pair[i].key, from->pair[i].value));
    }
    return NUMOE_OK;
}

static numoe_status dict_update(struct jinja *j, const struct jinja_call *c,
                                struct jinja_value *out)
{
    for (size_t i = 0; i < c->args->pos.n; i++) {
        const struct jinja_value *from = &c->args->pos.item[i];
        if (from->kind != JINJA_DICT) {
            return jinja_fail_input(j, "update: takes a mapping, not '%s'", jinja_type_name(from));
        }
        FORWARD_IF(merge_dict(j, c->self.dict, from->dict));
    }
    *out = jinja_none();
    return merge_dict(j, c->self.dict, &c->args->named);
}

static numoe_status dict_copy(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    FORWARD_IF(jinja_new_dict(j, JINJA_DICT, out));
    return merge_dict(j, out->dict, c->self.dict);
}

static numoe_status dict_clear(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    (void)j;
    c->self.dict->n = 0;
    *out = jinja_none();
    return NUMOE_OK;
}

const struct jinja_builtin jinja_dict_methods[] = {
    {"clear", "", dict_clear},
    {"copy", "", dict_copy},
    {"get", "key / default", dict_get},
    {"items", "", dict_items},
    {"keys", "", dict_keys},
    {"pop", "key / default", dict_pop},
    {"setdefault", "key / default", dict_setdefault},
    {"update", NULL, dict_update},
    {"values", "", dict_values},
    {NULL, NULL, NULL},
};

/* ------------------------------------------------------------------ lists */

static numoe_status list_append(struct jinja *j, const struct jinja_call *c,
                                struct jinja_value *out)
{
    *out = jinja_none();
    return jinja_push(j, c->self.list, c->arg[0]);
}

static numoe_status list_extend(struct jinja *j, const struct jinja_call *c,
                                struct jinja_value *out)
{
    const struct jinja_list *from;

    FORWARD_IF(jinja_elements(j, &c->arg[0], &from));
    FORWARD_IF(jinja_charge(j, from->n));
    for (size_t i = 0, n = from->n; i < n; i++) { /* which may be the same list */
        FORWARD_IF(jinja_push(j, c->self.list, from->item[i]));
    }
    *out = jinja_none();
    return NUMOE_OK;
}

static numoe_status list_insert(struct jinja *j, const struct jinja_call *c,
                                struct jinja_value *out)
{
    struct jinja_list *list = c->self.list;
    int64_t i, n = (int64_t)list->n;

    FORWARD_IF(jinja_arg_int(j, c, 0, 0, &i));
    FORWARD_IF(jinja_charge(j, list->n / 8));
    i = i < 0 ? MAX(i + n, 0) : MIN(i, n);
    FORWARD_IF(jinja_push(j, list, c->arg[1]));
    memmove(&list->item[i + 1], &list->item[i], (size_t)(n - i) * sizeof(*list->item));
    list->item[i] = c->arg[1];
    *out = jinja_none();
    return NUMOE_OK;
}

static numoe_status remove_at(struct jinja *j, struct jinja_list *list, size_t i)
{
    FORWARD_IF(jinja_charge(j, list->n / 8));
    list->n--;
    memmove(&list->item[i], &list->item[i + 1], (list->n - i) * sizeof(*list->item));
    return NUMOE_OK;
}

static numoe_status list_pop(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    int64_t i, n = (int64_t)c->self.list->n;

    FORWARD_IF(jinja_arg_int(j, c, 0, -1, &i));
    i += i < 0 ? n : 0;
    if (i < 0 || i >= n) {
        return jinja_fail_input(j, "pop: index out of range");
    }
    *out = c->self.list->item[i];
    return remove_at(j, c->self.list, (size_t)i);
}

/* n where it is not there. */
static numoe_status find_element(struct jinja *j, const struct jinja_call *c, size_t *at)
{
    bool equal = false;

    for (*at = 0; *at < c->self.list->n; ++*at) {
        FORWARD_IF(jinja_equal(j, &c->self.list->item[*at], &c->arg[0], &equal));
        if (equal) {
            return NUMOE_OK;
        }
    }
    return NUMOE_OK;
}

static numoe_status list_index(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    size_t at;

    FORWARD_IF(find_element(j, c, &at));
    *out = jinja_int((int64_t)at);
    return at < c->self.list->n ? NUMOE_OK
                                : jinja_fail_input(j, "index: the element is not in the list");
}

static numoe_status list_remove(struct jinja *j, const struct jinja_call *c,
                                struct jinja_value *out)
{
    FORWARD_IF(list_index(j, c, out));
    FORWARD_IF(remove_at(j, c->self.list, (size_t)out->i));
    *out = jinja_none();
    return NUMOE_OK;
}

static numoe_status list_count(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    int64_t n = 0;

    for (size_t i = 0; i < c->self.list->n; i++) {
        bool equal;
        FORWARD_IF(jinja_equal(j, &c->self.list->item[i], &c->arg[0], &equal));
        n += equal;
    }
    *out = jinja_int(n);
    return NUMOE_OK;
}

static numoe_status list_reverse(struct jinja *j, const struct jinja_call *c,
                                 struct jinja_value *out)
{
    struct jinja_list *list = c->self.list;

    for (size_t a = 0, b = list->n; a + 1 < b; a++, b--) {
        struct jinja_value first = list->item[a];
        list->item[a] = list->item[b - 1];
        list->item[b - 1] = first;
    }
    *out = jinja_none();
    return jinja_charge(j, list->n / 8);
}

static numoe_status list_copy(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    const struct jinja_value all[3] = {{.kind = JINJA_MISSING}};
    return jinja_slice(j, &c->self, all, out);
}

static numoe_status list_clear(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    (void)j;
    c->self.list->n = 0;
    *out = jinja_none();
    return NUMOE_OK;
}

/* As the filter `sort`, but capital letters come first and the list itself is changed. */
static numoe_status list_sort(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    struct jinja_value args[2] = {arg_or(c, 0, jinja_bool(false)), jinja_bool(true)}, sorted;
    struct jinja_args sort = {.pos = {args, 2, 2}};

    FORWARD_IF(
        jinja_call_builtin(j, jinja_find_filter(JINJA_TEXT("sort")), &c->self, &sort, &sorted));
    *c->self.list = *sorted.list;
    *out = jinja_none();
    return NUMOE_OK;
}

const struct jinja_builtin jinja_list_methods[] = {
    {"append", "object", list_append},
    {"clear", "", list_clear},
    {"copy", "", list_copy},
    {"count", "value", list_count},
    {"extend", "iterable", list_extend},
    {"index", "value", list_index},
    {"insert", "index object", list_insert},
    {"pop", "/ index", list_pop},
    {"remove", "value", list_remove},
    {"reverse", "", list_reverse},
    {"sort", "/ reverse", list_sort},
    {NULL, NULL, NULL},
};

const struct jinja_builtin jinja_tuple_methods[] = {
    {"count", "value", list_count},
    {"index", "value", list_index},
    {NULL, NULL, NULL},
};

/* ------------------------------------------------------------------ loops */

static numoe_status loop_cycle(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    if (c->args->pos.n == 0) {
        return jinja_fail_input(j, "cycle: needs values");
    }
    *out = c->args->pos.item[c->self.loop->index0 % c->args->pos.n];
    return NUMOE_OK;
}

static numoe_status loop_changed(struct jinja *j, const struct jinja_call *c,
                                 struct jinja_value *out)
{
    struct jinja_loop *loop = c->self.loop;
    struct jinja_value now;
    bool equal = false;

    FORWARD_IF(jinja_new_list(j, JINJA_TUPLE, 0, &now));
    *now.list = c->args->pos;
    if (loop->has_changed) {
        FORWARD_IF(jinja_equal(j, &loop->changed, &now, &equal));
    }
    loop->has_changed = true;
    loop->changed = now;
    *out = jinja_bool(!equal);
    return NUMOE_OK;
}

const struct jinja_builtin jinja_loop_methods[] = {
    {"changed", NULL, loop_changed},
    {"cycle", NULL, loop_cycle},
    {NULL, NULL, NULL},
};
