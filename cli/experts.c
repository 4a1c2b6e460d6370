/* numoe experts: which experts a text uses: collected, shown, put together. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

#define WINDOW_MIN 8
#define WINDOW_MAX 1000000

struct experts_options {
    struct model_options model;
    const char **text; /* [n_text] files */
    size_t n_text;
    uint64_t window;
    numoe_stats_format format;
    struct output out;
    const char *output;
    char **argument; /* [n_argument] statistics files */
    size_t n_argument;
};

static const struct option options[] = {
    MODEL_OPTIONS,
    {"file", required_argument, NULL, 'f'},
    {"output", required_argument, NULL, 'o'},
    {"window", required_argument, NULL, OPT_WINDOW},
    {"format", required_argument, NULL, OPT_FORMAT},
    {0},
};

static bool parse_format(const char *text, numoe_stats_format *format)
{
    static const char *const name[] = {"table", "experts", "curve", "pairs", "svg"};

    for (unsigned i = 0; i < sizeof name / sizeof name[0]; i++) {
        if (strcmp(text, name[i]) == 0) {
            *format = (numoe_stats_format)i;
            return true;
        }
    }
    fail(EXIT_INPUT, "--format: '%s' is none of table, experts, curve, pairs, svg", text);
    return false;
}

static int experts_option(void *arg, int opt, char *value)
{
    struct experts_options *o = arg;

    switch (opt) {
    case 'f':
        o->text[o->n_text++] = value;
        return 1;
    case 'o':
        o->output = value;
        return 1;
    case OPT_WINDOW:
        return parse_uint("--window", value, WINDOW_MIN, WINDOW_MAX, &o->window) ? 1 : -1;
    case OPT_FORMAT:
        return parse_format(value, &o->format) ? 1 : -1;
    default:
        return model_option(&o->model, opt, value);
    }
}

/* ------------------------------------------------------------------ collect */

struct collection {
    numoe_engine *engine;
    numoe_session *session;
    numoe_stats *stats;
    struct progress progress;
    size_t n_done, n_total; /* tokens of this text */
};

/* One window of tokens, seen alone. */
static numoe_status collect_window(struct collection *c, const int32_t *ids, size_t n,
                                   numoe_error *err)
{
    numoe_session_truncate(c->session, 0);
    numoe_status status = numoe_session_append(c->session, ids, n, err);
    while (status == NUMOE_OK && numoe_session_pending(c->session) > 0) {
        status = numoe_step(c->engine, &c->session, 1, err);
    }
    c->n_done += n;
    progress_update(&c->progress, (double)c->n_done / (double)c->n_total);
    return status;
}

static int collect_text(struct collection *c, const char *path, size_t window, bool quiet)
{
    struct text text;
    struct ids ids;
    numoe_error err;
    numoe_status status = NUMOE_OK;

    int exit_status = read_text(path, &text);
    if (exit_status != EXIT_OK) {
        return exit_status;
    }
    exit_status = tokenize(c->engine, text.data, text.bytes, NUMOE_TOKENIZE_BOS, &ids);
    free(text.data);
    if (exit_status != EXIT_OK) {
        return exit_status;
    }
    c->n_done = 0;
    c->n_total = ids.n;
    progress_init(&c->progress, "collecting", quiet);
    interrupt_begin(c->session);
    for (size_t at = 0; status == NUMOE_OK && at < ids.n; at += window) {
        size_t n = ids.n - at < window ? ids.n - at : window;
        status = collect_window(c, ids.id + at, n, &err);
    }
    interrupt_end();
    progress_end(&c->progress);
    free(ids.id);
    return status == NUMOE_OK ? EXIT_OK : fail_status(&err);
}

static int collect_texts(struct experts_options *o, struct collection *c)
{
    numoe_error err;
    int exit_status = EXIT_OK;

    if (numoe_stats_new(c->engine, &c->stats, &err) != NUMOE_OK ||
        numoe_session_new(c->engine, (unsigned)o->window, &c->session, &err) != NUMOE_OK) {
        return fail_status(&err);
    }
    numoe_session_on_route(c->session, numoe_stats_count, c->stats);
    for (size_t i = 0; exit_status == EXIT_OK && i < o->n_text; i++) {
        exit_status = collect_text(c, o->text[i], o->window, o->model.quiet);
    }
    if (exit_status != EXIT_OK) {
        return exit_status;
    }
    return numoe_stats_save(c->stats, o->out.file, &err) == NUMOE_OK
               ? output_commit(&o->out)
               : fail_file(o->out.path, &err);
}

static int check_collect(const struct experts_options *o)
{
    if (o->n_argument > 0) {
        return fail_usage(&command_experts, "unexpected argument '%s': texts are named with -f",
                          o->argument[0]);
    }
    if (o->n_text == 0 || !o->output) {
        return fail_usage(&command_experts, "collect needs a text (-f) and a file to write (-o)");
    }
    for (size_t i = 0; i < o->n_text; i++) {
        const struct file_use use[] = {
            {"-o", o->output, true}, {"-f", o->text[i], false}, MODEL_FILE_USES(&o->model)};
        int exit_status = output_check_distinct(use, sizeof use / sizeof use[0]);
        if (exit_status != EXIT_OK) {
            return exit_status;
        }
    }
    return EXIT_OK;
}

static int collect(struct experts_options *o)
{
    struct collection c = {.engine = NULL};

    int exit_status = model_options_finish(&command_experts, &o->model);
    if (exit_status == EXIT_OK) {
        exit_status = check_collect(o);
    }
    if (exit_status == EXIT_OK) {
        exit_status = need_context(&o->model, "a window", (size_t)o->window);
    }
    if (exit_status == EXIT_OK) {
        exit_status = output_open(&o->out, o->output);
    }
    if (exit_status == EXIT_OK) {
        exit_status = open_engine(&o->model, &c.engine);
    }
    if (exit_status == EXIT_OK) {
        exit_status = collect_texts(o, &c);
        numoe_stats_free(c.stats);
        numoe_session_free(c.session);
        numoe_engine_close(c.engine);
    }
    return exit_status;
}

/* ------------------------------------------------------------------ show, merge */

static int open_stats(const char *path, numoe_stats **stats)
{
    numoe_error err;

    return numoe_stats_open(path, stats, &err) == NUMOE_OK ? EXIT_OK : fail_status(&err);
}

/* All files in one. */
static int open_merged(const struct experts_options *o, numoe_stats **stats)
{
    int exit_status = open_stats(o->argument[0], stats);

    for (size_t i = 1; exit_status == EXIT_OK && i < o->n_argument; i++) {
        numoe_stats *more;
        numoe_error err;
        exit_status = open_stats(o->argument[i], &more);
        if (exit_status == EXIT_OK) {
            exit_status = numoe_stats_merge(*stats, more, &err) == NUMOE_OK
                              ? EXIT_OK
                              : fail_file(o->argument[i], &err);
            numoe_stats_free(more);
        }
        if (exit_status != EXIT_OK) {
            numoe_stats_free(*stats);
        }
    }
    return exit_status;
}

static int check_files(const struct experts_options *o, const char *what)
{
    if (o->model.n_given > 0) {
        return fail_usage(&command_experts, "%s runs no model: options of model and machine belong to "
                                            "collect",
                          what);
    }
    if (o->n_argument == 0 || o->n_text > 0) {
        return fail_usage(&command_experts, "%s needs files of statistics, and nothing else", what);
    }
    for (size_t i = 0; i < o->n_argument; i++) {
        const struct file_use use[] = {{"-o", o->output, true},
                                       {"the statistics", o->argument[i], false}};
        int exit_status = output_check_distinct(use, sizeof use / sizeof use[0]);
        if (exit_status != EXIT_OK) {
            return exit_status;
        }
    }
    return EXIT_OK;
}

static int write_stats(struct experts_options *o, const numoe_stats *stats, bool as_file)
{
    FILE *to = o->output ? o->out.file : stdout;
    numoe_error err;
    numoe_status status = as_file ? numoe_stats_save(stats, to, &err)
                                  : numoe_stats_print(stats, o->format, to, &err);

    if (status != NUMOE_OK) {
        return o->output ? fail_file(o->output, &err) : fail_status(&err);
    }
    return o->output ? output_commit(&o->out) : EXIT_OK;
}

static int show(struct experts_options *o)
{
    numoe_stats *stats;

    int exit_status = check_files(o, "show");
    if (exit_status == EXIT_OK && o->output) {
        exit_status = output_open(&o->out, o->output);
    }
    if (exit_status == EXIT_OK) {
        exit_status = open_merged(o, &stats);
    }
    if (exit_status == EXIT_OK) {
        exit_status = write_stats(o, stats, false);
        numoe_stats_free(stats);
    }
    return exit_status;
}

static int merge(struct experts_options *o)
{
    numoe_stats *stats;

    int exit_status = check_files(o, "merge");
    if (exit_status == EXIT_OK && !o->output) {
        exit_status = fail_usage(&command_experts, "merge needs a file to write (-o)");
    }
    if (exit_status == EXIT_OK) {
        exit_status = output_open(&o->out, o->output);
    }
    if (exit_status == EXIT_OK) {
        exit_status = open_merged(o, &stats);
    }
    if (exit_status == EXIT_OK) {
        exit_status = write_stats(o, stats, true);
        numoe_stats_free(stats);
    }
    return exit_status;
}

/* ------------------------------------------------------------------ */

static const struct verb {
    const char *name;
    int (*run)(struct experts_options *o);
} verbs[] = {{"collect", collect}, {"show", show}, {"merge", merge}};

static const struct verb *find_verb(const char *name)
{
    for (size_t i = 0; name && i < sizeof verbs / sizeof verbs[0]; i++) {
        if (strcmp(verbs[i].name, name) == 0) {
            return &verbs[i];
        }
    }
    return NULL;
}

static int parse_and_run(struct experts_options *o, int argc, char **argv)
{
    bool done;

    const int exit_status = parse_options(&command_experts, argc, argv, ":" MODEL_OPTIONS_SHORT "f:o:",
                                          options, experts_option, o, &done);
    if (exit_status != EXIT_OK || done) {
        return exit_status;
    }
    const struct verb *verb = find_verb(argv[optind]);
    if (!verb) {
        return fail_usage(&command_experts, "give one of collect, show, merge%s%s",
                          argv[optind] ? ", not " : "", argv[optind] ? argv[optind] : "");
    }
    o->argument = argv + optind + 1;
    o->n_argument = (size_t)(argc - optind - 1);
    return verb->run(o);
}

static int run(int argc, char **argv)
{
    struct experts_options o = {.window = 512};

    model_options_init(&o.model);
    o.text = calloc((size_t)argc, sizeof *o.text);
    if (!o.text) {
        return fail(EXIT_LACKING, "no memory for %d arguments", argc);
    }
    int exit_status = parse_and_run(&o, argc, argv);
    output_discard(&o.out);
    free(o.text);
    return exit_status;
}

const struct command command_experts = {
    .name = "experts",
    .summary = "which experts a text uses: collect, show and merge statistics",
    .run = run,
    .help =
        "Usage: numoe experts collect [OPTION]... -f TEXT -o STATS\n"
        "       numoe experts show STATS... [--format FORMAT] [-o FILE]\n"
        "       numoe experts merge STATS... -o FILE\n"
        "\n"
        "collect evaluates texts and writes how often each expert of each layer was chosen, with\n"
        "which router weights, and which ones together. show says what is in such files: how many\n"
        "choices the hottest experts serve, how uneven the use is, who goes with whom. merge adds\n"
        "files of one model. --expert-stats of other subcommands takes these files.\n"
        "Importance matrices of llama.cpp are read too, wherever statistics are.\n"
        "\n"
        "  -f, --file TEXT       a text to collect from; may be given several times\n"
        "      --window N        tokens that see each other (default: 512)\n"
        "  -o, --output FILE     the file to write; it gets its name when it is complete\n"
        "      --format FORMAT   table (the default), or CSV: experts (counts and mean weights), "
        "curve\n"
        "                        (share of choices by share of experts), pairs (chosen together),\n"
        "                        or svg: a heat map, layer by expert\n"
        "\n" MODEL_OPTIONS_HELP,
};
