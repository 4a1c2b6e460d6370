/* numa/arena, world: what is mapped, bound, refused and given back, and what does not fit. Real
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
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "numa/arena.h"
#include "numa/audit.h"

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

Test(arena, control_group_limit_counts_over_all_nodes)
{
    struct topo *t = load("pack:2 [numa(memory=64GiB)] core:2 pu:1");
    t->memory_limit_bytes = 64 * MIB;
    struct node_arena *a = new_arena(t, 0), *b = new_arena(t, 1);
    char *p = NULL;
    numoe_error err;
    take(a, 40 * MIB);
    cr_expect_eq(node_arena_alloc(b, 23 * MIB, &p, &err), NUMOE_E_MEMORY);
    cr_expect(strstr(err.text, "control group"), "%s", err.text);
    take(b, 22 * MIB);
    node_arena_free(a);
    node_arena_free(b);
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

/* Containers: the question is refused, the file is there. */
Test(audit, numa_maps_stand_in)
{
    char dir[] = "/tmp/numoe-root-XXXXXX", path[128], command[96];
    struct topo *t = NULL;
    cr_assert_not_null(mkdtemp(dir));
    cr_assert_eq(topo_load_below(dir, "pack:2 [numa(memory=1GiB)] core:2 pu:1", &t, NULL),
                 NUMOE_OK);
    t->world->where = refuse_where;
    struct node_arena *a = new_arena(t, 1);
    char *p = take(a, MIB);
    struct audit sum = {0};
    audit_arena(t, a, &sum);
    cr_expect(sum.is_unknown, "neither the question nor the file");
    snprintf(path, sizeof(path), "%s/proc", dir);
    mkdir(path, 0755);
    snprintf(path, sizeof(path), "%s/proc/self", dir);
    mkdir(path, 0755);
    snprintf(path, sizeof(path), "%s/proc/self/numa_maps", dir);
    FILE *f = fopen(path, "w");
    fprintf(f,
            "1000 default anon=7 N0=7\n%lx bind:1 anon=200 dirty=200 N0=50 N1=150 "
            "kernelpagesize_kB=4\n%lx default N0=9\n",
            (unsigned long)p, (unsigned long)p + 16 * MIB);
    fclose(f);
    sum = (struct audit){0};
    audit_arena(t, a, &sum);
    cr_expect_not(sum.is_unknown);
    cr_expect(sum.is_from_maps);
    cr_expect_eq(sum.n_local, 150);
    cr_expect_eq(sum.n_remote, 50);
    node_arena_free(a);
    topo_free(t);
    snprintf(command, sizeof(command), "rm -r %s", dir);
    cr_expect_eq(system(command), 0);
}
