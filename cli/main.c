/* The program: finds the subcommand, and says how things ended. Everything else is in the
 * subcommands' own files. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/utf8.h"
#include "cli/cli.h"

static int run_version(int argc, char **argv);
static int run_help(int argc, char **argv);

static const struct command command_version = {
    .name = "version",
    .summary = "print the version",
    .help = "Usage: numoe version\n",
    .run = run_version,
};

static const struct command command_help = {
    .name = "help",
    .summary = "explain a subcommand",
    .help = "Usage: numoe help [SUBCOMMAND]\n",
    .run = run_help,
};

static const struct command *const commands[] = {
    &command_run,     &command_chat,    &command_batch,  &command_eval,
    &command_plan,    &command_topo,    &command_doctor, &command_inspect,
    &command_experts, &command_bench, &command_scale,   &command_version,
    &command_help,
};
#define N_COMMAND (sizeof commands / sizeof commands[0])

/* ------------------------------------------------------------------ errors */

static char prefix[64];

void fail_prefix(const char *text)
{
    snprintf(prefix, sizeof prefix, "%s", text);
}

/* One line, whatever the arguments are that it quotes; a text of any length. */
static void say(const char *cmd, const char *fmt, va_list ap)
{
    char *text = NULL;

    if (vasprintf(&text, fmt, ap) < 0) {
        text = NULL;
    }
    if (text) {
        utf8_make_plain(text);
    }
    fprintf(stderr, "numoe: %s%s%s%s", prefix, cmd ? cmd : "", cmd ? ": " : "",
            text ? text : "no memory");
    free(text);
}

int fail(int exit_status, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    say(NULL, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    return exit_status;
}

int fail_usage(const struct command *cmd, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    say(cmd->name, fmt, ap);
    va_end(ap);
    fprintf(stderr, "; see 'numoe help %s'\n", cmd->name);
    return EXIT_INPUT;
}

int exit_status_of(numoe_status status)
{
    switch (status) {
    case NUMOE_E_SUPPORT:
    case NUMOE_E_MEMORY:
        return EXIT_LACKING;
    case NUMOE_E_FILE_WRITE:
    case NUMOE_E_DEVICE:
    case NUMOE_E_STATE:
        return EXIT_WORK;
    default:
        return EXIT_INPUT;
    }
}

int fail_status(const numoe_error *err)
{
    return err->status == NUMOE_E_STATE_CANCELLED
               ? fail(EXIT_INTERRUPTED, "interrupted")
               : fail(exit_status_of(err->status), "%s", err->text);
}

int fail_file(const char *path, const numoe_error *err)
{
    return fail(exit_status_of(err->status), "%s: %s", path, err->text);
}

void warn(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    say(NULL, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
}

/* ------------------------------------------------------------------ help and version */

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < N_COMMAND; i++) {
        if (strcmp(commands[i]->name, name) == 0) {
            return commands[i];
        }
    }
    return NULL;
}

static void print_overview(FILE *to)
{
    fprintf(to,
            "numoe %s: runs Mixture-of-Experts language models on machines with many cores\n\n"
            "Usage: numoe SUBCOMMAND [OPTION]...\n\n",
            numoe_version());
    for (size_t i = 0; i < N_COMMAND; i++) {
        fprintf(to, "  %-9s %s\n", commands[i]->name, commands[i]->summary);
    }
    fputs(
        "\n'numoe help SUBCOMMAND' explains one. Exit status: 0 done, 1 failed while working,\n"
        "2 wrong usage, file, model or request, 3 machine or build lacks something,\n"
        "75 a batch that the same command goes on with, 130 interrupted.\n"
        "\n"
        "Environment:\n"
        "  NUMOE_MODEL  the model where -m names none (default: the bundled one)\n"
        "  NUMOE_LOG    what is logged: error, warn (the default), info or debug\n"
        "  NUMOE_ISA    kernels: ref, avx2, avxvnni, avx512bw, avx512, amx (default: the best)\n"
        "  NUMOE_PAGES  what weights lie on: auto (the default), small, thp or huge pages\n"
        "  NUMOE_PROBE  off: as --no-probe (default: auto)\n"
        "  NUMOE_SPIN_US  microseconds that workers wait awake (default: by a probe)\n"
        "  NUMOE_POOL_THREADS  threads of the system that run the workers (default: one for each\n"
        "               CPU that may be used)\n"
        "  NUMOE_MEMORY_CHECK  off: no model is refused for lack of memory\n"
        "  NUMOE_WATCH_SECONDS  between looks at where pages and workers are (default: 10; 0: "
        "none)\n",
        to);
}

static bool asks_for_help(int argc, char **argv)
{
    return argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);
}

static int run_version(int argc, char **argv)
{
    if (asks_for_help(argc, argv)) {
        fputs(command_version.help, stdout);
        return EXIT_OK;
    }
    if (argc > 1) {
        return fail_usage(&command_version, "unexpected argument '%s'", argv[1]);
    }
    printf("numoe %s\n", numoe_version());
    return EXIT_OK;
}

static int run_help(int argc, char **argv)
{
    if (asks_for_help(argc, argv)) {
        fputs(command_help.help, stdout);
        return EXIT_OK;
    }
    if (argc > 2) {
        return fail_usage(&command_help, "unexpected argument '%s'", argv[2]);
    }
    if (argc == 1) {
        print_overview(stdout);
        return EXIT_OK;
    }
    const struct command *cmd = find_command(argv[1]);
    if (!cmd) {
        return fail(EXIT_INPUT, "there is no subcommand '%s'; see 'numoe help'", argv[1]);
    }
    fputs(cmd->help, stdout);
    return EXIT_OK;
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2) {
        print_overview(stderr);
        return EXIT_INPUT;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        name = "help";
    } else if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
        name = "version";
    }
    const struct command *cmd = find_command(name);
    if (!cmd) {
        return fail(EXIT_INPUT, "there is no subcommand '%s'; see 'numoe help'", name);
    }
    return cmd->run(argc - 1, argv + 1);
}

/* ------------------------------------------------------------------ standard streams */

/* A file opened later must not become a standard stream that was closed: /dev/null takes its place,
 * the wrong way round, so that using it is still an error. */
static void occupy_standard_streams(void)
{
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) {
            (void)!open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
        }
    }
}

/* What was printed may still fail to arrive. */
static int close_stdout(int exit_status)
{
    bool failed = ferror(stdout);

    errno = 0;
    failed = fclose(stdout) != 0 || failed;
    if (failed && exit_status == EXIT_OK) {
        return fail(EXIT_WORK, "standard output: %s", errno ? strerror(errno) : "write failed");
    }
    return exit_status;
}

/* Every thread's own heap would take 64 MiB of address space, most of them never touched: more than
 * the weights, where ulimit -v counts it. */
static void spare_address_space(void)
{
#ifdef M_ARENA_MAX
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        mallopt(M_ARENA_MAX, 1);
    }
#endif
}

int main(int argc, char **argv)
{
    occupy_standard_streams();
    spare_address_space();
    interrupt_init();
    return close_stdout(dispatch(argc, argv));
}
