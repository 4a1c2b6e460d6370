/* runtime/watch: weights that are on other nodes than planned are noticed at load and later, at the
 * interval and not before, and said once.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "runtime/watch.h"
#include "tests/unit/rig.h"
#include "tests/unit/testdata.h"

static char logged[1024];
static unsigned n_logged;

static void keep_log(void *arg, numoe_log_level level, const char *line)
{
    (void)arg, (void)level;
    snprintf(logged, sizeof logged, "%s", line);
    n_logged++;
}

static unsigned home;

static int at_home(struct world *w, void **page, unsigned n_page, int *node)
{
    (void)w, (void)page;
    for (unsigned i = 0; i < n_page; i++) {
        node[i] = (int)home;
    }
    return 0;
}

/* One in eight is elsewhere. */
static int partly_away(struct world *w, void **page, unsigned n_page, int *node)
{
    at_home(w, page, n_page, node);
    for (unsigned i = 0; i < n_page; i += 8) {
        node[i]++;
    }
    return 0;
}

/* A small model on this machine; pages are where the tests say. */
static struct rig open_rig(void)
{
    char *path = test_src_path("tests/data/fixtures/deepseek3-a/deepseek3-a-f32.gguf");
    struct rig r = rig_open(path, 0, 1, 1);
    free(path);
    home = r.topo->node[0].os_index;
    r.topo->world->where = at_home;
    numoe_log_set(keep_log, NULL, NUMOE_LOG_WARN);
    return r;
}

Test(watch, pages_that_move_are_said_once)
{
    struct rig r = open_rig();
    struct watch watch;
    cr_assert_eq(watch_init(&watch, NULL), NUMOE_OK);
    watch_begin(&watch, r.store, r.topo);
    r.topo->world->where = partly_away;
    watch_look(&watch, r.store, r.topo, r.pools);
    cr_expect_eq(n_logged, 0, "it is not time to look: %s", logged);
    watch.next_ns = 0;
    watch_look(&watch, r.store, r.topo, r.pools);
    cr_expect_eq(n_logged, 1);
    /* Of regions that do not end with an eighth page, a little more than an eighth. */
    cr_expect(atof(logged) >= 12.5 && atof(logged) < 13 &&
                  strstr(logged, "on other nodes by now: "),
              "%s", logged);
    watch.next_ns = 0;
    watch_look(&watch, r.store, r.topo, r.pools);
    cr_expect_eq(n_logged, 1, "again: %s", logged);
    rig_close(&r);
}

Test(watch, pages_elsewhere_from_the_start_are_said_at_load)
{
    struct rig r = open_rig();
    struct watch watch;
    r.topo->world->where = partly_away;
    cr_assert_eq(watch_init(&watch, NULL), NUMOE_OK);
    watch_begin(&watch, r.store, r.topo);
    cr_expect_eq(n_logged, 1);
    cr_expect(strstr(logged, "on other nodes: "), "%s", logged);
    rig_close(&r);
}

Test(watch, interval)
{
    struct watch watch;
    numoe_error err;
    cr_assert_eq(watch_init(&watch, NULL), NUMOE_OK);
    cr_expect_eq(watch.interval_ns, UINT64_C(10000000000));
    setenv("NUMOE_WATCH_SECONDS", "often", 1);
    cr_expect_eq(watch_init(&watch, &err), NUMOE_E_INPUT);
    cr_expect(strstr(err.text, "NUMOE_WATCH_SECONDS"), "%s", err.text);
    setenv("NUMOE_WATCH_SECONDS", "0", 1);
    cr_assert_eq(watch_init(&watch, NULL), NUMOE_OK);
    struct rig r = open_rig();
    watch_begin(&watch, r.store, r.topo);
    r.topo->world->where = partly_away;
    watch.next_ns = 0;
    watch_look(&watch, r.store, r.topo, r.pools);
    cr_expect_eq(n_logged, 0, "%s", logged);
    rig_close(&r);
}
