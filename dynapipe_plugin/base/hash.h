/*
hash.h -- a 64-bit hash of bytes: FNV-1a over 8-byte words, finished by splitmix64's mixer.

Guards against accidents (a flipped bit, ranks that planned different steps), not against an adversary.
Little-endian machines only, as all file formats here.
*/
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "rng.h"

#define HASH_SEED 0xcbf29ce484222325u

// Continue `hash` with num_bytes at data; start with HASH_SEED. Feeding a buffer in two calls gives the same
// value as in one call only if the first call's length is a multiple of 8.
static inline uint64_t hash_bytes(uint64_t hash, const void* data, size_t num_bytes) {
    const unsigned char* bytes = (const unsigned char*)data;
    for (; num_bytes >= 8; num_bytes -= 8, bytes += 8) {
        uint64_t word;
        memcpy(&word, bytes, 8);
        hash = (hash ^ word) * 0x100000001b3u;
        hash ^= hash >> 29;
    }
    if (num_bytes > 0) {
        uint64_t word = (uint64_t)num_bytes << 56;
        memcpy(&word, bytes, num_bytes);
        hash = (hash ^ word) * 0x100000001b3u;
        hash ^= hash >> 29;
    }
    return hash;
}

static inline uint64_t hash_finish(uint64_t hash) {
    return rng_mix(hash);
}
