/*
half.h -- values of 16 bits, bfloat16 and IEEE's binary16, to float and back; rounded to nearest even, the
same on every compiler and machine.

    bfloat16   1 sign, 8 exponent, 7 fraction: the upper half of a float
    binary16   1 sign, 5 exponent, 10 fraction; below 2^-14 in steps of 2^-24; from 65520 on infinite

What is not a number stays that, quietly. test_half.c
*/
#pragma once

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
    if (size < half_bits(0x1p-14f)) {  // added to 0.5, whose last place is 2^-24, a float rounds by itself
        return (uint16_t)(sign | (half_bits(half_float(size) + 0.5f) - half_bits(0.5f)));
    }
    return (uint16_t)(sign | (size + 0xfffu + (size >> 13 & 1u) - (112u << 23)) >> 13);
}
