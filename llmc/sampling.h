/*
sampling.h -- the next token out of a model's logits: the likeliest, or drawn.

    p_i = exp(x_i / temperature) / sum, over the top_k largest logits, of those over the fewest (the likeliest
    first) whose probabilities sum to top_p or more

Temperature 0 takes the likeliest, the first of equals, as argmax_rows (ops.h) does. Top-p is the nucleus of
Holtzman et al. 2020. Ties are broken by the lower id, so that an answer is a function of logits and seed.
*/
#pragma once

#include <stdint.h>
#include "mt19937.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    double temperature;  // >= 0
    int top_k;           // 0: all
    double top_p;        // (0, 1]; 1: all
} Sampling;

typedef struct {
    double logit;
    int32_t id;
} SamplingPlace;

// logits: (vocab), finite; work: room for vocab places. Draws one number, none at temperature 0.
int32_t sampling_pick(const float* logits, int vocab, const Sampling* sampling, Mt19937* generator,
                      SamplingPlace* work);

#ifdef __cplusplus
}
#endif
