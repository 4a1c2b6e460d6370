/* Experts spread over ranks: who sends what to whom, by hand; and logits with the bits of one
 * engine that has all experts, for several ranks, machines, placements and sequences. Ranks are
 * threads here, each with an engine of its own.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "experts/dispatch.h"
#include "experts/spread.h"
#include "numoe/numoe.h"
#include "store/shape.h"
#include "tests/unit/sequences.h"
#include "tests/unit/testdata.h"

#define MAX_RANK     4
#define N_SEQUENCE   5
#define N_STEP       6 /* enough for all prompts, and one more */
#define CHUNK_TOKENS 40

/* ------------------------------------------------------------------ plans by hand */

Test(peers, every_expert_has_one_rank)
{
    for (unsigned n_expert = 1; n_expert <= 40; n_expert++) {
        for (unsigned n_rank = 1; n_rank <= n_expert; n_rank++) {
            cr_assert_eq(shapes_first_expert(n_expert, 0, n_rank), 0);
            cr_assert_eq(shapes_first_expert(n_expert, n_rank, n_rank), n_expert);
            for (unsigned ie = 0; ie < n_expert; ie++) {
                const unsigned r = shapes_expert_rank(n_expert, ie, n_rank);
                cr_assert(shapes_first_expert(n_expert, r, n_rank) <= ie &&
                              ie < shapes_first_expert(n_expert, r + 1, n_rank),
                          "expert %u of %u, %u ranks", ie, n_expert, n_rank);
            }
        }
    }
}

/* Six experts on three ranks, two each; k = 2. */
static const int32_t chosen[3][2][2] = {
    {{0, 5}, {1, 0}}, /* rank 0: its first token needs rank 2, its second nobody */
    {{2, 3}, {4, 0}}, /* rank 1: the second needs ranks 2 and 0 */
    {{5, 1}, {9, 9}}, /* rank 2: one token, the rest is not there */
};
static const uint32_t n_token[3] = {2, 2, 1};

struct lists {
    uint32_t n_send[3], n_recv[3], n_back[3], n_result[3], send[8], row[16], result[8];
    int32_t ids[16];
    struct spread_plan p;
};

static void make_lists(unsigned rank, struct lists *l)
{
    const struct spread_shape shape = {
        .rank = rank, .n_rank = 3, .n_expert = 6, .n_used = 2, .max_tokens = 2};
    memset(l, 0, sizeof *l);
    l->p = (struct spread_plan){.n_send = l->n_send,
                                .n_recv = l->n_recv,
                                .n_back = l->n_back,
                                .n_result = l->n_result,
                                .send = l->send,
                                .ids = l->ids,
                                .row = l->row,
                                .result = l->result};
    spread_plan_make(&shape, &chosen[0][0][0], 2, n_token, &l->p);
}

#define AWAY(id) DISPATCH_ELSEWHERE(id)
#define SAME(array, ...)                                                                           \
    do {                                                                                           \
        const int32_t want[] = __VA_ARGS__;                                                        \
        cr_assert_arr_eq(array, want, sizeof want);                                                \
    } while (0)

Test(peers, lists_of_rank_0)
{
    struct lists l;
    make_lists(0, &l);
    cr_assert_eq(l.p.n_own, 2);
    cr_assert_eq(l.p.n_row, 4);
    SAME(l.n_send, {0, 0, 1});
    SAME(l.send, {0});
    SAME(l.n_result, {0, 0, 1});
    SAME(l.result, {1});
    SAME(l.n_recv, {0, 1, 1});
    SAME(l.n_back, {0, 1, 1});
    SAME(l.ids, {0, AWAY(5), 1, 0, AWAY(4), 0, AWAY(5), 1});
    cr_assert_eq(l.row[0], 0);
    cr_assert_eq(l.row[2], 2);
    cr_assert_eq(l.row[3], 3);
    cr_assert_eq(l.row[5], 4, "the first product for others lies behind the own pairs");
    cr_assert_eq(l.row[7], 5);
}

Test(peers, lists_of_rank_1_and_2)
{
    struct lists l;
    make_lists(1, &l);
    cr_assert_eq(l.p.n_row, 2);
    SAME(l.n_send, {1, 0, 1});
    SAME(l.send, {1, 1});
    SAME(l.n_result, {1, 0, 1});
    SAME(l.result, {3, 2});
    SAME(l.n_recv, {0, 0, 0});
    SAME(l.ids, {2, 3, AWAY(4), AWAY(0)});
    make_lists(2, &l);
    cr_assert_eq(l.p.n_own, 1);
    cr_assert_eq(l.p.n_row, 3);
    SAME(l.n_send, {1, 0, 0});
    SAME(l.result, {1});
    SAME(l.n_recv, {1, 1, 0});
    SAME(l.n_back, {1, 1, 0});
    SAME(l.ids, {5, AWAY(1), AWAY(0), 5, 4, AWAY(0)});
    cr_assert_eq(l.row[3], 2);
    cr_assert_eq(l.row[4], 3);
}

/* ------------------------------------------------------------------ ranks as threads */

struct hub {
    unsigned n_rank;
    unsigned fails_at; /* so many meetings fail, then; 0: none */
    pthread_barrier_t meet;
    const void *send[MAX_RANK];
    const uint32_t *n_send[MAX_RANK];
};

struct rank {
    struct hub *hub;
    unsigned rank, n_meeting;
    uint64_t n_row; /* sent */
    const char *model;
    unsigned n_node;
    numoe_placement placement;
    unsigned defer;
    numoe_status status;
    numoe_error err;
    uint64_t weight_bytes;
    float *logits; /* [N_SEQUENCE, V] */
    size_t n_vocab;
};

static bool meeting_fails(struct rank *r)
{
    r->n_meeting++;
    return r->hub->fails_at > 0 && r->n_meeting >= r->hub->fails_at;
}

static bool gather(void *arg, const void *own, void *all, size_t bytes)
{
    struct rank *r = arg;
    struct hub *hub = r->hub;
    hub->send[r->rank] = own;
    pthread_barrier_wait(&hub->meet);
    for (unsigned i = 0; i < hub->n_rank && bytes > 0; i++) {
        memcpy((char *)all + i * bytes, hub->send[i], bytes);
    }
    pthread_barrier_wait(&hub->meet);
    return !meeting_fails(r);
}

static bool exchange(void *arg, size_t row_bytes, const void *send, const uint32_t *n_send,
                     void *recv, const uint32_t *n_recv)
{
    struct rank *r = arg;
    struct hub *hub = r->hub;
    char *to = recv;
    hub->send[r->rank] = send;
    hub->n_send[r->rank] = n_send;
    pthread_barrier_wait(&hub->meet);
    for (unsigned i = 0; i < hub->n_rank; i++) {
        size_t before = 0;
        for (unsigned j = 0; j < r->rank; j++) {
            before += hub->n_send[i][j];
        }
        cr_assert_eq(hub->n_send[i][r->rank], n_recv[i], "rank %u from %u", r->rank, i);
        memcpy(to, (const char *)hub->send[i] + before * row_bytes, n_recv[i] * row_bytes);
        to += n_recv[i] * row_bytes;
        r->n_row += n_send[i];
    }
    pthread_barrier_wait(&hub->meet);
    return !meeting_fails(r);
}

/* The last rank has no sequence: it computes for the others alone. */
static unsigned rank_of_sequence(const struct rank *r, unsigned is)
{
    const unsigned n_rank = r->hub != NULL ? r->hub->n_rank : 1;
    return n_rank > 1 ? is % (n_rank - 1) : 0;
}

static void keep_logits(struct rank *r, numoe_session *const *session)
{
    for (unsigned is = 0; is < N_SEQUENCE; is++) {
        if (session[is] != NULL) {
            const float *logits = numoe_session_logits(session[is]);
            cr_assert_not_null(logits, "sequence %u is not done", is);
            memcpy(r->logits + is * r->n_vocab, logits, r->n_vocab * sizeof(float));
        }
    }
}

static void evaluate(struct rank *r, numoe_engine *engine)
{
    static const size_t length[N_SEQUENCE] = {7, 90, 1, 40, 33};
    numoe_session *session[N_SEQUENCE] = {NULL}, *own[N_SEQUENCE];
    unsigned n = 0;
    for (unsigned is = 0; is < N_SEQUENCE; is++) {
        if (rank_of_sequence(r, is) == r->rank) {
            cr_assert_eq(numoe_session_new(engine, 0, &session[is], NULL), NUMOE_OK);
            append(session[is], is, length[is]);
            own[n++] = session[is];
        }
    }
    for (unsigned i = 0; i < N_STEP && r->status == NUMOE_OK; i++) {
        r->status = numoe_step(engine, own, n, &r->err);
    }
    if (r->status == NUMOE_OK) {
        keep_logits(r, session);
    }
    for (unsigned is = 0; is < N_SEQUENCE; is++) {
        numoe_session_free(session[is]);
    }
}

static void *run_rank(void *arg)
{
    struct rank *r = arg;
    char *path = test_src_path(r->model), spec[64];
    const numoe_peers peers = {.rank = r->rank,
                               .n_rank = r->hub != NULL ? r->hub->n_rank : 1,
                               .arg = r,
                               .gather = gather,
                               .exchange = exchange};
    numoe_engine *engine = NULL;
    numoe_engine_params params;
    cr_assert_not_null(path, "%s", r->model);
    snprintf(spec, sizeof spec, "pack:%u [numa(memory=64GiB)] core:2 pu:1", r->n_node);
    numoe_engine_params_init(&params);
    params.model_path = path;
    params.topology = spec;
    params.n_thread = r->n_node;
    params.chunk_tokens = CHUNK_TOKENS;
    params.placement = r->placement;
    params.defer_experts = r->defer;
    params.peers = r->hub != NULL ? &peers : NULL;
    r->status = numoe_engine_open(&params, &engine, &r->err);
    cr_assert_eq(r->status, NUMOE_OK, "%s", r->err.text);
    r->n_vocab = numoe_engine_get_info(engine)->n_vocab;
    r->weight_bytes = numoe_engine_get_info(engine)->weight_bytes;
    r->logits = calloc(N_SEQUENCE * r->n_vocab, sizeof *r->logits);
    evaluate(r, engine);
    numoe_engine_close(engine);
    free(path);
    return NULL;
}

static void run_ranks(struct rank *rank, unsigned n_rank, const struct rank *like,
                      unsigned fails_at)
{
    struct hub hub = {.n_rank = n_rank, .fails_at = fails_at};
    pthread_t thread[MAX_RANK];
    pthread_barrier_init(&hub.meet, NULL, n_rank);
    for (unsigned i = 0; i < n_rank; i++) {
        rank[i] = *like;
        rank[i].hub = &hub;
        rank[i].rank = i;
        pthread_create(&thread[i], NULL, run_rank, &rank[i]);
    }
    for (unsigned i = 0; i < n_rank; i++) {
        pthread_join(thread[i], NULL);
    }
    pthread_barrier_destroy(&hub.meet);
}

static void check_ranks(const struct rank *like, unsigned n_rank, const struct rank *alone)
{
    struct rank rank[MAX_RANK];
    uint64_t weight_bytes = 0, n_row = 0;
    run_ranks(rank, n_rank, like, 0);
    for (unsigned is = 0; is < N_SEQUENCE; is++) {
        const struct rank *r = &rank[rank_of_sequence(&rank[0], is)];
        cr_assert_arr_eq(r->logits + is * r->n_vocab, alone->logits + is * r->n_vocab,
                         r->n_vocab * sizeof(float), "%s: sequence %u with %u ranks on %u nodes",
                         like->model, is, n_rank, like->n_node);
    }
    for (unsigned i = 0; i < n_rank; i++) {
        weight_bytes = MAX(weight_bytes, rank[i].weight_bytes);
        n_row += rank[i].n_row;
        free(rank[i].logits);
    }
    cr_assert(n_rank == 1 || (weight_bytes < alone->weight_bytes && n_row > 0),
              "%s: a rank of %u has %zu bytes of %zu, %zu rows were sent", like->model, n_rank,
              (size_t)weight_bytes, (size_t)alone->weight_bytes, (size_t)n_row);
}

static void check_model(const char *model, unsigned defer)
{
    static const numoe_placement placements[] = {NUMOE_PLACEMENT_SLICE, NUMOE_PLACEMENT_SHARD,
                                                 NUMOE_PLACEMENT_REPLICATE};
    struct rank alone = {.model = model, .n_node = 1, .defer = defer};
    run_rank(&alone);
    for (unsigned n_rank = 1; n_rank <= MAX_RANK; n_rank++) {
        const struct rank like = {.model = model,
                                  .n_node = 1 + n_rank % 2,
                                  .placement = placements[n_rank % ARRAY_LEN(placements)],
                                  .defer = defer};
        struct rank other = like;
        check_ranks(&like, n_rank, &alone);
        other.n_node = 2;
        other.placement = NUMOE_PLACEMENT_SHARD;
        check_ranks(&other, n_rank, &alone);
    }
    free(alone.logits);
}

static void keep_quiet(void *arg, numoe_log_level level, const char *line)
{
    (void)arg, (void)level, (void)line; /* crowded pools are meant here */
}

/* Engines are opened by several threads: none of them changes the environment then. */
static void set_up(void)
{
    setenv("HWLOC_HIDE_ERRORS", "2", 1);
    numoe_log_set(keep_quiet, NULL, NUMOE_LOG_WARN);
}

TestSuite(ranks, .init = set_up, .timeout = 300);

#define FIXTURE(name) "tests/data/fixtures/" name "/" name "-f32.gguf"

Test(ranks, deepseek3)
{
    check_model(FIXTURE("deepseek3-a"), 0);
}

/* Biases of experts, before and after the down projection. */
Test(ranks, gptoss)
{
    check_model(FIXTURE("gptoss-a"), 0);
}

/* A gate for the shared expert. */
Test(ranks, qwen2moe)
{
    check_model(FIXTURE("qwen2moe-a"), 0);
}

/* Gate and up projection in one tensor; choices that join one layer later. */
Test(ranks, fused_and_deferred)
{
    check_model("tests/data/fixtures/deepseek2-lite-a/fused-f32.gguf", 1);
}

/* int8 activations, made on each node of each rank. */
Test(ranks, quantized)
{
    check_model("model/fable/fable-moe-Q4_K_M.gguf", 0);
}

/* A lost rank is an error for all, wherever it happens, and nobody waits for ever. */
Test(ranks, lost_rank)
{
    const struct rank like = {.model = FIXTURE("deepseek3-a"), .n_node = 2};
    struct rank rank[MAX_RANK];
    for (unsigned at = 1; at <= 5; at++) {
        run_ranks(rank, 3, &like, at);
        for (unsigned i = 0; i < 3; i++) {
            cr_assert_eq(rank[i].status, NUMOE_E_DEVICE, "meeting %u: %d", at, rank[i].status);
            cr_assert(strstr(rank[i].err.text, "other processes"), "%s", rank[i].err.text);
            free(rank[i].logits);
        }
    }
}

/* ------------------------------------------------------------------ what is not possible */

static void refuse(const numoe_engine_params *params, const char *text)
{
    numoe_engine *engine = NULL;
    numoe_error err = {0};
    cr_assert_eq(numoe_engine_open(params, &engine, &err), NUMOE_E_INPUT, "%s: %s", text, err.text);
    cr_assert(strstr(err.text, text), "%s", err.text);
}

Test(ranks, refusals)
{
    numoe_peers peers = {.rank = 1, .n_rank = 2, .gather = gather, .exchange = exchange};
    char *path = test_src_path(FIXTURE("deepseek3-a"));
    numoe_engine_params params, p;
    numoe_engine_params_init(&params);
    params.model_path = path;
    params.peers = &peers;
    p = params, p.map_experts = true, refuse(&p, "--mmap");
    p = params, p.plan = "plan.json", refuse(&p, "--plan");
    p = params, p.expert_stats = "stats", refuse(&p, "--expert-stats");
    p = params, p.gpu = "emu", refuse(&p, "--gpu");
    p = params, p.mode = NUMOE_MODE_THROUGHPUT, refuse(&p, "--mode");
    peers.n_rank = 1000, refuse(&params, "cannot be spread over 1000 processes");
    peers.rank = 1000, refuse(&params, "rank 1000 of 1000");
    free(path);
}
