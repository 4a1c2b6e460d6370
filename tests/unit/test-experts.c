/* Router selection rules against cases worked out by hand, and the counting sort of dispatch. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "experts/dispatch.h"
#include "experts/router.h"

struct choice {
    int32_t ids[8];
    float weights[8];
};

static struct choice choose(const struct router_params *p, unsigned n, unsigned k,
                            const float *logits, const float *bias)
{
    struct choice c = {{0}, {0}};
    float scratch[128];
    cr_assert_leq(router_scratch_floats(p, n), ARRAY_LEN(scratch));
    router_select(p, n, k, logits, bias, scratch, c.ids, c.weights);
    return c;
}

#define expect_ids(c, ...)                                                                         \
    do {                                                                                           \
        const int32_t want[] = {__VA_ARGS__};                                                      \
        cr_assert_arr_eq((c).ids, want, sizeof want, "chose %d %d %d", (c).ids[0], (c).ids[1],     \
                         (c).ids[2]);                                                              \
    } while (0)

/* log of 1, 2, 3, 4: probabilities 0.1 .. 0.4 */
static const float log1234[] = {0, 0.6931472f, 1.0986123f, 1.3862944f};

Test(router, softmax_over_all_experts)
{
    const struct router_params p = {.gating = ROUTER_SOFTMAX, .scale = 1};
    struct choice c = choose(&p, 4, 2, log1234, NULL);
    expect_ids(c, 3, 2);
    cr_assert_float_eq(c.weights[0], 0.4f, 1e-6f);
    cr_assert_float_eq(c.weights[1], 0.3f, 1e-6f);
}

Test(router, normalised_and_scaled)
{
    const struct router_params p = {.gating = ROUTER_SOFTMAX, .norm_topk = true, .scale = 2.5f};
    struct choice c = choose(&p, 4, 2, log1234, NULL);
    cr_assert_float_eq(c.weights[0], 2.5f * 4 / 7, 1e-6f);
    cr_assert_float_eq(c.weights[1], 2.5f * 3 / 7, 1e-6f);
}

Test(router, softmax_of_the_selected)
{
    const struct router_params p = {.gating = ROUTER_SOFTMAX_OF_TOPK, .scale = 1};
    struct choice c = choose(&p, 4, 2, log1234, NULL);
    expect_ids(c, 3, 2);
    cr_assert_float_eq(c.weights[0], 4.0f / 7, 1e-6f);
    cr_assert_float_eq(c.weights[1], 3.0f / 7, 1e-6f);
}

/* The bias decides who is chosen, and has no part in the weights. */
Test(router, selection_bias)
{
    const struct router_params p = {.gating = ROUTER_SIGMOID, .scale = 1};
    const float logits[] = {0, 1, 2, -1}, bias[] = {0, 0, -0.5f, 0.7f};
    struct choice c = choose(&p, 4, 2, logits, bias);
    expect_ids(c, 3, 1); /* 0.97 and 0.73 before 0.5 and 0.38 */
    cr_assert_float_eq(c.weights[0], 0.26894142f, 1e-6f);
    cr_assert_float_eq(c.weights[1], 0.73105858f, 1e-6f);
}

Test(router, lower_id_of_equals)
{
    const struct router_params p = {.gating = ROUTER_SOFTMAX, .scale = 1};
    const float logits[] = {1, 3, 3, 1, 3, 1};
    struct choice c = choose(&p, 6, 4, logits, NULL);
    expect_ids(c, 1, 2, 4, 0);
}

/* Group 0 has the best expert, group 1 the best pair, group 2 is in between in both. */
static const float three_groups[] = {3, -3, -3, 2, 2, -3, 2.5f, 1, -3};

Test(router, groups_by_their_best)
{
    const struct router_params p = {.gating = ROUTER_SOFTMAX,
                                    .group_rule = GROUP_BEST,
                                    .n_group = 3,
                                    .n_group_used = 1,
                                    .scale = 1};
    struct choice c = choose(&p, 9, 2, three_groups, NULL);
    expect_ids(c, 0, 1);
}

Test(router, groups_by_their_two_best)
{
    const struct router_params p = {.gating = ROUTER_SIGMOID,
                                    .group_rule = GROUP_BEST_TWO,
                                    .n_group = 3,
                                    .n_group_used = 1,
                                    .scale = 1};
    struct choice c = choose(&p, 9, 2, three_groups, NULL);
    expect_ids(c, 3, 4);
    const struct router_params two = {.gating = ROUTER_SIGMOID,
                                      .group_rule = GROUP_BEST_TWO,
                                      .n_group = 3,
                                      .n_group_used = 2,
                                      .scale = 1};
    c = choose(&two, 9, 3, three_groups, NULL);
    expect_ids(c, 6, 3, 4); /* group 0, with the best of all, is out */
}

/* With a negative bias every choice score can be below 0: what is left out must still be lower. */
Test(router, negative_scores_stay_in_their_groups)
{
    const struct router_params p = {.gating = ROUTER_SIGMOID,
                                    .group_rule = GROUP_BEST_TWO,
                                    .n_group = 2,
                                    .n_group_used = 1,
                                    .scale = 1};
    const float logits[] = {0, 0, 1, 1}, bias[] = {-5, -5, -5, -5};
    struct choice c = choose(&p, 4, 2, logits, bias);
    expect_ids(c, 2, 3);
}

/* A damaged model may give NaN: experts stay different ones, the lower first where none is better. */
Test(router, nan_gives_distinct_ids)
{
    const struct router_params p = {.gating = ROUTER_SOFTMAX,
                                    .group_rule = GROUP_BEST,
                                    .n_group = 2,
                                    .n_group_used = 1,
                                    .scale = 1};
    const float logits[] = {NAN, 1, NAN, NAN};
    struct choice c = choose(&p, 4, 3, logits, NULL);
    expect_ids(c, 0, 1, 2);
    const struct router_params plain = {.gating = ROUTER_SOFTMAX_OF_TOPK, .scale = 1};
    c = choose(&plain, 4, 4, logits, NULL);
    expect_ids(c, 1, 0, 2, 3);
    const float infinite[] = {1, INFINITY, 0, 0}, bias[] = {0, -INFINITY, 0, 0};
    const struct router_params sigmoid = {.gating = ROUTER_SIGMOID,
                                          .group_rule = GROUP_BEST_TWO,
                                          .n_group = 2,
                                          .n_group_used = 1,
                                          .scale = 1};
    c = choose(&sigmoid, 4, 2, infinite, bias);
    expect_ids(c, 2, 3);
}

/* ------------------------------------------------------------------ dispatch */

static struct dispatch_item items[256], open_items[64];
static uint32_t counts[64], token_of[2048], pair_of[2048];
static struct dispatch work = {0, 0, items, token_of, pair_of, open_items, counts};

static void expect_items(const struct dispatch_item *want, unsigned n)
{
    cr_assert_eq(work.n_item, n);
    cr_assert_arr_eq(work.item, want, n * sizeof *want);
}

Test(dispatch, worked_example)
{
    const int32_t ids[] = {2, 0, 0, 3}; /* two tokens, two choices */
    dispatch_build(ids, 2, 2, 4, &work);
    expect_items((struct dispatch_item[]){{0, 0, 2, 0}, {2, 2, 3, 2}, {3, 3, 4, 3}}, 3);
    cr_assert_eq(work.n_pair, 4);
    cr_assert_arr_eq(work.token, ((uint32_t[]){0, 1, 0, 1}), sizeof(uint32_t[4]));
    cr_assert_arr_eq(work.pair, ((uint32_t[]){1, 2, 0, 3}), sizeof(uint32_t[4]));
}

static uint32_t state = 1;

static uint32_t any(uint32_t below)
{
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % below;
}

Test(dispatch, every_pair_once_with_its_expert)
{
    for (unsigned n_expert = 1; n_expert <= 64; n_expert += 3) {
        int32_t ids[96];
        bool seen[96] = {false};
        for (unsigned i = 0; i < 96; i++) {
            ids[i] = (int32_t)any(n_expert);
        }
        dispatch_build(ids, 24, 4, n_expert, &work);
        uint32_t at = 0;
        for (unsigned a = 0; a < work.n_item; a++) {
            const struct dispatch_item *item = &work.item[a];
            cr_assert(item->begin == at && item->row == at);
            cr_assert_lt(item->begin, item->end, "an active expert has work");
            cr_assert(a == 0 || work.item[a - 1].expert < item->expert);
            for (uint32_t i = item->begin; i < item->end; i++) {
                const uint32_t pair = work.pair[i];
                cr_assert_eq((uint32_t)ids[pair], item->expert);
                cr_assert_eq(work.token[i], pair / 4);
                cr_assert_not(seen[pair]);
                cr_assert(i == item->begin || work.pair[i - 1] < pair, "tokens ascend");
                seen[pair] = true;
            }
            at = item->end;
        }
        cr_assert_eq(at, 96);
    }
}

static const double alike[] = {1, 1, 1, 1, 1, 1, 1, 1};

/* Experts 0 and 1 can only be on node 0; 2 and 3 may go anywhere, and go to node 1. */
Test(dispatch, choice_fills_what_necessity_leaves)
{
    const uint64_t holders[] = {1, 1, 3, 3};
    const int32_t ids[] = {2, 0, 3, 1};
    dispatch_build(ids, 1, 4, 4, &work);
    dispatch_share(&work, holders, 2, alike, 0);
    expect_items((struct dispatch_item[]){{0, 0, 1, 0}, {1, 1, 2, 1}}, 2);
    dispatch_build(ids, 1, 4, 4, &work);
    dispatch_share(&work, holders, 2, alike, 1);
    expect_items((struct dispatch_item[]){{2, 2, 3, 0}, {3, 3, 4, 1}}, 2);
}

/* With three times the bandwidth a node takes three of four. */
Test(dispatch, follows_shares)
{
    const uint64_t holders[] = {3, 3, 3, 3};
    const int32_t ids[] = {0, 1, 2, 3};
    dispatch_build(ids, 1, 4, 4, &work);
    dispatch_share(&work, holders, 2, (double[]){0.25, 0.75}, 1);
    cr_assert_eq(work.n_item, 3);
    cr_assert_eq(work.n_pair, 3);
}

/* 200 tokens for one expert on both nodes: pieces of 64 in turn, 64 + 64 and 64 + 8. */
Test(dispatch, cuts_large_groups)
{
    int32_t ids[200] = {0};
    dispatch_build(ids, 200, 1, 1, &work);
    dispatch_share(&work, (uint64_t[]){3}, 2, alike, 0);
    expect_items((struct dispatch_item[]){{0, 0, 64, 0}, {0, 128, 192, 64}}, 2);
    cr_assert_eq(work.n_pair, 128);
    dispatch_build(ids, 200, 1, 1, &work);
    dispatch_share(&work, (uint64_t[]){3}, 2, alike, 1);
    expect_items((struct dispatch_item[]){{0, 64, 128, 0}, {0, 192, 200, 64}}, 2);
}

/* Any holders, any picks: each pair is on exactly one node, on a holder of its expert, and rows are
 * numbered without gaps. */
Test(dispatch, nodes_divide_all_pairs)
{
    for (unsigned round = 0; round < 300; round++) {
        const unsigned n_node = 1 + any(8), n_expert = 1 + any(64), n_token = 1 + any(250);
        uint64_t holders[64];
        int32_t ids[500];
        unsigned char n_seen[500] = {0};
        for (unsigned ie = 0; ie < n_expert; ie++) {
            holders[ie] = 1 + any((1u << n_node) - 1);
        }
        for (unsigned i = 0; i < 2 * n_token; i++) {
            ids[i] = (int32_t)any(any(4) == 0 ? n_expert : 1 + n_expert / 4);
        }
        for (unsigned in = 0; in < n_node; in++) {
            uint32_t row = 0;
            dispatch_build(ids, n_token, 2, n_expert, &work);
            dispatch_share(&work, holders, n_node, alike, in);
            cr_assert_leq(work.n_item, dispatch_max_items(n_expert, 2 * n_token));
            for (unsigned a = 0; a < work.n_item; a++) {
                const struct dispatch_item *item = &work.item[a];
                cr_assert(holders[item->expert] >> in & 1, "only on a holder");
                cr_assert_eq(item->row, row);
                row += item->end - item->begin;
                for (uint32_t i = item->begin; i < item->end; i++) {
                    cr_assert_eq((uint32_t)ids[work.pair[i]], item->expert);
                    n_seen[work.pair[i]]++;
                }
            }
            cr_assert_eq(row, work.n_pair);
        }
        for (unsigned i = 0; i < 2 * n_token; i++) {
            cr_assert_eq(n_seen[i], 1, "pair %u is on %u nodes", i, n_seen[i]);
        }
    }
}

/* Every expert everywhere: no node has more than its part and one expert. */
Test(dispatch, is_balanced_where_it_can_be)
{
    uint64_t holders[64];
    int32_t ids[64];
    for (unsigned n_node = 1; n_node <= 8; n_node++) {
        for (unsigned ie = 0; ie < 64; ie++) {
            holders[ie] = (UINT64_C(1) << n_node) - 1;
        }
        for (unsigned n_used = 1; n_used <= 64; n_used += 7) {
            for (unsigned i = 0; i < n_used; i++) {
                ids[i] = (int32_t)i;
            }
            for (unsigned in = 0; in < n_node; in++) {
                dispatch_build(ids, 1, n_used, 64, &work);
                dispatch_share(&work, holders, n_node, alike, in);
                cr_assert(work.n_pair == n_used / n_node || work.n_pair == n_used / n_node + 1);
            }
        }
    }
}
