/* The chat functions of the public header: conversations to prompt texts. What a prompt looks like
 * is model/chat.h's affair; here are the forms in which a caller gives a conversation.
 */
#include <stdlib.h>
#include <string.h>

#include "model/chat.h"
#include "runtime/engine.h"

/* A copy of its own, because the caller releases it with the C library's free(). */
static numoe_status give_text(const struct strbuf *b, char **text, numoe_error *err)
{
    char *copy = malloc(b->len + 1);

    if (copy == NULL) {
        return status_fail(err, NUMOE_E_MEMORY, "no memory for a prompt of %zu bytes", b->len);
    }
    if (b->len > 0) {
        memcpy(copy, b->data, b->len);
    }
    copy[b->len] = '\0';
    *text = copy;
    return NUMOE_OK;
}

/* Takes the request over. */
static numoe_status render(const numoe_engine *engine, json_t *request, char **text,
                           numoe_error *err)
{
    struct strbuf b = {0};
    const int64_t now_seconds = json_integer_value(json_object_get(request, "now_seconds"));

    numoe_status status = chat_render(engine->chat, request, now_seconds, &b, err);
    if (status == NUMOE_OK) {
        status = give_text(&b, text, err);
    }
    strbuf_fini(&b);
    json_decref(request);
    return status;
}

numoe_status numoe_chat_render(const numoe_engine *engine, const numoe_message *messages,
                               size_t n_message, bool add_generation_prompt, char **text,
                               numoe_error *err)
{
    json_t *request;

    FORWARD_IF(chat_request(messages, n_message, add_generation_prompt, &request, err));
    return render(engine, request, text, err);
}

numoe_status numoe_chat_render_json(const numoe_engine *engine, const char *json, size_t json_bytes,
                                    char **text, numoe_error *err)
{
    json_error_t error;
    json_t *request = json_loadb(json, json_bytes, JSON_REJECT_DUPLICATES, &error);

    if (!json_is_object(request)) {
        json_decref(request);
        return status_fail(err, NUMOE_E_INPUT, "conversation: is no JSON object: %s (line %d)",
                           request == NULL ? error.text : "a list", error.line);
    }
    return render(engine, request, text, err);
}

const char *numoe_chat_template_name(size_t i)
{
    return chat_builtin_name(i);
}
