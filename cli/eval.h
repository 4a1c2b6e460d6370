/* The two halves of numoe eval. */
#ifndef NUMOE_CLI_EVAL_H
#define NUMOE_CLI_EVAL_H

#include "cli/cli.h"

struct eval_options {
    struct model_options model;
    const char *perplexity; /* text file */
    uint64_t window;
    const char *logits; /* JSON file of ids */
    const char *output; /* .npy file of logits */
    const char *routes; /* .json file of routes */
};

/* Exit statuses. */
int eval_perplexity(const struct eval_options *o, numoe_engine *engine, const struct text *text);
int eval_logits(const struct eval_options *o, numoe_engine *engine, const struct ids *ids);
/* A JSON array of token ids. */
int read_ids(const char *path, struct ids *ids);

#endif
