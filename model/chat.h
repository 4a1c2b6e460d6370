/* Chat templates: messages to prompt text. For now the forms that are known by what is in
 * tokenizer.chat_template: DeepSeek's and ChatML; anything else is NUMOE_E_SUPPORT naming what the
 * template begins with. */
#ifndef NUMOE_MODEL_CHAT_H
#define NUMOE_MODEL_CHAT_H

#include "model/tokenizer.h"

numoe_status chat_render(const struct gguf *g, const struct tokenizer *tok,
                         const numoe_message *messages, size_t n_message,
                         bool add_generation_prompt, struct strbuf *out, numoe_error *err);

#endif
