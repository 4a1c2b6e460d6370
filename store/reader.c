/* Owns file descriptors, alignment and the queue of reads; knows nothing of weights. Every failure
 * of a fast way ends in a plain pread of the same range, whose word is final.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "store/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#ifdef NUMOE_HAVE_URING
#include <liburing.h>
#endif

#include "base/log.h"
#include "base/mem.h"

#define ALIGN_BYTES                                                                                \
    ((size_t)4096) /* of offsets, lengths and memory; no block device wants more                   \
                    */
#define N_SAMPLE     64u
#define CACHED_SHARE 0.5 /* in the page cache: reading the rest the same way costs less */

struct reader_files {
    const struct gguf *gguf;
    unsigned n_part;
    bool may_queue;
    struct reader_file {
        enum reader_way way;
        int direct_fd; /* -1: none */
    } file[];
};

/* ------------------------------------------------------------------ page cache */

/* cachestat(2), Linux 6.5: exact, and allowed to whoever may write the file or owns it. */
static bool ask_cachestat(const struct gguf_part *part, double *share)
{
    const struct {
        uint64_t offset, bytes;
    } range = {0, part->bytes};
    uint64_t stat[5] = {0};  /* cached, dirty, written back, evicted, recently evicted: pages */
    const long number = 451; /* the same on all architectures but alpha */
    if (syscall(number, part->fd, &range, stat, 0) != 0) {
        return false;
    }
    *share = (double)stat[0] * (double)sysconf(_SC_PAGESIZE) / (double)MAX(part->bytes, 1u);
    return true;
}

/* Reads of single bytes that may not wait. */
static double sample_cache(const struct gguf_part *part)
{
    unsigned n_cached = 0;
    for (unsigned i = 0; i < N_SAMPLE; i++) {
        char byte;
        const struct iovec to = {&byte, 1};
        const off_t at = (off_t)(part->bytes / N_SAMPLE * i + part->bytes / (2 * N_SAMPLE));
        const ssize_t n = preadv2(part->fd, &to, 1, at, RWF_NOWAIT);
        if (n < 0 && errno != EAGAIN) {
            return 1; /* a file system without the question has no better way either */
        }
        n_cached += n == 1;
    }
    return (double)n_cached / N_SAMPLE;
}

static bool is_cached(const struct gguf_part *part)
{
    double share;
    if (!ask_cachestat(part, &share)) {
        share = sample_cache(part);
    }
    return share >= CACHED_SHARE;
}

/* ------------------------------------------------------------------ queue */

struct slot {
    const struct gguf_tensor *t;
    uint64_t from; /* wanted of the tensor */
    size_t bytes;
    uint64_t file_from; /* read of the file: what is wanted, or aligned around it */
    size_t file_bytes;
    size_t lead_bytes; /* read before what is wanted */
    char *data;        /* file_bytes */
    bool queued, arrived;
    long result; /* as of read(2); negative: nothing */
};

struct reader {
    const struct reader_files *files;
    char *memory;
    size_t memory_bytes;
    char *extra;
    unsigned first, n; /* oldest slot, slots in use */
    struct slot slot[READER_DEPTH];
#ifdef NUMOE_HAVE_URING
    struct io_uring ring;
#endif
    bool has_ring;
};

#ifdef NUMOE_HAVE_URING

static bool ring_available(void)
{
    struct io_uring ring;
    const int error = -io_uring_queue_init(READER_DEPTH, &ring, 0);
    if (error != 0) {
        log_info("io_uring cannot be used (%s), weights are read with pread", strerror(error));
        return false;
    }
    io_uring_queue_exit(&ring);
    return true;
}

static void ring_open(struct reader *reader)
{
    reader->has_ring =
        reader->files->may_queue && io_uring_queue_init(READER_DEPTH, &reader->ring, 0) == 0;
}

static void ring_close(struct reader *reader)
{
    if (reader->has_ring) {
        io_uring_queue_exit(&reader->ring);
    }
}

static bool ring_submit(struct reader *reader, int fd, struct slot *slot)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&reader->ring);
    if (sqe == NULL) {
        return false;
    }
    io_uring_prep_read(sqe, fd, slot->data, (unsigned)slot->file_bytes, slot->file_from);
    io_uring_sqe_set_data(sqe, slot);
    return io_uring_submit(&reader->ring) == 1;
}

static void ring_wait(struct reader *reader, const struct slot *slot)
{
    while (!slot->arrived) {
        struct io_uring_cqe *cqe = NULL;
        if (io_uring_wait_cqe(&reader->ring, &cqe) != 0) {
            continue; /* a signal */
        }
        struct slot *which = io_uring_cqe_get_data(cqe);
        which->result = cqe->res;
        which->arrived = true;
        io_uring_cqe_seen(&reader->ring, cqe);
    }
}

#else

static bool ring_available(void)
{
    return false;
}

static void ring_open(struct reader *reader)
{
    reader->has_ring = false;
}

static void ring_close(struct reader *reader)
{
    (void)reader;
}

static bool ring_submit(struct reader *reader, int fd, struct slot *slot)
{
    (void)reader, (void)fd, (void)slot;
    return false;
}

static void ring_wait(struct reader *reader, const struct slot *slot)
{
    (void)reader, (void)slot;
}

#endif

/* ------------------------------------------------------------------ files */

/* The file that is open, not what may lie under its name by now; tried, since some file systems
 * accept the flag and refuse the reads. */
static int open_direct(const struct gguf_part *part, int *error)
{
    char path[48];
    void *page = MAP_FAILED;
    snprintf(path, sizeof path, "/proc/self/fd/%d", part->fd);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (fd >= 0) {
        page = mmap(NULL, ALIGN_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    if (page == MAP_FAILED || pread(fd, page, ALIGN_BYTES, ALIGN_BYTES) < 0) {
        *error = errno;
        if (fd >= 0) {
            close(fd);
        }
        fd = -1;
    }
    if (page != MAP_FAILED) {
        munmap(page, ALIGN_BYTES);
    }
    return fd;
}

static void choose_way(const struct gguf_part *part, struct reader_file *file)
{
    int error = 0;
    file->direct_fd = -1;
    if (is_cached(part)) {
        file->way = READER_CACHED;
        return;
    }
    file->direct_fd = open_direct(part, &error);
    file->way = file->direct_fd >= 0 ? READER_DIRECT : READER_PLAIN;
    if (file->direct_fd < 0) {
        log_info("%s: direct reads are refused (%s), reading through the page cache", part->path,
                 strerror(error));
    }
}

numoe_status reader_files_new(const struct gguf *gguf, struct reader_files **out, numoe_error *err)
{
    struct reader_files *files = NULL;
    FORWARD_IF(
        mem_new(&files, 1, sizeof *files + gguf->n_part * sizeof files->file[0], "files", err));
    files->gguf = gguf;
    files->n_part = gguf->n_part;
    bool waits = false;
    for (unsigned i = 0; i < files->n_part; i++) {
        choose_way(&gguf->part[i], &files->file[i]);
        waits |= files->file[i].way != READER_CACHED;
    }
    files->may_queue = waits && ring_available();
    *out = files;
    return NUMOE_OK;
}

void reader_files_free(struct reader_files *files)
{
    for (unsigned i = 0; files != NULL && i < files->n_part; i++) {
        if (files->file[i].direct_fd >= 0) {
            close(files->file[i].direct_fd);
        }
    }
    mem_free(files);
}

enum reader_way reader_files_way(const struct reader_files *files, unsigned part)
{
    return files->file[part].way;
}

void reader_files_force(struct reader_files *files, enum reader_way way, bool may_queue)
{
    int error;
    files->may_queue = may_queue && ring_available();
    for (unsigned i = 0; i < files->n_part; i++) {
        struct reader_file *file = &files->file[i];
        if (way == READER_DIRECT && file->direct_fd < 0) {
            file->direct_fd = open_direct(&files->gguf->part[i], &error);
        }
        file->way = way == READER_DIRECT && file->direct_fd < 0 ? READER_PLAIN : way;
    }
}

/* ------------------------------------------------------------------ reader */

static size_t slot_bytes_of(size_t range_bytes)
{
    return round_up(range_bytes, ALIGN_BYTES) + 2 * ALIGN_BYTES;
}

size_t reader_memory_bytes(size_t range_bytes, size_t extra_bytes)
{
    return READER_DEPTH * slot_bytes_of(range_bytes) + extra_bytes;
}

numoe_status reader_new(const struct reader_files *files, size_t range_bytes, size_t extra_bytes,
                        struct reader **out, numoe_error *err)
{
    const size_t slot_bytes = slot_bytes_of(range_bytes);
    struct reader *reader = NULL;
    FORWARD_IF(mem_new(&reader, 1, sizeof *reader, "load buffers", err));
    reader->files = files;
    reader->memory_bytes = reader_memory_bytes(range_bytes, extra_bytes);
    reader->memory = mmap(NULL, reader->memory_bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (reader->memory == MAP_FAILED) {
        numoe_status status = status_fail(err, NUMOE_E_MEMORY, "load buffers: %zu bytes: %s",
                                          reader->memory_bytes, strerror(errno));
        mem_free(reader);
        return status;
    }
    for (unsigned i = 0; i < READER_DEPTH; i++) {
        reader->slot[i].data = reader->memory + i * slot_bytes;
    }
    reader->extra = reader->memory + READER_DEPTH * slot_bytes;
    ring_open(reader);
    *out = reader;
    return NUMOE_OK;
}

void reader_free(struct reader *reader)
{
    if (reader == NULL) {
        return;
    }
    for (unsigned i = 0; i < READER_DEPTH; i++) {
        if (reader->slot[i].queued) { /* the kernel would still write there */
            ring_wait(reader, &reader->slot[i]);
        }
    }
    ring_close(reader);
    munmap(reader->memory, reader->memory_bytes);
    mem_free(reader);
}

void *reader_extra(const struct reader *reader)
{
    return reader->extra;
}

bool reader_has_room(const struct reader *reader)
{
    return reader->n < READER_DEPTH;
}

/* Data in the page cache is copied when it is needed: then it is in the processor's cache too. */
void reader_start(struct reader *reader, const struct gguf_tensor *t, uint64_t from, size_t bytes)
{
    const struct reader_file *file = &reader->files->file[t->part];
    struct slot *slot = &reader->slot[(reader->first + reader->n++) % READER_DEPTH];
    const uint64_t offset = t->offset + from;
    const bool direct = file->way == READER_DIRECT;
    const size_t align = direct ? ALIGN_BYTES : 1;
    slot->t = t;
    slot->from = from;
    slot->bytes = bytes;
    slot->file_from = offset / align * align;
    slot->lead_bytes = (size_t)(offset - slot->file_from);
    slot->file_bytes = round_up(slot->lead_bytes + bytes, align);
    slot->result = -1;
    slot->arrived = false;
    slot->queued =
        reader->has_ring && file->way != READER_CACHED &&
        ring_submit(reader, direct ? file->direct_fd : reader->files->gguf->part[t->part].fd, slot);
}

numoe_status reader_wait(struct reader *reader, const void **data, numoe_error *err)
{
    struct slot *slot = &reader->slot[reader->first];
    const struct reader_file *file = &reader->files->file[slot->t->part];
    if (slot->queued) {
        ring_wait(reader, slot);
        slot->queued = false;
    } else if (file->way == READER_DIRECT) {
        slot->result = pread(file->direct_fd, slot->data, slot->file_bytes, (off_t)slot->file_from);
    }
    /* At the end of a file less than whole blocks is enough. */
    if (slot->result < (long)(slot->lead_bytes + slot->bytes)) { /* or not tried, or refused */
        slot->lead_bytes = 0;
        FORWARD_IF(gguf_read_tensor(reader->files->gguf, slot->t, slot->from, slot->bytes,
                                    slot->data, err));
    }
    *data = slot->data + slot->lead_bytes;
    return NUMOE_OK;
}

void reader_drop(struct reader *reader)
{
    reader->first = (reader->first + 1) % READER_DEPTH;
    reader->n--;
}
