/* Writes the seeds of corpus-tokenizer: make-corpus-tokenizer DIR. Files with a small vocabulary of
 * each kind and a chat template, and texts of many kinds for the fixed vocabularies.
 */
#include "base/mem.h"
#include "tests/unit/ggufbuild.h"

static struct ggufbuild b;

static const char template[] =
    "{{ bos_token }}{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\\n' }}{% endif %}";

static void build(const char *model, const char *pre)
{
    static const char *const token[] = {"<s>", "</s>", "a",  "b",      "ab",        "Ġ",
                                        "Ġa",  "▁",    "▁a", "<0xFF>", "<|im_end|>"};
    static const unsigned type[] = {3, 3, 1, 1, 1, 1, 1, 1, 1, 6, 4};

    gb_init(&b, 3);
    gb_string(&b, "tokenizer.ggml.model", model);
    gb_string(&b, "tokenizer.ggml.pre", pre);
    gb_array(&b, "tokenizer.ggml.tokens", GGUF_STRING, ARRAY_LEN(token));
    for (size_t i = 0; i < ARRAY_LEN(token); i++) {
        gb_text(&b, token[i]);
    }
    gb_array(&b, "tokenizer.ggml.token_type", GGUF_I32, ARRAY_LEN(type));
    for (size_t i = 0; i < ARRAY_LEN(type); i++) {
        gb_number(&b, type[i], 4);
    }
    gb_array(&b, "tokenizer.ggml.scores", GGUF_F32, ARRAY_LEN(type));
    for (size_t i = 0; i < ARRAY_LEN(type); i++) {
        gb_number(&b, 0xbf800000u + i, 4); /* -1 and a little less each */
    }
    gb_array(&b, "tokenizer.ggml.merges", GGUF_STRING, 2);
    gb_text(&b, "a b");
    gb_text(&b, "Ġ a");
    gb_u32(&b, "tokenizer.ggml.bos_token_id", 0);
    gb_u32(&b, "tokenizer.ggml.eos_token_id", 1);
    gb_bool(&b, "tokenizer.ggml.add_bos_token", true);
    gb_bool(&b, "tokenizer.ggml.add_space_prefix", true);
    gb_string(&b, "tokenizer.chat_template", template);
    gb_finish(&b);
}

static int save(const char *dir, const char *name, const void *bytes, size_t n)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "wb");
    int ok = file && fwrite(bytes, 1, n, file) == n;
    ok = file && fclose(file) == 0 && ok;
    if (!ok) {
        perror(path);
    }
    return !ok;
}

/* The first byte picks the vocabulary; see fuzz-tokenizer.c. */
static int save_text(const char *dir, unsigned kind)
{
    static const char text[] =
        "?I'll say: don't SHOUT!  12345 \t\r\n\n  x=foo(bar[1]);\v 漢字、かな 한글 "
        "e\xcc\x81 😀 <s><u></s> \xff\xe4\xb8 aaaabaab";
    char bytes[sizeof text], name[32];
    memcpy(bytes, text, sizeof text);
    bytes[0] = (char)(2 * kind + 1);
    snprintf(name, sizeof name, "text-%02u", kind);
    return save(dir, name, bytes, sizeof text - 1);
}

int main(int argc, char **argv)
{
    int n_bad = 0;
    if (argc != 2) {
        fprintf(stderr, "usage: make-corpus-tokenizer DIR\n");
        return 1;
    }
    build("gpt2", "deepseek-v3");
    n_bad += save(argv[1], "file-bpe", b.bytes, b.len);
    gb_free(&b);
    build("llama", "default");
    n_bad += save(argv[1], "file-spm", b.bytes, b.len);
    gb_free(&b);
    for (unsigned kind = 0; kind < 12; kind++) {
        n_bad += save_text(argv[1], kind);
    }
    return n_bad > 0;
}
