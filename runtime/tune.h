/* What an engine chooses for itself on a machine where nobody has said: how many workers a core has,
 * how long they wait awake, which pages weights lie on. A short probe measures each of these once;
 * base/memo.h remembers it for this machine, as far as this process may use it. */
#ifndef NUMOE_RUNTIME_TUNE_H
#define NUMOE_RUNTIME_TUNE_H

#include "base/memo.h"
#include "store/placement.h"
#include "store/worker-probe.h"

enum tuning_source { TUNING_DEFAULTS, TUNING_REMEMBERED, TUNING_MEASURED };

struct tuning {
    enum tuning_source source;
    unsigned workers_percent; /* of the cores; 200: two for each, on both of its hardware threads */
    uint32_t sleep_ns;        /* pools_set_sleep() */
    int64_t since;            /* seconds since 1970 of the oldest number that is remembered */
    struct memo *memo;        /* NULL: nothing is measured, nothing remembered */
    char text[256];           /* one line for a person */
};

/* Of what the parameters, the environment and the topology leave open; pages are told to the topology.
 * Without may_measure, only what is remembered. What cannot be measured stays as it is without this:
 * the only errors are those of environment variables. tuning_close(). */
numoe_status tuning_open(const numoe_engine_params *params, bool may_measure, struct topo *topo,
                         struct tuning *out, numoe_error *err);
void tuning_close(struct tuning *tuning);

/* For pools_new(). */
unsigned tuning_workers(const struct tuning *tuning, const struct topo *topo, unsigned n_asked);

/* Read bandwidth of the workers of each node; false where it is not remembered. What is noted joins
 * what other processes have noted meanwhile, and of two numbers the larger one stays. */
bool tuning_recall_nodes(const struct tuning *tuning, struct placement_machine *machine);
void tuning_note_nodes(struct tuning *tuning, const struct placement_machine *machine);
/* The same of all together; 0: not remembered. */
double tuning_recall_all(const struct tuning *tuning, const struct topo *topo,
                         const struct pools *pools);
void tuning_note_all(struct tuning *tuning, const struct topo *topo, const struct pools *pools,
                     double bps);

/* ------------------------------------------------------------------ parts, for tests */

/* What the numbers hold for: numoe's version, kernels, processor, kernel, and what of the machine this
 * process may use; nothing that changes from run to run. */
numoe_status tuning_key(const struct topo *topo, const char *isa, struct strbuf *out,
                        numoe_error *err);

/* One that was tried in place of one worker for each core. */
struct tuning_candidate {
    unsigned workers_percent;
    struct worker_ratio ratio;
};
/* Which percentage of the cores workers are to have: 100 unless another one is clearly faster. */
unsigned tuning_choose_workers(const struct tuning_candidate *candidate, unsigned n);
/* How long workers are to wait awake where waking them takes wake_ns. */
uint32_t tuning_choose_sleep(uint64_t wake_ns);

#endif
