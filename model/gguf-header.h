/* The header of one GGUF file, as read: what gguf.c puts together to a model of one or more parts.
 * Internal to model/gguf*.c.
 */
#ifndef NUMOE_MODEL_GGUF_HEADER_H
#define NUMOE_MODEL_GGUF_HEADER_H

#include "model/gguf.h"

struct gguf_header {
    unsigned version;
    uint64_t n_kv;
    struct gguf_kv *kv;         /* point into `bytes` */
    struct gguf_kv **kv_by_key; /* [n_kv] */
    uint64_t n_tensor;
    struct gguf_tensor *tensor; /* names are their own; part is 0 */
    void *bytes;                /* the header as it stands in the file, mapped */
    size_t mapped_bytes;
};

/* Opens path and checks that it is a file that can be read and is not empty. */
numoe_status gguf_part_open(const char *path, struct gguf_part *out, numoe_error *err);
void gguf_part_close(struct gguf_part *part);

/* Reads and checks the header; every tensor lies inside the file. */
numoe_status gguf_header_read(const struct gguf_part *part, struct gguf_header *out,
                              numoe_error *err);
void gguf_header_fini(struct gguf_header *h);

const struct gguf_value *gguf_header_find(const struct gguf_header *h, const char *key);

/* Whole or error; `what` says what was wanted. */
numoe_status gguf_pread(const struct gguf_part *part, void *buf, size_t n, uint64_t offset,
                        numoe_error *err);

/* -1, 0, 1 as memcmp; a shorter string that is the other's beginning is first. */
int gguf_string_compare(struct gguf_string a, struct gguf_string b);

#endif
