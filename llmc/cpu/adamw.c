/*
adamw.c -- AdamW (Loshchilov, Hutter 2019, algorithm 2) in one pass over memory, and the norm for clipping.
*/
#include "context.h"

#include <math.h>

void adamw_update(floatX* params, float* master, float* m, float* v, const float* grads, size_t num_params,
                  int64_t first_idx, const AdamwUpdate* about, OpsContext* ops) {
    (void)master, (void)first_idx;  // params are float32 themselves
    const float beta1 = about->beta1, beta2 = about->beta2, eps = about->eps, grad_scale = about->grad_scale;
    const double correction1 = 1.0 - pow((double)beta1, about->t),
                 correction2 = 1.0 - pow((double)beta2, about->t);
    const float step = (float)((double)about->lr / correction1),
                keep = (float)(1.0 - (double)about->lr * (double)about->weight_decay);
    const float scale2 = (float)(1.0 / sqrt(correction2));
    const float rest1 = 1.0f - beta1, rest2 = 1.0f - beta2;
#pragma omp parallel for simd num_threads(ops->num_threads) if (num_params > OPS_PARALLEL_VALUES)
    for (size_t i = 0; i < num_params; i++) {
        const float g = grads[i] * grad_scale;
        const float mi = m[i] + rest1 * (g - m[i]);
        const float vi = beta2 * v[i] + rest2 * (g * g);
        m[i] = mi;
        v[i] = vi;
        params[i] = params[i] * keep - step * mi / (sqrtf(vi) * scale2 + eps);
    }
}

enum { NORM_BLOCKS = 512 };

// Four sums side by side: a single one would wait for its own additions rather than for memory.
static double norm_block(const float* values, size_t num_values) {
    const size_t n = num_values / 4;
    const float *a = values, *b = a + n, *c = b + n, *d = c + n;
    double sum_a = 0.0, sum_b = 0.0, sum_c = 0.0, sum_d = 0.0;
#pragma omp simd reduction(+ : sum_a, sum_b, sum_c, sum_d)
    for (size_t i = 0; i < n; i++) {
        sum_a += (double)a[i] * (double)a[i];
        sum_b += (double)b[i] * (double)b[i];
        sum_c += (double)c[i] * (double)c[i];
        sum_d += (double)d[i] * (double)d[i];
    }
    double sum = sum_a + sum_b + (sum_c + sum_d);
    for (size_t i = 4 * n; i < num_values; i++) { sum += (double)values[i] * (double)values[i]; }
    return sum;
}

// The number of blocks is fixed and their sums are added in order: the same bits for any number of threads.
double sum_of_squares(const float* values, size_t num_values, OpsContext* ops) {
    double sums[NORM_BLOCKS];
    const size_t block = (num_values + NORM_BLOCKS - 1) / NORM_BLOCKS;
#pragma omp parallel for num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (size_t b = 0; b < NORM_BLOCKS; b++) {
        const size_t begin = b * block < num_values ? b * block : num_values;
        const size_t end = begin + block < num_values ? begin + block : num_values;
        sums[b] = norm_block(values + begin, end - begin);
    }
    double total = 0.0;
    for (int b = 0; b < NORM_BLOCKS; b++) { total += sums[b]; }
    return total;
}
