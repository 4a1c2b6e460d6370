/* Owns findings as text and as JSON. What is found is numa/doctor.c's. */
#include <jansson.h>

#include "base/mem.h"
#include "numa/doctor.h"

static const char *const level_names[] = {"ok", "note", "warning"};

static unsigned count_level(const struct doctor_report *report, enum doctor_level level)
{
    unsigned n = 0;
    for (unsigned i = 0; i < report->n_finding; i++) {
        n += report->finding[i].level == level;
    }
    return n;
}

numoe_status doctor_print_text(const struct doctor_report *report, FILE *out, numoe_error *err)
{
    for (unsigned i = 0; i < report->n_finding; i++) {
        const struct doctor_finding *f = &report->finding[i];
        fprintf(out, "%-8s %-17s %s\n", level_names[f->level], f->check, f->found);
        if (f->level != DOCTOR_OK) {
            fprintf(out, "%26s costs: %s\n%26s mend:  %s\n", "", f->cost, "", f->mend);
        }
    }
    unsigned n_warning = count_level(report, DOCTOR_WARNING);
    unsigned n_note = count_level(report, DOCTOR_NOTE);
    fprintf(out, "\n%u warning%s, %u note%s\n", n_warning, n_warning == 1 ? "" : "s", n_note,
            n_note == 1 ? "" : "s");
    return ferror(out) ? status_fail(err, NUMOE_E_FILE_WRITE, "the report cannot be written")
                       : NUMOE_OK;
}

numoe_status doctor_print_json(const struct doctor_report *report, FILE *out, numoe_error *err)
{
    json_t *findings = json_array();
    for (unsigned i = 0; i < report->n_finding; i++) {
        const struct doctor_finding *f = &report->finding[i];
        json_array_append_new(findings, json_pack("{s:s, s:s, s:s, s:s?, s:s?}", "check", f->check,
                                                  "level", level_names[f->level], "found", f->found,
                                                  "costs", f->cost, "mend", f->mend));
    }
    json_t *root =
        json_pack("{s:i, s:i, s:o}", "warnings", (int)count_level(report, DOCTOR_WARNING), "notes",
                  (int)count_level(report, DOCTOR_NOTE), "findings", findings);
    if (root == NULL) {
        return status_fail(err, NUMOE_E_MEMORY, "report as JSON: cannot allocate");
    }
    int rc = json_dumpf(root, out, JSON_INDENT(2));
    json_decref(root);
    fputc('\n', out);
    return rc == 0 && !ferror(out)
               ? NUMOE_OK
               : status_fail(err, NUMOE_E_FILE_WRITE, "the report cannot be written");
}
