/*
gated_gelu.c -- GELU of one half of a row times the other half (Shazeer 2020, "GLU Variants": GEGLU).

    out = gelu(a) b,   da = dout b gelu'(a),   db = dout gelu(a)
*/
#include "context.h"
#include "gelu.h"

void gated_gelu_forward(floatX* out, const floatX* inp, int T, int F, OpsContext* ops) {
    const size_t num_values = (size_t)T * (size_t)F;
#pragma omp parallel for num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (int t = 0; t < T; t++) {
        const floatX *a = inp + (size_t)t * 2 * (size_t)F, *b = a + F;
        floatX* y = out + (size_t)t * (size_t)F;
#pragma omp simd
        for (int c = 0; c < F; c++) { y[c] = a[c] / (1.0f + gelu_e(a[c])) * b[c]; }
    }
}

void gated_gelu_backward(floatX* dinp, const floatX* dout, const floatX* inp, int T, int F, OpsContext* ops) {
    const size_t num_values = (size_t)T * (size_t)F;
#pragma omp parallel for num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (int t = 0; t < T; t++) {
        const floatX *a = inp + (size_t)t * 2 * (size_t)F, *b = a + F, *d = dout + (size_t)t * (size_t)F;
        floatX *da = dinp + (size_t)t * 2 * (size_t)F, *db = da + F;  // may be a, b
#pragma omp simd
        for (int c = 0; c < F; c++) {
            const float x = a[c], y = b[c], e = gelu_e(x), s = 1.0f / (1.0f + e);
            da[c] = d[c] * y * gelu_slope(x, e, s);
            db[c] = d[c] * (x * s);
        }
    }
}
