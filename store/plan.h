/* Private to store/: what has to be loaded, as a list of jobs that is made before the first byte is
 * read. A job fills one weight from one tensor source; its work is cut into units that a worker
 * does alone, numbered per node.
 */
#ifndef NUMOE_STORE_PLAN_H
#define NUMOE_STORE_PLAN_H

#include "store/store.h"

#define LOAD_BLOCK_BYTES (1u << 20) /* rows read at once, where a panel is not larger */

enum load_kind {
    LOAD_MATRIX, /* rows as they are in the file, packed */
    LOAD_VECTOR, /* floats, whole, on every node */
    LOAD_K_B,    /* the key half of an attn_kv_b, transposed per head */
};

struct load_job {
    enum load_kind kind;
    int layer;      /* -1: of the whole model */
    enum slot slot; /* as named in the file */
    struct weight *w;
    const struct tensor_source *src;
    /* Row r of matrix m is row m * mat_rows + row0 + r of the source (of its tensor m where it is
     * given per expert). LOAD_K_B: the n_row rows to transpose begin there. */
    uint32_t mat_rows, row0;
    uint32_t block_panels; /* of a unit; LOAD_MATRIX */
    uint32_t *unit0;       /* [n_node]: number of its first unit in each node */
};

struct load_plan {
    const struct model *model;
    unsigned n_node, n_job;
    struct load_job *job;
    uint32_t *n_unit;     /* [n_node] */
    uint64_t *node_bytes; /* [n_node] to be placed */
    uint64_t total_bytes; /* over nodes */
    size_t scratch_bytes; /* a worker needs for any unit */
};

/* Slices every weight of the store over the nodes in proportion to share[n_node]; fills in the
 * weights but for their data. */
numoe_status load_plan_new(const struct model *model, struct store *store, const double *share,
                           struct load_plan **out, numoe_error *err);
void load_plan_free(struct load_plan *plan);

/* Units of a job on a node, and the bytes it places there. */
uint32_t load_job_units(const struct load_job *job, unsigned in);

/* "blk.3.ffn_gate_exps.weight" */
void load_job_name(const struct load_job *job, char *buf, size_t cap);

/* Reads unit iu of the job (counted within job and node) and puts it in place on node in. scratch:
 * plan's scratch_bytes, 64-byte aligned. *placed_bytes is set to what was placed. */
numoe_status load_unit(const struct model *model, const struct load_job *job, unsigned in,
                       uint32_t iu, void *scratch, uint64_t *placed_bytes, numoe_error *err);
size_t load_job_scratch_bytes(const struct load_job *job);

#endif
