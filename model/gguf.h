/* GGUF files: versions 2 and 3, little-endian, whole or split. Reads and checks the header; tensor
 * data is addressed, not read. Format: the GGUF specification (ggml, docs/gguf.md).
 *
 * Nothing in a file is trusted: every count, length, offset, dimension and product is checked against
 * the file's size before use; an error names file, byte offset and field.
 */
#ifndef NUMOE_MODEL_GGUF_H
#define NUMOE_MODEL_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "kernels/format.h"

enum gguf_type {
    GGUF_U8 = 0, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_F32, GGUF_BOOL, GGUF_STRING,
    GGUF_ARRAY, GGUF_U64, GGUF_I64, GGUF_F64, GGUF_N_TYPE,
};

struct gguf_string { /* not NUL-terminated; points into the file */
    const char *data;
    size_t len;
};

struct gguf_value {
    enum gguf_type type;       /* of the elements, for arrays */
    bool is_array;
    uint64_t n;                /* elements; 1 for scalars */
    uint64_t offset;           /* of the first element, or its length, in the file */
    const unsigned char *data; /* little-endian elements in the file, any alignment (not for strings) */
    const struct gguf_string *str; /* [n] for strings */
};

struct gguf_kv {
    struct gguf_string key;
    struct gguf_value value;
};

struct gguf_tensor {
    char *name;                 /* NUL-terminated */
    const struct format *format; /* never NULL */
    uint32_t format_id;
    unsigned n_dim;             /* 1..4 */
    uint64_t dim[4];            /* dim[0] is the row length; missing ones are 1 */
    unsigned part;              /* file of a split model */
    uint64_t offset;            /* from the start of that file; whole tensor is inside it */
    uint64_t bytes;
};

struct gguf_part {
    char *path;
    int fd;
    uint64_t bytes;
};

struct gguf {
    unsigned version;
    unsigned n_part;
    struct gguf_part *part;
    uint64_t n_kv;
    struct gguf_kv *kv;         /* of the first part */
    uint64_t n_tensor;
    struct gguf_tensor *tensor; /* of all parts, in file order */
    uint64_t tensor_bytes;
    void *priv;                 /* mappings and index */
};

/* Opens path and, for split files (split.count > 1), all other parts next to it. */
numoe_status gguf_open(const char *path, struct gguf **out, numoe_error *err);
void gguf_close(struct gguf *g);

const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name); /* NULL if absent */
const struct gguf_value *gguf_find(const struct gguf *g, const char *key);          /* NULL if absent */

/* Typed look-ups. Any integer type converts where the value fits; floats accept f32 and f64.
 * `required`: an absent key is NUMOE_E_FILE_MODEL naming the key; otherwise *out keeps its value. A
 * value of the wrong type or range is an error either way. */
numoe_status gguf_get_u32(const struct gguf *g, const char *key, bool required, uint32_t *out,
                          numoe_error *err);
numoe_status gguf_get_f32(const struct gguf *g, const char *key, bool required, float *out,
                          numoe_error *err);
numoe_status gguf_get_bool(const struct gguf *g, const char *key, bool required, bool *out,
                           numoe_error *err);
numoe_status gguf_get_string(const struct gguf *g, const char *key, bool required,
                             struct gguf_string *out, numoe_error *err);
/* Element i of an integer or bool (as_u64), float or integer (as_f64) array or scalar. */
bool gguf_value_u64(const struct gguf_value *v, uint64_t i, uint64_t *out); /* false: not an integer >= 0 */
bool gguf_value_f64(const struct gguf_value *v, uint64_t i, double *out);

/* Reads bytes [from, from + n) of a tensor's data into buf (pread, whole or error). Any thread. */
numoe_status gguf_read_tensor(const struct gguf *g, const struct gguf_tensor *t, uint64_t from,
                              size_t n, void *buf, numoe_error *err);

#endif
