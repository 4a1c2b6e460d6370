/* Private to batch-team.c, how ranks come together, and batch-talk.c, how they work together. */
#ifndef NUMOE_CLI_BATCH_RANKS_H
#define NUMOE_CLI_BATCH_RANKS_H

#include "cli/batch-team.h"
#include "cluster/cluster.h"

/* What the root knows of a rank; the others of the root alone. */
struct mate {
    numoe_batch_info info;
    double heard_seconds, told_seconds, step_seconds;
    size_t n_wanted;
    uint64_t n_kept;
    bool is_lost, is_dead, said_bye; /* is_dead: it cannot come back */
};

struct team {
    struct cluster *c;
    unsigned rank, n;
    unsigned n_cpu;    /* that this rank may use, perhaps with others */
    struct mate *mate; /* [n] */
    uint32_t *holder;  /* [n_line] root: 1 + the rank that has it; 0: none */
    bool is_working, has_asked, is_over, may_leave, has_failed;
    int status; /* the root's last word */
    int signal; /* of the root: that another rank was sent; of others: that the root was told of */
    double patience_seconds, looked_at;
};

#endif
