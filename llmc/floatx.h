/*
floatx.h -- floatX and float on the host, in C and C++: conversion value by value and of arrays; float16 of
files that others write.

bf16 is the upper half of a float32; rounding is to nearest, ties to even; NaN stays NaN.
*/
#pragma once

#include <stddef.h>
#include <string.h>

#include "ops.h"

static inline uint16_t floatx_bf16_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) { return (uint16_t)(bits >> 16 | 0x40u); }
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static inline float floatx_bf16_float(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// IEEE 754 binary16: 1 sign, 5 exponent, 10 mantissa bits. Exact; subnormals, infinities and NaN included.
static inline float floatx_f16_float(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = half >> 10 & 31u, mantissa = half & 1023u;
    float value = (float)mantissa * 0x1p-24f;  // subnormal: exact, and normal in float32
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (exponent == 31) {
        bits = 0x7f800000u | mantissa << 13;
    } else if (exponent > 0) {
        bits = (exponent + 112) << 23 | mantissa << 13;  // 112: difference of the biases 127 and 15
    }
    bits |= sign;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline void floatx_from_floats(floatX* out, const float* in, size_t num_values) {
#ifdef LLMC_BF16
    for (size_t i = 0; i < num_values; i++) {
        uint16_t bits = floatx_bf16_bits(in[i]);
        memcpy(&out[i], &bits, sizeof bits);
    }
#else
    if (num_values > 0) { memmove(out, in, num_values * sizeof *out); }
#endif
}

static inline void floatx_to_floats(float* out, const floatX* in, size_t num_values) {
#ifdef LLMC_BF16
    for (size_t i = 0; i < num_values; i++) {
        uint16_t bits;
        memcpy(&bits, &in[i], sizeof bits);
        out[i] = floatx_bf16_float(bits);
    }
#else
    if (num_values > 0) { memmove(out, in, num_values * sizeof *out); }
#endif
}
