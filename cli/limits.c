/* What a batch system has given to this task, where it tells so by variables. The affinity mask and
 * control groups, which the library reads, may be wider: not every site confines its jobs. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sched.h>
#include <stdlib.h>

#include "cli/cli.h"

#define MAX_CPUS 8192 /* that a kernel may be built for */

static double env_number(const char *name)
{
    const char *text = getenv(name);
    char *end = NULL;
    const double value = text && *text ? strtod(text, &end) : 0;
    return end && (*end == 0 || *end == '(' || *end == ',') && value > 0 ? value : 0;
}

/* "2(x3),1" of Slurm: on this node it is not known which; the first is as many as any. */
static double tasks_here(void)
{
    const double n = env_number("SLURM_STEP_TASKS_PER_NODE");
    const double of_job = env_number("SLURM_TASKS_PER_NODE");
    return n > 0 ? n : of_job > 0 ? of_job : 1;
}

unsigned bound_cpus(void)
{
    cpu_set_t *set = CPU_ALLOC(MAX_CPUS);
    const size_t bytes = CPU_ALLOC_SIZE(MAX_CPUS);
    unsigned n = 0;

    if (set && sched_getaffinity(0, bytes, set) == 0) {
        n = (unsigned)CPU_COUNT_S(bytes, set);
    }
    if (set) {
        CPU_FREE(set);
    }
    return n;
}

/* One task that is bound to one core of a node that the job has as a whole is the usual mistake: srun
 * does that by itself (--hint=nomultithread), and the job is many times slower than it could be. Half
 * are hardware threads that nobody asked for. */
static void warn_if_bound(const numoe_engine_params *params)
{
    const unsigned n = bound_cpus();

    if (!params->n_thread && !params->topology && n > 0 && n * 2 < params->max_cpus) {
        warn("bound to %u of the %u CPUs that the job has for this task here: give them all (srun "
             "--cpu-bind=none), or ask for fewer",
             n, params->max_cpus);
    }
}

void job_limits(numoe_engine_params *params)
{
    const double per_task = env_number("SLURM_CPUS_PER_TASK");
    const double on_node = env_number("SLURM_CPUS_ON_NODE");
    const double mb = env_number("SLURM_MEM_PER_NODE");
    const double mb_per_cpu = env_number("SLURM_MEM_PER_CPU");
    const double cpus = per_task > 0  ? per_task
                        : on_node > 0 ? on_node / tasks_here()
                                      : env_number("NCPUS");
    const double bytes = (mb > 0 ? mb : mb_per_cpu * on_node) * 1048576.0 / tasks_here();

    params->max_cpus = cpus >= 1 && cpus < 1e6 ? (unsigned)cpus : 0;
    params->max_bytes = bytes >= 1 && bytes < 1e18 ? (uint64_t)bytes : 0;
    warn_if_bound(params);
}
