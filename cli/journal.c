/* Results that survive whatever ends the program. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "cli/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"

#define HEADER_START "{\"numoe\":"     /* of a journal; journal_begin() is given it */
#define PIECE_BYTES  ((size_t)1 << 16) /* of results, to be checked */

uint64_t journal_hash(uint64_t hash, const void *data, size_t bytes)
{
    return hash_bytes(hash ? hash : HASH_BEGIN, data, bytes);
}

static int fail_errno(const char *path)
{
    return fail(EXIT_WORK, "%s: %s", path, strerror(errno));
}

/* ------------------------------------------------------------------ files */

/* Names beside what a link leads to, also where that is not there yet: a job is the same by either
 * name, before and after its first result. */
static int make_names(struct journal *j, const char *path)
{
    char target[PATH_MAX];
    const int error = output_target(path, target);

    if (error) {
        return fail(EXIT_INPUT, "%s: cannot be created: %s", path, strerror(error));
    }
    j->path = realpath(target, NULL);
    if (!j->path) {
        j->path = strdup(target);
    }
    if (!j->path || asprintf(&j->journal_path, "%s.journal", j->path) < 0 ||
        asprintf(&j->live_path, "%s%s", j->path, j->ordered ? ".part" : "") < 0) {
        return fail(EXIT_LACKING, "%s: no memory for its name", path);
    }
    return EXIT_OK;
}

/* Network file systems without locks are used without, which is said. A file that has lost its name
 * while it was being locked was another job's. */
static int lock(int fd, const char *path, bool quiet)
{
    struct stat own, named;

    const bool is_locked = flock(fd, LOCK_EX | LOCK_NB) == 0;
    const int error = errno;
    const bool is_named = fstat(fd, &own) == 0 && stat(path, &named) == 0 &&
                          own.st_ino == named.st_ino && own.st_dev == named.st_dev;
    if (is_locked && is_named) {
        return EXIT_OK;
    }
    if (is_locked || error == EWOULDBLOCK) {
        return fail(EXIT_INPUT, "%s: another job is writing these results", path);
    }
    if (!quiet) {
        warn("%s: cannot be locked (%s): see to it that no other job writes it", path,
             strerror(error));
    }
    return EXIT_OK;
}

/* A new file's name is on the disk only when its folder is. */
static void sync_folder(const char *path)
{
    char *folder = strdup(path);
    char *slash = folder ? strrchr(folder, '/') : NULL;

    if (slash) {
        slash[slash == folder] = 0;
    }
    const int fd = open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd); /* not every file system can; then it does not need it */
        close(fd);
    }
    free(folder);
}

static int open_file(const char *path, int *fd)
{
    struct stat st;

    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666);
    if (*fd < 0) {
        return fail(EXIT_INPUT, "%s: cannot be written: %s", path[0] ? path : "''",
                    strerror(errno));
    }
    if (fstat(*fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        return fail(EXIT_INPUT,
                    "%s: is no regular file: results are written so that the job can be "
                    "resumed",
                    path);
    }
    return EXIT_OK;
}

static int read_all(int fd, const char *path, char **text, size_t *bytes)
{
    struct stat st;
    size_t n = 0;

    if (fstat(fd, &st) != 0) {
        return fail_errno(path);
    }
    *text = malloc((size_t)st.st_size + 1);
    if (!*text) {
        return fail(EXIT_LACKING, "%s: no memory for its %lld bytes", path, (long long)st.st_size);
    }
    while (n < (size_t)st.st_size) {
        const ssize_t got = pread(fd, *text + n, (size_t)st.st_size - n, (off_t)n);
        if (got <= 0) {
            return got < 0 ? fail_errno(path) : fail(EXIT_WORK, "%s: became shorter", path);
        }
        n += (size_t)got;
    }
    (*text)[n] = 0;
    *bytes = n;
    return EXIT_OK;
}

static int write_all(int fd, const char *path, const char *data, size_t bytes, uint64_t offset)
{
    while (bytes > 0) {
        const ssize_t n = pwrite(fd, data, bytes, (off_t)offset);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return fail_errno(path);
        }
        data += n;
        bytes -= (size_t)n;
        offset += (uint64_t)n;
    }
    return EXIT_OK;
}

/* ------------------------------------------------------------------ reading a journal */

static int add_entry(struct journal *j, const struct journal_entry *e)
{
    if (j->n_entry == j->cap) {
        const size_t cap = j->cap ? j->cap * 2 : 256;
        struct journal_entry *grown = realloc(j->entry, cap * sizeof *grown);
        if (!grown) {
            return fail(EXIT_LACKING, "%s: no memory for %zu results", j->journal_path, cap);
        }
        j->entry = grown;
        j->cap = cap;
    }
    j->entry[j->n_entry++] = *e;
    return EXIT_OK;
}

static int fail_damaged(const struct journal *j, size_t i_line)
{
    return fail(EXIT_INPUT, "%s: line %zu is damaged: remove it and the results to begin anew",
                j->journal_path, i_line);
}

static int parse_record(struct journal *j, char *text, size_t i_line)
{
    struct journal_entry e;
    char rest;

    if (strcmp(text, "ordered") == 0) {
        j->is_finished = true;
        return j->ordered ? EXIT_OK : fail_damaged(j, i_line);
    }
    if (j->is_finished ||
        sscanf(text, "%" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNx64 "%c", &e.line, &e.offset,
               &e.bytes, &e.checksum, &rest) != 4 ||
        e.line == 0 || e.offset != j->offset || e.bytes > (uint64_t)INT64_MAX - e.offset) {
        return fail_damaged(j, i_line);
    }
    j->offset += e.bytes;
    return add_entry(j, &e);
}

/* Somebody's file that only happens to have the name is not touched. */
static int fail_foreign(const struct journal *j)
{
    return fail(EXIT_INPUT, "%s: is no journal of numoe batch: give another -o, or remove it",
                j->journal_path);
}

/* A first line that was torn: part of a journal's, or zeros where a machine went down. */
static bool is_torn_header(const char *text, size_t bytes)
{
    const size_t n = sizeof HEADER_START - 1;
    return text[0] == 0 || strncmp(text, HEADER_START, bytes < n ? bytes : n) == 0;
}

/* A last line without its newline was torn, and says nothing. */
static int parse_journal(struct journal *j, char *text, size_t bytes, size_t *n_valid)
{
    size_t i_line = 0;
    char *end;

    *n_valid = 0;
    for (char *p = text; (end = strchr(p, '\n')) != NULL; p = end + 1) {
        *end = 0;
        if (++i_line > 1) {
            const int exit_status = parse_record(j, p, i_line);
            if (exit_status != EXIT_OK) {
                return exit_status;
            }
        } else {
            j->header = json_loads(p, 0, NULL);
            if (!json_is_string(json_object_get(j->header, "numoe"))) {
                json_decref(j->header);
                j->header = NULL; /* there is none: nothing of this job is to be kept */
                return fail_foreign(j);
            }
        }
        *n_valid = (size_t)(end + 1 - text);
    }
    return j->header || is_torn_header(text, bytes) ? EXIT_OK : fail_foreign(j);
}

static int by_line(const void *a, const void *b)
{
    const struct journal_entry *x = a, *y = b;
    return (x->line > y->line) - (x->line < y->line);
}

/* Whether [offset, offset + bytes) of a file has this checksum; results may be larger than memory.
 */
static bool has_checksum(int fd, uint64_t offset, uint64_t bytes, uint64_t checksum)
{
    char piece[PIECE_BYTES];
    uint64_t hash = 0;

    while (bytes > 0) {
        const ssize_t n =
            pread(fd, piece, bytes < sizeof piece ? bytes : sizeof piece, (off_t)offset);
        if (n <= 0) {
            return false;
        }
        hash = journal_hash(hash, piece, (size_t)n);
        offset += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return hash == checksum;
}

/* What the journal names is there as it was written: one after the other in fd, in its order. */
static int check_results(const struct journal *j, int fd, const char *path)
{
    uint64_t offset = 0;

    for (size_t i = 0; i < j->n_entry; i++) {
        const struct journal_entry *e = &j->entry[i];
        if (!has_checksum(fd, offset, e->bytes, e->checksum)) {
            return fail(EXIT_INPUT,
                        "%s: does not hold the result of line %" PRIu64 " that its journal names: "
                        "it was changed; remove both to begin anew",
                        path, e->line);
        }
        offset += e->bytes;
    }
    return EXIT_OK;
}

static int fail_unknown(const char *path)
{
    return fail(EXIT_INPUT,
                "%s: is there already, and no journal of it: give another name, or remove it",
                path);
}

/* Results that go on. */
static int adopt_live(struct journal *j)
{
    struct stat st;

    if (fstat(j->live_fd, &st) != 0) {
        return fail_errno(j->live_path);
    }
    if (!j->header && st.st_size > 0) {
        return fail_unknown(j->live_path);
    }
    return check_results(j, j->live_fd, j->live_path);
}

/* Results that were brought in order. */
static int check_finished(struct journal *j)
{
    const int fd = open(j->path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);

    if (fd < 0) {
        return fail(EXIT_INPUT,
                    "%s: is gone, though %s says that it was finished: remove that to "
                    "begin anew",
                    j->path, j->journal_path);
    }
    qsort(j->entry, j->n_entry, sizeof *j->entry, by_line);
    const int exit_status = check_results(j, fd, j->path);
    close(fd);
    return exit_status;
}

static int adopt(struct journal *j)
{
    char *records = NULL;
    size_t bytes = 0;

    int exit_status = read_all(j->journal_fd, j->journal_path, &records, &bytes);
    if (exit_status == EXIT_OK) {
        exit_status = parse_journal(j, records, bytes, &j->n_valid);
    }
    if (exit_status == EXIT_OK && j->header &&
        json_is_true(json_object_get(j->header, "ordered")) != j->ordered) {
        exit_status = fail(EXIT_INPUT, "%s: was begun %s --ordered: go on as it began", j->path,
                           j->ordered ? "without" : "with");
    }
    if (exit_status == EXIT_OK) {
        exit_status = j->is_finished ? check_finished(j) : adopt_live(j);
    }
    j->n_synced = j->n_entry;
    free(records);
    return exit_status;
}

/* An ordered job makes its results last; until then there may be none. */
static int check_unfinished(const struct journal *j)
{
    struct stat st;

    return j->ordered && !j->header && stat(j->path, &st) == 0 ? fail_unknown(j->path) : EXIT_OK;
}

/* Both are locked: a job in order and one that is not share only the journal, which must not be
 * touched before. */
static int open_locked(struct journal *j)
{
    struct stat st;

    int exit_status = lock(j->live_fd, j->live_path, false);
    if (exit_status != EXIT_OK) {
        return exit_status;
    }
    exit_status = open_file(j->journal_path, &j->journal_fd);
    if (exit_status == EXIT_OK) {
        exit_status = lock(j->journal_fd, j->journal_path, true);
    }
    j->is_mine = exit_status == EXIT_OK;
    if (!j->is_mine && fstat(j->live_fd, &st) == 0 && st.st_size == 0) {
        unlink(j->live_path);
    }
    return exit_status;
}

int journal_open(struct journal *j, const char *path, bool ordered, double sync_seconds)
{
    *j = (struct journal){
        .ordered = ordered, .live_fd = -1, .journal_fd = -1, .sync_seconds = sync_seconds};
    int exit_status = make_names(j, path);
    if (exit_status == EXIT_OK) {
        exit_status = open_file(j->live_path, &j->live_fd);
    }
    if (exit_status == EXIT_OK) {
        exit_status = open_locked(j);
    }
    if (exit_status == EXIT_OK) {
        exit_status = adopt(j);
    }
    if (exit_status == EXIT_OK) {
        exit_status = check_unfinished(j);
    }
    j->next_sync = now_seconds() + sync_seconds;
    return exit_status;
}

int journal_cut(struct journal *j)
{
    if (ftruncate(j->journal_fd, (off_t)j->n_valid) != 0) {
        return fail_errno(j->journal_path);
    }
    if (!j->is_finished && ftruncate(j->live_fd, (off_t)j->offset) != 0) {
        return fail_errno(j->live_path);
    }
    return EXIT_OK;
}

/* ------------------------------------------------------------------ whose journal it is */

static int write_header(struct journal *j, json_t *want)
{
    char *text = json_dumps(want, JSON_COMPACT), *line = NULL;

    if (!text || asprintf(&line, "%s\n", text) < 0) {
        free(text);
        return fail(EXIT_LACKING, "%s: no memory", j->journal_path);
    }
    int exit_status = write_all(j->journal_fd, j->journal_path, line, strlen(line), 0);
    if (exit_status == EXIT_OK && fsync(j->journal_fd) != 0) {
        exit_status = fail_errno(j->journal_path);
    }
    sync_folder(j->journal_path);
    j->header = json_incref(want);
    free(text);
    free(line);
    return exit_status;
}

/* As short as it can be read back: most numbers of a job were floats. */
static void print_real(FILE *to, double x)
{
    char text[32];

    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if ((float)strtod(text, NULL) == (float)x) {
            break;
        }
    }
    fputs(text, to);
}

static void print_value(FILE *to, const json_t *value)
{
    char *text = json_is_real(value) ? NULL : json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);

    if (json_is_real(value)) {
        print_real(to, json_real_value(value));
    } else {
        fputs(text ? text : "none", to);
    }
    free(text);
}

/* "seed 0, now it is 5" after what is there; of a template the journal has only a hash. */
static void print_difference(FILE *to, const char *part, const char *key, const json_t *old,
                             const json_t *new)
{
    fputs(ftello(to) > 0 ? ", " : "", to);
    if (strcmp(key, "chat_template") == 0) {
        fputs("another chat template", to);
        return;
    }
    if (part && strcmp(part, "options") != 0) {
        fprintf(to, "%s ", part);
    }
    fprintf(to, "%s ", key);
    print_value(to, old);
    fputs(", now it is ", to);
    print_value(to, new);
}

/* Of objects, the members that are not the same. */
static void print_differences(FILE *to, const char *part, json_t *old, json_t *new)
{
    const char *key;
    json_t *value;

    if (!json_is_object(old) || !json_is_object(new)) {
        print_difference(to, NULL, part, old, new);
        return;
    }
    json_object_foreach(new, key, value)
    {
        if (!json_equal(json_object_get(old, key), value)) {
            print_difference(to, part, key, json_object_get(old, key), value);
        }
    }
    json_object_foreach(old, key, value)
    {
        if (!json_object_get(new, key)) {
            print_difference(to, part, key, value, NULL);
        }
    }
}

static void warn_difference(const struct journal *j, const char *key, const json_t *old,
                            const json_t *new)
{
    char *a = json_dumps(old, JSON_ENCODE_ANY | JSON_COMPACT);
    char *b = json_dumps(new, JSON_ENCODE_ANY | JSON_COMPACT);

    warn("%s began with %s %s, now it is %s: results may differ in rounding", j->path, key,
         a ? a : "none", b ? b : "none");
    free(a);
    free(b);
}

int journal_check(const struct journal *j, json_t *want, const char *lenient)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    const char *key;
    json_t *value;

    if (!to) {
        return fail(EXIT_LACKING, "%s: no memory", j->journal_path);
    }
    json_object_foreach(want, key, value)
    {
        json_t *old = json_object_get(j->header, key);
        if (!j->header || json_equal(old, value)) {
            continue;
        }
        if (lenient && strcmp(key, lenient) == 0) {
            warn_difference(j, key, old, value);
        } else {
            print_differences(to, key, old, value);
        }
    }
    fclose(to);
    const int exit_status = bytes == 0 ? EXIT_OK
                                       : fail(EXIT_INPUT,
                                              "%s: the job was begun with %s: go on as it began, "
                                              "or give another -o",
                                              j->path, text);
    free(text);
    return exit_status;
}

int journal_begin(struct journal *j, json_t *want, const char *lenient)
{
    return j->header ? journal_check(j, want, lenient) : write_header(j, want);
}

/* ------------------------------------------------------------------ writing */

int journal_put(struct journal *j, uint64_t line, const char *text, size_t bytes)
{
    const struct journal_entry e = {
        .line = line,
        .offset = j->offset,
        .bytes = bytes,
        .checksum = journal_hash(0, text, bytes),
    };

    int exit_status = write_all(j->live_fd, j->live_path, text, bytes, j->offset);
    if (exit_status == EXIT_OK) {
        exit_status = add_entry(j, &e);
    }
    if (exit_status == EXIT_OK) {
        j->offset += bytes;
    }
    return exit_status;
}

static int append_records(struct journal *j)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);

    if (!f) {
        return fail(EXIT_LACKING, "%s: no memory", j->journal_path);
    }
    for (size_t i = j->n_synced; i < j->n_entry; i++) {
        const struct journal_entry *e = &j->entry[i];
        fprintf(f, "%" PRIu64 " %" PRIu64 " %" PRIu64 " %016" PRIx64 "\n", e->line, e->offset,
                e->bytes, e->checksum);
    }
    fclose(f);
    const off_t end = lseek(j->journal_fd, 0, SEEK_END);
    int exit_status = end < 0
                          ? fail_errno(j->journal_path)
                          : write_all(j->journal_fd, j->journal_path, text, bytes, (uint64_t)end);
    if (exit_status == EXIT_OK && fsync(j->journal_fd) != 0) {
        exit_status = fail_errno(j->journal_path);
    }
    free(text);
    return exit_status;
}

int journal_sync(struct journal *j, bool now)
{
    if (j->n_synced == j->n_entry || (!now && now_seconds() < j->next_sync)) {
        return EXIT_OK;
    }
    if (fsync(j->live_fd) != 0) {
        return fail_errno(j->live_path);
    }
    const int exit_status = append_records(j);
    if (exit_status == EXIT_OK) {
        j->n_synced = j->n_entry;
        j->next_sync = now_seconds() + j->sync_seconds;
    }
    return exit_status;
}

/* ------------------------------------------------------------------ in order */

static int copy_entry(struct journal *j, const struct journal_entry *e, FILE *to)
{
    char *text = malloc(e->bytes + 1);
    int exit_status = EXIT_OK;

    if (!text) {
        return fail(EXIT_LACKING, "%s: no memory for a result", j->path);
    }
    if (pread(j->live_fd, text, e->bytes, (off_t)e->offset) != (ssize_t)e->bytes) {
        exit_status = fail(EXIT_WORK, "%s: cannot be read again", j->live_path);
    } else if (fwrite(text, 1, e->bytes, to) != e->bytes) {
        exit_status = fail_errno(j->path);
    }
    free(text);
    return exit_status;
}

static int write_ordered(struct journal *j)
{
    struct output out;
    int exit_status = output_open(&out, j->path);

    qsort(j->entry, j->n_entry, sizeof *j->entry, by_line);
    for (size_t i = 0; exit_status == EXIT_OK && i < j->n_entry; i++) {
        exit_status = copy_entry(j, &j->entry[i], out.file);
    }
    if (exit_status != EXIT_OK) {
        output_discard(&out);
        return exit_status;
    }
    return output_commit(&out);
}

int journal_finish(struct journal *j)
{
    static const char mark[] = "ordered\n";

    int exit_status = journal_sync(j, true);
    if (exit_status != EXIT_OK || !j->ordered || j->is_finished) {
        return exit_status;
    }
    exit_status = write_ordered(j);
    if (exit_status != EXIT_OK) {
        return exit_status;
    }
    sync_folder(j->path);
    const off_t end = lseek(j->journal_fd, 0, SEEK_END);
    exit_status = write_all(j->journal_fd, j->journal_path, mark, sizeof mark - 1, (uint64_t)end);
    if (exit_status == EXIT_OK && fsync(j->journal_fd) != 0) {
        exit_status = fail_errno(j->journal_path);
    }
    j->is_finished = exit_status == EXIT_OK;
    return exit_status;
}

/* A job that never began leaves no empty files behind. */
static void remove_unused(const struct journal *j)
{
    struct stat st;

    if (j->ordered && j->is_finished) {
        unlink(j->live_path);
    }
    if (!j->header && j->journal_fd >= 0 && fstat(j->journal_fd, &st) == 0 && st.st_size == 0) {
        unlink(j->journal_path);
    }
    if (!j->header && fstat(j->live_fd, &st) == 0 && st.st_size == 0) {
        unlink(j->live_path);
    }
}

void journal_close(struct journal *j)
{
    if (j->is_mine) {
        remove_unused(j);
    }
    if (j->live_fd >= 0) {
        close(j->live_fd);
    }
    if (j->journal_fd >= 0) {
        close(j->journal_fd);
    }
    json_decref(j->header);
    free(j->entry);
    free(j->path);
    free(j->live_path);
    free(j->journal_path);
    *j = (struct journal){.live_fd = -1, .journal_fd = -1};
}
