/*
batching.h -- plans without a search: a batching method, replicas by their sums, schedules by the known rules.

Our own method comes here where a schedule is prescribed, or where memory is so short that the search finds
nothing. The methods of others are in rivals/, and known to the programs that link it.
*/
#pragma once

#include "draft/draft.h"
#include "problem.h"

enum { POLICY_MAX_DRAFTS = 8 };

typedef struct {
    const char *name, *help;
    MicrobatchBuild* build;
    MicrobatchCandidates* candidates;  // NULL: build takes no parameters
    // The whole method, where it has its own orders and schedules; NULL: policy_drafts.
    Status (*draft)(Draft* out, const PlanProblem* problem, Arena* arena);
} BatchingPolicy;

// By Batching, without BATCHING_DYNAMIC. Its address is NULL where rivals/ is not linked.
extern const BatchingPolicy dynapipe_rivals[BATCHING_COUNT] __attribute__((weak));

// NULL: unknown to this program.
const BatchingPolicy* batching_policy(Batching batching);

// out[0 .. *num), fastest first: every candidate of the request's policy with every schedule that the request
// allows. `batching` is the problem as the batching pass sees it: as `problem`, or with less memory. effort:
// simulations. STATUS_INFEASIBLE: not even one micro-batch at a time fits.
Status policy_drafts(Draft out[POLICY_MAX_DRAFTS], int32_t* num, const PlanProblem* problem,
                     const PlanProblem* batching, int32_t effort, Arena* arena);

// Our own method by rule. Ragged: as the search begins (search_fill.h), with more and more micro-batches
// until each keeps to its share of memory; one sample alone may use all of it. Padded: microbatch_dp.h.
MicrobatchBuild microbatch_dynamic_build;
MicrobatchCandidates microbatch_dynamic_candidates;
