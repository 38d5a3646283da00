/*
batching_policies.h -- the table of batching passes, one for each Batching, and the passes without a header.
*/
#pragma once

#include "../problem/microbatch.h"

typedef struct {
    const char* name;
    const char* help;
    MicrobatchBuild* build;
    MicrobatchCandidates* candidates;
} BatchingPolicy;

extern const BatchingPolicy batching_policies[BATCHING_COUNT];

MicrobatchBuild microbatch_packed_build, microbatch_packed_ragged_build;  // microbatch_fixed.c
MicrobatchBuild microbatch_padded_build, microbatch_tokens_build;
MicrobatchBuild microbatch_kk_build;  // microbatch_kk.c

// The recompute mode of a finished list: the first in which every micro-batch keeps to its share of memory,
// else the first in which each fits alone. `unit` names its micro-batches in the message.
Status microbatch_list_choose_mode(MicrobatchList* list, const PlanProblem* problem, const char* unit);
