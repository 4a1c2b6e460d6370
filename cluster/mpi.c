/* The ranks of an MPI job. Nothing here blocks inside MPI: operations are begun, and asked about
 * until they are done, with the processor given away in between. An implementation's own waiting is
 * a loop that keeps a core busy, which is a worker's.
 *
 * What MPI reports as an error ends the whole job, with the status that says that the same command
 * goes on: after it nothing is certain about the other ranks.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "cluster/cluster.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define RESUME_STATUS 75
#define LEAVE_SECONDS 30 /* for all to end MPI; then somebody is lost */
#define MAX_CPU       8192
#define N_SPIN        1000u /* questions before sleeping in between */
#define PAUSE_MAX_NS  5000000
#define LOOK_SECONDS  1 /* between two looks at the others' processes */
#define TAG           1

/* One rank as all know it. */
struct member {
    uint64_t machine; /* the same for ranks on one machine, if processes see each other there */
    int32_t pid;
    uint32_t is_leader; /* the first on its machine */
    uint64_t cpus[MAX_CPU / 64];
};

struct sending {
    struct sending *next;
    MPI_Request request;
    char data[];
};

/* The message of one rank that is arriving: another one of the same rank waits for it. */
struct arriving {
    bool is_open;
    MPI_Request request;
    char *data;
    size_t bytes;
};

struct cluster {
    MPI_Comm all, local;
    unsigned rank, size, n_local;
    struct member *member;     /* [size] */
    struct arriving *arriving; /* [size] */
    unsigned next;             /* rank to look at first, so that none is passed by */
    struct sending *sending;
    char *received; /* handed out last */
    numoe_peers peers;
    int *count, *place; /* [2, size] rows to and from each rank, and where they begin */
    MPI_Datatype row;
    size_t row_bytes; /* of row; 0: none yet */
    unsigned n_idle;
    time_t looked_at;
};

/* ------------------------------------------------------------------ what goes wrong */

_Noreturn void cluster_abort(struct cluster *c, int exit_status)
{
    MPI_Abort(c->all, exit_status);
    _exit(exit_status);
}

static void check(struct cluster *c, int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    if (code != MPI_SUCCESS) {
        MPI_Error_string(code, text, &n);
        fprintf(stderr, "numoe: rank %u: %s: %s\n", c->rank, what, text);
        cluster_abort(c, RESUME_STATUS);
    }
}

static void *new_bytes(struct cluster *c, size_t bytes)
{
    void *data = malloc(bytes);
    if (data == NULL) {
        fprintf(stderr, "numoe: rank %u: no memory for a message of %zu bytes\n", c->rank, bytes);
        cluster_abort(c, RESUME_STATUS);
    }
    return data;
}

static time_t seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

bool cluster_is_dead(const struct cluster *c, unsigned rank)
{
    const struct member *other = &c->member[rank];
    return other->machine == c->member[c->rank].machine && rank != c->rank &&
           kill(other->pid, 0) != 0 && errno == ESRCH;
}

/* An operation of all cannot end without one of them. */
static void look_for_dead(struct cluster *c)
{
    const time_t now = seconds_now();
    if (c->member == NULL || now < c->looked_at + LOOK_SECONDS) {
        return;
    }
    c->looked_at = now;
    for (unsigned r = 0; r < c->size; r++) {
        if (cluster_is_dead(c, r)) {
            fprintf(stderr, "numoe: rank %u: rank %u was lost; the same command goes on\n", c->rank,
                    r);
            cluster_abort(c, RESUME_STATUS);
        }
    }
}

/* ------------------------------------------------------------------ waiting */

void cluster_pause(struct cluster *c, bool awake)
{
    c->n_idle = awake ? 0 : c->n_idle + 1;
    if (c->n_idle == 0) {
        return;
    }
    const long ns = c->n_idle < 50 ? c->n_idle * 100000L : PAUSE_MAX_NS;
    nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

static void finish(struct cluster *c, MPI_Request *request, const char *what)
{
    int is_done = 0;
    for (unsigned n = 0; !is_done; n++) {
        check(c, MPI_Test(request, &is_done, MPI_STATUS_IGNORE), what);
        if (!is_done && n < N_SPIN) {
            sched_yield();
        } else if (!is_done) {
            const long ns = (n - N_SPIN) * 1000L;
            nanosleep(&(struct timespec){.tv_nsec = ns < PAUSE_MAX_NS ? ns : PAUSE_MAX_NS}, NULL);
            look_for_dead(c);
        }
    }
}

/* ------------------------------------------------------------------ joining */

bool cluster_is_wanted(void)
{
    const char *size = getenv("OMPI_COMM_WORLD_SIZE");
    const char *tasks = getenv("SLURM_STEP_NUM_TASKS");
    return (size != NULL && atoi(size) > 1) ||
           (getenv("PMIX_RANK") != NULL && tasks != NULL && atoi(tasks) > 1);
}

/* Containers may have process numbers of their own. */
static uint64_t pid_namespace(void)
{
    struct stat st;
    return stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
}

static void describe_self(const struct cluster *c, struct member *m)
{
    int local_rank = 0;
    MPI_Comm_rank(c->local, &local_rank);
    m->pid = (int32_t)getpid();
    m->is_leader = local_rank == 0;
    m->machine = pid_namespace();
    (void)sched_getaffinity(0, sizeof m->cpus, (cpu_set_t *)m->cpus);
}

/* The leaders' numbers name the machines. */
static void exchange_members(struct cluster *c)
{
    struct member *own = new_bytes(c, sizeof *own);
    struct member *all = new_bytes(c, c->size * sizeof *all);
    uint64_t leader = c->rank;
    memset(own, 0, sizeof *own);
    describe_self(c, own);
    cluster_gather(c, own, sizeof *own, all);
    leader = cluster_local_min(c, leader);
    uint64_t *leaders = new_bytes(c, c->size * sizeof *leaders);
    cluster_gather(c, &leader, sizeof leader, leaders);
    for (unsigned r = 0; r < c->size; r++) {
        all[r].machine = all[r].machine << 20 ^ leaders[r];
    }
    free(leaders);
    free(own);
    c->member = all;
}

static numoe_status refuse(numoe_error *err, const char *text)
{
    err->status = NUMOE_E_SUPPORT;
    snprintf(err->text, sizeof err->text, "%s", text);
    MPI_Finalize();
    return err->status;
}

numoe_status cluster_join(struct cluster **out, numoe_error *err)
{
    int provided = MPI_THREAD_SINGLE, rank = 0, size = 1, n_local = 1;
    struct cluster *c = calloc(1, sizeof *c);
    *out = NULL;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS ||
        provided < MPI_THREAD_SERIALIZED) {
        free(c);
        return refuse(err, "the MPI library does not let several threads call it in turn "
                           "(MPI_THREAD_SERIALIZED)");
    }
    if (c == NULL) {
        return refuse(err, "no memory for a cluster");
    }
    MPI_Comm_dup(MPI_COMM_WORLD, &c->all);
    MPI_Comm_split_type(c->all, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &c->local);
    MPI_Comm_set_errhandler(c->all, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(c->local, MPI_ERRORS_RETURN);
    MPI_Comm_rank(c->all, &rank);
    MPI_Comm_size(c->all, &size);
    MPI_Comm_size(c->local, &n_local);
    c->rank = (unsigned)rank;
    c->size = (unsigned)size;
    c->n_local = (unsigned)n_local;
    c->arriving = new_bytes(c, c->size * sizeof *c->arriving);
    memset(c->arriving, 0, c->size * sizeof *c->arriving);
    exchange_members(c);
    *out = c;
    return NUMOE_OK;
}

static int leave_status;

static void on_alarm(int sig)
{
    (void)sig;
    _exit(leave_status);
}

void cluster_leave(struct cluster *c, int exit_status)
{
    if (c == NULL) {
        return;
    }
    const struct sigaction end = {.sa_handler = on_alarm};
    leave_status = exit_status;
    sigaction(SIGALRM, &end, NULL);
    alarm(LEAVE_SECONDS);
    MPI_Finalize();
    alarm(0);
    for (unsigned r = 0; r < c->size; r++) {
        free(c->arriving[r].data);
    }
    while (c->sending != NULL) {
        struct sending *s = c->sending;
        c->sending = s->next;
        free(s);
    }
    free(c->count);
    free(c->place);
    free(c->received);
    free(c->arriving);
    free(c->member);
    free(c);
}

/* ------------------------------------------------------------------ who is there */

unsigned cluster_rank(const struct cluster *c)
{
    return c->rank;
}

unsigned cluster_size(const struct cluster *c)
{
    return c->size;
}

unsigned cluster_n_local(const struct cluster *c)
{
    return c->n_local;
}

unsigned cluster_n_machine(const struct cluster *c)
{
    unsigned n = 0;
    for (unsigned r = 0; r < c->size; r++) {
        n += c->member[r].is_leader;
    }
    return n;
}

unsigned cluster_same_cpus(const struct cluster *c, unsigned *index)
{
    const struct member *own = &c->member[c->rank];
    unsigned n = 0;
    *index = 0;
    for (unsigned r = 0; r < c->size; r++) {
        const struct member *m = &c->member[r];
        if (m->machine == own->machine && memcmp(m->cpus, own->cpus, sizeof m->cpus) == 0) {
            *index += r < c->rank;
            n++;
        }
    }
    return n;
}

/* ------------------------------------------------------------------ all together */

void cluster_gather(struct cluster *c, const void *own, size_t bytes, void *all)
{
    MPI_Request request;
    check(c, MPI_Iallgather(own, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, c->all, &request),
          "exchange of all");
    finish(c, &request, "exchange of all");
}

void cluster_share(struct cluster *c, void *data, size_t bytes)
{
    MPI_Request request;
    check(c, MPI_Ibcast(data, (int)bytes, MPI_BYTE, 0, c->all, &request), "message to all");
    finish(c, &request, "message to all");
}

uint64_t cluster_local_min(struct cluster *c, uint64_t value)
{
    uint64_t least = value;
    MPI_Request request;
    check(c, MPI_Iallreduce(&value, &least, 1, MPI_UINT64_T, MPI_MIN, c->local, &request),
          "exchange on a machine");
    finish(c, &request, "exchange on a machine");
    return least;
}

/* ------------------------------------------------------------------ experts of all */

static bool peers_gather(void *arg, const void *own, void *all, size_t bytes)
{
    cluster_gather(arg, own, bytes, all);
    return true;
}

static void set_counts(const struct cluster *c, const uint32_t *n, int *count, int *place)
{
    int sum = 0;
    for (unsigned r = 0; r < c->size; r++) {
        count[r] = (int)n[r];
        place[r] = sum;
        sum += count[r];
    }
}

/* Counted in rows: bytes would exceed an int. */
static bool peers_exchange(void *arg, size_t row_bytes, const void *send, const uint32_t *n_send,
                           void *recv, const uint32_t *n_recv)
{
    static const char what[] = "exchange of tokens";
    struct cluster *c = arg;
    int *in = c->count + c->size, *in_place = c->place + c->size;
    MPI_Request request;
    if (c->row_bytes != row_bytes) {
        if (c->row_bytes != 0) {
            MPI_Type_free(&c->row);
        }
        check(c, MPI_Type_contiguous((int)row_bytes, MPI_BYTE, &c->row), what);
        check(c, MPI_Type_commit(&c->row), what);
        c->row_bytes = row_bytes;
    }
    set_counts(c, n_send, c->count, c->place);
    set_counts(c, n_recv, in, in_place);
    check(c,
          MPI_Ialltoallv(send, c->count, c->place, c->row, recv, in, in_place, c->row, c->all,
                         &request),
          what);
    finish(c, &request, what);
    return true;
}

const numoe_peers *cluster_peers(struct cluster *c)
{
    c->count = new_bytes(c, 2 * c->size * sizeof *c->count);
    c->place = new_bytes(c, 2 * c->size * sizeof *c->place);
    c->peers = (numoe_peers){.rank = c->rank,
                             .n_rank = c->size,
                             .arg = c,
                             .gather = peers_gather,
                             .exchange = peers_exchange};
    return &c->peers;
}

/* ------------------------------------------------------------------ messages */

void cluster_send(struct cluster *c, unsigned to, const void *head, size_t head_bytes,
                  const void *body, size_t body_bytes)
{
    const size_t bytes = head_bytes + body_bytes;
    if (bytes > INT_MAX) {
        fprintf(stderr, "numoe: rank %u: a message of %zu bytes is too large\n", c->rank, bytes);
        cluster_abort(c, RESUME_STATUS);
    }
    struct sending *s = new_bytes(c, sizeof *s + bytes);
    memcpy(s->data, head, head_bytes);
    if (body_bytes > 0) {
        memcpy(s->data + head_bytes, body, body_bytes);
    }
    check(c, MPI_Isend(s->data, (int)bytes, MPI_BYTE, (int)to, TAG, c->all, &s->request),
          "sending");
    s->next = c->sending;
    c->sending = s;
}

bool cluster_is_sent(struct cluster *c)
{
    for (struct sending **link = &c->sending; *link != NULL;) {
        struct sending *s = *link;
        int is_done = 0;
        check(c, MPI_Test(&s->request, &is_done, MPI_STATUS_IGNORE), "sending");
        if (is_done) {
            *link = s->next;
            free(s);
        } else {
            link = &s->next;
        }
    }
    return c->sending == NULL;
}

/* Begins to take what a rank has sent. */
static void open_arriving(struct cluster *c, unsigned from)
{
    struct arriving *a = &c->arriving[from];
    MPI_Message message;
    MPI_Status status;
    int is_there = 0, n = 0;
    check(c, MPI_Improbe((int)from, TAG, c->all, &is_there, &message, &status), "receiving");
    if (!is_there) {
        return;
    }
    MPI_Get_count(&status, MPI_BYTE, &n);
    a->bytes = (size_t)n;
    a->data = new_bytes(c, a->bytes + 1);
    a->data[a->bytes] = 0;
    check(c, MPI_Imrecv(a->data, n, MPI_BYTE, &message, &a->request), "receiving");
    a->is_open = true;
}

static bool has_arrived(struct cluster *c, unsigned from)
{
    struct arriving *a = &c->arriving[from];
    int is_done = 0;
    if (!a->is_open) {
        open_arriving(c, from);
    }
    if (a->is_open) {
        check(c, MPI_Test(&a->request, &is_done, MPI_STATUS_IGNORE), "receiving");
        a->is_open = !is_done;
    }
    return is_done;
}

bool cluster_receive(struct cluster *c, unsigned *from, char **data, size_t *bytes)
{
    free(c->received);
    c->received = NULL;
    (void)cluster_is_sent(c);
    for (unsigned i = 0; i < c->size; i++) {
        const unsigned r = (c->next + i) % c->size;
        if (r != c->rank && has_arrived(c, r)) {
            struct arriving *a = &c->arriving[r];
            c->next = r + 1;
            *from = r;
            *bytes = a->bytes;
            *data = c->received = a->data;
            a->data = NULL;
            return true;
        }
    }
    return false;
}
