/* numoe run: continues a text, or answers one message. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

#define DEFAULT_TOKENS 512
#define DEFAULT_STORY  "Tell me a story about a fox and a crow."

struct run_options {
    struct model_options model;
    struct sampling_options sampling;
    const char *prompt, *file; /* at most one of them; neither: stdin, or the default */
    const char **stop;         /* [n_stop] */
    size_t n_stop;
    struct text chat_template; /* if from a file */
    uint64_t max_tokens;
    bool chat, raw, ignore_eog, audit;
    bool is_default_prompt; /* nobody gave one */
    const char *stats_path;
    struct output stats;
    struct profile_options profile;
    const char *template_path;
};

static const struct option options[] = {
    MODEL_OPTIONS,
    SAMPLING_OPTIONS,
    PROFILE_OPTIONS,
    {"prompt", required_argument, NULL, 'p'},
    {"file", required_argument, NULL, 'f'},
    {"tokens", required_argument, NULL, 'n'},
    {"stop", required_argument, NULL, OPT_STOP},
    {"chat", no_argument, NULL, OPT_CHAT},
    CHAT_TEMPLATE_OPTION,
    {"raw", no_argument, NULL, OPT_RAW},
    {"ignore-eog", no_argument, NULL, OPT_IGNORE_EOG},
    {"audit", no_argument, NULL, OPT_AUDIT},
    {"expert-stats-out", required_argument, NULL, OPT_EXPERT_STATS_OUT},
    {0},
};

/* 1: an option of this subcommand; 0: not; -1: its value was wrong. */
static int run_option(struct run_options *o, int opt, const char *value)
{
    switch (opt) {
    case 'p':
        o->prompt = value;
        return 1;
    case 'f':
        o->file = value;
        return 1;
    case 'n':
        return parse_uint("-n", value, 1, 1000000000, &o->max_tokens) ? 1 : -1;
    case OPT_STOP:
        return stop_option(o->stop, &o->n_stop, value);
    case OPT_CHAT:
        o->chat = true;
        return 1;
    case OPT_CHAT_TEMPLATE:
        o->chat = true;
        o->template_path = value;
        return chat_template_option(&o->model.params, &o->chat_template, value);
    case OPT_RAW:
        o->raw = true;
        return 1;
    case OPT_IGNORE_EOG:
        o->ignore_eog = true;
        return 1;
    case OPT_AUDIT:
        o->audit = true;
        return 1;
    case OPT_EXPERT_STATS_OUT:
        o->stats_path = value;
        return 1;
    default:
        return 0;
    }
}

static int any_option(void *arg, int opt, char *value)
{
    struct run_options *o = arg;

    int taken = run_option(o, opt, value);
    taken = taken ? taken : profile_option(&o->profile, opt, value);
    taken = taken ? taken : model_option(&o->model, opt, value);
    return taken ? taken : sampling_option(&o->sampling, opt, value);
}

/* *done: nothing is left to do, the result is the exit status. */
static int parse(struct run_options *o, int argc, char **argv, bool *done)
{
    int exit_status = parse_options(&command_run, argc, argv, ":" MODEL_OPTIONS_SHORT "p:f:n:",
                                    options, any_option, o, done);
    if (exit_status != EXIT_OK || *done) {
        return exit_status;
    }
    if (optind < argc) {
        return fail_usage(&command_run, "unexpected argument '%s': a prompt is given with -p",
                          argv[optind]);
    }
    if (o->prompt && o->file) {
        return fail_usage(&command_run, "-p and -f both give a prompt");
    }
    if (o->chat && o->raw) {
        return fail_usage(&command_run, "--chat and --raw exclude each other");
    }
    exit_status = model_options_finish(&command_run, &o->model);
    if (exit_status != EXIT_OK) {
        return exit_status;
    }
    const struct file_use use[] = {
        {"--expert-stats-out", o->stats_path, true},
        {"--trace", o->profile.trace, true},
        {"-f", o->file, false},
        {"--chat-template", o->template_path, false},
        MODEL_FILE_USES(&o->model),
    };
    exit_status = output_check_distinct(use, sizeof use / sizeof use[0]);
    return exit_status ? exit_status : sampling_options_finish(&o->sampling, o->model.is_bundled);
}

/* The text to begin with, from wherever it comes. */
static int read_prompt(struct run_options *o, struct text *text)
{
    *text = (struct text){0};
    if (o->prompt) {
        text->data = strdup(o->prompt);
        text->bytes = strlen(o->prompt);
        if (!text->data) {
            return fail(EXIT_LACKING, "no memory for the prompt");
        }
    } else if (o->file || !isatty(STDIN_FILENO)) {
        int exit_status = read_text(o->file ? o->file : "-", text);
        if (exit_status != EXIT_OK) {
            return exit_status;
        }
        trim_newline(text);
    }
    if (text->bytes == 0 && !o->prompt && !o->file && o->model.is_bundled) {
        free(text->data);
        *text = (struct text){.data = strdup(DEFAULT_STORY), .bytes = strlen(DEFAULT_STORY)};
        o->chat = !o->raw;
        o->is_default_prompt = true;
    }
    if (!text->data || text->bytes == 0) {
        free(text->data);
        return fail(EXIT_INPUT, "the prompt is empty: give one with -p, -f or on standard input");
    }
    return EXIT_OK;
}

static int chat_ids(const numoe_engine *engine, const struct text *message, struct ids *ids)
{
    numoe_message m = {.role = "user", .content = message->data};
    numoe_error err;
    char *text;

    int exit_status = refuse_nul("the prompt", message);
    if (exit_status != EXIT_OK) {
        return exit_status;
    }
    if (numoe_chat_render(engine, &m, 1, true, &text, &err) != NUMOE_OK) {
        return fail_status(&err);
    }
    exit_status = tokenize(engine, text, strlen(text), NUMOE_TOKENIZE_SPECIAL, ids);
    free(text);
    return exit_status;
}

static int append_prompt(const struct run_options *o, const numoe_engine *engine,
                         const struct text *prompt, numoe_session *session)
{
    struct ids ids;
    numoe_error err;

    int exit_status = o->chat ? chat_ids(engine, prompt, &ids)
                              : tokenize(engine, prompt->data, prompt->bytes,
                                         NUMOE_TOKENIZE_BOS | NUMOE_TOKENIZE_SPECIAL, &ids);
    if (exit_status != EXIT_OK) {
        return exit_status;
    }
    numoe_status status = numoe_session_append(session, ids.id, ids.n, &err);
    free(ids.id);
    return status == NUMOE_OK ? EXIT_OK : fail_status(&err);
}

/* The text, and what was read of weights before the first token was decoded. */
struct run_output {
    struct text_out text; /* first: callbacks of text_out take this too */
    const numoe_engine *engine;
    numoe_traffic *before; /* [n_node] */
};

static void note_traffic(struct run_output *out)
{
    for (unsigned i = 0; numoe_engine_traffic(out->engine, i, &out->before[i]); i++) {
    }
}

static void on_prompt(void *run_output, size_t n_done, size_t n_total)
{
    struct run_output *out = run_output;

    text_out_prompt(&out->text, n_done, n_total);
    if (n_done == n_total) {
        note_traffic(out);
    }
}

static int save_stats(struct output *stats, const numoe_engine *engine)
{
    numoe_error err;

    return numoe_engine_save_stats(engine, stats->file, &err) == NUMOE_OK
               ? output_commit(stats)
               : fail_file(stats->path, &err);
}

static int report(struct run_options *o, numoe_engine *engine, const numoe_generate_result *result,
                  size_t n_pending, const struct run_output *out)
{
    if (!o->model.quiet) {
        report_generation(engine, result, result->n_generated - n_pending,
                          o->model.params.no_probe);
    }
    if (o->audit) {
        report_audit(engine, out->before, result->n_generated - n_pending);
    }
    int exit_status = profile_report(&o->profile, engine,
                                     result->prompt_seconds + result->generate_seconds);
    return exit_status == EXIT_OK && o->stats_path ? save_stats(&o->stats, engine) : exit_status;
}

static int generate(struct run_options *o, numoe_engine *engine, numoe_session *session,
                    numoe_sampler *sampler)
{
    struct run_output out = {.engine = engine};
    numoe_generate_result result;
    numoe_error err;

    out.before = calloc(numoe_engine_get_info(engine)->n_node, sizeof *out.before);
    if (!out.before) {
        return fail(EXIT_LACKING, "no memory for an audit");
    }
    text_out_init(&out.text, o->model.quiet);
    numoe_generate_params params = {
        .max_tokens = o->max_tokens,
        .stop = o->stop,
        .n_stop = o->n_stop,
        .ignore_eog = o->ignore_eog,
        .on_text = text_out_write,
        .on_prompt = on_prompt,
        .arg = &out,
    };
    interrupt_begin(session);
    numoe_status status = numoe_generate(session, sampler, &params, &result, &err);
    interrupt_end();
    bool cancelled =
        status == NUMOE_OK && result.finish == NUMOE_FINISH_CANCEL && result.n_generated == 0;
    text_out_end(&out.text, status == NUMOE_OK && !cancelled);
    int exit_status = status != NUMOE_OK ? fail_status(&err)
                      : out.text.failed  ? EXIT_WORK
                      : cancelled
                          ? fail(EXIT_INTERRUPTED, "interrupted")
                          : report(o, engine, &result, numoe_session_pending(session), &out);
    free(out.before);
    return exit_status;
}

static int run_engine(struct run_options *o, numoe_engine *engine, const struct text *prompt)
{
    numoe_session *session = NULL;
    numoe_sampler *sampler = NULL;
    numoe_error err;
    int exit_status;

    if (!o->model.quiet) {
        report_engine(engine);
        if (o->is_default_prompt) {
            fprintf(stderr, "prompt     %s\n", prompt->data);
        }
        report_sampling(&o->sampling);
    }
    if (numoe_session_new(engine, o->model.n_ctx, &session, &err) != NUMOE_OK ||
        numoe_sampler_new(&o->sampling.params, numoe_engine_get_info(engine)->n_vocab, &sampler,
                          &err) != NUMOE_OK) {
        exit_status = fail_status(&err);
    } else {
        exit_status = append_prompt(o, engine, prompt, session);
    }
    if (exit_status == EXIT_OK) {
        exit_status = profile_start(&o->profile, engine);
    }
    if (exit_status == EXIT_OK) {
        exit_status = generate(o, engine, session, sampler);
    }
    numoe_sampler_free(sampler);
    numoe_session_free(session);
    return exit_status;
}

static int run_model(struct run_options *o)
{
    struct text prompt;
    numoe_engine *engine;

    int exit_status = read_prompt(o, &prompt);
    if (exit_status != EXIT_OK) {
        return exit_status;
    }
    if (o->stats_path) {
        exit_status = output_open(&o->stats, o->stats_path);
    }
    if (exit_status == EXIT_OK) {
        exit_status = profile_open(&o->profile);
    }
    if (exit_status == EXIT_OK) {
        exit_status = open_engine(&o->model, &engine);
    }
    if (exit_status == EXIT_OK) {
        exit_status = run_engine(o, engine, &prompt);
        numoe_engine_close(engine);
    }
    output_discard(&o->stats);
    output_discard(&o->profile.out);
    free(prompt.data);
    return exit_status;
}

static int run(int argc, char **argv)
{
    struct run_options o = {.max_tokens = DEFAULT_TOKENS};
    bool done;

    model_options_init(&o.model);
    sampling_options_init(&o.sampling);
    o.stop = calloc((size_t)argc, sizeof *o.stop);
    if (!o.stop) {
        return fail(EXIT_LACKING, "no memory for %d arguments", argc);
    }
    int exit_status = parse(&o, argc, argv, &done);
    if (exit_status == EXIT_OK && !done) {
        exit_status = run_model(&o);
    }
    free(o.stop);
    free(o.chat_template.data);
    return exit_status;
}

const struct command command_run = {
    .name = "run",
    .summary = "continue a text, or answer one message",
    .run = run,
    .help =
        "Usage: numoe run [OPTION]...\n"
        "\n"
        "Continues a text. Without -p or -f it is read from standard input if that is not a\n"
        "terminal; with the bundled model and no text at all, a story is told.\n"
        "The text goes to standard output, everything else to standard error.\n"
        "\n"
        "  -p, --prompt TEXT     the text\n"
        "  -f, --file FILE       a file with the text, - is standard input; one newline at its "
        "end\n"
        "                        is not part of it\n"
        "  -n, --tokens N        at most N tokens (default: 512)\n"
        "      --chat            the text is a user's message to be answered, in the model's own\n"
        "                        chat form\n" CHAT_TEMPLATE_HELP
        "                        (implies --chat)\n"
        "      --raw             the text is continued as it is, special tokens of its vocabulary\n"
        "                        understood (the default)\n" STOP_OPTIONS_HELP
        "      --audit           what each node read of weights for a token, from its own memory "
        "and\n"
        "                        from other nodes, and where the pages of its weights are\n"
        "      --expert-stats-out FILE  how often each expert was used, for --expert-stats\n"
        PROFILE_OPTIONS_HELP
        "\n" SAMPLING_OPTIONS_HELP "\n" MODEL_OPTIONS_HELP "\n"
        "Ctrl-C ends the generation: the text so far stays, the exit status is 0. A second one\n"
        "ends the program at once, with status 130.\n",
};
