/*
numbers.h -- 16-bit values, bfloat16 and IEEE binary16, to float and back, rounded to nearest even, identical
on
every compiler and machine; a random generator; a hash.

    bfloat16   1 sign, 8 exponent, 7 fraction: the upper half of a float
    binary16   1 sign, 5 exponent, 10 fraction; below 2^-14 in steps of 2^-24; from 65520 on infinite

NaN becomes a quiet NaN. test_util.c
*/
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t half_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float half_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float half_from_bfloat16(uint16_t value) {
    return half_float((uint32_t)value << 16);
}

static inline uint16_t half_to_bfloat16(float value) {
    uint32_t bits = half_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) { return (uint16_t)(bits >> 16 | 0x40u); }
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static inline float half_from_float16(uint16_t value) {
    uint32_t sign = (uint32_t)(value & 0x8000u) << 16, exponent = value >> 10 & 31u,
             fraction = value & 0x3ffu;
    if (exponent == 31) { return half_float(sign | 0x7f800000u | fraction << 13); }
    if (exponent > 0) { return half_float(sign | (exponent + 112) << 23 | fraction << 13); }
    return half_float(sign | half_bits((float)fraction * 0x1p-24f));
}

static inline uint16_t half_to_float16(float value) {
    uint32_t bits = half_bits(value), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) { return (uint16_t)(sign | 0x7e00u | (size >> 13 & 0x3ffu)); }
    if (size >= half_bits(65520.0f)) { return (uint16_t)(sign | 0x7c00u); }
    if (size < half_bits(0x1p-14f)) {  // adding 0.5, whose last place is 2^-24, rounds correctly
        return (uint16_t)(sign | (half_bits(half_float(size) + 0.5f) - half_bits(0.5f)));
    }
    return (uint16_t)(sign | (size + 0xfffu + (size >> 13 & 1u) - (112u << 23)) >> 13);
}

// --- rng -----------------------------------------------------------------------------------------------

// Small, seedable, identical on every machine: splitmix64 (Steele, Lea, Flood, OOPSLA'14).
//
// The state is one 64-bit word, so saving a position means copying a number. Integers only: no dependence
// on a compiler's floating point.

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

// Uniform in [0, n), n >= 1. The multiply-shift bias is below n / 2^32, negligible here.
static inline uint32_t rng_below(Rng* rng, uint32_t n) {
    return (uint32_t)(((rng_u64(rng) >> 32) * (uint64_t)n) >> 32);
}

// Uniform in [lo, hi], both included.
static inline int32_t rng_between(Rng* rng, int32_t lo, int32_t hi) {
    return lo + (int32_t)rng_below(rng, (uint32_t)(hi - lo) + 1u);
}

// --- hash ----------------------------------------------------------------------------------------------

// A 64-bit hash of bytes: FNV-1a over 8-byte words, finished by splitmix64's mixer.
//
// Detects accidents (a flipped bit, ranks with different plans), not attacks. Little-endian machines only,
// as all file formats here.

#define HASH_SEED 0xcbf29ce484222325u

// Continues `hash` with num_bytes at data; begin with HASH_SEED. Splitting a buffer gives the same value
// only if the first part's length is a multiple of 8.
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
