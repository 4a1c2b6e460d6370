/* model/chat: conversations through the templates of files, of others' models and of the library,
 * as Python's jinja2 renders them (tests/data/chat); what is given to a template; what is refused.
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

/* in_file NULL: the file's own template. Takes the request over. */
static numoe_status render(const char *in_file, const char *source, json_t *request,
                           struct strbuf *out, numoe_error *err)
{
    const struct gguf_string *own = value->str;
    struct gguf_string other = {in_file, in_file == NULL ? 0 : strlen(in_file)};
    struct chat *chat;

    value->str = in_file == NULL ? own : &other;
    numoe_status status = chat_open(g, tok, source, &chat, err);
    if (status == NUMOE_OK) {
        status = chat_render(chat, request, 0, out, err);
        chat_close(chat);
    }
    value->str = own;
    json_decref(request);
    return status;
}

static json_t *new_request(const numoe_message *m, size_t n, bool prompt)
{
    numoe_error err = {0};
    json_t *request;

    cr_assert_eq(chat_request(m, n, prompt, &request, &err), NUMOE_OK, "%s", err.text);
    return request;
}

static void expect_text(const char *in_file, const char *source, json_t *request, const char *want)
{
    struct strbuf out = {0};
    numoe_error err = {0};

    cr_assert_eq(strbuf_append(&out, "before", 6, NULL), NUMOE_OK);
    cr_assert_eq(render(in_file, source, request, &out, &err), NUMOE_OK, "%s", err.text);
    cr_expect_str_eq(out.data + 6, want);
    strbuf_fini(&out);
}

/* ------------------------------------------------------------------ as jinja2 has them */

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

static void expect_chats(const char *text, const json_t *want, const json_t *chats)
{
    cr_assert_geq(json_array_size(want) + 1, json_array_size(chats));
    for (size_t i = 0; i < json_array_size(want); i++) {
        numoe_message m[16];
        size_t n = load_chat(json_array_get(chats, i), m, 16);
        for (size_t prompt = 0; prompt < 2; prompt++) {
            expect_text(text, NULL, new_request(m, n, prompt == 1),
                        json_string_value(json_array_get(json_array_get(want, i), prompt)));
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
    cr_assert_not_null(found, "%s", path);
    if (strstr(name, ".json") != NULL) {
        json_t *config = load_json(found);
        expect_chats(json_string_value(json_object_get(config, "chat_template")), want, chats);
        json_decref(config);
    } else {
        expect_chats(read_text(found), want, chats);
    }
}

Test(chat, own_templates)
{
    json_t *expected = load_json(test_src_path("tests/data/chat/expected.json"));
    const json_t *chats = json_object_get(expected, "chats");
    const char *name;
    json_t *want;
    size_t n = 0;

    json_object_foreach(json_object_get(expected, "templates"), name, want)
    {
        if (strcmp(name, "model") == 0) {
            expect_chats(NULL, want, chats);
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

/* ------------------------------------------------------------------ what a template is given */

static json_t *parse(const char *text)
{
    json_error_t error;
    json_t *json = json_loads(text, 0, &error);

    cr_assert_not_null(json, "%s: %s", text, error.text);
    return json;
}

Test(chat, variables)
{
    static const char show[] = "{{ bos_token }} {{ eos_token }} {{ add_generation_prompt }} "
                               "{{ tools }} {{ documents }} {{ chat_template is defined }} "
                               "{{ messages[0].content }} {{ enable_thinking }}";

    expect_text(show, NULL, parse("{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}"),
                "<｜begin▁of▁sentence｜> <｜end▁of▁sentence｜> True None None False Hi ");
    expect_text(show, NULL,
                parse("{\"messages\": [{\"role\": \"user\", \"content\": null}], \"tools\": [1],"
                      "\"bos_token\": \"B\", \"eos_token\": \"E\", \"documents\": [],"
                      "\"add_generation_prompt\": false, \"enable_thinking\": true}"),
                "B E False [1] [] False None True");
}

Test(chat, arguments_of_calls)
{
    static const char show[] = "{% for c in messages[0].tool_calls %}"
                               "{{ (c.function or c).arguments | tojson }};{% endfor %}";

    expect_text(
        show, NULL,
        parse("{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": ["
              "{\"function\": {\"arguments\": \"{\\\"a\\\": [1, 2.50]}\"}},"
              "{\"arguments\": \"{}\"}, {\"function\": {\"arguments\": {\"b\": 1}}},"
              "{\"function\": {\"arguments\": \"[1]\"}},"
              "{\"function\": {\"arguments\": \"{\"}}, {\"function\": {}, \"arguments\": 5},"
              "{\"arguments\": \"\"}]}]}"),
        "{\"a\": [1, 2.5]};{};{\"b\": 1};\"[1]\";\"{\";5;\"\";");
}

Test(chat, texts_need_not_be_utf8)
{
    const numoe_message m = {"user", "a\xff\xe4"};

    expect_text("{{ messages[0].content }}", NULL, new_request(&m, 1, true), "a\xff\xe4");
}

/* ------------------------------------------------------------------ other templates */

Test(chat, another_template)
{
    const numoe_message m = {"user", "Hi"};
    json_t *request = new_request(&m, 1, true);

    expect_text(NULL, "<{{ messages[0].content }}>", new_request(&m, 1, true), "<Hi>");
    expect_text(NULL, "chatml", new_request(&m, 1, true),
                "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    /* what the request says comes first */
    json_object_set_new(request, "chat_template", json_string("{% if 1 %}2{% endif %}"));
    expect_text(NULL, "chatml", json_incref(request), "2");
    json_object_set_new(request, "chat_template", json_string("deepseek-v2"));
    expect_text("no template", NULL, json_incref(request),
                "<｜begin▁of▁sentence｜>User: Hi\n\nAssistant:");
    json_object_set_new(request, "chat_template", json_null());
    expect_text(NULL, "<{{ messages[0].content }}>", request, "<Hi>");
}

#define BOS "<｜begin▁of▁sentence｜>"
#define EOS "<｜end▁of▁sentence｜>"

Test(chat, builtin_templates)
{
    static const struct {
        const char *name, *text, *prompt;
    } want[] = {
        {"chatml",
         "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n"
         "<|im_start|>assistant\nA<|im_end|>\n<|im_start|>user\nV<|im_end|>\n",
         "<|im_start|>assistant\n"},
        {"deepseek-v2", BOS "S\n\nUser: U\n\nAssistant: A" EOS "User: V\n\n", "Assistant:"},
        {"deepseek-v3", BOS "S<｜User｜>U<｜Assistant｜>A" EOS "<｜User｜>V", "<｜Assistant｜>"},
        {"deepseek-v3.1", BOS "S<｜User｜>U<｜Assistant｜></think>A" EOS "<｜User｜>V",
         "<｜Assistant｜></think>"},
        {"glm4", "[gMASK]<sop><|system|>\nS<|user|>\nU<|assistant|>\nA<|user|>\nV",
         "<|assistant|>\n"},
        {"gpt-oss",
         "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
         "Knowledge cutoff: 2024-06\nCurrent date: 2026-01-02\n\nReasoning: medium\n\n"
         "# Valid channels: analysis, commentary, final. Channel must be included for every "
         "message.<|end|><|start|>developer<|message|># Instructions\n\nS<|end|>"
         "<|start|>user<|message|>U<|end|>"
         "<|start|>assistant<|channel|>final<|message|>A<|end|>"
         "<|start|>user<|message|>V<|end|>",
         "<|start|>assistant"},
        {"granite",
         "<|start_of_role|>system<|end_of_role|>S<|end_of_text|>\n"
         "<|start_of_role|>user<|end_of_role|>U<|end_of_text|>\n"
         "<|start_of_role|>assistant<|end_of_role|>A<|end_of_text|>\n"
         "<|start_of_role|>user<|end_of_role|>V<|end_of_text|>\n",
         "<|start_of_role|>assistant<|end_of_role|>"},
        {"kimi-k2",
         "<|im_system|>system<|im_middle|>S<|im_end|><|im_user|>user<|im_middle|>U<|im_end|>"
         "<|im_assistant|>assistant<|im_middle|>A<|im_end|><|im_user|>user<|im_middle|>V<|im_end|>",
         "<|im_assistant|>assistant<|im_middle|>"},
        {"llama3",
         BOS "<|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
             "<|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|>"
             "<|start_header_id|>assistant<|end_header_id|>\n\nA<|eot_id|>"
             "<|start_header_id|>user<|end_header_id|>\n\nV<|eot_id|>",
         "<|start_header_id|>assistant<|end_header_id|>\n\n"},
        {"mistral", BOS "[INST] S\n\nU [/INST] A" EOS "[INST] V [/INST]", ""},
        {"olmoe", BOS "<|system|>\nS\n<|user|>\nU\n<|assistant|>\nA" EOS "\n<|user|>\nV\n",
         "<|assistant|>\n"},
    };
    static const numoe_message m[] = {
        {"system", "S"}, {"user", "U"}, {"assistant", "A"}, {"user", "V"}};

    setenv("TZ", "UTC", 1);
    for (size_t i = 0; i < ARRAY_LEN(want); i++) {
        cr_assert_str_eq(chat_builtin_name(i), want[i].name);
        for (int prompt = 0; prompt < 2; prompt++) {
            struct strbuf out = {0};
            struct chat *chat;
            numoe_error err = {0};
            json_t *request = new_request(m, ARRAY_LEN(m), prompt);
            cr_assert_eq(chat_open(g, tok, want[i].name, &chat, &err), NUMOE_OK, "%s", err.text);
            cr_assert_eq(chat_render(chat, request, 1767323045, &out, &err), NUMOE_OK, "%s",
                         err.text);
            size_t n = strlen(want[i].text);
            cr_assert_geq(out.len, n);
            cr_expect_arr_eq(out.data, want[i].text, n, "%s: %s", want[i].name, out.data);
            cr_expect_str_eq(out.data + n, prompt ? want[i].prompt : "", "%s", want[i].name);
            strbuf_fini(&out);
            chat_close(chat);
            json_decref(request);
        }
    }
    cr_expect_null(chat_builtin_name(ARRAY_LEN(want)));
}

/* ------------------------------------------------------------------ contents in parts */

#define TEXTS   "[{'type': 'text', 'text': 'One'}, {'type': 'text', 'text': 'two'}]"
#define STRINGS "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
#define LISTS                                                                                      \
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}"             \
    "{% else %}{% for p in m.content %}{{ p.text }}|{% endfor %}{% endif %}{% endfor %}"
#define USER_LISTS                                                                                 \
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'user' and m.content is not string %}"   \
    "{{ m.content | map(attribute='text') | join('|') }}{% else %}{{ m.content }}{% endif %}"      \
    "{% endfor %}"

static json_t *in_parts(const char *role, const char *content)
{
    char text[512];

    snprintf(text, sizeof text, "{'messages': [{'role': '%s', 'content': %s}]}", role, content);
    for (char *p = text; *p; p++) {
        *p = *p == '\'' ? '"' : *p;
    }
    return json_loads(text, 0, NULL);
}

Test(chat, contents_in_parts_become_a_text_where_the_template_wants_one)
{
    expect_text(STRINGS, NULL, in_parts("user", TEXTS), "<user>One\ntwo");
    expect_text("{{ messages[0].content + '!' }}", NULL, in_parts("user", TEXTS), "One\ntwo!");
    expect_text("{{ messages[0].content | tojson }}", NULL, in_parts("user", TEXTS),
                "\"One\\ntwo\"");
    expect_text(STRINGS, NULL, in_parts("user", "[]"), "<user>");
    expect_text(STRINGS, NULL, in_parts("user", "'plain'"), "<user>plain");
    expect_text(LISTS, NULL, in_parts("user", TEXTS), "<user>One|two|");
    expect_text(USER_LISTS, NULL, in_parts("user", TEXTS), "<user>One|two");
    expect_text(USER_LISTS, NULL, in_parts("system", TEXTS), "<system>One\ntwo");
    expect_text(USER_LISTS, NULL, in_parts("assistant", TEXTS), "<assistant>One\ntwo");
    expect_text(USER_LISTS, NULL,
                in_parts("user", TEXTS "}, {'role': 'assistant', 'content': " TEXTS
                                       "}, {'role': 'user', 'content': " TEXTS),
                "<user>One|two<assistant>One\ntwo<user>One|two");
}

/* ------------------------------------------------------------------ refused */

static void expect_refused(const char *in_file, const char *source, const char *request,
                           numoe_status status, const char *part)
{
    struct strbuf out = {0};
    numoe_error err = {0};

    cr_assert_eq(strbuf_append(&out, "before", 6, NULL), NUMOE_OK);
    cr_expect_eq(render(in_file, source, parse(request), &out, &err), status, "%s", err.text);
    cr_expect_eq(err.status, status);
    cr_expect_not_null(strstr(err.text, part), "\"%s\" is not in \"%s\"", part, err.text);
    cr_expect_str_eq(out.data, "before");
    strbuf_fini(&out);
}

#define HI "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}"

Test(chat, templates_are_refused)
{
    expect_refused("", NULL, HI, NUMOE_E_FILE_MODEL,
                   "the model's file has no tokenizer.chat_template: name one with "
                   "--chat-template: a file, or one of chatml, deepseek-v2, deepseek-v3, ");
    expect_refused("a\n{% for m in messages %}", NULL, HI, NUMOE_E_FILE_FORMAT,
                   "tokenizer.chat_template: line 2: what begins here has no 'endfor'");
    expect_refused("{{ messages | nope }}", NULL, HI, NUMOE_E_SUPPORT,
                   "tokenizer.chat_template: line 1: the filter 'nope' is not supported");
    expect_refused("{{ raise_exception('not this') }}", NULL, HI, NUMOE_E_INPUT,
                   "tokenizer.chat_template: line 1: not this");
    expect_refused(NULL, "nope", HI, NUMOE_E_INPUT,
                   "\"nope\" is no chat template: name one with --chat-template");
    expect_refused(NULL, "{{", HI, NUMOE_E_INPUT, "chat template: line 1: tag has no end");
    expect_refused(
        NULL, NULL,
        "{\"messages\": [{\"role\": \"user\", \"content\": \"\"}], \"chat_template\": 5}",
        NUMOE_E_INPUT, "chat_template: must be a string");
}

Test(chat, conversations_are_refused)
{
    static const numoe_message bad[] = {{"tool", "x"}, {NULL, "x"}, {"user", NULL}};
    static const char *const why[] = {"message 0: role \"tool\" is none of", "lacks a role",
                                      "lacks a role"};
    json_t *request = NULL;
    numoe_error err = {0};

    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        cr_expect_eq(chat_request(&bad[i], 1, true, &request, &err), NUMOE_E_INPUT);
        cr_expect_not_null(strstr(err.text, why[i]), "%s", err.text);
    }
    cr_expect_null(request);
    expect_refused(NULL, NULL, "{}", NUMOE_E_INPUT, "messages: must be a list");
    expect_refused(NULL, NULL, "{\"messages\": []}", NUMOE_E_INPUT, "messages: must be a list");
    expect_refused(NULL, NULL, "{\"messages\": [5]}", NUMOE_E_INPUT, "message 0: lacks a role");
    expect_refused(NULL, NULL, "{\"messages\": [{\"role\": 5}]}", NUMOE_E_INPUT, "lacks a role");
}

Test(chat, parts_that_are_no_text_are_refused)
{
#define PARTS(part)                                                                                \
    "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": "           \
    "\"x\"}, " part "]}]}"
    expect_refused(LISTS, NULL, PARTS("{\"type\": \"image_url\", \"image_url\": {}}"),
                   NUMOE_E_INPUT, "message 0: content part 1 has the type \"image_url\": only");
    expect_refused(NULL, NULL, PARTS("{\"type\": \"text\"}"), NUMOE_E_INPUT, "lacks a text");
    expect_refused(NULL, NULL, PARTS("5"), NUMOE_E_INPUT, "content part 1 lacks a type");
}

Test(chat, builtin_templates_refuse_what_they_do_not_know)
{
    static const char tools[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}],"
                                "\"tools\": [{\"type\": \"function\"}]}",
                      parts[] = "{\"messages\": [{\"role\": \"user\", \"content\": {}}]}",
                      role[] = "{\"messages\": [{\"role\": \"tool\", \"content\": \"x\"}]}";

    for (size_t i = 0; chat_builtin_name(i) != NULL; i++) {
        const char *name = chat_builtin_name(i);
        expect_refused(NULL, name, tools, NUMOE_E_INPUT, "this template knows no tools");
        expect_refused(NULL, name, parts, NUMOE_E_INPUT, "content that is a text only");
        if (strcmp(name, "chatml") != 0 && strcmp(name, "llama3") != 0) {
            expect_refused(NULL, name, role, NUMOE_E_INPUT, "knows no role \"tool\"");
        }
    }
}
