/* Owns the files of the cache folder.
 *
 *     {"numoe_memo": 1, "key": "numoe 0.1.0, avx2 kernels, ...",
 *      "values": {"sleep_ns": [200000, 1796134567], ...}}
 *
 * The name of a file is a hash of its key: home folders are shared by machines, and each has its
 * own. The key inside is compared, so nothing depends on hashes being different.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/memo.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/knob.h"
#include "base/log.h"
#include "base/mem.h"

#define FORMAT_VERSION 1
#define MAX_BYTES      ((size_t)64 << 10) /* MEMO_MAX_VALUE lines have less */
#define DAY_S          86400
#define POLL_NS        20000000 /* between two looks at whether another process has done its work */

struct value {
    char name[MEMO_MAX_NAME];
    double value;
    int64_t when; /* seconds since 1970 */
};

struct memo {
    char *key;
    char path[PATH_MAX]; /* "": nothing can be remembered */
    size_t folder_len;   /* of path */
    struct value value[MEMO_MAX_VALUE];
    unsigned n_value;
    int lock_fd; /* -1: not locked */
};

/* ------------------------------------------------------------------ numbers */

static struct value *find(struct memo *memo, const char *name)
{
    for (unsigned i = 0; i < memo->n_value; i++) {
        if (strcmp(memo->value[i].name, name) == 0) {
            return &memo->value[i];
        }
    }
    return NULL;
}

static void put(struct memo *memo, const char *name, double value, int64_t when)
{
    struct value *v = find(memo, name);
    if (v == NULL && memo->n_value < MEMO_MAX_VALUE && strlen(name) < MEMO_MAX_NAME) {
        v = &memo->value[memo->n_value++];
        strcpy(v->name, name);
    }
    if (v != NULL) {
        v->value = value;
        v->when = when;
    }
}

bool memo_get(const struct memo *memo, const char *name, double min, double max, double *value,
              int64_t *when)
{
    const struct value *v = memo ? find((struct memo *)memo, name) : NULL;
    if (v == NULL || !(v->value >= min && v->value <= max)) {
        return false;
    }
    *value = v->value;
    if (when != NULL) {
        *when = v->when;
    }
    return true;
}

void memo_set(struct memo *memo, const char *name, double value)
{
    if (memo != NULL && isfinite(value)) {
        put(memo, name, value, (int64_t)time(NULL));
    }
}

/* ------------------------------------------------------------------ reading */

/* One that was set in the future says that a clock was changed: nobody knows how old it is. */
static bool is_recent(int64_t when, int64_t now)
{
    return when <= now + DAY_S && when >= now - (int64_t)MEMO_DAYS * DAY_S;
}

static void take_value(struct memo *memo, const char *name, const json_t *pair, int64_t now)
{
    const json_t *value = json_array_get(pair, 0), *when = json_array_get(pair, 1);
    if (json_is_number(value) && json_is_integer(when) &&
        is_recent(json_integer_value(when), now)) {
        put(memo, name, json_number_value(value), json_integer_value(when));
    }
}

bool memo_parse(struct memo *memo, const char *text, size_t bytes, int64_t now)
{
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, NULL);
    const json_t *version = json_object_get(root, "numoe_memo");
    const char *key = json_string_value(json_object_get(root, "key"));
    json_t *values = json_object_get(root, "values");
    const bool good = json_is_integer(version) && json_integer_value(version) == FORMAT_VERSION &&
                      key != NULL && strcmp(key, memo->key) == 0 && json_is_object(values);
    const char *name;
    json_t *pair;
    if (good) {
        json_object_foreach(values, name, pair)
        {
            take_value(memo, name, pair, now);
        }
    }
    json_decref(root);
    return good;
}

/* Only a file of this user: others could make an engine slow. Pipes and devices are not waited for.
 */
static int open_own(const char *path)
{
    struct stat st;
    const int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0 && (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid() ||
                    st.st_size > (off_t)MAX_BYTES)) {
        close(fd);
        errno = EINVAL;
        return -1;
    }
    return fd;
}

static void load(struct memo *memo)
{
    char *text = NULL;
    const int fd = open_own(memo->path);
    if (fd < 0) {
        if (errno != ENOENT && errno != ENOTDIR) {
            log_info("%s is not used: %s", memo->path,
                     errno == EINVAL ? "not a file of this program" : strerror(errno));
        }
        return;
    }
    if (mem_new(&text, MAX_BYTES, 1, "memo", NULL) == NUMOE_OK) {
        const ssize_t n = read(fd, text, MAX_BYTES);
        if (n < 0 || !memo_parse(memo, text, (size_t)n, (int64_t)time(NULL))) {
            log_info("%s is damaged or of another version: it is written anew", memo->path);
        }
    }
    mem_free(text);
    close(fd);
}

/* ------------------------------------------------------------------ writing */

static json_t *to_json(const struct memo *memo)
{
    json_t *values = json_object();
    for (unsigned i = 0; i < memo->n_value; i++) {
        const struct value *v = &memo->value[i];
        json_object_set_new(values, v->name, json_pack("[f, I]", v->value, (json_int_t)v->when));
    }
    return json_pack("{s:i, s:s, s:o}", "numoe_memo", FORMAT_VERSION, "key", memo->key, "values",
                     values);
}

/* The folder and the one it is in; what is above is not this program's to make. */
static void make_folder(const struct memo *memo)
{
    char path[PATH_MAX];
    memcpy(path, memo->path, memo->folder_len);
    path[memo->folder_len] = '\0';
    char *last = strrchr(path, '/');
    *last = '\0';
    mkdir(path, 0700);
    *last = '/';
    mkdir(path, 0700);
}

bool memo_can_be_saved(const struct memo *memo)
{
    char path[PATH_MAX + 8];
    if (memo_path(memo) == NULL) {
        return false;
    }
    /* make_folder() makes two; the one above them has to be there */
    size_t len = memo->folder_len;
    for (unsigned n = 0; n < 3; n++) {
        snprintf(path, sizeof path, "%.*s/.", (int)len, memo->path);
        if (access(path, W_OK | X_OK) == 0) {
            return true;
        }
        if (errno != ENOENT) {
            return false;
        }
        while (len > 0 && memo->path[len - 1] != '/') {
            len--;
        }
        len -= len > 0;
    }
    return false;
}

/* 0 or an errno. */
static int write_file(const struct memo *memo, const char *path, int fd)
{
    json_t *root = to_json(memo);
    FILE *f = fdopen(fd, "w");
    if (f == NULL || root == NULL) {
        f != NULL ? fclose(f) : close(fd);
        json_decref(root);
        return ENOMEM;
    }
    errno = EIO;
    bool good = json_dumpf(root, f, JSON_INDENT(1)) == 0 && fputc('\n', f) != EOF;
    good = fclose(f) == 0 && good;
    json_decref(root);
    return good && rename(path, memo->path) == 0 ? 0 : errno;
}

void memo_save(struct memo *memo)
{
    char path[PATH_MAX + 8];
    if (memo == NULL || memo->path[0] == '\0') {
        return;
    }
    make_folder(memo);
    snprintf(path, sizeof path, "%s.XXXXXX", memo->path);
    const int fd = mkostemp(path, O_CLOEXEC);
    const int error = fd < 0 ? errno : write_file(memo, path, fd);
    if (fd >= 0 && error != 0) {
        unlink(path);
    }
    if (error != 0) {
        log_info("%s cannot be written (%s): what was measured is measured again the next time",
                 memo->path, strerror(error));
    }
}

/* ------------------------------------------------------------------ one at a time */

static void lock_path(const struct memo *memo, char *path, size_t cap)
{
    snprintf(path, cap, "%s.lock", memo->path);
}

/* False where another process has it. Without a folder that can be written, or locks, there is
 * nothing to have. */
static bool try_lock(struct memo *memo)
{
    char path[PATH_MAX + 8];
    struct stat ours, now;
    lock_path(memo, path, sizeof path);
    const int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (fd < 0) {
        return true;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        const bool is_taken = errno == EWOULDBLOCK;
        close(fd);
        return !is_taken;
    }
    /* whoever had it before has removed it */
    if (fstat(fd, &ours) != 0 || stat(path, &now) != 0 || ours.st_ino != now.st_ino) {
        close(fd);
        return false;
    }
    memo->lock_fd = fd;
    return true;
}

bool memo_lock(struct memo *memo, unsigned wait_ms)
{
    if (memo == NULL || memo->path[0] == '\0') {
        return true;
    }
    const uint64_t end_ns = clock_ns() + wait_ms * UINT64_C(1000000);
    make_folder(memo);
    bool has_it = try_lock(memo);
    while (!has_it && clock_ns() < end_ns) {
        nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
        has_it = try_lock(memo);
    }
    load(memo);
    return has_it;
}

void memo_unlock(struct memo *memo)
{
    char path[PATH_MAX + 8];
    if (memo != NULL && memo->lock_fd >= 0) {
        lock_path(memo, path, sizeof path);
        unlink(path);
        close(memo->lock_fd);
        memo->lock_fd = -1;
    }
}

/* ------------------------------------------------------------------ life */

/* As the XDG base directory specification says: a path that is not absolute counts as none. */
static void find_path(struct memo *memo)
{
    const char *cache = knob_str("XDG_CACHE_HOME"), *home = knob_str("HOME"), *below = "";
    if (cache == NULL || cache[0] != '/') {
        cache = home;
        below = "/.cache";
    }
    if (cache == NULL || cache[0] != '/') {
        return;
    }
    const int n = snprintf(memo->path, PATH_MAX, "%s%s/numoe", cache, below);
    const int all = n < 0 || n >= PATH_MAX
                        ? PATH_MAX
                        : n + snprintf(memo->path + n, (size_t)(PATH_MAX - n), "/%016llx.json",
                                       (unsigned long long)hash_bytes(
                                           HASH_BEGIN, memo->key, strlen(memo->key)));
    memo->folder_len = (size_t)n;
    if (all >= PATH_MAX) {
        memo->path[0] = '\0';
    }
}

struct memo *memo_open(const char *key)
{
    struct memo *memo = NULL;
    const size_t bytes = strlen(key) + 1;
    if (mem_new(&memo, 1, sizeof *memo, "memo", NULL) != NUMOE_OK) {
        return NULL;
    }
    memo->lock_fd = -1;
    if (mem_new(&memo->key, bytes, 1, "memo", NULL) != NUMOE_OK) {
        mem_free(memo);
        return NULL;
    }
    memcpy(memo->key, key, bytes);
    find_path(memo);
    if (memo->path[0] != '\0') {
        load(memo);
    }
    return memo;
}

void memo_close(struct memo *memo)
{
    if (memo != NULL) {
        memo_unlock(memo);
        mem_free(memo->key);
        mem_free(memo);
    }
}

const char *memo_path(const struct memo *memo)
{
    return memo != NULL && memo->path[0] != '\0' ? memo->path : NULL;
}
