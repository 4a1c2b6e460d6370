/* Chat templates that are recognised by what they contain, and what each form makes of a
 * conversation. Templates are programs (Jinja); nothing is run here. A form says which fragments
 * its templates have and which they must not have, so that a template that does something else is
 * refused instead of rendered almost right.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memmem */
#endif
#include "model/chat.h"

#include <string.h>

#define DS_USER          "<｜User｜>"
#define DS_ASSISTANT     "<｜Assistant｜>"
#define DS_EOS           "<｜end▁of▁sentence｜>"
#define DS_THINK_NEWLINE "'" DS_ASSISTANT "<think>\\n'"

struct chat_job {
    struct gguf_string template;
    const struct tokenizer *tok;
    const numoe_message *message;
    size_t n_message;
    bool add_generation_prompt;
    struct strbuf *out;
};

struct chat_form {
    const char *has[5];
    const char *lacks[7];
    numoe_status (*render)(const struct chat_job *job, numoe_error *err);
};

/* ------------------------------------------------------------------ text */

static const char *find_text(const char *text, size_t n, const char *what)
{
    return memmem(text, n, what, strlen(what));
}

static bool template_has(const struct chat_job *job, const char *what)
{
    return find_text(job->template.data, job->template.len, what) != NULL;
}

static bool is_role(const numoe_message *m, const char *role)
{
    return strcmp(m->role, role) == 0;
}

static numoe_status put(const struct chat_job *job, const char *text, numoe_error *err)
{
    return strbuf_append(job->out, text, strlen(text), err);
}

/* Each of up to four strings; NULL ends the list. */
static numoe_status put_all(const struct chat_job *job, numoe_error *err, const char *const text[4])
{
    for (size_t i = 0; i < 4 && text[i] != NULL; i++) {
        FORWARD_IF(put(job, text[i], err));
    }
    return NUMOE_OK;
}
#define PUT(job, err, ...) put_all(job, err, (const char *const[4]){__VA_ARGS__})

static numoe_status put_token(const struct chat_job *job, int32_t id, numoe_error *err)
{
    size_t n = 0;
    const char *text = tokenizer_text(job->tok, id, true, &n);
    return text == NULL ? NUMOE_OK : strbuf_append(job->out, text, n, err);
}

/* What follows the last (or first) "</think>"; all of it where there is none. */
static const char *after_thinking(const char *content, bool last)
{
    const char end[] = "</think>";
    const char *found = strstr(content, end);

    while (found != NULL) {
        content = found + strlen(end);
        found = last ? strstr(content, end) : NULL;
    }
    return content;
}

static const char *skip_newlines(const char *text)
{
    return text + strspn(text, "\n");
}

/* ------------------------------------------------------------------ DeepSeek */

static numoe_status render_deepseek_v2(const struct chat_job *job, numoe_error *err)
{
    FORWARD_IF(put_token(job, tokenizer_bos(job->tok), err));
    for (size_t i = 0; i < job->n_message; i++) {
        const numoe_message *m = &job->message[i];
        if (is_role(m, "user")) {
            FORWARD_IF(PUT(job, err, "User: ", m->content, "\n\n"));
        } else if (is_role(m, "assistant")) {
            FORWARD_IF(PUT(job, err, "Assistant: ", m->content));
            FORWARD_IF(put_token(job, tokenizer_eos(job->tok), err));
        } else {
            FORWARD_IF(PUT(job, err, m->content, "\n\n"));
        }
    }
    return job->add_generation_prompt ? put(job, "Assistant:", err) : NUMOE_OK;
}

/* System messages stay where they are. */
static numoe_status render_deepseek_in_order(const struct chat_job *job, numoe_error *err)
{
    FORWARD_IF(put_token(job, tokenizer_bos(job->tok), err));
    for (size_t i = 0; i < job->n_message; i++) {
        const numoe_message *m = &job->message[i];
        if (is_role(m, "user")) {
            FORWARD_IF(PUT(job, err, DS_USER, m->content));
        } else if (is_role(m, "assistant")) {
            FORWARD_IF(PUT(job, err, DS_ASSISTANT, m->content, DS_EOS));
        } else {
            FORWARD_IF(put(job, m->content, err));
        }
    }
    return job->add_generation_prompt ? put(job, DS_ASSISTANT, err) : NUMOE_OK;
}

/* BOS and the system messages: joined by an empty line, or the last of them alone (V2.5, R1). */
static numoe_status put_deepseek_system(const struct chat_job *job, numoe_error *err)
{
    bool joined = template_has(job, "is_first_sp");
    size_t start;

    FORWARD_IF(put_token(job, tokenizer_bos(job->tok), err));
    start = job->out->len;
    for (size_t i = 0, n = 0; i < job->n_message; i++) {
        if (is_role(&job->message[i], "system")) {
            if (!joined) {
                job->out->len = start;
            }
            FORWARD_IF(PUT(job, err, joined && n > 0 ? "\n\n" : "", job->message[i].content));
            n++;
        }
    }
    return NUMOE_OK;
}

/* V2.5, V3, R1. */
static numoe_status render_deepseek_v3(const struct chat_job *job, numoe_error *err)
{
    bool user_eos = template_has(job, "'" DS_USER "' + message['content'] + '" DS_EOS "'");
    bool cut = template_has(job, "content.split('</think>')[-1]");
    bool think = template_has(job, DS_THINK_NEWLINE);

    FORWARD_IF(put_deepseek_system(job, err));
    for (size_t i = 0; i < job->n_message; i++) {
        const numoe_message *m = &job->message[i];
        if (is_role(m, "user")) {
            FORWARD_IF(PUT(job, err, DS_USER, m->content, user_eos ? DS_EOS : ""));
        } else if (is_role(m, "assistant")) {
            const char *content = cut ? after_thinking(m->content, true) : m->content;
            FORWARD_IF(PUT(job, err, DS_ASSISTANT, content, DS_EOS));
        }
    }
    return job->add_generation_prompt ? PUT(job, err, DS_ASSISTANT, think ? "<think>\n" : "")
                                      : NUMOE_OK;
}

/* V3.1: an answer has its header only after a question, with thinking switched off. */
static numoe_status render_deepseek_v31(const struct chat_job *job, numoe_error *err)
{
    const char *no_think = template_has(job, "'<think></think>'") ? "<think></think>" : "</think>";
    bool asked = false;

    FORWARD_IF(put_deepseek_system(job, err));
    for (size_t i = 0; i < job->n_message; i++) {
        const numoe_message *m = &job->message[i];
        if (is_role(m, "user")) {
            asked = true;
            FORWARD_IF(PUT(job, err, DS_USER, m->content));
        } else if (is_role(m, "assistant")) {
            if (asked) {
                FORWARD_IF(PUT(job, err, DS_ASSISTANT, no_think));
            }
            asked = false;
            FORWARD_IF(PUT(job, err, after_thinking(m->content, false), DS_EOS));
        }
    }
    return job->add_generation_prompt && asked ? PUT(job, err, DS_ASSISTANT, no_think) : NUMOE_OK;
}

/* ------------------------------------------------------------------ ChatML */

/* The system prompt that some templates begin with where the conversation has none of its own: a
 * literal between the header and <|im_end|>. */
static numoe_status put_default_system(const struct chat_job *job, numoe_error *err)
{
    const char header[] = "<|im_start|>system\\n", end[] = "<|im_end|>";
    const char *text = job->template.data, *stop = text + job->template.len;

    while ((text = find_text(text, (size_t)(stop - text), header)) != NULL) {
        text += strlen(header);
        const char *close = find_text(text, (size_t)(stop - text), end);
        size_t n = close == NULL ? 0 : (size_t)(close - text);
        if (n > 0 && memchr(text, '\'', n) == NULL && memchr(text, '"', n) == NULL &&
            memchr(text, '\\', n) == NULL) {
            FORWARD_IF(put(job, "<|im_start|>system\n", err));
            FORWARD_IF(strbuf_append(job->out, text, n, err));
            return put(job, "<|im_end|>\n", err);
        }
    }
    return NUMOE_OK;
}

/* The last message with a question in it: not one that only reports what a tool said. */
static size_t last_query(const struct chat_job *job)
{
    const char open[] = "<tool_response>", close[] = "</tool_response>";

    for (size_t i = job->n_message; i-- > 0;) {
        const char *content = job->message[i].content;
        size_t n = strlen(content);
        bool report = n >= strlen(close) && strncmp(content, open, strlen(open)) == 0 &&
                      strcmp(content + n - strlen(close), close) == 0;
        if (is_role(&job->message[i], "user") && !report) {
            return i;
        }
    }
    return job->n_message == 0 ? 0 : job->n_message - 1;
}

/* Thoughts of an answer as Qwen3 shows them again: between the last "<think>" before the first
 * "</think>" and that, without line breaks around. */
static void find_thoughts(const char *content, const char **text, size_t *n)
{
    const char open[] = "<think>";
    const char *end = strstr(content, "</think>"), *next;

    *text = "";
    *n = 0;
    if (end == NULL) {
        return;
    }
    while ((next = find_text(content, (size_t)(end - content), open)) != NULL) {
        content = next + strlen(open);
    }
    while (content < end && *content == '\n') {
        content++;
    }
    while (end > content && end[-1] == '\n') {
        end--;
    }
    *text = content;
    *n = (size_t)(end - content);
}

/* Qwen3: answers after the last question keep their thoughts, earlier ones lose them. */
static numoe_status put_qwen3_answer(const struct chat_job *job, size_t i, numoe_error *err)
{
    const char *content = job->message[i].content, *thoughts;
    const char *answer = after_thinking(content, true);
    size_t n;

    find_thoughts(content, &thoughts, &n);
    answer = answer == content ? content : skip_newlines(answer);
    if (i > last_query(job) && (i + 1 == job->n_message || n > 0)) {
        FORWARD_IF(put(job, "<think>\n", err));
        FORWARD_IF(strbuf_append(job->out, thoughts, n, err));
        FORWARD_IF(put(job, "\n</think>\n\n", err));
        answer = skip_newlines(answer);
    }
    return put(job, answer, err);
}

static numoe_status render_chatml(const struct chat_job *job, numoe_error *err)
{
    bool keep_last = template_has(job, "last_query_index");
    bool cut = template_has(job, "message.content.split('</think>')[-1].lstrip('\\n')");
    bool think = template_has(job, "<|im_start|>assistant\\n<think>\\n'");

    if (template_has(job, "bos_token")) {
        FORWARD_IF(put_token(job, tokenizer_bos(job->tok), err));
    }
    if (job->n_message > 0 && !is_role(&job->message[0], "system")) {
        FORWARD_IF(put_default_system(job, err));
    }
    for (size_t i = 0; i < job->n_message; i++) {
        const numoe_message *m = &job->message[i];
        FORWARD_IF(PUT(job, err, "<|im_start|>", m->role, "\n"));
        if (is_role(m, "assistant") && keep_last) {
            FORWARD_IF(put_qwen3_answer(job, i, err));
        } else if (is_role(m, "assistant") && cut) {
            FORWARD_IF(put(job, skip_newlines(after_thinking(m->content, true)), err));
        } else {
            FORWARD_IF(put(job, m->content, err));
        }
        FORWARD_IF(put(job, "<|im_end|>\n", err));
    }
    return job->add_generation_prompt
               ? PUT(job, err, "<|im_start|>assistant\n", think ? "<think>\n" : "")
               : NUMOE_OK;
}

/* ------------------------------------------------------------------ forms */

static const struct chat_form forms[] = {
    {.has = {"'User: ' + message['content'] + '\\n\\n'", "'Assistant: ' + message['content'] + eos",
             "'Assistant:'", "bos_token"},
     .lacks = {"<｜", "<|", "strip", "trim"},
     .render = render_deepseek_v2},
    {.has = {"'" DS_USER "' + message['content'] }}", "'" DS_ASSISTANT "' + message['content'] + '",
             "bos_token"},
     .lacks = {"namespace", "think", "strip", "trim", "macro"},
     .render = render_deepseek_in_order},
    {.has = {"'" DS_USER "' + message['content']", "ns.is_last_user", "ns.system_prompt",
             "content.split('</think>', 1)[1]", "bos_token"},
     .lacks = {"DSML", "macro"},
     .render = render_deepseek_v31},
    {.has = {"'" DS_USER "' + message['content']", "'" DS_ASSISTANT, DS_EOS, "ns.system_prompt",
             "bos_token"},
     .lacks = {"DSML", "is_last_user", "render_", "strip", "trim"},
     .render = render_deepseek_v3},
    {.has = {"<|im_start|>assistant\\n", "<|im_end|>", "add_generation_prompt"},
     .lacks = {"macro ", "raise_exception", "trim", "eos_token",
               "loop.last and add_generation_prompt", "<｜", "upper"},
     .render = render_chatml},
};

static bool has_form(const struct chat_job *job, const struct chat_form *form)
{
    for (size_t i = 0; i < ARRAY_LEN(form->has) && form->has[i] != NULL; i++) {
        if (!template_has(job, form->has[i])) {
            return false;
        }
    }
    for (size_t i = 0; i < ARRAY_LEN(form->lacks) && form->lacks[i] != NULL; i++) {
        if (template_has(job, form->lacks[i])) {
            return false;
        }
    }
    return true;
}

static numoe_status check_messages(const struct chat_job *job, numoe_error *err)
{
    for (size_t i = 0; i < job->n_message; i++) {
        const numoe_message *m = &job->message[i];
        if (m->role == NULL || m->content == NULL) {
            return status_fail(err, NUMOE_E_INPUT, "message %zu: lacks a role or content", i);
        }
        if (!is_role(m, "system") && !is_role(m, "user") && !is_role(m, "assistant")) {
            return status_fail(
                err, NUMOE_E_INPUT,
                "message %zu: role \"%.20s\" is none of \"system\", \"user\", \"assistant\"", i,
                m->role);
        }
    }
    return NUMOE_OK;
}

numoe_status chat_render(const struct gguf *g, const struct tokenizer *tok,
                         const numoe_message *messages, size_t n_message,
                         bool add_generation_prompt, struct strbuf *out, numoe_error *err)
{
    struct chat_job job = {
        .tok = tok,
        .message = messages,
        .n_message = n_message,
        .add_generation_prompt = add_generation_prompt,
        .out = out,
    };
    size_t before = out->len;

    FORWARD_IF(check_messages(&job, err));
    FORWARD_IF(gguf_get_string(g, "tokenizer.chat_template", false, &job.template, err));
    if (job.template.len == 0) {
        return status_fail(err, NUMOE_E_SUPPORT,
                           "tokenizer.chat_template: is missing: the model has no form for chat");
    }
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        if (has_form(&job, &forms[i])) {
            numoe_status status = forms[i].render(&job, err);
            if (status != NUMOE_OK && out->data != NULL) {
                out->len = before;
                out->data[before] = '\0';
            }
            return status;
        }
    }
    return status_fail(err, NUMOE_E_SUPPORT,
                       "tokenizer.chat_template: is none of the known forms (DeepSeek V2 to V3.1, "
                       "ChatML); it begins \"%.*s\"",
                       (int)MIN(job.template.len, 80), job.template.data);
}
