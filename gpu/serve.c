/* Owns the conversation of a GPU program: order of messages, beat, waiting for steps. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "gpu/serve.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "gpu/segment.h"

#define BEAT_MS       (EXCHANGE_HEARTBEAT_MS / 2)
#define SLEEP_NS      (2 * EXCHANGE_WAKE_MS * UINT64_C(1000000)) /* after it, the socket wakes */
#define SPIN_NS       UINT64_C(50000)
#define NAP_NS        10000
#define LONGEST_SLEEP (500 * UINT64_C(1000000))

static struct {
    pthread_mutex_t lock;
    pthread_cond_t woken;
    unsigned n_wake; /* Sync: lock */
    struct exchange_header *h;
} meet = {.lock = PTHREAD_MUTEX_INITIALIZER, .woken = PTHREAD_COND_INITIALIZER};

/* ------------------------------------------------------------------ messages */

void serve_progress(uint64_t done_bytes, uint64_t total_bytes)
{
    const struct exchange_progress progress = {done_bytes, total_bytes};
    exchange_send(EXCHANGE_FD, EXCHANGE_PROGRESS, &progress, sizeof progress, -1, NULL);
}

static void say(uint32_t type, uint64_t short_bytes, const numoe_error *why)
{
    struct exchange_text text = {.short_bytes = short_bytes};
    snprintf(text.text, sizeof text.text, "%.500s", why->text);
    exchange_send(EXCHANGE_FD, type, &text, sizeof text, -1, NULL);
}

static numoe_status receive_load(struct segment *segment, numoe_error *err)
{
    uint8_t packet[EXCHANGE_MESSAGE_MAX];
    struct exchange_message m;
    struct exchange_load load;
    int fd = -1;
    FORWARD_IF(exchange_receive(EXCHANGE_FD, -1, packet, &fd, err));
    memcpy(&m, packet, sizeof m);
    if (m.type != EXCHANGE_LOAD) {
        if (fd >= 0) {
            close(fd);
        }
        return status_fail(err, NUMOE_E_STATE, "message %u in place of LOAD", m.type);
    }
    memcpy(&load, exchange_payload(packet), sizeof load);
    FORWARD_IF(segment_open(fd, load.segment_bytes, segment, err));
    return exchange_check(segment->data, segment->bytes, err);
}

/* ------------------------------------------------------------------ beat and listen */

static void listen_once(void)
{
    uint8_t packet[EXCHANGE_MESSAGE_MAX];
    struct exchange_message m;
    if (exchange_receive(EXCHANGE_FD, 0, packet, NULL, NULL) != NUMOE_OK) {
        _exit(0); /* the engine has gone */
    }
    memcpy(&m, packet, sizeof m);
    if (m.type == EXCHANGE_QUIT) {
        _exit(0);
    }
    pthread_mutex_lock(&meet.lock);
    meet.n_wake++;
    pthread_cond_signal(&meet.woken);
    pthread_mutex_unlock(&meet.lock);
}

static void *beat(void *arg)
{
    struct pollfd pfd = {.fd = EXCHANGE_FD, .events = POLLIN};
    const struct serve *serve = arg;
    for (uint64_t n = 1;; n++) {
        if (serve->beats == NULL || serve->beats()) {
            exchange_bell_ring(&meet.h->beat, n);
        }
        if (poll(&pfd, 1, BEAT_MS) > 0) {
            listen_once();
        }
    }
    return NULL;
}

static unsigned wakes(void)
{
    pthread_mutex_lock(&meet.lock);
    const unsigned n = meet.n_wake;
    pthread_mutex_unlock(&meet.lock);
    return n;
}

/* Until the socket has said more than the n_wake messages known, or for LONGEST_SLEEP. */
static void sleep_on_socket(unsigned n_wake)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    const uint64_t ns = (uint64_t)until.tv_nsec + LONGEST_SLEEP;
    until.tv_sec += (time_t)(ns / 1000000000);
    until.tv_nsec = (long)(ns % 1000000000);
    pthread_mutex_lock(&meet.lock);
    if (meet.n_wake == n_wake) {
        pthread_cond_timedwait(&meet.woken, &meet.lock, &until);
    }
    pthread_mutex_unlock(&meet.lock);
}

/* ------------------------------------------------------------------ steps */

static numoe_status wait_step(const struct serve *serve, void *self, uint64_t number,
                              numoe_error *err)
{
    uint64_t from = clock_ns();
    unsigned n_wake = wakes();
    while (exchange_bell_get(&meet.h->step) < number) {
        const bool busy = exchange_bell_get(&meet.h->result) + 1 < number;
        const uint64_t waited = clock_ns() - from;
        if (waited < SPIN_NS) {
            continue;
        }
        from = busy ? clock_ns() - SPIN_NS : from; /* pauses begin with the result */
        if (serve->look != NULL) {
            FORWARD_IF(serve->look(self, err));
        }
        if (busy || waited < SLEEP_NS) {
            nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
        } else {
            sleep_on_socket(n_wake);
            n_wake = wakes();
        }
    }
    return NUMOE_OK;
}

static numoe_status work(const struct serve *serve, void *self, numoe_error *err)
{
    pthread_t thread;
    prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
    if (pthread_create(&thread, NULL, beat, (void *)serve) != 0) {
        return status_fail(err, NUMOE_E_MEMORY, "no thread to beat");
    }
    for (uint64_t number = 1;; number++) {
        FORWARD_IF(wait_step(serve, self, number, err));
        FORWARD_IF(exchange_check_step(meet.h, number, err));
        FORWARD_IF(serve->step(self, number, err));
    }
}

/* The end of the socket before LOAD is what an engine does that only asks what is there. */
static int converse(const struct serve *serve, void *self, numoe_error *err)
{
    struct exchange_hello hello = {.block_tokens = 256, .max_tokens = 1};
    struct exchange_ready ready = {0};
    struct segment segment;
    uint64_t short_bytes = 0;
    if (serve->hello(self, &hello, err) != NUMOE_OK ||
        exchange_send(EXCHANGE_FD, EXCHANGE_HELLO, &hello, sizeof hello, -1, err) != NUMOE_OK) {
        say(EXCHANGE_REFUSED, 0, err);
        return 1;
    }
    if (serve->greeted != NULL) {
        serve->greeted();
    }
    segment_init(&segment);
    numoe_status status = receive_load(&segment, err);
    if (status == NUMOE_E_DEVICE) {
        return 0;
    }
    meet.h = segment.data;
    if (status == NUMOE_OK) {
        status = serve->load(self, segment.data, &ready, &short_bytes, err);
    }
    if (status != NUMOE_OK) {
        if (status == NUMOE_E_MEMORY && short_bytes == 0) {
            short_bytes = EXCHANGE_SHORT_ELSEWHERE;
        }
        say(EXCHANGE_REFUSED, short_bytes, err);
        return 1;
    }
    status = exchange_send(EXCHANGE_FD, EXCHANGE_READY, &ready, sizeof ready, -1, err);
    if (status == NUMOE_OK) {
        work(serve, self, err);
    }
    say(EXCHANGE_FAULT, 0, err);
    return 1;
}

int serve_run(const struct serve *serve, void *self)
{
    numoe_error err = {.status = NUMOE_OK};
    struct pollfd pfd = {.fd = EXCHANGE_FD, .events = POLLIN};
    if (poll(&pfd, 1, 0) < 0 || (pfd.revents & POLLNVAL)) {
        fprintf(stderr, "%s is started by an engine: numoe run --gpu\n", serve->program);
        return 2;
    }
    /* no clean-up: a driver may hang in it, and everything goes with the process */
    _exit(converse(serve, self, &err));
}
