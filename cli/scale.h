/* The two halves of numoe scale: points that are measured, and what is drawn of them. */
#ifndef NUMOE_CLI_SCALE_H
#define NUMOE_CLI_SCALE_H

#include <jansson.h>

#include "cli/cli.h"

struct scale_point {
    unsigned sockets, nodes, cores; /* nodes of each socket, cores of each node */
    numoe_placement placement;
    unsigned batch;
};

static inline unsigned scale_workers(const struct scale_point *p)
{
    return p->sockets * p->nodes * p->cores;
}

/* "s2 n4 c8 slice b1": a point's name, by which it is found again. */
void scale_point_name(const struct scale_point *p, char *buf, size_t cap);

/* results.csv, plots where gnuplot is installed, and report.html in the folder; `results` are the lines
 * of results.jsonl, an array of objects. An exit status. */
int scale_report(const char *folder, const json_t *results);

#endif
