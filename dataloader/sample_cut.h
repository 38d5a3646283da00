// sample_cut.h -- a sample within a model's limits, or skipped: loader.h says what goes and what stays.
#pragma once

#include "loader.h"

typedef enum { SAMPLE_WHOLE, SAMPLE_CUT, SAMPLE_SKIPPED } SampleFate;

// `sample` comes in whole: n_input, n_target and zeros in what follows from gaps and cuts. Of the options:
// max_seq_tokens, max_target_tokens, encoder_decoder, long_samples. `tail`: the last tokens of its input that
// stay. A skipped sample comes out whole.
SampleFate sample_cut(LoaderSample* sample, const LoaderOptions* options, const SampleGap* gaps,
                      int32_t num_gaps, int32_t tail);
