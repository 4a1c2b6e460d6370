/* A step as the GPU program gets it, and the bells of its hand-offs. */
#include <string.h>

#include "runtime/gpu-impl.h"

/* Tokens of one sequence stand together. */
static uint32_t write_tokens(struct gpu *g, const struct step_token *tokens, unsigned n,
                             uint64_t slot)
{
    struct exchange_token *token = exchange_at(g->h, g->header.token_at[slot]);
    struct exchange_seq *seq = exchange_at(g->h, g->header.seq_at[slot]);
    uint32_t n_seq = 0;
    g->n_logits = 0;
    for (unsigned i = 0; i < n; i++) {
        const struct step_token *t = &tokens[i];
        if (i == 0 || t->gpu != tokens[i - 1].gpu) {
            seq[n_seq++] =
                (struct exchange_seq){.row = t->gpu->row, .token0 = i, .n_block = t->gpu->n_block};
        }
        seq[n_seq - 1].n_token++;
        g->logits_row[i] = t->want_logits ? g->n_logits++ : EXCHANGE_NO_LOGITS;
        token[i] = (struct exchange_token){
            .id = t->id, .position = t->position, .seq = n_seq - 1, .logits = g->logits_row[i]};
    }
    return n_seq;
}

void gpu_begin(struct gpu *g, const struct step_token *tokens, unsigned n)
{
    const uint64_t number = ++g->step, slot = number % 2;
    struct exchange_step *step = exchange_at(g->h, g->header.step_at[slot]);
    const uint32_t n_seq = write_tokens(g, tokens, n, slot);
    memcpy(exchange_at(g->h, g->header.copy_at[slot]), g->copy, g->n_copy * sizeof *g->copy);
    *step = (struct exchange_step){
        .number = number,
        .first_hand = g->hand + 1,
        .n_token = n,
        .n_seq = n_seq,
        .n_copy = g->n_copy,
        .n_logits = g->n_logits,
    };
    g->n_copy = 0;
    g->n_token = n;
    g->n_step++;
    gpu_program_ring_step(g->program, number);
}

bool gpu_wait_hand(struct gpu *g)
{
    if (!gpu_program_wait(g->program, &g->h->x, g->hand + 1)) {
        return false;
    }
    g->hand++;
    return true;
}

struct experts_given gpu_given(const struct gpu *g)
{
    const uint64_t slot = g->hand % 2;
    const void *x = exchange_at(g->h, g->header.x_at[slot]);
    return (struct experts_given){
        .x = g->header.x_type == EXCHANGE_X_F32 ? x : NULL,
        .x_bf16 = g->header.x_type == EXCHANGE_X_BF16 ? x : NULL,
        .ids = exchange_at(g->h, g->header.id_at[slot]),
        .weights = exchange_at(g->h, g->header.weight_at[slot]),
    };
}

float *gpu_y(const struct gpu *g)
{
    return exchange_at(g->h, g->header.y_at[g->hand % 2]);
}

const float *gpu_stream(const struct gpu *g)
{
    return exchange_at(g->h, g->header.x_at[g->hand % 2]);
}

void gpu_ring_y(struct gpu *g)
{
    exchange_bell_ring(&g->h->y, g->hand);
}

bool gpu_wait_result(struct gpu *g)
{
    return gpu_program_wait(g->program, &g->h->result, g->step);
}

const float *gpu_logits(const struct gpu *g, unsigned i)
{
    const uint32_t row = g->logits_row[i];
    if (row == EXCHANGE_NO_LOGITS) {
        return NULL;
    }
    const float *logits = exchange_at(g->h, g->header.logits_at[g->step % 2]);
    return logits + (size_t)row * g->header.n_vocab;
}

struct experts_given gpu_routes(const struct gpu *g, unsigned i_route)
{
    const struct exchange_header *h = &g->header;
    const uint64_t slot = g->step % 2;
    const size_t at = (size_t)i_route * h->max_tokens * h->n_expert_used;
    return (struct experts_given){
        .ids = (const int32_t *)exchange_at(g->h, h->route_id_at[slot]) + at,
        .weights = (const float *)exchange_at(g->h, h->route_weight_at[slot]) + at,
    };
}

void gpu_blame(struct gpu *g, const char *text)
{
    gpu_program_blame(g->program, text);
}
