/*
gelu.c -- GELU of gelu.h over arrays.
*/
#include "context.h"
#include "gelu.h"

void gelu_forward(floatX* out, const floatX* inp, size_t num_values, OpsContext* ops) {
#pragma omp parallel for simd num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (size_t i = 0; i < num_values; i++) {
        const float x = inp[i];
        out[i] = x / (1.0f + gelu_e(x));
    }
}

void gelu_backward(floatX* dinp, const floatX* dout, const floatX* inp, size_t num_values, OpsContext* ops) {
#pragma omp parallel for simd num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (size_t i = 0; i < num_values; i++) {
        const float x = inp[i], e = gelu_e(x);
        dinp[i] = dout[i] * gelu_slope(x, e, 1.0f / (1.0f + e));
    }
}
