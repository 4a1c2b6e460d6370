/* The log: one line at a time to stderr, or to whoever called numoe_log_set().
 *
 * Owns the level, the library's only global variable that changes. It is set before engines are
 * opened and only read afterwards, so it needs no lock; a line goes out in one write.
 */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/knob.h"
#include "base/utf8.h"

static const char *const level_names[] = {
    [NUMOE_LOG_ERROR] = "error",
    [NUMOE_LOG_WARN] = "warn",
    [NUMOE_LOG_INFO] = "info",
    [NUMOE_LOG_DEBUG] = "debug",
};
#define N_LEVEL ((int)(sizeof level_names / sizeof level_names[0]))

static numoe_log_fn sink;
static void *sink_arg;
static int sink_level = -1; /* -1: ask the environment at the first use */

/* -1: no level has this name. */
static int level_of_name(const char *name)
{
    for (int level = 0; level < N_LEVEL; level++) {
        if (strcmp(name, level_names[level]) == 0) {
            return level;
        }
    }
    return -1;
}

/* A wrong name is refused by log_check(), when an engine is opened. */
static int level_from_environment(void)
{
    const char *name = knob_str("NUMOE_LOG");
    const int level = name != NULL ? level_of_name(name) : -1;
    return level >= 0 ? level : NUMOE_LOG_WARN;
}

numoe_status log_check(numoe_error *err)
{
    const char *name = knob_str("NUMOE_LOG");
    if (sink == NULL && name != NULL && level_of_name(name) < 0) {
        return status_fail(err, NUMOE_E_INPUT,
                           "NUMOE_LOG is \"%s\", expected error, warn, info or debug", name);
    }
    return NUMOE_OK;
}

static int current_level(void)
{
    int level = __atomic_load_n(&sink_level, __ATOMIC_RELAXED);
    if (level < 0) {
        level = level_from_environment();
        __atomic_store_n(&sink_level, level, __ATOMIC_RELAXED);
    }
    return level;
}

void numoe_log_set(numoe_log_fn fn, void *arg, numoe_log_level level)
{
    sink = fn;
    sink_arg = arg;
    __atomic_store_n(&sink_level, fn != NULL ? (int)level : -1, __ATOMIC_RELAXED);
}

bool log_enabled(numoe_log_level level)
{
    return (int)level <= current_level();
}

void log_line(numoe_log_level level, const char *fmt, ...)
{
    if (!log_enabled(level)) {
        return;
    }
    char line[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    utf8_make_plain(line);
    if (sink != NULL) {
        sink(sink_arg, level, line);
    } else {
        fprintf(stderr, "numoe: %s: %s\n", level_names[level], line);
    }
}
