/* Pre-tokenizers: the patterns that cut a text into words before byte-pair merging, by the names
 * that tokenizer.ggml.pre uses. A pre-tokenizer is a sequence of patterns; each cuts the pieces
 * that the one before it left: matches become pieces of their own, and so does what lies between
 * them.
 *
 * The patterns are those of the models' tokenizer.json files, in PCRE2's syntax. They are written
 * so that a match never needs more than a constant amount of stack and a scan of a text is linear:
 * only single characters are repeated, and classes are subtracted by negation instead of by
 * lookahead.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <string.h>

#include "base/log.h"
#include "model/tokenizer-impl.h"

/* Patterns break where they read best. */
/* clang-format off */

/* Unicode's White_Space, for use in a class. PCRE2's \s has U+180E besides. */
#define WS        "\\p{Z}\\t-\\r\\x{85}"
#define SPACE     "[" WS "]"
#define NOT_SPACE "[^" WS "]"

/* Runs of white space at the end of nearly every pattern: up to the last line break; all but the
 * last one, which belongs to the next word; the rest. */
#define SPACES       SPACE "+(?!" NOT_SPACE ")|" SPACE "+"
#define LINES_SPACES SPACE "*[\\r\\n]+|" SPACES

#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define GPT2        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" WS "\\p{L}\\p{N}]+|" SPACES
#define CL100K(digits)                                                                             \
    CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits                                            \
    "| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n]*|" LINES_SPACES

/* Words that break where small letters are followed by capitals: upper and lower are classes of
 * letters and marks that may start and end one. */
#define CASED(upper, lower, suffix)                                                                \
    "[^\\r\\n\\p{L}\\p{N}]?" upper "*" lower "+" suffix                                             \
    "|[^\\r\\n\\p{L}\\p{N}]?" upper "+" lower "*" suffix
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
/* Unicode's script Han; PCRE2 from 10.40 on takes \p{Han} to be the characters used with it too. */
#define HAN                                                                                        \
    "\\x{2e80}-\\x{2e99}\\x{2e9b}-\\x{2ef3}\\x{2f00}-\\x{2fd5}\\x{3005}\\x{3007}"                  \
    "\\x{3021}-\\x{3029}\\x{3038}-\\x{303b}\\x{3400}-\\x{4dbf}\\x{4e00}-\\x{9fff}"                 \
    "\\x{f900}-\\x{fa6d}\\x{fa70}-\\x{fad9}\\x{16fe2}\\x{16fe3}\\x{16ff0}\\x{16ff1}"               \
    "\\x{20000}-\\x{2a6df}\\x{2a700}-\\x{2b739}\\x{2b740}-\\x{2b81d}\\x{2b820}-\\x{2cea1}"         \
    "\\x{2ceb0}-\\x{2ebe0}\\x{2ebf0}-\\x{2ee5d}\\x{2f800}-\\x{2fa1d}\\x{30000}-\\x{3134a}"         \
    "\\x{31350}-\\x{323af}"
/* Upper and lower without Han: the complement of Han and of every other category. */
#define UPPER_NOT_HAN "[^" HAN "\\p{Ll}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}]"
#define LOWER_NOT_HAN "[^" HAN "\\p{Lu}\\p{Lt}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}]"

/* Alphabets with case as DeepSeek's first tokenizers list them. */
#define CASED_LETTERS                                                                              \
    "A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}"                 \
    "\\x{1c4}-\\x{293}\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}"         \
    "\\x{37f}\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}"                  \
    "\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}"    \
    "\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b}"                 \
    "\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}"                 \
    "\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}\\x{1f5d}"         \
    "\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{1fc4}"        \
    "\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}"                 \
    "\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{2115}"         \
    "\\x{2119}-\\x{211d}\\x{2124}\\x{2126}\\x{2128}\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}"         \
    "\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}\\x{214e}\\x{2183}\\x{2184}"                   \
    "\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}"                  \
    "\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}\\x{a771}-\\x{a787}"                 \
    "\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}"                 \
    "\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}"             \
    "\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}"         \
    "\\x{1e900}-\\x{1e943}"
#define DEEPSEEK_CJK "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"
#define DEEPSEEK_V3_WORDS                                                                          \
    "[!-/:-@\\[-`{-~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"                       \
    " ?[\\p{P}\\p{S}]+[\\r\\n]*|" LINES_SPACES

enum { PRE_MAX_PATTERN = 6 };

struct pre_rule {
    const char *names; /* separated by spaces; the first one is the best known */
    bool adds_bos;
    bool whole_words;
    bool normalizes;
    const char *pattern[PRE_MAX_PATTERN];
};

static const struct pre_rule rules[] = {
    {.names = "default", .pattern = {"[\\p{P}$+<=>^~|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
    {.names = "olmo", .normalizes = true, .pattern = {GPT2}},
    {.names = "gpt-2 mpt phi-2 jais gigachat exaone4 mellum a.x-4.0 trillion granite-docling",
     .pattern = {GPT2}},
    {.names = "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral lfm2",
     .adds_bos = true,
     .whole_words = true,
     .pattern = {CL100K("\\p{N}{1,3}")}},
    {.names = "dbrx smaug-bpe glm4 chatglm-bpe", .pattern = {CL100K("\\p{N}{1,3}")}},
    {.names = "qwen2 hunyuan", .normalizes = true, .pattern = {CL100K("\\p{N}")}},
    {.names = "deepseek-r1-qwen stablelm2 megrez solar-open grok-2", .pattern = {CL100K("\\p{N}")}},
    {.names = "qwen35",
     .normalizes = true,
     .pattern = {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}|"
                             " ?[^" WS "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" LINES_SPACES}},
    {.names = "deepseek-llm",
     .pattern = {"[\\r\\n]", SPACE "?[" CASED_LETTERS "]+",
                 SPACE "?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}"
                       "\\x{3000}-\\x{3002}]+",
                 "(?<!" SPACE ")" SPACE "+\\z", DEEPSEEK_CJK, "\\p{N}"}},
    {.names = "deepseek-coder",
     .pattern = {"[\\r\\n]", SPACE "?\\p{L}+", SPACE "?\\p{P}+", DEEPSEEK_CJK, "\\p{N}"}},
    {.names = "deepseek-v3 deepseek-r1 hunyuan-dense joyai-llm",
     .pattern = {"\\p{N}{1,3}", "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{30ff}]+", DEEPSEEK_V3_WORDS}},
    {.names = "gpt-4o llama4 minimax-m2",
     .whole_words = true,
     .pattern = {CASED(UPPER, LOWER, CONTRACTION "?")
                 "|\\p{N}{1,3}| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n/]*|" LINES_SPACES}},
    {.names = "tekken",
     .adds_bos = true,
     .whole_words = true,
     .pattern = {CASED(UPPER, LOWER, "")
                 "|\\p{N}| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n/]*|" LINES_SPACES}},
    {.names = "kimi-k2",
     .whole_words = true,
     .pattern = {"[" HAN "]+|" CASED(UPPER_NOT_HAN, LOWER_NOT_HAN, CONTRACTION "?")
                 "|\\p{N}{1,3}| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n]*|" LINES_SPACES}},
    {.names = "command-r", .normalizes = true, .pattern = {"\\p{N}", GPT2}},
    {.names = "refact starcoder smollm codeshell exaone minerva-7b", .pattern = {"\\p{N}", GPT2}},
    {.names = "falcon", .pattern = {"[\\p{P}$+<=>^~|`]+", GPT2, "[0-9][0-9][0-9]"}},
    {.names = "bailingmoe bailingmoe2 llada-moe",
     .pattern = {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}|"
                 " ?[^" WS "\\p{L}\\p{N}]++[\\r\\n]*|" SPACE "*[\\r\\n]|" SPACES}},
    {.names = "seed-coder",
     .pattern = {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
                             " ?[^" WS "\\p{L}\\p{N}]+|" LINES_SPACES}},
};
/* clang-format on */

struct pre {
    const struct pre_rule *rule;
    unsigned n_pattern;
    bool jit; /* all patterns; refused where the system forbids writable code */
    pcre2_code *code[PRE_MAX_PATTERN];
    pcre2_match_context *context;
};

static bool has_name(const char *names, const char *name, size_t len)
{
    while (*names != '\0') {
        size_t n = strcspn(names, " ");
        if (n == len && memcmp(names, name, n) == 0) {
            return true;
        }
        names += n;
        names += strspn(names, " ");
    }
    return false;
}

static numoe_status fail_unknown(const char *name, size_t len, numoe_error *err)
{
    struct strbuf known = {0};
    numoe_status status = NUMOE_OK;

    for (size_t i = 0; i < ARRAY_LEN(rules) && status == NUMOE_OK; i++) {
        status = strbuf_printf(&known, err, "%s%.*s", i == 0 ? "" : ", ",
                               (int)strcspn(rules[i].names, " "), rules[i].names);
    }
    if (status == NUMOE_OK) {
        status = status_fail(err, NUMOE_E_SUPPORT,
                             "pre-tokenizer \"%.*s\" (tokenizer.ggml.pre) is not supported; "
                             "supported are %s and the like",
                             (int)MIN(len, 40), name, known.data);
    }
    strbuf_fini(&known);
    return status;
}

static numoe_status compile(struct pre *pre, const char *pattern, numoe_error *err)
{
    int error = 0;
    PCRE2_SIZE offset = 0;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                     PCRE2_UTF | PCRE2_UCP, &error, &offset, NULL);

    if (code == NULL) {
        char text[128] = "";
        pcre2_get_error_message(error, (PCRE2_UCHAR *)text, sizeof(text));
        return status_fail(err, NUMOE_E_SUPPORT,
                           "pre-tokenizer \"%.*s\": this PCRE2 does not take its pattern at "
                           "character %zu: %s",
                           (int)strcspn(pre->rule->names, " "), pre->rule->names, offset, text);
    }
    pre->code[pre->n_pattern++] = code;
    pre->jit = pre->jit && pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
    return NUMOE_OK;
}

void pre_close(struct pre *pre)
{
    if (pre == NULL) {
        return;
    }
    for (unsigned i = 0; i < pre->n_pattern; i++) {
        pcre2_code_free(pre->code[i]);
    }
    pcre2_match_context_free(pre->context);
    mem_free(pre);
}

numoe_status pre_open(const char *name, size_t len, struct pre **out, numoe_error *err)
{
    const struct pre_rule *rule = NULL;
    struct pre *pre;
    numoe_status status;

    for (size_t i = 0; i < ARRAY_LEN(rules) && rule == NULL; i++) {
        rule = has_name(rules[i].names, name, len) ? &rules[i] : NULL;
    }
    if (rule == NULL) {
        return fail_unknown(name, len, err);
    }
    FORWARD_IF(mem_new(&pre, 1, sizeof(*pre), "pre-tokenizer", err));
    pre->rule = rule;
    pre->jit = true;
    pre->context = pcre2_match_context_create(NULL);
    if (pre->context == NULL) {
        status = status_fail(err, NUMOE_E_MEMORY, "no memory for the pre-tokenizer");
        goto fail;
    }
    /* The interpreter counts each character it gives back; the patterns are linear, so a long text
     * is no reason to stop. */
    pcre2_set_match_limit(pre->context, UINT32_MAX);
    for (unsigned i = 0; i < PRE_MAX_PATTERN && rule->pattern[i] != NULL; i++) {
        status = compile(pre, rule->pattern[i], err);
        if (status != NUMOE_OK) {
            goto fail;
        }
    }
    if (!pre->jit) {
        log_debug("pre-tokenizer runs without the PCRE2 JIT compiler: slower, same result");
    }
    *out = pre;
    return NUMOE_OK;
fail:
    pre_close(pre);
    return status;
}

bool pre_adds_bos(const struct pre *pre)
{
    return pre->rule->adds_bos;
}

bool pre_normalizes(const struct pre *pre)
{
    return pre->rule->normalizes;
}

bool pre_takes_whole_words(const struct pre *pre)
{
    return pre->rule->whole_words;
}

static numoe_status cuts_add(struct cuts *c, size_t end, numoe_error *err)
{
    if (c->n == c->cap) {
        size_t cap = MAX(c->cap * 2, 256);
        FORWARD_IF(mem_grow(&c->end, cap, sizeof(*c->end), "words of the text", err));
        c->cap = cap;
    }
    c->end[c->n++] = end;
    return NUMOE_OK;
}

/* PCRE2's answer for the first match at or after `from`; the JIT's stack is small, the
 * interpreter's is the heap. */
static int find_match(const struct pre *pre, unsigned i, const char *text, size_t n, size_t from,
                      pcre2_match_data *match)
{
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;

    if (pre->jit) {
        rc = pcre2_jit_match(pre->code[i], (PCRE2_SPTR)text, n, from, 0, match, pre->context);
    }
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
        rc = pcre2_match(pre->code[i], (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                         match, pre->context);
    }
    return rc;
}

/* Cuts the piece [begin, begin + n) with pattern i, adding to e->cuts_next. */
static numoe_status cut_piece(const struct pre *pre, unsigned i, struct encoding *e,
                              const char *text, size_t begin, size_t n, numoe_error *err)
{
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(e->match);
    size_t done = 0;

    while (done < n) {
        int rc = find_match(pre, i, text + begin, n, done, e->match);
        if (rc == PCRE2_ERROR_NOMATCH) {
            break;
        }
        if (rc < 0) {
            char why[128] = "";
            pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof(why));
            return status_fail(err, rc == PCRE2_ERROR_NOMEMORY ? NUMOE_E_MEMORY : NUMOE_E_SUPPORT,
                               "pre-tokenizer: PCRE2 cannot search a text of %zu bytes: %s", n,
                               why);
        }
        if (range[0] > done) {
            FORWARD_IF(cuts_add(&e->cuts_next, begin + range[0], err));
        }
        FORWARD_IF(cuts_add(&e->cuts_next, begin + range[1], err));
        done = range[1];
    }
    return done < n ? cuts_add(&e->cuts_next, begin + n, err) : NUMOE_OK;
}

numoe_status pre_split(const struct pre *pre, struct encoding *e, const char *text, size_t n,
                       numoe_error *err)
{
    if (e->match == NULL) {
        e->match = pcre2_match_data_create(1, NULL);
        if (e->match == NULL) {
            return status_fail(err, NUMOE_E_MEMORY, "no memory for the pre-tokenizer");
        }
    }
    e->cuts.n = 0;
    FORWARD_IF(cuts_add(&e->cuts, n, err));
    for (unsigned i = 0; i < pre->n_pattern; i++) {
        size_t begin = 0;
        e->cuts_next.n = 0;
        for (size_t ic = 0; ic < e->cuts.n; ic++) {
            FORWARD_IF(cut_piece(pre, i, e, text, begin, e->cuts.end[ic] - begin, err));
            begin = e->cuts.end[ic];
        }
        struct cuts swap = e->cuts;
        e->cuts = e->cuts_next;
        e->cuts_next = swap;
    }
    return NUMOE_OK;
}

void pre_fini_match(void *match)
{
    pcre2_match_data_free(match);
}
