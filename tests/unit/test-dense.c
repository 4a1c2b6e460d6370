/* Rotary embedding and the chunked KV cache, each by itself, and attention that is taken through
 * its buffers in pieces. Whether attention is right is the forward pass's test (test-step).
 */
#include <criterion/criterion.h>
#include <math.h>

#include "dense/kv-chunk.h"
#include "dense/rope.h"
#include "dense/state.h"
#include "tests/unit/distance.h"
#include "tests/unit/kern-data.h"
#include "tests/unit/rig.h"
#include "tests/unit/testdata.h"

/* ------------------------------------------------------------------ rope */

static struct rope make_rope(struct rope_params p)
{
    struct rope r;
    cr_assert_eq(rope_init(&r, &p, NULL, NULL), NUMOE_OK);
    return r;
}

static struct rope_params plain_params(enum rope_kind kind)
{
    return (struct rope_params){
        .kind = kind, .n_rot = 4, .freq_base = 10000, .factor = 1, .magnitude = 1};
}

/* Factors divide: pair 0 turns by 1 / 2 radian a position, pair 1 by 0.01 / 8. */
Test(rope, factors_slow_pairs_down)
{
    const float factors[] = {2, 8};
    const struct rope_params p = plain_params(ROPE_INTERLEAVED);
    struct rope r;
    float angles[4];
    cr_assert_eq(rope_init(&r, &p, factors, NULL), NUMOE_OK);
    rope_angles(&r, 3, angles);
    cr_assert_float_eq(angles[0], cos(1.5), 1e-6);
    cr_assert_float_eq(angles[1], sin(1.5), 1e-6);
    cr_assert_float_eq(angles[2], cos(0.00375), 1e-6);
    cr_assert_float_eq(angles[3], sin(0.00375), 1e-6);
    rope_fini(&r);
}

/* Pair 0 turns by 1 radian a position, pair 1 by 10000^(-1/2) = 0.01. */
Test(rope, pairs_and_angles)
{
    const float x[] = {1, 2, 3, 4};
    float angles[4], y[4];
    struct rope r = make_rope(plain_params(ROPE_INTERLEAVED));
    rope_angles(&r, 3, angles);
    rope_apply(&r, angles, x, y);
    const double c0 = cos(3), s0 = sin(3), c1 = cos(0.03), s1 = sin(0.03);
    cr_assert_float_eq(y[0], 1 * c0 - 2 * s0, 1e-6);
    cr_assert_float_eq(y[1], 1 * s0 + 2 * c0, 1e-6);
    cr_assert_float_eq(y[2], 3 * c1 - 4 * s1, 1e-6);
    cr_assert_float_eq(y[3], 3 * s1 + 4 * c1, 1e-6);
    rope_fini(&r);

    r = make_rope(plain_params(ROPE_HALVES));
    rope_apply(&r, angles, x, y);
    cr_assert_float_eq(y[0], 1 * c0 - 3 * s0, 1e-6);
    cr_assert_float_eq(y[2], 1 * s0 + 3 * c0, 1e-6);
    cr_assert_float_eq(y[1], 2 * c1 - 4 * s1, 1e-6);
    cr_assert_float_eq(y[3], 2 * s1 + 4 * c1, 1e-6);
    rope_fini(&r);
}

Test(rope, in_place_and_none)
{
    float angles[4], x[] = {1, 2, 3, 4}, y[4];
    struct rope r = make_rope(plain_params(ROPE_INTERLEAVED));
    rope_angles(&r, 7, angles);
    rope_apply(&r, angles, x, y);
    rope_apply(&r, angles, x, x);
    cr_assert_arr_eq(x, y, sizeof x);
    r.kind = ROPE_NONE;
    rope_apply(&r, angles, x, y);
    cr_assert_arr_eq(x, y, sizeof x);
    rope_fini(&r);
}

/* 64 rotated elements, base 10000, original context 4096, factor 40, turns 32 and 1 (DeepSeek-V3):
 * the ramp runs from pair floor(10.24) = 10 to ceil(22.52) = 23. */
Test(rope, yarn_ramp)
{
    struct rope r = make_rope((struct rope_params){.kind = ROPE_INTERLEAVED,
                                                   .n_rot = 64,
                                                   .freq_base = 10000,
                                                   .factor = 40,
                                                   .yarn = true,
                                                   .n_ctx_orig = 4096,
                                                   .beta_fast = 32,
                                                   .beta_slow = 1,
                                                   .magnitude = 1});
    for (unsigned i = 0; i < 32; i++) {
        const double plain = pow(10000, -(double)i / 32);
        const double slow = i <= 10 ? 0 : i >= 23 ? 1 : (i - 10) / 13.0;
        cr_assert_float_eq(r.freq[i] / (plain * (1 - slow) + plain / 40 * slow), 1, 1e-12,
                           "pair %u", i);
    }
    rope_fini(&r);
}

/* Far positions keep their angle: in float, 163839 * freq would be off by some 1e-2 radians. */
Test(rope, exact_far_away)
{
    struct rope_params p = plain_params(ROPE_INTERLEAVED);
    float angles[4];
    p.magnitude = 2;
    struct rope r = make_rope(p);
    rope_angles(&r, 163839, angles);
    cr_assert_float_eq(angles[0], 2 * cos(163839.0), 1e-6);
    cr_assert_float_eq(angles[1], 2 * sin(163839.0), 1e-6);
    rope_fini(&r);
}

/* ------------------------------------------------------------------ KV cache */

static struct model *open_model(const char *rel)
{
    struct model *model = NULL;
    char *path = test_src_path(rel);
    cr_assert_not_null(path, "%s", rel);
    cr_assert_eq(model_open(path, &model, NULL), NUMOE_OK);
    free(path);
    return model;
}

static struct topo *three_nodes(void)
{
    struct topo *topo = NULL;
    cr_assert_eq(topo_load("pack:3 [numa(memory=8GiB)] core:2 pu:1", &topo, NULL), NUMOE_OK);
    return topo;
}

static struct pools *make_pools(const struct topo *topo)
{
    struct pools *pools = NULL;
    cr_assert_eq(pools_new(topo, 0, &pools, NULL), NUMOE_OK);
    return pools;
}

Test(kv, grows_and_shrinks_by_chunks)
{
    struct model *model = open_model("tests/data/fixtures/deepseek3-a/deepseek3-a-f32.gguf");
    struct topo *topo = three_nodes();
    struct pools *pools = make_pools(topo);
    struct kv_cache *kv = NULL;
    numoe_error err = {0};
    cr_assert_eq(kv_new(model, topo, pools, KV_F32, (1u << 20) + 1, &kv, &err),
                 NUMOE_E_INPUT_CONTEXT);
    cr_assert_null(kv);
    cr_assert_eq(kv_new(model, topo, pools, KV_F32, 1000, &kv, &err), NUMOE_OK);
    cr_assert_eq(kv->n_chunk, 0);
    cr_assert_eq(kv_reserve(kv, 1, &err), NUMOE_OK);
    cr_assert_eq(kv->n_chunk, 1);
    float *first = kv_keys(kv, 0, 0, 0);
    first[0] = 42;
    cr_assert_eq(kv_reserve(kv, 3 * KV_CHUNK + 1, &err), NUMOE_OK);
    cr_assert_eq(kv->n_chunk, 4);
    cr_assert_eq(kv_keys(kv, 0, 0, 0), first, "what was there stays where it is");
    cr_assert_eq(first[0], 42);
    kv_truncate(kv, 2 * KV_CHUNK);
    cr_assert_eq(kv->n_chunk, 2);
    kv_truncate(kv, KV_CHUNK + 1);
    cr_assert_eq(kv->n_chunk, 2, "a chunk in use stays");
    cr_assert_eq(kv_reserve(kv, 1001, &err), NUMOE_E_INPUT_CONTEXT);
    cr_assert_not_null(strstr(err.text, "1001"));
    cr_assert_eq(kv->n_chunk, 2);
    kv_free(kv);
    pools_free(pools);
    topo_free(topo);
    model_close(model);
}

/* Latent 32 + rope 8, three layers. */
Test(kv, bytes_of_a_latent_cache)
{
    struct model *model = open_model("tests/data/fixtures/deepseek3-a/deepseek3-a-f32.gguf");
    cr_assert_eq(kv_token_bytes(model, KV_F32), 3 * 40 * 4);
    cr_assert_eq(kv_token_bytes(model, KV_F16), 3 * 40 * 2);
    cr_assert_eq(kv_token_bytes(model, KV_Q8_0), 3 * 2 * 34, "the second block is filled up");
    model_close(model);
}

/* Two KV heads of 8 and 8, three layers. */
Test(kv, heads_do_not_overlap)
{
    struct model *model = open_model("tests/data/fixtures/mixtral-a/mixtral-a-f32.gguf");
    struct topo *topo = three_nodes();
    struct pools *pools = make_pools(topo);
    struct kv_cache *kv = NULL;
    const size_t rows = KV_CHUNK * 8;
    cr_assert_eq(kv_token_bytes(model, KV_F16), 3 * 2 * (8 + 8) * 2);
    cr_assert_eq(kv_new(model, topo, pools, KV_F16, 2 * KV_CHUNK, &kv, NULL), NUMOE_OK);
    cr_assert_eq(kv_reserve(kv, 2 * KV_CHUNK, NULL), NUMOE_OK);
    uint16_t *base = kv_keys(kv, 1, 1, 0);
    cr_assert_eq((uint16_t *)kv_keys(kv, 1, 1, 1), base + rows);
    cr_assert_eq((uint16_t *)kv_values(kv, 1, 1, 0), base + 2 * rows);
    cr_assert_eq((uint16_t *)kv_values(kv, 1, 1, 1), base + 3 * rows);
    cr_assert_eq((uint16_t *)kv_keys(kv, 2, 1, 0), base + 4 * rows);
    kv_free(kv);
    cr_assert_eq(kv_token_bytes(model, KV_Q8_0), 3 * 2 * (34 + 34));
    cr_assert_eq(kv_new(model, topo, pools, KV_Q8_0, KV_CHUNK, &kv, NULL), NUMOE_OK);
    cr_assert_eq(kv_reserve(kv, KV_CHUNK, NULL), NUMOE_OK);
    uint8_t *blocks = kv_keys(kv, 1, 0, 0);
    cr_assert_eq((uint8_t *)kv_values(kv, 1, 0, 1), blocks + 3 * KV_CHUNK * 34);
    cr_assert_eq((uint8_t *)kv_keys(kv, 2, 0, 0), blocks + 4 * KV_CHUNK * 34);
    kv_free(kv);
    pools_free(pools);
    topo_free(topo);
    model_close(model);
}

static void check_nodes(const struct kv_cache *kv, unsigned n, const unsigned *want)
{
    cr_assert_eq(kv->n_chunk, n);
    for (unsigned ic = 0; ic < n; ic++) {
        cr_expect_eq(node_arena_node(kv->chunk[ic].block->arena), want[ic],
                     "chunk %u is on node %u", ic, node_arena_node(kv->chunk[ic].block->arena));
    }
}

/* To one node, on to another, growing there, and back to all. */
Test(kv, moves_with_what_is_in_it)
{
    struct model *model = open_model("tests/data/fixtures/mixtral-a/mixtral-a-f32.gguf");
    struct topo *topo = three_nodes();
    struct pools *pools = make_pools(topo);
    struct kv_cache *kv = NULL;
    cr_assert_eq(kv_new(model, topo, pools, KV_F16, 5 * KV_CHUNK, &kv, NULL), NUMOE_OK);
    cr_assert_eq(kv_home(kv), KV_SPREAD);
    cr_assert_eq(kv_reserve(kv, 4 * KV_CHUNK, NULL), NUMOE_OK);
    check_nodes(kv, 4, (unsigned[]){0, 1, 2, 0});
    const size_t bytes = kv->shape.chunk_bytes;
    uint8_t *want = malloc(4 * bytes);
    for (size_t i = 0; i < 4 * bytes; i++) {
        want[i] = kv->chunk[i / bytes].data[i % bytes] = (uint8_t)(i * 2654435761u >> 24);
    }
    const uint8_t *stays = kv->chunk[1].data;
    cr_assert_eq(kv_move(kv, 1, NULL), NUMOE_OK);
    cr_assert_eq(kv_home(kv), 1);
    check_nodes(kv, 4, (unsigned[]){1, 1, 1, 1});
    cr_assert_eq(kv->chunk[1].data, stays, "what is at home is not copied");
    cr_assert_eq(kv_reserve(kv, 4 * KV_CHUNK + 1, NULL), NUMOE_OK);
    cr_assert_eq(kv_move(kv, 2, NULL), NUMOE_OK);
    check_nodes(kv, 5, (unsigned[]){2, 2, 2, 2, 2});
    cr_assert_eq(kv_move(kv, KV_SPREAD, NULL), NUMOE_OK);
    check_nodes(kv, 5, (unsigned[]){0, 1, 2, 0, 1});
    for (unsigned ic = 0; ic < 4; ic++) {
        cr_expect_arr_eq(kv->chunk[ic].data, want + ic * bytes, bytes, "chunk %u", ic);
    }
    kv_truncate(kv, 0);
    cr_assert_eq(kv_move(kv, 2, NULL), NUMOE_OK);
    cr_assert_eq(kv_reserve(kv, 1, NULL), NUMOE_OK);
    check_nodes(kv, 1, (unsigned[]){2});
    free(want);
    kv_free(kv);
    pools_free(pools);
    topo_free(topo);
    model_close(model);
}

/* A node that is full: nothing has moved, and nothing is lost. */
Test(kv, stays_where_there_is_no_room)
{
    struct model *model = open_model("tests/data/fixtures/mixtral-a/mixtral-a-f32.gguf");
    struct topo *topo = three_nodes();
    struct pools *pools = make_pools(topo);
    struct kv_cache *kv = NULL;
    numoe_error err = {0};
    cr_assert_eq(kv_new(model, topo, pools, KV_F16, 9 * KV_CHUNK, &kv, NULL), NUMOE_OK);
    cr_assert_eq(kv_reserve(kv, 9 * KV_CHUNK, NULL), NUMOE_OK);
    topo->node[1].available_bytes = 8 * kv->shape.chunk_bytes;
    kv->chunk[8].data[0] = 42;
    cr_assert_eq(kv_move(kv, 1, &err), NUMOE_E_MEMORY);
    cr_assert_not_null(strstr(err.text, "node 1"), "%s", err.text);
    cr_assert_eq(kv_home(kv), KV_SPREAD);
    check_nodes(kv, 9, (unsigned[]){0, 1, 2, 0, 1, 2, 0, 1, 2});
    cr_assert_eq(kv->chunk[8].data[0], 42);
    cr_assert_eq(kv_move(kv, 0, &err), NUMOE_OK);
    cr_assert_eq(kv->chunk[8].data[0], 42);
    kv_free(kv);
    pools_free(pools);
    topo_free(topo);
    model_close(model);
}

/* Three that begin alike on two other nodes have two copies of the beginning; the one that goes on
 * writing has a chunk of its own, and a fourth does not get that for the beginning. */
Test(kv, shared_chunks_have_one_copy_a_node)
{
    struct model *model = open_model("tests/data/fixtures/mixtral-a/mixtral-a-f32.gguf");
    struct topo *topo = three_nodes();
    struct pools *pools = make_pools(topo);
    struct kv_cache *kv[4] = {NULL};
    for (unsigned i = 0; i < 4; i++) {
        cr_assert_eq(kv_new(model, topo, pools, KV_F16, 2 * KV_CHUNK, &kv[i], NULL), NUMOE_OK);
    }
    cr_assert_eq(kv_move(kv[0], 0, NULL), NUMOE_OK);
    cr_assert_eq(kv_reserve(kv[0], KV_CHUNK + 10, NULL), NUMOE_OK);
    kv[0]->chunk[0].data[5] = 42;
    kv[0]->chunk[1].data[5] = 43;
    for (unsigned i = 1; i < 4; i++) {
        cr_assert_eq(kv_share(kv[i], kv[0], KV_CHUNK + 10, NULL), NUMOE_OK);
        cr_assert_eq(kv_move(kv[i], i < 3 ? 1 : 2, NULL), NUMOE_OK);
        check_nodes(kv[i], 2, i < 3 ? (unsigned[]){1, 1} : (unsigned[]){2, 2});
        cr_expect_eq(kv[i]->chunk[0].data[5], 42);
        cr_expect_eq(kv[i]->chunk[1].data[5], 43);
    }
    cr_expect_eq(kv[1]->chunk[0].data, kv[2]->chunk[0].data);
    cr_expect_eq(kv[1]->chunk[1].data, kv[2]->chunk[1].data);
    cr_assert_eq(kv_reserve(kv[2], KV_CHUNK + 11, NULL), NUMOE_OK);
    kv[2]->chunk[1].data[5] = 44;
    check_nodes(kv[2], 2, (unsigned[]){1, 1});
    cr_expect_eq(kv[1]->chunk[1].data[5], 43);
    cr_assert_eq(kv_move(kv[3], 1, NULL), NUMOE_OK);
    cr_expect_eq(kv[3]->chunk[1].data, kv[1]->chunk[1].data);
    kv_free(kv[1]);
    cr_assert_eq(kv_reserve(kv[3], KV_CHUNK + 11, NULL), NUMOE_OK); /* it alone has it now */
    kv[3]->chunk[1].data[5] = 45;
    cr_assert_eq(kv_move(kv[0], 1, NULL), NUMOE_OK);
    cr_expect_eq(kv[0]->chunk[1].data[5], 43, "got what another wrote");
    cr_expect_eq(kv[0]->chunk[0].data, kv[3]->chunk[0].data);
    for (unsigned i = 0; i < 4; i++) {
        if (i != 1) {
            kv_free(kv[i]);
        }
    }
    pools_free(pools);
    topo_free(topo);
    model_close(model);
}

/* A row of Q8_0 is blocks as GGUF's, which say every element to half a step. */
Test(kv, rows_of_q8_0)
{
    const struct format *format = format_find(FORMAT_Q8_0);
    const struct kern *kern = NULL;
    cr_assert_eq(kern_select(&kern, NULL), NUMOE_OK);
    for (unsigned n = 1; n <= 97; n += 8) {
        float x[97], y[128];
        uint8_t row[4 * 34 + 1];
        const size_t bytes = kv_row_bytes(KV_Q8_0, n);
        row[bytes] = 77;
        for (unsigned i = 0; i < n; i++) {
            x[i] = (float)((int)(i * 7919 % 2001) - 1000) / (float)(1 + i / 32 * 100);
        }
        kv_store_row(kern, KV_Q8_0, x, n, row);
        cr_assert_eq(row[bytes], 77, "writes beyond %u elements", n);
        format_dequant_row(format, row, (n + 31) / 32 * 32, y);
        for (unsigned i = 0; i < n; i++) {
            float max = 1000 / (float)(1 + i / 32 * 100);
            cr_assert_float_eq(y[i], x[i], max / 127 * 0.51f + max * 0x1p-11f, "%u of %u", i, n);
        }
        for (unsigned i = n; i < (n + 31) / 32 * 32; i++) {
            cr_assert_eq(y[i], 0);
        }
    }
}

/* ------------------------------------------------------------------ attention in pieces */

/* Every (chunk, KV head, group of tokens, block) is one node's. nw [n_node] workers; most: of one
 * node's items. */
static uint32_t check_parts(const unsigned *nw, unsigned n_node, unsigned n_chunk, unsigned n_head,
                            unsigned n_kv_head, bool one_array)
{
    const unsigned n_token = 3, most_of_chunk = n_token * n_head;
    unsigned *seen = calloc((size_t)n_chunk * most_of_chunk, sizeof *seen), ng = 0, n_seen = 0;
    uint32_t most = 0;
    for (unsigned in = 0; in < n_node; in++) {
        ng += nw[in];
    }
    struct worker w = {.n_node = n_node, .ng = ng};
    struct attn_part p = {0};
    for (; w.in < n_node; w.ig += w.nw, w.in++) {
        w.nw = nw[w.in];
        attn_part_init(&p, &w, n_chunk, n_token, n_head, n_kv_head, one_array);
        most = MAX(most, p.n_item);
        for (uint32_t item = 0; item < p.n_item; item++) {
            uint32_t within;
            const unsigned chunk = attn_part_item(&p, item, &within);
            cr_assert_lt(chunk, n_chunk);
            cr_assert_lt(within, p.per_chunk);
            cr_assert(one_array || chunk % n_node == w.in);
            cr_assert_eq(seen[chunk * most_of_chunk + within]++, 0, "chunk %u item %u", chunk,
                         within);
            n_seen++;
        }
    }
    if (one_array) {
        cr_assert_eq(n_seen, n_chunk * p.per_chunk);
    }
    free(seen);
    return most;
}

Test(attention, short_contexts_are_everybodys)
{
    const unsigned nw[] = {4, 4, 2};
    /* 3 tokens, 128 heads in blocks of 16: 24 items a chunk token by token, which is what 10
     * workers get of one chunk: the four of node 0 have 3 each. With more chunks two tokens go
     * together. */
    cr_expect_eq(check_parts(nw, 3, 1, 128, 1, true), 12);
    cr_expect_eq(check_parts(nw, 3, 3, 128, 1, true), 16);
    cr_expect_eq(check_parts(nw, 3, 4, 128, 1, true), 16 + 8);
    for (unsigned n_chunk = 1; n_chunk < 9; n_chunk++) {
        for (unsigned n_node = 1; n_node <= 3; n_node++) {
            check_parts(nw, n_node, n_chunk, 16, 1, true);
            check_parts(nw, n_node, n_chunk, 16, 4, false);
        }
    }
}

/* ------------------------------------------------------------------ a block of queries */

struct block_case {
    unsigned n_token, n_head, n_key, n_value;
    bool latent; /* values are the beginnings of keys */
};

/* A block with its cache and outputs; floats are what the cache says. */
struct block_data {
    struct attn_block b;
    struct attn_scratch scratch;
    float *q, *out, *keys, *values;
    uint8_t *rows;
    size_t ld_token;
};

static uint8_t *store_rows(const struct kern *kern, enum kv_type type, float *x, unsigned n,
                           uint8_t *to)
{
    for (unsigned p = 0; p < KV_CHUNK; p++, x += n, to += kv_row_bytes(type, n)) {
        kv_store_row(kern, type, x, n, to);
        if (type == KV_F16) {
            kern->f16_to_f32((const void *)to, n, x);
        } else if (type == KV_Q8_0) {
            kern->q8_0_to_f32(to, n, x);
        }
    }
    return to;
}

static void block_scratch(struct attn_scratch *s, unsigned n_key)
{
    *s = (struct attn_scratch){
        .query = exact_alloc(sizeof(float) * ATTN_QUERIES * n_key),
        .score = exact_alloc(sizeof(float) * ATTN_QUERIES * KV_CHUNK),
        .tile = exact_alloc(sizeof(float) * attn_tile_floats(n_key)),
        .sum = exact_alloc(sizeof(float) * ATTN_QUERIES * ATTN_COLUMNS),
    };
}

/* Token t sees positions [5 * t, 90 + 3 * t): a window that moves. Queries of a token lie together,
 * those of the next one after a gap, as one KV head's do. */
static struct block_data block_make(const struct kern *kern, enum kv_type type,
                                    const struct block_case *c)
{
    struct block_data d = {.ld_token = (size_t)c->n_head * c->n_key + 3};
    const unsigned n_out = c->n_value + 2;
    uint64_t state = c->n_key * 100 + c->n_value;
    d.q = exact_alloc(c->n_token * d.ld_token * sizeof(float));
    d.out = exact_alloc((size_t)c->n_token * c->n_head * n_out * sizeof(float));
    d.keys = exact_alloc((size_t)KV_CHUNK * c->n_key * sizeof(float));
    d.values = exact_alloc((size_t)KV_CHUNK * c->n_value * sizeof(float));
    d.rows =
        exact_alloc(KV_CHUNK * (kv_row_bytes(type, c->n_key) + kv_row_bytes(type, c->n_value)));
    random_floats(&state, d.q, c->n_token * d.ld_token, 0.5f);
    random_floats(&state, d.keys, (size_t)KV_CHUNK * c->n_key, 1);
    random_floats(&state, d.values, (size_t)KV_CHUNK * c->n_value, 1);
    uint8_t *values = store_rows(kern, type, d.keys, c->n_key, d.rows);
    store_rows(kern, type, d.values, c->n_value, values);
    d.b = (struct attn_block){
        .kern = kern,
        .rows = {type, c->n_key, c->n_value, kv_row_bytes(type, c->n_key),
                 kv_row_bytes(type, c->latent ? c->n_key : c->n_value), d.rows,
                 c->latent ? d.rows : values},
        .n_token = c->n_token,
        .n_head = c->n_head,
        .ld_out = n_out,
    };
    for (unsigned t = 0; t < c->n_token; t++) {
        d.b.token[t] = (struct attn_token){
            d.q + t * d.ld_token, d.out + (size_t)t * c->n_head * n_out, 5 * t, 90 + 3 * t};
    }
    block_scratch(&d.scratch, c->n_key);
    return d;
}

static void block_free(struct block_data *d)
{
    void *all[] = {d->q,          d->out,           d->keys,          d->values,
                   d->rows,       d->scratch.query, d->scratch.score, d->scratch.tile,
                   d->scratch.sum};
    for (unsigned i = 0; i < ARRAY_LEN(all); i++) {
        free(all[i]);
    }
}

/* One query's sum of values in float64, weights relative to the largest. */
static void exact_sum(const struct block_data *d, const struct block_case *c, unsigned t,
                      unsigned h, double *y)
{
    const struct attn_token *token = &d->b.token[t];
    const float *q = token->q + (size_t)h * c->n_key;
    double s[KV_CHUNK], top = -INFINITY;
    for (unsigned p = token->lo; p < token->hi; p++) {
        s[p] = 0;
        for (unsigned i = 0; i < c->n_key; i++) {
            s[p] += (double)q[i] * d->keys[(size_t)p * c->n_key + i];
        }
        top = fmax(top, s[p]);
    }
    for (unsigned i = 0; i < c->n_value; i++) {
        y[i] = 0;
        for (unsigned p = token->lo; p < token->hi; p++) {
            const float *row =
                c->latent ? d->keys + (size_t)p * c->n_key : d->values + (size_t)p * c->n_value;
            y[i] += exp(s[p] - top) * row[i];
        }
    }
}

static void check_block(const struct kern *kern, enum kv_type type, const struct block_case *c)
{
    struct block_data d = block_make(kern, type, c);
    const unsigned n_out = c->n_value + 2;
    float *alone = exact_alloc(n_out * sizeof(float));
    double *exact = exact_alloc(c->n_value * sizeof(double));
    attn_block(&d.b, &d.scratch);
    for (unsigned i = 0; i < c->n_token * c->n_head; i++) {
        const unsigned t = i / c->n_head, h = i % c->n_head;
        const float *out = d.out + (size_t)i * n_out;
        struct attn_block one = d.b;
        one.n_token = one.n_head = 1;
        one.token[0] = d.b.token[t];
        one.token[0].q += (size_t)h * c->n_key;
        one.token[0].out = alone;
        attn_block(&one, &d.scratch);
        cr_assert(same_bits(alone, out, n_out), "%s type %d %u x %u of %u: token %u head %u alone",
                  kern->isa, (int)type, c->n_token, c->n_head, c->n_key, t, h);
        exact_sum(&d, c, t, h, exact);
        for (unsigned j = 0; j < c->n_value; j++) {
            cr_assert_float_eq(out[j], exact[j], 1e-5 * (double)out[n_out - 1], "%s: %.9g, %.9g",
                               kern->isa, (double)out[j], exact[j]);
        }
    }
    free(alone);
    free(exact);
    block_free(&d);
}

Test(attention, queries_of_a_block_are_as_alone)
{
    static const struct block_case cases[] = {
        {1, 1, 64, 64, false},  {1, 8, 128, 128, false}, {4, 8, 128, 128, false},
        {32, 1, 64, 64, false}, {5, 6, 80, 144, false},  {2, 16, 576, 512, true},
        {3, 7, 33, 20, true},
    };
    FOR_EACH_KERN(kern)
    {
        for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
            check_block(kern, KV_F32, &cases[i]);
            check_block(kern, KV_F16, &cases[i]);
            check_block(kern, KV_Q8_0, &cases[i]);
        }
    }
}

/* Position 95 is the third token's and those after it. */
Test(attention, nobody_reads_ahead)
{
    const struct block_case c = {4, 2, 64, 64, false};
    FOR_EACH_KERN(kern)
    {
        struct block_data d = block_make(kern, KV_F32, &c);
        for (unsigned i = 0; i < 64; i++) {
            ((float *)(void *)d.rows)[95 * 64 + i] = NAN;
            ((float *)(void *)d.rows)[(KV_CHUNK + 95) * 64 + i] = NAN;
        }
        attn_block(&d.b, &d.scratch);
        for (unsigned i = 0; i < 8; i++) {
            for (unsigned j = 0; j < 64; j++) {
                cr_assert_eq(isnan(d.out[i * 66 + j]) != 0, i >= 4, "%s: row %u", kern->isa, i);
            }
        }
        block_free(&d);
    }
}

/* ------------------------------------------------------------------ all layers in pieces */

struct attention_run {
    struct rig *rig;
    struct dense *dense;
};

static void attend_all_layers(struct worker *w, void *arg)
{
    struct attention_run *run = arg;
    dense_embed(run->dense, w);
    for (unsigned il = 0; il < run->rig->model->hp.n_layer; il++) {
        dense_attention(run->dense, w, il);
    }
    dense_head(run->dense, w);
}

/* Logits after the attention of all layers alone, with room for n_pair partials of the longest
 * sequence and q_tokens absorbed queries (0: as many as there are). */
static float *attention_logits(struct rig *rig, enum kv_type type, unsigned n, unsigned n_pair,
                               unsigned q_tokens)
{
    struct attention_run run = {.rig = rig};
    struct pool_team team;
    struct dense_token *token = calloc(n, sizeof *token);
    struct kv_cache *kv = rig_cache(rig, type, n);
    const size_t n_logits = (size_t)n * rig->model->hp.n_vocab;
    float *logits = malloc(n_logits * sizeof *logits);
    pools_team(rig->pools, &team);
    cr_assert_eq(
        dense_new(rig->model, rig->store, &team, rig->topo, rig->kern, n, &run.dense, NULL),
        NUMOE_OK);
    for (unsigned t = 0; t < n; t++) {
        token[t] = (struct dense_token){
            .id = (int32_t)(t * 37 % 500), .position = t, .kv = kv, .want_logits = true};
    }
    dense_begin(run.dense, token, n);
    if (n_pair > 0) {
        run.dense->partial_floats = n_pair * run.dense->n_chunk * run.dense->partial_stride;
        run.dense->q_tokens = q_tokens;
    }
    pools_run(rig->pools, attend_all_layers, &run);
    memcpy(logits, dense_logits(run.dense, 0), n_logits * sizeof *logits);
    dense_free(run.dense);
    kv_free(kv);
    free(token);
    return logits;
}

/* Tiles of many tokens, of one token, and of some heads of one token. Caches with
 * fewer bits say nearly the same. */
static void check_pieces(const char *rel, enum kv_type type, double error)
{
    const unsigned n = 270; /* two chunks */
    char *path = test_src_path(rel);
    cr_assert_not_null(path, "%s", rel);
    struct rig rig = rig_open(path, 2, 3, 1);
    const unsigned n_head = rig.model->hp.n_head;
    const struct {
        unsigned n_pair, q_tokens;
    } piece[] = {{100 * n_head, 64}, {n_head, 100}, {3, 1}, {1, 33}};
    float *want = attention_logits(&rig, type, n, 0, 0);
    float *exact = attention_logits(&rig, KV_F32, n, 0, 0);
    cr_expect_leq(distance(want, exact, (size_t)n * rig.model->hp.n_vocab), error, "%g",
                  distance(want, exact, (size_t)n * rig.model->hp.n_vocab));
    cr_expect_eq(memcmp(want, exact, (size_t)n * rig.model->hp.n_vocab * sizeof *want) == 0,
                 type == KV_F32);
    free(exact);
    for (unsigned i = 0; i < ARRAY_LEN(piece); i++) {
        float *got = attention_logits(&rig, type, n, piece[i].n_pair, piece[i].q_tokens);
        cr_assert_arr_eq(got, want, (size_t)n * rig.model->hp.n_vocab * sizeof *want,
                         "%u pairs at once: other bits", piece[i].n_pair);
        free(got);
    }
    free(want);
    rig_close(&rig);
    free(path);
}

Test(attention, latent_in_pieces)
{
    const char *rel = "tests/data/fixtures/deepseek3-a/deepseek3-a-f32.gguf";
    check_pieces(rel, KV_F32, 0);
    check_pieces(rel, KV_F16, 1e-3);
    check_pieces(rel, KV_Q8_0, 3e-2);
}

Test(attention, grouped_in_pieces)
{
    const char *rel = "tests/data/fixtures/mixtral-a/mixtral-a-f32.gguf";
    check_pieces(rel, KV_F32, 0);
    check_pieces(rel, KV_F16, 1e-3);
    check_pieces(rel, KV_Q8_0, 3e-2);
}
