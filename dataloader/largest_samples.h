/*
largest_samples.h -- of many lengths those that no other is at least as long as on every side: what fits if
these fit.

Few of many: of samples cut at -t most often one or two, at most one for each length of input.
*/
#pragma once

#include "../util/status.h"
#include "../dynapipe_plugin/plan/types/plan_types.h"

typedef struct {
    PlanSample* samples;  // [num_samples], in no order, but the same one for the same lengths
    int32_t num_samples, max_samples;
} LargestSamples;

Status largest_samples_add(LargestSamples* largest, const PlanSample* lengths);
void largest_samples_free(LargestSamples* largest);
