/* The beginning and the end of a batch: which job this is, what of it is done already, and the
 * files and the engine that it needs. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/batch-team.h"

#define MARGIN_SECONDS 20.0 /* before the end of a job's time, besides two steps */

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

json_t *job_describe_model(const struct batch_job *job)
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

json_t *job_describe_options(const struct batch_options *o)
{
    const numoe_sampler_params *p = &o->sampling.params;
    const char *template = o->model.params.chat_template;
    char hash[20];

    snprintf(hash, sizeof hash, "%016" PRIx64,
             template ? journal_hash(0, template, strlen(template)) : 0);
    return json_pack("{s:f, s:f, s:f, s:f, s:i, s:i, s:I, s:I, s:b, s:i, s:s, s:I, s:I, s:I}",
                     "temperature", (double)p->temperature, "top_p", (double)p->top_p, "min_p",
                     (double)p->min_p, "repetition_penalty", (double)p->repeat_penalty, "top_k",
                     (int)p->top_k, "repeat_last", (int)p->repeat_last, "seed", (json_int_t)p->seed,
                     "tokens", (json_int_t)o->max_tokens, "ignore_eog", o->ignore_eog, "ctx",
                     (int)o->params.n_ctx, "chat_template", hash, "shard", (json_int_t)o->shard,
                     "shards", (json_int_t)o->n_shard, "defer",
                     (json_int_t)o->model.params.defer_experts);
}

/* All that results depend on. Kernels of another instruction set round otherwise. */
static int begin_journal(struct batch_job *job)
{
    json_t *want =
        json_pack("{s:s, s:b, s:I, s:o, s:o, s:o, s:s}", "numoe", "batch 1", "ordered",
                  job->o->ordered, "began", (json_int_t)job->defaults.now_seconds, "requests",
                  describe_input(job), "model", job_describe_model(job), "options",
                  job_describe_options(job->o), "kernels", numoe_engine_get_info(job->engine)->isa);
    if (!want) {
        return fail(EXIT_LACKING, "no memory for a journal");
    }
    const int exit_status = journal_begin(&job->j, want, "kernels");
    json_decref(want);
    return exit_status;
}

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

/* As the journal has it, but for the size of the file, where that can be told: a job that is done
 * needs no model any more. NULL: nothing to compare. */
static json_t *describe_model_file(const struct batch_job *job)
{
    const char *path = job->o->model.params.model_path;
    json_t *then = json_object_get(job->j.header, "model");
    struct stat st = {0};

    if (!json_is_object(then) || (path && stat(path, &st) != 0)) {
        return NULL;
    }
    json_t *now = json_copy(then);
    json_object_set_new(now, "bytes", json_integer((json_int_t)st.st_size));
    return now;
}

/* What can be told without the model, which need not be loaded if all is done, and takes its time
 * if not. */
static int check_job(struct batch_job *job)
{
    json_t *then = json_object_get(job->j.header, "options");

    int exit_status = check_input(job);
    if (exit_status != EXIT_OK || !job->j.header) {
        return exit_status;
    }
    if (json_is_object(then) && !json_object_get(then, "defer")) {
        json_object_set_new(then, "defer", json_integer(0)); /* of a version that did not note it */
    }
    json_t *want = json_pack("{s:o, s:o*}", "options", job_describe_options(job->o), "model",
                             describe_model_file(job));
    exit_status = want ? journal_check(&job->j, want, NULL)
                       : fail(EXIT_LACKING, "%s: no memory", job->j.journal_path);
    json_decref(want);
    return exit_status;
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
    for (size_t i = 0; i < job->in.n_line; i++) {
        job->is_open[i] = !job->is_done[i];
    }
    job->n_done = job->n_before;
    job->n_open = job->n_total - job->n_done;
    return job->n_open == 0 || !job->j.is_finished
               ? EXIT_OK
               : fail(EXIT_INPUT,
                      "%s: says that the job was finished, and names %zu of %zu results: remove it "
                      "and the results to begin anew",
                      job->j.journal_path, job->n_done, job->n_total);
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
    if (job->o->strict && req.error.status != NUMOE_OK) {
        job_tell_wrong(job, i, req.error.text);
    } else if (job->o->strict && job->same_id[i]) {
        char why[64];
        snprintf(why, sizeof why, "custom_id is that of line %zu", job->same_id[i]);
        job_tell_wrong(job, i, why);
    }
    request_fini(&req);
    free(line.data);
    return EXIT_OK;
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
    return exit_status == EXIT_OK ? job_end_wrong(job) : exit_status;
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

static numoe_status load(struct batch_job *job, const numoe_engine_params *params, numoe_error *err)
{
    struct model_options model = job->o->model;

    model.params = *params;
    model.quiet = model.quiet || !team_is_root(job);
    if (!params->peers) {
        prefer_replicas(&model);
    }
    return try_open_engine(&model, &job->engine, err);
}

static int open_batch(struct batch_job *job, const numoe_engine_params *params)
{
    const bool is_root = team_is_root(job);
    numoe_error err;

    int exit_status = team_agree_model(job, load(job, params, &err), &err);
    if (exit_status == EXIT_OK && is_root && !job->o->model.quiet) {
        team_report(job);
        report_engine(job->engine);
        report_sampling(&job->o->sampling);
    }
    if (exit_status == EXIT_OK && is_root && job->o->strict) {
        exit_status = job_check_prompts(job); /* before there is a job to which they belong */
    }
    if (exit_status == EXIT_OK && is_root) {
        exit_status = begin_journal(job);
    }
    if (exit_status == EXIT_OK &&
        numoe_batch_new(job->engine, &job->o->params, &job->batch, &err) != NUMOE_OK) {
        exit_status = fail_status(&err);
    }
    return team_agree(job, exit_status);
}

static int run_job(struct batch_job *job, const numoe_engine_params *params)
{
    int exit_status = open_batch(job, params);

    if (exit_status == EXIT_OK) {
        job_set_idle(false);
        exit_status = job_work(job);
        job_set_idle(true);
    }
    job_free_requests(job);
    numoe_batch_free(job->batch);
    job->batch = NULL; /* the team still talks */
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
        exit_status = check_job(job);
    }
    if (exit_status == EXIT_OK) {
        exit_status = journal_cut(&job->j);
    }
    if (exit_status != EXIT_OK) {
        return exit_status;
    }
    job->is_done = calloc(job->in.n_line, sizeof *job->is_done);
    job->is_open = calloc(job->in.n_line, sizeof *job->is_open);
    job->same_id = calloc(job->in.n_line, sizeof *job->same_id);
    job->active = calloc(job->in.n_line, sizeof *job->active);
    if (!job->is_done || !job->is_open || !job->same_id || !job->active) {
        return fail(EXIT_LACKING, "no memory for %zu requests", job->in.n_line);
    }
    return mark_done(job);
}

static void set_end(struct batch_job *job, double began)
{
    const double left = job->o->time_left >= 0 ? job->o->time_left : job_time_left();

    if (left >= 0) {
        const double end = began + left - MARGIN_SECONDS;
        job->end_seconds = end > 0 ? end : 1e-9;
    }
}

static int open_job(struct batch_job *job)
{
    int exit_status = open_files(job);

    if (exit_status == EXIT_OK) {
        job->defaults.now_seconds = job_now(&job->j);
        exit_status = job->n_open > 0 ? check_lines(job) : EXIT_OK;
    }
    return exit_status;
}

static int begin_and_run(struct batch_job *job, const numoe_engine_params *params)
{
    size_t n_left;
    int exit_status = team_is_root(job) ? open_job(job) : EXIT_OK;

    exit_status = team_begin(job, exit_status, &n_left);
    if (exit_status != EXIT_OK) {
        return exit_status;
    }
    if (n_left > 0) {
        return run_job(job, params);
    }
    if (!team_is_root(job)) {
        return EXIT_OK;
    }
    exit_status = journal_finish(&job->j);
    if (exit_status == EXIT_OK && !job->o->model.quiet) {
        fprintf(stderr, "numoe: all %zu requests have a result already\n", job->n_total);
    }
    return exit_status;
}

int job_run(const struct batch_options *o)
{
    struct batch_job job = {
        .o = o,
        .on_terminal = isatty(STDERR_FILENO),
        .j = {.live_fd = -1, .journal_fd = -1},
        .defaults = {.sampler = o->sampling.params,
                     .max_tokens = o->max_tokens,
                     .ignore_eog = o->ignore_eog},
    };
    numoe_engine_params params = o->model.params;
    const double began = now_seconds();

    job_init(team_is_alone(o));
    int exit_status = team_join(&job, &params);
    if (exit_status == EXIT_OK && team_is_root(&job)) {
        set_end(&job, began);
    }
    if (exit_status == EXIT_OK) {
        exit_status = begin_and_run(&job, &params);
    }
    journal_close(&job.j);
    input_close(&job.in);
    team_leave(&job, exit_status);
    free(job.is_done);
    free(job.is_open);
    free(job.same_id);
    free(job.active);
    return exit_status;
}
