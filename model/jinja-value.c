/* Values of Jinja templates and the arenas that they live in; equality, order and membership as
 * Python has them; JSON to values.
 */
#include <stdarg.h>
#include <stdio.h>

#include "model/jinja-impl.h"

/* ------------------------------------------------------------------ memory */

enum { BLOCK_BYTES = 65536, ALIGN_BYTES = 16 };

struct jinja_block {
    struct jinja_block *before;
    size_t used, cap;
    _Alignas(ALIGN_BYTES) char data[];
};

static numoe_status add_block(struct jinja_arena *a, size_t bytes, numoe_error *err)
{
    struct jinja_block *block;
    size_t cap = MAX(bytes, (size_t)BLOCK_BYTES);

    if (bytes > a->max_bytes - MIN(a->used_bytes, a->max_bytes)) {
        return status_fail(err, NUMOE_E_INPUT, "needs more than %zu MiB of memory",
                           a->max_bytes >> 20);
    }
    FORWARD_IF(mem_new(&block, sizeof(*block) + cap, 1, "template", err));
    block->before = a->last;
    block->cap = cap;
    a->last = block;
    a->used_bytes += cap;
    return NUMOE_OK;
}

numoe_status jinja_alloc(struct jinja_arena *a, size_t n, size_t elem_bytes, void *out,
                         numoe_error *err)
{
    size_t bytes;

    if (__builtin_mul_overflow(n, elem_bytes, &bytes) || bytes > a->max_bytes) {
        return status_fail(err, NUMOE_E_INPUT, "needs more than %zu MiB of memory",
                           a->max_bytes >> 20);
    }
    bytes = round_up(bytes, ALIGN_BYTES);
    if (a->last == NULL || a->last->cap - a->last->used < bytes) {
        FORWARD_IF(add_block(a, bytes, err));
    }
    void *p = a->last->data + a->last->used;
    a->last->used += bytes;
    memcpy(out, &p, sizeof(p));
    return NUMOE_OK;
}

void jinja_arena_fini(struct jinja_arena *a)
{
    while (a->last != NULL) {
        struct jinja_block *before = a->last->before;
        mem_free(a->last);
        a->last = before;
    }
}

numoe_status jinja_new(struct jinja *j, size_t n, size_t elem_bytes, void *out)
{
    numoe_status status = jinja_alloc(&j->arena, n, elem_bytes, out, j->err);
    return status == NUMOE_OK ? status : status_context(j->err, status, "line %u", j->line);
}

/* ------------------------------------------------------------------ errors and limits */

numoe_status jinja_fail(struct jinja *j, numoe_status status, const char *fmt, ...)
{
    char text[400];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    return status_fail(j->err, status, "line %u: %s", j->line, text);
}

numoe_status jinja_charge(struct jinja *j, size_t n)
{
    if (n > j->max_steps - j->steps) {
        return jinja_fail_input(j, "takes more than %llu steps", (unsigned long long)j->max_steps);
    }
    j->steps += n;
    return NUMOE_OK;
}

numoe_status jinja_enter(struct jinja *j)
{
    if (j->depth == JINJA_MAX_DEPTH) {
        return jinja_fail_input(j, "recursion is more than %d levels deep", JINJA_MAX_DEPTH);
    }
    j->depth++;
    return NUMOE_OK;
}

const char *jinja_type_name(const struct jinja_value *v)
{
    static const char *const names[] = {
        [JINJA_MISSING] = "Undefined",
        [JINJA_UNDEFINED] = "Undefined",
        [JINJA_NONE] = "NoneType",
        [JINJA_BOOL] = "bool",
        [JINJA_INT] = "int",
        [JINJA_FLOAT] = "float",
        [JINJA_STRING] = "str",
        [JINJA_LIST] = "list",
        [JINJA_TUPLE] = "tuple",
        [JINJA_RANGE] = "range",
        [JINJA_VIEW] = "dict view",
        [JINJA_GENERATOR] = "generator",
        [JINJA_DICT] = "dict",
        [JINJA_NAMESPACE] = "Namespace",
        [JINJA_LOOP] = "LoopContext",
        [JINJA_MACRO] = "Macro",
        [JINJA_METHOD] = "builtin method",
        [JINJA_FUNCTION] = "function",
    };
    return names[v->kind];
}

/* ------------------------------------------------------------------ new ones */

numoe_status jinja_new_text(struct jinja *j, size_t n, char **out)
{
    FORWARD_IF(jinja_charge(j, n / 64));
    return jinja_new(j, n, 1, out);
}

numoe_status jinja_new_list(struct jinja *j, enum jinja_kind kind, size_t n,
                            struct jinja_value *out)
{
    struct jinja_list *list;

    FORWARD_IF(jinja_charge(j, n / 16 + 1));
    FORWARD_IF(jinja_new(j, 1, sizeof(*list), &list));
    FORWARD_IF(jinja_new(j, n, sizeof(*list->item), &list->item));
    list->cap = n;
    *out = (struct jinja_value){.kind = kind, .list = list};
    return NUMOE_OK;
}

numoe_status jinja_push(struct jinja *j, struct jinja_list *list, struct jinja_value v)
{
    if (list->n == list->cap) {
        struct jinja_value *grown;
        size_t cap = MAX(list->cap * 2, (size_t)4);
        FORWARD_IF(jinja_new(j, cap, sizeof(*grown), &grown));
        if (list->n > 0) {
            memcpy(grown, list->item, list->n * sizeof(*grown));
        }
        list->item = grown;
        list->cap = cap;
    }
    list->item[list->n++] = v;
    return NUMOE_OK;
}

numoe_status jinja_new_dict(struct jinja *j, enum jinja_kind kind, struct jinja_value *out)
{
    struct jinja_dict *dict;

    FORWARD_IF(jinja_new(j, 1, sizeof(*dict), &dict));
    *out = (struct jinja_value){.kind = kind, .dict = dict};
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ truth, equality, order */

bool jinja_true(const struct jinja_value *v)
{
    switch (v->kind) {
    case JINJA_MISSING:
    case JINJA_UNDEFINED:
    case JINJA_NONE:
        return false;
    case JINJA_BOOL:
        return v->b;
    case JINJA_INT:
        return v->i != 0;
    case JINJA_FLOAT:
        return v->f != 0;
    case JINJA_STRING:
        return v->text.n > 0;
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_RANGE:
    case JINJA_VIEW:
        return v->list->n > 0;
    case JINJA_DICT:
        return v->dict->n > 0;
    default:
        return true;
    }
}

static bool equal_texts(struct jinja_text a, struct jinja_text b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.data, b.data, a.n) == 0);
}

static numoe_status equal_lists(struct jinja *j, const struct jinja_list *a,
                                const struct jinja_list *b, bool *equal)
{
    *equal = a->n == b->n;
    for (size_t i = 0; i < a->n && *equal; i++) {
        FORWARD_IF(jinja_equal(j, &a->item[i], &b->item[i], equal));
    }
    return NUMOE_OK;
}

static numoe_status equal_dicts(struct jinja *j, const struct jinja_dict *a,
                                const struct jinja_dict *b, bool *equal)
{
    *equal = a->n == b->n;
    for (size_t i = 0; i < a->n && *equal; i++) {
        struct jinja_pair *pair;
        FORWARD_IF(jinja_dict_find(j, b, &a->pair[i].key, &pair));
        *equal = pair != NULL;
        if (pair != NULL) {
            FORWARD_IF(jinja_equal(j, &a->pair[i].value, &pair->value, equal));
        }
    }
    return NUMOE_OK;
}

/* Of the same kind, neither numbers nor texts. */
static numoe_status equal_objects(struct jinja *j, const struct jinja_value *a,
                                  const struct jinja_value *b, bool *equal)
{
    switch (a->kind) {
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_RANGE:
        return equal_lists(j, a->list, b->list, equal);
    case JINJA_DICT:
        return equal_dicts(j, a->dict, b->dict, equal);
    case JINJA_UNDEFINED:
    case JINJA_NONE:
        *equal = true;
        break;
    case JINJA_METHOD:
        *equal = a->method == b->method;
        break;
    default: /* all others are the same object or not */
        *equal = a->list == b->list;
        break;
    }
    return NUMOE_OK;
}

numoe_status jinja_equal(struct jinja *j, const struct jinja_value *a, const struct jinja_value *b,
                         bool *equal)
{
    FORWARD_IF(jinja_charge(j, 1));
    if (jinja_is_number(a) && jinja_is_number(b)) {
        *equal = jinja_is_int(a) && jinja_is_int(b) ? jinja_as_int(a) == jinja_as_int(b)
                                                    : jinja_as_float(a) == jinja_as_float(b);
    } else if (a->kind != b->kind) {
        *equal = false;
    } else if (a->kind == JINJA_STRING) {
        FORWARD_IF(jinja_charge(j, a->text.n == b->text.n ? a->text.n / 64 : 0));
        *equal = equal_texts(a->text, b->text);
    } else {
        FORWARD_IF(jinja_enter(j));
        FORWARD_IF(equal_objects(j, a, b, equal));
        jinja_leave(j);
    }
    return NUMOE_OK;
}

static int order_texts(struct jinja_text a, struct jinja_text b)
{
    size_t n = MIN(a.n, b.n);
    int order = n == 0 ? 0 : memcmp(a.data, b.data, n);
    return order != 0 ? order : (a.n > b.n) - (a.n < b.n);
}

static numoe_status order_lists(struct jinja *j, const struct jinja_list *a,
                                const struct jinja_list *b, int *order)
{
    size_t n = MIN(a->n, b->n);

    for (size_t i = 0; i < n; i++) {
        bool equal;
        FORWARD_IF(jinja_equal(j, &a->item[i], &b->item[i], &equal));
        if (!equal) {
            return jinja_order(j, &a->item[i], &b->item[i], order);
        }
    }
    *order = (a->n > b->n) - (a->n < b->n);
    return NUMOE_OK;
}

numoe_status jinja_order(struct jinja *j, const struct jinja_value *a, const struct jinja_value *b,
                         int *order)
{
    FORWARD_IF(jinja_charge(j, 1));
    if (jinja_is_int(a) && jinja_is_int(b)) {
        int64_t x = jinja_as_int(a), y = jinja_as_int(b);
        *order = (x > y) - (x < y);
    } else if (jinja_is_number(a) && jinja_is_number(b)) {
        double x = jinja_as_float(a), y = jinja_as_float(b);
        *order = (x > y) - (x < y);
    } else if (a->kind == JINJA_STRING && b->kind == JINJA_STRING) {
        FORWARD_IF(jinja_charge(j, MIN(a->text.n, b->text.n) / 64));
        *order = order_texts(a->text, b->text);
    } else if (a->kind == b->kind && (a->kind == JINJA_LIST || a->kind == JINJA_TUPLE)) {
        FORWARD_IF(jinja_enter(j));
        FORWARD_IF(order_lists(j, a->list, b->list, order));
        jinja_leave(j);
    } else if (a->kind == JINJA_UNDEFINED || b->kind == JINJA_UNDEFINED) {
        return jinja_fail_undefined(j, a->kind == JINJA_UNDEFINED ? a : b);
    } else {
        return jinja_fail_input(j, "'%s' and '%s' have no order", jinja_type_name(a),
                                jinja_type_name(b));
    }
    return NUMOE_OK;
}

static numoe_status text_contains(struct jinja *j, struct jinja_text text,
                                  const struct jinja_value *part, bool *found)
{
    if (part->kind == JINJA_UNDEFINED) {
        return jinja_fail_undefined(j, part);
    }
    if (part->kind != JINJA_STRING) {
        return jinja_fail_input(j, "'in <string>' requires string as left operand, not %s",
                                jinja_type_name(part));
    }
    FORWARD_IF(jinja_charge(j, text.n / 64));
    *found = jinja_find_text(text, part->text, 0) != SIZE_MAX;
    return NUMOE_OK;
}

numoe_status jinja_contains(struct jinja *j, const struct jinja_value *b,
                            const struct jinja_value *a, bool *found)
{
    const struct jinja_list *list;

    *found = false;
    if (b->kind == JINJA_STRING) {
        return text_contains(j, b->text, a, found);
    }
    if (b->kind == JINJA_DICT) {
        struct jinja_pair *pair;
        FORWARD_IF(jinja_dict_find(j, b->dict, a, &pair));
        *found = pair != NULL;
        return NUMOE_OK;
    }
    FORWARD_IF(jinja_elements(j, b, &list));
    for (size_t i = 0; i < list->n && !*found; i++) {
        FORWARD_IF(jinja_equal(j, a, &list->item[i], found));
    }
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ dictionaries */

struct jinja_pair *jinja_dict_name(const struct jinja_dict *d, struct jinja_text name)
{
    for (size_t i = 0; i < d->n; i++) {
        if (d->pair[i].key.kind == JINJA_STRING && equal_texts(d->pair[i].key.text, name)) {
            return &d->pair[i];
        }
    }
    return NULL;
}

static bool is_hashable(const struct jinja_value *v)
{
    return v->kind != JINJA_LIST && v->kind != JINJA_DICT && v->kind != JINJA_VIEW &&
           v->kind != JINJA_MISSING;
}

numoe_status jinja_dict_find(struct jinja *j, const struct jinja_dict *d,
                             const struct jinja_value *key, struct jinja_pair **pair)
{
    *pair = NULL;
    FORWARD_IF(jinja_charge(j, d->n / 8 + 1));
    if (!is_hashable(key)) {
        return jinja_fail_input(j, "a key of a dictionary cannot be of type '%s'",
                                jinja_type_name(key));
    }
    if (key->kind == JINJA_STRING) {
        *pair = jinja_dict_name(d, key->text);
        return NUMOE_OK;
    }
    for (size_t i = 0; i < d->n; i++) {
        bool equal;
        FORWARD_IF(jinja_equal(j, &d->pair[i].key, key, &equal));
        if (equal) {
            *pair = &d->pair[i];
            return NUMOE_OK;
        }
    }
    return NUMOE_OK;
}

static numoe_status dict_add(struct jinja *j, struct jinja_dict *d, struct jinja_value key,
                             struct jinja_value value)
{
    if (d->n == d->cap) {
        struct jinja_pair *grown;
        size_t cap = MAX(d->cap * 2, (size_t)4);
        FORWARD_IF(jinja_new(j, cap, sizeof(*grown), &grown));
        if (d->n > 0) {
            memcpy(grown, d->pair, d->n * sizeof(*grown));
        }
        d->pair = grown;
        d->cap = cap;
    }
    d->pair[d->n++] = (struct jinja_pair){key, value};
    return NUMOE_OK;
}

numoe_status jinja_dict_set(struct jinja *j, struct jinja_dict *d, struct jinja_value key,
                            struct jinja_value value)
{
    struct jinja_pair *pair;

    FORWARD_IF(jinja_dict_find(j, d, &key, &pair));
    if (pair == NULL) {
        return dict_add(j, d, key, value);
    }
    pair->value = value;
    return NUMOE_OK;
}

void jinja_dict_remove(struct jinja_dict *d, struct jinja_pair *pair)
{
    size_t i = (size_t)(pair - d->pair);

    d->n--;
    memmove(pair, pair + 1, (d->n - i) * sizeof(*pair));
}

/* ------------------------------------------------------------------ what a loop goes through */

static numoe_status list_characters(struct jinja *j, struct jinja_text t, struct jinja_list *list)
{
    for (size_t i = 0; i < t.n;) {
        size_t n = jinja_char_bytes(t.data + i, t.n - i);
        FORWARD_IF(jinja_push(j, list, jinja_string(t.data + i, n)));
        i += n;
    }
    return NUMOE_OK;
}

numoe_status jinja_elements(struct jinja *j, const struct jinja_value *v,
                            const struct jinja_list **list)
{
    struct jinja_value copy;

    if (v->kind >= JINJA_LIST && v->kind <= JINJA_VIEW) {
        *list = v->list;
        return NUMOE_OK;
    }
    if (v->kind != JINJA_GENERATOR && v->kind != JINJA_STRING && v->kind != JINJA_DICT &&
        v->kind != JINJA_UNDEFINED) {
        return jinja_fail_input(j, "'%s' object is not iterable", jinja_type_name(v));
    }
    FORWARD_IF(jinja_new_list(j, JINJA_LIST, 0, &copy));
    *list = copy.list;
    if (v->kind == JINJA_GENERATOR) {
        *copy.list = *v->list;
        *v->list = (struct jinja_list){0};
    } else if (v->kind == JINJA_STRING) {
        return list_characters(j, v->text, copy.list);
    } else if (v->kind == JINJA_DICT) {
        for (size_t i = 0; i < v->dict->n; i++) {
            FORWARD_IF(jinja_push(j, copy.list, v->dict->pair[i].key));
        }
    }
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ JSON */

static numoe_status text_from_json(struct jinja *j, const char *data, size_t n,
                                   struct jinja_value *out)
{
    char *copy;

    *out = jinja_string(data, n);
    if (j->copies_json) {
        FORWARD_IF(jinja_new_text(j, n, &copy));
        memcpy(copy, data, n);
        out->text.data = copy;
    }
    return NUMOE_OK;
}

static numoe_status list_from_json(struct jinja *j, const json_t *json, struct jinja_value *out)
{
    FORWARD_IF(jinja_new_list(j, JINJA_LIST, json_array_size(json), out));
    for (size_t i = 0; i < json_array_size(json); i++) {
        struct jinja_value item;
        FORWARD_IF(jinja_from_json(j, json_array_get(json, i), &item));
        FORWARD_IF(jinja_push(j, out->list, item));
    }
    return NUMOE_OK;
}

/* Keys of JSON are different already. */
static numoe_status dict_from_json(struct jinja *j, const json_t *json, struct jinja_value *out)
{
    const char *key;
    json_t *member;

    FORWARD_IF(jinja_new_dict(j, JINJA_DICT, out));
    json_object_foreach((json_t *)json, key, member)
    {
        struct jinja_value name, value;
        FORWARD_IF(text_from_json(j, key, strlen(key), &name));
        FORWARD_IF(jinja_from_json(j, member, &value));
        FORWARD_IF(dict_add(j, out->dict, name, value));
    }
    return NUMOE_OK;
}

numoe_status jinja_from_json(struct jinja *j, const json_t *json, struct jinja_value *out)
{
    numoe_status status = NUMOE_OK;

    FORWARD_IF(jinja_enter(j));
    FORWARD_IF(jinja_charge(j, 1));
    switch (json_typeof(json)) {
    case JSON_OBJECT:
        status = dict_from_json(j, json, out);
        break;
    case JSON_ARRAY:
        status = list_from_json(j, json, out);
        break;
    case JSON_STRING:
        status = text_from_json(j, json_string_value(json), json_string_length(json), out);
        break;
    case JSON_INTEGER:
        *out = jinja_int(json_integer_value(json));
        break;
    case JSON_REAL:
        *out = jinja_float(json_real_value(json));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = jinja_bool(json_is_true(json));
        break;
    default:
        *out = jinja_none();
        break;
    }
    jinja_leave(j);
    return status;
}
