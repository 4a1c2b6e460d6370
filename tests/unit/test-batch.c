/* Batches of generations, and sessions that share a beginning: whatever runs together, each must
 * give what it gives alone, to the bit. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <math.h>
#include <string.h>

#include "numoe/numoe.h"
#include "tests/unit/testdata.h"

#define FABLE       "model/fable/fable-moe-Q4_K_M.gguf"
#define TEXT        "tests/data/fable/heldout.txt"
#define MAX_PROMPT  1024
#define N_REQUEST   12
#define CHUNK_BYTES (256 * 6 * (256 + 32) * 2) /* 256 positions, 6 layers, latent 256 + 32 in f16  \
                                                */

static numoe_engine *open_engine(unsigned n_thread, unsigned chunk_tokens)
{
    numoe_engine_params params;
    numoe_engine *engine = NULL;
    numoe_error err = {0};
    char *path = test_src_path(FABLE);

    cr_assert_not_null(path);
    numoe_engine_params_init(&params);
    params.model_path = path;
    params.n_thread = n_thread;
    params.chunk_tokens = chunk_tokens;
    cr_assert(numoe_engine_open(&params, &engine, &err) == NUMOE_OK, "%s", err.text);
    free(path);
    return engine;
}

static numoe_session *new_session(numoe_engine *engine)
{
    numoe_session *session = NULL;
    cr_assert(numoe_session_new(engine, 0, &session, NULL) == NUMOE_OK);
    return session;
}

/* ------------------------------------------------------------------ prompts */

struct prompt {
    int32_t id[MAX_PROMPT];
    size_t n;
};

/* `bytes` of the text from `from`, then a word that tells prompts apart. */
static void make_prompt(const numoe_engine *engine, size_t from, size_t bytes, const char *word,
                        struct prompt *out)
{
    char text[4096], *path = test_src_path(TEXT);
    FILE *f = fopen(path, "rb");

    cr_assert(f && fseek(f, (long)from, SEEK_SET) == 0 && fread(text, 1, bytes, f) == bytes);
    fclose(f);
    free(path);
    strcpy(text + bytes, word);
    cr_assert(numoe_tokenize(engine, text, strlen(text), NUMOE_TOKENIZE_BOS, out->id, MAX_PROMPT,
                             &out->n, NULL) == NUMOE_OK);
    cr_assert(out->n <= MAX_PROMPT);
}

/* Three that begin with the same 1400 bytes (more than a chunk of the cache), three with the same
 * 200, the others different; greedy and drawn ones, with and without stop strings. */
static void make_requests(const numoe_engine *engine, struct prompt *prompt, numoe_request *request)
{
    static const char *const word[] = {" fox", " crow", " miller", " king"};
    static const char *const stop[] = {"the"};

    for (unsigned i = 0; i < N_REQUEST; i++) {
        const size_t bytes = i < 3 ? 1400 : i < 6 ? 200 : 10 + 37 * i;
        make_prompt(engine, i < 6 ? 0 : 900 * i, bytes, word[i % 4], &prompt[i]);
        request[i] = (numoe_request){
            .tag = i,
            .ids = prompt[i].id,
            .n_id = prompt[i].n,
            .max_tokens = 5 + i * 5 % 23,
            .stop = stop,
            .n_stop = i % 4 == 3,
        };
        numoe_sampler_params_init(&request[i].sampler);
        request[i].sampler.temperature = i % 2 ? 0.8f : 0;
        request[i].sampler.top_p = i % 3 ? 0.9f : 1;
        request[i].sampler.seed = i;
    }
}

/* ------------------------------------------------------------------ alone and together */

struct outcome {
    char text[2048];
    int32_t id[64];
    size_t n, n_shared;
    numoe_finish finish;
};

static bool add_text(void *arg, const char *text, size_t bytes)
{
    strncat(arg, text, bytes);
    return true;
}

static void run_alone(numoe_engine *engine, const numoe_request *r, struct outcome *out)
{
    numoe_session *session = new_session(engine);
    numoe_sampler *sampler = NULL;
    numoe_generate_result result;
    const numoe_generate_params params = {
        .max_tokens = r->max_tokens,
        .stop = r->stop,
        .n_stop = r->n_stop,
        .on_text = add_text,
        .arg = out->text,
    };

    cr_assert(numoe_sampler_new(&r->sampler, numoe_engine_get_info(engine)->n_vocab, &sampler,
                                NULL) == NUMOE_OK);
    cr_assert(numoe_session_append(session, r->ids, r->n_id, NULL) == NUMOE_OK);
    cr_assert(numoe_generate(session, sampler, &params, &result, NULL) == NUMOE_OK);
    out->n = result.n_generated;
    out->finish = result.finish;
    memcpy(out->id, numoe_session_tokens(session) + r->n_id, out->n * sizeof *out->id);
    numoe_sampler_free(sampler);
    numoe_session_free(session);
}

static void run_together(numoe_engine *engine, const numoe_batch_params *params,
                         const numoe_request *request, struct outcome *out, numoe_batch_info *info)
{
    numoe_batch *batch = NULL;
    numoe_completion c;
    numoe_error err = {0};
    unsigned n_done = 0;

    cr_assert(numoe_batch_new(engine, params, &batch, &err) == NUMOE_OK, "%s", err.text);
    for (unsigned i = 0; i < N_REQUEST; i++) {
        cr_assert(numoe_batch_submit(batch, &request[i], &err) == NUMOE_OK, "%s", err.text);
    }
    for (unsigned step = 0; n_done < N_REQUEST && step < 2000; step++) {
        cr_assert(numoe_batch_step(batch, &err) == NUMOE_OK, "%s", err.text);
        while (numoe_batch_next(batch, &c)) {
            struct outcome *o = &out[c.tag];
            cr_assert(c.status == NUMOE_OK, "%s", c.error.text);
            cr_assert_eq(o->n, 0, "request %u is given twice", (unsigned)c.tag);
            cr_expect_eq(c.n_prompt, request[c.tag].n_id);
            cr_expect_eq(strlen(c.text), c.text_bytes);
            strcpy(o->text, c.text);
            memcpy(o->id, c.ids, c.n_generated * sizeof *c.ids);
            o->n = c.n_generated;
            o->n_shared = c.n_shared;
            o->finish = c.finish;
            n_done++;
        }
    }
    cr_assert_eq(n_done, N_REQUEST);
    numoe_batch_get_info(batch, info);
    numoe_batch_free(batch);
}

static void expect_same(const struct outcome *a, const struct outcome *b)
{
    for (unsigned i = 0; i < N_REQUEST; i++) {
        cr_expect_str_eq(a[i].text, b[i].text, "request %u", i);
        cr_expect_eq(a[i].n, b[i].n, "request %u", i);
        cr_expect_eq(a[i].finish, b[i].finish, "request %u", i);
        cr_expect(memcmp(a[i].id, b[i].id, a[i].n * sizeof *a[i].id) == 0, "request %u", i);
    }
}

Test(batch, company_does_not_change_a_result)
{
    static struct prompt prompt[N_REQUEST];
    static struct outcome alone[N_REQUEST], all[N_REQUEST], few[N_REQUEST], tight[N_REQUEST];
    numoe_request request[N_REQUEST];
    numoe_batch_info info;
    numoe_engine *engine = open_engine(2, 64);
    uint64_t n_prompt = 0;

    make_requests(engine, prompt, request);
    for (unsigned i = 0; i < N_REQUEST; i++) {
        run_alone(engine, &request[i], &alone[i]);
        n_prompt += request[i].n_id;
    }
    run_together(engine, &(numoe_batch_params){0}, request, all, &info);
    expect_same(alone, all);
    cr_expect(all[1].n_shared > 256 && all[2].n_shared > 256, "%zu and %zu tokens shared",
              all[1].n_shared, all[2].n_shared);
    cr_expect(all[4].n_shared > 16, "%zu tokens shared", all[4].n_shared);
    cr_expect_eq(info.n_prompt + info.n_shared, n_prompt);
    cr_expect_eq(info.n_preempted, 0);
    cr_expect_eq(info.n_waiting + info.n_active, 0);

    run_together(engine, &(numoe_batch_params){.max_sequences = 3}, request, few, &info);
    expect_same(alone, few);

    /* the first prompts alone need two chunks each */
    run_together(engine, &(numoe_batch_params){.kv_bytes = 2 * CHUNK_BYTES}, request, tight, &info);
    expect_same(alone, tight);
    numoe_engine_close(engine);
}

/* All fit when they begin, not when they have grown beyond a chunk. */
Test(batch, who_outgrows_the_memory_is_evaluated_again)
{
    static struct prompt prompt;
    struct outcome alone[N_REQUEST] = {0}, together[N_REQUEST] = {0};
    numoe_request request[N_REQUEST];
    numoe_batch_info info;
    numoe_engine *engine = open_engine(2, 64);

    make_prompt(engine, 0, 880, "", &prompt);
    cr_assert(prompt.n > 234 && prompt.n < 252, "%zu tokens", prompt.n);
    for (unsigned i = 0; i < N_REQUEST; i++) {
        request[i] =
            (numoe_request){.tag = i, .ids = &prompt.id[i], .n_id = prompt.n - i, .max_tokens = 40};
        numoe_sampler_params_init(&request[i].sampler);
        request[i].sampler.temperature = 1;
        request[i].ignore_eog = true;
        request[i].sampler.seed = i;
    }
    run_together(engine, &(numoe_batch_params){.kv_bytes = 6 * CHUNK_BYTES}, request, together,
                 &info);
    cr_expect(info.n_preempted > 0);
    run_together(engine, &(numoe_batch_params){.max_sequences = 1}, request, alone, &info);
    cr_expect_eq(info.n_preempted, 0);
    expect_same(alone, together);
    numoe_engine_close(engine);
}

Test(batch, requests_that_cannot_run_are_refused)
{
    static int32_t ids[2048];
    static const char *const empty[] = {""};
    numoe_engine *engine = open_engine(1, 0);
    numoe_batch *batch = NULL;
    numoe_error err = {0};
    numoe_request r = {.ids = ids, .n_id = 1};

    numoe_sampler_params_init(&r.sampler);
    cr_expect(numoe_batch_new(engine, &(numoe_batch_params){.n_ctx = 4096}, &batch, &err) ==
              NUMOE_E_INPUT_CONTEXT);
    cr_assert(numoe_batch_new(engine, &(numoe_batch_params){.n_ctx = 100}, &batch, &err) ==
              NUMOE_OK);
    r.n_id = 0;
    cr_expect(numoe_batch_submit(batch, &r, &err) == NUMOE_E_INPUT);
    r.n_id = 100;
    cr_expect(numoe_batch_submit(batch, &r, &err) == NUMOE_E_INPUT_CONTEXT);
    r.n_id = 1;
    ids[0] = 4096;
    cr_expect(numoe_batch_submit(batch, &r, &err) == NUMOE_E_INPUT);
    ids[0] = 7;
    r.stop = empty;
    r.n_stop = 1;
    cr_expect(numoe_batch_submit(batch, &r, &err) == NUMOE_E_INPUT);
    r.n_stop = 0;
    r.n_top_logprob = 21;
    cr_expect(numoe_batch_submit(batch, &r, &err) == NUMOE_E_INPUT);
    r.n_top_logprob = 0;
    r.sampler.top_p = 2;
    cr_expect(numoe_batch_submit(batch, &r, &err) == NUMOE_E_INPUT);
    r.sampler.top_p = 1;
    cr_expect(numoe_batch_submit(batch, &r, &err) == NUMOE_OK);
    numoe_batch_free(batch); /* with a request that waits */
    numoe_engine_close(engine);
}

/* ------------------------------------------------------------------ logprobs */

/* log softmax of all logits, in long double and by another order of sums. */
static double log_softmax(const float *logits, unsigned n, int32_t id)
{
    long double sum = 0;
    for (unsigned i = n; i-- > 0;) {
        sum += expl((long double)logits[i] - (long double)logits[id]);
    }
    return (double)-logl(sum);
}

Test(batch, logprobs_are_those_of_the_logits)
{
    static struct prompt prompt;
    numoe_engine *engine = open_engine(2, 0);
    const unsigned n_vocab = numoe_engine_get_info(engine)->n_vocab;
    numoe_session *session = new_session(engine);
    numoe_batch *batch = NULL;
    numoe_completion c;

    make_prompt(engine, 0, 100, "", &prompt);
    numoe_request r = {.ids = prompt.id,
                       .n_id = prompt.n,
                       .max_tokens = 6,
                       .want_logprobs = true,
                       .n_top_logprob = 3};
    numoe_sampler_params_init(&r.sampler);
    r.sampler.temperature = 1.5f; /* changes what is drawn, not what is told */
    r.sampler.seed = 3;
    cr_assert(numoe_batch_new(engine, &(numoe_batch_params){0}, &batch, NULL) == NUMOE_OK);
    cr_assert(numoe_batch_submit(batch, &r, NULL) == NUMOE_OK);
    while (!numoe_batch_next(batch, &c)) {
        cr_assert(numoe_batch_step(batch, NULL) == NUMOE_OK);
    }
    cr_assert_eq(c.n_top, 3);
    cr_assert(numoe_session_append(session, prompt.id, prompt.n, NULL) == NUMOE_OK);
    for (size_t i = 0; i < c.n_generated; i++) {
        cr_assert(numoe_step(engine, &session, 1, NULL) == NUMOE_OK);
        const float *logits = numoe_session_logits(session);
        const numoe_logprob *top = &c.top[3 * i];
        cr_expect_eq(c.logprob[i].id, c.ids[i]);
        cr_expect_float_eq(c.logprob[i].logprob, log_softmax(logits, n_vocab, c.ids[i]), 1e-5);
        unsigned n_better = 0;
        for (unsigned v = 0; v < n_vocab; v++) {
            n_better += logits[v] > logits[top[2].id];
        }
        cr_expect_eq(n_better, 2);
        cr_expect(logits[top[0].id] >= logits[top[1].id] && logits[top[1].id] > logits[top[2].id]);
        cr_expect_float_eq(top[2].logprob, log_softmax(logits, n_vocab, top[2].id), 1e-5);
        cr_assert(numoe_session_append(session, &c.ids[i], 1, NULL) == NUMOE_OK);
    }
    numoe_session_free(session);
    numoe_batch_free(batch);
    numoe_engine_close(engine);
}

/* ------------------------------------------------------------------ shared beginnings */

static void evaluate(numoe_engine *engine, numoe_session *session)
{
    while (numoe_session_pending(session)) {
        cr_assert(numoe_step(engine, &session, 1, NULL) == NUMOE_OK);
    }
}

static void expect_logits(numoe_engine *engine, numoe_session *session, const int32_t *ids,
                          size_t n)
{
    numoe_session *fresh = new_session(engine);

    cr_assert(numoe_session_append(fresh, ids, n, NULL) == NUMOE_OK);
    evaluate(engine, fresh);
    cr_expect(memcmp(numoe_session_logits(fresh), numoe_session_logits(session),
                     numoe_engine_get_info(engine)->n_vocab * sizeof(float)) == 0);
    numoe_session_free(fresh);
}

Test(share, both_go_on_as_if_they_had_not)
{
    static struct prompt a, b;
    numoe_engine *engine = open_engine(2, 0);
    numoe_session *first = new_session(engine), *second = new_session(engine);
    size_t n = 0;

    make_prompt(engine, 0, 1400, " fox", &a);
    make_prompt(engine, 0, 1400, " crow and", &b);
    while (a.id[n] == b.id[n]) {
        n++;
    }
    cr_assert(n > 256 && n % 256 != 0, "%zu tokens in common", n);
    cr_assert(numoe_session_append(first, a.id, n, NULL) == NUMOE_OK);
    evaluate(engine, first);
    cr_assert(numoe_session_append(second, b.id, b.n, NULL) == NUMOE_OK);
    cr_assert(numoe_session_share(second, first, n, NULL) == NUMOE_OK);
    cr_expect_eq(numoe_session_pending(second), b.n - n);
    cr_expect_null(numoe_session_logits(second));

    /* both write behind the same positions, the one that shares first */
    evaluate(engine, second);
    cr_assert(numoe_session_append(first, a.id + n, a.n - n, NULL) == NUMOE_OK);
    evaluate(engine, first);
    expect_logits(engine, second, b.id, b.n);
    expect_logits(engine, first, a.id, a.n);

    /* a cut into what is shared, and the end of the one that had it first */
    numoe_session *third = new_session(engine);
    cr_assert(numoe_session_share(third, first, 200, NULL) == NUMOE_OK);
    cr_expect_eq(numoe_session_length(third), 200);
    numoe_session_truncate(third, 100);
    cr_assert(numoe_session_append(third, b.id, 30, NULL) == NUMOE_OK);
    evaluate(engine, third);
    numoe_session_truncate(first, 150);
    cr_assert(numoe_session_append(first, a.id + 150, a.n - 150, NULL) == NUMOE_OK);
    evaluate(engine, first);
    expect_logits(engine, first, a.id, a.n);
    numoe_session_free(first);
    int32_t mixed[130];
    memcpy(mixed, a.id, 100 * sizeof *mixed);
    memcpy(mixed + 100, b.id, 30 * sizeof *mixed);
    expect_logits(engine, third, mixed, 130);
    numoe_session_free(second);
    numoe_session_free(third);
    numoe_engine_close(engine);
}

Test(share, what_does_not_go_is_told)
{
    numoe_engine *engine = open_engine(1, 0);
    numoe_session *first = new_session(engine), *second = new_session(engine);
    const int32_t a[] = {5, 6, 7, 8}, b[] = {5, 9};
    numoe_error err = {0};

    cr_assert(numoe_session_append(first, a, 4, NULL) == NUMOE_OK);
    cr_expect(numoe_session_share(second, first, 2, &err) == NUMOE_E_STATE);
    cr_expect(strstr(err.text, "evaluated 0") != NULL, "%s", err.text);
    evaluate(engine, first);
    cr_expect(numoe_session_share(first, first, 2, &err) == NUMOE_E_STATE);
    cr_assert(numoe_session_append(second, b, 2, NULL) == NUMOE_OK);
    cr_expect(numoe_session_share(second, first, 2, &err) == NUMOE_E_STATE);
    cr_expect(strstr(err.text, "differ") != NULL, "%s", err.text);
    cr_expect(numoe_session_share(second, first, 1, &err) == NUMOE_OK);
    cr_expect(numoe_session_share(second, first, 1, &err) == NUMOE_E_STATE);
    numoe_session_free(first);
    numoe_session_free(second);
    numoe_engine_close(engine);
}
