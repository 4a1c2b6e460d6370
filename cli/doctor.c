/* numoe doctor: which settings of this machine cost speed. */
#include "cli/cli.h"

enum { DOCTOR_JSON = 256 };

static const struct option options[] = {
    {"json", no_argument, NULL, DOCTOR_JSON},
    {"help", no_argument, NULL, 'h'},
    {0},
};

static int doctor_option(void *format, int opt, char *value)
{
    (void)opt, (void)value; /* there is one */
    *(numoe_report_format *)format = NUMOE_REPORT_JSON;
    return 1;
}

static int run(int argc, char **argv)
{
    numoe_report_format format = NUMOE_REPORT_TEXT;
    numoe_error err;
    bool done;

    const int exit_status =
        parse_options(&command_doctor, argc, argv, ":h", options, doctor_option, &format, &done);
    if (exit_status != EXIT_OK || done) {
        return exit_status;
    }
    if (optind < argc) {
        return fail_usage(&command_doctor, "unexpected argument '%s'", argv[optind]);
    }
    return numoe_doctor_report(format, stdout, &err) == NUMOE_OK ? EXIT_OK : fail_status(&err);
}

const struct command command_doctor = {
    .name = "doctor",
    .summary = "say which settings of this machine cost speed",
    .run = run,
    .help =
        "Usage: numoe doctor [OPTION]...\n"
        "\n"
        "Looks at this machine's settings and this process's limits, and says of each whether it\n"
        "is well (ok), costs something in some situations (note) or costs speed or memory\n"
        "(warning), with the command that mends it. Of GPUs it says what the PCI bus shows, and\n"
        "what the GPU program finds (numoe-gpu-cuda, or NUMOE_GPU_PROGRAM), which is started for\n"
        "that. Changes nothing; the exit status is 0 with warnings too.\n"
        "\n"
        "      --json            for programs\n"
        "  -h, --help            this text\n",
};
