/* The sampler against distributions computed by hand, and its generator against published values.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <math.h>
#include <string.h>

#include "numoe/numoe.h"
#include "runtime/sampler.h"

#define N_DRAW 40000

static numoe_sampler *new_sampler(const numoe_sampler_params *params, size_t n_vocab)
{
    numoe_sampler *s = NULL;
    numoe_error err = {0};
    cr_assert(numoe_sampler_new(params, n_vocab, &s, &err) == NUMOE_OK, "%s", err.text);
    return s;
}

static numoe_sampler_params stochastic(float temperature)
{
    numoe_sampler_params p;
    numoe_sampler_params_init(&p);
    p.temperature = temperature;
    p.seed = 42;
    return p;
}

/* Draws N_DRAW times and requires each token's frequency within 5 standard deviations of its
 * probability; a token of probability 0 must never come. */
static void check_distribution(const numoe_sampler_params *params, const float *logits,
                               const double *probability, size_t n, const int32_t *history,
                               size_t n_history)
{
    size_t count[16] = {0};
    numoe_sampler *s = new_sampler(params, n);

    for (size_t i = 0; i < N_DRAW; i++) {
        int32_t id = numoe_sampler_pick(s, logits, history, n_history);
        cr_assert(id >= 0 && (size_t)id < n, "id %d", id);
        count[id]++;
    }
    numoe_sampler_free(s);
    for (size_t i = 0; i < n; i++) {
        double p = probability[i], expected = p * N_DRAW;
        double deviation = sqrt(N_DRAW * p * (1 - p));
        cr_expect(fabs((double)count[i] - expected) <= 5 * deviation,
                  "token %zu came %zu times, expected %.1f +- %.1f", i, count[i], expected,
                  deviation);
    }
}

/* Logits whose softmax is 0.4, 0.3, 0.15, 0.1, 0.05, out of order. */
static const double five_p[5] = {0.1, 0.4, 0.05, 0.3, 0.15};

static void fill_five(float logits[5])
{
    for (int i = 0; i < 5; i++) {
        logits[i] = (float)log(five_p[i]) + 3;
    }
}

Test(sampler, random_numbers_are_splitmix64)
{
    uint64_t state = 1234567;
    static const uint64_t published[] = {
        UINT64_C(6457827717110365317),  UINT64_C(3203168211198807973),
        UINT64_C(9817491932198370423),  UINT64_C(4593380528125082431),
        UINT64_C(16408922859458223821),
    };
    for (size_t i = 0; i < 5; i++) {
        cr_expect(eq(u64, sampler_random(&state), published[i]));
    }
}

Test(sampler, weights_are_the_exponential)
{
    double one = ldexp(1, SAMPLER_WEIGHT_BITS);

    cr_expect(eq(u64, sampler_weight(0), UINT64_C(1) << SAMPLER_WEIGHT_BITS));
    for (double x = -1e-9; x > -27; x = x * 1.07 - 1e-3) {
        double expected = exp(x) * one;
        cr_expect(fabs((double)sampler_weight(x) - expected) <= 1 + expected * 1e-13, "exp(%g)", x);
    }
    cr_expect(eq(u64, sampler_weight(-28), 0));
    cr_expect(eq(u64, sampler_weight(-1e30), 0));
    cr_expect(eq(u64, sampler_weight(-INFINITY), 0));
}

Test(sampler, greedy_takes_the_best_and_the_lowest_of_equals)
{
    numoe_sampler_params p;
    numoe_sampler_params_init(&p);
    numoe_sampler *s = new_sampler(&p, 6);
    const float a[] = {-1, 2, 7, 7, -INFINITY, 6.9f}, b[] = {-5, -5, -5, -5, -5, -5};

    cr_expect(eq(i32, numoe_sampler_pick(s, a, NULL, 0), 2));
    cr_expect(eq(i32, numoe_sampler_pick(s, b, NULL, 0), 0));
    numoe_sampler_free(s);
}

Test(sampler, temperature_is_softmax)
{
    float logits[5];
    double half[5], sum = 0;
    numoe_sampler_params p = stochastic(1);

    fill_five(logits);
    check_distribution(&p, logits, five_p, 5, NULL, 0);
    /* At temperature 0.5 probabilities go with their squares. */
    for (int i = 0; i < 5; i++) {
        sum += five_p[i] * five_p[i];
    }
    for (int i = 0; i < 5; i++) {
        half[i] = five_p[i] * five_p[i] / sum;
    }
    p = stochastic(0.5f);
    check_distribution(&p, logits, half, 5, NULL, 0);
}

Test(sampler, top_k_keeps_k)
{
    float logits[5];
    numoe_sampler_params p = stochastic(1);

    fill_five(logits);
    p.top_k = 2;
    check_distribution(&p, logits, (double[]){0, 4.0 / 7, 0, 3.0 / 7, 0}, 5, NULL, 0);
    p.top_k = 1;
    check_distribution(&p, logits, (double[]){0, 1, 0, 0, 0}, 5, NULL, 0);
    p.top_k = 100;
    check_distribution(&p, logits, five_p, 5, NULL, 0);
}

Test(sampler, top_k_of_equals_keeps_low_ids)
{
    const float logits[6] = {1, 3, 3, 3, 3, 0};
    numoe_sampler_params p = stochastic(1);

    p.top_k = 2;
    check_distribution(&p, logits, (double[]){0, 0.5, 0.5, 0, 0, 0}, 6, NULL, 0);
}

Test(sampler, top_p_keeps_the_smallest_set_that_reaches_p)
{
    float logits[5];
    numoe_sampler_params p = stochastic(1);

    fill_five(logits);
    p.top_p = 0.69f; /* 0.4 + 0.3 */
    check_distribution(&p, logits, (double[]){0, 4.0 / 7, 0, 3.0 / 7, 0}, 5, NULL, 0);
    p.top_p = 0.71f; /* needs 0.15 too */
    check_distribution(&p, logits, (double[]){0, 0.4 / 0.85, 0, 0.3 / 0.85, 0.15 / 0.85}, 5, NULL,
                       0);
    p.top_p = 0; /* one always remains */
    check_distribution(&p, logits, (double[]){0, 1, 0, 0, 0}, 5, NULL, 0);
}

/* Of the three that top-k leaves (0.4, 0.3, 0.15) two have 0.82 of what is left, but only 0.7 of
 * all. */
Test(sampler, top_p_counts_what_top_k_left)
{
    float logits[5];
    numoe_sampler_params p = stochastic(1);

    fill_five(logits);
    p.top_k = 3;
    p.top_p = 0.8f;
    check_distribution(&p, logits, (double[]){0, 4.0 / 7, 0, 3.0 / 7, 0}, 5, NULL, 0);
}

Test(sampler, top_p_ignores_the_temperature)
{
    float logits[5];
    numoe_sampler_params p = stochastic(1000);

    fill_five(logits);
    p.top_p = 0.69f;
    check_distribution(&p, logits, (double[]){0, 0.5, 0, 0.5, 0}, 5, NULL, 0);
    p.top_p = 0.94f;
    check_distribution(&p, logits, (double[]){0.25, 0.25, 0, 0.25, 0.25}, 5, NULL, 0);
}

Test(sampler, min_p_is_relative_to_the_best)
{
    float logits[5];
    numoe_sampler_params p = stochastic(1);

    fill_five(logits);
    p.min_p = 0.37f; /* 0.148 of all: 0.15 stays */
    check_distribution(&p, logits, (double[]){0, 0.4 / 0.85, 0, 0.3 / 0.85, 0.15 / 0.85}, 5, NULL,
                       0);
    p.min_p = 0.38f; /* 0.152 */
    check_distribution(&p, logits, (double[]){0, 4.0 / 7, 0, 3.0 / 7, 0}, 5, NULL, 0);
    p.min_p = 1;
    check_distribution(&p, logits, (double[]){0, 1, 0, 0, 0}, 5, NULL, 0);
}

Test(sampler, min_p_may_leave_one)
{
    float logits[5];
    numoe_sampler_params p = stochastic(1);

    fill_five(logits);
    p.min_p = 0.8f;
    p.top_k = 4;
    check_distribution(&p, logits, (double[]){0, 1, 0, 0, 0}, 5, NULL, 0);
}

/* Top-p comes first: of all tokens four are needed for 0.94. Were the ones below min-p gone before,
 * three would do. */
Test(sampler, min_p_comes_after_top_p)
{
    float logits[5];
    numoe_sampler_params p = stochastic(1);

    fill_five(logits);
    p.top_p = 0.84f;
    p.min_p = 0.3f;
    check_distribution(&p, logits, (double[]){0, 0.4 / 0.85, 0, 0.3 / 0.85, 0.15 / 0.85}, 5, NULL,
                       0);
}

Test(sampler, penalty_divides_positive_and_multiplies_negative_logits_once)
{
    const float logits[4] = {2, 1.5f, -1, -1.5f};
    const int32_t history[] = {1, 0, 2, 0, 0, 99, -3};
    numoe_sampler_params p;

    numoe_sampler_params_init(&p);
    p.repeat_penalty = 2; /* 1, 0.75, -2, -1.5 */
    numoe_sampler *s = new_sampler(&p, 4);
    cr_expect(eq(i32, numoe_sampler_pick(s, logits, history, 7), 0));
    numoe_sampler_free(s);

    p = stochastic(1);
    p.repeat_penalty = 2;
    double e[4] = {exp(1), exp(0.75), exp(-2), exp(-1.5)}, sum = e[0] + e[1] + e[2] + e[3];
    check_distribution(&p, logits, (double[]){e[0] / sum, e[1] / sum, e[2] / sum, e[3] / sum}, 4,
                       history, 7);
}

/* 3 is not in the history, and wins where 0, 1 and 2 all are punished. */
Test(sampler, penalty_looks_back_so_far)
{
    const float logits[4] = {2, 1.9f, 1.8f, 1.5f};
    const int32_t history[] = {0, 1, 2};
    static const struct {
        unsigned repeat_last;
        size_t n_history;
        int32_t expected;
    } cases[] = {{3, 3, 3}, {2, 3, 0}, {64, 3, 3}, {2, 2, 2}, {0, 3, 0}, {64, 0, 0}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        numoe_sampler_params p;
        numoe_sampler_params_init(&p);
        p.repeat_penalty = 1.5f;
        p.repeat_last = cases[i].repeat_last;
        numoe_sampler *s = new_sampler(&p, 4);
        int32_t id = numoe_sampler_pick(s, logits, history, cases[i].n_history);
        cr_expect(id == cases[i].expected, "case %zu: %d", i, id);
        numoe_sampler_free(s);
    }
}

Test(sampler, same_seed_same_choices)
{
    float logits[5];
    numoe_sampler_params p = stochastic(1);
    int32_t first[64];
    size_t n_other = 0;

    fill_five(logits);
    for (int round = 0; round < 3; round++) {
        p.seed = round < 2 ? 7 : 8;
        numoe_sampler *s = new_sampler(&p, 5);
        for (size_t i = 0; i < 64; i++) {
            int32_t id = numoe_sampler_pick(s, logits, NULL, 0);
            if (round == 0) {
                first[i] = id;
            } else if (round == 1) {
                cr_expect(eq(i32, id, first[i]));
            }
            n_other += id != first[i];
        }
        numoe_sampler_free(s);
    }
    cr_expect(n_other > 10, "another seed chose differently only %zu times", n_other);
}

/* With equal weights the upper bit of a draw decides between two: the choice is known beforehand.
 */
Test(sampler, one_draw_a_pick)
{
    const float logits[4] = {-INFINITY, 1, -INFINITY, 1};
    numoe_sampler_params p = stochastic(0.3f);
    uint64_t state = 1234567;

    p.seed = 1234567;
    numoe_sampler *s = new_sampler(&p, 4);
    for (int i = 0; i < 100; i++) {
        int32_t expected = sampler_random(&state) >> 63 ? 3 : 1;
        cr_expect(eq(i32, numoe_sampler_pick(s, logits, NULL, 0), expected));
    }
    numoe_sampler_free(s);
}

Test(sampler, nothing_to_choose_by)
{
    static const float bad[][3] = {
        {1, NAN, 2},
        {1, INFINITY, 2},
        {-INFINITY, -INFINITY, -INFINITY},
        {NAN, NAN, NAN},
    };
    for (int hot = 0; hot < 2; hot++) {
        numoe_sampler_params p = stochastic(hot ? 1 : 0);
        p.top_k = 2;
        numoe_sampler *s = new_sampler(&p, 3);
        for (size_t i = 0; i < 4; i++) {
            cr_expect(eq(i32, numoe_sampler_pick(s, bad[i], NULL, 0), -1));
        }
        numoe_sampler_free(s);
    }
}

/* Every top-k of every small vocabulary, whose logits are a permutation of 0 .. n-1. */
Test(sampler, small_vocabularies)
{
    for (int32_t n = 1; n <= 12; n++) {
        for (int32_t k = 1; k <= n; k++) {
            float logits[12];
            unsigned seen = 0, expected = 0;
            numoe_sampler_params p = stochastic(1000);
            for (int32_t i = 0; i < n; i++) {
                int32_t rank = (i * 5 + 3) % n; /* a permutation unless n is 5 or 10 */
                rank = n % 5 ? rank : n - 1 - i;
                logits[i] = (float)rank;
                expected |= rank >= n - k ? 1u << i : 0;
            }
            p.top_k = (unsigned)k;
            numoe_sampler *s = new_sampler(&p, (size_t)n);
            for (int i = 0; i < 400; i++) {
                seen |= 1u << numoe_sampler_pick(s, logits, NULL, 0);
            }
            cr_expect(seen == expected, "%d of %d: %x, not %x", k, n, seen, expected);
            numoe_sampler_free(s);
        }
    }
}

/* The heap gives the same set as sorting, over a vocabulary of real size. */
Test(sampler, large_vocabulary)
{
    enum { N = 130000, K = 40 };
    static float logits[N];
    static unsigned char is_top[N];
    uint64_t state = 5;
    numoe_sampler_params p = stochastic(2);

    for (size_t i = 0; i < N; i++) {
        logits[i] = (float)(sampler_random(&state) >> 40) * 1e-6f;
    }
    for (int k = 0; k < K; k++) {
        size_t best = N;
        for (size_t i = 0; i < N; i++) {
            best = !is_top[i] && (best == N || logits[i] > logits[best]) ? i : best;
        }
        is_top[best] = 1;
    }
    p.top_k = K;
    numoe_sampler *s = new_sampler(&p, N);
    static unsigned count[N];
    size_t n_seen = 0;
    for (int i = 0; i < 600; i++) {
        int32_t id = numoe_sampler_pick(s, logits, NULL, 0);
        cr_assert(is_top[id], "token %d is not among the best", id);
        n_seen += count[id]++ == 0;
    }
    numoe_sampler_free(s);
    cr_expect(n_seen > K / 2, "only %zu of %d were ever chosen", n_seen, (int)K);
}

Test(sampler, wrong_parameters_are_named)
{
    static const struct {
        const char *name;
        numoe_sampler_params params;
    } cases[] = {
        {"temperature", {.temperature = -1, .top_p = 1, .repeat_penalty = 1}},
        {"temperature", {.temperature = NAN, .top_p = 1, .repeat_penalty = 1}},
        {"top-p", {.top_p = 1.5f, .repeat_penalty = 1}},
        {"min-p", {.min_p = -0.1f, .top_p = 1, .repeat_penalty = 1}},
        {"repetition penalty", {.top_p = 1, .repeat_penalty = 0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        numoe_sampler *s = NULL;
        numoe_error err;
        cr_expect(numoe_sampler_new(&cases[i].params, 8, &s, &err) == NUMOE_E_INPUT);
        cr_expect(strstr(err.text, cases[i].name) != NULL, "%s", err.text);
        cr_expect(s == NULL);
    }
}
