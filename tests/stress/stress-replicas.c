/* Further copies of experts that come and go between the steps of an engine, on machines that are not
 * here: workers copy what others read in the next step. What is read and written is ordered by the
 * pools' starts and ends alone, so under ThreadSanitizer a copy that is used too soon is a data race;
 * without it, logits that differ from one worker's tell. Prints TAP.
 *
 *     stress-replicas [ROUNDS]
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "numoe/numoe.h"
#include "tests/unit/testdata.h"

#define N_TOKEN 400u
#define N_KIND  2u

static unsigned n_round = 4;
static numoe_error err;

/* Two kinds of text of two words each, so that others of the 16 experts are used. */
static int32_t word(unsigned kind, unsigned i)
{
    static const int32_t words[N_KIND][2] = {{3, 17}, {50, 129}};
    return words[kind][i / 3 % 2];
}

static uint64_t hash_of(const float *logits, unsigned n, uint64_t hash)
{
    for (unsigned i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &logits[i], sizeof bits);
        hash = hash_add(hash, bits);
    }
    return hash;
}

/* Of the logits after each step. */
static bool read_text(numoe_engine *engine, unsigned kind, uint64_t *hash)
{
    numoe_session *session = NULL;
    bool good = numoe_session_new(engine, 0, &session, &err) == NUMOE_OK;
    *hash = 0;
    for (unsigned i = 0; good && i < N_TOKEN; i++) {
        const int32_t id = word(kind, i);
        if (i % 100 == 0) {
            numoe_session_truncate(session, 0);
        }
        good = numoe_session_append(session, &id, 1, &err) == NUMOE_OK &&
               numoe_step(engine, &session, 1, &err) == NUMOE_OK;
        if (good) {
            *hash = hash_of(numoe_session_logits(session),
                            numoe_engine_get_info(engine)->n_vocab, *hash);
        }
    }
    numoe_session_free(session);
    return good;
}

static bool open_engine(const char *topology, unsigned n_thread, numoe_engine **engine)
{
    char *path = test_src_path("tests/data/fixtures/deepseek3-a/deepseek3-a-f32.gguf");
    numoe_engine_params params;
    if (path == NULL) {
        snprintf(err.text, sizeof err.text, "the fixture deepseek3-a is missing");
        return false;
    }
    numoe_engine_params_init(&params);
    params.model_path = path;
    params.topology = topology;
    params.n_thread = n_thread;
    if (topology != NULL) {
        params.placement = NUMOE_PLACEMENT_SHARD;
        params.replica_percent = 8;
        params.adapt = true;
    }
    const bool good = numoe_engine_open(&params, engine, &err) == NUMOE_OK;
    free(path);
    return good;
}

/* want [N_KIND]: filled by the first engine, which has one worker. */
static bool stress(const char *topology, unsigned n_thread, uint64_t *want)
{
    numoe_engine *engine = NULL;
    bool good = open_engine(topology, n_thread, &engine);
    for (unsigned i = 0; good && i < (topology != NULL ? n_round : 1) * N_KIND; i++) {
        uint64_t hash;
        good = read_text(engine, i % N_KIND, &hash);
        if (good && topology == NULL) {
            want[i % N_KIND] = hash;
        } else if (good && hash != want[i % N_KIND]) {
            snprintf(err.text, sizeof err.text, "other logits than one worker's");
            good = false;
        }
    }
    if (good && topology != NULL) {
        const numoe_replicas r = numoe_engine_replicas(engine);
        printf("# %u of %u places filled, %u swapped\n", (unsigned)(r.n_made - r.n_swapped),
               (unsigned)r.n_place, (unsigned)r.n_swapped);
        snprintf(err.text, sizeof err.text, "nothing was copied, or swapped");
        good = r.n_made > 0 && r.n_swapped > 0;
    }
    numoe_engine_close(engine);
    return good;
}

int main(int argc, char **argv)
{
    static const char *const machine[] = {NULL, "pack:2 [numa(memory=4GiB)] core:2 pu:1",
                                          "pack:3 [numa(memory=4GiB)] core:1 pu:1"};
    uint64_t want[N_KIND] = {0};
    unsigned n_bad = 0;
    n_round = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : n_round;
    printf("1..%zu\n", ARRAY_LEN(machine));
    for (unsigned i = 0; i < ARRAY_LEN(machine); i++) {
        const bool good = stress(machine[i], i > 0 ? 5 : 1, want);
        printf("%s %u - %s%s%s\n", good ? "ok" : "not ok", i + 1,
               machine[i] != NULL ? machine[i] : "one worker", good ? "" : ": ",
               good ? "" : err.text);
        fflush(stdout);
        n_bad += !good;
    }
    return n_bad > 0;
}
