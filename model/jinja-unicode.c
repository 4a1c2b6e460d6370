/* What Jinja templates have to know of Unicode, as Python 3.11 knows it: white space, letters,
 * digits, upper and lower case, what repr() shows as it is. Case mapping sees one character at a
 * time: the two forms of a small sigma are not told apart.
 */
#include "base/utf8.h"
#include "model/jinja-impl.h"

struct unicode_range {
    uint32_t first, last;
};

/* first, first + step ... last map to what is delta further. */
struct unicode_run {
    uint32_t first, last, step;
    int32_t delta;
};

struct unicode_special {
    uint32_t code;
    enum jinja_case to;
    uint32_t out[3];
};

#include "model/jinja-unicode-table.h"

static bool in_ranges(const struct unicode_range *range, size_t n, uint32_t c)
{
    while (n > 0) {
        size_t half = n / 2;
        if (c > range[half].last) {
            range += half + 1;
            n -= half + 1;
        } else if (c < range[half].first) {
            n = half;
        } else {
            return true;
        }
    }
    return false;
}

bool jinja_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

bool jinja_is_printable(uint32_t c)
{
    return c <= 0x10ffff && !in_ranges(not_printable, ARRAY_LEN(not_printable), c);
}

bool jinja_is_alpha(uint32_t c)
{
    return in_ranges(alpha, ARRAY_LEN(alpha), c);
}

bool jinja_is_digit(uint32_t c)
{
    return in_ranges(digit, ARRAY_LEN(digit), c);
}

bool jinja_is_numeric(uint32_t c)
{
    return in_ranges(numeric, ARRAY_LEN(numeric), c);
}

bool jinja_is_cased(uint32_t c)
{
    return in_ranges(cased, ARRAY_LEN(cased), c);
}

/* Letters for titles are both and neither: they have a small and a capital form. */
bool jinja_is_lower(uint32_t c)
{
    uint32_t mapped[3];
    return c <= 0x10ffff && (in_ranges(small, ARRAY_LEN(small), c) ||
                             jinja_map_case(c, JINJA_UPPER, mapped) > 1 || mapped[0] != c);
}

bool jinja_is_upper(uint32_t c)
{
    uint32_t mapped[3];
    return c <= 0x10ffff && (in_ranges(capital, ARRAY_LEN(capital), c) ||
                             jinja_map_case(c, JINJA_LOWER, mapped) > 1 || mapped[0] != c);
}

static uint32_t map_run(const struct unicode_run *run, size_t n, uint32_t c)
{
    while (n > 0) {
        size_t half = n / 2;
        if (c > run[half].last) {
            run += half + 1;
            n -= half + 1;
        } else if (c < run[half].first) {
            n = half;
        } else {
            bool hit = (c - run[half].first) % run[half].step == 0;
            return hit ? (uint32_t)((int32_t)c + run[half].delta) : c;
        }
    }
    return c;
}

unsigned jinja_map_case(uint32_t c, enum jinja_case to, uint32_t out[3])
{
    static const struct {
        const struct unicode_run *run;
        size_t n;
    } simple[] = {
        [JINJA_UPPER] = {upper, ARRAY_LEN(upper)},
        [JINJA_LOWER] = {lower, ARRAY_LEN(lower)},
        [JINJA_TITLE] = {title, ARRAY_LEN(title)},
    };

    if (c < 0x80) {
        bool is_small = c >= 'a' && c <= 'z', is_big = c >= 'A' && c <= 'Z';
        out[0] = to == JINJA_LOWER ? (is_big ? c + 32 : c) : is_small ? c - 32 : c;
        return 1;
    }
    for (size_t i = 0; i < ARRAY_LEN(special); i++) {
        if (special[i].code == c && special[i].to == to) {
            memcpy(out, special[i].out, sizeof(special[i].out));
            return out[2] != 0 ? 3 : 2;
        }
    }
    out[0] = map_run(simple[to].run, simple[to].n, c);
    return 1;
}

/* ------------------------------------------------------------------ characters of a text */

size_t jinja_char_bytes(const char *s, size_t n)
{
    int len = utf8_length(s, n);
    return len <= 0 ? 1 : (size_t)len;
}

uint32_t jinja_code(const char *s, size_t n)
{
    int len = utf8_length(s, n);
    return len <= 0 ? 0x110000u + (unsigned char)s[0] : utf8_decode(s, len);
}

size_t jinja_n_char(struct jinja_text t)
{
    size_t n = 0;

    for (size_t i = 0; i < t.n; n++) {
        i += jinja_char_bytes(t.data + i, t.n - i);
    }
    return n;
}

size_t jinja_char_at(struct jinja_text t, size_t i)
{
    size_t at = 0;

    for (; i > 0 && at < t.n; i--) {
        at += jinja_char_bytes(t.data + at, t.n - at);
    }
    return at;
}

/* The length of the last character. */
static size_t last_char_bytes(struct jinja_text t)
{
    for (size_t n = 2; n <= 4 && n <= t.n; n++) {
        if (utf8_length(t.data + t.n - n, n) == (int)n) {
            return n;
        }
    }
    return 1;
}

struct jinja_text jinja_strip_space(struct jinja_text t, bool left, bool right)
{
    while (left && t.n > 0 && jinja_is_space(jinja_code(t.data, t.n))) {
        size_t n = jinja_char_bytes(t.data, t.n);
        t.data += n;
        t.n -= n;
    }
    while (right && t.n > 0) {
        size_t n = last_char_bytes(t);
        if (!jinja_is_space(jinja_code(t.data + t.n - n, n))) {
            break;
        }
        t.n -= n;
    }
    return t;
}
