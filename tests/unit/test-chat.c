/* model/chat: conversations as Python's jinja2 renders them (tests/data/chat), and what is refused.
 */
#include <criterion/criterion.h>

#include <jansson.h>

#include "model/chat.h"
#include "tests/unit/testdata.h"

static struct gguf *g;
static struct tokenizer *tok;
static struct gguf_value *value; /* the file's template, replaced while rendering */

static void open_model(void)
{
    numoe_error err = {0};
    char *path = test_src_path("model/fable/fable-moe-Q4_K_M.gguf");

    cr_assert_not_null(path);
    cr_assert_eq(gguf_open(path, &g, &err), NUMOE_OK, "%s", err.text);
    cr_assert_eq(tokenizer_open(g, &tok, &err), NUMOE_OK, "%s", err.text);
    free(path);
    for (uint64_t i = 0; i < g->n_kv; i++) {
        const struct gguf_string *key = &g->kv[i].key;
        if (key->len == 23 && memcmp(key->data, "tokenizer.chat_template", 23) == 0) {
            value = &g->kv[i].value;
        }
    }
    cr_assert_not_null(value);
}

static void close_model(void)
{
    tokenizer_close(tok);
    gguf_close(g);
}

TestSuite(chat, .init = open_model, .fini = close_model);

/* text NULL: the file's own template. */
static numoe_status render(const char *text, const numoe_message *m, size_t n, bool prompt,
                           struct strbuf *out, numoe_error *err)
{
    const struct gguf_string *in_file = value->str;
    struct gguf_string other = {text, text == NULL ? 0 : strlen(text)};

    value->str = text == NULL ? in_file : &other;
    numoe_status status = chat_render(g, tok, m, n, prompt, out, err);
    value->str = in_file;
    return status;
}

static size_t load_chat(const json_t *chat, numoe_message *m, size_t cap)
{
    size_t n = json_array_size(chat);

    cr_assert(n > 0 && n <= cap);
    for (size_t i = 0; i < n; i++) {
        const json_t *turn = json_array_get(chat, i);
        m[i].role = json_string_value(json_object_get(turn, "role"));
        m[i].content = json_string_value(json_object_get(turn, "content"));
    }
    return n;
}

static void expect_chats(const char *name, const char *text, const json_t *want,
                         const json_t *chats)
{
    cr_assert_geq(json_array_size(want) + 1, json_array_size(chats));
    for (size_t i = 0; i < json_array_size(want); i++) {
        numoe_message m[16];
        size_t n = load_chat(json_array_get(chats, i), m, 16);
        for (size_t prompt = 0; prompt < 2; prompt++) {
            struct strbuf out = {0};
            numoe_error err = {0};
            cr_assert_eq(strbuf_append(&out, "before", 6, NULL), NUMOE_OK);
            cr_assert_eq(render(text, m, n, prompt == 1, &out, &err), NUMOE_OK, "%s: %s", name,
                         err.text);
            cr_expect_str_eq(out.data + 6,
                             json_string_value(json_array_get(json_array_get(want, i), prompt)),
                             "%s: conversation %zu", name, i);
            strbuf_fini(&out);
        }
    }
}

static char *read_text(char *path)
{
    static char text[65536];
    FILE *file = fopen(path, "rb");

    cr_assert_not_null(file, "%s", path);
    size_t n = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    free(path);
    text[n] = '\0';
    return text;
}

static json_t *load_json(char *path)
{
    json_error_t error;

    cr_assert_not_null(path);
    json_t *root = json_load_file(path, 0, &error);
    cr_assert_not_null(root, "%s: %s", path, error.text);
    free(path);
    return root;
}

static void expect_template(const char *name, const json_t *want, const json_t *chats, bool public)
{
    char path[256];

    snprintf(path, sizeof(path), "%s%s", public ? "" : "tests/data/chat/", name);
    char *found = public ? test_data_path(path) : test_src_path(path);
    if (public && found == NULL) {
        return;
    }
    cr_assert_not_null(found, "%s", path);
    if (strstr(name, ".json") != NULL) {
        json_t *config = load_json(found);
        expect_chats(name, json_string_value(json_object_get(config, "chat_template")), want,
                     chats);
        json_decref(config);
    } else {
        expect_chats(name, read_text(found), want, chats);
    }
}

Test(chat, known_forms)
{
    json_t *expected = load_json(test_src_path("tests/data/chat/expected.json"));
    const json_t *chats = json_object_get(expected, "chats");
    const char *name;
    json_t *want;
    size_t n = 0;

    json_object_foreach(json_object_get(expected, "templates"), name, want)
    {
        if (strcmp(name, "model") == 0) {
            expect_chats(name, NULL, want, chats);
        } else if (strchr(name, '/') == NULL) {
            expect_template(name, want, chats, false);
        } else {
            continue;
        }
        n++;
    }
    cr_expect_eq(n, 7);
    json_decref(expected);
}

Test(chat, public_templates)
{
    char *there = test_data_path("templates/Qwen-Qwen3-0.6B.jinja");
    if (there == NULL) {
        cr_skip_test("public templates are not there");
    }
    free(there);
    json_t *expected = load_json(test_src_path("tests/data/chat/expected.json"));
    const char *name;
    json_t *want;
    size_t n = 0;

    json_object_foreach(json_object_get(expected, "templates"), name, want)
    {
        if (strchr(name, '/') != NULL) {
            expect_template(name, want, json_object_get(expected, "chats"), true);
            n++;
        }
    }
    cr_expect_eq(n, 4);
    json_decref(expected);
}

static void expect_refused(const char *text, const char *role, numoe_status status,
                           const char *part)
{
    const numoe_message m = {role, "x"};
    struct strbuf out = {0};
    numoe_error err = {0};

    cr_assert_eq(strbuf_append(&out, "before", 6, NULL), NUMOE_OK);
    cr_expect_eq(render(text, &m, 1, true, &out, &err), status, "%s", err.text);
    cr_expect_not_null(strstr(err.text, part), "\"%s\" is not in \"%s\"", part, err.text);
    cr_expect_str_eq(out.data, "before");
    strbuf_fini(&out);
}

Test(chat, other_templates_are_refused)
{
    expect_refused("{% for m in messages %}[INST] {{ m }}", "user", NUMOE_E_SUPPORT,
                   "it begins \"{% for m in messages %}[INST]");
    expect_refused("", "user", NUMOE_E_SUPPORT, "is missing");
    expect_refused(NULL, "tool", NUMOE_E_INPUT, "\"tool\"");
    /* Nearly ChatML: what a filter does to the text is not known. */
    expect_refused("{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content | trim + "
                   "'<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}"
                   "{{ '<|im_start|>assistant\\n' }}{% endif %}",
                   "user", NUMOE_E_SUPPORT, "none of the known forms");
}

Test(chat, other_public_templates_are_refused)
{
    static const char *const names[] = {
        "Cohere2MoE",
        "GLM-4.6",
        "GLM-4.7-Flash",
        "GigaChat3-10B-A1.8B",
        "Kimi-K2-Instruct",
        "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        "Qwen3.5-4B",
        "deepseek-ai-DeepSeek-V4",
        "ibm-granite-granite-3.3-2B-Instruct",
        "mistralai-Mistral-Nemo-Instruct-2407",
        "moonshotai-Kimi-K2",
        "openai-gpt-oss-120b",
    };
    size_t n = 0;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char path[256];
        snprintf(path, sizeof(path), "templates/%s.jinja", names[i]);
        char *found = test_data_path(path);
        if (found != NULL) {
            expect_refused(read_text(found), "user", NUMOE_E_SUPPORT, "none of the known forms");
            n++;
        }
    }
    if (n == 0) {
        cr_skip_test("public templates are not there");
    }
}
