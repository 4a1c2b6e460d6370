/* What the batch system tells a job: signals, and when its time is over. */
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/batch.h"

/* Signals that follow this close are one: who sends them means the process and its group, or both
 * the step and the job (timeout, srun). */
#define REPEAT_NS 1000000000

/* Sync: atomic; set by the handler, read between steps. */
static atomic_int asked;
static _Atomic int64_t asked_ns;
static atomic_bool is_idle = true;
static bool is_alone; /* set before there is a handler */

static int64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* The second request in a row is impatience: what the journal has is safe. */
static void on_signal(int sig)
{
    static const char text[] = "numoe: stopped by a signal; the same command goes on\n";
    const int64_t now = monotonic_ns();
    int64_t none = 0;

    if (!atomic_load(&is_idle) && atomic_compare_exchange_strong(&asked_ns, &none, now)) {
        atomic_store(&asked, sig);
    } else if (atomic_load(&is_idle) || now - none > REPEAT_NS) {
        if (is_alone) { /* all ranks have the signal: what ends them says so */
            (void)!write(STDERR_FILENO, text, sizeof text - 1);
        }
        output_remove_unfinished();
        _exit(EXIT_RESUME);
    }
}

/* Who reads the progress may leave, and the job goes on. Not SIG_IGN, which programs that are
 * started would have too. */
static void on_pipe(int sig)
{
    (void)sig;
}

void job_init(bool alone)
{
    const struct sigaction pipe = {.sa_handler = on_pipe, .sa_flags = SA_RESTART};
    static const int stopping[] = {SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGHUP, SIGXCPU};

    is_alone = alone;
    for (size_t i = 0; i < sizeof stopping / sizeof stopping[0]; i++) {
        struct sigaction old, new = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
        if (sigaction(stopping[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN) {
            sigaction(stopping[i], &new, NULL);
        }
    }
    sigaction(SIGPIPE, &pipe, NULL);
}

void job_set_idle(bool idle)
{
    atomic_store(&is_idle, idle);
}

int job_signal(void)
{
    return atomic_load(&asked);
}

/* Negative: not known. What is there and cannot be understood would have stopped the job in time.
 */
static double env_number(const char *name)
{
    const char *text = getenv(name);
    char *end;

    if (!text || !*text) {
        return -1;
    }
    const double value = strtod(text, &end);
    if (*end == 0 && value >= 0 && value < 1e18) {
        return value;
    }
    warn("%s is \"%s\", expected seconds: this job does not know when its time is over; "
         "--time-left tells it",
         name, text);
    return -1;
}

/* Slurm tells the end as Unix time; Torque the whole time that a job may take, which began a little
 * before this program did. */
double job_time_left(void)
{
    const double end = env_number("SLURM_JOB_END_TIME"), wall = env_number("PBS_WALLTIME");
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    if (end > 0) {
        const double left = end - (double)now.tv_sec;
        return left > 0 ? left : 0;
    }
    return wall > 0 ? wall : -1;
}
