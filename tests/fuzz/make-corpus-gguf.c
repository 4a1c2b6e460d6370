/* Writes the seeds of corpus-gguf: make-corpus-gguf DIR. One file for each variant of the tiny
 * model and one with every type of value, so that mutation starts from whole files.
 */
#include "tests/unit/tinymodel.h"

static struct ggufbuild b;

static int save(const char *dir, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int ok = gb_write(&b, path);
    gb_free(&b);
    if (!ok) {
        perror(path);
    }
    return !ok;
}

static void build_values(void)
{
    gb_init(&b, 2);
    for (unsigned type = GGUF_U8; type < GGUF_N_TYPE; type++) {
        static const unsigned bytes[GGUF_N_TYPE] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
        char key[16];
        snprintf(key, sizeof key, "key%u", type);
        if (type == GGUF_STRING) {
            gb_string(&b, key, "text");
        } else if (type == GGUF_ARRAY) {
            gb_array(&b, key, GGUF_STRING, 2), gb_text(&b, "one"), gb_text(&b, "two");
        } else {
            gb_key(&b, key, type), gb_number(&b, 7, bytes[type]);
        }
    }
    gb_tensor(&b, "a", FORMAT_Q8_0, 32, 2, 2);
    gb_tensor(&b, "b", FORMAT_Q4_K, 256, 1, 1);
    gb_finish(&b);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        struct tiny o;
    } seed[] = {
        {"whole", {.q_lora = true, .yarn = true, .gating = 2, .n_group = 2}},
        {"older", {.kv_b = true, .per_expert = true, .tied = true, .gating = 1, .n_group = 2}},
        {"flat", {.kv_b_too = true, .flat = true, .n_nextn = 1}},
        {"adapter", {.type = "adapter"}},
    };
    if (argc != 2) {
        fprintf(stderr, "usage: make-corpus-gguf DIR\n");
        return 1;
    }
    int n_bad = 0;
    for (size_t i = 0; i < sizeof seed / sizeof *seed; i++) {
        tiny_build(&b, 3, &seed[i].o);
        n_bad += save(argv[1], seed[i].name);
    }
    build_values();
    return n_bad + save(argv[1], "values") > 0;
}
