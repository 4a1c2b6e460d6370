/* FNV-1a with 64 bits: tells things apart that nobody tries to make alike. */
#ifndef NUMOE_BASE_HASH_H
#define NUMOE_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define HASH_BEGIN UINT64_C(0xcbf29ce484222325)

static inline uint64_t hash_add(uint64_t hash, uint64_t word)
{
    return (hash ^ word) * UINT64_C(0x100000001b3);
}

/* Byte by byte. */
static inline uint64_t hash_bytes(uint64_t hash, const void *data, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        hash = hash_add(hash, ((const unsigned char *)data)[i]);
    }
    return hash;
}

#endif
