/* Owns how shared memory is made: reserved huge pages of 2 MiB, which a GPU's driver pins fastest;
 * otherwise ordinary ones. All of it is taken at once, since a page that is missing later would be
 * the end of a process.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "gpu/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <numaif.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "numa/pages.h"

#define HUGE_BYTES (UINT64_C(2) << 20)
#define MAX_NODE   1024u

void segment_init(struct segment *s)
{
    *s = (struct segment){.fd = -1};
}

void segment_fini(struct segment *s)
{
    if (s->data != NULL) {
        munmap(s->data, s->bytes);
    }
    if (s->fd >= 0) {
        close(s->fd);
    }
    segment_init(s);
}

/* Preferred, not bound: memory elsewhere is slower, none at all is worse. */
static void prefer_node(const struct segment *s, uint32_t os_node)
{
    unsigned long mask[MAX_NODE / (8 * sizeof(unsigned long))] = {0};
    if (os_node >= MAX_NODE) {
        return;
    }
    mask[os_node / (8 * sizeof *mask)] |= 1ul << os_node % (8 * sizeof *mask);
    if (mbind(s->data, s->bytes, MPOL_PREFERRED, mask, MAX_NODE, 0) != 0) {
        log_debug("exchange: memory near node %u is not to be had: %s", os_node, strerror(errno));
    }
}

/* 0, or an errno. */
static int take(struct segment *s, uint64_t bytes, unsigned flags, uint32_t os_node)
{
    s->bytes = round_up(bytes, HUGE_BYTES);
    s->fd = memfd_create("numoe exchange", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
    if (s->fd < 0 || ftruncate(s->fd, (off_t)s->bytes) != 0) {
        return errno;
    }
    void *data = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
    if (data == MAP_FAILED) {
        return errno;
    }
    s->data = data;
    prefer_node(s, os_node);
    if (flags == 0) {
        madvise(data, s->bytes, MADV_HUGEPAGE);
    }
    return fallocate(s->fd, 0, 0, (off_t)s->bytes) == 0 ? 0 : errno;
}

numoe_status segment_new(uint64_t bytes, uint32_t os_node, struct segment *s, numoe_error *err)
{
    struct segment new;
    enum pages_policy policy;
    int failure = ENOMEM;
    segment_init(&new);
    FORWARD_IF(pages_policy(&policy, err));
    if (policy == PAGES_POLICY_AUTO || policy == PAGES_POLICY_HUGE) {
        failure = take(&new, bytes, MFD_HUGETLB | MFD_HUGE_2MB, os_node);
    }
    if (failure != 0) {
        segment_fini(&new);
        failure = take(&new, bytes, 0, os_node);
    }
    if (failure != 0) {
        segment_fini(&new);
        return status_fail(err, NUMOE_E_MEMORY,
                           "exchange with a GPU program: %.1f MB of shared memory: %s: a smaller "
                           "chunk needs less",
                           (double)bytes * 1e-6, strerror(failure));
    }
    fcntl(new.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    *s = new;
    return NUMOE_OK;
}

numoe_status segment_open(int fd, uint64_t bytes, struct segment *s, numoe_error *err)
{
    struct stat st;
    segment_init(s);
    s->fd = fd;
    s->bytes = bytes;
    if (fd < 0 || fstat(fd, &st) != 0 || (uint64_t)st.st_size < bytes || bytes == 0) {
        return status_fail(err, NUMOE_E_FILE_FORMAT, "exchange: no memory of %llu bytes came",
                           (unsigned long long)bytes);
    }
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) {
        return status_fail(err, NUMOE_E_MEMORY, "exchange: %s", strerror(errno));
    }
    s->data = data;
    return NUMOE_OK;
}
