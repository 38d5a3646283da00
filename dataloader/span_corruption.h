/*
span_corruption.h -- T5's pre-training objective: spans of a text become sentinels, and the target tells them.

    text    a b c d e f g h        noise: c d and h
    input   a b <0> e f g <1> </s>
    target  <0> c d <1> h </s>

Raffel et al. (T5, JMLR 2020, section 3.1.4), in the numbers of its released code: of n tokens round(n *
density) are noise, in round(noise / mean span) spans; the text begins with what stays and ends with noise,
and the lengths of the spans, and of what lies between, are drawn from all that add up. So both sides' lengths
follow from n alone. Where the sentinels would not do, there are fewer, longer spans; a single token is noise.
*/
#pragma once

#include <stdint.h>
#include "../util/status.h"

typedef struct {
    double noise_density;                   // share of tokens, in (0, 1)
    double mean_span;                       // tokens, >= 1
    int32_t sentinel_first, sentinel_step;  // sentinel i is token first + i * step; step 1 or -1
    int32_t num_sentinels;                  // >= 1
    int32_t eot_token;                      // ends both sides
} SpanCorruption;

typedef struct {
    int32_t num_noise, num_spans;
    int32_t n_input, n_target;  // n - noise + spans + 1, noise + spans + 1
} SpanLengths;

enum { SPAN_CORRUPTION_MAX_TOKENS = 1 << 30 };

// Of a text of 1 <= num_tokens <= SPAN_CORRUPTION_MAX_TOKENS; no field shrinks where num_tokens grows.
SpanLengths span_corruption_lengths(const SpanCorruption* spans, int32_t num_tokens);

// The longest text whose two sides keep within limits; 0: none does.
int32_t span_corruption_longest(const SpanCorruption* spans, int32_t max_input_tokens,
                                int32_t max_target_tokens);

// Write n_input and n_target tokens. `key` says which spans.
void span_corruption_apply(const SpanCorruption* spans, uint64_t key, const int32_t* text, int32_t num_tokens,
                           int32_t* input, int32_t* target);
