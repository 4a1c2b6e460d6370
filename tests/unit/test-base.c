/* base/: error texts, knobs, checked allocation, strings, the log. */
#include <criterion/criterion.h>

#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/knob.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/probe.h"
#include "base/status.h"

/* ------------------------------------------------------------------ status */

Test(base, fail_fills_status_and_text)
{
    numoe_error err = {0};
    numoe_status status = status_fail(&err, NUMOE_E_FILE_FORMAT, "offset %d: bad", 12);
    cr_assert_eq(status, NUMOE_E_FILE_FORMAT);
    cr_assert_eq(err.status, NUMOE_E_FILE_FORMAT);
    cr_assert_str_eq(err.text, "offset 12: bad");
}

Test(base, fail_without_error_gives_status)
{
    cr_assert_eq(status_fail(NULL, NUMOE_E_MEMORY, "%s", "unseen"), NUMOE_E_MEMORY);
    cr_assert_eq(status_context(NULL, NUMOE_E_MEMORY, "%s", "unseen"), NUMOE_E_MEMORY);
}

Test(base, error_text_stays_one_line)
{
    numoe_error err = {0};
    status_fail(&err, NUMOE_E_INPUT, "name \"%s\"", "a\nb\x1b[2J\x7f\xc3\xa9");
    cr_assert_str_eq(err.text, "name \"a?b?[2J?\xc3\xa9\"");
    status_context(&err, NUMOE_E_INPUT, "file\r%d", 1);
    cr_assert_str_eq(err.text, "file?1: name \"a?b?[2J?\xc3\xa9\"");
}

/* Terminals obey U+009B as they do ESC [, and some a byte 0x9b. */
Test(base, error_text_is_no_order_to_a_terminal)
{
    numoe_error err = {0};
    status_fail(&err, NUMOE_E_INPUT, "%s",
                "\xc2\x9b[\x9b\xff\xed\xa0\x80|\xc2\xa0\xe2\x82\xac\xf0\x9f\x98\x80\xc3");
    cr_assert_str_eq(err.text, "??[?????|\xc2\xa0\xe2\x82\xac\xf0\x9f\x98\x80?");
}

Test(base, error_text_is_cut_not_overrun)
{
    char longer[2000];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    struct {
        numoe_error err;
        char guard[16];
    } s;
    memset(&s, 0x5a, sizeof s);
    status_fail(&s.err, NUMOE_E_INPUT, "%s", longer);
    cr_assert_eq(strlen(s.err.text), sizeof s.err.text - 1);
    status_context(&s.err, NUMOE_E_INPUT, "%s", longer);
    cr_assert_eq(strlen(s.err.text), sizeof s.err.text - 1);
    status_fail(&s.err, NUMOE_E_INPUT, "short");
    status_context(&s.err, NUMOE_E_INPUT, "%.511s", longer);
    cr_assert_eq(strlen(s.err.text), sizeof s.err.text - 1);
    for (size_t i = 0; i < sizeof s.guard; i++) {
        cr_assert_eq(s.guard[i], 0x5a);
    }
}

Test(base, context_keeps_the_first_status)
{
    numoe_error err = {0};
    status_fail(&err, NUMOE_E_FILE_FORMAT, "version 7");
    cr_assert_eq(status_context(&err, NUMOE_E_FILE_OPEN, "%s", "m.gguf"), NUMOE_E_FILE_FORMAT);
    cr_assert_str_eq(err.text, "m.gguf: version 7");
}

Test(base, an_error_may_quote_itself)
{
    numoe_error err = {0};
    status_fail(&err, NUMOE_E_INPUT, "inner");
    status_fail(&err, NUMOE_E_STATE, "outer (%s)", err.text);
    cr_assert_str_eq(err.text, "outer (inner)");
}

Test(base, every_status_has_its_sentence)
{
    cr_assert_str_eq(numoe_status_text(NUMOE_OK), "success");
    cr_assert_str_eq(numoe_status_text(NUMOE_E_STATE_CANCELLED), "cancelled");
    cr_assert_str_eq(numoe_status_text((numoe_status)-9999), "unknown status");
}

static numoe_status forward(numoe_status inner, bool *reached)
{
    FORWARD_IF(inner);
    *reached = true;
    return NUMOE_OK;
}

Test(base, forward_if_returns_failures_only)
{
    bool reached = false;
    cr_assert_eq(forward(NUMOE_E_DEVICE, &reached), NUMOE_E_DEVICE);
    cr_assert_not(reached);
    cr_assert_eq(forward(NUMOE_OK, &reached), NUMOE_OK);
    cr_assert(reached);
}

/* ------------------------------------------------------------------ knobs */

Test(base, knob_empty_is_unset)
{
    unsetenv("NUMOE_TEST_KNOB");
    cr_assert_null(knob_str("NUMOE_TEST_KNOB"));
    setenv("NUMOE_TEST_KNOB", "", 1);
    cr_assert_null(knob_str("NUMOE_TEST_KNOB"));
    setenv("NUMOE_TEST_KNOB", "x", 1);
    cr_assert_str_eq(knob_str("NUMOE_TEST_KNOB"), "x");
}

Test(base, knob_uint_keeps_the_default_where_unset)
{
    unsigned value = 7;
    unsetenv("NUMOE_TEST_KNOB");
    cr_assert_eq(knob_uint("NUMOE_TEST_KNOB", 1, 9, &value, NULL), NUMOE_OK);
    cr_assert_eq(value, 7u);
}

Test(base, knob_uint_takes_its_whole_range)
{
    unsigned value = 7;
    setenv("NUMOE_TEST_KNOB", "1", 1);
    cr_assert_eq(knob_uint("NUMOE_TEST_KNOB", 1, UINT32_MAX, &value, NULL), NUMOE_OK);
    cr_assert_eq(value, 1u);
    setenv("NUMOE_TEST_KNOB", "4294967295", 1);
    cr_assert_eq(knob_uint("NUMOE_TEST_KNOB", 1, UINT32_MAX, &value, NULL), NUMOE_OK);
    cr_assert_eq(value, UINT32_MAX);
}

Test(base, knob_uint_refuses_what_is_no_number_in_range)
{
    const char *bad[] = {
        "0", "10", "-1", "+3", " 3", "3 ", "3x", "x", "1e1", "0x2", "99999999999999999999999"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        unsigned value = 7;
        numoe_error err = {0};
        setenv("NUMOE_TEST_KNOB", bad[i], 1);
        cr_assert_eq(knob_uint("NUMOE_TEST_KNOB", 1, 9, &value, &err), NUMOE_E_INPUT, "\"%s\"",
                     bad[i]);
        cr_assert_eq(value, 7u);
        cr_assert_not_null(strstr(err.text, "NUMOE_TEST_KNOB"));
        cr_assert_not_null(strstr(err.text, bad[i]));
        cr_assert_not_null(strstr(err.text, "from 1 to 9"));
    }
}

/* ------------------------------------------------------------------ memory */

Test(base, mem_new_is_zeroed)
{
    unsigned char *p = NULL;
    cr_assert_eq(mem_new(&p, 1000, 3, "bytes", NULL), NUMOE_OK);
    for (size_t i = 0; i < 3000; i++) {
        cr_assert_eq(p[i], 0);
    }
    mem_free(p);
}

Test(base, mem_new_aligned_is_aligned_and_zeroed)
{
    for (size_t n = 1; n < 300; n += 7) {
        unsigned char *p = NULL;
        cr_assert_eq(mem_new_aligned(&p, n, 1, "bytes", NULL), NUMOE_OK);
        cr_assert_eq((uintptr_t)p % 64, 0u);
        for (size_t i = 0; i < n; i++) {
            cr_assert_eq(p[i], 0);
            p[i] = 0xff; /* the next block may be this one again */
        }
        mem_free(p);
    }
}

Test(base, no_elements_are_a_valid_pointer)
{
    void *p = NULL, *q = NULL;
    cr_assert_eq(mem_new(&p, 0, 8, "nothing", NULL), NUMOE_OK);
    cr_assert_not_null(p);
    cr_assert_eq(mem_new_aligned(&q, 0, 8, "nothing", NULL), NUMOE_OK);
    cr_assert_not_null(q);
    cr_assert_eq(mem_grow(&q, 0, 8, "nothing", NULL), NUMOE_OK);
    cr_assert_not_null(q);
    mem_free(p);
    mem_free(q);
    mem_free(NULL);
}

Test(base, too_large_products_are_refused)
{
    const size_t n[] = {SIZE_MAX, SIZE_MAX / 2 + 1, SIZE_MAX / 8 + 1, PTRDIFF_MAX};
    for (size_t i = 0; i < ARRAY_LEN(n); i++) {
        char here;
        void *p = &here;
        numoe_error err = {0};
        cr_assert_eq(mem_new(&p, n[i], 8, "the table", &err), NUMOE_E_MEMORY);
        cr_assert_not_null(strstr(err.text, "the table"));
        cr_assert_eq(mem_new_aligned(&p, n[i], 8, "the table", &err), NUMOE_E_MEMORY);
        cr_assert_eq(p, &here, "the output is written only on success");
        p = NULL;
        cr_assert_eq(mem_grow(&p, n[i], 8, "the table", &err), NUMOE_E_MEMORY);
        cr_assert_null(p);
    }
}

Test(base, mem_grow_keeps_the_contents)
{
    uint32_t *p = NULL;
    for (size_t n = 1; n <= 4096; n *= 2) {
        cr_assert_eq(mem_grow(&p, n, sizeof *p, "numbers", NULL), NUMOE_OK);
        for (size_t i = n / 2; i < n; i++) {
            p[i] = (uint32_t)i;
        }
    }
    for (size_t i = 0; i < 4096; i++) {
        cr_assert_eq(p[i], (uint32_t)i);
    }
    mem_free(p);
}

Test(base, strbuf_appends_and_formats)
{
    struct strbuf b = {0};
    cr_assert_eq(strbuf_append(&b, "", 0, NULL), NUMOE_OK);
    cr_assert_str_eq(b.data, "");
    cr_assert_eq(strbuf_append(&b, "ab\0c", 4, NULL), NUMOE_OK);
    cr_assert_eq(strbuf_printf(&b, NULL, "%s %05d", "x", 42), NUMOE_OK);
    cr_assert_eq(b.len, 11u);
    cr_assert_eq(memcmp(b.data, "ab\0cx 00042", 12), 0, "NUL-terminated, NUL inside kept");
    strbuf_fini(&b);
    cr_assert_null(b.data);
    cr_assert_eq(b.len, 0u);
}

Test(base, strbuf_grows_through_every_length)
{
    struct strbuf b = {0};
    for (unsigned i = 0; i < 1000; i++) {
        cr_assert_eq(strbuf_printf(&b, NULL, "%c", (int)('a' + i % 26)), NUMOE_OK);
        cr_assert_eq(b.len, i + 1u);
        cr_assert_eq(strlen(b.data), i + 1u);
        cr_assert_gt(b.cap, b.len);
    }
    for (unsigned i = 0; i < 1000; i++) {
        cr_assert_eq(b.data[i], (char)('a' + i % 26));
    }
    strbuf_fini(&b);
}

Test(base, strbuf_refuses_an_impossible_length)
{
    struct strbuf b = {0};
    cr_assert_eq(strbuf_append(&b, "x", 1, NULL), NUMOE_OK);
    cr_assert_eq(strbuf_append(&b, "x", SIZE_MAX, NULL), NUMOE_E_MEMORY);
    cr_assert_eq(strbuf_append(&b, "x", SIZE_MAX - 1, NULL), NUMOE_E_MEMORY);
    cr_assert_str_eq(b.data, "x");
    strbuf_fini(&b);
}

#ifdef NUMOE_DEBUG
Test(base, alloc_guard_ends_the_process, .signal = SIGABRT)
{
    void *p = NULL;
    alloc_guard_begin("the test");
    mem_new(&p, 1, 1, "a byte", NULL);
}
#endif

Test(base, alloc_guard_ends_with_its_phase)
{
    void *p = NULL;
    alloc_guard_begin("the test");
    alloc_guard_end();
    cr_assert_eq(mem_new(&p, 1, 1, "a byte", NULL), NUMOE_OK);
    mem_free(p);
}

Test(base, round_up_to_any_multiple)
{
    cr_assert_eq(round_up(0, 64), 0u);
    cr_assert_eq(round_up(1, 64), 64u);
    cr_assert_eq(round_up(64, 64), 64u);
    cr_assert_eq(round_up(65, 48), 96u);
}

Test(base, clock_goes_forward_in_nanoseconds)
{
    uint64_t before = clock_ns();
    struct timespec ms = {0, 2000000};
    nanosleep(&ms, NULL);
    uint64_t after = clock_ns();
    cr_assert_geq(after - before, 2000000u);
    cr_assert_lt(after - before, 60ull * 1000000000u);
}

/* ------------------------------------------------------------------ log */

struct heard {
    unsigned n;
    numoe_log_level level;
    char line[64];
};

static void hear(void *arg, numoe_log_level level, const char *line)
{
    struct heard *heard = arg;
    heard->n++;
    heard->level = level;
    strncpy(heard->line, line, sizeof heard->line - 1);
}

Test(base, log_reaches_the_host_at_its_level)
{
    struct heard heard = {0};
    numoe_log_set(hear, &heard, NUMOE_LOG_INFO);
    log_debug("too much");
    cr_assert_eq(heard.n, 0u);
    log_info("node %d", 1);
    cr_assert_eq(heard.n, 1u);
    cr_assert_eq(heard.level, NUMOE_LOG_INFO);
    cr_assert_str_eq(heard.line, "node 1");
    log_error("end");
    cr_assert_eq(heard.n, 2u);
    cr_assert(log_enabled(NUMOE_LOG_INFO));
    cr_assert_not(log_enabled(NUMOE_LOG_DEBUG));
}

Test(base, log_level_that_is_none_is_refused)
{
    numoe_error err = {0};
    unsetenv("NUMOE_LOG");
    numoe_log_set(NULL, NULL, NUMOE_LOG_WARN);
    cr_assert_eq(log_check(&err), NUMOE_OK);
    setenv("NUMOE_LOG", "info", 1);
    cr_assert_eq(log_check(&err), NUMOE_OK);
    setenv("NUMOE_LOG", "loud", 1);
    cr_assert_eq(log_check(&err), NUMOE_E_INPUT);
    cr_assert_not_null(strstr(err.text, "\"loud\""));
    numoe_log_set(hear, NULL,
                  NUMOE_LOG_WARN); /* the host decides, the environment does not count */
    cr_assert_eq(log_check(&err), NUMOE_OK);
}

Test(base, log_level_comes_from_the_environment)
{
    unsetenv("NUMOE_LOG");
    numoe_log_set(NULL, NULL, NUMOE_LOG_DEBUG);
    cr_assert(log_enabled(NUMOE_LOG_WARN));
    cr_assert_not(log_enabled(NUMOE_LOG_INFO));
    setenv("NUMOE_LOG", "debug", 1);
    numoe_log_set(NULL, NULL, NUMOE_LOG_ERROR);
    cr_assert(log_enabled(NUMOE_LOG_DEBUG));
    setenv("NUMOE_LOG", "error", 1);
    numoe_log_set(NULL, NULL, NUMOE_LOG_DEBUG);
    cr_assert_not(log_enabled(NUMOE_LOG_WARN));
}

/* ------------------------------------------------------------------ probe */

static struct probe_track *new_track(bool by_counter)
{
    struct probe_track *t;
    numoe_error err;
    cr_assert_eq(probe_new(1, 2, true, &t, &err), NUMOE_OK, "%s", err.text);
    t->by_counter = t->by_counter && by_counter;
    return t;
}

static void pass(uint64_t ns)
{
    const uint64_t begin = clock_ns();
    while (clock_ns() - begin < ns) {
    }
}

/* By the processor's counter where that is good, and by the clock. */
Test(probe, stages_add_up_to_the_time)
{
    for (int by_counter = 0; by_counter < 2; by_counter++) {
        uint64_t counted = 0;
        struct probe_track *t = new_track(by_counter);
        t->counter[0] = &counted;
        const uint64_t begin = clock_ns();
        probe_begin(t, PROBE_EMBED);
        pass(2000000);
        probe_enter(t, 1, PROBE_EXPERTS);
        counted = 7;
        pass(20000000);
        probe_end(t);
        const double all = (double)(clock_ns() - begin);
        const struct probe_sum embed = probe_total(t, PROBE_EMBED);
        const struct probe_sum experts = probe_of_layer(t, 1, PROBE_EXPERTS);
        cr_assert_leq((double)(embed.ns + experts.ns), 1.005 * all); /* a pause is in both */
        cr_assert_geq(embed.ns, 1990000u);
        cr_assert_geq(experts.ns, 19900000u);
        cr_assert(embed.count == 0 && experts.count == 7);
        cr_assert(t->n_span == 3 && t->span[0].stage == PROBE_EMBED &&
                  t->span[0].layer == UINT16_MAX && t->span[1].stage == PROBE_EXPERTS &&
                  t->span[1].layer == 1 && t->span[2].stage == N_PROBE_STAGE);
        cr_assert(t->span[0].count == 0 && t->span[1].count == 7);
        cr_assert_float_eq((double)(t->span[2].begin - t->span[1].begin) * probe_tick_ns(t),
                           (double)experts.ns, 0.01 * (double)experts.ns);
        probe_free(t, 1);
    }
}
