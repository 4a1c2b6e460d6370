/* Owns the three ways out of numa/: binding, pinning, reading small files. Knows no topology.
 * Binding goes through the mbind system call only: libnuma's allocators put memory on another node
 * without a word when the wanted one is outside the cpuset.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "numa/world.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <numaif.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/mem.h"

/* ------------------------------------------------------------------ native */

#define MAX_OS_NODE 1024u /* MAX_NUMNODES of any kernel there is */
/* Kernels from 5.14 on know it, headers perhaps later; one that does not says EINVAL. */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MAP_HUGE_SHIFT
#define MAP_HUGE_SHIFT 26
#endif
#define POPULATE_MAX_THREAD 8u
#define POPULATE_MIN_BYTES  ((size_t)1 << 30)
#define BITS_PER_LONG       (8u * sizeof(unsigned long))

static int native_bind(struct world *w, void *addr, size_t bytes, unsigned os_node)
{
    (void)w;
    unsigned long mask[MAX_OS_NODE / (8 * sizeof(unsigned long))] = {0};
    if (os_node >= MAX_OS_NODE) {
        return EINVAL;
    }
    mask[os_node / BITS_PER_LONG] |= 1ul << os_node % BITS_PER_LONG;
    /* The kernel looks at one bit less than maxnode says. */
    return mbind(addr, bytes, MPOL_BIND, mask, MAX_OS_NODE + 1, 0) == 0 ? 0 : errno;
}

static int native_map_huge(struct world *w, size_t bytes, size_t page_bytes, void **addr)
{
    (void)w;
    const int log2_bytes = __builtin_ctzll(page_bytes);
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | log2_bytes << MAP_HUGE_SHIFT, -1, 0);
    if (p == MAP_FAILED) {
        return errno;
    }
    *addr = p;
    return 0;
}

struct populate {
    pthread_t thread;
    char *from;
    size_t bytes;
    int error;
};

static void *populate_part(void *arg)
{
    struct populate *part = arg;
    if (madvise(part->from, part->bytes, MADV_POPULATE_WRITE) != 0) {
        part->error = errno;
    }
    return NULL;
}

/* The kernel clears the pages, a few gigabytes a second and thread: a terabyte needs several. Where
 * they run does not matter, the mapping is bound. */
static int native_populate(struct world *w, void *addr, size_t bytes)
{
    (void)w;
    struct populate part[POPULATE_MAX_THREAD] = {{.error = 0}};
    const size_t step =
        MAX(POPULATE_MIN_BYTES, round_up(bytes / POPULATE_MAX_THREAD + 1, POPULATE_MIN_BYTES));
    unsigned n = 0, n_thread = 0;
    int error = 0;
    for (size_t at = 0; at < bytes; at += step) {
        part[n++] = (struct populate){.from = (char *)addr + at, .bytes = MIN(step, bytes - at)};
    }
    while (n_thread + 1 < n &&
           pthread_create(&part[n_thread].thread, NULL, populate_part, &part[n_thread]) == 0) {
        n_thread++;
    }
    for (unsigned i = n_thread; i < n; i++) {
        populate_part(&part[i]);
    }
    for (unsigned i = 0; i < n_thread; i++) {
        pthread_join(part[i].thread, NULL);
    }
    for (unsigned i = 0; i < n && error == 0; i++) {
        error = part[i].error;
    }
    return error;
}

static void native_unmap(struct world *w, void *addr, size_t bytes)
{
    (void)w;
    munmap(addr, bytes);
}

/* NULL without memory. */
static cpu_set_t *new_cpu_set(const unsigned *pu, unsigned n_pu, size_t *set_bytes)
{
    unsigned max_pu = 0;
    for (unsigned i = 0; i < n_pu; i++) {
        max_pu = MAX(max_pu, pu[i]);
    }
    cpu_set_t *set = CPU_ALLOC(max_pu + 1);
    *set_bytes = CPU_ALLOC_SIZE(max_pu + 1);
    if (set != NULL) {
        CPU_ZERO_S(*set_bytes, set);
        for (unsigned i = 0; i < n_pu; i++) {
            CPU_SET_S(pu[i], *set_bytes, set);
        }
    }
    return set;
}

static int native_pin(struct world *w, pthread_t thread, const unsigned *pu, unsigned n_pu)
{
    (void)w;
    size_t set_bytes;
    cpu_set_t *set = new_cpu_set(pu, n_pu, &set_bytes);
    if (set == NULL) {
        return ENOMEM;
    }
    int rc = pthread_setaffinity_np(thread, set_bytes, set);
    CPU_FREE(set);
    return rc;
}

static int native_is_pinned(struct world *w, pthread_t thread, const unsigned *pu, unsigned n_pu,
                            bool *yes)
{
    (void)w;
    cpu_set_t now[8]; /* 8192 CPUs, as many as any kernel has */
    int rc = pthread_getaffinity_np(thread, sizeof(now), now);
    unsigned n = 0;
    for (unsigned i = 0; rc == 0 && i < n_pu; i++) {
        n += CPU_ISSET_S(pu[i], sizeof(now), now) != 0;
    }
    *yes = rc == 0 && n == n_pu && (unsigned)CPU_COUNT_S(sizeof(now), now) == n_pu;
    return rc;
}

static int native_where(struct world *w, void **page, unsigned n_page, int *node)
{
    (void)w;
    return move_pages(0, n_page, page, NULL, node, 0) == 0 ? 0 : errno;
}

static int native_uring(struct world *w)
{
    (void)w;
    struct io_uring_params params = {0};
    int fd = (int)syscall(__NR_io_uring_setup, 1, &params);
    if (fd < 0) {
        return errno;
    }
    close(fd);
    return 0;
}

/* ------------------------------------------------------------------ recording */

static int recording_bind(struct world *w, void *addr, size_t bytes, unsigned os_node)
{
    int rc = ENOMEM;
    pthread_mutex_lock(&w->lock);
    if (mem_grow(&w->record, w->n_record + 1, sizeof(*w->record), "record of bindings", NULL) ==
        NUMOE_OK) {
        w->record[w->n_record++] = (struct world_bind){addr, bytes, os_node};
        rc = 0;
    }
    pthread_mutex_unlock(&w->lock);
    return rc;
}

/* Whole pages of plain memory stand in; nothing is taken from the pools of the real machine. */
static int recording_map_huge(struct world *w, size_t bytes, size_t page_bytes, void **addr)
{
    (void)w;
    const size_t room = bytes + page_bytes;
    char *p = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED) {
        return errno;
    }
    const size_t head = round_up((uintptr_t)p, page_bytes) - (uintptr_t)p;
    if (head > 0) {
        munmap(p, head);
    }
    munmap(p + head + bytes, room - head - bytes);
    *addr = p + head;
    return 0;
}

static int recording_populate(struct world *w, void *addr, size_t bytes)
{
    (void)w, (void)addr, (void)bytes;
    return 0;
}

static void recording_unmap(struct world *w, void *addr, size_t bytes)
{
    size_t n = 0;
    pthread_mutex_lock(&w->lock);
    for (size_t i = 0; i < w->n_record; i++) {
        if (w->record[i].addr != addr) {
            w->record[n++] = w->record[i];
        }
    }
    w->n_record = n;
    pthread_mutex_unlock(&w->lock);
    munmap(addr, bytes);
}

static int recording_where(struct world *w, void **page, unsigned n_page, int *node)
{
    pthread_mutex_lock(&w->lock);
    for (unsigned i = 0; i < n_page; i++) {
        node[i] = -ENOENT;
        for (size_t k = 0; k < w->n_record && node[i] < 0; k++) {
            uintptr_t from = (uintptr_t)w->record[k].addr, at = (uintptr_t)page[i];
            if (at >= from && at - from < w->record[k].bytes) {
                node[i] = (int)w->record[k].os_node;
            }
        }
    }
    pthread_mutex_unlock(&w->lock);
    return 0;
}

static int recording_pin(struct world *w, pthread_t thread, const unsigned *pu, unsigned n_pu)
{
    (void)w, (void)thread, (void)pu, (void)n_pu;
    return 0;
}

static int recording_is_pinned(struct world *w, pthread_t thread, const unsigned *pu, unsigned n_pu,
                               bool *yes)
{
    (void)w, (void)thread, (void)pu, (void)n_pu;
    *yes = true;
    return 0;
}

static int recording_uring(struct world *w)
{
    (void)w;
    return 0;
}

size_t world_binds(const struct world *w, const struct world_bind **bind)
{
    *bind = w->record;
    return w->n_record;
}

/* ------------------------------------------------------------------ life */

static numoe_status world_new(const char *root, struct world **out, numoe_error *err)
{
    struct world *w;
    root = root ? root : "";
    FORWARD_IF(mem_new(&w, 1, sizeof(*w), "access to the machine", err));
    numoe_status st = mem_new(&w->root, strlen(root) + 1, 1, "access to the machine", err);
    if (st != NUMOE_OK) {
        mem_free(w);
        return st;
    }
    strcpy(w->root, root);
    pthread_mutex_init(&w->lock, NULL);
    *out = w;
    return NUMOE_OK;
}

numoe_status world_new_native(const char *root, struct world **out, numoe_error *err)
{
    FORWARD_IF(world_new(root, out, err));
    (*out)->bind = native_bind;
    (*out)->where = native_where;
    (*out)->map_huge = native_map_huge;
    (*out)->populate = native_populate;
    (*out)->unmap = native_unmap;
    (*out)->pin = native_pin;
    (*out)->is_pinned = native_is_pinned;
    (*out)->uring = native_uring;
    return NUMOE_OK;
}

numoe_status world_new_recording(const char *root, struct world **out, numoe_error *err)
{
    FORWARD_IF(world_new(root, out, err));
    (*out)->bind = recording_bind;
    (*out)->where = recording_where;
    (*out)->map_huge = recording_map_huge;
    (*out)->populate = recording_populate;
    (*out)->unmap = recording_unmap;
    (*out)->pin = recording_pin;
    (*out)->is_pinned = recording_is_pinned;
    (*out)->uring = recording_uring;
    return NUMOE_OK;
}

void world_free(struct world *w)
{
    if (w == NULL) {
        return;
    }
    pthread_mutex_destroy(&w->lock);
    mem_free(w->record);
    mem_free(w->root);
    mem_free(w);
}

/* ------------------------------------------------------------------ small files */

char *world_read(const char *root, const char *path)
{
    struct strbuf name = {0}, text = {0};
    int fd = -1;
    if (strbuf_printf(&name, NULL, "%s%s", root, path) == NUMOE_OK) {
        fd = open(name.data, O_RDONLY | O_CLOEXEC);
    }
    strbuf_fini(&name);
    if (fd < 0) {
        return NULL;
    }
    char chunk[4096];
    ssize_t n;
    bool ok = strbuf_append(&text, "", 0, NULL) == NUMOE_OK;
    while (ok && (n = read(fd, chunk, sizeof(chunk))) != 0) {
        if (n < 0 && errno == EINTR) {
            continue;
        }
        ok = n > 0 && strbuf_append(&text, chunk, (size_t)n, NULL) == NUMOE_OK;
    }
    close(fd);
    if (!ok) {
        strbuf_fini(&text);
        return NULL;
    }
    while (text.len > 0 && text.data[text.len - 1] == '\n') {
        text.data[--text.len] = '\0';
    }
    return text.data;
}

static bool parse_u64(const char *text, uint64_t *value)
{
    char *end;
    while (*text == ' ' || *text == '\t') {
        text++;
    }
    if (*text < '0' || *text > '9') {
        return false;
    }
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    *value = errno ? UINT64_MAX : v;
    return true;
}

bool world_read_u64(const char *root, const char *path, uint64_t *value)
{
    char *text = world_read(root, path);
    bool ok = text != NULL && parse_u64(text, value);
    mem_free(text);
    return ok;
}

bool world_find_u64(const char *text, const char *key, uint64_t *value)
{
    size_t n_key = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, n_key) == 0) {
            return parse_u64(line + n_key, value);
        }
    }
    return false;
}
