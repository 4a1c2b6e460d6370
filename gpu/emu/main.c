/* The conversation: HELLO, LOAD, READY, then steps until the socket ends. A thread of its own beats
 * and listens, whatever the others do.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/knob.h"
#include "base/mem.h"
#include "gpu/emu/emu.h"
#include "gpu/segment.h"
#include "numa/gate.h"

#define BEAT_MS          50
#define SLEEP_MS         (2 * EXCHANGE_WAKE_MS) /* without a step; after it, the socket wakes */
#define SPIN_NS          20000u
#define NAP_NS           50000
#define LONGEST_SLEEP_MS 500u

static struct {
    pthread_mutex_t lock;
    pthread_cond_t woken;
    unsigned n_wake; /* Sync: lock */
    struct exchange_header *h;
} meet = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, NULL};

/* ------------------------------------------------------------------ options */

numoe_status emu_options_read(struct emu_options *o, numoe_error *err)
{
    const char *x = knob_str("NUMOE_EMU_X");
    *o = (struct emu_options){.n_thread = 1, .n_device = 1, .vram_mib = 1u << 20};
    FORWARD_IF(knob_uint("NUMOE_EMU_THREADS", 1, 1024, &o->n_thread, err));
    FORWARD_IF(knob_uint("NUMOE_EMU_DEVICES", 0, EXCHANGE_MAX_DEVICE, &o->n_device, err));
    FORWARD_IF(knob_uint("NUMOE_EMU_VRAM", 1, 1u << 30, &o->vram_mib, err));
    if (x != NULL && strcmp(x, "f32") != 0 && strcmp(x, "bf16") != 0) {
        return status_fail(err, NUMOE_E_INPUT, "NUMOE_EMU_X: \"%s\" is neither f32 nor bf16", x);
    }
    o->x_type = x != NULL && strcmp(x, "bf16") == 0 ? EXCHANGE_X_BF16 : EXCHANGE_X_F32;
    return emu_fault_read(err);
}

/* ------------------------------------------------------------------ messages */

static numoe_status send_hello(const struct emu_options *o, numoe_error *err)
{
    struct exchange_hello hello = {
        .program = "numoe-gpu-emu " PACKAGE_VERSION,
        .driver = "the CPU",
        .n_device = o->n_device,
        .x_type = o->x_type,
        .block_tokens = 256,
        .max_tokens = 65536,
        .on_host = 1,
    };
    if (o->n_device == 0) {
        snprintf(hello.trouble, sizeof hello.trouble, "no device was asked for");
    }
    for (unsigned i = 0; i < o->n_device; i++) {
        struct exchange_device *device = &hello.device[i];
        snprintf(device->name, sizeof device->name, "emulated");
        device->number = i;
        device->os_node = UINT32_MAX;
        device->total_bytes = device->free_bytes = (uint64_t)o->vram_mib << 20;
    }
    return exchange_send(EXCHANGE_FD, EXCHANGE_HELLO, &hello, sizeof hello, -1, err);
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

static void refuse(const numoe_error *why)
{
    struct exchange_text text = {.short_bytes = 0};
    snprintf(text.text, sizeof text.text, "%.500s", why->text);
    exchange_send(EXCHANGE_FD, EXCHANGE_REFUSED, &text, sizeof text, -1, NULL);
}

static numoe_status send_ready(const struct emu *emu, numoe_error *err)
{
    struct exchange_ready ready = {.n_device = meet.h->n_device};
    emu_use(emu, ready.use);
    return exchange_send(EXCHANGE_FD, EXCHANGE_READY, &ready, sizeof ready, -1, err);
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
    (void)arg;
    for (uint64_t n = 1;; n++) {
        if (!emu_fault_hangs()) {
            exchange_bell_ring(&meet.h->beat, n);
        }
        if (poll(&pfd, 1, BEAT_MS) > 0) {
            listen_once();
        }
    }
    return NULL;
}

/* ------------------------------------------------------------------ steps */

static void sleep_on_socket(unsigned *n_wake)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += LONGEST_SLEEP_MS % 1000 * 1000000;
    until.tv_sec += LONGEST_SLEEP_MS / 1000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&meet.lock);
    if (meet.n_wake == *n_wake) {
        pthread_cond_timedwait(&meet.woken, &meet.lock, &until);
    }
    *n_wake = meet.n_wake;
    pthread_mutex_unlock(&meet.lock);
}

static void wait_step(uint64_t number)
{
    const uint64_t from = clock_ns();
    unsigned n_wake;
    pthread_mutex_lock(&meet.lock);
    n_wake = meet.n_wake;
    pthread_mutex_unlock(&meet.lock);
    while (exchange_bell_get(&meet.h->step) < number) {
        const uint64_t waited = clock_ns() - from;
        if (waited < SPIN_NS) {
            gate_relax();
        } else if (waited < SLEEP_MS * UINT64_C(1000000)) {
            nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
        } else {
            sleep_on_socket(&n_wake);
        }
    }
}

static numoe_status work(struct emu *emu, numoe_error *err)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, beat, NULL) != 0) {
        return status_fail(err, NUMOE_E_MEMORY, "no thread to beat");
    }
    for (uint64_t number = 1;; number++) {
        wait_step(number);
        emu_fault(EMU_STEP, number, EXCHANGE_FD);
        FORWARD_IF(emu_step(emu, number, err));
    }
}

static numoe_status converse(numoe_error *err)
{
    struct emu_options options;
    struct segment segment;
    struct emu *emu = NULL;
    FORWARD_IF(emu_options_read(&options, err));
    emu_fault(EMU_START, 0, EXCHANGE_FD);
    FORWARD_IF(send_hello(&options, err));
    emu_fault(EMU_HELLO, 0, EXCHANGE_FD);
    segment_init(&segment);
    numoe_status status = receive_load(&segment, err);
    if (status == NUMOE_E_DEVICE) {
        return NUMOE_OK; /* who only asked for the HELLO */
    }
    emu_fault(EMU_LOAD, 0, EXCHANGE_FD);
    meet.h = segment.data;
    if (status == NUMOE_OK) {
        status = emu_load(&options, segment.data, &emu, err);
    }
    if (status != NUMOE_OK) {
        refuse(err);
        return status;
    }
    emu_fault(EMU_READY, 0, EXCHANGE_FD);
    FORWARD_IF(send_ready(emu, err));
    return work(emu, err);
}

int main(void)
{
    numoe_error err = {.status = NUMOE_OK};
    struct pollfd pfd = {.fd = EXCHANGE_FD, .events = POLLIN};
    if (poll(&pfd, 1, 0) < 0 || (pfd.revents & POLLNVAL)) {
        fprintf(stderr, "numoe-gpu-emu is started by an engine: numoe run --gpu emu\n");
        return 2;
    }
    if (converse(&err) != NUMOE_OK) {
        struct exchange_text text = {.short_bytes = 0};
        snprintf(text.text, sizeof text.text, "%.500s", err.text);
        exchange_send(EXCHANGE_FD, EXCHANGE_FAULT, &text, sizeof text, -1, NULL);
        return 1;
    }
    return 0;
}
