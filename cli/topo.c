/* numoe topo: what numoe sees of a machine, and what it would use. */
#include <string.h>

#include "cli/cli.h"

enum { TOPO_TOPOLOGY = 256, TOPO_JSON, TOPO_SVG };

static const struct option options[] = {
    {"topology", required_argument, NULL, TOPO_TOPOLOGY},
    {"json", no_argument, NULL, TOPO_JSON},
    {"svg", required_argument, NULL, TOPO_SVG},
    {"help", no_argument, NULL, 'h'},
    {0},
};

static int write_svg(const char *topology, const char *path)
{
    const struct file_use use[] = {{"--svg", path, true}, {"--topology", topology, false}};
    struct output o = {0};
    numoe_error err;
    int exit_status = output_check_distinct(use, sizeof use / sizeof use[0]);
    if (exit_status == EXIT_OK) {
        exit_status = output_open(&o, path);
    }
    if (exit_status != EXIT_OK) {
        return exit_status;
    }
    if (numoe_topo_report(topology, NUMOE_REPORT_SVG, o.file, &err) != NUMOE_OK) {
        output_discard(&o);
        return fail_status(&err);
    }
    return output_commit(&o);
}

struct topo_options {
    const char *topology, *svg;
    bool json;
};

static int topo_option(void *arg, int opt, char *value)
{
    struct topo_options *o = arg;

    switch (opt) {
    case TOPO_TOPOLOGY:
        o->topology = value;
        return 1;
    case TOPO_SVG:
        o->svg = value;
        return 1;
    default:
        o->json = true;
        return 1;
    }
}

static int run(int argc, char **argv)
{
    struct topo_options o = {.json = false};
    numoe_error err;
    bool done;

    const int exit_status =
        parse_options(&command_topo, argc, argv, ":h", options, topo_option, &o, &done);
    if (exit_status != EXIT_OK || done) {
        return exit_status;
    }
    if (optind < argc) {
        return fail_usage(&command_topo, "unexpected argument '%s'", argv[optind]);
    }
    if (o.svg && o.json) {
        return fail_usage(&command_topo, "--json and --svg exclude each other");
    }
    if (o.svg && strcmp(o.svg, "-") != 0) {
        return write_svg(o.topology, o.svg);
    }
    const numoe_report_format format = o.svg    ? NUMOE_REPORT_SVG
                                       : o.json ? NUMOE_REPORT_JSON
                                                : NUMOE_REPORT_TEXT;
    return numoe_topo_report(o.topology, format, stdout, &err) == NUMOE_OK ? EXIT_OK
                                                                           : fail_status(&err);
}

const struct command command_topo = {
    .name = "topo",
    .summary = "show nodes, cores, memory, and what would be used",
    .run = run,
    .help =
        "Usage: numoe topo [OPTION]...\n"
        "\n"
        "Prints packages, NUMA nodes, cores and memory of this machine, where workers would run,\n"
        "and who forbids the rest: affinity mask, control group, quota. Lists of CPUs are as\n"
        "taskset understands them.\n"
        "\n"
        "      --topology T      another machine: an hwloc XML file or synthetic string\n"
        "      --json            for programs\n"
        "      --svg FILE        a picture; - is standard output\n"
        "  -h, --help            this text\n",
};
