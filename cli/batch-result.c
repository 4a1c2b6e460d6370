/* Results in the form of OpenAI's batch files. Nothing in them depends on when, where or beside
 * what they were computed: "created" is always 0. */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "cli/batch.h"

static json_t *token_string(const numoe_engine *engine, int32_t id)
{
    size_t n = 0;
    const char *text = numoe_token_text(engine, id, true, &n);
    json_t *out = text ? json_stringn(text, n) : NULL;

    if (out) {
        return out;
    }
    /* a part of a character: the bytes are told besides */
    char *plain = text ? strndup(text, n) : NULL;
    if (plain) {
        utf8_make_plain(plain);
    }
    out = json_string(plain ? plain : "");
    free(plain);
    return out;
}

static json_t *token_bytes(const numoe_engine *engine, int32_t id)
{
    size_t n = 0;
    const char *text = numoe_token_text(engine, id, true, &n);
    json_t *list = json_array();

    for (size_t i = 0; text && i < n; i++) {
        json_array_append_new(list, json_integer((unsigned char)text[i]));
    }
    return list;
}

static json_t *token_object(const numoe_engine *engine, const numoe_logprob *p)
{
    return json_pack("{s:o, s:f, s:o}", "token", token_string(engine, p->id), "logprob",
                     (double)p->logprob, "bytes", token_bytes(engine, p->id));
}

/* {"content": [{"token", "logprob", "bytes", "top_logprobs": [...]}]} */
static json_t *chat_logprobs(const numoe_engine *engine, const numoe_completion *c)
{
    json_t *content = json_array();

    for (size_t i = 0; i < c->n_generated; i++) {
        json_t *token = token_object(engine, &c->logprob[i]), *top = json_array();
        for (unsigned k = 0; k < c->n_top; k++) {
            json_array_append_new(top, token_object(engine, &c->top[i * c->n_top + k]));
        }
        json_object_set_new(token, "top_logprobs", top);
        json_array_append_new(content, token);
    }
    return json_pack("{s:o}", "content", content);
}

/* {"tokens": [...], "token_logprobs": [...], "top_logprobs": [{TOKEN: LOGPROB}]} */
static json_t *text_logprobs(const numoe_engine *engine, const numoe_completion *c)
{
    json_t *tokens = json_array(), *logprobs = json_array(), *tops = json_array();

    for (size_t i = 0; i < c->n_generated; i++) {
        json_t *top = json_object();
        json_array_append_new(tokens, token_string(engine, c->logprob[i].id));
        json_array_append_new(logprobs, json_real((double)c->logprob[i].logprob));
        for (unsigned k = 0; k < c->n_top; k++) {
            const numoe_logprob *p = &c->top[i * c->n_top + k];
            json_t *name = token_string(engine, p->id);
            json_object_set_new(top, json_string_value(name), json_real((double)p->logprob));
            json_decref(name);
        }
        json_array_append_new(tops, top);
    }
    return json_pack("{s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", logprobs,
                     "top_logprobs", tops);
}

static json_t *choice(const numoe_engine *engine, bool is_chat, const numoe_completion *c)
{
    const bool ended = c->finish == NUMOE_FINISH_EOG || c->finish == NUMOE_FINISH_STOP;
    json_t *text = json_stringn(c->text, c->text_bytes);
    json_t *logprobs = !c->logprob ? json_null()
                       : is_chat   ? chat_logprobs(engine, c)
                                   : text_logprobs(engine, c);
    json_t *object = json_pack("{s:i}", "index", 0);

    if (is_chat) {
        json_object_set_new(object, "message",
                            json_pack("{s:s, s:o}", "role", "assistant", "content", text));
    } else {
        json_object_set_new(object, "text", text);
    }
    json_object_set_new(object, "logprobs", logprobs);
    json_object_set_new(object, "finish_reason", json_string(ended ? "stop" : "length"));
    return object;
}

static json_t *answer(const numoe_engine *engine, const struct batch_request *req, size_t i,
                      const numoe_completion *c)
{
    char id[48];

    snprintf(id, sizeof id, "%s-%zu", req->is_chat ? "chatcmpl" : "cmpl", i + 1);
    return json_pack("{s:s, s:s, s:i, s:s, s:[o], s:{s:I, s:I, s:I}}", "id", id, "object",
                     req->is_chat ? "chat.completion" : "text_completion", "created", 0, "model",
                     numoe_engine_get_info(engine)->model_name, "choices",
                     choice(engine, req->is_chat, c), "usage", "prompt_tokens",
                     (json_int_t)c->n_prompt, "completion_tokens", (json_int_t)c->n_generated,
                     "total_tokens", (json_int_t)(c->n_prompt + c->n_generated));
}

/* Takes the reference of body. */
static char *line_text(const struct batch_request *req, size_t i, int status_code, json_t *body)
{
    char id[48], *text, *line = NULL;

    snprintf(id, sizeof id, "batch_req_%zu", i + 1);
    json_t *root =
        json_pack("{s:s, s:s?, s:{s:i, s:s, s:o}, s:n}", "id", id, "custom_id", req->custom_id,
                  "response", "status_code", status_code, "request_id", id, "body", body, "error");
    text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    if (text) {
        const size_t n = strlen(text);
        line = realloc(text, n + 2);
        if (line) {
            memcpy(line + n, "\n", 2);
        } else {
            free(text);
        }
    }
    json_decref(root);
    return line;
}

char *result_text(const numoe_engine *engine, const struct batch_request *req, size_t i,
                  const numoe_completion *c)
{
    return line_text(req, i, 200, answer(engine, req, i, c));
}

char *result_error_text(const struct batch_request *req, size_t i, const numoe_error *error)
{
    const bool is_theirs = error->status == NUMOE_E_INPUT || error->status == NUMOE_E_INPUT_CONTEXT;
    const char *code = error->status == NUMOE_E_INPUT_CONTEXT ? "context_length_exceeded" : NULL;

    return line_text(req, i, is_theirs ? 400 : 500,
                     json_pack("{s:{s:s, s:s, s:n, s:s?}}", "error", "message", error->text, "type",
                               is_theirs ? "invalid_request_error" : "server_error", "param",
                               "code", code));
}
