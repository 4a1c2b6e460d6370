/* Plans for machines that do not exist and models made of numbers: who gets which rows and experts,
 * what happens where there is no room, replicas, JSON there and back, plans that must be refused.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "store/placement.h"
#include "tests/unit/testdata.h"

enum { N_LAYER = 3, N_EXPERT = 16, D = 2048, F = 1408, V = 4000 };

static struct shape shape_list[64];

static void add_shape(struct shapes *s, int layer, enum slot slot, unsigned n_mat, unsigned n_row,
                      unsigned k)
{
    const bool vector = slot == SLOT_FFN_NORM;
    s->shape[s->n++] = (struct shape){.kind = vector ? SHAPE_VECTOR : SHAPE_MATRIX,
                                      .layer = layer,
                                      .slot = slot,
                                      .from = slot,
                                      .format_id = vector ? FORMAT_F32 : FORMAT_Q8_0,
                                      .n_mat = n_mat,
                                      .n_row = n_row,
                                      .k = k};
}

/* Three layers of 16 experts. Row of D elements in Q8_0: 2176 bytes, of F: 1496. */
static struct shapes made_up(unsigned n_ff)
{
    struct shapes s = {.n_layer = N_LAYER,
                       .n_expert = N_EXPERT,
                       .n_expert_used = 4,
                       .model_name = "made up",
                       .arch = "none",
                       .shape = shape_list};
    add_shape(&s, -1, SLOT_TOKEN_EMBD, 1, V, D);
    add_shape(&s, -1, SLOT_OUTPUT, 1, V, D);
    for (int il = 0; il < N_LAYER; il++) {
        add_shape(&s, il, SLOT_Q, 1, D, D);
        add_shape(&s, il, SLOT_O, 1, D, D);
        add_shape(&s, il, SLOT_FFN_NORM, 1, 1, D);
        add_shape(&s, il, SLOT_ROUTER, 1, N_EXPERT, D);
        add_shape(&s, il, SLOT_GATE_EXPS, N_EXPERT, n_ff, D);
        add_shape(&s, il, SLOT_UP_EXPS, N_EXPERT, n_ff, D);
        add_shape(&s, il, SLOT_DOWN_EXPS, N_EXPERT, D, n_ff);
    }
    return s;
}

static uint64_t one_copy(const struct shapes *s)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < s->n; i++) {
        bytes += shape_bytes(&s->shape[i]);
    }
    return bytes;
}

static struct placement_machine machine_of(unsigned n_node, const unsigned *n_worker)
{
    struct placement_machine m = {.n_node = n_node,
                                  .remote_factor = 2,
                                  .limit_bytes = UINT64_MAX,
                                  .bps_source = "made up",
                                  .room_source = "there",
                                  .limit_source = "the control group's limit",
                                  .way_out = ""};
    for (unsigned in = 0; in < n_node; in++) {
        const unsigned n = n_worker != NULL ? n_worker[in] : 8;
        m.node[in] = (struct placement_node){
            .os_index = in, .n_worker = n, .read_bps = 10e9 * n, .room_bytes = UINT64_MAX};
    }
    return m;
}

static struct placement *plan_for(const struct shapes *s, const struct placement_machine *m,
                                  struct placement_request request)
{
    numoe_error err = {0};
    struct placement *p = NULL;
    cr_assert_eq(placement_make(s, m, &request, &p, &err), NUMOE_OK, "%s", err.text);
    uint64_t sum = 0;
    for (unsigned in = 0; in < p->n_node; in++) {
        sum += p->node_bytes[in];
        cr_assert_leq(p->node_bytes[in], m->node[in].room_bytes);
    }
    cr_assert_eq(sum, p->total_bytes);
    /* The checker agrees with the maker, and counts the same bytes. */
    const uint64_t total = p->total_bytes, replicas = p->replica_bytes;
    cr_assert_eq(placement_check(p, s, m, &err), NUMOE_OK, "%s", err.text);
    cr_assert_eq(p->total_bytes, total);
    cr_assert_eq(p->replica_bytes, replicas);
    return p;
}

static void rows_of(const struct placement *p, int layer, enum slot slot, unsigned in,
                    uint32_t *row0, uint32_t *row1)
{
    *row0 = *row1 = 0;
    for (unsigned i = 0; i < p->n_slice; i++) {
        const struct placement_slice *s = &p->slice[i];
        if (s->layer == layer && s->slot == slot && s->node == in) {
            *row0 = s->row0;
            *row1 = s->row1;
        }
    }
}

/* ------------------------------------------------------------------ rows */

static void expect_rows(const struct placement *p, enum slot slot, const uint32_t *want)
{
    for (unsigned in = 0; in < p->n_node; in++) {
        uint32_t row0, row1;
        rows_of(p, 1, slot, in, &row0, &row1);
        if (want[in] < want[in + 1]) {
            cr_assert(row0 == want[in] && row1 == want[in + 1], "node %u: %u to %u", in, row0,
                      row1);
        } else {
            cr_assert(row0 == row1, "node %u has rows", in);
        }
    }
}

static const struct placement_request slice = {.mode = NUMOE_PLACEMENT_SLICE};

/* 1408 rows are 88 panels: 29, 30 and 29 of them. 2880 rows are 180: 60 each. */
Test(slice, three_nodes)
{
    const struct placement_machine m = machine_of(3, NULL);
    struct shapes s = made_up(1408);
    struct placement *p = plan_for(&s, &m, slice);
    expect_rows(p, SLOT_GATE_EXPS, (uint32_t[]){0, 464, 944, 1408});
    cr_assert_eq(p->total_bytes, one_copy(&s) + 2 * N_LAYER * D * sizeof(float),
                 "vectors are there three times, all else once");
    placement_free(p);
    s = made_up(2880);
    p = plan_for(&s, &m, slice);
    expect_rows(p, SLOT_GATE_EXPS, (uint32_t[]){0, 960, 1920, 2880});
    placement_free(p);
}

/* The router's 16 rows are one panel: one of eight nodes has it. */
Test(slice, more_nodes_than_panels)
{
    const struct placement_machine m = machine_of(8, NULL);
    const struct shapes s = made_up(1408);
    struct placement *p = plan_for(&s, &m, slice);
    unsigned n_holder = 0;
    for (unsigned in = 0; in < 8; in++) {
        uint32_t row0, row1;
        rows_of(p, 0, SLOT_ROUTER, in, &row0, &row1);
        n_holder += row0 < row1;
    }
    cr_assert_eq(n_holder, 1);
    placement_free(p);
}

/* 12 and 20 cores: 33 and 55 of 88 panels, whether cores or bandwidths say so. */
Test(slice, follows_bandwidth)
{
    struct placement_machine m = machine_of(2, (unsigned[]){12, 20});
    const struct shapes s = made_up(1408);
    struct placement *p = plan_for(&s, &m, slice);
    expect_rows(p, SLOT_GATE_EXPS, (uint32_t[]){0, 528, 1408});
    placement_free(p);
    m = machine_of(2, NULL);
    m.node[0].read_bps = 120e9;
    m.node[1].read_bps = 200e9;
    p = plan_for(&s, &m, slice);
    expect_rows(p, SLOT_GATE_EXPS, (uint32_t[]){0, 528, 1408});
    placement_free(p);
}

Test(slice, rows_move_where_there_is_room)
{
    const struct shapes s = made_up(1408);
    const uint64_t total = one_copy(&s);
    struct placement_machine m = machine_of(3, NULL);
    m.node[1].room_bytes = total / 10;
    struct placement *p = plan_for(&s, &m, slice);
    cr_assert_geq(p->node_bytes[1], total / 12, "what fits stays");
    cr_assert(p->node_bytes[0] > total * 2 / 5 && p->node_bytes[2] > total * 2 / 5,
              "the others share the rest");
    placement_free(p);
}

Test(slice, no_room_is_refused_with_numbers)
{
    const struct shapes s = made_up(1408);
    struct placement_machine m = machine_of(2, NULL);
    struct placement *p = NULL;
    numoe_error err = {0};
    m.node[0].room_bytes = m.node[1].room_bytes = one_copy(&s) * 2 / 5;
    for (int mode = NUMOE_PLACEMENT_AUTO; mode <= NUMOE_PLACEMENT_INTERLEAVE; mode++) {
        const struct placement_request request = {.mode = (numoe_placement)mode};
        cr_assert_eq(placement_make(&s, &m, &request, &p, &err), NUMOE_E_MEMORY, "mode %d", mode);
        cr_assert(strpbrk(err.text, "0123456789") != NULL && strstr(err.text, "quantization"), "%s",
                  err.text);
        cr_assert_null(p);
    }
    m.node[0].room_bytes = m.node[1].room_bytes = UINT64_MAX;
    m.limit_bytes = one_copy(&s) - 1;
    cr_assert_eq(placement_make(&s, &m, &slice, &p, &err), NUMOE_E_MEMORY);
    cr_assert_not_null(strstr(err.text, "control group"), "%s", err.text);
}

/* Activations, context and load buffers need their part of a node's room, and of the limit. */
Test(slice, buffers_take_their_part)
{
    const struct shapes s = made_up(1408);
    const uint64_t half = one_copy(&s) / 2, third = one_copy(&s) / 3;
    struct placement_machine m = machine_of(2, NULL);
    struct placement *p = NULL;
    numoe_error err = {0};
    m.node[0].room_bytes = m.node[1].room_bytes = half + (16 << 20);
    p = plan_for(&s, &m, slice);
    placement_free(p);
    m.node[1].buffer_bytes = 32 << 20; /* 16 MiB of node 1's half move to node 0, which is full */
    cr_assert_eq(placement_make(&s, &m, &slice, &p, &err), NUMOE_E_MEMORY);
    cr_assert_not_null(strstr(err.text, "32.0 MiB for activations"), "%s", err.text);
    m.node[0].room_bytes += 32 << 20;
    p = plan_for(&s, &m, slice);
    cr_assert_leq(p->node_bytes[1], half - (16 << 20));
    placement_free(p);
    m.node[0].room_bytes = UINT64_MAX;
    m.limit_bytes = one_copy(&s) + third;
    m.node[0].buffer_bytes = m.node[1].buffer_bytes = third * 2 / 3;
    cr_assert_eq(placement_make(&s, &m, &slice, &p, &err), NUMOE_E_MEMORY);
    cr_assert_not_null(strstr(err.text, "control group"), "%s", err.text);
    /* What is needed is told, also where it is more than the limit. */
    m.node[0].buffer_bytes = m.node[1].buffer_bytes = UINT64_C(1) << 30;
    m.node[1].room_bytes = UINT64_MAX;
    cr_assert_eq(placement_make(&s, &m, &slice, &p, &err), NUMOE_E_MEMORY);
    cr_assert_not_null(strstr(err.text, "2.00 GiB for activations"), "%s", err.text);
}

/* Where one node does everything, it has all buffers. */
Test(choice, one_node_needs_room_for_all_buffers)
{
    const struct shapes s = made_up(32);
    struct placement_machine m = machine_of(2, (unsigned[]){100, 1});
    m.meet_all_s = 10e-6;
    m.node[0].buffer_bytes = m.node[1].buffer_bytes = 16 << 20;
    m.node[0].room_bytes = one_copy(&s) + (31 << 20);
    struct placement *p = plan_for(&s, &m, (struct placement_request){0});
    cr_assert_eq(placement_only_node(p), -1);
    placement_free(p);
    m.node[0].room_bytes = one_copy(&s) + (33 << 20);
    p = plan_for(&s, &m, (struct placement_request){0});
    cr_assert_eq(placement_only_node(p), 0);
    placement_free(p);
}

/* Experts in the file need no room; what is left is refused with the way to get there. */
Test(slice, experts_in_the_file)
{
    struct shapes s = made_up(1408);
    struct placement_machine m = machine_of(2, NULL);
    struct placement *p = NULL;
    numoe_error err = {0};
    const uint64_t experts = UINT64_C(3) * N_EXPERT * (2 * F * (D / 32 * 34) + D * (F / 32 * 34));
    m.node[0].room_bytes = m.node[1].room_bytes = (one_copy(&s) - experts) * 6 / 10;
    cr_assert_eq(placement_make(&s, &m, &slice, &p, &err), NUMOE_E_MEMORY);
    cr_assert_not_null(strstr(err.text, "the weights alone need"), "%s", err.text);
    cr_assert_not_null(strstr(err.text, "(there on 2 nodes)"), "%s", err.text);
    cr_assert_not_null(strstr(err.text, "--mmap"), "%s", err.text);
    cr_assert_eq(shapes_map_experts(&s, &err), NUMOE_OK);
    cr_assert_eq(shapes_mapped_bytes(&s), experts);
    for (int mode = NUMOE_PLACEMENT_SLICE; mode <= NUMOE_PLACEMENT_INTERLEAVE; mode++) {
        const bool copies = mode == NUMOE_PLACEMENT_REPLICATE;
        m.node[0].room_bytes = m.node[1].room_bytes =
            (one_copy(&s) - experts) * (copies ? 11 : 6) / 10;
        p = plan_for(&s, &m, (struct placement_request){.mode = (numoe_placement)mode});
        cr_assert_eq(p->expert_bytes, 0);
        if (mode == NUMOE_PLACEMENT_SLICE) { /* the work is cut as before */
            expect_rows(p, SLOT_GATE_EXPS, (uint32_t[]){0, 704, 1408});
        }
        placement_free(p);
    }
    m.node[0].room_bytes = m.node[1].room_bytes = (one_copy(&s) - experts) * 4 / 10;
    cr_assert_eq(placement_make(&s, &m, &slice, &p, &err), NUMOE_E_MEMORY);
    cr_assert_null(strstr(err.text, "--mmap"), "%s", err.text);
    s.n_expert = 0;
    cr_assert_eq(shapes_map_experts(&s, &err), NUMOE_E_INPUT);
}

/* Two copies do not fit, one would. */
Test(replicate, says_what_would_fit)
{
    const struct shapes s = made_up(1408);
    struct placement_machine m = machine_of(2, NULL);
    struct placement *p = NULL;
    numoe_error err = {0};
    const struct placement_request request = {.mode = NUMOE_PLACEMENT_REPLICATE};
    m.node[1].room_bytes = one_copy(&s) * 3 / 4;
    cr_assert_eq(placement_make(&s, &m, &request, &p, &err), NUMOE_E_MEMORY);
    cr_assert_not_null(strstr(err.text, "placement slice needs one copy"), "%s", err.text);
    m.node[1].room_bytes = UINT64_MAX;
    p = plan_for(&s, &m, request);
    cr_assert_eq(p->total_bytes, 2 * one_copy(&s));
    placement_free(p);
}

Test(interleave, panels_are_dealt_evenly)
{
    const struct shapes s = made_up(1408);
    const struct placement_machine m = machine_of(3, NULL);
    struct placement *p =
        plan_for(&s, &m, (struct placement_request){.mode = NUMOE_PLACEMENT_INTERLEAVE});
    for (unsigned in = 1; in < 3; in++) {
        const uint64_t a = p->node_bytes[0], b = p->node_bytes[in];
        cr_assert_leq(a > b ? a - b : b - a, s.n * PANEL_ROWS * 2176u, "a panel of each");
    }
    placement_free(p);
}

/* ------------------------------------------------------------------ experts */

static uint64_t counts[N_LAYER][N_EXPERT];
static const struct expert_stats stats = {
    .n_layer = N_LAYER, .n_expert = N_EXPERT, .count = counts[0]};

static uint64_t holders_of(const struct placement *p, int layer, enum slot slot, unsigned ie)
{
    uint64_t holders = 0;
    for (unsigned i = 0; i < p->n_slice; i++) {
        const struct placement_slice *s = &p->slice[i];
        if (s->layer == layer && s->slot == slot && ie >= s->mat0 && ie < s->mat1) {
            holders |= UINT64_C(1) << s->node;
        }
    }
    return holders;
}

static unsigned n_of(uint64_t bits)
{
    return (unsigned)__builtin_popcountll(bits);
}

/* Without statistics: as many everywhere, in every layer, and no replicas whatever the budget. */
Test(shard, round_robin_without_statistics)
{
    const struct shapes s = made_up(1408);
    const struct placement_machine m = machine_of(4, NULL);
    struct placement *p = plan_for(
        &s, &m, (struct placement_request){.mode = NUMOE_PLACEMENT_SHARD, .replica_percent = 50});
    for (int il = 0; il < N_LAYER; il++) {
        unsigned n[4] = {0};
        for (unsigned ie = 0; ie < N_EXPERT; ie++) {
            const uint64_t at = holders_of(p, il, SLOT_UP_EXPS, ie);
            cr_assert_eq(n_of(at), 1);
            cr_assert_eq(at, holders_of(p, il, SLOT_DOWN_EXPS, ie));
            n[__builtin_ctzll(at)]++;
        }
        cr_assert_arr_eq(n, ((unsigned[]){4, 4, 4, 4}), sizeof n);
    }
    cr_assert_eq(p->replica_bytes, 0);
    placement_free(p);
}

/* Counts 15, 14 ... 0: each of two nodes is expected to do half, 60 of 120. */
Test(shard, load_is_equal_by_statistics)
{
    const struct shapes s = made_up(1408);
    const struct placement_machine m = machine_of(2, NULL);
    for (unsigned ie = 0; ie < N_EXPERT; ie++) {
        counts[0][ie] = counts[1][ie] = counts[2][ie] = 15 - ie;
    }
    struct placement *p = plan_for(
        &s, &m, (struct placement_request){.mode = NUMOE_PLACEMENT_SHARD, .stats = &stats});
    for (int il = 0; il < N_LAYER; il++) {
        uint64_t load[2] = {0};
        for (unsigned ie = 0; ie < N_EXPERT; ie++) {
            load[__builtin_ctzll(holders_of(p, il, SLOT_GATE_EXPS, ie))] += counts[il][ie];
        }
        cr_assert(load[0] >= 59 && load[0] <= 61, "layer %d: %d of 120", il, (int)load[0]);
    }
    placement_free(p);
}

/* Budget for exactly two experts, one byte less, and one byte more: two, one, two. The hottest of
 * all layers are chosen. */
Test(shard, replicas_keep_the_budget_to_the_byte)
{
    const struct shapes s = made_up(1408);
    const struct placement_machine m = machine_of(4, NULL);
    const uint64_t each = 2 * (uint64_t)1408 * 2176 + (uint64_t)2048 * 1496;
    for (unsigned ie = 0; ie < N_EXPERT; ie++) {
        counts[0][ie] = counts[1][ie] = counts[2][ie] = 100;
    }
    counts[1][5] = 900;
    counts[2][7] = 700;
    const uint64_t budget[] = {2 * each, 2 * each - 1, 2 * each + 1};
    for (unsigned i = 0; i < 3; i++) {
        struct placement *p = plan_for(&s, &m,
                                       (struct placement_request){.mode = NUMOE_PLACEMENT_SHARD,
                                                                  .replica_bytes = budget[i],
                                                                  .stats = &stats});
        cr_assert_eq(p->replica_bytes, i == 1 ? each : 2 * each);
        cr_assert_eq(p->total_bytes,
                     one_copy(&s) + 3 * N_LAYER * D * sizeof(float) + p->replica_bytes);
        /* A third of 900 of 2400 is more than half of 700 of 2200: the second copy of the first
         * comes first, then the second copy of the other. */
        cr_assert_eq(n_of(holders_of(p, 1, SLOT_DOWN_EXPS, 5)), 2);
        cr_assert_eq(n_of(holders_of(p, 2, SLOT_DOWN_EXPS, 7)), i == 1 ? 1 : 2);
        placement_free(p);
    }
}

/* The cgroup leaves room for one replica only. */
Test(shard, replicas_stay_within_the_limit)
{
    const struct shapes s = made_up(1408);
    struct placement_machine m = machine_of(2, NULL);
    const uint64_t each = 2 * (uint64_t)1408 * 2176 + (uint64_t)2048 * 1496;
    for (unsigned ie = 0; ie < N_EXPERT; ie++) {
        counts[0][ie] = counts[1][ie] = counts[2][ie] = 1 + ie;
    }
    m.limit_bytes = one_copy(&s) + N_LAYER * D * sizeof(float) + each + each / 2;
    struct placement *p =
        plan_for(&s, &m,
                 (struct placement_request){
                     .mode = NUMOE_PLACEMENT_SHARD, .replica_percent = 100, .stats = &stats});
    cr_assert_eq(p->replica_bytes, each);
    placement_free(p);
}

Test(shard, experts_go_where_there_is_room)
{
    const struct shapes s = made_up(1408);
    struct placement_machine m = machine_of(2, NULL);
    m.node[0].room_bytes = one_copy(&s) / 4;
    struct placement *p =
        plan_for(&s, &m, (struct placement_request){.mode = NUMOE_PLACEMENT_SHARD});
    cr_assert_gt(p->node_bytes[1], 2 * p->node_bytes[0]);
    placement_free(p);
}

/* ------------------------------------------------------------------ further copies */

enum { MANY = 128 };

/* One layer of experts that cost 1 and are chosen by one token each. */
struct one_layer {
    double count[MANY], n_token;
    uint64_t first[MANY], now[MANY], wanted[MANY];
    uint64_t room[TOPO_MAX_NODE], expert_bytes;
    double share[TOPO_MAX_NODE];
    struct replica_rank heap[MANY];
};

static void choose_copies(struct one_layer *l, unsigned n_expert, unsigned n_node, uint64_t budget,
                          bool with_now)
{
    l->n_token = 0;
    l->expert_bytes = 1;
    for (unsigned ie = 0; ie < n_expert; ie++) {
        l->n_token += l->count[ie];
    }
    for (unsigned in = 0; in < n_node; in++) {
        l->share[in] = 1.0 / n_node;
        l->room[in] = l->room[in] > 0 ? l->room[in] : UINT64_MAX;
    }
    const struct replica_problem problem = {.n_layer = 1,
                                            .n_expert = n_expert,
                                            .n_node = n_node,
                                            .share = l->share,
                                            .room_bytes = l->room,
                                            .budget_bytes = budget,
                                            .expert_bytes = &l->expert_bytes,
                                            .place_bytes = 1,
                                            .count = l->count,
                                            .n_token = &l->n_token,
                                            .first = l->first,
                                            .now = with_now ? l->now : NULL};
    placement_choose_replicas(&problem, l->heap, l->wanted);
}

/* Second copies take a half, third ones a third: 45 and 30 of 90, 20 and 13.3 of 40, 10 of 20. Node
 * 0 has the first copies of all; the others are alike until one has more to do. */
Test(copies, worked_example)
{
    struct one_layer l = {.count = {90, 40, 20}, .first = {1, 1, 1}};
    static const uint64_t want[5][3] = {{0}, {2, 0, 0}, {6, 0, 0}, {6, 2, 0}, {6, 6, 0}};
    for (unsigned n = 0; n < 5; n++) {
        choose_copies(&l, 3, 3, n, false);
        cr_assert_arr_eq(l.wanted, want[n], sizeof want[n], "%u copies", n);
    }
    /* Node 1 is full after one, node 2 has no room: nothing but the best one there. */
    l.room[1] = 1;
    l.room[2] = 1;
    choose_copies(&l, 3, 3, 9, false);
    cr_assert_arr_eq(l.wanted, ((uint64_t[]){6, 0, 0}), 3 * sizeof *l.wanted);
}

/* A copy of an expert that was chosen 10000 times gives way to one with more than 10000 * 1.1 + 3 *
 * 100; 100 times: 110 + 30. */
Test(copies, stay_until_others_are_surely_better)
{
    static const struct {
        double here, other;
        bool swaps;
    } example[] = {{10000, 11299, false}, {10000, 11301, true}, {100, 139, false}, {100, 141, true}};
    for (unsigned i = 0; i < ARRAY_LEN(example); i++) {
        struct one_layer l = {
            .count = {example[i].here, example[i].other}, .first = {1, 1}, .now = {2, 0}};
        choose_copies(&l, 2, 2, 1, true);
        cr_assert_eq(l.wanted[0], example[i].swaps ? 0 : 2, "%g, %g", example[i].here,
                     example[i].other);
        cr_assert_eq(l.wanted[1], example[i].swaps ? 2 : 0);
    }
    /* What is there stays on its node, even where another has less to do. */
    struct one_layer l = {.count = {90, 80}, .first = {1, 4}, .now = {4, 0}};
    choose_copies(&l, 2, 3, 1, true);
    cr_assert_eq(l.wanted[0], 4);
}

static uint32_t lcg(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* All experts alike, 256 choices of each on average: that some are chosen more often is chance, and
 * changes nothing. */
Test(copies, chance_moves_nothing)
{
    uint32_t state = 1;
    struct one_layer l = {.n_token = 0};
    for (unsigned round = 0; round < 20; round++) {
        memset(l.count, 0, sizeof l.count);
        for (unsigned i = 0; i < 256 * MANY; i++) {
            l.count[lcg(&state) % MANY]++;
        }
        for (unsigned ie = 0; ie < MANY; ie++) {
            l.first[ie] = UINT64_C(1) << ie % 4;
        }
        choose_copies(&l, MANY, 4, 16, round > 0);
        if (round > 0) {
            cr_assert_arr_eq(l.wanted, l.now, sizeof l.now, "round %u", round);
        }
        memcpy(l.now, l.wanted, sizeof l.now);
    }
}

/* Any counts, nodes and budgets: no more copies than there is room and budget for, none beside the
 * first; a larger budget keeps what a smaller one gave; and what is there by the same counts stays. */
Test(copies, keep_to_budgets_and_grow_with_them)
{
    uint32_t state = 7;
    for (unsigned round = 0; round < 200; round++) {
        const unsigned n_node = 2 + lcg(&state) % 7, budget = lcg(&state) % 60;
        struct one_layer l = {.n_token = 0}, more;
        for (unsigned ie = 0; ie < MANY; ie++) {
            l.count[ie] = lcg(&state) % 5 == 0 ? 0 : 1 + lcg(&state) % 3000;
            l.first[ie] = UINT64_C(1) << lcg(&state) % n_node;
        }
        more = l;
        choose_copies(&l, MANY, n_node, budget, false);
        choose_copies(&more, MANY, n_node, budget + 5, false);
        unsigned n = 0;
        for (unsigned ie = 0; ie < MANY; ie++) {
            n += n_of(l.wanted[ie]);
            cr_assert_eq(l.wanted[ie] & l.first[ie], 0);
            cr_assert_eq(l.wanted[ie] & ~more.wanted[ie], 0, "copies that a larger budget lacks");
            cr_assert(l.count[ie] > 0 || l.wanted[ie] == 0, "nobody chose it");
        }
        cr_assert_eq(n, budget);
        memcpy(l.now, l.wanted, sizeof l.now);
        choose_copies(&l, MANY, n_node, budget, true);
        cr_assert_arr_eq(l.wanted, l.now, sizeof l.now);
        for (unsigned in = 0; in < n_node; in++) {
            l.room[in] = 3;
        }
        choose_copies(&l, MANY, n_node, budget, false);
        for (unsigned in = 0; in < n_node; in++) {
            n = 0;
            for (unsigned ie = 0; ie < MANY; ie++) {
                n += l.wanted[ie] >> in & 1;
            }
            cr_assert_leq(n, 3);
        }
    }
}

static const struct placement_request changing = {
    .mode = NUMOE_PLACEMENT_SHARD, .replica_percent = 10, .replicas_change = true};

/* 10 % of all weights are 4 experts and more: two places on each node, none of them filled. Where the
 * control group leaves room for one and a half, there is one. */
Test(copies, places_are_reserved)
{
    const struct shapes s = made_up(1408);
    struct placement_machine m = machine_of(2, NULL);
    const uint64_t each = 2 * (uint64_t)1408 * 2176 + (uint64_t)2048 * 1496;
    const unsigned n = (unsigned)(one_copy(&s) / 10 / each);
    cr_assert_geq(n, 4);
    struct placement *p = plan_for(&s, &m, changing);
    cr_assert_eq(p->place_bytes, each);
    cr_assert(p->n_place[0] == (n + 1) / 2 && p->n_place[1] == n / 2);
    cr_assert(p->replica_bytes == 0 && p->n_place_asked == n);
    cr_assert_eq(placement_reserved_all(p), n * each);
    placement_free(p);

    m.limit_bytes = one_copy(&s) + 2 * N_LAYER * D * sizeof(float) + each + each / 2;
    p = plan_for(&s, &m, changing);
    cr_assert(p->n_place[0] == 1 && p->n_place[1] == 0 && p->n_place_asked == n);
    placement_free(p);

    m.limit_bytes = UINT64_MAX;
    m.node[0].room_bytes = one_copy(&s) * 51 / 100; /* half of the weights, and little else */
    p = plan_for(&s, &m, changing);
    cr_assert_leq(p->node_bytes[0] + p->n_place[0] * each, m.node[0].room_bytes);
    cr_assert_eq(p->n_place[0] + p->n_place[1], n, "the other node has room");
    placement_free(p);
}

/* A plan of a file has its places, and needs room for them; its own copies may change if asked. */
Test(copies, places_in_plans)
{
    const struct shapes s = made_up(1408);
    struct placement_machine m = machine_of(2, NULL);
    struct placement_request request = changing;
    for (unsigned i = 0; i < 2; i++) {
        numoe_error err = {0};
        struct placement *p = plan_for(&s, &m, request), *back = NULL;
        char *text = NULL;
        cr_assert_eq(placement_to_json(p, &s, &m, &text, NULL), NUMOE_OK);
        cr_assert_eq(placement_from_json(text, strlen(text), &s, &back, &err), NUMOE_OK);
        cr_assert_eq(placement_check(back, &s, &m, &err), NUMOE_OK, "%s", err.text);
        placement_let_change(back, &s);
        cr_assert_eq(back->place_bytes, p->place_bytes > 0 ? p->place_bytes : 9191424);
        for (unsigned in = 0; in < 2; in++) {
            const uint64_t n_copy = p->copy_bytes[in] / back->place_bytes;
            cr_assert_eq(back->n_place[in], MAX(p->n_place[in], n_copy));
            cr_assert_eq(back->copy_bytes[in], p->copy_bytes[in]);
        }
        cr_assert_gt(back->n_place[0] + back->n_place[1], 3);
        if (i == 0) {
            m.node[1].room_bytes = p->node_bytes[1] + p->place_bytes;
            cr_assert_eq(placement_fits(back, &m, &err), NUMOE_E_MEMORY);
            cr_assert_not_null(strstr(err.text, "for copies of experts to come"), "%s", err.text);
            m.node[1].room_bytes = UINT64_MAX;
        }
        placement_free(back);
        placement_free(p);
        free(text);
        for (unsigned ie = 0; ie < N_EXPERT; ie++) {
            counts[0][ie] = counts[1][ie] = counts[2][ie] = 1 + ie;
        }
        request.replicas_change = false;
        request.stats = &stats;
    }
}

/* ------------------------------------------------------------------ choice */

/* A tiny model on a fast node: what a second, slow node saves is less than its meetings cost. */
Test(choice, one_node_where_that_is_faster)
{
    const struct shapes s = made_up(32);
    struct placement_machine m = machine_of(2, (unsigned[]){100, 1});
    m.meet_all_s = 10e-6;
    struct placement *p = plan_for(&s, &m, (struct placement_request){0});
    cr_assert_eq(placement_only_node(p), 0, "%s", p->reason);
    cr_assert_eq(p->node_bytes[1], 0);
    placement_keep_node(p, 0);
    const struct placement_machine alone = machine_of(1, NULL);
    cr_assert_eq(placement_check(p, &s, &alone, NULL), NUMOE_OK);
    placement_free(p);
}

/* 400 MB a layer of which a quarter is read: several nodes, by rows. */
Test(choice, rows_at_batch_one)
{
    const struct shapes s = made_up(2880 * 8);
    const struct placement_machine m = machine_of(2, NULL);
    struct placement *p = plan_for(&s, &m, (struct placement_request){0});
    cr_assert_eq(p->mode, NUMOE_PLACEMENT_SLICE, "%s", p->reason);
    cr_assert_lt(placement_only_node(p), 0);
    placement_free(p);
}

/* Of Q8_0 matrices, by hand: output, Q, O, router; one row of the embedding; 4 of 16 experts. */
static double token_bytes(void)
{
    const double row_d = D / 32 * 34, row_f = F / 32 * 34;
    return (1 + V) * row_d +
           N_LAYER * ((2 * D + N_EXPERT) * row_d + 4 * (2 * F * row_d + D * row_f));
}

/* Whatever the plan: not faster than all nodes reading together, not slower than the slowest one
 * reading everything, twice over for what comes from elsewhere, by one worker where there are too few
 * rows for more. Faster memory is never slower.
 */
Test(choice, predictions_are_bounded_and_monotonic)
{
    static const unsigned workers[][4] = {{8, 8, 8, 8}, {1, 2, 4, 16}, {12, 20, 1, 1}};
    const struct shapes s = made_up(F);
    for (unsigned i = 0; i < 3 * 4 * 5; i++) {
        const unsigned n_node = 1 + i / 5 % 4;
        struct placement_machine m = machine_of(n_node, workers[i / 20]);
        const struct placement_request request = {.mode = (numoe_placement)(i % 5)};
        struct placement *p = plan_for(&s, &m, request);
        double sum = 0, least = INFINITY;
        for (unsigned in = 0; in < n_node; in++) {
            sum += m.node[in].read_bps;
            least = fmin(least, m.node[in].read_bps);
        }
        const double meetings = N_LAYER * 9 * 2e-6 + 30e-6;
        cr_assert_leq(p->tokens_per_s, sum / token_bytes(), "case %u", i);
        cr_assert_geq(p->tokens_per_s, 1 / (2 * 20 * token_bytes() / least + meetings), "case %u", i);
        for (unsigned in = 0; in < n_node; in++) {
            struct placement_machine faster = m;
            faster.node[in].read_bps *= 1.5;
            cr_assert_geq(placement_predict(p, &s, &faster, NULL),
                          placement_predict(p, &s, &m, NULL), "case %u, node %u", i, in);
        }
        m.remote_factor = 3;
        cr_assert_leq(placement_predict(p, &s, &m, NULL), p->tokens_per_s, "case %u", i);
        placement_free(p);
    }
}

/* One routed matrix triple and everything else by hand: the bytes of a token over the bandwidth. */
Test(choice, prediction_is_bytes_over_bandwidth)
{
    const struct shapes s = made_up(2880 * 8);
    const struct placement_machine m = machine_of(1, (unsigned[]){1});
    struct placement *p = plan_for(&s, &m, slice);
    const double row = 2176, down_row = 2880 * 8 / 32 * 34.0;
    const double bytes =
        row + V * row +
        N_LAYER * (2 * D * row + N_EXPERT * row + 4 * (2 * 2880 * 8 * row + D * down_row));
    cr_assert_float_eq(p->tokens_per_s, 10e9 / bytes, 0.01 * 10e9 / bytes);
    placement_free(p);
}

/* Copies on a fast and a slow node: each with a sequence of its own is as fast as it is alone. */
Test(choice, prediction_of_nodes_with_own_sequences)
{
    const struct shapes s = made_up(2880 * 8);
    const struct placement_machine m = machine_of(2, (unsigned[]){3, 1});
    double sum = 0;
    for (unsigned in = 0; in < 2; in++) {
        const struct placement_machine one = machine_of(1, (unsigned[]){in == 0 ? 3 : 1});
        struct placement *p = plan_for(&s, &one, slice);
        sum += p->tokens_per_s;
        cr_assert_eq(p->lanes_tokens_per_s, 0);
        placement_free(p);
    }
    struct placement *p =
        plan_for(&s, &m, (struct placement_request){.mode = NUMOE_PLACEMENT_REPLICATE});
    cr_assert_float_eq(p->lanes_tokens_per_s, sum, 1e-6 * sum);
    cr_assert_lt(p->tokens_per_s, sum);
    placement_free(p);
}

/* One token in one step is the prediction for one sequence, together and on a node. Both ways do the
 * same work, but lanes read what several tokens have in common once each, so two tokens together
 * read less; where reading is nothing, meetings decide. */
Test(choice, lanes_where_they_pay)
{
    const struct shapes s = made_up(2880 * 8);
    struct placement_machine m = machine_of(2, (unsigned[]){4, 4});
    const struct placement_request copies = {.mode = NUMOE_PLACEMENT_REPLICATE};
    struct placement *p = plan_for(&s, &m, copies);
    const double one_s = placement_batch_seconds(p, &s, &m, 1, false);
    cr_expect_float_eq(one_s, 1 / p->tokens_per_s, 1e-6 * one_s);
    const double lane_s = placement_batch_seconds(p, &s, &m, 2, true);
    cr_expect_float_eq(lane_s, 2 / p->lanes_tokens_per_s, 1e-6 * lane_s);
    const double two_s = placement_batch_seconds(p, &s, &m, 2, false);
    cr_expect_float_eq(two_s, 2 / p->together_tokens_per_s, 1e-6 * two_s);
    cr_expect(two_s < 2 * one_s && two_s < lane_s, "%g %g %g", one_s, two_s, lane_s);
    cr_expect_eq(p->lanes_pay & 2, 0, "%x", p->lanes_pay);
    placement_free(p);
    for (unsigned in = 0; in < 2; in++) {
        m.node[in].read_bps = 1e15;
    }
    p = plan_for(&s, &m, copies);
    cr_expect_neq(p->lanes_pay & 2, 0, "%x", p->lanes_pay);
    placement_free(p);
    p = plan_for(&s, &m, slice);
    cr_expect_eq(p->lanes_pay, 0, "not possible");
    placement_free(p);
}

/* ------------------------------------------------------------------ JSON */

static const numoe_placement modes[] = {NUMOE_PLACEMENT_SLICE, NUMOE_PLACEMENT_SHARD,
                                        NUMOE_PLACEMENT_REPLICATE, NUMOE_PLACEMENT_INTERLEAVE};

static char *json_of(const struct placement *p, const struct shapes *s,
                     const struct placement_machine *m)
{
    char *text = NULL;
    cr_assert_eq(placement_to_json(p, s, m, &text, NULL), NUMOE_OK);
    return text;
}

Test(json, there_and_back)
{
    const struct shapes s = made_up(1408);
    const struct placement_machine m = machine_of(3, (unsigned[]){12, 20, 7});
    for (unsigned ie = 0; ie < N_EXPERT; ie++) {
        counts[0][ie] = counts[1][ie] = counts[2][ie] = ie * ie;
    }
    for (unsigned i = 0; i < ARRAY_LEN(modes); i++) {
        numoe_error err = {0};
        struct placement *back = NULL;
        struct placement *p = plan_for(
            &s, &m,
            (struct placement_request){.mode = modes[i], .replica_percent = 20, .stats = &stats});
        char *text = json_of(p, &s, &m);
        cr_assert_eq(placement_from_json(text, strlen(text), &s, &back, &err), NUMOE_OK, "%s",
                     err.text);
        cr_assert_eq(placement_check(back, &s, &m, &err), NUMOE_OK, "%s", err.text);
        cr_assert(back->mode == p->mode && back->n_slice == p->n_slice);
        cr_assert_arr_eq(back->slice, p->slice, p->n_slice * sizeof *p->slice);
        cr_assert_arr_eq(back->share, p->share, sizeof p->share);
        cr_assert_arr_eq(back->node_bytes, p->node_bytes, sizeof p->node_bytes);
        cr_assert_eq(back->replica_bytes, p->replica_bytes);
        cr_assert_str_eq(back->reason, p->reason);
        placement_free(back);
        placement_free(p);
        free(text);
    }
}

/* A plan with one place changed: refused, in one line that names the place. */
static void expect_refused(const char *text, const char *from, const char *to, const char *why)
{
    const struct shapes s = made_up(1408);
    const struct placement_machine m = machine_of(2, NULL);
    numoe_error err = {0};
    struct placement *p = NULL;
    const char *at = strstr(text, from);
    cr_assert_not_null(at, "%s is not there", from);
    char *bad = malloc(strlen(text) + strlen(to) + 1);
    sprintf(bad, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    numoe_status status = placement_from_json(bad, strlen(bad), &s, &p, &err);
    if (status == NUMOE_OK) {
        status = placement_check(p, &s, &m, &err);
        placement_free(p);
    }
    cr_assert_eq(status, NUMOE_E_INPUT, "%s for %s", to, from);
    cr_assert_not_null(strstr(err.text, why), "%s", err.text);
    free(bad);
}

Test(json, bad_plans_are_refused)
{
    const struct shapes s = made_up(1408);
    const struct placement_machine m = machine_of(2, NULL);
    struct placement *p = plan_for(&s, &m, slice);
    char *text = json_of(p, &s, &m);
    expect_refused(text, "\"numoe_plan\":1", "\"numoe_plan\":2", "is not a plan");
    expect_refused(text, "{\"numoe_plan\":1", "[{\"numoe_plan\":1", "line 1");
    expect_refused(text, "made up", "another", "another model (another)");
    expect_refused(text, "\"mode\":\"slice\"", "\"mode\":\"auto\"", "\"mode\" must be");
    expect_refused(text, "\"mode\":\"slice\"", "\"mode\":\"replicate\"", "all of it");
    expect_refused(text, "\"mode\":\"slice\"", "\"mode\":\"shard\"", "are not cut");
    expect_refused(text, "\"share\":0.5", "\"share\":0.25", "add up to 0.75");
    expect_refused(text, "\"share\":0.5", "\"share\":-1", "from 0 to 1");
    expect_refused(text, "\"share\":0.5", "\"share\":\"x\"", "from 0 to 1");
    expect_refused(text, "\"nodes\":[", "\"nodes\":[{\"share\":0},", "3 nodes, this machine has 2");
    expect_refused(text, "blk.1.attn_q.weight", "blk.9.attn_q.weight", "no matrix blk.9");
    expect_refused(text, "blk.1.attn_q.weight", "blk.2.attn_q.weight", "blk.1.attn_q.weight");
    expect_refused(text, "\"node\":0", "\"node\":2", "below 2");
    expect_refused(text, "\"node\":0", "\"node\":0.5", "below 2");
    expect_refused(text, "\"rows\":[0,", "\"rows\":[16,", "row 0 is on no node");
    expect_refused(text, "\"rows\":[0,1024]", "\"rows\":[0,1032]", "multiples of 16");
    expect_refused(text, "\"rows\":[0,1024]", "\"rows\":[0,1008]", "row 1008 is on no node");
    expect_refused(text, "\"rows\":[0,1024]", "\"rows\":[0,1040]", "row 1040 is on no node");
    expect_refused(text, "\"rows\":[0,1024]", "\"rows\":[0,99999]", "within 2048");
    expect_refused(text, "\"rows\":[0,1024]", "\"rows\":[0]", "[from, to]");
    expect_refused(text, "\"matrices\":[0,16]", "\"matrices\":[0,15]", "all matrices");
    expect_refused(text, "\"matrices\":[0,16]", "\"matrices\":[0,17]", "within 16");
    expect_refused(text, "\"matrices\":[0,16]", "\"matrices\":[]", "[from, to, ...]");
    expect_refused(text, "\"weight_bytes\":", "\"weight_bytes\":1", "the slices have");
    expect_refused(text, "\"workers\":", "\"workers\":-", "whole number from 0 to 4096");
    free(text);
    placement_free(p);
    p = plan_for(&s, &m, (struct placement_request){.mode = NUMOE_PLACEMENT_SHARD});
    text = json_of(p, &s, &m);
    expect_refused(text, "\"matrices\":[0,1,", "\"matrices\":[0,2,", "ffn_");
    expect_refused(text, "\"rows\":[0,1024]", "\"further\":true,\"rows\":[0,1024]",
                   "only whole experts");
    expect_refused(text, "\"rows\":[0,1408]", "\"further\":true,\"rows\":[0,1408]",
                   "no first one");
    expect_refused(text, "\"rows\":[0,1408]", "\"further\":1,\"rows\":[0,1408]", "true or false");
    expect_refused(text, "\"workers\":", "\"replica_places\":-1,\"workers\":", "whole number");
    free(text);
    placement_free(p);
}

/* gate and up are computed together: one that is cut elsewhere cannot be. */
Test(json, gate_and_up_are_cut_alike)
{
    const struct shapes s = made_up(1408);
    const struct placement_machine m = machine_of(2, NULL);
    numoe_error err = {0};
    struct placement *p = plan_for(&s, &m, slice);
    for (unsigned i = 0; i < p->n_slice; i++) {
        struct placement_slice *at = &p->slice[i];
        if (at->layer == 2 && at->slot == SLOT_UP_EXPS) {
            at->row1 = at->node == 0 ? at->row1 + 16 : at->row1;
            at->row0 = at->node == 1 ? at->row0 + 16 : at->row0;
        }
    }
    cr_assert_eq(placement_check(p, &s, &m, &err), NUMOE_E_INPUT);
    cr_assert_not_null(strstr(err.text, "blk.2.ffn_up_exps.weight: is not cut as"), "%s", err.text);
    placement_free(p);
}
