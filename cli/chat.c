/* numoe chat: a conversation. The whole of it is rendered with the model's chat template each turn;
 * what the session holds already, and still is how the conversation begins, is not evaluated again.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

struct chat {
    struct model_options model;
    struct sampling_options sampling;
    const char *system; /* NULL: none */
    const char **stop;  /* [n_stop] */
    size_t n_stop;
    uint64_t max_tokens;
    bool ignore_eog;
    struct text chat_template; /* if from a file */

    numoe_engine *engine;
    numoe_session *session;
    numoe_sampler *sampler;
    bool is_terminal; /* a person types */

    numoe_message *message; /* [n_message], contents owned; a system message comes first */
    size_t n_message, cap;
};

static const struct option options[] = {
    MODEL_OPTIONS,
    SAMPLING_OPTIONS,
    {"system", required_argument, NULL, 's'},
    {"tokens", required_argument, NULL, 'n'},
    CHAT_TEMPLATE_OPTION,
    {"stop", required_argument, NULL, OPT_STOP},
    {"ignore-eog", no_argument, NULL, OPT_IGNORE_EOG},
    {0},
};

static int chat_option(void *arg, int opt, char *value)
{
    struct chat *c = arg;
    int taken;

    switch (opt) {
    case 's':
        c->system = value;
        return 1;
    case OPT_CHAT_TEMPLATE:
        return chat_template_option(&c->model.params, &c->chat_template, value);
    case OPT_STOP:
        return stop_option(c->stop, &c->n_stop, value);
    case OPT_IGNORE_EOG:
        c->ignore_eog = true;
        return 1;
    case 'n':
        return parse_uint("-n", value, 1, 1000000000, &c->max_tokens) ? 1 : -1;
    default:
        taken = model_option(&c->model, opt, value);
        return taken ? taken : sampling_option(&c->sampling, opt, value);
    }
}

static int parse(struct chat *c, int argc, char **argv, bool *done)
{
    int exit_status = parse_options(&command_chat, argc, argv, ":" MODEL_OPTIONS_SHORT "s:n:", options,
                                    chat_option, c, done);
    if (exit_status != EXIT_OK || *done) {
        return exit_status;
    }
    if (optind < argc) {
        return fail_usage(&command_chat, "unexpected argument '%s'", argv[optind]);
    }
    exit_status = model_options_finish(&command_chat, &c->model);
    return exit_status ? exit_status : sampling_options_finish(&c->sampling, c->model.is_bundled);
}

/* ------------------------------------------------------------------ the conversation */

/* Takes content over; frees it where there is no memory for the message. */
static bool push_message(struct chat *c, const char *role, char *content)
{
    if (content && c->n_message == c->cap) {
        size_t cap = c->cap ? c->cap * 2 : 16;
        numoe_message *grown = realloc(c->message, cap * sizeof *grown);
        if (grown) {
            c->message = grown;
            c->cap = cap;
        }
    }
    if (!content || c->n_message == c->cap) {
        free(content);
        return false;
    }
    c->message[c->n_message++] = (numoe_message){.role = role, .content = content};
    return true;
}

static void drop_messages(struct chat *c, size_t n_kept)
{
    while (c->n_message > n_kept) {
        free((char *)c->message[--c->n_message].content);
    }
}

/* Forgets all but the system message. */
static int reset(struct chat *c)
{
    drop_messages(c, 0);
    if (c->system && !push_message(c, "system", strdup(c->system))) {
        return fail(EXIT_LACKING, "no memory for the system message");
    }
    return EXIT_OK;
}

/* Makes the session hold exactly ids, keeping what it has in common with them. */
static numoe_status set_tokens(numoe_session *session, const struct ids *ids, numoe_error *err)
{
    const int32_t *have = numoe_session_tokens(session);
    size_t n = numoe_session_length(session), n_common = 0;

    while (n_common < n && n_common < ids->n && have[n_common] == ids->id[n_common]) {
        n_common++;
    }
    numoe_session_truncate(session, n_common);
    return numoe_session_append(session, ids->id + n_common, ids->n - n_common, err);
}

/* *status is NUMOE_E_INPUT_CONTEXT for a conversation that has become too long. */
static int render(struct chat *c, numoe_status *status)
{
    numoe_error err;
    struct ids ids;
    char *text;

    *status = numoe_chat_render(c->engine, c->message, c->n_message, true, &text, &err);
    if (*status != NUMOE_OK) {
        return fail_status(&err);
    }
    int exit_status = tokenize(c->engine, text, strlen(text), NUMOE_TOKENIZE_SPECIAL, &ids);
    free(text);
    if (exit_status != EXIT_OK) {
        return exit_status;
    }
    if (ids.n >= numoe_session_context(c->session)) {
        *status = NUMOE_E_INPUT_CONTEXT;
        exit_status = fail(EXIT_INPUT,
                           "the conversation of %zu tokens leaves no room for an answer in a "
                           "context of %u: /reset begins anew",
                           ids.n, numoe_session_context(c->session));
    } else if ((*status = set_tokens(c->session, &ids, &err)) != NUMOE_OK) {
        exit_status = fail_status(&err);
    }
    free(ids.id);
    return exit_status;
}

/* ------------------------------------------------------------------ a turn */

struct answer {
    struct text_out out;
    char *data; /* what was said, NUL-terminated */
    size_t bytes, cap;
    bool no_memory;
};

static bool answer_write(void *arg, const char *text, size_t bytes)
{
    struct answer *a = arg;

    if (a->bytes + bytes + 1 > a->cap) {
        size_t cap = (a->bytes + bytes + 1) * 2;
        char *grown = realloc(a->data, cap);
        if (!grown) {
            a->no_memory = true;
            return false;
        }
        a->data = grown;
        a->cap = cap;
    }
    memcpy(a->data + a->bytes, text, bytes);
    a->bytes += bytes;
    a->data[a->bytes] = 0;
    return text_out_write(&a->out, text, bytes);
}

static void answer_prompt(void *arg, size_t n_done, size_t n_total)
{
    struct answer *a = arg;
    text_out_prompt(&a->out, n_done, n_total);
}

static void report_turn(const struct chat *c, const numoe_generate_result *r)
{
    size_t n = r->n_generated - numoe_session_pending(c->session);

    if (!c->model.quiet && c->is_terminal) {
        fprintf(stderr, "[%zu of %u tokens, %.1f tokens/s%s]\n\n", numoe_session_length(c->session),
                numoe_session_context(c->session),
                r->generate_seconds > 0 ? (double)n / r->generate_seconds : 0,
                r->finish == NUMOE_FINISH_CANCEL    ? ", stopped"
                : r->finish == NUMOE_FINISH_CONTEXT ? ", the context is full: /reset begins anew"
                                                    : "");
    }
}

static int answer(struct chat *c)
{
    struct answer a = {0};
    numoe_generate_result result;
    numoe_error err;

    text_out_init(&a.out, c->model.quiet);
    numoe_generate_params params = {
        .max_tokens = c->max_tokens,
        .stop = c->stop,
        .n_stop = c->n_stop,
        .ignore_eog = c->ignore_eog,
        .on_text = answer_write,
        .on_prompt = answer_prompt,
        .arg = &a,
    };
    interrupt_begin(c->session);
    numoe_status status = numoe_generate(c->session, c->sampler, &params, &result, &err);
    interrupt_end();
    text_out_end(&a.out, status == NUMOE_OK);
    if (status != NUMOE_OK || a.out.failed || a.no_memory) {
        free(a.data);
        return a.no_memory    ? fail(EXIT_LACKING, "no memory for the answer")
               : a.out.failed ? EXIT_WORK
                              : fail_status(&err);
    }
    report_turn(c, &result);
    if (!push_message(c, "assistant", a.data ? a.data : strdup(""))) {
        return fail(EXIT_LACKING, "no memory for the answer");
    }
    return EXIT_OK;
}

/* Where the conversation has become too long a person may go on after /reset; a script cannot. */
static int turn(struct chat *c, const char *line)
{
    numoe_status status;
    size_t n_before = c->n_message;

    if (!push_message(c, "user", strdup(line))) {
        return fail(EXIT_LACKING, "no memory for the message");
    }
    int exit_status = render(c, &status);
    if (exit_status != EXIT_OK) {
        drop_messages(c, n_before);
        return status == NUMOE_E_INPUT_CONTEXT && c->is_terminal ? EXIT_OK : exit_status;
    }
    return answer(c);
}

/* ------------------------------------------------------------------ the loop */

/* Again after the first Ctrl-C of a person, who then sees how to leave. */
static ssize_t get_line(char **line, size_t *cap)
{
    for (;;) {
        errno = 0;
        ssize_t n = read_line(stdin, line, cap);
        if (n >= 0 || errno != EINTR) {
            return n;
        }
        clearerr(stdin);
        fputs("\n(Ctrl-C once more, Ctrl-D or /quit ends the conversation)\n> ", stderr);
    }
}

/* What a person has typed wrongly can be typed again; a script ends. */
static int refuse_line(const struct chat *c, char *line, int exit_status)
{
    line[0] = 0;
    return c->is_terminal ? EXIT_OK : exit_status;
}

/* Reads a line without its newline; *end: there is none. */
static int next_line(const struct chat *c, char **line, size_t *cap, bool *end)
{
    if (c->is_terminal) {
        fputs("> ", stderr);
        interrupt_begin_input();
    }
    ssize_t n = get_line(line, cap);
    int error = errno;
    if (c->is_terminal) {
        interrupt_end();
    }
    *end = n < 0;
    if (n < 0) {
        return error ? fail(EXIT_INPUT, "standard input: %s", strerror(error)) : EXIT_OK;
    }
    while (n > 0 && ((*line)[n - 1] == '\n' || (*line)[n - 1] == '\r')) {
        (*line)[--n] = 0;
    }
    int exit_status = refuse_nul("the message", &(struct text){.data = *line, .bytes = (size_t)n});
    return exit_status == EXIT_OK ? EXIT_OK : refuse_line(c, *line, exit_status);
}

/* A line that begins with '/'. A person who mistypes a command did not mean to say it; a script may
 * say what it likes. */
static int command(struct chat *c, const char *line)
{
    if (strcmp(line, "/reset") == 0) {
        if (!c->model.quiet && c->is_terminal) {
            fputs("[the conversation is forgotten]\n\n", stderr);
        }
        return reset(c);
    }
    if (strcmp(line, "/help") == 0) {
        fputs("/reset forgets the conversation, /quit or the end of input (Ctrl-D) ends it,\n"
              "Ctrl-C stops an answer; every other line is a message\n\n",
              stderr);
    } else if (!c->is_terminal) {
        return turn(c, line);
    } else {
        warn("there is no '%s', only /reset, /help and /quit", line);
    }
    return EXIT_OK;
}

static int converse(struct chat *c)
{
    char *line = NULL;
    size_t cap = 0;
    bool end;
    int exit_status = reset(c);

    while (exit_status == EXIT_OK) {
        exit_status = next_line(c, &line, &cap, &end);
        if (exit_status != EXIT_OK || end || strcmp(line, "/quit") == 0) {
            break;
        }
        if (line[0] == '/') {
            exit_status = command(c, line);
        } else if (line[0]) {
            exit_status = turn(c, line);
        }
    }
    free(line);
    drop_messages(c, 0);
    free(c->message);
    return exit_status;
}

/* Whether the model can chat at all is found out before somebody has typed a message. */
static int check_template(struct chat *c)
{
    numoe_message hello = {.role = "user", .content = "Hello"};
    numoe_error err;
    char *text;

    if (numoe_chat_render(c->engine, &hello, 1, true, &text, &err) == NUMOE_OK) {
        free(text);
    } else if (err.status != NUMOE_E_INPUT) { /* a conversation may please it more */
        return fail_status(&err);
    }
    return EXIT_OK;
}

static int chat_engine(struct chat *c)
{
    numoe_error err;
    int exit_status;

    if (!c->model.quiet) {
        report_engine(c->engine);
        report_sampling(&c->sampling);
    }
    if (numoe_session_new(c->engine, c->model.n_ctx, &c->session, &err) != NUMOE_OK ||
        numoe_sampler_new(&c->sampling.params, numoe_engine_get_info(c->engine)->n_vocab,
                          &c->sampler, &err) != NUMOE_OK) {
        exit_status = fail_status(&err);
    } else if ((exit_status = check_template(c)) == EXIT_OK) {
        exit_status = converse(c);
        if (!c->model.quiet) {
            report_replicas(c->engine);
        }
    }
    numoe_sampler_free(c->sampler);
    numoe_session_free(c->session);
    return exit_status;
}

static int run(int argc, char **argv)
{
    struct chat c = {.is_terminal = isatty(STDIN_FILENO)};
    bool done;

    model_options_init(&c.model);
    sampling_options_init(&c.sampling);
    c.stop = calloc((size_t)argc, sizeof *c.stop);
    if (!c.stop) {
        return fail(EXIT_LACKING, "no memory for %d arguments", argc);
    }
    int exit_status = parse(&c, argc, argv, &done);
    if (exit_status == EXIT_OK && !done) {
        exit_status = open_engine(&c.model, &c.engine);
        if (exit_status == EXIT_OK) {
            exit_status = chat_engine(&c);
            numoe_engine_close(c.engine);
        }
    }
    free(c.stop);
    free(c.chat_template.data);
    return exit_status;
}

const struct command command_chat = {
    .name = "chat",
    .summary = "hold a conversation",
    .run = run,
    .help =
        "Usage: numoe chat [OPTION]...\n"
        "\n"
        "Reads messages, a line each, and answers them. /reset forgets the conversation, /quit\n"
        "or the end of input ends it, /help says so.\n"
        "\n"
        "  -s, --system TEXT     a system message to begin with\n"
        "  -n, --tokens N        at most N tokens an answer (default: until the context is "
        "full)\n" STOP_OPTIONS_HELP CHAT_TEMPLATE_HELP "\n" SAMPLING_OPTIONS_HELP
        "\n" MODEL_OPTIONS_HELP "\n"
        "Ctrl-C stops an answer, or gives up a line being typed; a second one ends the program.\n",
};
