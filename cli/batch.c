/* numoe batch: answers a file of requests, so that a batch system can stop it and start it again.
 * Here are its options; batch-begin.c has the job's files, batch-work.c its loop. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "cli/batch.h"

#define DEFAULT_TOKENS 512
#define DEFAULT_SYNC   5.0 /* seconds */
#define MAX_TIME       1000000000

/* ------------------------------------------------------------------ options */

static const struct option options[] = {
    MODEL_OPTIONS,
    SAMPLING_OPTIONS,
    CHAT_TEMPLATE_OPTION,
    MODE_OPTION,
    {"input", required_argument, NULL, 'i'},
    {"output", required_argument, NULL, 'o'},
    {"tokens", required_argument, NULL, 'n'},
    {"ignore-eog", no_argument, NULL, OPT_IGNORE_EOG},
    {"ordered", no_argument, NULL, OPT_ORDERED},
    {"strict", no_argument, NULL, OPT_STRICT},
    {"sync", required_argument, NULL, OPT_SYNC},
    {"shard", required_argument, NULL, OPT_SHARD},
    {"time-left", required_argument, NULL, OPT_TIME_LEFT},
    {"max-seqs", required_argument, NULL, OPT_MAX_SEQS},
    {"expert-parallel", no_argument, NULL, OPT_EXPERT_PARALLEL},
    {"kv-memory", required_argument, NULL, OPT_KV_MEMORY},
    {0},
};

/* "2/8": the third of eight parts. */
static bool parse_shard(struct batch_options *o, const char *text)
{
    char own[24] = "";
    const char *slash = strchr(text, '/');

    if (!slash || (size_t)(slash - text) >= sizeof own) {
        fail(EXIT_INPUT, "--shard: '%s' is not K/N, such as 0/4 to 3/4", text);
        return false;
    }
    memcpy(own, text, (size_t)(slash - text));
    return parse_uint("--shard", slash + 1, 1, 1000000, &o->n_shard) &&
           parse_uint("--shard", own, 0, o->n_shard - 1, &o->shard);
}

/* "5", "1:30", "2:0:0": numbers between colons, of which the last are seconds. Their number; 0: it
 * is something else. */
static int parse_clock(const char *text, double *seconds)
{
    char *end = NULL;

    *seconds = 0;
    for (int n = 1; n <= 3; n++) {
        const unsigned long long value =
            isdigit((unsigned char)*text) ? strtoull(text, &end, 10) : 0;
        if (!end || end == text || value > MAX_TIME) {
            return 0;
        }
        *seconds = *seconds * 60 + (double)value;
        if (*end != ':') {
            return *end == 0 ? n : 0;
        }
        text = end + 1;
    }
    return 0;
}

/* Seconds, or Slurm's forms [[D-]H:]M:S. */
static bool parse_time(struct batch_options *o, const char *text)
{
    const char *dash = strchr(text, '-');
    char days[16] = "";
    double d = 0, seconds = 0;

    const int n = parse_clock(dash ? dash + 1 : text, &seconds);
    if (dash && (size_t)(dash - text) < sizeof days) {
        memcpy(days, text, (size_t)(dash - text));
    }
    if (n == 0 || (dash && (n != 3 || parse_clock(days, &d) != 1))) {
        fail(EXIT_INPUT, "--time-left: '%s' is neither seconds nor [[D-]H:]M:S", text);
        return false;
    }
    o->time_left = d * 86400 + seconds;
    return true;
}

/* Options without a value. */
static bool *flag_of(struct batch_options *o, int opt)
{
    switch (opt) {
    case OPT_IGNORE_EOG:
        return &o->ignore_eog;
    case OPT_ORDERED:
        return &o->ordered;
    case OPT_STRICT:
        return &o->strict;
    case OPT_EXPERT_PARALLEL:
        return &o->expert_parallel;
    default:
        return NULL;
    }
}

static int batch_option(struct batch_options *o, int opt, const char *value)
{
    bool *flag = flag_of(o, opt);
    uint64_t n = 0;
    float x = 0;
    bool ok = true;

    if (flag) {
        *flag = true;
        return 1;
    }
    switch (opt) {
    case 'i':
        o->input = value;
        break;
    case 'o':
        o->output = value;
        break;
    case 'n':
        ok = parse_uint("-n", value, 0, 1000000000, &o->max_tokens);
        break;
    case OPT_SYNC:
        ok = parse_float("--sync", value, 0, 86400, &x);
        o->sync_seconds = (double)x;
        break;
    case OPT_SHARD:
        ok = parse_shard(o, value);
        break;
    case OPT_TIME_LEFT:
        ok = parse_time(o, value);
        break;
    case OPT_MAX_SEQS:
        ok = parse_uint("--max-seqs", value, 1, 65536, &n);
        o->params.max_sequences = (unsigned)n;
        break;
    case OPT_KV_MEMORY:
        ok = parse_bytes("--kv-memory", value, &o->params.kv_bytes);
        break;
    case OPT_MODE:
        return mode_option(&o->model.params, value);
    case OPT_CHAT_TEMPLATE:
        o->template_path = value;
        return chat_template_option(&o->model.params, &o->chat_template, value);
    default:
        return 0;
    }
    return ok ? 1 : -1;
}

static int check_options(struct batch_options *o)
{
    if (!o->input || !o->output) {
        return fail_usage(&command_batch,
                          "%s is missing: requests are read from -i FILE, results "
                          "written to -o FILE",
                          o->input ? "-o" : "-i");
    }
    int exit_status = model_options_finish(&command_batch, &o->model);
    if (exit_status != EXIT_OK) {
        return exit_status;
    }
    const struct file_use use[] = {
        {"-o", o->output, true},
        {"-i", o->input, false},
        {"--chat-template", o->template_path, false},
        MODEL_FILE_USES(&o->model),
    };
    if (!o->sampling.has_seed) { /* a batch can always be repeated */
        o->sampling.has_seed = true;
        o->sampling.params.seed = 0;
    }
    o->params.n_ctx = o->model.n_ctx;
    exit_status = output_check_distinct(use, sizeof use / sizeof use[0]);
    return exit_status ? exit_status : sampling_options_finish(&o->sampling, o->model.is_bundled);
}

static int any_option(void *arg, int opt, char *value)
{
    struct batch_options *o = arg;

    int taken = batch_option(o, opt, value);
    taken = taken ? taken : model_option(&o->model, opt, value);
    return taken ? taken : sampling_option(&o->sampling, opt, value);
}

/* *done: nothing is left to do, the result is the exit status. */
static int parse(struct batch_options *o, int argc, char **argv, bool *done)
{
    const int exit_status = parse_options(&command_batch, argc, argv, ":" MODEL_OPTIONS_SHORT "i:o:n:",
                                          options, any_option, o, done);
    if (exit_status != EXIT_OK || *done) {
        return exit_status;
    }
    if (optind < argc) {
        return fail_usage(&command_batch, "unexpected argument '%s': requests are named with -i",
                          argv[optind]);
    }
    return check_options(o);
}

static int run(int argc, char **argv)
{
    struct batch_options o = {
        .max_tokens = DEFAULT_TOKENS, .sync_seconds = DEFAULT_SYNC, .n_shard = 1, .time_left = -1};
    bool done;

    model_options_init(&o.model);
    sampling_options_init(&o.sampling);
    int exit_status = parse(&o, argc, argv, &done);
    if (exit_status == EXIT_OK && !done) {
        exit_status = job_run(&o);
    }
    free(o.chat_template.data);
    return exit_status;
}

const struct command command_batch = {
    .name = "batch",
    .summary = "answer a file of requests, stoppable and resumable",
    .run = run,
    .help =
        "Usage: numoe batch -i REQUESTS -o RESULTS [OPTION]...\n"
        "\n"
        "Answers requests in the form of OpenAI's batch files, one JSON object a line:\n"
        "  {\"custom_id\": \"a\", \"body\": {\"messages\": [{\"role\": \"user\", \"content\": "
        "\"...\"}]}}\n"
        "  {\"custom_id\": \"b\", \"body\": {\"prompt\": \"...\", \"max_tokens\": 100, \"seed\": "
        "1}}\n"
        "A body may have max_tokens, temperature, top_p, top_k, min_p, repetition_penalty, seed,\n"
        "stop, logprobs, top_logprobs, ignore_eos, and what the chat template knows (tools ...).\n"
        "What it leaves out is as these options say. Results have the same form, a line each, in\n"
        "the order in which they are ready. A request that cannot be answered has an error there.\n"
        "\n"
        "A job may be stopped at any time: the same command goes on, and the results are those of\n"
        "one that was not stopped. RESULTS.journal, beside the results, knows what is done.\n"
        "Under mpirun, where numoe was built with MPI, processes share REQUESTS and RESULTS.\n"
        "\n"
        "  -i, --input FILE      the requests\n"
        "  -o, --output FILE     the results\n"
        "  -n, --tokens N        at most N tokens for a request that does not say max_tokens; 0:\n"
        "                        until the context is full (default: 512)\n"
        "      --ordered         results in the order of the requests, all at the end\n"
        "      --strict          stop before the first answer if any request is wrong\n"
        "      --shard K/N       only the lines of part K of N, from 0/N to (N-1)/N, for job "
        "arrays\n"
        "      --time-left TIME  stop in time: seconds or [[D-]H:]M:S (default: as Slurm or PBS\n"
        "                        say in SLURM_JOB_END_TIME, PBS_WALLTIME)\n"
        "      --sync SECONDS    how often results are brought to the disk (default: 5)\n"
        "      --max-seqs N      at most N requests at a time (default: 128)\n"
        "      --kv-memory SIZE  for the KV caches of all (default: most of what is free)\n"
        "      --expert-parallel  under mpirun: each process has a part of the experts, for "
        "models\n"
        "                        that are too large for one machine (default: each has all)\n"
        "      --ignore-eog      go on where the model ends its turn\n" MODE_HELP CHAT_TEMPLATE_HELP
        "\n" SAMPLING_OPTIONS_HELP
        "In a batch the seed is 0 where none is given; request N draws by seed + N - 1.\n"
        "\n" MODEL_OPTIONS_HELP "\n"
        "Exit status: 0 every request has a result; 75 stopped by SIGTERM, SIGINT, SIGUSR1,\n"
        "SIGUSR2, SIGHUP, SIGXCPU or the end of the time, 1 the disk is full or failed, 3 not\n"
        "enough memory: the same command goes on; 2 wrong usage, files or (--strict) requests.\n",
};
