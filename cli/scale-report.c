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
    return number(row, "tokens_per_second") /
           number(base_of(results, row), "tokens_per_second");
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

static void print_csv(FILE *out, const json_t *results)
{
    const json_t *row;
    size_t i;

    fputs("sockets,nodes_per_socket,cores_per_node,workers,placement,batch,tokens_per_second,"
          "spread,speed_up,efficiency,bytes_per_second,possible_bytes_per_second,model,machine\n",
          out);
    json_array_foreach(results, i, row)
    {
        fprintf(out, "%.0f,%.0f,%.0f,%.0f,%s,%.0f,%.4f,%.4f,%.4f,%.4f,%.0f,%.0f,\"%s\",\"%s\"\n",
                number(row, "sockets"), number(row, "nodes_per_socket"),
                number(row, "cores_per_node"), number(row, "threads"), text_of(row, "placement"),
                number(row, "batch"), number(row, "tokens_per_second"), number(row, "spread"),
                speed_up(results, row), efficiency(results, row), number(row, "bytes_per_second"),
                number(row, "possible_bytes_per_second"), text_of(row, "model"),
                text_of(row, "machine"));
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
 * bandwidth; series apart. */
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
                fprintf(out, "%.0f %.4f %.4f %.4f %.4f %.4f %.4f\n", number(row, "threads"),
                        number(row, "tokens_per_second"), speed_up(results, row),
                        efficiency(results, row) * 100,
                        number(row, "bytes_per_second") * 1e-9 / n_nodes(row),
                        number(row, "possible_bytes_per_second") * 1e-9 / n_nodes(row),
                        number(row, "active_bytes") > 0
                            ? number(row, "possible_bytes_per_second") / number(row, "active_bytes")
                            : 0);
            }
        }
        fputs("\n\n", out);
    }
    fputs("EOD\n", out);
}

static const struct plot {
    const char *name, *title, *axis;
    int column;
    const char *more; /* what is drawn besides the series */
} plots[] = {
    {"speedup", "Speed-up", "times the smallest", 3, ""},
    {"efficiency", "Efficiency", "% of ideal", 4, ""},
    {"bandwidth", "Weights read by a node", "GB/s", 5,
     ", $data index 0 using 1:6 with lines dashtype 2 linecolor rgb '#888888' title 'measured'"},
    {"roofline", "Tokens/s, and what bandwidth allows one sequence", "tokens/s", 2,
     ", $data index 0 using 1:7 with lines dashtype 2 linecolor rgb '#888888' title 'bound'"},
};
#define N_PLOT (sizeof plots / sizeof plots[0])

static void print_script(FILE *out, const json_t *results)
{
    size_t n_series = 0;

    for (size_t i = 0; i < json_array_size(results); i++) {
        n_series += is_first_of_series(results, i);
    }
    print_series(out, results);
    fputs("set key left top\nset grid\nset xlabel 'workers'\n"
          "set yrange [0:*]\nset key autotitle columnheader\n",
          out);
    for (size_t i = 0; i < N_PLOT; i++) {
        for (int svg = 0; svg < 2; svg++) {
            fprintf(out,
                    "set terminal %s\nset output '%s.%s'\nset title '%s'\nset ylabel '%s'\n"
                    "plot for [i=0:%zu] $data index i using 1:%d with linespoints linewidth 2%s\n",
                    svg ? "svg size 640,420 background rgb 'white'" : "pngcairo size 960,630",
                    plots[i].name, svg ? "svg" : "png", plots[i].title, plots[i].axis,
                    n_series - 1, plots[i].column, plots[i].more);
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

static void print_rows(FILE *out, const json_t *results)
{
    const json_t *row;
    size_t i;

    fputs("<table><tr><th>sockets<th>nodes<th>cores<th>workers<th>placement<th>batch<th>tokens/s"
          "<th>&plusmn;<th>speed-up<th>efficiency<th>GB/s<th>of most</tr>\n",
          out);
    json_array_foreach(results, i, row)
    {
        const double possible = number(row, "possible_bytes_per_second");
        fprintf(out,
                "<tr><td>%.0f<td>%.0f<td>%.0f<td>%.0f<td>%s<td>%.0f<td>%.2f<td>%.2f<td>%.2f"
                "<td>%.0f %%<td>%.2f<td>%.0f %%</tr>\n",
                number(row, "sockets"), number(row, "nodes_per_socket"),
                number(row, "cores_per_node"), number(row, "threads"), text_of(row, "placement"),
                number(row, "batch"), number(row, "tokens_per_second"), number(row, "spread"),
                speed_up(results, row), efficiency(results, row) * 100,
                number(row, "bytes_per_second") * 1e-9,
                possible > 0 ? number(row, "bytes_per_second") / possible * 100 : 0);
    }
    fputs("</table>\n", out);
}

static void print_page(FILE *out, const json_t *results, bool has_plots)
{
    const json_t *first = json_array_get(results, 0);

    fputs("<!DOCTYPE html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>numoe scale</title>\n"
          "<style>body{font:15px sans-serif;max-width:1340px;margin:2em auto;color:#222}"
          "table{border-collapse:collapse;margin-top:1em}td,th{padding:.25em .8em;text-align:right;"
          "border-bottom:1px solid #ddd}img{width:640px;border:1px solid #ddd;margin:4px}</style>\n"
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
        fprintf(out, "%s<img src=\"%s.svg\" alt=\"%s\">", i == 0 ? "<div>" : "", plots[i].name,
                plots[i].title);
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
    exit_status = exit_status ? exit_status
                              : open_in(&o, path, sizeof path, folder, "plots.gp");
    if (exit_status == EXIT_OK) {
        print_script(o.file, results);
        exit_status = output_commit(&o);
    }
    const bool has_plots = exit_status == EXIT_OK && run_gnuplot(folder);
    if (exit_status == EXIT_OK && !has_plots) {
        warn("no plots: gnuplot is not installed, or cannot draw PNG");
    }
    exit_status = exit_status ? exit_status
                              : open_in(&o, path, sizeof path, folder, "report.html");
    if (exit_status == EXIT_OK) {
        print_page(o.file, results, has_plots);
        exit_status = output_commit(&o);
    }
    return exit_status;
}
