/* Options that several subcommands take, and strict reading of numbers: "12x", "-1" and "1e99" are
 * errors that name the option. */
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "cli/cli.h"

#define MAX_TOKENS  1000000000u
#define MAX_THREADS 4096u
#define MAX_CHUNK   65536u

/* Names have to be written out: getopt_long() would take "--mode" for "--model" where no other name
 * begins so, and an abbreviation that is clear today is not once there are more options. */
static bool is_written_out(const char *arg, const struct option *options)
{
    const size_t n = strcspn(arg, "=");
    while (options->name && (strlen(options->name) != n - 2 ||
                             strncmp(options->name, arg + 2, n - 2) != 0)) {
        options++;
    }
    return options->name != NULL;
}

static bool has_long_name(int opt, const struct option *options)
{
    while (options->name && options->val != opt) {
        options++;
    }
    return options->name != NULL;
}

/* What getopt_long() calls "?" and ":" in words. arg: what it looked at last; after an unknown letter
 * that others follow, that is the argument before. */
static void tell_wrong_option(const struct command *cmd, int opt, const char *arg,
                              const struct option *options)
{
    const bool is_long =
        strncmp(arg, "--", 2) == 0 && (optopt == 0 || has_long_name(optopt, options));

    if (is_long && !is_written_out(arg, options)) {
        fail_usage(cmd, "unknown option '%.*s'", (int)strcspn(arg, "="), arg);
    } else if (opt == ':') {
        fail_usage(cmd, "option '%s' needs a value", arg);
    } else if (is_long) {
        fail_usage(cmd, "option '%s' takes no value", arg);
    } else {
        fail_usage(cmd, "unknown option '-%c'", optopt);
    }
}

/* As getopt_long(), '?' after an error (said already). */
static int next_option(const struct command *cmd, int argc, char **argv, const char *short_options,
                       const struct option *options)
{
    int index = -1;

    opterr = 0;
    const int opt = getopt_long(argc, argv, short_options, options, &index);
    if (opt == '?' || opt == ':') {
        tell_wrong_option(cmd, opt, argv[optind - 1], options);
        return '?';
    }
    const char *arg = index < 0 ? NULL : argv[optind - (optarg == argv[optind - 1] ? 2 : 1)];
    if (arg && !is_written_out(arg, options)) {
        fail_usage(cmd, "unknown option '%.*s'", (int)strcspn(arg, "="), arg);
        return '?';
    }
    return opt;
}

int parse_options(const struct command *cmd, int argc, char **argv, const char *short_options,
                  const struct option *options, option_fn *take, void *arg, bool *done)
{
    int opt;

    *done = false;
    while ((opt = next_option(cmd, argc, argv, short_options, options)) != -1) {
        if (opt == 'h') {
            fputs(cmd->help, stdout);
            *done = true;
            return EXIT_OK;
        }
        if (opt == '?' || take(arg, opt, optarg) < 0) {
            return EXIT_INPUT;
        }
    }
    return EXIT_OK;
}

bool parse_uint(const char *option, const char *text, uint64_t min, uint64_t max, uint64_t *value)
{
    char *end = NULL;

    errno = 0;
    uint64_t v = isdigit((unsigned char)text[0]) ? strtoull(text, &end, 10) : 0;
    if (!end || *end || errno || v < min || v > max) {
        fail(EXIT_INPUT, "%s: '%s' is not a whole number from %llu to %llu", option, text,
             (unsigned long long)min, (unsigned long long)max);
        return false;
    }
    *value = v;
    return true;
}

/* Decimal digits, point and exponent only: no "inf", "nan", "0x1p3" or leading space. */
static bool is_decimal(const char *text)
{
    return text[0] && strspn(text, "0123456789.eE+-") == strlen(text);
}

bool parse_float(const char *option, const char *text, float min, float max, float *value)
{
    char *end = NULL;
    float v = is_decimal(text) ? strtof(text, &end) : 0;

    if (!end || *end || !(v >= min && v <= max)) {
        fail(EXIT_INPUT, "%s: '%s' is not a number from %g to %g", option, text, (double)min,
             (double)max);
        return false;
    }
    *value = v;
    return true;
}

static bool parse_unsigned(const char *option, const char *text, unsigned min, unsigned max,
                           unsigned *value)
{
    uint64_t v;

    if (!parse_uint(option, text, min, max, &v)) {
        return false;
    }
    *value = (unsigned)v;
    return true;
}

/* ------------------------------------------------------------------ model and machine */

void model_options_init(struct model_options *o)
{
    *o = (struct model_options){0};
    numoe_engine_params_init(&o->params);
}

static bool parse_kv(const char *text, numoe_kv_type *type)
{
    static const numoe_kv_type types[] = {NUMOE_KV_F32, NUMOE_KV_F16, NUMOE_KV_Q8_0};
    for (unsigned i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(text, kv_type_name(types[i])) == 0) {
            *type = types[i];
            return true;
        }
    }
    fail(EXIT_INPUT, "--kv: '%s' is none of f32, f16, q8_0", text);
    return false;
}

static const char *const placement_names[] = {"auto", "slice", "shard", "replicate", "interleave"};

const char *placement_name(numoe_placement placement)
{
    return placement_names[placement];
}

bool parse_placement(const char *text, numoe_placement *placement)
{
    for (unsigned i = 0; i < sizeof placement_names / sizeof placement_names[0]; i++) {
        if (strcmp(text, placement_names[i]) == 0) {
            *placement = (numoe_placement)i;
            return true;
        }
    }
    fail(EXIT_INPUT, "--placement: '%s' is none of auto, slice, shard, replicate, interleave",
         text);
    return false;
}

bool parse_list(const char *option, char *text, unsigned min, unsigned max, unsigned *list,
                size_t cap, size_t *n)
{
    uint64_t value;
    char *rest = NULL;

    *n = 0;
    for (char *word = strtok_r(text, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        if (*n == cap) {
            fail(EXIT_INPUT, "%s: at most %zu values are possible", option, cap);
            return false;
        }
        if (!parse_uint(option, word, min, max, &value)) {
            return false;
        }
        list[(*n)++] = (unsigned)value;
    }
    if (*n == 0) {
        fail(EXIT_INPUT, "%s: the list is empty", option);
    }
    return *n > 0;
}

bool parse_placements(char *text, numoe_placement *list, size_t cap, size_t *n)
{
    char *rest = NULL;

    *n = 0;
    for (char *word = strtok_r(text, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        if (*n == cap) {
            fail(EXIT_INPUT, "--placement: at most %zu values are possible", cap);
            return false;
        }
        if (!parse_placement(word, &list[(*n)++])) {
            return false;
        }
    }
    return *n > 0 || parse_placement("", list);
}

/* "15%", or a size: "20GiB", "500MB", "1000000". */
static bool scan_size(const char *text, bool *is_percent, double *value)
{
    static const struct {
        const char *name;
        double bytes;
    } unit[] = {{"%", 1},
                {"", 1},
                {"B", 1},
                {"kB", 1e3},
                {"MB", 1e6},
                {"GB", 1e9},
                {"TB", 1e12},
                {"KiB", 1024},
                {"MiB", 1u << 20},
                {"GiB", 1u << 30},
                {"TiB", 1099511627776.0}};
    char number[32] = "";
    size_t digits = strspn(text, "0123456789.");
    const char *rest = text + digits;

    if (digits > 0 && digits < sizeof number) {
        memcpy(number, text, digits);
        char *end;
        double n = strtod(number, &end);
        for (unsigned i = 0; !*end && i < sizeof unit / sizeof unit[0]; i++) {
            if (strcmp(rest, unit[i].name) == 0 && n * unit[i].bytes <= (i == 0 ? 10000 : 1e18)) {
                *is_percent = i == 0;
                *value = n * unit[i].bytes;
                return true;
            }
        }
    }
    return false;
}

static bool parse_budget(const char *text, numoe_engine_params *params)
{
    bool is_percent;
    double value;

    if (!scan_size(text, &is_percent, &value)) {
        fail(EXIT_INPUT,
             "--replica-budget: '%s' is neither a size such as 20GiB nor a share such as 15%%",
             text);
        return false;
    }
    params->replica_percent = is_percent ? value : 0;
    params->replica_bytes = is_percent ? 0 : (uint64_t)value;
    return true;
}

bool parse_bytes(const char *option, const char *text, uint64_t *bytes)
{
    bool is_percent;
    double value;

    if (!scan_size(text, &is_percent, &value) || is_percent || value < 1) {
        fail(EXIT_INPUT, "%s: '%s' is no size such as 20GiB", option, text);
        return false;
    }
    *bytes = (uint64_t)value;
    return true;
}

static bool parse_gpu_experts(const char *text, numoe_engine_params *params)
{
    bool is_percent;
    double n;

    if (strcmp(text, "auto") == 0) {
        params->gpu_experts = NUMOE_GPU_EXPERTS_AUTO;
        params->gpu_expert_percent = 0;
        return true;
    }
    if (!scan_size(text, &is_percent, &n) || (is_percent && n > 100) ||
        (!is_percent && (text[strspn(text, "0123456789")] || n >= NUMOE_GPU_EXPERTS_AUTO))) {
        fail(EXIT_INPUT,
             "--gpu-experts: '%s' is neither auto nor a number nor a share such as 20%%", text);
        return false;
    }
    params->gpu_experts = is_percent ? 0 : (unsigned)n;
    params->gpu_expert_percent = is_percent ? n : 0;
    return true;
}

static int gpu_option(struct model_options *o, int opt, const char *value)
{
    bool ok = true;

    switch (opt) {
    case OPT_GPU:
        o->params.gpu = value;
        break;
    case OPT_GPU_EXPERTS:
        o->gpu_option = "--gpu-experts";
        ok = parse_gpu_experts(value, &o->params);
        break;
    case OPT_GPU_DEVICES:
        o->gpu_option = "--gpu-devices";
        o->params.gpu_devices = value;
        break;
    case OPT_VRAM_BUDGET:
        o->gpu_option = "--vram-budget";
        ok = parse_bytes("--vram-budget", value, &o->params.vram_budget_bytes);
        break;
    case OPT_DEFER:
        ok = parse_unsigned("--defer", value, 0, MAX_TOKENS, &o->params.defer_experts);
        break;
    default:
        return 0;
    }
    return ok ? 1 : -1;
}

/* model_option() but for counting. */
static int take_model_option(struct model_options *o, int opt, const char *value)
{
    bool ok = true;

    switch (opt) {
    case 'm':
        o->params.model_path = value;
        break;
    case 'c':
        ok = parse_unsigned("-c", value, 1, MAX_TOKENS, &o->n_ctx);
        break;
    case 't':
        ok = parse_unsigned("-t", value, 1, MAX_THREADS, &o->params.n_thread);
        break;
    case 'q':
        o->quiet = true;
        break;
    case OPT_TOPOLOGY:
        o->params.topology = value;
        break;
    case OPT_KV:
        ok = parse_kv(value, &o->params.kv_type);
        break;
    case OPT_CHUNK:
        ok = parse_unsigned("--chunk", value, 1, MAX_CHUNK, &o->params.chunk_tokens);
        break;
    case OPT_PLACEMENT:
        o->has_placement = true;
        ok = parse_placement(value, &o->params.placement);
        break;
    case OPT_REPLICA_BUDGET:
        ok = parse_budget(value, &o->params);
        break;
    case OPT_EXPERT_STATS:
        o->params.expert_stats = value;
        break;
    case OPT_ADAPT:
        o->params.adapt = true;
        break;
    case OPT_MMAP:
        o->params.map_experts = true;
        break;
    case OPT_PLAN:
        o->params.plan = value;
        break;
    case OPT_NO_PROBE:
        o->params.no_probe = true;
        break;
    default:
        return gpu_option(o, opt, value);
    }
    return ok ? 1 : -1;
}

int model_option(struct model_options *o, int opt, const char *value)
{
    const int taken = take_model_option(o, opt, value);

    o->n_given += taken > 0 && opt != 'q';
    return taken;
}

int mode_option(numoe_engine_params *params, const char *value)
{
    static const char *const name[] = {"auto", "latency", "throughput"};

    for (unsigned i = 0; i < sizeof name / sizeof name[0]; i++) {
        if (strcmp(value, name[i]) == 0) {
            params->mode = (numoe_mode)i;
            return 1;
        }
    }
    fail(EXIT_INPUT, "--mode: '%s' is none of latency, throughput, auto", value);
    return -1;
}

static bool is_builtin_template(const char *name)
{
    const char *builtin;

    for (size_t i = 0; (builtin = numoe_chat_template_name(i)) != NULL; i++) {
        if (strcmp(builtin, name) == 0) {
            return true;
        }
    }
    return false;
}

/* A name that is neither a built-in template's nor a file's is refused by the engine, which lists
 * the names. */
int chat_template_option(numoe_engine_params *params, struct text *text, const char *value)
{
    free(text->data);
    *text = (struct text){0};
    params->chat_template = value;
    if (!is_builtin_template(value) && (strchr(value, '/') || access(value, F_OK) == 0)) {
        if (read_text(value, text) != EXIT_OK || refuse_nul(value, text) != EXIT_OK) {
            return -1;
        }
        params->chat_template = text->data;
    }
    return 1;
}

/* Options that the library cannot tell from their defaults, without what they belong to. */
static int check_company(const struct command *cmd, const struct model_options *o)
{
    if (o->gpu_option && !o->params.gpu) {
        return fail_usage(cmd, "%s belongs to --gpu", o->gpu_option);
    }
    if (o->has_placement && o->params.plan) {
        return fail_usage(cmd, "--placement and --plan both say where weights go");
    }
    return EXIT_OK;
}

/* -m, then NUMOE_MODEL, then what the library opens where nothing is named. */
int model_options_finish(const struct command *cmd, struct model_options *o)
{
    const char *named = getenv("NUMOE_MODEL");

    if (!o->params.model_path && named && named[0]) {
        o->params.model_path = named;
    }
    o->is_bundled = !o->params.model_path;
    o->params.min_ctx = o->n_ctx;
    job_limits(&o->params);
    return check_company(cmd, o);
}

int need_context(struct model_options *o, const char *what, size_t n)
{
    if (o->n_ctx && n > o->n_ctx) {
        return fail(EXIT_INPUT, "%s of %zu tokens does not fit a context of %u (-c)", what, n,
                    o->n_ctx);
    }
    if (n > o->params.min_ctx) {
        o->params.min_ctx = n < UINT_MAX ? (unsigned)n : UINT_MAX;
    }
    return EXIT_OK;
}

int stop_option(const char **stop, size_t *n_stop, const char *value)
{
    if (!value[0]) {
        fail(EXIT_INPUT, "--stop: the text is empty: give the text to stop before");
        return -1;
    }
    stop[(*n_stop)++] = value;
    return 1;
}

/* ------------------------------------------------------------------ sampling */

void sampling_options_init(struct sampling_options *o)
{
    *o = (struct sampling_options){0};
    numoe_sampler_params_init(&o->params);
    o->params.temperature = 0.7f;
    o->params.top_p = 0.9f;
}

int sampling_option(struct sampling_options *o, int opt, const char *value)
{
    numoe_sampler_params *p = &o->params;
    bool ok;

    switch (opt) {
    case OPT_TEMP:
        ok = parse_float("--temp", value, 0, 1000, &p->temperature);
        break;
    case OPT_TOP_K:
        ok = parse_unsigned("--top-k", value, 0, MAX_TOKENS, &p->top_k);
        break;
    case OPT_TOP_P:
        ok = parse_float("--top-p", value, 0, 1, &p->top_p);
        break;
    case OPT_MIN_P:
        ok = parse_float("--min-p", value, 0, 1, &p->min_p);
        break;
    case OPT_REPEAT_PENALTY:
        ok = parse_float("--repeat-penalty", value, 0.01f, 100, &p->repeat_penalty);
        o->has_penalty = true;
        break;
    case OPT_REPEAT_LAST:
        ok = parse_unsigned("--repeat-last", value, 0, MAX_TOKENS, &p->repeat_last);
        break;
    case OPT_SEED:
        ok = parse_uint("--seed", value, 0, UINT64_MAX, &p->seed);
        o->has_seed = true;
        break;
    default:
        return 0;
    }
    return ok ? 1 : -1;
}

/* Seeds that the program chooses are short enough to be typed. */
int sampling_options_finish(struct sampling_options *o, bool is_bundled)
{
    if (!o->has_penalty && is_bundled) {
        o->params.repeat_penalty = 1.05f;
    }
    if (!o->has_seed) {
        uint32_t seed;
        if (getrandom(&seed, sizeof seed, 0) != sizeof seed) {
            return fail(EXIT_LACKING, "no random seed from the system: give one with --seed");
        }
        o->params.seed = seed;
    }
    return EXIT_OK;
}
