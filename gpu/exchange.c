/* Owns the rules of the exchange: what a segment, a step and a message must look like before the
 * other side's words are used. Both ends check, since either may be broken or of another version.
 * The one thing to know: a check reads shared memory that the other side could still write, so what
 * it has checked is used from a copy where a wrong value would reach beyond the segment.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "gpu/exchange.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/status.h"

_Static_assert(offsetof(struct exchange_header, step) % EXCHANGE_ALIGN == 0, "bells have lines");
_Static_assert(sizeof(struct exchange_bell) == EXCHANGE_ALIGN, "bells are alone on their lines");
_Static_assert(sizeof(struct exchange_hello) + sizeof(struct exchange_message) <=
                   EXCHANGE_MESSAGE_MAX,
               "the largest message fits a packet");

#define SEGMENT_MAX  (UINT64_C(1) << 40)
#define BLOCK_MIN    16u
#define BLOCK_MAX    256u
#define POSITION_MAX (1u << 30)

/* ------------------------------------------------------------------ places */

/* The next place, and what follows it; the sum of all stays far below 2^64, since no factor is
 * above 2^40. */
static uint64_t place(uint64_t *end, uint64_t n, uint64_t elem_bytes)
{
    const uint64_t at = *end;
    const uint64_t bytes = n > SEGMENT_MAX / elem_bytes ? SEGMENT_MAX : n * elem_bytes;
    *end = at + (bytes + EXCHANGE_ALIGN - 1) / EXCHANGE_ALIGN * EXCHANGE_ALIGN;
    return at;
}

static void place_all(struct exchange_header *h)
{
    const uint64_t n_token = h->max_tokens, n_pick = n_token * h->n_expert_used;
    uint64_t end = sizeof *h;
    h->path_at = place(&end, h->path_bytes, 1);
    h->layer_at = place(&end, h->n_dense_layer, sizeof(struct exchange_layer));
    h->hot_at = place(&end, h->n_hot, sizeof(uint32_t));
    h->table_at = place(&end, (uint64_t)h->max_seq * h->max_seq_block, sizeof(uint32_t));
    for (unsigned i = 0; i < 2; i++) {
        h->step_at[i] = place(&end, 1, sizeof(struct exchange_step));
        h->token_at[i] = place(&end, n_token, sizeof(struct exchange_token));
        h->seq_at[i] = place(&end, h->max_seq, sizeof(struct exchange_seq));
        h->copy_at[i] = place(&end, h->max_seq, sizeof(struct exchange_copy));
        h->x_at[i] = place(&end, n_token * h->n_embd, sizeof(float));
        h->id_at[i] = place(&end, n_pick, sizeof(int32_t));
        h->weight_at[i] = place(&end, n_pick, sizeof(float));
        h->y_at[i] = place(&end, n_token * h->n_embd, sizeof(float));
        h->logits_at[i] = place(&end, (uint64_t)h->max_logits * h->n_vocab, sizeof(float));
        h->route_id_at[i] = place(&end, h->n_route * n_pick, sizeof(int32_t));
        h->route_weight_at[i] = place(&end, h->n_route * n_pick, sizeof(float));
    }
    h->segment_bytes = end;
}

numoe_status exchange_layout(const struct exchange_sizes *s, struct exchange_header *header,
                             numoe_error *err)
{
    struct exchange_header h = {
        .magic = EXCHANGE_MAGIC,
        .version = EXCHANGE_VERSION,
        .n_part = s->n_part,
        .n_layer = s->n_layer,
        .n_embd = s->n_embd,
        .n_vocab = s->n_vocab,
        .n_expert = s->n_expert,
        .n_expert_used = s->n_expert_used,
        .path_bytes = s->path_bytes,
        .n_dense_layer = s->n_dense_layer,
        .n_hot = s->n_hot,
        .n_route = s->n_route,
        .max_tokens = s->max_tokens,
        .max_logits = s->max_logits,
        .max_seq = s->max_seq,
        .n_block = s->n_block,
        .block_tokens = s->block_tokens,
        .max_seq_block = s->max_seq_block,
    };
    place_all(&h);
    if (h.segment_bytes > SEGMENT_MAX) {
        return status_fail(err, NUMOE_E_INPUT,
                           "an exchange for chunks of %u tokens and %u sequences would be larger "
                           "than %llu GB",
                           s->max_tokens, s->max_seq, (unsigned long long)(SEGMENT_MAX >> 30));
    }
    *header = h;
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ segment */

static numoe_status bad(numoe_error *err, const char *what, uint64_t value)
{
    return status_fail(err, NUMOE_E_FILE_FORMAT, "exchange: %s is %llu", what,
                       (unsigned long long)value);
}

static numoe_status check_version(uint32_t magic, uint32_t version, numoe_error *err)
{
    if (magic != EXCHANGE_MAGIC) {
        return status_fail(err, NUMOE_E_FILE_FORMAT,
                           "exchange: begins with 0x%08x, which is not its mark", magic);
    }
    if (version != EXCHANGE_VERSION) {
        return status_fail(
            err, NUMOE_E_SUPPORT,
            "exchange: the other side speaks version %u, this one version %u: engine "
            "and GPU program must be of one build",
            version, EXCHANGE_VERSION);
    }
    return NUMOE_OK;
}

static bool is_block_size(uint32_t n)
{
    return n >= BLOCK_MIN && n <= BLOCK_MAX && (n & (n - 1)) == 0;
}

static numoe_status check_sizes(const struct exchange_header *h, numoe_error *err)
{
    const struct {
        const char *what;
        uint64_t value, min, max;
    } range[] = {
        {"number of files", h->n_part, 1, 1u << 16},
        {"number of layers", h->n_layer, 1, 1u << 16},
        {"width", h->n_embd, 1, 1u << 20},
        {"vocabulary", h->n_vocab, 1, 1u << 24},
        {"number of experts", h->n_expert, 0, 1u << 16},
        {"number of experts used", h->n_expert_used, 0, h->n_expert},
        {"number of devices", h->n_device, 1, EXCHANGE_MAX_DEVICE},
        {"number of the program's layers", h->n_dense_layer, 1, h->n_layer},
        {"number of hot experts", h->n_hot, 0, (uint64_t)h->n_dense_layer * h->n_expert},
        {"number of layers with routes", h->n_route, 0, h->n_dense_layer},
        {"tokens of a step", h->max_tokens, 1, 1u << 20},
        {"rows of logits", h->max_logits, 1, h->max_tokens},
        {"number of sequences", h->max_seq, 1, 1u << 20},
        {"number of KV blocks", h->n_block, 1, 1u << 28},
        {"blocks of a sequence", h->max_seq_block, 1, h->n_block},
        {"type of x", h->x_type, 0, EXCHANGE_X_BF16},
        {"float mode", h->float_mode, 0, EXCHANGE_FLOAT_F32},
        {"type of the KV cache", h->kv_type, 0, EXCHANGE_KV_Q8_0},
        {"length of the paths", h->path_bytes, 2, 1u << 30},
    };
    for (size_t i = 0; i < ARRAY_LEN(range); i++) {
        if (range[i].value < range[i].min || range[i].value > range[i].max) {
            return bad(err, range[i].what, range[i].value);
        }
    }
    return is_block_size(h->block_tokens) ? NUMOE_OK : bad(err, "KV block size", h->block_tokens);
}

/* Places follow from sizes in one way only, so they are computed again and compared. */
static numoe_status check_places(const struct exchange_header *h, uint64_t bytes, numoe_error *err)
{
    struct exchange_header own = *h;
    place_all(&own);
    if (own.segment_bytes > bytes) {
        return status_fail(err, NUMOE_E_FILE_FORMAT,
                           "exchange: has %llu bytes, its sizes need %llu",
                           (unsigned long long)bytes, (unsigned long long)own.segment_bytes);
    }
    const size_t first = offsetof(struct exchange_header, table_at);
    const size_t end = offsetof(struct exchange_header, align);
    if (own.segment_bytes != h->segment_bytes || own.path_at != h->path_at ||
        own.layer_at != h->layer_at || own.hot_at != h->hot_at ||
        memcmp((const uint8_t *)&own + first, (const uint8_t *)h + first, end - first) != 0) {
        return status_fail(err, NUMOE_E_FILE_FORMAT,
                           "exchange: its places are not those of version %u", EXCHANGE_VERSION);
    }
    return NUMOE_OK;
}

static numoe_status check_paths(const struct exchange_header *h, const uint8_t *segment,
                                numoe_error *err)
{
    const char *path = (const char *)segment + h->path_at;
    uint64_t left = h->path_bytes;
    for (uint32_t i = 0; i < h->n_part; i++) {
        const char *nul = left > 0 ? memchr(path, 0, left) : NULL;
        if (nul == NULL || path[0] != '/') {
            return bad(err, "path that is not one, number", i);
        }
        left -= (uint64_t)(nul + 1 - path);
        path = nul + 1;
    }
    return NUMOE_OK;
}

static numoe_status check_layers(const struct exchange_header *h, const uint8_t *segment,
                                 numoe_error *err)
{
    const struct exchange_layer *layer = (const void *)(segment + h->layer_at);
    const uint32_t *hot = (const void *)(segment + h->hot_at);
    uint32_t at = 0, n_route = 0;
    for (uint32_t il = 0; il < h->n_dense_layer; il++) {
        const struct exchange_layer l = layer[il];
        if (l.flags > EXCHANGE_LAYER_ROUTES || l.device >= h->n_device || l.hot0 != at ||
            l.hot1 < l.hot0 || l.hot1 > h->n_hot) {
            return bad(err, "entry of the table of layers that is not one, number", il);
        }
        for (uint32_t i = l.hot0; i < l.hot1; i++) {
            if (hot[i] >= h->n_expert || (i > l.hot0 && hot[i] <= hot[i - 1])) {
                return bad(err, "hot expert out of range or order, number", i);
            }
        }
        if (l.flags == EXCHANGE_LAYER_ROUTES && (h->n_expert == 0 || l.hot1 - at != h->n_expert)) {
            return bad(err, "layer with routes whose experts are not all hot, number", il);
        }
        n_route += l.flags == EXCHANGE_LAYER_ROUTES ? 1 : 0;
        at = l.hot1;
    }
    if (n_route != h->n_route) {
        return bad(err, "number of layers with routes in the table", n_route);
    }
    return at == h->n_hot ? NUMOE_OK : bad(err, "number of hot experts in layers", at);
}

numoe_status exchange_check(const void *segment, uint64_t bytes, numoe_error *err)
{
    struct exchange_header h;
    if (bytes < sizeof h || bytes > SEGMENT_MAX) {
        return bad(err, "size of the segment", bytes);
    }
    memcpy(&h, segment, sizeof h);
    FORWARD_IF(check_version(h.magic, h.version, err));
    FORWARD_IF(check_sizes(&h, err));
    FORWARD_IF(check_places(&h, bytes, err));
    for (uint32_t i = 0; i < h.n_device; i++) {
        if (h.device[i] >= EXCHANGE_MAX_DEVICE) {
            return bad(err, "number of a device", h.device[i]);
        }
    }
    FORWARD_IF(check_paths(&h, segment, err));
    return check_layers(&h, segment, err);
}

uint32_t exchange_step_hands(const void *segment)
{
    const struct exchange_header *h = segment;
    const struct exchange_layer *layer = (const void *)((const uint8_t *)segment + h->layer_at);
    uint32_t n = h->n_dense_layer < h->n_layer ? 1 : 0;
    for (uint32_t il = 0; il < h->n_dense_layer; il++) {
        n += layer[il].flags & EXCHANGE_LAYER_HAND ? 1 : 0;
    }
    return n;
}

numoe_status exchange_check_model(const struct exchange_header *h, const struct exchange_model *m,
                                  numoe_error *err)
{
    const struct {
        const char *what;
        uint32_t here, there;
    } same[] = {
        {"files", m->n_part, h->n_part},
        {"layers", m->n_layer, h->n_layer},
        {"elements of a token", m->n_embd, h->n_embd},
        {"tokens in its vocabulary", m->n_vocab, h->n_vocab},
        {"experts", m->n_expert, h->n_expert},
        {"experts of a token", m->n_expert_used, h->n_expert_used},
    };
    for (size_t i = 0; i < ARRAY_LEN(same); i++) {
        if (same[i].here != same[i].there) {
            return status_fail(err, NUMOE_E_FILE_MODEL,
                               "the model is not the engine's: it has %u %s, not %u", same[i].here,
                               same[i].what, same[i].there);
        }
    }
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ step */

static numoe_status check_seq(const struct exchange_header *h, const uint8_t *segment,
                              uint64_t slot, uint32_t is, uint32_t *token0, numoe_error *err)
{
    const struct exchange_seq seq = ((const struct exchange_seq *)(segment + h->seq_at[slot]))[is];
    const struct exchange_token *token = (const void *)(segment + h->token_at[slot]);
    if (seq.row >= h->max_seq || seq.token0 != *token0 || seq.n_token == 0 ||
        seq.n_token > h->max_tokens - *token0 || seq.n_block > h->max_seq_block) {
        return bad(err, "sequence that is not one, number", is);
    }
    const uint32_t first = token[seq.token0].position;
    for (uint32_t i = 0; i < seq.n_token; i++) {
        const struct exchange_token t = token[seq.token0 + i];
        if (t.id < 0 || (uint32_t)t.id >= h->n_vocab || t.seq != is || t.position != first + i ||
            t.position / h->block_tokens >= seq.n_block) {
            return bad(err, "token that is not one, number", seq.token0 + i);
        }
    }
    const uint32_t *table = (const uint32_t *)(const void *)(segment + h->table_at) +
                            (size_t)seq.row * h->max_seq_block;
    for (uint32_t i = 0; i < seq.n_block; i++) {
        if (table[i] >= h->n_block) {
            return bad(err, "KV block", table[i]);
        }
    }
    *token0 += seq.n_token;
    return NUMOE_OK;
}

numoe_status exchange_check_step(const void *segment, uint64_t number, numoe_error *err)
{
    const struct exchange_header *h = segment;
    const uint8_t *base = segment;
    const uint64_t slot = number % 2;
    const struct exchange_step *step = (const void *)(base + h->step_at[slot]);
    const struct exchange_token *token = (const void *)(base + h->token_at[slot]);
    const struct exchange_copy *copy = (const void *)(base + h->copy_at[slot]);
    uint32_t n = 0;
    if (step->number != number || step->n_token == 0 || step->n_token > h->max_tokens ||
        step->n_seq > h->max_seq || step->n_copy > h->max_seq || step->n_logits > h->max_logits) {
        return bad(err, "step that is not one, number", number);
    }
    for (uint32_t is = 0; is < step->n_seq; is++) {
        FORWARD_IF(check_seq(h, base, slot, is, &n, err));
    }
    for (uint32_t i = 0; i < step->n_copy; i++) {
        if (copy[i].from >= h->n_block || copy[i].to >= h->n_block) {
            return bad(err, "KV block to copy, number", i);
        }
    }
    for (uint32_t i = 0; i < step->n_token; i++) {
        if (token[i].logits != EXCHANGE_NO_LOGITS && token[i].logits >= step->n_logits) {
            return bad(err, "row of logits", token[i].logits);
        }
    }
    return n == step->n_token ? NUMOE_OK : bad(err, "number of tokens in sequences", n);
}

/* ------------------------------------------------------------------ messages */

static bool is_text(const char *text, size_t cap)
{
    return memchr(text, 0, cap) != NULL;
}

static bool hello_is_sound(const struct exchange_hello *hello)
{
    bool sound = is_text(hello->program, sizeof hello->program) &&
                 is_text(hello->driver, sizeof hello->driver) &&
                 is_text(hello->trouble, sizeof hello->trouble) &&
                 hello->n_device <= EXCHANGE_MAX_DEVICE && hello->x_type <= EXCHANGE_X_BF16 &&
                 is_block_size(hello->block_tokens) && hello->max_tokens > 0;
    for (uint32_t i = 0; sound && i < hello->n_device; i++) {
        sound = is_text(hello->device[i].name, sizeof hello->device[i].name);
    }
    return sound;
}

static size_t payload_bytes_of(uint32_t type)
{
    switch (type) {
    case EXCHANGE_HELLO:
        return sizeof(struct exchange_hello);
    case EXCHANGE_LOAD:
        return sizeof(struct exchange_load);
    case EXCHANGE_PROGRESS:
        return sizeof(struct exchange_progress);
    case EXCHANGE_READY:
        return sizeof(struct exchange_ready);
    case EXCHANGE_REFUSED:
    case EXCHANGE_FAULT:
        return sizeof(struct exchange_text);
    case EXCHANGE_QUIT:
    case EXCHANGE_WAKE:
        return 0;
    default:
        return SIZE_MAX;
    }
}

static bool payload_is_sound(uint32_t type, const void *payload)
{
    struct exchange_hello hello;
    struct exchange_ready ready;
    struct exchange_text text;
    switch (type) {
    case EXCHANGE_HELLO:
        memcpy(&hello, payload, sizeof hello);
        return hello_is_sound(&hello);
    case EXCHANGE_READY:
        memcpy(&ready, payload, sizeof ready);
        return ready.n_device <= EXCHANGE_MAX_DEVICE;
    case EXCHANGE_REFUSED:
    case EXCHANGE_FAULT:
        memcpy(&text, payload, sizeof text);
        return is_text(text.text, sizeof text.text);
    default:
        return true;
    }
}

numoe_status exchange_check_message(const void *packet, size_t bytes, numoe_error *err)
{
    struct exchange_message m;
    if (bytes < sizeof m) {
        return bad(err, "size of a message", bytes);
    }
    memcpy(&m, packet, sizeof m);
    FORWARD_IF(check_version(m.magic, m.version, err));
    if (m.payload_bytes != bytes - sizeof m || m.payload_bytes != payload_bytes_of(m.type)) {
        return status_fail(err, NUMOE_E_FILE_FORMAT,
                           "exchange: message of type %u with %zu bytes of payload", m.type,
                           bytes - sizeof m);
    }
    return payload_is_sound(m.type, exchange_payload(packet))
               ? NUMOE_OK
               : bad(err, "message with a field out of range, type", m.type);
}

/* ------------------------------------------------------------------ socket */

static numoe_status gone(numoe_error *err, const char *what)
{
    return status_fail(err, NUMOE_E_DEVICE, "exchange: the other side is gone (%s)", what);
}

numoe_status exchange_send(int socket, uint32_t type, const void *payload, size_t payload_bytes,
                           int fd, numoe_error *err)
{
    struct exchange_message m = {EXCHANGE_MAGIC, EXCHANGE_VERSION, type, (uint32_t)payload_bytes};
    struct iovec part[2] = {{&m, sizeof m}, {(void *)payload, payload_bytes}};
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {0};
    struct msghdr msg = {.msg_iov = part, .msg_iovlen = payload_bytes > 0 ? 2 : 1};
    if (fd >= 0) {
        msg.msg_control = control;
        msg.msg_controllen = sizeof control;
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    ssize_t n;
    do {
        n = sendmsg(socket, &msg, MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    return n < 0 ? gone(err, strerror(errno)) : NUMOE_OK;
}

/* The first descriptor that came; others are closed. */
static int take_fd(struct msghdr *msg)
{
    int first = -1;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c != NULL; c = CMSG_NXTHDR(msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        const size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            if (first < 0) {
                first = fd;
            } else {
                close(fd);
            }
        }
    }
    return first;
}

static numoe_status wait_readable(int socket, int timeout_ms, numoe_error *err)
{
    struct pollfd p = {.fd = socket, .events = POLLIN};
    int n;
    do {
        n = poll(&p, 1, timeout_ms);
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
        return gone(err, strerror(errno));
    }
    return n > 0 ? NUMOE_OK
                 : status_fail(err, NUMOE_E_STATE, "exchange: no message within %.3g s",
                               timeout_ms * 1e-3);
}

numoe_status exchange_receive(int socket, int timeout_ms, void *packet, int *fd, numoe_error *err)
{
    struct iovec part = {packet, EXCHANGE_MESSAGE_MAX};
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))];
    struct msghdr msg = {.msg_iov = &part,
                         .msg_iovlen = 1,
                         .msg_control = control,
                         .msg_controllen = sizeof control};
    FORWARD_IF(wait_readable(socket, timeout_ms, err));
    ssize_t n;
    do {
        n = recvmsg(socket, &msg, MSG_CMSG_CLOEXEC);
    } while (n < 0 && errno == EINTR);
    if (n <= 0) {
        return gone(err, n == 0 ? "it closed the socket" : strerror(errno));
    }
    const int came = take_fd(&msg);
    numoe_status status = msg.msg_flags & MSG_TRUNC
                              ? bad(err, "size of a message beyond", (uint64_t)n)
                              : exchange_check_message(packet, (size_t)n, err);
    if (status == NUMOE_OK && fd != NULL) {
        *fd = came;
    } else if (came >= 0) {
        close(came);
    }
    return status;
}
