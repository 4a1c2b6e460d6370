/* Text on its way in: whole files, and lines of a conversation. Nothing is longer than what can be
 * tokenized, so that an endless input ends in an error. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

#define TEXT_MAX_BYTES ((size_t)INT32_MAX / 4)

static int read_stream(FILE *f, const char *name, struct text *text)
{
    char *data = NULL;
    size_t n = 0, cap = 0, n_read;

    do {
        if (n > TEXT_MAX_BYTES) {
            free(data);
            return fail(EXIT_INPUT, "%s: longer than the %zu bytes that a text may have", name,
                        TEXT_MAX_BYTES);
        }
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
        return fail(EXIT_INPUT, "%s: %s", path[0] ? path : "''", strerror(errno));
    }
    int exit_status = read_stream(f, path, text);
    fclose(f);
    return exit_status;
}

ssize_t read_line(FILE *f, char **line, size_t *cap)
{
    size_t n = 0;
    int c;

    do {
        if (n + 1 >= *cap) {
            size_t grown_cap = *cap ? *cap * 2 : 256;
            char *grown = realloc(*line, grown_cap);
            if (!grown) {
                errno = ENOMEM;
                return -1;
            }
            *line = grown;
            *cap = grown_cap;
        }
        c = getc(f);
        if (c != EOF) {
            (*line)[n++] = (char)c;
        }
        if (n > TEXT_MAX_BYTES) {
            errno = EMSGSIZE;
            return -1;
        }
    } while (c != EOF && c != '\n');
    (*line)[n] = 0;
    if (ferror(f)) {
        return -1;
    }
    errno = 0;
    return n > 0 ? (ssize_t)n : -1;
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

int refuse_nul(const char *name, const struct text *text)
{
    const char *nul = text->bytes ? memchr(text->data, 0, text->bytes) : NULL;

    return nul ? fail(EXIT_INPUT, "%s: byte %zu is NUL, which this text cannot have", name,
                      (size_t)(nul - text->data))
               : EXIT_OK;
}
