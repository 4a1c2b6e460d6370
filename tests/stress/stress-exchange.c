/* The two sides of an exchange as two threads over one segment: steps and hand-offs of changing
 * sizes, the next step written while the last one's slot is still read, each word that is passed
 * compared with what it must be. What is plain memory here is ordered by bells alone, so under
 * ThreadSanitizer a bell that is read or raised in a wrong place, or a slot that is used too soon,
 * is a data race. Messages go through the socket meanwhile. Prints TAP.
 *
 *     stress-exchange [STEPS]
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "gpu/exchange.h"
#include "tests/unit/segment.h"

#define N_LAYER   5u /* the first without experts, the last with routes: three hand-offs a step */
#define N_HAND    3u
#define N_EMBD    8u
#define N_VOCAB   16u
#define N_EXPERT  4u
#define N_USED    2u
#define MAX_TOKEN 8u

static struct exchange_header *h;
static int sockets[2];
static uint64_t n_step = 20000;
static _Atomic unsigned n_wrong;

static void expect(bool ok)
{
    if (!ok) {
        n_wrong++;
    }
}

static void wait_for(const struct exchange_bell *bell, uint64_t value)
{
    for (unsigned i = 0; exchange_bell_get(bell) < value; i++) {
        if (i % 64 == 63) {
            sched_yield();
        }
    }
}

static unsigned tokens_of(uint64_t step)
{
    return (unsigned)(1 + step * 5 % MAX_TOKEN);
}

/* What element i of hand-off or step `number` must be, on the way out (0) or back (1). */
static float value_of(uint64_t number, unsigned i, unsigned way)
{
    return (float)((number * 31 + i * 7 + way) % 65521);
}

static int32_t id_of(uint64_t number, unsigned i)
{
    return (int32_t)((number + i) % N_EXPERT);
}

/* ------------------------------------------------------------------ the program */

static void hand_out(uint64_t hand, unsigned n)
{
    float *x = exchange_at(h, h->x_at[hand % 2]), *weight = exchange_at(h, h->weight_at[hand % 2]);
    int32_t *ids = exchange_at(h, h->id_at[hand % 2]);
    for (unsigned i = 0; i < n * N_EMBD; i++) {
        x[i] = value_of(hand, i, 0);
    }
    for (unsigned i = 0; i < n * N_USED; i++) {
        ids[i] = id_of(hand, i);
        weight[i] = 0.5f;
    }
    exchange_bell_ring(&h->x, hand);
}

static void take_back(uint64_t hand, unsigned n)
{
    const float *y = exchange_at(h, h->y_at[hand % 2]);
    wait_for(&h->y, hand);
    for (unsigned i = 0; i < n * N_EMBD; i++) {
        expect(y[i] == value_of(hand, i, 1));
    }
}

static void give_result(uint64_t number, unsigned n)
{
    float *logits = exchange_at(h, h->logits_at[number % 2]);
    int32_t *ids = exchange_at(h, h->route_id_at[number % 2]);
    for (unsigned i = 0; i < N_VOCAB; i++) {
        logits[i] = value_of(number, i, 0);
    }
    for (unsigned i = 0; i < n * N_USED; i++) {
        ids[i] = id_of(number, i);
    }
    exchange_bell_ring(&h->result, number);
}

static void *program(void *arg)
{
    uint8_t packet[EXCHANGE_MESSAGE_MAX];
    numoe_error err = {0};
    (void)arg;
    expect(exchange_receive(sockets[1], -1, packet, NULL, &err) == NUMOE_OK);
    for (uint64_t number = 1; number <= n_step; number++) {
        wait_for(&h->step, number);
        expect(exchange_check_step(h, number, &err) == NUMOE_OK);
        const struct exchange_step *step = exchange_at(h, h->step_at[number % 2]);
        const unsigned n = step->n_token;
        expect(n == tokens_of(number));
        for (uint64_t i = 0; i < N_HAND; i++) {
            hand_out(step->first_hand + i, n);
            take_back(step->first_hand + i, n);
        }
        give_result(number, n);
    }
    const struct exchange_text text = {.text = "done"};
    expect(exchange_send(sockets[1], EXCHANGE_FAULT, &text, sizeof text, -1, &err) == NUMOE_OK);
    return NULL;
}

/* Beats, as every program does, beside all that. */
static void *beat(void *arg)
{
    (void)arg;
    for (uint64_t n = 1; exchange_bell_get(&h->result) < n_step; n++) {
        exchange_bell_ring(&h->beat, n);
        usleep(100);
    }
    return NULL;
}

/* ------------------------------------------------------------------ the engine */

static void write_step(uint64_t number, uint64_t hand)
{
    struct exchange_step *step = exchange_at(h, h->step_at[number % 2]);
    struct exchange_token *token = exchange_at(h, h->token_at[number % 2]);
    struct exchange_seq *seq = exchange_at(h, h->seq_at[number % 2]);
    const unsigned n = tokens_of(number);
    *step = (struct exchange_step){number, hand, n, 1, 0, 1};
    *seq = (struct exchange_seq){0, 0, n, 1};
    for (unsigned i = 0; i < n; i++) {
        token[i] = (struct exchange_token){(int32_t)(number + i) % (int32_t)N_VOCAB, i, 0,
                                           i + 1 < n ? EXCHANGE_NO_LOGITS : 0};
    }
    exchange_bell_ring(&h->step, number);
}

static void answer(uint64_t hand, unsigned n)
{
    const float *x = exchange_at(h, h->x_at[hand % 2]);
    const int32_t *ids = exchange_at(h, h->id_at[hand % 2]);
    float *y = exchange_at(h, h->y_at[hand % 2]);
    wait_for(&h->x, hand);
    for (unsigned i = 0; i < n * N_EMBD; i++) {
        expect(x[i] == value_of(hand, i, 0));
        y[i] = value_of(hand, i, 1);
    }
    for (unsigned i = 0; i < n * N_USED; i++) {
        expect(ids[i] == id_of(hand, i));
    }
    exchange_bell_ring(&h->y, hand);
}

static void take_result(uint64_t number, unsigned n)
{
    const float *logits = exchange_at(h, h->logits_at[number % 2]);
    const int32_t *ids = exchange_at(h, h->route_id_at[number % 2]);
    for (unsigned i = 0; i < N_VOCAB; i++) {
        expect(logits[i] == value_of(number, i, 0));
    }
    for (unsigned i = 0; i < n * N_USED; i++) {
        expect(ids[i] == id_of(number, i));
    }
}

static void engine(void)
{
    uint8_t packet[EXCHANGE_MESSAGE_MAX];
    numoe_error err = {0};
    uint64_t hand = 0, last_beat = 0;
    expect(exchange_send(sockets[0], EXCHANGE_WAKE, NULL, 0, -1, &err) == NUMOE_OK);
    for (uint64_t number = 1; number <= n_step; number++) {
        const uint64_t beat_now = exchange_bell_get(&h->beat);
        write_step(number, hand + 1);
        if (number > 1) {
            take_result(number - 1, tokens_of(number - 1)); /* its slot is free for the one after */
        }
        for (unsigned i = 0; i < N_HAND; i++) {
            answer(++hand, tokens_of(number));
        }
        wait_for(&h->result, number);
        expect(beat_now >= last_beat);
        last_beat = beat_now;
    }
    take_result(n_step, tokens_of(n_step));
    expect(exchange_receive(sockets[0], 10000, packet, NULL, &err) == NUMOE_OK);
}

static bool make_segment(void)
{
    const struct exchange_sizes s = {.n_part = 1,
                                     .n_layer = N_LAYER,
                                     .n_embd = N_EMBD,
                                     .n_vocab = N_VOCAB,
                                     .n_expert = N_EXPERT,
                                     .n_expert_used = N_USED,
                                     .n_dense_layer = N_LAYER,
                                     .n_hot = N_EXPERT,
                                     .n_route = 1,
                                     .max_tokens = MAX_TOKEN,
                                     .max_logits = MAX_TOKEN,
                                     .max_seq = 1,
                                     .n_block = 1,
                                     .block_tokens = 16,
                                     .max_seq_block = 1,
                                     .path_bytes = 8};
    h = segment_new(&s, NULL);
    if (h == NULL) {
        return false;
    }
    struct exchange_layer *layer = exchange_at(h, h->layer_at);
    uint32_t *hot = exchange_at(h, h->hot_at);
    for (unsigned il = 1; il <= N_HAND; il++) {
        layer[il].flags = EXCHANGE_LAYER_HAND;
    }
    layer[N_LAYER - 1] = (struct exchange_layer){EXCHANGE_LAYER_ROUTES, 0, 0, N_EXPERT};
    for (uint32_t i = 0; i < N_EXPERT; i++) {
        hot[i] = i;
    }
    return exchange_check(h, h->segment_bytes, NULL) == NUMOE_OK &&
           exchange_step_hands(h) == N_HAND &&
           socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) == 0;
}

int main(int argc, char **argv)
{
    pthread_t other, beating;
    n_step = argc > 1 ? strtoull(argv[1], NULL, 10) : n_step;
    if (!make_segment() || pthread_create(&other, NULL, program, NULL) != 0 ||
        pthread_create(&beating, NULL, beat, NULL) != 0) {
        puts("Bail out! no segment, socket or thread");
        return 99;
    }
    engine();
    pthread_join(other, NULL);
    pthread_join(beating, NULL);
    const unsigned wrong = n_wrong;
    printf("%s 1 - %llu steps of %u hand-offs, %u words wrong\n1..1\n", wrong ? "not ok" : "ok",
           (unsigned long long)n_step, N_HAND, wrong);
    free(h);
    return wrong > 0;
}
