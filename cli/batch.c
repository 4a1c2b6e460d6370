/* numoe batch: answers a file of requests, so that a batch system can stop it and start it again.
 * What is computed together is the library's choice (numoe_batch); here is which request comes
 * next, where its result goes, and when to stop. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/batch.h"

#define DEFAULT_TOKENS   512
#define DEFAULT_SYNC     5.0  /* seconds */
#define MARGIN_SECONDS   20.0 /* before the end of a job's time, besides two steps */
#define AHEAD            256  /* requests that wait in the library */
#define LOG_SECONDS      60.0
#define TERMINAL_SECONDS 0.5

struct batch_options {
    struct model_options model;
    struct sampling_options sampling;
    struct text chat_template; /* if from a file */
    const char *template_path, *input, *output;
    numoe_batch_params params;
    uint64_t max_tokens, shard, n_shard;
    double sync_seconds, time_left; /* negative: as the batch system says, or no end */
    bool ordered, strict, ignore_eog;
};

struct batch_job {
    const struct batch_options *o;
    struct batch_input in;
    struct journal j;
    struct batch_defaults defaults;
    numoe_engine *engine;
    numoe_batch *batch;
    bool *is_done;   /* [n_line] has a result, or is not this job's */
    size_t *same_id; /* [n_line] 1 + an earlier line with the same custom_id; 0: none */
    struct batch_request **active; /* [n_line] of submitted ones */
    size_t next, n_total, n_before, n_done, n_error, n_too_large;
    numoe_error too_large; /* of the last request that needs more memory than there is */
    double start_seconds, end_seconds, step_seconds, next_report;
    bool on_terminal;
};

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

/* Seconds, or Slurm's forms [[D-]H:]M:S. */
static bool parse_time(struct batch_options *o, const char *text)
{
    unsigned d = 0, h = 0, m = 0, s = 0;
    char rest;

    if (sscanf(text, "%u-%u:%u:%u%c", &d, &h, &m, &s, &rest) != 4) {
        d = h = m = s = 0;
        if (sscanf(text, "%u:%u:%u%c", &h, &m, &s, &rest) != 3) {
            h = m = s = 0;
            if (sscanf(text, "%u:%u%c", &m, &s, &rest) != 2) {
                m = s = 0;
                if (sscanf(text, "%u%c", &s, &rest) != 1) {
                    fail(EXIT_INPUT, "--time-left: '%s' is neither seconds nor [[D-]H:]M:S", text);
                    return false;
                }
            }
        }
    }
    o->time_left = ((d * 24.0 + h) * 60 + m) * 60 + s;
    return true;
}

static int batch_option(struct batch_options *o, int opt, const char *value)
{
    uint64_t n = 0;
    float x = 0;
    bool ok = true;

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
    case OPT_IGNORE_EOG:
        o->ignore_eog = true;
        break;
    case OPT_ORDERED:
        o->ordered = true;
        break;
    case OPT_STRICT:
        o->strict = true;
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
    model_options_finish(&o->model);
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
    const int exit_status = output_check_distinct(use, sizeof use / sizeof use[0]);
    return exit_status ? exit_status : sampling_options_finish(&o->sampling, o->model.is_bundled);
}

/* *done: nothing is left to do, the result is the exit status. */
static int parse(struct batch_options *o, int argc, char **argv, bool *done)
{
    int opt;

    *done = false;
    while ((opt = next_option(&command_batch, argc, argv,
                              ":" MODEL_OPTIONS_SHORT "i:o:n:", options)) != -1) {
        if (opt == '?') {
            return EXIT_INPUT;
        }
        if (opt == 'h') {
            fputs(command_batch.help, stdout);
            *done = true;
            return EXIT_OK;
        }
        int taken = batch_option(o, opt, optarg);
        taken = taken ? taken : model_option(&o->model, opt, optarg);
        taken = taken ? taken : sampling_option(&o->sampling, opt, optarg);
        if (taken < 0) {
            return EXIT_INPUT;
        }
    }
    if (optind < argc) {
        return fail_usage(&command_batch, "unexpected argument '%s': requests are named with -i",
                          argv[optind]);
    }
    return check_options(o);
}

/* ------------------------------------------------------------------ which job this is */

/* A template with a date would make results depend on the day: the job's first day counts. */
static int64_t job_now(const struct journal *j)
{
    const json_t *began = json_object_get(j->header, "began");
    const char *epoch = getenv("SOURCE_DATE_EPOCH");

    if (json_is_integer(began)) {
        return json_integer_value(began);
    }
    return epoch && *epoch ? strtoll(epoch, NULL, 10) : (int64_t)time(NULL);
}

static json_t *describe_input(const struct batch_job *job)
{
    char hash[20];

    snprintf(hash, sizeof hash, "%016" PRIx64, job->in.hash);
    return json_pack("{s:I, s:s}", "bytes", (json_int_t)job->in.bytes, "hash", hash);
}

static json_t *describe_model(const struct batch_job *job)
{
    const numoe_engine_info *info = numoe_engine_get_info(job->engine);
    const char *path = job->o->model.params.model_path;
    struct stat st = {0};

    if (path) {
        (void)stat(path, &st);
    }
    return json_pack("{s:s, s:s, s:s, s:I, s:I, s:s}", "name", info->model_name, "arch", info->arch,
                     "type", info->type_name, "parameters", (json_int_t)info->n_param, "bytes",
                     (json_int_t)st.st_size, "cache",
                     info->kv_type == NUMOE_KV_F16   ? "f16"
                     : info->kv_type == NUMOE_KV_F32 ? "f32"
                                                     : "other");
}

static json_t *describe_options(const struct batch_options *o)
{
    const numoe_sampler_params *p = &o->sampling.params;
    const char *template = o->model.params.chat_template;
    char hash[20];

    snprintf(hash, sizeof hash, "%016" PRIx64,
             template ? journal_hash(0, template, strlen(template)) : 0);
    return json_pack("{s:f, s:f, s:f, s:f, s:i, s:i, s:I, s:I, s:b, s:i, s:s, s:I, s:I}",
                     "temperature", (double)p->temperature, "top_p", (double)p->top_p, "min_p",
                     (double)p->min_p, "repetition_penalty", (double)p->repeat_penalty, "top_k",
                     (int)p->top_k, "repeat_last", (int)p->repeat_last, "seed", (json_int_t)p->seed,
                     "tokens", (json_int_t)o->max_tokens, "ignore_eog", o->ignore_eog, "ctx",
                     (int)o->params.n_ctx, "chat_template", hash, "shard", (json_int_t)o->shard,
                     "shards", (json_int_t)o->n_shard);
}

/* All that results depend on. Kernels of another instruction set round otherwise. */
static int begin_journal(struct batch_job *job)
{
    json_t *want =
        json_pack("{s:s, s:b, s:I, s:o, s:o, s:o, s:s}", "numoe", "batch 1", "ordered",
                  job->o->ordered, "began", (json_int_t)job->defaults.now_seconds, "requests",
                  describe_input(job), "model", describe_model(job), "options",
                  describe_options(job->o), "kernels", numoe_engine_get_info(job->engine)->isa);
    if (!want) {
        return fail(EXIT_LACKING, "no memory for a journal");
    }
    const int exit_status = journal_begin(&job->j, want, "kernels");
    json_decref(want);
    return exit_status;
}

/* Without the model, which need not be loaded if all is done. */
static int check_input(struct batch_job *job)
{
    json_t *now = describe_input(job);
    const json_t *then = json_object_get(job->j.header, "requests");
    const bool same = !job->j.header || json_equal(then, now);

    json_decref(now);
    return same ? EXIT_OK
                : fail(EXIT_INPUT, "%s: has changed since %s was begun: give another -o",
                       job->in.path, job->j.path);
}

/* ------------------------------------------------------------------ what is to be done */

static int mark_done(struct batch_job *job)
{
    const struct batch_options *o = job->o;

    for (size_t i = 0; i < job->in.n_line; i++) {
        job->is_done[i] = job->in.is_blank[i] || i % o->n_shard != o->shard;
        job->n_total += !job->is_done[i];
    }
    for (size_t k = 0; k < job->j.n_entry; k++) {
        const uint64_t line = job->j.entry[k].line;
        if (line > job->in.n_line || job->is_done[line - 1]) {
            return fail(EXIT_INPUT,
                        "%s: names line %" PRIu64 ", which is none of this job's, or "
                        "twice: remove it and the results to begin anew",
                        job->j.journal_path, line);
        }
        job->is_done[line - 1] = true;
        job->n_before++;
    }
    job->n_done = job->n_before;
    return EXIT_OK;
}

static int check_line(struct batch_job *job, size_t i, json_t *seen)
{
    struct batch_request req;
    struct text line;

    int exit_status = input_read(&job->in, i, &line);
    if (exit_status != EXIT_OK) {
        return exit_status;
    }
    request_parse(&req, &line, i, &job->defaults);
    if (req.custom_id) {
        const json_t *first = json_object_get(seen, req.custom_id);
        job->same_id[i] = (size_t)json_integer_value(first);
        if (!first) {
            json_object_set_new(seen, req.custom_id, json_integer((json_int_t)i + 1));
        }
    }
    if (job->o->strict && (req.error.status != NUMOE_OK || job->same_id[i])) {
        exit_status =
            req.error.status != NUMOE_OK
                ? fail(EXIT_INPUT, "%s: line %zu: %s", job->in.path, i + 1, req.error.text)
                : fail(EXIT_INPUT, "%s: line %zu: custom_id is that of line %zu", job->in.path,
                       i + 1, job->same_id[i]);
    }
    request_fini(&req);
    free(line.data);
    return exit_status;
}

/* Every line once, before anything is loaded: who has whose custom_id, and what is wrong. */
static int check_lines(struct batch_job *job)
{
    json_t *seen = json_object();
    int exit_status = EXIT_OK;

    for (size_t i = 0; exit_status == EXIT_OK && i < job->in.n_line; i++) {
        if (!job->in.is_blank[i]) {
            exit_status = check_line(job, i, seen);
        }
    }
    json_decref(seen);
    return exit_status;
}

/* ------------------------------------------------------------------ requests in */

static int put_result(struct batch_job *job, size_t i, char *text, bool is_error)
{
    int exit_status = text ? journal_put(&job->j, i + 1, text, strlen(text))
                           : fail(EXIT_LACKING, "no memory for the result of line %zu", i + 1);

    free(text);
    job->is_done[i] = true;
    job->n_done++;
    job->n_error += is_error;
    return exit_status;
}

static int put_error(struct batch_job *job, const struct batch_request *req, size_t i,
                     const numoe_error *error)
{
    if (error->status == NUMOE_E_MEMORY) { /* no result: a larger machine can give one */
        job->too_large = *error;
        job->n_too_large++;
        return EXIT_OK;
    }
    return put_result(job, i, result_error_text(req, i, error), true);
}

static void free_request(struct batch_request *req)
{
    if (req) {
        request_fini(req);
        free(req);
    }
}

/* Reads, checks and tokenizes line i; what is wrong is in (*out)->error. */
static int load_request(struct batch_job *job, size_t i, struct batch_request **out)
{
    struct text line;
    struct batch_request *req = calloc(1, sizeof *req);

    if (!req) {
        return fail(EXIT_LACKING, "no memory for line %zu", i + 1);
    }
    const int exit_status = input_read(&job->in, i, &line);
    if (exit_status != EXIT_OK) {
        free(req);
        return exit_status;
    }
    request_parse(req, &line, i, &job->defaults);
    free(line.data);
    if (job->same_id[i] && req->error.status == NUMOE_OK) {
        req->error.status = NUMOE_E_INPUT;
        snprintf(req->error.text, sizeof req->error.text, "custom_id is that of line %zu",
                 job->same_id[i]);
    }
    request_prepare(req, job->engine, &job->defaults);
    *out = req;
    return EXIT_OK;
}

static int submit(struct batch_job *job, size_t i)
{
    struct batch_request *req;
    int exit_status = load_request(job, i, &req);

    if (exit_status != EXIT_OK) {
        return exit_status;
    }
    if (req->error.status == NUMOE_OK &&
        numoe_batch_submit(job->batch, &req->r, &req->error) == NUMOE_OK) {
        job->active[i] = req;
        return EXIT_OK;
    }
    exit_status = put_error(job, req, i, &req->error);
    free_request(req);
    return exit_status;
}

static bool next_line(struct batch_job *job, size_t *i)
{
    while (job->next < job->in.n_line && job->is_done[job->next]) {
        job->next++;
    }
    *i = job->next;
    return job->next < job->in.n_line;
}

static int feed(struct batch_job *job)
{
    numoe_batch_info info;
    size_t i;

    numoe_batch_get_info(job->batch, &info);
    for (size_t n = info.n_waiting; n < AHEAD && next_line(job, &i); n++) {
        job->next++;
        const int exit_status = submit(job, i);
        if (exit_status != EXIT_OK) {
            return exit_status;
        }
    }
    return EXIT_OK;
}

/* --strict: what only the model can tell is told before anything is evaluated, too. */
static int check_prompts(struct batch_job *job)
{
    const numoe_engine_info *info = numoe_engine_get_info(job->engine);
    const unsigned n_ctx = job->o->params.n_ctx ? job->o->params.n_ctx : info->n_ctx_train;
    int exit_status = EXIT_OK;

    for (size_t i = 0; exit_status == EXIT_OK && i < job->in.n_line; i++) {
        struct batch_request *req = NULL;
        if (job->is_done[i]) {
            continue;
        }
        exit_status = load_request(job, i, &req);
        if (exit_status == EXIT_OK && req->error.status != NUMOE_OK) {
            exit_status =
                fail(EXIT_INPUT, "%s: line %zu: %s", job->in.path, i + 1, req->error.text);
        } else if (exit_status == EXIT_OK && req->r.n_id >= n_ctx) {
            exit_status =
                fail(EXIT_INPUT, "%s: line %zu: a prompt of %zu tokens in a context of %u",
                     job->in.path, i + 1, req->r.n_id, n_ctx);
        }
        free_request(req);
    }
    return exit_status;
}

/* ------------------------------------------------------------------ results out */

static int collect(struct batch_job *job)
{
    numoe_completion c;
    int exit_status = EXIT_OK;

    while (exit_status == EXIT_OK && numoe_batch_next(job->batch, &c)) {
        const size_t i = (size_t)c.tag;
        struct batch_request *req = job->active[i];
        job->active[i] = NULL;
        exit_status = c.status == NUMOE_OK
                          ? put_result(job, i, result_text(job->engine, req, i, &c), false)
                          : put_error(job, req, i, &c.error);
        free_request(req);
    }
    return exit_status;
}

/* ------------------------------------------------------------------ how far it is */

static void print_time(double seconds)
{
    if (seconds < 100) {
        fprintf(stderr, ", %.0f s left", seconds);
    } else if (seconds < 6000) {
        fprintf(stderr, ", %.0f min left", seconds / 60);
    } else {
        fprintf(stderr, ", %.1f h left", seconds / 3600);
    }
}

static void print_progress(const struct batch_job *job)
{
    const double seconds = now_seconds() - job->start_seconds;
    const size_t n_new = job->n_done - job->n_before, n_left = job->n_total - job->n_done;
    numoe_batch_info info;

    numoe_batch_get_info(job->batch, &info);
    fprintf(stderr, "%snumoe: %zu of %zu requests", job->on_terminal ? "\r" : "", job->n_done,
            job->n_total);
    if (job->n_error) {
        fprintf(stderr, ", %zu with errors", job->n_error);
    }
    fprintf(stderr, ", %zu at a time, %.1f tokens/s", info.n_active,
            seconds > 0 ? (double)info.n_generated / seconds : 0);
    if (n_new > 0 && n_left > 0) {
        print_time(seconds * (double)n_left / (double)n_new);
    }
    fputs(job->on_terminal ? "\033[K" : "\n", stderr);
}

static void report_progress(struct batch_job *job)
{
    if (job->o->model.quiet || now_seconds() < job->next_report) {
        return;
    }
    job->next_report = now_seconds() + (job->on_terminal ? TERMINAL_SECONDS : LOG_SECONDS);
    print_progress(job);
}

static void report_end(const struct batch_job *job)
{
    const double seconds = now_seconds() - job->start_seconds;
    numoe_batch_info info;

    if (job->o->model.quiet) {
        return;
    }
    numoe_batch_get_info(job->batch, &info);
    fprintf(stderr,
            "%snumoe: %zu of %zu requests have a result, %zu new ones are errors\n"
            "prompt     %" PRIu64 " tokens evaluated, %" PRIu64
            " taken from prompts that begin alike\n"
            "generated  %" PRIu64 " tokens in %.2f s, %.1f tokens/s\n",
            job->on_terminal ? "\r\033[K" : "", job->n_done, job->n_total, job->n_error,
            info.n_prompt, info.n_shared, info.n_generated, seconds,
            seconds > 0 ? (double)info.n_generated / seconds : 0);
    if (info.n_preempted) {
        fprintf(stderr,
                "memory     %" PRIu64 " times a request had to wait for memory and was "
                "evaluated again\n",
                info.n_preempted);
    }
}

/* ------------------------------------------------------------------ the loop */

/* Why to stop now, or NULL. */
static const char *stop_reason(const struct batch_job *job)
{
    const int sig = job_signal();

    if (sig) {
        return strsignal(sig);
    }
    return job->end_seconds > 0 && now_seconds() + 2 * job->step_seconds > job->end_seconds
               ? "the time of the job is over"
               : NULL;
}

static int step(struct batch_job *job)
{
    const double start = now_seconds();
    numoe_error err;

    if (numoe_batch_step(job->batch, &err) != NUMOE_OK) {
        return fail_status(&err);
    }
    job->step_seconds = now_seconds() - start;
    int exit_status = collect(job);
    if (exit_status == EXIT_OK) {
        exit_status = journal_sync(&job->j, false);
    }
    report_progress(job);
    return exit_status;
}

static int work(struct batch_job *job)
{
    const char *reason = NULL;
    int exit_status = EXIT_OK;

    job->start_seconds = now_seconds();
    job->next_report = job->start_seconds + (job->on_terminal ? 0 : LOG_SECONDS);
    while (exit_status == EXIT_OK && job->n_done + job->n_too_large < job->n_total &&
           !(reason = stop_reason(job))) {
        exit_status = feed(job);
        if (exit_status == EXIT_OK) {
            exit_status = step(job);
        }
    }
    if (exit_status == EXIT_OK) {
        exit_status = journal_sync(&job->j, true);
    }
    report_end(job);
    if (exit_status != EXIT_OK) {
        return exit_status;
    }
    if (reason) {
        return fail(EXIT_RESUME, "stopped: %s; the same command goes on", reason);
    }
    if (job->n_too_large) {
        return fail(EXIT_LACKING,
                    "%zu requests need more memory than there is; the same command "
                    "goes on where there is more: %s",
                    job->n_too_large, job->too_large.text);
    }
    return journal_finish(&job->j);
}

/* ------------------------------------------------------------------ beginning and end */

/* Where every node has room for all weights, each can answer requests of its own; asked before any
 * weights are read. Who has chosen a placement has it. */
static void prefer_replicas(struct model_options *o)
{
    numoe_plan_params params = {.engine = o->params};
    FILE *nowhere = fopen("/dev/null", "w");

    params.engine.placement = NUMOE_PLACEMENT_REPLICATE;
    params.engine.mode = NUMOE_MODE_THROUGHPUT;
    if (nowhere && o->params.mode != NUMOE_MODE_LATENCY &&
        o->params.placement == NUMOE_PLACEMENT_AUTO && !o->params.plan &&
        numoe_plan_print(&params, nowhere, true, NULL) == NUMOE_OK) {
        o->params.placement = NUMOE_PLACEMENT_REPLICATE;
    }
    if (nowhere) {
        fclose(nowhere);
    }
}

static int open_batch(struct batch_job *job)
{
    struct model_options model = job->o->model;
    numoe_error err;

    prefer_replicas(&model);
    int exit_status = open_engine(&model, &job->engine);
    if (exit_status == EXIT_OK && !job->o->model.quiet) {
        report_engine(job->engine);
        report_sampling(&job->o->sampling);
    }
    if (exit_status == EXIT_OK) {
        exit_status = begin_journal(job);
    }
    if (exit_status == EXIT_OK && job->o->strict) {
        exit_status = check_prompts(job);
    }
    if (exit_status == EXIT_OK &&
        numoe_batch_new(job->engine, &job->o->params, &job->batch, &err) != NUMOE_OK) {
        exit_status = fail_status(&err);
    }
    return exit_status;
}

static int run_job(struct batch_job *job)
{
    int exit_status = check_lines(job);

    if (exit_status == EXIT_OK) {
        exit_status = open_batch(job);
    }
    if (exit_status == EXIT_OK) {
        job_set_idle(false);
        exit_status = work(job);
        job_set_idle(true);
    }
    for (size_t i = 0; i < job->in.n_line; i++) {
        free_request(job->active[i]);
    }
    numoe_batch_free(job->batch);
    numoe_engine_close(job->engine);
    return exit_status;
}

static int open_files(struct batch_job *job)
{
    int exit_status = input_open(&job->in, job->o->input);

    if (exit_status == EXIT_OK) {
        exit_status = journal_open(&job->j, job->o->output, job->o->ordered, job->o->sync_seconds);
    }
    if (exit_status == EXIT_OK) {
        exit_status = check_input(job);
    }
    if (exit_status != EXIT_OK) {
        return exit_status;
    }
    job->is_done = calloc(job->in.n_line, sizeof *job->is_done);
    job->same_id = calloc(job->in.n_line, sizeof *job->same_id);
    job->active = calloc(job->in.n_line, sizeof *job->active);
    if (!job->is_done || !job->same_id || !job->active) {
        return fail(EXIT_LACKING, "no memory for %zu requests", job->in.n_line);
    }
    return mark_done(job);
}

static void set_end(struct batch_job *job)
{
    const double left = job->o->time_left >= 0 ? job->o->time_left : job_time_left();

    if (left >= 0) {
        const double end = now_seconds() + left - MARGIN_SECONDS;
        job->end_seconds = end > 0 ? end : 1e-9;
    }
}

static int run_batch(const struct batch_options *o)
{
    struct batch_job job = {
        .o = o, .on_terminal = isatty(STDERR_FILENO), .j = {.live_fd = -1, .journal_fd = -1}};

    job_init();
    set_end(&job);
    int exit_status = open_files(&job);
    if (exit_status == EXIT_OK) {
        job.defaults = (struct batch_defaults){
            .sampler = o->sampling.params,
            .max_tokens = o->max_tokens,
            .ignore_eog = o->ignore_eog,
            .now_seconds = job_now(&job.j),
        };
        exit_status = job.n_done < job.n_total ? run_job(&job) : journal_finish(&job.j);
        if (exit_status == EXIT_OK && job.n_before == job.n_total && !o->model.quiet) {
            fprintf(stderr, "numoe: all %zu requests have a result already\n", job.n_total);
        }
    }
    journal_close(&job.j);
    input_close(&job.in);
    free(job.is_done);
    free(job.same_id);
    free(job.active);
    return exit_status;
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
        exit_status = run_batch(&o);
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
        "      --ignore-eog      go on where the model ends its turn\n" MODE_HELP CHAT_TEMPLATE_HELP
        "\n" SAMPLING_OPTIONS_HELP
        "In a batch the seed is 0 where none is given; request N draws by seed + N - 1.\n"
        "\n" MODEL_OPTIONS_HELP "\n"
        "Exit status: 0 every request has a result; 75 stopped by SIGTERM, SIGINT, SIGUSR1,\n"
        "SIGUSR2, SIGHUP, SIGXCPU or the end of the time, 1 the disk is full or failed, 3 not\n"
        "enough memory: the same command goes on; 2 wrong usage, files or (--strict) requests.\n",
};
