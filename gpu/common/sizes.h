/* A model's sizes as the exchange's header has them, for programs that read models with model/. */
#ifndef NUMOE_GPU_COMMON_SIZES_H
#define NUMOE_GPU_COMMON_SIZES_H

#include "gpu/exchange.h"
#include "model/model.h"

static inline struct exchange_model model_sizes(const struct model *m)
{
    return (struct exchange_model){
        .n_part = m->gguf->n_part,
        .n_layer = m->hp.n_layer,
        .n_embd = m->hp.n_embd,
        .n_vocab = m->hp.n_vocab,
        .n_expert = m->hp.n_expert,
        .n_expert_used = m->hp.n_expert_used,
    };
}

#endif
