/* model/tokenizer: ids and word boundaries as Hugging Face tokenizers gives them
 * (tests/data/tokenizer, the references of the bundled model and of the fixtures), public
 * vocabularies where they are there, and small vocabularies made here for what files may say
 * wrongly or unusually. */
#include <criterion/criterion.h>

#include <jansson.h>

#include "base/clock.h"
#include "base/utf8.h"
#include "model/tokenizer-impl.h"
#include "tests/unit/ggufbuild.h"
#include "tests/unit/testdata.h"

static const char fable_path[] = "model/fable/fable-moe-Q4_K_M.gguf";

struct vocab {
    struct gguf *g;
    struct tokenizer *tok;
};

static struct vocab vocab_open(char *path)
{
    struct vocab v = {0};
    numoe_error err = {0};

    cr_assert_not_null(path);
    cr_assert_eq(gguf_open(path, &v.g, &err), NUMOE_OK, "%s", err.text);
    cr_assert_eq(tokenizer_open(v.g, &v.tok, &err), NUMOE_OK, "%s", err.text);
    free(path);
    return v;
}

static void vocab_close(struct vocab *v)
{
    tokenizer_close(v->tok);
    gguf_close(v->g);
}

static struct vocab vocab_fable(void)
{
    return vocab_open(test_src_path(fable_path));
}

/* The bundled model's vocabulary under another pre-tokenizer. */
static struct vocab vocab_fable_as(const char *pre)
{
    const struct gguf_string name = {pre, strlen(pre)};
    struct vocab v = {0};
    numoe_error err = {0};
    struct gguf_value *value = NULL;
    char *path = test_src_path(fable_path);

    cr_assert_eq(gguf_open(path, &v.g, &err), NUMOE_OK, "%s", err.text);
    free(path);
    for (uint64_t i = 0; i < v.g->n_kv; i++) {
        const struct gguf_string *key = &v.g->kv[i].key;
        if (key->len == 18 && memcmp(key->data, "tokenizer.ggml.pre", 18) == 0) {
            value = &v.g->kv[i].value;
        }
    }
    cr_assert_not_null(value);
    const struct gguf_string *in_file = value->str;
    value->str = &name;
    cr_assert_eq(tokenizer_open(v.g, &v.tok, &err), NUMOE_OK, "%s", err.text);
    value->str = in_file;
    return v;
}

static json_t *load_json(char *path)
{
    json_error_t error;

    cr_assert_not_null(path);
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, &error);
    cr_assert_not_null(root, "%s: %s at line %d", path, error.text, error.line);
    free(path);
    return root;
}

static void expect_bytes(const struct tokenizer *tok, const char *text, size_t n, unsigned flags,
                         const json_t *want, const char *where)
{
    numoe_error err = {0};
    int32_t *ids;
    size_t n_ids;

    cr_assert_eq(tokenizer_encode(tok, text, n, flags, &ids, &n_ids, &err), NUMOE_OK, "%s",
                 err.text);
    bool equal = n_ids == json_array_size(want);
    for (size_t i = 0; equal && i < n_ids; i++) {
        equal = ids[i] == json_integer_value(json_array_get(want, i));
    }
    if (!equal) {
        char *wanted = json_dumps(want, JSON_COMPACT);
        fprintf(stderr, "%s: \"%.*s\"\n  wanted %s\n  got    [", where, (int)n, text, wanted);
        for (size_t i = 0; i < n_ids; i++) {
            fprintf(stderr, "%s%d", i == 0 ? "" : ",", ids[i]);
        }
        fprintf(stderr, "]\n");
        free(wanted);
    }
    cr_expect(equal, "%s: \"%.*s\"", where, (int)n, text);
    mem_free(ids);
}

static void expect_json(const struct tokenizer *tok, const json_t *text, unsigned flags,
                        const json_t *want, const char *where)
{
    expect_bytes(tok, json_string_value(text), json_string_length(text), flags, want, where);
}

static void expect_cases(const struct tokenizer *tok, const json_t *cases, const char *where)
{
    cr_assert_gt(json_array_size(cases), 0);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        expect_json(tok, json_object_get(c, "text"), 0, json_object_get(c, "ids"), where);
    }
}

/* [hex of bytes, ids] each. */
static void expect_broken(const struct tokenizer *tok, const json_t *cases, const char *where)
{
    cr_assert_gt(json_array_size(cases), 0);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const char *hex = json_string_value(json_array_get(json_array_get(cases, i), 0));
        char bytes[64];
        size_t n = strlen(hex) / 2;
        for (size_t ib = 0; ib < n; ib++) {
            unsigned byte;
            cr_assert_eq(sscanf(hex + 2 * ib, "%2x", &byte), 1);
            bytes[ib] = (char)byte;
        }
        expect_bytes(tok, bytes, n, 0, json_array_get(json_array_get(cases, i), 1), where);
    }
}

/* ------------------------------------------------------------------ references */

Test(tokenizer, bundled_model)
{
    struct vocab v = vocab_fable();
    json_t *cases = load_json(test_src_path("tests/data/fable/reference/tokenizer_cases.json"));
    expect_cases(v.tok, cases, "tokenizer_cases.json");
    json_decref(cases);

    json_t *reference = load_json(test_src_path("tests/data/fable/reference/reference.json"));
    const json_t *prompts = json_object_get(reference, "prompts");
    cr_assert_eq(json_array_size(prompts), 3);
    for (size_t i = 0; i < json_array_size(prompts); i++) {
        const json_t *p = json_array_get(prompts, i);
        const char *text = json_string_value(json_object_get(p, "text"));
        bool chat = strcmp(json_string_value(json_object_get(p, "kind")), "chat") == 0;
        char prompt[256];
        snprintf(prompt, sizeof(prompt), chat ? "<｜User｜>%s<｜Assistant｜>" : "%s", text);
        expect_bytes(v.tok, prompt, strlen(prompt), NUMOE_TOKENIZE_BOS | NUMOE_TOKENIZE_SPECIAL,
                     json_object_get(p, "ids"), "reference.json");
    }
    json_decref(reference);
    cr_expect_eq(tokenizer_n_vocab(v.tok), 4096);
    cr_expect_eq(tokenizer_bos(v.tok), 0);
    cr_expect_eq(tokenizer_eos(v.tok), 1);
    cr_expect_eq(tokenizer_find(v.tok, "<｜Assistant｜>"), 4);
    cr_expect_eq(tokenizer_find(v.tok, "no such token"), -1);
    vocab_close(&v);
}

Test(tokenizer, fixtures)
{
    static const char *const names[] = {
        "deepseek2-full-a", "deepseek2-lite-a", "deepseek3-a", "glm4moe-a",  "gptoss-a",
        "granitemoe-a",     "mixtral-a",        "olmoe-a",     "qwen2moe-a", "qwen3moe-a",
    };
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        char path[256];
        snprintf(path, sizeof(path), "tests/data/fixtures/%s/%s-f32.gguf", names[i], names[i]);
        struct vocab v = vocab_open(test_src_path(path));
        snprintf(path, sizeof(path), "tests/data/fixtures/%s/reference.json", names[i]);
        json_t *reference = load_json(test_src_path(path));
        expect_cases(v.tok, json_object_get(reference, "tokenizer_cases"), names[i]);
        static const char *const prompts[] = {"prompt_short", "prompt_long"};
        for (size_t ip = 0; ip < 2; ip++) {
            const json_t *p = json_object_get(reference, prompts[ip]);
            expect_json(v.tok, json_object_get(p, "text"), NUMOE_TOKENIZE_BOS,
                        json_object_get(p, "ids"), names[i]);
        }
        json_decref(reference);
        vocab_close(&v);
    }
}

Test(tokenizer, words_of_every_pre_tokenizer)
{
    json_t *splits = load_json(test_src_path("tests/data/tokenizer/splits.json"));
    const json_t *texts = json_object_get(splits, "texts");
    const char *name;
    json_t *want;

    cr_assert_eq(json_object_size(splits), 19);
    json_object_foreach(splits, name, want)
    {
        struct pre *pre;
        struct encoding e = {0};
        numoe_error err = {0};
        if (want == texts) {
            continue;
        }
        cr_assert_eq(json_array_size(want), json_array_size(texts));
        cr_assert_eq(pre_open(name, strlen(name), &pre, &err), NUMOE_OK, "%s", err.text);
        for (size_t i = 0; i < json_array_size(texts); i++) {
            const char *text = json_string_value(json_array_get(texts, i));
            size_t n = json_string_length(json_array_get(texts, i));
            const json_t *ends = json_array_get(want, i);
            e.cuts.n = 0;
            if (n > 0) {
                cr_assert_eq(pre_split(pre, &e, text, n, &err), NUMOE_OK, "%s", err.text);
            }
            cr_assert_eq(e.cuts.n, json_array_size(ends), "%s: text %zu: %zu words", name, i,
                         e.cuts.n);
            for (size_t ic = 0; ic < e.cuts.n; ic++) {
                cr_assert_eq(e.cuts.end[ic], (size_t)json_integer_value(json_array_get(ends, ic)),
                             "%s: text %zu: word %zu", name, i, ic);
            }
        }
        pre_fini_match(e.match);
        mem_free(e.cuts.end);
        mem_free(e.cuts_next.end);
        pre_close(pre);
    }
    json_decref(splits);
}

Test(tokenizer, ids_with_the_bundled_vocabulary)
{
    json_t *ids = load_json(test_src_path("tests/data/tokenizer/ids.json"));
    const json_t *texts = json_object_get(ids, "texts");
    const char *name;
    json_t *want;
    size_t n_pre = 0;

    json_object_foreach(ids, name, want)
    {
        if (want == texts || strncmp(name, "broken ", 7) == 0) {
            continue;
        }
        char broken[64];
        struct vocab v = vocab_fable_as(name);
        for (size_t i = 0; i < json_array_size(texts); i++) {
            expect_json(v.tok, json_array_get(texts, i), 0, json_array_get(want, i), name);
        }
        snprintf(broken, sizeof(broken), "broken %s", name);
        expect_broken(v.tok, json_object_get(ids, broken), broken);
        vocab_close(&v);
        n_pre++;
    }
    cr_expect_eq(n_pre, 5);
    json_decref(ids);
}

/* ------------------------------------------------------------------ public vocabularies */

static char *read_file(char *path, size_t *n)
{
    FILE *file = fopen(path, "rb");
    cr_assert_not_null(file, "%s", path);
    cr_assert_eq(fseek(file, 0, SEEK_END), 0);
    long size = ftell(file);
    rewind(file);
    char *bytes = malloc((size_t)size + 1);
    *n = fread(bytes, 1, (size_t)size, file);
    bytes[*n] = '\0';
    fclose(file);
    free(path);
    return bytes;
}

/* NAME.inp: texts between separators; NAME.out: a line of ids for each. */
static void expect_vocab_files(const char *name)
{
    static const char separator[] = "\n__ggml_vocab_test__\n";
    char path[128];
    size_t n, n_text = 0;

    snprintf(path, sizeof(path), "vocabs/ggml-vocab-%s.gguf", name);
    char *found = test_data_path(path);
    if (found == NULL) {
        cr_skip_test("%s is not there", path);
    }
    struct vocab v = vocab_open(found);
    snprintf(path, sizeof(path), "vocabs/ggml-vocab-%s.gguf.inp", name);
    char *texts = read_file(test_data_path(path), &n), *text = texts, *end;
    snprintf(path, sizeof(path), "vocabs/ggml-vocab-%s.gguf.out", name);
    char *lines = read_file(test_data_path(path), &n), *line = lines;

    while ((end = strstr(text, separator)) != NULL) {
        json_t *want = json_array();
        char *eol = strchr(line, '\n');
        cr_assert_not_null(eol);
        for (char *next; line < eol; line = next) {
            json_array_append_new(want, json_integer(strtol(line, &next, 10)));
            cr_assert_neq(next, line);
            next += strspn(next, " ");
        }
        expect_bytes(v.tok, text, (size_t)(end - text), 0, want, name);
        json_decref(want);
        line = eol + 1;
        text = end + strlen(separator);
        n_text++;
    }
    cr_expect_eq(n_text, 46, "%s: %zu texts", name, n_text);
    free(texts);
    free(lines);
    vocab_close(&v);
}

Test(tokenizer, vocab_deepseek_llm)
{
    expect_vocab_files("deepseek-llm");
}
Test(tokenizer, vocab_deepseek_coder)
{
    expect_vocab_files("deepseek-coder");
}
Test(tokenizer, vocab_llama_spm)
{
    expect_vocab_files("llama-spm");
}
Test(tokenizer, vocab_refact)
{
    expect_vocab_files("refact");
}
Test(tokenizer, vocab_gpt_2)
{
    expect_vocab_files("gpt-2");
}
Test(tokenizer, vocab_falcon)
{
    expect_vocab_files("falcon");
}

/* Vocabularies that tests/data/tokenizer/make.py --vocab writes; too big to be stored. */
static void expect_cached(const char *name)
{
    const char *cache = getenv("NUMOE_TEST_CACHE"), *home = getenv("HOME");
    char path[1024];

    if (cache != NULL && *cache != '\0') {
        snprintf(path, sizeof(path), "%s/%s.gguf", cache, name);
    } else {
        snprintf(path, sizeof(path), "%s/.cache/numoe-tests/%s.gguf", home == NULL ? "" : home,
                 name);
    }
    if (access(path, R_OK) != 0) {
        cr_skip_test("%s is not there: make.py --vocab writes it", path);
    }
    struct vocab v = vocab_open(strdup(path));
    snprintf(path, sizeof(path), "tests/data/tokenizer/%s.json", name);
    json_t *reference = load_json(test_src_path(path));
    const json_t *texts = json_object_get(reference, "texts");
    const json_t *ids = json_object_get(reference, "ids");
    cr_assert_gt(json_array_size(texts), 0);
    for (size_t i = 0; i < json_array_size(texts); i++) {
        expect_json(v.tok, json_array_get(texts, i), NUMOE_TOKENIZE_SPECIAL, json_array_get(ids, i),
                    name);
    }
    expect_broken(v.tok, json_object_get(reference, "broken"), name);
    json_decref(reference);
    vocab_close(&v);
}

Test(tokenizer, cached_deepseek_v3)
{
    expect_cached("deepseek_v3");
}
Test(tokenizer, cached_qwen3)
{
    expect_cached("qwen3");
}
Test(tokenizer, cached_gptoss)
{
    expect_cached("gptoss");
}

/* ------------------------------------------------------------------ there and back */

static uint64_t seed = 12345;

static unsigned next_random(unsigned below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(seed >> 33) % below;
}

static size_t random_text(char *text, size_t cap, bool valid)
{
    static const char *const parts[] = {" ",  "  ", "\n",  "the",         "King",
                                        "é",  "漢", "😀",   "e\xcc\x81",   "123",
                                        "'s", "\t", "<｜", "\xe2\x80\x8d"};
    size_t n = 0;

    for (unsigned i = next_random(20); i-- > 0 && n + 8 < cap;) {
        const char *part = parts[next_random(ARRAY_LEN(parts))];
        if (!valid && next_random(3) == 0) {
            text[n++] = (char)next_random(256);
        } else {
            memcpy(text + n, part, strlen(part));
            n += strlen(part);
        }
    }
    return n;
}

static void expect_round_trip(const struct tokenizer *tok, const char *text, size_t n)
{
    int32_t *ids;
    size_t n_ids, at = 0;

    cr_assert_eq(tokenizer_encode(tok, text, n, 0, &ids, &n_ids, NULL), NUMOE_OK);
    for (size_t i = 0; i < n_ids; i++) {
        size_t len;
        const char *piece = tokenizer_text(tok, ids[i], false, &len);
        cr_assert_not_null(piece);
        cr_assert_leq(at + len, n);
        cr_assert_arr_eq(piece, text + at, len);
        at += len;
    }
    cr_assert_eq(at, n);
    mem_free(ids);
}

Test(tokenizer, any_bytes_come_back)
{
    struct vocab v = vocab_fable();
    char text[256];

    for (int i = 0; i < 4000; i++) {
        expect_round_trip(v.tok, text, random_text(text, sizeof(text), i % 2 == 0));
    }
    for (int i = 0; i < 256; i++) {
        text[0] = (char)i;
        expect_round_trip(v.tok, text, 1);
    }
    vocab_close(&v);
}

Test(tokenizer, streaming_gives_whole_characters)
{
    struct vocab v = vocab_fable();
    char text[256];

    for (int i = 0; i < 1000; i++) {
        struct strbuf out = {0};
        struct detokenizer d;
        int32_t *ids;
        size_t n_ids, n = random_text(text, sizeof(text), true);
        cr_assert_eq(tokenizer_encode(v.tok, text, n, 0, &ids, &n_ids, NULL), NUMOE_OK);
        detokenizer_init(&d, v.tok, false);
        for (size_t id = 0; id < n_ids; id++) {
            cr_assert_eq(detokenizer_push(&d, ids[id], &out, NULL), NUMOE_OK);
            cr_assert_eq(utf8_valid_bytes(out.data, out.len), out.len);
        }
        cr_assert_eq(out.len, n, "nothing is held back at the end of a valid text");
        cr_assert_eq(detokenizer_flush(&d, &out, NULL), NUMOE_OK);
        cr_assert_eq(out.len, n);
        cr_assert(n == 0 || memcmp(out.data, text, n) == 0);
        strbuf_fini(&out);
        mem_free(ids);
    }
    vocab_close(&v);
}

/* What Python's bytes.decode(errors='replace') gives. */
Test(tokenizer, streaming_replaces_what_is_no_utf8)
{
    static const struct {
        const char *bytes, *pushed, *flushed;
    } cases[] = {
        {"a\xff"
         "b",
         "a�b", ""},
        {"\xe4\xb8", "", "�"},
        {"\xe4\xb8"
         "a",
         "�a", ""},
        {"\xf0\x9f\x98\x80", "😀", ""},
        {"\xf0\x9f\x98", "", "�"},
        {"\xf0\x9f\xe4\xb8\xad", "�中", ""},
        {"\xed\xa0\x80", "���", ""},
        {"\xc0\xaf", "��", ""},
        {"\xf4\x90\x80\x80", "����", ""},
        {"\xe0\x80\x80", "���", ""},
        {"\x80", "�", ""},
        {"\xc3\xc3\xa9", "�é", ""},
    };
    struct vocab v = vocab_fable();

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct strbuf out = {0};
        struct detokenizer d;
        detokenizer_init(&d, v.tok, false);
        for (const char *p = cases[i].bytes; *p != '\0'; p++) {
            cr_assert_eq(detokenizer_push(&d, v.tok->byte_id[(unsigned char)*p], &out, NULL),
                         NUMOE_OK);
        }
        cr_expect_str_eq(out.data == NULL ? "" : out.data, cases[i].pushed, "case %zu", i);
        size_t before = out.len;
        cr_assert_eq(detokenizer_flush(&d, &out, NULL), NUMOE_OK);
        cr_expect_str_eq(out.data + before, cases[i].flushed, "case %zu", i);
        strbuf_fini(&out);
    }
    vocab_close(&v);
}

/* ------------------------------------------------------------------ special tokens */

Test(tokenizer, control_tokens_only_where_asked_for)
{
    static const char text[] = "<｜User｜>a<｜Assistant｜>";
    struct vocab v = vocab_fable();
    json_t *special = json_pack("[iii]", 3, v.tok->byte_id['a'], 4);
    int32_t *ids;
    size_t n, len;

    expect_bytes(v.tok, text, strlen(text), NUMOE_TOKENIZE_SPECIAL, special, "special");
    json_decref(special);
    cr_assert_eq(tokenizer_encode(v.tok, text, strlen(text), 0, &ids, &n, NULL), NUMOE_OK);
    for (size_t i = 0; i < n; i++) {
        cr_assert_gt(ids[i], 4, "a name in a text is no control token");
    }
    mem_free(ids);
    expect_round_trip(v.tok, text, strlen(text));

    const char *user = tokenizer_text(v.tok, 3, true, &len);
    cr_assert_eq(len, strlen("<｜User｜>"));
    cr_expect_arr_eq(user, "<｜User｜>", len);
    cr_assert_not_null(tokenizer_text(v.tok, 3, false, &len));
    cr_expect_eq(len, 0);
    cr_expect_null(tokenizer_text(v.tok, -1, false, &len));
    cr_expect_null(tokenizer_text(v.tok, 4096, false, &len));
    cr_expect(tokenizer_is_eog(v.tok, 1));
    cr_expect_not(tokenizer_is_eog(v.tok, 0));
    cr_expect_not(tokenizer_is_eog(v.tok, -1));
    cr_expect_not(tokenizer_is_eog(v.tok, 4096));
    vocab_close(&v);
}

/* ------------------------------------------------------------------ made vocabularies */

struct entry {
    const char *text;
    unsigned type;
    float score;
};

static struct ggufbuild b;

static void build_tokens(const char *model, const struct entry *entry, size_t n)
{
    gb_init(&b, 3);
    gb_string(&b, "tokenizer.ggml.model", model);
    gb_array(&b, "tokenizer.ggml.tokens", GGUF_STRING, n);
    for (size_t i = 0; i < n; i++) {
        gb_text(&b, entry[i].text);
    }
    gb_array(&b, "tokenizer.ggml.token_type", GGUF_I32, n);
    for (size_t i = 0; i < n; i++) {
        gb_number(&b, entry[i].type, 4);
    }
    if (strcmp(model, "llama") == 0) {
        gb_array(&b, "tokenizer.ggml.scores", GGUF_F32, n);
        for (size_t i = 0; i < n; i++) {
            uint32_t bits;
            memcpy(&bits, &entry[i].score, sizeof(bits));
            gb_number(&b, bits, 4);
        }
    }
}

static numoe_status open_built(struct vocab *v, numoe_error *err)
{
    char path[64];
    snprintf(path, sizeof(path), "/tmp/numoe-test-vocab-%d.gguf", (int)getpid());
    gb_finish(&b);
    cr_assert(gb_write(&b, path));
    gb_free(&b);
    *v = (struct vocab){0};
    cr_assert_eq(gguf_open(path, &v->g, err), NUMOE_OK, "%s", err->text);
    cr_assert_eq(unlink(path), 0);
    return tokenizer_open(v->g, &v->tok, err);
}

static struct vocab expect_built(void)
{
    struct vocab v;
    numoe_error err = {0};
    cr_assert_eq(open_built(&v, &err), NUMOE_OK, "%s", err.text);
    return v;
}

static void expect_refused(numoe_status status, const char *part)
{
    struct vocab v;
    numoe_error err = {0};
    cr_expect_eq(open_built(&v, &err), status, "%s", err.text);
    cr_expect_not_null(strstr(err.text, part), "\"%s\" is not in \"%s\"", part, err.text);
    vocab_close(&v);
}

static void expect_ids(const struct vocab *v, const char *text, unsigned flags, const char *want)
{
    json_t *array = json_loads(want, 0, NULL);
    cr_assert_not_null(array);
    expect_bytes(v->tok, text, strlen(text), flags, array, text);
    json_decref(array);
}

static void build_merges(const char *const *line, size_t n)
{
    gb_array(&b, "tokenizer.ggml.merges", GGUF_STRING, n);
    for (size_t i = 0; i < n; i++) {
        gb_text(&b, line[i]);
    }
}

/* a b c ab bc abc, "abc" reachable over ab only; then added tokens. */
static const struct entry letters[] = {
    {"a", 1, 0},   {"b", 1, 0},     {"c", 1, 0},   {"ab", 1, 0},         {"bc", 1, 0},
    {"abc", 1, 0}, {"Ġ", 1, 0},     {"<x>", 3, 0}, {"<x>y", 3, 0},       {"<u>", 4, 0},
    {"  ", 4, 0},  {"<unk>", 2, 0}, {"a", 1, 0},   {"<|im_end|>", 3, 0},
};
static const char *const letter_merges[] = {"b c", "a b", "ab c", "nope c", "x", "a b"};

static void build_letters(void)
{
    build_tokens("gpt2", letters, ARRAY_LEN(letters));
    build_merges(letter_merges, ARRAY_LEN(letter_merges));
}

Test(tokenizer, merges_go_by_rank)
{
    build_letters();
    gb_string(&b, "tokenizer.ggml.pre", "gpt-2");
    struct vocab v = expect_built();
    expect_ids(&v, "abc", 0, "[0,4]"); /* "b c" comes before "a b" */
    expect_ids(&v, "ab", 0, "[3]");
    expect_ids(&v, "abab bcc", 0, "[3,3,6,4,2]");
    expect_ids(&v, "a", 0, "[0]"); /* the first of equal tokens */
    expect_ids(&v, "", NUMOE_TOKENIZE_BOS, "[]");
    expect_ids(&v, "azb", 0, "[0,1]"); /* no token for z, and no unknown token is named */
    vocab_close(&v);
}

Test(tokenizer, whole_words_where_the_model_takes_them)
{
    build_letters();
    gb_string(&b, "tokenizer.ggml.pre", "llama-bpe");
    gb_u32(&b, "tokenizer.ggml.bos_token_id", 7);
    gb_u32(&b, "tokenizer.ggml.unknown_token_id", 11);
    struct vocab v = expect_built();
    expect_ids(&v, "abc", 0, "[5]");
    expect_ids(&v, "abca", NUMOE_TOKENIZE_BOS, "[7,0,4,0]"); /* this model adds BOS unasked */
    expect_ids(&v, "azb", 0, "[0,11,1]");
    vocab_close(&v);
}

Test(tokenizer, special_tokens_by_kind_and_length)
{
    build_letters();
    gb_string(&b, "tokenizer.ggml.pre", "gpt-2");
    gb_bool(&b, "tokenizer.ggml.add_bos_token", true);
    gb_bool(&b, "tokenizer.ggml.add_eos_token", true);
    gb_u32(&b, "tokenizer.ggml.bos_token_id", 7);
    gb_u32(&b, "tokenizer.ggml.eos_token_id", 8);
    gb_u32(&b, "tokenizer.ggml.padding_token_id", 0xffffffffu);
    gb_u32(&b, "tokenizer.ggml.eot_token_id", 9);
    struct vocab v = expect_built();
    expect_ids(&v, "a<x>yb<x>b", NUMOE_TOKENIZE_SPECIAL, "[0,8,1,7,1]"); /* the longest wins */
    expect_ids(&v, "a<x>b", 0, "[0,1]");                                 /* letters it lacks */
    expect_ids(&v, "a<u>b", 0, "[0,9,1]");                               /* user-defined always */
    expect_ids(&v, "<<u>", 0, "[9]");
    expect_ids(&v, "a  b", 0, "[0,10,1]");
    expect_ids(&v, "<unk>", NUMOE_TOKENIZE_SPECIAL, "[11]");
    expect_ids(&v, "a", NUMOE_TOKENIZE_BOS, "[7,0,8]");
    expect_ids(&v, "<x", NUMOE_TOKENIZE_SPECIAL, "[]");
    for (int32_t id = 0; id < 14; id++) {
        cr_expect_eq(tokenizer_is_eog(v.tok, id), id == 8 || id == 9 || id == 13, "token %d", id);
    }
    vocab_close(&v);
}

static const struct entry pieces[] = {
    {"<unk>", 2, 0}, {"<s>", 3, 0},   {"</s>", 3, 0}, {"<0xC3>", 6, 0}, {"<0xA9>", 6, 0},
    {"▁", 1, -1},    {"a", 1, -2},    {"b", 1, -3},   {"▁a", 1, -10},   {"ab", 1, -5},
    {"▁ab", 1, -20}, {"abab", 1, -4}, {"[X]", 4, 0},  {"é", 5, -30},    {"ba", 1, -4},
    {"c", 1, -6},    {"▁▁", 1, -7},
};

Test(tokenizer, sentencepiece_by_hand)
{
    build_tokens("llama", pieces, ARRAY_LEN(pieces));
    struct vocab v = expect_built();
    /* ▁ab: "ab" (-5) goes before "▁a" (-10), then "▁ab" */
    expect_ids(&v, "ab", 0, "[10]");
    expect_ids(&v, "ab", NUMOE_TOKENIZE_BOS, "[1,10]");
    /* ▁abab: "ba" (-4) goes first: ▁ a ba b, then "▁a" */
    expect_ids(&v, "abab", 0, "[8,14,7]");
    expect_ids(&v, "  c", 0, "[16,5,15]"); /* the leftmost of equal pairs */
    expect_ids(&v, "é", 0, "[5,13]");
    expect_ids(&v, "c[X]c", 0, "[5,15,12,5,15]"); /* a space after what is taken out, too */
    expect_ids(&v, "<s>", NUMOE_TOKENIZE_SPECIAL, "[1]");
    expect_ids(&v, "x", 0, "[5,0]");
    expect_ids(&v, "\xc3\xa9\xc3", 0, "[5,13,3]");
    expect_ids(&v, "漢", 0, "[5,0]"); /* some of its bytes have no token */
    expect_ids(&v, "", 0, "[]");

    static const int32_t ids[] = {1, 5, 15, 5, 3, 4, 12};
    struct strbuf out = {0};
    struct detokenizer d;
    detokenizer_init(&d, v.tok, false);
    for (size_t i = 0; i < ARRAY_LEN(ids); i++) {
        cr_assert_eq(detokenizer_push(&d, ids[i], &out, NULL), NUMOE_OK);
    }
    cr_expect_str_eq(out.data, "c é[X]");
    strbuf_fini(&out);
    numoe_error err = {0};
    cr_expect_eq(detokenizer_push(&d, 99, &out, &err), NUMOE_E_INPUT);
    vocab_close(&v);
}

Test(tokenizer, sentencepiece_without_space_prefix)
{
    build_tokens("llama", pieces, ARRAY_LEN(pieces));
    gb_bool(&b, "tokenizer.ggml.add_space_prefix", false);
    gb_bool(&b, "tokenizer.ggml.add_bos_token", false);
    struct vocab v = expect_built();
    expect_ids(&v, "ab ab", NUMOE_TOKENIZE_BOS, "[9,10]");
    vocab_close(&v);
}

/* ------------------------------------------------------------------ what is refused */

Test(tokenizer, unknown_kinds_are_named)
{
    build_tokens("t5", letters, ARRAY_LEN(letters));
    expect_refused(NUMOE_E_SUPPORT, "\"t5\"");
    build_letters();
    gb_string(&b, "tokenizer.ggml.pre", "frobnicate");
    expect_refused(NUMOE_E_SUPPORT, "\"frobnicate\"");
    build_letters();
    gb_string(&b, "tokenizer.ggml.pre", "frobnicate");
    expect_refused(NUMOE_E_SUPPORT, "deepseek-v3");
}

Test(tokenizer, broken_vocabularies_are_refused)
{
    gb_init(&b, 3);
    gb_string(&b, "general.architecture", "deepseek2");
    expect_refused(NUMOE_E_FILE_MODEL, "tokenizer.ggml.model");

    gb_init(&b, 3);
    gb_string(&b, "tokenizer.ggml.model", "gpt2");
    expect_refused(NUMOE_E_FILE_MODEL, "tokenizer.ggml.tokens: is missing");

    build_tokens("gpt2", letters, 0);
    expect_refused(NUMOE_E_FILE_MODEL, "tokenizer.ggml.tokens: is empty");

    gb_init(&b, 3);
    gb_string(&b, "tokenizer.ggml.model", "gpt2");
    gb_array(&b, "tokenizer.ggml.tokens", GGUF_I32, 1);
    gb_number(&b, 0, 4);
    expect_refused(NUMOE_E_FILE_MODEL, "tokenizer.ggml.tokens: is not an array of strings");

    build_tokens("gpt2", letters, ARRAY_LEN(letters));
    gb_string(&b, "tokenizer.ggml.pre", "gpt-2");
    expect_refused(NUMOE_E_FILE_MODEL, "tokenizer.ggml.merges");

    gb_init(&b, 3);
    gb_string(&b, "tokenizer.ggml.model", "llama");
    gb_array(&b, "tokenizer.ggml.tokens", GGUF_STRING, 1);
    gb_text(&b, "a");
    expect_refused(NUMOE_E_FILE_MODEL, "tokenizer.ggml.scores");

    gb_init(&b, 3);
    gb_string(&b, "tokenizer.ggml.model", "gpt2");
    gb_array(&b, "tokenizer.ggml.tokens", GGUF_STRING, 1);
    gb_text(&b, "a");
    gb_array(&b, "tokenizer.ggml.token_type", GGUF_I32, 2);
    gb_number(&b, 1, 4);
    gb_number(&b, 1, 4);
    expect_refused(NUMOE_E_FILE_MODEL, "tokenizer.ggml.token_type: has 2");

    const struct entry odd = {"a", 7, 0};
    build_tokens("gpt2", &odd, 1);
    expect_refused(NUMOE_E_FILE_MODEL, "tokenizer.ggml.token_type: element 0");

    build_letters();
    gb_string(&b, "tokenizer.ggml.bos_token_id", "0");
    expect_refused(NUMOE_E_FILE_MODEL, "tokenizer.ggml.bos_token_id");
}

/* ------------------------------------------------------------------ time */

/* Words and runs of a megabyte: what is quadratic takes minutes here. */
Test(tokenizer, long_runs_take_linear_time, .timeout = 300)
{
    static const char *const fills[] = {"a",  "A",  " ",  "\n",   "1",  "!",
                                        "漢", "Aa", "'s", "\xff", " \n"};
    static const char *const names[] = {"default", "deepseek-llm", "deepseek-v3", "gpt-4o",
                                        "kimi-k2"};
    static char text[1000001];
    double start = clock_seconds();

    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct vocab v = vocab_fable_as(names[i]);
        for (size_t f = 0; f < ARRAY_LEN(fills); f++) {
            size_t len = strlen(fills[f]), n = 0, n_ids;
            int32_t *ids;
            for (; n + len < sizeof(text); n += len) {
                memcpy(text + n, fills[f], len);
            }
            text[n++] = 'x'; /* so that no run ends with the text */
            cr_assert_eq(
                tokenizer_encode(v.tok, text, n, NUMOE_TOKENIZE_SPECIAL, &ids, &n_ids, NULL),
                NUMOE_OK);
            cr_assert_gt(n_ids, 1);
            mem_free(ids);
        }
        vocab_close(&v);
    }
    cr_expect_lt(clock_seconds() - start, 240);
}
