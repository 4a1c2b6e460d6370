/* Choosing a token from logits. Owns no knowledge of models or sessions.
 *
 * A choice is the same on every machine: probabilities are whole numbers in units of 2^-40 of the
 * best token's (made with the four operations only, never the C library's exp), their sums are
 * exact whatever the order, and one draw of a 64-bit generator decides. No step sorts the
 * vocabulary: all filters keep a prefix of the falling order, so a heap gives just as many tokens
 * as they keep. */
#include "runtime/sampler.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

struct candidate {
    float logit;
    int32_t id;
};

struct numoe_sampler {
    numoe_sampler_params params;
    uint64_t random; /* state of the generator: one draw a pick, none when greedy */
    size_t n_vocab;
    float *logit;           /* [n_vocab] after the penalty */
    struct candidate *cand; /* [n_vocab] */
};

uint64_t sampler_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* exp(x) = 2^-n * exp(z) with |z| <= ln(2) / 2, where the Taylor polynomial of degree 11 is exact
 * to 2^-46. */
uint64_t sampler_weight(double x)
{
    static const double ln2 = 0.69314718055994530942, per_ln2 = 1.44269504088896340736;
    static const double coef[] = {
        1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720,
        1.0 / 120,      1.0 / 24,      1.0 / 6,      1.0 / 2,     1.0,        1.0,
    };
    double sum = 0;

    if (!(x > -SAMPLER_WEIGHT_BITS)) { /* exp(-40) is 2^-57 */
        return 0;
    }
    unsigned n = (unsigned)(0.5 - x * per_ln2);
    double z = x + n * ln2;
    for (size_t i = 0; i < ARRAY_LEN(coef); i++) {
        sum = sum * z + coef[i];
    }
    return (uint64_t)(sum * (double)(UINT64_C(1) << SAMPLER_WEIGHT_BITS)) >> n;
}

/* ------------------------------------------------------------------ new and free */

void numoe_sampler_params_init(numoe_sampler_params *params)
{
    *params = (numoe_sampler_params){.top_p = 1, .repeat_penalty = 1, .repeat_last = 64};
}

static numoe_status check_range(const char *name, float value, float min, float max,
                                numoe_error *err)
{
    if (value >= min && value <= max) {
        return NUMOE_OK;
    }
    return status_fail(err, NUMOE_E_INPUT, "%s is %g, possible are %g to %g", name, (double)value,
                       (double)min, (double)max);
}

numoe_status numoe_sampler_new(const numoe_sampler_params *params, size_t n_vocab,
                               numoe_sampler **sampler, numoe_error *err)
{
    numoe_sampler *s;

    FORWARD_IF(check_range("temperature", params->temperature, 0, 1000, err));
    FORWARD_IF(check_range("top-p", params->top_p, 0, 1, err));
    FORWARD_IF(check_range("min-p", params->min_p, 0, 1, err));
    FORWARD_IF(check_range("repetition penalty", params->repeat_penalty, 0.01f, 100, err));
    FORWARD_IF(mem_new(&s, 1, sizeof *s, "sampler", err));
    s->params = *params;
    s->random = params->seed;
    s->n_vocab = n_vocab;
    numoe_status status = mem_new(&s->logit, n_vocab, sizeof *s->logit, "sampler", err);
    if (status == NUMOE_OK) {
        status = mem_new(&s->cand, n_vocab, sizeof *s->cand, "sampler", err);
    }
    if (status != NUMOE_OK) {
        numoe_sampler_free(s);
        return status;
    }
    *sampler = s;
    return NUMOE_OK;
}

void numoe_sampler_free(numoe_sampler *sampler)
{
    if (!sampler) {
        return;
    }
    mem_free(sampler->logit);
    mem_free(sampler->cand);
    mem_free(sampler);
}

/* ------------------------------------------------------------------ falling order, as far as
 * needed */

/* cand [n]: the last n_ranked are in rising order, the best at the end; the rest is a heap whose
 * root is the best that is not ranked yet. */
struct ranking {
    struct candidate *cand;
    size_t n, n_ranked;
};

/* Higher logit first, lower id among equals. */
static bool is_better(struct candidate a, struct candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static void sift_down(struct candidate *heap, size_t n, size_t i)
{
    struct candidate moving = heap[i];

    for (size_t child = 2 * i + 1; child < n; child = 2 * i + 1) {
        if (child + 1 < n && is_better(heap[child + 1], heap[child])) {
            child++;
        }
        if (!is_better(heap[child], moving)) {
            break;
        }
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = moving;
}

static void ranking_init(struct ranking *r, struct candidate *cand, size_t n)
{
    *r = (struct ranking){.cand = cand, .n = n};
    for (size_t i = n / 2; i-- > 0;) {
        sift_down(cand, n, i);
    }
}

/* The i-th best, i < n. */
static struct candidate ranking_get(struct ranking *r, size_t i)
{
    while (r->n_ranked <= i) {
        size_t last = r->n - 1 - r->n_ranked;
        struct candidate best = r->cand[0];
        r->cand[0] = r->cand[last];
        r->cand[last] = best;
        r->n_ranked++;
        sift_down(r->cand, last, 0);
    }
    return r->cand[r->n - 1 - i];
}

/* ------------------------------------------------------------------ pick */

/* s->logit [n_vocab]. A token that stands in the history many times is punished once. */
static void apply_penalty(numoe_sampler *s, const float *logits, const int32_t *history,
                          size_t n_history)
{
    float penalty = s->params.repeat_penalty;
    size_t n = MIN(n_history, (size_t)s->params.repeat_last);

    memcpy(s->logit, logits, s->n_vocab * sizeof *logits);
    if (penalty == 1) {
        return;
    }
    for (size_t i = n_history - n; i < n_history; i++) {
        int32_t id = history[i];
        if (id >= 0 && (size_t)id < s->n_vocab) {
            s->logit[id] = logits[id] > 0 ? logits[id] / penalty : logits[id] * penalty;
        }
    }
}

/* The lowest id of the highest logit; -1 if the logits are no ground to choose on. */
static int32_t find_best(const float *logit, size_t n)
{
    float best = -INFINITY;
    int32_t id = -1;

    for (size_t i = 0; i < n; i++) {
        if (!(logit[i] < INFINITY)) {
            return -1;
        }
        if (logit[i] > best) {
            best = logit[i];
            id = (int32_t)i;
        }
    }
    return id;
}

static uint64_t weight_of(const struct candidate *c, float best, float temperature)
{
    return sampler_weight(((double)c->logit - (double)best) / (double)temperature);
}

/* min-p: at least that part of the best token's probability. */
static bool is_likely(const numoe_sampler *s, const struct candidate *c, float best)
{
    return s->params.min_p == 0 ||
           (double)weight_of(c, best, 1) >= (double)s->params.min_p * (double)sampler_weight(0);
}

/* Candidates are the tokens that are possible at all, in order of their ids. */
static size_t gather(numoe_sampler *s)
{
    size_t n = 0;

    for (size_t i = 0; i < s->n_vocab; i++) {
        if (s->logit[i] > -INFINITY) {
            s->cand[n++] = (struct candidate){.logit = s->logit[i], .id = (int32_t)i};
        }
    }
    return n;
}

/* min-p where no other filter wants the falling order. */
static size_t keep_likely(numoe_sampler *s, size_t n, float best)
{
    size_t n_kept = 0;

    for (size_t i = 0; i < n; i++) {
        if (is_likely(s, &s->cand[i], best)) {
            s->cand[n_kept++] = s->cand[i];
        }
    }
    return n_kept;
}

/* How many of the ranking top-k, top-p and min-p keep, at least one; those are ranked then. */
static size_t keep_top(const numoe_sampler *s, struct ranking *r, float best)
{
    size_t limit = s->params.top_k ? MIN((size_t)s->params.top_k, r->n) : r->n;
    uint64_t total = 0, sum = 0;
    size_t n = 0;

    if (s->params.top_k) {
        (void)ranking_get(r, limit - 1);
    }
    for (size_t i = r->n - limit; i < r->n; i++) {
        total += weight_of(&r->cand[i], best, 1);
    }
    double enough = (double)s->params.top_p * (double)total;
    do {
        struct candidate c = ranking_get(r, n++);
        sum += weight_of(&c, best, 1);
    } while (n < limit && (double)sum < enough);
    while (n > 1 && !is_likely(s, &r->cand[r->n - n], best)) {
        n--;
    }
    return n;
}

/* One of cand [n] with probability in proportion to its weight. */
static int32_t draw(numoe_sampler *s, const struct candidate *cand, size_t n, float best)
{
    uint64_t total = 0;

    for (size_t i = 0; i < n; i++) {
        total += weight_of(&cand[i], best, s->params.temperature);
    }
    /* The upper half of a 64 x 64 bit product divides the generator's range into `total` parts;
     * with total below 2^58 none differs from another by more than what 2^-40 units round anyway.
     */
    uint64_t left = (uint64_t)(((unsigned __int128)sampler_random(&s->random) * total) >> 64);
    size_t i = 0;
    for (uint64_t w; left >= (w = weight_of(&cand[i], best, s->params.temperature)); i++) {
        left -= w;
    }
    return cand[i].id;
}

int32_t numoe_sampler_pick(numoe_sampler *sampler, const float *logits, const int32_t *history,
                           size_t n_history)
{
    numoe_sampler *s = sampler;

    apply_penalty(s, logits, history, n_history);
    int32_t best_id = find_best(s->logit, s->n_vocab);
    if (best_id < 0 || s->params.temperature == 0) {
        return best_id;
    }
    float best = s->logit[best_id];
    size_t n = gather(s);
    if (s->params.top_k == 0 && s->params.top_p >= 1) {
        return draw(s, s->cand, keep_likely(s, n, best), best);
    }
    struct ranking r;
    ranking_init(&r, s->cand, n);
    size_t n_kept = keep_top(s, &r, best);
    return draw(s, r.cand + r.n - n_kept, n_kept, best);
}
