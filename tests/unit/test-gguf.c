/* model/gguf: files of the project against what Python's gguf package reads in them, and files made
 * here for everything else: value types, versions, alignment, split models, and what is refused. */
#include <criterion/criterion.h>

#include <fcntl.h>
#include <float.h>
#include <math.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "model/gguf.h"
#include "tests/unit/ggufbuild.h"
#include "tests/unit/testdata.h"

static char *dir;

static void make_dir(void)
{
    dir = gb_mkdir();
    cr_assert_not_null(dir);
}

static void remove_dir(void)
{
    char command[4200];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    cr_assert_eq(system(command), 0);
    free(dir);
}

TestSuite(gguf, .init = make_dir, .fini = remove_dir);

static const char *path_of(const char *name)
{
    static char path[4200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static struct ggufbuild b;

/* Finishes b, writes it, and opens it. */
static struct gguf *open_built(const char *name)
{
    struct gguf *g = NULL;
    numoe_error err = {0};
    gb_finish(&b);
    cr_assert(gb_write(&b, path_of(name)));
    cr_assert_eq(gguf_open(path_of(name), &g, &err), NUMOE_OK, "%s", err.text);
    return g;
}

static void expect_failure(const char *path, numoe_status status, const char *part)
{
    struct gguf *g = NULL;
    numoe_error err = {0};
    cr_assert_eq(gguf_open(path, &g, &err), status, "status %d, \"%s\"", err.status, err.text);
    cr_assert_null(g);
    cr_assert_not_null(strstr(err.text, part), "\"%s\" is not in \"%s\"", part, err.text);
    cr_assert_not_null(strstr(err.text, path), "\"%s\" does not name the file", err.text);
}

/* Writes b as it is (finish it before), and expects it to be refused with `part` in the text. */
static void expect_refused(numoe_status status, const char *part)
{
    cr_assert(gb_write(&b, path_of("bad.gguf")));
    expect_failure(path_of("bad.gguf"), status, part);
    gb_free(&b);
}

/* ------------------------------------------------------------------ files of the project */

/* Numbers read with Python's gguf 0.19 (tests/data/fixtures/README.md says what the files are). */
static const struct {
    const char *path;
    uint64_t n_kv, n_tensor, last_offset, last_bytes;
    unsigned char last[4]; /* the last tensor's last bytes */
} reference[] = {
    {"model/fable/fable-moe-Q4_K_M.gguf", 46, 106, 23993280, 36864, {0x85, 0xa8, 0xb8, 0xa4}},
    {"tests/data/fixtures/deepseek2-full-a/deepseek2-full-a-f32.gguf",
     48,
     50,
     1517664,
     256,
     {0x32, 0xec, 0x91, 0x3f}},
    {"tests/data/fixtures/deepseek2-lite-a/deepseek2-lite-a-f32.gguf",
     47,
     44,
     1346720,
     256,
     {0x3e, 0x8c, 0x4d, 0x3f}},
    {"tests/data/fixtures/deepseek3-a/deepseek3-a-f32.gguf",
     50,
     52,
     1469312,
     256,
     {0x67, 0x5b, 0x7f, 0x3f}},
    {"tests/data/fixtures/gptoss-a/gptoss-a-f32.gguf",
     35,
     79,
     2086688,
     256,
     {0x24, 0x58, 0x08, 0x3f}},
};

Test(gguf, reads_real_files)
{
    for (size_t i = 0; i < ARRAY_LEN(reference); i++) {
        char *path = test_src_path(reference[i].path);
        struct gguf *g;
        numoe_error err = {0};
        unsigned char last[4];
        cr_assert_not_null(path, "%s", reference[i].path);
        cr_assert_eq(gguf_open(path, &g, &err), NUMOE_OK, "%s", err.text);
        cr_assert_eq(g->version, 3);
        cr_assert_eq(g->n_part, 1);
        cr_assert_eq(g->n_kv, reference[i].n_kv);
        cr_assert_eq(g->n_tensor, reference[i].n_tensor);
        const struct gguf_tensor *t = &g->tensor[g->n_tensor - 1];
        cr_assert_eq(t->offset, reference[i].last_offset);
        cr_assert_eq(t->bytes, reference[i].last_bytes);
        cr_assert_eq(gguf_read_tensor(g, t, t->bytes - 4, 4, last, &err), NUMOE_OK, "%s", err.text);
        cr_assert_arr_eq(last, reference[i].last, 4);
        gguf_close(g);
        free(path);
    }
}

Test(gguf, finds_keys_and_tensors_of_a_real_file)
{
    char *path = test_src_path("model/fable/fable-moe-Q4_K_M.gguf");
    struct gguf *g;
    numoe_error err = {0};
    uint32_t rank = 0;
    float norm[3];
    cr_assert_eq(gguf_open(path, &g, &err), NUMOE_OK, "%s", err.text);
    cr_assert_eq(gguf_get_u32(g, "deepseek2.attention.kv_lora_rank", true, &rank, &err), NUMOE_OK);
    cr_assert_eq(rank, 256);
    const struct gguf_value *tokens = gguf_find(g, "tokenizer.ggml.tokens");
    cr_assert_not_null(tokens);
    cr_assert(tokens->is_array);
    cr_assert_eq(tokens->n, 4096);
    cr_assert_eq(tokens->str[3].len, 12);
    cr_assert_arr_eq(tokens->str[3].data, "<\xef\xbd\x9cUser\xef\xbd\x9c>", 12);
    cr_assert_null(gguf_find(g, "tokenizer.ggml.token"));
    const struct gguf_tensor *t = gguf_find_tensor(g, "output_norm.weight");
    cr_assert_not_null(t);
    cr_assert_eq(t->offset, 996672);
    cr_assert_eq(gguf_read_tensor(g, t, 0, sizeof norm, norm, &err), NUMOE_OK, "%s", err.text);
    cr_assert(norm[0] == 1.5859375f && norm[1] == 1.5546875f && norm[2] == 1.578125f);
    const struct gguf_tensor *q = gguf_find_tensor(g, "blk.0.attn_k_b.weight");
    cr_assert_not_null(q);
    cr_assert_str_eq(q->format->name, "Q5_0");
    cr_assert_eq(q->n_dim, 3);
    cr_assert(q->dim[0] == 64 && q->dim[1] == 256 && q->dim[2] == 8 && q->dim[3] == 1);
    cr_assert_eq(q->bytes, 64 * 256 * 8 / 32 * 22);
    cr_assert_null(gguf_find_tensor(g, "blk.0.attn_k_b"));
    gguf_close(g);
    free(path);
}

/* ------------------------------------------------------------------ values */

static void build_values(void)
{
    gb_init(&b, 3);
    gb_key(&b, "u8", GGUF_U8), gb_number(&b, 250, 1);
    gb_key(&b, "i8", GGUF_I8), gb_number(&b, 0x85, 1); /* -123 */
    gb_u16(&b, "u16", 65000);
    gb_key(&b, "i16", GGUF_I16), gb_number(&b, 32000, 2);
    gb_u32(&b, "u32", 4000000000u);
    gb_key(&b, "i32", GGUF_I32), gb_number(&b, 0xffffffffu, 4);
    gb_f32(&b, "f32", 0.1f);
    gb_bool(&b, "bool", true);
    gb_string(&b, "string", "text\xc3\xa9");
    gb_key(&b, "u64", GGUF_U64), gb_number(&b, UINT64_MAX, 8);
    gb_key(&b, "i64", GGUF_I64), gb_number(&b, INT64_MAX, 8);
    gb_key(&b, "f64", GGUF_F64), gb_number(&b, UINT64_C(0x400921fb54442d18), 8); /* pi */
    gb_array(&b, "a.i16", GGUF_I16, 3), gb_number(&b, 1, 2), gb_number(&b, 2, 2);
    gb_number(&b, 0xfffe, 2);
    gb_array(&b, "a.f32", GGUF_F32, 2), gb_number(&b, 0x3f800000, 4), gb_number(&b, 0xc0000000, 4);
    gb_array(&b, "a.string", GGUF_STRING, 3), gb_text(&b, "one"), gb_text(&b, "");
    gb_text(&b, "three");
    gb_array(&b, "a.bool", GGUF_BOOL, 2), gb_number(&b, 0, 1), gb_number(&b, 1, 1);
    gb_array(&b, "a.empty", GGUF_STRING, 0);
    gb_array(&b, "a.u64", GGUF_U64, 1), gb_number(&b, 7, 8);
}

static double as_f64(const struct gguf *g, const char *key, uint64_t i)
{
    double x = NAN;
    cr_assert_not_null(gguf_find(g, key));
    cr_assert(gguf_value_f64(gguf_find(g, key), i, &x), "%s", key);
    return x;
}

static void check_values(const struct gguf *g)
{
    cr_assert_eq(g->n_kv, 18);
    cr_assert(as_f64(g, "u8", 0) == 250);
    cr_assert(as_f64(g, "i8", 0) == -123);
    cr_assert(as_f64(g, "u16", 0) == 65000);
    cr_assert(as_f64(g, "i16", 0) == 32000);
    cr_assert(as_f64(g, "u32", 0) == 4000000000.0);
    cr_assert(as_f64(g, "i32", 0) == -1);
    cr_assert(as_f64(g, "f32", 0) == (double)0.1f);
    cr_assert(as_f64(g, "bool", 0) == 1);
    cr_assert(as_f64(g, "u64", 0) == 18446744073709551616.0);
    cr_assert(as_f64(g, "i64", 0) == 9223372036854775808.0);
    cr_assert(as_f64(g, "f64", 0) == 3.141592653589793);
    cr_assert(as_f64(g, "a.i16", 2) == -2);
    cr_assert(as_f64(g, "a.f32", 1) == -2);
    cr_assert(as_f64(g, "a.bool", 1) == 1);
    cr_assert(as_f64(g, "a.u64", 0) == 7);
    const struct gguf_value *s = gguf_find(g, "a.string");
    cr_assert(s->is_array && s->type == GGUF_STRING && s->n == 3);
    cr_assert_eq(s->str[1].len, 0);
    cr_assert_eq(s->str[2].len, 5);
    cr_assert_arr_eq(s->str[2].data, "three", 5);
    cr_assert_eq(gguf_find(g, "a.empty")->n, 0);
}

Test(gguf, reads_every_value_type)
{
    build_values();
    struct gguf *g = open_built("values.gguf");
    check_values(g);
    cr_assert_eq(g->n_tensor, 0);
    gguf_close(g);
    gb_free(&b);
}

Test(gguf, reads_version_2)
{
    build_values();
    gb_put(&b, 4, 2, 4);
    struct gguf *g = open_built("v2.gguf");
    cr_assert_eq(g->version, 2);
    check_values(g);
    gguf_close(g);
    gb_free(&b);
}

Test(gguf, elements_beyond_the_end_do_not_exist)
{
    build_values();
    struct gguf *g = open_built("values.gguf");
    uint64_t u;
    double d;
    cr_assert_not(gguf_value_u64(gguf_find(g, "a.u64"), 1, &u));
    cr_assert_not(gguf_value_f64(gguf_find(g, "a.f32"), 2, &d));
    cr_assert_not(gguf_value_u64(gguf_find(g, "a.i16"), 2, &u), "negative");
    cr_assert_not(gguf_value_u64(gguf_find(g, "f32"), 0, &u), "not an integer");
    cr_assert_not(gguf_value_f64(gguf_find(g, "string"), 0, &d), "not a number");
    gguf_close(g);
    gb_free(&b);
}

/* Integers convert where they fit, floats do not become integers, absent keys keep the default. */
Test(gguf, typed_lookups)
{
    build_values();
    struct gguf *g = open_built("values.gguf");
    numoe_error err = {0};
    uint32_t u = 5;
    float f = 5;
    bool yes = false;
    struct gguf_string s = {"kept", 4};
    cr_assert_eq(gguf_get_u32(g, "u8", true, &u, &err), NUMOE_OK);
    cr_assert_eq(u, 250);
    cr_assert_eq(gguf_get_u32(g, "i16", true, &u, &err), NUMOE_OK);
    cr_assert_eq(u, 32000);
    cr_assert_eq(gguf_get_u32(g, "absent", false, &u, &err), NUMOE_OK);
    cr_assert_eq(u, 32000);
    cr_assert_eq(gguf_get_u32(g, "absent", true, &u, &err), NUMOE_E_FILE_MODEL);
    cr_assert_not_null(strstr(err.text, "key absent is missing"), "%s", err.text);
    const char *not_u32[] = {"i8", "i32", "u64", "i64", "f32", "string", "a.u64", "bool"};
    for (size_t i = 0; i < ARRAY_LEN(not_u32); i++) {
        cr_assert_eq(gguf_get_u32(g, not_u32[i], false, &u, &err), NUMOE_E_FILE_MODEL, "%s",
                     not_u32[i]);
        cr_assert_not_null(strstr(err.text, not_u32[i]), "%s", err.text);
        cr_assert_not_null(strstr(err.text, "offset"), "%s", err.text);
    }
    cr_assert_eq(u, 32000);
    cr_assert_eq(gguf_get_f32(g, "f32", true, &f, &err), NUMOE_OK);
    cr_assert(f == 0.1f);
    cr_assert_eq(gguf_get_f32(g, "f64", true, &f, &err), NUMOE_OK);
    cr_assert(f == 3.14159274f);
    cr_assert_eq(gguf_get_f32(g, "u8", false, &f, &err), NUMOE_E_FILE_MODEL);
    cr_assert_eq(gguf_get_bool(g, "bool", true, &yes, &err), NUMOE_OK);
    cr_assert(yes);
    cr_assert_eq(gguf_get_bool(g, "u8", false, &yes, &err), NUMOE_E_FILE_MODEL);
    cr_assert_eq(gguf_get_string(g, "absent", false, &s, &err), NUMOE_OK);
    cr_assert_eq(s.len, 4);
    cr_assert_eq(gguf_get_string(g, "string", true, &s, &err), NUMOE_OK);
    cr_assert_eq(s.len, 6);
    cr_assert_arr_eq(s.data, "text\xc3\xa9", 6);
    cr_assert_eq(gguf_get_string(g, "a.string", true, &s, &err), NUMOE_E_FILE_MODEL);
    gguf_close(g);
    gb_free(&b);
}

Test(gguf, floats_that_are_no_numbers_are_refused)
{
    gb_init(&b, 3);
    gb_key(&b, "nan", GGUF_F32), gb_number(&b, 0x7fc00000, 4);
    gb_key(&b, "big", GGUF_F64), gb_number(&b, UINT64_C(0x7fe0000000000000), 8);
    struct gguf *g = open_built("nan.gguf");
    numoe_error err = {0};
    float f = 5;
    cr_assert_eq(gguf_get_f32(g, "nan", false, &f, &err), NUMOE_E_FILE_MODEL);
    cr_assert_eq(gguf_get_f32(g, "big", false, &f, &err), NUMOE_E_FILE_MODEL);
    cr_assert(f == 5);
    gguf_close(g);
    gb_free(&b);
}

/* ------------------------------------------------------------------ tensors and alignment */

static void check_aligned(uint32_t alignment)
{
    gb_init(&b, 3);
    if (alignment != 0) {
        b.alignment = alignment;
        gb_u32(&b, "general.alignment", alignment);
    }
    gb_tensor(&b, "a", FORMAT_F32, 3, 1, 1);
    gb_tensor(&b, "b", FORMAT_Q8_0, 64, 3, 2);
    gb_tensor(&b, "c", FORMAT_F16, 5, 1, 1);
    struct gguf *g = open_built("aligned.gguf");
    numoe_error err = {0};
    cr_assert_eq(g->n_tensor, 3);
    cr_assert_eq(g->tensor_bytes, 12 + 2 * 34 * 6 + 10);
    for (unsigned it = 0; it < 3; it++) {
        const struct gguf_tensor *t = &g->tensor[it];
        unsigned char byte[4];
        cr_assert_eq(t->offset, b.data_start + b.tensor[it].offset);
        cr_assert_eq(t->bytes, b.tensor[it].bytes);
        cr_assert_eq(gguf_read_tensor(g, t, t->bytes - 4, 4, byte, &err), NUMOE_OK);
        cr_assert_eq(byte[3], (unsigned char)(31 * it + t->bytes - 1), "alignment %u", alignment);
    }
    gguf_close(g);
    gb_free(&b);
}

Test(gguf, alignments)
{
    check_aligned(0); /* 32 */
    check_aligned(8);
    check_aligned(64);
    check_aligned(4096);
}

Test(gguf, alignments_that_are_none)
{
    const uint32_t bad[] = {0, 1, 4, 12, 24, 33, UINT32_MAX};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        gb_init(&b, 3);
        gb_u32(&b, "general.alignment", bad[i]);
        gb_finish(&b);
        expect_refused(NUMOE_E_FILE_FORMAT, "general.alignment");
    }
    gb_init(&b, 3);
    gb_string(&b, "general.alignment", "32");
    gb_finish(&b);
    expect_refused(NUMOE_E_FILE_FORMAT, "general.alignment");
}

Test(gguf, reads_stay_inside_the_tensor)
{
    gb_init(&b, 3);
    gb_tensor(&b, "a", FORMAT_F32, 4, 1, 1);
    gb_tensor(&b, "b", FORMAT_F32, 4, 1, 1);
    struct gguf *g = open_built("two.gguf");
    numoe_error err = {0};
    unsigned char buf[32];
    cr_assert_eq(gguf_read_tensor(g, &g->tensor[0], 0, 16, buf, &err), NUMOE_OK);
    cr_assert_eq(gguf_read_tensor(g, &g->tensor[0], 16, 0, buf, &err), NUMOE_OK);
    cr_assert_eq(gguf_read_tensor(g, &g->tensor[0], 1, 16, buf, &err), NUMOE_E_STATE);
    cr_assert_eq(gguf_read_tensor(g, &g->tensor[0], UINT64_MAX, 2, buf, &err), NUMOE_E_STATE);
    gguf_close(g);
    gb_free(&b);
}

Test(gguf, a_file_that_shrinks_is_an_error_and_no_signal)
{
    gb_init(&b, 3);
    gb_tensor(&b, "a", FORMAT_F32, 4, 1000, 1);
    struct gguf *g = open_built("shrinks.gguf");
    numoe_error err = {0};
    static unsigned char buf[16000];
    cr_assert_eq(truncate(path_of("shrinks.gguf"), 8000), 0);
    cr_assert_eq(gguf_read_tensor(g, &g->tensor[0], 0, 16000, buf, &err), NUMOE_E_FILE_OPEN);
    cr_assert_not_null(strstr(err.text, "offset 8000"), "%s", err.text);
    cr_assert_not_null(strstr(err.text, "tensor a"), "%s", err.text);
    gguf_close(g);
    gb_free(&b);
}

/* ------------------------------------------------------------------ what is refused */

Test(gguf, versions_that_cannot_be_read)
{
    const struct {
        uint32_t version;
        const char *part;
    } bad[] = {
        {0, "version 0"},           {1, "version 1, which"},    {4, "version 4"},
        {0x03000000, "big-endian"}, {0x02000000, "big-endian"},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        gb_init(&b, bad[i].version);
        gb_finish(&b);
        expect_refused(NUMOE_E_FILE_FORMAT, bad[i].part);
    }
}

Test(gguf, duplicates)
{
    gb_init(&b, 3);
    gb_u32(&b, "twice", 1);
    gb_u32(&b, "once", 1);
    gb_u32(&b, "twice", 1);
    gb_finish(&b);
    expect_refused(NUMOE_E_FILE_FORMAT, "key twice is there twice");
    gb_init(&b, 3);
    gb_tensor(&b, "x", FORMAT_F32, 1, 1, 1);
    gb_tensor(&b, "y", FORMAT_F32, 1, 1, 1);
    gb_tensor(&b, "x", FORMAT_F32, 1, 1, 1);
    gb_finish(&b);
    expect_refused(NUMOE_E_FILE_FORMAT, "tensor x is there twice");
}

Test(gguf, arrays_of_arrays)
{
    gb_init(&b, 3);
    gb_array(&b, "nested", GGUF_ARRAY, 1);
    gb_number(&b, GGUF_U8, 4), gb_number(&b, 1, 8), gb_number(&b, 1, 1);
    gb_finish(&b);
    expect_refused(NUMOE_E_FILE_FORMAT, "nested: offset 42: an array of arrays");
}

Test(gguf, types_that_are_not_known)
{
    gb_init(&b, 3);
    gb_key(&b, "odd", 13);
    gb_number(&b, 0, 8);
    gb_finish(&b);
    expect_refused(NUMOE_E_FILE_FORMAT, "key odd: offset 35: value type 13");
    gb_init(&b, 3);
    gb_tensor(&b, "odd", 200, 1, 1, 1);
    gb_finish(&b);
    expect_refused(NUMOE_E_FILE_FORMAT, "tensor odd: offset 47: tensor type 200");
}

Test(gguf, counts_that_no_file_can_hold)
{
    const uint64_t many = UINT64_C(1) << 60;
    gb_init(&b, 3);
    gb_put(&b, 8, many, 8);
    expect_refused(NUMOE_E_FILE_FORMAT, "offset 8: the number of tensors (1152921504606846976)");
    gb_init(&b, 3);
    gb_put(&b, 16, many, 8);
    expect_refused(NUMOE_E_FILE_FORMAT, "offset 16: the number of metadata keys");
    gb_init(&b, 3);
    gb_array(&b, "key", GGUF_STRING, many);
    gb_finish(&b);
    expect_refused(NUMOE_E_FILE_FORMAT, "key key: offset 43: the array's length");
    gb_init(&b, 3);
    gb_array(&b, "key", GGUF_U64, UINT64_C(1) << 61); /* whose bytes are 0 modulo 2^64 */
    gb_finish(&b);
    expect_refused(NUMOE_E_FILE_FORMAT, "the array's length");
    gb_init(&b, 3);
    gb_key(&b, "key", GGUF_STRING), gb_number(&b, many, 8);
    gb_finish(&b);
    expect_refused(NUMOE_E_FILE_FORMAT, "key key: offset 39");
}

Test(gguf, tensors_that_do_not_fit)
{
    gb_init(&b, 3);
    gb_tensor(&b, "cut", FORMAT_F32, 100, 1, 1);
    gb_finish(&b);
    b.len--;
    expect_refused(NUMOE_E_FILE_FORMAT, "tensor cut: ");
    const uint64_t rows = UINT64_C(1) << 31;
    gb_init(&b, 3);
    gb_tensor(&b, "wide", FORMAT_F32, rows, 1, 1);
    gb_put(&b, 24 + 8 + 4, 3, 4); /* three dimensions: 2^31 each */
    b.len -= 12;
    gb_number(&b, rows, 8), gb_number(&b, rows, 8), gb_number(&b, FORMAT_F32, 4);
    gb_number(&b, 0, 8);
    gb_put(&b, 8, 1, 8);
    expect_refused(NUMOE_E_FILE_FORMAT, "tensor wide: offset 56: dimension 2 is 2147483648");
    gb_init(&b, 3);
    gb_tensor(&b, "vast", FORMAT_F32, UINT64_C(1) << 62, 1, 1); /* whose bytes are 0 modulo 2^64 */
    b.tensor[0].bytes = 0;
    gb_finish(&b);
    expect_refused(NUMOE_E_FILE_FORMAT, "tensor vast: offset 48: 4611686018427387904 elements");
    gb_init(&b, 3);
    gb_tensor(&b, "ragged", FORMAT_Q8_0, 33, 1, 1);
    gb_finish(&b);
    expect_refused(NUMOE_E_FILE_FORMAT, "a row of 33 elements is no multiple of 32");
    gb_init(&b, 3);
    gb_tensor(&b, "none", FORMAT_F32, 0, 1, 1);
    gb_finish(&b);
    expect_refused(NUMOE_E_FILE_FORMAT, "tensor none: offset 40: dimension 0 is 0");
}

Test(gguf, names_that_are_none)
{
    gb_init(&b, 3);
    gb_u32(&b, "", 1);
    gb_finish(&b);
    expect_refused(NUMOE_E_FILE_FORMAT, "the key is empty");
    gb_init(&b, 3);
    gb_u32(&b, "abc", 1);
    gb_finish(&b);
    b.bytes[24 + 8 + 1] = 0;
    expect_refused(NUMOE_E_FILE_FORMAT, "metadata 0: offset 24: the key is empty, longer");
    gb_init(&b, 3);
    gb_tensor(&b, "", FORMAT_F32, 1, 1, 1);
    gb_finish(&b);
    expect_refused(NUMOE_E_FILE_FORMAT, "tensor 0: offset 24: the tensor's name is empty");
}

Test(gguf, files_that_are_none)
{
    expect_failure(path_of("absent.gguf"), NUMOE_E_FILE_OPEN, "No such file");
    expect_failure(dir, NUMOE_E_FILE_OPEN, "is a directory");
    cr_assert_eq(mkfifo(path_of("fifo"), 0600), 0);
    expect_failure(path_of("fifo"), NUMOE_E_FILE_OPEN, "is not a regular file");
    FILE *file = fopen(path_of("empty"), "wb");
    fclose(file);
    expect_failure(path_of("empty"), NUMOE_E_FILE_FORMAT, "is empty");
    file = fopen(path_of("text"), "wb");
    fputs("GGU", file);
    fclose(file);
    expect_failure(path_of("text"), NUMOE_E_FILE_FORMAT, "is not a GGUF file");
    file = fopen(path_of("text"), "wb");
    fputs("{\"json\": true, \"long enough to be a header\": 1}", file);
    fclose(file);
    expect_failure(path_of("text"), NUMOE_E_FILE_FORMAT, "is not a GGUF file");
}

Test(gguf, files_that_may_not_be_read)
{
    if (geteuid() == 0) {
        cr_skip("root may read everything");
    }
    gb_init(&b, 3);
    gb_finish(&b);
    cr_assert(gb_write(&b, path_of("secret.gguf")));
    cr_assert_eq(chmod(path_of("secret.gguf"), 0), 0);
    expect_failure(path_of("secret.gguf"), NUMOE_E_FILE_OPEN, "Permission denied");
    gb_free(&b);
}

/* ------------------------------------------------------------------ split models */

static void write_part(const char *name, unsigned no, unsigned n_part, int n_tensor,
                       const char *tensor, const char *arch)
{
    gb_init(&b, 3);
    if (arch) {
        gb_string(&b, "general.architecture", arch);
    }
    gb_u16(&b, "split.no", (uint16_t)no);
    gb_u16(&b, "split.count", (uint16_t)n_part);
    gb_key(&b, "split.tensors.count", GGUF_I32), gb_number(&b, (uint32_t)n_tensor, 4);
    if (tensor) {
        gb_tensor(&b, tensor, FORMAT_F32, 8 + no, 1, 1);
    }
    gb_finish(&b);
    cr_assert(gb_write(&b, path_of(name)));
    gb_free(&b);
}

static void write_split(void)
{
    write_part("m-00001-of-00003.gguf", 0, 3, 2, NULL,
               "deepseek2"); /* no tensors: that is allowed */
    write_part("m-00002-of-00003.gguf", 1, 3, 2, "second", NULL);
    write_part("m-00003-of-00003.gguf", 2, 3, 2, "first", NULL);
}

Test(gguf, split_model)
{
    write_split();
    struct gguf *g;
    numoe_error err = {0};
    unsigned char last;
    cr_assert_eq(gguf_open(path_of("m-00001-of-00003.gguf"), &g, &err), NUMOE_OK, "%s", err.text);
    cr_assert_eq(g->n_part, 3);
    cr_assert_eq(g->n_tensor, 2);
    cr_assert_eq(g->tensor_bytes, 4 * (9 + 10));
    cr_assert_str_eq(g->part[2].path, path_of("m-00003-of-00003.gguf"));
    const struct gguf_tensor *t = gguf_find_tensor(g, "first");
    cr_assert_not_null(t);
    cr_assert_eq(t->part, 2);
    cr_assert_eq(gguf_read_tensor(g, t, 39, 1, &last, &err), NUMOE_OK, "%s", err.text);
    cr_assert_eq(last, 39);
    cr_assert_eq(gguf_find_tensor(g, "second")->part, 1);
    cr_assert_not_null(gguf_find(g, "general.architecture"));
    gguf_close(g);
}

Test(gguf, split_model_by_another_part)
{
    write_split();
    expect_failure(path_of("m-00002-of-00003.gguf"), NUMOE_E_FILE_MODEL,
                   "is part 2 of 3 of a split model; name the first part, ");
    struct gguf *g;
    numoe_error err = {0};
    gguf_open(path_of("m-00002-of-00003.gguf"), &g, &err);
    cr_assert_not_null(strstr(err.text, path_of("m-00001-of-00003.gguf")), "%s", err.text);
}

Test(gguf, split_model_with_a_missing_part)
{
    write_split();
    cr_assert_eq(unlink(path_of("m-00003-of-00003.gguf")), 0);
    expect_failure(path_of("m-00003-of-00003.gguf"), NUMOE_E_FILE_OPEN, "No such file");
    struct gguf *g = NULL;
    numoe_error err = {0};
    cr_assert_eq(gguf_open(path_of("m-00001-of-00003.gguf"), &g, &err), NUMOE_E_FILE_OPEN);
    cr_assert_not_null(strstr(err.text, "part 3 of 3"), "%s", err.text);
    cr_assert_not_null(strstr(err.text, path_of("m-00003-of-00003.gguf")), "%s", err.text);
}

/* The text names the foreign part's file. */
static void expect_foreign(numoe_status status, const char *named, const char *part)
{
    struct gguf *g = NULL;
    numoe_error err = {0};
    cr_assert_eq(gguf_open(path_of("m-00001-of-00003.gguf"), &g, &err), status, "%s", err.text);
    cr_assert_not_null(strstr(err.text, path_of(named)), "%s", err.text);
    cr_assert_not_null(strstr(err.text, part), "%s", err.text);
}

Test(gguf, split_model_with_a_foreign_part)
{
    write_split();
    write_part("m-00002-of-00003.gguf", 1, 4, 2, "second", NULL);
    expect_foreign(NUMOE_E_FILE_MODEL, "m-00002-of-00003.gguf",
                   "is part 2 of 4, expected part 2 of 3");
    write_part("m-00002-of-00003.gguf", 2, 3, 2, "second", NULL);
    expect_foreign(NUMOE_E_FILE_MODEL, "m-00002-of-00003.gguf",
                   "is part 3 of 3, expected part 2 of 3");
    write_part("m-00002-of-00003.gguf", 1, 3, 7, "second", NULL);
    expect_foreign(NUMOE_E_FILE_MODEL, "m-00002-of-00003.gguf", "another model");
    write_part("m-00002-of-00003.gguf", 1, 3, 2, "second", "llama");
    expect_foreign(NUMOE_E_FILE_MODEL, "m-00002-of-00003.gguf", "another model");
    write_part("m-00002-of-00003.gguf", 1, 3, 2, "first", NULL);
    expect_foreign(NUMOE_E_FILE_FORMAT, "m-00003-of-00003.gguf", "tensor first is there twice");
    write_part("m-00002-of-00003.gguf", 1, 3, 2, NULL, NULL);
    expect_foreign(NUMOE_E_FILE_MODEL, "m-00001-of-00003.gguf", "split.tensors.count is 2");
}

Test(gguf, split_model_under_another_name)
{
    write_part("renamed.gguf", 0, 3, 2, NULL, "deepseek2");
    expect_failure(path_of("renamed.gguf"), NUMOE_E_FILE_MODEL, "must end in -00001-of-00003.gguf");
    write_part("renamed.gguf", 1, 3, 2, NULL, "deepseek2");
    expect_failure(path_of("renamed.gguf"), NUMOE_E_FILE_MODEL, "name the first part");
}

Test(gguf, a_split_of_one_is_a_whole_file)
{
    write_part("whole.gguf", 0, 1, 1, "x", "deepseek2");
    struct gguf *g;
    numoe_error err = {0};
    cr_assert_eq(gguf_open(path_of("whole.gguf"), &g, &err), NUMOE_OK, "%s", err.text);
    cr_assert_eq(g->n_part, 1);
    gguf_close(g);
}
