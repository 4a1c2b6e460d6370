/* numoe: a Mixture-of-Experts inference engine for multi-socket machines.
 *
 * Two nouns: an *engine* is a loaded model with its worker pools; a *session* is one sequence of
 * tokens with its KV cache. A host program opens one engine, makes sessions, appends token ids to
 * them, calls numoe_step() with all sessions that have work, and reads logits or samples from them.
 * No tensor, thread or node is visible here.
 *
 * Errors: every function that can fail returns a numoe_status, 0 (NUMOE_OK) on success, negative
 * otherwise, and writes its outputs only on success. Where a `numoe_error *err` is taken it may be
 * NULL; on failure it receives the status and one line of text that says what, where and what to do.
 *
 * Threads: an engine may be used from one thread at a time, except for functions marked "any
 * thread". Different engines are independent.
 *
 * Strings are UTF-8. Sizes are in bytes where the name ends in _bytes, otherwise in elements.
 */
#ifndef NUMOE_NUMOE_H
#define NUMOE_NUMOE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define NUMOE_API __attribute__((visibility("default")))
#define NUMOE_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define NUMOE_API
#define NUMOE_PRINTF(f, a)
#endif

/* ------------------------------------------------------------------ status */

/* X(name, value, sentence). Groups say what a caller can do about it:
 * FILE choose another file; INPUT correct the request; SUPPORT another build or other hardware;
 * MEMORY a smaller context or another placement; STATE a bug in the caller, or an interruption. */
#define NUMOE_STATUS_MAP(X)                                                                        \
    X(OK, 0, "success")                                                                            \
    X(E_FILE_OPEN, -1, "file cannot be opened or read")                                            \
    X(E_FILE_FORMAT, -2, "file is damaged or not of the expected format")                          \
    X(E_FILE_MODEL, -3, "file does not describe a model that can be run")                          \
    X(E_FILE_WRITE, -4, "file cannot be written")                                                  \
    X(E_INPUT, -10, "request is not valid")                                                        \
    X(E_INPUT_CONTEXT, -11, "request does not fit the context")                                    \
    X(E_SUPPORT, -20, "not supported by this build or machine")                                    \
    X(E_SUPPORT_ARCH, -21, "model architecture is not supported")                                  \
    X(E_SUPPORT_TYPE, -22, "tensor type is not supported")                                         \
    X(E_MEMORY, -30, "not enough memory")                                                          \
    X(E_DEVICE, -40, "device failed")                                                              \
    X(E_STATE, -50, "call is not valid in this state")                                             \
    X(E_STATE_CANCELLED, -51, "cancelled")

typedef enum numoe_status {
#define NUMOE_STATUS_ENUM(name, value, text) NUMOE_##name = (value),
    NUMOE_STATUS_MAP(NUMOE_STATUS_ENUM)
#undef NUMOE_STATUS_ENUM
} numoe_status;

typedef struct numoe_error {
    numoe_status status;
    char text[512]; /* one line, no newline at the end */
} numoe_error;

/* The sentence of a status; never NULL. Any thread. */
NUMOE_API const char *numoe_status_text(numoe_status status);

/* "1.2.3". Any thread. */
NUMOE_API const char *numoe_version(void);

/* What reports are written as; which of them has a picture is said there. */
typedef enum numoe_report_format {
    NUMOE_REPORT_TEXT,
    NUMOE_REPORT_JSON,
    NUMOE_REPORT_SVG,
} numoe_report_format;

/* ------------------------------------------------------------------ engine */

typedef struct numoe_engine numoe_engine;
typedef struct numoe_session numoe_session;

typedef enum numoe_kv_type {
    NUMOE_KV_AUTO = 0, /* f32 for files whose attention weights are F32, F16 or BF16, else f16 */
    NUMOE_KV_F32,
    NUMOE_KV_F16,
    NUMOE_KV_Q8_0, /* 8 bits and an f16 scale for every 32: a little more than half of f16 */
} numoe_kv_type;

/* How weights are placed on the nodes of a machine; results are the same to the bit. */
typedef enum numoe_placement {
    NUMOE_PLACEMENT_AUTO = 0,   /* what is predicted to decode one sequence fastest */
    NUMOE_PLACEMENT_SLICE,      /* rows of every matrix are cut over the nodes */
    NUMOE_PLACEMENT_SHARD,      /* the same, but experts are whole, the most used on several nodes */
    NUMOE_PLACEMENT_REPLICATE,  /* everything is on every node */
    NUMOE_PLACEMENT_INTERLEAVE, /* dealt to the nodes in small pieces: to compare with */
} numoe_placement;

/* How the nodes of a machine work on several sequences; results are the same to the bit. Where every
 * node has all weights (REPLICATE, or one node), each can evaluate sequences of its own, with their KV
 * caches in its memory, and waits for no other; but weights that several sequences need are read by
 * each node. Which is faster over all sequences depends on the model, the machine and their number;
 * for each sequence, all nodes together are. */
typedef enum numoe_mode {
    NUMOE_MODE_AUTO = 0,   /* THROUGHPUT where it is possible, while there is a sequence for each node and it
                              is predicted to be faster */
    NUMOE_MODE_LATENCY,    /* all nodes work on each token */
    NUMOE_MODE_THROUGHPUT, /* each node has its own sequences */
} numoe_mode;

/* Called while a model loads, from the thread that opens it, some ten times a second. */
typedef void (*numoe_progress_fn)(void *arg, uint64_t done_bytes, uint64_t total_bytes);

#define NUMOE_GPU_EXPERTS_AUTO 0xffffffffu

/* Other processes (ranks) that evaluate sequences of their own with the same model, of which each has
 * a part of the routed experts: inputs of tokens go to the rank that has the experts they have chosen,
 * products come back. How is the host's affair (MPI, say): two functions, called by every rank equally
 * often and in the same order, by one thread at a time, which is the caller's of a step or a worker's
 * while that caller waits. False: somebody was lost; the step fails with NUMOE_E_DEVICE, and the
 * engine can only be closed. Numbers are as the processor has them: all ranks need the same kind.
 *
 * A rank's results are those of an engine with all experts, to the bit where all have the same isa. */
typedef struct numoe_peers {
    unsigned rank, n_rank;       /* this one, from 0; all */
    void *arg;
    /* all [n_rank, bytes] = what each rank has in own [bytes]. */
    bool (*gather)(void *arg, const void *own, void *all, size_t bytes);
    /* Rows of row_bytes: n_send[r] of them to each rank r, which follow each other in send, and n_recv[r]
     * from each, likewise in recv; both [n_rank], 0 for this rank itself. */
    bool (*exchange)(void *arg, size_t row_bytes, const void *send, const uint32_t *n_send, void *recv,
                     const uint32_t *n_recv);
} numoe_peers;

typedef struct numoe_engine_params {
    const char *model_path;      /* a GGUF file, of a split one the first part; NULL: the bundled model */
    const char *topology;        /* NULL: this machine; an hwloc synthetic string or XML file otherwise */
    unsigned n_thread;           /* workers over all nodes; 0: one per allowed physical core, or what was found to
                                    be clearly faster */
    bool no_probe;               /* nothing is measured when the engine is opened, and nothing is remembered: the
                                    same choices each time. Otherwise short probes choose the number of workers,
                                    how long they wait awake, and their pages; what they find is remembered in
                                    $XDG_CACHE_HOME/numoe (~/.cache/numoe) for 30 days, for this machine and what
                                    this process may use of it */
    unsigned max_cpus;           /* no more workers than that where n_thread is 0; 0: no such limit */
    uint64_t max_bytes;          /* memory that may be taken, of what is free; 0: no such limit */
    unsigned share, n_share;     /* of n_share processes that may use the same CPUs this is number `share`, from 0:
                                    it takes a part of them, whole nodes where there are as many; 0, 0: all.
                                    Memory is not divided: max_bytes */
    const numoe_peers *peers;    /* NULL: all experts are here. Used until the engine is closed. Every rank needs the
                                    same model and chunk_tokens, and calls numoe_step(), or numoe_batch_step(), as
                                    often as the others, also without sessions. Not with gpu, map_experts,
                                    plan, expert_stats, THROUGHPUT */
    unsigned chunk_tokens;       /* most tokens evaluated together (THROUGHPUT: by a node); 0: 512 */
    unsigned min_ctx;            /* refuses, before weights are read, a model with a shorter context */
    numoe_kv_type kv_type;
    numoe_placement placement;
    uint64_t replica_bytes;      /* SHARD: memory for further copies of experts, ... */
    double replica_percent;      /* ... or, if above 0, percent of one copy of all weights. Without
                                    expert_stats those are copied, once, that were counted as the most
                                    used after some hundred tokens (docs/expert-stats.md) */
    bool adapt;                  /* SHARD: replicas, of the budget or of the plan, follow what is used */
    bool map_experts;            /* routed experts stay in the file, in the page cache: for models
                                    larger than memory; slower */
    const char *expert_stats;    /* NULL, or a file that numoe_stats_open() takes */
    const char *plan;            /* NULL, or a file that numoe_plan_print() wrote: instead of all this */
    numoe_mode mode;             /* THROUGHPUT is refused where numoe_engine_set_mode() would */
    double node_bps;             /* read bandwidth of each node; 0: the platform's word, or measured once as above
                                    (no_probe: assumed from the number of workers) */
    const char *chat_template;   /* in place of the file's own (NULL): a built-in name or a text */
    const char *gpu;             /* NULL or "none"; "cuda", "emu", or the path of a program that
                                    speaks docs/exchange.md: an error where it does not start or load;
                                    "auto": numoe-gpu-cuda, where that is a warning */
    const char *gpu_devices;     /* their numbers as the program counts, "0,1"; NULL: the first, as
                                    many as the program works with (numoe-gpu-cuda: one) */
    uint64_t vram_budget_bytes;  /* of each GPU; 0: what is free */
    unsigned gpu_experts;        /* routed experts that the GPUs have too; ..._AUTO: as many as fit */
    double gpu_expert_percent;   /* or, if above 0, percent of all */
    unsigned defer_experts;      /* so many of a token's experts join one layer later: changes results */
    numoe_progress_fn progress;  /* may be NULL */
    void *progress_arg;
} numoe_engine_params;

/* Defaults for everything: the bundled model on this machine. Any thread. */
NUMOE_API void numoe_engine_params_init(numoe_engine_params *params);

/* The file of the small model that comes with numoe, which is opened where none is named:
 * in the data folder that numoe was installed to; for a library that runs in its build tree, also in
 * the source tree. *path is static. NUMOE_E_FILE_OPEN names the places looked at. Any thread. */
NUMOE_API numoe_status numoe_bundled_model(const char **path, numoe_error *err);

/* Memory that this process could take here and now: what is free, within its control groups and
 * ulimit -v and -d; UINT64_MAX if that is not known. For processes that divide a machine (max_bytes).
 * Any thread. */
NUMOE_API uint64_t numoe_memory_room(void);

/* Loads a model and starts its worker pools. Blocks until all weights are in memory. Sets
 * HWLOC_HIDE_ERRORS in the environment for a moment, unless it is set: then no other thread may read
 * the environment or open an engine.
 * *engine is owned by the caller: numoe_engine_close(). */
NUMOE_API numoe_status numoe_engine_open(const numoe_engine_params *params, numoe_engine **engine,
                                         numoe_error *err);

/* Stops the workers and frees everything. All sessions must have been freed: with one still open the
 * engine is kept, and an error is logged. NULL is allowed. */
NUMOE_API void numoe_engine_close(numoe_engine *engine);

/* What was loaded and where; strings live as long as the engine. */
typedef struct numoe_engine_info {
    const char *model_name;      /* general.name, or the file's name */
    const char *arch;            /* general.architecture */
    const char *type_name;       /* the type most weight bytes have, e.g. "Q4_K" */
    const char *isa;             /* instruction set of the kernels: "ref" .. "amx" (NUMOE_ISA) */
    const char *machine;         /* one line: processor, packages, nodes, cores, memory */
    const char *placement;       /* one line: how weights are placed on nodes */
    const char *tuning;          /* one line: what was chosen for this machine, and when it was measured */
    const char *gpu;             /* one line: the GPU program, and what it has; NULL: none */
    unsigned n_layer, n_expert, n_expert_used, n_vocab, n_embd;
    unsigned n_ctx_train;        /* longest context the model was trained for */
    unsigned n_node, n_worker;   /* nodes and workers used */
    unsigned n_lane;             /* nodes that can have sequences of their own; 0: no THROUGHPUT */
    uint64_t n_param;
    uint64_t weight_bytes;       /* as placed, all copies */
    uint64_t mapped_bytes;       /* of experts that stay in the file */
    uint64_t active_bytes;       /* weight bytes read per decoded token */
    uint64_t kv_token_bytes;     /* KV cache per token of context */
    double load_seconds;
    double read_bps;             /* what numoe_engine_bandwidth() has measured here before; 0: not remembered */
    numoe_kv_type kv_type;       /* never AUTO */
} numoe_engine_info;

/* Owned by the engine. */
NUMOE_API const numoe_engine_info *numoe_engine_get_info(const numoe_engine *engine);

/* Read bandwidth of the engine's own workers over memory of their own nodes, bytes/second, all
 * workers together: the most that short passes reach. Measured on the first call (about 0.3 s), the
 * same afterwards; 0 where there was no memory to measure with (a warning is logged). */
NUMOE_API double numoe_engine_bandwidth(numoe_engine *engine);

/* Changes the mode, from the next step on; sessions stay as they are. A KV cache is copied to where
 * the mode wants it when its session is evaluated next. NUMOE_E_INPUT where a node lacks weights for
 * THROUGHPUT, NUMOE_E_MEMORY where there is no room for the nodes' buffers: the mode stays. */
NUMOE_API numoe_status numoe_engine_set_mode(numoe_engine *engine, numoe_mode mode,
                                             numoe_error *err);
/* The mode of the last step: never AUTO. */
NUMOE_API numoe_mode numoe_engine_mode(const numoe_engine *engine);

/* What is planned for: an engine's parameters, or what is not here. The plan's probe, of the model's own
 * types, takes about a second and is not remembered; engine.no_probe leaves it out as well. */
typedef struct numoe_plan_params {
    numoe_engine_params engine;
    const char *geometry; /* instead of engine.model_path: "deepseek-v3", or the beginning of a name */
    const char *type;     /* of its weights; NULL: "Q4_K_M" */
    const char *gpu;      /* NULL, or one that would be there: "24GiB,1008GB/s,pcie4x16" */
} numoe_plan_params;

/* Writes to `out` how numoe_engine_open() would place the model, and why: in words, or as
 * JSON that numoe_engine_params.plan takes. In words also what every other placement would cost.
 * Reads no weights. */
NUMOE_API numoe_status numoe_plan_print(const numoe_plan_params *params, FILE *out, bool json,
                                        numoe_error *err);

/* What a node's workers have read of matrices since the engine was opened, counted where they were
 * read: from the node's own memory, from that of other nodes, and from the file. */
typedef struct numoe_traffic {
    unsigned os_node; /* the kernel's number */
    uint64_t local_bytes, remote_bytes;
    uint64_t file_bytes; /* of experts that stay in the file */
} numoe_traffic;

/* Up to n_node of info; false for an index beyond. */
NUMOE_API bool numoe_engine_traffic(const numoe_engine *engine, unsigned index,
                                    numoe_traffic *traffic);

/* Where the pages of a node's weights really are, asked of the kernel. */
typedef struct numoe_pages {
    unsigned os_node;
    uint64_t n_local, n_remote; /* on the node, and elsewhere; n_remote should be 0 */
    uint64_t n_absent;          /* in no memory at the moment */
    bool sampled;               /* only some pages of large weights were looked at */
    bool known;                 /* false: the kernel does not tell, or the topology is not this machine */
    const char *cause;          /* why some are elsewhere, as far as the system tells; NULL: none are */
} numoe_pages;

NUMOE_API bool numoe_engine_pages(const numoe_engine *engine, unsigned index, numoe_pages *pages);

/* Writes how often each expert was chosen since the engine was opened, and the sums of its router
 * weights: a GGUF file. out is flushed and left open. */
NUMOE_API numoe_status numoe_engine_save_stats(const numoe_engine *engine, FILE *out,
                                               numoe_error *err);

/* What further copies of experts serve: how many there are of all (expert, layer) pairs, and how many
 * of the choices since the engine was opened were for those. */
typedef struct numoe_replicas {
    uint64_t n_expert, n_copied;
    uint64_t n_choice, n_choice_copied; /* copied: at the time of the choice */
    /* Where copies are made while the model runs, by what was counted or with adapt: */
    uint64_t n_place;           /* copies that there is memory for; 0: they stay as planned */
    uint64_t n_token, n_token_first; /* counted so far, and before the first copies */
    uint64_t n_made, n_swapped; /* copies made; of them in place of others */
    uint64_t copied_bytes;      /* of weights, between nodes: numoe_traffic has none of it */
    double copy_seconds;        /* that steps waited for it */
} numoe_replicas;

NUMOE_API numoe_replicas numoe_engine_replicas(const numoe_engine *engine);

/* ------------------------------------------------------------------ profile */

/* Where the time of an engine goes, from now on, or anew: some 30 ns for each change of stage of each
 * worker. trace: single spans are kept too, as many as there is room for (4 million). */
NUMOE_API numoe_status numoe_profile_start(numoe_engine *engine, bool trace, numoe_error *err);
NUMOE_API void numoe_profile_stop(numoe_engine *engine); /* forgets what was measured */

typedef struct numoe_profile_row {
    const char *name; /* of the stage */
    double seconds;   /* mean of all workers; the rows add up to the time in steps and sampling */
    uint64_t bytes;   /* of matrices that all workers read then */
} numoe_profile_row;

/* Row index of the profile; false behind the last one, or where none was started. */
NUMOE_API bool numoe_profile_get(const numoe_engine *engine, unsigned index, numoe_profile_row *row);

/* The rows, what each layer and each node took; wall_seconds, measured by who called, is what parts are
 * given of. Text or JSON. */
NUMOE_API numoe_status numoe_profile_print(numoe_engine *engine, double wall_seconds,
                                           numoe_report_format format, FILE *out,
                                           numoe_error *err);
/* All spans as Chrome's trace events (JSON), which Perfetto opens: a process for each node, a thread
 * for each worker. */
NUMOE_API numoe_status numoe_trace_write(const numoe_engine *engine, FILE *out, numoe_error *err);

/* ------------------------------------------------------------------ expert statistics */

/* How often experts were chosen, with which router weights, and which together. */
typedef struct numoe_stats numoe_stats;

/* A file of numoe_stats_save() or numoe_engine_save_stats(), or an importance matrix of llama.cpp.
 * *stats: numoe_stats_free(). */
NUMOE_API numoe_status numoe_stats_open(const char *path, numoe_stats **stats, numoe_error *err);
/* Empty ones for the engine's model. */
NUMOE_API numoe_status numoe_stats_new(const numoe_engine *engine, numoe_stats **stats,
                                       numoe_error *err);
NUMOE_API void numoe_stats_free(numoe_stats *stats); /* NULL is allowed */

/* Counts one token's choice in a layer: a numoe_route_fn whose arg is the numoe_stats. */
NUMOE_API void numoe_stats_count(void *stats, unsigned layer, size_t position, unsigned k,
                                 const int32_t *ids, const float *weights);
/* Adds; NUMOE_E_INPUT where they are of models with other layers or experts. */
NUMOE_API numoe_status numoe_stats_merge(numoe_stats *stats, const numoe_stats *more,
                                         numoe_error *err);
NUMOE_API numoe_status numoe_stats_save(const numoe_stats *stats, FILE *out, numoe_error *err);

typedef enum numoe_stats_format {
    NUMOE_STATS_TABLE,   /* a line for each layer: coverage, imbalance, the commonest pair */
    NUMOE_STATS_EXPERTS, /* CSV: layer, expert, count, share, mean router weight */
    NUMOE_STATS_CURVE,   /* CSV: the hottest N % of the experts serve M % of the choices */
    NUMOE_STATS_PAIRS,   /* CSV: experts that were chosen together */
    NUMOE_STATS_SVG,     /* a heat map, layer by expert */
} numoe_stats_format;

NUMOE_API numoe_status numoe_stats_print(const numoe_stats *stats, numoe_stats_format format,
                                         FILE *out, numoe_error *err);

/* ------------------------------------------------------------------ text */

enum {
    NUMOE_TOKENIZE_BOS = 1,     /* add BOS (and EOS) where the model's vocabulary says so */
    NUMOE_TOKENIZE_SPECIAL = 2, /* recognise special tokens, e.g. <｜User｜>, in the text */
};

/* Text to ids. Writes up to `cap` ids and sets *n to the number needed: if *n > cap, call again with
 * more room (status is still NUMOE_OK; ids is then incomplete). Invalid UTF-8 is tokenized bytewise. */
NUMOE_API numoe_status numoe_tokenize(const numoe_engine *engine, const char *text,
                                      size_t text_bytes, unsigned flags, int32_t *ids, size_t cap,
                                      size_t *n, numoe_error *err);

/* The bytes of one token, not NUL-terminated and not always whole UTF-8; *n_bytes is set to their
 * number. Control tokens give "" unless `special`. NULL for an id out of range. */
NUMOE_API const char *numoe_token_text(const numoe_engine *engine, int32_t id, bool special,
                                       size_t *n_bytes);

/* The token that begins a text in this model's vocabulary; -1 if it has none. */
NUMOE_API int32_t numoe_token_bos(const numoe_engine *engine);

/* True for EOS, end-of-turn and the like. */
NUMOE_API bool numoe_token_is_eog(const numoe_engine *engine, int32_t id);

typedef struct numoe_message {
    const char *role;    /* "system", "user", "assistant" */
    const char *content;
} numoe_message;

/* Renders messages with the model's chat template (Jinja), or the one named when the engine was
 * opened; with `add_generation_prompt` the text ends where the assistant's answer begins. *text is
 * NUL-terminated, owned by the caller: free(). Tokenize it with NUMOE_TOKENIZE_SPECIAL only: it holds
 * BOS itself where the template has one. NUMOE_E_FILE_MODEL if the model has no template,
 * NUMOE_E_SUPPORT if it uses what is not supported, NUMOE_E_INPUT if it refuses these messages. */
NUMOE_API numoe_status numoe_chat_render(const numoe_engine *engine, const numoe_message *messages,
                                         size_t n_message, bool add_generation_prompt, char **text,
                                         numoe_error *err);

/* The same for everything else that templates know, as JSON: an object with "messages", a list of
 * objects as chat APIs have them (role; content, a string or a list of {"type": "text", "text": ...},
 * which are joined by newlines for templates that want a string; tool_calls,
 * tool_call_id, name, reasoning_content ...), and what the template is to know besides: "tools",
 * "documents", "enable_thinking", "reasoning_effort" ... "add_generation_prompt" is true where it is
 * missing. "chat_template" names another template for this time; "now_seconds" (since 1970) is what
 * templates that show a date take for the present. */
NUMOE_API numoe_status numoe_chat_render_json(const numoe_engine *engine, const char *json,
                                              size_t json_bytes, char **text, numoe_error *err);

/* Names of built-in templates, i = 0, 1 ...; NULL behind the last one. Any thread. */
NUMOE_API const char *numoe_chat_template_name(size_t i);

/* ------------------------------------------------------------------ sessions */

/* n_ctx 0: the model's own context; NUMOE_E_INPUT_CONTEXT for more than that. Memory for the KV cache
 * is taken as the sequence grows. */
NUMOE_API numoe_status numoe_session_new(numoe_engine *engine, unsigned n_ctx,
                                         numoe_session **session, numoe_error *err);
NUMOE_API void numoe_session_free(numoe_session *session); /* NULL is allowed */

/* Queues ids after those already there; copied. NUMOE_E_INPUT_CONTEXT if they would not fit,
 * NUMOE_E_INPUT for an id outside the vocabulary. Nothing is evaluated yet. */
NUMOE_API numoe_status numoe_session_append(numoe_session *session, const int32_t *ids, size_t n,
                                            numoe_error *err);

/* Forgets everything from position n on (pending tokens too). Where evaluated tokens are forgotten
 * there are no logits until something is evaluated again. */
NUMOE_API void numoe_session_truncate(numoe_session *session, size_t n);

/* Lets session begin with the first n tokens of `from`, another session of the same engine that has
 * evaluated them: their KV cache is shared as long as neither changes it, and nothing is evaluated
 * again. Nothing of session is evaluated yet; tokens that it has must begin with these. Results are
 * the same to the bit. NUMOE_E_STATE where a condition is not met. */
NUMOE_API numoe_status numoe_session_share(numoe_session *session, const numoe_session *from,
                                           size_t n, numoe_error *err);

NUMOE_API size_t numoe_session_length(const numoe_session *session);  /* evaluated and pending */
NUMOE_API size_t numoe_session_pending(const numoe_session *session); /* appended, not evaluated */
NUMOE_API unsigned numoe_session_context(const numoe_session *session);
NUMOE_API const int32_t *numoe_session_tokens(const numoe_session *session); /* [length] */

/* Asks a running numoe_step() or numoe_generate() on this session, or else the next one, to return
 * before it evaluates anything more: numoe_step() with NUMOE_E_STATE_CANCELLED, numoe_generate() with
 * NUMOE_FINISH_CANCEL. One request stops one call; the session stays usable. Any thread,
 * async-signal-safe. */
NUMOE_API void numoe_session_cancel(numoe_session *session);

/* Logits of every evaluated position, in order: logits [V], owned by the engine, valid in the call. */
typedef void (*numoe_logits_fn)(void *arg, size_t position, const float *logits);
NUMOE_API void numoe_session_on_logits(numoe_session *session, numoe_logits_fn fn, void *arg);

/* Routing of every evaluated position and MoE layer: ids [k] and weights [k] by falling selection
 * score, weights as multiplied with the experts' outputs. */
typedef void (*numoe_route_fn)(void *arg, unsigned layer, size_t position, unsigned k,
                               const int32_t *ids, const float *weights);
NUMOE_API void numoe_session_on_route(numoe_session *session, numoe_route_fn fn, void *arg);

/* Evaluates up to chunk_tokens pending tokens of the given sessions in one pass over the weights
 * (decode tokens first, then prompts in order); in THROUGHPUT mode so many on each node. Call it until nothing is pending. The result of a
 * sequence does not depend on what else is in the batch, on chunking, or on the number of workers. */
NUMOE_API numoe_status numoe_step(numoe_engine *engine, numoe_session *const *sessions,
                                  size_t n_session, numoe_error *err);

/* Logits [V] after the last token; NULL while tokens are pending, none were evaluated, or the last
 * evaluated one was forgotten. Owned by the session, valid until its next step. */
NUMOE_API const float *numoe_session_logits(const numoe_session *session);

/* ------------------------------------------------------------------ sampling, generation */

/* A token is chosen in this order: repetition penalty (a positive logit is divided by it, a negative
 * one multiplied), top-k, top-p over what top-k left, min-p, then a draw from what remains at the
 * given temperature. */
typedef struct numoe_sampler_params {
    float temperature;     /* 0: greedy (lowest id wins ties) */
    float top_p;           /* 1: off */
    float min_p;           /* 0: off */
    float repeat_penalty;  /* 1: off */
    unsigned top_k;        /* 0: off */
    unsigned repeat_last;  /* tokens the penalty looks back on */
    uint64_t seed;
} numoe_sampler_params;

typedef struct numoe_sampler numoe_sampler;

NUMOE_API void numoe_sampler_params_init(numoe_sampler_params *params); /* greedy, nothing on */
/* For logits of n_vocab tokens. NUMOE_E_INPUT names the parameter that is out of range. */
NUMOE_API numoe_status numoe_sampler_new(const numoe_sampler_params *params, size_t n_vocab,
                                         numoe_sampler **sampler, numoe_error *err);
NUMOE_API void numoe_sampler_free(numoe_sampler *sampler); /* NULL is allowed */

/* Picks a token from logits [n_vocab]; `history` [n_history] are the tokens so far. Deterministic
 * for a given seed and sequence of calls, and the same on every machine. -1 if a logit is NaN or
 * +infinity, or none is above -infinity: then there is nothing to choose by. */
NUMOE_API int32_t numoe_sampler_pick(numoe_sampler *sampler, const float *logits,
                                     const int32_t *history, size_t n_history);

typedef enum numoe_finish {
    NUMOE_FINISH_EOG,     /* the model ended its turn */
    NUMOE_FINISH_STOP,    /* a stop string was met; it is not part of the text */
    NUMOE_FINISH_LENGTH,  /* max_tokens reached */
    NUMOE_FINISH_CONTEXT, /* the context is full */
    NUMOE_FINISH_CANCEL,  /* numoe_session_cancel(), or the callback returned false */
} numoe_finish;

/* A piece of text, whole UTF-8 sequences only; return false to stop. */
typedef bool (*numoe_text_fn)(void *arg, const char *text, size_t text_bytes);
/* Prompt progress: tokens done of total. */
typedef void (*numoe_prompt_fn)(void *arg, size_t done, size_t total);

typedef struct numoe_generate_params {
    size_t max_tokens;        /* 0: until the context is full */
    const char *const *stop;  /* stop strings, n_stop of them */
    size_t n_stop;
    bool special;             /* show control tokens in the text */
    bool ignore_eog;
    numoe_text_fn on_text;    /* may be NULL */
    numoe_prompt_fn on_prompt;
    void *arg;
} numoe_generate_params;

typedef struct numoe_generate_result {
    numoe_finish finish;
    size_t n_prompt, n_generated;      /* tokens evaluated before, and sampled */
    double prompt_seconds, generate_seconds;
    uint64_t generate_bytes;           /* of weights that the workers read in generate_seconds; a
                                          GPU's own reads are not among them */
} numoe_generate_result;

/* Evaluates what is pending, then samples and evaluates until a reason to finish. The sampled ids
 * are appended to the session, the one that ended the turn too (the last one may still be pending).
 * Text that may be the beginning of a stop string is held back until that is decided. */
NUMOE_API numoe_status numoe_generate(numoe_session *session, numoe_sampler *sampler,
                                      const numoe_generate_params *params,
                                      numoe_generate_result *result, numoe_error *err);

/* ------------------------------------------------------------------ many generations */

/* A batch generates for many requests at a time, as many as there is memory for: requests begin as
 * others end, and prompts that begin alike are evaluated once as far as they do. What is generated
 * for a request does not depend on the others. One thread, the engine's. */
typedef struct numoe_batch numoe_batch;

typedef struct numoe_batch_params {
    unsigned n_ctx;         /* most tokens of a request, its prompt included; 0: the model's own */
    unsigned max_sequences; /* at a time; 0: 128; never more than the engine's chunk_tokens */
    uint64_t kv_bytes;      /* memory for their KV caches (one always runs); 0: most of what is free */
} numoe_batch_params;

#define NUMOE_MAX_TOP_LOGPROBS 20

/* All of it is copied. */
typedef struct numoe_request {
    uint64_t tag; /* the caller's, given back with the result */
    const int32_t *ids;
    size_t n_id;       /* the prompt, at least one token */
    size_t max_tokens; /* 0: until the context is full */
    numoe_sampler_params sampler;
    const char *const *stop; /* stop strings, n_stop of them */
    size_t n_stop;
    bool ignore_eog;
    bool want_logprobs;
    unsigned n_top_logprob; /* the most likely tokens of each position; at most the constant above */
} numoe_request;

typedef struct numoe_logprob {
    int32_t id;
    float logprob; /* natural, by the model alone: before penalty, temperature and filters */
} numoe_logprob;

typedef struct numoe_completion {
    uint64_t tag;
    numoe_status status; /* not OK: this request failed, by numoe_completion.error */
    numoe_error error;
    numoe_finish finish; /* never NUMOE_FINISH_CANCEL */
    const char *text;    /* NUL-terminated */
    size_t text_bytes;
    size_t n_prompt, n_shared; /* tokens of the prompt, and how many were taken from others */
    size_t n_generated;
    const int32_t *ids;           /* [n_generated], the one that ended the turn too */
    const numoe_logprob *logprob; /* [n_generated]; NULL where not asked for */
    const numoe_logprob *top;     /* [n_generated, n_top], the most likely first */
    unsigned n_top;
} numoe_completion;

typedef struct numoe_batch_info {
    size_t n_waiting, n_active;  /* requests without and with a place */
    uint64_t n_prompt, n_shared; /* prompt tokens evaluated, and taken from others, so far */
    uint64_t n_generated;
    uint64_t n_preempted; /* how often a request gave up its memory, to be evaluated again */
    uint64_t kv_bytes;    /* what may be used for KV caches */
} numoe_batch_info;

NUMOE_API numoe_status numoe_batch_new(numoe_engine *engine, const numoe_batch_params *params,
                                       numoe_batch **batch, numoe_error *err);
NUMOE_API void numoe_batch_free(numoe_batch *batch); /* NULL is allowed; what runs is dropped */

/* NUMOE_E_INPUT or NUMOE_E_INPUT_CONTEXT for a request that cannot be run. */
NUMOE_API numoe_status numoe_batch_submit(numoe_batch *batch, const numoe_request *request,
                                          numoe_error *err);

/* Gives waiting requests a place, evaluates one step and picks a token for each that is ready. What
 * fails for one request is in its completion; an error here concerns all. */
NUMOE_API numoe_status numoe_batch_step(numoe_batch *batch, numoe_error *err);

/* The next finished request, in the order in which they finished; false if there is none. What it
 * points to is valid until the next call of this function, or numoe_batch_free(). */
NUMOE_API bool numoe_batch_next(numoe_batch *batch, numoe_completion *completion);

NUMOE_API void numoe_batch_get_info(const numoe_batch *batch, numoe_batch_info *info);

/* ------------------------------------------------------------------ files */

/* Writes a description of a GGUF file to `out`: metadata, tensors by type with bytes, and
 * for a MoE model the active bytes per token. Needs no engine. */
NUMOE_API numoe_status numoe_inspect(const char *path, FILE *out, bool all_tensors, numoe_error *err);

/* ------------------------------------------------------------------ this machine */

/* Writes to `out` what a machine has, what of it would be used, and who forbids the rest.
 * topology as in numoe_engine_params. */
NUMOE_API numoe_status numoe_topo_report(const char *topology, numoe_report_format format, FILE *out,
                                         numoe_error *err);

/* Writes to `out` which settings of this machine and limits of this process cost speed,
 * and the commands that mend them. Changes nothing. There is no picture of it. */
NUMOE_API numoe_status numoe_doctor_report(numoe_report_format format, FILE *out, numoe_error *err);

/* ------------------------------------------------------------------ log */

typedef enum numoe_log_level {
    NUMOE_LOG_ERROR = 0, /* cannot go on */
    NUMOE_LOG_WARN,      /* goes on, worse */
    NUMOE_LOG_INFO,      /* what a person wants to know at start */
    NUMOE_LOG_DEBUG,
} numoe_log_level;

/* Receives every message at or below the level; line has no newline. Default: stderr, WARN, or what
 * the environment variable NUMOE_LOG says (error, warn, info, debug; numoe_engine_open() refuses
 * another word). fn NULL restores the default.
 * Call before opening engines. */
typedef void (*numoe_log_fn)(void *arg, numoe_log_level level, const char *line);
NUMOE_API void numoe_log_set(numoe_log_fn fn, void *arg, numoe_log_level level);

#ifdef __cplusplus
}
#endif
#endif
