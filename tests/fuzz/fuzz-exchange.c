/* Fuzz target: what the other side of an exchange may have written. The first byte picks what the
 * rest is: a message, a segment, or the sizes and contents of a segment whose places are right, so
 * that its tables and steps are reached. What is taken is read as its user would, to the last entry
 * that the check has allowed; what is not is one clear line.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "gpu/exchange.h"

#define MAX_SEGMENT ((uint64_t)1 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t sink; /* reads are not optimized away */

static void check_error(const numoe_error *err)
{
    if (strncmp(err->text, "exchange: ", 10) != 0 || strpbrk(err->text, "\n\r\x1b")) {
        fprintf(stderr, "not a clear line: %s\n", err->text);
        abort();
    }
}

static void try_message(const uint8_t *data, size_t size)
{
    numoe_error err = {0};
    if (exchange_check_message(data, size, &err) != NUMOE_OK) {
        check_error(&err);
        return;
    }
    struct exchange_message m;
    struct exchange_hello hello;
    struct exchange_text text;
    memcpy(&m, data, sizeof m);
    const void *payload = exchange_payload(data);
    if (m.type == EXCHANGE_HELLO) {
        memcpy(&hello, payload, sizeof hello);
        sink += strlen(hello.program) + strlen(hello.driver) + strlen(hello.trouble);
        for (uint32_t i = 0; i < hello.n_device; i++) {
            sink += strlen(hello.device[i].name);
        }
    } else if (m.type == EXCHANGE_REFUSED || m.type == EXCHANGE_FAULT) {
        memcpy(&text, payload, sizeof text);
        sink += strlen(text.text);
    }
}

/* Reads what a program would: the blocks of all sequences, the rows that logits go to. */
static void try_step(void *segment, uint64_t number)
{
    const struct exchange_header *h = segment;
    const uint64_t slot = number % 2;
    const struct exchange_step *step = exchange_at(segment, h->step_at[slot]);
    const struct exchange_seq *seq = exchange_at(segment, h->seq_at[slot]);
    const struct exchange_token *token = exchange_at(segment, h->token_at[slot]);
    const struct exchange_copy *copy = exchange_at(segment, h->copy_at[slot]);
    const uint32_t *table = exchange_at(segment, h->table_at);
    numoe_error err = {0};
    if (exchange_check_step(segment, number, &err) != NUMOE_OK) {
        check_error(&err);
        return;
    }
    uint8_t *block = calloc(h->n_block, 1), *row = calloc(h->max_logits, 1);
    for (uint32_t i = 0; i < step->n_copy; i++) {
        block[copy[i].to] = block[copy[i].from];
    }
    for (uint32_t i = 0; i < step->n_token; i++) {
        const struct exchange_seq *s = &seq[token[i].seq];
        const uint32_t at = token[i].position / h->block_tokens;
        block[table[(size_t)s->row * h->max_seq_block + at]]++;
        if (token[i].logits != EXCHANGE_NO_LOGITS) {
            row[token[i].logits]++;
        }
    }
    sink += block[0] + row[0];
    free(block);
    free(row);
}

static void try_segment(void *segment, uint64_t bytes)
{
    numoe_error err = {0};
    if (exchange_check(segment, bytes, &err) != NUMOE_OK) {
        check_error(&err);
        return;
    }
    const struct exchange_header *h = segment;
    const char *path = exchange_at(segment, h->path_at);
    const struct exchange_layer *layer = exchange_at(segment, h->layer_at);
    const uint32_t *hot = exchange_at(segment, h->hot_at);
    for (uint32_t i = 0; i < h->n_part; i++) {
        path += strlen(path) + 1;
    }
    for (uint32_t il = 0; il < h->n_dense_layer; il++) {
        for (uint32_t i = layer[il].hot0; i < layer[il].hot1; i++) {
            sink += hot[i];
        }
    }
    sink += (uintptr_t)path + exchange_step_hands(segment);
    try_step(segment, 1);
    try_step(segment, 2);
}

/* Sizes from one byte each, then all that lies behind the header. */
static void try_made(const uint8_t *data, size_t size)
{
    const struct exchange_sizes s = {
        .n_part = data[0],
        .n_layer = data[1],
        .n_embd = data[2],
        .n_vocab = data[3],
        .n_expert = data[4],
        .n_expert_used = data[5],
        .n_dense_layer = data[6],
        .n_hot = data[7],
        .n_route = data[8],
        .max_tokens = data[9],
        .max_logits = data[10],
        .max_seq = data[11],
        .n_block = data[12],
        .max_seq_block = data[13],
        .path_bytes = data[14],
        .block_tokens = 1u << (data[15] & 15),
    };
    struct exchange_header h;
    if (exchange_layout(&s, &h, NULL) != NUMOE_OK || h.segment_bytes > MAX_SEGMENT) {
        return;
    }
    uint8_t *segment = calloc(1, h.segment_bytes);
    if (segment == NULL) {
        abort();
    }
    h.n_device = data[16];
    memcpy(segment, &h, sizeof h);
    memcpy(segment + sizeof h, data + 17, MIN(size - 17, h.segment_bytes - sizeof h));
    try_segment(segment, h.segment_bytes);
    free(segment);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    const size_t rest = size - 1;
    uint8_t *copy = malloc(rest > 0 ? rest : 1); /* aligned, of exactly its size */
    if (copy == NULL) {
        abort();
    }
    memcpy(copy, data + 1, rest);
    switch (data[0] % 3) {
    case 0:
        try_message(copy, rest);
        break;
    case 1:
        try_segment(copy, rest);
        break;
    default:
        if (rest >= 17) {
            try_made(copy, rest);
        }
    }
    free(copy);
    return 0;
}
