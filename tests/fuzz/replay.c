/* Runs a fuzz target over a corpus, once and without libFuzzer, so that every build checks what
 * fuzzing has found before. The argument is a folder; without it, the folder that TEST_CORPUS names
 * in the sources. Prints TAP: an input that crashes has no "ok" line, and the plan does not come
 * true.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/testdata.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int is_visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static int replay_file(const char *dir, const char *name, int number)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "rb");
    uint8_t *data = NULL;
    size_t size = 0;
    FILE *copy = open_memstream((char **)&data, &size);
    if (file == NULL || copy == NULL) {
        printf("not ok %d - %s: %m\n", number, path);
        return 1;
    }
    for (int c = getc(file); c != EOF; c = getc(file)) {
        putc(c, copy);
    }
    fclose(file);
    fclose(copy);
    /* an exact heap block, so that a sanitizer sees the first byte behind it */
    uint8_t *exact = malloc(size > 0 ? size : 1);
    if (exact != NULL) {
        memcpy(exact, data, size);
        LLVMFuzzerTestOneInput(exact, size);
    }
    printf("%s %d - %s\n", exact != NULL ? "ok" : "not ok", number, name);
    fflush(stdout);
    free(exact);
    free(data);
    return exact == NULL;
}

int main(int argc, char **argv)
{
    char *dir = argc > 1 ? strdup(argv[1]) : test_src_path(TEST_CORPUS);
    struct dirent **entries = NULL;
    int n = dir != NULL ? scandir(dir, &entries, is_visible, alphasort) : -1;
    if (n <= 0) {
        fprintf(stderr, "no corpus at %s\n", argc > 1 ? argv[1] : TEST_CORPUS);
        return 1;
    }
    printf("1..%d\n", n);
    int n_bad = 0;
    for (int i = 0; i < n; i++) {
        n_bad += replay_file(dir, entries[i]->d_name, i + 1);
        free(entries[i]);
    }
    free(entries);
    free(dir);
    return n_bad > 0;
}
