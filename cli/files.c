/* Whole files in, whole files out. An output file is written under a temporary name next to its
 * final one and renamed when it is complete, so that a name never stands for half a result. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"

static int read_stream(FILE *f, const char *name, struct text *text)
{
    char *data = NULL;
    size_t n = 0, cap = 0, n_read;

    do {
        if (n + 1 >= cap) {
            cap = cap ? cap * 2 : 65536;
            char *grown = realloc(data, cap);
            if (!grown) {
                free(data);
                return fail(EXIT_LACKING, "%s: no memory for more than %zu bytes", name, n);
            }
            data = grown;
        }
        n_read = fread(data + n, 1, cap - n - 1, f);
        n += n_read;
    } while (n_read > 0);
    if (ferror(f)) {
        int error = errno;
        free(data);
        return fail(EXIT_INPUT, "%s: %s", name, strerror(error));
    }
    data[n] = 0;
    *text = (struct text){.data = data, .bytes = n};
    return EXIT_OK;
}

int read_text(const char *path, struct text *text)
{
    if (strcmp(path, "-") == 0) {
        return read_stream(stdin, "standard input", text);
    }
    FILE *f = fopen(path, "rb");
    if (!f) {
        return fail(EXIT_INPUT, "%s: %s", path, strerror(errno));
    }
    int exit_status = read_stream(f, path, text);
    fclose(f);
    return exit_status;
}

void trim_newline(struct text *text)
{
    if (text->bytes && text->data[text->bytes - 1] == '\n') {
        text->data[--text->bytes] = 0;
    }
    if (text->bytes && text->data[text->bytes - 1] == '\r') {
        text->data[--text->bytes] = 0;
    }
}

/* ------------------------------------------------------------------ output */

static int fail_write(const char *path, int error)
{
    return fail(EXIT_WORK, "%s: %s", path, strerror(error));
}

/* Renaming over a device or a pipe would replace it. */
static bool is_special(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode);
}

/* mkstemp() makes private files; the result has the usual permissions. */
static int open_temp(char *temp_path)
{
    int fd = mkstemp(temp_path);
    mode_t mask = umask(0);

    umask(mask);
    if (fd >= 0 && fchmod(fd, 0666 & ~mask) != 0) {
        int error = errno;
        close(fd);
        unlink(temp_path);
        errno = error;
        return -1;
    }
    return fd;
}

static int open_beside(struct output *o)
{
    size_t n = strlen(o->path) + sizeof ".XXXXXX";
    char *temp_path = malloc(n);

    if (!temp_path) {
        return fail_write(o->path, ENOMEM);
    }
    snprintf(temp_path, n, "%s.XXXXXX", o->path);
    int fd = open_temp(temp_path);
    if (fd < 0) {
        int error = errno;
        free(temp_path);
        return fail(EXIT_INPUT, "%s: cannot be created: %s", o->path, strerror(error));
    }
    o->file = fdopen(fd, "wb");
    o->temp_path = temp_path;
    interrupt_add_temp(temp_path);
    if (!o->file) {
        int error = errno;
        close(fd);
        output_discard(o);
        return fail_write(o->path, error);
    }
    return EXIT_OK;
}

int output_open(struct output *o, const char *path)
{
    struct stat st;

    *o = (struct output){.path = path};
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        return fail(EXIT_INPUT, "%s: is a directory", path);
    }
    if (!is_special(path)) {
        return open_beside(o);
    }
    o->file = fopen(path, "wb");
    if (!o->file) {
        return fail(EXIT_INPUT, "%s: cannot be opened: %s", path, strerror(errno));
    }
    return EXIT_OK;
}

int output_check(const char *path)
{
    struct output o;
    int exit_status = is_special(path) ? EXIT_OK : output_open(&o, path);

    if (exit_status == EXIT_OK && !is_special(path)) {
        output_discard(&o);
    }
    return exit_status;
}

int output_commit(struct output *o)
{
    FILE *file = o->file;
    bool failed = ferror(file);

    o->file = NULL;
    if (fclose(file) != 0 || failed) {
        int error = errno;
        output_discard(o);
        return fail_write(o->path, error);
    }
    if (o->temp_path && rename(o->temp_path, o->path) != 0) {
        int error = errno;
        output_discard(o);
        return fail_write(o->path, error);
    }
    if (o->temp_path) {
        interrupt_remove_temp(o->temp_path);
        free(o->temp_path);
        o->temp_path = NULL;
    }
    return EXIT_OK;
}

void output_discard(struct output *o)
{
    if (o->file) {
        fclose(o->file);
        o->file = NULL;
    }
    if (o->temp_path) {
        unlink(o->temp_path);
        interrupt_remove_temp(o->temp_path);
        free(o->temp_path);
        o->temp_path = NULL;
    }
}
