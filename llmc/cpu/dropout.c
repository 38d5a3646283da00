/*
dropout.c -- dropout (Srivastava et al. 2014) by the bits of dropout_bits.h: a hash for each value, no state.
*/
#include "../dropout_bits.h"
#include "context.h"

#include <string.h>

void dropout_apply(floatX* out, const floatX* inp, const uint32_t* keys, uint32_t place, float p, int T,
                   int C, OpsContext* ops) {
    const size_t num_values = (size_t)T * (size_t)C;
    const uint32_t threshold = dropout_threshold(p);
    const float scale = 1.0f / (1.0f - p);
    if (p == 0.0f) {
        if (out != inp) { ops_copy(ops, out, inp, num_values * sizeof *out); }
        return;
    }
#pragma omp parallel for num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (int t = 0; t < T; t++) {
        const uint32_t row = dropout_row(keys[t], place);
        const floatX* x = inp + (size_t)t * (size_t)C;
        floatX* y = out + (size_t)t * (size_t)C;
#pragma omp simd
        for (int c = 0; c < C; c++) {
            y[c] = dropout_bits(row, (uint32_t)c) < threshold ? 0.0f : x[c] * scale;
        }
    }
}
