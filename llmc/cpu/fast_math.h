/*
fast_math.h -- exp in straight-line float arithmetic, so that loops around it vectorise.

    exp(x) = 2^n exp(r),  n = round(x / ln 2),  r = x - n ln 2 in two parts (Cody, Waite 1980),  |r| <= ln 2 /
2

exp(r) is a polynomial of degree 6 (minimax, relative error 2e-8 before rounding); measured over all floats in
[-87, 88]: relative error below 1.2e-7 (2 ulp), tested in test_ops.c. x < -87.3 gives exactly 0 (no
subnormals), x > 88.3 gives exp(88.3): finite, so 1 / (1 + exp(x)) needs no special case; NaN stays NaN.
*/
#pragma once

#include <stdint.h>
#include <string.h>

static inline float fast_expf(float x) {
    const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits
    float c = x > 88.3f ? 88.3f : x;
    c = c < -87.3f ? -87.3f : c;
    float shifted = c * 1.44269504f + magic;
    float n = shifted - magic;
    float r = c - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits << 23) + 0x3f800000u;  // the magic's own bits are shifted out
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return x < -87.3f ? 0.0f : p * scale;
}
