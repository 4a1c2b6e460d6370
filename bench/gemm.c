/* gemm: prompts. One expert's matrix times many tokens, for each weight format, instruction set,
 * number of threads and of tokens, beside the peak of the multiply instruction measured in the same
 * run.
 *
 *     gemm --formats Q4_K,Q8_0 --isa avx512,amx --threads 1,16 --tokens 4,64,512
 *
 * The default geometry is an expert of DeepSeek-V3: K = 7168, 2048 rows. Each pass multiplies the
 * next of several matrices, --cold MiB in all, as a model's layers follow each other; threads take
 * equal shares of its rows. TOPS counts two operations for each product. Activations are quantized
 * outside the time. Figures are medians of --repeats passes; `error` and `rounding` are those of
 * bench/gemv. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* affinity */
#endif

#include <getopt.h>

#include "bench/matrices.h"

struct options {
    struct matrix_options of;
    unsigned rows;
};

static void print_head(const struct options *o)
{
    if (o->of.csv) {
        puts("format,isa,threads,tokens,ms,tops,peak_tops,share,weights_gbps,read_gbps,error,"
             "rounding");
        return;
    }
    printf("%-8s %-7s %7s %6s | %9s %8s %8s %6s | %8s %8s | %8s %8s\n", "format", "isa", "threads",
           "tokens", "ms", "TOPS", "peak", "share", "GB/s", "read", "error", "rounding");
}

/* The job's matrix becomes the next of those in w. */
static void next_matrix(struct job *j, const struct weights *all, struct weights *w, unsigned i)
{
    const unsigned n_matrix = MAX(all->n_row / j->n_row, 1u);
    *w = *all;
    w->panels += i % n_matrix * (j->n_row / PANEL_ROWS) * all->panel_bytes;
    j->w = w;
}

static void measure(struct job *j, const struct weights *all, unsigned n_thread,
                    const struct options *o)
{
    const bool floats = j->kern->act[all->id] == KERN_ACT_F32;
    double time[REPEATS_MAX], peak[REPEATS_MAX], error[2];
    const double read =
        read_bandwidth(all->panels, all->n_row / PANEL_ROWS * all->panel_bytes, n_thread);
    struct weights w;
    next_matrix(j, all, &w, 0);
    team_run(n_thread, job_part, j);
    job_error(j, error);
    for (unsigned i = 0; i < o->of.repeats; i++) {
        next_matrix(j, all, &w, i + 1);
        peak[i] = 2 * peak_products(j->kern->isa, floats, n_thread);
        time[i] = team_run(n_thread, job_part, j);
    }
    const double t = median(time, o->of.repeats), top = median(peak, o->of.repeats);
    const double rate = 2.0 * o->of.k * j->n_row * j->n_token / t;
    printf(o->of.csv ? "%s,%s,%u,%u,%.3f,%.3f,%.3f,%.3f,%.2f,%.2f,%.2e,%.2e\n"
                     : "%-8s %-7s %7u %6u | %9.3f %8.3f %8.3f %6.2f | %8.2f %8.2f | %8.1e %8.1e\n",
           all->format->name, j->kern->isa, n_thread, j->n_token, t * 1e3, rate * 1e-12,
           top * 1e-12, top > 0 ? rate / top : 0, job_bytes(j) / t * 1e-9, read * 1e-9, error[0],
           error[1]);
    fflush(stdout);
}

static void bench_format(const struct kern *kern, const struct weights *w, const struct options *o)
{
    for (unsigned i = 0; i < o->of.n_threads; i++) {
        for (unsigned it = 0; it < o->of.n_tokens; it++) {
            struct job j = {
                .kern = kern, .n_token = o->of.tokens[it], .n_row = o->rows, .passes = 1};
            const size_t y_bytes = sizeof(float) * j.n_token * o->rows;
            act_make(&j.act, kern, j.n_token, o->of.k);
            j.y = map_memory(y_bytes);
            measure(&j, w, o->of.threads[i], o);
            munmap(j.y, y_bytes);
            act_free(&j.act, j.n_token);
        }
    }
}

static void usage(void)
{
    puts("usage: gemm [--formats F,..] [--isa I,..] [--threads N,..] [--tokens N,..] [--k N]\n"
         "            [--rows N] [--cold MiB] [--repeats N] [--csv]");
}

static void parse(int argc, char **argv, struct options *o)
{
    static const struct option longs[] = {
        MATRIX_OPTIONS,
        {"rows", 1, NULL, 'n'},
        {"help", 0, NULL, 'H'},
        {NULL, 0, NULL, 0},
    };
    for (int c; (c = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
        if (c == 'n') {
            o->rows = (unsigned)number(optarg, 1u << 20);
        } else if (!matrix_option(&o->of, c, optarg)) {
            usage();
            exit(c == 'H' ? 0 : 2);
        }
    }
    if (o->of.k % 256 != 0 || o->rows % SAMPLE_ROWS != 0) {
        fprintf(stderr, "gemm: --k must be a multiple of 256, --rows of %u\n", SAMPLE_ROWS);
        exit(2);
    }
}

int main(int argc, char **argv)
{
    struct options o = {.of = {.formats = "Q8_0,Q4_K",
                               .isas = "avx2,avx512,amx",
                               .tokens = {4, 16, 64, 512},
                               .n_tokens = 4,
                               .threads = {1},
                               .n_threads = 1,
                               .k = 7168,
                               .repeats = 5,
                               .cold_bytes = 256u << 20},
                        .rows = 2048};
    parse(argc, argv, &o);
    print_head(&o);
    for (uint32_t id = 0; id < FORMAT_MAX; id++) {
        const struct format *f = format_find(id);
        if (f == NULL || !f->computable || !listed(o.of.formats, f->name)) {
            continue;
        }
        struct weights w;
        weights_make(&w, id, o.of.k, MAX(o.of.cold_bytes, format_row_bytes(f, o.of.k) * o.rows));
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
