/*
classifier.c -- softmax cross entropy over the vocabulary, with the gradient written over the logits.

A row (200 KB for GPT-2) stays in the second-level cache for three passes: maximum; exp and sum; scaling.
*/
#include "context.h"

#include <math.h>
#include <string.h>
#include "fast_math.h"

enum { CLASSIFIER_BLOCK = 256, CLASSIFIER_LANES = 64 };

// By lanes, since the compiler may not reorder a maximum itself.
static float classifier_row_max(const floatX* x, int num) {
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
static double classifier_row_sum_exp(floatX* x, int num, float max, bool store) {
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

// The target is summed separately, so that a loss and a gradient near 0 keep their digits:
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

// The index of the largest of x[num >= 1], the first of equals.
static int32_t classifier_first_max(const floatX* x, int num) {
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

// --- a head shared by vocabulary ---------------------------------------------------------------------------
/*
Softmax cross entropy where each rank has some ids of the vocabulary.

A share contributes three numbers and two rows of C values per row (formulas: ops.h); the rank with all
shares' numbers combines them in double.
*/

// The target's column in the share's row, or NULL.
static floatX* own_target(floatX* x, int32_t target, int begin, int V) {
    return begin <= target && target < begin + V ? x + (target - begin) : NULL;
}

static void share_row(float* stats, floatX* x, floatX* target, bool with_grads, int V) {
    const float at_target = target != NULL ? *target : -INFINITY;
    if (target != NULL) { *target = -INFINITY; }
    const float max = classifier_row_max(x, V);
    stats[0] = max;
    // no other id: nothing to subtract from -inf
    stats[1] = (float)classifier_row_sum_exp(x, V, max > -INFINITY ? max : 0.0f, with_grads);
    stats[2] = at_target;
    if (target != NULL && !with_grads) { *target = at_target; }
}

void classifier_share(float* stats, floatX* logits, const int32_t* targets, bool with_grads, int num_rows,
                      int begin, int V, int Vs, OpsContext* ops) {
    const int num_threads = ops->num_threads;
#pragma omp parallel for schedule(dynamic, 1) num_threads(num_threads) if (num_rows > 1)
    for (int i = 0; i < num_rows; i++) {
        floatX* x = logits + (size_t)i * (size_t)Vs;
        share_row(stats + (size_t)i * 3, x, own_target(x, targets[i], begin, V), with_grads, V);
        if (with_grads) { memset(x + V, 0, (size_t)(Vs - V) * sizeof *x); }
    }
}

void target_rows(floatX* out, const floatX* weight, const int32_t* targets, int num_rows, int begin, int V,
                 int C, OpsContext* ops) {
    const size_t num_values = (size_t)num_rows * (size_t)C, row_bytes = (size_t)C * sizeof *out;
#pragma omp parallel for num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (int i = 0; i < num_rows; i++) {
        floatX* row = out + (size_t)i * (size_t)C;
        if (begin <= targets[i] && targets[i] < begin + V) {
            memcpy(row, weight + (size_t)(targets[i] - begin) * (size_t)C, row_bytes);
        } else {
            memset(row, 0, row_bytes);
        }
    }
}

// For row i; factors NULL: no gradients. A NaN of any share reaches the loss.
static float combine_row(float* const* factors, const float* const* stats, float scale, size_t i,
                         int num_shares) {
    float max = -INFINITY, at_target = -INFINITY;
    for (int r = 0; r < num_shares; r++) {
        const float* row = stats[r] + i * 3;
        if (row[0] > max) { max = row[0]; }
        if (row[2] != -INFINITY) { at_target = row[2]; }
    }
    if (at_target > max) { max = at_target; }
    double others = 0.0;
    for (int r = 0; r < num_shares; r++) {
        const float* row = stats[r] + i * 3;
        others += (double)row[1] * exp((double)row[0] - (double)max);
    }
    const double sum = others + exp((double)at_target - (double)max);
    for (int r = 0; factors != NULL && r < num_shares; r++) {
        const float* row = stats[r] + i * 3;
        factors[r][i * 2] = (float)((double)scale * exp((double)row[0] - (double)max) / sum);
        factors[r][i * 2 + 1] = row[2] != -INFINITY ? (float)(-(double)scale * others / sum) : 0.0f;
    }
    return (float)(at_target == max ? log1p(others) : log(sum) + ((double)max - (double)at_target));
}

void classifier_combine(float* losses, float* const* factors, const float* const* stats, float scale,
                        int num_rows, int num_shares, OpsContext* ops) {
    const size_t num_values = (size_t)num_rows * (size_t)num_shares * 64;  // an exp is as long as that
#pragma omp parallel for num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (int i = 0; i < num_rows; i++) {
        losses[i] = combine_row(scale != 0.0f ? factors : NULL, stats, scale, (size_t)i, num_shares);
    }
}

void combine_parts(floatX* dinp, const floatX* const* sums, const floatX* const* targets,
                   const float* const* factors, int num_rows, int C, int num_shares, OpsContext* ops) {
    const size_t num_values = (size_t)num_rows * (size_t)C;
#pragma omp parallel for num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (int i = 0; i < num_rows; i++) {
        floatX* row = dinp + (size_t)i * (size_t)C;
        memset(row, 0, (size_t)C * sizeof *row);
        for (int r = 0; r < num_shares; r++) {
            const float f = factors[r][(size_t)i * 2], g = factors[r][(size_t)i * 2 + 1];
            const floatX *sum = sums[r] + (size_t)i * (size_t)C, *target = targets[r] + (size_t)i * (size_t)C;
#pragma omp simd
            for (int c = 0; c < C; c++) { row[c] += f * sum[c]; }
            if (g == 0.0f) { continue; }
#pragma omp simd
            for (int c = 0; c < C; c++) { row[c] += g * target[c]; }
        }
    }
}

void classifier_factors(floatX* e, floatX* rows, const float* factors, const int32_t* targets, int num_rows,
                        int C, int begin, int V, int Vs, OpsContext* ops) {
    const size_t num_values = (size_t)num_rows * (size_t)C;
#pragma omp parallel for num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (int i = 0; i < num_rows; i++) {
        const float f = factors[(size_t)i * 2], g = factors[(size_t)i * 2 + 1];
        const bool scales_row = f >= OPS_LEAST_FACTOR;
        floatX *of_e = e + (size_t)i * (size_t)Vs, *target = own_target(of_e, targets[i], begin, V);
        floatX* x = scales_row ? rows + (size_t)i * (size_t)C : of_e;
        const int num = scales_row ? C : V;
#pragma omp simd
        for (int c = 0; c < num; c++) { x[c] *= f; }
        if (target != NULL) { *target = scales_row ? g / f : g; }
    }
}

void argmax_share(float* values, int32_t* ids, const floatX* logits, int num_rows, int begin, int V, int Vs,
                  OpsContext* ops) {
    const size_t num_values = (size_t)num_rows * (size_t)V;
#pragma omp parallel for num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (int i = 0; i < num_rows; i++) {
        const floatX* x = logits + (size_t)i * (size_t)Vs;
        const int32_t first = V > 0 ? classifier_first_max(x, V) : 0;
        ids[i] = begin + first;
        values[i] = V > 0 ? x[first] : -INFINITY;
    }
}
