/* gemv: how close do the matrix kernels come to what this machine can do? For each weight format
 * and instruction set, weights in cache and out of it, beside the read bandwidth (decode) and the
 * peak of the multiply instruction (prompts) measured in the same run.
 *
 *     gemv --formats Q4_K,Q8_0 --isa avx512 --tokens 1,512 --threads 1,2
 *
 * Threads take equal shares of the rows. Out of cache, each pass reads a matrix of --cold MiB once;
 * in cache, each thread repeats a matrix of --hot KiB. Each figure is a median of --repeats passes,
 * between which the limits are measured again; activations are quantized outside the time. `error`
 * is the root mean square of y against float64 products with the unquantized activations, relative
 * to that of y; `rounding` the same with the quantized ones: what the kernel itself adds. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* affinity */
#endif

#include <getopt.h>

#include "bench/matrices.h"

struct options {
    struct matrix_options of;
    size_t hot_bytes;
    bool hot_only, cold_only;
};

/* Rows of the in-cache matrix of n threads: at least one panel for each. */
static unsigned hot_rows(const struct weights *w, unsigned n_thread, const struct options *o)
{
    unsigned panels = (unsigned)(o->hot_bytes / w->panel_bytes);
    return MIN(MAX(panels, 1u) * n_thread * PANEL_ROWS, w->n_row);
}

/* Rows of a pass out of cache; many tokens need fewer to take as long. */
static unsigned cold_rows(const struct weights *w, unsigned n_token, unsigned n_thread)
{
    unsigned rows = n_token < 16 ? w->n_row : w->n_row / (n_token / 8);
    return MAX(rows / (PANEL_ROWS * n_thread), 1u) * PANEL_ROWS * n_thread;
}

static void print_head(const struct options *o)
{
    if (o->of.csv) {
        puts("format,isa,tokens,threads,where,weights_gbps,read_gbps,share,gmacs,peak_gmacs,"
             "peak_share,error,rounding");
        return;
    }
    printf("%-8s %-7s %6s %7s %-5s | %8s %8s %6s | %8s %8s %6s | %8s %8s\n", "format", "isa",
           "tokens", "threads", "where", "weights", "read", "share", "products", "peak", "share",
           "error", "rounding");
    printf("%-8s %-7s %6s %7s %-5s | %8s %8s %6s | %8s %8s %6s |\n", "", "", "", "", "", "GB/s",
           "GB/s", "", "G/s", "G/s", "");
}

static void measure(struct job *j, bool hot, unsigned n_thread, const struct options *o)
{
    double rate[REPEATS_MAX], share[REPEATS_MAX], read[REPEATS_MAX], peak[REPEATS_MAX],
        peak_share[REPEATS_MAX], error[2];
    bool floats = j->kern->act[j->w->id] == KERN_ACT_F32;
    size_t read_bytes = j->w->n_row / PANEL_ROWS * j->w->panel_bytes;

    j->n_row = hot ? hot_rows(j->w, n_thread, o) : cold_rows(j->w, j->n_token, n_thread);
    j->passes = 1;
    team_run(n_thread, job_part, j); /* pages, code and, in cache, the weights come in */
    job_error(j, error);
    if (hot) {
        double once = team_run(n_thread, job_part, j);
        j->passes = (unsigned)MIN(MAX(0.02 / once, 1), 1e5);
    }
    for (unsigned i = 0; i < o->of.repeats; i++) {
        read[i] = read_bandwidth(j->w->panels, read_bytes, n_thread);
        peak[i] = peak_products(j->kern->isa, floats, n_thread);
        if (hot) { /* brings the weights back into cache */
            team_run(n_thread, job_part, j);
        }
        rate[i] = job_bytes(j) / team_run(n_thread, job_part, j);
        share[i] = rate[i] / read[i];
        double products = rate[i] / (double)j->w->panel_bytes * PANEL_ROWS * j->act.k * j->n_token;
        peak_share[i] = peak[i] > 0 ? products / peak[i] : 0;
    }
    double r = median(rate, o->of.repeats);
    double products = r / (double)j->w->panel_bytes * PANEL_ROWS * j->act.k * j->n_token;
    printf(o->of.csv
               ? "%s,%s,%u,%u,%s,%.2f,%.2f,%.3f,%.1f,%.1f,%.3f,%.2e,%.2e\n"
               : "%-8s %-7s %6u %7u %-5s | %8.2f %8.2f %6.2f | %8.1f %8.1f %6.2f | %8.1e %8.1e\n",
           j->w->format->name, j->kern->isa, j->n_token, n_thread, hot ? "cache" : "dram", r * 1e-9,
           median(read, o->of.repeats) * 1e-9, median(share, o->of.repeats), products * 1e-9,
           median(peak, o->of.repeats) * 1e-9, median(peak_share, o->of.repeats), error[0],
           error[1]);
    fflush(stdout);
}

static void bench_format(const struct kern *kern, const struct weights *w, const struct options *o)
{
    for (unsigned it = 0; it < o->of.n_tokens; it++) {
        unsigned n = o->of.tokens[it];
        struct job j = {.kern = kern, .w = w, .n_token = n};
        size_t y_bytes = sizeof(float) * n * w->n_row;
        act_make(&j.act, kern, n, o->of.k);
        j.y = map_memory(y_bytes);
        for (unsigned i = 0; i < o->of.n_threads; i++) {
            if (!o->cold_only) {
                measure(&j, true, o->of.threads[i], o);
            }
            if (!o->hot_only) {
                measure(&j, false, o->of.threads[i], o);
            }
        }
        munmap(j.y, y_bytes);
        act_free(&j.act, n);
    }
}

/* ------------------------------------------------------------------ options */

static void usage(void)
{
    puts("usage: gemv [--formats F,..] [--isa I,..] [--tokens N,..] [--threads N,..] [--k N]\n"
         "            [--cold MiB] [--hot KiB] [--repeats N] [--only cache|dram] [--csv]");
}

static void parse(int argc, char **argv, struct options *o)
{
    static const struct option longs[] = {
        MATRIX_OPTIONS,         {"hot", 1, NULL, 'h'}, {"only", 1, NULL, 'o'},
        {"help", 0, NULL, 'H'}, {NULL, 0, NULL, 0},
    };
    for (int c; (c = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
        if (c == 'h') {
            o->hot_bytes = number(optarg, 1u << 20) << 10;
        } else if (c == 'o') {
            o->hot_only = strcmp(optarg, "cache") == 0;
            o->cold_only = strcmp(optarg, "dram") == 0;
        } else if (!matrix_option(&o->of, c, optarg)) {
            usage();
            exit(c == 'H' ? 0 : 2);
        }
    }
}

int main(int argc, char **argv)
{
    struct options o = {.of = {.isas = "avx2,avx512,amx",
                               .tokens = {1},
                               .n_tokens = 1,
                               .threads = {1},
                               .n_threads = 1,
                               .k = 2048,
                               .repeats = 5,
                               .cold_bytes = 192u << 20},
                        .hot_bytes = 256u << 10};
    parse(argc, argv, &o);
    print_head(&o);
    for (uint32_t id = 0; id < FORMAT_MAX; id++) {
        const struct format *f = format_find(id);
        if (f == NULL || !f->computable || (o.of.formats && !listed(o.of.formats, f->name))) {
            continue;
        }
        if (o.of.k % MAX(f->block_elems, 32u) != 0) {
            fprintf(stderr, "gemv: %s needs --k to be a multiple of %u\n", f->name, f->block_elems);
            continue;
        }
        struct weights w;
        weights_make(&w, id, o.of.k, o.of.cold_bytes);
        for (unsigned i = 0; kern_isa_name(i) != NULL; i++) {
            const struct kern *kern = kern_find(kern_isa_name(i));
            if (kern != NULL && listed(o.of.isas, kern_isa_name(i))) {
                bench_format(kern, &w, &o);
            }
        }
        weights_free(&w, o.of.k);
    }
    return 0;
}
