/* Files that the program writes. A regular file is written under a temporary name in its folder and
 * renamed when it is complete, so that a name never stands for half a result. What is no regular
 * file (a device, a FIFO, an open descriptor such as /dev/stdout) is written directly. A symbolic
 * link stays: what it leads to is written.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "cli/cli.h"

#define MAX_TEMP  4  /* files being written at one time */
#define MAX_LINKS 40 /* as in the kernel */

/* ------------------------------------------------------------------ unfinished files */

/* Sync: written by the one thread that runs subcommands, with signals blocked where a file is made;
 * read by the handler. */
static const char *_Atomic temp_path[MAX_TEMP];

void output_remove_unfinished(void)
{
    for (int i = 0; i < MAX_TEMP; i++) {
        const char *path = atomic_load(&temp_path[i]);
        if (path) {
            unlink(path);
        }
    }
}

static void replace_temp(const char *old, const char *new)
{
    for (int i = 0; i < MAX_TEMP; i++) {
        if (atomic_load(&temp_path[i]) == old) {
            atomic_store(&temp_path[i], new);
            return;
        }
    }
}

/* mkstemp() with the permissions that the result is to have; between there being a file and its
 * being known comes no signal. */
static int make_temp(char *path, mode_t mode)
{
    sigset_t all, old;

    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    int fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0 && fchmod(fd, mode) != 0) {
        int error = errno;
        close(fd);
        unlink(path);
        errno = error;
        fd = -1;
    }
    if (fd >= 0) {
        replace_temp(NULL, path);
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return fd;
}

/* ------------------------------------------------------------------ where a path leads */

/* "dir/" of "dir/name", "" of "name". */
static size_t folder_length(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) + 1 : 0;
}

/* The folder of path as something that can be opened. */
static void folder_of(const char *path, char *folder)
{
    size_t n = folder_length(path);

    memcpy(folder, path, n);
    strcpy(folder + n, ".");
}

/* The links of /proc lead to what is open, which need not have a name. */
static bool is_descriptor(const char *link)
{
    char folder[PATH_MAX + 2];
    struct statfs fs;

    folder_of(link, folder);
    return statfs(folder, &fs) == 0 && fs.f_type == PROC_SUPER_MAGIC;
}

/* Follows symbolic links up to a file, whether it is there or not, or to the link of a descriptor.
 * 0 or an errno. */
static int follow(const char *path, char *target, bool *descriptor)
{
    struct stat st;

    *descriptor = false;
    if (strlen(path) >= PATH_MAX) {
        return ENAMETOOLONG;
    }
    strcpy(target, path);
    for (int i = 0; lstat(target, &st) == 0 && S_ISLNK(st.st_mode); i++) {
        char link[PATH_MAX];
        if (is_descriptor(target)) {
            *descriptor = true;
            return 0;
        }
        ssize_t n = readlink(target, link, sizeof link);
        size_t n_kept = n > 0 && link[0] == '/' ? 0 : folder_length(target);
        if (n < 0) {
            return errno;
        }
        if (i == MAX_LINKS) {
            return ELOOP;
        }
        if (n_kept + (size_t)n >= PATH_MAX) {
            return ENAMETOOLONG;
        }
        memcpy(target + n_kept, link, (size_t)n);
        target[n_kept + (size_t)n] = 0;
    }
    return 0;
}

int output_target(const char *path, char *target)
{
    bool descriptor;
    const int error = follow(path, target, &descriptor);

    if (!error && descriptor) {
        strcpy(target, path); /* what is open need not have a name */
    }
    return error;
}

/* ------------------------------------------------------------------ open */

static int fail_create(const char *path, int error)
{
    return fail(EXIT_INPUT, "%s: cannot be created: %s", path[0] ? path : "''", strerror(error));
}

/* An own descriptor is taken as it is, with its place in the file: opening it anew would begin at
 * the start of what a shell has opened for >> already. */
static int open_descriptor(const char *link)
{
    char folder[PATH_MAX + 2], real[PATH_MAX], own[64];
    const char *name = link + folder_length(link);
    char *end;

    folder_of(link, folder);
    snprintf(own, sizeof own, "/proc/%ld/fd", (long)getpid());
    long fd = strtol(name, &end, 10);
    if (name[0] && !*end && fd >= 0 && fd <= INT_MAX && realpath(folder, real) &&
        strcmp(real, own) == 0) {
        int mode = fcntl((int)fd, F_GETFL);
        if (mode >= 0 && (mode & O_ACCMODE) == O_RDONLY) {
            errno = EBADF;
            return -1;
        }
        return fcntl((int)fd, F_DUPFD_CLOEXEC, 3);
    }
    return open(link, O_WRONLY | O_APPEND | O_NOCTTY | O_CLOEXEC);
}

static int open_directly(struct output *o, int fd)
{
    if (fd < 0) {
        return fail(EXIT_INPUT, "%s: cannot be opened: %s", o->path, strerror(errno));
    }
    o->file = fdopen(fd, "wb");
    if (!o->file) {
        int error = errno;
        close(fd);
        return fail(EXIT_WORK, "%s: %s", o->path, strerror(error));
    }
    return EXIT_OK;
}

/* The temporary name is short: it fits where the file's own name does. */
static int open_beside(struct output *o, const char *target, mode_t mode)
{
    size_t n = folder_length(target);
    char *temp = malloc(n + sizeof ".numoe-XXXXXX");

    o->target = strdup(target);
    o->temp_path = temp;
    if (!temp || !o->target) {
        output_discard(o);
        return fail(EXIT_LACKING, "%s: no memory for its name", o->path);
    }
    memcpy(temp, target, n);
    strcpy(temp + n, ".numoe-XXXXXX");
    int fd = make_temp(temp, mode);
    if (fd < 0) {
        int error = errno;
        temp[0] = 0;
        output_discard(o);
        return fail_create(o->path, error);
    }
    int exit_status = open_directly(o, fd);
    if (exit_status != EXIT_OK) {
        output_discard(o);
    }
    return exit_status;
}

static mode_t usual_mode(void)
{
    mode_t mask = umask(0);

    umask(mask);
    return 0666 & ~mask;
}

/* A name that cannot be a file's is found now, not when the file is complete. */
static int check_name(const char *target)
{
    const char *name = target + folder_length(target);
    char folder[PATH_MAX + 2];

    if (!name[0]) {
        return target[0] ? EISDIR : ENOENT;
    }
    folder_of(target, folder);
    long max = pathconf(folder, _PC_NAME_MAX);
    return max > 0 && strlen(name) > (size_t)max ? ENAMETOOLONG : 0;
}

int output_open(struct output *o, const char *path)
{
    char target[PATH_MAX];
    bool descriptor;
    struct stat st;

    *o = (struct output){.path = path};
    int error = follow(path, target, &descriptor);
    if (error) {
        return fail_create(path, error);
    }
    if (descriptor) {
        return open_directly(o, open_descriptor(target));
    }
    if (stat(target, &st) != 0) {
        error = errno == ENOENT ? check_name(target) : errno;
        return error ? fail_create(path, error) : open_beside(o, target, usual_mode());
    }
    if (S_ISDIR(st.st_mode)) {
        return fail(EXIT_INPUT, "%s: is a directory", path);
    }
    if (!S_ISREG(st.st_mode)) {
        return open_directly(o, open(target, O_WRONLY | O_NOCTTY | O_CLOEXEC));
    }
    if (access(target, W_OK) != 0) {
        return fail_create(path, errno);
    }
    return open_beside(o, target, st.st_mode & 0777);
}

/* ------------------------------------------------------------------ close */

/* What was written is on the disk before the name stands for it. */
static int close_file(struct output *o)
{
    FILE *file = o->file;
    bool failed = ferror(file) != 0;
    int error = 0;

    if (fflush(file) != 0 || (o->temp_path && fsync(fileno(file)) != 0)) {
        error = errno;
    }
    o->file = NULL;
    if (fclose(file) != 0 && !error) {
        error = errno;
    }
    return failed && !error ? EIO : error;
}

static void forget_temp(struct output *o)
{
    replace_temp(o->temp_path, NULL);
    free(o->temp_path);
    free(o->target);
    o->temp_path = o->target = NULL;
}

int output_commit(struct output *o)
{
    int error = close_file(o);

    if (!error && o->temp_path && rename(o->temp_path, o->target) != 0) {
        error = errno;
    }
    if (error) {
        output_discard(o);
        return fail(EXIT_WORK, "%s: %s", o->path, strerror(error));
    }
    forget_temp(o);
    return EXIT_OK;
}

void output_discard(struct output *o)
{
    if (o->file) {
        fclose(o->file);
        o->file = NULL;
    }
    if (o->temp_path && o->temp_path[0]) {
        unlink(o->temp_path);
    }
    if (o->temp_path || o->target) {
        forget_temp(o);
    }
}

/* ------------------------------------------------------------------ one name, two meanings */

/* The device and file number of a regular file that is there. */
static bool identify(const struct file_use *use, struct stat *st)
{
    bool found = !use->is_output && strcmp(use->path, "-") == 0 ? fstat(STDIN_FILENO, st) == 0
                                                                : stat(use->path, st) == 0;
    return found && (S_ISREG(st->st_mode) || S_ISFIFO(st->st_mode));
}

/* Of two files that are not there yet. */
static bool is_same_name(const char *a, const char *b)
{
    char target[2][PATH_MAX], folder[PATH_MAX + 2];
    struct stat st[2];
    bool descriptor;

    for (int i = 0; i < 2; i++) {
        if (follow(i ? b : a, target[i], &descriptor) != 0 || descriptor ||
            lstat(target[i], &st[i]) == 0) {
            return false;
        }
        folder_of(target[i], folder);
        if (stat(folder, &st[i]) != 0) {
            return false;
        }
    }
    return st[0].st_dev == st[1].st_dev && st[0].st_ino == st[1].st_ino &&
           strcmp(target[0] + folder_length(target[0]), target[1] + folder_length(target[1])) == 0;
}

static bool is_same_file(const struct file_use *a, const struct file_use *b)
{
    struct stat st[2];

    if (identify(a, &st[0]) && identify(b, &st[1])) {
        return st[0].st_dev == st[1].st_dev && st[0].st_ino == st[1].st_ino;
    }
    return a->is_output && b->is_output && is_same_name(a->path, b->path);
}

int output_check_distinct(const struct file_use *use, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; use[i].path && use[i].is_output && j < n; j++) {
            if (j != i && use[j].path && is_same_file(&use[i], &use[j])) {
                return fail(EXIT_INPUT, "%s: %s is the file of %s too: it would be overwritten",
                            use[i].option, use[i].path, use[j].option);
            }
        }
    }
    return EXIT_OK;
}
