/*
plan_views.h -- what ./dynapipe does with a plan: read its text, check it, compare it, account for its memory,
explain it, and write it in the published format.
*/
#pragma once

#include <stdio.h>
#include "../dynapipe_plugin/plan/cost_model.h"
#include "../dynapipe_plugin/plan/plan.h"
#include "../dynapipe_plugin/plan/types.h"
#include "problem.h"
#include "waterfall.h"

// Reads the text form from disk; the plan's memory comes from `arena`.
Status plan_file_load(Plan* out, const char* path, Arena* arena);

// --- checking a plan --------------------------------------------------------------------------------------
// Checks the structure and, with a problem, also samples, times and memory, recomputed from the problem's
// costs.

// Every rule of plan_check, with samples rebuilt from the plan itself (lengths from its sequences).
Status plan_verify_structure(const Plan* plan, Arena* arena);

// Also: the plan has this problem's samples, stages and replicas; state and makespan are those of the
// simulator with its costs; memory by the problem's rule is within the limit. STATUS_INVALID_PLAN or, for
// memory, STATUS_INFEASIBLE.
Status plan_verify_problem(const Plan* plan, const Problem* problem, Arena* arena);

// --- comparison --------------------------------------------------------------------------------------------

// *num_differences: lines printed to `out` (long lists are cut, but counted in full). Both plans must have
// passed plan_check.
Status plan_diff(const Plan* a, const Plan* b, FILE* out, int32_t* num_differences, Arena* arena);

// --- peak memory ------------------------------------------------------------------------------------------
// MEMORY_ACTIVATIONS: model state + what backward needs of each micro-batch in each chunk of the stage,
// from the begin of F (or of R, if F drops it) to the end of B (or of W, if W is a separate job; in a head
// share it is); an F that drops holds its buffers while it runs. Computed from the cost model and the order
// of jobs, independently of the plan's buffers. MEMORY_BUFFERS: model state + the arena of the plan's
// buffers.

typedef struct {
    int64_t state_bytes, peak_bytes;  // of model state; of all else, at its peak
    int64_t peak_ns;                  // time of the peak; 0 for MEMORY_BUFFERS
    int32_t peak_mb;                  // whose forward (or recompute) makes the peak; -1: none
    int32_t most_held;                // most forwards between F and B (or W) at once, over all chunks
} PlanMemory;

// out[P * R]. The plan must have passed plan_check, so every job occurs once, in an order that can run.
Status plan_memory_make(PlanMemory* out, const Plan* plan, const CostModel* costs, MemoryRule rule);

// Prints a table with one row per stage, for the replica with the highest peak.
void plan_memory_print(const PlanMemory* memory, const Plan* plan, const PlanRequest* request, FILE* out);

// --- explanation of a plan --------------------------------------------------------------------------------

// What the tables do not show: where layers and head are, which rank sets the pace, what would win time.
typedef struct {
    const Plan* plan;
    const PlanRequest* request;
    const CostModel* costs;
    const Waterfall* waterfall;  // of this plan
} PlanExplain;

void plan_explain_print(const PlanExplain* about, FILE* out);

// --- published format -------------------------------------------------------------------------------------
// The input of the independent checker, and the predicted values.

typedef struct {
    const Plan* plan;
    int32_t num_enc_layers;
    int64_t planning_cpu_ns;
} PlanJson;

// STATUS_BAD_OPTION if the format cannot express the plan: several samples in one attention window.
Status plan_json_check(const Plan* plan);
void plan_json_print(FILE* out, const void* plan_json);  // a ToolPrint
