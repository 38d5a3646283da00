/*
attention_close.h -- how far a GPU's attention may be from the CPU's.

Both sides have the same inputs, exactly. With u = FLOATX_EPS, in bf16: p and ds are rounded before they are
multiplied, which puts each product off by 0.42 u of itself (root mean square of a rounding error); a sum of
products of either sign is off by as much of its own size, and rounding it on the way out adds 0.42 u: 0.6 u
of the array's root mean square. The largest of 1e5 errors is 5 times as much, and where large products cancel
twice that. So: root mean square of the errors at most u, the largest at most 8 u, in units as in CHECK_PAIR.
float32: sums of some 300 products, 300 u at most. In both, scores of size x are off by x u' (u' of float32),
and exp passes that on: 2e-5 for scores of a few hundred, "deviation" squared of q and k.
Where a query sees one key its dq is 0: dout v - D, two sums of HS products of size 1 in another order, times
q: up to 5e-5, whatever the array's size. Values below that have no part in the root mean squares.
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

#define ATTENTION_CANCELLED 5e-5

static inline bool attention_close(Pair pair, double deviation, const char* what) {
    const float *got = pair_download(pair), *ref = pair.host;
    const double exp_error = deviation > 1.0 ? 2e-5 * deviation * deviation : 0.0;
    double errors = 0.0, squares = 0.0, num = 0.0;
    for (size_t i = 0; i < pair.num_values; i++) {
        const double error = (double)got[i] - (double)ref[i];
        if (fabs((double)ref[i]) <= ATTENTION_CANCELLED) { continue; }
        errors += error * error, squares += (double)ref[i] * (double)ref[i], num++;
    }
    const double rms = num > 0 ? sqrt(squares / num) : 0.0, error_rms = num > 0 ? sqrt(errors / num) : 0.0;
    const double limit = (ATTENTION_RMS_ERROR + exp_error) * rms + 0.1 * ATTENTION_CANCELLED;
    if (getenv("OPS_TEST_VERBOSE") != NULL) {
        printf("     %-12s %9.2e of %9.2e (rms)\n", what, error_rms, limit);
    }
    if (!(error_rms <= limit)) {
        printf("%s: root mean square of the errors %.3g, of the values %.3g, tolerance %.3g\n", what,
               error_rms, rms, limit);
        return false;
    }
    for (size_t i = 0; i < pair.num_values; i++) {
        const double error = fabs((double)got[i] - (double)ref[i]), size = fmax(rms, fabs((double)ref[i]));
        if (!(error <= (ATTENTION_MAX_ERROR + exp_error) * size + ATTENTION_CANCELLED)) {
            printf("%s[%zu of %zu]: %g, the CPU has %g\n", what, i, pair.num_values, (double)got[i],
                   (double)ref[i]);
            return false;
        }
    }
    return true;
}

// Scores of size 1 are sums of HS products: their logarithm is off by 1e-6, however small it is.
static inline bool lse_close(Pair pair) {
    const float* got = pair_download(pair);
    for (size_t i = 0; i < pair.num_values; i++) {
        const double ref = (double)pair.host[i];
        if (!(fabs((double)got[i] - ref) <= 1e-5 * fmax(1.0, fabs(ref)))) {
            printf("lse[%zu of %zu]: %g, the CPU has %g\n", i, pair.num_values, (double)got[i], ref);
            return false;
        }
    }
    return true;
}

#define CHECK_ATTENTION(pair, deviation) CHECK(attention_close((pair), (deviation), #pair))
