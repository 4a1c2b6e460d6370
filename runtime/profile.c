/* What an engine's probe has seen, as a table, as JSON, and as a trace that Perfetto and Chrome
 * open.
 *
 * A worker's stages add up to its part of the steps; a row of the table is their mean over all
 * workers. What the caller's thread sees of a step beyond that is waking workers and waiting for
 * the last: "start, end". Its own stages, sampling and batches, are rows as they are.
 */
#include <inttypes.h>

#include "base/log.h"
#include "runtime/engine.h"

struct table {
    const numoe_engine *e;
    unsigned n_worker;
    double wall_seconds, bandwidth_bps;
};

static const struct probe_track *worker_tracks(const numoe_engine *e)
{
    return e->probe + 1;
}

static void touch(struct worker *w, void *tracks)
{
    probe_touch((struct probe_track *)tracks + w->ig);
}

numoe_status numoe_profile_start(numoe_engine *engine, bool trace, numoe_error *err)
{
    const unsigned n_track = engine->info.n_worker + 1;
    struct probe_track *probe;

    FORWARD_IF(probe_new(n_track, engine->model->hp.n_layer, trace, &probe, err));
    numoe_profile_stop(engine);
    if (trace) {
        probe_touch(probe);
        pools_run(engine->pools, touch, probe + 1);
    }
    engine->probe = probe;
    engine->n_track = n_track;
    engine->profile_steps = engine->profile_tokens = 0;
    step_set_probe(engine->step, probe, probe + 1);
    return NUMOE_OK;
}

void numoe_profile_stop(numoe_engine *engine)
{
    if (engine->step) {
        step_set_probe(engine->step, NULL, NULL);
    }
    probe_free(engine->probe, engine->n_track);
    engine->probe = NULL;
    engine->n_track = 0;
}

/* ------------------------------------------------------------------ rows */

static double seconds(uint64_t ns)
{
    return (double)ns * 1e-9;
}

static bool is_callers(enum probe_stage stage)
{
    return stage == PROBE_STEP || stage == PROBE_SAMPLING || stage == PROBE_BATCH ||
           stage == PROBE_GPU_RESULT || stage == PROBE_COPYING;
}

/* Mean seconds of workers [from, to), bytes of all of them. */
static numoe_profile_row worker_row(const numoe_engine *e, unsigned from, unsigned to,
                                    enum probe_stage stage)
{
    numoe_profile_row row = {.name = probe_stage_name(stage)};
    for (unsigned i = from; i < to; i++) {
        const struct probe_sum sum = probe_total(&worker_tracks(e)[i], stage);
        row.seconds += seconds(sum.ns) / (to - from);
        row.bytes += sum.count;
    }
    return row;
}

static double caller_seconds(const numoe_engine *e, enum probe_stage stage)
{
    return seconds(probe_total(&e->probe[0], stage).ns);
}

/* The step as the caller sees it, less the workers' part of it. */
static double idle_seconds(const numoe_engine *e)
{
    double busy = 0;
    for (unsigned is = 0; is < N_PROBE_STAGE; is++) {
        busy += worker_row(e, 0, e->info.n_worker, (enum probe_stage)is).seconds;
    }
    return MAX(caller_seconds(e, PROBE_STEP) - busy, 0.0);
}

bool numoe_profile_get(const numoe_engine *engine, unsigned index, numoe_profile_row *row)
{
    const enum probe_stage stage = (enum probe_stage)index;

    if (!engine->probe || index >= N_PROBE_STAGE) {
        return false;
    }
    if (stage == PROBE_STEP) {
        *row = (numoe_profile_row){.name = "start, end", .seconds = idle_seconds(engine)};
    } else if (is_callers(stage)) {
        *row = (numoe_profile_row){.name = probe_stage_name(stage),
                                   .seconds = caller_seconds(engine, stage)};
    } else {
        *row = worker_row(engine, 0, engine->info.n_worker, stage);
    }
    return true;
}

/* ------------------------------------------------------------------ table */

static void print_rate(FILE *out, double bytes, double secs, double possible_bps)
{
    if (bytes > 0 && secs > 0) {
        fprintf(out, "  %9.3f  %7.2f", bytes * 1e-9, bytes / secs * 1e-9);
        if (possible_bps > 0) {
            fprintf(out, "  %5.0f %%", bytes / secs / possible_bps * 100);
        }
    }
    fputc('\n', out);
}

static void print_stages(const struct table *t, FILE *out)
{
    numoe_profile_row row, sum = {0};
    const double n_token = (double)MAX(t->e->profile_tokens, 1u);

    fprintf(out, "%-16s  %9s  %7s  %10s  %9s  %7s  %7s\n", "stage", "seconds", "of all",
            "us a token", "GB", "GB/s", "of most");
    for (unsigned i = 0; numoe_profile_get(t->e, i, &row); i++) {
        if (row.seconds > 0) {
            fprintf(out, "%-16s  %9.4f  %5.1f %%  %10.1f", row.name, row.seconds,
                    row.seconds / t->wall_seconds * 100, row.seconds / n_token * 1e6);
            print_rate(out, (double)row.bytes, row.seconds, t->bandwidth_bps);
        }
        sum.seconds += row.seconds;
        sum.bytes += row.bytes;
    }
    fprintf(out, "%-16s  %9.4f  %5.1f %%  %10.1f", "all", sum.seconds,
            sum.seconds / t->wall_seconds * 100, sum.seconds / n_token * 1e6);
    print_rate(out, (double)sum.bytes, sum.seconds, t->bandwidth_bps);
}

static double layer_us(const struct table *t, unsigned il, enum probe_stage stage)
{
    double ns = 0;
    for (unsigned i = 0; i < t->n_worker; i++) {
        ns += (double)probe_of_layer(&worker_tracks(t->e)[i], il, stage).ns;
    }
    return ns / t->n_worker / (double)MAX(t->e->profile_tokens, 1u) * 1e-3;
}

static const enum probe_stage layer_stages[] = {PROBE_ATTENTION, PROBE_ROUTER, PROBE_EXPERTS,
                                                PROBE_SHARED,    PROBE_DENSE,  PROBE_MEETING,
                                                PROBE_GPU_HAND};

/* The last of them is of no interest without a GPU. */
static unsigned n_layer_stage(const struct table *t)
{
    return ARRAY_LEN(layer_stages) - (t->e->gpu == NULL ? 1 : 0);
}

static void print_layers(const struct table *t, FILE *out)
{
    fputs("\nlayer, us a token", out);
    for (unsigned i = 0; i < n_layer_stage(t); i++) {
        fprintf(out, "  %14s", probe_stage_name(layer_stages[i]));
    }
    fputc('\n', out);
    for (unsigned il = 0; il < t->e->model->hp.n_layer; il++) {
        fprintf(out, "%17u", il);
        for (unsigned i = 0; i < n_layer_stage(t); i++) {
            fprintf(out, "  %14.1f", layer_us(t, il, layer_stages[i]));
        }
        fputc('\n', out);
    }
}

/* Workers are numbered node by node. */
static void print_nodes(const struct table *t, FILE *out)
{
    const numoe_engine *e = t->e;
    unsigned from = 0;
    fputs("\nnode  workers  working s  meetings s         GB     GB/s\n", out);
    for (unsigned in = 0; in < e->info.n_node; in++) {
        const unsigned to = from + pools_node_workers(e->pools, in);
        numoe_profile_row meeting = {0}, work = {0};
        for (unsigned is = 0; is < N_PROBE_STAGE; is++) {
            const numoe_profile_row row = worker_row(e, from, to, (enum probe_stage)is);
            meeting.seconds += is == PROBE_MEETING ? row.seconds : 0;
            work.seconds += is == PROBE_MEETING || is == PROBE_GPU_HAND ? 0 : row.seconds;
            work.bytes += row.bytes;
        }
        fprintf(out, "%4u  %7u  %9.4f  %10.4f", e->topo->node[in].os_index, to - from, work.seconds,
                meeting.seconds);
        print_rate(out, (double)work.bytes, work.seconds + meeting.seconds, 0);
        from = to;
    }
}

static void print_json(const struct table *t, FILE *out)
{
    numoe_profile_row row;
    fprintf(out,
            "{\"wall_seconds\": %.6f, \"steps\": %" PRIu64 ", \"tokens\": %" PRIu64
            ", \"bandwidth_bytes_per_second\": %.0f, \"workers\": %u, \"stages\": [",
            t->wall_seconds, t->e->profile_steps, t->e->profile_tokens, t->bandwidth_bps,
            t->n_worker);
    for (unsigned i = 0; numoe_profile_get(t->e, i, &row); i++) {
        fprintf(out, "%s\n  {\"stage\": \"%s\", \"seconds\": %.6f, \"bytes\": %" PRIu64 "}",
                i ? "," : "", row.name, row.seconds, row.bytes);
    }
    fputs("\n], \"layers_us_a_token\": [", out);
    for (unsigned il = 0; il < t->e->model->hp.n_layer; il++) {
        fprintf(out, "%s\n  {\"layer\": %u", il ? "," : "", il);
        for (unsigned i = 0; i < n_layer_stage(t); i++) {
            fprintf(out, ", \"%s\": %.3f", probe_stage_name(layer_stages[i]),
                    layer_us(t, il, layer_stages[i]));
        }
        fputc('}', out);
    }
    fputs("\n]}\n", out);
}

numoe_status numoe_profile_print(numoe_engine *engine, double wall_seconds,
                                 numoe_report_format format, FILE *out, numoe_error *err)
{
    const struct table t = {
        .e = engine,
        .n_worker = engine->info.n_worker,
        .wall_seconds = wall_seconds,
        .bandwidth_bps = numoe_engine_bandwidth(engine),
    };
    if (!engine->probe) {
        return status_fail(err, NUMOE_E_STATE, "no profile was started");
    }
    if (format == NUMOE_REPORT_SVG) {
        return status_fail(err, NUMOE_E_INPUT, "there is no picture of a profile");
    }
    if (format == NUMOE_REPORT_JSON) {
        print_json(&t, out);
    } else {
        print_stages(&t, out);
        print_layers(&t, out);
        print_nodes(&t, out);
    }
    return ferror(out) ? status_fail(err, NUMOE_E_FILE_WRITE, "the profile cannot be written")
                       : NUMOE_OK;
}

/* ------------------------------------------------------------------ trace */

static void put_name(FILE *out, const char *what, unsigned pid, unsigned tid, const char *name,
                     unsigned number)
{
    fprintf(out,
            "{\"name\": \"%s\", \"ph\": \"M\", \"pid\": %u, \"tid\": %u, \"args\": {\"name\": "
            "\"%s %u\"}},\n",
            what, pid, tid, name, number);
}

struct scale {
    uint64_t first; /* of all spans: 0 of the trace */
    double tick_us;
};

static void put_spans(FILE *out, const struct probe_track *t, const struct scale *scale,
                      unsigned pid, unsigned tid, bool *any)
{
    for (size_t i = 0; i + 1 < t->n_span; i++) {
        const struct probe_span *s = &t->span[i];
        if (s->stage == N_PROBE_STAGE) {
            continue;
        }
        fprintf(out,
                "%s{\"name\": \"%s\", \"cat\": \"numoe\", \"ph\": \"X\", \"pid\": %u, \"tid\": %u, "
                "\"ts\": %.3f, \"dur\": %.3f, \"args\": {",
                *any ? ",\n" : "", probe_stage_name((enum probe_stage)s->stage), pid, tid,
                (double)(s->begin - scale->first) * scale->tick_us,
                (double)(s[1].begin - s->begin) * scale->tick_us);
        if (s->layer != UINT16_MAX) {
            fprintf(out, "\"layer\": %u, ", s->layer);
        }
        fprintf(out, "\"bytes\": %u}}", s->count);
        *any = true;
    }
}

static uint64_t first_of_all(const numoe_engine *e)
{
    uint64_t first = UINT64_MAX;
    for (unsigned i = 0; i < e->n_track; i++) {
        if (e->probe[i].n_span > 0) {
            first = MIN(first, e->probe[i].span[0].begin);
        }
    }
    return first;
}

/* A process for the caller, one for each node; pid 0 would be taken for the idle process. */
static void put_events(const numoe_engine *e, FILE *out)
{
    const struct scale scale = {first_of_all(e), probe_tick_ns(e->probe) * 1e-3};
    unsigned track = 1;
    bool any = false;
    put_name(out, "process_name", 1, 0, "engine", 0);
    for (unsigned in = 0; in < e->info.n_node; in++) {
        const unsigned n = pools_node_workers(e->pools, in);
        put_name(out, "process_name", in + 2, 0, "node", e->topo->node[in].os_index);
        for (unsigned iw = 0; iw < n; iw++) {
            put_name(out, "thread_name", in + 2, iw + 1, "worker", iw);
        }
    }
    put_spans(out, &e->probe[0], &scale, 1, 1, &any);
    for (unsigned in = 0; in < e->info.n_node; in++) {
        const unsigned n = pools_node_workers(e->pools, in);
        for (unsigned iw = 0; iw < n; iw++) {
            put_spans(out, &e->probe[track++], &scale, in + 2, iw + 1, &any);
        }
    }
}

numoe_status numoe_trace_write(const numoe_engine *engine, FILE *out, numoe_error *err)
{
    uint64_t n_lost = 0, n = 0;
    for (unsigned i = 0; i < engine->n_track; i++) {
        n_lost += engine->probe[i].n_lost;
        n += engine->probe[i].n_span;
    }
    if (n == 0) {
        return status_fail(err, NUMOE_E_STATE,
                           "there is no trace: nothing ran since one was started");
    }
    fputs("{\"displayTimeUnit\": \"ns\", \"traceEvents\": [\n", out);
    put_events(engine, out);
    fprintf(out, "\n], \"otherData\": {\"program\": \"numoe %s\", \"spans_lost\": %" PRIu64 "}}\n",
            numoe_version(), n_lost);
    if (n_lost > 0) {
        log_warn("the trace ends early: there was no room for %" PRIu64 " of %" PRIu64 " spans",
                 n_lost, n_lost + n);
    }
    return fflush(out) != 0 || ferror(out)
               ? status_fail(err, NUMOE_E_FILE_WRITE, "the trace cannot be written")
               : NUMOE_OK;
}
