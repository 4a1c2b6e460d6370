/* numoe plan: how weights would be placed on a machine, and why. */

#include "cli/cli.h"

static const struct option options[] = {
    MODEL_OPTIONS,
    {"json", no_argument, NULL, OPT_JSON},
    {0},
};

static int run(int argc, char **argv)
{
    struct model_options o;
    bool json = false;
    numoe_error err;
    int opt;

    model_options_init(&o);
    while ((opt = next_option(&command_plan, argc, argv, ":" MODEL_OPTIONS_SHORT, options)) != -1) {
        if (opt == '?') {
            return EXIT_INPUT;
        }
        if (opt == 'h') {
            fputs(command_plan.help, stdout);
            return EXIT_OK;
        }
        if (opt == OPT_JSON) {
            json = true;
        } else if (model_option(&o, opt, optarg) < 0) {
            return EXIT_INPUT;
        }
    }
    if (optind < argc) {
        return fail_usage(&command_plan, "unexpected argument '%s': a model is named with -m",
                          argv[optind]);
    }
    model_options_finish(&o);
    return numoe_plan_print(&o.params, stdout, json, &err) == NUMOE_OK ? EXIT_OK
                                                                       : fail_status(&err);
}

const struct command command_plan = {
    .name = "plan",
    .summary = "say how weights would be placed, and why",
    .run = run,
    .help =
        "Usage: numoe plan [OPTION]...\n"
        "\n"
        "Prints where the weights of a model would go on this machine, or on another one that\n"
        "--topology describes, with the reason and a prediction for one sequence. No weights are\n"
        "read. The prediction is an upper bound: it counts bytes, bandwidth and meetings of "
        "nodes.\n"
        "\n"
        "      --json            the whole plan, which --plan takes, here and in other "
        "subcommands\n"
        "\n" MODEL_OPTIONS_HELP,
};
