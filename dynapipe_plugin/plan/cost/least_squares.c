#include "least_squares.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

void least_squares_add(double* a, double* b, int32_t n, const double* t, double y, double w) {
    for (int32_t i = 0; i < n; i++) {
        if (t[i] == 0) { continue; }
        double wt = w * t[i];
        double* row = &a[least_squares_at(i, 0)];
        for (int32_t j = 0; j <= i; j++) { row[j] += wt * t[j]; }
        b[i] += wt * y;
    }
}

void least_squares_times(double* out, const double* a, int32_t n, const double* v) {
    for (int32_t i = 0; i < n; i++) {
        out[i] = 0;
        for (int32_t j = 0; j < n; j++) { out[i] += a[least_squares_at(i, j)] * v[j]; }
    }
}

// A = L L' (Cholesky), then L z = b, L' x = z.
void least_squares_solve(double* x, const double* a, const double* b, int32_t n) {
    double l[LEAST_SQUARES_PACKED];
    memcpy(l, a, (size_t)least_squares_at(n, 0) * sizeof *l);
    for (int32_t i = 0; i < n; i++) {
        for (int32_t j = 0; j <= i; j++) {
            double sum = l[least_squares_at(i, j)];
            for (int32_t k = 0; k < j; k++) { sum -= l[least_squares_at(i, k)] * l[least_squares_at(j, k)]; }
            double pivot = i == j ? 0 : l[least_squares_at(j, j)];
            bool has_pivot = i == j ? sum > 1e-12 * a[least_squares_at(i, i)] : pivot > 0;
            l[least_squares_at(i, j)] = !has_pivot ? 0 : i == j ? sqrt(sum) : sum / pivot;
        }
    }
    for (int32_t i = 0; i < n; i++) {
        double sum = b[i], pivot = l[least_squares_at(i, i)];
        for (int32_t k = 0; k < i; k++) { sum -= l[least_squares_at(i, k)] * x[k]; }
        x[i] = pivot > 0 ? sum / pivot : 0;
    }
    for (int32_t i = n - 1; i >= 0; i--) {
        double sum = x[i], pivot = l[least_squares_at(i, i)];
        for (int32_t k = i + 1; k < n; k++) { sum -= l[least_squares_at(k, i)] * x[k]; }
        x[i] = pivot > 0 ? sum / pivot : 0;
    }
}
