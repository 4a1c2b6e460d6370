/* Special tokens in a text: control tokens where the caller asks for them, user-defined ones
 * always. They are sorted by text; a match narrows the range of candidates byte by byte, so its
 * cost depends on the length that matches and not on how many special tokens there are.
 */
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer-impl.h"

struct candidate {
    struct span text;
    int32_t id;
    bool user;
};

static int compare_candidates(const void *pa, const void *pb)
{
    const struct candidate *a = pa, *b = pb;
    int order = memcmp(a->text.data, b->text.data, MIN(a->text.len, b->text.len));

    if (order == 0) {
        order = (a->text.len > b->text.len) - (a->text.len < b->text.len);
    }
    if (order == 0) {
        order = b->user - a->user;
    }
    return order != 0 ? order : (a->id > b->id) - (a->id < b->id);
}

static bool is_candidate(const struct tokenizer *tok, size_t i)
{
    return tok->raw[i].len > 0 && (tok->type[i] == TOKEN_CONTROL || tok->type[i] == TOKEN_USER ||
                                   tok->type[i] == TOKEN_UNKNOWN);
}

static void index_first_bytes(struct specials *s, const struct span *raw)
{
    size_t i = 0;

    for (unsigned b = 0; b <= 256; b++) {
        while (i < s->n && (unsigned char)raw[s->id[i]].data[0] < b) {
            i++;
        }
        s->first[b] = (uint32_t)i;
    }
}

numoe_status specials_init(struct tokenizer *tok, numoe_error *err)
{
    struct specials *s = &tok->specials;
    struct candidate *found;
    size_t n = 0;

    for (size_t i = 0; i < tok->n_vocab; i++) {
        n += is_candidate(tok, i);
    }
    FORWARD_IF(mem_new(&s->id, n, sizeof(*s->id), "special tokens", err));
    FORWARD_IF(mem_new(&found, n, sizeof(*found), "special tokens", err));
    for (size_t i = 0; i < tok->n_vocab; i++) {
        if (is_candidate(tok, i)) {
            found[s->n++] = (struct candidate){tok->raw[i], (int32_t)i, tok->type[i] == TOKEN_USER};
        }
    }
    qsort(found, s->n, sizeof(*found), compare_candidates);
    for (size_t i = 0; i < s->n; i++) {
        s->id[i] = found[i].id;
    }
    mem_free(found);
    index_first_bytes(s, tok->raw);
    return NUMOE_OK;
}

void specials_fini(struct tokenizer *tok)
{
    mem_free(tok->specials.id);
}

/* The first candidate in [lo, hi) whose byte at depth is not below c. All agree on what is before
 * it, and all are longer than depth. */
static size_t lower_bound(const struct tokenizer *tok, size_t lo, size_t hi, size_t depth, int c)
{
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if ((unsigned char)tok->raw[tok->specials.id[mid]].data[depth] < c) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

int32_t specials_match(const struct tokenizer *tok, const char *text, size_t n, bool all)
{
    const struct specials *s = &tok->specials;
    int c = (unsigned char)text[0];
    size_t lo = s->first[c], hi = s->first[c + 1];
    int32_t best = -1;

    for (size_t depth = 1; lo < hi; depth++) {
        /* Those that end here come first. */
        if (tok->raw[s->id[lo]].len == depth) {
            if (all || tok->type[s->id[lo]] == TOKEN_USER) {
                best = s->id[lo];
            }
            while (lo < hi && tok->raw[s->id[lo]].len == depth) {
                lo++;
            }
        }
        if (depth == n) {
            break;
        }
        c = (unsigned char)text[depth];
        lo = lower_bound(tok, lo, hi, depth, c);
        hi = lower_bound(tok, lo, hi, depth, c + 1);
    }
    return best;
}
