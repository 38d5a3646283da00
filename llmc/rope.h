/*
rope.h -- angles of rotary positions (RoFormer: Su et al. 2021): channel c of a head of HS and channel
c + HS/2 are turned together, at position p by p theta^(-2c/HS). Hugging Face's pairs; the paper's are
adjacent.
*/
#pragma once

#include <math.h>

enum { ROPE_MAX_PAIRS = 128 };

// Of each pair, in radians per position: in float32, as transformers finds them. On the host, so that a GPU
// turns by the same angles.
typedef struct {
    float rates[ROPE_MAX_PAIRS];
} RopeRates;

static inline RopeRates rope_rates(int theta, int HS) {
    RopeRates out;
    for (int c = 0; c < HS / 2; c++) {
        out.rates[c] = 1.0f / powf((float)theta, 2.0f * (float)c / (float)HS);
    }
    return out;
}
