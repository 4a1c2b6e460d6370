/* Chat templates: conversations to prompt texts, through the Jinja template of the model's file or
 * another one in its place.
 */
#ifndef NUMOE_MODEL_CHAT_H
#define NUMOE_MODEL_CHAT_H

#include <jansson.h>

#include "model/tokenizer.h"

struct chat;

/* source: NULL for the file's own template; the name of a built-in one; or the text of one, which
 * is checked here. The file's own is not looked at before something is rendered: a model without
 * one can be used for other things. g and tok must outlive it. */
numoe_status chat_open(const struct gguf *g, const struct tokenizer *tok, const char *source,
                       struct chat **out, numoe_error *err);
void chat_close(struct chat *chat);

/* What a template is to know: an object with "messages" and whatever else, "tools" for example.
 * Given too, if it does not say otherwise: bos_token and eos_token of the vocabulary,
 * add_generation_prompt true, tools and documents none. Arguments of tool calls that are texts with
 * JSON in them are taken apart. Contents that are lists of {"type": "text", "text": ...} become one
 * text, the parts in lines of their own, unless the template takes lists (it is tried); parts of
 * another type are refused. "chat_template" is a source as for chat_open(), for this time.
 * Appends to out, nothing on failure. now_seconds: what templates with a date show; 0: the
 * present. */
numoe_status chat_render(const struct chat *chat, const json_t *request, int64_t now_seconds,
                         struct strbuf *out, numoe_error *err);

/* The request of a plain conversation; json_decref(). */
numoe_status chat_request(const numoe_message *messages, size_t n_message,
                          bool add_generation_prompt, json_t **out, numoe_error *err);

/* Built-in templates (chat-builtin.c), in order of their names; NULL behind the last one. */
const char *chat_builtin_name(size_t i);
const char *chat_builtin_text(const char *name); /* NULL: there is none of that name */

#endif
