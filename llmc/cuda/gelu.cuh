/*
gelu.cuh -- GELU, tanh approximation (Hendrycks, Gimpel 2016, section 2), as x times a logistic function:

    0.5 x (1 + tanh u) = x s,   s = 1 / (1 + e),   e = exp(-2 u),   u = sqrt(2 / pi) (x + 0.044715 x^3)
    d/dx = s + x s (1 - s) 2 u',   1 - s = e s

Written so, nothing cancels: the relative error stays near that of exp, also in the negative tail.
*/
#pragma once

#include "vector.cuh"

#define GELU_SCALE 1.5957691216f  // 2 sqrt(2 / pi)
#define GELU_CUBIC (GELU_SCALE * 0.044715f)

// e = exp(-2 u). From 80 on, 1 / (1 + e) is below 2e-35 and e s still finite.
static __device__ __forceinline__ float gelu_e(float x) {
    return floatx_exp(fminf(-x * (GELU_SCALE + GELU_CUBIC * x * x), 80.0f));
}

static __device__ __forceinline__ float gelu_divide(float a, float b) {
#ifdef LLMC_BF16
    return __fdividef(a, b);  // 2 ulp of float32
#else
    return a / b;
#endif
}

static __device__ __forceinline__ float gelu_value(float x) {
    return gelu_divide(x, 1.0f + gelu_e(x));
}

// d/dx; s is 1 / (1 + e).
static __device__ __forceinline__ float gelu_slope(float x, float e, float s) {
    return s + x * (e * s) * s * (GELU_SCALE + 3.0f * GELU_CUBIC * x * x);
}

static __device__ __forceinline__ float gelu_slope(float x) {
    const float e = gelu_e(x);
    return gelu_slope(x, e, gelu_divide(1.0f, 1.0f + e));
}
