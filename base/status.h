/* Errors inside the library. Whoever decides that something failed says so once, with numbers, in a
 * numoe_error that travels up through `err`; everybody else forwards the status untouched. */
#ifndef NUMOE_BASE_STATUS_H
#define NUMOE_BASE_STATUS_H

#include "numoe/numoe.h"

/* Fills *err (if not NULL) and returns status. Text too long is cut; control characters,
 * newlines among them, and what is not UTF-8 (names come out of files) are replaced by '?'. */
numoe_status status_fail(numoe_error *err, numoe_status status, const char *fmt, ...)
    NUMOE_PRINTF(3, 4);

/* Puts "prefix: " before the text that is already in *err: the file name, the tensor. Returns
 * err's status (status where err is NULL). */
numoe_status status_context(numoe_error *err, numoe_status status, const char *fmt, ...)
    NUMOE_PRINTF(3, 4);

#define FORWARD_IF(expr)                                                                           \
    do {                                                                                           \
        numoe_status forward_status = (expr);                                                      \
        if (forward_status != NUMOE_OK) {                                                          \
            return forward_status;                                                                 \
        }                                                                                          \
    } while (0)

#endif
