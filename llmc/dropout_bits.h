/*
dropout_bits.h -- the dropout mask: a hash of counters, the same on CPU and GPU.

A value is dropped if its 32 bits are below dropout_threshold(p). Counter-based like Philox (Salmon et al.
2011), but with two rounds of a multiplicative mixer: a mask needs speed and no more than 16 good bits.
*/
#pragma once

#include <stdint.h>

#if defined(__CUDACC__)
#define DROPOUT_INLINE static inline __host__ __device__
#else
#define DROPOUT_INLINE static inline
#endif

// A mixer of 32 bits (Wellons 2018, "lowbias32": bias 0.17).
DROPOUT_INLINE uint32_t dropout_mix(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

// The key of a row: a token's key at a place of the model ...
DROPOUT_INLINE uint32_t dropout_row(uint32_t token_key, uint32_t place) {
    return dropout_mix(token_key ^ dropout_mix(place * 0x9e3779b9u + 0x7f4a7c15u));
}

// ... of a row of one head's attention probabilities ...
DROPOUT_INLINE uint32_t dropout_head_row(uint32_t q_key, uint32_t place, uint32_t head) {
    return dropout_row(q_key, place) + head * 0x85ebca6bu;
}

// ... and of one value in it: a column; for a probability the key token's key.
DROPOUT_INLINE uint32_t dropout_bits(uint32_t row, uint32_t column) {
    return dropout_mix(row + column * 0x9e3779b9u);
}

// 0 <= p < 1
DROPOUT_INLINE uint32_t dropout_threshold(float p) {
    return (uint32_t)((double)p * 4294967296.0);
}
