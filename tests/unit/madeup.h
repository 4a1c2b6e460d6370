/* Machines that are not here: a temporary folder with /proc and /sys as a test wants them. A suite
 * or a test names madeup_setup and madeup_teardown as its .init and .fini.
 */
#ifndef NUMOE_TESTS_MADEUP_H
#define NUMOE_TESTS_MADEUP_H

#include <criterion/criterion.h>

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[64];

static inline void put(const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof(full), "%s%s", root, path);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')) != NULL; p++) {
        *p = '\0';
        cr_assert(mkdir(full, 0755) == 0 || errno == EEXIST);
        *p = '/';
    }
    FILE *f = fopen(full, "w");
    cr_assert_not_null(f, "%s", full);
    fputs(text, f);
    fclose(f);
}

static inline void madeup_setup(void)
{
    strcpy(root, "/tmp/numoe-root-XXXXXX");
    cr_assert_not_null(mkdtemp(root));
}

static inline int madeup_remove_one(const char *path, const struct stat *sb, int type,
                                    struct FTW *ftw)
{
    (void)sb, (void)type, (void)ftw;
    return remove(path);
}

static inline void madeup_teardown(void)
{
    cr_expect_eq(nftw(root, madeup_remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

/* The own control group of version 2. */
static inline void put_v2(const char *own)
{
    char line[256];
    put("/proc/self/mountinfo", "22 1 0:20 / /proc rw - proc proc rw\n"
                                "30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 "
                                "rw,nsdelegate\n");
    snprintf(line, sizeof(line), "0::%s\n", own);
    put("/proc/self/cgroup", line);
}

#endif
