/*
plan_memory.h -- what each stage of a plan holds in memory at its peak, by the rule of its request.

MEMORY_ACTIVATIONS: model state + what backward needs of each micro-batch, from the begin of F (or R, where F
drops it) to the end of B (or of W, where W is a job of its own); while an F that drops runs, what it holds.
Counted from the cost model and the order of jobs, not from the plan's buffers: an independent account.
MEMORY_BUFFERS: model state + the arena that the plan's buffers are laid out in.
*/
#pragma once

#include "../dynapipe_plugin/plan/cost/cost_model.h"
#include "../dynapipe_plugin/plan/lists/plan.h"
#include "../dynapipe_plugin/plan/types/plan_request.h"

typedef struct {
    int64_t state_bytes, peak_bytes;  // of model state; of all else, at its peak
    int64_t peak_ns;                  // when; 0 for MEMORY_BUFFERS
    int32_t peak_mb;                  // the micro-batch whose forward (or recompute) makes it; -1: none
    int32_t most_held;                // micro-batches between F and B (or W) at once
} PlanMemory;

// out[P * R]. The plan must have passed plan_check, so every job is there once, in an order that can run.
Status plan_memory_make(PlanMemory* out, const Plan* plan, const CostModel* costs, MemoryRule rule);

// The rank of stage s that holds the most, over all replicas.
int32_t plan_memory_fullest(const PlanMemory* memory, const Plan* plan, int32_t s);

// By the limits of its request. STATUS_INFEASIBLE with stage, bytes over and a remedy.
Status plan_memory_check(const PlanMemory* memory, const Plan* plan, const PlanRequest* request);

// A table: one row per stage, the fullest replica's.
void plan_memory_print(const PlanMemory* memory, const Plan* plan, const PlanRequest* request, FILE* out);
