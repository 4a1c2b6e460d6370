/* What is drawn of a scaling experiment: a table, plots by gnuplot, a page. */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/scale.h"

static double number(const json_t *row, const char *key)
{
    return json_number_value(json_object_get(row, key));
}

static const char *text_of(const json_t *row, const char *key)
{
    const char *text = json_string_value(json_object_get(row, key));
    return text ? text : "";
}

/* Rows of one placement and batch are one line in a plot. */
static bool same_series(const json_t *a, const json_t *b)
{
    return strcmp(text_of(a, "placement"), text_of(b, "placement")) == 0 &&
           number(a, "batch") == number(b, "batch");
}

static double n_nodes(const json_t *row)
{
    return number(row, "sockets") * number(row, "nodes_per_socket");
}

/* The smallest point of a row's series: what speed-up is measured against. */
static const json_t *base_of(const json_t *results, const json_t *row)
{
    const json_t *best = row, *other;
    size_t i;

    json_array_foreach(results, i, other)
    {
        if (same_series(other, row) && number(other, "threads") < number(best, "threads")) {
            best = other;
        }
    }
    return best;
}

static double speed_up(const json_t *results, const json_t *row)
{
    return number(row, "tokens_per_second") / number(base_of(results, row), "tokens_per_second");
}

static double efficiency(const json_t *results, const json_t *row)
{
    return speed_up(results, row) * number(base_of(results, row), "threads") /
           number(row, "threads");
}

/* ------------------------------------------------------------------ files */

/* Opens FOLDER/name as an output that is complete or not there. */
static int open_in(struct output *o, char *path, size_t cap, const char *folder, const char *name)
{
    *o = (struct output){.path = NULL};
    if (snprintf(path, cap, "%s/%s", folder, name) >= (int)cap) {
        return fail(EXIT_INPUT, "%s: the name is too long", folder);
    }
    return output_open(o, path);
}

static void put_csv_text(FILE *out, const char *text)
{
    fputc('"', out);
    for (; *text; text++) {
        fputs(*text == '"' ? "\"\"" : (char[]){*text, 0}, out);
    }
    fputc('"', out);
}

static void print_csv(FILE *out, const json_t *results)
{
    const json_t *row;
    size_t i;

    fputs("sockets,nodes_per_socket,cores_per_node,workers,placement,batch,tokens_per_second,"
          "spread,speed_up,efficiency,bytes_per_second,possible_bytes_per_second,n_generate,"
          "artificial,type,isa,model,machine\n",
          out);
    json_array_foreach(results, i, row)
    {
        fprintf(out, "%.0f,%.0f,%.0f,%.0f,%s,%.0f,%.4f,%.4f,%.4f,%.4f,%.0f,%.0f,%.0f,%d,%s,%s,",
                number(row, "sockets"), number(row, "nodes_per_socket"),
                number(row, "cores_per_node"), number(row, "threads"), text_of(row, "placement"),
                number(row, "batch"), number(row, "tokens_per_second"), number(row, "spread"),
                speed_up(results, row), efficiency(results, row), number(row, "bytes_per_second"),
                number(row, "possible_bytes_per_second"), number(row, "n_generate"),
                json_is_true(json_object_get(row, "artificial")), text_of(row, "type"),
                text_of(row, "isa"));
        put_csv_text(out, text_of(row, "model"));
        fputc(',', out);
        put_csv_text(out, text_of(row, "machine"));
        fputc('\n', out);
    }
}

static bool is_first_of_series(const json_t *results, size_t at)
{
    for (size_t i = 0; i < at; i++) {
        if (same_series(json_array_get(results, i), json_array_get(results, at))) {
            return false;
        }
    }
    return true;
}

/* Workers, tokens/s, speed-up, efficiency, GB/s of a node, GB/s possible, tokens/s at that
 * bandwidth, speed-up if every worker did as the smallest point's. What was not measured: NaN. */
static void print_point(FILE *out, const json_t *results, const json_t *row)
{
    const double possible = number(row, "possible_bytes_per_second");
    const double active = number(row, "active_bytes");

    fprintf(out, "%.0f %.4f %.4f %.4f %.4f", number(row, "threads"),
            number(row, "tokens_per_second"), speed_up(results, row),
            efficiency(results, row) * 100, number(row, "bytes_per_second") * 1e-9 / n_nodes(row));
    if (possible > 0 && active > 0) {
        fprintf(out, " %.4f %.4f", possible * 1e-9 / n_nodes(row), possible / active);
    } else {
        fputs(" NaN NaN", out);
    }
    fprintf(out, " %.4f\n", number(row, "threads") / number(base_of(results, row), "threads"));
}

/* The fastest of a series with the fewest workers that are more than `above`; NULL: none. */
static const json_t *next_best(const json_t *results, const json_t *series, double above)
{
    const json_t *row, *best = NULL;
    size_t i;

    json_array_foreach(results, i, row)
    {
        const double n = number(row, "threads");
        if (!same_series(row, series) || n <= above) {
            continue;
        }
        if (!best || n < number(best, "threads") ||
            (n == number(best, "threads") &&
             number(row, "tokens_per_second") > number(best, "tokens_per_second"))) {
            best = row;
        }
    }
    return best;
}

/* Of each series two blocks: its points, and what a line joins: the same number of workers can lie
 * on nodes in several ways, of which the fastest counts. */
static void print_series(FILE *out, const json_t *results)
{
    const json_t *row;
    size_t i, j;

    fputs("$data << EOD\n", out);
    for (i = 0; i < json_array_size(results); i++) {
        const json_t *first = json_array_get(results, i);
        if (!is_first_of_series(results, i)) {
            continue;
        }
        fprintf(out, "\"%s, batch %.0f\"\n", text_of(first, "placement"), number(first, "batch"));
        json_array_foreach(results, j, row)
        {
            if (same_series(row, first)) {
                print_point(out, results, row);
            }
        }
        fprintf(out, "\n\n\"%s, batch %.0f\"\n", text_of(first, "placement"),
                number(first, "batch"));
        for (row = next_best(results, first, 0); row;
             row = next_best(results, first, number(row, "threads"))) {
            print_point(out, results, row);
        }
        fputs("\n\n", out);
    }
    fputs("EOD\n", out);
}

static const struct plot {
    const char *name, *title, *axis;
    int column;
    int more; /* a column that is drawn besides the series, of the first of them */
    const char *more_title;
} plots[] = {
    {"speedup", "Speed-up", "times the smallest point", 3, 8, "ideal"},
    {"efficiency", "Efficiency", "% of ideal", 4, 0, NULL},
    {"bandwidth", "Weights read by a node", "GB/s", 5, 6, "read bandwidth of a node"},
    {"roofline", "Tokens/s, and what read bandwidth allows one sequence", "tokens/s", 2, 7,
     "bound of one sequence"},
};
#define N_PLOT (sizeof plots / sizeof plots[0])

static void print_plot(FILE *out, const struct plot *p, size_t n_series)
{
    fprintf(
        out,
        "plot for [i=1:%zu] $data index 2*i-1 using 1:%d with lines linewidth 2 linecolor i, \\\n"
        "     for [i=1:%zu] $data index 2*i-2 using 1:%d with points linecolor i pointtype i "
        "notitle",
        n_series, p->column, n_series, p->column);
    if (p->more > 0) {
        fprintf(out,
                ", \\\n     $data index 1 using 1:%d with linespoints pointtype 0 dashtype 2 "
                "linecolor rgb '#888888' title '%s'",
                p->more, p->more_title);
    }
    fputc('\n', out);
}

static void print_script(FILE *out, const json_t *results)
{
    const json_t *row;
    size_t n_series = 0, i;
    double most = 0;

    json_array_foreach(results, i, row)
    {
        n_series += is_first_of_series(results, i);
        most = number(row, "threads") > most ? number(row, "threads") : most;
    }
    print_series(out, results);
    fprintf(
        out,
        "set key below height 1 maxrows 3\nset grid\nset xlabel 'workers'\nset xrange [0:%.1f]\n"
        "set yrange [0:*]\nset key autotitle columnheader\n%s",
        most + 0.5, most <= 16 ? "set xtics 1\n" : "");
    for (i = 0; i < N_PLOT; i++) {
        for (int svg = 0; svg < 2; svg++) {
            fprintf(out, "set terminal %s\nset output '%s.%s'\nset title '%s'\nset ylabel '%s'\n",
                    svg ? "svg size 640,460 background rgb 'white'" : "pngcairo size 960,690",
                    plots[i].name, svg ? "svg" : "png", plots[i].title, plots[i].axis);
            print_plot(out, &plots[i], n_series);
        }
    }
}

/* In the folder, so that names in the script are short. False: no gnuplot, or it failed. */
static bool run_gnuplot(const char *folder)
{
    int status;

    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        if (chdir(folder) == 0) {
            execlp("gnuplot", "gnuplot", "plots.gp", (char *)NULL);
        }
        _exit(127);
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) &&
           WEXITSTATUS(status) == 0;
}

/* ------------------------------------------------------------------ the page */

static void put_html(FILE *out, const char *text)
{
    for (; *text; text++) {
        switch (*text) {
        case '<':
            fputs("&lt;", out);
            break;
        case '&':
            fputs("&amp;", out);
            break;
        default:
            fputc(*text, out);
        }
    }
}

/* A number that was not measured leaves its cell empty. */
static void print_cell(FILE *out, double value, const char *format)
{
    fputs("<td>", out);
    if (value > 0) {
        fprintf(out, format, value);
    }
}

static void print_row(FILE *out, const json_t *results, const json_t *row)
{
    const double read = number(row, "bytes_per_second");
    const double possible = number(row, "possible_bytes_per_second");

    fprintf(out, "<tr><td>%.0f<td>%.0f<td>%.0f<td>%.0f<td>%s<td>%.0f<td>%.2f",
            number(row, "sockets"), number(row, "nodes_per_socket"), number(row, "cores_per_node"),
            number(row, "threads"), text_of(row, "placement"), number(row, "batch"),
            number(row, "tokens_per_second"));
    print_cell(out, number(row, "spread"), "%.2f");
    print_cell(out, speed_up(results, row), "%.2f");
    print_cell(out, efficiency(results, row) * 100, "%.0f&nbsp;%%");
    print_cell(out, read * 1e-9, "%.2f");
    print_cell(out, possible > 0 ? read / possible * 100 : 0, "%.0f&nbsp;%%");
    fputs("</tr>\n", out);
}

static void print_rows(FILE *out, const json_t *results)
{
    const json_t *row;
    size_t i;

    fputs("<div class=\"wide\"><table><tr><th>sockets<th>nodes of each<th>cores of each<th>workers"
          "<th>placement<th>batch<th>tokens/s<th>&plusmn;<th>speed-up<th>efficiency<th>GB/s"
          "<th>of measured</tr>\n",
          out);
    json_array_foreach(results, i, row)
    {
        print_row(out, results, row);
    }
    fputs("</table></div>\n"
          "<p>Speed-up and efficiency are against the fewest workers of the same placement and "
          "batch; &plusmn; is the standard deviation of tokens/s; GB/s are weights that all nodes "
          "read, beside the read bandwidth that the same workers measured. Lines join the fastest "
          "point of each number of workers.\n",
          out);
}

static void print_page(FILE *out, const json_t *results, bool has_plots)
{
    const json_t *first = json_array_get(results, 0);

    fputs("<!DOCTYPE html>\n<html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" "
          "content=\"width=device-width\"><title>numoe scale</title>\n"
          "<style>body{font:15px sans-serif;max-width:1340px;margin:2em auto;padding:0 "
          "1em;color:#222}"
          "table{border-collapse:collapse;margin-top:1em}td,th{padding:.25em .7em;text-align:right;"
          "vertical-align:bottom;border-bottom:1px solid #ddd}.wide{overflow-x:auto}"
          ".plots{display:flex;flex-wrap:wrap;gap:8px}"
          ".plots img{width:640px;max-width:100%;box-sizing:border-box;border:1px solid #ddd}"
          "</style>\n"
          "<h1>How generation scales</h1>\n<p>",
          out);
    put_html(out, text_of(first, "model"));
    fputs(", ", out);
    put_html(out, text_of(first, "type"));
    fputs(" &middot; ", out);
    put_html(out, text_of(first, "machine"));
    fputs(" &middot; numoe ", out);
    put_html(out, text_of(first, "version"));
    fputs(json_is_true(json_object_get(first, "artificial"))
              ? " &middot; sockets and nodes are made up\n"
              : "\n",
          out);
    for (size_t i = 0; has_plots && i < N_PLOT; i++) {
        fprintf(out, "%s<img src=\"%s.svg\" alt=\"%s\">", i == 0 ? "<div class=\"plots\">" : "",
                plots[i].name, plots[i].title);
    }
    fputs(has_plots ? "</div>\n" : "<p>No plots: gnuplot is not installed.\n", out);
    print_rows(out, results);
    fputs("</html>\n", out);
}

int scale_report(const char *folder, const json_t *results)
{
    char path[4096];
    struct output o;

    if (json_array_size(results) == 0) {
        return fail(EXIT_INPUT, "no point was measured: this machine has none of those");
    }
    int exit_status = open_in(&o, path, sizeof path, folder, "results.csv");
    if (exit_status == EXIT_OK) {
        print_csv(o.file, results);
        exit_status = output_commit(&o);
    }
    exit_status = exit_status ? exit_status : open_in(&o, path, sizeof path, folder, "plots.gp");
    if (exit_status == EXIT_OK) {
        print_script(o.file, results);
        exit_status = output_commit(&o);
    }
    const bool has_plots = exit_status == EXIT_OK && run_gnuplot(folder);
    if (exit_status == EXIT_OK && !has_plots) {
        warn("no plots: gnuplot is not installed, or failed: gnuplot %s/plots.gp tells", folder);
    }
    exit_status = exit_status ? exit_status : open_in(&o, path, sizeof path, folder, "report.html");
    if (exit_status == EXIT_OK) {
        print_page(o.file, results, has_plots);
        exit_status = output_commit(&o);
    }
    return exit_status;
}
