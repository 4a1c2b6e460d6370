/* Writes the seeds of corpus-exchange: make-corpus-exchange DIR. Sound messages, and sound segments
 * with two steps, as they are and as sizes and contents; see fuzz-exchange.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "gpu/exchange.h"
#include "tests/unit/segment.h"

static int save(const char *dir, const char *name, uint8_t kind, const void *a, size_t n_a,
                const void *b, size_t n_b)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "wb");
    int ok = file && fputc(kind, file) != EOF && fwrite(a, 1, n_a, file) == n_a &&
             fwrite(b, 1, n_b, file) == n_b;
    ok = file && fclose(file) == 0 && ok;
    if (!ok) {
        perror(path);
    }
    return !ok;
}

static int save_message(const char *dir, const char *name, uint32_t type, const void *payload,
                        size_t bytes)
{
    const struct exchange_message m = {EXCHANGE_MAGIC, EXCHANGE_VERSION, type, (uint32_t)bytes};
    return save(dir, name, 0, &m, sizeof m, payload, bytes);
}

static int save_messages(const char *dir)
{
    static const struct exchange_hello hello = {.program = "made-up",
                                                .driver = "none",
                                                .n_device = 2,
                                                .block_tokens = 16,
                                                .max_tokens = 512,
                                                .max_plan_device = 1,
                                                .device = {{.name = "one"}, {.name = "two"}}};
    static const struct exchange_load load = {4096};
    static const struct exchange_progress progress = {1, 2};
    static const struct exchange_ready ready = {.n_device = 1};
    static const struct exchange_text text = {.short_bytes = 1, .text = "too little memory"};
    return save_message(dir, "hello", EXCHANGE_HELLO, &hello, sizeof hello) +
           save_message(dir, "load", EXCHANGE_LOAD, &load, sizeof load) +
           save_message(dir, "progress", EXCHANGE_PROGRESS, &progress, sizeof progress) +
           save_message(dir, "ready", EXCHANGE_READY, &ready, sizeof ready) +
           save_message(dir, "refused", EXCHANGE_REFUSED, &text, sizeof text) +
           save_message(dir, "fault", EXCHANGE_FAULT, &text, sizeof text) +
           save_message(dir, "quit", EXCHANGE_QUIT, NULL, 0);
}

/* A prompt of three tokens, then one token of each of two sequences. */
static void write_steps(struct exchange_header *h)
{
    for (uint64_t number = 1; number < 3; number++) {
        struct exchange_step *step = exchange_at(h, h->step_at[number % 2]);
        struct exchange_token *token = exchange_at(h, h->token_at[number % 2]);
        struct exchange_seq *seq = exchange_at(h, h->seq_at[number % 2]);
        struct exchange_copy *copy = exchange_at(h, h->copy_at[number % 2]);
        const uint32_t n_seq = (uint32_t)number, n_token = n_seq == 1 ? 3 : 1;
        *step = (struct exchange_step){number, number, n_token * n_seq, n_seq, 1, n_seq};
        for (uint32_t i = 0; i < n_token * n_seq; i++) {
            token[i] =
                (struct exchange_token){(int32_t)i, 14 + i % n_token, i / n_token,
                                        (i + 1) % n_token ? EXCHANGE_NO_LOGITS : i / n_token};
        }
        for (uint32_t i = 0; i < n_seq; i++) {
            seq[i] = (struct exchange_seq){i, i * n_token, n_token, 2};
        }
        copy[0] = (struct exchange_copy){0, 5};
    }
    uint32_t *table = exchange_at(h, h->table_at);
    for (uint32_t i = 0; i < h->max_seq * h->max_seq_block; i++) {
        table[i] = i % h->n_block;
    }
}

/* Layer 0 has one hot expert, layer 1 all four. */
static int save_segments(const char *dir)
{
    static const uint8_t byte[17] = {1, 3, 4, 9, 4, 2, 2, 5, 1, 8, 4, 2, 6, 3, 8, 4, 1};
    const struct exchange_sizes s = {1, 3, 4, 9, 4, 2, 2, 5, 1, 8, 4, 2, 6, 16, 3, 8};
    struct exchange_header *h = segment_new(&s, NULL);
    if (h == NULL) {
        return 1;
    }
    struct exchange_layer *layer = exchange_at(h, h->layer_at);
    uint32_t *hot = exchange_at(h, h->hot_at);
    layer[0] = (struct exchange_layer){EXCHANGE_LAYER_HAND, 0, 0, 1};
    layer[1] = (struct exchange_layer){EXCHANGE_LAYER_ROUTES, 0, 1, 5};
    for (uint32_t i = 0; i < 4; i++) {
        hot[1 + i] = i;
    }
    write_steps(h);
    const int bad = save(dir, "segment", 1, h, h->segment_bytes, NULL, 0) +
                    save(dir, "made", 2, byte, sizeof byte, h + 1, h->segment_bytes - sizeof *h);
    free(h);
    return bad;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fputs("usage: make-corpus-exchange DIR\n", stderr);
        return 2;
    }
    return save_messages(argv[1]) + save_segments(argv[1]) > 0;
}
