/* One line to a person: lower case, no full stop, "node 1" not "node=1". stderr only; stdout belongs
 * to tokens. Hot code never logs. Any thread. */
#ifndef NUMOE_BASE_LOG_H
#define NUMOE_BASE_LOG_H

#include "base/status.h"

void log_line(numoe_log_level level, const char *fmt, ...) NUMOE_PRINTF(2, 3);
bool log_enabled(numoe_log_level level);
/* NUMOE_E_INPUT where the environment would decide and NUMOE_LOG is no level. */
numoe_status log_check(numoe_error *err);

#define log_error(...) log_line(NUMOE_LOG_ERROR, __VA_ARGS__)
#define log_warn(...) log_line(NUMOE_LOG_WARN, __VA_ARGS__)
#define log_info(...) log_line(NUMOE_LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_line(NUMOE_LOG_DEBUG, __VA_ARGS__)

#endif
