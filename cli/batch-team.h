/* A batch on several processes (ranks): the first, the root, has the files and deals the requests
 * out as they are asked for, a few at a time and fewer towards the end, itself included; results
 * come back to it. Who is alone has no team (job->team NULL) and is a root.
 *
 * Nobody waits for anybody: messages are looked at between steps. A rank that is gone, or silent
 * for too long, is lost, and what it had is dealt again. If it comes back it does no harm: a result
 * is the same whoever computed it, and the first counts.
 */
#ifndef NUMOE_CLI_BATCH_TEAM_H
#define NUMOE_CLI_BATCH_TEAM_H

#include "cli/batch.h"

/* Nobody else was started for this job. */
bool team_is_alone(const struct batch_options *o);
/* Joins the other ranks if there are any: job->team, or NULL. The part of this machine that is this
 * rank's goes to *params. An exit status that all ranks have, as of the next three. */
int team_join(struct batch_job *job, numoe_engine_params *params);
bool team_is_root(const struct batch_job *job);
/* Collective, after the root has opened its files with exit_status: what the others must know of
 * the job. *n_left 0: there is nothing to do. */
int team_begin(struct batch_job *job, int exit_status, size_t *n_left);
/* Collective: the status of the first rank whose is not EXIT_OK. */
int team_agree(struct batch_job *job, int exit_status);
/* The same once engines were opened: the first rank where that failed says why, with *err. And that
 * all have the same model. The work begins. */
int team_agree_model(struct batch_job *job, numoe_status status, const numoe_error *err);

void team_report(const struct batch_job *job); /* who is there, on stderr; alone, nothing */

/* ------------------------------------------------------------------ while working (batch-talk.c)
 */

/* With --expert-parallel all ranks take their steps together, also those without requests. */
bool team_is_in_step(const struct batch_job *job);
/* Before each step: whether there is one. Where ranks are in step, the root's word counts for all.
 */
bool team_go_on(struct batch_job *job, bool wanted);
/* Where ranks are in step, nobody can go on without this one: ends all. Else returns. */
void team_give_up(struct batch_job *job, int exit_status);

/* Takes and answers messages. EXIT_OK, or what ends the work. */
int team_talk(struct batch_job *job);
/* How many requests the root takes for itself now, if n_waiting wait and it would like to have
 * n_wanted: alone, all of these. */
size_t team_portion(const struct batch_job *job, size_t n_waiting, size_t n_wanted);
/* Nothing to compute, if not awake: sleeps for a moment. */
void team_pause(struct batch_job *job, bool awake);
/* A signal that another rank has told the root of, or 0. */
int team_signal(const struct batch_job *job);
/* Adds what the batches of the others have counted. */
void team_add_info(const struct batch_job *job, numoe_batch_info *info);
uint64_t team_n_kept(const struct batch_job *job);     /* the others' sum */
double team_step_seconds(const struct batch_job *job); /* the longest of all ranks' last steps */

/* Of the other ranks: asks for more requests if few wait; delivers the result of request i (text
 * with its newline), or why the rank has not enough memory for it; whether the root has ended the
 * work. */
void team_ask(struct batch_job *job, size_t n_waiting);
void team_deliver(struct batch_job *job, size_t i, const char *text, bool is_error,
                  bool is_too_large);
bool team_is_over(const struct batch_job *job);

/* ------------------------------------------------------------------ the end */

/* The root: ends the work of all and takes their last results. exit_status, or if that is EXIT_OK
 * what went wrong meanwhile. */
int team_end(struct batch_job *job, int exit_status);
/* The others, with what ended their own work, if anything did: waits for the root's last word, what
 * to exit with. */
int team_follow_end(struct batch_job *job, int exit_status);
/* Leaves, all with the root's status. */
void team_leave(struct batch_job *job, int exit_status);

#endif
