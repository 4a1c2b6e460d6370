/* Text on its way to token ids, and generated text on its way to stdout. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

int tokenize(const numoe_engine *engine, const char *text, size_t bytes, unsigned flags,
             struct ids *ids)
{
    size_t n,
        cap = bytes + 8; /* a token has a byte at least, but for what begins and ends a text */
    numoe_error err;

    for (;;) {
        int32_t *id = malloc(cap * sizeof *id);
        if (!id) {
            return fail(EXIT_LACKING, "no memory for %zu tokens", cap);
        }
        if (numoe_tokenize(engine, text, bytes, flags, id, cap, &n, &err) != NUMOE_OK) {
            free(id);
            return fail_status(&err);
        }
        if (n <= cap) {
            *ids = (struct ids){.id = id, .n = n};
            return EXIT_OK;
        }
        free(id);
        cap = n;
    }
}

void text_out_init(struct text_out *out, bool quiet)
{
    *out = (struct text_out){0};
    progress_init(&out->prompt, "reading the prompt", quiet);
}

static bool written(struct text_out *out, bool ok)
{
    if (!ok && !out->failed) {
        fail(EXIT_WORK, "standard output: %s", strerror(errno));
        out->failed = true;
    }
    return ok;
}

bool text_out_write(void *text_out, const char *text, size_t bytes)
{
    struct text_out *out = text_out;

    out->last = text[bytes - 1];
    return written(out, fwrite(text, 1, bytes, stdout) == bytes && fflush(stdout) == 0);
}

void text_out_prompt(void *text_out, size_t n_done, size_t n_total)
{
    struct text_out *out = text_out;

    if (n_done == n_total) {
        progress_end(&out->prompt);
    } else {
        progress_update(&out->prompt, (double)n_done / (double)n_total);
    }
}

void text_out_end(struct text_out *out, bool ok)
{
    progress_end(&out->prompt);
    if ((ok || out->last) && out->last != '\n' && !out->failed) {
        written(out, putchar('\n') != EOF && fflush(stdout) == 0);
    }
}
