/* Normalisation to NFC as Unicode's annex 15 defines it: decompose, put marks in canonical order,
 * compose. Nothing below U+0300 needs a look, so most texts cost one scan. Hangul syllables are
 * computed, everything else stands in nfc-table.h.
 */
#include "model/nfc.h"

#include <stdlib.h>

#include "base/utf8.h"

/* Characters that may change or move; ccc is the canonical combining class. */
struct nfc_class {
    uint32_t first, last;
    uint8_t ccc;
};

struct nfc_parts {
    uint32_t whole, first, second; /* second 0: a singleton */
};

struct nfc_pair {
    uint32_t first, second, whole;
};

#include "model/nfc-table.h"

enum {
    FIRST_CHANGING = 0x300,
    HANGUL_S = 0xac00,
    HANGUL_L = 0x1100,
    HANGUL_V = 0x1161,
    HANGUL_T = 0x11a7, /* one before the first trailing consonant: 0 means none */
    HANGUL_N_L = 19,
    HANGUL_N_V = 21,
    HANGUL_N_T = 28,
    HANGUL_N_S = HANGUL_N_L * HANGUL_N_V * HANGUL_N_T,
};

struct mark {
    uint32_t code;
    uint8_t ccc;
};

struct marks {
    struct mark *at;
    size_t n, cap;
};

static int compare_class(const void *key, const void *entry)
{
    uint32_t c = *(const uint32_t *)key;
    const struct nfc_class *e = entry;
    return c < e->first ? -1 : c > e->last;
}

static const struct nfc_class *find_class(uint32_t c)
{
    return c < FIRST_CHANGING
               ? NULL
               : bsearch(&c, classes, ARRAY_LEN(classes), sizeof(classes[0]), compare_class);
}

static int compare_parts(const void *key, const void *entry)
{
    uint32_t c = *(const uint32_t *)key;
    const struct nfc_parts *e = entry;
    return c < e->whole ? -1 : c > e->whole;
}

static int compare_pair(const void *key, const void *entry)
{
    const struct nfc_pair *k = key, *e = entry;
    if (k->first != e->first) {
        return k->first < e->first ? -1 : 1;
    }
    return k->second < e->second ? -1 : k->second > e->second;
}

/* The character that two make; 0: none. */
static uint32_t compose(uint32_t a, uint32_t b)
{
    if (a - HANGUL_L < HANGUL_N_L && b - HANGUL_V < HANGUL_N_V) {
        return HANGUL_S + ((a - HANGUL_L) * HANGUL_N_V + b - HANGUL_V) * HANGUL_N_T;
    }
    if (a - HANGUL_S < HANGUL_N_S && (a - HANGUL_S) % HANGUL_N_T == 0 &&
        b - HANGUL_T - 1 < HANGUL_N_T - 1) {
        return a + b - HANGUL_T;
    }
    struct nfc_pair key = {a, b, 0};
    const struct nfc_pair *found =
        bsearch(&key, pairs, ARRAY_LEN(pairs), sizeof(pairs[0]), compare_pair);
    return found == NULL ? 0 : found->whole;
}

static numoe_status push(struct marks *m, uint32_t c, numoe_error *err)
{
    const struct nfc_class *class = find_class(c);

    if (m->n == m->cap) {
        size_t cap = MAX(m->cap * 2, 256);
        FORWARD_IF(mem_grow(&m->at, cap, sizeof(*m->at), "text to normalise", err));
        m->cap = cap;
    }
    m->at[m->n++] = (struct mark){c, class == NULL ? 0 : class->ccc};
    return NUMOE_OK;
}

/* Pushes what c decomposes to, itself where it does not. */
static numoe_status decompose(struct marks *m, uint32_t c, numoe_error *err)
{
    uint32_t s = c - HANGUL_S;

    if (s < HANGUL_N_S) {
        FORWARD_IF(push(m, HANGUL_L + s / (HANGUL_N_V * HANGUL_N_T), err));
        FORWARD_IF(push(m, HANGUL_V + s / HANGUL_N_T % HANGUL_N_V, err));
        return s % HANGUL_N_T == 0 ? NUMOE_OK : push(m, HANGUL_T + s % HANGUL_N_T, err);
    }
    const struct nfc_parts *p =
        c < 0x80 ? NULL : bsearch(&c, parts, ARRAY_LEN(parts), sizeof(parts[0]), compare_parts);
    if (p == NULL) {
        return push(m, c, err);
    }
    FORWARD_IF(decompose(m, p->first, err)); /* the table is at most four deep */
    return p->second == 0 ? NUMOE_OK : decompose(m, p->second, err);
}

static int compare_marks(const void *pa, const void *pb)
{
    const struct mark *a = *(const struct mark *const *)pa, *b = *(const struct mark *const *)pb;
    if (a->ccc != b->ccc) {
        return a->ccc < b->ccc ? -1 : 1;
    }
    return a < b ? -1 : a > b; /* where they stand: the order among equals stays */
}

/* Sorts a run of marks by class, keeping the order of equals: by insertion where it is short, as
 * all real ones are. */
static numoe_status sort_run(struct mark *run, size_t n, numoe_error *err)
{
    if (n <= 32) {
        for (size_t i = 1; i < n; i++) {
            struct mark moving = run[i];
            size_t to = i;
            for (; to > 0 && run[to - 1].ccc > moving.ccc; to--) {
                run[to] = run[to - 1];
            }
            run[to] = moving;
        }
        return NUMOE_OK;
    }
    struct mark **order, *copy;
    FORWARD_IF(mem_new(&order, n, sizeof(*order) + sizeof(*copy), "combining marks", err));
    copy = (struct mark *)(order + n);
    for (size_t i = 0; i < n; i++) {
        order[i] = &run[i];
    }
    qsort(order, n, sizeof(*order), compare_marks);
    for (size_t i = 0; i < n; i++) {
        copy[i] = *order[i];
    }
    for (size_t i = 0; i < n; i++) {
        run[i] = copy[i];
    }
    mem_free(order);
    return NUMOE_OK;
}

static numoe_status reorder(struct marks *m, numoe_error *err)
{
    for (size_t i = 0; i < m->n;) {
        size_t end = i;
        while (end < m->n && m->at[end].ccc != 0) {
            end++;
        }
        FORWARD_IF(sort_run(m->at + i, end - i, err));
        i = end + 1;
    }
    return NUMOE_OK;
}

/* A character joins the last starter before it, unless one between them has the same class or a
 * higher one, or is a starter itself. */
static void recompose(struct marks *m)
{
    size_t n = 0, starter = SIZE_MAX;

    for (size_t i = 0; i < m->n; i++) {
        struct mark c = m->at[i];
        if (starter != SIZE_MAX) {
            bool next = n == starter + 1;
            bool blocked = !next && (m->at[n - 1].ccc >= c.ccc);
            uint32_t whole = blocked ? 0 : compose(m->at[starter].code, c.code);
            if (whole != 0) {
                m->at[starter].code = whole;
                continue;
            }
        }
        starter = c.ccc == 0 ? n : starter;
        m->at[n++] = c;
    }
    m->n = n;
}

bool nfc_is_normal(const char *text, size_t n)
{
    for (size_t i = 0; i < n;) {
        if ((unsigned char)text[i] < 0xcc) { /* U+0300 begins with it */
            i++;
            continue;
        }
        int len = utf8_length(text + i, n - i);
        if (find_class(utf8_decode(text + i, len)) != NULL) {
            return false;
        }
        i += (size_t)len;
    }
    return true;
}

static numoe_status normalise(struct marks *m, struct strbuf *out, const char *text, size_t n,
                              numoe_error *err)
{
    for (size_t i = 0; i < n;) {
        int len = utf8_length(text + i, n - i);
        FORWARD_IF(decompose(m, utf8_decode(text + i, len), err));
        i += (size_t)len;
    }
    FORWARD_IF(reorder(m, err));
    recompose(m);
    for (size_t i = 0; i < m->n; i++) {
        char bytes[4];
        int len = utf8_encode(m->at[i].code, bytes);
        FORWARD_IF(strbuf_append(out, bytes, (size_t)len, err));
    }
    return NUMOE_OK;
}

numoe_status nfc_append(struct strbuf *out, const char *text, size_t n, numoe_error *err)
{
    struct marks m = {0};
    numoe_status status = normalise(&m, out, text, n, err);

    mem_free(m.at);
    return status;
}
