/* A GPU program against references that were computed elsewhere (tests/data/fixtures): this plays
 * the engine, with experts in plain C. Works with any program that speaks the exchange. Prints TAP.
 *
 *     tests/gpu/test-program PROGRAM [FIXTURES]
 *     tests/gpu/test-program --time PROGRAM MODEL     steps whose experts are answered at once
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/mem.h"
#include "gpu/program.h"
#include "model/model.h"
#include "tests/unit/distance.h"
#include "tests/unit/npy.h"
#include "tests/unit/testdata.h"

#define MAX_TOKENS 256u /* of a step */

static unsigned n_test, n_failed;

static void result(bool ok, const char *name, double value, double limit)
{
    n_test++;
    n_failed += ok ? 0 : 1;
    printf("%s %u - %s: %.3g (limit %.3g)\n", ok ? "ok" : "not ok", n_test, name, value, limit);
    fflush(stdout);
}

static void *must(void *p)
{
    if (p == NULL) {
        puts("Bail out! no memory");
        exit(99);
    }
    return p;
}

/* ------------------------------------------------------------------ experts in plain C */

struct floats {
    float *x;
};

struct experts {
    const struct model *m;
    struct floats (*slot)[N_SLOT]; /* [n_layer] */
};

static float *read_source(const struct model *m, const struct tensor_source *src)
{
    const size_t rows = (size_t)src->n_mat * src->n_row;
    float *x = must(malloc(rows * src->k * sizeof *x));
    for (unsigned im = 0; im < src->n_mat; im++) {
        const struct gguf_tensor *t = src->whole != NULL ? src->whole : src->per_expert[im];
        const size_t bytes = format_row_bytes(t->format, src->k);
        const size_t row0 = src->whole != NULL ? (size_t)im * src->from_rows + src->from_row0 : 0;
        uint8_t *raw = must(malloc(bytes));
        for (unsigned r = 0; r < src->n_row; r++) {
            if (gguf_read_tensor(m->gguf, t, (row0 + r) * bytes, bytes, raw, NULL) != NUMOE_OK) {
                puts("Bail out! a tensor cannot be read");
                exit(99);
            }
            format_dequant_row(t->format, raw, src->k, x + ((size_t)im * src->n_row + r) * src->k);
        }
        free(raw);
    }
    return x;
}

static struct experts experts_new(const struct model *m)
{
    struct experts e = {m, must(calloc(m->hp.n_layer, sizeof *e.slot))};
    for (unsigned il = 0; il < m->hp.n_layer; il++) {
        for (unsigned is = SLOT_GATE_EXPS; is <= SLOT_DOWN_EXPS_BIAS; is++) {
            if (source_present(&m->layer[il].src[is])) {
                e.slot[il][is].x = read_source(m, &m->layer[il].src[is]);
            }
        }
    }
    return e;
}

static void experts_free(struct experts *e)
{
    for (unsigned il = 0; il < e->m->hp.n_layer; il++) {
        for (unsigned is = 0; is < N_SLOT; is++) {
            free(e->slot[il][is].x);
        }
    }
    free(e->slot);
}

static void product(const float *w, const float *bias, const float *x, unsigned n_row, unsigned k,
                    float *y)
{
    for (unsigned r = 0; r < n_row; r++) {
        double sum = bias != NULL ? bias[r] : 0;
        for (unsigned i = 0; i < k; i++) {
            sum += (double)w[(size_t)r * k + i] * x[i];
        }
        y[r] = (float)sum;
    }
}

static float activate(const struct model_hparams *hp, float g, float u)
{
    if (hp->act == FFN_SILU) {
        return g / (1 + expf(-g)) * u;
    }
    const float gate = fminf(g, hp->act_limit);
    const float up = fmaxf(fminf(u, hp->act_limit), -hp->act_limit);
    return (up + 1) * gate / (1 + expf(-hp->act_alpha * gate));
}

static void expert(const struct experts *e, unsigned il, unsigned ie, const float *x, float weight,
                   float *y)
{
    const struct model_hparams *hp = &e->m->hp;
    const struct floats *s = e->slot[il];
    const unsigned f = hp->n_ff_expert, d = hp->n_embd;
    const size_t up = (size_t)ie * f * d;
    float g[4096], u[4096], out[4096];
    product(s[SLOT_GATE_EXPS].x + up,
            s[SLOT_GATE_EXPS_BIAS].x ? s[SLOT_GATE_EXPS_BIAS].x + ie * f : NULL, x, f, d, g);
    product(s[SLOT_UP_EXPS].x + up, s[SLOT_UP_EXPS_BIAS].x ? s[SLOT_UP_EXPS_BIAS].x + ie * f : NULL,
            x, f, d, u);
    for (unsigned i = 0; i < f; i++) {
        g[i] = activate(hp, g[i], u[i]);
    }
    product(s[SLOT_DOWN_EXPS].x + up,
            s[SLOT_DOWN_EXPS_BIAS].x ? s[SLOT_DOWN_EXPS_BIAS].x + ie * d : NULL, g, d, f, out);
    for (unsigned i = 0; i < d; i++) {
        y[i] += weight * out[i];
    }
}

/* ------------------------------------------------------------------ the engine's side */

struct rig {
    struct gpu_program *program;
    struct exchange_header *h;
    const struct model *m;
    struct experts experts;
    uint64_t step, hand;
    int32_t *chosen; /* [layers with experts, max_tokens, k] of the last step; NULL: not kept */
};

struct variant {
    const char *name;
    unsigned hot_of_ten; /* experts that are hot, of ten */
    uint32_t float_mode, kv_type;
    unsigned chunk;
    double limit;
};

static void bail(const char *what, const numoe_error *err)
{
    printf("Bail out! %s: %s\n", what, err->text);
    exit(99);
}

static bool is_hot(unsigned ie, const struct variant *v)
{
    return ie % 10 < v->hot_of_ten;
}

static void fill_tables(struct rig *r, const char *path, const struct variant *v)
{
    struct exchange_header *h = r->h;
    struct exchange_layer *layer = exchange_at(h, h->layer_at);
    uint32_t *hot = exchange_at(h, h->hot_at), *table = exchange_at(h, h->table_at), n = 0;
    strcpy(exchange_at(h, h->path_at), path);
    for (unsigned il = 0; il < h->n_layer; il++) {
        layer[il].hot0 = n;
        for (unsigned ie = 0; r->m->layer[il].is_moe && ie < h->n_expert; ie++) {
            if (is_hot(ie, v)) {
                hot[n++] = ie;
            }
        }
        layer[il].hot1 = n;
        layer[il].flags = !r->m->layer[il].is_moe            ? 0
                          : n - layer[il].hot0 < h->n_expert ? EXCHANGE_LAYER_HAND
                                                             : EXCHANGE_LAYER_ROUTES;
    }
    for (unsigned i = 0; i < h->max_seq * h->max_seq_block; i++) {
        table[i] = (i * 7 + 3) % h->n_block; /* blocks in no order; 7 and n_block have no factor */
    }
}

static uint32_t count_moe(const struct model *m)
{
    uint32_t n = 0;
    for (unsigned il = 0; il < m->hp.n_layer; il++) {
        n += m->layer[il].is_moe ? 1 : 0;
    }
    return n;
}

static uint32_t count_hot(const struct model *m, const struct variant *v)
{
    uint32_t n = 0;
    for (unsigned il = 0; il < m->hp.n_layer; il++) {
        for (unsigned ie = 0; m->layer[il].is_moe && ie < m->hp.n_expert; ie++) {
            n += is_hot(ie, v) ? 1 : 0;
        }
    }
    return n;
}

/* n_ctx: positions of a sequence, max_tokens: of a step. */
static void rig_start(struct rig *r, const char *program, const char *path, const struct variant *v,
                      uint32_t n_ctx, uint32_t max_tokens)
{
    numoe_error err = {.status = NUMOE_OK};
    const struct model_hparams *hp = &r->m->hp;
    struct exchange_header h;
    struct exchange_ready ready;
    uint64_t short_bytes = 0;
    if (gpu_program_start(program, &r->program, &err) != NUMOE_OK) {
        bail(program, &err);
    }
    const struct exchange_hello *hello = gpu_program_hello(r->program);
    if (hello->n_device == 0) {
        printf("1..0 # SKIP %s\n", hello->trouble);
        exit(77);
    }
    const uint32_t blocks = (n_ctx + hello->block_tokens - 1) / hello->block_tokens;
    const struct exchange_sizes sizes = {.n_part = 1,
                                         .n_layer = hp->n_layer,
                                         .n_embd = hp->n_embd,
                                         .n_vocab = hp->n_vocab,
                                         .n_expert = hp->n_expert,
                                         .n_expert_used = hp->n_expert_used,
                                         .n_dense_layer = hp->n_layer,
                                         .n_hot = count_hot(r->m, v),
                                         .n_route = v->hot_of_ten == 10 ? count_moe(r->m) : 0,
                                         .max_tokens = max_tokens,
                                         .max_logits = MIN(max_tokens, 256u),
                                         .max_seq = 3,
                                         .n_block = 3 * blocks % 7 ? 3 * blocks : 3 * blocks + 1,
                                         .block_tokens = hello->block_tokens,
                                         .max_seq_block = blocks,
                                         .path_bytes = strlen(path) + 1};
    if (exchange_layout(&sizes, &h, &err) != NUMOE_OK) {
        bail("layout", &err);
    }
    h.n_device = 1;
    h.x_type = hello->x_type;
    h.float_mode = v->float_mode;
    h.kv_type = v->kv_type;
    if (gpu_program_segment(r->program, &h, UINT32_MAX, &r->h, &err) != NUMOE_OK) {
        bail("segment", &err);
    }
    fill_tables(r, path, v);
    if (gpu_program_load(r->program, &err) != NUMOE_OK ||
        gpu_program_ready(r->program, &ready, &short_bytes, &err) != NUMOE_OK) {
        bail("load", &err);
    }
    r->step = 0;
    r->hand = 0;
}

static void wait_for(struct rig *r, const struct exchange_bell *bell, uint64_t value)
{
    numoe_error err = {.status = NUMOE_OK};
    if (!gpu_program_wait(r->program, bell, value)) {
        gpu_program_fault(r->program, &err);
        bail("step", &err);
    }
}

static void keep_choice(struct rig *r, unsigned i_moe, const int32_t *ids, unsigned n)
{
    const struct exchange_header *h = r->h;
    int32_t *to = r->chosen + (size_t)i_moe * h->max_tokens * h->n_expert_used;
    for (unsigned i = 0; r->chosen != NULL && i < n * h->n_expert_used; i++) {
        to[i] = ids[i] < 0 ? EXCHANGE_HOT(ids[i]) : ids[i];
    }
}

/* Layers without hand-off: their choices have come with the result. */
static void keep_routes(struct rig *r, unsigned n)
{
    const struct exchange_header *h = r->h;
    const struct exchange_layer *layer = exchange_at(r->h, h->layer_at);
    const int32_t *ids = exchange_at(r->h, h->route_id_at[r->step % 2]);
    unsigned i_moe = 0;
    for (unsigned il = 0; il < h->n_layer; il++) {
        if (layer[il].flags & EXCHANGE_LAYER_ROUTES) {
            keep_choice(r, i_moe, ids, n);
            ids += (size_t)h->max_tokens * h->n_expert_used;
        }
        i_moe += r->m->layer[il].is_moe ? 1 : 0;
    }
}

static void answer(struct rig *r, unsigned il, unsigned i_moe, unsigned n)
{
    struct exchange_header *h = r->h;
    const unsigned slot = ++r->hand % 2, k = h->n_expert_used, d = h->n_embd;
    wait_for(r, &h->x, r->hand);
    const float *x = exchange_at(h, h->x_at[slot]), *w = exchange_at(h, h->weight_at[slot]);
    const int32_t *ids = exchange_at(h, h->id_at[slot]);
    float *y = exchange_at(h, h->y_at[slot]);
    keep_choice(r, i_moe, ids, n);
    if (r->experts.slot == NULL) {
        exchange_bell_ring(&h->y, r->hand);
        return;
    }
    memset(y, 0, (size_t)n * d * sizeof *y);
    for (unsigned i = 0; i < n * k; i++) {
        if (ids[i] >= 0) {
            expert(&r->experts, il, (unsigned)ids[i], x + i / k * d, w[i], y + (size_t)(i / k) * d);
        }
    }
    exchange_bell_ring(&h->y, r->hand);
}

/* Tokens ids[0..n) at positions from first on, of the sequence in table row `row`; logits of the
 * last n_logits. */
static const float *rig_step(struct rig *r, const int32_t *ids, unsigned first, unsigned n,
                             unsigned n_logits, unsigned row)
{
    struct exchange_header *h = r->h;
    const uint64_t number = ++r->step;
    const unsigned slot = number % 2;
    struct exchange_step *step = exchange_at(h, h->step_at[slot]);
    struct exchange_token *token = exchange_at(h, h->token_at[slot]);
    struct exchange_seq *seq = exchange_at(h, h->seq_at[slot]);
    *step = (struct exchange_step){.number = number,
                                   .first_hand = r->hand + 1,
                                   .n_token = n,
                                   .n_seq = 1,
                                   .n_logits = n_logits};
    *seq = (struct exchange_seq){row, 0, n, (first + n + h->block_tokens - 1) / h->block_tokens};
    for (unsigned i = 0; i < n; i++) {
        token[i] = (struct exchange_token){
            ids[i], first + i, 0, i + n_logits < n ? EXCHANGE_NO_LOGITS : i + n_logits - n};
    }
    gpu_program_ring_step(r->program, number);
    const struct exchange_layer *layer = exchange_at(h, h->layer_at);
    unsigned i_moe = 0;
    for (unsigned il = 0; il < h->n_layer; il++) {
        if (layer[il].flags & EXCHANGE_LAYER_HAND) {
            answer(r, il, i_moe, n);
        }
        i_moe += r->m->layer[il].is_moe ? 1 : 0;
    }
    wait_for(r, &h->result, number);
    keep_routes(r, n);
    return exchange_at(h, h->logits_at[slot]);
}

/* ------------------------------------------------------------------ comparison */

static int32_t argmax(const float *x, unsigned n)
{
    unsigned best = 0;
    for (unsigned i = 1; i < n; i++) {
        best = x[i] > x[best] ? i : best;
    }
    return (int32_t)best;
}

static int32_t *int_array(const json_t *array, unsigned *n)
{
    *n = (unsigned)json_array_size(array);
    int32_t *ids = must(calloc(*n + 1, sizeof *ids));
    for (unsigned i = 0; i < *n; i++) {
        ids[i] = (int32_t)json_integer_value(json_array_get(array, i));
    }
    return ids;
}

static bool skipped(const json_t *rows, unsigned t)
{
    for (size_t i = 0; i < json_array_size(rows); i++) {
        if (json_integer_value(json_array_get(rows, i)) == (json_int_t)t) {
            return true;
        }
    }
    return false;
}

static int by_number(const void *a, const void *b)
{
    return *(const int32_t *)a - *(const int32_t *)b;
}

/* Choices of the last step, tokens [t0, t0 + n), that are not the reference's [layers, T, k], as
 * sets: it orders by weight. Rows that begin below 0 are not compared. */
static unsigned wrong_choices(struct rig *r, const struct npy *want, unsigned t0, unsigned n)
{
    const unsigned k = r->h->n_expert_used, n_moe = count_moe(r->m);
    unsigned wrong = 0;
    for (unsigned i = 0; i < n_moe * n; i++) {
        const unsigned layer = i / n, t = i % n;
        int32_t *got = r->chosen + ((size_t)layer * r->h->max_tokens + t) * k;
        int32_t *row = (int32_t *)want->data + (layer * want->dim[1] + t0 + t) * k;
        qsort(got, k, sizeof *got, by_number);
        qsort(row, k, sizeof *row, by_number);
        wrong += row[0] >= 0 && memcmp(got, row, k * sizeof *got) != 0 ? 1 : 0;
    }
    return wrong;
}

static struct npy read_reference(const char *dir, const char *what, const char *which,
                                 const char *dtype)
{
    char path[512];
    struct npy a;
    snprintf(path, sizeof path, "%s/%s_%s.npy", dir, what, which);
    if (!npy_read(path, dtype, &a)) {
        printf("Bail out! %s cannot be read\n", path);
        exit(99);
    }
    return a;
}

/* The prompt in chunks; the distance over all rows, and the worst row's. */
static void compare_prompt(struct rig *r, const char *fixture, const char *dir, const json_t *ref,
                           const char *which, const struct variant *v, unsigned row)
{
    char key[64], name[256];
    unsigned n, n_vocab = r->h->n_vocab, worst_row = 0;
    double sum = 0, worst = 0;
    unsigned wrong = 0;
    snprintf(key, sizeof key, "prompt_%s", which);
    int32_t *ids = int_array(json_object_get(json_object_get(ref, key), "ids"), &n);
    const json_t *skip = json_object_get(json_object_get(ref, "skip_rows"), which);
    const struct npy want = read_reference(dir, "logits", which, "<f4");
    const struct npy want_routes = read_reference(dir, "routes", which, "<i4");
    if (want_routes.n != (size_t)count_moe(r->m) * n * r->h->n_expert_used) {
        printf("Bail out! %s has other routes\n", dir);
        exit(99);
    }
    unsigned n_row = 0;
    for (unsigned t0 = 0; t0 < n; t0 += v->chunk) {
        const unsigned some = MIN(v->chunk, n - t0);
        const float *logits = rig_step(r, ids + t0, t0, some, some, row);
        wrong += wrong_choices(r, &want_routes, t0, some);
        for (unsigned t = t0; t < t0 + some; t++) {
            const double d = distance(logits + (size_t)(t - t0) * n_vocab,
                                      (const float *)want.data + (size_t)t * n_vocab, n_vocab);
            if (skipped(skip, t)) {
                continue;
            }
            sum += d * d;
            n_row++;
            if (d > worst) {
                worst = d, worst_row = t;
            }
        }
    }
    const double all = sqrt(sum / (n_row > 0 ? n_row : 1));
    snprintf(name, sizeof name, "%s, %s, %s (worst row %u: %.2g)", fixture, which, v->name,
             worst_row, worst);
    result(all <= v->limit, name, all, v->limit);
    if (v->float_mode == EXCHANGE_FLOAT_F32) {
        snprintf(name, sizeof name, "%s, %s, %s: other choices of experts", fixture, which,
                 v->name);
        result(wrong == 0, name, wrong, 0);
    }
    free(want.data);
    free(want_routes.data);
    free(ids);
}

static void compare_greedy(struct rig *r, const char *fixture, const json_t *ref)
{
    unsigned n, n_want, same = 0;
    char name[128];
    int32_t *ids = int_array(json_object_get(json_object_get(ref, "prompt_short"), "ids"), &n);
    int32_t *want = int_array(json_object_get(ref, "greedy_32"), &n_want);
    const float *logits = rig_step(r, ids, 0, n, n, 2) + (size_t)(n - 1) * r->h->n_vocab;
    for (unsigned i = 0; i < n_want; i++) {
        const int32_t id = argmax(logits, r->h->n_vocab);
        same += id == want[i] ? 1 : 0;
        logits = rig_step(r, &want[i], n + i, 1, 1, 2);
    }
    snprintf(name, sizeof name, "%s, greedy: of %u tokens", fixture, n_want);
    result(same == n_want, name, same, n_want);
    free(ids);
    free(want);
}

static void test_fixture(const char *program, const char *fixtures, const char *fixture)
{
    static const struct variant variants[] = {
        {"exact, experts of the engine", 0, EXCHANGE_FLOAT_F32, EXCHANGE_KV_F32, 256, 1e-4},
        {"exact, all hot, chunks of 33", 10, EXCHANGE_FLOAT_F32, EXCHANGE_KV_F32, 33, 1e-4},
        {"exact, all hot, prompt at once", 10, EXCHANGE_FLOAT_F32, EXCHANGE_KV_F32, 256, 1e-4},
        {"exact, some hot, single tokens", 4, EXCHANGE_FLOAT_F32, EXCHANGE_KV_F32, 1, 1e-4},
        {"fast, some hot, prompt at once", 4, EXCHANGE_FLOAT_FAST, EXCHANGE_KV_F32, 256, 2e-3},
        {"fast, all hot, prompt at once", 10, EXCHANGE_FLOAT_FAST, EXCHANGE_KV_F32, 256, 2e-3},
        {"fast, experts of the engine, chunks of 7", 0, EXCHANGE_FLOAT_FAST, EXCHANGE_KV_F32, 7,
         2e-3},
        /* rounds the cache: a choice of experts that is nearly even may fall otherwise */
        {"fast, f16 cache", 0, EXCHANGE_FLOAT_FAST, EXCHANGE_KV_F16, 100, 5e-2},
    };
    numoe_error err = {.status = NUMOE_OK};
    struct model *m = NULL;
    char dir[512], path[768], real[4096];
    snprintf(dir, sizeof dir, "%s/%s", fixtures, fixture);
    snprintf(path, sizeof path, "%s/%s-f32.gguf", dir, fixture);
    if (realpath(path, real) == NULL || model_open(real, &m, &err) != NUMOE_OK) {
        bail(path, &err);
    }
    snprintf(path, sizeof path, "%s/reference.json", dir);
    json_t *ref = json_load_file(path, 0, NULL);
    const size_t n_choice = (size_t)count_moe(m) * MAX_TOKENS * m->hp.n_expert_used;
    struct rig r = {
        .m = m, .experts = experts_new(m), .chosen = must(calloc(n_choice, sizeof *r.chosen))};
    for (unsigned i = 0; i < ARRAY_LEN(variants); i++) {
        rig_start(&r, program, real, &variants[i], 256, MAX_TOKENS);
        compare_prompt(&r, fixture, dir, ref, "long", &variants[i], 0);
        compare_prompt(&r, fixture, dir, ref, "short", &variants[i], 1);
        if (variants[i].float_mode == EXCHANGE_FLOAT_F32) {
            compare_greedy(&r, fixture, ref);
        }
        gpu_program_stop(r.program);
    }
    experts_free(&r.experts);
    free(r.chosen);
    json_decref(ref);
    model_close(m);
}

/* ------------------------------------------------------------------ time */

/* Median milliseconds of steps of n tokens that end at position `end`. */
static double step_ms(struct rig *r, unsigned n, unsigned end, unsigned n_run)
{
    int32_t *ids = must(calloc(n, sizeof *ids));
    double ms[64];
    for (unsigned i = 0; i < n; i++) {
        ids[i] = (int32_t)(i * 37 % r->h->n_vocab);
    }
    for (unsigned i = 0; i < n_run; i++) {
        const double from = clock_seconds();
        rig_step(r, ids, end - n, n, 1, 0);
        const double took = 1e3 * (clock_seconds() - from);
        unsigned j = i;
        for (; j > 0 && ms[j - 1] > took; j--) {
            ms[j] = ms[j - 1];
        }
        ms[j] = took;
    }
    free(ids);
    return ms[n_run / 2];
}

static int measure(const char *program, const char *path)
{
    static const struct variant v = {"", 0, EXCHANGE_FLOAT_FAST, EXCHANGE_KV_F16, 0, 0};
    static const unsigned context[] = {512, 2048, 8192};
    numoe_error err = {.status = NUMOE_OK};
    struct model *m = NULL;
    char real[4096];
    if (realpath(path, real) == NULL || model_open(real, &m, &err) != NUMOE_OK) {
        bail(path, &err);
    }
    struct rig r = {.m = m};
    const double from = clock_seconds();
    rig_start(&r, program, real, &v, 8192, 2048);
    printf("measure load: %.2f s\n", clock_seconds() - from);
    for (unsigned i = 0; i < ARRAY_LEN(context); i++) {
        printf("measure step of tokens at context %4u, ms:", context[i]);
        for (unsigned n = 1; n <= 64; n *= 2) {
            printf("  %u: %.3f", n, step_ms(&r, n, context[i], n > 8 ? 9 : 31));
        }
        puts("");
        fflush(stdout);
    }
    for (unsigned n = 128; n <= 2048; n *= 4) {
        printf("measure prompt of %u: %.2f ms\n", n, step_ms(&r, n, n, 5));
    }
    printf("measure weights of the dense half: %.1f MB a token, %u hand-offs\n",
           (double)(m->active.dense + m->active.shared) / 1e6, exchange_step_hands(r.h));
    gpu_program_stop(r.program);
    model_close(m);
    return 0;
}

int main(int argc, char **argv)
{
    static const char *const fixture[] = {
        "deepseek2-lite-a", "deepseek2-full-a", "deepseek3-a", "mixtral-a", "qwen2moe-a",
        "qwen3moe-a",       "granitemoe-a",     "olmoe-a",     "glm4moe-a", "gptoss-a"};
    if (argc == 4 && strcmp(argv[1], "--time") == 0) {
        return measure(argv[2], argv[3]);
    }
    const char *program = argc > 1 ? argv[1] : "./numoe-gpu-emu";
    char *fixtures = argc > 2 ? strdup(argv[2]) : test_src_path("tests/data/fixtures");
    if (fixtures == NULL) {
        puts("Bail out! tests/data/fixtures is missing");
        return 99;
    }
    for (unsigned i = 0; i < ARRAY_LEN(fixture); i++) {
        test_fixture(program, fixtures, fixture[i]);
    }
    free(fixtures);
    printf("1..%u\n# %u of %u failed\n", n_test, n_failed, n_test);
    return n_failed == 0 ? 0 : 1;
}
