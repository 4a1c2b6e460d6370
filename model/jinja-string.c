/* What filters and methods of Jinja templates do to texts: case, stripping, replacing, splitting
 * into lines, numbers out of texts.
 */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>

#include "base/utf8.h"
#include "model/jinja-impl.h"

/* ------------------------------------------------------------------ case */

static numoe_status put_case(struct jinja *j, const char *s, size_t n, enum jinja_case to)
{
    uint32_t code = jinja_code(s, n), mapped[3];
    char text[12];
    size_t len = 0;

    if (code > 0x10ffff) {
        return jinja_put(j, (struct jinja_text){s, n});
    }
    for (unsigned i = 0, n_mapped = jinja_map_case(code, to, mapped); i < n_mapped; i++) {
        len += (size_t)utf8_encode(mapped[i], text + len);
    }
    return jinja_put(j, (struct jinja_text){text, len});
}

numoe_status jinja_restyle(struct jinja *j, struct jinja_text t, enum jinja_style style,
                           struct jinja_value *out)
{
    size_t start = j->out.len;
    bool in_word = false;

    FORWARD_IF(jinja_charge(j, t.n / 4));
    for (size_t i = 0; i < t.n;) {
        size_t n = jinja_char_bytes(t.data + i, t.n - i);
        enum jinja_case to = style == JINJA_STYLE_UPPER               ? JINJA_UPPER
                             : style == JINJA_STYLE_TITLE && !in_word ? JINJA_TITLE
                             : style == JINJA_STYLE_CAPITAL && i == 0 ? JINJA_TITLE
                                                                      : JINJA_LOWER;
        FORWARD_IF(put_case(j, t.data + i, n, to));
        in_word = jinja_is_cased(jinja_code(t.data + i, n));
        i += n;
    }
    *out = jinja_string(NULL, 0);
    return jinja_take(j, start, &out->text);
}

/* ------------------------------------------------------------------ parts */

static bool has_char(const struct jinja_text *chars, const char *s, size_t n)
{
    return jinja_find_text(*chars, (struct jinja_text){s, n}, 0) != SIZE_MAX;
}

static size_t last_char(struct jinja_text t)
{
    size_t at = t.n - 1;

    for (size_t n = 2; n <= 4 && n <= t.n; n++) {
        if (jinja_char_bytes(t.data + t.n - n, n) == n) {
            at = t.n - n;
        }
    }
    return at;
}

numoe_status jinja_strip(struct jinja *j, struct jinja_text t, const struct jinja_text *chars,
                         bool left, bool right, struct jinja_value *out)
{
    FORWARD_IF(jinja_charge(j, t.n / 16));
    if (chars == NULL) {
        *out = jinja_text(jinja_strip_space(t, left, right));
        return NUMOE_OK;
    }
    while (left && t.n > 0) {
        size_t n = jinja_char_bytes(t.data, t.n);
        FORWARD_IF(jinja_charge(j, chars->n / 64));
        if (!has_char(chars, t.data, n)) {
            break;
        }
        t = (struct jinja_text){t.data + n, t.n - n};
    }
    while (right && t.n > 0) {
        size_t at = last_char(t);
        FORWARD_IF(jinja_charge(j, chars->n / 64));
        if (!has_char(chars, t.data + at, t.n - at)) {
            break;
        }
        t.n = at;
    }
    *out = jinja_text(t);
    return NUMOE_OK;
}

/* Before, between and after characters, where there is nothing to look for. */
static numoe_status replace_nothing(struct jinja *j, struct jinja_text t, struct jinja_text to,
                                    int64_t count)
{
    for (size_t i = 0, n; i < t.n; i += n) {
        n = jinja_char_bytes(t.data + i, t.n - i);
        if (count-- != 0) {
            FORWARD_IF(jinja_put(j, to));
        } else {
            count = 0;
        }
        FORWARD_IF(jinja_charge(j, 1));
        FORWARD_IF(jinja_put(j, (struct jinja_text){t.data + i, n}));
    }
    return count == 0 ? NUMOE_OK : jinja_put(j, to);
}

numoe_status jinja_replace(struct jinja *j, struct jinja_text t, struct jinja_text from,
                           struct jinja_text to, int64_t count, struct jinja_value *out)
{
    size_t start = j->out.len, at = 0, found;

    FORWARD_IF(jinja_charge(j, t.n / 16));
    *out = jinja_string(NULL, 0);
    if (from.n == 0) {
        FORWARD_IF(replace_nothing(j, t, to, count < 0 ? -1 : count));
        return jinja_take(j, start, &out->text);
    }
    while (count != 0 && (found = jinja_find_text(t, from, at)) != SIZE_MAX) {
        FORWARD_IF(jinja_charge(j, 1));
        FORWARD_IF(jinja_put(j, (struct jinja_text){t.data + at, found - at}));
        FORWARD_IF(jinja_put(j, to));
        at = found + from.n;
        count -= count > 0;
    }
    FORWARD_IF(jinja_put(j, (struct jinja_text){t.data + at, t.n - at}));
    return jinja_take(j, start, &out->text);
}

static bool ends_line(uint32_t c)
{
    return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
}

numoe_status jinja_splitlines(struct jinja *j, struct jinja_text t, bool keep,
                              struct jinja_value *out)
{
    size_t start = 0;

    FORWARD_IF(jinja_charge(j, t.n / 4));
    FORWARD_IF(jinja_new_list(j, JINJA_LIST, 0, out));
    for (size_t i = 0; i < t.n;) {
        size_t n = jinja_char_bytes(t.data + i, t.n - i);
        if (!ends_line(jinja_code(t.data + i, n))) {
            i += n;
            continue;
        }
        n += t.data[i] == '\r' && i + 1 < t.n && t.data[i + 1] == '\n';
        FORWARD_IF(
            jinja_push(j, out->list, jinja_string(t.data + start, i - start + (keep ? n : 0))));
        i += n;
        start = i;
    }
    return start == t.n ? NUMOE_OK
                        : jinja_push(j, out->list, jinja_string(t.data + start, t.n - start));
}

/* ------------------------------------------------------------------ numbers */

/* Without the underscores that may stand between digits; false for other underscores. */
static bool copy_number(struct jinja_text t, char *out, size_t cap)
{
    size_t n = 0;

    for (size_t i = 0; i < t.n; i++) {
        unsigned char before = i > 0 ? (unsigned char)t.data[i - 1] : 0;
        unsigned char after = i + 1 < t.n ? (unsigned char)t.data[i + 1] : 0;
        if (t.data[i] == '_' && isalnum(before) && isalnum(after)) {
            continue;
        }
        if (t.data[i] == '_' || t.data[i] == '\0' || n + 1 >= cap) {
            return false;
        }
        out[n++] = t.data[i];
    }
    out[n] = '\0';
    return n > 0;
}

struct jinja_value jinja_parse_number(struct jinja_text t, int base)
{
    struct jinja_value none = {.kind = JINJA_MISSING};
    char text[400], *end;

    if (!copy_number(jinja_strip_space(t, true, true), text, sizeof(text)) ||
        isspace((unsigned char)text[0]) || isspace((unsigned char)text[1])) {
        return none;
    }
    errno = 0;
    long long i = strtoll(text, &end, base);
    if (*end == '\0' && end != text && errno == 0) {
        return jinja_int(i);
    }
    if (strpbrk(text, "xXpP(") != NULL) {
        return none; /* what strtod() knows and Python does not */
    }
    double f = strtod(text, &end);
    return *end == '\0' && end != text ? jinja_float(f) : none;
}
