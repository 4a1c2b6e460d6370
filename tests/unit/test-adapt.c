/* Further copies of experts that come and go while a model runs: copied to the byte, used, dropped,
 * and never a bit of a result that depends on them.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "numoe/numoe.h"
#include "store/replica.h"
#include "tests/unit/rig.h"
#include "tests/unit/testdata.h"

#define FABLE "model/fable/fable-moe-Q4_K_M.gguf"

/* ------------------------------------------------------------------ copies in the store */

/* Layer 1 is the first with experts. */
enum { IL = 1, IE = 5 };

static unsigned home_of(const struct rig *r, unsigned il, unsigned ie)
{
    const uint64_t holders = r->store->holders[(size_t)il * r->model->hp.n_expert + ie];
    cr_assert_eq(holders & (holders - 1), 0);
    return (unsigned)__builtin_ctzll(holders);
}

static void expect_equal_bytes(const struct rig *r, unsigned in, unsigned from, unsigned il,
                               unsigned ie)
{
    for (unsigned s = SLOT_GATE_EXPS; s <= SLOT_DOWN_EXPS; s++) {
        const struct weight *w = &r->store->layer[il][s];
        const uint8_t *copy = weight_panel(w, in, ie, 0), *first = weight_panel(w, from, ie, 0);
        cr_assert_neq(copy, first);
        cr_assert_arr_eq(copy, first, weight_panels(w) * w->panel_bytes, "slot %u", s);
    }
}

/* In the smallest pieces, as if there were no time. */
static void copy_whole(const struct rig *r, unsigned in)
{
    uint64_t done = 0, bytes = 0;
    for (unsigned i = 0; done == 0; i++) {
        cr_assert_lt(i, 1000);
        cr_assert_eq(r->store->replicas->copies[IL * 32 + IE] >> in & 1, 0, "before it is whole");
        bytes += replica_continue(r->store, r->pools, 0, &done);
    }
    cr_assert_eq(done, UINT64_C(1) << in);
    cr_assert_eq(bytes, r->store->layer[IL][SLOT_GATE_EXPS].part[in].mat_bytes +
                            r->store->layer[IL][SLOT_UP_EXPS].part[in].mat_bytes +
                            r->store->layer[IL][SLOT_DOWN_EXPS].part[in].mat_bytes);
}

Test(store, copies_come_and_go)
{
    char *path = test_src_path(FABLE);
    cr_assert_not_null(path);
    const struct placement_request request = {
        .mode = NUMOE_PLACEMENT_SHARD, .replica_percent = 4, .replicas_change = true};
    struct rig r = rig_open_placed(path, 3, 4, 1, &request);
    struct replicas *copies = r.store->replicas;
    const unsigned from = home_of(&r, IL, IE), in = (from + 1) % 3;
    uint64_t *holders = &r.store->holders[IL * 32 + IE];
    const unsigned n_place = copies->node[in].n_place;
    cr_assert_gt(n_place, 0);
    cr_assert_eq(copies->node[in].n_free, n_place);

    cr_assert(replica_begin(r.store, in, IL, IE));
    cr_assert_eq(copies->node[in].n_free, n_place - 1);
    copy_whole(&r, in);
    cr_assert_eq(*holders, UINT64_C(1) << from | UINT64_C(1) << in);
    expect_equal_bytes(&r, in, from, IL, IE);
    const uint8_t *place = weight_panel(&r.store->layer[IL][SLOT_GATE_EXPS], in, IE, 0);
    cr_assert(place >= copies->node[in].data &&
              place < copies->node[in].data + n_place * copies->place_bytes);

    replica_drop(r.store, in, IL, IE);
    cr_assert_eq(*holders, UINT64_C(1) << from);
    cr_assert_eq(copies->copies[IL * 32 + IE], 0);
    cr_assert_eq(copies->node[in].n_free, n_place);
    /* All places at once, in layers of different types, until there is none. */
    unsigned n = 0;
    for (unsigned i = 0; i < 5 * 32 && n < n_place; i++) {
        const unsigned il = 1 + i % 5, ie = i / 5, home = home_of(&r, il, ie);
        if (home != in) {
            uint64_t done = 0;
            cr_assert(replica_begin(r.store, in, il, ie));
            while (done == 0) {
                replica_continue(r.store, r.pools, clock_ns() + 1000000, &done);
            }
            expect_equal_bytes(&r, in, home, il, ie);
            n++;
        }
    }
    cr_assert_eq(n, n_place);
    cr_assert_not(replica_begin(r.store, in, IL, IE), "no place is left");
    rig_close(&r);
    free(path);
}

/* ------------------------------------------------------------------ engines */

enum { N_KIND = 700 };

/* Two kinds of text, of few words each. */
static int32_t word(unsigned kind, unsigned i)
{
    static const int32_t words[2][6] = {{311, 402, 77, 250, 93, 128}, {55, 470, 210, 33, 365, 181}};
    return words[kind][(i * i + i / 7) % 6];
}

static numoe_engine *open_engine(const char *topology, unsigned n_thread, bool adapt)
{
    numoe_engine_params params;
    numoe_engine *engine = NULL;
    numoe_error err = {0};
    char *path = test_src_path(FABLE);
    cr_assert_not_null(path);
    numoe_engine_params_init(&params);
    params.model_path = path;
    params.topology = topology;
    params.n_thread = n_thread;
    if (topology != NULL) {
        params.placement = NUMOE_PLACEMENT_SHARD;
        params.replica_percent = 10;
        params.adapt = adapt;
    }
    cr_assert_eq(numoe_engine_open(&params, &engine, &err), NUMOE_OK, "%s", err.text);
    free(path);
    return engine;
}

struct hash {
    uint64_t value;
    unsigned n_vocab, n;
};

/* Of the bits of all logits, in order. */
static void add_logits(void *arg, size_t position, const float *logits)
{
    struct hash *hash = arg;
    (void)position;
    for (unsigned i = 0; i < hash->n_vocab; i++) {
        uint32_t bits;
        memcpy(&bits, &logits[i], sizeof bits);
        hash->value = hash_add(hash->value, bits);
    }
    hash->n++;
}

static void expect_local(const numoe_engine *engine)
{
    numoe_traffic traffic;
    for (unsigned in = 0; numoe_engine_traffic(engine, in, &traffic); in++) {
        cr_assert_eq(traffic.remote_bytes, 0, "node %u reads weights of others", in);
    }
}

/* Words of a kind: a prompt, then one by one. The hash of all logits. */
static uint64_t read_kind(numoe_engine *engine, unsigned kind)
{
    numoe_error err = {0};
    numoe_session *session = NULL;
    struct hash hash = {.n_vocab = numoe_engine_get_info(engine)->n_vocab};
    cr_assert_eq(numoe_session_new(engine, N_KIND, &session, &err), NUMOE_OK, "%s", err.text);
    numoe_session_on_logits(session, add_logits, &hash);
    for (unsigned i = 0, n; i < N_KIND; i += n) {
        n = i < N_KIND - 60 ? 16 : 1;
        for (unsigned j = i; j < i + n; j++) {
            const int32_t id = word(kind, j);
            cr_assert_eq(numoe_session_append(session, &id, 1, &err), NUMOE_OK, "%s", err.text);
        }
        cr_assert_eq(numoe_step(engine, &session, 1, &err), NUMOE_OK, "%s", err.text);
        const numoe_replicas r = numoe_engine_replicas(engine);
        cr_assert_leq(r.n_copied, r.n_place);
        cr_assert_leq(r.n_choice_copied, r.n_choice);
        cr_assert_leq(r.n_made - r.n_swapped, r.n_place);
    }
    cr_assert_eq(hash.n, N_KIND);
    numoe_session_free(session);
    return hash.value;
}

/* Until as many copies are there as there are places, or as many were swapped; how many swaps is a
 * matter of time, as copying is. */
static numoe_replicas read_until(numoe_engine *engine, unsigned kind, uint64_t want,
                                 uint64_t n_swapped)
{
    numoe_replicas r;
    unsigned n = 0;
    do {
        cr_assert_eq(read_kind(engine, kind), want, "other bits");
        r = numoe_engine_replicas(engine);
        cr_assert_lt(++n, 20, "%d made, %d swapped", (int)r.n_made, (int)r.n_swapped);
    } while (r.n_made - r.n_swapped < r.n_place || r.n_swapped < n_swapped);
    return r;
}

static void check_machine(const char *topology, const uint64_t want[2])
{
    numoe_engine *engine = open_engine(topology, 0, true);
    numoe_replicas r = read_until(engine, 0, want[0], 0);
    cr_assert_gt(r.n_place, 10);
    cr_assert_gt(r.n_copied, r.n_place / 4);
    cr_assert_gt(r.n_choice_copied, 0);
    cr_assert_gt(r.copied_bytes, r.n_made * 100000);
    cr_assert_gt(r.copy_seconds, 0);
    const uint64_t n_swapped = r.n_swapped;
    r = read_until(engine, 1, want[1], n_swapped + 3);
    cr_assert_eq(r.n_made - r.n_swapped, r.n_place);
    expect_local(engine);
    numoe_engine_close(engine);

    engine = open_engine(topology, 0, false);
    r = read_until(engine, 0, want[0], 0);
    cr_assert_eq(r.n_made, r.n_place);
    for (unsigned i = 0; i < 3; i++) {
        cr_assert_eq(read_kind(engine, 1), want[1], "other bits");
    }
    r = numoe_engine_replicas(engine);
    cr_assert(r.n_made == r.n_place && r.n_swapped == 0, "they stay");
    expect_local(engine);
    numoe_engine_close(engine);
}

/* Copies appear while one kind of text is read, and are swapped while another is: logits stay those
 * of one worker. Without adapt they appear, and stay. */
Test(engine, follows_what_is_used_without_changing_a_bit, .timeout = 240)
{
    uint64_t want[2];
    numoe_engine *engine = open_engine(NULL, 1, false);
    for (unsigned kind = 0; kind < 2; kind++) {
        want[kind] = read_kind(engine, kind);
    }
    const numoe_replicas none = numoe_engine_replicas(engine);
    cr_assert(none.n_place == 0 && none.n_made == 0 && none.n_copied == 0);
    numoe_engine_close(engine);
    check_machine("pack:2 [numa(memory=8GiB)] core:2 pu:1", want);
    check_machine("pack:4 [numa(memory=8GiB)] core:1 pu:1", want);
}

static void expect_refused(numoe_engine_params params, const char *why)
{
    numoe_engine *engine = NULL;
    numoe_error err = {0};
    params.topology = "pack:2 [numa(memory=8GiB)] core:2 pu:1";
    cr_assert_eq(numoe_engine_open(&params, &engine, &err), NUMOE_E_INPUT);
    cr_assert_not_null(strstr(err.text, why), "%s", err.text);
}

Test(engine, refuses_what_has_nothing_to_adapt)
{
    numoe_engine_params params;
    numoe_engine_params_init(&params);
    params.adapt = true;
    expect_refused(params, "--adapt needs a budget");
    params.placement = NUMOE_PLACEMENT_SLICE;
    expect_refused(params, "for the placement shard: slice has none");
    params.placement = NUMOE_PLACEMENT_SHARD;
    params.replica_percent = 10;
    params.map_experts = true;
    expect_refused(params, "have no replicas");
    params.map_experts = false;
    params.mode = NUMOE_MODE_THROUGHPUT;
    expect_refused(params, "throughput mode");
    const numoe_peers peers = {.n_rank = 2};
    params.mode = NUMOE_MODE_AUTO;
    params.peers = &peers;
    expect_refused(params, "experts spread over processes");
}
