/* Owns failures on demand: what real GPU programs do when drivers, memory or people are against
 * them, at a chosen moment.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/knob.h"
#include "base/mem.h"
#include "gpu/emu/emu.h"

#define SHORT_BYTES (UINT64_C(64) << 20)

enum action {
    DO_NONE,
    DO_EXIT,
    DO_KILL,
    DO_STOP,
    DO_HANG,
    DO_GARBAGE,
    DO_VERSION,
    DO_FAULT,
    DO_SHORT,
    DO_IDS
};

static const char *const action_name[] = {"none",    "exit",    "kill",  "stop",  "hang",
                                          "garbage", "version", "fault", "short", "ids"};
static const char *const where_name[] = {"start", "hello", "load", "ready", "step", "x", "result"};

static struct {
    enum action action;
    enum emu_where where;
    uint64_t number; /* 0: any */
    const char *once;
} wanted;
static atomic_bool hangs, bad_ids;

static int find(const char *const *name, size_t n, const char *text, size_t len)
{
    for (size_t i = 0; i < n; i++) {
        if (strlen(name[i]) == len && strncmp(name[i], text, len) == 0) {
            return (int)i;
        }
    }
    return -1;
}

numoe_status emu_fault_read(numoe_error *err)
{
    const char *text = knob_str("NUMOE_EMU_FAULT");
    if (text == NULL) {
        return NUMOE_OK;
    }
    const size_t n_action = strcspn(text, "@");
    const char *at = text + n_action + (text[n_action] == '@');
    const size_t n_where = strcspn(at, ":");
    const int action = find(action_name, ARRAY_LEN(action_name), text, n_action);
    const int where = find(where_name, ARRAY_LEN(where_name), at, n_where);
    if (action < 0 || where < 0) {
        return status_fail(err, NUMOE_E_INPUT, "NUMOE_EMU_FAULT: \"%s\" is no ACTION@WHERE", text);
    }
    wanted.action = (enum action)action;
    wanted.where = (enum emu_where)where;
    wanted.number = at[n_where] == ':' ? strtoull(at + n_where + 1, NULL, 10) : 0;
    wanted.once = knob_str("NUMOE_EMU_FAULT_ONCE");
    return NUMOE_OK;
}

static bool is_due(enum emu_where where, uint64_t number)
{
    if (wanted.action == DO_NONE || wanted.where != where ||
        (wanted.number != 0 && wanted.number != number)) {
        return false;
    }
    if (wanted.once == NULL) {
        return true;
    }
    const int fd = open(wanted.once, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    if (fd >= 0) {
        close(fd);
    }
    return fd >= 0;
}

static void hang(void)
{
    atomic_store(&hangs, true);
    for (;;) {
        pause();
    }
}

static void send_bytes(int socket, const void *bytes, size_t n)
{
    if (send(socket, bytes, n, MSG_NOSIGNAL) < 0) {
        _exit(1);
    }
}

static void say(int socket, uint32_t type, uint64_t short_bytes, const char *words)
{
    struct exchange_text text = {.short_bytes = short_bytes};
    snprintf(text.text, sizeof text.text, "%s", words);
    exchange_send(socket, type, &text, sizeof text, -1, NULL);
    _exit(1);
}

void emu_fault(enum emu_where where, uint64_t number, int socket)
{
    const struct exchange_message other = {EXCHANGE_MAGIC, EXCHANGE_VERSION + 1, EXCHANGE_HELLO, 0};
    if (!is_due(where, number)) {
        return;
    }
    switch (wanted.action) {
    case DO_NONE:
        break;
    case DO_EXIT:
        _exit(3);
    case DO_KILL:
        kill(getpid(), SIGKILL);
        break;
    case DO_STOP:
        kill(getpid(), SIGSTOP);
        break;
    case DO_HANG:
        hang();
        break;
    case DO_GARBAGE:
        send_bytes(socket, "\xff\x00garbage, not a message\x01", 26);
        break;
    case DO_VERSION:
        send_bytes(socket, &other, sizeof other);
        break;
    case DO_FAULT:
        say(socket, EXCHANGE_FAULT, 0, "an error was asked for");
        break;
    case DO_SHORT:
        say(socket, EXCHANGE_REFUSED, SHORT_BYTES, "out of memory, as was asked for");
        break;
    case DO_IDS:
        atomic_store(&bad_ids, true);
        break;
    }
}

bool emu_fault_hangs(void)
{
    return atomic_load(&hangs);
}

bool emu_fault_ids(void)
{
    return atomic_load(&bad_ids);
}
