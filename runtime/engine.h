/* Inside of an engine and of a session: shared by the files of runtime/ only. */
#ifndef NUMOE_RUNTIME_ENGINE_H
#define NUMOE_RUNTIME_ENGINE_H

#include <stdatomic.h>

#include "base/probe.h"
#include "kernels/kern.h"
#include "dense/kv.h"
#include "model/tokenizer.h"
#include "runtime/adapt.h"
#include "runtime/gpu.h"
#include "runtime/step.h"
#include "runtime/tune.h"
#include "runtime/watch.h"
#include "store/store.h"

/* The tokens of one session in a batch: [first, first + n) of engine.token. */
struct span {
    numoe_session *session;
    unsigned first, n;
};

struct numoe_engine {
    const struct kern *kern;
    struct topo *topo;
    struct model *model;
    struct tokenizer *tok;
    struct chat *chat;
    struct pools *pools;
    struct store *store;
    struct step *step;
    struct watch watch;
    struct adapt *adapt;      /* NULL: copies of experts stay where they are */
    struct tuning tuning;
    struct gpu *gpu;          /* NULL: none */
    const numoe_peers *peers; /* NULL: all experts are here */
    uint64_t generation;      /* of caches: those of sessions with another one are lost */
    numoe_placement placement_mode;
    uint64_t taken_bytes[TOPO_MAX_NODE]; /* weights as planned, buffers, caches: of what there was */

    unsigned chunk_tokens;
    enum kv_type kv_type;
    numoe_engine_info info;
    struct strbuf placement; /* what info.placement points to */
    double bandwidth_bps;
    bool bandwidth_known;

    numoe_mode mode, mode_now; /* as asked for; of the last step, never AUTO */
    unsigned n_other_mode;     /* AUTO: steps in a row that would rather have the other mode */
    uint32_t lanes_pay;        /* AUTO: as struct placement has it */
    bool has_lanes;            /* their buffers are there */
    bool gave_up_lanes;        /* AUTO: there was no room for them */
    uint64_t lane_full_bytes[TOPO_MAX_NODE]; /* taken there when a cache had no room; 0: it had */

    struct probe_track *probe; /* [n_track] the caller's, then the workers'; NULL: no profile */
    unsigned n_track;
    uint64_t profile_steps, profile_tokens; /* since the profile was started */

    unsigned n_session;       /* open ones */
    uint64_t n_step;          /* serial number of the running step, for numoe_session.in_step */
    struct step_token *token; /* [chunk_tokens of each lane] the batch of the running step */
    struct span *span;        /* [the same] whose they are: every span has a token */
};

struct numoe_session {
    numoe_engine *engine;
    struct kv_cache *kv;
    int lane; /* in this step: a node, or KV_SPREAD where all nodes work together */
    uint64_t refused; /* bits: lanes that had no room for its cache in this step */
    unsigned n_ctx;
    int32_t *id;             /* [cap]; [0, n_done) are evaluated, [n_done, n) pending */
    size_t n, n_done, cap;
    size_t n_kv;             /* in its caches: n_done, or less since a GPU program failed */
    struct gpu_cache gpu;
    uint64_t generation;
    float *logits;           /* [V] after token n_done - 1 */
    bool has_logits;
    uint64_t in_step;        /* the step that has this session already */
    atomic_bool cancelled;   /* Sync: atomic; set anywhere, taken by the thread that steps */
    numoe_logits_fn on_logits;
    void *on_logits_arg;
    numoe_route_fn on_route;
    void *on_route_arg;
};

#define CHUNK_TOKENS_DEFAULT 512u

/* How a KV cache of the type is kept: AUTO looks at the model's weights. */
enum kv_type engine_kv_type(numoe_kv_type type, const struct model *model);
/* Tokens from position n on are pending again. */
void session_rewind(numoe_session *s, size_t n);
/* Empties caches that were lost. */
void session_sync(numoe_session *s);

/* True once for each numoe_session_cancel() that was not answered yet. */
static inline bool session_take_cancel(numoe_session *s)
{
    return atomic_exchange_explicit(&s->cancelled, false, memory_order_relaxed);
}

#endif
