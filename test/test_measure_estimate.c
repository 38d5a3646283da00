// test_measure_estimate.c -- means without what was disturbed; curves that never fall are the nearest of all.
#include <math.h>

#include "../util/numbers.h"
#include "../dynapipe_plugin/measure/measure.h"
#include "test.h"

static double draw(Rng* rng, int32_t most) {
    return (double)rng_between(rng, 0, most * 1000) / 1000;
}

static void a_mean_leaves_out_both_ends_alike(void) {
    double one[] = {5}, three[] = {9, 1, 2};
    double nine[] = {900, 3, 5, 4, 6, 5, 7, 5, -900};
    CHECK_EQ(measure_mean(one, 0), 0);
    CHECK_EQ(measure_mean(one, 1), 5);
    CHECK_EQ(measure_mean(three, 3), 4);
    CHECK_NEAR(measure_mean(nine, 9), 5, 1e-12);
}

// Of noise that is as often below as above by as much, nothing is left; of one in eight that is far off, too.
static void a_mean_is_not_biased(void) {
    Rng rng = rng_seed(5);
    double sum = 0;
    for (int round = 0; round < 2000; round++) {
        double values[8];
        for (int i = 0; i < 8; i++) { values[i] = 99 + draw(&rng, 2); }
        values[3] += round % 2 == 0 ? 0 : 50;
        sum += measure_mean(values, 8);
    }
    CHECK_NEAR(sum / 2000, 100, 0.15);
}

// The minimax formula of isotonic regression: max over a <= i of min over b >= i of the mean of [a, b].
static double by_formula(const double* values, const double* weights, int32_t n, int32_t i) {
    double most = -INFINITY;
    for (int32_t a = 0; a <= i; a++) {
        double least = INFINITY;
        for (int32_t b = i; b < n; b++) {
            double sum = 0, weight = 0;
            for (int32_t k = a; k <= b; k++) { sum += values[k] * weights[k], weight += weights[k]; }
            least = fmin(least, sum / weight);
        }
        most = fmax(most, least);
    }
    return most;
}

static double distance(const double* y, const double* values, const double* weights, int32_t n) {
    double sum = 0;
    for (int32_t i = 0; i < n; i++) { sum += weights[i] * (y[i] - values[i]) * (y[i] - values[i]); }
    return sum;
}

static void curves_are_the_nearest_that_never_fall(void) {
    Rng rng = rng_seed(6);
    for (int round = 0; round < 500; round++) {
        double values[12], weights[12], y[12];
        int32_t n = rng_between(&rng, 1, 12);
        for (int32_t i = 0; i < n; i++) {
            y[i] = values[i] = draw(&rng, 10), weights[i] = 0.01 + draw(&rng, 3);
        }
        measure_isotonic(y, weights, n);
        for (int32_t i = 0; i < n; i++) {
            CHECK_NEAR(y[i], by_formula(values, weights, n, i), 1e-9);
            if (i > 0) { CHECK(y[i] >= y[i - 1]); }
        }
        for (int other = 0; other < 20; other++) {  // no other is nearer
            double z[12], at = 0;
            for (int32_t i = 0; i < n; i++) { z[i] = at += draw(&rng, 3); }
            CHECK(distance(y, values, weights, n) <= distance(z, values, weights, n) + 1e-9);
        }
    }
}

static void what_rises_stays(void) {
    double values[] = {0, 0, 1, 1.5, 7}, weights[] = {1, 2, 3, 4, 5};
    const double before[] = {0, 0, 1, 1.5, 7};
    measure_isotonic(values, weights, 5);
    for (int i = 0; i < 5; i++) { CHECK_EQ(values[i], before[i]); }
}

int main(void) {
    RUN(a_mean_leaves_out_both_ends_alike);
    RUN(a_mean_is_not_biased);
    RUN(curves_are_the_nearest_that_never_fall);
    RUN(what_rises_stays);
    return test_end();
}
