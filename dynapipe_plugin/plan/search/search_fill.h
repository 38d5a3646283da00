/*
search_fill.h -- first answers: samples into micro-batches whose capacities taper at both ends of the step.

The first and last micro-batches pay the ramp of the pipeline, so they should be small. Largest samples first,
each to the micro-batch that it fills least (longest processing time first, LPT, Graham 1969); work in encoder
and decoder layers counts separately, so that an encoder-decoder model is balanced in both.
*/
#pragma once

#include "../problem.h"

// The work of every sample of the batch, per resource, in parts of the whole batch's; and the order by size.
typedef struct {
    const PlanProblem* problem;
    int32_t num_resources;  // 1, or 2: encoder layers, decoder layers
    int64_t* weight[2];     // [num_samples] in 2^-40 of the batch
    int64_t* size;          // [num_samples] the larger of the two
    int32_t* by_size;       // [num_samples] ids, largest first
} SearchWeights;

Status search_weights_make(SearchWeights* out, const PlanProblem* problem, RecomputeMode mode,
                           int32_t num_mbs, Arena* arena);

// replica_of[id] for every sample: balanced in every resource. slow: [R] how many times as long a replica
// takes for it; NULL: all are alike, and those without samples come last.
Status search_fill_replicas(int32_t* replica_of, const SearchWeights* weights, const double* slow,
                            Arena* arena);

// mb_of[i] in [0, taper->num_mbs) for the samples ids[i], largest first; every micro-batch gets at least one
// sample where num_ids >= num_mbs (a precondition). Micro-batches are numbered as they should enter stage 0.
Status search_fill(int32_t* mb_of, const SearchWeights* weights, const int32_t* ids, int32_t num_ids,
                   const MicrobatchTaper* taper, Arena* arena);

// Micro-batches of equal size of which stage s can keep P - s, where nothing is recomputed, and of no more
// sequences, tokens and squares than the kernels take.
int64_t search_fill_least_mbs(const PlanProblem* problem, const int32_t* ids, int32_t num_ids);
