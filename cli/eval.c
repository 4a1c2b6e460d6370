/* numoe eval: numbers for comparison with other implementations. What is wrong with the request or
 * its files is found before the model is loaded. */
#include <limits.h>
#include <stdlib.h>

#include "cli/eval.h"

#define WINDOW_MIN 8
#define WINDOW_MAX 1000000

static const struct option options[] = {
    MODEL_OPTIONS,
    {"perplexity", required_argument, NULL, OPT_PERPLEXITY},
    {"window", required_argument, NULL, OPT_WINDOW},
    MODE_OPTION,
    {"logits", required_argument, NULL, OPT_LOGITS},
    {"output", required_argument, NULL, 'o'},
    {"routes", required_argument, NULL, OPT_ROUTES},
    PROFILE_OPTIONS,
    {0},
};

static int eval_option(struct eval_options *o, int opt, const char *value)
{
    switch (opt) {
    case OPT_PERPLEXITY:
        o->perplexity = value;
        return 1;
    case OPT_WINDOW:
        return parse_uint("--window", value, WINDOW_MIN, WINDOW_MAX, &o->window) ? 1 : -1;
    case OPT_MODE:
        o->has_mode = true;
        return mode_option(&o->model.params, value);
    case OPT_LOGITS:
        o->logits = value;
        return 1;
    case 'o':
        o->output = value;
        return 1;
    case OPT_ROUTES:
        o->routes = value;
        return 1;
    default:
        return 0;
    }
}

static int check(const struct eval_options *o)
{
    if (!o->perplexity == !o->logits) {
        return fail_usage(&command_eval, "give either --perplexity or --logits");
    }
    if (o->logits && !o->output && !o->routes) {
        return fail_usage(&command_eval, "--logits needs -o or --routes for what it finds");
    }
    if (o->perplexity && (o->output || o->routes)) {
        return fail_usage(&command_eval, "-o and --routes belong to --logits");
    }
    if (o->logits && o->has_mode) {
        return fail_usage(&command_eval, "--mode is for several sequences, --logits has one");
    }
    if (o->logits && (o->profile.table || o->profile.trace)) {
        return fail_usage(&command_eval, "--profile and --trace belong to --perplexity");
    }
    const struct file_use use[] = {
        {"-o", o->output, true},
        {"--routes", o->routes, true},
        {"--trace", o->profile.trace, true},
        {"--logits", o->logits, false},
        MODEL_FILE_USES(&o->model),
    };
    return output_check_distinct(use, sizeof use / sizeof use[0]);
}

static int any_option(void *arg, int opt, char *value)
{
    struct eval_options *o = arg;

    int taken = eval_option(o, opt, value);
    taken = taken ? taken : profile_option(&o->profile, opt, value);
    return taken ? taken : model_option(&o->model, opt, value);
}

static int parse(struct eval_options *o, int argc, char **argv, bool *done)
{
    int exit_status = parse_options(&command_eval, argc, argv, ":" MODEL_OPTIONS_SHORT "o:", options,
                                    any_option, o, done);
    if (exit_status != EXIT_OK || *done) {
        return exit_status;
    }
    if (optind < argc) {
        return fail_usage(&command_eval, "unexpected argument '%s'", argv[optind]);
    }
    exit_status = model_options_finish(&command_eval, &o->model);
    return exit_status ? exit_status : check(o);
}

int eval_engine(const struct eval_options *o, const char *what, size_t n_token,
                numoe_engine **engine)
{
    struct model_options model = o->model;

    int exit_status = need_context(&model, what, n_token);
    if (exit_status == EXIT_OK) {
        exit_status = open_engine(&model, engine);
    }
    if (exit_status == EXIT_OK && !model.quiet) {
        report_engine(*engine);
        fputc('\n', stderr);
    }
    return exit_status;
}

static int run(int argc, char **argv)
{
    struct eval_options o = {.window = 512};
    bool done;

    model_options_init(&o.model);
    int exit_status = parse(&o, argc, argv, &done);
    if (exit_status != EXIT_OK || done) {
        return exit_status;
    }
    if (o.perplexity) {
        struct text text;
        exit_status = read_text(o.perplexity, &text);
        if (exit_status == EXIT_OK) {
            exit_status = profile_open(&o.profile);
            exit_status = exit_status ? exit_status : eval_perplexity(&o, &text);
            output_discard(&o.profile.out);
            free(text.data);
        }
    } else {
        struct ids ids;
        exit_status = read_ids(o.logits, &ids);
        if (exit_status == EXIT_OK) {
            exit_status = eval_logits(&o, &ids);
            free(ids.id);
        }
    }
    return exit_status;
}

const struct command command_eval = {
    .name = "eval",
    .summary = "perplexity of a text, logits and routes of given tokens",
    .run = run,
    .help = "Usage: numoe eval [OPTION]... --perplexity FILE\n"
            "       numoe eval [OPTION]... --logits IDS.json [-o OUT.npy] [--routes OUT.json]\n"
            "\n"
            "      --perplexity FILE  perplexity of a text: its tokens are cut into windows, each "
            "begins\n"
            "                        with BOS where the model has one, and the tokens after the "
            "middle\n"
            "                        of each window are scored\n"
            "      --window N        tokens in a window (default: 512)\n" MODE_HELP
            PROFILE_OPTIONS_HELP
            "\n"
            "      --logits IDS.json  evaluate a JSON array of token ids, taken as they are\n"
            "  -o, --output OUT.npy  their logits: float32 [tokens, vocabulary], all positions\n"
            "      --routes OUT.json  their experts: for each MoE layer the chosen expert ids and "
            "their\n"
            "                        weights, [tokens, experts used]\n"
            "\n" MODEL_OPTIONS_HELP "\n"
            "A file gets its name when it is complete. Ctrl-C stops with status 130.\n",
};
