/* What a batch says of how far it is: a line that changes on a terminal, one a minute elsewhere. */
#include <inttypes.h>
#include <string.h>

#include "cli/batch-team.h"

#define LOG_SECONDS      60.0
#define TERMINAL_SECONDS 0.5
#define MAX_WRONG        10 /* requests that are told of one by one */

void job_begin_progress(struct batch_job *job)
{
    job->start_seconds = now_seconds();
    job->next_report = job->start_seconds + (job->on_terminal ? 0 : LOG_SECONDS);
}

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
    team_add_info(job, &info);
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

void job_report_progress(struct batch_job *job)
{
    if (job->o->model.quiet || now_seconds() < job->next_report) {
        return;
    }
    job->next_report = now_seconds() + (job->on_terminal ? TERMINAL_SECONDS : LOG_SECONDS);
    print_progress(job);
}

void job_report_end(const struct batch_job *job)
{
    const double seconds = now_seconds() - job->start_seconds;
    numoe_batch_info info;

    if (job->o->model.quiet) {
        return;
    }
    numoe_batch_get_info(job->batch, &info);
    team_add_info(job, &info);
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
    report_replicas(job->engine);
}

uint64_t job_count_lost(const struct batch_job *job)
{
    const uint64_t n_kept = job->n_kept + team_n_kept(job);
    numoe_batch_info info;

    numoe_batch_get_info(job->batch, &info);
    team_add_info(job, &info);
    return info.n_generated > n_kept ? info.n_generated - n_kept : 0;
}

/* What has no custom_id names its line itself. */
void job_tell_wrong(struct batch_job *job, size_t i, const char *why)
{
    char line[32];

    snprintf(line, sizeof line, "line %zu ", i + 1);
    if (++job->n_wrong > MAX_WRONG) {
        return;
    }
    if (strncmp(why, line, strlen(line)) == 0) {
        (void)fail(EXIT_INPUT, "%s: %s", job->in.path, why);
    } else {
        (void)fail(EXIT_INPUT, "%s: line %zu: %s", job->in.path, i + 1, why);
    }
}

int job_end_wrong(const struct batch_job *job)
{
    if (job->n_wrong > MAX_WRONG) {
        (void)fail(EXIT_INPUT, "%s: and %zu more", job->in.path, job->n_wrong - MAX_WRONG);
    }
    return job->n_wrong ? EXIT_INPUT : EXIT_OK;
}
