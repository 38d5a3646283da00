/*
classifier.h -- passes over a row of logits that the whole classifier and a share of it have in common.
*/
#pragma once

#include "context.h"

// The largest of x[num]; -inf where there is none. A NaN is passed over; a sum of exponentials meets it.
float classifier_row_max(const floatX* x, int num);
// The sum of exp(x - max); with `store` x becomes exp(x - max).
double classifier_row_sum_exp(floatX* x, int num, float max, bool store);
// The index of the largest of x[num >= 1], the first of equals.
int32_t classifier_first_max(const floatX* x, int num);
