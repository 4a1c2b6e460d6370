/* Where weights go. A placement is plain data: a list of slices, each saying which rows of which
 * matrices lie on which node, and why. It is made by a pure function from sizes, a machine, expert
 * statistics and a budget; printed as JSON and read back (placement-json.c); and the store places
 * exactly what it says.
 *
 *   slice       rows of every matrix are cut over the nodes
 *   shard       the same, but experts are whole: each on one node, or on several (replicas)
 *   replicate   everything is on every node
 *   interleave  panels are dealt to the nodes in turn and computed by anybody: the baseline that
 *               reads from other nodes
 *
 * Vectors (norms, biases) are not in the list: every node that computes has a copy of each.
 */
#ifndef NUMOE_STORE_PLACEMENT_H
#define NUMOE_STORE_PLACEMENT_H

#include "numa/pool.h"
#include "store/shape.h"

struct kern;

/* ------------------------------------------------------------------ what is known */

struct placement_node {
    unsigned os_index; /* the kernel's number */
    unsigned n_worker;
    double read_bps;     /* of its workers from its own memory */
    uint64_t room_bytes; /* that may be taken; UINT64_MAX: not known */
    /* Of it not for weights: activations, KV cache; or, if more, what loading needs. */
    uint64_t buffer_bytes;
};

struct placement_machine {
    unsigned n_node;
    struct placement_node node[TOPO_MAX_NODE];
    double remote_factor;     /* how many times longer a read from another node takes */
    uint64_t limit_bytes;     /* over all nodes, buffers too; UINT64_MAX: none */
    double kernel_share;      /* of read_bps that products reach; 0: all of it */
    double format_share[FORMAT_MAX]; /* the same for a type, measured; 0: kernel_share, or what the
                                        workers' arithmetic allows if that is less */
    double meet_node_s, meet_all_s;  /* a meeting of a node's workers, of all; 0: assumed */
    double step_s;                   /* beginning and end of a step; 0: assumed */
    double element_s; /* one worker, an element that is normed and quantized; 0: assumed */
    const char *bps_source;   /* "measured", "from the platform", "assumed" */
    bool bps_is_measured;     /* by placement_measure(), just now */
    const char *room_source;  /* who limits node[].room_bytes: "available", "in all" */
    const char *limit_source; /* whose limit_bytes are */
    const char *way_out;      /* put behind refusals, or "" */
    const char *instead;      /* what would fit; NULL: the plan itself says what could be done */
};

/* How often each expert was chosen; more of it, and files, in store/stats.h. */
struct expert_stats {
    unsigned n_layer, n_expert;
    uint64_t *count; /* [n_layer, n_expert]; rows of dense layers are 0 */
    unsigned n_used; /* experts of a token; 0: not known */
    double *weight;  /* [n_layer, n_expert] sums of router weights; NULL: not known */
    uint64_t *pair;  /* [n_layer, expert_stats_pairs()] chosen together; NULL: not known */
    bool is_foreign; /* n_layer is the last layer that was seen, not how many the model has */
};

struct placement_request {
    numoe_placement mode;
    /* For replicas beyond the first copy of an expert: bytes, or percent of all weights if above 0.
     */
    uint64_t replica_bytes;
    double replica_percent;
    bool replicas_change;             /* there is to be memory for copies that come and go */
    const struct expert_stats *stats; /* may be NULL */
};

/* The machine as its workers see it. Bandwidth is the platform's word if it has one for every node;
 * measured where that is allowed and matters (0.3 s); otherwise assumed from the number of workers.
 */
numoe_status placement_machine_init(const struct topo *topo, struct pools *pools, bool may_measure,
                                    struct placement_machine *out, numoe_error *err);

/* For weights that will be loaded and not only planned: what another machine has room for must have
 * room on this one too, where it is limit_bytes. */
void placement_machine_run_here(const struct topo *topo, const struct pools *pools,
                                struct placement_machine *machine);

/* Measures what the former was not allowed to. */
numoe_status placement_measure(const struct topo *topo, struct pools *pools,
                               struct placement_machine *machine, numoe_error *err);

/* ------------------------------------------------------------------ the plan */

struct placement_slice {
    int layer;
    enum slot slot;
    unsigned node;
    uint32_t mat0, mat1; /* matrices (experts, heads) */
    uint32_t row0, row1; /* of each; row0 is a multiple of PANEL_ROWS */
    /* 1, or n: of the panels of all matrices in one row, every n-th from panel `first` on. */
    uint32_t every, first;
    uint32_t further; /* 1: a copy of experts that have another one, which stays */
};

struct placement {
    numoe_placement mode; /* never AUTO */
    unsigned n_node;
    double share[TOPO_MAX_NODE]; /* of the work; their sum is 1. 0: the node takes no part */
    uint64_t node_bytes[TOPO_MAX_NODE], total_bytes; /* as placed, with vectors */
    uint64_t expert_bytes;                           /* of total_bytes: routed experts */
    uint64_t replica_bytes;                          /* of these: beyond their first copies */
    /* Where further copies of experts may come and go: memory for one, the largest's, and how many
     * such places a node has, those of the plan's own copies included. 0: all stays as planned. */
    uint64_t place_bytes;
    unsigned n_place[TOPO_MAX_NODE];
    uint64_t copy_bytes[TOPO_MAX_NODE]; /* of node_bytes: the plan's own further copies */
    uint64_t n_place_asked;             /* what the budget has places for, with room or without */
    double tokens_per_s; /* predicted for one sequence; an upper bound that leaves out caches */
    /* likewise for one sequence on each node, all together; 0: not every node has everything */
    double lanes_tokens_per_s;
    double together_tokens_per_s; /* the same sequences by all nodes together */
    uint32_t lanes_pay; /* bit i: 2^i tokens a step are faster where each node has its own */
    double imbalance;     /* of whole experts: the busiest node's time over an even one's; else 1 */
    double replica_share; /* of all choices that are for experts on several nodes, by statistics */
    unsigned n_replicated, n_expert; /* (layer, expert) pairs on several nodes, and in all */
    /* By the file it is from; UINT64_MAX: nothing is said. For placement_check(). */
    bool is_told;
    uint64_t told_bytes, told_node_bytes[TOPO_MAX_NODE];
    int told_os_index[TOPO_MAX_NODE]; /* the kernel's numbers of its nodes; -1: nothing is said */
    char reason[256];
    struct placement_slice *slice; /* [n_slice] by layer, slot, node, matrix */
    unsigned n_slice, cap_slice;
};

/* NUMOE_E_MEMORY says what is needed and what there is where it does not fit. */
numoe_status placement_make(const struct shapes *shapes, const struct placement_machine *machine,
                            const struct placement_request *request, struct placement **out,
                            numoe_error *err);
void placement_free(struct placement *p);

/* That the plan is one for these weights and this machine: every row of every matrix has its place,
 * each in a form that its mode has, and it fits. Sets node_bytes, total_bytes, replica_bytes. */
numoe_status placement_check(struct placement *p, const struct shapes *shapes,
                             const struct placement_machine *machine, numoe_error *err);

/* The only node that takes part; -1 where several do. */
int placement_only_node(const struct placement *p);
/* The same plan for a machine that has no other nodes. */
void placement_keep_node(struct placement *p, unsigned in);

const char *placement_mode_name(numoe_placement mode);

/* JSON text, mem_free(); and back. What is read is checked for form only: placement_check(). */
numoe_status placement_to_json(const struct placement *p, const struct shapes *shapes,
                               const struct placement_machine *machine, char **text,
                               numoe_error *err);
numoe_status placement_from_json(const char *text, size_t bytes, const struct shapes *shapes,
                                 struct placement **out, numoe_error *err);

/* ------------------------------------------------------------------ parts, for tests and each
 * other */

/* Cuts n_row rows into whole panels over n_node nodes in proportion to share[] (none negative, some
 * positive): row0_out[0..n_node], row0_out[0] = 0, row0_out[n_node] = n_row. */
void placement_rows(uint32_t n_row, unsigned n_node, const double *share, uint32_t *row0_out);

/* The node among holders (bits) that has the least to do for its share once it has this too: the
 * lowest of equals. Adds cost to its load. */
unsigned placement_take(uint64_t holders, unsigned n_node, const double *share, double *load,
                        double cost);

/* Of its rows, packed; and what of that is taken on the node: nothing where they stay in the file.
 */
uint64_t placement_slice_bytes(const struct shape *s, const struct placement_slice *slice);
uint64_t placement_placed_bytes(const struct shape *s, const struct placement_slice *slice);

/* Appends a slice of s and counts its bytes. */
numoe_status placement_add(struct placement *p, const struct shape *s, struct placement_slice slice,
                           numoe_error *err);
void placement_sort(struct placement *p);
/* Slices [*from, *to) of a weight in a sorted plan. */
void placement_find(const struct placement *p, const struct shape *s, unsigned *from, unsigned *to);
/* Bytes of weights that node in has room for, and all together. */
uint64_t placement_room(const struct placement_machine *machine, unsigned in);
uint64_t placement_limit(const struct placement_machine *machine);
/* The error where a plan needs more. */
numoe_status placement_fits(const struct placement *p, const struct placement_machine *machine,
                            numoe_error *err);

/* Places for further copies of experts on all nodes. */
unsigned placement_n_place(const struct placement *p);
/* Memory of a node's places for copies to come, beside node_bytes; of all nodes. */
uint64_t placement_reserved(const struct placement *p, unsigned in);
uint64_t placement_reserved_all(const struct placement *p);

/* Further copies of a plan that was read may come and go too, in their own places, beside those
 * that it has for more. */
void placement_let_change(struct placement *p, const struct shapes *shapes);

/* ------------------------------------------------------------------ further copies of experts */

/* Whom to copy where. All arrays are the caller's. */
struct replica_problem {
    unsigned n_layer, n_expert, n_node;
    const double *share;          /* [n_node] of the work; 0: takes no part */
    const uint64_t *room_bytes;   /* [n_node] for further copies */
    uint64_t budget_bytes;        /* for all of them */
    const uint64_t *expert_bytes; /* [n_layer] that an expert's products read; 0: no copies there */
    uint64_t place_bytes;         /* that a copy takes; 0: expert_bytes */
    const double *count;          /* [n_layer, n_expert] how often each was chosen ... */
    const double *n_token;        /* [n_layer] ... by so many tokens; 0: nothing is known */
    /* [n_layer, n_expert] nodes (bits) of copies that stay; all bits: it needs no others. */
    const uint64_t *first;
    const uint64_t *now;          /* likewise: further ones that are there; NULL: none are */
};

struct replica_rank {
    double weight;
    unsigned il, ie, nth;
};

/* wanted [n_layer, n_expert]: nodes (bits) that are to have further copies, within room and budget.
 * An expert's n-th copy takes an n-th of what its first did, and copies are taken in that order.
 * Those that are there stay unless another is worth more by a tenth and beyond chance: counts vary
 * by their square roots. heap: scratch, [n_layer * n_expert]. Pure; allocates nothing. */
void placement_choose_replicas(const struct replica_problem *p, struct replica_rank *heap,
                               uint64_t *wanted);

/* ------------------------------------------------------------------ */

/* Whole experts on nodes, where room is left (placement-shard.c). */
numoe_status placement_add_experts(struct placement *p, const struct shapes *shapes,
                                   const struct placement_machine *machine,
                                   const struct placement_request *request, numoe_error *err);

/* Tokens per second of one sequence, from bytes, bandwidths and meetings (placement-cost.c). */
double placement_predict(const struct placement *p, const struct shapes *shapes,
                         const struct placement_machine *machine, const struct expert_stats *stats);
/* Of copies of everything: tokens per second where each node has a sequence of its own. */
double placement_predict_lanes(const struct placement *p, const struct shapes *shapes,
                               const struct placement_machine *machine);
/* Likewise: seconds of a step with n_token tokens, each of another sequence, by all nodes together or
 * by each node for its part. */
double placement_batch_seconds(const struct placement *p, const struct shapes *shapes,
                               const struct placement_machine *machine, unsigned n_token,
                               bool in_lanes);
/* What p->lanes_pay becomes. */
#define PLACEMENT_MAX_BATCH_LOG2 14
uint32_t placement_lanes_pay(const struct placement *p, const struct shapes *shapes,
                             const struct placement_machine *machine);
#define PLACEMENT_KERNEL_SHARE 0.9 /* where it was not measured */

/* Of a plan that was read: both for this machine, without statistics. */
void placement_predict_again(struct placement *p, const struct shapes *shapes,
                             const struct placement_machine *machine);

/* What a token costs behind PLACEMENT_POSITIONS others of its sequence. */
#define PLACEMENT_POSITIONS 64
struct placement_cost {
    double decode_s;  /* a token of one sequence: the sum of read_s, meet_s, vector_s, step_s */
    double read_s;    /* matrices, each as long as its slowest node */
    double arith_s;   /* of that, what types cost beyond their bytes: bound by arithmetic */
    double routed_s;  /* of that, routed experts */
    double meet_s;    /* meetings */
    double vector_s;  /* norms, sums, choices, attention: what is done with activations */
    double step_s;    /* waking the workers and being told that they are done */
    double prefill_s; /* a token of a prompt, in chunks */
    bool prefill_by_compute;
    double link_bytes; /* a token: what nodes read that others wrote, or hold */
    const char *bound; /* of decoding */
};
void placement_cost(const struct placement *p, const struct shapes *shapes,
                    const struct placement_machine *machine, const struct expert_stats *stats,
                    unsigned chunk_tokens, struct placement_cost *out);

/* Measures what a prediction needs on this machine, about a second: bandwidth, what the products of
 * each type that matters reach of it, meetings, steps, activations. Models that fit caches are
 * measured there. kern: what will be computed with. */
numoe_status placement_probe(const struct topo *topo, struct pools *pools, const struct kern *kern,
                             const struct shapes *shapes, struct placement_machine *machine,
                             numoe_error *err);

/* Tokens/s that no placement can exceed: all nodes reading, none twice. */
double placement_bound(const struct shapes *shapes, const struct placement_machine *machine);
double placement_token_bytes(const struct shapes *shapes); /* of matrices */
double placement_all_bps(const struct placement_machine *machine);

/* What would be in a GPU's memory and what on nodes. */
struct placement_split {
    double dense_bytes;         /* everything but routed experts and the embedding */
    double routed_bytes;        /* routed experts, all */
    double routed_active_bytes; /* a token's */
    double n_moe, n_expert;     /* layers; experts over all of them */
    double crossing_bytes;      /* a token and layer: input and output */
};
struct placement_split placement_split(const struct shapes *shapes);
/* Choices (0 to 1) that the hottest part (0 to 1) of all layers' experts serve. */
double placement_coverage(const struct shapes *shapes, const struct expert_stats *stats,
                          double part);

/* How unevenly a token's experts fall on the nodes: what p->imbalance becomes. */
double placement_imbalance(const struct placement *p, const struct shapes *shapes,
                           const struct placement_machine *machine,
                           const struct expert_stats *stats);
/* Which experts have several holders: n_replicated, n_expert; with statistics also replica_share.
 */
void placement_count_replicas(struct placement *p, const struct shapes *shapes,
                              const struct expert_stats *stats);

#endif
