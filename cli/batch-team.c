/* How the ranks of a batch come together: who is there, who has which part of a machine, and that
 * all have the same job. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "cli/batch-ranks.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATIENCE_SECONDS 600.0 /* after which a silent rank is lost */

bool team_is_root(const struct batch_job *job)
{
    return job->team == NULL || job->team->rank == 0;
}

/* ------------------------------------------------------------------ joining */

static int read_patience(struct team *t)
{
    const char *text = getenv("NUMOE_PEER_PATIENCE");
    char *end = NULL;
    t->patience_seconds = text && *text ? strtod(text, &end) : PATIENCE_SECONDS;
    return t->patience_seconds >= 1 && t->patience_seconds < 1e9 && (end == NULL || *end == 0)
               ? EXIT_OK
               : fail(EXIT_INPUT, "NUMOE_PEER_PATIENCE is \"%s\", expected seconds from 1 on",
                      text);
}

/* Memory is what is free now, before anybody takes some, for each the same; CPUs, where all have
 * the same, are cut by the library. */
static void divide_machine(const struct batch_job *job, numoe_engine_params *params)
{
    struct team *t = job->team;
    const long n_online = sysconf(_SC_NPROCESSORS_ONLN);
    const unsigned n_local = cluster_n_local(t->c);
    const uint64_t room = cluster_local_min(t->c, numoe_memory_room());
    unsigned share = 0;

    if (n_local > 1 && room != UINT64_MAX) {
        const uint64_t part = room / n_local;
        params->max_bytes =
            params->max_bytes > 0 && params->max_bytes < part ? params->max_bytes : part;
    }
    params->n_share = cluster_same_cpus(t->c, &share);
    params->share = share;
    t->n_cpu = bound_cpus();
    if (t->rank == 0 && t->n_cpu == 1 && n_online > 2 * (long)n_local) {
        warn("rank 0 is bound to one CPU of %ld here: mpirun does that unless told otherwise; see "
             "--map-by ppr:1:numa:PE=N, or --bind-to none",
             n_online);
    }
}

static uint64_t hash_text(uint64_t hash, const char *text)
{
    return journal_hash(hash, text, strlen(text) + 1);
}

/* All that must be the same for all, but for the model. */
static uint64_t hash_command(const struct batch_options *o)
{
    const numoe_engine_params *params = &o->model.params;
    json_t *options = job_describe_options(o);
    char *text = json_dumps(options, JSON_COMPACT);
    uint64_t hash = hash_text(0, numoe_version());

    hash = hash_text(hash, o->input);
    hash = hash_text(hash, o->output);
    hash = hash_text(hash, o->ordered ? "ordered" : "");
    hash = hash_text(hash, text ? text : "");
    hash = hash_text(hash, o->expert_parallel ? "expert-parallel" : "");
    if (o->expert_parallel) {
        hash = journal_hash(hash, &params->chunk_tokens, sizeof params->chunk_tokens);
    }
    free(text);
    json_decref(options);
    return hash;
}

/* The lowest rank whose value is not that of the root; n: none. */
static unsigned find_other(struct team *t, uint64_t own)
{
    uint64_t *all = calloc(t->n, sizeof *all);
    unsigned r = 0;

    if (all == NULL) {
        cluster_abort(t->c, fail(EXIT_LACKING, "no memory for %u ranks", t->n));
    }
    cluster_gather(t->c, &own, sizeof own, all);
    while (r < t->n && all[r] == all[0]) {
        r++;
    }
    free(all);
    return r;
}

bool team_is_alone(const struct batch_options *o)
{
    return o->n_shard > 1 || !cluster_is_wanted();
}

int team_join(struct batch_job *job, numoe_engine_params *params)
{
    struct team *t;
    numoe_error err;
    char who[48];

    if (team_is_alone(job->o)) {
        return !job->o->expert_parallel
                   ? EXIT_OK
                   : fail(EXIT_INPUT,
                          "--expert-parallel: this process is alone: start several with mpirun or "
                          "srun --mpi=pmix, without --shard");
    }
    t = calloc(1, sizeof *t);
    if (t == NULL) {
        return fail(EXIT_LACKING, "no memory");
    }
    if (cluster_join(&t->c, &err) != NUMOE_OK) {
        free(t);
        return fail_status(&err);
    }
    t->n = cluster_size(t->c);
    t->rank = cluster_rank(t->c);
    t->mate = calloc(t->n, sizeof *t->mate);
    if (t->mate == NULL) {
        cluster_abort(t->c, fail(EXIT_LACKING, "no memory for %u ranks", t->n));
    }
    job->team = t;
    setvbuf(stderr, NULL, _IOLBF, BUFSIZ); /* lines of several ranks do not mix */
    snprintf(who, sizeof who, "rank %u: ", t->rank);
    fail_prefix(who);
    const unsigned other = find_other(t, hash_command(job->o));
    if (other < t->n) {
        return t->rank > 0 ? EXIT_INPUT
                           : fail(EXIT_INPUT,
                                  "rank %u was given other options: for jobs of their own, give "
                                  "each a part (--shard K/N)",
                                  other);
    }
    divide_machine(job, params);
    params->peers = job->o->expert_parallel ? cluster_peers(t->c) : NULL;
    return team_agree(job, read_patience(t));
}

/* ------------------------------------------------------------------ beginning */

struct begin {
    int32_t status;
    uint64_t n_line, n_left;
    int64_t now_seconds;
};

/* Buffers by line that the others have too. */
static int make_lines(struct batch_job *job, size_t n_line)
{
    struct team *t = job->team;

    if (t->rank > 0) {
        job->in.n_line = n_line;
        job->active = calloc(n_line, sizeof(struct batch_request *));
    } else {
        t->holder = calloc(n_line, sizeof *t->holder);
    }
    return job->active && (t->rank > 0 || t->holder)
               ? EXIT_OK
               : fail(EXIT_LACKING, "no memory for %zu requests", n_line);
}

int team_begin(struct batch_job *job, int exit_status, size_t *n_left)
{
    struct team *t = job->team;
    struct begin begin = {
        .status = exit_status,
        .n_line = job->in.n_line,
        .n_left = job->n_total - job->n_done,
        .now_seconds = job->defaults.now_seconds,
    };

    if (t != NULL) {
        cluster_share(t->c, &begin, sizeof begin);
        job->defaults.now_seconds = begin.now_seconds;
        if (begin.status == EXIT_OK && begin.n_left > 0) {
            begin.status = team_agree(job, make_lines(job, begin.n_line));
        }
    }
    *n_left = begin.n_left;
    return begin.status;
}

/* The first rank's that is not EXIT_OK, and which that is. */
static int agree(struct batch_job *job, int exit_status, unsigned *first)
{
    struct team *t = job->team;
    int32_t own = exit_status, *all;

    *first = 0;
    if (t == NULL) {
        return exit_status;
    }
    all = calloc(t->n, sizeof *all);
    if (all == NULL) {
        cluster_abort(t->c, fail(EXIT_LACKING, "no memory for %u ranks", t->n));
    }
    cluster_gather(t->c, &own, sizeof own, all);
    while (*first + 1 < t->n && all[*first] == EXIT_OK) {
        ++*first;
    }
    own = all[*first];
    free(all);
    return own;
}

int team_agree(struct batch_job *job, int exit_status)
{
    unsigned first;

    return agree(job, exit_status, &first);
}

int team_agree_model(struct batch_job *job, numoe_status status, const numoe_error *err)
{
    struct team *t = job->team;
    unsigned first, other;
    const int exit_status =
        agree(job, status == NUMOE_OK ? EXIT_OK : exit_status_of(status), &first);

    if (exit_status != EXIT_OK && status != NUMOE_OK && (t == NULL || t->rank == first)) {
        return fail_status(err);
    }
    if (t == NULL || exit_status != EXIT_OK) {
        return exit_status;
    }
    json_t *model = job_describe_model(job);
    char *text = json_dumps(model, JSON_COMPACT);
    other = find_other(t, hash_text(0, text ? text : ""));
    free(text);
    json_decref(model);
    if (other < t->n) {
        return t->rank > 0
                   ? EXIT_INPUT
                   : fail(EXIT_INPUT, "rank %u has another model under the same name", other);
    }
    other = find_other(t, hash_text(0, numoe_engine_get_info(job->engine)->isa));
    if (other < t->n && job->o->expert_parallel) {
        return t->rank > 0
                   ? EXIT_LACKING
                   : fail(EXIT_LACKING,
                          "rank %u computes with other kernels than rank 0 (%s), which round "
                          "otherwise: NUMOE_ISA makes them equal",
                          other, numoe_engine_get_info(job->engine)->isa);
    }
    if (other < t->n && t->rank == 0) {
        warn("rank %u computes with other kernels than rank 0 (%s): results may differ in rounding "
             "by who computes them; NUMOE_ISA makes them equal",
             other, numoe_engine_get_info(job->engine)->isa);
    }
    for (unsigned r = 0; r < t->n; r++) {
        t->mate[r].heard_seconds = t->mate[r].told_seconds = now_seconds();
    }
    t->is_working = true;
    return EXIT_OK;
}

void team_report(const struct batch_job *job)
{
    const struct team *t = job->team;
    unsigned index, n_share, n_machine;

    if (t == NULL) {
        return;
    }
    n_share = cluster_same_cpus(t->c, &index);
    n_machine = cluster_n_machine(t->c);
    fprintf(stderr, "ranks      %u on %u machine%s%s", t->n, n_machine, n_machine == 1 ? "" : "s",
            job->o->expert_parallel ? ", each with a part of the experts" : "");
    if (n_share > 1) {
        fprintf(stderr,
                ", not bound: %u may use the same %u CPUs and take a part each, whole NUMA nodes "
                "where there are as many",
                n_share, t->n_cpu);
    }
    fputc('\n', stderr);
}
