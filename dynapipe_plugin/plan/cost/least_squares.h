/*
least_squares.h -- small symmetric systems A x = b, A positive definite, in a packed lower triangle.

    a[least_squares_at(i, j)], j <= i      A = sum of w t t', b = sum of w t y: normal equations

Plain IEEE additions, products, quotients and roots in one fixed order: the same bits everywhere.
*/
#pragma once

#include <stdint.h>

enum { LEAST_SQUARES_MOST = 24, LEAST_SQUARES_PACKED = LEAST_SQUARES_MOST * (LEAST_SQUARES_MOST + 1) / 2 };

static inline int32_t least_squares_at(int32_t i, int32_t j) {
    return i >= j ? i * (i + 1) / 2 + j : j * (j + 1) / 2 + i;
}

// a += w t t', b += w t y, for n unknowns.
void least_squares_add(double* a, double* b, int32_t n, const double* t, double y, double w);

// out = A v
void least_squares_times(double* out, const double* a, int32_t n, const double* v);

// x of A x = b; a and b stay as they are. What A says nothing of (a pivot of 0) becomes 0.
void least_squares_solve(double* x, const double* a, const double* b, int32_t n);
