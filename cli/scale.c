/* numoe scale: a scaling experiment. Every point is numoe bench in a process of its own, bound to
 * the chosen part of the machine; its line goes to results.jsonl at once, so that an experiment
 * that was interrupted goes on where it was.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/scale.h"

#define MAX_LIST 32
#define MAX_ARGS 32

struct scale_options {
    const char *model, *folder, *generate, *repeat;
    unsigned sockets[MAX_LIST], nodes[MAX_LIST], cores[MAX_LIST], batch[MAX_LIST];
    numoe_placement placement[MAX_LIST];
    size_t n_sockets, n_nodes, n_cores, n_batch, n_placement;
    bool artificial; /* nodes are made up on this machine */
};

struct scale {
    const struct scale_options *o;
    json_t *machine; /* numoe topo --json */
    json_t *results; /* array: what is measured */
    char *path;      /* results.jsonl */
};

static const struct option options[] = {
    {"model", required_argument, NULL, 'm'},
    {"output", required_argument, NULL, 'o'},
    {"sockets", required_argument, NULL, OPT_SOCKETS},
    {"nodes", required_argument, NULL, OPT_NODES},
    {"cores", required_argument, NULL, OPT_CORES},
    {"placement", required_argument, NULL, OPT_PLACEMENT},
    {"batch", required_argument, NULL, 'b'},
    {"generate", required_argument, NULL, 'n'},
    {"repeat", required_argument, NULL, 'r'},
    {"artificial", no_argument, NULL, OPT_ARTIFICIAL},
    {"help", no_argument, NULL, 'h'},
    {0},
};

void scale_point_name(const struct scale_point *p, char *buf, size_t cap)
{
    snprintf(buf, cap, "s%u n%u c%u %s b%u", p->sockets, p->nodes, p->cores,
             placement_name(p->placement), p->batch);
}

/* ------------------------------------------------------------------ options */

static int scale_option(void *arg, int opt, char *value)
{
    struct scale_options *o = arg;

    switch (opt) {
    case 'm':
        o->model = value;
        return 1;
    case 'o':
        o->folder = value;
        return 1;
    case 'n':
        o->generate = value;
        return 1;
    case 'r':
        o->repeat = value;
        return 1;
    case 'b':
        return parse_list("-b", value, 1, 4096, o->batch, MAX_LIST, &o->n_batch) ? 1 : -1;
    case OPT_SOCKETS:
        return parse_list("--sockets", value, 1, 64, o->sockets, MAX_LIST, &o->n_sockets) ? 1 : -1;
    case OPT_NODES:
        return parse_list("--nodes", value, 1, 64, o->nodes, MAX_LIST, &o->n_nodes) ? 1 : -1;
    case OPT_CORES:
        return parse_list("--cores", value, 1, 4096, o->cores, MAX_LIST, &o->n_cores) ? 1 : -1;
    case OPT_PLACEMENT:
        return parse_placements(value, o->placement, MAX_LIST, &o->n_placement) ? 1 : -1;
    case OPT_ARTIFICIAL:
        o->artificial = true;
        return 1;
    default:
        return 0;
    }
}

static int parse(struct scale_options *o, int argc, char **argv, bool *done)
{
    const int exit_status = parse_options(&command_scale, argc, argv, ":m:o:b:n:r:h", options,
                                          scale_option, o, done);
    if (exit_status != EXIT_OK || *done) {
        return exit_status;
    }
    if (optind < argc) {
        return fail_usage(&command_scale, "unexpected argument '%s'", argv[optind]);
    }
    return o->folder ? EXIT_OK : fail_usage(&command_scale, "give a folder for results with -o");
}

/* ------------------------------------------------------------------ the machine */

static int read_machine(json_t **machine)
{
    char *text = NULL;
    size_t bytes = 0;
    numoe_error err;
    FILE *f = open_memstream(&text, &bytes);

    if (!f) {
        return fail(EXIT_LACKING, "no memory for a description of this machine");
    }
    numoe_status status = numoe_topo_report(NULL, NUMOE_REPORT_JSON, f, &err);
    fclose(f);
    *machine = status == NUMOE_OK ? json_loadb(text, bytes, 0, NULL) : NULL;
    free(text);
    return status != NUMOE_OK ? fail_status(&err)
           : *machine         ? EXIT_OK
                              : fail(EXIT_WORK, "the description of this machine cannot be read");
}

/* Adds the first n cores of a node that may be used; how many there were. */
static unsigned add_cores(const json_t *node, unsigned n, cpu_set_t *set)
{
    const json_t *cores = json_object_get(node, "cores"), *core, *cpu;
    unsigned found = 0;
    size_t i, j;

    json_array_foreach(cores, i, core)
    {
        json_array_foreach(json_object_get(core, "cpus"), j, cpu)
        {
            const char *use = json_string_value(json_object_get(cpu, "use"));
            const json_int_t number = json_integer_value(json_object_get(cpu, "cpu"));
            if (found < n && use && strcmp(use, "worker") == 0 && number < CPU_SETSIZE) {
                CPU_SET((size_t)number, set);
                found++;
            }
        }
    }
    return found;
}

/* The CPUs of a point: the first nodes of the first sockets, and of each the first cores. False
 * where the machine has not so many. */
static bool choose_cpus(const struct scale *s, const struct scale_point *p, cpu_set_t *set)
{
    unsigned n_of_package[64] = {0}, n_node = 0;
    const json_t *node;
    size_t i;

    CPU_ZERO(set);
    json_array_foreach(json_object_get(s->machine, "nodes"), i, node)
    {
        const json_int_t package = json_integer_value(json_object_get(node, "package"));
        const bool taken =
            package >= 0 && package < (json_int_t)p->sockets && n_of_package[package] < p->nodes;
        if (taken && add_cores(node, p->cores, set) == p->cores) {
            n_of_package[package]++;
            n_node++;
        }
    }
    return n_node == p->sockets * p->nodes;
}

/* ------------------------------------------------------------------ one point */

/* A machine of that form, to be played on this one. */
static void artificial_topology(const struct scale_point *p, char *buf, size_t cap)
{
    snprintf(buf, cap, "pack:%u numa:%u(memory=1TiB) core:%u pu:1", p->sockets, p->nodes, p->cores);
}

static const char *n_generate(const struct scale_options *o)
{
    return o->generate ? o->generate : "64";
}

static void run_child(const struct scale *s, const struct scale_point *p, const cpu_set_t *set,
                      int to)
{
    char threads[16], batch[16], topology[96];
    const char *argv[MAX_ARGS];
    int n = 0;

    snprintf(threads, sizeof threads, "%u", scale_workers(p));
    snprintf(batch, sizeof batch, "%u", p->batch);
    artificial_topology(p, topology, sizeof topology);
    const char *const fixed[] = {"numoe",
                                 "bench",
                                 "-q",
                                 "-o",
                                 "jsonl",
                                 "-p",
                                 "0",
                                 "-t",
                                 threads,
                                 "-b",
                                 batch,
                                 "--placement",
                                 placement_name(p->placement),
                                 "-n",
                                 n_generate(s->o),
                                 "-r",
                                 s->o->repeat ? s->o->repeat : "3"};
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++) {
        argv[n++] = fixed[i];
    }
    if (s->o->model) {
        argv[n++] = "-m";
        argv[n++] = s->o->model;
    }
    if (s->o->artificial) {
        argv[n++] = "--topology";
        argv[n++] = topology;
    } else if (sched_setaffinity(0, sizeof *set, set) != 0) {
        fprintf(stderr, "numoe: workers cannot be bound: %s\n", strerror(errno));
        _exit(EXIT_LACKING);
    }
    argv[n] = NULL;
    dup2(to, STDOUT_FILENO);
    execv("/proc/self/exe", (char *const *)argv);
    _exit(EXIT_WORK);
}

/* The child's line; free(). */
static char *read_line_of(int from)
{
    char *line = NULL;
    size_t cap = 0;
    FILE *f = fdopen(from, "r");

    if (f && getline(&line, &cap, f) <= 0) {
        free(line);
        line = NULL;
    }
    if (f) {
        fclose(f);
    }
    return line;
}

static const char *model_file(const struct scale *s)
{
    return s->o->model ? s->o->model : "";
}

/* "0-3,8": as the kernel and taskset write it. */
static void cpu_list(const cpu_set_t *set, char *buf, size_t cap)
{
    size_t at = 0;

    buf[0] = '\0';
    for (size_t i = 0, to; i < CPU_SETSIZE && at + 16 < cap; i = to + 1) {
        for (to = i; to < CPU_SETSIZE && CPU_ISSET(to, set); to++) {
        }
        if (to > i) {
            at += (size_t)snprintf(buf + at, cap - at, "%s%zu", at > 0 ? "," : "", i);
        }
        if (to > i + 1) {
            at += (size_t)snprintf(buf + at, cap - at, "-%zu", to - 1);
        }
    }
}

/* What the child does not know of its point. */
static void describe(const struct scale *s, const struct scale_point *p, const cpu_set_t *set,
                     json_t *row)
{
    char name[96], cpus[CPU_SETSIZE * 6];

    scale_point_name(p, name, sizeof name);
    json_object_set_new(row, "point", json_string(name));
    json_object_set_new(row, "sockets", json_integer(p->sockets));
    json_object_set_new(row, "nodes_per_socket", json_integer(p->nodes));
    json_object_set_new(row, "cores_per_node", json_integer(p->cores));
    json_object_set_new(row, "artificial", json_boolean(s->o->artificial));
    json_object_set_new(row, "model_file", json_string(model_file(s)));
    if (!s->o->artificial) {
        cpu_list(set, cpus, sizeof cpus);
        json_object_set_new(row, "cpus", json_string(cpus));
    }
    /* Not the part that the child sees, nor the one that is made up: the point tells those. */
    json_object_set(row, "machine", json_object_get(s->machine, "machine"));
}

static int append_result(struct scale *s, const struct scale_point *p, const cpu_set_t *set,
                         const char *line)
{
    json_t *row = json_loads(line, 0, NULL);
    FILE *f;

    if (!row) {
        return fail(EXIT_WORK, "numoe bench printed no result");
    }
    describe(s, p, set, row);
    char *text = json_dumps(row, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_array_append_new(s->results, row);
    f = fopen(s->path, "a");
    bool ok = f && text && fprintf(f, "%s\n", text) > 0;
    ok = f && fclose(f) == 0 && ok;
    free(text);
    return ok ? EXIT_OK : fail(EXIT_WORK, "%s: %s", s->path, strerror(errno));
}

static int run_point(struct scale *s, const struct scale_point *p)
{
    char name[96];
    cpu_set_t set;
    int fd[2], status;

    scale_point_name(p, name, sizeof name);
    if (!s->o->artificial && !choose_cpus(s, p, &set)) {
        fprintf(stderr, "%-28s  this machine has not so many\n", name);
        return EXIT_OK;
    }
    if (pipe(fd) != 0) {
        return fail(EXIT_LACKING, "no pipe: %s", strerror(errno));
    }
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        close(fd[0]);
        run_child(s, p, &set, fd[1]);
    }
    close(fd[1]);
    char *line = pid > 0 ? read_line_of(fd[0]) : NULL;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status) ||
        WEXITSTATUS(status) != EXIT_OK || !line) {
        free(line);
        return fail(EXIT_WORK, "point %s was not measured", name);
    }
    int exit_status = append_result(s, p, &set, line);
    free(line);
    if (exit_status == EXIT_OK) {
        const json_t *row = json_array_get(s->results, json_array_size(s->results) - 1);
        fprintf(stderr, "%-28s  %8.2f tokens/s\n", name,
                json_number_value(json_object_get(row, "tokens_per_second")));
    }
    return exit_status;
}

/* ------------------------------------------------------------------ all points */

static bool is_measured(const struct scale *s, const struct scale_point *p)
{
    char name[96];
    const json_t *row;
    size_t i;

    scale_point_name(p, name, sizeof name);
    json_array_foreach(s->results, i, row)
    {
        const char *have = json_string_value(json_object_get(row, "point"));
        if (have && strcmp(have, name) == 0) {
            return true;
        }
    }
    return false;
}

static int run_grid(struct scale *s)
{
    const struct scale_options *o = s->o;
    const size_t n = o->n_sockets * o->n_nodes * o->n_cores * o->n_placement * o->n_batch;
    int exit_status = EXIT_OK;

    for (size_t i = 0; exit_status == EXIT_OK && i < n; i++) {
        size_t at = i;
        struct scale_point p;
        p.cores = o->cores[at % o->n_cores], at /= o->n_cores;
        p.nodes = o->nodes[at % o->n_nodes], at /= o->n_nodes;
        p.sockets = o->sockets[at % o->n_sockets], at /= o->n_sockets;
        p.placement = o->placement[at % o->n_placement], at /= o->n_placement;
        p.batch = o->batch[at];
        if (!is_measured(s, &p)) {
            exit_status = run_point(s, &p);
        }
    }
    return exit_status;
}

/* Points of one folder are compared, so they have to be of one kind. What older rows do not tell is
 * taken as the same. */
static int check_same_kind(const struct scale *s)
{
    const json_t *row, *is;
    size_t i;

    json_array_foreach(s->results, i, row)
    {
        const char *why = NULL;
        if ((is = json_object_get(row, "artificial")) && json_is_true(is) != s->o->artificial) {
            why = s->o->artificial ? "without --artificial" : "with --artificial";
        } else if ((is = json_object_get(row, "n_generate")) &&
                   json_integer_value(is) != atoll(n_generate(s->o))) {
            why = "with another -n";
        } else if ((is = json_object_get(row, "model_file")) &&
                   strcmp(json_string_value(is), model_file(s)) != 0) {
            why = "of another model (-m)";
        }
        if (why) {
            return fail(EXIT_INPUT, "%s: line %zu was measured %s: choose another folder with -o",
                        s->path, i + 1, why);
        }
    }
    return EXIT_OK;
}

/* What an earlier run has measured; its last line may be cut off, and is measured again. */
static int read_results(struct scale *s)
{
    char *line = NULL;
    size_t cap = 0;
    FILE *f = fopen(s->path, "r");

    s->results = json_array();
    while (f && getline(&line, &cap, f) > 0) {
        json_t *row = json_loads(line, 0, NULL);
        if (row) {
            json_array_append_new(s->results, row);
        }
    }
    free(line);
    if (f) {
        fclose(f);
    }
    return s->results ? EXIT_OK : fail(EXIT_LACKING, "no memory for results");
}

static int measure(struct scale *s)
{
    if (mkdir(s->o->folder, 0777) != 0 && errno != EEXIST) {
        return fail(EXIT_WORK, "%s: %s", s->o->folder, strerror(errno));
    }
    if (asprintf(&s->path, "%s/results.jsonl", s->o->folder) < 0) {
        s->path = NULL;
        return fail(EXIT_LACKING, "no memory for a file name");
    }
    int exit_status = read_results(s);
    exit_status = exit_status ? exit_status : check_same_kind(s);
    exit_status = exit_status ? exit_status : read_machine(&s->machine);
    exit_status = exit_status ? exit_status : run_grid(s);
    return exit_status ? exit_status : scale_report(s->o->folder, s->results);
}

static int run(int argc, char **argv)
{
    struct scale_options o = {.sockets = {1},
                              .nodes = {1},
                              .cores = {1},
                              .batch = {1},
                              .placement = {NUMOE_PLACEMENT_SLICE},
                              .n_sockets = 1,
                              .n_nodes = 1,
                              .n_cores = 1,
                              .n_batch = 1,
                              .n_placement = 1};
    struct scale s = {.o = &o};
    bool done;

    int exit_status = parse(&o, argc, argv, &done);
    if (exit_status == EXIT_OK && !done) {
        exit_status = measure(&s);
    }
    json_decref(s.machine);
    json_decref(s.results);
    free(s.path);
    return exit_status;
}

const struct command command_scale = {
    .name = "scale",
    .summary = "measure how generation scales with sockets, nodes and cores",
    .run = run,
    .help =
        "Usage: numoe scale [OPTION]... -o FOLDER\n"
        "\n"
        "Measures generation on parts of this machine, each point in a process of its own, and\n"
        "draws speed-up, efficiency, GB/s of each node and the roofline. A second run with the\n"
        "same folder measures only what is missing; it is refused with another model or another\n"
        "-n: choose another folder then.\n"
        "\n"
        "  -m, --model FILE      GGUF file (default: as of numoe run)\n"
        "  -o, --output FOLDER   results.jsonl, results.csv, report.html; with gnuplot also plots\n"
        "      --sockets N,...   the first N sockets (default: 1)\n"
        "      --nodes N,...     the first N nodes of each (default: 1)\n"
        "      --cores N,...     the first N cores of each node (default: 1)\n"
        "      --placement MODE,...  slice (the default), shard, replicate, interleave, auto\n"
        "  -b, --batch N,...     sequences at a time (default: 1)\n"
        "  -n, --generate N      tokens (default: 64)\n"
        "  -r, --repeat N        repetitions (default: 3)\n"
        "      --artificial      sockets and nodes are made up, on a machine without them\n",
};
