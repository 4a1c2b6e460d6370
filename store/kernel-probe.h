/* What matrix products reach of the read bandwidth: a type's products as a token has them, one after
 * the other, each divided over the workers of a node, who then meet. */
#ifndef NUMOE_STORE_KERNEL_PROBE_H
#define NUMOE_STORE_KERNEL_PROBE_H

#include "kernels/kern.h"
#include "numa/pool.h"

struct kernel_product {
    unsigned k;       /* elements of a row */
    unsigned n_panel; /* divided at a time, over all nodes */
    unsigned n;       /* such products in a token; at least 1 */
    bool routed;      /* of experts: the next token has others */
};

#define KERNEL_PROBE_PRODUCTS 32
struct kernel_work {
    uint32_t format_id;
    unsigned n_product;
    struct kernel_product product[KERNEL_PROBE_PRODUCTS];
};

/* Bytes/second of weights, all workers together, one token, on memory that no cache holds, for ns
 * nanoseconds at least; or on less memory, most_bytes[routed]: of a model that caches hold, as much
 * as is read until the same weights come again. What the workers' meetings take, meet_s each, is
 * left out; that some of them have less to do than others is not. */
numoe_status kernel_probe(struct pools *pools, const struct topo *topo, const struct kern *kern,
                          const struct kernel_work *work, double meet_s,
                          const uint64_t most_bytes[2], uint64_t ns, double *total_bps,
                          numoe_error *err);

/* Bytes of weights over all nodes that are more than caches hold and a small part of what is free. */
uint64_t kernel_probe_bytes(const struct topo *topo, const struct pools *pools);

#endif
