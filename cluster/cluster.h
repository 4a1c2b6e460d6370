/* Several processes that work on one job, on one machine or many: who they are, messages between
 * them, and what all of them do together. Started by mpirun, or by srun with PMIx; the only folder
 * that knows MPI, and the library knows nothing of it. A build without MPI has cluster/none.c.
 *
 * One rank, the first, is the root. Messages of one rank to another arrive in order; sending and
 * receiving never wait, so that nobody has to be listening while it computes. Somebody who waits
 * for a message looks from time to time and sleeps in between (cluster_pause()), so that waiting
 * takes no core from workers.
 *
 * Threads: all functions are called by the thread that joined (MPI_THREAD_FUNNELED), but for the
 * functions of cluster_peers(), which a step calls on one of its workers while that thread waits
 * for the step: MPI_THREAD_SERIALIZED, which cluster_join() demands.
 */
#ifndef NUMOE_CLUSTER_CLUSTER_H
#define NUMOE_CLUSTER_CLUSTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "numoe/numoe.h"

struct cluster;

/* Whether this process was started as one of several. */
bool cluster_is_wanted(void);

/* Collective. NUMOE_E_SUPPORT where this build has no MPI, or the MPI lacks something. */
numoe_status cluster_join(struct cluster **out, numoe_error *err);
/* Collective: ends MPI, within a time limit, and frees; the process may go on alone to its end. If
 * that takes too long, because somebody was lost, it ends with exit_status at once. NULL is
 * allowed. */
void cluster_leave(struct cluster *c, int exit_status);
/* Ends all processes. */
_Noreturn void cluster_abort(struct cluster *c, int exit_status);

/* ------------------------------------------------------------------ who is there */

unsigned cluster_rank(const struct cluster *c);
unsigned cluster_size(const struct cluster *c);
/* Those on the same machine that have the same CPUs: this is number *index of as many. Where mpirun
 * has bound each to CPUs of its own, that is 1. */
unsigned cluster_same_cpus(const struct cluster *c, unsigned *index);
/* Machines; ranks on this one. */
unsigned cluster_n_machine(const struct cluster *c);
unsigned cluster_n_local(const struct cluster *c);
/* Whether a process is known to have ended: on this machine only. */
bool cluster_is_dead(const struct cluster *c, unsigned rank);

/* ------------------------------------------------------------------ all together */

/* Collective: own [bytes] of each rank, in all [size, bytes] of every rank. */
void cluster_gather(struct cluster *c, const void *own, size_t bytes, void *all);
/* Collective: the root's data for all. */
void cluster_share(struct cluster *c, void *data, size_t bytes);
/* Collective: the least of all ranks on this machine. */
uint64_t cluster_local_min(struct cluster *c, uint64_t value);

/* The same for the experts of a model that are spread over all ranks: for numoe_engine_params.
 * Never fails: it ends all processes, with the status that says that the same command goes on. NULL
 * in a build without MPI. */
const numoe_peers *cluster_peers(struct cluster *c);

/* ------------------------------------------------------------------ messages */

/* Head and body, copied, as one message; a failure ends the program (abort). */
void cluster_send(struct cluster *c, unsigned to, const void *head, size_t head_bytes,
                  const void *body, size_t body_bytes);
/* The next message that has arrived, if there is one; *data is valid until the next call, and NUL
 * follows it. Also what gets sending on. */
bool cluster_receive(struct cluster *c, unsigned *from, char **data, size_t *bytes);
/* Whether all that was sent has left. */
bool cluster_is_sent(struct cluster *c);
/* Sleeps for a moment: longer the more often in a row. awake: there was something to do. */
void cluster_pause(struct cluster *c, bool awake);

#endif
