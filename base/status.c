/* Error texts, and what the library says about itself.
 *
 * Owns the one place where an error's text is written. Texts quote names out of files, so
 * control characters and what is not UTF-8 are replaced here: whoever prints an error prints
 * exactly one line, and no terminal obeys it.
 */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

const char *numoe_status_text(numoe_status status)
{
    switch (status) {
#define STATUS_CASE(name, value, text)                                                             \
    case NUMOE_##name:                                                                             \
        return text;
        NUMOE_STATUS_MAP(STATUS_CASE)
#undef STATUS_CASE
    }
    return "unknown status";
}

const char *numoe_version(void)
{
    return PACKAGE_VERSION;
}

numoe_status status_fail(numoe_error *err, numoe_status status, const char *fmt, ...)
{
    if (err == NULL) {
        return status;
    }
    /* The arguments may point into err->text itself. */
    char text[sizeof err->text];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    utf8_make_plain(text);
    err->status = status;
    memcpy(err->text, text, sizeof text);
    return status;
}

numoe_status status_context(numoe_error *err, numoe_status status, const char *fmt, ...)
{
    if (err == NULL) {
        return status;
    }
    char text[sizeof err->text];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    size_t len = strlen(text);
    for (const char *c = ": "; *c != '\0' && len + 1 < sizeof text; c++) {
        text[len++] = *c;
    }
    for (const char *c = err->text; *c != '\0' && len + 1 < sizeof text; c++) {
        text[len++] = *c;
    }
    text[len] = '\0';
    utf8_make_plain(text);
    memcpy(err->text, text, sizeof text);
    return err->status;
}
