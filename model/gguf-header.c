/* One GGUF file's header: from bytes that nobody vouches for to keys, values and tensors.
 *
 * Owns reading and checking; what the keys mean is for others. The bytes are read with pread into
 * memory of our own, a piece at a time as parsing goes on: a file that shrinks meanwhile gives an
 * error and not a signal. The memory is an address range as large as the header may get, so that
 * pointers into it stay valid while it fills. All access goes through take(), which is the bounds
 * check.
 */
#include "model/gguf-header.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

/* The largest headers known (vocabularies of 200 000 tokens with merges) have some 20 MiB. */
#define HEADER_BYTES_MAX  ((size_t)256 << 20)
#define READ_AHEAD_BYTES  ((size_t)256 << 10)
#define NAME_BYTES_MAX    65535u
#define ALIGNMENT_DEFAULT 32u
#define KV_BYTES_MIN      13u /* length of the key, type, one byte */
#define TENSOR_BYTES_MIN  32u /* length of the name, n_dim, one dim, type, offset */

struct reader {
    const struct gguf_part *part;
    unsigned char *base;
    size_t cap;    /* bytes mapped at base: the file's, or HEADER_BYTES_MAX */
    size_t loaded; /* bytes read so far */
    size_t at;
};

/* ---- files */

numoe_status gguf_part_open(const char *path, struct gguf_part *out, numoe_error *err)
{
    /* Non-blocking, so that a FIFO is refused and not waited for. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return status_fail(err, NUMOE_E_FILE_OPEN, "%s: cannot be opened: %s", path,
                           strerror(errno));
    }
    numoe_status status = NUMOE_OK;
    struct stat st;
    struct gguf_part part = {.fd = fd};
    if (fstat(fd, &st) != 0) {
        status = status_fail(err, NUMOE_E_FILE_OPEN, "%s: %s", path, strerror(errno));
    } else if (S_ISDIR(st.st_mode)) {
        status = status_fail(err, NUMOE_E_FILE_OPEN,
                             "%s: is a directory; name the GGUF file inside it", path);
    } else if (!S_ISREG(st.st_mode)) {
        status = status_fail(err, NUMOE_E_FILE_OPEN, "%s: is not a regular file", path);
    } else if (st.st_size == 0) {
        status = status_fail(err, NUMOE_E_FILE_FORMAT, "%s: is empty", path);
    } else {
        size_t len = strlen(path) + 1;
        status = mem_new(&part.path, len, 1, "a file name", err);
        if (status == NUMOE_OK) {
            memcpy(part.path, path, len);
        }
    }
    if (status != NUMOE_OK) {
        close(fd);
        return status;
    }
    part.bytes = (uint64_t)st.st_size;
    *out = part;
    return NUMOE_OK;
}

void gguf_part_close(struct gguf_part *part)
{
    if (part->path) {
        close(part->fd);
        mem_free(part->path);
        part->path = NULL;
    }
}

numoe_status gguf_pread(const struct gguf_part *part, void *buf, size_t n, uint64_t offset,
                        numoe_error *err)
{
    size_t done = 0;
    while (done < n) {
        ssize_t got = pread(part->fd, (char *)buf + done, n - done, (off_t)(offset + done));
        if (got > 0) {
            done += (size_t)got;
        } else if (got == 0) {
            return status_fail(err, NUMOE_E_FILE_OPEN,
                               "offset %" PRIu64 ": the file has become shorter while it was read",
                               offset + done);
        } else if (errno != EINTR) {
            return status_fail(err, NUMOE_E_FILE_OPEN, "offset %" PRIu64 ": cannot be read: %s",
                               offset + done, strerror(errno));
        }
    }
    return NUMOE_OK;
}

/* ---- the cursor; texts begin with an offset, callers put field and file before them */

static bool fits(const struct reader *r, uint64_t n, uint64_t elem_bytes)
{
    return n <= (r->cap - r->at) / elem_bytes;
}

/* n things of elem_bytes, named what, do not fit behind the cursor. */
static numoe_status fail_fit(const struct reader *r, size_t offset, const char *what, uint64_t n,
                             numoe_error *err)
{
    if (r->cap < r->part->bytes) {
        return status_fail(err, NUMOE_E_FILE_FORMAT,
                           "offset %zu: %s (%" PRIu64
                           ") does not fit the %zu MiB that a header may "
                           "have",
                           offset, what, n, HEADER_BYTES_MAX >> 20);
    }
    return status_fail(err, NUMOE_E_FILE_FORMAT,
                       "offset %zu: %s (%" PRIu64 ") does not fit into the file (%" PRIu64
                       " bytes); it is damaged or cut short",
                       offset, what, n, r->part->bytes);
}

/* The next n bytes, valid as long as the header: the one place that moves the cursor. */
static numoe_status take(struct reader *r, size_t n, const char *what, unsigned char **out,
                         numoe_error *err)
{
    if (!fits(r, n, 1)) {
        return fail_fit(r, r->at, what, n, err);
    }
    size_t end = r->at + n;
    if (end > r->loaded) {
        size_t ahead = MIN(r->cap, round_up(end, READ_AHEAD_BYTES));
        FORWARD_IF(gguf_pread(r->part, r->base + r->loaded, ahead - r->loaded, r->loaded, err));
        r->loaded = ahead;
    }
    *out = r->base + r->at;
    r->at = end;
    return NUMOE_OK;
}

static uint64_t little_endian(const unsigned char *p, unsigned n_bytes)
{
    uint64_t x = 0;
    for (unsigned i = 0; i < n_bytes; i++) {
        x |= (uint64_t)p[i] << (8 * i);
    }
    return x;
}

static numoe_status take_u32(struct reader *r, const char *what, uint32_t *out, numoe_error *err)
{
    unsigned char *p;
    FORWARD_IF(take(r, 4, what, &p, err));
    *out = (uint32_t)little_endian(p, 4);
    return NUMOE_OK;
}

static numoe_status take_u64(struct reader *r, const char *what, uint64_t *out, numoe_error *err)
{
    unsigned char *p;
    FORWARD_IF(take(r, 8, what, &p, err));
    *out = little_endian(p, 8);
    return NUMOE_OK;
}

/* A count of things that take at least elem_bytes each. */
static numoe_status take_count(struct reader *r, uint64_t elem_bytes, const char *what,
                               uint64_t *out, numoe_error *err)
{
    size_t offset = r->at;
    FORWARD_IF(take_u64(r, what, out, err));
    return fits(r, *out, elem_bytes) ? NUMOE_OK : fail_fit(r, offset, what, *out, err);
}

static numoe_status take_string(struct reader *r, const char *what, struct gguf_string *out,
                                numoe_error *err)
{
    uint64_t len;
    unsigned char *p;
    FORWARD_IF(take_count(r, 1, what, &len, err));
    FORWARD_IF(take(r, (size_t)len, what, &p, err));
    *out = (struct gguf_string){.data = (const char *)p, .len = (size_t)len};
    return NUMOE_OK;
}

/* Keys and tensor names: short, not empty, usable as C strings. */
static numoe_status take_name(struct reader *r, const char *what, struct gguf_string *out,
                              numoe_error *err)
{
    size_t offset = r->at;
    FORWARD_IF(take_string(r, what, out, err));
    if (out->len == 0 || out->len > NAME_BYTES_MAX || memchr(out->data, 0, out->len)) {
        return status_fail(err, NUMOE_E_FILE_FORMAT,
                           "offset %zu: %s is empty, longer than %u bytes or has a zero byte in it",
                           offset, what, NAME_BYTES_MAX);
    }
    return NUMOE_OK;
}

/* ---- metadata */

static unsigned type_bytes(enum gguf_type type)
{
    static const unsigned char bytes[GGUF_N_TYPE] = {
        [GGUF_U8] = 1,  [GGUF_I8] = 1,  [GGUF_BOOL] = 1, [GGUF_U16] = 2,
        [GGUF_I16] = 2, [GGUF_U32] = 4, [GGUF_I32] = 4,  [GGUF_F32] = 4,
        [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
    };
    return bytes[type];
}

static numoe_status take_type(struct reader *r, enum gguf_type *out, numoe_error *err)
{
    size_t offset = r->at;
    uint32_t type;
    FORWARD_IF(take_u32(r, "the value's type", &type, err));
    if (type >= GGUF_N_TYPE) {
        return status_fail(err, NUMOE_E_FILE_FORMAT,
                           "offset %zu: value type %" PRIu32 " is not known", offset, type);
    }
    *out = (enum gguf_type)type;
    return NUMOE_OK;
}

static numoe_status take_strings(struct reader *r, struct gguf_value *value, numoe_error *err)
{
    struct gguf_string *str;
    FORWARD_IF(mem_new(&str, (size_t)value->n, sizeof *str, "the strings of a GGUF header", err));
    for (uint64_t i = 0; i < value->n; i++) {
        numoe_status status = take_string(r, "the string's length", &str[i], err);
        if (status != NUMOE_OK) {
            mem_free(str);
            return value->is_array ? status_context(err, status, "element %" PRIu64, i) : status;
        }
    }
    value->str = str;
    return NUMOE_OK;
}

static numoe_status take_value(struct reader *r, struct gguf_value *out, numoe_error *err)
{
    struct gguf_value value = {.n = 1};
    FORWARD_IF(take_type(r, &value.type, err));
    value.is_array = value.type == GGUF_ARRAY;
    if (value.is_array) {
        FORWARD_IF(take_type(r, &value.type, err));
        if (value.type == GGUF_ARRAY) {
            return status_fail(err, NUMOE_E_FILE_FORMAT,
                               "offset %zu: an array of arrays; only arrays of numbers, bools and "
                               "strings can be read",
                               r->at - 4);
        }
        /* A string takes at least the 8 bytes of its length. */
        unsigned elem_bytes = value.type == GGUF_STRING ? 8 : type_bytes(value.type);
        FORWARD_IF(take_count(r, elem_bytes, "the array's length", &value.n, err));
    }
    value.offset = r->at;
    if (value.type == GGUF_STRING) {
        FORWARD_IF(take_strings(r, &value, err));
    } else {
        unsigned char *p;
        FORWARD_IF(take(r, (size_t)value.n * type_bytes(value.type), "the value", &p, err));
        value.data = p;
    }
    *out = value;
    return NUMOE_OK;
}

int gguf_string_compare(struct gguf_string a, struct gguf_string b)
{
    int order = memcmp(a.data, b.data, MIN(a.len, b.len));
    return order != 0 ? order : (a.len > b.len) - (a.len < b.len);
}

static int compare_keys(const void *a, const void *b)
{
    return gguf_string_compare((*(struct gguf_kv *const *)a)->key,
                               (*(struct gguf_kv *const *)b)->key);
}

static numoe_status index_keys(struct gguf_header *h, numoe_error *err)
{
    FORWARD_IF(mem_new(&h->kv_by_key, (size_t)h->n_kv, sizeof(struct gguf_kv *),
                       "the keys of a GGUF header", err));
    for (uint64_t i = 0; i < h->n_kv; i++) {
        h->kv_by_key[i] = &h->kv[i];
    }
    qsort(h->kv_by_key, (size_t)h->n_kv, sizeof(struct gguf_kv *), compare_keys);
    for (uint64_t i = 1; i < h->n_kv; i++) {
        const struct gguf_kv *kv = h->kv_by_key[i];
        if (gguf_string_compare(h->kv_by_key[i - 1]->key, kv->key) == 0) {
            return status_fail(err, NUMOE_E_FILE_FORMAT,
                               "offset %" PRIu64 ": key %.*s is there twice", kv->value.offset,
                               (int)kv->key.len, kv->key.data);
        }
    }
    return NUMOE_OK;
}

static numoe_status read_keys(struct reader *r, uint64_t n_kv, struct gguf_header *h,
                              numoe_error *err)
{
    FORWARD_IF(mem_new(&h->kv, (size_t)n_kv, sizeof *h->kv, "the keys of a GGUF header", err));
    for (; h->n_kv < n_kv; h->n_kv++) {
        struct gguf_kv *kv = &h->kv[h->n_kv];
        numoe_status status = take_name(r, "the key", &kv->key, err);
        if (status != NUMOE_OK) {
            return status_context(err, status, "metadata %" PRIu64, h->n_kv);
        }
        status = take_value(r, &kv->value, err);
        if (status != NUMOE_OK) {
            return status_context(err, status, "key %.*s", (int)MIN(kv->key.len, 80), kv->key.data);
        }
    }
    return index_keys(h, err);
}

const struct gguf_value *gguf_header_find(const struct gguf_header *h, const char *key)
{
    struct gguf_kv want = {.key = {.data = key, .len = strlen(key)}};
    struct gguf_kv *p = &want;
    struct gguf_kv **found =
        bsearch(&p, h->kv_by_key, (size_t)h->n_kv, sizeof(struct gguf_kv *), compare_keys);
    return found ? &(*found)->value : NULL;
}

/* ---- tensors */

static numoe_status take_dims(struct reader *r, struct gguf_tensor *t, uint64_t *n_elem,
                              numoe_error *err)
{
    uint32_t n_dim;
    FORWARD_IF(take_u32(r, "the number of dimensions", &n_dim, err));
    if (n_dim < 1 || n_dim > 4) {
        return status_fail(err, NUMOE_E_FILE_FORMAT,
                           "offset %zu: %" PRIu32 " dimensions, expected 1 to 4", r->at - 4, n_dim);
    }
    t->n_dim = n_dim;
    *n_elem = 1;
    for (unsigned i = 0; i < 4; i++) {
        t->dim[i] = 1;
        if (i < n_dim) {
            FORWARD_IF(take_u64(r, "a dimension", &t->dim[i], err));
        }
        if (t->dim[i] == 0 || t->dim[i] > (uint64_t)INT64_MAX / *n_elem) {
            return status_fail(err, NUMOE_E_FILE_FORMAT,
                               "offset %zu: dimension %u is %" PRIu64
                               ", which no tensor of a file can have",
                               r->at - 8, i, t->dim[i]);
        }
        *n_elem *= t->dim[i];
    }
    return NUMOE_OK;
}

static numoe_status take_format(struct reader *r, struct gguf_tensor *t, uint64_t n_elem,
                                numoe_error *err)
{
    FORWARD_IF(take_u32(r, "the tensor's type", &t->format_id, err));
    t->format = format_find(t->format_id);
    if (!t->format) {
        return status_fail(err, NUMOE_E_FILE_FORMAT,
                           "offset %zu: tensor type %" PRIu32
                           " is not known; the file needs a newer program, or is damaged",
                           r->at - 4, t->format_id);
    }
    if (t->dim[0] % t->format->block_elems != 0) {
        return status_fail(err, NUMOE_E_FILE_FORMAT,
                           "offset %zu: a row of %" PRIu64 " elements is no multiple of %u, the "
                           "block of type %s",
                           r->at - 4, t->dim[0], t->format->block_elems, t->format->name);
    }
    uint64_t n_block = n_elem / t->format->block_elems;
    if (n_block > r->part->bytes / t->format->block_bytes) {
        return status_fail(err, NUMOE_E_FILE_FORMAT,
                           "offset %zu: %" PRIu64
                           " elements of type %s are more than the file (%" PRIu64
                           " bytes) can hold; it is damaged or cut short",
                           r->at - 4, n_elem, t->format->name, r->part->bytes);
    }
    t->bytes = n_block * t->format->block_bytes;
    return NUMOE_OK;
}

static numoe_status take_tensor(struct reader *r, struct gguf_tensor *t, numoe_error *err)
{
    uint64_t n_elem = 0;
    FORWARD_IF(take_dims(r, t, &n_elem, err));
    FORWARD_IF(take_format(r, t, n_elem, err));
    return take_u64(r, "the tensor's offset", &t->offset, err);
}

static numoe_status read_tensors(struct reader *r, uint64_t n_tensor, struct gguf_header *h,
                                 numoe_error *err)
{
    FORWARD_IF(mem_new(&h->tensor, (size_t)n_tensor, sizeof *h->tensor,
                       "the tensors of a GGUF header", err));
    while (h->n_tensor < n_tensor) {
        struct gguf_tensor *t = &h->tensor[h->n_tensor];
        struct gguf_string name;
        numoe_status status = take_name(r, "the tensor's name", &name, err);
        if (status != NUMOE_OK) {
            return status_context(err, status, "tensor %" PRIu64, h->n_tensor);
        }
        FORWARD_IF(mem_new(&t->name, name.len + 1, 1, "a tensor's name", err));
        memcpy(t->name, name.data, name.len);
        h->n_tensor++; /* the name is to be freed from here on */
        status = take_tensor(r, t, err);
        if (status != NUMOE_OK) {
            return status_context(err, status, "tensor %.80s", t->name);
        }
    }
    return NUMOE_OK;
}

static numoe_status find_alignment(const struct gguf_header *h, uint64_t *out, numoe_error *err)
{
    const struct gguf_value *value = gguf_header_find(h, "general.alignment");
    uint64_t alignment = ALIGNMENT_DEFAULT;
    if (value && (value->is_array || !gguf_value_u64(value, 0, &alignment) || alignment < 8 ||
                  (alignment & (alignment - 1)) != 0 || alignment > HEADER_BYTES_MAX)) {
        return status_fail(err, NUMOE_E_FILE_FORMAT,
                           "key general.alignment: offset %" PRIu64
                           ": the value must be a power of two and a multiple of 8",
                           value->offset);
    }
    *out = alignment;
    return NUMOE_OK;
}

/* Offsets in the file count from the header's end, rounded up. */
static numoe_status place_tensors(const struct reader *r, struct gguf_header *h, numoe_error *err)
{
    uint64_t alignment = ALIGNMENT_DEFAULT;
    FORWARD_IF(find_alignment(h, &alignment, err));
    uint64_t start = round_up(r->at, (size_t)alignment);
    for (uint64_t i = 0; i < h->n_tensor; i++) {
        struct gguf_tensor *t = &h->tensor[i];
        if (t->offset % alignment != 0) {
            return status_fail(err, NUMOE_E_FILE_FORMAT,
                               "tensor %.80s: its offset %" PRIu64 " is no multiple of %" PRIu64
                               ", the file's alignment",
                               t->name, t->offset, alignment);
        }
        if (start > r->part->bytes || t->offset > r->part->bytes - start ||
            t->bytes > r->part->bytes - start - t->offset) {
            return status_fail(err, NUMOE_E_FILE_FORMAT,
                               "tensor %.80s: its %" PRIu64 " bytes at data offset %" PRIu64
                               " (data begins at %" PRIu64 ") go past the end of the file (%" PRIu64
                               " bytes); it is damaged or cut short",
                               t->name, t->bytes, t->offset, start, r->part->bytes);
        }
        t->offset += start;
    }
    return NUMOE_OK;
}

/* ---- the whole */

static numoe_status read_version(struct reader *r, unsigned *out, numoe_error *err)
{
    unsigned char *magic;
    uint32_t version;
    numoe_status status = take(r, 4, "the magic number", &magic, err);
    if (status != NUMOE_OK || memcmp(magic, "GGUF", 4) != 0) {
        return status_fail(err, NUMOE_E_FILE_FORMAT,
                           "offset 0: is not a GGUF file (it does not begin with \"GGUF\")");
    }
    FORWARD_IF(take_u32(r, "the version", &version, err));
    if ((version & 0xffffu) == 0 && version != 0) {
        return status_fail(err, NUMOE_E_FILE_FORMAT,
                           "offset 4: is a big-endian GGUF file; convert it to little-endian "
                           "(gguf_convert_endian.py)");
    }
    if (version == 1) {
        return status_fail(err, NUMOE_E_FILE_FORMAT,
                           "offset 4: is GGUF version 1, which nothing writes since 2023; convert "
                           "the model again");
    }
    if (version != 2 && version != 3) {
        return status_fail(err, NUMOE_E_FILE_FORMAT,
                           "offset 4: is GGUF version %" PRIu32 "; versions 2 and 3 can be read",
                           version);
    }
    *out = version;
    return NUMOE_OK;
}

static numoe_status read_header(struct reader *r, struct gguf_header *h, numoe_error *err)
{
    uint64_t n_tensor, n_kv;
    FORWARD_IF(read_version(r, &h->version, err));
    FORWARD_IF(take_count(r, TENSOR_BYTES_MIN, "the number of tensors", &n_tensor, err));
    FORWARD_IF(take_count(r, KV_BYTES_MIN, "the number of metadata keys", &n_kv, err));
    FORWARD_IF(read_keys(r, n_kv, h, err));
    FORWARD_IF(read_tensors(r, n_tensor, h, err));
    return place_tensors(r, h, err);
}

numoe_status gguf_header_read(const struct gguf_part *part, struct gguf_header *out,
                              numoe_error *err)
{
    struct reader r = {.part = part, .cap = (size_t)MIN(part->bytes, HEADER_BYTES_MAX)};
    struct gguf_header h = {.mapped_bytes = r.cap};
    h.bytes = mmap(NULL, r.cap, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (h.bytes == MAP_FAILED) {
        return status_fail(err, NUMOE_E_MEMORY, "%s: no %zu bytes of address space for the header",
                           part->path, r.cap);
    }
    r.base = h.bytes;
    numoe_status status = read_header(&r, &h, err);
    if (status != NUMOE_OK) {
        gguf_header_fini(&h);
        return status_context(err, status, "%s", part->path);
    }
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t used = round_up(r.at, page);
    if (used < r.cap) {
        munmap(r.base + used, r.cap - used);
        h.mapped_bytes = used;
    }
    *out = h;
    return NUMOE_OK;
}

void gguf_header_fini(struct gguf_header *h)
{
    for (uint64_t i = 0; h->kv && i < h->n_kv; i++) {
        mem_free((void *)h->kv[i].value.str);
    }
    for (uint64_t i = 0; h->tensor && i < h->n_tensor; i++) {
        mem_free(h->tensor[i].name);
    }
    mem_free(h->kv_by_key);
    mem_free(h->kv);
    mem_free(h->tensor);
    if (h->bytes) {
        munmap(h->bytes, h->mapped_bytes);
    }
    *h = (struct gguf_header){0};
}
