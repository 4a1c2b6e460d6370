/* Which requests run at a time. Each has a place in a step as long as its KV cache fits; the others
 * wait in the order in which they came. What this file decides changes when something is computed,
 * never what: a result has the same bits in any batch.
 *
 * Memory: a request that gets a place has room for its prompt and the next token, not for all that
 * it may generate. When the caches outgrow the budget, the youngest gives its up and waits again
 * with the tokens that it has; nobody else is let in until somebody has finished.
 *
 * Prompts that begin alike: a request takes over as much as a running one, or one of a few that
 * have finished, has evaluated. If a running one is just about to evaluate more of it, it waits for
 * that. */
#include <stdatomic.h>
#include <string.h>

#include "numa/room.h"
#include "runtime/batch-seq.h"

#define SEQUENCES_DEFAULT 128u
#define ROOM_PART         0.8 /* of free memory for KV caches; the rest is for everything else */
#define N_KEPT            8u
#define SHARE_MIN         16u  /* tokens: for less it is not worth to wait or to copy a chunk */
#define LOOK_AHEAD        256u /* waiting requests that are looked at in a step */

struct seq_queue {
    struct batch_seq *first, **end;
    size_t n;
};

struct numoe_batch {
    numoe_engine *engine;
    unsigned n_ctx, max_active;
    struct seq_queue waiting, done;
    struct batch_seq **active; /* [max_active] the oldest first */
    unsigned n_active;
    numoe_session *kept[N_KEPT]; /* of finished requests, the longest unused first */
    unsigned n_kept;
    numoe_session **session;  /* [max_active] for numoe_step() */
    struct batch_seq **ready; /* [max_active] those with logits to pick from */
    unsigned n_ready;
    atomic_uint cursor; /* Sync: atomic; workers take ready ones by it */
    bool is_full;       /* one had to give up its place: nobody is let in until one has finished */
    struct batch_seq *last; /* what the last numoe_batch_next() points to */
    numoe_batch_info info;
};

/* ------------------------------------------------------------------ queues */

static void queue_init(struct seq_queue *q)
{
    *q = (struct seq_queue){.end = &q->first};
}

static void queue_push(struct seq_queue *q, struct batch_seq *seq)
{
    seq->next = NULL;
    *q->end = seq;
    q->end = &seq->next;
    q->n++;
}

static void queue_push_front(struct seq_queue *q, struct batch_seq *seq)
{
    seq->next = q->first;
    q->first = seq;
    if (q->n++ == 0) {
        q->end = &seq->next;
    }
}

/* *link is the pointer to it. */
static struct batch_seq *queue_take(struct seq_queue *q, struct batch_seq **link)
{
    struct batch_seq *seq = *link;
    *link = seq->next;
    if (q->end == &seq->next) {
        q->end = link;
    }
    q->n--;
    return seq;
}

static void queue_free(struct seq_queue *q)
{
    while (q->first) {
        seq_free(queue_take(q, &q->first));
    }
}

/* ------------------------------------------------------------------ memory */

static double free_bytes(const struct topo *topo);

/* For KV caches, on the GPU if they are there. */
static double room_bytes(const numoe_engine *e)
{
    const double gpu_bytes =
        e->gpu != NULL ? (double)gpu_kv_tokens(e->gpu) * (double)e->info.kv_token_bytes : 0;
    return e->gpu != NULL ? MIN(gpu_bytes, free_bytes(e->topo)) : free_bytes(e->topo);
}

/* What all nodes together can still give, as far as it is known. */
static double free_bytes(const struct topo *topo)
{
    double limit = (double)MIN(topo->memory_limit_bytes, topo->host_room_bytes), sum = 0;
    bool known = true;

    for (unsigned in = 0; in < topo->n_node; in++) {
        const uint64_t bytes = room_available_bytes(topo, topo->node[in].os_index);
        known = known && bytes > 0;
        sum += (double)bytes;
        limit -= (double)atomic_load(&topo->ledger->taken_bytes[in]);
    }
    return MAX(known ? MIN(sum, limit) : limit, 0);
}

static double chunk_bytes(const struct numoe_batch *b)
{
    return (double)b->engine->info.kv_token_bytes * KV_CHUNK;
}

/* With room for the next token of each. */
static double kv_committed(const struct numoe_batch *b)
{
    double sum = 0;
    for (unsigned i = 0; i < b->n_active; i++) {
        const numoe_session *s = b->active[i]->session;
        sum += kv_bytes(s->kv, (unsigned)MIN(s->n + 1, s->n_ctx));
    }
    for (unsigned i = 0; i < b->n_kept; i++) {
        sum += kv_bytes(b->kept[i]->kv, 0);
    }
    return sum;
}

static void drop_kept(struct numoe_batch *b, unsigned i)
{
    numoe_session_free(b->kept[i]);
    b->n_kept--;
    memmove(&b->kept[i], &b->kept[i + 1], (b->n_kept - i) * sizeof *b->kept);
}

static void keep(struct numoe_batch *b, numoe_session *session)
{
    if (b->n_kept == N_KEPT) {
        drop_kept(b, 0);
    }
    b->kept[b->n_kept++] = session;
}

/* True if `bytes` more fit; for them kept sessions go, but not `spared`. */
static bool make_room(struct numoe_batch *b, double bytes, const numoe_session *spared)
{
    for (unsigned i = 0; kv_committed(b) + bytes > (double)b->info.kv_bytes;) {
        i += i < b->n_kept && b->kept[i] == spared;
        if (i >= b->n_kept) {
            return false;
        }
        drop_kept(b, i);
    }
    return true;
}

static void preempt_youngest(struct numoe_batch *b)
{
    struct batch_seq *seq = b->active[--b->n_active];
    seq_suspend(seq);
    queue_push_front(&b->waiting, seq);
    b->is_full = true;
    b->info.n_preempted++;
}

/* ------------------------------------------------------------------ prefixes */

struct donor {
    numoe_session *session; /* NULL: none */
    size_t n;               /* tokens in common that it has evaluated */
    size_t n_coming;        /* likewise that a running one will have evaluated soon */
};

static size_t common_prefix(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b)
{
    const size_t n = MIN(n_a, n_b);
    size_t i = 0;
    while (i < n && a[i] == b[i]) {
        i++;
    }
    return i;
}

/* How many of ids [n] s begins with. */
static size_t offer(struct donor *best, numoe_session *s, const int32_t *ids, size_t n)
{
    const size_t n_common = common_prefix(s->id, s->n, ids, n);
    const size_t n_now = MIN(n_common, s->n_done);

    if (n_now > best->n) {
        best->session = s;
        best->n = n_now;
    }
    return n_common;
}

/* The last token is evaluated in any case: its logits are needed. */
static struct donor find_donor(struct numoe_batch *b, const struct batch_seq *seq)
{
    struct donor best = {0};
    size_t n;
    const int32_t *ids = seq_tokens(seq, &n);

    for (unsigned i = 0; i < b->n_active; i++) {
        const size_t n_coming = offer(&best, b->active[i]->session, ids, n - 1);
        best.n_coming = MAX(best.n_coming, n_coming);
    }
    for (unsigned i = 0; i < b->n_kept; i++) {
        (void)offer(&best, b->kept[i], ids, n - 1);
    }
    if (best.n < SHARE_MIN) {
        best.session = NULL;
        best.n = 0;
    }
    return best;
}

static void mark_used(struct numoe_batch *b, const numoe_session *session)
{
    for (unsigned i = 0; i + 1 < b->n_kept; i++) {
        if (b->kept[i] == session) {
            numoe_session *used = b->kept[i];
            b->kept[i] = b->kept[i + 1];
            b->kept[i + 1] = used;
        }
    }
}

/* ------------------------------------------------------------------ places */

static void retire(struct numoe_batch *b, struct batch_seq *seq)
{
    numoe_session *session = seq_retire(seq);

    if (session && session->n_done >= SHARE_MIN) {
        keep(b, session);
    } else {
        numoe_session_free(session);
    }
    queue_push(&b->done, seq);
    b->is_full = false;
}

static numoe_status start(struct numoe_batch *b, struct batch_seq *seq, const struct donor *donor,
                          numoe_error *err)
{
    FORWARD_IF(seq_start(seq, b->n_ctx, err));
    if (donor->session) {
        FORWARD_IF(numoe_session_share(seq->session, donor->session, donor->n, err));
        mark_used(b, donor->session);
        if (seq->result.n_generated == 0) { /* not again after it was preempted */
            seq->result.n_shared = donor->n;
            b->info.n_shared += donor->n;
        }
    }
    return NUMOE_OK;
}

/* False if there is no room: then nobody behind it gets a place either, so that a long prompt is
 * not passed by for ever. */
static bool give_place(struct numoe_batch *b, struct batch_seq **link, const struct donor *donor)
{
    struct batch_seq *seq = *link;
    numoe_error err;
    size_t n;

    (void)seq_tokens(seq, &n);
    const double n_chunk = (double)(n / KV_CHUNK + 1 - donor->n / KV_CHUNK);
    if (!make_room(b, n_chunk * chunk_bytes(b), donor->session) && b->n_active > 0) {
        return false;
    }
    queue_take(&b->waiting, link);
    if (start(b, seq, donor, &err) == NUMOE_OK) {
        b->active[b->n_active++] = seq;
    } else {
        seq_fail(seq, &err);
        retire(b, seq);
    }
    return true;
}

static void fill_places(struct numoe_batch *b)
{
    struct batch_seq **link = &b->waiting.first;

    for (unsigned i = 0; i < LOOK_AHEAD && *link && b->n_active < b->max_active && !b->is_full;
         i++) {
        const struct donor donor = find_donor(b, *link);
        if (donor.n_coming >= donor.n + SHARE_MIN) {
            link = &(*link)->next;
        } else if (!give_place(b, link, &donor)) {
            return;
        }
    }
}

/* ------------------------------------------------------------------ a step */

static void finish_marked(struct numoe_batch *b)
{
    unsigned n = 0;
    for (unsigned i = 0; i < b->n_active; i++) {
        if (b->active[i]->finished) {
            retire(b, b->active[i]);
        } else {
            b->active[n++] = b->active[i];
        }
    }
    b->n_active = n;
}

/* Evaluates; those that do not fit give up their places, and the last one fails. */
static numoe_status evaluate(struct numoe_batch *b, numoe_error *why)
{
    while (b->n_active > 0) {
        for (unsigned i = 0; i < b->n_active; i++) {
            b->session[i] = b->active[i]->session;
        }
        numoe_status status = numoe_step(b->engine, b->session, b->n_active, why);
        if (status != NUMOE_E_MEMORY) {
            return status;
        }
        if (b->n_kept > 0) {
            drop_kept(b, 0);
        } else if (b->n_active > 1) {
            preempt_youngest(b);
        } else {
            seq_fail(b->active[0], why);
            finish_marked(b);
        }
    }
    return b->engine->peers != NULL ? numoe_step(b->engine, NULL, 0, why) : NUMOE_OK;
}

static void pick_walk(struct worker *w, void *arg)
{
    struct numoe_batch *b = arg;
    unsigned i;

    (void)w;
    while ((i = atomic_fetch_add_explicit(&b->cursor, 1, memory_order_relaxed)) < b->n_ready) {
        seq_pick(b->ready[i]);
    }
}

static void pick_tokens(struct numoe_batch *b)
{
    b->n_ready = 0;
    for (unsigned i = 0; i < b->n_active; i++) {
        if (numoe_session_logits(b->active[i]->session)) {
            b->ready[b->n_ready++] = b->active[i];
        }
    }
    atomic_store(&b->cursor, 0);
    if (b->n_ready > 0) {
        pools_run(b->engine->pools, pick_walk, b);
    }
    for (unsigned i = 0; i < b->n_ready; i++) {
        const numoe_completion *r = &b->ready[i]->result;
        b->info.n_prompt += r->n_generated == 0 ? r->n_prompt - r->n_shared : 0;
        seq_accept(b->ready[i]);
    }
    b->info.n_generated += b->n_ready;
    finish_marked(b);
}

numoe_status numoe_batch_step(numoe_batch *batch, numoe_error *err)
{
    struct numoe_batch *b = batch;
    struct probe_track *probe = b->engine->probe;
    numoe_error why = {0};

    probe_begin(probe, PROBE_BATCH);
    while (b->n_active > 1 && !make_room(b, 0, NULL)) {
        preempt_youngest(b);
    }
    fill_places(b);
    probe_end(probe);
    numoe_status status = evaluate(b, &why);
    if (status == NUMOE_OK) {
        probe_begin(probe, PROBE_SAMPLING);
        pick_tokens(b);
        probe_end(probe);
    } else if (err) {
        *err = why;
    }
    return status;
}

/* ------------------------------------------------------------------ the public face */

numoe_status numoe_batch_new(numoe_engine *engine, const numoe_batch_params *params,
                             numoe_batch **batch, numoe_error *err)
{
    const unsigned n_ctx_train = engine->model->hp.n_ctx_train;
    struct numoe_batch *b;

    if (params->n_ctx > n_ctx_train) {
        return status_fail(err, NUMOE_E_INPUT_CONTEXT,
                           "context of %u tokens: this model was made for at most %u",
                           params->n_ctx, n_ctx_train);
    }
    FORWARD_IF(mem_new(&b, 1, sizeof *b, "batch", err));
    b->engine = engine;
    b->n_ctx = params->n_ctx ? params->n_ctx : n_ctx_train;
    b->max_active = MIN(params->max_sequences ? params->max_sequences : SEQUENCES_DEFAULT,
                        engine->chunk_tokens);
    b->info.kv_bytes =
        params->kv_bytes ? params->kv_bytes : (uint64_t)(room_bytes(engine) * ROOM_PART);
    queue_init(&b->waiting);
    queue_init(&b->done);
    numoe_status status = mem_new(&b->active, b->max_active, sizeof *b->active, "batch", err);
    if (status == NUMOE_OK) {
        status = mem_new(&b->ready, b->max_active, sizeof *b->ready, "batch", err);
    }
    if (status == NUMOE_OK) {
        status = mem_new(&b->session, b->max_active, sizeof *b->session, "batch", err);
    }
    if (status != NUMOE_OK) {
        numoe_batch_free(b);
        return status;
    }
    *batch = b;
    return NUMOE_OK;
}

void numoe_batch_free(numoe_batch *batch)
{
    if (!batch) {
        return;
    }
    for (unsigned i = 0; i < batch->n_active; i++) {
        seq_free(batch->active[i]);
    }
    while (batch->n_kept > 0) {
        drop_kept(batch, batch->n_kept - 1);
    }
    queue_free(&batch->waiting);
    queue_free(&batch->done);
    seq_free(batch->last);
    mem_free(batch->active);
    mem_free(batch->ready);
    mem_free(batch->session);
    mem_free(batch);
}

numoe_status numoe_batch_submit(numoe_batch *batch, const numoe_request *request, numoe_error *err)
{
    struct batch_seq *seq;

    FORWARD_IF(seq_new(batch->engine, request, batch->n_ctx, &seq, err));
    queue_push(&batch->waiting, seq);
    return NUMOE_OK;
}

bool numoe_batch_next(numoe_batch *batch, numoe_completion *completion)
{
    seq_free(batch->last);
    batch->last = batch->done.first ? queue_take(&batch->done, &batch->done.first) : NULL;
    if (batch->last) {
        seq_get_result(batch->last, completion);
    }
    return batch->last != NULL;
}

void numoe_batch_get_info(const numoe_batch *batch, numoe_batch_info *info)
{
    *info = batch->info;
    info->n_waiting = batch->waiting.n;
    info->n_active = batch->n_active;
}
