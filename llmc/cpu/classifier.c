/*
classifier.c -- softmax cross entropy over the vocabulary, with the gradient written over the logits.

A row (200 KB for GPT-2) stays in the second-level cache over its three passes: maximum; exp, summed; scaling.
*/
#include "classifier.h"
#include "fast_math.h"

#include <math.h>
#include <string.h>

enum { CLASSIFIER_BLOCK = 256, CLASSIFIER_LANES = 64 };

// Lane by lane, since a maximum may only be reordered where the code says so.
float classifier_row_max(const floatX* x, int num) {
    float lanes[CLASSIFIER_LANES];
    for (int j = 0; j < CLASSIFIER_LANES; j++) { lanes[j] = -INFINITY; }
    int i = 0;
    for (; i + CLASSIFIER_LANES <= num; i += CLASSIFIER_LANES) {
        for (int j = 0; j < CLASSIFIER_LANES; j++) { lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j]; }
    }
    for (; i < num; i++) { lanes[0] = x[i] > lanes[0] ? x[i] : lanes[0]; }
    float max = lanes[0];
    for (int j = 1; j < CLASSIFIER_LANES; j++) { max = lanes[j] > max ? lanes[j] : max; }
    return max;
}

// float within a block, double between blocks
double classifier_row_sum_exp(floatX* x, int num, float max, bool store) {
    double total = 0.0;
    for (int i0 = 0; i0 < num; i0 += CLASSIFIER_BLOCK) {
        const int i1 = i0 + CLASSIFIER_BLOCK < num ? i0 + CLASSIFIER_BLOCK : num;
        float sum = 0.0f;
        if (store) {
#pragma omp simd reduction(+ : sum)
            for (int i = i0; i < i1; i++) {
                x[i] = fast_expf(x[i] - max);
                sum += x[i];
            }
        } else {
#pragma omp simd reduction(+ : sum)
            for (int i = i0; i < i1; i++) { sum += fast_expf(x[i] - max); }
        }
        total += (double)sum;
    }
    return total;
}

// The target is summed apart from the others, so that a loss and a gradient near 0 keep their digits:
// loss = log(1 + others / p), gradient -others / (others + p).
static float classifier_row(floatX* x, floatX* target, float dlogits_scale, int V) {
    const float max = classifier_row_max(x, V), at_target = *target;
    const double p = exp((double)at_target - (double)max);
    *target = -INFINITY;
    const double others = classifier_row_sum_exp(x, V, max, dlogits_scale != 0.0f), sum = others + p;
    if (dlogits_scale != 0.0f) {
        const float scale = (float)((double)dlogits_scale / sum);
#pragma omp simd
        for (int v = 0; v < V; v++) { x[v] *= scale; }
        *target = (float)(-(double)dlogits_scale * others / sum);
    } else {
        *target = at_target;
    }
    return (float)(at_target == max ? log1p(others) : log(sum) + ((double)max - (double)at_target));
}

void fused_classifier(float* losses, floatX* logits, const int32_t* targets, float dlogits_scale,
                      int num_rows, int V, int Vp, OpsContext* ops) {
    const int num_threads = ops->num_threads;
#pragma omp parallel for schedule(dynamic, 1) num_threads(num_threads) if (num_rows > 1)
    for (int i = 0; i < num_rows; i++) {
        floatX *x = logits + (size_t)i * (size_t)Vp, *target = x + targets[i];
        losses[i] = classifier_row(x, target, dlogits_scale, V);
        if (dlogits_scale != 0.0f) { memset(x + V, 0, (size_t)(Vp - V) * sizeof *x); }
    }
}

int32_t classifier_first_max(const floatX* x, int num) {
    const float max = classifier_row_max(x, num);
    int32_t i = 0;
    while (i < num - 1 && x[i] != max) { i++; }
    return i;
}

void argmax_rows(int32_t* out, const floatX* logits, int num_rows, int V, int Vp, OpsContext* ops) {
    const size_t num_values = (size_t)num_rows * (size_t)V;
#pragma omp parallel for num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (int i = 0; i < num_rows; i++) { out[i] = classifier_first_max(logits + (size_t)i * (size_t)Vp, V); }
}
