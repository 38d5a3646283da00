/*
measure_estimate.h -- what several measurements of one quantity say, without a bias to either side.

What a plan adds up are means: of jobs that are disturbed now and then, too. So no minimum and no quartile is
taken, and a point that came out below a smaller one is not raised to it: both are as likely to be off.
*/
#pragma once

#include <stdint.h>

// The mean of those in the middle: of num_values an eighth (rounded down) is left out at either end, so that
// one that took a holiday counts for nothing. Sorts them. 0 values: 0.
double measure_mean(double* values, int32_t num_values);

// The non-decreasing y with the least sum of weight * (y - value)^2: values that fall are replaced by their
// weighted mean (pool adjacent violators: Ayer et al. 1955; Barlow et al. 1972). weights > 0. In place.
void measure_isotonic(double* values, const double* weights, int32_t num_values);
