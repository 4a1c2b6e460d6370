/* numoe bench: how fast prompts are read and tokens generated, and where the time goes: what
 * llama-bench users know, with the share of the memory bandwidth and the profile of each row.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

#define MAX_LIST   32
#define MAX_REPEAT 1000
#define MAX_ROW    16 /* stages of a profile */

enum format { FORMAT_MD, FORMAT_CSV, FORMAT_JSON, FORMAT_JSONL };

struct bench_options {
    struct model_options model;
    unsigned prompt[MAX_LIST], generate[MAX_LIST], thread[MAX_LIST];
    numoe_placement placement[MAX_LIST];
    unsigned batch[MAX_LIST];
    size_t n_prompt, n_generate, n_thread, n_placement, n_batch;
    uint64_t repeat;
    enum format format;
    struct output out;
    const char *output;
};

static const struct option options[] = {
    MODEL_OPTIONS,
    {"prompt", required_argument, NULL, 'p'},
    {"generate", required_argument, NULL, 'n'},
    {"batch", required_argument, NULL, 'b'},
    {"repeat", required_argument, NULL, 'r'},
    {"output", required_argument, NULL, 'o'},
    {"output-file", required_argument, NULL, OPT_OUTPUT_FILE},
    {0},
};

/* ------------------------------------------------------------------ options */

static bool parse_format(const char *text, enum format *format)
{
    static const char *const name[] = {"md", "csv", "json", "jsonl"};

    for (unsigned i = 0; i < sizeof name / sizeof name[0]; i++) {
        if (strcmp(text, name[i]) == 0) {
            *format = (enum format)i;
            return true;
        }
    }
    fail(EXIT_INPUT, "-o: '%s' is none of md, csv, json, jsonl", text);
    return false;
}

static int bench_option(void *arg, int opt, char *value)
{
    struct bench_options *o = arg;

    switch (opt) {
    case 'p':
        return parse_list("-p", value, 0, 1000000, o->prompt, MAX_LIST, &o->n_prompt) ? 1 : -1;
    case 'n':
        return parse_list("-n", value, 0, 1000000, o->generate, MAX_LIST, &o->n_generate) ? 1 : -1;
    case 't':
        return parse_list("-t", value, 1, 4096, o->thread, MAX_LIST, &o->n_thread) ? 1 : -1;
    case 'b':
        return parse_list("-b", value, 1, 4096, o->batch, MAX_LIST, &o->n_batch) ? 1 : -1;
    case 'r':
        return parse_uint("-r", value, 1, MAX_REPEAT, &o->repeat) ? 1 : -1;
    case 'o':
        return parse_format(value, &o->format) ? 1 : -1;
    case OPT_OUTPUT_FILE:
        o->output = value;
        return 1;
    case OPT_PLACEMENT:
        return parse_placements(value, o->placement, MAX_LIST, &o->n_placement) ? 1 : -1;
    default:
        return model_option(&o->model, opt, value);
    }
}

static unsigned longest(const unsigned *list, size_t n)
{
    unsigned most = 0;

    for (size_t i = 0; i < n; i++) {
        most = list[i] > most ? list[i] : most;
    }
    return most;
}

/* What a session must have room for. */
static unsigned session_tokens(const struct bench_options *o)
{
    const unsigned prompt = longest(o->prompt, o->n_prompt);
    const unsigned generate = longest(o->generate, o->n_generate) + 1;

    return prompt > generate ? prompt : generate;
}

static int parse(struct bench_options *o, int argc, char **argv, bool *done)
{
    int exit_status =
        parse_options(&command_bench, argc, argv, ":" MODEL_OPTIONS_SHORT "p:n:b:r:o:", options,
                      bench_option, o, done);
    if (exit_status != EXIT_OK || *done) {
        return exit_status;
    }
    if (optind < argc) {
        return fail_usage(&command_bench, "unexpected argument '%s': a model is named with -m",
                          argv[optind]);
    }
    if (o->n_placement > 0 && o->model.params.plan) {
        return fail_usage(&command_bench, "--placement and --plan both say where weights go");
    }
    exit_status = model_options_finish(&command_bench, &o->model);
    if (exit_status == EXIT_OK) {
        exit_status = need_context(&o->model, "a sequence", session_tokens(o));
    }
    if (exit_status != EXIT_OK) {
        return exit_status;
    }
    const struct file_use use[] = {{"--output-file", o->output, true}, MODEL_FILE_USES(&o->model)};
    return output_check_distinct(use, sizeof use / sizeof use[0]);
}

/* ------------------------------------------------------------------ one test */

/* What one row of the result is about, and what came of it. */
struct test {
    const numoe_engine_info *info;
    numoe_placement placement;
    unsigned n_prompt, n_generate, n_batch; /* one of the first two is 0 */
    double mean, spread;                    /* tokens/s of all sequences; standard deviation */
    double read_bps, possible_bps;          /* matrices, all workers */
    unsigned n_row;
    numoe_profile_row row[MAX_ROW]; /* seconds a repetition */
    double wall_seconds;            /* likewise */
};

struct bench {
    numoe_engine *engine;
    numoe_session *session[4096];
    unsigned n_session;
    uint64_t state; /* of the random tokens */
};

static int32_t random_token(struct bench *b)
{
    b->state = b->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int32_t)((b->state >> 33) % numoe_engine_get_info(b->engine)->n_vocab);
}

static numoe_status step_all(struct bench *b, unsigned n, numoe_error *err)
{
    size_t n_pending = 1;

    while (n_pending > 0) {
        numoe_status status = numoe_step(b->engine, b->session, n, err);
        if (status != NUMOE_OK) {
            return status;
        }
        n_pending = 0;
        for (unsigned i = 0; i < n; i++) {
            n_pending += numoe_session_pending(b->session[i]);
        }
    }
    return NUMOE_OK;
}

/* n random tokens more for each sequence, evaluated together or one after the other. */
static numoe_status evaluate(struct bench *b, unsigned n_batch, unsigned n, bool one_by_one,
                             numoe_error *err)
{
    const unsigned each = one_by_one ? 1 : n;
    numoe_status status = NUMOE_OK;

    for (unsigned at = 0; status == NUMOE_OK && at < n; at += each) {
        for (unsigned i = 0; status == NUMOE_OK && i < n_batch; i++) {
            for (unsigned j = 0; status == NUMOE_OK && j < each; j++) {
                const int32_t id = random_token(b);
                status = numoe_session_append(b->session[i], &id, 1, err);
            }
        }
        status = status == NUMOE_OK ? step_all(b, n_batch, err) : status;
    }
    return status;
}

/* From empty sequences, but for the token that every one begins with. */
static numoe_status run_once(struct bench *b, const struct test *t, double *seconds,
                             numoe_error *err)
{
    for (unsigned i = 0; i < t->n_batch; i++) {
        numoe_session_truncate(b->session[i], 0);
    }
    numoe_status status = t->n_generate ? evaluate(b, t->n_batch, 1, true, err) : NUMOE_OK;
    if (status == NUMOE_OK) {
        status = numoe_profile_start(b->engine, false, err);
    }
    const double begin = now_seconds();
    if (status == NUMOE_OK) {
        status = evaluate(b, t->n_batch, t->n_prompt + t->n_generate, t->n_generate > 0, err);
    }
    *seconds = now_seconds() - begin;
    return status;
}

static void add_profile(const struct bench *b, struct test *t, double part)
{
    numoe_profile_row row;

    for (unsigned i = 0; i < MAX_ROW && numoe_profile_get(b->engine, i, &row); i++) {
        t->row[i].name = row.name;
        t->row[i].seconds += row.seconds * part;
        t->row[i].bytes += row.bytes;
        t->n_row = i + 1;
    }
}

static int run_test(struct bench *b, struct test *t, unsigned repeat)
{
    const double n = (double)(t->n_prompt + t->n_generate) * t->n_batch;
    double sum = 0, squares = 0, all_seconds = 0, bytes = 0, seconds;
    numoe_error err;

    if (run_once(b, t, &seconds, &err) != NUMOE_OK) { /* touches what is touched first */
        return fail_status(&err);
    }
    for (unsigned i = 0; i < repeat; i++) {
        if (run_once(b, t, &seconds, &err) != NUMOE_OK) {
            return fail_status(&err);
        }
        sum += n / seconds;
        squares += n / seconds * (n / seconds);
        all_seconds += seconds;
        add_profile(b, t, 1.0 / repeat);
    }
    for (unsigned i = 0; i < t->n_row; i++) {
        bytes += (double)t->row[i].bytes;
    }
    t->mean = sum / repeat;
    const double variance = squares / repeat - t->mean * t->mean;
    t->spread = repeat > 1 && variance > 0 ? sqrt(variance * repeat / (repeat - 1)) : 0;
    t->wall_seconds = all_seconds / repeat;
    t->read_bps = bytes / all_seconds;
    t->possible_bps = numoe_engine_bandwidth(b->engine);
    return EXIT_OK;
}

/* ------------------------------------------------------------------ output */

static const char *test_name(const struct test *t, char *buf, size_t cap)
{
    if (t->n_generate) {
        snprintf(buf, cap, "tg%u", t->n_generate);
    } else {
        snprintf(buf, cap, "pp%u", t->n_prompt);
    }
    return buf;
}

static double share_percent(const struct test *t)
{
    return t->possible_bps > 0 ? t->read_bps / t->possible_bps * 100 : 0;
}

static void print_head(FILE *out, enum format format)
{
    if (format == FORMAT_MD) {
        fputs("| model | type | isa | nodes | threads | placement | batch | test | tokens/s | GB/s | "
              "of most | time |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n",
              out);
    } else if (format == FORMAT_CSV) {
        fputs("model,arch,type,isa,machine,nodes,threads,placement,batch,test,n_prompt,n_generate,"
              "tokens_per_second,spread,bytes_per_second,possible_bytes_per_second,wall_seconds,"
              "profile\n",
              out);
    } else if (format == FORMAT_JSON) {
        fputs("[\n", out);
    }
}

static void print_md(FILE *out, const struct test *t)
{
    const numoe_engine_info *i = t->info;
    char name[32];

    fprintf(out, "| %s | %s | %s | %u | %u | %s | %u | %s | %.2f ± %.2f | %.2f | %.0f %% |",
            i->model_name, i->type_name, i->isa, i->n_node, i->n_worker,
            placement_name(t->placement), t->n_batch, test_name(t, name, sizeof name), t->mean,
            t->spread, t->read_bps * 1e-9, share_percent(t));
    for (unsigned r = 0; r < t->n_row; r++) {
        const double percent = t->row[r].seconds / t->wall_seconds * 100;
        if (percent >= 0.5) {
            fprintf(out, " %s %.0f %%", t->row[r].name, percent);
        }
    }
    fputs(" |\n", out);
}

static void put_csv_text(FILE *out, const char *text)
{
    fputc('"', out);
    for (; *text; text++) {
        fputs(*text == '"' ? "\"\"" : (char[]){*text, 0}, out);
    }
    fputs("\",", out);
}

static void print_csv(FILE *out, const struct test *t)
{
    const numoe_engine_info *i = t->info;
    char name[32];

    put_csv_text(out, i->model_name);
    fprintf(out, "%s,%s,%s,", i->arch, i->type_name, i->isa);
    put_csv_text(out, i->machine);
    fprintf(out, "%u,%u,%s,%u,%s,%u,%u,%.4f,%.4f,%.0f,%.0f,%.6f,", i->n_node, i->n_worker,
            placement_name(t->placement), t->n_batch, test_name(t, name, sizeof name), t->n_prompt,
            t->n_generate, t->mean, t->spread, t->read_bps, t->possible_bps, t->wall_seconds);
    for (unsigned r = 0; r < t->n_row; r++) {
        fprintf(out, "%s%s=%.6f", r ? ";" : "", t->row[r].name, t->row[r].seconds);
    }
    fputc('\n', out);
}

static void put_json_text(FILE *out, const char *key, const char *text)
{
    fprintf(out, "\"%s\": \"", key);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') {
            fputc('\\', out);
        }
        if ((unsigned char)*text >= 0x20) {
            fputc(*text, out);
        }
    }
    fputs("\", ", out);
}

static void print_json(FILE *out, const struct test *t)
{
    const numoe_engine_info *i = t->info;
    char name[32];

    fputc('{', out);
    put_json_text(out, "model", i->model_name);
    put_json_text(out, "arch", i->arch);
    put_json_text(out, "type", i->type_name);
    put_json_text(out, "isa", i->isa);
    put_json_text(out, "machine", i->machine);
    put_json_text(out, "version", numoe_version());
    put_json_text(out, "placement", placement_name(t->placement));
    put_json_text(out, "test", test_name(t, name, sizeof name));
    fprintf(out,
            "\"nodes\": %u, \"threads\": %u, \"batch\": %u, \"n_prompt\": %u, \"n_generate\": %u, "
            "\"weight_bytes\": %llu, \"active_bytes\": %llu, \"tokens_per_second\": %.4f, "
            "\"spread\": %.4f, \"bytes_per_second\": %.0f, \"possible_bytes_per_second\": %.0f, "
            "\"wall_seconds\": %.6f, \"profile\": {",
            i->n_node, i->n_worker, t->n_batch, t->n_prompt, t->n_generate,
            (unsigned long long)i->weight_bytes, (unsigned long long)i->active_bytes, t->mean,
            t->spread, t->read_bps, t->possible_bps, t->wall_seconds);
    for (unsigned r = 0; r < t->n_row; r++) {
        fprintf(out, "%s\"%s\": %.6f", r ? ", " : "", t->row[r].name, t->row[r].seconds);
    }
    fputs("}}", out);
}

static void print_test(FILE *out, enum format format, const struct test *t, bool first)
{
    switch (format) {
    case FORMAT_MD:
        print_md(out, t);
        break;
    case FORMAT_CSV:
        print_csv(out, t);
        break;
    case FORMAT_JSON:
        fputs(first ? "" : ",\n", out);
        print_json(out, t);
        break;
    case FORMAT_JSONL:
        print_json(out, t);
        fputc('\n', out);
    }
    fflush(out);
}

/* ------------------------------------------------------------------ all tests */

static int open_sessions(const struct bench_options *o, struct bench *b)
{
    const unsigned n = longest(o->batch, o->n_batch);
    numoe_error err;

    for (; b->n_session < n; b->n_session++) {
        if (numoe_session_new(b->engine, session_tokens(o), &b->session[b->n_session], &err) !=
            NUMOE_OK) {
            return fail_status(&err);
        }
    }
    return EXIT_OK;
}

/* All batches and lengths with one engine. */
static int run_engine(const struct bench_options *o, struct bench *b, numoe_placement placement,
                      FILE *out, bool *first)
{
    int exit_status = open_sessions(o, b);

    for (size_t i = 0; exit_status == EXIT_OK && i < o->n_batch * (o->n_prompt + o->n_generate);
         i++) {
        const size_t it = i % (o->n_prompt + o->n_generate);
        struct test t = {.info = numoe_engine_get_info(b->engine),
                         .placement = placement,
                         .n_batch = o->batch[i / (o->n_prompt + o->n_generate)]};
        t.n_prompt = it < o->n_prompt ? o->prompt[it] : 0;
        t.n_generate = it < o->n_prompt ? 0 : o->generate[it - o->n_prompt];
        if (t.n_prompt + t.n_generate == 0) {
            continue;
        }
        b->state = 1;
        exit_status = run_test(b, &t, (unsigned)o->repeat);
        if (exit_status == EXIT_OK) {
            print_test(out, o->format, &t, *first);
            *first = false;
        }
    }
    return exit_status;
}

static bool takes_stats(numoe_placement placement)
{
    return placement == NUMOE_PLACEMENT_AUTO || placement == NUMOE_PLACEMENT_SHARD;
}

static int run_point(const struct bench_options *o, size_t it, size_t ip, FILE *out, bool *first)
{
    struct model_options model = o->model;
    struct bench *b = calloc(1, sizeof *b);

    if (!b) {
        return fail(EXIT_LACKING, "no memory for sessions");
    }
    model.params.n_thread = o->n_thread ? o->thread[it] : 0;
    model.params.placement = o->n_placement ? o->placement[ip] : NUMOE_PLACEMENT_AUTO;
    if (o->n_placement > 1 && !takes_stats(model.params.placement)) { /* they are for the others */
        model.params.expert_stats = model.params.gpu ? model.params.expert_stats : NULL;
        model.params.replica_bytes = 0;
        model.params.replica_percent = 0;
        model.params.adapt = false;
    }
    int exit_status = open_engine(&model, &b->engine);
    if (exit_status == EXIT_OK) {
        exit_status = run_engine(o, b, model.params.placement, out, first);
        while (b->n_session > 0) {
            numoe_session_free(b->session[--b->n_session]);
        }
        numoe_engine_close(b->engine);
    }
    free(b);
    return exit_status;
}

static int run_all(struct bench_options *o)
{
    FILE *out = o->output ? o->out.file : stdout;
    const size_t n_thread = o->n_thread ? o->n_thread : 1;
    const size_t n_placement = o->n_placement ? o->n_placement : 1;
    bool first = true;
    int exit_status = EXIT_OK;

    print_head(out, o->format);
    for (size_t i = 0; exit_status == EXIT_OK && i < n_thread * n_placement; i++) {
        exit_status = run_point(o, i / n_placement, i % n_placement, out, &first);
    }
    if (o->format == FORMAT_JSON) {
        fputs("\n]\n", out);
    }
    return exit_status == EXIT_OK && o->output ? output_commit(&o->out) : exit_status;
}

static int run(int argc, char **argv)
{
    struct bench_options o = {.prompt = {512},
                              .generate = {128},
                              .batch = {1},
                              .n_prompt = 1,
                              .n_generate = 1,
                              .n_batch = 1,
                              .repeat = 5};
    bool done;

    model_options_init(&o.model);
    int exit_status = parse(&o, argc, argv, &done);
    if (exit_status == EXIT_OK && !done && o.output) {
        exit_status = output_open(&o.out, o.output);
    }
    if (exit_status == EXIT_OK && !done) {
        exit_status = run_all(&o);
    }
    output_discard(&o.out);
    return exit_status;
}

const struct command command_bench = {
    .name = "bench",
    .summary = "measure prompts and generation, and where the time goes",
    .run = run,
    .help =
        "Usage: numoe bench [OPTION]...\n"
        "\n"
        "Reads prompts and generates, with random tokens, and prints tokens/s (mean and standard\n"
        "deviation), the GB/s of weights that were read and their share of the measured "
        "bandwidth,\n"
        "and where the time went. Lists give a row for every combination; the first repetition of\n"
        "each is not counted.\n"
        "\n"
        "  -p, --prompt N,...    tokens of a prompt; 0: no such test (default: 512)\n"
        "  -n, --generate N,...  tokens that are generated, one after the other (default: 128)\n"
        "  -b, --batch N,...     sequences at a time (default: 1)\n"
        "  -t, --threads N,...   workers (default: one per allowed core)\n"
        "      --placement MODE,...  slice, shard, replicate, interleave, auto (default: auto)\n"
        "  -r, --repeat N        repetitions (default: 5)\n"
        "  -o, --output FORMAT   md (the default), csv, json, jsonl\n"
        "      --output-file FILE  instead of standard output\n"
        "\n" MODEL_OPTIONS_HELP,
};
