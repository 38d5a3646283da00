/*
gelu.c -- GELU, tanh approximation (Hendrycks, Gimpel 2016, section 2), as x times a logistic function:

    0.5 x (1 + tanh u) = x s,   s = 1 / (1 + e),   e = exp(-2 u),   u = sqrt(2 / pi) (x + 0.044715 x^3)
    d/dx = s + x s (1 - s) 2 u',   1 - s = e s

Written so, nothing cancels: the relative error stays near that of exp, 2e-7, also in the negative tail.
*/
#include "context.h"
#include "fast_math.h"

#define GELU_SCALE 1.5957691216f  // 2 sqrt(2 / pi)
#define GELU_CUBIC (GELU_SCALE * 0.044715f)

void gelu_forward(floatX* out, const floatX* inp, size_t num_values, OpsContext* ops) {
#pragma omp parallel for simd num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (size_t i = 0; i < num_values; i++) {
        const float x = inp[i];
        const float e = fast_expf(-x * (GELU_SCALE + GELU_CUBIC * x * x));
        out[i] = x / (1.0f + e);
    }
}

void gelu_backward(floatX* dinp, const floatX* dout, const floatX* inp, size_t num_values, OpsContext* ops) {
#pragma omp parallel for simd num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (size_t i = 0; i < num_values; i++) {
        const float x = inp[i];
        const float e = fast_expf(-x * (GELU_SCALE + GELU_CUBIC * x * x));
        const float s = 1.0f / (1.0f + e);
        dinp[i] = dout[i] * (s + x * (e * s) * s * (GELU_SCALE + 3.0f * GELU_CUBIC * x * x));
    }
}
