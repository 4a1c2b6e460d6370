/* Values of Jinja templates as text: Python's str(), repr() and json.dumps(). All of it is appended
 * to the output of the rendering; what is not output is taken off its end again.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memmem, memrchr */
#endif
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/utf8.h"
#include "model/jinja-impl.h"

numoe_status jinja_put(struct jinja *j, struct jinja_text text)
{
    FORWARD_IF(jinja_charge(j, text.n / 64));
    if (text.n > j->max_output_bytes - MIN(j->out.len, j->max_output_bytes)) {
        return jinja_fail_input(j, "text of more than %zu bytes", j->max_output_bytes);
    }
    return strbuf_append(&j->out, text.data, text.n, j->err);
}

numoe_status jinja_take(struct jinja *j, size_t start, struct jinja_text *out)
{
    size_t n = j->out.len - start;
    char *copy;

    FORWARD_IF(jinja_new_text(j, n, &copy));
    if (n > 0) {
        memcpy(copy, j->out.data + start, n);
        j->out.len = start;
        j->out.data[start] = '\0';
    }
    *out = (struct jinja_text){copy, n};
    return NUMOE_OK;
}

static numoe_status put(struct jinja *j, const char *text)
{
    return jinja_put(j, (struct jinja_text){text, strlen(text)});
}

/* ------------------------------------------------------------------ searching */

size_t jinja_find_text(struct jinja_text t, struct jinja_text what, size_t from)
{
    if (from > t.n || what.n > t.n - from) {
        return SIZE_MAX;
    }
    if (what.n == 0) {
        return from;
    }
    const char *found = memmem(t.data + from, t.n - from, what.data, what.n);
    return found == NULL ? SIZE_MAX : (size_t)(found - t.data);
}

numoe_status jinja_rfind_text(struct jinja *j, struct jinja_text t, struct jinja_text what,
                              size_t *at)
{
    size_t n = t.n;

    *at = what.n == 0 ? t.n : SIZE_MAX;
    while (*at == SIZE_MAX && n >= what.n) {
        const char *last = memrchr(t.data, what.data[0], n - what.n + 1);
        FORWARD_IF(jinja_charge(j, what.n / 64 + 1));
        if (last == NULL) {
            break;
        }
        if (memcmp(last, what.data, what.n) == 0) {
            *at = (size_t)(last - t.data);
        }
        n = (size_t)(last - t.data) + what.n - 1;
    }
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ numbers */

/* The shortest digits that are this number again, as "d.ddde+xx". */
static void shortest(double f, char text[JINJA_FLOAT_BYTES])
{
    for (int digits = 0; digits < 17; digits++) {
        snprintf(text, JINJA_FLOAT_BYTES, "%.*e", digits, f);
        if (strtod(text, NULL) == f) {
            return;
        }
    }
}

size_t jinja_float_text(double f, char text[JINJA_FLOAT_BYTES])
{
    char form[JINJA_FLOAT_BYTES], digits[20];
    int n = 0;

    if (isnan(f) || isinf(f)) {
        return (size_t)snprintf(text, JINJA_FLOAT_BYTES, "%s",
                                isnan(f) ? "nan"
                                : f < 0  ? "-inf"
                                         : "inf");
    }
    shortest(f, form);
    const char *sign = form[0] == '-' ? "-" : "";
    const char *exponent = strchr(form, 'e');
    for (const char *c = form; c < exponent; c++) {
        if (*c >= '0' && *c <= '9') {
            digits[n++] = *c;
        }
    }
    digits[n] = '\0';
    int point = atoi(exponent + 1) + 1; /* digits before it */
    if (point < -3 || point > 16) {
        return (size_t)snprintf(text, JINJA_FLOAT_BYTES, "%s%c%s%se%+03d", sign, digits[0],
                                n > 1 ? "." : "", digits + 1, point - 1);
    }
    if (point <= 0) {
        return (size_t)snprintf(text, JINJA_FLOAT_BYTES, "%s0.%.*s%s", sign, -point, "0000",
                                digits);
    }
    if (point >= n) {
        return (size_t)snprintf(text, JINJA_FLOAT_BYTES, "%s%s%.*s.0", sign, digits, point - n,
                                "0000000000000000");
    }
    return (size_t)snprintf(text, JINJA_FLOAT_BYTES, "%s%.*s.%s", sign, point, digits,
                            digits + point);
}

static numoe_status put_int(struct jinja *j, int64_t i)
{
    char text[24];
    snprintf(text, sizeof(text), "%lld", (long long)i);
    return put(j, text);
}

static numoe_status put_float(struct jinja *j, double f)
{
    char text[JINJA_FLOAT_BYTES];
    jinja_float_text(f, text);
    return put(j, text);
}

/* ------------------------------------------------------------------ repr() */

static numoe_status put_repr_char(struct jinja *j, const char *s, size_t n, char quote)
{
    static const char from[] = "\n\r\t\\", to[] = "nrt\\";
    uint32_t code = jinja_code(s, n);
    char text[16];

    if (code != 0 && code < 0x80 && memchr(from, (int)code, 4) != NULL) {
        const char *found = memchr(from, (int)code, 4);
        snprintf(text, sizeof(text), "\\%c", to[found - from]);
    } else if (code == (uint32_t)quote) {
        snprintf(text, sizeof(text), "\\%c", quote);
    } else if (code > 0x10ffff || jinja_is_printable(code)) {
        return jinja_put(j, (struct jinja_text){s, n});
    } else {
        snprintf(text, sizeof(text),
                 code < 0x100     ? "\\x%02x"
                 : code < 0x10000 ? "\\u%04x"
                                  : "\\U%08x",
                 (unsigned)code);
    }
    return put(j, text);
}

static numoe_status put_repr_text(struct jinja *j, struct jinja_text t)
{
    bool single = t.n > 0 && memchr(t.data, '\'', t.n) != NULL;
    char quote = single && memchr(t.data, '"', t.n) == NULL ? '"' : '\'';

    FORWARD_IF(jinja_put(j, (struct jinja_text){&quote, 1}));
    FORWARD_IF(jinja_charge(j, t.n / 8));
    for (size_t i = 0; i < t.n;) {
        size_t n = jinja_char_bytes(t.data + i, t.n - i);
        FORWARD_IF(put_repr_char(j, t.data + i, n, quote));
        i += n;
    }
    return jinja_put(j, (struct jinja_text){&quote, 1});
}

static numoe_status put_repr_string(struct jinja *j, const struct jinja_value *v)
{
    FORWARD_IF(put(j, v->safe ? "Markup(" : ""));
    FORWARD_IF(put_repr_text(j, v->text));
    return put(j, v->safe ? ")" : "");
}

static numoe_status put_repr_items(struct jinja *j, const struct jinja_list *list, const char *open,
                                   const char *close)
{
    FORWARD_IF(put(j, open));
    for (size_t i = 0; i < list->n; i++) {
        FORWARD_IF(put(j, i == 0 ? "" : ", "));
        FORWARD_IF(jinja_write_repr(j, &list->item[i]));
    }
    return put(j, close);
}

static numoe_status put_repr_dict(struct jinja *j, const struct jinja_dict *d)
{
    FORWARD_IF(put(j, "{"));
    for (size_t i = 0; i < d->n; i++) {
        FORWARD_IF(put(j, i == 0 ? "" : ", "));
        FORWARD_IF(jinja_write_repr(j, &d->pair[i].key));
        FORWARD_IF(put(j, ": "));
        FORWARD_IF(jinja_write_repr(j, &d->pair[i].value));
    }
    return put(j, "}");
}

static numoe_status put_simple(struct jinja *j, const struct jinja_value *v)
{
    switch (v->kind) {
    case JINJA_UNDEFINED:
        return NUMOE_OK;
    case JINJA_NONE:
        return put(j, "None");
    case JINJA_BOOL:
        return put(j, v->b ? "True" : "False");
    case JINJA_INT:
        return put_int(j, v->i);
    case JINJA_FLOAT:
        return put_float(j, v->f);
    default:
        return jinja_fail(j, NUMOE_E_SUPPORT, "a value of type '%s' has no text",
                          jinja_type_name(v));
    }
}

numoe_status jinja_write_repr(struct jinja *j, const struct jinja_value *v)
{
    numoe_status status;

    FORWARD_IF(jinja_enter(j));
    FORWARD_IF(jinja_charge(j, 1));
    switch (v->kind) {
    case JINJA_STRING:
        status = put_repr_string(j, v);
        break;
    case JINJA_LIST:
        status = put_repr_items(j, v->list, "[", "]");
        break;
    case JINJA_TUPLE:
        status = put_repr_items(j, v->list, "(", v->list->n == 1 ? ",)" : ")");
        break;
    case JINJA_DICT:
        status = put_repr_dict(j, v->dict);
        break;
    case JINJA_UNDEFINED:
        status = put(j, "Undefined");
        break;
    default:
        status = put_simple(j, v);
        break;
    }
    jinja_leave(j);
    return status;
}

numoe_status jinja_write(struct jinja *j, const struct jinja_value *v)
{
    if (v->kind == JINJA_STRING) {
        return jinja_put(j, v->text);
    }
    return v->kind == JINJA_UNDEFINED ? NUMOE_OK : jinja_write_repr(j, v);
}

numoe_status jinja_str(struct jinja *j, const struct jinja_value *v, struct jinja_text *out)
{
    size_t start = j->out.len;

    if (v->kind == JINJA_STRING) {
        *out = v->text;
        return NUMOE_OK;
    }
    FORWARD_IF(jinja_write(j, v));
    return jinja_take(j, start, out);
}

/* ------------------------------------------------------------------ json.dumps() */

static numoe_status put_json_code(struct jinja *j, uint32_t code)
{
    char text[24];

    if (code >= 0x10000) {
        code -= 0x10000;
        snprintf(text, sizeof(text), "\\u%04x\\u%04x", 0xd800 + (unsigned)(code >> 10),
                 0xdc00 + (unsigned)(code & 0x3ff));
    } else {
        snprintf(text, sizeof(text), "\\u%04x", (unsigned)code);
    }
    return put(j, text);
}

static numoe_status put_json_char(struct jinja *j, const char *s, size_t n, bool ascii)
{
    static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
    uint32_t code = jinja_code(s, n);
    const char *found = code == 0 || code >= 0x80 ? NULL : memchr(from, (int)code, 7);

    if (found != NULL) {
        const char text[] = {'\\', to[found - from], '\0'};
        return put(j, text);
    }
    if (code < 0x20 || (ascii && code >= 0x7f && code <= 0x10ffff)) {
        return put_json_code(j, code);
    }
    return jinja_put(j, (struct jinja_text){s, n});
}

/* Runs of plain characters go out together. */
static numoe_status put_json_text(struct jinja *j, struct jinja_text t, bool ascii)
{
    size_t start = 0, i = 0;

    FORWARD_IF(put(j, "\""));
    FORWARD_IF(jinja_charge(j, t.n / 8));
    while (i < t.n) {
        unsigned char c = (unsigned char)t.data[i];
        if (c >= 0x20 && c != '"' && c != '\\' && (!ascii || c < 0x7f)) {
            i++;
            continue;
        }
        FORWARD_IF(jinja_put(j, (struct jinja_text){t.data + start, i - start}));
        size_t n = jinja_char_bytes(t.data + i, t.n - i);
        FORWARD_IF(put_json_char(j, t.data + i, n, ascii));
        i += n;
        start = i;
    }
    FORWARD_IF(jinja_put(j, (struct jinja_text){t.data + start, t.n - start}));
    return put(j, "\"");
}

/* The new line before an element or the closing bracket. */
static numoe_status put_json_line(struct jinja *j, const struct jinja_json_form *form,
                                  unsigned level)
{
    if (!form->has_indent) {
        return NUMOE_OK;
    }
    FORWARD_IF(put(j, "\n"));
    for (unsigned i = 0; i < level; i++) {
        FORWARD_IF(jinja_put(j, form->indent));
    }
    return NUMOE_OK;
}

static numoe_status put_json_list(struct jinja *j, const struct jinja_json_form *form,
                                  unsigned level, const struct jinja_list *list)
{
    if (list->n == 0) {
        return put(j, "[]");
    }
    FORWARD_IF(put(j, "["));
    for (size_t i = 0; i < list->n; i++) {
        FORWARD_IF(jinja_put(j, i == 0 ? JINJA_TEXT("") : form->item_sep));
        FORWARD_IF(put_json_line(j, form, level + 1));
        FORWARD_IF(jinja_write_json(j, form, level + 1, &list->item[i]));
    }
    FORWARD_IF(put_json_line(j, form, level));
    return put(j, "]");
}

/* Keys that are no texts become some: true, null, numbers. */
static numoe_status put_json_key(struct jinja *j, const struct jinja_json_form *form,
                                 const struct jinja_value *key)
{
    if (key->kind == JINJA_STRING) {
        return put_json_text(j, key->text, form->ascii);
    }
    if (key->kind < JINJA_NONE || key->kind > JINJA_FLOAT) {
        return jinja_fail_input(j, "keys of JSON must be str, int, float, bool or None, not %s",
                                jinja_type_name(key));
    }
    FORWARD_IF(put(j, "\""));
    FORWARD_IF(jinja_write_json(j, form, 0, key));
    return put(j, "\"");
}

static numoe_status put_json_pairs(struct jinja *j, const struct jinja_json_form *form,
                                   unsigned level, const struct jinja_dict *d)
{
    FORWARD_IF(put(j, "{"));
    for (size_t i = 0; i < d->n; i++) {
        FORWARD_IF(jinja_put(j, i == 0 ? JINJA_TEXT("") : form->item_sep));
        FORWARD_IF(put_json_line(j, form, level + 1));
        FORWARD_IF(put_json_key(j, form, &d->pair[i].key));
        FORWARD_IF(jinja_put(j, form->key_sep));
        FORWARD_IF(jinja_write_json(j, form, level + 1, &d->pair[i].value));
    }
    FORWARD_IF(put_json_line(j, form, level));
    return put(j, "}");
}

/* Stable insertion by key into a copy. */
static numoe_status sorted_dict(struct jinja *j, const struct jinja_dict *d,
                                struct jinja_dict *sorted)
{
    struct jinja_value copy;

    FORWARD_IF(jinja_new_dict(j, JINJA_DICT, &copy));
    *sorted = *copy.dict;
    for (size_t i = 0; i < d->n; i++) {
        FORWARD_IF(jinja_dict_set(j, sorted, d->pair[i].key, d->pair[i].value));
        struct jinja_pair added = sorted->pair[i];
        size_t at = i;
        for (; at > 0; at--) {
            int order;
            FORWARD_IF(jinja_order(j, &sorted->pair[at - 1].key, &added.key, &order));
            if (order <= 0) {
                break;
            }
            sorted->pair[at] = sorted->pair[at - 1];
        }
        sorted->pair[at] = added;
    }
    return NUMOE_OK;
}

static numoe_status put_json_dict(struct jinja *j, const struct jinja_json_form *form,
                                  unsigned level, const struct jinja_dict *d)
{
    struct jinja_dict sorted;

    if (d->n == 0) {
        return put(j, "{}");
    }
    if (form->sort_keys) {
        FORWARD_IF(sorted_dict(j, d, &sorted));
        d = &sorted;
    }
    return put_json_pairs(j, form, level, d);
}

static numoe_status put_json_float(struct jinja *j, double f)
{
    if (isnan(f) || isinf(f)) {
        return put(j, isnan(f) ? "NaN" : f < 0 ? "-Infinity" : "Infinity");
    }
    return put_float(j, f);
}

static numoe_status write_json(struct jinja *j, const struct jinja_json_form *form, unsigned level,
                               const struct jinja_value *v)
{
    const struct jinja_list *list;

    switch (v->kind) {
    case JINJA_NONE:
        return put(j, "null");
    case JINJA_BOOL:
        return put(j, v->b ? "true" : "false");
    case JINJA_INT:
        return put_int(j, v->i);
    case JINJA_FLOAT:
        return put_json_float(j, v->f);
    case JINJA_STRING:
        return put_json_text(j, v->text, form->ascii);
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_GENERATOR: /* an error in Python, but what a template means is clear */
        FORWARD_IF(jinja_elements(j, v, &list));
        return put_json_list(j, form, level, list);
    case JINJA_DICT:
        return put_json_dict(j, form, level, v->dict);
    case JINJA_UNDEFINED:
        return jinja_fail_undefined(j, v);
    default:
        return jinja_fail_input(j, "a value of type '%s' has no form in JSON", jinja_type_name(v));
    }
}

numoe_status jinja_write_json(struct jinja *j, const struct jinja_json_form *form, unsigned level,
                              const struct jinja_value *v)
{
    FORWARD_IF(jinja_enter(j));
    FORWARD_IF(jinja_charge(j, 1 + level / 8));
    numoe_status status = write_json(j, form, level, v);
    jinja_leave(j);
    return status;
}
