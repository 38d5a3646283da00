/*
floatx.h -- floatX and float on the host, in C and C++: conversion of arrays. (Value by value: util/numbers.h)
*/
#pragma once

#include <stddef.h>
#include <string.h>

#include "../util/numbers.h"
#include "ops.h"

static inline void floatx_from_floats(floatX* out, const float* in, size_t num_values) {
#ifdef LLMC_BF16
    for (size_t i = 0; i < num_values; i++) {
        uint16_t bits = half_to_bfloat16(in[i]);
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
        out[i] = half_from_bfloat16(bits);
    }
#else
    if (num_values > 0) { memmove(out, in, num_values * sizeof *out); }
#endif
}
