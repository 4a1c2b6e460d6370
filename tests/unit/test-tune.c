/* base/memo and runtime/tune: what is remembered, for whom, what a damaged or foreign file does, and what
 * follows from numbers that a probe might have found.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <criterion/criterion.h>

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "kernels/select.h"
#include "numa/bandwidth.h"
#include "runtime/tune-probe.h"
#include "tests/unit/madeup.h"
#include "tests/unit/testdata.h"

/* The user's cache is a folder of the test's own. */
static void begin(void)
{
    madeup_setup();
    setenv("XDG_CACHE_HOME", root, 1);
}

static double get(const struct memo *memo, const char *name)
{
    double value = NAN;
    memo_get(memo, name, -1e300, 1e300, &value, NULL);
    return value;
}

static double get_anew(const char *key, const char *name)
{
    struct memo *memo = memo_open(key);
    const double value = get(memo, name);
    memo_close(memo);
    return value;
}

static void save_one(const char *key, const char *name, double value)
{
    struct memo *memo = memo_open(key);
    cr_assert_not_null(memo);
    memo_set(memo, name, value);
    memo_save(memo);
    memo_close(memo);
}

/* Where the file of a key is, free(). */
static char *path_of(const char *key)
{
    struct memo *memo = memo_open(key);
    char *path = strdup(memo_path(memo));
    memo_close(memo);
    return path;
}

static unsigned count_files(void)
{
    char path[96];
    unsigned n = 0;
    snprintf(path, sizeof path, "%s/numoe", root);
    DIR *dir = opendir(path);
    for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
        n += e->d_name[0] != '.';
    }
    closedir(dir);
    return n;
}

/* ------------------------------------------------------------------ the file */

Test(memo, comes_back, .init = begin, .fini = madeup_teardown)
{
    struct stat st;
    save_one("machine a", "sleep_ns", 200000.25);
    save_one("machine b", "sleep_ns", 7);
    save_one("machine a", "prefetch_bytes", 512); /* keeps the other */
    cr_expect_eq(get_anew("machine a", "sleep_ns"), 200000.25);
    cr_expect_eq(get_anew("machine a", "prefetch_bytes"), 512);
    cr_expect_eq(get_anew("machine b", "sleep_ns"), 7);
    cr_expect(isnan(get_anew("machine b", "prefetch_bytes")));
    cr_expect_eq(count_files(), 2, "one for each key, and nothing else is left");
    char *path = path_of("machine a");
    cr_expect(stat(path, &st) == 0 && (st.st_mode & 0777) == 0600);
    *strrchr(path, '/') = '\0';
    cr_expect(stat(path, &st) == 0 && (st.st_mode & 0777) == 0700);
    free(path);
}

Test(memo, only_what_is_in_range, .init = begin, .fini = madeup_teardown)
{
    struct memo *memo = memo_open("k");
    double value = 42;
    int64_t when = 0;
    const int64_t before = (int64_t)time(NULL);
    memo_set(memo, "x", 8);
    memo_set(memo, "not a number", NAN);
    memo_set(memo, "endless", INFINITY);
    memo_set(memo, "a name that is longer than names may be", 1);
    cr_expect(!memo_get(memo, "x", 9, 10, &value, &when) && !memo_get(memo, "x", 1, 7, &value, NULL));
    cr_expect(!memo_get(memo, "not a number", -1e300, 1e300, &value, NULL));
    cr_expect(!memo_get(memo, "endless", -INFINITY, INFINITY, &value, NULL));
    cr_expect(!memo_get(memo, "a name that is longer than names may be", 0, 2, &value, NULL));
    cr_expect(value == 42 && when == 0, "nothing is written where nothing is found");
    cr_expect(memo_get(memo, "x", 8, 8, &value, &when) && value == 8);
    cr_expect(when >= before && when <= (int64_t)time(NULL));
    memo_close(memo);
}

static void check_text(const char *text, bool is_good, double x)
{
    struct memo *memo = memo_open("k");
    cr_expect_eq(memo_parse(memo, text, strlen(text), 1000000000), is_good, "%s", text);
    const double value = get(memo, "x");
    cr_expect(isnan(x) ? isnan(value) : value == x, "%s: %g", text, value);
    memo_close(memo);
}

Test(memo, files_by_hand, .init = begin, .fini = madeup_teardown)
{
#define FILE_OF(version, key, values)                                                              \
    "{\"numoe_memo\": " version ", \"key\": \"" key "\", \"values\": {" values "}}"
    check_text(FILE_OF("1", "k", "\"x\": [2.5, 1000000000]"), true, 2.5);
    check_text(FILE_OF("1", "k", "\"x\": [3, 997408000]"), true, 3); /* 30 days ago */
    check_text(FILE_OF("1", "k", "\"x\": [3, 997407999]"), true, NAN);
    check_text(FILE_OF("1", "k", "\"x\": [3, 1000086400]"), true, 3); /* another time zone's clock */
    check_text(FILE_OF("1", "k", "\"x\": [3, 1000086401]"), true, NAN);
    check_text(FILE_OF("2", "k", "\"x\": [2.5, 1000000000]"), false, NAN);
    check_text(FILE_OF("1", "other", "\"x\": [2.5, 1000000000]"), false, NAN);
    check_text(FILE_OF("1", "k", "\"x\": [1, 1000000000], \"x\": [2, 1000000000]"), false, NAN);
    check_text(FILE_OF("1", "k", "\"x\": 3"), true, NAN);
    check_text(FILE_OF("1", "k", "\"x\": [3]"), true, NAN);
    check_text(FILE_OF("1", "k", "\"x\": [\"3\", 1000000000]"), true, NAN);
    check_text(FILE_OF("1", "k", "\"x\": [3, 1e9]"), true, NAN);
    check_text(FILE_OF("1", "k", "\"x\": [1e999, 1000000000]"), false, NAN);
    check_text("{\"numoe_memo\": 1, \"key\": \"k\", \"values\": [1]}", false, NAN);
    check_text("[]", false, NAN);
    check_text("", false, NAN);
}

static char *read_all(const char *path, size_t *n)
{
    char *text = calloc(1, 4096);
    FILE *f = fopen(path, "rb");
    cr_assert(text != NULL && f != NULL);
    *n = fread(text, 1, 4095, f);
    fclose(f);
    return text;
}

/* A cut file is nobody's; a changed byte gives the number, another in the range, or nothing. */
Test(memo, damaged_at_every_byte, .init = begin, .fini = madeup_teardown)
{
    static const char other[] = {0, ' ', '"', '9', '{', '\x80', '\xff'};
    size_t n;
    save_one("k", "x", 200);
    char *path = path_of("k"), *text = read_all(path, &n);
    for (size_t i = 0; i + 2 < n; i++) { /* behind the last brace is a newline */
        struct memo *cut = memo_open("k2"); /* has no file: only what is parsed counts */
        cr_expect(!memo_parse(cut, text, i, (int64_t)time(NULL)));
        memo_close(cut);
    }
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < sizeof other; k++) {
            FILE *f = fopen(path, "r+b");
            fseek(f, (long)i, SEEK_SET);
            fputc(other[k], f);
            fclose(f);
            double value = 150;
            struct memo *memo = memo_open("k");
            memo_get(memo, "x", 100, 300, &value, NULL);
            cr_expect(value >= 100 && value <= 300);
            memo_close(memo);
            f = fopen(path, "r+b");
            fwrite(text, 1, n, f);
            fclose(f);
        }
    }
    free(text);
    free(path);
}

/* What lies where the file should be: nothing of it is used or waited for, and where it can be replaced
 * it is. */
Test(memo, what_is_no_file_of_ours, .init = begin, .fini = madeup_teardown, .timeout = 60)
{
    char *path = path_of("k"), *elsewhere = NULL;
    cr_assert(asprintf(&elsewhere, "%s/elsewhere", root) > 0);
    save_one("k", "x", 1);

    cr_assert_eq(rename(path, elsewhere), 0); /* a link, to what would be a good one */
    cr_assert_eq(symlink(elsewhere, path), 0);
    cr_expect(isnan(get_anew("k", "x")));
    save_one("k", "x", 2);
    cr_expect_eq(get_anew("k", "x"), 2);

    cr_assert(unlink(path) == 0 && mkfifo(path, 0600) == 0); /* nobody writes into it */
    cr_expect(isnan(get_anew("k", "x")));
    save_one("k", "x", 3);
    cr_expect_eq(get_anew("k", "x"), 3);

    FILE *f = fopen(path, "a"); /* JSON may end in blanks, but not in so many */
    for (unsigned i = 0; i < 70000; i++) {
        fputc(' ', f);
    }
    fclose(f);
    cr_expect(isnan(get_anew("k", "x")));

    cr_assert(unlink(path) == 0 && mkdir(path, 0700) == 0); /* cannot be replaced */
    save_one("k", "x", 4);
    cr_expect(isnan(get_anew("k", "x")));
    cr_expect_eq(count_files(), 1, "nothing unfinished is left");
    free(path);
    free(elsewhere);
}

/* Its folder is made in it: a test that is skipped would leave it behind. */
Test(memo, foreign_file)
{
    if (geteuid() != 0) {
        cr_skip_test("only root can give files away");
    }
    begin();
    char *path = path_of("k");
    save_one("k", "x", 1);
    cr_expect_eq(chown(path, 12345, 0), 0);
    cr_expect(isnan(get_anew("k", "x")));
    free(path);
    madeup_teardown();
}

Test(memo, no_place_for_it, .init = begin, .fini = madeup_teardown)
{
    char path[96];
    snprintf(path, sizeof path, "%s/file", root);
    fclose(fopen(path, "w"));
    setenv("XDG_CACHE_HOME", path, 1); /* a file is no folder */
    struct memo *memo = memo_open("k");
    cr_assert_not_null(memo);
    cr_expect(!memo_can_be_saved(memo));
    cr_expect(memo_lock(memo, 1000), "nobody else measures");
    memo_set(memo, "x", 1);
    memo_save(memo);
    cr_expect_eq(get(memo, "x"), 1, "for this process");
    memo_close(memo);
    cr_expect(isnan(get_anew("k", "x")));

    unsetenv("HOME");
    setenv("XDG_CACHE_HOME", "relative/path", 1); /* counts as none */
    memo = memo_open("k");
    cr_expect_null(memo_path(memo));
    cr_expect(!memo_can_be_saved(memo));
    cr_expect(memo_lock(memo, 1000));
    memo_save(memo);
    memo_close(memo);
    cr_expect_neq(access("relative", F_OK), 0);

    setenv("HOME", root, 1);
    char *home = path_of("k");
    snprintf(path, sizeof path, "%s/.cache/numoe/", root);
    cr_expect(strncmp(home, path, strlen(path)) == 0, "%s", home);
    free(home);
    memo = memo_open("k");
    cr_expect(memo_can_be_saved(memo), ".cache and numoe are made");
    memo_close(memo);
    snprintf(path, sizeof path, "%s/a/b", root);
    setenv("XDG_CACHE_HOME", path, 1);
    memo = memo_open("k");
    cr_expect(!memo_can_be_saved(memo), "a is not");
    memo_save(memo);
    cr_expect_neq(access(path, F_OK), 0);
    memo_close(memo);

    cr_expect_null(memo_path(NULL)); /* lack of memory */
    cr_expect(memo_lock(NULL, 1000) && isnan(get(NULL, "x")));
    memo_set(NULL, "x", 1);
    memo_save(NULL);
    memo_close(NULL);
}

/* A child measures until it is told to end: this process gives up where it may not wait for that, and
 * else has what the child has found. */
Test(memo, one_measures_at_a_time, .init = begin, .fini = madeup_teardown, .timeout = 60)
{
    int ready[2], go[2];
    char byte;
    cr_assert(pipe(ready) == 0 && pipe(go) == 0);
    const pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        struct memo *own = memo_open("k");
        const bool good = memo_lock(own, 0) && write(ready[1], "x", 1) == 1 && read(go[0], &byte, 1) == 1;
        memo_set(own, "x", 5);
        memo_save(own);
        memo_close(own);
        _exit(good ? 0 : 1);
    }
    cr_assert_eq(read(ready[0], &byte, 1), 1);
    struct memo *memo = memo_open("k");
    cr_expect(!memo_lock(memo, 50));
    cr_expect(isnan(get(memo, "x")));
    cr_assert_eq(write(go[1], "x", 1), 1);
    cr_expect(memo_lock(memo, 30000));
    cr_expect_eq(get(memo, "x"), 5, "what the other has found");
    memo_close(memo);
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    cr_expect_eq(count_files(), 1, "the lock is gone");
}

/* Who dies while measuring leaves a lock file that nobody holds. */
Test(memo, left_lock, .init = begin, .fini = madeup_teardown)
{
    char *path = path_of("k"), *lock = NULL;
    save_one("k", "x", 1);
    cr_assert(asprintf(&lock, "%s.lock", path) > 0);
    fclose(fopen(lock, "w"));
    struct memo *memo = memo_open("k");
    cr_expect(memo_lock(memo, 0));
    memo_close(memo);
    free(lock);
    free(path);
}

/* ------------------------------------------------------------------ the key */

static struct topo *load(const char *spec)
{
    struct topo *topo = NULL;
    numoe_error err = {.text = ""};
    cr_assert_eq(topo_load(spec, &topo, &err), NUMOE_OK, "%s", err.text);
    return topo;
}

static char *key_of(struct topo *topo, const char *isa)
{
    struct strbuf key = {0};
    cr_assert_eq(tuning_key(topo, isa, &key, NULL), NUMOE_OK);
    return key.data;
}

static void expect_same(struct topo *a, struct topo *b, bool same, const char *what)
{
    char *ka = key_of(a, "avx2"), *kb = key_of(b, "avx2");
    cr_expect_eq(strcmp(ka, kb) == 0, same, "%s: %s / %s", what, ka, kb);
    mem_free(ka);
    mem_free(kb);
    topo_free(a);
    topo_free(b);
}

static struct topo *share_of(unsigned share)
{
    struct topo *topo = load("pack:1 [numa(memory=8GiB)] core:4 pu:2");
    cr_assert_eq(topo_keep_share(topo, share, 2, NULL), NUMOE_OK);
    return topo;
}

static struct topo *with_quota(double quota)
{
    struct topo *topo = load("pack:1 [numa(memory=8GiB)] core:4 pu:2");
    topo->cpu_quota = quota;
    return topo;
}

/* The same machine with other free memory, as every run finds it. */
static struct topo *with_memory(uint64_t available_bytes)
{
    struct topo *topo = load("pack:1 [numa(memory=8GiB)] core:4 pu:2");
    topo->node[0].available_bytes = topo->memory_limit_bytes = topo->host_room_bytes =
        available_bytes;
    topo->node[0].huge_2m_free = available_bytes >> 22;
    return topo;
}

Test(tuning, key)
{
    expect_same(load("pack:1 [numa(memory=8GiB)] core:4 pu:2"), load("pack:1 [numa(memory=8GiB)] core:4 pu:2"), true,
                "the same machine");
    expect_same(with_memory((uint64_t)1 << 30), with_memory((uint64_t)5 << 30), true, "free memory");
    expect_same(load("pack:1 [numa(memory=8GiB)] core:4 pu:2"), load("pack:1 [numa(memory=8GiB)] core:4 pu:1"), false,
                "hardware threads");
    expect_same(load("pack:1 [numa(memory=8GiB)] core:4 pu:2"), load("pack:1 [numa(memory=8GiB)] core:8 pu:1"), false,
                "cores");
    expect_same(load("[numa(memory=8GiB)] pack:2 core:4 pu:1"),
                load("pack:2 [numa(memory=8GiB)] core:4 pu:1"), false, "nodes");
    expect_same(share_of(0), share_of(1), false, "other CPUs, as many");
    expect_same(share_of(1), share_of(1), true, "the same part");
    expect_same(with_quota(0), with_quota(2.5), false, "quota");
    struct topo *topo = load("pack:1 [numa(memory=8GiB)] core:4 pu:2");
    char *avx2 = key_of(topo, "avx2"), *ref = key_of(topo, "ref");
    setenv("NUMOE_PAGES", "small", 1);
    char *small = key_of(topo, "avx2");
    cr_expect(strcmp(avx2, ref) != 0 && strcmp(avx2, small) != 0);
    mem_free(avx2);
    mem_free(ref);
    mem_free(small);
    topo_free(topo);
}

/* ------------------------------------------------------------------ what follows */

Test(tuning, workers_by_numbers)
{
    static const struct {
        struct tuning_candidate candidate[3];
        unsigned n, percent;
    } cases[] = {
        {{{200, {0.99, 0.90}}}, 1, 100},                         /* 0.972: not clear enough */
        {{{200, {0.90, 1.05}}}, 1, 200},                         /* 0.93 */
        {{{200, {1.10, 0.95}}}, 1, 100},                         /* SMT in the way */
        {{{75, {0.95, 1.33}}}, 1, 100},                          /* 1.026: prompts pay */
        {{{75, {0.85, 1.33}}}, 1, 75},                           /* 0.946: memory was crowded */
        {{{75, {0.85, 1.33}}, {50, {0.60, 2.0}}}, 2, 50},        /* 0.946, 0.88 */
        {{{200, {0.80, 1.0}}, {75, {0.86, 1.33}}}, 2, 200},      /* 0.84, 0.954 */
        {{{200, {1, 1}}, {75, {1, 1.33}}, {50, {1, 2}}}, 3, 100}, /* bandwidth is full either way */
        {{{0}}, 0, 100},
    };
    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        cr_expect_eq(tuning_choose_workers(cases[i].candidate, cases[i].n), cases[i].percent,
                     "case %u", i);
    }
}

Test(tuning, sleep_by_numbers)
{
    cr_expect_eq(tuning_choose_sleep(0), POOL_SLEEP_NS);
    cr_expect_eq(tuning_choose_sleep(100000), 200000);
    cr_expect_eq(tuning_choose_sleep(150000), 300000);
    cr_expect_eq(tuning_choose_sleep(10000000), 1000000, "idle CPUs are others'");
    cr_expect_eq(tuning_choose_sleep(UINT64_MAX / 8), 1000000);
}

Test(tuning, workers_worth_trying)
{
    static const struct {
        const char *spec;
        unsigned n_runnable, n, percent[2];
    } cases[] = {
        {"pack:1 [numa(memory=8GiB)] core:8 pu:2", 16, 2, {200, 75}},
        {"pack:1 [numa(memory=8GiB)] core:8 pu:2", 8, 1, {75, 0}},  /* as many CPUs at a time as cores */
        {"pack:1 [numa(memory=8GiB)] core:2 pu:2", 4, 1, {200, 0}}, /* no core can be spared */
        {"pack:1 [numa(memory=8GiB)] core:8 pu:1", 8, 1, {75, 0}},
        {"pack:1 [numa(memory=8GiB)] core:2 pu:1", 2, 0, {0, 0}},
        {"pack:2 [numa(memory=8GiB)] core:16 pu:2", 64, 2, {200, 75}},
    };
    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        unsigned percent[2] = {0};
        struct topo *topo = load(cases[i].spec);
        topo->n_runnable = cases[i].n_runnable;
        cr_expect_eq(tune_workers_to_try(topo, percent), cases[i].n, "%s", cases[i].spec);
        cr_expect_arr_eq(percent, cases[i].percent, sizeof percent, "%s", cases[i].spec);
        topo_free(topo);
    }
}

Test(tuning, number_of_workers)
{
    struct topo *topo = load("pack:2 [numa(memory=8GiB)] core:6 pu:2");
    const struct tuning smt = {.workers_percent = 200}, usual = {.workers_percent = 100},
                        fewer = {.workers_percent = 75};
    cr_expect_eq(tuning_workers(&usual, topo, 0), 0, "the pools know, quotas too");
    cr_expect_eq(tuning_workers(&smt, topo, 0), 24);
    cr_expect_eq(tuning_workers(&fewer, topo, 0), 9);
    cr_expect_eq(tuning_workers(&smt, topo, 5), 5, "who asks is given");
    topo_free(topo);
}

static _Thread_local bool is_slow;

static void be_slow(struct worker *w, void *arg)
{
    (void)w, (void)arg;
    is_slow = true;
}

static void pretend_to_multiply(const void *panels, unsigned n_row, const struct kern_act *x,
                                const uint32_t *xi, const uint32_t *yi, unsigned n_token, float *y,
                                size_t ldy)
{
    (void)panels, (void)n_row, (void)x, (void)xi, (void)yi, (void)n_token, (void)y, (void)ldy;
    nanosleep(&(struct timespec){.tv_nsec = is_slow ? 2000000 : 200000}, NULL);
}

#define MANY_ROUNDS_NS 300000000u /* others may have the CPUs for some of them */

/* Kernels that only take time, in one pool ten times as much as in the other. */
Test(tuning, probe_of_workers, .timeout = 60)
{
    struct topo *topo = load("pack:2 [numa(memory=1GiB)] core:2 pu:1");
    struct pools *quick = NULL, *slow = NULL;
    const struct kern *real;
    struct worker_ratio ratio = {0}, back = {0};
    numoe_error err = {.text = ""};
    topo->node[0].llc_bytes = topo->node[1].llc_bytes = (uint64_t)1 << 20;
    cr_assert_eq(kern_select(&real, &err), NUMOE_OK, "%s", err.text);
    struct kern kern = *real;
    kern.matmul[FORMAT_Q4_K] = pretend_to_multiply;
    cr_assert_eq(pools_new(topo, 2, &quick, &err), NUMOE_OK, "%s", err.text);
    cr_assert_eq(pools_new(topo, 2, &slow, &err), NUMOE_OK, "%s", err.text);
    pools_run(slow, be_slow, NULL);
    cr_assert_eq(worker_probe(topo, &kern, quick, slow, MANY_ROUNDS_NS, &ratio, &err), NUMOE_OK, "%s", err.text);
    cr_assert_eq(worker_probe(topo, &kern, slow, quick, MANY_ROUNDS_NS, &back, &err), NUMOE_OK, "%s", err.text);
    cr_expect(ratio.decode > 1.5 && ratio.prompt > 1.5, "%g, %g", ratio.decode, ratio.prompt);
    cr_expect(back.decode < 0.67 && back.prompt < 0.67, "%g, %g", back.decode, back.prompt);
    cr_assert_eq(worker_probe(topo, real, quick, slow, MANY_ROUNDS_NS, &ratio, &err), NUMOE_OK, "%s", err.text);
    cr_expect(ratio.decode > 0 && ratio.prompt > 0, "real kernels work on what they are given");
    pools_free(quick);
    pools_free(slow);
    topo_free(topo);
}

/* ------------------------------------------------------------------ all of it, here */

static struct tuning tune_here(const numoe_engine_params *params, struct topo **topo)
{
    struct tuning t;
    numoe_error err = {.text = ""};
    *topo = load(NULL);
    cr_assert_eq(tuning_open(params, true, *topo, &t, &err), NUMOE_OK, "%s", err.text);
    return t;
}

Test(tuning, measures_once, .init = begin, .fini = madeup_teardown, .timeout = 60)
{
    numoe_engine_params params;
    struct topo *topo, *again;
    numoe_engine_params_init(&params);
    setenv("NUMOE_PROBE", "auto", 1);
    struct tuning first = tune_here(&params, &topo);
    struct tuning second = tune_here(&params, &again);
    cr_expect_eq(first.source, TUNING_MEASURED);
    cr_expect_eq(second.source, TUNING_REMEMBERED, "%s", second.text);
    cr_expect_eq(second.workers_percent, first.workers_percent);
    cr_expect_eq(second.sleep_ns, first.sleep_ns);
    cr_expect_eq(again->pages_are_known, topo->pages_are_known);
    cr_expect_eq(again->small_pages_are_faster, topo->small_pages_are_faster);
    tuning_close(&first);
    tuning_close(&second);
    topo_free(topo);
    topo_free(again);
}

Test(tuning, remembered_values_are_used, .init = begin, .fini = madeup_teardown, .timeout = 60)
{
    numoe_engine_params params;
    struct topo *topo, *again;
    numoe_engine_params_init(&params);
    setenv("NUMOE_PROBE", "auto", 1);
    struct tuning first = tune_here(&params, &topo);
    const bool pages_are_open = topo->pages_are_known;
    memo_set(first.memo, "sleep_ns", 987654);
    memo_set(first.memo, "small_pages", 1);
    memo_save(first.memo);
    tuning_close(&first);
    struct tuning second = tune_here(&params, &again);
    cr_expect_eq(second.sleep_ns, 987654);
    cr_expect_eq(again->small_pages_are_faster, pages_are_open);
    tuning_close(&second);
    topo_free(topo);
    topo_free(again);

    setenv("NUMOE_SPIN_US", "700", 1); /* who says something is given it */
    setenv("NUMOE_PAGES", "thp", 1);
    struct tuning given = tune_here(&params, &topo);
    cr_expect_eq(given.sleep_ns, 700000);
    cr_expect(!topo->pages_are_known);
    tuning_close(&given);
    topo_free(topo);
}

Test(tuning, nothing_is_measured, .init = begin, .fini = madeup_teardown)
{
    char path[96];
    numoe_engine_params params;
    struct topo *topo;
    snprintf(path, sizeof path, "%s/numoe", root);
    setenv("NUMOE_PROBE", "auto", 1);
    numoe_engine_params_init(&params);
    params.no_probe = true;
    struct tuning t = tune_here(&params, &topo);
    cr_expect(t.source == TUNING_DEFAULTS && t.memo == NULL && t.workers_percent == 100 &&
              t.sleep_ns == POOL_SLEEP_NS && !topo->small_pages_are_faster);
    topo_free(topo);
    setenv("NUMOE_PROBE", "off", 1);
    params.no_probe = false;
    t = tune_here(&params, &topo);
    cr_expect(t.source == TUNING_DEFAULTS && t.memo == NULL);
    topo_free(topo);
    cr_expect_neq(access(path, F_OK), 0, "nothing is written");

    setenv("NUMOE_PROBE", "maybe", 1);
    numoe_error err = {.text = ""};
    topo = load(NULL);
    cr_expect_eq(tuning_open(&params, true, topo, &t, &err), NUMOE_E_INPUT);
    cr_expect(strstr(err.text, "NUMOE_PROBE is \"maybe\""), "%s", err.text);
    topo_free(topo);
}

#if defined(__x86_64__)
static long most_resident_kib(void)
{
    struct rusage usage;
    cr_assert_eq(getrusage(RUSAGE_SELF, &usage), 0);
    return usage.ru_maxrss;
}

/* A virtual machine may show all of its host's cache, and be slow to give memory that was never
 * touched. */
Test(tuning, probes_beside_large_caches, .timeout = 60)
{
    struct worker_ratio ratio = {0};
    const struct kern *kern;
    struct topo *topo = load("pack:2 [numa(memory=8GiB)] core:1 pu:1");
    struct pools *pools = NULL;
    double total_bps = 0, bps[2] = {0};
    numoe_error err = {.text = ""};
    topo->node[0].llc_bytes = topo->node[1].llc_bytes = (uint64_t)64 << 30;
    cr_assert_eq(pools_new(topo, 0, &pools, &err), NUMOE_OK, "%s", err.text);
    const long before_kib = most_resident_kib();
    cr_assert_eq(bandwidth_read(pools, topo, &total_bps, bps, &err), NUMOE_OK, "%s", err.text);
    cr_assert_eq(kern_select(&kern, &err), NUMOE_OK, "%s", err.text);
    cr_assert_eq(worker_probe(topo, kern, pools, pools, 0, &ratio, &err), NUMOE_OK, "%s", err.text);
    cr_expect_leq(most_resident_kib() - before_kib, 64 << 10);
    cr_expect(ratio.decode > 0 && ratio.prompt > 0, "%g, %g", ratio.decode, ratio.prompt);
    cr_expect(bps[0] > 1e8 && bps[1] > 1e8 && total_bps > 1e8, "%g, %g: %g", bps[0], bps[1], total_bps);
    cr_expect(total_bps <= bps[0] + bps[1], "all are as slow as the slowest node");
    pools_free(pools);
    topo_free(topo);
}
#endif

/* Each is remembered for the workers it was measured with. */
Test(tuning, bandwidth_of_nodes, .init = begin, .fini = madeup_teardown)
{
    struct tuning t = {.memo = memo_open("k")};
    struct placement_machine m = {
        .n_node = 2,
        .node = {{.os_index = 0, .n_worker = 4, .read_bps = 1e10},
                 {.os_index = 3, .n_worker = 2, .read_bps = 5e9}},
    };
    cr_expect(!tuning_recall_nodes(&t, &m) && m.node[0].read_bps == 1e10);
    tuning_note_nodes(&t, &m);
    m.node[0].read_bps = m.node[1].read_bps = 0;
    cr_expect(tuning_recall_nodes(&t, &m));
    cr_expect(m.node[0].read_bps == 1e10 && m.node[1].read_bps == 5e9);
    cr_expect_str_eq(m.bps_source, "measured before");
    m.node[1].n_worker = 4;
    cr_expect(!tuning_recall_nodes(&t, &m), "other workers");
    tuning_close(&t);
}

/* Two processes that began before either had measured. */
Test(tuning, bandwidth_from_several_processes, .init = begin, .fini = madeup_teardown)
{
    struct tuning first = {.memo = memo_open("k")}, second = {.memo = memo_open("k")};
    const struct placement_machine
        quick = {.n_node = 1, .node = {{.os_index = 0, .n_worker = 4, .read_bps = 3e10}}},
        disturbed = {.n_node = 1, .node = {{.os_index = 0, .n_worker = 4, .read_bps = 1e8}}};
    memo_set(first.memo, "x", 7);
    tuning_note_nodes(&first, &quick);
    tuning_note_nodes(&second, &disturbed);
    tuning_close(&first);
    tuning_close(&second);
    cr_expect_eq(get_anew("k", "node0_4_bps"), 3e10, "the larger one stays");
    cr_expect_eq(get_anew("k", "x"), 7, "what the other has written stays");
    cr_expect_eq(count_files(), 1, "the lock is gone");
}
