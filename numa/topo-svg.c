/* Owns the picture of a machine: packages side by side, nodes in them, cores in those, then a
 * legend. Everything is laid out on a grid of fixed cells first, so that no text has to be
 * measured; a core is a group of class "core", which is what a reader of the file can count.
 */
#include "numa/topo-report.h"

#include <string.h>

enum {
    MARGIN = 24,
    CELL = 28, /* a core */
    STRIP = 7, /* its other hardware threads */
    GAP = 4,
    PAD = 12,
    NODE_HEAD = 62,
    NODE_MIN = 212,
    PACKAGE_HEAD = 30,
    PAGE_MAX = 1500,
    PAGE_MIN = 640,
    LINE = 20,
};

struct look {
    const char *fill, *stroke, *text;
};

static const struct look looks[] = {
    [VIEW_WORKER] = {"#1f7a8c", "#155663", "#ffffff"},
    [VIEW_QUOTA] = {"#f2c078", "#b5813a", "#4a3413"},
    [VIEW_SIBLING] = {"#bfdbe1", "#8fb8c1", "#30525a"},
    [VIEW_MASK] = {"#cfcfd4", "#a9a9b0", "#6d6d75"},
    [VIEW_CPUSET] = {"#e6e6ea", "#c3c3ca", "#8b8b94"},
    [VIEW_OFFLINE] = {"#ffffff", "#c3c3ca", "#8b8b94"},
};

struct page {
    const struct view *v;
    FILE *out;
    unsigned columns;                   /* of cores in a node */
    unsigned strip;                     /* height that further threads take */
    unsigned node_width, boxes_per_row; /* boxes in a row of a package */
    unsigned package_width, per_row;    /* packages in a row of the page */
    unsigned n_package;                 /* with something in them */
};

/* ------------------------------------------------------------------ pieces */

/* Text may come from files. */
static void put_escaped(FILE *out, const char *text)
{
    for (; *text; text++) {
        switch (*text) {
        case '<':
            fputs("&lt;", out);
            break;
        case '>':
            fputs("&gt;", out);
            break;
        case '&':
            fputs("&amp;", out);
            break;
        case '"':
            fputs("&quot;", out);
            break;
        default:
            fputc((unsigned char)*text < 0x20 || *text == 0x7f ? '?' : *text, out);
        }
    }
}

static void put_text(const struct page *p, unsigned x, unsigned y, const char *class,
                     const char *text)
{
    fprintf(p->out, "<text x=\"%u\" y=\"%u\" class=\"%s\">", x, y, class);
    put_escaped(p->out, text);
    fputs("</text>\n", p->out);
}

static void put_rect(const struct page *p, unsigned x, unsigned y, unsigned w, unsigned h,
                     unsigned radius, const char *fill, const char *stroke)
{
    fprintf(p->out,
            "<rect x=\"%u\" y=\"%u\" width=\"%u\" height=\"%u\" rx=\"%u\" fill=\"%s\" "
            "stroke=\"%s\"/>\n",
            x, y, w, h, radius, fill, stroke);
}

/* ------------------------------------------------------------------ cores */

/* The thread that stands for its core: a worker's, else the first that may be used. */
static unsigned find_main_pu(const struct view *v, const struct view_core *core)
{
    unsigned best = core->pu0;
    for (unsigned i = core->pu0; i < core->pu0 + core->n_pu; i++) {
        if (v->pu[i].use < v->pu[best].use) {
            best = i;
        }
    }
    return best;
}

static void draw_siblings(const struct page *p, const struct view_core *core, unsigned main_pu,
                          unsigned x, unsigned y)
{
    unsigned n = core->n_pu - 1, width = n ? (CELL - (n - 1)) / n : 0, k = 0;
    for (unsigned i = core->pu0; i < core->pu0 + core->n_pu; i++) {
        if (i != main_pu) {
            const struct view_pu *pu = &p->v->pu[i];
            fprintf(p->out, "<g class=\"sibling\"><title>CPU %u</title>", pu->os_index);
            put_rect(p, x + k++ * (width + 1), y, width, STRIP - 2, 1, looks[pu->use].fill,
                     looks[pu->use].stroke);
            fputs("</g>\n", p->out);
        }
    }
}

static void draw_core(const struct page *p, const struct view_core *core, unsigned x, unsigned y)
{
    unsigned main_pu = find_main_pu(p->v, core);
    const struct view_pu *pu = &p->v->pu[main_pu];
    const struct look *look = &looks[pu->use];
    fprintf(p->out, "<g class=\"core\" data-use=\"%s\"><title>CPU %u", view_use_name(pu->use),
            pu->os_index);
    if (pu->use == VIEW_WORKER) {
        fprintf(p->out, ", worker %u", pu->worker);
    }
    fputs("</title>", p->out);
    put_rect(p, x, y, CELL, CELL, 4, look->fill, look->stroke);
    fprintf(p->out, "<text x=\"%u\" y=\"%u\" class=\"cpu\" style=\"fill:%s\">%u</text></g>\n",
            x + CELL / 2, y + CELL / 2 + 4, look->text, pu->os_index);
    draw_siblings(p, core, main_pu, x, y + CELL + 2);
}

/* ------------------------------------------------------------------ nodes */

static unsigned cell_height(const struct page *p)
{
    return CELL + p->strip + GAP;
}

static unsigned box_height(const struct page *p, const struct view_box *box)
{
    unsigned rows = (box->n_core + p->columns - 1) / p->columns;
    return NODE_HEAD + rows * cell_height(p) + (rows ? PAD - GAP : 0);
}

/* Memory as a bar: what is available now in green, what is taken before it. */
static void draw_memory(const struct page *p, const struct view_node *node, unsigned x, unsigned y,
                        unsigned width)
{
    uint64_t available = node->topo ? node->topo->available_bytes : 0;
    put_rect(p, x, y, width, 18, 3, available ? "#d9d9de" : "#eef0f3", "#b9bcc4");
    char total_text[16], available_text[16], text[64];
    view_bytes(node->memory_bytes, total_text);
    snprintf(text, sizeof(text), "%s", total_text);
    if (available > 0 && available <= node->memory_bytes) {
        unsigned w = (unsigned)((double)width * (double)available / (double)node->memory_bytes);
        put_rect(p, x + width - w, y, w, 18, 3, "#a9d8a0", "#7fb276");
        snprintf(text, sizeof(text), "%s, %s available", total_text,
                 view_bytes(available, available_text));
    }
    put_text(p, x + 6, y + 13, "small", text);
}

/* The last line of a node's head: why it has no workers, or what else is known of its memory. */
static void draw_note(const struct page *p, const struct view_node *node, bool is_shared,
                      unsigned x, unsigned y)
{
    char text[96];
    const char *reason = view_node_reason(node->use);
    reason = *reason == '\0' && is_shared ? "memory is shared by packages" : reason;
    int n = snprintf(text, sizeof(text), "%s", reason);
    const struct topo_node *t = node->topo;
    if (n == 0 && t && t->huge_2m_free + t->huge_1g_free > 0) {
        n = snprintf(text, sizeof(text), "huge pages: %llu of 2M, %llu of 1G",
                     (unsigned long long)t->huge_2m_free, (unsigned long long)t->huge_1g_free);
    } else if (n == 0 && t && t->read_bps > 0) {
        n = snprintf(text, sizeof(text), "reads %.1f GB/s", t->read_bps / 1e9);
    }
    if (n > 0) {
        put_text(p, x, y, "note", text);
    }
}

static void draw_box(const struct page *p, const struct view_box *box, unsigned x, unsigned y)
{
    const struct view_node *node = &p->v->node[box->in];
    bool used = node->use == VIEW_NODE_POOL;
    char text[64];
    fputs("<g class=\"node\">\n", p->out);
    put_rect(p, x, y, p->node_width, box_height(p, box), 6, used ? "#f7fbfc" : "#f4f4f6",
             used ? "#7fb3be" : "#c3c3ca");
    snprintf(text, sizeof(text), "node %u", node->os_index);
    put_text(p, x + PAD, y + 18, used ? "name" : "name dim", text);
    unsigned n_usable, n_worker = view_box_workers(p->v, box, &n_usable);
    if (n_worker > 0) {
        snprintf(text, sizeof(text), "%u worker%s", n_worker, n_worker == 1 ? "" : "s");
        put_text(p, x + p->node_width - PAD, y + 18, "right", text);
    }
    bool is_shared = node->package == VIEW_NO_PACKAGE && box->package != VIEW_NO_PACKAGE;
    if (node->package == box->package || is_shared) {
        draw_memory(p, node, x + PAD, y + 25, p->node_width - 2 * PAD);
        draw_note(p, node, is_shared, x + PAD, y + 56);
    } else {
        snprintf(text, sizeof(text), "memory of package %u", node->package);
        put_text(p, x + PAD, y + 38, "note", text);
    }
    for (unsigned k = 0; k < box->n_core; k++) {
        draw_core(p, &p->v->core[box->core0 + k], x + PAD + k % p->columns * (CELL + GAP),
                  y + NODE_HEAD + k / p->columns * cell_height(p));
    }
    fputs("</g>\n", p->out);
}

/* ------------------------------------------------------------------ packages */

/* Boxes of a package are neighbours: [first, end). */
static unsigned end_of_package(const struct view *v, unsigned first)
{
    unsigned end = first;
    while (end < v->n_box && v->box[end].package == v->box[first].package) {
        end++;
    }
    return end;
}

static unsigned row_height(const struct page *p, unsigned first, unsigned end)
{
    unsigned height = 0;
    for (unsigned ib = first; ib < end && ib < first + p->boxes_per_row; ib++) {
        height = MAX(height, box_height(p, &p->v->box[ib]));
    }
    return height;
}

static unsigned package_height(const struct page *p, unsigned first, unsigned end)
{
    unsigned height = PACKAGE_HEAD;
    for (unsigned ib = first; ib < end; ib += p->boxes_per_row) {
        height += row_height(p, ib, end) + PAD;
    }
    return height;
}

static void draw_package(const struct page *p, unsigned first, unsigned end, unsigned x, unsigned y)
{
    char text[32];
    fputs("<g class=\"package\">\n", p->out);
    put_rect(p, x, y, p->package_width, package_height(p, first, end), 8, "#ffffff", "#8d93a0");
    snprintf(text, sizeof(text), "package %u", p->v->box[first].package);
    put_text(p, x + PAD, y + 20, "name",
             p->v->box[first].package == VIEW_NO_PACKAGE ? "outside of packages" : text);
    y += PACKAGE_HEAD;
    for (unsigned ib = first; ib < end; ib += p->boxes_per_row) {
        for (unsigned k = 0; k < p->boxes_per_row && ib + k < end; k++) {
            draw_box(p, &p->v->box[ib + k], x + PAD + k * (p->node_width + PAD), y);
        }
        y += row_height(p, ib, end) + PAD;
    }
    fputs("</g>\n", p->out);
}

/* Draws, or with out == NULL only measures; returns where the last row ends. */
static unsigned draw_packages(const struct page *p, unsigned y)
{
    const struct view *v = p->v;
    unsigned ip = 0, height = 0;
    for (unsigned first = 0, end; first < v->n_box; first = end, ip++) {
        end = end_of_package(v, first);
        if (ip > 0 && ip % p->per_row == 0) {
            y += height + MARGIN;
            height = 0;
        }
        if (p->out) {
            draw_package(p, first, end, MARGIN + ip % p->per_row * (p->package_width + MARGIN), y);
        }
        height = MAX(height, package_height(p, first, end));
    }
    return y + height;
}

/* ------------------------------------------------------------------ legend */

static unsigned count_use(const struct view *v, enum view_use use)
{
    unsigned n = 0;
    for (unsigned i = 0; i < v->n_pu; i++) {
        n += v->pu[i].use == use;
    }
    return n;
}

static void draw_use(const struct page *p, enum view_use use, unsigned n, unsigned y)
{
    char text[160];
    if (use == VIEW_WORKER) {
        snprintf(text, sizeof(text), "%u CPU%s: a worker each", n, n == 1 ? "" : "s");
    } else {
        snprintf(text, sizeof(text), "%u CPU%s: %s", n, n == 1 ? "" : "s",
                 view_use_reason(p->v, use));
    }
    put_rect(p, MARGIN, y - 11, 14, 14, 3, looks[use].fill, looks[use].stroke);
    put_text(p, MARGIN + 24, y, "text", text);
}

/* As draw_packages(). */
static unsigned draw_legend(const struct page *p, unsigned y)
{
    const struct topo *t = p->v->topo;
    char text[96], bytes[16];
    for (enum view_use use = 0; use < VIEW_N_USE; use++) {
        unsigned n = count_use(p->v, use);
        if (n > 0) {
            y += LINE;
            if (p->out) {
                draw_use(p, use, n, y);
            }
        }
    }
    if (t->cpu_quota > 0) {
        y += LINE;
        snprintf(text, sizeof(text), "control group: %.2f CPUs of quota", t->cpu_quota);
        if (p->out) {
            put_text(p, MARGIN, y, "text", text);
        }
    }
    if (t->memory_limit_bytes != UINT64_MAX) {
        y += LINE;
        snprintf(text, sizeof(text), "control group: %s of memory may still be taken",
                 view_bytes(t->memory_limit_bytes, bytes));
        if (p->out) {
            put_text(p, MARGIN, y, "text", text);
        }
    }
    return y;
}

/* ------------------------------------------------------------------ distances */

static unsigned max_distance(const struct topo *t)
{
    unsigned max = 11;
    for (unsigned i = 0; i < t->n_node * t->n_node; i++) {
        max = MAX(max, t->distance[i]);
    }
    return max;
}

/* From white at 10 to orange at the farthest. */
static void draw_distance(const struct page *p, unsigned distance, unsigned max, unsigned x,
                          unsigned y)
{
    unsigned part = distance > 10 ? 100 * (distance - 10) / (max - 10) : 0;
    char fill[16], text[16];
    snprintf(fill, sizeof(fill), "#%02x%02x%02x", 255 - part * 12 / 100, 255 - part * 95 / 100,
             255 - part * 170 / 100);
    snprintf(text, sizeof(text), "%u", distance);
    put_rect(p, x, y, 30, 20, 0, fill, "#d5d7dc");
    put_text(p, x + 15, y + 14, "mid", text);
}

/* As draw_packages(). */
static unsigned draw_distances(const struct page *p, unsigned y)
{
    const struct topo *t = p->v->topo;
    unsigned max;
    char text[16];
    if (t->distance == NULL || t->n_node < 2 || t->n_node > 32) {
        return y;
    }
    if (p->out) {
        max = max_distance(t);
        put_text(p, MARGIN, y + 30, "name", "distances between nodes");
        for (unsigned i = 0; i < t->n_node; i++) {
            snprintf(text, sizeof(text), "%u", t->node[i].os_index);
            put_text(p, MARGIN + 45 + i * 30, y + 50, "mid", text);
            put_text(p, MARGIN + 15, y + 70 + i * 20, "mid", text);
            for (unsigned j = 0; j < t->n_node; j++) {
                draw_distance(p, t->distance[i * t->n_node + j], max, MARGIN + 30 + j * 30,
                              y + 56 + i * 20);
            }
        }
    }
    return y + 56 + t->n_node * 20;
}

/* ------------------------------------------------------------------ page */

/* Few empty cells, and about three times as wide as high. */
static unsigned choose_columns(unsigned n_core)
{
    unsigned best = 4, best_score = UINT32_MAX;
    for (unsigned c = 4; c <= 16; c++) {
        unsigned rows = (n_core + c - 1) / c;
        unsigned off = c > 3 * rows ? c - 3 * rows : 3 * rows - c;
        unsigned score = 10 * (rows * c - n_core) + off;
        if (score < best_score) {
            best = c, best_score = score;
        }
    }
    return best;
}

static void lay_out(struct page *p)
{
    const struct view *v = p->v;
    unsigned most_cores = 1, most_boxes = 1;
    for (unsigned ib = 0; ib < v->n_box; ib++) {
        most_cores = MAX(most_cores, v->box[ib].n_core);
        for (unsigned k = 0; k < v->box[ib].n_core; k++) {
            p->strip = v->core[v->box[ib].core0 + k].n_pu > 1 ? STRIP : p->strip;
        }
    }
    for (unsigned first = 0; first < v->n_box; first = end_of_package(v, first)) {
        most_boxes = MAX(most_boxes, end_of_package(v, first) - first);
        p->n_package++;
    }
    p->columns = choose_columns(most_cores);
    p->node_width = MAX(NODE_MIN, p->columns * (CELL + GAP) - GAP + 2 * PAD);
    p->boxes_per_row = most_boxes <= 1 ? 1 : most_boxes <= 4 ? 2 : most_boxes <= 9 ? 3 : 4;
    p->package_width = p->boxes_per_row * (p->node_width + PAD) + PAD;
    unsigned fit = MAX((PAGE_MAX - MARGIN) / (p->package_width + MARGIN), 1u);
    unsigned rows = (p->n_package + fit - 1) / fit;
    p->per_row = (p->n_package + rows - 1) / rows;
}

static void put_head(const struct page *p, unsigned width, unsigned height)
{
    fprintf(p->out,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%u\" height=\"%u\" "
            "viewBox=\"0 0 %u %u\">\n"
            "<style>\n"
            "text{font-family:'DejaVu Sans',Verdana,Arial,sans-serif;font-size:12px;fill:#2b2f38}\n"
            ".title{font-size:17px;font-weight:bold}\n"
            ".name{font-weight:bold}.dim{fill:#8b8b94}\n"
            ".small{font-size:11px}.note{font-size:11px;fill:#6d6d75}\n"
            ".right{text-anchor:end}.mid{text-anchor:middle;font-size:11px}\n"
            ".cpu{text-anchor:middle;font-size:11px}\n"
            "</style>\n",
            width, height, width, height);
    put_rect(p, 0, 0, width, height, 0, "#fbfbfc", "none");
}

numoe_status topo_print_svg(const struct view *view, FILE *out, numoe_error *err)
{
    struct page p = {.v = view};
    struct strbuf source = {0};
    FORWARD_IF(view_source(view, &source, err));
    lay_out(&p);
    unsigned top = 84, width = p.per_row * (p.package_width + MARGIN) + MARGIN;
    width = MAX(width, PAGE_MIN);
    width = MAX(width, 11 * (unsigned)strlen(view->topo->description) + 2 * MARGIN);
    width = MAX(width, 7 * (unsigned)source.len + 2 * MARGIN);
    unsigned height = draw_distances(&p, draw_legend(&p, draw_packages(&p, top) + 12)) + MARGIN;
    p.out = out;
    put_head(&p, width, height);
    put_text(&p, MARGIN, 38, "title", view->topo->description);
    put_text(&p, MARGIN, 62, "text", source.data);
    draw_distances(&p, draw_legend(&p, draw_packages(&p, top) + 12));
    fputs("</svg>\n", out);
    strbuf_fini(&source);
    return NUMOE_OK;
}
