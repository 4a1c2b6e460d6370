/* Fuzz target: a template, rendered for fixed conversations within small limits. Any text gives a
 * rendering or one line of text that names a line; a rendering stays within its limits, and a
 * second one is like the first.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/jinja.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_OUTPUT_BYTES = 65536 };

#define REQUIRE(x)                                                                                 \
    do {                                                                                           \
        if (!(x)) {                                                                                \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x);                                \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static json_t *make_variables(void)
{
    static const char text[] =
        "{\"messages\": ["
        "{\"role\": \"system\", \"content\": \"Be brief.\\n\"},"
        "{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"Wie spät? 日\"}]},"
        "{\"role\": \"assistant\", \"content\": null, \"reasoning_content\": \"Hm.\","
        " \"tool_calls\": [{\"id\": \"call00001\", \"type\": \"function\", \"function\":"
        " {\"name\": \"clock\", \"arguments\": {\"zone\": \"CET\", \"n\": [1, 2.5, true]}}}]},"
        "{\"role\": \"tool\", \"tool_call_id\": \"call00001\", \"content\": \"12:00\"},"
        "{\"role\": \"assistant\", \"content\": \"<think>\\nx\\n</think>\\n\\nNoon\"},"
        "{\"role\": \"user\", \"content\": \" Thanks \"}],"
        "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"clock\","
        " \"description\": \"Time\\nof day\", \"parameters\": {\"type\": \"object\","
        " \"properties\": {\"zone\": {\"type\": \"string\", \"enum\": [\"CET\", \"UTC\"]}},"
        " \"required\": [\"zone\"]}}}],"
        "\"bos_token\": \"<s>\", \"eos_token\": \"</s>\", \"add_generation_prompt\": true,"
        "\"enable_thinking\": false, \"documents\": null, \"s\": \"aXbX\", \"n\": -7, \"f\": 2.5,"
        "\"xs\": [3, 1, 2], \"d\": {\"b\": 1, \"a\": {\"items\": []}}}";
    json_t *variables = json_loads(text, 0, NULL);

    REQUIRE(variables != NULL);
    return variables;
}

static numoe_status render(const struct jinja_template *t, const json_t *variables,
                           struct strbuf *out)
{
    const struct jinja_options options = {.now_seconds = 1767323045,
                                          .max_steps = 200000,
                                          .max_memory_bytes = 16 << 20,
                                          .max_output_bytes = MAX_OUTPUT_BYTES};
    numoe_error err = {0};

    numoe_status status = jinja_render(t, variables, &options, out, &err);
    if (status != NUMOE_OK) {
        REQUIRE(err.status == status && strncmp(err.text, "line ", 5) == 0);
        REQUIRE(strpbrk(err.text, "\n\r\x1b") == NULL);
        REQUIRE(out->len == 0);
    }
    REQUIRE(out->len <= MAX_OUTPUT_BYTES);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static json_t *variables;
    struct jinja_template *t;
    struct strbuf first = {0}, second = {0};
    numoe_error err = {0};

    if (variables == NULL) {
        variables = make_variables();
    }
    if (jinja_parse((const char *)data, size, &t, &err) != NUMOE_OK) {
        REQUIRE(strncmp(err.text, "line ", 5) == 0 && strpbrk(err.text, "\n\r\x1b") == NULL);
        return 0;
    }
    numoe_status status = render(t, variables, &first);
    REQUIRE(render(t, variables, &second) == status);
    REQUIRE(first.len == second.len &&
            (first.len == 0 || memcmp(first.data, second.data, first.len) == 0));
    strbuf_fini(&first);
    strbuf_fini(&second);
    jinja_free(t);
    return 0;
}
