/* The sampler's source of randomness and its exponential, in the open for tests. */
#ifndef NUMOE_RUNTIME_SAMPLER_H
#define NUMOE_RUNTIME_SAMPLER_H

#include <stdint.h>

/* SplitMix64 (Steele, Lea, Flood 2014): one 64-bit addition and a mix; any state is a good one. */
uint64_t sampler_random(uint64_t *state);

/* floor(2^SAMPLER_WEIGHT_BITS * exp(x)) up to the last few units, for x <= 0. */
#define SAMPLER_WEIGHT_BITS 40
uint64_t sampler_weight(double x);

#endif
