/* Owns numoe_doctor_report(): the machine (numa/doctor.c), what is remembered of it (runtime/tune.c), and
 * what the GPU program says of itself.
 */
#include <stdio.h>
#include <string.h>

#include "gpu/program.h"
#include "numa/doctor.h"
#include "runtime/gpu.h"
#include "runtime/tune.h"

#define GIB 1073741824.0

/* No program is a fault only where there is a GPU. */
static void tell_failure(struct doctor_report *report, const char *why, const char *mend)
{
    struct doctor_finding *f = doctor_next(report, "GPU program");
    if (f == NULL) {
        return;
    }
    snprintf(f->found, sizeof f->found, "%.250s", why);
    if (report->n_gpu > 0) {
        f->level = DOCTOR_NOTE;
        f->cost = "--gpu has nothing to work with: the CPU computes everything";
        f->mend = mend;
    }
}

static void tell_devices(struct doctor_report *report, const struct exchange_hello *hello)
{
    for (uint32_t i = 0; i < hello->n_device; i++) {
        const struct exchange_device *device = &hello->device[i];
        struct doctor_finding *f = doctor_next(report, "GPU program");
        char node[32] = "node not known";
        if (f == NULL) {
            return;
        }
        if (device->os_node != UINT32_MAX) {
            snprintf(node, sizeof node, "node %u", device->os_node);
        }
        snprintf(f->found, sizeof f->found, "GPU %u: %s, %.1f of %.1f GiB free, %s", device->number,
                 device->name, (double)device->free_bytes / GIB, (double)device->total_bytes / GIB,
                 node);
    }
}

static void tell_program(struct doctor_report *report, const struct exchange_hello *hello)
{
    struct doctor_finding *f = doctor_next(report, "GPU program");
    if (f == NULL) {
        return;
    }
    snprintf(f->found, sizeof f->found, "%s, %s, %u GPU%s", hello->program, hello->driver,
             hello->n_device, hello->n_device == 1 ? "" : "s");
    if (hello->max_plan_device > 0 && hello->max_plan_device < hello->n_device) {
        const size_t len = strlen(f->found);
        snprintf(f->found + len, sizeof f->found - len, ", %u at a time (--gpu-devices)",
                 hello->max_plan_device);
    }
}

/* It is started as an engine would, and ends when it has said what is there. */
static void ask_gpu_program(struct doctor_report *report)
{
    char path[512];
    struct gpu_program *program = NULL;
    numoe_error why = {.status = NUMOE_OK};
    if (gpu_find(gpu_automatic_name(), path, sizeof path, &why) != NUMOE_OK) {
        tell_failure(report, why.text, "build numoe where nvcc is: configure --with-cuda=DIR");
        return;
    }
    if (gpu_program_start(path, &program, &why) != NUMOE_OK) {
        tell_failure(report, why.text, "try it alone: numoe run --gpu cuda -n 1 -p x");
        return;
    }
    const struct exchange_hello *hello = gpu_program_hello(program);
    tell_program(report, hello);
    if (hello->n_device > 0) {
        tell_devices(report, hello);
    } else {
        tell_failure(report, hello->trouble,
                     "nvidia-smi; a driver as new as the CUDA of the build");
    }
    gpu_program_stop(program);
}

static void describe_tuning(const struct tuning *tuning, struct doctor_finding *f)
{
    const char *path = memo_path(tuning->memo);
    if (tuning->memo == NULL) { /* NUMOE_PROBE=off */
        snprintf(f->found, sizeof f->found, "%s", tuning->text);
        return;
    }
    snprintf(f->found, sizeof f->found, "%.120s (%.120s)", tuning->text,
             path != NULL ? path : "nothing can be remembered: no HOME, no XDG_CACHE_HOME");
    if (!memo_can_be_saved(tuning->memo)) {
        f->level = DOCTOR_NOTE;
        f->cost = "what is measured cannot be remembered: each start measures again";
        f->mend = "export XDG_CACHE_HOME=FOLDER, one that can be written; or NUMOE_PROBE=off";
    }
}

/* What an engine on this machine would take from former ones. */
static void tell_tuning(struct doctor_report *report)
{
    numoe_engine_params params;
    struct tuning tuning;
    struct topo *topo = NULL;
    struct doctor_finding *f = doctor_next(report, "tuning");
    numoe_error why;
    if (f == NULL) {
        return;
    }
    numoe_engine_params_init(&params);
    numoe_status status = topo_load(NULL, &topo, &why);
    if (status == NUMOE_OK) {
        status = tuning_open(&params, false, topo, &tuning, &why);
    }
    if (status != NUMOE_OK) {
        snprintf(f->found, sizeof f->found, "%.250s", why.text);
        f->level = DOCTOR_WARNING;
        f->cost = "no model can be opened";
        f->mend = "unset the variable, or give it one of these values";
    } else {
        describe_tuning(&tuning, f);
        tuning_close(&tuning);
    }
    topo_free(topo);
}

numoe_status numoe_doctor_report(numoe_report_format format, FILE *out, numoe_error *err)
{
    struct world *world;
    struct doctor_report report;
    if (format != NUMOE_REPORT_TEXT && format != NUMOE_REPORT_JSON) {
        return status_fail(err, NUMOE_E_INPUT, "the report is written as text or as JSON only");
    }
    FORWARD_IF(world_new_native("", &world, err));
    doctor_examine(world, &report);
    world_free(world);
    tell_tuning(&report);
    ask_gpu_program(&report);
    FORWARD_IF(format == NUMOE_REPORT_JSON ? doctor_print_json(&report, out, err)
                                           : doctor_print_text(&report, out, err));
    return fflush(out) == 0 ? NUMOE_OK
                            : status_fail(err, NUMOE_E_FILE_WRITE, "the report cannot be written");
}
