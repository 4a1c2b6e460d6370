/* What the subcommands of the program share. They are thin: everything that could be of use to
 * another program is in the library, behind numoe/numoe.h, which is all of it that is called here.
 *
 * Every failure is one line on stderr, "numoe: ...", and an exit status that says what to do next.
 */
#ifndef NUMOE_CLI_CLI_H
#define NUMOE_CLI_CLI_H

#include <getopt.h>
#include <stdio.h>

#include "numoe/numoe.h"

enum {
    EXIT_OK = 0,
    EXIT_WORK = 1,         /* failed while working: disk full, device lost */
    EXIT_INPUT = 2,        /* wrong usage, file, model or request */
    EXIT_LACKING = 3,      /* this machine or build lacks something */
    EXIT_RESUME = 75,      /* stopped early: the same command goes on */
    EXIT_INTERRUPTED = 130 /* by Ctrl-C */
};

struct command {
    const char *name, *summary, *help;
    int (*run)(int argc, char **argv); /* returns an exit status */
};

extern const struct command command_batch;
extern const struct command command_run, command_chat, command_eval, command_plan;
extern const struct command command_inspect, command_topo, command_doctor;
extern const struct command command_experts, command_bench, command_scale;

/* ------------------------------------------------------------------ errors (main.c) */

/* "numoe: ..." on stderr; the first two return what to exit with. */
int fail(int exit_status, const char *fmt, ...) NUMOE_PRINTF(2, 3);
int fail_usage(const struct command *cmd, const char *fmt, ...) NUMOE_PRINTF(2, 3);
int fail_status(const numoe_error *err);
int exit_status_of(numoe_status status);
int fail_file(const char *path, const numoe_error *err); /* what is wrong is in this file */
void warn(const char *fmt, ...) NUMOE_PRINTF(1, 2);
/* Who says so, from now on: "rank 1: ", where several processes do. */
void fail_prefix(const char *text);

/* ------------------------------------------------------------------ options (options.c) */

/* clang-format off */
enum {
    OPT_TOPOLOGY = 256, OPT_KV, OPT_CHUNK,
    OPT_TEMP, OPT_TOP_K, OPT_TOP_P, OPT_MIN_P, OPT_REPEAT_PENALTY, OPT_REPEAT_LAST, OPT_SEED,
    OPT_STOP, OPT_CHAT, OPT_CHAT_TEMPLATE, OPT_RAW, OPT_IGNORE_EOG,
    OPT_PERPLEXITY, OPT_WINDOW, OPT_LOGITS, OPT_ROUTES,
    OPT_TENSORS,
    OPT_PLACEMENT, OPT_REPLICA_BUDGET, OPT_EXPERT_STATS, OPT_PLAN, OPT_MMAP,
    OPT_AUDIT, OPT_EXPERT_STATS_OUT, OPT_JSON,
    OPT_FORMAT,
    OPT_MODE,
    OPT_ORDERED, OPT_STRICT, OPT_SYNC, OPT_SHARD, OPT_TIME_LEFT, OPT_MAX_SEQS, OPT_KV_MEMORY,
    OPT_EXPERT_PARALLEL,
    OPT_PROFILE, OPT_TRACE,
    OPT_OUTPUT_FILE,
    OPT_SOCKETS, OPT_NODES, OPT_CORES, OPT_ARTIFICIAL,
    OPT_GEOMETRY, OPT_TYPE, OPT_BANDWIDTH, OPT_GPU_MODEL, OPT_NO_PROBE,
    OPT_GPU, OPT_GPU_EXPERTS, OPT_GPU_DEVICES, OPT_VRAM_BUDGET, OPT_DEFER, OPT_ADAPT,
};
/* clang-format on */

struct model_options {
    numoe_engine_params params; /* model_path NULL: none named */
    bool is_bundled;            /* the bundled model: its defaults apply */
    bool quiet;
    unsigned n_ctx;             /* 0: the model's own */
    unsigned n_given;           /* options, but for -q */
    const char *gpu_option;     /* one that was given of those that belong to --gpu; NULL: none */
    bool has_placement;         /* --placement was given */
};

/* clang-format off */
#define MODEL_OPTIONS_SHORT "m:c:t:qh"
#define MODEL_OPTIONS                                                                              \
    {"model", required_argument, NULL, 'm'}, {"ctx", required_argument, NULL, 'c'},                \
    {"threads", required_argument, NULL, 't'}, {"quiet", no_argument, NULL, 'q'},                  \
    {"help", no_argument, NULL, 'h'}, {"topology", required_argument, NULL, OPT_TOPOLOGY},         \
    {"kv", required_argument, NULL, OPT_KV}, {"chunk", required_argument, NULL, OPT_CHUNK},        \
    {"placement", required_argument, NULL, OPT_PLACEMENT},                                         \
    {"replica-budget", required_argument, NULL, OPT_REPLICA_BUDGET},                               \
    {"expert-stats", required_argument, NULL, OPT_EXPERT_STATS},                                   \
    {"adapt", no_argument, NULL, OPT_ADAPT},                                                       \
    {"plan", required_argument, NULL, OPT_PLAN}, {"mmap", no_argument, NULL, OPT_MMAP},            \
    {"no-probe", no_argument, NULL, OPT_NO_PROBE},                                                 \
    {"gpu", required_argument, NULL, OPT_GPU},                                                     \
    {"gpu-experts", required_argument, NULL, OPT_GPU_EXPERTS},                                     \
    {"gpu-devices", required_argument, NULL, OPT_GPU_DEVICES},                                     \
    {"vram-budget", required_argument, NULL, OPT_VRAM_BUDGET},                                     \
    {"defer", required_argument, NULL, OPT_DEFER}

#define CHAT_TEMPLATE_OPTION {"chat-template", required_argument, NULL, OPT_CHAT_TEMPLATE}

#define SAMPLING_OPTIONS                                                                           \
    {"temp", required_argument, NULL, OPT_TEMP}, {"top-k", required_argument, NULL, OPT_TOP_K},    \
    {"top-p", required_argument, NULL, OPT_TOP_P}, {"min-p", required_argument, NULL, OPT_MIN_P},  \
    {"repeat-penalty", required_argument, NULL, OPT_REPEAT_PENALTY},                               \
    {"repeat-last", required_argument, NULL, OPT_REPEAT_LAST},                                     \
    {"seed", required_argument, NULL, OPT_SEED}
/* clang-format on */

#define MODEL_OPTIONS_HELP                                                                         \
    "Model and machine:\n"                                                                         \
    "  -m, --model FILE      GGUF file; of a split file the first part (default: the bundled\n"    \
    "                        model, or what the environment variable NUMOE_MODEL names)\n"         \
    "  -c, --ctx N           context in tokens (default: the model's own)\n"                       \
    "  -t, --threads N       workers (default: one per allowed core, or what a probe finds\n"      \
    "                        to be clearly faster)\n"                                             \
    "      --topology SPEC   plan for another machine: an hwloc XML file or synthetic string\n"    \
    "      --kv TYPE         of the KV cache: f32, f16 or q8_0 (default: f32 where the\n"           \
    "                        attention's weights are F32, F16 or BF16, else f16)\n"               \
    "      --chunk N         most tokens evaluated together (default: 512)\n"                      \
    "      --placement MODE  of weights on nodes: slice, shard, replicate, interleave, or auto\n"  \
    "                        (the default; 'numoe plan' says what it comes to)\n"                  \
    "      --replica-budget SIZE  memory for further copies of the most used experts, for\n"       \
    "                        shard: 20GiB, or 15% of all weights (default: 0); which ones is\n"     \
    "                        counted while the model runs\n"                                       \
    "      --expert-stats FILE  how often experts are used, from --expert-stats-out, where that\n"  \
    "                        is to be known at the start\n"                                        \
    "      --adapt           further copies go on following what is used, without stopping\n"      \
    "      --plan FILE       a plan from 'numoe plan --json', instead of these three\n"            \
    "      --mmap            experts stay in the file, read through the page cache: for models\n"  \
    "                        larger than memory; slower\n"                                        \
    "      --no-probe        measure nothing and remember nothing: the same choices each time;\n"  \
    "                        otherwise short probes choose workers, how long they wait awake,\n"  \
    "                        and pages, once in 30 days ($XDG_CACHE_HOME/numoe)\n"                \
    "      --gpu P           the dense half of layers on a GPU: auto (numoe-gpu-cuda; without it\n"  \
    "                        the CPU alone, with a warning), cuda, emu, the path of a program:\n" \
    "                        an error where it fails to start; or none (the default)\n"          \
    "      --gpu-experts N   experts that GPUs have as well: a number, 20%, or auto (the\n"        \
    "                        default): the most used ones, as many as fit\n"                      \
    "      --gpu-devices L   which GPU, by number (default: the first); several, as 0,2, for\n"    \
    "                        programs that can: numoe-gpu-cuda uses one\n"                       \
    "      --vram-budget SIZE  memory of each GPU that may be used (default: what is free)\n"      \
    "      --defer N         N of a token's experts join one layer later: overlaps more with a\n"  \
    "                        GPU, changes results (default: 0)\n"                                 \
    "  -q, --quiet           only the result and errors\n"                                         \
    "  -h, --help            this text\n"

#define CHAT_TEMPLATE_HELP                                                                         \
    "      --chat-template T  instead of the model's own chat form: a file with a template, or\n"  \
    "                        chatml, deepseek-v2, deepseek-v3, deepseek-v3.1, glm4, gpt-oss,\n"     \
    "                        granite, kimi-k2, llama3, mistral, olmoe\n"

#define STOP_OPTIONS_HELP                                                                          \
    "      --stop TEXT       stop before this text; may be given several times\n"                  \
    "      --ignore-eog      go on where the model ends its turn\n"

struct sampling_options {
    numoe_sampler_params params;
    bool has_seed, has_penalty;
};

#define SAMPLING_OPTIONS_HELP                                                                      \
    "Sampling (applied in this order: penalty, top-k, top-p, min-p, temperature):\n"               \
    "      --temp X          temperature; 0 is greedy (default: 0.7)\n"                            \
    "      --top-k N         only the N most likely tokens (default: 0, off)\n"                    \
    "      --top-p X         only the most likely tokens that reach X together (default: 0.9)\n"   \
    "      --min-p X         only tokens with X of the best one's probability (default: 0, off)\n" \
    "      --repeat-penalty X  divides the logits of recent tokens (default: 1, off; for the\n"    \
    "                        bundled model 1.05)\n"                                                \
    "      --repeat-last N   how many tokens are recent (default: 64)\n"                           \
    "      --seed N          makes a run repeatable (default: a new one each time, printed)\n"

#define MODE_OPTION {"mode", required_argument, NULL, OPT_MODE}
#define MODE_HELP                                                                                  \
    "      --mode MODE       latency: all nodes work on each token; throughput: each node has\n"   \
    "                        its own sequences (--placement replicate); auto: throughput while\n"  \
    "                        there is a sequence for each node and the placement allows it\n"      \
    "                        (default: auto)\n"
int mode_option(numoe_engine_params *params, const char *value); /* 1, or -1 (said already) */

/* The value of --chat-template, for params->chat_template: what was read from a file is kept in
 * *text, free(text->data). 1, or -1 if there is no such file (said already). */
struct text;
int chat_template_option(numoe_engine_params *params, struct text *text, const char *value);

/* The files that are read for these options, in a list of struct file_use. */
#define MODEL_FILE_USES(o)                                                                         \
    {"-m", (o)->params.model_path, false}, {"--expert-stats", (o)->params.expert_stats, false},    \
        {"--plan", (o)->params.plan, false}, {"--topology", (o)->params.topology, false}

void model_options_init(struct model_options *o);
void sampling_options_init(struct sampling_options *o);
/* "slice"; false after saying what is possible. And back. */
bool parse_placement(const char *text, numoe_placement *placement);
const char *placement_name(numoe_placement placement);
/* Values separated by commas, at least one and at most cap; text is cut up. False after an error. */
bool parse_list(const char *option, char *text, unsigned min, unsigned max, unsigned *list,
                size_t cap, size_t *n);
bool parse_placements(char *text, numoe_placement *list, size_t cap, size_t *n);

/* Both: 1 if the option was theirs, 0 if not, -1 if its value was wrong (said already). */
int model_option(struct model_options *o, int opt, const char *value);
int sampling_option(struct sampling_options *o, int opt, const char *value);
/* Adds to stop [n_stop], which has room for every argument. 1, or -1 for an empty text (said
 * already). */
int stop_option(const char **stop, size_t *n_stop, const char *value);
/* What was not named: the model, and a seed; and options that do not go together. Exit statuses. */
int model_options_finish(const struct command *cmd, struct model_options *o);
/* Before the engine: its context must have room for "a window" of n tokens. An exit status. */
int need_context(struct model_options *o, const char *what, size_t n);
/* What Slurm or PBS have given to this task; warns when it is bound to much less (limits.c). */
void job_limits(numoe_engine_params *params);
/* CPUs in the affinity mask; 0: not known. */
unsigned bound_cpus(void);
int sampling_options_finish(struct sampling_options *o, bool is_bundled);

/* 1 if the option was taken, 0 if it is not known, -1 if its value was wrong (said already). */
typedef int option_fn(void *arg, int opt, char *value);
/* Gives all options of a subcommand to take(arg, ...), until one is wrong; optind is then at what is
 * left. short_options begins with ":"; 'h' prints the help. Long names are not abbreviated. An exit
 * status; *done: nothing is left to do. */
int parse_options(const struct command *cmd, int argc, char **argv, const char *short_options,
                  const struct option *options, option_fn *take, void *arg, bool *done);
/* Numbers are read strictly; false after saying which option, what it was and what is possible. */
bool parse_uint(const char *option, const char *text, uint64_t min, uint64_t max, uint64_t *value);
bool parse_float(const char *option, const char *text, float min, float max, float *value);
bool parse_bytes(const char *option, const char *text, uint64_t *bytes); /* "20GiB", at least 1 */

/* ------------------------------------------------------------------ reading (files.c) */

struct text {
    char *data; /* NUL-terminated */
    size_t bytes;
};

/* A whole file, "-" is stdin; *text: free(text->data). An exit status. */
int read_text(const char *path, struct text *text);
/* getline(), except that a line of more than a text may have is an error; errno 0 at the end. */
ssize_t read_line(FILE *f, char **line, size_t *cap);
/* A C string ends at a NUL byte: where it is to be one, there may be none. An exit status. */
int refuse_nul(const char *name, const struct text *text);
/* One newline at the end is the editor's or the shell's, not the text's. */
void trim_newline(struct text *text);

/* ------------------------------------------------------------------ files written (output.c) */

/* A file that appears under its name only when it is complete. */
struct output {
    const char *path;
    char *target;    /* path without its symbolic links, and ... */
    char *temp_path; /* ... what is renamed to it; NULL: no regular file, written directly */
    FILE *file;
};

int output_open(struct output *o, const char *path); /* an exit status */
int output_commit(struct output *o);                 /* closes either way */
void output_discard(struct output *o);               /* also of one that never was opened */
/* Of what is not committed; may be called from a signal handler. */
void output_remove_unfinished(void);

/* What path's symbolic links lead to, whether that is there or not; target has PATH_MAX bytes. 0 or
 * an errno. */
int output_target(const char *path, char *target);

/* A file that an option names; path NULL: none. */
struct file_use {
    const char *option, *path;
    bool is_output;
};

/* That no output is another output or an input; an exit status. */
int output_check_distinct(const struct file_use *use, size_t n);

/* ------------------------------------------------------------------ Ctrl-C (interrupt.c) */

void interrupt_init(void);
/* From here to interrupt_end() the first Ctrl-C cancels this session, the second ends the program.
 */
void interrupt_begin(numoe_session *session);
/* The first Ctrl-C interrupts a read from the terminal, the second ends the program. */
void interrupt_begin_input(void);
/* True if there was a Ctrl-C since the begin. */
bool interrupt_end(void);

/* ------------------------------------------------------------------ terminal (report.c) */

/* A bar on stderr, on a terminal only; gone at the end. */
struct progress {
    const char *label;
    bool visible, drawn;
    double next_seconds;
};

void progress_init(struct progress *p, const char *label, bool quiet);
void progress_update(struct progress *p, double part);
void progress_end(struct progress *p);

double now_seconds(void);

/* Opens the engine with a progress bar; an exit status. */
int open_engine(const struct model_options *o, numoe_engine **engine);
/* The same, where somebody else says what is wrong. */
numoe_status try_open_engine(const struct model_options *o, numoe_engine **engine,
                             numoe_error *err);
/* "f16", as --kv takes it. */
const char *kv_type_name(numoe_kv_type type);
void report_engine(const numoe_engine *engine);
/* What nodes read since `since` (their number in numoe_engine_info), for n_token decoded tokens, and
 * where the pages of their weights are. */
void report_audit(const numoe_engine *engine, const numoe_traffic *since, size_t n_token);
void report_sampling(const struct sampling_options *o);
/* What further copies of experts were good for, if there is a place for some. */
void report_replicas(const numoe_engine *engine);
/* n_evaluated: decode steps, for the speed. no_probe: what the memory could do is not measured. */
void report_generation(numoe_engine *engine, const numoe_generate_result *r, size_t n_evaluated,
                       bool no_probe);

/* ------------------------------------------------------------------ profile (profile.c) */

struct profile_options {
    bool table;
    const char *trace;
    struct output out; /* output_discard() */
};

/* clang-format off */
#define PROFILE_OPTIONS                                                                            \
    {"profile", no_argument, NULL, OPT_PROFILE}, {"trace", required_argument, NULL, OPT_TRACE}
/* clang-format on */

#define PROFILE_OPTIONS_HELP                                                                       \
    "      --profile         at the end, where the time went: stages, layers, nodes\n"             \
    "      --trace FILE      every stage of every worker as JSON, for ui.perfetto.dev or\n"        \
    "                        chrome://tracing\n"

/* As model_option(). */
int profile_option(struct profile_options *o, int opt, const char *value);
/* The trace's file; before the engine. All three: an exit status. */
int profile_open(struct profile_options *o);
int profile_start(const struct profile_options *o, numoe_engine *engine);
int profile_report(struct profile_options *o, numoe_engine *engine, double wall_seconds);

/* ------------------------------------------------------------------ text (text.c) */

struct ids {
    int32_t *id; /* free() */
    size_t n;
};

int tokenize(const numoe_engine *engine, const char *text, size_t bytes, unsigned flags,
             struct ids *ids); /* an exit status */

/* Where generated text goes: stdout, at once. */
struct text_out {
    struct progress prompt;
    bool failed;
    char last; /* character written; 0: none yet */
};

void text_out_init(struct text_out *out, bool quiet);
bool text_out_write(void *text_out, const char *text, size_t bytes); /* numoe_text_fn */
void text_out_prompt(void *text_out, size_t n_done, size_t n_total); /* numoe_prompt_fn */
/* Ends the last line; where nothing was written, only if that is the result. */
void text_out_end(struct text_out *out, bool ok);

#endif
