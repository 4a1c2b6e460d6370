/* The loop of a batch: requests in, steps, results out, until all is done or there is a reason to
 * stop. What is computed together is the library's choice (numoe_batch). */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/batch.h"

#define AHEAD 256 /* requests that wait in the library */

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

int job_check_prompts(struct batch_job *job)
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
    job_report_progress(job);
    return exit_status;
}

int job_work(struct batch_job *job)
{
    const char *reason = NULL;
    int exit_status = EXIT_OK;

    job_begin_progress(job);
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
    job_report_end(job);
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

void job_free_requests(struct batch_job *job)
{
    for (size_t i = 0; i < job->in.n_line; i++) {
        free_request(job->active[i]);
    }
}
