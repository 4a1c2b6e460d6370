/* Requests in the form of OpenAI's batch files: {"custom_id": ..., "body": {...}}, a line each.
 * What is not understood is an error rather than ignored where it would change the answer. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/batch.h"

#define MAX_TOKENS 1000000000

/* ------------------------------------------------------------------ the file */

/* A line of zeros is none: it may have been a request. */
static bool is_blank(const char *line, size_t bytes)
{
    return strspn(line, " \t\r\n") == bytes;
}

static int add_line(struct batch_input *in, size_t *cap, uint64_t offset, bool blank)
{
    if (in->n_line + 1 >= *cap) {
        const size_t n = *cap ? *cap * 2 : 1024;
        uint64_t *grown = realloc(in->offset, n * sizeof *grown);
        in->offset = grown ? grown : in->offset;
        bool *blanks = realloc(in->is_blank, n * sizeof *blanks);
        in->is_blank = blanks ? blanks : in->is_blank;
        if (!grown || !blanks) {
            return fail(EXIT_LACKING, "%s: no memory for %zu lines", in->path, n);
        }
        *cap = n;
    }
    in->offset[in->n_line] = offset;
    in->is_blank[in->n_line++] = blank;
    in->n_request += !blank;
    return EXIT_OK;
}

static int scan(struct batch_input *in)
{
    char *line = NULL;
    size_t cap = 0, cap_lines = 0;
    ssize_t n;
    int exit_status = EXIT_OK;

    while (exit_status == EXIT_OK && (n = read_line(in->file, &line, &cap)) >= 0) {
        exit_status = add_line(in, &cap_lines, in->bytes, is_blank(line, (size_t)n));
        in->hash = journal_hash(in->hash, line, (size_t)n);
        in->bytes += (uint64_t)n;
    }
    if (exit_status == EXIT_OK && errno) {
        exit_status = fail(EXIT_INPUT, "%s: line %zu: %s", in->path, in->n_line + 1,
                           errno == EMSGSIZE ? "too long" : strerror(errno));
    }
    if (exit_status == EXIT_OK && in->n_request == 0) {
        exit_status = fail(EXIT_INPUT, "%s: has no request", in->path);
    }
    if (exit_status == EXIT_OK) {
        in->offset[in->n_line] = in->bytes;
    }
    free(line);
    return exit_status;
}

int input_open(struct batch_input *in, const char *path)
{
    struct stat st;

    *in = (struct batch_input){.path = path};
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK); /* a FIFO would wait */
    if (fd < 0) {
        return fail(EXIT_INPUT, "%s: %s", path[0] ? path : "''", strerror(errno));
    }
    in->file = fdopen(fd, "rb");
    if (!in->file) {
        close(fd);
        return fail(EXIT_LACKING, "%s: %s", path, strerror(errno));
    }
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        return fail(EXIT_INPUT,
                    "%s: is no regular file: requests are read again when a job is "
                    "resumed",
                    path);
    }
    return scan(in);
}

void input_close(struct batch_input *in)
{
    if (in->file) {
        fclose(in->file);
    }
    free(in->offset);
    free(in->is_blank);
}

int input_read(const struct batch_input *in, size_t i, struct text *line)
{
    const size_t bytes = in->offset[i + 1] - in->offset[i];

    line->bytes = 0;
    line->data = malloc(bytes + 1);
    if (!line->data) {
        return fail(EXIT_LACKING, "%s: no memory for line %zu", in->path, i + 1);
    }
    if (fseeko(in->file, (off_t)in->offset[i], SEEK_SET) != 0 ||
        fread(line->data, 1, bytes, in->file) != bytes) {
        free(line->data);
        return fail(EXIT_WORK, "%s: line %zu cannot be read again", in->path, i + 1);
    }
    line->data[bytes] = 0;
    line->bytes = bytes;
    return EXIT_OK;
}

/* ------------------------------------------------------------------ members */

/* The first thing that is wrong counts. */
static void refuse(struct batch_request *req, const char *fmt, ...) NUMOE_PRINTF(2, 3);
static void refuse(struct batch_request *req, const char *fmt, ...)
{
    va_list ap;

    if (req->error.status == NUMOE_OK) {
        req->error.status = NUMOE_E_INPUT;
        va_start(ap, fmt);
        vsnprintf(req->error.text, sizeof req->error.text, fmt, ap);
        va_end(ap);
    }
}

/* A member that is there and not null. */
static const json_t *member(const json_t *body, const char *name)
{
    const json_t *value = json_object_get(body, name);
    return json_is_null(value) ? NULL : value;
}

static bool is_text(const json_t *value, const char *text)
{
    return json_is_string(value) && strcmp(json_string_value(value), text) == 0;
}

static void get_float(struct batch_request *req, const json_t *body, const char *name, double min,
                      double max, float *out)
{
    const json_t *value = member(body, name);

    if (!value) {
        return;
    }
    const double x = json_number_value(value);
    if (!json_is_number(value) || !(x >= min && x <= max)) {
        refuse(req, "%s is no number from %g to %g", name, min, max);
    } else {
        *out = (float)x;
    }
}

static bool get_integer(struct batch_request *req, const json_t *body, const char *name,
                        json_int_t min, json_int_t max, json_int_t *out)
{
    const json_t *value = member(body, name);

    if (!value) {
        return false;
    }
    const json_int_t x = json_integer_value(value);
    if (!json_is_integer(value) || x < min || x > max) {
        refuse(req, "%s is no whole number from %lld to %lld", name, (long long)min,
               (long long)max);
        return false;
    }
    *out = x;
    return true;
}

static bool get_bool(struct batch_request *req, const json_t *body, const char *name, bool *out)
{
    const json_t *value = member(body, name);

    if (value && !json_is_boolean(value)) {
        refuse(req, "%s is neither true nor false", name);
    } else if (value) {
        *out = json_is_true(value);
        return true;
    }
    return false;
}

/* ------------------------------------------------------------------ a body */

static void parse_sampling(struct batch_request *req, const json_t *body)
{
    numoe_sampler_params *p = &req->r.sampler;
    json_int_t n;

    get_float(req, body, "temperature", 0, 1000, &p->temperature);
    get_float(req, body, "top_p", 0, 1, &p->top_p);
    get_float(req, body, "min_p", 0, 1, &p->min_p);
    get_float(req, body, "repetition_penalty", 0.01, 100, &p->repeat_penalty);
    if (get_integer(req, body, "top_k", -1, MAX_TOKENS, &n)) {
        p->top_k = n > 0 ? (unsigned)n : 0;
    }
    if (get_integer(req, body, "seed", INT64_MIN, INT64_MAX, &n)) {
        p->seed = (uint64_t)n;
    }
}

static void parse_length(struct batch_request *req, const json_t *body)
{
    json_int_t n;

    if (get_integer(req, body, "max_completion_tokens", 1, MAX_TOKENS, &n) ||
        get_integer(req, body, "max_tokens", 1, MAX_TOKENS, &n)) {
        req->r.max_tokens = (size_t)n;
    }
    get_bool(req, body, "ignore_eos", &req->r.ignore_eog);
}

static void add_stop(struct batch_request *req, const json_t *value)
{
    if (!json_is_string(value) || json_string_length(value) == 0 ||
        strlen(json_string_value(value)) != json_string_length(value)) {
        refuse(req, "stop is neither a text nor a list of texts");
    } else {
        req->stop[req->r.n_stop++] = json_string_value(value);
    }
}

static void parse_stop(struct batch_request *req, const json_t *body)
{
    const json_t *value = member(body, "stop");
    const size_t n = json_is_array(value) ? json_array_size(value) : 1;

    if (!value) {
        return;
    }
    req->stop = calloc(n + 1, sizeof *req->stop);
    if (!req->stop) {
        refuse(req, "no memory for stop");
        return;
    }
    for (size_t i = 0; i < n; i++) {
        add_stop(req, json_is_array(value) ? json_array_get(value, i) : value);
    }
    req->r.stop = req->stop;
}

/* Chat: "logprobs": true, "top_logprobs": N. Completions: "logprobs": N. */
static void parse_logprobs(struct batch_request *req, const json_t *body)
{
    json_int_t n = 0;

    if (!req->is_chat) {
        req->r.want_logprobs = get_integer(req, body, "logprobs", 0, NUMOE_MAX_TOP_LOGPROBS, &n);
    } else {
        get_bool(req, body, "logprobs", &req->r.want_logprobs);
        if (get_integer(req, body, "top_logprobs", 0, NUMOE_MAX_TOP_LOGPROBS, &n) && n > 0 &&
            !req->r.want_logprobs) {
            refuse(req, "top_logprobs without logprobs");
        }
    }
    req->r.n_top_logprob = (unsigned)n;
}

static bool is_nothing(const json_t *value)
{
    return value == NULL || json_is_false(value) ||
           (json_is_number(value) && json_number_value(value) == 0) ||
           (json_is_string(value) && json_string_length(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

/* Members of other programs with which the answer would be another. */
static void refuse_members(struct batch_request *req, const json_t *body)
{
    static const char *const names[] = {
        "suffix",         "functions",      "function_call",      "min_tokens",
        "stop_token_ids", "bad_words",      "guided_json",        "guided_regex",
        "guided_choice",  "guided_grammar", "structured_outputs", "use_beam_search",
        "prompt_embeds",
    };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (!is_nothing(member(body, names[i]))) {
            refuse(req, "%s is not supported", names[i]);
        }
    }
}

/* Members that may say that nothing is wanted. */
static void refuse_choices(struct batch_request *req, const json_t *body)
{
    static const char *const zero[] = {"presence_penalty", "frequency_penalty"};
    const json_t *bias = member(body, "logit_bias"), *format = member(body, "response_format");
    const json_t *choice = member(body, "tool_choice");

    for (size_t i = 0; i < sizeof zero / sizeof zero[0]; i++) {
        const json_t *value = member(body, zero[i]);
        if (value && (!json_is_number(value) || json_number_value(value) != 0)) {
            refuse(req, "%s is not supported: repetition_penalty is", zero[i]);
        }
    }
    if (bias && (!json_is_object(bias) || json_object_size(bias) > 0)) {
        refuse(req, "logit_bias is not supported");
    }
    if (format && !is_text(json_object_get(format, "type"), "text")) {
        refuse(req, "response_format other than {\"type\": \"text\"} is not supported");
    }
    if (choice && !is_text(choice, "auto") && !is_text(choice, "none")) {
        refuse(req, "tool_choice other than auto and none is not supported");
    }
}

/* What is not there must not be asked for, where the answer would be another. */
static void refuse_unsupported(struct batch_request *req, const json_t *body)
{
    json_int_t n = 1;
    bool yes = false;

    if ((get_integer(req, body, "n", 1, 128, &n) && n > 1) ||
        (get_integer(req, body, "best_of", 1, 128, &n) && n > 1)) {
        refuse(req, "more than one choice is not supported: give as many requests");
    }
    if ((get_bool(req, body, "stream", &yes) && yes) ||
        (get_bool(req, body, "echo", &yes) && yes)) {
        refuse(req, "stream and echo are not supported in a batch");
    }
    refuse_choices(req, body);
    refuse_members(req, body);
}

static void parse_body(struct batch_request *req, const json_t *body)
{
    const json_t *prompt = member(body, "prompt");

    req->is_chat = member(body, "messages") != NULL;
    if (req->is_chat == (prompt != NULL)) {
        refuse(req, "body has %s messages %s prompt", prompt ? "both" : "neither",
               prompt ? "and" : "nor");
    } else if (prompt && !json_is_string(prompt) && !json_is_array(prompt)) {
        refuse(req, "prompt is neither a text nor a list of token ids");
    }
    const json_t *kwargs = member(body, "chat_template_kwargs");
    if (kwargs && !json_is_object(kwargs)) {
        refuse(req, "chat_template_kwargs is no object");
    }
    refuse_unsupported(req, body);
    parse_sampling(req, body);
    parse_length(req, body);
    parse_stop(req, body);
    parse_logprobs(req, body);
}

/* "url" is not needed, but it must not say something else than the body does. */
static void check_url(struct batch_request *req)
{
    const json_t *url = member(req->root, "url");
    const char *want = req->is_chat ? "/v1/chat/completions" : "/v1/completions";

    if (url && !is_text(url, want)) {
        refuse(req, "url is not %s, which this body is for", want);
    }
}

void request_parse(struct batch_request *out, const struct text *line, size_t i,
                   const struct batch_defaults *defaults)
{
    static const char mark[] = "\xef\xbb\xbf"; /* of Windows, before the first line of a text */
    const size_t n_mark = i == 0 && strncmp(line->data, mark, 3) == 0 ? 3 : 0;
    json_error_t error;

    *out = (struct batch_request){.error = {.status = NUMOE_OK}};
    out->r.tag = i;
    out->r.sampler = defaults->sampler;
    out->r.sampler.seed = defaults->sampler.seed + i; /* else all would draw alike */
    out->r.max_tokens = defaults->max_tokens;
    out->r.ignore_eog = defaults->ignore_eog;
    out->root = json_loadb(line->data + n_mark, line->bytes - n_mark,
                           JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (!out->root) {
        refuse(out, "line %zu is not JSON: %s (column %d)", i + 1, error.text, error.column);
        return;
    }
    const json_t *id = member(out->root, "custom_id"), *body = member(out->root, "body");
    if (!json_is_string(id)) {
        refuse(out, "line %zu has no custom_id that is a text", i + 1);
    } else if (strlen(json_string_value(id)) != json_string_length(id)) {
        refuse(out, "line %zu has a custom_id with a zero byte in it", i + 1);
    } else {
        out->custom_id = json_string_value(id);
    }
    if (!json_is_object(body)) {
        refuse(out, "line %zu has no body", i + 1);
        return;
    }
    parse_body(out, body);
    check_url(out);
}

void request_fini(struct batch_request *req)
{
    json_decref(req->root);
    free(req->stop);
    free(req->ids);
    *req = (struct batch_request){.root = NULL};
}

/* ------------------------------------------------------------------ with the model */

static void set_tokens(struct batch_request *req, const numoe_engine *engine, const char *text,
                       size_t bytes, unsigned flags)
{
    size_t n = 0;
    int32_t *ids = malloc((bytes + 8) * sizeof *ids);

    if (!ids) {
        refuse(req, "no memory for %zu tokens", bytes + 8);
        return;
    }
    if (numoe_tokenize(engine, text, bytes, flags, ids, bytes + 8, &n, &req->error) == NUMOE_OK &&
        n <= bytes + 8) {
        req->ids = ids;
        req->r.ids = ids;
        req->r.n_id = n;
        return;
    }
    free(ids);
    refuse(req, "the prompt has more tokens than bytes");
}

/* Templates get the whole body, and chat_template_kwargs as if they were members of it. */
static void render_messages(struct batch_request *req, const numoe_engine *engine,
                            const struct batch_defaults *defaults)
{
    json_t *body = json_copy(json_object_get(req->root, "body"));
    char *json = NULL, *text = NULL;

    json_object_update(body, json_object_get(body, "chat_template_kwargs"));
    json_object_set_new(body, "now_seconds", json_integer(defaults->now_seconds));
    json = json_dumps(body, JSON_COMPACT);
    if (!json) {
        refuse(req, "no memory for the messages");
    } else if (numoe_chat_render_json(engine, json, strlen(json), &text, &req->error) == NUMOE_OK) {
        set_tokens(req, engine, text, strlen(text), NUMOE_TOKENIZE_SPECIAL);
    }
    free(text);
    free(json);
    json_decref(body);
}

static void take_ids(struct batch_request *req, const json_t *list)
{
    const size_t n = json_array_size(list);

    req->ids = malloc((n + 1) * sizeof *req->ids);
    if (!req->ids) {
        refuse(req, "no memory for %zu tokens", n);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(list, i);
        const json_int_t value = json_integer_value(id);
        if (!json_is_integer(id) || value < 0 || value > INT32_MAX) {
            refuse(req, "prompt: element %zu is no token id", i);
            return;
        }
        req->ids[i] = (int32_t)value;
    }
    req->r.ids = req->ids;
    req->r.n_id = n;
}

void request_prepare(struct batch_request *req, const numoe_engine *engine,
                     const struct batch_defaults *defaults)
{
    const json_t *prompt = json_object_get(json_object_get(req->root, "body"), "prompt");

    if (req->error.status != NUMOE_OK) {
        return;
    }
    if (req->is_chat) {
        render_messages(req, engine, defaults);
    } else if (json_is_array(prompt)) {
        take_ids(req, prompt);
    } else {
        set_tokens(req, engine, json_string_value(prompt), json_string_length(prompt),
                   NUMOE_TOKENIZE_BOS | NUMOE_TOKENIZE_SPECIAL);
    }
}
