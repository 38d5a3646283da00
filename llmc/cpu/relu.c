/*
relu.c -- the larger of a value and 0. A NaN stays one forward, so that the loss shows it.
*/
#include "context.h"

void relu_forward(floatX* out, const floatX* inp, size_t num_values, OpsContext* ops) {
#pragma omp parallel for simd num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (size_t i = 0; i < num_values; i++) { out[i] = inp[i] <= 0.0f ? 0.0f : inp[i]; }
}

void relu_backward(floatX* dinp, const floatX* dout, const floatX* inp, size_t num_values, OpsContext* ops) {
#pragma omp parallel for simd num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (size_t i = 0; i < num_values; i++) { dinp[i] = inp[i] > 0.0f ? dout[i] : 0.0f; }
}
