/*
ops_test.h -- what the tests of llmc/ops.h share: random arrays, double references, a tolerance that bites.

CHECK_CLOSE compares floats with a double reference: the largest difference, in units of the reference's root
mean square (of the value itself where it is larger), must be within the tolerance. It then perturbs one
random value by 1 % of that unit and demands that the same tolerance rejects it.
*/
#pragma once

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include "../util/numbers.h"
#include "../llmc/ops.h"
#include "test.h"

enum { OPS_TEST_MAX_ARRAYS = 256 };
static void* ops_test_arrays[OPS_TEST_MAX_ARRAYS];
static int ops_test_num_arrays;
static Rng ops_test_rng;

// Memory until the next ops_test_release(), 64-byte aligned; every float is NaN, so a value never written
// shows.
static inline void* ops_test_alloc(size_t bytes) {
    size_t rounded = (bytes + 127) / 64 * 64;
    uint32_t* p = (uint32_t*)aligned_alloc(64, rounded);
    if (p == NULL || ops_test_num_arrays == OPS_TEST_MAX_ARRAYS) {
        printf("out of memory or of array slots\n");
        exit(1);
    }
    for (size_t i = 0; i < rounded / 4; i++) { p[i] = 0x7fc00000u; }
    ops_test_arrays[ops_test_num_arrays++] = p;
    return p;
}

static inline float* ops_test_floats(size_t n) {
    return (float*)ops_test_alloc(n * sizeof(float));
}

static inline double* ops_test_zero_doubles(size_t n) {
    double* p = (double*)ops_test_alloc(n * sizeof(double));
    for (size_t i = 0; i < n; i++) { p[i] = 0.0; }
    return p;
}

static inline void ops_test_release(void) {
    while (ops_test_num_arrays > 0) { free(ops_test_arrays[--ops_test_num_arrays]); }
}

// Roughly normal: the sum of four uniform numbers, mean 0, the given standard deviation.
static inline float ops_test_normal(double deviation) {
    double sum = -2.0;
    for (int i = 0; i < 4; i++) { sum += (double)(rng_u64(&ops_test_rng) >> 11) * 0x1p-53; }
    return (float)(sum * deviation * 1.7320508);
}

static inline float* ops_test_random(size_t n, double deviation) {
    float* p = ops_test_floats(n);
    for (size_t i = 0; i < n; i++) { p[i] = ops_test_normal(deviation); }
    return p;
}

static inline float* ops_test_copy(const float* from, size_t n) {
    float* p = ops_test_floats(n);
    for (size_t i = 0; i < n; i++) { p[i] = from[i]; }
    return p;
}

static inline double ops_test_rms(const double* ref, size_t n) {
    double sum = 0.0;
    for (size_t i = 0; i < n; i++) { sum += ref[i] * ref[i]; }
    return n > 0 ? sqrt(sum / (double)n) : 0.0;
}

// Largest difference in units of the reference's root mean square, or of the value itself where that is
// larger; infinity where something is not a number.
static inline double ops_test_error(const float* got, const double* ref, size_t n) {
    const double rms = ops_test_rms(ref, n);
    double worst = 0.0;
    for (size_t i = 0; i < n; i++) {
        const double difference = fabs((double)got[i] - ref[i]), unit = fmax(rms, fabs(ref[i]));
        if (!(difference < (double)INFINITY)) { return (double)INFINITY; }
        if (difference > 0.0) { worst = fmax(worst, difference / unit); }
    }
    return worst;
}

// Printed with OPS_TEST_VERBOSE=1: how much of each tolerance is used.
static inline bool ops_test_close(const float* got, const double* ref, size_t n, double tolerance,
                                  const char* what) {
    const double error = ops_test_error(got, ref, n);
    if (getenv("OPS_TEST_VERBOSE") != NULL) { printf("     %-12s %9.2e of %9.2e\n", what, error, tolerance); }
    if (!(error <= tolerance)) {
        printf("%s: error %.3g, tolerance %.3g, %zu values\n", what, error, tolerance, n);
        return false;
    }
    const double rms = ops_test_rms(ref, n);
    if (n == 0 || rms == 0.0) { return true; }
    const size_t i = (size_t)rng_below(&ops_test_rng, (uint32_t)n);
    const double unit = fmax(rms, fabs(ref[i]));
    const double bent = (double)got[i] + ((double)got[i] < ref[i] ? -0.01 : 0.01) * unit;
    if (fabs(bent - ref[i]) / unit <= tolerance) {
        printf("%s: tolerance %.3g accepts a value that is 1 %% wrong\n", what, tolerance);
        return false;
    }
    return true;
}

#define CHECK_CLOSE(got, ref, n, tolerance) CHECK(ops_test_close((got), (ref), (n), (tolerance), #got))
#define CHECK_SAME_BITS(a, b, n) CHECK(memcmp((a), (b), (n) * sizeof *(a)) == 0)
