/* Perplexity: exp of the mean negative log likelihood of the tokens in the second half of each
 * window, so that every scored token has at least half a window before it. Windows do not know each
 * other and are evaluated several at a time. */
#include <math.h>
#include <stdlib.h>

#include "cli/eval.h"

struct score {
    double sum, sum_squares; /* of negative log likelihoods */
    size_t n;
};

/* One of the windows that are evaluated together. */
struct window {
    numoe_session *session;
    const int32_t *token; /* [tokens of a window] */
    unsigned n_vocab;
    struct score score;
};

struct perplexity {
    numoe_engine *engine;
    size_t n_token, n_window; /* tokens of a window, windows of the text */
    struct ids ids;           /* whole windows, BOS in place */
    struct window *window;    /* [n_parallel] */
    numoe_session **session;  /* the same sessions, as numoe_step() takes them */
    size_t n_parallel;
    struct score score;
    bool quiet;
    struct progress progress;
    double start_seconds, seconds;
};

/* -log softmax(logits)[id] */
static double negative_log_likelihood(const float *logits, unsigned n_vocab, int32_t id)
{
    float max = logits[0];
    double sum = 0;

    for (unsigned i = 1; i < n_vocab; i++) {
        max = logits[i] > max ? logits[i] : max;
    }
    for (unsigned i = 0; i < n_vocab; i++) {
        sum += (double)expf(logits[i] - max);
    }
    return log(sum) - ((double)logits[id] - (double)max);
}

static void on_logits(void *arg, size_t position, const float *logits)
{
    struct window *w = arg;
    double nll = negative_log_likelihood(logits, w->n_vocab, w->token[position + 1]);

    w->score.sum += nll;
    w->score.sum_squares += nll * nll;
    w->score.n++;
}

static void add_score(struct score *to, const struct score *s)
{
    to->sum += s->sum;
    to->sum_squares += s->sum_squares;
    to->n += s->n;
}

/* The standard error of the mean, carried through exp. */
static void summarize(const struct score *s, double *perplexity, double *error)
{
    double n = (double)s->n, mean = s->sum / n;
    double variance = s->sum_squares / n - mean * mean;

    *perplexity = exp(mean);
    *error = s->n > 1 && variance > 0 ? *perplexity * sqrt(variance / (n - 1)) : 0;
}

/* ------------------------------------------------------------------ windows */

/* Tokens [from, to) of the first n windows that are on; logits are listened to or not. */
static numoe_status evaluate(struct perplexity *p, size_t n, size_t from, size_t to, bool scored,
                             numoe_error *err)
{
    size_t n_pending;

    for (size_t i = 0; i < n; i++) {
        struct window *w = &p->window[i];
        numoe_session_on_logits(w->session, scored ? on_logits : NULL, w);
        numoe_status status = numoe_session_append(w->session, w->token + from, to - from, err);
        if (status != NUMOE_OK) {
            return status;
        }
    }
    do {
        numoe_status status = numoe_step(p->engine, p->session, n, err);
        if (status != NUMOE_OK) {
            return status;
        }
        n_pending = 0;
        for (size_t i = 0; i < n; i++) {
            n_pending += numoe_session_pending(p->session[i]);
        }
    } while (n_pending > 0);
    return NUMOE_OK;
}

/* Windows [first, first + n). The last token of a window is predicted, but predicts nothing. */
static numoe_status evaluate_windows(struct perplexity *p, size_t first, size_t n, numoe_error *err)
{
    size_t half = p->n_token / 2;

    for (size_t i = 0; i < n; i++) {
        struct window *w = &p->window[i];
        w->token = p->ids.id + (first + i) * p->n_token;
        w->score = (struct score){0};
        numoe_session_truncate(w->session, 0);
    }
    numoe_status status = evaluate(p, n, 0, half, false, err);
    if (status == NUMOE_OK) {
        status = evaluate(p, n, half, p->n_token - 1, true, err);
    }
    for (size_t i = 0; status == NUMOE_OK && i < n; i++) {
        add_score(&p->score, &p->window[i].score);
    }
    return status;
}

/* The running value: on a terminal over the bar's line, elsewhere ten times in all. */
static void report_running(struct perplexity *p, size_t n_done, size_t n_before)
{
    double value, error;

    summarize(&p->score, &value, &error);
    if (p->progress.visible) {
        progress_update(&p->progress, (double)n_done / (double)p->n_window);
        if (p->progress.drawn) {
            fprintf(stderr, "  perplexity %.4f ", value);
        }
    } else if (!p->quiet && n_done * 10 / p->n_window > n_before * 10 / p->n_window) {
        fprintf(stderr, "%zu of %zu windows, perplexity %.4f\n", n_done, p->n_window, value);
    }
}

static int report_result(const struct perplexity *p)
{
    double value, error, seconds = p->seconds;
    size_t n_evaluated = p->n_window * (p->n_token - 1);
    const numoe_engine_info *info = numoe_engine_get_info(p->engine);

    summarize(&p->score, &value, &error);
    if (!isfinite(value)) {
        return fail(EXIT_INPUT, "the perplexity is not a number: the model's weights are damaged "
                                "or overflow their type");
    }
    printf("perplexity %.4f +/- %.4f (%zu tokens scored in %zu windows of %zu)\n", value, error,
           p->score.n, p->n_window, p->n_token);
    if (!p->quiet) {
        fprintf(stderr, "evaluated  %zu tokens in %.2f s, %.1f tokens/s\n", n_evaluated, seconds,
                (double)n_evaluated / seconds);
        if (numoe_engine_mode(p->engine) == NUMOE_MODE_THROUGHPUT && info->n_lane > 1) {
            fprintf(stderr, "mode       throughput: %u nodes, each with windows of its own\n",
                    info->n_lane);
        }
        size_t n_rest = p->ids.n % p->n_token;
        if (n_rest) {
            fprintf(stderr, "not used   %zu token%s at the end, less than a window\n", n_rest,
                    n_rest == 1 ? "" : "s");
        }
    }
    return EXIT_OK;
}

static int evaluate_text(struct perplexity *p)
{
    numoe_error err;
    numoe_status status = NUMOE_OK;

    p->start_seconds = now_seconds();
    progress_init(&p->progress, "evaluating", p->quiet);
    interrupt_begin(p->session[0]);
    for (size_t first = 0; status == NUMOE_OK && first < p->n_window; first += p->n_parallel) {
        size_t left = p->n_window - first;
        size_t n = left < p->n_parallel ? left : p->n_parallel;
        status = evaluate_windows(p, first, n, &err);
        if (status == NUMOE_OK) {
            report_running(p, first + n, first);
        }
    }
    interrupt_end();
    p->seconds = now_seconds() - p->start_seconds;
    progress_end(&p->progress);
    return status == NUMOE_OK ? report_result(p) : fail_status(&err);
}

/* ------------------------------------------------------------------ set-up */

/* Tokens of the text in whole windows; each begins with BOS where the model's texts do. */
static int cut_windows(struct perplexity *p, const char *name, const struct text *text)
{
    int32_t bos = numoe_token_bos(p->engine);

    int exit_status = tokenize(p->engine, text->data, text->bytes, NUMOE_TOKENIZE_BOS, &p->ids);
    if (exit_status != EXIT_OK) {
        return exit_status;
    }
    p->n_window = p->ids.n / p->n_token;
    if (p->n_window == 0) {
        return fail(EXIT_INPUT, "%s: the text has %zu tokens, one window has %zu", name, p->ids.n,
                    p->n_token);
    }
    for (size_t i = 1; bos >= 0 && p->ids.id[0] == bos && i < p->n_window; i++) {
        p->ids.id[i * p->n_token] = bos;
    }
    return EXIT_OK;
}

/* As many as a step takes, on each node that may have its own. */
static int open_windows(struct perplexity *p, const numoe_engine_params *params)
{
    numoe_error err;
    size_t n = params->chunk_tokens / (p->n_token / 2);
    unsigned n_lane = numoe_engine_get_info(p->engine)->n_lane;

    n = n < 1 ? 1 : n;
    n *= params->mode == NUMOE_MODE_LATENCY || n_lane == 0 ? 1 : n_lane;
    n = n > p->n_window ? p->n_window : n;
    p->window = calloc(n, sizeof *p->window);
    p->session = calloc(n, sizeof *p->session);
    if (!p->window || !p->session) {
        return fail(EXIT_LACKING, "no memory for %zu windows", n);
    }
    for (; p->n_parallel < n; p->n_parallel++) {
        struct window *w = &p->window[p->n_parallel];
        if (numoe_session_new(p->engine, (unsigned)p->n_token, &w->session, &err) != NUMOE_OK) {
            return fail_status(&err);
        }
        w->n_vocab = numoe_engine_get_info(p->engine)->n_vocab;
        p->session[p->n_parallel] = w->session;
    }
    return EXIT_OK;
}

static void close_windows(struct perplexity *p)
{
    for (size_t i = 0; i < p->n_parallel; i++) {
        numoe_session_free(p->session[i]);
    }
    free(p->session);
    free(p->window);
    free(p->ids.id);
}

int eval_perplexity(struct eval_options *o, const struct text *text)
{
    struct perplexity p = {.n_token = o->window, .quiet = o->model.quiet};

    /* a token is a byte at least, but for a space, BOS and EOS that a vocabulary may add */
    if (text->bytes + 3 < p.n_token) {
        return fail(EXIT_INPUT, "%s: a text of %zu bytes is shorter than one window of %zu tokens",
                    o->perplexity, text->bytes, p.n_token);
    }
    int exit_status = eval_engine(o, "a window", p.n_token, &p.engine);
    if (exit_status != EXIT_OK) {
        return exit_status;
    }
    exit_status = cut_windows(&p, o->perplexity, text);
    if (exit_status == EXIT_OK) {
        exit_status = open_windows(&p, &o->model.params);
    }
    if (exit_status == EXIT_OK) {
        exit_status = profile_start(&o->profile, p.engine);
    }
    if (exit_status == EXIT_OK) {
        exit_status = evaluate_text(&p);
    }
    if (exit_status == EXIT_OK) {
        exit_status = profile_report(&o->profile, p.engine, p.seconds);
    }
    close_windows(&p);
    numoe_engine_close(p.engine);
    return exit_status;
}
