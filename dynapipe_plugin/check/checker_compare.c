// checker_compare.c -- are two arrays of values the same, and where not?
#include <math.h>
#include <stdio.h>

#include "checker.h"

bool checker_differ(const float* expected, const float* found, int64_t num_values, double tolerance,
                    CheckerDifference* out) {
    double squares = 0, worst = 0;
    *out = (CheckerDifference){0};
    for (int64_t i = 0; i < num_values; i++) {
        if (isfinite(expected[i])) { squares += (double)expected[i] * expected[i]; }
    }
    double typical = num_values > 0 ? sqrt(squares / (double)num_values) : 0;
    for (int64_t i = 0; i < num_values; i++) {
        double a = expected[i], b = found[i], larger = fabs(a) > fabs(b) ? fabs(a) : fabs(b);
        double off = fabs(a - b) / (larger + typical + 1e-30);
        if (off <= tolerance) { continue; }  // false for what is not a number
        out->num_off++;
        if (out->num_off > 1 && !(off > worst) && !isnan(off)) { continue; }
        if (out->num_off > 1 && isnan(worst)) { continue; }
        worst = off;
        out->idx = i;
        out->expected = a;
        out->found = b;
    }
    return out->num_off > 0;
}

const char* checker_difference_text(char out[160], const CheckerDifference* difference, int64_t num_values) {
    snprintf(out, 160, "value %lld of %lld: %.6g expected, %.6g found; %lld of them differ",
             (long long)difference->idx, (long long)num_values, difference->expected, difference->found,
             (long long)difference->num_off);
    return out;
}
