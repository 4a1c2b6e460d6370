/* Fuzz target: any bytes as a GGUF file, opened, bound to a model and reported. Whatever they are,
 * the outcome is a model or one line of text.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Without the file's name in front nothing is said. */
static void check_error(const numoe_error *err, const char *path)
{
    if (strncmp(err->text, path, strlen(path)) != 0 || strpbrk(err->text, "\n\r\x1b")) {
        fprintf(stderr, "not a clear line: %s\n", err->text);
        abort();
    }
}

/* Every byte of every tensor that the header promises is there. */
static void read_tensors(const struct gguf *g)
{
    for (uint64_t i = 0; i < g->n_tensor; i++) {
        unsigned char byte;
        const struct gguf_tensor *t = &g->tensor[i];
        if (gguf_read_tensor(g, t, t->bytes - 1, 1, &byte, NULL) != NUMOE_OK) {
            abort();
        }
    }
}

static void try_file(const char *path, FILE *null)
{
    struct gguf *g;
    struct model *m;
    numoe_error err = {0};
    if (gguf_open(path, &g, &err) != NUMOE_OK) {
        check_error(&err, path);
        return;
    }
    read_tensors(g);
    gguf_close(g);
    if (model_open(path, &m, &err) == NUMOE_OK) {
        model_close(m);
    } else {
        check_error(&err, path);
    }
    if (numoe_inspect(path, null, true, &err) != NUMOE_OK) {
        check_error(&err, path);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    FILE *null = fopen("/dev/null", "w");
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (!null || fd < 0 || write(fd, data, size) != (ssize_t)size) {
        abort();
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    try_file(path, null);
    close(fd);
    fclose(null);
    return 0;
}
