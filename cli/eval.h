/* The two halves of numoe eval. */
#ifndef NUMOE_CLI_EVAL_H
#define NUMOE_CLI_EVAL_H

#include "cli/cli.h"

struct eval_options {
    struct model_options model;
    const char *perplexity; /* text file */
    uint64_t window;
    bool has_mode;
    const char *logits; /* JSON file of ids */
    const char *output; /* .npy file of logits */
    const char *routes; /* .json file of routes */
    struct profile_options profile;
};

/* Exit statuses. Both open the engine themselves, when all else that can be refused is in order. */
int eval_perplexity(struct eval_options *o, const struct text *text);
int eval_logits(const struct eval_options *o, const struct ids *ids);
/* Opens an engine whose context has room for "a window" of n_token, and says what it is. */
int eval_engine(const struct eval_options *o, const char *what, size_t n_token,
                numoe_engine **engine);
/* A JSON array of token ids. */
int read_ids(const char *path, struct ids *ids);

#endif
