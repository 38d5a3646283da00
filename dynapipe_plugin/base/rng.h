/*
rng.h -- small, seedable, identical on every machine: splitmix64 (Steele, Lea, Flood, OOPSLA'14).

One 64-bit word of state, so a position is saved and restored by copying a number. Integers only: nothing
here depends on a compiler's floating point.
*/
#pragma once

#include <stdint.h>

typedef struct {
    uint64_t state;
} Rng;

static inline uint64_t rng_mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline Rng rng_seed(uint64_t seed) {
    Rng rng = {rng_mix(seed + 0x9e3779b97f4a7c15u)};
    return rng;
}

static inline uint64_t rng_u64(Rng* rng) {
    return rng_mix(rng->state += 0x9e3779b97f4a7c15u);
}

// Uniform in [0, n), n >= 1. The multiply-shift bias is below n / 2^32: far under what any use here can see.
static inline uint32_t rng_below(Rng* rng, uint32_t n) {
    return (uint32_t)(((rng_u64(rng) >> 32) * (uint64_t)n) >> 32);
}

// Uniform in [lo, hi], both included.
static inline int32_t rng_between(Rng* rng, int32_t lo, int32_t hi) {
    return lo + (int32_t)rng_below(rng, (uint32_t)(hi - lo) + 1u);
}
