/* GGUF files made by tests, byte by byte as the specification says and independent of the reader.
 * Remembers where each field of the header stands, so that a test can spoil one field at a time.
 *
 *     struct ggufbuild b;
 *     gb_init(&b, 3);
 *     gb_string(&b, "general.architecture", "deepseek2");
 *     gb_tensor(&b, "token_embd.weight", FORMAT_F32, 4, 8, 1);
 *     gb_finish(&b);
 *     ... b.bytes [b.len], or gb_write(&b, path)
 *     gb_free(&b);
 */
#ifndef NUMOE_TESTS_GGUFBUILD_H
#define NUMOE_TESTS_GGUFBUILD_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/format.h"
#include "model/gguf.h"

#define GB_FIELDS_MAX  4096
#define GB_TENSORS_MAX 2048

struct gb_field {
    size_t offset;
    unsigned bytes;
};

struct ggufbuild {
    unsigned char *bytes;
    size_t len, cap;
    struct gb_field field[GB_FIELDS_MAX];
    size_t n_field;
    uint64_t n_kv, n_tensor, alignment;
    bool sparse; /* all tensors lie over each other; the file is made long enough, not written */
    size_t data_start;
    struct {
        uint64_t offset, bytes;
    } tensor[GB_TENSORS_MAX]; /* offset from data_start */
};

static inline void gb_raw(struct ggufbuild *b, const void *bytes, size_t n)
{
    if (b->len + n > b->cap) {
        b->cap = 2 * (b->len + n) + 4096;
        b->bytes = realloc(b->bytes, b->cap);
    }
    memcpy(b->bytes + b->len, bytes, n);
    b->len += n;
}

static inline void gb_put(struct ggufbuild *b, size_t at, uint64_t x, unsigned n_bytes)
{
    for (unsigned i = 0; i < n_bytes; i++) {
        b->bytes[at + i] = (unsigned char)(x >> (8 * i));
    }
}

/* A little-endian number. */
static inline void gb_number(struct ggufbuild *b, uint64_t x, unsigned n_bytes)
{
    static const unsigned char zero[8];
    if (b->n_field < GB_FIELDS_MAX) {
        b->field[b->n_field++] = (struct gb_field){b->len, n_bytes};
    }
    gb_raw(b, zero, n_bytes);
    gb_put(b, b->len - n_bytes, x, n_bytes);
}

static inline void gb_text(struct ggufbuild *b, const char *text)
{
    gb_number(b, strlen(text), 8);
    gb_raw(b, text, strlen(text));
}

static inline void gb_init(struct ggufbuild *b, unsigned version)
{
    memset(b, 0, sizeof *b);
    b->alignment = 32;
    gb_raw(b, "GGUF", 4);
    gb_number(b, version, 4);
    gb_number(b, 0, 8); /* tensors and keys, set by gb_finish() */
    gb_number(b, 0, 8);
}

/* The part of a key that stands before its value. */
static inline void gb_key(struct ggufbuild *b, const char *key, unsigned type)
{
    b->n_kv++;
    gb_text(b, key);
    gb_number(b, type, 4);
}

static inline void gb_u32(struct ggufbuild *b, const char *key, uint32_t x)
{
    gb_key(b, key, GGUF_U32);
    gb_number(b, x, 4);
}

static inline void gb_u16(struct ggufbuild *b, const char *key, uint16_t x)
{
    gb_key(b, key, GGUF_U16);
    gb_number(b, x, 2);
}

static inline void gb_bool(struct ggufbuild *b, const char *key, bool x)
{
    gb_key(b, key, GGUF_BOOL);
    gb_number(b, x, 1);
}

static inline void gb_f32(struct ggufbuild *b, const char *key, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    gb_key(b, key, GGUF_F32);
    gb_number(b, bits, 4);
}

static inline void gb_string(struct ggufbuild *b, const char *key, const char *x)
{
    gb_key(b, key, GGUF_STRING);
    gb_text(b, x);
}

/* An array's beginning; its n elements follow by gb_number() or gb_text(). */
static inline void gb_array(struct ggufbuild *b, const char *key, unsigned type, uint64_t n)
{
    gb_key(b, key, GGUF_ARRAY);
    gb_number(b, type, 4);
    gb_number(b, n, 8);
}

/* After all keys. Dimensions beyond the first that are 1 are left away. */
static inline void gb_tensor(struct ggufbuild *b, const char *name, uint32_t type, uint64_t k,
                             uint64_t rows, uint64_t mats)
{
    const struct format *format = format_find(type);
    unsigned n_dim = mats != 1 ? 3 : rows != 1 ? 2 : 1;
    uint64_t offset = 0;
    if (b->n_tensor > 0 && !b->sparse) {
        offset = b->tensor[b->n_tensor - 1].offset + b->tensor[b->n_tensor - 1].bytes;
        offset = (offset + b->alignment - 1) / b->alignment * b->alignment;
    }
    gb_text(b, name);
    gb_number(b, n_dim, 4);
    const uint64_t dim[3] = {k, rows, mats};
    for (unsigned i = 0; i < n_dim; i++) {
        gb_number(b, dim[i], 8);
    }
    gb_number(b, type, 4);
    gb_number(b, offset, 8);
    b->tensor[b->n_tensor].offset = offset;
    b->tensor[b->n_tensor].bytes =
        format ? k * rows * mats / format->block_elems * format->block_bytes : 0;
    b->n_tensor++;
}

static inline void gb_pad(struct ggufbuild *b)
{
    while (b->len % b->alignment != 0) {
        gb_raw(b, "", 1);
    }
}

/* Sets the counts and appends the tensors' data: byte i of tensor t is (unsigned char)(31 t + i).
 */
static inline void gb_finish(struct ggufbuild *b)
{
    gb_put(b, 8, b->n_tensor, 8);
    gb_put(b, 16, b->n_kv, 8);
    if (b->n_tensor == 0) {
        return;
    }
    gb_pad(b);
    b->data_start = b->len;
    for (uint64_t it = 0; it < b->n_tensor && !b->sparse; it++) {
        gb_pad(b);
        for (uint64_t i = 0; i < b->tensor[it].bytes; i++) {
            unsigned char byte = (unsigned char)(31 * it + i);
            gb_raw(b, &byte, 1);
        }
    }
}

static inline bool gb_write(const struct ggufbuild *b, const char *path)
{
    FILE *file = fopen(path, "wb");
    bool ok = file && fwrite(b->bytes, 1, b->len, file) == b->len;
    uint64_t end = b->len;
    for (uint64_t it = 0; it < b->n_tensor && b->sparse; it++) {
        uint64_t tensor_end = b->data_start + b->tensor[it].bytes;
        end = tensor_end > end ? tensor_end : end;
    }
    ok = ok && fflush(file) == 0 && ftruncate(fileno(file), (off_t)end) == 0;
    return file && fclose(file) == 0 && ok;
}

static inline void gb_free(struct ggufbuild *b)
{
    free(b->bytes);
}

/* A new folder of the test's own: free(), after it was removed. */
static inline char *gb_mkdir(void)
{
    const char *base = getenv("TMPDIR");
    char *dir = malloc(4096);
    snprintf(dir, 4096, "%s/numoe-test-XXXXXX", base && *base ? base : "/tmp");
    return mkdtemp(dir);
}

#endif
