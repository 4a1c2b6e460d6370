/* numoe plan: how weights would be placed on a machine, and why. */

#include "cli/cli.h"

static const struct option options[] = {
    MODEL_OPTIONS,
    {"json", no_argument, NULL, OPT_JSON},
    {"geometry", required_argument, NULL, OPT_GEOMETRY},
    {"type", required_argument, NULL, OPT_TYPE},
    {"bandwidth", required_argument, NULL, OPT_BANDWIDTH},
    {"gpu-model", required_argument, NULL, OPT_GPU_MODEL},
    {0},
};

struct plan_options {
    struct model_options model;
    numoe_plan_params params; /* its engine: model.params */
    bool json;
};

static int plan_option(void *arg, int opt, char *value)
{
    struct plan_options *o = arg;
    float gbps;

    switch (opt) {
    case OPT_JSON:
        o->json = true;
        return 1;
    case OPT_GEOMETRY:
        o->params.geometry = value;
        return 1;
    case OPT_TYPE:
        o->params.type = value;
        return 1;
    case OPT_BANDWIDTH:
        if (!parse_float("--bandwidth", value, 0.001f, 1e6f, &gbps)) {
            return -1;
        }
        o->model.params.node_bps = (double)gbps * 1e9;
        return 1;
    case OPT_GPU_MODEL:
        o->params.gpu = value;
        return 1;
    default:
        return model_option(&o->model, opt, value);
    }
}

static int run(int argc, char **argv)
{
    struct plan_options o = {.json = false};
    numoe_error err;
    bool done;

    model_options_init(&o.model);
    int exit_status = parse_options(&command_plan, argc, argv, ":" MODEL_OPTIONS_SHORT, options,
                                          plan_option, &o, &done);
    if (exit_status != EXIT_OK || done) {
        return exit_status;
    }
    if (optind < argc) {
        return fail_usage(&command_plan, "unexpected argument '%s': a model is named with -m",
                          argv[optind]);
    }
    if (o.model.params.gpu || o.model.gpu_option || o.model.params.defer_experts) {
        return fail_usage(&command_plan, "a GPU is planned for by --gpu-model: %s is for a model that "
                                         "runs",
                          o.model.gpu_option        ? o.model.gpu_option
                          : o.model.params.gpu != NULL ? "--gpu"
                                                       : "--defer");
    }
    if (o.params.geometry && o.model.params.model_path) {
        return fail_usage(&command_plan, "-m and --geometry both give a model");
    }
    if (o.params.type && !o.params.geometry) {
        return fail_usage(&command_plan, "--type belongs to --geometry");
    }
    exit_status = model_options_finish(&command_plan, &o.model);
    if (exit_status != EXIT_OK) {
        return exit_status;
    }
    o.params.engine = o.model.params;
    return numoe_plan_print(&o.params, stdout, o.json, &err) == NUMOE_OK ? EXIT_OK
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
        "read. The prediction counts bytes, arithmetic of products, meetings of workers and work on\n"
        "activations, for short contexts; this machine is measured for it, about a second.\n"
        "\n"
        "Below it is what every placement would cost: tokens/s, of one sequence and of prompts,\n"
        "memory, what crosses between nodes for a token, and what it is bound by.\n"
        "\n"
        "      --geometry NAME   a model that is not here: deepseek-v3, kimi-k2, qwen3-235b, mixtral,\n"
        "                        powermoe-3b, deepseek-v2-lite, qwen3-30b\n"
        "      --type MIX        of its weights: Q4_K_M (the default), Q8_0, IQ2_XXS, F16, ...\n"
        "      --bandwidth GB/s  that each node reads; otherwise measured, or, of other machines,\n"
        "                        what the topology says, or assumed\n"
        "      --gpu-model SPEC  with a GPU: 24GiB,1008GB/s,pcie4x16\n"
        "      --json            the whole plan, which --plan takes, here and in other "
        "subcommands\n"
        "\n" MODEL_OPTIONS_HELP,
};
