/*
plan_views.h -- what ./dynapipe does with a plan: reads its text, checks it, compares it with another, counts
its memory, says it in words and in the published form.
*/
#pragma once

#include <stdio.h>
#include "../dynapipe_plugin/plan/cost_model.h"
#include "../dynapipe_plugin/plan/plan.h"
#include "../dynapipe_plugin/plan/types.h"
#include "problem.h"
#include "waterfall.h"

// From its text form on disk; its memory comes from `arena`.
Status plan_file_load(Plan* out, const char* path, Arena* arena);

// --- is a plan true? ---------------------------------------------------------------------------------------
//
// Its structure, and with a problem also samples, times and memory, all counted again from the problem's
// costs.

// Every rule of plan_check, with the samples that the plan itself tells of (lengths as its sequences say).
Status plan_verify_structure(const Plan* plan, Arena* arena);

// Also: made of this problem's samples, on its stages and replicas; state and makespan are what its costs
// give in the simulator; memory by the problem's rule stays under its limit. STATUS_INVALID_PLAN or, for
// memory, STATUS_INFEASIBLE.
Status plan_verify_problem(const Plan* plan, const Problem* problem, Arena* arena);

// --- comparison --------------------------------------------------------------------------------------------

// *num_differences: lines printed to `out` (long lists are cut, and counted in full). Both plans must have
// passed plan_check.
Status plan_diff(const Plan* a, const Plan* b, FILE* out, int32_t* num_differences, Arena* arena);

// --- memory at its peak ------------------------------------------------------------------------------------
//
// MEMORY_ACTIVATIONS: model state + what backward needs of each micro-batch in each chunk of the stage, from
// the begin of F (or R, where F drops it) to the end of B (or of W, where W is a job of its own; in a share
// of the head it is); while an F that drops runs, what it holds. Counted from the cost model and the order of
// jobs, not from the plan's buffers: an independent account. MEMORY_BUFFERS: model state + the arena that the
// plan's buffers are laid out in.

typedef struct {
    int64_t state_bytes, peak_bytes;  // of model state; of all else, at its peak
    int64_t peak_ns;                  // when; 0 for MEMORY_BUFFERS
    int32_t peak_mb;                  // the micro-batch whose forward (or recompute) makes it; -1: none
    int32_t most_held;                // forwards between F and B (or W) at once, of any chunk
} PlanMemory;

// out[P * R]. The plan must have passed plan_check, so every job is there once, in an order that can run.
Status plan_memory_make(PlanMemory* out, const Plan* plan, const CostModel* costs, MemoryRule rule);

// A table: one row per stage, the fullest replica's.
void plan_memory_print(const PlanMemory* memory, const Plan* plan, const PlanRequest* request, FILE* out);

// --- a plan in words ---------------------------------------------------------------------------------------

typedef struct {
    const Plan* plan;
    const PlanRequest* request;
    const CostModel* costs;
    const PlanMemory* memory;    // [P * R]
    const Waterfall* waterfall;  // of this plan
} PlanExplain;

void plan_explain_print(const PlanExplain* about, FILE* out);

// --- the published form ------------------------------------------------------------------------------------
//
// The judge's input, beside what was predicted of it.

typedef struct {
    const Plan* plan;
    int32_t num_enc_layers;
    int64_t planning_cpu_ns;
} PlanJson;

// STATUS_BAD_OPTION for a plan that the form cannot say: several samples in one attention window.
Status plan_json_check(const Plan* plan);
void plan_json_print(FILE* out, const void* plan_json);  // a ToolPrint
