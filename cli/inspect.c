/* numoe inspect: what is in a GGUF file. */
#include <errno.h>
#include <string.h>

#include "cli/cli.h"

static const struct option options[] = {
    {"tensors", no_argument, NULL, OPT_TENSORS},
    {"help", no_argument, NULL, 'h'},
    {0},
};

static int inspect_option(void *tensors, int opt, char *value)
{
    (void)opt, (void)value; /* there is one */
    *(bool *)tensors = true;
    return 1;
}

static int run(int argc, char **argv)
{
    bool tensors = false, done;
    numoe_error err;

    const int exit_status =
        parse_options(&command_inspect, argc, argv, ":h", options, inspect_option, &tensors, &done);
    if (exit_status != EXIT_OK || done) {
        return exit_status;
    }
    if (argc - optind != 1) {
        return fail_usage(&command_inspect,
                          argc == optind ? "no file is named" : "only one file can be inspected");
    }
    if (numoe_inspect(argv[optind], stdout, tensors, &err) != NUMOE_OK) {
        return fail_status(&err);
    }
    return EXIT_OK;
}

const struct command command_inspect = {
    .name = "inspect",
    .summary = "describe a GGUF file",
    .run = run,
    .help =
        "Usage: numoe inspect [OPTION]... FILE\n"
        "\n"
        "Prints a GGUF file's metadata, its tensors by type, and for a Mixture-of-Experts model\n"
        "the bytes that are read for each token. Of a split file name the first part.\n"
        "\n"
        "      --tensors         every tensor with its shape, type and place\n"
        "  -h, --help            this text\n",
};
