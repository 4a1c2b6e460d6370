/* What do lanes bring? Decodes with all weights on every node (replicate), in turns with all nodes
 * together (latency) and with each node for sequences of its own (throughput), in one process, so
 * that a machine that slows down slows both. Prints medians of tokens/s over all sequences for each
 * number of them, and of the ratios of two blocks that follow each other, with quartiles, beside
 * what the cost model predicts (placement_batch_seconds), by which mode AUTO decides.
 *
 *   bench/throughput -m MODEL.gguf [--topology SPEC] [-t WORKERS] [-b SEQUENCES,...] [-n TOKENS]
 *                    [-r ROUNDS]
 *
 * On a machine with one node: --topology 'pack:2 [numa(memory=8GiB)] core:1 pu:1'. Artificial
 * nodes share one memory, so this shows what fewer meetings bring and what experts that are read
 * once for each lane cost; not what is gained where links between nodes are slow. The model has to
 * be larger than the caches: bench/make-model.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/median.h"
#include "base/mem.h"
#include "bench/inputs.h"
#include "model/model.h"
#include "runtime/place.h"

#define MAX_ROUND    10000u
#define MAX_SEQUENCE 64u

enum { TOGETHER, LANES, N_WAY };
static const numoe_mode mode_of[N_WAY] = {NUMOE_MODE_LATENCY, NUMOE_MODE_THROUGHPUT};

struct bench {
    numoe_engine *engine;
    numoe_session *session[MAX_SEQUENCE];
    unsigned n_token, n_round;
    double *rate[N_WAY], *ratio; /* [n_round] */
    double predicted[N_WAY][LIST_MAX];
};

static int fail(const numoe_error *err)
{
    fprintf(stderr, "throughput: %s\n", err->text);
    return 1;
}

/* A token more for each of n sequences; different ones, so that they choose different experts. */
static numoe_status step_once(struct bench *b, unsigned n, unsigned at, numoe_error *err)
{
    const unsigned n_vocab = numoe_engine_get_info(b->engine)->n_vocab;
    for (unsigned i = 0; i < n; i++) {
        const int32_t id = (int32_t)((at * 7919 + i * 104729) % n_vocab);
        FORWARD_IF(numoe_session_append(b->session[i], &id, 1, err));
    }
    while (numoe_session_pending(b->session[n - 1]) > 0) {
        FORWARD_IF(numoe_step(b->engine, b->session, n, err));
    }
    return NUMOE_OK;
}

/* The first token is not counted: caches come and go with the mode. */
static numoe_status run_block(struct bench *b, int way, unsigned n, double *rate, numoe_error *err)
{
    for (unsigned i = 0; i < n; i++) {
        numoe_session_truncate(b->session[i], 0);
    }
    FORWARD_IF(numoe_engine_set_mode(b->engine, mode_of[way], err));
    FORWARD_IF(step_once(b, n, 0, err));
    const uint64_t begin = clock_ns();
    for (unsigned at = 1; at <= b->n_token; at++) {
        FORWARD_IF(step_once(b, n, at, err));
    }
    *rate = (double)n * b->n_token / ((double)(clock_ns() - begin) * 1e-9);
    return NUMOE_OK;
}

static numoe_status measure(struct bench *b, unsigned n, double predicted, numoe_error *err)
{
    double warm;
    for (int way = 0; way < N_WAY; way++) {
        FORWARD_IF(run_block(b, way, n, &warm, err));
    }
    for (unsigned r = 0; r < b->n_round; r++) {
        for (int i = 0; i < N_WAY; i++) {
            const int way = r % 2 == 0 ? i : N_WAY - 1 - i;
            FORWARD_IF(run_block(b, way, n, &b->rate[way][r], err));
        }
        b->ratio[r] = b->rate[LANES][r] / b->rate[TOGETHER][r];
    }
    const double together = median_double(b->rate[TOGETHER], b->n_round);
    const double lanes = median_double(b->rate[LANES], b->n_round);
    const double ratio = median_double(b->ratio, b->n_round);
    printf("%9u %10.2f %10.2f %6.2f  %.2f-%.2f %10.2f\n", n, together, lanes, ratio,
           b->ratio[b->n_round / 4], b->ratio[b->n_round * 3 / 4], predicted);
    fflush(stdout);
    return NUMOE_OK;
}

/* tokens/s of list[i] sequences into predicted[way][i]; reads no weights. */
static numoe_status predict(const numoe_engine_params *params, const unsigned *list,
                            unsigned n_list, double predicted[N_WAY][LIST_MAX], numoe_error *err)
{
    struct topo *topo = NULL;
    struct model *model = NULL;
    struct place place = {.plan = NULL};
    FORWARD_IF(topo_load(params->topology, &topo, err));
    numoe_status status = model_open(params->model_path, &model, err);
    if (status == NUMOE_OK) {
        status = place_open_part(params, model, NULL, NULL, topo, &place, err);
    }
    for (unsigned i = 0; status == NUMOE_OK && i < n_list; i++) {
        for (int way = 0; way < N_WAY; way++) {
            predicted[way][i] =
                list[i] / placement_batch_seconds(place.plan, &place.shapes, &place.machine,
                                                  list[i], way == LANES);
        }
    }
    place_close(&place);
    model_close(model);
    topo_free(topo);
    return status;
}

static numoe_status run_all(struct bench *b, const unsigned *list, unsigned n_list,
                            numoe_error *err)
{
    const numoe_engine_info *info = numoe_engine_get_info(b->engine);
    if (info->n_node < 2) {
        return status_fail(err, NUMOE_E_INPUT,
                           "one node has one lane: take a machine of several, or --topology");
    }
    for (int way = 0; way < N_WAY; way++) {
        FORWARD_IF(mem_new(&b->rate[way], b->n_round, sizeof(double), "rates", err));
    }
    FORWARD_IF(mem_new(&b->ratio, b->n_round, sizeof(double), "rates", err));
    for (unsigned i = 0; i < MAX_SEQUENCE; i++) {
        FORWARD_IF(numoe_session_new(b->engine, b->n_token + 1, &b->session[i], err));
    }
    printf("%s, %s: %u nodes, %u workers, %u tokens a block, %u rounds\n", info->model_name,
           info->type_name, info->n_node, info->n_worker, b->n_token, b->n_round);
    printf("%9s %10s %10s %6s  %9s %10s\n", "sequences", "latency", "throughput", "ratio",
           "quartiles", "predicted");
    for (unsigned i = 0; i < n_list; i++) {
        FORWARD_IF(measure(b, list[i], b->predicted[LANES][i] / b->predicted[TOGETHER][i], err));
    }
    return NUMOE_OK;
}

static void close_all(struct bench *b)
{
    for (unsigned i = 0; i < MAX_SEQUENCE; i++) {
        numoe_session_free(b->session[i]);
    }
    for (int way = 0; way < N_WAY; way++) {
        mem_free(b->rate[way]);
    }
    mem_free(b->ratio);
    numoe_engine_close(b->engine);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"topology", required_argument, NULL, 'T'}, {0}};
    struct bench b = {.n_token = 16, .n_round = 9};
    unsigned list[LIST_MAX] = {1, 2, 4, 8}, n_list = 4;
    numoe_engine_params params;
    numoe_error err;
    bool ok = true;
    numoe_engine_params_init(&params);
    for (int c; ok && (c = getopt_long(argc, argv, "m:t:b:n:r:", options, NULL)) != -1;) {
        if (c == 'm' || c == 'T') {
            *(c == 'm' ? &params.model_path : &params.topology) = optarg;
        } else if (c == 'b') {
            n_list = list_of_numbers(optarg, MAX_SEQUENCE, list);
        } else if (c != '?') {
            unsigned *to = c == 't' ? &params.n_thread : c == 'n' ? &b.n_token : &b.n_round;
            *to = (unsigned)number(optarg, MAX_ROUND);
        } else {
            ok = false;
        }
    }
    if (!ok || optind < argc || params.model_path == NULL) {
        fprintf(stderr, "usage: throughput -m MODEL [--topology SPEC] [-t WORKERS] "
                        "[-b SEQUENCES,...] [-n TOKENS] [-r ROUNDS]\n"
                        "up to %u sequences, tokens and rounds up to %u\n",
                MAX_SEQUENCE, MAX_ROUND);
        return 2;
    }
    params.placement = NUMOE_PLACEMENT_REPLICATE;
    if (predict(&params, list, n_list, b.predicted, &err) != NUMOE_OK ||
        numoe_engine_open(&params, &b.engine, &err) != NUMOE_OK) {
        return fail(&err);
    }
    numoe_status status = run_all(&b, list, n_list, &err);
    close_all(&b);
    return status == NUMOE_OK ? 0 : fail(&err);
}
