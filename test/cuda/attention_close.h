/*
attention_close.h -- how far a GPU's attention may be from the CPU's.

Both sides have the same inputs, exactly. With u = FLOATX_EPS, in bf16: p and ds are rounded before they are
multiplied, which puts each product off by 0.42 u of itself (root mean square of a rounding error); a sum of
products of either sign is off by as much of its own size, and rounding it on the way out adds 0.42 u: 0.6 u
of the array's root mean square. The largest of 1e5 errors is 5 times as much, and where large products cancel
twice that. So: root mean square of the errors at most u, the largest at most 8 u, in units as in CHECK_PAIR.
float32: sums of some 300 products, 300 u at most. In both, scores of size x are off by x u' (u' of float32),
and exp passes that on: 2e-5 for scores of a few hundred, "deviation" squared of q and k.
Where every query sees one key, dq and dk are 0: dout v - D, two sums of HS products, up to their rounding.
*/
#pragma once

#include <math.h>

#include "cuda_test.h"

#ifdef LLMC_BF16
#define ATTENTION_MAX_ERROR (8 * FLOATX_EPS)
#define ATTENTION_RMS_ERROR FLOATX_EPS
#else
#define ATTENTION_MAX_ERROR 2e-5
#define ATTENTION_RMS_ERROR 2e-6
#endif

static inline bool attention_close(Pair pair, double deviation, const char* what) {
    const float *got = pair_download(pair), *ref = pair.host;
    const double exp_error = deviation > 1.0 ? 2e-5 * deviation * deviation : 0.0;
    double errors = 0.0, squares = 0.0, largest = 0.0;
    for (size_t i = 0; i < pair.num_values; i++) {
        const double error = (double)got[i] - (double)ref[i];
        largest = fmax(largest, fabs(error));
        errors += error * error, squares += (double)ref[i] * (double)ref[i];
    }
    if (squares == 0.0 && !isnan(errors)) {
        if (largest > 1e-5) { printf("%s: up to %.3g, the CPU has 0 everywhere\n", what, largest); }
        return largest <= 1e-5;
    }
    const double rms = sqrt(errors / squares), limit = ATTENTION_RMS_ERROR + exp_error;
    if (getenv("OPS_TEST_VERBOSE") != NULL) { printf("     %-12s %9.2e of %9.2e (rms)\n", what, rms, limit); }
    if (!(rms <= limit)) {
        printf("%s: root mean square of the errors %.3g, tolerance %.3g\n", what, rms, limit);
        return false;
    }
    return pair_close(pair, ATTENTION_MAX_ERROR + exp_error, what);
}

#define CHECK_ATTENTION(pair, deviation) CHECK(attention_close((pair), (deviation), #pair))
