/* What the tokenizer's own files share: the vocabulary as it lies in memory and the steps of
 * encoding. Users of the tokenizer include model/tokenizer.h only.
 */
#ifndef NUMOE_MODEL_TOKENIZER_IMPL_H
#define NUMOE_MODEL_TOKENIZER_IMPL_H

#include "model/tokenizer.h"

enum vocab_kind { VOCAB_BPE, VOCAB_SPM };

/* Values as in tokenizer.ggml.token_type. */
enum token_type {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN,
    TOKEN_CONTROL,
    TOKEN_USER, /* added by a person: matched in text before anything else */
    TOKEN_UNUSED,
    TOKEN_BYTE, /* "<0x0A>" */
};

struct span {
    const char *data;
    size_t len;
};

/* Texts to ids: open addressing over an array of texts that lives elsewhere. */
struct span_map {
    const struct span *key; /* [id] */
    uint32_t *slot;         /* id + 1, 0 where free */
    uint32_t mask;
};

numoe_status span_map_init(struct span_map *m, const struct span *key, size_t n, numoe_error *err);
void span_map_fini(struct span_map *m);
void span_map_add(struct span_map *m, int32_t id); /* the first of equal texts stays */
int32_t span_map_find(const struct span_map *m, const char *text, size_t n); /* -1: absent */

/* A pair of neighbours that becomes one token; the lowest rank goes first. */
struct merge {
    int32_t left, right; /* left -1: free slot */
    uint32_t rank;
    int32_t id;
};

struct merge_table {
    struct merge *slot;
    uint64_t mask;
};

struct specials {
    int32_t *id; /* by text, user-defined before others of the same text, then by id */
    size_t n;
    uint32_t first[257]; /* id[first[b]] is the first one that starts with byte b */
};

struct pre;

struct tokenizer {
    enum vocab_kind kind;
    size_t n_vocab;
    size_t n_row;      /* rows of the embedding matrix where it is longer, else n_vocab */
    struct span *raw;  /* [n_vocab] as in the file */
    struct span *text; /* [n_vocab] the bytes that a token stands for */
    uint8_t *type;     /* [n_vocab] enum token_type */
    bool *eog;         /* [n_vocab] */
    char *bytes;       /* what raw and text point to */
    struct span_map by_raw;
    /* What merging can produce: BPE by text, SentencePiece by raw; no control tokens. */
    struct span_map by_piece;
    size_t max_piece_bytes;
    int32_t byte_id[256]; /* the token of a lone byte; unk or -1 where the vocabulary has none */
    int32_t bos, eos, unk;
    bool add_bos, add_eos, add_space_prefix;
    struct specials specials;
    struct pre *pre;           /* BPE */
    struct merge_table merges; /* BPE */
    float *score;              /* SentencePiece, [n_vocab], no NaN */
};

/* Smallest first; keys are unique enough that order among equals does not matter. */
struct key_heap {
    uint64_t *key;
    size_t n, cap;
};
numoe_status key_heap_push(struct key_heap *h, uint64_t key, numoe_error *err);
bool key_heap_pop(struct key_heap *h, uint64_t *key);

/* A part of the text that is not merged any more, or not yet. */
struct symbol {
    int32_t id;         /* BPE; SYMBOL_DEAD once merged into its left neighbour */
    uint32_t pos, len;  /* SentencePiece: bytes in the text; len 0 once merged */
    int32_t prev, next; /* -1 at the ends */
};
enum { SYMBOL_DEAD = -2 };

/* Where the pieces of a text end, in rising order; the last is the text's length. */
struct cuts {
    size_t *end;
    size_t n, cap;
};

/* One call of tokenizer_encode(). */
struct encoding {
    const struct tokenizer *tok;
    int32_t *id;
    size_t n, cap;
    struct symbol *symbol;
    size_t symbol_cap;
    struct key_heap heap;
    void *match; /* pcre2_match_data */
    struct cuts cuts, cuts_next;
    struct strbuf text; /* SentencePiece: with spaces escaped; BPE: normalised */
};

numoe_status encoding_push(struct encoding *e, int32_t id, numoe_error *err);  /* -1: nothing */
numoe_status encoding_symbols(struct encoding *e, size_t n, numoe_error *err); /* room for n */

/* tokenizer-bpe.c, tokenizer-spm.c: the part of the vocabulary that only they use, and the ids of a
 * text without special tokens. */
numoe_status bpe_open(struct tokenizer *tok, const struct gguf *g, numoe_error *err);
void bpe_close(struct tokenizer *tok);
numoe_status bpe_encode(struct encoding *e, const char *text, size_t n, numoe_error *err);
numoe_status spm_open(struct tokenizer *tok, const struct gguf *g, numoe_error *err);
void spm_close(struct tokenizer *tok);
numoe_status spm_encode(struct encoding *e, const char *text, size_t n, numoe_error *err);

/* tokenizer-special.c */
numoe_status specials_init(struct tokenizer *tok, numoe_error *err);
void specials_fini(struct tokenizer *tok);
/* The longest special token at the start of text; -1: none. Without `all`, user-defined ones only.
 */
int32_t specials_match(const struct tokenizer *tok, const char *text, size_t n, bool all);

/* tokenizer-pre.c: pre-tokenizers by the names that GGUF files use. */
numoe_status pre_open(const char *name, size_t len, struct pre **out, numoe_error *err);
void pre_close(struct pre *pre);
bool pre_adds_bos(const struct pre *pre);          /* where the file does not say */
bool pre_takes_whole_words(const struct pre *pre); /* a word that is a token is not split */
bool pre_normalizes(const struct pre *pre);        /* text is brought to NFC first */
/* Cuts valid UTF-8 text into words: e->cuts. */
numoe_status pre_split(const struct pre *pre, struct encoding *e, const char *text, size_t n,
                       numoe_error *err);
void pre_fini_match(void *match);

#endif
