/* Arrays in NumPy's .npy files (format 1.0): float32 or int32, little-endian, C order. */
#ifndef NUMOE_TESTS_NPY_H
#define NUMOE_TESTS_NPY_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct npy {
    unsigned n_dim;
    size_t dim[4];
    size_t n;   /* elements */
    void *data; /* float or int32_t; free() */
};

/* False where the file is not such an array; dtype is "<f4" or "<i4". */
static inline int npy_read(const char *path, const char *dtype, struct npy *out)
{
    unsigned char head[10];
    char text[512] = "";
    struct npy a = {.n = 1};
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        return 0;
    }
    size_t len = 0;
    int ok = fread(head, 1, sizeof head, f) == sizeof head && !memcmp(head, "\x93NUMPY\x01", 7);
    len = ok ? head[8] + 256u * head[9] : 0;
    ok = ok && len < sizeof text && fread(text, 1, len, f) == len && strstr(text, dtype) != NULL &&
         strstr(text, "'fortran_order': False") != NULL;
    const char *shape = ok ? strstr(text, "'shape': (") : NULL;
    ok = ok && shape != NULL;
    if (ok) {
        char *at = (char *)shape + strlen("'shape': (");
        while (*at != ')' && a.n_dim < 4) {
            a.dim[a.n_dim] = strtoull(at, &at, 10);
            a.n *= a.dim[a.n_dim++];
            at += strspn(at, ", ");
        }
        a.data = malloc(a.n * 4 + 1);
        ok = a.data != NULL && fread(a.data, 4, a.n, f) == a.n;
    }
    fclose(f);
    if (!ok) {
        free(a.data);
        return 0;
    }
    *out = a;
    return 1;
}

#endif
