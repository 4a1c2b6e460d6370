/* Chat templates: which one, and with what. The template is run by jinja.h; here is what
 * transformers does around it: the variables that templates expect, the template for tools where a
 * file has one of its own for them.
 */
#include "model/chat.h"

#include <stdio.h>
#include <string.h>

#include "model/jinja.h"

#define OWN_KEY   "tokenizer.chat_template"
#define TOOLS_KEY "tokenizer.chat_template.tool_use"
#define PROBE     "numoe-probe" /* a text by which it is seen what a template takes */

struct chat {
    const struct gguf *g;
    const struct tokenizer *tok;
    struct strbuf source; /* empty: the file's own */
};

/* A template and what to call it. */
struct source {
    const char *name;
    struct gguf_string text;
    bool in_file;
};

/* ------------------------------------------------------------------ which template */

/* "chatml, deepseek-v2 ..." */
static numoe_status fail_choice(numoe_status status, const char *what, numoe_error *err)
{
    struct strbuf names = {0};
    const char *name;

    for (size_t i = 0; (name = chat_builtin_name(i)) != NULL; i++) {
        if (strbuf_printf(&names, err, "%s%s", i == 0 ? "" : ", ", name) != NUMOE_OK) {
            break;
        }
    }
    status = status_fail(err, status, "%s: name one with --chat-template: a file, or one of %s",
                         what, names.data == NULL ? "" : names.data);
    strbuf_fini(&names);
    return status;
}

static bool is_template(const char *text)
{
    return strstr(text, "{{") != NULL || strstr(text, "{%") != NULL;
}

static numoe_status find_named(const char *source, struct source *out, numoe_error *err)
{
    const char *builtin = chat_builtin_text(source);
    char what[120];

    if (builtin == NULL && !is_template(source)) {
        snprintf(what, sizeof(what), "\"%.60s\" is no chat template", source);
        return fail_choice(NUMOE_E_INPUT, what, err);
    }
    *out = (struct source){.name = builtin != NULL ? source : "chat template",
                           .text.data = builtin != NULL ? builtin : source};
    out->text.len = strlen(out->text.data);
    return NUMOE_OK;
}

static numoe_status find_in_file(const struct gguf *g, bool for_tools, struct source *out,
                                 numoe_error *err)
{
    struct source s = {.in_file = true};

    if (for_tools) {
        s.name = TOOLS_KEY;
        FORWARD_IF(gguf_get_string(g, TOOLS_KEY, false, &s.text, err));
    }
    if (s.text.len == 0) {
        s.name = OWN_KEY;
        FORWARD_IF(gguf_get_string(g, OWN_KEY, false, &s.text, err));
    }
    if (s.text.len == 0) {
        return fail_choice(NUMOE_E_FILE_MODEL, "the model's file has no " OWN_KEY, err);
    }
    *out = s;
    return NUMOE_OK;
}

/* A text that is no template is the fault of who wrote the file, not of the request. */
static numoe_status parse_source(const struct source *s, struct jinja_template **out,
                                 numoe_error *err)
{
    numoe_status status = jinja_parse(s->text.data, s->text.len, out, err);

    if (status == NUMOE_E_INPUT && s->in_file) {
        status = NUMOE_E_FILE_FORMAT;
        if (err != NULL) {
            err->status = status;
        }
    }
    return status == NUMOE_OK ? status : status_context(err, status, "%s", s->name);
}

static numoe_status check_source(const char *text, numoe_error *err)
{
    struct jinja_template *t;
    struct source s;

    FORWARD_IF(find_named(text, &s, err));
    FORWARD_IF(parse_source(&s, &t, err));
    jinja_free(t);
    return NUMOE_OK;
}

numoe_status chat_open(const struct gguf *g, const struct tokenizer *tok, const char *source,
                       struct chat **out, numoe_error *err)
{
    struct chat *chat;

    if (source != NULL) {
        FORWARD_IF(check_source(source, err));
    }
    FORWARD_IF(mem_new(&chat, 1, sizeof(*chat), "chat template", err));
    chat->g = g;
    chat->tok = tok;
    numoe_status status =
        source == NULL ? NUMOE_OK : strbuf_append(&chat->source, source, strlen(source), err);
    if (status != NUMOE_OK) {
        chat_close(chat);
        return status;
    }
    *out = chat;
    return NUMOE_OK;
}

void chat_close(struct chat *chat)
{
    if (chat != NULL) {
        strbuf_fini(&chat->source);
        mem_free(chat);
    }
}

/* ------------------------------------------------------------------ with what */

static numoe_status fail_memory(numoe_error *err)
{
    return status_fail(err, NUMOE_E_MEMORY, "chat: no memory for the conversation");
}

/* Takes value over; false where there is no memory, or no value for that reason. */
static bool set(json_t *object, const char *name, json_t *value)
{
    return json_object_set_new_nocheck(object, name, value) == 0;
}

/* Texts may hold invalid UTF-8, which is tokenized bytewise. */
static json_t *new_text(const char *text, size_t n)
{
    return json_stringn_nocheck(text, n);
}

/* A plain conversation has no other roles: most templates would leave their messages out
 * silently. */
static numoe_status check_message(const numoe_message *m, size_t i, numoe_error *err)
{
    if (m->role == NULL || m->content == NULL) {
        return status_fail(err, NUMOE_E_INPUT, "message %zu: lacks a role or content", i);
    }
    if (strcmp(m->role, "system") != 0 && strcmp(m->role, "user") != 0 &&
        strcmp(m->role, "assistant") != 0) {
        return status_fail(err, NUMOE_E_INPUT,
                           "message %zu: role \"%.20s\" is none of \"system\", \"user\", "
                           "\"assistant\"",
                           i, m->role);
    }
    return NUMOE_OK;
}

numoe_status chat_request(const numoe_message *messages, size_t n_message,
                          bool add_generation_prompt, json_t **out, numoe_error *err)
{
    json_t *request = json_object(), *list = json_array();
    bool ok = set(request, "messages", list) &&
              set(request, "add_generation_prompt", json_boolean(add_generation_prompt));

    for (size_t i = 0; i < n_message && ok; i++) {
        const numoe_message *m = &messages[i];
        numoe_status status = check_message(m, i, err);
        if (status != NUMOE_OK) {
            json_decref(request);
            return status;
        }
        json_t *message = json_object();
        ok = set(message, "role", new_text(m->role, strlen(m->role))) &&
             set(message, "content", new_text(m->content, strlen(m->content)));
        ok = json_array_append_new(list, message) == 0 && ok;
    }
    if (!ok) {
        json_decref(request);
        return fail_memory(err);
    }
    *out = request;
    return NUMOE_OK;
}

static numoe_status check_messages(const json_t *messages, numoe_error *err)
{
    if (!json_is_array(messages) || json_array_size(messages) == 0) {
        return status_fail(err, NUMOE_E_INPUT,
                           "messages: must be a list with one message at least");
    }
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *role = json_object_get(json_array_get(messages, i), "role");
        if (!json_is_string(role)) {
            return status_fail(err, NUMOE_E_INPUT, "message %zu: lacks a role", i);
        }
    }
    return NUMOE_OK;
}

/* Arguments of a call as clients send them, a text with an object in it, become that object: it is
 * what templates expect. Any other text stays. */
static numoe_status open_arguments(json_t *call, numoe_error *err)
{
    json_t *inner = json_object_get(call, "function");
    json_t *holder = json_is_object(inner) ? inner : call;
    const json_t *text = json_object_get(holder, "arguments");

    if (json_is_string(text)) {
        json_t *arguments = json_loadb(json_string_value(text), json_string_length(text), 0, NULL);
        if (json_is_object(arguments)) {
            return set(holder, "arguments", arguments) ? NUMOE_OK : fail_memory(err);
        }
        json_decref(arguments);
    }
    return NUMOE_OK;
}

/* A copy of the messages, with the arguments of all calls taken apart. */
static numoe_status copy_messages(const json_t *messages, json_t **out, numoe_error *err)
{
    json_t *copy = json_deep_copy(messages), *message, *call;
    size_t i, k;

    if (copy == NULL) {
        return fail_memory(err);
    }
    json_array_foreach(copy, i,
                       message){json_array_foreach(json_object_get(message, "tool_calls"), k, call){
        numoe_status status = open_arguments(call, err);
    if (status != NUMOE_OK) {
        json_decref(copy);
        return status;
    }
}
}
*out = copy;
return NUMOE_OK;
}

static json_t *token_text(const struct chat *chat, int32_t id)
{
    size_t n = 0;
    const char *text = tokenizer_text(chat->tok, id, true, &n);
    return new_text(text == NULL ? "" : text, text == NULL ? 0 : n);
}

static numoe_status make_variables(const struct chat *chat, const json_t *request, json_t **out,
                                   numoe_error *err)
{
    json_t *messages = NULL, *v = json_object();

    numoe_status status = copy_messages(json_object_get(request, "messages"), &messages, err);
    if (status != NUMOE_OK) {
        json_decref(v);
        return status;
    }
    bool ok = set(v, "bos_token", token_text(chat, tokenizer_bos(chat->tok))) &&
              set(v, "eos_token", token_text(chat, tokenizer_eos(chat->tok))) &&
              set(v, "add_generation_prompt", json_true()) && set(v, "tools", json_null()) &&
              set(v, "documents", json_null()) && json_object_update(v, (json_t *)request) == 0;
    ok = set(v, "messages", messages) && ok;
    if (!ok) {
        json_decref(v);
        return fail_memory(err);
    }
    json_object_del(v, "chat_template");
    *out = v;
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ contents in parts */

static numoe_status add_part(const json_t *part, size_t i_message, size_t i, struct strbuf *text,
                             numoe_error *err)
{
    const json_t *type = json_object_get(part, "type"), *t = json_object_get(part, "text");

    if (!json_is_string(type)) {
        return status_fail(err, NUMOE_E_INPUT, "message %zu: content part %zu lacks a type",
                           i_message, i);
    }
    if (strcmp(json_string_value(type), "text") != 0) {
        return status_fail(err, NUMOE_E_INPUT,
                           "message %zu: content part %zu has the type \"%.40s\": only \"text\" is "
                           "supported",
                           i_message, i, json_string_value(type));
    }
    if (!json_is_string(t)) {
        return status_fail(err, NUMOE_E_INPUT, "message %zu: content part %zu lacks a text",
                           i_message, i);
    }
    if (i > 0) {
        FORWARD_IF(strbuf_append(text, "\n", 1, err));
    }
    return strbuf_append(text, json_string_value(t), json_string_length(t), err);
}

/* One text, the parts in lines of their own. */
static numoe_status join_parts(const json_t *parts, size_t i_message, json_t **out,
                               numoe_error *err)
{
    struct strbuf text = {0};
    numoe_status status = NUMOE_OK;

    for (size_t i = 0; i < json_array_size(parts) && status == NUMOE_OK; i++) {
        status = add_part(json_array_get(parts, i), i_message, i, &text, err);
    }
    if (status == NUMOE_OK) {
        *out = new_text(text.len ? text.data : "", text.len);
        status = *out ? NUMOE_OK : fail_memory(err);
    }
    strbuf_fini(&text);
    return status;
}

/* A conversation in which `role` has said PROBE in a list. */
static json_t *probe_messages(const char *role)
{
    const bool is_user = strcmp(role, "user") == 0, is_first = strcmp(role, "system") == 0;
    json_t *list = json_array();

    if (!is_user && !is_first) {
        json_array_append_new(list, json_pack("{s:s, s:s}", "role", "user", "content", "x"));
    }
    json_array_append_new(list, json_pack("{s:s, s:[{s:s, s:s}]}", "role", role, "content", "type",
                                          "text", "text", PROBE));
    if (!is_user) {
        json_array_append_new(list, json_pack("{s:s, s:s}", "role", "user", "content", "x"));
    }
    return list;
}

/* Whether a template shows the texts of a list: others fail, leave them out, or show them in the
 * quotes and brackets of the list. */
static bool takes_parts(const struct jinja_template *t, json_t *variables, const char *role,
                        const struct jinja_options *options)
{
    json_t *v = json_copy(variables);
    struct strbuf out = {0};
    numoe_error err;
    const char *at = NULL;

    bool ok = set(v, "messages", probe_messages(role)) && set(v, "tools", json_null()) &&
              set(v, "documents", json_null());
    if (ok && jinja_render(t, v, options, &out, &err) == NUMOE_OK &&
        strbuf_append(&out, "", 1, &err) == NUMOE_OK) {
        at = strstr(out.data, PROBE);
    }
    const char next = at ? at[strlen(PROBE)] : 0;
    ok = at && next != '\'' && next != '"';
    strbuf_fini(&out);
    json_decref(v);
    return ok;
}

/* The same, asked once for each role: `known` has the answers. */
static bool role_takes_parts(const struct jinja_template *t, json_t *variables, const char *role,
                             const struct jinja_options *options, json_t *known)
{
    json_t *answer = json_object_get(known, role);

    if (answer == NULL) {
        answer = json_boolean(takes_parts(t, variables, role, options));
        set(known, role, answer);
    }
    return json_is_true(answer);
}

/* Contents that are lists of parts become texts where the template wants texts. */
static numoe_status join_contents(const struct jinja_template *t, json_t *variables,
                                  const struct jinja_options *options, numoe_error *err)
{
    json_t *messages = json_object_get(variables, "messages"), *message, *known = json_object();
    numoe_status status = NUMOE_OK;
    size_t i;

    json_array_foreach(messages, i, message)
    {
        const json_t *content = json_object_get(message, "content");
        const char *role = json_string_value(json_object_get(message, "role"));
        json_t *text = NULL;
        if (status == NUMOE_OK && json_is_array(content)) {
            status = join_parts(content, i, &text, err);
        }
        if (text == NULL) {
            continue;
        }
        if (role_takes_parts(t, variables, role, options, known)) {
            json_decref(text);
        } else if (!set(message, "content", text)) {
            status = fail_memory(err);
        }
    }
    json_decref(known);
    return status;
}

/* ------------------------------------------------------------------ rendering */

static numoe_status find_source(const struct chat *chat, const json_t *request, struct source *out,
                                numoe_error *err)
{
    const json_t *named = json_object_get(request, "chat_template");

    if (named != NULL && !json_is_null(named)) {
        if (!json_is_string(named)) {
            return status_fail(err, NUMOE_E_INPUT, "chat_template: must be a string");
        }
        return find_named(json_string_value(named), out, err);
    }
    if (chat->source.len > 0) {
        return find_named(chat->source.data, out, err);
    }
    bool for_tools = json_array_size(json_object_get(request, "tools")) > 0;
    return find_in_file(chat->g, for_tools, out, err);
}

numoe_status chat_render(const struct chat *chat, const json_t *request, int64_t now_seconds,
                         struct strbuf *out, numoe_error *err)
{
    const struct jinja_options options = {.now_seconds = now_seconds};
    struct jinja_template *t = NULL;
    json_t *variables = NULL;
    struct source source;

    FORWARD_IF(check_messages(json_object_get(request, "messages"), err));
    FORWARD_IF(find_source(chat, request, &source, err));
    numoe_status status = parse_source(&source, &t, err);
    if (status != NUMOE_OK) {
        return status;
    }
    status = make_variables(chat, request, &variables, err);
    if (status == NUMOE_OK) {
        status = join_contents(t, variables, &options, err);
    }
    if (status == NUMOE_OK) {
        status = jinja_render(t, variables, &options, out, err);
        status = status == NUMOE_OK ? status : status_context(err, status, "%s", source.name);
    }
    json_decref(variables);
    jinja_free(t);
    return status;
}
