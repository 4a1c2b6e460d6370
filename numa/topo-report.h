/* A view of a machine as text, JSON and SVG. */
#ifndef NUMOE_NUMA_TOPO_REPORT_H
#define NUMOE_NUMA_TOPO_REPORT_H

#include "numa/topo-view.h"

numoe_status topo_print_text(const struct view *view, FILE *out, numoe_error *err);
numoe_status topo_print_json(const struct view *view, FILE *out, numoe_error *err);
numoe_status topo_print_svg(const struct view *view, FILE *out, numoe_error *err); /* topo-svg.c */

#endif
