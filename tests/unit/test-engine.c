/* Engines and sessions as a host program sees them, on a tiny model with known answers
 * (fixtures/deepseek3-a: prompts and a greedy continuation of a float32 reference) and on the
 * bundled one. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <jansson.h>
#include <string.h>

#include "numoe/numoe.h"
#include "tests/unit/testdata.h"

#define TINY            "tests/data/fixtures/deepseek3-a/deepseek3-a-f32.gguf"
#define TINY_REFERENCE  "tests/data/fixtures/deepseek3-a/reference.json"
#define FABLE           "model/fable/fable-moe-Q4_K_M.gguf"
#define FABLE_REFERENCE "tests/data/fable/reference/reference.json"

#define MAX_IDS 256

struct ids {
    int32_t id[MAX_IDS];
    size_t n;
};

static struct ids ids_of(const json_t *array)
{
    struct ids ids = {.n = json_array_size(array)};

    cr_assert(ids.n > 0 && ids.n <= MAX_IDS);
    for (size_t i = 0; i < ids.n; i++) {
        ids.id[i] = (int32_t)json_integer_value(json_array_get(array, i));
    }
    return ids;
}

static json_t *load_json(const char *rel)
{
    char *path = test_src_path(rel);
    cr_assert(path != NULL, "%s is missing", rel);
    json_t *root = json_load_file(path, 0, NULL);
    cr_assert(root != NULL, "%s is not JSON", path);
    free(path);
    return root;
}

/* "long" or "short". */
static struct ids tiny_prompt(const char *which)
{
    json_t *root = load_json(TINY_REFERENCE);
    struct ids ids = ids_of(json_object_get(
        json_object_get(root, strcmp(which, "long") ? "prompt_short" : "prompt_long"), "ids"));
    json_decref(root);
    return ids;
}

static numoe_engine *open_model(const char *rel, unsigned n_thread, unsigned chunk_tokens)
{
    numoe_engine_params params;
    numoe_engine *engine = NULL;
    numoe_error err = {0};
    char *path = test_src_path(rel);

    cr_assert(path != NULL, "%s is missing", rel);
    numoe_engine_params_init(&params);
    params.model_path = path;
    params.n_thread = n_thread;
    params.chunk_tokens = chunk_tokens;
    numoe_status status = numoe_engine_open(&params, &engine, &err);
    cr_assert(status == NUMOE_OK, "%s", err.text);
    free(path);
    return engine;
}

Test(engine, the_bundled_model_is_opened_where_none_is_named)
{
    numoe_engine_params params;
    numoe_engine *engine = NULL;
    numoe_error err = {0};
    const char *path = NULL;

    numoe_engine_params_init(&params);
    params.n_thread = 1;
    cr_assert(numoe_engine_open(&params, &engine, &err) == NUMOE_OK, "%s", err.text);
    cr_expect_str_eq(numoe_engine_get_info(engine)->model_name, "fable-moe");
    numoe_engine_close(engine);
    cr_expect(numoe_bundled_model(&path, &err) == NUMOE_OK);
    cr_expect_str_eq(strrchr(path, '/'), "/fable-moe-Q4_K_M.gguf");

    params.model_path = "";
    cr_expect(numoe_engine_open(&params, &engine, &err) == NUMOE_E_INPUT);
}

static void count_progress(void *arg, uint64_t done_bytes, uint64_t total_bytes)
{
    (void)done_bytes, (void)total_bytes;
    ++*(int *)arg;
}

Test(engine, a_context_that_is_too_short_is_refused_before_weights_are_read)
{
    numoe_engine_params params;
    numoe_engine *engine = NULL;
    numoe_error err = {0};
    int n_progress = 0;

    numoe_engine_params_init(&params);
    params.n_thread = 1;
    params.progress = count_progress;
    params.progress_arg = &n_progress;
    params.min_ctx = 2049;
    cr_expect(numoe_engine_open(&params, &engine, &err) == NUMOE_E_INPUT_CONTEXT);
    cr_expect_str_eq(err.text, "context of 2049 tokens: this model was made for at most 2048");
    cr_expect(eq(int, n_progress, 0));
    params.min_ctx = 2048;
    cr_expect(numoe_engine_open(&params, &engine, &err) == NUMOE_OK, "%s", err.text);
    cr_expect(gt(int, n_progress, 0));
    numoe_engine_close(engine);
}

static numoe_session *new_session(numoe_engine *engine, unsigned n_ctx)
{
    numoe_session *session = NULL;
    numoe_error err = {0};
    cr_assert(numoe_session_new(engine, n_ctx, &session, &err) == NUMOE_OK, "%s", err.text);
    return session;
}

static void append(numoe_session *session, const int32_t *ids, size_t n)
{
    numoe_error err = {0};
    cr_assert(numoe_session_append(session, ids, n, &err) == NUMOE_OK, "%s", err.text);
}

/* Steps until nothing is pending; how many steps it took. */
static unsigned step_all(numoe_engine *engine, numoe_session **sessions, size_t n)
{
    numoe_error err = {0};
    unsigned n_step = 0;

    for (size_t i = 0; i < n; i++) {
        while (numoe_session_pending(sessions[i])) {
            cr_assert(numoe_step(engine, sessions, n, &err) == NUMOE_OK, "%s", err.text);
            n_step++;
        }
    }
    return n_step;
}

/* Copy of the logits after ids, evaluated alone; free(). */
static float *logits_of(numoe_engine *engine, const int32_t *ids, size_t n)
{
    numoe_session *session = new_session(engine, 0);
    size_t bytes = numoe_engine_get_info(engine)->n_vocab * sizeof(float);
    float *copy = malloc(bytes);

    append(session, ids, n);
    step_all(engine, &session, 1);
    memcpy(copy, numoe_session_logits(session), bytes);
    numoe_session_free(session);
    return copy;
}

static bool same_logits(numoe_engine *engine, const float *a, const float *b)
{
    return a && b && memcmp(a, b, numoe_engine_get_info(engine)->n_vocab * sizeof(float)) == 0;
}

static numoe_sampler *greedy(numoe_engine *engine)
{
    numoe_sampler_params params;
    numoe_sampler *sampler = NULL;

    numoe_sampler_params_init(&params);
    cr_assert(numoe_sampler_new(&params, numoe_engine_get_info(engine)->n_vocab, &sampler, NULL) ==
              NUMOE_OK);
    return sampler;
}

/* ------------------------------------------------------------------ engine */

Test(engine, says_what_it_loaded)
{
    numoe_engine *engine = open_model(FABLE, 2, 0);
    const numoe_engine_info *info = numoe_engine_get_info(engine);

    cr_expect(eq(str, (char *)info->arch, "deepseek2"));
    cr_expect(eq(str, (char *)info->type_name, "Q4_K"));
    cr_expect(info->machine[0] && info->placement[0] && info->model_name[0] && info->isa[0]);
    cr_expect(eq(uint, info->n_layer, 6));
    cr_expect(eq(uint, info->n_expert, 32));
    cr_expect(eq(uint, info->n_expert_used, 4));
    cr_expect(eq(uint, info->n_vocab, 4096));
    cr_expect(eq(uint, info->n_embd, 256));
    cr_expect(eq(uint, info->n_ctx_train, 2048));
    cr_expect(eq(uint, info->n_worker, 2));
    cr_expect(info->n_param > 39500000 && info->n_param < 39600000, "%lu parameters",
              (unsigned long)info->n_param);
    /* about 9.5 M of the parameters are active, at 4.5 to 6.6 bits each */
    cr_expect(info->active_bytes > 5000000 && info->active_bytes < 8000000, "%lu active bytes",
              (unsigned long)info->active_bytes);
    cr_expect(info->weight_bytes > 23000000 && info->weight_bytes < 27000000, "%lu weight bytes",
              (unsigned long)info->weight_bytes);
    /* latent 256 and rope part 32 of 6 layers in f16 */
    cr_expect(eq(u64, info->kv_token_bytes, 6 * (256 + 32) * 2));
    cr_expect(info->kv_type == NUMOE_KV_F16);
    cr_expect(info->load_seconds > 0);
    numoe_engine_close(engine);
}

Test(engine, f32_files_have_an_f32_cache)
{
    numoe_engine *engine = open_model(TINY, 1, 0);
    const numoe_engine_info *info = numoe_engine_get_info(engine);

    cr_expect(info->kv_type == NUMOE_KV_F32);
    cr_expect(eq(u64, info->kv_token_bytes, 3 * (32 + 8) * 4));
    cr_expect(eq(str, (char *)info->type_name, "F32"));
    numoe_engine_close(engine);
}

Test(engine, quantized_files_have_an_f16_cache_unless_asked)
{
    static const struct {
        numoe_kv_type asked, got;
    } cases[] = {
        {NUMOE_KV_AUTO, NUMOE_KV_F16},
        {NUMOE_KV_F32, NUMOE_KV_F32},
        {NUMOE_KV_F16, NUMOE_KV_F16},
        {NUMOE_KV_Q8_0, NUMOE_KV_Q8_0},
    };
    char *path = test_src_path(FABLE);

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        numoe_engine_params params;
        numoe_engine *engine;
        numoe_engine_params_init(&params);
        params.model_path = path;
        params.kv_type = cases[i].asked;
        cr_assert(numoe_engine_open(&params, &engine, NULL) == NUMOE_OK);
        cr_expect(numoe_engine_get_info(engine)->kv_type == cases[i].got, "case %zu", i);
        numoe_engine_close(engine);
    }
    free(path);
}

Test(engine, opens_and_closes_again_and_again)
{
    struct ids ids = tiny_prompt("short");
    float *first = NULL;

    for (unsigned i = 0; i < 6; i++) {
        numoe_engine *engine = open_model(TINY, 1 + i % 3, 0);
        float *logits = logits_of(engine, ids.id, ids.n);
        if (first) {
            cr_expect(same_logits(engine, first, logits));
            free(logits);
        } else {
            first = logits;
        }
        numoe_engine_close(engine);
    }
    free(first);
    numoe_engine_close(NULL);
}

Test(engine, two_at_a_time)
{
    struct ids ids = tiny_prompt("short");
    numoe_engine *a = open_model(TINY, 1, 0), *b = open_model(TINY, 2, 0);
    float *of_a = logits_of(a, ids.id, ids.n), *of_b = logits_of(b, ids.id, ids.n);

    cr_expect(same_logits(a, of_a, of_b));
    numoe_session *session = new_session(a, 0);
    numoe_error err;
    cr_expect(numoe_step(b, &session, 1, &err) == NUMOE_E_INPUT);
    cr_expect(strstr(err.text, "another engine") != NULL, "%s", err.text);
    numoe_session_free(session);
    free(of_a);
    free(of_b);
    numoe_engine_close(a);
    numoe_engine_close(b);
}

static numoe_status open_status(const char *path, unsigned chunk_tokens, numoe_error *err)
{
    numoe_engine_params params;
    numoe_engine *engine = NULL;

    numoe_engine_params_init(&params);
    params.model_path = path;
    params.chunk_tokens = chunk_tokens;
    numoe_status status = numoe_engine_open(&params, &engine, err);
    cr_expect(engine == NULL);
    cr_expect(err->status == status);
    return status;
}

Test(engine, wrong_files_are_told)
{
    numoe_error err = {0};
    char *text_file = test_src_path("LICENSE");

    cr_expect(open_status("", 0, &err) == NUMOE_E_INPUT);
    cr_expect(open_status("/nonexistent/model.gguf", 0, &err) == NUMOE_E_FILE_OPEN);
    cr_expect(strstr(err.text, "/nonexistent/model.gguf") != NULL, "%s", err.text);
    cr_expect(open_status("/", 0, &err) == NUMOE_E_FILE_OPEN || err.status == NUMOE_E_FILE_FORMAT);
    cr_expect(open_status(text_file, 0, &err) == NUMOE_E_FILE_FORMAT);
    cr_expect(strstr(err.text, text_file) != NULL, "%s", err.text);
    cr_expect(open_status(text_file, 1000000, &err) == NUMOE_E_INPUT);
    free(text_file);
}

Test(engine, measures_its_bandwidth_once)
{
    numoe_engine *engine = open_model(TINY, 1, 0);
    double bps = numoe_engine_bandwidth(engine);

    cr_expect(bps > 1e8 && bps < 1e13, "%g bytes/s", bps);
    cr_expect(eq(dbl, numoe_engine_bandwidth(engine), bps));
    numoe_engine_close(engine);
}

struct load_progress {
    uint64_t last, total;
    unsigned n;
};

static void on_load(void *arg, uint64_t n_done, uint64_t n_total)
{
    struct load_progress *p = arg;

    cr_expect(n_done >= p->last && n_done <= n_total);
    p->last = n_done;
    p->total = n_total;
    p->n++;
}

Test(engine, progress_reaches_the_end)
{
    struct load_progress progress = {0};
    numoe_engine_params params;
    numoe_engine *engine;
    char *path = test_src_path(FABLE);

    numoe_engine_params_init(&params);
    params.model_path = path;
    params.progress = on_load;
    params.progress_arg = &progress;
    cr_assert(numoe_engine_open(&params, &engine, NULL) == NUMOE_OK);
    cr_expect(progress.n > 0);
    cr_expect(eq(u64, progress.last, progress.total));
    cr_expect(progress.total > 20000000);
    numoe_engine_close(engine);
    free(path);
}

/* ------------------------------------------------------------------ text */

Test(engine, tokenize_says_how_much_room_it_needs)
{
    numoe_engine *engine = open_model(FABLE, 1, 0);
    const char *text = "Once upon a time there was a poor miller who had three sons.";
    int32_t ids[32] = {[2] = -7};
    size_t n = 0;
    json_t *root = load_json(FABLE_REFERENCE);
    struct ids expected =
        ids_of(json_object_get(json_array_get(json_object_get(root, "prompts"), 2), "ids"));

    cr_assert(numoe_tokenize(engine, text, strlen(text), NUMOE_TOKENIZE_BOS, ids, 2, &n, NULL) ==
              NUMOE_OK);
    cr_expect(eq(sz, n, expected.n));
    cr_expect(eq(i32, ids[2], -7));
    cr_assert(numoe_tokenize(engine, text, strlen(text), NUMOE_TOKENIZE_BOS, ids, 32, &n, NULL) ==
              NUMOE_OK);
    cr_expect(n == expected.n && memcmp(ids, expected.id, n * sizeof *ids) == 0);
    cr_assert(numoe_tokenize(engine, "", 0, 0, NULL, 0, &n, NULL) == NUMOE_OK);
    cr_expect(eq(sz, n, 0));
    cr_expect(eq(i32, numoe_token_bos(engine), 0));
    cr_expect(numoe_token_is_eog(engine, 1));
    cr_expect(not(numoe_token_is_eog(engine, 56)));
    cr_expect(numoe_token_text(engine, 4096, true, &n) == NULL);
    cr_expect(numoe_token_text(engine, -1, true, &n) == NULL);
    json_decref(root);
    numoe_engine_close(engine);
}

static void expect_prompt(const numoe_engine *engine, const char *json, const char *want)
{
    numoe_error err = {0};
    char *text = NULL;

    cr_assert(numoe_chat_render_json(engine, json, strlen(json), &text, &err) == NUMOE_OK, "%s",
              err.text);
    cr_expect_str_eq(text, want);
    free(text);
}

Test(engine, conversations_as_json)
{
    numoe_engine_params params;
    numoe_engine *engine;
    numoe_error err = {0};
    char *path = test_src_path(FABLE), *text = NULL;
    static const char *const bad[][2] = {
        {"", "is no JSON object"},        {"[]", "is no JSON object"},
        {"{}", "messages: must be"},      {"{\"a\": 1, \"a\": 2}", "duplicate"},
        {"{\"messages\": 1}", "must be"}, {"{\"messages\": [{}]}", "message 0: lacks a role"},
    };

    numoe_engine_params_init(&params);
    params.model_path = path;
    params.n_thread = 1;
    params.chat_template = "{{ messages[0].content ~ tools ~ enable_thinking }}";
    cr_assert(numoe_engine_open(&params, &engine, &err) == NUMOE_OK, "%s", err.text);
    expect_prompt(engine,
                  "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\","
                  "\"text\": \"é\"}]}], \"tools\": [1], \"enable_thinking\": false}",
                  "é[1]False");
    expect_prompt(engine,
                  "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}],"
                  "\"chat_template\": \"chatml\", \"add_generation_prompt\": false}",
                  "<|im_start|>user\nHi<|im_end|>\n");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_expect(numoe_chat_render_json(engine, bad[i][0], strlen(bad[i][0]), &text, &err) ==
                  NUMOE_E_INPUT);
        cr_expect_not_null(strstr(err.text, bad[i][1]), "%s", err.text);
    }
    cr_expect_null(text);
    numoe_engine_close(engine);

    params.chat_template = "nope";
    cr_expect(numoe_engine_open(&params, &engine, &err) == NUMOE_E_INPUT);
    cr_expect_not_null(strstr(err.text, "\"nope\" is no chat template"), "%s", err.text);
    cr_expect_not_null(strstr(err.text, numoe_chat_template_name(0)));
    free(path);
}

Test(engine, a_message_becomes_the_reference_prompt)
{
    numoe_engine *engine = open_model(FABLE, 1, 0);
    numoe_message message = {.role = "user", .content = "Tell me a story about a fox and a crow."};
    numoe_error err = {0};
    int32_t ids[64];
    size_t n = 0;
    char *text = NULL;
    json_t *root = load_json(FABLE_REFERENCE);
    struct ids expected =
        ids_of(json_object_get(json_array_get(json_object_get(root, "prompts"), 0), "ids"));

    cr_assert(numoe_chat_render(engine, &message, 1, true, &text, &err) == NUMOE_OK, "%s",
              err.text);
    cr_assert(numoe_tokenize(engine, text, strlen(text), NUMOE_TOKENIZE_SPECIAL, ids, 64, &n,
                             NULL) == NUMOE_OK);
    cr_expect(n == expected.n && memcmp(ids, expected.id, n * sizeof *ids) == 0, "%s", text);
    free(text);
    json_decref(root);
    numoe_engine_close(engine);
}

/* ------------------------------------------------------------------ sessions */

Test(session, new_ones_are_empty)
{
    numoe_engine *engine = open_model(TINY, 1, 0);
    numoe_session *session = new_session(engine, 100);
    numoe_error err;

    cr_expect(eq(sz, numoe_session_length(session), 0));
    cr_expect(eq(sz, numoe_session_pending(session), 0));
    cr_expect(eq(uint, numoe_session_context(session), 100));
    cr_expect(numoe_session_logits(session) == NULL);
    cr_expect(numoe_step(engine, &session, 1, &err) == NUMOE_OK);
    cr_expect(numoe_session_logits(session) == NULL);
    numoe_session_free(session);
    session = new_session(engine, 0);
    cr_expect(eq(uint, numoe_session_context(session), 2560));
    numoe_session_free(session);
    session = NULL;
    cr_expect(numoe_session_new(engine, 2561, &session, &err) == NUMOE_E_INPUT_CONTEXT);
    cr_expect(strstr(err.text, "2560") != NULL, "%s", err.text);
    cr_expect(session == NULL);
    numoe_session_free(NULL);
    numoe_engine_close(engine);
}

Test(session, wrong_tokens_are_refused_whole)
{
    numoe_engine *engine = open_model(TINY, 1, 0);
    numoe_session *session = new_session(engine, 8);
    const int32_t ids[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, large[2] = {1, 512}, negative[2] = {1, -1};
    numoe_error err;

    cr_expect(numoe_session_append(session, large, 2, &err) == NUMOE_E_INPUT);
    cr_expect(strstr(err.text, "512") && strstr(err.text, "511"), "%s", err.text);
    cr_expect(numoe_session_append(session, negative, 2, &err) == NUMOE_E_INPUT);
    cr_expect(numoe_session_append(session, ids, 9, &err) == NUMOE_E_INPUT_CONTEXT);
    cr_expect(strstr(err.text, "9 tokens") && strstr(err.text, "of 8"), "%s", err.text);
    cr_expect(eq(sz, numoe_session_length(session), 0));
    append(session, ids, 8);
    cr_expect(numoe_session_append(session, ids, 1, &err) == NUMOE_E_INPUT_CONTEXT);
    cr_expect(eq(sz, numoe_session_length(session), 8));
    cr_expect(memcmp(numoe_session_tokens(session), ids, 8 * sizeof *ids) == 0);
    numoe_session_free(session);
    numoe_engine_close(engine);
}

Test(session, chunks_and_workers_do_not_change_a_bit)
{
    static const unsigned chunks[] = {512, 1, 7, 32}, threads[] = {1, 2, 3};
    struct ids ids = tiny_prompt("long");
    float *first = NULL;

    for (size_t i = 0; i < 4; i++) {
        for (size_t j = 0; j < 3; j++) {
            numoe_engine *engine = open_model(TINY, threads[j], chunks[i]);
            float *logits = logits_of(engine, ids.id, ids.n);
            cr_expect(first == NULL || same_logits(engine, first, logits),
                      "chunks of %u, %u workers differ", chunks[i], threads[j]);
            if (first) {
                free(logits);
            } else {
                first = logits;
            }
            numoe_engine_close(engine);
        }
    }
    free(first);
}

Test(session, company_does_not_change_a_bit)
{
    struct ids a = tiny_prompt("long"), b = tiny_prompt("short");
    numoe_engine *engine = open_model(TINY, 2, 48);
    const size_t n_id[4] = {a.n, b.n, 1, 3};
    numoe_session *session[4];
    float *alone[4];

    for (size_t i = 0; i < 4; i++) {
        const int32_t *ids = i % 2 ? b.id : a.id;
        alone[i] = logits_of(engine, ids, n_id[i]);
        session[i] = new_session(engine, 0);
        append(session[i], ids, n_id[i]);
    }
    unsigned n_step = step_all(engine, session, 4);
    cr_expect(eq(uint, n_step, (unsigned)(a.n + b.n + 1 + 3 + 47) / 48));
    for (size_t i = 0; i < 4; i++) {
        cr_expect(same_logits(engine, alone[i], numoe_session_logits(session[i])),
                  "sequence %zu differs", i);
        free(alone[i]);
        numoe_session_free(session[i]);
    }
    numoe_engine_close(engine);
}

/* A session that waits for one token is served before prompts that came earlier. */
Test(session, decoding_goes_before_prompts)
{
    struct ids ids = tiny_prompt("long");
    numoe_engine *engine = open_model(TINY, 1, 16);
    numoe_session *session[2] = {new_session(engine, 0), new_session(engine, 0)};

    append(session[1], ids.id, 5);
    step_all(engine, &session[1], 1);
    append(session[0], ids.id, 100);
    append(session[1], ids.id + 5, 1);
    cr_assert(numoe_step(engine, session, 2, NULL) == NUMOE_OK);
    cr_expect(eq(sz, numoe_session_pending(session[1]), 0));
    cr_expect(numoe_session_logits(session[1]) != NULL);
    cr_expect(eq(sz, numoe_session_pending(session[0]), 85));
    cr_expect(numoe_session_logits(session[0]) == NULL);
    numoe_session_free(session[0]);
    numoe_session_free(session[1]);
    numoe_engine_close(engine);
}

Test(session, given_twice_is_refused)
{
    struct ids ids = tiny_prompt("short");
    numoe_engine *engine = open_model(TINY, 1, 0);
    numoe_session *session = new_session(engine, 0), *twice[2] = {session, session};
    numoe_error err;

    append(session, ids.id, ids.n);
    cr_expect(numoe_step(engine, twice, 2, &err) == NUMOE_E_INPUT);
    cr_expect(strstr(err.text, "twice") != NULL, "%s", err.text);
    cr_expect(eq(sz, numoe_session_pending(session), ids.n));
    step_all(engine, &session, 1);
    numoe_session_free(session);
    numoe_engine_close(engine);
}

/* Also across KV chunks, which are given back and taken again. */
Test(session, cut_and_continued_is_like_new)
{
    struct ids ids = tiny_prompt("long");
    numoe_engine *engine = open_model(TINY, 2, 64);
    numoe_session *session = new_session(engine, 0);
    int32_t other[300];

    for (int i = 0; i < 300; i++) {
        other[i] = (i * 37 + 11) % 512;
    }
    append(session, ids.id, 120);
    append(session, other, 300);
    step_all(engine, &session, 1);
    append(session, other, 20); /* pending ones are forgotten as well */
    numoe_session_truncate(session, 120);
    cr_expect(eq(sz, numoe_session_length(session), 120));
    cr_expect(eq(sz, numoe_session_pending(session), 0));
    cr_expect(numoe_session_logits(session) == NULL);
    append(session, ids.id + 120, ids.n - 120);
    step_all(engine, &session, 1);
    float *fresh = logits_of(engine, ids.id, ids.n);
    cr_expect(same_logits(engine, fresh, numoe_session_logits(session)));

    numoe_session_truncate(session, 1000); /* nothing to forget: logits stay */
    cr_expect(numoe_session_logits(session) != NULL);
    append(session, other, 1);
    cr_expect(numoe_session_logits(session) == NULL);
    numoe_session_truncate(session, ids.n); /* only a pending token is forgotten */
    cr_expect(same_logits(engine, fresh, numoe_session_logits(session)));
    free(fresh);
    numoe_session_free(session);
    numoe_engine_close(engine);
}

struct seen {
    size_t n_logits, n_route;
    float *expected[MAX_IDS]; /* logits after each position */
    size_t n_vocab;
};

static void see_logits(void *arg, size_t position, const float *logits)
{
    struct seen *s = arg;

    cr_expect(eq(sz, position, s->n_logits));
    s->n_logits++;
    cr_expect(memcmp(logits, s->expected[position], s->n_vocab * sizeof *logits) == 0,
              "logits at %zu", position);
}

static void see_route(void *arg, unsigned layer, size_t position, unsigned k, const int32_t *ids,
                      const float *weights)
{
    struct seen *s = arg;

    cr_expect(eq(sz, position, s->n_route / 2)); /* two MoE layers */
    cr_expect(eq(uint, layer, 1 + (unsigned)(s->n_route % 2)));
    cr_expect(eq(uint, k, 4));
    for (unsigned i = 0; i < k; i++) {
        cr_expect(ids[i] >= 0 && ids[i] < 16);
        cr_expect(weights[i] > 0 && weights[i] <= 2.5f);
        for (unsigned j = 0; j < i; j++) {
            cr_expect(ids[i] != ids[j]);
        }
    }
    s->n_route++;
}

Test(session, every_position_is_told_in_order)
{
    struct ids ids = tiny_prompt("short");
    numoe_engine *engine = open_model(TINY, 2, 7);
    numoe_session *session[2] = {new_session(engine, 0), new_session(engine, 0)};
    struct seen seen = {.n_vocab = 512};

    for (size_t i = 0; i < ids.n; i++) {
        seen.expected[i] = logits_of(engine, ids.id, i + 1);
    }
    for (size_t i = 0; i < 2; i++) {
        append(session[i], ids.id, ids.n);
    }
    numoe_session_on_logits(session[1], see_logits, &seen);
    numoe_session_on_route(session[1], see_route, &seen);
    step_all(engine, session, 2);
    cr_expect(eq(sz, seen.n_logits, ids.n));
    cr_expect(eq(sz, seen.n_route, 2 * ids.n));
    for (size_t i = 0; i < ids.n; i++) {
        free(seen.expected[i]);
    }
    numoe_session_free(session[0]);
    numoe_session_free(session[1]);
    numoe_engine_close(engine);
}

Test(session, cancel_stops_one_step)
{
    struct ids ids = tiny_prompt("short");
    numoe_engine *engine = open_model(TINY, 1, 16);
    numoe_session *session[2] = {new_session(engine, 0), new_session(engine, 0)};
    numoe_error err;

    append(session[0], ids.id, ids.n);
    append(session[1], ids.id, ids.n);
    numoe_session_cancel(session[1]);
    cr_expect(numoe_step(engine, session, 2, &err) == NUMOE_E_STATE_CANCELLED);
    cr_expect(eq(sz, numoe_session_pending(session[0]), ids.n));
    cr_expect(eq(sz, numoe_session_pending(session[1]), ids.n));
    step_all(engine, session, 2);
    float *expected = logits_of(engine, ids.id, ids.n);
    cr_expect(same_logits(engine, expected, numoe_session_logits(session[1])));
    free(expected);
    numoe_session_free(session[0]);
    numoe_session_free(session[1]);
    numoe_engine_close(engine);
}

/* ------------------------------------------------------------------ generation */

struct said {
    char text[4096];
    size_t n, n_call, stop_after_calls;
    numoe_session *cancel;
    size_t prompt_done, prompt_total;
};

static bool hear(void *arg, const char *text, size_t bytes)
{
    struct said *s = arg;

    cr_assert(bytes > 0 && s->n + bytes < sizeof s->text);
    memcpy(s->text + s->n, text, bytes);
    s->n += bytes;
    s->n_call++;
    return s->n_call != s->stop_after_calls;
}

static void see_prompt(void *arg, size_t n_done, size_t n_total)
{
    struct said *s = arg;

    s->prompt_done = n_done;
    s->prompt_total = n_total;
    if (s->cancel && n_done >= 16) {
        numoe_session_cancel(s->cancel);
        s->cancel = NULL;
    }
}

static numoe_generate_result generate(numoe_session *session, numoe_sampler *sampler,
                                      numoe_generate_params params, struct said *said)
{
    numoe_generate_result result;
    numoe_error err = {0};

    params.on_text = hear;
    params.on_prompt = see_prompt;
    params.arg = said;
    cr_assert(numoe_generate(session, sampler, &params, &result, &err) == NUMOE_OK, "%s", err.text);
    said->text[said->n] = 0;
    return result;
}

Test(generate, greedy_continues_as_the_reference)
{
    json_t *root = load_json(TINY_REFERENCE);
    struct ids ids = tiny_prompt("short"), expected = ids_of(json_object_get(root, "greedy_32"));
    numoe_engine *engine = open_model(TINY, 2, 16);
    numoe_session *session = new_session(engine, 0);
    numoe_sampler *sampler = greedy(engine);
    struct said said = {0};

    append(session, ids.id, ids.n);
    numoe_generate_result r = generate(
        session, sampler, (numoe_generate_params){.max_tokens = 32, .ignore_eog = true}, &said);
    cr_expect(r.finish == NUMOE_FINISH_LENGTH);
    cr_expect(eq(sz, r.n_prompt, ids.n));
    cr_expect(eq(sz, r.n_generated, 32));
    cr_expect(r.prompt_seconds > 0 && r.generate_seconds > 0);
    cr_expect(said.prompt_done == ids.n && said.prompt_total == ids.n);
    cr_expect(eq(sz, numoe_session_length(session), ids.n + 32));
    cr_expect(
        memcmp(numoe_session_tokens(session) + ids.n, expected.id, 32 * sizeof *expected.id) == 0);
    json_decref(root);
    numoe_sampler_free(sampler);
    numoe_session_free(session);
    numoe_engine_close(engine);
}

/* All 64 tokens of all three prompts, with the weights that the reference was made with. */
Test(generate, f16_model_continues_as_the_reference)
{
    char *path = test_data_path("model/fable-moe-F16.gguf");
    if (path == NULL) {
        cr_skip("no model/fable-moe-F16.gguf in the extra data");
    }
    numoe_engine_params params;
    numoe_engine *engine = NULL;
    numoe_engine_params_init(&params);
    params.model_path = path;
    cr_assert(numoe_engine_open(&params, &engine, NULL) == NUMOE_OK);
    cr_expect(numoe_engine_get_info(engine)->kv_type == NUMOE_KV_F32);
    json_t *root = load_json(FABLE_REFERENCE), *prompts = json_object_get(root, "prompts");
    numoe_sampler *sampler = greedy(engine);
    for (size_t i = 0; i < json_array_size(prompts); i++) {
        const json_t *prompt = json_array_get(prompts, i);
        struct ids ids = ids_of(json_object_get(prompt, "ids"));
        struct ids expected = ids_of(json_object_get(prompt, "greedy_ids"));
        numoe_session *session = new_session(engine, 0);
        struct said said = {0};
        append(session, ids.id, ids.n);
        generate(session, sampler, (numoe_generate_params){.max_tokens = expected.n}, &said);
        cr_expect(memcmp(numoe_session_tokens(session) + ids.n, expected.id,
                         expected.n * sizeof *expected.id) == 0,
                  "prompt %zu: %s", i, said.text);
        cr_expect(
            eq(str, said.text, (char *)json_string_value(json_object_get(prompt, "greedy_text"))));
        numoe_session_free(session);
    }
    numoe_sampler_free(sampler);
    json_decref(root);
    numoe_engine_close(engine);
    free(path);
}

/* What was cut off is generated again, from logits that had to be made again. */
Test(generate, continues_after_a_cut)
{
    struct ids ids = tiny_prompt("short");
    numoe_engine *engine = open_model(TINY, 1, 0);
    numoe_session *session = new_session(engine, 0);
    numoe_sampler *sampler = greedy(engine);
    struct said first = {0}, second = {0};
    const numoe_generate_params params = {.max_tokens = 12, .ignore_eog = true};

    append(session, ids.id, ids.n);
    generate(session, sampler, params, &first);
    numoe_session_truncate(session, ids.n);
    numoe_generate_result r = generate(session, sampler, params, &second);
    cr_expect(eq(sz, r.n_prompt, 1));
    cr_expect(eq(str, second.text, first.text));
    numoe_sampler_free(sampler);
    numoe_session_free(session);
    numoe_engine_close(engine);
}

/* The greedy text of the bundled model after a prompt, and what stop strings make of it. */
struct story {
    numoe_engine *engine;
    numoe_session *session;
    numoe_sampler *sampler;
    size_t n_prompt;
    struct said whole;
};

static struct story tell_story(void)
{
    const char *prompt = "Once upon a time there was a poor miller who had three sons.";
    struct story s = {.engine = open_model(FABLE, 2, 0)};
    int32_t ids[64];
    size_t n;

    s.session = new_session(s.engine, 0);
    s.sampler = greedy(s.engine);
    cr_assert(numoe_tokenize(s.engine, prompt, strlen(prompt), NUMOE_TOKENIZE_BOS, ids, 64, &n,
                             NULL) == NUMOE_OK);
    append(s.session, ids, n);
    s.n_prompt = n;
    generate(s.session, s.sampler, (numoe_generate_params){.max_tokens = 40}, &s.whole);
    cr_assert(s.whole.n > 60, "too short: %s", s.whole.text);
    return s;
}

static numoe_generate_result tell_again(struct story *s, const char *const *stop, size_t n_stop,
                                        struct said *said)
{
    numoe_session_truncate(s->session, s->n_prompt);
    return generate(s->session, s->sampler,
                    (numoe_generate_params){.max_tokens = 40, .stop = stop, .n_stop = n_stop},
                    said);
}

static void end_story(struct story *s)
{
    numoe_sampler_free(s->sampler);
    numoe_session_free(s->session);
    numoe_engine_close(s->engine);
}

/* Every piece of 9 bytes begins and ends somewhere in tokens: each must cut the text at its first
 * occurrence, to the byte. */
Test(generate, stop_strings_across_tokens)
{
    struct story s = tell_story();

    for (size_t at = 5; at < 45; at += 3) {
        char piece[10] = {0};
        struct said said = {0};
        memcpy(piece, s.whole.text + at, 9);
        size_t expected = (size_t)(strstr(s.whole.text, piece) - s.whole.text);
        const char *stop[] = {"never said", piece};
        numoe_generate_result r = tell_again(&s, stop, 2, &said);
        cr_expect(r.finish == NUMOE_FINISH_STOP);
        cr_expect(said.n == expected && memcmp(said.text, s.whole.text, expected) == 0,
                  "stop at '%s' gave '%s'", piece, said.text);
    }
    end_story(&s);
}

/* A stop string that only begins is text in the end. */
Test(generate, unfinished_stop_strings_are_text)
{
    struct story s = tell_story();
    struct said said = {0};
    char beginning[64], tail[64];

    snprintf(beginning, sizeof beginning, "%.20s\x01", s.whole.text + 10);
    snprintf(tail, sizeof tail, "%.12s\x01", s.whole.text + s.whole.n - 12);
    const char *stop[] = {beginning, tail};
    numoe_generate_result r = tell_again(&s, stop, 2, &said);
    cr_expect(r.finish == NUMOE_FINISH_LENGTH);
    cr_expect(eq(str, said.text, s.whole.text));
    end_story(&s);
}

Test(generate, wrong_stop_strings_are_refused)
{
    struct ids ids = tiny_prompt("short");
    numoe_engine *engine = open_model(TINY, 1, 0);
    numoe_session *session = new_session(engine, 0);
    numoe_sampler *sampler = greedy(engine);
    const char *bad[] = {"", "\x80"};

    append(session, ids.id, ids.n);
    for (size_t i = 0; i < 2; i++) {
        numoe_generate_result result;
        numoe_generate_params params = {.max_tokens = 4, .stop = &bad[i], .n_stop = 1};
        cr_expect(numoe_generate(session, sampler, &params, &result, NULL) == NUMOE_E_INPUT);
        cr_expect(eq(sz, numoe_session_pending(session), ids.n));
    }
    numoe_sampler_free(sampler);
    numoe_session_free(session);
    numoe_engine_close(engine);
}

Test(generate, stops_where_the_listener_has_enough)
{
    struct story s = tell_story();
    struct said said = {.stop_after_calls = 3};

    numoe_generate_result r = tell_again(&s, NULL, 0, &said);
    cr_expect(r.finish == NUMOE_FINISH_CANCEL);
    cr_expect(eq(sz, said.n_call, 3));
    cr_expect(said.n < s.whole.n && memcmp(said.text, s.whole.text, said.n) == 0);
    end_story(&s);
}

Test(generate, cancelled_while_reading_and_before)
{
    struct ids ids = tiny_prompt("long");
    numoe_engine *engine = open_model(TINY, 1, 16);
    numoe_session *session = new_session(engine, 0);
    numoe_sampler *sampler = greedy(engine);
    struct said said = {.cancel = session}, again = {0};
    const numoe_generate_params params = {.max_tokens = 5, .ignore_eog = true};

    append(session, ids.id, ids.n);
    numoe_session_cancel(session);
    said.cancel = NULL;
    numoe_generate_result r = generate(session, sampler, params, &said);
    cr_expect(r.finish == NUMOE_FINISH_CANCEL && r.n_generated == 0);
    cr_expect(eq(sz, numoe_session_pending(session), ids.n));
    said.cancel = session;
    r = generate(session, sampler, params, &said);
    cr_expect(r.finish == NUMOE_FINISH_CANCEL && r.n_generated == 0);
    cr_expect(eq(sz, numoe_session_pending(session), ids.n - 16));
    r = generate(session, sampler, params, &again);
    cr_expect(r.finish == NUMOE_FINISH_LENGTH && r.n_generated == 5);
    numoe_sampler_free(sampler);
    numoe_session_free(session);
    numoe_engine_close(engine);
}

static bool hear_and_cancel(void *arg, const char *text, size_t bytes)
{
    (void)text;
    (void)bytes;
    numoe_session_cancel(arg);
    return true;
}

/* Who asked during a call that ended anyway does not want the next one stopped. */
Test(generate, cancelled_at_its_end)
{
    struct ids ids = tiny_prompt("short");
    numoe_engine *engine = open_model(TINY, 1, 0);
    numoe_session *session = new_session(engine, 0);
    numoe_sampler *sampler = greedy(engine);
    numoe_generate_params params = {.max_tokens = 1, .on_text = hear_and_cancel, .arg = session};
    numoe_generate_result result = {0};
    struct said said = {0};

    append(session, ids.id, ids.n);
    cr_assert(numoe_generate(session, sampler, &params, &result, NULL) == NUMOE_OK);
    cr_expect(result.finish == NUMOE_FINISH_LENGTH);
    numoe_generate_result r = generate(
        session, sampler, (numoe_generate_params){.max_tokens = 2, .ignore_eog = true}, &said);
    cr_expect(r.finish == NUMOE_FINISH_LENGTH && r.n_generated == 2);
    numoe_sampler_free(sampler);
    numoe_session_free(session);
    numoe_engine_close(engine);
}

Test(generate, ends_with_the_context)
{
    struct ids ids = tiny_prompt("short");
    numoe_engine *engine = open_model(TINY, 1, 0);
    numoe_session *session = new_session(engine, (unsigned)ids.n + 3);
    numoe_sampler *sampler = greedy(engine);
    struct said said = {0};

    append(session, ids.id, ids.n);
    numoe_generate_result r =
        generate(session, sampler, (numoe_generate_params){.ignore_eog = true}, &said);
    cr_expect(r.finish == NUMOE_FINISH_CONTEXT);
    cr_expect(eq(sz, r.n_generated, 3));
    cr_expect(eq(sz, numoe_session_length(session), ids.n + 3));
    numoe_sampler_free(sampler);
    numoe_session_free(session);
    numoe_engine_close(engine);
}

Test(generate, nothing_to_continue)
{
    numoe_engine *engine = open_model(TINY, 1, 0);
    numoe_session *session = new_session(engine, 0);
    numoe_sampler *sampler = greedy(engine);
    numoe_generate_params params = {.max_tokens = 1};
    numoe_generate_result result;
    numoe_error err;

    cr_expect(numoe_generate(session, sampler, &params, &result, &err) == NUMOE_E_INPUT);
    cr_expect(strstr(err.text, "empty") != NULL, "%s", err.text);
    numoe_sampler_free(sampler);
    numoe_session_free(session);
    numoe_engine_close(engine);
}
