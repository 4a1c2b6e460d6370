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

/* A damaged model may give NaN: ids stay ids. */
Test(router, nan_gives_valid_ids)
{
    const struct router_params p = {.gating = ROUTER_SOFTMAX,
                                    .group_rule = GROUP_BEST,
                                    .n_group = 2,
                                    .n_group_used = 1,
                                    .scale = 1};
    const float logits[] = {NAN, 1, NAN, NAN};
    struct choice c = choose(&p, 4, 3, logits, NULL);
    for (unsigned i = 0; i < 3; i++) {
        cr_assert(c.ids[i] >= 0 && c.ids[i] < 4);
    }
}

/* ------------------------------------------------------------------ dispatch */

static uint32_t expert[64], begin_at[65], token_of[512], pair_of[512];
static struct dispatch work = {0, expert, begin_at, token_of, pair_of};

Test(dispatch, worked_example)
{
    const int32_t ids[] = {2, 0, 0, 3}; /* two tokens, two choices */
    dispatch_build(ids, 2, 2, 4, &work);
    cr_assert_eq(work.n_active, 3);
    cr_assert_arr_eq(work.expert, ((uint32_t[]){0, 2, 3}), sizeof(uint32_t[3]));
    cr_assert_arr_eq(work.begin, ((uint32_t[]){0, 2, 3, 4}), sizeof(uint32_t[4]));
    cr_assert_arr_eq(work.token, ((uint32_t[]){0, 1, 0, 1}), sizeof(uint32_t[4]));
    cr_assert_arr_eq(work.pair, ((uint32_t[]){1, 2, 0, 3}), sizeof(uint32_t[4]));
}

Test(dispatch, every_pair_once_with_its_expert)
{
    uint32_t state = 1;
    for (unsigned n_expert = 1; n_expert <= 64; n_expert += 3) {
        int32_t ids[96];
        bool seen[96] = {false};
        for (unsigned i = 0; i < 96; i++) {
            state = state * 1664525u + 1013904223u;
            ids[i] = (int32_t)((state >> 8) % n_expert);
        }
        dispatch_build(ids, 24, 4, n_expert, &work);
        cr_assert_eq(work.begin[0], 0);
        cr_assert_eq(work.begin[work.n_active], 96);
        for (unsigned a = 0; a < work.n_active; a++) {
            cr_assert_lt(work.begin[a], work.begin[a + 1], "an active expert has work");
            cr_assert(a == 0 || work.expert[a - 1] < work.expert[a]);
            for (uint32_t i = work.begin[a]; i < work.begin[a + 1]; i++) {
                const uint32_t pair = work.pair[i];
                cr_assert_eq((uint32_t)ids[pair], work.expert[a]);
                cr_assert_eq(work.token[i], pair / 4);
                cr_assert_not(seen[pair]);
                cr_assert(i == work.begin[a] || work.pair[i - 1] < pair, "tokens ascend");
                seen[pair] = true;
            }
        }
    }
}
