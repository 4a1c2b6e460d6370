/* Inside of numoe batch: requests as they come in, results as they go out. */
#ifndef NUMOE_CLI_BATCH_H
#define NUMOE_CLI_BATCH_H

#include <jansson.h>
#include <time.h>

#include "cli/cli.h"
#include "cli/journal.h"

/* ------------------------------------------------------------------ requests (batch-request.c) */

/* The file of requests, a line each; blank lines are none. */
struct batch_input {
    const char *path;
    FILE *file;
    uint64_t bytes, hash;
    uint64_t *offset; /* [n_line + 1] where lines begin; line i is the request of line i + 1 */
    bool *is_blank;   /* [n_line] */
    size_t n_line, n_request;
};

int input_open(struct batch_input *in, const char *path); /* an exit status */
void input_close(struct batch_input *in);
int input_read(const struct batch_input *in, size_t i, struct text *line);

/* What a request may leave out. */
struct batch_defaults {
    numoe_sampler_params sampler;
    uint64_t max_tokens;
    bool ignore_eog;
    int64_t now_seconds; /* for chat templates with a date */
};

struct batch_request {
    json_t *root;          /* NULL: not JSON */
    const char *custom_id; /* in root; NULL: it has none */
    bool is_chat;
    numoe_request r; /* ids NULL until request_prepare() */
    const char **stop;
    int32_t *ids;
    numoe_error error; /* why it cannot be run; status 0: it can */
};

/* Line i, as far as it can be understood without the model. What is wrong with it is in out->error.
 */
void request_parse(struct batch_request *out, const struct text *line, size_t i,
                   const struct batch_defaults *defaults);
/* Renders and tokenizes. */
void request_prepare(struct batch_request *req, const numoe_engine *engine,
                     const struct batch_defaults *defaults);
void request_fini(struct batch_request *req);

/* ------------------------------------------------------------------ results (batch-result.c) */

/* A line with its newline, free(); NULL: no memory. */
char *result_text(const numoe_engine *engine, const struct batch_request *req, size_t i,
                  const numoe_completion *c);
char *result_error_text(const struct batch_request *req, size_t i, const numoe_error *error);

/* ------------------------------------------------------------------ the job */

struct batch_options {
    struct model_options model;
    struct sampling_options sampling;
    struct text chat_template; /* if from a file */
    const char *template_path, *input, *output;
    numoe_batch_params params;
    uint64_t max_tokens, shard, n_shard;
    double sync_seconds, time_left; /* negative: as the batch system says, or no end */
    bool ordered, strict, ignore_eog, expert_parallel;
};

struct batch_job {
    const struct batch_options *o;
    struct batch_input in;
    struct journal j;
    struct batch_defaults defaults;
    numoe_engine *engine;
    numoe_batch *batch;
    struct team *team; /* NULL: no other processes (batch-team.h) */
    bool *is_done;     /* [n_line] has a result, or is not this job's */
    bool *is_open;     /* [n_line] is to be answered, and nobody has it yet */
    size_t *same_id;   /* [n_line] 1 + an earlier line with the same custom_id; 0: none */
    struct batch_request **active; /* [n_line] of submitted ones */
    size_t next;                   /* no line before it is open */
    size_t n_open, n_total, n_before, n_done, n_error, n_too_large, n_wrong;
    uint64_t n_kept;     /* tokens of this process's finished answers */
    char too_large[512]; /* why the last request that needs more memory than there is does */
    double start_seconds, end_seconds, step_seconds, next_report;
    bool on_terminal;
};

/* All from opening the files to closing them; an exit status, as of the others (batch-begin.c). */
int job_run(const struct batch_options *o);

/* What results depend on, as the journal has it; a new reference. */
json_t *job_describe_model(const struct batch_job *job);
json_t *job_describe_options(const struct batch_options *o);

/* The next line that nobody has; takes it; gives it back. */
bool job_next_line(struct batch_job *job, size_t *i);
void job_take_line(struct batch_job *job, size_t i);
void job_open_line(struct batch_job *job, size_t i);
/* Request i, of which same_id is the earlier line with its custom_id, to the batch. */
int job_submit(struct batch_job *job, size_t i, const struct text *line, size_t same_id);
/* The result of line i, to the journal. */
int job_put_result(struct batch_job *job, size_t i, const char *text, size_t bytes, bool is_error);
/* That there is none, for lack of memory. */
void job_put_too_large(struct batch_job *job, size_t i, const char *why);

/* Answers requests until all are, or there is a reason to stop (batch-work.c). */
int job_work(struct batch_job *job);
/* --strict: what only the model can tell is told before anything is evaluated, too. */
int job_check_prompts(struct batch_job *job);
/* Tells of a wrong request, unless many were told of; and how many more there are: EXIT_OK if there
 * was none (batch-progress.c). */
void job_tell_wrong(struct batch_job *job, size_t i, const char *why);
int job_end_wrong(const struct batch_job *job);
void job_free_requests(struct batch_job *job);

/* How far it is, from time to time; and what there was (batch-progress.c). */
void job_begin_progress(struct batch_job *job);
void job_report_progress(struct batch_job *job);
void job_report_end(const struct batch_job *job);
/* Tokens of answers that were begun, and are not finished, of all processes. */
uint64_t job_count_lost(const struct batch_job *job);

/* ------------------------------------------------------------------ the batch system (batch-job.c)
 */

/* From here on SIGTERM, SIGINT, SIGUSR1 and their like ask for a stop; while `idle` (nothing was
 * evaluated yet) they end the program at once, with EXIT_RESUME; who is alone says so. */
void job_init(bool alone);
void job_set_idle(bool idle);
/* The signal that asked, or 0. */
int job_signal(void);
/* When this job ends, in seconds from now, by what its scheduler says; negative: not known. */
double job_time_left(void);

#endif
