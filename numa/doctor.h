/* What of a machine's settings and a process's limits costs speed, and how it is mended. */
#ifndef NUMOE_NUMA_DOCTOR_H
#define NUMOE_NUMA_DOCTOR_H

#include <stdio.h>

#include "numa/world.h"

enum doctor_level {
    DOCTOR_OK,
    DOCTOR_NOTE,   /* costs something in some situations */
    DOCTOR_WARNING /* costs speed or memory */
};

struct doctor_finding {
    const char *check; /* what was looked at, in a word or two */
    enum doctor_level level;
    char found[256];
    const char *cost, *mend; /* a sentence; a command. NULL where it is well */
};

#define DOCTOR_MAX_FINDING 64 /* checks, and lines on GPUs: more of them are not listed */

struct doctor_report {
    struct doctor_finding finding[DOCTOR_MAX_FINDING];
    unsigned n_finding, n_gpu;
};

/* A new finding on `check`, all well so far; NULL where there is no room for more. */
struct doctor_finding *doctor_next(struct doctor_report *report, const char *check);

/* Reads below the world's root and tries its calls on a page of its own. What cannot be read is not
 * complained of. */
void doctor_examine(struct world *world, struct doctor_report *report);

/* A finding on each NVIDIA GPU of the PCI bus below root, or that there is none; part of
 * doctor_examine(). */
void doctor_look_for_gpus(const char *root, struct doctor_report *report);

numoe_status doctor_print_text(const struct doctor_report *report, FILE *out, numoe_error *err);
numoe_status doctor_print_json(const struct doctor_report *report, FILE *out, numoe_error *err);

#endif
