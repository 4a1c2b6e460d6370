/* How the ranks of a batch work together: few kinds of messages, from the root to each and back. */
#include <stdlib.h>
#include <string.h>

#include "cli/batch-ranks.h"

#define CUSHION         4    /* requests that wait when more are asked for */
#define MAX_WANTED      256  /* by a rank at once */
#define LOOK_SECONDS    0.2  /* between two looks at who is there */
#define ALIVE_PART      0.1  /* of the patience, without anything else to say */
#define GOODBYE_SECONDS 60.0 /* for the others to end their steps */
#define LEAVE_PAUSES    1000

enum kind {
    KIND_ALIVE,
    KIND_ASK,       /* to the root: `number` requests */
    KIND_RESULT,    /* to the root: of `line`, its text */
    KIND_TOO_LARGE, /* to the root: `line` needs more memory than there is; why */
    KIND_STOP,      /* to the root: signal `number` has come; or work has ended with `status` */
    KIND_BYE,       /* to the root: nothing will follow */
    KIND_WORK,      /* from the root: request `line`, its text; `number`: as same_id */
    KIND_OVER,      /* from the root: the work is over */
    KIND_LEAVE,     /* from the root: the end, with `status` */
};

struct head {
    uint32_t kind;
    int32_t status;
    uint64_t line, number;
    double step_seconds;
    numoe_batch_info info; /* what the sender's batch has counted */
    uint64_t n_kept;       /* as the sender's job has it */
};

/* ------------------------------------------------------------------ messages */

static void tell(struct batch_job *job, unsigned to, struct head head, const char *text,
                 size_t bytes)
{
    struct team *t = job->team;

    head.step_seconds = job->step_seconds;
    head.n_kept = job->n_kept;
    if (job->batch) {
        numoe_batch_get_info(job->batch, &head.info);
    }
    t->mate[to].told_seconds = now_seconds();
    cluster_send(t->c, to, &head, sizeof head, text, bytes);
}

static void tell_root(struct batch_job *job, enum kind kind, size_t number)
{
    tell(job, 0, (struct head){.kind = kind, .number = number}, NULL, 0);
}

void team_deliver(struct batch_job *job, size_t i, const char *text, bool is_error,
                  bool is_too_large)
{
    const struct head head = {
        .kind = is_too_large ? KIND_TOO_LARGE : KIND_RESULT, .line = i, .number = is_error};

    tell(job, 0, head, text, strlen(text));
}

void team_ask(struct batch_job *job, size_t n_waiting)
{
    struct team *t = job->team;

    if (t->has_asked || n_waiting >= CUSHION) {
        return;
    }
    t->has_asked = true;
    tell_root(job, KIND_ASK, MAX_WANTED);
}

/* ------------------------------------------------------------------ the root */

size_t team_portion(const struct batch_job *job, size_t n_waiting, size_t n_wanted)
{
    const struct team *t = job->team;
    const size_t n = job->n_open / (2 * (t ? t->n : 1));

    if (t == NULL) {
        return n_wanted > n_waiting ? n_wanted - n_waiting : 0;
    }
    return n_waiting >= CUSHION ? 0 : n < 1 ? 1 : n < n_wanted ? n : n_wanted;
}

/* Sends requests to who has asked. */
static int deal(struct batch_job *job, unsigned to)
{
    struct team *t = job->team;
    struct mate *mate = &t->mate[to];
    struct text line;
    size_t i;

    if (mate->n_wanted == 0 || mate->is_lost || t->is_over || !job_next_line(job, &i)) {
        return EXIT_OK;
    }
    for (size_t n = team_portion(job, 0, mate->n_wanted); n > 0 && job_next_line(job, &i); n--) {
        const int exit_status = input_read(&job->in, i, &line);
        if (exit_status != EXIT_OK) {
            return exit_status;
        }
        const struct head head = {.kind = KIND_WORK, .line = i, .number = job->same_id[i]};
        job_take_line(job, i);
        t->holder[i] = to + 1;
        tell(job, to, head, line.data, line.bytes);
        free(line.data);
    }
    mate->n_wanted = 0;
    return EXIT_OK;
}

static int take_result(struct batch_job *job, const struct head *head, char *text, size_t bytes)
{
    const size_t i = head->line;

    if (i >= job->in.n_line || job->is_done[i] || job->team->has_failed) {
        return EXIT_OK; /* of a rank that was thought lost, or nothing can be written any more */
    }
    if (job->is_open[i]) { /* of one that was, but not dealt again yet */
        job_take_line(job, i);
    }
    if (head->kind == KIND_TOO_LARGE) {
        job_put_too_large(job, i, text);
        return EXIT_OK;
    }
    return job_put_result(job, i, text, bytes, head->number != 0);
}

static int hear_mate(struct batch_job *job, unsigned from, const struct head *head, char *text,
                     size_t bytes)
{
    struct team *t = job->team;
    struct mate *mate = &t->mate[from];

    mate->is_lost = mate->is_dead;
    mate->heard_seconds = now_seconds();
    mate->step_seconds = head->step_seconds;
    mate->info = head->info;
    mate->n_kept = head->n_kept;
    switch (head->kind) {
    case KIND_ASK:
        mate->n_wanted = mate->is_lost ? 0 : head->number;
        return EXIT_OK;
    case KIND_RESULT:
    case KIND_TOO_LARGE:
        return take_result(job, head, text, bytes);
    case KIND_STOP:
        t->signal = t->signal ? t->signal : (int)head->number;
        return head->status;
    case KIND_BYE:
        mate->said_bye = true;
        return EXIT_OK;
    default:
        return EXIT_OK;
    }
}

static void lose(struct batch_job *job, unsigned rank, const char *why)
{
    struct team *t = job->team;
    size_t n = 0;

    t->mate[rank].is_lost = true;
    t->mate[rank].n_wanted = 0;
    for (size_t i = 0; i < job->in.n_line; i++) {
        if (t->holder[i] == rank + 1 && !job->is_done[i]) {
            t->holder[i] = 0;
            job_open_line(job, i);
            n++;
        }
    }
    warn("rank %u %s: what it had, %zu requests, is dealt again", rank, why, n);
}

static void look_at_mates(struct batch_job *job)
{
    struct team *t = job->team;

    for (unsigned r = 1; r < t->n; r++) {
        struct mate *mate = &t->mate[r];
        if (mate->is_dead || mate->said_bye) {
            continue;
        }
        mate->is_dead = cluster_is_dead(t->c, r);
        if (mate->is_dead) {
            lose(job, r, "was lost");
        } else if (!mate->is_lost && now_seconds() - mate->heard_seconds > t->patience_seconds) {
            lose(job, r, "is silent");
        } else if (now_seconds() - mate->told_seconds > ALIVE_PART * t->patience_seconds) {
            tell(job, r, (struct head){.kind = KIND_ALIVE}, NULL, 0);
        }
    }
}

/* ------------------------------------------------------------------ the others */

static int hear_root(struct batch_job *job, const struct head *head, char *text, size_t bytes)
{
    struct team *t = job->team;

    t->mate[0].heard_seconds = now_seconds();
    if (head->kind == KIND_WORK) {
        struct text line = {.data = text, .bytes = bytes};
        t->has_asked = false;
        if (t->is_over) {
            return EXIT_OK;
        }
        return job_submit(job, head->line, &line, head->number);
    }
    t->is_over = t->is_over || head->kind == KIND_OVER;
    if (head->kind == KIND_LEAVE) {
        t->may_leave = true;
        t->status = head->status;
    }
    return EXIT_OK;
}

static void look_at_root(struct batch_job *job)
{
    struct team *t = job->team;
    const struct mate *root = &t->mate[0];

    if (cluster_is_dead(t->c, 0) || now_seconds() - root->heard_seconds > t->patience_seconds) {
        cluster_abort(t->c, fail(EXIT_RESUME, "rank 0 was lost; the same command goes on"));
    }
    if (job_signal() && !t->signal) {
        t->signal = job_signal();
        tell_root(job, KIND_STOP, (size_t)t->signal);
    } else if (now_seconds() - root->told_seconds > ALIVE_PART * t->patience_seconds) {
        tell_root(job, KIND_ALIVE, 0);
    }
}

/* ------------------------------------------------------------------ both */

/* Who did not look for long, in a long step or stopped, has not heard the others for that alone. */
static void look(struct batch_job *job)
{
    struct team *t = job->team;
    const double now = now_seconds();

    for (unsigned r = 0; now - t->looked_at > t->patience_seconds / 2 && r < t->n; r++) {
        t->mate[r].heard_seconds = now;
    }
    t->looked_at = now;
    if (t->rank > 0) {
        look_at_root(job);
    } else {
        look_at_mates(job);
    }
}

int team_talk(struct batch_job *job)
{
    struct team *t = job->team;
    struct head head;
    unsigned from;
    char *data;
    size_t bytes;
    int exit_status = EXIT_OK;

    if (t == NULL) {
        return EXIT_OK;
    }
    while (exit_status == EXIT_OK && cluster_receive(t->c, &from, &data, &bytes)) {
        memcpy(&head, data, sizeof head);
        exit_status = t->rank == 0
                          ? hear_mate(job, from, &head, data + sizeof head, bytes - sizeof head)
                          : hear_root(job, &head, data + sizeof head, bytes - sizeof head);
    }
    for (unsigned r = 1; exit_status == EXIT_OK && t->rank == 0 && r < t->n; r++) {
        exit_status = deal(job, r);
    }
    if (exit_status == EXIT_OK && now_seconds() > t->looked_at + LOOK_SECONDS) {
        look(job);
    }
    return exit_status;
}

bool team_is_in_step(const struct batch_job *job)
{
    return job->team && job->o->expert_parallel;
}

bool team_go_on(struct batch_job *job, bool wanted)
{
    if (!team_is_in_step(job)) {
        return wanted;
    }
    char go = wanted;
    cluster_share(job->team->c, &go, sizeof go);
    return go != 0;
}

void team_give_up(struct batch_job *job, int exit_status)
{
    if (team_is_in_step(job)) {
        cluster_abort(job->team->c, exit_status);
    }
}

bool team_is_over(const struct batch_job *job)
{
    return job->team->is_over;
}

int team_signal(const struct batch_job *job)
{
    return job->team && job->team->rank == 0 ? job->team->signal : 0;
}

void team_pause(struct batch_job *job, bool awake)
{
    if (job->team) {
        cluster_pause(job->team->c, awake);
    }
}

void team_add_info(const struct batch_job *job, numoe_batch_info *info)
{
    for (unsigned r = 1; job->team && r < job->team->n; r++) {
        const struct mate *mate = &job->team->mate[r];
        info->n_active += mate->is_lost ? 0 : mate->info.n_active;
        info->n_prompt += mate->info.n_prompt;
        info->n_shared += mate->info.n_shared;
        info->n_generated += mate->info.n_generated;
        info->n_preempted += mate->info.n_preempted;
    }
}

uint64_t team_n_kept(const struct batch_job *job)
{
    uint64_t n = 0;

    for (unsigned r = 1; job->team && r < job->team->n; r++) {
        n += job->team->mate[r].n_kept;
    }
    return n;
}

double team_step_seconds(const struct batch_job *job)
{
    double longest = job->step_seconds;

    for (unsigned r = 1; job->team && r < job->team->n; r++) {
        const struct mate *mate = &job->team->mate[r];
        longest = !mate->is_lost && mate->step_seconds > longest ? mate->step_seconds : longest;
    }
    return longest;
}

/* ------------------------------------------------------------------ the end */

static void tell_mates(struct batch_job *job, struct head head)
{
    for (unsigned r = 1; r < job->team->n; r++) {
        if (!job->team->mate[r].is_dead) { /* who is only silent may wake up */
            tell(job, r, head, NULL, 0);
        }
    }
}

static bool all_said_bye(const struct team *t)
{
    for (unsigned r = 1; r < t->n; r++) {
        if (!t->mate[r].said_bye && !t->mate[r].is_lost) {
            return false;
        }
    }
    return true;
}

static void lose_who_has_not_said_bye(struct batch_job *job)
{
    for (unsigned r = 1; r < job->team->n; r++) {
        if (!job->team->mate[r].said_bye && !job->team->mate[r].is_lost) {
            lose(job, r, "does not answer");
        }
    }
}

int team_end(struct batch_job *job, int exit_status)
{
    struct team *t = job->team;
    const double end_seconds = now_seconds() + GOODBYE_SECONDS;

    if (t == NULL) {
        return exit_status;
    }
    t->is_over = true; /* nothing is dealt any more */
    tell_mates(job, (struct head){.kind = KIND_OVER});
    while (!all_said_bye(t) && now_seconds() < end_seconds) {
        t->has_failed = exit_status != EXIT_OK;
        const int status = team_talk(job);
        exit_status = exit_status != EXIT_OK ? exit_status : status;
        team_pause(job, false);
    }
    lose_who_has_not_said_bye(job);
    return exit_status;
}

int team_follow_end(struct batch_job *job, int exit_status)
{
    struct team *t = job->team;

    if (exit_status != EXIT_OK) {
        tell(job, 0, (struct head){.kind = KIND_STOP, .status = exit_status}, NULL, 0);
    }
    while (!t->is_over) {
        (void)team_talk(job);
        team_pause(job, false);
    }
    tell_root(job, KIND_BYE, 0);
    while (!t->may_leave || !cluster_is_sent(t->c)) {
        (void)team_talk(job);
        team_pause(job, false);
    }
    return t->status;
}

void team_leave(struct batch_job *job, int exit_status)
{
    struct team *t = job->team;

    if (t == NULL) {
        return;
    }
    if (t->is_working && t->rank == 0) {
        tell_mates(job, (struct head){.kind = KIND_LEAVE, .status = exit_status});
        for (unsigned n = 0; !cluster_is_sent(t->c) && n < LEAVE_PAUSES; n++) {
            team_pause(job, false);
        }
    }
    cluster_leave(t->c, exit_status);
    free(t->holder);
    free(t->mate);
    free(t);
    job->team = NULL;
}
