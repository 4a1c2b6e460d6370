/* Owns the process of a GPU program: its birth (posix_spawn, one end of a socket), the memory that
 * is shared with it, the watch over it, and its end. The one thing to know: time counts for a
 * silent program only while the engine itself runs, so that both may be suspended together.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "gpu/program.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/knob.h"
#include "base/log.h"
#include "base/mem.h"
#include "gpu/segment.h"
#include "numa/gate.h"

#define QUIT_MS    2000
#define PATIENCE_S 5u /* without a beat */
/* Times that: without HELLO (drivers of eight GPUs take some 10 s to start), and between two
 * messages of a loading program. */
#define START_TIMES  12u
#define TURN_S       60u /* without a bell that it is the program's turn to ring */
#define LOOK_MS      50u
#define SPIN_NS      2000000u /* of the longest wait for attention over a long context */
#define HOST_NS      20000u   /* the same where the program needs the CPUs itself */
#define NAP_MIN_NS   50000u
#define NAP_MAX_NS   500000u
#define SPINS_A_LOOK 32

struct gpu_program {
    char path[512];
    pid_t pid;
    int pidfd; /* -1 on kernels without */
    int socket;
    struct exchange_hello hello;
    struct segment segment;
    uint64_t patience_ns;

    uint64_t last_result_ns; /* when the program was last seen to be done with a step */
    uint64_t beat;           /* last seen */
    uint64_t silent_ns, turn_ns, looked_ns;
    numoe_error fault;
};

extern char **environ;

/* ------------------------------------------------------------------ birth */

/* Its own process group: an interruption at the terminal is the engine's to answer. */
static void set_attributes(posix_spawnattr_t *attr)
{
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setflags(attr, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK |
                                       POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setpgroup(attr, 0);
    posix_spawnattr_setsigmask(attr, &none);
    posix_spawnattr_setsigdefault(attr, &all);
}

/* Standard input is nothing, standard output is standard error, 3 is the socket. */
static numoe_status spawn(struct gpu_program *p, int theirs, numoe_error *err)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    char *const argv[] = {p->path, NULL};
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attr);
    set_attributes(&attr);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, theirs, EXCHANGE_FD);
    const int failure = posix_spawn(&p->pid, p->path, &actions, &attr, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attr);
    if (failure != 0) {
        p->pid = 0;
        return status_fail(err, NUMOE_E_FILE_OPEN, "%s: cannot be started: %s", p->path,
                           strerror(failure));
    }
    p->pidfd = (int)syscall(SYS_pidfd_open, p->pid, 0);
    return NUMOE_OK;
}

/* dup2() of a descriptor onto itself would leave it closed on exec. */
static int move_from(int fd, int taken)
{
    if (fd != taken) {
        return fd;
    }
    const int moved = fcntl(fd, F_DUPFD_CLOEXEC, taken + 1);
    close(fd);
    return moved;
}

static numoe_status start(struct gpu_program *p, numoe_error *err)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        return status_fail(err, NUMOE_E_DEVICE, "no socket for a GPU program: %s", strerror(errno));
    }
    p->socket = pair[0];
    pair[1] = move_from(pair[1], EXCHANGE_FD);
    numoe_status status = spawn(p, pair[1], err);
    close(pair[1]);
    return status;
}

/* ------------------------------------------------------------------ what it says of its end */

static void describe_end(const siginfo_t *info, const struct gpu_program *p, numoe_error *err)
{
    if (info->si_code == CLD_EXITED) {
        status_fail(err, NUMOE_E_DEVICE, "%s ended with status %d", p->path, info->si_status);
    } else {
        status_fail(err, NUMOE_E_DEVICE, "%s was ended by signal %d (%s)", p->path, info->si_status,
                    strsignal(info->si_status));
    }
}

static bool has_ended(const struct gpu_program *p, siginfo_t *info)
{
    info->si_pid = 0;
    return waitid(P_PID, (id_t)p->pid, info, WEXITED | WNOHANG | WNOWAIT) == 0 && info->si_pid != 0;
}

/* In place of "the other side is gone": how it went, if that is known within a moment. */
static numoe_status explain(const struct gpu_program *p, numoe_status status, numoe_error *err)
{
    siginfo_t info;
    struct pollfd pfd = {.fd = p->pidfd, .events = POLLIN};
    if (status != NUMOE_E_DEVICE) {
        return status_context(err, status, "%s", p->path);
    }
    if (p->pidfd >= 0) {
        poll(&pfd, 1, 1000);
    }
    if (has_ended(p, &info)) {
        describe_end(&info, p, err);
        return NUMOE_E_DEVICE;
    }
    return status_context(err, status, "%s", p->path);
}

static uint32_t type_of(const void *packet)
{
    struct exchange_message m;
    memcpy(&m, packet, sizeof m);
    return m.type;
}

static numoe_status own_words(const struct gpu_program *p, const void *packet, numoe_error *err)
{
    struct exchange_text said;
    memcpy(&said, exchange_payload(packet), sizeof said);
    const bool is_memory = type_of(packet) == EXCHANGE_REFUSED && said.short_bytes > 0;
    return status_fail(err, is_memory ? NUMOE_E_MEMORY : NUMOE_E_DEVICE, "%s: %s", p->path,
                       said.text);
}

static numoe_status unexpected(const struct gpu_program *p, const void *packet, numoe_error *err)
{
    return status_fail(err, NUMOE_E_DEVICE, "%s: message %u where none of its kind may be", p->path,
                       type_of(packet));
}

/* ------------------------------------------------------------------ start and stop */

static int start_ms(const struct gpu_program *p)
{
    return (int)(p->patience_ns / 1000000 * START_TIMES);
}

static numoe_status receive_hello(struct gpu_program *p, numoe_error *err)
{
    uint8_t packet[EXCHANGE_MESSAGE_MAX];
    numoe_status status = exchange_receive(p->socket, start_ms(p), packet, NULL, err);
    if (status != NUMOE_OK) {
        return explain(p, status, err);
    }
    if (type_of(packet) != EXCHANGE_HELLO) {
        return type_of(packet) == EXCHANGE_REFUSED ? own_words(p, packet, err)
                                                   : unexpected(p, packet, err);
    }
    memcpy(&p->hello, exchange_payload(packet), sizeof p->hello);
    return NUMOE_OK;
}

numoe_status gpu_program_start(const char *path, struct gpu_program **out, numoe_error *err)
{
    struct gpu_program *p = NULL;
    unsigned patience_s = PATIENCE_S;
    FORWARD_IF(knob_uint("NUMOE_GPU_PATIENCE", 1, 3600, &patience_s, err));
    if (strlen(path) >= sizeof p->path) {
        return status_fail(err, NUMOE_E_INPUT, "path of the GPU program is too long");
    }
    FORWARD_IF(mem_new(&p, 1, sizeof *p, "GPU program", err));
    strcpy(p->path, path);
    p->pidfd = p->socket = -1;
    p->patience_ns = UINT64_C(1000000000) * patience_s;
    segment_init(&p->segment);
    numoe_status status = start(p, err);
    if (status == NUMOE_OK) {
        status = receive_hello(p, err);
    }
    if (status != NUMOE_OK) {
        gpu_program_stop(p);
        return status;
    }
    *out = p;
    return NUMOE_OK;
}

static void reap(struct gpu_program *p)
{
    siginfo_t info;
    const uint64_t until = clock_ns() + QUIT_MS * UINT64_C(1000000);
    while (!has_ended(p, &info) && clock_ns() < until) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    if (!has_ended(p, &info)) {
        kill(p->pid, SIGKILL);
    }
    waitpid(p->pid, NULL, 0);
}

void gpu_program_stop(struct gpu_program *p)
{
    if (p == NULL) {
        return;
    }
    if (p->pid > 0 && p->fault.status != NUMOE_OK) {
        kill(p->pid, SIGKILL);
    } else if (p->pid > 0) {
        exchange_send(p->socket, EXCHANGE_QUIT, NULL, 0, -1, NULL);
    }
    if (p->socket >= 0) {
        close(p->socket);
    }
    if (p->pid > 0) {
        reap(p);
    }
    if (p->pidfd >= 0) {
        close(p->pidfd);
    }
    segment_fini(&p->segment);
    mem_free(p);
}

const struct exchange_hello *gpu_program_hello(const struct gpu_program *p)
{
    return &p->hello;
}

/* ------------------------------------------------------------------ load */

numoe_status gpu_program_segment(struct gpu_program *p, const struct exchange_header *header,
                                 uint32_t os_node, struct exchange_header **segment,
                                 numoe_error *err)
{
    FORWARD_IF(segment_new(header->segment_bytes, os_node, &p->segment, err));
    memcpy(p->segment.data, header, sizeof *header);
    *segment = p->segment.data;
    return NUMOE_OK;
}

numoe_status gpu_program_load(struct gpu_program *p, numoe_error *err)
{
    const struct exchange_load load = {.segment_bytes = p->segment.bytes};
    numoe_status status =
        exchange_send(p->socket, EXCHANGE_LOAD, &load, sizeof load, p->segment.fd, err);
    return status == NUMOE_OK ? NUMOE_OK : explain(p, status, err);
}

numoe_status gpu_program_ready(struct gpu_program *p, struct exchange_ready *ready,
                               uint64_t *short_bytes, numoe_error *err)
{
    uint8_t packet[EXCHANGE_MESSAGE_MAX];
    struct exchange_text refused;
    *short_bytes = 0;
    do {
        numoe_status status = exchange_receive(p->socket, start_ms(p), packet, NULL, err);
        if (status != NUMOE_OK) {
            return explain(p, status, err);
        }
    } while (type_of(packet) == EXCHANGE_PROGRESS);
    switch (type_of(packet)) {
    case EXCHANGE_READY:
        memcpy(ready, exchange_payload(packet), sizeof *ready);
        p->last_result_ns = clock_ns();
        return NUMOE_OK;
    case EXCHANGE_FAULT:
        return own_words(p, packet, err);
    case EXCHANGE_REFUSED:
        memcpy(&refused, exchange_payload(packet), sizeof refused);
        *short_bytes = refused.short_bytes == EXCHANGE_SHORT_ELSEWHERE ? 0 : refused.short_bytes;
        return own_words(p, packet, err);
    default:
        return unexpected(p, packet, err);
    }
}

/* ------------------------------------------------------------------ work and watch */

void gpu_program_ring_step(struct gpu_program *p, uint64_t number)
{
    struct exchange_header *h = p->segment.data;
    const struct exchange_message wake = {EXCHANGE_MAGIC, EXCHANGE_VERSION, EXCHANGE_WAKE, 0};
    exchange_bell_ring(&h->step, number);
    if (clock_ns() - p->last_result_ns > EXCHANGE_WAKE_MS * UINT64_C(1000000)) {
        /* A full queue is an awake program's, and one that is gone is found out by waiting for it.
         */
        const ssize_t n = send(p->socket, &wake, sizeof wake, MSG_NOSIGNAL | MSG_DONTWAIT);
        (void)n;
    }
}

/* What a program that should be silent has to say: nothing but why it ends. */
static bool has_spoken(struct gpu_program *p)
{
    uint8_t packet[EXCHANGE_MESSAGE_MAX];
    struct pollfd pfd = {.fd = p->socket, .events = POLLIN};
    if (poll(&pfd, 1, 0) <= 0) {
        return false;
    }
    numoe_status status = exchange_receive(p->socket, 0, packet, NULL, &p->fault);
    if (status != NUMOE_OK) {
        explain(p, status, &p->fault);
        p->fault.status = NUMOE_E_DEVICE;
    } else if (type_of(packet) == EXCHANGE_FAULT) {
        own_words(p, packet, &p->fault);
    } else {
        unexpected(p, packet, &p->fault);
    }
    return true;
}

static bool is_well(struct gpu_program *p)
{
    struct exchange_header *h = p->segment.data;
    siginfo_t info;
    const uint64_t now = clock_ns();
    /* A gap is the engine's own, suspended or starved: it does not count in full. */
    const uint64_t passed = MIN(now - p->looked_ns, 4 * LOOK_MS * UINT64_C(1000000));
    const uint64_t beat = exchange_bell_get(&h->beat);
    p->looked_ns = now;
    p->turn_ns += passed;
    p->silent_ns = beat == p->beat ? p->silent_ns + passed : 0;
    p->beat = beat;
    if (has_spoken(p)) {
        return false;
    }
    if (has_ended(p, &info)) {
        describe_end(&info, p, &p->fault);
    } else if (p->silent_ns > p->patience_ns) {
        status_fail(&p->fault, NUMOE_E_DEVICE, "%s has given no sign of life for %.0f s", p->path,
                    (double)p->silent_ns * 1e-9);
    } else if (p->turn_ns > TURN_S * UINT64_C(1000000000)) {
        status_fail(&p->fault, NUMOE_E_DEVICE, "%s has not gone on for %u s", p->path, TURN_S);
    }
    return p->fault.status == NUMOE_OK;
}

static bool spin(const struct exchange_bell *bell, uint64_t value, uint64_t until_ns)
{
    while (clock_ns() < until_ns) {
        for (int i = 0; i < SPINS_A_LOOK; i++) {
            if (exchange_bell_get(bell) >= value) {
                return true;
            }
            gate_relax();
        }
    }
    return false;
}

/* Naps that grow; the program is looked after between them. */
static bool nap(struct gpu_program *p, const struct exchange_bell *bell, uint64_t value)
{
    uint64_t nap_ns = NAP_MIN_NS;
    p->looked_ns = clock_ns();
    p->silent_ns = p->turn_ns = 0;
    while (exchange_bell_get(bell) < value) {
        const bool due = clock_ns() - p->looked_ns > LOOK_MS * UINT64_C(1000000);
        if (due && !is_well(p)) {
            return false;
        }
        nanosleep(&(struct timespec){.tv_nsec = (long)nap_ns}, NULL);
        nap_ns = MIN(nap_ns + nap_ns / 8, NAP_MAX_NS);
    }
    return true;
}

bool gpu_program_wait(struct gpu_program *p, const struct exchange_bell *bell, uint64_t value)
{
    const struct exchange_header *h = p->segment.data;
    if (p->fault.status != NUMOE_OK) {
        return false;
    }
    bool came = exchange_bell_get(bell) >= value;
    if (!came) {
        came = spin(bell, value, clock_ns() + (p->hello.on_host ? HOST_NS : SPIN_NS)) ||
               nap(p, bell, value);
    }
    if (came && bell == &h->result) {
        p->last_result_ns = clock_ns();
    }
    return came;
}

void gpu_program_blame(struct gpu_program *p, const char *text)
{
    if (p->fault.status == NUMOE_OK) {
        status_fail(&p->fault, NUMOE_E_DEVICE, "%s: %s", p->path, text);
    }
}

numoe_status gpu_program_fault(const struct gpu_program *p, numoe_error *err)
{
    if (err != NULL) {
        *err = p->fault;
    }
    return p->fault.status;
}
