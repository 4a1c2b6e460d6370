/* The loop of a batch: requests in, steps, results out, until all is done or there is a reason to
 * stop. What is computed together is the library's choice (numoe_batch). */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/batch-team.h"

#define AHEAD 256 /* requests that wait in the library */

/* ------------------------------------------------------------------ requests in */

int job_put_result(struct batch_job *job, size_t i, const char *text, size_t bytes, bool is_error)
{
    const int exit_status = journal_put(&job->j, i + 1, text, bytes);

    job->is_done[i] = true;
    job->n_done++;
    job->n_error += is_error;
    return exit_status;
}

/* To the journal, or to who has it. Another rank may have been faster. */
static int deliver(struct batch_job *job, size_t i, char *text, bool is_error)
{
    int exit_status = EXIT_OK;

    if (!text) {
        return fail(EXIT_LACKING, "no memory for the result of line %zu", i + 1);
    }
    if (!team_is_root(job)) {
        team_deliver(job, i, text, is_error, false);
    } else if (!job->is_done[i]) {
        exit_status = job_put_result(job, i, text, strlen(text), is_error);
    }
    free(text);
    return exit_status;
}

static int put_error(struct batch_job *job, const struct batch_request *req, size_t i,
                     const numoe_error *error)
{
    if (error->status != NUMOE_E_MEMORY) {
        return deliver(job, i, result_error_text(req, i, error), true);
    }
    if (!team_is_root(job)) { /* no result: a larger machine can give one */
        team_deliver(job, i, error->text, true, true);
    } else if (!job->is_done[i]) {
        job_put_too_large(job, i, error->text);
    }
    return EXIT_OK;
}

void job_put_too_large(struct batch_job *job, size_t i, const char *why)
{
    job->is_done[i] = true;
    job->n_too_large++;
    snprintf(job->too_large, sizeof job->too_large, "%s", why);
}

static void free_request(struct batch_request *req)
{
    if (req) {
        request_fini(req);
        free(req);
    }
}

/* Checks and tokenizes line i; what is wrong is in (*out)->error. */
static int load_request(struct batch_job *job, size_t i, const struct text *line, size_t same_id,
                        struct batch_request **out)
{
    struct batch_request *req = calloc(1, sizeof *req);

    if (!req) {
        return fail(EXIT_LACKING, "no memory for line %zu", i + 1);
    }
    request_parse(req, line, i, &job->defaults);
    if (same_id && req->error.status == NUMOE_OK) {
        req->error.status = NUMOE_E_INPUT;
        snprintf(req->error.text, sizeof req->error.text, "custom_id is that of line %zu", same_id);
    }
    request_prepare(req, job->engine, &job->defaults);
    *out = req;
    return EXIT_OK;
}

static int read_request(struct batch_job *job, size_t i, struct batch_request **out)
{
    struct text line;
    int exit_status = input_read(&job->in, i, &line);

    if (exit_status == EXIT_OK) {
        exit_status = load_request(job, i, &line, job->same_id[i], out);
        free(line.data);
    }
    return exit_status;
}

static int submit(struct batch_job *job, size_t i, struct batch_request *req)
{
    if (req->error.status == NUMOE_OK &&
        numoe_batch_submit(job->batch, &req->r, &req->error) == NUMOE_OK) {
        job->active[i] = req;
        return EXIT_OK;
    }
    const int exit_status = put_error(job, req, i, &req->error);
    free_request(req);
    return exit_status;
}

int job_submit(struct batch_job *job, size_t i, const struct text *line, size_t same_id)
{
    struct batch_request *req;

    if (job->active[i]) {
        return EXIT_OK; /* dealt again by a root that has thought this rank lost */
    }
    const int exit_status = load_request(job, i, line, same_id, &req);
    return exit_status == EXIT_OK ? submit(job, i, req) : exit_status;
}

bool job_next_line(struct batch_job *job, size_t *i)
{
    while (job->next < job->in.n_line && !job->is_open[job->next]) {
        job->next++;
    }
    *i = job->next;
    return job->next < job->in.n_line;
}

void job_take_line(struct batch_job *job, size_t i)
{
    job->is_open[i] = false;
    job->n_open--;
}

void job_open_line(struct batch_job *job, size_t i)
{
    job->is_open[i] = true;
    job->n_open++;
    job->next = i < job->next ? i : job->next;
}

/* More requests, where few wait. */
static int feed(struct batch_job *job)
{
    struct batch_request *req;
    numoe_batch_info info;
    size_t i;

    numoe_batch_get_info(job->batch, &info);
    if (!team_is_root(job)) {
        team_ask(job, info.n_waiting);
        return EXIT_OK;
    }
    for (size_t n = team_portion(job, info.n_waiting, AHEAD); n > 0 && job_next_line(job, &i);
         n--) {
        job_take_line(job, i);
        int exit_status = read_request(job, i, &req);
        if (exit_status == EXIT_OK) {
            exit_status = submit(job, i, req);
        }
        if (exit_status != EXIT_OK) {
            return exit_status;
        }
    }
    return EXIT_OK;
}

/* Whether the library takes it: as if it were submitted, to a batch that is dropped. */
static int check_prompt(struct batch_job *job, size_t i)
{
    numoe_batch_params params = job->o->params;
    struct batch_request *req = NULL;
    numoe_batch *batch = NULL;
    numoe_error err = {.status = NUMOE_OK};

    int exit_status = read_request(job, i, &req);
    if (exit_status != EXIT_OK) {
        return exit_status;
    }
    params.max_sequences = 1;
    params.kv_bytes = 1; /* nobody need look how much is free */
    if (req->error.status == NUMOE_OK &&
        numoe_batch_new(job->engine, &params, &batch, &err) == NUMOE_OK) {
        (void)numoe_batch_submit(batch, &req->r, &req->error);
    }
    numoe_batch_free(batch);
    if (err.status != NUMOE_OK) {
        exit_status = fail_status(&err);
    } else if (req->error.status != NUMOE_OK) {
        job_tell_wrong(job, i, req->error.text);
    }
    free_request(req);
    return exit_status;
}

int job_check_prompts(struct batch_job *job)
{
    int exit_status = EXIT_OK;

    for (size_t i = 0; exit_status == EXIT_OK && i < job->in.n_line; i++) {
        if (!job->is_done[i]) {
            exit_status = check_prompt(job, i);
        }
    }
    return exit_status == EXIT_OK ? job_end_wrong(job) : exit_status;
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
        job->n_kept += c.n_generated;
        exit_status = c.status == NUMOE_OK
                          ? deliver(job, i, result_text(job->engine, req, i, &c), false)
                          : put_error(job, req, i, &c.error);
        free_request(req);
    }
    return exit_status;
}

/* ------------------------------------------------------------------ the loop */

/* Why to stop now, or NULL. */
static const char *stop_reason(const struct batch_job *job)
{
    const int sig = job_signal() ? job_signal() : team_signal(job);

    if (sig) {
        return strsignal(sig);
    }
    return job->end_seconds > 0 && now_seconds() + 2 * team_step_seconds(job) > job->end_seconds
               ? "the time of the job is over"
               : NULL;
}

static bool has_work(const struct batch_job *job)
{
    numoe_batch_info info;

    numoe_batch_get_info(job->batch, &info);
    return info.n_active + info.n_waiting > 0;
}

/* What it gives is of no use any more if something has failed before. */
static int step(struct batch_job *job, int exit_status)
{
    const double start = now_seconds();
    numoe_error err;

    if (numoe_batch_step(job->batch, &err) != NUMOE_OK) {
        exit_status = fail_status(&err);
        team_give_up(job, exit_status);
        return exit_status;
    }
    job->step_seconds = now_seconds() - start;
    return exit_status == EXIT_OK ? collect(job) : exit_status;
}

/* Messages, requests, a step. Where all take their steps together, the others wait in this one for
 * a root that has failed, too: they hear of it after. */
static int turn(struct batch_job *job)
{
    int exit_status = team_talk(job);

    if (exit_status == EXIT_OK) {
        exit_status = feed(job);
    }
    const bool awake = has_work(job) || team_is_in_step(job);
    if (awake && (exit_status == EXIT_OK || team_is_in_step(job))) {
        exit_status = step(job, exit_status);
    }
    if (exit_status == EXIT_OK && team_is_root(job)) {
        exit_status = journal_sync(&job->j, false);
        job_report_progress(job);
    }
    team_pause(job, awake);
    return exit_status;
}

/* Another rank than the root: until that says that it is over. */
static int follow(struct batch_job *job)
{
    int exit_status = EXIT_OK;

    while (team_go_on(job, exit_status == EXIT_OK && !team_is_over(job))) {
        exit_status = turn(job);
        if (exit_status != EXIT_OK) {
            team_give_up(job, exit_status);
        }
    }
    return team_follow_end(job, exit_status);
}

/* What is done is safe before the others are waited for. */
static int end(struct batch_job *job, int exit_status)
{
    exit_status = exit_status == EXIT_OK ? journal_sync(&job->j, true) : exit_status;
    exit_status = team_end(job, exit_status);
    return exit_status == EXIT_OK ? journal_sync(&job->j, true) : exit_status;
}

/* A run that has finished nothing has thrown everything away, and so will the next one like it. */
static int stop(const struct batch_job *job, const char *reason)
{
    const uint64_t n_lost = job_count_lost(job);

    if (job->n_done == job->n_before) {
        return fail(EXIT_RESUME,
                    "stopped: %s, and no request was finished: the same command would end the same "
                    "way; give the job more time, or fewer requests at once by --max-seqs; tokens "
                    "of unfinished answers thrown away: %" PRIu64,
                    reason, n_lost);
    }
    return n_lost ? fail(EXIT_RESUME,
                         "stopped: %s; the same command goes on; tokens of unfinished answers "
                         "thrown away, to be made again: %" PRIu64,
                         reason, n_lost)
                  : fail(EXIT_RESUME, "stopped: %s; the same command goes on", reason);
}

int job_work(struct batch_job *job)
{
    const char *reason = NULL;
    int exit_status = EXIT_OK;

    if (!team_is_root(job)) {
        return follow(job);
    }
    job_begin_progress(job);
    while (team_go_on(job, exit_status == EXIT_OK &&
                               job->n_done + job->n_too_large < job->n_total &&
                               !(reason = stop_reason(job)))) {
        exit_status = turn(job);
    }
    exit_status = end(job, exit_status);
    job_report_end(job);
    if (exit_status != EXIT_OK) {
        return exit_status;
    }
    if (reason && job->n_done < job->n_total) {
        return stop(job, reason);
    }
    if (job->n_too_large) {
        return fail(EXIT_LACKING,
                    "%zu requests need more memory than there is; the same command "
                    "goes on where there is more: %s",
                    job->n_too_large, job->too_large);
    }
    return journal_finish(&job->j);
}

void job_free_requests(struct batch_job *job)
{
    for (size_t i = 0; i < job->in.n_line; i++) {
        free_request(job->active[i]);
    }
}
