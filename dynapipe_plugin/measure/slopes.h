/*
slopes.h -- are gradients those of the losses? Finite differences of a function in float32, which may have
kinks.

For a direction d in the space of parameters and a short step h,

    (L(p + h d) - L(p - h d)) / 2 = h * sum of gradient * d

d has the signs of the gradients (shows wrong sizes) and random ones (shows what is missing) in turn, in a
piece of the array, and is 0 elsewhere: small tensors count as much as large ones. Places p are random, and
not small: what starts as zeros would hide what comes after it.

Steps go from long to short, as far as the rounding of losses allows, until one agrees: a long one is bent or
crosses kinks (ReLU), a short one drowns in rounding. If none does, what the two sides of the last one differ
by tells whether it may be a kink. That misleads now and then; a wrong gradient disagrees at most places. So a
piece is right or wrong when one has been seen so much more often than the other (a sequential test: Wald
1945).
*/
#pragma once

#include <stdbool.h>
#include <stdint.h>

// L and its gradients. Callbacks may jump out.
typedef struct {
    void* ctx;
    int64_t num_params;
    const float* start;  // (num_params) places are around these
    void (*write)(void* ctx, const float* values, int64_t begin, int64_t count);  // parameters
    double (*loss)(void* ctx);
    const float* (*gradients)(void* ctx);  // (num_params), valid until the next call
    double noise;                          // rounding of a loss, relative
    float* room;                           // (3 * num_params)
} SlopesFunction;

// Parameters [begin, end) moved a little, L rises one way and falls the other way; by the gradients, both by
// `expected`.
typedef struct {
    int64_t begin, end;
    double rise, fall, expected;
    int32_t num_contradicting, num_places;  // of the places that were tried, those where it is so
} SlopesFinding;

// Do losses contradict the gradients of a piece? *out: the first that is found.
bool slopes_contradict(SlopesFinding* out, const SlopesFunction* f);
