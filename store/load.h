/* Private to store/: what has to be loaded, as a list of jobs that is made before the first byte is
 * read. A job fills one weight from one tensor source; its work is cut into units that a worker
 * does alone, numbered per node.
 */
#ifndef NUMOE_STORE_LOAD_H
#define NUMOE_STORE_LOAD_H

#include "store/store.h"

#define LOAD_BLOCK_BYTES (1u << 20) /* rows read at once, where a panel is not larger */

/* A file of the model that weights stay in; addr NULL: none do. */
struct load_map {
    void *addr;
    size_t bytes;
};

struct load_job {
    const struct shape *shape;
    struct weight *w;
    const struct tensor_source *src;
    uint32_t block_panels; /* of a unit; SHAPE_MATRIX */
    uint32_t *unit0;       /* [n_node]: number of its first unit in each node */
};

struct load_plan {
    const struct model *model;
    unsigned n_node, n_job;
    struct load_job *job;
    uint32_t *n_unit;     /* [n_node] */
    size_t scratch_bytes; /* a worker needs for any unit */
    size_t range_bytes;   /* of the longest range */
};

/* Fills in all weights of the store but for their data, as the plan says. */
numoe_status load_plan_new(const struct model *model, const struct shapes *shapes,
                           const struct placement *placement, struct store *store,
                           struct load_plan **out, numoe_error *err);
void load_plan_free(struct load_plan *plan);

/* Units of a job on a node, and the bytes it places there; 0 of what stays in the file. */
uint32_t load_job_units(const struct load_job *job, unsigned in);
uint64_t load_job_bytes(const struct load_job *job, unsigned in);

/* Unit iu of the job (counted within job and node) as one range of a tensor, where it is one. */
bool load_unit_range(const struct load_job *job, unsigned in, uint32_t iu,
                     const struct gguf_tensor **t, uint64_t *from, size_t *bytes);
/* Where matrix mat begins: the tensor, and the byte in it. */
const struct gguf_tensor *load_matrix_range(const struct load_job *job, uint32_t mat,
                                            uint64_t *from);
/* Puts a unit in place on node in. data: its range; NULL: it is read here. scratch: plan's
 * scratch_bytes, 64-byte aligned. *placed_bytes is set to what was placed. */
numoe_status load_unit(const struct model *model, const struct load_job *job, unsigned in,
                       uint32_t iu, const void *data, void *scratch, uint64_t *placed_bytes,
                       numoe_error *err);
size_t load_job_range_bytes(const struct load_job *job); /* largest of its units' ranges */
size_t load_job_scratch_bytes(const struct load_job *job);

#endif
