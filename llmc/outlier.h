/*
outlier.h -- how many standard deviations a value lies above the mean of the last 128 (llm.c's -sl and -sg).
*/
#pragma once

#include <math.h>

enum { OUTLIER_WINDOW = 128 };

typedef struct {
    double values[OUTLIER_WINDOW];
    int num_values, next;
    double sum, sum_of_squares;
} Outlier;

// Add a value; NaN until the window is full. A value that is not finite is not added and gives NaN.
static inline double outlier_update(Outlier* detector, double value) {
    if (!isfinite(value)) { return NAN; }
    if (detector->num_values < OUTLIER_WINDOW) {
        detector->num_values++;
    } else {
        double oldest = detector->values[detector->next];
        detector->sum -= oldest;
        detector->sum_of_squares -= oldest * oldest;
    }
    detector->values[detector->next] = value;
    detector->next = (detector->next + 1) % OUTLIER_WINDOW;
    detector->sum += value;
    detector->sum_of_squares += value * value;
    if (detector->num_values < OUTLIER_WINDOW) { return NAN; }
    double mean = detector->sum / (double)OUTLIER_WINDOW;
    double variance = detector->sum_of_squares / (double)OUTLIER_WINDOW - mean * mean;
    double deviation = variance > 0 ? sqrt(variance) : 0;
    return deviation == 0 ? 0 : (value - mean) / deviation;
}
