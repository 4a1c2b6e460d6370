/* Continues a text with numoe:
 *
 *     cc generate.c $(pkg-config --cflags --libs numoe) -o generate
 *     ./generate [MODEL.gguf [PROMPT]]
 *
 * Where numoe has a PREFIX of its own: PKG_CONFIG_PATH=PREFIX/lib/pkgconfig for the first, and
 * LD_LIBRARY_PATH=PREFIX/lib for the second, or -Wl,-rpath,PREFIX/lib among the arguments of cc.
 *
 * Without a model the bundled one is taken. At the end stands what each node read of the weights.
 */
#include <numoe/numoe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(numoe_status status, const numoe_error *err)
{
    if (status != NUMOE_OK) {
        fprintf(stderr, "generate: %s\n", err->text);
        exit(1);
    }
}

/* Weights read by each node's workers: from its own memory, and over the interconnect. */
static void print_traffic(const numoe_engine *engine, size_t n_token)
{
    numoe_traffic t;

    for (unsigned i = 0; numoe_engine_traffic(engine, i, &t); i++) {
        fprintf(stderr, "node %u: %.1f MB a token from its own memory, %.1f MB from other nodes\n",
                t.os_node, (double)t.local_bytes * 1e-6 / (double)n_token,
                (double)t.remote_bytes * 1e-6 / (double)n_token);
    }
}

static bool print(void *arg, const char *text, size_t text_bytes)
{
    return fwrite(text, 1, text_bytes, arg) == text_bytes && fflush(arg) == 0;
}

int main(int argc, char **argv)
{
    const char *prompt = argc > 2 ? argv[2] : "Once upon a time there was a poor miller";
    int32_t ids[512];
    size_t n;
    numoe_engine *engine;
    numoe_session *session;
    numoe_sampler *sampler;
    numoe_engine_params engine_params;
    numoe_sampler_params sampler_params;
    numoe_generate_params params = {.max_tokens = 100, .on_text = print, .arg = stdout};
    numoe_generate_result result;
    numoe_error err;

    numoe_engine_params_init(&engine_params);
    engine_params.model_path = argc > 1 ? argv[1] : NULL;
    check(numoe_engine_open(&engine_params, &engine, &err), &err);
    check(numoe_session_new(engine, 0, &session, &err), &err);
    numoe_sampler_params_init(&sampler_params); /* greedy */
    check(
        numoe_sampler_new(&sampler_params, numoe_engine_get_info(engine)->n_vocab, &sampler, &err),
        &err);

    check(numoe_tokenize(engine, prompt, strlen(prompt), NUMOE_TOKENIZE_BOS, ids, 512, &n, &err),
          &err);
    if (n > 512) {
        fprintf(stderr, "generate: the prompt has %zu tokens, at most 512 are possible\n", n);
        return 1;
    }
    check(numoe_session_append(session, ids, n, &err), &err);
    check(numoe_generate(session, sampler, &params, &result, &err), &err);
    printf("\n");
    fprintf(stderr, "%zu tokens in %.2f s\n", result.n_generated, result.generate_seconds);
    print_traffic(engine, n + result.n_generated);

    numoe_sampler_free(sampler);
    numoe_session_free(session);
    numoe_engine_close(engine);
    return 0;
}
