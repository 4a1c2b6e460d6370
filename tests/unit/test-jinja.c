/* model/jinja: templates as Python's jinja2 renders them (tests/data/jinja), and the limits within
 * which a rendering stays.
 */
#include <criterion/criterion.h>

#include <time.h>

#include "model/jinja.h"
#include "tests/unit/testdata.h"

enum { NOW_SECONDS = 1767323045 }; /* 2026-01-02 03:04:05 UTC, as in make.py */

static void use_utc(void)
{
    setenv("TZ", "UTC", 1);
    tzset();
}

TestSuite(jinja, .init = use_utc);

static json_t *load_json(char *path)
{
    json_error_t error;

    cr_assert_not_null(path);
    json_t *root = json_load_file(path, 0, &error);
    cr_assert_not_null(root, "%s: %s", path, error.text);
    free(path);
    return root;
}

static numoe_status render(const char *text, size_t n, const json_t *variables,
                           const struct jinja_options *options, struct strbuf *out,
                           numoe_error *err)
{
    struct jinja_template *t;

    FORWARD_IF(jinja_parse(text, n, &t, err));
    numoe_status status = jinja_render(t, variables, options, out, err);
    jinja_free(t);
    return status;
}

/* want NULL: it fails. what: to say what differs. */
static void expect_text(const char *what, const char *text, size_t n, const json_t *variables,
                        const char *want)
{
    const struct jinja_options options = {.now_seconds = NOW_SECONDS};
    struct strbuf out = {0};
    numoe_error err = {0};

    cr_assert_eq(strbuf_append(&out, "before", 6, NULL), NUMOE_OK);
    numoe_status status = render(text, n, variables, &options, &out, &err);
    if (want == NULL) {
        cr_expect_neq(status, NUMOE_OK, "%s", what);
        cr_expect_eq(strncmp(err.text, "line ", 5), 0, "%s: %s", what, err.text);
        cr_expect_str_eq(out.data, "before", "%s", what);
    } else {
        cr_expect_eq(status, NUMOE_OK, "%s: %s", what, err.text);
        cr_expect_str_eq(out.data + 6, want, "%s", what);
    }
    strbuf_fini(&out);
}

Test(jinja, small_templates)
{
    json_t *groups = load_json(test_src_path("tests/data/jinja/small.json")), *group, *one;
    size_t i, k, n = 0;

    json_array_foreach(groups, i, group)
    {
        json_array_foreach(json_object_get(group, "cases"), k, one)
        {
            const json_t *text = json_array_get(one, 0);
            expect_text(json_string_value(text), json_string_value(text), json_string_length(text),
                        json_object_get(group, "variables"),
                        json_string_value(json_array_get(one, 1)));
            n++;
        }
    }
    cr_expect_gt(n, 200u);
    json_decref(groups);
}

/* ------------------------------------------------------------------ public templates */

static char *read_text(char *path, size_t *n)
{
    char *text = NULL;
    FILE *file = fopen(path, "rb"), *copy = open_memstream(&text, n);

    cr_assert(file != NULL && copy != NULL, "%s", path);
    for (int c = getc(file); c != EOF; c = getc(file)) {
        putc(c, copy);
    }
    fclose(file);
    fclose(copy);
    free(path);
    return text;
}

/* Expected texts share their beginning and end with the one before: [n, middle, m]. */
static void unpack_text(const json_t *packed, struct strbuf *text)
{
    struct strbuf before = *text;
    const json_t *middle = json_array_get(packed, 1);
    size_t n = (size_t)json_integer_value(json_array_get(packed, 0)),
           m = (size_t)json_integer_value(json_array_get(packed, 2));

    cr_assert(n + m <= before.len);
    *text = (struct strbuf){0};
    cr_assert_eq(strbuf_append(text, before.data, n, NULL), NUMOE_OK);
    cr_assert_eq(strbuf_append(text, json_string_value(middle), json_string_length(middle), NULL),
                 NUMOE_OK);
    cr_assert_eq(strbuf_append(text, before.data + before.len - m, m, NULL), NUMOE_OK);
    strbuf_fini(&before);
}

static void expect_error(const char *text, size_t n, const json_t *variables, const char *part)
{
    struct strbuf out = {0};
    numoe_error err = {0};

    cr_expect_eq(render(text, n, variables, NULL, &out, &err), NUMOE_E_INPUT, "%s", err.text);
    cr_expect_not_null(strstr(err.text, part), "\"%s\" is not in \"%s\"", part, err.text);
    strbuf_fini(&out);
}

static void expect_conversation(const char *name, const char *text, size_t n,
                                const json_t *expected, const json_t *conversation,
                                const json_t *want, struct strbuf *before)
{
    json_t *variables = json_deep_copy(json_object_get(expected, "defaults"));

    cr_assert_eq(json_object_update(variables, (json_t *)conversation), 0);
    if (json_is_object(want)) {
        expect_error(text, n, variables, json_string_value(json_object_get(want, "error")));
    } else {
        unpack_text(want, before);
        expect_text(name, text, n, variables, before->data);
    }
    json_decref(variables);
}

Test(jinja, public_templates)
{
    json_t *expected = load_json(test_src_path("tests/data/jinja/templates.json")), *texts, *want;
    const char *name, *which;
    size_t n_found = 0;

    json_object_foreach(json_object_get(expected, "templates"), name, texts)
    {
        struct strbuf before = {0};
        char rel[256];
        size_t n;
        snprintf(rel, sizeof(rel), "templates/%s", name);
        char *path = test_data_path(rel);
        if (path == NULL) {
            continue;
        }
        char *text = read_text(path, &n);
        cr_assert_eq(strbuf_append(&before, "", 0, NULL), NUMOE_OK);
        json_object_foreach(texts, which, want)
        {
            expect_conversation(name, text, n, expected,
                                json_object_get(json_object_get(expected, "conversations"), which),
                                want, &before);
        }
        strbuf_fini(&before);
        free(text);
        n_found++;
    }
    json_decref(expected);
    if (n_found == 0) {
        cr_skip_test("public templates are not there");
    }
    cr_expect_eq(n_found, 15u);
}

/* ------------------------------------------------------------------ errors */

static void expect_refused(const char *text, numoe_status status, const char *message)
{
    json_t *variables = json_pack("{s:[i,i,i], s:{s:s}}", "xs", 1, 2, 3, "d", "k", "v");
    struct strbuf out = {0};
    numoe_error err = {0};

    cr_expect_eq(render(text, strlen(text), variables, NULL, &out, &err), status, "%s: %s", text,
                 err.text);
    cr_expect_str_eq(err.text, message);
    cr_expect_null(out.data);
    json_decref(variables);
}

Test(jinja, errors_name_line_and_construct)
{
    expect_refused("a\n\n{{ xs | shuffle }}", NUMOE_E_SUPPORT,
                   "line 3: the filter 'shuffle' is not supported");
    expect_refused("{{ xs\n is prime }}", NUMOE_E_SUPPORT,
                   "line 2: the test 'prime' is not supported");
    expect_refused("\n{% include 'x' %}", NUMOE_E_SUPPORT,
                   "line 2: the tag 'include' is not supported");
    expect_refused("{{ 'a'.encode() }}", NUMOE_E_SUPPORT,
                   "line 1: the method 'encode' of str is not supported");
    expect_refused("{% for x in xs recursive %}{% endfor %}", NUMOE_E_SUPPORT,
                   "line 1: recursive loops are not supported");
    expect_refused("{{ 9223372036854775807 + 1 }}", NUMOE_E_SUPPORT,
                   "line 1: integers above 64 bits are not supported");
    expect_refused("{{ '\\N{BULLET}' }}", NUMOE_E_SUPPORT,
                   "line 1: string: characters by name (\\N{}) are not supported");
    expect_refused("{{ xs | map('string') }}", NUMOE_E_SUPPORT,
                   "line 1: a value of type 'generator' has no text");
    expect_refused("\r\n\r{{ 'x' + \n d.nope }}", NUMOE_E_INPUT,
                   "line 3: 'dict object' has no attribute 'nope'");
    expect_refused("{% macro m() %}\n{{ nope.x }}\n{% endmacro %}\n\n{{ m() }}", NUMOE_E_INPUT,
                   "line 2: 'nope' is undefined");
    expect_refused("{% if xs %}\n{% for x in xs %}\n{% endif %}", NUMOE_E_INPUT,
                   "line 3: unknown or unexpected tag 'endif'");
    expect_refused("\n{% if xs %}\n", NUMOE_E_INPUT, "line 2: what begins here has no 'endif'");
    expect_refused("{{ 'open\n }}", NUMOE_E_INPUT, "line 1: string has no end");
    expect_refused("{{ 99999999999999999999 }}", NUMOE_E_INPUT,
                   "line 1: number \"99999999999999999999\" is wrong or too large");
    expect_refused("{{ '\\ud800' }}", NUMOE_E_INPUT,
                   "line 1: string: escape U+D800 is no character");
    expect_refused("{{ raise_exception('no\nway') }}", NUMOE_E_INPUT, "line 1: no?way");
}

/* ------------------------------------------------------------------ limits */

static void expect_limit(const char *text, const char *part)
{
    const struct jinja_options options = {
        .max_steps = 2000000, .max_memory_bytes = 32 << 20, .max_output_bytes = 1 << 20};
    json_t *variables = json_object();
    struct strbuf out = {0};
    numoe_error err = {0};
    struct timespec begin, end;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
    cr_expect_eq(render(text, strlen(text), variables, &options, &out, &err), NUMOE_E_INPUT, "%s",
                 text);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
    cr_expect_not_null(strstr(err.text, part), "%s: \"%s\" is not in \"%s\"", text, part, err.text);
    cr_expect_lt(end.tv_sec - begin.tv_sec, 10, "%s: takes %ld s", text,
                 (long)(end.tv_sec - begin.tv_sec));
    cr_expect_null(out.data);
    json_decref(variables);
}

#define LOOP4 "{% for a in range(9999) %}{% for b in range(9999) %}"
#define END4  "{% endfor %}{% endfor %}"

Test(jinja, hostile_templates_end)
{
    expect_limit(LOOP4 END4, "memory");
    expect_limit("{% for a in range(9999) %}{{ range(9999) | sum and '' }}{% endfor %}", "than");
    expect_limit(LOOP4 "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" END4, "text of more than");
    expect_limit("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "levels deep");
    expect_limit("{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}"
                 "{{ m(60) }}",
                 "memory");
    expect_limit("{% set l = [] %}{% set _ = l.append(l) %}{{ l }}", "levels deep");
    expect_limit("{% set l = [] %}{% set _ = l.append(l) %}{{ l | tojson }}", "levels deep");
    expect_limit("{% set l = [] %}{% set _ = l.append(l) %}{% set m = [] %}"
                 "{% set _ = m.append(m) %}{{ l == m }}",
                 "levels deep");
    expect_limit("{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(99) %}"
                 "{% set ns.s = ns.s + ns.s %}{% endfor %}",
                 "memory");
    expect_limit("{{ 'a' * 99999999999 }}", "steps");
    expect_limit("{{ 'ab' * 9223372036854775807 }}", "more than");
    expect_limit("{{ [1] * 99999999999 }}", "than");
    expect_limit("{{ 'x' | indent(999999999) }}", "than");
    expect_limit("{{ 'x'.center(999999999999) }}", "than");
    expect_limit("{{ '%9999d' % 1 * 9999 }}", "than");
    expect_limit("{% set s = 'a' * 999999 %}{{ s.replace('a', s) }}", "than");
    expect_limit("{% set s = 'a' * 999999 %}{{ s | replace('', s) }}", "than");
    expect_limit("{% set s = 'a' * 99999 %}{% for i in range(99999) %}{{ s.rfind('b' + s) }}"
                 "{% endfor %}",
                 "than");
    expect_limit("{% set s = 'a' * 999999 %}{% for c in s %}{{ s[-1] }}{% endfor %}", "memory");
    expect_limit("{% set s = ('a' * 99999) %}{% set t = 'b' + 'a' * 49999 %}"
                 "{% for i in range(9999) %}{% if s.rfind(t) > 0 %}{% endif %}{% endfor %}",
                 "steps");
    expect_limit("{{ range(100000) | map('string') | unique | list | length }}", "steps");
    expect_limit("{% set l = range(100000) | list %}{% set l = l + l %}{% set l = l + l %}"
                 "{% set l = l + l %}{% set l = l + l %}{{ l | sort | length }}",
                 "than");
    expect_limit("{{ range(100001) }}", "range: more than");
    expect_limit("{% for i in range(99999) %}{% set q = '[[[[[[[[[1]]]]]]]]]' | from_json %}"
                 "{% endfor %}",
                 "than");
}

static char *repeated(const char *part, size_t n, const char *end)
{
    size_t len = strlen(part);
    char *text = malloc(n * len + strlen(end) + 1);

    cr_assert_not_null(text);
    for (size_t i = 0; i < n; i++) {
        memcpy(text + i * len, part, len);
    }
    strcpy(text + n * len, end);
    return text;
}

Test(jinja, deep_templates_are_refused)
{
    static const char *const parts[][3] = {
        {"{% if 1 %}", "", "nested more than"},

        {"{% for a in [1] %}", "", "nested more than"},
        {"{{ [", "", "nested brackets"},
        {"{% macro m() %}", "", "nested more than"},
        {"{% if x %}{% elif ", "", ""},
        {"{%", "", ""},
        {"{#", "", "comment has no end"},
        {"{{ '", "", ""},
        {"{{ ((((", "", ""},
    };
    json_t *variables = json_object();

    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        char *text = repeated(parts[i][0], 100000, parts[i][1]);
        expect_error(text, strlen(text), variables, parts[i][2]);
        free(text);
    }
    char *text = repeated("not ", 100000, "1 }}");
    char *tag = repeated("{{ 1", 1, "");
    struct strbuf all = {0};
    cr_assert_eq(strbuf_printf(&all, NULL, "{{ %s", text), NUMOE_OK);
    expect_error(all.data, all.len, variables, "nested more than");
    strbuf_fini(&all);
    free(text);
    text = repeated(" + 1", 100000, " }}");
    cr_assert_eq(strbuf_printf(&all, NULL, "%s%s", tag, text), NUMOE_OK);
    expect_error(all.data, all.len, variables, "levels deep");
    strbuf_fini(&all);
    free(text);
    free(tag);
    json_decref(variables);
}

/* JSON that a caller has built can be deeper than a parser would have allowed. */
Test(jinja, deep_variables_are_refused)
{
    json_t *deep = json_integer(1), *variables = json_object();

    for (int i = 0; i < 2000; i++) {
        json_t *outer = json_array();
        json_array_append_new(outer, deep);
        deep = outer;
    }
    json_object_set_new(variables, "x", deep);
    expect_error("{{ x }}", 7, variables, "levels deep");
    json_decref(variables);
}

Test(jinja, texts_need_not_be_utf8)
{
    static const char text[] = "{{ s }}|{{ s | length }}|{{ s[2] }}|{{ s[::-1] }}|"
                               "{{ s | upper }}|{{ s | tojson }}",
                      want[] = "a\xff\xe4\xb8z|5|\xe4|z\xb8\xe4\xff"
                               "a|A\xff\xe4\xb8Z|\"a\xff\xe4\xb8z\"";
    json_t *variables = json_object();

    json_object_set_new(variables, "s", json_stringn_nocheck("a\xff\xe4\xb8z", 5));
    expect_text("bytes", text, strlen(text), variables, want);
    json_decref(variables);
}

/* A template is rendered many times; what one rendering changes, the next does not see. */
Test(jinja, renderings_are_independent)
{
    static const char text[] = "{% set _ = xs.append(4) %}{% set y = (y | default(0)) + 1 %}"
                               "{{ xs }}{{ y }}";
    json_t *variables = json_pack("{s:[i]}", "xs", 1);
    struct jinja_template *t;
    struct strbuf out = {0};

    cr_assert_eq(jinja_parse(text, strlen(text), &t, NULL), NUMOE_OK);
    for (int i = 0; i < 2; i++) {
        cr_expect_eq(jinja_render(t, variables, NULL, &out, NULL), NUMOE_OK);
    }
    cr_expect_str_eq(out.data, "[1, 4]1[1, 4]1");
    strbuf_fini(&out);
    jinja_free(t);
    json_decref(variables);
}
