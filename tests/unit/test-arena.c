/* numa/arena, world: what is mapped, bound, refused and given back, of which pages, and what does
 * not fit. Real
 * binding is checked with the kernel's own word (get_mempolicy, move_pages); what cannot be had
 * here, a refused binding or an eight-node machine, is a world of the test's.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <criterion/criterion.h>

#include <errno.h>
#include <numaif.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "numa/arena.h"
#include "numa/audit.h"
#include "numa/room.h"
#include "tests/unit/madeup.h"

#define MIB ((size_t)1 << 20)

static struct topo *load(const char *spec)
{
    struct topo *t = NULL;
    numoe_error err = {.text = ""};
    cr_assert_eq(topo_load(spec, &t, &err), NUMOE_OK, "%s", err.text);
    return t;
}

static struct node_arena *new_arena(const struct topo *t, unsigned in)
{
    struct node_arena *a = NULL;
    cr_assert_eq(node_arena_new(t, in, "test", &a, NULL), NUMOE_OK);
    return a;
}

static char *take(struct node_arena *a, size_t bytes)
{
    char *p = NULL;
    numoe_error err = {.text = ""};
    cr_assert_eq(node_arena_alloc(a, bytes, &p, &err), NUMOE_OK, "%s", err.text);
    cr_assert_eq((uintptr_t)p % 64, 0);
    return p;
}

static size_t resident_bytes(void)
{
    size_t pages = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    cr_assert_eq(fscanf(f, "%zu %zu", &pages, &resident), 2);
    fclose(f);
    return resident * (size_t)sysconf(_SC_PAGESIZE);
}

/* ------------------------------------------------------------------ memory */

Test(arena, pieces_are_zeroed_aligned_and_apart)
{
    struct topo *t = load(NULL);
    struct node_arena *a = new_arena(t, 0);
    char *p[200];
    size_t bytes[200], sum = 0;
    for (unsigned i = 0; i < 200; i++) {
        bytes[i] = i * i * 37 % 100000;
        p[i] = take(a, bytes[i]);
        sum += round_up(MAX(bytes[i], 1u), 64);
        for (size_t k = 0; k < bytes[i]; k++) {
            cr_assert_eq(p[i][k], 0);
        }
        memset(p[i], (int)i + 1, bytes[i]);
    }
    for (unsigned i = 0; i < 200; i++) {
        for (size_t k = 0; k < bytes[i]; k++) {
            cr_assert_eq((unsigned char)p[i][k], (i + 1) % 256);
        }
    }
    cr_expect_eq(node_arena_bytes(a), sum);
    cr_expect_eq(t->ledger->taken_bytes[0], sum);
    node_arena_free(a);
    cr_expect_eq(t->ledger->taken_bytes[0], 0);
    topo_free(t);
}

Test(arena, small_arenas_stay_small_and_untouched_memory_is_free)
{
    struct topo *t = load(NULL);
    size_t before = resident_bytes();
    struct node_arena *small[16];
    for (unsigned i = 0; i < 16; i++) {
        small[i] = new_arena(t, 0);
        memset(take(small[i], 100000), 1, 100000);
    }
    cr_expect_lt(resident_bytes() - before, 16 * 100000 + 2 * MIB);
    struct node_arena *big = new_arena(t, 0);
    before = resident_bytes();
    char *p = take(big, 512 * MIB);
    cr_expect_lt(resident_bytes() - before, MIB);
    p[300 * MIB] = 1;
    cr_expect_leq(resident_bytes() - before, 3 * MIB);
    for (unsigned i = 0; i < 16; i++) {
        node_arena_free(small[i]);
    }
    before = resident_bytes();
    node_arena_free(big);
    cr_expect_lt(resident_bytes(), before);
    topo_free(t);
}

Test(arena, regions_are_whole_huge_pages)
{
    struct topo *t = load(NULL);
    struct node_arena *a = new_arena(t, 0);
    size_t used, sum = 0;
    for (unsigned i = 0; i < 40; i++) {
        sum += round_up(MIB + i * 1000, 64);
        take(a, MIB + i * 1000);
    }
    unsigned n = 0;
    for (const void *r; (r = node_arena_region(a, n, &used)) != NULL; n++) {
        cr_expect_eq((uintptr_t)r % (2 * MIB), 0);
        sum -= used;
    }
    cr_expect_eq(sum, 0);
    cr_expect_leq(n, 7, "%u regions for 40 MiB", n); /* growth by doubling */
    node_arena_free(a);
    topo_free(t);
}

/* ------------------------------------------------------------------ binding */

Test(arena, pages_are_bound_to_the_node)
{
    struct topo *t = load(NULL);
    for (unsigned in = 0; in < t->n_node; in++) {
        struct node_arena *a = new_arena(t, in);
        char *p = take(a, 3 * MIB);
        unsigned long mask[16] = {0};
        int mode = -1, where = -1;
        if (node_arena_get_mode(a) == NODE_ARENA_FIRST_TOUCH ||
            get_mempolicy(&mode, mask, 1024, p, MPOL_F_ADDR) != 0) {
            cr_skip("binding is not allowed here");
        }
        unsigned os_node = t->node[in].os_index;
        cr_expect_eq(mode, MPOL_BIND);
        cr_expect_eq(mask[os_node / 64], 1ul << os_node % 64);
        memset(p, 1, 3 * MIB);
        for (size_t at = 0; at < 3 * MIB; at += MIB / 2) {
            void *page = p + at;
            if (move_pages(0, 1, &page, NULL, &where, 0) == 0) {
                cr_expect_eq(where, (int)os_node, "byte %zu is on node %d", at, where);
            }
        }
        node_arena_free(a);
    }
    topo_free(t);
}

Test(arena, another_machine_is_recorded)
{
    struct topo *t = load("pack:8 [numa(memory=1GiB)] core:2 pu:1");
    struct node_arena *a = new_arena(t, 5), *b = new_arena(t, 2);
    char *pa = take(a, 3 * MIB), *pb = take(b, 100);
    const struct world_bind *bind;
    cr_assert_eq(world_binds(t->world, &bind), 2);
    cr_expect_eq(bind[0].addr, pa);
    cr_expect_eq(bind[0].bytes, 4 * MIB);
    cr_expect_eq(bind[0].os_node, 5);
    cr_expect_eq(bind[1].addr, pb);
    cr_expect_eq(bind[1].os_node, 2);
    cr_expect_eq(node_arena_get_mode(a), NODE_ARENA_RECORDED);
    int mode = -1; /* and nothing was really bound */
    if (get_mempolicy(&mode, NULL, 0, pa, MPOL_F_ADDR) == 0) {
        cr_expect_eq(mode, MPOL_DEFAULT);
    }
    node_arena_free(a);
    cr_expect_eq(world_binds(t->world, &bind), 1); /* what is gone is not remembered */
    cr_expect_eq(bind[0].addr, pb);
    node_arena_free(b);
    topo_free(t);
}

static char logged[4096];
static unsigned n_logged;
static void keep_log(void *arg, numoe_log_level level, const char *line)
{
    (void)arg, (void)level;
    snprintf(logged, sizeof(logged), "%s", line);
    n_logged++;
}

static int refuse_errno;
static int refuse_bind(struct world *w, void *addr, size_t bytes, unsigned os_node)
{
    (void)w, (void)addr, (void)bytes, (void)os_node;
    return refuse_errno;
}

Test(arena, refused_binding_goes_on_by_first_touch_and_says_so_once)
{
    static const struct {
        int error;
        const char *says;
    } cases[] = {
        {EPERM, "SYS_NICE"}, {EINVAL, "outside"}, {ENOSYS, "no NUMA"}, {ENOMEM, "first touch"}};
    numoe_log_set(keep_log, NULL, NUMOE_LOG_WARN);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct topo *t = load(NULL);
        t->world->bind = refuse_bind;
        refuse_errno = cases[i].error;
        n_logged = 0;
        struct node_arena *a = new_arena(t, 0), *b = new_arena(t, 0);
        memset(take(a, MIB), 1, MIB);
        memset(take(a, 5 * MIB), 1, 5 * MIB);
        take(b, MIB);
        cr_expect_eq(node_arena_get_mode(a), NODE_ARENA_FIRST_TOUCH);
        cr_expect_eq(n_logged, 1, "said %u times", n_logged);
        cr_expect(strstr(logged, cases[i].says), "%s", logged);
        node_arena_free(a);
        node_arena_free(b);
        topo_free(t);
    }
}

/* ------------------------------------------------------------------ what does not fit */

Test(arena, more_than_is_free_is_an_error_with_numbers)
{
    struct topo *t = load(NULL);
    t->node[0].available_bytes = 320 * MIB; /* 310 without the reserve of 1/32 */
    struct node_arena *a = new_arena(t, 0), *b = new_arena(t, 0);
    char *p = NULL;
    numoe_error err;
    take(a, 200 * MIB);
    cr_expect_eq(node_arena_alloc(b, 111 * MIB, &p, &err), NUMOE_E_MEMORY);
    cr_expect_null(p);
    cr_expect(strstr(err.text, "test: 111.0 MiB more on node") &&
                  strstr(err.text, "110.0 MiB left"),
              "%s", err.text);
    take(b, 110 * MIB); /* another arena of the node, the same memory */
    node_arena_free(a);
    take(b, 200 * MIB);
    node_arena_free(b);
    topo_free(t);
}

/* Others take memory of a node after the start. */
Test(arena, what_is_free_now_counts_too, .init = madeup_setup, .fini = madeup_teardown)
{
    static const char meminfo[] = "/sys/devices/system/node/node1/meminfo";
    char *p = NULL;
    struct topo *t = NULL;
    numoe_error err;
    put("/sys/devices/system/node/has_memory", "0-1\n");
    put(meminfo, "Node 1 MemFree:   1048576 kB\n");
    cr_assert_eq(topo_load_below(root, "pack:2 [numa(memory=1GiB)] core:2 pu:1", &t, NULL),
                 NUMOE_OK);
    struct node_arena *a = new_arena(t, 1);
    take(a, 64 * MIB);
    put(meminfo, "Node 1 MemFree:   131072 kB\n");
    cr_expect_eq(node_arena_alloc(a, 129 * MIB, &p, &err), NUMOE_E_MEMORY);
    cr_expect(strstr(err.text, "128.0 MiB left free or reclaimable there now"), "%s", err.text);
    take(a, 128 * MIB);
    node_arena_free(a);
    topo_free(t);
}

Test(arena, control_group_limit_counts_over_all_nodes)
{
    struct topo *t = load("pack:2 [numa(memory=64GiB)] core:2 pu:1");
    t->memory_limit_bytes = 64 * MIB;
    struct node_arena *a = new_arena(t, 0), *b = new_arena(t, 1);
    char *p = NULL;
    numoe_error err;
    take(a, 40 * MIB); /* 8 MiB at least are left to others */
    cr_expect_eq(node_arena_alloc(b, 17 * MIB, &p, &err), NUMOE_E_MEMORY);
    cr_expect(strstr(err.text, "control group"), "%s", err.text);
    take(b, 16 * MIB);
    node_arena_free(a);
    node_arena_free(b);
    topo_free(t);
}

/* By hand: 1/32 in between, never less than 8 MiB, never more than 1 GiB and the page tables. */
Test(arena, reserve)
{
    cr_expect_eq(room_less_reserve(4 * MIB), 0);
    cr_expect_eq(room_less_reserve(100 * MIB), 92 * MIB);
    cr_expect_eq(room_less_reserve(3200 * MIB), 3100 * MIB);
    cr_expect_eq(room_less_reserve((uint64_t)1 << 40), ((uint64_t)1 << 40) - 3072 * MIB);
    cr_expect_eq(room_less_reserve(UINT64_MAX), UINT64_MAX);
}

Test(arena, unchecked_memory_is_said_and_never_refused)
{
    struct topo *t = NULL;
    numoe_error err;
    setenv("NUMOE_MEMORY_CHECK", "maybe", 1);
    cr_expect_eq(topo_load(NULL, &t, &err), NUMOE_E_INPUT);
    cr_expect_not_null(strstr(err.text, "NUMOE_MEMORY_CHECK"), "%s", err.text);
    setenv("NUMOE_MEMORY_CHECK", "off", 1);
    numoe_log_set(keep_log, NULL, NUMOE_LOG_WARN);
    n_logged = 0;
    t = load(NULL);
    numoe_log_set(NULL, NULL, NUMOE_LOG_WARN);
    cr_expect_eq(n_logged, 1, "said %u times", n_logged);
    struct node_arena *a = new_arena(t, 0);
    take(a, (size_t)1 << 42); /* address space; nobody touches it */
    node_arena_free(a);
    topo_free(t);
}

/* Counts what would be taken, takes nothing. */
Test(arena, counting)
{
    struct topo *t = load("pack:2 [numa(memory=64GiB)] core:2 pu:1");
    struct node_arena *a = NULL;
    void *p;
    cr_assert_eq(node_arena_new_counting(t, 1, &a, NULL), NUMOE_OK);
    cr_assert_eq(node_arena_alloc(a, (size_t)1 << 45, &p, NULL), NUMOE_OK);
    cr_assert_eq(node_arena_alloc(a, 1, &p, NULL), NUMOE_OK);
    cr_expect_eq(node_arena_bytes(a), ((uint64_t)1 << 45) + CACHE_LINE_BYTES);
    cr_expect_eq(t->ledger->taken_bytes[1], 0);
    node_arena_free(a);
    topo_free(t);
}

/* A synthetic machine of terabytes runs in the memory of this one. */
Test(arena, synthetic_memory_is_not_believed)
{
    struct topo *t = load("pack:2 [numa(memory=64TiB)] core:2 pu:1");
    struct node_arena *a = new_arena(t, 0);
    char *p = NULL;
    numoe_error err;
    cr_expect_eq(node_arena_alloc(a, (size_t)32 << 40, &p, &err), NUMOE_E_MEMORY);
    cr_expect(strstr(err.text, "this machine"), "%s", err.text);
    cr_expect_eq(node_arena_alloc(a, SIZE_MAX - 7, &p, &err), NUMOE_E_MEMORY);
    node_arena_free(a);
    cr_expect_eq(node_arena_new(t, 2, "test", &a, &err), NUMOE_E_STATE);
    topo_free(t);
}

/* ------------------------------------------------------------------ giving back */

struct piece {
    unsigned char *p;
    size_t bytes;
    unsigned char mark;
};

static void check_piece(const struct piece *piece, unsigned char expected)
{
    for (size_t k = 0; k < piece->bytes; k++) {
        cr_assert_eq(piece->p[k], expected, "byte %zu of %zu is %u, not %u", k, piece->bytes,
                     piece->p[k], expected);
    }
}

/* Pieces come and go in a random order; none may ever overlap another, new ones are zero, and in
 * the end nothing is left. */
static void come_and_go(struct topo *t)
{
    struct node_arena *a = new_arena(t, 0);
    struct piece piece[64] = {{.p = NULL}};
    uint64_t seed = 1, sum = 0;
    size_t used;
    for (unsigned step = 0; step < 3000; step++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        struct piece *at = &piece[seed >> 58];
        if (at->p != NULL) {
            check_piece(at, at->mark);
            node_arena_dealloc(a, at->p, at->bytes);
            sum -= round_up(at->bytes, 64);
            at->p = NULL;
        } else {
            at->bytes = 1 + (seed >> 20) % (step % 50 == 0 ? 5 * MIB : 30000);
            at->mark = (unsigned char)(1 + step % 255);
            at->p = (unsigned char *)take(a, at->bytes);
            sum += round_up(at->bytes, 64);
            check_piece(at, 0);
            memset(at->p, at->mark, at->bytes);
        }
        cr_assert_eq(node_arena_bytes(a), sum);
    }
    for (unsigned i = 0; i < 64; i++) {
        if (piece[i].p != NULL) {
            check_piece(&piece[i], piece[i].mark);
            node_arena_dealloc(a, piece[i].p, piece[i].bytes);
        }
    }
    cr_expect_eq(node_arena_bytes(a), 0);
    cr_expect_eq(t->ledger->taken_bytes[0], 0);
    cr_expect_null(node_arena_region(a, 0, &used));
    node_arena_free(a);
}

Test(arena, pieces_come_and_go)
{
    static const char *const policy[] = {"small", "thp", "auto"};
    for (size_t i = 0; i < ARRAY_LEN(policy); i++) {
        setenv("NUMOE_PAGES", policy[i], 1);
        struct topo *t = load(NULL);
        come_and_go(t);
        topo_free(t);
    }
}

Test(arena, what_is_given_back_is_given_to_the_system)
{
    setenv("NUMOE_PAGES", "small", 1);
    struct topo *t = load(NULL);
    struct node_arena *a = new_arena(t, 0);
    char *p[8];
    for (unsigned i = 0; i < 8; i++) {
        p[i] = take(a, 8 * MIB + 64); /* all but the first few in one region */
        memset(p[i], 1, 8 * MIB + 64);
    }
    size_t before = resident_bytes();
    node_arena_dealloc(a, p[5], 8 * MIB + 64);
    cr_expect_geq(before - resident_bytes(), 8 * MIB - 64 * 1024);
    node_arena_dealloc(a, p[6], 8 * MIB + 64);
    cr_expect_geq(before - resident_bytes(), 16 * MIB - 64 * 1024);
    cr_expect_eq(take(a, 16 * MIB + 128), p[5], "neighbouring holes are one");
    node_arena_free(a);
    topo_free(t);
}

/* ------------------------------------------------------------------ pages */

TestSuite(pages, .init = madeup_setup, .fini = madeup_teardown);

/* A machine with a pool of huge pages on its only node, and a kernel that gives transparent ones.
 */
static struct topo *load_with_pool(unsigned n_2m, unsigned n_1g)
{
    char number[16];
    struct topo *t = NULL;
    put("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
    snprintf(number, sizeof(number), "%u\n", n_2m);
    put("/sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages", number);
    snprintf(number, sizeof(number), "%u\n", n_1g);
    put("/sys/devices/system/node/node0/hugepages/hugepages-1048576kB/free_hugepages", number);
    cr_assert_eq(topo_load_below(root, "numa(memory=64GiB) core:2 pu:1", &t, NULL), NUMOE_OK);
    cr_assert_eq(t->node[0].huge_2m_free, n_2m);
    cr_assert_eq(t->node[0].huge_1g_free, n_1g);
    return t;
}

/* What a region of so many MiB is made of. */
static enum pages pages_for(struct topo *t, size_t mib)
{
    struct node_arena *a = new_arena(t, 0);
    size_t used;
    take(a, mib * MIB);
    enum pages pages = node_arena_get_pages(a);
    const void *region = node_arena_region(a, 0, &used);
    cr_expect_eq((uintptr_t)region % pages_bytes(pages), 0);
    node_arena_free(a);
    return pages;
}

Test(pages, reserved_ones_where_there_are_enough)
{
    struct topo *t = load_with_pool(700, 2);
    numoe_log_set(keep_log, NULL, NUMOE_LOG_WARN);
    n_logged = 0;
    cr_expect_eq(pages_for(t, 1), PAGES_SMALL, "a huge page for 1 MiB");
    cr_expect_eq(pages_for(t, 100), PAGES_2M);
    cr_expect_eq(pages_for(t, 1024), PAGES_1G);
    cr_expect_eq(pages_for(t, 1500), PAGES_1G);
    cr_expect_eq(n_logged, 0, "%s", logged);
    setenv("NUMOE_PAGES", "thp", 1);
    cr_expect_eq(pages_for(t, 100), PAGES_THP);
    setenv("NUMOE_PAGES", "small", 1);
    cr_expect_eq(pages_for(t, 100), PAGES_SMALL);
    setenv("NUMOE_PAGES", "huge", 1);
    cr_expect_eq(pages_for(t, 100), PAGES_2M);
    topo_free(t);
}

Test(pages, a_short_pool_is_left_alone_and_said_once)
{
    struct topo *t = load_with_pool(49, 1);
    numoe_log_set(keep_log, NULL, NUMOE_LOG_WARN);
    n_logged = 0;
    cr_expect_eq(pages_for(t, 98), PAGES_2M);
    cr_expect_eq(n_logged, 0);
    cr_expect_eq(pages_for(t, 100), PAGES_THP);
    cr_expect_eq(pages_for(t, 2048), PAGES_THP);
    cr_expect_eq(n_logged, 1, "said %u times", n_logged);
    cr_expect(strstr(logged, "100.0 MiB on node 0") && strstr(logged, "49 of 2 MiB, 1 of 1 GiB"),
              "%s", logged);
    topo_free(t);
}

/* Asked for and not there is said; not asked for and not there is the usual machine. */
Test(pages, a_missing_pool_is_said_where_it_is_asked_for)
{
    struct topo *t = load_with_pool(0, 0);
    numoe_log_set(keep_log, NULL, NUMOE_LOG_WARN);
    n_logged = 0;
    cr_expect_eq(pages_for(t, 100), PAGES_THP);
    cr_expect_eq(n_logged, 0);
    setenv("NUMOE_PAGES", "huge", 1);
    cr_expect_eq(pages_for(t, 100), PAGES_THP);
    cr_expect_eq(n_logged, 1);
    topo_free(t);
}

static unsigned n_populated, n_unmapped;
static int populate_short(struct world *w, void *addr, size_t bytes)
{
    (void)w, (void)addr, (void)bytes;
    n_populated++;
    return EFAULT; /* what the kernel says in place of the signal */
}

static void count_unmap(struct world *w, void *addr, size_t bytes)
{
    (void)w;
    n_unmapped++;
    munmap(addr, bytes);
}

static int refuse_huge(struct world *w, size_t bytes, size_t page_bytes, void **addr)
{
    (void)w, (void)bytes, (void)page_bytes, (void)addr;
    return ENOMEM;
}

/* The count was right, but others were faster, or the node's part of a global reservation was not
 * there: each size is tried and given back, then it goes on with ordinary memory. */
Test(pages, a_pool_that_turns_out_short_is_an_errno)
{
    struct topo *t = load_with_pool(1000, 1);
    t->world->populate = populate_short;
    t->world->unmap = count_unmap;
    struct node_arena *a = new_arena(t, 0);
    char *p = take(a, 1024 * MIB);
    p[1000 * MIB] = 1;
    cr_expect_eq(n_populated, 2);
    cr_expect_eq(n_unmapped, 2);
    cr_expect_eq(node_arena_get_pages(a), PAGES_THP);
    cr_expect_eq(t->ledger->taken_bytes[0], 1024 * MIB);
    node_arena_free(a);
    t->world->map_huge = refuse_huge;
    cr_expect_eq(pages_for(t, 1024), PAGES_THP);
    cr_expect_eq(n_populated, 2);
    topo_free(t);
}

/* Reserved pages that are not bound could come from any node. */
Test(pages, no_reserved_ones_without_binding)
{
    struct topo *t = load_with_pool(100, 0);
    t->is_this_machine = true; /* a refused binding counts only there */
    t->world->bind = refuse_bind;
    refuse_errno = EPERM;
    setenv("NUMOE_PAGES", "auto", 1);
    struct node_arena *a = new_arena(t, 0);
    memset(take(a, 10 * MIB), 1, 10 * MIB);
    cr_expect_eq(node_arena_get_mode(a), NODE_ARENA_FIRST_TOUCH);
    cr_expect_leq(node_arena_get_pages(a), PAGES_THP);
    node_arena_free(a);
    t->is_this_machine = false;
    topo_free(t);
}

/* They are not part of what the system calls available, so they neither need it nor use it up. */
Test(pages, reserved_ones_are_counted_apart)
{
    struct topo *t = load_with_pool(400, 0);
    numoe_error err;
    char *p;
    t->node[0].available_bytes = 320 * MIB;
    struct node_arena *a = new_arena(t, 0);
    p = take(a, 600 * MIB);
    cr_expect_eq(t->ledger->taken_bytes[0], 0);
    cr_expect_eq(node_arena_bytes(a), 600 * MIB);
    node_arena_dealloc(a, p, 600 * MIB);
    cr_expect_eq(node_arena_bytes(a), 0);
    setenv("NUMOE_PAGES", "thp", 1);
    struct node_arena *b = new_arena(t, 0);
    cr_expect_eq(node_arena_alloc(b, 600 * MIB, &p, &err), NUMOE_E_MEMORY);
    node_arena_free(a);
    node_arena_free(b);
    topo_free(t);
}

Test(pages, kernel_setting_and_probe_decide_between_the_others)
{
    struct topo *t = load_with_pool(0, 0);
    double small_ns = 0, thp_ns = 0;
    cr_expect_eq(pages_ordinary(t, PAGES_POLICY_AUTO), PAGES_THP);
    put("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
    cr_expect_eq(pages_ordinary(t, PAGES_POLICY_AUTO), PAGES_SMALL);
    topo_free(t);
    cr_expect_eq(pages_faster(1000, 1300), PAGES_SMALL);
    cr_expect_eq(pages_faster(1000, 1020), PAGES_THP, "a draw");
    cr_expect_eq(pages_faster(1300, 1000), PAGES_THP);
    size_t before = resident_bytes();
    if (pages_probe(&small_ns, &thp_ns)) {
        /* 48 MiB: no machine reads them in 50 us or needs 5 s */
        cr_expect(small_ns > 5e4 && small_ns < 5e9, "%g ns", small_ns);
        cr_expect(thp_ns > 5e4 && thp_ns < 5e9, "%g ns", thp_ns);
    }
    cr_expect_leq(resident_bytes(), before + MIB);
}

/* The probe touches 96 MiB: in a control group of little more, that is the end of the process. */
Test(pages, no_probe_where_memory_is_short)
{
    struct topo *t = load(NULL);
    struct rusage before, after;
    t->memory_limit_bytes = 256 * MIB;
    getrusage(RUSAGE_SELF, &before);
    cr_expect_leq(pages_ordinary(t, PAGES_POLICY_AUTO), PAGES_THP);
    getrusage(RUSAGE_SELF, &after);
    cr_expect_leq(after.ru_maxrss, before.ru_maxrss + 16 * 1024, "KiB");
    topo_free(t);
}

Test(pages, unknown_policy_is_refused)
{
    struct topo *t = load(NULL);
    struct node_arena *a = NULL;
    numoe_error err;
    setenv("NUMOE_PAGES", "large", 1);
    cr_expect_eq(node_arena_new(t, 0, "test", &a, &err), NUMOE_E_INPUT);
    cr_expect(strstr(err.text, "NUMOE_PAGES is \"large\""), "%s", err.text);
    topo_free(t);
}

/* ------------------------------------------------------------------ audit */

Test(audit, touched_pages_are_local_and_others_absent)
{
    struct topo *t = load(NULL);
    struct node_arena *a = new_arena(t, 0);
    struct audit sum = {0};
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    memset(take(a, 100 * page), 1, 60 * page); /* a first region has small pages */
    audit_arena(t, a, &sum);
    cr_assert_not(sum.is_unknown);
    cr_expect_eq(sum.n_remote, 0);
    cr_expect_eq(sum.n_local, 60);
    cr_expect(sum.is_from_maps || sum.n_absent == 40, "%zu absent", (size_t)sum.n_absent);
    cr_expect_float_eq(audit_percent_local(&sum), 100, 1e-9);
    node_arena_free(a);
    topo_free(t);
}

Test(audit, big_regions_are_sampled)
{
    struct topo *t = load("pack:4 [numa(memory=1GiB)] core:2 pu:1");
    struct node_arena *a = new_arena(t, 3);
    struct audit sum = {0};
    take(a, 1024 * MIB);
    audit_arena(t, a, &sum);
    cr_expect(sum.is_sampled);
    cr_expect_eq(sum.n_local, 16384);
    cr_expect_eq(sum.n_remote, 0);
    node_arena_free(a);
    topo_free(t);
}

static int every_fourth_elsewhere(struct world *w, void **page, unsigned n_page, int *node)
{
    (void)w;
    for (unsigned i = 0; i < n_page; i++) {
        node[i] = (uintptr_t)page[i] / 4096 % 4 == 0 ? 0 : 1;
    }
    return 0;
}

Test(audit, misplaced_pages_are_counted)
{
    struct topo *t = load("pack:2 [numa(memory=1GiB)] core:2 pu:1");
    struct node_arena *a = new_arena(t, 1);
    struct audit sum = {0};
    t->world->where = every_fourth_elsewhere;
    take(a, MIB);
    audit_arena(t, a, &sum);
    cr_expect_eq(sum.n_local, 192);
    cr_expect_eq(sum.n_remote, 64);
    cr_expect_float_eq(audit_percent_local(&sum), 75, 1e-9);
    node_arena_free(a);
    topo_free(t);
}

static int refuse_where(struct world *w, void **page, unsigned n_page, int *node)
{
    (void)w, (void)page, (void)n_page, (void)node;
    return EPERM;
}

/* 256 pages, 64 a look: four looks have seen each page once. */
Test(audit, samples_are_bounded_and_get_around)
{
    struct topo *t = load("pack:2 [numa(memory=1GiB)] core:2 pu:1");
    struct node_arena *a = new_arena(t, 1);
    struct audit sum = {0};
    t->world->where = every_fourth_elsewhere;
    take(a, MIB);
    for (unsigned phase = 0; phase < 4; phase++) {
        const uint64_t before = sum.n_local + sum.n_remote;
        audit_sample(t, a, 64, phase, &sum);
        cr_expect_eq(sum.n_local + sum.n_remote - before, 64);
    }
    cr_expect_eq(sum.n_local, 192);
    cr_expect_eq(sum.n_remote, 64);
    t->world->where = refuse_where;
    audit_sample(t, a, 64, 0, &sum);
    cr_expect(sum.is_unknown, "numa_maps is not read for a sample");
    node_arena_free(a);
    topo_free(t);
}

static int refuse_any(struct world *w, void *addr, size_t bytes, unsigned os_node)
{
    (void)w, (void)addr, (void)bytes, (void)os_node;
    return EPERM;
}

Test(audit, causes, .init = madeup_setup, .fini = madeup_teardown)
{
    struct topo *t = NULL;
    put("/sys/devices/system/node/has_memory", "0-1\n");
    put("/proc/self/status", "Name:\tx\nMems_allowed_list:\t0-1\n");
    cr_assert_eq(topo_load_below(root, "pack:2 [numa(memory=1GiB)] core:2 pu:1", &t, NULL),
                 NUMOE_OK);
    struct node_arena *a = new_arena(t, 1);
    cr_expect_not_null(strstr(audit_cause(t, a), "migratepages"), "%s", audit_cause(t, a));
    put("/proc/self/status", "Name:\tx\nMems_allowed_list:\t0\n");
    cr_expect_not_null(strstr(audit_cause(t, a), "cpuset.mems"), "%s", audit_cause(t, a));
    put("/sys/devices/system/node/has_memory", "0\n");
    cr_expect_not_null(strstr(audit_cause(t, a), "offline"), "%s", audit_cause(t, a));
    put("/sys/devices/system/node/has_memory", "0-1\n");
    put("/proc/self/status", "Name:\tx\nMems_allowed_list:\t0-1\n");
    node_arena_free(a);
    /* Where binding is refused, whether the kernel moves pages is the question. */
    struct topo *here = load(NULL);
    char *own = here->world->root;
    here->world->bind = refuse_any;
    numoe_log_set(keep_log, NULL, NUMOE_LOG_WARN);
    a = new_arena(here, 0);
    take(a, MIB);
    here->world->root = root;
    put("/proc/sys/kernel/numa_balancing", "0\n");
    cr_expect_not_null(strstr(audit_cause(here, a), "could not be bound, and went"));
    put("/proc/sys/kernel/numa_balancing", "1\n");
    cr_expect_not_null(strstr(audit_cause(here, a), "kernel.numa_balancing=0"));
    here->world->root = own;
    node_arena_free(a);
    topo_free(here);
    topo_free(t);
}

/* Containers: the question is refused, the file is there. */
Test(audit, numa_maps_stand_in, .init = madeup_setup, .fini = madeup_teardown)
{
    char text[512];
    struct topo *t = NULL;
    cr_assert_eq(topo_load_below(root, "pack:2 [numa(memory=1GiB)] core:2 pu:1", &t, NULL),
                 NUMOE_OK);
    t->world->where = refuse_where;
    struct node_arena *a = new_arena(t, 1);
    char *p = take(a, MIB);
    struct audit sum = {0};
    audit_arena(t, a, &sum);
    cr_expect(sum.is_unknown, "neither the question nor the file");
    snprintf(text, sizeof(text),
             "1000 default anon=7 N0=7\n%lx bind:1 anon=200 dirty=200 N0=50 N1=150 "
             "kernelpagesize_kB=4\n%lx default N0=9\n",
             (unsigned long)p, (unsigned long)p + 16 * MIB);
    put("/proc/self/numa_maps", text);
    sum = (struct audit){0};
    audit_arena(t, a, &sum);
    cr_expect_not(sum.is_unknown);
    cr_expect(sum.is_from_maps);
    cr_expect_eq(sum.n_local, 150);
    cr_expect_eq(sum.n_remote, 50);
    /* Of huge pages, and one mapping with what lies before it: its line begins there. */
    snprintf(text, sizeof(text),
             "1000 default anon=7 N0=7\n%lx bind:1 huge anon=4 dirty=4 N0=1 N1=3 "
             "kernelpagesize_kB=2048\n%lx default N0=9\n",
             (unsigned long)p - 4 * MIB, (unsigned long)p + 16 * MIB);
    put("/proc/self/numa_maps", text);
    sum = (struct audit){0};
    audit_arena(t, a, &sum);
    cr_expect_eq(sum.n_local, 3 * 512);
    cr_expect_eq(sum.n_remote, 512);
    node_arena_free(a);
    topo_free(t);
}
