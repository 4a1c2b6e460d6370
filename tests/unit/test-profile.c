/* The profile and the trace of real generations: rows add up to the time that passed, spans are
 * well-formed Chrome trace events that lie side by side, and nothing else changes.
 */
#include <criterion/criterion.h>

#include <jansson.h>

#include "base/clock.h"
#include "base/mem.h"
#include "numoe/numoe.h"
#include "tests/unit/sequences.h"
#include "tests/unit/testdata.h"

#define N_TOKEN 40

/* Two nodes with a worker each. */
static numoe_engine *open_engine_as(numoe_placement placement, numoe_mode mode, const char *gpu)
{
    numoe_engine_params params;
    numoe_engine *engine = NULL;
    numoe_error err;
    numoe_engine_params_init(&params);
    params.topology = "pack:2 [numa(memory=64GiB)] core:2 pu:1";
    params.placement = placement;
    params.mode = mode;
    params.gpu = gpu;
    params.n_thread = 2;
    cr_assert_eq(numoe_engine_open(&params, &engine, &err), NUMOE_OK, "%s", err.text);
    return engine;
}

static numoe_engine *open_engine(void)
{
    return open_engine_as(NUMOE_PLACEMENT_SLICE, NUMOE_MODE_LATENCY, NULL);
}

/* Seconds that a generation took; ids [N_TOKEN + prompt] where they are wanted. */
static double generate(numoe_engine *engine, int32_t *ids)
{
    static const int32_t prompt[] = {1, 50, 60, 70, 80, 90};
    numoe_session *s = NULL;
    numoe_sampler *sampler = NULL;
    numoe_sampler_params params;
    numoe_generate_result result;
    const numoe_generate_params how = {.max_tokens = N_TOKEN, .ignore_eog = true};
    numoe_error err;
    numoe_sampler_params_init(&params);
    cr_assert_eq(numoe_session_new(engine, 0, &s, &err), NUMOE_OK);
    cr_assert_eq(numoe_session_append(s, prompt, 6, &err), NUMOE_OK);
    cr_assert_eq(numoe_sampler_new(&params, numoe_engine_get_info(engine)->n_vocab, &sampler, &err),
                 NUMOE_OK);
    cr_assert_eq(numoe_generate(s, sampler, &how, &result, &err), NUMOE_OK, "%s", err.text);
    if (ids != NULL) {
        memcpy(ids, numoe_session_tokens(s), (6 + N_TOKEN) * sizeof *ids);
    }
    numoe_sampler_free(sampler);
    numoe_session_free(s);
    return result.prompt_seconds + result.generate_seconds;
}

static double sum_of_rows(const numoe_engine *engine, uint64_t *bytes)
{
    numoe_profile_row row;
    double sum = 0;
    *bytes = 0;
    for (unsigned i = 0; numoe_profile_get(engine, i, &row); i++) {
        sum += row.seconds;
        *bytes += row.bytes;
    }
    return sum;
}

static uint64_t traffic(const numoe_engine *engine)
{
    numoe_traffic t;
    uint64_t sum = 0;
    for (unsigned i = 0; numoe_engine_traffic(engine, i, &t); i++) {
        sum += t.local_bytes + t.remote_bytes;
    }
    return sum;
}

static double generate_one(numoe_engine *engine)
{
    return generate(engine, NULL);
}

/* Sequences that decode together. */
static double step_sessions(numoe_engine *engine)
{
    enum { N_SESSION = 4 };
    numoe_session *s[N_SESSION];
    numoe_error err;
    for (unsigned is = 0; is < N_SESSION; is++) {
        cr_assert_eq(numoe_session_new(engine, 0, &s[is], &err), NUMOE_OK, "%s", err.text);
    }
    const double begin = clock_seconds();
    for (unsigned i = 0; i < N_TOKEN; i++) {
        for (unsigned is = 0; is < N_SESSION; is++) {
            append(s[is], is, 1);
        }
        cr_assert_eq(numoe_step(engine, s, N_SESSION, &err), NUMOE_OK, "%s", err.text);
    }
    const double wall = clock_seconds() - begin;
    for (unsigned is = 0; is < N_SESSION; is++) {
        numoe_session_free(s[is]);
    }
    return wall;
}

/* Requests that begin and end at different times. */
static double run_requests(numoe_engine *engine)
{
    static const int32_t prompt[] = {1, 50, 60, 70, 80, 90};
    const numoe_batch_params params = {.n_ctx = 128, .max_sequences = 3};
    numoe_request request = {.ids = prompt, .ignore_eog = true};
    numoe_completion done;
    numoe_batch *batch;
    numoe_error err;
    unsigned n = 0;
    numoe_sampler_params_init(&request.sampler);
    cr_assert_eq(numoe_batch_new(engine, &params, &batch, &err), NUMOE_OK, "%s", err.text);
    for (request.n_id = 1; request.n_id <= ARRAY_LEN(prompt); request.n_id++) {
        request.max_tokens = N_TOKEN - 4 * request.n_id;
        cr_assert_eq(numoe_batch_submit(batch, &request, &err), NUMOE_OK, "%s", err.text);
    }
    const double begin = clock_seconds();
    while (n < ARRAY_LEN(prompt)) {
        cr_assert_eq(numoe_batch_step(batch, &err), NUMOE_OK, "%s", err.text);
        n += numoe_batch_next(batch, &done);
    }
    const double wall = clock_seconds() - begin;
    numoe_batch_free(batch);
    return wall;
}

/* A thread that the system takes the processor from between two steps is in no row: some tries. */
static void check_rows(numoe_engine *engine, double (*run)(numoe_engine *), const char *what)
{
    numoe_error err;
    double sum = 0, wall = 1;
    for (unsigned try = 0; try < 9 && (sum < 0.97 * wall || sum > 1.03 * wall); try++) {
        const uint64_t before = traffic(engine);
        uint64_t bytes;
        cr_assert_eq(numoe_profile_start(engine, false, &err), NUMOE_OK);
        wall = run(engine);
        cr_assert_geq(numoe_engine_bandwidth(engine), 0); /* what else workers do is in no row */
        sum = sum_of_rows(engine, &bytes);
        cr_assert_eq(bytes, traffic(engine) - before, "%s: every byte is in a row", what);
    }
    cr_assert(sum >= 0.97 * wall && sum <= 1.03 * wall, "%s: rows %g s of %g s", what, sum, wall);
    numoe_engine_close(engine);
}

Test(profile, rows_add_up, .timeout = 120)
{
    check_rows(open_engine(), generate_one, "one sequence");
}

Test(profile, rows_of_several_sequences_add_up, .timeout = 120)
{
    check_rows(open_engine(), step_sessions, "sequences together");
    check_rows(open_engine_as(NUMOE_PLACEMENT_REPLICATE, NUMOE_MODE_THROUGHPUT, NULL),
               step_sessions, "lanes");
    check_rows(open_engine(), run_requests, "a batch");
}

Test(profile, rows_with_a_gpu_add_up, .timeout = 120)
{
    check_rows(open_engine_as(NUMOE_PLACEMENT_SLICE, NUMOE_MODE_LATENCY, "emu"), generate_one,
               "a GPU");
}

/* Nobody is waited for. */
Test(profile, one_worker_has_no_meetings, .timeout = 120)
{
    numoe_engine_params params;
    numoe_engine *engine = NULL;
    numoe_profile_row row;
    numoe_error err;
    numoe_engine_params_init(&params);
    params.n_thread = 1;
    cr_assert_eq(numoe_engine_open(&params, &engine, &err), NUMOE_OK, "%s", err.text);
    cr_assert_eq(numoe_profile_start(engine, false, &err), NUMOE_OK);
    generate(engine, NULL);
    for (unsigned i = 0; numoe_profile_get(engine, i, &row); i++) {
        cr_expect_eq(row.seconds > 0 && strcmp(row.name, "meetings") == 0, false);
    }
    numoe_engine_close(engine);
}

Test(profile, changes_nothing_and_ends, .timeout = 120)
{
    int32_t plain[6 + N_TOKEN], measured[6 + N_TOKEN];
    numoe_engine *engine = open_engine();
    numoe_profile_row row;
    numoe_error err;
    cr_assert_not(numoe_profile_get(engine, 0, &row));
    cr_assert_eq(numoe_profile_print(engine, 1, NUMOE_REPORT_TEXT, stderr, &err), NUMOE_E_STATE);
    cr_assert_eq(numoe_trace_write(engine, stderr, &err), NUMOE_E_STATE);
    generate(engine, plain);
    cr_assert_eq(numoe_profile_start(engine, true, &err), NUMOE_OK);
    generate(engine, measured);
    cr_assert_arr_eq(plain, measured, sizeof plain);
    numoe_profile_stop(engine);
    cr_assert_not(numoe_profile_get(engine, 0, &row));
    generate(engine, measured);
    cr_assert_arr_eq(plain, measured, sizeof plain);
    numoe_engine_close(engine);
}

/* ------------------------------------------------------------------ trace */

#define N_LAYER  6
#define MAX_STEP (N_TOKEN + 8)
#define ROUND_US 0.0015 /* numbers are rounded to thousandths */
#define CPUS_US  2.0    /* clocks of two CPUs differ by less */

struct seen {
    double end[16][16];  /* of the last span of a thread */
    size_t step[16][16]; /* in which that was */
    double step_begin[MAX_STEP], step_end[MAX_STEP];
    double worker_seconds; /* of all workers' spans together */
    size_t n_span, n_name, n_step;
};

/* A worker's span lies within a step of the caller's. */
static void check_nested(struct seen *seen, json_int_t pid, json_int_t tid, double begin,
                         double end)
{
    size_t *at = &seen->step[pid][tid];
    while (*at < seen->n_step && begin > seen->step_end[*at] - ROUND_US) {
        ++*at;
    }
    cr_assert(*at < seen->n_step && begin >= seen->step_begin[*at] - CPUS_US &&
                  end <= seen->step_end[*at] + CPUS_US,
              "a worker's span from %g to %g us is in no step", begin, end);
}

static void check_args(const json_t *event)
{
    const json_t *args = json_object_get(event, "args");
    const json_t *layer = json_object_get(args, "layer");
    cr_assert(json_is_integer(json_object_get(args, "bytes")));
    cr_assert(layer == NULL || (json_is_integer(layer) && json_integer_value(layer) >= 0 &&
                                json_integer_value(layer) < N_LAYER));
}

/* As the format's description has it: names, phases, numbers. */
static void check_event(const json_t *event, struct seen *seen)
{
    const char *phase = json_string_value(json_object_get(event, "ph"));
    const json_int_t pid = json_integer_value(json_object_get(event, "pid"));
    const json_int_t tid = json_integer_value(json_object_get(event, "tid"));
    cr_assert(json_is_string(json_object_get(event, "name")));
    cr_assert(pid > 0 && pid < 16 && tid >= 0 && tid < 16);
    if (strcmp(phase, "M") == 0) {
        const json_t *args = json_object_get(event, "args");
        cr_assert(json_is_string(json_object_get(args, "name")));
        seen->n_name++;
        return;
    }
    const json_t *ts = json_object_get(event, "ts"), *dur = json_object_get(event, "dur");
    cr_assert_str_eq(phase, "X");
    cr_assert(json_is_number(ts) && json_is_number(dur));
    const double begin = json_number_value(ts), end = begin + json_number_value(dur);
    cr_assert(begin >= seen->end[pid][tid] - ROUND_US, "spans of a thread overlap");
    cr_assert(json_number_value(dur) >= 0);
    check_args(event);
    if (pid > 1) {
        check_nested(seen, pid, tid, begin, end);
        seen->worker_seconds += (end - begin) * 1e-6;
    } else if (strcmp(json_string_value(json_object_get(event, "name")), "step") == 0) {
        cr_assert_lt(seen->n_step, MAX_STEP);
        seen->step_begin[seen->n_step] = begin;
        seen->step_end[seen->n_step++] = end;
    }
    seen->end[pid][tid] = end;
    seen->n_span++;
}

/* What the table has of workers: their mean. */
static double table_seconds(const numoe_engine *engine)
{
    static const char *const callers[] = {"start, end", "sampling", "batch", "wait for result"};
    numoe_profile_row row;
    double sum = 0;
    for (unsigned i = 0; numoe_profile_get(engine, i, &row); i++) {
        bool is_callers = false;
        for (size_t j = 0; j < ARRAY_LEN(callers); j++) {
            is_callers = is_callers || strcmp(row.name, callers[j]) == 0;
        }
        sum += is_callers ? 0 : row.seconds;
    }
    return sum;
}

Test(trace, opens_as_chrome_events, .timeout = 120)
{
    numoe_engine *engine = open_engine();
    numoe_error err;
    struct seen seen = {.n_span = 0};
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    cr_assert_eq(numoe_profile_start(engine, true, &err), NUMOE_OK);
    generate(engine, NULL);
    cr_assert_eq(numoe_trace_write(engine, f, &err), NUMOE_OK, "%s", err.text);
    fclose(f);
    json_error_t why;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why);
    cr_assert_not_null(root, "%s", why.text);
    const json_t *events = json_object_get(root, "traceEvents");
    cr_assert(json_is_array(events));
    for (size_t i = 0; i < json_array_size(events); i++) {
        check_event(json_array_get(events, i), &seen);
    }
    /* the engine, two nodes, a worker on each; N_TOKEN steps of 6 layers, each with meetings */
    cr_assert_eq(seen.n_name, 5);
    cr_assert_geq(seen.n_span, (size_t)2 * N_TOKEN * N_LAYER * 4);
    cr_assert_geq(seen.n_step, N_TOKEN);
    cr_assert_float_eq(seen.worker_seconds / 2, table_seconds(engine),
                       0.002 * table_seconds(engine), "spans %g s, table %g s",
                       seen.worker_seconds / 2, table_seconds(engine));
    const json_t *other = json_object_get(root, "otherData");
    cr_assert_eq(json_integer_value(json_object_get(other, "spans_lost")), 0);
    json_decref(root);
    free(text);
    numoe_engine_close(engine);
}
