/* A template's text to tokens: what is between tags is DATA with the white space around tags
 * already taken away, as trim_blocks, lstrip_blocks and the signs in tags want it; comments and raw
 * blocks are gone.
 */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>

#include "base/utf8.h"
#include "model/jinja-impl.h"

enum { MAX_NESTED_BRACKETS = 200 };

struct lexer {
    struct jinja_arena *arena;
    numoe_error *err;
    const char *src;
    size_t n, pos;
    unsigned line;
    bool at_line_start; /* what was read last ends with a newline, or nothing was read */
    struct jinja_token *token;
    size_t n_token, cap;
    unsigned n_open;
    char open[MAX_NESTED_BRACKETS]; /* the brackets that close what is open */
};

#define FAIL(l, ...) status_fail((l)->err, NUMOE_E_INPUT, "line %u: " __VA_ARGS__)

static bool ahead(const struct lexer *l, size_t at, const char *what)
{
    size_t n = strlen(what);
    return at <= l->n && l->n - at >= n && memcmp(l->src + at, what, n) == 0;
}

static void advance(struct lexer *l, size_t to)
{
    for (size_t i = l->pos; i < to; i++) {
        l->line += l->src[i] == '\n';
    }
    if (to > l->pos) {
        l->at_line_start = l->src[to - 1] == '\n';
    }
    l->pos = to;
}

static size_t skip_space(const struct lexer *l, size_t at)
{
    struct jinja_text rest = {l->src + at, l->n - at};
    return l->n - jinja_strip_space(rest, true, false).n;
}

static numoe_status alloc(struct lexer *l, size_t n, size_t elem_bytes, void *out)
{
    numoe_status status = jinja_alloc(l->arena, n, elem_bytes, out, l->err);
    return status == NUMOE_OK ? status : status_context(l->err, status, "line %u", l->line);
}

static numoe_status add(struct lexer *l, struct jinja_token token)
{
    if (l->n_token == l->cap) {
        struct jinja_token *grown;
        size_t cap = l->cap == 0 ? 256 : l->cap * 2;
        FORWARD_IF(alloc(l, cap, sizeof(*grown), &grown));
        if (l->n_token > 0) {
            memcpy(grown, l->token, l->n_token * sizeof(*grown));
        }
        l->token = grown;
        l->cap = cap;
    }
    token.line = l->line;
    l->token[l->n_token++] = token;
    return NUMOE_OK;
}

static numoe_status add_kind(struct lexer *l, enum jinja_token_kind kind)
{
    return add(l, (struct jinja_token){.kind = kind});
}

static numoe_status add_data(struct lexer *l, size_t from, size_t to)
{
    return to <= from
               ? NUMOE_OK
               : add(l, (struct jinja_token){.kind = JINJA_T_DATA,
                                             .value = jinja_string(l->src + from, to - from)});
}

/* ------------------------------------------------------------------ between tags */

/* Where text [from, to) ends once the tag at `to` with that sign has taken its white space. */
static size_t strip_before(const struct lexer *l, size_t from, size_t to, char sign, bool is_block)
{
    struct jinja_text text = {l->src + from, to - from};

    if (sign == '-') {
        return from + jinja_strip_space(text, false, true).n;
    }
    if (sign == '+' || !is_block) {
        return to;
    }
    size_t line = to;
    while (line > from && l->src[line - 1] != '\n') {
        line--;
    }
    struct jinja_text last = {l->src + line, to - line};
    bool blank = (line > from || l->at_line_start) && jinja_strip_space(last, true, true).n == 0;
    return blank ? line : to;
}

static char sign_at(const struct lexer *l, size_t at)
{
    return at < l->n && (l->src[at] == '-' || l->src[at] == '+') ? l->src[at] : 0;
}

/* The end of a tag that closes with `close` at `at`, with the white space it takes; 0 if it does
 * not. One newline goes without a sign if `trims`. */
static size_t tag_end(const struct lexer *l, size_t at, const char *close, bool plus, bool trims)
{
    if (at < l->n && l->src[at] == '-' && ahead(l, at + 1, close)) {
        return skip_space(l, at + 3);
    }
    if (plus && at < l->n && l->src[at] == '+' && ahead(l, at + 1, close)) {
        return at + 3;
    }
    if (!ahead(l, at, close)) {
        return 0;
    }
    return at + 2 + (trims && ahead(l, at + 2, "\n"));
}

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '_' || (unsigned char)c >= 0x80;
}

/* The position behind `{% word` at `at`; 0 if that is not there. */
static size_t tag_word(const struct lexer *l, size_t at, const char *word)
{
    if (!ahead(l, at, "{%")) {
        return 0;
    }
    at += 2 + (sign_at(l, at + 2) != 0);
    at = skip_space(l, at);
    return ahead(l, at, word) ? skip_space(l, at + strlen(word)) : 0;
}

/* From the `{% raw %}` whose words end at body to behind its `{% endraw %}`. */
static numoe_status lex_raw(struct lexer *l, size_t body)
{
    for (size_t at = body; at < l->n; at++) {
        size_t words = tag_word(l, at, "endraw");
        size_t end = words == 0 ? 0 : tag_end(l, words, "%}", true, true);
        if (end != 0) {
            advance(l, body);
            FORWARD_IF(add_data(l, body, strip_before(l, body, at, sign_at(l, at + 2), true)));
            advance(l, end);
            return NUMOE_OK;
        }
    }
    return FAIL(l, "{%% raw %%} has no {%% endraw %%}", l->line);
}

static numoe_status lex_comment(struct lexer *l, size_t at)
{
    for (; at < l->n; at++) {
        size_t end = tag_end(l, at, "#}", true, true);
        if (end != 0) {
            advance(l, end);
            return NUMOE_OK;
        }
    }
    return FAIL(l, "comment has no end", l->line);
}

/* ------------------------------------------------------------------ inside tags */

static numoe_status put_escape_code(struct lexer *l, size_t *at, unsigned n_digit, char *out,
                                    size_t *n_out)
{
    uint32_t code = 0;

    for (unsigned i = 0; i < n_digit; i++, ++*at) {
        char c = *at < l->n ? l->src[*at] : 0;
        if (!isxdigit((unsigned char)c)) {
            return FAIL(l, "string: escape needs %u hexadecimal digits", l->line, n_digit);
        }
        code = code * 16 + (uint32_t)(isdigit((unsigned char)c) ? c - '0' : (c | 32) - 'a' + 10);
    }
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
        return FAIL(l, "string: escape U+%X is no character", l->line, (unsigned)code);
    }
    *n_out += (size_t)utf8_encode(code, out + *n_out);
    return NUMOE_OK;
}

/* What a backslash before src[*at] means. */
static numoe_status put_escape(struct lexer *l, size_t *at, char *out, size_t *n_out)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    char c = l->src[(*at)++];
    const char *simple = memchr(from, c, sizeof(from) - 1);

    if (simple != NULL) {
        out[(*n_out)++] = to[simple - from];
    } else if (c >= '0' && c <= '7') {
        unsigned code = (unsigned)(c - '0');
        for (int i = 0; i < 2 && *at < l->n && l->src[*at] >= '0' && l->src[*at] <= '7'; i++) {
            code = code * 8 + (unsigned)(l->src[(*at)++] - '0');
        }
        *n_out += (size_t)utf8_encode(code, out + *n_out);
    } else if (c == 'x' || c == 'u' || c == 'U') {
        return put_escape_code(l, at, c == 'x' ? 2 : c == 'u' ? 4 : 8, out, n_out);
    } else if (c == 'N' && ahead(l, *at, "{")) {
        return status_fail(l->err, NUMOE_E_SUPPORT,
                           "line %u: string: characters by name (\\N{}) are not supported",
                           l->line);
    } else if (c != '\n') {
        out[(*n_out)++] = '\\';
        out[(*n_out)++] = c;
    }
    return NUMOE_OK;
}

static numoe_status lex_string(struct lexer *l)
{
    char quote = l->src[l->pos];
    size_t end = l->pos + 1, at = l->pos + 1, n_out = 0;
    char *out;

    while (end < l->n && l->src[end] != quote) {
        end += l->src[end] == '\\' ? 2 : 1;
    }
    if (end >= l->n) {
        return FAIL(l, "string has no end", l->line);
    }
    FORWARD_IF(alloc(l, end - at + 4, 1, &out));
    while (at < end) {
        if (l->src[at] == '\\') {
            at++;
            FORWARD_IF(put_escape(l, &at, out, &n_out));
        } else {
            out[n_out++] = l->src[at++];
        }
    }
    FORWARD_IF(
        add(l, (struct jinja_token){.kind = JINJA_T_CONST, .value = jinja_string(out, n_out)}));
    advance(l, end + 1);
    return NUMOE_OK;
}

/* Digits with single underscores between them. */
static size_t skip_digits(const struct lexer *l, size_t at)
{
    while (at < l->n && isdigit((unsigned char)l->src[at])) {
        at++;
        if (at + 1 < l->n && l->src[at] == '_' && isdigit((unsigned char)l->src[at + 1])) {
            at++;
        }
    }
    return at;
}

/* The end of the fraction and exponent of a number whose digits end at `at`. */
static size_t skip_fraction(const struct lexer *l, size_t at)
{
    if (at + 1 < l->n && l->src[at] == '.' && isdigit((unsigned char)l->src[at + 1])) {
        at = skip_digits(l, at + 1);
    }
    if (at < l->n && (l->src[at] | 32) == 'e') {
        size_t digits = at + 1 + (sign_at(l, at + 1) != 0);
        if (digits < l->n && isdigit((unsigned char)l->src[digits])) {
            at = skip_digits(l, digits);
        }
    }
    return at;
}

static int base_at(const struct lexer *l)
{
    char c = l->src[l->pos] == '0' && l->pos + 1 < l->n ? (char)(l->src[l->pos + 1] | 32) : 0;
    return c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 10;
}

static numoe_status lex_number(struct lexer *l)
{
    bool after_dot = l->n_token > 0 && l->token[l->n_token - 1].op == '.'; /* a.0.1 */
    int base = base_at(l);
    size_t end = skip_digits(l, l->pos), n = 0;
    char digits[400], *stop;
    struct jinja_value v;

    if (base != 10) {
        for (end = l->pos + 2; end < l->n && is_word(l->src[end]); end++) {
        }
    }
    size_t whole = end;
    end = base == 10 && !after_dot ? skip_fraction(l, end) : end;
    for (size_t i = base == 10 ? l->pos : l->pos + 2; i < end && n + 1 < sizeof(digits); i++) {
        if (l->src[i] != '_') {
            digits[n++] = l->src[i];
        }
    }
    digits[n] = '\0';
    errno = 0;
    v = end > whole ? jinja_float(strtod(digits, &stop)) : jinja_int(strtoll(digits, &stop, base));
    if (*stop != '\0' || stop == digits || end - l->pos >= sizeof(digits) ||
        (end == whole && errno != 0)) {
        return FAIL(l, "number \"%.*s\" is wrong or too large", l->line,
                    (int)MIN(end - l->pos, 40u), l->src + l->pos);
    }
    FORWARD_IF(add(l, (struct jinja_token){.kind = JINJA_T_CONST, .value = v}));
    advance(l, end);
    return NUMOE_OK;
}

static numoe_status lex_name(struct lexer *l)
{
    size_t end = l->pos;

    while (end < l->n && is_word(l->src[end])) {
        end++;
    }
    FORWARD_IF(add(l, (struct jinja_token){.kind = JINJA_T_NAME,
                                           .value = jinja_string(l->src + l->pos, end - l->pos)}));
    advance(l, end);
    return NUMOE_OK;
}

static numoe_status balance(struct lexer *l, char c)
{
    const char *opening = strchr("([{", c);

    if (opening != NULL) {
        if (l->n_open == MAX_NESTED_BRACKETS) {
            return FAIL(l, "more than %d nested brackets", l->line, MAX_NESTED_BRACKETS);
        }
        l->open[l->n_open++] = ")]}"[opening - "([{"];
    } else if (strchr(")]}", c) != NULL) {
        if (l->n_open == 0 || l->open[l->n_open - 1] != c) {
            return FAIL(l, "unexpected '%c'", l->line, c);
        }
        l->n_open--;
    }
    return NUMOE_OK;
}

static numoe_status lex_operator(struct lexer *l)
{
    static const char *const two[] = {"==", "!=", "<=", ">=", "//", "**"};
    char c = l->src[l->pos];
    unsigned op = (unsigned char)c;

    for (size_t i = 0; i < ARRAY_LEN(two); i++) {
        if (ahead(l, l->pos, two[i])) {
            op = JINJA_OP2(two[i][0], two[i][1]);
        }
    }
    if (c == '\0' || (op < 0x100 && strchr("+-*/%~[](){}<>=.:|,;", c) == NULL)) {
        size_t n = jinja_char_bytes(l->src + l->pos, l->n - l->pos);
        return FAIL(l, "unexpected character '%.*s'", l->line, (int)n, l->src + l->pos);
    }
    FORWARD_IF(balance(l, c));
    FORWARD_IF(add(l, (struct jinja_token){.kind = JINJA_T_OP, .op = op}));
    advance(l, l->pos + (op < 0x100 ? 1 : 2));
    return NUMOE_OK;
}

/* One token, or white space. */
static numoe_status lex_inside(struct lexer *l)
{
    char c = l->src[l->pos];
    size_t after = skip_space(l, l->pos);

    if (after > l->pos) {
        advance(l, after);
        return NUMOE_OK;
    }
    if (c == '\'' || c == '"') {
        return lex_string(l);
    }
    if (isdigit((unsigned char)c)) {
        return lex_number(l);
    }
    return is_word(c) ? lex_name(l) : lex_operator(l);
}

static numoe_status lex_tag(struct lexer *l, bool is_block)
{
    unsigned line = l->line;

    FORWARD_IF(add_kind(l, is_block ? JINJA_T_BLOCK_BEGIN : JINJA_T_OUTPUT_BEGIN));
    advance(l, l->pos + 2 + (sign_at(l, l->pos + 2) != 0));
    while (l->pos < l->n) {
        size_t end =
            l->n_open > 0 ? 0 : tag_end(l, l->pos, is_block ? "%}" : "}}", is_block, is_block);
        if (end != 0) {
            FORWARD_IF(add_kind(l, is_block ? JINJA_T_BLOCK_END : JINJA_T_OUTPUT_END));
            advance(l, end);
            return NUMOE_OK;
        }
        FORWARD_IF(lex_inside(l));
    }
    return FAIL(l, "tag has no end", line);
}

/* The data up to the next tag, and the tag. */
static numoe_status lex_one(struct lexer *l)
{
    size_t at = l->pos;

    while (at < l->n && !(l->src[at] == '{' && at + 1 < l->n && strchr("{%#", l->src[at + 1]) &&
                          l->src[at + 1] != '\0')) {
        const char *next = memchr(l->src + at + 1, '{', l->n - at - 1);
        at = next == NULL ? l->n : (size_t)(next - l->src);
    }
    if (at >= l->n) {
        FORWARD_IF(add_data(l, l->pos, l->n));
        advance(l, l->n);
        return NUMOE_OK;
    }
    char kind = l->src[at + 1], sign = sign_at(l, at + 2);
    FORWARD_IF(add_data(l, l->pos, strip_before(l, l->pos, at, sign, kind != '{')));
    advance(l, at);
    size_t words = kind == '%' ? tag_word(l, at, "raw") : 0;
    size_t body = words == 0 ? 0 : tag_end(l, words, "%}", false, false);
    if (body != 0) {
        return lex_raw(l, body);
    }
    return kind == '#' ? lex_comment(l, at + 2 + (sign != 0)) : lex_tag(l, kind == '%');
}

/* Newlines become "\n", one at the very end goes. */
static numoe_status normalize(struct lexer *l, const char *text, size_t n)
{
    char *src;

    FORWARD_IF(alloc(l, n + 1, 1, &src));
    for (size_t i = 0; i < n; i++) {
        bool cr = text[i] == '\r';
        src[l->n++] = cr ? '\n' : text[i];
        i += cr && i + 1 < n && text[i + 1] == '\n';
    }
    l->n -= l->n > 0 && src[l->n - 1] == '\n';
    l->src = src;
    return NUMOE_OK;
}

numoe_status jinja_lex(struct jinja_arena *arena, const char *text, size_t n,
                       struct jinja_token **tokens, size_t *n_tokens, numoe_error *err)
{
    struct lexer l = {.arena = arena, .err = err, .line = 1, .at_line_start = true};

    FORWARD_IF(normalize(&l, text, n));
    while (l.pos < l.n) {
        FORWARD_IF(lex_one(&l));
    }
    FORWARD_IF(add_kind(&l, JINJA_T_EOF));
    *tokens = l.token;
    *n_tokens = l.n_token;
    return NUMOE_OK;
}
