/* A build without MPI: one process alone, and who was started as one of several is told so. */
#include "cluster/cluster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool cluster_is_wanted(void)
{
    const char *size = getenv("OMPI_COMM_WORLD_SIZE");
    return size != NULL && atoi(size) > 1;
}

numoe_status cluster_join(struct cluster **out, numoe_error *err)
{
    *out = NULL;
    err->status = NUMOE_E_SUPPORT;
    snprintf(
        err->text, sizeof err->text,
        "mpirun has started several processes, but this numoe was built without MPI (configure "
        "--with-mpi): start one, or give each a part (--shard K/N)");
    return err->status;
}

void cluster_leave(struct cluster *c, int exit_status)
{
    (void)c;
    (void)exit_status;
}

void cluster_abort(struct cluster *c, int exit_status)
{
    (void)c;
    exit(exit_status);
}

/* ------------------------------------------------------------------ a cluster of one */

unsigned cluster_rank(const struct cluster *c)
{
    (void)c;
    return 0;
}

unsigned cluster_size(const struct cluster *c)
{
    (void)c;
    return 1;
}

unsigned cluster_n_machine(const struct cluster *c)
{
    (void)c;
    return 1;
}

unsigned cluster_n_local(const struct cluster *c)
{
    (void)c;
    return 1;
}

unsigned cluster_same_cpus(const struct cluster *c, unsigned *index)
{
    (void)c;
    *index = 0;
    return 1;
}

bool cluster_is_dead(const struct cluster *c, unsigned rank)
{
    (void)c;
    (void)rank;
    return false;
}

void cluster_gather(struct cluster *c, const void *own, size_t bytes, void *all)
{
    (void)c;
    memcpy(all, own, bytes);
}

void cluster_share(struct cluster *c, void *data, size_t bytes)
{
    (void)c;
    (void)data;
    (void)bytes;
}

uint64_t cluster_local_min(struct cluster *c, uint64_t value)
{
    (void)c;
    return value;
}

const numoe_peers *cluster_peers(struct cluster *c)
{
    (void)c;
    return NULL;
}

void cluster_send(struct cluster *c, unsigned to, const void *head, size_t head_bytes,
                  const void *body, size_t body_bytes)
{
    (void)c;
    (void)to;
    (void)head;
    (void)head_bytes;
    (void)body;
    (void)body_bytes;
}

bool cluster_receive(struct cluster *c, unsigned *from, char **data, size_t *bytes)
{
    (void)c;
    (void)from;
    (void)data;
    (void)bytes;
    return false;
}

bool cluster_is_sent(struct cluster *c)
{
    (void)c;
    return true;
}

void cluster_pause(struct cluster *c, bool awake)
{
    (void)c;
    (void)awake;
}
