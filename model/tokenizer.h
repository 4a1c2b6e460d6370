/* Text to token ids and back, from a GGUF file's vocabulary: byte-level BPE ("gpt2") and
 * SentencePiece BPE with byte fallback ("llama"). Pre-tokenizer patterns run on PCRE2 with UTF and
 * UCP. Immutable after opening: any thread (match data is per call).
 */
#ifndef NUMOE_MODEL_TOKENIZER_H
#define NUMOE_MODEL_TOKENIZER_H

#include "base/mem.h"
#include "model/gguf.h"

struct tokenizer;

numoe_status tokenizer_open(const struct gguf *g, struct tokenizer **out, numoe_error *err);
void tokenizer_close(struct tokenizer *tok);

/* flags: NUMOE_TOKENIZE_*. Invalid UTF-8 is tokenized bytewise. *ids is allocated: mem_free().
 * Works in O(n log n) for any text (a word of 1 MB included). What no token stands for becomes the
 * unknown token, or nothing where the vocabulary has none. Models whose own tokenizer brings text
 * to NFC (Qwen, OLMo) get it so: their ids do not give other forms back. */
numoe_status tokenizer_encode(const struct tokenizer *tok, const char *text, size_t text_bytes,
                              unsigned flags, int32_t **ids, size_t *n, numoe_error *err);

/* Bytes of one token; NULL if out of range; "" for control tokens unless special. Ids between the
 * vocabulary and a larger embedding matrix give "". */
const char *tokenizer_text(const struct tokenizer *tok, int32_t id, bool special, size_t *n_bytes);

bool tokenizer_is_eog(const struct tokenizer *tok, int32_t id);
unsigned tokenizer_n_vocab(const struct tokenizer *tok);
int32_t tokenizer_bos(const struct tokenizer *tok); /* -1: none */
int32_t tokenizer_eos(const struct tokenizer *tok);
int32_t tokenizer_find(const struct tokenizer *tok, const char *text); /* exact token, -1: none */

/* Streaming detokenizer: bytes of tokens go in, whole UTF-8 sequences come out; bytes that can
 * never become valid come out as U+FFFD; an unfinished sequence waits, and flush turns it into
 * U+FFFD. SentencePiece: the space before the first token is dropped where the vocabulary adds one;
 * set at_start to false after init when the text goes on from tokens that are not seen here. */
struct detokenizer {
    const struct tokenizer *tok;
    bool special, at_start;
    unsigned n_held;
    unsigned char held[4];
};
void detokenizer_init(struct detokenizer *d, const struct tokenizer *tok, bool special);
numoe_status detokenizer_push(struct detokenizer *d, int32_t id, struct strbuf *out,
                              numoe_error *err);
numoe_status detokenizer_flush(struct detokenizer *d, struct strbuf *out, numoe_error *err);

#endif
