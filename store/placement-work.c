/* What a token costs beside the bytes of its matrices: how fast products of a type are, meetings,
 * and what is done with activations. Rates come from a probe of this machine (machine-probe.c)
 * where there was one; for machines that are not here from the tables below, whose sources are in
 * bench/NOTES.md.
 */
#include "store/placement-work.h"

/* A meeting of the workers of a node, and of all nodes. */
#define ASSUMED_MEETING_NODE_S 0.7e-6
#define ASSUMED_MEETING_ALL_S  2e-6
#define ASSUMED_STEP_S         20e-6
#define ASSUMED_ELEMENT_S      0.4e-9

/* Multiplications a second of one worker with a cache of at most a chunk. */
#define ATTENTION_WORKER_PRODUCTS 20e9

/* Meetings of one token: in attention, with compressed queries, around a dense block, around
 * experts that are cut by rows and that are whole, around the head. */
struct meetings {
    unsigned node, all;
};
static const struct meetings MEET_ATTENTION = {2, 5}, MEET_Q_B = {1, 1}, MEET_DENSE = {2, 2},
                             MEET_CUT_EXPERTS = {3, 3}, MEET_WHOLE_EXPERTS = {4, 2},
                             MEET_HEAD = {1, 1};

/* What one of these costs for an element, beside norm and quantization of one. */
#define ADD_PART      0.25 /* a sum */
#define QUANTIZE_PART 0.5  /* an input of a product that is not normed */
#define GLU_PART      0.75 /* gate times up */
#define ROTATE_PART   0.5  /* rotation and scale of a query */
#define CHOOSE_PART   4    /* a router's logit, until the choice is made */

/* Bytes a second of one worker whose panels are in its cache, AVX-512 (AVX2 is slower by up to a
 * half). Types that are not here are read faster than any memory. */
static double arithmetic_bps(uint32_t format_id)
{
    static const double bps[FORMAT_MAX] = {
        [FORMAT_F16] = 58e9,    [FORMAT_Q8_0] = 104e9,    [FORMAT_Q5_0] = 49e9,
        [FORMAT_IQ4_NL] = 54e9, [FORMAT_MXFP4] = 45e9,    [FORMAT_Q4_K] = 48e9,
        [FORMAT_Q5_K] = 43e9,   [FORMAT_Q6_K] = 50e9,     [FORMAT_Q3_K] = 25e9,
        [FORMAT_Q2_K] = 22e9,   [FORMAT_IQ2_XXS] = 6.9e9, [FORMAT_IQ3_XXS] = 7.6e9,
        [FORMAT_IQ3_S] = 6.2e9, [FORMAT_IQ2_XS] = 5.2e9,  [FORMAT_IQ2_S] = 5.9e9,
        [FORMAT_IQ1_S] = 4.0e9, [FORMAT_IQ1_M] = 4.1e9,
    };
    return format_id < FORMAT_MAX ? bps[format_id] : 0;
}

double placement_product_bps(const struct placement_machine *machine, unsigned in,
                             uint32_t format_id)
{
    const struct placement_node *node = &machine->node[in];
    const double measured = machine->format_share[format_id];
    if (measured > 0 || !(machine->kernel_share > 0)) {
        return node->read_bps * (measured > 0 ? measured : 1);
    }
    const double memory = node->read_bps * machine->kernel_share;
    const double arithmetic = arithmetic_bps(format_id) * node->n_worker;
    return arithmetic > 0 ? MIN(memory, arithmetic) : memory;
}

/* The last round of panels is for fewer workers than there are: each of them then reads up to twice
 * as fast as among all. */
double placement_rounds(double n_panel, unsigned n_worker)
{
    const double even = n_panel / MAX(n_worker, 1u);
    const double whole = (double)(uint64_t)even, rest = even - whole;
    return even > 0 ? (whole + (rest > 0 ? MAX(rest, 0.5) : 0)) / even : 1;
}

double placement_product_rounds(const struct placement_machine *machine, uint32_t format_id,
                                double n_panel, unsigned n_worker)
{
    return machine->format_share[format_id] > 0 ? 1 : placement_rounds(n_panel, n_worker);
}

/* ------------------------------------------------------------------ meetings */

double placement_meet_seconds(const struct placement *p, const struct shapes *shapes,
                              const struct placement_machine *machine, bool alone)
{
    const double node_s = machine->meet_node_s > 0 ? machine->meet_node_s : ASSUMED_MEETING_NODE_S;
    const double every_s = machine->meet_all_s > 0 ? machine->meet_all_s : ASSUMED_MEETING_ALL_S;
    const double all_s = alone ? node_s : every_s;
    const bool whole = p->mode == NUMOE_PLACEMENT_SHARD;
    double seconds = MEET_HEAD.node * node_s + (alone ? 0 : MEET_HEAD.all * all_s);
    for (unsigned is = 0; is < shapes->n; is++) {
        struct meetings m = {0, 0};
        switch (shapes->shape[is].slot) {
        case SLOT_ATTN_NORM:
            m = MEET_ATTENTION;
            break;
        case SLOT_Q_B:
            m = MEET_Q_B;
            break;
        case SLOT_DOWN:
            m = MEET_DENSE;
            break;
        case SLOT_DOWN_EXPS:
            m = whole ? MEET_WHOLE_EXPERTS : MEET_CUT_EXPERTS;
            break;
        default:
            break;
        }
        seconds += m.node * node_s + m.all * all_s;
    }
    return seconds;
}

double placement_step_seconds(const struct placement_machine *machine)
{
    return machine->step_s > 0 ? machine->step_s : ASSUMED_STEP_S;
}

/* ------------------------------------------------------------------ activations */

/* Elements that one worker goes through while the others wait, as if each were normed and
 * quantized. */
static double serial_elements(const struct shapes *shapes)
{
    const double d = shapes->n_embd;
    double n = d + ADD_PART * shapes->n_vocab;
    for (unsigned is = 0; is < shapes->n; is++) {
        const struct shape *s = &shapes->shape[is];
        if (s->slot == SLOT_ATTN_NORM || s->slot == SLOT_FFN_NORM) {
            n += d * (1 + ADD_PART); /* and what is added to the stream behind it */
        } else if (s->slot == SLOT_ROUTER) {
            n += CHOOSE_PART * s->n_row + ADD_PART * d * shapes->n_expert_used;
        } else if (s->slot == SLOT_Q && !shapes->is_latent) {
            n += ROTATE_PART * s->n_row;
        } else if (s->slot == SLOT_Q_B) {
            n += s->k;
        } else if (s->slot == SLOT_KV_A) {
            n += s->n_row;
        }
    }
    return shapes->n_embd > 0 ? n : 0;
}

/* Likewise, those that the workers divide: inputs of products. */
static double divided_elements(const struct shapes *shapes)
{
    double n = 0;
    for (unsigned is = 0; is < shapes->n; is++) {
        const struct shape *s = &shapes->shape[is];
        switch (s->slot) {
        case SLOT_K_B: /* of each head */
        case SLOT_V_B:
        case SLOT_O:
            n += QUANTIZE_PART * s->n_mat * s->k;
            break;
        case SLOT_DOWN:
        case SLOT_DOWN_SHEXP:
            n += (GLU_PART + QUANTIZE_PART) * s->k;
            break;
        case SLOT_DOWN_EXPS:
            n += (GLU_PART + QUANTIZE_PART) * shapes->n_expert_used * s->k;
            break;
        default:
            break;
        }
    }
    return n;
}

/* Every node goes through all tokens, a worker through one at a time. Attention's chunk of
 * positions is the first node's, or, where keys are latent, everybody's. */
double placement_vector_seconds(const struct shapes *shapes,
                                const struct placement_machine *machine, unsigned n_token,
                                unsigned n_worker, unsigned n_owner)
{
    const double element_s = machine->element_s > 0 ? machine->element_s : ASSUMED_ELEMENT_S;
    const double products = shapes->attn_products * shapes->n_layer * PLACEMENT_POSITIONS;
    const unsigned n = shapes->is_latent ? n_worker : n_owner, n_each = MAX(n_owner, 1u);
    const unsigned n_turn = (n_token + n_each - 1) / n_each;
    return (n_turn * serial_elements(shapes) + n_token * divided_elements(shapes) / n_worker) *
               element_s +
           n_token * products / (ATTENTION_WORKER_PRODUCTS * MAX(n, 1u));
}
