/*
sample_source.h -- the samples of some files as a model gets them: within its limits, or skipped.

A model with one stack reads a sample as one sequence, input then target, and runs all but its last token. An
encoder-decoder's encoder reads the input (where it is empty, a single end-of-text token), its decoder a start
token and the target without its last. loader.h says what becomes of samples that are too long, and what a
sample is with span corruption.
*/
#pragma once

#include <stdint.h>
#include "../util/status.h"
#include "../dynapipe_plugin/plan/types/plan_types.h"
#include "loader.h"
#include "sample_cut.h"
#include "sample_shards.h"
#include "span_corruption.h"
#include "text_pieces.h"

typedef struct {
    LoaderOptions options;  // without `weights`
    SampleShards shards;
    int64_t num_ids;       // samples have the ids below it
    SpanCorruption spans;  // span corruption: as resolved for the data
    TextPieces pieces;
} SampleSource;

// Reads max_seq_tokens, long_samples, supervise_inputs, encoder_decoder and what follows it, not mixture,
// seed and shuffle.
Status sample_source_open(SampleSource* out, const char* pattern, const LoaderOptions* options);
void sample_source_close(SampleSource* source);  // an all-zero one is fine

// Of id in [0, num_ids). A skipped sample comes out whole. `pass`: any number, of this time
// through the data; samples of another one have other spans.
SampleFate sample_source_get(const SampleSource* source, int64_t id, uint64_t pass, LoaderSample* out);
uint64_t sample_source_pass(uint64_t seed, uint64_t epoch);  // never 0, which is for data without shuffling

// What the model runs of a sample, as the planner counts it.
PlanSample sample_source_lengths(const SampleSource* source, const LoaderSample* sample);

// As loader_gaps.
int32_t sample_source_gaps(const SampleSource* source, const LoaderSample* sample, const SampleGap** out);

// Its n_input + n_target tokens.
Status sample_source_read(const SampleSource* source, const LoaderSample* sample, int32_t* out);
