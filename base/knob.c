/* Environment variables, read at set-up. Everything else gets their values as arguments. */
#include "base/knob.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>

const char *knob_str(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && *value != '\0' ? value : NULL;
}

numoe_status knob_uint(const char *name, unsigned min, unsigned max, unsigned *value,
                       numoe_error *err)
{
    const char *text = knob_str(name);
    if (text == NULL) {
        return NUMOE_OK;
    }
    char *end = NULL;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    /* strtoull takes a sign and blanks; a count has neither */
    if (!isdigit((unsigned char)text[0]) || *end != '\0' || errno != 0 || number < min ||
        number > max) {
        return status_fail(err, NUMOE_E_INPUT, "%s is \"%s\", expected a number from %u to %u",
                           name, text, min, max);
    }
    *value = (unsigned)number;
    return NUMOE_OK;
}
