/*
stage_search.h -- the placement of a run: the one with the fastest plans of sampled batches.

    candidates   the plainest one, balanced for all batches; what the planner chooses for each
                 batch alone, among the placements and heads that the request allows
    neighbours   of the best: one layer from a chunk to another, as long as that helps

Every candidate is judged by planning all batches with it, at small effort. Pure and deterministic, like
plan_make. The work is limited by counts, not by a clock.
*/
#pragma once

#include <stdio.h>

#include "../../util/status.h"
#include "cost_model.h"
#include "plan.h"
#include "types.h"

// One global batch of the mixture.
typedef struct {
    const PlanSample* samples;
    int32_t num_samples;
} StageBatch;

typedef struct {
    Placement placement;
    int32_t num_splits;   // planned with
    int64_t makespan_ns;  // of an average batch as planned; 0: no batch, or nothing fits in memory
    int64_t balanced_ns;  // the same with the plain placement; 0 like makespan_ns
} StageChoice;

// During a run, where request->placement is in use: its time in *present_ns, and the best split found from
// there in about `planning_ns` of one core, in the worst case the present one.
Status stage_search_again(StageChoice* out, int64_t* present_ns, const PlanRequest* request,
                          const CostModel* costs, const StageBatch* batches, int32_t num_batches,
                          int64_t planning_ns);

// Where request->choose_stages is set, the best split; else request->placement, its head chosen where
// request->heads allows that; and its time. In about `planning_ns` of one core.
#define STAGE_SEARCH_USUAL_NS INT64_C(1500000000)
Status stage_search(StageChoice* out, const PlanRequest* request, const CostModel* costs,
                    const StageBatch* batches, int32_t num_batches, int64_t planning_ns);

// Where the program has rivals (plan_has_rivals): the fastest plan of that policy in microbatches of 1, 2 or
// 4 times the longest sample, one chunk a stage, layers balanced. schedule: 1F1B, or AUTO for any but that.
Status stage_rival_plan(Plan* out, const PlanRequest* request, const CostModel* costs,
                        const StageBatch* batch, Batching batching, ScheduleChoice schedule, Arena* arena);
// How many times as long a step of these batches takes with each rival, and of the half of their samples.
// Prints nothing without rivals, or on one rank.
Status stage_print_gain(FILE* out, const PlanRequest* request, const CostModel* costs,
                        const StageBatch* batches, int32_t num_batches);
