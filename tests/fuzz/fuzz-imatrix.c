/* Fuzz target: any bytes as a file of expert statistics, ours or an importance matrix in either form.
 * What is read is counted, merged with itself and reported; what is not is one line that names the
 * file.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "store/stats.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_error(const numoe_error *err, const char *path)
{
    if (strncmp(err->text, path, strlen(path)) != 0 || strpbrk(err->text, "\n\r\x1b")) {
        fprintf(stderr, "not a clear line: %s\n", err->text);
        abort();
    }
}

static void report(struct expert_stats *stats, FILE *null)
{
    if (expert_stats_merge(stats, stats, NULL) != NUMOE_OK) {
        abort();
    }
    for (int format = NUMOE_STATS_TABLE; format <= NUMOE_STATS_SVG; format++) {
        (void)expert_stats_print(stats, (numoe_stats_format)format, null, NULL);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    struct expert_stats stats = {0};
    numoe_error err = {0};
    FILE *null = fopen("/dev/null", "w");
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (!null || fd < 0 || write(fd, data, size) != (ssize_t)size) {
        abort();
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (expert_stats_read(path, &stats, &err) == NUMOE_OK) {
        report(&stats, null);
        expert_stats_fini(&stats);
    } else {
        check_error(&err, path);
    }
    close(fd);
    fclose(null);
    return 0;
}
