/* Fuzz target: any bytes as what was remembered of a machine. Whatever is taken of it is a number in the
 * range that is asked for, and no older or newer than may be.
 */
#include <stdlib.h>

#include "base/memo.h"

#define NOW 1800000000

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    double value = 150;
    int64_t when = NOW;
    unsetenv("HOME"); /* no file is read or written */
    unsetenv("XDG_CACHE_HOME");
    struct memo *memo = memo_open("fuzz");
    if (memo == NULL) {
        return 0;
    }
    memo_parse(memo, (const char *)data, size, NOW);
    memo_get(memo, "x", 100, 200, &value, &when);
    if (!(value >= 100 && value <= 200) || when > NOW + 86400 ||
        when < NOW - (int64_t)MEMO_DAYS * 86400) {
        abort();
    }
    memo_close(memo);
    return 0;
}
