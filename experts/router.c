/* Router selection: gating function, selection bias, group rule, top-k, normalisation, scale. What
 * the variants are called in the papers: softmax greedy (DeepSeek-V2-Lite), group-limited greedy
 * (V2), auxiliary-loss-free with grouped top-k (V3), softmax of the selected (Mixtral, gpt-oss).
 */
#include "experts/router.h"

#include <math.h>
#include <string.h>

static void softmax(const float *x, unsigned n, float *y)
{
    float max = x[0], sum = 0;
    for (unsigned i = 1; i < n; i++) {
        max = fmaxf(max, x[i]);
    }
    for (unsigned i = 0; i < n; i++) {
        y[i] = expf(x[i] - max);
        sum += y[i];
    }
    for (unsigned i = 0; i < n; i++) {
        y[i] /= sum;
    }
}

/* What weights are made of: probabilities, or plain logits where softmax comes after selection. */
static void gate(const struct router_params *p, unsigned n, const float *logits, float *score)
{
    switch (p->gating) {
    case ROUTER_SOFTMAX:
        softmax(logits, n, score);
        break;
    case ROUTER_SIGMOID:
        for (unsigned i = 0; i < n; i++) {
            score[i] = 1 / (1 + expf(-logits[i]));
        }
        break;
    case ROUTER_SOFTMAX_OF_TOPK:
        memcpy(score, logits, n * sizeof *score);
        break;
    }
}

/* What does not compare comes last, so that NaN is free to mark what is taken: experts are distinct
 * whatever a damaged model computes. */
static float as_choice(float x)
{
    return isnan(x) ? -INFINITY : x;
}

/* The highest of choice[n] not yet taken, the lower index of equals; marks it. Not all are taken.
 */
static unsigned take_best(float *choice, unsigned n)
{
    unsigned best = n;
    for (unsigned i = 0; i < n; i++) {
        if (!isnan(choice[i]) && (best == n || choice[i] > choice[best])) {
            best = i;
        }
    }
    choice[best] = NAN;
    return best;
}

static float group_score(enum group_rule rule, const float *choice, unsigned n)
{
    float best = -INFINITY, second = -INFINITY;
    for (unsigned i = 0; i < n; i++) {
        if (choice[i] > best) {
            second = best;
            best = choice[i];
        } else if (choice[i] > second) {
            second = choice[i];
        }
    }
    return rule == GROUP_BEST_TWO && n > 1 ? best + second : best;
}

/* Experts outside the best groups are not chosen. */
static void limit_groups(const struct router_params *p, unsigned n, float *choice, float *group)
{
    const unsigned n_each = n / p->n_group;
    for (unsigned g = 0; g < p->n_group; g++) {
        group[g] = as_choice(group_score(p->group_rule, choice + g * n_each, n_each));
    }
    for (unsigned i = 0; i < p->n_group_used; i++) {
        take_best(group, p->n_group);
    }
    for (unsigned i = 0; i < n; i++) {
        if (!isnan(group[i / n_each])) {
            choice[i] = -INFINITY;
        }
    }
}

static void finish_weights(const struct router_params *p, unsigned n_used, float *weights)
{
    if (p->gating == ROUTER_SOFTMAX_OF_TOPK) {
        softmax(weights, n_used, weights);
    }
    float sum = 0;
    for (unsigned i = 0; i < n_used; i++) {
        sum += weights[i];
    }
    for (unsigned i = 0; i < n_used; i++) {
        weights[i] = (p->norm_topk ? weights[i] / (sum + 1e-20f) : weights[i]) * p->scale;
    }
}

size_t router_scratch_floats(const struct router_params *p, unsigned n_expert)
{
    return 2 * (size_t)n_expert + (p->group_rule == GROUP_NONE ? 0 : p->n_group);
}

void router_select(const struct router_params *p, unsigned n_expert, unsigned n_used,
                   const float *logits, const float *select_bias, float *scratch, int32_t *ids,
                   float *weights)
{
    float *score = scratch, *choice = scratch + n_expert, *group = choice + n_expert;
    gate(p, n_expert, logits, score);
    for (unsigned i = 0; i < n_expert; i++) {
        choice[i] = as_choice(select_bias == NULL ? score[i] : score[i] + select_bias[i]);
    }
    if (p->group_rule != GROUP_NONE && p->n_group_used < p->n_group) {
        limit_groups(p, n_expert, choice, group);
    }
    for (unsigned i = 0; i < n_used; i++) {
        const unsigned best = take_best(choice, n_expert);
        ids[i] = (int32_t)best;
        weights[i] = score[best];
    }
    finish_weights(p, n_used, weights);
}
