/* Expert statistics for people and for spreadsheets: a table, three kinds of CSV, and a heat map. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "store/stats.h"

/* The hottest 1 % ... of the experts. */
static const double part_percent[] = {1, 2, 5, 10, 15, 20, 25, 30, 40, 50, 60, 70, 80, 90, 100};
static const double table_percent[] = {5, 10, 25, 50};

struct report {
    const struct expert_stats *s;
    FILE *out;
    uint64_t *sorted; /* [n_layer * n_expert] scratch */
    double total;     /* of all counts */
};

static const uint64_t *layer_counts(const struct expert_stats *s, unsigned il)
{
    return s->count + (size_t)il * s->n_expert;
}

static double layer_total(const struct expert_stats *s, unsigned il)
{
    double sum = 0;
    for (unsigned ie = 0; ie < s->n_expert; ie++) {
        sum += (double)layer_counts(s, il)[ie];
    }
    return sum;
}

/* Layers without experts have no choices; they are left out everywhere. */
static unsigned count_layers(const struct expert_stats *s)
{
    unsigned n = 0;
    for (unsigned il = 0; il < s->n_layer; il++) {
        n += layer_total(s, il) > 0;
    }
    return n;
}

/* How many experts would be as good a choice if all were used alike: exp of the entropy. */
static double effective_experts(const struct expert_stats *s, unsigned il)
{
    const double total = layer_total(s, il);
    double entropy = 0;
    for (unsigned ie = 0; ie < s->n_expert; ie++) {
        const double p = (double)layer_counts(s, il)[ie] / total;
        entropy -= p > 0 ? p * log(p) : 0;
    }
    return exp(entropy);
}

static unsigned hottest(const struct expert_stats *s, unsigned il)
{
    unsigned best = 0;
    for (unsigned ie = 1; ie < s->n_expert; ie++) {
        best = layer_counts(s, il)[ie] > layer_counts(s, il)[best] ? ie : best;
    }
    return best;
}

/* ------------------------------------------------------------------ pairs */

struct pair {
    unsigned a, b;
    uint64_t count;
    double share; /* of the layer's tokens */
    double lift;  /* times as often as two experts that do not know each other */
};

/* Tokens that passed the layer. */
static double layer_tokens(const struct expert_stats *s, unsigned il)
{
    return s->n_used > 0 ? layer_total(s, il) / s->n_used : 0;
}

static struct pair describe_pair(const struct expert_stats *s, unsigned il, unsigned a, unsigned b)
{
    const size_t n = s->n_expert;
    const double tokens = layer_tokens(s, il);
    const uint64_t *count = layer_counts(s, il);
    struct pair p = {.a = a, .b = b};
    p.count = s->pair[il * expert_stats_pairs(n) + expert_stats_pair(n, a, b)];
    const double by_chance = (double)count[a] * (double)count[b] / (tokens > 0 ? tokens : 1);
    p.share = tokens > 0 ? (double)p.count / tokens : 0;
    p.lift = by_chance > 0 ? (double)p.count / by_chance : 0;
    return p;
}

static struct pair commonest_pair(const struct expert_stats *s, unsigned il)
{
    struct pair best = {0};
    for (unsigned a = 0; a < s->n_expert; a++) {
        for (unsigned b = a + 1; b < s->n_expert; b++) {
            const struct pair p = describe_pair(s, il, a, b);
            best = p.count > best.count ? p : best;
        }
    }
    return best;
}

/* ------------------------------------------------------------------ table */

static void print_head(const struct report *r)
{
    const struct expert_stats *s = r->s;
    fprintf(r->out, "%u layers with experts, %u experts each", count_layers(s), s->n_expert);
    if (s->n_used > 0) {
        fprintf(r->out, ", %u of them for a token: %.0f tokens", s->n_used,
                r->total / s->n_used / MAX(count_layers(s), 1u));
    }
    fprintf(r->out, ", %.0f choices\n\n", r->total);
    fputs("       the hottest ... of the experts serve  most used      experts in\n", r->out);
    fputs("layer", r->out);
    for (size_t i = 0; i < ARRAY_LEN(table_percent); i++) {
        fprintf(r->out, "  %6.0f %%", table_percent[i]);
    }
    fputs("  of mean     no.  effect", r->out);
    fputs(s->pair != NULL ? "  commonest pair\n" : "\n", r->out);
}

static void print_coverage(const struct report *r, const uint64_t *count, size_t n)
{
    expert_stats_sort(count, n, r->sorted);
    for (size_t i = 0; i < ARRAY_LEN(table_percent); i++) {
        fprintf(r->out, "  %6.1f %%",
                expert_stats_coverage(r->sorted, n, table_percent[i] / 100) * 100);
    }
}

static void print_layer(const struct report *r, unsigned il)
{
    const struct expert_stats *s = r->s;
    fprintf(r->out, "%5u", il);
    print_coverage(r, layer_counts(s, il), s->n_expert);
    fprintf(r->out, "  %6.2f x  %5u  %6.1f",
            expert_stats_imbalance(layer_counts(s, il), s->n_expert), hottest(s, il),
            effective_experts(s, il));
    if (s->pair != NULL) {
        const struct pair p = commonest_pair(s, il);
        fprintf(r->out, "  %u + %u: %.1f %% of tokens, %.1f x by chance", p.a, p.b, p.share * 100,
                p.lift);
    }
    fputc('\n', r->out);
}

/* All experts of all layers in one list: what replicas and GPUs are filled by. Copies of layers that
 * were never passed are not in it. */
static size_t collect_counts(const struct expert_stats *s, uint64_t *out)
{
    size_t n = 0;
    for (unsigned il = 0; il < s->n_layer; il++) {
        if (layer_total(s, il) > 0) {
            memcpy(out + n, layer_counts(s, il), s->n_expert * sizeof *out);
            n += s->n_expert;
        }
    }
    return n;
}

static numoe_status all_counts(const struct expert_stats *s, uint64_t **out, size_t *n,
                               numoe_error *err)
{
    FORWARD_IF(mem_new(out, (size_t)s->n_layer * s->n_expert, sizeof **out, "a report", err));
    *n = collect_counts(s, *out);
    return NUMOE_OK;
}

static numoe_status print_table(const struct report *r, numoe_error *err)
{
    uint64_t *all;
    size_t n;
    FORWARD_IF(all_counts(r->s, &all, &n, err));
    print_head(r);
    for (unsigned il = 0; il < r->s->n_layer; il++) {
        if (layer_total(r->s, il) > 0) {
            print_layer(r, il);
        }
    }
    fputs("  all", r->out);
    print_coverage(r, all, n);
    fprintf(r->out, "  %6.2f x\n", expert_stats_imbalance(all, n));
    mem_free(all);
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ CSV */

static void print_experts(const struct report *r)
{
    const struct expert_stats *s = r->s;
    fputs("layer,expert,count,share,mean_weight\n", r->out);
    for (unsigned il = 0; il < s->n_layer; il++) {
        const double total = layer_total(s, il);
        for (unsigned ie = 0; total > 0 && ie < s->n_expert; ie++) {
            const size_t at = (size_t)il * s->n_expert + ie;
            fprintf(r->out, "%u,%u,%" PRIu64 ",%.6f,", il, ie, s->count[at],
                    (double)s->count[at] / total);
            if (s->weight != NULL && s->count[at] > 0) {
                fprintf(r->out, "%.6f", s->weight[at] / (double)s->count[at]);
            }
            fputc('\n', r->out);
        }
    }
}

static void print_curve_of(const struct report *r, const char *name, const uint64_t *count, size_t n)
{
    expert_stats_sort(count, n, r->sorted);
    for (size_t i = 0; i < ARRAY_LEN(part_percent); i++) {
        fprintf(r->out, "%s,%g,%.3f\n", name, part_percent[i],
                expert_stats_coverage(r->sorted, n, part_percent[i] / 100) * 100);
    }
}

static numoe_status print_curves(const struct report *r, numoe_error *err)
{
    uint64_t *all;
    size_t n;
    FORWARD_IF(all_counts(r->s, &all, &n, err));
    fputs("layer,percent_of_experts,percent_of_choices\n", r->out);
    for (unsigned il = 0; il < r->s->n_layer; il++) {
        char name[16];
        snprintf(name, sizeof name, "%u", il);
        if (layer_total(r->s, il) > 0) {
            print_curve_of(r, name, layer_counts(r->s, il), r->s->n_expert);
        }
    }
    print_curve_of(r, "all", all, n);
    mem_free(all);
    return NUMOE_OK;
}

static numoe_status print_pairs(const struct report *r, numoe_error *err)
{
    const struct expert_stats *s = r->s;
    if (s->pair == NULL || s->n_used == 0) {
        return status_fail(err, NUMOE_E_INPUT,
                           "these statistics do not tell which experts were chosen together");
    }
    fputs("layer,expert_a,expert_b,count,share_of_tokens,times_by_chance\n", r->out);
    for (unsigned il = 0; il < s->n_layer; il++) {
        for (unsigned a = 0; a < s->n_expert; a++) {
            for (unsigned b = a + 1; b < s->n_expert; b++) {
                const struct pair p = describe_pair(s, il, a, b);
                if (p.count > 0) {
                    fprintf(r->out, "%u,%u,%u,%" PRIu64 ",%.6f,%.3f\n", il, a, b, p.count, p.share,
                            p.lift);
                }
            }
        }
    }
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ heat map */

enum { LEFT = 60, TOP = 58, BOTTOM = 64, RIGHT = 24, PLOT_WIDTH = 1024, MAX_CELL = 28, MIN_CELL = 4 };

#define MOST_TITLES 4096u /* cells that say what they are when pointed at */

/* From never (white) by half the mean (light) and the mean to four times the mean and more (dark):
 * the colours of a map that also prints well in grey. */
static void put_colour(FILE *out, double times_mean)
{
    static const unsigned char stop[][3] = {
        {255, 255, 255}, {222, 235, 247}, {158, 202, 225}, {66, 146, 198}, {8, 69, 148}, {3, 19, 60}};
    /* 0, 1/4, 1/2, 1, 2, 4 */
    double at = times_mean < 0.25 ? times_mean * 4 : log2(times_mean) + 3;
    at = MIN(at, (double)ARRAY_LEN(stop) - 1);
    const size_t i = MIN((size_t)at, ARRAY_LEN(stop) - 2);
    const double f = at - (double)i;
    fputc('#', out);
    for (unsigned c = 0; c < 3; c++) {
        fprintf(out, "%02x", (unsigned)(stop[i][c] + f * (stop[i + 1][c] - stop[i][c]) + 0.5));
    }
}

static void put_cells(const struct report *r, unsigned il, double x, double y, double w, double h)
{
    const struct expert_stats *s = r->s;
    const double mean = layer_total(s, il) / s->n_expert;
    const bool titled = (size_t)s->n_layer * s->n_expert <= MOST_TITLES;
    for (unsigned ie = 0; ie < s->n_expert; ie++) {
        const uint64_t count = layer_counts(s, il)[ie];
        fprintf(r->out, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"",
                x + ie * w, y, w, h);
        put_colour(r->out, (double)count / mean);
        if (titled) {
            fprintf(r->out,
                    "\"><title>layer %u, expert %u: %" PRIu64 ", %.2f times the mean</title>"
                    "</rect>\n",
                    il, ie, count, (double)count / mean);
        } else {
            fputs("\"/>\n", r->out);
        }
    }
}

static void put_legend(const struct report *r, double y)
{
    static const double sample[] = {0, 0.25, 0.5, 1, 2, 4};
    fprintf(r->out, "<text x=\"%d\" y=\"%.1f\">times the layer's mean</text>\n", LEFT, y + 12);
    for (size_t i = 0; i < ARRAY_LEN(sample); i++) {
        const double x = LEFT + 160 + 64 * (double)i;
        fprintf(r->out,
                "<rect x=\"%.1f\" y=\"%.1f\" width=\"20\" height=\"14\" stroke=\"#999\" fill=\"", x,
                y);
        put_colour(r->out, sample[i]);
        fprintf(r->out, "\"/><text x=\"%.1f\" y=\"%.1f\">%g%s</text>\n", x + 26, y + 12, sample[i],
                i + 1 == ARRAY_LEN(sample) ? "+" : "");
    }
}

static void put_axes(const struct report *r, double w, double h)
{
    const struct expert_stats *s = r->s;
    const unsigned every_x = (unsigned)ceil(40 / w), every_y = (unsigned)ceil(14 / h);
    unsigned row = 0;
    for (unsigned ie = 0; ie < s->n_expert; ie += every_x) {
        fprintf(r->out, "<text x=\"%.1f\" y=\"%d\">%u</text>\n", LEFT + ie * w, TOP - 6, ie);
    }
    for (unsigned il = 0; il < s->n_layer; il++) {
        if (layer_total(s, il) > 0) {
            if (row % every_y == 0) {
                fprintf(r->out, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%u</text>\n",
                        LEFT - 8, TOP + row * h + MIN(h, 12.0), il);
            }
            row++;
        }
    }
}

static void print_svg(const struct report *r)
{
    const struct expert_stats *s = r->s;
    const unsigned n_row = count_layers(s);
    const double w = MAX(MIN((double)PLOT_WIDTH / MAX(s->n_expert, 1u), (double)MAX_CELL), 1.0);
    const double h = MAX(MIN(w, (double)MAX_CELL / 2), (double)MIN_CELL);
    const double width = MAX(LEFT + s->n_expert * w + RIGHT, 640.0);
    const double height = TOP + n_row * h + BOTTOM;
    unsigned row = 0;
    fprintf(r->out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
            "font-family=\"sans-serif\" font-size=\"12\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
            "<text x=\"%d\" y=\"20\" font-size=\"15\">How often each expert was chosen: %.0f "
            "choices</text>\n<text x=\"8\" y=\"%d\">layer</text>\n"
            "<text x=\"8\" y=\"%d\">expert</text>\n",
            width, height, LEFT, r->total, TOP - 22, TOP - 6);
    put_axes(r, w, h);
    for (unsigned il = 0; il < s->n_layer; il++) {
        if (layer_total(s, il) > 0) {
            put_cells(r, il, LEFT, TOP + row++ * h, w, h);
        }
    }
    fprintf(r->out,
            "<rect x=\"%d\" y=\"%d\" width=\"%.2f\" height=\"%.2f\" fill=\"none\" "
            "stroke=\"#999\"/>\n",
            LEFT, TOP, s->n_expert * w, n_row * h);
    put_legend(r, TOP + n_row * h + 22);
    fputs("</svg>\n", r->out);
}

/* ------------------------------------------------------------------ */

numoe_status expert_stats_print(const struct expert_stats *stats, numoe_stats_format format,
                                FILE *out, numoe_error *err)
{
    struct report r = {.s = stats, .out = out};
    const size_t n = (size_t)stats->n_layer * stats->n_expert;
    for (unsigned il = 0; il < stats->n_layer; il++) {
        r.total += layer_total(stats, il);
    }
    if (r.total == 0) {
        return status_fail(err, NUMOE_E_INPUT, "the statistics are empty: nothing was chosen");
    }
    FORWARD_IF(mem_new(&r.sorted, n, sizeof *r.sorted, "a report", err));
    numoe_status status = NUMOE_OK;
    switch (format) {
    case NUMOE_STATS_EXPERTS:
        print_experts(&r);
        break;
    case NUMOE_STATS_CURVE:
        status = print_curves(&r, err);
        break;
    case NUMOE_STATS_PAIRS:
        status = print_pairs(&r, err);
        break;
    case NUMOE_STATS_SVG:
        print_svg(&r);
        break;
    default:
        status = print_table(&r, err);
    }
    mem_free(r.sorted);
    if (status == NUMOE_OK && ferror(out)) {
        status = status_fail(err, NUMOE_E_FILE_WRITE, "the statistics cannot be written");
    }
    return status;
}
