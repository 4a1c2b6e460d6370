/* Ctrl-C: the first one stops what can be stopped in an orderly way (a generation, an evaluation, a
 * line being typed), the second one, or one where there is nothing to stop, ends the program the
 * way the signal would, after removing unfinished files. The other signals that end programs always
 * do the latter, except that a file that becomes too large is an error like a full disk. */
#include <signal.h>
#include <stdatomic.h>

#include "cli/cli.h"

/* Sync: written between signals by the one thread that runs subcommands, read by the handler. */
static numoe_session *_Atomic watched;
static atomic_bool in_input;
static atomic_int n_signal;

static void end_by_signal(int sig)
{
    output_remove_unfinished();
    signal(sig, SIG_DFL);
    raise(sig);
}

static void on_signal(int sig)
{
    numoe_session *session = atomic_load(&watched);
    int n_before = atomic_fetch_add(&n_signal, 1);

    if (sig != SIGINT || n_before > 0 || (!session && !atomic_load(&in_input))) {
        end_by_signal(sig);
    } else if (session) {
        numoe_session_cancel(session);
    }
}

/* A signal that whoever started the program ignores (nohup, a background job) stays ignored. */
static void handle(int sig, int flags)
{
    struct sigaction old, new = {.sa_handler = on_signal, .sa_flags = flags};

    if (sigaction(sig, NULL, &old) == 0 && old.sa_handler != SIG_IGN) {
        sigaction(sig, &new, NULL);
    }
}

void interrupt_init(void)
{
    static const int ending[] = {SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGXCPU, SIGALRM};

    handle(SIGINT, SA_RESTART);
    for (size_t i = 0; i < sizeof ending / sizeof ending[0]; i++) {
        handle(ending[i], SA_RESTART);
    }
    signal(SIGXFSZ, SIG_IGN);
}

void interrupt_begin(numoe_session *session)
{
    atomic_store(&n_signal, 0);
    atomic_store(&watched, session);
}

void interrupt_begin_input(void)
{
    atomic_store(&n_signal, 0);
    atomic_store(&in_input, true);
    handle(SIGINT, 0); /* not restarting a read is how a line being typed is given up */
}

bool interrupt_end(void)
{
    atomic_store(&watched, NULL);
    if (atomic_exchange(&in_input, false)) {
        handle(SIGINT, SA_RESTART);
    }
    return atomic_exchange(&n_signal, 0) > 0;
}
