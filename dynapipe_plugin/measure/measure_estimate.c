#include "measure_estimate.h"

#include <stdlib.h>

static int compare_doubles(const void* a, const void* b) {
    double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

double measure_mean(double* values, int32_t num_values) {
    int32_t out = num_values / 8, n = num_values - 2 * out;
    double sum = 0;
    qsort(values, (size_t)num_values, sizeof *values, compare_doubles);
    for (int32_t i = out; i < out + n; i++) { sum += values[i]; }
    return n > 0 ? sum / n : 0;
}

// Each value begins a pool of its own; where a pool lies below the one before it, both become one. The pool
// that ends at i is values[begin .. i], all the same.
void measure_isotonic(double* values, const double* weights, int32_t num_values) {
    for (int32_t i = 1; i < num_values; i++) {
        double sum = values[i] * weights[i], weight = weights[i];
        int32_t begin = i;
        while (begin > 0 && values[begin - 1] > sum / weight) {
            begin--;
            sum += values[begin] * weights[begin];
            weight += weights[begin];
        }
        for (int32_t k = begin; k <= i; k++) { values[k] = sum / weight; }
    }
}
