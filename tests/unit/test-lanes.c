/* Throughput mode: every node evaluates sequences of its own. The same bits as all nodes together,
 * whatever is dealt to whom and however often the mode changes; caches where they should be; and
 * who is told when it is not possible. Made-up machines of 1 to 8 nodes.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "dense/kv-chunk.h"
#include "runtime/engine.h"
#include "tests/unit/sequences.h"
#include "tests/unit/testdata.h"

#define TINY "tests/data/fixtures/deepseek3-a/deepseek3-a-f32.gguf" /* latent cache */
#define GQA  "tests/data/fixtures/qwen3moe-a/qwen3moe-a-f32.gguf"

#define MAX_SEQUENCE 9

static char log_text[4096];

static void keep_log(void *arg, numoe_log_level level, const char *line)
{
    (void)arg, (void)level;
    strncat(log_text, line, sizeof log_text - strlen(log_text) - 1);
}

static void keep_quiet(void)
{
    numoe_log_set(keep_log, NULL, NUMOE_LOG_WARN); /* crowded pools are meant here */
}

TestSuite(lanes, .init = keep_quiet, .timeout = 300);

/* ------------------------------------------------------------------ engines, sequences */

static numoe_status try_open(const char *rel, unsigned n_node, unsigned n_worker,
                             numoe_placement placement, numoe_mode mode, numoe_engine **engine,
                             numoe_error *err)
{
    char *path = test_src_path(rel), spec[64];
    numoe_engine_params params;
    cr_assert_not_null(path, "%s", rel);
    snprintf(spec, sizeof spec, "pack:%u [numa(memory=64GiB)] core:2 pu:1", n_node);
    numoe_engine_params_init(&params);
    params.model_path = path;
    params.topology = spec;
    params.n_thread = n_worker;
    params.chunk_tokens = 48;
    params.placement = placement;
    params.mode = mode;
    numoe_status status = numoe_engine_open(&params, engine, err);
    free(path);
    return status;
}

static numoe_engine *open_nodes(const char *rel, unsigned n_node, unsigned n_worker,
                                numoe_mode mode)
{
    numoe_engine *engine = NULL;
    numoe_error err = {0};
    cr_assert_eq(try_open(rel, n_node, n_worker, NUMOE_PLACEMENT_REPLICATE, mode, &engine, &err),
                 NUMOE_OK, "%s", err.text);
    return engine;
}

/* Sequences of different lengths, some over several chunks of the cache. */
static size_t prompt_length(unsigned is)
{
    static const size_t length[MAX_SEQUENCE] = {7, 300, 1, 90, 33, 530, 2, 64, 257};
    return length[is];
}

static void open_sessions(numoe_engine *engine, numoe_session **session, unsigned n)
{
    numoe_error err = {0};
    for (unsigned is = 0; is < n; is++) {
        cr_assert_eq(numoe_session_new(engine, 0, &session[is], &err), NUMOE_OK, "%s", err.text);
    }
}

static void close_all(numoe_engine *engine, numoe_session **session, unsigned n)
{
    for (unsigned is = 0; is < n; is++) {
        numoe_session_free(session[is]);
    }
    numoe_engine_close(engine);
}

static void set_mode(numoe_engine *engine, numoe_mode mode)
{
    numoe_error err = {0};
    cr_assert_eq(numoe_engine_set_mode(engine, mode, &err), NUMOE_OK, "%s", err.text);
}

/* ------------------------------------------------------------------ the same bits */

/* Logits after the prompt and after three tokens more, of each sequence by itself on one node. */
struct expected {
    size_t n_vocab;
    float *logits; /* [MAX_SEQUENCE, 2, V] */
};

static struct expected expect_alone(const char *rel)
{
    numoe_engine *engine = open_nodes(rel, 1, 1, NUMOE_MODE_LATENCY);
    struct expected e = {.n_vocab = numoe_engine_get_info(engine)->n_vocab};
    e.logits = calloc(2 * MAX_SEQUENCE * e.n_vocab, sizeof *e.logits);
    for (unsigned is = 0; is < MAX_SEQUENCE; is++) {
        numoe_session *session;
        open_sessions(engine, &session, 1);
        for (unsigned i = 0; i < 2; i++) {
            append(session, is, i == 0 ? prompt_length(is) : 3);
            finish(engine, &session, 1);
            memcpy(e.logits + (2 * is + i) * e.n_vocab, numoe_session_logits(session),
                   e.n_vocab * sizeof *e.logits);
        }
        numoe_session_free(session);
    }
    numoe_engine_close(engine);
    return e;
}

static void check_bits(const struct expected *e, numoe_session *const *session, unsigned n,
                       unsigned i, const char *what)
{
    for (unsigned is = 0; is < n; is++) {
        const float *want = e->logits + (2 * is + i) * e->n_vocab;
        const float *got = numoe_session_logits(session[is]);
        cr_assert_not_null(got, "%s: sequence %u", what, is);
        cr_assert_arr_eq(got, want, e->n_vocab * sizeof *want, "%s: sequence %u: other bits", what,
                         is);
    }
}

/* n sequences together, prompts and three tokens. */
static void check_sequences(const struct expected *e, const char *rel, unsigned n_node,
                            unsigned n_worker, unsigned n)
{
    numoe_engine *engine = open_nodes(rel, n_node, n_worker, NUMOE_MODE_THROUGHPUT);
    numoe_session *session[MAX_SEQUENCE];
    char what[64];
    snprintf(what, sizeof what, "%u nodes, %u workers, %u sequences", n_node, n_worker, n);
    cr_assert_eq(numoe_engine_get_info(engine)->n_lane, n_node, "%s", what);
    open_sessions(engine, session, n);
    for (unsigned i = 0; i < 2; i++) {
        for (unsigned is = 0; is < n; is++) {
            append(session[is], is, i == 0 ? prompt_length(is) : 3);
        }
        finish(engine, session, n);
        check_bits(e, session, n, i, what);
    }
    cr_expect_eq(numoe_engine_mode(engine), NUMOE_MODE_THROUGHPUT);
    for (unsigned is = 0; n_node > 1 && is < n; is++) {
        cr_expect_neq(kv_home(session[is]->kv), KV_SPREAD);
    }
    close_all(engine, session, n);
}

static void check_model(const char *rel)
{
    static const struct {
        unsigned n_node, n_worker, n;
    } run[] = {{1, 2, 5}, {2, 4, MAX_SEQUENCE}, {2, 2, 1}, {3, 7, 4}, {4, 4, 3}, {8, 16, 5}};
    const struct expected e = expect_alone(rel);
    for (unsigned i = 0; i < ARRAY_LEN(run); i++) {
        check_sequences(&e, rel, run[i].n_node, run[i].n_worker, run[i].n);
    }
    free(e.logits);
}

Test(lanes, latent_caches_give_the_same_bits)
{
    check_model(TINY);
}

Test(lanes, grouped_caches_give_the_same_bits)
{
    check_model(GQA);
}

/* The mode changes between any two steps: prompts are cut anywhere, caches go back and forth. */
Test(lanes, switching_does_not_change_a_bit)
{
    const struct expected e = expect_alone(TINY);
    numoe_engine *engine = open_nodes(TINY, 3, 6, NUMOE_MODE_LATENCY);
    numoe_session *session[MAX_SEQUENCE];
    numoe_error err = {0};
    unsigned n_step = 0;
    open_sessions(engine, session, MAX_SEQUENCE);
    for (unsigned i = 0; i < 2; i++) {
        for (unsigned is = 0; is < MAX_SEQUENCE; is++) {
            append(session[is], is, i == 0 ? prompt_length(is) : 3);
        }
        while (pending(session, MAX_SEQUENCE) > 0) {
            const bool lanes = ++n_step % 3 != 0;
            set_mode(engine, lanes ? NUMOE_MODE_THROUGHPUT : NUMOE_MODE_LATENCY);
            cr_assert_eq(numoe_step(engine, session, MAX_SEQUENCE, &err), NUMOE_OK, "%s", err.text);
            cr_assert_eq(numoe_engine_mode(engine),
                         lanes ? NUMOE_MODE_THROUGHPUT : NUMOE_MODE_LATENCY);
        }
        check_bits(&e, session, MAX_SEQUENCE, i, "switching");
    }
    cr_expect_gt(n_step, 10);
    close_all(engine, session, MAX_SEQUENCE);
    free(e.logits);
}

/* ------------------------------------------------------------------ who does what */

static uint64_t local_bytes(numoe_engine *engine, unsigned in)
{
    numoe_traffic traffic;
    cr_assert(numoe_engine_traffic(engine, in, &traffic));
    cr_assert_eq(traffic.remote_bytes, 0, "node %u reads elsewhere", in);
    return traffic.local_bytes;
}

/* A token of a lane reads on its node what all nodes together read for it, and nothing elsewhere.
 */
Test(lanes, weights_are_read_on_the_lanes_node)
{
    numoe_engine *engine = open_nodes(TINY, 2, 4, NUMOE_MODE_LATENCY);
    numoe_session *session[2];
    uint64_t before[2], together = 0;
    open_sessions(engine, session, 2);
    append(session[0], 0, 1);
    finish(engine, session, 1);
    for (unsigned in = 0; in < 2; in++) {
        cr_expect_gt(before[in] = local_bytes(engine, in), 0);
        together += before[in];
    }
    set_mode(engine, NUMOE_MODE_THROUGHPUT);
    append(session[1], 0, 1); /* the same token */
    finish(engine, session, 2);
    const int home = kv_home(session[1]->kv);
    cr_assert(home == 0 || home == 1);
    cr_expect_eq(local_bytes(engine, (unsigned)!home), before[!home], "an empty lane read");
    /* Together, each node looks the token up in its own embedding. */
    const uint64_t row_bytes = numoe_engine_get_info(engine)->n_embd * sizeof(float);
    cr_expect_eq(local_bytes(engine, (unsigned)home) - before[home], together - row_bytes);
    close_all(engine, session, 2);
}

static char *saved_stats(numoe_mode mode, unsigned n_node, size_t *bytes)
{
    numoe_engine *engine = open_nodes(TINY, n_node, 0, mode);
    numoe_session *session[5];
    numoe_error err = {0};
    char *text = NULL;
    FILE *out = open_memstream(&text, bytes);
    open_sessions(engine, session, 5);
    for (unsigned is = 0; is < 5; is++) {
        append(session[is], is, 20);
    }
    finish(engine, session, 5);
    cr_assert_eq(numoe_engine_save_stats(engine, out, &err), NUMOE_OK, "%s", err.text);
    fclose(out);
    close_all(engine, session, 5);
    return text;
}

Test(lanes, experts_are_counted_over_all)
{
    size_t n_want, n_got;
    char *want = saved_stats(NUMOE_MODE_LATENCY, 2, &n_want);
    char *got = saved_stats(NUMOE_MODE_THROUGHPUT, 3, &n_got);
    cr_assert_eq(n_got, n_want);
    cr_expect_arr_eq(got, want, n_want);
    free(got);
    free(want);
}

struct heard {
    size_t n_logits, n_route;
    bool out_of_order;
    double sum; /* of chosen ids and logits: the order of tokens matters */
};

static void on_logits(void *arg, size_t position, const float *logits)
{
    struct heard *h = arg;
    h->out_of_order |= position != h->n_logits++;
    h->sum += (double)(position + 1) * (double)logits[3];
}

static void on_route(void *arg, unsigned layer, size_t position, unsigned k, const int32_t *ids,
                     const float *weights)
{
    struct heard *h = arg;
    h->n_route++;
    for (unsigned i = 0; i < k; i++) {
        h->sum += (double)(layer * 1000 + position) * (ids[i] + (double)weights[i]);
    }
}

static void listen(numoe_mode mode, struct heard *heard)
{
    numoe_engine *engine = open_nodes(TINY, 3, 0, mode);
    numoe_session *session[4];
    open_sessions(engine, session, 4);
    for (unsigned is = 0; is < 4; is++) {
        heard[is] = (struct heard){0};
        numoe_session_on_logits(session[is], on_logits, &heard[is]);
        if (is != 2) {
            numoe_session_on_route(session[is], on_route, &heard[is]);
        }
        append(session[is], is, 11 * (is + 1));
    }
    finish(engine, session, 4);
    close_all(engine, session, 4);
}

Test(lanes, listeners_hear_the_same)
{
    struct heard want[4], got[4];
    listen(NUMOE_MODE_LATENCY, want);
    listen(NUMOE_MODE_THROUGHPUT, got);
    for (unsigned is = 0; is < 4; is++) {
        cr_expect_eq(got[is].n_logits, 11 * (is + 1));
        cr_expect_not(got[is].out_of_order);
        cr_expect_eq(got[is].n_route, want[is].n_route);
        cr_expect_eq(got[is].sum, want[is].sum, "sequence %u", is);
    }
}

static void count_homes(numoe_session *const *session, unsigned n, unsigned n_lane, unsigned *count)
{
    memset(count, 0, n_lane * sizeof *count);
    for (unsigned is = 0; is < n; is++) {
        const int home = kv_home(session[is]->kv);
        cr_assert(home >= 0 && home < (int)n_lane, "sequence %u is at %d", is, home);
        count[home]++;
    }
}

/* Seven over three lanes; then three of them end, which leaves one lane with more than its part. */
Test(lanes, sequences_are_dealt_evenly)
{
    numoe_engine *engine = open_nodes(TINY, 3, 3, NUMOE_MODE_THROUGHPUT);
    numoe_session *session[7], *left[4];
    unsigned count[3], n_left = 0;
    open_sessions(engine, session, 7);
    for (unsigned is = 0; is < 7; is++) {
        append(session[is], is, 5);
    }
    finish(engine, session, 7);
    count_homes(session, 7, 3, count);
    cr_expect(count[0] >= 2 && count[1] >= 2 && count[2] >= 2, "%u %u %u", count[0], count[1],
              count[2]);
    const int empty = kv_home(session[0]->kv);
    for (unsigned is = 0; is < 7 && n_left < 4; is++) {
        if (kv_home(session[is]->kv) != empty) {
            left[n_left++] = session[is];
        }
    }
    for (unsigned i = 0; i < 4; i++) {
        append(left[i], i, 3);
    }
    finish(engine, left, 4);
    count_homes(left, 4, 3, count);
    cr_expect_eq(count[empty], 1, "%u %u %u", count[0], count[1], count[2]);
    close_all(engine, session, 7);
}

/* Six that begin with what one lane has evaluated are dealt to all lanes. */
Test(lanes, shared_beginnings_do_not_bind_to_a_lane)
{
    const struct expected e = expect_alone(TINY);
    numoe_engine *engine = open_nodes(TINY, 3, 3, NUMOE_MODE_THROUGHPUT);
    numoe_session *session[7];
    numoe_error err = {0};
    unsigned count[3];
    open_sessions(engine, session, 7);
    append(session[0], 1, prompt_length(1));
    finish(engine, session, 1);
    for (unsigned is = 1; is < 7; is++) {
        cr_assert_eq(numoe_session_share(session[is], session[0], 299, &err), NUMOE_OK, "%s",
                     err.text);
        append(session[is], 1, 1);
    }
    finish(engine, session, 7);
    count_homes(session + 1, 6, 3, count);
    cr_expect(count[0] == 2 && count[1] == 2 && count[2] == 2, "%u %u %u", count[0], count[1],
              count[2]);
    for (unsigned is = 0; is < 7; is++) {
        const float *got = numoe_session_logits(session[is]);
        cr_assert_arr_eq(got, e.logits + 2 * e.n_vocab, e.n_vocab * sizeof *got, "sequence %u", is);
    }
    close_all(engine, session, 7);
    free(e.logits);
}

/* ------------------------------------------------------------------ AUTO */

static numoe_mode step_with(numoe_engine *engine, numoe_session **session, unsigned n)
{
    for (unsigned is = 0; is < n; is++) {
        append(session[is], is, 1);
    }
    finish(engine, session, n);
    return numoe_engine_mode(engine);
}

Test(lanes, auto_follows_the_number_of_sequences)
{
    numoe_engine *engine = open_nodes(TINY, 2, 4, NUMOE_MODE_AUTO);
    numoe_session *session[3];
    open_sessions(engine, session, 3);
    cr_expect_eq(step_with(engine, session, 1), NUMOE_MODE_LATENCY);
    cr_expect_eq(step_with(engine, session + 1, 2), NUMOE_MODE_THROUGHPUT, "nothing to copy");
    for (unsigned i = 0; i < 7; i++) {
        cr_expect_eq(step_with(engine, session + 1, 1), NUMOE_MODE_THROUGHPUT, "patience %u", i);
    }
    cr_expect_eq(step_with(engine, session + 1, 2), NUMOE_MODE_THROUGHPUT);
    for (unsigned i = 0; i < 7; i++) {
        cr_expect_eq(step_with(engine, session + 1, 1), NUMOE_MODE_THROUGHPUT, "again %u", i);
    }
    cr_expect_eq(step_with(engine, session + 1, 1), NUMOE_MODE_LATENCY);
    cr_expect_eq(kv_home(session[1]->kv), KV_SPREAD);
    cr_expect_eq(step_with(engine, session, 3), NUMOE_MODE_LATENCY);
    close_all(engine, session, 3);
}

/* With as many tokens as are predicted to be slower in lanes, all nodes stay together. */
Test(lanes, auto_follows_the_prediction)
{
    numoe_engine *engine = open_nodes(TINY, 2, 4, NUMOE_MODE_AUTO);
    numoe_session *session[4];
    open_sessions(engine, session, 4);
    cr_expect_neq(engine->lanes_pay, 0, "a tiny model: meetings are all");
    engine->lanes_pay = 1u << 2; /* from 4 tokens on, to 7 */
    cr_expect_eq(step_with(engine, session, 2), NUMOE_MODE_LATENCY);
    numoe_session_truncate(session[0], 0);
    numoe_session_truncate(session[1], 0);
    cr_expect_eq(step_with(engine, session, 4), NUMOE_MODE_THROUGHPUT);
    close_all(engine, session, 4);
}

/* ------------------------------------------------------------------ where it is not possible */

Test(lanes, cut_weights_are_told)
{
    numoe_engine *engine = NULL;
    numoe_error err = {0};
    static const numoe_placement cut[] = {NUMOE_PLACEMENT_SLICE, NUMOE_PLACEMENT_SHARD,
                                          NUMOE_PLACEMENT_INTERLEAVE};
    for (unsigned i = 0; i < ARRAY_LEN(cut); i++) {
        cr_assert_eq(try_open(TINY, 2, 0, cut[i], NUMOE_MODE_THROUGHPUT, &engine, &err),
                     NUMOE_E_INPUT);
        cr_expect_not_null(strstr(err.text, "placement replicate"), "%s", err.text);
        cr_assert_eq(try_open(TINY, 2, 0, cut[i], NUMOE_MODE_AUTO, &engine, &err), NUMOE_OK);
        numoe_session *session[2];
        open_sessions(engine, session, 2);
        cr_expect_eq(numoe_engine_get_info(engine)->n_lane, 0);
        cr_expect_eq(numoe_engine_set_mode(engine, NUMOE_MODE_THROUGHPUT, &err), NUMOE_E_INPUT);
        cr_expect_eq(step_with(engine, session, 2), NUMOE_MODE_LATENCY);
        close_all(engine, session, 2);
    }
    cr_assert_eq(try_open(TINY, 1, 2, NUMOE_PLACEMENT_SLICE, NUMOE_MODE_THROUGHPUT, &engine, &err),
                 NUMOE_OK, "one node has everything: %s", err.text);
    cr_expect_eq(numoe_engine_get_info(engine)->n_lane, 1);
    cr_expect_eq(numoe_engine_set_mode(engine, (numoe_mode)3, &err), NUMOE_E_INPUT);
    numoe_engine_close(engine);
}

/* What is taken from node `in` so far, and `bytes` more, are all that it has. */
static void limit_node(numoe_engine *engine, unsigned in, uint64_t bytes)
{
    const uint64_t all = engine->topo->ledger->taken_bytes[in] + bytes;
    engine->topo->node[in].available_bytes = MAX(all / 31 * 32 + 32, all + (8u << 20));
}

/* Likewise, with room for some chunks of a cache. */
static void limit_chunks(numoe_engine *engine, unsigned in, const struct kv_cache *kv, double n)
{
    limit_node(engine, in, (uint64_t)(n * (double)kv->shape.chunk_bytes));
}

Test(lanes, no_room_for_buffers_is_told)
{
    const struct expected e = expect_alone(TINY);
    numoe_engine *engine = open_nodes(TINY, 2, 4, NUMOE_MODE_AUTO);
    numoe_session *session[2];
    numoe_error err = {0};
    open_sessions(engine, session, 2);
    limit_node(engine, 1, 100000);
    cr_expect_eq(numoe_engine_set_mode(engine, NUMOE_MODE_THROUGHPUT, &err), NUMOE_E_MEMORY);
    cr_expect_not_null(strstr(err.text, "throughput mode: "), "%s", err.text);
    cr_expect_not_null(strstr(err.text, "node 1"), "%s", err.text);
    engine->topo->node[1].available_bytes = 0;
    for (unsigned is = 0; is < 2; is++) {
        append(session[is], is, prompt_length(is));
        cr_assert_eq(kv_reserve(session[is]->kv, 600, &err), NUMOE_OK);
    }
    limit_node(engine, 1, 100000);
    finish(engine, session, 2);
    cr_expect_eq(numoe_engine_mode(engine), NUMOE_MODE_LATENCY);
    char *said = strstr(log_text, "without throughput mode");
    cr_expect(said != NULL && strstr(said + 1, "without throughput mode") == NULL, "%s", log_text);
    check_bits(&e, session, 2, 0, "without lanes");
    close_all(engine, session, 2);
    free(e.logits);
}

/* The lanes are there, but a cache does not fit any node: AUTO goes on with all nodes together,
 * THROUGHPUT says so and leaves the sequences as they were. */
Test(lanes, no_room_for_a_cache_is_told)
{
    const struct expected e = expect_alone(TINY);
    numoe_engine *engine = open_nodes(TINY, 2, 4, NUMOE_MODE_THROUGHPUT);
    numoe_session *session[2];
    numoe_error err = {0};
    open_sessions(engine, session, 2);
    for (unsigned is = 0; is < 2; is++) {
        append(session[is], is, prompt_length(is));
        cr_assert_eq(kv_reserve(session[is]->kv, 600, &err), NUMOE_OK);
    }
    limit_chunks(engine, 0, session[0]->kv, 1.5); /* for a cache: its part of node 1 */
    limit_chunks(engine, 1, session[0]->kv, 0.5);
    cr_expect_eq(numoe_step(engine, session, 2, &err), NUMOE_E_MEMORY);
    cr_expect_not_null(strstr(err.text, "on node "), "%s", err.text);
    limit_chunks(engine, 1, session[0]->kv, 0.5); /* what was left there is taken by others */
    cr_expect_eq(pending(session, 2), prompt_length(0) + prompt_length(1));
    set_mode(engine, NUMOE_MODE_AUTO);
    finish(engine, session, 2);
    cr_expect_eq(numoe_engine_mode(engine), NUMOE_MODE_LATENCY);
    cr_expect_not_null(strstr(log_text, "without throughput mode"), "%s", log_text);
    cr_expect_not_null(strstr(log_text, "KV cache stays on one node"), "%s", log_text);
    check_bits(&e, session, 2, 0, "without lanes");
    close_all(engine, session, 2);
    free(e.logits);
}

/* ------------------------------------------------------------------ a full lane */

/* On three nodes, all prompts up to n_before tokens; then node 1 has no room for a chunk more, and
 * the rest follows, and three tokens: the same bits, in lanes. before, after [MAX_SEQUENCE]: where
 * caches are. */
static void run_full_lane(size_t n_before, int *before, int *after)
{
    const struct expected e = expect_alone(TINY);
    numoe_engine *engine = open_nodes(TINY, 3, 3, NUMOE_MODE_THROUGHPUT);
    numoe_session *session[MAX_SEQUENCE];
    open_sessions(engine, session, MAX_SEQUENCE);
    for (unsigned is = 0; is < MAX_SEQUENCE; is++) {
        append(session[is], is, MIN(prompt_length(is), n_before));
    }
    finish(engine, session, MAX_SEQUENCE);
    limit_chunks(engine, 1, session[0]->kv, 0.5);
    for (unsigned is = 0; is < MAX_SEQUENCE; is++) {
        before[is] = kv_home(session[is]->kv);
        append(session[is], is, prompt_length(is) - MIN(prompt_length(is), n_before));
    }
    finish(engine, session, MAX_SEQUENCE);
    check_bits(&e, session, MAX_SEQUENCE, 0, "prompts");
    for (unsigned is = 0; is < MAX_SEQUENCE; is++) {
        append(session[is], is, 3);
    }
    finish(engine, session, MAX_SEQUENCE);
    check_bits(&e, session, MAX_SEQUENCE, 1, "tokens");
    cr_expect_eq(numoe_engine_mode(engine), NUMOE_MODE_THROUGHPUT);
    for (unsigned is = 0; is < MAX_SEQUENCE; is++) {
        after[is] = kv_home(session[is]->kv);
    }
    close_all(engine, session, MAX_SEQUENCE);
    free(e.logits);
}

/* Nobody is dealt to it, and nobody waits. */
Test(lanes, a_lane_without_room_is_passed_over)
{
    int before[MAX_SEQUENCE], after[MAX_SEQUENCE];
    unsigned n[3] = {0};
    run_full_lane(0, before, after);
    for (unsigned is = 0; is < MAX_SEQUENCE; is++) {
        n[after[is]]++;
    }
    cr_expect(n[0] >= 4 && n[1] == 0 && n[2] >= 4, "%u %u %u", n[0], n[1], n[2]);
}

/* Of the caches on node 1, which have a chunk each, one that needs a second moves; its chunk may be
 * taken by another that grows there, but nobody comes for it. */
Test(lanes, a_cache_that_cannot_grow_moves)
{
    int before[MAX_SEQUENCE], after[MAX_SEQUENCE];
    unsigned n_moved = 0, n_kept = 0;
    run_full_lane(40, before, after);
    for (unsigned is = 0; is < MAX_SEQUENCE; is++) {
        const bool grows = prompt_length(is) + 3 > KV_CHUNK;
        cr_expect((before[is] == 1) == (after[is] == 1) || (before[is] == 1 && grows),
                  "sequence %u: from %d to %d", is, before[is], after[is]);
        n_moved += before[is] == 1 && after[is] != 1;
        n_kept += after[is] == 1;
    }
    cr_expect(n_moved > 0 && n_kept > 0, "%u moved, %u stay", n_moved, n_kept);
}

/* A token more for each. */
static void step_all(numoe_engine *engine, numoe_session **session, unsigned n, unsigned *count)
{
    for (unsigned is = 0; is < n; is++) {
        append(session[is], is, 1);
    }
    finish(engine, session, n);
    count_homes(session, n, 2, count);
}

/* What is given back there may be had again, by whoever comes. */
Test(lanes, a_full_lane_is_used_again)
{
    numoe_engine *engine = open_nodes(TINY, 2, 2, NUMOE_MODE_THROUGHPUT);
    numoe_session *session[4];
    unsigned count[2];
    open_sessions(engine, session, 4);
    step_all(engine, session, 2, count);
    cr_assert(count[0] == 1 && count[1] == 1);
    limit_chunks(engine, 1, session[0]->kv, 0.5);
    step_all(engine, session, 4, count);
    cr_expect(count[0] == 3 && count[1] == 1, "%u %u", count[0], count[1]);
    const int on_1 = kv_home(session[1]->kv); /* which of the first two is there */
    numoe_session_free(session[on_1]);
    session[on_1] = session[3];
    step_all(engine, session, 3, count);
    cr_expect(count[0] == 2 && count[1] == 1, "%u %u", count[0], count[1]);
    close_all(engine, session, 3);
}

static numoe_batch_info answer_all(numoe_engine *engine, int32_t *id /* [MAX_SEQUENCE, 8] */)
{
    const numoe_batch_params params = {.n_ctx = 600, .max_sequences = MAX_SEQUENCE};
    numoe_batch *batch = NULL;
    numoe_error err = {0};
    numoe_batch_info info;
    numoe_completion c;
    unsigned n_done = 0;
    cr_assert_eq(numoe_batch_new(engine, &params, &batch, &err), NUMOE_OK, "%s", err.text);
    for (unsigned is = 0; is < MAX_SEQUENCE; is++) {
        int32_t prompt[600];
        for (size_t i = 0; i < prompt_length(is); i++) {
            prompt[i] = token_of(is, i);
        }
        numoe_request r = {.tag = is, .ids = prompt, .n_id = prompt_length(is), .max_tokens = 8};
        r.ignore_eog = true;
        numoe_sampler_params_init(&r.sampler);
        r.sampler.temperature = 0;
        cr_assert_eq(numoe_batch_submit(batch, &r, &err), NUMOE_OK, "%s", err.text);
    }
    while (n_done < MAX_SEQUENCE) {
        cr_assert_eq(numoe_batch_step(batch, &err), NUMOE_OK, "%s", err.text);
        for (; numoe_batch_next(batch, &c); n_done++) {
            cr_assert_eq(c.status, NUMOE_OK, "%s", c.error.text);
            cr_assert_eq(c.n_generated, 8);
            memcpy(id + c.tag * 8, c.ids, 8 * sizeof *id);
        }
    }
    numoe_batch_get_info(batch, &info);
    numoe_batch_free(batch);
    return info;
}

/* Requests of a batch do not wait for room on one node while another has some. */
Test(lanes, requests_do_not_wait_for_a_full_lane)
{
    int32_t want[MAX_SEQUENCE * 8], got[MAX_SEQUENCE * 8];
    numoe_engine *engine = open_nodes(TINY, 1, 1, NUMOE_MODE_LATENCY);
    (void)answer_all(engine, want);
    numoe_engine_close(engine);
    engine = open_nodes(TINY, 3, 3, NUMOE_MODE_THROUGHPUT);
    limit_node(engine, 1, 1000);
    cr_expect_eq(answer_all(engine, got).n_preempted, 0);
    cr_expect_arr_eq(got, want, sizeof want);
    numoe_engine_close(engine);
}
