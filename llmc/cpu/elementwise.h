/*
elementwise.h -- GELU, tanh approximation (Hendrycks, Gimpel 2016, section 2), as x times a logistic function:

    0.5 x (1 + tanh u) = x s,   s = 1 / (1 + e),   e = exp(-2 u),   u = sqrt(2 / pi) (x + 0.044715 x^3)
    d/dx = s + x s (1 - s) 2 u',   1 - s = e s

This form has no cancellation: the relative error stays near that of exp, 2e-7, also in the negative tail.
*/
#pragma once

#include "fast_math.h"

#define GELU_SCALE 1.5957691216f  // 2 sqrt(2 / pi)
#define GELU_CUBIC (GELU_SCALE * 0.044715f)

static inline float gelu_e(float x) {
    return fast_expf(-x * (GELU_SCALE + GELU_CUBIC * x * x));
}

// s = 1 / (1 + e)
static inline float gelu_slope(float x, float e, float s) {
    return s + x * (e * s) * s * (GELU_SCALE + 3.0f * GELU_CUBIC * x * x);
}
