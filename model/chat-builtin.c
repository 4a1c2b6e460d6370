/* Chat templates for models whose file has none, or one that is not wanted: the plain conversation
 * in the form that a family of models was trained with. None of them knows tools. What a model does
 * not know of, a role or content that is not a text, is an error.
 */
#include "model/chat.h"

#include <string.h>

struct builtin {
    const char *name, *text;
};

/* Loop over messages with `role` and a text `c`; what `else` reaches has a role without a form. */
#define EACH                                                                                       \
    "{%- if tools %}{{ raise_exception('this template knows no tools') }}{% endif %}"              \
    "{%- for m in messages %}{% set role = m.role %}"                                              \
    "{%- if m.content is not string %}"                                                            \
    "{{ raise_exception('this template knows content that is a text only') }}{% endif %}"          \
    "{%- set c = m.content %}"
#define NO_ROLE                                                                                    \
    "{%- else %}{{ raise_exception('this template knows no role \"' ~ role ~ '\"') }}{% endif %}"
#define END_EACH "{%- endfor %}"
#define ANSWER   "{%- if add_generation_prompt %}"
#define END      "{% endif %}"

static const struct builtin builtins[] = {
    {"chatml", EACH "{{ '<|im_start|>' + role + '\n' + c + '<|im_end|>\n' }}" END_EACH ANSWER
                    "{{ '<|im_start|>assistant\n' }}" END},
    {"deepseek-v2", "{{ bos_token }}" EACH "{%- if role == 'user' %}{{ 'User: ' + c + '\n\n' }}"
                    "{%- elif role == 'assistant' %}{{ 'Assistant: ' + c + eos_token }}"
                    "{%- elif role == 'system' %}{{ c + '\n\n' }}" NO_ROLE END_EACH ANSWER
                    "{{ 'Assistant:' }}" END},
    {"deepseek-v3",
     "{{ bos_token }}" EACH "{%- if role == 'user' %}{{ '<｜User｜>' + c }}"
     "{%- elif role == 'assistant' %}"
     "{{ '<｜Assistant｜>' + c.split('</think>')[-1] + eos_token }}"
     "{%- elif role == 'system' %}{{ c }}" NO_ROLE END_EACH ANSWER "{{ '<｜Assistant｜>' }}" END},
    {"deepseek-v3.1", "{{ bos_token }}" EACH "{%- if role == 'user' %}{{ '<｜User｜>' + c }}"
                      "{%- elif role == 'assistant' %}"
                      "{{ '<｜Assistant｜></think>' + c.split('</think>')[-1] + eos_token }}"
                      "{%- elif role == 'system' %}{{ c }}" NO_ROLE END_EACH ANSWER
                      "{{ '<｜Assistant｜>' + ('<think>' if thinking or enable_thinking else "
                      "'</think>') }}" END},
    {"glm4",
     "[gMASK]<sop>" EACH "{%- if role in ['system', 'user', 'assistant'] %}"
     "{{ '<|' + role + '|>\n' + c }}" NO_ROLE END_EACH ANSWER "{{ '<|assistant|>\n' }}" END},
    {"gpt-oss",
     "{{ '<|start|>system<|message|>You are ChatGPT, a large language model trained by '"
     "'OpenAI.\nKnowledge cutoff: 2024-06\nCurrent date: ' + strftime_now('%Y-%m-%d') + "
     "'\n\nReasoning: ' + reasoning_effort | default('medium') + '\n\n# Valid channels: '"
     "'analysis, commentary, final. Channel must be included for every message.<|end|>' }}" EACH
     "{%- if role == 'system' or role == 'developer' %}"
     "{{ '<|start|>developer<|message|># Instructions\n\n' + c + '<|end|>' }}"
     "{%- elif role == 'user' %}{{ '<|start|>user<|message|>' + c + '<|end|>' }}"
     "{%- elif role == 'assistant' %}"
     "{{ '<|start|>assistant<|channel|>final<|message|>' + c + '<|end|>' }}" NO_ROLE END_EACH ANSWER
     "{{ '<|start|>assistant' }}" END},
    {"granite",
     EACH "{%- if role in ['system', 'user', 'assistant'] %}"
          "{{ '<|start_of_role|>' + role + '<|end_of_role|>' + c + '<|end_of_text|>\n' }}" NO_ROLE
              END_EACH ANSWER "{{ '<|start_of_role|>assistant<|end_of_role|>' }}" END},
    {"kimi-k2",
     EACH "{%- if role in ['system', 'user', 'assistant'] %}"
          "{{ '<|im_' + role + '|>' + role + '<|im_middle|>' + c + '<|im_end|>' }}" NO_ROLE END_EACH
              ANSWER "{{ '<|im_assistant|>assistant<|im_middle|>' }}" END},
    {"llama3", "{{ bos_token }}" EACH
               "{{ '<|start_header_id|>' + role + '<|end_header_id|>\n\n' + c | trim + "
               "'<|eot_id|>' }}" END_EACH ANSWER
               "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}" END},
    {"mistral", "{{ bos_token }}{% set ns = namespace(system='') %}" EACH
                "{%- if role == 'system' %}{% set ns.system = ns.system + c + '\n\n' %}"
                "{%- elif role == 'user' %}{{ '[INST] ' + ns.system + c + ' [/INST]' }}"
                "{%- set ns.system = '' %}"
                "{%- elif role == 'assistant' %}{{ ' ' + c + eos_token }}" NO_ROLE END_EACH},
    {"olmoe",
     "{{ bos_token }}" EACH
     "{%- if role in ['system', 'user'] %}{{ '<|' + role + '|>\n' + c + '\n' }}"
     "{%- elif role == 'assistant' %}"
     "{{ '<|assistant|>\n' + c + eos_token + ('' if loop.last else '\n') }}" NO_ROLE END_EACH ANSWER
     "{{ '<|assistant|>\n' }}" END},
};

const char *chat_builtin_name(size_t i)
{
    return i < ARRAY_LEN(builtins) ? builtins[i].name : NULL;
}

const char *chat_builtin_text(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(builtins); i++) {
        if (strcmp(builtins[i].name, name) == 0) {
            return builtins[i].text;
        }
    }
    return NULL;
}
