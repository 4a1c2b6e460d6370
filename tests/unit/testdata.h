/* Where tests find their files. Both functions return a path for free(), or NULL where there is no
 * such file: data of the project itself must be there (assert), extra data may be missing (skip).
 */
#ifndef NUMOE_TESTS_TESTDATA_H
#define NUMOE_TESTS_TESTDATA_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Its shadow memory takes terabytes of addresses: limits on address space cannot be tested. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TEST_HAS_SHADOW_MEMORY 1
#else
#define TEST_HAS_SHADOW_MEMORY 0
#endif

/* Engines choose the same each time, and the user's cache is not touched: a test of either says so. */
__attribute__((constructor)) static inline void test_probe_nothing(void)
{
    setenv("NUMOE_PROBE", "off", 0);
    setenv("XDG_CACHE_HOME", "/nonexistent", 1);
}

static inline const char *test_srcdir(void)
{
    const char *dir = getenv("NUMOE_TEST_SRCDIR");
    return dir && *dir ? dir : ".";
}

static inline char *test_existing_path(const char *dir, const char *middle, const char *rel)
{
    size_t cap = strlen(dir) + strlen(middle) + strlen(rel) + 2;
    char *path = malloc(cap);
    if (path == NULL) {
        return NULL;
    }
    snprintf(path, cap, "%s%s/%s", dir, middle, rel);
    if (access(path, R_OK) != 0) {
        free(path);
        return NULL;
    }
    return path;
}

/* rel is relative to the root of the project's sources: "tests/data/fixtures/..." */
static inline char *test_src_path(const char *rel)
{
    return test_existing_path(test_srcdir(), "", rel);
}

/* rel is relative to $NUMOE_TEST_DATA, a folder of public vocabularies, topologies and models that
 * is not part of the project: by default "shared" beside the sources. */
static inline char *test_data_path(const char *rel)
{
    const char *dir = getenv("NUMOE_TEST_DATA");
    if (dir && *dir) {
        return test_existing_path(dir, "", rel);
    }
    return test_existing_path(test_srcdir(), "/../shared", rel);
}

#endif
