/*
plan_drafts.h -- drafts made to fit into memory, and the best of them.

A draft (draft.h) is what a method decides; whether it fits shows when its instruction lists are laid out. Of
those that fit the fastest is kept; of two that are as fast, but for memory_slack_permille, the one that holds
less.
*/
#pragma once

#include "bound.h"
#include "draft/draft.h"
#include "draft/memory_fit.h"

typedef struct {
    PlanRequest request;  // with the placement of the draft at hand
    Placement begin;      // where the search for one begins
    PlanProblem problem;
    ReplicaPlan *replicas, *best;             // [R] of the draft that is fitted, of the best so far
    int64_t headroom_bytes[PLAN_MAX_STAGES];  // that the drafts at hand leave free
    const Draft* best_draft;                  // NULL: none has fitted so far
    int64_t best_ns, fastest_ns;
    double best_bytes;  // that its ranks hold at their peaks, all together
    LowerBound bound;   // once it is made
    bool bound_is_joint;
    int64_t good_enough_ns;  // there is nothing to be won below
    char failure[512];       // why nothing fits
    Arena lists;             // drafts and fitted replicas: kept until the plan is made
    Arena costs, runs;       // of one replica; of one attempt
} PlanDrafts;

// The request and its problem, checked; where the search begins (placement_make.h, stage_split.h).
Status plan_drafts_begin(PlanDrafts* out, const PlanRequest* request, const CostModel* costs,
                         const PlanSample* samples, int32_t num_samples);
void plan_drafts_free(PlanDrafts* drafts);

// The problem with this placement.
Status plan_drafts_place(PlanDrafts* drafts, const Placement* placement);

// Instruction lists that fit in memory, for all replicas, whatever has to change for that; kept if they are
// the best. STATUS_INFEASIBLE where nothing helps.
Status plan_drafts_fit(PlanDrafts* drafts, const Draft* draft);
// The same if the draft fits as it is. Else over_bytes: what its stages lack.
Status plan_drafts_fit_as_is(bool* fits, int64_t over_bytes[PLAN_MAX_STAGES], PlanDrafts* drafts,
                             const Draft* draft);

// Is the request for our own method, the schedule left to it? For the paper's, and nothing else asked for?
bool plan_is_searched(const PlanRequest* request);
bool plan_is_original(const PlanRequest* request);
