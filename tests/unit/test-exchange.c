/* The exchange with a GPU program: what is refused of a segment, a step, a message; and what goes
 * into made-up GPUs. Numbers of the plans were added up by hand. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "gpu/exchange.h"
#include "gpu/plan.h"
#include "tests/unit/segment.h"

/* ------------------------------------------------------------------ segment */

static const struct exchange_sizes sizes = {
    .n_part = 1,
    .n_layer = 3,
    .n_embd = 64,
    .n_vocab = 100,
    .n_expert = 4,
    .n_expert_used = 2,
    .n_dense_layer = 2,
    .n_hot = 1,
    .max_tokens = 8,
    .max_logits = 4,
    .max_seq = 2,
    .n_block = 6,
    .block_tokens = 16,
    .max_seq_block = 3,
    .path_bytes = 8,
};

/* A sound one, of exactly its size; free(). */
static void *new_segment(uint64_t *bytes)
{
    numoe_error err = {0};
    struct exchange_header *h = segment_new(&sizes, &err);
    cr_assert_not_null(h, "%s", err.text);
    struct exchange_layer *layer = exchange_at(h, h->layer_at);
    layer[0] = (struct exchange_layer){.flags = EXCHANGE_LAYER_HAND, .hot0 = 0, .hot1 = 1};
    layer[1] = (struct exchange_layer){.flags = EXCHANGE_LAYER_HAND, .hot0 = 1, .hot1 = 1};
    *(uint32_t *)exchange_at(h, h->hot_at) = 3;
    *bytes = h->segment_bytes;
    return h;
}

static void refuses(const void *segment, uint64_t bytes, const char *what)
{
    numoe_error err = {0};
    cr_expect_neq(exchange_check(segment, bytes, &err), NUMOE_OK, "%s", what);
    cr_expect(strncmp(err.text, "exchange: ", 10) == 0 && strchr(err.text, '\n') == NULL, "%s: %s",
              what, err.text);
}

Test(exchange, a_sound_segment_is_taken)
{
    uint64_t bytes;
    void *segment = new_segment(&bytes);
    numoe_error err = {0};
    cr_expect_eq(exchange_check(segment, bytes, &err), NUMOE_OK, "%s", err.text);
    cr_expect_eq(exchange_step_hands(segment), 3, "two layers, and the stream at the end");
    refuses(segment, bytes - 1, "a byte is missing");
    refuses(segment, 100, "less than a header");
    free(segment);
}

Test(exchange, sizes_out_of_range_are_refused)
{
#define FIELD(name)                                                                                \
    {                                                                                              \
#name, offsetof(struct exchange_header, name)                                              \
    }
    static const struct {
        const char *name;
        size_t at;
    } field[] = {
        FIELD(magic),           FIELD(version),       FIELD(n_part),
        FIELD(n_layer),         FIELD(n_embd),        FIELD(n_vocab),
        FIELD(n_expert),        FIELD(n_expert_used), FIELD(n_device),
        FIELD(n_dense_layer),   FIELD(n_hot),         FIELD(max_tokens),
        FIELD(max_logits),      FIELD(max_seq),       FIELD(n_block),
        FIELD(block_tokens),    FIELD(max_seq_block), FIELD(x_type),
        FIELD(float_mode),      FIELD(kv_type),       FIELD(path_bytes),
        FIELD(path_at),         FIELD(layer_at),      FIELD(hot_at),
        FIELD(table_at),        FIELD(segment_bytes), FIELD(device),
        FIELD(step_at),         FIELD(x_at),          FIELD(y_at),
        FIELD(logits_at),       FIELD(n_route),       FIELD(route_id_at),
        FIELD(route_weight_at),
    };
    uint64_t bytes;
    uint8_t *segment = new_segment(&bytes);
    for (size_t i = 0; i < ARRAY_LEN(field); i++) {
        uint32_t was;
        memcpy(&was, segment + field[i].at, sizeof was);
        memset(segment + field[i].at, 0xff, sizeof was);
        refuses(segment, bytes, field[i].name);
        memcpy(segment + field[i].at, &was, sizeof was);
    }
    free(segment);
}

Test(exchange, tables_are_checked)
{
    uint64_t bytes;
    void *segment = new_segment(&bytes);
    const struct exchange_header *h = segment;
    struct exchange_layer *layer = exchange_at(segment, h->layer_at);
    char *path = exchange_at(segment, h->path_at);
    uint32_t *hot = exchange_at(segment, h->hot_at);
    hot[0] = 4;
    refuses(segment, bytes, "an expert that is not there");
    hot[0] = 3;
    layer[1].hot1 = 2;
    refuses(segment, bytes, "more hot experts than there are");
    layer[1].hot1 = 1;
    layer[0].device = 1;
    refuses(segment, bytes, "a device that is not there");
    layer[0].device = 0;
    path[7] = 'x';
    refuses(segment, bytes, "a path without an end");
    path[7] = 0;
    path[0] = 'm';
    refuses(segment, bytes, "a relative path");
    path[0] = '/';
    layer[1].flags = EXCHANGE_LAYER_ROUTES;
    refuses(segment, bytes, "routes of a layer whose experts are not all hot");
    layer[1].flags = EXCHANGE_LAYER_HAND | EXCHANGE_LAYER_ROUTES;
    refuses(segment, bytes, "routes of a layer with a hand-off");
    free(segment);
}

Test(exchange, layers_with_routes_are_counted)
{
    struct exchange_sizes s = sizes;
    numoe_error err = {0};
    s.n_hot = 4;
    s.n_route = 1;
    struct exchange_header *h = segment_new(&s, &err);
    cr_assert_not_null(h, "%s", err.text);
    struct exchange_layer *layer = exchange_at(h, h->layer_at);
    uint32_t *hot = exchange_at(h, h->hot_at);
    layer[0] = (struct exchange_layer){.flags = EXCHANGE_LAYER_HAND};
    layer[1] = (struct exchange_layer){.flags = EXCHANGE_LAYER_ROUTES, .hot1 = 4};
    for (uint32_t i = 0; i < 4; i++) {
        hot[i] = i;
    }
    cr_expect_eq(exchange_check(h, h->segment_bytes, &err), NUMOE_OK, "%s", err.text);
    cr_expect_eq(h->route_weight_at[0] - h->route_id_at[0], 128, "8 tokens of 2 choices in a line");
    cr_expect_eq(exchange_step_hands(h), 2, "no hand-off for layer 1");
    layer[1].flags = 0;
    refuses(h, h->segment_bytes, "routes that no layer has");
    free(h);
}

Test(exchange, another_model_is_told_from_the_engines)
{
    struct exchange_header h;
    numoe_error err = {0};
    struct exchange_model m = {1, 3, 64, 100, 4, 2};
    cr_assert_eq(exchange_layout(&sizes, &h, &err), NUMOE_OK, "%s", err.text);
    cr_expect_eq(exchange_check_model(&h, &m, &err), NUMOE_OK, "%s", err.text);
    uint32_t *field = &m.n_part;
    for (unsigned i = 0; i < sizeof m / sizeof *field; i++) {
        field[i]++;
        cr_expect_eq(exchange_check_model(&h, &m, &err), NUMOE_E_FILE_MODEL, "field %u", i);
        field[i]--;
    }
}

/* ------------------------------------------------------------------ step */

struct step_parts {
    struct exchange_step *step;
    struct exchange_token *token;
    struct exchange_seq *seq;
    struct exchange_copy *copy;
    uint32_t *table;
};

/* Step 1: three tokens of a sequence at 14..16, so that they are in two blocks. */
static struct step_parts write_step(void *segment)
{
    const struct exchange_header *h = segment;
    const struct step_parts p = {
        exchange_at(segment, h->step_at[1]), exchange_at(segment, h->token_at[1]),
        exchange_at(segment, h->seq_at[1]),  exchange_at(segment, h->copy_at[1]),
        exchange_at(segment, h->table_at),
    };
    *p.step = (struct exchange_step){
        .number = 1, .first_hand = 1, .n_token = 3, .n_seq = 1, .n_copy = 1, .n_logits = 1};
    for (uint32_t t = 0; t < 3; t++) {
        p.token[t] = (struct exchange_token){
            .id = 99, .position = 14 + t, .logits = t == 2 ? 0 : EXCHANGE_NO_LOGITS};
    }
    p.seq[0] = (struct exchange_seq){.row = 1, .token0 = 0, .n_token = 3, .n_block = 2};
    p.copy[0] = (struct exchange_copy){.from = 0, .to = 5};
    p.table[3] = 5;
    p.table[4] = 2;
    return p;
}

Test(exchange, steps_are_checked)
{
    uint64_t bytes;
    void *segment = new_segment(&bytes);
    const struct step_parts p = write_step(segment);
    numoe_error err = {0};
    cr_assert_eq(exchange_check_step(segment, 1, &err), NUMOE_OK, "%s", err.text);
#define REFUSES(change)                                                                            \
    do {                                                                                           \
        change;                                                                                    \
        cr_expect_neq(exchange_check_step(segment, 1, &err), NUMOE_OK, #change);                   \
        write_step(segment);                                                                       \
    } while (0)
    REFUSES(p.step->number = 3);
    REFUSES(p.step->n_token = 0);
    REFUSES(p.step->n_token = 9);
    REFUSES(p.step->n_token = 2);
    REFUSES(p.step->n_seq = 3);
    REFUSES(p.step->n_logits = 0);
    REFUSES(p.token[1].id = 100);
    REFUSES(p.token[1].id = -1);
    REFUSES(p.token[1].position = 17);
    REFUSES(p.token[1].seq = 1);
    REFUSES(p.token[2].logits = 1);
    REFUSES(p.seq[0].row = 2);
    REFUSES(p.seq[0].n_block = 1);
    REFUSES(p.seq[0].n_block = 4);
    REFUSES(p.seq[0].n_token = 4);
    REFUSES(p.table[4] = 6);
    REFUSES(p.copy[0].to = 6);
    cr_expect_eq(exchange_check_step(segment, 1, &err), NUMOE_OK, "%s", err.text);
    free(segment);
}

/* ------------------------------------------------------------------ messages */

struct hello_packet {
    struct exchange_message head;
    struct exchange_hello hello;
};

static struct hello_packet sound_hello(void)
{
    struct hello_packet p = {
        .head = {.magic = EXCHANGE_MAGIC,
                 .version = EXCHANGE_VERSION,
                 .type = EXCHANGE_HELLO,
                 .payload_bytes = sizeof p.hello},
        .hello = {.program = "made-up", .n_device = 1, .block_tokens = 16, .max_tokens = 512},
    };
    return p;
}

Test(exchange, messages_are_checked)
{
    struct hello_packet p = sound_hello();
    numoe_error err = {0};
    cr_assert_eq(exchange_check_message(&p, sizeof p, &err), NUMOE_OK, "%s", err.text);
    for (size_t n = 0; n < sizeof p; n++) {
        uint8_t *cut = malloc(n + 1);
        memcpy(cut, &p, n);
        cr_expect_neq(exchange_check_message(cut, n, &err), NUMOE_OK, "%zu bytes of it", n);
        free(cut);
    }
    p.head.version++;
    cr_expect_eq(exchange_check_message(&p, sizeof p, &err), NUMOE_E_SUPPORT, "%s", err.text);
    p = sound_hello();
    p.head.type = 9;
    cr_expect_neq(exchange_check_message(&p, sizeof p, &err), NUMOE_OK);
    p = sound_hello();
    memset(p.hello.program, 'x', sizeof p.hello.program);
    cr_expect_neq(exchange_check_message(&p, sizeof p, &err), NUMOE_OK, "a name without an end");
    p = sound_hello();
    p.hello.n_device = EXCHANGE_MAX_DEVICE + 1;
    cr_expect_neq(exchange_check_message(&p, sizeof p, &err), NUMOE_OK, "too many devices");
    p = sound_hello();
    p.hello.block_tokens = 24;
    cr_expect_neq(exchange_check_message(&p, sizeof p, &err), NUMOE_OK, "no power of two");
}

/* ------------------------------------------------------------------ plans */

#define N_LAYER  4
#define N_EXPERT 4

static uint64_t use_count[N_LAYER * N_EXPERT];

/* Layers of 100 bytes and 64 of cache, a head of 50, an embedding of 30, workspace of 10: 746. */
static struct gpu_plan_request request(uint64_t device_bytes, uint32_t n_hot)
{
    static struct gpu_plan_layer layer[N_LAYER];
    for (unsigned il = 0; il < N_LAYER; il++) {
        layer[il] = (struct gpu_plan_layer){100, 1, 20};
    }
    memset(use_count, 0, sizeof use_count);
    use_count[2 * N_EXPERT + 3] = 9;
    use_count[1 * N_EXPERT + 0] = 5;
    use_count[0 * N_EXPERT + 1] = 5;
    use_count[3 * N_EXPERT + 2] = 1;
    return (struct gpu_plan_request){
        .n_layer = N_LAYER,
        .n_expert = N_EXPERT,
        .layer = layer,
        .head_bytes = 50,
        .embd_bytes = 30,
        .work_bytes = 10,
        .n_device = 1,
        .device_bytes = {device_bytes},
        .n_block = 4,
        .block_tokens = 16,
        .n_hot = n_hot,
        .count = use_count,
    };
}

Test(gpu_plan, the_most_used_experts_fill_what_is_left)
{
    const struct gpu_plan_request r = request(746 + 3 * 20 + 19, GPU_HOT_AUTO);
    struct gpu_plan p;
    numoe_error err = {0};
    cr_assert_eq(gpu_plan_make(&r, &p, &err), NUMOE_OK, "%s", err.text);
    cr_expect_eq(p.n_dense_layer, N_LAYER);
    cr_assert_eq(p.n_hot, 3);
    cr_expect(p.hot[0] == 1 && p.hot[1] == 0 && p.hot[2] == 3);
    for (unsigned il = 0; il < N_LAYER; il++) {
        cr_expect_eq(p.layer[il].hot1 - p.layer[il].hot0, il < 3 ? 1 : 0);
        cr_expect_eq(p.layer[il].flags, EXCHANGE_LAYER_HAND);
    }
    cr_expect_eq(p.use[0].dense_bytes, 480);
    cr_expect_eq(p.use[0].kv_bytes, 256);
    cr_expect_eq(p.use[0].expert_bytes, 60);
    cr_expect_eq(p.use[0].free_bytes, 19);
    cr_expect_float_eq(p.coverage, 19.0 / 20, 1e-12);
    gpu_plan_fini(&p);
}

Test(gpu_plan, without_hand_offs_where_all_experts_are_hot)
{
    struct gpu_plan_request r = request(746 + 16 * 20, GPU_HOT_AUTO);
    for (unsigned keep = 0; keep < 2; keep++) {
        struct gpu_plan p;
        r.keep_hands = keep;
        cr_assert_eq(gpu_plan_make(&r, &p, NULL), NUMOE_OK);
        cr_expect_eq(p.n_hot, 16);
        cr_expect_eq(p.layer[0].flags, keep ? EXCHANGE_LAYER_HAND : EXCHANGE_LAYER_ROUTES);
        cr_expect_eq(p.n_route, keep ? 0 : N_LAYER);
        gpu_plan_fini(&p);
    }
}

Test(gpu_plan, what_does_not_fit_stays_with_the_cpu)
{
    struct gpu_plan_request r = request(746, 0);
    struct gpu_plan p;
    numoe_error err = {0};
    cr_assert_eq(gpu_plan_make(&r, &p, NULL), NUMOE_OK);
    cr_expect_eq(p.n_dense_layer, 4, "to the byte");
    gpu_plan_fini(&p);
    r.device_bytes[0] = 745;
    cr_assert_eq(gpu_plan_make(&r, &p, NULL), NUMOE_OK);
    cr_expect_eq(p.n_dense_layer, 3);
    cr_expect_eq(p.use[0].dense_bytes, 330, "no head without the last layer");
    gpu_plan_fini(&p);
    r.device_bytes[0] = 10 + 30 + 163;
    cr_expect_eq(gpu_plan_make(&r, &p, &err), NUMOE_E_MEMORY);
    cr_expect_not_null(strstr(err.text, "too little for one layer"), "%s", err.text);
}

Test(gpu_plan, layers_are_spread_over_devices)
{
    struct gpu_plan_request r = request(400, 0);
    struct gpu_plan p;
    r.n_device = 2;
    r.device_bytes[1] = 400;
    cr_assert_eq(gpu_plan_make(&r, &p, NULL), NUMOE_OK);
    cr_expect_eq(p.n_dense_layer, 4);
    for (unsigned il = 0; il < N_LAYER; il++) {
        cr_expect_eq(p.layer[il].device, il / 2);
    }
    cr_expect_eq(p.use[0].dense_bytes, 230);
    cr_expect_eq(p.use[1].dense_bytes, 250);
    gpu_plan_fini(&p);
}
