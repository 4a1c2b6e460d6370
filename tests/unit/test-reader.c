/* store/reader: the same bytes come by every way a file can be read, whatever the offsets, at the
 * end of the file too; files in the page cache are known as such; errors are told.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <criterion/criterion.h>
#include <fcntl.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "numa/world.h"
#include "store/reader.h"
#include "tests/unit/testdata.h"

#define RANGE_BYTES 100000u
#define FILE_BYTES  (8u << 20)

static struct gguf *open_model(void)
{
    char *path = test_src_path("model/fable/fable-moe-Q4_K_M.gguf");
    struct gguf *gguf = NULL;
    cr_assert_not_null(path);
    cr_assert_eq(gguf_open(path, &gguf, NULL), NUMOE_OK);
    free(path);
    return gguf;
}

struct range {
    const struct gguf_tensor *t;
    uint64_t from;
    size_t bytes;
};

/* All of the file's tensors, in ranges of changing length: many end and begin inside of a block of
 * the device, and the last one at the end of the file. */
static size_t make_ranges(const struct gguf *gguf, struct range **out)
{
    size_t n = 0, len = 1;
    struct range *range = NULL;
    for (uint64_t i = 0; i < gguf->n_tensor; i++) {
        const struct gguf_tensor *t = &gguf->tensor[i];
        for (uint64_t from = 0; from < t->bytes; from += range[n - 1].bytes) {
            len = len * 7 % 99991;
            cr_assert_eq(mem_grow(&range, n + 1, sizeof *range, "ranges", NULL), NUMOE_OK);
            range[n++] = (struct range){t, from, MIN(len, t->bytes - from)};
        }
    }
    *out = range;
    return n;
}

static void check_way(enum reader_way way, bool may_queue)
{
    struct gguf *gguf = open_model();
    struct reader_files *files = NULL;
    struct reader *reader = NULL;
    struct range *range = NULL;
    const size_t n = make_ranges(gguf, &range);
    char *want = malloc(RANGE_BYTES);
    cr_assert_eq(reader_files_new(gguf, &files, NULL), NUMOE_OK);
    reader_files_force(files, way, may_queue);
    cr_assert_eq(reader_new(files, RANGE_BYTES, 1000, &reader, NULL), NUMOE_OK);
    cr_assert_eq((uintptr_t)reader_extra(reader) % 64, 0);
    memset(reader_extra(reader), 0xff, 1000);
    size_t started = 0;
    for (size_t i = 0; i < n; i++) {
        const void *data = NULL;
        while (started < n && reader_has_room(reader)) {
            reader_start(reader, range[started].t, range[started].from, range[started].bytes);
            started++;
        }
        cr_assert_eq(reader_wait(reader, &data, NULL), NUMOE_OK);
        cr_assert_eq(gguf_read_tensor(gguf, range[i].t, range[i].from, range[i].bytes, want, NULL),
                     NUMOE_OK);
        cr_assert_arr_eq(data, want, range[i].bytes, "range %zu of %zu: %s", i, n,
                         range[i].t->name);
        reader_drop(reader);
    }
    cr_assert_gt(n, 100);
    free(want);
    mem_free(range);
    reader_free(reader);
    reader_files_free(files);
    gguf_close(gguf);
}

Test(reader, cached)
{
    check_way(READER_CACHED, true);
}

Test(reader, plain_with_and_without_queue)
{
    check_way(READER_PLAIN, true);
    check_way(READER_PLAIN, false);
}

Test(reader, direct_with_and_without_queue)
{
    check_way(READER_DIRECT, true);
    check_way(READER_DIRECT, false);
}

/* Reads that nobody waits for: their memory is not given back before they are over. */
Test(reader, freed_with_reads_on_their_way)
{
    struct gguf *gguf = open_model();
    struct reader_files *files = NULL;
    cr_assert_eq(reader_files_new(gguf, &files, NULL), NUMOE_OK);
    reader_files_force(files, READER_DIRECT, true);
    for (unsigned round = 0; round < 50; round++) {
        struct reader *reader = NULL;
        cr_assert_eq(reader_new(files, RANGE_BYTES, 0, &reader, NULL), NUMOE_OK);
        while (reader_has_room(reader)) {
            const struct gguf_tensor *t = &gguf->tensor[round % gguf->n_tensor];
            reader_start(reader, t, 0, MIN(RANGE_BYTES, t->bytes));
        }
        reader_free(reader);
    }
    reader_files_free(files);
    gguf_close(gguf);
}

/* ------------------------------------------------------------------ choice */

static enum reader_way way_of(const char *path)
{
    struct gguf_part part = {.path = (char *)path, .fd = open(path, O_RDONLY), .bytes = FILE_BYTES};
    struct gguf gguf = {.n_part = 1, .part = &part};
    struct reader_files *files = NULL;
    cr_assert_geq(part.fd, 0);
    cr_assert_eq(reader_files_new(&gguf, &files, NULL), NUMOE_OK);
    enum reader_way way = reader_files_way(files, 0);
    reader_files_free(files);
    close(part.fd);
    return way;
}

static void write_file(char *path)
{
    char *data = calloc(1, FILE_BYTES);
    const int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, data, FILE_BYTES), FILE_BYTES);
    cr_assert_eq(fsync(fd), 0);
    close(fd);
    free(data);
}

/* 1 where the kernel gives this process an io_uring and the build uses it. */
static unsigned rings_to_expect(void)
{
    struct world *world = NULL;
    cr_assert_eq(world_new_native("", &world, NULL), NUMOE_OK);
    const bool may = world->uring(world) == 0;
    world_free(world);
#ifdef NUMOE_HAVE_URING
    return may;
#else
    return 0 * may;
#endif
}

static unsigned count_rings(void)
{
    char target[64];
    unsigned n = 0;
    glob_t fd;
    cr_assert_eq(glob("/proc/self/fd/*", 0, NULL, &fd), 0);
    for (size_t i = 0; i < fd.gl_pathc; i++) {
        const ssize_t len = readlink(fd.gl_pathv[i], target, sizeof target - 1);
        target[MAX(len, 0)] = '\0';
        n += strstr(target, "io_uring") != NULL;
    }
    globfree(&fd);
    return n;
}

/* All of a file that is not in the page cache, by the way that is chosen. */
static void read_file(const char *path)
{
    struct gguf_part part = {.path = (char *)path, .fd = open(path, O_RDONLY), .bytes = FILE_BYTES};
    const struct gguf gguf = {.n_part = 1, .part = &part};
    const struct gguf_tensor t = {.name = "t", .bytes = FILE_BYTES};
    struct reader_files *files = NULL;
    struct reader *reader = NULL;
    const void *data;
    cr_assert_eq(reader_files_new(&gguf, &files, NULL), NUMOE_OK);
    cr_assert_eq(reader_new(files, RANGE_BYTES, 0, &reader, NULL), NUMOE_OK);
    cr_expect_eq(count_rings(), rings_to_expect());
    for (uint64_t from = 0; from < FILE_BYTES; from += RANGE_BYTES) {
        reader_start(reader, &t, from, MIN(RANGE_BYTES, FILE_BYTES - from));
        cr_assert_eq(reader_wait(reader, &data, NULL), NUMOE_OK);
        reader_drop(reader);
    }
    reader_free(reader);
    reader_files_free(files);
    close(part.fd);
}

/* Some file systems take the flag and read into the page cache all the same. */
static bool direct_reads_are_cached(const char *path)
{
    void *data = NULL;
    const int fd = open(path, O_RDONLY | O_DIRECT);
    cr_assert_geq(fd, 0);
    cr_assert_eq(posix_memalign(&data, 4096, FILE_BYTES), 0);
    cr_assert_eq(read(fd, data, FILE_BYTES), FILE_BYTES);
    close(fd);
    free(data);
    return way_of(path) == READER_CACHED;
}

Test(reader, page_cache_decides)
{
    char path[] = "numoe-reader-XXXXXX"; /* beside the test: /tmp may be memory */
    write_file(path);
    cr_expect_eq(way_of(path), READER_CACHED);
    const int fd = open(path, O_RDONLY);
    cr_assert_eq(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    close(fd);
    const enum reader_way way = way_of(path);
    if (way == READER_CACHED || (way == READER_DIRECT && direct_reads_are_cached(path))) {
        unlink(path);
        cr_skip("this file system keeps its files in memory");
    }
    read_file(path);
    cr_expect(way == READER_DIRECT || way == READER_PLAIN);
    cr_expect_eq(way_of(path), way == READER_DIRECT ? READER_DIRECT : READER_CACHED,
                 "direct reads leave the page cache to others");
    unlink(path);
}

Test(reader, errors_name_file_and_tensor)
{
    struct gguf *gguf = open_model();
    static const enum reader_way ways[] = {READER_CACHED, READER_PLAIN, READER_DIRECT};
    /* Of the shorter one, a direct read gets more bytes than are wanted, but those before it. */
    static const size_t wanted[] = {5000, 150};
    for (size_t i = 0; i < 2 * ARRAY_LEN(ways); i++) {
        struct reader_files *files = NULL;
        struct reader *reader = NULL;
        const void *data = NULL;
        numoe_error err = {.text = ""};
        cr_assert_eq(reader_files_new(gguf, &files, NULL), NUMOE_OK);
        reader_files_force(files, ways[i / 2], true);
        cr_assert_eq(reader_new(files, RANGE_BYTES, 0, &reader, NULL), NUMOE_OK);
        struct gguf_tensor t = gguf->tensor[0];
        t.offset = gguf->part[0].bytes - 100; /* as if the file had been cut */
        t.bytes = wanted[i % 2];
        reader_start(reader, &t, 0, wanted[i % 2]);
        cr_expect_eq(reader_wait(reader, &data, &err), NUMOE_E_FILE_OPEN);
        cr_expect(strstr(err.text, ".gguf") && strstr(err.text, t.name) &&
                      strstr(err.text, "shorter"),
                  "%s", err.text);
        reader_free(reader);
        reader_files_free(files);
    }
    gguf_close(gguf);
}
